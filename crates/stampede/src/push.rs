//! News about an order that come by themselves: over a WebSocket, or as server-sent events. A push is a hint; whoever
//! misses one looks. It judges nothing and repeats nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures_util::StreamExt as _;
use rules::id::{OrderId, SaleId};
use rules::order::State;
use rules::wire::OrderView;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

use crate::clock::Clock;
use crate::crowd::{Pool, Room, count};
use crate::history::{Call, Seen, What};
use crate::person::Person;
use crate::scenario::Follow;

/// The largest head or event of a stream that is read, in bytes.
const STREAM_BYTES_MAX: usize = 256 << 10;
/// Read at a time, in bytes.
const READ_BYTES: usize = 4 << 10;

/// News of one line that may wait for its person: more than one buyer's orders of a night change.
const NEWS_MAX: usize = 64;
/// What is read of a WebSocket at a time, in bytes: there are many of them, and an order is small.
const FRAME_READ_BYTES: usize = 4 << 10;
/// How long a goodbye may take; one that is not heard changes nothing.
const GOODBYE_WITHIN: Duration = Duration::from_secs(1);
/// Whoever looked and saw the order decided listens for so much longer before the push counts as missing.
const LISTENS_ON_FOR: Duration = Duration::from_secs(5);

/// A WebSocket or an event stream of one buyer. It is listened to beside the person, from the page on where the crowd has a
/// socket to spare, and ends when the person no longer holds it.
#[derive(Debug)]
pub(crate) struct Line {
    news: mpsc::Receiver<(Instant, News)>,
    asked: Instant,
    /// When the server knew who listens.
    open_at: Option<Instant>,
    /// Since the page, before the try.
    from_the_page: bool,
}

#[derive(Debug)]
enum News {
    Open,
    Order(Box<OrderView>),
    Broken(String),
}

/// Opens the line that this person follows by, with the page. Nobody waits for it, neither for room nor until it is open.
pub(crate) fn open_with_the_page(person: &mut Person, how: Follow) {
    if !matches!(how, Follow::Websocket | Follow::Sse) {
        return;
    }
    count(&person.scene.progress.watchers);
    match person.scene.pool.room_for_a_page() {
        Some(room) => person.line = Some(open(person, how, Some(room))),
        None => count(&person.scene.progress.no_room),
    }
}

/// Without room it waits for some.
fn open(person: &mut Person, how: Follow, room: Option<Room>) -> Line {
    let (sender, news) = mpsc::channel(NEWS_MAX);
    let scene = Arc::clone(&person.scene);
    let from_the_page = room.is_some();
    let caller = Caller {
        pool: Arc::clone(&scene.pool),
        addr: scene.settings.addr,
        host: scene.settings.host.clone(),
        sale: scene.settings.sale,
        token: person.token(),
        clock: scene.clock,
        opens_within: scene.settings.timeouts.connect + scene.settings.timeouts.answer,
        news: sender,
    };
    scene.listen(caller.listen(how, room));
    Line { news, asked: scene.clock.instant(), open_at: None, from_the_page }
}

/// Waits until the order is no longer queued. `None`: the news did not come, and whoever misses them looks.
pub(crate) async fn follow(person: &mut Person, id: OrderId, how: Follow) -> Option<Seen> {
    let give_up_at = person.scene.clock.instant() + person.scene.settings.patience;
    let mut line = match person.line.take() {
        Some(line) => line,
        None => open(person, how, None),
    };
    loop {
        match tokio::time::timeout_at(give_up_at.into(), line.news.recv()).await {
            Ok(Some(news)) => {
                let decided = hear(person, &mut line, news).filter(|seen| seen.id == id);
                if decided.is_some() {
                    // The page stays open until its buyer goes home; other lines make room for those who wait for one.
                    person.line = Some(line).filter(|line| line.from_the_page);
                    return decided;
                }
            }
            // What was cut is connected again, once.
            Ok(None) if line.from_the_page => line = open(person, how, None),
            Ok(None) => return None,
            Err(_) => break,
        }
    }
    if line.open_at.is_some() {
        person.line = Some(line);
    } else {
        let why = format!("no news in {} s", person.scene.settings.patience.as_secs());
        person.note(line.asked, What::Broken { call: Call::Push, pass: Some(id), why });
    }
    None
}

/// The order has been shown like this by another answer. Where the line is still open, it listens for a moment longer; then
/// nothing will come.
pub(crate) async fn listen_on(person: &mut Person, shown: Seen) {
    let Some(mut line) = person.line.take() else { return };
    let asked = person.scene.clock.instant();
    let until = asked + LISTENS_ON_FOR.min(person.scene.settings.patience);
    loop {
        match tokio::time::timeout_at(until.into(), line.news.recv()).await {
            Ok(Some(news)) => {
                let told = |seen: Seen| seen.id == shown.id && seen.seq >= shown.seq;
                if hear(person, &mut line, news).is_some_and(told) {
                    person.line = Some(line);
                    return;
                }
            }
            Ok(None) => return,
            Err(_) => return person.note(asked, What::NotPushed { order: shown.id }),
        }
    }
}

