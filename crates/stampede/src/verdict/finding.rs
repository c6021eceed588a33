//! Every way in which a shop can break its word, as a sentence. How it is found out is in the files beside.

use rules::id::{OfferId, OrderId};
use serde::Serialize;

use crate::words::many;

/// A promise that was not kept, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "finding", rename_all = "snake_case")]
pub enum Finding {
    // What the buyers have, and what there is.
    #[error("Offer {offer} has a stock of {stock}, but the buyers hold {units} units of it.")]
    Oversold { offer: OfferId, stock: u32, units: u64 },
    #[error(
        "Offer {offer} has a stock of {stock}, but for a while the buyers held {units} units of it at once."
    )]
    OversoldMeanwhile { offer: OfferId, stock: u32, units: u64 },
    #[error(
        "Offer {offer} does not add up: free {free} + held {held} + sold {sold} + returning {returning} is not its stock of {stock}."
    )]
    DoesNotAddUp { offer: OfferId, stock: u32, free: u32, held: u32, sold: u32, returning: u32 },
    #[error("Offer {offer}: a buyer was told sold out, no unit came back, and yet {free} units are free.")]
    SoldOutWhileFree { offer: OfferId, free: u32 },
    #[error(
        "Offer {offer}: a buyer was told sold out, no unit came back, and yet nobody has {missing} of its {stock} units."
    )]
    UnitNobodyHas { offer: OfferId, stock: u32, missing: u64 },
    #[error(
        "Offer {offer}: {code} was told {} while enough units were free: when buyer {buyer} was told so, {free} at least.",
        many(*times, "time")
    )]
    RefusedWhileFree { offer: OfferId, code: String, buyer: String, times: u64, free: u64 },
    #[error("Offer {offer}: the operator sees {operator} units held or sold, the buyers have {buyers}.")]
    StatsDisagree { offer: OfferId, operator: u64, buyers: u64 },
    #[error("Offer {offer}: the operator sees {operator} units paid for, the buyers have paid for {buyers}.")]
    SoldDisagrees { offer: OfferId, operator: u64, buyers: u64 },
    #[error("Offer {offer} is in the buyers' histories, but the operator's stats do not know it.")]
    UnknownOffer { offer: OfferId },
    #[error("The queue still holds {depth} claims: this is too early to judge.")]
    NotQuiet { depth: u64 },
    #[error("The shop's own audit says {kind}: {detail}")]
    Audit { kind: String, detail: String },

    // One order per buyer, and the right one.
    #[error("Buyer {buyer} has two live orders of offer {offer}: {first} and {second}.")]
    TwoLiveOrders { buyer: String, offer: OfferId, first: OrderId, second: OrderId },
    #[error("Order {order} was shown to {first} and to {second}.")]
    SharedOrder { order: OrderId, first: String, second: String },
    #[error("A pass for order {order} was given to {first} and again to {second}.")]
    PassTwice { order: OrderId, first: String, second: String },
    #[error("Buyer {buyer} tried with a pass for order {pass} and was given order {order}.")]
    OtherOrder { buyer: String, pass: OrderId, order: OrderId },
    #[error("Buyer {buyer} looked at order {asked} and was shown order {shown}.")]
    OtherShown { buyer: String, asked: OrderId, shown: OrderId },
    #[error("Buyer {buyer} was told over a socket of order {order}, for which they never tried.")]
    StrangeNews { buyer: String, order: OrderId },
    #[error("Buyer {buyer} asked for {asked} units and order {order} says {given}.")]
    OtherQuantity { buyer: String, order: OrderId, asked: u32, given: u32 },
    #[error("Buyer {buyer} has {given} units by order {order}, and the page says {max} at most.")]
    MoreThanAllowed { buyer: String, order: OrderId, given: u32, max: u32 },
    #[error("Buyer {buyer} had a pass for offer {offer} and order {order} is of offer {given}.")]
    OtherOffer { buyer: String, order: OrderId, offer: OfferId, given: OfferId },
    #[error("Order {order} of buyer {buyer} changed its {what}, which never changes.")]
    FactChanged { buyer: String, order: OrderId, what: &'static str },
    #[error("Buyer {buyer} had order {order}, repeated the same pass and was told {code}.")]
    RepeatRefused { buyer: String, order: OrderId, code: String },
    #[error("Buyer {buyer} was told already_ordered, and no order of theirs was named.")]
    BlockedByNothing { buyer: String },
    #[error(
        "Buyer {buyer} was told already_ordered for offer {offer} because of order {order}, which is of another."
    )]
    BlockedByOtherOffer { buyer: String, offer: OfferId, order: OrderId },
    #[error("Buyer {buyer} was told {code} for the pass of order {order}, and yet the order is there.")]
    HappenedAnyway { buyer: String, order: OrderId, code: String },
    #[error("The operator lists order {order} of buyer {buyer}, who never tried for it.")]
    NeverAsked { buyer: String, order: OrderId },
    #[error("The operator lists order {order} as {operator}'s, and it was shown to {buyer}.")]
    OtherOwner { order: OrderId, operator: String, buyer: String },

    // Everybody gets an answer, and it stays.
    #[error("{} home without an answer, one of them because: {why}.", went(*buyers))]
    NoAnswer { buyers: u64, why: String },
    #[error(
        "{buyers} of {} kept a socket open and never heard over it what became of their order.",
        many(*watchers, "watcher")
    )]
    NeverPushed { buyers: u64, watchers: u64 },
    #[error("Buyer {buyer} was told of order {order}, and now it is gone.")]
    Gone { buyer: String, order: OrderId },
    #[error("Buyer {buyer} was told of order {order}, and nobody could look at it in the end.")]
    NotSeenAgain { buyer: String, order: OrderId },
    #[error("Buyer {buyer} sees order {order}, and the operator's list does not have it.")]
    NotInTheBooks { buyer: String, order: OrderId },
    #[error(
        "Order {order} is {buyer_sees} to buyer {buyer} and {operator_sees} to the operator, at the same seq."
    )]
    BooksDisagree { buyer: String, order: OrderId, buyer_sees: &'static str, operator_sees: &'static str },
    #[error("Order {order} of buyer {buyer} was queued and never got an end.")]
    Limbo { buyer: String, order: OrderId },
    #[error(
        "Order {order} of buyer {buyer} went back: first {before} (seq {before_seq}), then {after} (seq {after_seq})."
    )]
    WentBack {
        buyer: String,
        order: OrderId,
        before: &'static str,
        before_seq: u32,
        after: &'static str,
        after_seq: u32,
    },
    #[error("Order {order} of buyer {buyer} was {before} and became {after}, which no order can.")]
    IllegalStep { buyer: String, order: OrderId, before: &'static str, after: &'static str },
    #[error("Order {order} of buyer {buyer} is {state} and says no reason.")]
    NoReason { buyer: String, order: OrderId, state: &'static str },
    #[error("{status} {code} was told {times} times, first to {buyer}, who asked for {call}.")]
    ServerError { status: u16, code: String, times: u64, buyer: String, call: &'static str },
    #[error("Buyer {buyer} was given a pass for order {order} and then told {code}, before it expired.")]
    PassRefused { buyer: String, order: OrderId, code: String },
    #[error("Buyer {buyer} had registered and was told not_registered.")]
    RegistrationForgotten { buyer: String },
    #[error("The history of buyer {buyer} is damaged: an answer stands before its question.")]
    DamagedHistory { buyer: String },

    // The window is the same for all.
    #[error("Buyer {buyer} got order {order} {early_ms} ms before the opening.")]
    Early { buyer: String, order: OrderId, early_ms: u64 },
    #[error(
        "Buyer {buyer} was told of order {order} when the server's clock was {early_ms} ms before the opening."
    )]
    ToldEarly { buyer: String, order: OrderId, early_ms: u64 },
    #[error("Buyer {buyer} was told not_open after {first} had already got an order.")]
    ClosedToSome { buyer: String, first: String },
    #[error("Buyer {buyer} got order {order} after {first} had been told that the sale has ended.")]
    SoldAfterEnd { buyer: String, order: OrderId, first: String },

    // Money ends once.
    #[error("Buyer {buyer} paid order {order} in time, and it is {state}.")]
    PaidInVain { buyer: String, order: OrderId, state: &'static str },
    #[error("Order {order} of buyer {buyer} is paid, and nobody paid it.")]
    PaidByNobody { buyer: String, order: OrderId },
    #[error(
        "Buyer {buyer} asked twice to pay order {order} and was given two payments: {first} and {second}."
    )]
    TwoPayments { buyer: String, order: OrderId, first: String, second: String },
    #[error("Buyer {buyer} cancelled order {order}, was answered, and it is {state}.")]
    CancelIgnored { buyer: String, order: OrderId, state: &'static str },
    #[error(
        "Order {order} of buyer {buyer} was closed as unpaid {early_ms} ms before its time to pay was over."
    )]
    ClosedTooSoon { buyer: String, order: OrderId, early_ms: u64 },
}

