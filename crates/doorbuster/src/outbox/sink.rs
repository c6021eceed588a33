//! Where events go: an address, or a broker. Owns the port, the request to an address and what counts as arrived; keeps
//! nothing and repeats nothing. A further broker joins as one more kind, with the same promise: `Ok` means that the
//! receiver has it. Order, repeats, rest and memory are the courier's, the same for all.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use http::StatusCode;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Response};
use serde::Serialize;

use super::endpoint::check_url;
use super::patience::Breaker;
use super::rabbit::RabbitSink;
use super::signature::{self, Secret};
use crate::clock::Clock;
use crate::config::{Settings, WebhooksSettings};
use crate::guard::PublicOnly;
use crate::ledger::sqlite::{Event, Webhook};

const PRIVATE: &str = "its address is not a public one (webhooks.private_addresses allows that)";

/// Most of an answer that is read, in bytes, so that the connection can be used again; what it says is not looked at.
const ANSWER_BYTES_MAX: usize = 64 * 1_024;

/// The longest wait that a receiver may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3_600);

/// Longest description of a problem, in characters.
const PROBLEM_CHARS_MAX: usize = 300;

#[derive(Debug)]
pub enum Sink {
    Webhook(WebhookSink),
    Rabbit(Arc<RabbitSink>),
    /// A broker that was set once and is no longer.
    NoBroker,
}

/// An address that takes signed POSTs.
#[derive(Debug)]
pub struct WebhookSink {
    client: Client,
    clock: Clock,
    url: String,
    secret: Secret,
    previous: Vec<(Secret, rules::time::UnixMs)>,
    private_addresses: bool,
}

/// Why the receiver does not have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub problem: String,
    /// When the receiver wants to be asked again, at the earliest.
    pub retry_after: Option<Duration>,
    /// The receiver says that it will never take anything again.
    pub is_gone: bool,
    /// It did not say anything.
    pub is_timeout: bool,
}

/// The body by Standard Webhooks.
#[derive(Serialize)]
struct Body<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    timestamp: rules::time::UnixMs,
    data: &'a Event,
}

impl Sink {
    /// Hands one event over. `Ok`: the receiver has it. Otherwise it may or may not: it must be sent again.
    pub async fn send(&self, event: &Event) -> Result<(), Trouble> {
        match self {
            Self::Webhook(webhook) => webhook.send(event).await,
            Self::Rabbit(rabbit) => rabbit.send(event).await,
            Self::NoBroker => Err(Trouble::new("broker.url is not set")),
        }
    }

    /// Most events that may be under way at once.
    #[must_use]
    pub fn in_flight(&self, settings: &Settings) -> usize {
        match self {
            Self::Webhook(_) => settings.webhooks.in_flight,
            Self::Rabbit(_) | Self::NoBroker => settings.broker.in_flight,
        }
    }

    /// How long it is left alone when it keeps failing. A broker stands in the shop's own house and is missed by all
    /// behind it: it is asked again sooner.
    #[must_use]
    pub fn breaker(&self) -> Breaker {
        match self {
            Self::Webhook(_) => Breaker::default(),
            Self::Rabbit(_) | Self::NoBroker => Breaker::eager(),
        }
    }
}

impl Trouble {
    #[must_use]
    pub fn new(problem: &str) -> Self {
        let problem = problem.chars().take(PROBLEM_CHARS_MAX).collect();
        Self { problem, retry_after: None, is_gone: false, is_timeout: false }
    }
}

/// What every receiver gets of an event, in the form of Standard Webhooks.
pub fn body(event: &Event) -> Result<Vec<u8>, Trouble> {
    let body = Body { kind: &event.kind, timestamp: event.at, data: event };
    serde_json::to_vec(&body).map_err(|error| Trouble::new(&error.to_string()))
}

impl WebhookSink {
    #[must_use]
    pub fn new(client: Client, clock: Clock, webhook: &Webhook, private_addresses: bool) -> Self {
        Self {
            client,
            clock,
            url: webhook.url.clone(),
            secret: webhook.secret.clone(),
            previous: webhook.previous.clone(),
            private_addresses,
        }
    }

