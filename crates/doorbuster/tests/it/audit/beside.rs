//! A thousand audits beside buyers who buy, cancel, pay in time and pay late, and an operator who changes stock and refunds:
//! work on its way is no finding, and a repair finds nothing to mend. A shop hears of all of it, and a sandbox takes and
//! returns the money. At the end everything has come to rest, and one look is clean.

mod heavy {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use doorbuster::app::App;
    use doorbuster::auditor::cut::{Cut, confirm, sure};
    use doorbuster::gate::{Claimed, Try};
    use doorbuster::ledger::audit::{Doubts, Scope};
    use doorbuster::ledger::money::{NewPayment, PaymentStarted, RefundEnd};
    use doorbuster::telemetry::metrics::{Letting, OrderOutcome};
    use rand::RngExt as _;
    use rand::rngs::StdRng;
    use rules::admission::Verdict;
    use rules::id::{OfferId, OrderId, PaymentId};
    use rules::wire::AuditRequest;
    use serde_json::json;

    use super::super::{PRICE, audit, buyer, capture_notice, findings};
    use crate::app::{TestApp, draft};
    use crate::money::{Forge, SANDBOX};
    use crate::torture::Torture;
    use crate::webhooks::{INSIDE, Receiver, hook};

    /// Audits of one round. A thousand, and each is held against the one a while before it.
    const AUDITS: u32 = 1_000;

    /// So many of them, at least, an operator asks for, with a repair.
    const REPAIRS: u64 = 5;

    /// So many at most while the storm is none yet: a machine that is slow at the one and quick at the other.
    const AUDITS_MAX: u32 = 10_000;

    /// How far apart two cuts are: everything on its way between gate and ledger arrives in less.
    const APART: Duration = Duration::from_secs(2);

    const BUYERS: u32 = 300;
    const WORKERS: u64 = 4;
    const STOCK: u32 = 120;

    /// With fewer it is no storm.
    const DEEDS: u64 = 500;

    /// The second sale's time to pay, in seconds: many of its orders lapse, and money comes late.
    const PAY_WITHIN_S: u32 = 1;

    /// Orders that a worker remembers, to pay them late.
    const REMEMBERED: usize = 30;

    /// Between two deeds of a worker: enough orders to be a storm, few enough to read them a thousand times.
    const PAUSE: Duration = Duration::from_millis(12);

    struct Storm {
        server: TestApp,
        app: Arc<App>,
        forge: Forge,
        offers: Vec<OfferId>,
        over: AtomicBool,
        deeds: AtomicU64,
        /// Audits that were asked for over HTTP, and found nothing.
        repairs: AtomicU64,
    }

    impl Storm {
        fn lapsed(&self) -> u64 {
            self.app.metrics.releases.get(Letting::Timeout)
        }

        fn revived(&self) -> u64 {
            self.app.metrics.orders.get(OrderOutcome::Revived)
        }

        /// Whether everything that an audit could be mistaken about has happened.
        fn is_one(&self, doubts: usize) -> bool {
            let deeds = self.deeds.load(Ordering::Relaxed);
            let repairs = self.repairs.load(Ordering::Relaxed);
            deeds > DEEDS && self.lapsed() > 0 && self.revived() > 0 && doubts > 0 && repairs >= REPAIRS
        }

        async fn rage(&self, mut chance: StdRng) {
            let mut past = VecDeque::new();
            while !self.over.load(Ordering::Acquire) {
                self.one_buyer(&mut chance, &mut past).await;
                self.deeds.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(PAUSE).await;
            }
        }

