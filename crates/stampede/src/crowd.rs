//! Many simulated buyers at once: how many, how they come, and what they share (sockets, solvers, counters). What one
//! of them does is in `person`; whether what they were told holds together is for `verdict`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use hdrhistogram::Histogram;
use jsonwebtoken::EncodingKey;
use rules::id::SaleId;
use rules::time::UnixMs;
use rules::wire::Code;
use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};
use tokio::task::JoinSet;

use crate::blast::LATENCY_US_MAX;
use crate::clock::{Clock, micros};
use crate::connection::{CallError, Connection, Request, Timeouts};
use crate::history::History;
use crate::person::{self, Person};
use crate::scenario::{Arrival, Kind, Loop, PATIENCE, Wanted, check_mix};

/// A try that goes out this much after it was due was still in time: a timer's tick and a busy moment.
pub const IN_TIME: Duration = Duration::from_millis(100);

/// With fewer tries in time, in percent, what was measured is the crowd and not the server.
pub const IN_TIME_PERCENT_MIN: u64 = 95;

/// How long a signed token lasts, in milliseconds: longer than any sale is rehearsed.
const TOKEN_LIFE_MS: i64 = 24 * 3_600_000;

/// How the buyers prove who they are.
#[derive(Clone)]
pub enum Tokens {
    /// The demo's login gives a token to everybody.
    Demo,
    /// Signed here (HS256) with the shop's secret, for the issuer and the audience the shop asks for.
    Signed { secret: Vec<u8>, issuer: Option<String>, audience: Option<String> },
    /// Made by the shop, one per buyer.
    Given(Arc<[GivenToken]>),
}

impl Tokens {
    /// Signed with `secret`, for a shop that asks for no issuer and no audience.
    #[must_use]
    pub fn signed(secret: &[u8]) -> Self {
        Self::Signed { secret: secret.to_vec(), issuer: None, audience: None }
    }
}

/// A token and whose it is.
#[derive(Clone)]
pub struct GivenToken {
    pub buyer: String,
    pub token: Arc<str>,
}

impl std::fmt::Debug for Tokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Demo => "Demo",
            Self::Signed { .. } => "Signed { … }",
            Self::Given(_) => "Given(…)",
        })
    }
}

impl std::fmt::Debug for GivenToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GivenToken {{ buyer: {:?}, token: … }}", self.buyer)
    }
}

/// A crowd.
#[derive(Clone, Debug)]
pub struct CrowdSettings {
    pub addr: SocketAddr,
    /// The `Host` header.
    pub host: String,
    pub sale: SaleId,
    pub tokens: Tokens,
    pub buyers: u32,
    /// Buyers are called this and a number, unless their tokens say otherwise.
    pub name: String,
    pub wanted: Wanted,
    /// Who they are.
    pub mix: Vec<Kind>,
    /// When they come.
    pub arrival: Arrival,
    /// How long after the start the curve begins: at the opening, or at once where it is open already.
    pub opens_in: Duration,
    /// Everybody comes before the opening to sign up, whenever the try is due.
    pub signs_up: bool,
    /// Sockets at a time, of all buyers. At most half of them wait in long polls and streams; at most half of those are kept
    /// open with the page.
    pub connections: usize,
    /// Tries per buyer who listens; each waits as told by the answer before.
    pub tries_max: u32,
    /// Proofs of work solved at a time: more than there are cores only makes each slower.
    pub solvers: usize,
    /// How long a buyer bears with a page that does not come, and with an order that stays queued.
    pub patience: Duration,
    /// A try without an answer may still be on its way through the server: how long to wait before the last looks
    /// where there was one.
    pub settle: Duration,
    /// The same seed makes the same choices.
    pub seed: u64,
    pub timeouts: Timeouts,
}

impl CrowdSettings {
    /// A plain crowd of `buyers` for `sale`, all at once.
    #[must_use]
    pub fn new(addr: SocketAddr, sale: SaleId, tokens: Tokens, buyers: u32) -> Self {
        let none = Duration::ZERO;
        let at_once = Arrival { within: none, pages_ahead: none, passes_ahead: none, ..Arrival::default() };
        Self {
            addr,
            host: addr.to_string(),
            sale,
            tokens,
            buyers,
            name: "buyer-".into(),
            wanted: Wanted::Spread,
            mix: vec![Kind::default()],
            arrival: at_once,
            opens_in: none,
            signs_up: false,
            connections: 512,
            tries_max: 10,
            solvers: cores(),
            patience: PATIENCE,
            settle: Duration::from_secs(1),
            seed: 1,
            timeouts: Timeouts::default(),
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.connections > 0, "the crowd needs at least one connection");
        ensure!(self.tries_max > 0, "a buyer needs at least one try");
        ensure!(self.solvers > 0, "a crowd needs at least one solver of challenges");
        if let Tokens::Given(tokens) = &self.tokens {
            let (have, need) = (tokens.len(), self.buyers);
            let enough = u32::try_from(have).is_ok_and(|have| have >= need);
            ensure!(enough, "there are {have} tokens for {need} buyers; bring more tokens or fewer buyers");
        }
        check_mix(&self.mix)
    }
}

/// A crowd that can be let loose, and watched while it runs.
#[derive(Debug)]
pub struct Crowd {
    scene: Arc<Scene>,
}

impl Crowd {
    /// Must be called inside a tokio runtime. Its clock starts now.
    pub fn new(settings: CrowdSettings) -> anyhow::Result<Self> {
        settings.check()?;
        let signer = Signer::of(&settings.tokens);
        let scene = Scene {
            clock: Clock::start(),
            pool: Arc::new(Pool::new(settings.addr, settings.timeouts, settings.connections)),
            lines: Mutex::default(),
            progress: Arc::new(Progress::new()?),
            solvers: Semaphore::new(settings.solvers),
            called_off: watch::Sender::new(false),
            signer,
            settings,
        };
        Ok(Self { scene: Arc::new(scene) })
    }

    #[cfg(test)]
    pub(crate) fn scene(&self) -> Arc<Scene> {
        Arc::clone(&self.scene)
    }

