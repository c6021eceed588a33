//! Whether a request costs the same with a thousand offers as with one, and with millions of buyers as with a few:
//! three servers side by side, the same number of requests to each in turn, CPU in nanoseconds of their threads.

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use stampede::blast::{Pace, Until};
use tempfile::TempDir;

use crate::Plan;
use crate::load::{Minted, blast};
use crate::product::{Product, Sale};
use crate::report::{Goal, Report, median};

const FEW_BUYERS: usize = 10_000;
const MANY_OFFERS: usize = 1_000;
const PLENTY: u32 = 10_000_000;

/// A server with a past: so many offers, so many buyers who have an order.
struct Aged {
    name: &'static str,
    product: Product,
    plenty: Sale,
    sold_out: Sale,
    accept_us: Vec<f64>,
    refuse_us: Vec<f64>,
    _folder: TempDir,
}

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let requests = plan.spread_requests;
    let many = plan.many_buyers;
    report.say(&format!("spread: three servers; the third first sells to {many} buyers"));
    let mut servers = [
        Aged::start(plan, "one offer, few buyers", 1, FEW_BUYERS)?,
        Aged::start(plan, "1,000 offers, few buyers", MANY_OFFERS, FEW_BUYERS)?,
        Aged::start(plan, "one offer, many buyers", 1, many)?,
    ];
    // Refusals first: accepts add buyers. The first round warms up and is thrown away.
    for status in [409, 202] {
        for repetition in 0..=plan.repetitions {
            for server in &mut servers {
                let us = server.cost(plan, requests, status)?;
                if repetition == 0 {
                    continue;
                }
                let samples = if status == 202 { &mut server.accept_us } else { &mut server.refuse_us };
                samples.push(us);
                report.say(&format!(
                    "spread {repetition}/{}: {status}, {:<25} {us:>6.2} us",
                    plan.repetitions, server.name
                ));
            }
        }
    }
    for (name, what, of) in [
        (
            "refuse_cpu_spread",
            "CPU per refusal, 1 -> 1,000 offers and 10 thousand -> many buyers",
            (|server: &Aged| median(&server.refuse_us)) as fn(&Aged) -> f64,
        ),
        (
            "accept_cpu_spread",
            "CPU per accept, 1 -> 1,000 offers and 10 thousand -> many buyers",
            |server: &Aged| median(&server.accept_us),
        ),
    ] {
        let [base, offers, buyers] = servers.each_ref().map(of);
        report.figure(name, offers.max(buyers) / base, "x", what, Goal::AtMost { must: 1.2, target: 1.05 });
    }
    for server in &servers {
        let samples = json!({"accept_us": server.accept_us, "refuse_us": server.refuse_us});
        report.raw(&format!("spread: {}", server.name), samples);
    }
    report.raw("spread_plan", json!({"requests": requests, "many_buyers": many}));
    Ok(())
}

impl Aged {
    fn start(plan: &Plan, name: &'static str, offers: usize, buyers: usize) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let product = Product::start_without_audits(folder.path())?;
        let plenty = product.open_sale(offers, PLENTY)?;
        // The gate keeps the buyers of all offers in one table: refusals here look for theirs among all of them.
        let sold_out = product.open_sale(offers, 0)?;
        let minted = Minted::new(&product, &plenty);
        let mut missing = buyers as u64;
        while missing > 0 {
            let run = blast(plan, product.address, Until::Requests(missing), Pace::Closed);
            let accepted = run.run(|_| minted.clone())?.status(202);
            ensure!(accepted > 0, "{name}: nobody was accepted");
            product.settle(&plenty)?;
            missing = missing.saturating_sub(accepted);
        }
        let (accept_us, refuse_us) = (Vec::new(), Vec::new());
        Ok(Self { name, product, plenty, sold_out, accept_us, refuse_us, _folder: folder })
    }

    /// CPU of so many requests, each answered with `status`, in microseconds per request.
    fn cost(&self, plan: &Plan, requests: usize, status: u16) -> anyhow::Result<f64> {
        let sale = if status == 202 { &self.plenty } else { &self.sold_out };
        let source = Minted::new(&self.product, sale).ahead(requests);
        let before = self.product.fine_cpu_us();
        let run = blast(plan, self.product.address, Until::Requests(requests as u64), Pace::Closed);
        let blasted = run.run(|_| source.clone())?;
        self.product.settle(sale)?;
        // What happens behind the answers (checkpoints) belongs to them.
        std::thread::sleep(Duration::from_millis(200));
        let us = self.product.fine_cpu_us() - before;
        let right = blasted.status(status);
        ensure!(
            right * 100 >= requests as u64 * 99,
            "{}: not {requests} answers of {status}: {:?}",
            self.name,
            blasted.by_status().collect::<Vec<_>>()
        );
        Ok(us / right as f64)
    }
}
