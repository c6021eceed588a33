//! Money on its way back, in SQLite. Asking the provider, and how often, is the business of whoever calls; here stands
//! what was asked, under which number, and what came of it.

use rules::id::{OrderId, PaymentId};
use rules::money::Money;
use rules::order::{Event as OrderEvent, State as OrderState};
use rules::payment::{Event, RefundReason, State};
use rules::time::UnixMs;
use rusqlite::{Transaction, params};

use super::deadlines::readable_up_to;
use super::orders::{Shelf, find, write_event};
use super::payments::{self, PAYMENT_COLUMNS, read_payment, step, write};
use super::{SqliteLedger, Urgency};
use crate::ledger::money::{Payment, RefundAsked, RefundEnd, RefundFailure, RefundOf, Released};
use crate::ledger::{LedgerError, LedgerResult, Order};

/// What a provider says about a refund.
#[derive(Clone, Debug)]
pub(super) enum RefundWord {
    /// All of the money is back.
    Done(RefundOf),
    /// So much of it, by a refund that is none of ours.
    Part(Money),
    Failed(RefundFailure),
}

impl RefundWord {
    /// Our refunds are always of all the money; in a provider's console somebody may return a part.
    pub(super) fn of(payment: &Payment, number: Option<&str>, amount: Money) -> Self {
        let is_all = amount.currency == payment.money.currency && amount.amount >= payment.money.amount;
        match payment.refund_of(number) {
            RefundOf::Nobody if !is_all => Self::Part(amount),
            of @ (RefundOf::Nobody | RefundOf::Present | RefundOf::Earlier) => Self::Done(of),
        }
    }
}

impl SqliteLedger {
    /// The operator wants the money of a paid order returned, or tries again after the provider refused. `restock` says
    /// whether its units go back on sale once the money is back; until then the order keeps them. What is not said stays as
    /// it was said before.
    ///
    /// Durable when it returns: the payment is among [`SqliteLedger::refunds_due`]. A retry is
    /// [`RefundAsked::Before`].
    pub async fn refund_order(
        &self,
        id: OrderId,
        restock: impl Into<Option<bool>>,
        now: UnixMs,
    ) -> LedgerResult<RefundAsked> {
        let restock = restock.into();
        self.transact(Urgency::Settle.at("ledger.refund_order"), move |transaction| {
            refund_order(transaction, id, restock, now)
        })
        .await
    }

    /// Tries again to return money that the provider refused to return; an order that it had paid is `refunding`
    /// again. Answers the payment; a retry, or a payment that is not in that state, changes nothing and is `None`.
    pub async fn retry_refund(&self, id: PaymentId, now: UnixMs) -> LedgerResult<Option<Payment>> {
        self.transact(Urgency::Settle.at("ledger.retry_refund"), move |transaction| {
            let failed = |payment: &Payment| payment.status.state == State::RefundFailed;
            let Some(mut payment) = payments::find(transaction, id)?.filter(failed) else { return Ok(None) };
            begin_again(transaction, &mut payment, now)?;
            Ok(Some(payment))
        })
        .await
    }

