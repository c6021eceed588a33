//! The life of an order as one pure function. The writer, the auditor, the simulator and the tests all use it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where an order stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Durable in the queue, not yet in the ledger. Not a sale yet. Then: `awaiting_payment` or `refused`.
    Queued,
    /// Recorded; units are held until `pay_by`. Then: `paid` or `closed`.
    AwaitingPayment,
    /// Money was applied. Then: `refunding`.
    Paid,
    /// The units went back. Then: `paid`, when it closed by timeout and late money finds a unit.
    Closed,
    /// The ledger said no, for the reason given. Final.
    Refused,
    /// Money is on its way back. Then: `refunded` or `refund_failed`.
    Refunding,
    /// Money is back. Final.
    Refunded,
    /// The provider would not give the money back. Then: `refunding`, when the operator tries again.
    RefundFailed,
}

impl State {
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::AwaitingPayment,
        Self::Paid,
        Self::Closed,
        Self::Refused,
        Self::Refunding,
        Self::Refunded,
        Self::RefundFailed,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::AwaitingPayment => "awaiting_payment",
            Self::Paid => "paid",
            Self::Closed => "closed",
            Self::Refused => "refused",
            Self::Refunding => "refunding",
            Self::Refunded => "refunded",
            Self::RefundFailed => "refund_failed",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }
}

/// Why an order closed or was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Not paid by `pay_by`.
    Timeout,
    /// The buyer gave it back.
    Cancelled,
    /// The ledger had no unit left for it.
    NoStock,
    /// The buyer has another live order of this offer.
    OtherLive,
    /// The order id already names another order.
    IdClash,
    /// The claim was made under an older epoch of the gate.
    StaleEpoch,
    /// The claim could not be understood.
    Internal,
}

impl Reason {
    pub const ALL: [Self; 7] = [
        Self::Timeout,
        Self::Cancelled,
        Self::NoStock,
        Self::OtherLive,
        Self::IdClash,
        Self::StaleEpoch,
        Self::Internal,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::NoStock => "no_stock",
            Self::OtherLive => "other_live",
            Self::IdClash => "id_clash",
            Self::StaleEpoch => "stale_epoch",
            Self::Internal => "internal",
        }
    }

    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }
}

/// What can happen to an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// The ledger recorded it.
    Recorded,
    /// The ledger refused it.
    Refused(Reason),
    /// Money was applied in time.
    PaymentApplied,
    /// Late money was applied after a claim found a unit again.
    Revived,
    /// `pay_by` passed without money.
    TimedOut,
    /// The buyer gave it back.
    Cancelled,
    /// The operator wants the money returned.
    RefundStarted,
    /// The provider returned the money. The order lets go of its units; where they do not come back to the shelf,
    /// the ledger lowers the offer's stock in the same transaction.
    RefundDone,
    /// The provider refused to return the money.
    RefundFailed,
}

impl Event {
    /// One of each kind; for the refusal one reason stands for all.
    pub const ALL: [Self; 9] = [
        Self::Recorded,
        Self::Refused(Reason::NoStock),
        Self::PaymentApplied,
        Self::Revived,
        Self::TimedOut,
        Self::Cancelled,
        Self::RefundStarted,
        Self::RefundDone,
        Self::RefundFailed,
    ];
}

/// An order as the state machine sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Status {
    pub state: State,
    pub reason: Option<Reason>,
    /// Whether the order holds units: the only thing that counters count.
    pub holds_units: bool,
}

