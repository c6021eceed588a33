//! Who gets a unit. `admit` is the decision; every gate calls it. `Model` is the whole gate as a person would
//! write it without threads, disks or crashes: the gates are tested against it.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{OfferId, OrderId};
use crate::sale::{Phase, SaleState, Window};
use crate::time::UnixMs;

/// What the gate already knows about this buyer and this offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    Nothing,
    /// This very order, live, with this quantity.
    SameLive { quantity: u32 },
    /// This very order, and it has ended: the pass is spent.
    SameEnded,
    /// Another live order of the same buyer.
    OtherLive { order: OrderId },
}

/// Whether the sale takes orders at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    Open,
    /// Opens in so many milliseconds.
    NotOpen {
        opens_in_ms: u64,
    },
    Paused,
    Ended,
}

impl Door {
    #[must_use]
    pub fn at(state: SaleState, window: Window, now: UnixMs) -> Self {
        match (state, window.phase(now)) {
            (SaleState::Ended, _) | (_, Phase::Closed) => Self::Ended,
            // A draft has no door yet; a try that reaches one comes before its opening.
            (SaleState::Draft, _) | (_, Phase::Upcoming) => {
                Self::NotOpen { opens_in_ms: now.ms_until(window.opens_at) }
            }
            (SaleState::Paused, Phase::Open) => Self::Paused,
            (SaleState::Published, Phase::Open) => Self::Open,
        }
    }
}

/// The gate's answer to a try. Refusals are answers, not errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Granted,
    /// The same request again; its order lives.
    Repeat,
    /// The same request again; its order has ended and the pass is spent.
    Spent,
    /// The same pass with another quantity.
    PassReused,
    AlreadyOrdered {
        order: OrderId,
    },
    Ended,
    NotOpen {
        opens_in_ms: u64,
    },
    Paused,
    SoldOut,
    NotEnough {
        available: u32,
    },
    Busy,
}

/// The decision, cheapest and most telling answer first. The order of these checks is part of the contract.
///
/// `room` is asked last: room in the queue is reserved before a unit is taken, so that a full queue never takes and
/// returns a last unit, but it is only spoken of when everything else would have granted.
#[inline]
pub fn admit(known: Known, door: Door, free: u32, quantity: u32, room: impl FnOnce() -> bool) -> Verdict {
    match known {
        Known::SameLive { quantity: first } if first != quantity => return Verdict::PassReused,
        Known::SameLive { .. } => return Verdict::Repeat,
        Known::SameEnded => return Verdict::Spent,
        Known::OtherLive { order } => return Verdict::AlreadyOrdered { order },
        Known::Nothing => {}
    }
    match door {
        Door::Ended => Verdict::Ended,
        Door::NotOpen { opens_in_ms } => Verdict::NotOpen { opens_in_ms },
        Door::Paused => Verdict::Paused,
        Door::Open if free == 0 => Verdict::SoldOut,
        Door::Open if free < quantity => Verdict::NotEnough { available: free },
        Door::Open if !room() => Verdict::Busy,
        Door::Open => Verdict::Granted,
    }
}

/// Whether late money finds units again (`kind = revive`): a claim like any other, except that neither the window nor
/// a pause nor its own spent pass stands in its way.
///
/// `live` is the live order, and its quantity, that the gate knows of the same buyer and offer. It is asked for after
/// the release of the order's closing has reached the gate: a gate that still counts the closed order as live would
/// take the revival for a repeat, and then give its units away when that release arrives.
pub fn readmit(
    order: OrderId,
    live: Option<(OrderId, u32)>,
    free: u32,
    quantity: u32,
    room: impl FnOnce() -> bool,
) -> Verdict {
    let known = match live {
        None => Known::Nothing,
        Some((same, quantity)) if same == order => Known::SameLive { quantity },
        Some((other, _)) => Known::OtherLive { order: other },
    };
    admit(known, Door::Open, free, quantity, room)
}

/// The `seq` of an order that a buyer's claim begins: whatever ends it has a higher one.
pub const CLAIM_SEQ: u32 = 1;

