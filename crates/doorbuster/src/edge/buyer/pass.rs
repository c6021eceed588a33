//! `POST /api/v1/offers/{offer}/pass`: the right of one buyer to try one offer. Answered from memory alone: what a pass
//! costs is one signature, and no table is read for it.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::StatusCode;
use rules::buyer::BuyerId;
use rules::id::OfferId;
use rules::pass::Pass;
use rules::sale::{Phase, RegistrationKind};
use rules::strike::Notice;
use rules::time::UnixMs;
use rules::wire::{Code, PassGiven};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::not_too_fast;
use crate::app::App;
use crate::catalogue::OfferCard;
use crate::edge::answer::Extra;
use crate::edge::challenge::ChallengeRefusal;
use crate::edge::extract::{Buyer, IdPath, read_optional};
use crate::edge::openapi::problems;
use crate::edge::refusal::{Answer, Refusal, json};
use crate::telemetry::metrics::{ChallengeOutcome, PassOutcome, Step};

problems! {
    Refusals = Malformed Unauthorized Blocked NotRegistered ChallengeFailed NotFound Ended TooLarge
        UnsupportedMediaType InvalidRequest NotOpen TooFast Busy;
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PassRequest {
    /// The solution of a challenge, where the sale asks for one. A proof of work: the payload of the ALTCHA widget. A
    /// picture: `{"token": "…", "answer": "…"}`.
    solution: Option<Value>,
}

/// A pass for one try. Every call mints a new order id; the pass is good until `expires_at`, and again and again for
/// the same order.
#[utoipa::path(
    post, path = "/api/v1/offers/{offer}/pass", tag = "buyer", security(("buyer_token" = [])),
    params(("offer" = OfferId, Path, description = "The offer's id.")),
    request_body(content = Option<PassRequest>),
    responses((status = 200, body = PassGiven), Refusals)
)]
pub async fn pass(
    State(app): State<Arc<App>>,
    buyer: Result<Buyer, Refusal>,
    IdPath(offer): IdPath<OfferId>,
    request: Request,
) -> Answer {
    let given = give(&app, buyer, offer, request).await;
    let outcome =
        given.as_ref().map_or_else(|refusal| outcome_of(refusal.code), |_| Some(PassOutcome::Issued));
    outcome.into_iter().for_each(|outcome| app.metrics.passes.inc(outcome));
    given.map(|pass| json(StatusCode::OK, &pass))
}

async fn give(
    app: &App,
    buyer: Result<Buyer, Refusal>,
    offer: OfferId,
    request: Request,
) -> Result<PassGiven, Refusal> {
    let Buyer(buyer) = buyer?;
    not_too_fast(app, &buyer)?;
    // Sales without a challenge need no body.
    let PassRequest { solution } = read_optional(request, app.settings.limits.body_bytes, app).await?;
    let card = app.catalogue.offer(offer).ok_or_else(|| Refusal::new(Code::NotFound))?;
    let now = app.clock.now();
    check_time(app, &card, now)?;
    let notice = check_standing(app, &card, &buyer, now)?;
    check_challenge(app, &card, &buyer, solution.as_ref())?;
    card.sale.funnel.inc(Step::Pass);
    Ok(PassGiven { notice: notice.map(|notice| notice.to_string()), ..mint(app, &card, &buyer, now) })
}

fn check_time(app: &App, card: &OfferCard, now: UnixMs) -> Result<(), Refusal> {
    let sale = &card.sale.sale;
    if sale.phase(now) == Phase::Closed {
        return Err(Refusal::new(Code::Ended));
    }
    let passes_from = sale.window.opens_at.plus_ms(-i64::from(app.settings.pass.lead_s) * 1_000);
    let early_ms = now.ms_until(passes_from);
    if early_ms == 0 {
        return Ok(());
    }
    let detail = Some(format!("Passes are given in {early_ms} ms."));
    Err(Refusal::with(Code::NotOpen, Extra { detail, retry_after_ms: Some(early_ms), ..Extra::default() }))
}

/// Whether this buyer may try, and what they should know before.
fn check_standing(
    app: &App,
    card: &OfferCard,
    buyer: &BuyerId,
    now: UnixMs,
) -> Result<Option<Notice>, Refusal> {
    let notice = app.roster.standing(buyer, now).notice();
    if let Some(blocked @ Notice::Blocked { until }) = notice {
        let detail = Some(blocked.to_string());
        return Err(Refusal::with(Code::Blocked, Extra { detail, until: Some(until), ..Extra::default() }));
    }
    let sale = &card.sale.sale;
    let registered = match sale.registration {
        RegistrationKind::None => Some(true),
        RegistrationKind::Required => app.roster.is_registered(sale.id, buyer.as_str()),
    };
    match registered {
        Some(true) => Ok(notice),
        Some(false) => Err(Refusal::new(Code::NotRegistered)),
        // Nobody needs to know any more: the sale was ended a moment ago.
        None => Err(Refusal::new(Code::Ended)),
    }
}

fn check_challenge(
    app: &App,
    card: &OfferCard,
    buyer: &BuyerId,
    solution: Option<&Value>,
) -> Result<(), Refusal> {
    let kind = card.sale.sale.challenge;
    if kind == rules::sale::ChallengeKind::None {
        return Ok(());
    }
    match app.challenges.check(kind, buyer.as_str(), &card.offer.id.to_string(), solution) {
        Ok(()) => {
            app.metrics.challenges.inc(ChallengeOutcome::Solved);
            Ok(())
        }
        Err(ChallengeRefusal::Busy) => Err(Refusal::new(Code::Busy)),
        Err(refusal) => {
            app.metrics.challenges.inc(ChallengeOutcome::Failed);
            Err(Refusal::detail(Code::ChallengeFailed, refusal.to_string()))
        }
    }
}

fn mint(app: &App, card: &OfferCard, buyer: &BuyerId, now: UnixMs) -> PassGiven {
    let order_id = app.pass_keys.mint_order_id(buyer, now, rand::random());
    let expires_at = now.max(card.sale.sale.window.opens_at).plus_s(app.settings.pass.ttl_s);
    let pass = Pass { buyer: buyer.as_str(), offer: card.offer.id, order: order_id, expires_at };
    PassGiven { pass: app.pass_keys.sign(&pass), order_id, expires_at, notice: None }
}

/// What the refusal counts as; requests that name nothing or cannot be read are in the counts of all requests.
fn outcome_of(code: Code) -> Option<PassOutcome> {
    match code {
        Code::Unauthorized => Some(PassOutcome::Unauthorized),
        Code::TooFast => Some(PassOutcome::TooFast),
        Code::Ended => Some(PassOutcome::Ended),
        Code::NotOpen => Some(PassOutcome::NotOpen),
        Code::Blocked => Some(PassOutcome::Blocked),
        Code::NotRegistered => Some(PassOutcome::NotRegistered),
        Code::ChallengeFailed => Some(PassOutcome::ChallengeFailed),
        Code::Busy => Some(PassOutcome::Busy),
        _ => None,
    }
}
