//! All calls but the try: which there are, whom they serve, and which limits they meet on the way in. The routes and
//! the OpenAPI document are made from the same list.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::MatchedPath;
use axum::middleware::{self, Next};
use http::header::UPGRADE;
use http::{Method, Request, Response};
use http_body_util::Either;
use hyper::body::Incoming;
use rules::buyer::BuyerId;
use rules::wire::Code;
use tower::ServiceExt as _;
use tracing::Instrument as _;
use utoipa_axum::router::OpenApiRouter;

use super::answer::{Body, Extra, secure};
use super::auth::Bearer;
use super::extract::{self, KnownBuyer, NoBearer};
use super::health::METRICS_PATH;
use super::limits::{Class, IpKey, Permit, TooFast};
use super::refusal::Refusal;
use super::server::Audience;
use super::{buyer, callback, health, images, openapi, operator, sandbox};
use crate::app::App;
use crate::telemetry::metrics::{RequestClass, Shed};

/// Who sent the request, by address; proxies we trust are looked through.
#[derive(Clone, Copy, Debug)]
pub struct ClientAddress(pub IpAddr);

/// The peer of the socket itself.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress(pub IpAddr);

/// Too many wait already: answer at once.
#[derive(Clone, Copy, Debug)]
pub struct DoNotWait;

/// The request's place among those under way. Kept by whoever goes on after the answer has begun (a stream), or after
/// its client has hung up (a payment).
#[derive(Clone, Debug)]
#[expect(dead_code, reason = "kept for its drop")]
pub struct Place(Arc<Permit>);

/// The routes by listener.
#[derive(Clone, Debug)]
pub struct Routers {
    everybody: Router,
    buyers: Router,
    operators: Router,
}

/// All calls of buyers and payment providers, with their part of the OpenAPI document.
pub fn buyer_routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().merge(buyer::routes()).merge(callback::routes()).merge(sandbox::routes())
}

/// All operator calls, with their part of the OpenAPI document.
pub fn operator_routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().merge(operator::routes())
}

/// Makes the routes once, at start.
#[must_use]
pub fn build(app: &Arc<App>) -> Routers {
    let finish = |router: Router<Arc<App>>| {
        let router = router.merge(health::routes()).merge(images::routes()).merge(openapi::routes());
        let traced = app.settings.telemetry.otlp_endpoint.is_some();
        let router = if traced { router.route_layer(middleware::from_fn(note_path)) } else { router };
        router
            .fallback(|| async { extract_refusal(Code::NotFound) })
            .method_not_allowed_fallback(|| async { extract_refusal(Code::MethodNotAllowed) })
            .with_state(Arc::clone(app))
    };
    let (buyers, _) = buyer_routes().split_for_parts();
    let buyers = buyers.merge(sandbox::pages());
    let (operators, _) = operator_routes().split_for_parts();
    let once = middleware::from_fn_with_state(Arc::clone(app), operator::answer_once);
    let operators = operators.route_layer(once);
    Routers {
        everybody: finish(buyers.clone().merge(operators.clone())),
        buyers: finish(buyers),
        operators: finish(operators),
    }
}

/// Tells the request's span where it went: by the route's pattern, which holds nobody's name.
async fn note_path(request: axum::extract::Request, next: Next) -> axum::response::Response {
    if let Some(path) = request.extensions().get::<MatchedPath>() {
        tracing::Span::current().record("path", path.as_str());
    }
    next.run(request).await
}

fn extract_refusal(code: Code) -> Refusal {
    Refusal::new(code)
}

/// Routes a request that is not a try.
pub async fn route(
    app: &Arc<App>,
    routers: &Routers,
    audience: Audience,
    peer: IpAddr,
    request: Request<Incoming>,
) -> (RequestClass, Response<Body>) {
    let class = class_of(request.uri().path());
    let span = tracing::trace_span!(
        "request",
        method = %request.method(),
        path = tracing::field::Empty,
        status = tracing::field::Empty
    );
    let response = answer(app, routers, class, audience, peer, request).instrument(span.clone()).await;
    span.record("status", response.status().as_u16());
    (class, response)
}

async fn answer(
    app: &Arc<App>,
    routers: &Routers,
    class: RequestClass,
    audience: Audience,
    peer: IpAddr,
    request: Request<Incoming>,
) -> Response<Body> {
    match admit(app, class, audience, peer, request) {
        Ok((place, request)) => {
            let router = match audience {
                Audience::Everybody => routers.everybody.clone(),
                Audience::Buyers => routers.buyers.clone(),
                Audience::Operators => routers.operators.clone(),
            };
            let mut response = match router.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            // The extensions alone would not do: a handler lets go of them as soon as it has taken out what it needs.
            drop(place);
            secure(response.headers_mut());
            response.map(Either::Right)
        }
        Err(refusal) => refusal.into_body_response(),
    }
}

