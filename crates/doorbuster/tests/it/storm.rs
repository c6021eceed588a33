//! A storm: many buyers at once, several tries each, double clicks, hang-ups in the middle, cancels and rebuys; after it
//! every promise is held against the books.

mod heavy {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::time::Duration;

    use doorbuster::ledger::OrderSearch;
    use parking_lot::Mutex;
    use rand::RngExt as _;
    use rand::rngs::StdRng;
    use rules::id::{OfferId, SaleId};
    use rules::invariant::{Books, LiveOrder, check_books, check_one_live_order};
    use rules::order::State;
    use serde_json::{Value, json};

    use crate::app::{TestApp, TestSale};
    use crate::torture::Torture;

    const BUYERS: u32 = 1_500;

    /// The smallest and the largest stock of a storm, and how many buyers try at once.
    const STOCK: std::ops::Range<u32> = 100..600;
    const AT_ONCE: std::ops::Range<usize> = 16..128;

    /// What one buyer will do.
    #[derive(Clone, Copy)]
    struct Character {
        number: u32,
        quantity: u32,
        hangs_up_after: Option<Duration>,
        cancels: bool,
    }

    impl Character {
        fn at_random(number: u32, chance: &mut StdRng) -> Self {
            let patience = Duration::from_micros(chance.random_range(1..3_000));
            Self {
                number,
                quantity: chance.random_range(1..=3),
                hangs_up_after: chance.random_bool(0.2).then_some(patience),
                cancels: chance.random_bool(0.25),
            }
        }
    }

    /// One buyer's try; `None` when the buyer hung up.
    async fn try_once(
        app: &TestApp,
        offer: &str,
        pass: &str,
        quantity: u32,
        hang_up: Option<Duration>,
    ) -> Option<(u16, Value)> {
        let request = app.client.post(app.url(&format!("/api/v1/offers/{offer}/orders")));
        let sent = request.json(&json!({"pass": pass, "quantity": quantity})).send();
        let response = match hang_up {
            Some(patience) => tokio::time::timeout(patience, sent).await.ok()?.ok()?,
            None => sent.await.ok()?,
        };
        Some((response.status().as_u16(), response.json().await.ok()?))
    }

    async fn be_a_buyer(app: &TestApp, offer: &str, who: Character, told: &Mutex<HashMap<String, String>>) {
        let buyer = app.buyer(&format!("buyer {}", who.number));
        let quantity = who.quantity;
        for _ in 0..3 {
            let pass = buyer.mint(offer);
            if who.hangs_up_after.is_some() {
                try_once(app, offer, &pass, quantity, who.hangs_up_after).await;
            }
            let (first, second) = tokio::join!(
                try_once(app, offer, &pass, quantity, None),
                try_once(app, offer, &pass, quantity, None)
            );
            for (status, body) in [first, second].into_iter().flatten() {
                assert!(matches!(status, 200..=202 | 409), "{status} {body}");
                if status < 300 {
                    told.lock().insert(body["id"].as_str().unwrap().to_owned(), buyer.name.clone());
                }
            }
            let held = told.lock().iter().find(|(_, name)| **name == buyer.name).map(|(id, _)| id.clone());
            if let Some(id) = held
                && who.cancels
            {
                let order = id.parse().unwrap();
                let buyer = rules::buyer::BuyerId::parse(&buyer.name).unwrap();
                app.app.cancel(order, &buyer).await.unwrap();
            }
        }
    }

    async fn check(app: &TestApp, sale: &TestSale, told: &HashMap<String, String>) -> u32 {
        let id: SaleId = sale.id.parse().unwrap();
        let offer: OfferId = sale.offer().parse().unwrap();
        let search = OrderSearch { sale: Some(id), limit: 1_000_000, ..OrderSearch::default() };
        let orders = app.app.ledger.search_orders(search).await.unwrap().orders;
        for (id, buyer) in told {
            let order = orders.iter().find(|order| order.id.to_string() == *id);
            assert!(order.is_some_and(|order| order.buyer.as_str() == buyer), "{buyer} was told of {id}");
        }
        assert!(
            orders.iter().all(|order| order.status.state != State::Refused),
            "the ledger refused a grant"
        );
        let live: Vec<_> = orders.iter().filter(|order| order.status.holds_units).collect();
        let live_orders: Vec<_> = live
            .iter()
            .map(|order| LiveOrder { order: order.id, offer: order.offer, buyer: order.buyer.clone() })
            .collect();
        assert_eq!(check_one_live_order(&live_orders), []);
        let counters = app.app.ledger.counters(id).await.unwrap()[0];
        let held = live.iter().map(|order| order.quantity).sum();
        let books = Books {
            offer,
            stock: counters.stock,
            free: app.app.gate.memory.offer(offer).unwrap().free(),
            held,
            sold: 0,
            returning: 0,
            live_counter: counters.live_units,
            live_units: held,
        };
        assert_eq!(check_books(&books), []);
        books.free
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn after_a_storm_every_promise_holds() {
        let torture = Torture::of(1);
        for round in 0..torture.rounds {
            let mut chance = torture.round(round);
            let (stock, at_once) = (chance.random_range(STOCK), chance.random_range(AT_ONCE));
            println!("seed {}, round {round}: {stock} units, {at_once} at once", torture.seed);
            storm(stock, at_once, &mut chance).await;
        }
    }

    async fn storm(stock: u32, at_once: usize, chance: &mut StdRng) {
        let app = Arc::new(TestApp::start().await);
        let sale = app.open_sale(stock).await;
        let told: Arc<Mutex<HashMap<String, String>>> = Arc::default();
        let room = Arc::new(tokio::sync::Semaphore::new(at_once));
        let mut storm = tokio::task::JoinSet::new();
        for number in 0..BUYERS {
            let (app, told, room) = (Arc::clone(&app), Arc::clone(&told), Arc::clone(&room));
            let offer = sale.offer().to_owned();
            let who = Character::at_random(number, chance);
            storm.spawn(async move {
                let _turn = room.acquire().await.unwrap();
                be_a_buyer(&app, &offer, who, &told).await;
            });
        }
        while let Some(ended) = storm.join_next().await {
            ended.unwrap();
        }
        app.settled().await;
        let told = told.lock().clone();
        let free = check(&app, &sale, &told).await;
        assert!(told.len() >= 30, "only {} were told that they are in", told.len());
        // What is left can be sold to the last unit, and then it is sold out.
        for number in 0..free {
            app.buyer(&format!("late {number}"))
                .buy_with(sale.offer(), &app.buyer(&format!("late {number}")).mint(sale.offer()), 1, 202)
                .await;
        }
        let late = app.buyer("too late");
        let refused = late.buy_with(sale.offer(), &late.mint(sale.offer()), 1, 409).await;
        assert_eq!(refused["code"], "sold_out");
        app.settled().await;
        assert_eq!(check(&app, &sale, &told).await, 0);
    }
}
