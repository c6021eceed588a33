//! Strikes in SQLite. Whether somebody is blocked because of them is computed by `rules::strike`, never stored.

use rules::buyer::BuyerId;
use rules::id::OrderId;
use rules::order::Event;
use rules::strike::{Cause, Mark, Strike, mark};
use rules::time::UnixMs;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::buyers::remember;
use super::{SqliteLedger, Urgency, column, signed};
use crate::ledger::money::{BuyerRecord, StrikeRow};
use crate::ledger::{KeyedAnswer, LedgerResult, Order};

const STRIKE_COLUMNS: &str =
    "strikes.strike_no, strikes.buyer, orders.order_id, strikes.struck_at, strikes.lifted_at, strikes.note";

/// The numbers of a buyer's (`?1`) strikes: those of the buyer's orders, and those that the operator gave.
const STRIKES_OF_BUYER: &str = "select strike_no from orders cross join strikes using (order_no) where orders.buyer = ?1
    union all select strike_no from strikes indexed by strikes_by_operator where order_no is null and buyer = ?1";

impl SqliteLedger {
    /// All strikes of a buyer, lifted ones too, newest first.
    pub async fn strikes_of(&self, buyer: BuyerId, limit: u32) -> LedgerResult<Vec<StrikeRow>> {
        self.read(move |connection| Ok(find_of(connection, &buyer, limit)?)).await
    }

    /// What decides whether a buyer is blocked, at one moment: the strikes since `since` that were not lifted, and the
    /// operator's own block.
    pub async fn record_of(&self, buyer: BuyerId, since: UnixMs) -> LedgerResult<BuyerRecord> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&format!(
                "select {STRIKE_COLUMNS} from strikes left join orders using (order_no)
                 where strike_no in ({STRIKES_OF_BUYER}) and struck_at >= ?2 and lifted_at is null
                 order by strike_no"
            ))?;
            let rows = statement.query_map(params![buyer.as_str(), since.0], read_strike)?;
            let strikes = rows.map(|row| row.map(|row| row.strike)).collect::<Result<_, _>>()?;
            let operator_block_until = connection
                .prepare_cached("select until_at from blocks where buyer = ?1")?
                .query_row([buyer.as_str()], |row| column::time(row, 0))
                .optional()?;
            Ok(BuyerRecord { strikes, operator_block_until })
        })
        .await
    }

    /// Every strike since `since` that was not lifted, oldest first; `visit` runs on a reading thread.
    pub async fn strikes_since(
        &self,
        since: UnixMs,
        mut visit: impl FnMut(StrikeRow) + Send + 'static,
    ) -> LedgerResult<()> {
        self.read(move |connection| {
            let mut statement = connection.prepare(&format!(
                "select {STRIKE_COLUMNS} from strikes left join orders using (order_no)
                 where struck_at >= ?1 and lifted_at is null order by strike_no"
            ))?;
            let mut rows = statement.query([since.0])?;
            while let Some(row) = rows.next()? {
                visit(read_strike(row)?);
            }
            Ok(())
        })
        .await
    }

    /// Gives a strike by the operator's hand, and remembers the answer to the request that asked for it: a repeat of
    /// that request gives no second one. Durable when it returns.
    pub async fn add_strike(
        &self,
        buyer: BuyerId,
        note: Option<String>,
        answer: Option<KeyedAnswer>,
        now: UnixMs,
    ) -> LedgerResult<StrikeRow> {
        self.transact(Urgency::Settle, move |transaction| {
            transaction.execute(
                "insert into strikes (buyer, struck_at, note) values (?1, ?2, ?3)",
                params![buyer.as_str(), now.0, note],
            )?;
            let no = u64::try_from(transaction.last_insert_rowid()).unwrap_or(0);
            transaction.execute(
                "insert into events (type, at, data) values ('buyer.struck', ?1, json_object('buyer', ?2))",
                params![now.0, buyer.as_str()],
            )?;
            answer.map_or(Ok(()), |answer| remember(transaction, &answer, now))?;
            let strike = Strike { cause: Cause::Operator, at: now, lifted_at: None };
            Ok(StrikeRow { no, buyer, strike, note })
        })
        .await
    }

    /// Lifts one strike of a buyer by the operator's hand. `false` when there is none of that number that counts; so a
    /// retry is harmless. Durable when it returns.
    pub async fn lift_strike(&self, buyer: BuyerId, no: u64, now: UnixMs) -> LedgerResult<bool> {
        self.transact(Urgency::Settle, move |transaction| {
            let lifted = lift(transaction, "strike_no = ?2 and buyer = ?1", &buyer, signed(no), now)?;
            Ok(lifted == 1)
        })
        .await
    }

    /// Lifts all strikes of a buyer, which ends a block that they caused. Answers how many; a retry lifts none.
    pub async fn lift_strikes(&self, buyer: BuyerId, now: UnixMs) -> LedgerResult<usize> {
        self.transact(Urgency::Settle, move |transaction| {
            let all = format!("strike_no in ({STRIKES_OF_BUYER}) and strike_no > ?2");
            lift(transaction, &all, &buyer, 0, now)
        })
        .await
    }
}

