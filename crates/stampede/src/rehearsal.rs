//! A rehearsal in words: does it hold, where does it saturate, how long would the stock last, what to change. A pure
//! function of the night's facts; it asks nobody.

use std::time::Duration;

use rules::wire::Code;
use serde::Serialize;

use crate::crowd::Snapshot;
use crate::history::{Call, What};
use crate::record::Record;
use crate::words::{many, span, span_us, thousands};

/// A buyer should hear something this soon after the click.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Tries that may be told "busy", or get no answer at all, before it does not hold: one in a hundred.
const SHED_PER_MILLE_MAX: u64 = 10;
/// Beyond this, what was measured is the generator.
const GENERATOR_LATE_MAX: Duration = Duration::from_millis(250);
/// Peaks are counted over a second, in steps of this, in microseconds.
const STEP_US: u64 = 100_000;
const STEPS_PER_S: usize = 10;

/// What a rehearsal says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rehearsal {
    pub holds: bool,
    /// Most tries due in one second.
    pub offered_per_s: u64,
    /// Most tries answered in one second.
    pub answered_per_s: u64,
    /// From the opening to the last unit; `None`: it did not and would not sell out.
    pub sells_out_within_ms: Option<u64>,
    /// The answer, in sentences.
    pub sentences: Vec<String>,
    /// What to change, each with the name of the setting.
    pub changes: Vec<String>,
}

impl Rehearsal {
    /// `violations`: promises that were not kept.
    #[must_use]
    pub fn of(record: &Record, violations: usize) -> Self {
        let load = Load::of(record);
        let troubles = load.troubles();
        let sells_out = sells_out(record);
        let holds = violations == 0 && troubles.iter().all(|trouble| !trouble.breaks);
        let mut sentences = vec![load.answer(holds, record.facts.buyers)];
        if violations > 0 {
            let promises = many(u64::try_from(violations).unwrap_or(u64::MAX), "time");
            sentences.push(format!(
                "A promise was not kept, {promises}: see the verdict. That comes before all speed."
            ));
        }
        sentences.push(load.rates());
        sentences.extend(troubles.iter().map(|trouble| trouble.sentence.clone()));
        sentences.push(sells_out.sentence());
        let mut changes: Vec<String> = troubles.into_iter().map(|trouble| trouble.change).collect();
        changes.dedup();
        if changes.is_empty() {
            changes.push("Nothing has to change.".to_owned());
        }
        let Load { offered_per_s, answered_per_s, .. } = load;
        let sells_out_within_ms =
            sells_out.within().map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        Self { holds, offered_per_s, answered_per_s, sells_out_within_ms, sentences, changes }
    }

    #[must_use]
    pub fn to_text(&self) -> String {
        let mut lines: Vec<String> = self.sentences.iter().map(|sentence| format!("  {sentence}")).collect();
        lines.push(String::new());
        lines.push("  What to change:".to_owned());
        lines.extend(self.changes.iter().map(|change| format!("  - {change}")));
        lines.join("\n")
    }
}

/// Something that stood in the way, and the way out.
struct Trouble {
    /// Whether the night does not hold because of it.
    breaks: bool,
    sentence: String,
    change: String,
}

/// What was offered and what came of it.
struct Load {
    totals: Snapshot,
    offered_per_s: u64,
    answered_per_s: u64,
    timeouts: u64,
    broken: u64,
}

impl Load {
    fn of(record: &Record) -> Self {
        let (mut due, mut told) = (Steps::default(), Steps::default());
        let (mut timeouts, mut broken) = (0, 0);
        for event in record.outcome.histories.iter().flat_map(|history| &history.events) {
            match &event.what {
                What::Order { .. } | What::Refused { call: Call::Try, .. } => {
                    due.count(event.asked_us);
                    told.count(event.told_us);
                }
                What::Broken { call: Call::Try, why, .. } => {
                    due.count(event.asked_us);
                    let slow = why.contains("in time");
                    timeouts += u64::from(slow);
                    broken += u64::from(!slow);
                }
                _ => {}
            }
        }
        let totals = record.facts.totals.clone();
        Self { totals, offered_per_s: due.most_per_s(), answered_per_s: told.most_per_s(), timeouts, broken }
    }

    fn refused(&self, code: Code) -> u64 {
        self.totals.refused.get(code.as_str()).copied().unwrap_or(0)
    }

    /// Whether this many of the tries are more than a few.
    fn too_many(&self, count: u64) -> bool {
        count.saturating_mul(1_000) > self.totals.tries.max(1).saturating_mul(SHED_PER_MILLE_MAX)
    }

