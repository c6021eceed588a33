//! How long a start takes with a past.

use std::time::Instant;

use anyhow::ensure;
use serde_json::json;
use stampede::blast::{Pace, Until};
use tempfile::TempDir;

use crate::Plan;
use crate::load::{Minted, blast};
use crate::product::{Product, Sale};
use crate::report::{Goal, Report, median};

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.say(&format!("start: {} orders are made and recorded first", plan.recorded_orders));
    let folder = TempDir::new()?;
    let product = Product::start(folder.path())?;
    let sale = product.open_sale(1, u32::try_from(plan.recorded_orders)?)?;
    let source = Minted::new(&product, &sale);
    record_orders(plan, &product, &sale, &source, plan.recorded_orders as u64)?;
    drop(product);
    let mut seconds = Vec::new();
    for repetition in 1..=plan.repetitions {
        let began = Instant::now();
        let product = Product::start(folder.path())?;
        let took = began.elapsed().as_secs_f64();
        report.say(&format!("start {repetition}/{}: {took:.2} s", plan.repetitions));
        seconds.push(took);
        drop(product);
    }
    report.raw("start_s", json!({"orders": plan.recorded_orders, "seconds": seconds}));
    report.figure(
        "start_1m_orders_s",
        median(&seconds) * 1_000_000.0 / plan.recorded_orders as f64,
        "s",
        "start to ready, per million recorded orders",
        Goal::AtMost { must: 5.0, target: 2.0 },
    );
    Ok(())
}

/// Makes so many orders, and waits until all of them are recorded.
pub fn record_orders(
    plan: &Plan,
    product: &Product,
    sale: &Sale,
    source: &Minted,
    count: u64,
) -> anyhow::Result<()> {
    let mut missing = count;
    // A full queue says `busy`: those orders are still missing.
    while missing > 0 {
        let run = blast(plan, product.address, Until::Requests(missing), Pace::Closed);
        let accepted = run.run(|_| source.clone())?.status(202);
        ensure!(accepted > 0, "nobody was accepted");
        product.settle(sale)?;
        missing -= accepted;
    }
    Ok(())
}
