//! Ours, as users run it: the real binary in a process of its own, a distinct valid pass per request, metrics, limits
//! and security headers on. Limits are raised so that one generator may be a whole crowd; none is off.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rules::buyer::BuyerId;
use rules::id::OfferId;
use rules::pass::{Pass, PassKeys};
use rules::time::UnixMs;
use serde_json::{Value, json};
use stampede::blast::{Blast, Blasted, Pace, Passes, RequestSource, Until};
use stampede::connection::{Timeouts, render_order};
use tempfile::TempDir;

use crate::Plan;
use crate::ceiling::{Ceiling, Layout};
use crate::report::{Report, median};

const ADMIN_KEY: &str = "bench-admin-key-0123456789abcdef0123456789abcdef";
const AUTH_SECRET: &str = "bench-auth-secret-0123456789abcdef0123456789abcdef";
const PASS_SECRET: &str = "bench-pass-secret-0123456789abcdef0123456789abcdef";

/// The server in a process of its own, on a data folder of its own.
struct Product {
    child: Child,
    address: SocketAddr,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

impl Product {
    fn start(folder: &Path) -> anyhow::Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_doorbuster"))
            .args(["serve", "--set", "listen=127.0.0.1:0"])
            .arg("--data-dir")
            .arg(folder)
            // Raised, not removed: one generator is a whole crowd behind one address.
            .args(["--set", "limits.per_ip_per_s=1000000", "--set", "limits.per_ip_burst=1000000"])
            .args(["--set", "telemetry.log_filter=warn"])
            .env("DOORBUSTER_ADMIN_KEY", ADMIN_KEY)
            .env("DOORBUSTER_AUTH__HS256_SECRET", AUTH_SECRET)
            .env("DOORBUSTER_PASS__SECRET", PASS_SECRET)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        let address =
            line.trim().strip_prefix("listening on http://").context("the server did not start")?.parse()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = reqwest::Client::builder().no_proxy().build()?;
        Ok(Self { child, address, client, runtime })
    }

    fn operate(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let method = reqwest::Method::from_bytes(method.as_bytes())?;
        let mut request =
            self.client.request(method, format!("http://{}{path}", self.address)).bearer_auth(ADMIN_KEY);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.runtime.block_on(async {
            let response = request.send().await?;
            let status = response.status();
            let value: Value = response.json().await?;
            ensure!(status.is_success(), "{path}: {value}");
            Ok(value)
        })
    }

    /// A sale that is open, with so many offers of so many units each.
    fn open_sale(&self, offers: usize, stock: u32) -> anyhow::Result<Sale> {
        let offer = json!({"name": "x", "price": {"amount": 149_900, "currency": "CNY"}, "stock": stock});
        let draft = json!({
            "title": "bench", "opens_at": "2026-01-01T00:00:00Z", "closes_at": "2026-12-31T00:00:00Z",
            "pay_within_s": 86_400, "offers": vec![offer; offers],
        });
        let sale = self.operate("POST", "/admin/v1/sales", Some(&draft))?;
        let id = sale["id"].as_str().context("no id")?.to_owned();
        self.operate("POST", &format!("/admin/v1/sales/{id}/publish"), Some(&json!({})))?;
        let offers = sale["offers"].as_array().context("no offers")?;
        let offers = offers.iter().map(|offer| offer["id"].as_str().unwrap().parse().unwrap()).collect();
        Ok(Sale { id, offers })
    }

