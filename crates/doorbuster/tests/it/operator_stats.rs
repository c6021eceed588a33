//! A sale's live numbers, once and as a stream.

use std::sync::Arc;
use std::time::Duration;

use doorbuster::edge::limits::{Class, OPERATORS_MAX};
use doorbuster::ledger::Cancelled;
use doorbuster::queue::{Claim, Revive};
use futures_util::StreamExt as _;
use rules::buyer::BuyerId;
use rules::id::PaymentId;
use serde_json::{Value, json};

use crate::app::{ADMIN_KEY, TestApp};

#[tokio::test(flavor = "multi_thread")]
async fn at_every_moment_of_a_rush_the_units_add_up_to_the_stock() {
    let app = Arc::new(TestApp::start().await);
    let sale = Arc::new(app.open_sale(200).await);
    let mut crowd = Vec::new();
    for worker in 0..3 {
        let (app, sale) = (Arc::clone(&app), Arc::clone(&sale));
        crowd.push(tokio::spawn(async move {
            for n in 0..100 {
                let buyer = app.buyer(&format!("w{worker}-{n}"));
                let body = json!({"pass": buyer.mint(sale.offer()), "quantity": 1});
                let url = app.url(&format!("/api/v1/offers/{}/orders", sale.offer()));
                let order: Value =
                    app.client.post(url).json(&body).send().await.unwrap().json().await.unwrap();
                if n % 3 == 0
                    && let Some(id) = order["id"].as_str()
                {
                    let id = id.parse().unwrap();
                    app.app.cancel(id, &BuyerId::parse(&buyer.name).unwrap()).await.unwrap();
                }
            }
        }));
    }
    while !crowd.iter().all(tokio::task::JoinHandle::is_finished) {
        let stats = app.stats(&sale).await;
        let unit = |name: &str| stats["offers"][0][name].as_u64().unwrap();
        assert_eq!(unit("stock"), 200);
        assert_eq!(unit("free") + unit("held") + unit("sold") + unit("returning"), 200, "{stats}");
    }
    for worker in crowd {
        worker.await.unwrap();
    }
    app.settled().await;
    let stats = app.stats(&sale).await;
    assert_eq!((&stats["queue"]["depth"], &stats["offers"][0]["returning"]), (&json!(0), &json!(0)));
    let listed = app.operate("GET", "/admin/v1/orders?state=awaiting_payment&limit=200", None, 200).await;
    assert_eq!(stats["offers"][0]["held"], listed["items"].as_array().unwrap().len());
    assert_eq!(stats["funnel"]["tries"], 300);
}