    /// Counters to read while it runs.
    #[must_use]
    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.scene.progress)
    }

    /// The clock of the histories.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.scene.clock
    }

    /// Sends everybody home, with what they have been told so far. Nobody looks once more, and [`Crowd::run`] ends.
    pub fn call_off(&self) {
        self.scene.called_off.send_replace(true);
    }

    /// Lets everybody in and waits until the last has gone; then each order that was promised, or may have been
    /// made, is looked at once more.
    pub async fn run(&self) -> anyhow::Result<Outcome> {
        let lived = match self.scene.settings.arrival.paced {
            Loop::Open => self.let_in_by_the_clock().await?,
            Loop::Closed => self.let_in_one_by_one().await?,
        };
        let elapsed = self.scene.clock.elapsed();
        // What the buyers did is counted; the last looks are ours.
        let totals = self.scene.progress.snapshot();
        if lived.iter().any(|person| person.history.has_open_try()) {
            let settled = self.scene.clock.instant() + self.scene.settings.settle;
            self.scene.sleep_until(settled).await;
        }
        let mut people = look_again(lived).await?;
        people.sort_unstable_by_key(|person| person.number);
        Ok(Outcome {
            started_at: self.scene.clock.started_at(),
            elapsed,
            totals,
            kinds: people.iter().map(Person::kind_position).collect(),
            histories: people.into_iter().map(|person| person.history).collect(),
        })
    }

    /// Persons exist only from their arrival on, so that a late crowd takes no room early.
    async fn let_in_by_the_clock(&self) -> anyhow::Result<Vec<Person>> {
        let arrival = |number| (person::arrives_after(&self.scene, number), number);
        let mut schedule: Vec<(Duration, u32)> = (0..self.scene.settings.buyers).map(arrival).collect();
        schedule.sort_unstable();
        let mut people = JoinSet::new();
        let mut lived = Vec::with_capacity(schedule.len());
        for (after, number) in schedule {
            if self.scene.sleep_until(self.scene.clock.instant_at(after)).await {
                break;
            }
            people.spawn(person::live(Arc::clone(&self.scene), number));
            while let Some(person) = people.try_join_next() {
                lived.push(person.context(PANICKED)?);
            }
        }
        collect(people, &mut lived).await?;
        Ok(lived)
    }

    async fn let_in_one_by_one(&self) -> anyhow::Result<Vec<Person>> {
        let at_once = usize::try_from(self.scene.settings.arrival.at_once).unwrap_or(usize::MAX);
        let mut people = JoinSet::new();
        let mut lived = Vec::new();
        for number in 0..self.scene.settings.buyers {
            if self.scene.is_called_off() {
                break;
            }
            if people.len() >= at_once
                && let Some(person) = people.join_next().await
            {
                lived.push(person.context(PANICKED)?);
            }
            people.spawn(person::live(Arc::clone(&self.scene), number));
        }
        collect(people, &mut lived).await?;
        Ok(lived)
    }
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

const PANICKED: &str = "a simulated buyer panicked";

/// The look after everything is over, for whoever was promised something.
async fn look_again(lived: Vec<Person>) -> anyhow::Result<Vec<Person>> {
    let (to_look, mut looked): (Vec<_>, Vec<_>) =
        lived.into_iter().partition(|person| !person.history.to_look_at().is_empty());
    let mut looking = JoinSet::new();
    for person in to_look {
        looking.spawn(person::look_once_more(person));
    }
    collect(looking, &mut looked).await?;
    Ok(looked)
}

async fn collect(mut people: JoinSet<Person>, lived: &mut Vec<Person>) -> anyhow::Result<()> {
    while let Some(person) = people.join_next().await {
        lived.push(person.context(PANICKED)?);
    }
    Ok(())
}

/// How it went.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    pub started_at: UnixMs,
    /// Until the last buyer was done, the last looks not included.
    pub elapsed: Duration,
    pub totals: Snapshot,
    /// One per buyer, by number.
    pub histories: Vec<History>,
    /// Which kind of the mix each buyer was, in the same order.
    pub kinds: Vec<usize>,
}

/// Where the crowd stands, counted while it runs. Buyers are counted in `arrived`, `passes`, `queued`, `won` and
/// `gone`, calls everywhere else.
#[derive(Debug)]
pub struct Progress {
    pub(crate) arrived: AtomicU64,
    pub(crate) passes: AtomicU64,
    pub(crate) tries: AtomicU64,
    pub(crate) queued: AtomicU64,
    pub(crate) won: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) gave_up: AtomicU64,
    pub(crate) gone: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) late_passes: AtomicU64,
    pub(crate) watchers: AtomicU64,
    pub(crate) no_room: AtomicU64,
    pub(crate) in_time: AtomicU64,
    pub(crate) paid: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) no_payment: AtomicU64,
    pub(crate) not_late: AtomicU64,
    pub(crate) awake: AtomicU64,
    pub(crate) solving_us: AtomicU64,
    /// By position in `Code::ALL`; what is no code of ours comes last.
    refused: Vec<AtomicU64>,
    latency: Mutex<Latency>,
}

#[derive(Debug)]
struct Latency {
    click_us: Histogram<u64>,
    call_us: Histogram<u64>,
    late_us: Histogram<u64>,
    queued_us: Histogram<u64>,
}

