//! Events in SQLite as their receivers see them: read in their order, delivered once or more, dropped when old. Owns
//! which events a webhook still lacks; does not know how anything is sent.
//!
//! Reading `event_no > cursor` loses nothing here: one thread writes, so numbers become visible in their order. A
//! ledger with several writers must not copy this without a horizon.

use std::collections::{BTreeMap, BTreeSet};

use rules::id::{EventId, OfferId, OrderId, SaleId, WebhookId};
use rules::money::{Currency, Money};
use rules::time::UnixMs;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{SqliteLedger, Urgency, column, signed};
use crate::ledger::LedgerResult;

/// Events dropped by one transaction, at most: a settle must not wait long behind it.
const DROPPED_AT_ONCE: u32 = 2_000;

/// How much later an event may be written than one with a later time, in milliseconds: what changes is timed before it
/// waits for the writer.
const DISORDER_MS: i64 = 10_000;

/// The columns of an event, in the order [`read_event`] takes them, and its track.
pub(super) const EVENT_COLUMNS: &str =
    "e.event_no, e.type, e.at, s.sale_id, f.offer_id, o.order_id, e.seq, e.data, o.buyer,
    o.quantity, f.price_amount, f.currency, coalesce(e.order_no, -e.sale_no, 0)";

/// Where an event's columns end and a query's own begin.
pub(super) const EVENT_COLUMNS_END: usize = 13;

pub(super) const EVENT_TABLES: &str = "left join sales s on s.sale_no = e.sale_no
    left join offers f on f.offer_no = e.offer_no left join orders o on o.order_no = e.order_no";

/// A fact, as its receivers see it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Event {
    #[serde(skip)]
    pub no: u64,
    pub id: EventId,
    #[serde(rename = "type")]
    pub kind: String,
    pub at: UnixMs,
    pub sale_id: Option<SaleId>,
    pub offer_id: Option<OfferId>,
    pub order_id: Option<OrderId>,
    /// The order's seq, without gaps.
    pub seq: Option<u32>,
    pub data: Value,
}

/// An event on its way to one webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct Outgoing {
    pub event: Event,
    /// Events of one track are delivered in their order.
    pub track: i64,
    pub past: Past,
}

/// What happened to a delivery before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// Never tried.
    Fresh,
    /// Never tried, and an earlier event of its track waits.
    Behind,
    /// Waiting since then, tried so often.
    Waiting { attempts: u32, since: UnixMs },
    /// It waited, and is of a type that is no longer wanted.
    Unwanted,
}

/// What a courier takes in one go.
#[derive(Clone, Debug)]
pub struct Taken {
    pub deliveries: Vec<Outgoing>,
    /// All events up to here were looked at.
    pub read_to: u64,
    /// When the next delivery that is not due yet will be.
    pub next_due: Option<UnixMs>,
}

/// Deliveries that wait although their types are not wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unwanted {
    /// Event numbers and tracks.
    pub deliveries: Vec<(u64, i64)>,
    /// Where to look on; `None` at the end.
    pub read_to: Option<u64>,
}

/// What became of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled {
    pub event_no: u64,
    pub track: i64,
    pub fate: Fate,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Or no longer wanted: it leaves no row, and what stands behind it goes on.
    Delivered,
    /// Not tried: an earlier event of its track waits.
    Behind,
    Waiting {
        attempts: u32,
        since: UnixMs,
        due_at: UnixMs,
        problem: String,
    },
    Parked {
        attempts: u32,
        since: UnixMs,
        problem: String,
    },
}

/// What [`SqliteLedger::drop_old_events`] dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    pub events: usize,
    /// Who lost how many of them: events that waited, were parked, or were not even looked at.
    pub lost: Vec<(WebhookId, u64)>,
}

/// What a courier writes down in one go.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub webhook_no: u64,
    /// The cursor as the courier knows it. If it was moved meanwhile, for a replay, it stays where it is.
    pub cursor_was: u64,
    pub cursor: u64,
    pub settled: Vec<Settled>,
}

impl SqliteLedger {
    /// The number of the newest event; 0 when there is none.
    pub async fn newest_event(&self) -> LedgerResult<u64> {
        self.read(|connection| Ok(newest(connection)?)).await
    }

