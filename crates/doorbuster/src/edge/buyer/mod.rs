//! What buyers call, apart from the try itself. One file per thing they call about.

mod time;

use std::sync::Arc;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;

/// The buyers' routes with their documentation.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(time::time))
}
