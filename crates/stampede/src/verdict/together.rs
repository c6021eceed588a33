//! All histories against each other and against what an operator can read: who owns what, how many units there are,
//! when the window was open. What one history says of itself is in `alone`.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use rules::id::{OfferId, OrderId};
use rules::order::{Reason, State};
use rules::time::UnixMs;
use rules::wire::{Code, OfferStats, OperatorOrder, OrderView, Stats};

use super::Evidence;
use super::alone::{CLOCK_MARGIN_MS, is_old, last_look};
use super::finding::Finding;
use super::{life, supply};
use crate::history::{Call, History, Seen, What, is_unsure};

pub(super) fn judge(evidence: &Evidence<'_>, findings: &mut Vec<Finding>) {
    let histories = evidence.histories;
    judge_window(histories, findings);
    judge_errors(histories, findings);
    findings.extend(never_pushed(histories));
    if !evidence.broken_off {
        findings.extend(unanswered(histories));
    }
    if let Some(audit) = evidence.audit.filter(|audit| !audit.clean) {
        let said = audit.findings.iter();
        findings.extend(
            said.map(|found| Finding::Audit { kind: found.kind.clone(), detail: found.detail.clone() }),
        );
        if audit.findings.is_empty() {
            let (kind, detail) = ("not clean".to_owned(), "no finding is named.".to_owned());
            findings.push(Finding::Audit { kind, detail });
        }
    }
    if let Some(after) = evidence.after {
        judge_stats(evidence, after, findings);
        supply::judge(evidence, after, findings);
    }
    judge_books(evidence, findings);
}

pub(super) fn judge_owners(histories: &[History], findings: &mut Vec<Finding>) {
    let mut owners: HashMap<OrderId, &str> = HashMap::new();
    let mut passes: HashMap<OrderId, &str> = HashMap::new();
    for history in histories {
        for order in history.orders() {
            let first = *owners.entry(order.id).or_insert(&history.buyer);
            if first != history.buyer {
                let (first, second) = (first.to_owned(), history.buyer.clone());
                findings.push(Finding::SharedOrder { order: order.id, first, second });
            }
        }
        for told in &history.events {
            if let What::Pass { order, .. } = &told.what
                && let Some(first) = passes.insert(*order, &history.buyer)
            {
                let (first, second) = (first.to_owned(), history.buyer.clone());
                findings.push(Finding::PassTwice { order: *order, first, second });
            }
        }
    }
}

/// The sale opens once and ends once, for all. No clock is needed: what was told to one before another asked.
fn judge_window(histories: &[History], findings: &mut Vec<Finding>) {
    let mut first_order: Option<(u64, &str)> = None;
    let mut first_end: Option<(u64, &str)> = None;
    let earliest = |first: &mut Option<(u64, _)>, at, who| {
        if first.is_none_or(|(before, _)| at < before) {
            *first = Some((at, who));
        }
    };
    let is = |code: &str, wanted: Code| code == wanted.as_str();
    for history in histories {
        for told in &history.events {
            match &told.what {
                What::Order { .. } => earliest(&mut first_order, told.told_us, history.buyer.as_str()),
                What::Refused { call: Call::Try, code, .. } if is(code, Code::Ended) => {
                    earliest(&mut first_end, told.told_us, history.buyer.as_str());
                }
                _ => {}
            }
        }
    }
    for history in histories {
        let buyer = || history.buyer.clone();
        for told in &history.events {
            match (&told.what, first_order, first_end) {
                (What::Refused { call: Call::Try | Call::Pass, code, .. }, Some((opened, first)), _)
                    if is(code, Code::NotOpen) && opened <= told.asked_us =>
                {
                    findings.push(Finding::ClosedToSome { buyer: buyer(), first: first.to_owned() });
                }
                (What::Order { pass, order, .. }, _, Some((ended, first)))
                    if ended <= told.asked_us && first_tried_us(history, *pass) >= ended =>
                {
                    let (order, first) = (order.id, first.to_owned());
                    findings.push(Finding::SoldAfterEnd { buyer: buyer(), order, first });
                }
                _ => {}
            }
        }
    }
}

