//! Notifications in any order, any number of times, side by side: the money always ends the same.

use futures_util::future::join_all;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;

/// Captures of one order: right money twice, wrong money once; each told by two events.
const CAPTURES: usize = 3;
const EVENTS: usize = 2;

/// How often each event is delivered, the order of all deliveries, and how many go at once.
fn deliveries() -> impl Strategy<Value = (Vec<usize>, usize)> {
    let times = prop::collection::vec(1_usize..4, CAPTURES * EVENTS);
    let all = times.prop_map(|times| {
        let repeated =
            times.into_iter().enumerate().flat_map(|(event, times)| std::iter::repeat_n(event, times));
        repeated.collect::<Vec<_>>()
    });
    (all.prop_shuffle(), 1_usize..5)
}

#[tokio::test(flavor = "multi_thread")]
async fn in_any_order_and_any_number_the_money_ends_the_same() {
    let (app, sale) = shop(1_000).await;
    let forge = Forge::of(&app);
    let mut runner = TestRunner::new(Config { cases: 24, ..Config::default() });
    let number = std::sync::atomic::AtomicU32::new(0);
    let outcome = runner.run(&deliveries(), |(events, at_once)| {
        let number = number.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let case = one_case(&app, &sale, &forge, number, &events, at_once);
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(case));
        Ok(())
    });
    outcome.unwrap();
}

async fn one_case(
    app: &TestApp,
    sale: &TestSale,
    forge: &Forge,
    number: u32,
    events: &[usize],
    at_once: usize,
) {
    let buyer = app.buyer(&format!("buyer-{number}"));
    let id = won(&buyer, sale).await;
    let payment = payment(&buyer, &id).await;
    let letter = |event: usize| {
        let capture = event / EVENTS;
        let name = format!("capture-{number}-{capture}");
        let mut letter = forge.paid(&payment, &format!("event-{number}-{event}"), &name);
        letter.amount.amount += i64::from(capture == 2);
        letter
    };
    for group in events.chunks(at_once) {
        let letters: Vec<_> = group.iter().copied().map(letter).collect();
        let answers = join_all(letters.iter().map(|letter| forge.send(app, letter))).await;
        assert!(answers.iter().all(|status| *status == 200), "{answers:?}");
    }
    let expected = [plain("applied"), back("amount_mismatch"), back("second_capture")];
    eventually("every capture has its end", async || {
        let mut states = states(app, &id).await;
        states.sort();
        states == expected
    })
    .await;
    let paid = order(&buyer, &id).await;
    assert_eq!((paid["state"].as_str(), paid["seq"].as_u64()), (Some("paid"), Some(3)));
    let all = payments(app, &id).await;
    let applied: Vec<_> = all.iter().filter(|payment| payment["state"] == "applied").collect();
    assert_eq!(applied[0]["id"], paid["payment_id"]);
    assert_eq!(applied[0]["money"]["amount"], PRICE);
}
