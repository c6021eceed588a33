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

/// A server with a past: so many offers, so many buyers who have an order.
struct Aged {
    name: &'static str,
    product: Product,
    sale: Sale,
    minted: Minted,
    accept_us: Vec<f64>,
    refuse_us: Vec<f64>,
    _folder: TempDir,
}

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let requests = plan.spread_requests;
    let accepts = requests * plan.repetitions;
    let many = plan.many_buyers;
    report.say(&format!("spread: three servers; the third first sells to {many} buyers"));
    let mut servers = [
        Aged::start(plan, "one offer, few buyers", 1, FEW_BUYERS, accepts)?,
        Aged::start(plan, "1,000 offers, few buyers", MANY_OFFERS, FEW_BUYERS, accepts)?,
        Aged::start(plan, "one offer, many buyers", 1, many, accepts)?,
    ];
    // The stock ends exactly with the last accept: from then on the same offers refuse, with all their buyers known.
    for status in [202, 409] {
        for repetition in 1..=plan.repetitions {
            for server in &mut servers {
                let us = server.cost(plan, requests, status)?;
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
    fn start(
        plan: &Plan,
        name: &'static str,
        offers: usize,
        buyers: usize,
        accepts: usize,
    ) -> anyhow::Result<Self> {
        ensure!((buyers + accepts) % offers == 0, "the stock must be the same for every offer");
        let folder = TempDir::new()?;
        let product = Product::start(folder.path())?;
        let sale = product.open_sale(offers, u32::try_from((buyers + accepts) / offers)?)?;
        let minted = Minted::new(&product, &sale);
        let run = blast(plan, product.address, Until::Requests(buyers as u64), Pace::Closed);
        let blasted = run.run(|_| minted.clone())?;
        ensure!(blasted.status(202) == buyers as u64, "the buyers of the past were not all accepted");
        product.settle(&sale)?;
        Ok(Self {
            name,
            product,
            sale,
            minted,
            accept_us: Vec::new(),
            refuse_us: Vec::new(),
            _folder: folder,
        })
    }

    /// CPU of so many requests, each answered with `status`, in microseconds per request.
    fn cost(&self, plan: &Plan, requests: usize, status: u16) -> anyhow::Result<f64> {
        let source = self.minted.ahead(requests);
        let before = self.product.fine_cpu_us();
        let run = blast(plan, self.product.address, Until::Requests(requests as u64), Pace::Closed);
        let blasted = run.run(|_| source.clone())?;
        self.product.settle(&self.sale)?;
        // What happens behind the answers (checkpoints) belongs to them.
        std::thread::sleep(Duration::from_millis(200));
        let us = self.product.fine_cpu_us() - before;
        ensure!(
            blasted.status(status) == requests as u64,
            "{}: not {requests} answers of {status}: {:?}",
            self.name,
            blasted.by_status().collect::<Vec<_>>()
        );
        Ok(us / requests as f64)
    }
}