/// When a pass was first tried: a repeat of an older try shows its order also after the end.
pub(super) fn first_tried_us(history: &History, wanted: OrderId) -> u64 {
    let tried = history.events.iter().filter(|told| told.what.tried_with() == Some(wanted));
    tried.map(|told| told.asked_us).min().unwrap_or(0)
}

/// Errors the shop does not admit to expect, once per kind.
fn judge_errors(histories: &[History], findings: &mut Vec<Finding>) {
    let admitted = [Code::Busy, Code::Unsure, Code::NotReady].map(Code::as_str);
    let mut errors: BTreeMap<(u16, &str), (u64, &str, Call)> = BTreeMap::new();
    for history in histories {
        for told in &history.events {
            if let What::Refused { call, status, code, .. } = &told.what
                && *status >= 500
                && !admitted.contains(&code.as_str())
            {
                errors.entry((*status, code)).or_insert((0, &history.buyer, *call)).0 += 1;
            }
        }
    }
    findings.extend(errors.into_iter().map(|((status, code), (times, buyer, call))| Finding::ServerError {
        status,
        code: code.to_owned(),
        times,
        buyer: buyer.to_owned(),
        call: call.words(),
    }));
}

/// Everybody who went home without an answer, in one sentence. To be told to come later, or that one may not buy, is one.
fn unanswered(histories: &[History]) -> Option<Finding> {
    let mut reasons = histories.iter().filter_map(History::unanswered);
    let why = reasons.next()?.to_owned();
    Some(Finding::NoAnswer {
        buyers: u64::try_from(reasons.count()).unwrap_or(u64::MAX).saturating_add(1),
        why,
    })
}

/// A lost push is a hint that is lost; a socket that stays open and says nothing is a promise that is not kept.
fn never_pushed(histories: &[History]) -> Option<Finding> {
    let with = |wanted: fn(&What) -> bool| {
        let has = |history: &&History| history.events.iter().any(|told| wanted(&told.what));
        u64::try_from(histories.iter().filter(has).count()).unwrap_or(u64::MAX)
    };
    let buyers = with(|what| matches!(what, What::NotPushed { .. }));
    let watchers = with(|what| matches!(what, What::Watching)).max(buyers);
    (buyers > 0).then_some(Finding::NeverPushed { buyers, watchers })
}

/// Units between two bounds: an honest shop may have taken some back, or sold some to late money, between the last look
/// at an order and the operator's numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    least: u64,
    most: u64,
}

impl Range {
    fn add(&mut self, units: u64, before: bool, since: &[bool]) {
        if before && since.iter().all(|held| *held) {
            self.least += units;
        }
        if before || since.iter().any(|held| *held) {
            self.most += units;
        }
    }
}

/// What the buyers together know of one offer.
#[derive(Clone, Debug, Default)]
struct Tally {
    /// Units of live orders, as each was last looked at.
    units: u64,
    /// The same when the operator was asked.
    live: Range,
    /// Of them, units of paid orders.
    paid: Range,
    /// Units that others held before, and that may have lapsed since.
    lapsed: u64,
    /// Somebody was told `sold_out`.
    sold_out: bool,
    /// A unit may have been taken and given back: an order ended, or a try was unsure.
    came_back: bool,
    /// When units were certainly taken (+) and may have been given back (-), in microseconds.
    moves: Vec<(u64, i64)>,
}

impl Tally {
    /// `since`: what the order may have become after this was seen.
    fn count(&mut self, seen: &Seen, since: &[State]) {
        let units = u64::from(seen.quantity);
        let live = |state: State| Seen { state, ..*seen }.is_live();
        let paid = |state| matches!(state, State::Paid | State::Refunding | State::RefundFailed);
        let all = |of: &dyn Fn(State) -> bool| since.iter().map(|state| of(*state)).collect::<Vec<_>>();
        if live(seen.state) {
            self.units += units;
        }
        self.live.add(units, live(seen.state), &all(&live));
        self.paid.add(units, paid(seen.state), &all(&paid));
        self.came_back |= since.iter().any(|state| !live(*state));
    }

    /// The most units that were certainly held at one moment.
    fn most_at_once(&mut self) -> u64 {
        self.moves.sort_unstable();
        let mut held: i64 = 0;
        let mut most = 0;
        for (_, units) in &self.moves {
            held += units;
            most = most.max(held);
        }
        u64::try_from(most).unwrap_or(0)
    }
}

