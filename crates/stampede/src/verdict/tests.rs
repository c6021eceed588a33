//! The judge on trial: falsified histories must be found out, honest ones must pass.

use rules::id::SaleId;
use rules::order::Reason;
use rules::sale::{Phase, SaleState};
use rules::wire::{Funnel, QueueStats};

use std::time::Duration;

use rules::id::{OfferId, OrderId};
use rules::money::Money;
use rules::order::State;
use rules::time::UnixMs;
use rules::wire::{Code, OfferStats, OperatorOrder, OrderView, Stats};

use super::*;
use crate::clock::Clock;
use crate::crowd::{Crowd, CrowdSettings, Tokens};
use crate::fake::{FakeShop, Manners, Pushes, SECRET};
use crate::history::{Call, Seen, Told, What, Wish};
use crate::scenario::{Follow, Kind};

const OFFER: OfferId = OfferId(1);
const OPENS_AT: UnixMs = UnixMs(1_800_000_000_000);
/// The crowd came in the opening's second.
const STARTED_AT: UnixMs = OPENS_AT;
const WISH: Wish = Wish { offer: OFFER, quantity: 1, max_per_order: 2 };

/// Two units, three buyers: ann and bob have one each, cat heard "sold out".
struct Case {
    histories: Vec<History>,
    before: Stats,
    after: Stats,
    books: Vec<OperatorOrder>,
    audit: Audit,
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
    let (pay_by, closed_at) = (None, None);
    Seen { id: OrderId(id), offer: OFFER, quantity: 1, state, reason, seq, created_at, pay_by, closed_at }
}

fn ordered(id: u128) -> What {
    What::Order { status: 202, pass: OrderId(id), asked: 1, order: seen(id, State::Queued, 1) }
}

fn looked(id: u128, state: State, seq: u32, last: bool) -> What {
    What::Looked { id: OrderId(id), found: Some(seen(id, state, seq)), last }
}

/// The order as the operator lists it.
fn listed(buyer: &str, id: u128) -> OperatorOrder {
    let price = Money { amount: 100, currency: "CNY".parse().unwrap() };
    let order = OrderView {
        id: OrderId(id),
        sale_id: SaleId(1),
        offer_id: OFFER,
        quantity: 1,
        price,
        total: price,
        state: State::AwaitingPayment,
        reason: None,
        seq: 2,
        created_at: OPENS_AT.plus_ms(5),
        pay_by: None,
        paid_at: None,
        closed_at: None,
        refunded_at: None,
        payment_id: None,
        refunds: Vec::new(),
    };
    OperatorOrder { order, buyer: buyer.into() }
}

fn refused(id: u128, code: Code) -> What {
    let (status, code, other) = (code.status(), code.as_str().into(), None);
    What::Refused { call: Call::Try, offer: Some(OFFER), status, code, pass: Some(OrderId(id)), other }
}

fn history(buyer: &str, id: u128, told: Vec<What>) -> History {
    let closes_at = OPENS_AT.plus_s(60);
    let expires_at = closes_at;
    let first = [
        What::Window { opens_at: OPENS_AT, closes_at, wish: Some(WISH) },
        What::Offset { ms: 0 },
        What::Pass { offer: OFFER, order: OrderId(id), expires_at },
    ];
    let at =
        |(position, what): (u64, What)| Told { asked_us: position * 10, told_us: position * 10 + 5, what };
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
    let books = vec![listed("ann", 10), listed("bob", 11)];
    let audit = Audit { id: "1".into(), clean: true, findings: vec![] };
    Case { histories, before: stats(2, 0), after: stats(0, 2), books, audit }
}

fn found(case: &Case) -> Vec<Finding> {
    judge(&Evidence {
        histories: &case.histories,
        started_at: Some(STARTED_AT),
        after: Some(&case.after),
        alone_since: Some(&case.before),
        books: Some(&case.books),
        audit: Some(&case.audit),
        ..Evidence::default()
    })
}

/// Falsifies the clean case and expects this complaint among the findings, in these words.
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
    let in_company = Evidence { histories: &histories, after: Some(&after), ..Evidence::default() };
    assert_eq!(judge(&in_company), []);
    assert_eq!(judge(&Evidence { histories: &histories, ..Evidence::default() }), []);
}

