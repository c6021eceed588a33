//! Registrations, blocks and the operator's answered requests in SQLite.

use rules::buyer::BuyerId;
use rules::id::SaleId;
use rules::time::UnixMs;
use rusqlite::{OptionalExtension as _, Row, Transaction, params};

use super::{SqliteLedger, Urgency, column};
use crate::ledger::{Block, KeyedAnswer, LedgerResult};

/// How long an answer to an Idempotency-Key is kept, in milliseconds: a day.
const ANSWERS_KEPT_MS: i64 = 86_400_000;

/// The first answer to an operator's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub request_digest: Vec<u8>,
    pub status: u16,
    pub body: String,
}

impl SqliteLedger {
    /// Signs a buyer up for a sale and answers since when. Again is harmless: the first time stays.
    pub async fn register(&self, sale: SaleId, buyer: BuyerId, now: UnixMs) -> LedgerResult<(UnixMs, bool)> {
        self.transact(Urgency::Settle, move |transaction| {
            let inserted = transaction
                .prepare_cached(
                    "insert into registrations (sale_no, buyer, registered_at)
                     select sale_no, ?2, ?3 from sales where sale_id = ?1 on conflict do nothing",
                )?
                .execute(params![sale.to_bytes(), buyer.as_str(), now.0])?;
            let since = transaction
                .prepare_cached(
                    "select registered_at from registrations join sales using (sale_no)
                     where sale_id = ?1 and buyer = ?2",
                )?
                .query_row(params![sale.to_bytes(), buyer.as_str()], |row| column::time(row, 0))?;
            Ok((since, inserted == 1))
        })
        .await
    }

    /// Takes a registration back; `false` when there was none.
    pub async fn unregister(&self, sale: SaleId, buyer: BuyerId) -> LedgerResult<bool> {
        self.transact(Urgency::Settle, move |transaction| {
            let deleted = transaction
                .prepare_cached(
                    "delete from registrations where buyer = ?2
                     and sale_no = (select sale_no from sales where sale_id = ?1)",
                )?
                .execute(params![sale.to_bytes(), buyer.as_str()])?;
            Ok(deleted == 1)
        })
        .await
    }

