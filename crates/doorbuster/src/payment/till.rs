//! The till: a buyer's way to a provider, and what follows from what providers tell. The ledger decides and writes down;
//! here stands what must happen beside it: the provider's part, the buyer's socket, the units. Knows no HTTP of ours.
//!
//! Whatever follows a commit is a hint or is found again: a process that dies in between loses no money.

use std::sync::Arc;
use std::time::Duration;

use rules::buyer::BuyerId;
use rules::id::{OrderId, PaymentId, timed};
use rules::order::State;
use rules::payment::{Revival, State as PaymentState};
use rules::wire::OrderView;
use tokio::sync::Semaphore;

use super::port::{Beginning, Heard, Name, Word};
use super::providers::{CallError, Closing, Device, RefundAmount};
use crate::app::App;
use crate::crash;
use crate::desk::{Seen, VERDICT_WAIT};
use crate::ledger::money::{
    Decided, NewPayment, Notice, Payment, PaymentStarted, RefundAsked, RefundEnd, RefundOf, Settled, Taken,
};
use crate::ledger::{LedgerResult, Order};
use crate::telemetry::metrics::MoneyOutcome;

/// A payment that another replaced is closed at its provider so often, with these waits in between.
const CLOSE_WAITS: [Duration; 4] =
    [Duration::ZERO, Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(25)];

/// Payments that wait to be closed at their providers, or are being closed; further ones are not closed there.
const CLOSINGS_MAX: usize = 10_000;

/// Calls to close a payment that are under way at once. A provider that is down takes 15 seconds for each.
const CLOSED_AT_ONCE: usize = 256;

/// Payments on their way to be closed at their providers.
#[derive(Debug)]
pub struct Closings {
    places: Arc<Semaphore>,
    turns: Semaphore,
}

impl Default for Closings {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(CLOSINGS_MAX)), turns: Semaphore::new(CLOSED_AT_ONCE) }
    }
}

/// What became of a buyer's wish to pay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PayAnswer {
    Pay {
        payment: PaymentId,
        pay_url: String,
    },
    /// Still queued after the wait, or money is here and not decided.
    NotYet,
    NotPayable(State),
    /// So many payments were started for the order that no further one is.
    TooMany,
    NotFound,
    /// No provider of this name serves the order's sale.
    NoSuchProvider,
    /// The provider cannot take this payment; why.
    Unsuitable(&'static str),
    /// The provider did not answer. Nothing is lost; the same again goes on with the same payment.
    Unavailable,
    /// The provider said no.
    Refused,
}

/// What became of what a provider told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heeded {
    /// It is written down, or there was nothing to: the provider may forget it.
    Recorded,
    /// It tells of the return of money that we have not heard of yet. Nothing happened; the provider must tell it again.
    TooEarly,
}

impl App {
    /// Starts the payment of this buyer's order, or goes on with the one that is open.
    pub async fn pay(
        self: &Arc<Self>,
        id: OrderId,
        buyer: &BuyerId,
        provider: &str,
        device: Device,
    ) -> LedgerResult<PayAnswer> {
        let Some(name) = self.port.named(provider) else { return Ok(PayAnswer::NoSuchProvider) };
        let order = match self.await_order(id, buyer, None, VERDICT_WAIT).await? {
            Seen::NotFound => return Ok(PayAnswer::NotFound),
            Seen::Unsure => return Ok(PayAnswer::NotYet),
            Seen::Order(order) if order.state == State::Queued => return Ok(PayAnswer::NotYet),
            Seen::Order(order) => order,
        };
        if name == Name::Sandbox && !self.sandbox_serves(order.sale_id) {
            return Ok(PayAnswer::NoSuchProvider);
        }
        let (app, buyer) = (Arc::clone(self), buyer.clone());
        self.to_the_end(async move { app.pay_recorded(&order, buyer, name, device).await }).await
    }

