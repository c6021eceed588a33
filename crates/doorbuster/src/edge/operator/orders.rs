//! Orders of all buyers: search, look, export. Read only, from the ledger; what is still queued is not in it yet and is
//! looked up in the queue.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::IntoResponse as _;
use bytes::Bytes;
use futures_util::stream;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE};
use rules::buyer::BuyerId;
use rules::id::OrderId;
use rules::order::{Reason, State as OrderState};
use rules::time::UnixMs;
use rules::wire::{Code, OperatorOrder, OrderView, Page};
use serde::Deserialize;

use super::refusals::{OfList, OfOrder};
use super::{Operator, page_limit, told};
use crate::app::App;
use crate::desk::Seen;
use crate::edge::answer::Extra;
use crate::edge::buyer::Cursor;
use crate::edge::extract::{IdPath, QueryOf, parse_named};
use crate::edge::refusal::{Answer, Refusal, json};
use crate::ledger::{Order, OrderSearch};

/// Orders read, written and sent at a time: what an export keeps in memory.
const EXPORT_PAGE: u32 = 1_000;

const EXPORT_HEADER: [&str; 17] = [
    "id",
    "sale_id",
    "offer_id",
    "buyer",
    "quantity",
    "price",
    "total",
    "currency",
    "state",
    "reason",
    "seq",
    "created_at",
    "pay_by",
    "paid_at",
    "closed_at",
    "refunded_at",
    "payment_id",
];

/// What to look for; everything that is given must match.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct OrderQuery {
    /// Orders of this sale.
    #[param(pattern = "^([0-7][0-9a-hjkmnp-tv-zA-HJKMNP-TV-Z]{25})?$")]
    sale: Option<String>,
    /// Orders of this offer.
    #[param(pattern = "^([0-7][0-9a-hjkmnp-tv-zA-HJKMNP-TV-Z]{25})?$")]
    offer: Option<String>,
    /// Orders of this buyer: the `sub` of their token, byte by byte.
    #[param(max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")]
    buyer: Option<String>,
    /// Orders in this state. Those that are `queued` are on their way into the ledger and found by this alone; all other
    /// searches, and exports, find what is in the ledger.
    #[param(pattern = "^(queued|awaiting_payment|paid|closed|refused|refunding|refunded|refund_failed)?$")]
    state: Option<String>,
    /// The order with this id.
    #[param(pattern = "^([0-7][0-9a-hjkmnp-tv-zA-HJKMNP-TV-Z]{25})?$")]
    order: Option<String>,
    /// 1 to 200, 50 when not given. An export has no limit.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200, default = 50)]
    limit: Option<String>,
    /// `next_cursor` of the page before.
    #[param(pattern = "^([0-9]{0,19}|queued-[0-7][0-9a-hjkmnp-tv-zA-HJKMNP-TV-Z]{25})$")]
    cursor: Option<String>,
}

impl OrderQuery {
    fn search(&self) -> Result<OrderSearch, Refusal> {
        let state = |text: &str| {
            let states = OrderState::ALL.map(OrderState::as_str).join(", ");
            OrderState::parse(text)
                .ok_or_else(|| Refusal::field("state", format_args!("must be one of: {states}")))
        };
        let buyer = |text: &str| BuyerId::parse(text).map_err(|error| Refusal::field("buyer", error));
        Ok(OrderSearch {
            sale: told(self.sale.as_deref()).map(|text| parse_named("sale", text)).transpose()?,
            offer: told(self.offer.as_deref()).map(|text| parse_named("offer", text)).transpose()?,
            order: told(self.order.as_deref()).map(|text| parse_named("order", text)).transpose()?,
            buyer: told(self.buyer.as_deref()).map(buyer).transpose()?,
            state: told(self.state.as_deref()).map(state).transpose()?,
            before: match self.cursor()? {
                Some(Cursor::Recorded(number)) => Some(number),
                Some(Cursor::Queued(_)) | None => None,
            },
            limit: page_limit(self.limit.as_deref())?,
        })
    }

    /// Where the last page ended. Queued orders come before those of the ledger.
    fn cursor(&self) -> Result<Option<Cursor>, Refusal> {
        let cursor = |text: &str| text.parse().map_err(|_| Refusal::field("cursor", "is none of ours"));
        told(self.cursor.as_deref()).map(cursor).transpose()
    }
}

/// Orders that match, newest first.
#[utoipa::path(
    get, path = "/admin/v1/orders", tag = "operator", params(OrderQuery),
    responses((status = 200, body = Page<OperatorOrder>), OfList), security(("admin_key" = []))
)]
pub async fn search(_: Operator, State(app): State<Arc<App>>, QueryOf(query): QueryOf<OrderQuery>) -> Answer {
    let search = query.search()?;
    if search.state == Some(OrderState::Queued) {
        let before = query.cursor()?.map(|cursor| match cursor {
            Cursor::Queued(order) => order,
            // No queued order comes after it.
            Cursor::Recorded(_) => OrderId(0),
        });
        return queued(&app, &search, before).await;
    }
    let page = app.ledger.search_orders(search).await?;
    let items: Vec<_> = page.orders.iter().map(operator_order).collect();
    Ok(json(StatusCode::OK, &Page { items, next_cursor: page.next.map(|next| next.to_string()) }))
}

