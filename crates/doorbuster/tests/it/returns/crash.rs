//! Real processes that die between two steps of a closing, a revival or a refund. After the next start everything is
//! where it belongs: each order has its end, and no unit is lost or doubled.

mod heavy {
    use std::path::Path;
    use std::sync::atomic::Ordering;

    use doorbuster::ledger::SqliteLedger;
    use doorbuster::ledger::money::{NewPayment, RefundAsked};
    use doorbuster::queue::Claim;
    use rules::deadline::Excuses;
    use rules::id::OfferId;
    use rules::payment::{RefundReason, State as PaymentState};
    use rules::time::UnixMs;
    use rules::wire::AuditRequest;
    use tempfile::TempDir;

    use super::super::deadlines::{FakeProvider, NOT_PAID, PAID, started, with_provider};
    use super::super::*;
    use crate::app::draft_between;
    use crate::served::{has_died_at, launch};

    /// Buyers, each with one unit, and the stock.
    const BUYERS: [&str; 4] = ["ann", "bob", "cat", "dan"];
    const STOCK: u32 = 6;

    /// So long ago the orders were made: their time to pay is over for whoever starts now.
    const AGO_MS: i64 = 1_000_000;

    const SANDBOX: &[&str] = &["payment.sandbox=true"];

    fn now() -> UnixMs {
        UnixMs(jiff::Timestamp::now().as_millisecond())
    }

    /// A server's folder with a sale and orders that are due, as it was left.
    struct Left {
        folder: TempDir,
        sale: TestSale,
        orders: Vec<OrderId>,
    }

    impl Left {
        /// Orders that nobody has paid.
        async fn unpaid() -> Self {
            Self::after(async |_, _, _| {}).await
        }

        /// What is left after `then`.
        async fn after(then: impl AsyncFnOnce(&TestApp, &Clock, &[OrderId])) -> Self {
            let clock = Clock::manual(now().plus_ms(-AGO_MS));
            let app = TestApp::on(tempfile::tempdir().unwrap(), clock.clone(), &[]).await;
            let sale = app.publish(draft_between(-3_600, 3_600, STOCK)).await;
            let mut orders = Vec::new();
            for name in BUYERS {
                orders.push(bought(&app, &sale, name, 1).await);
            }
            then(&app, &clock, &orders).await;
            app.settled().await;
            Self { folder: app.stop().await, sale, orders }
        }

        /// Orders that timed out, and their units are back.
        async fn closed() -> Self {
            Self::after(async |app, clock, orders| {
                clock.advance(PAY_WITHIN);
                for order in orders {
                    until_state(app, *order, State::Closed).await;
                }
            })
            .await
        }

        /// Another hand on the ledger, while nobody else has one.
        async fn with_ledger<T>(&self, work: impl AsyncFnOnce(&SqliteLedger) -> T) -> T {
            let ledger =
                SqliteLedger::open(&self.folder.path().join("doorbuster.db"), None, [0; 16]).unwrap();
            let done = work(&ledger).await;
            tokio::task::spawn_blocking(move || ledger.close()).await.unwrap();
            done
        }

        /// Money for this order, which nobody has looked at.
        async fn money_comes(&self, order: OrderId) -> Settled {
            self.with_ledger(async |ledger| {
                let order = ledger.order(order).await.unwrap().unwrap();
                match ledger.take_notice(notice(&order, "capture"), now()).await.unwrap() {
                    Taken::Capture(Decided { this, .. }) => this,
                    other => panic!("{other:?}"),
                }
            })
            .await
        }

        /// Money that came before its order and that nobody has looked at since. The order is due like the others.
        async fn early_money_comes(&self) -> (OrderId, PaymentId) {
            let (id, offer) = (OrderId(4_711), self.sale.offer().parse().unwrap());
            let fresh = PaymentId(rand::random::<u128>() >> 2);
            self.with_ledger(async |ledger| {
                let key = CaptureKey::new("sandbox", "early").unwrap();
                let money = ledger.order(self.orders[0]).await.unwrap().unwrap().view().total;
                let capture = Capture { key, money };
                let told = Told::Captured { capture, names: Names::Order(id), fresh };
                let taken = ledger.take_notice(Notice { event_id: "early".into(), told }, now()).await;
                let Taken::Capture(Decided { this: Settled::Wait, .. }) = taken.unwrap() else { panic!() };
            })
            .await;
            self.record(id, offer, "eve").await;
            (id, fresh)
        }