impl Progress {
    fn new() -> anyhow::Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
        Ok(Self {
            arrived: AtomicU64::default(),
            passes: AtomicU64::default(),
            tries: AtomicU64::default(),
            queued: AtomicU64::default(),
            won: AtomicU64::default(),
            errors: AtomicU64::default(),
            gave_up: AtomicU64::default(),
            gone: AtomicU64::default(),
            calls: AtomicU64::default(),
            late_passes: AtomicU64::default(),
            watchers: AtomicU64::default(),
            no_room: AtomicU64::default(),
            in_time: AtomicU64::default(),
            paid: AtomicU64::default(),
            cancelled: AtomicU64::default(),
            no_payment: AtomicU64::default(),
            not_late: AtomicU64::default(),
            awake: AtomicU64::default(),
            solving_us: AtomicU64::default(),
            refused: (0..=Code::ALL.len()).map(|_| AtomicU64::default()).collect(),
            latency: Mutex::new(Latency {
                click_us: histogram()?,
                call_us: histogram()?,
                late_us: histogram()?,
                queued_us: histogram()?,
            }),
        })
    }

    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let names = Code::ALL.iter().map(|code| code.as_str()).chain(["other"]);
        let counts = self.refused.iter().map(|count| count.load(Ordering::Relaxed));
        let refused = names.zip(counts).filter(|(_, count)| *count > 0);
        let refused = refused.map(|(name, count)| (name.to_owned(), count)).collect();
        let latency = self.latency();
        Snapshot {
            arrived: self.arrived.load(Ordering::Relaxed),
            passes: self.passes.load(Ordering::Relaxed),
            tries: self.tries.load(Ordering::Relaxed),
            queued: self.queued.load(Ordering::Relaxed),
            won: self.won.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            gave_up: self.gave_up.load(Ordering::Relaxed),
            gone: self.gone.load(Ordering::Relaxed),
            calls: self.calls.load(Ordering::Relaxed),
            late_passes: self.late_passes.load(Ordering::Relaxed),
            watchers: self.watchers.load(Ordering::Relaxed),
            no_room: self.no_room.load(Ordering::Relaxed),
            in_time: self.in_time.load(Ordering::Relaxed),
            paid: self.paid.load(Ordering::Relaxed),
            cancelled: self.cancelled.load(Ordering::Relaxed),
            no_payment: self.no_payment.load(Ordering::Relaxed),
            not_late: self.not_late.load(Ordering::Relaxed),
            awake: self.awake.load(Ordering::Relaxed),
            solving_us: self.solving_us.load(Ordering::Relaxed),
            refused,
            click: Percentiles::of(&latency.click_us),
            call: Percentiles::of(&latency.call_us),
            late: Percentiles::of(&latency.late_us),
            socket_wait: Percentiles::of(&latency.queued_us),
        }
    }

    pub(crate) fn count_refusal(&self, code: &str) {
        let position = Code::ALL.iter().position(|known| known.as_str() == code);
        if let Some(count) = self.refused.get(position.unwrap_or(Code::ALL.len())) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn count_try(&self, reply: &Reply) {
        if reply.sent.saturating_duration_since(reply.possible) <= IN_TIME {
            count(&self.in_time);
        }
        if reply.woke.saturating_duration_since(reply.possible) <= IN_TIME {
            count(&self.awake);
        }
        let mut latency = self.latency();
        let mut record = |histogram: fn(&mut Latency) -> &mut Histogram<u64>, from: Instant, to: Instant| {
            histogram(&mut latency).saturating_record(micros(to.saturating_duration_since(from)));
        };
        record(|latency| &mut latency.click_us, reply.asked, reply.told);
        record(|latency| &mut latency.call_us, reply.sent, reply.told);
        record(|latency| &mut latency.late_us, reply.possible, reply.woke);
        record(|latency| &mut latency.queued_us, reply.woke, reply.sent);
    }

    fn latency(&self) -> MutexGuard<'_, Latency> {
        self.latency.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// [`Progress`] at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Buyers who came.
    pub arrived: u64,
    /// Buyers who got a pass.
    pub passes: u64,
    /// POSTs of orders.
    pub tries: u64,
    /// Buyers who were told of an order of theirs.
    pub queued: u64,
    /// Buyers who saw their order recorded.
    pub won: u64,
    /// Calls without an answer.
    pub errors: u64,
    pub gave_up: u64,
    /// Buyers who are done.
    pub gone: u64,
    /// Calls that were answered.
    pub calls: u64,
    /// Buyers who had no pass yet at the moment they wanted to try.
    pub late_passes: u64,
    /// Buyers who follow by a WebSocket or an event stream, which they open with the page.
    #[serde(default)]
    pub watchers: u64,
    /// Of them, those for whom the crowd had no socket to spare that early: they open theirs once they have an order.
    #[serde(default)]
    pub no_room: u64,
    /// POSTs of orders that were sent when they were due, give or take [`IN_TIME`].
    pub in_time: u64,
    /// Buyers who saw their order paid.
    pub paid: u64,
    /// Buyers who gave their order back.
    pub cancelled: u64,
    /// Buyers who wanted to pay at a server that does not know payments.
    pub no_payment: u64,
    /// Buyers who wanted to pay late, and would have had to wait for it beyond their patience.
    #[serde(default)]
    pub not_late: u64,
    /// POSTs of orders that the crowd got round to when they were due, give or take [`IN_TIME`], with or without a
    /// free socket.
    #[serde(default)]
    pub awake: u64,
    /// CPU time of the proofs of work, in microseconds.
    #[serde(default)]
    pub solving_us: u64,
    /// Refused calls by code.
    pub refused: BTreeMap<String, u64>,
    /// POSTs of orders from the moment they were due to the answer, every wait included, also that for a late pass.
    pub click: Percentiles,
    /// POSTs of orders from the socket in hand to the answer.
    pub call: Percentiles,
    /// How late the crowd itself noticed that a POST was due: its own slowness.
    pub late: Percentiles,
    /// How long POSTs waited for a free socket.
    pub socket_wait: Percentiles,
}

/// In microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    pub count: u64,
    pub p50_us: u64,
    pub p90_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
}

impl Percentiles {
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            count: histogram.len(),
            p50_us: histogram.value_at_quantile(0.50),
            p90_us: histogram.value_at_quantile(0.90),
            p99_us: histogram.value_at_quantile(0.99),
            max_us: histogram.max(),
        }
    }
}

/// What all buyers share.
#[derive(Debug)]
pub(crate) struct Scene {
    pub settings: CrowdSettings,
    pub clock: Clock,
    pub progress: Arc<Progress>,
    pub solvers: Semaphore,
    /// Whether everybody is to go home.
    called_off: watch::Sender<bool>,
    pub signer: Option<Signer>,
    pub pool: Arc<Pool>,
    /// Sockets and streams that are open for somebody; each ends when its person no longer listens.
    lines: Mutex<JoinSet<()>>,
}

/// When a call is due.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Due {
    /// When the person wants to make it: its latency counts from there, whoever was late.
    pub wanted: Instant,
    /// The earliest moment at which it can be made: a try needs a pass. What comes after that is the crowd's own lateness.
    pub possible: Instant,
}

impl From<Instant> for Due {
    fn from(at: Instant) -> Self {
        Self { wanted: at, possible: at }
    }
}

/// Signs as the shop would.
pub(crate) struct Signer {
    key: EncodingKey,
    issuer: Option<String>,
    audience: Option<String>,
}

#[derive(Serialize)]
struct Claims<'a> {
    sub: &'a str,
    exp: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aud: Option<&'a str>,
}

