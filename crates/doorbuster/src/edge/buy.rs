//! `POST /api/v1/offers/{offer}/orders`: the try. The one request a hundred thousand people send in the same second,
//! so it is dispatched before any router and allocates nothing for a refusal. The pass says who, the gate says what.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Response, StatusCode};
use rules::admission::Verdict;
use rules::buyer::BuyerId;
use rules::id::{OfferId, OrderId};
use rules::object::Object;
use rules::pass::{Pass, PassBuffer};
use rules::time::UnixMs;
use rules::wire::Code;
use serde::Deserialize;
use tokio::sync::oneshot;

use super::answer::{self, Body, Extra, Prepared};
use super::body::{self, ReadError};
use super::extract::{is_misfit, missing_field};
use super::limits::{Class, IpKey, Permit, Spot, TooFast};
use super::router;
use crate::app::App;
use crate::catalogue::OfferCard;
use crate::desk::Seen;
use crate::gate::{self, Claimed, Outcome, Try};
use crate::ledger::LedgerError;
use crate::queue::Claim;
use crate::queue::reply::Reply;
use crate::telemetry::metrics::{Shed, Step, Try as Tried};

static SOLD_OUT: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(Code::SoldOut));
static ENDED: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(Code::Ended));
static PAUSED: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(Code::Paused));
static PASS_INVALID: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(Code::PassInvalid));
/// Shared with the shortcut, which says it before anything is read.
pub static BUSY: LazyLock<Prepared> = LazyLock::new(|| Prepared::new(Code::Busy));

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TryBody<'a> {
    #[serde(borrow)]
    pass: Cow<'a, str>,
    quantity: u32,
}

/// A number of so many digits fits, whatever they are.
const QUANTITY_DIGITS_MAX: usize = 9;

/// The offer of a try's path, if it is one.
#[inline]
#[must_use]
pub fn offer_of(path: &str) -> Option<&str> {
    path.strip_prefix("/api/v1/offers/")?.strip_suffix("/orders").filter(|offer| !offer.contains('/'))
}

/// Answers a try.
pub async fn buy(
    app: &Arc<App>,
    parts: Parts,
    peer: IpAddr,
    body: impl hyper::body::Body<Data = bytes::Bytes> + Unpin,
    permit: Option<Permit>,
) -> Response<Body> {
    let bytes = match body::read(body, &parts.headers, &app.settings.limits).await {
        Ok(bytes) => bytes,
        Err(error) => return bad_body(app, &parts.headers, peer, error),
    };
    let begun = begin(app, &parts, peer, &bytes);
    // While the disk works a hundred thousand others come by: what waits keeps nothing of its request.
    drop((parts, bytes));
    match begun {
        Begun::Answer(said) => said.into_response(),
        Begun::Committing { reply, claim, json, patience } => {
            let outcome = reply.await;
            if patience.is_zero() && outcome == Outcome::Committed {
                granted(app, &claim);
                return answer::order_json(StatusCode::ACCEPTED, claim.order, claim.offer, json);
            }
            Box::pin(Later::of(&claim, patience).tell(app, Claimed::of(outcome, claim), permit)).await
        }
        Begun::Later(later, why) => Box::pin(later.answer(app, why, permit)).await,
    }
}

/// What a try comes to without waiting for anything.
#[derive(Debug)]
pub enum Begun {
    Answer(Said),
    /// Granted: the answer is written and waits for the commit.
    Committing {
        reply: Reply,
        claim: Arc<Claim>,
        json: Bytes,
        patience: Duration,
    },
    Later(Later, Why),
}

/// An answer that waits for nothing.
#[derive(Debug)]
pub enum Said {
    /// The same for everybody.
    Prepared(&'static Prepared),
    Response(Response<Body>),
}

impl Said {
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Prepared(prepared) => prepared.status,
            Self::Response(response) => response.status(),
        }
    }

    fn into_response(self) -> Response<Body> {
        match self {
            Self::Prepared(prepared) => prepared.response(),
            Self::Response(response) => response,
        }
    }
}

impl From<Response<Body>> for Said {
    fn from(response: Response<Body>) -> Self {
        Self::Response(response)
    }
}

