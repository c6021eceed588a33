//! Whether what the buyers were told holds together. It sees histories and the operator's public stats, never the
//! server's insides; so what it finds, a buyer or an operator could have found.
//!
//! It is fed after everything is quiet, with histories that end with a last look at each order.

use std::collections::{BTreeMap, BTreeSet};

use rules::id::{OfferId, OrderId};
use rules::order::State;
use rules::time::UnixMs;
use rules::wire::{Code, OfferStats, Stats};

use crate::history::{Call, History, Seen, Told, What, is_unsure};

/// What is judged.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    pub histories: &'a [History],
    /// The operator's stats after everything was quiet.
    pub after: &'a Stats,
    /// The operator's stats before the crowd came, if nobody else has bought, paid or cancelled since. Without them
    /// others may have units too, and only what holds in any company is checked.
    pub alone_since: Option<&'a Stats>,
}

/// A promise that was not kept, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Finding {
    #[error("Offer {offer} has a stock of {stock}, but the buyers hold {units} units of it.")]
    Oversold { offer: OfferId, stock: u32, units: u64 },
    #[error("Buyer {buyer} has two live orders of offer {offer}: {first} and {second}.")]
    TwoLiveOrders { buyer: String, offer: OfferId, first: OrderId, second: OrderId },
    #[error("Order {order} was shown to {first} and to {second}.")]
    SharedOrder { order: OrderId, first: String, second: String },
    #[error("Buyer {buyer} was told of order {order}, and now it is gone.")]
    Gone { buyer: String, order: OrderId },
    #[error("Buyer {buyer} was told of order {order}, and nobody could look at it in the end.")]
    NotSeenAgain { buyer: String, order: OrderId },
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
    #[error("Buyer {buyer} tried with a pass for order {pass} and was given order {order}.")]
    OtherOrder { buyer: String, pass: OrderId, order: OrderId },
    #[error("Buyer {buyer} asked for {asked} units and order {order} says {given}.")]
    OtherQuantity { buyer: String, order: OrderId, asked: u32, given: u32 },
    #[error("Buyer {buyer} had order {order}, repeated the same pass and was told {code}.")]
    RepeatRefused { buyer: String, order: OrderId, code: String },
    #[error("Buyer {buyer} got order {order} {early_ms} ms before the opening.")]
    Early { buyer: String, order: OrderId, early_ms: u64 },
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
    #[error("Offer {offer}: the operator sees {operator} units held or sold, the buyers have {buyers}.")]
    StatsDisagree { offer: OfferId, operator: u64, buyers: u64 },
    #[error("Offer {offer} is in the buyers' histories, but the operator's stats do not know it.")]
    UnknownOffer { offer: OfferId },
    #[error("The queue still holds {depth} claims: this is too early to judge.")]
    NotQuiet { depth: u64 },
}

/// All that does not hold together; empty is clean.
#[must_use]
pub fn judge(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    if evidence.after.queue.depth > 0 {
        findings.push(Finding::NotQuiet { depth: evidence.after.queue.depth });
    }
    for history in evidence.histories {
        judge_answers(history, &mut findings);
        judge_orders(history, &mut findings);
    }
    judge_owners(evidence.histories, &mut findings);
    let tallies = tally(evidence.histories);
    for offer in &evidence.after.offers {
        let tally = tallies.get(&offer.offer_id).copied().unwrap_or_default();
        judge_offer(offer, tally, before(evidence, offer.offer_id), &mut findings);
    }
    let known: BTreeSet<_> = evidence.after.offers.iter().map(|offer| offer.offer_id).collect();
    let unknown = tallies.keys().filter(|offer| !known.contains(*offer));
    findings.extend(unknown.map(|offer| Finding::UnknownOffer { offer: *offer }));
    findings
}

