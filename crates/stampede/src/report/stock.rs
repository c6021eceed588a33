//! Units left over time, per offer: as the buyers were told, to the microsecond, and as the operator's stats said.

use std::collections::BTreeMap;

use rules::id::OfferId;
use serde::Serialize;

use super::digest::{Holding, holdings};
use super::series::Axis;
use super::{Input, Offer};
use crate::history::History;

/// Points of one line; more are thinned out.
const POINTS_MAX: usize = 240;

/// One offer's units.
#[derive(Debug, Serialize)]
pub(super) struct Burn {
    pub offer: OfferId,
    pub name: String,
    /// `None`: only the operator knows.
    pub stock: Option<u32>,
    /// Units the buyers hold in the end.
    pub held: i64,
    /// Units that were taken and given back.
    pub returned: u64,
    /// Microseconds since the start at which the last unit was taken, if it ever was: its buyer may have heard later.
    pub sold_out_us: Option<u64>,
    /// Units left by what the buyers were told: (microseconds since the start, units). Below zero is a broken promise,
    /// or, where the stock is not known, what was taken of it.
    pub told: Vec<(u64, i64)>,
    /// Free units by the operator's stats: the same.
    pub sampled: Vec<(u64, i64)>,
}

pub(super) fn burn_down(input: &Input<'_>, axis: Axis) -> Vec<Burn> {
    let mut changes: BTreeMap<OfferId, Changes> = BTreeMap::new();
    let holdings = |history| holdings(history).into_values().map(move |holding| (history, holding));
    for (history, holding) in input.histories.iter().flat_map(holdings) {
        let (units, changes) = (i64::from(holding.quantity), changes.entry(holding.offer).or_default());
        let Some(from_us) = holding.from_us else { continue };
        changes.possible.push((from_us, -units));
        changes.possible.extend(holding.back_us.map(|back_us| (back_us, units)));
        changes.heard.push((made_us(input, history, &holding).min(from_us), -units));
        changes.heard.extend(holding.until_us.map(|until_us| (until_us, units)));
    }
    let mut samples: BTreeMap<OfferId, Vec<(u64, i64)>> = BTreeMap::new();
    for sample in input.stock {
        samples.entry(sample.offer).or_default().push((sample.at_us, i64::from(sample.free)));
    }
    let burn = |offer: &Offer<'_>| {
        let changes = changes.remove(&offer.id).unwrap_or_default();
        Burn::of(offer, changes, samples.remove(&offer.id).unwrap_or_default(), axis)
    };
    input.offers.iter().map(burn).collect()
}

/// When the order was made, in microseconds since the start. Who hung up hears of it only by a look, much later.
fn made_us(input: &Input<'_>, history: &History, holding: &Holding) -> u64 {
    let started_at = input.started_at.plus_ms(history.offset_ms().unwrap_or(0));
    started_at.ms_until(holding.made_at).saturating_mul(1_000)
}

/// An offer's units as they came and went: (microseconds since the start, units).
#[derive(Debug, Default)]
struct Changes {
    /// Units come back as early as they may have: what is then below zero was promised twice.
    possible: Vec<(u64, i64)>,
    /// Units go when their order is made, and come back when their buyer has heard it: what is then empty was sold out.
    heard: Vec<(u64, i64)>,
}

impl Changes {
    fn empty_us(&mut self, stock: u32) -> Option<u64> {
        self.heard.sort_unstable();
        let mut left = i64::from(stock);
        let empties = |(at_us, change): &(u64, i64)| {
            left += change;
            (left <= 0).then_some(*at_us)
        };
        self.heard.iter().find_map(empties)
    }
}

impl Burn {
    fn of(offer: &Offer<'_>, mut changes: Changes, mut sampled: Vec<(u64, i64)>, axis: Axis) -> Self {
        let sold_out_us = offer.stock.and_then(|stock| changes.empty_us(stock));
        // Two clocks are a little apart: only where nothing came back can no unit seem to be promised twice because of it.
        let came_back = changes.possible.iter().any(|(_, change)| *change > 0);
        let mut changes = if came_back { changes.possible } else { changes.heard };
        changes.sort_unstable();
        sampled.sort_unstable();
        let stock = i64::from(offer.stock.unwrap_or(0));
        let mut left = stock;
        let mut told = vec![(axis.first_us, left)];
        let returned = changes.iter().filter_map(|(_, change)| u64::try_from(*change).ok()).sum();
        for (at_us, change) in changes {
            left += change;
            match told.last_mut() {
                Some(last) if last.0 == at_us => last.1 = left,
                _ => told.push((at_us, left)),
            }
        }
        Self {
            offer: offer.id,
            name: offer.name.to_owned(),
            stock: offer.stock,
            held: stock - left,
            returned,
            sold_out_us,
            told: thinned(told),
            sampled: thinned(turns(&sampled)),
        }
    }

    /// When a unit was last taken.
    pub fn last_taken_us(&self) -> Option<u64> {
        let last = |line: &[(u64, i64)]| {
            let pairs = line.iter().zip(line.iter().skip(1));
            pairs.filter(|(before, after)| after.1 < before.1).map(|(_, (at_us, _))| *at_us).next_back()
        };
        last(&self.told).max(last(&self.sampled))
    }
}

/// The points before and after each change, the first and the last.
fn turns(line: &[(u64, i64)]) -> Vec<(u64, i64)> {
    let left =
        |position: Option<usize>| position.and_then(|position| line.get(position)).map(|(_, left)| *left);
    let turns = |(position, point): (usize, &(u64, i64))| {
        let (before, after) = (left(position.checked_sub(1)), left(position.checked_add(1)));
        (before != Some(point.1) || after != Some(point.1)).then_some(*point)
    };
    line.iter().enumerate().filter_map(turns).collect()
}

/// Every n-th point, and always the first and the last.
fn thinned(line: Vec<(u64, i64)>) -> Vec<(u64, i64)> {
    let step = line.len().div_ceil(POINTS_MAX).max(1);
    let last = line.len().saturating_sub(1);
    let kept = |(position, point): (usize, (u64, i64))| {
        (position.is_multiple_of(step) || position == last).then_some(point)
    };
    line.into_iter().enumerate().filter_map(kept).collect()
}