    async fn send(&self, event: &Event) -> Result<(), Trouble> {
        // Judged again: the setting may have changed since it was named.
        let url = check_url(&self.url, self.private_addresses)
            .map_err(|why| Trouble::new(&format!("its address {why}")))?;
        let body = body(event)?;
        let (id, now) = (event.id.to_string(), self.clock.now());
        let timestamp_s = now.0 / 1_000;
        let previous = self.previous.iter().filter(|(_, until)| now < *until).map(|(secret, _)| secret);
        let signature =
            signature::sign(std::iter::once(&self.secret).chain(previous), &id, timestamp_s, &body);
        let request = self
            .client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(signature::ID, id)
            .header(signature::TIMESTAMP, timestamp_s)
            .header(signature::SIGNATURE, signature)
            .body(body);
        match request.send().await {
            Ok(response) => judge(response).await,
            // The address may hold a key of the receiver's own.
            Err(error) => Err(Trouble::new(&format!("{:#}", anyhow::Error::from(error.without_url())))),
        }
    }
}

/// Any 2xx is a yes. Everything else is not, also an answer that sends us elsewhere.
async fn judge(mut response: Response) -> Result<(), Trouble> {
    let status = response.status();
    let retry_after = retry_after(&response);
    let mut read = 0;
    while let Ok(Some(chunk)) = response.chunk().await {
        read += chunk.len();
        if read > ANSWER_BYTES_MAX {
            break;
        }
    }
    if status.is_success() {
        return Ok(());
    }
    let is_gone = status == StatusCode::GONE;
    Err(Trouble { retry_after, is_gone, ..Trouble::new(&format!("it answered {status}")) })
}

fn retry_after(response: &Response) -> Option<Duration> {
    let asks = matches!(response.status(), StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
    let seconds = response.headers().get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    asks.then(|| Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
}

/// What all webhooks are called with: no redirects, no proxy (it would look up names for us), and no connection to an
/// address that is not public, unless that is allowed.
pub fn client(settings: &WebhooksSettings) -> anyhow::Result<Client> {
    let mut client = Client::builder()
        .no_proxy()
        .redirect(Policy::none())
        .https_only(!settings.private_addresses)
        .timeout(Duration::from_secs(settings.timeout_s.into()))
        .pool_max_idle_per_host(settings.in_flight)
        .user_agent(concat!("doorbuster/", env!("CARGO_PKG_VERSION")));
    if !settings.private_addresses {
        client = client.dns_resolver(PublicOnly::or(PRIVATE));
    }
    if let Some(path) = &settings.ca_file {
        let pem = std::fs::read(path).with_context(|| format!("webhooks.ca_file: cannot read {path}"))?;
        client = client.tls_certs_merge(Certificate::from_pem_bundle(&pem).context("webhooks.ca_file")?);
    }
    client.build().context("no HTTPS client for webhooks")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn only_who_is_busy_is_given_the_time_that_it_asks_for_and_an_hour_at_most() {
        let asked = |status: u16, value: Option<&str>| {
            let mut response = http::Response::builder().status(status);
            if let Some(value) = value {
                response = response.header(RETRY_AFTER, value);
            }
            retry_after(&Response::from(response.body("").unwrap())).map(|time| time.as_secs())
        };
        assert_eq!((asked(429, Some("120")), asked(503, Some("0"))), (Some(120), Some(0)));
        for much in ["3600", "3601", "18446744073709551615"] {
            assert_eq!(
                (asked(429, Some(much)), asked(503, Some(much))),
                (Some(3_600), Some(3_600)),
                "{much}"
            );
        }
        for status in [200, 301, 400, 410, 500, 502] {
            assert_eq!(asked(status, Some("120")), None, "{status}");
        }
        for nothing in [None, Some("soon"), Some("-1"), Some("1.5"), Some("")] {
            assert_eq!(asked(503, nothing), None, "{nothing:?}");
        }
    }

    #[tokio::test]
    async fn no_connection_is_made_to_a_name_that_leads_inside() {
        let settings = Settings::load(None, std::iter::empty(), &[]).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("https://localhost:{}/", listener.local_addr().unwrap().port());
        let refused = client(&settings.webhooks).unwrap().post(url).send().await.unwrap_err();
        let why = format!("{:#}", anyhow::Error::from(refused));
        assert!(why.contains("not a public one"), "{why}");
        assert!(listener.accept().is_err(), "nobody knocked");
    }
}
