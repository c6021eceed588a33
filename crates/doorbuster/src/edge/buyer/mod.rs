//! What buyers call, apart from the try itself. One file per thing they call about.

mod availability;

mod challenge;

mod demo;

mod events;

mod me;

mod orders;

mod page;

mod pass;

mod payment;

mod registration;

mod sales;

mod time;

use std::sync::Arc;

use rules::buyer::BuyerId;
use rules::wire::Code;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::Extra;
use super::refusal::Refusal;
use crate::app::App;
use crate::telemetry::metrics::Shed;

pub use events::token_of_a_browser;
pub use orders::Cursor;

/// Where sockets and event streams begin.
pub const EVENTS_PATH: &str = "/api/v1/events";

/// The buyers' routes with their documentation.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(time::time))
        .routes(routes!(sales::list))
        .routes(routes!(sales::show))
        .routes(routes!(availability::availability))
        .routes(routes!(me::me))
        .routes(routes!(registration::sign_up, registration::see, registration::leave))
        .routes(routes!(challenge::challenge))
        .routes(routes!(pass::pass))
        .routes(routes!(orders::attempt))
        .routes(routes!(orders::list))
        .routes(routes!(orders::show))
        .routes(routes!(orders::cancel))
        .routes(routes!(payment::pay))
        .routes(routes!(events::events))
        .routes(routes!(demo::login))
}

/// Counts one request of this buyer against the same rate as tries.
fn not_too_fast(app: &App, buyer: &BuyerId) -> Result<(), Refusal> {
    app.buyer_rate.check(buyer.as_str()).map_err(|too_fast| {
        app.metrics.shed.inc(Shed::PerBuyer);
        let retry_after_ms = Some(too_fast.retry_after_ms);
        Refusal::with(Code::TooFast, Extra { retry_after_ms, ..Extra::default() })
    })
}
