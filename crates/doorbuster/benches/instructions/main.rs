//! The hot path on a socket of memory, for callgrind: a try's bytes go in, its answer's come out, on one thread. Started by
//! `cargo xtask test` and `cargo xtask bench --only instructions`, which count only what runs inside `counted_region`.
//!
//! `refuse`: a sold-out refusal from request to answer. `accept`: the same of an accept, up to the hand-over to the
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

use std::future::poll_fn;
use std::hint::black_box;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Parser;
use doorbuster::app::{App, Server};
use doorbuster::clock::Clock;
use doorbuster::config::Settings;
use doorbuster::edge::shortcut::{Next, Shortcut};
use doorbuster::edge::watch::Watch;
use rules::buyer::BuyerId;
use rules::id::OfferId;
use rules::pass::{Pass, PassBuffer};
use serde_json::{Value, json};
use stampede::connection::{Connection, Request, Timeouts};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
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

/// No answer is longer.
const ANSWER_BYTES_MAX: usize = 4_096;

/// A try on a connection of its own.
struct Asked {
    shortcut: Shortcut<Socket>,
    told: Told,
    pass: String,
}

/// What the server has said on a connection.
type Told = Arc<Mutex<Vec<u8>>>;

/// A socket on which one request has arrived.
struct Socket {
    request: Vec<u8>,
    told: Told,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let folder = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let stock = if args.what == What::Accept { 1_000_000 } else { 0 };
    let (server, offer) = runtime.block_on(start(folder.path(), stock))?;
    let app = Arc::clone(&server.app);
    let mut asked: Vec<Asked> = (0..args.count * 2).map(|number| Asked::new(&app, offer, number)).collect();
    let (before, asked) = asked.split_at_mut(args.count);
    let _inside = runtime.enter();
    match args.what {
        What::Refuse => {
            begin(before);
            check(before, "409");
            counted_region(|| begin(asked));
            check(asked, "409");
        }
        What::Accept => {
            begin(before);
            runtime.block_on(finish(before));
            check(before, "202");
            counted_region(|| begin(asked));
            runtime.block_on(finish(asked));
            check(asked, "202");
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

/// Lets each connection do what it can without waiting.
fn begin(asked: &mut [Asked]) {
    for asked in asked {
        assert!(asked.poll(&mut Context::from_waker(Waker::noop())).is_pending(), "a shortcut keeps its try");
    }
}

/// Until all are answered.
async fn finish(asked: &mut [Asked]) {
    for asked in asked {
        poll_fn(|context| {
            let polled = asked.poll(context);
            assert!(polled.is_pending(), "a shortcut keeps its try");
            if asked.told.lock().unwrap().is_empty() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }
}

fn check_passes(app: &Arc<App>, asked: &[Asked]) {
    for asked in asked {
        let mut buffer = PassBuffer::default();
        let pass = black_box(app.pass_keys.read(black_box(&asked.pass), &mut buffer));
        assert!(pass.is_ok(), "a pass of our own is valid");
    }
}

fn check(asked: &[Asked], status: &str) {
    for asked in asked {
        let told = asked.told.lock().unwrap();
        let told = String::from_utf8_lossy(&told);
        assert!(told.starts_with(&format!("HTTP/1.1 {status} ")), "not {status}: {told:?}");
    }
}

impl Asked {
    fn new(app: &Arc<App>, offer: OfferId, number: usize) -> Self {
        let buyer = BuyerId::parse(&format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))).unwrap();
        let now = app.clock.now();
        let order = app.pass_keys.mint_order_id(&buyer, now, rand::random());
        let pass = Pass { buyer: buyer.as_str(), offer, order, expires_at: now.plus_s(300) };
        let pass = app.pass_keys.sign(&pass);
        let body = format!(r#"{{"pass":"{pass}","quantity":1}}"#);
        let mut request = Vec::new();
        Request::post(&format!("/api/v1/offers/{offer}/orders"), None, body.as_bytes())
            .render("127.0.0.1:8080", &mut request);
        // What the server says fits: no allocation in here is ours.
        let told = Told::new(Mutex::new(Vec::with_capacity(ANSWER_BYTES_MAX)));
        let socket = Socket { request, told: Arc::clone(&told) };
        let watch = Arc::new(Watch::new(Arc::default()));
        Self { shortcut: Shortcut::new(socket, watch, Arc::clone(app), Arc::default(), true), told, pass }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<Next>> {
        self.shortcut.poll_tries(context)
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.request.is_empty() {
            return Poll::Pending;
        }
        buffer.put_slice(&std::mem::take(&mut self.request));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        self.told.lock().unwrap().extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
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
