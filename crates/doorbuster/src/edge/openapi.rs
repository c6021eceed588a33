//! The OpenAPI document, made from the routes, and a page to read it. The refusals in it come from the same list of
//! codes that the answers are made of.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, LOCATION};
use http::{HeaderMap, StatusCode};
use rules::wire::{Code, Problem};
use utoipa::OpenApi as _;
use utoipa::openapi::path::Operation;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::tag::TagBuilder;
use utoipa::openapi::{Content, OpenApi, PathItem, Ref, RefOr, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;

use super::cached;
use super::refusal::Refusal;
use super::router::{buyer_routes, operator_routes};
use crate::app::App;
use crate::catalogue::Rendered;

/// The security scheme of calls that need a buyer's token, as `#[utoipa::path]` names it.
pub const BUYER_TOKEN: &str = "buyer_token";

/// The security scheme of calls that need the admin key, as `#[utoipa::path]` names it.
pub const ADMIN_KEY: &str = "admin_key";

const DOCUMENT_PATH: &str = "/api/openapi.json";
const PAGE_PATH: &str = "/api/docs";
const HTML: &str = "text/html; charset=utf-8";

/// How long the document may be kept, in seconds: it changes with the version only.
const DOCUMENT_MAX_AGE_S: u64 = 60;

/// The page: its own words and table, the calls by Swagger UI, everything from here.
const PAGE: &str = include_str!("openapi/page.html");
const PAGE_STYLE: &str = include_str!("openapi/page.css");
const PAGE_SCRIPT: &str = include_str!("openapi/page.js");

/// What is taken from Swagger UI.
const LIBRARY: [&str; 2] = ["swagger-ui.css", "swagger-ui-bundle.js"];

/// Groups of calls in the order in which they are read: first what every shop needs.
const GROUPS: [(&str, &str); 5] = [
    ("buyer", "What a shop's page calls for its buyer."),
    ("provider", "Where payment providers tell us of money."),
    ("operator", "The shop's side. Needs the admin key."),
    ("demo", "In demo mode only."),
    ("sandbox", "The payment provider that only pretends."),
];

/// The page's scripts and styles are files of ours; pictures may be inline, as its style sheet has them so.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
     connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// The page with a row for every refusal, under the id that the refusal's `type` names.
static PAGE_BYTES: LazyLock<Bytes> = LazyLock::new(|| {
    let mut rows = String::new();
    for code in Code::ALL {
        let (name, status, title) = (code.as_str(), code.status(), code.title());
        // Writing to a `String` cannot fail.
        let _written = writeln!(
            rows,
            "<tr id=\"{name}\"><th scope=\"row\"><code>{name}</code></th><td>{status}</td><td>{title}</td></tr>"
        );
    }
    PAGE.replace("<!--REFUSALS-->", &rows).into()
});

static DOCUMENT: LazyLock<Rendered> = LazyLock::new(|| Rendered::of(&document()));

#[derive(utoipa::OpenApi)]
#[openapi(info(title = "Doorbuster"), components(schemas(Problem)))]
struct Head;

/// The whole document: buyer side and operator side.
#[must_use]
pub fn document() -> OpenApi {
    let routes: OpenApiRouter<Arc<App>> =
        OpenApiRouter::with_openapi(Head::openapi()).merge(buyer_routes()).merge(operator_routes());
    let mut document = routes.into_openapi();
    document.info.description = Some(description());
    let group = |(name, text): (&str, &str)| TagBuilder::new().name(name).description(Some(text)).build();
    document.tags = Some(GROUPS.map(group).into());
    document.paths.paths.values_mut().flat_map(operations).for_each(shorten);
    let components = document.components.get_or_insert_default();
    let scheme = |format: &str, text: &str| {
        let http = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format(format);
        SecurityScheme::Http(http.description(Some(text)).build())
    };
    components.add_security_scheme(BUYER_TOKEN, scheme("JWT", "The shop's token; `sub` is the buyer."));
    components.add_security_scheme(ADMIN_KEY, scheme("key", "The operator's key."));
    document
}

fn operations(path: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, patch, options, head, trace, .. } = path;
    [get, put, post, delete, patch, options, head, trace].into_iter().flatten()
}

