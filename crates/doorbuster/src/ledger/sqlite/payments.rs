//! Payments in SQLite: starting, closing and reading them. What money does once it is captured is in `settling` and
//! `refunds`.

use rules::id::{OrderId, PaymentId};
use rules::money::Money;
use rules::payment::{self, Event, Open, PAYMENTS_PER_ORDER_MAX, RefundReason, Start, State, Status};
use rules::time::UnixMs;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::deadlines::{readable, readable_up_to};
use super::{SqliteLedger, Urgency, closings, column, orders, signed};
use crate::ledger::money::{NewPayment, Payment, PaymentClosed, PaymentStarted};
use crate::ledger::{LedgerError, LedgerResult, Order};

/// The columns of a payment, in the order [`read_payment`] takes them.
pub(super) const PAYMENT_COLUMNS: &str = "payments.payment_no, payments.payment_id, payments.order_id,
    payments.provider, payments.reference, payments.capture_id, payments.state, payments.reason, payments.amount,
    payments.currency, payments.provider_ref, payments.pay_url, payments.started_at, payments.captured_at,
    payments.ended_at, payments.refund_key, payments.restock, payments.attempts, payments.next_try_at,
    payments.problem, payments.refund_round, payments.refund_ref, payments.refunding_since, payments.failures,
    payments.slow_told_at, payments.back_elsewhere";

pub(super) const PAYMENT_COLUMNS_COUNT: usize = 26;

impl SqliteLedger {
    /// Starts a payment of this buyer's order, or answers the one that is open; one at another provider is closed in
    /// the same transaction. What is to be paid is the order's total. Nothing new is started beyond
    /// [`PAYMENTS_PER_ORDER_MAX`]; what is open stays open.
    ///
    /// Durable when it returns, and the provider has heard of nothing. A retry finds the open payment, under the id of
    /// the first try.
    pub async fn start_payment(&self, wanted: NewPayment, now: UnixMs) -> LedgerResult<PaymentStarted> {
        self.transact(Urgency::Settle.at("ledger.start_payment"), move |transaction| {
            start(transaction, &wanted, now)
        })
        .await
    }

    /// Keeps what the provider answered when it heard of the payment: its own name of it, and where the buyer pays.
    /// The first answer stays, since a buyer may have been sent there; so a retry is harmless. Answers the payment as
    /// it is now, which may be captured already, or closed: then the provider is to close it (again), since it may not
    /// have known it before.
    pub async fn note_started(
        &self,
        id: PaymentId,
        provider_ref: Option<String>,
        pay_url: String,
    ) -> LedgerResult<Option<Payment>> {
        self.transact(Urgency::Settle.at("ledger.note_started"), move |transaction| {
            let Some(mut payment) = find(transaction, id)? else { return Ok(None) };
            if payment.pay_url.is_none() {
                (payment.provider_ref, payment.pay_url) = (provider_ref, Some(pay_url));
                write(transaction, &payment)?;
                if payment.status.state == State::Closed {
                    closings::close_there(
                        transaction,
                        payment.no,
                        payment.ended_at.unwrap_or(payment.started_at),
                    )?;
                }
            }
            Ok(Some(payment))
        })
        .await
    }

    /// Closes a payment that no money has come for: it failed, or the provider will take none any more. The order
    /// stays as it is. Durable when it returns; a retry finds it closed. Money that comes all the same is taken.
    pub async fn close_payment(&self, id: PaymentId, now: UnixMs) -> LedgerResult<PaymentClosed> {
        self.transact(Urgency::Settle.at("ledger.close_payment"), move |transaction| {
            let Some(mut payment) = find(transaction, id)? else { return Ok(PaymentClosed::NotFound) };
            match payment.status.state {
                State::Started => {
                    step(transaction, &mut payment, Event::Closed, now)?;
                    Ok(PaymentClosed::Closed(payment))
                }
                State::Closed => Ok(PaymentClosed::Before(payment)),
                State::Captured
                | State::Applied
                | State::RefundDue
                | State::Refunding
                | State::Refunded
                | State::RefundFailed => Ok(PaymentClosed::Captured(payment)),
            }
        })
        .await
    }

    pub async fn payment(&self, id: PaymentId) -> LedgerResult<Option<Payment>> {
        self.read(move |connection| Ok(find(connection, id)?)).await
    }

