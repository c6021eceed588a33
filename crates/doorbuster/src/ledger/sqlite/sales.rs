//! Sales, offers and stock in SQLite.

use rules::id::{OfferId, SaleId};
use rules::money::{Currency, Money};
use rules::sale::{
    ChallengeKind, Offer, Phase, RegistrationKind, STOCK_MAX, Sale, SaleAction, SaleState, Window,
};
use rules::time::UnixMs;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::buyers::remember;
use super::shelf::Left;
use super::{SqliteLedger, Urgency, column, signed, turns};
use crate::ledger::{Changed, Counters, ImageCopy, KeyedAnswer, LedgerResult, SalePage, StockChanged};

/// The columns of a sale, in the order [`read_sale_row`] takes them.
pub(super) const SALE_COLUMNS: &str =
    "sale_no, sale_id, state, title, opens_at, closes_at, pay_within_s, challenge,
    registration, registration_opens_at, registration_closes_at, publish_at, rehearsal";

/// How many they are: what is selected beside a sale begins here.
pub(super) const SALE_COLUMNS_COUNT: usize = 13;

/// An offer's number in this ledger, with its counters: what the gate is seeded from.
#[derive(Clone, Copy, Debug)]
pub struct OfferRow {
    pub offer_no: u64,
    pub sale: SaleId,
    pub counters: Counters,
}

impl SqliteLedger {
    /// Keeps a new draft, and the answer to the request that asked for it: a crash leaves both or neither, so that
    /// a repeat of that request never makes a second sale.
    pub async fn create_sale(
        &self,
        sale: Sale,
        answer: Option<KeyedAnswer>,
        now: UnixMs,
    ) -> LedgerResult<()> {
        self.transact(Urgency::Settle, move |transaction| {
            insert_sale(transaction, &sale, now)?;
            note(transaction, "sale.created", sale.id, now)?;
            answer.map_or(Ok(()), |answer| remember(transaction, &answer, now))
        })
        .await
    }

    /// Changes a sale as a whole: `change` sees the sale as it is and answers what it becomes, or why not.
    /// The stock of a published offer is not changed here; see [`SqliteLedger::change_stock`]. If it is done, `answer`
    /// is remembered with it.
    pub async fn update_sale(
        &self,
        id: SaleId,
        answer: Option<KeyedAnswer>,
        now: UnixMs,
        change: impl FnOnce(Sale) -> Changed<Sale> + Send + 'static,
    ) -> LedgerResult<Changed<Sale>> {
        self.transact(Urgency::Settle, move |transaction| {
            let Some(before) = read_sale(transaction, id)? else { return Ok(Changed::NotFound) };
            let changed = change(before.clone());
            if let Changed::Done(after) = &changed {
                // What the clock did to the window as it was comes first: another window may take its place.
                let told = turns::tell(transaction, &before, turns::told_phase(transaction, id)?, now)?;
                write_sale(transaction, &before, after)?;
                note(transaction, "sale.changed", id, now)?;
                turns::tell(transaction, after, told, now)?;
                answer.map_or(Ok(()), |answer| remember(transaction, &answer, now))?;
            }
            Ok(changed)
        })
        .await
    }

    /// Publishes, pauses, resumes or ends. Doing what is done already is harmless.
    pub async fn act_on_sale(
        &self,
        id: SaleId,
        action: SaleAction,
        now: UnixMs,
    ) -> LedgerResult<Changed<Sale>> {
        self.transact(Urgency::Settle, move |transaction| {
            let Some(mut sale) = read_sale(transaction, id)? else { return Ok(Changed::NotFound) };
            let Some(state) = action.apply(sale.state) else { return Ok(Changed::WrongState) };
            if state == sale.state {
                return Ok(Changed::Done(sale));
            }
            let told = turns::tell(transaction, &sale, turns::told_phase(transaction, id)?, now)?;
            // A window that is over when its sale is published never opens.
            let is_late = sale.state == SaleState::Draft && sale.phase(now) == Phase::Closed;
            let told = if is_late { Phase::Open } else { told };
            let before = std::mem::replace(&mut sale.state, state);
            transaction.execute(
                "update sales set state = ?2, publish_at = null where sale_id = ?1",
                params![id.to_bytes(), state.as_str()],
            )?;
            sale.publish_at = None;
            let kind = match state {
                SaleState::Draft => "sale.changed",
                SaleState::Published if before == SaleState::Paused => "sale.resumed",
                SaleState::Published => "sale.published",
                SaleState::Paused => "sale.paused",
                SaleState::Ended => "sale.ended",
            };
            note(transaction, kind, id, now)?;
            turns::tell(transaction, &sale, told, now)?;
            Ok(Changed::Done(sale))
        })
        .await
    }