impl Signer {
    pub fn of(tokens: &Tokens) -> Option<Self> {
        match tokens {
            Tokens::Demo | Tokens::Given(_) => None,
            Tokens::Signed { secret, issuer, audience } => Some(Self {
                key: EncodingKey::from_secret(secret),
                issuer: issuer.clone(),
                audience: audience.clone(),
            }),
        }
    }

    /// A token of `buyer`, by the server's clock. `None` cannot come of a key of bytes; unsigned, the server says what
    /// is missing.
    pub fn sign(&self, buyer: &str, now: UnixMs) -> Option<String> {
        let claims = Claims {
            sub: buyer,
            exp: now.plus_ms(TOKEN_LIFE_MS).0 / 1_000,
            iss: self.issuer.as_deref(),
            aud: self.audience.as_deref(),
        };
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &self.key).ok()
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Signer")
    }
}

/// One call and what came back.
#[derive(Debug)]
pub(crate) struct Reply {
    /// When it was due.
    pub asked: Instant,
    /// When it could be made, which may be later.
    pub possible: Instant,
    /// When the crowd got round to it.
    pub woke: Instant,
    /// When a socket was free for it.
    pub sent: Instant,
    pub told: Instant,
    pub result: Result<Heard, CallError>,
}

#[derive(Debug)]
pub(crate) struct Heard {
    pub status: u16,
    pub retry_after: Option<Duration>,
    pub body: Vec<u8>,
}

impl Scene {
    fn is_called_off(&self) -> bool {
        *self.called_off.borrow()
    }

    /// Waits until everybody is to go home.
    pub async fn called_off(&self) {
        // The other end is this scene's own, so there is one.
        let _ = self.called_off.subscribe().wait_for(|off| *off).await;
    }

    /// Whether everybody was called off meanwhile.
    async fn sleep_until(&self, until: Instant) -> bool {
        tokio::select! {
            biased;
            () = self.called_off() => true,
            () = tokio::time::sleep_until(until.into()) => false,
        }
    }

    /// Asks for something that was due at `due`, which is now or a little ago: that is what its latency counts from,
    /// whoever was late.
    pub async fn ask(&self, due: impl Into<Due>, request: &Request<'_>) -> Reply {
        // Boxed, here and below: only a call on its way takes the room of one, not everybody who sleeps.
        Box::pin(self.call(due.into(), request, self.settings.timeouts.answer)).await
    }

    /// For long polls, which have only a share of the sockets, so that they cannot keep the others from trying.
    pub async fn ask_and_wait(&self, request: &Request<'_>, wait: Duration) -> Reply {
        let due = self.clock.instant();
        let _share = self.pool.waits.acquire().await;
        Box::pin(self.call(due.into(), request, self.settings.timeouts.answer + wait)).await
    }

    /// Lets a socket or a stream be listened to beside its person.
    pub fn listen(&self, line: impl Future<Output = ()> + Send + 'static) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        while lines.try_join_next().is_some() {}
        lines.spawn(line);
    }

    /// Sends `percent` of a request's bytes and hangs up. Returns how many bytes that were.
    pub async fn hang_up(&self, request: &Request<'_>, percent: u8) -> Result<usize, CallError> {
        let (_permit, mut socket) = self.pool.take().await;
        request.render(&self.settings.host, &mut socket.request);
        let bytes = socket.request.len().saturating_mul(usize::from(percent)).div_ceil(100);
        socket.connection.hang_up(&socket.request, bytes).await?;
        self.pool.give_back(socket);
        Ok(bytes)
    }

    async fn call(&self, due: Due, request: &Request<'_>, within: Duration) -> Reply {
        let Due { wanted: asked, possible } = due;
        let woke = self.clock.instant();
        let (_permit, mut socket) = self.pool.take().await;
        let sent = self.clock.instant();
        request.render(&self.settings.host, &mut socket.request);
        let result = socket.connection.call_within(&socket.request, within).await.map(|answer| Heard {
            status: answer.status,
            retry_after: answer.retry_after,
            body: answer.body.to_vec(),
        });
        self.pool.give_back(socket);
        if result.is_ok() {
            count(&self.progress.calls);
        }
        Reply { asked, possible, woke, sent, told: self.clock.instant(), result }
    }
}

/// The crowd's sockets: thousands of buyers, a few hundred connections.
#[derive(Debug)]
pub(crate) struct Pool {
    addr: SocketAddr,
    timeouts: Timeouts,
    permits: Arc<Semaphore>,
    /// The share that may wait.
    waits: Arc<Semaphore>,
    /// Of it, the share that is kept open from the page on: the others must still be able to look.
    pages: Arc<Semaphore>,
    /// The last one used is the first one taken: the rest may idle and close.
    free: Mutex<Vec<Socket>>,
}

/// Room for a socket that is none of the pool's; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    _held: [Option<OwnedSemaphorePermit>; 3],
}

#[derive(Debug)]
struct Socket {
    connection: Connection,
    request: Vec<u8>,
}

impl Pool {
    fn new(addr: SocketAddr, timeouts: Timeouts, connections: usize) -> Self {
        let share = |sockets| Arc::new(Semaphore::new(sockets));
        let (permits, waits, pages) =
            (share(connections), share(connections.div_ceil(2)), share(connections / 4));
        Self { addr, timeouts, permits, waits, pages, free: Mutex::default() }
    }

    /// Room for a socket that waits for news, from the share of those who wait.
    pub async fn room_to_wait(&self) -> Room {
        let waits = Arc::clone(&self.waits).acquire_owned().await.ok();
        let socket = Arc::clone(&self.permits).acquire_owned().await.ok();
        Room { _held: [None, waits, socket] }
    }

    /// Room for a socket that is kept open from the page on, if there is any now.
    pub fn room_for_a_page(&self) -> Option<Room> {
        let now = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_owned().ok();
        let held = [now(&self.pages)?, now(&self.waits)?, now(&self.permits)?];
        Some(Room { _held: held.map(Some) })
    }

    /// Waits for room, then takes a socket. Dropped instead of given back, a socket is closed and makes room.
    async fn take(&self) -> (Option<SemaphorePermit<'_>>, Socket) {
        // Nobody closes this semaphore; were it closed, the cap would be the only thing lost.
        let permit = self.permits.acquire().await.ok();
        let free = self.free().pop();
        let new = || Socket { connection: Connection::new(self.addr, self.timeouts), request: Vec::new() };
        (permit, free.unwrap_or_else(new))
    }

