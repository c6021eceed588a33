//! The tables of payments, and what holds however captures arrive.

use proptest::prelude::*;

use super::*;
use crate::id::OrderId;
use crate::order::{Event as OrderEvent, Reason, State as OrderState, Status as OrderStatus};

fn money(amount: i64, currency: &str) -> Money {
    Money { amount, currency: currency.parse().unwrap() }
}

fn total() -> Money {
    money(149_900, "CNY")
}

fn capture(id: &str) -> Capture {
    Capture { key: CaptureKey::new("sandbox", id).unwrap(), money: total() }
}

fn payment(id: &str, state: State, reason: Option<RefundReason>) -> Payment {
    Payment { capture: Some(capture(id).key), status: Status { state, reason } }
}

fn reached() -> Vec<Status> {
    let mut seen = vec![Status::STARTED, Status::CAPTURED];
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
    seen.sort_by_key(|status| (status.state, status.reason));
    seen
}

fn show(status: Status) -> String {
    format!("{}({})", status.state.as_str(), status.reason.map_or("", RefundReason::as_str))
}

/// Every state, with every reason it can have, times every event: what is not in the table is illegal.
#[test]
fn the_table_of_transitions_is_exactly_this() {
    let mut table = String::new();
    for status in reached() {
        for event in Event::ALL {
            if let Ok(after) = next(status, event) {
                table.push_str(&format!("{} + {event:?} -> {}\n", show(status), show(after)));
            }
        }
    }
    let expected = "\
started() + Closed -> closed()
started() + Captured -> captured()
closed() + Captured -> captured()
captured() + Applied -> applied()
captured() + RefundDue(NoUnitLeft) -> refund_due(no_unit_left)
applied() + RefundDue(Requested) -> refund_due(requested)
refund_due(no_unit_left) + RefundStarted -> refunding(no_unit_left)
refund_due(requested) + RefundStarted -> refunding(requested)
refunding(no_unit_left) + RefundDone -> refunded(no_unit_left)
refunding(no_unit_left) + RefundFailed -> refund_failed(no_unit_left)
refunding(requested) + RefundDone -> refunded(requested)
refunding(requested) + RefundFailed -> refund_failed(requested)
refunded(no_unit_left) + RefundFailed -> refund_failed(no_unit_left)
refunded(requested) + RefundFailed -> refund_failed(requested)
refund_failed(no_unit_left) + RefundStarted -> refunding(no_unit_left)
refund_failed(no_unit_left) + RefundDone -> refunded(no_unit_left)
refund_failed(requested) + RefundStarted -> refunding(requested)
refund_failed(requested) + RefundDone -> refunded(requested)
";
    assert_eq!(table, expected);
    for state in State::ALL {
        assert!(reached().iter().any(|status| status.state == state), "{state:?} cannot be reached");
    }
}

#[test]
fn names_are_read_back_and_reasons_speak_in_sentences() {
    for state in State::ALL {
        assert_eq!(State::parse(state.as_str()), Some(state));
        assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
    }
    for reason in RefundReason::ALL {
        assert_eq!(RefundReason::parse(reason.as_str()), Some(*reason));
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        assert!(reason.sentence().ends_with('.') && reason.sentence().len() > 20, "{reason:?}");
    }
}

#[test]
fn a_capture_has_a_key_of_bounded_length() {
    assert_eq!(CaptureKey::new("", "c"), Err(CaptureKeyError::Provider));
    assert_eq!(CaptureKey::new(&"p".repeat(33), "c"), Err(CaptureKeyError::Provider));
    assert_eq!(CaptureKey::new("sandbox", ""), Err(CaptureKeyError::Capture));
    assert_eq!(CaptureKey::new("sandbox", "a\nb"), Err(CaptureKeyError::Capture));
    assert_eq!(CaptureKey::new("sandbox", &"c".repeat(129)), Err(CaptureKeyError::Capture));
    let key = CaptureKey::new("sandbox", "c-1").unwrap();
    assert_eq!((key.provider(), key.capture()), ("sandbox", "c-1"));
    assert_ne!(key, CaptureKey::new("other", "c-1").unwrap());
}

