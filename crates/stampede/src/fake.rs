//! A shop for the tests of this crate: it speaks the public contract from memory and misbehaves on request. It shares
//! no code with the real one, so that both can only agree on the contract.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _, stream};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rules::id::{OfferId, OrderId, SaleId};
use rules::money::Money;
use rules::order::{Reason, State};
use rules::sale::{ChallengeKind, Phase, RegistrationKind, SaleState};
use rules::time::UnixMs;
use rules::wire::{
    Code, Funnel, OfferStats, OfferView, OperatorOrder, OrderRequest, OrderView, Page, PassGiven, Problem,
    QueueStats, SaleView, ServerTime, Stats,
};
use serde_json::{Value, json};
use tokio::sync::{Notify, broadcast, mpsc};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use crate::clock::Clock;
use crate::desk::{Address, Desk};

pub(crate) const SECRET: &[u8] = b"the secret of the shop that is not there";
const POW_SECRET: &str = "the secret of its challenges";
const OFFERS: u128 = 2;

/// How the shop behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// Units per offer.
    pub stock: u32,
    pub opens_in: Duration,
    /// The server's clock is this far ahead of the world's, in milliseconds.
    pub clock_ahead_ms: i64,
    pub challenge: ChallengeKind,
    pub registration: RegistrationKind,
    /// The first tries are told `busy`.
    pub busy_first: u32,
    /// The first tries happen, and are told `unsure`.
    pub unsure_first: u32,
    /// The first tries happen, and the connection breaks.
    pub break_first: u32,
    /// The first passes are told `not_open`.
    pub early_passes: u32,
    /// An order stays queued for so many looks.
    pub queued_looks: u32,
    /// The first answer takes this long.
    pub stall_once: Option<Duration>,
    /// Sells more than there is.
    pub oversells: bool,
    /// Knows none of its orders.
    pub forgets: bool,
    /// Gives a buyer as many orders as there are passes.
    pub sells_twice: bool,
    /// Says `busy` of the first tries, and sells all the same.
    pub busy_but_sells: u32,
    /// Says `paused` of every try.
    pub paused: bool,
    /// Takes no registrations from the opening on.
    pub registers_before: bool,
    /// Knows payments.
    pub payments: bool,
    /// Takes the money and does not say so of the order.
    pub loses_money: bool,
    /// Says that an order is cancelled and keeps it.
    pub keeps_cancelled: bool,
    /// The units that its stats hide.
    pub hides: u32,
    /// Breaks every connection that brings a try, and makes nothing of it.
    pub deaf: bool,
    /// Cannot list its orders.
    pub loses_books: bool,
    pub pushes: Pushes,
    /// Every pass takes this long.
    pub slow_passes: Duration,
    /// Every try takes this long.
    pub slow_tries: Duration,
    /// Gives money back that came in time.
    pub refunds: bool,
    /// After so many answers nobody gets one any more.
    pub dies_after: u32,
}

impl Default for Manners {
    fn default() -> Self {
        Self {
            stock: 10,
            opens_in: Duration::ZERO,
            clock_ahead_ms: 0,
            challenge: ChallengeKind::None,
            registration: RegistrationKind::None,
            busy_first: 0,
            unsure_first: 0,
            break_first: 0,
            early_passes: 0,
            queued_looks: 1,
            stall_once: None,
            oversells: false,
            forgets: false,
            sells_twice: false,
            busy_but_sells: 0,
            paused: false,
            registers_before: false,
            payments: false,
            loses_money: false,
            keeps_cancelled: false,
            hides: 0,
            deaf: false,
            loses_books: false,
            pushes: Pushes::Never,
            slow_passes: Duration::ZERO,
            slow_tries: Duration::ZERO,
            refunds: false,
            dies_after: u32::MAX,
        }
    }
}

/// What those who listen are told of an order that changes, over a WebSocket and over an event stream alike. A shop that
/// tells anything decides its orders at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushes {
    /// There is nothing to listen to.
    Never,
    Honestly,
    /// The line opens and says nothing.
    Nothing,
    /// Nothing after the order is decided.
    OnlyTheFirst,
    /// As paid, whatever it is.
    AnotherState,
    /// With a deadline of its own.
    AnotherDeadline,
    /// To everybody who listens.
    ToEverybody,
    /// And of one more, which is not there.
    OneMore,
    /// And then as it was before.
    AndBack,
    /// In words that nobody can read.
    Gibberish,
    /// One half, and the line ends.
    Half,
}