/// Whether a gate that holds units for an order lets go of them because of the order's fact `seq`. `held_since` is the
/// `seq` at which the order came to hold them: [`CLAIM_SEQ`], or that of the closing from which late money claimed them.
///
/// An earlier fact, or the same one again, was counted before.
#[inline]
#[must_use]
pub const fn lets_go(seq: u32, held_since: u32) -> bool {
    seq > held_since
}

/// A gate without threads, for tests: the plainest thing that keeps the promises.
#[derive(Clone, Debug, Default)]
pub struct Model {
    offers: BTreeMap<OfferId, ModelOffer>,
}

#[derive(Clone, Debug)]
struct ModelOffer {
    state: SaleState,
    window: Window,
    stock: u32,
    live: BTreeMap<String, (OrderId, u32)>,
    spent: BTreeSet<OrderId>,
}

impl ModelOffer {
    fn free(&self) -> u32 {
        let held: u32 = self.live.values().map(|(_, quantity)| quantity).sum();
        self.stock.saturating_sub(held)
    }
}

impl Model {
    pub fn seed(&mut self, offer: OfferId, window: Window, stock: u32) {
        let state = SaleState::Published;
        let empty = ModelOffer { state, window, stock, live: BTreeMap::new(), spent: BTreeSet::new() };
        self.offers.insert(offer, empty);
    }

    pub fn set_state(&mut self, offer: OfferId, state: SaleState) {
        if let Some(offer) = self.offers.get_mut(&offer) {
            offer.state = state;
        }
    }

    #[must_use]
    pub fn free(&self, offer: OfferId) -> u32 {
        self.offers.get(&offer).map_or(0, ModelOffer::free)
    }

    pub fn claim(
        &mut self,
        offer: OfferId,
        buyer: &str,
        order: OrderId,
        quantity: u32,
        now: UnixMs,
    ) -> Verdict {
        let Some(offer) = self.offers.get_mut(&offer) else { return Verdict::Ended };
        let known = match offer.live.get(buyer) {
            Some((live, quantity)) if *live == order => Known::SameLive { quantity: *quantity },
            _ if offer.spent.contains(&order) => Known::SameEnded,
            Some((live, _)) => Known::OtherLive { order: *live },
            None => Known::Nothing,
        };
        let door = Door::at(offer.state, offer.window, now);
        let verdict = admit(known, door, offer.free(), quantity, || true);
        if verdict == Verdict::Granted {
            offer.live.insert(buyer.to_owned(), (order, quantity));
        }
        verdict
    }

    /// Late money wants the units of an order that timed out, once that closing was released.
    pub fn revive(&mut self, offer: OfferId, buyer: &str, order: OrderId, quantity: u32) -> Verdict {
        let Some(offer) = self.offers.get_mut(&offer) else { return Verdict::Ended };
        let verdict = readmit(order, offer.live.get(buyer).copied(), offer.free(), quantity, || true);
        if verdict == Verdict::Granted {
            offer.live.insert(buyer.to_owned(), (order, quantity));
        }
        verdict
    }

    /// The order ended: its units are free again and its pass is spent. Twice is once.
    pub fn release(&mut self, offer: OfferId, buyer: &str, order: OrderId) {
        let Some(offer) = self.offers.get_mut(&offer) else { return };
        if offer.live.get(buyer).is_some_and(|(live, _)| *live == order) {
            offer.live.remove(buyer);
            offer.spent.insert(order);
        }
    }

    pub fn raise(&mut self, offer: OfferId, units: u32) {
        if let Some(offer) = self.offers.get_mut(&offer) {
            offer.stock += units;
        }
    }

