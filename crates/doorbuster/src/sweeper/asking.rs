//! Orders that somebody is paying when their time is over: the provider is asked, and what it says is weighed by
//! `rules::deadline`. Keeps in memory whom was asked about and what was heard; forgetting it is harmless.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{FutureExt as _, StreamExt as _};
use parking_lot::Mutex;
use rules::deadline::{Answer, Asked, Due, OnTheWay, PROVIDER_ASKED_FOR_MS, due};
use rules::id::OrderId;
use rules::time::UnixMs;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::aside::Aside;
use super::{look_every, nap_after};
use crate::app::App;
use crate::crash;
use crate::ledger::money::{DuePlace, Lapsed, Notice, Overdue, Payment};
use crate::ledger::{LedgerError, LedgerResult};
use crate::payment::port::{Heard, Word};
use crate::payment::providers::CallError;
use crate::telemetry::metrics::{Inquiry, MoneyOutcome};

/// Questions under way at once, to one provider. One that is down takes five seconds for each.
const ASKED_AT_ONCE: usize = 256;

/// How long an order waits for its turn to be asked about, when very many are due at once and the provider answers. With
/// the question itself, so long at most an order is open beyond its deadline without a word.
const TURN_AWAITED_FOR: Duration = Duration::from_secs(25);

/// After so many questions in a row without an answer a provider is taken to be down.
const SILENT_MAX: u32 = 16;

/// A provider that is down is not asked for so long: what is due meanwhile closes as if it had been asked in vain.
const REST: Duration = Duration::from_secs(5);

/// Orders about which is asked, waited or decided at once; further ones wait for the next look.
const UNDER_WAY_MAX: usize = 100_000;

/// Closings handed to the ledger at once: those that wait together share a commit.
const CLOSED_AT_ONCE: usize = 64;

/// Orders read at a time.
const PAGE: u32 = 1_000;

/// A look is for orders that are due since the one before, and so much before that: a payment may have been started in
/// the last moment. Everything that is overdue is read again only so often.
const LOOK_BACK_MS: i64 = 10_000;
const LOOK_AT_ALL_EVERY: Duration = Duration::from_secs(30);

/// A provider that answers with an error is asked again after this, while there is time.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

pub(super) async fn ask_at_deadlines(app: &Arc<App>) {
    let mut asker = Asker {
        app,
        lines: HashMap::new(),
        known: HashMap::new(),
        asking: JoinSet::new(),
        aside: Aside::default(),
        looked: None,
    };
    while !app.shutdown.is_cancelled() {
        let now = app.clock.now();
        if let Err(error) = asker.look(now).await {
            tracing::warn!(%error, "orders that are being paid could not be looked after; trying again");
        }
        let nap = nap_after(app, now).await.unwrap_or(look_every(app));
        let until = tokio::time::Instant::from_std(app.clock.instant()) + nap;
        asker.hear(until).await;
    }
}

struct Asker<'a> {
    app: &'a Arc<App>,
    /// By provider.
    lines: HashMap<String, Arc<Line>>,
    /// What was heard so far of each order that is overdue.
    known: HashMap<OrderId, Inquest>,
    asking: JoinSet<(OrderId, Reply)>,
    /// Those that cannot be closed because of what is written about them.
    aside: Aside<OrderId>,
    looked: Option<Looked>,
}

/// Up to which moment was looked, and when at everything.
#[derive(Clone, Copy, Debug)]
struct Looked {
    to: UnixMs,
    at_all: Instant,
}

#[derive(Clone, Debug)]
struct Inquest {
    pay_by: UnixMs,
    reply: Reply,
}

/// What came of asking.
#[derive(Clone, Debug)]
struct Reply {
    asked: Asked,
    /// The capture that the provider told of, if it did.
    told: Option<Box<Notice>>,
}

impl Inquest {
    /// Whether there is something to be done but wait.
    fn is_over(&self, now: UnixMs) -> bool {
        let due = due(now, self.pay_by, OnTheWay::Started(self.reply.asked));
        matches!(due, Due::Close | Due::TakeAnswer)
    }
}

