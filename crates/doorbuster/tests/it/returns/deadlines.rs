//! Unpaid orders at their deadline: to the second, once, also after a restart, and by the provider's word.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::{Path, State as Shared};
use axum::routing::get;
use doorbuster::clock::Clock;
use doorbuster::ledger::money::{NewPayment, PaymentStarted, Settled};
use doorbuster::payment::closings::TRIES_MAX;
use doorbuster::telemetry::metrics::{Inquiry, Letting, MoneyOutcome};
use futures_util::future::join_all;
use rules::audit::Kind;
use rules::id::{OrderId, PaymentId};
use rules::order::{Reason, State};
use rules::payment::{RefundReason, State as PaymentState};
use rules::time::UnixMs;
use rules::wire::AuditRequest;
use serde_json::{Value, json};

use super::*;
use crate::app::{TestBuyer, assert_code, with_manual_clock};
use crate::money::{self, STRIPE_SECRET, StandIn};

#[tokio::test(flavor = "multi_thread")]
async fn an_unpaid_order_closes_at_its_deadline_and_its_unit_is_for_the_next_buyer_at_once() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.open_sale(1).await;
    let shorter = app.publish(paid_within(1, 899)).await;
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let order = bought(&app, &sale, "ann", 1).await;
    let first = bought(&app, &shorter, "ann", 1).await;
    assert_code(&bob.buy(sale.offer(), 1, 409).await, "sold_out");
    let availability = format!("/api/v1/sales/{}/availability", sale.id);
    let told = async || app.call("GET", &availability, None, None, 200).await["offers"][0]["state"].clone();
    assert_eq!(told().await, "sold_out");
    let path = format!("/api/v1/orders/{order}?wait=20&after=2");
    let request = app.client.get(app.url(&path)).bearer_auth(&ann.token);
    let poll = tokio::spawn(async move { request.send().await.unwrap().json::<Value>().await.unwrap() });

    clock.advance(PAY_WITHIN - Duration::from_millis(1));
    until_state(&app, first, State::Closed).await;
    assert_eq!(ledgers(&app.app, order).await.status.state, State::AwaitingPayment, "a moment too early");
    assert_eq!(told().await, "sold_out");
    clock.advance(Duration::from_millis(1));
    let closed = until_state(&app, order, State::Closed).await;
    assert_eq!((closed.status.reason, closed.closed_at), (Some(Reason::Timeout), closed.pay_by));
    let heard = tokio::time::timeout(Duration::from_secs(20), poll).await.unwrap().unwrap();
    assert_eq!((&heard["state"], &heard["reason"]), (&json!("closed"), &json!("timeout")));

    // The ledger knows it a moment before the gate has its unit back.
    eventually("the units are back", async || app.app.metrics.releases.get(Letting::Timeout) == 2).await;
    assert_eq!(told().await, "open", "pages are not told what was counted before");
    bob.buy_with(sale.offer(), &bob.mint(sale.offer()), 1, 202).await;
    assert_code(&ann.buy(sale.offer(), 1, 409).await, "sold_out");
    assert_eq!(app.app.metrics.releases.get(Letting::Timeout), 2);
    assert_units_add_up(&app, &sale).await;
}