/// Every state an order can be in, with every reason: what one first, correct capture means for it.
#[test]
fn the_table_of_settling_is_exactly_this() {
    let mut table = String::new();
    for state in OrderState::ALL {
        for reason in order_reasons(state) {
            let status = OrderStatus { state, reason, holds_units: holds(state) };
            let settlement = settle(Subject::Order { status, total: total() }, &[], &capture("c"));
            table.push_str(&format!(
                "{}({}) {settlement:?}\n",
                state.as_str(),
                reason.map_or("", Reason::as_str)
            ));
        }
    }
    let expected = "\
queued() Wait
awaiting_payment() Apply
paid() RefundDue(SecondCapture)
closed(timeout) Revive
closed(cancelled) RefundDue(OrderCancelled)
refused(no_stock) RefundDue(OrderRefused)
refused(other_live) RefundDue(OrderRefused)
refused(id_clash) RefundDue(OrderRefused)
refused(stale_epoch) RefundDue(OrderRefused)
refused(internal) RefundDue(OrderRefused)
refunding() RefundDue(SecondCapture)
refunded() RefundDue(SecondCapture)
refund_failed() RefundDue(SecondCapture)
";
    assert_eq!(table, expected);
    assert_eq!(settle(Subject::NotYet, &[], &capture("c")), Settlement::Wait);
    let unknown = Settlement::RefundDue(RefundReason::OrderUnknown);
    assert_eq!(settle(Subject::Unknown, &[], &capture("c")), unknown);
}

fn order_reasons(state: OrderState) -> Vec<Option<Reason>> {
    let all = Reason::ALL.into_iter();
    match state {
        OrderState::Closed => all.take(2).map(Some).collect(),
        OrderState::Refused => all.skip(2).map(Some).collect(),
        _ => vec![None],
    }
}

const fn holds(state: OrderState) -> bool {
    !matches!(state, OrderState::Closed | OrderState::Refused | OrderState::Refunded)
}

#[test]
fn money_that_is_not_the_total_goes_back_whatever_the_order_is() {
    for state in OrderState::ALL {
        let status = OrderStatus { state, reason: order_reasons(state)[0], holds_units: holds(state) };
        let subject = Subject::Order { status, total: total() };
        let paid = |money| settle(subject, &[], &Capture { money, ..capture("c") });
        for amount in [0, 1, 149_899, 149_901, -149_900, i64::MAX, i64::MIN] {
            let refund = Settlement::RefundDue(RefundReason::AmountMismatch);
            assert_eq!(paid(money(amount, "CNY")), refund, "{state:?} {amount}");
        }
        let refund = Settlement::RefundDue(RefundReason::CurrencyMismatch);
        assert_eq!(paid(money(149_900, "EUR")), refund, "{state:?}");
    }
}

#[test]
fn a_decided_capture_is_a_duplicate_and_an_undecided_one_is_decided_again() {
    let subject =
        Subject::Order { status: OrderStatus { state: OrderState::Paid, ..awaiting() }, total: total() };
    for status in reached().into_iter().filter(|status| status.state > State::Captured) {
        let told = [Payment { capture: Some(capture("c").key), status }];
        assert_eq!(settle(subject, &told, &capture("c")), Settlement::Duplicate, "{status:?}");
        assert_eq!(settle(Subject::NotYet, &told, &capture("c")), Settlement::Duplicate, "{status:?}");
    }
    let waiting = [payment("c", State::Captured, None)];
    let subject = Subject::Order { status: awaiting(), total: total() };
    assert_eq!(settle(subject, &waiting, &capture("c")), Settlement::Apply);
}

fn awaiting() -> OrderStatus {
    OrderStatus { state: OrderState::AwaitingPayment, reason: None, holds_units: true }
}

