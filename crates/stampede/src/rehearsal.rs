//! A rehearsal in words: does it hold, where does it saturate, how long would the stock last, what to change. A pure
//! function of the night's facts; it asks nobody.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rules::id::OfferId;
use rules::order::State;
use rules::time::UnixMs;
use rules::wire::{Code, OfferStats};
use serde::Serialize;

use crate::clock::micros;
use crate::crowd::{IN_TIME_PERCENT_MIN, Snapshot};
use crate::effort::Effort;
use crate::history::{BROKEN_OFF, Call, Seen, Told, What, is_an_answer, is_our_own, was_shed};
use crate::record::{Part, Record};
use crate::words::{many, span, span_us, thousands};

/// A buyer should hear something this soon after the click.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Tries that may be told "busy", or get no answer at all, before it does not hold: one in a hundred.
const SHED_PER_MILLE_MAX: u64 = 10;
/// Answers in a second against tries that were due in one, in percent: below this it does not keep up.
const KEEPS_UP_PERCENT_MIN: u64 = 90;
/// A wait that a buyer notices. Shorter ones are neither worth a sentence nor a sign of too much load.
const NOTICED: Duration = Duration::from_millis(250);
/// Peaks are counted over a second, in steps of this, in microseconds.
const STEP_US: u64 = 100_000;
const STEPS_PER_S: usize = 10;
/// Offers that are named in the sentence about the stock; the JSON has all.
const OFFERS_SHOWN_MAX: usize = 5;

/// The answer in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Holds,
    DoesNotHold,
    /// The crowd did not offer what it was to offer, so nothing is known of the server under it.
    CannotTell,
}

/// What a rehearsal says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rehearsal {
    pub answer: Answer,
    /// Only where that is the answer: neither when it does not, nor when nobody can tell.
    pub holds: bool,
    /// Most tries due in one second.
    pub offered_per_s: u64,
    /// Most tries answered in one second, "busy" included.
    pub answered_per_s: u64,
    /// Most tries of one second that got a real answer within [`ANSWER_WITHIN`]: it takes at least so many.
    pub at_least_per_s: u64,
    /// Where it saturates; `None`: beyond what was offered.
    pub saturates_at_per_s: Option<u64>,
    /// From the opening until nothing was left of any offer; `None`: not all of them did or would sell out.
    pub sells_out_within_ms: Option<u64>,
    /// The same, offer by offer.
    pub offers: Vec<OfferLasts>,
    /// The answer, in sentences.
    pub sentences: Vec<String>,
    /// What to change, each with the name of the setting.
    pub changes: Vec<String>,
}

/// How long the stock of one offer lasts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OfferLasts {
    pub offer: OfferId,
    pub name: String,
    /// From the opening to the first moment at which all units were taken; `None`: it did not and would not sell out.
    pub sells_out_within_ms: Option<u64>,
}

