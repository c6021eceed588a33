//! `GET /api/v1/sales` and `GET /api/v1/sales/{sale}`: what pages show, from memory. No live numbers: those are in the
//! availability. A list is put together from the sales' own prepared bytes, so a long one costs no more than a short one.

use std::sync::Arc;

use axum::extract::State;
use bytes::Bytes;
use http::HeaderMap;
use rules::id::SaleId;
use rules::sale::{Phase, Sale};
use rules::time::UnixMs;
use rules::wire::{Code, Page, SaleView};

use super::page::PageQuery;
use crate::app::App;
use crate::catalogue::{SaleCard, etag_of};
use crate::edge::cached;
use crate::edge::extract::{IdPath, QueryOf};
use crate::edge::openapi::problems;
use crate::edge::refusal::{Answer, Refusal};

/// How long a page's data may be kept, in seconds.
const MAX_AGE_S: u64 = 5;

problems! {
    ListRefusals = InvalidRequest TooFast Busy;
    ShowRefusals = NotFound TooFast Busy;
}

/// The published sales, newest first, each with all its offers. Rehearsals are not listed.
#[utoipa::path(get, path = "/api/v1/sales", tag = "buyer", operation_id = "list_sales", params(
    ("limit" = Option<u32>, Query, description = "How many items at most.", minimum = 1, maximum = 200),
    ("cursor" = Option<SaleId>, Query, description = "The `next_cursor` of the page before."),
), responses(
    (status = 200, body = Page<SaleView>),
    (status = 304, description = "As before: `If-None-Match` names the present `ETag`."),
    ListRefusals,
))]
pub async fn list(
    State(app): State<Arc<App>>,
    QueryOf(query): QueryOf<PageQuery>,
    headers: HeaderMap,
) -> Answer {
    let limit = usize::try_from(query.limit()?).unwrap_or(usize::MAX);
    let before: Option<SaleId> = query.cursor()?;
    let now = app.clock.now();
    let catalogue = app.catalogue.read();
    let listed = &catalogue.listed;
    let from = before.map_or(0, |before| listed.partition_point(|card| card.sale.id >= before));
    let rest = listed.get(from..).unwrap_or_default();
    let items = rest.get(..limit).unwrap_or(rest);
    let next = if rest.len() > limit { items.last().map(|card| card.sale.id) } else { None };
    let max_age_s = items.iter().map(|card| max_age_s(&card.sale, now)).min().unwrap_or(MAX_AGE_S);
    let (etag, pieces) = page_of(items, next, now);
    Ok(cached::json(&headers, &etag, max_age_s, pieces))
}

/// A sale as a page shows it: no live numbers.
#[utoipa::path(
    get, path = "/api/v1/sales/{sale}", tag = "buyer", operation_id = "show_sale",
    params(("sale" = SaleId, Path, description = "The sale's id.")),
    responses(
        (status = 200, body = SaleView),
        (status = 304, description = "As before: `If-None-Match` names the present `ETag`."),
        ShowRefusals,
    )
)]
pub async fn show(State(app): State<Arc<App>>, IdPath(sale): IdPath<SaleId>, headers: HeaderMap) -> Answer {
    let card = app.catalogue.sale(sale).ok_or_else(|| Refusal::new(Code::NotFound))?;
    let now = app.clock.now();
    let rendered = card.rendered(now);
    Ok(cached::json(&headers, &rendered.etag, max_age_s(&card.sale, now), vec![rendered.json.clone()]))
}

fn page_of(items: &[Arc<SaleCard>], next: Option<SaleId>, now: UnixMs) -> (String, Vec<Bytes>) {
    let next = next.map_or_else(|| "null".to_owned(), |id| format!("\"{id}\""));
    let mut tags = next.clone();
    let mut pieces = Vec::with_capacity(items.len() * 2 + 2);
    for card in items {
        let rendered = card.rendered(now);
        pieces.push(Bytes::from_static(if pieces.is_empty() { b"{\"items\":[" } else { b"," }));
        pieces.push(rendered.json.clone());
        tags.push_str(&rendered.etag);
    }
    if pieces.is_empty() {
        pieces.push(Bytes::from_static(b"{\"items\":["));
    }
    pieces.push(Bytes::from(format!("],\"next_cursor\":{next}}}")));
    (etag_of(tags.as_bytes()), pieces)
}

/// Never beyond the next change of phase: a page must not say "upcoming" of a sale that is open.
fn max_age_s(sale: &Sale, now: UnixMs) -> u64 {
    let changes_at = match sale.phase(now) {
        Phase::Upcoming => sale.window.opens_at,
        Phase::Open => sale.window.closes_at,
        Phase::Closed => return MAX_AGE_S,
    };
    (now.ms_until(changes_at) / 1_000).min(MAX_AGE_S)
}