/// The first sentence names a call in a list, as plain text; everything that was written about it stays its description.
fn shorten(operation: &mut Operation) {
    let Some(written) = operation.summary.take() else { return };
    let written = written.split_whitespace().collect::<Vec<_>>().join(" ");
    let (first, rest) = written.split_once(". ").unwrap_or((&written, ""));
    operation.summary = Some(first.trim_end_matches('.').replace('`', ""));
    if !rest.is_empty() || first.contains('`') {
        let more = operation.description.take().map(|more| format!("\n\n{more}")).unwrap_or_default();
        operation.description = Some(format!("{written}{more}"));
    }
}

fn description() -> String {
    let mut text = "A flash-sale ordering engine. Times are RFC 3339 in UTC, money is in minor units, ids are text.\n\n\
        Refusals are problem documents (RFC 9457) with a stable `code`:\n\n| code | status | meaning |\n|---|---|---|\n"
        .to_owned();
    for code in Code::ALL {
        // Writing to a `String` cannot fail.
        let _written = writeln!(text, "| `{}` | {} | {} |", code.as_str(), code.status(), code.title());
    }
    text
}

/// The refusals of a call as its documentation shows them: one answer per status, which lists its codes.
#[must_use]
pub fn refusals(codes: &[Code]) -> BTreeMap<String, RefOr<utoipa::openapi::Response>> {
    let mut by_status: BTreeMap<u16, String> = BTreeMap::new();
    for code in codes {
        let text = by_status.entry(code.status()).or_default();
        let gap = if text.is_empty() { "" } else { " " };
        // Writing to a `String` cannot fail.
        let _written = write!(text, "{gap}`{}`: {}", code.as_str(), code.title());
    }
    let answer = |text| {
        let content = Content::new(Some(Ref::from_schema_name("Problem")));
        ResponseBuilder::new().description(text).content("application/problem+json", content).build().into()
    };
    by_status.into_iter().map(|(status, text)| (status.to_string(), answer(text))).collect()
}

/// Names the refusals of calls, for `responses(…)` of `#[utoipa::path]`.
macro_rules! problems {
    ($($name:ident = $($code:ident)+;)+) => {$(
        #[derive(Debug)]
        pub enum $name {}

        impl utoipa::IntoResponses for $name {
            fn responses() -> std::collections::BTreeMap<
                String,
                utoipa::openapi::RefOr<utoipa::openapi::Response>,
            > {
                $crate::edge::openapi::refusals(&[$(rules::wire::Code::$code),+])
            }
        }
    )+};
}
pub(super) use problems;

pub fn routes() -> Router<Arc<App>> {
    let own = |kind: &'static str, text: &'static str| get(async move || page_file(kind, text));
    let mut router = Router::new()
        .route(DOCUMENT_PATH, get(document_bytes))
        .route("/", get(async || (StatusCode::FOUND, [(LOCATION, PAGE_PATH)])))
        .route(PAGE_PATH, get(async || page_file(HTML, PAGE_BYTES.clone())))
        .route("/api/docs/", get(async || page_file(HTML, PAGE_BYTES.clone())))
        .route("/api/docs/page.css", own("text/css; charset=utf-8", PAGE_STYLE))
        .route("/api/docs/page.js", own("text/javascript; charset=utf-8", PAGE_SCRIPT));
    for name in LIBRARY {
        router = router.route(&format!("/api/docs/{name}"), get(async move || library_file(name)));
    }
    router
}

/// A file of Swagger UI, which is part of this program.
fn library_file(name: &str) -> Response {
    match utoipa_swagger_ui::serve(name, Arc::new(utoipa_swagger_ui::Config::from(DOCUMENT_PATH))) {
        Ok(Some(file)) => page_file(&file.content_type, file.bytes.into_owned()),
        Ok(None) | Err(_) => Refusal::new(Code::NotFound).into_response(),
    }
}

fn page_file(kind: &str, bytes: impl Into<Bytes>) -> Response {
    let mut response = Response::new(axum::body::Body::from(bytes.into()));
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, PAGE_POLICY);
    headers.extend(HeaderValue::from_str(kind).ok().map(|kind| (CONTENT_TYPE, kind)));
    response
}

async fn document_bytes(headers: HeaderMap) -> Response {
    cached::json(&headers, &DOCUMENT.etag, DOCUMENT_MAX_AGE_S, vec![DOCUMENT.json.clone()])
}
