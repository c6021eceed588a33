//! `GET /api/v1/me`: the buyer's own standing.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use rules::wire::{Me, RegistrationView};

use crate::app::App;
use crate::edge::extract::Buyer;
use crate::edge::openapi::problems;
use crate::edge::refusal::{Answer, json};

/// Most registrations that are shown.
const REGISTRATIONS_MAX: u32 = 1_000;

problems! {
    Refusals = Unauthorized TooFast Internal Busy;
}

/// The buyer's strikes, their limit, a block if there is one, and what the buyer signed up for.
#[utoipa::path(
    get, path = "/api/v1/me", tag = "buyer", security(("buyer_token" = [])),
    responses((status = 200, body = Me), Refusals)
)]
pub async fn me(State(app): State<Arc<App>>, Buyer(buyer): Buyer) -> Answer {
    let registrations = app.ledger.registrations_of(buyer.clone(), REGISTRATIONS_MAX).await?;
    let view = |(sale_id, registered_at)| RegistrationView { sale_id, registered_at };
    let standing = app.roster.standing(&buyer, app.clock.now());
    let me = Me {
        buyer: buyer.as_str().to_owned(),
        strikes: standing.strikes,
        strikes_limit: standing.limit,
        blocked_until: standing.blocked_until,
        next_decay_at: standing.next_decay_at,
        notice: standing.notice().map(|notice| notice.to_string()),
        registrations: registrations.into_iter().map(view).collect(),
    };
    Ok(json(StatusCode::OK, &me))
}
