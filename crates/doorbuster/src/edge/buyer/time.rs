//! `GET /api/v1/time`: the one clock, for pages that count down.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use rules::wire::ServerTime;

use crate::app::App;
use crate::edge::openapi::problems;
use crate::edge::refusal::json;

problems! {
    Refusals = TooFast Busy;
}

/// The server's time. Never cached.
#[utoipa::path(get, path = "/api/v1/time", tag = "buyer", responses((status = 200, body = ServerTime), Refusals))]
pub async fn time(State(app): State<Arc<App>>) -> Response {
    let now = app.clock.now();
    json(StatusCode::OK, &ServerTime { now, now_ms: now.0 })
}
