//! Events as operators read them: page by page, from a place, a time or the end. The same events that webhooks are told
//! of, and in the same order; nothing here remembers who read what.

use rules::time::UnixMs;
use rusqlite::{Connection, params};

use super::events::{
    EVENT_COLUMNS, EVENT_COLUMNS_END, EVENT_TABLES, Event, newest, oldest, place_of, read_event,
};
use super::{SqliteLedger, column, signed};
use crate::ledger::LedgerResult;

/// Most events that one read looks at, wanted or not, told or not: other reads wait behind it.
const LOOKED_AT_MAX: u32 = 10_000;

/// Rehearsals and drafts that were thrown away are told to nobody.
const IS_TOLD: &str = "coalesce(e.sale_no is null or s.rehearsal = 0, 0)";

/// Some events in their order, and how far was looked.
#[derive(Clone, Debug, PartialEq)]
pub struct EventPage {
    pub events: Vec<Event>,
    /// All events up to here were looked at: where to read on.
    pub read_to: u64,
    /// Whether there may be more at once.
    pub more: bool,
    /// Events after the number that was asked for that were too old and are no longer kept.
    pub dropped: u64,
}

impl SqliteLedger {
    /// Up to `limit` events after the number `after` that `wants` names by their types. A page without events is not
    /// the end while it says that there may be more.
    pub async fn event_page(
        &self,
        after: u64,
        limit: u32,
        wants: impl Fn(&str) -> bool + Send + 'static,
    ) -> LedgerResult<EventPage> {
        let ledger = *self.incarnation();
        self.read(move |connection| Ok(read_page(connection, &ledger, after, limit, wants)?)).await
    }

    /// The newest `last` events that `wants` names, in their order. Looks back a bounded way.
    pub async fn last_events(
        &self,
        last: u32,
        wants: impl Fn(&str) -> bool + Send + 'static,
    ) -> LedgerResult<EventPage> {
        let ledger = *self.incarnation();
        self.read(move |connection| Ok(read_last(connection, &ledger, last, wants)?)).await
    }

    /// The number before the first event that happened at `since` or later; of the newest event, when there is none.
    pub async fn place_of(&self, since: UnixMs) -> LedgerResult<u64> {
        self.read(move |connection| Ok(place_of(connection, since)?)).await
    }
}

fn read_page(
    connection: &Connection,
    ledger: &[u8; 16],
    after: u64,
    limit: u32,
    wants: impl Fn(&str) -> bool,
) -> rusqlite::Result<EventPage> {
    let sql = format!(
        "select {EVENT_COLUMNS}, {IS_TOLD} from events e {EVENT_TABLES}
         where e.event_no > ?1 order by e.event_no limit ?2"
    );
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    // What was there before the look began: an event that is written meanwhile must not be taken for looked at.
    let end = newest(connection)?;
    let dropped = u64::try_from(oldest(connection)?).unwrap_or(0).saturating_sub(after.saturating_add(1));
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![signed(after), LOOKED_AT_MAX])?;
    let mut page = EventPage { events: Vec::new(), read_to: after, more: false, dropped };
    let mut looked_at = 0;
    while let Some(row) = rows.next()? {
        looked_at += 1;
        page.read_to = column::number(row, 0)?;
        if row.get(EVENT_COLUMNS_END)? && wants(row.get_ref(1)?.as_str()?) {
            page.events.push(read_event(row, ledger)?);
        }
        if page.events.len() >= limit {
            break;
        }
    }
    page.more = looked_at >= LOOKED_AT_MAX || page.events.len() >= limit;
    if !page.more {
        // Those at the end that nobody is told of need not be looked at again.
        page.read_to = page.read_to.max(end);
    }
    Ok(page)
}

fn read_last(
    connection: &Connection,
    ledger: &[u8; 16],
    last: u32,
    wants: impl Fn(&str) -> bool,
) -> rusqlite::Result<EventPage> {
    let sql = format!(
        "select {EVENT_COLUMNS}, {IS_TOLD} from events e {EVENT_TABLES}
         where e.event_no <= ?1 order by e.event_no desc limit ?2"
    );
    let last = usize::try_from(last).unwrap_or(usize::MAX);
    let read_to = newest(connection)?;
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![signed(read_to), LOOKED_AT_MAX])?;
    let mut events = Vec::new();
    while events.len() < last
        && let Some(row) = rows.next()?
    {
        if row.get(EVENT_COLUMNS_END)? && wants(row.get_ref(1)?.as_str()?) {
            events.push(read_event(row, ledger)?);
        }
    }
    events.reverse();
    Ok(EventPage { events, read_to, more: false, dropped: 0 })
}
