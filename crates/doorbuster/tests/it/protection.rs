//! Clients who mean no good, byte by byte over raw sockets: each costs a slot for seconds at most, and nobody else
//! notices.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use doorbuster::edge::limits::{Class, READS_PER_TRY, UNREAD_CALLBACKS_MAX};
use doorbuster::telemetry::metrics::{ConnectionOutcome, Shed};
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use testkit::process::{Program, Stream};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};

use crate::app::{ADMIN_KEY, TestApp, TestBuyer, assert_code, draft, refused_as_too_fast};
use crate::money;

/// How long a test waits for an answer or an end. Less than an idle connection is kept where a test does not say how
/// long, and more than a machine that does other work needs.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub const HEALTH: &str = "GET /healthz HTTP/1.1\r\nHost: shop\r\n\r\n";

/// Sockets at once: far more than may wait for a thread, and few enough for the usual limit of open files.
const CROWD: usize = 200;

/// A socket without manners.
pub struct Raw(TcpStream);

/// One answer as it came.
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    /// Reads one answer, by its `Content-Length`.
    pub async fn read(from: &mut (impl AsyncRead + Unpin)) -> Option<Self> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\n") {
            bytes.push(from.read_u8().await.ok()?);
        }
        let head = String::from_utf8(bytes).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        from.read_exact(&mut body).await.ok()?;
        Some(Self { status, head, body: String::from_utf8(body).unwrap() })
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}{}", self.head, self.body))
    }
}

impl Raw {
    pub async fn open(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    pub async fn saying(address: SocketAddr, bytes: impl AsRef<[u8]>) -> Self {
        let mut raw = Self::open(address).await;
        raw.say(bytes).await;
        raw
    }

    pub async fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// One answer.
    pub async fn answer(&mut self) -> Answer {
        timeout(PATIENCE, self.read_answer()).await.expect("no answer").expect("closed instead of an answer")
    }

    async fn read_answer(&mut self) -> Option<Answer> {
        Answer::read(&mut self.0).await
    }

    /// Whether the server has said nothing so far, and not closed.
    fn is_waited_for(&self) -> bool {
        self.0.peek(&mut [0]).now_or_never().is_none()
    }

    /// To be heard and to speak at once.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        self.0.split()
    }

    /// All that comes until the server closes, which it must do in time. A reset is a close too.
    pub async fn rest(&mut self, within: Duration) -> String {
        let mut all = Vec::new();
        let read = async {
            let mut part = [0; 4_096];
            while let Ok(count @ 1..) = self.0.read(&mut part).await {
                all.extend_from_slice(&part[..count]);
            }
        };
        timeout(within, read).await.expect("still open");
        String::from_utf8_lossy(&all).into_owned()
    }
}

