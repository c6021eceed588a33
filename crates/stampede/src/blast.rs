//! As many requests as wanted, measured: closed loop (each connection asks again as soon as it was answered) or open
//! loop (requests have a time at which they are due, whatever the server does). It knows nothing of what it sends:
//! a `RequestSource` makes the bytes.
//!
//! Open loop, latency counts from the moment a request was due, not from the moment a connection was free for it: a
//! server that stalls is charged for everyone who had to wait (no coordinated omission).

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use hdrhistogram::Histogram;
use rules::id::OfferId;
use rules::wire::Code;
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe;
use tokio::task::JoinSet;

use crate::clock::{micros, monotonic_now};
use crate::connection::{Answer, CallError, Connection, Timeouts, render_order};

/// Latencies beyond this are counted as this, in microseconds.
pub const LATENCY_US_MAX: u64 = 120_000_000;
/// Statuses are counted below this.
const STATUSES: usize = 600;
/// How often due requests are handed out. It bounds how late the generator itself can be.
const PACE_TICK: Duration = Duration::from_micros(250);
/// How long a connection that was refused waits before its next request.
const RECONNECT_PAUSE: Duration = Duration::from_millis(10);
/// Ticks of `/proc/…/stat` per second: fixed by the kernel's interface.
const CPU_TICKS_PER_S: u64 = 100;

/// Makes the requests of one thread.
pub trait RequestSource: Send + 'static {
    /// Writes the next request into `out`, replacing what is there; `false` when there are no more.
    fn next(&mut self, out: &mut Vec<u8>) -> bool;
}

/// When to ask.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Each connection asks again as soon as it was answered.
    Closed,
    /// So many requests are due per second, over all threads.
    PerSecond(f64),
}

/// When to stop asking. What is on its way is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Elapsed(Duration),
    Requests(u64),
}

/// What to do. Every source that runs dry also ends its thread's part.
#[derive(Clone, Copy, Debug)]
pub struct Blast {
    pub addr: SocketAddr,
    /// Over all threads.
    pub connections: usize,
    pub threads: usize,
    pub until: Until,
    pub pace: Pace,
    pub timeouts: Timeouts,
    /// Whether refusals are also counted by the `code` of their problem document.
    pub count_codes: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Blasted {
    /// Answers by status.
    statuses: Vec<u64>,
    /// Refusals by code, where asked for.
    pub codes: BTreeMap<Code, u64>,
    /// Calls that could not connect, broke, or were not HTTP.
    pub broken: u64,
    /// Calls without an answer in time.
    pub timeouts: u64,
    /// Requests that were due (open loop) or sent (closed loop).
    pub offered: u64,
    /// Requests that were sent. Less than offered: the generator or its connections did not suffice.
    pub sent: u64,
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// From the start to the last answer.
    pub elapsed: Duration,
    /// Of all answers, in microseconds.
    pub latency_us: Histogram<u64>,
    /// Of 2xx answers, in microseconds.
    pub accepted_us: Histogram<u64>,
    /// How late requests were sent for want of a tick or of a free connection, in microseconds. Closed loop: empty.
    pub lateness_us: Histogram<u64>,
    /// CPU time of the generating threads: near `elapsed` times threads, the generator was the bottleneck.
    pub cpu: Duration,
}

impl Blasted {
    fn new() -> anyhow::Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_US_MAX, 3);
        Ok(Self {
            statuses: vec![0; STATUSES],
            codes: BTreeMap::new(),
            broken: 0,
            timeouts: 0,
            offered: 0,
            sent: 0,
            bytes_out: 0,
            bytes_in: 0,
            elapsed: Duration::ZERO,
            latency_us: histogram()?,
            accepted_us: histogram()?,
            lateness_us: histogram()?,
            cpu: Duration::ZERO,
        })
    }

    /// How many answers had this status.
    #[must_use]
    pub fn status(&self, status: u16) -> u64 {
        self.statuses.get(usize::from(status)).copied().unwrap_or(0)
    }

    /// All answers.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.statuses.iter().sum()
    }

    /// Statuses that occurred, with their counts.
    pub fn by_status(&self) -> impl Iterator<Item = (u16, u64)> + '_ {
        let counted = self.statuses.iter().enumerate().filter(|(_, count)| **count > 0);
        counted.filter_map(|(status, count)| Some((u16::try_from(status).ok()?, *count)))
    }

    /// Answers per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let answered = u32::try_from(self.answered()).unwrap_or(u32::MAX);
        f64::from(answered) / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn count_answer(&mut self, answer: &Answer<'_>, latency: Duration, count_codes: bool) {
        let latency_us = micros(latency);
        if let Some(count) = self.statuses.get_mut(usize::from(answer.status)) {
            *count += 1;
        }
        self.bytes_in += length(answer.bytes);
        self.latency_us.saturating_record(latency_us);
        if (200..300).contains(&answer.status) {
            self.accepted_us.saturating_record(latency_us);
        } else if count_codes && let Some(code) = code_of(answer.body) {
            *self.codes.entry(code).or_default() += 1;
        }
    }

    const fn count_error(&mut self, error: &CallError) {
        match error {
            CallError::AnswerTimeout | CallError::ConnectTimeout => self.timeouts += 1,
            CallError::Connect(_) | CallError::Broken(_) | CallError::NotHttp(_) | CallError::TooLarge => {
                self.broken += 1;
            }
        }
    }

    fn add(&mut self, other: &Self) -> anyhow::Result<()> {
        for (sum, count) in self.statuses.iter_mut().zip(&other.statuses) {
            *sum += count;
        }
        for (code, count) in &other.codes {
            *self.codes.entry(*code).or_default() += count;
        }
        self.broken += other.broken;
        self.timeouts += other.timeouts;
        self.sent += other.sent;
        self.bytes_out += other.bytes_out;
        self.bytes_in += other.bytes_in;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.latency_us.add(&other.latency_us)?;
        self.accepted_us.add(&other.accepted_us)?;
        self.lateness_us.add(&other.lateness_us)?;
        self.cpu += other.cpu;
        Ok(())
    }
}