#[tokio::test(flavor = "multi_thread")]
async fn units_on_their_way_back_or_to_late_money_are_counted() {
    let app = TestApp::start().await;
    let sale = app.open_sale(5).await;
    let ann = app.buyer("ann");
    let order = ann.buy_with(sale.offer(), &ann.mint(sale.offer()), 1, 202).await;
    app.settled().await;
    let numbers = async || {
        let stats = app.stats(&sale).await;
        let units = ["free", "held", "returning"].map(|name| stats["offers"][0][name].as_u64().unwrap());
        (units, stats["queue"]["depth"].as_u64().unwrap())
    };
    assert_eq!(numbers().await, ([4, 1, 0], 0));

    let id = order["id"].as_str().unwrap().parse().unwrap();
    let buyer = BuyerId::parse("ann").unwrap();
    let cancelled = app.app.ledger.cancel_order(id, buyer.clone(), app.app.clock.now()).await.unwrap();
    let Cancelled::Closed { released, .. } = cancelled else { panic!("{cancelled:?}") };
    assert_eq!(numbers().await, ([4, 0, 1], 1), "it is in the ledger, and not yet at the gate");
    app.app.give_back(&released);
    assert_eq!(numbers().await, ([5, 0, 0], 0));
    app.app.give_back(&released);
    assert_eq!(numbers().await, ([5, 0, 0], 0), "again is harmless");

    let offer = sale.offer().parse().unwrap();
    let gate = app.app.gate.memory.offer(offer).unwrap();
    app.app.gate.memory.surrender(&gate, 1).unwrap();
    let now = app.app.clock.now();
    let revives = Some(Revive { payment: PaymentId(1), closing_seq: released.order.seq });
    let claim =
        Claim { order: id, offer, buyer, quantity: 1, claimed_at: now, pass_expires_at: now, revives };
    app.app.gate.unrecorded.insert(&Arc::new(claim));
    assert_eq!(numbers().await, ([4, 1, 0], 0), "late money holds what it has found");
    app.app.gate.unrecorded.remove(id);
    app.app.gate.memory.take_back(&gate, 1);
    assert_eq!(numbers().await, ([5, 0, 0], 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_tells_the_numbers_as_they_change_and_ends_with_the_server() {
    let app = TestApp::start().await;
    let sale = app.open_sale(5).await;
    let path = format!("/admin/v1/sales/{}/stream", sale.id);
    let response = app.client.get(app.url(&path)).bearer_auth(ADMIN_KEY).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut bytes = response.bytes_stream();
    let mut text = String::new();
    let mut next = async || {
        loop {
            if let Some((event, rest)) = text.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                text = rest;
                let data = event.strip_prefix("event: stats\ndata: ")?;
                return Some(serde_json::from_str::<Value>(data).unwrap());
            }
            let piece = tokio::time::timeout(Duration::from_secs(20), bytes.next()).await.expect("no event");
            text.push_str(std::str::from_utf8(&piece?.ok()?).unwrap());
        }
    };
    assert_eq!(next().await.unwrap()["offers"][0]["free"], 5);
    let ann = app.buyer("ann");
    ann.buy_with(sale.offer(), &ann.mint(sale.offer()), 2, 202).await;
    let mut free = Value::Null;
    for _ in 0..60 {
        free = next().await.unwrap()["offers"][0]["free"].clone();
        if free == 3 {
            break;
        }
    }
    assert_eq!(free, 3);
    let (_, rest) = tokio::join!(app.stop(), async {
        let mut events = 0;
        while next().await.is_some() {
            events += 1;
        }
        events
    });
    assert!(rest < 5, "the stream ends when the server does");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_operators_have_places_of_their_own() {
    // However many buyers wait, or are under way.
    let app = TestApp::with(&["limits.waiters=0", "limits.in_flight=1"]).await;
    let sale = app.open_sale(5).await;
    let path = format!("/admin/v1/sales/{}/stream", sale.id);
    let _buyer = app.app.in_flight.enter(Class::Buyer).unwrap();
    let first = app.client.get(app.url(&path)).bearer_auth(ADMIN_KEY).send().await.unwrap();
    assert_eq!((first.status().as_u16(), app.app.in_flight.used(Class::Watcher)), (200, 1));
    let others: Vec<_> = (1..OPERATORS_MAX).map(|_| app.app.in_flight.enter(Class::Watcher)).collect();
    assert!(others.iter().all(Result::is_ok));
    assert_eq!(app.operate("GET", &path, None, 503).await["code"], "busy");
    let before = std::time::Instant::now();
    let last = app.operate("GET", "/admin/v1/events?last=1", None, 200).await;
    let wait = format!("/admin/v1/events?wait=30&after={}", last["cursor"].as_str().unwrap());
    app.operate("GET", &wait, None, 200).await;
    assert!(before.elapsed() < Duration::from_secs(20), "one too many is answered at once");
    let pause = format!("/admin/v1/sales/{}/pause", sale.id);
    app.operate("POST", &pause, None, 200).await;
    drop(first);
    crate::app::eventually("the place is free again", async || {
        let again = app.client.get(app.url(&path)).bearer_auth(ADMIN_KEY).send().await.unwrap();
        again.status() == 200
    })
    .await;
}
