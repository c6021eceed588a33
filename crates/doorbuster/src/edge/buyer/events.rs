//! `GET /api/v1/events`: changes of the buyer's orders as they happen, over a WebSocket or as server-sent events. A
//! push is a hint: whoever misses one reads the order.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use axum::extract::{FromRequestParts as _, Request, State, WebSocketUpgrade};
use axum::response::IntoResponse as _;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, StreamExt as _};
use http::header::{ACCEPT, HOST, HeaderName, HeaderValue, ORIGIN, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::request::Parts;
use http::uri::{Authority, Uri};
use http::{Extensions, HeaderMap};
use prometheus_client::metrics::gauge::Gauge;
use rules::buyer::BuyerId;
use rules::id::OrderId;
use rules::time::UnixMs;
use rules::wire::{Code, OrderView, RefundView};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::orders::queued_orders;
use crate::app::App;
use crate::edge::auth::Bearer;
use crate::edge::extract::known_buyer;
use crate::edge::openapi::problems;
use crate::edge::refusal::{Answer, Refusal};
use crate::edge::router::{DoNotWait, Place};
use crate::edge::server::OpenConnection;
use crate::ledger::{LedgerError, LedgerResult};
use crate::outbox::hub::{Listener, Most, TooMany};
use crate::telemetry::metrics::{PushOutcome, Shed};

/// How long a socket may be open before it says who it is.
const AUTH_WITHIN: Duration = Duration::from_secs(5);

/// How long one message may take to be read.
const SEND_WITHIN: Duration = Duration::from_secs(10);

/// How long we wait for the other side's goodbye.
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);

/// The largest frame a buyer may send, in bytes.
const FRAME_BYTES_MAX: usize = 4 * 1024;

/// Bytes per socket for what comes in; the library's own 128 KiB would be 6 GiB for 50,000 sockets.
const READ_BUFFER_BYTES: usize = 4 * 1024;

/// Bytes that may wait to be sent: more than one message, so that a goodbye still fits.
const WRITE_BUFFER_BYTES_MAX: usize = 64 * 1024;

/// Frames a buyer may send between two pings. There is nothing to say but one token and pongs.
const FRAMES_PER_PING_MAX: u32 = 100;

/// Most live orders that are told at the beginning.
const SNAPSHOT_ORDERS_MAX: u32 = 200;

/// So long ago an order may have ended to be told at the beginning, in milliseconds: time enough to find the way back after
/// a socket was cut. Whoever stays away for longer reads the orders.
const ENDED_TOLD_FOR_MS: i64 = 5 * 60_000;

/// Most orders that ended and are told at the beginning.
const SNAPSHOT_ENDED_MAX: u32 = 50;

/// Orders of which a socket remembers how far it has told: all of the beginning, and then some.
const TOLD_ORDERS_MAX: usize = 256;

const PROTOCOL: &str = "doorbuster.v1";

/// Where a browser, which cannot set headers, puts its token.
const TOKEN_PROTOCOL: &str = "bearer.";

/// Proxies must not gather events.
const UNBUFFERED: (HeaderName, HeaderValue) =
    (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));

/// One server-sent event, for the documentation.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only described")]
pub struct OrderEvent {
    /// `order`.
    event: String,
    /// `<order id>-<seq>`: which change of which order it tells.
    id: String,
    /// The order as JSON.
    data: String,
}

problems! {
    Refusals = Malformed Unauthorized ForeignOrigin TooFast Internal Busy;
}

