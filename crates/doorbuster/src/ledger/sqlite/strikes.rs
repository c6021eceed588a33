//! Strikes in SQLite. Whether somebody is blocked because of them is computed by `rules::strike`, never stored.

use std::collections::HashSet;

use rules::buyer::BuyerId;
use rules::id::OrderId;
use rules::order::Event;
use rules::strike::{Cause, Mark as Marking, Policy, Strike, mark, standing};
use rules::time::UnixMs;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::buyers::{page, remember};
use super::deadlines::numbers;
use super::{SqliteLedger, Urgency, column, signed};
use crate::ledger::money::{BuyerRecord, Candidate, LetIn, Lifter, Mark, StrikeOf, StrikeRow};
use crate::ledger::{KeyedAnswer, LedgerResult, Order};

const STRIKE_COLUMNS: &str =
    "strikes.strike_no, strikes.buyer, orders.order_id, strikes.struck_at, strikes.lifted_at,
    strikes.note, strikes.lifted_by";

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
        self.read(move |connection| Ok(read_record(connection, &buyer, since)?)).await
    }

    /// Every strike since `since` that was not lifted, oldest first; `visit` runs on a reading thread.
    pub async fn strikes_since(
        &self,
        since: UnixMs,
        mut visit: impl FnMut(&Mark<'_>) + Send + 'static,
    ) -> LedgerResult<()> {
        self.read(move |connection| {
            let mut statement = connection.prepare(
                "select buyer, order_no, strike_no, struck_at from strikes indexed by strikes_counting
                 where struck_at >= ?1 and lifted_at is null order by struck_at, strike_no",
            )?;
            let mut rows = statement.query([since.0])?;
            while let Some(row) = rows.next()? {
                let buyer = row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?;
                visit(&Mark { buyer, of: read_of(row, 1)?, at: column::time(row, 3)? });
            }
            Ok(())
        })
        .await
    }

    /// Buyers who may be blocked, by their names, those after `after`; and whether there are more. Blocked by the
    /// operator, or by `limit_strikes` strikes since `since`; whether these really block is for the rules to say.
    pub async fn block_candidates(
        &self,
        (now, since): (UnixMs, UnixMs),
        limit_strikes: u32,
        after: Option<String>,
        limit: u32,
    ) -> LedgerResult<(Vec<Candidate>, bool)> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "select candidates.buyer, blocks.note from (
                     select buyer from blocks where until_at > ?1
                     union
                     -- A limit of 0 never blocks.
                     select buyer from strikes indexed by strikes_counting
                     where struck_at >= ?2 and lifted_at is null and ?3 > 0 group by buyer having count(*) >= ?3
                 ) as candidates
                 left join blocks on blocks.buyer = candidates.buyer and blocks.until_at > ?1
                 where candidates.buyer > ?4 order by candidates.buyer limit ?5",
            )?;
            let values =
                params![now.0, since.0, limit_strikes, after.unwrap_or_default(), i64::from(limit) + 1];
            let rows = statement.query_map(values, |row| {
                let buyer = column::word(row, 0, |text| BuyerId::parse(text).ok())?;
                Ok(Candidate { buyer, note: row.get(1)? })
            })?;
            Ok(page(rows.collect::<Result<_, _>>()?, limit))
        })
        .await
    }

    /// Gives a strike by the operator's hand, and remembers the answer to the request that asked for it: a repeat of
    /// that request gives no second one. Durable when it returns.
    pub async fn add_strike(
        &self,
        buyer: BuyerId,
        note: Option<String>,
        now: UnixMs,
        answer: impl FnOnce(&StrikeRow) -> Option<KeyedAnswer> + Send + 'static,
    ) -> LedgerResult<StrikeRow> {
        self.transact(Urgency::Settle, move |transaction| {
            transaction.execute(
                "insert into strikes (buyer, struck_at, note) values (?1, ?2, ?3)",
                params![buyer.as_str(), now.0, note],
            )?;
            let no = u64::try_from(transaction.last_insert_rowid()).unwrap_or(0);
            transaction.execute(
                "insert into events (type, at, data)
                 values ('buyer.struck', ?1, json_object('buyer', ?2, 'strike', ?3, 'cause', 'operator', 'note', ?4))",
                params![now.0, buyer.as_str(), signed(no), note],
            )?;
            let strike = Strike { cause: Cause::Operator, at: now, lifted_at: None };
            let row = StrikeRow { no, buyer, strike, note, lifted_by: None };
            answer(&row).map_or(Ok(()), |answer| remember(transaction, &answer, now))?;
            Ok(row)
        })
        .await
    }

    /// Lifts one strike of a buyer by the operator's hand. `None` when there is none of that number that counts; so a
    /// retry is harmless. Durable when it returns.
    pub async fn lift_strike(&self, buyer: BuyerId, no: u64, now: UnixMs) -> LedgerResult<Option<StrikeOf>> {
        self.transact(Urgency::Settle, move |transaction| {
            let lifted = lift(transaction, "strike_no = ?2 and buyer = ?1", &buyer, signed(no), now)?;
            Ok(lifted.first().copied())
        })
        .await
    }

    /// Lets a buyer in again: ends a block by the operator's hand, and, if the buyer's strikes block by `policy`, lifts
    /// them all. Durable when it returns; a retry finds nothing to do.
    pub async fn let_in(&self, buyer: BuyerId, policy: Policy, now: UnixMs) -> LedgerResult<LetIn> {
        self.transact(Urgency::Settle, move |transaction| let_in(transaction, &buyer, policy, now)).await
    }
}