#[test]
fn of_several_late_captures_only_the_first_looks_for_a_unit() {
    let status = OrderStatus { state: OrderState::Closed, reason: Some(Reason::Timeout), holds_units: false };
    let subject = Subject::Order { status, total: total() };
    let payments = [
        Payment { capture: None, status: Status { state: State::Closed, reason: None } },
        payment("first", State::Captured, None),
        payment("second", State::Captured, None),
    ];
    assert_eq!(settle(subject, &payments, &capture("first")), Settlement::Revive);
    let refund = Settlement::RefundDue(RefundReason::SecondCapture);
    assert_eq!(settle(subject, &payments, &capture("second")), refund);
    assert_eq!(settle(subject, &payments, &capture("third, not written down yet")), refund);
}

#[test]
fn an_order_that_has_its_money_takes_no_other_even_if_its_state_lags() {
    let subject = Subject::Order { status: awaiting(), total: total() };
    for told in [
        payment("c", State::Applied, None),
        payment("c", State::RefundDue, Some(RefundReason::Requested)),
        payment("c", State::Refunded, Some(RefundReason::Requested)),
    ] {
        let refund = Settlement::RefundDue(RefundReason::SecondCapture);
        assert_eq!(settle(subject, &[told], &capture("d")), refund);
    }
    let returned = payment("c", State::Refunded, Some(RefundReason::AmountMismatch));
    assert_eq!(settle(subject, &[returned], &capture("d")), Settlement::Apply);
}

#[test]
fn every_answer_of_the_gate_to_a_revival_has_a_meaning() {
    let meaning = |verdict| revival(verdict, Finder::Gate);
    let no_unit = Revival::RefundDue(RefundReason::NoUnitLeft);
    assert_eq!(meaning(Verdict::Granted), Revival::Claimed);
    assert_eq!(meaning(Verdict::Repeat), Revival::Claimed);
    let other = Verdict::AlreadyOrdered { order: OrderId(1) };
    assert_eq!(meaning(other), Revival::RefundDue(RefundReason::OtherLive));
    assert_eq!(meaning(Verdict::SoldOut), no_unit);
    assert_eq!(meaning(Verdict::NotEnough { available: 1 }), no_unit);
    assert_eq!(revival(Verdict::SoldOut, Finder::Ledger), Revival::RefundDue(RefundReason::SaleEnded));
    for nothing_decided in [
        Verdict::Busy,
        Verdict::Spent,
        Verdict::PassReused,
        Verdict::Ended,
        Verdict::NotOpen { opens_in_ms: 1 },
        Verdict::Paused,
    ] {
        assert_eq!(meaning(nothing_decided), Revival::Wait);
    }
}

#[test]
fn the_ledger_decides_alone_only_when_nothing_can_be_granted_or_under_way() {
    for bits in 0..8 {
        let (gate_is_open, sale_is_over, queue_is_drained) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
        let expected = match bits {
            1 | 3 | 5 | 7 => Some(Finder::Gate),
            6 => Some(Finder::Ledger),
            _ => None,
        };
        assert_eq!(finder(Scene { gate_is_open, sale_is_over, queue_is_drained }), expected, "{bits:03b}");
    }
}

#[test]
fn a_claim_that_revives_is_dealt_with_once() {
    let closed = OrderStatus { state: OrderState::Closed, reason: Some(Reason::Timeout), holds_units: false };
    let order = order::Version { status: closed, seq: 3 };
    let decided = Status { state: State::RefundDue, reason: Some(RefundReason::NoUnitLeft) };
    let no_unit = Some(RefundReason::NoUnitLeft);
    let record = |closing_seq, payment, obstacle| record_revival(order, closing_seq, payment, obstacle);
    assert_eq!(record(3, Status::CAPTURED, None), RevivalRecord::Revived);
    assert_eq!(record(3, Status::CAPTURED, no_unit), RevivalRecord::NotRevived { refund: no_unit });
    assert_eq!(record(3, decided, None), RevivalRecord::NotRevived { refund: None });
    for event in [OrderEvent::Revived, OrderEvent::NotRevived] {
        let after = order.next(event).unwrap();
        assert_eq!(record_revival(after, 3, Status::CAPTURED, None), RevivalRecord::Repeat, "{event:?}");
    }
}

