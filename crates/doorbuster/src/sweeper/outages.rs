//! When paying was impossible, as far as this process knows: the time it was away, and the times when the ledger could
//! not be written. When providers do not answer, the port knows. All of it is written down, so that a start does not
//! forget it.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rules::deadline::Outage;
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
    /// Since when paying is impossible, if it is.
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
            known.keep([Outage { from, until: now }]);
        }
    }

    /// All of them until now, the present one too.
    #[must_use]
    pub fn until(&self, now: UnixMs) -> Vec<Outage> {
        let known = self.0.lock();
        let present = known.since.map(|from| Outage { from, until: now });
        known.past.iter().copied().chain(present).collect()
    }
}

impl Known {
    fn keep(&mut self, outages: impl IntoIterator<Item = Outage>) {
        self.past.extend(outages);
        self.past.drain(..self.past.len().saturating_sub(KEPT_MAX));
    }
}

impl App {
    /// All times in which paying was impossible, whoever was to blame: no strike for those.
    #[must_use]
    pub fn all_outages(&self, now: UnixMs) -> Vec<Outage> {
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
            app.all_outages(now).into_iter().partition(|outage| outage.until >= now);
        let mut unwritten: Vec<Outage> =
            over.iter().copied().filter(|outage| !self.written.contains(outage)).collect();
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
        let present = Outage { from: UnixMs(10), until: UnixMs(25) };
        assert_eq!(outages.until(UnixMs(25)), [present]);
        let over = Outage { from: UnixMs(10), until: UnixMs(30) };
        outages.ended(UnixMs(30));
        outages.ended(UnixMs(40));
        assert_eq!(outages.until(UnixMs(50)), [over]);
    }

    #[test]
    fn only_so_many_are_kept_in_mind() {
        let outages = Outages::default();
        for at in 0..1_000 {
            outages.began(UnixMs(at));
            outages.ended(UnixMs(at + 1));
        }
        let kept = outages.until(UnixMs(1_000));
        assert_eq!((kept.len(), kept[0].from), (KEPT_MAX, UnixMs(1_000 - 256)));
    }
}
