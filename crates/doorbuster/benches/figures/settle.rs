//! How long a provider waits until its notification is settled, while a crowd is buying.

use std::path::Path;

use anyhow::{Context as _, ensure};
use doorbuster::payment::sandbox::{Letter, Outcome, Sandbox};
use rules::money::Money;
use rules::time::UnixMs;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Value, json};
use stampede::blast::{Blasted, Pace, Passes, Until};
use tempfile::TempDir;

use crate::Plan;
use crate::disk;
use crate::load::{Mint, Minted, Written, blast};
use crate::product::{PASS_SECRET, Product, Sale};
use crate::report::{Goal, Report, median};

/// Notifications and accepts per second.
const SETTLES_PER_S: f64 = 1_000.0;
const ACCEPTS_PER_S: f64 = 10_000.0;
/// A provider has few connections, a crowd one each.
const PROVIDER_CONNECTIONS: usize = 32;
const CROWD_CONNECTIONS: usize = 1_024;
const STOCK: u32 = 10_000_000;

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    let folder = TempDir::new()?;
    let product = Product::start_with(folder.path(), &["payment.sandbox=true"])?;
    let sandbox = Sandbox::new(PASS_SECRET.as_bytes(), &shop(folder.path())?)?;
    let sale = product.open_sale(1, STOCK)?;
    let (mut p99, mut accept_p99) = (Vec::new(), Vec::new());
    for repetition in 1..=plan.repetitions {
        report.say("settle: orders are made and their payments started");
        let callbacks = callbacks(plan, &product, &sale, &sandbox)?;
        let count = (ACCEPTS_PER_S * plan.run.as_secs_f64() * 1.1) as usize;
        let passes = Minted::new(&product, &sale).ahead(count);
        disk::quiet();
        let (settled, accepted) = together(plan, &product, callbacks, passes)?;
        product.settle(&sale)?;
        let at =
            |blasted: &Blasted, quantile| blasted.latency_us.value_at_quantile(quantile) as f64 / 1_000.0;
        report.say(&format!(
            "settle {repetition}/{}: {} notifications, p50 {:.2} ms  p99 {:.2} ms  max {:.2} ms; {} accepts beside them, p99 {:.2} ms",
            plan.repetitions,
            settled.answered(),
            at(&settled, 0.5),
            at(&settled, 0.99),
            at(&settled, 1.0),
            accepted.answered(),
            at(&accepted, 0.99),
        ));
        p99.push(at(&settled, 0.99));
        accept_p99.push(at(&accepted, 0.99));
    }
    report.raw("settle_p99_ms", json!({"settle": p99, "accept_beside": accept_p99}));
    report.figure(
        "settle_p99_ms",
        median(&p99),
        "ms",
        "p99 of a provider's notification, settled and durable, 1,000 per second beside 10,000 accepts per second",
        Goal::AtMost { must: 10.0, target: 5.0 },
    );
    report.figure(
        "accept_p99_ms_beside_settles",
        median(&accept_p99),
        "ms",
        "p99 of those accepts",
        Goal::Information,
    );
    Ok(())
}

/// Which shop the sandbox's letters are for: the ledger's own name.
fn shop(folder: &Path) -> anyhow::Result<[u8; 16]> {
    let ledger = Connection::open_with_flags(folder.join("doorbuster.db"), OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let name: Vec<u8> = ledger.query_row("select incarnation from identity", [], |row| row.get(0))?;
    name.try_into().map_err(|_| anyhow::anyhow!("the ledger's name is not 16 bytes long"))
}

/// Orders that wait for money, and the notifications that bring it, signed.
fn callbacks(plan: &Plan, product: &Product, sale: &Sale, sandbox: &Sandbox) -> anyhow::Result<Written> {
    let count = (SETTLES_PER_S * plan.run.as_secs_f64() * 1.1) as usize;
    let minted = Minted::new(product, sale);
    let mints: Vec<Mint> = (0..count).map(|_| minted.mint()).collect();
    let asks =
        mints.iter().map(|mint| (mint.buyer.to_string(), format!("/api/v1/orders/{}/payment", mint.order)));
    let asks: Vec<_> = asks.collect();
    let passes: Vec<_> = mints.into_iter().map(|mint| (mint.offer, mint.pass)).collect();
    let source = Passes::new(&product.address.to_string(), passes, 1);
    let run = blast(plan, product.address, Until::Requests(count as u64), Pace::Closed);
    let accepted = run.run(|_| source.clone())?;
    ensure!(accepted.status(202) == count as u64, "not everybody was accepted");
    product.settle(sale)?;
    let payments = product.ask_as_buyers(asks, &json!({"provider": "sandbox"}))?;
    let host = product.address.to_string();
    let requests = payments.iter().map(|payment| callback(&host, sandbox, payment));
    Ok(Written::new(requests.collect::<anyhow::Result<_>>()?))
}

fn callback(host: &str, sandbox: &Sandbox, payment: &Value) -> anyhow::Result<Vec<u8>> {
    let payment_id = payment["payment_id"].as_str().context("no payment_id")?;
    let now = UnixMs(jiff::Timestamp::now().as_millisecond());
    let letter = Letter {
        id: format!("evt_{payment_id}"),
        outcome: Outcome::Paid,
        shop: sandbox.shop().to_owned(),
        payment_id: payment_id.to_owned(),
        capture_id: format!("cap_{payment_id}"),
        amount: serde_json::from_value::<Money>(json!({"amount": 149_900, "currency": "CNY"}))?,
        at: now,
    };
    let (headers, body) = sandbox.seal(&letter, now);
    let mut request =
        format!("POST /api/v1/payments/sandbox/callback HTTP/1.1\r\nhost: {host}\r\n").into_bytes();
    for (name, value) in &headers {
        request.extend_from_slice(format!("{name}: {}\r\n", value.to_str()?).as_bytes());
    }
    request.extend_from_slice(format!("content-length: {}\r\n\r\n", body.len()).as_bytes());
    request.extend_from_slice(&body);
    Ok(request)
}

/// Both loads at one time, open loop.
fn together(
    plan: &Plan,
    product: &Product,
    callbacks: Written,
    passes: Passes,
) -> anyhow::Result<(Blasted, Blasted)> {
    let until = Until::Elapsed(plan.run);
    let provider = Plan { connections: PROVIDER_CONNECTIONS, threads: 1, ..*plan };
    let crowd = Plan { connections: CROWD_CONNECTIONS, ..*plan };
    let address = product.address;
    let (settled, accepted) = std::thread::scope(|scope| {
        let provider = scope.spawn(move || {
            blast(&provider, address, until, Pace::PerSecond(SETTLES_PER_S)).run(|_| callbacks.clone())
        });
        let crowd = blast(&crowd, address, until, Pace::PerSecond(ACCEPTS_PER_S)).run(|_| passes.clone());
        (provider.join().map_err(|_| anyhow::anyhow!("the provider's thread panicked")), crowd)
    });
    let (settled, accepted) = (settled??, accepted?);
    for (what, blasted, status) in [("notifications", &settled, 200), ("accepts", &accepted, 202)] {
        let answers: Vec<_> = blasted.by_status().collect();
        ensure!(
            blasted.status(status) == blasted.sent && blasted.sent > 0,
            "of {} {what} not all were answered with {status}: {answers:?}",
            blasted.sent
        );
    }
    Ok((settled, accepted))
}
