//! One keep-alive HTTP/1.1 connection, frugal: the request is bytes made by the caller, the answer is read in place,
//! and a call in the steady state costs one write, one read and no allocation. It knows neither JSON nor what is
//! worth repeating; TLS is for a proxy in front. It never sends anything twice by itself, because only the caller
//! knows whether a repeat is harmless.

use std::future::poll_fn;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rules::id::OfferId;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use crate::clock::monotonic_now;

/// The largest answer that is read, head and body, in bytes: a sale of a thousand described offers fits.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// What a connection starts with; an order's answer fits in one read.
const BUFFER_BYTES: usize = 4 << 10;
const HEADERS_MAX: usize = 64;

/// How long a connection waits for the other side.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    pub connect: Duration,
    /// From the first byte of the request to the last of the answer.
    pub answer: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(5), answer: Duration::from_secs(10) }
    }
}

/// Why a call has no answer. Only the first two are certain not to have reached the server.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    #[error("could not connect: {0}")]
    Connect(#[source] io::Error),
    #[error("could not connect in time")]
    ConnectTimeout,
    #[error("the connection broke: {0}")]
    Broken(#[source] io::Error),
    #[error("no answer in time")]
    AnswerTimeout,
    #[error("the answer is not HTTP/1.1: {0}")]
    NotHttp(&'static str),
    #[error("the answer is larger than {ANSWER_BYTES_MAX} bytes")]
    TooLarge,
}

/// An answer, lying in the connection's buffer until the next call.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    pub status: u16,
    /// `Retry-After` when it is given in seconds; a date there is not understood and is the same as none.
    pub retry_after: Option<Duration>,
    pub body: &'a [u8],
    /// All bytes of the answer, its head and framing too.
    pub bytes: usize,
}

/// A request before it is bytes.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub method: &'static str,
    pub path: &'a str,
    pub bearer: Option<&'a str>,
    /// JSON.
    pub body: Option<&'a [u8]>,
}

impl<'a> Request<'a> {
    #[must_use]
    pub const fn get(path: &'a str, bearer: Option<&'a str>) -> Self {
        Self { method: "GET", path, bearer, body: None }
    }

    #[must_use]
    pub const fn post(path: &'a str, bearer: Option<&'a str>, body: &'a [u8]) -> Self {
        Self { method: "POST", path, bearer, body: Some(body) }
    }

    /// Writes the request into `out`, replacing what was there.
    pub fn render(&self, host: &str, out: &mut Vec<u8>) {
        out.clear();
        for part in [self.method, " ", self.path, " HTTP/1.1\r\nhost: ", host, "\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        if let Some(token) = self.bearer {
            for part in ["authorization: Bearer ", token, "\r\n"] {
                out.extend_from_slice(part.as_bytes());
            }
        }
        match self.body {
            Some(body) => {
                write_body_head(body.len(), out);
                out.extend_from_slice(body);
            }
            None => out.extend_from_slice(b"\r\n"),
        }
    }
}

/// Writes a try for one offer into `out`, replacing what was there, without the detour over a JSON writer: a pass is
/// base64url and needs no escapes.
pub fn render_order(host: &str, offer: OfferId, pass: &str, quantity: u32, out: &mut Vec<u8>) {
    const BEFORE: &str = r#"{"pass":""#;
    const BETWEEN: &str = r#"","quantity":"#;
    out.clear();
    let digits = quantity.checked_ilog10().unwrap_or(0).saturating_add(1);
    let digits = usize::try_from(digits).unwrap_or(1);
    let offer = rules::id::encode(offer.0);
    for part in
        [b"POST /api/v1/offers/".as_slice(), &offer, b"/orders HTTP/1.1\r\nhost: ", host.as_bytes(), b"\r\n"]
    {
        out.extend_from_slice(part);
    }
    write_body_head(BEFORE.len() + pass.len() + BETWEEN.len() + digits + 1, out);
    for part in [BEFORE, pass, BETWEEN] {
        out.extend_from_slice(part.as_bytes());
    }
    write_number(quantity, out);
    out.push(b'}');
}

