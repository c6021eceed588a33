//! `GET /images/{name}`: our copies of the offers' images. A name is the hash of its bytes, so what it names never
//! changes and may be kept for ever.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue};
use http::{HeaderMap, StatusCode};
use rules::wire::Code;

use super::cached;
use super::refusal::{Answer, Refusal};
use crate::app::App;

const FOR_EVER: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/images/{name}", get(image))
}

async fn image(State(app): State<Arc<App>>, Path(name): Path<String>, headers: HeaderMap) -> Answer {
    let image = app.images.read(&name).await.ok_or_else(|| Refusal::new(Code::NotFound))?;
    let etag = format!("\"{name}\"");
    let mut response = Response::new(Body::empty());
    if cached::is_known(&headers, &etag) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(image.media_type));
        *response.body_mut() = Body::from(image.bytes);
    }
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, FOR_EVER);
    headers.extend(HeaderValue::try_from(etag).ok().map(|etag| (ETAG, etag)));
    Ok(response)
}
