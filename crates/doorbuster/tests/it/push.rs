//! WebSocket and event streams.

use std::sync::Arc;
use std::time::Duration;

use doorbuster::edge::limits::{Class, NEWCOMERS_MAX};
use doorbuster::telemetry::metrics::{Letting, PushOutcome};
use futures_util::{SinkExt as _, StreamExt as _};
use rules::buyer::BuyerId;
use rules::wire::OrderView;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{self, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::app::{
    ADMIN_KEY, AUTH_SECRET, TestApp, TestBuyer, assert_code, draft, eventually, with_manual_clock,
};

const SOON: Duration = Duration::from_secs(30);

struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    async fn open(app: &TestApp, headers: &[(&'static str, String)]) -> Self {
        Self::try_open(app, headers).await.unwrap()
    }

    async fn try_open(app: &TestApp, headers: &[(&'static str, String)]) -> Result<Self, tungstenite::Error> {
        let mut request = format!("ws://{}/api/v1/events", app.address).into_client_request().unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        connect_async(request).await.map(|(socket, _)| Self(socket))
    }

    /// Connects, says who it is, and has heard "ready".
    async fn of(buyer: &TestBuyer<'_>) -> Self {
        let mut socket = Self::open(buyer.app, &[]).await;
        socket.say(&json!({"type": "auth", "token": buyer.token})).await;
        assert_eq!(socket.hear().await, json!({"type": "ready"}));
        socket
    }

    async fn say(&mut self, message: &Value) {
        self.0.send(Message::text(message.to_string())).await.unwrap();
    }

    async fn message(&mut self) -> Option<Message> {
        loop {
            let message = tokio::time::timeout(SOON, self.0.next()).await.expect("nothing came");
            match message {
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                Some(Ok(message)) => return Some(message),
                Some(Err(_)) | None => return None,
            }
        }
    }

    async fn hear(&mut self) -> Value {
        let message = self.message().await;
        let Some(Message::Text(text)) = &message else { panic!("{message:?}") };
        serde_json::from_str(text).unwrap()
    }

    /// The code the server closes with.
    async fn closed(&mut self) -> u16 {
        let message = self.message().await;
        let Some(Message::Close(Some(frame))) = message else { panic!("{message:?}") };
        frame.code.into()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_tells_live_orders_and_then_every_change() {
    let app = TestApp::start().await;
    let (old, new) = (app.publish(draft(3)).await, app.publish(draft(3)).await);
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let before = ann.buy(old.offer(), 1, 202).await;
    app.settled().await;
    let mut socket = Socket::open(&app, &[]).await;
    socket.say(&json!({"type": "hello"})).await;
    socket.say(&json!(7)).await;
    socket.0.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    socket.say(&json!({"type": "auth", "token": ann.token, "more": 1})).await;
    assert_eq!(socket.hear().await, json!({"type": "ready"}));
    let told = socket.hear().await;
    assert_eq!((&told["type"], &told["order"]["id"]), (&json!("order"), &before["id"]));
    bob.buy(new.offer(), 1, 202).await;
    let after = ann.buy(new.offer(), 1, 202).await;
    let told = socket.hear().await;
    assert_eq!((&told["order"]["id"], &told["order"]["state"]), (&after["id"], &json!("awaiting_payment")));
    assert_eq!(told["event_id"], format!("{}-2", after["id"].as_str().unwrap()));
    ann.call("POST", &format!("/api/v1/orders/{}/cancel", before["id"].as_str().unwrap()), None, 200).await;
    let told = socket.hear().await;
    assert_eq!((&told["order"]["id"], &told["order"]["state"]), (&before["id"], &json!("closed")));
    socket.say(&json!({"type": "unheard of"})).await;
    // Counted once it is sent, which may be after it was heard.
    eventually("three pushes", async || app.app.metrics.pushes.get(PushOutcome::Sent) == 3).await;
    assert_eq!(app.app.metrics.sockets_open.get(), 1);
    drop(socket);
    eventually("every socket is gone", async || app.app.metrics.sockets_open.get() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_puts_its_token_into_the_subprotocol() {
    let app = TestApp::start().await;
    let ann = app.buyer("ann");
    let protocols = ("sec-websocket-protocol", format!("doorbuster.v1, bearer.{}", ann.token));
    let origin = ("origin", format!("http://{}", app.address));
    let mut socket = Socket::open(&app, &[protocols, origin]).await;
    assert_eq!(socket.hear().await, json!({"type": "ready"}));
    let bad = ("sec-websocket-protocol", "doorbuster.v1, bearer.nonsense".to_owned());
    assert_eq!(Socket::open(&app, &[bad]).await.closed().await, 4401);
}

/// Many buyers behind one address: who shows a token is counted by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_campus_opens_its_sockets_at_once() {
    let app = TestApp::with(&["limits.per_ip_per_s=1", "limits.per_ip_burst=1"]).await;
    let protocols = |token: &str| ("sec-websocket-protocol", format!("doorbuster.v1, bearer.{token}"));
    let mut sockets = Vec::new();
    for number in 0..20 {
        let token = app.buyer(&format!("student {number}")).token;
        sockets.push(Socket::open(&app, &[protocols(&token)]).await);
        assert_eq!(sockets.last_mut().unwrap().hear().await, json!({"type": "ready"}));
    }
    let nonsense = async || Socket::try_open(&app, &[protocols("nonsense")]).await.err();
    let mut refused = None;
    for _ in 0..20 {
        refused = refused.or(nonsense().await);
    }
    let Some(tungstenite::Error::Http(refused)) = refused else { panic!("{refused:?}") };
    assert_eq!(refused.status(), 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_or_nonsense_is_sent_away() {
    let app = TestApp::start().await;
    let mut silent = Socket::open(&app, &[]).await;
    let mut liar = Socket::open(&app, &[]).await;
    liar.say(&json!({"type": "auth", "token": "nonsense"})).await;
    assert_eq!(liar.closed().await, 4401);
    let mut flood = Socket::open(&app, &[]).await;
    for _ in 0..101 {
        flood.say(&json!({"type": "flood"})).await;
    }
    assert_eq!(flood.closed().await, 4429);
    let mut large = Socket::of(&app.buyer("ann")).await;
    large.say(&json!("x".repeat(5_000))).await;
    assert!(!matches!(large.message().await, Some(Message::Text(_))));
    assert_eq!(silent.closed().await, 4408);
    eventually("every socket is gone", async || app.app.metrics.sockets_open.get() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn there_are_only_so_many_sockets_per_buyer_and_in_all() {
    let app = TestApp::with(&["limits.sockets_per_buyer=1", "limits.sockets=2"]).await;
    let (ann, bob, eve) = (app.buyer("ann"), app.buyer("bob"), app.buyer("eve"));
    let refused = async |buyer: &TestBuyer<'_>| {
        let mut socket = Socket::open(&app, &[]).await;
        socket.say(&json!({"type": "auth", "token": buyer.token})).await;
        socket.closed().await
    };
    let first = Socket::of(&ann).await;
    assert_eq!(refused(&ann).await, 4429);
    let (status, _, problem) = app.send(stream_request(&ann)).await;
    assert_eq!(status, 429);
    assert_code(&problem, "too_fast");
    let _second = Socket::of(&bob).await;
    assert_eq!(refused(&eve).await, 4429);
    let (status, _, problem) = app.send(stream_request(&eve)).await;
    assert_eq!(status, 503);
    assert_code(&problem, "busy");
    drop(first);
    eventually("one socket is gone", async || app.app.metrics.sockets_open.get() == 1).await;
    Socket::of(&eve).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_is_pinged_and_who_stays_silent_is_let_go() {
    let app = TestApp::with(&["limits.ping_s=3"]).await;
    let mut lively = Socket::of(&app.buyer("ann")).await;
    // Never read, so no ping is ever answered.
    let _silent = Socket::of(&app.buyer("bob")).await;
    let mut pings = 0;
    // Reading answers pings. After three of them the silent one has let two go by.
    while pings < 3 || app.app.metrics.sockets_open.get() != 1 {
        let frame = tokio::time::timeout(SOON, lively.0.next()).await.expect("no ping came");
        assert!(matches!(frame, Some(Ok(Message::Ping(_)))), "{frame:?}");
        pings += 1;
        assert!(pings < 20, "the silent one is still there");
    }
    let sale = app.open_sale(1).await;
    app.buyer("ann").buy(sale.offer(), 1, 202).await;
    assert_eq!(lively.hear().await["type"], "order", "who answers stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_are_not_among_those_who_wait() {
    let app = TestApp::with(&["limits.waiters=0"]).await;
    let _socket = Socket::of(&app.buyer("ann")).await;
    let stream = stream_request(&app.buyer("bob")).send().await.unwrap();
    assert_eq!(stream.status(), 200);
    assert_eq!(app.app.metrics.sockets_open.get(), 2);
    eventually("nobody is on the way in", async || app.app.in_flight.used(Class::Newcomer) == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_so_many_sockets_are_on_their_way_in() {
    let app = TestApp::start().await;
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let mut inside = Socket::of(&ann).await;
    let mut unknown = Socket::open(&app, &[]).await;
    eventually("one is on the way in", async || app.app.in_flight.used(Class::Newcomer) == 1).await;
    let others: Vec<_> = (1..NEWCOMERS_MAX).map(|_| app.app.in_flight.enter(Class::Newcomer)).collect();
    assert!(others.iter().all(Result::is_ok));
    assert_eq!(Socket::open(&app, &[]).await.closed().await, 4429);
    assert_code(&app.send(stream_request(&bob)).await.2, "busy");
    // Who is let in makes room for the next.
    unknown.say(&json!({"type": "auth", "token": bob.token})).await;
    assert_eq!(unknown.hear().await, json!({"type": "ready"}));
    let _next = Socket::of(&bob).await;
    let sale = app.open_sale(1).await;
    ann.buy(sale.offer(), 1, 202).await;
    assert_eq!(inside.hear().await["type"], "order", "whoever is in does not notice");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_was_overtaken_is_not_told() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(3)).await;
    let ann = app.buyer("ann");
    let order = ann.buy(sale.offer(), 1, 202).await;
    let id = order["id"].as_str().unwrap();
    app.settled().await;
    let ended = ann.call("POST", &format!("/api/v1/orders/{id}/cancel"), None, 200).await;
    let mut socket = Socket::of(&ann).await;
    let publish = |order: &str, seq: u32| {
        let mut view: OrderView = serde_json::from_value(ended.clone()).unwrap();
        (view.id, view.seq) = (order.parse().unwrap(), seq);
        app.app.hub.publish(&BuyerId::parse("ann").unwrap(), &Arc::new(view));
    };
    for seq in [4, 3, 4, 5] {
        publish(id, seq);
    }
    publish("01k9zq3v8g7m4x2r5w6t0n1pbc", 1);
    let mut told = Vec::new();
    for _ in 0..4 {
        told.push(socket.hear().await["event_id"].as_str().unwrap().to_owned());
    }
    let other = "01k9zq3v8g7m4x2r5w6t0n1pbc-1".to_owned();
    assert_eq!(told, [format!("{id}-3"), format!("{id}-4"), format!("{id}-5"), other]);
}

/// The order of late money stays as it was; its buyer hears that the money goes back, why, and that it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_is_told_why_and_that_money_goes_back() {
    let (app, clock) = with_manual_clock(&["payment.sandbox=true"]).await;
    let sale = app.open_sale(1).await;
    let (ann, bob) = (app.buyer("ann"), app.buyer("bob"));
    let id = ann.buy(sale.offer(), 1, 202).await["id"].as_str().unwrap().to_owned();
    app.settled().await;
    let path = format!("/api/v1/orders/{id}");
    let pay = ann.call("POST", &format!("{path}/payment"), Some(&json!({"provider": "sandbox"})), 200).await;
    assert_eq!(ann.call("GET", &path, None, 200).await.get("refunds"), None, "there is none");
    clock.advance(Duration::from_secs(900));
    eventually("it has closed", async || ann.order(&id).await["state"] == "closed").await;
    eventually("the unit is back", async || app.stats(&sale).await["offers"][0]["free"] == 1).await;
    bob.buy(sale.offer(), 1, 202).await;
    let mut socket = Socket::of(&ann).await;
    let closed = socket.hear().await;
    assert_eq!(closed["order"]["state"], "closed");
    let paid = json!({"outcome": "paid"});
    let payment = pay["payment_id"].as_str().unwrap();
    app.call("POST", &format!("/sandbox/payments/{payment}"), None, Some(&paid), 200).await;
    let mut states = Vec::new();
    while states.last().is_none_or(|state| *state != "refunded") {
        let told = socket.hear().await;
        assert_eq!((&told["event_id"], &told["order"]["state"]), (&closed["event_id"], &json!("closed")));
        let refund = &told["order"]["refunds"][0];
        assert_eq!(
            (&refund["reason"], &refund["money"]),
            (&json!("no_unit_left"), &closed["order"]["total"])
        );
        states.push(refund["state"].as_str().unwrap().to_owned());
    }
    let refund = json!({
        "money": closed["order"]["total"], "state": "refunded", "reason": "no_unit_left",
        "detail": "The payment came after the deadline, and no unit was left.",
    });
    assert_eq!(ann.call("GET", &path, None, 200).await["refunds"], json!([refund]));
}

/// Connects again and again, hears a little each time, and is cut off; until it has heard that the order is closed.
async fn hear_of_the_end(buyer: &TestBuyer<'_>, order: &str, number: u64) -> Value {
    for round in 0.. {
        let mut socket = Socket::of(buyer).await;
        let short = Duration::from_millis(5 + (number * 7 + round * 3) % 40);
        while let Ok(Some(Ok(Message::Text(text)))) = tokio::time::timeout(short, socket.0.next()).await {
            let told: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(told["order"]["id"], order);
            if told["order"]["state"] == "closed" {
                return told;
            }
        }
    }
    unreachable!("it goes on until it has heard")
}

async fn all_hear_of_the_end(orders: &[(TestBuyer<'_>, String, u64)]) -> Vec<Value> {
    let hear = orders.iter().map(|(buyer, order, number)| hear_of_the_end(buyer, order, *number));
    let heard = tokio::time::timeout(Duration::from_secs(60), futures_util::future::join_all(hear)).await;
    heard.expect("somebody has not heard")
}

/// Sockets are cut while orders close; some buyers have none at that time.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_was_away_when_an_order_ended_is_told_of_it() {
    const BUYERS: u64 = 24;
    let (app, clock) = with_manual_clock(&["limits.sockets_per_buyer=1000"]).await;
    let sale = app.publish(draft(u32::try_from(BUYERS).unwrap())).await;
    let mut orders = Vec::new();
    for number in 0..BUYERS {
        let buyer = app.buyer(&format!("buyer-{number}"));
        let order = buyer.buy(sale.offer(), 1, 202).await["id"].as_str().unwrap().to_owned();
        let mut socket = Socket::of(&buyer).await;
        while socket.hear().await["order"]["state"] != "awaiting_payment" {}
        orders.push((buyer, order, number));
    }
    let (here, away) = orders.split_at(orders.len() / 2);
    let close = async {
        clock.advance(Duration::from_secs(900));
        let all_closed = async || app.app.metrics.releases.get(Letting::Timeout) == BUYERS;
        eventually("all orders are closed", all_closed).await;
    };
    let (mut heard, ()) = tokio::join!(all_hear_of_the_end(here), close);
    heard.extend(all_hear_of_the_end(away).await);
    assert_eq!(heard.len(), orders.len());
    for (told, (_, order, _)) in heard.iter().zip(&orders) {
        assert_eq!(
            (&told["event_id"], &told["order"]["reason"]),
            (&json!(format!("{order}-3")), &json!("timeout"))
        );
    }

    // The same as server-sent events, and after five minutes it is for whoever reads the orders.
    let (late, order, _) = &orders[0];
    let mut stream = stream_request(late).send().await.unwrap();
    let first = tokio::time::timeout(SOON, stream.chunk()).await.expect("nothing came").unwrap().unwrap();
    let first = std::str::from_utf8(&first).unwrap();
    assert!(first.contains(&format!("id: {order}-3\n")), "{first}");
    clock.advance(Duration::from_secs(301));
    let mut socket = Socket::of(late).await;
    late.buy(sale.offer(), 1, 202).await;
    assert_ne!(&socket.hear().await["order"]["id"], order, "only the new one is told");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_away_says_goodbye_to_its_sockets() {
    let app = TestApp::start().await;
    let mut known = Socket::of(&app.buyer("ann")).await;
    let mut unknown = Socket::open(&app, &[]).await;
    let stream = stream_request(&app.buyer("bob")).send().await.unwrap();
    let stopping = tokio::spawn(app.stop());
    assert_eq!((known.closed().await, unknown.closed().await), (1001, 1001));
    drop((known, unknown));
    assert_eq!(stream.text().await.unwrap(), "");
    tokio::time::timeout(SOON, stopping).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_others_may_not_connect() {
    let app = TestApp::start().await;
    let foreign = ("origin", "https://evil.example".to_owned());
    let Err(tungstenite::Error::Http(response)) = Socket::try_open(&app, &[foreign]).await else {
        panic!("a foreign page was let in");
    };
    assert_eq!(response.status(), 403);
    let problem: Value = serde_json::from_slice(response.body().as_deref().unwrap()).unwrap();
    assert_code(&problem, "foreign_origin");
    let stream = stream_request(&app.buyer("ann")).header("origin", "null");
    assert_code(&app.send(stream).await.2, "foreign_origin");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_request_for_events_is_told_how_to_ask() {
    let app = TestApp::start().await;
    let ann = app.buyer("ann");
    let other = app.client.get(app.url("/api/v1/events")).bearer_auth(&ann.token);
    assert_code(&app.send(other.header("accept", "application/json")).await.2, "malformed");
    let (status, _, problem) =
        app.send(app.client.get(app.url("/api/v1/events")).header("accept", "text/event-stream")).await;
    assert_eq!(status, 401);
    assert_code(&problem, "unauthorized");
    assert_eq!(app.app.metrics.sockets_open.get(), 0);
}

fn stream_request(buyer: &TestBuyer<'_>) -> reqwest::RequestBuilder {
    let request = buyer.app.client.get(buyer.app.url("/api/v1/events"));
    request.bearer_auth(&buyer.token).header("accept", "text/event-stream")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_stream_tells_the_same() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(3)).await;
    let ann = app.buyer("ann");
    let order = ann.buy(sale.offer(), 1, 202).await;
    app.settled().await;
    let id = order["id"].as_str().unwrap();
    let mut response = stream_request(&ann).send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut heard = String::new();
    let mut hear = async |end: &str| {
        while !heard.contains(end) {
            let chunk = tokio::time::timeout(SOON, response.chunk()).await.expect("nothing came").unwrap();
            heard.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
        }
        heard.clone()
    };
    let first = hear("awaiting_payment").await;
    assert!(first.contains("event: order\n") && first.contains(&format!("id: {id}-2\n")), "{first}");
    ann.call("POST", &format!("/api/v1/orders/{id}/cancel"), None, 200).await;
    let second = hear("cancelled").await;
    assert!(second.contains(&format!("id: {id}-3\n")), "{second}");
    drop(response);
    eventually("every socket is gone", async || app.app.metrics.sockets_open.get() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_stream_ends_when_its_life_is_over() {
    let app = TestApp::with(&["limits.stream_life_s=1"]).await;
    let sale = app.publish(draft(3)).await;
    let ann = app.buyer("ann");
    let stats = format!("/admin/v1/sales/{}/stream", sale.id);
    for (path, token) in [("/api/v1/events", ann.token.as_str()), (&stats, ADMIN_KEY)] {
        let response = app.client.get(app.url(path)).bearer_auth(token).send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        tokio::time::timeout(SOON, response.text()).await.expect("still open").unwrap();
    }
    eventually("every socket is gone", async || app.app.metrics.sockets_open.get() == 0).await;
}

/// A token whose `exp` has passed, but by less than the leeway: it is good for about two seconds more.
fn token_at_its_end(app: &TestApp, name: &str) -> String {
    let exp = app.app.clock.now().0 / 1_000 - 3;
    let key = jsonwebtoken::EncodingKey::from_secret(AUTH_SECRET.as_bytes());
    let claims = json!({"sub": name, "exp": exp});
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_outlasts_its_token() {
    // The clock stands, so that the token is still good however long it takes until everybody has come in.
    let (app, _clock) = with_manual_clock(&[]).await;
    let token = token_at_its_end(&app, "ann");
    let mut by_frame = Socket::open(&app, &[]).await;
    by_frame.say(&json!({"type": "auth", "token": token})).await;
    let protocols = ("sec-websocket-protocol", format!("doorbuster.v1, bearer.{token}"));
    let header = ("authorization", format!("Bearer {token}"));
    let mut sockets =
        vec![by_frame, Socket::open(&app, &[protocols]).await, Socket::open(&app, &[header]).await];
    let stream = app.client.get(app.url("/api/v1/events")).bearer_auth(&token);
    let stream = stream.header("accept", "text/event-stream").send().await.unwrap();
    assert_eq!(stream.status(), 200);
    let mut lasting = Socket::of(&app.buyer("bob")).await;
    for socket in &mut sockets {
        assert_eq!(socket.hear().await, json!({"type": "ready"}));
        let message = socket.message().await;
        let Some(Message::Close(Some(frame))) = message else { panic!("{message:?}") };
        assert_eq!((u16::from(frame.code), frame.reason.as_str()), (4401, "the token has expired"));
    }
    tokio::time::timeout(SOON, stream.text()).await.expect("the stream goes on").unwrap();
    // Another buyer's socket, whose token is good for an hour, is still told of changes.
    let sale = app.open_sale(1).await;
    app.buyer("bob").buy(sale.offer(), 1, 202).await;
    assert_eq!(lasting.hear().await["type"], "order");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_change_falls_between_the_snapshot_and_the_listening() {
    let app = TestApp::start().await;
    let sale = app.publish(draft(100)).await;
    for round in 0..40 {
        let buyer = app.buyer(&format!("buyer-{round}"));
        let pass = buyer.mint(sale.offer());
        // The order is granted, recorded and told while the socket is on its way in, at a different point each time.
        let (order, mut socket) = tokio::join!(buyer.buy_with(sale.offer(), &pass, 1, 202), async {
            tokio::time::sleep(Duration::from_micros(round * 50)).await;
            Socket::of(&buyer).await
        });
        let mut told = socket.hear().await;
        while told["order"]["state"] == "queued" {
            told = socket.hear().await;
        }
        assert_eq!(
            (&told["order"]["id"], &told["order"]["state"]),
            (&order["id"], &json!("awaiting_payment"))
        );
    }
}