    async fn pay_recorded(
        self: &Arc<Self>,
        order: &OrderView,
        buyer: BuyerId,
        name: Name,
        device: Device,
    ) -> LedgerResult<PayAnswer> {
        let now = self.clock.now();
        let id = PaymentId(timed(now, rand::random()));
        let wanted = NewPayment { id, order: order.id, buyer, provider: name.as_str().to_owned() };
        let payment = match self.ledger.start_payment(wanted, now).await? {
            PaymentStarted::New { payment, instead_of } => {
                self.metrics.money.inc(MoneyOutcome::Started);
                instead_of.into_iter().for_each(|other| self.close_at_provider(*other));
                payment
            }
            PaymentStarted::Open(payment) => payment,
            PaymentStarted::NotYet => return Ok(PayAnswer::NotYet),
            PaymentStarted::NotPayable(state) => return Ok(PayAnswer::NotPayable(state)),
            PaymentStarted::TooMany => return Ok(PayAnswer::TooMany),
            PaymentStarted::NotFound => return Ok(PayAnswer::NotFound),
        };
        crash::point("till.started");
        match payment.pay_url.clone() {
            Some(pay_url) => Ok(PayAnswer::Pay { payment: payment.id, pay_url }),
            None => self.start_at_provider(&payment, order, device).await,
        }
    }

    async fn start_at_provider(
        &self,
        payment: &Payment,
        order: &OrderView,
        device: Device,
    ) -> LedgerResult<PayAnswer> {
        let offer = self.catalogue.offer(order.offer_id);
        let title = offer.map(|card| card.offer.name.clone()).unwrap_or_else(|| order.id.to_string());
        let pay_by = order.pay_by.unwrap_or_else(|| self.clock.now());
        let begun = match self.port.start(payment, &Beginning { title, pay_by, device }).await {
            Ok(begun) => begun,
            Err(error) => return self.not_started(payment, error).await,
        };
        crash::point("till.at_provider");
        let noted = self.ledger.note_started(payment.id, begun.provider_ref, begun.pay_url).await?;
        Ok(match noted {
            Some(Payment { status, pay_url: Some(pay_url), .. }) if status.state == PaymentState::Started => {
                PayAnswer::Pay { payment: payment.id, pay_url }
            }
            // Paid, cancelled or started elsewhere while the provider was asked: whoever asks again is told.
            Some(_) | None => PayAnswer::NotYet,
        })
    }

    /// What the provider did not answer stays open: the same again goes on with it. What it refused is closed, so that
    /// another provider can be chosen and the deadline need not ask.
    async fn not_started(&self, payment: &Payment, error: CallError) -> LedgerResult<PayAnswer> {
        let provider = payment.provider.as_str();
        tracing::warn!(payment_id = %payment.id, provider, %error, "a payment could not be started");
        self.metrics.money.inc(MoneyOutcome::NotStarted);
        let answer = match error {
            CallError::TryAgain { .. } | CallError::Unanswered(_) | CallError::Unbelievable(_) => {
                return Ok(PayAnswer::Unavailable);
            }
            CallError::Impossible(sentence) => PayAnswer::Unsuitable(sentence),
            CallError::Refused { .. } => PayAnswer::Refused,
        };
        self.ledger.close_payment(payment.id, self.clock.now()).await?;
        Ok(answer)
    }

    /// Closes a payment at its provider, in the background. If that fails, money that comes is settled all the same.
    pub(crate) fn close_at_provider(self: &Arc<Self>, payment: Payment) {
        let Ok(place) = Arc::clone(&self.closings.places).try_acquire_owned() else {
            tracing::warn!(payment_id = %payment.id, "too many payments wait to be closed at their providers; this one is not");
            return;
        };
        let app = Arc::clone(self);
        let closing = async move {
            let _place = place;
            for wait in CLOSE_WAITS {
                tokio::time::sleep(wait).await;
                match app.close_once(&payment).await {
                    Ok(true) => return,
                    Ok(false) => {}
                    Err(error) if error.is_worth_repeating() => {
                        tracing::info!(payment_id = %payment.id, %error, "a payment is not closed at its provider yet");
                    }
                    Err(error) => {
                        tracing::warn!(payment_id = %payment.id, %error, "a payment cannot be closed at its provider");
                        return;
                    }
                }
            }
            tracing::warn!(payment_id = %payment.id, "a payment could not be closed at its provider");
        };
        let shutdown = self.shutdown.clone();
        self.tasks.spawn_on(async move { shutdown.run_until_cancelled(closing).await }, &self.runtime);
    }

