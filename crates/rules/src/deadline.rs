//! When an unpaid order closes. All times are the ledger's. Knows nothing of how a provider is asked; whoever asks
//! remembers since when and what was heard, and may forget it: asking again is harmless.

use crate::payment::State as PaymentState;
use crate::time::UnixMs;

/// How long a provider is asked, at most, whether a started payment was paid.
pub const PROVIDER_ASKED_FOR_MS: i64 = 5_000;

/// How long the callback of a payment that the provider calls paid is waited for, at most. Afterwards the provider's
/// answer is taken in its place: whoever has paid is not closed because a callback got lost.
pub const CALLBACK_AWAITED_FOR_MS: i64 = 15 * 60 * 1_000;

/// Until when an order that was recorded at this moment can be paid.
#[must_use]
pub fn pay_by(recorded_at: UnixMs, pay_within_s: u32) -> UnixMs {
    recorded_at.plus_s(pay_within_s)
}

/// What the provider says about a started payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Paid,
    NotPaid,
}

/// How far asking the provider has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Asked {
    NotYet,
    /// No answer yet.
    Since(UnixMs),
    Answered {
        answer: Answer,
        at: UnixMs,
    },
}

/// Money that may still come for an unpaid order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OnTheWay {
    Nothing,
    /// The buyer was sent to a provider.
    Started(Asked),
    /// A verified capture is written down and not decided yet.
    Captured,
}

impl OnTheWay {
    /// What the order's payments, and what was heard of the started one, amount to.
    pub fn of(payments: impl IntoIterator<Item = PaymentState>, asked: Asked) -> Self {
        let mut found = Self::Nothing;
        for state in payments {
            match state {
                PaymentState::Captured => return Self::Captured,
                PaymentState::Started => found = Self::Started(asked),
                PaymentState::Closed
                | PaymentState::Applied
                | PaymentState::RefundDue
                | PaymentState::Refunding
                | PaymentState::Refunded
                | PaymentState::RefundFailed => {}
            }
        }
        found
    }

    /// Whether the buyer may cancel. Money that is here is settled first; then the order is paid.
    #[must_use]
    pub fn lets_cancel(self) -> bool {
        self != Self::Captured
    }
}

/// What the sweeper does with an unpaid order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Due {
    /// Nothing before this moment.
    NotBefore(UnixMs),
    /// Ask the provider whether the started payment was paid.
    Ask,
    /// Settle the capture that is here; it decides what becomes of the order.
    Settle,
    /// Take the capture that the provider told of when it was asked: its callback does not come.
    TakeAnswer,
    /// Close it: nobody paid in time, as far as anybody can tell.
    Close,
}

/// What is due for an order in `awaiting_payment`.
#[must_use]
pub fn due(now: UnixMs, pay_by: UnixMs, on_the_way: OnTheWay) -> Due {
    let until = |moment: UnixMs, then: Due| if now < moment { Due::NotBefore(moment) } else { then };
    match on_the_way {
        OnTheWay::Captured => Due::Settle,
        _ if now < pay_by => Due::NotBefore(pay_by),
        OnTheWay::Nothing => Due::Close,
        OnTheWay::Started(Asked::NotYet) => Due::Ask,
        OnTheWay::Started(Asked::Since(since)) => until(since.plus_ms(PROVIDER_ASKED_FOR_MS), Due::Close),
        OnTheWay::Started(Asked::Answered { answer: Answer::NotPaid, .. }) => Due::Close,
        OnTheWay::Started(Asked::Answered { answer: Answer::Paid, at }) => {
            until(at.max(pay_by).plus_ms(CALLBACK_AWAITED_FOR_MS), Due::TakeAnswer)
        }
    }
}

/// A span of time in which paying was impossible: we or the provider did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outage {
    pub from: UnixMs,
    pub until: UnixMs,
}

/// For how much of the time between recording and deadline paying was impossible, in milliseconds. Outages may be
/// given in any order and overlap; no moment counts twice.
#[must_use]
pub fn impossible_ms(recorded_at: UnixMs, pay_by: UnixMs, outages: &[Outage]) -> u64 {
    let mut outages = outages.to_vec();
    outages.sort_by_key(|outage| outage.from);
    let (mut counted_to, mut sum) = (recorded_at, 0_u64);
    for Outage { from, until } in outages {
        let from = from.max(counted_to);
        let until = until.min(pay_by);
        sum = sum.saturating_add(from.ms_until(until));
        counted_to = counted_to.max(until);
    }
    sum
}

