//! What is said about an audit: the report that is kept, the event for the shop, the log and the metrics.

use std::collections::{HashMap, HashSet};

use rules::audit::Kind;
use rules::id::{AuditId, OfferId};
use rules::time::UnixMs;
use rules::wire::{AuditFinding, AuditRequest, AuditState, AuditView};

use super::Seen;
use super::cut::Proven;
use super::mend::Mended;
use crate::app::App;
use crate::ledger::audit::{Doubt, KeptAudit, Scope, ToldFinding};
use crate::ledger::sqlite::SqliteLedger;
use crate::ledger::{LedgerError, LedgerResult};
use crate::telemetry::metrics::{AuditOutcome, Metrics};

/// Findings that a report lists; of more, it says how many.
const LISTED_MAX: usize = 200;

/// Findings that become events and lines of the log at once: a broken table must not flood the shop. The next audit tells
/// the next ones.
const TOLD_MAX: usize = 50;

/// Findings that are remembered as told, at most. Beyond it, one may be told again.
const KNOWN_MAX: usize = 10_000;

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

pub fn done(begun: AuditView, seen: &Seen, proven: &Proven, mended: &Mended, now: UnixMs) -> AuditView {
    let listed = listed(&proven.doubts);
    let not_listed = u64::try_from(proven.doubts.len().saturating_sub(listed.len())).unwrap_or(u64::MAX);
    let findings = listed.into_iter().map(|doubt| finding(doubt, mended.keys.contains(&doubt.key())));
    AuditView {
        state: AuditState::Done,
        ended_at: Some(now),
        clean: Some(proven.doubts.is_empty()),
        findings: findings.collect(),
        more: not_listed.saturating_add(proven.more()),
        orders: seen.orders,
        cuts: seen.cuts,
        held_up_us: u64::try_from(seen.held_up.as_micros()).unwrap_or(u64::MAX),
        ..begun
    }
}

/// What a report lists: all, or of very many some of each kind.
fn listed(doubts: &[Doubt]) -> Vec<&Doubt> {
    ranked(doubts).into_iter().take(LISTED_MAX).collect()
}

/// Of very many, the first of each kind before the second of any, so that a thousand of one do not hide another.
fn ranked(doubts: &[Doubt]) -> Vec<&Doubt> {
    let mut so_far: HashMap<Kind, usize> = HashMap::new();
    let mut ranked: Vec<(usize, &Doubt)> = Vec::with_capacity(doubts.len());
    for doubt in doubts {
        let of_kind = so_far.entry(doubt.kind).or_default();
        ranked.push((if doubts.len() > LISTED_MAX { *of_kind } else { 0 }, doubt));
        *of_kind += 1;
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, doubt)| doubt).collect()
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

/// Keeps the report, with an event for every finding that was not told before, [`TOLD_MAX`] at most.
pub async fn keep(
    ledger: &SqliteLedger,
    view: &AuditView,
    seen: &Seen,
    proven: &Proven,
    mended: &Mended,
) -> LedgerResult<Vec<AuditFinding>> {
    let before: HashSet<String> = ledger.known_findings().await?.into_iter().collect();
    let fresh = fresh(proven, &before);
    let findings = fresh.iter().map(|doubt| finding(doubt, mended.keys.contains(&doubt.key())));
    let findings: Vec<AuditFinding> = findings.collect();
    let told = findings.iter().map(|finding| ToldFinding::of(view.id, finding));
    let kept = KeptAudit {
        id: view.id,
        ended_at: view.ended_at.unwrap_or(view.started_at),
        clean: view.clean == Some(true),
        known: known(view, seen, proven, mended, told_by_now(before, &fresh)),
        report: serde_json::to_string(view).map_err(|error| LedgerError::Failed(error.into()))?,
        told: told.collect(),
    };
    ledger.keep_audit(kept).await?;
    Ok(findings)
}

/// What is told now: also what the report does not list, once it is its turn.
fn fresh<'a>(proven: &'a Proven, before: &HashSet<String>) -> Vec<&'a Doubt> {
    let news = ranked(&proven.doubts).into_iter().filter(|doubt| !before.contains(&doubt.key()));
    news.take(TOLD_MAX).collect()
}

fn told_by_now(mut before: HashSet<String>, fresh: &[&Doubt]) -> HashSet<String> {
    before.extend(fresh.iter().map(|doubt| doubt.key()));
    before
}

/// What the next audit need not tell: what there is and was told, and, since who looked at a part knows nothing new about
/// the rest, what was told of that. What was mended is news if it is there again.
fn known(
    view: &AuditView,
    seen: &Seen,
    proven: &Proven,
    mended: &Mended,
    told: HashSet<String>,
) -> Vec<String> {
    let there: HashSet<String> = proven.doubts.iter().map(Doubt::key).collect();
    let looked_at: HashSet<OfferId> = seen.offers.iter().copied().collect();
    let everything = Scope { sale: view.sale_id, offer: view.offer_id }.is_all();
    let elsewhere = |key: &String| !Doubt::offer_of(key).is_some_and(|offer| looked_at.contains(&offer));
    let stays = |key: &String| match there.contains(key) {
        true => !mended.keys.contains(key),
        false => !everything && elsewhere(key),
    };
    told.into_iter().filter(stays).take(KNOWN_MAX).collect()
}