/// Why memory alone cannot answer.
#[derive(Debug)]
pub enum Why {
    /// The pass has expired; there may be an order.
    Expired,
    /// The same request again.
    Repeat,
    /// A grant of this buyer is on its way to the disk.
    Pending(oneshot::Receiver<Outcome>),
}

/// Why a try does not even reach the gate.
enum Unreadable {
    Json(serde_json::Error),
    /// Its pass is good; something else in its JSON is not.
    Rest(serde_json::Error),
    Offer,
    Pass,
}

/// What can still be read where the rest is not as it must be.
#[derive(Deserialize)]
struct PassAlone<'a> {
    #[serde(borrow)]
    pass: Cow<'a, str>,
}

fn begin(app: &App, parts: &Parts, peer: IpAddr, bytes: &[u8]) -> Begun {
    let patience = preferred_wait(&parts.headers, app.settings.limits.wait_s);
    let offer = offer_of(parts.uri.path()).unwrap_or_default();
    let now = app.clock.now();
    read(app, offer, bytes, patience, now)
        .or_else(|unreadable| pass_first(app, offer, bytes, patience, now, unreadable))
        .unwrap_or_else(|unreadable| {
            Begun::Answer(refuse_unreadable(app, parts, peer, bytes, &unreadable).into())
        })
}

fn refuse_unreadable(
    app: &App,
    parts: &Parts,
    peer: IpAddr,
    bytes: &[u8],
    unreadable: &Unreadable,
) -> Response<Body> {
    if !matches!(unreadable, Unreadable::Rest(_))
        && let Some(too_fast) = no_pass(app, &parts.headers, peer)
    {
        return too_fast;
    }
    match unreadable {
        Unreadable::Json(error) | Unreadable::Rest(error) => bad_json(app, bytes, error),
        Unreadable::Offer => answer::refuse(Code::NotFound),
        Unreadable::Pass => {
            app.metrics.tries.inc(Tried::PassInvalid);
            PASS_INVALID.response()
        }
    }
}

/// The pass is looked at before everything else, also in JSON that does not fit.
fn pass_first(
    app: &App,
    offer: &str,
    bytes: &[u8],
    patience: Duration,
    now: UnixMs,
    unreadable: Unreadable,
) -> Result<Begun, Unreadable> {
    let Unreadable::Json(error) = unreadable else { return Err(unreadable) };
    let Some(PassAlone { pass }) = is_misfit(&error, bytes).then(|| read_object(bytes).ok()).flatten() else {
        return Err(Unreadable::Json(error));
    };
    let snapshot = app.catalogue.read();
    let known = offer.parse::<OfferId>().ok().and_then(|offer| snapshot.offers.get(&offer));
    let card = known.ok_or(Unreadable::Offer)?;
    let mut buffer = PassBuffer::default();
    match app.pass_keys.read(&pass, &mut buffer) {
        Ok(pass) if pass.offer != card.offer.id => Err(Unreadable::Pass),
        // No quantity is looked at any more.
        Ok(pass) if pass.expires_at < now => {
            Ok(judge(app, card, &pass, Keys::of(app, card, pass.buyer), 0, patience, now))
        }
        Ok(pass) => match app.buyer_rate.check_at(Keys::of(app, card, pass.buyer).rate) {
            Ok(()) => Err(Unreadable::Rest(error)),
            Err(wait) => Ok(Begun::Answer(too_fast(app, Shed::PerBuyer, wait).into())),
        },
        Err(_) => Err(Unreadable::Pass),
    }
}

/// Begins a try that asks for nothing special, or leaves no trace of it: then it must go the common way.
#[inline]
pub fn begin_plain(app: &App, offer: &str, bytes: &[u8], now: UnixMs) -> Option<Begun> {
    read(app, offer, bytes, Duration::ZERO, now).ok()
}