pub fn post(path: &str, length: usize, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

async fn eventually(condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "did not come true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_head_holds_its_connection_for_the_header_timeout_only() {
    let half = "GET /healthz HTTP/1.1\r\nHost: sh";
    let patient = TestApp::with(&["limits.header_timeout_s=300"]).await;
    let mut kept = Raw::saying(patient.address, half).await;
    let app = TestApp::with(&["limits.header_timeout_s=1"]).await;
    let mut silent = Raw::saying(app.address, half).await;
    assert_eq!(silent.rest(PATIENCE).await, "");
    let mut later = Raw::saying(app.address, HEALTH).await;
    assert_eq!(later.answer().await.status, 200);
    later.say("GET /healthz HT").await;
    assert_eq!(later.rest(PATIENCE).await, "", "the second request of a connection is watched too");
    kept.say("op\r\n\r\n").await;
    assert_eq!(kept.answer().await.status, 200, "it is the setting that says how long");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_drips_is_no_better_than_one_that_stops() {
    let app = TestApp::with(&["limits.header_timeout_s=1"]).await;
    let mut dripping = Raw::saying(app.address, "GET /healthz HTTP/1.1\r\nX: ").await;
    let began = Instant::now();
    while dripping.0.write_all(b"x").await.is_ok() {
        assert!(began.elapsed() < PATIENCE, "still open");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_never_comes_is_answered_and_cut_off() {
    let patient = TestApp::with(&["limits.body_timeout_s=300"]).await;
    let mut kept = Vec::new();
    for request in without_their_bodies(&patient).await {
        kept.push(Raw::saying(patient.address, &request).await);
    }
    let app = TestApp::with(&["limits.body_timeout_s=1"]).await;
    for request in without_their_bodies(&app).await {
        let mut raw = Raw::saying(app.address, &request).await;
        let answer = raw.answer().await;
        assert_eq!(answer.status, 400, "{request}");
        assert_code(&answer.json(), "malformed");
        raw.rest(PATIENCE).await;
    }
    assert!(kept.iter().all(Raw::is_waited_for), "it is the setting that says how long");
}

/// A try, a request for a pass and a draft whose bodies have only begun.
async fn without_their_bodies(app: &TestApp) -> [String; 3] {
    let token = app.buyer("ann").token;
    let sale = app.open_sale(1).await;
    let attempt = post(&format!("/api/v1/offers/{}/orders", sale.offer()), 100, "{\"pass\":");
    let pass = post(&format!("/api/v1/offers/{}/pass", sale.offer()), 100, "{");
    let pass = pass.replace("Host: shop", &format!("Host: shop\r\nAuthorization: Bearer {token}"));
    let draft = post("/admin/v1/sales", 100, "{");
    let draft = draft.replace("Host: shop", &format!("Host: shop\r\nAuthorization: Bearer {ADMIN_KEY}"));
    [attempt, pass, draft]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_of_a_large_answer_is_not_taken_for_idle() {
    // Longer than the kernel, whose buffers take megabytes, needs to take the next piece from us.
    let app = TestApp::with(&["limits.idle_timeout_s=3"]).await;
    let mut large = draft(1);
    let mut offer = large["offers"][0].clone();
    offer["description"] = json!("沙".repeat(4_000));
    large["offers"] = json!(vec![offer; 600]);
    let sale = app.publish(large).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(16 * 1_024).unwrap();
    let mut raw = Raw(socket.connect(app.address).await.unwrap());
    raw.say(format!("GET /api/v1/sales/{} HTTP/1.1\r\nHost: shop\r\n\r\n", sale.id)).await;
    let began = Instant::now();
    let (mut all, mut part) = (Vec::new(), vec![0; 32 * 1_024]);
    let mut wanted = usize::MAX;
    while all.len() < wanted {
        let count = timeout(PATIENCE, raw.0.read(&mut part)).await.expect("no more bytes").unwrap();
        assert!(count > 0, "cut off after {} of {wanted} bytes and {:?}", all.len(), began.elapsed());
        all.extend_from_slice(&part[..count]);
        if wanted == usize::MAX
            && let Some(end) = all.windows(4).position(|window| window == b"\r\n\r\n")
        {
            let head = String::from_utf8(all[..end].to_vec()).unwrap();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            wanted = end + 4 + length.parse::<usize>().unwrap();
        }
        // This is what makes it slow.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(began.elapsed() > Duration::from_secs(4), "it was read too fast to prove anything");
    assert_eq!(raw.rest(PATIENCE).await, "", "once it is read, the connection is idle");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_nobody_uses_is_closed() {
    let app = TestApp::with(&["limits.idle_timeout_s=1"]).await;
    let mut fresh = Raw::open(app.address).await;
    let mut used = Raw::saying(app.address, HEALTH).await;
    assert_eq!(used.answer().await.status, 200);
    assert_eq!(used.rest(PATIENCE).await, "");
    assert_eq!(fresh.rest(PATIENCE).await, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_nobody_reads_is_cut_off() {
    let app = TestApp::with(&["limits.idle_timeout_s=1"]).await;
    // More than the buffers of both ends hold, in several pieces, so that the server is in the middle of its answer.
    let mut large = draft(1);
    large["offers"][0]["description"] = json!("x".repeat(4_000));
    large["offers"] = json!(vec![large["offers"][0].clone(); 1_000]);
    for _ in 0..4 {
        app.publish(large.clone()).await;
    }
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut deaf = Raw(socket.connect(app.address).await.unwrap());
    deaf.say("GET /api/v1/sales HTTP/1.1\r\nHost: shop\r\n\r\n").await;
    timeout(PATIENCE, deaf.0.readable()).await.expect("no answer").unwrap();
    let open = || app.app.metrics.connections_open.get();
    eventually(|| open() > 0).await;
    eventually(|| open() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_head_that_is_too_large_is_refused_and_closed() {
    let app = TestApp::start().await;
    let mut raw = Raw::open(app.address).await;
    let head = format!("GET /healthz HTTP/1.1\r\nHost: shop\r\nX-Fat: {}\r\n\r\n", "x".repeat(40_000));
    // The server may close before it has read everything.
    raw.0.write_all(head.as_bytes()).await.ok();
    let said = raw.rest(PATIENCE).await;
    // What it had not read by then may have made the network drop what it said.
    assert!(said.is_empty() || said.starts_with("HTTP/1.1 431 "), "{said}");
    let many: String = (0..150).map(|number| format!("X-{number}: y\r\n")).collect();
    let mut raw =
        Raw::saying(app.address, format!("GET /healthz HTTP/1.1\r\nHost: shop\r\n{many}\r\n")).await;
    assert_eq!(raw.answer().await.status, 431);
    let small = format!("GET /healthz HTTP/1.1\r\nHost: shop\r\nX-Fat: {}\r\n\r\n", "x".repeat(12_000));
    assert_eq!(Raw::saying(app.address, small).await.answer().await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_follows_a_request_does_not_swallow_its_answer() {
    let app = TestApp::start().await;
    let sale = app.open_sale(1).await;
    let body = json!({"pass": app.buyer("ann").mint(sale.offer()), "quantity": 1}).to_string();
    let try_it = format!(
        "POST /api/v1/offers/{}/orders HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        sale.offer(),
        body.len()
    );
    // An empty line is nothing, garbage is no request: what came before has its answer.
    let first = Raw::saying(app.address, format!("{try_it}\r\n")).await.answer().await;
    assert_eq!(first.status, 202);
    for request in [&try_it, HEALTH] {
        for after in ["\r\n", "\r\n\r\n", "\0\r\n\r\n", "GET"] {
            let said = Raw::saying(app.address, format!("{request}{after}")).await.answer().await;
            // Asked again it is the same order, which may be queued still.
            assert!(matches!(said.status, 200 | 202), "{after:?}: {}", said.status);
        }
    }
    let mut raw = Raw::saying(app.address, format!("{HEALTH}\r\n")).await;
    assert_eq!(raw.answer().await.status, 200);
    raw.say(HEALTH).await;
    assert_eq!(raw.answer().await.status, 200, "the connection goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_refused_whether_it_comes_or_not() {
    let app = TestApp::with(&["limits.body_timeout_s=1"]).await;
    let token = app.buyer("ann").token;
    let sale = app.open_sale(1).await;
    for path in ["orders", "pass"] {
        let path = format!("/api/v1/offers/{}/{path}", sale.offer());
        let with_token = |request: String| {
            request.replace("Host: shop", &format!("Host: shop\r\nAuthorization: Bearer {token}"))
        };
        let mut raw = Raw::saying(app.address, with_token(post(&path, 20_000, ""))).await;
        let answer = raw.answer().await;
        assert_eq!(answer.status, 413, "{path} {}", answer.head);
        assert_code(&answer.json(), "too_large");
        raw.rest(PATIENCE).await;
        let chunked =
            with_token(post(&path, 0, "")).replace("Content-Length: 0", "Transfer-Encoding: chunked");
        let mut raw = Raw::saying(app.address, chunked).await;
        raw.say(format!("5000\r\n{}\r\n", "x".repeat(0x5000))).await;
        let answer = raw.answer().await;
        assert_eq!(answer.status, 413, "{path} without a length");
        raw.rest(PATIENCE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_cap_connections_are_closed_and_the_others_go_on() {
    let app = TestApp::with(&["limits.connections=4"]).await;
    let mut inside = Vec::new();
    for _ in 0..4 {
        let mut raw = Raw::saying(app.address, HEALTH).await;
        assert_eq!(raw.answer().await.status, 200);
        inside.push(raw);
    }
    for _ in 0..3 {
        let mut fifth = Raw::open(app.address).await;
        fifth.0.write_all(HEALTH.as_bytes()).await.ok();
        assert_eq!(fifth.rest(PATIENCE).await, "");
    }
    for raw in &mut inside {
        raw.say(HEALTH).await;
        assert_eq!(raw.answer().await.status, 200);
    }
    drop(inside.pop());
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut next = Raw::open(app.address).await;
        next.0.write_all(HEALTH.as_bytes()).await.ok();
        if timeout(PATIENCE, next.read_answer()).await.unwrap().is_some() {
            return;
        }
        assert!(Instant::now() < deadline, "the place of the one who left stays taken");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_comes_at_once_waits_and_nobody_is_lost() {
    let app = TestApp::with(&["edge_threads=1"]).await;
    let mut crowd = Vec::new();
    for _ in 0..CROWD {
        crowd.push(Raw::saying(app.address, HEALTH).await);
    }
    for raw in &mut crowd {
        assert_eq!(raw.answer().await.status, 200);
    }
    let accepted = app.app.metrics.connections.get(ConnectionOutcome::Accepted);
    assert_eq!(accepted, u64::try_from(CROWD).unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn sockets_that_say_nothing_keep_nobody_out() {
    let app = TestApp::with(&["edge_threads=1"]).await;
    let mut silent = Vec::new();
    for _ in 0..CROWD {
        silent.push(Raw::open(app.address).await);
    }
    for _ in 0..CROWD / 2 {
        let mut raw = Raw::saying(app.address, HEALTH).await;
        assert_eq!(raw.answer().await.status, 200);
    }
    for raw in &mut silent {
        raw.say(HEALTH).await;
        assert_eq!(raw.answer().await.status, 200, "who was silent so far may still speak");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_limited_unless_it_sends_a_buyer() {
    let app = TestApp::with(&["limits.per_ip_per_s=1", "limits.per_ip_burst=3"]).await;
    let ann = app.buyer("ann");
    for token in [None, Some("nonsense"), None] {
        app.call("GET", "/api/v1/time", token, None, 200).await;
    }
    let ask = async || app.send(app.client.get(app.url("/api/v1/time"))).await;
    let (headers, problem) = refused_as_too_fast(ask).await;
    assert_eq!(headers["retry-after"], "1");
    assert!((1..=1_000).contains(&problem["retry_after_ms"].as_u64().unwrap()), "{problem}");
    for _ in 0..20 {
        ann.call("GET", "/api/v1/time", None, 200).await;
        app.call("GET", "/healthz", None, None, 200).await;
        app.operate("GET", "/admin/v1/sales", None, 200).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_is_limited_whatever_is_wrong_with_its_tries() {
    let app = TestApp::with(&["limits.per_ip_per_s=1", "limits.per_ip_burst=1"]).await;
    let sale = app.open_sale(9).await;
    let path = format!("/api/v1/offers/{}/orders", sale.offer());
    let good = app.buyer("ann").mint(sale.offer());
    let large = json!({"pass": "x".repeat(20_000), "quantity": 1}).to_string();
    let unknown = "/api/v1/offers/01k9zq3v8g7m4x2r5w6t0n1pbc/orders";
    for (case, path, kind, body) in [
        ("no JSON", path.as_str(), "application/json", "{"),
        ("another kind", &path, "text/plain", "{}"),
        ("too large", &path, "application/json", &large),
        ("no pass", &path, "application/json", "{}"),
        ("no pass and no quantity", &path, "application/json", r#"{"pass":"x","quantity":null}"#),
        ("an unknown offer", unknown, "application/json", r#"{"pass":"x","quantity":1}"#),
    ] {
        let ask =
            || app.send(app.client.post(app.url(path)).header("content-type", kind).body(body.to_owned()));
        let mut met = Vec::new();
        while met.len() < 20 && !met.contains(&429) {
            met.push(ask().await.0);
        }
        assert!(met.contains(&429), "{case}: {met:?}");
    }
    // Whoever has a pass is known by it, and so is not one of the address's strangers.
    for _ in 0..5 {
        let body = json!({"pass": good, "quantity": null});
        assert_eq!(app.call("POST", &path, None, Some(&body), 422).await["field"], "quantity");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_is_limited_whatever_the_tries_ask_for() {
    let app = TestApp::with(&["limits.per_buyer_per_s=1", "limits.per_buyer_burst=3"]).await;
    let sale = app.open_sale(9).await;
    let path = format!("/api/v1/offers/{}/orders", sale.offer());
    for (buyer, quantity) in
        [("ann", json!(0)), ("ben", json!(1_000)), ("cyd", json!(null)), ("dan", json!("1"))]
    {
        let body = json!({"pass": app.buyer(buyer).mint(sale.offer()), "quantity": quantity});
        let ask = || app.send(app.client.post(app.url(&path)).json(&body));
        let mut met = Vec::new();
        while met.len() < 20 && !met.contains(&429) {
            met.push(ask().await.0);
        }
        assert!(met.len() > 3 && met.ends_with(&[422, 429]), "{quantity}: {met:?}");
    }
    assert_eq!(app.app.metrics.shed.get(Shed::PerBuyer), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_may_look_often_but_not_without_end() {
    let app = TestApp::with(&["limits.per_buyer_per_s=1", "limits.per_buyer_burst=2"]).await;
    let (ann, ben) = (app.buyer("ann"), app.buyer("ben"));
    for path in ["/api/v1/me", "/api/v1/orders", "/api/v1/orders/01k9zq3v8g7m4x2r5w6t0n1pbc"] {
        let ask = |buyer: &TestBuyer<'_>| app.send(app.client.get(app.url(path)).bearer_auth(&buyer.token));
        let answers = futures_util::future::join_all((0..100).map(|_| ask(&ann))).await;
        let (refused, served): (Vec<_>, Vec<_>) = answers.iter().partition(|(status, ..)| *status == 429);
        let most = usize::try_from(2 * READS_PER_TRY).unwrap();
        assert!(!refused.is_empty(), "{path}: all of {} were served", served.len());
        assert_code(&refused[0].2, "too_fast");
        assert_ne!(ask(&ben).await.0, 429, "{path}: the others do not notice");
        assert!(path != "/api/v1/me" || served.len() >= most, "{path}: only {} were served", served.len());
    }
    let cancel = "/api/v1/orders/01k9zq3v8g7m4x2r5w6t0n1pbc/cancel";
    let ask = || app.send(app.client.post(app.url(cancel)).bearer_auth(&ann.token));
    let answers = futures_util::future::join_all((0..100).map(|_| ask())).await;
    assert!(answers.iter().any(|(status, ..)| *status == 429), "a cancel is counted too");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buyer_who_tries_too_fast_is_told_when_to_come_back() {
    let app = TestApp::with(&["limits.per_buyer_per_s=1", "limits.per_buyer_burst=2"]).await;
    let sale = app.open_sale(9).await;
    let (ann, ben) = (app.buyer("ann"), app.buyer("ben"));
    ann.buy_with(sale.offer(), &ann.mint(sale.offer()), 1, 202).await;
    ann.buy_with(sale.offer(), &ann.mint(sale.offer()), 1, 409).await;
    let (headers, problem) = refused_as_too_fast(async || {
        let body = json!({"pass": ann.mint(sale.offer()), "quantity": 1});
        let attempt = app.client.post(app.url(&format!("/api/v1/offers/{}/orders", sale.offer())));
        app.send(attempt.json(&body)).await
    })
    .await;
    assert_eq!(headers["retry-after"], "1");
    assert!((1..=1_000).contains(&problem["retry_after_ms"].as_u64().unwrap()), "{problem}");
    ben.buy_with(sale.offer(), &ben.mint(sale.offer()), 1, 202).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_raises_a_rate_alone_gets_it() {
    let app = TestApp::with(&["limits.per_buyer_per_s=1000", "limits.per_ip_per_s=1000"]).await;
    for _ in 0..101 {
        app.call("GET", "/api/v1/time", None, None, 200).await;
    }
    let sale = app.open_sale(0).await;
    let ann = app.buyer("ann");
    for _ in 0..20 {
        let problem = ann.buy_with(sale.offer(), &ann.mint(sale.offer()), 1, 409).await;
        assert_code(&problem, "sold_out");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_trusted_proxy_says_who_the_client_is() {
    let limits = ["limits.per_ip_per_s=1", "limits.per_ip_burst=1"];
    let ask = async |app: &TestApp, chain: &str| {
        let request = app.client.get(app.url("/api/v1/time")).header("x-forwarded-for", chain);
        app.send(request).await
    };
    // Another one for each question, so that nobody is refused whose word is taken.
    let next = AtomicU8::new(0);
    let written = |net: &str| format!("{net}.{}", next.fetch_add(1, Ordering::Relaxed));
    let open = TestApp::with(&limits).await;
    assert_eq!(ask(&open, &written("192.0.2")).await.0, 200);
    refused_as_too_fast(async || ask(&open, &written("192.0.2")).await).await;
    let behind = TestApp::with(&[&limits[..], &["limits.trusted_proxies=127.0.0.1"]].concat()).await;
    for client in ["192.0.2.1", "192.0.2.2"] {
        assert_eq!(ask(&behind, client).await.0, 200);
    }
    // What the client wrote himself is ignored.
    refused_as_too_fast(async || ask(&behind, &format!("{}, 192.0.2.1", written("198.51.100"))).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_house_says_busy_at_once_and_keeps_its_reserve() {
    let app = TestApp::with(&["limits.in_flight=1", "limits.body_timeout_s=60"]).await;
    let sale = app.open_sale(1).await;
    let attempt = post(&format!("/api/v1/offers/{}/orders", sale.offer()), 2, "");
    let mut slow = Raw::saying(app.address, attempt).await;
    eventually(|| app.app.in_flight.used(Class::Buyer) == 1).await;
    let attempt = app.client.post(app.url(&format!("/api/v1/offers/{}/orders", sale.offer())));
    for request in [app.client.get(app.url("/api/v1/time")), attempt.json(&json!({}))] {
        let (status, headers, problem) = app.send(request).await;
        assert_eq!((status, headers["retry-after"].to_str().unwrap()), (503, "1"));
        assert_code(&problem, "busy");
    }
    app.call("GET", "/healthz", None, None, 200).await;
    app.operate("GET", "/admin/v1/sales", None, 200).await;
    slow.say("{}").await;
    assert_eq!(slow.answer().await.status, 422);
    app.call("GET", "/api/v1/time", None, None, 200).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callbacks_that_are_sent_slowly_keep_nobody_out() {
    let app = TestApp::with(&[money::SANDBOX, "limits.reserve=4", "limits.body_timeout_s=60"]).await;
    let sale = app.open_sale(2).await;
    let ann = app.buyer("ann");
    let order = money::won(&ann, &sale).await;
    let payment = money::payment(&ann, &order).await;
    let half = post("/api/v1/payments/sandbox/callback", 100, "{");
    let mut slow = Vec::new();
    for _ in 0..8 {
        slow.push(Raw::saying(app.address, &half).await);
    }
    eventually(|| app.app.in_flight.used(Class::Unread) == 8).await;
    app.call("GET", "/healthz", None, None, 200).await;
    app.operate("GET", "/admin/v1/sales", None, 200).await;
    let forge = money::Forge::of(&app);
    assert_eq!(forge.send(&app, &forge.paid(&payment, "event-1", "capture-1")).await, 200);
    money::becomes(&ann, &order, "paid").await;

    // Of those whose body is on its way there may be only so many; what came whole is not among them.
    let others: Vec<_> = (8..UNREAD_CALLBACKS_MAX).map(|_| app.app.in_flight.enter(Class::Unread)).collect();
    assert!(others.iter().all(Result::is_ok));
    assert_code(&Raw::saying(app.address, &half).await.answer().await.json(), "busy");
    let whole = post("/api/v1/payments/sandbox/callback", 2, "{}");
    assert_code(&Raw::saying(app.address, whole).await.answer().await.json(), "signature_invalid");
    drop(slow);
    eventually(|| app.app.in_flight.used(Class::Unread) == UNREAD_CALLBACKS_MAX - 8).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_request_is_hidden_inside_another() {
    let app = TestApp::start().await;
    let hidden = "GET /healthz HTTP/1.1\r\nHost: shop\r\n\r\n";
    let start = "POST /api/v1/demo/login HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\n";
    let corpus = [
        (
            "length and chunks",
            format!("{start}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        ),
        (
            "chunks and length",
            format!("{start}Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n{hidden}"),
        ),
        ("two lengths", format!("{start}Content-Length: 2\r\nContent-Length: 40\r\n\r\n{{}}{hidden}")),
        ("a list of lengths", format!("{start}Content-Length: 2, 40\r\n\r\n{{}}{hidden}")),
        ("a negative length", format!("{start}Content-Length: -2\r\n\r\n{{}}{hidden}")),
        ("a length with a sign", format!("{start}Content-Length: +2\r\n\r\n{{}}{hidden}")),
        ("a length in hex", format!("{start}Content-Length: 0x2\r\n\r\n{{}}{hidden}")),
        (
            "a length beyond all numbers",
            format!("{start}Content-Length: 99999999999999999999\r\n\r\n{{}}{hidden}"),
        ),
        ("xchunked", format!("{start}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}")),
        ("chunked not last", format!("{start}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}")),
        (
            "chunked of HTTP/1.0",
            format!("{start}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}").replacen("1.1", "1.0", 1),
        ),
        ("a space before the colon", format!("{start}Content-Length : 2\r\n\r\n{{}}{hidden}")),
        ("a folded line", format!("{start}X: a\r\n Content-Length: 2\r\n\r\n{{}}{hidden}")),
        ("a line break inside a value", format!("{start}X: a\rContent-Length: 2\r\n\r\n{{}}{hidden}")),
        ("a zero byte", format!("{start}X: a\0b\r\n\r\n{hidden}")),
        (
            "a chunk size that is no number",
            format!("{start}Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n{hidden}"),
        ),
        ("a chunk size with a sign", format!("{start}Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n{hidden}")),
        (
            "a chunk size beyond all numbers",
            format!("{start}Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n\r\n{hidden}"),
        ),
    ];
    for (case, bytes) in corpus {
        let mut raw = Raw::saying(app.address, bytes).await;
        let said = raw.rest(PATIENCE).await;
        assert!(said.matches("HTTP/1.1 ").count() <= 1, "{case}: {said}");
        assert!(!said.contains("alive"), "{case}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bare_line_feeds_end_lines_for_everybody_or_for_nobody() {
    let app = TestApp::with(&["limits.header_timeout_s=1"]).await;
    // Taken as line ends throughout (RFC 9112, 2.2), there is one request and its body is what its length says.
    let bytes = "POST /api/v1/demo/login HTTP/1.1\nHost: shop\nContent-Type: application/json\nContent-Length: 43\n\n";
    let mut raw = Raw::saying(app.address, format!("{bytes}{HEALTH}12345")).await;
    let said = timeout(PATIENCE, raw.read_answer()).await.unwrap();
    assert!(said.is_none_or(|answer| matches!(answer.status, 400 | 404)), "the body is not a request");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_carries_the_security_headers() {
    // Five requests of a stranger, and the next ones are too many.
    let limits = ["limits.per_ip_per_s=1", "limits.per_ip_burst=5"];
    let app =
        TestApp::with(&[&limits[..], &["limits.in_flight=1", "limits.body_timeout_s=60"]].concat()).await;
    let sale = app.open_sale(0).await;
    let ann = app.buyer("ann");
    let tries = format!("/api/v1/offers/{}/orders", sale.offer());
    let as_ann = |request: reqwest::RequestBuilder| request.bearer_auth(&ann.token);
    let get = |path: &str| app.client.get(app.url(path));
    let try_with = |body: Value| app.client.post(app.url(&tries)).json(&body);
    let kinds = [
        (200, as_ann(get("/api/v1/time"))),
        (200, as_ann(get("/api/v1/sales"))),
        (200, get("/healthz")),
        (200, get("/metrics")),
        (200, get("/api/docs/")),
        (401, get("/admin/v1/sales")),
        (404, as_ann(get("/api/v1/nowhere"))),
        (405, as_ann(app.client.delete(app.url("/api/v1/time")))),
        (409, try_with(json!({"pass": ann.mint(sale.offer()), "quantity": 1}))),
        (422, try_with(json!({}))),
        (413, try_with(json!({"pass": "x".repeat(20_000), "quantity": 1}))),
        (415, app.client.post(app.url(&tries)).body("x")),
    ];
    for (status, request) in kinds {
        assert_secure(app.send(request).await, status);
    }
    // The burst is used up, by whatever path, in time or a little later.
    for (path, status) in [("/api/v1/time", 200), ("/api/docs/", 200)] {
        let mut answer = app.send(get(path)).await;
        while answer.0 == status {
            answer = app.send(get(path)).await;
        }
        assert_secure(answer, 429);
    }
    let _slow = Raw::saying(app.address, post(&tries, 2, "")).await;
    eventually(|| app.app.in_flight.used(Class::Buyer) == 1).await;
    assert_secure(app.send(as_ann(get("/api/v1/time"))).await, 503);
}

fn assert_secure((found, headers, body): (u16, reqwest::header::HeaderMap, Value), status: u16) {
    assert_eq!(found, status, "{headers:?} {body}");
    for (name, value) in [("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer")] {
        assert_eq!(headers.get(name).unwrap_or_else(|| panic!("{status} without {name}")), value);
    }
    let policy = headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"), "{policy}");
    assert_eq!(headers.contains_key("retry-after"), matches!(status, 429 | 503), "{headers:?}");
    assert_eq!(headers.contains_key("allow"), status == 405, "{headers:?}");
    assert!(!headers.contains_key("server"), "{headers:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_are_for_this_machine_or_for_the_key() {
    let app = TestApp::start().await;
    app.call("GET", "/metrics", None, None, 200).await;
    // What a proxy on this machine says, of which the settings say nothing.
    for (header, value, status) in [
        ("x-forwarded-for", "192.0.2.1", 401),
        ("x-forwarded-proto", "https", 401),
        ("x-real-ip", "127.0.0.1", 401),
        ("forwarded", "for=192.0.2.1", 401),
        ("via", "1.1 proxy", 401),
        ("host", "sale.shop.example", 401),
        ("host", "127.0.0.1.shop.example", 401),
        ("host", "192.0.2.1:8080", 401),
        ("host", "localhost:8080", 200),
        ("host", "[::1]", 200),
    ] {
        let ask = || app.client.get(app.url("/metrics")).header(header, value);
        assert_eq!(app.send(ask()).await.0, status, "{header}: {value}");
        assert_eq!(app.send(ask().bearer_auth(ADMIN_KEY)).await.0, 200, "{header}: {value}");
    }
    let nameless = Raw::saying(app.address, "GET /metrics HTTP/1.0\r\n\r\n").await.answer().await;
    assert_eq!(nameless.status, 401);
    let public = TestApp::with(&["public_url=https://sale.shop.example"]).await;
    assert_eq!(public.send(public.client.get(public.url("/metrics"))).await.0, 401);
    // Behind a proxy everybody's connection comes from this machine; the proxy says who they are.
    let behind = TestApp::with(&["limits.trusted_proxies=127.0.0.1"]).await;
    let ask = async |client: Option<&str>, token: &str| {
        let mut request = behind.client.get(behind.url("/metrics")).bearer_auth(token);
        if let Some(client) = client {
            request = request.header("x-forwarded-for", client);
        }
        behind.send(request).await
    };
    assert_code(&ask(Some("192.0.2.1"), "").await.2, "unauthorized");
    assert_eq!(
        ask(Some("127.0.0.1, 192.0.2.1"), "").await.0,
        401,
        "what the client wrote himself is ignored"
    );
    assert_eq!(ask(Some("192.0.2.1"), &behind.buyer("ann").token).await.0, 401);
    assert_eq!(ask(Some("192.0.2.1"), ADMIN_KEY).await.0, 200);
    assert_eq!(ask(None, "").await.0, 401, "who sends no address may come through it all the same");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_ever_logged_or_answered() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0", "--data-dir", folder.path().to_str().unwrap()];
    let server = Program::new(env!("CARGO_BIN_EXE_doorbuster"))
        .args(args)
        .args(["--set", "telemetry.log_filter=trace", "--set", "demo=true"])
        .env("DOORBUSTER_ADMIN_KEY", "planted-admin-key-0123456789abcdef0123456789")
        .env("DOORBUSTER_AUTH__HS256_SECRET", "planted-auth-secret-0123456789abcdef01234")
        .env("DOORBUSTER_PASS__SECRET", "planted-pass-secret-0123456789abcdef01234")
        .start()
        .unwrap();
    let line = server.wait_for_line("listening on ", PATIENCE).unwrap();
    let address = line.strip_prefix("listening on http://").unwrap().parse().unwrap();
    let login = "{\"buyer\":\"ann\"}";
    let login =
        Raw::saying(address, post("/api/v1/demo/login", login.len(), login)).await.answer().await.json();
    let token = login["token"].as_str().unwrap();
    let mut said = String::new();
    let mut talk = async |request: String| {
        let answer = Raw::saying(address, request).await.answer().await;
        said.push_str(&answer.head);
        said.push_str(&answer.body);
    };
    for bearer in ["planted-admin-key-0123456789abcdef0123456789", "planted-wrong-key", token] {
        for path in ["/admin/v1/sales", "/api/v1/me", "/metrics", "/readyz", "/api/v1/orders?token=planted"] {
            talk(format!("GET {path} HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer {bearer}\r\n\r\n"))
                .await;
        }
    }
    let pass = "{\"pass\":\"planted-pass\",\"quantity\":1}";
    talk(post("/api/v1/offers/01k9zq3v8g7m4x2r5w6t0n1pbc/orders", pass.len(), pass)).await;
    talk(post("/api/v1/offers/01k9zq3v8g7m4x2r5w6t0n1pbc/orders", 9, "{\"planted")).await;
    server.terminate().unwrap();
    server.wait(PATIENCE).unwrap();
    testkit::eventually(PATIENCE, || server.output_ended());
    let lines = server.lines();
    assert!(lines.iter().any(|line| line.stream == Stream::Stderr), "it said nothing, so nothing was tested");
    for secret in ["planted", token] {
        assert!(!said.contains(secret), "{secret} was answered: {said}");
        let logged = lines.iter().find(|line| line.text.contains(secret));
        assert!(logged.is_none(), "{secret} was logged: {logged:?}");
    }
}
