//! RabbitMQ as a receiver of events. Owns what a message looks like, when it counts as arrived, and the connection: it
//! is made when it is needed and given up at the first doubt. Keeps no event and repeats none: that is the courier's
//! part, as for every sink.
//!
//! One message at a time per channel, as many channels as may be under way at once. That is not the fastest way, but
//! the only one in which the library tells for certain which message came back unroutable.

/// The way to the server: TCP, TLS, and a switch that ends it.
mod line;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions};
use lapin::protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{BasicProperties, Channel, Confirmation, ErrorKind, ExchangeKind};
use parking_lot::Mutex;
use reqwest::Url;

use self::line::{Line, Tls};
use super::sink::{Trouble, body};
use crate::config::BrokerSettings;
use crate::ledger::sqlite::Event;

/// Seconds between signs of life, unless the address says otherwise (`?heartbeat=`). Twice that without any sign ends
/// the connection.
const HEARTBEAT_S: u16 = 10;

/// AMQP's word for "keep it on disk".
const PERSISTENT: u8 = 2;

/// Longest name of an exchange, in bytes.
const EXCHANGE_BYTES_MAX: usize = 255;

/// What a message's routing key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// The event's type: queues take the types they want.
    Type,
    /// The order, else the sale, else the type: what must stay in its order has one key.
    OrderId,
}

impl Key {
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "type" => Some(Self::Type),
            "order_id" => Some(Self::OrderId),
            _ => None,
        }
    }

    fn of(self, event: &Event) -> String {
        let track = || event.order_id.map(|id| id.to_string()).or(event.sale_id.map(|id| id.to_string()));
        match self {
            Self::Type => None,
            Self::OrderId => track(),
        }
        .unwrap_or_else(|| event.kind.clone())
    }
}

pub struct RabbitSink {
    /// Holds the password: never shown.
    address: AMQPUri,
    tls: Option<Tls>,
    exchange: ShortString,
    key: Key,
    patience: Duration,
    line: tokio::sync::Mutex<Option<Arc<Line>>>,
    /// The same line, for those who only want to look.
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    line: Option<Arc<Line>>,
    /// Why there is no connection.
    problem: Option<String>,
}

impl fmt::Debug for RabbitSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitSink").field("exchange", &self.exchange).finish_non_exhaustive()
    }
}

/// Why an address or an exchange is refused, to be read after the setting's name.
pub fn check_url(url: &str) -> Result<(), &'static str> {
    parse(url).map(|_| ()).ok_or(
        "must be an address such as amqps://user:password@rabbit.example/vhost (amqp:// without TLS); \
         write special characters of the password as %XX.",
    )
}

/// See [`check_url`].
pub fn check_exchange(name: &str) -> Result<(), &'static str> {
    let fits = (1..=EXCHANGE_BYTES_MAX).contains(&name.len());
    if fits && !name.starts_with("amq.") {
        return Ok(());
    }
    Err("must be 1 to 255 bytes long and not begin with amq., which belongs to the server.")
}

/// The library takes an address without a host, or with one of IPv6, for localhost: the host is read here.
fn parse(text: &str) -> Option<AMQPUri> {
    let url = Url::parse(text).ok()?;
    let host = url.host_str()?.trim_matches(['[', ']']);
    let mut address: AMQPUri = text.parse().ok().filter(|_| !host.is_empty())?;
    host.clone_into(&mut address.authority.host);
    Some(address)
}

impl RabbitSink {
    /// Reads the settings; connects to nobody yet.
    pub fn new(settings: &BrokerSettings) -> anyhow::Result<Self> {
        let mut address = parse(settings.url.as_str()).context("broker.url is not an address")?;
        address.query.heartbeat.get_or_insert(HEARTBEAT_S);
        let tls = match address.scheme {
            AMQPScheme::AMQP => None,
            AMQPScheme::AMQPS => Some(Tls::new(settings.ca_file.as_deref())?),
        };
        Ok(Self {
            address,
            tls,
            exchange: settings.exchange.as_str().into(),
            key: Key::parse(&settings.key).context("broker.key must be type or order_id")?,
            patience: Duration::from_secs(settings.timeout_s.into()),
            line: tokio::sync::Mutex::default(),
            seen: Mutex::default(),
        })
    }