fn read(app: &App, offer: &str, bytes: &[u8], patience: Duration, now: UnixMs) -> Result<Begun, Unreadable> {
    let body: TryBody<'_>;
    let (pass, quantity) = if let Some(read) = usual(bytes) {
        read
    } else {
        body = read_object(bytes).map_err(Unreadable::Json)?;
        (body.pass.as_bytes(), body.quantity)
    };
    // The snapshot is borrowed, not counted: a count would be a meeting point of all threads.
    let snapshot = app.catalogue.read();
    let offer = offer.parse::<OfferId>().map_err(|_| Unreadable::Offer)?;
    let card = snapshot.offers.get(&offer).ok_or(Unreadable::Offer)?;
    let mut buffer = PassBuffer::default();
    let unchecked = buffer.decode(pass).map_err(|_| Unreadable::Pass)?;
    // The memory of limit, gate and queue comes while the signature is checked.
    let hint = unchecked.hint();
    let keys = Keys::of(app, card, hint.buyer);
    app.buyer_rate.fetch(keys.rate);
    app.gate.fetch(&card.gate, keys.gate, hint.order);
    match app.pass_keys.check(unchecked) {
        Ok(pass) if pass.offer == card.offer.id => Ok(judge(app, card, &pass, keys, quantity, patience, now)),
        Ok(_) | Err(_) => Err(Unreadable::Pass),
    }
}