    /// Waits until the ledger has everything, and answers how long that took.
    fn settle(&self, sale: &Sale) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            let stats = self.operate("GET", &format!("/admin/v1/sales/{}/stats", sale.id), None)?;
            if stats["queue"]["depth"] == 0 {
                return Ok(began.elapsed());
            }
            ensure!(began.elapsed() < Duration::from_secs(60), "the ledger does not follow: {stats}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn cpu(&self) -> Duration {
        cpu_of(self.child.id())
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Sale {
    id: String,
    offers: Vec<OfferId>,
}

/// User and system time of a process.
fn cpu_of(id: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: u64 =
        after_name.split_whitespace().skip(11).take(2).filter_map(|tick| tick.parse::<u64>().ok()).sum();
    // The kernel counts in hundredths of a second on every Linux we know.
    Duration::from_millis(ticks * 10)
}

/// Passes that are signed as they are needed: any number of buyers, each exactly once.
#[derive(Clone)]
struct Minted {
    keys: Arc<PassKeys>,
    offers: Arc<[OfferId]>,
    host: String,
    next: Arc<AtomicUsize>,
    /// Buyers come again after so many.
    buyers: usize,
    run: u64,
}

impl Minted {
    fn new(product: &Product, sale: &Sale, buyers: usize) -> Self {
        Self {
            keys: Arc::new(PassKeys::new(PASS_SECRET.as_bytes(), None)),
            offers: sale.offers.clone().into(),
            host: product.address.to_string(),
            next: Arc::new(AtomicUsize::new(0)),
            buyers,
            run: rand::random(),
        }
    }

    fn pass(&self, number: usize) -> (OfferId, String) {
        let number = number % self.buyers;
        let offer = self.offers[number % self.offers.len()];
        let buyer = BuyerId::parse(&format!("b{:04x}{number:011}", self.run & 0xffff)).unwrap();
        let now = UnixMs(jiff::Timestamp::now().as_millisecond());
        let order = self.keys.mint_order_id(&buyer, now, rand::random());
        let pass = Pass { buyer: buyer.as_str(), offer, order, expires_at: now.plus_s(300) };
        (offer, self.keys.sign(&pass))
    }

    /// So many passes, signed ahead.
    fn ahead(&self, count: usize) -> Passes {
        let passes: Vec<_> = (0..count).map(|number| self.pass(number)).collect();
        Passes::new(&self.host, passes, 1)
    }
}

impl RequestSource for Minted {
    fn next(&mut self, out: &mut Vec<u8>) -> bool {
        let (offer, pass) = self.pass(self.next.fetch_add(1, Ordering::Relaxed));
        render_order(&self.host, offer, &pass, 1, out);
        true
    }
}

fn blast(plan: &Plan, addr: SocketAddr, until: Until, pace: Pace) -> Blast {
    Blast {
        addr,
        connections: plan.connections,
        threads: plan.threads,
        until,
        pace,
        timeouts: Timeouts::default(),
        count_codes: false,
    }
}

/// What one run of one server gave.
struct Sample {
    rate: f64,
    cpu_us: f64,
    generator_cpu_us: f64,
}

impl Sample {
    fn of(blasted: &Blasted, elapsed: Duration, cpu: Duration) -> Self {
        let answered = blasted.answered().max(1) as f64;
        Self {
            rate: answered / elapsed.as_secs_f64(),
            cpu_us: cpu.as_secs_f64() * 1e6 / answered,
            generator_cpu_us: blasted.cpu.as_secs_f64() * 1e6 / answered,
        }
    }
}

/// Sold-out refusals, accepts and the ceiling, alternating.
pub fn http(plan: &Plan, report: &mut Report, half_load: bool) -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let product = Product::start(folder.path())?;
    let sold_out = product.open_sale(1, 0)?;
    let plenty = product.open_sale(1, 10_000_000)?;
    let (refusal_bytes, accept_bytes) = answer_sizes(plan, &product, &sold_out, &plenty)?;
    println!(
        "answers: {refusal_bytes} bytes refused, {accept_bytes} bytes accepted; passes are signed ahead"
    );
    let per_run = (plan.run.as_secs_f64() * 200_000.0) as usize;
    let mut series: std::collections::BTreeMap<&str, Vec<Sample>> = std::collections::BTreeMap::new();
    for repetition in 0..plan.repetitions {
        for (name, layout) in
            [("ceiling_multi", Layout::MultiThread), ("ceiling_per_core", Layout::ThreadPerCore)]
        {
            let ceiling = Ceiling::start(layout, refusal_bytes)?;
            let source = Minted::new(&product, &sold_out, usize::MAX).ahead(per_run);
            let (blasted, cpu) = measured(
                || cpu_of(ceiling.id()),
                || {
                    blast(plan, ceiling.address, Until::Elapsed(plan.run), Pace::Closed)
                        .run(|_| source.clone())
                },
            )?;
            series.entry(name).or_default().push(Sample::of(&blasted, blasted.elapsed, cpu));
        }
        let source = Minted::new(&product, &sold_out, usize::MAX).ahead(per_run);
        let (blasted, cpu) = measured(
            || product.cpu(),
            || blast(plan, product.address, Until::Elapsed(plan.run), Pace::Closed).run(|_| source.clone()),
        )?;
        ensure!(
            blasted.status(409) == blasted.answered(),
            "not only refusals: {:?}",
            blasted.by_status().collect::<Vec<_>>()
        );
        series.entry("refuse").or_default().push(Sample::of(&blasted, blasted.elapsed, cpu));

        let source = Minted::new(&product, &plenty, usize::MAX).ahead(per_run);
        let mut settled = Duration::ZERO;
        let (blasted, cpu) = measured(
            || product.cpu(),
            || {
                let blasted = blast(plan, product.address, Until::Elapsed(plan.run), Pace::Closed)
                    .run(|_| source.clone())?;
                settled = product.settle(&plenty)?;
                Ok(blasted)
            },
        )?;
        ensure!(
            blasted.status(202) == blasted.answered(),
            "not only accepts: {:?}",
            blasted.by_status().collect::<Vec<_>>()
        );
        // The ledger follows in the same run: the time it needs to catch up counts.
        series.entry("accept").or_default().push(Sample::of(&blasted, blasted.elapsed + settled, cpu));
        for (name, samples) in &series {
            let last = samples.last().unwrap();
            println!(
                "  run {}: {name:<16} {:>9.0}/s  server {:>5.2} us  generator {:>5.2} us",
                repetition + 1,
                last.rate,
                last.cpu_us,
                last.generator_cpu_us
            );
        }
    }
    let rate = |name: &str| median(&series[name].iter().map(|sample| sample.rate).collect::<Vec<_>>());
    let cpu = |name: &str| median(&series[name].iter().map(|sample| sample.cpu_us).collect::<Vec<_>>());
    let ceiling_rate = rate("ceiling_multi").max(rate("ceiling_per_core"));
    let ceiling_cpu = if rate("ceiling_multi") > rate("ceiling_per_core") {
        cpu("ceiling_multi")
    } else {
        cpu("ceiling_per_core")
    };
    for (name, samples) in &series {
        let samples: Vec<_> = samples
            .iter()
            .map(|s| json!({"rate": s.rate, "cpu_us": s.cpu_us, "generator_cpu_us": s.generator_cpu_us}))
            .collect();
        report.raw(name, json!(samples));
    }
    report.figure("ceiling_per_s", ceiling_rate, "1/s", "bare hyper, the faster layout", None, true);
    report.figure("ceiling_cpu_us", ceiling_cpu, "us", "its CPU per request", None, false);
    report.figure(
        "refuse_vs_hyper",
        rate("refuse") / ceiling_rate,
        "x",
        "sold-out refusals against the ceiling",
        Some((0.80, 0.90)),
        true,
    );
    report.figure(
        "refuse_cpu_vs_hyper",
        cpu("refuse") / ceiling_cpu,
        "x",
        "server CPU per refusal against the ceiling",
        Some((1.45, 1.25)),
        false,
    );
    report.figure(
        "accept_vs_hyper",
        rate("accept") / ceiling_rate,
        "x",
        "durable accepts, ledger following, against the ceiling",
        Some((0.50, 0.60)),
        true,
    );
    report.figure("accept_per_s", rate("accept"), "1/s", "durable accepts, ledger following", None, true);
    report.figure(
        "accept_cpu_us",
        cpu("accept"),
        "us",
        "server CPU per accept, ledger included",
        None,
        false,
    );
    if half_load {
        at_half_load(plan, report, &product, &plenty, rate("accept") / 2.0)?;
    }
    Ok(())
}

fn at_half_load(
    plan: &Plan,
    report: &mut Report,
    product: &Product,
    sale: &Sale,
    rate: f64,
) -> anyhow::Result<()> {
    let mut p99 = Vec::new();
    for _ in 0..plan.repetitions {
        let source =
            Minted::new(product, sale, usize::MAX).ahead((rate * plan.run.as_secs_f64() * 1.1) as usize);
        let run = blast(plan, product.address, Until::Elapsed(plan.run), Pace::PerSecond(rate));
        let blasted = run.run(|_| source.clone())?;
        product.settle(sale)?;
        let at = |quantile| blasted.accepted_us.value_at_quantile(quantile) as f64 / 1_000.0;
        println!("  half load: p50 {:.2} ms  p99 {:.2} ms  max {:.2} ms", at(0.5), at(0.99), at(1.0));
        p99.push(at(0.99));
    }
    report.raw("half_load_p99_ms", json!(p99));
    report.figure(
        "accept_p99_ms_half_load",
        median(&p99),
        "ms",
        "p99 of accepts at half of that load, open loop",
        Some((10.0, 5.0)),
        false,
    );
    Ok(())
}

/// What a request ends in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    Refuse,
    Accept,
}

