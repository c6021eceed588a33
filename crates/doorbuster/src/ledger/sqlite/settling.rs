//! Captured money in SQLite: taking notifications, and writing down what `rules::payment` decides about each capture.
//! Knows neither providers nor signatures: what comes here was verified.

use std::sync::Arc;

use rules::admission::readmit;
use rules::id::{OrderId, PaymentId};
use rules::order::{Event as OrderEvent, Reason, Version};
use rules::payment::{
    self, Capture, CaptureKey, Event, Finder, RefundReason, Revival, RevivalRecord, Settlement, State,
    Status, Subject,
};
use rules::time::UnixMs;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::deadlines::readable;
use super::orders::{Shelf, find, write_event};
use super::payments::{self, PAYMENT_COLUMNS, advance, insert, read_payment, step};
use super::refunds::{self, RefundWord};
use super::{SqliteLedger, Urgency, column, signed, strikes};
use crate::ledger::money::{Absent, Decided, Names, Notice, Payment, QueueIsDrained, Settled, Taken, Told};
use crate::ledger::{LedgerError, LedgerResult, Order, Record, Recorded};
use crate::queue::{Claim, Revive};

impl SqliteLedger {
    /// Takes a verified notification: its id, the capture or refund it tells of, and what follows from that, in one
    /// transaction.
    ///
    /// Durable when it returns, so the provider may be told to forget it. A retry, and every further delivery, is
    /// [`Taken::Duplicate`]; another notification of the same capture is [`Settled::Duplicate`] once that is decided.
    /// Undecided captures of the same order that came before are decided first.
    pub async fn take_notice(&self, notice: Notice, now: UnixMs) -> LedgerResult<Taken> {
        let releases =
            |taken: &Taken| if let Taken::Refund(end) = taken { refunds::releases(end) } else { 0 };
        self.release(Urgency::Settle.at("ledger.take_notice"), releases, move |transaction| {
            take(transaction, &notice, now)
        })
        .await
    }

    /// Decides a capture that waits, with what is known by now. `absent` says what it means that its order is not in
    /// the ledger. Durable when it returns; a retry is [`Settled::Duplicate`] or waits on.
    pub async fn settle_capture(&self, id: PaymentId, absent: Absent, now: UnixMs) -> LedgerResult<Decided> {
        self.transact(Urgency::Settle.at("ledger.settle_capture"), move |transaction| {
            match payments::find(transaction, id)? {
                Some(payment) => settle(transaction, Captured::written(payment), absent, now),
                None => Ok(Decided { this: Settled::NotFound, before: Vec::new() }),
            }
        })
        .await
    }

    /// The payment that a capture was written down on.
    pub async fn payment_of_capture(&self, key: CaptureKey) -> LedgerResult<Option<Payment>> {
        self.read(move |connection| Ok(find_capture(connection, &key)?)).await
    }