/// Each answer against what was asked, and against the answers before it.
fn judge_answers(history: &History, findings: &mut Vec<Finding>) {
    let buyer = || history.buyer.clone();
    let mut opens_at = None;
    let mut given: Vec<(&Told, OrderId)> = Vec::new();
    for told in &history.events {
        match &told.what {
            What::Window { opens_at: at, .. } => opens_at = Some(*at),
            What::Order { pass, asked, order, .. } => {
                if order.id != *pass {
                    findings.push(Finding::OtherOrder { buyer: buyer(), pass: *pass, order: order.id });
                }
                if order.quantity != *asked {
                    let (asked, given) = (*asked, order.quantity);
                    findings.push(Finding::OtherQuantity { buyer: buyer(), order: order.id, asked, given });
                }
                given.push((told, *pass));
                findings.extend(early(history, order, opens_at));
            }
            What::Refused { call: Call::Try, status, code, pass: Some(pass), .. } => {
                // Two clicks at once may cross; a click after the answer may not be told otherwise. Nothing is said
                // about the order by "too fast" and the like.
                let had = given.iter().any(|(order, had)| had == pass && order.told_us <= told.asked_us);
                if had && !matches!(status, 425 | 429 | 500..) {
                    let code = code.clone();
                    findings.push(Finding::RepeatRefused { buyer: buyer(), order: *pass, code });
                }
            }
            _ => {}
        }
    }
}

fn early(history: &History, order: &Seen, opens_at: Option<UnixMs>) -> Option<Finding> {
    let early_ms = order.created_at.ms_until(opens_at?);
    (early_ms > 0).then(|| Finding::Early { buyer: history.buyer.clone(), order: order.id, early_ms })
}

/// Each order of one buyer through all times it was shown.
fn judge_orders(history: &History, findings: &mut Vec<Finding>) {
    let buyer = || history.buyer.clone();
    let orders = history.orders();
    for order in &orders {
        let shown: Vec<(&Told, &Seen)> = history.seen().filter(|(_, seen)| seen.id == order.id).collect();
        findings.extend(went_back(history, &shown));
        match last_look(history, order.id) {
            Some(None) => findings.push(Finding::Gone { buyer: buyer(), order: order.id }),
            None => findings.push(Finding::NotSeenAgain { buyer: buyer(), order: order.id }),
            Some(Some(seen)) if seen.state == State::Queued => {
                findings.push(Finding::Limbo { buyer: buyer(), order: order.id });
            }
            Some(Some(_)) => {}
        }
    }
    findings.extend(blocking_orders(history).into_iter().filter_map(|order| {
        let gone = last_look(history, order) == Some(None) && orders.iter().all(|seen| seen.id != order);
        gone.then(|| Finding::Gone { buyer: buyer(), order })
    }));
    let live: Vec<&Seen> = orders.iter().filter(|order| order.is_live()).collect();
    for (position, first) in live.iter().enumerate() {
        let same_offer = |other: &&&Seen| other.offer == first.offer;
        if let Some(second) = live.iter().skip(position + 1).find(same_offer) {
            let (offer, first, second) = (first.offer, first.id, second.id);
            findings.push(Finding::TwoLiveOrders { buyer: buyer(), offer, first, second });
        }
    }
}

/// An order's `seq` only grows, and each `seq` shows one state. Overlapping calls may hear in another order than they
/// were answered, so only what was asked after the other was told is compared.
fn went_back(history: &History, shown: &[(&Told, &Seen)]) -> Option<Finding> {
    let heard_before = |(told, _): &&(&Told, &Seen), asked_us: u64| told.told_us <= asked_us;
    shown.iter().find_map(|(told, after)| {
        let mut earlier = shown.iter().filter(|shown| heard_before(shown, told.asked_us));
        let (_, before) = earlier.find(|(_, before)| {
            before.seq > after.seq || (before.seq == after.seq && before.state != after.state)
        })?;
        Some(Finding::WentBack {
            buyer: history.buyer.clone(),
            order: after.id,
            before: before.state.as_str(),
            before_seq: before.seq,
            after: after.state.as_str(),
            after_seq: after.seq,
        })
    })
}

/// What the last look found; `None`: nobody looked, or nobody could.
fn last_look(history: &History, order: OrderId) -> Option<Option<Seen>> {
    history.events.iter().rev().find_map(|told| match &told.what {
        What::Looked { id, found, last: true } if *id == order => Some(*found),
        _ => None,
    })
}