/// Whether not having paid is excused: paying was impossible for more than a tenth of the time there was.
#[must_use]
pub fn is_excused(recorded_at: UnixMs, pay_by: UnixMs, outages: &[Outage]) -> bool {
    let time = recorded_at.ms_until(pay_by);
    impossible_ms(recorded_at, pay_by, outages).saturating_mul(10) > time
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAY_BY: UnixMs = UnixMs(900_000);

    fn answered(answer: Answer, at: i64) -> OnTheWay {
        OnTheWay::Started(Asked::Answered { answer, at: UnixMs(at) })
    }

    #[test]
    fn an_order_nobody_started_to_pay_closes_at_its_deadline() {
        assert_eq!(pay_by(UnixMs(0), 900), PAY_BY);
        assert_eq!(due(UnixMs(899_999), PAY_BY, OnTheWay::Nothing), Due::NotBefore(PAY_BY));
        assert_eq!(due(PAY_BY, PAY_BY, OnTheWay::Nothing), Due::Close);
    }

    #[test]
    fn the_provider_of_a_started_payment_is_asked_for_five_seconds() {
        let asked = OnTheWay::Started(Asked::Since(UnixMs(900_010)));
        assert_eq!(due(UnixMs(899_999), PAY_BY, OnTheWay::Started(Asked::NotYet)), Due::NotBefore(PAY_BY));
        assert_eq!(due(PAY_BY, PAY_BY, OnTheWay::Started(Asked::NotYet)), Due::Ask);
        assert_eq!(due(UnixMs(905_009), PAY_BY, asked), Due::NotBefore(UnixMs(905_010)));
        assert_eq!(due(UnixMs(905_010), PAY_BY, asked), Due::Close);
        assert_eq!(due(UnixMs(900_020), PAY_BY, answered(Answer::NotPaid, 900_015)), Due::Close);
    }

    #[test]
    fn the_callback_of_a_paid_payment_is_waited_for_and_then_the_answer_is_taken() {
        let paid = answered(Answer::Paid, 900_100);
        assert_eq!(due(UnixMs(900_200), PAY_BY, paid), Due::NotBefore(UnixMs(1_800_100)));
        assert_eq!(due(UnixMs(1_800_100), PAY_BY, paid), Due::TakeAnswer);
    }

    #[test]
    fn money_that_is_here_is_settled_before_anything_closes() {
        assert_eq!(due(UnixMs(0), PAY_BY, OnTheWay::Captured), Due::Settle);
        assert_eq!(due(UnixMs(i64::MAX), PAY_BY, OnTheWay::Captured), Due::Settle);
        assert!(!OnTheWay::Captured.lets_cancel());
        assert!(OnTheWay::Nothing.lets_cancel() && OnTheWay::Started(Asked::NotYet).lets_cancel());
    }

    #[test]
    fn what_is_on_the_way_is_the_furthest_open_payment() {
        let of = |states: &[PaymentState]| OnTheWay::of(states.iter().copied(), Asked::NotYet);
        assert_eq!(of(&[]), OnTheWay::Nothing);
        assert_eq!(of(&[PaymentState::Closed, PaymentState::Refunded]), OnTheWay::Nothing);
        assert_eq!(of(&[PaymentState::Closed, PaymentState::Started]), OnTheWay::Started(Asked::NotYet));
        assert_eq!(of(&[PaymentState::Captured, PaymentState::Started]), OnTheWay::Captured);
    }

    #[test]
    fn exactly_a_tenth_of_the_time_is_no_excuse() {
        let outage = |from, until| Outage { from: UnixMs(from), until: UnixMs(until) };
        let excused = |outages: &[Outage]| is_excused(UnixMs(0), PAY_BY, outages);
        assert!(!excused(&[]));
        assert!(!excused(&[outage(0, 90_000)]));
        assert!(excused(&[outage(0, 90_001)]));
        assert!(!excused(&[outage(0, 90_000), outage(10, 80_000)]), "overlaps count once");
        assert!(excused(&[outage(600_000, 645_001), outage(0, 45_000)]), "in any order");
        assert!(!excused(&[outage(-500_000, 1), outage(899_999, 5_000_000)]), "only the time to pay counts");
        assert!(!excused(&[outage(500_000, 100)]), "a span that ends before it begins is none");
    }

    proptest! {
        #[test]
        fn every_order_closes_or_is_paid_in_bounded_time(
            asked_at in 0_i64..10_000_000, answer in prop::option::of(any::<bool>()), extra in 0_i64..1_000_000,
        ) {
            let asked = match answer {
                None => Asked::Since(UnixMs(asked_at)),
                Some(true) => Asked::Answered { answer: Answer::Paid, at: UnixMs(asked_at) },
                Some(false) => Asked::Answered { answer: Answer::NotPaid, at: UnixMs(asked_at) },
            };
            let latest = PAY_BY.max(UnixMs(asked_at)).plus_ms(CALLBACK_AWAITED_FOR_MS).plus_ms(extra);
            let expected = if answer == Some(true) { Due::TakeAnswer } else { Due::Close };
            prop_assert_eq!(due(latest, PAY_BY, OnTheWay::Started(asked)), expected);
        }

        #[test]
        fn what_is_due_at_a_moment_is_not_put_off_again(now in 0_i64..3_000_000, asked_at in 0_i64..3_000_000, paid: bool) {
            let answer = if paid { Answer::Paid } else { Answer::NotPaid };
            for on_the_way in [
                OnTheWay::Nothing,
                OnTheWay::Started(Asked::NotYet),
                OnTheWay::Started(Asked::Since(UnixMs(asked_at))),
                answered(answer, asked_at),
            ] {
                if let Due::NotBefore(moment) = due(UnixMs(now), PAY_BY, on_the_way) {
                    prop_assert!(UnixMs(now) < moment);
                    let then = due(moment, PAY_BY, on_the_way);
                    let second = matches!(then, Due::NotBefore(_)) && moment == PAY_BY;
                    prop_assert!(second || matches!(then, Due::Close | Due::Ask | Due::TakeAnswer), "{:?}", then);
                }
            }
        }

        #[test]
        fn no_moment_of_an_outage_counts_twice(spans in prop::collection::vec((-50_i64..150, 0_i64..60), 0..8)) {
            let outages: Vec<_> = spans
                .iter()
                .map(|(from, long)| Outage { from: UnixMs(*from), until: UnixMs(from + long) })
                .collect();
            let counted = (0..100).filter(|ms| {
                outages.iter().any(|outage| outage.from.0 <= *ms && *ms < outage.until.0)
            });
            let sum = impossible_ms(UnixMs(0), UnixMs(100), &outages);
            prop_assert_eq!(usize::try_from(sum).unwrap(), counted.count());
        }
    }
}
