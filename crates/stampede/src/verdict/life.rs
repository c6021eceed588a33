//! One order through all times it was shown: what never changes, what may follow what, and when it was certainly live.
//! It knows nothing of stock and of other buyers.

use rules::id::OrderId;
use rules::order::{Event, Reason, State, Status, next};

use super::finding::Finding;
use crate::history::{Call, History, Seen, Told, What};

/// One time it was shown.
pub(super) type Shown<'a> = (&'a Told, &'a Seen);

/// From when to when, in microseconds and both included, an order was certainly live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Live {
    pub from_us: u64,
    pub to_us: u64,
}

pub(super) fn shown(history: &History, order: OrderId) -> Vec<Shown<'_>> {
    history.seen().filter(|(_, seen)| seen.id == order).collect()
}

pub(super) fn judge(history: &History, shown: &[Shown<'_>], findings: &mut Vec<Finding>) {
    findings.extend(went_back(history, shown));
    findings.extend(illegal_step(history, shown));
    findings.extend(fact_changed(history, shown));
    let buyer = || history.buyer.clone();
    let ended = |state| matches!(state, State::Closed | State::Refused);
    if let Some((_, seen)) = shown.iter().find(|(_, seen)| ended(seen.state) && seen.reason.is_none()) {
        findings.push(Finding::NoReason { buyer: buyer(), order: seen.id, state: seen.state.as_str() });
    }
    let too_soon = shown.iter().find_map(|(_, seen)| {
        let early_ms = seen.closed_at?.ms_until(seen.pay_by?);
        (seen.reason == Some(Reason::Timeout) && early_ms > 0).then_some((seen.id, early_ms))
    });
    if let Some((order, early_ms)) = too_soon {
        findings.push(Finding::ClosedTooSoon { buyer: buyer(), order, early_ms });
    }
}

/// An order's `seq` only grows, and each `seq` shows one state. Overlapping calls may hear in another order than they
/// were answered, so a smaller `seq` counts only where it was asked for after the larger one was told, or came after it over
/// one line, which tells nothing that was overtaken.
fn went_back(history: &History, shown: &[Shown<'_>]) -> Option<Finding> {
    shown.iter().enumerate().find_map(|(position, (told, after))| {
        let (_, (_, before)) = shown.iter().enumerate().find(|(place, (earlier, before))| {
            let over_one_line = *place < position && came_over_one_line(earlier, told);
            let is_earlier = earlier.told_us <= told.asked_us || over_one_line;
            let contradicts = *place < position && before.seq == after.seq && before.state != after.state;
            contradicts || (is_earlier && before.seq > after.seq)
        })?;
        Some(Finding::WentBack {
            buyer: history.buyer.clone(),
            order: after.id,
            before: before.state.as_str(),
            before_seq: before.seq,
            after: after.state.as_str(),
            after_seq: after.seq,
        })
    })
}

/// What comes over a line counts as asked for when the line was open.
fn came_over_one_line(first: &Told, second: &Told) -> bool {
    let pushed = |told: &Told| matches!(told.what, What::Pushed { .. });
    pushed(first) && pushed(second) && first.asked_us == second.asked_us
}

/// More steps than an order has states lead nowhere new.
const STEPS_MAX: u32 = 8;

/// By `seq`, each state must be reachable from the one before.
fn illegal_step(history: &History, shown: &[Shown<'_>]) -> Option<Finding> {
    let by_seq = by_seq(shown);
    by_seq.iter().zip(by_seq.iter().skip(1)).find_map(|(before, after)| {
        let steps = after.seq.saturating_sub(before.seq).min(STEPS_MAX);
        let possible = before.seq == after.seq || reachable(before, steps).contains(&status(after));
        (!possible).then(|| Finding::IllegalStep {
            buyer: history.buyer.clone(),
            order: after.id,
            before: before.state.as_str(),
            after: after.state.as_str(),
        })
    })
}

fn by_seq<'a>(shown: &[Shown<'a>]) -> Vec<&'a Seen> {
    let mut seen: Vec<&Seen> = shown.iter().map(|(_, seen)| *seen).collect();
    seen.sort_by_key(|seen| seen.seq);
    seen
}

