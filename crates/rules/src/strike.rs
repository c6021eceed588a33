//! Marks against buyers who win and do not pay, and the blocks that follow from them. A block is computed from the
//! list of strikes, never stored: lifting a strike lifts what it caused. Knows no tables and no clock.

use std::fmt;

use crate::id::OrderId;
use crate::order::Event;
use crate::time::UnixMs;

const DAY_MS: i64 = 24 * HOUR_MS;
const HOUR_MS: i64 = 60 * 60 * 1_000;

/// What the shop decided about strikes: `strikes.limit`, `strikes.window_days`, `strikes.block_hours`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Strikes that block a buyer. 0 = never.
    pub limit: u32,
    /// How long a strike counts, days.
    pub window_days: u32,
    /// How long a block lasts, hours.
    pub block_hours: u32,
}

impl Policy {
    /// Strikes from before this moment neither count now nor can they be part of a block that has not ended.
    #[must_use]
    pub fn matters_since(self, now: UnixMs) -> UnixMs {
        now.plus_ms(self.window_ms().saturating_add(self.block_ms()).saturating_neg())
    }

    fn window_ms(self) -> i64 {
        i64::from(self.window_days).saturating_mul(DAY_MS)
    }

    fn block_ms(self) -> i64 {
        i64::from(self.block_hours).saturating_mul(HOUR_MS)
    }
}

/// Where a strike comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// The order was not paid in time. One order strikes once.
    Unpaid(OrderId),
    /// The operator gave it.
    Operator,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Strike {
    pub cause: Cause,
    pub at: UnixMs,
    /// Taken back: by late money that revived the order, or by the operator, who lifts all of a buyer's strikes to end
    /// a block that they caused. It stays in the list as history.
    pub lifted_at: Option<UnixMs>,
}

/// What a change of an order does to its buyer's strikes, in the transaction that writes the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    Unmoved,
    /// A strike for this order.
    Strike,
    /// The strike for this order, if there is one, is lifted.
    Lift,
}

/// Who does not pay in time gets a strike, unless paying was impossible (see [`crate::deadline::Excuses`]); who
/// cancels in time gets none; late money that finds a unit lifts it.
#[must_use]
pub const fn mark(event: Event, excused: bool) -> Mark {
    match event {
        Event::TimedOut if excused => Mark::Unmoved,
        Event::TimedOut => Mark::Strike,
        Event::Revived => Mark::Lift,
        Event::Recorded
        | Event::Refused(_)
        | Event::PaymentApplied
        | Event::NotRevived
        | Event::Cancelled
        | Event::RefundStarted
        | Event::RefundDone
        | Event::RefundFailed => Mark::Unmoved,
    }
}

/// How a buyer stands, told to them before they buy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Strikes that count now.
    pub strikes: u32,
    /// 0 = strikes never block.
    pub limit: u32,
    /// No passes before this moment.
    pub blocked_until: Option<UnixMs>,
    /// When the oldest strike stops counting.
    pub next_decay_at: Option<UnixMs>,
    /// How long the next block would last, hours.
    pub block_hours: u32,
}

/// How a buyer stands at this moment. `operator_block_until` is a block that the operator set by hand; the later end
/// wins. Two strikes for one order count once.
#[must_use]
pub fn standing(
    policy: Policy,
    strikes: &[Strike],
    operator_block_until: Option<UnixMs>,
    now: UnixMs,
) -> Standing {
    let moments = counted(strikes);
    let counting = |at: &&UnixMs| now < at.plus_ms(policy.window_ms());
    let by_strikes = blocks(policy, &moments).max();
    Standing {
        strikes: u32::try_from(moments.iter().filter(counting).count()).unwrap_or(u32::MAX),
        limit: policy.limit,
        blocked_until: by_strikes.max(operator_block_until).filter(|until| now < *until),
        next_decay_at: moments.iter().find(counting).map(|at| at.plus_ms(policy.window_ms())),
        block_hours: policy.block_hours,
    }
}

