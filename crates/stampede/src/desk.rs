//! The few calls that are not a buyer's: the operator's, and what a visitor reads before the crowd comes. It speaks the
//! public API over one connection and says in a sentence what to do when that does not work.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rules::id::SaleId;
use rules::time::UnixMs;
use rules::wire::{OperatorOrder, OperatorSale, Page, Problem, SaleView, ServerTime, Stats};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::connection::{CallError, Connection, Request, Timeouts};
use crate::verdict::Audit;

/// How long the last orders may take to be recorded.
const QUIET_WITHIN: Duration = Duration::from_secs(30);
const QUIET_EVERY: Duration = Duration::from_millis(50);
/// How long an audit may take.
const AUDIT_WITHIN: Duration = Duration::from_secs(60);
const AUDIT_EVERY: Duration = Duration::from_millis(200);
/// Orders that are listed and compared; more would take minutes to read.
pub const BOOKS_MAX: usize = 200_000;
/// Orders per page, the most the server gives.
const PAGE: u32 = 200;

/// Where a server is.
#[derive(Clone, Debug)]
pub struct Address {
    pub url: String,
    /// The `Host` header.
    pub host: String,
    pub addr: SocketAddr,
}

impl Address {
    /// Reads and looks up `http://host:port`.
    pub async fn find(url: &str) -> anyhow::Result<Self> {
        let url = url.trim_end_matches('/');
        let Some(host) = url.strip_prefix("http://") else {
            bail!(
                "`{url}` does not begin with http://; the crowd speaks plain HTTP, so point it at the server itself, behind \
                 the proxy that does TLS"
            );
        };
        ensure!(!host.is_empty() && !host.contains('/'), "`{url}` is not of the form http://HOST:PORT");
        let named = if has_port(host) { host.to_owned() } else { format!("{host}:80") };
        let found = tokio::net::lookup_host(&named).await;
        let mut found = found.with_context(|| format!("`{host}` was not found; is the name right?"))?;
        let addr = found.next().with_context(|| format!("`{host}` has no address"))?;
        Ok(Self { url: url.to_owned(), host: host.to_owned(), addr })
    }
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// One connection to a server, with or without the operator's key.
#[derive(Debug)]
pub struct Desk {
    address: Address,
    key: Option<String>,
    connection: Mutex<Connection>,
}

/// An answer that is no success.
#[derive(Debug, thiserror::Error)]
#[error("{method} {path} was refused: {status} {code}{}{hint}", if detail.is_empty() { String::new() } else { format!(" ({detail})") })]
pub struct Refused {
    pub status: u16,
    pub code: String,
    method: &'static str,
    path: String,
    detail: String,
    hint: &'static str,
}

impl Desk {
    /// Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(address: Address, key: Option<String>) -> Self {
        let connection = Mutex::new(Connection::new(address.addr, Timeouts::default()));
        Self { address, key, connection }
    }

    /// The sale as a page shows it.
    pub async fn sale(&self, sale: SaleId) -> anyhow::Result<SaleView> {
        self.get(&format!("/api/v1/sales/{sale}")).await
    }

    /// How far the server's clock is ahead of ours, in milliseconds.
    pub async fn offset_ms(&self, clock: Clock) -> anyhow::Result<i64> {
        let asked = clock.now();
        let time: ServerTime = self.get("/api/v1/time").await?;
        Ok(time.now_ms.saturating_sub(asked.0.midpoint(clock.now().0)))
    }

    pub async fn stats(&self, sale: SaleId) -> anyhow::Result<Stats> {
        self.get(&format!("/admin/v1/sales/{sale}/stats")).await
    }

    /// The numbers once nothing is under way, or as they are when patience is over; the verdict sees the difference.
    pub async fn stats_when_quiet(&self, sale: SaleId, clock: Clock) -> anyhow::Result<Stats> {
        let until = clock.instant() + QUIET_WITHIN;
        loop {
            let stats = self.stats(sale).await?;
            if stats.queue.depth == 0 || clock.instant() > until {
                return Ok(stats);
            }
            tokio::time::sleep(QUIET_EVERY).await;
        }
    }

