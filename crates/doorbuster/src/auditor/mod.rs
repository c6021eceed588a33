//! The auditor (对账): compares gate, journal, ledger, money and events while everybody goes on, says what does not fit,
//! and mends what is proven safe. Owns when it looks and what it says; the promises are in `rules`, the reading of the
//! ledger in `ledger`, the way to the outside in `edge` and `cli`.

/// One comparison of gate and ledger.
pub mod cut;

/// The data folder of a server that does not run.
pub mod folder;

/// Mending.
mod mend;

/// What is said about an audit, and to whom.
mod report;

/// Every minute of a sale, and once after it.
pub mod watch;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rules::audit::Cuts;
use rules::id::{AuditId, timed};
use rules::time::UnixMs;
use rules::wire::{AuditRequest, AuditState, AuditView};
use tokio::sync::oneshot;

use self::cut::Cut;
use self::mend::Mender;
use crate::app::App;
use crate::ledger::audit::{Doubt, Scope};
use crate::ledger::{LedgerError, LedgerResult};
use crate::telemetry::metrics::AuditOutcome;

/// Audits that wait for their turn or run, at most: one reads the whole ledger.
pub const AUDITS_AT_ONCE_MAX: usize = 8;

/// Audits that could not be finished and are remembered, at most; the others are in the ledger.
const FAILED_KEPT: usize = 16;

/// What all audits of a process share.
#[derive(Debug)]
pub struct Auditor {
    /// One audit at a time: two repairs at once are one after the other.
    turn: tokio::sync::Mutex<()>,
    desk: Mutex<Desk>,
    started_at: UnixMs,
}

/// Audits that the ledger does not have.
#[derive(Debug, Default)]
struct Desk {
    running: Vec<AuditView>,
    failed: VecDeque<AuditView>,
}

impl Auditor {
    #[must_use]
    pub fn new(started_at: UnixMs) -> Self {
        Self { turn: tokio::sync::Mutex::default(), desk: Mutex::default(), started_at }
    }

    fn ended(&self, view: &AuditView) {
        let mut desk = self.desk.lock();
        desk.running.retain(|running| running.id != view.id);
        if view.state == AuditState::Failed {
            desk.failed.truncate(FAILED_KEPT - 1);
            desk.failed.push_front(view.clone());
        }
    }
}

/// An audit that has begun.
#[derive(Debug)]
pub struct Begun {
    pub view: AuditView,
    /// Told when it has ended.
    pub ended: oneshot::Receiver<AuditView>,
}

impl App {
    /// Begins an audit. It goes on whatever becomes of the caller; `None` when too many wait already.
    pub fn begin_audit(self: &Arc<Self>, request: AuditRequest) -> Option<Begun> {
        let now = self.clock.now();
        let view = report::begun(AuditId(timed(now, rand::random())), request, now);
        {
            let mut desk = self.auditor.desk.lock();
            if desk.running.len() >= AUDITS_AT_ONCE_MAX {
                return None;
            }
            desk.running.push(view.clone());
        }
        let (send, ended) = oneshot::channel();
        let (app, begun) = (Arc::clone(self), view.clone());
        let work = async move {
            // The one who asked may be gone; the audit is kept all the same.
            let _ = send.send(app.make_audit(begun).await);
        };
        self.tasks.spawn_on(work, &self.runtime);
        Some(Begun { view, ended })
    }

    /// An audit from beginning to end.
    pub async fn audit(self: &Arc<Self>, request: AuditRequest) -> Option<AuditView> {
        self.begin_audit(request)?.ended.await.ok()
    }

    /// An audit by its id, running or ended.
    pub async fn audit_view(&self, id: AuditId) -> LedgerResult<Option<AuditView>> {
        let here = {
            let desk = self.auditor.desk.lock();
            desk.running.iter().chain(&desk.failed).find(|view| view.id == id).cloned()
        };
        match here {
            Some(view) => Ok(Some(view)),
            None => self.ledger.audit_report(id).await?.map(|text| report::read(&text)).transpose(),
        }
    }

    /// Audits that have ended, newest first, and the number to go on from.
    pub async fn audits(
        &self,
        before: Option<u64>,
        limit: u32,
    ) -> LedgerResult<(Vec<AuditView>, Option<u64>)> {
        let mut rows = self.ledger.audit_page(before, limit.saturating_add(1)).await?;
        let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
        let more = rows.len() > wanted;
        rows.truncate(wanted);
        let next = rows.last().filter(|_| more).map(|(no, _)| *no);
        let views = rows.iter().map(|(_, text)| report::read(text)).collect::<LedgerResult<_>>()?;
        Ok((views, next))
    }

