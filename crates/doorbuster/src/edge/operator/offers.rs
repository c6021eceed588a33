//! The offers of a sale, one by one. They come and go in a draft only; what describes them can always be mended.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, State};
use http::StatusCode;
use http::request::Parts;
use rules::edit::OfferChange;
use rules::id::{OfferId, SaleId};
use rules::sale::{FieldError, OFFERS_PER_SALE_MAX, OfferDraft, Sale, SaleState};
use rules::wire::{Code, OperatorOffer, Page};

use super::refusals::{OfAdd, OfChange, OfDelete, OfLook};
use super::repeat::{IdempotencyKey, Keyed};
use super::sales::{copy_new_images, edited, find, new_offer_id, no_content, operator_offer};
use super::{Operator, OperatorBody, done};
use crate::app::App;
use crate::edge::extract::IdPath;
use crate::edge::refusal::{Answer, Refusal, json};
use crate::ledger::Changed;

/// `/sales/{sale}/offers/{offer}`. What is no id names nothing: `404`.
#[derive(Clone, Copy, Debug)]
pub struct OfferPath {
    sale: SaleId,
    offer: OfferId,
}

impl FromRequestParts<Arc<App>> for OfferPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let not_found = || Refusal::new(Code::NotFound);
        let Path((sale, offer)) =
            Path::<(String, String)>::from_request_parts(parts, app).await.map_err(|_| not_found())?;
        match (sale.parse(), offer.parse()) {
            (Ok(sale), Ok(offer)) => Ok(Self { sale, offer }),
            _ => Err(not_found()),
        }
    }
}

/// Adds an offer to a draft, as its last.
#[utoipa::path(
    post, path = "/admin/v1/sales/{sale}/offers", tag = "operator", params(("sale" = SaleId, Path), IdempotencyKey),
    request_body = OfferDraft,
    responses((status = 201, body = OperatorOffer), OfAdd), security(("admin_key" = []))
)]
pub async fn add(
    _: Operator,
    State(app): State<Arc<App>>,
    IdPath(id): IdPath<SaleId>,
    keyed: Keyed,
    OperatorBody(draft): OperatorBody<OfferDraft>,
) -> Answer {
    let offer = draft.into_offer(new_offer_id(app.clock.now()));
    offer.check("")?;
    let view = operator_offer(&app, &offer);
    let add = move |mut sale: Sale| {
        if sale.state != SaleState::Draft {
            return Changed::WrongState;
        }
        if sale.offers.len() >= OFFERS_PER_SALE_MAX {
            return Changed::Invalid(FieldError::new("offers", "must hold 1 to 1,000 offers"));
        }
        sale.offers.push(offer);
        Changed::Done(sale)
    };
    done(app.update_sale(id, keyed.answer(StatusCode::CREATED, &view), add).await?)?;
    Ok(json(StatusCode::CREATED, &view))
}

/// All offers of a sale, in their order. A sale has at most 1,000, so this is one page.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale}/offers", tag = "operator", params(("sale" = SaleId, Path)),
    responses((status = 200, body = Page<OperatorOffer>), OfLook), security(("admin_key" = []))
)]
pub async fn list(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<SaleId>) -> Answer {
    let sale = find(&app, id).await?;
    let items: Vec<_> = sale.offers.iter().map(|offer| operator_offer(&app, offer)).collect();
    Ok(json(StatusCode::OK, &Page { items, next_cursor: None }))
}

/// One offer.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale}/offers/{offer}", tag = "operator",
    params(("sale" = SaleId, Path), ("offer" = OfferId, Path)),
    responses((status = 200, body = OperatorOffer), OfLook), security(("admin_key" = []))
)]
pub async fn get(_: Operator, State(app): State<Arc<App>>, path: OfferPath) -> Answer {
    answer(&app, &find(&app, path.sale).await?, path.offer)
}

/// Changes an offer. In a draft everything; once published only description and image. Stock has its own call.
#[utoipa::path(
    patch, path = "/admin/v1/sales/{sale}/offers/{offer}", tag = "operator", request_body = OfferChange,
    params(("sale" = SaleId, Path), ("offer" = OfferId, Path)),
    responses((status = 200, body = OperatorOffer), OfChange), security(("admin_key" = []))
)]
pub async fn change(
    _: Operator,
    State(app): State<Arc<App>>,
    path: OfferPath,
    OperatorBody(change): OperatorBody<OfferChange>,
) -> Answer {
    let apply = move |sale| match change.apply(sale, path.offer).transpose() {
        Some(result) => edited(result),
        None => Changed::NotFound,
    };
    let sale = done(app.update_sale(path.sale, None, apply).await?)?;
    copy_new_images(&app, &sale).await?;
    answer(&app, &sale, path.offer)
}

/// Takes an offer out of a draft; one at least must remain.
#[utoipa::path(
    delete, path = "/admin/v1/sales/{sale}/offers/{offer}", tag = "operator",
    params(("sale" = SaleId, Path), ("offer" = OfferId, Path)),
    responses((status = 204), OfDelete), security(("admin_key" = []))
)]
pub async fn remove(_: Operator, State(app): State<Arc<App>>, path: OfferPath) -> Answer {
    let remove = move |mut sale: Sale| {
        let Some(index) = sale.offers.iter().position(|offer| offer.id == path.offer) else {
            return Changed::NotFound;
        };
        if sale.state != SaleState::Draft {
            return Changed::WrongState;
        }
        sale.offers.remove(index);
        match sale.check() {
            Ok(()) => Changed::Done(sale),
            Err(error) => Changed::Invalid(error),
        }
    };
    done(app.update_sale(path.sale, None, remove).await?)?;
    Ok(no_content())
}

fn answer(app: &App, sale: &Sale, id: OfferId) -> Answer {
    let offer = sale.offers.iter().find(|offer| offer.id == id);
    let offer = offer.ok_or_else(|| Refusal::new(Code::NotFound))?;
    Ok(json(StatusCode::OK, &operator_offer(app, offer)))
}