/// The look behind the timer comes in an hour: whatever closes after the first look was closed by the timer.
#[tokio::test(flavor = "multi_thread")]
async fn the_timer_wakes_for_the_next_order_that_is_due() {
    const MOMENT: Duration = Duration::from_millis(300);
    let (app, clock) = with_manual_clock(&[]).await;
    let (sale, shorter) = (app.open_sale(3).await, app.publish(paid_within(1, 800)).await);
    let order = bought(&app, &sale, "ann", 3).await;
    let first = bought(&app, &shorter, "ann", 1).await;
    let folder = app.stop().await;
    clock.advance(PAY_WITHIN - MOMENT);
    let hourly = |settings: &mut doorbuster::config::Settings| {
        settings.sweeper_look = Some(Duration::from_secs(3_600));
    };
    let app = TestApp::tuned(folder, clock.clone(), hourly).await;
    until_state(&app, first, State::Closed).await;
    assert_eq!(ledgers(&app.app, order).await.status.state, State::AwaitingPayment, "a moment too early");
    clock.advance(MOMENT);
    let closed = until_state(&app, order, State::Closed).await;
    assert_eq!(closed.closed_at, closed.pay_by);
    assert_units_add_up(&app, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_due_while_nobody_ran_closes_at_the_next_start_and_strikes_nobody() {
    let start = UnixMs(jiff::Timestamp::now().as_millisecond());
    let clock = Clock::manual(start);
    let app = TestApp::on(tempfile::tempdir().unwrap(), clock.clone(), &[]).await;
    let sale = app.open_sale(2).await;
    let order = bought(&app, &sale, "ann", 1).await;
    let folder = app.stop().await;

    // Away for a tenth of the time to pay and a millisecond more.
    clock.advance(PAY_WITHIN / 10 + Duration::from_millis(1));
    let app = TestApp::on(folder, clock.clone(), &[]).await;
    let second = bought(&app, &sale, "bob", 1).await;
    let folder = app.stop().await;
    clock.advance(Duration::from_secs(60));
    let app = TestApp::on(folder, clock.clone(), &[]).await;
    clock.advance(PAY_WITHIN);
    until_state(&app, order, State::Closed).await;
    until_state(&app, second, State::Closed).await;
    let strikes = async |name| app.app.ledger.strikes_of(buyer(name), 10).await.unwrap().len();
    assert_eq!(strikes("ann").await, 0, "she could not pay for more than a tenth of the time");
    assert_eq!(strikes("bob").await, 1, "he could not pay for less than a tenth of his");
    assert_units_add_up(&app, &sale).await;
}

/// What came first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Winner {
    Payment,
    Cancel,
    Deadline,
}

/// When a buyer pays and cancels, by the instant of the deadline. The clock stands before and after it: who is answered
/// before it has won for certain, and so has the deadline where both come after it.
#[derive(Clone, Copy, Debug)]
enum Race {
    PaysBefore,
    CancelsBefore,
    BothInIt,
    BothAfter,
}

/// A buyer with an order, whose way to the provider is open.
struct Racer<'a> {
    buyer: TestBuyer<'a>,
    order: String,
    payment: String,
    race: Race,
    number: u64,
}

impl<'a> Racer<'a> {
    async fn come(app: &'a TestApp, sale: &TestSale, race: Race, number: u64) -> Self {
        let buyer = app.buyer(&format!("buyer {number}"));
        let order = money::won(&buyer, sale).await;
        let payment = money::payment(&buyer, &order).await;
        Self { buyer, order, payment, race, number }
    }

    /// The provider tells of the money, and may forget it.
    async fn pay(&self) {
        let told = money::act(self.buyer.app, &self.payment, &json!({"outcome": "paid"}), 200).await;
        assert_eq!(told["answers"], json!([200]));
    }

    /// Whether it is closed; if not, that was told as it is documented.
    async fn cancel(&self) -> bool {
        let path = self.buyer.app.url(&format!("/api/v1/orders/{}/cancel", self.order));
        let request = self.buyer.app.client.post(path).bearer_auth(&self.buyer.token);
        let (status, _, answer) = self.buyer.app.send(request).await;
        match status {
            200 => assert_eq!((&answer["state"], &answer["reason"]), (&json!("closed"), &json!("cancelled"))),
            409 => {
                let codes = ["not_cancellable", "not_yet"];
                assert!(codes.contains(&answer["code"].as_str().unwrap()), "{answer}");
            }
            other => panic!("{other}: {answer}"),
        }
        status == 200
    }

    /// What is asked and answered before the instant; whether the order is cancelled.
    async fn run_before(&self) -> bool {
        match self.race {
            Race::PaysBefore => {
                self.pay().await;
                false
            }
            Race::CancelsBefore => self.cancel().await,
            Race::BothInIt | Race::BothAfter => false,
        }
    }

    /// What comes in the instant or after it.
    async fn run_on(&self, is_cancelled: bool) -> bool {
        let (later, never) = (Duration::from_millis(self.number % 7), Duration::ZERO);
        let (pay_after, cancel_after) = match self.race {
            Race::PaysBefore => return self.cancel().await,
            Race::CancelsBefore => {
                self.pay().await;
                return is_cancelled;
            }
            Race::BothInIt if self.number.is_multiple_of(2) => (later, never),
            Race::BothInIt => (never, later),
            Race::BothAfter => {
                money::becomes(&self.buyer, &self.order, "closed").await;
                (never, never)
            }
        };
        let pay = async {
            tokio::time::sleep(pay_after).await;
            self.pay().await;
        };
        let cancel = async {
            tokio::time::sleep(cancel_after).await;
            self.cancel().await
        };
        tokio::join!(pay, cancel).1
    }

