//! Buyers who get no passes for a time: blocked by hand, or by their strikes.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, State};
use http::StatusCode;
use http::request::Parts;
use rules::buyer::BuyerId;
use rules::strike::{Cause, standing};
use rules::wire::{
    BlockRequest, BlockView, Code, MarksView, Page, StrikeCause, StrikeLifter, StrikeRequest, StrikeView,
};
use serde::Deserialize;

use super::refusals::{OfCreate, OfLift, OfList, OfLook, OfPut};
use super::repeat::{IdempotencyKey, Keyed};
use super::sales::no_content;
use super::{Operator, OperatorBody, page_limit, told};
use crate::app::App;
use crate::edge::extract::QueryOf;
use crate::edge::refusal::{Answer, Refusal, json};
use crate::ledger::Block;
use crate::ledger::money::{Candidate, Lifter, StrikeRow};

/// Longest note, in characters.
const NOTE_CHARS_MAX: usize = 1_000;

/// Most strikes of a buyer's history that are shown.
const HISTORY_MAX: u32 = 200;

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

/// `/blocks/{buyer}/strikes/{no}`. What can be neither buyer nor number names nothing: `404`.
#[derive(Clone, Debug)]
pub struct StrikePath {
    buyer: BuyerId,
    no: u64,
}

impl FromRequestParts<Arc<App>> for StrikePath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let not_found = || Refusal::new(Code::NotFound);
        let Path((buyer, no)) =
            Path::<(String, String)>::from_request_parts(parts, app).await.map_err(|_| not_found())?;
        match (BuyerId::parse(&buyer), no.parse()) {
            (Ok(buyer), Ok(no)) => Ok(Self { buyer, no }),
            _ => Err(not_found()),
        }
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

/// Buyers who get no passes now, by hand or by strikes, in the order of their names. A page may hold fewer than its
/// limit and still have a next one.
#[utoipa::path(
    get, path = "/admin/v1/blocks", tag = "operator", params(BlockList),
    responses((status = 200, body = Page<BlockView>), OfList), security(("admin_key" = []))
)]
pub async fn list(_: Operator, State(app): State<Arc<App>>, QueryOf(query): QueryOf<BlockList>) -> Answer {
    let limit = page_limit(query.limit.as_deref())?;
    let after = told(query.cursor.as_deref()).map(str::to_owned);
    let (now, policy) = (app.clock.now(), app.roster.policy());
    let times = (now, policy.matters_since(now));
    let (candidates, more) = app.ledger.block_candidates(times, policy.limit, after, limit).await?;
    let next_cursor = candidates.last().filter(|_| more).map(|last| last.buyer.as_str().to_owned());
    let blocked = |candidate: Candidate| {
        let standing = app.roster.standing(&candidate.buyer, now);
        Some(BlockView {
            buyer: candidate.buyer.as_str().to_owned(),
            until: standing.blocked_until?,
            note: candidate.note,
            strikes: standing.strikes,
            strikes_limit: standing.limit,
        })
    };
    let items: Vec<BlockView> = candidates.into_iter().filter_map(blocked).collect();
    Ok(json(StatusCode::OK, &Page { items, next_cursor }))
}

/// A buyer's block and strikes with their history. `404` for a buyer who has neither.
#[utoipa::path(
    get, path = "/admin/v1/blocks/{buyer}", tag = "operator",
    params(("buyer" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")),
    responses((status = 200, body = MarksView), OfLook), security(("admin_key" = []))
)]
pub async fn get(_: Operator, State(app): State<Arc<App>>, BuyerPath(buyer): BuyerPath) -> Answer {
    let marks = marks_of(&app, buyer).await?;
    if marks.until.is_none() && marks.history.is_empty() {
        return Err(Refusal::new(Code::NotFound));
    }
    Ok(json(StatusCode::OK, &marks))
}

/// Blocks a buyer by hand until a time; an earlier block by hand is replaced. The later end wins, of this block and of
/// one by strikes.
#[utoipa::path(
    put, path = "/admin/v1/blocks/{buyer}", tag = "operator",
    params(("buyer" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")),
    request_body = BlockRequest,
    responses((status = 200, body = MarksView), OfPut), security(("admin_key" = []))
)]
pub async fn put(
    _: Operator,
    State(app): State<Arc<App>>,
    buyer: Result<Path<String>, PathRejection>,
    OperatorBody(BlockRequest { until, note }): OperatorBody<BlockRequest>,
) -> Answer {
    let buyer = parse_buyer(buyer)?;
    if until <= app.clock.now() {
        return Err(Refusal::field("until", "must lie ahead"));
    }
    check_note(note.as_deref())?;
    app.block(Block { buyer: buyer.clone(), until, note }).await?;
    Ok(json(StatusCode::OK, &marks_of(&app, buyer).await?))
}

