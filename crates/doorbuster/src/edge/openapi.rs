//! The OpenAPI document, made from the routes, and a page to read it. The refusals in it come from the same list of
//! codes that the answers are made of.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::header::{CONTENT_SECURITY_POLICY, HeaderValue};
use http::{HeaderMap, StatusCode};
use rules::wire::{Code, Problem};
use utoipa::OpenApi as _;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, RefOr, ResponseBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_swagger_ui::SwaggerUi;

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

/// How long the document may be kept, in seconds: it changes with the version only.
const DOCUMENT_MAX_AGE_S: u64 = 60;

/// The page's scripts and styles are files of ours; pictures may be inline, as its style sheet has them so.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
     connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

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
    let components = document.components.get_or_insert_default();
    let scheme = |format: &str, text: &str| {
        let http = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format(format);
        SecurityScheme::Http(http.description(Some(text)).build())
    };
    components.add_security_scheme(BUYER_TOKEN, scheme("JWT", "The shop's token; `sub` is the buyer."));
    components.add_security_scheme(ADMIN_KEY, scheme("key", "The operator's key."));
    document
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
    let page: Router<Arc<App>> =
        SwaggerUi::new("/api/docs").config(utoipa_swagger_ui::Config::from(DOCUMENT_PATH)).into();
    let page = page.layer(axum::middleware::map_response(page_policy));
    Router::new().route(DOCUMENT_PATH, get(document_bytes)).merge(page)
}

async fn document_bytes(headers: HeaderMap) -> Response {
    cached::json(&headers, &DOCUMENT.etag, DOCUMENT_MAX_AGE_S, vec![DOCUMENT.json.clone()])
}

async fn page_policy(mut response: Response) -> Response {
    if response.status() == StatusCode::NOT_FOUND {
        return Refusal::new(Code::NotFound).into_response();
    }
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, PAGE_POLICY);
    response
}