fn went(buyers: u64) -> String {
    many(buyers, "buyer") + " went"
}

/// What the shop promises, as far as buyers and operators can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Promise {
    NeverOversold,
    NoUnitStranded,
    OneOrderPerBuyer,
    EverybodyAnswered,
    NobodyEarly,
    MoneyEndsOnce,
}

impl Promise {
    pub const ALL: [Self; 6] = [
        Self::NeverOversold,
        Self::NoUnitStranded,
        Self::OneOrderPerBuyer,
        Self::EverybodyAnswered,
        Self::NobodyEarly,
        Self::MoneyEndsOnce,
    ];

    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::NeverOversold => "never oversold",
            Self::NoUnitStranded => "no unit stranded",
            Self::OneOrderPerBuyer => "one order per buyer",
            Self::EverybodyAnswered => "everybody got an answer",
            Self::NobodyEarly => "nobody was early",
            Self::MoneyEndsOnce => "money ends once",
        }
    }
}

impl Finding {
    /// The promise it breaks.
    #[must_use]
    pub const fn promise(&self) -> Promise {
        match self {
            Self::Oversold { .. } | Self::OversoldMeanwhile { .. } => Promise::NeverOversold,
            Self::DoesNotAddUp { .. }
            | Self::SoldOutWhileFree { .. }
            | Self::UnitNobodyHas { .. }
            | Self::RefusedWhileFree { .. }
            | Self::StatsDisagree { .. }
            | Self::SoldDisagrees { .. }
            | Self::UnknownOffer { .. }
            | Self::Audit { .. }
            | Self::NeverAsked { .. }
            | Self::HappenedAnyway { .. } => Promise::NoUnitStranded,
            Self::TwoLiveOrders { .. }
            | Self::SharedOrder { .. }
            | Self::PassTwice { .. }
            | Self::OtherOrder { .. }
            | Self::OtherShown { .. }
            | Self::StrangeNews { .. }
            | Self::OtherQuantity { .. }
            | Self::MoreThanAllowed { .. }
            | Self::OtherOffer { .. }
            | Self::FactChanged { .. }
            | Self::RepeatRefused { .. }
            | Self::BlockedByNothing { .. }
            | Self::BlockedByOtherOffer { .. }
            | Self::OtherOwner { .. } => Promise::OneOrderPerBuyer,
            Self::NoAnswer { .. }
            | Self::NeverPushed { .. }
            | Self::Gone { .. }
            | Self::NotSeenAgain { .. }
            | Self::NotInTheBooks { .. }
            | Self::BooksDisagree { .. }
            | Self::Limbo { .. }
            | Self::WentBack { .. }
            | Self::IllegalStep { .. }
            | Self::NoReason { .. }
            | Self::ServerError { .. }
            | Self::PassRefused { .. }
            | Self::RegistrationForgotten { .. }
            | Self::DamagedHistory { .. }
            | Self::NotQuiet { .. } => Promise::EverybodyAnswered,
            Self::Early { .. }
            | Self::ToldEarly { .. }
            | Self::ClosedToSome { .. }
            | Self::SoldAfterEnd { .. } => Promise::NobodyEarly,
            Self::PaidInVain { .. }
            | Self::PaidByNobody { .. }
            | Self::TwoPayments { .. }
            | Self::CancelIgnored { .. }
            | Self::ClosedTooSoon { .. } => Promise::MoneyEndsOnce,
        }
    }
}