        async fn one_buyer(&self, chance: &mut StdRng, past: &mut VecDeque<(OrderId, String, u32)>) {
            let name = format!("buyer {}", chance.random_range(0..BUYERS));
            let offer = self.offers[chance.random_range(0..self.offers.len())];
            if past.len() > REMEMBERED
                && let Some((order, name, quantity)) = past.pop_front()
            {
                // Long ago: in the sale with little time it has lapsed by now.
                self.pay(order, &name, quantity, false).await;
            }
            let Some((order, quantity)) = self.claim(offer, &name, chance).await else { return };
            match chance.random_range(0..10) {
                0..4 => {
                    self.app.cancel(order, &buyer(&name)).await.unwrap();
                }
                4..7 => self.pay(order, &name, quantity, chance.random_bool(0.5)).await,
                _ => past.push_back((order, name, quantity)),
            }
        }

        /// The order that was granted, or the one that the buyer has already.
        async fn claim(&self, offer: OfferId, name: &str, chance: &mut StdRng) -> Option<(OrderId, u32)> {
            let gate = self.app.gate.memory.offer(offer)?;
            let now = self.app.clock.now();
            let order = self.app.pass_keys.mint_order_id(&buyer(name), now, chance.random());
            let quantity = chance.random_range(1..=3);
            let attempt = Try { buyer: name, order, quantity, pass_expires_at: now.plus_s(300) };
            match self.app.gate.claim(&gate, &attempt, now).await {
                Claimed::Queued(claim) => Some((claim.order, quantity)),
                Claimed::Answer(Verdict::AlreadyOrdered { order }) => {
                    let known = self.app.ledger.order(order).await.unwrap()?;
                    Some((order, known.quantity))
                }
                Claimed::Answer(_) => None,
                Claimed::Unsure => panic!("the disk works"),
            }
        }

        /// Pays, and sometimes has the money returned, with the units or without them.
        async fn pay(&self, order: OrderId, name: &str, quantity: u32, refund: bool) {
            let (ledger, now) = (&self.app.ledger, self.app.clock.now());
            let id = PaymentId(rand::random());
            let wanted = NewPayment { id, order, buyer: buyer(name), provider: "sandbox".to_owned() };
            let started = ledger.start_payment(wanted, now).await.unwrap();
            if matches!(started, PaymentStarted::New { .. }) && id.0.is_multiple_of(2) {
                let name = id.to_string();
                let mut letter = self.forge.paid(&name, &name, &name);
                letter.amount.amount = PRICE * i64::from(quantity);
                assert_eq!(self.forge.send(&self.server, &letter).await, 200);
            } else {
                let names = doorbuster::ledger::money::Names::Order(order);
                let notice = capture_notice(&id.to_string(), names, PRICE * i64::from(quantity));
                ledger.take_notice(notice, now).await.unwrap();
            }
            let paid = ledger.order(order).await.unwrap().and_then(|order| order.payment);
            let Some(paid) = paid.filter(|_| refund) else { return };
            let restock = order.0.is_multiple_of(2);
            ledger.refund_order(order, restock, now).await.unwrap();
            ledger.refund_begun(paid, now.plus_s(600), now).await.unwrap();
            if let RefundEnd::Done { released: Some(released), .. } =
                ledger.refund_done(paid, now).await.unwrap()
            {
                // A moment in which the ledger knows and the gate does not.
                tokio::time::sleep(PAUSE).await;
                self.app.give_back(&released);
            }
        }

        /// Asks for audits as an operator does, each with a repair that has nothing to do.
        async fn repair(&self) {
            while !self.over.load(Ordering::Acquire) {
                let said = self.server.audited(&json!({"repair": true})).await;
                assert_eq!((&said["clean"], &said["findings"]), (&json!(true), &json!([])), "{said}");
                self.repairs.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(PAUSE).await;
            }
        }

