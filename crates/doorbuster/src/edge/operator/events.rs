//! `GET /admin/v1/events`: what happened, in its order, for whoever reads instead of being called. Keeps no reader's
//! place: the reader brings it along.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, State};
use http::StatusCode;
use rules::id::{EventId, OfferId, OrderId, SaleId};
use rules::time::UnixMs;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::refusals::OfList;
use super::{Operator, page_limit, told};
use crate::app::App;
use crate::edge::extract::{QueryOf, parse_named};
use crate::edge::refusal::{Answer, Refusal, json};
use crate::edge::router::DoNotWait;
use crate::ledger::LedgerResult;
use crate::ledger::sqlite::{Event, EventPage};
use crate::outbox::endpoint::{check_types, wants};

/// Where this call is.
pub const PATH: &str = "/admin/v1/events";

/// Longest wait that may be asked for, in seconds: a day. How long it really is, `limits.wait_s` says.
const WAIT_S_MAX: u32 = 86_400;

/// Between two looks of a call that waits: about the longest that an event stays unseen.
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// The `cursor` of the page before, or the id of an event: what happened after it.
    #[param(value_type = Option<EventId>)]
    after: Option<String>,
    /// What happened from this time on. Not together with `after`.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<String>,
    /// The newest so many. Not together with `after` or `since`. Without any of the three: from the oldest event that
    /// is kept.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200)]
    last: Option<String>,
    /// Types such as `order.paid`, or `order.*` for all of a kind, separated by commas. All when not given.
    #[param(max_length = 2_000, pattern = r"^([a-z_]+\.([a-z_]+|\*)(,[a-z_]+\.([a-z_]+|\*))*)?$")]
    types: Option<String>,
    /// 1 to 200, 50 when not given.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200, default = 50)]
    limit: Option<String>,
    /// Seconds to wait for an event when there is none; more than `limits.wait_s` waits so long.
    #[param(value_type = Option<u32>, minimum = 0, maximum = 86_400)]
    wait: Option<String>,
}

/// A fact, as webhooks are told of it too.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct EventView {
    id: EventId,
    #[serde(rename = "type")]
    kind: String,
    #[schema(value_type = String, format = DateTime)]
    at: UnixMs,
    sale_id: Option<SaleId>,
    offer_id: Option<OfferId>,
    order_id: Option<OrderId>,
    /// The order's, without gaps.
    seq: Option<u32>,
    #[schema(value_type = Object)]
    data: Value,
}

/// Some events in their order.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Events {
    items: Vec<EventView>,
    /// Give it as `after` to read on; it moves also over events of types that were not wanted.
    cursor: EventId,
    /// With `after`: events in between that became too old (`webhooks.keep_hours`) before this reader came for them, of
    /// whatever type. 0: nothing was missed.
    missed: u64,
}

/// Where to begin.
enum Begin {
    After(u64),
    Last(u32),
}

/// What happened, oldest first; with `wait`, as soon as something does. Rehearsals are left out, as they are for
/// webhooks. Events are kept for `webhooks.keep_hours`.
#[utoipa::path(
    get, path = "/admin/v1/events", tag = "operator", params(EventsQuery),
    responses((status = 200, body = Events), OfList), security(("admin_key" = []))
)]
pub async fn list(
    _: Operator,
    State(app): State<Arc<App>>,
    QueryOf(query): QueryOf<EventsQuery>,
    do_not_wait: Option<Extension<DoNotWait>>,
) -> Answer {
    let types = read_types(query.types.as_deref())?;
    let limit = page_limit(query.limit.as_deref())?;
    let wait = query.wait.as_deref().map(|text| parse_named::<u32>("wait", text)).transpose()?;
    if wait.is_some_and(|wait| wait > WAIT_S_MAX) {
        return Err(Refusal::field("wait", format_args!("must lie between 0 and {WAIT_S_MAX}")));
    }
    let wait = if do_not_wait.is_some() { 0 } else { wait.unwrap_or(0).min(app.settings.limits.wait_s) };
    let page = match begin(&app, &query).await? {
        Begin::Last(last) => app.ledger.last_events(last, move |kind| wants(&types, kind)).await?,
        Begin::After(after) => {
            let patience = Duration::from_secs(wait.into());
            await_events(&app, after, limit, types, patience).await?
        }
    };
    let cursor = EventId::numbered(app.ledger.incarnation(), page.read_to);
    // Who names no place asks for what is kept.
    let missed = if query.after.is_some() { page.dropped } else { 0 };
    let items = page.events.into_iter().map(view).collect();
    Ok(json(StatusCode::OK, &Events { items, cursor, missed }))
}