impl Status {
    /// A claim that is durable in the queue.
    pub const QUEUED: Self = Self { state: State::Queued, reason: None, holds_units: true };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an order in state {} cannot take {event:?}", .from.as_str())]
pub struct IllegalTransition {
    pub from: State,
    pub event: Event,
}

/// What an order becomes. Everything an order can ever do is in this match.
pub fn next(status: Status, event: Event) -> Result<Status, IllegalTransition> {
    let held = |state| Ok(Status { state, reason: None, holds_units: true });
    let ended = |state, reason| Ok(Status { state, reason: Some(reason), holds_units: false });
    let illegal = Err(IllegalTransition { from: status.state, event });
    match (status.state, event) {
        (State::Queued, Event::Recorded) => held(State::AwaitingPayment),
        (State::Queued, Event::Refused(reason)) => ended(State::Refused, reason),

        (State::AwaitingPayment, Event::PaymentApplied) => held(State::Paid),
        (State::AwaitingPayment, Event::TimedOut) => ended(State::Closed, Reason::Timeout),
        (State::AwaitingPayment, Event::Cancelled) => ended(State::Closed, Reason::Cancelled),

        (State::Closed, Event::Revived) if status.reason == Some(Reason::Timeout) => held(State::Paid),

        (State::Paid | State::RefundFailed, Event::RefundStarted) => {
            Ok(Status { state: State::Refunding, ..status })
        }
        (State::Refunding, Event::RefundDone) => {
            Ok(Status { state: State::Refunded, reason: None, holds_units: false })
        }
        (State::Refunding, Event::RefundFailed) => Ok(Status { state: State::RefundFailed, ..status }),

        (State::Queued | State::AwaitingPayment, _)
        | (State::Paid | State::Refunding | State::RefundFailed, _)
        | (State::Closed | State::Refused | State::Refunded, _) => illegal,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reached(state: State) -> Vec<Status> {
        let mut seen = vec![Status::QUEUED];
        let mut at = 0;
        while at < seen.len() {
            for event in Event::ALL {
                if let Ok(status) = next(seen[at], event)
                    && !seen.contains(&status)
                {
                    seen.push(status);
                }
            }
            at += 1;
        }
        seen.retain(|status| status.state == state);
        seen
    }

    /// The full table: state x event -> state, or "-" for illegal.
    #[test]
    fn the_table_of_transitions_is_exactly_this() {
        let mut table = String::new();
        for state in State::ALL {
            for event in Event::ALL {
                for status in reached(state) {
                    if let Ok(after) = next(status, event) {
                        let reason = after.reason.map_or("", Reason::as_str);
                        table.push_str(&format!(
                            "{}({}) + {event:?} -> {}({reason}) holds={}\n",
                            state.as_str(),
                            status.reason.map_or("", Reason::as_str),
                            after.state.as_str(),
                            after.holds_units,
                        ));
                    }
                }
            }
        }
        let expected = "\
queued() + Recorded -> awaiting_payment() holds=true
queued() + Refused(NoStock) -> refused(no_stock) holds=false
awaiting_payment() + PaymentApplied -> paid() holds=true
awaiting_payment() + TimedOut -> closed(timeout) holds=false
awaiting_payment() + Cancelled -> closed(cancelled) holds=false
paid() + RefundStarted -> refunding() holds=true
closed(timeout) + Revived -> paid() holds=true
refunding() + RefundDone -> refunded() holds=false
refunding() + RefundFailed -> refund_failed() holds=true
refund_failed() + RefundStarted -> refunding() holds=true
";
        assert_eq!(table, expected);
    }

    #[test]
    fn every_state_can_be_reached() {
        for state in State::ALL {
            assert!(!reached(state).is_empty(), "{state:?}");
        }
    }

    #[test]
    fn names_are_read_back() {
        for state in State::ALL {
            assert_eq!(State::parse(state.as_str()), Some(state));
        }
        for reason in Reason::ALL {
            assert_eq!(Reason::parse(reason.as_str()), Some(reason));
        }
    }

    proptest! {
        #[test]
        fn units_are_held_exactly_while_the_order_is_live(events in prop::collection::vec(0..Event::ALL.len(), 0..20)) {
            let mut status = Status::QUEUED;
            for event in events {
                let Ok(after) = next(status, Event::ALL[event]) else { continue };
                let over = matches!(after.state, State::Closed | State::Refused | State::Refunded);
                prop_assert_eq!(after.holds_units, !over);
                status = after;
            }
        }

        #[test]
        fn final_states_absorb(event in 0..Event::ALL.len()) {
            for state in [State::Refused, State::Refunded] {
                for status in reached(state) {
                    prop_assert!(next(status, Event::ALL[event]).is_err());
                }
            }
        }
    }
}
