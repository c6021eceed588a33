//! What a buyer does with an order that is won: pay, pay late, pay twice, cancel, or walk away. It speaks the payment
//! part of the public contract with the sandbox provider; a server without payments is noted, not blamed.

use std::time::Duration;

use rules::id::OrderId;
use rules::order::State;
use rules::wire::{Code, OrderView};
use serde::Deserialize;

use crate::connection::Request;
use crate::crowd::count;
use crate::history::{Call, Seen, What};
use crate::person::{GaveUp, Person, RETRY_MAX, read};
use crate::push;
use crate::scenario::Ending;

/// How long after its deadline late money comes: beyond the leeway of any sweeper that keeps its time.
const LATE_BY: Duration = Duration::from_secs(2);

#[derive(Deserialize)]
struct PaymentGiven {
    payment_id: String,
}

/// What came of asking.
enum Answer<T> {
    Given(T),
    /// The server does not know payments.
    Unknown,
    /// It was refused; the history says how.
    Refused,
}

impl Person {
    /// Does what this person does with an order.
    pub(crate) async fn end(&mut self, won: Seen) -> Result<(), GaveUp> {
        let ending = self.choices.ending;
        if ending == Ending::WalkAway || won.state != State::AwaitingPayment {
            return Ok(());
        }
        tokio::time::sleep(self.choices.decides_after).await;
        match ending {
            Ending::WalkAway => Ok(()),
            Ending::Cancel => self.cancel(won.id).await,
            Ending::Pay => self.pay(won, 1, false).await,
            Ending::PayTwice => self.pay(won, 2, false).await,
            Ending::PayLate => self.pay(won, 1, true).await,
        }
    }

    async fn cancel(&mut self, id: OrderId) -> Result<(), GaveUp> {
        let path = format!("/api/v1/orders/{id}/cancel");
        let asked = self.scene.clock.instant();
        if let Answer::Given(order) = self.ask_for::<OrderView>(Call::Cancel, id, &path, b"{}").await? {
            let order = Seen::from(&order);
            count(&self.scene.progress.cancelled);
            self.note(asked, What::Cancelled { order });
            push::listen_on(self, order).await;
        }
        Ok(())
    }

    async fn pay(&mut self, won: Seen, times: u32, late: bool) -> Result<(), GaveUp> {
        let id = won.id;
        let Some(payment_id) = self.start_payment(id).await? else { return Ok(()) };
        if times > 1 && self.start_payment(id).await?.is_none() {
            return Ok(());
        }
        if late && !self.wait_until_late(&won).await {
            return Ok(());
        }
        let path = format!("/sandbox/payments/{payment_id}");
        let body = serde_json::json!({ "outcome": "paid", "times": times, "delay_ms": 0 }).to_string();
        let asked = self.scene.clock.instant();
        let sent = self.ask_for::<serde::de::IgnoredAny>(Call::Sandbox, id, &path, body.as_bytes()).await?;
        if !matches!(sent, Answer::Given(_)) {
            return Ok(());
        }
        self.note(asked, What::Paid { order: id, payment_id, times, late });
        let settled = |seen: &Seen| !matches!(seen.state, State::Queued | State::AwaitingPayment);
        let Some(seen) = self.watch_until(id, Some(won.seq), false, settled).await? else { return Ok(()) };
        if seen.state == State::Paid {
            count(&self.scene.progress.paid);
        }
        push::listen_on(self, seen).await;
        Ok(())
    }

    /// `None`: there is no payment, and the history says why.
    async fn start_payment(&mut self, id: OrderId) -> Result<Option<String>, GaveUp> {
        let path = format!("/api/v1/orders/{id}/payment");
        let body = br#"{"provider":"sandbox"}"#;
        let now = self.scene.clock.instant();
        match self.ask_for::<PaymentGiven>(Call::Payment, id, &path, body).await? {
            Answer::Given(PaymentGiven { payment_id }) => {
                let started = What::Payment { order: id, payment_id: payment_id.clone() };
                self.note(now, started);
                Ok(Some(payment_id))
            }
            Answer::Unknown => {
                count(&self.scene.progress.no_payment);
                self.note(now, What::NoPayment { order: id });
                Ok(None)
            }
            Answer::Refused => Ok(None),
        }
    }

    /// Whether it is late now. A deadline beyond everybody's patience is not waited for, and that is counted.
    async fn wait_until_late(&self, won: &Seen) -> bool {
        let wait = won.pay_by.map(|pay_by| self.until(pay_by) + LATE_BY);
        match wait.filter(|wait| *wait <= self.scene.settings.patience) {
            Some(wait) => {
                tokio::time::sleep(wait).await;
                true
            }
            None => {
                count(&self.scene.progress.not_late);
                false
            }
        }
    }

    /// Asks for something about an order that this person has just seen: where that is not found, the whole address is
    /// unknown to the server.
    async fn ask_for<T: for<'de> Deserialize<'de>>(
        &mut self,
        call: Call,
        order: OrderId,
        path: &str,
        body: &[u8],
    ) -> Result<Answer<T>, GaveUp> {
        let give_up_at = self.scene.clock.instant() + self.scene.settings.patience;
        loop {
            let (token, due) = (self.token(), self.scene.clock.instant());
            let reply = self.scene.ask(due, &Request::post(path, token.as_deref(), body)).await;
            if let Ok(heard) = &reply.result
                && is_unknown(call, heard.status)
            {
                return Ok(Answer::Unknown);
            }
            let refusal = match self.hear(call, None, Some(order), &reply) {
                Ok(heard) if call == Call::Sandbox && heard.body.is_empty() => {
                    return serde_json::from_str("null")
                        .map(Answer::Given)
                        .map_err(|e| GaveUp(e.to_string()));
                }
                Ok(heard) => return read(heard, call.words()).map(Answer::Given),
                Err(refusal) => refusal,
            };
            let again = matches!(refusal.status, 0 | 429 | 500..) || refusal.code == Code::NotYet.as_str();
            if !again {
                return Ok(Answer::Refused);
            }
            self.pause(refusal.wait.min(RETRY_MAX), give_up_at, "no answer about the order").await?;
        }
    }
}

/// Whether the server has no such call; 422: it knows payments, but has not set the sandbox up.
const fn is_unknown(call: Call, status: u16) -> bool {
    matches!((call, status), (Call::Payment | Call::Sandbox, 404 | 405 | 501) | (Call::Payment, 422))
}
