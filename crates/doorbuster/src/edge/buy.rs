//! `POST /api/v1/offers/{offer}/orders`: the try. The one request a hundred thousand people send in the same second,
//! so it is dispatched before any router and allocates nothing for a refusal. The pass says who, the gate says what.

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};
use rules::admission::Verdict;
use rules::buyer::BuyerId;
use rules::id::OfferId;
use rules::pass::{Pass, PassBuffer};
use rules::wire::Code;
use serde::Deserialize;

use super::answer::{self, Body, Extra, Prepared};
use super::body::{self, ReadError};
use super::limits::{Class, IpKey, Permit};
use crate::app::App;
use crate::catalogue::OfferCard;
use crate::desk::Seen;
use crate::gate::{Claimed, Try};
use crate::ledger::LedgerError;
use crate::telemetry::metrics::{Step, Try as Tried};

static SOLD_OUT: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(Code::SoldOut));
static ENDED: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(Code::Ended));
static PAUSED: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(Code::Paused));
static PASS_INVALID: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(Code::PassInvalid));
static BUSY: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(Code::Busy));

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TryBody<'a> {
    #[serde(borrow)]
    pass: Cow<'a, str>,
    quantity: u32,
}

/// The offer of a try's path, if it is one.
#[inline]
#[must_use]
pub fn offer_of(path: &str) -> Option<&str> {
    path.strip_prefix("/api/v1/offers/")?.strip_suffix("/orders").filter(|offer| !offer.contains('/'))
}

/// Answers a try.
pub async fn buy(
    app: &Arc<App>,
    offer: &str,
    headers: &HeaderMap,
    peer: std::net::IpAddr,
    body: impl hyper::body::Body<Data = bytes::Bytes> + Unpin,
    permit: Option<Permit>,
) -> Response<Body> {
    let bytes = match body::read(body, headers, &app.settings.limits).await {
        Ok(bytes) => bytes,
        Err(error) => return bad_body(app, error),
    };
    let attempt: TryBody<'_> = match serde_json::from_slice(&bytes) {
        Ok(attempt) => attempt,
        Err(error) => return bad_json(app, &bytes, &error),
    };
    // The snapshot is borrowed, not counted: a count would be a meeting point of all threads.
    let snapshot = app.catalogue.read();
    let card = offer.parse::<OfferId>().ok().and_then(|id| snapshot.offers.get(&id));
    let Some(card) = card else { return answer::refuse(Code::NotFound) };
    let mut buffer = PassBuffer::default();
    let pass = match app.pass_keys.read(&attempt.pass, &mut buffer) {
        Ok(pass) if pass.offer == card.offer.id => pass,
        Ok(_) | Err(_) => return no_pass(app, headers, peer),
    };
    judge(app, card, &pass, attempt.quantity, headers, permit).await
}

async fn judge(
    app: &Arc<App>,
    card: &OfferCard,
    pass: &Pass<'_>,
    quantity: u32,
    headers: &HeaderMap,
    permit: Option<Permit>,
) -> Response<Body> {
    let funnel = &card.sale.funnel;
    funnel.inc(Step::Try);
    if quantity == 0 || quantity > card.offer.max_per_order {
        app.metrics.tries.inc(Tried::InvalidRequest);
        return bad_quantity(card.offer.max_per_order);
    }
    if let Err(too_fast) = app.buyer_rate.check(pass.buyer) {
        app.metrics.tries.inc(Tried::TooFast);
        funnel.inc(Step::TooFast);
        return answer::problem(
            Code::TooFast,
            Extra { retry_after_ms: Some(too_fast.retry_after_ms), ..Extra::default() },
        );
    }
    let now = app.clock.now();
    if pass.expires_at < now {
        return Box::pin(expired(app, pass)).await;
    }
    let attempt = Try { buyer: pass.buyer, order: pass.order, quantity, pass_expires_at: pass.expires_at };
    match app.gate.claim(&card.gate, &attempt, now).await {
        Claimed::Queued(claim) => {
            app.metrics.tries.inc(Tried::Granted);
            funnel.inc(Step::Granted);
            let patience = preferred_wait(headers, app.settings.limits.wait_s);
            if patience.is_zero() {
                let json = card.queued_json(claim.order, claim.quantity, claim.claimed_at);
                return answer::order_json(StatusCode::ACCEPTED, claim.order, claim.offer, json);
            }
            Box::pin(wait_for_record(app, &claim.buyer, pass, patience, permit)).await
        }
        Claimed::Unsure => {
            app.metrics.tries.inc(Tried::Unsure);
            unsure(pass)
        }
        Claimed::Answer(verdict) => say(app, card, pass, verdict, headers, permit).await,
    }
}