/// Orders that "already ordered" answers have named.
fn blocking_orders(history: &History) -> BTreeSet<OrderId> {
    let named = history.events.iter().filter_map(|told| match &told.what {
        What::Refused { call: Call::Try, code, other, .. } if code == Code::AlreadyOrdered.as_str() => *other,
        _ => None,
    });
    named.collect()
}

fn judge_owners(histories: &[History], findings: &mut Vec<Finding>) {
    let mut owners: BTreeMap<OrderId, &str> = BTreeMap::new();
    for history in histories {
        for order in history.orders() {
            let first = *owners.entry(order.id).or_insert(&history.buyer);
            if first != history.buyer {
                let (first, second) = (first.to_owned(), history.buyer.clone());
                findings.push(Finding::SharedOrder { order: order.id, first, second });
            }
        }
    }
}

/// What the buyers together know of one offer.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    /// Units of live orders.
    units: u64,
    /// Somebody was told `sold_out`.
    sold_out: bool,
    /// A unit may have been taken and given back: an order ended, or a try was unsure.
    came_back: bool,
}

fn tally(histories: &[History]) -> BTreeMap<OfferId, Tally> {
    let mut tallies: BTreeMap<OfferId, Tally> = BTreeMap::new();
    for history in histories {
        for order in history.orders() {
            let tally = tallies.entry(order.offer).or_default();
            if order.is_live() {
                tally.units += u64::from(order.quantity);
            }
        }
        // It may have ended and come to life again by late money: every look counts.
        for (_, seen) in history.seen().filter(|(_, seen)| !seen.is_live()) {
            tallies.entry(seen.offer).or_default().came_back = true;
        }
        for told in &history.events {
            if let What::Refused { call: Call::Try, offer: Some(offer), status, code, .. } = &told.what {
                let tally = tallies.entry(*offer).or_default();
                tally.sold_out |= code == Code::SoldOut.as_str();
                tally.came_back |= is_unsure(*status, code);
            }
        }
    }
    tallies
}

fn before(evidence: &Evidence<'_>, offer: OfferId) -> Option<OfferStats> {
    evidence.alone_since?.offers.iter().find(|before| before.offer_id == offer).copied()
}

fn judge_offer(after: &OfferStats, tally: Tally, before: Option<OfferStats>, findings: &mut Vec<Finding>) {
    let OfferStats { offer_id: offer, stock, free, held, sold, returning } = *after;
    let taken = |stats: &OfferStats| u64::from(stats.held) + u64::from(stats.sold);
    if tally.units > u64::from(stock) {
        findings.push(Finding::Oversold { offer, stock, units: tally.units });
    }
    if taken(after) + u64::from(free) + u64::from(returning) != u64::from(stock) {
        findings.push(Finding::DoesNotAddUp { offer, stock, free, held, sold, returning });
    }
    let Some(before) = before else {
        // Others can have bought too, but never less than this crowd.
        if taken(after) < tally.units {
            findings.push(Finding::StatsDisagree { offer, operator: taken(after), buyers: tally.units });
        }
        return;
    };
    let buyers = tally.units + taken(&before);
    if taken(after) != buyers {
        findings.push(Finding::StatsDisagree { offer, operator: taken(after), buyers });
    }
    if tally.sold_out && !tally.came_back && before.stock == stock {
        if free > 0 {
            findings.push(Finding::SoldOutWhileFree { offer, free });
        }
        let missing = u64::from(stock).saturating_sub(buyers);
        if missing > 0 {
            findings.push(Finding::UnitNobodyHas { offer, stock, missing });
        }
    }
}

#[cfg(test)]
mod tests {
    use rules::id::SaleId;
    use rules::order::Reason;
    use rules::sale::{Phase, SaleState};
    use rules::wire::{Funnel, QueueStats};

    use super::*;
    use crate::crowd::{Crowd, CrowdSettings, Tokens};
    use crate::fake::{FakeShop, Manners, SECRET};

    const OFFER: OfferId = OfferId(1);
    const OPENS_AT: UnixMs = UnixMs(1_800_000_000_000);

    /// Two units, three buyers: ann and bob have one each, cat heard "sold out".
    struct Case {
        histories: Vec<History>,
        before: Stats,
        after: Stats,
    }