    fn give_back(&self, socket: Socket) {
        self.free().push(socket);
    }

    fn free(&self) -> MutexGuard<'_, Vec<Socket>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use rules::order::State;
    use rules::sale::{ChallengeKind, RegistrationKind};

    use super::*;
    use crate::fake::{FakeShop, Manners, Pushes, SECRET};
    use crate::history::{Call, Told, What};

    fn settings(shop: &FakeShop, buyers: u32) -> CrowdSettings {
        let tokens = Tokens::signed(SECRET);
        let (settle, wanted) = (Duration::from_secs(1), Wanted::First);
        let (mix, connections) = (vec![human()], 8);
        let plain = CrowdSettings::new(shop.addr(), shop.sale(), tokens, buyers);
        CrowdSettings { mix, settle, wanted, connections, ..plain }
    }

    fn human() -> Kind {
        Kind { jitter: Duration::from_millis(5), ..Kind::default() }
    }

    async fn run(settings: CrowdSettings) -> Outcome {
        Crowd::new(settings).unwrap().run().await.unwrap()
    }

    fn winners(outcome: &Outcome) -> usize {
        let won =
            |history: &&History| history.orders().iter().any(|order| order.state == State::AwaitingPayment);
        outcome.histories.iter().filter(won).count()
    }

    fn told(outcome: &Outcome, wanted: impl Fn(&What) -> bool) -> usize {
        outcome.histories.iter().flat_map(|history| &history.events).filter(|told| wanted(&told.what)).count()
    }

    fn refusals(outcome: &Outcome, code: Code) -> u64 {
        outcome.totals.refused.get(code.as_str()).copied().unwrap_or(0)
    }

    #[tokio::test]
    async fn a_crowd_buys_all_there_is_and_hears_so() {
        let shop = FakeShop::open(Manners::default());
        let crowd = Crowd::new(settings(&shop, 50)).unwrap();
        let progress = crowd.progress();
        let outcome = crowd.run().await.unwrap();
        assert_eq!((winners(&outcome), shop.orders()), (10, 10));
        let totals = &outcome.totals;
        assert_eq!((totals.arrived, totals.passes, totals.tries, totals.gone), (50, 50, 50, 50));
        assert_eq!((totals.queued, totals.won, refusals(&outcome, Code::SoldOut)), (10, 10, 40));
        assert_eq!((totals.errors, totals.gave_up, totals.call.count), (0, 0, 50));
        assert!(totals.click.p50_us <= totals.click.p99_us && totals.click.p99_us <= totals.click.max_us);
        // The last looks are calls too, and come after the count.
        assert_eq!(Snapshot { calls: totals.calls, ..progress.snapshot() }, *totals);
        assert!(shop.connections() <= 8, "{}", shop.connections());
        assert_eq!(
            told(&outcome, |what| matches!(what, What::Looked { last: true, found: Some(_), .. })),
            10
        );
    }

    #[tokio::test]
    async fn buyers_log_in_at_the_demo_and_spread_over_the_offers() {
        let shop = FakeShop::open(Manners { stock: 5, ..Manners::default() });
        let mut settings = settings(&shop, 20);
        (settings.tokens, settings.wanted) = (Tokens::Demo, Wanted::Spread);
        let outcome = run(settings).await;
        assert_eq!(winners(&outcome), 10);
        assert!(shop.stats().offers.iter().all(|offer| offer.held == 5));
    }

    #[tokio::test]
    async fn a_crowd_waits_for_the_servers_clock() {
        let manners = Manners {
            opens_in: Duration::from_millis(400),
            clock_ahead_ms: 3_600_000,
            early_passes: 7,
            ..Manners::default()
        };
        let shop = FakeShop::open(manners);
        let outcome = run(settings(&shop, 5)).await;
        assert_eq!(winners(&outcome), 5);
        assert!((0..10_000).contains(&shop.earliest_ms()), "{}", shop.earliest_ms());
        assert!(refusals(&outcome, Code::NotOpen) >= 7);
    }

    #[tokio::test]
    async fn a_proof_of_work_is_solved_and_a_picture_is_not() {
        let shop = FakeShop::open(Manners { challenge: ChallengeKind::Pow, ..Manners::default() });
        assert_eq!(winners(&run(settings(&shop, 3)).await), 3);
        let shop = FakeShop::open(Manners { challenge: ChallengeKind::Picture, ..Manners::default() });
        let outcome = run(settings(&shop, 3)).await;
        assert_eq!((outcome.totals.gave_up, outcome.totals.passes), (3, 0));
    }

    #[tokio::test]
    async fn who_must_register_registers() {
        let shop = FakeShop::open(Manners { registration: RegistrationKind::Required, ..Manners::default() });
        let outcome = run(settings(&shop, 3)).await;
        assert_eq!(winners(&outcome), 3);
        assert_eq!(told(&outcome, |what| *what == What::Registered), 3);
    }

    #[tokio::test]
    async fn who_must_sign_up_comes_before_the_opening_however_late_the_try_is_due() {
        let (opens_in, within) = (Duration::from_secs(2), Duration::from_secs(4));
        let manners = Manners {
            registration: RegistrationKind::Required,
            registers_before: true,
            opens_in,
            ..Manners::default()
        };
        let shop = FakeShop::open(manners);
        let mut settings = settings(&shop, 20);
        (settings.opens_in, settings.signs_up) = (opens_in, true);
        // So early that all of the time until the opening is for signing up, and without it too late for some.
        settings.arrival = Arrival { within, pages_ahead: Duration::from_secs(10), ..settings.arrival };
        let outcome = run(settings).await;
        assert_eq!(told(&outcome, |what| *what == What::Registered), 20);
        assert_eq!((winners(&outcome), refusals(&outcome, Code::SoldOut)), (10, 10));
    }

    #[tokio::test]
    async fn to_hear_to_the_last_that_the_sale_is_paused_is_an_answer() {
        let shop = FakeShop::open(Manners { paused: true, ..Manners::default() });
        let outcome = run(CrowdSettings { tries_max: 2, ..settings(&shop, 3) }).await;
        assert_eq!(
            told(&outcome, |what| matches!(what, What::GaveUp { why } if why == "no order: paused")),
            3
        );
    }

