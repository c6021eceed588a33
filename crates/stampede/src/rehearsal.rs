//! A rehearsal in words: does it hold, where does it saturate, how long would the stock last, what to change. A pure
//! function of the night's facts; it asks nobody.

use std::time::Duration;

use rules::wire::Code;
use serde::Serialize;

use crate::crowd::Snapshot;
use crate::history::{Call, What, is_an_answer};
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
        let proven = load.totals.tries > 0;
        let holds = proven && violations == 0 && troubles.iter().all(|trouble| !trouble.breaks);
        let mut sentences = vec![load.answer(holds, record.facts.buyers)];
        if violations > 0 {
            let promises = many(u64::try_from(violations).unwrap_or(u64::MAX), "time");
            sentences.push(format!(
                "A promise was not kept, {promises}: see the verdict. That comes before all speed."
            ));
        }
        if load.totals.tries > 0 {
            sentences.push(load.rates());
        }
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
    /// Buyers who went home without an answer.
    gave_up: u64,
    /// Buyers who were told clearly that they get none.
    turned_away: u64,
}

impl Load {
    fn of(record: &Record) -> Self {
        let (mut due, mut told) = (Steps::default(), Steps::default());
        let (mut timeouts, mut broken, mut gave_up, mut turned_away) = (0, 0, 0, 0);
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
                What::GaveUp { why } if is_an_answer(why) => turned_away += 1,
                What::GaveUp { .. } => gave_up += 1,
                _ => {}
            }
        }
        let totals = record.facts.totals.clone();
        let (offered_per_s, answered_per_s) = (due.most_per_s(), told.most_per_s());
        Self { totals, offered_per_s, answered_per_s, timeouts, broken, gave_up, turned_away }
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
        if self.totals.tries == 0 {
            return format!("Nobody of {crowd} got as far as a try: nothing can be said about the sale.");
        }
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
                change: "Run the crowd from another machine than the server, or with more --threads where cores are idle."
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
        let Snapshot { late_passes, .. } = self.totals;
        if late_passes > 0 {
            troubles.push(Trouble {
                breaks: self.too_many(late_passes),
                sentence: format!("{} no pass yet when they wanted to try.", had(late_passes)),
                change:
                    "Raise `pass.lead_s`, so that passes are spread over a longer time before the opening."
                        .to_owned(),
            });
        }
        if self.gave_up > 0 {
            troubles.push(Trouble {
                breaks: self.too_many(self.gave_up),
                sentence: format!("{} gave up.", many(self.gave_up, "buyer")),
                change: "See in the report what they were told last.".to_owned(),
            });
        }
        if self.turned_away > 0 {
            troubles.push(Trouble {
                // Some are meant to be turned away; when all are, the rehearsal was of nothing.
                breaks: self.totals.tries == 0,
                sentence: format!("{} turned away with a clear answer.", were(self.turned_away, "buyer")),
                change: "If they should have been let in, see in the report what they were told: the sale's `registration` \
                         and `strikes.*` decide."
                    .to_owned(),
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rules::id::{OfferId, OrderId, SaleId};
    use rules::order::State;
    use rules::sale::{Phase, SaleState};
    use rules::time::UnixMs;
    use rules::wire::{Funnel, OfferStats, QueueStats, Stats};

    use super::*;
    use crate::crowd::{Outcome, Percentiles};
    use crate::history::{History, Seen, Told};
    use crate::record::Facts;

    const OPENS_AT: UnixMs = UnixMs(1_800_000_000_000);

    /// A night of 100 buyers and 10 units, sold within 900 ms; everybody heard at once.
    fn night() -> Record {
        let totals = Snapshot {
            arrived: 100,
            passes: 100,
            tries: 100,
            won: 10,
            refused: BTreeMap::from([("sold_out".to_owned(), 90)]),
            click: Percentiles { count: 100, p50_us: 1_000, p90_us: 2_000, p99_us: 3_000, max_us: 4_000 },
            ..Snapshot::default()
        };
        let histories: Vec<History> =
            (0..100).map(|number| history(number, u64::from(number) * 10_000)).collect();
        let outcome = Outcome {
            started_at: OPENS_AT,
            elapsed: Duration::from_secs(2),
            totals: totals.clone(),
            kinds: vec![0; histories.len()],
            histories,
        };
        let offer = OfferStats { offer_id: OfferId(1), stock: 10, free: 0, held: 10, sold: 0, returning: 0 };
        let after = Stats {
            sale_id: SaleId(1),
            state: SaleState::Published,
            phase: Phase::Open,
            offers: vec![offer],
            funnel: Funnel::default(),
            queue: QueueStats { depth: 0, lag_ms: 0 },
            registrations: 0,
        };
        Record { facts: facts(totals, after), outcome }
    }

    fn facts(totals: Snapshot, after: Stats) -> Facts {
        Facts {
            stampede: Facts::version(),
            url: "http://shop".into(),
            sale: SaleId(1),
            title: "a night".into(),
            offers: vec![],
            opens_at: OPENS_AT,
            offset_ms: 0,
            scenario: "spike".into(),
            scenario_text: String::new(),
            kinds: vec!["human".into()],
            buyers: 100,
            open_loop: true,
            started_at: OPENS_AT,
            elapsed_us: 2_000_000,
            totals,
            before: None,
            after: Some(after),
            alone: true,
            samples: vec![],
            books: None,
            audit: None,
            cpu_us: 0,
            cores: 2,
            kernel: "linux".into(),
            connections: 8,
            command: "stampede rehearse".into(),
            notes: vec![],
        }
    }

    /// Every tenth has won.
    fn history(number: u32, at_us: u64) -> History {
        let id = OrderId(u128::from(number));
        let created_at = OPENS_AT.plus_ms(i64::from(number) * 10);
        let what = if number.is_multiple_of(10) {
            let (state, reason, seq, quantity) = (State::AwaitingPayment, None, 2, 1);
            let (offer, pay_by, closed_at) = (OfferId(1), None, None);
            let order = Seen { id, offer, quantity, state, reason, seq, created_at, pay_by, closed_at };
            What::Order { status: 202, pass: id, asked: 1, order }
        } else {
            let (call, offer, code) = (Call::Try, Some(OfferId(1)), "sold_out".to_owned());
            What::Refused { call, offer, status: 409, code, pass: Some(id), other: None }
        };
        History {
            buyer: format!("buyer {number}"),
            events: vec![Told { asked_us: at_us, told_us: at_us + 900, what }],
        }
    }

    fn change(change: impl FnOnce(&mut Record)) -> Rehearsal {
        let mut record = night();
        change(&mut record);
        Rehearsal::of(&record, 0)
    }

    #[test]
    fn a_calm_night_holds_and_says_how_long_the_stock_lasts() {
        let said = Rehearsal::of(&night(), 0);
        assert!(said.holds, "{said:?}");
        assert_eq!(
            (said.offered_per_s, said.answered_per_s, said.sells_out_within_ms),
            (100, 100, Some(900))
        );
        assert_eq!(
            said.sentences,
            [
                "It holds: 100 buyers, 99 of 100 heard within 3.0 ms of their click.",
                "At the peak 100 tries were due in a second and 100 were answered: it kept up.",
                "It sells out 900 ms after the opening.",
            ]
        );
        assert_eq!(said.changes, ["Nothing has to change."]);
    }

    #[test]
    fn a_broken_promise_never_holds() {
        let said = Rehearsal::of(&night(), 2);
        assert!(!said.holds && said.sentences[1].starts_with("A promise was not kept, 2 times"), "{said:?}");
    }

    #[test]
    fn what_stood_in_the_way_names_its_setting() {
        type Case = (fn(&mut Record), bool, &'static str);
        let cases: &[Case] = &[
            (|night| tell(night, "busy", 50), false, "limits.in_flight"),
            (|night| tell(night, "busy", 1), true, "limits.in_flight"),
            (|night| tell(night, "too_fast", 50), true, "limits.per_buyer_per_s"),
            (|night| night.facts.totals.click.p99_us = 9_000_000, false, "edge_threads"),
            (|night| night.facts.totals.late_passes = 50, false, "pass.lead_s"),
            (|night| night.facts.totals.late.p99_us = 900_000, true, "another machine"),
            (|night| night.facts.totals.socket_wait.p99_us = 900_000, true, "--connections"),
            (|night| give_up(night, "no pass in time"), false, "report"),
            (|night| give_up(night, "no pass: not_registered"), true, "registration"),
            (
                |night| night.outcome.histories.push(broken_tries("no answer in time")),
                false,
                "limits.in_flight",
            ),
            (
                |night| night.outcome.histories.push(broken_tries("the connection broke")),
                false,
                "limits.connections",
            ),
        ];
        for (falsify, holds, setting) in cases {
            let said = change(falsify);
            assert_eq!(said.holds, *holds, "{setting}: {said:?}");
            assert!(said.changes.iter().any(|change| change.contains(setting)), "{setting}: {said:?}");
            assert!(said.to_text().contains("What to change:"));
        }
    }

    fn tell(night: &mut Record, code: &str, times: u64) {
        night.facts.totals.refused.insert(code.to_owned(), times);
    }

    fn give_up(night: &mut Record, why: &str) {
        let events = vec![Told { asked_us: 0, told_us: 1, what: What::GaveUp { why: why.to_owned() } }];
        let home = |number| History { buyer: format!("tired {number}"), events: events.clone() };
        night.outcome.histories.extend((0..50).map(home));
    }

    #[test]
    fn a_rehearsal_without_a_try_holds_nothing_and_says_so() {
        let said = change(|night| {
            night.facts.totals.tries = 0;
            night.outcome.histories.clear();
            give_up(night, "no pass: not_registered");
        });
        assert!(!said.holds, "{said:?}");
        assert_eq!(
            said.sentences[0],
            "Nobody of 100 buyers got as far as a try: nothing can be said about the sale."
        );
        assert!(said.sentences.iter().all(|sentence| !sentence.contains("kept up")), "{said:?}");
    }

    fn broken_tries(why: &str) -> History {
        let told = |_| {
            let (call, pass, why) = (Call::Try, None, why.to_owned());
            Told { asked_us: 0, told_us: 1, what: What::Broken { call, pass, why } }
        };
        History { buyer: "unlucky".into(), events: (0..5).map(told).collect() }
    }

    #[test]
    fn saturation_is_offered_against_answered() {
        let said = change(|night| {
            for (number, history) in (0..).zip(&mut night.outcome.histories) {
                history.events[0].told_us = 1_000_000 + number * 100_000;
            }
        });
        assert_eq!((said.offered_per_s, said.answered_per_s), (100, 10));
        assert!(said.sentences[1].ends_with("that is where it saturates."), "{said:?}");
    }

    #[test]
    fn stock_that_lasts_is_said_and_predicted() {
        let said = change(|night| {
            night.facts.totals.refused.clear();
            let offer = &mut night.facts.after.as_mut().unwrap().offers[0];
            (offer.stock, offer.free) = (20, 10);
        });
        assert_eq!(said.sells_out_within_ms, Some(1_800));
        assert!(
            said.sentences.last().unwrap().starts_with("At this pace it would sell out 1.8 s"),
            "{said:?}"
        );
        let said = change(|night| {
            night.facts.totals.refused.clear();
            night.facts.totals.won = 100;
            night.facts.after.as_mut().unwrap().offers[0].free = 3;
        });
        assert!(
            said.sentences.last().unwrap().contains("everybody got one, and 3 of 10 units are left"),
            "{said:?}"
        );
        let said = change(|night| night.outcome.histories.clear());
        assert!(said.sentences.last().unwrap().starts_with("Nothing was sold"), "{said:?}");
    }
}