impl Asker<'_> {
    /// Looks at what is overdue: asks about what is new, closes what has waited long enough. Once in a while at all of
    /// it, to forget what is no longer there.
    async fn look(&mut self, now: UnixMs) -> LedgerResult<()> {
        let instant = self.app.clock.instant();
        self.aside.let_go(now);
        let before = self.looked.filter(|looked| instant.duration_since(looked.at_all) < LOOK_AT_ALL_EVERY);
        let mut after = before.map(|looked| DuePlace { pay_by: looked.to.plus_ms(-LOOK_BACK_MS), no: 0 });
        let (mut seen, mut took_all) = (HashSet::new(), true);
        loop {
            let page = self.app.ledger.overdue(now, after, PAGE).await?;
            let Some(last) = page.last() else { break };
            after = Some(last.place());
            for overdue in page {
                seen.insert(overdue.order.id);
                took_all &= self.take_up(overdue);
            }
        }
        if before.is_none() {
            self.known.retain(|order, _| seen.contains(order));
        }
        let at_all = before.map_or(instant, |looked| looked.at_all);
        self.looked = took_all.then_some(Looked { to: now, at_all });
        self.close_those_over(now).await;
        Ok(())
    }

    /// Begins to ask about it, if it is new. `false` when there is no room. Its question waits for its turn in a task of
    /// its own.
    fn take_up(&mut self, Overdue { order, payment }: Overdue) -> bool {
        if self.known.contains_key(&order.id) || self.aside.has(order.id) {
            return true;
        }
        if self.known.len() >= UNDER_WAY_MAX {
            return false;
        }
        let pay_by = order.pay_by.unwrap_or(order.created_at);
        let reply = Reply { asked: Asked::NotYet, told: None };
        self.known.insert(order.id, Inquest { pay_by, reply });
        let line = Arc::clone(self.lines.entry(payment.provider.clone()).or_default());
        let (app, since) = (Arc::clone(self.app), self.app.clock.now());
        self.asking.spawn(async move { (order.id, ask(&app, &line, &payment, since).await) });
        true
    }

    /// Takes answers until it is time to look again.
    async fn hear(&mut self, until: tokio::time::Instant) {
        loop {
            let first = tokio::select! {
                Some(first) = self.asking.join_next() => first,
                () = tokio::time::sleep_until(until) => return,
                () = self.app.shutdown.cancelled() => return,
            };
            let answers = std::iter::once(first).chain(std::iter::from_fn(|| self.asking.try_join_next()));
            // No task of these fails: what panics in it is an order without an answer.
            for (order, reply) in answers.flatten() {
                if let Some(inquest) = self.known.get_mut(&order) {
                    inquest.reply = reply;
                }
            }
            self.close_those_over(self.app.clock.now()).await;
        }
    }

    /// What is decided is forgotten. What could not be decided now is tried again, without asking again.
    async fn close_those_over(&mut self, now: UnixMs) {
        let over: Vec<(OrderId, Inquest)> =
            self.known.extract_if(|_, inquest| inquest.is_over(now)).collect();
        let app = self.app;
        let failed: Vec<(OrderId, Inquest, LedgerError)> = futures_util::stream::iter(over)
            .map(async |(order, inquest)| {
                let ended = close(app, order, &inquest.reply).await;
                ended.err().map(|error| (order, inquest, error))
            })
            .buffer_unordered(CLOSED_AT_ONCE)
            .filter_map(std::future::ready)
            .collect()
            .await;
        for (order, inquest, error) in failed {
            if error.is_of_the_content() && self.aside.put(order, now) {
                super::note_set_aside(app, Some(order), &error);
            } else {
                tracing::warn!(order_id = %order, %error, "an unpaid order could not be closed; trying again");
                self.known.insert(order, inquest);
            }
        }
    }
}

/// Asks about one order. Without an answer, `since` is when the order was taken up: it has waited since then.
async fn ask(app: &App, line: &Line, payment: &Payment, since: UnixMs) -> Reply {
    let word = or_none(line.ask(app, payment)).await;
    let at = app.clock.now();
    let (inquiry, asked, told) = match word {
        Some(Word::Paid(told)) => (Inquiry::Paid, Asked::Answered { answer: Answer::Paid, at }, Some(told)),
        Some(Word::NotPaid) => (Inquiry::NotPaid, Asked::Answered { answer: Answer::NotPaid, at }, None),
        None => (Inquiry::None, Asked::Since(since), None),
    };
    app.metrics.inquiries.inc(inquiry);
    Reply { asked, told }
}

/// A question that panics is one without an answer: its order must not stay open for it.
async fn or_none<T>(question: impl Future<Output = Option<T>>) -> Option<T> {
    AssertUnwindSafe(question).catch_unwind().await.unwrap_or_else(|_| {
        tracing::error!("asking a provider panicked; the order goes on as if there were no answer");
        None
    })
}

/// Everybody who is asked about at one provider.
#[derive(Debug)]
struct Line {
    turns: Semaphore,
    silence: Mutex<Silence>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    in_a_row: u32,
    rests_until: Option<Instant>,
}

impl Default for Line {
    fn default() -> Self {
        Self { turns: Semaphore::new(ASKED_AT_ONCE), silence: Mutex::default() }
    }
}

