//! `cargo xtask bench`: the figures, measured as ratios in one run, with the conditions printed beside them.
//!
//! Everything is loopback on one machine, and the load generator shares its cores: rates are only worth something
//! against the ceiling of the same run. Server CPU per request is read from /proc and is steadier.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a measuring tool: it reads the clock, prints, and fails loudly"
)]

/// What a bare server can do.
mod ceiling;

/// What the disk alone costs, and peace on it before a run.
mod disk;

/// Ours, as users run it.
mod product;

/// What others would build.
mod rivals;

/// Requests, and what came of them.
mod load;

/// Refusals and accepts, everybody in turn.
mod http;

/// The right to try.
mod passes;

/// Simulated buyers, and what they cost.
mod crowd;

/// Buyers on connections of their own.
mod arrivals;

/// Ten times too many of them.
mod overload;

/// Ten thousand sockets that never end their request.
mod slowloris;

/// Many offers, many buyers.
mod spread;

/// Bytes per claim.
mod memory;

/// A start with a past.
mod start;

/// An audit of a long past.
mod audit;

/// Events on their way out.
mod webhooks;

/// Gate and SQLite alone.
mod parts;

/// Starting, ending and observing processes.
mod processes;

/// A share of a core.
mod quota;

/// Tables and JSON.
mod report;

/// Why the journal has a file of its own.
mod files;

/// Money beside a crowd.
mod settle;

/// Very many unpaid orders at once.
mod timeouts;

/// The page in `docs/`.
mod document;

/// Its pictures.
mod svg;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use serde_json::json;

use crate::report::Goal;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Debug, Parser)]
struct Args {
    /// A few minutes instead of many: shorter runs, fewer repetitions, smaller crowds.
    #[arg(long)]
    quick: bool,
    /// Repetitions of each alternating measurement; the median counts.
    #[arg(long)]
    repetitions: Option<usize>,
    /// Connections on which the next request waits for the answer to the one before.
    #[arg(long)]
    connections: Option<usize>,
    /// Writes figures and samples as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Only these groups.
    #[arg(long, value_delimiter = ',')]
    only: Vec<Group>,
    /// Writes docs/performance.md below this folder.
    #[arg(long)]
    write_docs: Option<PathBuf>,
    /// What of a request was counted before, as name=count.
    #[arg(long, value_delimiter = ',')]
    instructions: Vec<String>,
    /// Measures nothing against anything: loads the server with one kind of request for ten seconds and says which
    /// of its threads spent what on it. For use beside `perf`.
    #[arg(long)]
    profile: Option<http::Profiled>,
    /// Offers so many requests per second instead of as many as are answered, and prints their latency.
    #[arg(long, requires = "profile")]
    rate: Option<f64>,
    /// Runs as the ceiling server instead (used by the bench itself).
    #[arg(long, hide = true)]
    ceiling: Option<ceiling::Layout>,
    #[arg(long, hide = true, default_value_t = 0)]
    answer_bytes: usize,
    /// Runs as the memory probe instead (used by the bench itself).
    #[arg(long, hide = true)]
    memory_probe: Option<usize>,
    /// How this run can be repeated.
    #[arg(long, hide = true)]
    repeat: Option<String>,
    /// Cargo passes it to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Refusals and accepts: the ceiling, ours and the rivals.
    Http,
    /// The latency of accepts at half of their rate; measures `http` first.
    HalfLoad,
    /// Passes fetched.
    Passes,
    /// What simulated buyers cost beside the server.
    Crowd,
    /// Ten times more buyers than the server can take.
    Overload,
    /// 10,000 slow sockets.
    Slowloris,
    /// One and a thousand offers, few and many buyers.
    Spread,
    /// Bytes per live claim.
    Memory,
    /// A start with recorded orders.
    Start,
    /// An audit of recorded orders, beside buyers.
    Audit,
    /// Events to a webhook and to buyers' sockets.
    Webhooks,
    /// Gate and SQLite alone.
    Parts,
    /// Journal and ledger in one file, and in two.
    Files,
    /// Providers' notifications beside accepts.
    Settle,
    /// 100,000 unpaid orders that are due at once.
    Timeouts,
}

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub quick: bool,
    pub run: Duration,
    pub repetitions: usize,
    pub overload_repetitions: usize,
    pub connections: usize,
    pub threads: usize,
    pub many_buyers: usize,
    pub spread_requests: usize,
    pub recorded_orders: usize,
    /// How many files this process and those it starts may open.
    pub open_files: u64,
}