    async fn make_audit(self: &Arc<Self>, begun: AuditView) -> AuditView {
        let _turn = self.auditor.turn.lock().await;
        let began = self.clock.instant();
        let view = match self.examine(begun.clone()).await {
            Ok(view) => view,
            Err(error) => self.note_failure(begun, &error),
        };
        self.metrics.audit_seconds.observe(began.elapsed().as_secs_f64());
        self.auditor.ended(&view);
        view
    }

    async fn examine(self: &Arc<Self>, begun: AuditView) -> LedgerResult<AuditView> {
        let scope = Scope { sale: begun.sale_id, offer: begun.offer_id };
        let first = Cut::take(self, scope).await?;
        let mut seen = Seen::of(&first);
        let mut doubts = first.doubts;
        if doubts.iter().any(|doubt| doubt.kind.cuts() == Cuts::Two) {
            let apart = Duration::from_millis(self.settings.audit.apart_ms.into());
            if self.shutdown.run_until_cancelled(tokio::time::sleep(apart)).await.is_none() {
                return Err(LedgerError::Unavailable("the server is ending".into()));
            }
            let second = Cut::take(self, scope).await?;
            seen.add(&second);
            doubts = cut::sure(self, confirm(&doubts, second.doubts)).await?;
        }
        let mended = if begun.repair { Mender(self).mend_all(&doubts).await } else { HashSet::new() };
        let view = report::done(begun, seen, &doubts, &mended, self.clock.now());
        report::tell(self, &view, &doubts).await?;
        Ok(view)
    }

    fn note_failure(&self, begun: AuditView, error: &LedgerError) -> AuditView {
        tracing::error!(audit_id = %begun.id, %error, "an audit could not be finished");
        self.metrics.audits.inc(AuditOutcome::Failed);
        report::failed(begun, error, self.clock.now())
    }
}

/// What a request wants to be looked at.
#[must_use]
pub fn scope_of(request: &AuditRequest) -> Scope {
    Scope { sale: request.sale_id, offer: request.offer_id }
}

/// What an audit has looked at.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    orders: u64,
    cuts: u32,
    held_up: Duration,
}

impl Seen {
    fn of(cut: &Cut) -> Self {
        let mut seen = Self::default();
        seen.add(cut);
        seen
    }

    fn add(&mut self, cut: &Cut) {
        self.orders = cut.orders;
        self.cuts += 1;
        self.held_up = self.held_up.max(cut.held_up);
    }
}

/// What two cuts prove: what one snapshot shows, in either of them; of the rest, what is the same in both.
#[must_use]
pub fn confirm(first: &[Doubt], second: Vec<Doubt>) -> Vec<Doubt> {
    let before: HashSet<String> = first.iter().map(Doubt::key).collect();
    let now: HashSet<String> = second.iter().map(Doubt::key).collect();
    let alone = |doubt: &Doubt| doubt.kind.cuts() == Cuts::One;
    let gone = first.iter().filter(|doubt| alone(doubt) && !now.contains(&doubt.key())).cloned();
    let mut proven: Vec<Doubt> = gone.collect();
    proven.extend(second.into_iter().filter(|doubt| alone(doubt) || before.contains(&doubt.key())));
    proven
}

#[cfg(test)]
mod tests {
    use rules::audit::Kind;
    use rules::id::{OfferId, OrderId};

    use super::*;

    fn doubt(kind: Kind, order: u128, seq: u32) -> Doubt {
        Doubt::new(kind, Some(OfferId(1)), 1).about("order_id", OrderId(order)).about("seq", seq)
    }

    #[test]
    fn what_is_on_its_way_is_no_finding_and_what_one_snapshot_shows_is() {
        let stuck = doubt(Kind::GateEndedOrder, 1, 3);
        let first = [stuck.clone(), doubt(Kind::GateEndedOrder, 2, 3), doubt(Kind::LiveCounter, 9, 1)];
        let second = vec![
            stuck.clone(),
            // The same order, but it has ended once more since: something else is on its way.
            doubt(Kind::GateEndedOrder, 2, 5),
            doubt(Kind::GateMissingOrder, 3, 2),
            doubt(Kind::EventGap, 4, 2),
        ];
        let proven: Vec<(Kind, String)> =
            confirm(&first, second).into_iter().map(|doubt| (doubt.kind, doubt.about)).collect();
        let kinds: Vec<Kind> = proven.iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds, [Kind::LiveCounter, Kind::GateEndedOrder, Kind::EventGap]);
        assert_eq!(proven[1].1, stuck.about);
    }
}
