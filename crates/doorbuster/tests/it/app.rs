//! A whole server for one test, started exactly as the product starts it, and clients that state what they expect.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use doorbuster::app::{App, Server};
use doorbuster::clock::Clock;
use doorbuster::config::{AuthSettings, Settings};
use doorbuster::edge::auth::sign_demo_token;
use doorbuster::ledger::Changed;
use doorbuster::queue::sqlite;
use rules::buyer::BuyerId;
use rules::pass::{Pass, PassKeys};
use rules::sale::SaleAction;
use rules::time::UnixMs;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::disk::{Beside, Disk};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub const ADMIN_KEY: &str = "test-admin-key-0123456789abcdef0123456789abcdef";
pub const AUTH_SECRET: &str = "test-auth-secret-0123456789abcdef0123456789abcdef";
pub const PASS_SECRET: &str = "test-pass-secret-0123456789abcdef0123456789abcdef";

/// A token that is good for an hour, as the shop's issuer would sign it.
pub fn token_of(buyer: &str, clock: &Clock) -> String {
    let settings = AuthSettings { hs256_secret: Some(AUTH_SECRET.into()), ..AuthSettings::default() };
    let buyer = BuyerId::parse(buyer).unwrap();
    sign_demo_token(&settings, &buyer, Duration::from_secs(3_600), clock).unwrap()
}

/// How long a test waits for what must come: a busy machine and a slow disk take their time, and who waits for less is
/// told of a defect that is none.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running server with its data folder. Dropping it stops it; [`TestApp::stop`] waits for that.
pub struct TestApp {
    pub app: Arc<App>,
    pub address: SocketAddr,
    pub client: reqwest::Client,
    folder: Option<TempDir>,
    shutdown: CancellationToken,
    running: Option<tokio::task::JoinHandle<anyhow::Result<()>>>,
}

impl TestApp {
    /// With the defaults, but without rate limits: most tests are not about them.
    pub async fn start() -> Self {
        Self::with(&[]).await
    }

    /// With settings as on the command line, such as `limits.per_buyer_per_s=5`.
    pub async fn with(overrides: &[&str]) -> Self {
        Self::on(tempfile::tempdir().unwrap(), Clock::system(), overrides).await
    }

    /// On a data folder that may have a past, with a clock that may be moved.
    pub async fn on(folder: TempDir, clock: Clock, overrides: &[&str]) -> Self {
        let settings = settings(folder.path(), overrides);
        Self::start_on(folder, clock, settings, None).await
    }

    /// With settings that only code can make.
    pub async fn tuned(folder: TempDir, clock: Clock, tune: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = settings(folder.path(), &[]);
        tune(&mut settings);
        Self::start_on(folder, clock, settings, None).await
    }

    /// With its files on a disk that may break.
    pub async fn on_disk(folder: TempDir, disk: &Disk) -> Self {
        let settings = settings(folder.path(), &[]);
        Self::start_on(folder, Clock::system(), settings, Some(&breakable(disk, None))).await
    }

