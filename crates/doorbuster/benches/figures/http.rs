//! Sold-out refusals and accepts: the ceiling, ours and the rivals, alternating in one run. Every contender gets
//! requests of the same size from the same generator and answers with the same number of bytes.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use stampede::blast::{Blasted, Pace, Until};
use tempfile::TempDir;

use crate::Plan;
use crate::ceiling::{Ceiling, Layout};
use crate::disk;
use crate::load::{Minted, Requests, RivalRequests, Sample, blast, enough_for};
use crate::passes;
use crate::product::{Product, Sale};
use crate::report::{Bar, Goal, Picture, Report, Table, median};
use crate::rivals::{self, AnswerBytes, Front, Keeping, Rival};

/// More than any run sells.
const PLENTY: u32 = 10_000_000;
/// At half load nobody waits for a free connection: a crowd has one each.
const HALF_LOAD_CONNECTIONS: usize = 1_024;
/// A processor that its host lends to others for a moment is in the p99 of a round; in that of the median round it is only
/// if that happens all the time.
const HALF_LOAD_ROUNDS: usize = 7;
/// Every contender's first run is thrown away: compilers, caches and connections to Redis warm up in it.
const WARM_UP: Duration = Duration::from_millis(700);

/// Which of the two requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Refuse,
    Accept,
}

/// Whose cost is looked at by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Profiled {
    Refuse,
    Accept,
    /// Fetching one.
    Pass,
}

impl Kind {
    const fn status(self) -> u16 {
        match self {
            Self::Refuse => 409,
            Self::Accept => 202,
        }
    }
}

/// One line of the alternation.
struct Contender {
    name: &'static str,
    label: &'static str,
    kind: Kind,
    server: Server,
}

enum Server {
    Ceiling(Ceiling),
    Ours(Buyers, Rc<Ours>),
    Rival(Rival),
}

/// How the buyers of a run are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Buyers {
    InOrder,
    Scattered,
}

/// Ours and the two sales that are asked for.
struct Ours {
    product: Product,
    sold_out: Sale,
    plenty: Sale,
    request_bytes: usize,
    answers: AnswerBytes,
    _folder: TempDir,
}

type Series = BTreeMap<&'static str, Vec<Sample>>;
/// What of a sample is looked at.
type Of = fn(&Sample) -> f64;

pub fn measure(plan: &Plan, report: &mut Report, half_load: bool) -> anyhow::Result<()> {
    let ours = Rc::new(Ours::start(plan)?);
    report.command(ours.product.command());
    report.condition("request_bytes", json!(ours.request_bytes));
    report.condition(
        "answer_bytes",
        json!({"refused": ours.answers.refused, "accepted": ours.answers.accepted}),
    );
    report.condition("rivals", rivals::versions());
    let mut contenders = line_up(plan, &ours, report)?;
    for contender in &mut contenders {
        report.say(&format!("warm-up: {}", contender.label));
        run(&Plan { run: WARM_UP, ..*plan }, &ours, contender)?;
    }
    let mut series = Series::new();
    for repetition in 1..=plan.repetitions {
        for contender in &mut contenders {
            disk::quiet();
            let sample = run(plan, &ours, contender)?;
            report.say(&format!(
                "run {repetition}/{}: {:<22} {:>8.0}/s  server {:>6.2} us  generator {:>5.2} us  p99 {:>6.2} ms{}",
                plan.repetitions,
                contender.name,
                sample.rate,
                sample.cpu_us,
                sample.generator_cpu_us,
                sample.p99_ms,
                if sample.busy > 0 { format!("  {} told busy", sample.busy) } else { String::new() }
            ));
            series.entry(contender.name).or_default().push(sample);
        }
    }
    for (name, samples) in &series {
        report.raw(name, json!(samples.iter().map(Sample::json).collect::<Vec<_>>()));
    }
    figures(report, &series);
    pictures(report, &contenders, &series);
    drop(contenders);
    if half_load {
        at_half_load(plan, report, &ours)?;
    }
    Ok(())
}