const QUICK: Plan = Plan {
    quick: true,
    run: Duration::from_secs(2),
    repetitions: 3,
    overload_repetitions: 2,
    connections: 128,
    threads: 2,
    many_buyers: 300_000,
    spread_requests: 60_000,
    recorded_orders: 300_000,
    open_files: 0,
};

const FULL: Plan = Plan {
    quick: false,
    run: Duration::from_secs(5),
    repetitions: 5,
    overload_repetitions: 3,
    many_buyers: 5_000_000,
    spread_requests: 200_000,
    recorded_orders: 1_000_000,
    ..QUICK
};

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(layout) = args.ceiling {
        return ceiling::serve(layout, args.answer_bytes);
    }
    if let Some(claims) = args.memory_probe {
        return memory::probe(claims);
    }
    let mut plan = if args.quick { QUICK } else { FULL };
    plan.open_files = processes::raise_open_files();
    plan.repetitions = args.repetitions.unwrap_or(plan.repetitions).max(1);
    plan.overload_repetitions = args.repetitions.unwrap_or(plan.overload_repetitions).max(1);
    plan.connections = args.connections.unwrap_or(plan.connections).max(1);
    if let Some(kind) = args.profile {
        return http::profile(&Plan { run: Duration::from_secs(10), ..plan }, kind, args.rate);
    }
    let mut report = report::Report::new(&plan);
    report.condition("open_files", json!(plan.open_files));
    report.condition("date", json!(jiff::Timestamp::now().strftime("%Y-%m-%d").to_string()));
    report.condition("compiler", json!(processes::version_of(Path::new("rustc"), "--version")));
    report.condition("commit", json!(processes::commit()));
    if let Some(line) = &args.repeat {
        report.condition("command", json!(line));
    }
    counted_before(&mut report, &args.instructions)?;
    measure(&plan, &mut report, &args.only)?;
    if args.only.is_empty() {
        report.absent_deployments();
    }
    report.table();
    if let Some(path) = &args.json {
        report.write_json(path)?;
    }
    if let Some(root) = &args.write_docs {
        document::write(&report, root)?;
    }
    if args.only.is_empty() { report.check_names() } else { Ok(()) }
}

fn measure(plan: &Plan, report: &mut report::Report, only: &[Group]) -> anyhow::Result<()> {
    let wanted = |group: Group| only.is_empty() || only.contains(&group);
    if wanted(Group::Http) || wanted(Group::HalfLoad) {
        http::measure(plan, report, wanted(Group::HalfLoad))?;
    }
    if wanted(Group::Passes) {
        passes::measure(plan, report)?;
    }
    if wanted(Group::Crowd) {
        crowd::measure(plan, report)?;
    }
    if wanted(Group::Overload) {
        overload::measure(plan, report)?;
    }
    if wanted(Group::Slowloris) {
        slowloris::measure(plan, report)?;
    }
    if wanted(Group::Spread) {
        spread::measure(plan, report)?;
    }
    if wanted(Group::Memory) {
        memory::measure(report)?;
    }
    if wanted(Group::Start) {
        start::measure(plan, report)?;
    }
    if wanted(Group::Audit) {
        audit::measure(plan, report)?;
    }
    if wanted(Group::Webhooks) {
        webhooks::measure(plan, report)?;
    }
    if wanted(Group::Parts) {
        parts::measure(plan, report)?;
    }
    if wanted(Group::Files) {
        files::measure(plan, report)?;
    }
    if wanted(Group::Settle) {
        settle::measure(plan, report)?;
    }
    if wanted(Group::Timeouts) {
        timeouts::measure(plan, report)?;
    }
    Ok(())
}

/// Instructions and requests for memory are counted by a tool of their own; here they only join the table.
fn counted_before(report: &mut report::Report, counts: &[String]) -> anyhow::Result<()> {
    const KNOWN: [(&str, &str); 6] = [
        ("instructions_refuse", "instructions per refusal, from request to answer, without the pass"),
        ("allocates_refuse", "whether a refusal asks for memory"),
        (
            "instructions_accept",
            "instructions per accept, up to the hand-over to the journal, without the pass",
        ),
        ("allocates_accept", "whether an accept asks for memory up to there"),
        ("instructions_pass", "instructions to check a pass, by valgrind's SHA-256"),
        ("allocates_pass", "whether the check of a pass asks for memory"),
    ];
    for count in counts {
        let (name, count) =
            count.split_once('=').ok_or_else(|| anyhow::anyhow!("{count}: not name=count"))?;
        let known = KNOWN.iter().find(|(known, _)| *known == name);
        let (figure, what) =
            known.ok_or_else(|| anyhow::anyhow!("{name}: nothing of that name is counted"))?;
        report.figure(figure, count.parse()?, "", what, Goal::Information);
    }
    Ok(())
}
