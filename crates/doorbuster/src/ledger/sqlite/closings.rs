//! Payments that are closed here and perhaps still open at their providers, in SQLite. Whoever closes a payment writes it
//! down here in the same transaction; asking the provider, and how often, is the business of whoever calls.

use rules::time::UnixMs;
use rusqlite::{Transaction, params};

use super::deadlines::{numbers, readable};
use super::payments::{PAYMENT_COLUMNS, PAYMENT_COLUMNS_COUNT, read_payment};
use super::{SqliteLedger, Urgency, column, signed};
use crate::ledger::LedgerResult;
use crate::ledger::money::{ClosingEnd, ClosingNote, ToClose};

impl SqliteLedger {
    /// Payments of one provider that it is to be told by now to take no money for any more, the longest due first. What
    /// cannot be read is left out.
    pub async fn closings_due(
        &self,
        provider: &'static str,
        now: UnixMs,
        limit: u32,
    ) -> LedgerResult<Vec<ToClose>> {
        self.read(move |connection| {
            let sql = format!(
                "select {PAYMENT_COLUMNS}, payments.close_tries,
                     (select pay_by from orders where orders.order_id = payments.order_id)
                 from payments indexed by payments_to_close
                 where provider = ?1 and state = 'closed' and close_try_at <= ?2
                 order by close_try_at, payment_no limit ?3"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params![provider, now.0, limit], |row| {
                Ok(ToClose {
                    payment: read_payment(row, 0)?,
                    tries: column::count(row, PAYMENT_COLUMNS_COUNT)?,
                    pay_by: column::time_option(row, PAYMENT_COLUMNS_COUNT + 1)?,
                })
            })?;
            Ok(readable(rows)?)
        })
        .await
    }

    /// Writes down what came of asking, all of it in one transaction. Durable when it returns; a retry counts a vain try
    /// again. Whoever dies before it asks again, which is harmless. Waits behind whatever a buyer waits for.
    pub async fn note_closings(&self, notes: Vec<ClosingNote>) -> LedgerResult<()> {
        self.transact(Urgency::Clerk.at("ledger.note_closings"), move |transaction| {
            let done = notes.iter().filter(|note| note.end == ClosingEnd::Done);
            transaction
                .prepare_cached(
                    "update payments set close_try_at = null
                     where payment_no in (select value from json_each(?1))",
                )?
                .execute([numbers(done.map(|note| note.payment_no))])?;
            notes.iter().try_for_each(|note| put_off(transaction, note))
        })
        .await
    }
}

/// To be called in the transaction that closes the payment: from there on it is found, whoever dies.
pub(super) fn close_there(transaction: &Transaction<'_>, payment_no: u64, at: UnixMs) -> LedgerResult<()> {
    transaction
        .prepare_cached("update payments set close_try_at = ?2, close_tries = 0 where payment_no = ?1")?
        .execute(params![signed(payment_no), at.0])?;
    Ok(())
}

/// One that was asked in vain. One that money came for meanwhile has a history of its own.
fn put_off(transaction: &Transaction<'_>, note: &ClosingNote) -> LedgerResult<()> {
    let (next, problem) = match &note.end {
        ClosingEnd::Done => return Ok(()),
        ClosingEnd::Again { at } => (Some(at.0), None),
        ClosingEnd::GivenUp { problem } => (None, Some(problem)),
    };
    transaction
        .prepare_cached(
            "update payments set close_try_at = ?2, close_tries = close_tries + 1, problem = coalesce(?3, problem)
             where payment_no = ?1 and state = 'closed'",
        )?
        .execute(params![signed(note.payment_no), next, problem])?;
    Ok(())
}
