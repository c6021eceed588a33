//! Deadlines in SQLite: closing unpaid orders, many at once or one whose provider was asked. Knows no timers; whoever
//! calls says what time it is.

use std::collections::HashMap;

use rules::deadline::{self, Asked, Due, Excuses, OnTheWay};
use rules::id::{OfferId, OrderId};
use rules::order::{self, Event, Reason, State, Status};
use rules::strike::{Mark, mark};
use rules::time::UnixMs;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::orders::{ORDER_COLUMNS, ORDER_COLUMNS_COUNT, Shelf, event_data, find, read_order, write_event};
use super::payments::{self, PAYMENT_COLUMNS, read_payment};
use super::shelf::{LEFT_COLUMNS, LEFT_COLUMNS_COUNT, Left};
use super::{SqliteLedger, Urgency, column, signed, strikes};
use crate::ledger::money::{ClosedBatch, DuePlace, Lapsed, Overdue, Released};
use crate::ledger::{LedgerError, LedgerResult, Misfit, Order};

impl SqliteLedger {
    /// Closes up to `limit` unpaid orders whose `pay_by` has come and that nobody is paying, the earliest first: orders,
    /// counters, events and strikes in one transaction. Whoever is excused gets no strike.
    ///
    /// Durable when it returns. A retry closes others or none: a closed order is never told of twice, so whoever dies
    /// before its units are back at the gate rebuilds the gate. Waits behind whatever a buyer waits for.
    ///
    /// `aside` are the numbers of orders that are left alone. One order that cannot be closed because of what is written
    /// fails the batch ([`LedgerError::is_of_the_content`]); [`Self::first_due`] says which comes first.
    pub async fn close_due(
        &self,
        now: UnixMs,
        limit: u32,
        excuses: Excuses,
        aside: Vec<u64>,
    ) -> LedgerResult<ClosedBatch> {
        let aside = numbers(aside.into_iter());
        let closed = |batch: &ClosedBatch| batch.closed.len();
        self.release(Urgency::Clerk.at("ledger.close_due"), closed, move |transaction| {
            close_due(transaction, &DueOrders { now, limit, aside }, &excuses)
        })
        .await
    }

    /// The number of the order that [`Self::close_due`] begins with, and its id if that can be read.
    pub async fn first_due(
        &self,
        now: UnixMs,
        aside: Vec<u64>,
    ) -> LedgerResult<Option<(u64, Option<OrderId>)>> {
        self.read(move |connection| {
            let sql = format!("select orders.order_no, orders.order_id {FROM_DUE}");
            let first = connection
                .prepare_cached(&sql)?
                .query_row(params![now.0, 1, numbers(aside.into_iter())], |row| {
                    Ok((column::number(row, 0)?, column::id(row, 1).ok().map(OrderId)))
                });
            Ok(first.optional()?)
        })
        .await
    }

    /// Closes one order at its deadline, after the provider of its open payment was asked. Whether it closes is
    /// decided by `rules::deadline::due`. Durable when it returns; a retry finds it closed.
    pub async fn close_asked(
        &self,
        order: OrderId,
        asked: Asked,
        excuses: Excuses,
        now: UnixMs,
    ) -> LedgerResult<Lapsed> {
        let closed = |lapsed: &Lapsed| usize::from(matches!(lapsed, Lapsed::Closed { .. }));
        self.release(Urgency::Settle.at("ledger.close_asked"), closed, move |transaction| {
            close_asked(transaction, order, asked, &excuses, now)
        })
        .await
    }

    /// Orders whose `pay_by` has come while somebody is paying them, the earliest first: their providers are asked.
    /// Those after the place `after`, which [`Overdue::place`] of the last one tells. What cannot be read is left out, so
    /// only an empty answer is the end.
    pub async fn overdue(
        &self,
        now: UnixMs,
        after: Option<DuePlace>,
        limit: u32,
    ) -> LedgerResult<Vec<Overdue>> {
        self.read(move |connection| Ok(find_overdue(connection, now, after, limit)?)).await
    }

    /// The first deadline after `after`, whether or not somebody is paying. One look into an index.
    pub async fn next_deadline(&self, after: UnixMs) -> LedgerResult<Option<UnixMs>> {
        self.read(move |connection| {
            let sql = "select min(pay_by) from orders indexed by orders_due
                 where state = 'awaiting_payment' and pay_by > ?1";
            Ok(connection.prepare_cached(sql)?.query_row([after.0], |row| column::time_option(row, 0))?)
        })
        .await
    }
}

/// Which orders are due: at `now`, the first `limit`, but those whose numbers are in the JSON array `aside`.
struct DueOrders {
    now: UnixMs,
    limit: u32,
    aside: String,
}

