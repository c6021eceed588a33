//! Buyers who arrive: each on a connection of their own, with one order, and gone with its answer or when their
//! patience ends. Open loop they come when they are due, whatever the server does; closed loop a fixed number of them
//! is there at any time. Knows HTTP as far as it must.
//!
//! Why a connection each: a generator on kept connections can only send as fast as it is answered, and then an
//! overload never arrives. This is also how a crowd comes: not on 128 warm connections.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use stampede::blast::{Passes, RequestSource};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

/// Everybody comes from a port that we choose. Left to the kernel, with very many there at once, it looks through
/// thousands of taken ports for a free one, and that would be most of what an arrival costs.
const PORTS: Range<u16> = 16_384..65_535;
/// An arrival that begins later than this after it was due was not offered in time and does not count as achieved.
const LATE: Duration = Duration::from_millis(250);
/// How long the generator sleeps between looks at who is due.
const TICK: Duration = Duration::from_millis(1);
const LATENCY_US_MAX: u64 = 60_000_000;

/// How they come.
#[derive(Clone, Copy, Debug)]
pub enum Coming {
    /// So many are there at any time.
    Closed { people: usize },
    /// So many are due each second; at most so many wait at once.
    Open { per_s: f64, waiting_max: usize },
}

#[derive(Clone, Copy, Debug)]
pub struct Arrivals {
    pub addr: SocketAddr,
    pub threads: usize,
    pub run: Duration,
    pub patience: Duration,
    pub coming: Coming,
}

/// What came of them.
#[derive(Debug)]
pub struct Tally {
    /// Due, or begun where nothing is due.
    pub offered: u64,
    /// Begun in time.
    pub achieved: u64,
    /// Answered with 202 or 409 within the run.
    pub useful: u64,
    /// Answered with 202 at any time.
    pub accepted: u64,
    /// Told to come back: 429 and 503.
    pub shed: u64,
    /// Without an answer when their patience ended.
    pub gave_up: u64,
    /// Refused or cut off.
    pub broken: u64,
    /// Answered with anything else.
    pub strange: u64,
    /// Of 202, from the moment they were due, in microseconds.
    pub accepted_us: Histogram<u64>,
    pub lateness_us: Histogram<u64>,
    /// Of the generating threads.
    pub cpu_us: f64,
    pub run: Duration,
    /// When nobody was due any more. Those who had come may have waited on.
    pub over_at: Instant,
}

impl Tally {
    fn new(run: Duration, began: Instant) -> Self {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_US_MAX, 3).expect("bounds are in order");
        Self {
            offered: 0,
            achieved: 0,
            useful: 0,
            accepted: 0,
            shed: 0,
            gave_up: 0,
            broken: 0,
            strange: 0,
            accepted_us: histogram(),
            lateness_us: histogram(),
            cpu_us: 0.0,
            run,
            over_at: began + run,
        }
    }

    /// Useful answers per second.
    pub fn goodput(&self) -> f64 {
        self.useful as f64 / self.run.as_secs_f64()
    }

    pub fn achieved_share(&self) -> f64 {
        self.achieved as f64 / self.offered.max(1) as f64
    }

    pub fn gave_up_share(&self) -> f64 {
        self.gave_up as f64 / self.offered.max(1) as f64
    }

    pub fn p99_ms(&self) -> f64 {
        self.accepted_us.value_at_quantile(0.99) as f64 / 1_000.0
    }

    fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.achieved += other.achieved;
        self.useful += other.useful;
        self.accepted += other.accepted;
        self.shed += other.shed;
        self.gave_up += other.gave_up;
        self.broken += other.broken;
        self.strange += other.strange;
        self.cpu_us += other.cpu_us;
        self.accepted_us.add(&other.accepted_us).expect("the same bounds");
        self.lateness_us.add(&other.lateness_us).expect("the same bounds");
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "offered": self.offered, "achieved": self.achieved, "useful": self.useful, "accepted": self.accepted,
            "shed": self.shed, "gave_up": self.gave_up, "broken": self.broken, "strange": self.strange,
            "goodput": self.goodput(), "accepted_p99_ms": self.p99_ms(), "run_s": self.run.as_secs_f64(),
            "generator_cpu_us": self.cpu_us / self.offered.max(1) as f64,
            "lateness_p99_ms": self.lateness_us.value_at_quantile(0.99) as f64 / 1_000.0,
        })
    }
}

/// How one visit ended.
enum End {
    Status(u16),
    GaveUp,
    Broken,
}

/// What the visits of one thread share.
struct Desk {
    addr: SocketAddr,
    patience: Duration,
    run: Duration,
    began: Instant,
    tally: Mutex<Tally>,
    waiting: AtomicUsize,
    /// Where the next ones come from. Who is gone gives his place back, behind all others.
    sources: Mutex<VecDeque<SocketAddr>>,
    dry: AtomicBool,
}

