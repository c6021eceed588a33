//! A delivery that an operator asks for, to see whether a receiver is there and takes what is signed. It is no fact: no
//! ledger has it, it is sent once, and nothing follows from it.

use rules::id::{EventId, timed};
use rules::wire::WebhookTested;

use super::sink::{Sink, WebhookSink};
use crate::app::App;
use crate::ledger::sqlite::{Event, Webhook};

/// The type of such an event.
pub const KIND: &str = "webhook.test";

/// Sends it and waits for the receiver, `webhooks.timeout_s` at most.
pub async fn send(app: &App, webhook: &Webhook) -> WebhookTested {
    let now = app.clock.now();
    let event = Event {
        no: 0,
        id: EventId(timed(now, rand::random())),
        kind: KIND.to_owned(),
        at: now,
        sale_id: None,
        offer_id: None,
        order_id: None,
        seq: None,
        data: serde_json::json!({"webhook_id": webhook.id}),
    };
    let private_addresses = app.settings.webhooks.private_addresses;
    let sink = WebhookSink::new(app.dispatch.client(), app.clock.clone(), webhook, private_addresses);
    let began = app.clock.instant();
    let problem = Sink::Webhook(sink).send(&event).await.err().map(|trouble| trouble.problem);
    WebhookTested {
        webhook_id: webhook.id,
        event_id: event.id,
        delivered: problem.is_none(),
        problem,
        took_ms: crate::clock::millis(began.elapsed()),
    }
}
