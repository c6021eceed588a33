//! Who may call what operators call, and on which listener. The routes are taken from the OpenAPI document, so that a
//! new one cannot be forgotten.

use doorbuster::app::Server;
use doorbuster::clock::Clock;
use doorbuster::edge::openapi;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::app::{ADMIN_KEY, TestApp, draft, settings};

const AN_ID: &str = "01k9zq3v8g7m4x2r5w6t0n1pbc";

/// Method and path of every operator's call, and what its document says.
fn admin_calls() -> Vec<(String, String, Value)> {
    let document = serde_json::to_value(openapi::document()).unwrap();
    let mut calls = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        if !path.starts_with("/admin/") {
            continue;
        }
        for (method, call) in methods.as_object().unwrap() {
            calls.push((method.to_uppercase(), path.clone(), call.clone()));
        }
    }
    calls
}

fn filled_in(path: &str) -> String {
    let name = |part: &str| if part.starts_with('{') { AN_ID.to_owned() } else { part.to_owned() };
    path.split('/').map(name).collect::<Vec<_>>().join("/")
}

#[test]
fn every_call_of_the_contract_is_there_and_documents_its_refusals() {
    let calls = admin_calls();
    let names: Vec<String> = calls.iter().map(|(method, path, _)| format!("{method} {path}")).collect();
    for call in [
        "POST /admin/v1/sales",
        "GET /admin/v1/sales",
        "GET /admin/v1/sales/{sale}",
        "PATCH /admin/v1/sales/{sale}",
        "DELETE /admin/v1/sales/{sale}",
        "POST /admin/v1/sales/{sale}/offers",
        "GET /admin/v1/sales/{sale}/offers",
        "GET /admin/v1/sales/{sale}/offers/{offer}",
        "PATCH /admin/v1/sales/{sale}/offers/{offer}",
        "DELETE /admin/v1/sales/{sale}/offers/{offer}",
        "POST /admin/v1/sales/{sale}/publish",
        "POST /admin/v1/sales/{sale}/pause",
        "POST /admin/v1/sales/{sale}/resume",
        "POST /admin/v1/sales/{sale}/end",
        "POST /admin/v1/sales/{sale}/preheat",
        "POST /admin/v1/offers/{offer}/preheat",
        "POST /admin/v1/offers/{offer}/stock",
        "GET /admin/v1/sales/{sale}/stats",
        "GET /admin/v1/sales/{sale}/stream",
        "GET /admin/v1/sales/{sale}/registrations",
        "GET /admin/v1/orders",
        "GET /admin/v1/orders/{order}",
        "GET /admin/v1/orders/export.csv",
        "POST /admin/v1/orders/{order}/refund",
        "GET /admin/v1/payments",
        "GET /admin/v1/payments/{payment}",
        "POST /admin/v1/payments/{payment}/retry",
        "GET /admin/v1/blocks",
        "GET /admin/v1/blocks/{buyer}",
        "PUT /admin/v1/blocks/{buyer}",
        "DELETE /admin/v1/blocks/{buyer}",
        "POST /admin/v1/blocks/{buyer}/strikes",
        "DELETE /admin/v1/blocks/{buyer}/strikes/{no}",
        "GET /admin/v1/events",
        "POST /admin/v1/webhooks",
        "GET /admin/v1/webhooks",
        "GET /admin/v1/webhooks/{webhook}",
        "PATCH /admin/v1/webhooks/{webhook}",
        "DELETE /admin/v1/webhooks/{webhook}",
        "POST /admin/v1/webhooks/{webhook}/secret",
        "POST /admin/v1/webhooks/{webhook}/replay",
        "GET /admin/v1/webhooks/{webhook}/parked",
        "POST /admin/v1/webhooks/{webhook}/test",
        "POST /admin/v1/audit",
        "GET /admin/v1/audit",
        "GET /admin/v1/audit/{audit}",
    ] {
        assert!(names.contains(&call.to_owned()), "{call} is missing");
    }
    for (method, path, call) in calls {
        let refusal = &call["responses"]["401"]["content"]["application/problem+json"]["schema"]["$ref"];
        assert_eq!(*refusal, "#/components/schemas/Problem", "{method} {path}");
        assert_eq!(call["security"], json!([{"admin_key": []}]), "{method} {path}");
    }
    for (method, path, call) in admin_calls() {
        let parameters = call["parameters"].as_array().cloned().unwrap_or_default();
        let key = parameters.iter().find(|parameter| parameter["name"] == "Idempotency-Key");
        assert_eq!(key.is_some(), method == "POST", "{method} {path}");
        let Some(key) = key else { continue };
        assert_eq!((&key["in"], &key["required"]), (&json!("header"), &json!(false)), "{path}");
        assert_eq!(
            (&key["schema"]["minLength"], &key["schema"]["maxLength"]),
            (&json!(1), &json!(255)),
            "{path}"
        );
        assert!(call["responses"]["409"].is_object(), "{path}: the key of another request");
    }
    let document = serde_json::to_value(openapi::document()).unwrap();
    assert_eq!(document["components"]["securitySchemes"]["admin_key"]["scheme"], "bearer");
    assert!(document["components"]["schemas"]["Problem"].is_object());
}

