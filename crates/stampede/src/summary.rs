//! What to make of a night: how it went, and each promise with a yes or a no. It knows only what buyers and operator
//! were told; `verdict` judges.

use std::collections::BTreeMap;
use std::time::Duration;

use rules::time::UnixMs;
use rules::wire::{Code, OfferStats};
use serde_json::{Value, json};

use crate::crowd::{Outcome, Snapshot};
use crate::history::{History, Seen, What};
use crate::say::Paint;
use crate::verdict::{Evidence, Finding, Promise};
use crate::words::{many, span, span_us, thousands};

/// Findings shown per promise; the rest is counted.
const FINDINGS_SHOWN_MAX: usize = 5;
/// Codes named of buyers who were refused; the report has all.
const CODES_SHOWN_MAX: usize = 3;

/// How each buyer went home.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Buyers {
    won: u64,
    /// Had an order that is over.
    ended: u64,
    sold_out: u64,
    hung_up: u64,
    gave_up: u64,
    other: u64,
}

/// How one buyer went home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Won,
    Ended,
    SoldOut,
    HungUp,
    GaveUp,
    Other,
}

impl End {
    fn of(history: &History) -> Self {
        let told = |wanted: fn(&What) -> bool| history.events.iter().any(|event| wanted(&event.what));
        let orders = history.orders();
        if orders.iter().any(Seen::is_live) {
            Self::Won
        } else if !orders.is_empty() {
            Self::Ended
        } else if told(|what| matches!(what, What::Refused { code, .. } if code == Code::SoldOut.as_str())) {
            Self::SoldOut
        } else if told(|what| matches!(what, What::HungUp { .. })) {
            Self::HungUp
        } else if history.unanswered().is_some() {
            Self::GaveUp
        } else {
            Self::Other
        }
    }
}

impl Buyers {
    fn count(histories: &[History]) -> Self {
        let mut buyers = Self::default();
        for history in histories {
            let count = match End::of(history) {
                End::Won => &mut buyers.won,
                End::Ended => &mut buyers.ended,
                End::SoldOut => &mut buyers.sold_out,
                End::HungUp => &mut buyers.hung_up,
                End::GaveUp => &mut buyers.gave_up,
                End::Other => &mut buyers.other,
            };
            *count += 1;
        }
        buyers
    }
}

impl Buyers {
    const fn all(self) -> u64 {
        let Self { won, ended, sold_out, hung_up, gave_up, other } = self;
        won + ended + sold_out + hung_up + gave_up + other
    }
}

/// What the others were told last, most often first: `blocked`, or `3 blocked, 1 not_registered`.
fn reasons(histories: &[History]) -> String {
    let others = histories.iter().filter(|history| End::of(history) == End::Other);
    let mut codes: BTreeMap<&str, u64> = BTreeMap::new();
    for code in others.filter_map(|history| history.our_own().or_else(|| history.last_refusal())) {
        *codes.entry(code).or_default() += 1;
    }
    let mut codes: Vec<(&str, u64)> = codes.into_iter().collect();
    codes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    if let [(code, _)] = codes.as_slice() {
        return (*code).to_owned();
    }
    let shown = codes.iter().take(CODES_SHOWN_MAX);
    let shown: Vec<String> = shown.map(|(code, count)| format!("{} {code}", thousands(*count))).collect();
    shown.join(", ")
}

fn sold_within(histories: &[History], opens_at: UnixMs) -> Duration {
    let made = histories.iter().flat_map(History::orders).map(|order| opens_at.ms_until(order.created_at));
    Duration::from_millis(made.max().unwrap_or_default())
}

/// The stock as the operator sees it after everything was quiet.
#[derive(Clone, Copy, Debug)]
struct Units {
    stock: u64,
    free: u64,
    taken: u64,
}

impl Units {
    fn of(offers: &[OfferStats]) -> Self {
        let sum = |of: fn(&OfferStats) -> u32| offers.iter().map(|offer| u64::from(of(offer))).sum();
        Self {
            stock: sum(|offer| offer.stock),
            free: sum(|offer| offer.free),
            taken: sum(|offer| offer.held.saturating_add(offer.sold)),
        }
    }
}

#[derive(Debug)]
pub struct Summary {
    totals: Snapshot,
    elapsed: Duration,
    buyers: Buyers,
    /// What kept those from buying who were refused for another reason.
    reasons: String,
    /// `None`: nobody asked the operator.
    units: Option<Units>,
    /// Orders that hold units, as the buyers see them.
    orders: u64,
    /// From the opening to the last unit that was granted.
    sold_within: Duration,
    /// Everybody was sent home before the end.
    broken_off: bool,
    findings: Vec<(Promise, String)>,
}

