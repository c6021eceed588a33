//! The OpenAPI document, made from the routes, and a page to read it.

use std::sync::Arc;

use axum::Router;
use axum::routing::get;
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use super::{buyer, operator};
use crate::app::App;

#[derive(utoipa::OpenApi)]
#[openapi(info(title = "Doorbuster", description = "A flash-sale ordering engine."))]
struct Head;

/// The whole document: buyer side and operator side.
#[must_use]
pub fn document() -> OpenApi {
    let routes: OpenApiRouter<Arc<App>> =
        OpenApiRouter::with_openapi(Head::openapi()).merge(buyer::routes()).merge(operator::routes());
    routes.into_openapi()
}

pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/api/openapi.json", get(|| async { axum::Json(document()) }))
}
