//! What is said about an audit: the report that is kept, the event for the shop, the log and the metrics.

use std::collections::HashSet;

use rules::id::AuditId;
use rules::time::UnixMs;
use rules::wire::{AuditFinding, AuditRequest, AuditState, AuditView};

use super::Seen;
use crate::app::App;
use crate::ledger::audit::{Doubt, KeptAudit, Scope, ToldFinding};
use crate::ledger::sqlite::SqliteLedger;
use crate::ledger::{LedgerError, LedgerResult};
use crate::telemetry::metrics::{AuditOutcome, Metrics};

/// Findings that a report lists; of more, it says how many.
const LISTED_MAX: usize = 200;

/// Findings that become events and lines of the log at once: a broken table must not flood the shop.
const TOLD_MAX: usize = 50;

pub fn begun(id: AuditId, request: AuditRequest, now: UnixMs) -> AuditView {
    AuditView {
        id,
        state: AuditState::Running,
        repair: request.repair,
        sale_id: request.sale_id,
        offer_id: request.offer_id,
        started_at: now,
        ended_at: None,
        clean: None,
        findings: Vec::new(),
        more: 0,
        orders: 0,
        cuts: 0,
        held_up_us: 0,
        problem: None,
    }
}

pub fn failed(begun: AuditView, error: &LedgerError, now: UnixMs) -> AuditView {
    let problem = Some(error.to_string());
    AuditView { state: AuditState::Failed, ended_at: Some(now), problem, ..begun }
}

pub fn done(
    begun: AuditView,
    seen: Seen,
    doubts: &[Doubt],
    mended: &HashSet<String>,
    now: UnixMs,
) -> AuditView {
    let findings = doubts.iter().take(LISTED_MAX).map(|doubt| finding(doubt, mended.contains(&doubt.key())));
    AuditView {
        state: AuditState::Done,
        ended_at: Some(now),
        clean: Some(doubts.is_empty()),
        findings: findings.collect(),
        more: u64::try_from(doubts.len().saturating_sub(LISTED_MAX)).unwrap_or(u64::MAX),
        orders: seen.orders,
        cuts: seen.cuts,
        held_up_us: u64::try_from(seen.held_up.as_micros()).unwrap_or(u64::MAX),
        ..begun
    }
}

fn finding(doubt: &Doubt, repaired: bool) -> AuditFinding {
    let evidence: Vec<String> =
        doubt.evidence.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let detail = if evidence.is_empty() {
        doubt.kind.means().to_owned()
    } else {
        format!("{} ({})", doubt.kind.means(), evidence.join(", "))
    };
    AuditFinding {
        kind: doubt.kind,
        offer_id: doubt.offer,
        units: doubt.units,
        detail,
        evidence: doubt.evidence.clone(),
        repaired,
        todo: (!repaired).then(|| doubt.kind.todo().to_owned()),
    }
}

/// A report as it was kept.
pub fn read(text: &str) -> LedgerResult<AuditView> {
    serde_json::from_str(text).map_err(|error| LedgerError::Failed(error.into()))
}

/// Keeps the report, with an event for every finding that the audit before did not have.
pub async fn keep(
    ledger: &SqliteLedger,
    view: &AuditView,
    doubts: &[Doubt],
) -> LedgerResult<Vec<AuditFinding>> {
    let before: HashSet<String> = ledger.known_findings().await?.into_iter().collect();
    let keys: Vec<String> = doubts.iter().map(Doubt::key).collect();
    let fresh = view.findings.iter().zip(&keys).filter(|(_, key)| !before.contains(*key));
    let fresh: Vec<AuditFinding> = fresh.map(|(finding, _)| finding.clone()).take(TOLD_MAX).collect();
    let told = fresh.iter().map(|finding| ToldFinding::of(view.id, finding));
    let everything = Scope { sale: view.sale_id, offer: view.offer_id }.is_all();
    // Who looked at a part knows nothing new about the rest.
    let kept: HashSet<String> = if everything { HashSet::new() } else { before.clone() };
    let kept = KeptAudit {
        id: view.id,
        ended_at: view.ended_at.unwrap_or(view.started_at),
        clean: view.clean == Some(true),
        known: kept.into_iter().chain(keys).collect::<HashSet<_>>().into_iter().collect(),
        report: serde_json::to_string(view).map_err(|error| LedgerError::Failed(error.into()))?,
        told: told.collect(),
    };
    ledger.keep_audit(kept).await?;
    Ok(fresh)
}

/// Keeps an audit that is done, and raises the alarm for what is new in it.
pub async fn tell(app: &App, view: &AuditView, doubts: &[Doubt]) -> LedgerResult<()> {
    let everything = Scope { sale: view.sale_id, offer: view.offer_id }.is_all();
    count(&app.metrics, view, doubts.len(), everything);
    if view.clean == Some(true) {
        tracing::info!(audit_id = %view.id, orders = view.orders, cuts = view.cuts, "the audit is clean");
    }
    for finding in keep(&app.ledger, view, doubts).await? {
        tracing::error!(
            audit_id = %view.id, kind = %finding.kind, offer_id = ?finding.offer_id, units = finding.units,
            repaired = finding.repaired, "an audit found a discrepancy: {}", finding.detail
        );
    }
    Ok(())
}

fn count(metrics: &Metrics, view: &AuditView, findings: usize, everything: bool) {
    let clean = view.clean == Some(true);
    metrics.audits.inc(if clean { AuditOutcome::Clean } else { AuditOutcome::Findings });
    let repaired = view.findings.iter().filter(|finding| finding.repaired).count();
    if everything {
        metrics.audit_findings.set(i64::try_from(findings.saturating_sub(repaired)).unwrap_or(i64::MAX));
    }
    if clean && everything {
        let seconds = view.ended_at.unwrap_or(view.started_at).0 / 1_000;
        metrics.audit_last_clean_timestamp_seconds.set(seconds);
    }
}
