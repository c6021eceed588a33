//! What must hold in every state of the protocol, and what must be seen to happen at all.

use rules::buyer::BuyerId;
use rules::id::OfferId;
use rules::invariant::{LiveOrder, OrderMoney, check_money, check_one_live_order};
use rules::order;
use rules::payment::{self, RefundReason};
use stateright::Property;

use super::model::{AtProvider, Payment, Protocol, World, id};

pub const NEVER_OVERSOLD: &str = "what is live or durably granted is never more than the stock";
pub const UNITS_ADD_UP: &str = "free + granted + live + returning units are the stock";
pub const RELEASED_ONCE: &str = "what is released under an (order, seq) is counted as free at most once";
pub const LEDGER_AGREES: &str = "the ledger never refuses what the gate granted";
pub const ONE_LIVE_ORDER: &str = "a buyer has at most one live order";
pub const MONEY_ENDS_ONCE: &str = "a capture is decided at most once and given back at most once";
pub const MONEY_FITS_ORDERS: &str = "an order has the payment that its state says, and no other";
pub const IN_TIME_IS_IN_TIME: &str = "money written down before the order ended pays it";
pub const SPENT_STAYS_SPENT: &str = "no pass is claimed with again once its order is recorded";
pub const REST_IS_CLEAN: &str = "at rest all money and all units are where they belong";

pub const REVIVED: &str = "late money revives an order";
pub const RESOLD: &str = "late money finds its unit sold to somebody else";
pub const OTHER_LIVE: &str = "late money finds another live order of its buyer";
pub const SECOND_CAPTURE: &str = "a second capture goes back";
pub const SECOND_RELEASE: &str = "an order releases its unit a second time";
pub const BEFORE_RECORDED: &str = "a capture is told before its order is recorded";
pub const CANCELLED_AND_PAID: &str = "money for a cancelled order is given back";
pub const WRONG_AMOUNT: &str = "money of another amount is given back";
pub const CRASH_KEPT_CLAIM: &str = "a crash leaves a granted claim in the journal";
pub const CLOSED_PAYMENT_CAPTURED: &str = "a payment that was closed is captured all the same";
pub const BY_THE_LEDGER: &str = "late money after the sale is given its unit by the ledger";
pub const AFTER_THE_SALE: &str = "late money after the sale finds no unit";
pub const REFUSED_IN_VAIN: &str = "a unit comes back while a worker writes down that there is none";
pub const ASKED_TOO_LATE: &str = "a worker asks the gate for an order that has moved on, and is given a unit";
pub const REFUND_RETRIED: &str = "a refund that was refused is done in the end";

pub fn all() -> Vec<Property<Protocol>> {
    let mut properties = promises();
    properties.extend(witnesses());
    properties
}

fn promises() -> Vec<Property<Protocol>> {
    vec![
        Property::always(NEVER_OVERSOLD, |model: &Protocol, world: &World| {
            world.live_units() + world.outstanding().count() <= model.stock
        }),
        Property::always(UNITS_ADD_UP, |model, world: &World| {
            let sum = world.gate.free + world.granted() + world.live_units() + world.returning();
            // A gate that nobody asks any more is not told of everything.
            sum == model.stock || world.sale_is_over
        }),
        Property::always(RELEASED_ONCE, |_, world: &World| {
            world.releases.iter().all(|release| release.counted <= release.owed)
        }),
        Property::always(LEDGER_AGREES, |_, world: &World| !world.ledger_refused),
        Property::always(ONE_LIVE_ORDER, one_live_order),
        Property::always(MONEY_ENDS_ONCE, |model, world: &World| {
            (0..model.captures.len()).all(|capture| ends_at_most_once(world, capture))
        }),
        Property::always(MONEY_FITS_ORDERS, |model, world: &World| {
            (0..model.buyers.len()).all(|order| money_fits(world, order))
        }),
        Property::always(IN_TIME_IS_IN_TIME, |_, world: &World| {
            world.payments.iter().all(|payment| !payment.in_time || !is_wronged(world, payment))
        }),
        Property::always(SPENT_STAYS_SPENT, |_, world: &World| {
            let mut claims = world.pending.iter().chain(&world.journal);
            claims.all(|claim| {
                claim.revives.is_some() || claim.delivered_again || world.orders[claim.order].is_none()
            })
        }),
        Property::always(REST_IS_CLEAN, |model, world: &World| {
            is_clean(model, world) || !model.is_at_rest(world)
        }),
    ]
}

/// Whether the money went back although it was due, and no other capture paid the order in its place.
fn is_wronged(world: &World, payment: &Payment) -> bool {
    let goes_back = payment.status.reason.is_some() && !payment.status.is_the_orders();
    goes_back && !world.payments_of(payment.order).any(|other| other.status.is_the_orders())
}

fn one_live_order(model: &Protocol, world: &World) -> bool {
    let live =
        world.orders.iter().enumerate().filter(|(_, version)| version.is_some_and(|v| v.status.holds_units));
    let orders = live.map(|(order, _)| order).chain(world.outstanding().map(|claim| claim.order));
    let orders: Vec<_> = orders
        .map(|order| LiveOrder {
            order: id(order),
            offer: OfferId(1),
            buyer: BuyerId::parse(&model.buyers[order].to_string()).unwrap(),
        })
        .collect();
    check_one_live_order(&orders).is_empty()
}