/// A falsification that must be found, by a finding of its own.
type Lie = (&'static str, fn(&mut Case), fn(&Finding) -> bool);

/// Something told at the end of a buyer's history.
fn tell(case: &mut Case, buyer: usize, what: What) {
    let last = told(case, buyer).last().unwrap().told_us;
    told(case, buyer).push(Told { asked_us: last + 5, told_us: last + 10, what });
}

/// The order comes over the one line that this buyer has had open since the page.
fn push(case: &mut Case, buyer: usize, order: Seen) {
    tell(case, buyer, What::Pushed { order });
    told(case, buyer).last_mut().unwrap().asked_us = 1;
}

/// All that these buyers did after they had their pass came so much later.
fn later(case: &mut Case, buyers: &[usize], us: u64) {
    for buyer in buyers {
        for event in told(case, *buyer).iter_mut().skip(3) {
            (event.asked_us, event.told_us) = (event.asked_us + us, event.told_us + us);
        }
    }
}

/// Cat was told sold out at once. (Who is told busy may have had a unit for a moment.)
fn never_busy(case: &mut Case) {
    told(case, 2).remove(3);
}

/// The buyer's order is cancelled, and its unit free in the end.
fn cancel(case: &mut Case, buyer: usize) {
    let id = case.books[buyer].order.id;
    let mut closed = seen(id.0, State::Closed, 3);
    closed.reason = Some(Reason::Cancelled);
    tell(case, buyer, What::Cancelled { order: closed });
    tell(case, buyer, What::Looked { id, found: Some(closed), last: true });
    let order = &mut case.books[buyer].order;
    (order.state, order.seq) = (State::Closed, 3);
    case.after = stats(1, 1);
}

/// Changes the order a try or a look has shown.
fn show(told: &mut Told, change: impl FnOnce(&mut Seen)) {
    match &mut told.what {
        What::Order { order, .. } | What::Looked { found: Some(order), .. } => change(order),
        other => panic!("no order is shown by {other:?}"),
    }
}

fn paid(case: &mut Case, late: bool) {
    let (order, payment_id) = (OrderId(10), "p1".to_owned());
    tell(case, 0, What::Payment { order, payment_id: payment_id.clone() });
    tell(case, 0, What::Paid { order, payment_id, times: 1, late });
}

fn repeated(id: u128) -> What {
    let order = seen(id, State::AwaitingPayment, 2);
    What::Order { status: 200, pass: OrderId(id), asked: 1, order }
}

fn blocked(by: Option<OrderId>) -> What {
    let mut what = refused(12, Code::AlreadyOrdered);
    if let What::Refused { other, .. } = &mut what {
        *other = by;
    }
    what
}

fn of(call: Call, code: Code) -> What {
    let (status, code) = (code.status(), code.as_str().to_owned());
    What::Refused { call, offer: None, status, code, pass: None, other: None }
}

/// Somebody whose tries were never answered.
fn unheard(buyer: &str, id: u128) -> History {
    let (call, pass) = (Call::Try, Some(OrderId(id)));
    let why = "too many tries without an answer".to_owned();
    history(
        buyer,
        id,
        vec![What::Broken { call, pass, why: "no answer in time".into() }, What::GaveUp { why }],
    )
}

/// The books say that an order is closed, so many milliseconds after its time to pay was over; nobody looked since.
fn close(case: &mut Case, entry: usize, reason: Reason, late_ms: i64) {
    let order = &mut case.books[entry].order;
    let pay_by = OPENS_AT.plus_ms(900);
    (order.state, order.reason, order.seq) = (State::Closed, Some(reason), 3);
    (order.pay_by, order.closed_at) = (Some(pay_by), Some(pay_by.plus_ms(late_ms)));
    case.after = stats(1, 1);
}

/// One more unit, which somebody of an earlier crowd held when this one came.
fn earlier_crowd(case: &mut Case) -> &mut OperatorOrder {
    let mut entry = listed("zoe", 40);
    entry.order.created_at = OPENS_AT.plus_ms(-60_000);
    case.books.push(entry);
    for stats in [&mut case.before, &mut case.after] {
        (stats.offers[0].stock, stats.offers[0].held) = (3, stats.offers[0].held + 1);
    }
    case.books.last_mut().unwrap()
}

macro_rules! lies {
    ($($name:ident: $falsify:expr => $finding:pat,)*) => {
        &[$((stringify!($name), $falsify, |finding| matches!(finding, $finding)),)*]
    };
}

const LIES: &[Lie] = lies! {
    a_fifth_winner: |case| case.histories.push(winner("eve", 20)) => Finding::Oversold { units: 3, .. },
    two_units_in_one_order_too_many: |case| {
        for position in [3, 4, 5] { show(&mut told(case, 0)[position], |order| order.quantity = 2); }
    } => Finding::Oversold { .. },
    a_third_winner_who_cancelled_later: |case| {
        let mut closed = seen(20, State::Closed, 3);
        closed.reason = Some(Reason::Cancelled);
        let mut eve = winner("eve", 20);
        eve.events.last_mut().unwrap().what = looked(20, State::AwaitingPayment, 2, false);
        let at = eve.events.last().unwrap().told_us + 5;
        eve.events.push(Told { asked_us: at, told_us: at, what: What::Cancelled { order: closed } });
        eve.events.push(Told { asked_us: at, told_us: at, what: What::Looked { id: OrderId(20), found: Some(closed), last: true } });
        case.histories.push(eve);
    } => Finding::OversoldMeanwhile { units: 3, .. },
    a_second_order_that_was_gone_at_the_end: |case| {
        let mut other = winner("ann", 14).events;
        let mut closed = seen(14, State::Closed, 3);
        closed.reason = Some(Reason::Timeout);
        for (position, event) in other.iter_mut().enumerate() { event.asked_us = 100 + u64::try_from(position).unwrap(); event.told_us = event.asked_us; }
        let mut last = other.last().unwrap().clone();
        (last.asked_us, last.told_us, last.what) = (200, 200, What::Looked { id: OrderId(14), found: Some(closed), last: true });
        told(case, 0).extend(other.into_iter().skip(2).chain([last]));
    } => Finding::TwoLiveOrders { .. },
    more_units_than_the_page_allows: |case| {
        if let What::Order { asked, .. } = &mut told(case, 0)[3].what { *asked = 3; }
        for position in [3, 4, 5] { show(&mut told(case, 0)[position], |order| order.quantity = 3); }
    } => Finding::MoreThanAllowed { given: 3, max: 2, .. },
    sold_out_before_anybody_came: |case| {
        never_busy(case);
        later(case, &[0, 1], 1_000);
    } => Finding::RefusedWhileFree { times: 1, free: 2, .. },
    sold_out_for_two_with_one_free: |case| {
        never_busy(case);
        later(case, &[1], 1_000);
        if let What::Window { wish: Some(wish), .. } = &mut told(case, 2)[0].what { wish.quantity = 2; }
    } => Finding::RefusedWhileFree { times: 1, free: 1, .. },
    not_enough_with_one_free: |case| {
        never_busy(case);
        later(case, &[1], 1_000);
        told(case, 2)[3].what = refused(12, Code::NotEnough);
    } => Finding::RefusedWhileFree { times: 1, free: 1, .. },
    sold_out_for_seconds_after_a_cancel: |case| {
        never_busy(case);
        cancel(case, 1);
        later(case, &[2], 2_100_000);
    } => Finding::RefusedWhileFree { times: 1, free: 1, .. },
    sold_out_for_seconds_after_who_hung_up_had_nothing: |case| {
        never_busy(case);
        case.histories.remove(1);
        case.books.pop();
        case.after = stats(1, 1);
        let (pass, bytes) = (OrderId(11), 300);
        let looked = What::Looked { id: pass, found: None, last: true };
        case.histories.push(history("dan", 11, vec![What::HungUp { pass, bytes }, looked]));
        later(case, &[1], 5_100_000);
    } => Finding::RefusedWhileFree { times: 1, free: 1, .. },
    an_order_of_another_buyer: |case| {
        let what = looked(11, State::AwaitingPayment, 2, true);
        tell(case, 0, what);
    } => Finding::SharedOrder { .. },
    one_pass_for_two: |case| told(case, 1)[2].what = told(case, 0)[2].what.clone() => Finding::PassTwice { .. },
    the_pass_of_another_order: |case| show(&mut told(case, 0)[3], |order| order.id = OrderId(99)) => Finding::OtherOrder { .. },
    another_order_than_looked_at: |case| show(&mut told(case, 0)[5], |order| order.id = OrderId(99)) => Finding::OtherShown { .. },
    fewer_units_than_asked: |case| {
        if let What::Order { asked, .. } = &mut told(case, 0)[3].what { *asked = 3; }
    } => Finding::OtherQuantity { .. },
    another_product: |case| show(&mut told(case, 0)[3], |order| order.offer = OfferId(2)) => Finding::OtherOffer { .. },
    a_product_that_changes: |case| show(&mut told(case, 0)[4], |order| order.offer = OfferId(2)) => Finding::FactChanged { what: "offer", .. },
    a_quantity_that_changes: |case| show(&mut told(case, 0)[4], |order| order.quantity = 2) => Finding::FactChanged { what: "quantity", .. },
    a_birthday_that_changes: |case| show(&mut told(case, 0)[4], |order| order.created_at = OPENS_AT.plus_ms(9)) => Finding::FactChanged { what: "time of creation", .. },
    a_repeat_told_sold_out: |case| tell(case, 0, refused(10, Code::SoldOut)) => Finding::RepeatRefused { .. },
    blocked_without_a_name: |case| tell(case, 2, blocked(None)) => Finding::BlockedByNothing { .. },
    blocked_by_an_order_of_another_offer: |case| {
        tell(case, 0, blocked(Some(OrderId(10))));
        for event in told(case, 0) {
            if let What::Refused { offer, pass, .. } = &mut event.what { (*offer, *pass) = (Some(OfferId(2)), None); }
        }
    } => Finding::BlockedByOtherOffer { .. },
    busy_and_yet_it_happened: |case| case.books.push(listed("cat", 12)) => Finding::HappenedAnyway { .. },
    refused_and_yet_it_stands_in_the_way: |case| tell(case, 2, blocked(Some(OrderId(12)))) => Finding::HappenedAnyway { .. },
    an_order_nobody_tried_for: |case| case.books.push(listed("cat", 33)) => Finding::NeverAsked { .. },
    the_books_name_another_owner: |case| case.books[0].buyer = "zoe".into() => Finding::OtherOwner { .. },
    the_books_do_not_have_it: |case| drop(case.books.remove(0)) => Finding::NotInTheBooks { .. },
    the_books_say_otherwise: |case| case.books[0].order.state = State::Paid => Finding::BooksDisagree { .. },
    a_socket_that_says_nothing: |case| {
        tell(case, 0, What::Watching);
        tell(case, 1, What::Watching);
        tell(case, 1, What::NotPushed { order: OrderId(11) });
    } => Finding::NeverPushed { buyers: 1, watchers: 2 },
    news_that_go_back: |case| {
        push(case, 0, seen(10, State::AwaitingPayment, 2));
        push(case, 0, seen(10, State::Queued, 1));
    } => Finding::WentBack { before_seq: 2, after_seq: 1, .. },
    news_of_another_state: |case| push(case, 0, seen(10, State::Paid, 2)) => Finding::WentBack { before_seq: 2, after: "paid", .. },
    news_of_the_order_of_another: |case| push(case, 2, seen(10, State::AwaitingPayment, 2)) => Finding::SharedOrder { .. },
    news_of_an_order_nobody_tried_for: |case| push(case, 0, seen(77, State::AwaitingPayment, 2)) => Finding::StrangeNews { .. },
    news_of_another_deadline: |case| {
        for (position, s) in [(4, 900), (5, 60)] { show(&mut told(case, 0)[position], |order| order.pay_by = Some(OPENS_AT.plus_s(s))); }
    } => Finding::FactChanged { what: "time to pay", .. },
    news_of_an_order_before_the_opening: |case| {
        told(case, 0)[3].what = What::HungUp { pass: OrderId(10), bytes: 300 };
        let mut early = seen(10, State::AwaitingPayment, 2);
        early.created_at = OPENS_AT.plus_ms(-1);
        push(case, 0, early);
    } => Finding::Early { early_ms: 1, .. },
    an_order_that_is_gone: |case| told(case, 0)[5].what = What::Looked { id: OrderId(10), found: None, last: true } => Finding::Gone { .. },
    an_order_nobody_could_look_at: |case| drop(told(case, 0).pop()) => Finding::NotSeenAgain { .. },
    queued_for_ever: |case| {
        for position in [4, 5] { show(&mut told(case, 0)[position], |order| (order.state, order.seq) = (State::Queued, 1)); }
    } => Finding::Limbo { .. },
    a_seq_that_goes_back: |case| show(&mut told(case, 0)[5], |order| order.seq = 1) => Finding::WentBack { .. },
    another_state_at_the_same_seq: |case| show(&mut told(case, 0)[5], |order| order.state = State::Paid) => Finding::WentBack { .. },
    refused_and_alive_again: |case| {
        show(&mut told(case, 0)[4], |order| (order.state, order.reason) = (State::Refused, Some(Reason::NoStock)));
        show(&mut told(case, 0)[5], |order| order.seq = 3);
    } => Finding::IllegalStep { before: "refused", .. },
    paid_without_having_been_recorded: |case| {
        show(&mut told(case, 0)[4], |order| order.state = State::Paid);
    } => Finding::IllegalStep { before: "queued", after: "paid", .. },
    cancelled_and_paid_later: |case| {
        show(&mut told(case, 0)[4], |order| (order.state, order.reason, order.seq) = (State::Closed, Some(Reason::Cancelled), 3));
        show(&mut told(case, 0)[5], |order| (order.state, order.seq) = (State::Paid, 4));
    } => Finding::IllegalStep { before: "closed", after: "paid", .. },
    closed_for_no_reason: |case| show(&mut told(case, 0)[5], |order| (order.state, order.seq) = (State::Closed, 3)) => Finding::NoReason { .. },
    nobody_answered: |case| case.histories[2] = unheard("cat", 12) => Finding::NoAnswer { buyers: 1, .. },
    closed_behind_the_buyers_back: |case| close(case, 0, Reason::Cancelled, 10) => Finding::StatsDisagree { operator: 1, buyers: 2, .. },
    closed_by_the_books_before_its_time: |case| close(case, 0, Reason::Timeout, -1) => Finding::StatsDisagree { .. },
    paid_by_the_books_without_money: |case| {
        (case.books[0].order.state, case.books[0].order.seq) = (State::Paid, 3);
        (case.after.offers[0].held, case.after.offers[0].sold) = (1, 1);
    } => Finding::SoldDisagrees { .. },
    two_units_came_back_and_one_order_lapsed: |case| {
        close(case, 0, Reason::Timeout, 10);
        case.after = stats(2, 0);
    } => Finding::StatsDisagree { operator: 0, buyers: 2, .. },
    an_internal_error: |case| tell(case, 2, of(Call::Pass, Code::Internal)) => Finding::ServerError { status: 500, times: 1, .. },
    an_error_of_no_known_code: |case| tell(case, 2, What::Refused {
        call: Call::Look, offer: None, status: 502, code: "status_502".into(), pass: None, other: None,
    }) => Finding::ServerError { status: 502, .. },
    a_given_pass_that_is_invalid: |case| tell(case, 2, refused(12, Code::PassInvalid)) => Finding::PassRefused { .. },
    a_given_pass_that_expired_at_once: |case| tell(case, 2, refused(12, Code::PassExpired)) => Finding::PassRefused { .. },
    a_forgotten_registration: |case| {
        tell(case, 2, What::Registered);
        tell(case, 2, of(Call::Pass, Code::NotRegistered));
    } => Finding::RegistrationForgotten { .. },
    an_answer_before_its_question: |case| told(case, 0)[3].told_us = 0 => Finding::DamagedHistory { .. },
    an_order_before_the_opening: |case| show(&mut told(case, 0)[3], |order| order.created_at = OPENS_AT.plus_ms(-1)) => Finding::Early { early_ms: 1, .. },
    told_before_the_opening: |case| {
        if let What::Offset { ms } = &mut told(case, 0)[1].what { *ms = -5_000; }
    } => Finding::ToldEarly { .. },
    not_open_for_the_late: |case| tell(case, 2, refused(12, Code::NotOpen)) => Finding::ClosedToSome { .. },
    sold_after_the_end: |case| {
        told(case, 2)[3].what = refused(12, Code::Ended);
        for event in told(case, 0) { (event.asked_us, event.told_us) = (event.asked_us + 1_000, event.told_us + 1_000); }
    } => Finding::SoldAfterEnd { .. },
    stats_that_do_not_add_up: |case| case.after.offers[0].free = 1 => Finding::DoesNotAddUp { .. },
    sold_out_with_a_unit_free: |case| {
        (case.after, case.histories[1].events) = (stats(1, 1), vec![]);
        case.books.pop();
    } => Finding::SoldOutWhileFree { free: 1, .. },
    a_unit_nobody_has: |case| case.histories[1].events.clear() => Finding::UnitNobodyHas { missing: 1, .. },
    more_in_the_stats_than_the_buyers_have: |case| case.histories[1].events.clear() => Finding::StatsDisagree { operator: 2, buyers: 1, .. },
    sold_without_money: |case| {
        (case.after.offers[0].held, case.after.offers[0].sold) = (1, 1);
    } => Finding::SoldDisagrees { operator: 1, buyers: 0, .. },
    an_offer_the_stats_do_not_know: |case| case.after.offers[0].offer_id = OfferId(7) => Finding::UnknownOffer { .. },
    a_queue_that_is_not_empty: |case| case.after.queue.depth = 1 => Finding::NotQuiet { .. },
    an_audit_that_is_not_clean: |case| case.audit.clean = false => Finding::Audit { .. },
    an_audit_that_found_something: |case| {
        let (kind, detail) = ("gate_drift".to_owned(), "one unit".to_owned());
        (case.audit.clean, case.audit.findings) = (false, vec![AuditFinding { kind, detail }]);
    } => Finding::Audit { .. },
    paid_in_time_and_unpaid: |case| paid(case, false) => Finding::PaidInVain { state: "awaiting_payment", .. },
    paid_in_time_and_closed: |case| {
        paid(case, false);
        let mut closed = seen(10, State::Closed, 3);
        closed.reason = Some(Reason::Timeout);
        tell(case, 0, What::Looked { id: OrderId(10), found: Some(closed), last: true });
    } => Finding::PaidInVain { state: "closed", .. },
    paid_in_time_and_given_back: |case| {
        paid(case, false);
        tell(case, 0, looked(10, State::Refunded, 5, true));
    } => Finding::PaidInVain { state: "refunded", .. },
    paid_long_before_the_deadline_and_given_back: |case| {
        paid(case, false);
        let mut back = seen(10, State::Refunding, 4);
        back.pay_by = Some(OPENS_AT.plus_s(900));
        tell(case, 0, What::Looked { id: OrderId(10), found: Some(back), last: true });
    } => Finding::PaidInVain { state: "refunding", .. },
    paid_by_nobody: |case| {
        for position in [4, 5] { show(&mut told(case, 0)[position], |order| (order.state, order.seq) = (State::Paid, 3)); }
    } => Finding::PaidByNobody { .. },
    two_payments_of_one_order: |case| {
        for payment_id in ["p1", "p2"] {
            tell(case, 0, What::Payment { order: OrderId(10), payment_id: payment_id.into() });
        }
    } => Finding::TwoPayments { .. },
    a_cancel_that_did_nothing: |case| tell(case, 0, What::Cancelled { order: seen(10, State::AwaitingPayment, 2) }) => Finding::CancelIgnored { .. },
    closed_before_its_time: |case| {
        show(&mut told(case, 0)[5], |order| {
            (order.state, order.seq, order.reason) = (State::Closed, 3, Some(Reason::Timeout));
            (order.pay_by, order.closed_at) = (Some(OPENS_AT.plus_s(900)), Some(OPENS_AT.plus_s(899)));
        });
    } => Finding::ClosedTooSoon { early_ms: 1_000, .. },
};

#[test]
fn every_lie_is_found_and_said_in_a_sentence() {
    assert!(LIES.len() >= 30);
    for (name, falsify, expected) in LIES {
        let mut case = clean();
        falsify(&mut case);
        let findings = found(&case);
        assert!(findings.iter().any(expected), "{name} was not found: {findings:#?}");
        for finding in &findings {
            let sentence = finding.to_string();
            assert!(sentence.len() > 20 && !sentence.contains('{'), "{name}: {sentence}");
            assert!(serde_json::to_value(finding).unwrap()["finding"].is_string());
        }
    }
}

/// What an honest shop may do and a hasty judge would hold against it.
#[test]
fn honest_nights_are_clean() {
    type Night = (&'static str, fn(&mut Case));
    let nights: &[Night] = &[
        ("a repeat hears the same order, further on", |case| tell(case, 0, repeated(10))),
        ("news come after a look that saw more", |case| {
            push(case, 0, seen(10, State::Queued, 1));
            push(case, 0, seen(10, State::AwaitingPayment, 2));
        }),
        ("news tell of an order of an earlier visit", |case| {
            earlier_crowd(case).buyer = "cat".into();
            if let What::Window { opens_at, .. } = &mut told(case, 2)[0].what {
                *opens_at = OPENS_AT.plus_ms(-90_000);
            }
            let mut earlier = seen(40, State::AwaitingPayment, 2);
            earlier.created_at = OPENS_AT.plus_ms(-60_000);
            push(case, 2, earlier);
            tell(case, 2, What::Looked { id: OrderId(40), found: Some(earlier), last: true });
        }),
        ("sold out after a busy whose claim may have had a unit", |case| later(case, &[1], 1_000)),
        ("sold out while a cancelled unit was on its way back", |case| {
            never_busy(case);
            cancel(case, 1);
            later(case, &[2], 1_900_000);
        }),
        ("sold out while nobody knows whether who was told unsure has it", |case| {
            never_busy(case);
            case.histories.remove(1);
            case.books.pop();
            case.after = stats(1, 1);
            case.histories.push(history("dan", 13, vec![refused(13, Code::Unsure)]));
            later(case, &[1], 60_000_000);
        }),
        ("not enough for who wanted two units where one was free", |case| {
            never_busy(case);
            later(case, &[1], 1_000);
            told(case, 2)[3].what = refused(12, Code::NotEnough);
            if let What::Window { wish: Some(wish), .. } = &mut told(case, 2)[0].what {
                wish.quantity = 2;
            }
        }),
        ("not enough in a history that does not say how many were wanted", |case| {
            never_busy(case);
            later(case, &[1], 1_000);
            told(case, 2)[3].what = refused(12, Code::NotEnough);
            if let What::Window { wish, .. } = &mut told(case, 2)[0].what {
                *wish = None;
            }
        }),
        ("late money went back", |case| {
            let mut closed = seen(10, State::Closed, 3);
            closed.reason = Some(Reason::Timeout);
            paid(case, true);
            tell(case, 0, What::Looked { id: OrderId(10), found: Some(closed), last: true });
            (case.after, case.books[0].order.seq) = (stats(1, 1), 3);
            case.books[0].order.state = State::Closed;
        }),
        ("a socket was cut, and the watcher looked", |case| {
            tell(case, 0, What::Watching);
            let (call, why) = (Call::Push, "closed with 1001".to_owned());
            tell(case, 0, What::Broken { call, pass: None, why });
        }),
        ("money came so close to the deadline that it was late", |case| {
            paid(case, false);
            let mut back = seen(10, State::Refunded, 5);
            back.pay_by = Some(OPENS_AT.plus_s(1));
            tell(case, 0, What::Looked { id: OrderId(10), found: Some(back), last: true });
            (case.after, case.books[0].order.seq) = (stats(1, 1), 5);
            case.books[0].order.state = State::Refunded;
        }),
        ("paid, told twice, paid once", |case| {
            paid(case, false);
            tell(case, 0, looked(10, State::Paid, 3, true));
            (case.after.offers[0].held, case.after.offers[0].sold) = (1, 1);
            (case.books[0].order.seq, case.books[0].order.state) = (3, State::Paid);
        }),
        ("late money found a unit, and nobody saw it closed in between", |case| {
            paid(case, true);
            tell(case, 0, looked(10, State::Paid, 4, true));
            (case.after.offers[0].held, case.after.offers[0].sold) = (1, 1);
            (case.books[0].order.seq, case.books[0].order.state) = (4, State::Paid);
        }),
        ("no payment at this server", |case| tell(case, 0, What::NoPayment { order: OrderId(10) })),
        ("busy after having it", |case| tell(case, 0, refused(10, Code::Busy))),
        ("too fast after having it", |case| tell(case, 0, refused(10, Code::TooFast))),
        ("unsure, and it happened", |case| {
            told(case, 1)[3].what = refused(11, Code::Unsure);
        }),
        ("not open before anybody had an order", |case| {
            told(case, 2)[3].what = refused(12, Code::NotOpen);
        }),
        ("ended for whoever came later, the same order for who repeats", |case| {
            told(case, 2).last_mut().unwrap().what = refused(12, Code::Ended);
            tell(case, 0, repeated(10));
        }),
        ("an order of an earlier visit stands in the way", |case| {
            let mut old = seen(40, State::AwaitingPayment, 2);
            old.created_at = OPENS_AT.plus_s(0).plus_ms(-60_000);
            tell(case, 2, blocked(Some(OrderId(40))));
            tell(case, 2, What::Looked { id: OrderId(40), found: Some(old), last: true });
            let mut entry = listed("cat", 40);
            entry.order.created_at = old.created_at;
            case.books.push(entry);
            for stats in [&mut case.before, &mut case.after] {
                (stats.offers[0].stock, stats.offers[0].held) = (3, stats.offers[0].held + 1);
            }
        }),
        ("told busy to the last", |case| {
            let why = "no order: busy".to_owned();
            case.histories.push(history("dan", 13, vec![refused(13, Code::Busy), What::GaveUp { why }]));
        }),
        ("this machine could not solve its proof of work", |case| {
            let why = "the crowd itself: no proof of work was solved in time".to_owned();
            case.histories.push(history("dan", 13, vec![What::GaveUp { why }]));
        }),
        ("an order lapsed between the last look and the stats", |case| close(case, 0, Reason::Timeout, 10)),
        ("an order lapsed between the stats and the list", |case| {
            close(case, 0, Reason::Timeout, 0);
            case.after = stats(0, 2);
        }),
        ("an order of an earlier crowd lapsed meanwhile", |case| {
            let order = &mut earlier_crowd(case).order;
            (order.state, order.reason, order.seq) = (State::Closed, Some(Reason::Timeout), 3);
            (order.pay_by, order.closed_at) = (Some(OPENS_AT.plus_ms(10)), Some(OPENS_AT.plus_ms(12)));
            (case.after.offers[0].free, case.after.offers[0].held) = (1, 2);
        }),
        ("an order of an earlier crowd is still held", |case| drop(earlier_crowd(case).buyer.clone())),
        ("late money was taken after the last look", |case| {
            let mut closed = seen(10, State::Closed, 3);
            closed.reason = Some(Reason::Timeout);
            paid(case, true);
            tell(case, 0, What::Looked { id: OrderId(10), found: Some(closed), last: true });
            (case.after.offers[0].held, case.after.offers[0].sold) = (1, 1);
            (case.books[0].order.seq, case.books[0].order.state) = (4, State::Paid);
        }),
        ("a cancelled unit was sold again", |case| {
            let mut closed = seen(10, State::Closed, 3);
            closed.reason = Some(Reason::Cancelled);
            tell(case, 0, What::Cancelled { order: closed });
            tell(case, 0, What::Looked { id: OrderId(10), found: Some(closed), last: true });
            (case.books[0].order.seq, case.books[0].order.state) = (3, State::Closed);
            let mut dan = winner("dan", 13);
            for event in &mut dan.events {
                (event.asked_us, event.told_us) = (event.asked_us + 500, event.told_us + 500);
            }
            case.histories.push(dan);
            case.books.push(listed("dan", 13));
        }),
    ];
    for (name, change) in nights {
        let mut case = clean();
        change(&mut case);
        let findings = found(&case);
        assert!(findings.is_empty(), "{name}: {findings:#?}");
    }
}

#[test]
fn in_company_somebody_else_may_have_given_the_money_back() {
    let mut case = clean();
    paid(&mut case, false);
    tell(&mut case, 0, looked(10, State::Refunded, 5, true));
    let in_company = Evidence { histories: &case.histories, ..Evidence::default() };
    assert_eq!(judge(&in_company), []);
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
            let more = winner("ann", 14).events.into_iter().skip(2);
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
            let what =
                What::Order { status: 202, pass: OrderId(9), asked: 1, order: seen(10, State::Queued, 1) };
            told(case, 0)[3].what = what;
        },
        "Buyer ann tried with a pass for order 00000000000000000000000009 and was given order \
         0000000000000000000000000a.",
    );
}

