//! The audits nobody asks for: every minute while a sale is open, less often where one takes long, and once after it, also
//! when nobody was there to see it close. Owns when; not what.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rules::id::SaleId;
use rules::sale::{Phase, Sale, SaleState};
use rules::time::UnixMs;
use rules::wire::{AuditRequest, AuditView};

use crate::app::App;
use crate::catalogue::is_public;
use crate::ledger::LedgerResult;

/// How often is looked whether an audit is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// From the beginning of an audit to the next it is so many times as long as that audit took, at least: of a night with
/// millions of orders one would otherwise be at work half of the time.
const APART_TIMES: u32 = 10;

/// It is never longer than that, though: operators are told to raise an alarm after five minutes without a clean one.
const APART_MAX: Duration = Duration::from_secs(240);

/// Reports that are read at once, at the start: one may be long.
const REPORTS_AT_ONCE: u32 = 20;

/// Works until the process ends.
pub async fn run(app: Arc<App>) {
    let shutdown = app.shutdown.clone();
    shutdown.run_until_cancelled(watch(&app)).await;
}

async fn watch(app: &Arc<App>) {
    let settings = &app.settings.audit;
    let (every, after) =
        (Duration::from_secs(settings.every_s.into()), Duration::from_secs(settings.after_s.into()));
    if every.is_zero() {
        return;
    }
    let mut watch = Watch::new(every, after, app.clock.instant());
    match missed(app).await {
        Ok(missed) => missed.into_iter().for_each(|sale| watch.is_over(sale, app.clock.instant())),
        Err(error) => {
            tracing::warn!(%error, "sales that were not audited after their end could not be looked for")
        }
    }
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let open = open_sales(app);
        for due in watch.due(&open, app.clock.instant()) {
            let sale_id = match due {
                Due::All => None,
                Due::After(sale) => Some(sale),
            };
            let began = app.clock.instant();
            if app.audit(AuditRequest { sale_id, ..AuditRequest::default() }).await.is_none() {
                tracing::warn!("an audit was due and too many are waiting; it is due again in its turn");
                sale_id.into_iter().for_each(|sale| watch.is_over(sale, app.clock.instant()));
            }
            if due == Due::All {
                watch.took(app.clock.instant().saturating_duration_since(began));
            }
        }
    }
}

fn open_sales(app: &App) -> Vec<SaleId> {
    let now = app.clock.now();
    let catalogue = app.catalogue.read();
    let is_open = |sale: &Sale| sale.phase(now) == Phase::Open && sale.state != SaleState::Ended;
    catalogue.sales.values().filter(|card| is_open(&card.sale)).map(|card| card.sale.id).collect()
}

/// Sales that are over and were not audited since: the process ended before it could, or was not there.
async fn missed(app: &App) -> LedgerResult<Vec<SaleId>> {
    let mut over = over_sales(app);
    let mut before = None;
    while !over.is_empty() {
        let (audits, next) = app.audits(before, REPORTS_AT_ONCE).await?;
        audits.iter().for_each(|audit| audited(&mut over, audit));
        let Some(next) = next else { break };
        before = Some(next);
    }
    Ok(over.into_values().map(|(sale, _)| sale).collect())
}

/// By id, so that it is always the same order: sales that are over, and from when on an audit is one after their end.
/// Nobody wrote down when one was ended early; it counts as ended now, and is looked at once more.
fn over_sales(app: &App) -> BTreeMap<u128, (SaleId, UnixMs)> {
    let now = app.clock.now();
    let catalogue = app.catalogue.read();
    let over = catalogue.sales.values().map(|card| &card.sale);
    let over = over.filter(|sale| is_public(sale.state) && sale.phase(now) == Phase::Closed);
    let after = |sale: &Sale| sale.window.closes_at.min(now).plus_s(app.settings.audit.after_s);
    over.map(|sale| (sale.id.0, (sale.id, after(sale)))).collect()
}

/// Takes out what this audit has looked at after its end.
fn audited(over: &mut BTreeMap<u128, (SaleId, UnixMs)>, audit: &AuditView) {
    let covers = |sale: SaleId| audit.offer_id.is_none() && audit.sale_id.is_none_or(|only| only == sale);
    over.retain(|_, (sale, after)| !(covers(*sale) && audit.started_at >= *after));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Everything, because a sale is open.
    All,
    /// One sale, because it is over.
    After(SaleId),
}

/// What was seen so far.
#[derive(Debug)]
struct Watch {
    every: Duration,
    after: Duration,
    /// When the last audit of everything began, and how long one took.
    last: Instant,
    took: Duration,
    /// Sales that were open, and since when they are not.
    sales: HashMap<SaleId, Option<Instant>>,
}