impl Rehearsal {
    /// `violations`: promises that were not kept.
    #[must_use]
    pub fn of(record: &Record, violations: usize) -> Self {
        let load = Load::of(record);
        let troubles = load.troubles();
        let lasting = Lasting::of(record);
        let broken_off = record.facts.missing.iter().find(|missing| missing.part == Part::End);
        let breaks = violations > 0 || broken_off.is_some() || troubles.iter().any(|trouble| trouble.breaks);
        let answer = match load.doubt() {
            _ if breaks => Answer::DoesNotHold,
            Some(_) => Answer::CannotTell,
            None => Answer::Holds,
        };
        let mut sentences = vec![load.answer(answer, record.facts.buyers)];
        sentences.extend(broken_off.map(crate::record::Missing::sentence));
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
        sentences.push(lasting.sentence());
        let mut changes: Vec<String> = Vec::new();
        for Trouble { change, .. } in troubles {
            if !changes.contains(&change) {
                changes.push(change);
            }
        }
        if changes.is_empty() && answer == Answer::Holds {
            changes.push("Nothing has to change.".to_owned());
        } else if changes.is_empty() {
            changes.push("See in the report what the buyers were told.".to_owned());
        }
        let saturates_at_per_s = load.is_saturated().then_some(load.served_per_s);
        let Load { offered_per_s, answered_per_s, served_per_s: at_least_per_s, .. } = load;
        let holds = answer == Answer::Holds;
        let offers = lasting.offers();
        let within: Option<Vec<u64>> = offers.iter().map(|offer| offer.sells_out_within_ms).collect();
        let sells_out_within_ms = within.and_then(|all| all.into_iter().max());
        Self {
            answer,
            holds,
            offered_per_s,
            answered_per_s,
            at_least_per_s,
            saturates_at_per_s,
            sells_out_within_ms,
            offers,
            sentences,
            changes,
        }
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

/// The way out where the crowd is too slow for itself.
const OTHER_MACHINE: &str =
    "Run the crowd from another machine than the server, or with more --threads where cores are idle.";

/// The way out where passes come too late.
const EARLIER_PASSES: &str =
    "Raise `pass.lead_s`, so that passes are spread over a longer time before the opening.";

/// The way out where the server says "busy" and answers the others in time.
const MORE_ROOM: &str = "Raise `limits.in_flight` and `queue.capacity` if memory allows, or let fewer come at once: a \
                         `challenge` spreads the passes.";

/// The way out where answers come late: to take in more would make them later still.
const SOONER: &str = "Give the server more cores (`edge_threads`), or lower `limits.in_flight`, so that too much is told \
                      \"busy\" at once instead of late.";
/// The way out where less in flight is no help.
const FEWER: &str = "Give the server more cores (`edge_threads`), or let fewer come at once: a `challenge` spreads the \
                     passes.";

/// Something that stood in the way, and the way out.
struct Trouble {
    /// Whether the night does not hold because of it.
    breaks: bool,
    sentence: String,
    change: String,
}

/// Why nobody can tell whether it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// Nobody got as far as a try.
    NoTry,
    /// The crowd was too slow for its own timetable.
    Crowd,
    /// The crowd was at the end of its own processors when most was answered.
    Processors,
    /// Clicks waited for one of the crowd's sockets, at a server that kept up.
    Sockets,
}

/// What was offered and what came of it.
#[derive(Debug, Default)]
struct Load {
    totals: Snapshot,
    offered_per_s: u64,
    answered_per_s: u64,
    /// Of them, with a real answer and soon.
    served_per_s: u64,
    /// Tries that were told "busy".
    busy: u64,
    timeouts: u64,
    broken: u64,
    /// Buyers who went home without an answer.
    gave_up: u64,
    /// Buyers who were told to come later, to the last.
    shed: u64,
    /// Buyers who were told clearly that they get none.
    turned_away: u64,
    /// Buyers whom the crowd itself did not get as far as a try.
    stranded: u64,
    /// In the second in which most was answered the crowd could hardly have done more.
    at_its_limit: bool,
}

impl Load {
    fn of(record: &Record) -> Self {
        let mut load = Self { totals: record.facts.totals.clone(), ..Self::default() };
        let (mut due, mut told, mut served) = (Steps::default(), Steps::default(), Steps::default());
        for event in record.outcome.histories.iter().flat_map(|history| &history.events) {
            match &event.what {
                What::Order { .. } | What::Refused { call: Call::Try, .. } => {
                    due.count(event.asked_us);
                    told.count(event.told_us);
                    load.busy += u64::from(is_busy(&event.what));
                    if is_served(event) {
                        served.count(event.told_us);
                    }
                }
                What::Broken { call: Call::Try, why, .. } => {
                    due.count(event.asked_us);
                    let slow = why.contains("in time");
                    load.timeouts += u64::from(slow);
                    load.broken += u64::from(!slow);
                }
                What::GaveUp { why } => load.went_home(why),
                _ => {}
            }
        }
        (load.offered_per_s, load.answered_per_s) = (due.most_per_s(), told.most_per_s());
        load.served_per_s = served.most_per_s();
        let facts = &record.facts;
        let (from_us, to_us) = told.busiest_us();
        let effort = Effort::between(&facts.moments, from_us, to_us);
        load.at_its_limit = effort.is_some_and(|effort| effort.is_all(facts.threads, facts.cores));
        load
    }

    fn went_home(&mut self, why: &str) {
        let buyers = match why {
            // That the night was broken off is said once, for all.
            BROKEN_OFF => return,
            _ if was_shed(why) => &mut self.shed,
            _ if is_an_answer(why) => &mut self.turned_away,
            _ if is_our_own(why) => &mut self.stranded,
            _ => &mut self.gave_up,
        };
        *buyers += 1;
    }

    /// Whether so many of the tries that were to be made are too few to speak of the load that was wanted. Those that
    /// hung up have no time of their own.
    fn too_few(&self, tries: u64) -> bool {
        let planned = self.totals.late.count.saturating_add(self.stranded);
        tries.saturating_mul(100) < planned.saturating_mul(IN_TIME_PERCENT_MIN)
    }

    /// Why the wanted load was not offered, where that is not the server's doing.
    fn doubt(&self) -> Option<Doubt> {
        let Snapshot { tries, awake, in_time, .. } = self.totals;
        if tries == 0 {
            return Some(Doubt::NoTry);
        }
        if self.too_few(awake) {
            return Some(Doubt::Crowd);
        }
        let is_late = self.totals.click.p99_us > micros(ANSWER_WITHIN);
        if self.at_its_limit && !self.is_saturated() && (self.too_few(in_time) || is_late) {
            return Some(Doubt::Processors);
        }
        // A server that answers slowly keeps the sockets busy; one that keeps up does not.
        (self.too_few(in_time) && !self.is_saturated()).then_some(Doubt::Sockets)
    }

    /// Whether more was due than the server answered. Where nearly everybody hears at once, it is only how tenths of a
    /// second are counted; and a crowd that is late itself, or could not have asked for more, says nothing about it.
    fn is_saturated(&self) -> bool {
        let behind =
            self.answered_per_s.saturating_mul(100) < self.offered_per_s.saturating_mul(KEEPS_UP_PERCENT_MIN);
        let is_able = !self.at_its_limit && !self.too_few(self.totals.awake);
        self.too_many(self.busy) || (behind && self.totals.click.p99_us > micros(NOTICED) && is_able)
    }