#[test]
fn another_quantity_than_asked_for_is_found() {
    check(
        |case| {
            let what =
                What::Order { status: 202, pass: OrderId(10), asked: 2, order: seen(10, State::Queued, 1) };
            told(case, 0)[3].what = what;
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
                vec![ordered(10), refused(10, Code::SoldOut), looked(10, State::AwaitingPayment, 2, true)],
            );
        },
        "Buyer ann had order 0000000000000000000000000a, repeated the same pass and was told sold_out.",
    );
}

#[test]
fn an_order_before_the_opening_is_found() {
    check(
        |case| {
            if let What::Order { order, .. } = &mut told(case, 0)[3].what {
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
    let findings = judge(&Evidence { histories: &histories, after: Some(&after), ..Evidence::default() });
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
    check(|case| case.after.queue.depth = 4, "The queue still holds 4 claims: this is too early to judge.");
}

#[test]
fn sold_out_while_enough_was_free_is_found() {
    check(
        |case| {
            never_busy(case);
            later(case, &[0, 1], 1_000);
        },
        "Offer 00000000000000000000000001: sold_out was told 1 time while enough units were free: when buyer cat was \
         told so, 2 at least.",
    );
}

#[test]
fn a_unit_that_came_back_excuses_an_earlier_sold_out() {
    let mut case = clean();
    let mut closed = seen(11, State::Closed, 3);
    closed.reason = Some(Reason::Timeout);
    told(&mut case, 1).last_mut().unwrap().what =
        What::Looked { id: OrderId(11), found: Some(closed), last: true };
    (case.after, case.books[1].order.seq) = (stats(1, 1), 3);
    case.books[1].order.state = State::Closed;
    assert_eq!(found(&case), []);
}

#[test]
fn two_clicks_that_cross_are_no_lie() {
    let mut case = clean();
    let mut second = told(&mut case, 0)[3].clone();
    second.what = refused(10, Code::Paused);
    told(&mut case, 0).insert(4, second);
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
    let tokens = Tokens::signed(SECRET);
    let before = shop.stats();
    let jitter = Duration::from_millis(50);
    let human = Kind { double_click: 0.3, hang_up: 0.2, jitter, ..Kind::default() };
    let payer = Kind { pay: 0.5, cancel: 0.5, decide_within: jitter, ..Kind::default() };
    let two_tabs = Kind { passes: 2, parallel: 2, ..Kind::default() };
    // Somebody who waits for what never comes is not kept for long.
    let patience = Duration::from_secs(if manners.queued_looks == u32::MAX { 2 } else { 30 });
    let settings = CrowdSettings {
        mix: vec![human, payer, two_tabs],
        connections: 16,
        settle: Duration::from_secs(1),
        patience,
        ..CrowdSettings::new(shop.addr(), shop.sale(), tokens, 60)
    };
    let outcome = Crowd::new(settings).unwrap().run().await.unwrap();
    let desk = shop.desk().await;
    let books = desk.books(shop.sale()).await.unwrap().unwrap();
    judge(&Evidence {
        histories: &outcome.histories,
        started_at: Some(outcome.started_at),
        after: Some(&desk.stats(shop.sale()).await.unwrap()),
        alone_since: Some(&before),
        books: Some(&books),
        audit: desk.audit(Clock::start()).await.unwrap().as_ref(),
        ..Evidence::default()
    })
}

#[tokio::test]
async fn an_honest_shop_is_found_clean() {
    assert_eq!(judged(Manners { busy_first: 5, break_first: 3, ..Manners::default() }).await, []);
    assert_eq!(judged(Manners { payments: true, stock: 40, ..Manners::default() }).await, []);
}

#[tokio::test]
async fn a_shop_that_lies_is_caught() {
    type Shop = (&'static str, Manners, fn(&Finding) -> bool);
    let honest = Manners { stock: 40, payments: true, ..Manners::default() };
    let shops: &[Shop] = &[
        ("oversells", Manners { oversells: true, stock: 5, ..honest }, |found| {
            matches!(found, Finding::Oversold { .. })
        }),
        ("forgets", Manners { forgets: true, ..honest }, |found| matches!(found, Finding::Gone { .. })),
        ("sells twice", Manners { sells_twice: true, ..honest }, |found| {
            matches!(found, Finding::TwoLiveOrders { .. })
        }),
        ("never decides", Manners { queued_looks: u32::MAX, ..honest }, |found| {
            matches!(found, Finding::Limbo { .. })
        }),
        ("loses money", Manners { loses_money: true, ..honest }, |found| {
            matches!(found, Finding::PaidInVain { .. })
        }),
        ("gives money back", Manners { refunds: true, ..honest }, |found| {
            matches!(found, Finding::PaidInVain { state: "refunded", .. })
        }),
        ("keeps what was cancelled", Manners { keeps_cancelled: true, ..honest }, |found| {
            matches!(found, Finding::CancelIgnored { .. })
        }),
        ("hides units", Manners { hides: 2, ..honest }, |found| {
            matches!(found, Finding::StatsDisagree { .. })
        }),
    ];
    for (name, manners, expected) in shops {
        let findings = judged(*manners).await;
        assert!(findings.iter().any(expected), "{name}: {findings:#?}");
    }
}

/// What a few who follow by that line find.
async fn watched(follow: Follow, pushes: Pushes) -> (Vec<Finding>, Vec<History>) {
    let shop = FakeShop::open(Manners { pushes, payments: true, ..Manners::default() });
    let before = shop.stats();
    let decide_within = Duration::from_millis(50);
    let settings = CrowdSettings {
        mix: vec![Kind { follow, pay: 0.5, cancel: 0.5, decide_within, ..Kind::default() }],
        patience: Duration::from_secs(2),
        ..CrowdSettings::new(shop.addr(), shop.sale(), Tokens::signed(SECRET), 4)
    };
    let outcome = Crowd::new(settings).unwrap().run().await.unwrap();
    let findings = judge(&Evidence {
        histories: &outcome.histories,
        started_at: Some(outcome.started_at),
        after: Some(&shop.stats()),
        alone_since: Some(&before),
        ..Evidence::default()
    });
    (findings, outcome.histories)
}

const LINES: [Follow; 2] = [Follow::Websocket, Follow::Sse];

#[tokio::test]
async fn a_shop_that_lies_to_those_who_listen_is_caught() {
    type Lie = (Pushes, fn(&Finding) -> bool);
    let lies: &[Lie] = &[
        (Pushes::Nothing, |found| matches!(found, Finding::NeverPushed { buyers: 4, watchers: 4 })),
        (Pushes::OnlyTheFirst, |found| matches!(found, Finding::NeverPushed { buyers: 4, watchers: 4 })),
        (Pushes::Gibberish, |found| matches!(found, Finding::NeverPushed { buyers: 4, watchers: 4 })),
        (Pushes::AnotherState, |found| matches!(found, Finding::IllegalStep { after: "paid", .. })),
        (Pushes::AnotherDeadline, |found| matches!(found, Finding::FactChanged { what: "time to pay", .. })),
        (Pushes::ToEverybody, |found| matches!(found, Finding::SharedOrder { .. })),
        (Pushes::OneMore, |found| matches!(found, Finding::StrangeNews { .. })),
        (Pushes::AndBack, |found| matches!(found, Finding::WentBack { .. })),
    ];
    let mut believed = Vec::new();
    for follow in LINES {
        for (pushes, expected) in lies {
            let (findings, _) = watched(follow, *pushes).await;
            if !findings.iter().any(expected) {
                believed.push((follow, *pushes, findings));
            }
        }
    }
    assert!(believed.is_empty(), "{believed:#?}");
}

/// Who is told of an order of somebody else has not bought it, is not oversold, and has not lost it.
#[tokio::test]
async fn news_of_an_order_of_another_are_held_against_the_shop_as_just_that() {
    for pushes in [Pushes::ToEverybody, Pushes::OneMore] {
        let (findings, _) = watched(Follow::Sse, pushes).await;
        let just_that =
            |found: &Finding| matches!(found, Finding::SharedOrder { .. } | Finding::StrangeNews { .. });
        assert!(findings.iter().all(just_that), "{pushes:?}: {findings:#?}");
    }
}

#[tokio::test]
async fn an_honest_line_is_found_clean_and_one_that_ends_early_is_a_note() {
    for follow in LINES {
        let (findings, histories) = watched(follow, Pushes::Honestly).await;
        assert_eq!(findings, [], "{follow:?}: {histories:#?}");
        let heard = |history: &History| {
            let states = history.seen().filter(|(told, _)| matches!(told.what, What::Pushed { .. }));
            states.map(|(_, seen)| seen.state).last()
        };
        let ends = [Some(State::Paid), Some(State::Closed)];
        assert!(histories.iter().all(|history| ends.contains(&heard(history))), "{follow:?}: {histories:#?}");
        let (findings, histories) = watched(follow, Pushes::Half).await;
        assert_eq!(findings, [], "{follow:?}: {histories:#?}");
        let cut = |told: &Told| matches!(told.what, What::Broken { call: Call::Push, .. });
        assert!(histories.iter().all(|history| history.events.iter().any(cut)), "{follow:?}: {histories:#?}");
    }
}

#[test]
fn a_line_that_stays_silent_is_said_in_a_sentence() {
    assert_eq!(
        Finding::NeverPushed { buyers: 2, watchers: 2 }.to_string(),
        "2 of 2 watchers kept a socket open and never heard over it what became of their order."
    );
}

/// Whoever is told busy comes again with the same pass, so only who goes home can be wronged.
#[tokio::test]
async fn a_shop_that_says_busy_and_sells_is_caught() {
    let shop = FakeShop::open(Manners { busy_but_sells: u32::MAX, ..Manners::default() });
    let tokens = Tokens::signed(SECRET);
    let settings = CrowdSettings { tries_max: 1, ..CrowdSettings::new(shop.addr(), shop.sale(), tokens, 3) };
    let outcome = Crowd::new(settings).unwrap().run().await.unwrap();
    let books = shop.desk().await.books(shop.sale()).await.unwrap().unwrap();
    let findings =
        judge(&Evidence { histories: &outcome.histories, books: Some(&books), ..Evidence::default() });
    assert_eq!(findings.len(), 3, "{findings:#?}");
    assert!(
        findings.iter().all(|found| matches!(found, Finding::HappenedAnyway { code, .. } if code == "busy"))
    );
}

#[test]
fn without_the_operators_list_what_was_due_to_lapse_may_have() {
    let judged = |lapses_by: Option<u32>| {
        let mut case = clean();
        for event in told(&mut case, 0).iter_mut().skip(3) {
            show(event, |order| order.pay_by = Some(OPENS_AT.plus_s(60)));
        }
        case.after = stats(1, 1);
        judge(&Evidence {
            histories: &case.histories,
            started_at: Some(STARTED_AT),
            after: Some(&case.after),
            alone_since: Some(&case.before),
            gathered_at: lapses_by.map(|s| OPENS_AT.plus_s(s)),
            ..Evidence::default()
        })
    };
    assert_eq!(judged(Some(61)), []);
    assert!(judged(Some(30)).contains(&Finding::StatsDisagree { offer: OFFER, operator: 1, buyers: 2 }));
    assert!(judged(None).iter().any(|found| matches!(found, Finding::SoldOutWhileFree { .. })));
}

#[test]
fn without_the_operators_list_what_others_held_before_may_have_lapsed() {
    let judged = |free: u32| {
        let mut case = clean();
        earlier_crowd(&mut case);
        (case.after.offers[0].free, case.after.offers[0].held) = (free, 3 - free);
        judge(&Evidence {
            histories: &case.histories,
            started_at: Some(STARTED_AT),
            after: Some(&case.after),
            alone_since: Some(&case.before),
            ..Evidence::default()
        })
    };
    assert_eq!((judged(0), judged(1)), (vec![], vec![]));
    // One unit more than they held is too many.
    assert_eq!(judged(2), [Finding::StatsDisagree { offer: OFFER, operator: 1, buyers: 3 }]);
}

#[test]
fn a_night_that_was_broken_off_is_judged_only_by_what_was_told() {
    let mut case = clean();
    told(&mut case, 0).pop();
    case.histories[2] = unheard("cat", 12);
    let evidence = |broken_off| Evidence { histories: &case.histories, broken_off, ..Evidence::default() };
    assert_eq!(judge(&evidence(true)), []);
    assert_eq!(judge(&evidence(false)).len(), 2);
    told(&mut case, 1)[3].told_us = 0;
    let evidence = Evidence { histories: &case.histories, broken_off: true, ..Evidence::default() };
    assert_eq!(judge(&evidence), [Finding::DamagedHistory { buyer: "bob".into() }]);
}

/// An honest shop in a few lines, by its own books: what it did and when, in milliseconds since the opening. Orders lapse
/// and late money comes whenever it comes, also between the last look, the stats and the list.
mod honest {
    use rand::rngs::Xoshiro256PlusPlus;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    /// When a unit's fate may turn.
    #[derive(Clone, Copy)]
    enum Turn {
        Try { buyer: usize },
        LateMoney { order: usize },
    }

    struct Order {
        buyer: String,
        id: u128,
        pay_by_ms: i64,
        /// Each state with its moment; the position is the seq.
        states: Vec<(i64, State, Option<Reason>)>,
        /// When the buyer paid, and whether that was late.
        paid: Option<(i64, bool)>,
    }

    impl Order {
        fn at(&self, ms: i64) -> Option<Seen> {
            let steps = self.states.iter().take_while(|(at, ..)| *at <= ms).count();
            let (at, state, reason) = *self.states[..steps].last()?;
            let mut seen = seen(self.id, state, u32::try_from(steps).unwrap());
            seen.created_at = OPENS_AT.plus_ms(self.states[0].0);
            (seen.reason, seen.pay_by) = (reason, Some(OPENS_AT.plus_ms(self.pay_by_ms)));
            seen.closed_at = (state == State::Closed).then(|| OPENS_AT.plus_ms(at));
            Some(seen)
        }

        fn entry(&self, ms: i64) -> Option<OperatorOrder> {
            let seen = self.at(ms)?;
            let mut entry = listed(&self.buyer, self.id);
            (entry.order.state, entry.order.reason, entry.order.seq) = (seen.state, seen.reason, seen.seq);
            (entry.order.created_at, entry.order.pay_by) = (seen.created_at, seen.pay_by);
            entry.order.closed_at = seen.closed_at;
            Some(entry)
        }
    }

    pub struct Night {
        dice: Xoshiro256PlusPlus,
        stock: u32,
        pay_within_ms: i64,
        orders: Vec<Order>,
        tries: Vec<i64>,
        /// Which order each buyer has.
        won: Vec<Option<usize>>,
    }

    impl Night {
        pub fn new(seed: u64) -> Self {
            let mut dice = Xoshiro256PlusPlus::seed_from_u64(seed);
            let (stock, pay_within_ms) = (dice.random_range(1..=5), dice.random_range(100..4_000));
            let buyers = dice.random_range(1..=12);
            let tries: Vec<i64> = (0..buyers).map(|_| dice.random_range(1..2_000)).collect();
            let won = vec![None; tries.len()];
            let mut night = Self { dice, stock, pay_within_ms, orders: vec![], tries, won };
            night.earlier_crowd();
            night.happen();
            night
        }

        /// Some units may be held or sold before.
        fn earlier_crowd(&mut self) {
            for number in 0..self.dice.random_range(0..=self.stock) {
                let (made, pay_by_ms) = (-9_000, self.dice.random_range(-500..6_000));
                let mut states = vec![(made, State::Queued, None), (made + 5, State::AwaitingPayment, None)];
                if self.dice.random_bool(0.3) {
                    states.push((made + 90, State::Paid, None));
                } else {
                    let swept = pay_by_ms + self.dice.random_range(0..50);
                    states.push((swept, State::Closed, Some(Reason::Timeout)));
                }
                let (buyer, id) = (format!("earlier {number}"), 1_000 + u128::from(number));
                self.orders.push(Order { buyer, id, pay_by_ms, states, paid: None });
            }
        }

        fn free(&self, ms: i64) -> u32 {
            let live = self.orders.iter().filter(|order| order.at(ms).is_some_and(|seen| seen.is_live()));
            self.stock - u32::try_from(live.count()).unwrap()
        }

        fn happen(&mut self) {
            let tries = self.tries.iter().enumerate();
            let mut turns: Vec<(i64, Turn)> = tries.map(|(buyer, ms)| (*ms, Turn::Try { buyer })).collect();
            while !turns.is_empty() {
                turns.sort_by_key(|(ms, _)| std::cmp::Reverse(*ms));
                let (ms, turn) = turns.pop().unwrap();
                match turn {
                    _ if self.free(ms) == 0 => {}
                    Turn::Try { buyer } => turns.extend(self.sell(buyer, ms)),
                    Turn::LateMoney { order } => self.orders[order].states.push((ms, State::Paid, None)),
                }
            }
        }

        fn sell(&mut self, buyer: usize, ms: i64) -> Option<(i64, Turn)> {
            let (order, made) = (self.orders.len(), ms + 5);
            let pay_by_ms = made + self.pay_within_ms;
            let swept = pay_by_ms + self.dice.random_range(0..50);
            let acts = made + self.dice.random_range(10..self.pay_within_ms.min(90));
            let (mut paid, mut late) = (None, None);
            let end = match self.dice.random_range(0..4) {
                0 => (swept, State::Closed, Some(Reason::Timeout)),
                1 => (acts, State::Closed, Some(Reason::Cancelled)),
                2 => {
                    paid = Some((acts, false));
                    (acts, State::Paid, None)
                }
                _ => {
                    let sent = pay_by_ms + 100;
                    paid = Some((sent, true));
                    late = Some((sent + self.dice.random_range(0..1_500), Turn::LateMoney { order }));
                    (swept, State::Closed, Some(Reason::Timeout))
                }
            };
            let states = vec![(ms, State::Queued, None), (made, State::AwaitingPayment, None), end];
            let (buyer_name, id) = (format!("buyer {buyer}"), 100 + u128::try_from(buyer).unwrap());
            self.orders.push(Order { buyer: buyer_name, id, pay_by_ms, states, paid });
            self.won[buyer] = Some(order);
            late
        }

        fn stats(&self, ms: i64) -> Stats {
            let units = |wanted: fn(State) -> bool| {
                let of_it = |order: &&Order| order.at(ms).is_some_and(|seen| wanted(seen.state));
                u32::try_from(self.orders.iter().filter(of_it).count()).unwrap()
            };
            let held = units(|state| matches!(state, State::Queued | State::AwaitingPayment));
            let sold = units(|state| state == State::Paid);
            let mut stats = stats(self.stock - held - sold, held);
            (stats.offers[0].stock, stats.offers[0].sold) = (self.stock, sold);
            stats
        }

        /// What the buyer asked and was told, with a last look at `last_ms`.
        fn history(&self, buyer: usize, last_ms: i64) -> History {
            let (id, name) = (100 + u128::try_from(buyer).unwrap(), format!("buyer {buyer}"));
            let mut history = history(&name, id, vec![]);
            let us = |ms: i64| u64::try_from(ms).unwrap() * 1_000;
            let mut tell = |ms: i64, what| {
                history.events.push(Told { asked_us: us(ms), told_us: us(ms) + 1, what });
            };
            let tried = self.tries[buyer];
            let Some(order) = self.won[buyer].map(|order| &self.orders[order]) else {
                tell(tried, refused(id, Code::SoldOut));
                return history;
            };
            let order_id = OrderId(id);
            tell(
                tried,
                What::Order { status: 202, pass: order_id, asked: 1, order: order.at(tried).unwrap() },
            );
            tell(tried + 6, What::Looked { id: order_id, found: order.at(tried + 6), last: false });
            if let Some((ms, late)) = order.paid {
                let payment_id = format!("pay {id}");
                tell(ms, What::Payment { order: order_id, payment_id: payment_id.clone() });
                tell(ms, What::Paid { order: order_id, payment_id, times: 1, late });
            }
            if let Some((ms, ..)) = order.states.iter().find(|(.., why)| *why == Some(Reason::Cancelled)) {
                tell(*ms, What::Cancelled { order: order.at(*ms).unwrap() });
            }
            tell(last_ms, What::Looked { id: order_id, found: order.at(last_ms), last: true });
            history
        }

        /// When the last buyer was done.
        fn over_ms(&self) -> i64 {
            let paid = self.orders.iter().filter_map(|order| order.paid.map(|(ms, _)| ms));
            self.tries.iter().copied().chain(paid).max().unwrap_or(0) + 200
        }

        /// Findings of the same night: judged with the list, without it, and in company.
        pub fn judged(mut self) -> Vec<Vec<Finding>> {
            let last_ms = self.over_ms();
            let stats_ms = last_ms + self.dice.random_range(0..1_500);
            let books_ms = stats_ms + self.dice.random_range(0..1_500);
            let histories: Vec<History> =
                (0..self.tries.len()).map(|buyer| self.history(buyer, last_ms)).collect();
            let (before, after) = (self.stats(0), self.stats(stats_ms));
            let books: Vec<OperatorOrder> =
                self.orders.iter().filter_map(|order| order.entry(books_ms)).collect();
            let with = Evidence {
                histories: &histories,
                started_at: Some(STARTED_AT),
                after: Some(&after),
                alone_since: Some(&before),
                books: Some(&books),
                gathered_at: Some(OPENS_AT.plus_ms(books_ms)),
                ..Evidence::default()
            };
            let without = Evidence { books: None, ..with };
            let in_company = Evidence { alone_since: None, ..with };
            [with, without, in_company].iter().map(judge).collect()
        }
    }
}

#[test]
fn a_thousand_honest_nights_are_clean() {
    for seed in 0..1_000 {
        let judged = honest::Night::new(seed).judged();
        assert!(judged.iter().all(Vec::is_empty), "night {seed}: {judged:#?}");
    }
}
