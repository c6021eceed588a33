//! Late money looks for a unit by a claim like any other; money that came before its order waits for it.

use doorbuster::ledger::Recorded;
use doorbuster::ledger::money::Absent;
use doorbuster::queue::Claim;
use doorbuster::telemetry::metrics::{LateMoney, MoneyOutcome, OrderOutcome};
use rules::payment::{RefundReason, Revival, State as PaymentState};
use rules::sale::SaleAction;
use rules::time::UnixMs;

use super::*;
use crate::app::{draft_between, with_manual_clock};

async fn payment_state(app: &TestApp, payment: PaymentId) -> (PaymentState, Option<RefundReason>) {
    let status = app.app.ledger.payment(payment).await.unwrap().unwrap().status;
    (status.state, status.reason)
}

/// Money that goes back is `refund_due`, or further when the worker of refunds was quick.
async fn assert_goes_back(app: &TestApp, payment: PaymentId, because: RefundReason) {
    let (state, reason) = payment_state(app, payment).await;
    assert!(state > PaymentState::Applied, "{state:?}");
    assert_eq!(reason, Some(because));
}

#[tokio::test(flavor = "multi_thread")]
async fn late_money_that_finds_a_unit_pays_the_order_once() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.open_sale(2).await;
    let order = bought(&app, &sale, "ann", 2).await;
    let (closed, payment) = late(&app, &clock, order).await;
    let strikes = async || app.app.ledger.strikes_of(buyer("ann"), 5).await.unwrap();
    assert_eq!(strikes().await.len(), 1);
    let poll = app.client.get(app.url(&format!("/api/v1/orders/{order}?wait=20&after={}", closed.seq)));
    let poll = poll.bearer_auth(app.buyer("ann").token);
    let poll = tokio::spawn(async move { poll.send().await.unwrap().json::<Value>().await.unwrap() });
    assert_eq!(app.app.revive(&closed, payment).await, Revival::Claimed);
    assert_eq!(app.app.revive(&closed, payment).await, Revival::Claimed, "again is the same claim");
    let heard = tokio::time::timeout(Duration::from_secs(20), poll).await.unwrap().unwrap();
    assert_eq!(heard["state"], "paid");
    let paid = until_state(&app, order, State::Paid).await;
    assert_eq!((paid.payment, paid.seq, paid.closed_at), (Some(payment), closed.seq + 1, None));
    assert_eq!(payment_state(&app, payment).await, (PaymentState::Applied, None));
    assert!(strikes().await[0].strike.lifted_at.is_some());
    // Counted once it is recorded.
    eventually("it is counted", async || app.app.metrics.orders.get(OrderOutcome::Revived) == 1).await;
    assert_eq!(app.app.metrics.money.get(MoneyOutcome::Applied), 1);
    assert_eq!(free(&app.app, &sale), 0);
    assert_units_add_up(&app, &sale).await;

    // The gate knows it after a restart, too, and its pass still names it.
    let folder = app.stop().await;
    let app = TestApp::on(folder, clock, &[]).await;
    assert_eq!(free(&app.app, &sale), 0);
    assert_units_add_up(&app, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_money_is_not_stopped_by_a_pause_or_the_end_of_the_sale() {
    for action in [SaleAction::Pause, SaleAction::End] {
        let (app, clock) = with_manual_clock(&[]).await;
        let sale = app.open_sale(1).await;
        let order = bought(&app, &sale, "ann", 1).await;
        app.act(&sale, action).await;
        let (closed, payment) = late(&app, &clock, order).await;
        assert_eq!(app.app.revive(&closed, payment).await, Revival::Claimed, "{action:?}");
        until_state(&app, order, State::Paid).await;
        assert_units_add_up(&app, &sale).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn late_money_goes_back_when_the_unit_is_somebody_elses() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.open_sale(1).await;
    let order = bought(&app, &sale, "ann", 1).await;
    clock.advance(PAY_WITHIN);
    until_state(&app, order, State::Closed).await;
    eventually("the unit is back", async || free(&app.app, &sale) == 1).await;
    bought(&app, &sale, "bob", 1).await;
    let Settled::ReviveNeeded { payment, order: closed } = pay(&app.app, order, "late").await else {
        panic!()
    };
    assert_eq!(app.app.revive(&closed, payment).await, Revival::RefundDue(RefundReason::NoUnitLeft));
    assert_goes_back(&app, payment, RefundReason::NoUnitLeft).await;
    assert_eq!(ledgers(&app.app, order).await, *closed);
    assert!(app.app.metrics.late_money.get(LateMoney::NoUnitLeft) > 0);
    eventually("it is counted", async || app.app.metrics.money.get(MoneyOutcome::RefundDue) == 1).await;
    assert_units_add_up(&app, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_money_goes_back_when_its_buyer_has_another_order() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.open_sale(5).await;
    let order = bought(&app, &sale, "ann", 1).await;
    clock.advance(PAY_WITHIN);
    until_state(&app, order, State::Closed).await;
    eventually("the unit is back", async || free(&app.app, &sale) == 5).await;
    bought(&app, &sale, "ann", 2).await;
    let Settled::ReviveNeeded { payment, order: closed } = pay(&app.app, order, "late").await else {
        panic!()
    };
    assert_eq!(app.app.revive(&closed, payment).await, Revival::RefundDue(RefundReason::OtherLive));
    assert_goes_back(&app, payment, RefundReason::OtherLive).await;
    assert_units_add_up(&app, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn late_money_waits_while_the_queue_is_full() {
    let (app, clock) = with_manual_clock(&["queue.capacity=1", "queue.batch=1"]).await;
    let sale = app.open_sale(1).await;
    let order = bought(&app, &sale, "ann", 1).await;
    app.settled().await;
    clock.advance(PAY_WITHIN);
    until_state(&app, order, State::Closed).await;
    let full = app.app.gate.memory.room().reserve().unwrap();
    let Settled::ReviveNeeded { payment, order: closed } = pay(&app.app, order, "late").await else {
        panic!()
    };
    assert_eq!(app.app.revive(&closed, payment).await, Revival::Wait);
    assert_eq!(payment_state(&app, payment).await, (PaymentState::Captured, None));
    drop(full);
    // Nobody asks again but the worker.
    until_state(&app, order, State::Paid).await;
    assert_units_add_up(&app, &sale).await;
}

/// Whoever asks for the money's unit looked at the order long ago: since then it was revived and refunded.
#[tokio::test(flavor = "multi_thread")]
async fn a_revival_from_an_old_look_at_the_order_keeps_no_unit() {
    let (app, clock) = with_manual_clock(&[]).await;
    let sale = app.open_sale(2).await;
    let order = bought(&app, &sale, "ann", 2).await;
    let (old, payment) = late(&app, &clock, order).await;
    app.app.revive(&old, payment).await;
    until_state(&app, order, State::Paid).await;
    super::refunds::refund(&app, order, true).await;
    assert_units_add_up(&app, &sale).await;
    assert_eq!(free(&app.app, &sale), 2);
    app.app.revive(&old, payment).await;
    assert_units_add_up(&app, &sale).await;
    assert_eq!((free(&app.app, &sale), app.app.metrics.ledger_refusals.get()), (2, 0));
    bought(&app, &sale, "bob", 2).await;
}

/// No gate knows the offer: the money waits until the sale is over, then the ledger decides alone.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_gate_late_money_waits_for_the_end_of_the_sale() {
    let (app, clock) = with_manual_clock(&[]).await;
    let draft = app.operate("POST", "/admin/v1/sales", Some(&draft_between(-60, 3_600, 1)), 201).await;
    let offer: OfferId = draft["offers"][0]["id"].as_str().unwrap().parse().unwrap();
    let now = app.app.clock.now();
    let claim = Claim {
        order: OrderId(77),
        offer,
        buyer: buyer("ann"),
        quantity: 1,
        claimed_at: now,
        pass_expires_at: now.plus_s(300),
        revives: None,
    };
    let records = app.app.ledger.record_orders(vec![(1, claim.into())], now).await.unwrap();
    assert_eq!(records[0].outcome, Recorded::Recorded);
    let (closed, payment) = late(&app, &clock, OrderId(77)).await;
    assert_eq!(app.app.revive(&closed, payment).await, Revival::Wait);
    assert_eq!(payment_state(&app, payment).await, (PaymentState::Captured, None));
    clock.advance(Duration::from_secs(3_600));
    until_state(&app, OrderId(77), State::Paid).await;
    assert_eq!(payment_state(&app, payment).await, (PaymentState::Applied, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn money_that_comes_before_its_order_is_recorded_waits_for_it() {
    let app = TestApp::start().await;
    let sale = app.open_sale(1).await;
    let ann = app.buyer("ann");
    let pass = ann.pass(sale.offer()).await;
    let order: OrderId = pass["order_id"].as_str().unwrap().parse().unwrap();
    // Something is on its way to the ledger: nobody can say that this order is not.
    let on_its_way = app.app.gate.memory.room().reserve().unwrap();
    let payment = early_money(&app, &sale, order).await;
    let now = app.app.clock.now();
    let settled = app.app.ledger.settle_capture(payment, Absent::MayCome, now).await.unwrap().this;
    assert!(matches!(settled, Settled::Wait), "{settled:?}");
    looked(&app).await;
    assert_eq!(payment_state(&app, payment).await.0, PaymentState::Captured);
    ann.buy_with(sale.offer(), pass["pass"].as_str().unwrap(), 1, 202).await;
    eventually("the money pays", async || payment_state(&app, payment).await.0 == PaymentState::Applied)
        .await;
    assert_eq!(ledgers(&app.app, order).await.status.state, State::Paid);
    drop(on_its_way);
    assert_units_add_up(&app, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn money_for_an_order_that_never_was_goes_back_once_that_is_certain() {
    let app = TestApp::start().await;
    let sale = app.open_sale(1).await;
    let order = OrderId(4_711);
    let on_its_way = app.app.gate.memory.room().reserve().unwrap();
    let payment = early_money(&app, &sale, order).await;
    looked(&app).await;
    assert_eq!(payment_state(&app, payment).await.0, PaymentState::Captured, "it may be on its way");
    drop(on_its_way);
    eventually("it goes back", async || payment_state(&app, payment).await.0 > PaymentState::Applied).await;
    assert_goes_back(&app, payment, RefundReason::OrderUnknown).await;
}

/// Waits until the worker has looked at all undecided money, twice from beginning to end.
async fn looked(app: &TestApp) {
    let before = app.app.captures.looks();
    eventually("the worker has looked", async || {
        app.app.captures.wake();
        app.app.captures.looks() >= before + 3
    })
    .await;
}

/// Money for an order that the ledger does not know, of the right amount.
async fn early_money(app: &TestApp, sale: &TestSale, order: OrderId) -> PaymentId {
    let card = app.app.catalogue.offer(sale.offer().parse().unwrap()).unwrap();
    let key = CaptureKey::new("sandbox", "early").unwrap();
    let capture = Capture { key, money: card.offer.price };
    let fresh = PaymentId(rand::random::<u128>() >> 2);
    let told = Told::Captured { capture, names: Names::Order(order), fresh };
    let notice = Notice { event_id: "early".into(), told };
    let taken = app.app.ledger.take_notice(notice, UnixMs(app.app.clock.now().0)).await.unwrap();
    assert!(matches!(taken, Taken::Capture(Decided { this: Settled::Wait, .. })), "{taken:?}");
    fresh
}
