//! Every number of the report, summed up from the histories. It draws nothing; page and JSON say what is here, so
//! they cannot disagree.

use std::collections::BTreeMap;

use rules::id::{OfferId, OrderId};
use rules::order::{Reason, State};
use rules::time::UnixMs;
use rules::wire::Code;
use serde::Serialize;

use super::Input;
use super::calls::{Answer, Exchange, Kind, exchange};
use super::fairness::{Fairness, Place};
use super::series::{Axis, Series};
use super::stock::{self, Burn};
use super::words::length;
use crate::history::{Call, History, What};

/// Different answers that are counted one by one; a server that makes up more is summed up.
const CODES_MAX: usize = 64;
/// Reasons that are named for one loss of the funnel.
const REASONS_MAX: usize = 4;
/// What becomes of the rest.
const OTHER: &str = "other";

#[derive(Debug, Serialize)]
pub(super) struct Digest {
    pub axis: Axis,
    pub series: Series,
    /// The time around the opening, unless the whole run is hardly longer.
    pub opening: Option<Series>,
    pub answers: Vec<AnswerRow>,
    /// By kind of call.
    pub latency_us: BTreeMap<Kind, Latency>,
    pub funnel: Funnel,
    pub click_to_final: ClickToFinal,
    pub fairness: Fairness,
    pub roles: Vec<Role>,
    pub stock: Vec<Burn>,
}

/// All answers of one sort.
#[derive(Debug, Serialize)]
pub(super) struct AnswerRow {
    pub call: Kind,
    pub kind: Answer,
    pub status: u16,
    pub code: String,
    pub count: u64,
    /// Of those that say something about the server; see `Exchange::timed`.
    pub latency_us: Latency,
}

/// Exact percentiles: the smallest value that at least this share of all did not exceed.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Latency {
    pub count: u64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub p999: u64,
    pub max: u64,
    /// For the picture: (parts, of so many, value).
    #[serde(skip)]
    pub curve: Vec<(u64, u64, u64)>,
}

/// How many buyers came how far.
#[derive(Debug, Default, Serialize)]
pub(super) struct Funnel {
    pub arrived: u64,
    pub passes: u64,
    pub tried: u64,
    /// POSTs of orders.
    pub tries: u64,
    pub granted: u64,
    pub recorded: u64,
    pub paid: u64,
    /// Why they went no further, most frequent first: before a pass, a try, a grant, a record, a payment.
    pub losses: [Vec<(String, u64)>; 5],
}

/// From the first click in time to the answer that ended the matter.
#[derive(Debug, Default, Serialize)]
pub(super) struct ClickToFinal {
    pub won_us: Latency,
    pub refused_us: Latency,
    /// Buyers who clicked and never learned.
    pub unanswered: u64,
}

/// How one kind of buyer did.
#[derive(Debug, Default, Serialize)]
pub(super) struct Role {
    pub name: String,
    pub buyers: u64,
    pub tries: u64,
    pub winners: u64,
    pub paid: u64,
}

/// One history in a few numbers. Times are microseconds since the start.
#[derive(Debug, Default)]
pub(super) struct Buyer {
    pub arrived: bool,
    pub has_pass: bool,
    pub offer: Option<OfferId>,
    pub tries: u64,
    /// When the first try was sent that did not come too early.
    pub in_line_us: Option<u64>,
    pub is_granted: bool,
    pub is_recorded: bool,
    pub is_paid: bool,
    pub units: u64,
    /// When the buyer learned how it ended.
    pub final_us: Option<u64>,
    /// Why it ended where it did.
    pub end: String,
}

impl Digest {
    pub fn of(input: &Input<'_>) -> Self {
        let buyers: Vec<Buyer> = input.histories.iter().map(Buyer::of).collect();
        let axis = Axis::of(input);
        let (series, opening) = Series::whole_and_opening(input, axis);
        let stock = |offer: &super::Offer<'_>| Some((offer.id, u64::from(offer.stock?)));
        let places = input.offers.iter().filter_map(stock).collect();
        Self {
            axis,
            series,
            opening,
            answers: answers(input.histories),
            latency_us: latency_by_kind(input.histories),
            funnel: Funnel::of(&buyers),
            click_to_final: ClickToFinal::of(&buyers),
            fairness: Fairness::of(&line(&buyers), &places),
            roles: roles(input.roles, &buyers),
            stock: stock::burn_down(input, axis),
        }
    }