    #[tokio::test]
    async fn to_be_told_busy_to_the_last_is_an_answer_and_silence_is_none() {
        let shop = FakeShop::open(Manners { busy_first: u32::MAX, ..Manners::default() });
        let outcome = run(CrowdSettings { tries_max: 2, ..settings(&shop, 3) }).await;
        assert_eq!(told(&outcome, |what| matches!(what, What::GaveUp { why } if why == "no order: busy")), 3);
        assert!(outcome.histories.iter().all(|history| history.unanswered().is_none()));
        let shop = FakeShop::open(Manners { deaf: true, ..Manners::default() });
        let outcome = run(CrowdSettings { tries_max: 2, ..settings(&shop, 3) }).await;
        let without = |what: &What| matches!(what, What::GaveUp { why } if why.contains("without an answer"));
        assert_eq!(told(&outcome, without), 3);
        assert!(outcome.histories.iter().all(|history| history.unanswered().is_some()));
    }

    #[tokio::test]
    async fn a_challenge_is_fetched_only_when_somebody_is_free_to_solve_it() {
        let shop = FakeShop::open(Manners { challenge: ChallengeKind::Pow, ..Manners::default() });
        let outcome = run(CrowdSettings { solvers: 1, ..settings(&shop, 30) }).await;
        assert_eq!((outcome.totals.passes, outcome.totals.gave_up), (30, 0));
        assert!(outcome.totals.solving_us > 0);
        assert_eq!(refusals(&outcome, Code::ChallengeFailed), 0);
        // One is being solved, a few solutions are on their way.
        let open = shop.challenges_open_max();
        assert!(open <= 10, "{open} of 30 challenges were given before the first was solved");
    }

    #[tokio::test]
    async fn waiting_for_a_solver_is_the_crowds_lateness_and_no_broken_promise() {
        let shop = FakeShop::open(Manners { challenge: ChallengeKind::Pow, ..Manners::default() });
        let ms = Duration::from_millis;
        let mut settings = settings(&shop, 3);
        (settings.patience, settings.arrival.pages_ahead) = (ms(500), ms(10));
        let crowd = Crowd::new(settings).unwrap();
        let scene = crowd.scene();
        // All solvers are busy with something else, for longer than anybody waits.
        let all = u32::try_from(scene.settings.solvers).unwrap();
        let busy = scene.solvers.acquire_many(all).await.unwrap();
        let outcome = crowd.run().await.unwrap();
        assert_eq!((outcome.totals.gave_up, outcome.totals.tries, outcome.totals.late_passes), (3, 0, 0));
        assert!(outcome.histories.iter().all(|history| history.unanswered().is_none()), "{outcome:?}");
        drop(busy);
        // Busy for a while: the tries go out late, and are counted so.
        let mut settings = scene.settings.clone();
        settings.patience = Duration::from_secs(60);
        let crowd = Crowd::new(settings).unwrap();
        let scene = crowd.scene();
        let busy = scene.solvers.acquire_many(all).await.unwrap();
        let asked_before = shop.requests();
        let free_again = async {
            // Everybody has asked for the page and the time, and now wants to solve.
            while shop.requests() < asked_before + 6 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            tokio::time::sleep(4 * IN_TIME).await;
            drop(busy);
        };
        let (outcome, ()) = tokio::join!(crowd.run(), free_again);
        let totals = outcome.unwrap().totals;
        assert_eq!((totals.tries, totals.awake, totals.in_time), (3, 0, 0), "{totals:?}");
        assert!(totals.late.p50_us > micros(IN_TIME), "{totals:?}");
    }

    #[tokio::test]
    async fn who_is_sent_home_keeps_what_was_told_so_far() {
        let shop = FakeShop::open(Manners { queued_looks: u32::MAX, ..Manners::default() });
        let mut settings = settings(&shop, 40);
        // Half of them come at once, the others over the next day.
        settings.mix = vec![Kind { fires: crate::scenario::Fires::Opening, ..human() }, human()];
        settings.arrival.within = Duration::from_secs(86_400);
        settings.arrival.curve = crate::scenario::Curve::Constant;
        let crowd = Crowd::new(settings).unwrap();
        let progress = crowd.progress();
        let called_off = async {
            while progress.snapshot().queued == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            crowd.call_off();
        };
        let (outcome, ()) = tokio::join!(crowd.run(), called_off);
        let outcome = outcome.unwrap();
        assert!(outcome.histories.len() < 40, "{}", outcome.histories.len());
        assert!(told(&outcome, |what| matches!(what, What::Order { .. })) > 0);
        assert_eq!(told(&outcome, |what| matches!(what, What::Looked { last: true, .. })), 0);
        let home =
            |what: &What| matches!(what, What::GaveUp { why } if why == "the crowd itself: broken off");
        assert!(told(&outcome, home) > 0);
        assert!(outcome.histories.iter().all(|history| history.unanswered().is_none()));
    }

    #[tokio::test]
    async fn a_try_that_was_on_its_way_when_all_were_sent_home_is_open() {
        let shop = FakeShop::open(Manners::default());
        let crowd = Crowd::new(CrowdSettings { connections: 2, ..settings(&shop, 1) }).unwrap();
        let mut person = Person::new(crowd.scene(), 0);
        let pass = What::Pass { offer: shop.offer(), order: rules::id::OrderId(9), expires_at: UnixMs(0) };
        person.note(crowd.clock().instant(), pass);
        let person = person::send_home_while_clicking(person);
        assert!(person.history.has_open_try(), "{:?}", person.history);
    }

    #[tokio::test]
    async fn who_wants_to_pay_late_and_cannot_wait_so_long_is_counted() {
        let shop = FakeShop::open(Manners { payments: true, ..Manners::default() });
        let late = Kind { pay_late: 1.0, decide_within: Duration::ZERO, ..human() };
        let outcome = run(CrowdSettings { mix: vec![late], ..settings(&shop, 4) }).await;
        assert_eq!((outcome.totals.won, outcome.totals.not_late, outcome.totals.paid), (4, 4, 0));
        assert_eq!(told(&outcome, |what| matches!(what, What::Paid { .. })), 0);
    }