    /// Closes a payment at its provider, when it is its turn. One that is not open any more may have been paid before:
    /// that money does not depend on a callback. Whether it is done.
    async fn close_once(self: &Arc<Self>, payment: &Payment) -> Result<bool, CallError> {
        // Nobody closes the semaphore.
        let _turn = self.closings.turns.acquire().await;
        match self.port.close(payment).await? {
            Closing::Closed | Closing::Unknown => return Ok(true),
            Closing::NotOpen => {}
        }
        let told = match self.port.ask(payment, self.clock.now()).await? {
            Word::Paid(told) => told,
            Word::NotPaid => return Ok(true),
        };
        tracing::info!(payment_id = %payment.id, "a payment was to be closed and had been paid");
        let settled = self.settle(Heard::Notice(*told)).await;
        if let Err(error) = &settled {
            tracing::warn!(payment_id = %payment.id, %error, "its money could not be written down; trying again");
        }
        Ok(settled.is_ok())
    }

    /// Takes what a provider told. When it returns [`Heeded::Recorded`], the provider may forget it.
    pub async fn settle(self: &Arc<Self>, heard: Heard) -> LedgerResult<Heeded> {
        let app = Arc::clone(self);
        self.to_the_end(async move {
            let Some(notice) = app.notice_of(heard).await? else { return Ok(Heeded::Recorded) };
            let taken = app.ledger.take_notice(notice, app.clock.now()).await?;
            crash::point("till.noticed");
            if matches!(taken, Taken::TooEarly) {
                return Ok(Heeded::TooEarly);
            }
            app.follow(taken).await;
            Ok(Heeded::Recorded)
        })
        .await
    }

    /// What is to be written down of a notification, if anything is.
    async fn notice_of(&self, heard: Heard) -> LedgerResult<Option<Notice>> {
        match heard {
            Heard::Notice(notice) => Ok(Some(notice)),
            Heard::Refund { notice, refund_id, amount } => {
                let payment = self.ledger.payment_of_capture(notice.told.key().clone()).await?;
                let whole = payment.is_none_or(|payment| is_whole(&payment, refund_id.as_deref(), amount));
                if !whole {
                    let key = notice.told.key();
                    tracing::warn!(
                        ?key,
                        "a provider told of a partial refund; we make none, look at its console"
                    );
                    self.metrics.money.inc(MoneyOutcome::Unasked);
                }
                Ok(whole.then_some(notice))
            }
            Heard::Failed { payment } => {
                self.ledger.close_payment(payment, self.clock.now()).await?;
                Ok(None)
            }
            Heard::Nothing { kind } => {
                tracing::debug!(kind, "a notification that asks for nothing");
                Ok(None)
            }
        }
    }

    async fn follow(self: &Arc<Self>, taken: Taken) {
        match taken {
            Taken::Capture(Decided { this, before }) => {
                for settled in before {
                    self.follow_settled(settled).await;
                }
                self.follow_settled(this).await;
            }
            Taken::Refund(end) => self.follow_refund(*end).await,
            Taken::Duplicate => self.metrics.money.inc(MoneyOutcome::Duplicate),
            // Other shops and other systems may use the same account.
            Taken::UnknownCapture => {
                tracing::info!("a provider told of a refund of money that we do not know")
            }
            Taken::TooEarly => {}
        }
    }

    /// What follows from a decided capture: the buyer is told, the other payment is closed at its provider, the money
    /// goes on its way back. To be called after the commit, once; a process that dies before it loses a push, and the
    /// workers find the rest.
    pub(crate) async fn follow_settled(self: &Arc<Self>, settled: Settled) {
        match settled {
            Settled::Applied { order, closed } => {
                self.metrics.money.inc(MoneyOutcome::Applied);
                self.tell(&order);
                closed.into_iter().for_each(|other| self.close_at_provider(*other));
            }
            Settled::RefundDue { payment, reason } => {
                tracing::info!(payment_id = %payment, reason = reason.as_str(), "money goes back");
                self.metrics.money.inc(MoneyOutcome::RefundDue);
                self.refunds.wake();
                // Money that waited before it may have paid the order in the same commit.
                self.tell_order_of(payment).await;
            }
            Settled::ReviveNeeded { payment, order } => {
                self.metrics.money.inc(MoneyOutcome::Late);
                self.revive_late(payment, *order);
            }
            Settled::Wait => {
                self.metrics.money.inc(MoneyOutcome::Waiting);
                self.captures.wake();
            }
            Settled::Duplicate => self.metrics.money.inc(MoneyOutcome::Duplicate),
            Settled::NotFound => {}
        }
    }

