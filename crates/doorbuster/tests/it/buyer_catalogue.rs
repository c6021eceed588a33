//! What buyers read without buying: sales, what is left, their own standing, the documentation.

use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use doorbuster::ledger::Block;
use reqwest::header::HeaderValue;
use rules::buyer::BuyerId;
use rules::sale::SaleAction;
use rules::wire::Code;
use serde_json::{Value, json};

use crate::app::{AUTH_SECRET, TestApp, TestSale, assert_code, draft, draft_between, with_manual_clock};

fn titled(title: &str) -> Value {
    let mut draft = draft(1);
    draft["title"] = json!(title);
    draft
}

#[tokio::test(flavor = "multi_thread")]
async fn sales_are_listed_newest_first_in_pages_and_without_rehearsals() {
    let app = TestApp::start().await;
    assert_eq!(
        app.call("GET", "/api/v1/sales", None, None, 200).await,
        json!({"items": [], "next_cursor": null})
    );
    let mut ids = Vec::new();
    for title in ["one", "two", "three"] {
        ids.push(app.publish(titled(title)).await.id);
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let mut rehearsal = titled("secret");
    rehearsal["rehearsal"] = json!(true);
    let rehearsal = app.publish(rehearsal).await;
    let all = app.call("GET", "/api/v1/sales", None, None, 200).await;
    let titles: Vec<&str> =
        all["items"].as_array().unwrap().iter().map(|i| i["title"].as_str().unwrap()).collect();
    assert_eq!((titles, &all["next_cursor"]), (vec!["three", "two", "one"], &Value::Null));
    let first = app.call("GET", "/api/v1/sales?limit=2", None, None, 200).await;
    assert_eq!(first["items"].as_array().unwrap().len(), 2);
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = app.call("GET", &format!("/api/v1/sales?limit=2&cursor={cursor}"), None, None, 200).await;
    assert_eq!((&rest["items"][0]["id"], &rest["next_cursor"]), (&json!(ids[0]), &Value::Null));
    let seen = app.call("GET", &format!("/api/v1/sales/{}", rehearsal.id), None, None, 200).await;
    assert_eq!(seen["title"], "secret");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_pages_name_the_field() {
    let app = TestApp::start().await;
    let ann = app.buyer("ann");
    for path in ["/api/v1/sales", "/api/v1/orders"] {
        for (query, field) in
            [("limit=0", "limit"), ("limit=201", "limit"), ("limit=x", "limit"), ("cursor=!", "cursor")]
        {
            let problem = ann.call("GET", &format!("{path}?{query}"), None, 422).await;
            assert_code(&problem, "invalid_request");
            assert_eq!(problem["field"], field, "{path}?{query}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_is_not_sent_twice_and_no_cache_outlives_its_phase() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.publish(draft_between(4, 3_600, 1)).await;
    let paths = ["/api/v1/sales".to_owned(), format!("/api/v1/sales/{}", sale.id)];
    let mut tags = Vec::new();
    for path in &paths {
        let (status, headers, body) = app.send(app.client.get(app.url(path))).await;
        assert_eq!(status, 200, "{body}");
        let max_age = headers["cache-control"].to_str().unwrap().strip_prefix("public, max-age=").unwrap();
        assert!((1..=5).contains(&max_age.parse::<u64>().unwrap()), "{max_age}");
        assert!(headers.contains_key("content-length"));
        let tag = headers["etag"].clone();
        let again = app.client.get(app.url(path)).header("if-none-match", &tag);
        let (status, headers, body) = app.send(again).await;
        assert_eq!((status, body, &headers["etag"]), (304, Value::Null, &tag));
        tags.push(tag);
    }
    // The draft's clock runs a little ahead of the server's, which stands still.
    while app.send(app.client.get(app.url(&paths[1]))).await.1["cache-control"] != "public, max-age=0" {
        clock.advance(Duration::from_millis(500));
    }
    let seen = app.call("GET", &paths[1], None, None, 200).await;
    assert_eq!(seen["phase"], "upcoming");
    clock.advance(Duration::from_secs(1));
    for (path, tag) in paths.iter().zip(&tags) {
        let (status, _, body) = app.send(app.client.get(app.url(path)).header("if-none-match", tag)).await;
        assert_eq!(status, 200);
        let sale = if body["items"].is_array() { &body["items"][0] } else { &body };
        assert_eq!(sale["phase"], "open");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_not_found() {
    let app = TestApp::start().await;
    let ann = app.buyer("ann");
    let unknown = "01k9zq3v8g7m4x2r5w6t0n1pbc";
    for id in [unknown, "nonsense", "%00"] {
        for path in [
            format!("/api/v1/sales/{id}"),
            format!("/api/v1/sales/{id}/availability"),
            format!("/api/v1/sales/{id}/registration"),
            format!("/api/v1/orders/{id}"),
            "/api/v1/nothing".to_owned(),
            "/nothing".to_owned(),
            "/api/docs/nothing".to_owned(),
        ] {
            assert_code(&ann.call("GET", &path, None, 404).await, "not_found");
        }
        for path in [
            format!("/api/v1/offers/{id}/challenge"),
            format!("/api/v1/offers/{id}/pass"),
            format!("/api/v1/sales/{id}/registration"),
            format!("/api/v1/orders/{id}/cancel"),
        ] {
            assert_code(&ann.call("POST", &path, Some(&json!({})), 404).await, "not_found");
        }
        assert_code(
            &ann.call("DELETE", &format!("/api/v1/sales/{id}/registration"), None, 404).await,
            "not_found",
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_method_is_told_which_ones_there_are() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(1)).await;
    let attempt = format!("/api/v1/offers/{}/orders", sale.offer());
    for (method, path, allowed) in [("DELETE", "/api/v1/sales", "GET"), ("GET", attempt.as_str(), "POST")] {
        let request = app.client.request(method.parse().unwrap(), app.url(path));
        let (status, headers, problem) = app.send(request).await;
        assert_eq!(status, 405);
        assert_code(&problem, "method_not_allowed");
        assert!(headers["allow"].to_str().unwrap().contains(allowed), "{headers:?}");
        assert_eq!(headers["content-type"], "application/problem+json");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn availability_follows_the_sale_second_by_second() {
    let (app, clock) = with_manual_clock(&[]).await;
    let mut draft = draft_between(10, 3_600, 11);
    draft["offers"].as_array_mut().unwrap().push(json!({
        "name": "none", "price": {"amount": 1, "currency": "CNY"}, "stock": 0,
    }));
    let sale = app.publish(draft).await;
    let path = format!("/api/v1/sales/{}/availability", sale.id);
    let states = async || {
        let seen = app.call("GET", &path, None, None, 200).await;
        let states: Vec<String> = seen["offers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|o| o["state"].as_str().unwrap().to_owned())
            .collect();
        (states, seen["offers"][0]["next_return_at"].clone())
    };
    assert_eq!(states().await, (vec!["upcoming".into(), "upcoming".into()], Value::Null));
    // The draft's clock runs a little ahead of the server's, which stands still.
    clock.advance(Duration::from_secs(60));
    assert_eq!(states().await.0, ["open", "all_paid"]);
    for (name, units, state) in [("ann", 5, "open"), ("bob", 5, "few"), ("eve", 1, "sold_out")] {
        app.buyer(name).buy(sale.offer(), units, 202).await;
        app.settled().await;
        clock.advance(Duration::from_secs(1));
        let (found, returns) = states().await;
        assert_eq!(found[0], state);
        assert!(returns.is_string());
    }
    app.act(&sale, SaleAction::Pause).await;
    assert_eq!(states().await.0[0], "sold_out");
    app.act(&sale, SaleAction::End).await;
    assert_eq!(states().await.0, ["closed", "closed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn availability_is_counted_once_per_second_whoever_asks() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.publish(draft(1)).await;
    let path = format!("/api/v1/sales/{}/availability", sale.id);
    let (_, headers, before) = app.send(app.client.get(app.url(&path))).await;
    assert_eq!(headers["cache-control"], "public, max-age=1");
    app.buyer("ann").buy(sale.offer(), 1, 202).await;
    app.settled().await;
    clock.advance(Duration::from_millis(999));
    assert_eq!(app.call("GET", &path, None, None, 200).await, before);
    clock.advance(Duration::from_millis(1));
    let after = app.call("GET", &path, None, None, 200).await;
    assert_eq!(after["offers"][0]["state"], "sold_out");
    let (status, ..) =
        app.send(app.client.get(app.url(&path)).header("if-none-match", &headers["etag"])).await;
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_signs_up_sees_it_and_leaves() {
    let (app, clock) = with_manual_clock(&[]).await;
    let mut draft = draft_between(600, 3_600, 1);
    draft["registration"] = json!("required");
    let sale = app.publish(draft).await;
    let path = format!("/api/v1/sales/{}/registration", sale.id);
    let ann = app.buyer("ann");
    assert_code(&ann.call("GET", &path, None, 404).await, "not_found");
    let first = ann.call("POST", &path, None, 201).await;
    assert_eq!(first["sale_id"], json!(sale.id));
    clock.advance(Duration::from_secs(1));
    assert_eq!(ann.call("POST", &path, None, 200).await, first);
    assert_eq!(ann.call("GET", &path, None, 200).await, first);
    assert_eq!(ann.call("GET", "/api/v1/me", None, 200).await["registrations"], json!([first]));
    let availability =
        app.call("GET", &format!("/api/v1/sales/{}/availability", sale.id), None, None, 200).await;
    assert_eq!(availability["registrations"], 1);
    assert_eq!(ann.call("DELETE", &path, None, 204).await, Value::Null);
    assert_code(&ann.call("DELETE", &path, None, 404).await, "not_found");
    ann.call("POST", &path, None, 201).await;
    // The draft's clock runs a little ahead of the server's, which stands still.
    clock.advance(Duration::from_secs(700));
    assert_code(&ann.call("DELETE", &path, None, 409).await, "registration_closed");
    assert_code(&app.buyer("bob").call("POST", &path, None, 409).await, "registration_closed");
    ann.call("POST", &path, None, 200).await;
    for method in ["GET", "POST", "DELETE"] {
        assert_code(&app.call(method, &path, None, None, 401).await, "unauthorized");
    }
}

/// A sale that wants registration, with times in seconds from the server's clock.
fn registered_draft(app: &TestApp, window: (i64, i64), registration: (i64, i64)) -> Value {
    let mut draft = draft(1);
    let at = |seconds: i64| json!(app.app.clock.now().plus_ms(seconds * 1_000));
    draft["registration"] = json!("required");
    (draft["opens_at"], draft["closes_at"]) = (at(window.0), at(window.1));
    draft["registration_opens_at"] = at(registration.0);
    draft["registration_closes_at"] = at(registration.1);
    draft
}

#[tokio::test(flavor = "multi_thread")]
async fn registration_has_a_window_of_its_own() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.publish(registered_draft(&app, (600, 3_600), (60, 120))).await;
    let path = format!("/api/v1/sales/{}/registration", sale.id);
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let is_open = async || {
        let seen = app.operate("GET", &format!("/admin/v1/sales/{}/registrations", sale.id), None, 200).await;
        seen["open"].as_bool().unwrap()
    };
    clock.advance(Duration::from_millis(59_999));
    assert_code(&ann.call("POST", &path, None, 409).await, "registration_closed");
    assert!(!is_open().await, "a moment before");
    clock.advance(Duration::from_millis(1));
    ann.call("POST", &path, None, 201).await;
    assert!(is_open().await, "from registration_opens_at on");
    clock.advance(Duration::from_millis(59_999));
    bob.call("POST", &path, None, 201).await;
    assert_eq!(bob.call("DELETE", &path, None, 204).await, Value::Null);
    assert!(is_open().await, "up to the last moment");
    clock.advance(Duration::from_millis(1));
    assert_code(&bob.call("POST", &path, None, 409).await, "registration_closed");
    assert_code(&ann.call("DELETE", &path, None, 409).await, "registration_closed");
    assert!(!is_open().await, "at registration_closes_at, though the sale opens much later");
    ann.call("GET", &path, None, 200).await;
}

/// What everybody is told of ann's registration, and of how many there are.
async fn ann_is_known(app: &TestApp, sale: &TestSale, count: u64) {
    let path = format!("/api/v1/sales/{}/registration", sale.id);
    let ann = app.buyer("ann");
    ann.call("GET", &path, None, 200).await;
    ann.call("POST", &path, None, 200).await;
    app.buyer("eve").call("GET", &path, None, 404).await;
    assert_code(&app.buyer("eve").call("DELETE", &path, None, 404).await, "not_found");
    let admin = format!("/admin/v1/sales/{}", sale.id);
    let list = app.operate("GET", &format!("{admin}/registrations"), None, 200).await;
    let shown = app.operate("GET", &admin, None, 200).await;
    let all = app.operate("GET", "/admin/v1/sales", None, 200).await;
    let listed = all["items"].as_array().unwrap().iter().find(|item| item["id"] == json!(sale.id)).unwrap();
    let stats = app.stats(sale).await;
    for told in [&list["count"], &shown["registrations"], &listed["registrations"], &stats["registrations"]] {
        assert_eq!(told, count, "{}", sale.id);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn registrations_are_in_memory_only_while_their_sale_needs_them() {
    let (app, clock) = with_manual_clock(&[]).await;
    let ended = app.publish(registered_draft(&app, (600, 3_600), (0, 60))).await;
    let closed = app.publish(registered_draft(&app, (600, 3_600), (0, 60))).await;
    let later = app.publish(registered_draft(&app, (600, 99_999), (0, 60))).await;
    let open = app.publish(draft(1)).await;
    for sale in [&ended, &closed, &later] {
        for name in ["ann", "bob"] {
            let path = format!("/api/v1/sales/{}/registration", sale.id);
            app.buyer(name).call("POST", &path, None, 201).await;
        }
    }
    let roster = &app.app.roster;
    let keeps = |sale: &TestSale| roster.keeps(sale.id.parse().unwrap());
    assert_eq!([&ended, &closed, &later, &open].map(keeps), [true, true, true, false]);
    assert_eq!(roster.all_registrations(), 6);

    app.act(&ended, SaleAction::End).await;
    assert!(!keeps(&ended), "its operator ended it");
    clock.advance(Duration::from_secs(3_600));
    app.app.forget_registrations().await;
    assert_eq!([&closed, &later].map(keeps), [false, true], "its time is over");
    assert_eq!(roster.all_registrations(), 2);
    for sale in [&ended, &closed, &later] {
        ann_is_known(&app, sale, 2).await;
    }

    // A sale that is prolonged gives passes again, to those who signed up.
    let longer = json!({"closes_at": clock.now().plus_s(600)});
    app.operate("PATCH", &format!("/admin/v1/sales/{}", closed.id), Some(&longer), 200).await;
    assert!(keeps(&closed));
    let pass = format!("/api/v1/offers/{}/pass", closed.offer());
    app.buyer("ann").call("POST", &pass, Some(&json!({})), 200).await;
    assert_code(&app.buyer("eve").call("POST", &pass, Some(&json!({})), 403).await, "not_registered");
    clock.advance(Duration::from_secs(600));

    // A start reads those that matter and no others.
    let app = TestApp::on(app.stop().await, clock, &[]).await;
    assert_eq!(app.app.roster.kept(), [later.id.parse().unwrap()]);
    for sale in [&ended, &closed, &later] {
        ann_is_known(&app, sale, 2).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_registrations_are_taken() {
    let app = TestApp::with(&["limits.registrations=1"]).await;
    let sale = app.publish(registered_draft(&app, (600, 3_600), (-60, 300))).await;
    let path = format!("/api/v1/sales/{}/registration", sale.id);
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    ann.call("POST", &path, None, 201).await;
    assert_code(&bob.call("POST", &path, None, 503).await, "busy");
    ann.call("POST", &path, None, 200).await;
    ann.call("DELETE", &path, None, 204).await;
    bob.call("POST", &path, None, 201).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sales_are_shown_from_memory_when_the_ledger_is_gone() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(1)).await;
    let hand = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    hand.execute_batch("alter table sales rename to elsewhere").unwrap();
    app.operate("GET", &format!("/admin/v1/sales/{}", sale.id), None, 500).await;
    let shown = app.call("GET", &format!("/api/v1/sales/{}", sale.id), None, None, 200).await;
    assert_eq!(app.call("GET", "/api/v1/sales", None, None, 200).await["items"], json!([shown]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_without_registration_takes_none() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(1)).await;
    let path = format!("/api/v1/sales/{}/registration", sale.id);
    assert_code(&app.buyer("ann").call("POST", &path, None, 409).await, "registration_closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_sees_the_own_standing() {
    let app = TestApp::start().await;
    assert_code(&app.call("GET", "/api/v1/me", None, None, 401).await, "unauthorized");
    let (status, headers, problem) =
        app.send(app.client.get(app.url("/api/v1/me")).bearer_auth("no token")).await;
    assert_eq!((status, &headers["www-authenticate"]), (401, &HeaderValue::from_static("Bearer")));
    assert_code(&problem, "unauthorized");
    let me = app.buyer("ann").call("GET", "/api/v1/me", None, 200).await;
    let expected = json!({
        "buyer": "ann", "strikes": 0, "strikes_limit": 3, "blocked_until": null, "next_decay_at": null,
        "notice": null, "registrations": [],
    });
    assert_eq!(me, expected);
    let until = app.app.clock.now().plus_s(60);
    let buyer = BuyerId::parse("ann").unwrap();
    app.app.block(Block { buyer, until, note: None }).await.unwrap();
    let me = app.buyer("ann").call("GET", "/api/v1/me", None, 200).await;
    assert_eq!(me["blocked_until"], json!(until));
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_demo_logs_anybody_in() {
    let app = TestApp::start().await;
    let ann = json!({"buyer": "ann"});
    assert_code(&app.call("POST", "/api/v1/demo/login", None, Some(&ann), 404).await, "not_found");
    // Also one that is particular about its tokens.
    let demo = TestApp::with(&["demo=true", "auth.issuer=the-shop", "auth.audience=drops"]).await;
    let login = demo.call("POST", "/api/v1/demo/login", None, Some(&ann), 200).await;
    let me = demo.call("GET", "/api/v1/me", login["token"].as_str(), None, 200).await;
    assert_eq!(me["buyer"], "ann");
    assert!(login["expires_at"].is_string());
    for bad in [json!({"buyer": ""}), json!({"buyer": 7}), json!({})] {
        let problem = demo.call("POST", "/api/v1/demo/login", None, Some(&bad), 422).await;
        assert_eq!(problem["field"], "buyer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_knows_every_call_and_every_refusal() {
    let app = TestApp::start().await;
    let (status, headers, document) = app.send(app.client.get(app.url("/api/openapi.json"))).await;
    assert_eq!(status, 200);
    assert_eq!(document["openapi"], "3.1.0");
    let contract = [
        ("/api/v1/time", "get", "200"),
        ("/api/v1/sales", "get", "200 304 422 429 503"),
        ("/api/v1/sales/{sale}", "get", "200 304 404 429 503"),
        ("/api/v1/sales/{sale}/availability", "get", "200 404 503"),
        ("/api/v1/me", "get", "200 401"),
        ("/api/v1/sales/{sale}/registration", "post", "200 201 401 404 409 429"),
        ("/api/v1/sales/{sale}/registration", "get", "200 401 404"),
        ("/api/v1/sales/{sale}/registration", "delete", "204 401 404 409"),
        ("/api/v1/offers/{offer}/challenge", "post", "200 401 404 410 429 503"),
        ("/api/v1/offers/{offer}/pass", "post", "200 400 401 403 404 410 413 415 422 425 429 503"),
        ("/api/v1/offers/{offer}/orders", "post", "200 201 202 400 403 404 409 410 413 415 422 425 429 503"),
        ("/api/v1/orders/{id}", "get", "200 401 404 422 503"),
        ("/api/v1/orders", "get", "200 401 422"),
        ("/api/v1/orders/{id}/cancel", "post", "200 401 404 409 503"),
        ("/api/v1/events", "get", "101 200 400 401 403 429 503"),
        ("/api/v1/demo/login", "post", "200 404 422"),
    ];
    for (path, method, statuses) in contract {
        let responses = &document["paths"][path][method]["responses"];
        for status in statuses.split(' ') {
            let response = &responses[status];
            assert!(response.is_object(), "{method} {path} does not document {status}");
            if status >= "400" {
                let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(schema, "#/components/schemas/Problem");
            }
        }
    }
    assert!(document["components"]["schemas"]["Problem"].is_object());
    assert_eq!(document["components"]["securitySchemes"]["buyer_token"]["scheme"], "bearer");
    assert_no_dangling_reference(&document, &document);
    let again = app.client.get(app.url("/api/openapi.json")).header("if-none-match", &headers["etag"]);
    assert_eq!(app.send(again).await.0, 304);
}

fn assert_no_dangling_reference(value: &Value, document: &Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(target)) = fields.get("$ref") {
                let pointer = target.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{target} is not there");
            }
            fields.values().for_each(|field| assert_no_dangling_reference(field, document));
        }
        Value::Array(items) => items.iter().for_each(|item| assert_no_dangling_reference(item, document)),
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documentation_is_a_page_of_our_own() {
    let app = TestApp::start().await;
    let response = app.client.get(app.url("/")).send().await.unwrap();
    assert_eq!((response.status().as_u16(), response.url().path()), (200, "/api/docs"));
    let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.contains("script-src 'self';"), "{policy}");
    let page = response.text().await.unwrap();
    assert!(page.contains("<title>API · Doorbuster</title>") && !page.contains("://"), "{page}");
    for code in Code::ALL {
        assert!(page.contains(&format!("<tr id=\"{}\">", code.as_str())), "no place for {code:?}");
    }
    assert!(page.find("id=\"calls\"") < page.find("id=\"sold_out\""), "calls come first");
    let names = ["page.css", "page.js", "swagger-ui.css", "swagger-ui-bundle.js"];
    for name in names {
        assert!(page.contains(&format!("\"/api/docs/{name}\"")), "{name}");
        let file = app.client.get(app.url(&format!("/api/docs/{name}"))).send().await.unwrap();
        let kind = file.headers()["content-type"].to_str().unwrap().to_owned();
        assert_eq!((file.status().as_u16(), kind.starts_with("text/")), (200, true), "{name}: {kind}");
    }
    let (_, headers, _) = app.send(app.client.get(app.url("/api/v1/time"))).await;
    assert_eq!(headers["content-security-policy"], "default-src 'none'; frame-ancestors 'none'");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_listed_by_short_names_buyers_first() {
    let app = TestApp::start().await;
    let (_, _, document) = app.send(app.client.get(app.url("/api/openapi.json"))).await;
    let groups: Vec<_> = document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
    assert_eq!(groups, ["buyer", "provider", "operator", "demo", "sandbox"]);
    for calls in document["paths"].as_object().unwrap().values() {
        for call in calls.as_object().unwrap().values() {
            let name = call["summary"].as_str().unwrap();
            assert!(!name.contains('`') && !name.contains('\n') && !name.ends_with('.'), "{name}");
            assert!(groups.contains(&&call["tags"][0]), "{call}");
        }
    }
    let search = &document["paths"]["/admin/v1/orders"]["get"]["parameters"];
    let undescribed = |one: &&Value| one["description"].as_str().is_none_or(str::is_empty);
    assert_eq!(search.as_array().unwrap().iter().find(undescribed), None);
}

/// A token with these claims, signed as the shop would, or with another secret.
fn token(claims: &Value, secret: &str) -> String {
    let part = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
    let text = format!("{}.{}", part(br#"{"alg":"HS256"}"#), part(claims.to_string().as_bytes()));
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    let signature = part(hmac::sign(&key, text.as_bytes()).as_ref());
    format!("{text}.{signature}")
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_known_is_told_why() {
    let app = TestApp::start().await;
    let detail = async |path: &str, token: Option<&str>| {
        let problem = app.call("GET", path, token, None, 401).await;
        assert_code(&problem, "unauthorized");
        problem["detail"].as_str().unwrap().to_owned()
    };
    let now_s = app.app.clock.now().0 / 1_000;
    let good = json!({"sub": "ann", "exp": now_s + 600});
    app.call("GET", "/api/v1/me", Some(&token(&good, AUTH_SECRET)), None, 200).await;
    let cases = [
        (json!({"sub": "ann"}), AUTH_SECRET, "`exp` is needed"),
        (json!({"sub": "ann", "exp": "tomorrow"}), AUTH_SECRET, "`exp` is needed"),
        (json!({"sub": "ann", "exp": now_s - 600}), AUTH_SECRET, "has expired"),
        (json!({"exp": now_s + 600}), AUTH_SECRET, "`sub` is needed"),
        (json!({"sub": 4711, "exp": now_s + 600}), AUTH_SECRET, "`sub` is needed"),
        (good.clone(), "another-secret-0123456789abcdef0123456789", "signature does not match"),
        // Nothing of what an unsigned token says is looked at.
        (json!({"sub": "ann"}), "another-secret-0123456789abcdef0123456789", "signature does not match"),
    ];
    for (claims, secret, why) in cases {
        let said = detail("/api/v1/me", Some(&token(&claims, secret))).await;
        assert!(said.contains(why), "{claims}: {said}");
    }
    assert!(detail("/api/v1/me", None).await.contains("A buyer's token is needed"));
    assert!(detail("/api/v1/me", Some("ann")).await.contains("no token (JWT)"));
    for key in [None, Some("guess"), Some(token(&good, AUTH_SECRET).as_str())] {
        assert!(detail("/admin/v1/sales", key).await.contains("admin key is needed"), "{key:?}");
    }
}