    /// An order, and those of its payments whose money goes back or went back. What cannot be read of these is left out:
    /// the buyer is told of the order all the same.
    pub async fn order_and_refunds(&self, id: OrderId) -> LedgerResult<Option<(Order, Vec<Payment>)>> {
        self.read(move |connection| {
            let Some(order) = orders::find(connection, id)? else { return Ok(None) };
            Ok(Some((order, refunds_of(connection, id)?)))
        })
        .await
    }

    /// The payments of an order, in the order in which they were written down.
    pub async fn payments_of(&self, order: OrderId) -> LedgerResult<Vec<Payment>> {
        self.read(move |connection| Ok(of_order(connection, order)?)).await
    }

    /// Payments, newest first: those before the number `before`, and only those in `state`, if one is given. What cannot
    /// be read is left out.
    pub async fn payment_page(
        &self,
        state: Option<State>,
        before: Option<u64>,
        limit: u32,
    ) -> LedgerResult<Vec<Payment>> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(&page_sql(state))?;
            let values = params![before.map_or(i64::MAX, signed)];
            let rows = statement.query_map(values, |row| read_payment(row, 0))?;
            Ok(readable_up_to(limit, rows)?)
        })
        .await
    }
}

/// Payments before the number `?1`, the newest first. Rare states have an index; a page in a common one is found at the newest
/// end of the table, where an index of another purpose must not be taken for a shorter way.
fn page_sql(state: Option<State>) -> String {
    let way = match state {
        None | Some(State::Started | State::Closed | State::Applied) => "not indexed where true",
        Some(State::Captured) => "indexed by payments_undecided where true",
        Some(State::RefundDue | State::Refunding | State::Refunded | State::RefundFailed) => {
            "indexed by payments_going_back where reason is not null"
        }
    };
    let state = state.map(|state| format!("and state = '{}'", state.as_str())).unwrap_or_default();
    format!(
        "select {PAYMENT_COLUMNS} from payments {way} {state} and payment_no < ?1 order by payment_no desc"
    )
}

fn start(transaction: &Transaction<'_>, wanted: &NewPayment, now: UnixMs) -> LedgerResult<PaymentStarted> {
    let order = orders::find(transaction, wanted.order)?.filter(|order| order.buyer == wanted.buyer);
    let Some(order) = order else { return Ok(PaymentStarted::NotFound) };
    let payments = of_order(transaction, order.id)?;
    let is_full = payments.len() >= PAYMENTS_PER_ORDER_MAX;
    let captured = payments.iter().any(|payment| payment.status.state == State::Captured);
    let started = payments.into_iter().find(|payment| payment.status.state == State::Started);
    let open = match &started {
        _ if captured => Some(Open::Captured),
        Some(payment) => Some(Open::Started { provider: &payment.provider }),
        None => None,
    };
    let time_left_ms = order.pay_by.map_or(0, |pay_by| now.ms_until(pay_by));
    match (payment::start(order.status.state, time_left_ms, open, &wanted.provider), started) {
        (Start::NotYet, _) => Ok(PaymentStarted::NotYet),
        (Start::NotPayable, _) => Ok(PaymentStarted::NotPayable(order.status.state)),
        (Start::TheOpenOne, Some(payment)) => Ok(PaymentStarted::Open(payment)),
        (Start::New | Start::TheOpenOne | Start::InsteadOfTheOpenOne, _) if is_full => {
            Ok(PaymentStarted::TooMany)
        }
        (Start::New | Start::TheOpenOne | Start::InsteadOfTheOpenOne, _) => {
            let instead_of = close_open(transaction, order.id, now)?;
            let payment = insert(transaction, new_payment(wanted, &order, now))?;
            Ok(PaymentStarted::New { payment, instead_of })
        }
    }
}

fn new_payment(wanted: &NewPayment, order: &Order, now: UnixMs) -> Payment {
    Payment {
        no: 0,
        id: wanted.id,
        order: Some(order.id),
        provider: wanted.provider.clone(),
        reference: wanted.id.to_string(),
        capture_id: None,
        status: Status::STARTED,
        money: total(order),
        provider_ref: None,
        pay_url: None,
        started_at: now,
        captured_at: None,
        ended_at: None,
        refund_key: wanted.id.to_string(),
        refund_round: 0,
        refund_ref: None,
        restock: true,
        attempts: 0,
        next_try_at: None,
        refunding_since: None,
        failures: 0,
        slow_told_at: None,
        problem: None,
        back_elsewhere: None,
    }
}

