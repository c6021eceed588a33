//! What operators do while buyers buy: pause, resume, end, more stock, less stock.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::app::{TestApp, TestSale, draft};

const NO_OFFER: &str = "/admin/v1/offers/01k9zq3v8g7m4x2r5w6t0n1pbc/stock";

async fn try_once(app: &TestApp, sale: &TestSale, name: &str, status: u16) -> Value {
    let buyer = app.buyer(name);
    buyer.buy_with(sale.offer(), &buyer.mint(sale.offer()), 1, status).await
}

async fn act(app: &TestApp, sale: &TestSale, action: &str) {
    app.operate("POST", &format!("/admin/v1/sales/{}/{action}", sale.id), None, 200).await;
}

fn change(change: i64, change_id: &str) -> Value {
    json!({"change": change, "change_id": change_id})
}

fn stock_path(sale: &TestSale) -> String {
    format!("/admin/v1/offers/{}/stock", sale.offer())
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_stops_grants_at_once_and_resume_goes_on_until_the_end() {
    let app = TestApp::start().await;
    let sale = app.open_sale(10).await;
    try_once(&app, &sale, "ann", 202).await;
    act(&app, &sale, "pause").await;
    for name in ["bob", "cat", "dan"] {
        assert_eq!(try_once(&app, &sale, name, 409).await["code"], "paused");
    }
    act(&app, &sale, "resume").await;
    try_once(&app, &sale, "bob", 202).await;
    act(&app, &sale, "end").await;
    assert_eq!(try_once(&app, &sale, "cat", 410).await["code"], "ended");
    app.settled().await;
    let stats = app.stats(&sale).await;
    let units =
        json!({"offer_id": sale.offer(), "stock": 10, "free": 8, "held": 2, "sold": 0, "returning": 0});
    assert_eq!((&stats["offers"][0], &stats["phase"]), (&units, &json!("closed")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_in_the_middle_of_a_crowd_is_the_last_moment_of_a_grant() {
    let app = Arc::new(TestApp::start().await);
    let sale = Arc::new(app.open_sale(100_000).await);
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let mut crowd = Vec::new();
    for worker in 0..4 {
        let (app, sale, stop) = (Arc::clone(&app), Arc::clone(&sale), Arc::clone(&stop));
        crowd.push(tokio::spawn(async move {
            let mut n = 0;
            while !stop.load(std::sync::atomic::Ordering::Acquire) {
                let buyer = app.buyer(&format!("w{worker}-{n}"));
                let body = json!({"pass": buyer.mint(sale.offer()), "quantity": 1});
                let url = app.url(&format!("/api/v1/offers/{}/orders", sale.offer()));
                let status = app.client.post(url).json(&body).send().await.unwrap().status().as_u16();
                assert!(status == 202 || status == 409, "{status}");
                n += 1;
            }
        }));
    }
    let funnel = async || app.stats(&sale).await["funnel"]["granted"].as_u64().unwrap();
    for _ in 0..5 {
        let before = funnel().await;
        crate::app::eventually("the crowd buys", async || funnel().await > before + 20).await;
        act(&app, &sale, "pause").await;
        // Grants are counted when their commit is told; let those that were given before the pause be counted.
        app.settled().await;
        let free = app.stats(&sale).await["offers"][0]["free"].clone();
        let tries = async || app.stats(&sale).await["funnel"]["tries"].as_u64().unwrap();
        let seen = tries().await;
        crate::app::eventually("the crowd goes on trying", async || tries().await > seen + 50).await;
        assert_eq!(app.stats(&sale).await["offers"][0]["free"], free, "a grant after the pause");
        act(&app, &sale, "resume").await;
    }
    stop.store(true, std::sync::atomic::Ordering::Release);
    for worker in crowd {
        worker.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_is_raised_and_lowered_and_a_repeat_answers_what_the_first_did() {
    let app = TestApp::start().await;
    let sale = app.open_sale(2).await;
    let path = stock_path(&sale);
    try_once(&app, &sale, "ann", 202).await;
    try_once(&app, &sale, "bob", 202).await;
    assert_eq!(try_once(&app, &sale, "cat", 409).await["code"], "sold_out");
    let raised = app.operate("POST", &path, Some(&change(3, "a")), 200).await;
    assert_eq!(raised, json!({"offer_id": sale.offer(), "stock": 5, "free": 3}));
    assert_eq!(app.operate("POST", &path, Some(&change(3, "a")), 200).await, raised);
    try_once(&app, &sale, "cat", 202).await;
    let lowered = app.operate("POST", &path, Some(&change(-1, "b")), 200).await;
    assert_eq!(lowered, json!({"offer_id": sale.offer(), "stock": 4, "free": 1}));
    assert_eq!(app.operate("POST", &path, Some(&change(-1, "b")), 200).await["stock"], 4);
    let below = app.operate("POST", &path, Some(&change(-2, "c")), 409).await;
    assert_eq!((&below["code"], &below["available"]), (&json!("stock_below_live"), &json!(1)));
    for huge in [-10_000_001, i64::from(u32::MAX) * -2, i64::MIN] {
        let below = app.operate("POST", &path, Some(&change(huge, "c")), 409).await;
        assert_eq!((&below["code"], &below["available"]), (&json!("stock_below_live"), &json!(1)), "{huge}");
    }
    app.operate("POST", &path, Some(&change(i64::MAX, "c")), 422).await;
    assert_eq!(app.operate("POST", &path, Some(&json!([1, "arr1"])), 422).await["code"], "invalid_request");
    app.settled().await;
    app.operate("POST", &path, Some(&change(-2, "c")), 409).await;
    app.operate("POST", &path, Some(&change(-1, "d")), 200).await;
    let units =
        json!({"offer_id": sale.offer(), "stock": 3, "free": 0, "held": 3, "sold": 0, "returning": 0});
    assert_eq!(app.stats(&sale).await["offers"][0], units);
    let sale_view = app.operate("GET", &format!("/admin/v1/sales/{}", sale.id), None, 200).await;
    assert_eq!(sale_view["offers"][0]["stock"], 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stock_change_that_makes_no_sense_says_why() {
    let app = TestApp::start().await;
    let sale = app.open_sale(5).await;
    let path = stock_path(&sale);
    app.operate("POST", &path, Some(&change(1, "once")), 200).await;
    assert_eq!(app.operate("POST", &path, Some(&change(2, "once")), 409).await["code"], "key_reused");
    let long = "x".repeat(101);
    for (body, field) in [
        (change(0, "a"), "change"),
        (change(1, ""), "change_id"),
        (change(1, &long), "change_id"),
        (change(1, "a\nb"), "change_id"),
        (json!({"change": 1}), "change_id"),
        (json!({"change_id": "a"}), "change"),
        (json!({"change": "1", "change_id": "a"}), "change"),
        (json!({"change": 1.5, "change_id": "a"}), "change"),
        (json!({"change": null, "change_id": "a"}), "change"),
        (change(9_999_995, "a"), "change"),
        (change(i64::MAX, "a"), "change"),
    ] {
        let problem = app.operate("POST", &path, Some(&body), 422).await;
        assert_eq!(problem["field"], field, "{body}");
    }
    app.operate("POST", NO_OFFER, Some(&change(1, "a")), 404).await;
    app.operate("POST", &path, Some(&change(9_999_994, "most")), 200).await;
    assert_eq!(app.stats(&sale).await["offers"][0]["free"], 10_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drafts_stock_changes_too_and_editing_it_makes_no_change_twice() {
    let app = TestApp::start().await;
    let made = app.operate("POST", "/admin/v1/sales", Some(&draft(5)), 201).await;
    let sale = TestSale {
        id: made["id"].as_str().unwrap().into(),
        offers: vec![made["offers"][0]["id"].as_str().unwrap().into()],
    };
    let path = stock_path(&sale);
    let raised = app.operate("POST", &path, Some(&change(5, "a")), 200).await;
    assert_eq!(raised, json!({"offer_id": sale.offer(), "stock": 10, "free": 10}));
    let sale_path = format!("/admin/v1/sales/{}", sale.id);
    let edited = app.operate("PATCH", &sale_path, Some(&json!({"title": "New"})), 200).await;
    assert_eq!(edited["offers"][0]["stock"], 10);
    app.operate("POST", &path, Some(&change(5, "a")), 200).await;
    for change in [change(-11, "b"), change(i64::MIN, "b")] {
        assert_eq!(app.operate("POST", &path, Some(&change), 409).await["code"], "stock_below_live");
    }
    act(&app, &sale, "publish").await;
    assert_eq!(app.stats(&sale).await["offers"][0]["free"], 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn stock_that_changes_while_everybody_buys_adds_up_in_the_end() {
    const BUYERS: usize = 400;
    let app = Arc::new(TestApp::start().await);
    let sale = Arc::new(app.open_sale(150).await);
    let mut crowd = Vec::new();
    for worker in 0..4 {
        let (app, sale) = (Arc::clone(&app), Arc::clone(&sale));
        crowd.push(tokio::spawn(async move {
            let mut won: i64 = 0;
            for n in 0..BUYERS / 4 {
                let buyer = app.buyer(&format!("w{worker}-{n}"));
                let body = json!({"pass": buyer.mint(sale.offer()), "quantity": 1 + n % 3});
                let url = app.url(&format!("/api/v1/offers/{}/orders", sale.offer()));
                let response = app.client.post(url).json(&body).send().await.unwrap();
                match response.status().as_u16() {
                    202 => won += i64::try_from(1 + n % 3).unwrap(),
                    409 => {}
                    other => panic!("{other}: {}", response.text().await.unwrap()),
                }
            }
            won
        }));
    }
    let mut changers = Vec::new();
    for (worker, by) in [(0, -7), (1, 5), (2, -3)] {
        let (app, sale) = (Arc::clone(&app), Arc::clone(&sale));
        changers.push(tokio::spawn(async move {
            let mut sum = 0;
            for n in 0..25 {
                let body = change(by, &format!("{worker}-{n}"));
                let request = app.client.post(app.url(&stock_path(&sale))).bearer_auth(crate::app::ADMIN_KEY);
                let response = request.json(&body).send().await.unwrap();
                match response.status().as_u16() {
                    200 => sum += by,
                    409 => {}
                    other => panic!("{other}: {}", response.text().await.unwrap()),
                }
                let stats = app.stats(&sale).await;
                let unit = |name: &str| stats["offers"][0][name].as_i64().unwrap();
                let parts = unit("free") + unit("held") + unit("sold") + unit("returning");
                assert_eq!(parts, unit("stock"), "{stats}");
            }
            sum
        }));
    }
    let (mut won, mut changed) = (0, 0);
    for worker in crowd {
        won += worker.await.unwrap();
    }
    for worker in changers {
        changed += worker.await.unwrap();
    }
    app.settled().await;
    let stats = app.stats(&sale).await;
    let stock = 150 + changed;
    let units = json!({"offer_id": sale.offer(), "stock": stock, "free": stock - won, "held": won, "sold": 0,
        "returning": 0});
    assert_eq!(stats["offers"][0], units);
    assert_eq!(app.app.metrics.ledger_refusals.get(), 0, "the ledger never had to refuse");
}

#[tokio::test(flavor = "multi_thread")]
async fn publishing_while_stock_is_raised_strands_no_unit() {
    let app = TestApp::start().await;
    for round in 0..20 {
        let made = app.operate("POST", "/admin/v1/sales", Some(&draft(5)), 201).await;
        let sale = TestSale {
            id: made["id"].as_str().unwrap().into(),
            offers: vec![made["offers"][0]["id"].as_str().unwrap().into()],
        };
        let path = stock_path(&sale);
        let body = change(3, "more");
        tokio::join!(act(&app, &sale, "publish"), app.operate("POST", &path, Some(&body), 200));
        let stats = app.stats(&sale).await;
        let (stock, free) = (&stats["offers"][0]["stock"], &stats["offers"][0]["free"]);
        assert_eq!((stock, free), (&json!(8), &json!(8)), "round {round}");
    }
}