        /// An order that came past gate and journal, and is due like the others.
        async fn record(&self, order: OrderId, offer: OfferId, name: &str) {
            let recorded_at = now().plus_ms(-AGO_MS);
            let claim = Claim {
                order,
                offer,
                buyer: buyer(name),
                quantity: 1,
                claimed_at: recorded_at,
                pass_expires_at: recorded_at.plus_s(300),
                revives: None,
            };
            let last = self
                .with_ledger(async |ledger| {
                    let seq = ledger.cursor().await.unwrap() + 1;
                    ledger.record_orders(vec![(seq, claim.into())], recorded_at).await.unwrap();
                    seq
                })
                .await;
            // The journal ends where the ledger's clerk has read to.
            let journal = rusqlite::Connection::open(self.folder.path().join("journal.db")).unwrap();
            let sql = "insert into entries (last_seq, first_seq, claims) values (?1, ?1, x'01')";
            journal.execute(sql, [i64::try_from(last).unwrap()]).unwrap();
        }

        async fn late_money_comes(&self, order: OrderId) -> PaymentId {
            let settled = self.money_comes(order).await;
            let Settled::ReviveNeeded { payment, .. } = settled else { panic!("{settled:?}") };
            payment
        }

        /// Starts the real program, which must die at this point.
        fn die_at(&self, point: &str) {
            die_at(self.folder.path(), point, SANDBOX);
        }

        async fn start(self) -> (TestApp, TestSale, Vec<OrderId>) {
            (TestApp::on(self.folder, Clock::system(), SANDBOX).await, self.sale, self.orders)
        }
    }

    fn die_at(folder: &Path, point: &str, settings: &[&str]) {
        has_died_at(&launch(folder, settings, Some(point)), point);
    }