    /// Whether there is a connection that takes messages.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.seen.lock().line.as_ref().is_some_and(|line| line.is_up() && !line.is_blocked())
    }

    /// What is wrong with the connection, while something is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let seen = self.seen.lock();
        let blocked = seen.line.as_ref().is_some_and(|line| line.is_up() && line.is_blocked());
        if blocked { Some(blocked_problem()) } else { seen.problem.clone() }
    }

    /// Connects, so that a wrong password is told at once and not with the first event.
    pub async fn greet(&self) -> Result<(), Trouble> {
        self.within_patience(async { self.line().await.map(|_| ()) }).await
    }

    /// `Ok`: the message is in every queue that is bound for it, on disk where the queue is durable.
    pub async fn send(&self, event: &Event) -> Result<(), Trouble> {
        let body = body(event)?;
        let (mut used, mut is_unknown_exchange) = (None, false);
        let outcome = self
            .within_patience(async {
                let line = self.line().await?;
                if line.is_blocked() {
                    return Err(Trouble::new(&blocked_problem()));
                }
                let line = used.insert(line);
                let channel = line.channel().await.map_err(|error| told(&error))?;
                let confirmation = self.publish(&channel, event, &body).await.map_err(|error| {
                    is_unknown_exchange = is_unknown(&error);
                    told(&error)
                })?;
                line.give_back(channel);
                judge(confirmation, event, self.exchange.as_str())
            })
            .await;
        // Who did not answer in time may never do: the next one gets a new connection. A server that is full said so,
        // and goes on with this one. An exchange that somebody deleted is made again with the next connection, too.
        if let (Err(trouble), Some(line)) = (&outcome, used)
            && (is_unknown_exchange || (trouble.is_timeout && !line.is_blocked()))
        {
            self.give_up(&line, &trouble.problem).await;
        }
        outcome
    }

    async fn within_patience<T>(&self, work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
        tokio::time::timeout(self.patience, work).await.unwrap_or_else(|_| {
            let problem = format!("RabbitMQ did not answer within {} s", self.patience.as_secs());
            let mut seen = self.seen.lock();
            if seen.line.is_none() {
                seen.problem = Some(problem.clone());
            }
            Err(Trouble { is_timeout: true, ..Trouble::new(&problem) })
        })
    }

    async fn publish(&self, channel: &Channel, event: &Event, body: &[u8]) -> lapin::Result<Confirmation> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let key = ShortString::from(self.key.of(event));
        channel.basic_publish(self.exchange.clone(), key, options, body, properties(event)).await?.await
    }

    /// The connection there is, or a new one. While one is being made, others wait for it.
    async fn line(&self) -> Result<Arc<Line>, Trouble> {
        let mut place = self.line.lock().await;
        if let Some(line) = place.as_ref().filter(|line| line.is_up()) {
            return Ok(Arc::clone(line));
        }
        *place = None;
        self.seen.lock().line = None;
        let made = async {
            let line = Line::connect(&self.address, self.tls.as_ref()).await?;
            self.find_exchange(&line).await?;
            lapin::Result::Ok(Arc::new(line))
        };
        match made.await {
            Ok(line) => {
                *self.seen.lock() = Seen { line: Some(Arc::clone(&line)), problem: None };
                *place = Some(Arc::clone(&line));
                tracing::info!(exchange = %self.exchange, "connected to RabbitMQ");
                Ok(line)
            }
            Err(error) => {
                let trouble = told(&error);
                self.seen.lock().problem = Some(trouble.problem.clone());
                Err(trouble)
            }
        }
    }

    /// A shop may make the exchange as it likes; if there is none, we make a durable one that routes by type. Looking
    /// needs no permission, making one does.
    async fn find_exchange(&self, line: &Line) -> lapin::Result<()> {
        let declare = async |options| {
            let channel = line.channel().await?;
            let kind = ExchangeKind::Topic;
            channel
                .exchange_declare(self.exchange.clone(), kind, options, FieldTable::default())
                .await
                .map(|()| line.give_back(channel))
        };
        let look = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        match declare(look).await {
            Err(error) if is_unknown(&error) => {
                declare(ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() }).await
            }
            found => found,
        }
    }

    async fn give_up(&self, line: &Arc<Line>, problem: &str) {
        line.cut();
        let mut place = self.line.lock().await;
        if place.as_ref().is_some_and(|current| Arc::ptr_eq(current, line)) {
            *place = None;
            *self.seen.lock() = Seen { line: None, problem: Some(problem.to_owned()) };
        }
    }
}

/// The receiver knows repeats by `message_id`; `order_id` is what an order's events have in common.
fn properties(event: &Event) -> BasicProperties {
    let mut headers = FieldTable::default();
    let mut name = |key: &str, id: Option<String>| {
        if let Some(id) = id {
            headers.insert(key.into(), AMQPValue::LongString(id.into()));
        }
    };
    name("order_id", event.order_id.map(|id| id.to_string()));
    name("sale_id", event.sale_id.map(|id| id.to_string()));
    name("offer_id", event.offer_id.map(|id| id.to_string()));
    name("seq", event.seq.map(|seq| seq.to_string()));
    BasicProperties::default()
        .with_message_id(event.id.to_string().into())
        .with_type(event.kind.as_str().into())
        .with_timestamp(u64::try_from(event.at.0 / 1_000).unwrap_or(0))
        .with_content_type("application/json".into())
        .with_delivery_mode(PERSISTENT)
        .with_app_id("doorbuster".into())
        .with_headers(headers)
}

fn judge(confirmation: Confirmation, event: &Event, exchange: &str) -> Result<(), Trouble> {
    match confirmation {
        Confirmation::Ack(None) => Ok(()),
        Confirmation::Ack(Some(_)) | Confirmation::Nack(Some(_)) => Err(Trouble::new(&format!(
            "no queue is bound for {} in the exchange {exchange}: bind one, or leave the type out of broker.types",
            event.kind
        ))),
        Confirmation::Nack(None) => Err(Trouble::new("RabbitMQ could not keep the message")),
        Confirmation::NotRequested => Err(Trouble::new("RabbitMQ confirms nothing on this channel")),
    }
}

