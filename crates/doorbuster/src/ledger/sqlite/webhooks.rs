//! Webhooks in SQLite: who is told, with which secrets, and how they stand. Does not know how anything is sent.

use std::collections::BTreeSet;

use rules::id::{EventId, WebhookId};
use rules::time::UnixMs;
use rules::wire::ReceiverKind;
use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, params};

use super::buyers::remember;
use super::events::{newest, place_of, set_head};
use super::{SqliteLedger, Urgency, column, signed};
use crate::ledger::{KeyedAnswer, LedgerResult};
use crate::outbox::signature::Secret;

/// Most webhooks there may be: each has a worker of its own.
pub const WEBHOOKS_MAX: u32 = 100;

/// Most secrets of one webhook that sign beside the newest: every delivery carries a signature of each.
const PREVIOUS_SECRETS_MAX: usize = 10;

/// Parked deliveries woken by one transaction, at most: the clerk waits behind it.
const WOKEN_AT_ONCE: u32 = 1_000;

const COLUMNS: &str =
    "webhook_no, webhook_id, url, types, disabled, secret, cursor, created_at, kind, disabled_reason";

/// Why a broker is disabled that is no longer set.
const NO_BROKER: &str = "broker.url is not set";

/// A receiver of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Given by the ledger; 0 before.
    pub no: u64,
    pub id: WebhookId,
    pub kind: ReceiverKind,
    /// Of a broker: to be shown only.
    pub url: String,
    /// Empty: all.
    pub types: Vec<String>,
    pub disabled: bool,
    /// Why we disabled it; none when an operator did.
    pub disabled_reason: Option<String>,
    pub secret: Secret,
    /// Those before also sign, each until then; oldest first.
    pub previous: Vec<(Secret, UnixMs)>,
    /// Given by the ledger: every event up to this one is delivered, not wanted, or waits.
    pub cursor: u64,
    pub created_at: UnixMs,
}

/// What an operator changes; `None` stays.
#[derive(Clone, Debug, Default)]
pub struct WebhookEdit {
    pub url: Option<String>,
    pub types: Option<Vec<String>>,
    pub disabled: Option<bool>,
}

/// What became of a change of a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretChange {
    Changed,
    NoWebhook,
    /// As many secrets sign as may; the first of them ends then.
    TooMany {
        until: UnixMs,
    },
}

/// How a webhook stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub waiting: u64,
    pub parked: u64,
    /// When the oldest event happened that it lacks and that is not parked.
    pub oldest: Option<UnixMs>,
    pub last_problem: Option<String>,
    /// Events that became too old before it had them.
    pub dropped: u64,
}

/// A delivery that was given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParkedEvent {
    pub no: u64,
    pub id: EventId,
    pub kind: String,
    pub at: UnixMs,
    pub attempts: u32,
    pub problem: Option<String>,
}

