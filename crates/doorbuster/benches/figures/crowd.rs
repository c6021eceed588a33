//! What the crowd itself costs: simulated buyers who do all that a person does, beside the server that answers them. A
//! crowd that costs more than its server would measure itself.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use stampede::blast::process_cpu;
use stampede::crowd::{Crowd, CrowdSettings, Tokens};
use stampede::scenario::{Arrival, Curve};
use tempfile::TempDir;

use crate::Plan;
use crate::product::{AUTH_SECRET, Product};
use crate::report::{Goal, Report, median};

/// Well below what the server takes, so that nobody waits for a socket: only work is counted.
const BUYERS_PER_S: u32 = 2_000;
/// Of so many buyers one gets a unit, and follows his order until it is recorded.
const BUYERS_PER_UNIT: u32 = 10;

/// CPU per order POST, in microseconds.
struct Cost {
    crowd_us: f64,
    server_us: f64,
}

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let mut costs = Vec::new();
    for repetition in 1..=plan.repetitions {
        let cost = visit(plan.run)?;
        report.say(&format!(
            "crowd {repetition}/{}: {:.1} us per order POST, the server {:.1} us",
            plan.repetitions, cost.crowd_us, cost.server_us
        ));
        costs.push(cost);
    }
    let samples: Vec<_> =
        costs.iter().map(|cost| json!({"crowd_us": cost.crowd_us, "server_us": cost.server_us})).collect();
    report.raw("crowd", json!(samples));
    let of = |value: fn(&Cost) -> f64| median(&costs.iter().map(value).collect::<Vec<_>>());
    report.figure(
        "crowd_cpu_vs_server",
        of(|cost| cost.crowd_us / cost.server_us),
        "x",
        "CPU of simulated buyers per order POST against the server's, page, pass and following included",
        Goal::AtMost { must: 1.0, target: 1.0 },
    );
    report.figure(
        "crowd_cpu_us",
        of(|cost| cost.crowd_us),
        "us",
        "CPU of the crowd per order POST",
        Goal::Information,
    );
    Ok(())
}

fn visit(within: Duration) -> anyhow::Result<Cost> {
    let folder = TempDir::new()?;
    let product = Product::start(folder.path())?;
    let buyers = BUYERS_PER_S * u32::try_from(within.as_secs())?;
    let sale = product.open_sale(1, buyers / BUYERS_PER_UNIT)?;
    // One thread, as `stampede run` has by default.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (crowd_before, server_before) = (process_cpu(), product.cpu());
    let totals = runtime.block_on(async {
        let tokens = Tokens::signed(AUTH_SECRET.as_bytes());
        let settings = CrowdSettings {
            arrival: Arrival {
                curve: Curve::Constant,
                within,
                pages_ahead: Duration::ZERO,
                passes_ahead: Duration::ZERO,
                ..Arrival::default()
            },
            ..CrowdSettings::new(product.address, sale.id, tokens, buyers)
        };
        Crowd::new(settings)?.run().await.map(|outcome| outcome.totals)
    })?;
    product.settle(&sale)?;
    let crowd = process_cpu().saturating_sub(crowd_before);
    let server = product.cpu().saturating_sub(server_before);
    ensure!(
        totals.tries >= u64::from(buyers) && totals.errors == 0,
        "{} tries of {buyers} buyers, {} errors",
        totals.tries,
        totals.errors
    );
    let per_try = |cpu: Duration| cpu.as_secs_f64() * 1e6 / totals.tries as f64;
    let cost = Cost { crowd_us: per_try(crowd), server_us: per_try(server) };
    (cost.server_us > 0.0).then_some(cost).context("the server did nothing")
}