    /// Gives up free units; `false` when fewer are free.
    pub fn lower(&mut self, offer: OfferId, units: u32) -> bool {
        match self.offers.get_mut(&offer) {
            Some(offer) if offer.free() >= units => {
                offer.stock -= units;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Window = Window { opens_at: UnixMs(10), closes_at: UnixMs(20) };

    fn judge(known: Known, door: Door, free: u32, room: bool) -> Verdict {
        admit(known, door, free, 2, || room)
    }

    #[test]
    fn the_checks_come_in_the_order_of_the_contract() {
        let other = Known::OtherLive { order: OrderId(9) };
        assert_eq!(judge(Known::SameLive { quantity: 1 }, Door::Ended, 0, false), Verdict::PassReused);
        assert_eq!(judge(Known::SameLive { quantity: 2 }, Door::Ended, 0, false), Verdict::Repeat);
        assert_eq!(judge(Known::SameEnded, Door::Ended, 0, false), Verdict::Spent);
        assert_eq!(judge(other, Door::Ended, 0, false), Verdict::AlreadyOrdered { order: OrderId(9) });
        assert_eq!(judge(Known::Nothing, Door::Ended, 0, false), Verdict::Ended);
        let early = Door::NotOpen { opens_in_ms: 3 };
        assert_eq!(judge(Known::Nothing, early, 0, false), Verdict::NotOpen { opens_in_ms: 3 });
        assert_eq!(judge(Known::Nothing, Door::Paused, 0, false), Verdict::Paused);
        assert_eq!(judge(Known::Nothing, Door::Open, 0, false), Verdict::SoldOut);
        assert_eq!(judge(Known::Nothing, Door::Open, 1, false), Verdict::NotEnough { available: 1 });
        assert_eq!(judge(Known::Nothing, Door::Open, 2, false), Verdict::Busy);
        assert_eq!(judge(Known::Nothing, Door::Open, 2, true), Verdict::Granted);
    }

    #[test]
    fn room_is_asked_only_when_everything_else_would_grant() {
        let verdict =
            admit(Known::Nothing, Door::Open, 0, 1, || panic!("no room may be reserved for a refusal"));
        assert_eq!(verdict, Verdict::SoldOut);
    }

    #[test]
    fn a_revival_needs_units_and_no_other_live_order_and_nothing_else() {
        let judge = |live, free, room| readmit(OrderId(1), live, free, 2, || room);
        let other = Some((OrderId(9), 1));
        assert_eq!(judge(None, 2, true), Verdict::Granted);
        assert_eq!(judge(Some((OrderId(1), 2)), 0, false), Verdict::Repeat);
        assert_eq!(judge(other, 2, true), Verdict::AlreadyOrdered { order: OrderId(9) });
        assert_eq!(judge(None, 0, true), Verdict::SoldOut);
        assert_eq!(judge(None, 1, true), Verdict::NotEnough { available: 1 });
        assert_eq!(judge(None, 2, false), Verdict::Busy);
    }

    #[test]
    fn the_door_follows_state_and_window() {
        let door = |state, now| Door::at(state, WINDOW, UnixMs(now));
        assert_eq!(door(SaleState::Published, 9), Door::NotOpen { opens_in_ms: 1 });
        assert_eq!(door(SaleState::Published, 10), Door::Open);
        assert_eq!(door(SaleState::Published, 20), Door::Ended);
        assert_eq!(door(SaleState::Paused, 9), Door::NotOpen { opens_in_ms: 1 });
        assert_eq!(door(SaleState::Paused, 10), Door::Paused);
        assert_eq!(door(SaleState::Ended, 10), Door::Ended);
        assert_eq!(door(SaleState::Draft, 10), Door::NotOpen { opens_in_ms: 0 });
    }

    #[test]
    fn a_released_unit_is_claimable_and_its_pass_is_spent() {
        let mut model = Model::default();
        model.seed(OfferId(1), WINDOW, 1);
        let claim = |model: &mut Model, buyer: &str, order| {
            model.claim(OfferId(1), buyer, OrderId(order), 1, UnixMs(10))
        };
        assert_eq!(claim(&mut model, "ann", 1), Verdict::Granted);
        assert_eq!(claim(&mut model, "bob", 2), Verdict::SoldOut);
        model.release(OfferId(1), "ann", OrderId(1));
        model.release(OfferId(1), "ann", OrderId(1));
        assert_eq!(claim(&mut model, "ann", 1), Verdict::Spent);
        assert_eq!(claim(&mut model, "bob", 2), Verdict::Granted);
        assert_eq!(model.free(OfferId(1)), 0);
    }
}
