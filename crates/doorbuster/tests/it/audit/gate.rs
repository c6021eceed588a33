//! A running server whose gate was told something else than its ledger, or whose workers leave something undone.

use std::sync::Arc;
use std::time::Duration;

use doorbuster::app::{App, Workers, open};
use doorbuster::clock::Clock;
use doorbuster::gate::{Claimed, OfferGate, Release, Returned, SeedOrder, Try};
use doorbuster::ledger::money::Names;
use doorbuster::queue::Claim;
use rules::audit::{Kind, Mending};
use rules::id::{OfferId, OrderId};
use rules::order::State;
use rules::payment::REFUND_SLOW_MS;
use rules::sale::SaleAction;
use rules::wire::{AuditRequest, AuditView};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use super::{PRICE, audit, bought, buyer, capture_notice, findings, pay, text};
use crate::app::{TestApp, draft, settings, with_manual_clock};

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

/// The gate is told that Ann's order ended, which it did not.
fn let_go(app: &TestApp, gate: &OfferGate, order: OrderId) {
    let release = Release { buyer: "ann", order, seq: 3, restock: true };
    assert_ne!(app.app.gate.memory.release(gate, &release), Returned::Before);
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
    assert!(memory.replay(&gate, &seed("ghost", OrderId(7), 2, &app), None));
    check(&app, sale.offer(), Kind::GateUnknownOrder, 2).await;
    assert_eq!(gate.free(), 7);

    let (sale, gate) = a_sale().await;
    let order = bought(&app, sale.offer(), "ann", 2).await;
    let_go(&app, &gate, order);
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
    let_go(&app, &gate, order);
    assert!(memory.replay(&gate, &seed("ann", order, 2, &app), None));
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

/// An engine without the workers that close, decide and refund, on a folder with these sales; the clock stands still.
struct Idle {
    app: Arc<App>,
    clock: Clock,
    workers: Workers,
    _folder: TempDir,
}

impl Idle {
    async fn with(sales: usize) -> (Self, Vec<OfferId>) {
        let (server, clock) = with_manual_clock(&[ALONE]).await;
        let mut offers = Vec::new();
        for _ in 0..sales {
            offers.push(server.open_sale(10).await.offer().parse().unwrap());
        }
        let folder = server.stop().await;
        let settings = settings(folder.path(), &[SOON, ALONE]);
        let (app, workers) = open(settings, clock.clone(), CancellationToken::new(), None).await.unwrap();
        (Self { app, clock, workers, _folder: folder }, offers)
    }

    async fn buy(&self, offer: OfferId, name: &str, order: OrderId) {
        let gate = self.app.gate.memory.offer(offer).unwrap();
        let now = self.clock.now();
        let attempt = Try { buyer: name, order, quantity: 1, pass_expires_at: now.plus_s(300) };
        assert!(matches!(self.app.gate.claim(&gate, &attempt, now).await, Claimed::Queued(_)));
        while self.app.ledger.order(order).await.unwrap().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn audit(&self, offer: OfferId, repair: bool) -> AuditView {
        let request = AuditRequest { repair, offer_id: Some(offer), sale_id: None };
        let view = self.app.audit(request).await.unwrap();
        assert_eq!(view.problem, None);
        view
    }

    async fn check(&self, offer: OfferId, kind: Kind, units: i64) {
        let expected = [(kind, Some(offer.to_string()), units)];
        assert_eq!(findings(&self.audit(offer, false).await), expected);
        let repaired = self.audit(offer, true).await;
        let mends = kind.mending() != Mending::Person;
        assert_eq!((findings(&repaired), repaired.findings[0].repaired), (expected.to_vec(), mends));
        assert_eq!(findings(&self.audit(offer, true).await), if mends { &[] } else { &expected[..] });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_workers_leave_undone_is_found() {
    let (idle, offers) = Idle::with(4).await;
    let (app, clock) = (&idle.app, &idle.clock);
    let [lost, unpaid, early, refunded] = offers[..] else { panic!("four sales") };
    let claim = Claim {
        order: OrderId(9),
        offer: lost,
        buyer: buyer("lost"),
        quantity: 2,
        claimed_at: clock.now(),
        pass_expires_at: clock.now().plus_s(300),
        revives: None,
    };
    app.gate.unrecorded.insert(&Arc::new(claim));
    assert_eq!(findings(&idle.audit(lost, false).await), [], "it may still come");
    clock.advance(Duration::from_secs(31));
    idle.check(lost, Kind::ClaimStuck, 2).await;

    // A minute after its deadline.
    idle.buy(unpaid, "ann", OrderId(10)).await;
    clock.advance(Duration::from_secs(900 + 59));
    assert_eq!(findings(&idle.audit(unpaid, false).await), []);
    clock.advance(Duration::from_secs(2));
    idle.check(unpaid, Kind::UnpaidOverdue, 1).await;

    // Captured before its order was recorded, and nobody came back to it.
    let notice = capture_notice("early", Names::Order(OrderId(11)), PRICE);
    app.ledger.take_notice(notice, clock.now()).await.unwrap();
    idle.buy(early, "ann", OrderId(11)).await;
    clock.advance(Duration::from_secs(119));
    assert_eq!(findings(&idle.audit(early, false).await), []);
    clock.advance(Duration::from_secs(2));
    idle.check(early, Kind::CaptureUndecided, 1).await;
    let order = app.ledger.order(OrderId(11)).await.unwrap().unwrap();
    assert_eq!(order.status.state, State::Paid, "the repair applied the money");

    idle.buy(refunded, "ann", OrderId(12)).await;
    pay(&app.ledger, OrderId(12), "ann", 1, clock.now()).await;
    app.ledger.refund_order(OrderId(12), true, clock.now()).await.unwrap();
    clock.advance(Duration::from_secs(3_601));
    idle.check(refunded, Kind::RefundStuck, 1).await;

    // Asked lately, and its provider is at it: for a while, and for too long.
    let payment = app.ledger.payments_of(OrderId(12)).await.unwrap()[0].id;
    let later = clock.now().plus_ms(2 * REFUND_SLOW_MS);
    app.ledger.refund_begun(payment, later, clock.now()).await.unwrap().unwrap();
    assert_eq!(findings(&idle.audit(refunded, false).await), []);
    clock.advance(Duration::from_millis(REFUND_SLOW_MS.unsigned_abs() + 1));
    idle.check(refunded, Kind::RefundStuck, 1).await;
    let Idle { app, workers, .. } = idle;
    workers.end(&app, Duration::from_secs(5)).await;
}