/// The moments of all strikes that were not lifted, oldest first, one per order.
fn counted(strikes: &[Strike]) -> Vec<UnixMs> {
    let mut kept: Vec<&Strike> = strikes.iter().filter(|strike| strike.lifted_at.is_none()).collect();
    kept.sort_by_key(|strike| (strike.cause, strike.at));
    kept.dedup_by(|later, first| later.cause == first.cause && first.cause != Cause::Operator);
    let mut moments: Vec<UnixMs> = kept.into_iter().map(|strike| strike.at).collect();
    moments.sort_unstable();
    moments
}

/// The ends of all blocks there ever were: each strike that comes while `limit - 1` others still count begins one.
fn blocks(policy: Policy, moments: &[UnixMs]) -> impl Iterator<Item = UnixMs> {
    let limit = usize::try_from(policy.limit).unwrap_or(usize::MAX);
    // A window of no strikes does not exist; with a limit of 0 nothing blocks.
    let groups = moments.windows(limit.max(1)).filter(move |_| limit > 0);
    groups.filter_map(move |group| {
        let (first, last) = (group.first()?, group.last()?);
        (*last < first.plus_ms(policy.window_ms())).then(|| last.plus_ms(policy.block_ms()))
    })
}

impl Standing {
    /// How many more unpaid orders block this buyer; nothing when strikes never block.
    #[must_use]
    pub fn left(&self) -> Option<u32> {
        (self.limit > 0).then(|| self.limit.saturating_sub(self.strikes).max(1))
    }

    /// What the buyer is told before buying; nothing when there is nothing to say.
    #[must_use]
    pub fn notice(&self) -> Option<Notice> {
        match (self.blocked_until, self.left()) {
            (Some(until), _) => Some(Notice::Blocked { until }),
            (None, Some(left)) if self.strikes > 0 => {
                Some(Notice::Warned { strikes: self.strikes, left, block_hours: self.block_hours })
            }
            (None, _) => None,
        }
    }
}

