//! Answers as bytes. Problem documents of the hot path are prepared; everything the edge says carries the same
//! security headers, set in one place.

use std::sync::LazyLock;

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY,
    RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{Either, Full};
use rules::id::{OfferId, OrderId};
use rules::time::UnixMs;
use rules::wire::{Code, Problem};

use super::message;

/// What the edge sends: prepared bytes, or whatever a route streams.
pub type Body = Either<Full<Bytes>, axum::body::Body>;

pub const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");
pub const JSON: HeaderValue = HeaderValue::from_static("application/json");
const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// Sent with every answer: nothing of ours is framed, sniffed or told to others. Pages with scripts of their own set
/// their own policy.
const SECURITY_HEADERS: [(HeaderName, HeaderValue); 3] = [
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
];

/// What nearly every answer carries: a copy is cheaper than putting each in its place again.
static USUAL_HEADERS: LazyLock<HeaderMap> = LazyLock::new(|| {
    // Room for what single answers add.
    let mut headers = HeaderMap::with_capacity(8);
    headers.insert(CONTENT_TYPE, JSON);
    headers.insert(CACHE_CONTROL, NO_STORE);
    secure(&mut headers);
    headers
});

/// A problem document with what it says beyond its code.
#[derive(Clone, Debug, Default)]
pub struct Extra {
    /// A sentence about this very case; the code's own sentence stands when it is empty.
    pub detail: Option<String>,
    pub order_id: Option<OrderId>,
    pub until: Option<UnixMs>,
    pub retry_after_ms: Option<u64>,
    pub field: Option<String>,
    pub available: Option<u32>,
}

/// Whole seconds for `Retry-After`, never zero: a client told "0" comes back at once.
fn retry_after_s(ms: u64) -> HeaderValue {
    HeaderValue::from(ms.div_ceil(1_000).max(1))
}

/// The document of a refusal.
#[must_use]
pub fn problem(code: Code, extra: Extra) -> Response<Body> {
    let needs_retry_after = matches!(code.status(), 425 | 429 | 503) || code == Code::NotYet;
    let retry_after_ms = extra.retry_after_ms.or_else(|| needs_retry_after.then_some(1_000));
    let document = Problem {
        kind: format!("/api/docs#{}", code.as_str()),
        title: code.title().to_owned(),
        status: code.status(),
        detail: extra.detail.unwrap_or_else(|| code.title().to_owned()),
        code: code.as_str().to_owned(),
        order_id: extra.order_id,
        until: extra.until,
        retry_after_ms,
        field: extra.field,
        available: extra.available,
    };
    let json = serde_json::to_vec(&document).unwrap_or_default();
    let mut response = bytes(status(code), PROBLEM_JSON, json.into());
    if let Some(ms) = retry_after_ms {
        response.headers_mut().insert(RETRY_AFTER, retry_after_s(ms));
    }
    if code == Code::Unauthorized {
        response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

#[must_use]
pub fn refuse(code: Code) -> Response<Body> {
    problem(code, Extra::default())
}

fn status(code: Code) -> StatusCode {
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

/// JSON that must not be cached.
#[must_use]
pub fn json(status: StatusCode, value: &impl serde::Serialize) -> Response<Body> {
    bytes(status, JSON, serde_json::to_vec(value).unwrap_or_default().into())
}

/// An order's answer with its address.
#[must_use]
pub fn order(status: StatusCode, order: &rules::wire::OrderView) -> Response<Body> {
    let json = serde_json::to_vec(order).unwrap_or_default().into();
    order_json(status, order.id, order.offer_id, json)
}

/// The same with a document that is already written.
#[must_use]
pub fn order_json(status: StatusCode, id: OrderId, offer: OfferId, json: Bytes) -> Response<Body> {
    let mut response = bytes(status, JSON, json);
    let location = format!("/api/v1/orders/{id}?offer={offer}");
    if let Ok(location) = HeaderValue::from_maybe_shared(Bytes::from(location)) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// Bytes that must not be cached.
#[must_use]
pub fn bytes(status: StatusCode, content_type: HeaderValue, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::new(body)));
    *response.status_mut() = status;
    *response.headers_mut() = usual_headers(content_type);
    response
}

/// What nearly every answer carries.
#[must_use]
pub fn usual_headers(content_type: HeaderValue) -> HeaderMap {
    let mut headers = USUAL_HEADERS.clone();
    headers.insert(CONTENT_TYPE, content_type);
    headers
}

/// Adds the security headers that the answer has not set itself.
pub fn secure(headers: &mut HeaderMap) {
    for (name, value) in &SECURITY_HEADERS {
        if !headers.contains_key(name) {
            headers.insert(name, value.clone());
        }
    }
}

/// A refusal that is the same for everybody, prepared as bytes: sold out is said a hundred thousand times.
#[derive(Debug)]
pub struct Prepared {
    headers: HeaderMap,
    pub status: StatusCode,
    /// Status, headers and length as the shortcut sends them.
    head: Vec<u8>,
    /// Kept for the life of the process: bytes that are counted would be a meeting point of all threads.
    body: &'static [u8],
}

impl Prepared {
    #[must_use]
    pub fn new(code: Code) -> Self {
        let (parts, body) = refuse(code).into_parts();
        let body: &'static [u8] = Box::leak(whole(body).to_vec().into_boxed_slice());
        let mut head = message::head(parts.status, &parts.headers);
        message::length(&mut head, body);
        Self { headers: parts.headers, status: parts.status, head, body }
    }

    #[inline]
    #[must_use]
    pub fn response(&self) -> Response<Body> {
        let mut response = Response::new(Either::Left(Full::new(Bytes::from_static(self.body))));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response
    }

    /// The same as the bytes of a message.
    #[inline]
    pub fn write(&self, message: &mut Vec<u8>, now: UnixMs) {
        message.extend_from_slice(&self.head);
        message::end(message, now, self.body);
    }
}

/// A body that is all there, as those of tries are.
#[must_use]
pub fn whole(body: Body) -> Bytes {
    use http_body_util::BodyExt as _;
    futures_util::FutureExt::now_or_never(body.collect())
        .and_then(Result::ok)
        .map(http_body_util::Collected::to_bytes)
        .unwrap_or_default()
}