impl Summary {
    pub fn of(outcome: &Outcome, opens_at: UnixMs, evidence: &Evidence<'_>, findings: &[Finding]) -> Self {
        let findings = findings.iter().map(|finding| (finding.promise(), finding.to_string())).collect();
        let live = |order: &Seen| order.is_live();
        let orders = outcome.histories.iter().flat_map(History::orders).filter(live).count();
        Self {
            totals: outcome.totals.clone(),
            elapsed: outcome.elapsed,
            buyers: Buyers::count(&outcome.histories),
            reasons: reasons(&outcome.histories),
            units: evidence.after.map(|after| Units::of(&after.offers)),
            orders: u64::try_from(orders).unwrap_or(u64::MAX),
            sold_within: sold_within(&outcome.histories, opens_at),
            broken_off: evidence.broken_off,
            findings,
        }
    }

    #[must_use]
    pub fn kept(&self) -> bool {
        self.findings.is_empty()
    }

    /// One sentence per promise that was not kept.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        self.findings.iter().map(|(_, sentence)| sentence.clone()).collect()
    }

    /// From the opening to the last unit that was granted.
    #[must_use]
    pub const fn sold_within(&self) -> Duration {
        self.sold_within
    }

    /// Promises there was an occasion to break.
    fn promises(&self) -> impl Iterator<Item = Promise> {
        let Snapshot { paid, cancelled, .. } = self.totals;
        let broken = !self.broken(Promise::MoneyEndsOnce).is_empty();
        let money = paid + cancelled > 0 || broken;
        Promise::ALL.into_iter().filter(move |promise| *promise != Promise::MoneyEndsOnce || money)
    }

    /// Whether there was something to compare with what was promised.
    const fn is_compared(&self, promise: Promise) -> bool {
        match promise {
            Promise::NeverOversold | Promise::NoUnitStranded => self.units.is_some(),
            Promise::EverybodyAnswered => !self.broken_off,
            Promise::OneOrderPerBuyer | Promise::NobodyEarly | Promise::MoneyEndsOnce => true,
        }
    }

    fn broken(&self, promise: Promise) -> Vec<&str> {
        let of_it = self.findings.iter().filter(|(broken, _)| *broken == promise);
        of_it.map(|(_, sentence)| sentence.as_str()).collect()
    }

    fn evidence(&self, promise: Promise) -> String {
        let buyers = self.buyers;
        let crowd = thousands(buyers.all());
        let orders = thousands(self.units.map_or(self.orders, |units| units.taken));
        match (promise, self.units) {
            (Promise::NeverOversold | Promise::NoUnitStranded, None) => {
                "not compared: without the operator's numbers nobody knows the stock".to_owned()
            }
            (Promise::NeverOversold, Some(units)) => {
                format!("{} units, {orders} orders", thousands(units.stock))
            }
            (Promise::NoUnitStranded, Some(units)) => {
                format!("{} free + {orders} held or sold = {}", thousands(units.free), thousands(units.stock))
            }
            (Promise::OneOrderPerBuyer, _) => {
                // Not what is taken: an earlier crowd may have taken some of it.
                let tries = match self.totals.tries {
                    1 => "1 try".to_owned(),
                    tries => format!("{} tries", thousands(tries)),
                };
                format!("{tries} with double clicks made {}", many(self.orders, "order"))
            }
            (Promise::EverybodyAnswered, _) if self.broken_off => {
                "not compared: everybody was sent home before the end".to_owned()
            }
            (Promise::EverybodyAnswered, _) => {
                format!("{crowd} buyers, none waits, every order seen again")
            }
            (Promise::NobodyEarly, _) => "no order is older than the opening".to_owned(),
            (Promise::MoneyEndsOnce, _) => {
                let Snapshot { paid, cancelled, .. } = self.totals;
                format!("{} paid, {} cancelled", thousands(paid), thousands(cancelled))
            }
        }
    }

    #[must_use]
    pub fn to_text(&self) -> String {
        let dim = Paint::dim();
        let mut lines = vec![String::new(), self.sold_text(), String::new()];
        self.buyers_text(&mut lines);
        lines.push(String::new());
        lines.push(self.latency_text());
        lines.extend(self.late_passes_text());
        lines.push(format!(
            "  {}",
            dim.on("since each click was due; the crowd may share the shop's processors")
        ));
        lines.push(String::new());
        self.promises().for_each(|promise| self.promise_text(promise, &mut lines));
        lines.push(String::new());
        lines.join("\n")
    }

    fn sold_text(&self) -> String {
        let bold = Paint::bold();
        let sold = match self.units {
            Some(units) => format!("{} of {} sold", thousands(units.taken), thousands(units.stock)),
            None => many(self.orders, "order"),
        };
        if self.orders == 0 {
            return format!("  {}", bold.on(&sold));
        }
        format!("  {}, the last one {} after the opening", bold.on(&sold), span(self.sold_within))
    }

    fn buyers_text(&self, lines: &mut Vec<String>) {
        let buyers = self.buyers;
        let Snapshot { paid, cancelled, no_payment, .. } = self.totals;
        lines.push(format!("  bought     {:>7}  each holds a recorded order", thousands(buyers.won)));
        let rest = [
            ("paid", paid, "of them"),
            ("cancelled", cancelled, "gave their order back"),
            ("over", buyers.ended.saturating_sub(cancelled), "had an order that ended otherwise"),
            ("sold out", buyers.sold_out, "told at once"),
            ("hung up", buyers.hung_up, "in the middle of their try, and got nothing"),
            ("gave up", buyers.gave_up, ""),
            ("refused", buyers.other, self.reasons.as_str()),
        ];
        for (name, count, words) in
            rest.into_iter().filter(|(name, count, _)| *count > 0 || *name == "sold out")
        {
            lines.push(format!("  {name:<10} {:>7}  {words}", thousands(count)).trim_end().to_owned());
        }
        if no_payment > 0 {
            let wanted = many(no_payment, "buyer");
            lines.push(format!("  {wanted} wanted to pay: payment is not available at this server"));
        }
    }

    fn latency_text(&self) -> String {
        let click = self.totals.click;
        if click.count == 0 {
            return "  click to answer   nobody clicked".to_owned();
        }
        let of = span_us;
        format!(
            "  click to answer   p50 {}   p99 {}   max {}",
            of(click.p50_us),
            of(click.p99_us),
            of(click.max_us)
        )
    }

    /// The wait for a late pass is part of the time to the answer, and the reason for it must not be guessed.
    fn late_passes_text(&self) -> Option<String> {
        let late = self.totals.late_passes;
        let buyers = many(late, "buyer");
        (late > 0).then(|| format!("  {buyers} had no pass yet when the click was due, and waited for it"))
    }

    fn promise_text(&self, promise: Promise, lines: &mut Vec<String>) {
        let broken = self.broken(promise);
        if broken.is_empty() {
            let mark =
                if self.is_compared(promise) { Paint::green().on("✓") } else { Paint::dim().on("·") };
            let evidence = Paint::dim().on(&self.evidence(promise));
            lines.push(format!("  {mark} {:<24} {evidence}", promise.words()));
            return;
        }
        lines.push(format!("  {} {:<24} NOT KEPT", Paint::red().on("✗"), promise.words()));
        lines.extend(broken.iter().take(FINDINGS_SHOWN_MAX).map(|sentence| format!("      {sentence}")));
        if let Some(more) = broken.len().checked_sub(FINDINGS_SHOWN_MAX).filter(|more| *more > 0) {
            let more = thousands(u64::try_from(more).unwrap_or(u64::MAX));
            lines.push(format!("      and {more} more; --json names all of them"));
        }
    }

    #[must_use]
    pub fn to_json(&self, url: &str) -> Value {
        let Buyers { won, ended, sold_out, hung_up, gave_up, other } = self.buyers;
        let (call, click) = (self.totals.call, self.totals.click);
        let promise = |promise: Promise| {
            let broken = self.broken(promise);
            json!({
                "promise": promise.words(),
                "kept": (self.is_compared(promise) || !broken.is_empty()).then_some(broken.is_empty()),
                "evidence": self.evidence(promise),
                "findings": broken,
            })
        };
        let us = |of: crate::crowd::Percentiles| json!({"count": of.count, "p50": of.p50_us, "p90": of.p90_us, "p99": of.p99_us, "max": of.max_us});
        json!({
            "url": url,
            "stock": self.units.map(|units| units.stock),
            "sold": self.units.map_or(self.orders, |units| units.taken),
            "free": self.units.map(|units| units.free),
            "buyers": {"won": won, "ended": ended, "sold_out": sold_out, "hung_up": hung_up, "gave_up": gave_up, "other": other},
            "funnel": {
                "arrived": self.totals.arrived, "passes": self.totals.passes, "tries": self.totals.tries,
                "queued": self.totals.queued, "saw_recorded": self.totals.won, "paid": self.totals.paid,
                "cancelled": self.totals.cancelled,
            },
            "payment_available": self.totals.no_payment == 0,
            "refused": self.totals.refused,
            "order_call_us": us(call),
            "click_to_answer_us": us(click),
            "late_passes": self.totals.late_passes,
            "sold_within_ms": u64::try_from(self.sold_within.as_millis()).unwrap_or(u64::MAX),
            "elapsed_ms": u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX),
            "kept": self.kept(),
            "promises": self.promises().map(promise).collect::<Vec<_>>(),
        })
    }
}
