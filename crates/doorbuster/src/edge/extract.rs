//! What handlers take out of a request: who asks, what about, and a body that is as it must be. Every way a request can
//! be wrong ends here with its own code.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use rules::buyer::BuyerId;
use rules::object::Object;
use rules::wire::Code;
use secrecy::ExposeSecret as _;
use serde::de::DeserializeOwned;
use subtle::ConstantTimeEq as _;

use super::auth::Bearer;
use super::body;
use super::refusal::Refusal;
use crate::app::App;

/// The buyer of a valid token, found out once per request before it is routed.
#[derive(Clone, Debug)]
pub struct KnownBuyer(pub Option<Bearer>);

/// A call that only a buyer with a valid token may make.
#[derive(Clone, Debug)]
pub struct Buyer(pub BuyerId);

impl FromRequestParts<Arc<App>> for Buyer {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Refusal> {
        let known = parts.extensions.get::<KnownBuyer>().and_then(|known| known.0.clone());
        known.map(|bearer| Self(bearer.buyer)).ok_or_else(|| Refusal::new(Code::Unauthorized))
    }
}

/// A call that only an operator with the admin key may make.
#[derive(Clone, Copy, Debug)]
pub struct Operator;

impl FromRequestParts<Arc<App>> for Operator {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        if has_admin_key(&parts.headers, app) { Ok(Self) } else { Err(Refusal::new(Code::Unauthorized)) }
    }
}

/// Compared in constant time; without a key set, nobody is an operator.
#[must_use]
pub fn has_admin_key(headers: &HeaderMap, app: &App) -> bool {
    let Some(key) = &app.settings.admin_key else { return false };
    bearer(headers).is_some_and(|token| token.as_bytes().ct_eq(key.expose_secret().as_bytes()).into())
}

/// The token of `Authorization: Bearer …`. Of two such headers none is believed: whoever checked before us may have read
/// the other one.
#[must_use]
pub fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let (value, another) = (values.next()?, values.next());
    let (scheme, token) = value.to_str().ok().filter(|_| another.is_none())?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// A JSON body that fits `T`; a misfit names its field.
#[derive(Clone, Debug)]
pub struct JsonBody<T>(pub T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for JsonBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Refusal> {
        let bytes = read_bytes(request, app).await?;
        parse_json(&bytes).map(Self)
    }
}

/// JSON that may be left out: without a body everything is as usual.
pub async fn read_optional<T>(request: Request, limit: usize, app: &App) -> Result<T, Refusal>
where
    T: DeserializeOwned + Default,
{
    let is_json = body::is_json(request.headers());
    let bytes = read_within(request.into_body(), limit, app).await?;
    match (bytes.is_empty(), is_json) {
        (true, _) => Ok(T::default()),
        (false, true) if bytes.trim_ascii() == b"null" => Ok(T::default()),
        (false, true) => parse_json(&bytes),
        (false, false) => Err(Refusal::new(Code::UnsupportedMediaType)),
    }
}

/// The whole JSON body as bytes, within the limits of size and time.
pub async fn read_bytes(request: Request, app: &App) -> Result<bytes::Bytes, Refusal> {
    if !body::is_json(request.headers()) {
        return Err(Refusal::new(Code::UnsupportedMediaType));
    }
    read_within(request.into_body(), app.settings.limits.body_bytes, app).await
}

/// The whole body, whatever it is, of at most `limit` bytes and within the limit of time.
pub async fn read_within(body: axum::body::Body, limit: usize, app: &App) -> Result<bytes::Bytes, Refusal> {
    // Read all the same: a client that is cut off while it still sends would never see the answer.
    let told = hyper::body::Body::size_hint(&body).lower();
    let told_too_large = told > u64::try_from(limit).unwrap_or(u64::MAX);
    let reading = axum::body::to_bytes(body, limit);
    let patience = std::time::Duration::from_secs(app.settings.limits.body_timeout_s.into());
    match tokio::time::timeout(patience, reading).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_too_large(&error) => Err(Refusal::new(Code::TooLarge)),
        Ok(Err(_)) | Err(_) if told_too_large => Err(Refusal::new(Code::TooLarge)),
        Ok(Err(_)) | Err(_) => Err(Refusal::detail(Code::Malformed, "The body did not arrive whole.")),
    }
}

fn is_too_large(error: &axum::Error) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        if error.is::<http_body_util::LengthLimitError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Reads a JSON object; a misfit names its field.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let Object(value) = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if !is_misfit(&inner, bytes) {
            return Refusal::detail(Code::Malformed, inner.to_string());
        }
        match missing_field(&inner.to_string(), &path) {
            Some(field) => Refusal::field(field, "is missing"),
            None if path == "." => Refusal::detail(Code::InvalidRequest, inner.to_string()),
            None => Refusal::field(path, format!("is not as it must be: {inner}")),
        }
    })?;
    reader.end().map_err(|error| Refusal::detail(Code::Malformed, error.to_string()))?;
    Ok(value)
}

/// Whether this is JSON, and only not what was asked for. serde calls some of that a fault of syntax: a number beyond all
/// types, for one.
pub(super) fn is_misfit(error: &serde_json::Error, bytes: &[u8]) -> bool {
    let is_json = || {
        std::str::from_utf8(bytes)
            .is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok())
    };
    error.is_data() || is_json()
}

/// serde reports a missing field at its parent; clients want the field itself.
pub(super) fn missing_field(message: &str, parent: &str) -> Option<String> {
    let name = message.strip_prefix("missing field `")?.split('`').next()?;
    Some(if parent == "." { name.to_owned() } else { format!("{parent}.{name}") })
}

/// One id in the path. What is no id names nothing: `404`.
#[derive(Clone, Copy, Debug)]
pub struct IdPath<T>(pub T);

impl<T: FromStr + Send> FromRequestParts<Arc<App>> for IdPath<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let Path(text) =
            Path::<String>::from_request_parts(parts, app).await.map_err(|_| Refusal::new(Code::NotFound))?;
        text.parse().map(Self).map_err(|_| Refusal::new(Code::NotFound))
    }
}

/// Query parameters that fit `T`.
#[derive(Clone, Debug)]
pub struct QueryOf<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for QueryOf<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Refusal> {
        let query = Query::<T>::from_request_parts(parts, app).await;
        query.map(|Query(value)| Self(value)).map_err(|error| {
            debug_assert_eq!(error.status(), StatusCode::BAD_REQUEST);
            Refusal::detail(Code::InvalidRequest, error.body_text())
        })
    }
}

/// Entries of a list when its reader does not say, and at most.
const PAGE_DEFAULT: u32 = 50;
const PAGE_MAX: u32 = 200;

/// `?limit=`: how many entries a page has.
pub fn page_limit(limit: Option<&str>) -> Result<u32, Refusal> {
    let Some(limit) = limit else { return Ok(PAGE_DEFAULT) };
    let limit: u32 = parse_named("limit", limit)?;
    if (1..=PAGE_MAX).contains(&limit) {
        Ok(limit)
    } else {
        Err(Refusal::field("limit", format_args!("must lie between 1 and {PAGE_MAX}")))
    }
}

/// A value with a name, or `422` that names it.
pub fn parse_named<T: FromStr<Err: Display>>(name: &str, text: &str) -> Result<T, Refusal> {
    text.parse().map_err(|error| Refusal::field(name, error))
}
