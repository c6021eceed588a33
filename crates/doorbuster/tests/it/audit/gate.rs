//! A running server whose gate was told something else than its ledger, or whose workers leave something undone.

use std::sync::Arc;
use std::time::Duration;

use doorbuster::app::{App, Workers, open};
use doorbuster::auditor::cut::{Cut, confirm, sure};
use doorbuster::auditor::mend::Mender;
use doorbuster::clock::Clock;
use doorbuster::gate::{Claimed, OfferGate, Release, Returned, SeedOrder, Try};
use doorbuster::ledger::audit::Scope;
use doorbuster::ledger::money::{Decided, Names, QueueIsDrained, Settled, Taken};
use doorbuster::queue::Claim;
use rules::audit::{Kind, Mending};
use rules::deadline::Excuses;
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

/// The gate forgets a live order, and its units are neither held nor free.
fn lose(app: &App, gate: &OfferGate, name: &str, order: OrderId) {
    let release = Release { buyer: name, order, seq: 3, restock: false };
    assert_eq!(app.gate.memory.release(gate, &release), Returned::Forgotten);
}

fn of_offer(offer: OfferId) -> Scope {
    Scope { sale: None, offer: Some(offer) }
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

/// The ledger has an order that nobody can read. The gate holds its units rightly, as far as anybody knows.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_cannot_be_read_keeps_its_units_and_hides_no_other_finding() {
    let app = TestApp::with(&[SOON, ALONE]).await;
    let sale = app.open_sale(10).await;
    let gate = gate_of(&app, sale.offer());
    let order = bought(&app, sale.offer(), "ann", 2).await;
    let file = rusqlite::Connection::open(app.app.ledger.path()).unwrap();
    assert_eq!(file.execute("update orders set state = 'lent' where buyer = 'ann'", []).unwrap(), 1);
    check(&app, sale.offer(), Kind::UnreadableRow, 2).await;
    assert_eq!((gate.free(), app.app.gate.memory.live_order(&gate, "ann")), (8, Some(order)));

    app.app.gate.memory.surrender(&gate, 1).unwrap();
    let view = audit(&app, AuditRequest { repair: true, ..AuditRequest::default() }).await;
    let found: Vec<_> = view.findings.iter().map(|finding| (finding.kind, finding.repaired)).collect();
    assert_eq!(found, [(Kind::UnreadableRow, false), (Kind::GateUnits, false)], "{:#?}", view.findings);
    assert_eq!(gate.free(), 7, "nothing becomes free that may be somebody's");
    assert_eq!(
        file.execute("update orders set state = 'awaiting_payment' where buyer = 'ann'", []).unwrap(),
        1
    );
    let view = audit(&app, AuditRequest { repair: true, ..AuditRequest::default() }).await;
    assert_eq!(findings(&view), [(Kind::GateUnits, Some(sale.offer().to_owned()), 1)]);
    assert_eq!(gate.free(), 8);
}

/// Tries to buy as fast as possible, under a new name each time, until told to stop; answers how often that was granted.
async fn grab(app: Arc<App>, gate: Arc<OfferGate>, over: CancellationToken, crowd: u32) -> u32 {
    let mut granted = 0;
    for number in 0_u32.. {
        if over.is_cancelled() {
            break;
        }
        let name = format!("grabber {crowd}.{number}");
        let now = app.clock.now();
        let order = app.pass_keys.mint_order_id(&buyer(&name), now, rand::random());
        let attempt = Try { buyer: &name, order, quantity: 1, pass_expires_at: now.plus_s(300) };
        if let Claimed::Queued(_) = app.gate.claim(&gate, &attempt, now).await {
            granted += 1;
        }
        tokio::task::yield_now().await;
    }
    granted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_repair_gives_nobody_the_units_of_live_orders_that_the_gate_has_lost() {
    let app = TestApp::with(&[SOON, ALONE]).await;
    for _ in 0..5 {
        let sale = app.open_sale(10).await;
        let gate = gate_of(&app, sale.offer());
        bought(&app, sale.offer(), "bystander", 5).await;
        for name in ["cyd", "dan", "eve"] {
            bought(&app, sale.offer(), name, 1).await;
        }
        for name in ["ann", "bob"] {
            let order = bought(&app, sale.offer(), name, 1).await;
            lose(&app.app, &gate, name, order);
        }
        let over = CancellationToken::new();
        let crowd: Vec<_> = (0..3)
            .map(|number| tokio::spawn(grab(Arc::clone(&app.app), Arc::clone(&gate), over.clone(), number)))
            .collect();
        let offer_id = Some(gate.offer);
        let repaired = audit(&app, AuditRequest { repair: true, offer_id, sale_id: None }).await;
        over.cancel();
        let mut granted = 0;
        for one in crowd {
            granted += one.await.unwrap();
        }
        app.settled().await;
        let kinds: Vec<Kind> = repaired.findings.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, [Kind::GateMissingOrder, Kind::GateMissingOrder, Kind::GateUnits]);
        assert!(repaired.findings.iter().all(|finding| finding.repaired), "{:#?}", repaired.findings);
        assert_eq!((granted, gate.free()), (0, 0), "all ten units are somebody's");
        assert_eq!(app.app.metrics.ledger_refusals.get(), 0);
        assert_eq!(findings(&audit(&app, AuditRequest { offer_id, ..AuditRequest::default() }).await), []);
    }
}

