//! Passes, as every buyer fetches one before the opening: a token to check, strikes and blocks to look at, a pass to sign.

use anyhow::ensure;
use serde_json::json;
use stampede::blast::{Pace, Until};
use stampede::connection::Request;
use tempfile::TempDir;

use crate::Plan;
use crate::load::{Names, Sample, Written, blast};
use crate::product::{Product, Sale, token_of};
use crate::report::{Goal, Report, median};

/// A closed loop never asks for more than this per second.
const MOST_PER_S: f64 = 80_000.0;
const PLENTY: u32 = 10_000_000;
const OK: u16 = 200;

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let product = Product::start(folder.path())?;
    let sale = product.open_sale(1, PLENTY)?;
    let mut samples = Vec::new();
    for repetition in 1..=plan.repetitions {
        let asks = asks(plan, &product, &sale)?;
        let before = product.cpu();
        let run = blast(plan, product.address, Until::Elapsed(plan.run), Pace::Closed);
        let blasted = run.run(|_| asks.clone())?;
        let cpu = product.cpu().saturating_sub(before);
        ensure!(
            blasted.status(OK) == blasted.answered() && blasted.answered() > 0,
            "not everybody got a pass: {:?}",
            blasted.by_status().collect::<Vec<_>>()
        );
        let sample = Sample::of(&blasted, OK, blasted.elapsed, cpu);
        report.say(&format!(
            "passes {repetition}/{}: {:>8.0}/s  server {:>6.2} us  p99 {:>6.2} ms",
            plan.repetitions, sample.rate, sample.cpu_us, sample.p99_ms
        ));
        samples.push(sample);
    }
    report.raw("passes", json!(samples.iter().map(Sample::json).collect::<Vec<_>>()));
    let of = |value: fn(&Sample) -> f64| median(&samples.iter().map(value).collect::<Vec<_>>());
    let info = Goal::Information;
    report.figure("pass_per_s", of(|sample| sample.rate), "1/s", "passes fetched, by a buyer each", info);
    report.figure("pass_cpu_us", of(|sample| sample.cpu_us), "us", "server CPU per pass fetched", info);
    Ok(())
}

/// A request of each buyer, with a token, enough for a run.
pub fn asks(plan: &Plan, product: &Product, sale: &Sale) -> anyhow::Result<Written> {
    let names = Names::in_order();
    let (host, count) = (product.address.to_string(), (MOST_PER_S * plan.run.as_secs_f64()) as usize);
    let ask = |number| {
        let path = format!("/api/v1/offers/{}/pass", sale.offers[0]);
        let (token, mut request) = (token_of(&names.name(number))?, Vec::new());
        Request::post(&path, Some(&token), b"{}").render(&host, &mut request);
        Ok(request)
    };
    Ok(Written::new((0..count).map(ask).collect::<anyhow::Result<_>>()?))
}