    /// Whether those who were answered waited too long, and not for the crowd itself.
    fn is_slow(&self) -> bool {
        self.totals.click.p99_us > micros(ANSWER_WITHIN) && self.doubt().is_none()
    }

    /// Late answers and none come before "busy": more in flight would only make them later.
    fn way_out_of_busy(&self) -> &'static str {
        if self.timeouts > 0 || self.is_slow() { FEWER } else { MORE_ROOM }
    }

    fn refused(&self, code: Code) -> u64 {
        self.totals.refused.get(code.as_str()).copied().unwrap_or(0)
    }

    /// Whether this many of the tries are more than a few.
    fn too_many(&self, count: u64) -> bool {
        count.saturating_mul(1_000) > self.totals.tries.max(1).saturating_mul(SHED_PER_MILLE_MAX)
    }

    fn answer(&self, answer: Answer, buyers: u32) -> String {
        let crowd = many(buyers.into(), "buyer");
        if self.totals.tries == 0 {
            return format!("Nobody of {crowd} got as far as a try: nothing can be said about the sale.");
        }
        let p99 = span_us(self.totals.click.p99_us);
        match answer {
            Answer::Holds => format!("It holds: {crowd}, 99 of 100 heard within {p99} of their click."),
            Answer::DoesNotHold => {
                format!("It does not hold for {crowd}: 99 of 100 heard within {p99} of their click.")
            }
            Answer::CannotTell if self.doubt() == Some(Doubt::Processors) => format!(
                "It cannot be told whether it holds for {crowd}: the crowd itself could not do more. 99 of 100 heard within \
                 {p99} of their click."
            ),
            Answer::CannotTell => {
                let in_time = self.in_time_percent();
                format!(
                    "It cannot be told whether it holds for {crowd}: only {in_time} of 100 tries went out when they were \
                     due, {IN_TIME_PERCENT_MIN} are needed."
                )
            }
        }
    }

    fn in_time_percent(&self) -> u64 {
        let planned = self.totals.late.count.saturating_add(self.stranded);
        self.totals.in_time.saturating_mul(100).checked_div(planned).unwrap_or(0)
    }

    /// Where it saturates, or as much as is known of that.
    fn rates(&self) -> String {
        let (offered, served) = (thousands(self.offered_per_s), thousands(self.served_per_s));
        let but = if self.busy > 0 { ", \"busy\" not counted" } else { "" };
        let due = format!(
            "At the peak {offered} tries were due in a second and {served} were answered in time{but}"
        );
        match self.doubt() {
            _ if self.is_saturated() => format!("{due}: that is where it saturates."),
            Some(_) => format!(
                "{due}: it can take at least that. Where it saturates is not known, because the crowd did not offer more."
            ),
            None => format!(
                "{due}: it kept up. It saturates beyond that, at {served} in a second or more; send more buyers to find where."
            ),
        }
    }