/// A WebSocket for clients that ask to upgrade, server-sent events for others that accept `text/event-stream`.
///
/// WebSocket: within 5 s send `{"type":"auth","token":"…"}`, or ask for the subprotocols `doorbuster.v1, bearer.<JWT>`.
/// The server says `{"type":"ready"}`, then the buyer's orders that ended in the last five minutes and those that are live,
/// then every change, each as `{"type":"order","event_id":"…","order":{…}}`. It closes with 4401 (not authorised, or no
/// longer: the token has expired), 4408 (no auth in time), 4429 (too many) or 1001 (going away). Server-sent events:
/// `event: order`, `id:` the event id, `data:` the order; the token is in the `Authorization` header.
///
/// `event_id` is `<order id>-<seq>`: the change that the shop's events tell under an `id` of their own, with this `order_id`
/// and `seq`. The same change may be told again, after a reconnect for example: know it by its `event_id`. Of several
/// changes that came while nobody listened, the last one is told: the order has all of it. `Last-Event-ID` changes nothing;
/// whoever was away for more than five minutes reads `GET /api/v1/orders`.
#[utoipa::path(
    get, path = "/api/v1/events", tag = "buyer", security((), ("buyer_token" = [])),
    responses(
        (status = 101, description = "A WebSocket."),
        (status = 200, description = "Server-sent events.", body = OrderEvent, content_type = "text/event-stream"),
        Refusals,
    )
)]
pub async fn events(State(app): State<Arc<App>>, request: Request) -> Answer {
    let (mut parts, _) = request.into_parts();
    if is_foreign(&parts.headers) {
        return Err(Refusal::new(Code::ForeignOrigin));
    }
    let seat = Seat::take(&app, &parts.extensions);
    if !parts.headers.contains_key(UPGRADE) && accepts_events(&parts.headers) {
        return open_stream(app, seat, &parts).await;
    }
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &app)
        .await
        .map_err(|_| Refusal::detail(Code::Malformed, "Ask for a WebSocket, or accept text/event-stream."))?;
    let told = who_says_so(&app, &parts);
    let upgrade = upgrade
        .protocols([PROTOCOL])
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_write_buffer_size(WRITE_BUFFER_BYTES_MAX)
        .max_message_size(FRAME_BYTES_MAX)
        .max_frame_size(FRAME_BYTES_MAX);
    Ok(upgrade.on_upgrade(move |socket| serve(app, seat, told, socket)))
}

/// Browsers say which page asks. Pages of other hosts may not use our buyers' sockets; programs say nothing.
fn is_foreign(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return false };
    let origin = origin.to_str().ok().and_then(|text| text.parse::<Uri>().ok());
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    let (Some(origin), Some(host)) = (origin, host) else { return true };
    let default_port = match origin.scheme_str() {
        Some("http") => 80,
        Some("https") => 443,
        _ => return true,
    };
    let place = |name: &str, port: Option<u16>| (name.to_ascii_lowercase(), port.unwrap_or(default_port));
    origin.host().is_none_or(|name| place(name, origin.port_u16()) != place(host.host(), host.port_u16()))
}

/// Who says nothing takes everything (RFC 9110, 12.5.1).
fn accepts_events(headers: &HeaderMap) -> bool {
    if !headers.contains_key(ACCEPT) {
        return true;
    }
    let lines = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    let mut kinds = lines.flat_map(|line| line.split(',')).filter_map(|kind| kind.split(';').next());
    let fits = |kind: &str| {
        ["text/event-stream", "text/*", "*/*"].iter().any(|ours| kind.eq_ignore_ascii_case(ours))
    };
    kinds.any(|kind| fits(kind.trim()))
}

/// What a socket takes up for as long as it is open. Its place among all sockets is its feed's.
struct Seat {
    /// Its place among those on their way in, until it has a feed.
    newcomer: Option<Place>,
    _connection: Option<OpenConnection>,
    open: Gauge,
}

impl Seat {
    /// `None` when too many are on their way in.
    fn take(app: &App, extensions: &Extensions) -> Option<Self> {
        if extensions.get::<DoNotWait>().is_some() {
            return None;
        }
        let newcomer = Some(extensions.get::<Place>()?.clone());
        let connection = extensions.get::<OpenConnection>().cloned();
        let open = app.metrics.sockets_open.clone();
        open.inc();
        Some(Self { newcomer, _connection: connection, open })
    }