/// What the order costs. Prices and quantities are bounded so that it always fits; see `rules::money`.
pub(super) fn total(order: &Order) -> Money {
    order.view().total
}

/// Closes the order's open payment, if there is one. From here on it is also to be closed at its provider; see
/// [`SqliteLedger::closings_due`].
pub(super) fn close_open(
    transaction: &Transaction<'_>,
    order: OrderId,
    now: UnixMs,
) -> LedgerResult<Option<Box<Payment>>> {
    let sql = format!("select {PAYMENT_COLUMNS} from payments where order_id = ?1 and state = 'started'");
    let found = transaction
        .prepare_cached(&sql)?
        .query_row([order.to_bytes()], |row| read_payment(row, 0))
        .optional()?;
    let Some(mut payment) = found else { return Ok(None) };
    step(transaction, &mut payment, Event::Closed, now)?;
    closings::close_there(transaction, payment.no, now)?;
    Ok(Some(Box::new(payment)))
}

/// Writes what an event makes of a payment.
pub(super) fn step(
    transaction: &Transaction<'_>,
    payment: &mut Payment,
    event: Event,
    now: UnixMs,
) -> LedgerResult<()> {
    advance(payment, event, now)?;
    write(transaction, payment)
}

/// What an event makes of a payment, not written yet. An event that the payment cannot take is a defect of the caller.
pub(super) fn advance(payment: &mut Payment, event: Event, now: UnixMs) -> LedgerResult<()> {
    payment.status =
        payment::next(payment.status, event).map_err(|error| LedgerError::Failed(error.into()))?;
    match event {
        Event::Closed => payment.ended_at = Some(now),
        Event::Captured => (payment.captured_at, payment.ended_at) = (Some(now), None),
        Event::Applied => {}
        Event::RefundDue(_) => payment.next_try_at = Some(now),
        // Patience begins anew.
        Event::RefundStarted => {
            (payment.next_try_at, payment.refunding_since) = (Some(now), Some(now));
            (payment.attempts, payment.failures, payment.slow_told_at) = (0, 0, None);
        }
        Event::RefundDone => (payment.ended_at, payment.next_try_at) = (Some(now), None),
        Event::RefundFailed => (payment.ended_at, payment.next_try_at) = (None, None),
    }
    Ok(())
}

pub(super) fn insert(transaction: &Transaction<'_>, mut payment: Payment) -> LedgerResult<Payment> {
    transaction
        .prepare_cached(
            "insert into payments (payment_id, order_id, provider, reference, capture_id, state, reason, amount,
                 currency, started_at, captured_at, refund_key)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
        )?
        .execute(params![
            payment.id.to_bytes(),
            payment.order.map(OrderId::to_bytes),
            payment.provider,
            payment.reference,
            payment.capture_id,
            payment.status.state.as_str(),
            payment.status.reason.map(RefundReason::as_str),
            payment.money.amount,
            payment.money.currency.as_str(),
            payment.started_at.0,
            payment.captured_at.map(|at| at.0),
            payment.refund_key,
        ])?;
    payment.no = u64::try_from(transaction.last_insert_rowid()).unwrap_or(0);
    Ok(payment)
}

pub(super) fn write(transaction: &Transaction<'_>, payment: &Payment) -> LedgerResult<()> {
    transaction
        .prepare_cached(
            "update payments set capture_id = ?2, state = ?3, reason = ?4, amount = ?5, currency = ?6,
                 provider_ref = ?7, pay_url = ?8, captured_at = ?9, ended_at = ?10, restock = ?11, attempts = ?12,
                 next_try_at = ?13, problem = ?14, refund_round = ?15, refund_ref = ?16, refunding_since = ?17,
                 failures = ?18, slow_told_at = ?19, back_elsewhere = ?20
             where payment_no = ?1",
        )?
        .execute(params![
            signed(payment.no),
            payment.capture_id,
            payment.status.state.as_str(),
            payment.status.reason.map(RefundReason::as_str),
            payment.money.amount,
            payment.money.currency.as_str(),
            payment.provider_ref,
            payment.pay_url,
            payment.captured_at.map(|at| at.0),
            payment.ended_at.map(|at| at.0),
            payment.restock,
            payment.attempts,
            payment.next_try_at.map(|at| at.0),
            payment.problem,
            payment.refund_round,
            payment.refund_ref,
            payment.refunding_since.map(|at| at.0),
            payment.failures,
            payment.slow_told_at.map(|at| at.0),
            payment.back_elsewhere,
        ])?;
    Ok(())
}

