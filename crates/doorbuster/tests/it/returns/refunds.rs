//! Refunded orders: their units come back or leave the stock, once.

use doorbuster::ledger::money::{RefundAsked, RefundEnd, Released};

use super::*;

/// Refunds a paid order in the ledger and gives its units back, as the worker of refunds does.
pub(super) async fn refund(app: &TestApp, order: OrderId, restock: bool) -> Released {
    let ledger = &app.app.ledger;
    let asked = ledger.refund_order(order, restock, app.app.clock.now()).await.unwrap();
    let RefundAsked::Begun { payment, .. } = asked else { panic!("{asked:?}") };
    let now = app.app.clock.now();
    ledger.refund_begun(payment, now.plus_s(60), now).await.unwrap();
    let end = ledger.refund_done(payment, now).await.unwrap();
    let RefundEnd::Done { released: Some(released), .. } = end else { panic!("{end:?}") };
    app.app.give_back(&released);
    *released
}

#[tokio::test(flavor = "multi_thread")]
async fn refunded_units_come_back_once() {
    let app = TestApp::start().await;
    let sale = app.open_sale(2).await;
    let order = bought(&app, &sale, "ann", 2).await;
    assert!(matches!(pay(&app.app, order, "capture").await, Settled::Applied { .. }));
    let released = refund(&app, order, true).await;
    assert_eq!((released.restock, free(&app.app, &sale)), (true, 2));
    bought(&app, &sale, "bob", 1).await;
    app.app.give_back(&released);
    assert_eq!(free(&app.app, &sale), 1, "the same release again");
    bought(&app, &sale, "ann", 1).await;
    app.app.give_back(&released);
    assert_eq!(free(&app.app, &sale), 0, "nor is it taken for one of her next order");
    assert_units_add_up(&app, &sale).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_that_do_not_come_back_leave_the_stock() {
    let app = TestApp::start().await;
    let sale = app.open_sale(3).await;
    let order = bought(&app, &sale, "ann", 2).await;
    assert!(matches!(pay(&app.app, order, "capture").await, Settled::Applied { .. }));
    let released = refund(&app, order, false).await;
    app.app.give_back(&released);
    let stats = app.stats(&sale).await;
    assert_eq!((&stats["offers"][0]["stock"], &stats["offers"][0]["free"]), (&json!(1), &json!(1)));
    assert_units_add_up(&app, &sale).await;
    let again = app.buyer("ann").buy(sale.offer(), 2, 409).await;
    assert_eq!(again["code"], "not_enough", "the gate has forgotten the first order");
    let raise = json!({"change": 4, "change_id": "more"});
    let raised =
        app.operate("POST", &format!("/admin/v1/offers/{}/stock", sale.offer()), Some(&raise), 200).await;
    assert_eq!((&raised["stock"], &raised["free"]), (&json!(5), &json!(5)), "a raise after it counts");
    bought(&app, &sale, "ann", 5).await;
    assert_units_add_up(&app, &sale).await;
}

/// An order lives, times out, is revived and refunded: its units come back twice, each time once.
#[tokio::test(flavor = "multi_thread")]
async fn a_revived_and_refunded_order_gives_its_units_back_a_second_time() {
    let (app, clock) = crate::app::with_manual_clock(&[]).await;
    let sale = app.open_sale(1).await;
    let order = bought(&app, &sale, "ann", 1).await;
    let (closed, payment) = late(&app, &clock, order).await;
    app.app.revive(&closed, payment).await;
    until_state(&app, order, State::Paid).await;
    app.settled().await;
    let first = Released { order: closed, change_no: u64::MAX, restock: true, struck: true };
    app.app.give_back(&first);
    assert_eq!(free(&app.app, &sale), 0, "the release of the timeout comes late, and was counted");
    refund(&app, order, true).await;
    assert_eq!(free(&app.app, &sale), 1);
    bought(&app, &sale, "bob", 1).await;
    app.app.give_back(&first);
    assert_eq!(free(&app.app, &sale), 0);
    assert_units_add_up(&app, &sale).await;
}
