//! The operator's HTTP interface, as the command line calls it. A refusal comes back as an error that says what to
//! do next.

use std::fmt;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use rules::wire::{Code, Page, Problem};
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// An operator's call changes a few rows; what takes longer than this will not come.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// An export may hold every order of a large shop.
const DOWNLOAD_TIMEOUT: Duration = Duration::from_secs(3_600);

/// Whether a server is there is known at once.
const ALIVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Entries of a list that are fetched at a time.
const PAGE: u32 = 200;

/// Names are the shop's: they may hold anything that means something in an address.
pub fn in_address(text: &str) -> impl fmt::Display + '_ {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    key: SecretString,
}

impl Client {
    /// `base` as people write it: `127.0.0.1:8080` is enough.
    pub fn new(base: &str, key: SecretString) -> anyhow::Result<Self> {
        // The server is the shop's own: a proxy of the desk it is called from has no part in it.
        let http = reqwest::Client::builder().no_proxy().timeout(CALL_TIMEOUT).build()?;
        let scheme = if base.contains("://") { "" } else { "http://" };
        Ok(Self { http, base: format!("{scheme}{}", base.trim_end_matches('/')), key })
    }

    pub async fn is_alive(&self) -> bool {
        let answer = self.http.get(format!("{}/healthz", self.base)).timeout(ALIVE_TIMEOUT).send().await;
        answer.is_ok_and(|response| response.status().is_success())
    }

    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        self.call(Method::GET, path, None).await
    }

    /// Reads a list page by page, at most `limit` entries of it. `query` is what they must match: parts that begin with `&`.
    pub async fn list<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &str,
        limit: usize,
    ) -> anyhow::Result<Vec<T>> {
        let mut items = Vec::new();
        let mut beyond = String::new();
        while items.len() < limit {
            let page: Page<T> = self.get(&format!("{path}?limit={PAGE}{query}{beyond}")).await?;
            items.extend(page.items);
            let Some(cursor) = page.next_cursor else { break };
            beyond = format!("&cursor={}", in_address(&cursor));
        }
        items.truncate(limit);
        Ok(items)
    }

    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> anyhow::Result<T> {
        self.call(Method::POST, path, Some(body)).await
    }

    pub async fn put<T: DeserializeOwned>(&self, path: &str, body: &Value) -> anyhow::Result<T> {
        self.call(Method::PUT, path, Some(body)).await
    }

    pub async fn patch<T: DeserializeOwned>(&self, path: &str, body: &Value) -> anyhow::Result<T> {
        self.call(Method::PATCH, path, Some(body)).await
    }

    pub async fn delete(&self, path: &str) -> anyhow::Result<Value> {
        self.call(Method::DELETE, path, None).await
    }

    /// Copies an answer that is no JSON, as it comes. An error in the middle leaves `into` with a part of it.
    pub async fn download(&self, path: &str, into: &mut impl Write) -> anyhow::Result<()> {
        let mut response = self.send(self.request(Method::GET, path).timeout(DOWNLOAD_TIMEOUT)).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(self.refused(status, &response.bytes().await.context("the answer broke off")?));
        }
        while let Some(part) = response.chunk().await.context("the answer broke off")? {
            into.write_all(&part)?;
        }
        Ok(into.flush()?)
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<T> {
        let request = self.request(method, path);
        let request = match body {
            // A repeat after a lost answer must not do it twice.
            Some(body) => request.header("Idempotency-Key", random_text()).json(body),
            None => request,
        };
        let response = self.send(request).await?;
        let status = response.status();
        let bytes = response.bytes().await.context("the answer broke off")?;
        if !status.is_success() {
            return Err(self.refused(status, &bytes));
        }
        let text: &[u8] = if bytes.is_empty() { b"null" } else { &bytes };
        serde_json::from_slice(text)
            .with_context(|| format!("{} answered something that is not of this version", self.base))
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        request.bearer_auth(self.key.expose_secret())
    }

    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        request.send().await.map_err(|error| {
            anyhow!(
                "no answer from {}: {}. Is it running, and is the address right?",
                self.base,
                root_cause(&error)
            )
        })
    }

    fn refused(&self, status: StatusCode, body: &[u8]) -> anyhow::Error {
        match serde_json::from_slice::<Problem>(body) {
            Ok(problem) => Refused(problem).into(),
            Err(_) => anyhow!("{} answered {status} without a reason. Is it a doorbuster?", self.base),
        }
    }
}

/// The server said no, and why.
#[derive(Debug)]
pub struct Refused(pub Problem);

impl std::error::Error for Refused {}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { title, detail, field, code, .. } = &self.0;
        f.write_str(title)?;
        if let Some(field) = field {
            write!(f, "\n  field: {field}")?;
        }
        if !detail.is_empty() && detail != title {
            write!(f, "\n  {detail}")?;
        }
        match advice(code) {
            Some(advice) => write!(f, "\n  {advice} ({code})"),
            None => write!(f, "\n  ({code})"),
        }
    }
}

/// Says what there is not, where the server says only that there is nothing.
pub fn unless_found(error: anyhow::Error, sentence: &str) -> anyhow::Error {
    let is_nothing = |refused: &Refused| refused.0.code == Code::NotFound.as_str();
    if error.downcast_ref().is_some_and(is_nothing) { anyhow!("{sentence}") } else { error }
}

/// What to do after a refusal.
fn advice(code: &str) -> Option<&'static str> {
    let code = Code::ALL.iter().find(|known| known.as_str() == code)?;
    Some(match code {
        Code::Unauthorized => {
            "Set DOORBUSTER_ADMIN_KEY, or --admin-key, to the admin_key of that server, or name its settings with --config FILE."
        }
        Code::NotFound => {
            "`doorbuster sale list`, `orders list`, `payments list`, `blocks list` and `webhooks list` show what there is."
        }
        Code::WrongState | Code::NotEditable | Code::Unsure => {
            "`doorbuster sale show ID` shows how it stands."
        }
        Code::InvalidRequest | Code::Malformed => "Nothing was stored. Correct it and send it again.",
        Code::StockBelowLive => "`doorbuster sale stats ID` shows how many units are free.",
        Code::NotRefundable => "`doorbuster payments list --order ORDER` shows its payments.",
        Code::TooFast | Code::Busy | Code::NotReady => "Try again in a moment.",
        Code::Internal => "The server's log says why.",
        _ => return None,
    })
}

fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

/// 128 random bits as text: for keys that must differ, and, twice, for secrets.
pub fn random_text() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// A secret for a server that lives as long as one command.
pub fn throwaway_secret() -> String {
    format!("{}{}", random_text(), random_text())
}
