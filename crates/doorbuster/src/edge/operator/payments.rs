//! Payments and refunds as operators see and steer them. Money itself moves in the background; the answer says how it
//! stands.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use rules::id::{OrderId, PaymentId};
use rules::money::Money;
use rules::payment::State as PaymentState;
use rules::wire::{Code, OperatorOrder, Page, PaymentView, RefundRequest};
use serde::Deserialize;

use super::orders::operator_order;
use super::refusals::{OfList, OfLook, OfRefund, OfRetry};
use super::repeat::IdempotencyKey;
use super::{Operator, OptionalBody, number_cursor, page_limit, told};
use crate::app::App;
use crate::edge::extract::{IdPath, QueryOf, parse_named};
use crate::edge::refusal::{Answer, Refusal, json};
use crate::ledger::LedgerResult;
use crate::ledger::money::{Payment, RefundAsked};

/// What to look for; everything that is given must match.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct PaymentQuery {
    #[param(pattern = "^([0-7][0-9a-hjkmnp-tv-zA-HJKMNP-TV-Z]{25})?$")]
    order: Option<String>,
    #[param(pattern = "^(started|closed|captured|applied|refund_due|refunding|refunded|refund_failed)?$")]
    state: Option<String>,
    /// 1 to 200, 50 when not given.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200, default = 50)]
    limit: Option<String>,
    #[param(pattern = "^[0-9]{0,19}$")]
    cursor: Option<String>,
}

/// Payments that match, newest first.
#[utoipa::path(
    get, path = "/admin/v1/payments", tag = "operator", params(PaymentQuery),
    responses((status = 200, body = Page<PaymentView>), OfList), security(("admin_key" = []))
)]
pub async fn list(_: Operator, State(app): State<Arc<App>>, QueryOf(query): QueryOf<PaymentQuery>) -> Answer {
    let limit = page_limit(query.limit.as_deref())?;
    let before = number_cursor(query.cursor.as_deref())?;
    let order: Option<OrderId> =
        told(query.order.as_deref()).map(|text| parse_named("order", text)).transpose()?;
    let state = |text: &str| {
        let states = PaymentState::ALL.map(PaymentState::as_str).join(", ");
        PaymentState::parse(text)
            .ok_or_else(|| Refusal::field("state", format_args!("must be one of: {states}")))
    };
    let state = told(query.state.as_deref()).map(state).transpose()?;
    let payments = match order {
        Some(order) => of_order(&app, order, state, before, limit).await?,
        None => app.ledger.payment_page(state, before, limit).await?,
    };
    let is_full = u32::try_from(payments.len()).unwrap_or(u32::MAX) == limit;
    let next_cursor = payments.last().filter(|_| is_full).map(|payment| payment.no.to_string());
    let items: Vec<_> = payments.iter().map(view).collect();
    Ok(json(StatusCode::OK, &Page { items, next_cursor }))
}

/// An order has few payments: all are read, and cut here.
async fn of_order(
    app: &App,
    order: OrderId,
    state: Option<PaymentState>,
    before: Option<u64>,
    limit: u32,
) -> LedgerResult<Vec<Payment>> {
    let mut payments = app.ledger.payments_of(order).await?;
    payments.reverse();
    payments.retain(|payment| {
        state.is_none_or(|state| payment.status.state == state)
            && before.is_none_or(|before| payment.no < before)
    });
    payments.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(payments)
}

/// One payment.
#[utoipa::path(
    get, path = "/admin/v1/payments/{payment}", tag = "operator", params(("payment" = PaymentId, Path)),
    responses((status = 200, body = PaymentView), OfLook), security(("admin_key" = []))
)]
pub async fn get(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<PaymentId>) -> Answer {
    let payment = app.ledger.payment(id).await?.ok_or_else(|| Refusal::new(Code::NotFound))?;
    Ok(json(StatusCode::OK, &view(&payment)))
}

/// Returns the money of a paid order, or tries again after its provider refused. The order is `refunding` until the
/// provider has returned the money, then `refunded`, and lets go of its units. Again is harmless.
#[utoipa::path(
    post, path = "/admin/v1/orders/{order}/refund", tag = "operator",
    params(
        ("order" = OrderId, Path),
        IdempotencyKey,
    ),
    request_body = Option<RefundRequest>,
    responses((status = 200, body = OperatorOrder), OfRefund), security(("admin_key" = []))
)]
pub async fn refund(
    _: Operator,
    State(app): State<Arc<App>>,
    IdPath(id): IdPath<OrderId>,
    OptionalBody(RefundRequest { restock }): OptionalBody<RefundRequest>,
) -> Answer {
    match app.refund_order(id, restock).await? {
        RefundAsked::Begun { order, .. } | RefundAsked::Before(order) => {
            tracing::info!(order_id = %id, restock, "refund asked");
            Ok(json(StatusCode::OK, &operator_order(&order)))
        }
        RefundAsked::NotRefundable(state) => {
            let detail = format!("An order that is {} has no money to return.", state.as_str());
            Err(Refusal::detail(Code::NotRefundable, detail))
        }
        RefundAsked::NotFound => Err(Refusal::new(Code::NotFound)),
    }
}

/// Tries again to return money that its provider refused to return.
#[utoipa::path(
    post, path = "/admin/v1/payments/{payment}/retry", tag = "operator",
    params(("payment" = PaymentId, Path), IdempotencyKey),
    responses((status = 200, body = PaymentView), OfRetry), security(("admin_key" = []))
)]
pub async fn retry(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<PaymentId>) -> Answer {
    if let Some(payment) = app.retry_refund(id).await? {
        return Ok(json(StatusCode::OK, &view(&payment)));
    }
    let payment = app.ledger.payment(id).await?.ok_or_else(|| Refusal::new(Code::NotFound))?;
    match payment.status.state {
        // Somebody was faster.
        PaymentState::RefundDue | PaymentState::Refunding | PaymentState::Refunded => {
            Ok(json(StatusCode::OK, &view(&payment)))
        }
        state @ (PaymentState::Started
        | PaymentState::Closed
        | PaymentState::Captured
        | PaymentState::Applied
        | PaymentState::RefundFailed) => {
            let detail = format!("A payment that is {} has no refund to try again.", state.as_str());
            Err(Refusal::detail(Code::NotRefundable, detail))
        }
    }
}

fn view(payment: &Payment) -> PaymentView {
    PaymentView {
        id: payment.id,
        order_id: payment.order,
        provider: payment.provider.clone(),
        reference: payment.reference.clone(),
        capture_id: payment.capture_id.clone(),
        state: payment.status.state,
        reason: payment.status.reason,
        money: payment.money,
        pay_url: payment.pay_url.clone(),
        started_at: payment.started_at,
        captured_at: payment.captured_at,
        ended_at: payment.ended_at,
        restock: payment.restock,
        attempts: payment.attempts,
        next_try_at: payment.next_try_at,
        problem: payment.problem.clone(),
        back_elsewhere: payment.back_elsewhere.map(|amount| Money { amount, ..payment.money }),
    }
}