    /// Captures that are not decided, in the order in which they are to be: those after the number `after`. What cannot
    /// be read is left out, so only an empty answer is the end.
    pub async fn waiting_captures(&self, after: u64, limit: u32) -> LedgerResult<Vec<Payment>> {
        self.read(move |connection| {
            let sql = format!(
                "select {PAYMENT_COLUMNS} from payments
                 where state = 'captured' and payment_no > ?1 order by payment_no limit ?2"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params![signed(after), limit], |row| read_payment(row, 0))?;
            Ok(readable(rows)?)
        })
        .await
    }

    /// Gives late money back: the gate had no unit for it, or its buyer has another order. Durable when it returns. A
    /// capture that was decided meanwhile stays so ([`Settled::Duplicate`]), as it does for a retry.
    pub async fn refund_late(
        &self,
        id: PaymentId,
        reason: RefundReason,
        now: UnixMs,
    ) -> LedgerResult<Settled> {
        self.transact(Urgency::Settle.at("ledger.refund_late"), move |transaction| {
            let Some(payment) = payments::find(transaction, id)? else { return Ok(Settled::NotFound) };
            if payment.status.state != State::Captured {
                return Ok(Settled::Duplicate);
            }
            send_back(transaction, payment, reason, now)
        })
        .await
    }

    /// Looks for units for late money in the ledger alone, where no gate and no queue has a word in it any more, and
    /// revives the order or gives the money back. Durable when it returns; a retry is [`Settled::Duplicate`].
    pub async fn revive_alone(
        &self,
        id: PaymentId,
        _drained: QueueIsDrained,
        now: UnixMs,
    ) -> LedgerResult<Decided> {
        self.transact(Urgency::Settle.at("ledger.revive_alone"), move |transaction| {
            let Some(payment) = payments::find(transaction, id)? else {
                return Ok(Decided { this: Settled::NotFound, before: Vec::new() });
            };
            let captured = Captured::written(payment.clone());
            let Decided { this, before } = settle(transaction, captured, Absent::WillNotCome, now)?;
            let this = match this {
                Settled::ReviveNeeded { order, .. } => revive_alone(transaction, payment, *order, now)?,
                decided @ (Settled::Applied { .. }
                | Settled::RefundDue { .. }
                | Settled::Duplicate
                | Settled::Wait
                | Settled::NotFound) => decided,
            };
            Ok(Decided { this, before })
        })
        .await
    }
}

fn take(transaction: &Transaction<'_>, notice: &Notice, now: UnixMs) -> LedgerResult<Taken> {
    let key = notice.told.key();
    if let Some(payment) = told_before(transaction, key, &notice.event_id)? {
        if payment.capture_id.as_deref() == Some(key.capture()) {
            look_for_another_amount(&payment, &notice.told);
            return Ok(Taken::Duplicate);
        }
        let (event_id, before) = (&notice.event_id, &payment.capture_id);
        tracing::error!(
            ?key,
            event_id,
            ?before,
            "a provider told of two captures in notifications of one id; both are settled"
        );
    }
    let known = find_capture(transaction, key)?;
    known.iter().for_each(|payment| look_for_another_amount(payment, &notice.told));
    let (payment_no, taken) = match (&notice.told, known) {
        (Told::Captured { capture, names, fresh }, known) => {
            let captured = match known {
                Some(payment) => Captured::written(payment),
                None => write_down(transaction, capture, names, *fresh, now)?,
            };
            (captured.payment.no, Taken::Capture(settle(transaction, captured, Absent::MayCome, now)?))
        }
        (Told::Refunded { payment, .. } | Told::RefundFailed { payment, .. }, None) => {
            return untold(transaction, key, payment.as_deref());
        }
        (Told::Refunded { number, amount, .. }, Some(payment)) => {
            let word = RefundWord::of(&payment, number.as_deref(), *amount);
            (payment.no, ended(transaction, payment, &word, now)?)
        }
        (Told::RefundFailed { failure, .. }, Some(payment)) => {
            let word = RefundWord::Failed(failure.clone());
            (payment.no, ended(transaction, payment, &word, now)?)
        }
    };
    transaction
        .prepare_cached(
            "insert into notices (provider, event_id, payment_no, taken_at) values (?1, ?2, ?3, ?4)
             on conflict (provider, event_id) do nothing",
        )?
        .execute(params![key.provider(), notice.event_id, signed(payment_no), now.0])?;
    Ok(taken)
}

/// The payment that the notification of this id told of, if there was one.
fn told_before(
    connection: &Connection,
    key: &CaptureKey,
    event_id: &str,
) -> rusqlite::Result<Option<Payment>> {
    let sql = format!(
        "select {PAYMENT_COLUMNS} from payments where payment_no =
         (select payment_no from notices where provider = ?1 and event_id = ?2)"
    );
    connection
        .prepare_cached(&sql)?
        .query_row(params![key.provider(), event_id], |row| read_payment(row, 0))
        .optional()
}

/// One capture has one amount: the first that was told stands, and somebody must look at the provider's console.
fn look_for_another_amount(payment: &Payment, told: &Told) {
    let Told::Captured { capture, .. } = told else { return };
    if capture.money != payment.money {
        let (key, payment_id, before, now) = (&capture.key, payment.id, payment.money, capture.money);
        tracing::error!(?key, %payment_id, %before, %now, "a provider told another amount of a known capture");
    }
}

/// A refund of money that nobody told us of: whose is it?
fn untold(transaction: &Transaction<'_>, key: &CaptureKey, payment: Option<&str>) -> LedgerResult<Taken> {
    let ours = match payment {
        Some(reference) => find_named(transaction, key, reference)?,
        None => None,
    };
    Ok(if ours.is_some() { Taken::TooEarly } else { Taken::UnknownCapture })
}

fn ended(
    transaction: &Transaction<'_>,
    payment: Payment,
    word: &RefundWord,
    now: UnixMs,
) -> LedgerResult<Taken> {
    Ok(Taken::Refund(Box::new(refunds::end(transaction, payment, word, now)?)))
}

fn find_capture(connection: &Connection, key: &CaptureKey) -> rusqlite::Result<Option<Payment>> {
    let sql = format!("select {PAYMENT_COLUMNS} from payments where provider = ?1 and capture_id = ?2");
    connection
        .prepare_cached(&sql)?
        .query_row(params![key.provider(), key.capture()], |row| read_payment(row, 0))
        .optional()
}

/// A capture to be decided.
struct Captured {
    payment: Payment,
    /// Whether its row tells of the capture yet. Mostly it is decided at once, and written once.
    is_written: bool,
}

impl Captured {
    fn written(payment: Payment) -> Self {
        Self { payment, is_written: true }
    }