    /// Answers of one kind, over the whole run.
    pub fn answered(&self, kind: Answer) -> u64 {
        self.answers.iter().filter(|row| row.kind == kind).map(|row| row.count).sum()
    }

    pub fn latency(&self, kind: Kind) -> Option<&Latency> {
        self.latency_us.get(&kind).filter(|latency| latency.count > 0)
    }
}

impl Latency {
    pub fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        let at = |parts, whole| percentile(&values, parts, whole);
        let count = length(values.len());
        Self {
            count,
            p50: at(50, 100),
            p90: at(90, 100),
            p99: at(99, 100),
            p999: at(999, 1_000),
            max: values.last().copied().unwrap_or(0),
            curve: curve(&values),
        }
    }
}

/// `values` are sorted.
fn percentile(values: &[u64], parts: u64, whole: u64) -> u64 {
    let rank = length(values.len()).saturating_mul(parts).div_ceil(whole.max(1));
    let position = usize::try_from(rank.saturating_sub(1)).unwrap_or(usize::MAX);
    values.get(position).copied().unwrap_or(0)
}

/// Ever closer to 100 %, as far as there are values to tell the difference.
fn curve(values: &[u64]) -> Vec<(u64, u64, u64)> {
    let count = length(values.len());
    let coarse = (0..90).step_by(5).map(|parts| (parts, 100));
    let fine = (1..=5).flat_map(|nines| {
        let whole = 10_u64.pow(nines + 1);
        (0..9).map(move |step| (whole - 10 + step, whole))
    });
    let known = coarse.chain(fine).filter(|(parts, whole)| count.saturating_mul(whole - parts) >= *whole);
    known.map(|(parts, whole)| (parts, whole, percentile(values, parts, whole))).collect()
}

fn answers(histories: &[History]) -> Vec<AnswerRow> {
    let mut rows: BTreeMap<(Kind, u16, &str), Tally> = BTreeMap::new();
    for told in histories.iter().flat_map(|history| &history.events) {
        let Some(Exchange { kind, answer, status, code, timed }) = exchange(&told.what) else { continue };
        let mut key = (kind, status, code);
        if rows.len() >= CODES_MAX && !rows.contains_key(&key) {
            key = (kind, status, OTHER);
        }
        let tally = rows.entry(key).or_insert(Tally { answer, count: 0, latency_us: Vec::new() });
        tally.count += 1;
        if timed {
            tally.latency_us.push(told.told_us.saturating_sub(told.asked_us));
        }
    }
    let row = |((call, status, code), tally): (_, Tally)| {
        let Tally { answer: kind, count, latency_us } = tally;
        let code = String::from(code);
        AnswerRow { call, kind, status, code, count, latency_us: Latency::of(latency_us) }
    };
    rows.into_iter().map(row).collect()
}

struct Tally {
    answer: Answer,
    count: u64,
    latency_us: Vec<u64>,
}

fn latency_by_kind(histories: &[History]) -> BTreeMap<Kind, Latency> {
    let mut values: BTreeMap<Kind, Vec<u64>> = Kind::ALL.into_iter().map(|kind| (kind, Vec::new())).collect();
    for told in histories.iter().flat_map(|history| &history.events) {
        let timed = exchange(&told.what).filter(|exchange| exchange.timed);
        if let Some(values) = timed.and_then(|exchange| values.get_mut(&exchange.kind)) {
            values.push(told.told_us.saturating_sub(told.asked_us));
        }
    }
    values.into_iter().map(|(kind, values)| (kind, Latency::of(values))).collect()
}

