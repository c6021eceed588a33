//! Who signed up for a sale.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use rules::id::SaleId;
use rules::wire::{RegisteredBuyer, Registrations};
use serde::Deserialize;

use super::refusals::OfPage;
use super::sales::find;
use super::{Operator, page_limit, told};
use crate::app::App;
use crate::edge::extract::{IdPath, QueryOf};
use crate::edge::refusal::{Answer, json};

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct RegistrationList {
    /// 1 to 200, 50 when not given.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200, default = 50)]
    limit: Option<String>,
    cursor: Option<String>,
}

/// A sale's registration window, how many signed up, and who, by buyer.
#[utoipa::path(
    get, path = "/admin/v1/sales/{sale}/registrations", tag = "operator",
    params(("sale" = SaleId, Path), RegistrationList),
    responses((status = 200, body = Registrations), OfPage), security(("admin_key" = []))
)]
pub async fn list(
    _: Operator,
    State(app): State<Arc<App>>,
    IdPath(id): IdPath<SaleId>,
    QueryOf(query): QueryOf<RegistrationList>,
) -> Answer {
    let limit = page_limit(query.limit.as_deref())?;
    let after = told(query.cursor.as_deref()).map(str::to_owned);
    let sale = find(&app, id).await?;
    let (buyers, more) = app.ledger.registration_page(id, after, limit).await?;
    let count = app.registrations_of(&sale).await?;
    let next_cursor = buyers.last().filter(|_| more).map(|(buyer, _)| buyer.clone());
    let item = |(buyer, registered_at)| RegisteredBuyer { buyer, registered_at };
    let answer = Registrations {
        sale_id: id,
        registration: sale.registration,
        registration_opens_at: sale.registration_opens_at,
        registration_closes_at: sale.registration_closes_at,
        open: sale.registration_open(app.clock.now()),
        count,
        items: buyers.into_iter().map(item).collect(),
        next_cursor,
    };
    Ok(json(StatusCode::OK, &answer))
}
