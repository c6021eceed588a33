//! Deadlines in SQLite: closing unpaid orders, many at once or one whose provider was asked. Knows no timers; whoever
//! calls says what time it is.

use std::collections::HashMap;

use anyhow::anyhow;
use rules::deadline::{self, Asked, Due, OnTheWay, Outage};
use rules::id::{OfferId, OrderId};
use rules::order::{self, Event, Reason, State, Status};
use rules::strike::{Mark, mark};
use rules::time::UnixMs;
use rusqlite::{Connection, Row, Transaction, params};

use super::orders::{ORDER_COLUMNS, ORDER_COLUMNS_COUNT, Shelf, event_data, find, read_order, write_event};
use super::payments::{self, PAYMENT_COLUMNS, read_payment};
use super::shelf::{LEFT_COLUMNS, LEFT_COLUMNS_COUNT, Left};
use super::{SqliteLedger, Urgency, column, signed, strikes};
use crate::crash;
use crate::ledger::money::{ClosedBatch, DuePlace, Lapsed, NextDue, Overdue, Released};
use crate::ledger::{LedgerError, LedgerResult, Order};

/// Where money may still come from: whoever is sent to a provider, or has paid there, keeps the order open.
const NOBODY_IS_PAYING: &str = "not exists (select 1 from payments
    where payments.order_id = orders.order_id and payments.state in ('started', 'captured'))";

impl SqliteLedger {
    /// Closes up to `limit` unpaid orders whose `pay_by` has come and that nobody is paying, the earliest first: orders,
    /// counters, events and strikes in one transaction. `outages` are the times in which paying was impossible; who
    /// had too little time left gets no strike.
    ///
    /// Durable when it returns. A retry closes others or none: a closed order is never told of twice, so whoever dies
    /// before its units are back at the gate rebuilds the gate. Waits behind whatever a buyer waits for.
    pub async fn close_due(
        &self,
        now: UnixMs,
        limit: u32,
        outages: Vec<Outage>,
    ) -> LedgerResult<ClosedBatch> {
        let closed = |batch: &ClosedBatch| batch.closed.len();
        self.release(Urgency::Clerk, closed, move |transaction| close_due(transaction, now, limit, &outages))
            .await
    }

    /// Closes one order at its deadline, after the provider of its open payment was asked. Whether it closes is
    /// decided by `rules::deadline::due`. Durable when it returns; a retry finds it closed.
    pub async fn close_asked(
        &self,
        order: OrderId,
        asked: Asked,
        outages: Vec<Outage>,
        now: UnixMs,
    ) -> LedgerResult<Lapsed> {
        let closed = |lapsed: &Lapsed| usize::from(matches!(lapsed, Lapsed::Closed { .. }));
        self.release(Urgency::Settle, closed, move |transaction| {
            close_asked(transaction, order, asked, &outages, now)
        })
        .await
    }

    /// Orders whose `pay_by` has come while somebody is paying them, the earliest first: their providers are asked.
    /// Those after the place `after`, which [`Overdue::place`] of the last one tells.
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

    /// When the next unpaid orders are due.
    pub async fn next_due(&self) -> LedgerResult<NextDue> {
        self.read(move |connection| {
            let first = |sql: &str| -> rusqlite::Result<Option<UnixMs>> {
                connection.prepare_cached(sql)?.query_row([], |row| column::time_option(row, 0))
            };
            let closes = format!(
                "select min(pay_by) from (select pay_by from orders indexed by orders_due
                 where state = 'awaiting_payment' and pay_by is not null and {NOBODY_IS_PAYING}
                 order by pay_by limit 1)"
            );
            let asks = "select min(orders.pay_by)
                from payments indexed by payments_one_open_per_order cross join orders using (order_id)
                where payments.state = 'started' and orders.state = 'awaiting_payment'";
            Ok(NextDue { closes_at: first(&closes)?, asks_at: first(asks)? })
        })
        .await
    }
}