fn write_body_head(length: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(b"content-type: application/json\r\ncontent-length: ");
    write_number(length, out);
    out.extend_from_slice(b"\r\n\r\n");
}

fn write_number(number: impl std::fmt::Display, out: &mut Vec<u8>) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "{number}");
}

/// One connection to one server. It opens itself when it is needed and again when the server has closed it.
#[derive(Debug)]
pub struct Connection {
    addr: SocketAddr,
    timeouts: Timeouts,
    /// Taken out for the time of a call: a call that is dropped half way takes the connection with it, so that its
    /// late answer is never read as the answer of the next.
    stream: Option<TcpStream>,
    incoming: Incoming,
}

impl Connection {
    /// Does not connect yet. Must be called inside a tokio runtime.
    #[must_use]
    pub fn new(addr: SocketAddr, timeouts: Timeouts) -> Self {
        Self { addr, timeouts, stream: None, incoming: Incoming::new() }
    }

    /// Connects unless there is a connection that looks alive.
    pub async fn connect(&mut self) -> Result<(), CallError> {
        if self.looks_alive() { Ok(()) } else { self.connect_anew().await }
    }

    /// Looking costs no system call.
    fn looks_alive(&self) -> bool {
        // Without news from the server this is `WouldBlock`. Bytes nobody asked for are as bad as the end.
        let is_silent = |stream: &TcpStream| matches!(stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        self.stream.as_ref().is_some_and(is_silent)
    }

    async fn connect_anew(&mut self) -> Result<(), CallError> {
        self.stream = None;
        let connecting = tokio::time::timeout(self.timeouts.connect, TcpStream::connect(self.addr));
        let stream = connecting.await.map_err(|_| CallError::ConnectTimeout)?.map_err(CallError::Connect)?;
        stream.set_nodelay(true).map_err(CallError::Connect)?;
        self.stream = Some(stream);
        Ok(())
    }

    /// Sends `request` and waits for its answer. After an error the next call connects anew.
    pub async fn call(&mut self, request: &[u8]) -> Result<Answer<'_>, CallError> {
        self.call_within(request, self.timeouts.answer).await
    }

    /// As [`Connection::call`], for answers that take their time.
    pub async fn call_within(&mut self, request: &[u8], within: Duration) -> Result<Answer<'_>, CallError> {
        self.call_at(monotonic_now(), request, within).await
    }

    /// The same for who knows what time it is. The time for the answer begins when there is a connection.
    pub async fn call_at(
        &mut self,
        now: std::time::Instant,
        request: &[u8],
        within: Duration,
    ) -> Result<Answer<'_>, CallError> {
        let began = if self.looks_alive() {
            now
        } else {
            self.connect_anew().await?;
            monotonic_now()
        };
        let Some(mut stream) = self.stream.take() else { return Err(CallError::ConnectTimeout) };
        let deadline = Instant::from_std(began) + within;
        write_all(&stream, request, deadline).await?;
        let head = self.incoming.receive(&mut stream, deadline).await?;
        if !head.closes {
            self.stream = Some(stream);
        }
        Ok(self.incoming.answer(&head))
    }

    /// Sends the first `bytes` bytes of `request` and hangs up without waiting for an answer.
    pub async fn hang_up(&mut self, request: &[u8], bytes: usize) -> Result<(), CallError> {
        self.connect().await?;
        let Some(stream) = self.stream.take() else { return Err(CallError::ConnectTimeout) };
        let deadline = Instant::from_std(monotonic_now()) + self.timeouts.answer;
        write_all(&stream, request.get(..bytes).unwrap_or(request), deadline).await
    }
}

async fn write_all(stream: &TcpStream, request: &[u8], deadline: Instant) -> Result<(), CallError> {
    let mut rest = request;
    while !rest.is_empty() {
        match stream.try_write(rest) {
            Ok(0) => return Err(CallError::Broken(io::ErrorKind::WriteZero.into())),
            Ok(written) => rest = rest.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let writable = tokio::time::timeout_at(deadline, stream.writable());
                writable.await.map_err(|_| CallError::AnswerTimeout)?.map_err(CallError::Broken)?;
            }
            Err(error) => return Err(CallError::Broken(error)),
        }
    }
    Ok(())
}