/// Where the server's CPU goes, by thread.
pub fn profile(plan: &Plan, kind: Kind) -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let product = Product::start(folder.path())?;
    let sale = product.open_sale(1, if kind == Kind::Accept { 10_000_000 } else { 0 })?;
    let source =
        Minted::new(&product, &sale, usize::MAX).ahead((plan.run.as_secs_f64() * 100_000.0) as usize);
    println!("server: process {}", product.child.id());
    let before = thread_cpu_us(product.child.id());
    let blasted =
        blast(plan, product.address, Until::Elapsed(plan.run), Pace::Closed).run(|_| source.clone())?;
    let settled = product.settle(&sale)?;
    let after = thread_cpu_us(product.child.id());
    let answered = blasted.answered().max(1) as f64;
    println!("{:.0}/s", answered / (blasted.elapsed + settled).as_secs_f64());
    for (name, us) in after {
        println!("{name:<16} {:>6.2} us", (us - before.get(&name).unwrap_or(&0.0)) / answered);
    }
    Ok(())
}

/// CPU of a process by the names of its threads, in microseconds.
fn thread_cpu_us(id: u32) -> std::collections::BTreeMap<String, f64> {
    let mut by_name = std::collections::BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let ns: f64 = read("schedstat").split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0);
        *by_name.entry(read("comm").trim().to_owned()).or_default() += ns / 1_000.0;
    }
    by_name
}

