//! An example of a shop's receiver: gives points for paid orders and writes text messages to buyers. Take it as a
//! beginning for your own. It shows the three things that every receiver needs:
//!
//! 1. It believes only what is signed with its secret, over the bytes as they came, and not older than five minutes.
//! 2. It knows an event by its `webhook-id`: the same one again changes nothing. Event and effect are one transaction.
//! 3. It answers 2xx only after that commit. Whatever else it answers, the event comes again.
//!
//! To try it on one machine, beside a server that may tell addresses inside:
//!
//! ```text
//! doorbuster serve … --set webhooks.private_addresses=true
//! doorbuster webhooks add http://127.0.0.1:9000/hooks     # prints the secret, once
//! export WEBHOOK_SECRETS=whsec_…                          # that secret; two, with a comma, while it changes
//! cargo run --example receiver -- 127.0.0.1:9000 points.db
//! ```
#![expect(clippy::print_stdout, reason = "what it does is its output")]

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use aws_lc_rs::hmac;
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use parking_lot::Mutex;
use rusqlite::{Connection, Transaction, params};
use serde::Deserialize;

/// How old or early a delivery may be, in seconds: a stolen one is worth nothing afterwards.
const TOLERANCE_S: i64 = 300;

/// One point for so many minor units.
const MINOR_UNITS_PER_POINT: i64 = 100;

const TABLES: &str = "
    create table if not exists seen (id text primary key) without rowid;
    create table if not exists points (buyer text primary key, points integer not null) without rowid;
    create table if not exists messages (no integer primary key, buyer text not null, text text not null);";

/// The part of a delivery that this receiver looks at.
#[derive(Debug, Deserialize)]
struct Delivery {
    data: Event,
}

#[derive(Debug, Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    order_id: Option<String>,
    #[serde(default)]
    data: Facts,
}

#[derive(Debug, Default, Deserialize)]
struct Facts {
    buyer: Option<String>,
    total: Option<Money>,
    reason: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Money {
    amount: i64,
}

/// What became of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Taken,
    /// Taken before.
    Repeat,
    /// Not signed by our Doorbuster, or too long ago.
    NotBelieved,
}

/// The shop's books.
#[derive(Debug)]
pub struct Books {
    connection: Mutex<Connection>,
    keys: Vec<hmac::Key>,
}

impl Books {
    pub fn open(file: &Path, secrets: &[&str]) -> anyhow::Result<Self> {
        let connection = Connection::open(file)?;
        connection.execute_batch(TABLES)?;
        let keys = secrets.iter().map(|secret| {
            let secret = secret.strip_prefix("whsec_").context("a secret begins with whsec_")?;
            Ok(hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(secret)?))
        });
        Ok(Self { connection: Mutex::new(connection), keys: keys.collect::<anyhow::Result<_>>()? })
    }

    /// Takes a delivery: believed, once, and durable when this returns.
    pub fn take(&self, headers: &HeaderMap, body: &[u8], now_s: i64) -> anyhow::Result<Outcome> {
        let Some(id) = self.believe(headers, body, now_s) else { return Ok(Outcome::NotBelieved) };
        let event = serde_json::from_slice::<Delivery>(body)?.data;
        let mut connection = self.connection.lock();
        let transaction = connection.transaction()?;
        if transaction.execute("insert or ignore into seen values (?1)", [id])? == 0 {
            return Ok(Outcome::Repeat);
        }
        act(&transaction, &event)?;
        transaction.commit()?;
        Ok(Outcome::Taken)
    }

    /// The delivery's id, if one of its signatures is of one of our keys.
    fn believe<'a>(&self, headers: &'a HeaderMap, body: &[u8], now_s: i64) -> Option<&'a str> {
        let text = |name: &str| headers.get(name)?.to_str().ok();
        let (id, timestamp) = (text("webhook-id")?, text("webhook-timestamp")?);
        let sent_s: i64 = timestamp.parse().ok()?;
        if now_s.saturating_sub(sent_s).saturating_abs() > TOLERANCE_S {
            return None;
        }
        let signed = [id.as_bytes(), timestamp.as_bytes(), body].join(&b'.');
        let ours =
            |signature: &[u8]| self.keys.iter().any(|key| hmac::verify(key, &signed, signature).is_ok());
        let mut signatures = text("webhook-signature")?.split(' ').filter_map(|one| one.strip_prefix("v1,"));
        signatures.any(|one| STANDARD.decode(one).is_ok_and(|signature| ours(&signature))).then_some(id)
    }

    pub fn points(&self, buyer: &str) -> anyhow::Result<i64> {
        let sql = "select coalesce(sum(points), 0) from points where buyer = ?1";
        Ok(self.connection.lock().query_row(sql, [buyer], |row| row.get(0))?)
    }

    pub fn messages(&self, buyer: &str) -> anyhow::Result<Vec<String>> {
        let connection = self.connection.lock();
        let mut statement = connection.prepare("select text from messages where buyer = ?1 order by no")?;
        let texts = statement.query_map([buyer], |row| row.get(0))?;
        Ok(texts.collect::<Result<_, _>>()?)
    }
}