impl Buyer {
    fn of(history: &History) -> Self {
        let mut buyer =
            Self { arrived: !history.events.is_empty(), offer: history.offer(), ..Self::default() };
        let mut refused_us = None;
        let mut learned_us = None;
        for told in &history.events {
            match &told.what {
                What::Window { .. } | What::Offset { .. } | What::Registered => {}
                What::Pass { .. } => buyer.has_pass = true,
                What::Order { .. } | What::HungUp { .. } | What::Broken { call: Call::Try, .. } => {
                    buyer.clicks(told.asked_us);
                }
                What::Refused { call: Call::Try, code, .. } => {
                    if code == Code::NotOpen.as_str() {
                        buyer.tries += 1;
                    } else {
                        buyer.clicks(told.asked_us);
                    }
                    refused_us = Some(told.told_us);
                }
                What::Looked { .. } | What::Refused { .. } | What::Broken { .. } => {}
                What::Watching | What::NotPushed { .. } | What::Pushed { .. } | What::Cancelled { .. } => {}
                What::Payment { .. } | What::Paid { .. } | What::NoPayment { .. } => {}
                What::GaveUp { .. } => refused_us = None,
            }
            let shown = match &told.what {
                What::Order { order, .. } | What::Pushed { order } | What::Cancelled { order } => Some(order),
                What::Looked { found, last: false, .. } => found.as_ref(),
                _ => None,
            };
            if shown.is_some_and(|seen| seen.state != State::Queued) && learned_us.is_none() {
                learned_us = Some(told.told_us);
            }
        }
        buyer.see_orders(history);
        buyer.final_us = if buyer.is_granted { learned_us } else { learned_us.or(refused_us) };
        buyer.end = buyer.reason(history);
        buyer
    }

    fn clicks(&mut self, asked_us: u64) {
        self.tries += 1;
        self.in_line_us = Some(self.in_line_us.map_or(asked_us, |first| first.min(asked_us)));
    }

    /// A buyer who hung up and learned of the order only by the last look has won all the same.
    fn see_orders(&mut self, history: &History) {
        for (_, seen) in history.seen() {
            self.is_granted |= seen.state != State::Refused;
            match seen.state {
                State::Queued | State::Refused => {}
                State::AwaitingPayment | State::Closed => self.is_recorded = true,
                State::Paid | State::Refunding | State::Refunded | State::RefundFailed => {
                    self.is_recorded = true;
                    self.is_paid = true;
                }
            }
        }
        self.units =
            history.orders().iter().filter(|seen| seen.is_live()).map(|seen| u64::from(seen.quantity)).sum();
    }

    /// The last word, for the funnel's losses.
    fn reason(&self, history: &History) -> String {
        if let Some(seen) = history.orders().last() {
            return match (seen.state, seen.reason) {
                (State::Closed, Some(Reason::Timeout)) => "not paid in time".into(),
                (State::Closed, Some(Reason::Cancelled)) => "cancelled".into(),
                (State::AwaitingPayment, _) => "not paid yet".into(),
                (State::Queued, _) => "still queued".into(),
                (state, _) => state.as_str().replace('_', " "),
            };
        }
        let last = history.events.iter().rev().find_map(|told| match &told.what {
            What::Refused { code, .. } => Some(code.replace('_', " ")),
            // A push is a hint: who lost it has the answer that came before.
            What::Broken { call: Call::Push, .. } => None,
            What::Broken { .. } => Some("no answer".into()),
            What::HungUp { .. } => Some("hung up".into()),
            What::GaveUp { why } => Some(why.clone()),
            What::Window { .. }
            | What::Offset { .. }
            | What::Registered
            | What::Pass { .. }
            | What::Order { .. }
            | What::Watching
            | What::NotPushed { .. }
            | What::Pushed { .. }
            | What::Cancelled { .. }
            | What::Payment { .. }
            | What::Paid { .. }
            | What::NoPayment { .. }
            | What::Looked { .. } => None,
        });
        last.unwrap_or_else(|| "left without a word".into())
    }
}