impl Ours {
    fn start(plan: &Plan) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let product = Product::start_without_audits(folder.path())?;
        let sold_out = product.open_sale(1, 0)?;
        let plenty = product.open_sale(1, PLENTY)?;
        let request_bytes = Minted::new(&product, &sold_out).request_bytes();
        let one = Plan { connections: 1, threads: 1, ..*plan };
        let size = |sale: &Sale| -> anyhow::Result<usize> {
            let source = Minted::new(&product, sale);
            let run = blast(&one, product.address, Until::Requests(50), Pace::Closed);
            let blasted = run.run(|_| source.clone())?;
            Ok((blasted.bytes_in / blasted.answered().max(1)) as usize)
        };
        let answers = AnswerBytes { refused: size(&sold_out)?, accepted: size(&plenty)? };
        Ok(Self { product, sold_out, plenty, request_bytes, answers, _folder: folder })
    }

    fn sale(&self, kind: Kind) -> &Sale {
        match kind {
            Kind::Refuse => &self.sold_out,
            Kind::Accept => &self.plenty,
        }
    }

    /// As many as are answered.
    fn run(&self, plan: &Plan, kind: Kind, buyers: Buyers) -> anyhow::Result<Sample> {
        let sale = self.sale(kind);
        let minted = Minted::new(&self.product, sale);
        let minted = if buyers == Buyers::Scattered { minted.scattered() } else { minted };
        let source = minted.ahead(enough_for(plan.run));
        let before = self.product.cpu();
        let blasted = blast(plan, self.product.address, Until::Elapsed(plan.run), Pace::Closed)
            .run(|_| source.clone())?;
        // The ledger follows in the same run: the time it needs to catch up counts, and so does its CPU.
        let settled = match kind {
            Kind::Refuse => Duration::ZERO,
            Kind::Accept => self.product.settle(sale)?,
        };
        let cpu = self.product.cpu().saturating_sub(before);
        checked(&blasted, kind, "ours")?;
        Ok(Sample::of(&blasted, kind.status(), blasted.elapsed + settled, cpu))
    }
}

/// Everybody who takes part, in the order of their turns. Without Node's library its turn is left out and named.
fn line_up(plan: &Plan, ours: &Rc<Ours>, report: &mut Report) -> anyhow::Result<Vec<Contender>> {
    use Kind::{Accept, Refuse};
    let ceiling = |layout, answer_bytes| Ceiling::start(layout, answer_bytes).map(Server::Ceiling);
    let AnswerBytes { refused, accepted } = ours.answers;
    let rival = |front, keeping| Rival::start(front, keeping, ours.answers).map(Server::Rival);
    // In a ledger of their own: pages that scattered names leave to be copied back must not weigh on the others' turn.
    let apart = Rc::new(Ours::start(plan)?);
    let needed = "nginx and Redis must start for the comparison";
    let mut contenders = vec![
        contender(
            "ceiling_multi",
            "bare hyper, shared threads",
            Refuse,
            ceiling(Layout::MultiThread, refused)?,
        ),
        contender(
            "ceiling_per_core",
            "bare hyper, thread per core",
            Refuse,
            ceiling(Layout::ThreadPerCore, refused)?,
        ),
        contender("echo", "bytes for bytes, no HTTP", Refuse, ceiling(Layout::Echo, refused)?),
        contender("refuse", "Doorbuster", Refuse, Server::Ours(Buyers::InOrder, Rc::clone(ours))),
        contender(
            "nginx_redis_refuse",
            "nginx + Lua + Redis",
            Refuse,
            rival(Front::Nginx, Keeping::Nothing).context(needed)?,
        ),
        contender(
            "nginx_flag_refuse",
            "nginx + local sold-out flag",
            Refuse,
            rival(Front::NginxLocalFlag, Keeping::Nothing).context(needed)?,
        ),
        contender(
            "nginx_limited_flag_refuse",
            "nginx + local sold-out flag + limit per buyer",
            Refuse,
            rival(Front::NginxLimitedFlag, Keeping::Nothing).context(needed)?,
        ),
        contender(
            "nginx_worker_flag_refuse",
            "nginx + a flag in each worker",
            Refuse,
            rival(Front::NginxWorkerFlag, Keeping::Nothing).context(needed)?,
        ),
        contender(
            "ceiling_multi_accepted",
            "bare hyper, shared threads",
            Accept,
            ceiling(Layout::MultiThread, accepted)?,
        ),
        contender(
            "ceiling_per_core_accepted",
            "bare hyper, thread per core",
            Accept,
            ceiling(Layout::ThreadPerCore, accepted)?,
        ),
        contender("accept", "Doorbuster, on disk", Accept, Server::Ours(Buyers::InOrder, Rc::clone(ours))),
        contender(
            "accept_scattered",
            "Doorbuster, on disk, scattered names",
            Accept,
            Server::Ours(Buyers::Scattered, apart),
        ),
        contender(
            "nginx_redis_accept",
            "nginx + Lua + Redis, in memory",
            Accept,
            rival(Front::Nginx, Keeping::Nothing).context(needed)?,
        ),
        contender(
            "nginx_always_accept",
            "nginx + Lua + Redis, on disk",
            Accept,
            rival(Front::Nginx, Keeping::Always).context(needed)?,
        ),
    ];
    match rival(Front::Node, Keeping::Nothing) {
        Ok(server) => {
            contenders.push(contender("node_redis_accept", "Node + ioredis, in memory", Accept, server));
        }
        Err(error) => report.absent("node_redis_accept", &format!("{error:#}")),
    }
    for contender in &contenders {
        match &contender.server {
            Server::Ceiling(ceiling) => report.command(ceiling.command()),
            Server::Ours(..) => {}
            Server::Rival(rival) => rival.commands().into_iter().for_each(|line| report.command(line)),
        }
    }
    Ok(contenders)
}

