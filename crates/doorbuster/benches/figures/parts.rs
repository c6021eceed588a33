//! Ceilings of the parts, for the reader: what gate and SQLite could do if nothing stood around them.

use std::time::{Duration, Instant};

use anyhow::ensure;
use doorbuster::gate::{Decision, MemoryGate, Seed, Try};
use rules::admission::Verdict;
use rules::id::{OfferId, OrderId};
use rules::sale::{SaleState, Window};
use rules::time::UnixMs;
use serde_json::json;
use tempfile::TempDir;

use crate::Plan;
use crate::load::Names;
use crate::report::{Goal, Report, median};

const CLAIMS: usize = 500_000;
/// An entry of the journal is about as long.
const ENTRY_BYTES: usize = 120;
const SQLITE_FOR: Duration = Duration::from_secs(1);

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.say("parts: the gate and SQLite alone, on one thread");
    let names = Names::scattered();
    let buyers: Vec<String> = (0..CLAIMS * 2).map(|number| names.name(number)).collect();
    let (mut grants, mut refusals, mut small, mut large) = (vec![], vec![], vec![], vec![]);
    for _ in 0..plan.repetitions {
        let (granted, refused) = gate(&buyers)?;
        grants.push(granted);
        refusals.push(refused);
        small.push(sqlite_appends(256)?);
        large.push(sqlite_appends(2_048)?);
    }
    let info = Goal::Information;
    report.raw(
        "parts",
        json!({"gate_grants": grants, "gate_refusals": refusals, "sqlite_256": small, "sqlite_2048": large}),
    );
    report.figure(
        "gate_grants_per_s",
        median(&grants),
        "1/s",
        "gate alone, grants and commits, one thread",
        info,
    );
    report.figure("gate_refusals_per_s", median(&refusals), "1/s", "gate alone, sold out, one thread", info);
    report.figure(
        "sqlite_256_per_s",
        median(&small),
        "1/s",
        "SQLite alone, append only, FULL, 256 entries per commit",
        info,
    );
    report.figure("sqlite_2048_per_s", median(&large), "1/s", "the same, 2,048 per commit", info);
    Ok(())
}

/// Grants until the stock is gone, then refusals, per second.
fn gate(buyers: &[String]) -> anyhow::Result<(f64, f64)> {
    let gate = MemoryGate::new(CLAIMS, rand::random());
    let seed = Seed {
        offer: OfferId(1),
        state: SaleState::Published,
        window: Window { opens_at: UnixMs(0), closes_at: UnixMs(i64::MAX) },
        free: u32::try_from(CLAIMS)?,
        change_no: 0,
    };
    let offer = gate.seed(&seed).expect("the first offer");
    let (wins, losses) = buyers.split_at(CLAIMS);
    let attempt = |buyer, number: usize| {
        let order = OrderId((1_u128 << 100) + number as u128);
        Try { buyer, order, quantity: 1, pass_expires_at: UnixMs(1_000) }
    };
    let began = Instant::now();
    for (number, buyer) in wins.iter().enumerate() {
        match gate.claim(&offer, &attempt(buyer, number), UnixMs(1)) {
            Decision::Granted(grant) => gate.commit(&grant),
            other => panic!("{other:?}"),
        }
    }
    let grants = CLAIMS as f64 / began.elapsed().as_secs_f64();
    let began = Instant::now();
    for (number, buyer) in losses.iter().enumerate() {
        let decision = gate.claim(&offer, &attempt(buyer, CLAIMS + number), UnixMs(1));
        ensure!(matches!(decision, Decision::Answer(Verdict::SoldOut)), "{decision:?}");
    }
    Ok((grants, losses.len() as f64 / began.elapsed().as_secs_f64()))
}

/// Entries per second that one thread appends and syncs in batches.
fn sqlite_appends(batch: usize) -> anyhow::Result<f64> {
    let folder = TempDir::new()?;
    let mut connection = rusqlite::Connection::open(folder.path().join("append.db"))?;
    connection.pragma_update(None, "locking_mode", "exclusive")?;
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    ensure!(mode == "wal", "SQLite says {mode}");
    connection.pragma_update(None, "synchronous", "full")?;
    connection.execute("create table entries (seq integer primary key, entry blob not null)", [])?;
    let entry = [7_u8; ENTRY_BYTES];
    let (began, mut appended) = (Instant::now(), 0_usize);
    while began.elapsed() < SQLITE_FOR {
        let transaction = connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached("insert into entries (entry) values (?1)")?;
            for _ in 0..batch {
                insert.execute([entry.as_slice()])?;
            }
        }
        transaction.commit()?;
        appended += batch;
    }
    Ok(appended as f64 / began.elapsed().as_secs_f64())
}
