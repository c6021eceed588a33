//! Money on its way back: by itself, by the operator, past a provider that fails first, and to an alarm when it does not
//! stop failing.

use std::time::Duration;

use doorbuster::clock::Clock;
use doorbuster::payment::port::Name;
use doorbuster::payment::refunds::{ATTEMPTS_MAX, BATCH, WAIT_MAX_MS, return_what_is_due};
use doorbuster::telemetry::metrics::MoneyOutcome;
use rules::payment::REFUND_SLOW_MS;
use serde_json::json;

use super::*;
use crate::app::{ADMIN_KEY, assert_code};

/// The longest wait between two attempts.
const LONGEST: Duration = Duration::from_millis(WAIT_MAX_MS.unsigned_abs());

async fn refund(app: &TestApp, order: &str, body: Option<&Value>, status: u16) -> Value {
    app.operate("POST", &format!("/admin/v1/orders/{order}/refund"), body, status).await
}

/// A paid order of this buyer at the sandbox.
async fn paid(buyer: &TestBuyer<'_>, sale: &TestSale) -> String {
    let id = won(buyer, sale).await;
    let payment = payment(buyer, &id).await;
    act(buyer.app, &payment, &json!({"outcome": "paid"}), 200).await;
    becomes(buyer, &id, "paid").await;
    id
}