const fn contender(name: &'static str, label: &'static str, kind: Kind, server: Server) -> Contender {
    Contender { name, label, kind, server }
}

fn run(plan: &Plan, ours: &Ours, contender: &mut Contender) -> anyhow::Result<Sample> {
    let kind = contender.kind;
    let count = enough_for(plan.run);
    let load = |address, source: Requests| {
        blast(plan, address, Until::Elapsed(plan.run), Pace::Closed).run(|_| source.clone())
    };
    match &mut contender.server {
        Server::Ceiling(ceiling) => {
            let source = Requests::Ours(Minted::new(&ours.product, &ours.sold_out).ahead(count));
            let before = ceiling.cpu();
            let blasted = load(ceiling.address, source)?;
            let cpu = ceiling.cpu().saturating_sub(before);
            // Whatever it is compared with, it always says the same.
            checked(&blasted, Kind::Refuse, contender.name)?;
            Ok(Sample::of(&blasted, Kind::Refuse.status(), blasted.elapsed, cpu))
        }
        Server::Ours(buyers, ours) => ours.run(plan, kind, *buyers),
        Server::Rival(rival) => {
            rival.open_sale(if kind == Kind::Accept { PLENTY } else { 0 })?;
            let source = Requests::Rival(RivalRequests::new(rival.address, count, ours.request_bytes));
            let before = rival.cpu();
            let blasted = load(rival.address, source)?;
            let cpu = rival.cpu().saturating_sub(before);
            checked(&blasted, kind, contender.name)?;
            let orders = rival.orders()?;
            let expected = if kind == Kind::Accept { blasted.status(202) } else { 0 };
            ensure!(orders == expected, "{}: {orders} orders for {expected} accepts", contender.name);
            Ok(Sample::of(&blasted, kind.status(), blasted.elapsed, cpu))
        }
    }
}

/// A rate of wrong answers is no rate. `busy` is a right answer of a full queue; it is counted as none.
fn checked(blasted: &Blasted, kind: Kind, name: &str) -> anyhow::Result<()> {
    let right = blasted.status(kind.status());
    let busy = if kind == Kind::Accept { blasted.status(503) } else { 0 };
    ensure!(
        right + busy == blasted.answered() && right > 0 && blasted.broken + blasted.timeouts == 0,
        "{name}: not only answers of {}: {:?}, {} broken, {} timeouts",
        kind.status(),
        blasted.by_status().collect::<Vec<_>>(),
        blasted.broken,
        blasted.timeouts
    );
    Ok(())
}

fn median_of(series: &Series, name: &str, of: Of) -> f64 {
    median(&series.get(name).into_iter().flatten().map(of).collect::<Vec<_>>())
}