/// A word to the buyer about their strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    Blocked { until: UnixMs },
    Warned { strikes: u32, left: u32, block_hours: u32 },
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let orders = |count: u32| if count == 1 { "order" } else { "orders" };
        match self {
            Self::Blocked { until } => write!(f, "You cannot take part until {until}."),
            Self::Warned { strikes, left, block_hours } => write!(
                f,
                "You left {strikes} {} unpaid. After {left} more you cannot take part for {block_hours} hours. \
                 An order that you do not want costs nothing if you cancel it in time.",
                orders(*strikes)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::order::{self, Status};

    const POLICY: Policy = Policy { limit: 3, window_days: 30, block_hours: 72 };

    fn strike(order: u128, day: i64) -> Strike {
        Strike { cause: Cause::Unpaid(OrderId(order)), at: UnixMs(day * DAY_MS), lifted_at: None }
    }

    fn at(strikes: &[Strike], day: i64) -> Standing {
        standing(POLICY, strikes, None, UnixMs(day * DAY_MS))
    }

    #[test]
    fn the_third_strike_in_thirty_days_blocks_for_three() {
        let strikes = [strike(1, 0), strike(2, 10), strike(3, 20)];
        assert_eq!(at(&strikes[..2], 20).blocked_until, None);
        assert_eq!(at(&strikes, 20).blocked_until, Some(UnixMs(23 * DAY_MS)));
        assert_eq!(at(&strikes, 23).blocked_until, None, "the block ends");
        assert_eq!((at(&strikes, 23).strikes, at(&strikes, 30).strikes, at(&strikes, 50).strikes), (3, 2, 0));
        assert_eq!(at(&strikes, 23).next_decay_at, Some(UnixMs(30 * DAY_MS)));
        assert_eq!(at(&strikes, 50).next_decay_at, None);
    }

    #[test]
    fn a_strike_counts_for_thirty_days_and_not_a_moment_longer() {
        let strikes = [strike(1, 0), strike(2, 10), strike(3, 30)];
        assert_eq!(at(&strikes, 30).blocked_until, None);
        let just_before = Strike { at: UnixMs(30 * DAY_MS - 1), ..strike(3, 0) };
        assert!(at(&[strike(1, 0), strike(2, 10), just_before], 30).blocked_until.is_some());
    }

    #[test]
    fn after_a_block_one_more_strike_blocks_again_while_the_others_count() {
        let strikes = [strike(1, 0), strike(2, 1), strike(3, 2), strike(4, 8)];
        assert_eq!(at(&strikes[..3], 6).blocked_until, None);
        assert_eq!(at(&strikes[..3], 6).left(), Some(1));
        assert_eq!(at(&strikes, 8).blocked_until, Some(UnixMs(11 * DAY_MS)));
    }

    #[test]
    fn a_lifted_strike_no_longer_counts_and_ends_the_block_it_caused() {
        let mut strikes = [strike(1, 0), strike(2, 1), strike(3, 2)];
        assert!(at(&strikes, 2).blocked_until.is_some());
        strikes[1].lifted_at = Some(UnixMs(2 * DAY_MS));
        assert_eq!((at(&strikes, 2).strikes, at(&strikes, 2).blocked_until), (2, None));
    }

    #[test]
    fn one_order_strikes_once_and_the_operator_as_often_as_wanted() {
        assert_eq!(at(&[strike(1, 0), strike(1, 1), strike(1, 2)], 2).strikes, 1);
        let by_hand = |day| Strike { cause: Cause::Operator, ..strike(0, day) };
        let standing = at(&[by_hand(1), by_hand(1), by_hand(1)], 1);
        assert_eq!((standing.strikes, standing.blocked_until), (3, Some(UnixMs(4 * DAY_MS))));
    }

    #[test]
    fn the_operators_block_and_the_strikes_block_and_the_later_end_wins() {
        let strikes = [strike(1, 0), strike(2, 0), strike(3, 0)];
        let blocked =
            |by_hand: i64| standing(POLICY, &strikes, Some(UnixMs(by_hand)), UnixMs(0)).blocked_until;
        assert_eq!(blocked(DAY_MS), Some(UnixMs(3 * DAY_MS)));
        assert_eq!(blocked(9 * DAY_MS), Some(UnixMs(9 * DAY_MS)));
        assert_eq!(standing(POLICY, &[], Some(UnixMs(5)), UnixMs(5)).blocked_until, None);
    }

    #[test]
    fn with_a_limit_of_zero_nothing_blocks_and_with_one_every_strike_does() {
        let never = Policy { limit: 0, ..POLICY };
        let standing_now = standing(never, &[strike(1, 0), strike(2, 0)], None, UnixMs(0));
        assert_eq!((standing_now.strikes, standing_now.blocked_until), (2, None));
        assert_eq!((standing_now.left(), standing_now.notice()), (None, None));
        let strict = Policy { limit: 1, ..POLICY };
        assert!(standing(strict, &[strike(1, 0)], None, UnixMs(0)).blocked_until.is_some());
        assert_eq!(standing(strict, &[], None, UnixMs(0)).blocked_until, None);
    }

    #[test]
    fn the_buyer_is_told_before_buying() {
        assert_eq!(at(&[], 0).notice(), None);
        let told = at(&[strike(1, 0), strike(2, 0)], 1).notice().unwrap().to_string();
        assert!(told.starts_with("You left 2 orders unpaid. After 1 more"), "{told}");
        assert!(told.contains("72 hours"), "{told}");
        let blocked = at(&[strike(1, 0), strike(2, 0), strike(3, 0)], 1).notice().unwrap().to_string();
        assert_eq!(blocked, "You cannot take part until 1970-01-04T00:00:00.000Z.");
    }

    /// Which changes of an order mark its buyer: every event, nothing else.
    #[test]
    fn only_a_timeout_strikes_and_only_a_revival_lifts() {
        for event in Event::ALL {
            let expected = match event {
                Event::TimedOut => Mark::Strike,
                Event::Revived => Mark::Lift,
                _ => Mark::Unmoved,
            };
            assert_eq!(mark(event, false), expected, "{event:?}");
        }
        assert_eq!(mark(Event::TimedOut, true), Mark::Unmoved);
        assert_eq!(mark(Event::Revived, true), Mark::Lift);
        assert_eq!(mark(Event::Cancelled, false), Mark::Unmoved, "cancelling in time is no strike");
    }

    fn some_cause() -> impl Strategy<Value = Cause> {
        (0_u128..6).prop_map(|order| if order == 0 { Cause::Operator } else { Cause::Unpaid(OrderId(order)) })
    }

    fn some_strikes() -> impl Strategy<Value = Vec<Strike>> {
        let one =
            (some_cause(), 0_i64..100, any::<bool>(), 0_i64..DAY_MS).prop_map(|(cause, day, lifted, ms)| {
                let at = UnixMs(day * DAY_MS + ms);
                Strike { cause, at, lifted_at: lifted.then_some(at) }
            });
        prop::collection::vec(one, 0..10)
    }

    fn some_policy() -> impl Strategy<Value = Policy> {
        (0_u32..5, 0_u32..40, 0_u32..200).prop_map(|(limit, window_days, block_hours)| Policy {
            limit,
            window_days,
            block_hours,
        })
    }

    proptest! {
        #[test]
        fn time_alone_only_forgives(
            policy in some_policy(), strikes in some_strikes(), by_hand in prop::option::of(0_i64..200),
            now in 0_i64..150, later in 0_i64..50,
        ) {
            let by_hand = by_hand.map(|day| UnixMs(day * DAY_MS));
            let first = standing(policy, &strikes, by_hand, UnixMs(now * DAY_MS));
            let then = standing(policy, &strikes, by_hand, UnixMs((now + later) * DAY_MS));
            prop_assert!(then.strikes <= first.strikes);
            prop_assert!(then.blocked_until.is_none() || then.blocked_until == first.blocked_until);
        }

        #[test]
        fn lifting_a_strike_never_extends_a_block(
            policy in some_policy(), strikes in some_strikes(), cause in some_cause(), now in 0_i64..150,
        ) {
            let now = UnixMs(now * DAY_MS);
            let mut fewer = strikes.clone();
            // All strikes of the order are lifted together, as `Mark::Lift` does.
            for strike in fewer.iter_mut().filter(|strike| strike.cause == cause) {
                strike.lifted_at = Some(now);
            }
            let (before, after) = (standing(policy, &strikes, None, now), standing(policy, &fewer, None, now));
            prop_assert!(after.blocked_until <= before.blocked_until);
            prop_assert!(after.strikes <= before.strikes);
        }

        #[test]
        fn what_no_longer_matters_changes_nothing(
            policy in some_policy(), strikes in some_strikes(), now in 0_i64..400,
        ) {
            let now = UnixMs(now * DAY_MS);
            // One order strikes once.
            let mut seen = std::collections::HashSet::new();
            let is_first = |strike: &Strike| strike.cause == Cause::Operator || seen.insert(strike.cause);
            let strikes: Vec<Strike> = strikes.into_iter().filter(is_first).collect();
            let since = policy.matters_since(now);
            let recent: Vec<Strike> = strikes.iter().copied().filter(|strike| strike.at >= since).collect();
            prop_assert_eq!(standing(policy, &strikes, None, now), standing(policy, &recent, None, now));
        }

        #[test]
        fn the_list_may_come_in_any_order(
            policy in some_policy(),
            (one, other) in some_strikes().prop_flat_map(|list| (Just(list.clone()), Just(list).prop_shuffle())),
            now in 0_i64..150,
        ) {
            let now = UnixMs(now * DAY_MS);
            prop_assert_eq!(standing(policy, &one, None, now), standing(policy, &other, None, now));
        }

        #[test]
        fn an_order_that_is_paid_or_cancelled_leaves_no_strike(
            events in prop::collection::vec(0..Event::ALL.len(), 0..30), excused: bool,
        ) {
            let (mut status, mut struck) = (Status::QUEUED, false);
            for event in events.into_iter().map(|event| Event::ALL[event]) {
                let Ok(after) = order::next(status, event) else { continue };
                struck = match mark(event, excused) {
                    Mark::Unmoved => struck,
                    Mark::Strike => true,
                    Mark::Lift => false,
                };
                status = after;
            }
            let timed_out = status.reason == Some(order::Reason::Timeout);
            prop_assert_eq!(struck, timed_out && !excused);
        }
    }
}
