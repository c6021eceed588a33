//! Unpaid orders at their deadline: to the second, once, also after a restart, and by the provider's word.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::extract::State as Shared;
use axum::routing::get;
use doorbuster::clock::Clock;
use doorbuster::desk::CancelAnswer;
use doorbuster::ledger::money::{NewPayment, PaymentStarted, Settled};
use doorbuster::telemetry::metrics::{Inquiry, Letting};
use rules::id::{OrderId, PaymentId};
use rules::order::{Reason, State};
use rules::payment::{RefundReason, State as PaymentState};
use rules::time::UnixMs;
use serde_json::{Value, json};

use super::*;
use crate::app::{assert_code, with_manual_clock};

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

    assert_eq!(told().await, "open", "pages are not told what was counted before");
    bob.buy_with(sale.offer(), &bob.mint(sale.offer()), 1, 202).await;
    assert_code(&ann.buy(sale.offer(), 1, 409).await, "sold_out");
    assert_eq!(app.app.metrics.releases.get(Letting::Timeout), 2);
    assert_units_add_up(&app, &sale).await;
}

/// By the clock on the wall: the timer, not a look once in a while, ends it.
#[tokio::test(flavor = "multi_thread")]
async fn the_timer_wakes_for_the_next_order_that_is_due() {
    let app = TestApp::start().await;
    let sale = app.publish(paid_within(3, 2)).await;
    let order = bought(&app, &sale, "ann", 3).await;
    let closed = until_state(&app, order, State::Closed).await;
    let late_ms = closed.pay_by.unwrap().ms_until(closed.closed_at.unwrap());
    assert!(closed.closed_at >= closed.pay_by && late_ms < 3_000, "{late_ms} ms late");
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

/// Pay, cancel and deadline in the same instant, of many orders at once.
#[tokio::test(flavor = "multi_thread")]
async fn of_paying_cancelling_and_timing_out_at_the_same_instant_one_wins_and_the_others_are_told() {
    const ORDERS: u32 = 40;
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.open_sale(ORDERS).await;
    let mut orders = Vec::new();
    for number in 0..ORDERS {
        orders.push((bought(&app, &sale, &format!("buyer {number}"), 1).await, number));
    }
    let shorter = app.publish(paid_within(1, 899)).await;
    let awake = bought(&app, &shorter, "somebody", 1).await;
    clock.advance(PAY_WITHIN - Duration::from_millis(1));
    // The sweeper is awake, and knows that the others are due in a moment.
    until_state(&app, awake, State::Closed).await;
    let mut races = tokio::task::JoinSet::new();
    for (order, number) in orders {
        let server = Arc::clone(&app.app);
        races.spawn(async move {
            let name = buyer(&format!("buyer {number}"));
            // Some pay first, some cancel first; to most of the last ones the sweeper comes first.
            let wave = number / 10 * 100;
            let later = |ms: u32| tokio::time::sleep(Duration::from_millis((wave + ms).into()));
            let capture = format!("capture {number}");
            let (cancelled, settled) = tokio::join!(
                async {
                    later(number % 3 * 2).await;
                    server.cancel(order, &name).await
                },
                async {
                    later(number % 5 * 3).await;
                    pay(&server, order, &capture).await
                }
            );
            (order, cancelled.unwrap(), settled)
        });
    }
    clock.advance(Duration::from_millis(1));
    let (mut ends, mut revived) = ([0_u32; 2], 0);
    for (order, cancelled, settled) in races.join_all().await {
        if let Settled::ReviveNeeded { payment, order } = &settled {
            revived += 1;
            app.app.revive(order, *payment).await;
        }
        eventually("the money is decided", async || {
            let payments = app.app.ledger.payments_of(order).await.unwrap();
            payments.iter().all(|payment| payment.status.state != PaymentState::Captured)
        })
        .await;
        let end = ledgers(&app.app, order).await.status;
        match (end.state, end.reason) {
            (State::Paid, None) => {
                let told = matches!(cancelled, CancelAnswer::NotCancellable(_) | CancelAnswer::NotYet);
                assert!(told, "{cancelled:?}");
                assert!(
                    matches!(settled, Settled::Applied { .. } | Settled::ReviveNeeded { .. }),
                    "{settled:?}"
                );
                ends[0] += 1;
            }
            (State::Closed, Some(Reason::Cancelled)) => {
                assert!(matches!(cancelled, CancelAnswer::Closed(_)), "{cancelled:?}");
                let reason = RefundReason::OrderCancelled;
                assert!(
                    matches!(settled, Settled::RefundDue { reason: found, .. } if found == reason),
                    "{settled:?}"
                );
                ends[1] += 1;
            }
            other => panic!("{other:?} {cancelled:?} {settled:?}"),
        }
    }
    println!("{} paid, {revived} of them late, {} cancelled", ends[0], ends[1]);
    assert_eq!(ends[0] + ends[1], ORDERS);
    assert_units_add_up(&app, &sale).await;
    assert_eq!(free(&app.app, &sale), ends[1]);
}

/// A provider that can be asked: it answers what it is told to.
#[derive(Clone, Default)]
struct FakeProvider {
    /// 0: no answer that can be used. 1: paid. 2: not paid.
    says: Arc<AtomicU64>,
    asked: Arc<AtomicU64>,
    closed: Arc<AtomicU64>,
}

impl FakeProvider {
    async fn start(self) -> String {
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

async fn answer(Shared(provider): Shared<FakeProvider>) -> (http::StatusCode, axum::Json<Value>) {
    provider.asked.fetch_add(1, Ordering::AcqRel);
    let session = |status: &str, payment_status: &str| {
        let body = json!({
            "id": "cs_test_1", "status": status, "payment_status": payment_status, "payment_intent": "pi_1",
            "amount_total": 149_900, "currency": "cny", "client_reference_id": "some payment",
        });
        (http::StatusCode::OK, axum::Json(body))
    };
    match provider.says.load(Ordering::Acquire) {
        1 => session("complete", "paid"),
        2 => session("open", "unpaid"),
        _ => (http::StatusCode::SERVICE_UNAVAILABLE, axum::Json(json!({"error": {}}))),
    }
}

async fn expire(Shared(provider): Shared<FakeProvider>) -> axum::Json<Value> {
    provider.closed.fetch_add(1, Ordering::AcqRel);
    axum::Json(json!({"id": "cs_test_1", "status": "expired"}))
}

async fn asking(provider: &FakeProvider) -> (TestApp, Clock) {
    let url = provider.clone().start().await;
    with_manual_clock(&[
        "payment.stripe.secret_key=sk_test_0123456789abcdef0123456789abcdef",
        "payment.stripe.webhook_secrets=whsec_0123456789abcdef0123456789abcdef",
        &format!("payment.stripe.url={url}"),
        "public_url=https://sale.shop.example",
    ])
    .await
}

/// The buyer was sent to the provider.
async fn started(app: &TestApp, order: OrderId, name: &str) -> PaymentId {
    let payment = PaymentId(rand::random::<u128>() >> 2);
    let wanted = NewPayment { id: payment, order, buyer: buyer(name), provider: "stripe".into() };
    let started = app.app.ledger.start_payment(wanted, app.app.clock.now()).await.unwrap();
    assert!(matches!(started, PaymentStarted::New { .. }), "{started:?}");
    app.app
        .ledger
        .note_started(payment, Some("cs_test_1".into()), "https://pay.example".into())
        .await
        .unwrap();
    payment
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_provider_says_not_paid_closes_there_too() {
    let provider = FakeProvider::default();
    provider.says.store(2, Ordering::Release);
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
async fn an_order_whose_provider_says_paid_waits_for_the_callback_but_not_for_ever() {
    let provider = FakeProvider::default();
    provider.says.store(1, Ordering::Release);
    let (app, clock) = asking(&provider).await;
    let sale = app.open_sale(3).await;
    // Its orders close a while before: then the sweeper has looked.
    let shorter = app.publish(paid_within(1, 800)).await;
    let (told, silent) = (bought(&app, &sale, "ann", 1).await, bought(&app, &sale, "bob", 1).await);
    started(&app, told, "ann").await;
    started(&app, silent, "bob").await;
    let nobody_pays = bought(&app, &sale, "cyd", 1).await;
    clock.advance(PAY_WITHIN);
    until_state(&app, nobody_pays, State::Closed).await;
    eventually("both are asked about", async || app.app.metrics.inquiries.get(Inquiry::Paid) == 2).await;
    assert!(matches!(pay(&app.app, told, "in time after all").await, Settled::Applied { .. }));
    let again = bought(&app, &shorter, "cyd", 1).await;
    clock.advance(Duration::from_secs(15 * 60) - Duration::from_millis(1));
    until_state(&app, again, State::Closed).await;
    assert_eq!(ledgers(&app.app, silent).await.status.state, State::AwaitingPayment);
    clock.advance(Duration::from_millis(1));
    let closed = until_state(&app, silent, State::Closed).await;
    assert_eq!(closed.status.reason, Some(Reason::Timeout));
    assert_eq!(ledgers(&app.app, told).await.status.state, State::Paid);
    assert_eq!(provider.asked.load(Ordering::Acquire), 2, "each was asked about once");
    assert_units_add_up(&app, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_provider_does_not_answer_closes_after_five_seconds() {
    let provider = FakeProvider::default();
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

    /// Puts so many recorded orders of different buyers into a stopped server's folder, all due at one moment.
    async fn fill(folder: &std::path::Path, offer: OfferId, now: UnixMs) {
        let ledger = SqliteLedger::open(&folder.join("doorbuster.db"), None, [0; 16]).unwrap();
        for first in (1..=u64::from(DUE_AT_ONCE)).step_by(usize::try_from(BATCH).unwrap()) {
            let batch = (first..first + BATCH).map(|seq| {
                let mixed = u128::from(seq).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
                let claim = Claim {
                    order: OrderId(mixed),
                    offer,
                    buyer: buyer(&format!("{:016x}", mixed >> 64)),
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
                [i64::from(DUE_AT_ONCE)],
            )
            .unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn very_many_due_in_one_second_are_for_the_next_buyers() {
        let clock = Clock::manual(UnixMs(jiff::Timestamp::now().as_millisecond()));
        let app = TestApp::on(tempfile::tempdir().unwrap(), clock.clone(), &[]).await;
        let sale = app.open_sale(DUE_AT_ONCE).await;
        let other = app.open_sale(1_000).await;
        let folder = app.stop().await;
        fill(folder.path(), sale.offer().parse().unwrap(), clock.now()).await;
        let app = TestApp::on(folder, clock.clone(), &[]).await;
        assert_eq!(free(&app.app, &sale), 0);

        clock.advance(PAY_WITHIN);
        let mut bought = 0;
        while free(&app.app, &sale) < DUE_AT_ONCE {
            let name = format!("buyer {bought}");
            let buyer = app.buyer(&name);
            buyer.buy_with(other.offer(), &buyer.mint(other.offer()), 1, 202).await;
            bought += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_units_add_up(&app, &sale).await;
        assert_eq!(app.app.metrics.releases.get(Letting::Timeout), u64::from(DUE_AT_ONCE));
    }
}