/// The median of the ratios of one repetition each: what drifts in the machine drifts in both.
fn ratio(series: &Series, name: &str, against: &str, of: Of) -> f64 {
    let pairs = series.get(name).into_iter().flatten().zip(series.get(against).into_iter().flatten());
    median(&pairs.map(|(ours, theirs)| of(ours) / of(theirs)).collect::<Vec<_>>())
}

fn figures(report: &mut Report, series: &Series) {
    let rate: Of = |sample| sample.rate;
    let cpu: Of = |sample| sample.cpu_us;
    let faster_of = |multi: &'static str, per_core: &'static str| {
        if median_of(series, multi, rate) > median_of(series, per_core, rate) { multi } else { per_core }
    };
    let faster = faster_of("ceiling_multi", "ceiling_per_core");
    let faster_accepted = faster_of("ceiling_multi_accepted", "ceiling_per_core_accepted");
    report.raw("ceilings", json!({"refused": faster, "accepted": faster_accepted}));
    let info = Goal::Information;
    report.figure(
        "ceiling_per_s",
        median_of(series, faster, rate),
        "1/s",
        "bare hyper, the faster layout",
        info,
    );
    report.figure("ceiling_cpu_us", median_of(series, faster, cpu), "us", "its CPU per request", info);
    let at_least = |must, target| Goal::AtLeast { must, target };
    let at_most = |must, target| Goal::AtMost { must, target };
    let mut compare = |name, of: &str, against: &str, by, what, goal| {
        report.figure(name, ratio(series, of, against, by), "x", what, goal);
    };
    compare(
        "refuse_vs_hyper",
        "refuse",
        faster,
        rate,
        "sold-out refusals against the ceiling",
        at_least(0.85, 0.92),
    );
    compare(
        "refuse_cpu_vs_hyper",
        "refuse",
        faster,
        cpu,
        "server CPU per refusal against the ceiling",
        at_most(1.45, 1.25),
    );
    compare(
        "accept_vs_hyper",
        "accept",
        faster_accepted,
        rate,
        "durable accepts, ledger following, against the ceiling",
        at_least(0.55, 0.65),
    );
    compare(
        "accept_scattered_vs_hyper",
        "accept_scattered",
        faster_accepted,
        rate,
        "the same with names that no index can lean on",
        info,
    );
    compare(
        "accept_vs_nginx_redis",
        "accept",
        "nginx_redis_accept",
        rate,
        "durable accepts against nginx + Lua + Redis without persistence",
        at_least(1.8, 2.5),
    );
    compare(
        "accept_scattered_vs_nginx_redis",
        "accept_scattered",
        "nginx_redis_accept",
        rate,
        "the same with names that no index can lean on",
        info,
    );
    compare(
        "refuse_vs_nginx_redis",
        "refuse",
        "nginx_redis_refuse",
        rate,
        "refusals against nginx + Lua + Redis",
        at_least(2.3, 2.8),
    );
    compare(
        "refuse_vs_nginx_local_flag",
        "refuse",
        "nginx_flag_refuse",
        rate,
        "refusals against nginx with a local sold-out flag",
        at_least(1.2, 1.4),
    );
    compare(
        "refuse_vs_nginx_limited_flag",
        "refuse",
        "nginx_limited_flag_refuse",
        rate,
        "the same with a limit per buyer, as ours has",
        info,
    );
    compare(
        "refuse_vs_nginx_worker_flag",
        "refuse",
        "nginx_worker_flag_refuse",
        rate,
        "with a variable of each worker and no limit: about a bare server",
        info,
    );
    compare(
        "refuse_cpu_vs_nginx_local_flag",
        "refuse",
        "nginx_flag_refuse",
        cpu,
        "server CPU per refusal against nginx with a local sold-out flag",
        info,
    );
    compare(
        "echo_vs_nginx_local_flag",
        "echo",
        "nginx_flag_refuse",
        rate,
        "what no server can exceed here: bytes for bytes, against nginx with a local sold-out flag",
        info,
    );
    compare(
        "accept_cpu_vs_nginx_redis",
        "accept",
        "nginx_redis_accept",
        cpu,
        "total CPU per accept against nginx + Lua + Redis, all processes",
        at_most(0.50, 0.40),
    );
    compare(
        "accept_vs_nginx_always",
        "accept",
        "nginx_always_accept",
        rate,
        "against Redis that syncs too",
        info,
    );
    if series.contains_key("node_redis_accept") {
        compare("accept_vs_node_redis", "accept", "node_redis_accept", rate, "against Node + ioredis", info);
    }
    report.figure(
        "accept_per_s",
        median_of(series, "accept", rate),
        "1/s",
        "durable accepts, ledger following",
        info,
    );
    report.figure(
        "accept_cpu_us",
        median_of(series, "accept", cpu),
        "us",
        "server CPU per accept, ledger included",
        info,
    );
    report.figure("refuse_per_s", median_of(series, "refuse", rate), "1/s", "refusals", info);
    report.figure("refuse_cpu_us", median_of(series, "refuse", cpu), "us", "server CPU per refusal", info);
}

