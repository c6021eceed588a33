//! What to make of the sale: how it went, and each promise with a yes or a no. It knows only what buyers and operator
//! were told.

use std::time::Duration;

use rules::time::UnixMs;
use rules::wire::{Code, Stats};
use serde_json::{Value, json};
use stampede::crowd::{Outcome, Snapshot};
use stampede::history::{History, What};
use stampede::verdict::{Evidence, Finding, judge};

use crate::cli::say::Paint;
use crate::cli::table::{span, thousands};

/// Findings shown per promise; the rest is counted.
const FINDINGS_SHOWN_MAX: usize = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    NeverOversold,
    NoUnitStranded,
    OneOrderPerBuyer,
    EverybodyAnswered,
    NobodyEarly,
}

impl Promise {
    const ALL: [Self; 5] = [
        Self::NeverOversold,
        Self::NoUnitStranded,
        Self::OneOrderPerBuyer,
        Self::EverybodyAnswered,
        Self::NobodyEarly,
    ];

    const fn words(self) -> &'static str {
        match self {
            Self::NeverOversold => "never oversold",
            Self::NoUnitStranded => "no unit stranded",
            Self::OneOrderPerBuyer => "one order per buyer",
            Self::EverybodyAnswered => "everybody got an answer",
            Self::NobodyEarly => "nobody was early",
        }
    }

    /// The promise a finding breaks.
    const fn broken_by(finding: &Finding) -> Self {
        match finding {
            Finding::Oversold { .. } => Self::NeverOversold,
            Finding::DoesNotAddUp { .. }
            | Finding::SoldOutWhileFree { .. }
            | Finding::UnitNobodyHas { .. }
            | Finding::StatsDisagree { .. }
            | Finding::UnknownOffer { .. } => Self::NoUnitStranded,
            Finding::TwoLiveOrders { .. }
            | Finding::SharedOrder { .. }
            | Finding::OtherOrder { .. }
            | Finding::OtherQuantity { .. }
            | Finding::RepeatRefused { .. } => Self::OneOrderPerBuyer,
            Finding::Gone { .. }
            | Finding::NotSeenAgain { .. }
            | Finding::Limbo { .. }
            | Finding::WentBack { .. }
            | Finding::NotQuiet { .. } => Self::EverybodyAnswered,
            Finding::Early { .. } => Self::NobodyEarly,
        }
    }
}

/// How each buyer went home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Buyers {
    won: u64,
    sold_out: u64,
    hung_up: u64,
    gave_up: u64,
    other: u64,
}

impl Buyers {
    fn count(histories: &[History]) -> Self {
        let mut buyers = Self::default();
        for history in histories {
            let told = |wanted: fn(&What) -> bool| history.events.iter().any(|event| wanted(&event.what));
            let count = if history.orders().iter().any(stampede::history::Seen::is_live) {
                &mut buyers.won
            } else if told(
                |what| matches!(what, What::Refused { code, .. } if code == Code::SoldOut.as_str()),
            ) {
                &mut buyers.sold_out
            } else if told(|what| matches!(what, What::HungUp { .. })) {
                &mut buyers.hung_up
            } else if told(|what| matches!(what, What::GaveUp { .. })) {
                &mut buyers.gave_up
            } else {
                &mut buyers.other
            };
            *count += 1;
        }
        buyers
    }
}

fn sold_within(histories: &[History], opens_at: UnixMs) -> Duration {
    let made = histories.iter().flat_map(History::orders).map(|order| opens_at.ms_until(order.created_at));
    Duration::from_millis(made.max().unwrap_or_default())
}

#[derive(Debug)]
pub struct Verdict {
    totals: Snapshot,
    elapsed: Duration,
    buyers: Buyers,
    stock: u64,
    free: u64,
    sold: u64,
    /// From the opening to the last unit that was granted.
    sold_within: Duration,
    findings: Vec<(Promise, String)>,
}

impl Verdict {
    pub fn of(outcome: &Outcome, opens_at: UnixMs, before: &Stats, after: &Stats) -> Self {
        let evidence = Evidence { histories: &outcome.histories, after, alone_since: Some(before) };
        let found = judge(&evidence);
        let mut findings: Vec<(Promise, String)> =
            found.iter().map(|finding| (Promise::broken_by(finding), finding.to_string())).collect();
        let buyers = Buyers::count(&outcome.histories);
        if buyers.gave_up > 0 {
            let why = outcome.histories.iter().flat_map(|history| &history.events).find_map(|event| {
                match &event.what {
                    What::GaveUp { why } => Some(why.as_str()),
                    _ => None,
                }
            });
            let why = why.unwrap_or("no reason known");
            findings.push((
                Promise::EverybodyAnswered,
                format!(
                    "{} buyers went home without an answer, one of them because: {why}.",
                    thousands(buyers.gave_up)
                ),
            ));
        }
        let units = |of: fn(&rules::wire::OfferStats) -> u32| {
            after.offers.iter().map(|offer| u64::from(of(offer))).sum()
        };
        Self {
            totals: outcome.totals.clone(),
            elapsed: outcome.elapsed,
            buyers,
            stock: units(|offer| offer.stock),
            free: units(|offer| offer.free),
            sold: units(|offer| offer.held.saturating_add(offer.sold)),
            sold_within: sold_within(&outcome.histories, opens_at),
            findings,
        }
    }

