//! The one error type of the edge: status, stable code and safe text. Causes are logged here, once.

use axum::response::IntoResponse;
use http::Response;
use rules::sale::FieldError;
use rules::wire::Code;

use super::answer::{self, Body, Extra};
use crate::ledger::LedgerError;

/// A refusal on its way to the client.
#[derive(Clone, Debug)]
pub struct Refusal {
    pub code: Code,
    pub extra: Box<Extra>,
}

impl Refusal {
    #[must_use]
    pub fn new(code: Code) -> Self {
        Self { code, extra: Box::default() }
    }

    #[must_use]
    pub fn with(code: Code, extra: Extra) -> Self {
        Self { code, extra: Box::new(extra) }
    }

    #[must_use]
    pub fn detail(code: Code, detail: impl Into<String>) -> Self {
        Self::with(code, Extra { detail: Some(detail.into()), ..Extra::default() })
    }

    /// `422` that names the field.
    #[must_use]
    pub fn field(field: impl Into<String>, problem: impl std::fmt::Display) -> Self {
        let field = field.into();
        let detail = Some(format!("{field} {problem}"));
        Self::with(Code::InvalidRequest, Extra { detail, field: Some(field), ..Extra::default() })
    }

    #[must_use]
    pub fn into_body_response(self) -> Response<Body> {
        answer::problem(self.code, *self.extra)
    }
}

impl From<FieldError> for Refusal {
    fn from(error: FieldError) -> Self {
        Self::field(error.field, error.problem)
    }
}

impl From<LedgerError> for Refusal {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::Unavailable(reason) => {
                tracing::warn!(%reason, "a request was turned away: the ledger is unavailable");
                Self::new(Code::Busy)
            }
            LedgerError::Unknown(reason) => {
                tracing::error!(%reason, "a request has an unknown outcome");
                Self::new(Code::Unsure)
            }
            LedgerError::NotFollowed(reason) => {
                tracing::warn!(%reason, "a change is in the ledger, but gate and catalogue did not follow");
                Self::detail(
                    Code::Unsure,
                    "It is written down, but not in force yet. Please ask for the same again: that is harmless.",
                )
            }
            LedgerError::Failed(error) => {
                tracing::error!(%error, "a request failed");
                Self::new(Code::Internal)
            }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> axum::response::Response {
        self.into_body_response().map(axum::body::Body::new)
    }
}

/// What a handler returns.
pub type Answer = Result<axum::response::Response, Refusal>;

/// JSON that must not be cached, from a handler.
pub fn json(status: http::StatusCode, value: &impl serde::Serialize) -> axum::response::Response {
    answer::json(status, value).map(axum::body::Body::new)
}
