//! The audits nobody asks for: every minute while a sale is open, less often where one takes long, and once after it, also
//! when nobody was there to see it close. Owns when; not what.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rules::id::SaleId;
use rules::sale::{Phase, Sale, SaleState};
use rules::time::UnixMs;
use rules::wire::{AuditRequest, AuditState, AuditView};

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

/// One after the end of a sale that could not be made is tried again no sooner.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

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
    // Those that close while the missed ones are looked for are not among them.
    let mut looked_at = app.clock.now();
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
        let now = app.clock.now();
        let sales = Sales::seen(app, looked_at, now);
        looked_at = now;
        let Some(due) = watch.due(&sales, app.clock.instant()) else { continue };
        let began = app.clock.instant();
        let made = app.audit(AuditRequest { sale_id: due.of, ..AuditRequest::default() }).await;
        let ended = app.clock.instant();
        watch.took(&due, ended.saturating_duration_since(began));
        if made.is_none_or(|made| made.state == AuditState::Failed) {
            tracing::warn!("an audit was due and could not be made; it is due again in its turn");
            watch.not_made(due, ended);
        }
    }
}

/// The sales that a look finds.
#[derive(Debug, Default)]
struct Sales {
    open: Vec<SaleId>,
    /// Those that may have been open at some time since the last look: while an audit is made nobody looks.
    since: Vec<SaleId>,
}

impl Sales {
    fn seen(app: &App, last: UnixMs, now: UnixMs) -> Self {
        let catalogue = app.catalogue.read();
        let known = || catalogue.sales.values().map(|card| &card.sale).filter(|sale| is_public(sale.state));
        let is_open = |sale: &&Sale| sale.phase(now) == Phase::Open && sale.state != SaleState::Ended;
        let was_open = |sale: &&Sale| sale.window.opens_at <= now && sale.window.closes_at >= last;
        let ids = |sale: &Sale| sale.id;
        Self {
            open: known().filter(is_open).map(ids).collect(),
            since: known().filter(was_open).map(ids).collect(),
        }
    }
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

/// An audit that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Due {
    /// The only sale that is over; else it is one of everything.
    of: Option<SaleId>,
    /// The sales that are over and wait for it.
    over: Vec<SaleId>,
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
    /// Sales that are over and had their audit, as long as a look may still find that they were open.
    done: HashSet<SaleId>,
}

impl Watch {
    fn new(every: Duration, after: Duration, now: Instant) -> Self {
        let (took, sales, done) = (Duration::ZERO, HashMap::new(), HashSet::new());
        Self { every, after, last: now, took, sales, done }
    }

    /// An audit that was due took so long, whether or not it could be made: what it cost it has cost.
    const fn took(&mut self, due: &Due, took: Duration) {
        if due.of.is_none() {
            self.took = took;
        }
    }

    /// It was not made. Who waited for it waits for another one.
    fn not_made(&mut self, due: Due, now: Instant) {
        let since = now + AGAIN_AFTER.saturating_sub(self.after);
        due.over.into_iter().for_each(|sale| self.is_over(sale, since));
    }

    /// From the beginning of one audit of everything to the next.
    fn apart(&self) -> Duration {
        self.every.max(self.took.saturating_mul(APART_TIMES).min(APART_MAX))
    }

    /// A sale is over and must be audited once more.
    fn is_over(&mut self, sale: SaleId, now: Instant) {
        self.sales.insert(sale, Some(now));
    }

    fn due(&mut self, sales: &Sales, now: Instant) -> Option<Due> {
        for sale in &sales.open {
            self.sales.insert(*sale, None);
        }
        self.done.retain(|sale| sales.since.contains(sale) && !sales.open.contains(sale));
        for sale in sales.since.iter().filter(|sale| !self.done.contains(sale)) {
            self.sales.entry(*sale).or_insert(None);
        }
        let over = self.take_over(&sales.open, now);
        self.done.extend(&over);
        let is_time = if sales.open.is_empty() {
            // The first one of a sale comes a while after its opening: before that there is nothing to see.
            (self.last, self.took) = (now, Duration::ZERO);
            false
        } else {
            now.saturating_duration_since(self.last) >= self.apart()
        };
        if is_time {
            self.last = now;
        }
        match *over {
            [] if !is_time => None,
            [sale] if !is_time => Some(Due { of: Some(sale), over }),
            _ => Some(Due { of: None, over }),
        }
    }