    #[tokio::test]
    async fn what_is_busy_unsure_or_broken_is_tried_again_with_the_same_pass() {
        let manners = Manners { busy_first: 5, unsure_first: 4, break_first: 3, ..Manners::default() };
        let shop = FakeShop::open(manners);
        let outcome = run(settings(&shop, 10)).await;
        assert_eq!((winners(&outcome), shop.orders()), (10, 10));
        assert_eq!((refusals(&outcome, Code::Busy), refusals(&outcome, Code::Unsure)), (5, 4));
        assert_eq!(told(&outcome, |what| matches!(what, What::Broken { call: Call::Try, .. })), 3);
        assert_eq!(outcome.totals.tries, 22);
        let tries = outcome.histories.iter().flat_map(|history| history.events.windows(2));
        let told_to_wait =
            |pair: &&[Told]| matches!(&pair[0].what, What::Refused { code, .. } if code == "busy");
        let waits: Vec<u64> =
            tries.filter(told_to_wait).map(|pair| pair[1].asked_us - pair[0].told_us).collect();
        assert!(waits.len() == 5 && waits.iter().all(|wait_us| *wait_us >= 20_000), "{waits:?}");
    }

    #[tokio::test]
    async fn tries_end() {
        let shop = FakeShop::open(Manners { busy_first: u32::MAX, ..Manners::default() });
        let outcome = run(CrowdSettings { tries_max: 3, ..settings(&shop, 4) }).await;
        assert_eq!((outcome.totals.tries, outcome.totals.gave_up, shop.orders()), (12, 4, 0));
    }

    #[tokio::test]
    async fn patience_ends() {
        let shop = FakeShop::open(Manners { queued_looks: u32::MAX, ..Manners::default() });
        let outcome = run(CrowdSettings { patience: Duration::from_millis(300), ..settings(&shop, 2) }).await;
        assert_eq!((outcome.totals.queued, outcome.totals.won, outcome.totals.gave_up), (2, 0, 2));
    }

    #[tokio::test]
    async fn two_clicks_are_one_order() {
        let shop = FakeShop::open(Manners::default());
        let outcome =
            run(CrowdSettings { mix: vec![Kind { double_click: 1.0, ..human() }], ..settings(&shop, 8) })
                .await;
        assert_eq!((outcome.totals.tries, winners(&outcome), shop.orders()), (16, 8, 8));
    }

    #[tokio::test]
    async fn who_hangs_up_may_come_back_and_all_orders_are_seen_at_the_end() {
        let shop = FakeShop::open(Manners { stock: 200, ..Manners::default() });
        let mix = vec![Kind { hang_up: 1.0, ..human() }];
        let outcome = run(CrowdSettings { mix, ..settings(&shop, 100) }).await;
        assert_eq!(told(&outcome, |what| matches!(what, What::HungUp { .. })), 100);
        // Whether a request is read before its sender is noticed to be gone is the shop's luck.
        assert!(shop.orders() > 0 && shop.orders() < 100, "{}", shop.orders());
        assert_eq!(winners(&outcome), shop.orders());
        let came_back = told(&outcome, |what| matches!(what, What::Looked { last: false, .. }));
        assert!(came_back > 5, "{came_back}");
    }

    #[tokio::test]
    async fn the_same_seed_makes_the_same_people() {
        let who_hangs_up = async |seed| {
            let shop = FakeShop::open(Manners::default());
            let outcome = run(CrowdSettings {
                mix: vec![Kind { hang_up: 0.5, ..human() }],
                seed,
                ..settings(&shop, 20)
            })
            .await;
            let hung_up = |history: &History| {
                history.events.iter().find_map(|told| match told.what {
                    What::HungUp { bytes, .. } => Some(bytes),
                    _ => None,
                })
            };
            outcome.histories.iter().map(hung_up).map(|bytes| bytes.is_some()).collect::<Vec<_>>()
        };
        assert_eq!(who_hangs_up(7).await, who_hangs_up(7).await);
        assert_ne!(who_hangs_up(7).await, who_hangs_up(8).await);
    }

    #[tokio::test]
    async fn a_share_beyond_one_is_refused() {
        let shop = FakeShop::open(Manners::default());
        let error =
            Crowd::new(CrowdSettings { mix: vec![Kind { hang_up: 1.5, ..human() }], ..settings(&shop, 1) })
                .expect_err("too much");
        assert!(format!("{error:#}").contains("hang_up"), "{error}");
    }

    #[tokio::test]
    async fn a_closed_loop_lets_few_in_at_a_time() {
        let shop = FakeShop::open(Manners::default());
        let arrival = Arrival { paced: Loop::Closed, at_once: 2, ..settings(&shop, 12).arrival };
        let outcome = run(CrowdSettings { arrival, ..settings(&shop, 12) }).await;
        assert_eq!((winners(&outcome), outcome.histories.len()), (10, 12));
        // Nobody came before all but one of those before were gone.
        let came = |history: &History| history.events.first().unwrap().asked_us;
        let went = |history: &History| {
            let of_sale = |told: &&Told| !matches!(told.what, What::Looked { last: true, .. });
            history.events.iter().rev().find(of_sale).unwrap().told_us
        };
        for history in &outcome.histories {
            let inside = outcome
                .histories
                .iter()
                .filter(|other| came(other) <= came(history) && went(other) > came(history));
            assert!(inside.count() <= 2);
        }
    }

    #[tokio::test]
    async fn bots_fire_early_often_and_in_parallel_and_get_one_order() {
        let shop = FakeShop::open(Manners { opens_in: Duration::from_secs(2), ..Manners::default() });
        let bot = Kind {
            fires: crate::scenario::Fires::Opening,
            early: Duration::from_secs(1),
            volleys: 5,
            every: Duration::from_millis(400),
            parallel: 4,
            passes: 2,
            jitter: Duration::ZERO,
            ..Kind::default()
        };
        let outcome = run(CrowdSettings { mix: vec![bot], ..settings(&shop, 3) }).await;
        assert_eq!((outcome.totals.tries, shop.orders()), (60, 3));
        assert!(refusals(&outcome, Code::NotOpen) > 0 && refusals(&outcome, Code::AlreadyOrdered) > 0);
        assert_eq!(told(&outcome, |what| matches!(what, What::Pass { .. })), 6);
    }

