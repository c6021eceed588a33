//! `/api/v1/sales/{sale}/registration`: signing up before a sale (预约), seeing it, leaving again.

use std::sync::Arc;

use axum::extract::State;
use axum::response::IntoResponse as _;
use http::StatusCode;
use rules::id::SaleId;
use rules::time::UnixMs;
use rules::wire::{Code, RegistrationView};

use super::not_too_fast;
use crate::app::App;
use crate::desk::RegisterAnswer;
use crate::edge::extract::{Buyer, IdPath};
use crate::edge::openapi::problems;
use crate::edge::refusal::{Answer, Refusal, json};
use crate::telemetry::metrics::RegistrationOutcome;

problems! {
    ChangeRefusals = Unauthorized NotFound RegistrationClosed TooFast Internal Busy Unsure;
    SeeRefusals = Unauthorized NotFound TooFast Internal Busy;
}

/// Signs the buyer up. Again is harmless and answers since when.
#[utoipa::path(
    post, path = "/api/v1/sales/{sale}/registration", tag = "buyer", security(("buyer_token" = [])),
    params(("sale" = SaleId, Path, description = "The sale's id.")),
    responses(
        (status = 201, description = "Signed up now.", body = RegistrationView),
        (status = 200, description = "Signed up before.", body = RegistrationView),
        ChangeRefusals,
    )
)]
pub async fn sign_up(
    State(app): State<Arc<App>>,
    Buyer(buyer): Buyer,
    IdPath(sale): IdPath<SaleId>,
) -> Answer {
    not_too_fast(&app, &buyer)?;
    let answer = app.register(sale, &buyer).await?;
    let (outcome, status) = match answer {
        RegisterAnswer::Made(_) => (RegistrationOutcome::Made, StatusCode::CREATED),
        RegisterAnswer::Before(_) => (RegistrationOutcome::Repeat, StatusCode::OK),
        RegisterAnswer::Closed | RegisterAnswer::Full | RegisterAnswer::NotFound => {
            (RegistrationOutcome::Refused, StatusCode::OK)
        }
    };
    app.metrics.registrations.inc(outcome);
    match answer {
        RegisterAnswer::Made(since) | RegisterAnswer::Before(since) => Ok(json(status, &view(sale, since))),
        RegisterAnswer::Closed => Err(Refusal::new(Code::RegistrationClosed)),
        RegisterAnswer::Full => Err(Refusal::new(Code::Busy)),
        RegisterAnswer::NotFound => Err(Refusal::new(Code::NotFound)),
    }
}

/// Since when the buyer is signed up.
#[utoipa::path(
    get, path = "/api/v1/sales/{sale}/registration", tag = "buyer", security(("buyer_token" = [])),
    params(("sale" = SaleId, Path, description = "The sale's id.")),
    responses((status = 200, body = RegistrationView), SeeRefusals)
)]
pub async fn see(State(app): State<Arc<App>>, Buyer(buyer): Buyer, IdPath(sale): IdPath<SaleId>) -> Answer {
    if app.roster.is_registered(sale, buyer.as_str()) == Some(false) {
        return Err(Refusal::new(Code::NotFound));
    }
    let since = app.ledger.registration(sale, buyer).await?.ok_or_else(|| Refusal::new(Code::NotFound))?;
    Ok(json(StatusCode::OK, &view(sale, since)))
}

/// Takes the registration back, while registration is open.
#[utoipa::path(
    delete, path = "/api/v1/sales/{sale}/registration", tag = "buyer", security(("buyer_token" = [])),
    params(("sale" = SaleId, Path, description = "The sale's id.")),
    responses((status = 204, description = "Not signed up any more."), ChangeRefusals)
)]
pub async fn leave(State(app): State<Arc<App>>, Buyer(buyer): Buyer, IdPath(sale): IdPath<SaleId>) -> Answer {
    match app.unregister(sale, &buyer).await? {
        RegisterAnswer::Made(_) | RegisterAnswer::Before(_) => {
            app.metrics.registrations.inc(RegistrationOutcome::Left);
            Ok(StatusCode::NO_CONTENT.into_response())
        }
        RegisterAnswer::Closed => Err(Refusal::new(Code::RegistrationClosed)),
        RegisterAnswer::Full => Err(Refusal::new(Code::Busy)),
        RegisterAnswer::NotFound => Err(Refusal::new(Code::NotFound)),
    }
}

fn view(sale_id: SaleId, registered_at: UnixMs) -> RegistrationView {
    RegistrationView { sale_id, registered_at }
}
