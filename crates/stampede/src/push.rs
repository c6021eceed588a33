//! News about an order that come by themselves: over a WebSocket, or as server-sent events. A push is a hint; whoever
//! misses one looks. It judges nothing and repeats nothing.

use anyhow::{Context as _, bail, ensure};
use futures_util::{SinkExt as _, StreamExt as _};
use rules::id::OrderId;
use rules::order::State;
use rules::wire::OrderView;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;

use crate::history::{Call, Seen, What};
use crate::person::Person;
use crate::scenario::Follow;

/// The largest head or event of a stream that is read, in bytes.
const STREAM_BYTES_MAX: usize = 256 << 10;
/// Read at a time, in bytes.
const READ_BYTES: usize = 4 << 10;

/// Waits until the order is no longer queued. `None`: the news did not come, and the history says why.
pub(crate) async fn follow(person: &mut Person, id: OrderId, how: Follow) -> Option<Seen> {
    let patience = person.scene.settings.patience;
    let asked = person.scene.clock.instant();
    let waiting = async {
        match how {
            Follow::Sse => by_stream(person, id).await,
            _ => by_websocket(person, id).await,
        }
    };
    let waited = Box::pin(tokio::time::timeout(patience, waiting)).await;
    let why = match waited {
        Ok(Ok(seen)) => return Some(seen),
        Ok(Err(error)) => format!("{error:#}"),
        Err(_) => format!("no news in {} s", patience.as_secs()),
    };
    person.note(asked, What::Broken { call: Call::Push, pass: Some(id), why });
    None
}

/// Notes an order that came, and says whether it is the one waited for and decided.
fn hear(person: &mut Person, id: OrderId, view: &OrderView) -> Option<Seen> {
    // A buyer with a past may have orders of other nights.
    if view.sale_id != person.scene.settings.sale {
        return None;
    }
    let (seen, now) = (Seen::from(view), person.scene.clock.instant());
    person.note_at(now, now, What::Pushed { order: seen });
    (seen.id == id && seen.state != State::Queued).then_some(seen)
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Frame {
    Ready,
    Order { order: Box<OrderView> },
}

async fn by_websocket(person: &mut Person, id: OrderId) -> anyhow::Result<Seen> {
    let scene = std::sync::Arc::clone(&person.scene);
    let _room = scene.room_to_wait().await;
    let stream = TcpStream::connect(scene.settings.addr).await.context("could not connect")?;
    let request = format!("ws://{}/api/v1/events", scene.settings.host).into_client_request()?;
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.context("no WebSocket")?;
    let token = person.token().context("no token")?;
    let auth = serde_json::json!({ "type": "auth", "token": &*token }).to_string();
    socket.send(Message::text(auth)).await?;
    while let Some(message) = socket.next().await {
        match message? {
            Message::Text(text) => {
                if let Frame::Order { order } = serde_json::from_str(&text).context("this is no news")?
                    && let Some(seen) = hear(person, id, &order)
                {
                    // A goodbye that is not heard changes nothing.
                    let _ = socket.close(None).await;
                    return Ok(seen);
                }
            }
            Message::Close(frame) => bail!("closed with {}", frame.map_or(1005, |frame| frame.code.into())),
            Message::Binary(_) | Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
    bail!("the socket closed without a word")
}

async fn by_stream(person: &mut Person, id: OrderId) -> anyhow::Result<Seen> {
    let scene = std::sync::Arc::clone(&person.scene);
    let _room = scene.room_to_wait().await;
    let mut stream = TcpStream::connect(scene.settings.addr).await.context("could not connect")?;
    let token = person.token().context("no token")?;
    let request = format!(
        "GET /api/v1/events HTTP/1.1\r\nhost: {}\r\naccept: text/event-stream\r\nauthorization: Bearer {token}\r\n\r\n",
        scene.settings.host
    );
    stream.write_all(request.as_bytes()).await?;
    let mut events = Events::open(&mut stream).await?;
    loop {
        for data in events.next(&mut stream).await? {
            let view: OrderView = serde_json::from_str(&data).context("this is no news")?;
            if let Some(seen) = hear(person, id, &view) {
                return Ok(seen);
            }
        }
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

    /// The data of the events that are complete; waits for bytes if there is none.
    async fn next(&mut self, stream: &mut TcpStream) -> anyhow::Result<Vec<String>> {
        loop {
            self.unchunk()?;
            let events = self.take_events();
            if !events.is_empty() {
                return Ok(events);
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

    fn take_events(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        while let Some(end) = self.text.windows(2).position(|pair| pair == b"\n\n") {
            let event = String::from_utf8_lossy(self.text.get(..end).unwrap_or_default()).into_owned();
            self.text.drain(..end + 2);
            let data: Vec<&str> =
                event.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim_start).collect();
            if !data.is_empty() {
                found.push(data.join("\n"));
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
        let body = "event: order\nid: 1\ndata: {\"a\":\ndata: 1}\n\n: ping\n\ndata: x\n\n";
        let (first, rest) = body.split_at(20);
        let bytes = format!("{:x}\r\n{first}\r\n{:x}\r\n{rest}\r\n", first.len(), rest.len());
        let mut found = Vec::new();
        for byte in bytes.bytes() {
            events.raw.push(byte);
            events.unchunk().unwrap();
            found.extend(events.take_events());
        }
        assert_eq!(found, ["{\"a\":\n1}", "x"]);
        events.raw.extend_from_slice(b"0\r\n\r\n");
        assert!(events.unchunk().is_err());
    }
}
