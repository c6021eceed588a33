//! Whether those who came first were served first: win rate against the place in line. It takes the moment a buyer's
//! try was sent for the place; what happened on the way to the server is part of what it shows.

use std::collections::BTreeMap;

use rules::id::OfferId;
use serde::Serialize;

use super::words::{float, length, percent};

/// Parts of the line that are compared.
const DECILES: usize = 10;
/// In the close-up, bins per stock.
const BINS_PER_STOCK: u64 = 10;
/// The close-up reaches at most this many times the stock.
const STOCKS_MAX: u64 = 5;
/// Below this share of winners in order, the line counts for little.
const MOSTLY: f64 = 0.9;

/// One buyer in line.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub offer: OfferId,
    pub in_line_us: u64,
    pub won: bool,
    pub units: u64,
}

/// Win rates by place in line. Lines of several offers are laid over each other.
#[derive(Debug, Default, Serialize)]
pub(super) struct Fairness {
    pub in_line: u64,
    pub winners: u64,
    /// Winners for whom there was a unit in strict order.
    pub winners_in_order: u64,
    /// Buyers for whom there was a unit in strict order.
    pub places: u64,
    /// The line in ten equal parts.
    pub deciles: Vec<Part>,
    /// The front of the line in tenths of the stock; empty where the deciles show it well enough.
    pub front: Vec<Part>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Part {
    pub buyers: u64,
    pub winners: u64,
    /// Winners if units went strictly by place.
    pub in_strict_order: u64,
}

impl Part {
    pub fn rate(self) -> f64 {
        if self.buyers == 0 { 0.0 } else { float(self.winners) / float(self.buyers) }
    }

    pub fn strict_rate(self) -> f64 {
        if self.buyers == 0 { 0.0 } else { float(self.in_strict_order) / float(self.buyers) }
    }

    fn count(&mut self, won: bool, has_place: bool) {
        self.buyers += 1;
        self.winners += u64::from(won);
        self.in_strict_order += u64::from(has_place);
    }
}

impl Fairness {
    /// Where an offer's stock is not known, there were as many places as winners.
    pub fn of(line: &[Place], stocks: &BTreeMap<OfferId, u64>) -> Self {
        let mut lines: BTreeMap<OfferId, Vec<Place>> = BTreeMap::new();
        for place in line {
            lines.entry(place.offer).or_default().push(*place);
        }
        let mut fairness = Self { deciles: vec![Part::default(); DECILES], ..Self::default() };
        let mut front = vec![Part::default(); usize::try_from(BINS_PER_STOCK * STOCKS_MAX).unwrap_or(0)];
        for (offer, mut line) in lines {
            line.sort_by_key(|place| place.in_line_us);
            fairness.add(&line, places(&line, stocks.get(&offer).copied()), &mut front);
        }
        let is_coarse = fairness.places.saturating_mul(length(DECILES)) < fairness.in_line.saturating_mul(3);
        if is_coarse && fairness.winners > 0 {
            fairness.front = contested(front);
        }
        fairness
    }

    fn add(&mut self, line: &[Place], places: u64, front: &mut [Part]) {
        let buyers = length(line.len());
        for (rank, place) in (0_u64..).zip(line) {
            let has_place = rank < places;
            self.in_line += 1;
            self.winners += u64::from(place.won);
            self.places += u64::from(has_place);
            self.winners_in_order += u64::from(place.won && has_place);
            let decile = rank.saturating_mul(length(DECILES)) / buyers.max(1);
            if let Some(part) = usize::try_from(decile).ok().and_then(|part| self.deciles.get_mut(part)) {
                part.count(place.won, has_place);
            }
            let bin = rank.saturating_mul(BINS_PER_STOCK).checked_div(places);
            let bin = bin.and_then(|bin| usize::try_from(bin).ok());
            if let Some(part) = bin.and_then(|bin| front.get_mut(bin)) {
                part.count(place.won, has_place);
            }
        }
    }

    /// The share of winners who would have won in strict order.
    pub fn in_order(&self) -> f64 {
        if self.winners == 0 { 0.0 } else { float(self.winners_in_order) / float(self.winners) }
    }

    /// The win rate of a raffle.
    pub fn chance(&self) -> f64 {
        if self.in_line == 0 { 0.0 } else { float(self.winners) / float(self.in_line) }
    }