    /// The books add up, and exactly what they say is free is sold, to the last unit.
    async fn assert_sells_out(app: &TestApp, sale: &TestSale) {
        assert_units_add_up(app, sale).await;
        for number in 0..free(&app.app, sale) {
            bought(app, sale, &format!("late buyer {number}"), 1).await;
        }
        let one_too_many = app.buyer("one too many");
        let told = one_too_many.buy_with(sale.offer(), &one_too_many.mint(sale.offer()), 1, 409).await;
        assert_eq!(told["code"], "sold_out");
        assert_units_add_up(app, sale).await;
        let counters = app.app.ledger.counters(sale.id.parse().unwrap()).await.unwrap()[0];
        assert_eq!(counters.live_units, counters.stock);
        assert_eq!(app.app.metrics.ledger_refusals.get(), 0);
        let audit = app.app.audit(AuditRequest::default()).await.unwrap();
        assert_eq!(audit.clean, Some(true), "{audit:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_sweeper_that_dies_between_any_two_steps_strands_no_unit() {
        for point in ["ledger.close_due", "sweeper.closed", "desk.releasing:2", "desk.released:3"] {
            let left = Left::unpaid().await;
            left.die_at(point);
            let (app, sale, orders) = left.start().await;
            for order in orders {
                let closed = until_state(&app, order, State::Closed).await;
                assert_eq!(
                    (closed.status.reason, closed.seq),
                    (Some(rules::order::Reason::Timeout), 3),
                    "{point}"
                );
            }
            assert_units_add_up(&app, &sale).await;
            assert_eq!(free(&app.app, &sale), STOCK, "{point}");
            assert_sells_out(&app, &sale).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_sweeper_that_dies_after_asking_a_provider_strands_no_unit() {
        for point in ["ledger.close_asked", "sweeper.lapsed", "desk.released"] {
            let left = Left::after(async |app, _, orders| {
                for (order, name) in orders.iter().zip(BUYERS) {
                    let id = PaymentId(rand::random::<u128>() >> 2);
                    // The sandbox has taken nothing: it says so.
                    let wanted =
                        NewPayment { id, order: *order, buyer: buyer(name), provider: "sandbox".into() };
                    app.app.ledger.start_payment(wanted, app.app.clock.now()).await.unwrap();
                }
            })
            .await;
            left.die_at(point);
            let (app, sale, orders) = left.start().await;
            for order in orders {
                until_state(&app, order, State::Closed).await;
                let payments = app.app.ledger.payments_of(order).await.unwrap();
                assert!(payments.iter().all(|payment| payment.status.state == PaymentState::Closed));
            }
            assert_sells_out(&app, &sale).await;
        }
    }

    /// Between the closing of a payment here and at its provider. No callback ever comes.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_death_before_a_payment_is_closed_at_its_provider_forgets_neither_it_nor_its_money() {
        let points =
            ["sweeper.lapsed", "desk.released", "closings.asking", "closings.asked", "ledger.note_closings"];
        for point in points {
            println!("{point}");
            let provider = FakeProvider::saying(NOT_PAID);
            let settings = with_provider(&provider.clone().start().await);
            let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
            let mut payment = None;
            let left = Left::after(async |app, _, orders| {
                // The others are cancelled: nothing else closes.
                for (order, name) in orders.iter().zip(BUYERS).skip(1) {
                    app.app.cancel(*order, &buyer(name)).await.unwrap();
                }
                payment = Some(started(app, orders[0], BUYERS[0]).await);
            })
            .await;
            die_at(left.folder.path(), point, &settings);
            let closed_before = provider.closed.load(Ordering::Acquire);
            let was_asked = matches!(point, "closings.asked" | "ledger.note_closings");
            assert!(!was_asked || closed_before == 1, "the provider was asked before");
            let was_closed = left
                .with_ledger(async |ledger| ledger.order(left.orders[0]).await.unwrap().unwrap().status.state)
                .await;
            assert_eq!(was_closed, State::Closed, "{point}: it died after the ledger's commit");

            let is_paid = closed_before == 0;
            provider.says.store(if is_paid { PAID } else { NOT_PAID }, Ordering::Release);
            let app = TestApp::on(left.folder, Clock::system(), &settings).await;
            if is_paid {
                let paid = until_state(&app, left.orders[0], State::Paid).await;
                assert_eq!(paid.payment, payment, "{point}");
            } else {
                eventually("it is asked again, for nobody knows", async || {
                    provider.closed.load(Ordering::Acquire) == closed_before + 1
                })
                .await;
            }
            eventually("nothing is left to be closed", async || {
                app.app.ledger.closings_due("stripe", UnixMs(i64::MAX), 10).await.unwrap().is_empty()
            })
            .await;
            assert_sells_out(&app, &left.sale).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn late_money_survives_a_death_between_any_two_steps_of_its_revival() {
        let points = [
            "captures.settled",
            "gate.revived",
            "journal.appending",
            "journal.committed",
            "journal.telling",
            "clerk.recording",
            "ledger.record_orders",
            "clerk.recorded",
        ];
        for point in points {
            let left = Left::closed().await;
            let payment = left.late_money_comes(left.orders[0]).await;
            left.die_at(point);
            let (app, sale, orders) = left.start().await;
            let paid = until_state(&app, orders[0], State::Paid).await;
            assert_eq!((paid.payment, paid.seq), (Some(payment), 4), "{point}");
            let state = app.app.ledger.payment(payment).await.unwrap().unwrap().status.state;
            assert_eq!(state, PaymentState::Applied, "{point}");
            assert_units_add_up(&app, &sale).await;
            assert_eq!(free(&app.app, &sale), STOCK - 1, "{point}");
            assert_sells_out(&app, &sale).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn late_money_that_found_nothing_goes_back_after_a_death_too() {
        for point in ["desk.refusing_late", "ledger.refund_late"] {
            let left = Left::after(async |app, clock, orders| {
                clock.advance(PAY_WITHIN);
                until_state(app, orders[0], State::Closed).await;
                let order = ledgers(&app.app, orders[0]).await;
                let offer = app.app.gate.memory.offer(order.offer).unwrap();
                eventually("the units are back", async || offer.free() == STOCK).await;
                // Whoever took the units pays in time.
                let sale = TestSale { id: order.sale.to_string(), offers: vec![order.offer.to_string()] };
                for number in 0..STOCK {
                    let taken = bought(app, &sale, &format!("quick buyer {number}"), 1).await;
                    assert!(matches!(
                        pay(&app.app, taken, &format!("{number}")).await,
                        Settled::Applied { .. }
                    ));
                }
            })
            .await;
            let payment = left.late_money_comes(left.orders[0]).await;
            left.die_at(point);
            let (app, sale, orders) = left.start().await;
            eventually("the money goes back", async || {
                let status = app.app.ledger.payment(payment).await.unwrap().unwrap().status;
                status.reason == Some(RefundReason::NoUnitLeft)
            })
            .await;
            assert_eq!(ledgers(&app.app, orders[0]).await.status.state, State::Closed);
            assert_eq!(free(&app.app, &sale), 0);
            assert_sells_out(&app, &sale).await;
        }
    }

    /// No gate knows the offer of a sale that is still a draft; once its time is over, the ledger decides alone.
    #[tokio::test(flavor = "multi_thread")]
    async fn late_money_that_the_ledger_decides_alone_survives_a_death_before_its_commit() {
        let mut offer = None;
        let left = Left::after(async |app, _, _| {
            // Its time is over for whoever starts now.
            let draft = draft_between(-3_600, -10, 1);
            let draft = app.operate("POST", "/admin/v1/sales", Some(&draft), 201).await;
            offer = Some(draft["offers"][0]["id"].as_str().unwrap().parse().unwrap());
        })
        .await;
        let order = OrderId(4_711);
        left.record(order, offer.unwrap(), "eve").await;
        let all = u32::try_from(BUYERS.len()).unwrap() + 1;
        let closed = left
            .with_ledger(async |ledger| ledger.close_due(now(), all, Excuses::default(), Vec::new()).await)
            .await;
        assert_eq!(closed.unwrap().closed.len(), BUYERS.len() + 1);
        let payment = left.late_money_comes(order).await;
        left.die_at("ledger.revive_alone");
        let (app, sale, _) = left.start().await;
        let paid = until_state(&app, order, State::Paid).await;
        assert_eq!((paid.payment, paid.seq), (Some(payment), 4));
        let state = app.app.ledger.payment(payment).await.unwrap().unwrap().status.state;
        assert_eq!(state, PaymentState::Applied);
        assert_sells_out(&app, &sale).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn money_in_time_survives_a_death_before_it_is_settled() {
        // Written down beside an order that is due: the deadline must not win because the process dies.
        for point in ["ledger.settle_capture", "ledger.close_due", "sweeper.closed"] {
            let left = Left::unpaid().await;
            let (order, payment) = left.early_money_comes().await;
            left.die_at(point);
            let (app, sale, orders) = left.start().await;
            let paid = until_state(&app, order, State::Paid).await;
            assert_eq!((paid.payment, paid.seq), (Some(payment), 3), "{point}");
            for order in orders {
                until_state(&app, order, State::Closed).await;
            }
            assert_sells_out(&app, &sale).await;
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_refund_that_dies_before_its_release_strands_no_unit() {
        for (point, restock) in [
            ("till.refunded", true),
            ("desk.releasing", true),
            ("desk.released", true),
            ("desk.releasing", false),
        ] {
            let left = Left::after(async |app, _, orders| {
                for (number, order) in orders.iter().enumerate() {
                    assert!(matches!(
                        pay(&app.app, *order, &format!("{number}")).await,
                        Settled::Applied { .. }
                    ));
                }
            })
            .await;
            let order = left.orders[0];
            let asked = left
                .with_ledger(async |ledger| ledger.refund_order(order, restock, now()).await.unwrap())
                .await;
            assert!(matches!(asked, RefundAsked::Begun { .. }), "{asked:?}");
            left.die_at(point);
            let (app, sale, _) = left.start().await;
            until_state(&app, order, State::Refunded).await;
            assert_units_add_up(&app, &sale).await;
            assert_eq!(free(&app.app, &sale), STOCK - 4 + u32::from(restock), "{point}");
            assert_sells_out(&app, &sale).await;
        }
    }
}
