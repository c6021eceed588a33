//! One file or two: what a buyer's answer would wait for if journal and ledger shared a file.
//!
//! Both ways write the same: claims arrive in batches, each is appended and synced, and every claim becomes a row with
//! a random unique index behind it. With two files the rows follow on a thread of their own; with one file the only
//! writer records the claims of the last batch in the transaction that appends the next.

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::ensure;
use rusqlite::{Connection, Transaction, params};
use serde_json::json;
use tempfile::TempDir;

use crate::Plan;
use crate::report::{Goal, Report, median};

/// Claims per append: what the journal gathers under load on a small machine.
const BATCH: usize = 48;
/// Rows per transaction of a ledger in a file of its own.
const LEDGER_BATCH: usize = 2_048;
/// Claims before the clock starts: an index that is not empty.
const BEFORE: usize = 200_000;
const RUN: Duration = Duration::from_secs(3);
const ENTRY_BYTES: usize = 70;

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    report.say("files: journal and ledger in one file, and in two");
    let (mut one, mut two) = (Vec::new(), Vec::new());
    for _ in 0..plan.repetitions {
        one.push(one_file()?);
        two.push(two_files()?);
    }
    let pick = |runs: &[Run], of: fn(&Run) -> f64| median(&runs.iter().map(of).collect::<Vec<_>>());
    let ratio = pick(&two, |run| run.claims_per_s) / pick(&one, |run| run.claims_per_s);
    let info = Goal::Information;
    report.figure("two_files_vs_one", ratio, "x", "claims per second, two files against one", info);
    report.figure(
        "one_file_commit_p99_ms",
        pick(&one, |run| run.p99_ms),
        "ms",
        "p99 of the commit that answers, one file",
        info,
    );
    report.figure("two_files_commit_p99_ms", pick(&two, |run| run.p99_ms), "ms", "the same, two files", info);
    for (name, runs) in [("one_file", &one), ("two_files", &two)] {
        let raw: Vec<_> =
            runs.iter().map(|run| json!({"claims_per_s": run.claims_per_s, "p99_ms": run.p99_ms})).collect();
        report.raw(name, json!(raw));
    }
    Ok(())
}

struct Run {
    claims_per_s: f64,
    p99_ms: f64,
}

impl Run {
    fn of(mut commits: Vec<Duration>, elapsed: Duration) -> Self {
        commits.sort_unstable();
        let p99 = commits[commits.len() * 99 / 100];
        Self {
            claims_per_s: (commits.len() * BATCH) as f64 / elapsed.as_secs_f64(),
            p99_ms: p99.as_secs_f64() * 1e3,
        }
    }
}

fn one_file() -> anyhow::Result<Run> {
    let folder = TempDir::new()?;
    let mut file = open(&folder.path().join("both.db"))?;
    prepare(&file, true, true)?;
    fill(&mut file)?;
    let (began, mut commits) = (Instant::now(), Vec::new());
    while began.elapsed() < RUN {
        let at = Instant::now();
        let transaction = file.transaction()?;
        append(&transaction)?;
        record(&transaction, BATCH)?;
        transaction.commit()?;
        commits.push(at.elapsed());
    }
    Ok(Run::of(commits, began.elapsed()))
}

fn two_files() -> anyhow::Result<Run> {
    let folder = TempDir::new()?;
    let mut journal = open(&folder.path().join("journal.db"))?;
    let mut ledger = open(&folder.path().join("ledger.db"))?;
    prepare(&journal, true, false)?;
    prepare(&ledger, false, true)?;
    fill(&mut ledger)?;
    // The ledger may lag, but only so far: then the journal waits, and that counts.
    let (send, receive) = mpsc::sync_channel::<usize>(64 * LEDGER_BATCH / BATCH);
    let clerk = std::thread::spawn(move || -> anyhow::Result<()> {
        while let Ok(first) = receive.recv() {
            let claims = first + receive.try_iter().take(LEDGER_BATCH / BATCH).sum::<usize>();
            let transaction = ledger.transaction()?;
            record(&transaction, claims)?;
            transaction.commit()?;
        }
        Ok(())
    });
    let (began, mut commits) = (Instant::now(), Vec::new());
    while began.elapsed() < RUN {
        let at = Instant::now();
        let transaction = journal.transaction()?;
        append(&transaction)?;
        transaction.commit()?;
        commits.push(at.elapsed());
        send.send(BATCH)?;
    }
    drop(send);
    clerk.join().expect("the clerk's thread")?;
    Ok(Run::of(commits, began.elapsed()))
}

fn open(path: &Path) -> anyhow::Result<Connection> {
    let connection = Connection::open(path)?;
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    ensure!(mode == "wal", "SQLite says {mode}");
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "cache_size", -131_072)?;
    connection.pragma_update(None, "wal_autocheckpoint", 16_384)?;
    Ok(connection)
}

fn prepare(connection: &Connection, journal: bool, ledger: bool) -> rusqlite::Result<()> {
    if journal {
        connection.execute_batch("create table entries (seq integer primary key, claims blob not null)")?;
    }
    if ledger {
        connection.execute_batch(
            "create table orders (order_no integer primary key, order_id blob not null unique, offer_no integer,
                 buyer text not null, state text not null, created_at integer, pay_by integer,
                 unique (buyer, offer_no));
             create index orders_due on orders (pay_by);
             create table events (event_no integer primary key, order_no integer, data text);",
        )?;
    }
    Ok(())
}

fn fill(connection: &mut Connection) -> anyhow::Result<()> {
    for _ in 0..BEFORE / LEDGER_BATCH {
        let transaction = connection.transaction()?;
        record(&transaction, LEDGER_BATCH)?;
        transaction.commit()?;
    }
    Ok(())
}

fn append(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    let entry = [7_u8; ENTRY_BYTES * BATCH];
    transaction
        .prepare_cached("insert into entries (claims) values (?1)")?
        .execute([entry.as_slice()])
        .map(|_| ())
}

fn record(transaction: &Transaction<'_>, claims: usize) -> rusqlite::Result<()> {
    let mut order = transaction.prepare_cached(
        "insert into orders (order_id, offer_no, buyer, state, created_at, pay_by)
         values (?1, 1, ?2, 'awaiting_payment', 1, ?3)",
    )?;
    let mut event =
        transaction.prepare_cached("insert into events (order_no, data) values (?1, '{\"state\":\"x\"}')")?;
    for _ in 0..claims {
        let (id, buyer): (u128, u64) = (rand::random(), rand::random());
        let number = transaction.last_insert_rowid();
        // Order ids begin with their time, buyers come as they please.
        let id = (number as u128) << 64 | (id & 0xffff_ffff);
        order.execute(params![id.to_be_bytes(), format!("{buyer:016x}"), number])?;
        event.execute([number])?;
    }
    Ok(())
}
