//! Real processes, killed: what was answered survives, and no unit is lost. `kill -9` and the named points end the
//! process, not the machine; the power cut is in `power_cut`. After every death everything is asked of the public
//! API; the tables are read once, at the end.

mod heavy {
    use std::collections::{HashMap, HashSet};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use doorbuster::clock::Clock;
    use doorbuster::crash::POINTS;
    use futures_util::StreamExt as _;
    use parking_lot::Mutex;
    use rand::RngExt as _;
    use rand::rngs::StdRng;
    use rules::buyer::BuyerId;
    use rules::pass::{Pass, PassKeys};
    use rules::time::UnixMs;
    use rusqlite::Connection;
    use serde_json::{Value, json};

    use crate::app::{ADMIN_KEY, PASS_SECRET, PATIENCE, token_of};
    use crate::served::{Answer, Server};
    use crate::torture::{Evidence, Torture};

    const STOCK: u32 = 3_000;
    const END: Duration = Duration::from_secs(20);

    /// A rush is over by then: a slow machine and a slow disk need their time until a point comes by for the n-th time.
    const COMES_BY: Duration = Duration::from_secs(120);

    /// Buyers at once.
    const CROWD: u32 = 24;

    /// Repeated passes at once when everything answered is asked for again.
    const ASKED_AT_ONCE: usize = 16;

    /// So many deaths on one sale; then the same folder gets a new one, so that a round does not grow without end.
    const DEATHS_PER_SALE: u64 = 10;

    /// As many buyers as like come from one address.
    fn start(folder: &Path, crash_at: Option<&str>) -> Server {
        Server::start(folder, &["limits.per_ip_per_s=0", "limits.per_buyer_per_s=0"], crash_at)
    }

    impl Server {
        async fn open_shop(&self) -> Shop {
            let (sale, offer) = self.open_sale(STOCK).await;
            Shop { sale, offer }
        }