/// Types that are not known here are no mistake: there will be more of them.
fn act(transaction: &Transaction<'_>, event: &Event) -> anyhow::Result<()> {
    let (Some(buyer), Some(order)) = (&event.data.buyer, &event.order_id) else { return Ok(()) };
    let points = event.data.total.as_ref().map_or(0, |total| total.amount / MINOR_UNITS_PER_POINT);
    match (event.kind.as_str(), event.data.reason.as_deref()) {
        ("order.recorded", _) => {
            write(transaction, buyer, &format!("Order {order} is yours. Please pay it in time."))
        }
        ("order.paid", _) => {
            give(transaction, buyer, points)?;
            write(transaction, buyer, &format!("Order {order} is paid. You have {points} new points."))
        }
        ("order.refunded", _) => {
            give(transaction, buyer, -points)?;
            write(transaction, buyer, &format!("Order {order} is refunded."))
        }
        // Money that never paid the order: it came too late, twice, or was not the right sum.
        ("payment.refund_due", Some(reason)) => {
            write(transaction, buyer, &format!("Your money for order {order} goes back ({reason})."))
        }
        ("payment.refunded", _) => {
            write(transaction, buyer, &format!("Your money for order {order} is back."))
        }
        ("order.closed", Some("timeout")) => {
            write(transaction, buyer, &format!("Order {order} was not paid in time and is closed."))
        }
        _ => Ok(()),
    }
}

fn give(transaction: &Transaction<'_>, buyer: &str, points: i64) -> anyhow::Result<()> {
    transaction.execute(
        "insert into points values (?1, ?2) on conflict (buyer) do update set points = points + ?2",
        params![buyer, points],
    )?;
    Ok(())
}

/// A gateway for text messages would read this table, and delete what it has sent.
fn write(transaction: &Transaction<'_>, buyer: &str, text: &str) -> anyhow::Result<()> {
    transaction.execute("insert into messages (buyer, text) values (?1, ?2)", params![buyer, text])?;
    println!("to {buyer}: {text}");
    Ok(())
}

pub fn router(books: Arc<Books>) -> Router {
    Router::new().route("/hooks", post(hook)).with_state(books)
}

async fn hook(State(books): State<Arc<Books>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let taking = tokio::task::spawn_blocking(move || books.take(&headers, &body, now_s()));
    match taking.await {
        Ok(Ok(Outcome::Taken | Outcome::Repeat)) => StatusCode::NO_CONTENT,
        Ok(Ok(Outcome::NotBelieved)) => StatusCode::UNAUTHORIZED,
        // Not durable here: it must come again.
        Ok(Err(_)) | Err(_) => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[expect(clippy::disallowed_methods, reason = "an example has no clock to be handed")]
fn now_s() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (Some(listen), Some(file)) = (arguments.next(), arguments.next()) else {
        bail!("usage: receiver ADDRESS:PORT FILE, for example: receiver 127.0.0.1:9000 points.db");
    };
    let secrets = std::env::var("WEBHOOK_SECRETS").context("set WEBHOOK_SECRETS to whsec_…")?;
    let books = Books::open(Path::new(&file), &secrets.split(',').collect::<Vec<_>>())?;
    let listener = tokio::net::TcpListener::bind(&listen).await.with_context(|| listen.clone())?;
    println!("receiving on http://{}/hooks", listener.local_addr()?);
    Ok(axum::serve(listener, router(Arc::new(books))).await?)
}
