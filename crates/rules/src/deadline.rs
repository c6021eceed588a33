//! When an unpaid order closes. All times are the ledger's. Knows nothing of how a provider is asked; whoever asks
//! remembers since when and what was heard, and may forget it: asking again is harmless.

use std::collections::BTreeMap;

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

/// A span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    pub from: UnixMs,
    pub until: UnixMs,
}

/// A span of time in which paying was impossible.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outage {
    /// The provider that took no payments; nothing when nobody could pay anywhere, because we did not answer.
    pub provider: Option<String>,
    pub span: Span,
}

impl Outage {
    /// We did not answer.
    #[must_use]
    pub const fn everywhere(span: Span) -> Self {
        Self { provider: None, span }
    }
}

/// When paying was impossible, for whom: what excuses those who did not pay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Excuses {
    /// Of everybody.
    everybody: Vec<Span>,
    /// Of those who went to this provider.
    at: BTreeMap<String, Vec<Span>>,
}

impl Excuses {
    /// What follows from these outages where buyers choose among the providers `serving`: while one of them takes payments,
    /// who has not gone to another could have paid.
    pub fn of<'a>(
        outages: impl IntoIterator<Item = Outage>,
        serving: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut excuses = Self::default();
        for Outage { provider, span } in outages {
            match provider {
                None => excuses.everybody.push(span),
                Some(provider) => excuses.at.entry(provider).or_default().push(span),
            }
        }
        let at_each = serving.into_iter().map(|name| excuses.at.get(name).cloned().unwrap_or_default());
        let at_all = at_each.reduce(|some, others| at_once(&some, &others)).unwrap_or_default();
        excuses.everybody.extend(at_all);
        excuses
    }

    /// Whether not having paid is excused: paying was impossible for more than a tenth of the time there was. `provider` is
    /// the one that the buyer went to, if any.
    #[must_use]
    pub fn excuse(&self, recorded_at: UnixMs, pay_by: UnixMs, provider: Option<&str>) -> bool {
        let there = provider.and_then(|provider| self.at.get(provider));
        let spans: Vec<Span> = self.everybody.iter().chain(there.into_iter().flatten()).copied().collect();
        let time = recorded_at.ms_until(pay_by);
        impossible_ms(recorded_at, pay_by, spans).saturating_mul(10) > time
    }
}

/// When it was so here and there.
fn at_once(some: &[Span], others: &[Span]) -> Vec<Span> {
    let both =
        |one: &Span, other: &Span| Span { from: one.from.max(other.from), until: one.until.min(other.until) };
    let pairs = some.iter().flat_map(|one| others.iter().map(move |other| both(one, other)));
    pairs.filter(|span| span.from < span.until).collect()
}

/// For how much of the time between recording and deadline paying was impossible, in milliseconds. Spans may be
/// given in any order and overlap; no moment counts twice.
fn impossible_ms(recorded_at: UnixMs, pay_by: UnixMs, mut spans: Vec<Span>) -> u64 {
    spans.sort_by_key(|span| span.from);
    let (mut counted_to, mut sum) = (recorded_at, 0_u64);
    for Span { from, until } in spans {
        let from = from.max(counted_to);
        let until = until.min(pay_by);
        sum = sum.saturating_add(from.ms_until(until));
        counted_to = counted_to.max(until);
    }
    sum
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

    fn span(from: i64, until: i64) -> Span {
        Span { from: UnixMs(from), until: UnixMs(until) }
    }

    fn outage(provider: &str, from: i64, until: i64) -> Outage {
        Outage { provider: Some(provider.to_owned()), span: span(from, until) }
    }

    #[test]
    fn exactly_a_tenth_of_the_time_is_no_excuse() {
        let excused = |spans: &[Span]| {
            let excuses = Excuses::of(spans.iter().copied().map(Outage::everywhere), ["stripe"]);
            excuses.excuse(UnixMs(0), PAY_BY, None)
        };
        assert!(!excused(&[]));
        assert!(!excused(&[span(0, 90_000)]));
        assert!(excused(&[span(0, 90_001)]));
        assert!(!excused(&[span(0, 90_000), span(10, 80_000)]), "overlaps count once");
        assert!(excused(&[span(600_000, 645_001), span(0, 45_000)]), "in any order");
        assert!(!excused(&[span(-500_000, 1), span(899_999, 5_000_000)]), "only the time to pay counts");
        assert!(!excused(&[span(500_000, 100)]), "a span that ends before it begins is none");
    }

    #[test]
    fn while_one_provider_takes_payments_only_those_who_went_to_another_are_excused() {
        let serving = ["alipay", "stripe"];
        let excused = |outages: &[Outage], provider: Option<&str>| {
            Excuses::of(outages.to_vec(), serving).excuse(UnixMs(0), PAY_BY, provider)
        };
        let down = [outage("stripe", 0, 500_000)];
        assert!(!excused(&down, None) && !excused(&down, Some("alipay")));
        assert!(excused(&down, Some("stripe")));
        let both = [outage("stripe", 0, 500_000), outage("alipay", 409_999, 900_000)];
        assert!(excused(&both, None), "for a tenth and a millisecond nobody could pay");
        let hardly = [outage("stripe", 0, 500_000), outage("alipay", 410_000, 450_000)];
        assert!(!excused(&hardly, None) && !excused(&hardly, Some("alipay")));
        let together =
            [outage("alipay", 410_000, 450_000), Outage::everywhere(span(0, 50_001)), outage("stripe", 0, 1)];
        assert!(excused(&together, Some("alipay")), "what kept everybody and what kept this buyer add up");
        assert!(!excused(&together, None));
    }

    #[test]
    fn a_provider_that_serves_nobody_any_more_keeps_nobody_from_paying() {
        let down = vec![outage("stripe", 0, 500_000), outage("wechat", 0, 500_000)];
        assert!(Excuses::of(down.clone(), ["stripe", "wechat"]).excuse(UnixMs(0), PAY_BY, None));
        assert!(Excuses::of(down.clone(), ["stripe"]).excuse(UnixMs(0), PAY_BY, None));
        assert!(!Excuses::of(down, []).excuse(UnixMs(0), PAY_BY, None));
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
            let spans: Vec<_> = spans.iter().map(|(from, long)| span(*from, from + long)).collect();
            let counted = (0..100).filter(|ms| is_in(&spans, *ms)).count();
            prop_assert_eq!(usize::try_from(impossible_ms(UnixMs(0), UnixMs(100), spans)).unwrap(), counted);
        }

        #[test]
        fn nobody_could_pay_when_all_providers_were_out(
            spans in prop::collection::vec((0_usize..3, -50_i64..150, 0_i64..90), 0..12),
        ) {
            let serving = ["alipay", "stripe", "wechat"];
            let outages: Vec<_> =
                spans.iter().map(|(at, from, long)| outage(serving[*at], *from, from + long)).collect();
            let out_at = |name: &str, ms: i64| {
                let its_own = |outage: &&Outage| outage.provider.as_deref() == Some(name);
                let its_spans: Vec<Span> = outages.iter().filter(its_own).map(|outage| outage.span).collect();
                is_in(&its_spans, ms)
            };
            let expected = (0..100).filter(|ms| serving.iter().all(|name| out_at(name, *ms))).count();
            let found = Excuses::of(outages.clone(), serving).everybody;
            prop_assert_eq!(usize::try_from(impossible_ms(UnixMs(0), UnixMs(100), found)).unwrap(), expected);
        }
    }

    fn is_in(spans: &[Span], ms: i64) -> bool {
        spans.iter().any(|span| span.from.0 <= ms && ms < span.until.0)
    }
}
