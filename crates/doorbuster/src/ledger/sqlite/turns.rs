//! Windows that open and close, told once each. Nobody has to be there at the moment: what was told last stands beside
//! the sale, and the event and that mark are one transaction.

use rules::id::SaleId;
use rules::sale::{Phase, Sale, SaleState};
use rules::time::UnixMs;
use rusqlite::{Connection, Row, Transaction, params};

use super::sales::{SALE_COLUMNS, SALE_COLUMNS_COUNT, read_sale_row};
use super::{SqliteLedger, Urgency, column};
use crate::ledger::LedgerResult;

/// When a sale's window turns next, if the clock turns it.
const TURNS_AT: &str = "iif(told_phase = 'upcoming', opens_at, closes_at)";

/// Sales whose windows the clock will turn; the condition of the index `sales_turning`.
const TURNING: &str = "told_phase <> 'closed' and state in ('published', 'paused')";

/// Most windows told of by one transaction; the rest follow at once.
const TURNS_AT_ONCE: u32 = 500;

impl SqliteLedger {
    /// When the next window opens or closes that was not told of; in the past, if somebody was late.
    pub async fn next_turn(&self) -> LedgerResult<Option<UnixMs>> {
        self.read(|connection| {
            let sql = format!("select min({TURNS_AT}) from sales indexed by sales_turning where {TURNING}");
            Ok(connection.prepare_cached(&sql)?.query_row([], |row| column::time_option(row, 0))?)
        })
        .await
    }

    /// Tells of windows that opened or closed until now, a bounded number at once; answers how many events it took.
    /// Durable when it returns; a retry tells nothing twice.
    pub async fn tell_turns(&self, now: UnixMs) -> LedgerResult<usize> {
        self.transact(Urgency::Settle, move |transaction| {
            let mut told = 0;
            for (sale, phase) in find_due(transaction, now)? {
                told += sale.turns(phase, now).len();
                tell(transaction, &sale, phase, now)?;
            }
            Ok(told)
        })
        .await
    }
}

fn find_due(connection: &Connection, now: UnixMs) -> rusqlite::Result<Vec<(Sale, Phase)>> {
    let sql = format!(
        "select {SALE_COLUMNS}, told_phase from sales indexed by sales_turning
         where {TURNING} and {TURNS_AT} <= ?1 order by {TURNS_AT}, sale_no limit {TURNS_AT_ONCE}"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map([now.0], read_told)?;
    rows.collect()
}

/// What was told of the sale last.
pub(super) fn told_phase(connection: &Connection, sale: SaleId) -> rusqlite::Result<Phase> {
    connection
        .prepare_cached("select told_phase from sales where sale_id = ?1")?
        .query_row([sale.to_bytes()], |row| column::word(row, 0, Phase::parse))
}

/// Tells what is new about this sale's window, whoever is first to notice.
pub(super) fn tell_now(transaction: &Transaction<'_>, sale: SaleId, now: UnixMs) -> LedgerResult<()> {
    let sql = format!("select {SALE_COLUMNS}, told_phase from sales where sale_id = ?1");
    let (sale, told) = transaction.prepare_cached(&sql)?.query_row([sale.to_bytes()], read_told)?;
    tell(transaction, &sale, told, now)?;
    Ok(())
}

fn read_told(row: &Row<'_>) -> rusqlite::Result<(Sale, Phase)> {
    Ok((read_sale_row(row)?.1, column::word(row, SALE_COLUMNS_COUNT, Phase::parse)?))
}

/// Tells what is new about the sale's window, and remembers that; answers what is told of by now. Nobody is told of a
/// draft's window.
pub(super) fn tell(
    transaction: &Transaction<'_>,
    sale: &Sale,
    told: Phase,
    now: UnixMs,
) -> LedgerResult<Phase> {
    let turns = sale.turns(told, now);
    if turns.is_empty() || sale.state == SaleState::Draft {
        return Ok(told);
    }
    let window = serde_json::json!({"opens_at": sale.window.opens_at, "closes_at": sale.window.closes_at});
    for turn in turns {
        transaction
            .prepare_cached(
                "insert into events (type, at, sale_no, data) select ?1, ?2, sale_no, ?3 from sales where sale_id = ?4",
            )?
            .execute(params![turn.kind(), now.0, window.to_string(), sale.id.to_bytes()])?;
    }
    let phase = sale.phase(now);
    transaction
        .prepare_cached("update sales set told_phase = ?2 where sale_id = ?1")?
        .execute(params![sale.id.to_bytes(), phase.as_str()])?;
    Ok(phase)
}