const fn status(seen: &Seen) -> Status {
    Status { state: seen.state, reason: seen.reason, holds_units: seen.is_live() }
}

/// All that can become of an order in so many steps or fewer.
fn reachable(from: &Seen, steps: u32) -> Vec<Status> {
    let mut events = Event::ALL.to_vec();
    events.extend(Reason::ALL.map(Event::Refused));
    let mut found = vec![status(from)];
    for _ in 0..steps {
        let more: Vec<Status> = found
            .iter()
            .flat_map(|status| events.iter().filter_map(|event| next(*status, *event).ok()))
            .collect();
        for status in more {
            if !found.contains(&status) {
                found.push(status);
            }
        }
    }
    found
}

fn fact_changed(history: &History, shown: &[Shown<'_>]) -> Option<Finding> {
    let (_, first) = shown.first()?;
    let pay_by = shown.iter().find_map(|(_, seen)| seen.pay_by);
    shown.iter().find_map(|(_, seen)| {
        let what = match seen {
            _ if seen.offer != first.offer => "offer",
            _ if seen.quantity != first.quantity => "quantity",
            _ if seen.created_at != first.created_at => "time of creation",
            _ if seen.pay_by.is_some() && seen.pay_by != pay_by => "time to pay",
            _ => return None,
        };
        Some(Finding::FactChanged { buyer: history.buyer.clone(), order: first.id, what })
    })
}

/// When the order was certainly live: from the first time it was told as live to the last time it was asked for and
/// found live. An order that is live at the end is live for ever.
pub(super) fn live_times(shown: &[Shown<'_>]) -> Vec<Live> {
    let mut sorted: Vec<&Shown<'_>> = shown.iter().collect();
    sorted.sort_by_key(|(told, seen)| (seen.seq, told.told_us));
    let mut times: Vec<Live> = Vec::new();
    let mut before: Option<&Seen> = None;
    for (told, seen) in &sorted {
        if seen.is_live() {
            let goes_on = before.is_some_and(|before| before.is_live() && !hides_an_end(before, seen));
            match times.last_mut().filter(|_| goes_on) {
                Some(time) => {
                    time.from_us = time.from_us.min(told.told_us);
                    time.to_us = time.to_us.max(told.asked_us);
                }
                None => times.push(Live { from_us: told.told_us, to_us: told.asked_us }),
            }
        }
        before = Some(seen);
    }
    if before.is_some_and(Seen::is_live)
        && let Some(time) = times.last_mut()
    {
        time.to_us = u64::MAX;
    }
    times.retain(|time| time.from_us <= time.to_us);
    times
}

/// Whether the order may have closed and come to life again between the two.
const fn hides_an_end(before: &Seen, after: &Seen) -> bool {
    let steps = after.seq.saturating_sub(before.seq);
    match (before.state, after.state) {
        (_, State::Queued | State::AwaitingPayment) => false,
        (State::Queued, _) => steps > 2,
        (State::AwaitingPayment, _) => steps > 1,
        _ => false,
    }
}

/// When it was told that the order has let go of its units for good; `None`: it has them, or may have come to life again.
pub(super) fn ended_us(history: &History, shown: &[Shown<'_>]) -> Option<u64> {
    let (_, last) = shown.iter().max_by_key(|(told, seen)| (seen.seq, told.told_us))?;
    let for_good = match (last.state, last.reason) {
        (State::Refused, _) | (State::Closed, Some(Reason::Cancelled)) => true,
        // Late money may have found a unit for it, or may hold one while that is decided.
        (State::Closed, Some(Reason::Timeout)) => !sent_money(history, last.id),
        _ => false,
    };
    let ended = shown.iter().filter(|(_, seen)| !seen.is_live()).map(|(told, _)| told.told_us);
    ended.min().filter(|_| for_good)
}

/// Whether this buyer's money for the order may have reached the shop.
pub(super) fn sent_money(history: &History, wanted: OrderId) -> bool {
    history.events.iter().any(|told| match &told.what {
        What::Paid { order, .. } => *order == wanted,
        What::Broken { call: Call::Sandbox, pass, .. } | What::Refused { call: Call::Sandbox, pass, .. } => {
            *pass == Some(wanted)
        }
        _ => false,
    })
}
