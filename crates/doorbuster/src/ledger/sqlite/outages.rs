//! Times in which paying was impossible, in SQLite. Knows only what it is told; who notices an outage is elsewhere.

use rules::deadline::Outage;
use rules::time::UnixMs;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::{SqliteLedger, Urgency, column};
use crate::ledger::LedgerResult;

/// How long an outage is remembered, in milliseconds: longer than the longest time to pay, and the wait for a callback
/// after it.
const KEPT_MS: i64 = 26 * 60 * 60 * 1_000;

impl SqliteLedger {
    /// The process has started: from its last sign of life until now nobody could pay. Answers all outages that an
    /// unpaid order may look back on. Durable when it returns; a retry at the same moment adds nothing.
    pub async fn note_start(&self, now: UnixMs) -> LedgerResult<Vec<Outage>> {
        self.transact(Urgency::Settle, move |transaction| {
            if let Some(alive_at) = alive_at(transaction)? {
                insert(transaction, Outage { from: alive_at, until: now })?;
            }
            write_alive(transaction, now)?;
            transaction.execute("delete from outages where until_at < ?1", [now.plus_ms(-KEPT_MS).0])?;
            Ok(find(transaction)?)
        })
        .await
    }

    /// A sign of life, behind everything that somebody waits for: should the process die, the next outage began here.
    /// `outages` are times in which paying was impossible although it ran. One that began at the same moment and ended
    /// earlier is replaced, so that one can be written down while it lasts. Durable when it returns; a retry adds nothing.
    pub async fn note_alive(&self, now: UnixMs, outages: Vec<Outage>) -> LedgerResult<()> {
        self.transact(Urgency::Clerk, move |transaction| {
            outages.into_iter().try_for_each(|outage| insert(transaction, outage))?;
            write_alive(transaction, now)
        })
        .await
    }
}

fn alive_at(connection: &Connection) -> rusqlite::Result<Option<UnixMs>> {
    connection
        .prepare_cached("select alive_at from sign_of_life")?
        .query_row([], |row| column::time(row, 0))
        .optional()
}

fn write_alive(transaction: &Transaction<'_>, now: UnixMs) -> LedgerResult<()> {
    transaction
        .prepare_cached(
            "insert into sign_of_life (only_row, alive_at) values (1, ?1)
             on conflict (only_row) do update set alive_at = max(alive_at, excluded.alive_at)",
        )?
        .execute([now.0])?;
    Ok(())
}

/// A span that ends before it begins is none: clocks are set back. One that goes on is written again and again, and is
/// one row: the longest.
fn insert(transaction: &Transaction<'_>, outage: Outage) -> LedgerResult<()> {
    if outage.from < outage.until {
        transaction
            .prepare_cached(
                "insert into outages (from_at, until_at) select ?1, ?2
                 where not exists (select 1 from outages where from_at = ?1 and until_at >= ?2)",
            )?
            .execute(params![outage.from.0, outage.until.0])?;
        transaction
            .prepare_cached("delete from outages where from_at = ?1 and until_at < ?2")?
            .execute(params![outage.from.0, outage.until.0])?;
    }
    Ok(())
}

fn find(connection: &Connection) -> rusqlite::Result<Vec<Outage>> {
    let mut statement =
        connection.prepare_cached("select from_at, until_at from outages order by from_at")?;
    let rows = statement
        .query_map([], |row| Ok(Outage { from: column::time(row, 0)?, until: column::time(row, 1)? }))?;
    rows.collect()
}