/// Takes the request's place and finds out who asks; or says why it may not come in.
fn admit(
    app: &Arc<App>,
    class: RequestClass,
    audience: Audience,
    peer: IpAddr,
    mut request: Request<Incoming>,
) -> Result<(Option<Place>, Request<axum::body::Body>), Refusal> {
    let client = app.client_ip.of(peer, super::forwarded_for(request.headers()));
    let known = match class {
        RequestClass::Buyer => bearer(app, &request),
        RequestClass::Operator | RequestClass::Callback | RequestClass::Health | RequestClass::Page => {
            Err(NoBearer::NoToken)
        }
    };
    let way = Way::of(class, &request);
    match &known {
        Ok(bearer) => check_reads(app, &bearer.buyer)?,
        Err(_) if way.is_reserved() => {}
        Err(_) => check_address(app, client)?,
    }
    let place = match way {
        Way::Free => None,
        Way::AtOnce(class) => Some(enter(app, class)?),
        Way::Long { class, else_at_once } => Some(match enter(app, class) {
            Ok(permit) => permit,
            Err(_) => {
                request.extensions_mut().insert(DoNotWait);
                enter(app, else_at_once)?
            }
        }),
    };
    let place = place.map(|permit| Place(Arc::new(permit)));
    let extensions = request.extensions_mut();
    extensions.insert(ClientAddress(client));
    extensions.insert(PeerAddress(peer));
    extensions.insert(audience);
    extensions.insert(KnownBuyer(known));
    if let Some(place) = place.clone() {
        extensions.insert(place);
    }
    Ok((place, request.map(axum::body::Body::new)))
}

/// How a request comes in: which pools it draws from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Without a place: it is answered at once and costs next to nothing, or takes a place itself when it has been read.
    Free,
    AtOnce(Class),
    /// It may last: when there are too many such, it is answered at once instead.
    Long {
        class: Class,
        else_at_once: Class,
    },
}

impl Way {
    fn of<B>(class: RequestClass, request: &Request<B>) -> Self {
        let (method, path) = (request.method(), request.uri().path());
        let waits = || request.uri().query().is_some_and(|query| query.contains("wait="));
        let (post, get) = (method == Method::POST, method == Method::GET);
        match class {
            RequestClass::Health if path == METRICS_PATH => Self::AtOnce(Class::Operator),
            RequestClass::Health | RequestClass::Callback => Self::Free,
            RequestClass::Operator
                if get && (is_stream(path) || path == operator::events::PATH && waits()) =>
            {
                Self::Long { class: Class::Watcher, else_at_once: Class::Operator }
            }
            RequestClass::Operator => Self::AtOnce(Class::Operator),
            RequestClass::Buyer if post && path.ends_with("/cancel") => Self::AtOnce(Class::Cancel),
            RequestClass::Buyer if post && path.ends_with("/payment") => Self::AtOnce(Class::Payment),
            RequestClass::Buyer if get && path == buyer::EVENTS_PATH => {
                Self::Long { class: Class::Newcomer, else_at_once: Class::Buyer }
            }
            RequestClass::Buyer if get && path.starts_with("/api/v1/orders/") && waits() => {
                Self::Long { class: Class::Waiter, else_at_once: Class::Buyer }
            }
            RequestClass::Buyer | RequestClass::Page => Self::AtOnce(Class::Buyer),
        }
    }

    /// Calls that must get through when everybody else is turned away, also from an address that asks too often.
    fn is_reserved(self) -> bool {
        match self {
            Self::Free => true,
            Self::AtOnce(class) | Self::Long { else_at_once: class, .. } => class != Class::Buyer,
        }
    }
}

/// A sale's live numbers.
fn is_stream(path: &str) -> bool {
    path.starts_with("/admin/v1/sales/") && path.ends_with("/stream")
}

/// Takes a place, or says that there is none.
pub(super) fn enter(app: &App, class: Class) -> Result<Permit, Refusal> {
    app.in_flight.enter(class).map_err(|_| {
        app.metrics.shed.inc(match class {
            Class::Buyer => Shed::InFlight,
            Class::Waiter => Shed::Waiters,
            Class::Newcomer => Shed::Sockets,
            Class::Expired => Shed::Expired,
            Class::Cancel | Class::Payment | Class::Callback | Class::Unread => Shed::Reserve,
            Class::Operator | Class::Watcher => Shed::Operators,
        });
        Refusal::new(Code::Busy)
    })
}

/// Counts a request of a buyer whom we know; what costs more than a look is counted again, more strictly.
fn check_reads(app: &App, buyer: &BuyerId) -> Result<(), Refusal> {
    app.read_rate.check(buyer.as_str()).map_err(|wait| too_fast(app, Shed::PerBuyer, wait))
}

fn check_address(app: &App, client: IpAddr) -> Result<(), Refusal> {
    app.address_rate.check(IpKey::from(client)).map_err(|wait| too_fast(app, Shed::PerIp, wait))
}

fn too_fast(app: &App, limit: Shed, TooFast { retry_after_ms }: TooFast) -> Refusal {
    app.metrics.shed.inc(limit);
    Refusal::with(Code::TooFast, Extra { retry_after_ms: Some(retry_after_ms), ..Extra::default() })
}

/// Who asks. A socket's token stands where a browser can put it: else all who watch from one address would be strangers of one
/// rate.
fn bearer<B>(app: &App, request: &Request<B>) -> Result<Bearer, NoBearer> {
    let headers = request.headers();
    let is_socket = request.uri().path() == buyer::EVENTS_PATH && headers.contains_key(UPGRADE);
    let of_a_browser = || buyer::token_of_a_browser(headers).filter(|_| is_socket);
    let token = extract::bearer(headers).or_else(of_a_browser).ok_or(NoBearer::NoToken)?;
    app.auth.bearer(token).map_err(NoBearer::Refused)
}

/// Whom a path serves.
fn class_of(path: &str) -> RequestClass {
    if path.starts_with("/admin/") {
        RequestClass::Operator
    } else if path.starts_with("/api/v1/payments/") {
        RequestClass::Callback
    } else if path.starts_with("/api/v1/") || path.starts_with("/sandbox/payments/") {
        RequestClass::Buyer
    } else if matches!(path, "/healthz" | "/readyz" | METRICS_PATH) {
        RequestClass::Health
    } else {
        RequestClass::Page
    }
}
