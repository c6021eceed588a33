//! The auditor (对账): compares gate, journal, ledger, money and events while everybody goes on, says what does not fit,
//! and mends what is proven safe. Owns when it looks and what it says; the promises are in `rules`, the reading of the
//! ledger in `ledger`, the way to the outside in `edge` and `cli`.

/// One comparison of gate and ledger.
pub mod cut;

/// The data folder of a server that does not run.
pub mod folder;

/// Mending.
pub mod mend;

/// What is said about an audit, and to whom.
mod report;

/// Every minute of a sale, and once after it.
pub mod watch;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rules::id::{AuditId, OfferId, timed};
use rules::time::UnixMs;
use rules::wire::{AuditRequest, AuditState, AuditView};
use tokio::sync::oneshot;

use self::cut::{Cut, Proven};
use self::mend::{Mended, Mender};
use crate::app::App;
use crate::crash;
use crate::ledger::audit::Scope;
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
        let mut seen = Seen::default();
        seen.add(&first);
        let proven = if first.needs_another() {
            let apart = Duration::from_millis(self.settings.audit.apart_ms.into());
            if self.shutdown.run_until_cancelled(tokio::time::sleep(apart)).await.is_none() {
                return Err(LedgerError::Unavailable("the server is ending".into()));
            }
            let second = Cut::take(self, scope).await?;
            seen.add(&second);
            cut::sure(self, cut::confirm(&first.doubts, second.doubts)).await?
        } else {
            cut::alone(first.doubts)
        };
        let mended = if begun.repair { self.mend(&proven).await } else { Mended::default() };
        seen.held_up = seen.held_up.max(proven.held_up).max(mended.held_up);
        let view = report::done(begun, &seen, &proven, &mended, self.clock.now());
        report::tell(self, &view, &seen, &proven, &mended).await?;
        Ok(view)
    }

    /// What is mended is found in order by the next audit, should the process die before this one is kept.
    async fn mend(self: &Arc<Self>, proven: &Proven) -> Mended {
        let mended = Mender(self).mend_all(proven).await;
        crash::point("audit.mended");
        mended
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
#[derive(Clone, Debug, Default)]
struct Seen {
    orders: u64,
    offers: Vec<OfferId>,
    cuts: u32,
    held_up: Duration,
}

impl Seen {
    fn add(&mut self, cut: &Cut) {
        self.orders = cut.orders;
        self.offers.clone_from(&cut.offers);
        self.cuts += 1;
        self.held_up = self.held_up.max(cut.held_up);
    }
}
