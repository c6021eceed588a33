//! Events on their way out: how many a second one fast webhook gets, and how soon a buyer's socket hears of a change.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use doorbuster::clock::Clock;
use doorbuster::config::AuthSettings;
use doorbuster::edge::auth::sign_demo_token;
use futures_util::{SinkExt as _, StreamExt as _};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rules::buyer::BuyerId;
use rules::id::OfferId;
use rules::pass::{Pass, PassKeys};
use rules::time::UnixMs;
use serde_json::{Value, json};
use stampede::blast::{Pace, Until};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::Plan;
use crate::load::{Minted, Names, blast};
use crate::product::{AUTH_SECRET, PASS_SECRET, Product};
use crate::report::{Goal, Report, median};

/// What a courier that stands still takes as failed.
const DELIVERY_LIMIT: Duration = Duration::from_secs(120);

/// Buyers with an open socket, and how many changes they make together per second.
const BUYERS: usize = 200;
const CHANGES_PER_S: f64 = 500.0;

/// A socket that has not heard of a change by then never will.
const HEARD_LIMIT: Duration = Duration::from_secs(10);

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    throughput(plan, report)?;
    to_the_socket(plan, report)
}

/// Orders are made while the webhook is disabled; then it is enabled, and all of their events go out at once.
fn throughput(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let events = if plan.quick { 20_000 } else { 100_000 };
    report.say(&format!("webhooks: {events} events to one fast receiver"));
    let mut rates = Vec::new();
    for repetition in 1..=plan.repetitions {
        let rate = deliver(plan, report, events)?;
        report.say(&format!("run {repetition}/{}: {rate:>8.0}/s", plan.repetitions));
        rates.push(rate);
    }
    report.raw("webhooks", json!({"events": events, "rates": rates}));
    report.figure(
        "webhooks_per_s",
        median(&rates),
        "1/s",
        "events delivered to one fast webhook, signed, written down",
        Goal::AtLeast { must: 2_000.0, target: 2_000.0 },
    );
    Ok(())
}

fn deliver(plan: &Plan, report: &mut Report, events: u64) -> anyhow::Result<f64> {
    let folder = TempDir::new()?;
    let product = Product::start_with(folder.path(), &["webhooks.private_addresses=true"])?;
    report.command(product.command());
    let receiver = Receiver::start()?;
    let wanted = json!({"url": receiver.url(), "types": ["order.recorded"], "disabled": true});
    let hook = product.operate("POST", "/admin/v1/webhooks", Some(&wanted))?;
    let path = format!("/admin/v1/webhooks/{}", hook["id"].as_str().context("no id")?);
    let sale = product.open_sale(1, 10_000_000)?;
    let source = Minted::new(&product, &sale);
    let made = blast(plan, product.address, Until::Requests(events), Pace::Closed).run(|_| source.clone())?;
    ensure!(made.status(202) == events, "{} of {events} orders", made.status(202));
    product.settle(&sale)?;
    let began = Instant::now();
    product.operate("PATCH", &path, Some(&json!({"disabled": false})))?;
    // Until the ledger has it: what is only sent would be sent again.
    loop {
        let seen = product.operate("GET", &path, None)?;
        if seen["behind_since"].is_null() && seen["waiting"] == 0 {
            break;
        }
        ensure!(began.elapsed() < DELIVERY_LIMIT, "{} of {events}: {seen}", receiver.count());
        std::thread::sleep(Duration::from_millis(20));
    }
    let elapsed = began.elapsed();
    ensure!(receiver.count() == events, "{} requests for {events} events", receiver.count());
    Ok(events as f64 / elapsed.as_secs_f64())
}

/// Takes everything, on one thread of its own.
struct Receiver {
    address: SocketAddr,
    count: Arc<AtomicU64>,
}

impl Receiver {
    fn start() -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let (address, count) = (listener.local_addr()?, Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&count);
        std::thread::spawn(move || runtime.block_on(receive(listener, counted)));
        Ok(Self { address, count })
    }

    fn url(&self) -> String {
        format!("http://{}/hooks", self.address)
    }

    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

async fn receive(listener: TcpListener, count: Arc<AtomicU64>) {
    while let Ok((stream, _)) = listener.accept().await {
        let count = Arc::clone(&count);
        tokio::spawn(async move {
            let take = service_fn(|request: Request<Incoming>| {
                let count = Arc::clone(&count);
                async move {
                    let _body = request.into_body().collect().await;
                    count.fetch_add(1, Ordering::Relaxed);
                    let mut answer = Response::new(Empty::<Bytes>::new());
                    *answer.status_mut() = StatusCode::NO_CONTENT;
                    Ok::<_, Infallible>(answer)
                }
            });
            hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), take).await
        });
    }
}