impl Blast {
    /// Connects everything, then starts all threads at one moment. Blocks until the last answer.
    ///
    /// `source` is asked once per thread, with the thread's number.
    pub fn run<S: RequestSource>(&self, mut source: impl FnMut(usize) -> S) -> anyhow::Result<Blasted> {
        ensure!(self.threads > 0, "at least one thread is needed");
        ensure!(self.connections >= self.threads, "each thread needs a connection of its own");
        if let Pace::PerSecond(rate) = self.pace {
            ensure!(rate.is_finite() && rate > 0.0, "the pace must be a positive number per second");
        }
        let start = Start::new(self);
        let sources: Vec<S> = (0..self.threads).map(&mut source).collect();
        let parts = std::thread::scope(|scope| {
            let spawn = |(number, source)| {
                let start = &start;
                scope.spawn(move || self.run_thread(number, source, start))
            };
            let threads: Vec<_> = sources.into_iter().enumerate().map(spawn).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<Blasted>>| {
                thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a generating thread panicked")))
            };
            threads.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
        })?;
        let mut whole = Blasted::new()?;
        for part in &parts {
            whole.add(part)?;
        }
        whole.offered = start.schedule.map_or(whole.sent, |schedule| schedule.due(whole.elapsed));
        Ok(whole)
    }

    fn run_thread<S: RequestSource>(
        &self,
        number: usize,
        source: S,
        start: &Start,
    ) -> anyhow::Result<Blasted> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let connected = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
            let connections = runtime.block_on(self.connect(self.share(number)))?;
            Ok((runtime, connections))
        });
        start.ready(connected.is_ok());
        let (runtime, connections) = connected?;
        let started = start.wait().context("another thread could not connect")?;
        let cpu_before = thread_cpu();
        let desk = Arc::new(Desk {
            work: Mutex::new(Work { source, tickets: 0, tally: Blasted::new()? }),
            lane: start.schedule.map(Lane::new),
            limit: self.limit(number),
            number,
            started,
            blast: *self,
        });
        runtime.block_on(serve(Arc::clone(&desk), connections))?;
        let mut tally = lock(&desk.work).tally.clone();
        tally.elapsed = monotonic_now().saturating_duration_since(started);
        tally.cpu = thread_cpu().saturating_sub(cpu_before);
        Ok(tally)
    }

    async fn connect(&self, count: usize) -> anyhow::Result<Vec<Connection>> {
        let mut connections = Vec::with_capacity(count);
        for _ in 0..count {
            let mut connection = Connection::new(self.addr, self.timeouts);
            connection.connect().await.with_context(|| format!("{} does not answer", self.addr))?;
            connections.push(connection);
        }
        Ok(connections)
    }

    /// How many of the connections belong to this thread.
    const fn share(&self, number: usize) -> usize {
        self.connections / self.threads + if number < self.connections % self.threads { 1 } else { 0 }
    }

    fn limit(&self, number: usize) -> Limit {
        match self.until {
            Until::Requests(requests) => {
                let (threads, number) = (length(self.threads), length(number));
                Limit::Tickets(requests / threads + u64::from(number < requests % threads))
            }
            Until::Elapsed(elapsed) => Limit::Elapsed(elapsed),
        }
    }
}