/// What is proven is that the units do not add up; why not is not: the order changed between the two looks.
#[tokio::test(flavor = "multi_thread")]
async fn units_of_a_lost_order_that_changed_between_the_looks_stay_where_they_are() {
    let app = TestApp::with(&[SOON, ALONE]).await;
    let sale = app.open_sale(10).await;
    let gate = gate_of(&app, sale.offer());
    let order = bought(&app, sale.offer(), "ann", 2).await;
    lose(&app.app, &gate, "ann", order);
    let first = Cut::take(&app.app, of_offer(gate.offer)).await.unwrap();
    pay(&app.app.ledger, order, "ann", 2, app.app.clock.now()).await;
    let second = Cut::take(&app.app, of_offer(gate.offer)).await.unwrap();
    let proven = sure(&app.app, confirm(&first.doubts, second.doubts)).await.unwrap();
    let kinds: Vec<Kind> = proven.doubts.iter().map(|doubt| doubt.kind).collect();
    assert_eq!(kinds, [Kind::GateUnits]);
    // A third look finds nothing else; the repair goes by what the second one saw.
    let mended = Mender(&app.app).mend_all(&proven).await;
    assert_eq!((mended.keys.len(), gate.free()), (0, 8), "two of ten units are Ann's");
    let request = |repair| AuditRequest { repair, ..AuditRequest::default() };
    let repaired = audit(&app, request(true)).await;
    assert!(repaired.findings.iter().all(|finding| finding.repaired), "{:#?}", repaired.findings);
    assert_eq!(findings(&audit(&app, request(false)).await), []);
    assert_eq!((gate.free(), app.app.gate.memory.live_order(&gate, "ann")), (8, Some(order)));
}

/// The gate cannot be told of a live order while it holds another one of its buyer.
#[tokio::test(flavor = "multi_thread")]
async fn units_of_a_lost_order_whose_place_is_taken_stay_where_they_are() {
    let app = TestApp::with(&[SOON, ALONE]).await;
    let sale = app.open_sale(10).await;
    let gate = gate_of(&app, sale.offer());
    let memory = &app.app.gate.memory;
    let order = bought(&app, sale.offer(), "ann", 2).await;
    lose(&app.app, &gate, "ann", order);
    let now = app.app.clock.now();
    let other = Claim {
        order: OrderId(7),
        offer: gate.offer,
        buyer: buyer("ann"),
        quantity: 1,
        claimed_at: now,
        pass_expires_at: now.plus_s(300),
        revives: None,
    };
    app.app.gate.unrecorded.insert(&Arc::new(other));
    assert!(memory.replay(&gate, &seed("ann", OrderId(7), 1, &app), None));
    let repair = AuditRequest { repair: true, ..AuditRequest::default() };
    let repaired = audit(&app, repair).await;
    let found: Vec<(Kind, bool)> =
        repaired.findings.iter().map(|found| (found.kind, found.repaired)).collect();
    assert_eq!(found, [(Kind::GateMissingOrder, false), (Kind::GateUnits, false)]);
    assert_eq!(gate.free(), 7, "two are Ann's, and one is on its way to her");

    app.app.gate.unrecorded.remove(OrderId(7));
    let repaired = audit(&app, repair).await;
    assert_eq!(repaired.findings.len(), 3, "{:#?}", repaired.findings);
    assert!(repaired.findings.iter().all(|finding| finding.repaired), "{:#?}", repaired.findings);
    assert_eq!((gate.free(), memory.live_order(&gate, "ann")), (8, Some(order)));
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

/// Late money took more than two looks to be recorded: what they saw is over by then.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_that_late_money_revives_after_the_last_look_is_no_finding() {
    let (idle, offers) = Idle::with(1).await;
    let (app, clock, scope) = (&idle.app, &idle.clock, of_offer(offers[0]));
    idle.buy(offers[0], "ann", OrderId(20)).await;
    clock.advance(Duration::from_secs(901));
    let closed = app.ledger.close_due(clock.now(), 1, Excuses::default(), vec![]).await.unwrap().closed;
    assert_eq!(closed.len(), 1, "in the ledger; the gate still holds its unit");
    let first = Cut::take(app, scope).await.unwrap();
    let second = Cut::take(app, scope).await.unwrap();
    let proven = confirm(&first.doubts, second.doubts);
    assert_eq!(proven.doubts.iter().map(|doubt| doubt.kind).collect::<Vec<_>>(), [Kind::GateEndedOrder]);
    assert_eq!(sure(app, proven.clone()).await.unwrap().doubts, proven.doubts, "so far nobody paid");

    let late = capture_notice("late", Names::Order(OrderId(20)), PRICE);
    let taken = app.ledger.take_notice(late, clock.now()).await.unwrap();
    let Taken::Capture(Decided { this: Settled::ReviveNeeded { payment, .. }, .. }) = taken else {
        panic!("{taken:?}")
    };
    assert_eq!(sure(app, proven.clone()).await.unwrap().doubts, [], "money looks for a unit");
    let revived = app.ledger.revive_alone(payment, QueueIsDrained, clock.now()).await.unwrap();
    assert!(matches!(revived.this, Settled::Applied { .. }), "{revived:?}");
    assert_eq!(sure(app, proven).await.unwrap().doubts, [], "money has found it");
    let Idle { app, workers, .. } = idle;
    workers.end(&app, Duration::from_secs(5)).await;
}