impl SqliteLedger {
    /// Keeps a new webhook, and the answer to the request that made it; `false` when there are too many. It is told of
    /// events from now on.
    pub async fn add_webhook(&self, webhook: Webhook, answer: Option<KeyedAnswer>) -> LedgerResult<bool> {
        self.transact(Urgency::Settle, move |transaction| {
            let count: u32 =
                transaction.query_row("select count(*) from webhooks where kind = 'webhook'", [], |row| {
                    row.get(0)
                })?;
            if count >= WEBHOOKS_MAX {
                return Ok(false);
            }
            transaction.execute(
                "insert into webhooks (webhook_id, url, types, disabled, secret, cursor, created_at)
                 values (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                params![
                    webhook.id.to_bytes(),
                    webhook.url,
                    types_text(&webhook.types),
                    webhook.disabled,
                    webhook.secret.as_bytes(),
                    signed(newest(transaction)?),
                    webhook.created_at.0
                ],
            )?;
            if let Some(answer) = answer {
                remember(transaction, &answer, webhook.created_at)?;
            }
            Ok(true)
        })
        .await
    }

    /// Every webhook, oldest first.
    pub async fn webhooks(&self) -> LedgerResult<Vec<Webhook>> {
        self.read(|connection| {
            let sql = format!("select {COLUMNS} from webhooks order by webhook_no");
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map([], |row| read_webhook(connection, row))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    pub async fn webhook(&self, id: WebhookId) -> LedgerResult<Option<Webhook>> {
        self.read(move |connection| Ok(find(connection, id)?)).await
    }

    /// Changes a webhook; `None` when there is none. Again is harmless. Once it is enabled, what waits for it has all
    /// the time anew before it is given up.
    pub async fn edit_webhook(
        &self,
        id: WebhookId,
        edit: WebhookEdit,
        now: UnixMs,
    ) -> LedgerResult<Option<Webhook>> {
        self.transact(Urgency::Settle, move |transaction| {
            let types = edit.types.as_deref().map(types_text);
            transaction.execute(
                "update webhooks set url = coalesce(?2, url), types = coalesce(?3, types),
                     disabled = coalesce(?4, disabled),
                     disabled_reason = iif(?4 is null, disabled_reason, null),
                     enabled_at = iif(disabled = 1 and ?4 = 0, ?5, enabled_at) where webhook_id = ?1",
                params![id.to_bytes(), edit.url, types, edit.disabled, now.0],
            )?;
            Ok(find(transaction, id)?)
        })
        .await
    }

    /// Tells a webhook no more until somebody enables it, and why; `false` when it is disabled, gone, or has another
    /// address than the one that this is about.
    pub async fn disable_webhook(&self, webhook_no: u64, url: String, reason: String) -> LedgerResult<bool> {
        self.transact(Urgency::Settle, move |transaction| {
            let disabled = transaction.execute(
                "update webhooks set disabled = 1, disabled_reason = ?3
                 where webhook_no = ?1 and url = ?2 and disabled = 0",
                params![signed(webhook_no), url, reason],
            )?;
            Ok(disabled == 1)
        })
        .await
    }

    /// Keeps the one broker as the settings have it, `url` as it may be shown. A new one is told of events from now
    /// on. `None`: no broker is set; one that was goes on lacking events until it is deleted. Again is harmless.
    pub async fn keep_broker(
        &self,
        broker: Option<(String, Vec<String>)>,
        new_id: WebhookId,
        now: UnixMs,
    ) -> LedgerResult<()> {
        self.transact(Urgency::Settle, move |transaction| {
            let Some((url, types)) = broker else {
                transaction.execute(
                    "update webhooks set disabled = 1, disabled_reason = ?1
                     where kind = 'broker' and disabled = 0",
                    [NO_BROKER],
                )?;
                return Ok(());
            };
            transaction.execute(
                "insert into webhooks (webhook_id, kind, url, types, disabled, secret, cursor, created_at)
                 values (?1, 'broker', ?2, ?3, 0, x'', ?4, ?5)
                 on conflict (kind) where kind = 'broker' do update set url = ?2, types = ?3,
                     disabled = iif(disabled_reason = ?6, 0, disabled),
                     enabled_at = iif(disabled_reason = ?6, ?5, enabled_at),
                     disabled_reason = nullif(disabled_reason, ?6)",
                params![
                    new_id.to_bytes(),
                    url,
                    types_text(&types),
                    signed(newest(transaction)?),
                    now.0,
                    NO_BROKER
                ],
            )?;
            Ok(())
        })
        .await
    }

    /// Gives a webhook a new secret, and keeps the answer to the request for it. The one before also signs until
    /// `until`, and those before that as long as they were promised to.
    pub async fn change_webhook_secret(
        &self,
        id: WebhookId,
        secret: Secret,
        until: UnixMs,
        answer: Option<KeyedAnswer>,
        now: UnixMs,
    ) -> LedgerResult<SecretChange> {
        self.transact(Urgency::Settle, move |transaction| {
            let Some(webhook) = find(transaction, id)? else { return Ok(SecretChange::NoWebhook) };
            let signing: Vec<UnixMs> =
                webhook.previous.iter().map(|(_, until)| *until).filter(|until| now < *until).collect();
            if let (Some(first), true) = (signing.first(), signing.len() >= PREVIOUS_SECRETS_MAX) {
                return Ok(SecretChange::TooMany { until: *first });
            }
            let webhook_no = signed(webhook.no);
            transaction.execute(
                "delete from webhook_secrets where webhook_no = ?1 and until_at <= ?2",
                params![webhook_no, now.0],
            )?;
            transaction.execute(
                "insert into webhook_secrets (webhook_no, secret, until_at) values (?1, ?2, ?3)",
                params![webhook_no, webhook.secret.as_bytes(), until.0],
            )?;
            transaction.execute(
                "update webhooks set secret = ?2 where webhook_no = ?1",
                params![webhook_no, secret.as_bytes()],
            )?;
            if let Some(answer) = answer {
                remember(transaction, &answer, now)?;
            }
            Ok(SecretChange::Changed)
        })
        .await
    }

    /// Deletes a webhook and all that waits for it; `false` when there was none.
    pub async fn delete_webhook(&self, id: WebhookId) -> LedgerResult<bool> {
        self.transact(Urgency::Settle, move |transaction| {
            let deleted =
                transaction.execute("delete from webhooks where webhook_id = ?1", [id.to_bytes()])?;
            Ok(deleted == 1)
        })
        .await
    }

    /// Delivers again: what is parked; with `since` also everything that happened from then on, delivered or not.
    /// Answers how many events were looked at for that, `None` when there is no such webhook. Woken in many small
    /// commits; a repeat goes on where one ended.
    pub async fn replay_webhook(
        &self,
        id: WebhookId,
        since: Option<UnixMs>,
        now: UnixMs,
    ) -> LedgerResult<Option<u64>> {
        let Some(webhook) = self.webhook(id).await? else { return Ok(None) };
        let (mut events, mut after) = (0_u64, Some(0));
        // The clerk's queue: nobody who pays should wait for it.
        while let Some(place) = after {
            let wake = move |transaction: &Transaction<'_>| {
                Ok(wake_parked(transaction, signed(webhook.no), place, now)?)
            };
            let woken = self.transact(Urgency::Clerk, wake).await?;
            events = events.saturating_add(woken.events);
            after = woken.read_to;
        }
        if let Some(since) = since {
            events = events.saturating_add(self.set_back(webhook.no, since).await?);
        }
        Ok(Some(events))
    }

    /// Lets a webhook begin again with what happened from `since` on; answers how many events that is.
    async fn set_back(&self, webhook_no: u64, since: UnixMs) -> LedgerResult<u64> {
        let look = move |connection: &Connection| Ok((place_of(connection, since)?, newest(connection)?));
        let (place, newest) = self.read(look).await?;
        self.transact(Urgency::Settle, move |transaction| {
            transaction.execute(
                "update webhooks set cursor = min(cursor, ?2) where webhook_no = ?1",
                [signed(webhook_no), signed(place)],
            )?;
            Ok(newest.saturating_sub(place))
        })
        .await
    }

    /// How a webhook stands.
    pub async fn webhook_standing(&self, webhook_no: u64) -> LedgerResult<Standing> {
        self.read(move |connection| Ok(read_standing(connection, signed(webhook_no))?)).await
    }

    /// Deliveries that were given up, oldest event first, those after the event number `after`; and whether there are
    /// more.
    pub async fn parked_page(
        &self,
        webhook_no: u64,
        after: u64,
        limit: u32,
    ) -> LedgerResult<(Vec<ParkedEvent>, bool)> {
        let ledger = *self.incarnation();
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "select event_no, type, at, attempts, problem from deliveries join events using (event_no)
                 where webhook_no = ?1 and event_no > ?2 and state = 'parked' order by event_no limit ?3",
            )?;
            let values = params![signed(webhook_no), signed(after), i64::from(limit) + 1];
            let rows = statement.query_map(values, |row| {
                let no = column::number(row, 0)?;
                Ok(ParkedEvent {
                    no,
                    id: EventId::numbered(&ledger, no),
                    kind: row.get(1)?,
                    at: column::time(row, 2)?,
                    attempts: column::count(row, 3)?,
                    problem: row.get(4)?,
                })
            })?;
            Ok(super::buyers::page(rows.collect::<Result<_, _>>()?, limit))
        })
        .await
    }
}