    /// Every buyer who signed up for a sale; `visit` runs on a reading thread.
    pub async fn registrations(
        &self,
        sale: SaleId,
        mut visit: impl FnMut(&str) + Send + 'static,
    ) -> LedgerResult<()> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "select buyer from registrations
                 where sale_no = (select sale_no from sales where sale_id = ?1)",
            )?;
            let mut rows = statement.query([sale.to_bytes()])?;
            while let Some(row) = rows.next()? {
                visit(row.get_ref(0)?.as_str().map_err(rusqlite::Error::from)?);
            }
            Ok(())
        })
        .await
    }

    /// How many buyers signed up for each of these sales.
    pub async fn registration_counts(&self, sales: Vec<SaleId>) -> LedgerResult<Vec<u64>> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "select count(*) from registrations
                 where sale_no = (select sale_no from sales where sale_id = ?1)",
            )?;
            let count = |sale: &SaleId| statement.query_row([sale.to_bytes()], |row| column::number(row, 0));
            Ok(sales.iter().map(count).collect::<Result<_, _>>()?)
        })
        .await
    }

    /// What a buyer signed up for, newest first.
    pub async fn registrations_of(&self, buyer: BuyerId, limit: u32) -> LedgerResult<Vec<(SaleId, UnixMs)>> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "select sale_id, registered_at from registrations join sales using (sale_no)
                 where buyer = ?1 order by registered_at desc, sale_no desc limit ?2",
            )?;
            let rows = statement.query_map(params![buyer.as_str(), limit], |row| {
                Ok((SaleId(column::id(row, 0)?), column::time(row, 1)?))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// Since when a buyer is signed up for a sale.
    pub async fn registration(&self, sale: SaleId, buyer: BuyerId) -> LedgerResult<Option<UnixMs>> {
        self.read(move |connection| {
            let since = connection
                .prepare_cached(
                    "select registered_at from registrations join sales using (sale_no)
                     where sale_id = ?1 and buyer = ?2",
                )?
                .query_row(params![sale.to_bytes(), buyer.as_str()], |row| column::time(row, 0))
                .optional()?;
            Ok(since)
        })
        .await
    }

    /// Blocks a buyer until a time; an earlier block is replaced. Ended by [`SqliteLedger::let_in`].
    pub async fn block(&self, block: Block, now: UnixMs) -> LedgerResult<()> {
        self.transact(Urgency::Settle, move |transaction| {
            transaction.execute(
                "insert into blocks (buyer, until_at, note, created_at) values (?1, ?2, ?3, ?4)
                 on conflict (buyer) do update set until_at = ?2, note = ?3, created_at = ?4",
                params![block.buyer.as_str(), block.until.0, block.note, now.0],
            )?;
            let data = serde_json::json!({"buyer": block.buyer, "until": block.until, "note": block.note});
            transaction.execute(
                "insert into events (type, at, data) values ('buyer.blocked', ?1, ?2)",
                params![now.0, data.to_string()],
            )?;
            Ok(())
        })
        .await
    }

    /// Every block that is still in force.
    pub async fn blocks(&self, now: UnixMs) -> LedgerResult<Vec<Block>> {
        self.read(move |connection| {
            let mut statement =
                connection.prepare_cached("select buyer, until_at, note from blocks where until_at > ?1")?;
            let rows = statement.query_map([now.0], read_block)?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// A buyer's block, if it is still in force.
    pub async fn block_of(&self, buyer: BuyerId, now: UnixMs) -> LedgerResult<Option<Block>> {
        self.read(move |connection| {
            let found = connection
                .prepare_cached(
                    "select buyer, until_at, note from blocks where buyer = ?1 and until_at > ?2",
                )?
                .query_row(params![buyer.as_str(), now.0], read_block)
                .optional()?;
            Ok(found)
        })
        .await
    }

    /// Who signed up for a sale and when, by buyer, those after `after`; and whether there are more.
    pub async fn registration_page(
        &self,
        sale: SaleId,
        after: Option<String>,
        limit: u32,
    ) -> LedgerResult<(Vec<(String, UnixMs)>, bool)> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "select buyer, registered_at from registrations join sales using (sale_no)
                 where sale_id = ?1 and buyer > ?2 order by buyer limit ?3",
            )?;
            let values = params![sale.to_bytes(), after.unwrap_or_default(), i64::from(limit) + 1];
            let rows = statement.query_map(values, |row| Ok((row.get(0)?, column::time(row, 1)?)))?;
            Ok(page(rows.collect::<Result<_, _>>()?, limit))
        })
        .await
    }

    /// The answer given to this Idempotency-Key before, if any.
    pub async fn answer(&self, key: String) -> LedgerResult<Option<Answer>> {
        self.read(move |connection| {
            let found = connection
                .prepare_cached(
                    "select request_digest, status, body from answers where idempotency_key = ?1",
                )?
                .query_row([key], |row| {
                    Ok(Answer { request_digest: row.get(0)?, status: row.get(1)?, body: row.get(2)? })
                })
                .optional()?;
            Ok(found)
        })
        .await
    }

    /// Remembers an answer for a day. The first one stays.
    pub async fn remember_answer(&self, answer: KeyedAnswer, now: UnixMs) -> LedgerResult<()> {
        self.transact(Urgency::Settle, move |transaction| remember(transaction, &answer, now)).await
    }
}

/// See [`SqliteLedger::remember_answer`]; here as a part of the change that it answers.
pub(super) fn remember(transaction: &Transaction<'_>, keyed: &KeyedAnswer, now: UnixMs) -> LedgerResult<()> {
    let KeyedAnswer { key, answer } = keyed;
    transaction.execute("delete from answers where answered_at < ?1", [now.0 - ANSWERS_KEPT_MS])?;
    transaction.execute(
        "insert into answers (idempotency_key, request_digest, status, body, answered_at)
         values (?1, ?2, ?3, ?4, ?5) on conflict do nothing",
        params![key, answer.request_digest, answer.status, answer.body, now.0],
    )?;
    Ok(())
}

/// One entry more than the limit was asked for: it tells whether there are more.
pub(super) fn page<T>(mut entries: Vec<T>, limit: u32) -> (Vec<T>, bool) {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = entries.len() > limit;
    entries.truncate(limit);
    (entries, more)
}

fn read_block(row: &Row<'_>) -> rusqlite::Result<Block> {
    Ok(Block {
        buyer: column::word(row, 0, |text| BuyerId::parse(text).ok())?,
        until: column::time(row, 1)?,
        note: row.get(2)?,
    })
}