pub(super) fn find(connection: &Connection, id: PaymentId) -> rusqlite::Result<Option<Payment>> {
    let sql = format!("select {PAYMENT_COLUMNS} from payments where payment_id = ?1");
    connection.prepare_cached(&sql)?.query_row([id.to_bytes()], |row| read_payment(row, 0)).optional()
}

pub(super) fn of_order(connection: &Connection, order: OrderId) -> rusqlite::Result<Vec<Payment>> {
    let sql = format!("select {PAYMENT_COLUMNS} from payments where order_id = ?1 order by payment_no");
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map([order.to_bytes()], |row| read_payment(row, 0))?;
    rows.collect()
}

fn refunds_of(connection: &Connection, order: OrderId) -> rusqlite::Result<Vec<Payment>> {
    let sql = format!(
        "select {PAYMENT_COLUMNS} from payments where order_id = ?1 and reason is not null order by payment_no"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map([order.to_bytes()], |row| read_payment(row, 0))?;
    readable(rows)
}

/// Reads a payment whose columns begin at `first`.
pub(super) fn read_payment(row: &Row<'_>, first: usize) -> rusqlite::Result<Payment> {
    let at = |index: usize| first + index;
    Ok(Payment {
        no: column::number(row, at(0))?,
        id: PaymentId(column::id(row, at(1))?),
        order: column::id_option(row, at(2))?.map(OrderId),
        provider: row.get(at(3))?,
        reference: row.get(at(4))?,
        capture_id: row.get(at(5))?,
        status: Status {
            state: column::word(row, at(6), State::parse)?,
            reason: match row.get_ref(at(7))?.as_str_or_null()? {
                None => None,
                Some(text) => Some(RefundReason::parse(text).ok_or_else(|| column::unknown_word(at(7)))?),
            },
        },
        money: Money {
            amount: row.get(at(8))?,
            currency: column::word(row, at(9), |text| text.parse().ok())?,
        },
        provider_ref: row.get(at(10))?,
        pay_url: row.get(at(11))?,
        started_at: column::time(row, at(12))?,
        captured_at: column::time_option(row, at(13))?,
        ended_at: column::time_option(row, at(14))?,
        refund_key: row.get(at(15))?,
        restock: row.get(at(16))?,
        attempts: column::count(row, at(17))?,
        next_try_at: column::time_option(row, at(18))?,
        problem: row.get(at(19))?,
        refund_round: column::count(row, at(20))?,
        refund_ref: row.get(at(21))?,
        refunding_since: column::time_option(row, at(22))?,
        failures: column::count(row, at(23))?,
        slow_told_at: column::time_option(row, at(24))?,
        back_elsewhere: row.get(at(25))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::sqlite::MIGRATIONS;

    #[test]
    fn a_page_in_any_state_is_read_in_order_and_one_in_a_rare_state_by_an_index() {
        let tables = Connection::open_in_memory().unwrap();
        MIGRATIONS.iter().for_each(|migration| tables.execute_batch(migration).unwrap());
        let way = |state: Option<State>| -> String {
            let sql = format!("explain query plan {}", page_sql(state));
            let steps = |row: &Row<'_>| row.get::<_, String>("detail");
            let mut plan = tables.prepare(&sql).unwrap();
            let steps: Vec<String> = plan.query_map([i64::MAX], steps).unwrap().map(Result::unwrap).collect();
            steps.join(", ")
        };
        let in_the_table = "SEARCH payments USING INTEGER PRIMARY KEY (rowid<?)";
        assert_eq!(way(None), in_the_table);
        for state in [State::Started, State::Closed, State::Applied] {
            assert_eq!(way(Some(state)), in_the_table, "{state:?}");
        }
        assert_eq!(
            way(Some(State::Captured)),
            "SEARCH payments USING INDEX payments_undecided (payment_no<?)"
        );
        for state in [State::RefundDue, State::Refunding, State::Refunded, State::RefundFailed] {
            let by_state = "SEARCH payments USING INDEX payments_going_back (state=? AND rowid<?)";
            assert_eq!(way(Some(state)), by_state, "{state:?}");
        }
    }
}
