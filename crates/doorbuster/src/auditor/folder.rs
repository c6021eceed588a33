//! The audit of a data folder whose server does not run. Nothing is under way there, so one cut is exact; there is no
//! gate, and the journal is held against the ledger instead. What a server would refuse to start with is found here.

use std::collections::HashMap;

use anyhow::{bail, ensure};
use rules::audit::Kind;
use rules::id::{AuditId, OfferId, timed};
use rules::time::UnixMs;
use rules::wire::{AuditRequest, AuditView};

use super::mend::Mended;
use super::{Seen, cut, report, scope_of};
use crate::app::{JOURNAL_FILE, ensure_unused, lock_data_dir};
use crate::clock::Clock;
use crate::config::Settings;
use crate::ledger::audit::{Doubt, Doubts, LedgerLook, Recounted, Remedy, Scope};
use crate::ledger::{LedgerResult, SqliteLedger};
use crate::queue::{JournalLook, Misfit};

/// Audits the folder, and keeps the report there. A folder in use is refused.
pub async fn audit(settings: &Settings, request: AuditRequest, clock: &Clock) -> anyhow::Result<AuditView> {
    let path = settings.ledger_path();
    ensure!(path.exists(), "there is no ledger at {}", path.display());
    let _lock = lock_data_dir(&settings.data_dir)?;
    let journal = JournalLook::at(&settings.data_dir.join(JOURNAL_FILE))?;
    let ledger = SqliteLedger::open(&path, None, rand::random())?;
    let audited = examine(&ledger, journal.as_ref(), request, clock).await;
    ledger.close();
    audited
}

/// The last reports that are kept in the folder, newest first; a look that changes nothing. A folder in use is refused.
pub async fn last(settings: &Settings, limit: u32) -> anyhow::Result<Vec<AuditView>> {
    let path = settings.ledger_path();
    ensure!(path.exists(), "there is no ledger at {}", path.display());
    ensure_unused(&settings.data_dir)?;
    let ledger = SqliteLedger::open_to_look(&path)?;
    let rows = ledger.audit_page(None, limit).await;
    ledger.close();
    Ok(rows?.iter().map(|(_, text)| report::read(text)).collect::<Result<_, _>>()?)
}

async fn examine(
    ledger: &SqliteLedger,
    journal: Option<&JournalLook>,
    request: AuditRequest,
    clock: &Clock,
) -> anyhow::Result<AuditView> {
    let now = clock.now();
    let begun = report::begun(AuditId(timed(now, rand::random())), request, now);
    let scope = scope_of(&request);
    if let Some(field) = ledger.unknown_in(scope).await? {
        bail!("{field} names nothing that there is in this folder");
    }
    let (look, ()) = ledger.look(scope, None, (), |(), _| ()).await?;
    let mut doubts = look.doubts.clone();
    doubts.append(against_journal(ledger, &look, journal, scope).await?);
    let proven = cut::alone(doubts);
    let mut mended = Mended::default();
    if request.repair {
        for doubt in &proven.doubts {
            match mend(ledger, &doubt.remedy, now).await {
                Ok(true) => {
                    mended.keys.insert(doubt.key());
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::error!(kind = %doubt.kind, about = doubt.about, %error, "an audit could not mend this");
                }
            }
        }
    }
    let offers = look.offers.iter().map(|offer| offer.counters.offer).collect();
    let seen = Seen { orders: look.orders, offers, cuts: 1, ..Seen::default() };
    let view = report::done(begun, &seen, &proven, &mended, clock.now());
    report::keep(ledger, &view, &seen, &proven, &mended).await?;
    Ok(view)
}

async fn against_journal(
    ledger: &SqliteLedger,
    look: &LedgerLook,
    journal: Option<&JournalLook>,
    scope: Scope,
) -> anyhow::Result<Doubts> {
    let mut doubts = Doubts::default();
    let empty = JournalLook::default();
    let journal = journal.unwrap_or(&empty);
    // A journal that has never been opened takes the ledger's name when it is.
    let name = journal.incarnation.as_deref().unwrap_or(ledger.incarnation());
    match Misfit::between(name, journal.last_seq, ledger.incarnation(), look.cursor) {
        Some(Misfit::Foreign) => {
            doubts.extend(scope.is_all().then(|| Doubt::new(Kind::JournalForeign, None, 0)));
            return Ok(doubts);
        }
        Some(Misfit::Short) if scope.is_all() => {
            let doubt = Doubt::new(Kind::JournalShort, None, 0).with("cursor", look.cursor);
            doubts.push(doubt.with("journal_ends_at", journal.last_seq));
        }
        Some(Misfit::Short) | None => {}
    }
    let mut left: HashMap<OfferId, u32> = look
        .offers
        .iter()
        .map(|offer| (offer.counters.offer, offer.counters.stock.saturating_sub(offer.counters.live_units)))
        .collect();
    for (seq, claim) in &journal.claims {
        let doubt = |kind| {
            Doubt::new(kind, Some(claim.offer), i64::from(claim.quantity))
                .about("order_id", claim.order)
                .with("buyer", claim.buyer.as_str())
                .with("journal_seq", seq)
        };
        let known = left.get_mut(&claim.offer);
        if known.is_none() && !scope.is_all() {
            continue;
        }
        let recorded = ledger.seq_of(claim.order).await?;
        let needs_units = match (claim.revives, recorded) {
            (None, recorded) => recorded.is_none(),
            // Late money: dealt with as soon as its order has moved on.
            (Some(revive), recorded) => recorded.is_none_or(|seq| seq == revive.closing_seq),
        };
        match known {
            _ if recorded.is_none() && (*seq <= look.cursor || claim.revives.is_some()) => {
                doubts.push(doubt(Kind::ClaimWithoutOrder));
            }
            _ if *seq <= look.cursor || !needs_units => {}
            Some(left) if *left >= claim.quantity => *left -= claim.quantity,
            Some(left) => doubts.push(doubt(Kind::ClaimUnrecordable).with("units_left", *left)),
            None => doubts.push(doubt(Kind::ClaimUnrecordable).with("offer", "unknown")),
        }
    }
    Ok(doubts)
}

/// The verbs that need no server. `true` when it is right now.
async fn mend(ledger: &SqliteLedger, remedy: &Remedy, now: UnixMs) -> LedgerResult<bool> {
    match remedy {
        Remedy::Recount(offer) => Ok(ledger.recount(*offer, now).await? == Recounted::Right),
        Remedy::Lift { buyer, strike } => {
            ledger.lift_strike(buyer.clone(), *strike, now).await?;
            Ok(true)
        }
        Remedy::HoldBack(webhook) => {
            ledger.hold_back_webhook(*webhook).await?;
            Ok(true)
        }
        Remedy::Drop(webhook) => {
            ledger.drop_deliveries_without_event(*webhook, now).await?;
            Ok(true)
        }
        // Of a gate that is not there, and for workers that are not there.
        Remedy::None
        | Remedy::Level(_)
        | Remedy::Release { .. }
        | Remedy::Forget { .. }
        | Remedy::Seed { .. }
        | Remedy::Preheat(_)
        | Remedy::Settle(_) => Ok(false),
    }
}