fn close_due(
    transaction: &Transaction<'_>,
    wanted: &DueOrders,
    excuses: &Excuses,
) -> LedgerResult<ClosedBatch> {
    let DueOrders { now, limit, .. } = *wanted;
    let due = find_due(transaction, wanted)?;
    if due.is_empty() {
        return Ok(ClosedBatch::default());
    }
    let unpaid = Status { state: State::AwaitingPayment, reason: None, holds_units: true };
    let status = order::next(unpaid, Event::TimedOut).map_err(|error| LedgerError::Failed(error.into()))?;
    let numbers = numbers(due.iter().map(|due| due.order.no));
    close_rows(transaction, &numbers, due.len(), status, now)?;
    let change_nos = return_units(transaction, &numbers, now)?;
    let unexcused = due.iter().filter(|due| due.deserves_strike(excuses));
    let struck = strikes::strike(transaction, &self::numbers(unexcused.map(|due| due.order.no)), now)?;
    let is_full = u32::try_from(due.len()).is_ok_and(|found| found >= limit);
    let closed = due
        .into_iter()
        .map(|due| Released {
            change_no: change_nos.get(&due.order.offer).copied().unwrap_or(0),
            struck: struck.contains(&due.order.no),
            order: Order { status, seq: due.order.seq + 1, closed_at: Some(now), ..due.order },
            restock: true,
        })
        .collect();
    Ok(ClosedBatch { closed, is_full })
}

/// An order that is due, and what else decides about a strike.
struct Unpaid {
    order: Order,
    terms: Terms,
}

struct Terms {
    recorded_at: UnixMs,
    rehearsal: bool,
    /// The one that the buyer went to last, if any.
    provider: Option<String>,
}

/// The columns of the terms, in the order [`read_terms`] takes them.
const TERMS_COLUMNS: &str = "orders.recorded_at, sales.rehearsal,
    (select provider from payments where payments.order_id = orders.order_id order by payment_no desc limit 1)";

impl Unpaid {
    /// Who plays along in a rehearsal gets no mark for it.
    fn deserves_strike(&self, excuses: &Excuses) -> bool {
        let Terms { recorded_at, rehearsal, ref provider } = self.terms;
        let pay_by = self.order.pay_by.unwrap_or(recorded_at);
        let excused = rehearsal || excuses.excuse(recorded_at, pay_by, provider.as_deref());
        mark(Event::TimedOut, excused) == Mark::Strike
    }
}

fn read_terms(row: &Row<'_>, index: usize) -> rusqlite::Result<Terms> {
    Ok(Terms {
        recorded_at: column::time(row, index)?,
        rehearsal: row.get(index + 1)?,
        provider: row.get(index + 2)?,
    })
}

/// What `rules::deadline::due` asks of an order without money on its way, for [`DueOrders`].
const FROM_DUE: &str = "from orders indexed by orders_due cross join offers using (offer_no)
    cross join sales using (sale_no)
    where orders.state = 'awaiting_payment' and orders.pay_by <= ?1
        -- Where money may still come from: whoever is sent to a provider, or has paid there, keeps the order open.
        and not exists (select 1 from payments
            where payments.order_id = orders.order_id and payments.state in ('started', 'captured'))
        and orders.order_no not in (select value from json_each(?3))
    order by orders.pay_by, orders.order_no limit ?2";

fn find_due(connection: &Connection, wanted: &DueOrders) -> rusqlite::Result<Vec<Unpaid>> {
    let sql = format!("select {ORDER_COLUMNS}, {TERMS_COLUMNS} {FROM_DUE}");
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params![wanted.now.0, wanted.limit, wanted.aside], |row| {
        Ok(Unpaid { order: read_order(row)?, terms: read_terms(row, ORDER_COLUMNS_COUNT)? })
    })?;
    rows.collect()
}

/// The numbers of orders as a JSON array: one value that a whole statement works on.
pub(super) fn numbers(orders: impl Iterator<Item = u64>) -> String {
    let numbers: Vec<String> = orders.map(|no| no.to_string()).collect();
    format!("[{}]", numbers.join(","))
}

/// Closes the orders and writes their events. If not each of them was closed, the whole batch is undone.
fn close_rows(
    transaction: &Transaction<'_>,
    numbers: &str,
    expected: usize,
    status: Status,
    now: UnixMs,
) -> LedgerResult<()> {
    let closed = transaction
        .prepare_cached(
            "update orders set state = ?2, reason = ?3, seq = seq + 1, holds_units = 0, slot = order_no, closed_at = ?4
             where order_no in (select value from json_each(?1)) and state = 'awaiting_payment'",
        )?
        .execute(params![numbers, status.state.as_str(), status.reason.map(Reason::as_str), now.0])?;
    let told = transaction
        .prepare_cached(
            "insert into events (type, at, sale_no, offer_no, order_no, seq, data)
             select ?2, ?3, sale_no, offer_no, order_no, seq, ?4
             from orders join offers using (offer_no)
             where order_no in (select value from json_each(?1)) order by order_no",
        )?
        .execute(params![numbers, Event::TimedOut.kind(), now.0, event_data(status)])?;
    if closed == expected && told == expected {
        return Ok(());
    }
    let misfit = format!("{expected} orders were due, {closed} were closed, {told} were told of");
    Err(LedgerError::Failed(Misfit(misfit).into()))
}