/// How the end of a body is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
    #[default]
    UntilClose,
}

#[derive(Clone, Copy, Debug, Default)]
struct Head {
    status: u16,
    retry_after: Option<Duration>,
    framing: Framing,
    closes: bool,
    /// Where the body begins.
    bytes: usize,
}

/// The last answer's head. Nearly always the next one differs from it in what nobody here reads, a date or an order's
/// address, and need not be parsed.
#[derive(Debug, Default)]
struct Known {
    head: Head,
    bytes: Vec<u8>,
    /// For each byte, whether the next head must have the same: all bits of it or none.
    counts: Vec<u8>,
}

impl Known {
    fn learn(&mut self, head: Head, bytes: &[u8]) {
        self.head = head;
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.counts.clear();
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let fixed = match line.iter().position(|byte| *byte == b':') {
                Some(colon) if line.get(..colon).and_then(Read::by).is_none() => colon + 1,
                _ => line.len(),
            };
            let end = line.trim_ascii_end().len().max(fixed);
            for (count, value) in [(fixed, u8::MAX), (end - fixed, 0), (line.len() - end, u8::MAX)] {
                self.counts.extend(std::iter::repeat_n(value, count));
            }
        }
    }

    /// Whether what was received begins with such a head. Where a value may be another, a byte that may end it or be
    /// forbidden is left to the parser. All bytes are looked at, also behind one that differs: so many are looked at
    /// together.
    fn begins(&self, received: &[u8]) -> bool {
        let Some(received) = received.get(..self.bytes.len()) else { return false };
        let compared = received.iter().zip(&self.bytes).zip(&self.counts);
        let differing = compared.fold(0, |differing, ((byte, known), counts)| {
            differing | ((byte ^ known) & counts) | (u8::from(byte.is_ascii_control()) & !counts)
        });
        differing == 0
    }
}

/// What has come in of the current answer.
#[derive(Debug)]
struct Incoming {
    /// Always initialised up to its length; `filled` says how much of it is the answer.
    buffer: Vec<u8>,
    filled: usize,
    /// Where a chunked body is put together.
    unchunked: Vec<u8>,
    known: Option<Known>,
    alarm: Alarm,
}

impl Incoming {
    fn new() -> Self {
        let buffer = vec![0; BUFFER_BYTES];
        Self { buffer, filled: 0, unchunked: Vec::new(), known: None, alarm: Alarm::new() }
    }

    async fn receive(&mut self, stream: &mut TcpStream, deadline: Instant) -> Result<Head, CallError> {
        self.filled = 0;
        let mut head = self.receive_head(stream, deadline).await?;
        let end = match head.framing {
            Framing::Length(length) => {
                let end = head.bytes.checked_add(length).ok_or(CallError::TooLarge)?;
                self.receive_until(end, stream, deadline).await?;
                end
            }
            Framing::Chunked => self.receive_chunks(head.bytes, stream, deadline).await?,
            Framing::UntilClose => {
                while self.read(stream, deadline).await? > 0 {}
                self.filled
            }
        };
        // We ask one thing at a time: bytes beyond the answer belong to nothing.
        head.closes |= self.filled > end || head.framing == Framing::UntilClose;
        Ok(head)
    }