    fn write(&mut self, transaction: &Transaction<'_>) -> LedgerResult<()> {
        if !self.is_written {
            payments::write(transaction, &self.payment)?;
            self.is_written = true;
        }
        Ok(())
    }

    /// The payments of its order, itself among them as it is by now.
    fn siblings(&self, connection: &Connection) -> LedgerResult<Vec<payment::Payment>> {
        let of_order = match self.payment.order {
            Some(order) => payments::of_order(connection, order)?,
            None => vec![self.payment.clone()],
        };
        let as_it_is = |other: &Payment| as_rules_see_it(self.instead_of(other));
        of_order.iter().map(as_it_is).collect()
    }

    fn instead_of<'a>(&'a self, other: &'a Payment) -> &'a Payment {
        if other.no == self.payment.no { &self.payment } else { other }
    }
}

/// Takes a capture down that was not known: on the payment that it belongs to, or, if that has its money, beside it.
fn write_down(
    transaction: &Transaction<'_>,
    capture: &Capture,
    names: &Names,
    fresh: PaymentId,
    now: UnixMs,
) -> LedgerResult<Captured> {
    let (reference, named) = match names {
        Names::Payment(reference) => (reference.clone(), find_named(transaction, &capture.key, reference)?),
        Names::Order(order) => (order.to_string(), None),
    };
    let order = match (&named, names) {
        (Some(payment), _) => payment.order,
        (None, Names::Order(order)) => Some(*order),
        (None, Names::Payment(_)) => None,
    };
    let capture_id = Some(capture.key.capture().to_owned());
    match named {
        Some(mut payment) if matches!(payment.status.state, State::Started | State::Closed) => {
            (payment.capture_id, payment.money) = (capture_id, capture.money);
            advance(&mut payment, Event::Captured, now)?;
            Ok(Captured { payment, is_written: false })
        }
        _ => insert(
            transaction,
            Payment {
                no: 0,
                id: fresh,
                order,
                provider: capture.key.provider().to_owned(),
                reference,
                capture_id,
                status: Status::CAPTURED,
                money: capture.money,
                provider_ref: None,
                pay_url: None,
                started_at: now,
                captured_at: Some(now),
                ended_at: None,
                refund_key: fresh.to_string(),
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
            },
        )
        .map(Captured::written),
    }
}

/// The payment that was started under this name. Captures beside it have the same name and came later.
fn find_named(
    connection: &Connection,
    key: &CaptureKey,
    reference: &str,
) -> rusqlite::Result<Option<Payment>> {
    let sql = format!(
        "select {PAYMENT_COLUMNS} from payments where provider = ?1 and reference = ?2
         order by payment_no limit 1"
    );
    connection
        .prepare_cached(&sql)?
        .query_row(params![key.provider(), reference], |row| read_payment(row, 0))
        .optional()
}

/// Decides a capture, after those of the same order that came before it: right money must not go back because of
/// wrong money that nobody has looked at yet. Whoever is told follows all of them.
fn settle(
    transaction: &Transaction<'_>,
    mut captured: Captured,
    absent: Absent,
    now: UnixMs,
) -> LedgerResult<Decided> {
    let mut before = Vec::new();
    for earlier in undecided_before(transaction, &captured.payment)? {
        captured.write(transaction)?;
        before.push(settle_one(transaction, Captured::written(earlier), absent, now)?);
    }
    // What waits on is found again by its worker.
    before.retain(|settled| matches!(settled, Settled::Applied { .. } | Settled::RefundDue { .. }));
    Ok(Decided { this: settle_one(transaction, captured, absent, now)?, before })
}

fn undecided_before(connection: &Connection, payment: &Payment) -> rusqlite::Result<Vec<Payment>> {
    let Some(order) = payment.order else { return Ok(Vec::new()) };
    let sql = format!(
        "select {PAYMENT_COLUMNS} from payments
         where order_id = ?1 and payment_no < ?2 and state = 'captured' order by payment_no"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows =
        statement.query_map(params![order.to_bytes(), signed(payment.no)], |row| read_payment(row, 0))?;
    rows.collect()
}

fn settle_one(
    transaction: &Transaction<'_>,
    mut captured: Captured,
    absent: Absent,
    now: UnixMs,
) -> LedgerResult<Settled> {
    let siblings = captured.siblings(transaction)?;
    let order = find_order(transaction, captured.payment.order)?;
    let Some(capture) = capture_of(&captured.payment)? else { return Ok(Settled::NotFound) };
    let subject = match (&order, absent) {
        (Some(order), _) => Subject::Order { status: order.status, total: payments::total(order) },
        (None, Absent::MayCome) => Subject::NotYet,
        (None, Absent::WillNotCome) => Subject::Unknown,
    };
    let settlement = payment::settle(subject, &siblings, &capture);
    if !matches!(settlement, Settlement::Apply | Settlement::RefundDue(_)) {
        captured.write(transaction)?;
    }
    match (settlement, order) {
        (Settlement::Apply, Some(order)) => {
            apply(transaction, captured.payment, order, OrderEvent::PaymentApplied, now)
        }
        (Settlement::Revive, Some(order)) => {
            Ok(Settled::ReviveNeeded { payment: captured.payment.id, order: Box::new(order) })
        }
        (Settlement::RefundDue(reason), _) => send_back(transaction, captured.payment, reason, now),
        (Settlement::Duplicate, _) => Ok(Settled::Duplicate),
        (Settlement::Wait | Settlement::Revive, _) => Ok(Settled::Wait),
        (Settlement::Apply, None) => {
            Err(LedgerError::Failed(anyhow::anyhow!("money for an order that is not there")))
        }
    }
}

fn find_order(connection: &Connection, order: Option<OrderId>) -> rusqlite::Result<Option<Order>> {
    order.map_or(Ok(None), |order| find(connection, order))
}

fn as_rules_see_it(payment: &Payment) -> LedgerResult<payment::Payment> {
    let capture = capture_of(payment)?.map(|capture| capture.key);
    Ok(payment::Payment { capture, status: payment.status })
}

fn capture_of(payment: &Payment) -> LedgerResult<Option<Capture>> {
    let Some(capture_id) = &payment.capture_id else { return Ok(None) };
    let key =
        CaptureKey::new(&payment.provider, capture_id).map_err(|error| LedgerError::Failed(error.into()))?;
    Ok(Some(Capture { key, money: payment.money }))
}

fn apply(
    transaction: &Transaction<'_>,
    payment: Payment,
    order: Order,
    event: OrderEvent,
    now: UnixMs,
) -> LedgerResult<Settled> {
    let (order, closed) = pay(transaction, payment, order, event, now)?;
    Ok(Settled::Applied { order: Box::new(order), closed })
}

/// The order is paid by this money. Whatever else was open for it is closed.
fn pay(
    transaction: &Transaction<'_>,
    mut payment: Payment,
    mut order: Order,
    event: OrderEvent,
    now: UnixMs,
) -> LedgerResult<(Order, Option<Box<Payment>>)> {
    order.payment = Some(payment.id);
    write_event(transaction, &mut order, event, Shelf::Same, now)?;
    strikes::lift_for(transaction, &order, event, now)?;
    step(transaction, &mut payment, Event::Applied, now)?;
    let closed = payments::close_open(transaction, order.id, now)?;
    Ok((order, closed))
}

fn send_back(
    transaction: &Transaction<'_>,
    mut payment: Payment,
    reason: RefundReason,
    now: UnixMs,
) -> LedgerResult<Settled> {
    step(transaction, &mut payment, Event::RefundDue(reason), now)?;
    refunds::note(transaction, &payment, "payment.refund_due", now)?;
    Ok(Settled::RefundDue { payment: payment.id, reason })
}

fn revive_alone(
    transaction: &Transaction<'_>,
    payment: Payment,
    order: Order,
    now: UnixMs,
) -> LedgerResult<Settled> {
    let live = live_order(transaction, &order)?;
    let free = free_units(transaction, &order)?;
    match payment::revival(readmit(order.id, live, free, order.quantity, || true), Finder::Ledger) {
        Revival::Claimed => apply(transaction, payment, order, OrderEvent::Revived, now),
        Revival::RefundDue(reason) => send_back(transaction, payment, reason, now),
        Revival::Wait => Ok(Settled::Wait),
    }
}

/// Records a claim that late money made. `fits` says whether there are units for it.
pub(super) fn record_revival(
    transaction: &Transaction<'_>,
    claim: &Claim,
    revive: Revive,
    fits: bool,
    now: UnixMs,
) -> LedgerResult<Record> {
    let nothing = |reason| Record { outcome: Recorded::Refused(reason), order: None };
    let Some(mut order) = find(transaction, claim.order)? else { return Ok(nothing(Reason::Internal)) };
    if order.buyer != claim.buyer || order.offer != claim.offer || order.quantity != claim.quantity {
        return Ok(nothing(Reason::IdClash));
    }
    let Some(payment) = payments::find(transaction, revive.payment)? else {
        return Ok(nothing(Reason::Internal));
    };
    let obstacle = match live_order(transaction, &order)? {
        Some(_) => Some(RefundReason::OtherLive),
        None if !fits => Some(RefundReason::NoUnitLeft),
        None => None,
    };
    let version = Version { status: order.status, seq: order.seq };
    let outcome = match payment::record_revival(version, revive.closing_seq, payment.status, obstacle) {
        RevivalRecord::Repeat => Recorded::RevivalRepeat,
        RevivalRecord::Revived => {
            order = pay(transaction, payment, order, OrderEvent::Revived, now)?.0;
            Recorded::Revived
        }
        RevivalRecord::NotRevived { refund } => {
            write_event(transaction, &mut order, OrderEvent::NotRevived, Shelf::Same, now)?;
            if let Some(reason) = refund {
                send_back(transaction, payment, reason, now)?;
            }
            Recorded::NotRevived { refund }
        }
    };
    Ok(Record { outcome, order: Some(Arc::new(order)) })
}

/// The live order that this order's buyer has of its offer, and how many units it holds.
fn live_order(connection: &Connection, order: &Order) -> rusqlite::Result<Option<(OrderId, u32)>> {
    connection
        .prepare_cached(
            "select order_id, quantity from orders join offers using (offer_no)
             where buyer = ?1 and slot = 0 and offer_id = ?2",
        )?
        .query_row(params![order.buyer.as_str(), order.offer.to_bytes()], |row| {
            Ok((OrderId(column::id(row, 0)?), column::count(row, 1)?))
        })
        .optional()
}

fn free_units(connection: &Connection, order: &Order) -> rusqlite::Result<u32> {
    connection
        .prepare_cached("select stock - live_units from offers where offer_id = ?1")?
        .query_row([order.offer.to_bytes()], |row| column::count(row, 0))
}
