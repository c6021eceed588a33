//! An audit of very many orders while people buy: how long it takes, and how long anybody waits for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use stampede::blast::{Pace, Until};
use tempfile::TempDir;

use crate::Plan;
use crate::load::{Minted, blast};
use crate::product::Product;
use crate::report::{Goal, Report};
use crate::start::record_orders;

/// Buyers beside the audit. Enough that something is always under way between gate and ledger, so that the audit looks
/// twice and weighs the gate.
const ACCEPTS_PER_S: f64 = 1_000.0;
const CROWD_CONNECTIONS: usize = 16;

/// Units for them, besides those of the recorded orders.
const STOCK_BESIDE: u32 = 1_000_000;

/// The crowd is asked so often whether the audit is done.
const CROWD_FOR: Duration = Duration::from_secs(1);

const AUDIT_LIMIT: Duration = Duration::from_secs(600);

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.say(&format!("audit: {} orders are made and recorded first", plan.recorded_orders));
    let folder = TempDir::new()?;
    let product = Product::start_without_audits(folder.path())?;
    let sale = product.open_sale(1, u32::try_from(plan.recorded_orders)?.saturating_add(STOCK_BESIDE))?;
    let source = Minted::new(&product, &sale);
    record_orders(plan, &product, &sale, &source, plan.recorded_orders as u64)?;
    let crowd = Plan { connections: CROWD_CONNECTIONS, threads: 1, ..*plan };
    let (address, is_done) = (product.address, AtomicBool::new(false));
    let (audited, bought) = std::thread::scope(|scope| {
        let beside = scope.spawn(|| {
            let mut accepted = 0;
            while !is_done.load(Ordering::Acquire) {
                let run = blast(&crowd, address, Until::Elapsed(CROWD_FOR), Pace::PerSecond(ACCEPTS_PER_S));
                accepted += run.run(|_| source.clone())?.status(202);
            }
            anyhow::Ok(accepted)
        });
        let audited = audit(&product);
        is_done.store(true, Ordering::Release);
        (audited, beside.join().map_err(|_| anyhow::anyhow!("the crowd's thread panicked")))
    });
    let ((audit, took), bought) = (audited?, bought??);
    ensure!(bought > 0, "nobody bought beside the audit");
    ensure!(audit["clean"] == true, "the audit found something: {audit}");
    let held_up_ms = audit["held_up_us"].as_f64().context("no held_up_us")? / 1_000.0;
    report.raw("audit", json!({"orders": audit["orders"], "cuts": audit["cuts"], "bought_beside": bought}));
    let info = Goal::Information;
    let what = "an audit of all recorded orders beside a crowd, with the seconds between its two looks";
    report.figure("audit_s", took.as_secs_f64(), "s", what, info);
    let what = "the longest that a try waited at the gate for that audit";
    report.figure("audit_held_up_ms", held_up_ms, "ms", what, info);
    Ok(())
}

/// One audit from beginning to end.
fn audit(product: &Product) -> anyhow::Result<(Value, Duration)> {
    let began = Instant::now();
    let mut audit = product.operate("POST", "/admin/v1/audit", Some(&json!({})))?;
    let path = format!("/admin/v1/audit/{}", audit["id"].as_str().context("no id")?);
    while audit["state"] == "running" {
        ensure!(began.elapsed() < AUDIT_LIMIT, "the audit does not end");
        std::thread::sleep(Duration::from_millis(20));
        audit = product.operate("GET", &path, None)?;
    }
    Ok((audit, began.elapsed()))
}