        async fn operate(&self, mut chance: StdRng) {
            let mut number = 0;
            while !self.over.load(Ordering::Acquire) {
                let offer = self.offers[chance.random_range(0..self.offers.len())];
                let change = if chance.random_bool(0.5) { 7 } else { -7 };
                self.app.change_stock(offer, change, format!("change {number}")).await.unwrap();
                number += 1;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn a_thousand_audits_beside_a_storm_raise_no_false_alarm() {
        let torture = Torture::of(1);
        for round in 0..torture.rounds {
            one_round(&torture, round).await;
        }
    }

    async fn one_round(torture: &Torture, round: u64) {
        let apart = format!("audit.apart_ms={}", APART.as_millis());
        let server = TestApp::with(&["audit.every_s=0", &apart, SANDBOX, INSIDE]).await;
        let receiver = Receiver::willing().await;
        hook(&server, &receiver.url()).await;
        let mut hurried = draft(STOCK);
        hurried["pay_within_s"] = PAY_WITHIN_S.into();
        let sales = [server.open_sale(STOCK).await, server.publish(hurried).await];
        let storm = Arc::new(Storm {
            app: Arc::clone(&server.app),
            forge: Forge::of(&server),
            server,
            offers: sales.iter().map(|sale| sale.offer().parse().unwrap()).collect(),
            over: AtomicBool::new(false),
            deeds: AtomicU64::new(0),
            repairs: AtomicU64::new(0),
        });
        let mut crowd = tokio::task::JoinSet::new();
        for worker in 0..WORKERS {
            let storm = Arc::clone(&storm);
            let chance = torture.round(round * WORKERS + worker);
            crowd.spawn(async move { storm.rage(chance).await });
        }
        let operator = Arc::clone(&storm);
        let chance = torture.round(u64::MAX - round);
        crowd.spawn(async move { operator.operate(chance).await });
        let watched = async {
            let audited = audit_on(&storm).await;
            storm.over.store(true, Ordering::Release);
            audited
        };
        let ((audits, longest, doubts), ()) = tokio::join!(watched, storm.repair());
        while let Some(ended) = crowd.join_next().await {
            ended.unwrap();
        }
        let server = &storm.server;
        server.settled().await;
        let (lapsed, revived) = (storm.lapsed(), storm.revived());
        let view = audit(server, AuditRequest::default()).await;
        assert_eq!(findings(&view), [], "at rest: {:#?}", view.findings);
        let deeds = storm.deeds.load(Ordering::Relaxed);
        let repairs = storm.repairs.load(Ordering::Relaxed);
        println!(
            "{audits} audits, and {repairs} by an operator, beside {deeds} deeds and {} orders, of which {lapsed} lapsed and {revived} were revived; {doubts} \
             doubts dissolved; nobody waited at the gate for longer than {longest:?}",
            view.orders
        );
        assert!(deeds > DEEDS, "only {deeds} deeds: no storm");
        assert!(repairs >= REPAIRS, "an operator had {repairs} audits");
        assert!(receiver.count("order.paid") > 0, "the shop heard nothing");
        assert!(lapsed > 0 && revived > 0, "no deadlines, or no late money: {lapsed}, {revived}");
        assert!(doubts > 0, "nothing was ever under way: the storm proves nothing");
    }

    /// Cuts one after the other, each held against one long enough before it. Answers how many there were, the longest
    /// lock, and how many doubts.
    async fn audit_on(storm: &Storm) -> (u32, Duration, usize) {
        let mut before: VecDeque<(Instant, Doubts)> = VecDeque::new();
        let (mut made, mut longest, mut doubts) = (0, Duration::ZERO, 0);
        while made < AUDITS || (made < AUDITS_MAX && !storm.is_one(doubts)) {
            let taken_at = Instant::now();
            let cut = Cut::take(&storm.app, Scope::default()).await.unwrap();
            (longest, doubts) = (longest.max(cut.held_up), doubts + cut.doubts.kept().len());
            while before.get(1).is_some_and(|(at, _)| at.elapsed() > APART) {
                before.pop_front();
            }
            if let Some((_, first)) = before.front().filter(|(at, _)| at.elapsed() > APART) {
                let proven = sure(&storm.app, confirm(first, cut.doubts.clone())).await.unwrap();
                assert_eq!(proven.doubts, [], "audit {made}");
                longest = longest.max(proven.held_up);
                made += 1;
            }
            before.push_back((taken_at, cut.doubts));
        }
        (made, longest, doubts)
    }
}
