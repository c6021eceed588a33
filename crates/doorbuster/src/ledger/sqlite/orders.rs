//! Orders in SQLite: recording them in batches, reading them, ending them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};

use rules::buyer::BuyerId;
use rules::deadline::{self, Asked, OnTheWay};
use rules::id::{IdMap, OfferId, OrderId, PaymentId, SaleId};
use rules::money::Money;
use rules::order::{self, Event, Reason, State, Status, Version};
use rules::sale::Phase;
use rules::time::UnixMs;
use rusqlite::types::Value;
use rusqlite::{
    CachedStatement, Connection, ErrorCode, OptionalExtension as _, Row, ToSql, Transaction, params,
    params_from_iter,
};

use super::shelf::{LEFT_COLUMNS, LEFT_COLUMNS_COUNT, Left};
use super::{SqliteLedger, Urgency, column, payments, settling, signed, turns};
use crate::ledger::money::Released;
use crate::ledger::{Cancelled, LedgerError, LedgerResult, Order, OrderPage, OrderSearch, Record, Recorded};
use crate::queue::Claim;

/// The columns of an order, in the order [`read_order`] takes them.
pub(super) const ORDER_COLUMNS: &str =
    "orders.order_no, orders.order_id, sales.sale_id, offers.offer_id, orders.buyer,
    orders.quantity, offers.price_amount, offers.currency, orders.state, orders.reason, orders.holds_units,
    orders.seq, orders.created_at, orders.pay_by, orders.paid_at, orders.closed_at, orders.pass_expires_at,
    orders.payment_id, orders.refunded_at";

/// How many they are: what is selected beside an order begins here.
pub(super) const ORDER_COLUMNS_COUNT: usize = 19;

pub(super) const ORDER_TABLES: &str = "orders join offers using (offer_no) join sales using (sale_no)";

/// So many orders are inserted by one statement: beginning and ending one costs as much as half a row. After each,
/// whoever waits for the core may have it: a batch is long, and nobody waits for it.
const ORDERS_PER_INSERT: usize = 32;

/// So many claims are recorded before a batch gives way: fewer would not pay for their commit.
const CLAIMS_BEFORE_GIVING_WAY: usize = 2 * ORDERS_PER_INSERT;

/// What an order is inserted with.
const INSERTED_COLUMNS: &str =
    "order_no, order_id, offer_no, buyer, quantity, state, reason, seq, holds_units, slot,
    created_at, recorded_at, pay_by, closed_at, pass_expires_at";
const INSERTED_COLUMNS_COUNT: usize = 15;

/// In how many of these columns new orders differ that are recorded together.
const DIFFERING_COLUMNS_COUNT: usize = 8;

/// When, and what they become: so many values they have in common.
const COMMON_VALUES_COUNT: usize = 4;

/// A recorded order's `seq`: the claim was its first fact, the ledger's word is its second.
const SEQ_RECORDED: u32 = 2;

/// A live or recently ended order, for rebuilding the gate.
#[derive(Clone, Debug)]
pub struct Remembered<'a> {
    pub offer_no: u64,
    pub buyer: &'a str,
    pub order: OrderId,
    pub quantity: u32,
    pub pass_expires_at: UnixMs,
    pub live: bool,
}

impl SqliteLedger {
    /// Turns claims into orders: one transaction for the batch and for the clerk's cursor. When somebody waits for the
    /// ledger meanwhile, the batch ends early: the answer has a record for each claim that was recorded, from the first
    /// on and at least one.
    ///
    /// Durable when it returns. A retry is harmless: the order id tells a claim that is already recorded. The order of
    /// the claims is the order of the journal; when units run short (a defect of the gate), the earlier claim wins.
    /// A claim of late money revives its order instead, by `rules::payment::record_revival`.
    pub async fn record_orders(
        &self,
        batch: Vec<(u64, Arc<Claim>)>,
        now: UnixMs,
    ) -> LedgerResult<Vec<Record>> {
        let wanted = Arc::clone(&self.wanted);
        self.transact(Urgency::Clerk.at("ledger.record_orders"), move |transaction| {
            record(transaction, &batch, now, || wanted.load(Ordering::Acquire))
        })
        .await
    }

    /// How far the clerk has read the journal.
    pub async fn cursor(&self) -> LedgerResult<u64> {
        self.read(|connection| {
            Ok(connection.query_row("select cursor from identity", [], |row| column::number(row, 0))?)
        })
        .await
    }

    /// An order by its id, whoever owns it.
    pub async fn order(&self, id: OrderId) -> LedgerResult<Option<Order>> {
        self.read(move |connection| Ok(find(connection, id)?)).await
    }