impl Line {
    /// Asks until there is an answer, or for as long as a provider is asked. Nothing when there is none, when it is
    /// nobody's turn for too long, or at once while the provider is taken to be down.
    async fn ask(&self, app: &App, payment: &Payment) -> Option<Word> {
        let _turn = tokio::time::timeout(TURN_AWAITED_FOR, self.turns.acquire()).await.ok()?.ok()?;
        if self.silence.lock().rests(app.clock.instant()) {
            return None;
        }
        let patience = Duration::from_millis(PROVIDER_ASKED_FOR_MS.unsigned_abs());
        let said = tokio::time::timeout(patience, ask_until_answered(app, payment)).await;
        match &said {
            Ok(Some(_)) => self.silence.lock().note(true, app.clock.instant()),
            Err(_) => self.silence.lock().note(false, app.clock.instant()),
            // It was not asked, or could not answer for this one.
            Ok(None) => {}
        }
        said.ok().flatten()
    }
}

impl Silence {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }

    /// After a rest a single question without an answer begins the next one.
    fn note(&mut self, answered: bool, now: Instant) {
        if answered {
            *self = Self::default();
            return;
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self.in_a_row >= SILENT_MAX {
            self.rests_until = Some(now + REST);
        }
    }
}

/// Nothing when the provider cannot be asked about this payment: asking again would be the same.
async fn ask_until_answered(app: &App, payment: &Payment) -> Option<Word> {
    loop {
        let error = match app.port.ask(payment, app.clock.now()).await {
            Ok(word) => return Some(word),
            Err(error) => error,
        };
        let provider = payment.provider.as_str();
        tracing::warn!(payment_id = %payment.id, provider, %error, "a provider was asked and did not answer");
        if matches!(error, CallError::Impossible(_) | CallError::Refused { .. }) {
            return None;
        }
        tokio::time::sleep(ASK_AGAIN_AFTER).await;
    }
}

/// Closes one order, in the ledger, at the gate, and its payment at the provider; or lets it be paid by the provider's
/// word.
async fn close(app: &Arc<App>, order: OrderId, reply: &Reply) -> LedgerResult<()> {
    let now = app.clock.now();
    match app.ledger.close_asked(order, reply.asked, app.excuses(now), now).await? {
        Lapsed::Closed { released, payment } => {
            crash::point("sweeper.lapsed");
            app.note_strikes(std::slice::from_ref(&*released));
            app.give_back(&released);
            app.closings.wake_for(payment.as_deref());
            super::note_lag(app, Some(&released), now);
        }
        Lapsed::NotNow(Due::TakeAnswer) => take_answer(app, order, reply).await?,
        Lapsed::NotNow(Due::Settle) => app.captures.wake(),
        Lapsed::NotNow(Due::NotBefore(_) | Due::Ask | Due::Close) => {}
        // It was paid or cancelled while its provider was asked.
        Lapsed::NotUnpaid(_) | Lapsed::NotFound => {}
    }
    Ok(())
}

/// The provider called it paid, and its callback has not come for so long that it will not. A shop whose callbacks get
/// lost must know: every one of its buyers waits.
async fn take_answer(app: &Arc<App>, order: OrderId, reply: &Reply) -> LedgerResult<()> {
    let Some(told) = &reply.told else { return Ok(()) };
    let provider = told.told.key().provider();
    tracing::error!(order_id = %order, provider, "paid by the provider's word; its callback did not come: look at the address and the secrets of its callbacks");
    app.metrics.money.inc(MoneyOutcome::Unnotified);
    app.settle(Heard::Notice((**told).clone())).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[tokio::test]
    async fn a_question_that_panics_is_one_without_an_answer() {
        assert_eq!(or_none(async { Some(1) }).await, Some(1));
        assert_eq!(or_none::<()>(async { panic!("a defect") }).await, None);
    }

    #[test]
    fn a_provider_that_is_silent_rests_until_it_answers() {
        let (mut silence, now) = (Silence::default(), Clock::system().instant());
        for _ in 1..SILENT_MAX {
            silence.note(false, now);
        }
        assert!(!silence.rests(now));
        silence.note(true, now);
        for _ in 1..SILENT_MAX {
            silence.note(false, now);
        }
        assert!(!silence.rests(now), "an answer begins the count again");
        silence.note(false, now);
        assert!(silence.rests(now) && !silence.rests(now + REST));
        silence.note(false, now + REST);
        assert!(silence.rests(now + REST), "it is still silent");
        silence.note(true, now + REST);
        assert!(!silence.rests(now + REST));
    }
}
