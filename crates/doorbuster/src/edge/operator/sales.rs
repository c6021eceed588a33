//! Sales as their operator makes, finds, changes and throws them away.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::StatusCode;
use rules::edit::{EditError, SaleChange};
use rules::id::{OfferId, SaleId, timed};
use rules::sale::{Offer, Sale, SaleDraft, SaleState};
use rules::time::UnixMs;
use rules::wire::{Code, OperatorOffer, OperatorSale, Page};
use serde::Deserialize;

use super::refusals::{OfChange, OfCreate, OfDelete, OfList, OfLook};
use super::repeat::{IdempotencyKey, Keyed};
use super::{Operator, OperatorBody, done, number_cursor, page_limit, told};
use crate::app::App;
use crate::catalogue::{is_public, offer_view};
use crate::edge::extract::{IdPath, QueryOf};
use crate::edge::refusal::{Answer, Refusal, json};
use crate::images::Which;
use crate::ledger::{Changed, LedgerError};

/// Makes a draft. Offers are returned in the order given.
///
/// The sale and the answer to its Idempotency-Key are one commit: whatever crashes, a repeat makes no second sale.
#[utoipa::path(
    post, path = "/admin/v1/sales", tag = "operator", request_body = SaleDraft,
    params(IdempotencyKey),
    responses((status = 201, body = OperatorSale), OfCreate), security(("admin_key" = []))
)]
pub async fn create(
    _: Operator,
    State(app): State<Arc<App>>,
    keyed: Keyed,
    OperatorBody(draft): OperatorBody<SaleDraft>,
) -> Answer {
    let now = app.clock.now();
    let id = SaleId(timed(now, rand::random()));
    let sale = draft.into_sale(id, || new_offer_id(now))?;
    let view = operator_sale(&app, &sale, 0);
    app.create_sale(sale, keyed.answer(StatusCode::CREATED, &view)).await?;
    Ok(json(StatusCode::CREATED, &view))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct SaleList {
    /// `draft`, `published`, `paused` or `ended`.
    #[param(pattern = "^(draft|published|paused|ended)?$")]
    state: Option<String>,
    /// 1 to 200, 50 when not given.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200, default = 50)]
    limit: Option<String>,
    #[param(pattern = "^[0-9]{0,19}$")]
    cursor: Option<String>,
}

/// Sales, newest first.
#[utoipa::path(
    get, path = "/admin/v1/sales", tag = "operator", params(SaleList),
    responses((status = 200, body = Page<OperatorSale>), OfList), security(("admin_key" = []))
)]
pub async fn list(_: Operator, State(app): State<Arc<App>>, QueryOf(query): QueryOf<SaleList>) -> Answer {
    let unknown = || Refusal::field("state", "must be draft, published, paused or ended");
    let state = told(query.state.as_deref()).map(|text| SaleState::parse(text).ok_or_else(unknown));
    let limit = page_limit(query.limit.as_deref())?;
    let before = number_cursor(query.cursor.as_deref())?;
    let page = app.ledger.sale_page(state.transpose()?, before, limit).await?;
    let registrations = app.registrations(&page.sales).await?;
    let items = page.sales.iter().zip(registrations).map(|(sale, count)| operator_sale(&app, sale, count));
    let items: Vec<_> = items.collect();
    Ok(json(StatusCode::OK, &Page { items, next_cursor: page.next.map(|next| next.to_string()) }))
}

/// One sale.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale}", tag = "operator", params(("sale" = SaleId, Path)),
    responses((status = 200, body = OperatorSale), OfLook), security(("admin_key" = []))
)]
pub async fn get(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<SaleId>) -> Answer {
    let sale = find(&app, id).await?;
    let registrations = app.registrations_of(&sale).await?;
    Ok(json(StatusCode::OK, &operator_sale(&app, &sale, registrations)))
}

/// Changes a sale. A draft takes everything; once published, only a title, a later `closes_at` and, while it is
/// upcoming, a later `opens_at`.
#[utoipa::path(
    patch, path = "/admin/v1/sales/{sale}", tag = "operator", params(("sale" = SaleId, Path)),
    request_body = SaleChange,
    responses((status = 200, body = OperatorSale), OfChange), security(("admin_key" = []))
)]
pub async fn change(
    _: Operator,
    State(app): State<Arc<App>>,
    IdPath(id): IdPath<SaleId>,
    OperatorBody(change): OperatorBody<SaleChange>,
) -> Answer {
    let now = app.clock.now();
    let apply = move |before| edited(change.apply(before, now, || new_offer_id(now)));
    let sale = done(app.update_sale(id, None, apply).await?)?;
    copy_new_images(&app, &sale).await?;
    changed_sale(&app, &sale).await
}

/// Throws a draft away.
#[utoipa::path(
    delete, path = "/admin/v1/sales/{sale}", tag = "operator", params(("sale" = SaleId, Path)),
    responses((status = 204), OfDelete), security(("admin_key" = []))
)]
pub async fn delete(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<SaleId>) -> Answer {
    done(app.delete_sale(id).await?)?;
    Ok(no_content())
}

pub fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}

pub async fn find(app: &App, id: SaleId) -> Result<Sale, Refusal> {
    app.ledger.sale(id).await?.ok_or_else(|| Refusal::new(Code::NotFound))
}

pub fn new_offer_id(now: UnixMs) -> OfferId {
    OfferId(timed(now, rand::random()))
}

/// A published sale may get other images.
pub async fn copy_new_images(app: &Arc<App>, sale: &Sale) -> Result<(), Refusal> {
    if is_public(sale.state) {
        app.copy_images(sale, Which::Missing).await.map_err(LedgerError::after_commit)?;
    }
    Ok(())
}

/// An edit's outcome in the ledger's words.
pub fn edited(result: Result<Sale, EditError>) -> Changed<Sale> {
    match result {
        Ok(sale) => Changed::Done(sale),
        Err(EditError::NotEditable(error)) => Changed::NotEditable(error),
        Err(EditError::Invalid(error)) => Changed::Invalid(error),
    }
}

/// The answer to a change that is committed.
pub async fn changed_sale(app: &App, sale: &Sale) -> Answer {
    let registrations = app.registrations_of(sale).await.map_err(LedgerError::after_commit)?;
    Ok(json(StatusCode::OK, &operator_sale(app, sale, registrations)))
}

fn operator_sale(app: &App, sale: &Sale, registrations: u64) -> OperatorSale {
    OperatorSale {
        id: sale.id,
        title: sale.title.clone(),
        state: sale.state,
        phase: sale.phase(app.clock.now()),
        opens_at: sale.window.opens_at,
        closes_at: sale.window.closes_at,
        pay_within_s: sale.pay_within_s,
        challenge: sale.challenge,
        registration: sale.registration,
        registration_opens_at: sale.registration_opens_at,
        registration_closes_at: sale.registration_closes_at,
        publish_at: sale.publish_at,
        rehearsal: sale.rehearsal,
        registrations,
        offers: sale.offers.iter().map(|offer| operator_offer(app, offer)).collect(),
    }
}

pub fn operator_offer(app: &App, offer: &Offer) -> OperatorOffer {
    let copy = offer.image.as_deref().and_then(|image| app.images.copy_of(image));
    OperatorOffer {
        offer: offer_view(offer),
        stock: offer.stock,
        image_copy: offer.image.as_deref().and_then(|image| app.images.address(image)),
        image_problem: copy.and_then(|copy| copy.problem),
    }
}
