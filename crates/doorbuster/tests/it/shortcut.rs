//! The shortcut and hyper behind it are one server: the same answers, in the order of the requests, however the bytes
//! are cut.

use serde_json::{Value, json};

use rules::sale::SaleAction;

use crate::app::{TestApp, TestSale, draft, draft_between};
use crate::protection::{Answer, HEALTH, PATIENCE, Raw, post};

fn attempt(offer: &str, body: &Value) -> String {
    let body = body.to_string();
    post(&format!("/api/v1/offers/{offer}/orders"), body.len(), &body)
}

/// The same request in chunks, which the shortcut leaves to hyper.
fn in_chunks(offer: &str, body: &Value) -> String {
    let body = body.to_string();
    format!(
        "POST /api/v1/offers/{offer}/orders HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\n\
         Transfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    )
}

/// All of an answer but its date, with headers in one order.
fn essence(answer: &Answer) -> (u16, Vec<&str>, &str) {
    let mut lines: Vec<&str> = answer.head.lines().filter(|line| !line.starts_with("date: ")).collect();
    assert_eq!(answer.head.lines().count(), lines.len() + 1, "one date: {}", answer.head);
    lines.sort_unstable();
    (answer.status, lines, &answer.body)
}

fn orders_of(app: &TestApp, sale: &TestSale) -> impl Future<Output = u64> {
    let path = format!("/admin/v1/orders?sale={}", sale.id);
    async move {
        app.settled().await;
        let page = app.operate("GET", &path, None, 200).await;
        u64::try_from(page["items"].as_array().unwrap().len()).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn both_ways_say_the_same() {
    let app = TestApp::with(&["limits.per_buyer_per_s=1", "limits.per_buyer_burst=40"]).await;
    let open = app.open_sale(20).await;
    let empty = app.open_sale(0).await;
    let early = app.publish(draft_between(600, 3_600, 5)).await;
    let paused = app.open_sale(5).await;
    app.act(&paused, SaleAction::Pause).await;
    let ended = app.open_sale(5).await;
    app.act(&ended, SaleAction::End).await;
    let ann = app.buyer("ann");
    let first = ann.mint(open.offer());
    ann.buy_with(open.offer(), &first, 1, 202).await;
    app.settled().await;
    let with = |sale: &TestSale| json!({"pass": ann.mint(sale.offer()), "quantity": 1});
    let bob = app.buyer("bob").mint(open.offer());
    let corpus = [
        ("sold out", empty.offer(), with(&empty), 409),
        ("paused", paused.offer(), with(&paused), 409),
        ("ended", ended.offer(), with(&ended), 410),
        ("already ordered", open.offer(), with(&open), 409),
        ("the same again", open.offer(), json!({"pass": first, "quantity": 1}), 200),
        ("a pass for another offer", empty.offer(), with(&open), 403),
        ("no pass", open.offer(), json!({"pass": "nonsense", "quantity": 1}), 403),
        ("no such offer", "nowhere", with(&open), 404),
        ("five at once", open.offer(), json!({"pass": bob, "quantity": 5}), 202),
        ("none", open.offer(), json!({"pass": bob, "quantity": 0}), 422),
        ("a field too many", open.offer(), json!({"pass": bob, "quantity": 1, "colour": "red"}), 422),
        ("an array", open.offer(), json!([]), 422),
    ];
    let mut raw = Raw::open(app.address).await;
    for (case, offer, body, status) in &corpus {
        raw.say(attempt(offer, body)).await;
        let plain = raw.answer().await;
        assert_eq!(plain.status, *status, "{case}: {}", plain.body);
        if *status == 202 {
            continue;
        }
        let mut chunked = Raw::saying(app.address, in_chunks(offer, body)).await;
        let chunked = chunked.answer().await;
        assert_eq!(essence(&plain), essence(&chunked), "{case}");
    }
    raw.say(attempt(early.offer(), &with(&early))).await;
    assert_eq!(raw.answer().await.status, 425);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_reads_the_same_both_ways() {
    let app = TestApp::start().await;
    let sale = app.open_sale(10).await;
    let body = |name: &str| json!({"pass": app.buyer(name).mint(sale.offer()), "quantity": 1});
    let plain = Raw::saying(app.address, attempt(sale.offer(), &body("ann"))).await.answer().await;
    let chunked = Raw::saying(app.address, in_chunks(sale.offer(), &body("bob"))).await.answer().await;
    for answer in [&plain, &chunked] {
        assert_eq!(answer.status, 202);
        let location = answer.head.lines().find_map(|line| line.strip_prefix("location: ")).unwrap();
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        assert_eq!(location, format!("/api/v1/orders/{id}?offer={}", sale.offer()));
    }
    let names = |answer: &Answer| {
        let mut names: Vec<String> =
            answer.head.lines().filter_map(|line| Some(line.split_once(": ")?.0.to_owned())).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(&plain), names(&chunked));
    let keys = |answer: &Answer| answer.json().as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&plain), keys(&chunked));
    assert_eq!(orders_of(&app, &sale).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_come_in_the_order_of_the_requests_however_they_are_cut() {
    let app = TestApp::start().await;
    let sale = app.open_sale(1_000).await;
    let mut stream = String::new();
    let mut expected = Vec::new();
    for number in 0..40 {
        let pass = app.buyer(&format!("buyer-{number}")).mint(sale.offer());
        let body = json!({"pass": pass, "quantity": 1});
        let (request, status) = match number % 5 {
            0 => (HEALTH.to_owned(), 200),
            1 => (in_chunks(sale.offer(), &body), 202),
            2 => (attempt("nowhere", &body), 404),
            _ => (attempt(sale.offer(), &body), 202),
        };
        stream.push_str(&request);
        expected.push(status);
    }
    let accepted = expected.iter().filter(|status| **status == 202).count();
    let sizes: [usize; 5] = [usize::MAX, 1_000, 397, 64, 7];
    for size in sizes {
        let mut raw = Raw::open(app.address).await;
        let (mut reader, mut writer) = raw.split();
        let write = async {
            for piece in stream.as_bytes().chunks(size.min(stream.len())) {
                tokio::io::AsyncWriteExt::write_all(&mut writer, piece).await.unwrap();
                // Lets the server see this piece alone, most of the time; the answers must not depend on it.
                tokio::task::yield_now().await;
            }
        };
        let read = async {
            let mut statuses = Vec::new();
            for _ in &expected {
                let answer = tokio::time::timeout(PATIENCE, Answer::read(&mut reader)).await;
                statuses.push(answer.expect("no answer").expect("closed").status);
            }
            statuses
        };
        let ((), statuses) = tokio::join!(write, read);
        // The first round buys, the others repeat themselves, and are told of orders that are recorded by then.
        app.settled().await;
        assert_eq!(statuses, expected, "pieces of {size}");
        for status in expected.iter_mut().filter(|status| **status == 202) {
            *status = 200;
        }
    }
    assert_eq!(orders_of(&app, &sale).await, u64::try_from(accepted).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_try_inside_another_request_is_no_try() {
    let limits = ["limits.header_timeout_s=1", "limits.body_timeout_s=1", "limits.idle_timeout_s=1"];
    let app = TestApp::with(&limits).await;
    let sale = app.open_sale(10).await;
    let hidden = attempt(sale.offer(), &json!({"pass": app.buyer("eve").mint(sale.offer()), "quantity": 1}));
    let carrier = post("/api/v1/demo/login", hidden.len() + 10, "");
    let corpus = [
        ("the body of another request", vec![carrier.as_str(), &hidden]),
        ("the body of a pipelined request", vec![HEALTH, &carrier, &hidden]),
        ("behind half a head", vec!["GET /healthz HTTP/1.1\r\nX: ", &hidden]),
        ("behind an answered request and half a head", vec![HEALTH, "GET /healthz HTTP/1.1\r\nX: ", &hidden]),
        ("behind half a request line", vec!["GET /healthz?", &hidden]),
    ];
    for (case, pieces) in &corpus {
        let mut raw = Raw::open(app.address).await;
        for piece in pieces {
            raw.say(piece).await;
            // The next piece comes alone.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        let said = raw.rest(PATIENCE).await;
        assert!(!said.contains("202 Accepted"), "{case}: {said}");
    }
    assert_eq!(orders_of(&app, &sale).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_try_may_ask_for_besides_is_not_lost() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(10)).await;
    let with = |name: &str, header: &str| {
        let pass = app.buyer(name).mint(sale.offer());
        attempt(sale.offer(), &json!({"pass": pass, "quantity": 1}))
            .replace("Host: shop\r\n", &format!("Host: shop\r\n{header}\r\n"))
    };
    let mut waits = Raw::saying(app.address, with("ann", "Prefer: wait=20")).await;
    assert_eq!(waits.answer().await.status, 201, "the order is recorded");
    let mut leaves = Raw::saying(app.address, with("bob", "Connection: close")).await;
    assert!(leaves.rest(PATIENCE).await.starts_with("HTTP/1.1 202 "), "and the connection is closed");
    let mut old = Raw::saying(app.address, with("cid", "X: y").replace("HTTP/1.1", "HTTP/1.0")).await;
    assert!(old.rest(PATIENCE).await.starts_with("HTTP/1.0 202 "));
    let mut careful = Raw::saying(app.address, with("dan", "Expect: 100-continue")).await;
    let told = careful.answer().await.status;
    assert_eq!(if told == 100 { careful.answer().await.status } else { told }, 202);
    let mut plain = Raw::saying(app.address, with("eve", "Connection: Keep-Alive")).await;
    assert_eq!(plain.answer().await.status, 202);
    plain.say(HEALTH).await;
    assert_eq!(plain.answer().await.status, 200);
}
