//! The till: a buyer's way to a provider, and what follows from what providers tell. The ledger decides and writes down;
//! here stands what must happen beside it: the provider's part, the buyer's socket, the units. Knows no HTTP of ours.
//!
//! Whatever follows a commit is a hint or is found again: a process that dies in between loses no money.

use std::sync::Arc;

use rules::buyer::BuyerId;
use rules::id::{OrderId, PaymentId, timed};
use rules::order::State;
use rules::payment::State as PaymentState;
use rules::wire::OrderView;

use super::port::{Beginning, Heard, Name};
use super::providers::{CallError, Device};
use crate::app::App;
use crate::crash;
use crate::desk::Awaited;
use crate::ledger::money::{
    Decided, NewPayment, Notice, Payment, PaymentStarted, RefundAsked, RefundEnd, Settled, Taken,
};
use crate::ledger::{LedgerResult, Order};
use crate::telemetry::metrics::MoneyOutcome;

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
    /// No provider of this name serves the order's sale; these do.
    NoSuchProvider {
        serving: Vec<&'static str>,
        why: NotServing,
    },
    /// The provider cannot take this payment; why.
    Unsuitable(&'static str),
    /// The provider did not answer. Nothing is lost; the same again goes on with the same payment.
    Unavailable,
    /// The provider said no.
    Refused,
}

/// Why a provider does not serve an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotServing {
    NotSetUp,
    /// The sandbox, where others than this machine come: it takes no money.
    RehearsalsOnly,
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
        let order = match self.await_verdict(id, buyer).await? {
            Awaited::NotFound => return Ok(PayAnswer::NotFound),
            Awaited::NotYet => return Ok(PayAnswer::NotYet),
            Awaited::Order(order) => order,
        };
        let sandbox = self.sandbox_serves(order.sale_id).then_some(Name::Sandbox.as_str());
        let not_serving = |why| {
            let serving = self.port.real_names().chain(sandbox).collect();
            Ok(PayAnswer::NoSuchProvider { serving, why })
        };
        let name = match self.port.named(provider) {
            Some(Name::Sandbox) if sandbox.is_none() => return not_serving(NotServing::RehearsalsOnly),
            Some(name) => name,
            None => return not_serving(NotServing::NotSetUp),
        };
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
                self.closings.wake_for(instead_of.as_deref());
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
                self.closings.wake_for(closed.as_deref());
            }
            Settled::RefundDue { payment, reason } => {
                tracing::info!(payment_id = %payment, reason = reason.as_str(), "money goes back");
                self.metrics.money.inc(MoneyOutcome::RefundDue);
                self.refunds.wake();
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
        let reviving = async move { app.revive(&order, payment).await };
        self.tasks.spawn_on(reviving, &self.runtime);
    }

    /// What follows from the end of a refund: units return, the buyer is told, a failure is an alarm.
    pub(crate) async fn follow_refund(self: &Arc<Self>, end: RefundEnd) {
        match end {
            RefundEnd::Done { payment, released } => {
                tracing::info!(payment_id = %payment.id, "money is back");
                self.metrics.money.inc(MoneyOutcome::Refunded);
                crash::point("till.refunded");
                match released {
                    Some(released) => self.give_back(&released),
                    None => self.tell_order_of(payment.id).await,
                }
            }
            RefundEnd::Failed { payment, order } => {
                let (provider, problem) = (payment.provider.as_str(), payment.problem.as_deref());
                tracing::error!(payment_id = %payment.id, provider, problem, "money could not be returned: somebody must look at it");
                self.metrics.money.inc(MoneyOutcome::RefundFailed);
                match order {
                    Some(order) => self.tell(&order),
                    None => self.tell_order_of(payment.id).await,
                }
            }
            RefundEnd::Before(_) | RefundEnd::NotFound => {}
            RefundEnd::Unasked(payment) => {
                let (state, back_elsewhere) = (payment.status.state.as_str(), payment.back_elsewhere);
                tracing::error!(payment_id = %payment.id, state, back_elsewhere, "a provider told of a refund that nobody asked for, or that had ended otherwise");
                self.metrics.money.inc(MoneyOutcome::Unasked);
            }
        }
    }

    /// The operator returns the money of a paid order, or tries again after a failure.
    pub async fn refund_order(
        self: &Arc<Self>,
        id: OrderId,
        restock: Option<bool>,
    ) -> LedgerResult<RefundAsked> {
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

    /// Tells the buyer how the order of this payment is now, and what becomes of money that goes back. A hint: whoever
    /// misses it reads the order from the ledger.
    async fn tell_order_of(&self, payment: PaymentId) {
        if !self.hub.has_anyone() {
            return;
        }
        let read = async {
            let Some(order) = self.ledger.payment(payment).await?.and_then(|payment| payment.order) else {
                return Ok(None);
            };
            let found = self.ledger.order_and_refunds(order).await?;
            let told = |(order, refunds): (Order, Vec<Payment>)| {
                let view = Arc::new(order.view_with(&refunds));
                (order.buyer, view)
            };
            LedgerResult::Ok(found.map(told))
        };
        if let Err(error) = self.hub.publish_read(read).await {
            tracing::warn!(payment_id = %payment, %error, "a buyer could not be told");
        }
    }
}
