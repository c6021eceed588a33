//! Times in which paying was impossible, in SQLite. Knows only what it is told; who notices an outage is elsewhere.

use rules::deadline::{Outage, Span};
use rules::time::UnixMs;
use rusqlite::{Connection, OptionalExtension as _, Transaction, params};

use super::{SqliteLedger, Urgency, column};
use crate::ledger::LedgerResult;

/// How long an outage is remembered, in milliseconds: longer than the longest time to pay, and the wait for a callback
/// after it.
const KEPT_MS: i64 = 26 * 60 * 60 * 1_000;

/// In place of a provider's name: a column of a primary key is never null.
const EVERYWHERE: &str = "";

impl SqliteLedger {
    /// The process has started: from its last sign of life until now nobody could pay. Answers all outages that an
    /// unpaid order may look back on. Durable when it returns; a retry at the same moment adds nothing.
    pub async fn note_start(&self, now: UnixMs) -> LedgerResult<Vec<Outage>> {
        self.transact(Urgency::Settle, move |transaction| {
            if let Some(alive_at) = alive_at(transaction)? {
                insert(transaction, &Outage::everywhere(Span { from: alive_at, until: now }))?;
            }
            write_alive(transaction, now)?;
            transaction.execute("delete from outages where until_at < ?1", [now.plus_ms(-KEPT_MS).0])?;
            Ok(find(transaction)?)
        })
        .await
    }

    /// A sign of life, behind everything that somebody waits for: should the process die, the next outage began here.
    /// `outages` are times in which paying was impossible although it ran. One at the same place that began at the same moment
    /// and ended earlier is replaced, so that one can be written down while it lasts. Durable when it returns; a retry adds nothing.
    pub async fn note_alive(&self, now: UnixMs, outages: Vec<Outage>) -> LedgerResult<()> {
        self.transact(Urgency::Clerk, move |transaction| {
            outages.iter().try_for_each(|outage| insert(transaction, outage))?;
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
fn insert(transaction: &Transaction<'_>, outage: &Outage) -> LedgerResult<()> {
    let Span { from, until } = outage.span;
    if from < until {
        let place = outage.provider.as_deref().unwrap_or(EVERYWHERE);
        transaction
            .prepare_cached(
                "insert into outages (provider, from_at, until_at) select ?1, ?2, ?3
                 where not exists (select 1 from outages where provider = ?1 and from_at = ?2 and until_at >= ?3)",
            )?
            .execute(params![place, from.0, until.0])?;
        transaction
            .prepare_cached("delete from outages where provider = ?1 and from_at = ?2 and until_at < ?3")?
            .execute(params![place, from.0, until.0])?;
    }
    Ok(())
}

fn find(connection: &Connection) -> rusqlite::Result<Vec<Outage>> {
    let mut statement = connection
        .prepare_cached("select provider, from_at, until_at from outages order by from_at, provider")?;
    let rows = statement.query_map([], |row| {
        let place: String = row.get(0)?;
        let span = Span { from: column::time(row, 1)?, until: column::time(row, 2)? };
        Ok(Outage { provider: Some(place).filter(|place| place != EVERYWHERE), span })
    })?;
    rows.collect()
}