fn ends_at_most_once(world: &World, capture: usize) -> bool {
    let is_its = |payment: &&Payment| payment.told_by.is_some_and(|(told, _)| told == capture);
    let decided = |payment: &&Payment| payment.status.state > payment::State::Captured;
    let mut ends = world.payments.iter().filter(is_its).filter(decided);
    let kept = ends.next().is_some_and(|payment| payment.status.state == payment::State::Applied);
    let refunds = world.provider[capture].refunds;
    ends.next().is_none() && refunds <= u8::from(!kept)
}

fn money_fits(world: &World, order: usize) -> bool {
    let state = world.state(order).unwrap_or(order::State::Queued);
    let payments = world.payments_of(order).map(|payment| payment.status).collect();
    check_money(&OrderMoney { order: id(order), state, payments }).is_none()
}

/// Promises 2, 5 and 6 as they must be when nothing is under way.
fn is_clean(model: &Protocol, world: &World) -> bool {
    let live = |buyer: usize| {
        let its = |order: &usize| {
            model.buyers[*order] == buyer && world.orders[*order].is_some_and(|v| v.status.holds_units)
        };
        (0..model.buyers.len()).find(its)
    };
    let gate_agrees = world.gate.live.iter().enumerate().all(|(buyer, slot)| *slot == live(buyer));
    let nothing_under_way = world.pending.is_empty() && world.journal.is_empty() && world.returning() == 0;
    let final_answers = world.orders.iter().flatten().all(|version| {
        use order::State::{Closed, Paid, Refunded, Refused};
        matches!(version.status.state, Closed | Paid | Refunded | Refused)
    });
    let nothing_stranded = world.gate.free + world.live_units() == model.stock;
    (world.sale_is_over || gate_agrees && nothing_stranded)
        && nothing_under_way
        && final_answers
        && (0..model.captures.len()).all(|capture| has_ended(world, capture))
}

fn has_ended(world: &World, capture: usize) -> bool {
    let AtProvider { captured, refunds, .. } = world.provider[capture];
    let mut its =
        world.payments.iter().filter(|payment| payment.told_by.is_some_and(|(told, _)| told == capture));
    match (captured, its.next(), its.next()) {
        (false, None, None) => true,
        (true, Some(payment), None) => match payment.status.state {
            payment::State::Applied => refunds == 0 && world.state(payment.order) == Some(order::State::Paid),
            payment::State::Refunded => refunds == 1,
            _ => false,
        },
        _ => false,
    }
}

/// What must be seen to happen, or the promises above were checked on nothing.
fn witnesses() -> Vec<Property<Protocol>> {
    fn gone_back(world: &World, reason: RefundReason) -> bool {
        let status = payment::Status { state: payment::State::Refunded, reason: Some(reason) };
        world.payments.iter().any(|payment| payment.status == status)
    }
    vec![
        Property::sometimes(REVIVED, |_: &Protocol, world: &World| {
            let released = |order| world.releases.iter().any(|release| release.order == order);
            (0..world.orders.len())
                .any(|order| world.state(order) == Some(order::State::Paid) && released(order))
        }),
        Property::sometimes(RESOLD, |_, world: &World| gone_back(world, RefundReason::NoUnitLeft)),
        Property::sometimes(OTHER_LIVE, |_, world: &World| gone_back(world, RefundReason::OtherLive)),
        Property::sometimes(SECOND_CAPTURE, |_, world: &World| gone_back(world, RefundReason::SecondCapture)),
        Property::sometimes(SECOND_RELEASE, |_, world: &World| {
            world.releases.windows(2).any(|pair| pair[0].order == pair[1].order && pair[1].counted == 1)
        }),
        Property::sometimes(BEFORE_RECORDED, |_, world: &World| {
            world.payments.iter().any(|payment| world.orders[payment.order].is_none())
        }),
        Property::sometimes(CANCELLED_AND_PAID, |_, world: &World| {
            gone_back(world, RefundReason::OrderCancelled)
        }),
        Property::sometimes(WRONG_AMOUNT, |_, world: &World| gone_back(world, RefundReason::AmountMismatch)),
        Property::sometimes(CRASH_KEPT_CLAIM, |_, world: &World| {
            world.crashes > 0 && !world.journal.is_empty()
        }),
        Property::sometimes(CLOSED_PAYMENT_CAPTURED, |_, world: &World| {
            let closed = |order| world.state(order) == Some(order::State::Closed);
            let captured = |p: &Payment| p.announced && p.status.state == payment::State::Captured;
            world.payments.iter().any(|payment| captured(payment) && closed(payment.order))
        }),
        Property::sometimes(BY_THE_LEDGER, |_, world: &World| {
            let revived = |order| world.state(order) == Some(order::State::Paid);
            world.sale_is_over
                && world.releases.iter().any(|release| revived(release.order) && release.messages > 0)
        }),
        Property::sometimes(AFTER_THE_SALE, |_, world: &World| gone_back(world, RefundReason::SaleEnded)),
        Property::sometimes(REFUSED_IN_VAIN, |_, world: &World| {
            let decided = |p: usize| world.payments[p].status.state > payment::State::Captured;
            world.outstanding().any(|claim| claim.revives.is_some_and(|revive| decided(revive.payment)))
        }),
        Property::sometimes(ASKED_TOO_LATE, |_, world: &World| world.too_late().next().is_some()),
        Property::sometimes(REFUND_RETRIED, |_, world: &World| {
            world.refund_refusals > 0
                && world.payments.iter().any(|p| p.status.state == payment::State::Refunded)
        }),
    ]
}