    fn troubles(&self) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        self.generator_troubles(&mut troubles);
        self.shed_troubles(&mut troubles);
        self.slow_troubles(&mut troubles);
        troubles
    }

    /// What stood in the crowd's own way. It never breaks anything by itself: it is the reason for a doubt.
    fn generator_troubles(&self, troubles: &mut Vec<Trouble>) {
        let Snapshot { late, socket_wait, .. } = &self.totals;
        if self.stranded > 0 {
            troubles.push(Trouble {
                breaks: false,
                sentence: format!(
                    "{} got no pass, because this machine solved too few proofs of work.",
                    many(self.stranded, "buyer")
                ),
                change: "Send fewer buyers, give them more time (--within, --open-in), or run the crowd from a machine \
                         with more cores."
                    .to_owned(),
            });
        }
        if self.too_few(self.totals.awake) {
            troubles.push(Trouble {
                breaks: false,
                sentence: format!(
                    "The crowd itself was up to {} late for its clicks: this machine is too small for it.",
                    span_us(late.p99_us)
                ),
                change: OTHER_MACHINE.to_owned(),
            });
        }
        if self.doubt() == Some(Doubt::Processors) {
            troubles.push(Trouble {
                breaks: false,
                sentence: format!(
                    "When most was answered, this machine had no processor left for the crowd, and clicks waited up to {}.",
                    span_us(socket_wait.p99_us.max(late.p99_us))
                ),
                change: OTHER_MACHINE.to_owned(),
            });
        } else if socket_wait.p99_us > micros(NOTICED) || self.doubt() == Some(Doubt::Sockets) {
            let whose =
                if self.is_saturated() { ", because the server was slow with the calls before" } else { "" };
            troubles.push(Trouble {
                breaks: false,
                sentence: format!(
                    "Clicks waited up to {} for a free socket{whose}.",
                    span_us(socket_wait.p99_us)
                ),
                change: "Give the crowd more sockets with --connections, or run it from another machine; the server needs \
                         `limits.connections` for them."
                    .to_owned(),
            });
        }
    }

    fn shed_troubles(&self, troubles: &mut Vec<Trouble>) {
        if self.shed > 0 {
            troubles.push(Trouble {
                breaks: self.too_many(self.shed),
                sentence: format!("{} told to come later until they gave up.", were(self.shed, "buyer")),
                change: self.way_out_of_busy().to_owned(),
            });
        }
        let busy = self.refused(Code::Busy);
        if busy > 0 {
            troubles.push(Trouble {
                breaks: self.too_many(busy),
                sentence: format!("{} told \"busy\" and had to come again.", were(busy, "call")),
                change: self.way_out_of_busy().to_owned(),
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
                change: SOONER.to_owned(),
            });
        }
        let click = self.totals.click;
        if self.is_slow() {
            troubles.push(Trouble {
                breaks: true,
                sentence: format!(
                    "Answers took too long: 1 of 100 waited more than {}, half of them more than {}.",
                    span_us(click.p99_us),
                    span_us(click.p50_us)
                ),
                change: SOONER.to_owned(),
            });
        }
        if self.is_saturated() && self.doubt().is_none() {
            troubles.push(Trouble {
                breaks: true,
                sentence: "More tries came than it could answer.".to_owned(),
                change: FEWER.to_owned(),
            });
        }
        let Snapshot { late_passes, .. } = self.totals;
        if late_passes > 0 {
            // Who has no processor to spare is late to ask for passes, too, and to hear of them.
            let is_ours = self.doubt() == Some(Doubt::Processors);
            let change = if is_ours { OTHER_MACHINE } else { EARLIER_PASSES };
            troubles.push(Trouble {
                breaks: self.too_many(late_passes) && !is_ours,
                sentence: format!("{} no pass yet when they wanted to try.", had(late_passes)),
                change: change.to_owned(),
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
                // Some are meant to be turned away; when all are, there is no try, and nothing can be said.
                breaks: false,
                sentence: format!("{} turned away with a clear answer.", were(self.turned_away, "buyer")),
                change: "If they should have been let in, see in the report what they were told: the sale's `registration` \
                         and `strikes.*` decide."
                    .to_owned(),
            });
        }
    }
}

fn is_busy(what: &What) -> bool {
    matches!(what, What::Refused { code, .. } if code == Code::Busy.as_str())
}

