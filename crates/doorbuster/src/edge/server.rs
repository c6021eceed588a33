//! Sockets: one thread per core, on each the shortcut and behind it hyper's HTTP/1.
//!
//! Every connection has a deadline that a watchman looks at: a head that does not arrive, an answer that is not read,
//! a connection nobody uses. So a slow client costs a slot for seconds, and a fast one costs no timer per request.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use http::header::{CONNECTION, HeaderValue};
use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rules::wire::Code;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::AbortHandle;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::accept::{self, Arrivals, Hallway, NewSocket};
use super::answer::{self, Body};
use super::buy;
use super::buyer::EVENTS_PATH;
use super::limits::{Class, OPERATOR_CONNECTIONS_MAX};
use super::router::{self, Routers};
use super::shortcut::{Served, Shortcut};
use super::watch::{Doing, Watch, WatchedBody};
use crate::app::App;
use crate::queue::JournalHandle;
use crate::queue::reply::Postman;
use crate::telemetry::metrics::{Answered, RequestClass, Shed, StatusClass};

/// How often the watchman looks, in milliseconds.
const WATCH_EVERY_MS: u64 = 250;

/// Which calls a listener answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// Buyers and operators share one listener.
    Everybody,
    /// Buyers only: operators have a listener of their own.
    Buyers,
    /// Operators only.
    Operators,
}

/// The running edge.
#[derive(Debug)]
pub struct EdgeHandle {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) app: Arc<App>,
    routers: Routers,
    draining: Arc<AtomicBool>,
    /// Set when the drain is over: what is still open is cut.
    over: AtomicBool,
    /// Those of the buyers' listener, which is everybody's when operators have none of their own.
    places: Places,
    operator_places: Places,
}

/// The connections of a listener.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) open: AtomicUsize,
    pub(super) max: usize,
}

impl Places {
    pub(super) fn new(max: usize) -> Self {
        Self { open: AtomicUsize::new(0), max }
    }
}

impl Shared {
    pub(super) fn places(&self, audience: Audience) -> &Places {
        match audience {
            Audience::Everybody | Audience::Buyers => &self.places,
            Audience::Operators => &self.operator_places,
        }
    }

    /// Connections of all listeners.
    fn open(&self) -> usize {
        let open = |places: &Places| places.open.load(Ordering::Acquire);
        open(&self.places) + open(&self.operator_places)
    }
}

/// Starts the edge's threads and its accept loops.
pub fn start(
    app: &Arc<App>,
    listener: TcpListener,
    operator: Option<TcpListener>,
) -> anyhow::Result<EdgeHandle> {
    let limits = &app.settings.limits;
    let shared = Arc::new(Shared {
        app: Arc::clone(app),
        routers: router::build(app),
        draining: Arc::default(),
        over: AtomicBool::new(false),
        places: Places::new(limits.connections_with(open_files_limit())),
        operator_places: Places::new(OPERATOR_CONNECTIONS_MAX),
    });
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let count = if app.settings.edge_threads == 0 { cores } else { app.settings.edge_threads };
    let mut threads = Vec::with_capacity(count);
    let mut workers = Vec::with_capacity(count);
    for number in 0..count {
        let tasks = TaskTracker::new();
        let (hallway, arrivals) = Hallway::new(tasks.clone());
        let shared = Arc::clone(&shared);
        let runtime = runtime_known_to(&app.gate.journal)?;
        let serving = app.gate.journal.join();
        let run = move || {
            runtime.block_on(serve(shared, arrivals, tasks));
            drop(serving);
        };
        threads.push(std::thread::Builder::new().name(format!("edge-{number}")).spawn(run)?);
        workers.push(hallway);
    }
    let public = if operator.is_some() { Audience::Buyers } else { Audience::Everybody };
    accept::spawn(&shared, listener, public, workers.clone());
    if let Some(operator) = operator {
        accept::spawn(&shared, operator, Audience::Operators, workers);
    }
    Ok(EdgeHandle { shared, threads })
}

/// The runtime of one thread. The journal hears when the thread has nothing to do, and when it has again.
fn runtime_known_to(journal: &JournalHandle) -> std::io::Result<tokio::runtime::Runtime> {
    let (begins, ends) = (journal.clone(), journal.clone());
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || ends.work_ends())
        .on_thread_unpark(move || begins.work_begins())
        .build()
}

fn open_files_limit() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX)
}

impl EdgeHandle {
    /// Lets requests under way end, for at most `patience`, then cuts what is left.
    pub async fn drain(&mut self, patience: Duration) {
        self.shared.draining.store(true, Ordering::Release);
        let all_gone = async {
            while self.shared.open() > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(patience, all_gone).await.is_err() {
            tracing::warn!(connections = self.shared.open(), "cut at the end of the drain");
        }
        self.shared.over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            tokio::task::spawn_blocking(move || thread.join()).await.ok();
        }
    }
}

/// The connections of one thread, with the means to end them.
type Watched = Vec<(Arc<Watch>, AbortHandle)>;

