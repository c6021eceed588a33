//! Who is told of events: webhooks as their operator makes, sees, changes, deletes and repeats them.

use std::sync::Arc;

use axum::extract::State;
use http::StatusCode;
use rules::id::{WebhookId, timed};
use rules::wire::{
    Code, Page, ParkedView, ReceiverKind, ReplayRequest, Replayed, WebhookChange, WebhookDraft,
    WebhookSecret, WebhookTested, WebhookView,
};
use serde::Deserialize;

use super::refusals::{OfAll, OfCreate, OfEdit, OfLook, OfPage, OfRemove, OfReplay, OfSecret};
use super::repeat::{IdempotencyKey, Keyed};
use super::sales::no_content;
use super::{Operator, OperatorBody, OptionalBody, number_cursor, page_limit};
use crate::app::App;
use crate::edge::extract::{IdPath, QueryOf};
use crate::edge::refusal::{Answer, Refusal, json};
use crate::ledger::LedgerResult;
use crate::ledger::sqlite::{SecretChange, Standing, WEBHOOKS_MAX, Webhook, WebhookEdit};
use crate::outbox::endpoint::{check_types, check_url};
use crate::outbox::signature::Secret;
use crate::outbox::trial;

/// How long a secret goes on signing after it was changed, in seconds: a day to bring the new one to every receiver.
const PREVIOUS_SECRET_S: u32 = 86_400;

const BROKER_IS_SET: &str = "This is the broker of the settings. Make broker.url empty and restart first.";

/// Makes a webhook. It is told of what happens from now on. The answer shows its secret, once.
#[utoipa::path(
    post, path = "/admin/v1/webhooks", tag = "operator", request_body = WebhookDraft,
    params(IdempotencyKey),
    responses((status = 201, body = WebhookSecret), OfCreate), security(("admin_key" = []))
)]
pub async fn create(
    _: Operator,
    State(app): State<Arc<App>>,
    keyed: Keyed,
    OperatorBody(draft): OperatorBody<WebhookDraft>,
) -> Answer {
    let url = check_address(&app, &draft.url)?;
    check_list(&draft.types)?;
    let now = app.clock.now();
    let webhook = Webhook {
        no: 0,
        id: WebhookId(timed(now, rand::random())),
        kind: ReceiverKind::Webhook,
        url,
        types: draft.types,
        disabled: draft.disabled,
        disabled_reason: None,
        secret: Secret::random(),
        previous: Vec::new(),
        cursor: 0,
        created_at: now,
    };
    let shown =
        WebhookSecret { webhook: view(&app, &webhook, Standing::default()), secret: webhook.secret.reveal() };
    let (ledger, answer) = (app.ledger.clone(), keyed.answer(StatusCode::CREATED, &shown));
    if !tell_couriers(&app, async move { ledger.add_webhook(webhook, answer).await }).await? {
        let detail = format!("There are {WEBHOOKS_MAX} webhooks already; delete one first.");
        return Err(Refusal::detail(Code::InvalidRequest, detail));
    }
    Ok(json(StatusCode::CREATED, &shown))
}

/// All receivers, oldest first: at most 100 webhooks, and the broker if one is set.
#[utoipa::path(
    get, path = "/admin/v1/webhooks", tag = "operator",
    responses((status = 200, body = Page<WebhookView>), OfAll), security(("admin_key" = []))
)]
pub async fn list(_: Operator, State(app): State<Arc<App>>) -> Answer {
    let mut items = Vec::new();
    for webhook in app.ledger.webhooks().await? {
        items.push(view(&app, &webhook, app.ledger.webhook_standing(webhook.no).await?));
    }
    Ok(json(StatusCode::OK, &Page { items, next_cursor: None }))
}

/// One webhook and how it stands.
#[utoipa::path(
    get, path = "/admin/v1/webhooks/{webhook}", tag = "operator", params(("webhook" = WebhookId, Path)),
    responses((status = 200, body = WebhookView), OfLook), security(("admin_key" = []))
)]
pub async fn get(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<WebhookId>) -> Answer {
    let webhook = known(app.ledger.webhook(id).await?)?;
    Ok(json(StatusCode::OK, &standing_view(&app, &webhook).await?))
}