/// Whether a try got a real answer, soon after its click.
fn is_served(event: &Told) -> bool {
    let shed = matches!(&event.what, What::Refused { status, .. } if *status >= 500);
    !shed && event.told_us.saturating_sub(event.asked_us) <= micros(ANSWER_WITHIN)
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

/// How long the stock of one offer lasts.
#[derive(Clone, Copy, Debug)]
enum SellsOut {
    Did(Duration),
    Would(Duration),
    /// More units than people who want them.
    TooMuch {
        units: u64,
        free: u64,
    },
    /// Nothing was sold.
    Unknown,
}

/// What became of the stock of every offer.
struct Lasting {
    /// By the operator's numbers. Empty: nobody has them.
    offers: Vec<(OfferId, String, SellsOut)>,
}

/// What the buyers know of one offer. Times are milliseconds since the opening.
#[derive(Debug, Default)]
struct Demand {
    /// Buyers who wanted it.
    came: u64,
    /// Of them, those who got it, for a while at least.
    got: u64,
    /// Units that were taken (+) and given back (-).
    moves: Vec<(u64, i64)>,
    /// When the newest order was made.
    last_ms: Option<u64>,
    /// When somebody first heard that it is sold out.
    sold_out_ms: Option<u64>,
}

impl Demand {
    fn of(record: &Record) -> BTreeMap<OfferId, Self> {
        let mut demands: BTreeMap<OfferId, Self> = BTreeMap::new();
        for history in &record.outcome.histories {
            let (mut wanted, mut got) = (BTreeSet::new(), BTreeSet::new());
            for told in &history.events {
                match &told.what {
                    What::Pass { offer, .. } => drop(wanted.insert(*offer)),
                    What::Refused { offer: Some(offer), code, .. } => {
                        wanted.insert(*offer);
                        if code == Code::SoldOut.as_str() {
                            let at_ms = heard_ms(record, told);
                            let first = &mut demands.entry(*offer).or_default().sold_out_ms;
                            *first = Some(first.map_or(at_ms, |first| first.min(at_ms)));
                        }
                    }
                    _ => {}
                }
            }
            for order in history.orders().into_iter().filter(|order| order.state != State::Refused) {
                got.insert(order.offer);
                demands.entry(order.offer).or_default().count(&order, record.facts.opens_at);
            }
            wanted.extend(&got);
            wanted.iter().for_each(|offer| demands.entry(*offer).or_default().came += 1);
            got.iter().for_each(|offer| demands.entry(*offer).or_default().got += 1);
        }
        demands
    }

    fn count(&mut self, order: &Seen, opens_at: UnixMs) {
        let (made_ms, units) = (opens_at.ms_until(order.created_at), i64::from(order.quantity));
        self.moves.push((made_ms, units));
        self.last_ms = self.last_ms.max(Some(made_ms));
        if let Some(closed_at) = order.closed_at.filter(|_| !order.is_live()) {
            self.moves.push((opens_at.ms_until(closed_at), -units));
        }
    }

    /// The most units that were taken at one moment, and the first moment at which that many or `enough` were.
    fn most_taken(&mut self, enough: u64) -> (u64, u64) {
        // What came back in the same millisecond was there to be taken.
        self.moves.sort_unstable();
        let (mut taken, mut most, mut since_ms) = (0_i64, 0_u64, 0);
        for (at_ms, units) in &self.moves {
            taken += units;
            let now = u64::try_from(taken).unwrap_or(0);
            if now > most && most < enough {
                (most, since_ms) = (now, *at_ms);
            }
        }
        (most, since_ms)
    }
}

/// When something was told, by the server's clock and since the opening.
fn heard_ms(record: &Record, told: &Told) -> u64 {
    let ms = i64::try_from(told.told_us / 1_000).unwrap_or(i64::MAX);
    let at = record.facts.started_at.plus_ms(record.facts.offset_ms).plus_ms(ms);
    record.facts.opens_at.ms_until(at)
}

impl Lasting {
    fn of(record: &Record) -> Self {
        let mut demands = Demand::of(record);
        let offer = |stats: &OfferStats| {
            let id = stats.offer_id;
            let known = record.facts.offers.iter().find(|offer| offer.id == id);
            let name = known.map_or_else(|| id.to_string(), |offer| offer.name.clone());
            (id, name, SellsOut::of(stats, demands.remove(&id).unwrap_or_default()))
        };
        let after = record.facts.after.as_ref();
        Self { offers: after.map_or(Vec::new(), |after| after.offers.iter().map(offer).collect()) }
    }

    fn offers(&self) -> Vec<OfferLasts> {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let lasts = |(offer, name, end): &(OfferId, String, SellsOut)| OfferLasts {
            offer: *offer,
            name: name.clone(),
            sells_out_within_ms: end.within().map(ms),
        };
        self.offers.iter().map(lasts).collect()
    }

    fn sentence(&self) -> String {
        match self.offers.as_slice() {
            [] => "The operator's numbers are missing, so nobody can say when it sells out.".to_owned(),
            [(_, _, end)] => end.sentence(),
            offers if offers.iter().all(|(_, _, end)| matches!(end, SellsOut::Unknown)) => {
                SellsOut::Unknown.sentence()
            }
            offers => {
                let shown = offers.iter().take(OFFERS_SHOWN_MAX);
                let mut parts: Vec<String> = shown.map(|(_, name, end)| end.of_offer(name)).collect();
                let rest: Vec<_> = offers.iter().skip(OFFERS_SHOWN_MAX).collect();
                if !rest.is_empty() {
                    let number = |count| u64::try_from(count).unwrap_or(u64::MAX);
                    let sold = rest.iter().filter(|(_, _, end)| end.within().is_some()).count();
                    let (sold, rest) = (thousands(number(sold)), many(number(rest.len()), "more offer"));
                    parts.push(format!("of {rest}, {sold} would sell out"));
                }
                format!("{}.", parts.join("; "))
            }
        }
    }
}

impl SellsOut {
    fn of(stats: &OfferStats, mut demand: Demand) -> Self {
        let (stock, free) = (u64::from(stats.stock), u64::from(stats.free));
        let (most, since_ms) = demand.most_taken(stock);
        let did = Duration::from_millis;
        match (demand.sold_out_ms, demand.last_ms) {
            (_, None) => Self::Unknown,
            _ if most >= stock => Self::Did(did(since_ms)),
            // All were taken, some of them by orders that no buyer has seen.
            (Some(told_ms), _) => Self::Did(did(told_ms)),
            (None, Some(last_ms)) if free == 0 => Self::Did(did(last_ms)),
            // Everybody who came got one: the rest would need more people, at the pace of these.
            _ if demand.got >= demand.came => Self::TooMuch { units: stock, free },
            _ => {
                let part = |units: u64| f64::from(u32::try_from(units).unwrap_or(u32::MAX).max(1));
                Self::Would(did(since_ms).mul_f64(part(stock) / part(most)))
            }
        }
    }

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
            Self::TooMuch { units, free } => format!("It does not sell out: {}.", left_over(*units, *free)),
            Self::Unknown => "Nothing was sold, so nobody can say when it sells out.".to_owned(),
        }
    }

    /// As a part of a sentence about several offers.
    fn of_offer(&self, name: &str) -> String {
        match self {
            Self::Did(time) => format!("`{name}` sells out {} after the opening", span(*time)),
            Self::Would(time) => {
                format!("`{name}` would sell out {} after the opening at this pace", span(*time))
            }
            Self::TooMuch { units, free } => {
                format!("`{name}` does not sell out: {}", left_over(*units, *free))
            }
            Self::Unknown => format!("nothing was sold of `{name}`"),
        }
    }
}