/// One edge thread: serves its sockets and watches them.
async fn serve(shared: Arc<Shared>, mut arrivals: Arrivals, tasks: TaskTracker) {
    tasks.spawn(Postman::employ());
    let local = Arc::new(Local(Arc::clone(&shared)));
    let mut watched = Watched::default();
    let now_ms = Arc::new(AtomicU64::new(0));
    let mut ticks = tokio::time::interval(Duration::from_millis(WATCH_EVERY_MS));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            socket = arrivals.next(&tasks) => {
                let watch = Arc::new(Watch::new(Arc::clone(&now_ms)));
                let slot = Slot { shared: Arc::clone(&shared), audience: socket.audience };
                match serve_socket(&local, socket, slot, Arc::clone(&watch), &tasks) {
                    Ok(abort) => watched.push((watch, abort)),
                    Err(error) => tracing::debug!(%error, "a socket could not be set up"),
                }
            }
            _ = ticks.tick() => {
                // Counted in rounds, not by a clock: when this thread was busy for longer than a limit, nobody else is
                // late for that.
                let round_ms = now_ms.fetch_add(WATCH_EVERY_MS, Ordering::Relaxed).saturating_add(WATCH_EVERY_MS);
                look_around(&shared, &mut watched, round_ms);
                shared.app.metrics.connections_open.set(i64::try_from(shared.open()).unwrap_or(i64::MAX));
                if shared.over.load(Ordering::Acquire) {
                    return;
                }
            }
        }
    }
}

fn look_around(shared: &Shared, watched: &mut Watched, now_ms: u64) {
    let limits = &shared.app.settings.limits;
    let draining = shared.draining.load(Ordering::Acquire);
    let over = shared.over.load(Ordering::Acquire);
    watched.retain(|(watch, task)| {
        if task.is_finished() {
            return false;
        }
        let (doing, since_ms) = watch.get();
        let limit_s = match doing {
            Doing::Idle if draining => 0,
            Doing::Idle => limits.idle_timeout_s,
            Doing::Head => limits.header_timeout_s,
            Doing::Sending | Doing::Stuck if over => 0,
            Doing::Sending | Doing::Stuck => limits.idle_timeout_s,
            Doing::Working if over => 0,
            Doing::Working => return true,
        };
        let late = now_ms.saturating_sub(since_ms) >= u64::from(limit_s) * 1_000;
        if late {
            task.abort();
        }
        !late
    });
}

/// A connection's slot for those who go on with it after its task has ended (a WebSocket): while they keep it, the
/// connection counts as open and the drain waits for them.
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "kept for its drop")]
pub struct OpenConnection(Arc<Slot>);

/// Returns the connection's slot, however its task ends.
#[derive(Debug)]
struct Slot {
    shared: Arc<Shared>,
    audience: Audience,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.shared.places(self.audience).open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One thread's handle to what all share. Counted per thread: a count that all threads move would be where they meet.
struct Local(Arc<Shared>);

fn serve_socket(
    local: &Arc<Local>,
    socket: NewSocket,
    slot: Slot,
    watch: Arc<Watch>,
    tasks: &TaskTracker,
) -> anyhow::Result<AbortHandle> {
    let stream = TcpStream::from_std(socket.stream).context("cannot register the socket")?;
    stream.set_nodelay(true)?;
    let shared = &local.0;
    let limits = &shared.app.settings.limits;
    let mut http = hyper::server::conn::http1::Builder::new();
    http.max_buf_size(limits.header_bytes.max(8_192)).half_close(false);
    let (app, draining) = (Arc::clone(&shared.app), Arc::clone(&shared.draining));
    let tries = socket.audience != Audience::Operators;
    let shortcut = Shortcut::new(stream, Arc::clone(&watch), app, draining, tries);
    let slot = Arc::new(slot);
    let (peer, audience) = (socket.peer.ip(), socket.audience);
    let (service_local, service_slot) = (Arc::clone(local), Arc::clone(&slot));
    let connection = Served::new(shortcut, move |rest| {
        let service = service_fn(move |mut request: Request<Incoming>| {
            let (local, watch) = (Arc::clone(&service_local), Arc::clone(&watch));
            if request.uri().path() == EVENTS_PATH {
                request.extensions_mut().insert(OpenConnection(Arc::clone(&service_slot)));
            }
            async move { Ok::<_, Infallible>(dispatch(&local.0, request, peer, audience, watch).await) }
        });
        let served = http.serve_connection(TokioIo::new(rest), service).with_upgrades();
        async move { served.await.map_err(anyhow::Error::from) }
    });
    let task = tasks.spawn(async move {
        let _slot = slot;
        if let Err(error) = connection.await {
            tracing::trace!(%error, "a connection ended early");
        }
    });
    Ok(task.abort_handle())
}

async fn dispatch(
    shared: &Arc<Shared>,
    request: Request<Incoming>,
    peer: IpAddr,
    audience: Audience,
    watch: Arc<Watch>,
) -> Response<WatchedBody> {
    watch.set(Doing::Working);
    let app = &shared.app;
    let is_try = audience != Audience::Operators
        && request.method() == Method::POST
        && buy::offer_of(request.uri().path()).is_some();
    let (class, mut response) = if is_try {
        (RequestClass::Buyer, attempt(app, request, peer).await)
    } else {
        // Boxed: what all other calls may need must not weigh on every try, whose future is moved into place.
        Box::pin(router::route(app, &shared.routers, audience, peer, request)).await
    };
    app.metrics.requests.inc(Answered(class, StatusClass::of(response.status().as_u16())));
    if shared.draining.load(Ordering::Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response.map(|body| WatchedBody { body, watch })
}

async fn attempt(app: &Arc<App>, request: Request<Incoming>, peer: IpAddr) -> Response<Body> {
    let Ok(permit) = app.in_flight.enter(Class::Buyer) else {
        app.metrics.shed.inc(Shed::InFlight);
        return answer::refuse(Code::Busy);
    };
    let (parts, body) = request.into_parts();
    if app.settings.telemetry.otlp_endpoint.is_some() {
        let span = tracing::trace_span!("try");
        return Box::pin(buy::buy(app, parts, peer, body, Some(permit)).instrument(span)).await;
    }
    buy::buy(app, parts, peer, body, Some(permit)).await
}