async fn begin(app: &App, query: &EventsQuery) -> Result<Begin, Refusal> {
    let (after, since, last) = (query.after.as_deref(), query.since.as_deref(), query.last.as_deref());
    match (after, since, last) {
        (None, None, None) => Ok(Begin::After(0)),
        (Some(after), None, None) => read_after(app, after).await.map(Begin::After),
        (None, Some(since), None) => {
            let since = UnixMs::parse(since).map_err(|error| Refusal::field("since", error))?;
            Ok(Begin::After(app.ledger.place_of(since).await?))
        }
        (None, None, Some(last)) => {
            let last =
                page_limit(Some(last)).map_err(|_| Refusal::field("last", "must lie between 1 and 200"))?;
            Ok(Begin::Last(last))
        }
        (_, _, Some(_)) => Err(Refusal::field("last", "cannot stand beside after or since")),
        (Some(_), Some(_), None) => Err(Refusal::field("since", "cannot stand beside after")),
    }
}

/// The number of an event of this ledger.
async fn read_after(app: &App, text: &str) -> Result<u64, Refusal> {
    let foreign =
        || Refusal::field("after", "is none of ours: take the cursor of a page, or the id of an event");
    let id: EventId = text.parse().map_err(|_| foreign())?;
    let number = u64::try_from(id.0 & u128::from(u64::MAX)).map_err(|_| foreign())?;
    let is_ours = EventId::numbered(app.ledger.incarnation(), number) == id;
    if is_ours && number <= app.ledger.newest_event().await? { Ok(number) } else { Err(foreign()) }
}

fn read_types(types: Option<&str>) -> Result<Vec<String>, Refusal> {
    let types: Vec<String> =
        told(types).map(|types| types.split(',').map(str::to_owned).collect()).unwrap_or_default();
    check_types(&types).map_err(|why| Refusal::field("types", why))?;
    Ok(types)
}

/// Looks until there is something, the patience is over, or the process ends.
async fn await_events(
    app: &App,
    mut after: u64,
    limit: u32,
    types: Vec<String>,
    patience: Duration,
) -> LedgerResult<EventPage> {
    let deadline = tokio::time::Instant::from_std(app.clock.instant()) + patience;
    let mut dropped = 0_u64;
    loop {
        let wanted = types.clone();
        let mut page = app.ledger.event_page(after, limit, move |kind| wants(&wanted, kind)).await?;
        dropped = dropped.saturating_add(page.dropped);
        page.dropped = dropped;
        let over = tokio::time::Instant::from_std(app.clock.instant()) >= deadline;
        if !page.events.is_empty() || over || app.shutdown.is_cancelled() {
            return Ok(page);
        }
        after = page.read_to;
        if !page.more {
            let next = tokio::time::sleep_until(
                deadline.min(tokio::time::Instant::from_std(app.clock.instant()) + LOOK_EVERY),
            );
            app.shutdown.run_until_cancelled(next).await;
        }
    }
}

fn view(event: Event) -> EventView {
    let Event { no: _, id, kind, at, sale_id, offer_id, order_id, seq, data } = event;
    EventView { id, kind, at, sale_id, offer_id, order_id, seq, data }
}