    fn answer(&self, head: &Head) -> Answer<'_> {
        let body = match head.framing {
            Framing::Length(length) => self.buffer.get(head.bytes..head.bytes.saturating_add(length)),
            Framing::Chunked => Some(self.unchunked.as_slice()),
            Framing::UntilClose => self.buffer.get(head.bytes..self.filled),
        };
        let (status, retry_after) = (head.status, head.retry_after);
        Answer { status, retry_after, body: body.unwrap_or_default(), bytes: self.filled }
    }

    async fn receive_head(&mut self, stream: &mut TcpStream, deadline: Instant) -> Result<Head, CallError> {
        loop {
            self.read_some(stream, deadline).await?;
            if let Some(known) = &self.known
                && known.begins(self.received())
            {
                return Ok(known.head);
            }
            while let Some(head) = parse_head(self.received())? {
                if head.status >= 200 {
                    self.remember(head);
                    return Ok(head);
                }
                // An interim answer (100, 103): the real one comes after it.
                self.buffer.copy_within(head.bytes..self.filled, 0);
                self.filled -= head.bytes;
            }
        }
    }

    fn remember(&mut self, head: Head) {
        let bytes = self.buffer.get(..head.bytes).unwrap_or_default();
        self.known.get_or_insert_default().learn(head, bytes);
    }

    async fn receive_until(
        &mut self,
        end: usize,
        stream: &mut TcpStream,
        deadline: Instant,
    ) -> Result<(), CallError> {
        while self.filled < end {
            self.read_some(stream, deadline).await?;
        }
        Ok(())
    }

    /// Puts the chunks together and returns where the answer ends.
    async fn receive_chunks(
        &mut self,
        start: usize,
        stream: &mut TcpStream,
        deadline: Instant,
    ) -> Result<usize, CallError> {
        self.unchunked.clear();
        let mut at = start;
        loop {
            let rest = self.received().get(at..).unwrap_or_default();
            let size =
                httparse::parse_chunk_size(rest).map_err(|_| CallError::NotHttp("a bad chunk size"))?;
            let httparse::Status::Complete((head_bytes, size)) = size else {
                self.read_some(stream, deadline).await?;
                continue;
            };
            at += head_bytes;
            if size == 0 {
                return self.receive_trailers(at, stream, deadline).await;
            }
            let size = usize::try_from(size).map_err(|_| CallError::TooLarge)?;
            let end = at.checked_add(size).and_then(|end| end.checked_add(2)).ok_or(CallError::TooLarge)?;
            self.receive_until(end, stream, deadline).await?;
            self.unchunked.extend_from_slice(self.buffer.get(at..at + size).unwrap_or_default());
            at = end;
        }
    }

    async fn receive_trailers(
        &mut self,
        at: usize,
        stream: &mut TcpStream,
        deadline: Instant,
    ) -> Result<usize, CallError> {
        loop {
            let rest = self.received().get(at..).unwrap_or_default();
            let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
            match httparse::parse_headers(rest, &mut headers) {
                Ok(httparse::Status::Complete((bytes, _))) => return Ok(at + bytes),
                Ok(httparse::Status::Partial) => self.read_some(stream, deadline).await?,
                Err(_) => return Err(CallError::NotHttp("bad trailers")),
            }
        }
    }

    fn received(&self) -> &[u8] {
        self.buffer.get(..self.filled).unwrap_or_default()
    }

    async fn read_some(&mut self, stream: &mut TcpStream, deadline: Instant) -> Result<(), CallError> {
        match self.read(stream, deadline).await? {
            0 => Err(CallError::Broken(io::ErrorKind::UnexpectedEof.into())),
            _ => Ok(()),
        }
    }

    async fn read(&mut self, stream: &mut TcpStream, deadline: Instant) -> Result<usize, CallError> {
        if self.filled == self.buffer.len() {
            if self.filled >= ANSWER_BYTES_MAX {
                return Err(CallError::TooLarge);
            }
            self.buffer.resize(self.filled * 2, 0);
        }
        let Self { buffer, filled, alarm, .. } = self;
        let spare = buffer.get_mut(*filled..).unwrap_or_default();
        let read = poll_fn(|cx| {
            let mut into = ReadBuf::new(spare);
            match Pin::new(&mut *stream).poll_read(cx, &mut into) {
                Poll::Ready(Ok(())) => Poll::Ready(Ok(into.filled().len())),
                Poll::Ready(Err(error)) => Poll::Ready(Err(CallError::Broken(error))),
                Poll::Pending => alarm.poll_at(deadline, cx).map(|()| Err(CallError::AnswerTimeout)),
            }
        });
        let bytes = read.await?;
        *filled += bytes;
        Ok(bytes)
    }
}

