//! All calls but the try: which there are, whom they serve, and which limits they meet on the way in. The routes and
//! the OpenAPI document are made from the same list.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::Either;
use hyper::body::Incoming;
use rules::wire::Code;
use tower::ServiceExt as _;
use utoipa_axum::router::OpenApiRouter;

use super::answer::{self, Body, Extra};
use super::auth::Bearer;
use super::extract::{self, KnownBuyer};
use super::limits::{Class, IpKey, Permit};
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

/// The request's place among those that wait. Kept by whoever goes on after the answer has begun (a socket).
#[derive(Clone, Debug)]
pub struct WaiterPermit(pub Arc<Permit>);

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
        router
            .merge(health::routes())
            .merge(images::routes())
            .merge(openapi::routes())
            .fallback(|| async { extract_refusal(Code::NotFound) })
            .method_not_allowed_fallback(|| async { extract_refusal(Code::MethodNotAllowed) })
            .with_state(Arc::clone(app))
    };
    let (buyers, _) = buyer_routes().split_for_parts();
    let buyers = buyers.merge(sandbox::pages());
    let (operators, _) = operator_routes().split_for_parts();
    let once = axum::middleware::from_fn_with_state(Arc::clone(app), operator::answer_once);
    let operators = operators.route_layer(once);
    Routers {
        everybody: finish(buyers.clone().merge(operators.clone())),
        buyers: finish(buyers),
        operators: finish(operators),
    }
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
    match admit(app, class, audience, peer, request) {
        Ok((held, request)) => {
            let router = match audience {
                Audience::Everybody => routers.everybody.clone(),
                Audience::Buyers => routers.buyers.clone(),
                Audience::Operators => routers.operators.clone(),
            };
            let mut response = match router.oneshot(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            };
            drop(held);
            answer::secure(response.headers_mut());
            (class, response.map(Either::Right))
        }
        Err(refusal) => (class, refusal.into_body_response()),
    }
}

/// Takes the request's permit and finds out who asks; or says why it may not come in.
fn admit(
    app: &Arc<App>,
    class: RequestClass,
    audience: Audience,
    peer: IpAddr,
    mut request: Request<Incoming>,
) -> Result<(Held, Request<axum::body::Body>), Refusal> {
    let client = app.client_ip.of(peer, super::forwarded_for(request.headers()));
    let known = if class == RequestClass::Buyer { known_buyer(app, request.headers()) } else { None };
    let reserved = has_reserve(class, request.method(), request.uri().path());
    if !reserved && known.is_none() {
        check_address(app, client)?;
    }
    let extensions = request.extensions_mut();
    extensions.insert(ClientAddress(client));
    extensions.insert(PeerAddress(peer));
    extensions.insert(audience);
    extensions.insert(KnownBuyer(known));
    let held = if waits(&request) {
        match app.in_flight.enter(Class::Waiter) {
            Ok(permit) => {
                let permit = WaiterPermit(Arc::new(permit));
                request.extensions_mut().insert(permit.clone());
                Held::Waiting(permit)
            }
            Err(_) => {
                app.metrics.shed.inc(Shed::Waiters);
                request.extensions_mut().insert(DoNotWait);
                Held::AtOnce(enter(app, Class::Buyer, Shed::InFlight)?)
            }
        }
    } else if reserved {
        Held::AtOnce(enter(app, Class::Reserve, Shed::Reserve)?)
    } else {
        Held::AtOnce(enter(app, Class::Buyer, Shed::InFlight)?)
    };
    Ok((held, request.map(axum::body::Body::new)))
}

/// What a request holds until its answer has begun. The extensions alone would not do: a handler lets go of them as
/// soon as it has taken out what it needs.
#[expect(dead_code, reason = "kept for their drop")]
enum Held {
    AtOnce(Permit),
    Waiting(WaiterPermit),
}

fn enter(app: &App, class: Class, shed: Shed) -> Result<Permit, Refusal> {
    app.in_flight.enter(class).map_err(|_| {
        app.metrics.shed.inc(shed);
        Refusal::new(Code::Busy)
    })
}

fn check_address(app: &App, client: IpAddr) -> Result<(), Refusal> {
    app.address_rate.check(IpKey::from(client)).map_err(|too_fast| {
        app.metrics.shed.inc(Shed::PerIp);
        let retry_after_ms = Some(too_fast.retry_after_ms);
        Refusal::with(Code::TooFast, Extra { retry_after_ms, ..Extra::default() })
    })
}

fn known_buyer(app: &App, headers: &HeaderMap) -> Option<Bearer> {
    extract::bearer(headers).and_then(|token| app.auth.bearer(token).ok())
}

/// Whom a path serves.
fn class_of(path: &str) -> RequestClass {
    if path.starts_with("/admin/") {
        RequestClass::Operator
    } else if path.starts_with("/api/v1/payments/") {
        RequestClass::Callback
    } else if path.starts_with("/api/v1/") || path.starts_with("/sandbox/payments/") {
        RequestClass::Buyer
    } else if matches!(path, "/healthz" | "/readyz" | "/metrics") {
        RequestClass::Health
    } else {
        RequestClass::Page
    }
}

/// Calls that must get through when everybody else is turned away.
fn has_reserve(class: RequestClass, method: &Method, path: &str) -> bool {
    match class {
        RequestClass::Operator | RequestClass::Callback | RequestClass::Health => true,
        RequestClass::Buyer => {
            method == Method::POST && (path.ends_with("/cancel") || path.ends_with("/payment"))
        }
        RequestClass::Page => false,
    }
}

/// Long polls and sockets.
fn waits<B>(request: &Request<B>) -> bool {
    let path = request.uri().path();
    let polls = (path.starts_with("/api/v1/orders/") || path == operator::events::PATH)
        && request.uri().query().is_some_and(|query| query.contains("wait="));
    let watches = path.starts_with("/admin/v1/sales/") && path.ends_with("/stream");
    request.method() == Method::GET && (polls || watches || path == buyer::EVENTS_PATH)
}