    fn generator_was_late(&self) -> bool {
        let Snapshot { late, socket_wait, .. } = &self.totals;
        let limit = u64::try_from(GENERATOR_LATE_MAX.as_micros()).unwrap_or(u64::MAX);
        late.p99_us > limit || (socket_wait.p99_us > limit && socket_wait.p99_us > self.totals.call.p99_us)
    }

    fn answer(&self, holds: bool, buyers: u32) -> String {
        let crowd = many(buyers.into(), "buyer");
        let p99 = span_us(self.totals.click.p99_us);
        if holds && self.generator_was_late() {
            return format!(
                "It holds as far as this crowd could tell: {crowd}, but the crowd itself was too slow."
            );
        }
        if holds {
            format!("It holds: {crowd}, 99 of 100 heard within {p99} of their click.")
        } else {
            format!("It does not hold for {crowd}: 99 of 100 heard within {p99} of their click.")
        }
    }

    fn rates(&self) -> String {
        let (offered, answered) = (thousands(self.offered_per_s), thousands(self.answered_per_s));
        let keeps_up = self.answered_per_s.saturating_mul(100) >= self.offered_per_s.saturating_mul(90);
        if keeps_up {
            format!(
                "At the peak {offered} tries were due in a second and {answered} were answered: it kept up."
            )
        } else {
            format!(
                "At the peak {offered} tries were due in a second and {answered} were answered: that is where it saturates."
            )
        }
    }

    fn troubles(&self) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        self.generator_troubles(&mut troubles);
        self.shed_troubles(&mut troubles);
        self.slow_troubles(&mut troubles);
        troubles
    }

    fn generator_troubles(&self, troubles: &mut Vec<Trouble>) {
        let Snapshot { late, socket_wait, .. } = &self.totals;
        let limit = u64::try_from(GENERATOR_LATE_MAX.as_micros()).unwrap_or(u64::MAX);
        if late.p99_us > limit {
            troubles.push(Trouble {
                breaks: false,
                sentence: format!(
                    "The crowd itself was up to {} late for its clicks: this machine is too small for it.",
                    span_us(late.p99_us)
                ),
                change: "Run the crowd from another machine than the server, or from one with more cores."
                    .to_owned(),
            });
        }
        if socket_wait.p99_us > limit {
            troubles.push(Trouble {
                breaks: false,
                sentence: format!("Clicks waited up to {} for a free socket.", span_us(socket_wait.p99_us)),
                change: "Give the crowd more sockets with --connections; the server needs `limits.connections` for them."
                    .to_owned(),
            });
        }
    }

    fn shed_troubles(&self, troubles: &mut Vec<Trouble>) {
        let busy = self.refused(Code::Busy);
        if busy > 0 {
            troubles.push(Trouble {
                breaks: self.too_many(busy),
                sentence: format!("{} told \"busy\" and had to come again.", were(busy, "call")),
                change: "Raise `limits.in_flight` and `queue.capacity` if memory allows, or let fewer come at once: a \
                         `challenge` spreads the passes."
                    .to_owned(),
            });
        }
        let too_fast = self.refused(Code::TooFast);
        if too_fast > 0 {
            troubles.push(Trouble {
                breaks: false,
                sentence: format!("{} told \"too fast\".", were(too_fast, "call")),
                change: "If those are honest fingers, raise `limits.per_buyer_per_s` and `limits.per_buyer_burst`; if they \
                         are bots, it is as it should be."
                    .to_owned(),
            });
        }
        if self.broken > 0 {
            troubles.push(Trouble {
                breaks: self.too_many(self.broken),
                sentence: format!("{} broken off without an answer.", were(self.broken, "try")),
                change: "Raise `limits.connections` and the server's limit of open files (LimitNOFILE)."
                    .to_owned(),
            });
        }
    }

    fn slow_troubles(&self, troubles: &mut Vec<Trouble>) {
        if self.timeouts > 0 {
            troubles.push(Trouble {
                breaks: self.too_many(self.timeouts),
                sentence: format!("{} not answered in time.", were(self.timeouts, "try")),
                change: "Lower `limits.in_flight`, so that too much is told at once instead of late; or give the server \
                         more cores (`edge_threads`)."
                    .to_owned(),
            });
        }
        let click = self.totals.click;
        let limit = u64::try_from(ANSWER_WITHIN.as_micros()).unwrap_or(u64::MAX);
        if click.p99_us > limit && !self.generator_was_late() {
            troubles.push(Trouble {
                breaks: true,
                sentence: format!(
                    "Answers took too long: 1 of 100 waited more than {}, half of them more than {}.",
                    span_us(click.p99_us),
                    span_us(click.p50_us)
                ),
                change: "Give the server more cores (`edge_threads`), or lower `limits.in_flight` so that it says \"busy\" \
                         sooner."
                    .to_owned(),
            });
        }
        let Snapshot { late_passes, gave_up, .. } = self.totals;
        if late_passes > 0 {
            troubles.push(Trouble {
                breaks: self.too_many(late_passes),
                sentence: format!("{} no pass yet when they wanted to try.", had(late_passes)),
                change:
                    "Raise `pass.lead_s`, so that passes are spread over a longer time before the opening."
                        .to_owned(),
            });
        }
        if gave_up > 0 {
            troubles.push(Trouble {
                breaks: self.too_many(gave_up),
                sentence: format!(
                    "{} up.",
                    if gave_up == 1 {
                        "1 buyer gave".to_owned()
                    } else {
                        format!("{} buyers gave", thousands(gave_up))
                    }
                ),
                change: "See in the report what they were told last.".to_owned(),
            });
        }
    }
}

