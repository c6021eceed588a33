//! How fast unpaid orders close when very many are due in the same second, and what a crowd notices of it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use stampede::blast::{Pace, Until};
use tempfile::TempDir;

use crate::Plan;
use crate::disk;
use crate::load::{Minted, blast};
use crate::product::Product;
use crate::report::{Goal, Report, median};
use crate::start::record_orders;

/// Orders that nobody pays.
const ORDERS: u32 = 100_000;
/// Long enough to make them all before the first is due.
const PAY_WITHIN_S: u32 = 20;
/// They are closed by then, or they are not closing.
const CLOSE_LIMIT: Duration = Duration::from_secs(60);
/// What the crowd beside them asks for, per second.
const ACCEPTS_PER_S: f64 = 5_000.0;
/// For so long: until well after the last one is closed.
const CROWD_STAYS: Duration = Duration::from_secs(8);
const PLENTY: u32 = 1_000_000;

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let repetitions = if plan.quick { 1 } else { plan.repetitions.min(3) };
    let (mut seconds, mut p99) = (Vec::new(), Vec::new());
    for repetition in 1..=repetitions {
        let (took, accept_p99) = once(plan, report)?;
        report.say(&format!(
            "timeouts {repetition}/{repetitions}: {ORDERS} closed {took:.2} s after they were due; p99 of accepts beside it {accept_p99:.2} ms"
        ));
        seconds.push(took);
        p99.push(accept_p99);
    }
    report.raw("timeouts_s", json!({"orders": ORDERS, "seconds": seconds, "accept_p99_ms": p99}));
    report.figure(
        "timeouts_100k_s",
        median(&seconds),
        "s",
        "100,000 unpaid orders, all due, closed, their buyers struck, and their units free again",
        Goal::AtMost { must: 10.0, target: 5.0 },
    );
    report.figure(
        "accept_p99_ms_beside_timeouts",
        median(&p99),
        "ms",
        "p99 of 5,000 accepts per second meanwhile",
        Goal::Information,
    );
    Ok(())
}

/// The server stands still before the first is due and goes on when all are: then they are due at once, and nobody is
/// excused because it was away.
fn once(plan: &Plan, report: &mut Report) -> anyhow::Result<(f64, f64)> {
    report.say(&format!("timeouts: {ORDERS} orders are made, which nobody will pay"));
    let folder = TempDir::new()?;
    let product = Product::start(folder.path())?;
    let plenty = product.open_sale(1, PLENTY)?;
    let sale = product.open_sale_to_pay_within(1, ORDERS, PAY_WITHIN_S)?;
    let began = Instant::now();
    record_orders(plan, &product, &sale, &Minted::new(&product, &sale), ORDERS.into())?;
    let due = Instant::now() + Duration::from_secs(PAY_WITHIN_S.into());
    ensure!(began.elapsed().as_secs() < PAY_WITHIN_S.into(), "making the orders took too long");
    let source =
        Minted::new(&product, &plenty).ahead((ACCEPTS_PER_S * CROWD_STAYS.as_secs_f64() * 1.1) as usize);
    let address = product.address;
    ensure!(held(&product.stats(&sale)?)? == u64::from(ORDERS), "some were due before all were made");
    product.stand_still()?;
    std::thread::sleep(due.saturating_duration_since(Instant::now()));
    disk::quiet();
    product.go_on()?;
    let began = Instant::now();
    std::thread::scope(|scope| {
        let crowd = scope.spawn(move || {
            blast(plan, address, Until::Elapsed(CROWD_STAYS), Pace::PerSecond(ACCEPTS_PER_S))
                .run(|_| source.clone())
        });
        while held(&product.stats(&sale)?)? > 0 {
            ensure!(began.elapsed() < CLOSE_LIMIT, "unpaid orders do not close: {}", product.stats(&sale)?);
            std::thread::sleep(Duration::from_millis(20));
        }
        let took = began.elapsed().as_secs_f64();
        let accepted = crowd.join().map_err(|_| anyhow::anyhow!("the crowd's thread panicked"))??;
        ensure!(accepted.status(202) == accepted.sent, "not everybody beside it was accepted");
        let strikes = strikes(folder.path())?;
        ensure!(
            strikes == ORDERS,
            "{strikes} of {ORDERS} buyers were struck: not the whole work was measured"
        );
        Ok((took, accepted.accepted_us.value_at_quantile(0.99) as f64 / 1_000.0))
    })
}

fn strikes(folder: &Path) -> anyhow::Result<u32> {
    let file = rusqlite::Connection::open(folder.join("doorbuster.db"))?;
    Ok(file.query_row("select count(*) from strikes", [], |row| row.get(0))?)
}

/// Units that are not free: of unpaid orders, or on their way back.
fn held(stats: &Value) -> anyhow::Result<u64> {
    let offer = &stats["offers"][0];
    let count = |name: &str| offer[name].as_u64().with_context(|| format!("no {name}: {stats}"));
    Ok(count("stock")? - count("free")?)
}