    /// Events after this number, in their order, of all sales but rehearsals.
    pub async fn events_after(&self, after: u64, limit: u32) -> LedgerResult<Vec<Event>> {
        let ledger = *self.incarnation();
        self.read(move |connection| {
            let sql = format!(
                "select {EVENT_COLUMNS} from events e {EVENT_TABLES}
                 where e.event_no > ?1 and (e.sale_no is null or s.rehearsal = 0) order by e.event_no limit ?2"
            );
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map(params![signed(after), limit], |row| read_event(row, &ledger))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// What this webhook lacks: deliveries that are due, then events after `after` of the types that `wants` names, as
    /// many as `limit` of each. What is due and no longer wanted is named as such. Rehearsals and drafts that were thrown
    /// away tell nobody. Changes nothing.
    pub async fn take_deliveries(
        &self,
        webhook_no: u64,
        after: u64,
        limit: u32,
        now: UnixMs,
        wants: impl Fn(&str) -> bool + Send + 'static,
    ) -> LedgerResult<Taken> {
        let ledger = *self.incarnation();
        self.read(move |connection| {
            let mut deliveries = due(connection, &ledger, webhook_no, limit, now, &wants)?;
            let read_to = fresh(connection, &ledger, webhook_no, after, limit, &wants, &mut deliveries)?;
            let next_due = connection
                .prepare_cached("select min(due_at) from deliveries where webhook_no = ?1 and due_at > ?2")?
                .query_row([signed(webhook_no), now.0], |row| column::time_option(row, 0))?;
            Ok(Taken { deliveries, read_to, next_due })
        })
        .await
    }

    /// Which of the deliveries that wait, due or not, are of types that `wants` does not name; looks at `limit` of them
    /// after the event number `after`. Changes nothing.
    pub async fn unwanted_deliveries(
        &self,
        webhook_no: u64,
        after: u64,
        limit: u32,
        wants: impl Fn(&str) -> bool + Send + 'static,
    ) -> LedgerResult<Unwanted> {
        self.read(move |connection| Ok(unwanted(connection, webhook_no, after, limit, wants)?)).await
    }

    /// Writes down what became of deliveries, and how far the webhook is; answers where its cursor stands now, `None`
    /// when the webhook is gone. A retry is harmless. What is not written down is delivered again.
    pub async fn settle_deliveries(&self, settlement: Settlement, now: UnixMs) -> LedgerResult<Option<u64>> {
        // The clerk's queue: nobody waits for this, and payments and cancels go first.
        self.transact(Urgency::Clerk, move |transaction| settle(transaction, &settlement, now)).await
    }

    /// Drops events from before `before`, a bounded number at once. What a webhook lacks of them is dropped with them,
    /// counted in its standing and named in the answer. `wants`: whether a webhook with these types is told of this
    /// one. The newest event stays, because its number must not come again.
    pub async fn drop_old_events(
        &self,
        before: UnixMs,
        now: UnixMs,
        wants: impl Fn(&[String], &str) -> bool + Send + 'static,
    ) -> LedgerResult<Dropped> {
        self.transact(Urgency::Clerk, move |transaction| Ok(drop_old(transaction, before, now, wants)?)).await
    }
}

/// The oldest events, as far as they are older than `?1`.
fn doomed() -> String {
    format!(
        "select event_no from (select event_no, at from events order by event_no limit {DROPPED_AT_ONCE})
         where at < ?1 and event_no < (select max(event_no) from events)"
    )
}

fn drop_old(
    transaction: &Transaction<'_>,
    before: UnixMs,
    now: UnixMs,
    wants: impl Fn(&[String], &str) -> bool,
) -> rusqlite::Result<Dropped> {
    let last: Option<i64> = transaction
        .prepare_cached(&format!("select max(event_no) from ({})", doomed()))?
        .query_row([before.0], |row| row.get(0))?;
    let Some(last) = last else { return Ok(Dropped::default()) };
    let mut lost: BTreeMap<i64, u64> = BTreeMap::new();
    for (webhook_no, count) in unseen(transaction, before, last, wants)? {
        *lost.entry(webhook_no).or_default() += count;
    }
    for webhook_no in drop_deliveries(transaction, before, now)? {
        *lost.entry(webhook_no).or_default() += 1;
    }
    let events =
        transaction.execute(&format!("delete from events where event_no in ({})", doomed()), [before.0])?;
    let mut named = Vec::new();
    for (webhook_no, count) in lost.into_iter().filter(|(_, count)| *count > 0) {
        let id = transaction
            .prepare_cached(
                "update webhooks set dropped = dropped + ?2 where webhook_no = ?1 returning webhook_id",
            )?
            .query_row(params![webhook_no, signed(count)], |row| column::id(row, 0))?;
        named.push((WebhookId(id), count));
    }
    Ok(Dropped { events, lost: named })
}

/// Who did not even look at events that are dropped, and how many of these it would have been told of.
fn unseen(
    transaction: &Transaction<'_>,
    before: UnixMs,
    last: i64,
    wants: impl Fn(&[String], &str) -> bool,
) -> rusqlite::Result<Vec<(i64, u64)>> {
    let mut behind =
        transaction.prepare_cached("select webhook_no, types from webhooks where cursor < ?1")?;
    let behind = behind.query_map([last], |row| {
        let types: Vec<String> = column::word(row, 1, |text| serde_json::from_str(text).ok())?;
        Ok((row.get(0)?, types))
    })?;
    let mut count = transaction.prepare_cached(&format!(
        "select e.type, count(*) from events e left join sales s on s.sale_no = e.sale_no
         where e.event_no in ({}) and e.event_no > (select cursor from webhooks where webhook_no = ?2)
         and coalesce(e.sale_no is null or s.rehearsal = 0, 0)
         and not exists (select 1 from deliveries d where d.webhook_no = ?2 and d.event_no = e.event_no)
         group by e.type",
        doomed()
    ))?;
    let mut found = Vec::new();
    for webhook in behind {
        let (webhook_no, types): (i64, Vec<String>) = webhook?;
        let mut rows = count.query(params![before.0, webhook_no])?;
        while let Some(row) = rows.next()? {
            if wants(&types, row.get_ref(0)?.as_str()?) {
                found.push((webhook_no, column::number(row, 1)?));
            }
        }
    }
    Ok(found)
}

/// Drops deliveries of events that are about to be dropped; answers whose they were, one by one. What stood behind
/// them is due now.
fn drop_deliveries(transaction: &Transaction<'_>, before: UnixMs, now: UnixMs) -> rusqlite::Result<Vec<i64>> {
    let dropped: Vec<(i64, i64)> = transaction
        .prepare_cached(&format!(
            "delete from deliveries where event_no in ({}) returning webhook_no, track",
            doomed()
        ))?
        .query_map([before.0], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for (webhook_no, track) in dropped.iter().copied().collect::<BTreeSet<_>>() {
        set_head(transaction, webhook_no, track, now)?;
    }
    Ok(dropped.into_iter().map(|(webhook_no, _)| webhook_no).collect())
}

pub(super) fn newest(connection: &Connection) -> rusqlite::Result<u64> {
    connection
        .prepare_cached("select coalesce(max(event_no), 0) from events")?
        .query_row([], |row| column::number(row, 0))
}

/// The number before the first event that happened at `at` or later; of the newest event, when there is none. Searched
/// by number, without an index over all events: their times grow with their numbers, but for [`DISORDER_MS`]. If the
/// machine's clock was set back while nobody ran, it may be the first one after that.
pub(super) fn place_of(connection: &Connection, at: UnixMs) -> rusqlite::Result<u64> {
    let mut probe =
        connection.prepare_cached("select at from events where event_no >= ?1 order by event_no limit 1")?;
    let end = signed(newest(connection)?);
    let (mut low, mut high) = (oldest(connection)?, end);
    while low < high {
        let middle = low + (high - low) / 2;
        if probe.query_row([middle], |row| column::time(row, 0))? < at.plus_ms(-DISORDER_MS) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let first: Option<i64> = connection
        .prepare_cached(
            "select event_no from events where event_no >= ?1 and at >= ?2 order by event_no limit 1",
        )?
        .query_row(params![low, at.0], |row| row.get(0))
        .optional()?;
    Ok(u64::try_from(first.map_or(end, |first| first - 1)).unwrap_or(0))
}

/// The number of the oldest event that is kept; 1 when there is none.
pub(super) fn oldest(connection: &Connection) -> rusqlite::Result<i64> {
    connection
        .prepare_cached("select coalesce(min(event_no), 1) from events")?
        .query_row([], |row| row.get(0))
}

fn due(
    connection: &Connection,
    ledger: &[u8; 16],
    webhook_no: u64,
    limit: u32,
    now: UnixMs,
    wants: impl Fn(&str) -> bool,
) -> rusqlite::Result<Vec<Outgoing>> {
    let sql = format!(
        "select {EVENT_COLUMNS}, d.attempts,
             -- Who was disabled for days has all the time again from the moment that it is enabled.
             max(d.since, (select enabled_at from webhooks where webhook_no = ?1))
         from deliveries d join events e on e.event_no = d.event_no
         {EVENT_TABLES} where d.webhook_no = ?1 and d.due_at <= ?2 order by d.due_at limit ?3"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params![signed(webhook_no), now.0, limit], |row| {
        let attempts = column::count(row, EVENT_COLUMNS_END)?;
        let since = column::time(row, EVENT_COLUMNS_END + 1)?;
        let is_wanted = wants(row.get_ref(1)?.as_str()?);
        let past = if is_wanted { Past::Waiting { attempts, since } } else { Past::Unwanted };
        read_outgoing(row, ledger, past)
    })?;
    rows.collect()
}

fn unwanted(
    connection: &Connection,
    webhook_no: u64,
    after: u64,
    limit: u32,
    wants: impl Fn(&str) -> bool,
) -> rusqlite::Result<Unwanted> {
    let mut statement = connection.prepare_cached(
        "select d.event_no, d.track, e.type, d.state = 'waiting' from deliveries d join events e using (event_no)
         where d.webhook_no = ?1 and d.event_no > ?2 order by d.event_no limit ?3",
    )?;
    let mut rows = statement.query(params![signed(webhook_no), signed(after), limit])?;
    let (mut found, mut looked_at) = (Unwanted::default(), 0);
    while let Some(row) = rows.next()? {
        looked_at += 1;
        let no = column::number(row, 0)?;
        found.read_to = Some(no);
        if row.get(3)? && !wants(row.get_ref(2)?.as_str()?) {
            found.deliveries.push((no, row.get(1)?));
        }
    }
    if looked_at < limit {
        found.read_to = None;
    }
    Ok(found)
}

/// Reads on from `after`; answers how far. Events that are in deliveries already are not taken twice.
fn fresh(
    connection: &Connection,
    ledger: &[u8; 16],
    webhook_no: u64,
    after: u64,
    limit: u32,
    wants: impl Fn(&str) -> bool,
    into: &mut Vec<Outgoing>,
) -> rusqlite::Result<u64> {
    let sql = format!(
        "select {EVENT_COLUMNS},
             -- A draft that was thrown away is neither: nobody is told of it.
             coalesce(e.sale_no is null or s.rehearsal = 0, 0)
             and not exists (select 1 from deliveries d where d.webhook_no = ?1 and d.event_no = e.event_no),
             exists (select 1 from deliveries d where d.webhook_no = ?1 and d.state = 'waiting'
                     and d.track = coalesce(e.order_no, -e.sale_no, 0))
         from events e {EVENT_TABLES} where e.event_no > ?2 order by e.event_no limit ?3"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![signed(webhook_no), signed(after), limit])?;
    let mut read_to = after;
    while let Some(row) = rows.next()? {
        read_to = column::number(row, 0)?;
        let told = row.get::<_, bool>(EVENT_COLUMNS_END)?;
        if told && wants(row.get_ref(1)?.as_str()?) {
            let behind: bool = row.get(EVENT_COLUMNS_END + 1)?;
            into.push(read_outgoing(row, ledger, if behind { Past::Behind } else { Past::Fresh })?);
        }
    }
    Ok(read_to)
}

fn read_outgoing(row: &Row<'_>, ledger: &[u8; 16], past: Past) -> rusqlite::Result<Outgoing> {
    Ok(Outgoing { event: read_event(row, ledger)?, track: row.get(EVENT_COLUMNS_END - 1)?, past })
}

pub(super) fn read_event(row: &Row<'_>, ledger: &[u8; 16]) -> rusqlite::Result<Event> {
    let id = |index: usize| -> rusqlite::Result<Option<u128>> {
        Ok(row.get::<_, Option<[u8; 16]>>(index)?.map(u128::from_be_bytes))
    };
    let no = column::number(row, 0)?;
    Ok(Event {
        no,
        id: EventId::numbered(ledger, no),
        kind: row.get(1)?,
        at: column::time(row, 2)?,
        sale_id: id(3)?.map(SaleId),
        offer_id: id(4)?.map(OfferId),
        order_id: id(5)?.map(OrderId),
        seq: row.get(6)?,
        data: read_data(row)?,
    })
}

/// What was written with the event, and of an order what never changes: who bought, how many, for how much.
fn read_data(row: &Row<'_>) -> rusqlite::Result<Value> {
    let mut data: Map<String, Value> = column::word(row, 7, |text| serde_json::from_str(text).ok())?;
    if let Some(buyer) = row.get::<_, Option<String>>(8)? {
        let quantity = column::count(row, 9)?;
        let currency: Currency = column::word(row, 11, |text| text.parse().ok())?;
        let price = Money { amount: row.get(10)?, currency };
        data.entry("buyer").or_insert_with(|| buyer.into());
        data.entry("quantity").or_insert_with(|| quantity.into());
        let total = price.times(quantity).and_then(|total| serde_json::to_value(total).ok());
        data.entry("total").or_insert(total.unwrap_or_default());
    }
    Ok(Value::Object(data))
}

fn settle(transaction: &Transaction<'_>, settlement: &Settlement, now: UnixMs) -> LedgerResult<Option<u64>> {
    let webhook_no = signed(settlement.webhook_no);
    let cursor = transaction
        .prepare_cached("select cursor from webhooks where webhook_no = ?1")?
        .query_row([webhook_no], |row| column::number(row, 0))
        .optional()?;
    let Some(cursor) = cursor else { return Ok(None) };
    for settled in &settlement.settled {
        write_fate(transaction, webhook_no, settled, now)?;
    }
    let tracks: BTreeSet<i64> = settlement.settled.iter().map(|settled| settled.track).collect();
    for track in tracks {
        set_head(transaction, webhook_no, track, now)?;
    }
    if cursor != settlement.cursor_was {
        return Ok(Some(cursor));
    }
    transaction
        .prepare_cached("update webhooks set cursor = ?2 where webhook_no = ?1")?
        .execute(params![webhook_no, signed(settlement.cursor)])?;
    Ok(Some(settlement.cursor))
}

fn write_fate(
    transaction: &Transaction<'_>,
    webhook_no: i64,
    settled: &Settled,
    now: UnixMs,
) -> rusqlite::Result<()> {
    let event_no = signed(settled.event_no);
    let (state, attempts, since, due_at, problem) = match &settled.fate {
        Fate::Delivered => {
            transaction
                .prepare_cached("delete from deliveries where webhook_no = ?1 and event_no = ?2")?
                .execute([webhook_no, event_no])?;
            return Ok(());
        }
        Fate::Behind => ("waiting", 0, now, None, None),
        Fate::Waiting { attempts, since, due_at, problem } => {
            ("waiting", *attempts, *since, Some(due_at.0), Some(problem))
        }
        Fate::Parked { attempts, since, problem } => ("parked", *attempts, *since, None, Some(problem)),
    };
    transaction
        .prepare_cached(
            "insert or replace into deliveries (webhook_no, event_no, track, state, attempts, since, due_at, problem)
             -- An event that was dropped meanwhile cannot be tried again.
             select ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 where exists (select 1 from events where event_no = ?2)",
        )?
        .execute(params![webhook_no, event_no, settled.track, state, attempts, since.0, due_at, problem])?;
    Ok(())
}

/// Only the first event of a track that waits is due: the others wait for it.
pub(super) fn set_head(
    transaction: &Transaction<'_>,
    webhook_no: i64,
    track: i64,
    now: UnixMs,
) -> rusqlite::Result<()> {
    let head: Option<i64> = transaction
        .prepare_cached(
            "select min(event_no) from deliveries where webhook_no = ?1 and track = ?2 and state = 'waiting'",
        )?
        .query_row([webhook_no, track], |row| row.get(0))?;
    let Some(head) = head else { return Ok(()) };
    transaction
        .prepare_cached(
            "update deliveries set due_at = iif(event_no = ?3, coalesce(due_at, ?4), null)
             where webhook_no = ?1 and track = ?2 and state = 'waiting' and (event_no = ?3 or due_at is not null)",
        )?
        .execute(params![webhook_no, track, head, now.0])?;
    Ok(())
}