fn pictures(report: &mut Report, contenders: &[Contender], series: &Series) {
    let bars = |kind: Kind, of: Of| -> Vec<Bar> {
        let chosen = contenders.iter().filter(|contender| contender.kind == kind);
        let bar = |contender: &Contender| {
            let samples: Vec<f64> = series.get(contender.name).into_iter().flatten().map(of).collect();
            Bar::of(contender.label, matches!(contender.server, Server::Ours(..)), &samples)
        };
        chosen.map(bar).collect()
    };
    let (rate, cpu): (Of, Of) = (|s| s.rate, |s| s.cpu_us);
    let pictures = [
        ("refuse-rate.svg", "Sold-out refusals per second", "1/s", bars(Kind::Refuse, rate)),
        ("refuse-cpu.svg", "Server CPU per refusal, all processes", "us", bars(Kind::Refuse, cpu)),
        ("accept-rate.svg", "Accepted orders per second", "1/s", bars(Kind::Accept, rate)),
        ("accept-cpu.svg", "Server CPU per accepted order, all processes", "us", bars(Kind::Accept, cpu)),
    ];
    for (file, title, unit, bars) in pictures {
        report.pictures.push(Picture { file, title, unit, bars });
    }
    let row = |contender: &Contender| {
        let of = |value: fn(&Sample) -> f64| median_of(series, contender.name, value);
        vec![
            match contender.kind {
                Kind::Refuse if matches!(contender.server, Server::Ceiling(_)) => {
                    "ceiling, refuse".to_owned()
                }
                Kind::Accept if matches!(contender.server, Server::Ceiling(_)) => {
                    "ceiling, accept".to_owned()
                }
                Kind::Refuse => "refuse".to_owned(),
                Kind::Accept => "accept".to_owned(),
            },
            contender.label.to_owned(),
            format!("{:.0}", of(|s| s.rate)),
            format!("{:.2}", of(|s| s.cpu_us)),
            format!("{:.2}", of(|s| s.generator_cpu_us)),
            format!("{:.2}", of(|s| s.p50_ms)),
            format!("{:.2}", of(|s| s.p99_ms)),
        ]
    };
    report.tables.push(Table {
        title: "All contenders, medians",
        head: vec!["what", "who", "requests/s", "server CPU us", "generator CPU us", "p50 ms", "p99 ms"],
        rows: contenders.iter().map(row).collect(),
    });
}