async fn say(
    app: &Arc<App>,
    card: &OfferCard,
    pass: &Pass<'_>,
    verdict: Verdict,
    headers: &HeaderMap,
    permit: Option<Permit>,
) -> Response<Body> {
    let funnel = &card.sale.funnel;
    let (tried, step) = counted(verdict);
    app.metrics.tries.inc(tried);
    if let Some(step) = step {
        funnel.inc(step);
    }
    match verdict {
        Verdict::SoldOut => SOLD_OUT.response(),
        Verdict::Ended => ENDED.response(),
        Verdict::Paused => PAUSED.response(),
        // Granted never comes here; if it did, nothing durable stands behind it.
        Verdict::Busy | Verdict::Granted => BUSY.response(),
        Verdict::PassReused => answer::refuse(Code::PassReused),
        Verdict::NotEnough { available } => {
            answer::problem(Code::NotEnough, Extra { available: Some(available), ..Extra::default() })
        }
        Verdict::AlreadyOrdered { order } => {
            answer::problem(Code::AlreadyOrdered, Extra { order_id: Some(order), ..Extra::default() })
        }
        Verdict::NotOpen { opens_in_ms } => not_open(opens_in_ms),
        Verdict::Repeat | Verdict::Spent => {
            let patience = preferred_wait(headers, app.settings.limits.wait_s);
            Box::pin(repeat(app, pass, patience, permit)).await
        }
    }
}

fn counted(verdict: Verdict) -> (Tried, Option<Step>) {
    match verdict {
        Verdict::Granted => (Tried::Granted, Some(Step::Granted)),
        Verdict::Repeat | Verdict::Spent => (Tried::Repeat, None),
        Verdict::PassReused => (Tried::PassReused, None),
        Verdict::AlreadyOrdered { .. } => (Tried::AlreadyOrdered, Some(Step::AlreadyOrdered)),
        Verdict::Ended => (Tried::Ended, None),
        Verdict::NotOpen { .. } => (Tried::NotOpen, Some(Step::NotOpen)),
        Verdict::Paused => (Tried::Paused, None),
        Verdict::SoldOut => (Tried::SoldOut, Some(Step::SoldOut)),
        Verdict::NotEnough { .. } => (Tried::NotEnough, Some(Step::SoldOut)),
        Verdict::Busy => (Tried::Busy, Some(Step::Busy)),
    }
}

/// `425` with the milliseconds that are left by the server's clock.
#[must_use]
pub fn not_open(opens_in_ms: u64) -> Response<Body> {
    let detail = format!("Not open yet: {opens_in_ms} ms are left.");
    answer::problem(
        Code::NotOpen,
        Extra { detail: Some(detail), retry_after_ms: Some(opens_in_ms), ..Extra::default() },
    )
}

/// The same request again: the same order again.
async fn repeat(
    app: &Arc<App>,
    pass: &Pass<'_>,
    patience: Duration,
    permit: Option<Permit>,
) -> Response<Body> {
    let Ok(buyer) = BuyerId::parse(pass.buyer) else { return PASS_INVALID.response() };
    if patience.is_zero() {
        return show(app.see_order(pass.order, &buyer).await, pass, StatusCode::OK);
    }
    wait_for_record(app, &buyer, pass, patience, permit).await
}

async fn wait_for_record(
    app: &Arc<App>,
    buyer: &BuyerId,
    pass: &Pass<'_>,
    patience: Duration,
    permit: Option<Permit>,
) -> Response<Body> {
    // When too many wait, the answer comes at once: that is less than was asked for, and never wrong.
    let waiter = app.in_flight.enter(Class::Waiter);
    let patience = if waiter.is_ok() { patience } else { Duration::ZERO };
    // Who waits gives the place among those under way to the next one.
    drop(permit);
    show(app.await_order(pass.order, buyer, None, patience).await, pass, StatusCode::CREATED)
}

fn show(seen: Result<Seen, LedgerError>, pass: &Pass<'_>, recorded: StatusCode) -> Response<Body> {
    use rules::order::State;
    match seen {
        Ok(Seen::Order(order)) => {
            let status = match order.state {
                State::Queued => StatusCode::ACCEPTED,
                State::AwaitingPayment | State::Paid => recorded,
                _ => StatusCode::OK,
            };
            answer::order(status, &order)
        }
        Ok(Seen::Unsure | Seen::NotFound) | Err(LedgerError::Unknown(_) | LedgerError::Failed(_)) => {
            unsure(pass)
        }
        Err(LedgerError::Unavailable(_)) => unsure(pass),
    }
}

