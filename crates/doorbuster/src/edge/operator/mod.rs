//! What operators call. Never open without the admin key: every handler takes `Operator` before anything else.
//! One file per thing they call about; what they share is here.

mod actions;

mod audit;

mod blocks;

pub mod events;

mod offers;

mod orders;

mod payments;

mod refusals;

mod registrations;

mod repeat;

mod sales;

mod stats;

mod stock;

mod webhooks;

use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use rules::sale::FieldError;
use rules::wire::{Code, Problem};
use serde::de::DeserializeOwned;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::Extra;
use super::body;
use super::extract::{Operator, page_limit, parse_json, read_optional, read_within};
use super::refusal::Refusal;
use crate::app::App;
use crate::ledger::Changed;

pub use repeat::{KeysUnderWay, answer_once};

/// Longest body of an operator's request, in bytes: a sale of 1,000 offers with long descriptions fits.
const OPERATOR_BODY_BYTES_MAX: usize = 8 * 1_024 * 1_024;

#[derive(OpenApi)]
#[openapi(
    components(schemas(Problem)),
    tags((name = "operator", description = "The shop's side. Needs the admin key.")),
    modifiers(&AdminKey)
)]
struct Document;

struct AdminKey;

impl Modify for AdminKey {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme =
            HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("`admin_key`")).build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("admin_key", SecurityScheme::Http(scheme));
    }
}

/// The operators' routes with their documentation.
pub fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(sales::create, sales::list))
        .routes(routes!(sales::get, sales::change, sales::delete))
        .routes(routes!(offers::add, offers::list))
        .routes(routes!(offers::get, offers::change, offers::remove))
        .routes(routes!(actions::publish))
        .routes(routes!(actions::pause))
        .routes(routes!(actions::resume))
        .routes(routes!(actions::end))
        .routes(routes!(actions::preheat_sale))
        .routes(routes!(actions::preheat_offer))
        .routes(routes!(stock::change))
        .routes(routes!(stats::stats))
        .routes(routes!(stats::stream))
        .routes(routes!(registrations::list))
        .routes(routes!(orders::search))
        .routes(routes!(orders::export))
        .routes(routes!(orders::get))
        .routes(routes!(payments::refund))
        .routes(routes!(payments::list))
        .routes(routes!(payments::get))
        .routes(routes!(payments::retry))
        .routes(routes!(blocks::list))
        .routes(routes!(blocks::get, blocks::put, blocks::lift))
        .routes(routes!(blocks::strike))
        .routes(routes!(blocks::lift_strike))
        .routes(routes!(events::list))
        .routes(routes!(webhooks::create, webhooks::list))
        .routes(routes!(webhooks::get, webhooks::change, webhooks::delete))
        .routes(routes!(webhooks::change_secret))
        .routes(routes!(webhooks::replay))
        .routes(routes!(webhooks::test))
        .routes(routes!(webhooks::parked))
        .routes(routes!(audit::make, audit::list))
        .routes(routes!(audit::get))
}

/// A JSON body of an operator: as [`super::extract::JsonBody`], with room for a large sale.
#[derive(Clone, Debug)]
struct OperatorBody<T>(T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for OperatorBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Refusal> {
        if !body::is_json(request.headers()) {
            return Err(Refusal::new(Code::UnsupportedMediaType));
        }
        let bytes = read_within(request.into_body(), OPERATOR_BODY_BYTES_MAX, app).await?;
        parse_json(&bytes).map(Self)
    }
}

/// The same of a call that needs no body.
#[derive(Clone, Debug)]
struct OptionalBody<T>(T);

impl<T: DeserializeOwned + Default> FromRequest<Arc<App>> for OptionalBody<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Refusal> {
        read_optional(request, OPERATOR_BODY_BYTES_MAX, app).await.map(Self)
    }
}

/// What a change answers, or why it was refused.
fn done<T>(changed: Changed<T>) -> Result<T, Refusal> {
    match changed {
        Changed::Done(value) => Ok(value),
        Changed::NotFound => Err(Refusal::new(Code::NotFound)),
        Changed::WrongState => Err(Refusal::new(Code::WrongState)),
        Changed::NotEditable(error) => Err(not_editable(error)),
        Changed::Invalid(error) => Err(error.into()),
    }
}

fn not_editable(error: FieldError) -> Refusal {
    let detail = Some(error.to_string());
    Refusal::with(Code::NotEditable, Extra { detail, field: Some(error.field), ..Extra::default() })
}

/// `?cursor=` of a list whose entries are numbered.
fn number_cursor(cursor: Option<&str>) -> Result<Option<u64>, Refusal> {
    let number = |text: &str| text.parse().map_err(|_| Refusal::field("cursor", "is none of ours"));
    told(cursor).map(number).transpose()
}

/// A filter or cursor that is there but empty says nothing.
fn told(parameter: Option<&str>) -> Option<&str> {
    parameter.filter(|text| !text.is_empty())
}