fn left_over(units: u64, free: u64) -> String {
    format!("everybody got one, and {} of {} are left", thousands(free), many(units, "unit"))
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
        self.busiest().0
    }

    /// From when to when that was, in microseconds.
    fn busiest_us(&self) -> (u64, u64) {
        let us = |step: usize| u64::try_from(step).unwrap_or(0).saturating_mul(STEP_US);
        let (_, Reverse(first)) = self.busiest();
        (us(first), us(first.saturating_add(STEPS_PER_S)))
    }

    /// The most in any second, and the step with which the first such begins.
    fn busiest(&self) -> (u64, Reverse<usize>) {
        let seconds = self.0.windows(STEPS_PER_S).enumerate();
        let all = || (self.0.iter().sum(), Reverse(0));
        seconds.map(|(first, second)| (second.iter().sum(), Reverse(first))).max().unwrap_or_else(all)
    }
}

#[cfg(test)]
mod tests {
    use rules::id::{OrderId, SaleId};
    use rules::order::Reason;
    use rules::sale::{Phase, SaleState};
    use rules::wire::{Funnel, QueueStats, Stats};

    use super::*;
    use crate::crowd::{Outcome, Percentiles};
    use crate::effort::Moment;
    use crate::history::History;
    use crate::record::{Facts, OfferFacts};

    const OPENS_AT: UnixMs = UnixMs(1_800_000_000_000);

