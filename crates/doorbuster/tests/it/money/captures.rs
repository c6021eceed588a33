//! Exactly one end for money: each rule with the notification that asks for it.

use std::time::Duration;

use doorbuster::telemetry::metrics::CallbackOutcome;
use futures_util::future::join_all;
use rules::money::Money;
use serde_json::json;

use super::*;
use crate::app::{assert_code, with_manual_clock};

#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_paid_by_its_callback_and_everybody_is_told() {
    let (app, sale) = shop(3).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    let seq = order(&ann, &id).await["seq"].as_u64().unwrap();
    let path = format!("/api/v1/orders/{id}?wait=20&after={seq}");
    let waiting = ann.call("GET", &path, None, 200);
    let acting = async {
        app.settled().await;
        act(&app, &payment, &json!({"outcome": "paid"}), 200).await
    };
    let (paid, acted) = tokio::join!(waiting, acting);
    assert_eq!(acted["answers"], json!([200]));
    assert_eq!((paid["state"].as_str(), paid["payment_id"].as_str()), (Some("paid"), Some(&*payment)));
    assert!(!paid["paid_at"].is_null() && paid["refunded_at"].is_null());
    assert_eq!(units(&app, &sale).await, [3, 2, 0, 1]);
    let seen = app.operate("GET", &format!("/admin/v1/orders/{id}"), None, 200).await;
    assert_eq!(seen["payment_id"], json!(payment));
    let csv = app.client.get(app.url("/admin/v1/orders/export.csv")).bearer_auth(crate::app::ADMIN_KEY);
    let csv = csv.send().await.unwrap().text().await.unwrap();
    let (head, row) = csv.trim().split_once('\n').unwrap();
    assert!(head.trim().ends_with("closed_at,refunded_at,payment_id"), "{head}");
    assert!(row.ends_with(&format!(",,{payment}")), "{row}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_capture_told_many_times_and_by_several_events_pays_once() {
    let (app, sale) = shop(3).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    let forge = Forge::of(&app);
    let letters: Vec<_> =
        (0..30).map(|n| forge.paid(&payment, &format!("event-{}", n % 3), "capture-1")).collect();
    let answers = join_all(letters.iter().map(|letter| forge.send(&app, letter))).await;
    assert_eq!(answers, [200; 30]);
    let paid = becomes(&ann, &id, "paid").await;
    assert_eq!(states(&app, &id).await, [plain("applied")]);
    assert_eq!(paid["seq"], 3, "it was paid once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_capture_of_one_order_goes_back() {
    let (app, sale) = shop(3).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    let forge = Forge::of(&app);
    for (event, capture) in [("a", "one"), ("b", "two"), ("c", "three"), ("a", "one"), ("d", "two")] {
        assert_eq!(forge.send(&app, &forge.paid(&payment, event, capture)).await, 200);
    }
    eventually("both are back", async || {
        states(&app, &id).await == [plain("applied"), back("second_capture"), back("second_capture")]
    })
    .await;
    assert_eq!(order(&ann, &id).await["state"], "paid");
    assert_eq!(units(&app, &sale).await, [3, 2, 0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_amount_and_wrong_currency_go_back_and_the_right_money_still_pays() {
    let (app, sale) = shop(3).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    let forge = Forge::of(&app);
    let mut less = forge.paid(&payment, "a", "one");
    less.amount.amount = PRICE - 1;
    let mut more = forge.paid(&payment, "b", "two");
    more.amount.amount = PRICE + 1;
    let mut other = forge.paid(&payment, "c", "three");
    other.amount = Money { amount: PRICE, currency: "JPY".parse().unwrap() };
    for letter in [&less, &more, &other] {
        assert_eq!(forge.send(&app, letter).await, 200);
        assert_eq!(order(&ann, &id).await["state"], "awaiting_payment");
    }
    // The payment has its money, such as it was; the buyer tries again under a new one.
    let again = super::payment(&ann, &id).await;
    assert_ne!(again, payment);
    assert_eq!(forge.send(&app, &forge.paid(&again, "d", "four")).await, 200);
    eventually("the wrong money is back", async || {
        states(&app, &id).await
            == [back("amount_mismatch"), back("amount_mismatch"), back("currency_mismatch"), plain("applied")]
    })
    .await;
    let paid = order(&ann, &id).await;
    assert_eq!((paid["state"].as_str(), paid["payment_id"].as_str()), (Some("paid"), Some(&*again)));
}

#[tokio::test(flavor = "multi_thread")]
async fn money_for_a_cancelled_order_goes_back() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    ann.call("POST", &format!("/api/v1/orders/{id}/cancel"), None, 200).await;
    act(&app, &payment, &json!({"outcome": "paid"}), 200).await;
    eventually("it is back", async || states(&app, &id).await == [back("order_cancelled")]).await;
    assert_eq!(order(&ann, &id).await["state"], "closed");
    won(&app.buyer("bob"), &sale).await;
}

/// Forged, stale, garbled, for somebody else: refused, and nothing of it is used.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_genuine_is_refused_and_changes_nothing() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    let (forge, now) = (Forge::of(&app), app.app.clock.now());
    let letter = forge.paid(&payment, "a", "one");
    let refused = async |what: (u16, Value), status: u16, code: &str| {
        assert_eq!(what.0, status, "{}", what.1);
        assert_code(&what.1, code);
        assert!(states(&app, &id).await == [plain("started")], "{code}");
    };

    let stranger =
        Forge::with(b"another-secret-0123456789abcdef0123456789abcdef", app.app.ledger.incarnation());
    refused(stranger.send_at(&app, &letter, now).await, 401, "signature_invalid").await;
    let elsewhere = Forge::with(PASS_SECRET.as_bytes(), &[7; 16]);
    let theirs = elsewhere.paid(&payment, "a", "one");
    refused(elsewhere.send_at(&app, &theirs, now).await, 403, "wrong_merchant").await;
    for seconds in [-301, 301] {
        let at = now.plus_ms(seconds * 1_000);
        refused(forge.send_at(&app, &letter, at).await, 401, "notification_stale").await;
    }

    let (headers, body) = forge.seal(&letter, now);
    let mut empty = HeaderMap::new();
    empty.insert("sandbox-signature", "t=1,v1=".parse().unwrap());
    for unsigned in [HeaderMap::new(), empty] {
        refused(deliver(&app, "sandbox", unsigned, body.clone()).await, 401, "signature_invalid").await;
    }
    let mut twice = headers.clone();
    twice.append("sandbox-signature", headers["sandbox-signature"].clone());
    refused(deliver(&app, "sandbox", twice, body.clone()).await, 401, "signature_invalid").await;
    for place in [0, body.len() / 2, body.len() - 1] {
        let mut changed = body.to_vec();
        changed[place] ^= 1;
        refused(deliver(&app, "sandbox", headers.clone(), changed).await, 401, "signature_invalid").await;
    }
    let longer = [&body[..], b" "].concat();
    refused(deliver(&app, "sandbox", headers.clone(), longer).await, 401, "signature_invalid").await;
    let large = vec![b' '; 64 * 1_024 + 1];
    refused(deliver(&app, "sandbox", headers.clone(), large).await, 413, "too_large").await;
    let (status, problem) = deliver(&app, "nobody", headers.clone(), body.clone()).await;
    assert_eq!((status, problem["code"].as_str()), (404, Some("not_found")));
    let (status, _) = deliver(&app, "stripe", headers.clone(), body.clone()).await;
    assert_eq!(status, 404, "Stripe is not set up");

    assert_eq!(deliver(&app, "sandbox", headers.clone(), body.clone()).await.0, 200);
    assert_eq!(deliver(&app, "sandbox", headers, body).await.0, 200, "a replay is harmless");
    assert_eq!(order(&ann, &id).await["seq"], 3);
    assert_eq!(states(&app, &id).await, [plain("applied")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signed_notification_that_makes_no_sense_is_malformed() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    let (forge, now) = (Forge::of(&app), app.app.clock.now());
    let sound = forge.paid(&payment, "a", "one");
    let mut bad = Vec::new();
    for amount in [0, -1] {
        let mut letter = sound.clone();
        letter.amount.amount = amount;
        bad.push(letter);
    }
    for name in ["", "with a blank", &"x".repeat(129)] {
        bad.push(Letter { capture_id: name.to_owned(), ..sound.clone() });
        bad.push(Letter { id: name.to_owned(), ..sound.clone() });
    }
    for letter in &bad {
        let (status, problem) = forge.send_at(&app, letter, now).await;
        assert_eq!((status, problem["code"].as_str()), (400, Some("malformed")), "{letter:?}");
    }
    assert_eq!(states(&app, &id).await, [plain("started")]);
    // It was the provider who said it, so somebody is told; a stranger's nonsense is no alarm.
    let alarms = || app.app.metrics.callbacks.get(CallbackOutcome::Unreadable);
    assert_eq!(alarms(), u64::try_from(bad.len()).unwrap());
    let stranger =
        Forge::with(b"another-secret-0123456789abcdef0123456789abcdef", app.app.ledger.incarnation());
    assert_eq!(stranger.send_at(&app, &bad[0], now).await.0, 401);
    assert_eq!((alarms(), app.app.metrics.callbacks.get(CallbackOutcome::Refused)), (8, 1));
}

/// Whatever came is written down: an answer of 400 would leave money that nobody sends back.
#[tokio::test(flavor = "multi_thread")]
async fn more_money_than_anything_costs_goes_back() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    let forge = Forge::of(&app);
    for (capture, amount) in [("one", rules::money::AMOUNT_MAX + 1), ("two", i64::MAX)] {
        let mut letter = forge.paid(&payment, capture, capture);
        letter.amount.amount = amount;
        assert_eq!(forge.send(&app, &letter).await, 200, "{amount}");
    }
    let all_back = [back("amount_mismatch"), back("amount_mismatch")];
    eventually("all of it is back", async || states(&app, &id).await == all_back).await;
    assert_eq!(payments(&app, &id).await[0]["money"]["amount"], json!(rules::money::AMOUNT_MAX + 1));
    assert_eq!(order(&ann, &id).await["state"], "awaiting_payment");
}

/// A provider may tell of money under a name that nobody knows: it is taken, since it is money, and waits for its order
/// or for its way back.
#[tokio::test(flavor = "multi_thread")]
async fn money_under_an_unknown_name_is_taken_and_not_lost() {
    let (app, _) = shop(1).await;
    let forge = Forge::of(&app);
    assert_eq!(forge.send(&app, &forge.paid("01k9zq3v8g7m4x2r5w6t0n1pbc", "a", "one")).await, 200);
    let page = app.operate("GET", "/admin/v1/payments", None, 200).await;
    let found = page["items"].as_array().unwrap();
    assert_eq!((found.len(), found[0]["capture_id"].as_str()), (1, Some("one")));
    assert_eq!(found[0]["order_id"], Value::Null);
    let path = format!("/admin/v1/payments/{}", found[0]["id"].as_str().unwrap());
    eventually("it is back", async || {
        let payment = app.operate("GET", &path, None, 200).await;
        (payment["state"].as_str(), payment["reason"].as_str()) == (Some("refunded"), Some("order_unknown"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_recorded_is_told_so_and_taken_when_it_comes_again() {
    let (app, sale) = shop(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    let forge = Forge::of(&app);
    let letter = forge.paid(&payment, "a", "one");
    let hand = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    hand.execute_batch("begin immediate").unwrap();
    let (status, problem) = forge.send_at(&app, &letter, app.app.clock.now()).await;
    assert_eq!(status, 503, "{problem}");
    assert_code(&problem, "busy");
    hand.execute_batch("rollback").unwrap();
    assert_eq!(forge.send(&app, &letter).await, 200);
    becomes(&ann, &id, "paid").await;
}

/// Providers send from few addresses, and much at once: the rates that hold crowds back are not for them.
#[tokio::test(flavor = "multi_thread")]
async fn callbacks_meet_neither_the_rate_of_an_address_nor_a_full_house() {
    let app =
        TestApp::with(&[SANDBOX, "limits.per_ip_per_s=1", "limits.per_ip_burst=1", "limits.in_flight=1"])
            .await;
    let sale = app.open_sale(1).await;
    let ann = app.buyer("ann");
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    let forge = Forge::of(&app);
    let letters: Vec<_> = (0..60).map(|n| forge.paid(&payment, &format!("event-{n}"), "one")).collect();
    let answers = join_all(letters.iter().map(|letter| forge.send(&app, letter))).await;
    assert_eq!(answers, [200; 60]);
    let nobody = app.client.get(app.url("/api/v1/sales"));
    let crowd = join_all((0..20).map(|_| app.send(nobody.try_clone().unwrap()))).await;
    assert!(crowd.iter().any(|(status, _, _)| *status == 429), "the rate is on for everybody else");
    becomes(&ann, &id, "paid").await;
}

/// Of paying and cancelling at the same instant one wins, and the other is told; whichever it is, money and unit agree.
/// Now the one and now the other comes a little later, until each has won.
#[tokio::test(flavor = "multi_thread")]
async fn of_paying_and_cancelling_at_once_one_wins() {
    const RACES: u32 = 40;
    const RACES_MAX: u32 = 400;
    let (app, sale) = shop(RACES_MAX).await;
    let forge = Forge::of(&app);
    let (mut won_by_payment, mut won_by_cancel) = (0_u64, 0_u64);
    for number in 0..RACES_MAX {
        if number >= RACES && won_by_payment > 0 && won_by_cancel > 0 {
            break;
        }
        let buyer = app.buyer(&format!("buyer {number}"));
        let id = won(&buyer, &sale).await;
        let payment = payment(&buyer, &id).await;
        let letter = forge.paid(&payment, &format!("event-{number}"), &format!("capture-{number}"));
        let request = app.client.post(app.url(&format!("/api/v1/orders/{id}/cancel")));
        let lead = Duration::from_millis(u64::from(number / 2 % 7));
        let (pay_after, cancel_after) =
            if number % 2 == 0 { (lead, Duration::ZERO) } else { (Duration::ZERO, lead) };
        let pay = async {
            tokio::time::sleep(pay_after).await;
            forge.send(&app, &letter).await
        };
        let cancel = async {
            tokio::time::sleep(cancel_after).await;
            app.send(request.bearer_auth(&buyer.token)).await
        };
        let (paid, (cancelled, _, answer)) = tokio::join!(pay, cancel);
        assert_eq!(paid, 200);
        match cancelled {
            200 => {
                eventually("it goes back", async || states(&app, &id).await == [back("order_cancelled")])
                    .await;
                assert_eq!(order(&buyer, &id).await["state"], "closed");
                won_by_cancel += 1;
            }
            409 => {
                assert!(
                    ["not_cancellable", "not_yet"].contains(&answer["code"].as_str().unwrap()),
                    "{answer}"
                );
                becomes(&buyer, &id, "paid").await;
                assert_eq!(states(&app, &id).await, [plain("applied")]);
                won_by_payment += 1;
            }
            other => panic!("{other}: {answer}"),
        }
    }
    assert!(
        won_by_payment > 0 && won_by_cancel > 0,
        "somebody never wins: {won_by_payment}, {won_by_cancel}"
    );
    let stock = u64::from(RACES_MAX);
    eventually("the units agree", async || {
        units(&app, &sale).await == [stock, stock - won_by_payment, 0, won_by_payment]
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_money_finds_a_unit_or_goes_back() {
    let (app, clock) = with_manual_clock(&[SANDBOX]).await;
    let mut draft = crate::app::draft(1);
    draft["pay_within_s"] = json!(60);
    let sale = app.publish(draft).await;
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let id = won(&ann, &sale).await;
    let payment = payment(&ann, &id).await;
    clock.advance(Duration::from_secs(61));
    becomes(&ann, &id, "closed").await;
    eventually("the unit is back", async || units(&app, &sale).await[1] == 1).await;
    act(&app, &payment, &json!({"outcome": "paid"}), 200).await;
    let revived = becomes(&ann, &id, "paid").await;
    assert_eq!(revived["payment_id"], json!(payment));
    assert_eq!(units(&app, &sale).await, [1, 0, 0, 1]);

    app.operate(
        "POST",
        &format!("/admin/v1/offers/{}/stock", sale.offer()),
        Some(&json!({"change": 1, "change_id": "more"})),
        200,
    )
    .await;
    let second = won(&bob, &sale).await;
    let late = super::payment(&bob, &second).await;
    clock.advance(Duration::from_secs(61));
    becomes(&bob, &second, "closed").await;
    let cat = app.buyer("cat");
    eventually("the unit is back", async || units(&app, &sale).await[1] == 1).await;
    won(&cat, &sale).await;
    act(&app, &late, &json!({"outcome": "paid"}), 200).await;
    eventually("no unit is left", async || states(&app, &second).await == [back("no_unit_left")]).await;
    assert_eq!(order(&bob, &second).await["state"], "closed");
}
