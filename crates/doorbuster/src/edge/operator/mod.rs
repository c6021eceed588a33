//! What operators call. Never open without the admin key.

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;

use crate::app::App;

/// The operators' routes with their documentation.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
}
