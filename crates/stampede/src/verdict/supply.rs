//! Whether "sold out" was true when it was said. Nobody but the shop knows what was free at a moment, so all doubt is the
//! shop's: a unit counts as taken from the first moment at which somebody may have had it until the last at which it may
//! still have been on its way back. It knows nothing of who is told what; that is in `alone` and `together`.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use rules::id::{OfferId, OrderId};
use rules::wire::{Code, Stats};

use super::Evidence;
use super::alone::{is_old, last_look};
use super::finding::Finding;
use super::life;
use super::together::first_tried_us;
use crate::history::{Call, History, Told, What, is_unsure};

/// How long a unit may be on its way back to the gate after it was told that its order had ended, in microseconds.
const RETURN_MARGIN_US: u64 = 2_000_000;
/// How long a try that nobody heard of, and of which nothing is there in the end, may have had a unit, in microseconds: it
/// may have waited for its turn, and its commit may have failed.
const UNHEARD_MARGIN_US: u64 = 5_000_000;
/// The most units that one order can ask for: where a history does not say how many it was, it may have been so many.
const QUANTITY_MAX: u32 = 100;

pub(super) fn judge(evidence: &Evidence<'_>, after: &Stats, findings: &mut Vec<Finding>) {
    let Some(before) = evidence.alone_since else { return };
    let mut shelves = shelves(before, after);
    for history in evidence.histories {
        put_orders(history, evidence, &mut shelves);
        put_tries(history, &mut shelves);
        put_refusals(history, &mut shelves);
    }
    findings.extend(shelves.into_iter().filter_map(|(offer, shelf)| shelf.judge(offer)));
}

/// One offer through the night.
struct Shelf<'a> {
    stock: u64,
    /// Units that others had when the crowd came. If some came back, nobody knows when.
    taken: u64,
    /// When units may have been taken (+) and were certainly back (-), in microseconds.
    moves: Vec<(u64, i64)>,
    refusals: Vec<Refusal<'a>>,
}

/// Somebody was told that there are not so many units.
struct Refusal<'a> {
    told: &'a Told,
    buyer: &'a str,
    code: &'a str,
    wanted: u64,
}

/// An offer whose stock was changed had another at some moment, and nobody knows at which.
fn shelves<'a>(before: &Stats, after: &Stats) -> BTreeMap<OfferId, Shelf<'a>> {
    let unchanged = before.offers.iter().filter(|offer| {
        let same = |after: &&rules::wire::OfferStats| after.offer_id == offer.offer_id;
        after.offers.iter().find(same).is_some_and(|after| after.stock == offer.stock)
    });
    let shelf = |offer: &rules::wire::OfferStats| Shelf {
        stock: offer.stock.into(),
        taken: offer.stock.saturating_sub(offer.free).into(),
        moves: Vec::new(),
        refusals: Vec::new(),
    };
    unchanged.map(|offer| (offer.offer_id, shelf(offer))).collect()
}

/// Orders hold their units from the first try for them. Those of an earlier visit are among what was taken before.
fn put_orders(history: &History, evidence: &Evidence<'_>, shelves: &mut BTreeMap<OfferId, Shelf<'_>>) {
    for order in history.orders() {
        let Some(shelf) = shelves.get_mut(&order.offer) else { continue };
        if is_old(history, evidence.started_at, order.created_at) {
            continue;
        }
        let ended_us = life::ended_us(history, &life::shown(history, order.id));
        let back_us = ended_us.map(|at| at.saturating_add(RETURN_MARGIN_US));
        shelf.hold(first_tried_us(history, order.id), back_us, order.quantity.into());
    }
}

/// Tries of which no order was seen may have had one: nobody heard what became of them, or a commit failed.
fn put_tries<'a>(history: &'a History, shelves: &mut BTreeMap<OfferId, Shelf<'a>>) {
    let seen: HashSet<OrderId> = history.seen().map(|(_, seen)| seen.id).collect();
    let offers = offers(history);
    let mut unheard = BTreeSet::new();
    for told in &history.events {
        let Some(pass) = told.what.tried_with().filter(|pass| !seen.contains(pass)) else { continue };
        let Some(shelf) = offers.get(&pass).and_then(|offer| shelves.get_mut(offer)) else { continue };
        let Some(back_us) = back_us(history, told, pass) else { continue };
        // Each may be the one that had it, but one pass has units once.
        if back_us.is_some() || unheard.insert(pass) {
            shelf.hold(told.asked_us, back_us, wanted(history));
        }
    }
}

/// When the units that a try without an order may have had were back; `Some(None)`: perhaps never. `None`: it had none.
fn back_us(history: &History, told: &Told, pass: OrderId) -> Option<Option<u64>> {
    let later = |margin_us| Some(told.told_us.saturating_add(margin_us));
    match &told.what {
        What::HungUp { .. } | What::Broken { .. } => Some(match last_look(history, pass) {
            Some(None) => later(UNHEARD_MARGIN_US),
            _ => None,
        }),
        What::Refused { status, code, .. } if is_unsure(*status, code) => Some(None),
        // A claim that is rolled back has had its units for a moment.
        What::Refused { code, .. } if code == Code::Busy.as_str() => Some(later(RETURN_MARGIN_US)),
        _ => None,
    }
}