    fn stats(free: u32, held: u32) -> Stats {
        Stats {
            sale_id: SaleId(1),
            state: SaleState::Published,
            phase: Phase::Open,
            offers: vec![OfferStats { offer_id: OFFER, stock: 2, free, held, sold: 0, returning: 0 }],
            funnel: Funnel::default(),
            queue: QueueStats { depth: 0, lag_ms: 0 },
            registrations: 0,
        }
    }

    fn seen(id: u128, state: State, seq: u32) -> Seen {
        let (created_at, reason) = (OPENS_AT.plus_ms(5), None);
        Seen { id: OrderId(id), offer: OFFER, quantity: 1, state, reason, seq, created_at }
    }

    fn ordered(id: u128) -> What {
        What::Order { status: 202, pass: OrderId(id), asked: 1, order: seen(id, State::Queued, 1) }
    }

    fn looked(id: u128, state: State, seq: u32, last: bool) -> What {
        What::Looked { id: OrderId(id), found: Some(seen(id, state, seq)), last }
    }

    fn refused(id: u128, code: Code) -> What {
        let (status, code, other) = (code.status(), code.as_str().into(), None);
        What::Refused { call: Call::Try, offer: Some(OFFER), status, code, pass: Some(OrderId(id)), other }
    }

    fn history(buyer: &str, id: u128, told: Vec<What>) -> History {
        let closes_at = OPENS_AT.plus_s(60);
        let expires_at = closes_at;
        let first = [
            What::Window { opens_at: OPENS_AT, closes_at },
            What::Pass { offer: OFFER, order: OrderId(id), expires_at },
        ];
        let at = |(position, what): (u64, What)| Told {
            asked_us: position * 10,
            told_us: position * 10 + 5,
            what,
        };
        let events = (0..).zip(first.into_iter().chain(told)).map(at).collect();
        History { buyer: buyer.into(), events }
    }

    fn winner(buyer: &str, id: u128) -> History {
        let told = vec![
            ordered(id),
            looked(id, State::AwaitingPayment, 2, false),
            looked(id, State::AwaitingPayment, 2, true),
        ];
        history(buyer, id, told)
    }

    fn clean() -> Case {
        let cat = history("cat", 12, vec![refused(12, Code::Busy), refused(12, Code::SoldOut)]);
        let histories = vec![winner("ann", 10), winner("bob", 11), cat];
        Case { histories, before: stats(2, 0), after: stats(0, 2) }
    }

    fn found(case: &Case) -> Vec<Finding> {
        let (histories, after) = (case.histories.as_slice(), &case.after);
        judge(&Evidence { histories, after, alone_since: Some(&case.before) })
    }

    /// Falsifies the clean case and expects exactly one kind of complaint among the findings, in plain words.
    fn check(falsify: impl FnOnce(&mut Case), sentence: &str) {
        let mut case = clean();
        falsify(&mut case);
        let sentences: Vec<String> = found(&case).iter().map(ToString::to_string).collect();
        assert!(sentences.iter().any(|found| found == sentence), "{sentence:?} is not in {sentences:#?}");
    }

    fn told(case: &mut Case, buyer: usize) -> &mut Vec<Told> {
        &mut case.histories[buyer].events
    }

    #[test]
    fn a_clean_night_is_clean() {
        assert_eq!(found(&clean()), []);
        let Case { histories, after, .. } = clean();
        assert_eq!(judge(&Evidence { histories: &histories, after: &after, alone_since: None }), []);
    }

    #[test]
    fn more_winners_than_stock_are_found() {
        check(
            |case| case.histories.push(winner("dan", 13)),
            "Offer 00000000000000000000000001 has a stock of 2, but the buyers hold 3 units of it.",
        );
    }

    #[test]
    fn two_live_orders_of_one_buyer_are_found() {
        check(
            |case| {
                let more = winner("ann", 14).events.into_iter().skip(1);
                told(case, 0).extend(more);
            },
            "Buyer ann has two live orders of offer 00000000000000000000000001: 0000000000000000000000000a and \
             0000000000000000000000000e.",
        );
    }

