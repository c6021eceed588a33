//! Ten thousand sockets that begin a request and never end it, while buyers go on as usual. The buyers connect after
//! them, so a server that has no place left shows it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;
use stampede::blast::{Blasted, Pace, Until};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use crate::Plan;
use crate::load::{Minted, blast, enough_for};
use crate::product::{Product, Sale};
use crate::report::{Goal, Report, Table, median};

const SLOW_SOCKETS: usize = 10_000;
/// A slow socket sends one more line this often.
const DRIP_EVERY: Duration = Duration::from_secs(4);
/// A slow socket that was thrown out comes back after this.
const COME_BACK_AFTER: Duration = Duration::from_millis(200);
/// They come one after the other within this time, as machines all over the world would, and so they are not thrown out
/// and back all at once either. A little less than the server's patience with a head.
const COME_WITHIN: Duration = Duration::from_millis(4_500);
/// Of those on their way back some are always missing; with fewer than these on average there is no figure.
const SLOW_SOCKETS_MIN: f64 = 9_000.0;
const OPEN_LIMIT: Duration = Duration::from_secs(30);
/// Loopback addresses that they come from.
const SOURCES: usize = 4;

/// Goodput of one pair of runs.
struct Pair {
    without: f64,
    with: f64,
    peak_without: f64,
    peak_with: f64,
    p99_ms: [f64; 2],
    slow: Kept,
}

/// How many slow sockets the server had.
#[derive(Clone, Copy, Debug)]
struct Kept {
    on_average: f64,
    least: usize,
    thrown_out: usize,
}

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    const NAME: &str = "goodput_slowloris";
    let needed = SLOW_SOCKETS as u64 + 1_024;
    if plan.open_files < needed {
        let why = format!("{needed} open files are needed and {} allowed (ulimit -n)", plan.open_files);
        report.absent(NAME, &why);
        return Ok(());
    }
    let folder = TempDir::new()?;
    let product = Product::start(folder.path())?;
    let sale = product.open_sale(1, 10_000_000)?;
    report.say("slowloris: the peak without slow sockets");
    let normal = at_peak(plan, &product, &sale)? / 2.0;
    report.say(&format!("slowloris: normal load is half of the peak, {normal:.0} orders per second"));
    let mut pairs = Vec::new();
    for repetition in 1..=plan.repetitions {
        let pair = pair(plan, report, &product, &sale, normal)?;
        report.say(&format!(
            "slowloris {repetition}/{}: goodput {:.0}/s without, {:.0}/s with; peak {:.0}/s and {:.0}/s; \
             p99 {:.1} and {:.1} ms; {:.0} slow sockets on average, at least {}, {} thrown out and back",
            plan.repetitions,
            pair.without,
            pair.with,
            pair.peak_without,
            pair.peak_with,
            pair.p99_ms[0],
            pair.p99_ms[1],
            pair.slow.on_average,
            pair.slow.least,
            pair.slow.thrown_out
        ));
        pairs.push(pair);
    }
    report.raw("slowloris", json!(pairs.iter().map(Pair::json).collect::<Vec<_>>()));
    report.tables.push(table(&pairs));
    pairs.retain(|pair| pair.slow.on_average >= SLOW_SOCKETS_MIN);
    if pairs.is_empty() {
        report.absent(NAME, &format!("in no run {SLOW_SOCKETS_MIN:.0} slow sockets were kept open"));
        return Ok(());
    }
    let of = |value: fn(&Pair) -> f64| median(&pairs.iter().map(value).collect::<Vec<_>>());
    report.figure(
        NAME,
        of(|pair| pair.with / pair.without),
        "x",
        "goodput of half the peak with 10,000 slow sockets against without",
        Goal::AtLeast { must: 0.95, target: 0.98 },
    );
    report.figure(
        "slowloris_peak",
        of(|pair| pair.peak_with / pair.peak_without),
        "x",
        "the same at full load; the slow sockets' own CPU counts against it",
        Goal::Information,
    );
    Ok(())
}

fn pair(plan: &Plan, report: &Report, product: &Product, sale: &Sale, normal: f64) -> anyhow::Result<Pair> {
    let without = at_normal_load(plan, product, sale, normal)?;
    let peak_without = at_peak(plan, product, sale)?;
    report.say("slowloris: 10,000 slow sockets come");
    let slow = Slow::start(product.address)?;
    let with = at_normal_load(plan, product, sale, normal)?;
    let peak_with = at_peak(plan, product, sale)?;
    let slow = slow.end();
    let p99 = |blasted: &Blasted| blasted.accepted_us.value_at_quantile(0.99) as f64 / 1_000.0;
    Ok(Pair {
        without: goodput(&without, plan.run),
        with: goodput(&with, plan.run),
        peak_without,
        peak_with,
        p99_ms: [p99(&without), p99(&with)],
        slow,
    })
}

fn goodput(blasted: &Blasted, run: Duration) -> f64 {
    (blasted.status(202) + blasted.status(409)) as f64 / blasted.elapsed.max(run).as_secs_f64()
}

fn at_normal_load(plan: &Plan, product: &Product, sale: &Sale, rate: f64) -> anyhow::Result<Blasted> {
    let source = Minted::new(product, sale).ahead((rate * plan.run.as_secs_f64() * 1.1) as usize + 1_000);
    let run = blast(plan, product.address, Until::Elapsed(plan.run), Pace::PerSecond(rate));
    let blasted = run.run(|_| source.clone())?;
    product.settle(sale)?;
    Ok(blasted)
}