impl Arrivals {
    /// Blocks until the last of them is gone.
    pub fn run(&self, passes: &Passes) -> anyhow::Result<Tally> {
        let began = Instant::now();
        let mut whole = Tally::new(self.run, began);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|number| scope.spawn(move || self.run_thread(number, began, passes.clone())))
                .collect();
            for thread in threads {
                whole.add(&thread.join().expect("a generating thread panicked")?);
            }
            anyhow::Ok(())
        })?;
        Ok(whole)
    }

    /// How many are there at once, at most.
    const fn at_once(&self) -> usize {
        match self.coming {
            Coming::Closed { people } => people,
            Coming::Open { waiting_max, .. } => waiting_max,
        }
    }

    fn run_thread(&self, number: usize, began: Instant, passes: Passes) -> anyhow::Result<Tally> {
        let desk = Arc::new(Desk {
            addr: self.addr,
            patience: self.patience,
            run: self.run,
            began,
            tally: Mutex::new(Tally::new(self.run, began)),
            waiting: AtomicUsize::new(0),
            sources: Mutex::new(sources(number, self.at_once())),
            dry: AtomicBool::new(false),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let cpu_before = this_thread_us();
        runtime.block_on(async {
            match self.coming {
                Coming::Closed { people } => closed(&desk, people / self.threads, passes).await,
                Coming::Open { per_s, waiting_max } => {
                    let threads = self.threads as f64;
                    open(&desk, per_s / threads, waiting_max / self.threads, passes).await;
                }
            }
        });
        anyhow::ensure!(!desk.dry.load(Ordering::Relaxed), "the passes signed ahead did not suffice");
        let mut tally = desk.tally.lock().expect("no visit panicked");
        tally.cpu_us = this_thread_us() - cpu_before;
        Ok(std::mem::replace(&mut tally, Tally::new(self.run, began)))
    }
}

async fn closed(desk: &Arc<Desk>, people: usize, passes: Passes) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..people {
        let (desk, mut passes) = (Arc::clone(desk), passes.clone());
        tasks.spawn(async move {
            let mut request = Vec::new();
            while desk.began.elapsed() < desk.run {
                if !passes.next(&mut request) {
                    desk.dry.store(true, Ordering::Relaxed);
                    return;
                }
                desk.tally.lock().expect("no visit panicked").offered += 1;
                desk.visit(&request, Instant::now()).await;
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

async fn open(desk: &Arc<Desk>, per_s: f64, waiting_max: usize, mut passes: Passes) {
    let mut tasks = tokio::task::JoinSet::new();
    let mut arrived = 0_u64;
    let total = (per_s * desk.run.as_secs_f64()) as u64;
    while arrived < total {
        let elapsed = desk.began.elapsed();
        // Whoever was due in the run and could not begin in it was offered and not achieved.
        if elapsed >= desk.run {
            break;
        }
        let due = ((elapsed.as_secs_f64() * per_s) as u64 + 1).min(total);
        while arrived < due {
            let due_at = desk.began + Duration::from_secs_f64(arrived as f64 / per_s);
            arrived += 1;
            if desk.waiting.load(Ordering::Relaxed) >= waiting_max {
                continue;
            }
            let mut request = Vec::new();
            if !passes.next(&mut request) {
                desk.dry.store(true, Ordering::Relaxed);
                return;
            }
            desk.waiting.fetch_add(1, Ordering::Relaxed);
            let desk = Arc::clone(desk);
            tasks.spawn(async move {
                desk.visit(&request, due_at).await;
                desk.waiting.fetch_sub(1, Ordering::Relaxed);
            });
        }
        while tasks.try_join_next().is_some() {}
        tokio::time::sleep(TICK).await;
    }
    desk.tally.lock().expect("no visit panicked").offered = total;
    while tasks.join_next().await.is_some() {}
}

impl Desk {
    async fn visit(&self, request: &[u8], due: Instant) {
        let late = due.elapsed();
        let source = self.sources.lock().expect("no visit panicked").pop_front();
        let source = source.expect("as many places as may be there at once");
        let limit = tokio::time::Instant::from_std(due + self.patience);
        let end = match tokio::time::timeout_at(limit, ask(self.addr, source, request)).await {
            Ok(Ok(status)) => End::Status(status),
            Ok(Err(_)) => End::Broken,
            Err(_) => End::GaveUp,
        };
        self.sources.lock().expect("no visit panicked").push_back(source);
        let latency = due.elapsed();
        let in_run = self.began.elapsed() <= self.run;
        let mut tally = self.tally.lock().expect("no visit panicked");
        tally.achieved += u64::from(late <= LATE);
        tally.lateness_us.saturating_record(micros(late));
        match end {
            End::Status(status @ (202 | 409)) => {
                tally.useful += u64::from(in_run);
                if status == 202 {
                    tally.accepted += 1;
                    tally.accepted_us.saturating_record(micros(latency));
                }
            }
            End::Status(429 | 503) => tally.shed += 1,
            End::Status(_) => tally.strange += 1,
            End::GaveUp => tally.gave_up += 1,
            End::Broken => tally.broken += 1,
        }
    }
}

/// Places on loopback for so many at once, of one thread: on addresses where nobody else is.
fn sources(thread: usize, at_once: usize) -> VecDeque<SocketAddr> {
    let network = u8::try_from(thread + 1).expect("few threads");
    let hosts = (1..=u8::MAX).map(|host| Ipv4Addr::new(127, 1, network, host));
    hosts
        .flat_map(|host| PORTS.map(move |port| SocketAddr::from((host, port))))
        .take(at_once.max(1))
        .collect()
}

fn this_thread_us() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns: Option<f64> = text.split_whitespace().next().and_then(|ns| ns.parse().ok());
    ns.unwrap_or(0.0) / 1_000.0
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// One buyer: connects, asks, reads the answer to its end, hangs up at once.
async fn ask(addr: SocketAddr, source: SocketAddr, request: &[u8]) -> std::io::Result<u16> {
    let socket = TcpSocket::new_v4()?;
    // Nothing of ours waits in the kernel after the end: a minute of that would use up all ports.
    socket.set_zero_linger()?;
    socket.bind(source)?;
    let mut stream = socket.connect(addr).await?;
    stream.write_all(request).await?;
    let mut buffer = [0; 2_048];
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        filled += read;
        if let Some(status) = whole(&buffer[..filled]) {
            return Ok(status);
        }
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// The status of an answer that is all there.
fn whole(answer: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    if body.len() < length.unwrap_or(0) {
        return None;
    }
    head.split(' ').nth(1)?.parse().ok()
}
