//! The hot path without a socket, for callgrind: a try's body goes in, its answer comes out, on one thread. Started by
//! `cargo xtask test` and `cargo xtask bench --only instructions`, which count only what runs inside `counted_region`.
//!
//! `refuse`: a sold-out refusal from body to answer. `accept`: the same of an accept, up to the hand-over to the
//! journal. `pass`: the check of a pass alone. Everything runs once uncounted first, so that what is made on first use
//! does not count.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "a measuring tool: it fails loudly"
)]

use std::cell::Cell;
use std::future::Future;
use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use clap::Parser;
use doorbuster::app::{App, Server};
use doorbuster::clock::Clock;
use doorbuster::config::Settings;
use doorbuster::edge::buy;
use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::Full;
use rules::buyer::BuyerId;
use rules::id::OfferId;
use rules::pass::{Pass, PassBuffer};
use serde_json::{Value, json};
use stampede::connection::{Connection, Request, Timeouts};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const ADMIN_KEY: &str = "count-admin-key-0123456789abcdef0123456789abcdef";

#[derive(Debug, Parser)]
struct Args {
    what: What,
    /// How many are counted; as many go before them uncounted.
    count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum What {
    Refuse,
    Accept,
    Pass,
}

/// A try as it lies before the edge.
struct Asked {
    /// Taken when it is asked: the edge makes them before it calls.
    parts: Cell<Option<Parts>>,
    body: Bytes,
    pass: String,
}

type Answering<'a> = Pin<Box<dyn Future<Output = Response<doorbuster::edge::answer::Body>> + 'a>>;

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let stock = if args.what == What::Accept { 1_000_000 } else { 0 };
    let (server, offer) = runtime.block_on(start(folder.path(), stock))?;
    let app = Arc::clone(&server.app);
    let asked: Vec<Asked> = (0..args.count * 2).map(|number| Asked::new(&app, offer, number)).collect();
    let (before, asked) = asked.split_at(args.count);
    let _inside = runtime.enter();
    match args.what {
        What::Refuse => {
            check(&refuse(&app, before), StatusCode::CONFLICT);
            check(&counted_region(|| refuse(&app, asked)), StatusCode::CONFLICT);
        }
        What::Accept => {
            check(&runtime.block_on(finish(hand_over(&app, before))), StatusCode::ACCEPTED);
            let handed_over = counted_region(|| hand_over(&app, asked));
            check(&runtime.block_on(finish(handed_over)), StatusCode::ACCEPTED);
        }
        What::Pass => {
            check_passes(&app, before);
            counted_region(|| check_passes(&app, asked));
        }
    }
    println!("{} done", args.count);
    // Nothing is asked of the end, and under callgrind it would take long.
    std::process::exit(0);
}

/// What callgrind counts: only this thread, only in here.
#[inline(never)]
fn counted_region<T>(run: impl FnOnce() -> T) -> T {
    black_box(run())
}

fn refuse(app: &Arc<App>, asked: &[Asked]) -> Vec<StatusCode> {
    let answer = |asked: &Asked| match poll(&mut asked.answering(app)) {
        Poll::Ready(response) => response.status(),
        Poll::Pending => panic!("a refusal waits for nothing"),
    };
    asked.iter().map(answer).collect()
}

/// A try after its first poll.
enum Handed<'a> {
    /// Its claim is with the journal.
    Over(Answering<'a>),
    /// The journal was quicker than this thread, which was stopped in between.
    Back(StatusCode),
}

/// Polls each once.
fn hand_over<'a>(app: &'a Arc<App>, asked: &'a [Asked]) -> Vec<Handed<'a>> {
    let hand_over = |asked: &'a Asked| {
        let mut answering = asked.answering(app);
        match poll(&mut answering) {
            Poll::Pending => Handed::Over(answering),
            Poll::Ready(response) => Handed::Back(response.status()),
        }
    };
    asked.iter().map(hand_over).collect()
}

async fn finish(handed: Vec<Handed<'_>>) -> Vec<StatusCode> {
    let mut statuses = Vec::new();
    for handed in handed {
        statuses.push(match handed {
            Handed::Over(answering) => answering.await.status(),
            Handed::Back(status) => status,
        });
    }
    statuses
}

