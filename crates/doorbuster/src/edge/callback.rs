//! `POST /api/v1/payments/{provider}/callback`: where providers tell of money. The bytes are verified as they came; each
//! provider is answered in the form it reads.

use std::pin::pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use rules::wire::Code;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::read_within;
use super::limits::Class;
use super::openapi::problems;
use super::refusal::{Answer, Refusal};
use super::router::enter;
use crate::app::App;
use crate::payment::port::Name;
use crate::payment::providers::{self, NOTIFICATION_BYTES_MAX, Outcome, ProviderName, RefusalCode};
use crate::payment::till::Heeded;
use crate::telemetry::metrics::CallbackOutcome;

problems! {
    Refusals = Malformed SignatureInvalid NotificationStale WrongMerchant NotFound TooLarge Busy Unsure Internal;
}

pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(callback))
}

/// A provider's signed notification. Any 2xx means that it is recorded and may be forgotten; everything else that it is
/// to be sent again. Stripe and the sandbox are refused with a problem document, Alipay and WeChat Pay in their own form.
#[utoipa::path(
    post, path = "/api/v1/payments/{provider}/callback", tag = "provider", operation_id = "payment_callback",
    params(("provider" = String, Path, description = "`stripe`, `alipay`, `wechat` or `sandbox`, where set up.")),
    request_body(content = serde_json::Value, content_type = "application/json",
        description = "As the provider sends it: JSON, or a form. At most 64 KiB."),
    responses((status = 200, description = "Recorded, or known before."), Refusals)
)]
pub async fn callback(
    State(app): State<Arc<App>>,
    provider: Result<Path<String>, PathRejection>,
    request: Request,
) -> Answer {
    let named = provider.ok().and_then(|Path(provider)| app.port.named(&provider));
    let name = named.ok_or_else(|| Refusal::new(Code::NotFound))?;
    let provider = name.as_str();
    let (parts, body) = request.into_parts();
    let bytes = read(&app, body).await?;
    // Only now: whoever sends a body slowly, and anybody can, keeps no provider out.
    let _place = enter(&app, Class::Callback)?;
    let heard = match app.port.verify(name, &parts.headers, &bytes) {
        Ok(heard) => heard,
        Err(refusal) => {
            note_refusal(&app, provider, &refusal);
            return refused(name, &refusal);
        }
    };
    match app.settle(heard).await {
        Ok(Heeded::Recorded) => {
            app.metrics.callbacks.inc(CallbackOutcome::Recorded);
            Ok(recorded(name))
        }
        Ok(Heeded::TooEarly) => {
            app.metrics.callbacks.inc(CallbackOutcome::TooEarly);
            const SENTENCE: &str =
                "It tells of the return of money that was not told of yet. Nothing happened; send it again.";
            tracing::info!(provider, "a refund was told before its money; it is to be told again");
            not_recorded(name, Refusal::detail(Code::Busy, SENTENCE))
        }
        Err(error) => {
            app.metrics.callbacks.inc(CallbackOutcome::NotDurable);
            not_recorded(name, error.into())
        }
    }
}

/// What is not believed is somebody else's. What the provider signed and we cannot read may tell of money: it is refused,
/// so that it is sent again for days and can be taken by whoever mends it, and somebody must know.
fn note_refusal(app: &App, provider: &str, refusal: &providers::Refusal) {
    let (code, reason) = (refusal.code.as_str(), refusal.sentence);
    if refusal.is_alarming() {
        app.metrics.callbacks.inc(CallbackOutcome::Unreadable);
        tracing::error!(
            provider,
            code,
            reason,
            "a genuine notification cannot be read and may tell of money: look at the provider's console"
        );
    } else {
        app.metrics.callbacks.inc(CallbackOutcome::Refused);
        tracing::warn!(provider, code, reason, "a notification was refused");
    }
}

/// A body that came with its head is read at once. Of the others there may be only so many.
async fn read(app: &App, body: Body) -> Result<Bytes, Refusal> {
    let mut reading = pin!(read_within(body, NOTIFICATION_BYTES_MAX, app));
    if let Some(read) = reading.as_mut().now_or_never() {
        return read;
    }
    let _unread = enter(app, Class::Unread)?;
    reading.await
}

fn recorded(name: Name) -> Response {
    match name {
        Name::Sandbox => StatusCode::OK.into_response(),
        Name::Real(name) => reply(name, Outcome::Recorded),
    }
}

/// Alipay and WeChat Pay read their own words only; for the others, and for people, a problem document says more.
fn refused(name: Name, refusal: &providers::Refusal) -> Answer {
    match name {
        Name::Real(name @ (ProviderName::Alipay | ProviderName::Wechat)) => {
            Ok(reply(name, Outcome::Refused(refusal)))
        }
        Name::Sandbox | Name::Real(ProviderName::Stripe) => {
            let code = match refusal.code {
                RefusalCode::SignatureInvalid | RefusalCode::UnknownCertificate => Code::SignatureInvalid,
                RefusalCode::Stale => Code::NotificationStale,
                RefusalCode::WrongMerchant => Code::WrongMerchant,
                RefusalCode::Malformed => Code::Malformed,
                RefusalCode::TooLarge => Code::TooLarge,
            };
            Err(Refusal::detail(code, refusal.sentence))
        }
    }
}

fn not_recorded(name: Name, refusal: Refusal) -> Answer {
    match name {
        Name::Real(name @ (ProviderName::Alipay | ProviderName::Wechat)) => {
            Ok(reply(name, Outcome::NotDurable))
        }
        Name::Sandbox | Name::Real(ProviderName::Stripe) => Err(refusal),
    }
}

fn reply(name: ProviderName, outcome: Outcome<'_>) -> Response {
    let reply = name.reply(outcome);
    let status = StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = [(CONTENT_TYPE, reply.content_type), (CACHE_CONTROL, "no-store")];
    (status, headers, Body::from(reply.body)).into_response()
}