fn parse_head(received: &[u8]) -> Result<Option<Head>, CallError> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    let parsed = config.parse_response_with_uninit_headers(&mut response, received, &mut headers);
    let bytes = match parsed.map_err(|_| CallError::NotHttp("a bad head"))? {
        httparse::Status::Complete(bytes) => bytes,
        httparse::Status::Partial => return Ok(None),
    };
    let status = response.code.unwrap_or(0);
    let closes = response.version == Some(0);
    let mut head = Head { status, retry_after: None, framing: Framing::UntilClose, closes, bytes };
    for header in response.headers.iter() {
        read_header(header, &mut head)?;
    }
    if matches!(status, 100..200 | 204 | 304) {
        head.framing = Framing::Length(0);
    }
    Ok(Some(head))
}

/// The headers that say something to us. What all others say does not matter to [`Known`].
#[derive(Clone, Copy, Debug)]
enum Read {
    Length,
    Encoding,
    RetryAfter,
    Connection,
}

impl Read {
    fn by(name: &[u8]) -> Option<Self> {
        let headers = [
            ("content-length", Self::Length),
            ("transfer-encoding", Self::Encoding),
            ("retry-after", Self::RetryAfter),
            ("connection", Self::Connection),
        ];
        headers.into_iter().find(|(read, _)| name.eq_ignore_ascii_case(read.as_bytes())).map(|(_, read)| read)
    }
}

fn read_header(header: &httparse::Header<'_>, head: &mut Head) -> Result<(), CallError> {
    match Read::by(header.name.as_bytes()) {
        Some(Read::Length) => {
            let length = number(header.value).ok_or(CallError::NotHttp("a bad content-length"))?;
            let length = usize::try_from(length).map_err(|_| CallError::TooLarge)?;
            // Chunks win over a length, whichever comes first.
            if head.framing != Framing::Chunked {
                head.framing = Framing::Length(length);
            }
        }
        Some(Read::Encoding) => {
            if !header.value.eq_ignore_ascii_case(b"chunked") {
                return Err(CallError::NotHttp("a transfer encoding other than chunked"));
            }
            head.framing = Framing::Chunked;
        }
        Some(Read::RetryAfter) => head.retry_after = number(header.value).map(Duration::from_secs),
        Some(Read::Connection) => head.closes |= header.value.eq_ignore_ascii_case(b"close"),
        None => {}
    }
    Ok(())
}

fn number(text: &[u8]) -> Option<u64> {
    let digits = |text: &&[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    Some(text.trim_ascii()).filter(digits).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok())
}

/// One timer for all calls of a connection. Moving a timer costs more than looking at it, so it stays where an
/// earlier call has put it and moves only when it rings too early.
#[derive(Debug)]
struct Alarm(Pin<Box<Sleep>>);

impl Alarm {
    fn new() -> Self {
        Self(Box::pin(tokio::time::sleep(Duration::ZERO)))
    }