fn let_in(
    transaction: &Transaction<'_>,
    buyer: &BuyerId,
    policy: Policy,
    now: UnixMs,
) -> LedgerResult<LetIn> {
    let unblocked = transaction
        .execute("delete from blocks where buyer = ?1 and until_at > ?2", params![buyer.as_str(), now.0])?
        == 1;
    if unblocked {
        transaction.execute(
            "insert into events (type, at, data) values ('buyer.unblocked', ?1, json_object('buyer', ?2))",
            params![now.0, buyer.as_str()],
        )?;
    }
    let record = read_record(transaction, buyer, policy.matters_since(now))?;
    let lifted = match standing(policy, &record.strikes, None, now).blocked_until {
        None => Vec::new(),
        Some(_) => {
            let all = format!("strike_no in ({STRIKES_OF_BUYER}) and strike_no > ?2");
            lift(transaction, &all, buyer, 0, now)?
        }
    };
    Ok(LetIn { unblocked, lifted })
}

fn lift(
    transaction: &Transaction<'_>,
    which: &str,
    buyer: &BuyerId,
    number: i64,
    now: UnixMs,
) -> LedgerResult<Vec<StrikeOf>> {
    let mut statement = transaction.prepare_cached(&format!(
        "update strikes set lifted_at = ?3, lifted_by = 'operator' where {which} and lifted_at is null
         returning order_no, strike_no"
    ))?;
    let rows = statement.query_map(params![buyer.as_str(), number, now.0], |row| {
        Ok((row.get::<_, i64>(1)?, read_of(row, 0)?))
    })?;
    let lifted: Vec<(i64, StrikeOf)> = rows.collect::<Result<_, _>>()?;
    for (strike_no, _) in &lifted {
        note_lifted(transaction, *strike_no, now)?;
    }
    Ok(lifted.into_iter().map(|(_, of)| of).collect())
}

/// Not one of the order's own facts, so without a `seq` of its own.
fn note_lifted(transaction: &Transaction<'_>, strike_no: i64, now: UnixMs) -> LedgerResult<()> {
    transaction
        .prepare_cached(
            "insert into events (type, at, sale_no, offer_no, order_no, data)
             select 'buyer.strike_lifted', ?2, sale_no, offer_no, orders.order_no,
                 json_object('buyer', strikes.buyer, 'strike', strike_no, 'by', lifted_by)
             from strikes left join orders on orders.order_no = strikes.order_no left join offers using (offer_no)
             where strike_no = ?1",
        )?
        .execute(params![strike_no, now.0])?;
    Ok(())
}

/// Gives the buyers of these orders (their numbers, as a JSON array) a strike each, and answers the numbers of those
/// orders that have one now because of it. One order strikes once, whoever wrote the strike: where there is one, also a
/// lifted one, nothing is written and nobody is told.
pub(super) fn strike(transaction: &Transaction<'_>, orders: &str, now: UnixMs) -> LedgerResult<HashSet<u64>> {
    let mut statement = transaction.prepare_cached(
        "insert into strikes (buyer, order_no, struck_at) select buyer, order_no, ?2
         from orders where order_no in (select value from json_each(?1)) order by order_no
         on conflict do nothing returning order_no",
    )?;
    let rows = statement.query_map(params![orders, now.0], |row| column::number(row, 0))?;
    let struck: HashSet<u64> = rows.collect::<Result<_, _>>()?;
    tell_struck(transaction, &numbers(struck.iter().copied()), now)?;
    Ok(struck)
}

fn tell_struck(transaction: &Transaction<'_>, orders: &str, now: UnixMs) -> LedgerResult<()> {
    // Not one of the order's own facts, so without a `seq` of its own.
    transaction
        .prepare_cached(
            "insert into events (type, at, sale_no, offer_no, order_no, data)
             select 'buyer.struck', ?2, sale_no, offer_no, orders.order_no,
                 json_object('buyer', strikes.buyer, 'strike', strike_no, 'cause', 'unpaid')
             from orders cross join strikes on strikes.order_no = orders.order_no join offers using (offer_no)
             where orders.order_no in (select value from json_each(?1)) order by orders.order_no",
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
    if mark(event, false) != Marking::Lift {
        return Ok(());
    }
    let lifted: Option<i64> = transaction
        .prepare_cached(
            "update strikes set lifted_at = ?2, lifted_by = 'late_money'
             where order_no = ?1 and lifted_at is null returning strike_no",
        )?
        .query_row(params![signed(order.no), now.0], |row| row.get(0))
        .optional()?;
    lifted.map_or(Ok(()), |strike_no| note_lifted(transaction, strike_no, now))
}

fn read_record(connection: &Connection, buyer: &BuyerId, since: UnixMs) -> rusqlite::Result<BuyerRecord> {
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
        lifted_by: match row.get_ref(6)?.as_str_or_null()? {
            None => None,
            Some(text) => Some(Lifter::parse(text).ok_or_else(|| column::unknown_word(6))?),
        },
    })
}

/// The order's number and, after it, the strike's own.
fn read_of(row: &Row<'_>, index: usize) -> rusqlite::Result<StrikeOf> {
    let order: Option<i64> = row.get(index)?;
    Ok(match order.map(u64::try_from) {
        Some(order) => StrikeOf::Order(order.map_err(|_| column::unknown_word(index))?),
        None => StrikeOf::Operator(column::number(row, index + 1)?),
    })
}