    /// Everybody was told who won, and money, order and strikes say the same.
    async fn assert_won(&self, winner: Winner, is_cancelled: bool) {
        let app = self.buyer.app;
        let (state, seq, ends) = match winner {
            Winner::Payment => ("paid", 3, money::plain("applied")),
            Winner::Cancel => ("closed", 3, money::back("order_cancelled")),
            // Its own unit was free again, and nobody else wanted it.
            Winner::Deadline => ("paid", 4, money::plain("applied")),
        };
        eventually("the money has ended", async || money::states(app, &self.order).await == [ends.clone()])
            .await;
        let order = money::becomes(&self.buyer, &self.order, state).await;
        assert_eq!(order["seq"], seq, "{order}");
        assert_eq!(is_cancelled, winner == Winner::Cancel, "{order}");
        let strikes = app.app.ledger.strikes_of(buyer(&self.buyer.name), 10).await.unwrap();
        let lifted: Vec<bool> = strikes.iter().map(|row| row.strike.lifted_at.is_some()).collect();
        assert_eq!(lifted, if winner == Winner::Deadline { vec![true] } else { vec![] });
    }
}

/// Who won each order: what is told of it first after it was recorded.
async fn winners(app: &TestApp) -> HashMap<String, Winner> {
    let page = app.operate("GET", "/admin/v1/events?types=order.paid,order.closed&last=200", None, 200).await;
    let mut winners = HashMap::new();
    for event in page["items"].as_array().unwrap() {
        let winner = match (event["type"].as_str().unwrap(), event["data"]["reason"].as_str()) {
            ("order.paid", _) => Winner::Payment,
            (_, Some("cancelled")) => Winner::Cancel,
            (_, Some("timeout")) => Winner::Deadline,
            other => panic!("{other:?}"),
        };
        winners.entry(event["order_id"].as_str().unwrap().to_owned()).or_insert(winner);
    }
    winners
}

/// Pay, cancel and deadline around the same instant, of many orders at once, over HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn of_paying_cancelling_and_timing_out_at_the_same_instant_one_wins_and_the_others_are_told() {
    const ORDERS: u64 = 48;
    const MOMENT: Duration = Duration::from_millis(1);
    let (app, clock) = with_manual_clock(&[money::SANDBOX]).await;
    let sale = app.open_sale(u32::try_from(ORDERS).unwrap()).await;
    let mut racers = Vec::new();
    for number in 0..ORDERS {
        let races = [Race::PaysBefore, Race::CancelsBefore, Race::BothInIt, Race::BothAfter];
        let race = races[usize::try_from(number / 12).unwrap()];
        racers.push(Racer::come(&app, &sale, race, number).await);
    }
    let shorter = app.publish(paid_within(1, 899)).await;
    let awake = bought(&app, &shorter, "somebody", 1).await;
    clock.advance(PAY_WITHIN - MOMENT);
    // The sweeper is awake, and knows that the others are due in a moment.
    until_state(&app, awake, State::Closed).await;
    let before = join_all(racers.iter().map(Racer::run_before)).await;
    let on = racers.iter().zip(before).map(|(racer, is_cancelled)| racer.run_on(is_cancelled));
    // In the middle of those who come in the instant.
    let deadline = async {
        tokio::time::sleep(Duration::from_millis(4)).await;
        clock.advance(MOMENT);
    };
    let (cancelled, ()) = tokio::join!(join_all(on), deadline);

    let won = winners(&app).await;
    let (mut in_it, mut cancels) = (Vec::new(), 0);
    for (racer, is_cancelled) in racers.iter().zip(cancelled) {
        let winner = won[&racer.order];
        match racer.race {
            Race::PaysBefore => assert_eq!(winner, Winner::Payment),
            Race::CancelsBefore => assert_eq!(winner, Winner::Cancel),
            Race::BothInIt => in_it.push(winner),
            Race::BothAfter => assert_eq!(winner, Winner::Deadline),
        }
        racer.assert_won(winner, is_cancelled).await;
        cancels += u64::from(winner == Winner::Cancel);
    }
    println!("in the instant: {in_it:?}");
    assert_units_add_up(&app, &sale).await;
    assert_eq!(money::units(&app, &sale).await, [ORDERS, cancels, 0, ORDERS - cancels]);
    let audit = app.audited(&json!({})).await;
    assert_eq!(audit["clean"], true, "{audit}");
}