    fn poll_at(&mut self, deadline: Instant, cx: &mut Context<'_>) -> Poll<()> {
        if self.0.deadline() > deadline {
            self.0.as_mut().reset(deadline);
        }
        while self.0.as_mut().poll(cx).is_ready() {
            if self.0.deadline() >= deadline {
                return Poll::Ready(());
            }
            self.0.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Serves one connection after the other; each answers its requests with the given bytes, in order, then closes.
    async fn server(answers: &[&[&str]]) -> (SocketAddr, tokio::task::JoinSet<usize>) {
        let owned = |answers: &&[&str]| answers.iter().map(ToString::to_string).collect::<Vec<_>>();
        let answers: Vec<Vec<String>> = answers.iter().map(owned).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut serving = tokio::task::JoinSet::new();
        serving.spawn(async move {
            let mut served = 0;
            for answers in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                for answer in answers {
                    let mut asked = [0; 1024];
                    assert!(stream.read(&mut asked).await.unwrap() > 0);
                    stream.write_all(answer.as_bytes()).await.unwrap();
                    served += 1;
                }
            }
            served
        });
        (addr, serving)
    }

    fn hello() -> Vec<u8> {
        let mut request = Vec::new();
        Request::get("/api/v1/time", None).render("shop", &mut request);
        request
    }

    async fn one_answer(answer: &[&[&str]]) -> (u16, Vec<u8>) {
        let (addr, _serving) = server(answer).await;
        let mut connection = Connection::new(addr, Timeouts::default());
        let answer = connection.call(&hello()).await.unwrap();
        (answer.status, answer.body.to_vec())
    }

    async fn one_error(answer: &[&[&str]]) -> String {
        let (addr, _serving) = server(answer).await;
        Connection::new(addr, Timeouts::default()).call(&hello()).await.expect_err("must fail").to_string()
    }

    #[tokio::test]
    async fn answers_follow_each_other_on_one_connection() {
        let (addr, mut serving) = server(&[&[
            "HTTP/1.1 409 Conflict\r\nContent-Length: 2\r\nRetry-After: 3\r\n\r\n{}",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        ]])
        .await;
        let mut connection = Connection::new(addr, Timeouts::default());
        let mut told = Vec::new();
        for _ in 0..3 {
            let answer = connection.call(&hello()).await.unwrap();
            told.push((answer.status, answer.retry_after, answer.body.to_vec()));
        }
        let three = Some(Duration::from_secs(3));
        assert_eq!(
            told,
            [(409, three, b"{}".to_vec()), (204, None, Vec::new()), (200, None, b"hello".to_vec())]
        );
        assert_eq!(serving.join_next().await.unwrap().unwrap(), 3);
    }

    #[tokio::test]
    async fn chunks_are_put_together() {
        let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n7;x=y\r\n, world\r\n0\r\nt: v\r\n\r\n";
        let (status, body) = one_answer(&[&[chunked]]).await;
        assert_eq!((status, body.as_slice()), (200, b"hello, world".as_slice()));
    }

    #[tokio::test]
    async fn an_interim_answer_is_passed_over() {
        let told = one_answer(&[&[
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\ncontent-length: 1\r\n\r\nx",
        ]]);
        assert_eq!(told.await, (201, b"x".to_vec()));
    }

    #[tokio::test]
    async fn a_body_without_a_length_ends_with_the_connection() {
        let told = one_answer(&[&["HTTP/1.1 200 OK\r\n\r\nto the end"]]).await;
        assert_eq!(told, (200, b"to the end".to_vec()));
    }

    #[tokio::test]
    async fn a_body_larger_than_the_buffer_is_read_whole() {
        let body = "x".repeat(100_000);
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let (_, told) = one_answer(&[&[&answer]]).await;
        assert!(told == body.as_bytes());
    }

    #[tokio::test]
    async fn a_head_as_the_one_before_is_taken_as_read_and_any_other_is_not() {
        let answers = [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab", 200, "ab"),
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\ncd", 200, "cd"),
            ("HTTP/1.1 409 OK\r\ncontent-length: 2\r\n\r\nef", 409, "ef"),
            ("HTTP/1.1 409 OK\r\ncontent-length: 3\r\n\r\nghi", 409, "ghi"),
            // Its beginning is the head before it.
            ("HTTP/1.1 409 OK\r\ncontent-length: 3\r\nretry-after: 1\r\n\r\njkl", 409, "jkl"),
            ("HTTP/1.1 409 OK\r\ncontent-length: 3\r\n\r\nmno", 409, "mno"),
            // What nobody reads may be another, and a header that is read may stand where it was.
            ("HTTP/1.1 202 OK\r\nx-order-is: 7654321\r\ncontent-length: 3\r\n\r\npqr", 202, "pqr"),
            ("HTTP/1.1 202 OK\r\nx-order-is: 1234567\r\ncontent-length: 3\r\n\r\nstu", 202, "stu"),
            ("HTTP/1.1 202 OK\r\nx-order-is: 1234567\r\ncontent-length: 2\r\n\r\nvw", 202, "vw"),
            ("HTTP/1.1 202 OK\r\nretry-after: 1234567\r\ncontent-length: 2\r\n\r\nxy", 202, "xy"),
        ];
        let (addr, _serving) = server(&[&answers.map(|(answer, ..)| answer)]).await;
        let mut connection = Connection::new(addr, Timeouts::default());
        for (_, status, body) in answers {
            let answer = connection.call(&hello()).await.unwrap();
            assert_eq!((answer.status, answer.body), (status, body.as_bytes()));
        }
    }

    #[test]
    fn a_head_is_known_again_where_only_what_nobody_reads_differs() {
        let first =
            "HTTP/1.1 202 Accepted\r\nLocation: /orders/1\r\nContent-Length: 2\r\nRetry-After: 5\r\n\r\n";
        let mut known = Known::default();
        known.learn(parse_head(first.as_bytes()).unwrap().unwrap(), first.as_bytes());
        let begins = |from: &str, to: &str| {
            let head = first.replace(from, to);
            assert_ne!(head, first);
            known.begins(format!("{head}{{}}").as_bytes())
        };
        assert!(known.begins(first.as_bytes()) && begins("/orders/1", "/orders/2"));
        for (from, to) in [
            ("/orders/1", "/orders/10"),
            ("/orders/1", "/orders\r\n"),
            ("/orders/1", "/order\nx:y"),
            ("/orders/1", "/orders/\0"),
            ("202", "409"),
            ("Length: 2", "Length: 3"),
            ("After: 5", "After: 6"),
            ("Location", "Vocation"),
            ("\r\n\r\n", "\r\nx: y\r\n\r\n"),
        ] {
            assert!(!begins(from, to), "{from:?} {to:?}");
        }
        assert!(!known.begins(&first.as_bytes()[..first.len() - 1]), "not all of it");
    }

    #[tokio::test]
    async fn a_connection_the_server_closed_is_opened_again() {
        let (addr, mut serving) = server(&[
            &["HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"],
            &["HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"],
            &["HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"],
        ])
        .await;
        let mut connection = Connection::new(addr, Timeouts::default());
        connection.call(&hello()).await.unwrap();
        // The first close comes without a word: wait until it has arrived.
        connection.stream.as_ref().unwrap().readable().await.unwrap();
        connection.call(&hello()).await.unwrap();
        assert!(connection.stream.is_none(), "the second close was announced");
        connection.call(&hello()).await.unwrap();
        assert_eq!(serving.join_next().await.unwrap().unwrap(), 3);
    }

    #[tokio::test]
    async fn what_is_no_answer_is_an_error() {
        assert!(one_error(&[&["SSH-2.0-OpenSSH\r\n"]]).await.contains("not HTTP"));
        assert!(one_error(&[&["HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"]]).await.contains("length"));
        assert!(
            one_error(&[&["HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n"]]).await.contains("encoding")
        );
        assert!(one_error(&[&["HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf"]]).await.contains("broke"));
        assert!(
            one_error(&[&["HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"]])
                .await
                .contains("chunk")
        );
    }

    #[tokio::test]
    async fn a_silent_server_is_given_up_and_its_late_answer_is_nobodys() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let timeouts = Timeouts { answer: Duration::from_millis(30), ..Timeouts::default() };
        let mut connection = Connection::new(listener.local_addr().unwrap(), timeouts);
        let told = connection.call(&hello()).await.map(|answer| answer.status);
        assert!(matches!(told, Err(CallError::AnswerTimeout)), "{told:?}");
        assert!(connection.stream.is_none());
    }

    #[tokio::test]
    async fn nobody_at_the_address_is_a_connect_error() {
        // No port that was free a moment ago: somebody else may be given it.
        let addr = ([127, 0, 0, 1], 1).into();
        let told =
            Connection::new(addr, Timeouts::default()).call(&hello()).await.map(|answer| answer.status);
        assert!(matches!(told, Err(CallError::Connect(_))), "{told:?}");
    }

    #[test]
    fn a_rendered_order_says_its_length_and_its_quantity() {
        let mut out = b"left from before".to_vec();
        for quantity in [1, 10, 100] {
            render_order("shop:80", OfferId(7), "a-pass_", quantity, &mut out);
            let text = String::from_utf8(out.clone()).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("POST /api/v1/offers/00000000000000000000000007/orders HTTP/1.1\r\n"));
            assert!(head.ends_with(&format!("content-length: {}", body.len())), "{head}");
            let order: rules::wire::OrderRequest = serde_json::from_str(body).unwrap();
            assert_eq!((order.pass.as_str(), order.quantity), ("a-pass_", quantity));
        }
    }
}
