//! The few calls that are not a buyer's: the operator's, and what a visitor reads before the crowd comes. It speaks the
//! public API over one connection and says in a sentence what to do when that does not work.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use rules::id::{OfferId, SaleId};
use rules::sale::{ChallengeKind, TITLE_CHARS_MAX};
use rules::time::UnixMs;
use rules::wire::{OperatorOrder, OperatorSale, Page, Problem, SaleView, ServerTime, Stats};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::clock::Clock;
use crate::connection::{CallError, Connection, Request, Timeouts};
use crate::person::Challenge;
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
/// The port of a URL that names none.
const HTTP_PORT: u16 = 80;

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
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        ensure!(
            scheme.eq_ignore_ascii_case("http"),
            "`{url}` does not begin with http://; the crowd speaks plain HTTP, so point it at the server itself, behind \
             the proxy that does TLS"
        );
        let host = rest.trim_end_matches('/');
        let (name, port) = split_port(host).with_context(|| {
            format!("`{url}` is not of the form http://HOST:PORT, with nothing behind it")
        })?;
        let found = tokio::net::lookup_host(format!("{name}:{port}")).await;
        let mut found = found.with_context(|| format!("`{name}` was not found; is the name right?"))?;
        let addr = found.next().with_context(|| format!("`{name}` has no address"))?;
        Ok(Self { url: format!("http://{host}"), host: host.to_owned(), addr })
    }
}

/// A name or an address, IPv6 in brackets, and its port. `None`: this is something else, and must not get into a header.
fn split_port(host: &str) -> Option<(&str, u16)> {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()?),
        _ => (host, HTTP_PORT),
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    let is_address = |letter: char| letter.is_ascii_hexdigit() || matches!(letter, ':' | '.');
    let sound = bare.map_or_else(|| name.chars().all(is_name), |bare| bare.chars().all(is_address));
    (sound && !name.is_empty()).then_some((name, port))
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

    /// Fails only when nobody answers; a refusal is an answer.
    pub async fn is_there(&self) -> anyhow::Result<()> {
        answered(self.get::<ServerTime>("/api/v1/time").await).map(|_| ())
    }

    /// Whether the server takes the token this desk was given instead of a key.
    pub async fn is_known(&self) -> anyhow::Result<bool> {
        let said = answered(self.get::<Value>("/api/v1/me").await)?;
        Ok(said.is_none_or(|refused| refused.status != 401))
    }

    /// A token of the demo's login; `None`: the server is not in demo mode.
    pub async fn log_in(&self, buyer: &str) -> anyhow::Result<Option<String>> {
        #[derive(serde::Deserialize)]
        struct Given {
            token: String,
        }
        match self.post::<Given>("/api/v1/demo/login", &json!({ "buyer": buyer })).await {
            Ok(given) => Ok(Some(given.token)),
            Err(error) if is_unknown(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A challenge for the buyer whose token this desk was given instead of a key.
    pub(crate) async fn challenge(&self, offer: OfferId) -> anyhow::Result<Challenge> {
        self.post(&format!("/api/v1/offers/{offer}/challenge"), &json!({})).await
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

    /// Makes a rehearsal of a sale: the same configuration, other times, listed nowhere; and publishes it. A picture,
    /// which no program reads, becomes no challenge at all.
    pub async fn publish_copy(
        &self,
        sale: &OperatorSale,
        opens_at: UnixMs,
        closes_at: UnixMs,
    ) -> anyhow::Result<SaleView> {
        let copy: SaleView = self.post("/admin/v1/sales", &copy_of(sale, opens_at, closes_at)).await?;
        let path = format!("/admin/v1/sales/{}", copy.id);
        let published: anyhow::Result<Value> = self.post(&format!("{path}/publish"), &json!({})).await;
        if let Err(error) = published {
            // A draft nobody asked for; whether it can be deleted changes nothing about the error.
            let _ = self.call::<Value>("DELETE", &path, None).await;
            return Err(error);
        }
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
        let answer = connection.call(&bytes).await.map_err(|error| no_answer(url, &error))?;
        if !(200..300).contains(&answer.status) {
            return Err(Refused::read(method, path, answer.status, answer.body).into());
        }
        serde_json::from_slice(answer.body).with_context(|| {
            format!("{method} {path} was not answered as by Doorbuster; is {url} the right server?")
        })
    }
}

/// The numbers once nothing is under way, or as they are when patience is over; the verdict sees the difference.
pub async fn once_quiet(
    clock: Clock,
    stats: impl AsyncFn() -> anyhow::Result<Stats>,
) -> anyhow::Result<Stats> {
    let until = clock.instant() + QUIET_WITHIN;
    loop {
        let stats = stats().await?;
        if stats.queue.depth == 0 || clock.instant() > until {
            return Ok(stats);
        }
        tokio::time::sleep(QUIET_EVERY).await;
    }
}

fn no_answer(url: &str, error: &CallError) -> anyhow::Error {
    anyhow!("no answer from {url} ({error}); is the server running there?")
}

/// The refusal, if it was one; no answer at all stays an error.
fn answered<T>(said: anyhow::Result<T>) -> anyhow::Result<Option<Refused>> {
    match said {
        Ok(_) => Ok(None),
        Err(error) => error.downcast().map(Some),
    }
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
    let challenge = match sale.challenge {
        ChallengeKind::Picture => ChallengeKind::None,
        kind @ (ChallengeKind::None | ChallengeKind::Pow) => kind,
    };
    let title: String = format!("Rehearsal of {}", sale.title).chars().take(TITLE_CHARS_MAX).collect();
    let mut copy = json!({
        "title": title,
        "opens_at": opens_at,
        "closes_at": closes_at,
        "pay_within_s": sale.pay_within_s,
        "challenge": challenge,
        "registration": sale.registration,
        "rehearsal": true,
        "offers": sale.offers.iter().map(offer).collect::<Vec<_>>(),
    });
    strip_nulls(&mut copy);
    copy
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_is_named_by_host_and_port_and_nothing_else() {
        for (url, host, port) in [
            ("http://127.0.0.1:8080", "127.0.0.1:8080", 8080),
            ("HTTP://127.0.0.1/", "127.0.0.1", 80),
            ("http://[::1]:81", "[::1]:81", 81),
            ("http://[::1]", "[::1]", 80),
        ] {
            let found = Address::find(url).await.unwrap();
            assert_eq!((found.host.as_str(), found.addr.port()), (host, port), "{url}");
            assert_eq!(found.url, format!("http://{host}"));
        }
        let wrong =
            ["", ":8080", "h:", "h:99999", "h/shop", "u:p@h", "h?x=1", "h h", "::1", "h\r\nx: y", "[::1"];
        for rest in wrong {
            let complaint = Address::find(&format!("http://{rest}")).await.unwrap_err().to_string();
            assert!(complaint.contains("http://HOST:PORT"), "{rest}: {complaint}");
        }
        for url in ["https://127.0.0.1", "127.0.0.1:8080", ""] {
            let complaint = Address::find(url).await.unwrap_err().to_string();
            assert!(complaint.contains("does not begin with http://"), "{url}: {complaint}");
        }
    }
}