fn at_peak(plan: &Plan, product: &Product, sale: &Sale) -> anyhow::Result<f64> {
    let source = Minted::new(product, sale).ahead(enough_for(plan.run));
    let run = blast(plan, product.address, Until::Elapsed(plan.run), Pace::Closed);
    let blasted = run.run(|_| source.clone())?;
    let settled = product.settle(sale)?;
    Ok(goodput(&blasted, blasted.elapsed + settled))
}

/// The slow sockets, on a thread of their own.
struct Slow {
    shared: Arc<Shared>,
    thread: std::thread::JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    open: AtomicUsize,
    least: AtomicUsize,
    /// Sum and number of all looks.
    seen: AtomicUsize,
    looks: AtomicUsize,
    thrown_out: AtomicUsize,
    over: AtomicBool,
}

impl Slow {
    /// Returns when nearly all of them are there.
    fn start(address: SocketAddr) -> anyhow::Result<Self> {
        let shared = Arc::new(Shared::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let inside = Arc::clone(&shared);
        let thread = std::thread::spawn(move || runtime.block_on(keep_open(&inside, address)));
        let (slow, began) = (Self { shared, thread }, Instant::now());
        while (slow.shared.open.load(Ordering::Relaxed) as f64) < SLOW_SOCKETS_MIN {
            ensure!(
                began.elapsed() < OPEN_LIMIT,
                "only {} of {SLOW_SOCKETS} slow sockets could be opened",
                slow.shared.open.load(Ordering::Relaxed)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        slow.shared.least.store(SLOW_SOCKETS, Ordering::Relaxed);
        for count in [&slow.shared.seen, &slow.shared.looks, &slow.shared.thrown_out] {
            count.store(0, Ordering::Relaxed);
        }
        Ok(slow)
    }

    fn end(self) -> Kept {
        let of = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let Shared { least, seen, looks, thrown_out, .. } = &*self.shared;
        let on_average = of(seen) as f64 / of(looks).max(1) as f64;
        let kept = Kept { on_average, least: of(least), thrown_out: of(thrown_out) };
        self.shared.over.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
        kept
    }
}

async fn keep_open(shared: &Arc<Shared>, address: SocketAddr) {
    for number in 0..SLOW_SOCKETS {
        let shared = Arc::clone(shared);
        let comes_after = COME_WITHIN.mul_f64(number as f64 / SLOW_SOCKETS as f64);
        tokio::spawn(async move {
            tokio::time::sleep(comes_after).await;
            loop {
                let _ = dawdle(&shared, address, number).await;
                shared.thrown_out.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(COME_BACK_AFTER).await;
            }
        });
        if number % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    while !shared.over.load(Ordering::Relaxed) {
        let open = shared.open.load(Ordering::Relaxed);
        shared.least.fetch_min(open, Ordering::Relaxed);
        shared.seen.fetch_add(open, Ordering::Relaxed);
        shared.looks.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One slow socket, until the server throws it out.
async fn dawdle(shared: &Shared, address: SocketAddr, number: usize) -> std::io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_zero_linger()?;
    let host = u8::try_from(number % SOURCES + 20).unwrap_or(20);
    socket.bind(SocketAddr::from((Ipv4Addr::new(127, 0, 0, host), 0)))?;
    let mut stream = socket.connect(address).await?;
    stream.write_all(b"POST /api/v1/offers/0/orders HTTP/1.1\r\nhost: slow\r\n").await?;
    shared.open.fetch_add(1, Ordering::Relaxed);
    let result = drip(&mut stream, number).await;
    shared.open.fetch_sub(1, Ordering::Relaxed);
    result
}

async fn drip(stream: &mut tokio::net::TcpStream, number: usize) -> std::io::Result<()> {
    // Spread over the interval, as thousands of machines would be.
    let mut pause = DRIP_EVERY.mul_f64((number % 100) as f64 / 100.0);
    let mut byte = [0; 1];
    loop {
        match tokio::time::timeout(pause, stream.read(&mut byte)).await {
            Ok(Ok(0) | Err(_)) => return Ok(()),
            Ok(Ok(_)) => {}
            Err(_) => stream.write_all(b"x-slow: 1\r\n").await?,
        }
        pause = DRIP_EVERY;
    }
}

impl Pair {
    fn json(&self) -> serde_json::Value {
        json!({
            "goodput_without": self.without, "goodput_with": self.with, "peak_without": self.peak_without,
            "peak_with": self.peak_with, "p99_ms_without": self.p99_ms[0], "p99_ms_with": self.p99_ms[1],
            "slow_sockets": self.slow.on_average, "slow_sockets_least": self.slow.least,
            "thrown_out": self.slow.thrown_out,
        })
    }
}

fn table(pairs: &[Pair]) -> Table {
    let row = |pair: &Pair| {
        vec![
            format!("{:.0}", pair.without),
            format!("{:.0}", pair.with),
            format!("{:.1}", pair.p99_ms[0]),
            format!("{:.1}", pair.p99_ms[1]),
            format!("{:.0}", pair.slow.on_average),
            pair.slow.least.to_string(),
            pair.slow.thrown_out.to_string(),
        ]
    };
    Table {
        title: "Slow sockets, each pair of runs",
        head: vec![
            "goodput/s without",
            "with",
            "p99 ms without",
            "with",
            "slow sockets on average",
            "at least",
            "thrown out and back",
        ],
        rows: pairs.iter().map(row).collect(),
    }
}
