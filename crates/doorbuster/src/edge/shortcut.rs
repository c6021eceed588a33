//! The shortcut. Nearly all requests of a sale's first seconds are tries, and nearly all of those arrive whole, in one
//! piece, on a connection where nothing else is under way. Such a try is read and answered right at the socket.
//!
//! It stands between the socket and hyper, and looks at bytes only where a request begins. Whatever is not exactly one
//! plain try goes to hyper as it came, and until hyper has answered it, so does everything behind it. When it can no
//! longer tell where a request begins (pipelining, chunked bodies, upgrades), the rest of the connection is hyper's. So a
//! request is read by one of the two, never by both, and no more of HTTP than that needs to be known here. What a try
//! comes to is decided in [`buy`], for both.
//!
//! While tries come, hyper is not even asked, and a connection on which nothing else comes never has one: `Served` wakes
//! hyper when there is something for it.

use std::cell::RefCell;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Response, StatusCode};
use parking_lot::Mutex;
use rules::time::UnixMs;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::answer::Body;
use super::body;
use super::buy::{self, Begun, Later, Said};
use super::limits::{Class, Permit};
use super::message;
use super::watch::{Doing, Watch};
use crate::app::App;
use crate::gate::{Claimed, Outcome};
use crate::queue::Claim;
use crate::queue::reply::Reply;
use crate::telemetry::metrics::{Answered, RequestClass, Shed, StatusClass};

/// A try with more headers than this is not plain.
const HEADERS_MAX: usize = 48;

/// What is read at once, in bytes: a try is far shorter.
const READ_BYTES: usize = 8_192;

thread_local! {
    /// Where a message is put together; what the socket does not take at once is kept by its connection.
    static DESK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    /// Where a request is read; what is not the shortcut's is kept for hyper.
    static INBOX: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES].into_boxed_slice());
}

/// The tries of one socket.
#[derive(Debug)]
pub struct Shortcut<S> {
    socket: S,
    /// Came with a request's beginning, for hyper.
    kept: Bytes,
    watch: Arc<Watch>,
    app: Arc<App>,
    draining: Arc<AtomicBool>,
    /// Whether somebody gathers traces.
    traced: bool,
    way: Way,
    doing: Answering,
}

/// Why the shortcut has nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Something is hyper's.
    Hyper,
    /// The client has closed its side, and nothing is under way.
    End,
}

/// Whose the next bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// They begin a request.
    Open,
    /// Hyper has a request, so many bytes of which are still to come.
    Hyper { to_come: usize },
    /// Hyper's, for good.
    Closed,
}

enum Answering {
    Nothing,
    /// Granted: the answer waits for the commit.
    Committing(Committing),
    /// The answer needs more than memory.
    Later(Pin<Box<dyn Future<Output = Response<Body>> + Send>>),
    /// The socket has not taken all of it.
    Sending {
        message: Vec<u8>,
        sent: usize,
    },
}

struct Committing {
    reply: Reply,
    claim: Arc<Claim>,
    json: Bytes,
    permit: Permit,
}

impl std::fmt::Debug for Answering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "Nothing",
            Self::Committing(_) => "Committing",
            Self::Later(_) => "Later",
            Self::Sending { .. } => "Sending",
        })
    }
}

