//! The life of an order as one pure function. The writer, the auditor, the simulator and the tests all use it.
//! It knows neither times nor money: `deadline` says when an order times out, `payment` what a capture does to it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::words;

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
    /// Money is back. Final: should the provider fail after all, that is the payment's matter.
    Refunded,
    /// The provider would not give the money back. Then: `refunding`, when the operator tries again, or `refunded`, when
    /// the provider gave it back after all.
    RefundFailed,
}

words! {
    State {
        Queued = "queued",
        AwaitingPayment = "awaiting_payment",
        Paid = "paid",
        Closed = "closed",
        Refused = "refused",
        Refunding = "refunding",
        Refunded = "refunded",
        RefundFailed = "refund_failed",
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

words! {
    Reason {
        Timeout = "timeout",
        Cancelled = "cancelled",
        NoStock = "no_stock",
        OtherLive = "other_live",
        IdClash = "id_clash",
        StaleEpoch = "stale_epoch",
        Internal = "internal",
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
    /// A claim for late money was granted by the gate and then refused by the ledger. The order stays as it is; the
    /// event exists so that the claim's units go back under a number of their own.
    NotRevived,
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
    pub const ALL: [Self; 10] = [
        Self::Recorded,
        Self::Refused(Reason::NoStock),
        Self::PaymentApplied,
        Self::Revived,
        Self::NotRevived,
        Self::TimedOut,
        Self::Cancelled,
        Self::RefundStarted,
        Self::RefundDone,
        Self::RefundFailed,
    ];

    /// The event's name for its receivers. Stable.
    #[must_use]
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Recorded => "order.recorded",
            Self::Refused(_) => "order.refused",
            Self::PaymentApplied | Self::Revived => "order.paid",
            Self::NotRevived => "order.not_revived",
            Self::TimedOut | Self::Cancelled => "order.closed",
            Self::RefundStarted => "order.refunding",
            Self::RefundDone => "order.refunded",
            Self::RefundFailed => "order.refund_failed",
        }
    }

    /// What the event does to the offer's units, in the transaction that writes it.
    #[must_use]
    pub const fn units(self) -> Units {
        match self {
            Self::Recorded | Self::Revived => Units::Taken,
            Self::Refused(_) | Self::NotRevived => Units::ClaimReturned,
            Self::TimedOut | Self::Cancelled | Self::RefundDone => Units::Released,
            Self::PaymentApplied | Self::RefundStarted | Self::RefundFailed => Units::Unmoved,
        }
    }
}

/// What an event does to units: in the ledger's counter of live units, and at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Units {
    /// Nothing.
    Unmoved,
    /// The ledger counts them as live from now on. The gate gave them away when it granted the claim.
    Taken,
    /// The ledger no longer counts them, and the gate gets them back.
    Released,
    /// The ledger never counted them; the gate gets back what it granted.
    ClaimReturned,
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

/// An order and how many facts there are about it. Every fact raises `seq` by one, so receivers see gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    pub status: Status,
    pub seq: u32,
}

impl Version {
    /// The claim is the order's first fact; the ledger's word will be its second.
    pub const QUEUED: Self = Self { status: Status::QUEUED, seq: 1 };

    /// [`next`], numbered. The event and the new version carry the same `seq`.
    pub fn next(self, event: Event) -> Result<Self, IllegalTransition> {
        Ok(Self { status: next(self.status, event)?, seq: self.seq.saturating_add(1) })
    }
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
        (State::Closed, Event::NotRevived) if status.reason == Some(Reason::Timeout) => Ok(status),

        (State::Paid | State::RefundFailed, Event::RefundStarted) => {
            Ok(Status { state: State::Refunding, ..status })
        }
        (State::Refunding | State::RefundFailed, Event::RefundDone) => {
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
                            "{}({}) + {event:?} -> {}({reason}) holds={} {:?}\n",
                            state.as_str(),
                            status.reason.map_or("", Reason::as_str),
                            after.state.as_str(),
                            after.holds_units,
                            event.units(),
                        ));
                    }
                }
            }
        }
        let expected = "\
queued() + Recorded -> awaiting_payment() holds=true Taken
queued() + Refused(NoStock) -> refused(no_stock) holds=false ClaimReturned
awaiting_payment() + PaymentApplied -> paid() holds=true Unmoved
awaiting_payment() + TimedOut -> closed(timeout) holds=false Released
awaiting_payment() + Cancelled -> closed(cancelled) holds=false Released
paid() + RefundStarted -> refunding() holds=true Unmoved
closed(timeout) + Revived -> paid() holds=true Taken
closed(timeout) + NotRevived -> closed(timeout) holds=false ClaimReturned
refunding() + RefundDone -> refunded() holds=false Released
refunding() + RefundFailed -> refund_failed() holds=true Unmoved
refund_failed() + RefundStarted -> refunding() holds=true Unmoved
refund_failed() + RefundDone -> refunded() holds=false Released
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
        fn units_are_taken_and_released_in_turn(events in prop::collection::vec(0..Event::ALL.len(), 0..40)) {
            let (mut version, mut counted) = (Version::QUEUED, 0);
            for event in events.into_iter().map(|event| Event::ALL[event]) {
                let Ok(after) = version.next(event) else { continue };
                prop_assert_eq!(after.seq, version.seq + 1);
                match event.units() {
                    Units::Taken => counted += 1,
                    Units::Released => counted -= 1,
                    Units::Unmoved | Units::ClaimReturned => {}
                }
                prop_assert_eq!(counted, i32::from(after.status.holds_units));
                version = after;
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