    /// A buyer's orders, newest first.
    pub async fn orders_of(
        &self,
        buyer: BuyerId,
        before: Option<u64>,
        limit: u32,
    ) -> LedgerResult<OrderPage> {
        let search = OrderSearch { buyer: Some(buyer), before, limit, ..OrderSearch::default() };
        self.search_orders(search).await
    }

    /// A buyer's orders that hold units.
    pub async fn live_orders_of(&self, buyer: BuyerId, limit: u32) -> LedgerResult<Vec<Order>> {
        self.read(move |connection| {
            let sql = format!(
                "select {ORDER_COLUMNS} from {ORDER_TABLES} where orders.buyer = ?1 and orders.slot = 0 limit ?2"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params![buyer.as_str(), limit], read_order)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// A buyer's orders that ended at `since` or later, the last one first.
    pub async fn ended_orders_of(
        &self,
        buyer: BuyerId,
        since: UnixMs,
        limit: u32,
    ) -> LedgerResult<Vec<Order>> {
        self.read(move |connection| {
            let sql = format!(
                "select {ORDER_COLUMNS} from {ORDER_TABLES}
                 where orders.buyer = ?1 and orders.slot > 0 and coalesce(orders.refunded_at, orders.closed_at) >= ?2
                 order by coalesce(orders.refunded_at, orders.closed_at) desc, orders.order_no desc limit ?3"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params![buyer.as_str(), since.0, limit], read_order)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Orders that match, newest first.
    pub async fn search_orders(&self, search: OrderSearch) -> LedgerResult<OrderPage> {
        self.read(move |connection| Ok(find_page(connection, &search)?)).await
    }

    /// Closes an unpaid order of this buyer, and its open payment with it. Durable when it returns; a retry finds it
    /// closed. Money that is here and not decided comes first: then nothing happens.
    pub async fn cancel_order(&self, id: OrderId, buyer: BuyerId, now: UnixMs) -> LedgerResult<Cancelled> {
        let closed = |cancelled: &Cancelled| usize::from(matches!(cancelled, Cancelled::Closed { .. }));
        self.release(Urgency::Settle.at("ledger.cancel_order"), closed, move |transaction| {
            cancel(transaction, id, &buyer, now)
        })
        .await
    }

    /// When the next unpaid order of each of these offers must be paid. Offers without one are passed over by their
    /// counters; for the others the walk by deadline ends at the first order that is theirs.
    pub async fn next_returns(&self, sale: SaleId) -> LedgerResult<HashMap<OfferId, UnixMs>> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "select offer_id,
                     (select pay_by from orders indexed by orders_due
                      where state = 'awaiting_payment' and pay_by is not null and orders.offer_no = offers.offer_no
                      order by pay_by limit 1)
                 from offers join sales using (sale_no)
                 where sales.sale_id = ?1 and live_units > paid_units",
            )?;
            let rows = statement.query_map([sale.to_bytes()], |row| {
                Ok((OfferId(column::id(row, 0)?), column::time_option(row, 1)?))
            })?;
            let due = rows.filter_map(|row| row.map(|(offer, at)| at.map(|at| (offer, at))).transpose());
            Ok(due.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Every order the gate must know at its start: the live ones, and ended ones whose pass has not expired.
    /// `visit` runs on a reading thread, oldest order first.
    pub async fn remembered_orders(
        &self,
        now: UnixMs,
        mut visit: impl FnMut(&Remembered<'_>) + Send + 'static,
    ) -> LedgerResult<()> {
        self.read(move |connection| {
            let mut statement = connection.prepare(
                "select offer_no, buyer, order_id, quantity, pass_expires_at, holds_units from orders
                 where holds_units = 1 or pass_expires_at >= ?1",
            )?;
            let mut rows = statement.query([now.0])?;
            while let Some(row) = rows.next()? {
                visit(&Remembered {
                    offer_no: column::number(row, 0)?,
                    buyer: row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?,
                    order: OrderId(column::id(row, 2)?),
                    quantity: column::count(row, 3)?,
                    pass_expires_at: column::time(row, 4)?,
                    live: row.get(5)?,
                });
            }
            Ok(())
        })
        .await
    }
}

/// What recording needs to know of an offer.
struct OfferBooks {
    offer_no: i64,
    sale: SaleId,
    price: Money,
    pay_within_s: u32,
    /// The phase of the sale's window that was told of last.
    told: Phase,
    /// Units that are still to be had, as the batch goes on.
    left: u32,
    /// Units taken by this batch.
    taken: u32,
}

/// The offers of a batch; `None` for one that does not exist.
type Books = IdMap<OfferId, Option<OfferBooks>>;

fn record(
    transaction: &Transaction<'_>,
    batch: &[(u64, Arc<Claim>)],
    now: UnixMs,
    somebody_waits: impl Fn() -> bool,
) -> LedgerResult<Vec<Record>> {
    let mut books = open_books(transaction, batch, now)?;
    let fits = who_fits(transaction, batch, &mut books)?;
    let mut pen = Pen::new(transaction)?;
    let mut records = Vec::with_capacity(batch.len());
    for (some, fits) in batch.chunks(ORDERS_PER_INSERT).zip(fits.chunks(ORDERS_PER_INSERT)) {
        if records.len() >= CLAIMS_BEFORE_GIVING_WAY && somebody_waits() {
            break;
        }
        std::thread::yield_now();
        match record_together(&mut pen, some, fits, &mut books, now)? {
            Some(recorded) => records.extend(recorded),
            None => record_each(&mut pen, some, fits, &mut books, now, &mut records)?,
        }
    }
    drop(pen);
    insert_events(transaction, now)?;
    move_counters(transaction, &books, now)?;
    let last = batch.iter().zip(&records).map(|((seq, _), _)| *seq).max().unwrap_or(0);
    transaction.prepare_cached("update identity set cursor = max(cursor, ?1)")?.execute([signed(last)])?;
    Ok(records)
}

/// The books of every offer in the batch, each read once. Nobody hears of an order before its sale is open.
fn open_books(
    transaction: &Transaction<'_>,
    batch: &[(u64, Arc<Claim>)],
    now: UnixMs,
) -> LedgerResult<Books> {
    let mut books = Books::default();
    // Held for all of them: to find a statement by its text costs a third of running it.
    let mut statement = transaction.prepare_cached(
        "select offer_no, sale_id, price_amount, currency, pay_within_s, stock - live_units, told_phase
         from offers join sales using (sale_no) where offer_id = ?1",
    )?;
    for (_, claim) in batch {
        if let Entry::Vacant(entry) = books.entry(claim.offer) {
            let offer = statement.query_row([claim.offer.to_bytes()], read_books).optional()?;
            if let Some(OfferBooks { sale, told: Phase::Upcoming, .. }) = entry.insert(offer) {
                turns::tell_now(transaction, *sale, now)?;
            }
        }
    }
    Ok(books)
}

fn read_books(row: &Row<'_>) -> rusqlite::Result<OfferBooks> {
    Ok(OfferBooks {
        offer_no: row.get(0)?,
        sale: SaleId(column::id(row, 1)?),
        price: Money { amount: row.get(2)?, currency: column::word(row, 3, |text| text.parse().ok())? },
        pay_within_s: column::count(row, 4)?,
        left: column::count(row, 5)?,
        told: column::word(row, 6, Phase::parse)?,
        taken: 0,
    })
}

/// Which claims there are units for. Normally all: the gate counted well. When units run short the earlier claim wins,
/// and a claim that is already recorded needs none.
fn who_fits(
    transaction: &Transaction<'_>,
    batch: &[(u64, Arc<Claim>)],
    books: &mut Books,
) -> LedgerResult<Vec<bool>> {
    let mut wanted: IdMap<OfferId, u64> = IdMap::default();
    for (_, claim) in batch {
        *wanted.entry(claim.offer).or_default() += u64::from(claim.quantity);
    }
    let left =
        |offer: &OfferId| books.get(offer).and_then(Option::as_ref).map_or(0, |books| u64::from(books.left));
    if wanted.iter().all(|(offer, units)| *units <= left(offer)) {
        return Ok(vec![true; batch.len()]);
    }
    let mut fits = Vec::with_capacity(batch.len());
    for (_, claim) in batch {
        let Some(offer) = books.get_mut(&claim.offer).and_then(Option::as_mut) else {
            fits.push(false);
            continue;
        };
        let repeat = find(transaction, claim.order)?.is_some_and(|order| is_repeat(claim, &order));
        let left = if repeat { Some(offer.left) } else { offer.left.checked_sub(claim.quantity) };
        offer.left = left.unwrap_or(offer.left);
        fits.push(left.is_some());
    }
    Ok(fits)
}

/// Whether the claim was recorded before, as the order shows that stands under its id.
fn is_repeat(claim: &Claim, order: &Order) -> bool {
    claim.revives.is_none_or(|revive| order.seq != revive.closing_seq)
}

/// The statements that the claims of a batch need, and the transaction they belong to.
struct Pen<'a> {
    transaction: &'a Transaction<'a>,
    /// Inserts an order, or nothing where it is in the way of another.
    order: CachedStatement<'a>,
    /// Inserts [`ORDERS_PER_INSERT`] orders, or none of them where one is in the way of another.
    orders: CachedStatement<'a>,
}

/// See [`Pen::order`].
static INSERT_ORDER: LazyLock<String> = LazyLock::new(|| {
    let row = ["?"; INSERTED_COLUMNS_COUNT].join(", ");
    format!("insert into orders ({INSERTED_COLUMNS}) values ({row}) on conflict do nothing")
});

/// See [`Pen::orders`].
static INSERT_ORDERS: LazyLock<String> = LazyLock::new(|| {
    let rows: Vec<_> = (0..ORDERS_PER_INSERT).map(recorded_row).collect();
    format!("insert into orders ({INSERTED_COLUMNS}) values {}", rows.join(", "))
});

impl<'a> Pen<'a> {
    fn new(transaction: &'a Transaction<'a>) -> LedgerResult<Self> {
        let order = transaction.prepare_cached(&INSERT_ORDER)?;
        let orders = transaction.prepare_cached(&INSERT_ORDERS)?;
        Ok(Self { transaction, order, orders })
    }
}

/// What becomes of a queued order.
fn next(event: Event) -> LedgerResult<Status> {
    order::next(Status::QUEUED, event).map_err(|error| LedgerError::Failed(error.into()))
}

/// The values of one of the orders that are recorded together. What is the same for all is bound once: binding all of
/// them for every row was a twelfth of the writer's time.
fn recorded_row(row: usize) -> String {
    let first = first_differing(row);
    let [no, id, offer, buyer, quantity, created_at, pay_by, pass_expires_at]: [_; DIFFERING_COLUMNS_COUNT] =
        std::array::from_fn(|column| first + column);
    format!(
        "(?{no}, ?{id}, ?{offer}, ?{buyer}, ?{quantity}, ?2, ?3, {SEQ_RECORDED}, ?4, 0, ?{created_at}, ?1, \
         ?{pay_by}, null, ?{pass_expires_at})"
    )
}

/// The first parameter of a row of orders that are recorded together.
const fn first_differing(row: usize) -> usize {
    1 + COMMON_VALUES_COUNT + row * DIFFERING_COLUMNS_COUNT
}

/// Binds what is the same for all orders that are recorded together.
fn bind_common(
    statement: &mut CachedStatement<'_>,
    now: UnixMs,
    Status { state, reason, holds_units }: Status,
) -> rusqlite::Result<()> {
    let values: [&dyn ToSql; COMMON_VALUES_COUNT] =
        [&now.0, &state.as_str(), &reason.map(Reason::as_str), &holds_units];
    bind(statement, 1, values)
}

fn bind<const COUNT: usize>(
    statement: &mut CachedStatement<'_>,
    first: usize,
    values: [&dyn ToSql; COUNT],
) -> rusqlite::Result<()> {
    (first..).zip(values).try_for_each(|(index, value)| statement.raw_bind_parameter(index, value))
}

/// Records claims by one statement, if there are enough of them and each is a new order that nothing is in the way of.
/// Otherwise nothing happens.
fn record_together(
    pen: &mut Pen<'_>,
    claims: &[(u64, Arc<Claim>)],
    fits: &[bool],
    books: &mut Books,
    now: UnixMs,
) -> LedgerResult<Option<Vec<Record>>> {
    let plain = |((_, claim), fits): (&(u64, Arc<Claim>), &bool)| *fits && claim.revives.is_none();
    if claims.len() != ORDERS_PER_INSERT || !claims.iter().zip(fits).all(plain) {
        return Ok(None);
    }
    let mut orders = Vec::with_capacity(claims.len());
    bind_common(&mut pen.orders, now, next(Event::Recorded)?)?;
    for (seq, claim) in claims {
        let Some(Some(offer)) = books.get(&claim.offer) else { return Ok(None) };
        let order = new_order(*seq, claim, Event::Recorded, offer, now)?;
        bind_recorded(&mut pen.orders, orders.len(), &order, offer)?;
        orders.push(order);
    }
    match pen.orders.raw_execute() {
        Ok(_) => {}
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    for order in &orders {
        if let Some(Some(offer)) = books.get_mut(&order.offer) {
            offer.taken = offer.taken.saturating_add(order.quantity);
        }
    }
    let recorded = |order| Record { outcome: Recorded::Recorded, order: Some(Arc::new(order)) };
    Ok(Some(orders.into_iter().map(recorded).collect()))
}

/// Records claims one by one, each with its own verdict.
fn record_each(
    pen: &mut Pen<'_>,
    claims: &[(u64, Arc<Claim>)],
    fits: &[bool],
    books: &mut Books,
    now: UnixMs,
    records: &mut Vec<Record>,
) -> LedgerResult<()> {
    for ((seq, claim), fits) in claims.iter().zip(fits) {
        let offer = books.get_mut(&claim.offer).and_then(Option::as_mut);
        records.push(match (claim.revives, offer) {
            (Some(revive), _) => settling::record_revival(pen.transaction, claim, revive, *fits, now)?,
            (None, Some(offer)) => record_one(pen, *seq, claim, *fits, offer, now)?,
            (None, None) => Record { outcome: Recorded::Refused(Reason::Internal), order: None },
        });
    }
    Ok(())
}

fn record_one(
    pen: &mut Pen<'_>,
    seq: u64,
    claim: &Claim,
    fits: bool,
    offer: &mut OfferBooks,
    now: UnixMs,
) -> LedgerResult<Record> {
    if !fits {
        return refuse(pen, seq, claim, Reason::NoStock, offer, now);
    }
    let order = new_order(seq, claim, Event::Recorded, offer, now)?;
    if insert_order(pen, &order, offer, now)? {
        offer.taken = offer.taken.saturating_add(claim.quantity);
        return Ok(Record { outcome: Recorded::Recorded, order: Some(Arc::new(order)) });
    }
    match find(pen.transaction, claim.order)? {
        None => refuse(pen, seq, claim, Reason::OtherLive, offer, now),
        Some(known) if known.buyer != claim.buyer || known.offer != claim.offer => {
            // The id names somebody else's order: there is no row that could stand for this claim.
            Ok(Record { outcome: Recorded::Refused(Reason::IdClash), order: None })
        }
        Some(known) => {
            let live = known.status.holds_units;
            let outcome = if live { Recorded::RepeatLive } else { Recorded::RepeatEnded };
            Ok(Record { outcome, order: Some(Arc::new(known)) })
        }
    }
}

/// A refusal is an order row and an event: whoever was told "queued" finds out why not, also after a crash.
fn refuse(
    pen: &mut Pen<'_>,
    seq: u64,
    claim: &Claim,
    reason: Reason,
    offer: &OfferBooks,
    now: UnixMs,
) -> LedgerResult<Record> {
    let order = new_order(seq, claim, Event::Refused(reason), offer, now)?;
    insert_order(pen, &order, offer, now)?;
    Ok(Record { outcome: Recorded::Refused(reason), order: Some(Arc::new(order)) })
}

fn new_order(seq: u64, claim: &Claim, event: Event, offer: &OfferBooks, now: UnixMs) -> LedgerResult<Order> {
    let status = next(event)?;
    let live = status.holds_units;
    Ok(Order {
        no: seq,
        id: claim.order,
        sale: offer.sale,
        offer: claim.offer,
        buyer: claim.buyer.clone(),
        quantity: claim.quantity,
        price: offer.price,
        status,
        seq: SEQ_RECORDED,
        created_at: claim.claimed_at,
        pay_by: live.then(|| deadline::pay_by(now, offer.pay_within_s)),
        paid_at: None,
        closed_at: (!live).then_some(now),
        pass_expires_at: claim.pass_expires_at,
        payment: None,
        refunded_at: None,
    })
}

/// `false` when the order's id, or another live order of its buyer, is already there.
fn insert_order(pen: &mut Pen<'_>, order: &Order, offer: &OfferBooks, now: UnixMs) -> LedgerResult<bool> {
    let values: [&dyn ToSql; INSERTED_COLUMNS_COUNT] = [
        &signed(order.no),
        &order.id.to_bytes(),
        &offer.offer_no,
        &order.buyer.as_str(),
        &order.quantity,
        &order.status.state.as_str(),
        &order.status.reason.map(Reason::as_str),
        &order.seq,
        &order.status.holds_units,
        &slot(order),
        &order.created_at.0,
        &now.0,
        &order.pay_by.map(|at| at.0),
        &order.closed_at.map(|at| at.0),
        &order.pass_expires_at.0,
    ];
    Ok(pen.order.execute(values.as_slice())? == 1)
}

/// Binds what makes this order another one than those that are recorded with it.
fn bind_recorded(
    statement: &mut CachedStatement<'_>,
    row: usize,
    order: &Order,
    offer: &OfferBooks,
) -> rusqlite::Result<()> {
    let values: [&dyn ToSql; DIFFERING_COLUMNS_COUNT] = [
        &signed(order.no),
        &order.id.to_bytes(),
        &offer.offer_no,
        &order.buyer.as_str(),
        &order.quantity,
        &order.created_at.0,
        &order.pay_by.map(|at| at.0),
        &order.pass_expires_at.0,
    ];
    bind(statement, first_differing(row), values)
}

/// See the table's comment: 0 while live.
fn slot(order: &Order) -> i64 {
    if order.status.holds_units { 0 } else { signed(order.no) }
}

/// The events of all rows that this batch inserted: those beyond the cursor, which moves in the same transaction.
fn insert_events(transaction: &Transaction<'_>, now: UnixMs) -> LedgerResult<()> {
    transaction
        .prepare_cached(
            "insert into events (type, at, sale_no, offer_no, order_no, seq, data)
             select iif(state = 'refused', 'order.refused', 'order.recorded'), ?1, sale_no, offer_no, order_no, seq,
                 -- Nearly all are this one: it need not be put together for each.
                 iif(state = 'awaiting_payment' and reason is null, '{\"state\":\"awaiting_payment\"}',
                     '{\"state\":\"' || state || iif(reason is null, '', '\",\"reason\":\"' || reason) || '\"}')
             from orders join offers using (offer_no) where order_no > (select cursor from identity)
             order by order_no",
        )?
        .execute([now.0])?;
    Ok(())
}

/// What changed, as the event's receiver will see it.
pub(super) fn event_data(status: Status) -> String {
    let state = status.state.as_str();
    match status.reason {
        Some(reason) => format!(r#"{{"state":"{state}","reason":"{}"}}"#, reason.as_str()),
        None => format!(r#"{{"state":"{state}"}}"#),
    }
}

/// The guard: if a counter cannot take what the batch inserted, the whole batch is undone.
fn move_counters(transaction: &Transaction<'_>, books: &Books, now: UnixMs) -> LedgerResult<()> {
    let mut moved: Vec<&OfferBooks> = books.values().flatten().filter(|offer| offer.taken > 0).collect();
    // Offers of a sale are neighbours in the file.
    moved.sort_unstable_by_key(|offer| offer.offer_no);
    // An offer that has units left before and after, as nearly all have, has nothing to tell. Answering with what is
    // left costs twice as much as the update itself.
    let mut quietly = transaction.prepare_cached(
        "update offers set live_units = live_units + ?1, change_no = change_no + 1
         where offer_no = ?2 and live_units + ?1 < stock and sold_out = 0",
    )?;
    for offer in moved {
        if quietly.execute(params![offer.taken, offer.offer_no])? == 0 {
            move_and_tell(transaction, offer, now)?;
        }
    }
    Ok(())
}

fn move_and_tell(transaction: &Transaction<'_>, offer: &OfferBooks, now: UnixMs) -> LedgerResult<()> {
    let sql = format!(
        "update offers set live_units = live_units + ?1, change_no = change_no + 1
         where offer_no = ?2 and live_units + ?1 <= stock returning {LEFT_COLUMNS}"
    );
    let moved = transaction
        .prepare_cached(&sql)?
        .query_row(params![offer.taken, offer.offer_no], Left::read)
        .optional()?;
    match moved {
        Some(left) => left.tell(transaction, now),
        None => Err(LedgerError::Failed(anyhow::anyhow!(
            "offer {} would be oversold by this batch",
            offer.offer_no
        ))),
    }
}

fn cancel(
    transaction: &Transaction<'_>,
    id: OrderId,
    buyer: &BuyerId,
    now: UnixMs,
) -> LedgerResult<Cancelled> {
    let Some(mut order) = find(transaction, id)?.filter(|order| order.buyer == *buyer) else {
        return Ok(Cancelled::NotFound);
    };
    if order.status.reason == Some(Reason::Cancelled) {
        return Ok(Cancelled::Before(Box::new(order)));
    }
    if order::next(order.status, Event::Cancelled).is_err() {
        return Ok(Cancelled::NotCancellable(order.status.state));
    }
    let states = payments::of_order(transaction, id)?.into_iter().map(|payment| payment.status.state);
    if !OnTheWay::of(states, Asked::NotYet).lets_cancel() {
        return Ok(Cancelled::MoneyIsHere);
    }
    let change_no = write_event(transaction, &mut order, Event::Cancelled, Shelf::Same, now)?;
    let payment = payments::close_open(transaction, id, now)?;
    let released = Released { order, change_no, restock: true, struck: false };
    Ok(Cancelled::Closed { released: Box::new(released), payment })
}

/// What happens to the offer's stock when an order lets go of its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shelf {
    Same,
    /// The units do not come back to the shelf.
    Lowered,
}

/// Writes what an event makes of an order: the row, the offer's counters and the event, together. Answers the offer's
/// `change_no`. An event that the order cannot take is a defect of the caller.
pub(super) fn write_event(
    transaction: &Transaction<'_>,
    order: &mut Order,
    event: Event,
    shelf: Shelf,
    now: UnixMs,
) -> LedgerResult<u64> {
    let before = order.clone();
    let version = Version { status: order.status, seq: order.seq };
    let after = version.next(event).map_err(|error| LedgerError::Failed(error.into()))?;
    (order.status, order.seq) = (after.status, after.seq);
    match event {
        Event::TimedOut | Event::Cancelled | Event::Refused(_) => order.closed_at = Some(now),
        Event::PaymentApplied => order.paid_at = Some(now),
        Event::Revived => (order.paid_at, order.closed_at) = (Some(now), None),
        Event::RefundDone => order.refunded_at = Some(now),
        Event::Recorded | Event::NotRevived | Event::RefundStarted | Event::RefundFailed => {}
    }
    write_row(transaction, &before, order)?;
    transaction
        .prepare_cached(
            "insert into events (type, at, sale_no, offer_no, order_no, seq, data)
             select ?2, ?3, sale_no, offer_no, order_no, seq, ?4
             from orders join offers using (offer_no) where order_no = ?1",
        )?
        .execute(params![signed(order.no), event.kind(), now.0, facts(order, event)])?;
    move_units(transaction, &before, order, shelf, now)
}

/// What changed, and which money paid the order, once some has. Late or in time, a paid order is to be shipped: it is one
/// type of event.
fn facts(order: &Order, event: Event) -> String {
    let Some(payment) = order.payment else { return event_data(order.status) };
    let mut facts = serde_json::Map::new();
    facts.insert("state".to_owned(), serde_json::json!(order.status.state));
    facts.insert("payment_id".to_owned(), serde_json::json!(payment));
    if let Some(reason) = order.status.reason {
        facts.insert("reason".to_owned(), serde_json::json!(reason));
    }
    if matches!(event, Event::PaymentApplied | Event::Revived) {
        facts.insert("late".to_owned(), serde_json::json!(event == Event::Revived));
    }
    serde_json::Value::Object(facts).to_string()
}

fn write_row(transaction: &Transaction<'_>, before: &Order, order: &Order) -> LedgerResult<()> {
    // Whatever is named is written again, and the slot stands in the index of buyers, whose pages lie apart.
    let slot_changes = if slot(before) == slot(order) { "" } else { "slot = ?7," };
    let sql = format!(
        "update orders set {slot_changes} state = ?3, reason = ?4, seq = ?5, holds_units = ?6, paid_at = ?8,
             closed_at = ?9, payment_id = ?10, refunded_at = ?11
         where order_no = ?1 and seq = ?2"
    );
    let written = transaction.prepare_cached(&sql)?.execute(params![
        signed(order.no),
        before.seq,
        order.status.state.as_str(),
        order.status.reason.map(Reason::as_str),
        order.seq,
        order.status.holds_units,
        slot(order),
        order.paid_at.map(|at| at.0),
        order.closed_at.map(|at| at.0),
        order.payment.map(|payment| payment.to_bytes()),
        order.refunded_at.map(|at| at.0),
    ])?;
    if written == 1 {
        return Ok(());
    }
    Err(LedgerError::Failed(anyhow::anyhow!("order {} is not at seq {}", order.id, before.seq)))
}

/// Moves the counters by what the order's change really means for them. The table's checks are the guard.
fn move_units(
    transaction: &Transaction<'_>,
    before: &Order,
    after: &Order,
    shelf: Shelf,
    now: UnixMs,
) -> LedgerResult<u64> {
    let live = live_units(after) - live_units(before);
    let paid = paid_units(after) - paid_units(before);
    let stock = if shelf == Shelf::Lowered { live } else { 0 };
    let sql = format!(
        "update offers set live_units = live_units + ?2, paid_units = paid_units + ?3, stock = stock + ?4,
             change_no = change_no + (?2 <> 0)
         where offer_no = (select offer_no from orders where order_no = ?1) returning {LEFT_COLUMNS}, change_no"
    );
    let (left, change_no) =
        transaction.prepare_cached(&sql)?.query_row(params![signed(after.no), live, paid, stock], |row| {
            Ok((Left::read(row)?, column::number(row, LEFT_COLUMNS_COUNT)?))
        })?;
    if stock != 0 {
        note_stock(transaction, after, stock)?;
    }
    left.tell(transaction, now)?;
    Ok(change_no)
}

fn note_stock(transaction: &Transaction<'_>, order: &Order, change: i64) -> LedgerResult<()> {
    transaction
        .prepare_cached(
            "insert into events (type, at, sale_no, offer_no, data)
             select 'offer.stock_changed', ?3, sale_no, offer_no, json_object('change', ?2, 'stock', stock)
             from offers where offer_id = ?1",
        )?
        .execute(params![order.offer.to_bytes(), change, order.refunded_at.map(|at| at.0)])?;
    Ok(())
}

fn live_units(order: &Order) -> i64 {
    if order.status.holds_units { i64::from(order.quantity) } else { 0 }
}

/// Units that are paid for, those of a refund among them until it is done.
fn paid_units(order: &Order) -> i64 {
    match order.status.state {
        State::Paid | State::Refunding | State::RefundFailed => i64::from(order.quantity),
        State::Queued | State::AwaitingPayment | State::Closed | State::Refused | State::Refunded => 0,
    }
}

pub(super) fn find(connection: &Connection, id: OrderId) -> rusqlite::Result<Option<Order>> {
    let sql = format!("select {ORDER_COLUMNS} from {ORDER_TABLES} where orders.order_id = ?1");
    connection.prepare_cached(&sql)?.query_row([id.to_bytes()], read_order).optional()
}

fn find_page(connection: &Connection, search: &OrderSearch) -> rusqlite::Result<OrderPage> {
    let mut conditions = vec!["1".to_owned()];
    let mut values: Vec<Value> = Vec::new();
    let mut add = |condition: &str, value: Value| {
        values.push(value);
        conditions.push(format!("{condition} ?{}", values.len()));
    };
    if let Some(order) = search.order {
        add("orders.order_id =", Value::Blob(order.to_bytes().to_vec()));
    }
    if let Some(buyer) = &search.buyer {
        add("orders.buyer =", Value::Text(buyer.as_str().to_owned()));
    }
    if let Some(offer) = search.offer {
        add("offers.offer_id =", Value::Blob(offer.to_bytes().to_vec()));
    }
    if let Some(sale) = search.sale {
        add("sales.sale_id =", Value::Blob(sale.to_bytes().to_vec()));
    }
    if let Some(state) = search.state {
        add("orders.state =", Value::Text(state.as_str().to_owned()));
    }
    if let Some(before) = search.before {
        add("orders.order_no <", Value::Integer(signed(before)));
    }
    let limit = usize::try_from(search.limit).unwrap_or(usize::MAX);
    let sql = format!(
        "select {ORDER_COLUMNS} from {ORDER_TABLES} where {} order by orders.order_no desc limit {}",
        conditions.join(" and "),
        limit.saturating_add(1)
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(values), read_order)?;
    let mut orders: Vec<Order> = rows.collect::<Result<_, _>>()?;
    let more = orders.len() > limit;
    orders.truncate(limit);
    let next = if more { orders.last().map(|order| order.no) } else { None };
    Ok(OrderPage { orders, next })
}

pub(super) fn read_order(row: &Row<'_>) -> rusqlite::Result<Order> {
    Ok(Order {
        no: column::number(row, 0)?,
        id: OrderId(column::id(row, 1)?),
        sale: SaleId(column::id(row, 2)?),
        offer: OfferId(column::id(row, 3)?),
        buyer: column::word(row, 4, |text| BuyerId::parse(text).ok())?,
        quantity: column::count(row, 5)?,
        price: Money { amount: row.get(6)?, currency: column::word(row, 7, |text| text.parse().ok())? },
        status: Status {
            state: column::word(row, 8, State::parse)?,
            reason: match row.get_ref(9)?.as_str_or_null()? {
                None => None,
                Some(text) => Some(Reason::parse(text).ok_or_else(|| column::unknown_word(9))?),
            },
            holds_units: row.get(10)?,
        },
        seq: column::count(row, 11)?,
        created_at: column::time(row, 12)?,
        pay_by: column::time_option(row, 13)?,
        paid_at: column::time_option(row, 14)?,
        closed_at: column::time_option(row, 15)?,
        pass_expires_at: column::time(row, 16)?,
        payment: column::id_option(row, 17)?.map(PaymentId),
        refunded_at: column::time_option(row, 18)?,
    })
}