/// The latency of accepts where nothing is short: at half of what was accepted just before, since what the machine can do
/// changes within a minute. Beside it the two parts that are the machine's: what a bare server needs at that rate, which
/// is large where cores are shared with others, and what the disk alone makes everybody wait who answers after a sync.
fn at_half_load(full: &Plan, report: &mut Report, ours: &Ours) -> anyhow::Result<()> {
    let plan = &Plan { connections: HALF_LOAD_CONNECTIONS, ..*full };
    let ceiling = Ceiling::start(Layout::ThreadPerCore, ours.answers.accepted)?;
    let (mut p99, mut bare_p99, mut disk_p99) = (Vec::new(), Vec::new(), Vec::new());
    for round in 1..=HALF_LOAD_ROUNDS {
        let rate = ours.run(full, Kind::Accept, Buyers::InOrder)?.rate / 2.0;
        let count = (rate * plan.run.as_secs_f64() * 1.1) as usize;
        let paced = |address, sale: &Sale| {
            let source = Minted::new(&ours.product, sale).ahead(count);
            disk::quiet();
            blast(plan, address, Until::Elapsed(plan.run), Pace::PerSecond(rate)).run(|_| source.clone())
        };
        let blasted = paced(ours.product.address, &ours.plenty)?;
        ours.product.settle(&ours.plenty)?;
        checked(&blasted, Kind::Accept, "half load")?;
        let bare = paced(ceiling.address, &ours.sold_out)?;
        checked(&bare, Kind::Refuse, "bare hyper at half load")?;
        let disk_at_99 = disk::answer_p99_ms(plan.run)?;
        let at = |quantile| blasted.accepted_us.value_at_quantile(quantile) as f64 / 1_000.0;
        let bare_at_99 = bare.latency_us.value_at_quantile(0.99) as f64 / 1_000.0;
        report.say(&format!(
            "half load {round}/{HALF_LOAD_ROUNDS}: {rate:.0}/s offered, {:.1} % sent, p50 {:.2} ms  p99 {:.2} ms  \
             max {:.2} ms; p99 of bare hyper {bare_at_99:.2} ms, of the disk {disk_at_99:.2} ms",
            blasted.sent as f64 * 100.0 / blasted.offered.max(1) as f64,
            at(0.5),
            at(0.99),
            at(1.0)
        ));
        p99.push(at(0.99));
        bare_p99.push(bare_at_99);
        disk_p99.push(disk_at_99);
    }
    report.raw("half_load_p99_ms", json!({"ours": p99, "bare": bare_p99, "disk": disk_p99}));
    report.figure(
        "accept_p99_ms_half_load",
        median(&p99),
        "ms",
        "p99 of accepts at half of that load, open loop",
        Goal::AtMost { must: 10.0, target: 5.0 },
    );
    report.figure(
        "bare_p99_ms_half_load",
        median(&bare_p99),
        "ms",
        "p99 of bare hyper at the same rate, without disk: the machine's own part",
        Goal::Information,
    );
    report.figure(
        "disk_p99_ms_half_load",
        median(&disk_p99),
        "ms",
        "p99 of an answer that waits for nothing but a sync, nobody else at the disk: the disk's own part",
        Goal::Information,
    );
    Ok(())
}

/// Where the server's CPU goes, by thread, and nothing else.
pub fn profile(plan: &Plan, what: Profiled, rate: Option<f64>) -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let product = Product::start(folder.path())?;
    let sale = product.open_sale(1, if what == Profiled::Refuse { 0 } else { PLENTY })?;
    let source = match what {
        Profiled::Pass => Requests::Written(passes::asks(plan, &product, &sale)?),
        Profiled::Refuse | Profiled::Accept => {
            Requests::Ours(Minted::new(&product, &sale).ahead(enough_for(plan.run)))
        }
    };
    println!("server: process {}", product.id());
    let before = crate::processes::thread_cpu_us(product.id());
    let pace = rate.map_or(Pace::Closed, Pace::PerSecond);
    let connections = if rate.is_some() { HALF_LOAD_CONNECTIONS } else { plan.connections };
    let plan = &Plan { connections, ..*plan };
    disk::quiet();
    let blasted = blast(plan, product.address, Until::Elapsed(plan.run), pace).run(|_| source.clone())?;
    let settled = product.settle(&sale)?;
    let after = crate::processes::thread_cpu_us(product.id());
    let answered = blasted.answered().max(1) as f64;
    println!("{:.0}/s", answered / (blasted.elapsed + settled).as_secs_f64());
    println!(
        "{:.0}/s without the {} ms until the ledger had all",
        answered / blasted.elapsed.as_secs_f64(),
        settled.as_millis()
    );
    if rate.is_some() {
        let at = |quantile| blasted.accepted_us.value_at_quantile(quantile) as f64 / 1_000.0;
        println!("accepted after p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", at(0.5), at(0.99), at(1.0));
    }
    // A thread that ended meanwhile is not among them.
    let mut spent_us = BTreeMap::<String, f64>::new();
    for (thread, (name, us)) in after {
        let us_before = before.get(&thread).map_or(0.0, |(_, us)| *us);
        *spent_us.entry(name).or_default() += us - us_before;
    }
    for (name, us) in spent_us {
        println!("{name:<16} {:>6.2} us", us / answered);
    }
    Ok(())
}