/// Keeps an audit that is done, and raises the alarm for what is new in it.
pub async fn tell(
    app: &App,
    view: &AuditView,
    seen: &Seen,
    proven: &Proven,
    mended: &Mended,
) -> LedgerResult<()> {
    count(&app.metrics, view, mended.keys.len());
    if view.clean == Some(true) {
        tracing::info!(audit_id = %view.id, orders = view.orders, cuts = view.cuts, "the audit is clean");
    }
    for finding in keep(&app.ledger, view, seen, proven, mended).await? {
        tracing::error!(
            audit_id = %view.id, kind = %finding.kind, offer_id = ?finding.offer_id, units = finding.units,
            repaired = finding.repaired, "an audit found a discrepancy: {}", finding.detail
        );
    }
    Ok(())
}

fn count(metrics: &Metrics, view: &AuditView, mended: usize) {
    let everything = Scope { sale: view.sale_id, offer: view.offer_id }.is_all();
    let clean = view.clean == Some(true);
    metrics.audits.inc(if clean { AuditOutcome::Clean } else { AuditOutcome::Findings });
    let whole = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    if everything {
        let found = whole(view.findings.len()).saturating_add_unsigned(view.more);
        metrics.audit_findings.set(found.saturating_sub(whole(mended)));
    }
    if clean && everything {
        let seconds = view.ended_at.unwrap_or(view.started_at).0 / 1_000;
        metrics.audit_last_clean_timestamp_seconds.set(seconds);
    }
}

#[cfg(test)]
mod tests {
    use rules::id::OrderId;

    use super::*;

    fn doubt(kind: Kind, offer: u128, order: u128) -> Doubt {
        Doubt::new(kind, Some(OfferId(offer)), 1).about("order_id", OrderId(order))
    }

    fn view(offer: Option<OfferId>) -> AuditView {
        let request = AuditRequest { offer_id: offer, ..AuditRequest::default() };
        begun(AuditId(1), request, UnixMs(0))
    }

    #[test]
    fn very_many_findings_of_one_kind_do_not_hide_another() {
        let mut proven = Proven::default();
        proven.doubts.extend((0..500).map(|order| doubt(Kind::UnpaidOverdue, 1, order)));
        proven.doubts.push(doubt(Kind::Oversold, 1, 0));
        let done = done(view(None), &Seen::default(), &proven, &Mended::default(), UnixMs(1));
        assert_eq!((done.findings.len(), done.more), (LISTED_MAX, 301));
        assert_eq!((done.findings[0].kind, done.findings[1].kind), (Kind::UnpaidOverdue, Kind::Oversold));
    }

    #[test]
    fn the_gauge_forgets_all_that_was_mended_also_what_is_not_listed() {
        let mut proven = Proven::default();
        proven.doubts.extend((0..500).map(|order| doubt(Kind::GateEndedOrder, 1, order)));
        let keys = proven.doubts.iter().skip(1).map(Doubt::key).collect();
        let mended = Mended { keys, ..Mended::default() };
        let view = done(view(None), &Seen::default(), &proven, &mended, UnixMs(1));
        let metrics = Metrics::new();
        count(&metrics, &view, mended.keys.len());
        assert_eq!(metrics.audit_findings.get(), 1);
    }

    #[test]
    fn an_audit_of_one_offer_forgets_what_is_gone_there_and_nothing_else() {
        let (gone, mended_now) = (doubt(Kind::Oversold, 1, 1), doubt(Kind::GateEndedOrder, 1, 2));
        let (stays, elsewhere) = (doubt(Kind::GateEndedOrder, 1, 3), doubt(Kind::Oversold, 2, 4));
        let nowhere = Doubt::new(Kind::CursorBehind, None, 0);
        let told = [&gone, &mended_now, &stays, &elsewhere, &nowhere].map(Doubt::key).into_iter().collect();
        let mut proven = Proven::default();
        proven.doubts.extend([mended_now.clone(), stays.clone()]);
        let mended = Mended { keys: HashSet::from([mended_now.key()]), ..Mended::default() };
        let seen = Seen { offers: vec![OfferId(1)], ..Seen::default() };
        let mut known = known(&view(Some(OfferId(1))), &seen, &proven, &mended, told);
        known.sort();
        let mut expected = [stays, elsewhere, nowhere].map(|doubt| doubt.key());
        expected.sort();
        assert_eq!(known, expected);
    }

    #[test]
    fn what_is_too_much_to_tell_at_once_is_told_by_the_next_audits() {
        let mut proven = Proven::default();
        proven.doubts.extend((0..320).map(|order| doubt(Kind::UnpaidOverdue, 1, order)));
        let (mut before, mut told, mut sizes) = (HashSet::new(), HashSet::new(), Vec::new());
        for _ in 0..8 {
            let fresh = fresh(&proven, &before);
            sizes.push(fresh.len());
            assert!(fresh.iter().all(|doubt| told.insert(doubt.key())), "nothing is told twice");
            let by_now = told_by_now(before, &fresh);
            before = known(&view(None), &Seen::default(), &proven, &Mended::default(), by_now)
                .into_iter()
                .collect();
        }
        assert_eq!(sizes, [50, 50, 50, 50, 50, 50, 20, 0]);
    }
}
