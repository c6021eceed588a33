//! Requests and answers over time: which stretch of time is shown, in how many bins, and what falls into each. It
//! does not draw.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use super::Input;
use super::calls::{Answer, Exchange, exchange};
use super::words::{float, length};
use crate::history::{Call, Told, What};

/// The picture of the whole run has at most this many bins.
const BINS_MAX: u64 = 160;
/// No bin is narrower, in microseconds.
const BIN_US_MIN: u64 = 1_000;
/// The opening is shown for at least and at most this long, in microseconds.
const OPENING_US: std::ops::RangeInclusive<u64> = 1_000_000..=10_000_000;
/// The busiest stretch of this length is the peak, in microseconds.
const PEAK_US: u64 = 1_000_000;
const KINDS: usize = Answer::ALL.len();

/// Where time starts to count and how far the run reaches. Microseconds since the start.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Axis {
    /// The opening, where the run has seen it; else the start.
    pub zero_us: u64,
    pub has_opening: bool,
    pub first_us: u64,
    pub last_us: u64,
}

impl Axis {
    pub fn of(input: &Input<'_>) -> Self {
        let events = || input.histories.iter().flat_map(|history| &history.events);
        let first_us = events().map(|told| told.asked_us).min().unwrap_or(0);
        let last_us = events().map(|told| told.told_us).max().unwrap_or(0).max(first_us + BIN_US_MIN);
        let opened_ms = input.opened_at.0.saturating_sub(input.started_at.0);
        let opened_us = u64::try_from(opened_ms).ok().map(|ms| ms.saturating_mul(1_000));
        let opened_us = opened_us.filter(|opened| *opened <= last_us);
        let zero_us = opened_us.unwrap_or(0);
        Self { zero_us, has_opening: opened_us.is_some(), first_us: first_us.min(zero_us), last_us }
    }

    /// Seconds since zero.
    pub fn seconds(self, us: u64) -> f64 {
        (float(us) - float(self.zero_us)) / 1e6
    }

    pub const fn zero_name(self) -> &'static str {
        if self.has_opening { "the opening" } else { "the start" }
    }
}

/// Counts by bins of equal width. What lies outside is not counted.
#[derive(Debug, Serialize)]
pub(super) struct Series {
    /// Microseconds since the start; may be before it by less than a bin.
    pub from_us: i64,
    pub width_us: u64,
    /// Calls by the moment they were due: at a crowd or a server that is late, they went out later.
    pub sent: Vec<u64>,
    /// Answers by the moment they were heard; by kind as in `Answer::ALL`, then by bin.
    #[serde(serialize_with = "by_name")]
    pub answers: [Vec<u64>; KINDS],
    /// The most answers within one second, counted in whole seconds since zero.
    pub peak_per_s: u64,
}

impl Series {
    pub fn whole_and_opening(input: &Input<'_>, axis: Axis) -> (Self, Option<Self>) {
        let span_us = axis.last_us - axis.first_us;
        let mut whole = Self::empty(axis, axis.first_us, axis.last_us);
        let opening = opening(input, axis);
        // A close-up that shows nearly all is no close-up.
        let opening = opening.filter(|(from, to)| (to - from).saturating_mul(5) < span_us.saturating_mul(3));
        let mut opening = opening.map(|(from, to)| Self::empty(axis, from, to));
        let mut seconds = Peak::new(axis);
        for told in input.histories.iter().flat_map(|history| &history.events) {
            let Some(Exchange { answer, .. }) = exchange(&told.what) else { continue };
            whole.count(told, answer);
            seconds.count(told.told_us);
            if let Some(opening) = &mut opening {
                opening.count(told, answer);
            }
        }
        whole.peak_per_s = seconds.most();
        if let Some(opening) = &mut opening {
            opening.peak_per_s = whole.peak_per_s;
        }
        (whole, opening)
    }

    /// Bins that cover the stretch; zero is the edge of one.
    fn empty(axis: Axis, from_us: u64, to_us: u64) -> Self {
        let width_us = nice_width(to_us - from_us);
        let zero = signed(axis.zero_us);
        let before = signed(axis.zero_us.saturating_sub(from_us).div_ceil(width_us).saturating_mul(width_us));
        let skipped = from_us.saturating_sub(axis.zero_us) / width_us;
        let from = zero - before + signed(skipped.saturating_mul(width_us));
        let bins = signed(to_us).saturating_sub(from).unsigned_abs() / width_us + 1;
        let bins = vec![0; usize::try_from(bins).unwrap_or(0)];
        let answers = std::array::from_fn(|_| bins.clone());
        Self { from_us: from, width_us, sent: bins, answers, peak_per_s: 0 }
    }

