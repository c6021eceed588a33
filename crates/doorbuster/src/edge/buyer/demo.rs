//! `POST /api/v1/demo/login`: a token for whoever asks. Only a demo has it; elsewhere the shop's issuer gives tokens.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use http::StatusCode;
use rules::buyer::BuyerId;
use rules::time::UnixMs;
use rules::wire::Code;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::app::App;
use crate::edge::auth::sign_demo_token;
use crate::edge::extract::JsonBody;
use crate::edge::openapi::problems;
use crate::edge::refusal::{Answer, Refusal, json};

/// How long a demo's token is good, in seconds: twelve hours.
const TOKEN_LIFE_S: u32 = 43_200;

problems! {
    Refusals = Malformed NotFound TooLarge UnsupportedMediaType InvalidRequest TooFast Internal Busy;
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Login {
    #[schema(
        value_type = String, min_length = 1, max_length = 128,
        pattern = r"^[^\x00-\x1f\x7f-\x9f]*$", example = "ann"
    )]
    buyer: BuyerId,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct LoggedIn {
    token: String,
    #[schema(value_type = String, format = DateTime)]
    expires_at: UnixMs,
}

/// A token for a name. In demo mode only; everywhere else there is nothing here.
#[utoipa::path(
    post, path = "/api/v1/demo/login", tag = "demo",
    request_body = Login, responses((status = 200, body = LoggedIn), Refusals)
)]
pub async fn login(State(app): State<Arc<App>>, _: DemoOnly, JsonBody(login): JsonBody<Login>) -> Answer {
    let life = Duration::from_secs(TOKEN_LIFE_S.into());
    let token = sign_demo_token(&app.settings.auth, &login.buyer, life, &app.clock).map_err(|error| {
        tracing::error!(%error, "a demo login failed");
        Refusal::new(Code::Internal)
    })?;
    // Tokens expire at whole seconds.
    let now = app.clock.now();
    let expires_at = UnixMs(now.0 - now.0.rem_euclid(1_000)).plus_s(TOKEN_LIFE_S);
    Ok(json(StatusCode::OK, &LoggedIn { token, expires_at }))
}

/// Outside a demo the call does not exist, whatever its body is.
pub struct DemoOnly;

impl axum::extract::FromRequestParts<Arc<App>> for DemoOnly {
    type Rejection = Refusal;

    async fn from_request_parts(_: &mut http::request::Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let signs = app.settings.demo && app.settings.auth.hs256_secret.is_some();
        signs.then_some(Self).ok_or_else(|| Refusal::new(Code::NotFound))
    }
}