#[test]
fn a_second_wish_to_pay_returns_the_open_payment_and_another_provider_closes_it() {
    let wish = |state, left, open| start(state, left, open, "sandbox");
    let awaiting = OrderState::AwaitingPayment;
    let (same, other) = (Open::Started { provider: "sandbox" }, Open::Started { provider: "bank" });
    assert_eq!(wish(awaiting, 1, None), Start::New);
    assert_eq!(wish(awaiting, 1, Some(same)), Start::TheOpenOne);
    assert_eq!(wish(awaiting, 1, Some(other)), Start::InsteadOfTheOpenOne);
    assert_eq!(wish(awaiting, 1, Some(Open::Captured)), Start::NotYet);
    assert_eq!(wish(OrderState::Queued, 0, None), Start::NotYet);
    assert_eq!(wish(awaiting, 0, None), Start::NotPayable, "the deadline has passed");
    assert_eq!(wish(awaiting, 0, Some(same)), Start::NotPayable);
    for state in OrderState::ALL.into_iter().filter(|state| *state > awaiting) {
        assert_eq!(wish(state, 1, None), Start::NotPayable, "{state:?}");
    }
}

/// What the world does to one order while captures arrive.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Order(usize),
    /// A capture is told, perhaps not for the first time.
    Told(usize),
    /// The undecided captures are decided, and this is what the gate would say.
    Decide(Verdict),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        2 => (0..OrderEvent::ALL.len()).prop_map(Happening::Order),
        3 => (0..CAPTURES.len()).prop_map(Happening::Told),
        2 => prop_oneof![Just(Verdict::Granted), Just(Verdict::SoldOut), Just(Verdict::Busy)].prop_map(Happening::Decide),
    ]
}

const CAPTURES: [&str; 4] = ["a", "b", "c", "short"];

/// The least that can be called a ledger: one order and its payments.
#[derive(Debug)]
struct Desk {
    order: Option<OrderStatus>,
    payments: Vec<Payment>,
    /// How often each capture was applied or given back.
    ends: Vec<(CaptureKey, Event)>,
}

impl Desk {
    fn new() -> Self {
        Self { order: None, payments: Vec::new(), ends: Vec::new() }
    }

    fn order_event(&mut self, event: OrderEvent) {
        // Money alone makes these happen.
        if matches!(event, OrderEvent::PaymentApplied | OrderEvent::Revived) {
            return;
        }
        let Ok(after) = order::next(self.order.unwrap_or(OrderStatus::QUEUED), event) else { return };
        if event == OrderEvent::RefundStarted && self.order.is_some_and(|o| o.state == OrderState::Paid) {
            self.payment_event(
                self.payments.iter().position(|p| p.status.state == State::Applied).unwrap(),
                Event::RefundDue(RefundReason::Requested),
            );
        }
        self.order = Some(after);
    }

    fn payment_event(&mut self, at: usize, event: Event) {
        self.payments[at].status = next(self.payments[at].status, event).unwrap();
        if matches!(event, Event::Applied | Event::RefundDue(_))
            && event != Event::RefundDue(RefundReason::Requested)
        {
            self.ends.push((self.payments[at].capture.clone().unwrap(), event));
        }
    }

    fn told(&mut self, id: &str) {
        let key = capture(id).key;
        if !self.payments.iter().any(|payment| payment.capture.as_ref() == Some(&key)) {
            self.payments.push(Payment { capture: Some(key), status: Status::CAPTURED });
        }
    }