fn put_refusals<'a>(history: &'a History, shelves: &mut BTreeMap<OfferId, Shelf<'a>>) {
    let scarce = [Code::SoldOut, Code::NotEnough].map(Code::as_str);
    for told in &history.events {
        if let What::Refused { call: Call::Try, offer: Some(offer), code, .. } = &told.what
            && scarce.contains(&code.as_str())
            && let Some(shelf) = shelves.get_mut(offer)
        {
            // For some, but too few, the answer is another.
            let wanted = if code == Code::SoldOut.as_str() { 1 } else { wanted(history) };
            shelf.refusals.push(Refusal { told, buyer: &history.buyer, code, wanted });
        }
    }
}

/// The offers of this buyer's passes.
fn offers(history: &History) -> BTreeMap<OrderId, OfferId> {
    let pass = |told: &Told| match &told.what {
        What::Pass { offer, order, .. } => Some((*order, *offer)),
        _ => None,
    };
    history.events.iter().filter_map(pass).collect()
}

fn wanted(history: &History) -> u64 {
    history.wish().map_or(QUANTITY_MAX, |wish| wish.quantity).into()
}

impl Shelf<'_> {
    fn hold(&mut self, from_us: u64, back_us: Option<u64>, units: u64) {
        let units = i64::try_from(units).unwrap_or(i64::MAX);
        self.moves.push((from_us, units));
        self.moves.extend(back_us.map(|at| (at.saturating_add(1), -units)));
    }

    /// All refusals that cannot have been true, in one finding.
    fn judge(mut self, offer: OfferId) -> Option<Finding> {
        self.refusals.sort_by_key(|refusal| refusal.told.told_us);
        let refusals = std::mem::take(&mut self.refusals);
        let stock = self.stock;
        let mut peaks = Peaks::of(self);
        let free = |refusal: &Refusal<'_>| {
            let Told { asked_us, told_us, .. } = *refusal.told;
            stock.saturating_sub(peaks.most(asked_us, told_us))
        };
        let free: Vec<u64> = refusals.iter().map(free).collect();
        let mut untrue = refusals.iter().zip(free).filter(|(refusal, free)| *free >= refusal.wanted);
        let (first, free) = untrue.next()?;
        Some(Finding::RefusedWhileFree {
            offer,
            code: first.code.to_owned(),
            buyer: first.buyer.to_owned(),
            times: u64::try_from(untrue.count()).unwrap_or(u64::MAX).saturating_add(1),
            free,
        })
    }
}

/// The most units that may have been taken in a while, for whiles that are asked for in the order of their ends.
struct Peaks {
    /// Since when how many were taken.
    steps: Vec<(u64, u64)>,
    next: usize,
    /// The steps so far that were not exceeded since, highest first.
    highest: Vec<(u64, u64)>,
}

impl Peaks {
    fn of(shelf: Shelf<'_>) -> Self {
        let mut moves = shelf.moves;
        moves.sort_unstable_by_key(|(at_us, _)| *at_us);
        let mut steps = vec![(0, shelf.taken)];
        let mut taken = i128::from(shelf.taken);
        for moment in moves.chunk_by(|(one, _), (next, _)| one == next) {
            taken += moment.iter().map(|(_, units)| i128::from(*units)).sum::<i128>();
            steps.extend(moment.first().map(|(at_us, _)| (*at_us, u64::try_from(taken).unwrap_or(0))));
        }
        Self { steps, next: 0, highest: Vec::new() }
    }

    /// Both ends are included. No end is before the one that was asked for last.
    fn most(&mut self, from_us: u64, to_us: u64) -> u64 {
        while let Some(step) = self.steps.get(self.next).filter(|(at_us, _)| *at_us <= to_us) {
            while self.highest.pop_if(|(_, before)| *before <= step.1).is_some() {}
            self.highest.push(*step);
            self.next += 1;
        }
        // What was taken at its beginning was so since the step before.
        let before = self.steps.partition_point(|(at_us, _)| *at_us <= from_us).saturating_sub(1);
        let since_us = self.steps.get(before).map_or(0, |(at_us, _)| *at_us);
        let first = self.highest.partition_point(|(at_us, _)| *at_us < since_us);
        self.highest.get(first).map_or(0, |(_, units)| *units)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_most_that_was_taken_in_a_while_is_what_a_look_at_each_moment_finds(
            taken in 0_u64..5,
            holds in vec((1_u64..40, proptest::option::of(0_u64..20), 1_u64..4), 0..12),
            mut whiles in vec((0_u64..60, 0_u64..20), 1..20),
        ) {
            let mut shelf = Shelf { stock: 0, taken, moves: Vec::new(), refusals: Vec::new() };
            for (from, lasts, units) in &holds {
                shelf.hold(*from, lasts.map(|lasts| from + lasts), *units);
            }
            let at = |moment: u64| -> u64 {
                let is_held = |(from, lasts, _): &&(u64, Option<u64>, u64)| {
                    *from <= moment && lasts.is_none_or(|lasts| moment <= from + lasts)
                };
                taken + holds.iter().filter(is_held).map(|(.., units)| units).sum::<u64>()
            };
            whiles.sort_by_key(|(from, lasts)| from + lasts);
            let mut peaks = Peaks::of(shelf);
            for (from, lasts) in whiles {
                let found = (from..=from + lasts).map(at).max();
                prop_assert_eq!(Some(peaks.most(from, from + lasts)), found, "{} {}", from, lasts);
            }
        }
    }
}
