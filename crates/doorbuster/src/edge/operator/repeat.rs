//! A repeated request of an operator is harmless: a POST with an Idempotency-Key happens once, and every repeat gets
//! the first answer, also after a restart.
//!
//! The answer is remembered after the change. If the process dies in between, the repeat acts again; that is harmless
//! for calls that do what is done already. Calls that make something new remember their answer in the same commit
//! (see [`Keyed::answer`]), so that there is no in between.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;

use aws_lc_rs::digest::{Context, SHA256};
use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::{HeaderMap, Method, StatusCode};
use parking_lot::Mutex;
use rules::wire::Code;

use super::OPERATOR_BODY_BYTES_MAX;
use crate::app::App;
use crate::crash;
use crate::edge::answer::{self, JSON, PROBLEM_JSON};
use crate::edge::extract::{has_admin_key, read_within};
use crate::edge::refusal::{Answer, Refusal};
use crate::ledger;

const HEADER: &str = "idempotency-key";

/// What every POST of an operator may carry.
#[derive(Debug, utoipa::IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "it describes the header; `answer_once` reads it")]
pub struct IdempotencyKey {
    /// 1 to 255 visible characters. The same request with the same key again gets the first answer, for a day.
    #[param(rename = "Idempotency-Key", min_length = 1, max_length = 255, pattern = "^[!-~]*$")]
    key: Option<String>,
}

/// Longest key, in characters.
const KEY_CHARS_MAX: usize = 255;

/// Keys whose first request is still being answered. As many as the operators' reserve lets in.
#[derive(Debug, Default)]
pub struct KeysUnderWay(Mutex<HashSet<String>>);

/// The turn of a key; ends when it is dropped.
struct Turn {
    app: Arc<App>,
    key: String,
}

impl Turn {
    fn take(app: &Arc<App>, key: &str) -> Option<Self> {
        let first = app.keys_under_way.0.lock().insert(key.to_owned());
        first.then(|| Self { app: Arc::clone(app), key: key.to_owned() })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.app.keys_under_way.0.lock().remove(&self.key);
    }
}

/// The key a request came with, if any, and what the request was.
#[derive(Clone, Debug)]
pub struct Keyed(Option<Asked>);

#[derive(Clone, Debug)]
struct Asked {
    key: String,
    digest: Vec<u8>,
}

impl FromRequestParts<Arc<App>> for Keyed {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get::<Asked>().cloned()))
    }
}

impl Keyed {
    /// The answer that this request will get, to be remembered with the change itself.
    pub fn answer(&self, status: StatusCode, value: &impl serde::Serialize) -> Option<ledger::KeyedAnswer> {
        let Asked { key, digest } = self.0.clone()?;
        // What the wire types hold can always be written.
        let body = serde_json::to_string(value).unwrap_or_default();
        let answer = ledger::Answer { request_digest: digest, status: status.as_u16(), body };
        Some(ledger::KeyedAnswer { key, answer })
    }
}

/// Answers a POST that carries a key once; everything else goes straight on.
pub async fn answer_once(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let keyed = request.method() == Method::POST && request.headers().contains_key(HEADER);
    // Without the admin key the call itself refuses, and nobody can fill our memory with answers.
    if !keyed || !has_admin_key(request.headers(), &app) {
        return next.run(request).await;
    }
    once(app, request, next).await.unwrap_or_else(|refusal| refusal.into_response())
}

async fn once(app: Arc<App>, request: Request, next: Next) -> Answer {
    let key = read_key(request.headers())?;
    let (mut parts, body) = request.into_parts();
    let bytes = read_within(body, OPERATOR_BODY_BYTES_MAX, &app).await?;
    let digest = digest_of(&parts, &bytes);
    let under_way =
        || Refusal::detail(Code::NotYet, "The first request with this Idempotency-Key is under way.");
    let turn = Turn::take(&app, &key).ok_or_else(under_way)?;
    if let Some(first) = app.ledger.answer(key.clone()).await? {
        return if first.request_digest == digest {
            Ok(replay(first))
        } else {
            Err(Refusal::new(Code::KeyReused))
        };
    }
    let this = Asked { key, digest };
    parts.extensions.insert(this.clone());
    let request = Request::from_parts(parts, Body::from(bytes));
    // To its end, also when the client hangs up: its repeat must find either the turn or the answer.
    let work = async move {
        let response = next.run(request).await;
        crash::point("desk.acted");
        remember(&turn, this, response).await
    };
    let task = app.tasks.spawn_on(work, &app.runtime);
    task.await.unwrap_or_else(|_| Err(Refusal::new(Code::Unsure)))
}

fn read_key(headers: &HeaderMap) -> Result<String, Refusal> {
    let refused = || {
        Refusal::field(
            "Idempotency-Key",
            format_args!("must be 1 to {KEY_CHARS_MAX} visible ASCII characters, once"),
        )
    };
    let mut all = headers.get_all(HEADER).iter();
    let (Some(value), None) = (all.next(), all.next()) else { return Err(refused()) };
    let good =
        (1..=KEY_CHARS_MAX).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic);
    if good { value.to_str().map(str::to_owned).map_err(|_| refused()) } else { Err(refused()) }
}

/// What was asked: method, path and body, each closed off from the next.
fn digest_of(parts: &Parts, body: &[u8]) -> Vec<u8> {
    let mut context = Context::new(&SHA256);
    for part in [parts.method.as_str(), parts.uri.path(), parts.uri.query().unwrap_or_default()] {
        context.update(part.as_bytes());
        context.update(b"\0");
    }
    context.update(body);
    context.finish().as_ref().to_vec()
}

/// Keeps an answer that says what was decided. Not kept: that a request could not be read, so that its sender can
/// mend it; and that we failed, so that a repeat tries again.
async fn remember(turn: &Turn, request: Asked, response: Response) -> Answer {
    let (parts, body) = response.into_parts();
    let unsure = |_| Refusal::new(Code::Unsure);
    let bytes = axum::body::to_bytes(body, usize::MAX).await.map_err(unsure)?;
    let decided = matches!(parts.status.as_u16(), 200..400 | 404 | 409 | 410 | 422);
    if decided && let Ok(body) = std::str::from_utf8(&bytes) {
        let Asked { key, digest } = request;
        let (status, body) = (parts.status.as_u16(), body.to_owned());
        let answer = ledger::Answer { request_digest: digest, status, body };
        let keyed = ledger::KeyedAnswer { key, answer };
        if let Err(error) = turn.app.ledger.remember_answer(keyed, turn.app.clock.now()).await {
            tracing::warn!(%error, "an answer could not be remembered; a repeat would act again");
        }
    }
    Ok(Response::from_parts(parts, Body::from(bytes)))
}

fn replay(first: ledger::Answer) -> Response {
    let status = StatusCode::from_u16(first.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let kind = if status.is_success() { JSON } else { PROBLEM_JSON };
    answer::bytes(status, kind, first.body.into()).map(Body::new)
}