/// An open shop on a thread of its own; closes when dropped.
#[derive(Debug)]
pub(crate) struct FakeShop {
    addr: SocketAddr,
    shop: Arc<Shop>,
    close: Arc<Notify>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl FakeShop {
    pub fn open(manners: Manners) -> Self {
        let shop = Arc::new(Shop::new(manners));
        let close = Arc::new(Notify::new());
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let (serving, closing) = (Arc::clone(&shop), Arc::clone(&close));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                tokio::select! {
                    () = closing.notified() => {}
                    () = serve(listener, serving) => {}
                }
            });
        });
        Self { addr, shop, close, thread: Some(thread) }
    }

    pub const fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn sale(&self) -> SaleId {
        SaleId(1)
    }

    pub fn offer(&self) -> OfferId {
        OfferId(1)
    }

    pub fn mint(&self, buyer: &str) -> String {
        self.shop.mint(buyer).pass
    }

    /// Connections accepted so far.
    pub fn connections(&self) -> usize {
        self.shop.connections.load(Ordering::Relaxed)
    }

    pub fn orders(&self) -> usize {
        self.shop.books().orders.len()
    }

    /// WebSockets and event streams that were open when the first try came.
    pub fn watching_at_the_first_try(&self) -> usize {
        self.shop.watching_at_the_first_try.load(Ordering::Relaxed)
    }

    /// The most tries that were there at one moment.
    pub fn tries_at_once_max(&self) -> u32 {
        self.shop.tries_at_once_max.load(Ordering::Relaxed)
    }

    /// Requests that have come so far.
    pub fn requests(&self) -> u32 {
        self.shop.requests.load(Ordering::Relaxed)
    }

    /// The most challenges that were given and not yet used, at one moment.
    pub fn challenges_open_max(&self) -> u32 {
        self.shop.books().challenges_open_max
    }

    /// The earliest moment an order was made, minus the opening, in milliseconds.
    pub fn earliest_ms(&self) -> i64 {
        let books = self.shop.books();
        books.orders.values().map(|order| order.view.created_at.0 - self.shop.opens_at.0).min().unwrap()
    }

    pub fn stats(&self) -> Stats {
        self.shop.stats()
    }

    /// The operator's side of it.
    pub async fn desk(&self) -> Desk {
        let address = Address::find(&format!("http://{}", self.addr)).await.unwrap();
        Desk::new(address, Some("any key".into()))
    }
}