    fn count(&mut self, told: &Told, answer: Answer) {
        let (sent, heard) = (self.bin(told.asked_us), self.bin(told.told_us));
        if let Some(count) = sent.and_then(|bin| self.sent.get_mut(bin)) {
            *count += 1;
        }
        let kind = self.answers.get_mut(answer.index());
        if let (Some(kind), Some(bin)) = (kind, heard)
            && let Some(count) = kind.get_mut(bin)
        {
            *count += 1;
        }
    }

    fn bin(&self, us: u64) -> Option<usize> {
        let since = u64::try_from(signed(us).saturating_sub(self.from_us)).ok()?;
        usize::try_from(since / self.width_us).ok()
    }

    /// From zero of `axis`, in seconds.
    pub fn edge_s(&self, axis: Axis, bin: usize) -> f64 {
        let from = super::words::float_signed(self.from_us) - float(axis.zero_us);
        float(length(bin)).mul_add(float(self.width_us), from) / 1e6
    }

    pub fn bins(&self) -> usize {
        self.sent.len()
    }

    /// A count of one bin as calls per second.
    pub fn per_second(&self, count: u64) -> f64 {
        float(count) * 1e6 / float(self.width_us)
    }
}

/// From shortly before the opening until nearly all tries were answered.
fn opening(input: &Input<'_>, axis: Axis) -> Option<(u64, u64)> {
    if !axis.has_opening {
        return None;
    }
    let is_try = |what: &What| {
        matches!(
            what,
            What::Order { .. } | What::Refused { call: Call::Try, .. } | What::Broken { call: Call::Try, .. }
        )
    };
    let events = input.histories.iter().flat_map(|history| &history.events);
    let mut after: Vec<u64> = events
        .filter(|told| is_try(&told.what))
        .filter_map(|told| told.told_us.checked_sub(axis.zero_us))
        .collect();
    after.sort_unstable();
    let nearly_all = after.get(after.len() * 98 / 100).copied()?;
    let length_us = nearly_all.saturating_add(nearly_all / 10).clamp(*OPENING_US.start(), *OPENING_US.end());
    let from = axis.zero_us.saturating_sub(length_us / 10).max(axis.first_us);
    Some((from, axis.zero_us.saturating_add(length_us).min(axis.last_us)))
}

/// The narrowest of 1, 2, 5, 10, … milliseconds that needs no more than `BINS_MAX` bins.
fn nice_width(span_us: u64) -> u64 {
    let mut width = BIN_US_MIN;
    for step in [2, 5, 10].iter().cycle() {
        if span_us / width < BINS_MAX - 1 {
            break;
        }
        // 1 -> 2 -> 5 -> 10.
        width = if *step == 5 { width / 2 * 5 } else { width * 2 };
    }
    width
}

/// Answers by whole seconds since zero. A map: a stray time must not ask for memory up to it.
struct Peak {
    /// Makes zero the edge of a second.
    lead_us: u64,
    seconds: BTreeMap<u64, u64>,
}

impl Peak {
    const fn new(axis: Axis) -> Self {
        let lead_us = PEAK_US - axis.zero_us % PEAK_US;
        Self { lead_us, seconds: BTreeMap::new() }
    }

    fn count(&mut self, us: u64) {
        *self.seconds.entry(us.saturating_add(self.lead_us) / PEAK_US).or_default() += 1;
    }

    fn most(&self) -> u64 {
        self.seconds.values().copied().max().unwrap_or(0)
    }
}

fn by_name<S: Serializer>(answers: &[Vec<u64>; KINDS], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Answer::ALL.iter().map(|answer| answer.name()).zip(answers))
}

fn signed(us: u64) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_have_round_widths_and_are_neither_few_nor_many() {
        let widths = [1_000, 160_000, 400_000, 1_100_000, 40_000_000, 960_000_000].map(nice_width);
        assert_eq!(widths, [1_000, 2_000, 5_000, 10_000, 500_000, 10_000_000]);
        for span_us in (1..2_000).map(|step| step * 731_000) {
            let bins = span_us / nice_width(span_us);
            assert!((60..160).contains(&bins), "{bins} bins for {span_us} microseconds");
        }
    }
}