/// Closes the line, if there is one. What has come over it is written down.
pub(crate) fn close(person: &mut Person) {
    let Some(mut line) = person.line.take() else { return };
    while let Ok(news) = line.news.try_recv() {
        hear(person, &mut line, news);
    }
}

/// Writes the news down. Returns the order that came, if it is decided. It may have been sent at any time since the line was
/// open, so that is when it counts as asked for.
fn hear(person: &mut Person, line: &mut Line, (at, news): (Instant, News)) -> Option<Seen> {
    let asked = line.open_at.unwrap_or(line.asked);
    match news {
        News::Open => {
            line.open_at = Some(at);
            person.note_in_order(asked, at, What::Watching);
            None
        }
        News::Order(view) => {
            let order = Seen::from(&*view);
            person.note_in_order(asked, at, What::Pushed { order });
            (order.state != State::Queued).then_some(order)
        }
        News::Broken(why) => {
            person.note_in_order(asked, at, What::Broken { call: Call::Push, pass: None, why });
            None
        }
    }
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Frame {
    Ready,
    Order {
        order: Box<OrderView>,
    },
    /// Of another time.
    #[serde(other)]
    Other,
}

/// Who listens to a line, and tells its person.
struct Caller {
    pool: Arc<Pool>,
    addr: SocketAddr,
    host: String,
    sale: SaleId,
    token: Option<Arc<str>>,
    clock: Clock,
    /// How long the line may take to open.
    opens_within: Duration,
    news: mpsc::Sender<(Instant, News)>,
}

impl Caller {
    async fn listen(self, how: Follow, room: Option<Room>) {
        let room = async {
            match room {
                Some(room) => room,
                None => self.pool.room_to_wait().await,
            }
        };
        let _room = tokio::select! {
            room = room => room,
            () = self.news.closed() => return,
        };
        let cut = match how {
            Follow::Sse => self.by_stream().await,
            _ => self.by_websocket().await,
        };
        if let Err(error) = cut {
            self.tell(News::Broken(format!("{error:#}"))).await;
        }
    }

    /// Whether somebody still listens.
    async fn tell(&self, news: News) -> bool {
        self.news.send((self.clock.instant(), news)).await.is_ok()
    }

    /// A buyer with a past may have orders of other nights. What cannot be read is noted, and the next news may be better.
    async fn tell_of(&self, order: serde_json::Result<Box<OrderView>>) -> bool {
        match order {
            Ok(order) => order.sale_id != self.sale || self.tell(News::Order(order)).await,
            Err(error) => self.tell(News::Broken(format!("this is no news: {error}"))).await,
        }
    }

    async fn by_websocket(&self) -> anyhow::Result<()> {
        let mut socket = tokio::time::timeout(self.opens_within, self.open_websocket())
            .await
            .context("the WebSocket did not open in time")??;
        loop {
            let message = tokio::select! {
                message = socket.next() => message.context("the socket closed without a word")??,
                () = self.news.closed() => {
                    let _ = tokio::time::timeout(GOODBYE_WITHIN, socket.close(None)).await;
                    return Ok(());
                }
            };
            match message {
                Message::Text(text) => {
                    match serde_json::from_str(&text) {
                        Ok(Frame::Ready) => self.tell(News::Open).await,
                        Ok(Frame::Order { order }) => self.tell_of(Ok(order)).await,
                        Ok(Frame::Other) => true,
                        Err(error) => self.tell_of(Err(error)).await,
                    };
                }
                Message::Close(frame) => {
                    bail!("closed with {}", frame.map_or(1005, |frame| frame.code.into()))
                }
                Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    async fn open_websocket(&self) -> anyhow::Result<WebSocketStream<TcpStream>> {
        let stream = TcpStream::connect(self.addr).await.context("could not connect")?;
        let mut request = format!("ws://{}/api/v1/events", self.host).into_client_request()?;
        let token = self.token.as_deref().context("no token")?;
        // As browsers do it, which cannot set another header.
        let protocols = format!("doorbuster.v1, bearer.{token}").parse()?;
        request.headers_mut().insert("sec-websocket-protocol", protocols);
        let config = WebSocketConfig::default().read_buffer_size(FRAME_READ_BYTES);
        let opened = tokio_tungstenite::client_async_with_config(request, stream, Some(config)).await;
        Ok(opened.context("no WebSocket")?.0)
    }

    async fn by_stream(&self) -> anyhow::Result<()> {
        let (mut stream, mut events) = tokio::time::timeout(self.opens_within, self.open_stream())
            .await
            .context("the event stream did not open in time")??;
        self.tell(News::Open).await;
        loop {
            let data = tokio::select! {
                data = events.next(&mut stream) => data?,
                () = self.news.closed() => return Ok(()),
            };
            for data in data {
                self.tell_of(serde_json::from_str(&data)).await;
            }
        }
    }

    async fn open_stream(&self) -> anyhow::Result<(TcpStream, Events)> {
        let mut stream = TcpStream::connect(self.addr).await.context("could not connect")?;
        let (host, token) = (&self.host, self.token.as_deref().context("no token")?);
        let request = format!(
            "GET /api/v1/events HTTP/1.1\r\nhost: {host}\r\naccept: text/event-stream\r\nauthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await?;
        let events = Events::open(&mut stream).await?;
        Ok((stream, events))
    }
}

/// What has come of a stream of events: chunks on the outside, lines inside.
#[derive(Debug, Default)]
struct Events {
    raw: Vec<u8>,
    chunked: bool,
    text: Vec<u8>,
}

impl Events {
    async fn open(stream: &mut TcpStream) -> anyhow::Result<Self> {
        let mut events = Self::default();
        loop {
            events.read(stream).await?;
            let mut headers = [httparse::EMPTY_HEADER; 64];
            let mut response = httparse::Response::new(&mut headers);
            let httparse::Status::Complete(bytes) = response.parse(&events.raw)? else { continue };
            let status = response.code.unwrap_or(0);
            ensure!(status == 200, "told status {status}");
            let chunked = |header: &httparse::Header<'_>| {
                header.name.eq_ignore_ascii_case("transfer-encoding") && header.value.ends_with(b"chunked")
            };
            events.chunked = response.headers.iter().any(chunked);
            events.raw.drain(..bytes);
            return Ok(events);
        }
    }

    /// The data of the orders that are complete; waits for bytes if there is none.
    async fn next(&mut self, stream: &mut TcpStream) -> anyhow::Result<Vec<String>> {
        loop {
            self.unchunk()?;
            let orders = self.take_orders();
            if !orders.is_empty() {
                return Ok(orders);
            }
            self.read(stream).await?;
        }
    }

    async fn read(&mut self, stream: &mut TcpStream) -> anyhow::Result<()> {
        ensure!(self.raw.len() + self.text.len() < STREAM_BYTES_MAX, "an event without an end");
        self.raw.reserve(READ_BYTES);
        ensure!(stream.read_buf(&mut self.raw).await? > 0, "the stream ended");
        Ok(())
    }

    fn unchunk(&mut self) -> anyhow::Result<()> {
        if !self.chunked {
            self.text.append(&mut self.raw);
            return Ok(());
        }
        loop {
            let size = httparse::parse_chunk_size(&self.raw).map_err(|_| anyhow::anyhow!("a bad chunk"))?;
            let httparse::Status::Complete((head, size)) = size else { return Ok(()) };
            ensure!(size > 0, "the stream ended");
            let end = head.saturating_add(usize::try_from(size)?);
            let Some(chunk) = self.raw.get(head..end).filter(|_| self.raw.len() >= end + 2) else {
                return Ok(());
            };
            self.text.extend_from_slice(chunk);
            self.raw.drain(..end + 2);
        }
    }

    /// Events of other kinds are passed over, as a page does that listens for orders.
    fn take_orders(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(end) = self.text.windows(2).position(|pair| pair == b"\n\n") {
            let event = String::from_utf8_lossy(self.text.get(..end).unwrap_or_default()).into_owned();
            self.text.drain(..end + 2);
            let field =
                |name| event.lines().filter_map(move |line| line.strip_prefix(name)).map(str::trim_start);
            if field("event:").next_back() == Some("order") {
                found.push(field("data:").collect::<Vec<_>>().join("\n"));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_across_chunks() {
        let mut events = Events { chunked: true, ..Events::default() };
        let body = "event: order\nid: 1\ndata: {\"a\":\ndata: 1}\n\n: ping\n\nevent: other\ndata: y\n\ndata: z\n\n\
                    event: order\ndata: x\n\n";
        let (first, rest) = body.split_at(20);
        let bytes = format!("{:x}\r\n{first}\r\n{:x}\r\n{rest}\r\n", first.len(), rest.len());
        let mut found = Vec::new();
        for byte in bytes.bytes() {
            events.raw.push(byte);
            events.unchunk().unwrap();
            found.extend(events.take_orders());
        }
        assert_eq!(found, ["{\"a\":\n1}", "x"]);
        events.raw.extend_from_slice(b"0\r\n\r\n");
        assert!(events.unchunk().is_err());
    }
}