/// A page of the orders that are on their way into the ledger.
async fn queued(app: &App, search: &OrderSearch, before: Option<OrderId>) -> Answer {
    let limit = usize::try_from(search.limit).unwrap_or(usize::MAX);
    let mut claims = app.gate.unrecorded.newest(limit.saturating_add(1), |claim| {
        let sale = || app.catalogue.offer(claim.offer).map(|card| card.sale.sale.id);
        before.is_none_or(|before| claim.order < before)
            && search.order.is_none_or(|order| order == claim.order)
            && search.offer.is_none_or(|offer| offer == claim.offer)
            && search.buyer.as_ref().is_none_or(|buyer| *buyer == claim.buyer)
            && search.sale.is_none_or(|wanted| sale() == Some(wanted))
    });
    let is_last = claims.len() <= limit;
    claims.truncate(limit);
    let next_cursor = claims.last().filter(|_| !is_last).map(|last| Cursor::Queued(last.order).to_string());
    let mut items = Vec::with_capacity(claims.len());
    for claim in claims {
        // One whose commit is under way is waited for; one that was recorded meanwhile is no longer queued.
        if let Seen::Order(order) = app.see_order(claim.order, &claim.buyer).await?
            && order.state == OrderState::Queued
        {
            items.push(seen_order(order, &claim.buyer));
        }
    }
    Ok(json(StatusCode::OK, &Page { items, next_cursor }))
}

fn seen_order(order: Arc<OrderView>, buyer: &BuyerId) -> OperatorOrder {
    OperatorOrder { order: Arc::unwrap_or_clone(order), buyer: buyer.as_str().to_owned() }
}

/// One order, whoever owns it, also one that is still queued.
#[utoipa::path(
    get, path = "/admin/v1/orders/{order}", tag = "operator", params(("order" = OrderId, Path)),
    responses((status = 200, body = OperatorOrder), OfOrder), security(("admin_key" = []))
)]
pub async fn get(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<OrderId>) -> Answer {
    // The queue first, then the ledger: an order on its way from one to the other is seen.
    if let Some(claim) = app.gate.unrecorded.get(id) {
        match app.see_order(id, &claim.buyer).await? {
            Seen::Order(order) => return Ok(json(StatusCode::OK, &seen_order(order, &claim.buyer))),
            Seen::NotFound => {}
            Seen::Unsure => {
                return Err(Refusal::with(Code::Unsure, Extra { order_id: Some(id), ..Extra::default() }));
            }
        }
    }
    let order = app.ledger.order(id).await?.ok_or_else(|| Refusal::new(Code::NotFound))?;
    Ok(json(StatusCode::OK, &operator_order(&order)))
}

pub(super) fn operator_order(order: &Order) -> OperatorOrder {
    OperatorOrder { order: order.view(), buyer: order.buyer.as_str().to_owned() }
}

/// All orders that match, newest first, as a table for a spreadsheet. Amounts are in minor units.
#[utoipa::path(
    get, path = "/admin/v1/orders/export.csv", tag = "operator", params(OrderQuery),
    responses((status = 200, body = String, content_type = "text/csv"), OfList),
    security(("admin_key" = []))
)]
pub async fn export(_: Operator, State(app): State<Arc<App>>, QueryOf(query): QueryOf<OrderQuery>) -> Answer {
    let search = OrderSearch { limit: EXPORT_PAGE, ..query.search()? };
    let headers = [
        (CONTENT_TYPE, "text/csv; charset=utf-8; header=present"),
        (CONTENT_DISPOSITION, "attachment; filename=\"orders.csv\""),
        (CACHE_CONTROL, "no-store"),
    ];
    Ok((headers, Body::from_stream(pages(app, search))).into_response())
}

/// Where an export stands.
enum Export {
    Header,
    From(Option<u64>),
    Done,
}

/// The file page by page: the next one is read when the last one was taken. A failure cuts the answer off, which the
/// client notices; a file that only looks complete would be worse.
fn pages(app: Arc<App>, search: OrderSearch) -> impl stream::Stream<Item = anyhow::Result<Bytes>> {
    let first = search.before;
    stream::try_unfold(Export::Header, move |at| {
        let (app, search) = (Arc::clone(&app), search.clone());
        async move {
            match at {
                Export::Header => Ok(Some((header()?, Export::From(first)))),
                Export::From(before) => {
                    let page = app.ledger.search_orders(OrderSearch { before, ..search }).await?;
                    let next = page.next.map_or(Export::Done, |next| Export::From(Some(next)));
                    Ok(Some((rows(&page.orders)?, next)))
                }
                Export::Done => Ok(None),
            }
        }
    })
}

fn header() -> anyhow::Result<Bytes> {
    let mut table = csv::Writer::from_writer(Vec::new());
    table.write_record(EXPORT_HEADER)?;
    Ok(table.into_inner()?.into())
}

fn rows(orders: &[Order]) -> anyhow::Result<Bytes> {
    let mut table = csv::Writer::from_writer(Vec::new());
    for order in orders {
        table.write_record(row(order).map(harmless))?;
    }
    Ok(table.into_inner()?.into())
}

fn row(order: &Order) -> [String; EXPORT_HEADER.len()] {
    let time = |at: Option<UnixMs>| at.map(|at| at.to_string()).unwrap_or_default();
    let view = order.view();
    [
        view.id.to_string(),
        view.sale_id.to_string(),
        view.offer_id.to_string(),
        order.buyer.as_str().to_owned(),
        view.quantity.to_string(),
        view.price.amount.to_string(),
        view.total.amount.to_string(),
        view.price.currency.to_string(),
        view.state.as_str().to_owned(),
        view.reason.map(Reason::as_str).unwrap_or_default().to_owned(),
        view.seq.to_string(),
        view.created_at.to_string(),
        time(view.pay_by),
        time(view.paid_at),
        time(view.closed_at),
        time(view.refunded_at),
        view.payment_id.map(|id| id.to_string()).unwrap_or_default(),
    ]
}

/// Buyers choose their names; no cell may begin like a formula that a spreadsheet would run.
fn harmless(cell: String) -> String {
    if cell.starts_with(['=', '+', '-', '@']) { format!("'{cell}") } else { cell }
}