    /// It has a feed: the next one may come in.
    fn is_in(&mut self) {
        self.newcomer = None;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// What a buyer is told: first what ended lately and what is live, then every change that came after that.
struct Feed {
    listener: Listener,
    snapshot: VecDeque<Arc<OrderView>>,
    told: Told,
}

/// How far the buyer has been told of each order, of the last [`TOLD_ORDERS_MAX`]. Changes are published by several
/// tasks, so a later one may come first; what was overtaken is no news.
#[derive(Default)]
struct Told(VecDeque<ToldOrder>);

struct ToldOrder {
    id: OrderId,
    seq: u32,
    /// Money that goes back without a change of the order.
    refunds: Vec<RefundView>,
}

impl Told {
    /// Whether this is news; if so, it counts as told.
    fn is_news(&mut self, order: &OrderView) -> bool {
        let known = self.0.iter().rposition(|told| told.id == order.id).and_then(|at| self.0.remove(at));
        let mut told = known.unwrap_or(ToldOrder { id: order.id, seq: 0, refunds: Vec::new() });
        let news_of_money = !order.refunds.is_empty() && told.refunds != order.refunds;
        let news = told.seq < order.seq || (told.seq == order.seq && news_of_money);
        if news {
            told.seq = order.seq;
            if news_of_money {
                told.refunds.clone_from(&order.refunds);
            }
        }
        if self.0.len() == TOLD_ORDERS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(told);
        news
    }
}

enum NoFeed {
    TooMany(TooMany),
    Ledger(LedgerError),
}

impl Feed {
    /// Listens before it looks: a change in between is told twice at most, never missed.
    async fn open(app: &App, buyer: &BuyerId) -> Result<Self, NoFeed> {
        let limits = &app.settings.limits;
        let most = Most { in_all: limits.sockets, per_buyer: limits.sockets_per_buyer };
        let listener = app.hub.listen(buyer, most).map_err(|too_many| {
            app.metrics.shed.inc(Shed::Sockets);
            NoFeed::TooMany(too_many)
        })?;
        let snapshot = snapshot(app, buyer).await.map_err(NoFeed::Ledger)?;
        Ok(Self { listener, snapshot: snapshot.into(), told: Told::default() })
    }

    /// `None` when this listener was too slow and was cut off.
    async fn next(&mut self) -> Option<Arc<OrderView>> {
        loop {
            let order = match self.snapshot.pop_front() {
                Some(order) => order,
                None => self.listener.next().await?,
            };
            if self.told.is_news(&order) {
                return Some(order);
            }
        }
    }
}

/// What ended lately comes first, so that the last word is about what is live. Whoever was away has missed no end.
async fn snapshot(app: &App, buyer: &BuyerId) -> LedgerResult<Vec<Arc<OrderView>>> {
    let queued = queued_orders(app, buyer, None).await?;
    let live = app.ledger.live_orders_of(buyer.clone(), SNAPSHOT_ORDERS_MAX).await?;
    // Read last: what ends between the two looks is told as it is now, and nothing older after it.
    let since = app.clock.now().plus_ms(-ENDED_TOLD_FOR_MS);
    let mut ended = app.ledger.ended_orders_of(buyer.clone(), since, SNAPSHOT_ENDED_MAX).await?;
    ended.reverse();
    let recorded: Vec<Arc<OrderView>> =
        ended.iter().chain(&live).map(|order| Arc::new(order.view())).collect();
    let is_recorded = |id: OrderId| recorded.iter().any(|order| order.id == id);
    let queued: Vec<_> = queued.into_iter().filter(|order| !is_recorded(order.id)).collect();
    Ok(recorded.into_iter().chain(queued).collect())
}

fn event_id(order: &OrderView) -> String {
    format!("{}-{}", order.id, order.seq)
}

// Server-sent events.

async fn open_stream(app: Arc<App>, seat: Option<Seat>, parts: &Parts) -> Answer {
    let Bearer { buyer, until } = known_buyer(parts)?;
    let mut seat = seat.ok_or_else(|| Refusal::new(Code::Busy))?;
    let feed = Feed::open(&app, &buyer).await.map_err(|refused| match refused {
        NoFeed::TooMany(TooMany::InAll) => Refusal::new(Code::Busy),
        NoFeed::TooMany(TooMany::OfBuyer) => {
            Refusal::detail(Code::TooFast, "You have too many event streams open.")
        }
        NoFeed::Ledger(error) => error.into(),
    })?;
    seat.is_in();
    let life = Duration::from_secs(app.settings.limits.stream_life_s.into()).min(left(&app, until));
    let ping_every = ping_every(&app);
    let events = stream::unfold((app, seat, feed), |(app, seat, mut feed)| async move {
        let next = app.shutdown.run_until_cancelled(feed.next()).await?;
        let Some(order) = next else {
            app.metrics.pushes.inc(PushOutcome::Skipped);
            return None;
        };
        app.metrics.pushes.inc(PushOutcome::Sent);
        Some((Ok::<_, Infallible>(order_event(&order)), (app, seat, feed)))
    });
    let events = events.take_until(tokio::time::sleep(life));
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(ping_every)).into_response();
    response.headers_mut().extend([UNBUFFERED]);
    Ok(response)
}

/// How often a socket is asked whether anybody is there, and a stream told that we are.
fn ping_every(app: &App) -> Duration {
    Duration::from_secs(app.settings.limits.ping_s.into())
}

/// How long a token is still good.
fn left(app: &App, until: UnixMs) -> Duration {
    Duration::from_millis(app.clock.now().ms_until(until))
}

fn order_event(order: &OrderView) -> Event {
    // Writing these types cannot fail.
    let json = serde_json::to_string(order).unwrap_or_default();
    Event::default().event("order").id(event_id(order)).data(json)
}

// WebSocket.

/// Why a socket ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    NotAuthorised,
    NoAuthInTime,
    /// The token it came with is no longer good: connect again with a new one.
    Expired,
    TooMany,
    /// The process ends, or this socket cannot be served: connect again.
    GoingAway(&'static str),
    /// Nobody is there to be told.
    Gone,
}

impl Goodbye {
    fn frame(self) -> Option<CloseFrame> {
        let (code, reason) = match self {
            Self::NotAuthorised => (4401, "not authorised"),
            Self::Expired => (4401, "the token has expired"),
            Self::NoAuthInTime => (4408, "no auth in time"),
            Self::TooMany => (4429, "too many"),
            Self::GoingAway(reason) => (1001, reason),
            Self::Gone => return None,
        };
        Some(CloseFrame { code, reason: reason.into() })
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum FromBuyer {
    Auth { token: String },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ToBuyer<'a> {
    Ready,
    Order { event_id: String, order: &'a OrderView },
}

/// What the request itself says about who asks; `None` when it says nothing and the first frame has to.
fn who_says_so(app: &App, parts: &Parts) -> Option<Result<Bearer, Goodbye>> {
    if let Ok(bearer) = known_buyer(parts) {
        return Some(Ok(bearer));
    }
    let token = token_of_a_browser(&parts.headers)?;
    Some(app.auth.bearer(token).map_err(|_| Goodbye::NotAuthorised))
}

/// The token among the protocols that a WebSocket asks for.
pub fn token_of_a_browser(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().filter_map(|line| line.to_str().ok());
    let mut protocols = lines.flat_map(|line| line.split(',')).map(str::trim);
    protocols.find_map(|protocol| protocol.strip_prefix(TOKEN_PROTOCOL))
}

async fn serve(
    app: Arc<App>,
    mut seat: Option<Seat>,
    told: Option<Result<Bearer, Goodbye>>,
    socket: WebSocket,
) {
    let mut talk = Talk { app, socket, frames: 0, heard: true };
    let goodbye = match &mut seat {
        Some(seat) => match talk.run(seat, told).await {
            Err(goodbye) => goodbye,
        },
        None => Goodbye::TooMany,
    };
    talk.end(goodbye).await;
    drop(seat);
}

/// One socket's conversation.
struct Talk {
    app: Arc<App>,
    socket: WebSocket,
    /// Frames that came since the last ping.
    frames: u32,
    /// Whether anything came since the last ping.
    heard: bool,
}

impl Talk {
    async fn run(
        &mut self,
        seat: &mut Seat,
        told: Option<Result<Bearer, Goodbye>>,
    ) -> Result<Infallible, Goodbye> {
        let shutdown = self.app.shutdown.clone();
        let Bearer { buyer, until } = match told {
            Some(told) => told?,
            None => {
                let asked = tokio::time::timeout(AUTH_WITHIN, self.first_frame());
                let told = shutdown.run_until_cancelled(asked).await.ok_or(GOING_AWAY)?;
                told.unwrap_or(Err(Goodbye::NoAuthInTime))?
            }
        };
        let mut feed = Feed::open(&self.app, &buyer).await.map_err(|refused| match refused {
            NoFeed::TooMany(_) => Goodbye::TooMany,
            NoFeed::Ledger(error) => {
                tracing::warn!(%error, "a socket was turned away: the buyer's orders cannot be read");
                Goodbye::GoingAway("the orders cannot be read at the moment")
            }
        })?;
        seat.is_in();
        self.send(&ToBuyer::Ready).await?;
        let mut pings = tokio::time::interval(ping_every(&self.app));
        // After a stall of this machine everybody has the whole time again to answer.
        pings.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        pings.tick().await;
        let expiry = tokio::time::sleep(left(&self.app, until));
        tokio::pin!(expiry);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Err(GOING_AWAY),
                () = &mut expiry => return Err(Goodbye::Expired),
                order = feed.next() => self.push(order).await?,
                frame = self.socket.recv() => drop(self.hear(frame)?),
                _ = pings.tick() => self.ping().await?,
            }
        }
    }

    /// Frames that are not understood are passed over, before the token as after it.
    async fn first_frame(&mut self) -> Result<Bearer, Goodbye> {
        loop {
            let frame = self.socket.recv().await;
            let Some(text) = self.hear(frame)? else { continue };
            if let Ok(FromBuyer::Auth { token }) = serde_json::from_str(&text) {
                return self.app.auth.bearer(&token).map_err(|_| Goodbye::NotAuthorised);
            }
        }
    }

    /// Takes note of a frame and returns its text, if it has one.
    fn hear(&mut self, frame: Option<Result<Message, axum::Error>>) -> Result<Option<String>, Goodbye> {
        let Some(Ok(message)) = frame else { return Err(Goodbye::Gone) };
        self.heard = true;
        self.frames = self.frames.saturating_add(1);
        if self.frames > FRAMES_PER_PING_MAX {
            return Err(Goodbye::TooMany);
        }
        match message {
            Message::Text(text) => Ok(Some(text.as_str().to_owned())),
            Message::Close(_) => Err(Goodbye::Gone),
            Message::Binary(_) | Message::Ping(_) | Message::Pong(_) => Ok(None),
        }
    }

    async fn push(&mut self, order: Option<Arc<OrderView>>) -> Result<(), Goodbye> {
        let Some(order) = order else {
            self.app.metrics.pushes.inc(PushOutcome::Skipped);
            return Err(Goodbye::GoingAway("too slow"));
        };
        self.send(&ToBuyer::Order { event_id: event_id(&order), order: &order }).await?;
        self.app.metrics.pushes.inc(PushOutcome::Sent);
        Ok(())
    }

    async fn ping(&mut self) -> Result<(), Goodbye> {
        if !std::mem::take(&mut self.heard) {
            return Err(Goodbye::Gone);
        }
        self.frames = 0;
        self.send_message(Message::Ping(bytes::Bytes::new())).await
    }

    async fn send(&mut self, message: &ToBuyer<'_>) -> Result<(), Goodbye> {
        // Writing these types cannot fail.
        let json = serde_json::to_string(message).unwrap_or_default();
        self.send_message(Message::text(json)).await
    }

    async fn send_message(&mut self, message: Message) -> Result<(), Goodbye> {
        let sent = tokio::time::timeout(SEND_WITHIN, self.socket.send(message)).await;
        if matches!(sent, Ok(Ok(()))) { Ok(()) } else { Err(Goodbye::Gone) }
    }

    /// Says why, and reads on until the other side has closed too: a connection that is dropped with unread bytes takes
    /// the reason with it.
    async fn end(&mut self, goodbye: Goodbye) {
        let Some(frame) = goodbye.frame() else { return };
        if self.send_message(Message::Close(Some(frame))).await.is_ok() {
            let silence = async { while let Some(Ok(_)) = self.socket.recv().await {} };
            let _closed_or_not = tokio::time::timeout(GOODBYE_WITHIN, silence).await;
        }
    }
}

const GOING_AWAY: Goodbye = Goodbye::GoingAway("going away");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_our_own_host_may_connect() {
        let foreign = |origin: &'static str, host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(ORIGIN, HeaderValue::from_static(origin));
            headers.insert(HOST, HeaderValue::from_static(host));
            is_foreign(&headers)
        };
        assert!(!foreign("https://shop.example", "shop.example"));
        assert!(!foreign("https://shop.example", "Shop.Example:443"));
        assert!(!foreign("http://127.0.0.1:8080", "127.0.0.1:8080"));
        assert!(!foreign("http://[::1]:8080", "[::1]:8080"));
        assert!(foreign("https://shop.example.evil", "shop.example"));
        assert!(foreign("http://127.0.0.1:8081", "127.0.0.1:8080"));
        assert!(foreign("null", "shop.example"));
        assert!(foreign("file://shop.example", "shop.example"));
        assert!(!is_foreign(&HeaderMap::new()));
    }
}