    /// Sales that have been over for long enough.
    fn take_over(&mut self, open: &[SaleId], now: Instant) -> Vec<SaleId> {
        let (after, mut over) = (self.after, Vec::new());
        self.sales.retain(|sale, closed| {
            if open.contains(sale) {
                return true;
            }
            let since = *closed.get_or_insert(now);
            let is_due = now >= since + after;
            if is_due {
                over.push(*sale);
            }
            !is_due
        });
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    const SALE: SaleId = SaleId(7);
    const OTHER: SaleId = SaleId(8);

    fn watch(start: Instant) -> Watch {
        Watch::new(Duration::from_secs(60), Duration::from_secs(10), start)
    }

    fn open(sales: &[SaleId]) -> Sales {
        Sales { open: sales.to_vec(), since: sales.to_vec() }
    }

    fn of_everything(over: &[SaleId]) -> Due {
        Due { of: None, over: over.to_vec() }
    }

    fn of_one(sale: SaleId) -> Due {
        Due { of: Some(sale), over: vec![sale] }
    }

    #[test]
    fn every_minute_of_a_sale_and_once_after_it() {
        let start = Clock::system().instant();
        let mut watch = watch(start);
        let mut made = Vec::new();
        for second in 0..400_u64 {
            let sales = if (100..290).contains(&second) { open(&[SALE]) } else { Sales::default() };
            made.extend(watch.due(&sales, start + Duration::from_secs(second)).map(|due| (second, due)));
        }
        let all = || of_everything(&[]);
        assert_eq!(made, [(159, all()), (219, all()), (279, all()), (300, of_one(SALE))]);
    }

    #[test]
    fn an_audit_that_takes_long_comes_less_often_until_the_sale_is_over() {
        let start = Clock::system().instant();
        let mut watch = watch(start);
        let mut made = Vec::new();
        for second in 0..1_700_u64 {
            let sales = if second < 1_300 { open(&[SALE]) } else { open(&[OTHER]) };
            let sales = if second == 1_300 { Sales::default() } else { sales };
            let at = start + Duration::from_secs(second);
            let Some(due) = watch.due(&sales, at) else { continue };
            made.push(second);
            match made.len() {
                2 => watch.took(&due, Duration::from_secs(20)),
                3 | 6 => watch.took(&due, Duration::from_secs(100)),
                7 => watch.took(&due, Duration::from_secs(200)),
                _ => watch.took(&due, Duration::from_secs(5)),
            }
        }
        // The tenth is the one after the end of the first sale; the other sale begins anew.
        assert_eq!(
            made,
            [
                60, 120, 320, 560, 620, 680, 920, 1_160, 1_220, 1_280, 1_310, 1_360, 1_420, 1_480, 1_540,
                1_600, 1_660
            ]
        );
    }

    #[test]
    fn many_that_are_over_are_audited_together_and_again_when_that_failed() {
        let start = Clock::system().instant();
        let at = |second| start + Duration::from_secs(second);
        let mut watch = watch(start);
        watch.is_over(SALE, start);
        watch.is_over(OTHER, start);
        let none = Sales::default();
        assert_eq!(watch.due(&none, at(9)), None);
        let mut due = watch.due(&none, at(10)).unwrap();
        due.over.sort();
        assert_eq!(due, of_everything(&[SALE, OTHER]));
        watch.not_made(due, at(12));
        assert_eq!(watch.due(&none, at(21)), None);
        assert_eq!(watch.due(&none, at(22)).map(|due| (due.of, due.over.len())), Some((None, 2)));
        assert_eq!(watch.due(&none, at(40)), None);
    }

    #[test]
    fn one_that_cannot_be_made_is_not_tried_all_the_time() {
        let start = Clock::system().instant();
        let at = |second| start + Duration::from_secs(second);
        let mut watch = Watch::new(Duration::from_secs(60), Duration::ZERO, start);
        watch.is_over(SALE, start);
        let none = Sales::default();
        let due = watch.due(&none, at(1)).unwrap();
        watch.not_made(due, at(2));
        assert_eq!(watch.due(&none, at(11)), None);
        assert_eq!(watch.due(&none, at(12)), Some(of_one(SALE)));
        let during = open(&[SALE]);
        let due = watch.due(&during, at(72)).unwrap();
        watch.took(&due, Duration::from_secs(20));
        watch.not_made(due, at(92));
        assert_eq!(watch.due(&during, at(271)), None);
        assert_eq!(watch.due(&during, at(272)), Some(of_everything(&[])));
    }

    #[test]
    fn a_sale_that_opened_and_closed_while_nobody_looked_is_audited_once() {
        let start = Clock::system().instant();
        let mut watch = watch(start);
        let mut made = Vec::new();
        for second in 0..100_u64 {
            // One that was ended early: that it was open at some time can be seen for as long as its window lasts.
            let since = if (20..80).contains(&second) { vec![SALE] } else { Vec::new() };
            let sales = Sales { open: Vec::new(), since };
            made.extend(watch.due(&sales, start + Duration::from_secs(second)).map(|due| (second, due)));
        }
        assert_eq!(made, [(30, of_one(SALE))]);
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