/// Takes the closed orders' units off the counters. Answers each offer's `change_no`.
fn return_units(
    transaction: &Transaction<'_>,
    numbers: &str,
    now: UnixMs,
) -> LedgerResult<HashMap<OfferId, u64>> {
    let sql = format!(
        "update offers set live_units = live_units - returned.units, change_no = change_no + 1
         from (select offer_no, sum(quantity) as units from orders
               where order_no in (select value from json_each(?1)) group by offer_no) as returned
         where offers.offer_no = returned.offer_no returning {LEFT_COLUMNS}, offer_id, change_no"
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    let rows = statement.query_map([numbers], |row| {
        let change =
            (OfferId(column::id(row, LEFT_COLUMNS_COUNT)?), column::number(row, LEFT_COLUMNS_COUNT + 1)?);
        Ok((Left::read(row)?, change))
    })?;
    let moved: Vec<(Left, (OfferId, u64))> = rows.collect::<Result<_, _>>()?;
    for (left, _) in &moved {
        left.tell(transaction, now)?;
    }
    Ok(moved.into_iter().map(|(_, change)| change).collect())
}

fn close_asked(
    transaction: &Transaction<'_>,
    id: OrderId,
    asked: Asked,
    excuses: &Excuses,
    now: UnixMs,
) -> LedgerResult<Lapsed> {
    let Some(mut order) = find(transaction, id)? else { return Ok(Lapsed::NotFound) };
    let (State::AwaitingPayment, Some(pay_by)) = (order.status.state, order.pay_by) else {
        return Ok(Lapsed::NotUnpaid(order.status.state));
    };
    let states = payments::of_order(transaction, id)?.into_iter().map(|payment| payment.status.state);
    match deadline::due(now, pay_by, OnTheWay::of(states, asked)) {
        Due::Close => {}
        due @ (Due::NotBefore(_) | Due::Ask | Due::Settle | Due::TakeAnswer) => {
            return Ok(Lapsed::NotNow(due));
        }
    }
    let terms = terms_of(transaction, id)?;
    let change_no = write_event(transaction, &mut order, Event::TimedOut, Shelf::Same, now)?;
    let payment = payments::close_open(transaction, id, now)?;
    let unpaid = Unpaid { order, terms };
    let unexcused = Some(unpaid.order.no).filter(|_| unpaid.deserves_strike(excuses));
    let struck = !strikes::strike(transaction, &numbers(unexcused.into_iter()), now)?.is_empty();
    let released = Released { order: unpaid.order, change_no, restock: true, struck };
    Ok(Lapsed::Closed { released: Box::new(released), payment })
}

fn terms_of(connection: &Connection, id: OrderId) -> rusqlite::Result<Terms> {
    let sql = format!(
        "select {TERMS_COLUMNS} from orders join offers using (offer_no) join sales using (sale_no) where order_id = ?1"
    );
    connection.prepare_cached(&sql)?.query_row([id.to_bytes()], |row| read_terms(row, 0))
}

/// Walks over what is due, not over all that are being paid: of the former little is left, the latter may be a crowd.
fn find_overdue(
    connection: &Connection,
    now: UnixMs,
    after: Option<DuePlace>,
    limit: u32,
) -> rusqlite::Result<Vec<Overdue>> {
    let sql = format!(
        "select {ORDER_COLUMNS}, {PAYMENT_COLUMNS}
         from orders indexed by orders_due cross join payments indexed by payments_one_open_per_order using (order_id)
             cross join offers using (offer_no) cross join sales using (sale_no)
         where orders.state = 'awaiting_payment' and orders.pay_by <= ?1 and payments.state = 'started'
             and orders.pay_by >= ?2 and (orders.pay_by, orders.order_no) > (?2, ?3)
         order by orders.pay_by, orders.order_no limit ?4"
    );
    let DuePlace { pay_by, no } = after.unwrap_or(DuePlace { pay_by: UnixMs(i64::MIN), no: 0 });
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params![now.0, pay_by.0, signed(no), limit], |row| {
        Ok(Overdue { order: read_order(row)?, payment: read_payment(row, ORDER_COLUMNS_COUNT)? })
    })?;
    readable(rows)
}

/// All rows that can be read: one that cannot must not hide those behind it.
pub(super) fn readable<T>(rows: impl Iterator<Item = rusqlite::Result<T>>) -> rusqlite::Result<Vec<T>> {
    readable_up_to(u32::MAX, rows)
}

/// The first so many of them. What cannot be read takes nobody's place, so fewer mean that there are no more.
pub(super) fn readable_up_to<T>(
    limit: u32,
    mut rows: impl Iterator<Item = rusqlite::Result<T>>,
) -> rusqlite::Result<Vec<T>> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut found = Vec::new();
    while found.len() < limit {
        let Some(row) = rows.next() else { break };
        match row {
            Ok(row) => found.push(row),
            // Without a code it was not the database that failed but the reading of this row.
            Err(error) if error.sqlite_error_code().is_none() => {
                tracing::error!(%error, "an order or a payment cannot be read and is left alone: run `doorbuster audit`");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}
