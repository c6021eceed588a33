//! A sale's live numbers, once or every second.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, State};
use axum::response::IntoResponse as _;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream, StreamExt as _};
use http::StatusCode;
use rules::id::SaleId;
use rules::wire::{Code, Stats};
use utoipa::ToSchema;

use super::Operator;
use super::refusals::OfLook;
use crate::app::App;
use crate::edge::extract::IdPath;
use crate::edge::refusal::{Answer, Refusal, json};
use crate::edge::router::{DoNotWait, Place};

/// How often a stream tells the numbers.
const STATS_EVERY: Duration = Duration::from_secs(1);

/// One event of the stream, for the documentation.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only described")]
pub struct StatsEvent {
    /// `stats`.
    event: String,
    /// The same JSON as the call without a stream.
    data: String,
}

/// A sale's funnel, units and queue, now.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale}/stats", tag = "operator", params(("sale" = SaleId, Path)),
    responses((status = 200, body = Stats), OfLook), security(("admin_key" = []))
)]
pub async fn stats(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<SaleId>) -> Answer {
    let stats = app.stats(id).await?.ok_or_else(|| Refusal::new(Code::NotFound))?;
    Ok(json(StatusCode::OK, &stats))
}

/// The same as server-sent events, `event: stats`, one per second until the sale is gone, the server
/// is, or `limits.stream_life_s` are over.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale}/stream", tag = "operator", params(("sale" = SaleId, Path)),
    responses((status = 200, body = StatsEvent, content_type = "text/event-stream"), OfLook),
    security(("admin_key" = []))
)]
pub async fn stream(
    _: Operator,
    State(app): State<Arc<App>>,
    IdPath(id): IdPath<SaleId>,
    Extension(place): Extension<Place>,
    too_many: Option<Extension<DoNotWait>>,
) -> Answer {
    if too_many.is_some() {
        return Err(Refusal::new(Code::Busy));
    }
    if app.stats(id).await?.is_none() {
        return Err(Refusal::new(Code::NotFound));
    }
    Ok(Sse::new(events(app, id, place)).keep_alive(KeepAlive::default()).into_response())
}

fn events(app: Arc<App>, id: SaleId, place: Place) -> impl Stream<Item = Result<Event, Infallible>> {
    let shutdown = app.shutdown.clone();
    let life = Duration::from_secs(app.settings.limits.stream_life_s.into());
    let ticks = tokio::time::interval(STATS_EVERY);
    stream::unfold((app, ticks, place), move |(app, mut ticks, place)| async move {
        loop {
            ticks.tick().await;
            match app.stats(id).await {
                Ok(Some(stats)) => {
                    let data = serde_json::to_string(&stats).unwrap_or_default();
                    return Some((Ok(Event::default().event("stats").data(data)), (app, ticks, place)));
                }
                Ok(None) => return None,
                // The ledger is busy: the next second tells more.
                Err(error) => tracing::warn!(%error, "no stats this second"),
            }
        }
    })
    .take_until(async move { shutdown.run_until_cancelled(tokio::time::sleep(life)).await })
}
