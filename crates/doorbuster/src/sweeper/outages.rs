//! When paying was impossible, as far as this process knows: the time it was away, and the times when the ledger could
//! not be written. When a provider does not answer, the port knows. All of it is written down, so that a start does not
//! forget it; whom it excuses is decided by `rules::deadline`.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rules::deadline::{Excuses, Outage, Span};
use rules::time::UnixMs;

use super::{RETRY_MAX, rest};
use crate::app::App;

/// A sign of life is written so often while anybody could pay: so much too long may an outage seem.
const ALIVE_EVERY: Duration = Duration::from_secs(5);

/// Outages that are kept in mind; the oldest is forgotten first.
const KEPT_MAX: usize = 256;

#[derive(Debug, Default)]
pub struct Outages(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    past: Vec<Outage>,
    /// Since when paying is impossible everywhere, if it is.
    since: Option<UnixMs>,
}

impl Outages {
    /// Paying is impossible from now on, if it was not before.
    pub fn began(&self, now: UnixMs) {
        self.0.lock().since.get_or_insert(now);
    }

    /// Paying is possible again.
    pub fn ended(&self, now: UnixMs) {
        let mut known = self.0.lock();
        if let Some(from) = known.since.take() {
            known.keep([Outage::everywhere(Span { from, until: now })]);
        }
    }

    /// All of them until now, the present one too.
    #[must_use]
    pub fn until(&self, now: UnixMs) -> Vec<Outage> {
        let known = self.0.lock();
        let present = known.since.map(|from| Outage::everywhere(Span { from, until: now }));
        known.past.iter().cloned().chain(present).collect()
    }
}

impl Known {
    fn keep(&mut self, outages: impl IntoIterator<Item = Outage>) {
        self.past.extend(outages);
        self.past.drain(..self.past.len().saturating_sub(KEPT_MAX));
    }
}

impl App {
    /// Who is excused for not having paid by now: no strike for those. The sandbox takes no money, so that it is no choice
    /// beside a real provider.
    #[must_use]
    pub fn excuses(&self, now: UnixMs) -> Excuses {
        Excuses::of(self.all_outages(now), self.port.real_names())
    }

    /// All times in which paying was impossible, here or at a provider.
    fn all_outages(&self, now: UnixMs) -> Vec<Outage> {
        let mut outages = self.outages.until(now);
        outages.extend(self.port.outages(now));
        outages
    }
}

/// Counts the time before this start as an outage. Nobody is closed, and so nobody struck, before that is known.
pub(super) async fn begin(app: &App) {
    let now = app.clock.now();
    loop {
        match app.ledger.note_start(now).await {
            Ok(outages) => return app.outages.0.lock().keep(outages),
            Err(error) => {
                tracing::warn!(%error, "the time before this start could not be noted; trying again");
            }
        }
        rest(app, RETRY_MAX).await;
    }
}

/// The last sign of life: the outage until the next start begins now. One that lasts is written down as far as it goes.
pub(super) async fn end(app: &App) {
    let now = app.clock.now();
    if let Err(error) = app.ledger.note_alive(now, app.all_outages(now)).await {
        tracing::warn!(%error, "the end could not be noted; the outage will seem longer than it is");
    }
}

/// Signs of life, and the outages that are told with them.
#[derive(Debug, Default)]
pub(super) struct Heartbeat {
    last: Option<Instant>,
    /// Outages that are over and written down.
    written: HashSet<Outage>,
}

impl Heartbeat {
    /// To be called whenever the ledger has answered. An outage that is over is written at once, one that lasts with
    /// every sign of life. Without either, and without anybody who could pay, nothing is written.
    pub(super) async fn beat(&mut self, app: &App, somebody_may_pay: bool) {
        let now = app.clock.now();
        app.outages.ended(now);
        let is_due = somebody_may_pay && self.last.is_none_or(|last| last.elapsed() >= ALIVE_EVERY);
        // Whatever reaches until now lasts, or ended in this very moment and is over the next time.
        let (lasting, over): (Vec<_>, Vec<_>) =
            app.all_outages(now).into_iter().partition(|outage| outage.span.until >= now);
        let mut unwritten: Vec<Outage> =
            over.iter().filter(|outage| !self.written.contains(outage)).cloned().collect();
        if unwritten.is_empty() && !is_due {
            return;
        }
        unwritten.extend(lasting);
        match app.ledger.note_alive(now, unwritten).await {
            Ok(()) => {
                self.last = Some(app.clock.instant());
                self.written = over.into_iter().collect();
            }
            Err(error) => {
                tracing::warn!(%error, "a sign of life could not be written; trying again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_lasts_from_its_first_sign_to_its_end() {
        let outages = Outages::default();
        outages.ended(UnixMs(1));
        assert_eq!(outages.until(UnixMs(2)), []);
        outages.began(UnixMs(10));
        outages.began(UnixMs(20));
        let outage = |until| Outage::everywhere(Span { from: UnixMs(10), until: UnixMs(until) });
        assert_eq!(outages.until(UnixMs(25)), [outage(25)]);
        outages.ended(UnixMs(30));
        outages.ended(UnixMs(40));
        assert_eq!(outages.until(UnixMs(50)), [outage(30)]);
    }

    #[test]
    fn only_so_many_are_kept_in_mind() {
        let outages = Outages::default();
        for at in 0..1_000 {
            outages.began(UnixMs(at));
            outages.ended(UnixMs(at + 1));
        }
        let kept = outages.until(UnixMs(1_000));
        assert_eq!((kept.len(), kept[0].span.from), (KEPT_MAX, UnixMs(1_000 - 256)));
    }
}
