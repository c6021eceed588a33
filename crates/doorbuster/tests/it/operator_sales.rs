//! Sales and offers as their operator makes, changes and throws them away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use doorbuster::clock::Clock;
use doorbuster::ledger::sqlite::Remembered;
use futures_util::FutureExt as _;
use rules::time::UnixMs;
use serde_json::{Value, json};

use crate::app::{ADMIN_KEY, TestApp, draft, draft_between, eventually};

async fn make(app: &TestApp, draft: &Value) -> (String, Value) {
    let sale = app.operate("POST", "/admin/v1/sales", Some(draft), 201).await;
    (format!("/admin/v1/sales/{}", sale["id"].as_str().unwrap()), sale)
}

/// The draft with one field changed; `/offers/0/stock` names a field.
fn but(field: &str, value: Value) -> Value {
    let mut draft = draft(5);
    let (parent, name) = field.rsplit_once('/').unwrap();
    draft.pointer_mut(parent).unwrap()[name] = value;
    draft
}

async fn refused(app: &TestApp, method: &str, path: &str, body: &Value, status: u16) -> (String, String) {
    let problem = app.operate(method, path, Some(body), status).await;
    let text = |name: &str| problem[name].as_str().unwrap_or_default().to_owned();
    (text("code"), text("field"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_sale_is_a_draft_that_has_what_was_sent() {
    let app = TestApp::start().await;
    let mut sent = draft(7);
    let second = json!({"name": "Second", "price": {"amount": 1, "currency": "JPY"}, "stock": 0});
    sent["offers"].as_array_mut().unwrap().push(second);
    let (path, sale) = make(&app, &sent).await;
    assert_eq!((&sale["state"], &sale["phase"]), (&json!("draft"), &json!("open")));
    assert_eq!((&sale["pay_within_s"], &sale["challenge"]), (&json!(900), &json!("none")));
    assert_eq!(sale["offers"][0]["name"], "Feitian 53");
    assert_eq!((&sale["offers"][0]["stock"], &sale["offers"][1]["max_per_order"]), (&json!(7), &json!(1)));
    assert_eq!(app.operate("GET", &path, None, 200).await, sale);
    let stats = app.operate("GET", &format!("{path}/stats"), None, 200).await;
    let offer = &sale["offers"][0]["id"];
    let zeros = json!({"offer_id": offer, "stock": 7, "free": 7, "held": 0, "sold": 0, "returning": 0});
    assert_eq!((&stats["offers"][0], &stats["funnel"]["tries"]), (&zeros, &json!(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_that_is_not_as_it_must_be_is_refused_by_its_field() {
    let app = TestApp::start().await;
    let past = draft_between(-60, -120, 1);
    let table = [
        (but("/title", json!("")), "title"),
        (but("/title", json!("x".repeat(201))), "title"),
        (but("/title", json!(7)), "title"),
        (but("/title", Value::Null), "title"),
        (past, "closes_at"),
        (but("/opens_at", json!("tomorrow")), "opens_at"),
        (but("/closes_at", json!("1999-01-01T00:00:00Z")), "closes_at"),
        (but("/pay_within_s", json!(0)), "pay_within_s"),
        (but("/pay_within_s", json!(86_401)), "pay_within_s"),
        (but("/challenge", json!("riddle")), "challenge"),
        (but("/registration", json!("maybe")), "registration"),
        (but("/registration_opens_at", json!("2026-01-01T00:00:00Z")), "registration_opens_at"),
        (but("/rehearsal", json!("yes")), "rehearsal"),
        (but("/publish_at", json!(5)), "publish_at"),
        (but("/publish_at", json!("2199-01-01T00:00:00Z")), "publish_at"),
        (but("/challenge", Value::Null), "challenge"),
        (but("/challenge", json!(5)), "challenge"),
        (but("/challenge", json!([])), "challenge"),
        (but("/challenge", json!({"none": null})), "challenge"),
        (but("/opens_at", json!("2026-12-01T12:00:00+25:00")), "opens_at"),
        (
            but("/offers", json!([["a", null, null, null, {"amount": 1, "currency": "CNY"}, 1, 1]])),
            "offers[0]",
        ),
        (but("/offers/0/price", json!([149_900, "CNY"])), "offers[0].price"),
        (but("/offers/0/price/currency", json!("XTS")), "offers[0].price.currency"),
        (but("/offers/0/price/currency", json!("BYR")), "offers[0].price.currency"),
        (but("/offers/0/price/amount", json!(10_000_000_000_000_i64)), "offers[0].price.amount"),
        (but("/offers", json!([])), "offers"),
        (but("/offers/0/name", json!(" ")), "offers[0].name"),
        (but("/offers/0/stock", json!(-1)), "offers[0].stock"),
        (but("/offers/0/stock", json!(1.5)), "offers[0].stock"),
        (but("/offers/0/stock", json!(10_000_001)), "offers[0].stock"),
        (but("/offers/0/max_per_order", json!(0)), "offers[0].max_per_order"),
        (but("/offers/0/max_per_order", json!(101)), "offers[0].max_per_order"),
        (but("/offers/0/price/amount", json!(-1)), "offers[0].price.amount"),
        (but("/offers/0/price/amount", json!(0)), "offers[0].price.amount"),
        (but("/offers/0/price/currency", json!("XXL")), "offers[0].price.currency"),
        (
            but("/offers/0/list_price", json!({"amount": 1, "currency": "EUR"})),
            "offers[0].list_price.currency",
        ),
        (but("/offers/0/image", json!("javascript:alert(1)")), "offers[0].image"),
    ];
    for (body, field) in table {
        let found = refused(&app, "POST", "/admin/v1/sales", &body, 422).await;
        assert_eq!(found, ("invalid_request".to_owned(), field.to_owned()), "{body}");
    }
    let mut missing = draft(1);
    missing["offers"][0].as_object_mut().unwrap().remove("price");
    assert_eq!(refused(&app, "POST", "/admin/v1/sales", &missing, 422).await.1, "offers[0].price");
    let none = app.operate("GET", "/admin/v1/sales", None, 200).await;
    assert_eq!(none["items"], json!([]), "nothing of this was kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_nobody_may_set_are_refused_everywhere() {
    let app = TestApp::start().await;
    for field in ["/id", "/state", "/phase", "/registrations", "/admin"] {
        refused(&app, "POST", "/admin/v1/sales", &but(field, json!("published")), 422).await;
    }
    for field in ["/offers/0/id", "/offers/0/live_units", "/offers/0/paid_units", "/offers/0/sold"] {
        refused(&app, "POST", "/admin/v1/sales", &but(field, json!(1)), 422).await;
    }
    let (path, sale) = make(&app, &draft(5)).await;
    let offer = sale["offers"][0]["id"].as_str().unwrap();
    for body in [json!({"state": "published"}), json!({"id": "x"}), json!({"live_units": 3})] {
        refused(&app, "PATCH", &path, &body, 422).await;
        refused(&app, "PATCH", &format!("{path}/offers/{offer}"), &body, 422).await;
    }
    let stock = json!({"change": 1, "change_id": "a", "stock": 9});
    refused(&app, "POST", &format!("/admin/v1/offers/{offer}/stock"), &stock, 422).await;
    let block = json!({"until": "2100-01-01T00:00:00Z", "strikes": 9});
    refused(&app, "PUT", "/admin/v1/blocks/ann", &block, 422).await;
    app.operate("GET", "/admin/v1/orders?buyers=ann", None, 422).await;
    assert_eq!(app.operate("GET", &path, None, 200).await, sale);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_cannot_be_read_says_why() {
    let app = TestApp::start().await;
    let send = async |kind: &str, body: String| {
        let request = app.client.post(app.url("/admin/v1/sales")).bearer_auth(ADMIN_KEY);
        let response = request.header("content-type", kind).body(body).send().await.unwrap();
        let status = response.status().as_u16();
        assert_eq!(response.headers()["content-type"], "application/problem+json");
        (status, response.json::<Value>().await.unwrap()["code"].as_str().unwrap().to_owned())
    };
    assert_eq!(send("application/json", "{".into()).await, (400, "malformed".into()));
    assert_eq!(send("application/json", format!("{} x", draft(1))).await, (400, "malformed".into()));
    for not_an_object in ["[]", "null", "5", "\"x\"", " [1]"] {
        assert_eq!(send("application/json", not_an_object.into()).await, (422, "invalid_request".into()));
    }
    let beyond = draft(1).to_string().replace("\"stock\":1", "\"stock\":1e999");
    assert_eq!(send("application/json", beyond).await, (422, "invalid_request".into()), "it is JSON");
    assert_eq!(send("text/plain", draft(1).to_string()).await, (415, "unsupported_media_type".into()));
    let huge = format!("\"{}\"", "x".repeat(8 * 1_024 * 1_024));
    assert_eq!(send("application/json", huge).await, (413, "too_large".into()));
    app.operate("PUT", "/admin/v1/sales", Some(&json!({})), 405).await;
    app.operate("GET", "/admin/v1/nothing", None, 404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_offers_keep_their_order_and_one_more_is_too_many() {
    let app = TestApp::start().await;
    let offer = |n: usize| {
        json!({"name": format!("Offer {n}"), "description": "long ".repeat(40),
               "price": {"amount": n + 1, "currency": "CNY"}, "stock": n})
    };
    let offers: Vec<_> = (0..1_000).map(offer).collect();
    let (path, sale) = make(&app, &but("/offers", json!(offers))).await;
    let names: Vec<_> =
        sale["offers"].as_array().unwrap().iter().map(|offer| offer["name"].clone()).collect();
    assert_eq!(names, (0..1_000).map(|n| json!(format!("Offer {n}"))).collect::<Vec<_>>());
    let more = refused(&app, "POST", &format!("{path}/offers"), &offer(1_000), 422).await;
    assert_eq!(more.1, "offers");
    let published = app.operate("POST", &format!("{path}/publish"), None, 200).await;
    assert_eq!(published["offers"], sale["offers"]);
    let again = app.operate("POST", &format!("{path}/preheat"), None, 200).await;
    assert_eq!(again, json!({"sale_id": sale["id"], "offers": 1_000, "seeded": 0}));
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_go_on_where_they_stopped_and_filter_by_state() {
    let app = TestApp::start().await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.push(make(&app, &draft(1)).await.1["id"].clone());
    }
    made.reverse();
    let ids = |page: &Value| -> Vec<Value> {
        page["items"].as_array().unwrap().iter().map(|sale| sale["id"].clone()).collect()
    };
    let (mut seen, mut path) = (Vec::new(), "/admin/v1/sales?limit=2".to_owned());
    loop {
        let page = app.operate("GET", &path, None, 200).await;
        seen.extend(ids(&page));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/admin/v1/sales?limit=2&cursor={cursor}");
    }
    assert_eq!(seen, made, "newest first, each once");
    let third = made[2].as_str().unwrap();
    app.operate("POST", &format!("/admin/v1/sales/{third}/publish"), None, 200).await;
    let published = app.operate("GET", "/admin/v1/sales?state=published", None, 200).await;
    assert_eq!(ids(&published), [json!(third)]);
    assert_eq!(ids(&app.operate("GET", "/admin/v1/sales?state=draft", None, 200).await).len(), 4);
    for (query, field) in [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=x", "limit"),
        ("cursor=-1", "cursor"),
        ("state=open", "state"),
    ] {
        let problem = app.operate("GET", &format!("/admin/v1/sales?{query}"), None, 422).await;
        assert_eq!(problem["field"], field);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_takes_every_change_and_null_clears() {
    let app = TestApp::start().await;
    let mut far = but("/publish_at", json!("2100-01-01T00:00:00Z"));
    far["closes_at"] = json!("2100-01-02T00:00:00Z");
    let (path, sale) = make(&app, &far).await;
    let change = json!({"title": "New", "pay_within_s": 60, "challenge": "pow", "registration": "required",
        "registration_opens_at": "2026-01-01T00:00:00Z", "publish_at": null, "rehearsal": true});
    let after = app.operate("PATCH", &path, Some(&change), 200).await;
    for (field, value) in change.as_object().unwrap() {
        let same = after[field] == *value || field.ends_with("_at") && !value.is_null();
        assert!(same, "{field}: {}", after[field]);
    }
    assert_eq!(after["registration_opens_at"], "2026-01-01T00:00:00.000Z");
    assert_eq!(after["offers"], sale["offers"], "offers that were not sent stay");
    let cleared = app.operate("PATCH", &path, Some(&json!({"registration_opens_at": null})), 200).await;
    assert_eq!(cleared["registration_opens_at"], Value::Null);
    let offers =
        json!({"offers": [{"name": "Other", "price": {"amount": 5, "currency": "EUR"}, "stock": 2}]});
    let replaced = app.operate("PATCH", &path, Some(&offers), 200).await;
    assert_eq!(replaced["offers"][0]["name"], "Other");
    assert_ne!(replaced["offers"][0]["id"], sale["offers"][0]["id"]);
    assert_eq!(refused(&app, "PATCH", &path, &json!({"offers": []}), 422).await.1, "offers");
    assert_eq!(refused(&app, "PATCH", &path, &json!({"title": null}), 422).await.1, "title");
    assert_eq!(app.operate("GET", &path, None, 200).await, replaced, "a refused change changes nothing");
    let nobody = "/admin/v1/sales/01k9zq3v8g7m4x2r5w6t0n1pbc";
    for path in [nobody, "/admin/v1/sales/x"] {
        app.operate("PATCH", path, Some(&json!({})), 404).await;
        app.operate("GET", path, None, 404).await;
        app.operate("DELETE", path, None, 404).await;
        app.operate("GET", &format!("{path}/stats"), None, 404).await;
        app.operate("GET", &format!("{path}/stream"), None, 404).await;
        app.operate("GET", &format!("{path}/registrations"), None, 404).await;
        for action in ["publish", "pause", "resume", "end", "preheat"] {
            app.operate("POST", &format!("{path}/{action}"), None, 404).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_published_sale_changes_only_as_its_buyers_can_bear() {
    let app = TestApp::start().await;
    let (path, _) = make(&app, &draft_between(600, 3_600, 5)).await;
    app.operate("POST", &format!("{path}/publish"), None, 200).await;
    let at = |s: i64| (jiff::Timestamp::now() + jiff::SignedDuration::from_secs(s)).to_string();
    for body in [json!({"title": "Tonight"}), json!({"closes_at": at(7_200)}), json!({"opens_at": at(900)})] {
        app.operate("PATCH", &path, Some(&body), 200).await;
    }
    let known = app.app.catalogue.sale(path.rsplit('/').next().unwrap().parse().unwrap()).unwrap();
    assert_eq!(known.sale.title, "Tonight", "buyers see it at once");
    for (body, field) in [
        (json!({"opens_at": at(60)}), "opens_at"),
        (json!({"closes_at": at(3_600)}), "closes_at"),
        (json!({"pay_within_s": 5}), "pay_within_s"),
        (json!({"challenge": "pow"}), "challenge"),
        (json!({"registration": "required"}), "registration"),
        (json!({"rehearsal": true}), "rehearsal"),
        (json!({"publish_at": at(5)}), "publish_at"),
        (json!({"offers": draft(1)["offers"]}), "offers"),
    ] {
        let found = refused(&app, "PATCH", &path, &body, 409).await;
        assert_eq!(found, ("not_editable".to_owned(), field.to_owned()));
    }
    app.operate("POST", &format!("{path}/end"), None, 200).await;
    let found = refused(&app, "PATCH", &path, &json!({"title": "Again"}), 409).await;
    assert_eq!(found, ("not_editable".to_owned(), "title".to_owned()));
    assert_eq!(refused(&app, "DELETE", &path, &json!({}), 409).await.0, "wrong_state");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draft_can_be_thrown_away_and_nothing_of_it_stays() {
    let app = TestApp::start().await;
    let (path, _) = make(&app, &draft(5)).await;
    app.operate("DELETE", &path, None, 204).await;
    app.operate("DELETE", &path, None, 404).await;
    app.operate("GET", &path, None, 404).await;
    assert_eq!(app.operate("GET", "/admin/v1/sales", None, 200).await["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn offers_come_go_and_change_in_a_draft() {
    let app = TestApp::start().await;
    let (path, sale) = make(&app, &draft(5)).await;
    let first = sale["offers"][0]["id"].as_str().unwrap();
    let new = json!({"name": "Second", "price": {"amount": 9, "currency": "CNY"}, "stock": 3});
    let second = app.operate("POST", &format!("{path}/offers"), Some(&new), 201).await;
    let second_path = format!("{path}/offers/{}", second["id"].as_str().unwrap());
    assert_eq!(app.operate("GET", &second_path, None, 200).await, second);
    let listed = app.operate("GET", &format!("{path}/offers"), None, 200).await;
    assert_eq!(listed["items"], json!([sale["offers"][0], second]));
    let change = json!({"name": "Renamed", "stock": 4, "description": "d", "price": {"amount": 8, "currency": "CNY"},
        "list_price": {"amount": 10, "currency": "CNY"}, "image": "/x.png", "max_per_order": 2});
    let changed = app.operate("PATCH", &second_path, Some(&change), 200).await;
    for (field, value) in change.as_object().unwrap() {
        assert_eq!(changed[field], *value, "{field}");
    }
    let cleared = json!({"description": null, "image": null, "list_price": null});
    let cleared = app.operate("PATCH", &second_path, Some(&cleared), 200).await;
    assert_eq!((&cleared["description"], &cleared["list_price"]), (&Value::Null, &Value::Null));
    for (body, field) in [
        (json!({"stock": 10_000_001}), "stock"),
        (json!({"name": ""}), "name"),
        (json!({"price": {"amount": -5, "currency": "CNY"}}), "price.amount"),
    ] {
        assert_eq!(refused(&app, "PATCH", &second_path, &body, 422).await.1, field);
    }
    assert_eq!(refused(&app, "POST", &format!("{path}/offers"), &json!({"name": "x"}), 422).await.1, "price");
    app.operate("DELETE", &format!("{path}/offers/{first}"), None, 204).await;
    app.operate("DELETE", &format!("{path}/offers/{first}"), None, 404).await;
    app.operate("GET", &format!("{path}/offers/{first}"), None, 404).await;
    app.operate("PATCH", &format!("{path}/offers/{first}"), Some(&json!({"name": "x"})), 404).await;
    let last = app.operate("DELETE", &second_path, None, 422).await;
    assert_eq!(last["field"], "offers", "one must remain");
}

#[tokio::test(flavor = "multi_thread")]
async fn published_offers_change_only_how_they_are_described() {
    let app = TestApp::start().await;
    let sale = app.open_sale(5).await;
    let path = format!("/admin/v1/sales/{}/offers", sale.id);
    let offer = format!("{path}/{}", sale.offer());
    let described = json!({"description": "words", "image": "/b.png"});
    assert_eq!(app.operate("PATCH", &offer, Some(&described), 200).await["description"], "words");
    for (body, field) in [
        (json!({"name": "Better"}), "name"),
        (json!({"stock": 6}), "stock"),
        (json!({"max_per_order": 1}), "max_per_order"),
        (json!({"price": {"amount": 1, "currency": "CNY"}}), "price"),
        (json!({"list_price": {"amount": 1, "currency": "CNY"}}), "list_price"),
    ] {
        let found = refused(&app, "PATCH", &offer, &body, 409).await;
        assert_eq!(found, ("not_editable".to_owned(), field.to_owned()));
    }
    let new = json!({"name": "Second", "price": {"amount": 9, "currency": "CNY"}, "stock": 3});
    assert_eq!(refused(&app, "POST", &path, &new, 409).await.0, "wrong_state");
    assert_eq!(refused(&app, "DELETE", &offer, &json!({}), 409).await.0, "wrong_state");
    app.operate("POST", &format!("/admin/v1/sales/{}/end", sale.id), None, 200).await;
    assert_eq!(refused(&app, "PATCH", &offer, &json!({"name": "Late"}), 409).await.0, "not_editable");
}

#[tokio::test(flavor = "multi_thread")]
async fn actions_follow_the_table_of_states() {
    let app = TestApp::start().await;
    let (path, sale) = make(&app, &draft(5)).await;
    let offer = sale["offers"][0]["id"].as_str().unwrap();
    let act = async |action: &str, status: u16| {
        let answer = app.operate("POST", &format!("{path}/{action}"), None, status).await;
        let word = if status == 200 { &answer["state"] } else { &answer["code"] };
        word.as_str().unwrap_or_default().to_owned()
    };
    for action in ["pause", "resume", "end", "preheat"] {
        assert_eq!(act(action, 409).await, "wrong_state", "{action} of a draft");
    }
    app.operate("POST", &format!("/admin/v1/offers/{offer}/preheat"), None, 409).await;
    for (action, state) in [
        ("publish", "published"),
        ("publish", "published"),
        ("resume", "published"),
        ("pause", "paused"),
        ("pause", "paused"),
        ("resume", "published"),
        ("pause", "paused"),
        ("end", "ended"),
        ("end", "ended"),
    ] {
        assert_eq!(act(action, 200).await, state, "{action}");
    }
    for action in ["publish", "pause", "resume"] {
        assert_eq!(act(action, 409).await, "wrong_state", "{action} after the end");
    }
    let preheated = app.operate("POST", &format!("/admin/v1/offers/{offer}/preheat"), None, 200).await;
    assert_eq!(preheated, json!({"sale_id": sale["id"], "offers": 1, "seeded": 0}));
    app.operate("POST", "/admin/v1/offers/01k9zq3v8g7m4x2r5w6t0n1pbc/preheat", None, 404).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_publishes_itself_when_its_time_has_come_and_only_once() {
    let clock = Clock::manual(UnixMs(jiff::Timestamp::now().as_millisecond()));
    let app = TestApp::on(tempfile::tempdir().unwrap(), clock.clone(), &[]).await;
    let soon = clock.now().plus_s(100).to_string();
    let past = clock.now().plus_ms(-1_000).to_string();
    let (planned, _) = make(&app, &but("/publish_at", json!(soon))).await;
    let (overdue, _) = make(&app, &but("/publish_at", json!(past))).await;
    let state = async |path: &str| app.operate("GET", path, None, 200).await["state"].clone();
    eventually("the overdue draft is published", async || state(&overdue).await == "published").await;
    assert_eq!(state(&planned).await, "draft", "nobody is early");
    clock.advance(Duration::from_secs(100));
    eventually("the planned draft is published", async || state(&planned).await == "published").await;
    let sale = app.operate("GET", &planned, None, 200).await;
    assert_eq!(sale["publish_at"], Value::Null, "it will not publish itself again");
    let offer = sale["offers"][0]["id"].as_str().unwrap();
    // The operator reads the ledger; buyers see it a moment later, when gate and catalogue have followed.
    let seen = async || app.app.catalogue.offer(offer.parse().unwrap()).is_some();
    eventually("buyers see the planned sale", seen).await;
    let ann = app.buyer("ann");
    ann.buy_with(offer, &ann.mint(offer), 1, 202).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_everything() {
    let app = TestApp::start().await;
    let (draft_path, made) = make(&app, &draft(5)).await;
    let sale = app.open_sale(9).await;
    let ann = app.buyer("ann");
    ann.buy_with(sale.offer(), &ann.mint(sale.offer()), 2, 202).await;
    let raise = json!({"change": 3, "change_id": "more"});
    let stock = format!("/admin/v1/offers/{}/stock", sale.offer());
    app.operate("POST", &stock, Some(&raise), 200).await;
    app.operate("POST", &format!("/admin/v1/sales/{}/pause", sale.id), None, 200).await;
    let until = json!({"until": "2100-01-01T00:00:00Z", "note": "bot"});
    app.operate("PUT", "/admin/v1/blocks/bob", Some(&until), 200).await;
    app.settled().await;
    let folder = app.stop().await;

    let app = TestApp::on(folder, Clock::system(), &[]).await;
    assert_eq!(app.operate("GET", &draft_path, None, 200).await, made);
    let stats = app.stats(&sale).await;
    let units =
        json!({"offer_id": sale.offer(), "stock": 12, "free": 10, "held": 2, "sold": 0, "returning": 0});
    assert_eq!((&stats["state"], &stats["offers"][0]), (&json!("paused"), &units));
    let again = app.operate("POST", &stock, Some(&raise), 200).await;
    assert_eq!(again, json!({"offer_id": sale.offer(), "stock": 12, "free": 10}));
    assert_eq!(app.operate("GET", "/admin/v1/blocks/bob", None, 200).await["note"], "bot");
    let orders = app.operate("GET", "/admin/v1/orders?buyer=ann", None, 200).await;
    assert_eq!(orders["items"][0]["quantity"], 2);
    let bob = app.buyer("bob");
    assert_eq!(bob.buy_with(sale.offer(), &bob.mint(sale.offer()), 1, 409).await["code"], "paused");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_committed_and_not_followed_is_told_as_unsure() {
    let app = TestApp::start().await;
    let sold = app.open_sale(1).await;
    let ann = app.buyer("ann");
    ann.buy_with(sold.offer(), &ann.mint(sold.offer()), 1, 202).await;
    app.settled().await;
    let (path, sale) = make(&app, &draft(5)).await;
    let id = sale["id"].as_str().unwrap().parse().unwrap();

    // Every reader of the ledger stops at that order until `go` is dropped, and the line behind them is full.
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = Arc::new((AtomicUsize::new(0), std::sync::Mutex::new(wait)));
    for _ in 0..3 {
        let wait = Arc::clone(&wait);
        let stop = move |_: &Remembered<'_>| {
            wait.0.fetch_add(1, Ordering::SeqCst);
            let _ = wait.1.lock().unwrap().recv();
        };
        assert!(app.app.ledger.remembered_orders(UnixMs(0), stop).now_or_never().is_none());
    }
    eventually("every reader has stopped", async || wait.0.load(Ordering::SeqCst) == 3).await;
    while !matches!(app.app.ledger.sale(id).now_or_never(), Some(Err(_))) {}

    let problem = app.operate("POST", &format!("{path}/publish"), None, 503).await;
    assert_eq!(problem["code"], "unsure", "it is published, so `busy` would be a lie: {problem}");
    drop(go);
    while app.app.ledger.sale(id).await.is_err() {}
    assert_eq!(app.operate("GET", &path, None, 200).await["state"], "published");
    app.operate("POST", &format!("{path}/publish"), None, 200).await;
    let offer = sale["offers"][0]["id"].as_str().unwrap();
    ann.buy_with(offer, &ann.mint(offer), 1, 202).await;
}