    async fn start_on(
        folder: TempDir,
        clock: Clock,
        settings: Settings,
        disk: Option<&Arc<dyn sqlite::Disk>>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let server = Server::start_on(settings, clock, listener, None, shutdown.clone(), disk).await.unwrap();
        let app = Arc::clone(&server.app);
        let running = Some(tokio::spawn(server.until_the_end()));
        let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(40)).build().unwrap();
        Self { app, address, client, folder: Some(folder), shutdown, running }
    }

    /// Stops it as an operator would and hands the data folder over to the next start.
    pub async fn stop(mut self) -> TempDir {
        self.shutdown.cancel();
        self.running.take().unwrap().await.unwrap().unwrap();
        self.folder.take().unwrap()
    }

    /// Waits until it ends by itself; answers why, and the data folder.
    pub async fn fail(mut self) -> (anyhow::Error, TempDir) {
        let ended = tokio::time::timeout(PATIENCE, self.running.take().unwrap()).await;
        let outcome = ended.expect("it goes on").unwrap();
        (outcome.expect_err("it ended without a reason"), self.folder.take().unwrap())
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn buyer(&self, name: &str) -> TestBuyer<'_> {
        TestBuyer { app: self, name: name.to_owned(), token: token_of(name, &self.app.clock) }
    }

    /// Sends a request as whoever holds `token`, and states the status it must have.
    pub async fn call(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
        status: u16,
    ) -> Value {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.client.request(method.clone(), self.url(path));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.unwrap();
        let found = response.status().as_u16();
        let text = response.text().await.unwrap();
        assert_eq!(found, status, "{method} {path}: {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    /// As the operator.
    pub async fn operate(&self, method: &str, path: &str, body: Option<&Value>, status: u16) -> Value {
        self.call(method, path, Some(ADMIN_KEY), body, status).await
    }

    /// A published sale as described; see [`draft`]. Returns its JSON.
    pub async fn publish(&self, draft: Value) -> TestSale {
        let sale = self.operate("POST", "/admin/v1/sales", Some(&draft), 201).await;
        let id = sale["id"].as_str().unwrap().to_owned();
        self.operate("POST", &format!("/admin/v1/sales/{id}/publish"), Some(&json!({})), 200).await;
        let offers = sale["offers"].as_array().unwrap();
        let offers = offers.iter().map(|offer| offer["id"].as_str().unwrap().to_owned()).collect();
        TestSale { id, offers }
    }

    /// Publishes, pauses, resumes or ends.
    pub async fn act(&self, sale: &TestSale, action: SaleAction) {
        let changed = self.app.act_on_sale(sale.id.parse().unwrap(), action).await.unwrap();
        assert!(matches!(changed, Changed::Done(_)), "{action:?}: {changed:?}");
    }

    /// Sends what no well-behaved client would; answers status, headers and the JSON of the body.
    pub async fn send(&self, request: reqwest::RequestBuilder) -> (u16, reqwest::header::HeaderMap, Value) {
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.unwrap();
        (status, headers, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// A sale that is open now, with one offer of so many units.
    pub async fn open_sale(&self, stock: u32) -> TestSale {
        self.publish(draft(stock)).await
    }

    /// The first offer's numbers.
    pub async fn stats(&self, sale: &TestSale) -> Value {
        self.operate("GET", &format!("/admin/v1/sales/{}/stats", sale.id), None, 200).await
    }

    /// Waits until every claim is recorded.
    pub async fn settled(&self) {
        eventually("every claim is recorded", async || self.app.gate.memory.room().taken() == 0).await;
    }

    /// An audit as the operator asks for it, once it has ended: one that takes longer than a request waits is told as
    /// running, and is then to be asked for by its id.
    pub async fn audited(&self, body: &Value) -> Value {
        let request = self.client.post(self.url("/admin/v1/audit")).bearer_auth(ADMIN_KEY).json(body);
        let (status, _, begun) = self.send(request).await;
        assert!(matches!(status, 200 | 202), "{status}: {begun}");
        assert_eq!(status == 200, begun["state"] == "done", "{begun}");
        let path = format!("/admin/v1/audit/{}", begun["id"].as_str().unwrap());
        let look = async || self.operate("GET", &path, None, 200).await;
        eventually("the audit ends", async || look().await["state"] != "running").await;
        look().await
    }
}

impl Drop for TestApp {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

/// Waits until something is so. Asked once more when the time is over: a machine that slept through it has done no wrong.
pub async fn eventually(what: &str, so: impl AsyncFn() -> bool) {
    let begun = std::time::Instant::now();
    loop {
        let late = begun.elapsed() >= PATIENCE;
        if so().await {
            return;
        }
        assert!(!late, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Asks until a rate refuses, and answers how. A bucket fills up again while a slow machine asks, so that the first
/// question too many may still be served; not so many of them.
pub async fn refused_as_too_fast(
    ask: impl AsyncFn() -> (u16, reqwest::header::HeaderMap, Value),
) -> (reqwest::header::HeaderMap, Value) {
    for _ in 0..20 {
        let (status, headers, problem) = ask().await;
        if status == 429 {
            assert_code(&problem, "too_fast");
            return (headers, problem);
        }
    }
    panic!("20 questions in a row were not too fast");
}

/// A server whose clock stands still until it is advanced, and the clock.
pub async fn with_manual_clock(overrides: &[&str]) -> (TestApp, Clock) {
    let clock = Clock::manual(UnixMs(jiff::Timestamp::now().as_millisecond()));
    (TestApp::on(tempfile::tempdir().unwrap(), clock.clone(), overrides).await, clock)
}

/// That this is a problem document with this code.
pub fn assert_code(problem: &Value, code: &str) {
    assert_eq!(problem["code"], code, "{problem}");
    for field in ["type", "title", "status", "detail"] {
        assert!(!problem[field].is_null(), "{field} is missing: {problem}");
    }
}

/// Settings of a test server.
pub fn settings(folder: &std::path::Path, overrides: &[&str]) -> Settings {
    let mut all = vec![
        "listen=127.0.0.1:0".to_owned(),
        format!("data_dir={}", folder.display()),
        format!("admin_key={ADMIN_KEY}"),
        format!("auth.hs256_secret={AUTH_SECRET}"),
        format!("pass.secret={PASS_SECRET}"),
        "limits.per_ip_per_s=0".to_owned(),
        "limits.per_buyer_per_s=0".to_owned(),
        "drain_s=20".to_owned(),
    ];
    all.extend(overrides.iter().map(|&setting| setting.to_owned()));
    let settings = Settings::load(None, std::iter::empty(), &all).unwrap();
    settings.check().unwrap();
    settings
}

/// A sale that opened a minute ago and closes in an hour.
pub fn draft(stock: u32) -> Value {
    draft_between(-60, 3_600, stock)
}

/// A sale with a window in seconds from now.
pub fn draft_between(opens_in_s: i64, closes_in_s: i64, stock: u32) -> Value {
    // Asked once: two readings of the clock may be a millisecond apart.
    let now = jiff::Timestamp::now();
    let at = |seconds: i64| now + jiff::SignedDuration::from_secs(seconds);
    json!({
        "title": "1499 night",
        "opens_at": at(opens_in_s).to_string(),
        "closes_at": at(closes_in_s).to_string(),
        "offers": [{
            "name": "Feitian 53",
            "price": {"amount": 149_900, "currency": "CNY"},
            "stock": stock,
            "max_per_order": 5,
        }],
    })
}

/// A disk as the product takes it. Logs are copied after so many pages, or after as many as on a real one.
pub fn breakable(disk: &Disk, copy_pages: Option<u32>) -> Arc<dyn sqlite::Disk> {
    Arc::new(Breakable { vfs: disk.vfs_name().to_owned(), beside: disk.beside(), copy_pages })
}

#[derive(Debug)]
struct Breakable {
    vfs: String,
    beside: Beside,
    copy_pages: Option<u32>,
}

impl sqlite::Disk for Breakable {
    fn vfs(&self) -> &str {
        &self.vfs
    }

    fn sync(&self, path: &Path) -> std::io::Result<()> {
        self.beside.sync(path.to_str().unwrap())
    }

    fn copy_pages(&self) -> Option<u32> {
        self.copy_pages
    }

    fn free_bytes(&self) -> u64 {
        self.beside.free_bytes()
    }
}

pub struct TestSale {
    pub id: String,
    pub offers: Vec<String>,
}

impl TestSale {
    pub fn offer(&self) -> &str {
        &self.offers[0]
    }
}

/// A person with a token.
pub struct TestBuyer<'a> {
    pub app: &'a TestApp,
    pub name: String,
    pub token: String,
}

impl TestBuyer<'_> {
    pub async fn call(&self, method: &str, path: &str, body: Option<&Value>, status: u16) -> Value {
        self.app.call(method, path, Some(&self.token), body, status).await
    }

    /// A pass as the server gives it: `{"pass","order_id","expires_at"}`.
    pub async fn pass(&self, offer: &str) -> Value {
        self.call("POST", &format!("/api/v1/offers/{offer}/pass"), Some(&json!({})), 200).await
    }

    /// A pass signed with the server's secret, without asking it.
    pub fn mint(&self, offer: &str) -> String {
        let keys = PassKeys::new(PASS_SECRET.as_bytes(), None);
        let now = self.app.app.clock.now();
        let buyer = BuyerId::parse(&self.name).unwrap();
        let order = keys.mint_order_id(&buyer, now, rand::random());
        keys.sign(&Pass {
            buyer: &self.name,
            offer: offer.parse().unwrap(),
            order,
            expires_at: now.plus_s(300),
        })
    }

    /// A try with a pass.
    pub async fn buy_with(&self, offer: &str, pass: &str, quantity: u32, status: u16) -> Value {
        let body = json!({"pass": pass, "quantity": quantity});
        self.app.call("POST", &format!("/api/v1/offers/{offer}/orders"), None, Some(&body), status).await
    }

    /// Gets a pass and tries.
    pub async fn buy(&self, offer: &str, quantity: u32, status: u16) -> Value {
        let pass = self.pass(offer).await;
        self.buy_with(offer, pass["pass"].as_str().unwrap(), quantity, status).await
    }

    /// The order, once it is no longer queued.
    pub async fn order(&self, id: &str) -> Value {
        self.call("GET", &format!("/api/v1/orders/{id}?wait=20"), None, 200).await
    }
}
