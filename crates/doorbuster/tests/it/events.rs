//! Events as operators read them over HTTP: from where they want, once each, and as soon as they happen.

use std::time::Duration;

use doorbuster::edge::limits::Class;
use doorbuster::outbox::endpoint::wants;
use serde_json::{Value, json};

use crate::app::{ADMIN_KEY, TestApp, draft_between, eventually, with_manual_clock};

async fn read(app: &TestApp, query: &str) -> (Vec<Value>, String) {
    let page = app.operate("GET", &format!("/admin/v1/events?{query}"), None, 200).await;
    (page["items"].as_array().unwrap().clone(), page["cursor"].as_str().unwrap().to_owned())
}

async fn kinds(app: &TestApp, query: &str) -> Vec<String> {
    let (items, _) = read(app, query).await;
    items.iter().map(|event| event["type"].as_str().unwrap().to_owned()).collect()
}

/// Until somebody waits for an answer.
async fn waits(app: &TestApp) {
    eventually("somebody waits", async || app.app.in_flight.used(Class::Watcher) > 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_read_on_from_a_cursor_and_none_twice() {
    let app = TestApp::start().await;
    let (none, start) = read(&app, "").await;
    assert_eq!((none.len(), start.len()), (0, 26), "a place to begin is there before the first event");
    let sale = app.open_sale(1).await;
    let ann = app.buyer("ann");
    let order = ann.buy(sale.offer(), 1, 202).await["id"].as_str().unwrap().to_owned();
    ann.order(&order).await;
    let all = ["sale.created", "sale.published", "sale.opened", "order.recorded", "offer.sold_out"];
    assert_eq!(kinds(&app, "").await, all);
    assert_eq!(kinds(&app, &format!("after={start}")).await, all);
    let (mut met, mut cursor) = (Vec::new(), start);
    loop {
        let (items, next) = read(&app, &format!("after={cursor}&limit=2")).await;
        if items.is_empty() {
            assert_eq!(next, cursor);
            break;
        }
        met.extend(items);
        cursor = next;
    }
    let ids: std::collections::BTreeSet<&str> =
        met.iter().map(|event| event["id"].as_str().unwrap()).collect();
    assert_eq!((met.len(), ids.len()), (5, 5));
    let recorded = &met[3];
    assert_eq!((&recorded["order_id"], &recorded["seq"]), (&json!(order), &json!(2)));
    assert_eq!((&recorded["sale_id"], &recorded["data"]["buyer"]), (&json!(sale.id), &json!("ann")));
    let after = recorded["id"].as_str().unwrap();
    assert_eq!(
        kinds(&app, &format!("after={after}")).await,
        ["offer.sold_out"],
        "an event's id is a place, too"
    );
    assert_eq!(kinds(&app, "types=order.*,sale.opened").await, ["sale.opened", "order.recorded"]);
    assert_eq!(kinds(&app, "last=2").await, all[3..]);
    assert_eq!(kinds(&app, "last=1&types=sale.*").await, ["sale.opened"]);
    assert_eq!(kinds(&app, "since=2020-01-01T00:00:00Z").await, all);
    assert_eq!(kinds(&app, "since=2100-01-01T00:00:00Z").await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_waits_is_answered_when_something_happens() {
    let app = TestApp::start().await;
    app.open_sale(1).await;
    let (_, cursor) = read(&app, "last=1").await;
    let path = format!("/admin/v1/events?after={cursor}&types=sale.paused&wait=20");
    let waiting = async { app.operate("GET", &path, None, 200).await };
    let acting = async {
        waits(&app).await;
        // Not wanted: the wait goes on.
        let other = app.open_sale(1).await;
        app.operate("POST", &format!("/admin/v1/sales/{}/pause", other.id), None, 200).await;
        other.id
    };
    let (page, paused) = tokio::join!(waiting, acting);
    assert_eq!((page["items"].as_array().unwrap().len(), &page["items"][0]["sale_id"]), (1, &json!(paused)));
    let cursor = page["cursor"].as_str().unwrap();
    assert_eq!(
        kinds(&app, &format!("after={cursor}&wait=1")).await,
        [""; 0],
        "and once the seconds are over"
    );
}

/// A process that ends does not cut off those who wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_ends_with_the_process() {
    let app = TestApp::start().await;
    let url = app.url("/admin/v1/events?wait=30");
    let client = app.client.clone();
    let waiting = tokio::spawn(async move { client.get(url).bearer_auth(ADMIN_KEY).send().await });
    waits(&app).await;
    app.stop().await;
    let answer = waiting.await.unwrap().unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.json::<Value>().await.unwrap()["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_that_is_wrong_names_what_is() {
    let app = TestApp::start().await;
    let foreign = "01k9zq3v8g7m4x2r5w6t0n1pbc";
    let (_, cursor) = read(&app, "").await;
    let ahead = format!("{}9", &cursor[..25]);
    for (query, field) in [
        (format!("after={foreign}"), "after"),
        (format!("after={ahead}"), "after"),
        ("after=x".to_owned(), "after"),
        ("since=soon".to_owned(), "since"),
        (format!("since=2026-01-01T00:00:00Z&after={cursor}"), "since"),
        (format!("last=3&after={cursor}"), "last"),
        ("last=0".to_owned(), "last"),
        ("types=orders".to_owned(), "types"),
        ("limit=201".to_owned(), "limit"),
        ("wait=long".to_owned(), "wait"),
    ] {
        let problem = app.operate("GET", &format!("/admin/v1/events?{query}"), None, 422).await;
        assert_eq!(problem["field"], field, "{query}: {problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_who_was_away_too_long_is_told_what_is_missing() {
    let (app, clock) = with_manual_clock(&[]).await;
    let (_, start) = read(&app, "").await;
    app.open_sale(1).await;
    let missed = async |query: &str| {
        app.operate("GET", &format!("/admin/v1/events?{query}"), None, 200).await["missed"].clone()
    };
    let (items, cursor) = read(&app, "limit=1").await;
    assert_eq!((items.len(), missed(&format!("after={start}")).await), (1, json!(0)));
    clock.advance(Duration::from_secs(1));
    app.open_sale(1).await;
    app.app.ledger.drop_old_events(clock.now(), clock.now(), wants).await.unwrap();
    assert_eq!(missed(&format!("after={start}")).await, 3, "the first sale was made, shown and open");
    assert_eq!(missed(&format!("after={cursor}&wait=1")).await, 2);
    assert_eq!(kinds(&app, &format!("after={cursor}")).await.len(), 3);
    let (_, end) = read(&app, "last=1").await;
    for query in [String::new(), "last=1".into(), "since=2020-01-01T00:00:00Z".into(), format!("after={end}")]
    {
        assert_eq!(missed(&query).await, 0, "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_is_told_open_and_closed_by_the_clock() {
    let (app, clock) = with_manual_clock(&[]).await;
    app.publish(draft_between(60, 3_600, 5)).await;
    let of_sale = async || kinds(&app, "types=sale.opened,sale.closed").await;
    assert_eq!(of_sale().await, [""; 0]);
    clock.advance(Duration::from_secs(120));
    eventually("it is open", async || of_sale().await == ["sale.opened"]).await;
    clock.advance(Duration::from_secs(3_600));
    eventually("it is closed", async || of_sale().await == ["sale.opened", "sale.closed"]).await;
}

/// The process was down when the window opened, and when it closed.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_opened_while_nobody_was_there_is_told_at_the_next_start() {
    let (app, clock) = with_manual_clock(&[]).await;
    app.publish(draft_between(60, 3_600, 5)).await;
    let folder = app.stop().await;
    clock.advance(Duration::from_secs(120));
    let app = TestApp::on(folder, clock.clone(), &[]).await;
    let of_sale = async |app: &TestApp| kinds(app, "types=sale.opened,sale.closed").await;
    eventually("it is told", async || of_sale(&app).await == ["sale.opened"]).await;
    let app = TestApp::on(app.stop().await, clock.clone(), &[]).await;
    clock.advance(Duration::from_secs(3_600));
    eventually("it is closed", async || of_sale(&app).await == ["sale.opened", "sale.closed"]).await;
    let app = TestApp::on(app.stop().await, clock, &[]).await;
    app.operate("GET", "/readyz", None, 200).await;
    assert_eq!(of_sale(&app).await, ["sale.opened", "sale.closed"], "and never again");
}

/// Told at the moment, not at the next look of a housekeeper.
#[tokio::test(flavor = "multi_thread")]
async fn an_opening_is_told_in_time() {
    let app = TestApp::start().await;
    let mut draft = draft_between(1, 3_600, 5);
    // In whole milliseconds, as the server counts.
    let opens_at =
        jiff::Timestamp::from_millisecond(jiff::Timestamp::now().as_millisecond() + 1_300).unwrap();
    draft["opens_at"] = json!(opens_at.to_string());
    // From before the sale: it may have opened before its publication is answered.
    let (_, cursor) = read(&app, "last=1").await;
    app.publish(draft).await;
    let (items, _) = read(&app, &format!("after={cursor}&types=sale.opened&wait=20")).await;
    let told: jiff::Timestamp = items[0]["at"].as_str().unwrap().parse().unwrap();
    assert_eq!(items[0]["type"], "sale.opened");
    let late = told.duration_since(opens_at);
    assert!(!late.is_negative() && late < jiff::SignedDuration::from_secs(10), "{late:?}");
}