    /// Throws a draft away. Anything that was ever published stays.
    pub async fn delete_sale(&self, id: SaleId) -> LedgerResult<Changed<()>> {
        self.transact(Urgency::Settle, move |transaction| {
            let Some(sale) = read_sale(transaction, id)? else { return Ok(Changed::NotFound) };
            if sale.state != SaleState::Draft {
                return Ok(Changed::WrongState);
            }
            transaction.execute("delete from sales where sale_id = ?1", [id.to_bytes()])?;
            Ok(Changed::Done(()))
        })
        .await
    }

    pub async fn sale(&self, id: SaleId) -> LedgerResult<Option<Sale>> {
        self.read(move |connection| Ok(read_sale(connection, id)?)).await
    }

    /// Every sale, newest first.
    pub async fn sales(&self) -> LedgerResult<Vec<Sale>> {
        self.read(|connection| {
            let sql = format!("select {SALE_COLUMNS} from sales order by sale_no desc");
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map([], read_sale_row)?;
            let mut sales = Vec::new();
            for row in rows {
                let (sale_no, mut sale) = row?;
                sale.offers = read_offers(connection, sale_no)?;
                sales.push(sale);
            }
            Ok(sales)
        })
        .await
    }

    /// Sales, newest first; only those in `state`, if one is given, and only those before the sale number `before`.
    pub async fn sale_page(
        &self,
        state: Option<SaleState>,
        before: Option<u64>,
        limit: u32,
    ) -> LedgerResult<SalePage> {
        self.read(move |connection| Ok(read_sale_page(connection, state, before, limit)?)).await
    }

    /// The sale that an offer belongs to.
    pub async fn sale_of(&self, offer: OfferId) -> LedgerResult<Option<SaleId>> {
        self.read(move |connection| {
            let found = connection
                .prepare_cached("select sale_id from offers join sales using (sale_no) where offer_id = ?1")?
                .query_row([offer.to_bytes()], |row| column::id(row, 0).map(SaleId))
                .optional()?;
            Ok(found)
        })
        .await
    }