    /// Late money looks for a unit; until it found one or none it stays `captured`, where the worker of waiting captures
    /// finds it.
    fn revive_late(self: &Arc<Self>, payment: PaymentId, order: Order) {
        tracing::info!(payment_id = %payment, order_id = %order.id, "money came after the deadline");
        let app = Arc::clone(self);
        let reviving = async move {
            if let Revival::RefundDue(_) = app.revive(&order, payment).await {
                app.refunds.wake();
            }
        };
        self.tasks.spawn_on(reviving, &self.runtime);
    }

    /// What follows from the end of a refund: units return, the buyer is told, a failure is an alarm.
    pub(crate) async fn follow_refund(self: &Arc<Self>, end: RefundEnd) {
        match end {
            RefundEnd::Done { payment, released } => {
                tracing::info!(payment_id = %payment.id, "money is back");
                self.metrics.money.inc(MoneyOutcome::Refunded);
                crash::point("till.refunded");
                if let Some(released) = released {
                    self.give_back(&released);
                }
            }
            RefundEnd::Failed { payment, order } => {
                let (provider, problem) = (payment.provider.as_str(), payment.problem.as_deref());
                tracing::error!(payment_id = %payment.id, provider, problem, "money could not be returned: somebody must look at it");
                self.metrics.money.inc(MoneyOutcome::RefundFailed);
                order.iter().for_each(|order| self.tell(order));
            }
            RefundEnd::Before(_) | RefundEnd::NotFound => {}
            RefundEnd::Unasked(payment) => {
                let state = payment.status.state.as_str();
                tracing::error!(payment_id = %payment.id, state, "a provider told of a refund that nobody asked for, or that had ended otherwise");
                self.metrics.money.inc(MoneyOutcome::Unasked);
            }
        }
    }

    /// The operator returns the money of a paid order, or tries again after a failure.
    pub async fn refund_order(self: &Arc<Self>, id: OrderId, restock: bool) -> LedgerResult<RefundAsked> {
        let app = Arc::clone(self);
        self.to_the_end(async move {
            let asked = app.ledger.refund_order(id, restock, app.clock.now()).await?;
            if let RefundAsked::Begun { order, .. } = &asked {
                app.tell(order);
                app.refunds.wake();
            }
            Ok(asked)
        })
        .await
    }

    /// The operator tries again to return money that its provider refused to return. `None` when it did not fail.
    pub async fn retry_refund(self: &Arc<Self>, id: PaymentId) -> LedgerResult<Option<Payment>> {
        let app = Arc::clone(self);
        self.to_the_end(async move {
            let payment = app.ledger.retry_refund(id, app.clock.now()).await?;
            if let Some(payment) = &payment {
                app.tell_order_of(payment.id).await;
                app.refunds.wake();
            }
            Ok(payment)
        })
        .await
    }

    /// A hint: whoever misses it reads the order from the ledger.
    async fn tell_order_of(&self, payment: PaymentId) {
        let order = async {
            let Some(payment) = self.ledger.payment(payment).await? else { return Ok(None) };
            match payment.order {
                Some(order) => self.ledger.order(order).await,
                None => Ok(None),
            }
        };
        match order.await {
            Ok(order) => order.iter().for_each(|order| self.tell(order)),
            Err(error) => tracing::warn!(payment_id = %payment, %error, "a buyer could not be told"),
        }
    }
}

/// Whether a refund is of all the money. Ours always are; in a provider's console somebody may return a part.
fn is_whole(payment: &Payment, refund_id: Option<&str>, amount: RefundAmount) -> bool {
    let (RefundAmount::This(money) | RefundAmount::SoFar(money)) = amount;
    let all = money.currency == payment.money.currency && money.amount >= payment.money.amount;
    all || payment.refund_of(refund_id) != RefundOf::Nobody
}