/// A proxy in front may have looked at the other one.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_authorization_headers_none_is_believed() {
    let app = TestApp::start().await;
    let ann = app.buyer("ann").token;
    for (path, token) in [("/admin/v1/sales", ADMIN_KEY), ("/api/v1/me", ann.as_str())] {
        for (first, second) in [(token, "wrong"), ("wrong", token), (token, token)] {
            let request = app.client.get(app.url(path)).bearer_auth(first).bearer_auth(second);
            assert_eq!(app.send(request).await.0, 401, "{path}");
        }
        assert_eq!(app.send(app.client.get(app.url(path)).bearer_auth(token)).await.0, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_admin_key_every_call_is_refused_before_anything_else_is_looked_at() {
    let app = TestApp::start().await;
    let buyer = app.buyer("ann").token;
    let almost = &ADMIN_KEY[..ADMIN_KEY.len() - 1];
    for (method, path, _) in admin_calls() {
        for path in [filled_in(&path), path.replace(['{', '}'], "~")] {
            for token in [None, Some(""), Some("wrong"), Some(almost), Some(buyer.as_str())] {
                let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
                let mut request = app.client.request(method.clone(), app.url(&path)).body("no json");
                request = request.header("idempotency-key", "k");
                if let Some(token) = token {
                    request = request.bearer_auth(token);
                }
                let response = request.send().await.unwrap();
                assert_eq!(response.status(), 401, "{method} {path} {token:?}");
                assert_eq!(response.json::<Value>().await.unwrap()["code"], "unauthorized");
            }
        }
    }
    let kept = app.operate("GET", "/admin/v1/sales", None, 200).await;
    assert_eq!(kept["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_answers_the_key_with_something_it_documents() {
    let app = TestApp::start().await;
    for (method, path, call) in admin_calls() {
        for body in [None, Some(json!({})), Some(json!([1]))] {
            let name = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
            let mut request = app.client.request(name, app.url(&filled_in(&path))).bearer_auth(ADMIN_KEY);
            if let Some(body) = &body {
                request = request.json(body);
            }
            let status = request.send().await.unwrap().status().as_u16();
            assert!(call["responses"][status.to_string()].is_object(), "{method} {path} {body:?}: {status}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_need_no_body_take_none() {
    let app = TestApp::start().await;
    let sale = app.open_sale(1).await;
    let webhook = json!({"url": "https://shop.example/events"});
    let webhook = app.operate("POST", "/admin/v1/webhooks", Some(&webhook), 201).await;
    let replay = format!("/admin/v1/webhooks/{}/replay", webhook["id"].as_str().unwrap());
    for path in ["/admin/v1/audit", &replay] {
        let post = || app.client.post(app.url(path)).bearer_auth(ADMIN_KEY);
        for request in [post(), post().header("content-type", "application/json"), post().json(&json!({}))] {
            let (status, _, answer) = app.send(request).await;
            assert!(matches!(status, 200 | 202), "{path}: {status} {answer}");
        }
        assert_eq!(app.send(post().header("content-type", "text/plain").body("{}")).await.0, 415, "{path}");
        assert_eq!(app.send(post().json(&json!({"nonsense": 1}))).await.0, 422, "{path}");
    }
    let made = app.audited(&json!({"sale_id": sale.id})).await;
    assert_eq!(made["clean"], true, "a body that is there counts: {made}");
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_listener_of_their_own_operators_are_met_nowhere_else() {
    // With a trusted proxy on this machine, being local is no proof of anything; without one it is none here either.
    for proxies in ["limits.trusted_proxies=", "limits.trusted_proxies=127.0.0.1"] {
        met_nowhere_else(proxies).await;
    }
}

async fn met_nowhere_else(proxies: &str) {
    let folder = tempfile::tempdir().unwrap();
    let bind = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (public, private) = (bind().await, bind().await);
    let (public_at, private_at) = (public.local_addr().unwrap(), private.local_addr().unwrap());
    let shutdown = CancellationToken::new();
    let settings = settings(folder.path(), &[proxies]);
    let server =
        Server::start(settings, Clock::system(), public, Some(private), shutdown.clone()).await.unwrap();
    let running = tokio::spawn(server.until_the_end());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let ask = async |at, path: &str| {
        let request = client.get(format!("http://{at}{path}")).bearer_auth(ADMIN_KEY);
        request.send().await.unwrap().status().as_u16()
    };
    for (method, path, _) in admin_calls() {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let url = format!("http://{public_at}{}", filled_in(&path));
        let response =
            client.request(method, url).bearer_auth(ADMIN_KEY).json(&json!({})).send().await.unwrap();
        assert_eq!(response.status(), 404, "{path}");
    }
    assert_eq!((ask(private_at, "/admin/v1/sales").await, ask(private_at, "/api/v1/time").await), (200, 404));
    assert_eq!(ask(public_at, "/api/v1/time").await, 200);
    let buy = format!("http://{private_at}/api/v1/offers/{AN_ID}/orders");
    let bought = client.post(buy).json(&json!({"pass": "x", "quantity": 1})).send().await.unwrap();
    assert_eq!(bought.status(), 404, "no buyer buys there");
    let metrics =
        async |at| client.get(format!("http://{at}/metrics")).send().await.unwrap().status().as_u16();
    assert_eq!((metrics(private_at).await, metrics(public_at).await), (200, 404), "{proxies}");
    assert_eq!(ask(public_at, "/metrics").await, 404, "not even with the key");
    for at in [public_at, private_at] {
        assert_eq!((ask(at, "/healthz").await, ask(at, "/readyz").await), (200, 200));
    }
    shutdown.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_get_in_by_their_own_listener_while_buyers_have_every_connection() {
    const CONNECTIONS: usize = 3;
    let folder = tempfile::tempdir().unwrap();
    let bind = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (public, private) = (bind().await, bind().await);
    let (public_at, private_at) = (public.local_addr().unwrap(), private.local_addr().unwrap());
    let shutdown = CancellationToken::new();
    let settings = settings(folder.path(), &[&format!("limits.connections={CONNECTIONS}")]);
    let server =
        Server::start(settings, Clock::system(), public, Some(private), shutdown.clone()).await.unwrap();
    let running = tokio::spawn(server.until_the_end());
    let mut buyers = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut buyer = TcpStream::connect(public_at).await.unwrap();
        buyer.write_all(b"GET /healthz HTTP/1.1\r\nhost: shop\r\n\r\n").await.unwrap();
        let mut answer = [0; 12];
        buyer.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
        buyers.push(buyer);
    }
    let mut one_more = TcpStream::connect(public_at).await.unwrap();
    assert_eq!(one_more.read(&mut [0; 12]).await.unwrap_or(0), 0, "no place is left for a buyer");

    // Each call on a connection of its own.
    let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build().unwrap();
    let healthy = client.get(format!("http://{private_at}/healthz")).send().await.unwrap();
    assert_eq!(healthy.status(), 200);
    let call = async |path: &str, body: Value| {
        let url = format!("http://{private_at}/admin/v1/sales{path}");
        let answer = client.post(url).bearer_auth(ADMIN_KEY).json(&body).send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        answer.json::<Value>().await.unwrap()
    };
    let sale = call("", draft(3)).await["id"].as_str().unwrap().to_owned();
    call(&format!("/{sale}/publish"), json!({})).await;
    assert_eq!(call(&format!("/{sale}/pause"), json!({})).await["state"], "paused");
    drop(buyers);
    shutdown.cancel();
    running.await.unwrap().unwrap();
}