/// Buyers order and cancel, each with an open socket. The time runs from sending the request to hearing of the change:
/// the request's own way and the sync of the disk are in it.
fn to_the_socket(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let rounds = if plan.quick { 5 } else { 20 };
    report.say(&format!("sockets: {BUYERS} buyers order and cancel {rounds} times, {CHANGES_PER_S}/s"));
    let folder = TempDir::new()?;
    let raised = ["limits.per_buyer_per_s=1000000", "limits.per_buyer_burst=1000000"];
    let product = Product::start_with(folder.path(), &raised)?;
    let sale = product.open_sale(1, 1_000_000)?;
    let (address, offer) = (product.address, sale.offers[0]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut heard_ms = runtime.block_on(async {
        let client = reqwest::Client::builder().no_proxy().build()?;
        let names = Names::in_order();
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..BUYERS {
            let buyer = Buyer::new(address, offer, client.clone(), &names.name(number))?;
            tasks.spawn(buyer.change(number, rounds));
        }
        let mut heard = Vec::new();
        while let Some(done) = tasks.join_next().await {
            heard.extend(done??);
        }
        anyhow::Ok(heard)
    })?;
    heard_ms.sort_by(f64::total_cmp);
    ensure!(heard_ms.len() == BUYERS * rounds * 2, "{} changes were heard", heard_ms.len());
    let at = |share: f64| heard_ms[((heard_ms.len() - 1) as f64 * share) as usize];
    report.raw(
        "event_to_socket",
        json!({"changes": heard_ms.len(), "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)}),
    );
    report.figure(
        "event_to_socket_p99_ms",
        at(0.99),
        "ms",
        "from sending a change (order, cancel) to the buyer's WebSocket hearing of it, p99",
        Goal::AtMost { must: 50.0, target: 50.0 },
    );
    Ok(())
}

struct Buyer {
    address: SocketAddr,
    offer: OfferId,
    client: reqwest::Client,
    id: BuyerId,
    token: String,
    keys: PassKeys,
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

impl Buyer {
    fn new(address: SocketAddr, offer: OfferId, client: reqwest::Client, name: &str) -> anyhow::Result<Self> {
        let id = BuyerId::parse(name).map_err(|_| anyhow::anyhow!("{name} is no buyer"))?;
        let settings = AuthSettings { hs256_secret: Some(AUTH_SECRET.into()), ..AuthSettings::default() };
        let token = sign_demo_token(&settings, &id, Duration::from_secs(3_600), &Clock::system())?;
        let keys = PassKeys::new(PASS_SECRET.as_bytes(), None);
        Ok(Self { address, offer, client, id, token, keys })
    }

    /// Milliseconds until each change was heard of.
    async fn change(self, number: usize, rounds: usize) -> anyhow::Result<Vec<f64>> {
        let (mut socket, _) = connect_async(format!("ws://{}/api/v1/events", self.address)).await?;
        let hello = json!({"type": "auth", "token": self.token}).to_string();
        socket.send(Message::text(hello)).await?;
        ensure!(hear(&mut socket).await?["type"] == "ready", "not ready");
        let step = Duration::from_secs_f64(2.0 * BUYERS as f64 / CHANGES_PER_S);
        // Everybody has begun by then, and nobody together with another.
        let first = tokio::time::Instant::now() + step.mul_f64(1.0 + number as f64 / BUYERS as f64);
        let mut heard = Vec::new();
        for round in 0..rounds {
            tokio::time::sleep_until(first + step * round as u32).await;
            let (order, pass) = self.pass();
            let body = json!({"pass": pass, "quantity": 1});
            let buying = self.post(format!("offers/{}/orders", self.offer), body);
            heard.push(timed(&mut socket, &order, "awaiting_payment", buying).await?);
            let cancelling = self.post(format!("orders/{order}/cancel"), json!({}));
            heard.push(timed(&mut socket, &order, "closed", cancelling).await?);
        }
        Ok(heard)
    }

    fn pass(&self) -> (String, String) {
        let now = UnixMs(jiff::Timestamp::now().as_millisecond());
        let order = self.keys.mint_order_id(&self.id, now, rand::random());
        let (buyer, expires_at) = (self.id.as_str(), now.plus_s(300));
        let pass = self.keys.sign(&Pass { buyer, offer: self.offer, order, expires_at });
        (order.to_string(), pass)
    }

    async fn post(&self, path: String, body: Value) -> anyhow::Result<()> {
        let url = format!("http://{}/api/v1/{path}", self.address);
        let response = self.client.post(url).bearer_auth(&self.token).json(&body).send().await?;
        ensure!(response.status().is_success(), "{path}: {}", response.status());
        response.bytes().await?;
        Ok(())
    }
}

/// Sends a change and waits for both its answer and the socket.
async fn timed(
    socket: &mut Socket,
    order: &str,
    state: &str,
    change: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    let hearing = async {
        loop {
            let told = hear(socket).await?;
            if told["order"]["id"] == order && told["order"]["state"] == state {
                return anyhow::Ok(began.elapsed());
            }
        }
    };
    let (heard, ()) = tokio::try_join!(hearing, change)?;
    Ok(heard.as_secs_f64() * 1_000.0)
}

async fn hear(socket: &mut Socket) -> anyhow::Result<Value> {
    loop {
        let message = tokio::time::timeout(HEARD_LIMIT, socket.next()).await.context("nothing was heard")?;
        match message.context("the socket ended")?? {
            Message::Text(text) => return Ok(serde_json::from_str(&text)?),
            Message::Ping(_) | Message::Pong(_) => {}
            other => bail!("{other:?}"),
        }
    }
}