    #[tokio::test]
    async fn volleys_go_out_at_their_times_while_the_shop_stalls() {
        let shop = FakeShop::open(Manners { slow_tries: Duration::from_secs(3), ..Manners::default() });
        let every = Duration::from_millis(100);
        let bot = Kind { volleys: 5, every, jitter: Duration::ZERO, ..Kind::default() };
        let outcome = run(CrowdSettings { mix: vec![bot], ..settings(&shop, 1) }).await;
        assert_eq!((outcome.totals.tries, shop.tries_at_once_max(), shop.orders()), (5, 5, 1));
        assert_eq!(winners(&outcome), 1);
    }

    #[tokio::test]
    async fn who_waits_for_a_late_pass_waits_since_the_click_was_due() {
        let slow = Duration::from_millis(1_500);
        let shop = FakeShop::open(Manners { slow_passes: slow, ..Manners::default() });
        let mut settings = settings(&shop, 1);
        settings.arrival.pages_ahead = Duration::from_millis(100);
        settings.opens_in = Duration::from_millis(100);
        let totals = run(settings).await.totals;
        assert_eq!((totals.late_passes, totals.click.count), (1, 1));
        // The page was opened less than 100 ms before the click.
        assert!(totals.click.max_us >= 1_300_000, "{totals:?}");
        assert!(totals.late.max_us < totals.click.max_us - 1_000_000, "{totals:?}");
    }

    /// Everybody has seconds for the page; the sale opens after that.
    fn watchers(shop: &FakeShop, connections: usize) -> CrowdSettings {
        let mut settings = settings(shop, 6);
        settings.mix = vec![Kind { follow: crate::scenario::Follow::Websocket, ..human() }];
        settings.opens_in = Duration::from_secs(3);
        settings.arrival.pages_ahead = Duration::from_secs(20);
        CrowdSettings { connections, ..settings }
    }

    #[tokio::test]
    async fn watchers_open_their_sockets_with_the_page_and_are_told() {
        let manners =
            Manners { pushes: Pushes::Honestly, opens_in: Duration::from_secs(3), ..Manners::default() };
        // The share that is kept open with the page is a quarter: for all of them, and for two.
        for (connections, kept_open) in [(32, 6), (8, 2)] {
            let shop = FakeShop::open(manners);
            let outcome = run(watchers(&shop, connections)).await;
            let totals = &outcome.totals;
            assert_eq!((winners(&outcome), totals.watchers), (6, 6), "{totals:?}");
            let at_the_opening = u64::try_from(shop.watching_at_the_first_try()).unwrap();
            assert_eq!((at_the_opening, totals.no_room), (kept_open, 6 - kept_open), "{totals:?}");
            let decided =
                |what: &What| matches!(what, What::Pushed { order } if order.state != State::Queued);
            assert!(
                outcome.histories.iter().all(|history| history.events.iter().any(|told| decided(&told.what)))
            );
            assert_eq!(told(&outcome, |what| matches!(what, What::Watching)), 6);
            assert_eq!(told(&outcome, |what| matches!(what, What::NotPushed { .. })), 0);
            let in_order = |history: &History| history.events.is_sorted_by_key(|told| told.told_us);
            assert!(outcome.histories.iter().all(in_order), "{outcome:?}");
        }
    }

    #[test]
    fn totals_of_an_older_file_are_read() {
        let mut totals = serde_json::to_value(Snapshot { tries: 7, ..Snapshot::default() }).unwrap();
        for newer in ["watchers", "no_room"] {
            totals.as_object_mut().unwrap().remove(newer).unwrap();
        }
        assert_eq!(serde_json::from_value::<Snapshot>(totals).unwrap().tries, 7);
    }

    #[tokio::test]
    async fn a_late_try_counts_from_when_it_was_due() {
        let stall = Duration::from_millis(400);
        let shop = FakeShop::open(Manners { opens_in: Duration::from_millis(100), ..Manners::default() });
        let crowd = Crowd::new(CrowdSettings { connections: 1, ..settings(&shop, 1) }).unwrap();
        let scene = crowd.scene();
        let due = scene.clock.instant();
        tokio::time::sleep(stall).await;
        let reply = scene.ask(due, &Request::get("/api/v1/time", None)).await;
        scene.progress.count_try(&reply);
        let totals = crowd.progress().snapshot();
        assert!(totals.click.max_us >= 400_000 && totals.late.max_us >= 400_000, "{totals:?}");
        assert_eq!((totals.in_time, totals.call.count), (0, 1));
        assert!(totals.call.max_us < totals.click.max_us);
    }

    #[tokio::test]
    async fn winners_pay_cancel_or_find_no_payment() {
        let decide_within = Duration::from_millis(5);
        let payer = Kind { pay: 0.5, pay_twice: 0.25, cancel: 0.25, decide_within, ..human() };
        let with = |payments| {
            let shop = FakeShop::open(Manners { stock: 100, payments, ..Manners::default() });
            let mut settings = settings(&shop, 40);
            settings.mix = vec![payer.clone()];
            (shop, settings)
        };
        let (shop, settings) = with(true);
        let outcome = run(settings).await;
        let Snapshot { paid, cancelled, no_payment, .. } = outcome.totals;
        assert!(
            paid > 20 && cancelled > 2 && paid + cancelled == 40 && no_payment == 0,
            "{:?}",
            outcome.totals
        );
        assert_eq!(shop.stats().offers[0].sold, u32::try_from(paid).unwrap());
        let (_shop, settings) = with(false);
        let outcome = run(settings).await;
        let Snapshot { paid, cancelled, no_payment, gave_up, .. } = outcome.totals;
        assert!(paid == 0 && no_payment + cancelled == 40 && gave_up == 0, "{:?}", outcome.totals);
    }

    #[tokio::test]
    async fn given_tokens_name_their_buyers() {
        let shop = FakeShop::open(Manners::default());
        let given = |name: &str| GivenToken { buyer: name.into(), token: format!("demo-{name}").into() };
        let tokens = Tokens::Given(Arc::from([given("ann"), given("bob")]));
        let outcome = run(CrowdSettings { tokens: tokens.clone(), ..settings(&shop, 2) }).await;
        let names: Vec<&str> = outcome.histories.iter().map(|history| history.buyer.as_str()).collect();
        assert_eq!((names, winners(&outcome)), (vec!["ann", "bob"], 2));
        let error = Crowd::new(CrowdSettings { tokens, ..settings(&shop, 3) }).expect_err("one too few");
        assert!(error.to_string().contains("2 tokens for 3 buyers"), "{error}");
    }
}
