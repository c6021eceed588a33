//! Audits as their operator asks for and reads them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use http::StatusCode;
use rules::id::AuditId;
use rules::wire::{AuditRequest, AuditView, Code, Page};
use serde::Deserialize;

use super::refusals::{OfAudit, OfList, OfLook};
use super::repeat::IdempotencyKey;
use super::{Operator, OptionalBody, number_cursor, page_limit};
use crate::app::App;
use crate::auditor::scope_of;
use crate::edge::extract::{IdPath, QueryOf};
use crate::edge::refusal::{Answer, Refusal, json};

/// How long a request waits for its audit. A clean one rarely takes longer; one with a doubt looks twice, and is then to
/// be asked for again by its id.
const PATIENCE: Duration = Duration::from_secs(2);

/// Compares gate, journal, ledger, money and events, and with `repair` mends what is proven safe.
///
/// Answers `200` with the report, or `202` while it runs: then `clean` is null, and the report is at
/// `GET /admin/v1/audit/{audit}` when it is done. A doubt about the gate takes two looks a few seconds apart.
#[utoipa::path(
    post, path = "/admin/v1/audit", tag = "operator", params(IdempotencyKey), request_body = Option<AuditRequest>,
    responses((status = 200, body = AuditView), (status = 202, body = AuditView), OfAudit),
    security(("admin_key" = []))
)]
pub async fn make(
    _: Operator,
    State(app): State<Arc<App>>,
    OptionalBody(request): OptionalBody<AuditRequest>,
) -> Answer {
    if let Some(field) = app.ledger.unknown_in(scope_of(&request)).await? {
        return Err(Refusal::field(field, "names nothing that there is"));
    }
    let begun = app.begin_audit(request).ok_or_else(|| Refusal::new(Code::Busy))?;
    match tokio::time::timeout(PATIENCE, begun.ended).await {
        Ok(Ok(view)) => Ok(json(StatusCode::OK, &view)),
        Ok(Err(_)) | Err(_) => Ok(json(StatusCode::ACCEPTED, &begun.view)),
    }
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct AuditList {
    /// 1 to 200, 50 when not given.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200, default = 50)]
    limit: Option<String>,
    #[param(pattern = "^[0-9]{0,19}$")]
    cursor: Option<String>,
}

/// Audits that were made, newest first; the last 1,000 are kept in the ledger.
#[utoipa::path(
    get, path = "/admin/v1/audit", tag = "operator", params(AuditList),
    responses((status = 200, body = Page<AuditView>), OfList), security(("admin_key" = []))
)]
pub async fn list(_: Operator, State(app): State<Arc<App>>, QueryOf(query): QueryOf<AuditList>) -> Answer {
    let limit = page_limit(query.limit.as_deref())?;
    let (items, next) = app.audits(number_cursor(query.cursor.as_deref())?, limit).await?;
    Ok(json(StatusCode::OK, &Page { items, next_cursor: next.map(|no| no.to_string()) }))
}

/// One audit, running or ended.
#[utoipa::path(
    get, path = "/admin/v1/audit/{audit}", tag = "operator", params(("audit" = AuditId, Path)),
    responses((status = 200, body = AuditView), OfLook), security(("admin_key" = []))
)]
pub async fn get(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<AuditId>) -> Answer {
    let view = app.audit_view(id).await?.ok_or_else(|| Refusal::new(Code::NotFound))?;
    Ok(json(StatusCode::OK, &view))
}
