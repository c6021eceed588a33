//! Orders that somebody is paying when their time is over: the provider is asked, and what it says is weighed by
//! `rules::deadline`. Keeps in memory whom was asked about and what was heard; forgetting it is harmless.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use rules::deadline::{Answer, Asked, Due, OnTheWay, PROVIDER_ASKED_FOR_MS, due};
use rules::id::OrderId;
use rules::time::UnixMs;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{LOOK_EVERY, nap_after};
use crate::app::App;
use crate::crash;
use crate::ledger::LedgerResult;
use crate::ledger::money::{Lapsed, Overdue, Payment};
use crate::telemetry::metrics::Inquiry;

/// Questions under way at once. A provider that is down takes five seconds for each.
const ASKED_AT_ONCE: usize = 256;

/// Orders about which is asked, waited or decided at once; further ones wait for the next look.
const UNDER_WAY_MAX: usize = 100_000;

/// Closings handed to the ledger at once: those that wait together share a commit.
const CLOSED_AT_ONCE: usize = 64;

/// Orders read at a time.
const PAGE: u32 = 1_000;

/// A provider that answers with an error is asked again after this, while there is time.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);

pub(super) async fn ask_at_deadlines(app: &Arc<App>) {
    let mut asker = Asker {
        app,
        at_once: Arc::new(Semaphore::new(ASKED_AT_ONCE)),
        known: HashMap::new(),
        asking: JoinSet::new(),
    };
    while !app.shutdown.is_cancelled() {
        let now = app.clock.now();
        if let Err(error) = asker.look(now).await {
            tracing::warn!(%error, "orders that are being paid could not be looked after; trying again");
        }
        let nap = nap_after(app, now).await.unwrap_or(LOOK_EVERY);
        let until = tokio::time::Instant::from_std(app.clock.instant()) + nap;
        asker.hear(until).await;
    }
}

struct Asker<'a> {
    app: &'a Arc<App>,
    at_once: Arc<Semaphore>,
    /// What was heard so far of each order that is overdue.
    known: HashMap<OrderId, Inquest>,
    asking: JoinSet<(OrderId, Asked)>,
}

#[derive(Clone, Copy, Debug)]
struct Inquest {
    pay_by: UnixMs,
    asked: Asked,
}

impl Inquest {
    fn is_over(self, now: UnixMs) -> bool {
        due(now, self.pay_by, OnTheWay::Started(self.asked)) == Due::Close
    }
}

impl Asker<'_> {
    /// Looks at everything that is overdue: asks about what is new, closes what has waited long enough, forgets the rest.
    async fn look(&mut self, now: UnixMs) -> LedgerResult<()> {
        let (mut seen, mut after) = (HashSet::new(), None);
        loop {
            let page = self.app.ledger.overdue(now, after, PAGE).await?;
            let is_full = page.len() >= usize::try_from(PAGE).unwrap_or(usize::MAX);
            after = page.last().map(Overdue::place);
            for overdue in page {
                seen.insert(overdue.order.id);
                self.take_up(overdue);
            }
            if !is_full {
                break;
            }
        }
        self.known.retain(|order, _| seen.contains(order));
        self.close_those_over(now).await;
        Ok(())
    }

    /// Whether it is new. Its question waits for its turn in a task of its own.
    fn take_up(&mut self, Overdue { order, payment }: Overdue) {
        if self.known.contains_key(&order.id) || self.known.len() >= UNDER_WAY_MAX {
            return;
        }
        let pay_by = order.pay_by.unwrap_or(order.created_at);
        self.known.insert(order.id, Inquest { pay_by, asked: Asked::NotYet });
        let (app, at_once) = (Arc::clone(self.app), Arc::clone(&self.at_once));
        self.asking.spawn(async move {
            let _turn = at_once.acquire().await;
            (order.id, ask(&app, &payment).await)
        });
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
            for (order, asked) in answers.flatten() {
                if let Some(inquest) = self.known.get_mut(&order) {
                    inquest.asked = asked;
                }
            }
            self.close_those_over(self.app.clock.now()).await;
        }
    }

    /// What is decided is forgotten; if it is still there at the next look, it is asked about again.
    async fn close_those_over(&mut self, now: UnixMs) {
        let over: Vec<(OrderId, Asked)> = self
            .known
            .iter()
            .filter(|(_, inquest)| inquest.is_over(now))
            .map(|(order, inquest)| (*order, inquest.asked))
            .collect();
        for (order, _) in &over {
            self.known.remove(order);
        }
        futures_util::stream::iter(over)
            .for_each_concurrent(CLOSED_AT_ONCE, async |(order, asked)| {
                if let Err(error) = close(self.app, order, asked).await {
                    self.app.stop_if_unknown(&error);
                    tracing::warn!(order_id = %order, %error, "an unpaid order could not be closed; trying again");
                }
            })
            .await;
    }
}

/// Asks until there is an answer, or for as long as a provider is asked.
async fn ask(app: &App, payment: &Payment) -> Asked {
    let since = app.clock.now();
    let patience = Duration::from_millis(PROVIDER_ASKED_FOR_MS.unsigned_abs());
    let answer = tokio::time::timeout(patience, async {
        loop {
            if let Some(answer) = app.port.ask(payment, app.clock.now()).await {
                return answer;
            }
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
        }
    });
    let answer = answer.await.ok();
    app.metrics.inquiries.inc(match answer {
        Some(Answer::Paid) => Inquiry::Paid,
        Some(Answer::NotPaid) => Inquiry::NotPaid,
        None => Inquiry::None,
    });
    match answer {
        Some(answer) => Asked::Answered { answer, at: app.clock.now() },
        None => Asked::Since(since),
    }
}

/// Closes one order, in the ledger, at the gate, and its payment at the provider.
async fn close(app: &Arc<App>, order: OrderId, asked: Asked) -> LedgerResult<()> {
    let now = app.clock.now();
    match app.ledger.close_asked(order, asked, app.all_outages(now), now).await? {
        Lapsed::Closed { released, payment } => {
            crash::point("sweeper.lapsed");
            app.note_strikes(std::slice::from_ref(&*released));
            app.give_back(&released);
            payment.into_iter().for_each(|payment| app.close_at_provider(*payment));
            super::note_lag(app, Some(&released), now);
        }
        Lapsed::NotNow(Due::Settle) => app.captures.wake(),
        Lapsed::NotNow(Due::NotBefore(_) | Due::Ask | Due::Close) => {}
        // It was paid or cancelled while its provider was asked.
        Lapsed::NotUnpaid(_) | Lapsed::NotFound => {}
    }
    Ok(())
}