impl Watch {
    fn new(every: Duration, after: Duration, now: Instant) -> Self {
        Self { every, after, last: now, took: Duration::ZERO, sales: HashMap::new() }
    }

    /// So long did an audit of everything take.
    const fn took(&mut self, took: Duration) {
        self.took = took;
    }

    /// From the beginning of one audit of everything to the next.
    fn apart(&self) -> Duration {
        self.every.max(self.took.saturating_mul(APART_TIMES).min(APART_MAX))
    }

    /// A sale is over and must be audited once more.
    fn is_over(&mut self, sale: SaleId, now: Instant) {
        self.sales.insert(sale, Some(now));
    }

    fn due(&mut self, open: &[SaleId], now: Instant) -> Vec<Due> {
        let mut due = Vec::new();
        for sale in open {
            self.sales.insert(*sale, None);
        }
        let after = self.after;
        self.sales.retain(|sale, closed| {
            if open.contains(sale) {
                return true;
            }
            let since = *closed.get_or_insert(now);
            let is_due = now.saturating_duration_since(since) >= after;
            if is_due {
                due.push(Due::After(*sale));
            }
            !is_due
        });
        if due.len() > 1 {
            due = vec![Due::All];
        }
        if open.is_empty() {
            // The first one of a sale comes a while after its opening: before that there is nothing to see.
            self.last = now;
        } else if now.saturating_duration_since(self.last) >= self.apart() {
            self.last = now;
            if due != [Due::All] {
                due.push(Due::All);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn every_minute_of_a_sale_and_once_after_it() {
        let start = Clock::system().instant();
        let (every, after) = (Duration::from_secs(60), Duration::from_secs(10));
        let mut watch = Watch::new(every, after, start);
        let sale = SaleId(7);
        let mut made = Vec::new();
        for second in 0..400_u64 {
            let open: &[SaleId] = if (100..290).contains(&second) { &[sale] } else { &[] };
            let due = watch.due(open, start + Duration::from_secs(second));
            made.extend(due.into_iter().map(|due| (second, due)));
        }
        let expected = [(159, Due::All), (219, Due::All), (279, Due::All), (300, Due::After(sale))];
        assert_eq!(made, expected);
    }

    #[test]
    fn an_audit_that_takes_long_comes_less_often() {
        let start = Clock::system().instant();
        let mut watch = Watch::new(Duration::from_secs(60), Duration::from_secs(10), start);
        let mut made = Vec::new();
        for second in 0..650_u64 {
            if watch.due(&[SaleId(7)], start + Duration::from_secs(second)).contains(&Due::All) {
                made.push(second);
                let took = match made.len() {
                    2 => 20,
                    3 => 100,
                    _ => 5,
                };
                watch.took(Duration::from_secs(took));
            }
        }
        assert_eq!(made, [60, 120, 320, 560, 620]);
    }

    #[test]
    fn many_that_are_over_are_audited_together() {
        let start = Clock::system().instant();
        let (every, after) = (Duration::from_secs(60), Duration::from_secs(10));
        let mut watch = Watch::new(every, after, start);
        for sale in 1..=3 {
            watch.is_over(SaleId(sale), start);
        }
        assert_eq!(watch.due(&[], start + Duration::from_secs(9)), []);
        assert_eq!(watch.due(&[], start + Duration::from_secs(10)), [Due::All]);
        assert_eq!(watch.due(&[], start + Duration::from_secs(20)), []);
    }

    #[test]
    fn only_an_audit_that_began_after_the_end_and_saw_the_whole_sale_counts() {
        let view = |sale: Option<u128>, offer: Option<u128>, started_at| {
            let (sale_id, offer_id) = (sale.map(SaleId), offer.map(rules::id::OfferId));
            let request = AuditRequest { sale_id, offer_id, repair: false };
            crate::auditor::report::begun(rules::id::AuditId(1), request, UnixMs(started_at))
        };
        let left = |audit: AuditView| {
            let mut over = BTreeMap::from([(7, (SaleId(7), UnixMs(100)))]);
            audited(&mut over, &audit);
            over.len()
        };
        for (audit, expected) in [
            (view(None, None, 100), 0),
            (view(Some(7), None, 100), 0),
            (view(None, None, 99), 1),
            (view(Some(8), None, 200), 1),
            (view(None, Some(1), 200), 1),
        ] {
            assert_eq!(left(audit.clone()), expected, "{audit:?}");
        }
    }
}