/// A damaged counter keeps its own orders open, and nobody else's; once it is mended, they close.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_cannot_be_closed_does_not_hold_up_the_others() {
    let (app, clock) = with_manual_clock(&[]).await;
    let (damaged, sound) = (app.open_sale(3).await, app.open_sale(3).await);
    let stuck = bought(&app, &damaged, "ann", 1).await;
    let free_to_go = [bought(&app, &sound, "bob", 1).await, bought(&app, &sound, "cyd", 1).await];
    app.settled().await;
    let damage = "update offers set live_units = 0 where offer_id = ?1";
    let offer: OfferId = damaged.offer().parse().unwrap();
    let file = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    assert_eq!(file.execute(damage, [offer.to_bytes()]).unwrap(), 1);
    clock.advance(PAY_WITHIN);
    for order in free_to_go {
        until_state(&app, order, State::Closed).await;
    }
    eventually("an alarm is given", async || app.app.metrics.set_aside.get() == 1).await;
    assert_eq!(ledgers(&app.app, stuck).await.status.state, State::AwaitingPayment);
    let strikes = async |name| app.app.ledger.strikes_of(buyer(name), 10).await.unwrap().len();
    assert_eq!((strikes("bob").await, strikes("cyd").await), (1, 1), "it is no outage");

    let audit = app.app.audit(AuditRequest { repair: true, ..AuditRequest::default() }).await.unwrap();
    let found: Vec<_> = audit.findings.iter().map(|found| (found.kind, found.repaired)).collect();
    assert_eq!(found, [(Kind::LiveCounter, true)], "{audit:?}");
    clock.advance(Duration::from_secs(60));
    until_state(&app, stuck, State::Closed).await;
    assert_eq!((strikes("ann").await, app.app.metrics.set_aside.get()), (1, 1));
    assert_units_add_up(&app, &damaged).await;
    assert_units_add_up(&app, &sound).await;
}

/// A strike that is there before its order lapses, and one that an audit lifted for that reason, change nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_strike_that_is_there_already_does_not_keep_its_order_open() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.open_sale(3).await;
    let mut orders = Vec::new();
    for name in ["ann", "bob", "cyd"] {
        orders.push(bought(&app, &sale, name, 1).await);
    }
    let file = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    let plant = |name: &str| {
        let sql = "insert into strikes (buyer, order_no, struck_at)
            select buyer, order_no, created_at from orders where buyer = ?1";
        assert_eq!(file.execute(sql, [name]).unwrap(), 1);
    };
    plant("ann");
    let audit = app.app.audit(AuditRequest { repair: true, ..AuditRequest::default() }).await.unwrap();
    let found: Vec<_> = audit.findings.iter().map(|found| (found.kind, found.repaired)).collect();
    assert_eq!(found, [(Kind::StrikeWithoutLapse, true)], "{audit:?}");
    plant("bob");
    clock.advance(PAY_WITHIN);
    for order in orders {
        until_state(&app, order, State::Closed).await;
    }
    for (name, lifted) in [("ann", true), ("bob", false), ("cyd", false)] {
        let strikes = app.app.ledger.strikes_of(buyer(name), 10).await.unwrap();
        assert_eq!((strikes.len(), strikes[0].strike.lifted_at.is_some()), (1, lifted), "{name}");
    }
    assert_eq!(app.app.metrics.set_aside.get(), 0);
    assert_units_add_up(&app, &sale).await;
}

/// A provider that can be asked: it answers what it is told to.
#[derive(Clone, Default)]
pub(super) struct FakeProvider {
    pub(super) says: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    /// How often it was asked to close a payment and did.
    pub(super) closed: Arc<AtomicU64>,
}

/// What it says: no answer that can be used, that it was paid, that it was not, and nothing at all.
const ERROR: u64 = 0;
pub(super) const PAID: u64 = 1;
pub(super) const NOT_PAID: u64 = 2;
const NOTHING: u64 = 3;
/// The buyer is done, and the money takes its time.
const PENDING: u64 = 4;

impl FakeProvider {
    pub(super) fn saying(what: u64) -> Self {
        Self { says: Arc::new(what.into()), ..Self::default() }
    }

    pub(super) async fn start(self) -> String {
        let app = axum::Router::new()
            .route("/v1/checkout/sessions/{session}", get(answer))
            .route("/v1/checkout/sessions/{session}/expire", axum::routing::post(expire))
            .with_state(self);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        format!("http://{address}")
    }
}

/// The provider's name of the session of a payment, and of its money.
fn session_of(payment: PaymentId) -> String {
    format!("cs_test_{payment}")
}

fn capture_of(payment: PaymentId) -> String {
    format!("pi_{payment}")
}

type Answered = (http::StatusCode, axum::Json<Value>);

async fn answer(Shared(provider): Shared<FakeProvider>, Path(session): Path<String>) -> Answered {
    provider.asked.fetch_add(1, Ordering::AcqRel);
    let payment: PaymentId = session.strip_prefix("cs_test_").unwrap().parse().unwrap();
    let about = |status: &str, payment_status: &str| {
        let body = json!({
            "id": session, "status": status, "payment_status": payment_status,
            "payment_intent": capture_of(payment), "amount_total": 149_900, "currency": "cny",
            "client_reference_id": payment,
        });
        (http::StatusCode::OK, axum::Json(body))
    };
    match provider.says.load(Ordering::Acquire) {
        PAID => about("complete", "paid"),
        NOT_PAID => about("open", "unpaid"),
        PENDING => about("complete", "unpaid"),
        NOTHING => std::future::pending().await,
        _ => (http::StatusCode::SERVICE_UNAVAILABLE, axum::Json(json!({"error": {}}))),
    }
}

