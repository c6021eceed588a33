//! Orders, blocks and registrations as operators see them.

use rules::buyer::BuyerId;
use serde_json::{Value, json};

use crate::app::{ADMIN_KEY, TestApp, TestSale, draft, draft_between};
use crate::buyer_orders::second_hand;

async fn buy(app: &TestApp, sale: &TestSale, name: &str, quantity: u32) -> String {
    let buyer = app.buyer(name);
    let order = buyer.buy_with(sale.offer(), &buyer.mint(sale.offer()), quantity, 202).await;
    order["id"].as_str().unwrap().to_owned()
}

async fn found(app: &TestApp, query: &str) -> Vec<String> {
    let page = app.operate("GET", &format!("/admin/v1/orders?{query}"), None, 200).await;
    assert_eq!(page["next_cursor"], Value::Null);
    page["items"].as_array().unwrap().iter().map(|order| order["id"].as_str().unwrap().to_owned()).collect()
}

async fn export(app: &TestApp, query: &str) -> Vec<Vec<String>> {
    let url = app.url(&format!("/admin/v1/orders/export.csv?{query}"));
    let response = app.client.get(url).bearer_auth(ADMIN_KEY).send().await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/csv"));
    let disposition = response.headers()["content-disposition"].to_str().unwrap().to_owned();
    assert!(disposition.starts_with("attachment"), "{disposition}");
    let text = response.text().await.unwrap();
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(text.as_bytes());
    reader.records().map(|record| record.unwrap().iter().map(str::to_owned).collect()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_found_by_everything_they_can_be_asked_for() {
    let app = TestApp::start().await;
    let (one, two) = (app.open_sale(9).await, app.open_sale(9).await);
    let first = buy(&app, &one, "ann", 2).await;
    app.settled().await;
    let second = buy(&app, &one, "bob", 1).await;
    app.settled().await;
    let third = buy(&app, &two, "ann", 1).await;
    app.settled().await;
    app.app.cancel(second.parse().unwrap(), &BuyerId::parse("bob").unwrap()).await.unwrap();
    assert_eq!(found(&app, "").await, [third.clone(), second.clone(), first.clone()], "newest first");
    assert_eq!(found(&app, &format!("sale={}", one.id)).await, [second.clone(), first.clone()]);
    assert_eq!(found(&app, &format!("offer={}", two.offer())).await, std::slice::from_ref(&third));
    assert_eq!(found(&app, "buyer=ann").await, [third.clone(), first.clone()]);
    assert_eq!(found(&app, "state=closed").await, std::slice::from_ref(&second));
    assert_eq!(found(&app, &format!("order={first}")).await, std::slice::from_ref(&first));
    assert_eq!(
        found(&app, &format!("sale={}&buyer=ann&state=&cursor=", one.id)).await,
        std::slice::from_ref(&first)
    );
    assert_eq!(found(&app, &format!("sale={}&state=paid", one.id)).await, [""; 0]);
    let order = app.operate("GET", &format!("/admin/v1/orders/{first}"), None, 200).await;
    assert_eq!((&order["buyer"], &order["quantity"]), (&json!("ann"), &json!(2)));
    assert_eq!((&order["state"], &order["total"]["amount"]), (&json!("awaiting_payment"), &json!(299_800)));
    app.operate("GET", "/admin/v1/orders/01k9zq3v8g7m4x2r5w6t0n1pbc", None, 404).await;
    app.operate("GET", "/admin/v1/orders/nonsense", None, 404).await;
    let page = app.operate("GET", "/admin/v1/orders?limit=2", None, 200).await;
    let cursor = page["next_cursor"].as_str().unwrap();
    assert_eq!(found(&app, &format!("limit=2&cursor={cursor}")).await, [first]);
    for (query, field) in [
        ("sale=x", "sale"),
        ("offer=x", "offer"),
        ("order=x", "order"),
        ("state=x", "state"),
        ("buyer=%00", "buyer"),
        ("limit=999", "limit"),
        ("cursor=x", "cursor"),
    ] {
        for path in ["/admin/v1/orders", "/admin/v1/orders/export.csv"] {
            let problem = app.operate("GET", &format!("{path}?{query}"), None, 422).await;
            assert_eq!(problem["field"], field, "{query}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_order_is_found_before_the_ledger_has_it() {
    let app = TestApp::start().await;
    let (one, two) = (app.open_sale(9).await, app.open_sale(9).await);
    let hand = second_hand(&app);
    hand.execute_batch("begin immediate").unwrap();
    let first = buy(&app, &one, "ann", 2).await;
    let mut all = vec![first.clone(), buy(&app, &one, "bob", 1).await, buy(&app, &two, "ann", 1).await];
    let (bobs, third) = (all[1].clone(), all[2].clone());
    let order = app.operate("GET", &format!("/admin/v1/orders/{first}"), None, 200).await;
    assert_eq!((&order["state"], &order["seq"]), (&json!("queued"), &json!(1)));
    assert_eq!((&order["buyer"], &order["quantity"]), (&json!("ann"), &json!(2)));
    // Ids sort by their time, newest first.
    all.sort_unstable_by(|one, other| other.cmp(one));
    assert_eq!(found(&app, "state=queued").await, all);
    assert_eq!(found(&app, "state=queued&buyer=bob").await, std::slice::from_ref(&bobs));
    assert_eq!(found(&app, &format!("state=queued&sale={}", two.id)).await, std::slice::from_ref(&third));
    assert_eq!(found(&app, &format!("state=queued&offer={}", two.offer())).await, [third]);
    assert_eq!(found(&app, &format!("state=queued&order={bobs}")).await, [bobs]);
    assert_eq!(found(&app, "").await, [""; 0], "the ledger has none");
    let page = app.operate("GET", "/admin/v1/orders?state=queued&limit=2", None, 200).await;
    let cursor = page["next_cursor"].as_str().unwrap();
    assert_eq!(found(&app, &format!("state=queued&limit=2&cursor={cursor}")).await, all[2..]);
    assert_eq!(
        found(&app, "state=queued&cursor=7").await,
        [""; 0],
        "the ledger's orders come after the queued"
    );
    let problem = app.operate("GET", "/admin/v1/orders?state=queued&cursor=queued-7", None, 422).await;
    assert_eq!(problem["field"], "cursor");
    hand.execute_batch("rollback").unwrap();
    app.settled().await;
    assert_eq!(found(&app, "state=queued").await, [""; 0]);
    assert_eq!(
        found(&app, &format!("cursor={cursor}")).await.len(),
        3,
        "and before them all that were queued"
    );
    let order = app.operate("GET", &format!("/admin/v1/orders/{first}"), None, 200).await;
    assert_eq!(order["state"], "awaiting_payment");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_holds_every_order_and_no_formula() {
    let app = TestApp::start().await;
    let sale = app.open_sale(100).await;
    let names = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "o\"quote,comma", "plain", "字"];
    for name in names {
        buy(&app, &sale, name, 1).await;
    }
    app.settled().await;
    let table = export(&app, &format!("sale={}", sale.id)).await;
    assert_eq!(table[0][..5], ["id", "sale_id", "offer_id", "buyer", "quantity"]);
    let mut buyers: Vec<&str> = table[1..].iter().map(|row| row[3].as_str()).collect();
    buyers.sort_unstable();
    let mut wanted = ["'=cmd|' /C calc'!A0", "'+1", "'-1", "'@SUM(A1)", "o\"quote,comma", "plain", "字"];
    wanted.sort_unstable();
    assert_eq!(buyers, wanted);
    for cell in table.iter().flatten() {
        assert!(!cell.starts_with(['=', '+', '-', '@']), "{cell}");
    }
    assert_eq!(export(&app, "state=paid").await.len(), 1, "only the header");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_of_many_orders_is_complete_and_in_order() {
    const ORDERS: usize = 2_300;
    let app = TestApp::start().await;
    let sale = app.open_sale(5_000).await;
    let keys = rules::pass::PassKeys::new(crate::app::PASS_SECRET.as_bytes(), None);
    let offer = sale.offer().parse().unwrap();
    let gate = app.app.gate.memory.offer(offer).unwrap();
    let now = app.app.clock.now();
    let names: Vec<String> = (0..ORDERS).map(|n| format!("buyer {n}")).collect();
    let claims = names.iter().map(|name| {
        let order = keys.mint_order_id(&BuyerId::parse(name).unwrap(), now, rand::random());
        let attempt =
            doorbuster::gate::Try { buyer: name, order, quantity: 1, pass_expires_at: now.plus_s(300) };
        let (app, gate) = (&app, &gate);
        async move { app.app.gate.claim(gate, &attempt, now).await }
    });
    for claimed in futures_util::future::join_all(claims).await {
        assert!(matches!(claimed, doorbuster::gate::Claimed::Queued(_)), "{claimed:?}");
    }
    app.settled().await;
    let table = export(&app, &format!("offer={}", sale.offer())).await;
    let mut buyers: Vec<String> = table[1..].iter().map(|row| row[3].clone()).collect();
    assert_eq!(buyers.len(), ORDERS);
    buyers.sort_unstable();
    buyers.dedup();
    assert_eq!(buyers.len(), ORDERS, "each once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_is_blocked_seen_listed_and_let_in_again() {
    let app = TestApp::start().await;
    app.operate("GET", "/admin/v1/blocks/ann", None, 404).await;
    app.operate("DELETE", "/admin/v1/blocks/ann", None, 404).await;
    let body = json!({"until": "2100-01-01T00:00:00Z", "note": "resells"});
    let blocked = app.operate("PUT", "/admin/v1/blocks/ann", Some(&body), 200).await;
    let wanted = json!({"buyer": "ann", "until": "2100-01-01T00:00:00.000Z",
        "by_hand_until": "2100-01-01T00:00:00.000Z", "note": "resells", "strikes": 0, "strikes_limit": 3,
        "next_decay_at": null, "history": []});
    assert_eq!(blocked, wanted);
    assert_eq!(app.operate("GET", "/admin/v1/blocks/ann", None, 200).await, wanted);
    let ann = BuyerId::parse("ann").unwrap();
    assert!(app.app.roster.blocked_until(&ann, app.app.clock.now()).is_some(), "no pass for ann");
    let longer = json!({"until": "2101-01-01T00:00:00Z"});
    assert_eq!(app.operate("PUT", "/admin/v1/blocks/ann", Some(&longer), 200).await["note"], Value::Null);
    for buyer in ["bob", "c%2Fd%20e"] {
        app.operate("PUT", &format!("/admin/v1/blocks/{buyer}"), Some(&body), 200).await;
    }
    let page = app.operate("GET", "/admin/v1/blocks?limit=2", None, 200).await;
    assert_eq!(page["next_cursor"], "bob");
    let rest = app.operate("GET", "/admin/v1/blocks?limit=2&cursor=bob", None, 200).await;
    assert_eq!((&rest["items"][0]["buyer"], &rest["next_cursor"]), (&json!("c/d e"), &Value::Null));
    app.operate("DELETE", "/admin/v1/blocks/ann", None, 204).await;
    app.operate("GET", "/admin/v1/blocks/ann", None, 404).await;
    assert!(app.app.roster.blocked_until(&ann, app.app.clock.now()).is_none());
    for (body, field) in [
        (json!({"until": "2020-01-01T00:00:00Z"}), "until"),
        (json!({"until": "soon"}), "until"),
        (json!({}), "until"),
        (json!({"until": "2100-01-01T00:00:00Z", "note": "x".repeat(1_001)}), "note"),
    ] {
        assert_eq!(app.operate("PUT", "/admin/v1/blocks/ann", Some(&body), 422).await["field"], field);
    }
    let long = format!("/admin/v1/blocks/{}", "x".repeat(129));
    assert_eq!(app.operate("PUT", &long, Some(&body), 422).await["field"], "buyer");
    app.operate("GET", &long, None, 404).await;
    assert_eq!(app.operate("GET", "/admin/v1/blocks?limit=x", None, 422).await["field"], "limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_is_over_is_gone() {
    let now = rules::time::UnixMs(jiff::Timestamp::now().as_millisecond());
    let clock = doorbuster::clock::Clock::manual(now);
    let app = TestApp::on(tempfile::tempdir().unwrap(), clock.clone(), &[]).await;
    let body = json!({"until": now.plus_s(60).to_string()});
    app.operate("PUT", "/admin/v1/blocks/ann", Some(&body), 200).await;
    clock.advance(std::time::Duration::from_secs(60));
    app.operate("GET", "/admin/v1/blocks/ann", None, 404).await;
    assert_eq!(app.operate("GET", "/admin/v1/blocks", None, 200).await["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn registrations_are_counted_and_listed() {
    let app = TestApp::start().await;
    let mut with = draft_between(600, 3_600, 5);
    with["registration"] = json!("required");
    let sale = app.publish(with).await;
    let path = format!("/admin/v1/sales/{}/registrations", sale.id);
    for name in ["cat", "ann", "bob", "ann"] {
        let buyer = BuyerId::parse(name).unwrap();
        app.app.register(sale.id.parse().unwrap(), &buyer).await.unwrap();
    }
    let page = app.operate("GET", &format!("{path}?limit=2"), None, 200).await;
    assert_eq!((&page["count"], &page["open"]), (&json!(3), &json!(true)));
    assert_eq!((&page["registration"], &page["next_cursor"]), (&json!("required"), &json!("bob")));
    assert_eq!((&page["items"][0]["buyer"], &page["items"][1]["buyer"]), (&json!("ann"), &json!("bob")));
    let rest = app.operate("GET", &format!("{path}?limit=2&cursor=bob"), None, 200).await;
    assert_eq!((&rest["items"][0]["buyer"], &rest["next_cursor"]), (&json!("cat"), &Value::Null));
    assert_eq!(app.operate("GET", &format!("{path}?limit=0"), None, 422).await["field"], "limit");
    let seen = app.operate("GET", &format!("/admin/v1/sales/{}", sale.id), None, 200).await;
    assert_eq!((&seen["registrations"], &app.stats(&sale).await["registrations"]), (&json!(3), &json!(3)));
    let none = app.publish(draft(1)).await;
    let none = app.operate("GET", &format!("/admin/v1/sales/{}/registrations", none.id), None, 200).await;
    assert_eq!((&none["count"], &none["open"], &none["items"]), (&json!(0), &json!(false), &json!([])));
}