/// Changes a webhook. While it is disabled, events wait for it.
#[utoipa::path(
    patch, path = "/admin/v1/webhooks/{webhook}", tag = "operator", params(("webhook" = WebhookId, Path)),
    request_body = WebhookChange,
    responses((status = 200, body = WebhookView), OfEdit), security(("admin_key" = []))
)]
pub async fn change(
    _: Operator,
    State(app): State<Arc<App>>,
    IdPath(id): IdPath<WebhookId>,
    OperatorBody(WebhookChange { url, types, disabled }): OperatorBody<WebhookChange>,
) -> Answer {
    let url = url.map(|url| check_address(&app, &url)).transpose()?;
    types.as_deref().map_or(Ok(()), check_list)?;
    if url.is_some() || types.is_some() {
        let field = if url.is_some() { "url" } else { "types" };
        webhook_only(known(app.ledger.webhook(id).await?)?.kind, field)?;
    }
    let (ledger, edit, now) = (app.ledger.clone(), WebhookEdit { url, types, disabled }, app.clock.now());
    let webhook = known(tell_couriers(&app, async move { ledger.edit_webhook(id, edit, now).await }).await?)?;
    Ok(json(StatusCode::OK, &standing_view(&app, &webhook).await?))
}

/// Deletes a webhook and forgets all that waits for it. A broker can be deleted once it is no longer set.
#[utoipa::path(
    delete, path = "/admin/v1/webhooks/{webhook}", tag = "operator", params(("webhook" = WebhookId, Path)),
    responses((status = 204), OfRemove), security(("admin_key" = []))
)]
pub async fn delete(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<WebhookId>) -> Answer {
    if let Some(webhook) = app.ledger.webhook(id).await?
        && webhook.kind == ReceiverKind::Broker
        && app.dispatch.broker().is_some()
    {
        return Err(Refusal::detail(Code::InvalidRequest, BROKER_IS_SET));
    }
    let ledger = app.ledger.clone();
    let deleted = tell_couriers(&app, async move { ledger.delete_webhook(id).await }).await?;
    if deleted { Ok(no_content()) } else { Err(Refusal::new(Code::NotFound)) }
}

/// Gives a webhook a new secret and shows it, once. Every secret goes on signing for a day after it was changed; ten
/// may do so at once.
#[utoipa::path(
    post, path = "/admin/v1/webhooks/{webhook}/secret", tag = "operator",
    params(("webhook" = WebhookId, Path),
        IdempotencyKey),
    responses((status = 200, body = WebhookSecret), OfSecret), security(("admin_key" = []))
)]
pub async fn change_secret(
    _: Operator,
    State(app): State<Arc<App>>,
    keyed: Keyed,
    IdPath(id): IdPath<WebhookId>,
) -> Answer {
    let webhook = known(app.ledger.webhook(id).await?)?;
    webhook_only(webhook.kind, "secret")?;
    let (secret, now) = (Secret::random(), app.clock.now());
    let until = now.plus_s(PREVIOUS_SECRET_S);
    let view = standing_view(&app, &webhook).await?;
    let view = WebhookView { previous_secret_until: Some(until), ..view };
    let shown = WebhookSecret { webhook: view, secret: secret.reveal() };
    let (ledger, answer) = (app.ledger.clone(), keyed.answer(StatusCode::OK, &shown));
    let changing = async move { ledger.change_webhook_secret(id, secret, until, answer, now).await };
    match tell_couriers(&app, changing).await? {
        SecretChange::Changed => Ok(json(StatusCode::OK, &shown)),
        SecretChange::NoWebhook => Err(Refusal::new(Code::NotFound)),
        SecretChange::TooMany { until } => {
            let detail = format!("As many secrets sign as may at once. The first of them ends at {until}.");
            Err(Refusal::detail(Code::InvalidRequest, detail))
        }
    }
}

/// Delivers again what is parked; with `since` also everything that happened from then on, as far as it is kept.
/// Receivers know repeats by their `webhook-id`.
#[utoipa::path(
    post, path = "/admin/v1/webhooks/{webhook}/replay", tag = "operator",
    params(("webhook" = WebhookId, Path), IdempotencyKey),
    request_body = Option<ReplayRequest>,
    responses((status = 200, body = Replayed), OfReplay), security(("admin_key" = []))
)]
pub async fn replay(
    _: Operator,
    State(app): State<Arc<App>>,
    IdPath(webhook_id): IdPath<WebhookId>,
    OptionalBody(ReplayRequest { since }): OptionalBody<ReplayRequest>,
) -> Answer {
    let (ledger, now) = (app.ledger.clone(), app.clock.now());
    let replaying = async move { ledger.replay_webhook(webhook_id, since, now).await };
    let events = known(tell_couriers(&app, replaying).await?)?;
    Ok(json(StatusCode::OK, &Replayed { webhook_id, events }))
}