fn lift(
    transaction: &Transaction<'_>,
    which: &str,
    buyer: &BuyerId,
    number: i64,
    now: UnixMs,
) -> LedgerResult<usize> {
    let lifted = transaction.execute(
        &format!(
            "update strikes set lifted_at = ?3, lifted_by = 'operator' where {which} and lifted_at is null"
        ),
        params![buyer.as_str(), number, now.0],
    )?;
    if lifted > 0 {
        note_lifted(transaction, buyer, now)?;
    }
    Ok(lifted)
}

fn note_lifted(transaction: &Transaction<'_>, buyer: &BuyerId, now: UnixMs) -> LedgerResult<()> {
    transaction.execute(
        "insert into events (type, at, data) values ('buyer.strike_lifted', ?1, json_object('buyer', ?2))",
        params![now.0, buyer.as_str()],
    )?;
    Ok(())
}

/// Gives the buyers of these orders (their numbers, as a JSON array) a strike each. A second one for the same order is
/// refused by the table, and with it the transaction.
pub(super) fn strike(transaction: &Transaction<'_>, orders: &str, now: UnixMs) -> LedgerResult<()> {
    transaction
        .prepare_cached(
            "insert into strikes (buyer, order_no, struck_at) select buyer, order_no, ?2
             from orders where order_no in (select value from json_each(?1)) order by order_no",
        )?
        .execute(params![orders, now.0])?;
    // Not one of the order's own facts, so without a `seq` of its own.
    transaction
        .prepare_cached(
            "insert into events (type, at, sale_no, offer_no, order_no, data)
             select 'buyer.struck', ?2, sale_no, offer_no, order_no, json_object('buyer', buyer)
             from orders join offers using (offer_no)
             where order_no in (select value from json_each(?1)) order by order_no",
        )?
        .execute(params![orders, now.0])?;
    Ok(())
}

/// Lifts the strike of an order whose event lifts it: late money found its unit.
pub(super) fn lift_for(
    transaction: &Transaction<'_>,
    order: &Order,
    event: Event,
    now: UnixMs,
) -> LedgerResult<()> {
    if mark(event, false) != Mark::Lift {
        return Ok(());
    }
    let lifted = transaction
        .prepare_cached(
            "update strikes set lifted_at = ?2, lifted_by = 'late_money' where order_no = ?1 and lifted_at is null",
        )?
        .execute(params![signed(order.no), now.0])?;
    if lifted > 0 {
        note_lifted(transaction, &order.buyer, now)?;
    }
    Ok(())
}

fn find_of(connection: &Connection, buyer: &BuyerId, limit: u32) -> rusqlite::Result<Vec<StrikeRow>> {
    let mut statement = connection.prepare_cached(&format!(
        "select {STRIKE_COLUMNS} from strikes left join orders using (order_no)
         where strike_no in ({STRIKES_OF_BUYER}) order by strike_no desc limit ?2"
    ))?;
    let rows = statement.query_map(params![buyer.as_str(), limit], read_strike)?;
    rows.collect()
}

fn read_strike(row: &Row<'_>) -> rusqlite::Result<StrikeRow> {
    Ok(StrikeRow {
        no: column::number(row, 0)?,
        buyer: column::word(row, 1, |text| BuyerId::parse(text).ok())?,
        strike: Strike {
            cause: column::id_option(row, 2)?.map_or(Cause::Operator, |order| Cause::Unpaid(OrderId(order))),
            at: column::time(row, 3)?,
            lifted_at: column::time_option(row, 4)?,
        },
        note: row.get(5)?,
    })
}