/// Orders of an earlier visit are among the units that were taken before.
fn tally(evidence: &Evidence<'_>) -> BTreeMap<OfferId, Tally> {
    let alone = evidence.alone_since.and(evidence.started_at);
    let listed =
        evidence.books.map(|books| books.iter().map(|entry| (entry.order.id, &entry.order)).collect());
    let since = Since { listed, gathered_at: evidence.gathered_at };
    let mut ours: HashSet<OrderId> = HashSet::new();
    let mut tallies: BTreeMap<OfferId, Tally> = BTreeMap::new();
    for history in evidence.histories {
        for order in history.orders() {
            let tally = tallies.entry(order.offer).or_default();
            if is_old(history, alone, order.created_at) {
                continue;
            }
            ours.insert(order.id);
            tally.count(&order, &since.states(history, &order));
            for time in life::live_times(&life::shown(history, order.id)) {
                tally.moves.push((time.from_us, i64::from(order.quantity)));
                // Given back only after the last moment it was certainly held.
                tally.moves.extend(time.to_us.checked_add(1).map(|at| (at, -i64::from(order.quantity))));
            }
        }
        // It may have ended and come to life again by late money: every look counts.
        for (_, seen) in history.seen().filter(|(_, seen)| !seen.is_live()) {
            tallies.entry(seen.offer).or_default().came_back = true;
        }
        for told in &history.events {
            if let What::Refused { call: Call::Try, offer: Some(offer), status, code, .. } = &told.what {
                let tally = tallies.entry(*offer).or_default();
                tally.sold_out |= code == Code::SoldOut.as_str();
                tally.came_back |= is_unsure(*status, code);
            }
        }
    }
    for (offer, units) in lapsed(evidence, &ours) {
        let tally = tallies.entry(offer).or_default();
        (tally.lapsed, tally.came_back) = (units, true);
    }
    tallies
}

/// Units that others held when the crowd came, and that may have lapsed since: those of an earlier crowd whose time to
/// pay was over. Without the operator's list, all that was held may be such units.
fn lapsed(evidence: &Evidence<'_>, ours: &HashSet<OrderId>) -> BTreeMap<OfferId, u64> {
    let mut units: BTreeMap<OfferId, u64> = BTreeMap::new();
    let (Some(before), Some(started_at)) = (evidence.alone_since, evidence.started_at) else { return units };
    let Some(books) = evidence.books else {
        let held = before.offers.iter().filter(|offer| offer.held > 0);
        return held.map(|offer| (offer.offer_id, u64::from(offer.held))).collect();
    };
    let offset_ms = evidence.histories.iter().find_map(History::offset_ms).unwrap_or(0);
    let started_at = started_at.plus_ms(offset_ms);
    let since = |order: &OrderView| {
        let closed_at = order.closed_at.is_some_and(|at| started_at <= at.plus_ms(CLOCK_MARGIN_MS));
        closed_at && order.created_at <= started_at.plus_ms(CLOCK_MARGIN_MS)
    };
    let others = books.iter().map(|entry| &entry.order).filter(|order| !ours.contains(&order.id));
    for order in others.filter(|order| has_lapsed(order) && since(order)) {
        *units.entry(order.offer_id).or_default() += u64::from(order.quantity);
    }
    units
}

/// Whether its time to pay was over, as an honest shop counts.
fn has_lapsed(order: &OrderView) -> bool {
    let in_time = order.closed_at.zip(order.pay_by).is_some_and(|(closed_at, pay_by)| closed_at < pay_by);
    order.state == State::Closed && order.reason == Some(Reason::Timeout) && !in_time
}

/// What orders may have become after the last look, with nobody's doing: they lapse, and late money is taken.
struct Since<'a> {
    listed: Option<HashMap<OrderId, &'a OrderView>>,
    gathered_at: Option<UnixMs>,
}

