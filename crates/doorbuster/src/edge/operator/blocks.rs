//! Buyers who get no passes for a time.

use std::sync::Arc;

use axum::extract::{FromRequestParts, Path, State};
use http::StatusCode;
use http::request::Parts;
use rules::buyer::BuyerId;
use rules::wire::{BlockRequest, BlockView, Code, Page};
use serde::Deserialize;

use super::refusals::{OfLift, OfList, OfLook, OfPut};
use super::sales::no_content;
use super::{Operator, OperatorBody, page_limit, told};
use crate::app::App;
use crate::edge::extract::QueryOf;
use crate::edge::refusal::{Answer, Refusal, json};
use crate::ledger::Block;

/// Longest note, in characters.
const NOTE_CHARS_MAX: usize = 1_000;

/// A buyer in the path. What can be no buyer was never blocked: `404`.
#[derive(Clone, Debug)]
pub struct BuyerPath(BuyerId);

impl FromRequestParts<Arc<App>> for BuyerPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let not_found = || Refusal::new(Code::NotFound);
        let Path(text) = Path::<String>::from_request_parts(parts, app).await.map_err(|_| not_found())?;
        BuyerId::parse(&text).map(Self).map_err(|_| not_found())
    }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct BlockList {
    /// 1 to 200, 50 when not given.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200, default = 50)]
    limit: Option<String>,
    cursor: Option<String>,
}

/// Blocks in force, by buyer.
#[utoipa::path(
    get, path = "/admin/v1/blocks", tag = "operator", params(BlockList),
    responses((status = 200, body = Page<BlockView>), OfList), security(("admin_key" = []))
)]
pub async fn list(_: Operator, State(app): State<Arc<App>>, QueryOf(query): QueryOf<BlockList>) -> Answer {
    let limit = page_limit(query.limit.as_deref())?;
    let after = told(query.cursor.as_deref()).map(str::to_owned);
    let (blocks, more) = app.ledger.block_page(app.clock.now(), after, limit).await?;
    let next_cursor = blocks.last().filter(|_| more).map(|block| block.buyer.as_str().to_owned());
    let items: Vec<_> = blocks.into_iter().map(|block| view(&app, block)).collect();
    Ok(json(StatusCode::OK, &Page { items, next_cursor }))
}

/// A buyer's block, while it is in force.
#[utoipa::path(
    get, path = "/admin/v1/blocks/{buyer}", tag = "operator",
    params(("buyer" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")),
    responses((status = 200, body = BlockView), OfLook), security(("admin_key" = []))
)]
pub async fn get(_: Operator, State(app): State<Arc<App>>, BuyerPath(buyer): BuyerPath) -> Answer {
    let block = app.ledger.block_of(buyer, app.clock.now()).await?;
    let block = block.ok_or_else(|| Refusal::new(Code::NotFound))?;
    Ok(json(StatusCode::OK, &view(&app, block)))
}

/// Blocks a buyer until a time; an earlier block is replaced.
#[utoipa::path(
    put, path = "/admin/v1/blocks/{buyer}", tag = "operator",
    params(("buyer" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")),
    request_body = BlockRequest,
    responses((status = 200, body = BlockView), OfPut), security(("admin_key" = []))
)]
pub async fn put(
    _: Operator,
    State(app): State<Arc<App>>,
    Path(buyer): Path<String>,
    OperatorBody(BlockRequest { until, note }): OperatorBody<BlockRequest>,
) -> Answer {
    let buyer = BuyerId::parse(&buyer).map_err(|error| Refusal::field("buyer", error))?;
    if until <= app.clock.now() {
        return Err(Refusal::field("until", "must lie ahead"));
    }
    let fits = |note: &str| note.chars().count() <= NOTE_CHARS_MAX && !note.contains('\0');
    if note.as_deref().is_some_and(|note| !fits(note)) {
        return Err(Refusal::field("note", format_args!("must have at most {NOTE_CHARS_MAX} characters")));
    }
    let block = Block { buyer, until, note };
    app.block(block.clone()).await?;
    Ok(json(StatusCode::OK, &view(&app, block)))
}

/// Lifts a block.
#[utoipa::path(
    delete, path = "/admin/v1/blocks/{buyer}", tag = "operator",
    params(("buyer" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")),
    responses((status = 204), OfLift), security(("admin_key" = []))
)]
pub async fn lift(_: Operator, State(app): State<Arc<App>>, BuyerPath(buyer): BuyerPath) -> Answer {
    if app.unblock(buyer).await? { Ok(no_content()) } else { Err(Refusal::new(Code::NotFound)) }
}

/// Nobody gets a strike before orders can be paid: it is honest to say 0.
fn view(app: &App, block: Block) -> BlockView {
    BlockView {
        buyer: block.buyer.as_str().to_owned(),
        until: block.until,
        note: block.note,
        strikes: 0,
        strikes_limit: app.settings.strikes.limit,
    }
}