fn unsure(pass: &Pass<'_>) -> Response<Body> {
    answer::problem(Code::Unsure, Extra { order_id: Some(pass.order), ..Extra::default() })
}

/// An expired pass shows its order if there is one.
async fn expired(app: &Arc<App>, pass: &Pass<'_>) -> Response<Body> {
    app.metrics.tries.inc(Tried::PassExpired);
    let Ok(buyer) = BuyerId::parse(pass.buyer) else { return PASS_INVALID.response() };
    match app.see_order(pass.order, &buyer).await {
        Ok(Seen::Order(order)) => answer::order(StatusCode::OK, &order),
        Ok(Seen::NotFound) => answer::refuse(Code::PassExpired),
        Ok(Seen::Unsure) => unsure(pass),
        Err(_) => BUSY.response(),
    }
}

/// Without a valid pass nobody knows who asks: the address is what is counted.
fn no_pass(app: &App, headers: &HeaderMap, peer: std::net::IpAddr) -> Response<Body> {
    let address = app.client_ip.of(peer, super::forwarded_for(headers));
    if let Err(too_fast) = app.address_rate.check(IpKey::from(address)) {
        app.metrics.tries.inc(Tried::TooFast);
        let retry_after_ms = Some(too_fast.retry_after_ms);
        return answer::problem(Code::TooFast, Extra { retry_after_ms, ..Extra::default() });
    }
    app.metrics.tries.inc(Tried::PassInvalid);
    PASS_INVALID.response()
}

fn bad_body(app: &App, error: ReadError) -> Response<Body> {
    app.metrics.tries.inc(Tried::InvalidRequest);
    answer::refuse(error.code())
}

fn bad_json(app: &App, bytes: &[u8], error: &serde_json::Error) -> Response<Body> {
    app.metrics.tries.inc(Tried::InvalidRequest);
    if !error.is_data() {
        return answer::problem(
            Code::Malformed,
            Extra { detail: Some(error.to_string()), ..Extra::default() },
        );
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let field = match serde_path_to_error::deserialize::<_, TryBody<'_>>(&mut reader) {
        Err(error) if error.path().iter().len() > 0 => Some(error.path().to_string()),
        _ => None,
    };
    answer::problem(
        Code::InvalidRequest,
        Extra { detail: Some(error.to_string()), field, ..Extra::default() },
    )
}

fn bad_quantity(max: u32) -> Response<Body> {
    answer::problem(
        Code::InvalidRequest,
        Extra {
            detail: Some(format!("quantity must lie between 1 and {max}")),
            field: Some("quantity".into()),
            ..Extra::default()
        },
    )
}

/// `Prefer: wait=2` (RFC 7240), capped; zero when it was not said.
fn preferred_wait(headers: &HeaderMap, longest_s: u32) -> Duration {
    let Some(prefer) = headers.get("prefer").and_then(|value| value.to_str().ok()) else {
        return Duration::ZERO;
    };
    let seconds = prefer.split([',', ';']).find_map(|part| {
        let (name, value) = part.split_once('=')?;
        let value = value.trim().trim_matches('"');
        name.trim().eq_ignore_ascii_case("wait").then(|| value.parse::<u64>().ok())?
    });
    Duration::from_secs(seconds.unwrap_or(0).min(longest_s.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_try_is_recognised() {
        assert_eq!(offer_of("/api/v1/offers/abc/orders"), Some("abc"));
        assert_eq!(offer_of("/api/v1/offers/abc/pass"), None);
        assert_eq!(offer_of("/api/v1/offers/a/b/orders"), None);
        assert_eq!(offer_of("/api/v1/offers//orders"), Some(""));
    }

    #[test]
    fn the_preferred_wait_is_read_and_capped() {
        let wait = |prefer: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert("prefer", http::HeaderValue::from_static(prefer));
            preferred_wait(&headers, 30).as_secs()
        };
        assert_eq!(wait("wait=2"), 2);
        assert_eq!(wait("respond-async, wait=5"), 5);
        assert_eq!(wait("Wait = \"7\""), 7);
        assert_eq!(wait("wait=99999"), 30);
        assert_eq!(wait("wait=-1"), 0);
        assert_eq!(wait("wait"), 0);
    }
}