/// A paid order at Stripe's stand-in, on a clock that can be turned.
async fn paid_at_stripe(stand_in: &StandIn) -> (TestApp, Clock, TestSale, String) {
    let clock = Clock::manual(UnixMs(jiff::Timestamp::now().as_millisecond()));
    let settings = stand_in.settings();
    let overrides: Vec<&str> = settings.iter().map(String::as_str).collect();
    let app = TestApp::on(tempfile::tempdir().unwrap(), clock.clone(), &overrides).await;
    let sale = app.open_sale(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = start(&ann, &id, "stripe", 200).await["payment_id"].as_str().unwrap().to_owned();
    assert_eq!(StandIn::tells_of_capture(&app, "evt_1", &payment, "pi_1").await, 200);
    becomes(&ann, &id, "paid").await;
    drop(ann);
    (app, clock, sale, id)
}

/// The keys of all refunds that were asked for.
fn keys(stripe: &StandIn) -> Vec<String> {
    stripe.asked("/v1/refunds").iter().filter_map(Asked::idempotency_key).collect()
}

/// Stripe tells of our refund of the only payment, by its number.
async fn tell_of_refund(app: &TestApp, event: &str, number: &str, status: &str) -> u16 {
    let mut object = super::refund(status);
    let payment = &app.operate("GET", "/admin/v1/payments", None, 200).await["items"][0];
    object["metadata"] = json!({
        "doorbuster_shop": shop_of(app), "doorbuster_payment": payment["id"], "doorbuster_refund": number,
    });
    StandIn::tells(app, event, "refund.updated", &object).await
}

/// How many events of this type were written.
fn events(app: &TestApp, kind: &str) -> u32 {
    let ledger = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    ledger.query_row("select count(*) from events where type = ?1", [kind], |row| row.get(0)).unwrap()
}

/// The payment, as the operator sees it.
async fn only_payment(app: &TestApp) -> Value {
    app.operate("GET", "/admin/v1/payments", None, 200).await["items"][0].clone()
}

async fn retry(app: &TestApp) -> Value {
    let payment = only_payment(app).await;
    let path = format!("/admin/v1/payments/{}/retry", payment["id"].as_str().unwrap());
    app.operate("POST", &path, None, 200).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_refunds_a_paid_order_and_its_unit_is_sold_again() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = paid(&ann, &sale).await;
    let asked = refund(&app, &id, None, 200).await;
    assert_eq!((asked["state"].as_str(), asked["buyer"].as_str()), (Some("refunding"), Some("ann")));
    let back = becomes(&ann, &id, "refunded").await;
    assert!(!back["refunded_at"].is_null() && !back["paid_at"].is_null());
    assert_eq!(states(&app, &id).await, [super::back("requested")]);
    eventually("the unit is back", async || units(&app, &sale).await == [1, 1, 0, 0]).await;
    let again = refund(&app, &id, Some(&json!({})), 200).await;
    assert_eq!(again["state"], "refunded", "again is harmless");
    won(&app.buyer("bob"), &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_restock_the_stock_is_lowered() {
    let (app, sale) = shop(2).await;
    let ann = app.buyer("ann");
    let id = paid(&ann, &sale).await;
    refund(&app, &id, Some(&json!({"restock": false})), 200).await;
    becomes(&ann, &id, "refunded").await;
    eventually("one unit less", async || units(&app, &sale).await == [1, 1, 0, 0]).await;
    won(&app.buyer("bob"), &sale).await;
    let pass = app.buyer("cat").pass(sale.offer()).await;
    app.buyer("cat").buy_with(sale.offer(), pass["pass"].as_str().unwrap(), 1, 409).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_refunded_is_told_why() {
    let (app, sale) = shop(2).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let refused = refund(&app, &id, None, 409).await;
    assert_code(&refused, "not_refundable");
    assert!(refused["detail"].as_str().unwrap().contains("awaiting_payment"), "{refused}");
    refund(&app, "01k9zq3v8g7m4x2r5w6t0n1pbc", None, 404).await;
    assert_eq!(refund(&app, &id, Some(&json!({"restock": "yes"})), 422).await["field"], "restock");
    let request = app.client.post(app.url(&format!("/admin/v1/orders/{id}/refund"))).bearer_auth(ADMIN_KEY);
    assert_eq!(app.send(request.header("content-type", "text/plain").body("{}")).await.0, 415);
    let payment = payment(&ann, &id).await;
    let retry = format!("/admin/v1/payments/{payment}/retry");
    assert_code(&app.operate("POST", &retry, None, 409).await, "not_refundable");
    app.operate("POST", "/admin/v1/payments/01k9zq3v8g7m4x2r5w6t0n1pbc/retry", None, 404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_makes_a_repeated_refund_the_same_request() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = paid(&ann, &sale).await;
    let ask = || {
        let request =
            app.client.post(app.url(&format!("/admin/v1/orders/{id}/refund"))).bearer_auth(ADMIN_KEY);
        request.header("idempotency-key", "one").json(&json!({"restock": true}))
    };
    let (status, _, first) = app.send(ask()).await;
    assert_eq!((status, first["state"].as_str()), (200, Some("refunding")));
    becomes(&ann, &id, "refunded").await;
    let (status, _, again) = app.send(ask()).await;
    assert_eq!((status, again), (200, first));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_fails_first_is_asked_again_with_the_same_key() {
    let stripe = StandIn::willing().await;
    let (app, clock, sale, id) = paid_at_stripe(&stripe).await;
    let mut failures = 3;
    stripe.becomes(move |asked| {
        failures -= i32::from(asked.path == "/v1/refunds");
        if failures >= 0 { (503, json!({"error": {"type": "api_error"}})) } else { willing(asked) }
    });
    refund(&app, &id, None, 200).await;
    for attempts in 1..=4 {
        eventually("it was asked", async || stripe.asked("/v1/refunds").len() == attempts).await;
        clock.advance(LONGEST);
    }
    let ann = app.buyer("ann");
    becomes(&ann, &id, "refunded").await;
    let keys = keys(&stripe);
    assert!(keys.len() == 4 && keys.iter().all(|key| *key == keys[0]), "{keys:?}");
    assert!(stripe.asked("/v1/refunds")[0].body.contains("payment_intent=pi_1"));
    let payment = &payments(&app, &id).await[0];
    assert_eq!((payment["attempts"].as_u64(), &payment["problem"]), (Some(4), &Value::Null));
    assert_eq!(app.app.metrics.money.get(MoneyOutcome::RefundRetried), 3);
    eventually("the unit is back", async || units(&app, &sale).await == [1, 1, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_keeps_failing_is_an_alarm_and_the_operator_tries_again() {
    let stripe = StandIn::willing().await;
    let (app, clock, sale, id) = paid_at_stripe(&stripe).await;
    stripe.becomes(|asked| match asked.path.as_str() {
        "/v1/refunds" => (400, json!({"error": {"code": "balance_insufficient", "message": "no money"}})),
        _ => willing(asked),
    });
    refund(&app, &id, None, 200).await;
    for attempts in 1..=usize::try_from(ATTEMPTS_MAX).unwrap() {
        eventually("it was asked", async || stripe.asked("/v1/refunds").len() == attempts).await;
        clock.advance(LONGEST);
    }
    let ann = app.buyer("ann");
    becomes(&ann, &id, "refund_failed").await;
    // Counted once it is recorded.
    eventually("it is counted", async || app.app.metrics.money.get(MoneyOutcome::RefundFailed) == 1).await;
    assert_eq!(units(&app, &sale).await, [1, 0, 0, 1], "the order keeps its unit");
    let failed = app.operate("GET", "/admin/v1/payments?state=refund_failed", None, 200).await;
    let failed = &failed["items"][0];
    assert!(failed["problem"].as_str().unwrap().contains("balance_insufficient"), "{failed}");
    assert_eq!(events(&app, "order.refund_failed"), 1);
    let mut refused = keys(&stripe);
    refused.dedup();
    assert_eq!(refused.len(), usize::try_from(ATTEMPTS_MAX).unwrap(), "Stripe keeps what it said to a key");

    // The account is filled.
    stripe.becomes(willing);
    let path = format!("/admin/v1/payments/{}/retry", failed["id"].as_str().unwrap());
    assert_eq!(app.operate("POST", &path, None, 200).await["state"], "refunding");
    becomes(&ann, &id, "refunded").await;
    assert_eq!(app.operate("POST", &path, None, 200).await["state"], "refunded", "again is harmless");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_is_asked_for_again_keeps_to_what_was_said_of_its_units() {
    let stripe = StandIn::willing().await;
    let (app, _, sale, id) = paid_at_stripe(&stripe).await;
    stripe.becomes(|asked| match asked.path.as_str() {
        "/v1/refunds" => (200, super::refund("failed")),
        _ => willing(asked),
    });
    refund(&app, &id, Some(&json!({"restock": false})), 200).await;
    becomes(&app.buyer("ann"), &id, "refund_failed").await;
    stripe.becomes(willing);
    refund(&app, &id, None, 200).await;
    becomes(&app.buyer("ann"), &id, "refunded").await;
    eventually("the unit has left the stock", async || units(&app, &sale).await == [0, 0, 0, 0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_the_provider_calls_failed_is_not_repeated() {
    let stripe = StandIn::willing().await;
    let (app, _, _, id) = paid_at_stripe(&stripe).await;
    stripe.becomes(|asked| match asked.path.as_str() {
        "/v1/refunds" => (200, super::refund("failed")),
        _ => willing(asked),
    });
    refund(&app, &id, None, 200).await;
    let ann = app.buyer("ann");
    becomes(&ann, &id, "refund_failed").await;
    assert_eq!(stripe.asked("/v1/refunds").len(), 1);

    stripe.becomes(willing);
    refund(&app, &id, None, 200).await;
    becomes(&ann, &id, "refunded").await;
    let keys = keys(&stripe);
    assert!(keys.len() == 2 && keys[0] != keys[1], "another refund: {keys:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_stripe_has_kept_ends_no_refund_and_keeps_its_key() {
    let stripe = StandIn::willing().await;
    let (app, clock, _, id) = paid_at_stripe(&stripe).await;
    stripe.becomes(|asked| match asked.path.as_str() {
        "/v1/refunds" => (500, json!({"error": {"type": "api_error"}})),
        _ => willing(asked),
    });
    refund(&app, &id, None, 200).await;
    let most = usize::try_from(ATTEMPTS_MAX).unwrap();
    for attempts in 1..=most {
        eventually("it was asked", async || stripe.asked("/v1/refunds").len() == attempts).await;
        stripe.becomes(willing);
        clock.advance(LONGEST);
    }
    let ann = app.buyer("ann");
    becomes(&ann, &id, "refund_failed").await;
    stripe.forgets_keys();
    retry(&app).await;
    becomes(&ann, &id, "refunded").await;
    let keys = keys(&stripe);
    assert!(
        keys.len() == most + 1 && keys.iter().all(|key| *key == keys[0]),
        "it may have happened: {keys:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_stripe_has_named_is_asked_about_and_not_asked_for_again() {
    let stripe = StandIn::willing().await;
    let (app, clock, _, id) = paid_at_stripe(&stripe).await;
    stripe.becomes(|asked| match asked.path.as_str() {
        "/v1/refunds" | "/v1/refunds/re_1" => (200, super::refund("pending")),
        _ => willing(asked),
    });
    refund(&app, &id, None, 200).await;
    for attempts in 1..=3 {
        eventually("it was asked about", async || stripe.asked("/v1/refunds/re_1").len() == attempts).await;
        clock.advance(LONGEST);
    }
    stripe.becomes(willing);
    clock.advance(LONGEST);
    becomes(&app.buyer("ann"), &id, "refunded").await;
    assert_eq!(stripe.asked("/v1/refunds").len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_told_late_of_an_earlier_refund_does_not_touch_the_present_one() {
    let stripe = StandIn::willing().await;
    let (app, _, sale, id) = paid_at_stripe(&stripe).await;
    stripe.becomes(|asked| match asked.path.as_str() {
        "/v1/refunds" => (200, super::refund("failed")),
        _ => willing(asked),
    });
    refund(&app, &id, None, 200).await;
    let ann = app.buyer("ann");
    becomes(&ann, &id, "refund_failed").await;
    stripe.becomes(|asked| match asked.path.as_str() {
        "/v1/refunds" | "/v1/refunds/re_1" => (200, super::refund("pending")),
        _ => willing(asked),
    });
    retry(&app).await;
    eventually("it was asked for", async || stripe.asked("/v1/refunds").len() == 2).await;
    let first = only_payment(&app).await["id"].as_str().unwrap().to_owned();
    assert_eq!(tell_of_refund(&app, "evt_late", &first, "failed").await, 200);
    assert_eq!(order(&ann, &id).await["state"], "refunding", "that one is known to have failed");
    assert_eq!(tell_of_refund(&app, "evt_now", &format!("{first}-1"), "succeeded").await, 200);
    becomes(&ann, &id, "refunded").await;
    assert_eq!(tell_of_refund(&app, "evt_later", &first, "failed").await, 200);
    assert_eq!(states(&app, &id).await, [super::back("requested")]);
    eventually("the unit is back", async || units(&app, &sale).await == [1, 1, 0, 0]).await;
    assert_eq!(app.app.metrics.money.get(MoneyOutcome::Unasked), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn money_that_a_bank_sends_back_is_an_alarm_and_goes_back_once_more() {
    let stripe = StandIn::willing().await;
    let (app, _, sale, id) = paid_at_stripe(&stripe).await;
    refund(&app, &id, None, 200).await;
    let ann = app.buyer("ann");
    becomes(&ann, &id, "refunded").await;
    let number = only_payment(&app).await["id"].as_str().unwrap().to_owned();
    assert_eq!(tell_of_refund(&app, "evt_back", &number, "failed").await, 200);
    assert_eq!(only_payment(&app).await["state"], "refund_failed");
    assert_eq!(app.app.metrics.money.get(MoneyOutcome::RefundFailed), 1);
    assert_eq!(events(&app, "payment.refund_failed"), 1);
    assert_eq!(order(&ann, &id).await["state"], "refunded", "its unit may be sold again");
    eventually("the unit is back", async || units(&app, &sale).await == [1, 1, 0, 0]).await;
    assert_eq!(retry(&app).await["state"], "refunding");
    eventually("it is back", async || only_payment(&app).await["state"] == "refunded").await;
    let keys = keys(&stripe);
    assert!(keys.len() == 2 && keys[0] != keys[1], "{keys:?}");
    assert_eq!((units(&app, &sale).await, events(&app, "order.refunded")), ([1, 1, 0, 0], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_is_pending_for_days_is_an_alarm_once() {
    let stripe = StandIn::willing().await;
    let (app, clock, _, id) = paid_at_stripe(&stripe).await;
    stripe.becomes(|asked| match asked.path.as_str() {
        "/v1/refunds" | "/v1/refunds/re_1" => (200, super::refund("pending")),
        _ => willing(asked),
    });
    refund(&app, &id, None, 200).await;
    let slow = || app.app.metrics.money.get(MoneyOutcome::RefundSlow);
    let asked = async |times: usize| {
        eventually("it was asked about", async || stripe.asked("/v1/refunds/re_1").len() >= times).await;
    };
    asked(1).await;
    clock.advance(LONGEST);
    asked(2).await;
    assert_eq!(slow(), 0);
    clock.advance(Duration::from_millis(REFUND_SLOW_MS.unsigned_abs()));
    eventually("somebody is told", async || slow() == 1).await;
    for _ in 0..2 {
        let before = stripe.asked("/v1/refunds/re_1").len();
        clock.advance(LONGEST);
        asked(before + 1).await;
    }
    assert_eq!((slow(), events(&app, "payment.refund_slow")), (1, 1));
    assert_eq!(only_payment(&app).await["state"], "refunding");
}

/// So many captures of this provider that must go back.
fn plant_due(hand: &rusqlite::Connection, provider: &str, count: u32) {
    for at in 0..count {
        hand.execute(
            "insert into payments (payment_id, provider, reference, capture_id, state, reason, amount, currency,
                 started_at, captured_at, refund_key, next_try_at)
             values (randomblob(16), ?1, ?2, ?2, 'refund_due', 'order_unknown', 1, 'CNY', 1, 1, ?2, 1)",
            [provider, &format!("{provider} {at}")],
        )
        .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_is_silent_holds_up_no_refund_at_another_one() {
    let stripe = StandIn { address: super::starting::silent().await, ..StandIn::willing().await };
    let settings = stripe.settings();
    let mut overrides: Vec<&str> = settings.iter().map(String::as_str).collect();
    overrides.push(SANDBOX);
    let app = TestApp::with(&overrides).await;
    let hand = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    // One batch takes longer at the silent one than anybody waits here.
    plant_due(&hand, "stripe", BATCH);
    let asked = "select count(*) from payments where provider = 'stripe' and state = 'refunding'";
    let count = || hand.query_row(asked, [], |row| row.get::<_, u32>(0)).unwrap();
    eventually("the silent one is asked", async || count() > 0).await;
    plant_due(&hand, "sandbox", 1);
    eventually("the other one has returned its money", async || {
        app.app.metrics.money.get(MoneyOutcome::Refunded) == 1
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn payments_that_cannot_be_read_hold_up_no_refund_and_hide_none_from_the_operator() {
    let app = TestApp::with(&[SANDBOX]).await;
    let hand = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    hand.execute_batch("begin").unwrap();
    plant_due(&hand, "sandbox", BATCH);
    hand.execute("update payments set currency = '?'", []).unwrap();
    hand.execute_batch("commit").unwrap();
    plant_due(&hand, "stripe", 1);
    hand.execute("update payments set provider = 'sandbox' where provider = 'stripe'", []).unwrap();
    eventually("what can be read is back", async || app.app.metrics.money.get(MoneyOutcome::Refunded) == 1)
        .await;
    let page = app.operate("GET", "/admin/v1/payments?limit=1", None, 200).await;
    assert_eq!(page["items"][0]["reference"], "stripe 0", "{page}");
    let cursor = page["next_cursor"].as_str().unwrap();
    let rest = app.operate("GET", &format!("/admin/v1/payments?limit=1&cursor={cursor}"), None, 200).await;
    assert_eq!((&rest["items"], &rest["next_cursor"]), (&json!([]), &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_nothing_can_be_written_refunds_wait_for_their_time() {
    let app = TestApp::with(&[SANDBOX]).await;
    let hand = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    hand.execute_batch(
        "create trigger full before update on payments begin select raise(abort, 'the disk is full'); end;",
    )
    .unwrap();
    plant_due(&hand, "sandbox", BATCH);
    assert!(
        !return_what_is_due(&app.app, Name::Sandbox).await.unwrap(),
        "the same would be due at once, again and again"
    );
    hand.execute_batch("drop trigger full").unwrap();
    eventually("all is back", async || app.app.metrics.money.get(MoneyOutcome::Refunded) == u64::from(BATCH))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_is_told_before_its_money_is_to_be_told_again() {
    let stripe = StandIn::willing().await;
    let settings = stripe.settings();
    let app = TestApp::with(&settings.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let sale = app.open_sale(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = start(&ann, &id, "stripe", 200).await["payment_id"].as_str().unwrap().to_owned();
    let charge = json!({
        "amount_refunded": PRICE, "currency": "cny", "payment_intent": "pi_1",
        "metadata": {"doorbuster_shop": shop_of(&app), "doorbuster_payment": payment},
    });
    let (headers, body) = StandIn::event("evt_back", "charge.refunded", &charge, app.app.clock.now());
    let (status, problem) = deliver(&app, "stripe", headers.clone(), body.clone()).await;
    assert_eq!(status, 503, "{problem}");
    assert_code(&problem, "busy");
    assert_eq!(StandIn::tells_of_capture(&app, "evt_paid", &payment, "pi_1").await, 200);
    becomes(&ann, &id, "paid").await;
    assert_eq!(deliver(&app, "stripe", headers, body).await.0, 200);
    assert_eq!(app.app.metrics.money.get(MoneyOutcome::Unasked), 1, "somebody is told that it went back");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_money_of_another_shop_on_the_same_account_is_left_alone() {
    let stripe = StandIn::willing().await;
    let (app, ..) = paid_at_stripe(&stripe).await;
    let another = "00112233445566778899aabbccddeeff";
    assert_ne!(shop_of(&app), another);
    let theirs = json!({"doorbuster_shop": another, "doorbuster_payment": "01k9zq3v8g7m4x2r5w6t0n1pbc"});
    let capture = json!({
        "id": "pi_theirs", "amount_received": PRICE, "currency": "cny", "status": "succeeded", "metadata": theirs,
    });
    assert_eq!(StandIn::tells(&app, "evt_theirs", "payment_intent.succeeded", &capture).await, 200);
    let mut refund = super::refund("failed");
    (refund["payment_intent"], refund["metadata"]) = (json!("pi_theirs"), theirs.clone());
    assert_eq!(StandIn::tells(&app, "evt_theirs_back", "refund.failed", &refund).await, 200);
    let payments = app.operate("GET", "/admin/v1/payments", None, 200).await;
    let captures: Vec<_> = payments["items"].as_array().unwrap().iter().map(|it| &it["capture_id"]).collect();
    assert_eq!(captures, ["pi_1"], "only ours is written down");
    assert_eq!(app.app.ledger.refunds_due("stripe", UnixMs(i64::MAX), 10).await.unwrap(), []);
    assert_eq!(stripe.asked("/v1/refunds").len(), 0);
    assert_eq!(app.app.metrics.money.get(MoneyOutcome::Unasked), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pending_refund_is_waited_for_and_its_notification_ends_it() {
    let stripe = StandIn::willing().await;
    let (app, _, sale, id) = paid_at_stripe(&stripe).await;
    stripe.becomes(|asked| match asked.path.as_str() {
        "/v1/refunds" | "/v1/refunds/re_1" => (200, super::refund("pending")),
        _ => willing(asked),
    });
    refund(&app, &id, None, 200).await;
    eventually("it was asked for", async || stripe.asked("/v1/refunds/re_1").len() == 1).await;
    let ann = app.buyer("ann");
    assert_eq!(order(&ann, &id).await["state"], "refunding");

    let tell = async |event: &str, amount: i64| {
        let object = json!({"amount_refunded": amount, "currency": "cny", "payment_intent": "pi_1"});
        let (headers, body) = StandIn::event(event, "charge.refunded", &object, app.app.clock.now());
        assert_eq!(deliver(&app, "stripe", headers, body).await.0, 200);
    };
    tell("evt_part", PRICE - 1).await;
    assert_eq!(order(&ann, &id).await["state"], "refunding", "a part is not all of it");
    tell("evt_all", PRICE).await;
    becomes(&ann, &id, "refunded").await;
    tell("evt_all", PRICE).await;
    tell("evt_all_again", PRICE).await;
    assert_eq!(units(&app, &sale).await, [1, 1, 0, 0], "it came back once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_that_is_made_elsewhere_is_told_and_the_shop_decides_about_the_order() {
    let stripe = StandIn::willing().await;
    let (app, _, sale, id) = paid_at_stripe(&stripe).await;
    let tell = async |event: &str, amount: i64| {
        let object = json!({"amount_refunded": amount, "currency": "cny", "payment_intent": "pi_1"});
        assert_eq!(StandIn::tells(&app, event, "charge.refunded", &object).await, 200);
    };
    let told =
        || (events(&app, "payment.refunded_elsewhere"), app.app.metrics.money.get(MoneyOutcome::Unasked));
    tell("evt_part", PRICE - 1).await;
    assert_eq!(told(), (1, 1));
    let part = json!({"amount": PRICE - 1, "currency": "CNY"});
    assert_eq!(only_payment(&app).await["back_elsewhere"], part);
    assert_eq!(app.audited(&json!({})).await["clean"], true, "a part may be meant so");
    tell("evt_all", PRICE).await;
    tell("evt_all", PRICE).await;
    assert_eq!(told(), (2, 2));
    assert_eq!(order(&app.buyer("ann"), &id).await["state"], "paid", "the shop decides");
    assert_eq!(units(&app, &sale).await, [1, 0, 0, 1]);
    let findings = app.audited(&json!({})).await["findings"].clone();
    assert_eq!(findings[0]["kind"], "refunded_elsewhere", "{findings}");
    assert_eq!(findings[0]["evidence"]["order_id"], json!(id));

    refund(&app, &id, None, 200).await;
    becomes(&app.buyer("ann"), &id, "refunded").await;
    assert_eq!(stripe.asked("/v1/refunds").len(), 0, "it is back already");
    eventually("the unit is back", async || units(&app, &sale).await == [1, 1, 0, 0]).await;
    assert_eq!(app.audited(&json!({})).await["clean"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn payments_are_listed_in_pages() {
    let (app, sale) = shop(5).await;
    for name in ["ann", "bob", "cat"] {
        paid(&app.buyer(name), &sale).await;
    }
    let first = app.operate("GET", "/admin/v1/payments?limit=2", None, 200).await;
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = app.operate("GET", &format!("/admin/v1/payments?limit=2&cursor={cursor}"), None, 200).await;
    let (first, rest) = (first["items"].as_array().unwrap(), rest["items"].as_array().unwrap());
    assert_eq!((first.len(), rest.len()), (2, 1));
    assert!(first.iter().chain(rest).all(|payment| payment["state"] == "applied"));
    let one = &first[0];
    let path = format!("/admin/v1/payments/{}", one["id"].as_str().unwrap());
    assert_eq!(app.operate("GET", &path, None, 200).await, *one);
    let none = app.operate("GET", "/admin/v1/payments?state=refund_failed", None, 200).await;
    assert_eq!(none["items"], json!([]));
    app.operate("GET", "/admin/v1/payments?state=lost", None, 422).await;
    app.operate("GET", "/admin/v1/payments/01k9zq3v8g7m4x2r5w6t0n1pbc", None, 404).await;
}