    #[test]
    fn an_order_shown_to_two_buyers_is_found() {
        check(
            |case| case.histories[1] = winner("bob", 10),
            "Order 0000000000000000000000000a was shown to ann and to bob.",
        );
    }

    #[test]
    fn an_answered_order_that_is_gone_is_found() {
        check(
            |case| {
                let what = What::Looked { id: OrderId(10), found: None, last: true };
                told(case, 0).last_mut().unwrap().what = what;
            },
            "Buyer ann was told of order 0000000000000000000000000a, and now it is gone.",
        );
    }

    #[test]
    fn an_order_named_by_already_ordered_that_is_not_there_is_found() {
        check(
            |case| {
                case.histories[2] = history(
                    "cat",
                    12,
                    vec![
                        What::Refused {
                            call: Call::Try,
                            offer: Some(OFFER),
                            status: 409,
                            code: "already_ordered".into(),
                            pass: Some(OrderId(12)),
                            other: Some(OrderId(15)),
                        },
                        What::Looked { id: OrderId(15), found: None, last: true },
                    ],
                );
            },
            "Buyer cat was told of order 0000000000000000000000000f, and now it is gone.",
        );
    }

    #[test]
    fn an_order_nobody_looked_at_again_is_found() {
        check(
            |case| drop(told(case, 0).pop()),
            "Buyer ann was told of order 0000000000000000000000000a, and nobody could look at it in the end.",
        );
    }

    #[test]
    fn a_queued_without_an_end_is_found() {
        check(
            |case| {
                case.histories[0] = history("ann", 10, vec![ordered(10), looked(10, State::Queued, 1, true)]);
            },
            "Order 0000000000000000000000000a of buyer ann was queued and never got an end.",
        );
    }

    #[test]
    fn an_order_that_went_back_is_found() {
        check(
            |case| told(case, 0).last_mut().unwrap().what = looked(10, State::Queued, 1, true),
            "Order 0000000000000000000000000a of buyer ann went back: first awaiting_payment (seq 2), then queued \
             (seq 1).",
        );
        check(
            |case| told(case, 0).last_mut().unwrap().what = looked(10, State::Refused, 2, true),
            "Order 0000000000000000000000000a of buyer ann went back: first awaiting_payment (seq 2), then refused \
             (seq 2).",
        );
    }

    #[test]
    fn an_order_other_than_the_passes_is_found() {
        check(
            |case| {
                let what = What::Order {
                    status: 202,
                    pass: OrderId(9),
                    asked: 1,
                    order: seen(10, State::Queued, 1),
                };
                told(case, 0)[2].what = what;
            },
            "Buyer ann tried with a pass for order 00000000000000000000000009 and was given order \
             0000000000000000000000000a.",
        );
    }

    #[test]
    fn another_quantity_than_asked_for_is_found() {
        check(
            |case| {
                let what = What::Order {
                    status: 202,
                    pass: OrderId(10),
                    asked: 2,
                    order: seen(10, State::Queued, 1),
                };
                told(case, 0)[2].what = what;
            },
            "Buyer ann asked for 2 units and order 0000000000000000000000000a says 1.",
        );
    }

    #[test]
    fn a_repeat_that_is_told_otherwise_is_found() {
        check(
            |case| {
                case.histories[0] = history(
                    "ann",
                    10,
                    vec![
                        ordered(10),
                        refused(10, Code::SoldOut),
                        looked(10, State::AwaitingPayment, 2, true),
                    ],
                );
            },
            "Buyer ann had order 0000000000000000000000000a, repeated the same pass and was told sold_out.",
        );
    }

    #[test]
    fn an_order_before_the_opening_is_found() {
        check(
            |case| {
                if let What::Order { order, .. } = &mut told(case, 0)[2].what {
                    order.created_at = OPENS_AT.plus_ms(-3);
                }
            },
            "Buyer ann got order 0000000000000000000000000a 3 ms before the opening.",
        );
    }

    #[test]
    fn stats_that_do_not_add_up_are_found() {
        check(
            |case| case.after.offers[0].returning = 1,
            "Offer 00000000000000000000000001 does not add up: free 0 + held 2 + sold 0 + returning 1 is not its \
             stock of 2.",
        );
    }

