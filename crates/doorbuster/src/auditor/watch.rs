//! The audits nobody asks for: every minute while a sale is open, and once after it. Owns when; not what.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rules::id::SaleId;
use rules::sale::{Phase, SaleState};
use rules::wire::AuditRequest;

use crate::app::App;

/// How often is looked whether an audit is due.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Works until the process ends.
pub async fn run(app: Arc<App>) {
    let shutdown = app.shutdown.clone();
    shutdown.run_until_cancelled(watch(&app)).await;
}

async fn watch(app: &Arc<App>) {
    let settings = &app.settings.audit;
    let (every, after) =
        (Duration::from_secs(settings.every_s.into()), Duration::from_secs(settings.after_s.into()));
    let mut watch = Watch { every, after, last: app.clock.instant(), sales: HashMap::new() };
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while !every.is_zero() {
        ticks.tick().await;
        let open = open_sales(app);
        for due in watch.due(&open, app.clock.instant()) {
            let sale_id = match due {
                Due::All => None,
                Due::After(sale) => Some(sale),
            };
            if app.audit(AuditRequest { sale_id, ..AuditRequest::default() }).await.is_none() {
                tracing::warn!("an audit was due and too many are waiting; the next one is due in its turn");
            }
        }
    }
}

fn open_sales(app: &App) -> Vec<SaleId> {
    let now = app.clock.now();
    let catalogue = app.catalogue.read();
    let is_open = |sale: &rules::sale::Sale| sale.phase(now) == Phase::Open && sale.state != SaleState::Ended;
    catalogue.sales.values().filter(|card| is_open(&card.sale)).map(|card| card.sale.id).collect()
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
    last: Instant,
    /// Sales that were open, and since when they are not.
    sales: HashMap<SaleId, Option<Instant>>,
}

impl Watch {
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
        if open.is_empty() {
            // The first one of a sale comes a while after its opening: before that there is nothing to see.
            self.last = now;
        } else if now.saturating_duration_since(self.last) >= self.every {
            self.last = now;
            due.push(Due::All);
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
        let mut watch = Watch { every, after, last: start, sales: HashMap::new() };
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
}