impl Since<'_> {
    /// States the order may have been in when the operator's numbers were made, apart from the one that was seen.
    fn states(&self, history: &History, seen: &Seen) -> Vec<State> {
        let Some(listed) = &self.listed else { return self.guess(history, seen) };
        let Some(order) = listed.get(&seen.id).filter(|order| order.seq > seen.seq) else {
            return Vec::new();
        };
        let by_itself = match order.state {
            State::Closed => has_lapsed(order),
            State::Paid => life::sent_money(history, seen.id),
            _ => false,
        };
        match (by_itself, order.seq - seen.seq) {
            (false, _) => Vec::new(),
            (true, 1) => vec![order.state],
            // It lapsed, and then late money found a unit: the numbers may be from in between.
            (true, _) => vec![order.state, State::Closed],
        }
    }

    /// Without the operator's list: by the order's own times.
    fn guess(&self, history: &History, seen: &Seen) -> Vec<State> {
        let over = |pay_by: UnixMs| self.gathered_at.is_some_and(|at| pay_by <= at.plus_ms(CLOCK_MARGIN_MS));
        let may_lapse = seen.state == State::AwaitingPayment && seen.pay_by.is_some_and(over);
        let lapsed = seen.state == State::Closed && seen.reason == Some(Reason::Timeout);
        let may_be_paid = (may_lapse || lapsed) && life::sent_money(history, seen.id);
        let lapse = may_lapse.then_some(State::Closed);
        lapse.into_iter().chain(may_be_paid.then_some(State::Paid)).collect()
    }
}

fn judge_stats(evidence: &Evidence<'_>, after: &Stats, findings: &mut Vec<Finding>) {
    if after.queue.depth > 0 {
        findings.push(Finding::NotQuiet { depth: after.queue.depth });
    }
    let mut tallies = tally(evidence);
    for offer in &after.offers {
        let tally = tallies.remove(&offer.offer_id).unwrap_or_default();
        judge_offer(offer, tally, before(evidence, offer.offer_id), findings);
    }
    findings.extend(tallies.into_keys().map(|offer| Finding::UnknownOffer { offer }));
}

fn before(evidence: &Evidence<'_>, offer: OfferId) -> Option<OfferStats> {
    evidence.alone_since?.offers.iter().find(|before| before.offer_id == offer).copied()
}

fn judge_offer(
    after: &OfferStats,
    mut tally: Tally,
    before: Option<OfferStats>,
    findings: &mut Vec<Finding>,
) {
    let OfferStats { offer_id: offer, stock, free, held, sold, returning } = *after;
    let taken = |stats: &OfferStats| u64::from(stats.held) + u64::from(stats.sold);
    let most_stock = before.map_or(stock, |before| before.stock.max(stock));
    let most = tally.most_at_once();
    if tally.units > u64::from(stock) {
        findings.push(Finding::Oversold { offer, stock, units: tally.units });
    } else if most > u64::from(most_stock) && before.is_some() {
        findings.push(Finding::OversoldMeanwhile { offer, stock: most_stock, units: most });
    }
    if taken(after) + u64::from(free) + u64::from(returning) != u64::from(stock) {
        findings.push(Finding::DoesNotAddUp { offer, stock, free, held, sold, returning });
    }
    let Some(before) = before else {
        // Others can have bought too, but never less than this crowd.
        if taken(after) < tally.live.least {
            findings.push(Finding::StatsDisagree { offer, operator: taken(after), buyers: tally.units });
        }
        return;
    };
    let buyers = tally.units + taken(&before);
    let least = (tally.live.least + taken(&before)).saturating_sub(tally.lapsed);
    if !(least..=tally.live.most + taken(&before)).contains(&taken(after)) {
        findings.push(Finding::StatsDisagree { offer, operator: taken(after), buyers });
    }
    let [least, most] = [tally.paid.least, tally.paid.most].map(|paid| paid + u64::from(before.sold));
    if !(least..=most).contains(&u64::from(sold)) {
        findings.push(Finding::SoldDisagrees { offer, operator: sold.into(), buyers: most });
    }
    if tally.sold_out && !tally.came_back && before.stock == stock {
        if free > 0 {
            findings.push(Finding::SoldOutWhileFree { offer, free });
        }
        let missing = u64::from(stock).saturating_sub(buyers);
        if missing > 0 {
            findings.push(Finding::UnitNobodyHas { offer, stock, missing });
        }
    }
}