    /// All orders of a sale; `None` when there are too many to read.
    pub async fn books(&self, sale: SaleId) -> anyhow::Result<Option<Vec<OperatorOrder>>> {
        let mut orders = Vec::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/admin/v1/orders?sale={sale}&limit={PAGE}{cursor}");
            let page: Page<OperatorOrder> = self.get(&path).await?;
            orders.extend(page.items);
            match page.next_cursor {
                None => return Ok(Some(orders)),
                Some(_) if orders.len() >= BOOKS_MAX => return Ok(None),
                Some(next) => cursor = format!("&cursor={next}"),
            }
        }
    }

    /// The shop's own audit; `None` where it has none.
    pub async fn audit(&self, clock: Clock) -> anyhow::Result<Option<Audit>> {
        let until = clock.instant() + AUDIT_WITHIN;
        let mut said: Value = match self.post("/admin/v1/audit", &json!({})).await {
            Ok(said) => said,
            Err(error) if is_unknown(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        loop {
            if said.get("clean").is_some_and(Value::is_boolean) {
                return Ok(Some(serde_json::from_value(said)?));
            }
            ensure!(clock.instant() < until, "the shop's audit did not end in {} s", AUDIT_WITHIN.as_secs());
            let id =
                said.get("id").and_then(Value::as_str).context("the audit has neither a result nor an id")?;
            let path = format!("/admin/v1/audit/{id}");
            tokio::time::sleep(AUDIT_EVERY).await;
            said = self.get(&path).await?;
        }
    }

    pub async fn operator_sale(&self, sale: SaleId) -> anyhow::Result<OperatorSale> {
        self.get(&format!("/admin/v1/sales/{sale}")).await
    }

    /// Makes a rehearsal of a sale: the same configuration, other times, listed nowhere; and publishes it.
    pub async fn publish_copy(
        &self,
        sale: &OperatorSale,
        opens_at: UnixMs,
        closes_at: UnixMs,
    ) -> anyhow::Result<SaleView> {
        let copy: SaleView = self.post("/admin/v1/sales", &copy_of(sale, opens_at, closes_at)).await?;
        let _published: Value =
            self.post(&format!("/admin/v1/sales/{}/publish", copy.id), &json!({})).await?;
        Ok(copy)
    }

    pub async fn end(&self, sale: SaleId) -> anyhow::Result<()> {
        let _ended: Value = self.post(&format!("/admin/v1/sales/{sale}/end"), &json!({})).await?;
        Ok(())
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call("GET", path, None).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> anyhow::Result<T> {
        self.call("POST", path, Some(&serde_json::to_vec(body)?)).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        path: &str,
        body: Option<&[u8]>,
    ) -> anyhow::Result<T> {
        let mut bytes = Vec::new();
        Request { method, path, bearer: self.key.as_deref(), body }.render(&self.address.host, &mut bytes);
        let mut connection = self.connection.lock().await;
        let url = &self.address.url;
        let answer = connection.call(&bytes).await.map_err(|error| no_answer(url, error))?;
        if !(200..300).contains(&answer.status) {
            return Err(Refused::read(method, path, answer.status, answer.body).into());
        }
        serde_json::from_slice(answer.body).with_context(|| {
            format!("{method} {path} was not answered as by Doorbuster; is {url} the right server?")
        })
    }
}

fn no_answer(url: &str, error: CallError) -> anyhow::Error {
    anyhow::Error::from(error).context(format!("no answer from {url}; is the server running there?"))
}

fn is_unknown(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refused>().is_some_and(|refused| matches!(refused.status, 404 | 405 | 501))
}

impl Refused {
    fn read(method: &'static str, path: &str, status: u16, body: &[u8]) -> Self {
        let problem: Option<Problem> = serde_json::from_slice(body).ok();
        let hint = match status {
            401 => "; give the server's `admin_key` with --admin-key",
            404 if path.contains("/sales/") => "; is the sale's id right, and is it published?",
            _ => "",
        };
        let (code, detail) = problem
            .map_or(("no problem document".into(), String::new()), |problem| (problem.code, problem.detail));
        Self { status, code, method, path: path.to_owned(), detail, hint }
    }
}

fn copy_of(sale: &OperatorSale, opens_at: UnixMs, closes_at: UnixMs) -> Value {
    let offer = |offer: &rules::wire::OperatorOffer| {
        // Pictures are for eyes; the crowd has none, and a copy need not fetch them again.
        let rules::wire::OfferView { name, description, list_price, price, max_per_order, .. } = &offer.offer;
        json!({
            "name": name, "description": description, "list_price": list_price, "price": price,
            "max_per_order": max_per_order, "stock": offer.stock,
        })
    };
    let title: String = format!("Rehearsal of {}", sale.title).chars().take(TITLE_CHARS_MAX).collect();
    let mut copy = json!({
        "title": title,
        "opens_at": opens_at,
        "closes_at": closes_at,
        "pay_within_s": sale.pay_within_s,
        "challenge": sale.challenge,
        "registration": sale.registration,
        "rehearsal": true,
        "offers": sale.offers.iter().map(offer).collect::<Vec<_>>(),
    });
    strip_nulls(&mut copy);
    copy
}

/// The longest title a sale may have.
const TITLE_CHARS_MAX: usize = 200;

/// What is not given is not null.
fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(strip_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_nulls),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
