//! A running server whose gate was told something else than its ledger, or whose workers leave something undone.

use std::sync::Arc;
use std::time::Duration;

use doorbuster::clock::Clock;
use doorbuster::gate::{OfferGate, SeedOrder};
use doorbuster::ledger::money::Names;
use doorbuster::queue::Claim;
use rules::audit::{Kind, Mending};
use rules::id::{OfferId, OrderId};
use rules::sale::SaleAction;
use rules::wire::AuditRequest;

use super::{PRICE, audit, bought, buyer, capture_notice, findings, pay, text};
use crate::app::{TestApp, draft, with_manual_clock};

/// Nothing is under way in these tests: the second look may follow soon.
const SOON: &str = "audit.apart_ms=100";

/// Nobody but the test looks.
const ALONE: &str = "audit.every_s=0";

fn gate_of(app: &TestApp, offer: &str) -> Arc<OfferGate> {
    app.app.gate.memory.offer(offer.parse().unwrap()).unwrap()
}

fn seed<'a>(buyer: &'a str, order: OrderId, quantity: u32, app: &TestApp) -> SeedOrder<'a> {
    let pass_expires_at = app.app.clock.now().plus_s(300);
    SeedOrder { buyer, order, quantity, pass_expires_at, live: true }
}

/// Found with this kind, offer and units and nothing else; then mended, and clean, or named and still there.
async fn check(app: &TestApp, offer: &str, kind: Kind, units: i64) {
    let of_offer = |repair| {
        let offer_id = Some(offer.parse::<OfferId>().unwrap());
        AuditRequest { repair, offer_id, sale_id: None }
    };
    let expected = [(kind, Some(offer.to_owned()), units)];
    let found = audit(app, of_offer(false)).await;
    assert_eq!(findings(&found), expected, "{:#?}", found.findings);
    assert!(found.findings[0].todo.is_some() && found.cuts >= 1);
    let mends = kind.mending() != Mending::Person;
    let (one, two) = tokio::join!(audit(app, of_offer(true)), audit(app, of_offer(true)));
    let repaired =
        [&one, &two].into_iter().flat_map(|view| &view.findings).filter(|found| found.repaired).count();
    assert_eq!(repaired > 0, mends, "{kind}: {one:#?}");
    assert_eq!(
        one.findings.len() + two.findings.len(),
        if mends { 1 } else { 2 },
        "{kind}: the second finds it mended"
    );
    let after = audit(app, of_offer(true)).await;
    assert_eq!(findings(&after), if mends { &[] } else { &expected[..] }, "{kind}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_discrepancy_of_the_gate_is_found_and_mended_or_named() {
    let app = TestApp::with(&[SOON, ALONE]).await;
    let memory = &app.app.gate.memory;
    // A sale of its own for each, with an order that has nothing to do with it.
    let a_sale = async || {
        let sale = app.open_sale(10).await;
        bought(&app, sale.offer(), "bystander", 3).await;
        let gate = gate_of(&app, sale.offer());
        (sale, gate)
    };

    let (sale, gate) = a_sale().await;
    memory.surrender(&gate, 2).unwrap();
    check(&app, sale.offer(), Kind::GateUnits, 2).await;
    assert_eq!(gate.free(), 7, "the stranded units are free again");

    let (sale, gate) = a_sale().await;
    memory.take_back(&gate, 2);
    check(&app, sale.offer(), Kind::GateUnits, -2).await;
    assert_eq!(gate.free(), 7, "nobody can buy units that do not exist");

    let (sale, gate) = a_sale().await;
    assert!(memory.replay(&gate, &seed("ghost", OrderId(7), 2, &app)));
    check(&app, sale.offer(), Kind::GateUnknownOrder, 2).await;
    assert_eq!(gate.free(), 7);

    let (sale, gate) = a_sale().await;
    let order = bought(&app, sale.offer(), "ann", 2).await;
    assert!(memory.release(&gate, "ann", order));
    check(&app, sale.offer(), Kind::GateMissingOrder, 2).await;
    assert_eq!((gate.free(), memory.live_order(&gate, "ann")), (5, Some(order)));
    app.buyer("ann").buy(sale.offer(), 1, 409).await;

    let (sale, gate) = a_sale().await;
    let order = bought(&app, sale.offer(), "ann", 2).await;
    app.app.ledger.cancel_order(order, buyer("ann"), app.app.clock.now()).await.unwrap();
    check(&app, sale.offer(), Kind::GateEndedOrder, 2).await;
    assert_eq!((gate.free(), memory.live_order(&gate, "ann")), (7, None));

    let (sale, gate) = a_sale().await;
    let order = bought(&app, sale.offer(), "ann", 1).await;
    assert!(memory.release(&gate, "ann", order) && memory.replay(&gate, &seed("ann", order, 2, &app)));
    check(&app, sale.offer(), Kind::GateQuantity, 1).await;

    let (sale, gate) = a_sale().await;
    assert!(memory.raise(&gate, 0, 1_000));
    check(&app, sale.offer(), Kind::GateChangeNo, 0).await;

    let sale = app.operate("POST", "/admin/v1/sales", Some(&draft(4)), 201).await;
    let id = text(&sale, "id").parse().unwrap();
    app.app.ledger.act_on_sale(id, SaleAction::Publish, app.app.clock.now()).await.unwrap();
    let offer = text(&sale["offers"][0], "id");
    check(&app, &offer, Kind::GateUnknownOffer, 4).await;
    app.buyer("ann").buy(&offer, 1, 202).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_workers_leave_undone_is_found() {
    let (app, clock) = with_manual_clock(&[SOON, ALONE]).await;
    let sale = app.open_sale(10).await;
    let claim = Claim {
        order: OrderId(9),
        offer: sale.offer().parse().unwrap(),
        buyer: buyer("lost"),
        quantity: 2,
        claimed_at: clock.now(),
        pass_expires_at: clock.now().plus_s(300),
        revives: None,
    };
    app.app.gate.unrecorded.insert(&Arc::new(claim));
    assert_eq!(findings(&audit(&app, AuditRequest::default()).await), [], "it may still come");
    clock.advance(Duration::from_secs(31));
    check(&app, sale.offer(), Kind::ClaimStuck, 2).await;

    let sale = app.open_sale(10).await;
    overdue(&app, &clock, sale.offer()).await;

    // Captured before its order was recorded, and nobody came back to it.
    let sale = app.open_sale(10).await;
    let ann = app.buyer("ann");
    let pass = ann.pass(sale.offer()).await;
    let order: OrderId = text(&pass, "order_id").parse().unwrap();
    let notice = capture_notice("early", Names::Order(order), PRICE);
    app.app.ledger.take_notice(notice, clock.now()).await.unwrap();
    ann.buy_with(sale.offer(), &text(&pass, "pass"), 1, 202).await;
    app.settled().await;
    clock.advance(Duration::from_secs(121));
    check(&app, sale.offer(), Kind::CaptureUndecided, 1).await;
    assert_eq!(ann.order(&order.to_string()).await["state"], "paid");

    let sale = app.open_sale(10).await;
    let order = bought(&app, sale.offer(), "ann", 1).await;
    pay(&app.app, order, "ann", 1).await;
    app.app.ledger.refund_order(order, true, clock.now()).await.unwrap();
    clock.advance(Duration::from_secs(3_601));
    check(&app, sale.offer(), Kind::RefundStuck, 1).await;
}

/// One that nobody pays is overdue a minute after its deadline, one that somebody pays a quarter of an hour later.
async fn overdue(app: &TestApp, clock: &Clock, offer: &str) {
    bought(app, offer, "ann", 1).await;
    clock.advance(Duration::from_secs(900 + 59));
    let of_offer = AuditRequest { offer_id: Some(offer.parse().unwrap()), ..AuditRequest::default() };
    assert_eq!(findings(&audit(app, of_offer).await), []);
    clock.advance(Duration::from_secs(2));
    check(app, offer, Kind::UnpaidOverdue, 1).await;
}
