//! `/api/v1/orders`: the buyer's orders, one of them, and giving one back. The try stands here for the documentation;
//! its code is elsewhere.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::response::Response;
use http::StatusCode;
use rules::buyer::BuyerId;
use rules::id::{OfferId, OrderId};
use rules::wire::{Code, OrderRequest, OrderView, Page};
use serde::Deserialize;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};

use super::page::PageQuery;
use crate::app::App;
use crate::desk::{CancelAnswer, Seen};
use crate::edge::answer::Extra;
use crate::edge::buy;
use crate::edge::extract::{Buyer, IdPath, QueryOf};
use crate::edge::openapi::problems;
use crate::edge::refusal::{Answer, Refusal, json};
use crate::edge::router::{DoNotWait, PeerAddress};
use crate::ledger::LedgerResult;

problems! {
    TryRefusals = Malformed PassInvalid PassExpired NotFound SoldOut NotEnough AlreadyOrdered Paused PassReused Ended
        TooLarge UnsupportedMediaType InvalidRequest NotOpen TooFast Busy Unsure;
    ListRefusals = Unauthorized InvalidRequest TooFast Internal Busy;
    ShowRefusals = Unauthorized NotFound InvalidRequest TooFast Internal Busy Unsure;
    CancelRefusals = Unauthorized NotFound NotCancellable NotYet TooFast Internal Busy Unsure;
}

/// The try. Needs no bearer token: the pass says who. The same pass again is the same request and answers the same
/// order. `busy` means that certainly nothing happened; `unsure` means: repeat the same pass.
#[utoipa::path(
    post, path = "/api/v1/offers/{offer}/orders", tag = "buyer", operation_id = "try",
    params(
        ("offer" = OfferId, Path, description = "The offer's id."),
        ("Prefer" = Option<String>, Header, description = "`wait=2` waits up to so many seconds (30 at most) for the \
            recorded order."),
    ),
    request_body = OrderRequest,
    responses(
        (status = 200, description = "The pass was used before: its order as it is now.", body = OrderView),
        (status = 201, description = "Recorded within the seconds of `Prefer: wait`.", body = OrderView),
        (status = 202, description = "Queued, and it survives a crash. Not yet an order: wait for its state to change.",
            body = OrderView, headers(("Location" = String, description = "Where the order is."))),
        TryRefusals,
    )
)]
pub async fn attempt(
    State(app): State<Arc<App>>,
    Extension(PeerAddress(peer)): Extension<PeerAddress>,
    request: Request,
) -> Response {
    let (parts, body) = request.into_parts();
    buy::buy(&app, parts, peer, body, None).await.map(Body::new)
}

/// Where the last page ended: queued orders come first, then those that the ledger has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cursor {
    Queued(OrderId),
    Recorded(u64),
}

const QUEUED: &str = "queued-";

impl FromStr for Cursor {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let cursor = match text.strip_prefix(QUEUED) {
            Some(order) => order.parse().ok().map(Self::Queued),
            None => text.parse().ok().map(Self::Recorded),
        };
        cursor.ok_or("must be the next_cursor of a page")
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queued(order) => write!(f, "{QUEUED}{order}"),
            Self::Recorded(number) => write!(f, "{number}"),
        }
    }
}

/// The buyer's orders, newest first. None is left out; one that is recorded between two pages may be in both.
#[utoipa::path(
    get, path = "/api/v1/orders", tag = "buyer", operation_id = "list_orders", security(("buyer_token" = [])),
    params(PageQuery), responses((status = 200, body = Page<OrderView>), ListRefusals)
)]
pub async fn list(
    State(app): State<Arc<App>>,
    Buyer(buyer): Buyer,
    QueryOf(query): QueryOf<PageQuery>,
) -> Answer {
    let (limit, cursor) = (query.limit()?, query.cursor::<Cursor>()?);
    let (queued_before, recorded_before) = match cursor {
        None => (Some(None), None),
        Some(Cursor::Queued(order)) => (Some(Some(order)), None),
        Some(Cursor::Recorded(number)) => (None, Some(number)),
    };
    // Queued first, then the ledger: an order on its way from one to the other is seen at least once.
    let mut orders = match queued_before {
        Some(before) => queued_orders(&app, &buyer, before).await?,
        None => Vec::new(),
    };
    let places = usize::try_from(limit).unwrap_or(usize::MAX);
    let next = if orders.len() >= places {
        orders.truncate(places);
        orders.last().map(|last| Cursor::Queued(last.id))
    } else {
        let room = limit.saturating_sub(u32::try_from(orders.len()).unwrap_or(u32::MAX));
        let page = app.ledger.orders_of(buyer, recorded_before, room).await?;
        let recorded: Vec<OrderView> = page.orders.iter().map(crate::ledger::Order::view).collect();
        orders.retain(|order| recorded.iter().all(|other| other.id != order.id));
        orders.extend(recorded.into_iter().map(Arc::new));
        page.next.map(Cursor::Recorded)
    };
    let page = Page { items: orders, next_cursor: next.map(|cursor| cursor.to_string()) };
    Ok(json(StatusCode::OK, &page))
}