/// What a buyer's tries with one pass came to.
#[derive(Clone, Copy, Debug, Default)]
struct Tried<'a> {
    /// An order was told, or nobody can say whether one was made.
    perhaps: bool,
    /// The last clear refusal.
    refused: Option<&'a str>,
}

fn tries(history: &History) -> BTreeMap<OrderId, Tried<'_>> {
    let mut tries: BTreeMap<OrderId, Tried<'_>> = BTreeMap::new();
    for told in &history.events {
        match &told.what {
            What::Order { pass, .. } | What::HungUp { pass, .. } => {
                tries.entry(*pass).or_default().perhaps = true
            }
            What::Broken { call: Call::Try, pass: Some(pass), .. } => {
                tries.entry(*pass).or_default().perhaps = true;
            }
            What::Refused { call: Call::Try, status, code, pass: Some(pass), .. } => {
                let tried = tries.entry(*pass).or_default();
                tried.perhaps |= is_unsure(*status, code);
                tried.refused = Some(code);
            }
            _ => {}
        }
    }
    tries
}

/// The operator's list of orders against what the buyers know of theirs.
fn judge_books(evidence: &Evidence<'_>, findings: &mut Vec<Finding>) {
    let books = evidence.books;
    let listed: HashMap<OrderId, &OperatorOrder> =
        books.unwrap_or_default().iter().map(|entry| (entry.order.id, entry)).collect();
    let mut of_buyer: HashMap<&str, BTreeSet<OrderId>> = HashMap::new();
    for entry in listed.values() {
        of_buyer.entry(&entry.buyer).or_default().insert(entry.order.id);
    }
    for history in evidence.histories {
        let seen = history.orders();
        if books.is_some() {
            for order in &seen {
                findings.extend(compare(history, order, listed.get(&order.id).copied()));
            }
        }
        let mut there = of_buyer.remove(history.buyer.as_str()).unwrap_or_default();
        there.extend(seen.iter().map(|order| order.id));
        there.extend(named(history));
        there.retain(|order| {
            let made = listed.get(order).map(|entry| entry.order.created_at);
            !made.is_some_and(|made| is_old(history, evidence.started_at, made))
        });
        judge_refused(history, &there, &listed, findings);
    }
}

/// Orders that stand in the way, by "already ordered" answers.
fn named(history: &History) -> impl Iterator<Item = OrderId> {
    history.events.iter().filter_map(|told| match &told.what {
        What::Refused { call: Call::Try, other, .. } => *other,
        _ => None,
    })
}

fn compare(history: &History, order: &Seen, entry: Option<&OperatorOrder>) -> Option<Finding> {
    let (buyer, id) = (history.buyer.clone(), order.id);
    let found = last_look(history, id).flatten();
    let Some(entry) = entry else {
        // The list is of recorded orders; a queued one is judged as limbo.
        let recorded = found.is_some_and(|seen| seen.state != State::Queued);
        return recorded.then_some(Finding::NotInTheBooks { buyer, order: id });
    };
    if entry.buyer != buyer {
        return Some(Finding::OtherOwner { order: id, operator: entry.buyer.clone(), buyer });
    }
    let seen = found.filter(|seen| seen.seq == entry.order.seq && seen.state != entry.order.state)?;
    let (buyer_sees, operator_sees) = (seen.state.as_str(), entry.order.state.as_str());
    Some(Finding::BooksDisagree { buyer, order: id, buyer_sees, operator_sees })
}

/// "Busy" and every other clear refusal mean that nothing happened.
fn judge_refused(
    history: &History,
    there: &BTreeSet<OrderId>,
    listed: &HashMap<OrderId, &OperatorOrder>,
    findings: &mut Vec<Finding>,
) {
    let tries = tries(history);
    for order in there {
        let buyer = history.buyer.clone();
        match tries.get(order) {
            Some(Tried { perhaps: false, refused: Some(code) }) => {
                let code = (*code).to_owned();
                findings.push(Finding::HappenedAnyway { buyer, order: *order, code });
            }
            None if listed.get(order).is_some_and(|entry| entry.buyer == buyer) => {
                findings.push(Finding::NeverAsked { buyer, order: *order });
            }
            _ => {}
        }
    }
}