fn check_passes(app: &Arc<App>, asked: &[Asked]) {
    for asked in asked {
        let mut buffer = PassBuffer::default();
        let pass = black_box(app.pass_keys.read(black_box(&asked.pass), &mut buffer));
        assert!(pass.is_ok(), "a pass of our own is valid");
    }
}

fn check(statuses: &[StatusCode], expected: StatusCode) {
    assert!(statuses.iter().all(|status| *status == expected), "not only {expected}: {statuses:?}");
}

fn poll<T>(future: &mut Pin<Box<dyn Future<Output = T> + '_>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

impl Asked {
    fn new(app: &App, offer: OfferId, number: usize) -> Self {
        let buyer = BuyerId::parse(&format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))).unwrap();
        let now = app.clock.now();
        let order = app.pass_keys.mint_order_id(&buyer, now, rand::random());
        let pass = Pass { buyer: buyer.as_str(), offer, order, expires_at: now.plus_s(300) };
        let pass = app.pass_keys.sign(&pass);
        let body = Bytes::from(format!(r#"{{"pass":"{pass}","quantity":1}}"#));
        let request = http::Request::post(format!("/api/v1/offers/{offer}/orders"))
            .header("host", "127.0.0.1:8080")
            .header("content-type", "application/json")
            .header("content-length", body.len());
        let (parts, ()) = request.body(()).unwrap().into_parts();
        Self { parts: Cell::new(Some(parts)), body, pass }
    }

    fn answering<'a>(&'a self, app: &'a Arc<App>) -> Answering<'a> {
        let body = Full::new(self.body.clone());
        let parts = self.parts.take().expect("each is asked once");
        Box::pin(buy::buy(app, parts, Ipv4Addr::LOCALHOST.into(), body, None))
    }
}

/// The whole product, as the command line starts it, with one sale that is open.
async fn start(folder: &Path, stock: u32) -> anyhow::Result<(Server, OfferId)> {
    let settings = [
        "listen=127.0.0.1:0".to_owned(),
        format!("data_dir={}", folder.display()),
        format!("admin_key={ADMIN_KEY}"),
        "auth.hs256_secret=count-auth-secret-0123456789abcdef0123456789abcdef".to_owned(),
        "pass.secret=count-pass-secret-0123456789abcdef0123456789abcdef".to_owned(),
        // A table of a million takes longer to make under callgrind than everything else.
        "limits.limiter_keys=20000".to_owned(),
    ];
    let settings = Settings::load(None, std::iter::empty(), &settings)?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let server = Server::start(settings, Clock::system(), listener, None, CancellationToken::new()).await?;
    let now = jiff::Timestamp::now();
    let day = jiff::SignedDuration::from_hours(24);
    let offer = json!({"name": "x", "price": {"amount": 149_900, "currency": "CNY"}, "stock": stock});
    let draft = json!({
        "title": "count", "opens_at": (now - day).to_string(), "closes_at": (now + day).to_string(),
        "pay_within_s": 86_400, "offers": [offer],
    });
    let sale = operate(address, "/admin/v1/sales", &draft).await?;
    let id = sale["id"].as_str().context("a sale has an id")?;
    operate(address, &format!("/admin/v1/sales/{id}/publish"), &json!({})).await?;
    let offer = sale["offers"][0]["id"].as_str().context("an offer has an id")?;
    Ok((server, offer.parse()?))
}

async fn operate(address: SocketAddr, path: &str, body: &Value) -> anyhow::Result<Value> {
    let body = body.to_string();
    let mut request = Vec::new();
    Request::post(path, Some(ADMIN_KEY), body.as_bytes()).render("127.0.0.1", &mut request);
    let patience = Duration::from_secs(60);
    let mut connection = Connection::new(address, Timeouts { connect: patience, answer: patience });
    let answer = connection.call(&request).await?;
    let text = String::from_utf8_lossy(answer.body);
    ensure!((200..300).contains(&answer.status), "{path}: {text}");
    Ok(serde_json::from_str(&text)?)
}