fn close_due(
    transaction: &Transaction<'_>,
    now: UnixMs,
    limit: u32,
    outages: &[Outage],
) -> LedgerResult<ClosedBatch> {
    let due = find_due(transaction, now, limit)?;
    if due.is_empty() {
        return Ok(ClosedBatch::default());
    }
    let unpaid = Status { state: State::AwaitingPayment, reason: None, holds_units: true };
    let status = order::next(unpaid, Event::TimedOut).map_err(|error| LedgerError::Failed(error.into()))?;
    let numbers = numbers(due.iter().map(|due| &due.order));
    close_rows(transaction, &numbers, due.len(), status, now)?;
    let change_nos = return_units(transaction, &numbers, now)?;
    let struck = due.iter().filter(|due| due.is_struck(outages));
    strikes::strike(transaction, &self::numbers(struck.map(|due| &due.order)), now)?;
    crash::point("ledger.committing");
    let is_full = u32::try_from(due.len()).is_ok_and(|found| found >= limit);
    let closed = due
        .into_iter()
        .map(|due| Released {
            change_no: change_nos.get(&due.order.offer).copied().unwrap_or(0),
            struck: due.is_struck(outages),
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
}

impl Unpaid {
    /// Who plays along in a rehearsal gets no mark for it.
    fn is_struck(&self, outages: &[Outage]) -> bool {
        let Terms { recorded_at, rehearsal } = self.terms;
        let pay_by = self.order.pay_by.unwrap_or(recorded_at);
        let excused = rehearsal || deadline::is_excused(recorded_at, pay_by, outages);
        mark(Event::TimedOut, excused) == Mark::Strike
    }
}

fn read_terms(row: &Row<'_>, index: usize) -> rusqlite::Result<Terms> {
    Ok(Terms { recorded_at: column::time(row, index)?, rehearsal: row.get(index + 1)? })
}

/// Asks what `rules::deadline::due` asks of an order without money on its way.
fn find_due(connection: &Connection, now: UnixMs, limit: u32) -> rusqlite::Result<Vec<Unpaid>> {
    let sql = format!(
        "select {ORDER_COLUMNS}, orders.recorded_at, sales.rehearsal
         from orders indexed by orders_due cross join offers using (offer_no) cross join sales using (sale_no)
         where orders.state = 'awaiting_payment' and orders.pay_by <= ?1 and {NOBODY_IS_PAYING}
         order by orders.pay_by, orders.order_no limit ?2"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params![now.0, limit], |row| {
        Ok(Unpaid { order: read_order(row)?, terms: read_terms(row, ORDER_COLUMNS_COUNT)? })
    })?;
    rows.collect()
}

/// The numbers of orders as a JSON array: one value that a whole statement works on.
fn numbers<'a>(orders: impl Iterator<Item = &'a Order>) -> String {
    let numbers: Vec<String> = orders.map(|order| order.no.to_string()).collect();
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
    Err(LedgerError::Failed(anyhow!("{expected} orders were due, {closed} were closed, {told} were told of")))
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
    outages: &[Outage],
    now: UnixMs,
) -> LedgerResult<Lapsed> {
    let Some(mut order) = find(transaction, id)? else { return Ok(Lapsed::NotFound) };
    let (State::AwaitingPayment, Some(pay_by)) = (order.status.state, order.pay_by) else {
        return Ok(Lapsed::NotUnpaid(order.status.state));
    };
    let states = payments::of_order(transaction, id)?.into_iter().map(|payment| payment.status.state);
    match deadline::due(now, pay_by, OnTheWay::of(states, asked)) {
        Due::Close => {}
        due @ (Due::NotBefore(_) | Due::Ask | Due::Settle) => return Ok(Lapsed::NotNow(due)),
    }
    let terms = terms_of(transaction, id)?;
    let change_no = write_event(transaction, &mut order, Event::TimedOut, Shelf::Same, now)?;
    let payment = payments::close_open(transaction, id, now)?;
    let unpaid = Unpaid { order, terms };
    let struck = unpaid.is_struck(outages);
    if struck {
        strikes::strike(transaction, &numbers(std::iter::once(&unpaid.order)), now)?;
    }
    crash::point("ledger.committing");
    let released = Released { order: unpaid.order, change_no, restock: true, struck };
    Ok(Lapsed::Closed { released: Box::new(released), payment })
}

fn terms_of(connection: &Connection, id: OrderId) -> rusqlite::Result<Terms> {
    connection
        .prepare_cached(
            "select orders.recorded_at, sales.rehearsal
             from orders join offers using (offer_no) join sales using (sale_no) where order_id = ?1",
        )?
        .query_row([id.to_bytes()], |row| read_terms(row, 0))
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
    rows.collect()
}