impl Funnel {
    fn of(buyers: &[Buyer]) -> Self {
        let mut funnel = Self::default();
        let mut losses: [BTreeMap<&str, u64>; 5] = Default::default();
        for buyer in buyers.iter().filter(|buyer| buyer.arrived) {
            funnel.arrived += 1;
            funnel.tries += buyer.tries;
            let stages = [
                (buyer.has_pass, &mut funnel.passes),
                (buyer.tries > 0, &mut funnel.tried),
                (buyer.is_granted, &mut funnel.granted),
                (buyer.is_recorded, &mut funnel.recorded),
                (buyer.is_paid, &mut funnel.paid),
            ];
            for ((reached, stage), lost) in stages.into_iter().zip(&mut losses) {
                if !reached {
                    *lost.entry(&buyer.end).or_default() += 1;
                    break;
                }
                *stage += 1;
            }
        }
        funnel.losses = losses.map(most_frequent);
        funnel
    }
}

fn most_frequent(reasons: BTreeMap<&str, u64>) -> Vec<(String, u64)> {
    let mut reasons: Vec<_> = reasons.into_iter().map(|(why, count)| (why.to_owned(), count)).collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    if reasons.len() > REASONS_MAX {
        let rest = reasons.split_off(REASONS_MAX - 1);
        reasons.push(("other reasons".into(), rest.iter().map(|(_, count)| count).sum()));
    }
    reasons
}

impl ClickToFinal {
    fn of(buyers: &[Buyer]) -> Self {
        let (mut won, mut refused, mut unanswered) = (Vec::new(), Vec::new(), 0);
        for buyer in buyers {
            let Some(in_line_us) = buyer.in_line_us else { continue };
            match buyer.final_us {
                Some(final_us) if buyer.is_granted => won.push(final_us.saturating_sub(in_line_us)),
                Some(final_us) => refused.push(final_us.saturating_sub(in_line_us)),
                None => unanswered += 1,
            }
        }
        Self { won_us: Latency::of(won), refused_us: Latency::of(refused), unanswered }
    }
}

fn line(buyers: &[Buyer]) -> Vec<Place> {
    let place = |buyer: &Buyer| {
        let (offer, in_line_us) = (buyer.offer?, buyer.in_line_us?);
        Some(Place { offer, in_line_us, won: buyer.is_recorded, units: buyer.units })
    };
    buyers.iter().filter_map(place).collect()
}

fn roles(names: &[&str], buyers: &[Buyer]) -> Vec<Role> {
    let mut roles: BTreeMap<&str, Role> = BTreeMap::new();
    for (name, buyer) in names.iter().zip(buyers) {
        let known = roles.len() < CODES_MAX || roles.contains_key(name);
        let name = if known { *name } else { OTHER };
        let role = roles.entry(name).or_insert_with(|| Role { name: name.to_owned(), ..Role::default() });
        role.buyers += 1;
        role.tries += buyer.tries;
        role.winners += u64::from(buyer.is_recorded);
        role.paid += u64::from(buyer.is_paid);
    }
    roles.into_values().collect()
}

/// Orders of one history, each with the moments at which it was first granted and first seen to be over.
pub(super) fn holdings(history: &History) -> BTreeMap<OrderId, Holding> {
    let mut holdings: BTreeMap<OrderId, Holding> = BTreeMap::new();
    for (told, seen) in history.seen() {
        let holding = holdings.entry(seen.id).or_insert(Holding {
            offer: seen.offer,
            quantity: seen.quantity,
            made_at: seen.created_at,
            from_us: None,
            until_us: None,
            back_us: None,
        });
        if seen.is_live() {
            holding.from_us.get_or_insert(told.told_us);
            // Late money may have brought it back to life.
            (holding.until_us, holding.back_us) = (None, None);
        } else {
            // A unit that is given back may be somebody else's before the giver hears that it was taken back.
            let gives_back = matches!(told.what, What::Cancelled { .. });
            holding.back_us.get_or_insert(if gives_back { told.asked_us } else { told.told_us });
            holding.until_us.get_or_insert(told.told_us);
        }
    }
    holdings
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    pub offer: OfferId,
    pub quantity: u32,
    /// By the server's clock.
    pub made_at: UnixMs,
    pub from_us: Option<u64>,
    /// When its buyer heard that it is over.
    pub until_us: Option<u64>,
    /// From when on the units may have been somebody else's.
    pub back_us: Option<u64>,
}
