//! Requests with an Idempotency-Key: once is once, also across hang-ups, restarts and crashes.

use std::path::Path;
use std::time::Duration;

use doorbuster::clock::Clock;
use serde_json::{Value, json};
use testkit::process::Process;

use crate::app::{ADMIN_KEY, TestApp, draft};
use crate::served::Server;

async fn post(client: &reqwest::Client, url: String, key: &str, body: &Value) -> (u16, String, Value) {
    let request = client.post(url).bearer_auth(ADMIN_KEY).header("idempotency-key", key).json(body);
    let response = request.send().await.unwrap();
    let status = response.status().as_u16();
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    (status, kind, response.json().await.unwrap())
}

async fn keyed(app: &TestApp, path: &str, key: &str, body: &Value) -> (u16, String, Value) {
    post(&app.client, app.url(path), key, body).await
}

async fn sales(app: &TestApp) -> usize {
    app.operate("GET", "/admin/v1/sales", None, 200).await["items"].as_array().unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_gets_the_first_answer_and_makes_nothing_new() {
    let app = TestApp::start().await;
    let body = draft(5);
    let first = keyed(&app, "/admin/v1/sales", "key-1", &body).await;
    assert_eq!(first.0, 201);
    assert_eq!(keyed(&app, "/admin/v1/sales", "key-1", &body).await, first);
    assert_eq!(sales(&app).await, 1);
    let other = keyed(&app, "/admin/v1/sales", "key-1", &draft(6)).await;
    assert_eq!((other.0, &other.2["code"]), (409, &json!("key_reused")));
    let id = first.2["id"].as_str().unwrap();
    let elsewhere = keyed(&app, &format!("/admin/v1/sales/{id}/publish"), "key-1", &body).await;
    assert_eq!(elsewhere.2["code"], "key_reused");
    assert_eq!(keyed(&app, "/admin/v1/sales", "key-2", &body).await.0, 201);
    assert_eq!(sales(&app).await, 2);
    let folder = app.stop().await;
    let app = TestApp::on(folder, Clock::system(), &[]).await;
    assert_eq!(keyed(&app, "/admin/v1/sales", "key-1", &body).await, first, "also after a restart");
    assert_eq!(sales(&app).await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeat_is_the_old_answer_even_when_the_world_has_moved_on() {
    let app = TestApp::start().await;
    let sale = app.open_sale(5).await;
    let path = |action: &str| format!("/admin/v1/sales/{}/{action}", sale.id);
    let paused = keyed(&app, &path("pause"), "p", &json!({})).await;
    assert_eq!(paused.2["state"], "paused");
    keyed(&app, &path("resume"), "r", &json!({})).await;
    assert_eq!(keyed(&app, &path("pause"), "p", &json!({})).await, paused);
    assert_eq!(app.stats(&sale).await["state"], "published", "a late repeat does not pause again");
    let offer = json!({"name": "x", "price": {"amount": 1, "currency": "CNY"}, "stock": 1});
    let refused = keyed(&app, &path("offers"), "o", &offer).await;
    assert_eq!((refused.0, refused.1.as_str()), (409, "application/problem+json"));
    assert_eq!(keyed(&app, &path("offers"), "o", &offer).await, refused);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offer_is_added_once() {
    let app = TestApp::start().await;
    let made = app.operate("POST", "/admin/v1/sales", Some(&draft(5)), 201).await;
    let path = format!("/admin/v1/sales/{}/offers", made["id"].as_str().unwrap());
    let offer = json!({"name": "x", "price": {"amount": 1, "currency": "CNY"}, "stock": 1});
    let first = keyed(&app, &path, "o", &offer).await;
    assert_eq!(first.0, 201);
    assert_eq!(keyed(&app, &path, "o", &offer).await, first);
    let offers = app.operate("GET", &path, None, 200).await;
    assert_eq!(offers["items"].as_array().unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_none_is_refused_and_a_request_that_was_not_understood_can_be_mended() {
    let app = TestApp::start().await;
    let long = "k".repeat(256);
    for key in ["", "two words", "tab\tbed", long.as_str()] {
        let refused = keyed(&app, "/admin/v1/sales", key, &draft(1)).await;
        assert_eq!((refused.0, &refused.2["field"]), (422, &json!("Idempotency-Key")), "{key:?}");
    }
    let longest = "k".repeat(255);
    assert_eq!(keyed(&app, "/admin/v1/sales", &longest, &draft(1)).await.0, 201);
    let broken =
        app.client.post(app.url("/admin/v1/sales")).bearer_auth(ADMIN_KEY).header("idempotency-key", "m");
    let broken = broken.header("content-type", "application/json").body("{").send().await.unwrap();
    assert_eq!(broken.status(), 400);
    assert_eq!(keyed(&app, "/admin/v1/sales", "m", &draft(1)).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_at_once_with_one_key_make_one_sale() {
    let app = TestApp::start().await;
    let body = draft(5);
    let all = (0..20).map(|_| keyed(&app, "/admin/v1/sales", "same", &body));
    let answers = futures_util::future::join_all(all).await;
    let made: Vec<&Value> =
        answers.iter().filter(|answer| answer.0 == 201).map(|answer| &answer.2["id"]).collect();
    assert!(!made.is_empty() && made.iter().all(|id| *id == made[0]), "{made:?}");
    for answer in answers.iter().filter(|answer| answer.0 != 201) {
        assert_eq!((answer.0, &answer.2["code"]), (409, &json!("not_yet")));
    }
    assert_eq!(sales(&app).await, 1);
}

/// The real binary, which may be told to die at a point.
fn start(folder: &Path, crash_at: Option<&str>) -> (Process, String) {
    let Server { process, url, .. } = Server::start(folder, &["webhooks.private_addresses=true"], crash_at);
    (process, url)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_a_new_secret_and_its_answer_makes_no_second_secret() {
    let folder = tempfile::tempdir().unwrap();
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().unwrap();
    let (dying, url) = start(folder.path(), Some("desk.acted"));
    let made = client.post(format!("{url}/admin/v1/webhooks")).bearer_auth(ADMIN_KEY);
    let made = made.json(&json!({"url": "http://127.0.0.1:9/"})).send().await.unwrap();
    let made: Value = made.json().await.unwrap();
    let path = format!("/admin/v1/webhooks/{}/secret", made["id"].as_str().unwrap());
    let request = client.post(format!("{url}{path}")).bearer_auth(ADMIN_KEY);
    let died = request.header("idempotency-key", "k").json(&json!({})).send().await;
    assert!(died.is_err(), "the process was told to die before it answers");
    // Its sockets are gone before its lock is.
    dying.wait(Duration::from_secs(30)).unwrap();

    let (_process, url) = start(folder.path(), None);
    let file = rusqlite::Connection::open(folder.path().join("doorbuster.db")).unwrap();
    let secret: Vec<u8> = file.query_row("select secret from webhooks", [], |row| row.get(0)).unwrap();
    let secret = doorbuster::outbox::signature::Secret::from_bytes(secret).reveal();
    assert_ne!(made["secret"], json!(secret), "it was changed");
    for _ in 0..2 {
        let (status, _, again) = post(&client, format!("{url}{path}"), "k", &json!({})).await;
        assert_eq!((status, &again["secret"]), (200, &json!(secret)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_between_the_sale_and_its_answer_makes_no_second_sale() {
    let folder = tempfile::tempdir().unwrap();
    let start = |crash_at| start(folder.path(), crash_at);
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(20)).build().unwrap();
    let body = draft(5);
    let (dying, url) = start(Some("desk.acted"));
    let request = client.post(format!("{url}/admin/v1/sales")).bearer_auth(ADMIN_KEY);
    let died = request.header("idempotency-key", "k").json(&body).send().await;
    assert!(died.is_err(), "the process was told to die before it answers");
    // Its sockets are gone before its lock is.
    dying.wait(Duration::from_secs(30)).unwrap();

    let (_process, url) = start(None);
    let list = client.get(format!("{url}/admin/v1/sales")).bearer_auth(ADMIN_KEY);
    let list: Value = list.send().await.unwrap().json().await.unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "the sale was made");
    let (status, _, again) = post(&client, format!("{url}/admin/v1/sales"), "k", &body).await;
    assert_eq!((status, &again["id"]), (201, &list["items"][0]["id"]));
}