/// Pass and quantity of a body as `JSON.stringify({pass, quantity})` writes it, which nearly every body is, read without a
/// parser. `None`: it may be as good, but a parser has to say so.
fn usual(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let inner = bytes.strip_prefix(br#"{"pass":""#)?.strip_suffix(b"}")?;
    let digits = inner.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (before, digits) = inner.split_at_checked(inner.len().checked_sub(digits)?)?;
    let pass = before.strip_suffix(br#"","quantity":"#)?;
    let is_number = match digits {
        [_] => true,
        [first, ..] => *first != b'0' && digits.len() <= QUANTITY_DIGITS_MAX,
        [] => false,
    };
    if !is_number {
        return None;
    }
    let quantity = digits.iter().fold(0, |number, digit| number * 10 + u32::from(digit - b'0'));
    // All bytes are looked at, also behind one that is wrong: so many are looked at together.
    let stands_for_itself = |byte: u8| matches!(byte, b' '..=b'~') & (byte != b'"') & (byte != b'\\');
    let is_text = pass.iter().fold(true, |all, byte| all & stands_for_itself(*byte));
    is_text.then_some((pass, quantity))
}

/// As [`Object`] reads, and at the price of one byte: nearly always the body is as it must be.
fn read_object<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, serde_json::Error> {
    if bytes.trim_ascii_start().first() == Some(&b'[') {
        return serde_json::from_slice(bytes).map(|Object(value)| value);
    }
    serde_json::from_slice(bytes)
}

/// What limit and gate know a buyer by: a name is hashed once for each.
#[derive(Clone, Copy)]
struct Keys {
    rate: Spot,
    gate: gate::Key,
}

impl Keys {
    #[inline]
    fn of(app: &App, card: &OfferCard, buyer: &str) -> Self {
        Self { rate: app.buyer_rate.spot(buyer), gate: app.gate.memory.key(&card.gate, buyer) }
    }
}

fn judge(
    app: &App,
    card: &OfferCard,
    pass: &Pass<'_>,
    keys: Keys,
    quantity: u32,
    patience: Duration,
    now: UnixMs,
) -> Begun {
    let funnel = &card.sale.funnel;
    funnel.inc(Step::Try);
    // Whatever a try asks for, it counts: a pass is no licence to ask nonsense without end.
    if let Err(wait) = app.buyer_rate.check_at(keys.rate) {
        funnel.inc(Step::TooFast);
        return Begun::Answer(too_fast(app, Shed::PerBuyer, wait).into());
    }
    // The pass comes before the quantity: what an expired one asks for does not matter any more.
    let is_expired = pass.expires_at < now;
    if !is_expired && (quantity == 0 || quantity > card.offer.max_per_order) {
        app.metrics.tries.inc(Tried::InvalidRequest);
        return Begun::Answer(bad_quantity(card.offer.max_per_order).into());
    }
    let later = |why| match BuyerId::parse(pass.buyer) {
        Ok(buyer) => Begun::Later(Later::new(pass, buyer, quantity, now, patience), why),
        Err(_) => Begun::Answer(Said::Prepared(&PASS_INVALID)),
    };
    if is_expired {
        return later(Why::Expired);
    }
    let attempt = Try { buyer: pass.buyer, order: pass.order, quantity, pass_expires_at: pass.expires_at };
    match app.gate.begin(keys.gate, &card.gate, &attempt, now) {
        gate::Begun::Committing { claim, reply } => {
            let json = card.queued_json(claim.order, claim.quantity, claim.claimed_at);
            Begun::Committing { reply, claim, json, patience }
        }
        gate::Begun::Pending(pending) => later(Why::Pending(pending)),
        gate::Begun::Answer(verdict) => match say(app, card, verdict) {
            Some(said) => Begun::Answer(said),
            None => later(Why::Repeat),
        },
    }
}

/// Counts a verdict and says it; `None` for the same request again, whose answer is the order itself.
fn say(app: &App, card: &OfferCard, verdict: Verdict) -> Option<Said> {
    let (tried, step) = counted(verdict);
    app.metrics.tries.inc(tried);
    if let Some(step) = step {
        card.sale.funnel.inc(step);
    }
    let response = match verdict {
        Verdict::SoldOut => return Some(Said::Prepared(&SOLD_OUT)),
        Verdict::Ended => return Some(Said::Prepared(&ENDED)),
        Verdict::Paused => return Some(Said::Prepared(&PAUSED)),
        // Granted never comes here; if it did, nothing durable stands behind it.
        Verdict::Busy | Verdict::Granted => return Some(Said::Prepared(&BUSY)),
        Verdict::PassReused => answer::refuse(Code::PassReused),
        Verdict::NotEnough { available } => {
            answer::problem(Code::NotEnough, Extra { available: Some(available), ..Extra::default() })
        }
        Verdict::AlreadyOrdered { order } => {
            answer::problem(Code::AlreadyOrdered, Extra { order_id: Some(order), ..Extra::default() })
        }
        Verdict::NotOpen { opens_in_ms } => not_open(opens_in_ms),
        Verdict::Repeat | Verdict::Spent => return None,
    };
    Some(response.into())
}

/// Counts a grant that is durable.
pub fn granted(app: &App, claim: &Claim) {
    app.metrics.tries.inc(Tried::Granted);
    if let Some(card) = app.catalogue.read().offers.get(&claim.offer) {
        card.sale.funnel.inc(Step::Granted);
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

/// A try whose answer needs more than memory, with all that it takes.
#[derive(Debug)]
pub struct Later {
    offer: OfferId,
    order: OrderId,
    buyer: BuyerId,
    quantity: u32,
    pass_expires_at: UnixMs,
    asked_at: UnixMs,
    patience: Duration,
}

impl Later {
    fn new(pass: &Pass<'_>, buyer: BuyerId, quantity: u32, asked_at: UnixMs, patience: Duration) -> Self {
        let (offer, order, pass_expires_at) = (pass.offer, pass.order, pass.expires_at);
        Self { offer, order, buyer, quantity, pass_expires_at, asked_at, patience }
    }

    pub fn of(claim: &Claim, patience: Duration) -> Self {
        Self {
            offer: claim.offer,
            order: claim.order,
            buyer: claim.buyer.clone(),
            quantity: claim.quantity,
            pass_expires_at: claim.pass_expires_at,
            asked_at: claim.claimed_at,
            patience,
        }
    }

    pub async fn answer(self, app: &Arc<App>, why: Why, permit: Option<Permit>) -> Response<Body> {
        match why {
            Why::Expired => self.expired(app).await,
            Why::Repeat => self.repeat(app, permit).await,
            Why::Pending(pending) => match pending.await {
                Ok(Outcome::Committed | Outcome::RolledBack) => self.again(app, permit).await,
                Ok(Outcome::Unsure) | Err(_) => self.tell(app, Claimed::Unsure, permit).await,
            },
        }
    }

    async fn again(self, app: &Arc<App>, permit: Option<Permit>) -> Response<Body> {
        let Some(card) = app.catalogue.offer(self.offer) else { return answer::refuse(Code::NotFound) };
        let attempt = Try {
            buyer: self.buyer.as_str(),
            order: self.order,
            quantity: self.quantity,
            pass_expires_at: self.pass_expires_at,
        };
        let claimed = app.gate.claim(&card.gate, &attempt, self.asked_at).await;
        self.tell(app, claimed, permit).await
    }

    pub async fn tell(self, app: &Arc<App>, claimed: Claimed, permit: Option<Permit>) -> Response<Body> {
        match claimed {
            Claimed::Queued(claim) => {
                granted(app, &claim);
                self.wait_for_record(app, permit).await
            }
            Claimed::Unsure => {
                app.metrics.tries.inc(Tried::Unsure);
                unsure(self.order)
            }
            Claimed::Answer(verdict) => {
                let said = app.catalogue.offer(self.offer).map(|card| say(app, &card, verdict));
                match said {
                    Some(Some(said)) => said.into_response(),
                    Some(None) => self.repeat(app, permit).await,
                    None => answer::refuse(Code::NotFound),
                }
            }
        }
    }

    /// The same request again: the same order again.
    async fn repeat(self, app: &Arc<App>, permit: Option<Permit>) -> Response<Body> {
        if self.patience.is_zero() {
            return show(app.see_order(self.order, &self.buyer).await, self.order, StatusCode::OK);
        }
        self.wait_for_record(app, permit).await
    }

    async fn wait_for_record(self, app: &Arc<App>, permit: Option<Permit>) -> Response<Body> {
        // When too many wait, the answer comes at once: that is less than was asked for, and never wrong.
        let waiter = router::enter(app, Class::Waiter);
        let patience = if waiter.is_ok() { self.patience } else { Duration::ZERO };
        // Who waits gives the place among those under way to the next one.
        drop(permit);
        let seen = app.await_order_while_open(self.order, &self.buyer, None, patience).await;
        show(seen, self.order, StatusCode::CREATED)
    }

    /// An expired pass shows its order if there is one.
    async fn expired(self, app: &Arc<App>) -> Response<Body> {
        let Ok(_place) = router::enter(app, Class::Expired) else {
            app.metrics.tries.inc(Tried::Busy);
            return BUSY.response();
        };
        app.metrics.tries.inc(Tried::PassExpired);
        match app.see_order(self.order, &self.buyer).await {
            Ok(Seen::Order(order)) => answer::order(StatusCode::OK, &order),
            Ok(Seen::NotFound) => answer::refuse(Code::PassExpired),
            Ok(Seen::Unsure) => unsure(self.order),
            Err(_) => BUSY.response(),
        }
    }
}

fn show(seen: Result<Seen, LedgerError>, asked: OrderId, recorded: StatusCode) -> Response<Body> {
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
        Ok(Seen::Unsure | Seen::NotFound) | Err(_) => unsure(asked),
    }
}

fn unsure(order: OrderId) -> Response<Body> {
    answer::problem(Code::Unsure, Extra { order_id: Some(order), ..Extra::default() })
}

/// Without a valid pass nobody knows who asks: the address is what is counted. `Some` when it asks too often.
fn no_pass(app: &App, headers: &HeaderMap, peer: IpAddr) -> Option<Response<Body>> {
    let address = app.client_ip.of(peer, super::forwarded_for(headers));
    let wait = app.address_rate.check(IpKey::from(address)).err()?;
    Some(too_fast(app, Shed::PerIp, wait))
}

fn too_fast(app: &App, full: Shed, wait: TooFast) -> Response<Body> {
    app.metrics.tries.inc(Tried::TooFast);
    app.metrics.shed.inc(full);
    let retry_after_ms = Some(wait.retry_after_ms);
    answer::problem(Code::TooFast, Extra { retry_after_ms, ..Extra::default() })
}

fn bad_body(app: &App, headers: &HeaderMap, peer: IpAddr, error: ReadError) -> Response<Body> {
    no_pass(app, headers, peer).unwrap_or_else(|| {
        app.metrics.tries.inc(Tried::InvalidRequest);
        answer::refuse(error.code())
    })
}

fn bad_json(app: &App, bytes: &[u8], error: &serde_json::Error) -> Response<Body> {
    app.metrics.tries.inc(Tried::InvalidRequest);
    let detail = Some(error.to_string());
    if !is_misfit(error, bytes) {
        return answer::problem(Code::Malformed, Extra { detail, ..Extra::default() });
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let misfit = serde_path_to_error::deserialize::<_, Object<TryBody<'_>>>(&mut reader).err();
    let field = misfit.and_then(|misfit| {
        let path = misfit.path().to_string();
        missing_field(&misfit.inner().to_string(), &path).or_else(|| (path != ".").then_some(path))
    });
    answer::problem(Code::InvalidRequest, Extra { detail, field, ..Extra::default() })
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
    // Each preference may stand on a line of its own.
    let lines = headers.get_all("prefer").into_iter().filter_map(|line| line.to_str().ok());
    let seconds = lines.flat_map(|line| line.split([',', ';'])).find_map(|part| {
        let (name, value) = part.split_once('=')?;
        let value = value.trim().trim_matches('"');
        name.trim().eq_ignore_ascii_case("wait").then(|| value.parse::<u64>().ok())?
    });
    Duration::from_secs(seconds.unwrap_or(0).min(longest_s.into()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_path_of_a_try_is_recognised() {
        assert_eq!(offer_of("/api/v1/offers/abc/orders"), Some("abc"));
        assert_eq!(offer_of("/api/v1/offers/abc/pass"), None);
        assert_eq!(offer_of("/api/v1/offers/a/b/orders"), None);
        assert_eq!(offer_of("/api/v1/offers//orders"), Some(""));
    }

    #[test]
    fn what_pages_send_is_read_without_a_parser() {
        let body = |pass: &str, quantity: &str| format!(r#"{{"pass":"{pass}","quantity":{quantity}}}"#);
        for (pass, quantity) in [("aZ09-_", 1), ("", 0), ("{}[],: 'x'", 7), ("x", 999_999_999)] {
            let body = body(pass, &quantity.to_string());
            assert_eq!(usual(body.as_bytes()), Some((pass.as_bytes(), quantity)), "{body}");
        }
        let doubtful = [
            ("a\\u0062", "1"),
            ("a\"b", "1"),
            ("买", "1"),
            ("a\u{7f}", "1"),
            ("a\nb", "1"),
            ("a", "01"),
            ("a", "-1"),
            ("a", "1.0"),
            ("a", "1e2"),
            ("a", "1000000000"),
            ("a", "99999999999999999999"),
            ("a", ""),
            ("a", " 1"),
            ("a", "1 "),
            ("a", "null"),
            ("a", "1,\"pass\":\"b\""),
            ("a", "1,\"quantity\":2"),
        ];
        for (pass, quantity) in doubtful {
            let body = body(pass, quantity);
            assert_eq!(usual(body.as_bytes()), None, "{body}");
        }
        for body in ["", "{}", "}", "{\"pass\":\"", "{\"pass\":\"}", "{\"quantity\":1,\"pass\":\"a\"}"] {
            assert_eq!(usual(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn what_is_read_without_a_parser_is_what_the_parser_reads() {
        let text = r#"[ -~"\\{}:,0-9a-zé买]{0,12}"#;
        let number = prop_oneof![4 => "[0-9]{1,9}", 1 => r"[0-9]{0,11}|-?[0-9]{1,3}(\.[0-9])?|1e1|null"];
        let rest = prop_oneof![4 => Just(String::new()), 1 => r#",("pass":"a"|"quantity":1)| "#];
        let parts = (text, number, rest);
        proptest!(|((pass, quantity, behind) in parts)| {
            let body = format!(r#"{{"pass":"{pass}","quantity":{quantity}{behind}}}"#);
            if let Some((read, number)) = usual(body.as_bytes()) {
                let parsed: TryBody<'_> = read_object(body.as_bytes()).unwrap();
                prop_assert_eq!((parsed.pass.as_bytes(), parsed.quantity), (read, number));
            }
        });
    }

    #[test]
    fn the_preferred_wait_is_read_and_capped() {
        let wait = |lines: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append("prefer", http::HeaderValue::from_static(line));
            }
            preferred_wait(&headers, 30).as_secs()
        };
        assert_eq!(wait(&["wait=2"]), 2);
        assert_eq!(wait(&["respond-async, wait=5"]), 5);
        assert_eq!(wait(&["respond-async", "wait=6"]), 6);
        assert_eq!(wait(&["Wait = \"7\""]), 7);
        assert_eq!(wait(&["wait=99999"]), 30);
        assert_eq!(wait(&["wait=-1"]), 0);
        assert_eq!(wait(&["wait"]), 0);
        assert_eq!(wait(&[]), 0);
    }
}