    pub fn kept(&self) -> bool {
        self.findings.is_empty()
    }

    fn broken(&self, promise: Promise) -> Vec<&str> {
        let of_it = self.findings.iter().filter(|(broken, _)| *broken == promise);
        of_it.map(|(_, sentence)| sentence.as_str()).collect()
    }

    fn evidence(&self, promise: Promise) -> String {
        let buyers = self.buyers;
        let crowd = thousands(buyers.won + buyers.sold_out + buyers.hung_up + buyers.gave_up + buyers.other);
        match promise {
            Promise::NeverOversold => {
                format!("{} units, {} orders", thousands(self.stock), thousands(self.sold))
            }
            Promise::NoUnitStranded => format!(
                "{} free + {} held or sold = {}",
                thousands(self.free),
                thousands(self.sold),
                thousands(self.stock)
            ),
            Promise::OneOrderPerBuyer => {
                format!(
                    "{} tries, double clicks included, made {} orders",
                    thousands(self.totals.tries),
                    thousands(self.sold)
                )
            }
            Promise::EverybodyAnswered => {
                format!("{crowd} buyers, none left waiting, every order looked at again")
            }
            Promise::NobodyEarly => "no order is older than the opening".to_owned(),
        }
    }

    pub fn to_text(&self) -> String {
        let (bold, dim) = (Paint::bold(), Paint::dim());
        let buyers = self.buyers;
        let mut lines = vec![
            String::new(),
            format!(
                "  {}, the last one {} after the opening",
                bold.on(&format!("{} of {} sold", thousands(self.sold), thousands(self.stock))),
                span(self.sold_within)
            ),
            String::new(),
            format!("  bought     {:>7}  each holds a recorded order", thousands(buyers.won)),
            format!("  sold out   {:>7}  told at once", thousands(buyers.sold_out)),
        ];
        if buyers.hung_up > 0 {
            lines.push(format!(
                "  hung up    {:>7}  in the middle of their try, and got nothing",
                thousands(buyers.hung_up)
            ));
        }
        if buyers.gave_up > 0 {
            lines.push(format!("  gave up    {:>7}", thousands(buyers.gave_up)));
        }
        if buyers.other > 0 {
            lines.push(format!("  refused    {:>7}  for another reason", thousands(buyers.other)));
        }
        lines.push(String::new());
        lines.push(self.latency_text());
        lines.push(format!(
            "  {}",
            dim.on("measured by the crowd, which shares this machine's processors with the shop")
        ));
        lines.push(String::new());
        Promise::ALL.into_iter().for_each(|promise| self.promise_text(promise, &mut lines));
        lines.push(String::new());
        lines.join("\n")
    }

    fn latency_text(&self) -> String {
        let call = self.totals.call;
        let of = |us| span(Duration::from_micros(us));
        format!("  order call   p50 {}   p99 {}   max {}", of(call.p50_us), of(call.p99_us), of(call.max_us))
    }

    fn promise_text(&self, promise: Promise, lines: &mut Vec<String>) {
        let broken = self.broken(promise);
        if broken.is_empty() {
            let mark = Paint::green().on("✓");
            let evidence = Paint::dim().on(&self.evidence(promise));
            lines.push(format!("  {mark} {:<24} {evidence}", promise.words()));
            return;
        }
        lines.push(format!("  {} {:<24} NOT KEPT", Paint::red().on("✗"), promise.words()));
        lines.extend(broken.iter().take(FINDINGS_SHOWN_MAX).map(|sentence| format!("      {sentence}")));
        if let Some(more) = broken.len().checked_sub(FINDINGS_SHOWN_MAX).filter(|more| *more > 0) {
            lines.push(format!("      and {} more", thousands(u64::try_from(more).unwrap_or(u64::MAX))));
        }
    }

    pub fn to_json(&self, url: &str) -> Value {
        let Buyers { won, sold_out, hung_up, gave_up, other } = self.buyers;
        let call = self.totals.call;
        let promise = |promise: Promise| {
            let broken = self.broken(promise);
            json!({
                "promise": promise.words(),
                "kept": broken.is_empty(),
                "evidence": self.evidence(promise),
                "findings": broken,
            })
        };
        json!({
            "url": url,
            "stock": self.stock,
            "sold": self.sold,
            "free": self.free,
            "buyers": {"won": won, "sold_out": sold_out, "hung_up": hung_up, "gave_up": gave_up, "other": other},
            "funnel": {
                "arrived": self.totals.arrived, "passes": self.totals.passes, "tries": self.totals.tries,
                "queued": self.totals.queued, "won": self.totals.won,
            },
            "refused": self.totals.refused,
            "order_call_us": {"count": call.count, "p50": call.p50_us, "p90": call.p90_us, "p99": call.p99_us, "max": call.max_us},
            "sold_within_ms": u64::try_from(self.sold_within.as_millis()).unwrap_or(u64::MAX),
            "elapsed_ms": u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX),
            "kept": self.kept(),
            "promises": Promise::ALL.map(promise),
        })
    }
}
