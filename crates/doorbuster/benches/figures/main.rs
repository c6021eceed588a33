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

/// Bytes per claim.
mod memory;

/// Ours, as users run it.
mod product;

/// Tables and JSON.
mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;

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
    /// Writes figures and samples as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Only these groups: http, half-load, spread, memory, start.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Measures nothing against anything: loads the server with one kind of request for ten seconds and says which
    /// of its threads spent what on it. For use beside `perf`.
    #[arg(long)]
    profile: Option<product::Kind>,
    /// Runs as the ceiling server instead (used by the bench itself).
    #[arg(long, hide = true)]
    ceiling: Option<ceiling::Layout>,
    #[arg(long, hide = true, default_value_t = 0)]
    answer_bytes: usize,
    /// Runs as the memory probe instead (used by the bench itself).
    #[arg(long, hide = true)]
    memory_probe: Option<usize>,
    /// Cargo passes it to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub run: Duration,
    pub repetitions: usize,
    pub connections: usize,
    pub threads: usize,
    pub many_buyers: usize,
    pub recorded_orders: usize,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if let Some(layout) = args.ceiling {
        return ceiling::serve(layout, args.answer_bytes);
    }
    if let Some(claims) = args.memory_probe {
        return memory::probe(claims);
    }
    let quick = Plan {
        run: Duration::from_secs(2),
        repetitions: 3,
        connections: 128,
        threads: 2,
        many_buyers: 500_000,
        recorded_orders: 300_000,
    };
    let mut plan = if args.quick {
        quick
    } else {
        Plan {
            run: Duration::from_secs(5),
            repetitions: 5,
            many_buyers: 5_000_000,
            recorded_orders: 1_000_000,
            ..quick
        }
    };
    plan.repetitions = args.repetitions.unwrap_or(plan.repetitions);
    if let Some(kind) = args.profile {
        return product::profile(&Plan { run: Duration::from_secs(10), ..plan }, kind);
    }
    let wanted = |group: &str| args.only.is_empty() || args.only.iter().any(|only| only == group);
    let mut report = report::Report::new(&plan);
    if wanted("http") || wanted("half-load") {
        product::http(&plan, &mut report, wanted("half-load"))?;
    }
    if wanted("spread") {
        product::spread(&plan, &mut report)?;
    }
    if wanted("memory") {
        memory::measure(&mut report)?;
    }
    if wanted("start") {
        product::start(&plan, &mut report)?;
    }
    report.finish(args.json.as_deref())
}