    fn decide(&mut self, verdict: Verdict) {
        let subject = match self.order {
            Some(status) => Subject::Order { status, total: total() },
            None => Subject::NotYet,
        };
        for at in 0..self.payments.len() {
            let key = self.payments[at].capture.clone().unwrap();
            let paid = if key.capture() == "short" { money(1, "CNY") } else { total() };
            let settlement = settle(subject, &self.payments, &Capture { key, money: paid });
            match settlement {
                Settlement::Apply => return self.apply(at, OrderEvent::PaymentApplied),
                Settlement::Revive => match revival(verdict, Finder::Gate) {
                    Revival::Claimed => return self.apply(at, OrderEvent::Revived),
                    Revival::RefundDue(reason) => self.payment_event(at, Event::RefundDue(reason)),
                    Revival::Wait => {}
                },
                Settlement::RefundDue(reason) => self.payment_event(at, Event::RefundDue(reason)),
                Settlement::Duplicate | Settlement::Wait => {}
            }
        }
    }

    fn apply(&mut self, at: usize, event: OrderEvent) {
        self.order = Some(order::next(self.order.unwrap(), event).unwrap());
        self.payment_event(at, Event::Applied);
    }

    /// The clerk gives its verdict, and everything undecided is decided.
    fn come_to_rest(&mut self, verdict: Verdict) {
        self.order_event(OrderEvent::Recorded);
        for _ in 0..=CAPTURES.len() {
            self.decide(verdict);
        }
    }
}

proptest! {
    /// However captures are shuffled, repeated and mixed with what else happens to the order.
    #[test]
    fn each_capture_ends_once_and_an_order_is_paid_at_most_once(
        happenings in prop::collection::vec(happening(), 0..40),
        unit_left: bool,
    ) {
        let mut desk = Desk::new();
        for happening in happenings {
            match happening {
                Happening::Order(event) => desk.order_event(OrderEvent::ALL[event]),
                Happening::Told(at) => desk.told(CAPTURES[at]),
                Happening::Decide(verdict) => desk.decide(verdict),
            }
        }
        desk.come_to_rest(if unit_left { Verdict::Granted } else { Verdict::SoldOut });

        let mut ended: Vec<_> = desk.ends.iter().map(|(key, _)| key.clone()).collect();
        ended.sort();
        let mut told: Vec<_> = desk.payments.iter().map(|payment| payment.capture.clone().unwrap()).collect();
        told.sort();
        prop_assert_eq!(ended, told, "each capture ends exactly once: {:?}", desk);
        let applied = desk.ends.iter().filter(|(_, event)| *event == Event::Applied).count();
        prop_assert!(applied <= 1);
        let short = desk.ends.iter().find(|(key, _)| key.capture() == "short");
        prop_assert!(short.is_none_or(|(_, event)| *event == Event::RefundDue(RefundReason::AmountMismatch)));
        let has_money = desk.payments.iter().any(|payment| payment.status.is_the_orders());
        let was_paid = !desk.order.is_none_or(|order| {
            use OrderState::{AwaitingPayment, Closed, Refused};
            matches!(order.state, AwaitingPayment | Closed | Refused)
        });
        prop_assert_eq!(has_money, was_paid);
    }

    #[test]
    fn sums_of_money_never_overflow_and_always_add_up(
        amounts in prop::collection::vec((0..State::ALL.len(), any::<i64>()), 0..50),
    ) {
        let payments = amounts.iter().map(|(state, amount)| (State::ALL[*state], money(*amount, "CNY")));
        let foreign = (State::Captured, money(i64::MAX, "EUR"));
        let sums = takings(total().currency, payments.chain([foreign]));
        prop_assert_eq!(sums.captured, sums.undecided + sums.kept + sums.owed + sums.returned);
        let captured = amounts.iter().filter(|(state, _)| State::ALL[*state] >= State::Captured);
        prop_assert_eq!(sums.captured, captured.map(|(_, amount)| i128::from(*amount)).sum::<i128>());
    }
}

#[test]
fn a_thousand_of_the_largest_amounts_add_up() {
    let sums = takings(total().currency, vec![(State::Applied, money(i64::MAX, "CNY")); 1_000]);
    assert_eq!(sums.kept, i128::from(i64::MAX) * 1_000);
}