        /// The offer's units once nothing is queued.
        async fn quiet(&self, shop: &Shop) -> Units {
            let begun = std::time::Instant::now();
            while begun.elapsed() < PATIENCE {
                let stats = self.operate("GET", &format!("/admin/v1/sales/{}/stats", shop.sale), None).await;
                if stats["queue"]["depth"] == 0 {
                    return serde_json::from_value(stats["offers"][0].clone()).unwrap();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            panic!("the queue does not drain");
        }

        async fn buy(&self, shop: &Shop, pass: &str) -> Option<Answer> {
            let path = format!("/api/v1/offers/{}/orders", shop.offer);
            self.call("POST", &path, "", Some(&json!({"pass": pass, "quantity": 1}))).await
        }

        async fn cancel(&self, order: &str, buyer: &str) -> Option<Answer> {
            self.call("POST", &format!("/api/v1/orders/{order}/cancel"), &token(buyer), None).await
        }

        async fn change_stock(&self, shop: &Shop, by: i64, id: &str) -> Option<Answer> {
            let path = format!("/admin/v1/offers/{}/stock", shop.offer);
            let request = self.client.post(format!("{}{path}", self.url)).bearer_auth(ADMIN_KEY);
            let body = json!({"change": by, "change_id": id});
            let response = request.header("idempotency-key", id).json(&body).send().await.ok()?;
            let status = response.status().as_u16();
            Some((status, response.json().await.ok()?))
        }

        /// Every order of the sale, as the operator finds them.
        async fn orders(&self, shop: &Shop) -> Vec<Value> {
            let (mut all, mut cursor) = (Vec::new(), String::new());
            loop {
                let path = format!("/admin/v1/orders?sale={}&limit=200&cursor={cursor}", shop.sale);
                let page = self.operate("GET", &path, None).await;
                all.extend(page["items"].as_array().unwrap().iter().cloned());
                match page["next_cursor"].as_str() {
                    Some(next) => cursor = next.to_owned(),
                    None => return all,
                }
            }
        }
    }

    struct Shop {
        sale: String,
        offer: String,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Units {
        stock: u32,
        free: u32,
        held: u32,
        sold: u32,
        returning: u32,
    }

    /// What was asked and what was answered. It outlives the server.
    #[derive(Default)]
    struct History {
        /// By pass.
        orders: Mutex<HashMap<String, Told>>,
        changes: Mutex<Vec<Change>>,
        cancelled: AtomicU64,
        changed: AtomicU64,
        next_buyer: AtomicU64,
    }

    #[derive(Clone)]
    struct Told {
        id: String,
        buyer: String,
        cancel: Cancel,
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    enum Cancel {
        Never,
        /// Sent; nobody said what became of it.
        Asked,
        Answered,
    }

    #[derive(Clone)]
    struct Change {
        id: String,
        by: i64,
        /// Whether it was made; `None` while nobody said so.
        made: Option<bool>,
    }

    /// How many of each were answered so far.
    #[derive(Clone, Copy, Debug)]
    struct Answered {
        orders: u64,
        cancels: u64,
        changes: u64,
    }

    impl History {
        fn answered(&self) -> Answered {
            Answered {
                orders: self.orders.lock().len() as u64,
                cancels: self.cancelled.load(Ordering::Acquire),
                changes: self.changed.load(Ordering::Acquire),
            }
        }

        fn note_order(&self, pass: &str, buyer: &str, body: &Value) -> String {
            let id = body["id"].as_str().unwrap().to_owned();
            let told = Told { id: id.clone(), buyer: buyer.to_owned(), cancel: Cancel::Never };
            let mut orders = self.orders.lock();
            let known = orders.entry(pass.to_owned()).or_insert(told);
            assert_eq!(known.id, id, "one pass, two orders");
            id
        }

        fn note_cancel(&self, pass: &str, cancel: Cancel) {
            self.orders.lock().get_mut(pass).unwrap().cancel = cancel;
            self.cancelled.fetch_add(u64::from(cancel == Cancel::Answered), Ordering::AcqRel);
        }

        fn note_change(&self, id: &str, status: u16, body: &Value) {
            let made = match status {
                200 => true,
                409 => false,
                _ => panic!("stock change: {status} {body}"),
            };
            let mut changes = self.changes.lock();
            changes.iter_mut().find(|change| change.id == id).unwrap().made = Some(made);
            self.changed.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn mint(shop: &Shop, buyer: &str) -> String {
        let keys = PassKeys::new(PASS_SECRET.as_bytes(), None);
        let now = UnixMs(jiff::Timestamp::now().as_millisecond());
        let order = keys.mint_order_id(&BuyerId::parse(buyer).unwrap(), now, rand::random());
        keys.sign(&Pass { buyer, offer: shop.offer.parse().unwrap(), order, expires_at: now.plus_s(3_000) })
    }

    fn token(buyer: &str) -> String {
        token_of(buyer, &Clock::system())
    }

    /// One buyer after the other until the server is gone: some click twice, some hang up in the middle, some cancel.
    async fn buyers(server: &Server, shop: &Shop, history: &History, over: &AtomicBool) -> Option<()> {
        while !over.load(Ordering::Acquire) {
            let number = history.next_buyer.fetch_add(1, Ordering::Relaxed);
            let buyer = format!("buyer {number}");
            let pass = mint(shop, &buyer);
            if number.is_multiple_of(11) {
                let hang_up = Duration::from_micros(rand::rng().random_range(1..1_500));
                let _ = tokio::time::timeout(hang_up, server.buy(shop, &pass)).await;
            }
            for _ in 0..if number.is_multiple_of(7) { 2 } else { 1 } {
                let (status, body) = server.buy(shop, &pass).await?;
                if !matches!(status, 200..=202) {
                    assert!(matches!(status, 409 | 503), "{status} {body}");
                    continue;
                }
                let order = history.note_order(&pass, &buyer, &body);
                if number.is_multiple_of(4) {
                    history.note_cancel(&pass, Cancel::Asked);
                    let (status, body) = server.cancel(&order, &buyer).await?;
                    match status {
                        200 => history.note_cancel(&pass, Cancel::Answered),
                        _ => assert!(matches!(status, 409 | 503), "{status} {body}"),
                    }
                }
            }
        }
        Some(())
    }

    /// An operator who changes the stock all the time, up more often than down.
    async fn operator(server: &Server, shop: &Shop, history: &History, over: &AtomicBool) -> Option<()> {
        while !over.load(Ordering::Acquire) {
            let number = history.changes.lock().len();
            let (id, by) = (format!("change-{number}"), [3, -2, 1, -1][number % 4]);
            history.changes.lock().push(Change { id: id.clone(), by, made: None });
            let (status, body) = server.change_stock(shop, by, &id).await?;
            history.note_change(&id, status, &body);
        }
        Some(())
    }

    /// Buyers and an operator until the server is gone.
    async fn rush(server: &Arc<Server>, shop: &Arc<Shop>, history: &Arc<History>, over: &Arc<AtomicBool>) {
        let mut crowd = tokio::task::JoinSet::new();
        for number in 0..=CROWD {
            let (server, shop) = (Arc::clone(server), Arc::clone(shop));
            let (history, over) = (Arc::clone(history), Arc::clone(over));
            crowd.spawn(async move {
                match number {
                    0 => operator(&server, &shop, &history, &over).await,
                    _ => buyers(&server, &shop, &history, &over).await,
                }
            });
        }
        while let Some(ended) = crowd.join_next().await {
            ended.unwrap();
        }
    }

    /// How a process dies.
    #[derive(Debug)]
    enum Death {
        /// `kill -9`, so long after the first answer.
        Kill(Duration),
        /// At a named point, the n-th time it comes by.
        Point(&'static str, u64),
    }

    impl Death {
        fn at_random(chance: &mut StdRng) -> Self {
            if chance.random_bool(0.5) {
                return Self::Kill(Duration::from_millis(chance.random_range(1..150)));
            }
            let point = POINTS[chance.random_range(0..POINTS.len())];
            Self::at(point, chance)
        }

        /// Late enough that somebody is answered before.
        fn at(point: &'static str, chance: &mut StdRng) -> Self {
            let times = match point {
                // Once per claim, and a whole crowd may be in the first commit.
                "journal.telling" => chance.random_range(60..200),
                // Once per cancel, and everybody of the crowd may wait for the answer to one.
                "ledger.cancel_order" | "desk.cancelled" => chance.random_range(u64::from(CROWD) + 2..60),
                _ => chance.random_range(8..30),
            };
            Self::Point(point, times)
        }

        fn arms(&self) -> Option<String> {
            match self {
                Self::Kill(_) => None,
                Self::Point(point, times) => Some(format!("{point}:{times}")),
            }
        }

        /// Waits for the end of the process, or brings it.
        async fn strike(&self, server: &Server, history: &History, before: Answered) {
            match self {
                Self::Kill(after) => {
                    let answered = || history.answered().orders > before.orders;
                    until(answered, "somebody is answered").await;
                    tokio::time::sleep(*after).await;
                    server.process.kill().unwrap();
                }
                Self::Point(point, _) => {
                    until(|| !server.process.is_running().unwrap(), point).await;
                    server.has_died_at(point);
                }
            }
        }
    }

    async fn until(condition: impl Fn() -> bool, what: &str) {
        let begun = std::time::Instant::now();
        while !condition() {
            assert!(begun.elapsed() < COMES_BY, "{what}: not within {COMES_BY:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A rush that ends with a death, a new start, and a look at everything. Answers what was answered in it.
    async fn survive(folder: &Path, shop: &Arc<Shop>, history: &Arc<History>, death: &Death) -> Answered {
        let server = Arc::new(start(folder, death.arms().as_deref()));
        let before = history.answered();
        let over = Arc::new(AtomicBool::new(false));
        let executioner = async {
            death.strike(&server, history, before).await;
            over.store(true, Ordering::Release);
        };
        tokio::join!(rush(&server, shop, history, &over), executioner);
        server.process.wait(END).unwrap();
        let after = history.answered();
        assert!(after.orders > before.orders, "{death:?}: nobody was answered before");
        let server = start(folder, None);
        check(&server, shop, history).await;
        server.end_hard();
        Answered {
            orders: after.orders - before.orders,
            cancels: after.cancels - before.cancels,
            changes: after.changes - before.changes,
        }
    }

    /// Everything that was answered is still so, and the books add up: orders, counters, gate.
    async fn check(server: &Server, shop: &Shop, history: &History) {
        let orders = history.orders.lock().clone();
        let asked = futures_util::stream::iter(&orders);
        asked.for_each_concurrent(ASKED_AT_ONCE, |(pass, told)| ask_again(server, shop, pass, told)).await;
        let stock = i64::from(STOCK) + settle_changes(server, shop, history).await;
        let units = server.quiet(shop).await;
        assert_eq!(i64::from(units.stock), stock, "a stock change was lost or made twice");
        assert_eq!((units.sold, units.returning), (0, 0), "{units:?}");
        assert_eq!(units.free + units.held, units.stock, "{units:?}");

        let recorded = server.orders(shop).await;
        let ids: HashSet<&str> = recorded.iter().map(|order| order["id"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), recorded.len(), "an order is there twice");
        assert!(orders.values().all(|told| ids.contains(told.id.as_str())), "an answered order is gone");
        let live: Vec<_> = recorded.iter().filter(|order| order["state"] == "awaiting_payment").collect();
        let ended = recorded.iter().filter(|order| order["state"] == "closed").count();
        assert_eq!(live.len() + ended, recorded.len(), "the ledger refused a claim of the gate");
        let buyers: HashSet<&str> = live.iter().map(|order| order["buyer"].as_str().unwrap()).collect();
        assert_eq!(buyers.len(), live.len(), "a buyer has two live orders");
        assert_eq!(u64::from(units.held), live.len() as u64, "the counter is not the sum of the orders");
        gate_equals_ledger(server, shop, history, &units).await;
    }

    async fn ask_again(server: &Server, shop: &Shop, pass: &str, told: &Told) {
        let (status, body) = server.buy(shop, pass).await.expect("the server answers");
        assert!(matches!(status, 200..=202), "an answered order is gone: {status} {body}");
        assert_eq!(body["id"].as_str(), Some(told.id.as_str()), "of {}", told.buyer);
        let closed = body["state"] == "closed";
        match told.cancel {
            Cancel::Never => assert!(!closed, "nobody cancelled this: {body}"),
            Cancel::Asked => {}
            Cancel::Answered => assert!(closed, "a cancel that was answered is undone: {body}"),
        }
    }

    /// Repeats every change whose answer is missing, and sums up what was made.
    async fn settle_changes(server: &Server, shop: &Shop, history: &History) -> i64 {
        let open: Vec<Change> =
            history.changes.lock().iter().filter(|change| change.made.is_none()).cloned().collect();
        for change in open {
            let (status, body) = server.change_stock(shop, change.by, &change.id).await.unwrap();
            history.note_change(&change.id, status, &body);
        }
        history.changes.lock().iter().filter(|change| change.made == Some(true)).map(|change| change.by).sum()
    }

    /// A stock change answers what the gate itself has; statistics are made to add up and would hide a surplus.
    async fn gate_equals_ledger(server: &Server, shop: &Shop, history: &History, units: &Units) {
        let id = format!("look-{}", history.changes.lock().len());
        history.changes.lock().push(Change { id: id.clone(), by: 1, made: None });
        let (status, body) = server.change_stock(shop, 1, &id).await.unwrap();
        history.note_change(&id, status, &body);
        let found = (body["stock"].as_u64(), body["free"].as_u64());
        let expected = (u64::from(units.stock) + 1, u64::from(units.free) + 1);
        assert_eq!(found, (Some(expected.0), Some(expected.1)), "the gate is not what the ledger says");
    }

    /// Sells what is left and finds exactly the stock sold: nothing was stranded, nothing sold twice.
    async fn sell_out(server: &Server, shop: &Shop) {
        let before = server.quiet(shop).await;
        let late = futures_util::stream::iter(0..before.free);
        late.for_each_concurrent(ASKED_AT_ONCE, async |number| {
            let answer = server.buy(shop, &mint(shop, &format!("late buyer {number}"))).await;
            assert_eq!(answer.as_ref().map(|answer| answer.0), Some(202), "{answer:?}");
        })
        .await;
        let (status, body) = server.buy(shop, &mint(shop, "one too many")).await.unwrap();
        assert_eq!((status, body["code"].as_str()), (409, Some("sold_out")));
        let after = server.quiet(shop).await;
        assert_eq!((after.free, after.held), (0, before.stock));
    }

    /// Ends the server as an operator would, and reads the ledger's own words.
    fn check_books(server: &Server, folder: &Path) {
        server.process.terminate().unwrap();
        assert!(server.process.wait(END).unwrap().success());
        let ledger = Connection::open(folder.join("doorbuster.db")).unwrap();
        let ok: String = ledger.query_row("pragma integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(ok, "ok");
        let count = |sql: &str| -> u32 { ledger.query_row(sql, [], |row| row.get(0)).unwrap() };
        let live = "(select coalesce(sum(quantity), 0) from orders where orders.offer_no = offers.offer_no
            and holds_units = 1)";
        assert_eq!(count(&format!("select count(*) from offers where live_units <> {live}")), 0);
        assert_eq!(count("select count(*) from offers where live_units > stock"), 0);
        assert_eq!(count("select count(*) from orders where state = 'refused'"), 0);
        assert!(count("select count(*) from orders") > 0);
    }

    /// A sale on this folder, made by a server that is then killed.
    async fn new_sale(folder: &Path) -> (Arc<Shop>, Arc<History>) {
        let server = start(folder, None);
        let shop = Arc::new(server.open_shop().await);
        server.end_hard();
        (shop, Arc::default())
    }

    /// Sells the sale out and reads the books of the whole folder.
    async fn conclude(folder: &Path, shop: &Shop) {
        let server = start(folder, None);
        sell_out(&server, shop).await;
        check_books(&server, folder);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn kill_at_random_moments_loses_no_answered_order() {
        let (torture, folder) = (Torture::of(4), Evidence::folder());
        let (shop, history) = new_sale(folder.path()).await;
        for round in 0..torture.rounds {
            let after = Duration::from_millis(torture.round(round).random_range(1..150));
            survive(folder.path(), &shop, &history, &Death::Kill(after)).await;
        }
        conclude(folder.path(), &shop).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dying_at_each_named_point_loses_no_answered_order() {
        let folder = Evidence::folder();
        let (shop, history) = new_sale(folder.path()).await;
        let mut chance = Torture::of(1).round(0);
        for point in POINTS {
            let answered = survive(folder.path(), &shop, &history, &Death::at(point, &mut chance)).await;
            let before = match point {
                "ledger.cancel_order" | "desk.cancelled" => answered.cancels,
                "ledger.change_stock" | "desk.stock_changed" | "desk.acted" => answered.changes,
                _ => answered.orders,
            };
            assert!(before > 0, "{point}: nothing of its kind was answered before: {answered:?}");
        }
        conclude(folder.path(), &shop).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn one_folder_survives_many_crashes() {
        let (torture, folder) = (Torture::of(3), Evidence::folder());
        let (mut shop, mut history) = new_sale(folder.path()).await;
        for round in 0..torture.rounds {
            if round > 0 && round % DEATHS_PER_SALE == 0 {
                conclude(folder.path(), &shop).await;
                (shop, history) = new_sale(folder.path()).await;
            }
            let death = Death::at_random(&mut torture.round(round));
            let answered = survive(folder.path(), &shop, &history, &death).await;
            println!("round {} of {}: {death:?}, {answered:?}", round + 1, torture.rounds);
        }
        conclude(folder.path(), &shop).await;
    }

    /// A server armed with a point, with a sale of its own.
    async fn armed(folder: &Path, point: &str) -> (Server, Shop) {
        let server = start(folder, Some(point));
        let shop = server.open_shop().await;
        (server, shop)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_cancel_that_dies_before_its_release_strands_no_unit() {
        let folder = Evidence::folder();
        let (server, shop) = armed(folder.path(), "desk.cancelled:2").await;
        let mut orders = Vec::new();
        for buyer in ["ann", "bob", "cat"] {
            let (status, body) = server.buy(&shop, &mint(&shop, buyer)).await.unwrap();
            assert_eq!(status, 202, "{body}");
            orders.push((body["id"].as_str().unwrap().to_owned(), buyer));
        }
        server.quiet(&shop).await;
        let (status, body) = server.cancel(&orders[0].0, "ann").await.unwrap();
        assert_eq!((status, &body["state"]), (200, &json!("closed")), "{body}");
        assert!(server.cancel(&orders[1].0, "bob").await.is_none(), "died under the second cancel");
        server.has_died_at("desk.cancelled");

        let server = start(folder.path(), None);
        for ((order, buyer), state) in orders.iter().zip(["closed", "closed", "awaiting_payment"]) {
            let path = format!("/api/v1/orders/{order}?wait=20");
            let (status, body) = server.call("GET", &path, &token(buyer), None).await.unwrap();
            assert_eq!((status, &body["state"]), (200, &json!(state)), "{buyer}: {body}");
        }
        let (status, body) = server.cancel(&orders[1].0, "bob").await.unwrap();
        assert_eq!((status, &body["seq"]), (200, &json!(3)), "the repeat is harmless: {body}");
        let units = server.quiet(&shop).await;
        assert_eq!((units.free, units.held, units.returning), (STOCK - 1, 1, 0), "{units:?}");
        gate_equals_ledger(&server, &shop, &History::default(), &units).await;
        sell_out(&server, &shop).await;
        check_books(&server, folder.path());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_stock_change_that_dies_before_the_gate_hears_of_it_is_made_once() {
        let folder = Evidence::folder();
        let (server, shop) = armed(folder.path(), "desk.stock_changed:2").await;
        let (status, body) = server.change_stock(&shop, 5, "first").await.unwrap();
        assert_eq!((status, &body["stock"]), (200, &json!(STOCK + 5)), "{body}");
        let (status, body) = server.buy(&shop, &mint(&shop, "ann")).await.unwrap();
        assert_eq!(status, 202, "{body}");
        assert!(server.change_stock(&shop, 7, "second").await.is_none(), "died under the second change");
        server.has_died_at("desk.stock_changed");

        let server = start(folder.path(), None);
        for (by, id, stock) in [(7, "second", STOCK + 12), (5, "first", STOCK + 5)] {
            let (status, body) = server.change_stock(&shop, by, id).await.unwrap();
            assert_eq!((status, &body["stock"]), (200, &json!(stock)), "{id}: {body}");
        }
        let units = server.quiet(&shop).await;
        assert_eq!((units.stock, units.free, units.held), (STOCK + 12, STOCK + 11, 1), "{units:?}");
        gate_equals_ledger(&server, &shop, &History::default(), &units).await;
        sell_out(&server, &shop).await;
        check_books(&server, folder.path());
    }
}
