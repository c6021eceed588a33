//! Alive, ready, and the numbers behind it.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Extension, State};
use axum::response::IntoResponse as _;
use axum::routing::get;
use http::header::{CONTENT_TYPE, FORWARDED, HOST, HeaderName, VIA};
use http::{HeaderMap, HeaderValue};
use rules::wire::Code;

use super::extract::{admin_key_needed, has_admin_key};
use super::limits::Class;
use super::refusal::{Answer, Refusal};
use super::router::ClientAddress;
use super::server::Audience;
use crate::app::App;
use crate::guard::is_loopback;
use crate::telemetry::metrics::CONTENT_TYPE as METRICS_CONTENT_TYPE;

/// Where the numbers are.
pub const METRICS_PATH: &str = "/metrics";

pub fn routes() -> Router<Arc<App>> {
    Router::new().route("/healthz", get(alive)).route("/readyz", get(ready)).route(METRICS_PATH, get(metrics))
}

async fn alive() -> &'static str {
    "alive\n"
}

/// The gate was rebuilt before the first socket was accepted; what can still be missing is space for the journal, without
/// which every try is told `busy`, and the ledger.
async fn ready(State(app): State<Arc<App>>) -> Answer {
    if app.shutdown.is_cancelled() {
        return Err(Refusal::detail(Code::NotReady, "Going away."));
    }
    if !app.gate.journal.is_writable() {
        return Err(Refusal::detail(Code::NotReady, "The journal cannot be written: is the disk full?"));
    }
    match app.ledger.cursor().await {
        Ok(_) => Ok("ready\n".into_response()),
        Err(error) => {
            tracing::warn!(%error, "not ready");
            Err(Refusal::detail(Code::NotReady, "The ledger does not answer."))
        }
    }
}

/// On the operators' listener, when there is one, for everybody who reaches it, and nowhere else; without one, with the
/// admin key or from this machine.
async fn metrics(
    State(app): State<Arc<App>>,
    Extension(ClientAddress(client)): Extension<ClientAddress>,
    Extension(audience): Extension<Audience>,
    headers: HeaderMap,
) -> Answer {
    let allowed = match audience {
        Audience::Operators => true,
        Audience::Buyers => return Err(Refusal::new(Code::NotFound)),
        Audience::Everybody => is_at_home(&app, client, &headers) || has_admin_key(&headers, &app),
    };
    if !allowed {
        return Err(admin_key_needed());
    }
    note_limits(&app);
    Ok(([(CONTENT_TYPE, METRICS_CONTENT_TYPE)], app.metrics.encode()).into_response())
}

/// Whether this machine itself asks. Through a proxy beside us everybody seems to, so whatever hints at one speaks against it;
/// and so does another name, by which a page of strangers may have led a browser here.
fn is_at_home(app: &App, client: IpAddr, headers: &HeaderMap) -> bool {
    let names_us =
        |host: &HeaderValue| host.to_str().is_ok_and(|host| is_loopback(&format!("http://{host}")));
    let mut names = headers.get_all(HOST).iter().peekable();
    let is_proxied = app.settings.is_behind_a_proxy() || headers.keys().any(is_of_a_proxy);
    client.is_loopback() && !is_proxied && names.peek().is_some() && names.all(names_us)
}

fn is_of_a_proxy(header: &HeaderName) -> bool {
    let name = header.as_str();
    name.starts_with("x-forwarded-") || [FORWARDED.as_str(), VIA.as_str(), "x-real-ip"].contains(&name)
}

/// What is known only by looking.
fn note_limits(app: &App) {
    let rates = [&app.buyer_rate, &app.read_rate, &app.address_rate];
    let overflowed = rates.iter().map(|rate| rate.overflowed()).fold(0, u64::saturating_add);
    app.metrics.limiter_overflowed.set(i64::try_from(overflowed).unwrap_or(i64::MAX));
    for (gauge, class) in [(&app.metrics.in_flight, Class::Buyer), (&app.metrics.waiters, Class::Waiter)] {
        gauge.set(i64::try_from(app.in_flight.used(class)).unwrap_or(i64::MAX));
    }
}