/// Lets a buyer in again: ends the block by hand, and, if the strikes block, lifts them all. Strikes that do not block
/// stay. `404` when the buyer is not blocked.
#[utoipa::path(
    delete, path = "/admin/v1/blocks/{buyer}", tag = "operator",
    params(("buyer" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$")),
    responses((status = 204), OfLift), security(("admin_key" = []))
)]
pub async fn lift(_: Operator, State(app): State<Arc<App>>, BuyerPath(buyer): BuyerPath) -> Answer {
    if app.unblock(buyer).await? { Ok(no_content()) } else { Err(Refusal::new(Code::NotFound)) }
}

/// Gives a buyer a strike.
#[utoipa::path(
    post, path = "/admin/v1/blocks/{buyer}/strikes", tag = "operator",
    params(
        ("buyer" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$"),
        IdempotencyKey,
    ),
    request_body = StrikeRequest,
    responses((status = 201, body = StrikeView), OfCreate), security(("admin_key" = []))
)]
pub async fn strike(
    _: Operator,
    State(app): State<Arc<App>>,
    buyer: Result<Path<String>, PathRejection>,
    keyed: Keyed,
    OperatorBody(StrikeRequest { note }): OperatorBody<StrikeRequest>,
) -> Answer {
    let buyer = parse_buyer(buyer)?;
    check_note(note.as_deref())?;
    let answer = move |row: &StrikeRow| keyed.answer(StatusCode::CREATED, &strike_view(row));
    let row = app.add_strike(buyer, note, answer).await?;
    Ok(json(StatusCode::CREATED, &strike_view(&row)))
}

/// Lifts one strike by its number in the buyer's history. It stays there as lifted. `404` when it was lifted before.
#[utoipa::path(
    delete, path = "/admin/v1/blocks/{buyer}/strikes/{no}", tag = "operator",
    params(
        ("buyer" = String, Path, min_length = 1, max_length = 128, pattern = r"^[^\x00-\x1f\x7f-\x9f]*$"),
        ("no" = u64, Path, minimum = 1),
    ),
    responses((status = 204), OfLift), security(("admin_key" = []))
)]
pub async fn lift_strike(
    _: Operator,
    State(app): State<Arc<App>>,
    StrikePath { buyer, no }: StrikePath,
) -> Answer {
    if app.lift_strike(buyer, no).await? { Ok(no_content()) } else { Err(Refusal::new(Code::NotFound)) }
}

fn parse_buyer(path: Result<Path<String>, PathRejection>) -> Result<BuyerId, Refusal> {
    let Path(text) = path.map_err(|_| Refusal::field("buyer", "must be UTF-8, each byte as %XX"))?;
    BuyerId::parse(&text).map_err(|error| Refusal::field("buyer", error))
}

fn check_note(note: Option<&str>) -> Result<(), Refusal> {
    let Some(note) = note else { return Ok(()) };
    if note.chars().count() > NOTE_CHARS_MAX {
        return Err(Refusal::field("note", format_args!("must have at most {NOTE_CHARS_MAX} characters")));
    }
    if note.contains('\0') {
        return Err(Refusal::field("note", "must not contain the character U+0000"));
    }
    Ok(())
}

/// From the ledger, not from memory: what an operator sees is the truth.
async fn marks_of(app: &App, buyer: BuyerId) -> Result<MarksView, Refusal> {
    let (now, policy) = (app.clock.now(), app.roster.policy());
    let record = app.ledger.record_of(buyer.clone(), policy.matters_since(now)).await?;
    let block = app.ledger.block_of(buyer.clone(), now).await?;
    let history = app.ledger.strikes_of(buyer.clone(), HISTORY_MAX).await?;
    let standing = standing(policy, &record.strikes, record.operator_block_until, now);
    Ok(MarksView {
        buyer: buyer.as_str().to_owned(),
        until: standing.blocked_until,
        by_hand_until: block.as_ref().map(|block| block.until),
        note: block.and_then(|block| block.note),
        strikes: standing.strikes,
        strikes_limit: standing.limit,
        next_decay_at: standing.next_decay_at,
        history: history.iter().map(strike_view).collect(),
    })
}

fn strike_view(row: &StrikeRow) -> StrikeView {
    let (cause, order_id) = match row.strike.cause {
        Cause::Unpaid(order) => (StrikeCause::Unpaid, Some(order)),
        Cause::Operator => (StrikeCause::Operator, None),
    };
    StrikeView {
        no: row.no,
        at: row.strike.at,
        cause,
        order_id,
        note: row.note.clone(),
        lifted_at: row.strike.lifted_at,
        lifted_by: row.lifted_by.map(|lifter| match lifter {
            Lifter::Operator => StrikeLifter::Operator,
            Lifter::LateMoney => StrikeLifter::LateMoney,
        }),
    }
}
