//! What operators call. Never open without the admin key.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use rules::id::{OfferId, SaleId};
use rules::sale::{SaleAction, SaleDraft};
use rules::wire::{Code, Stats};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::catalogue::sale_view;
use crate::edge::extract::{IdPath, JsonBody, Operator};
use crate::edge::refusal::{Answer, Refusal, json};
use crate::ledger::Changed;

/// The operators' routes with their documentation.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(create)).routes(routes!(publish)).routes(routes!(stats))
}

#[utoipa::path(post, path = "/admin/v1/sales", tag = "operator", request_body = SaleDraft, responses((status = 201)))]
async fn create(_: Operator, State(app): State<Arc<App>>, JsonBody(draft): JsonBody<SaleDraft>) -> Answer {
    let id = || (u128::from(app.clock.now().0.unsigned_abs()) << 80) | (rand::random::<u128>() >> 48);
    let sale = draft.into_sale(SaleId(id()), || OfferId(id()))?;
    app.ledger.create_sale(sale.clone(), app.clock.now()).await?;
    let phase = sale.phase(app.clock.now());
    Ok(json(StatusCode::CREATED, &sale_view(&sale, phase)))
}

#[utoipa::path(post, path = "/admin/v1/sales/{sale}/publish", tag = "operator", responses((status = 200)))]
async fn publish(_: Operator, State(app): State<Arc<App>>, IdPath(sale): IdPath<SaleId>) -> Answer {
    match app.act_on_sale(sale, SaleAction::Publish).await? {
        Changed::Done(sale) => Ok(json(StatusCode::OK, &sale_view(&sale, sale.phase(app.clock.now())))),
        Changed::NotFound => Err(Refusal::new(Code::NotFound)),
        _ => Err(Refusal::new(Code::WrongState)),
    }
}

#[utoipa::path(get, path = "/admin/v1/sales/{sale}/stats", tag = "operator", responses((status = 200, body = Stats)))]
async fn stats(_: Operator, State(app): State<Arc<App>>, IdPath(sale): IdPath<SaleId>) -> Answer {
    let card = app.catalogue.sale(sale).ok_or_else(|| Refusal::new(Code::NotFound))?;
    Ok(json(StatusCode::OK, &app.stats(&card).await?))
}