/// What the bytes at a request's beginning are.
#[derive(Debug, PartialEq, Eq)]
enum Arrived<'a> {
    /// One plain try, whole, and nothing behind it.
    Try { offer: &'a str, body: &'a [u8] },
    /// Another request, so many bytes of which are still to come.
    Other { to_come: usize },
    /// Its end cannot be told.
    Unclear,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Shortcut<S> {
    /// `tries` tells whether tries may come this way at all.
    #[must_use]
    pub fn new(socket: S, watch: Arc<Watch>, app: Arc<App>, draining: Arc<AtomicBool>, tries: bool) -> Self {
        let way = if tries { Way::Open } else { Way::Closed };
        let traced = app.settings.telemetry.otlp_endpoint.is_some();
        Self { socket, kept: Bytes::new(), watch, app, draining, traced, way, doing: Answering::Nothing }
    }

    /// Answers tries until something else comes.
    pub fn poll_tries(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<Next>> {
        while self.is_open() {
            ready!(self.poll_answer(context))?;
            if let Some(next) = ready!(self.poll_request(context))? {
                return Poll::Ready(Ok(next));
            }
        }
        Poll::Ready(Ok(Next::Hyper))
    }

    /// Whether the next bytes begin a request.
    fn is_open(&mut self) -> bool {
        if self.way == (Way::Hyper { to_come: 0 })
            && self.kept.is_empty()
            && self.watch.get().0 == Doing::Idle
        {
            self.way = Way::Open;
        }
        self.way == Way::Open
    }

    /// Reads where a request begins, and answers it if it is a try.
    fn poll_request(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<Option<Next>>> {
        INBOX.with_borrow_mut(|inbox| {
            let mut buffer = ReadBuf::new(inbox);
            ready!(Pin::new(&mut self.socket).poll_read(context, &mut buffer))?;
            let came = buffer.filled();
            if came.is_empty() {
                return Poll::Ready(Ok(Some(Next::End)));
            }
            self.way = match arrived(came) {
                Arrived::Try { offer, body } => {
                    if self.answer(context, offer, body)? {
                        return Poll::Ready(Ok(None));
                    }
                    Way::Hyper { to_come: 0 }
                }
                Arrived::Other { to_come } => Way::Hyper { to_come },
                Arrived::Unclear => Way::Closed,
            };
            self.kept = Bytes::copy_from_slice(came);
            self.watch.bytes_came();
            Poll::Ready(Ok(Some(Next::Hyper)))
        })
    }

    /// Begins to answer a try; `false`: hyper must, and nothing has happened yet.
    fn answer(&mut self, context: &mut Context<'_>, offer: &str, body: &[u8]) -> std::io::Result<bool> {
        // Hyper knows how to end a connection with its last answer.
        if self.draining.load(Ordering::Relaxed) || body.len() > self.app.settings.limits.body_bytes {
            return Ok(false);
        }
        let now = self.app.clock.now();
        if !self.app.in_flight.has_room(Class::Buyer) {
            self.app.metrics.shed.inc(Shed::InFlight);
            self.say(context, Said::Prepared(&buy::BUSY), now)?;
            return Ok(true);
        }
        let begun = if self.traced {
            begin_traced(&self.app, offer, body, now)
        } else {
            buy::begin_plain(&self.app, offer, body, now)
        };
        let Some(begun) = begun else { return Ok(false) };
        // Only who waits for something is under way; the others have their answer before the next one is read.
        match begun {
            Begun::Answer(said) => self.say(context, said, now)?,
            Begun::Committing { reply, claim, json, patience: _ } => {
                self.watch.set(Doing::Working);
                let permit = self.app.in_flight.enter_seen(Class::Buyer);
                self.doing = Answering::Committing(Committing { reply, claim, json, permit });
            }
            Begun::Later(later, why) => {
                let app = Arc::clone(&self.app);
                let permit = app.in_flight.enter_seen(Class::Buyer);
                self.later(async move { later.answer(&app, why, Some(permit)).await });
            }
        }
        Ok(true)
    }

    fn later(&mut self, answer: impl Future<Output = Response<Body>> + Send + 'static) {
        self.watch.set(Doing::Working);
        self.doing = Answering::Later(Box::pin(answer));
    }

    /// Ready when no answer is under way.
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        loop {
            match &mut self.doing {
                Answering::Nothing => return Poll::Ready(Ok(())),
                Answering::Committing(committing) => {
                    let outcome = ready!(Pin::new(&mut committing.reply).poll(context));
                    self.committed(context, outcome)?;
                }
                Answering::Later(answer) => {
                    let response = ready!(answer.as_mut().poll(context));
                    self.say(context, Said::Response(response), self.app.clock.now())?;
                }
                Answering::Sending { message, sent } => {
                    let rest = message.get(*sent..).unwrap_or_default();
                    let went = ready!(Pin::new(&mut self.socket).poll_write(context, rest))?;
                    if went == 0 {
                        return Poll::Ready(Err(std::io::ErrorKind::WriteZero.into()));
                    }
                    *sent += went;
                    self.watch.bytes_went();
                    if *sent >= message.len() {
                        self.said();
                    }
                }
            }
        }
    }

    fn committed(&mut self, context: &mut Context<'_>, outcome: Outcome) -> std::io::Result<()> {
        let Answering::Committing(committing) = std::mem::replace(&mut self.doing, Answering::Nothing) else {
            return Ok(());
        };
        let Committing { claim, json, permit, .. } = committing;
        if outcome == Outcome::Committed {
            buy::granted(&self.app, &claim);
            let now = claim.claimed_at;
            return self.send(context, StatusCode::ACCEPTED, |message| {
                message::accepted(message, claim.order, claim.offer, now, &json);
            });
        }
        let app = Arc::clone(&self.app);
        let later = Later::of(&claim, std::time::Duration::ZERO);
        self.later(async move { later.tell(&app, Claimed::of(outcome, claim), Some(permit)).await });
        Ok(())
    }

    fn say(&mut self, context: &mut Context<'_>, said: Said, now: UnixMs) -> std::io::Result<()> {
        self.send(context, said.status(), |message| match said {
            Said::Prepared(prepared) => prepared.write(message, now),
            Said::Response(response) => message::response(message, response, now),
        })
    }

    /// Sends a message, or as much of it as the socket takes now.
    fn send(
        &mut self,
        context: &mut Context<'_>,
        status: StatusCode,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> std::io::Result<()> {
        self.app.metrics.requests.inc(Answered(RequestClass::Buyer, StatusClass::of(status.as_u16())));
        DESK.with_borrow_mut(|message| {
            message.clear();
            write(message);
            let sent = match Pin::new(&mut self.socket).poll_write(context, message) {
                Poll::Ready(sent) => sent?,
                Poll::Pending => 0,
            };
            if sent == message.len() {
                self.said();
            } else {
                self.watch.set(Doing::Sending);
                self.doing = Answering::Sending { message: message.clone(), sent };
            }
            Ok(())
        })
    }

    fn said(&mut self) {
        self.doing = Answering::Nothing;
        self.watch.set(Doing::Idle);
    }
}

/// The same with a span, of the decision alone: journal and clerk have spans of their own.
#[cold]
fn begin_traced(app: &App, offer: &str, body: &[u8], now: UnixMs) -> Option<Begun> {
    tracing::trace_span!("try").in_scope(|| buy::begin_plain(app, offer, body, now))
}

/// What a piece that begins a request is.
fn arrived(bytes: &[u8]) -> Arrived<'_> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut []);
    let Ok(httparse::Status::Complete(head)) = request.parse_with_uninit_headers(bytes, &mut headers) else {
        return Arrived::Unclear;
    };
    let (Some(method), Some(path), Some(1)) = (request.method, request.path, request.version) else {
        return Arrived::Unclear;
    };
    let Some(told) = Told::of(request.headers).filter(|_| method != "CONNECT") else {
        return Arrived::Unclear;
    };
    let came = bytes.get(head..).unwrap_or_default();
    let Some(to_come) = told.length.unwrap_or(0).checked_sub(came.len()) else { return Arrived::Unclear };
    match buy::offer_of(path).filter(|_| method == "POST") {
        Some(offer) if to_come == 0 && told.plain && told.json == Some(true) && told.length.is_some() => {
            Arrived::Try { offer, body: came }
        }
        _ => Arrived::Other { to_come },
    }
}

/// What a request's headers say of it.
struct Told {
    /// Bytes of the body.
    length: Option<usize>,
    json: Option<bool>,
    /// Nothing is asked for that the shortcut does not know.
    plain: bool,
}

impl Told {
    /// `None` when the request's end cannot be told from them.
    fn of(headers: &[httparse::Header<'_>]) -> Option<Self> {
        let mut told = Self { length: None, json: None, plain: true };
        for header in headers {
            let is = |name| is_named(header.name, name);
            match header.name.len() {
                6 if is("expect") || is("prefer") => told.plain = false,
                7 if is("upgrade") => return None,
                10 if is("connection") => {
                    told.plain &= header.value.eq_ignore_ascii_case(b"keep-alive");
                }
                12 if is("content-type") => {
                    // Of two, hyper knows which one counts.
                    told.plain &= told.json.is_none();
                    told.json = Some(body::says_json(header.value));
                }
                14 if is("content-length") => {
                    let length = digits(header.value).filter(|_| told.length.is_none())?;
                    told.length = Some(length);
                }
                17 if is("transfer-encoding") => return None,
                _ => {}
            }
        }
        Some(told)
    }
}

/// Whether a header's name is this one, which is in small letters, in whatever case it came. Of the bytes that a name may
/// have, only letters become one of these letters by this bit, and only a hyphen stays one.
fn is_named(came: &str, name: &str) -> bool {
    let differing =
        came.bytes().zip(name.bytes()).fold(0, |bits, (came, byte)| bits | ((came | 0x20) ^ byte));
    differing == 0 && came.len() == name.len()
}

fn digits(text: &[u8]) -> Option<usize> {
    std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()
}

/// The socket as hyper sees it: without the tries that the shortcut answers.
#[derive(Debug)]
pub struct Rest<S>(Arc<Mutex<Shortcut<S>>>);

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Rest<S> {
    /// Where a request begins hyper has to wait: the shortcut looks at it first.
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let mut shortcut = self.0.lock();
        if !shortcut.kept.is_empty() {
            let some = shortcut.kept.len().min(buffer.remaining());
            buffer.put_slice(&shortcut.kept.split_to(some));
            return Poll::Ready(Ok(()));
        }
        if shortcut.is_open() {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut shortcut.socket).poll_read(context, buffer))?;
        let came = buffer.filled().len() - before;
        if came > 0 {
            if let Way::Hyper { to_come } = shortcut.way {
                let to_come = to_come.checked_sub(came);
                shortcut.way = to_come.map_or(Way::Closed, |to_come| Way::Hyper { to_come });
            }
            shortcut.watch.bytes_came();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Rest<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let mut shortcut = self.0.lock();
        let written = Pin::new(&mut shortcut.socket).poll_write(context, bytes);
        shortcut.watch.wrote(&written);
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let mut shortcut = self.0.lock();
        let flushed = Pin::new(&mut shortcut.socket).poll_flush(context);
        if let Poll::Ready(Ok(())) = flushed {
            shortcut.watch.all_went();
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0.lock().socket).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let mut shortcut = self.0.lock();
        let written = Pin::new(&mut shortcut.socket).poll_write_vectored(context, buffers);
        shortcut.watch.wrote(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.0.lock().socket.is_write_vectored()
    }
}

/// A connection: the shortcut, and hyper as soon as there is something for it.
#[derive(Debug)]
pub struct Served<S, F, C> {
    /// Never contended: both sides are the connection's one task.
    shortcut: Arc<Mutex<Shortcut<S>>>,
    begin: Option<F>,
    hyper: Option<Pin<Box<C>>>,
}

impl<S, F: FnOnce(Rest<S>) -> C, C> Served<S, F, C> {
    /// `begin` makes what serves the rest.
    pub fn new(shortcut: Shortcut<S>, begin: F) -> Self {
        Self { shortcut: Arc::new(Mutex::new(shortcut)), begin: Some(begin), hyper: None }
    }
}

impl<S, F, C, E> Future for Served<S, F, C>
where
    S: AsyncRead + AsyncWrite + Unpin,
    F: FnOnce(Rest<S>) -> C + Unpin,
    C: Future<Output = Result<(), E>>,
    E: From<std::io::Error>,
{
    type Output = Result<(), E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            if ready!(self.shortcut.lock().poll_tries(context))? == Next::End {
                return Poll::Ready(Ok(()));
            }
            if let Some(begin) = self.begin.take() {
                let rest = Rest(Arc::clone(&self.shortcut));
                self.hyper = Some(Box::pin(begin(rest)));
            }
            if let Some(hyper) = &mut self.hyper
                && let Poll::Ready(ended) = hyper.as_mut().poll(context)
            {
                return Poll::Ready(ended);
            }
            // Hyper was told to wait where a request begins; now the shortcut waits for it.
            if !self.shortcut.lock().is_open() {
                return Poll::Pending;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRY: &str = "POST /api/v1/offers/abc/orders HTTP/1.1\r\nHost: shop\r\n";
    const JSON: &str = "Content-Type: application/json\r\n";

    #[test]
    fn a_headers_name_is_the_same_in_any_case_and_no_other_is() {
        for name in ["content-type", "upgrade"] {
            assert!(is_named(name, name) && is_named(&name.to_uppercase(), name));
            for place in 0..name.len() {
                for byte in b"!#$%&'*+-.^_`|~0189AZaz" {
                    let mut came = name.as_bytes().to_vec();
                    came[place] = *byte;
                    let came = String::from_utf8(came).unwrap();
                    assert_eq!(is_named(&came, name), came.eq_ignore_ascii_case(name), "{came}");
                }
            }
        }
        assert!(
            !is_named("upgrad", "upgrade") && !is_named("upgrades", "upgrade") && !is_named("", "upgrade")
        );
    }

    #[test]
    fn a_whole_plain_try_is_recognised() {
        for headers in [
            "Content-Length: 2\r\n",
            "content-length: 2\r\nConnection: keep-alive\r\nX-Forwarded-For: 192.0.2.1\r\n",
            "CONTENT-LENGTH: 2\r\nAuthorization: Bearer x\r\nCookie: a=b\r\n",
        ] {
            let bytes = format!("{TRY}{JSON}{headers}\r\n{{}}");
            assert_eq!(arrived(bytes.as_bytes()), Arrived::Try { offer: "abc", body: b"{}" }, "{headers}");
        }
        let with_charset =
            format!("{TRY}content-type: Application/JSON; charset=utf-8\r\ncontent-length: 2\r\n\r\n{{}}");
        assert!(matches!(arrived(with_charset.as_bytes()), Arrived::Try { .. }));
    }

    #[test]
    fn whatever_else_has_an_end_is_left_to_hyper_up_to_there() {
        let corpus = [
            ("GET /healthz HTTP/1.1\r\n\r\n".to_owned(), 0),
            (format!("{TRY}{JSON}Content-Length: 5\r\n\r\n{{}}"), 3),
            (format!("{TRY}{JSON}Content-Length: 0\r\nPrefer: wait=2\r\n\r\n"), 0),
            (format!("{TRY}{JSON}\r\n"), 0),
            (format!("{TRY}Content-Length: 2\r\n\r\n{{}}"), 0),
            (format!("{TRY}Content-Type: text/plain\r\n{JSON}Content-Length: 2\r\n\r\n{{}}"), 0),
            (format!("{TRY}Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{{}}"), 0),
            (format!("{TRY}{JSON}Content-Length: 2\r\nExpect: 100-continue\r\n\r\n{{}}"), 0),
            (format!("{TRY}{JSON}Content-Length: 2\r\nConnection: close\r\n\r\n{{}}"), 0),
            (format!("{TRY}{JSON}Content-Length: 2\r\n\r\n{{}}").replace("POST", "PUT"), 0),
            (format!("{TRY}{JSON}Content-Length: 2\r\n\r\n{{}}").replace("/orders", "/pass"), 0),
        ];
        for (bytes, to_come) in corpus {
            assert_eq!(arrived(bytes.as_bytes()), Arrived::Other { to_come }, "{bytes}");
        }
    }

    #[test]
    fn where_the_end_is_unclear_the_shortcut_closes() {
        let many: String = (0..=HEADERS_MAX).map(|number| format!("X-{number}: y\r\n")).collect();
        for bytes in [
            "POST /api/v1/offers/abc/ord".to_owned(),
            format!("{TRY}{JSON}"),
            format!("{TRY}{JSON}Content-Length: 2\r\n\r\n{{}}G"),
            format!("{TRY}{JSON}Content-Length: 2\r\nContent-Length: 2\r\n\r\n{{}}"),
            format!("{TRY}{JSON}Content-Length: +2\r\n\r\n{{}}"),
            format!("{TRY}{JSON}Content-Length: \r\n\r\n{{}}"),
            format!("{TRY}{JSON}Content-Length: 99999999999999999999\r\n\r\n{{}}"),
            format!("{TRY}{JSON}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            format!("{TRY}{JSON}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{{}}"),
            format!("{TRY}{JSON}Content-Length: 2\r\nUpgrade: websocket\r\n\r\n{{}}"),
            format!("{TRY}{JSON}Content-Length: 2\r\n\r\n{{}}").replace("1.1", "1.0"),
            format!("{TRY}{JSON}{many}Content-Length: 2\r\n\r\n{{}}"),
            "CONNECT shop:443 HTTP/1.1\r\n\r\n".to_owned(),
            "\0\r\n\r\n".to_owned(),
        ] {
            assert_eq!(arrived(bytes.as_bytes()), Arrived::Unclear, "{bytes}");
        }
    }
}