#[derive(Clone, Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct WaitQuery {
    /// Seconds to wait for a change, 30 at most: until the order is beyond `after`, or, without it, is no longer
    /// queued.
    #[param(schema_with = whole_number)]
    wait: Option<String>,
    /// The `seq` that the client knows.
    #[param(schema_with = whole_number)]
    after: Option<String>,
}

/// No upper bound: more than the longest wait is the longest wait, and what is beyond every `seq` only waits.
fn whole_number() -> Schema {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).into()
}

/// Digits only. A number too large for us is the largest.
fn read_number(name: &str, text: &str) -> Result<u32, Refusal> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Refusal::field(name, "must be a whole number, 0 or more"));
    }
    Ok(text.parse().unwrap_or(u32::MAX))
}

/// An order of the buyer. Not yours and not there look the same.
#[utoipa::path(
    get, path = "/api/v1/orders/{id}", tag = "buyer", operation_id = "show_order", security(("buyer_token" = [])),
    params(("id" = OrderId, Path, description = "The order's id."), WaitQuery),
    responses((status = 200, body = OrderView), ShowRefusals)
)]
pub async fn show(
    State(app): State<Arc<App>>,
    Buyer(buyer): Buyer,
    IdPath(id): IdPath<OrderId>,
    QueryOf(query): QueryOf<WaitQuery>,
    do_not_wait: Option<Extension<DoNotWait>>,
) -> Answer {
    let wait = query.wait.as_deref().map(|text| read_number("wait", text)).transpose()?;
    let after = query.after.as_deref().map(|text| read_number("after", text)).transpose()?;
    let wait = if do_not_wait.is_some() { 0 } else { wait.unwrap_or(0).min(app.settings.limits.wait_s) };
    let patience = Duration::from_secs(wait.into());
    match app.await_order_while_open(id, &buyer, after, patience).await? {
        Seen::Order(order) => Ok(json(StatusCode::OK, &order)),
        Seen::NotFound => Err(Refusal::new(Code::NotFound)),
        Seen::Unsure => Err(unsure(id)),
    }
}

/// Closes an unpaid order at once; its units go back. Again is harmless.
#[utoipa::path(
    post, path = "/api/v1/orders/{id}/cancel", tag = "buyer", operation_id = "cancel_order",
    security(("buyer_token" = [])), params(("id" = OrderId, Path, description = "The order's id.")),
    responses((status = 200, body = OrderView), CancelRefusals)
)]
pub async fn cancel(State(app): State<Arc<App>>, Buyer(buyer): Buyer, IdPath(id): IdPath<OrderId>) -> Answer {
    match app.cancel(id, &buyer).await? {
        CancelAnswer::Closed(order) => Ok(json(StatusCode::OK, &order)),
        CancelAnswer::NotFound => Err(Refusal::new(Code::NotFound)),
        CancelAnswer::NotYet => Err(Refusal::new(Code::NotYet)),
        CancelAnswer::NotCancellable(state) => {
            let detail = format!("An order that is {} cannot be cancelled.", state.as_str());
            Err(Refusal::detail(Code::NotCancellable, detail))
        }
    }
}

/// The buyer's claims that the ledger has not recorded yet, newest first. Only durable ones: a grant whose commit is
/// under way is waited for, and one with an unknown outcome is not told as an order. With `before`, only older ones.
pub async fn queued_orders(
    app: &App,
    buyer: &BuyerId,
    before: Option<OrderId>,
) -> LedgerResult<Vec<Arc<OrderView>>> {
    let mut orders = Vec::new();
    let claims = app.gate.unrecorded.of(buyer).into_iter();
    for claim in claims.filter(|claim| before.is_none_or(|before| claim.order < before)) {
        if let Seen::Order(order) = app.see_order(claim.order, buyer).await? {
            orders.push(order);
        }
    }
    Ok(orders)
}

fn unsure(id: OrderId) -> Refusal {
    Refusal::with(Code::Unsure, Extra { order_id: Some(id), ..Extra::default() })
}