    /// A night of 100 buyers and 10 units, sold within 900 ms; everybody heard at once.
    fn night() -> Record {
        let totals = Snapshot {
            arrived: 100,
            passes: 100,
            tries: 100,
            won: 10,
            in_time: 100,
            awake: 100,
            refused: BTreeMap::from([("sold_out".to_owned(), 90)]),
            click: Percentiles { count: 100, p50_us: 1_000, p90_us: 2_000, p99_us: 3_000, max_us: 4_000 },
            late: Percentiles { count: 100, ..Percentiles::default() },
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
            threads: 1,
            moments: vec![],
            kernel: "linux".into(),
            connections: 8,
            command: "stampede rehearse".into(),
            notes: vec![],
            gathered_at: None,
            missing: vec![],
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
        assert!(said.holds && said.answer == Answer::Holds, "{said:?}");
        assert_eq!(
            (said.offered_per_s, said.answered_per_s, said.sells_out_within_ms),
            (100, 100, Some(900))
        );
        assert_eq!((said.at_least_per_s, said.saturates_at_per_s), (100, None));
        assert_eq!(
            said.sentences,
            [
                "It holds: 100 buyers, 99 of 100 heard within 3.0 ms of their click.",
                "At the peak 100 tries were due in a second and 100 were answered in time: it kept up. It saturates \
                 beyond that, at 100 in a second or more; send more buyers to find where.",
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
            // A few clicks late are no reason to doubt; more than one in twenty are.
            (|night| night.facts.totals.socket_wait.p99_us = 900_000, true, "--connections"),
            (
                |night| (night.facts.totals.in_time, night.facts.totals.awake) = (94, 94),
                false,
                "another machine",
            ),
            (
                |night| give_up(night, "the crowd itself: no proof of work was solved in time"),
                false,
                "more cores",
            ),
            (|night| give_up(night, "no order: busy"), false, "limits.in_flight"),
            (|night| give_up(night, "no pass: too_fast"), false, "limits.in_flight"),
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

    #[test]
    fn a_load_that_was_never_offered_cannot_be_judged() {
        // The crowd was late itself: slow answers say nothing about the server.
        let said = change(|night| {
            let totals = &mut night.facts.totals;
            (totals.in_time, totals.awake, totals.late.p99_us) = (60, 60, 5_000_000);
            (totals.click.p99_us, totals.socket_wait.p99_us) = (5_100_000, 1_000);
        });
        assert_eq!((said.answer, said.holds), (Answer::CannotTell, false), "{said:?}");
        assert_eq!(
            said.sentences[0],
            "It cannot be told whether it holds for 100 buyers: only 60 of 100 tries went out when they were due, 95 are \
             needed."
        );
        assert!(said.sentences[1].contains("it can take at least that"), "{said:?}");
        assert_eq!(said.changes.len(), 1, "{said:?}");
        // Too few sockets, at a server that answers all it is sent.
        let said = change(|night| {
            let totals = &mut night.facts.totals;
            (totals.in_time, totals.socket_wait.p99_us, totals.click.p99_us) = (60, 3_000_000, 3_000_000);
        });
        assert_eq!((said.answer, said.holds), (Answer::CannotTell, false), "{said:?}");
        assert!(said.changes[0].contains("--connections"), "{said:?}");
    }

    #[test]
    fn who_waits_for_a_socket_of_a_slow_server_waits_for_the_server() {
        let said = change(|night| {
            slow_down(night);
            let totals = &mut night.facts.totals;
            (totals.in_time, totals.socket_wait.p99_us, totals.call.p99_us) = (30, 9_000_000, 100_000);
        });
        assert_eq!((said.answer, said.holds), (Answer::DoesNotHold, false), "{said:?}");
        assert_eq!(said.saturates_at_per_s, Some(10), "{said:?}");
        assert!(said.sentences.iter().any(|said| said.contains("because the server was slow")), "{said:?}");
    }

    /// On a machine that they share, a crowd at the end of its processors and a slow server look the same from outside.
    #[test]
    fn a_crowd_without_a_processor_to_spare_cannot_tell() {
        let at_its_limit = |in_time: u64, click_us: u64, crowd_percent: u64| {
            change(|night| {
                slow_down(night);
                night.facts.moments = busy(crowd_percent);
                let totals = &mut night.facts.totals;
                (totals.in_time, totals.socket_wait.p99_us) = (in_time, 1_400_000);
                totals.late_passes = 50;
                totals.click.p99_us = click_us;
            })
        };
        for (in_time, click_us) in [(30, 1_400_000), (100, 9_000_000)] {
            let said = at_its_limit(in_time, click_us, 99);
            assert_eq!((said.answer, said.saturates_at_per_s), (Answer::CannotTell, None), "{said:?}");
            assert!(said.sentences[0].contains("the crowd itself could not do more"), "{said:?}");
            assert!(said.sentences[1].contains("it can take at least that"), "{said:?}");
            assert_eq!(said.changes, [OTHER_MACHINE], "{said:?}");
        }
        let said = at_its_limit(30, 1_400_000, 50);
        assert_eq!((said.answer, said.saturates_at_per_s), (Answer::DoesNotHold, Some(10)), "{said:?}");
        // Everybody heard in time: then it holds, whoever was busy.
        let said = change(|night| night.facts.moments = busy(99));
        assert_eq!(said.answer, Answer::Holds, "{said:?}");
    }

    #[test]
    fn a_night_that_was_broken_off_does_not_hold() {
        let said = change(|night| night.facts.miss(Part::End, "the server was silent for 30 s"));
        assert_eq!(said.answer, Answer::DoesNotHold, "{said:?}");
        assert!(said.sentences[1].contains("the server was silent for 30 s"), "{said:?}");
        assert_eq!(said.changes, ["See in the report what the buyers were told."]);
    }

    /// A crowd that uses so much of one processor, all the time.
    fn busy(percent: u64) -> Vec<Moment> {
        let moment = |at_us: u64| {
            let crowd_us = at_us * percent / 100;
            Moment { at_us, crowd_us, machine_us: crowd_us }
        };
        (0..200).map(|step| moment(step * 100_000)).collect()
    }

    /// The answers come at ten a second.
    fn slow_down(night: &mut Record) {
        night.facts.totals.click.p99_us = 9_000_000;
        for (number, history) in (0..).zip(&mut night.outcome.histories) {
            history.events[0].told_us = 1_000_000 + number * 100_000;
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
        let said = change(slow_down);
        assert_eq!((said.offered_per_s, said.answered_per_s), (100, 10));
        assert_eq!((said.answer, said.holds), (Answer::DoesNotHold, false), "{said:?}");
        assert!(said.sentences[1].ends_with("that is where it saturates."), "{said:?}");
        assert!(said.changes.iter().any(|change| change.contains("edge_threads")), "{said:?}");
    }

    /// What the losers were told instead of "sold out".
    fn tell_losers(night: &mut Record, other: Code) {
        night.facts.totals.refused.clear();
        for told in night.outcome.histories.iter_mut().flat_map(|history| &mut history.events) {
            if let What::Refused { code, .. } = &mut told.what {
                *code = other.as_str().to_owned();
            }
        }
    }

    #[test]
    fn stock_that_lasts_is_said_and_predicted() {
        let said = change(|night| {
            tell_losers(night, Code::TooFast);
            let offer = &mut night.facts.after.as_mut().unwrap().offers[0];
            (offer.stock, offer.free) = (20, 10);
        });
        assert_eq!(said.sells_out_within_ms, Some(1_800));
        assert!(
            said.sentences.last().unwrap().starts_with("At this pace it would sell out 1.8 s"),
            "{said:?}"
        );
        let said = change(|night| {
            night.outcome.histories.retain(|history| !history.orders().is_empty());
            let offer = &mut night.facts.after.as_mut().unwrap().offers[0];
            (offer.stock, offer.free) = (13, 3);
        });
        assert!(
            said.sentences.last().unwrap().contains("everybody got one, and 3 of 13 units are left"),
            "{said:?}"
        );
        let said = change(|night| night.outcome.histories.clear());
        assert!(said.sentences.last().unwrap().starts_with("Nothing was sold"), "{said:?}");
        let said = change(|night| night.facts.after = None);
        assert!(said.sentences.last().unwrap().starts_with("The operator's numbers"), "{said:?}");
    }

    fn order_of(buyer: &mut History) -> &mut Seen {
        match &mut buyer.events[0].what {
            What::Order { order, .. } => order,
            other => panic!("no order is shown by {other:?}"),
        }
    }

    /// A second offer with so many units; buyers from this number on came for it, and whoever was refused got one, too.
    fn second_offer(night: &mut Record, stock: u32, from: usize) {
        let name = |id, name: &str| OfferFacts { id, name: name.to_owned(), stock: None };
        night.facts.offers = vec![name(OfferId(1), "A"), name(OfferId(2), "B")];
        let mut sold = 0;
        for (number, buyer) in night.outcome.histories.iter_mut().enumerate().skip(from) {
            *buyer = history(0, 0);
            let order = order_of(buyer);
            (order.id, order.offer) = (OrderId(u128::try_from(1_000 + number).unwrap()), OfferId(2));
            order.created_at = OPENS_AT.plus_ms(5_000);
            sold += 1;
        }
        let free = stock - sold;
        let offer = OfferStats { offer_id: OfferId(2), stock, free, held: sold, sold: 0, returning: 0 };
        night.facts.after.as_mut().unwrap().offers.push(offer);
    }

    #[test]
    fn each_offer_sells_out_by_itself() {
        // Somebody was told "sold out", of the other offer; the newest order is of the one that does not.
        let said = change(|night| second_offer(night, 30, 95));
        assert_eq!(
            said.sentences.last().unwrap(),
            "`A` sells out 900 ms after the opening; `B` does not sell out: everybody got one, and 25 of 30 units are left."
        );
        let within: Vec<_> = said.offers.iter().map(|offer| offer.sells_out_within_ms).collect();
        assert_eq!((said.sells_out_within_ms, within), (None, vec![Some(900), None]));
        let said = change(|night| second_offer(night, 5, 95));
        assert_eq!(
            said.sentences.last().unwrap(),
            "`A` sells out 900 ms after the opening; `B` sells out 5.0 s after the opening."
        );
        assert_eq!(said.sells_out_within_ms, Some(5_000));
        let said = change(|night| {
            second_offer(night, 30, 95);
            let after = night.facts.after.as_mut().unwrap();
            let more = (3..=9).map(|id| OfferStats { offer_id: OfferId(id), ..after.offers[1] });
            after.offers.extend(more.collect::<Vec<_>>());
        });
        assert!(
            said.sentences.last().unwrap().ends_with("; of 4 more offers, 0 would sell out."),
            "{said:?}"
        );
    }

    #[test]
    fn units_that_come_back_do_not_move_the_moment_it_was_sold_out() {
        // Half of the winners gave theirs back: some units found others much later, some nobody.
        let give_back = |night: &mut Record| {
            for number in [0, 10, 20, 30, 40] {
                let order = order_of(&mut night.outcome.histories[number]);
                (order.state, order.reason) = (State::Closed, Some(Reason::Cancelled));
                order.closed_at = Some(OPENS_AT.plus_ms(3_000));
            }
            let mut late = history(0, 7_000_000);
            let order = order_of(&mut late);
            (order.id, order.created_at) = (OrderId(500), OPENS_AT.plus_ms(7_000));
            night.outcome.histories.push(late);
            night.facts.after.as_mut().unwrap().offers[0].free = 4;
        };
        let said = change(give_back);
        assert_eq!(said.sells_out_within_ms, Some(900));
        assert_eq!(said.sentences.last().unwrap(), "It sells out 900 ms after the opening.");
        // They came back before all were taken, and nobody heard "sold out": it never was.
        let said = change(|night| {
            give_back(night);
            tell_losers(night, Code::Busy);
            for number in [0, 10, 20, 30, 40] {
                order_of(&mut night.outcome.histories[number]).closed_at = Some(OPENS_AT.plus_ms(450));
            }
        });
        assert!(said.sentences.last().unwrap().starts_with("At this pace it would sell out"), "{said:?}");
    }

    #[test]
    fn advice_does_not_contradict_itself() {
        type Trouble = (&'static str, fn(&mut Record));
        let troubles: &[Trouble] = &[
            ("busy", |night| tell(night, "busy", 50)),
            ("shed", |night| give_up(night, "no order: busy")),
            ("timeouts", |night| night.outcome.histories.push(broken_tries("no answer in time"))),
            ("slow", |night| night.facts.totals.click.p99_us = 9_000_000),
            ("saturated", slow_down),
            ("late passes", |night| night.facts.totals.late_passes = 50),
        ];
        for mask in 1_u32..1 << troubles.len() {
            let chosen: Vec<&Trouble> =
                (0..).zip(troubles).filter(|(bit, _)| (mask >> bit) & 1 == 1).map(|(_, one)| one).collect();
            let said = change(|night| chosen.iter().for_each(|(_, falsify)| falsify(night)));
            let names: Vec<_> = chosen.iter().map(|(name, _)| *name).collect();
            let advises =
                |words: &str| said.changes.iter().any(|change| change.to_lowercase().contains(words));
            let (raise, lower) = (advises("raise `limits.in_flight`"), advises("lower `limits.in_flight`"));
            assert!(!(raise && lower), "{names:?}: {:#?}", said.changes);
            // Late answers beat "busy".
            let is_late = ["timeouts", "slow", "saturated"].iter().any(|name| names.contains(name));
            assert!(!is_late || (lower && !raise), "{names:?}: {:#?}", said.changes);
            let mut once = said.changes.clone();
            once.sort();
            once.dedup();
            assert_eq!(once.len(), said.changes.len(), "{names:?}: {:#?}", said.changes);
        }
    }
}
