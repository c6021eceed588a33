//! Whether an offer has units left, as its receivers are told: sold out, and to be had again, each once and in turn.
//! Whoever moves an offer's counters asks for [`LEFT_COLUMNS`] in the same statement, so that telling costs nothing while
//! there is nothing to tell.

use rules::time::UnixMs;
use rusqlite::{Row, Transaction, params};

use crate::ledger::LedgerResult;

/// What [`Left::read`] takes, of an offer after its counters moved. To be selected first.
pub(super) const LEFT_COLUMNS: &str = "offer_no, stock - live_units, sold_out";

/// How many they are: what is selected beside them begins here.
pub(super) const LEFT_COLUMNS_COUNT: usize = 3;

/// What is left of an offer, and what was told of it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub offer_no: i64,
    pub units: i64,
    pub told_sold_out: bool,
}

impl Left {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self { offer_no: row.get(0)?, units: row.get(1)?, told_sold_out: row.get(2)? })
    }

    /// Tells what is new, in the transaction that moved the counters. Offers of drafts are on no shelf yet.
    pub(super) fn tell(self, transaction: &Transaction<'_>, now: UnixMs) -> LedgerResult<()> {
        let sold_out = self.units <= 0;
        if sold_out == self.told_sold_out {
            return Ok(());
        }
        let turned = transaction
            .prepare_cached(
                "update offers set sold_out = ?2 where offer_no = ?1
                 and sale_no in (select sale_no from sales where state <> 'draft')",
            )?
            .execute(params![self.offer_no, sold_out])?;
        if turned == 0 {
            return Ok(());
        }
        let kind = if sold_out { "offer.sold_out" } else { "offer.restocked" };
        transaction
            .prepare_cached(
                "insert into events (type, at, sale_no, offer_no, data)
                 select ?2, ?3, sale_no, offer_no, json_object('stock', stock, 'free', stock - live_units)
                 from offers where offer_no = ?1",
            )?
            .execute(params![self.offer_no, kind, now.0])?;
        Ok(())
    }
}
