//! `POST /api/v1/offers/{offer}/challenge`: what the buyer has to do before a pass is given. What challenges are and
//! how they are checked is not known here.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use rules::id::OfferId;
use rules::sale::Phase;
use rules::time::UnixMs;
use rules::wire::Code;
use serde::Serialize;
use utoipa::ToSchema;

use super::not_too_fast;
use crate::app::App;
use crate::edge::extract::{Buyer, IdPath};
use crate::edge::openapi::problems;
use crate::edge::refusal::{Answer, Refusal, json};
use crate::telemetry::metrics::ChallengeOutcome;

problems! {
    Refusals = Unauthorized NotFound Ended TooFast Busy;
}

/// A challenge, as the documentation shows it.
#[derive(Serialize, ToSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(dead_code, reason = "describes what another type sends")]
enum ChallengeGiven {
    /// Nothing to do: ask for the pass.
    None,
    /// A proof of work by the ALTCHA protocol, version 2.
    Pow {
        #[schema(value_type = Object)]
        parameters: serde_json::Value,
        signature: String,
    },
    /// Read the picture; `token` goes back with the answer.
    Picture {
        token: String,
        /// A PNG as a `data:` URL.
        image: String,
        #[schema(value_type = String, format = DateTime)]
        expires_at: UnixMs,
    },
}

/// A challenge for this buyer and this offer. Its solution goes with the request for the pass and counts once. Whoever is
/// told `challenge_failed`, as all are whose challenge is older than the server's last start, fetches a new one.
#[utoipa::path(
    post, path = "/api/v1/offers/{offer}/challenge", tag = "buyer", security(("buyer_token" = [])),
    params(("offer" = OfferId, Path, description = "The offer's id.")),
    responses((status = 200, body = ChallengeGiven), Refusals)
)]
pub async fn challenge(
    State(app): State<Arc<App>>,
    Buyer(buyer): Buyer,
    IdPath(offer): IdPath<OfferId>,
) -> Answer {
    not_too_fast(&app, &buyer)?;
    let card = app.catalogue.offer(offer).ok_or_else(|| Refusal::new(Code::NotFound))?;
    let sale = &card.sale.sale;
    if sale.phase(app.clock.now()) == Phase::Closed {
        return Err(Refusal::new(Code::Ended));
    }
    let issued = app.challenges.issue(sale.challenge, buyer.as_str(), &offer.to_string());
    // There is one reason not to give a challenge: none can be made at the moment.
    let challenge = issued.map_err(|_| Refusal::new(Code::Busy))?;
    app.metrics.challenges.inc(ChallengeOutcome::Issued);
    Ok(json(StatusCode::OK, &challenge))
}
