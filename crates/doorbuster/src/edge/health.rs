//! Alive, ready, and the numbers behind it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};
use rules::wire::Code;

use super::extract::has_admin_key;
use super::refusal::{Answer, Refusal};
use super::router::PeerAddress;
use super::server::Audience;
use crate::app::App;
use crate::telemetry::metrics::CONTENT_TYPE as METRICS_CONTENT_TYPE;

pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/healthz", get(alive)).route("/readyz", get(ready)).route("/metrics", get(metrics))
}

async fn alive() -> &'static str {
    "alive\n"
}

/// The gate was rebuilt before the first socket was accepted; what can still be missing is the ledger.
async fn ready(State(app): State<Arc<App>>) -> Response {
    if app.shutdown.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "going away\n").into_response();
    }
    match app.ledger.cursor().await {
        Ok(_) => "ready\n".into_response(),
        Err(error) => {
            tracing::warn!(%error, "not ready");
            (StatusCode::SERVICE_UNAVAILABLE, "the ledger does not answer\n").into_response()
        }
    }
}

/// On the operator's listener for everybody who reaches it; else with the admin key or from this machine.
async fn metrics(
    State(app): State<Arc<App>>,
    Extension(PeerAddress(peer)): Extension<PeerAddress>,
    Extension(audience): Extension<Audience>,
    headers: HeaderMap,
) -> Answer {
    let local = peer.is_loopback() && app.settings.limits.trusted_proxies.is_empty();
    if !(audience == Audience::Operators || local || has_admin_key(&headers, &app)) {
        return Err(Refusal::new(Code::Unauthorized));
    }
    let overflowed = app.buyer_rate.overflowed().saturating_add(app.address_rate.overflowed());
    app.metrics.limiter_overflowed.set(i64::try_from(overflowed).unwrap_or(i64::MAX));
    Ok(([(CONTENT_TYPE, METRICS_CONTENT_TYPE)], app.metrics.encode()).into_response())
}