impl Drop for FakeShop {
    fn drop(&mut self) {
        self.close.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn serve(listener: std::net::TcpListener, shop: Arc<Shop>) {
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let mut serving = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        shop.connections.fetch_add(1, Ordering::Relaxed);
        let shop = Arc::clone(&shop);
        serving.spawn(async move {
            let service = hyper::service::service_fn(move |request| Arc::clone(&shop).answer(request));
            // Broken connections are part of the game.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .with_upgrades()
                .await;
        });
    }
}

#[derive(Debug)]
struct Shop {
    manners: Manners,
    clock: Clock,
    opens_at: UnixMs,
    books: Mutex<Books>,
    connections: AtomicUsize,
    minted: AtomicUsize,
    answers: AtomicU32,
    tries: AtomicU32,
    passes: AtomicU32,
    requests: AtomicU32,
    tries_at_once: AtomicU32,
    tries_at_once_max: AtomicU32,
    watching: AtomicUsize,
    watching_at_the_first_try: AtomicUsize,
    news: broadcast::Sender<(String, OrderView)>,
    sockets: Mutex<tokio::task::JoinSet<()>>,
}

#[derive(Debug, Default)]
struct Books {
    orders: BTreeMap<OrderId, Order>,
    registered: BTreeSet<String>,
    challenges_open: u32,
    challenges_open_max: u32,
}

#[derive(Debug)]
struct Order {
    buyer: String,
    view: OrderView,
    looks: u32,
}

/// What a request becomes: an answer, or a broken connection.
enum Told {
    Json(u16, Value),
    Refused(Code, Option<OrderId>),
    Break,
}

/// Takes so long. A try of somebody who hung up must not be dropped where nothing has to wait.
async fn take(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

fn ok(value: impl serde::Serialize) -> Told {
    Told::Json(200, serde_json::to_value(value).unwrap())
}

impl Shop {
    fn new(manners: Manners) -> Self {
        let clock = Clock::start();
        let opens_in = i64::try_from(manners.opens_in.as_millis()).unwrap();
        Self {
            opens_at: clock.now().plus_ms(manners.clock_ahead_ms + opens_in),
            manners,
            clock,
            books: Mutex::default(),
            connections: AtomicUsize::new(0),
            minted: AtomicUsize::new(0),
            answers: AtomicU32::new(0),
            tries: AtomicU32::new(0),
            passes: AtomicU32::new(0),
            requests: AtomicU32::new(0),
            tries_at_once: AtomicU32::new(0),
            tries_at_once_max: AtomicU32::new(0),
            watching: AtomicUsize::new(0),
            watching_at_the_first_try: AtomicUsize::new(0),
            news: broadcast::Sender::new(256),
            sockets: Mutex::default(),
        }
    }

    async fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
    ) -> std::io::Result<Response<BoxBody<Bytes, std::io::Error>>> {
        if request.uri().path() == "/api/v1/events" && self.manners.pushes != Pushes::Never {
            return Ok(match request.headers().contains_key("sec-websocket-key") {
                true => self.open_socket(&mut request),
                false => self.open_stream(&request),
            });
        }
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
        if let Some(stall) = self.manners.stall_once
            && self.answers.fetch_add(1, Ordering::Relaxed) == 0
        {
            tokio::time::sleep(stall).await;
        }
        if self.requests.fetch_add(1, Ordering::Relaxed) >= self.manners.dies_after {
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        let buyer = head.headers.get("authorization").and_then(|value| who(value.to_str().ok()?));
        let path: Vec<&str> = head.uri.path().trim_start_matches('/').split('/').skip(2).collect();
        let told = match (head.method.as_str(), path.as_slice()) {
            ("GET", ["time"]) => {
                let now = self.now();
                ok(ServerTime { now, now_ms: now.0 })
            }
            ("POST", ["demo", "login"]) => {
                let asked: Value = serde_json::from_slice(&body).unwrap();
                ok(json!({ "token": format!("demo-{}", asked["buyer"].as_str().unwrap()) }))
            }
            ("GET", ["me"]) => match buyer {
                Some(_) => ok(json!({})),
                None => Told::Refused(Code::Unauthorized, None),
            },
            ("GET", ["sales", _]) => ok(self.sale()),
            ("POST", ["sales", _, "registration"]) => self.register(buyer),
            ("POST", ["offers", offer, "challenge"]) => self.challenge(buyer, offer),
            ("POST", ["offers", _, "pass"]) => {
                take(self.manners.slow_passes).await;
                self.pass(buyer, &body)
            }
            ("POST", ["offers", offer, "orders"]) => {
                let at_once = self.tries_at_once.fetch_add(1, Ordering::Relaxed) + 1;
                self.tries_at_once_max.fetch_max(at_once, Ordering::Relaxed);
                take(self.manners.slow_tries).await;
                self.tries_at_once.fetch_sub(1, Ordering::Relaxed);
                self.order(offer.parse().unwrap(), &body)
            }
            ("GET", ["orders", id]) => self.look(buyer, id.parse().unwrap()),
            ("POST", ["orders", id, "cancel"]) => self.cancel(id.parse().unwrap()),
            ("POST", ["orders", id, "payment"]) if self.manners.payments => {
                ok(json!({ "payment_id": format!("pay-{id}"), "pay_url": "/" }))
            }
            ("POST", [payment]) if payment.starts_with("pay-") => self.pay(payment),
            ("GET", ["sales", _, "stats"]) => ok(self.stats()),
            ("GET", ["orders"]) if self.manners.loses_books => Told::Refused(Code::Internal, None),
            ("GET", ["orders"]) => self.list(),
            _ => Told::Refused(Code::NotFound, None),
        };
        let (status, value, retry_after) = match told {
            Told::Break => return Err(std::io::ErrorKind::ConnectionAborted.into()),
            Told::Json(status, value) => (status, value, None),
            Told::Refused(code, order_id) => {
                let retry = matches!(code.status(), 425 | 429 | 503).then_some("0");
                (code.status(), serde_json::to_value(problem(code, order_id)).unwrap(), retry)
            }
        };
        let mut response = Response::builder().status(status).header("content-type", "application/json");
        if let Some(seconds) = retry_after {
            response = response.header("retry-after", seconds);
        }
        Ok(response.body(whole(value.to_string())).unwrap())
    }

    fn open_socket(
        self: Arc<Self>,
        request: &mut Request<Incoming>,
    ) -> Response<BoxBody<Bytes, std::io::Error>> {
        let accept = derive_accept_key(request.headers()["sec-websocket-key"].as_bytes());
        let protocols = request.headers()["sec-websocket-protocol"].to_str().unwrap();
        let token = protocols.strip_prefix("doorbuster.v1, bearer.").unwrap();
        let buyer = who(&format!("Bearer {token}")).unwrap();
        let upgraded = hyper::upgrade::on(request);
        let shop = Arc::clone(&self);
        self.sockets.lock().unwrap().spawn(async move {
            let stream = TokioIo::new(upgraded.await.unwrap());
            let socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
            shop.push(&buyer, Ear::Socket(Box::new(socket))).await;
        });
        let response = Response::builder().status(101).header("connection", "upgrade");
        let response = response.header("upgrade", "websocket").header("sec-websocket-accept", accept);
        let response = response.header("sec-websocket-protocol", "doorbuster.v1");
        response.body(whole(String::new())).unwrap()
    }

    fn open_stream(self: Arc<Self>, request: &Request<Incoming>) -> Response<BoxBody<Bytes, std::io::Error>> {
        let buyer = who(request.headers()["authorization"].to_str().unwrap()).unwrap();
        let (sender, events) = mpsc::channel(16);
        let shop = Arc::clone(&self);
        self.sockets.lock().unwrap().spawn(async move { shop.push(&buyer, Ear::Stream(sender)).await });
        let next = async |mut events: mpsc::Receiver<String>| {
            let event = events.recv().await?;
            Some((Ok(Frame::data(Bytes::from(event))), events))
        };
        let body = BoxBody::new(StreamBody::new(stream::unfold(events, next)));
        Response::builder().header("content-type", "text/event-stream").body(body).unwrap()
    }

    /// First what is there, then every change.
    async fn push(&self, buyer: &str, mut ear: Ear) {
        let mut news = self.news.subscribe();
        self.watching.fetch_add(1, Ordering::Relaxed);
        if !ear.say("ready", None).await {
            return;
        }
        let there: Vec<(String, OrderView)> =
            self.books().orders.values().map(|order| (order.buyer.clone(), order.view.clone())).collect();
        let mut told: Vec<String> = there.iter().flat_map(|(of, view)| self.words(buyer, of, view)).collect();
        loop {
            for order in told.drain(..) {
                let said = match self.manners.pushes {
                    Pushes::Half => ear.say_half(&order).await,
                    _ => ear.say("order", Some(&order)).await,
                };
                if !said {
                    return;
                }
            }
            tokio::select! {
                changed = news.recv() => if let Ok((of, view)) = changed {
                    told = self.words(buyer, &of, &view);
                },
                () = ear.is_gone() => return,
            }
        }
    }

    /// What this listener is told of an order of that buyer, order by order.
    fn words(&self, listener: &str, of: &str, view: &OrderView) -> Vec<String> {
        let pushes = self.manners.pushes;
        if listener != of && pushes != Pushes::ToEverybody {
            return Vec::new();
        }
        let as_it_is = view.clone();
        let told = match pushes {
            Pushes::Never | Pushes::Nothing => vec![],
            Pushes::OnlyTheFirst if view.seq > 2 => vec![],
            Pushes::Honestly | Pushes::ToEverybody | Pushes::Half | Pushes::OnlyTheFirst => vec![as_it_is],
            Pushes::AnotherState => vec![OrderView { state: State::Paid, ..as_it_is }],
            Pushes::AnotherDeadline => {
                vec![OrderView { pay_by: Some(self.opens_at.plus_s(60)), ..as_it_is }]
            }
            Pushes::OneMore => vec![OrderView { id: OrderId(view.id.0 + 50_000), ..view.clone() }, as_it_is],
            Pushes::AndBack => {
                let before = OrderView { state: State::Queued, seq: 1, pay_by: None, ..view.clone() };
                vec![as_it_is, before]
            }
            Pushes::Gibberish => return vec!["[]".into()],
        };
        told.iter().map(|order| serde_json::to_string(order).unwrap()).collect()
    }

    fn now(&self) -> UnixMs {
        self.clock.now().plus_ms(self.manners.clock_ahead_ms)
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap()
    }

    fn sale(&self) -> SaleView {
        let offer = |id| OfferView {
            id: OfferId(id),
            name: format!("offer {id}"),
            description: None,
            image: None,
            list_price: None,
            price: price(),
            max_per_order: 5,
        };
        SaleView {
            id: SaleId(1),
            title: "a night".into(),
            state: SaleState::Published,
            phase: if self.now() < self.opens_at { Phase::Upcoming } else { Phase::Open },
            opens_at: self.opens_at,
            closes_at: self.opens_at.plus_s(3_600),
            pay_within_s: 900,
            challenge: self.manners.challenge,
            registration: self.manners.registration,
            registration_opens_at: None,
            registration_closes_at: None,
            offers: (1..=OFFERS).map(offer).collect(),
        }
    }

    fn register(&self, buyer: Option<String>) -> Told {
        let Some(buyer) = buyer else { return Told::Refused(Code::Unauthorized, None) };
        if self.manners.registers_before && self.now() >= self.opens_at {
            return Told::Refused(Code::RegistrationClosed, None);
        }
        self.books().registered.insert(buyer);
        Told::Json(201, json!({}))
    }

    fn challenge(&self, buyer: Option<String>, offer: &str) -> Told {
        let Some(buyer) = buyer else { return Told::Refused(Code::Unauthorized, None) };
        let mut challenge = match self.manners.challenge {
            ChallengeKind::None => return ok(json!({ "kind": "none" })),
            ChallengeKind::Picture => {
                return ok(json!({ "kind": "picture", "token": "t", "image": "data:," }));
            }
            ChallengeKind::Pow => {
                let options = altcha::CreateChallengeOptions {
                    cost: 10,
                    data: Some(BTreeMap::from([("for".into(), json!([buyer, offer]))])),
                    hmac_signature_secret: Some(POW_SECRET.into()),
                    ..Default::default()
                };
                serde_json::to_value(altcha::create_challenge(options).unwrap()).unwrap()
            }
        };
        let mut books = self.books();
        books.challenges_open += 1;
        books.challenges_open_max = books.challenges_open_max.max(books.challenges_open);
        challenge["kind"] = "pow".into();
        ok(challenge)
    }

    fn pass(&self, buyer: Option<String>, body: &[u8]) -> Told {
        let Some(buyer) = buyer else { return Told::Refused(Code::Unauthorized, None) };
        if self.passes.fetch_add(1, Ordering::Relaxed) < self.manners.early_passes {
            return Told::Refused(Code::NotOpen, None);
        }
        if self.manners.registration == RegistrationKind::Required
            && !self.books().registered.contains(&buyer)
        {
            return Told::Refused(Code::NotRegistered, None);
        }
        if self.manners.challenge == ChallengeKind::Pow {
            self.books().challenges_open -= 1;
            if !solved(body) {
                return Told::Refused(Code::ChallengeFailed, None);
            }
        }
        ok(self.mint(&buyer))
    }

    fn mint(&self, buyer: &str) -> PassGiven {
        let order_id = OrderId(u128::try_from(self.minted.fetch_add(1, Ordering::Relaxed)).unwrap() + 100);
        let pass = format!("{order_id}.{buyer}");
        PassGiven { pass, order_id, expires_at: self.opens_at.plus_s(300), notice: None }
    }

    fn order(&self, offer: OfferId, body: &[u8]) -> Told {
        let request: OrderRequest = serde_json::from_slice(body).unwrap();
        let (order, buyer) = request.pass.split_once('.').unwrap();
        let id: OrderId = order.parse().unwrap();
        let number = self.tries.fetch_add(1, Ordering::Relaxed);
        if number == 0 {
            self.watching_at_the_first_try.store(self.watching.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let Manners { busy_first, unsure_first, break_first, .. } = self.manners;
        if self.manners.deaf {
            return Told::Break;
        }
        if self.manners.paused {
            return Told::Refused(Code::Paused, None);
        }
        if number < busy_first {
            return Told::Refused(Code::Busy, None);
        }
        let decided = self.decide(id, offer, buyer, request.quantity);
        match decided {
            Told::Json(..) if number < self.manners.busy_but_sells => Told::Refused(Code::Busy, None),
            Told::Json(..) if number < busy_first + unsure_first => Told::Refused(Code::Unsure, Some(id)),
            Told::Json(..) if number < busy_first + unsure_first + break_first => Told::Break,
            other => other,
        }
    }

    fn decide(&self, id: OrderId, offer: OfferId, buyer: &str, quantity: u32) -> Told {
        let mut books = self.books();
        if let Some(order) = books.orders.get(&id) {
            return Told::Json(202, serde_json::to_value(&order.view).unwrap());
        }
        let of_offer = |order: &&Order| order.view.offer_id == offer;
        let mut others = books.orders.values().filter(of_offer);
        if let Some(other) = others.find(|order| order.buyer == buyer && !self.manners.sells_twice) {
            return Told::Refused(Code::AlreadyOrdered, Some(other.view.id));
        }
        if self.now() < self.opens_at {
            return Told::Refused(Code::NotOpen, None);
        }
        let live = books.orders.values().filter(of_offer).filter(|order| order.view.state != State::Closed);
        let taken: u32 = live.map(|order| order.view.quantity).sum();
        if taken + quantity > self.manners.stock && !self.manners.oversells {
            return Told::Refused(Code::SoldOut, None);
        }
        let mut view = OrderView {
            id,
            sale_id: SaleId(1),
            offer_id: offer,
            quantity,
            price: price(),
            total: price().times(quantity).unwrap(),
            state: State::Queued,
            reason: None,
            seq: 1,
            created_at: self.now(),
            pay_by: None,
            paid_at: None,
            closed_at: None,
            refunded_at: None,
            payment_id: None,
            refunds: Vec::new(),
        };
        let told = Told::Json(202, serde_json::to_value(&view).unwrap());
        if self.manners.pushes != Pushes::Never {
            self.record(&mut view);
        }
        let order = Order { buyer: buyer.into(), view, looks: 0 };
        self.tell(&order);
        books.orders.insert(id, order);
        told
    }

    fn record(&self, order: &mut OrderView) {
        (order.state, order.seq) = (State::AwaitingPayment, 2);
        order.pay_by = Some(self.opens_at.plus_s(900));
    }

    /// Tells whoever listens.
    fn tell(&self, order: &Order) {
        // Nobody has to listen.
        let _ = self.news.send((order.buyer.clone(), order.view.clone()));
    }

    fn look(&self, buyer: Option<String>, id: OrderId) -> Told {
        let mut books = self.books();
        let order = books.orders.get_mut(&id).filter(|order| Some(&order.buyer) == buyer.as_ref());
        let Some(order) = order.filter(|_| !self.manners.forgets) else {
            return Told::Refused(Code::NotFound, None);
        };
        order.looks += 1;
        if order.view.state == State::Queued && order.looks > self.manners.queued_looks {
            self.record(&mut order.view);
        }
        ok(&order.view)
    }

    fn cancel(&self, id: OrderId) -> Told {
        let mut books = self.books();
        let Some(order) = books.orders.get_mut(&id) else { return Told::Refused(Code::NotFound, None) };
        if !self.manners.keeps_cancelled {
            (order.view.state, order.view.reason) = (State::Closed, Some(Reason::Cancelled));
            order.view.seq += 1;
            self.tell(order);
        }
        ok(&order.view)
    }

    fn pay(&self, payment: &str) -> Told {
        let id: OrderId = payment.strip_prefix("pay-").unwrap().parse().unwrap();
        let mut books = self.books();
        let order = books.orders.get_mut(&id).unwrap();
        if !self.manners.loses_money {
            (order.view.state, order.view.seq) = (State::Paid, order.view.seq + 1);
        }
        if self.manners.refunds {
            (order.view.state, order.view.seq) = (State::Refunded, order.view.seq + 2);
        }
        self.tell(order);
        ok(json!({}))
    }

    fn list(&self) -> Told {
        let books = self.books();
        let item = |order: &Order| OperatorOrder { order: order.view.clone(), buyer: order.buyer.clone() };
        ok(Page { items: books.orders.values().map(item).collect(), next_cursor: None })
    }

    fn stats(&self) -> Stats {
        let books = self.books();
        let offer = |id| {
            let units = |wanted: fn(State) -> bool| {
                let of_it = |order: &&Order| order.view.offer_id == OfferId(id) && wanted(order.view.state);
                books.orders.values().filter(of_it).map(|order| order.view.quantity).sum::<u32>()
            };
            let held = units(|state| matches!(state, State::Queued | State::AwaitingPayment));
            let (held, sold) = (held.saturating_sub(self.manners.hides), units(|state| state == State::Paid));
            let stock = self.manners.stock;
            let free = stock.saturating_sub(held + sold);
            OfferStats { offer_id: OfferId(id), stock, free, held, sold, returning: 0 }
        };
        Stats {
            sale_id: SaleId(1),
            state: SaleState::Published,
            phase: Phase::Open,
            offers: (1..=OFFERS).map(offer).collect(),
            funnel: Funnel::default(),
            queue: QueueStats { depth: 0, lag_ms: 0 },
            registrations: 0,
        }
    }
}

/// Somebody who listens.
enum Ear {
    Socket(Box<WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>>),
    Stream(mpsc::Sender<String>),
}

impl Ear {
    /// Whether it was heard. The head of a stream says that it is ready.
    async fn say(&mut self, kind: &str, order: Option<&str>) -> bool {
        match (self, order) {
            (Self::Socket(socket), _) => {
                let order = order.map_or(String::new(), |order| format!(r#","order":{order}"#));
                socket.send(Message::text(format!(r#"{{"type":"{kind}"{order}}}"#))).await.is_ok()
            }
            (Self::Stream(_), None) => true,
            (Self::Stream(stream), Some(order)) => {
                stream.send(format!("event: {kind}\ndata: {order}\n\n")).await.is_ok()
            }
        }
    }

    /// Nothing is said after that.
    async fn say_half(&mut self, order: &str) -> bool {
        if let Self::Stream(stream) = self {
            let _ = stream.send(format!("event: order\ndata: {}", order.split_at(order.len() / 2).0)).await;
        }
        false
    }

    async fn is_gone(&mut self) {
        match self {
            Self::Socket(socket) => while let Some(Ok(_)) = socket.next().await {},
            Self::Stream(stream) => stream.closed().await,
        }
    }
}

fn whole(text: String) -> BoxBody<Bytes, std::io::Error> {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed()
}

fn who(authorization: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Claims {
        sub: String,
    }
    let token = authorization.strip_prefix("Bearer ")?;
    if let Some(buyer) = token.strip_prefix("demo-") {
        return Some(buyer.to_owned());
    }
    let key = jsonwebtoken::DecodingKey::from_secret(SECRET);
    let validation = jsonwebtoken::Validation::new(jsonwebtoken::Algorithm::HS256);
    let token: jsonwebtoken::TokenData<Claims> = jsonwebtoken::decode(token, &key, &validation).ok()?;
    Some(token.claims.sub)
}

fn solved(body: &[u8]) -> bool {
    let body: Value = serde_json::from_slice(body).unwrap();
    let Ok(payload) = serde_json::from_value::<altcha::Payload>(body["solution"].clone()) else {
        return false;
    };
    let options = altcha::VerifySolutionOptions::new(&payload.challenge, &payload.solution, POW_SECRET);
    altcha::verify_solution(options).unwrap().verified
}

fn price() -> Money {
    Money { amount: 149_900, currency: "CNY".parse().unwrap() }
}

fn problem(code: Code, order_id: Option<OrderId>) -> Problem {
    Problem {
        kind: "about:blank".into(),
        title: code.title().into(),
        status: code.status(),
        detail: String::new(),
        code: code.as_str().into(),
        order_id,
        until: None,
        retry_after_ms: matches!(code.status(), 425 | 429 | 503).then_some(20),
        field: None,
        available: None,
    }
}
