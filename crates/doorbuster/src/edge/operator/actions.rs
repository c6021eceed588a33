//! What an operator does to a sale as a whole. Doing what is done already is harmless.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use rules::id::{OfferId, SaleId};
use rules::sale::SaleAction;
use rules::wire::{Code, OperatorSale, Preheated};

use super::refusals::OfAction;
use super::repeat::IdempotencyKey;
use super::sales::changed_sale;
use super::{Operator, done};
use crate::app::App;
use crate::edge::extract::IdPath;
use crate::edge::refusal::{Answer, Refusal, json};
use crate::images::Which;
use crate::ledger::LedgerError;

/// Shows the sale to buyers and preheats it. It sells from its `opens_at` on.
///
/// Images are copied and served from here; the sale does not wait for them. An offer whose image could not be copied
/// says why in `image_problem` and is shown without one; preheating tries again.
#[utoipa::path(
    post, path = "/admin/v1/sales/{sale}/publish", tag = "operator", params(("sale" = SaleId, Path), IdempotencyKey),
    responses((status = 200, body = OperatorSale), OfAction), security(("admin_key" = []))
)]
pub async fn publish(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<SaleId>) -> Answer {
    let sale = done(app.act_on_sale(id, SaleAction::Publish).await?)?;
    app.copy_images(&sale, Which::All).await.map_err(LedgerError::after_commit)?;
    changed_sale(&app, &sale).await
}

/// Stops selling; when this answers, nobody is granted anything any more. Passes are still given.
#[utoipa::path(
    post, path = "/admin/v1/sales/{sale}/pause", tag = "operator", params(("sale" = SaleId, Path), IdempotencyKey),
    responses((status = 200, body = OperatorSale), OfAction), security(("admin_key" = []))
)]
pub async fn pause(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<SaleId>) -> Answer {
    act(&app, id, SaleAction::Pause).await
}

/// Goes on after a pause.
#[utoipa::path(
    post, path = "/admin/v1/sales/{sale}/resume", tag = "operator", params(("sale" = SaleId, Path), IdempotencyKey),
    responses((status = 200, body = OperatorSale), OfAction), security(("admin_key" = []))
)]
pub async fn resume(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<SaleId>) -> Answer {
    act(&app, id, SaleAction::Resume).await
}

/// Ends the sale for good. Orders already made may still be paid.
#[utoipa::path(
    post, path = "/admin/v1/sales/{sale}/end", tag = "operator", params(("sale" = SaleId, Path), IdempotencyKey),
    responses((status = 200, body = OperatorSale), OfAction), security(("admin_key" = []))
)]
pub async fn end(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<SaleId>) -> Answer {
    act(&app, id, SaleAction::End).await
}

async fn act(app: &Arc<App>, id: SaleId, action: SaleAction) -> Answer {
    let sale = done(app.act_on_sale(id, action).await?)?;
    changed_sale(app, &sale).await
}

/// Lets the gate know the sale's offers again and says what that did; of a sale it knows, nothing.
#[utoipa::path(
    post, path = "/admin/v1/sales/{sale}/preheat", tag = "operator", params(("sale" = SaleId, Path), IdempotencyKey),
    responses((status = 200, body = Preheated), OfAction), security(("admin_key" = []))
)]
pub async fn preheat_sale(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<SaleId>) -> Answer {
    preheat(&app, id).await
}

/// The same for the sale that an offer belongs to.
#[utoipa::path(
    post, path = "/admin/v1/offers/{offer}/preheat", tag = "operator",
    params(("offer" = OfferId, Path), IdempotencyKey),
    responses((status = 200, body = Preheated), OfAction), security(("admin_key" = []))
)]
pub async fn preheat_offer(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<OfferId>) -> Answer {
    let sale = app.ledger.sale_of(id).await?.ok_or_else(|| Refusal::new(Code::NotFound))?;
    preheat(&app, sale).await
}

async fn preheat(app: &Arc<App>, id: SaleId) -> Answer {
    let preheated = done(app.preheat_sale(id).await?)?;
    if let Some(sale) = app.ledger.sale(id).await? {
        app.copy_images(&sale, Which::Missing).await?;
    }
    Ok(json(StatusCode::OK, &preheated))
}