fn find(connection: &Connection, id: WebhookId) -> rusqlite::Result<Option<Webhook>> {
    let sql = format!("select {COLUMNS} from webhooks where webhook_id = ?1");
    connection
        .prepare_cached(&sql)?
        .query_row([id.to_bytes()], |row| read_webhook(connection, row))
        .optional()
}

fn read_webhook(connection: &Connection, row: &Row<'_>) -> rusqlite::Result<Webhook> {
    let no = column::number(row, 0)?;
    Ok(Webhook {
        no,
        id: WebhookId(column::id(row, 1)?),
        url: row.get(2)?,
        types: column::word(row, 3, |text| serde_json::from_str(text).ok())?,
        disabled: row.get(4)?,
        secret: Secret::from_bytes(row.get(5)?),
        previous: read_previous(connection, no)?,
        cursor: column::number(row, 6)?,
        created_at: column::time(row, 7)?,
        kind: column::word(row, 8, |text| match text {
            "webhook" => Some(ReceiverKind::Webhook),
            "broker" => Some(ReceiverKind::Broker),
            _ => None,
        })?,
        disabled_reason: row.get(9)?,
    })
}

fn read_previous(connection: &Connection, webhook_no: u64) -> rusqlite::Result<Vec<(Secret, UnixMs)>> {
    connection
        .prepare_cached(
            "select secret, until_at from webhook_secrets where webhook_no = ?1 order by until_at",
        )?
        .query_map([signed(webhook_no)], |row| Ok((Secret::from_bytes(row.get(0)?), column::time(row, 1)?)))?
        .collect()
}