    #[test]
    fn sold_out_while_a_unit_is_free_is_found() {
        let falsify = |case: &mut Case| {
            case.histories.remove(1);
            case.after = stats(1, 1);
        };
        check(
            falsify,
            "Offer 00000000000000000000000001: a buyer was told sold out, no unit came back, and yet 1 units are free.",
        );
    }

    #[test]
    fn a_unit_nobody_has_is_found() {
        check(
            |case| drop(case.histories.remove(1)),
            "Offer 00000000000000000000000001: a buyer was told sold out, no unit came back, and yet nobody has 1 of \
             its 2 units.",
        );
        check(
            |case| drop(case.histories.remove(1)),
            "Offer 00000000000000000000000001: the operator sees 2 units held or sold, the buyers have 1.",
        );
    }

    #[test]
    fn less_in_the_stats_than_the_buyers_have_is_found_in_any_company() {
        let Case { histories, .. } = clean();
        let after = stats(1, 1);
        let findings = judge(&Evidence { histories: &histories, after: &after, alone_since: None });
        assert_eq!(findings, [Finding::StatsDisagree { offer: OFFER, operator: 1, buyers: 2 }]);
    }

    #[test]
    fn an_offer_the_operator_does_not_know_is_found() {
        check(
            |case| case.after.offers.clear(),
            "Offer 00000000000000000000000001 is in the buyers' histories, but the operator's stats do not know it.",
        );
    }

    #[test]
    fn a_queue_that_is_not_empty_is_said() {
        check(
            |case| case.after.queue.depth = 4,
            "The queue still holds 4 claims: this is too early to judge.",
        );
    }

    #[test]
    fn a_unit_that_came_back_excuses_an_earlier_sold_out() {
        let mut case = clean();
        let mut closed = seen(11, State::Closed, 3);
        closed.reason = Some(Reason::Timeout);
        told(&mut case, 1).last_mut().unwrap().what =
            What::Looked { id: OrderId(11), found: Some(closed), last: true };
        case.after = stats(1, 1);
        assert_eq!(found(&case), []);
    }

    #[test]
    fn two_clicks_that_cross_are_no_lie() {
        let mut case = clean();
        let mut second = told(&mut case, 0)[2].clone();
        second.what = refused(10, Code::Paused);
        told(&mut case, 0).insert(3, second);
        assert_eq!(found(&case), []);
    }

    #[test]
    fn who_hung_up_and_has_the_order_all_the_same_counts() {
        let mut case = clean();
        case.histories[1] = history(
            "bob",
            11,
            vec![What::HungUp { pass: OrderId(11), bytes: 300 }, looked(11, State::AwaitingPayment, 2, true)],
        );
        assert_eq!(found(&case), []);
    }

    async fn judged(manners: Manners) -> Vec<Finding> {
        let shop = FakeShop::open(manners);
        let tokens = Tokens::Signed { secret: SECRET.to_vec() };
        let before = shop.stats();
        let settings = CrowdSettings {
            double_click: 0.3,
            hang_up: 0.2,
            connections: 16,
            settle: std::time::Duration::from_millis(200),
            jitter: std::time::Duration::from_millis(50),
            ..CrowdSettings::new(shop.addr(), shop.sale(), tokens, 60)
        };
        let outcome = Crowd::new(settings).unwrap().run().await.unwrap();
        let (histories, after) = (outcome.histories.as_slice(), &shop.stats());
        judge(&Evidence { histories, after, alone_since: Some(&before) })
    }

    #[tokio::test]
    async fn an_honest_shop_is_found_clean() {
        assert_eq!(judged(Manners { busy_first: 5, break_first: 3, ..Manners::default() }).await, []);
    }

    #[tokio::test]
    async fn a_shop_that_oversells_or_forgets_is_caught() {
        let findings = judged(Manners { oversells: true, ..Manners::default() }).await;
        assert!(findings.iter().any(|finding| matches!(finding, Finding::Oversold { .. })), "{findings:?}");
        let findings = judged(Manners { forgets: true, ..Manners::default() }).await;
        assert!(findings.iter().any(|finding| matches!(finding, Finding::Gone { .. })), "{findings:?}");
    }
}