fn were(count: u64, thing: &str) -> String {
    match (count, thing) {
        (1, _) => format!("1 {thing} was"),
        (_, "try") => format!("{} tries were", thousands(count)),
        _ => format!("{} {thing}s were", thousands(count)),
    }
}

fn had(buyers: u64) -> String {
    many(buyers, "buyer") + " had"
}

/// How long the stock lasts.
enum SellsOut {
    Did(Duration),
    Would(Duration),
    /// More units than people who want them.
    TooMuch {
        units: u64,
        free: u64,
    },
    /// The operator was not asked, or nothing was sold.
    Unknown,
}

fn sells_out(record: &Record) -> SellsOut {
    let Some(after) = &record.facts.after else { return SellsOut::Unknown };
    let sum =
        |of: fn(&rules::wire::OfferStats) -> u32| after.offers.iter().map(|offer| u64::from(of(offer))).sum();
    let (stock, free): (u64, u64) = (sum(|offer| offer.stock), sum(|offer| offer.free));
    let orders = record.outcome.histories.iter().flat_map(crate::history::History::orders);
    let made = |order: crate::history::Seen| record.facts.opens_at.ms_until(order.created_at);
    let Some(last_ms) = orders.map(made).max() else { return SellsOut::Unknown };
    let last = Duration::from_millis(last_ms);
    let sold_out = record.facts.totals.refused.contains_key(Code::SoldOut.as_str());
    match free {
        0 => SellsOut::Did(last),
        // Units came back after all had been taken.
        _ if sold_out => SellsOut::Did(last),
        // Everybody who came got one: the rest would need more people, at the pace of these.
        _ if record.facts.totals.won >= record.facts.totals.passes => {
            SellsOut::TooMuch { units: stock, free }
        }
        _ => {
            let taken = u32::try_from(stock.saturating_sub(free)).unwrap_or(u32::MAX).max(1);
            let stock = u32::try_from(stock).unwrap_or(u32::MAX);
            SellsOut::Would(last.mul_f64(f64::from(stock) / f64::from(taken)))
        }
    }
}

impl SellsOut {
    const fn within(&self) -> Option<Duration> {
        match self {
            Self::Did(time) | Self::Would(time) => Some(*time),
            Self::TooMuch { .. } | Self::Unknown => None,
        }
    }

    fn sentence(&self) -> String {
        match self {
            Self::Did(time) => format!("It sells out {} after the opening.", span(*time)),
            Self::Would(time) => format!("At this pace it would sell out {} after the opening.", span(*time)),
            Self::TooMuch { units, free } => {
                let units = many(*units, "unit");
                format!(
                    "It does not sell out: everybody got one, and {} of {units} are left.",
                    thousands(*free)
                )
            }
            Self::Unknown => "Nothing was sold, so nobody can say when it sells out.".to_owned(),
        }
    }
}

/// Events per tenth of a second.
#[derive(Debug, Default)]
struct Steps(Vec<u64>);

impl Steps {
    fn count(&mut self, at_us: u64) {
        let step = usize::try_from(at_us / STEP_US).unwrap_or(0);
        // A day of tenths of seconds; a damaged history must not take all memory.
        let step = step.min(864_000);
        if self.0.len() <= step {
            self.0.resize(step + 1, 0);
        }
        if let Some(count) = self.0.get_mut(step) {
            *count += 1;
        }
    }

    /// The most in any whole second. A shorter run counts as it is.
    fn most_per_s(&self) -> u64 {
        let all = || self.0.iter().sum();
        self.0.windows(STEPS_PER_S).map(|window| window.iter().sum()).max().unwrap_or_else(all)
    }
}
