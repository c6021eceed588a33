//! The sandbox over HTTP: its page, what the page reads, and the call that tells it what its buyer does. Where the sandbox
//! does not serve, there is nothing here. No bearer: the payment's id is the key, and no money is behind it.

use std::sync::{Arc, LazyLock};

use aws_lc_rs::digest::{SHA256, digest};
use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, StatusCode};
use rules::id::PaymentId;
use rules::wire::Code;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::extract::{IdPath, JsonBody};
use super::openapi::problems;
use super::refusal::{Answer, Refusal, json};
use crate::app::App;
use crate::payment::sandbox::{Act, ActAnswer, Acted, DELAY_MS_MAX, SandboxPayment, TIMES_MAX};

problems! {
    ActRefusals = Malformed NotFound TooLarge UnsupportedMediaType InvalidRequest TooFast Internal Busy;
    SeeRefusals = NotFound TooFast Internal Busy;
}

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

static PAGE: LazyLock<Bytes> = LazyLock::new(|| {
    include_str!("page.html").replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT).into()
});

/// For those who come with an old link.
static UNKNOWN: LazyLock<Bytes> =
    LazyLock::new(|| include_str!("unknown.html").replace("/*STYLE*/", STYLE).into());

/// Allows these very bytes of style and script and nothing else.
static POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| {
    let policy = format!(
        "default-src 'none'; style-src '{}'; script-src '{}'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
        hash(STYLE),
        hash(SCRIPT)
    );
    HeaderValue::from_str(&policy).ok()
});

fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(digest(&SHA256, text.as_bytes())))
}

/// The calls with their documentation.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(act, see))
}

/// The page.
pub fn pages() -> Router<Arc<App>> {
    Router::new().route("/sandbox/pay/{payment}", get(page))
}

/// Tells the sandbox what its buyer does. It sends its signed callback `times` times, `delay_ms` late. To pay again is a
/// second capture, which goes back by itself. Also after the order closed: that is what it is for.
#[utoipa::path(
    post, path = "/sandbox/payments/{payment}", tag = "sandbox", operation_id = "act_in_sandbox",
    params(("payment" = PaymentId, Path)), request_body = Act,
    responses(
        (status = 200, description = "Sent; `answers` says what our callback answered.", body = Acted),
        (status = 202, description = "Under way: it is sent when `delay_ms` is over.", body = Acted),
        ActRefusals,
    )
)]
pub async fn act(
    State(app): State<Arc<App>>,
    IdPath(id): IdPath<PaymentId>,
    JsonBody(act): JsonBody<Act>,
) -> Answer {
    if !(1..=TIMES_MAX).contains(&act.times) {
        return Err(Refusal::field("times", format_args!("must lie between 1 and {TIMES_MAX}")));
    }
    if act.delay_ms > DELAY_MS_MAX {
        return Err(Refusal::field("delay_ms", format_args!("must be at most {DELAY_MS_MAX}")));
    }
    match app.act_in_sandbox(id, act).await? {
        ActAnswer::Done(acted) => {
            let status = if act.delay_ms == 0 { StatusCode::OK } else { StatusCode::ACCEPTED };
            Ok(json(status, &acted))
        }
        ActAnswer::Busy => Err(Refusal::new(Code::Busy)),
        ActAnswer::NotFound => Err(Refusal::new(Code::NotFound)),
    }
}

/// How a payment at the sandbox stands: what its page shows.
#[utoipa::path(
    get, path = "/sandbox/payments/{payment}", tag = "sandbox", operation_id = "see_in_sandbox",
    params(("payment" = PaymentId, Path)), responses((status = 200, body = SandboxPayment), SeeRefusals)
)]
pub async fn see(State(app): State<Arc<App>>, IdPath(id): IdPath<PaymentId>) -> Answer {
    let seen = app.see_sandbox_payment(id).await?.ok_or_else(|| Refusal::new(Code::NotFound))?;
    Ok(json(StatusCode::OK, &seen))
}

/// A person who follows an old link gets a page, a program the problem.
async fn page(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    payment: Result<IdPath<PaymentId>, Refusal>,
) -> Answer {
    let known = match payment {
        Ok(IdPath(id)) => app.see_sandbox_payment(id).await?.is_some(),
        Err(_) => false,
    };
    match (known, wants_html(&headers)) {
        (true, _) => Ok(html(StatusCode::OK, &PAGE)),
        (false, true) => Ok(html(StatusCode::NOT_FOUND, &UNKNOWN)),
        (false, false) => Err(Refusal::new(Code::NotFound)),
    }
}

fn wants_html(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|line| line.to_str().ok());
    accepts.flat_map(|line| line.split(',')).any(|kind| kind.trim().starts_with("text/html"))
}

fn html(status: StatusCode, page: &Bytes) -> Response {
    let headers = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CACHE_CONTROL, "no-store")];
    let mut response: Response = (status, headers, page.clone()).into_response();
    response.headers_mut().extend(POLICY.clone().map(|policy| (CONTENT_SECURITY_POLICY, policy)));
    response
}