/// What is paid, or being paid, cannot expire.
async fn expire(Shared(provider): Shared<FakeProvider>) -> Answered {
    let no =
        |status| (status, axum::Json(json!({"error": {"type": "invalid_request_error", "message": "no"}})));
    match provider.says.load(Ordering::Acquire) {
        ERROR => no(http::StatusCode::SERVICE_UNAVAILABLE),
        PAID | PENDING => no(http::StatusCode::BAD_REQUEST),
        _ => {
            provider.closed.fetch_add(1, Ordering::AcqRel);
            (http::StatusCode::OK, axum::Json(json!({"id": "cs_test_1", "status": "expired"})))
        }
    }
}

pub(super) fn with_provider(url: &str) -> Vec<String> {
    vec![
        "payment.stripe.secret_key=sk_test_0123456789abcdef0123456789abcdef".to_owned(),
        format!("payment.stripe.webhook_secrets={STRIPE_SECRET}"),
        format!("payment.stripe.url={url}"),
        "public_url=https://sale.shop.example".to_owned(),
    ]
}

async fn asking(provider: &FakeProvider) -> (TestApp, Clock) {
    let settings = with_provider(&provider.clone().start().await);
    with_manual_clock(&settings.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// The buyer was sent to the provider.
pub(super) async fn started(app: &TestApp, order: OrderId, name: &str) -> PaymentId {
    let payment = PaymentId(rand::random::<u128>() >> 2);
    let wanted = NewPayment { id: payment, order, buyer: buyer(name), provider: "stripe".into() };
    let started = app.app.ledger.start_payment(wanted, app.app.clock.now()).await.unwrap();
    assert!(matches!(started, PaymentStarted::New { .. }), "{started:?}");
    let session = Some(session_of(payment));
    app.app.ledger.note_started(payment, session, "https://pay.example".into()).await.unwrap();
    payment
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_provider_says_not_paid_closes_there_too() {
    let provider = FakeProvider::saying(NOT_PAID);
    let (app, clock) = asking(&provider).await;
    let sale = app.open_sale(1).await;
    let order = bought(&app, &sale, "ann", 1).await;
    let payment = started(&app, order, "ann").await;
    clock.advance(PAY_WITHIN);
    until_state(&app, order, State::Closed).await;
    let state = app.app.ledger.payment(payment).await.unwrap().unwrap().status.state;
    assert_eq!(state, PaymentState::Closed);
    eventually("the provider is told", async || provider.closed.load(Ordering::Acquire) == 1).await;
    assert_eq!(app.app.metrics.inquiries.get(Inquiry::NotPaid), 1);
    assert_units_add_up(&app, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_provider_says_paid_waits_for_the_callback_and_is_then_paid_by_that_word() {
    let provider = FakeProvider::saying(PAID);
    let (app, clock) = asking(&provider).await;
    let sale = app.open_sale(3).await;
    // Its orders close a while before: then the sweeper has looked.
    let shorter = app.publish(paid_within(1, 800)).await;
    let (told, silent) = (bought(&app, &sale, "ann", 1).await, bought(&app, &sale, "bob", 1).await);
    started(&app, told, "ann").await;
    let payment = started(&app, silent, "bob").await;
    let nobody_pays = bought(&app, &sale, "cyd", 1).await;
    clock.advance(PAY_WITHIN);
    until_state(&app, nobody_pays, State::Closed).await;
    eventually("both are asked about", async || app.app.metrics.inquiries.get(Inquiry::Paid) == 2).await;
    assert!(matches!(pay(&app.app, told, "in time after all").await, Settled::Applied { .. }));
    let again = bought(&app, &shorter, "cyd", 1).await;
    clock.advance(Duration::from_secs(15 * 60) - Duration::from_millis(1));
    until_state(&app, again, State::Closed).await;
    assert_eq!(ledgers(&app.app, silent).await.status.state, State::AwaitingPayment);
    assert_eq!(app.app.metrics.money.get(MoneyOutcome::Unnotified), 0);
    clock.advance(Duration::from_millis(1));
    let paid = until_state(&app, silent, State::Paid).await;
    assert_eq!((paid.payment, paid.paid_at), (Some(payment), Some(clock.now())));
    assert_eq!(app.app.ledger.strikes_of(buyer("bob"), 10).await.unwrap(), []);
    assert_eq!(ledgers(&app.app, told).await.status.state, State::Paid);
    assert_eq!(app.app.metrics.inquiries.get(Inquiry::Paid), 2, "each was asked about once");
    assert_eq!(app.app.metrics.money.get(MoneyOutcome::Unnotified), 1, "somebody must look at the callbacks");

    // The callback comes after all.
    let (id, capture) = (payment.to_string(), capture_of(payment));
    assert_eq!(StandIn::tells_of_capture(&app, "evt_late", &id, &capture).await, 200);
    assert_eq!(app.app.metrics.money.get(MoneyOutcome::Duplicate), 1);
    let payments = app.app.ledger.payments_of(silent).await.unwrap();
    let states: Vec<_> = payments.iter().map(|payment| payment.status.state).collect();
    assert_eq!(states, [PaymentState::Applied]);
    assert_eq!(ledgers(&app.app, silent).await, paid);
    assert_units_add_up(&app, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_that_cannot_be_read_does_not_hold_up_the_others() {
    let provider = FakeProvider::saying(NOT_PAID);
    let (app, clock) = asking(&provider).await;
    let sale = app.open_sale(2).await;
    let (unreadable, sound) = (bought(&app, &sale, "ann", 1).await, bought(&app, &sale, "bob", 1).await);
    let payment = started(&app, unreadable, "ann").await;
    started(&app, sound, "bob").await;
    let file = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    let write = |currency: &str| {
        let sql = "update payments set currency = ?1 where payment_id = ?2";
        assert_eq!(file.execute(sql, rusqlite::params![currency, payment.to_bytes()]).unwrap(), 1);
    };
    write("?");
    clock.advance(PAY_WITHIN);
    until_state(&app, sound, State::Closed).await;
    assert_eq!(ledgers(&app.app, unreadable).await.status.state, State::AwaitingPayment);
    write("CNY");
    // It is found by the next look at everything, at the latest.
    until_state(&app, unreadable, State::Closed).await;
    assert_units_add_up(&app, &sale).await;
}

/// The provider does not answer at the deadline, and the order closes. When the payment is closed there, it turns out that
/// it was paid, and no callback ever tells.
#[tokio::test(flavor = "multi_thread")]
async fn money_that_is_found_when_its_payment_is_closed_is_not_forgotten() {
    let provider = FakeProvider::saying(ERROR);
    let (app, clock) = asking(&provider).await;
    let sale = app.open_sale(2).await;
    let (late, cancelled) = (bought(&app, &sale, "ann", 1).await, bought(&app, &sale, "bob", 1).await);
    let payment = started(&app, late, "ann").await;
    let other = started(&app, cancelled, "bob").await;
    app.app.cancel(cancelled, &buyer("bob")).await.unwrap();
    clock.advance(PAY_WITHIN);
    eventually("it is given up", async || app.app.metrics.inquiries.get(Inquiry::None) == 1).await;
    provider.says.store(PAID, Ordering::Release);
    clock.advance(Duration::from_secs(5));
    let paid = until_state(&app, late, State::Paid).await;
    assert_eq!(paid.payment, Some(payment));
    let strikes = app.app.ledger.strikes_of(buyer("ann"), 10).await.unwrap();
    assert!(strikes[0].strike.lifted_at.is_some(), "who has paid has no strike");
    eventually("the money of the cancelled order goes back", async || {
        let status = app.app.ledger.payment(other).await.unwrap().unwrap().status;
        status.reason == Some(RefundReason::OrderCancelled)
    })
    .await;
    assert_units_add_up(&app, &sale).await;
}

/// Payments that are closed here and perhaps not at their provider, whenever that is to be asked: how often it was.
async fn unclosed(app: &TestApp) -> Vec<u32> {
    let all = app.app.ledger.closings_due("stripe", UnixMs(i64::MAX), 1_000).await.unwrap();
    all.into_iter().map(|to_close| to_close.tries).collect()
}

/// An order is cancelled while its buyer is at a provider that is down. Until somebody is told otherwise, its payment may be
/// paid there.
async fn cancelled_while_down() -> (FakeProvider, TestApp, Clock, OrderId, PaymentId) {
    let provider = FakeProvider::saying(ERROR);
    let (app, clock) = asking(&provider).await;
    let sale = app.open_sale(1).await;
    let order = bought(&app, &sale, "ann", 1).await;
    let payment = started(&app, order, "ann").await;
    app.app.cancel(order, &buyer("ann")).await.unwrap();
    eventually("the provider is asked", async || unclosed(&app).await == [1]).await;
    (provider, app, clock, order, payment)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_is_closed_at_its_provider_however_long_that_is_down_and_after_a_restart() {
    let (provider, app, clock, _, payment) = cancelled_while_down().await;
    for tries in 2..=6 {
        clock.advance(Duration::from_secs(60));
        eventually("it is asked again", async || unclosed(&app).await == [tries]).await;
    }
    let url = app.app.settings.payment.stripe.url.clone();
    let folder = app.stop().await;
    provider.says.store(NOT_PAID, Ordering::Release);
    let settings = with_provider(&url);
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    clock.advance(Duration::from_secs(60));
    let app = TestApp::on(folder, clock, &settings).await;
    eventually("it is closed there", async || provider.closed.load(Ordering::Acquire) == 1).await;
    eventually("that is written down", async || unclosed(&app).await.is_empty()).await;
    let state = app.app.ledger.payment(payment).await.unwrap().unwrap().status.state;
    assert_eq!(state, PaymentState::Closed);
    assert_eq!(app.app.metrics.money.get(MoneyOutcome::NotClosed), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn money_that_is_on_its_way_when_its_payment_is_closed_is_waited_for() {
    let (provider, app, clock, order, payment) = cancelled_while_down().await;
    provider.says.store(PENDING, Ordering::Release);
    clock.advance(Duration::from_secs(60));
    eventually("it is asked again", async || unclosed(&app).await == [2]).await;
    provider.says.store(PAID, Ordering::Release);
    clock.advance(Duration::from_secs(60));
    eventually("the money goes back", async || {
        let found = app.app.ledger.payment(payment).await.unwrap().unwrap();
        found.status.reason == Some(RefundReason::OrderCancelled)
    })
    .await;
    assert_eq!(ledgers(&app.app, order).await.status.reason, Some(Reason::Cancelled));
    assert_eq!(unclosed(&app).await, [0_u32; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_that_cannot_be_closed_at_its_provider_is_an_alarm_after_a_day() {
    let (provider, app, clock, _, payment) = cancelled_while_down().await;
    for tries in 2..TRIES_MAX {
        clock.advance(Duration::from_secs(3_600));
        let found = app.app.ledger.payment(payment).await.unwrap();
        app.app.closings.wake_for(found.as_ref());
        eventually("it is asked again", async || unclosed(&app).await == [tries]).await;
    }
    assert_eq!(app.app.metrics.money.get(MoneyOutcome::NotClosed), 0);
    clock.advance(Duration::from_secs(3_600));
    eventually("it is given up", async || app.app.metrics.money.get(MoneyOutcome::NotClosed) == 1).await;
    assert_eq!(unclosed(&app).await, [0_u32; 0]);
    let problem = app.app.ledger.payment(payment).await.unwrap().unwrap().problem.unwrap();
    assert!(problem.starts_with("it could not be closed at its provider"), "{problem}");

    // Money that comes all the same is not lost.
    provider.says.store(PAID, Ordering::Release);
    let (id, capture) = (payment.to_string(), capture_of(payment));
    assert_eq!(StandIn::tells_of_capture(&app, "evt_late", &id, &capture).await, 200);
    let status = app.app.ledger.payment(payment).await.unwrap().unwrap().status;
    assert_eq!(status.reason, Some(RefundReason::OrderCancelled));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_provider_does_not_answer_closes_after_five_seconds() {
    let provider = FakeProvider::saying(ERROR);
    let (app, clock) = asking(&provider).await;
    let sale = app.open_sale(1).await;
    let order = bought(&app, &sale, "ann", 1).await;
    started(&app, order, "ann").await;
    clock.advance(PAY_WITHIN);
    eventually("it is given up", async || app.app.metrics.inquiries.get(Inquiry::None) == 1).await;
    assert!(provider.asked.load(Ordering::Acquire) > 1, "it was asked again while there was time");
    assert_eq!(ledgers(&app.app, order).await.status.state, State::AwaitingPayment, "by the ledger's clock");
    clock.advance(Duration::from_secs(5));
    until_state(&app, order, State::Closed).await;
    assert_units_add_up(&app, &sale).await;
}

mod heavy {
    use doorbuster::ledger::SqliteLedger;
    use doorbuster::queue::Claim;
    use rules::id::OfferId;

    use super::*;

    /// How fast it goes is measured by `cargo xtask bench --only timeouts`, with five times as many.
    const DUE_AT_ONCE: u32 = 20_000;
    const BATCH: u64 = 2_000;

    /// Much longer than it takes anywhere: a sweep that stands still fails here, and does not hang.
    const SWEPT_WITHIN: Duration = Duration::from_secs(90);

    /// Order and buyer of this number, as random as real ones are for the indexes.
    fn numbered(seq: u64) -> (OrderId, String) {
        let mixed = u128::from(seq).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        (OrderId(mixed), format!("{:016x}", mixed >> 64))
    }

    /// Puts so many recorded orders of different buyers into a stopped server's folder, all due at one moment.
    async fn fill(folder: &std::path::Path, offer: OfferId, now: UnixMs, orders: u64) {
        let ledger = SqliteLedger::open(&folder.join("doorbuster.db"), None, [0; 16]).unwrap();
        for first in (1..=orders).step_by(usize::try_from(BATCH).unwrap()) {
            let batch = (first..=orders.min(first + BATCH - 1)).map(|seq| {
                let (order, name) = numbered(seq);
                let claim = Claim {
                    order,
                    offer,
                    buyer: buyer(&name),
                    quantity: 1,
                    claimed_at: now,
                    pass_expires_at: now.plus_s(300),
                    revives: None,
                };
                (seq, Arc::new(claim))
            });
            ledger.record_orders(batch.collect(), now).await.unwrap();
        }
        ledger.close();
        // The journal ends where the ledger's clerk has read to.
        let journal = rusqlite::Connection::open(folder.join("journal.db")).unwrap();
        journal
            .execute(
                "insert into entries (last_seq, first_seq, claims) values (?1, ?1, x'01')",
                [i64::try_from(orders).unwrap()],
            )
            .unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn very_many_due_in_one_second_are_for_the_next_buyers() {
        let clock = Clock::manual(UnixMs(jiff::Timestamp::now().as_millisecond()));
        let app = TestApp::on(tempfile::tempdir().unwrap(), clock.clone(), &[]).await;
        let sale = app.open_sale(DUE_AT_ONCE).await;
        let other = app.open_sale(100_000).await;
        let folder = app.stop().await;
        fill(folder.path(), sale.offer().parse().unwrap(), clock.now(), DUE_AT_ONCE.into()).await;
        let app = TestApp::on(folder, clock.clone(), &[]).await;
        assert_eq!(free(&app.app, &sale), 0);

        clock.advance(PAY_WITHIN);
        let (mut bought, begun) = (0, std::time::Instant::now());
        while free(&app.app, &sale) < DUE_AT_ONCE {
            let back = free(&app.app, &sale);
            assert!(begun.elapsed() < SWEPT_WITHIN, "only {back} of {DUE_AT_ONCE} within {SWEPT_WITHIN:?}");
            let name = format!("buyer {bought}");
            let buyer = app.buyer(&name);
            buyer.buy_with(other.offer(), &buyer.mint(other.offer()), 1, 202).await;
            bought += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_units_add_up(&app, &sale).await;
        assert_eq!(app.app.metrics.releases.get(Letting::Timeout), u64::from(DUE_AT_ONCE));
    }

    /// More than are asked about at once.
    const PAID_AT_ONCE: u32 = 1_000;

    /// A provider that is down takes five seconds for each question: not everybody waits for a turn to ask it in vain.
    #[tokio::test(flavor = "multi_thread")]
    async fn with_a_provider_that_never_answers_all_orders_close_after_five_seconds() {
        let provider = FakeProvider::saying(NOTHING);
        let settings = with_provider(&provider.clone().start().await);
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        let clock = Clock::manual(UnixMs(jiff::Timestamp::now().as_millisecond()));
        let app = TestApp::on(tempfile::tempdir().unwrap(), clock.clone(), &settings).await;
        let sale = app.open_sale(PAID_AT_ONCE).await;
        let folder = app.stop().await;
        fill(folder.path(), sale.offer().parse().unwrap(), clock.now(), PAID_AT_ONCE.into()).await;
        let app = TestApp::on(folder, clock.clone(), &settings).await;
        for seq in 1..=u64::from(PAID_AT_ONCE) {
            let (order, name) = numbered(seq);
            started(&app, order, &name).await;
        }
        clock.advance(PAY_WITHIN);
        let all = u64::from(PAID_AT_ONCE);
        eventually("all are given up", async || app.app.metrics.inquiries.get(Inquiry::None) == all).await;
        let asked = provider.asked.load(Ordering::Acquire);
        assert!((16..=512).contains(&asked), "{asked} questions: the others had no hope of an answer");
        clock.advance(Duration::from_secs(5));
        eventually("all are closed", async || app.app.metrics.releases.get(Letting::Timeout) == all).await;
        assert_units_add_up(&app, &sale).await;
        eventually("they are closed there, too", async || provider.closed.load(Ordering::Acquire) == all)
            .await;
    }
}