/// CPU per refusal and per accept as offers and buyers grow.
pub fn spread(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let few_buyers = 10_000;
    let cost = |offers: usize, stock: u32, buyers: usize, requests: usize| -> anyhow::Result<f64> {
        let folder = TempDir::new()?;
        let product = Product::start(folder.path())?;
        let sale = product.open_sale(offers, stock)?;
        let source = Minted::new(&product, &sale, buyers);
        let (blasted, cpu) = measured(
            || product.cpu(),
            || {
                let run = blast(plan, product.address, Until::Requests(requests as u64), Pace::Closed);
                let blasted = run.run(|_| source.clone())?;
                product.settle(&sale)?;
                Ok(blasted)
            },
        )?;
        Ok(cpu.as_secs_f64() * 1e6 / blasted.answered() as f64)
    };
    let many = plan.many_buyers;
    let requests = many.min(500_000);
    let refuse_few = cost(1, 0, few_buyers, requests)?;
    let refuse_offers = cost(1_000, 0, few_buyers, requests)?;
    let refuse_buyers = cost(1, 0, many, many)?;
    let worst = refuse_offers.max(refuse_buyers) / refuse_few;
    report.raw(
        "spread_refuse_cpu_us",
        json!({"few": refuse_few, "offers_1000": refuse_offers, "buyers_many": refuse_buyers}),
    );
    report.figure(
        "refuse_cpu_spread",
        worst,
        "x",
        "CPU per refusal, 1 -> 1,000 offers and 10 thousand -> many buyers",
        Some((1.2, 1.05)),
        false,
    );
    let accept_few = cost(1, 10_000_000, few_buyers, few_buyers)?;
    let accept_offers = cost(1_000, 10_000, requests, requests)?;
    let accept_buyers = cost(1, 10_000_000, many, many)?;
    let worst = accept_offers.max(accept_buyers) / accept_few;
    report.raw(
        "spread_accept_cpu_us",
        json!({"few": accept_few, "offers_1000": accept_offers, "buyers_many": accept_buyers}),
    );
    report.figure(
        "accept_cpu_spread",
        worst,
        "x",
        "CPU per accept, 1 -> 1,000 offers and 10 thousand -> many buyers",
        Some((1.2, 1.05)),
        false,
    );
    Ok(())
}

/// How long a start takes with a past.
pub fn start(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let product = Product::start(folder.path())?;
    let sale = product.open_sale(1, 10_000_000)?;
    let source = Minted::new(&product, &sale, usize::MAX);
    let run = blast(plan, product.address, Until::Requests(plan.recorded_orders as u64), Pace::Closed);
    run.run(|_| source.clone())?;
    product.settle(&sale)?;
    drop(product);
    let mut seconds = Vec::new();
    for _ in 0..plan.repetitions {
        let began = Instant::now();
        let product = Product::start(folder.path())?;
        seconds.push(began.elapsed().as_secs_f64());
        drop(product);
    }
    report.raw("start_s", json!(seconds));
    let per_million = median(&seconds) * 1_000_000.0 / plan.recorded_orders as f64;
    report.figure(
        "start_1m_orders_s",
        per_million,
        "s",
        "start to ready, per million recorded orders",
        Some((5.0, 2.0)),
        false,
    );
    Ok(())
}

/// Bytes of one refusal and one accept, head included.
fn answer_sizes(
    plan: &Plan,
    product: &Product,
    sold_out: &Sale,
    plenty: &Sale,
) -> anyhow::Result<(usize, usize)> {
    let size = |sale: &Sale| -> anyhow::Result<usize> {
        let source = Minted::new(product, sale, usize::MAX);
        let one = Plan { connections: 1, threads: 1, ..*plan };
        let blasted =
            blast(&one, product.address, Until::Requests(50), Pace::Closed).run(|_| source.clone())?;
        Ok((blasted.bytes_in / blasted.answered().max(1)) as usize)
    };
    Ok((size(sold_out)?, size(plenty)?))
}

fn measured(
    cpu: impl Fn() -> Duration,
    run: impl FnOnce() -> anyhow::Result<Blasted>,
) -> anyhow::Result<(Blasted, Duration)> {
    let before = cpu();
    let blasted = run()?;
    Ok((blasted, cpu().saturating_sub(before)))
}