    /// What the picture means.
    pub fn sentence(&self) -> String {
        if self.in_line == 0 {
            return "Nobody stood in line, so there is nothing to compare.".into();
        }
        if self.winners == 0 {
            return "Nobody won, so the place in line made no difference.".into();
        }
        if self.places >= self.in_line {
            return "There were units for everybody in line, so the place made no difference by itself."
                .into();
        }
        let (in_order, raffle) = (self.in_order(), float(self.places) / float(self.in_line));
        let facts = format!(
            "{} of the winners stood where strict order would have served them; a raffle would put {} there.",
            percent(in_order),
            percent(raffle)
        );
        let meaning = if in_order >= MOSTLY {
            "First come, first served:"
        } else if in_order >= raffle.mul_add(0.5, 0.5) {
            "Mostly first come, first served; the rest is who was faster on the way:"
        } else if in_order > raffle * 1.5 {
            "The place in line helped, but did not decide:"
        } else if in_order >= raffle * 0.5 {
            "This was close to a raffle, coming first did not help:"
        } else {
            "Those who came later won, as if the line had been turned round:"
        };
        format!("{meaning} {facts}")
    }
}

/// How many in line there are units for. Orders of several units leave fewer places.
fn places(line: &[Place], stock: Option<u64>) -> u64 {
    let winners = length(line.iter().filter(|place| place.units > 0).count());
    let units: u64 = line.iter().map(|place| place.units).sum();
    let stock = stock.unwrap_or(units);
    let places = stock.saturating_mul(winners).checked_div(units).unwrap_or(stock);
    places.min(length(line.len()))
}

/// Up to where the last winners are, and at least twice the stock.
fn contested(mut front: Vec<Part>) -> Vec<Part> {
    let last = front.iter().rposition(|part| part.winners > 0).map_or(0, |last| last + 1);
    let least = usize::try_from(BINS_PER_STOCK * 2).unwrap_or(0);
    front.truncate(last.max(least).next_multiple_of(usize::try_from(BINS_PER_STOCK).unwrap_or(1)));
    front
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: OfferId = OfferId(1);

    fn line(buyers: u64, wins: impl Fn(u64) -> bool) -> Vec<Place> {
        // Not sorted: the line is made by time, not by the order of the histories.
        let place = |rank| Place {
            offer: OFFER,
            in_line_us: rank * 10,
            won: wins(rank),
            units: u64::from(wins(rank)),
        };
        (0..buyers).rev().map(place).collect()
    }

    fn fairness(buyers: u64, stock: u64, wins: impl Fn(u64) -> bool) -> Fairness {
        Fairness::of(&line(buyers, wins), &BTreeMap::from([(OFFER, stock)]))
    }

    #[test]
    fn strict_order_is_seen_as_such() {
        let fairness = fairness(1_000, 50, |rank| rank < 50);
        let first = Part { buyers: 100, winners: 50, in_strict_order: 50 };
        let rest = Part { buyers: 100, winners: 0, in_strict_order: 0 };
        assert_eq!(fairness.deciles[0], first);
        assert_eq!(fairness.deciles[1..], [rest; 9]);
        assert_eq!((fairness.winners, fairness.winners_in_order, fairness.places), (50, 50, 50));
        let served = Part { buyers: 5, winners: 5, in_strict_order: 5 };
        let unserved = Part { buyers: 5, winners: 0, in_strict_order: 0 };
        assert_eq!((fairness.front.len(), fairness.front[9], fairness.front[10]), (20, served, unserved));
        assert!(
            fairness.sentence().starts_with("First come, first served: 100\u{a0}%"),
            "{}",
            fairness.sentence()
        );
    }

    #[test]
    fn a_raffle_and_a_line_turned_round_are_seen_as_such() {
        let raffle = fairness(1_000, 100, |rank| rank % 10 == 3);
        assert!(raffle.deciles.iter().all(|part| (part.buyers, part.winners) == (100, 10)));
        assert_eq!(raffle.deciles.iter().map(|part| part.in_strict_order).collect::<Vec<_>>()[..2], [100, 0]);
        assert!(raffle.sentence().contains("close to a raffle"), "{}", raffle.sentence());
        let last = fairness(1_000, 100, |rank| rank >= 900);
        assert_eq!((last.winners_in_order, last.deciles[9].winners), (0, 100));
        assert!(last.sentence().starts_with("Those who came later won"), "{}", last.sentence());
    }

    #[test]
    fn each_offer_has_a_line_of_its_own() {
        let mut both = line(100, |rank| rank < 10);
        both.extend(
            line(100, |rank| rank < 20).into_iter().map(|place| Place { offer: OfferId(2), ..place }),
        );
        let fairness = Fairness::of(&both, &BTreeMap::from([(OFFER, 10), (OfferId(2), 20)]));
        assert_eq!((fairness.winners, fairness.winners_in_order), (30, 30));
        assert_eq!(fairness.deciles[0], Part { buyers: 20, winners: 20, in_strict_order: 20 });
        assert_eq!(fairness.deciles[1], Part { buyers: 20, winners: 10, in_strict_order: 10 });
    }

    #[test]
    fn orders_of_two_units_leave_half_the_places() {
        let mut line = line(100, |rank| rank < 5);
        line.iter_mut().for_each(|place| place.units *= 2);
        let fairness = Fairness::of(&line, &BTreeMap::from([(OFFER, 10)]));
        assert_eq!((fairness.places, fairness.winners_in_order), (5, 5));
    }

    #[test]
    fn nobody_no_winner_and_enough_for_all_have_sentences_too() {
        assert!(fairness(0, 5, |_| false).sentence().starts_with("Nobody stood"));
        assert!(fairness(9, 0, |_| false).sentence().starts_with("Nobody won"));
        assert!(fairness(9, 9, |_| true).sentence().starts_with("There were units for everybody"));
    }
}