    /// Drafts whose `publish_at` has come.
    pub async fn due_sales(&self, now: UnixMs) -> LedgerResult<Vec<SaleId>> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "select sale_id from sales where state = 'draft' and publish_at <= ?1 order by publish_at",
            )?;
            let rows = statement.query_map([now.0], |row| column::id(row, 0).map(SaleId))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Every offer's number and counters.
    pub async fn offer_rows(&self) -> LedgerResult<Vec<OfferRow>> {
        self.read(|connection| {
            let mut statement = connection.prepare_cached(
                "select offer_no, sale_id, offer_id, stock, live_units, paid_units, change_no
                 from offers join sales using (sale_no)",
            )?;
            let rows = statement.query_map([], |row| {
                Ok(OfferRow {
                    offer_no: column::number(row, 0)?,
                    sale: SaleId(column::id(row, 1)?),
                    counters: read_counters(row, 2)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// The counters of a sale's offers, in their order.
    pub async fn counters(&self, sale: SaleId) -> LedgerResult<Vec<Counters>> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "select offer_id, stock, live_units, paid_units, change_no
                 from offers join sales using (sale_no) where sale_id = ?1 order by position",
            )?;
            let rows = statement.query_map([sale.to_bytes()], |row| read_counters(row, 0))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Every copy of an image that was tried.
    pub async fn image_copies(&self) -> LedgerResult<Vec<ImageCopy>> {
        self.read(|connection| {
            let mut statement =
                connection.prepare_cached("select source, name, problem from image_copies")?;
            let rows = statement.query_map([], |row| {
                Ok(ImageCopy { source: row.get(0)?, name: row.get(1)?, problem: row.get(2)? })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Remembers what became of copies; a later try of the same source replaces an earlier one.
    pub async fn note_image_copies(&self, copies: Vec<ImageCopy>, now: UnixMs) -> LedgerResult<()> {
        self.transact(Urgency::Settle, move |transaction| {
            let mut note = transaction.prepare_cached(
                "insert or replace into image_copies (source, name, problem, tried_at) values (?1, ?2, ?3, ?4)",
            )?;
            for copy in &copies {
                note.execute(params![copy.source, copy.name, copy.problem, now.0])?;
            }
            Ok(())
        })
        .await
    }

    /// The result of this stock change, if it was made before.
    pub async fn earlier_stock_change(
        &self,
        offer: OfferId,
        change_id: String,
    ) -> LedgerResult<Option<(i64, u32)>> {
        self.read(move |connection| {
            let found = connection
                .prepare_cached(
                    "select change, stock_after from stock_changes join offers using (offer_no)
                     where offer_id = ?1 and change_id = ?2",
                )?
                .query_row(params![offer.to_bytes(), change_id], |row| {
                    Ok((row.get(0)?, column::count(row, 1)?))
                })
                .optional()?;
            Ok(found)
        })
        .await
    }

    /// Raises or lowers an offer's stock, never below what is live. A repeat of the same `change_id` returns the first
    /// result; the same id with another change is told so.
    pub async fn change_stock(
        &self,
        offer: OfferId,
        change: i64,
        change_id: String,
        now: UnixMs,
    ) -> LedgerResult<StockChanged> {
        self.transact(Urgency::Settle.at("ledger.change_stock"), move |transaction| {
            change_stock(transaction, offer, change, &change_id, now)
        })
        .await
    }
}

fn change_stock(
    transaction: &Transaction<'_>,
    offer: OfferId,
    change: i64,
    change_id: &str,
    now: UnixMs,
) -> LedgerResult<StockChanged> {
    let counters = transaction
        .prepare_cached(
            "select offer_id, stock, live_units, paid_units, change_no, offer_no, sold_out
             from offers where offer_id = ?1",
        )?
        .query_row([offer.to_bytes()], |row| {
            Ok((read_counters(row, 0)?, row.get::<_, i64>(5)?, row.get::<_, bool>(6)?))
        })
        .optional()?;
    let Some((counters, offer_no, told_sold_out)) = counters else { return Ok(StockChanged::NotFound) };
    let earlier: Option<(i64, u32)> = transaction
        .prepare_cached(
            "select change, stock_after from stock_changes where offer_no = ?1 and change_id = ?2",
        )?
        .query_row(params![offer_no, change_id], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    if let Some((first, stock)) = earlier {
        let same = StockChanged::Done { stock, change_no: counters.change_no, before: true };
        return Ok(if first == change { same } else { StockChanged::OtherChange });
    }
    let stock = i64::from(counters.stock).saturating_add(change);
    if stock < i64::from(counters.live_units) {
        return Ok(StockChanged::BelowLive { live: counters.live_units });
    }
    let Some(stock) = u32::try_from(stock).ok().filter(|stock| *stock <= STOCK_MAX) else {
        return Ok(StockChanged::TooMuch);
    };
    let change_no = counters.change_no + 1;
    transaction.execute(
        "update offers set stock = ?2, change_no = ?3 where offer_no = ?1",
        params![offer_no, stock, signed(change_no)],
    )?;
    transaction.execute(
        "insert into stock_changes (offer_no, change_id, change, stock_after, changed_at) values (?1, ?2, ?3, ?4, ?5)",
        params![offer_no, change_id, change, stock, now.0],
    )?;
    transaction.execute(
        "insert into events (type, at, sale_no, offer_no, data)
         select 'offer.stock_changed', ?2, sale_no, offer_no, ?3 from offers where offer_no = ?1",
        params![offer_no, now.0, format!(r#"{{"change":{change},"stock":{stock}}}"#)],
    )?;
    let units = i64::from(stock) - i64::from(counters.live_units);
    Left { offer_no, units, told_sold_out }.tell(transaction, now)?;
    Ok(StockChanged::Done { stock, change_no, before: false })
}

fn insert_sale(transaction: &Transaction<'_>, sale: &Sale, now: UnixMs) -> LedgerResult<()> {
    transaction.execute(
        "insert into sales (sale_id, state, title, opens_at, closes_at, pay_within_s, challenge, registration,
             registration_opens_at, registration_closes_at, publish_at, rehearsal, created_at)
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        params![
            sale.id.to_bytes(),
            sale.state.as_str(),
            sale.title,
            sale.window.opens_at.0,
            sale.window.closes_at.0,
            sale.pay_within_s,
            sale.challenge.as_str(),
            sale.registration.as_str(),
            sale.registration_opens_at.map(|at| at.0),
            sale.registration_closes_at.map(|at| at.0),
            sale.publish_at.map(|at| at.0),
            sale.rehearsal,
            now.0,
        ],
    )?;
    let sale_no = transaction.last_insert_rowid();
    for (position, offer) in sale.offers.iter().enumerate() {
        put_offer(transaction, sale_no, position, offer)?;
    }
    Ok(())
}

fn put_offer(
    transaction: &Transaction<'_>,
    sale_no: i64,
    position: usize,
    offer: &Offer,
) -> LedgerResult<()> {
    transaction
        .prepare_cached(
            "insert into offers (offer_id, sale_no, position, name, description, image, list_amount, price_amount,
                 currency, stock, max_per_order)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
             on conflict (offer_id) do update set position = ?3, name = ?4, description = ?5, image = ?6,
                 list_amount = ?7, price_amount = ?8, currency = ?9, stock = ?10, max_per_order = ?11",
        )?
        .execute(params![
            offer.id.to_bytes(),
            sale_no,
            i64::try_from(position).unwrap_or(i64::MAX),
            offer.name,
            offer.description,
            offer.image,
            offer.list_price.map(|price| price.amount),
            offer.price.amount,
            offer.price.currency.as_str(),
            offer.stock,
            offer.max_per_order,
        ])?;
    Ok(())
}

/// Writes what changed. A draft's offers may come, go and change altogether; an offer that stays keeps its row, and
/// with it the stock changes that must not be made twice. Offers of a published sale keep stock and counters.
fn write_sale(transaction: &Transaction<'_>, before: &Sale, after: &Sale) -> LedgerResult<()> {
    transaction.execute(
        "update sales set title = ?2, opens_at = ?3, closes_at = ?4, pay_within_s = ?5, challenge = ?6,
             registration = ?7, registration_opens_at = ?8, registration_closes_at = ?9, publish_at = ?10,
             rehearsal = ?11
         where sale_id = ?1",
        params![
            after.id.to_bytes(),
            after.title,
            after.window.opens_at.0,
            after.window.closes_at.0,
            after.pay_within_s,
            after.challenge.as_str(),
            after.registration.as_str(),
            after.registration_opens_at.map(|at| at.0),
            after.registration_closes_at.map(|at| at.0),
            after.publish_at.map(|at| at.0),
            after.rehearsal,
        ],
    )?;
    if before.state == SaleState::Draft {
        let id = after.id.to_bytes();
        let sale_no =
            transaction.query_row("select sale_no from sales where sale_id = ?1", [id], |row| row.get(0))?;
        for offer in before.offers.iter().filter(|gone| after.offers.iter().all(|kept| kept.id != gone.id)) {
            transaction.execute("delete from offers where offer_id = ?1", [offer.id.to_bytes()])?;
        }
        for (position, offer) in after.offers.iter().enumerate() {
            put_offer(transaction, sale_no, position, offer)?;
        }
        return Ok(());
    }
    for offer in &after.offers {
        transaction
            .prepare_cached("update offers set name = ?2, description = ?3, image = ?4 where offer_id = ?1")?
            .execute(params![offer.id.to_bytes(), offer.name, offer.description, offer.image])?;
    }
    Ok(())
}

fn note(transaction: &Transaction<'_>, kind: &str, sale: SaleId, now: UnixMs) -> LedgerResult<()> {
    transaction.execute(
        "insert into events (type, at, sale_no, data) select ?1, ?2, sale_no, '{}' from sales where sale_id = ?3",
        params![kind, now.0, sale.to_bytes()],
    )?;
    Ok(())
}

fn read_sale(connection: &Connection, id: SaleId) -> rusqlite::Result<Option<Sale>> {
    let sql = format!("select {SALE_COLUMNS} from sales where sale_id = ?1");
    let found = connection.prepare_cached(&sql)?.query_row([id.to_bytes()], read_sale_row).optional()?;
    let Some((sale_no, mut sale)) = found else { return Ok(None) };
    sale.offers = read_offers(connection, sale_no)?;
    Ok(Some(sale))
}

fn read_sale_page(
    connection: &Connection,
    state: Option<SaleState>,
    before: Option<u64>,
    limit: u32,
) -> rusqlite::Result<SalePage> {
    let sql = format!(
        "select {SALE_COLUMNS} from sales where (?1 is null or state = ?1) and (?2 is null or sale_no < ?2)
         order by sale_no desc limit ?3"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let values = params![state.map(SaleState::as_str), before.map(signed), i64::from(limit) + 1];
    let rows = statement.query_map(values, read_sale_row)?;
    let mut numbered: Vec<(i64, Sale)> = rows.collect::<Result<_, _>>()?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = numbered.len() > limit;
    numbered.truncate(limit);
    for (sale_no, sale) in &mut numbered {
        sale.offers = read_offers(connection, *sale_no)?;
    }
    let last = numbered.last().and_then(|(sale_no, _)| u64::try_from(*sale_no).ok());
    let sales = numbered.into_iter().map(|(_, sale)| sale).collect();
    Ok(SalePage { sales, next: last.filter(|_| more) })
}

pub(super) fn read_sale_row(row: &Row<'_>) -> rusqlite::Result<(i64, Sale)> {
    let sale = Sale {
        id: SaleId(column::id(row, 1)?),
        state: column::word(row, 2, SaleState::parse)?,
        title: row.get(3)?,
        window: Window { opens_at: column::time(row, 4)?, closes_at: column::time(row, 5)? },
        pay_within_s: column::count(row, 6)?,
        challenge: column::word(row, 7, ChallengeKind::parse)?,
        registration: column::word(row, 8, RegistrationKind::parse)?,
        registration_opens_at: column::time_option(row, 9)?,
        registration_closes_at: column::time_option(row, 10)?,
        publish_at: column::time_option(row, 11)?,
        rehearsal: row.get(12)?,
        offers: Vec::new(),
    };
    Ok((row.get(0)?, sale))
}

fn read_offers(connection: &Connection, sale_no: i64) -> rusqlite::Result<Vec<Offer>> {
    let mut statement = connection.prepare_cached(
        "select offer_id, name, description, image, list_amount, price_amount, currency, stock, max_per_order
         from offers where sale_no = ?1 order by position",
    )?;
    let rows = statement.query_map([sale_no], |row| {
        let currency: Currency = column::word(row, 6, |text| text.parse().ok())?;
        let list_amount: Option<i64> = row.get(4)?;
        Ok(Offer {
            id: OfferId(column::id(row, 0)?),
            name: row.get(1)?,
            description: row.get(2)?,
            image: row.get(3)?,
            list_price: list_amount.map(|amount| Money { amount, currency }),
            price: Money { amount: row.get(5)?, currency },
            stock: column::count(row, 7)?,
            max_per_order: column::count(row, 8)?,
        })
    })?;
    rows.collect()
}

fn read_counters(row: &Row<'_>, from: usize) -> rusqlite::Result<Counters> {
    Ok(Counters {
        offer: OfferId(column::id(row, from)?),
        stock: column::count(row, from + 1)?,
        live_units: column::count(row, from + 2)?,
        paid_units: column::count(row, from + 3)?,
        change_no: column::number(row, from + 4)?,
    })
}