fn types_text(types: &[String]) -> String {
    serde_json::Value::from(types).to_string()
}

/// Some parked deliveries that wait again.
struct Woken {
    events: u64,
    /// Where to go on; `None` when that was all.
    read_to: Option<i64>,
}

/// Wakes parked deliveries after the event number `after`. The time to give up begins anew.
fn wake_parked(
    transaction: &Transaction<'_>,
    webhook_no: i64,
    after: i64,
    now: UnixMs,
) -> rusqlite::Result<Woken> {
    let parked: Vec<(i64, i64)> = transaction
        .prepare_cached(
            "select event_no, track from deliveries
             where webhook_no = ?1 and event_no > ?2 and state = 'parked' order by event_no limit ?3",
        )?
        .query_map(params![webhook_no, after, WOKEN_AT_ONCE], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    let mut wake = transaction.prepare_cached(
        "update deliveries set state = 'waiting', attempts = 0, since = ?3 where webhook_no = ?1 and event_no = ?2",
    )?;
    for (event_no, _) in &parked {
        wake.execute(params![webhook_no, event_no, now.0])?;
    }
    for track in parked.iter().map(|(_, track)| *track).collect::<BTreeSet<_>>() {
        set_head(transaction, webhook_no, track, now)?;
    }
    Ok(Woken {
        events: u64::try_from(parked.len()).unwrap_or(u64::MAX),
        read_to: parked.last().map(|(event_no, _)| *event_no),
    })
}

fn read_standing(connection: &Connection, webhook_no: i64) -> rusqlite::Result<Standing> {
    let count = |state: &str| {
        connection
            .prepare_cached("select count(*) from deliveries where webhook_no = ?1 and state = ?2")?
            .query_row(params![webhook_no, state], |row| column::number(row, 0))
    };
    let oldest = connection
        .prepare_cached(
            "select min(at) from (
                 select at from (select at from events
                     where event_no > (select cursor from webhooks where webhook_no = ?1) order by event_no limit 1)
                 union all
                 select at from (select at from deliveries join events using (event_no)
                     where webhook_no = ?1 and state = 'waiting' order by event_no limit 1))",
        )?
        .query_row([webhook_no], |row| column::time_option(row, 0))?;
    let last_problem = connection
        .prepare_cached(
            "select problem from deliveries where webhook_no = ?1 and problem is not null
             order by event_no desc limit 1",
        )?
        .query_row([webhook_no], |row| row.get(0))
        .optional()?;
    let dropped = connection
        .prepare_cached("select coalesce(sum(dropped), 0) from webhooks where webhook_no = ?1")?
        .query_row([webhook_no], |row| column::number(row, 0))?;
    Ok(Standing { waiting: count("waiting")?, parked: count("parked")?, oldest, last_problem, dropped })
}