fn blocked_problem() -> String {
    "RabbitMQ takes nothing at the moment: it is short of memory or disk".to_owned()
}

/// What is told to the operator. Nothing here can hold the password: the server does not send it back.
fn told(error: &lapin::Error) -> Trouble {
    let problem = match error.kind() {
        ErrorKind::ProtocolError(refusal) => {
            let advice = match refusal.kind() {
                AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => {
                    ": check user name, password and permissions of broker.url"
                }
                AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => ": check the virtual host of broker.url",
                AMQPErrorKind::Soft(_) | AMQPErrorKind::Hard(_) => "",
            };
            format!("RabbitMQ refused ({}){advice}", refusal.get_message())
        }
        _ => format!("RabbitMQ cannot be reached: {error}"),
    };
    Trouble::new(&problem)
}

fn is_unknown(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(refusal)
        if matches!(refusal.kind(), AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND)))
}

impl Line {
    /// A channel that confirms, and on which nothing is under way.
    async fn channel(&self) -> lapin::Result<Channel> {
        if let Some(channel) = self.take_idle() {
            return Ok(channel);
        }
        let channel = self.open_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Settings;

    #[test]
    fn only_addresses_of_rabbitmq_are_taken() {
        for good in [
            "amqp://127.0.0.1:5672",
            "amqps://shop:s%40crt@rabbit.example/vhost",
            "amqp://guest:guest@[::1]:5672/%2f",
        ] {
            assert!(check_url(good).is_ok(), "{good}");
        }
        let host = |url| parse(url).unwrap().authority.host;
        assert_eq!(host("amqp://[2001:db8::1]/shop"), "2001:db8::1", "not localhost");
        for bad in ["", "rabbit", "http://127.0.0.1", "kafka://127.0.0.1:9092", "amqp://", "amqp:///vhost"] {
            assert!(check_url(bad).is_err(), "{bad}");
        }
        assert!(check_exchange("doorbuster").is_ok());
        for bad in ["", "amq.topic", &"x".repeat(256)] {
            assert!(check_exchange(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_routing_key_is_the_type_or_what_must_stay_in_its_order() {
        let mut event = Event {
            no: 1,
            id: rules::id::EventId(1),
            kind: "order.paid".to_owned(),
            at: rules::time::UnixMs(0),
            sale_id: Some(rules::id::SaleId(2)),
            offer_id: Some(rules::id::OfferId(3)),
            order_id: Some(rules::id::OrderId(4)),
            seq: Some(3),
            data: serde_json::Value::Null,
        };
        let (by_type, by_order) = (Key::parse("type").unwrap(), Key::parse("order_id").unwrap());
        assert_eq!(Key::parse("offer"), None);
        assert_eq!(by_type.of(&event), "order.paid");
        assert_eq!(by_order.of(&event), rules::id::OrderId(4).to_string());
        event.order_id = None;
        assert_eq!(by_order.of(&event), rules::id::SaleId(2).to_string());
        event.sale_id = None;
        assert_eq!(by_order.of(&event), "order.paid");
    }

    #[test]
    fn the_password_is_never_shown() {
        let overrides = ["broker.url=amqp://shop:planted@127.0.0.1:9".to_owned()];
        let settings = Settings::load(None, std::iter::empty(), &overrides).unwrap();
        let sink = RabbitSink::new(&settings.broker).unwrap();
        assert!(!format!("{sink:?}").contains("planted"));
        assert!(!settings.effective_toml().unwrap().contains("planted"));
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_is_told_and_remembered() {
        let overrides = ["broker.url=amqp://shop:planted@127.0.0.1:9".to_owned()];
        let settings = Settings::load(None, std::iter::empty(), &overrides).unwrap();
        let sink = RabbitSink::new(&settings.broker).unwrap();
        let trouble = sink.greet().await.unwrap_err();
        assert!(trouble.problem.starts_with("RabbitMQ cannot be reached"), "{}", trouble.problem);
        assert!(!trouble.problem.contains("planted"), "{}", trouble.problem);
        assert_eq!(sink.problem(), Some(trouble.problem));
        assert!(!sink.is_connected());
    }

    /// It takes connections and says nothing.
    #[tokio::test]
    async fn a_silent_server_is_given_up_in_time_and_its_connection_ended() {
        use tokio::io::AsyncReadExt as _;

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("broker.url=amqp://{}", listener.local_addr().unwrap());
        let settings = Settings::load(None, std::iter::empty(), &[url, "broker.timeout_s=3".into()]).unwrap();
        let sink = RabbitSink::new(&settings.broker).unwrap();
        let trouble = sink.greet().await.unwrap_err();
        assert!(trouble.is_timeout, "{trouble:?}");
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut heard = Vec::new();
        let hung_up = tokio::time::timeout(Duration::from_secs(20), socket.read_to_end(&mut heard)).await;
        assert!(hung_up.is_ok(), "the connection stays open");
        assert!(heard.starts_with(b"AMQP"), "{heard:?}");
    }
}