    /// Payments of one provider whose money must go back and who is to be asked by now, the longest due first. What
    /// cannot be read is left out.
    pub async fn refunds_due(
        &self,
        provider: &'static str,
        now: UnixMs,
        limit: u32,
    ) -> LedgerResult<Vec<Payment>> {
        self.read(move |connection| {
            let sql = format!(
                "select {PAYMENT_COLUMNS} from payments indexed by payments_to_refund
                 where provider = ?1 and next_try_at <= ?2 order by next_try_at, payment_no"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params![provider, now.0], |row| read_payment(row, 0))?;
            Ok(readable_up_to(limit, rows)?)
        })
        .await
    }

    /// Writes down that the provider is asked now, before it is: whoever dies in between asks again, under the same
    /// number. `next_try_at` is when to ask again if no word comes. Durable when it returns; each call counts
    /// as an attempt. `None` when there is nothing to be asked any more.
    pub async fn refund_begun(
        &self,
        id: PaymentId,
        next_try_at: UnixMs,
        now: UnixMs,
    ) -> LedgerResult<Option<Payment>> {
        self.transact(Urgency::Settle.at("ledger.refund_begun"), move |transaction| {
            let Some(mut payment) = payments::find(transaction, id)? else { return Ok(None) };
            match payment.status.state {
                State::RefundDue => step(transaction, &mut payment, Event::RefundStarted, now)?,
                State::Refunding => {}
                State::Started
                | State::Closed
                | State::Captured
                | State::Applied
                | State::Refunded
                | State::RefundFailed => return Ok(None),
            }
            payment.attempts = payment.attempts.saturating_add(1);
            payment.next_try_at = Some(next_try_at);
            write(transaction, &payment)?;
            Ok(Some(payment))
        })
        .await
    }

    /// The provider has heard of the refund under this number and is at it. `refund_ref` is its name of it. Durable when
    /// it returns; a retry is harmless, and a word about another refund than the present one changes nothing.
    pub async fn refund_pending(
        &self,
        id: PaymentId,
        number: String,
        refund_ref: Option<String>,
    ) -> LedgerResult<()> {
        self.transact(Urgency::Settle.at("ledger.refund_pending"), move |transaction| {
            let Some(mut payment) = under_way(transaction, id, &number)? else { return Ok(()) };
            payment.failures = 0;
            payment.refund_ref = refund_ref.or(payment.refund_ref);
            write(transaction, &payment)
        })
        .await
    }

    /// The provider gave no usable answer, or refused, and is to be asked again. Counts the failure; the one that makes
    /// `failures_max` in a row ends the refund as [`SqliteLedger::refund_failed`] does. Durable when it returns. A
    /// retry counts again; a word about another refund than the present one changes nothing.
    pub async fn refund_put_off(
        &self,
        id: PaymentId,
        failure: RefundFailure,
        failures_max: u32,
        now: UnixMs,
    ) -> LedgerResult<Option<RefundEnd>> {
        self.transact(Urgency::Settle.at("ledger.refund_put_off"), move |transaction| {
            let number = failure.number.clone().unwrap_or_default();
            let Some(mut payment) = under_way(transaction, id, &number)? else { return Ok(None) };
            payment.failures = payment.failures.saturating_add(1);
            if payment.failures >= failures_max {
                return failed(transaction, payment, &failure, now).map(Some);
            }
            note_failure(&mut payment, &failure);
            write(transaction, &payment)?;
            Ok(None)
        })
        .await
    }

    /// Tells, in an event, that a refund takes too long, and answers whether it did: once, until the refund begins
    /// again. Durable when it returns.
    pub async fn tell_slow_refund(&self, id: PaymentId, now: UnixMs) -> LedgerResult<bool> {
        self.transact(Urgency::Settle, move |transaction| {
            let slow = |payment: &Payment| payment.is_slow(now);
            let Some(mut payment) = payments::find(transaction, id)?.filter(slow) else { return Ok(false) };
            payment.slow_told_at = Some(now);
            write(transaction, &payment)?;
            note(transaction, &payment, "payment.refund_slow", now)?;
            Ok(true)
        })
        .await
    }

    /// The money is back. An order that it had paid becomes `refunded` and lets go of its units, which return to the
    /// shelf or, if the operator chose so, lower the stock, all in one transaction. Durable when it returns; a retry
    /// is [`RefundEnd::Before`].
    pub async fn refund_done(&self, id: PaymentId, now: UnixMs) -> LedgerResult<RefundEnd> {
        self.end_refund(id, RefundWord::Done(RefundOf::Present), now).await
    }

    /// The provider does not return the money. An order that it had paid becomes `refund_failed` and keeps its units.
    /// Durable when it returns; a retry is [`RefundEnd::Before`].
    pub async fn refund_failed(
        &self,
        id: PaymentId,
        failure: RefundFailure,
        now: UnixMs,
    ) -> LedgerResult<RefundEnd> {
        self.end_refund(id, RefundWord::Failed(failure), now).await
    }

    async fn end_refund(&self, id: PaymentId, word: RefundWord, now: UnixMs) -> LedgerResult<RefundEnd> {
        self.release(Urgency::Settle.at("ledger.end_refund"), releases, move |transaction| {
            match payments::find(transaction, id)? {
                Some(payment) => end(transaction, payment, &word, now),
                None => Ok(RefundEnd::NotFound),
            }
        })
        .await
    }
}

fn refund_order(
    transaction: &Transaction<'_>,
    id: OrderId,
    restock: Option<bool>,
    now: UnixMs,
) -> LedgerResult<RefundAsked> {
    let Some(mut order) = find(transaction, id)? else { return Ok(RefundAsked::NotFound) };
    let of_order = payments::of_order(transaction, id)?;
    let its_own = of_order.into_iter().find(|payment| payment.status.is_the_orders());
    let Some(mut payment) = its_own else { return Ok(RefundAsked::NotRefundable(order.status.state)) };
    match order.status.state {
        OrderState::Paid => {
            payment.restock = restock.unwrap_or(payment.restock);
            step(transaction, &mut payment, Event::RefundDue(RefundReason::Requested), now)?;
            write_event(transaction, &mut order, OrderEvent::RefundStarted, Shelf::Same, now)?;
            Ok(RefundAsked::Begun { order: Box::new(order), payment: payment.id })
        }
        OrderState::RefundFailed => {
            payment.restock = restock.unwrap_or(payment.restock);
            let order = begin_again(transaction, &mut payment, now)?.unwrap_or(order);
            Ok(RefundAsked::Begun { order: Box::new(order), payment: payment.id })
        }
        // The provider failed after it had said that the money is back: it is asked again, the order stays as it is.
        OrderState::Refunded if payment.status.state == State::RefundFailed => {
            begin_again(transaction, &mut payment, now)?;
            Ok(RefundAsked::Begun { order: Box::new(order), payment: payment.id })
        }
        OrderState::Refunding | OrderState::Refunded => Ok(RefundAsked::Before(Box::new(order))),
        OrderState::Queued | OrderState::AwaitingPayment | OrderState::Closed | OrderState::Refused => {
            Ok(RefundAsked::NotRefundable(order.status.state))
        }
    }
}

/// A refund that failed is under way again, and so is its order, unless that had let go of its units.
fn begin_again(
    transaction: &Transaction<'_>,
    payment: &mut Payment,
    now: UnixMs,
) -> LedgerResult<Option<Order>> {
    // It may have been an old word about the refund that failed: the provider is asked.
    payment.back_elsewhere = None;
    step(transaction, payment, Event::RefundStarted, now)?;
    let mut order = refunded_by(transaction, payment)?;
    if let Some(order) = &mut order {
        write_event(transaction, order, OrderEvent::RefundStarted, Shelf::Same, now)?;
    }
    Ok(order)
}

/// The payment, if its refund under this number is under way.
fn under_way(transaction: &Transaction<'_>, id: PaymentId, number: &str) -> LedgerResult<Option<Payment>> {
    let is_it = |payment: &Payment| {
        payment.status.state == State::Refunding && payment.refund_of(Some(number)) == RefundOf::Present
    };
    Ok(payments::find(transaction, id)?.filter(is_it))
}

/// The order that this money had paid and that is to be refunded with it, if there is one. An order that is refunded
/// stays so: its units may have been sold again.
fn refunded_by(transaction: &Transaction<'_>, payment: &Payment) -> LedgerResult<Option<Order>> {
    match payment.order.filter(|_| payment.status.is_the_orders()) {
        None => Ok(None),
        Some(id) => match find(transaction, id)? {
            Some(order) => Ok(Some(order).filter(|order| order.status.state != OrderState::Refunded)),
            None => Err(LedgerError::Failed(anyhow::anyhow!("the order of payment {} is gone", payment.id))),
        },
    }
}

pub(super) fn end(
    transaction: &Transaction<'_>,
    mut payment: Payment,
    word: &RefundWord,
    now: UnixMs,
) -> LedgerResult<RefundEnd> {
    match (payment.status.state, word) {
        (State::Refunding | State::RefundFailed, RefundWord::Done(RefundOf::Present)) => {
            done(transaction, payment, now)
        }
        // Without a number, after an earlier refund failed, it may be an old word about that one: the present one is
        // asked for by its number.
        (State::Refunding, RefundWord::Done(RefundOf::Nobody)) if payment.refund_round > 0 => {
            Ok(RefundEnd::Before(payment))
        }
        (State::Refunding, RefundWord::Done(RefundOf::Nobody)) => done(transaction, payment, now),
        // Somebody was faster than we: nobody need be asked any more.
        (State::RefundDue, RefundWord::Done(_)) => {
            step(transaction, &mut payment, Event::RefundStarted, now)?;
            done(transaction, payment, now)
        }
        (State::Refunded, RefundWord::Done(_) | RefundWord::Part(_)) => Ok(RefundEnd::Before(payment)),
        (State::Refunding | State::RefundFailed, RefundWord::Done(RefundOf::Earlier)) => {
            Ok(RefundEnd::Unasked(payment))
        }
        (State::RefundFailed, RefundWord::Done(RefundOf::Nobody))
        | (State::Captured | State::Applied, RefundWord::Done(_)) => {
            let all = payment.money;
            went_back_elsewhere(transaction, payment, all, now)
        }
        (
            State::Captured | State::Applied | State::RefundDue | State::Refunding | State::RefundFailed,
            RefundWord::Part(part),
        ) => went_back_elsewhere(transaction, payment, *part, now),
        (State::Refunding | State::Refunded | State::RefundFailed, RefundWord::Failed(failure)) => {
            fail(transaction, payment, failure, now)
        }
        (State::Captured | State::Applied | State::RefundDue, RefundWord::Failed(_)) => {
            did_not_go_back_elsewhere(transaction, payment)
        }
        (State::Started | State::Closed, _) => Ok(RefundEnd::Unasked(payment)),
    }
}

/// So much of the money went back without us, at least: providers tell of one refund by several notifications, and of
/// several by their sum. The order stays as it is, since the shop decides what becomes of it.
fn went_back_elsewhere(
    transaction: &Transaction<'_>,
    mut payment: Payment,
    money: Money,
    now: UnixMs,
) -> LedgerResult<RefundEnd> {
    if money.currency == payment.money.currency {
        if payment.back_elsewhere.is_some_and(|before| before >= money.amount) {
            return Ok(RefundEnd::Before(payment));
        }
        payment.back_elsewhere = Some(money.amount);
        write(transaction, &payment)?;
    }
    let mut facts = facts(&payment);
    if let Some(facts) = facts.as_object_mut() {
        facts.insert("refunded".to_owned(), serde_json::json!(money));
    }
    tell(transaction, &payment, "payment.refunded_elsewhere", &facts, now)?;
    Ok(RefundEnd::Unasked(payment))
}

/// A refund that is none of ours failed: what was told of such refunds no longer holds.
fn did_not_go_back_elsewhere(transaction: &Transaction<'_>, mut payment: Payment) -> LedgerResult<RefundEnd> {
    if payment.back_elsewhere.take().is_some() {
        write(transaction, &payment)?;
    }
    Ok(RefundEnd::Unasked(payment))
}

/// A provider says that a refund failed. Providers tell late and twice: what is said of an earlier refund is known, and
/// what may yet succeed does not undo what has.
fn fail(
    transaction: &Transaction<'_>,
    mut payment: Payment,
    failure: &RefundFailure,
    now: UnixMs,
) -> LedgerResult<RefundEnd> {
    match (payment.refund_of(failure.number.as_deref()), payment.status.state) {
        (RefundOf::Nobody, _) => did_not_go_back_elsewhere(transaction, payment),
        (RefundOf::Present, State::Refunding) => failed(transaction, payment, failure, now),
        (RefundOf::Present, State::Refunded) if failure.is_final => {
            failed(transaction, payment, failure, now)
        }
        (RefundOf::Present, State::RefundFailed) => {
            note_failure(&mut payment, failure);
            write(transaction, &payment)?;
            Ok(RefundEnd::Before(payment))
        }
        (RefundOf::Present | RefundOf::Earlier, _) => Ok(RefundEnd::Before(payment)),
    }
}

/// A number is used up when its refund has ended for good, and never before: it may still happen.
fn note_failure(payment: &mut Payment, failure: &RefundFailure) {
    payment.problem = Some(failure.problem.clone());
    if failure.is_final {
        payment.refund_round = payment.refund_round.saturating_add(1);
        payment.refund_ref = None;
    }
}

fn done(transaction: &Transaction<'_>, mut payment: Payment, now: UnixMs) -> LedgerResult<RefundEnd> {
    payment.problem = None;
    step(transaction, &mut payment, Event::RefundDone, now)?;
    let released = match refunded_by(transaction, &payment)? {
        None => None,
        Some(mut order) => {
            let shelf = if payment.restock { Shelf::Same } else { Shelf::Lowered };
            let change_no = write_event(transaction, &mut order, OrderEvent::RefundDone, shelf, now)?;
            Some(Box::new(Released { order, change_no, restock: payment.restock, struck: false }))
        }
    };
    if released.is_none() {
        note(transaction, &payment, "payment.refunded", now)?;
    }
    Ok(RefundEnd::Done { payment, released })
}

fn failed(
    transaction: &Transaction<'_>,
    mut payment: Payment,
    failure: &RefundFailure,
    now: UnixMs,
) -> LedgerResult<RefundEnd> {
    note_failure(&mut payment, failure);
    step(transaction, &mut payment, Event::RefundFailed, now)?;
    let mut order = refunded_by(transaction, &payment)?;
    match &mut order {
        Some(order) => {
            write_event(transaction, order, OrderEvent::RefundFailed, Shelf::Same, now)?;
        }
        None => note(transaction, &payment, "payment.refund_failed", now)?,
    }
    Ok(RefundEnd::Failed { payment, order: order.map(Box::new) })
}

/// Of how many orders the gate gets units back.
pub(super) fn releases(end: &RefundEnd) -> usize {
    usize::from(matches!(end, RefundEnd::Done { released: Some(_), .. }))
}

/// Tells of money that goes back and is no matter of an order: it never paid one, or its order is refunded already. It is
/// none of the order's facts, so it has no `seq`.
pub(super) fn note(
    transaction: &Transaction<'_>,
    payment: &Payment,
    kind: &str,
    now: UnixMs,
) -> LedgerResult<()> {
    tell(transaction, payment, kind, &facts(payment), now)
}

fn facts(payment: &Payment) -> serde_json::Value {
    serde_json::json!({
        "payment_id": payment.id,
        "provider": payment.provider,
        "capture_id": payment.capture_id,
        "money": payment.money,
        "reason": payment.status.reason,
    })
}

fn tell(
    transaction: &Transaction<'_>,
    payment: &Payment,
    kind: &str,
    facts: &serde_json::Value,
    now: UnixMs,
) -> LedgerResult<()> {
    transaction
        .prepare_cached(
            "insert into events (type, at, sale_no, offer_no, order_no, data)
             select ?2, ?3, sale_no, offer_no, order_no, ?4
             from (select 1) left join orders on order_id = ?1 left join offers using (offer_no)",
        )?
        .execute(params![payment.order.map(OrderId::to_bytes), kind, now.0, facts.to_string()])?;
    Ok(())
}