async fn serve<S: RequestSource>(desk: Arc<Desk<S>>, connections: Vec<Connection>) -> anyhow::Result<()> {
    let mut serving = JoinSet::new();
    for connection in connections {
        serving.spawn(Arc::clone(&desk).ask_until_done(connection));
    }
    desk.pace().await?;
    while let Some(done) = serving.join_next().await {
        done.context("a connection's task panicked")?;
    }
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Limit {
    Tickets(u64),
    Elapsed(Duration),
}

/// What the connections of one thread share. The lock is never contended: it only satisfies the type system that a
/// task may move, at the price of two uncontended atomics per request.
struct Desk<S> {
    work: Mutex<Work<S>>,
    /// Open loop: what is due, and who waits for it.
    lane: Option<Lane>,
    limit: Limit,
    number: usize,
    started: Instant,
    blast: Blast,
}

struct Work<S> {
    source: S,
    tickets: u64,
    tally: Blasted,
}

/// The open loop of one thread. Connections that are free stand in a stack: whoever was free last is asked first, so that
/// a few connections stay warm and the others are there for a server that is slow.
struct Lane {
    schedule: Schedule,
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    /// Requests that are due and not taken.
    due: u64,
    free: Vec<Waker>,
    /// Nothing more will be due.
    over: bool,
}

impl Lane {
    fn new(schedule: Schedule) -> Self {
        Self { schedule, line: Mutex::default() }
    }

    /// So many more are due.
    fn give(&self, requests: u64) {
        let mut line = lock(&self.line);
        line.due += requests;
        let first = line.free.len().saturating_sub(usize::try_from(requests).unwrap_or(usize::MAX));
        line.free.drain(first..).rev().for_each(Waker::wake);
    }

    /// Waits until one is due; `false` when there will be none.
    async fn take(&self) -> bool {
        poll_fn(|context| {
            let mut line = lock(&self.line);
            if line.due > 0 {
                line.due -= 1;
                return Poll::Ready(true);
            }
            if line.over {
                return Poll::Ready(false);
            }
            line.free.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn end(&self) {
        let mut line = lock(&self.line);
        line.over = true;
        line.free.drain(..).for_each(Waker::wake);
    }

    fn is_over(&self) -> bool {
        lock(&self.line).over
    }
}

impl<S: RequestSource> Desk<S> {
    async fn ask_until_done(self: Arc<Self>, mut connection: Connection) {
        let mut request = Vec::new();
        let mut now = monotonic_now();
        while let Some((counts_from, sent_at)) = self.take_ticket(&mut request, now).await {
            let answer = connection.call_at(sent_at, &request, self.blast.timeouts.answer).await;
            // The moment of an answer is the moment of the next request: one look at the clock for both.
            now = monotonic_now();
            match answer {
                Ok(answer) => {
                    let latency = now.saturating_duration_since(counts_from);
                    lock(&self.work).tally.count_answer(&answer, latency, self.blast.count_codes);
                }
                Err(error) => {
                    lock(&self.work).tally.count_error(&error);
                    // A server that is gone is not asked again as fast as the loop can turn.
                    if matches!(error, CallError::Connect(_)) {
                        tokio::time::sleep(RECONNECT_PAUSE).await;
                        now = monotonic_now();
                    }
                }
            }
        }
    }

    /// Waits until a request is due, writes it, and says from when on its latency counts, and what time it is.
    async fn take_ticket(&self, request: &mut Vec<u8>, mut now: Instant) -> Option<(Instant, Instant)> {
        if let Some(lane) = &self.lane {
            if !lane.take().await {
                return None;
            }
            now = monotonic_now();
        }
        let mut work = lock(&self.work);
        let over = match self.limit {
            Limit::Tickets(tickets) => work.tickets >= tickets,
            Limit::Elapsed(elapsed) => now.saturating_duration_since(self.started) >= elapsed,
        };
        let Work { source, tickets, tally } = &mut *work;
        if over || !source.next(request) {
            // Wakes the others of this thread: they find the same.
            if let Some(lane) = &self.lane {
                lane.end();
            }
            return None;
        }
        let ticket = *tickets;
        *tickets += 1;
        tally.sent += 1;
        tally.bytes_out += length(request.len());
        let Some(lane) = &self.lane else { return Some((now, now)) };
        let due = self.started + lane.schedule.due_after(ticket, self.number, self.blast.threads);
        tally.lateness_us.saturating_record(micros(now.saturating_duration_since(due)));
        Some((due, now))
    }

    /// Open loop: hands out what is due until all is. On the thread that sends it, so that none has to wake another.
    async fn pace(&self) -> anyhow::Result<()> {
        let Some(lane) = &self.lane else { return Ok(()) };
        let ticks = Ticks::every(PACE_TICK).context("no timer")?;
        let mut given = 0;
        while !lane.is_over() {
            let elapsed = monotonic_now().saturating_duration_since(self.started);
            let due = lane.schedule.due_of(elapsed, self.number, self.blast.threads);
            lane.give(due.saturating_sub(given));
            given = given.max(due);
            if lane.schedule.is_over(elapsed) {
                lane.end();
            }
            ticks.next().await?;
        }
        Ok(())
    }
}

/// A timer of the kernel's: the runtime's own would add up to a whole millisecond. It is read like a pipe, and that is
/// how the runtime is told of it.
struct Ticks(pipe::Receiver);

impl Ticks {
    fn every(tick: Duration) -> io::Result<Self> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        let tick = Timespec::try_from(tick).map_err(io::Error::other)?;
        let every = Itimerspec { it_interval: tick, it_value: tick };
        timerfd_settime(&timer, TimerfdTimerFlags::empty(), &every)?;
        Ok(Self(pipe::Receiver::from_file_unchecked(timer.into())?))
    }

    /// Waits for the next one; at once if one or more have gone by.
    async fn next(&self) -> io::Result<()> {
        loop {
            self.0.readable().await?;
            match self.0.try_read(&mut [0; 8]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.map(drop),
            }
        }
    }
}

/// The times at which requests are due: evenly spaced, dealt to the threads in turn.
#[derive(Clone, Copy, Debug)]
struct Schedule {
    gap: Duration,
    until: Until,
}

impl Schedule {
    fn due_after(self, ticket: u64, number: usize, threads: usize) -> Duration {
        let position = ticket.saturating_mul(length(threads)).saturating_add(length(number));
        Duration::from_nanos(nanos(self.gap).saturating_mul(position))
    }

    /// How many are due so far, of all threads.
    fn due(self, elapsed: Duration) -> u64 {
        let due = |elapsed: Duration| nanos(elapsed) / nanos(self.gap).max(1) + 1;
        match self.until {
            Until::Requests(requests) => due(elapsed).min(requests),
            Until::Elapsed(limit) => due(elapsed.min(limit)).min(nanos(limit) / nanos(self.gap).max(1)),
        }
    }

    /// How many of them are dealt to this thread.
    fn due_of(self, elapsed: Duration, number: usize, threads: usize) -> u64 {
        let (threads, number) = (length(threads).max(1), length(number));
        (self.due(elapsed) + threads - 1).saturating_sub(number) / threads
    }

    /// Whether nothing more will be due.
    fn is_over(self, elapsed: Duration) -> bool {
        match self.until {
            Until::Requests(requests) => self.due(elapsed) >= requests,
            Until::Elapsed(limit) => elapsed >= limit,
        }
    }
}

/// The common start of all threads.
struct Start {
    ready: Barrier,
    started: OnceLock<Instant>,
    failed: AtomicBool,
    schedule: Option<Schedule>,
}

impl Start {
    fn new(blast: &Blast) -> Self {
        let schedule = match blast.pace {
            Pace::Closed => None,
            Pace::PerSecond(rate) => {
                let gap = Duration::from_secs_f64((1.0 / rate).clamp(1e-9, 1e6));
                Some(Schedule { gap, until: blast.until })
            }
        };
        Self {
            ready: Barrier::new(blast.threads),
            started: OnceLock::new(),
            failed: AtomicBool::new(false),
            schedule,
        }
    }

    fn ready(&self, connected: bool) {
        if !connected {
            self.failed.store(true, Ordering::Release);
        }
        self.ready.wait();
    }

    /// The moment everybody starts; `None` when somebody could not.
    fn wait(&self) -> Option<Instant> {
        (!self.failed.load(Ordering::Acquire)).then(|| *self.started.get_or_init(monotonic_now))
    }
}

/// The same request again and again.
#[derive(Clone, Debug)]
pub struct Same(pub Arc<[u8]>);

impl RequestSource for Same {
    fn next(&mut self, out: &mut Vec<u8>) -> bool {
        if out.is_empty() {
            out.extend_from_slice(&self.0);
        }
        true
    }
}

/// Tries with passes fetched or minted before, each used once. Clones share them: one clone per thread.
#[derive(Clone, Debug)]
pub struct Passes {
    host: Arc<str>,
    passes: Arc<[(OfferId, String)]>,
    quantity: u32,
    cursor: Arc<AtomicUsize>,
}

impl Passes {
    #[must_use]
    pub fn new(host: &str, passes: impl Into<Arc<[(OfferId, String)]>>, quantity: u32) -> Self {
        Self { host: host.into(), passes: passes.into(), quantity, cursor: Arc::default() }
    }
}

impl RequestSource for Passes {
    fn next(&mut self, out: &mut Vec<u8>) -> bool {
        let position = self.cursor.fetch_add(1, Ordering::Relaxed);
        let Some((offer, pass)) = self.passes.get(position) else { return false };
        render_order(&self.host, *offer, pass, self.quantity, out);
        true
    }
}

/// The `code` of a problem document, found without reading it as JSON.
#[must_use]
pub fn code_of(body: &[u8]) -> Option<Code> {
    const KEY: &[u8] = br#""code":""#;
    let at = body.windows(KEY.len()).position(|window| window == KEY)?;
    let rest = body.get(at + KEY.len()..)?;
    let text = rest.get(..rest.iter().position(|byte| *byte == b'"')?)?;
    Code::ALL.iter().copied().find(|code| code.as_str().as_bytes() == text)
}

/// CPU time of the calling thread so far, to the microsecond: what `/proc` tells of a thread may not have moved since the
/// scheduler's last tick, and a proof of work can be shorter than that.
pub(crate) fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// CPU time of this process, all threads together.
#[must_use]
pub fn process_cpu() -> Duration {
    ticks("/proc/self/stat").unwrap_or_default()
}

/// CPU time of everybody on this machine, since it was started; zero where the system does not tell.
pub(crate) fn machine_cpu() -> Duration {
    let ticks = || {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let mut fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let mut next = || fields.next()?.parse::<u64>().ok();
        // User, nice, system; idle and waiting for a disk are no work; then interrupts of two kinds.
        let (user, nice, system, _, _, hard, soft) =
            (next()?, next()?, next()?, next()?, next()?, next()?, next()?);
        Some([user, nice, system, hard, soft].into_iter().fold(0, u64::saturating_add))
    };
    Duration::from_millis(ticks().unwrap_or(0).saturating_mul(1_000 / CPU_TICKS_PER_S))
}

fn ticks(file: &str) -> Option<Duration> {
    let text = std::fs::read_to_string(file).ok()?;
    // The name in parentheses may hold anything; user and system time are the 12th and 13th field after it.
    let (_, after_name) = text.rsplit_once(") ")?;
    let mut fields = after_name.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    let ticks = fields.next()??.saturating_add(fields.next()??);
    Some(Duration::from_millis(ticks.saturating_mul(1_000 / CPU_TICKS_PER_S)))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Counters are whole at every moment: a panic elsewhere does not spoil them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn length(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Request;
    use crate::fake::{FakeShop, Manners};

    fn blast(shop: &FakeShop, until: Until, pace: Pace) -> Blast {
        let addr = shop.addr();
        let timeouts = Timeouts::default();
        Blast { addr, connections: 8, threads: 2, until, pace, timeouts, count_codes: true }
    }

    fn time_request() -> Same {
        let mut bytes = Vec::new();
        Request::get("/api/v1/time", None).render("shop", &mut bytes);
        Same(bytes.into())
    }

    #[test]
    fn the_closed_loop_asks_exactly_as_often_as_told() {
        let shop = FakeShop::open(Manners::default());
        let request = time_request();
        let blasted = blast(&shop, Until::Requests(1_001), Pace::Closed).run(|_| request.clone()).unwrap();
        assert_eq!((blasted.status(200), blasted.answered()), (1_001, 1_001));
        assert_eq!((blasted.sent, blasted.offered, blasted.broken), (1_001, 1_001, 0));
        assert_eq!(blasted.latency_us.len(), 1_001);
        assert_eq!(blasted.by_status().collect::<Vec<_>>(), [(200, 1_001)]);
        assert!(blasted.bytes_in > blasted.bytes_out && blasted.cpu > Duration::ZERO);
        assert_eq!(shop.connections(), 8);
    }

    #[test]
    fn each_pass_is_used_once_and_refusals_are_counted_by_code() {
        let shop = FakeShop::open(Manners { stock: 3, ..Manners::default() });
        let passes: Vec<_> = (0..10).map(|number| (shop.offer(), shop.mint(&format!("b{number}")))).collect();
        let passes = Passes::new("shop", passes, 1);
        let blasted = blast(&shop, Until::Elapsed(Duration::from_secs(60)), Pace::Closed)
            .run(|_| passes.clone())
            .unwrap();
        assert_eq!((blasted.status(202), blasted.status(409)), (3, 7));
        assert_eq!(blasted.codes, BTreeMap::from([(Code::SoldOut, 7)]));
        assert_eq!(blasted.accepted_us.len(), 3);
    }

    #[test]
    fn the_open_loop_keeps_its_pace() {
        let shop = FakeShop::open(Manners::default());
        let request = time_request();
        let pace = Pace::PerSecond(2_000.0);
        let blasted = blast(&shop, Until::Requests(400), pace).run(|_| request.clone()).unwrap();
        assert_eq!((blasted.sent, blasted.offered, blasted.answered()), (400, 400, 400));
        // The last of 400 is due 399 gaps of 500 microseconds after the start, never earlier.
        assert!(blasted.elapsed >= Duration::from_micros(399 * 500), "{:?}", blasted.elapsed);
    }

    #[test]
    fn a_stall_is_charged_to_all_who_were_due_in_it() {
        let stall = Duration::from_millis(300);
        let shop = FakeShop::open(Manners { stall_once: Some(stall), ..Manners::default() });
        let request = time_request();
        let mut blast = blast(&shop, Until::Requests(500), Pace::PerSecond(1_000.0));
        (blast.connections, blast.threads) = (1, 1);
        let blasted = blast.run(|_| request.clone()).unwrap();
        assert_eq!(blasted.answered(), 500);
        // Of the ~300 requests due during the stall, those due in its first half waited at least the other half.
        let waited = blasted.latency_us.len() - blasted.latency_us.count_between(0, 149_000);
        assert!(waited >= 140, "only {waited} waited");
    }

    #[test]
    fn the_open_loop_ends_in_time_and_tells_what_it_owes() {
        let stall = Duration::from_millis(400);
        let shop = FakeShop::open(Manners { stall_once: Some(stall), ..Manners::default() });
        let request = time_request();
        let until = Until::Elapsed(Duration::from_millis(200));
        let mut blast = blast(&shop, until, Pace::PerSecond(1_000.0));
        (blast.connections, blast.threads) = (1, 1);
        let blasted = blast.run(|_| request.clone()).unwrap();
        assert_eq!(blasted.offered, 200);
        assert!(blasted.sent <= 1 && blasted.answered() == blasted.sent, "{}", blasted.sent);
    }

    #[test]
    fn a_source_that_runs_dry_ends_the_open_loop() {
        let shop = FakeShop::open(Manners::default());
        let passes = Passes::new("shop", vec![(shop.offer(), shop.mint("ann"))], 1);
        let until = Until::Elapsed(Duration::from_secs(600));
        let blasted = blast(&shop, until, Pace::PerSecond(1_000.0)).run(|_| passes.clone()).unwrap();
        assert_eq!((blasted.sent, blasted.status(202)), (1, 1));
    }

    #[test]
    fn nobody_at_the_address_is_said_at_once() {
        // No port that was free a moment ago: somebody else may be given it.
        let addr = ([127, 0, 0, 1], 1).into();
        let (until, pace) = (Until::Requests(1), Pace::Closed);
        let timeouts = Timeouts::default();
        let blast = Blast { addr, connections: 2, threads: 2, until, pace, timeouts, count_codes: false };
        let error = blast.run(|_| time_request()).expect_err("nobody is there");
        assert!(
            error.to_string().contains("does not answer") || error.to_string().contains("could not connect")
        );
    }

    #[test]
    fn a_code_is_found_without_reading_json() {
        let body =
            br#"{"type":"about:blank","title":"Sold out.","status":409,"detail":"","code":"sold_out"}"#;
        assert_eq!(code_of(body), Some(Code::SoldOut));
        for other in [br#"{"code":"of another shop"}"#.as_slice(), b"", br#"{"code":"sold_out"#, b"<html>"] {
            assert_eq!(code_of(other), None);
        }
    }
}
