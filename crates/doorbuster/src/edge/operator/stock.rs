//! Stock during the sale: more at any time, less as long as nobody has it.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use rules::id::OfferId;
use rules::sale::STOCK_MAX;
use rules::wire::{Code, StockChange, StockView};

use super::refusals::OfStock;
use super::repeat::IdempotencyKey;
use super::{Operator, OperatorBody};
use crate::app::App;
use crate::desk::StockAnswer;
use crate::edge::answer::Extra;
use crate::edge::extract::IdPath;
use crate::edge::refusal::{Answer, Refusal, json};

/// Longest change_id, in characters.
const CHANGE_ID_CHARS_MAX: usize = 100;

/// Raises or lowers an offer's stock, never below what is queued, held or sold. The same `change_id` is the same
/// change: again, it answers what the first one did.
#[utoipa::path(
    post, path = "/admin/v1/offers/{offer}/stock", tag = "operator",
    params(("offer" = OfferId, Path), IdempotencyKey),
    request_body = StockChange,
    responses((status = 200, body = StockView), OfStock), security(("admin_key" = []))
)]
pub async fn change(
    _: Operator,
    State(app): State<Arc<App>>,
    IdPath(offer_id): IdPath<OfferId>,
    OperatorBody(StockChange { change, change_id }): OperatorBody<StockChange>,
) -> Answer {
    if change == 0 {
        return Err(Refusal::field("change", "must not be 0"));
    }
    let chars = change_id.chars().count();
    if chars == 0 || chars > CHANGE_ID_CHARS_MAX || change_id.chars().any(char::is_control) {
        let problem =
            format!("must have 1 to {CHANGE_ID_CHARS_MAX} characters, none of them control characters");
        return Err(Refusal::field("change_id", problem));
    }
    match app.change_stock(offer_id, change, change_id).await? {
        StockAnswer::Done { stock, free } => Ok(json(StatusCode::OK, &StockView { offer_id, stock, free })),
        StockAnswer::OtherChange => {
            Err(Refusal::detail(Code::KeyReused, "This change_id was used for another change of this offer."))
        }
        StockAnswer::BelowLive { free } => {
            let extra = Extra { available: Some(free), ..Extra::default() };
            Err(Refusal::with(Code::StockBelowLive, extra))
        }
        StockAnswer::TooMuch => {
            Err(Refusal::field("change", format!("would bring the stock above {STOCK_MAX} units")))
        }
        StockAnswer::NotFound => Err(Refusal::new(Code::NotFound)),
    }
}