/// Sends one event of type `webhook.test` to this webhook now, once, whatever types it wants and also while it is
/// disabled, and says whether the receiver took it. Events that wait are not touched.
#[utoipa::path(
    post, path = "/admin/v1/webhooks/{webhook}/test", tag = "operator",
    params(("webhook" = WebhookId, Path), IdempotencyKey),
    responses((status = 200, body = WebhookTested), OfSecret), security(("admin_key" = []))
)]
pub async fn test(_: Operator, State(app): State<Arc<App>>, IdPath(id): IdPath<WebhookId>) -> Answer {
    let webhook = known(app.ledger.webhook(id).await?)?;
    Ok(json(StatusCode::OK, &trial::send(&app, &webhook).await))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ParkedList {
    /// 1 to 200, 50 when not given.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200, default = 50)]
    limit: Option<String>,
    #[param(pattern = "^[0-9]{0,19}$")]
    cursor: Option<String>,
}

/// Events that were given up, oldest first, and why.
#[utoipa::path(
    get, path = "/admin/v1/webhooks/{webhook}/parked", tag = "operator",
    params(("webhook" = WebhookId, Path), ParkedList),
    responses((status = 200, body = Page<ParkedView>), OfPage), security(("admin_key" = []))
)]
pub async fn parked(
    _: Operator,
    State(app): State<Arc<App>>,
    IdPath(id): IdPath<WebhookId>,
    QueryOf(query): QueryOf<ParkedList>,
) -> Answer {
    let limit = page_limit(query.limit.as_deref())?;
    let after = number_cursor(query.cursor.as_deref())?.unwrap_or(0);
    let webhook = known(app.ledger.webhook(id).await?)?;
    let (events, more) = app.ledger.parked_page(webhook.no, after, limit).await?;
    let next_cursor = events.last().filter(|_| more).map(|event| event.no.to_string());
    let items = events.into_iter().map(|event| ParkedView {
        event_id: event.id,
        kind: event.kind,
        at: event.at,
        attempts: event.attempts,
        problem: event.problem,
    });
    Ok(json(StatusCode::OK, &Page { items: items.collect::<Vec<_>>(), next_cursor }))
}

/// Makes a change and lets the couriers know, also if whoever asked hangs up in between.
async fn tell_couriers<T: Send + 'static>(
    app: &Arc<App>,
    change: impl Future<Output = LedgerResult<T>> + Send + 'static,
) -> LedgerResult<T> {
    let teller = Arc::clone(app);
    app.to_the_end(async move {
        let changed = change.await;
        teller.dispatch.changed();
        changed
    })
    .await
}

fn known<T>(found: Option<T>) -> Result<T, Refusal> {
    found.ok_or_else(|| Refusal::new(Code::NotFound))
}

/// The address as it will be asked for. What was sent may hold what parsing leaves out: ends of lines, for one.
fn check_address(app: &App, url: &str) -> Result<String, Refusal> {
    let private = app.settings.webhooks.private_addresses;
    check_url(url, private).map(String::from).map_err(|why| Refusal::field("url", why))
}

fn check_list(types: &[String]) -> Result<(), Refusal> {
    check_types(types).map_err(|why| Refusal::field("types", why))
}

async fn standing_view(app: &App, webhook: &Webhook) -> Result<WebhookView, Refusal> {
    Ok(view(app, webhook, app.ledger.webhook_standing(webhook.no).await?))
}

/// A broker has no secret of ours, and its address and types are settings.
fn webhook_only(kind: ReceiverKind, field: &'static str) -> Result<(), Refusal> {
    match kind {
        ReceiverKind::Webhook => Ok(()),
        ReceiverKind::Broker => Err(Refusal::field(
            field,
            "cannot be changed here: the settings broker.* say how the broker is used",
        )),
    }
}

fn view(app: &App, webhook: &Webhook, standing: Standing) -> WebhookView {
    let broker = app.dispatch.broker().filter(|_| webhook.kind == ReceiverKind::Broker);
    WebhookView {
        id: webhook.id,
        kind: webhook.kind,
        url: webhook.url.clone(),
        types: webhook.types.clone(),
        disabled: webhook.disabled,
        disabled_reason: webhook.disabled_reason.clone(),
        connected: broker.map(|broker| broker.is_connected()),
        created_at: webhook.created_at,
        previous_secret_until: webhook.previous.last().map(|(_, until)| *until),
        waiting: standing.waiting,
        parked: standing.parked,
        behind_since: standing.oldest,
        last_problem: broker.and_then(|broker| broker.problem()).or(standing.last_problem),
        dropped: standing.dropped,
    }
}
