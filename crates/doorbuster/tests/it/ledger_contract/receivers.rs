//! Receivers of events and what they lack: woken after it was given up, in whatever number.

use doorbuster::ledger::sqlite::{Past, Webhook};
use doorbuster::outbox::signature::Secret;
use rules::id::WebhookId;
use rules::time::UnixMs;
use rules::wire::ReceiverKind;

use super::{Books, NOW, sqlite};

const ID: WebhookId = WebhookId(7);

/// More than one commit wakes.
const PARKED: u32 = 2_500;

/// Events in a row that belong to one track.
const PER_TRACK: u32 = 5;

async fn webhook(books: &Books) -> Webhook {
    let webhook = Webhook {
        no: 0,
        id: ID,
        kind: ReceiverKind::Webhook,
        url: "https://shop.example/".into(),
        types: Vec::new(),
        disabled: false,
        disabled_reason: None,
        secret: Secret::random(),
        previous: Vec::new(),
        cursor: 0,
        created_at: NOW,
    };
    assert!(books.ledger.add_webhook(webhook, None).await.unwrap());
    books.ledger.webhook(ID).await.unwrap().unwrap()
}

async fn a_replay_wakes_all_that_was_given_up_and_each_track_has_one_head(books: Books) {
    let webhook = webhook(&books).await;
    let sql = format!(
        "with recursive numbers (i) as (select 1 union all select i + 1 from numbers where i < {PARKED})
         insert into events (type, at, data) select 'test', 1, '{{}}' from numbers;
         insert into deliveries (webhook_no, event_no, track, state, attempts, since, problem)
         select {}, event_no, event_no / {PER_TRACK}, 'parked', 9, 1, 'no' from events where type = 'test';",
        webhook.no
    );
    books.plant(&sql);
    let later = NOW.plus_s(60);
    assert_eq!(books.ledger.replay_webhook(ID, None, later).await.unwrap(), Some(u64::from(PARKED)));
    let standing = books.ledger.webhook_standing(webhook.no).await.unwrap();
    assert_eq!((standing.waiting, standing.parked), (u64::from(PARKED), 0));
    let sql = "with heads as (select min(event_no) as event_no from deliveries group by track)
        select count(*), sum(event_no in heads), (select count(*) from heads) from deliveries where due_at is not null";
    let [due, first_and_due, tracks] = books.numbers(sql);
    assert_eq!((due, first_and_due), (tracks, tracks), "the first of each track is due, and no other");
    let taken = books.ledger.take_deliveries(webhook.no, webhook.cursor, 1, later, |_| true).await.unwrap();
    assert_eq!(taken.deliveries[0].past, Past::Waiting { attempts: 0, since: later }, "the time begins anew");
    assert_eq!(books.ledger.replay_webhook(ID, None, later).await.unwrap(), Some(0));
    assert_eq!(
        books.ledger.replay_webhook(ID, Some(UnixMs(0)), later).await.unwrap(),
        Some(3 + u64::from(PARKED))
    );
    assert_eq!(books.ledger.webhook(ID).await.unwrap().unwrap().cursor, 0);
    assert_eq!(books.ledger.replay_webhook(WebhookId(8), None, later).await.unwrap(), None);
}

contract!(sqlite_ledger, sqlite, a_replay_wakes_all_that_was_given_up_and_each_track_has_one_head(3));
