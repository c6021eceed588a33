//! Real processes, killed: what was answered survives, and no unit is lost. `kill -9` and the named points end the
//! process, not the machine; the power cut is in `power_cut`.

mod heavy {
    use std::collections::HashMap;
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::time::Duration;

    use parking_lot::Mutex;
    use rand::RngExt as _;
    use rules::buyer::BuyerId;
    use rules::pass::{Pass, PassKeys};
    use rules::time::UnixMs;
    use rusqlite::Connection;
    use serde_json::{Value, json};
    use testkit::process::{Process, Program};

    use crate::app::{ADMIN_KEY, AUTH_SECRET, PASS_SECRET, draft};

    const STOCK: u32 = 3_000;
    const START: Duration = Duration::from_secs(30);

    /// The server in a process of its own.
    struct Server {
        process: Process,
        url: String,
        client: reqwest::Client,
    }

    impl Server {
        fn start(folder: &Path, crash_at: Option<&str>) -> Self {
            let mut program = Program::new(env!("CARGO_BIN_EXE_doorbuster"))
                .args(["serve", "--set", "listen=127.0.0.1:0", "--set", "limits.per_ip_per_s=0"])
                .args(["--set", "limits.per_buyer_per_s=0", "--data-dir"])
                .arg(folder)
                .env("DOORBUSTER_ADMIN_KEY", ADMIN_KEY)
                .env("DOORBUSTER_AUTH__HS256_SECRET", AUTH_SECRET)
                .env("DOORBUSTER_PASS__SECRET", PASS_SECRET);
            if let Some(point) = crash_at {
                program = program.env(doorbuster::crash::VARIABLE, point);
            }
            let process = program.start().unwrap();
            let line = process.wait_for_line("listening on ", START).unwrap();
            let url = line.trim_start_matches("listening on ").trim().to_owned();
            let client =
                reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build().unwrap();
            Self { process, url, client }
        }

        async fn operate(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
            let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
            let mut request =
                self.client.request(method, format!("{}{path}", self.url)).bearer_auth(ADMIN_KEY);
            if let Some(body) = body {
                request = request.json(body);
            }
            let response = request.send().await.unwrap();
            assert!(response.status().is_success(), "{path}: {}", response.status());
            response.json().await.unwrap()
        }

        async fn open_sale(&self) -> (String, String) {
            let sale = self.operate("POST", "/admin/v1/sales", Some(&draft(STOCK))).await;
            let id = sale["id"].as_str().unwrap().to_owned();
            self.operate("POST", &format!("/admin/v1/sales/{id}/publish"), Some(&json!({}))).await;
            (id, sale["offers"][0]["id"].as_str().unwrap().to_owned())
        }

        async fn quiet(&self, sale: &str) -> Value {
            for _ in 0..2_000 {
                let stats = self.operate("GET", &format!("/admin/v1/sales/{sale}/stats"), None).await;
                if stats["queue"]["depth"] == 0 {
                    return stats["offers"][0].clone();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            panic!("the queue does not drain");
        }

        /// One try: the status and the order id, or nothing when the server died under it.
        async fn buy(&self, offer: &str, pass: &str) -> Option<(u16, Value)> {
            let request = self.client.post(format!("{}/api/v1/offers/{offer}/orders", self.url));
            let response = request.json(&json!({"pass": pass, "quantity": 1})).send().await.ok()?;
            let status = response.status().as_u16();
            Some((status, response.json().await.ok()?))
        }
    }

    /// What buyers were told: pass -> order id. It outlives the server.
    #[derive(Default)]
    struct Told {
        orders: Mutex<HashMap<String, String>>,
        next_buyer: AtomicU64,
    }

    fn mint(offer: &str, buyer: &str) -> String {
        let keys = PassKeys::new(PASS_SECRET.as_bytes(), None);
        let now = UnixMs(jiff::Timestamp::now().as_millisecond());
        let order = keys.mint_order_id(&BuyerId::parse(buyer).unwrap(), now, rand::random());
        keys.sign(&Pass { buyer, offer: offer.parse().unwrap(), order, expires_at: now.plus_s(3_000) })
    }

    /// Buyers who try until the server is gone, some of them twice and some hanging up in the middle.
    async fn rush(server: &Arc<Server>, offer: &str, told: &Arc<Told>, over: &Arc<AtomicBool>) {
        let mut buyers = tokio::task::JoinSet::new();
        for _ in 0..24 {
            let (server, told, over) = (Arc::clone(server), Arc::clone(told), Arc::clone(over));
            let offer = offer.to_owned();
            buyers.spawn(async move {
                while !over.load(Ordering::Acquire) {
                    let number = told.next_buyer.fetch_add(1, Ordering::Relaxed);
                    let pass = mint(&offer, &format!("buyer {number}"));
                    if number % 11 == 0 {
                        let hang_up = Duration::from_micros(rand::rng().random_range(1..1_500));
                        let _ = tokio::time::timeout(hang_up, server.buy(&offer, &pass)).await;
                    }
                    let clicks = if number % 7 == 0 { 2 } else { 1 };
                    for _ in 0..clicks {
                        let Some((status, body)) = server.buy(&offer, &pass).await else { return };
                        if matches!(status, 200..=202) {
                            let id = body["id"].as_str().unwrap().to_owned();
                            let before = told.orders.lock().insert(pass.clone(), id.clone());
                            assert!(before.is_none_or(|before| before == id), "one pass, two orders");
                        }
                    }
                }
            });
        }
        while let Some(ended) = buyers.join_next().await {
            ended.unwrap();
        }
    }

    /// Everything that was answered is still there, and the books add up.
    async fn check(server: &Server, sale: &str, offer: &str, told: &Told) {
        let orders = told.orders.lock().clone();
        for (pass, id) in &orders {
            let (status, body) = server.buy(offer, pass).await.unwrap();
            assert!(matches!(status, 200..=202), "an answered order is gone: {status} {body}");
            assert_eq!(body["id"].as_str(), Some(id.as_str()));
        }
        let stats = server.quiet(sale).await;
        let number = |name: &str| stats[name].as_u64().unwrap();
        assert_eq!(number("free") + number("held") + number("sold"), u64::from(STOCK), "{stats}");
        assert!(number("held") >= orders.len() as u64, "{stats} but {} were answered", orders.len());
    }

    /// The ledger's own words, read after the server has ended.
    fn check_books(folder: &Path) {
        let ledger = Connection::open(folder.join("doorbuster.db")).unwrap();
        let ok: String = ledger.query_row("pragma integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(ok, "ok");
        let (stock, counter): (u32, u32) = ledger
            .query_row("select stock, live_units from offers", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap();
        let live: u32 = ledger
            .query_row("select coalesce(sum(quantity), 0) from orders where holds_units = 1", [], |row| {
                row.get(0)
            })
            .unwrap();
        let refused: u32 = ledger
            .query_row("select count(*) from orders where state = 'refused'", [], |row| row.get(0))
            .unwrap();
        assert_eq!((counter, refused), (live, 0));
        assert!(live <= stock);
    }

    /// Sells what is left and finds exactly the stock sold: nothing was stranded, nothing sold twice.
    async fn sell_out(server: &Server, sale: &str, offer: &str) {
        let stats = server.quiet(sale).await;
        let free = stats["free"].as_u64().unwrap();
        for number in 0..free {
            let (status, body) =
                server.buy(offer, &mint(offer, &format!("late buyer {number}"))).await.unwrap();
            assert_eq!(status, 202, "{body}");
        }
        let (status, body) = server.buy(offer, &mint(offer, "one too many")).await.unwrap();
        assert_eq!((status, body["code"].as_str()), (409, Some("sold_out")));
        let stats = server.quiet(sale).await;
        assert_eq!((&stats["free"], &stats["held"]), (&json!(0), &json!(STOCK)));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn kill_at_random_moments_loses_no_answered_order() {
        let folder = tempfile::tempdir().unwrap();
        let told = Arc::new(Told::default());
        let mut server = Arc::new(Server::start(folder.path(), None));
        let (sale, offer) = server.open_sale().await;
        for _ in 0..6 {
            let before = told.orders.lock().len();
            let over = Arc::new(AtomicBool::new(false));
            let killer = async {
                while told.orders.lock().len() == before {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let after = Duration::from_millis(rand::rng().random_range(1..120));
                tokio::time::sleep(after).await;
                server.process.kill().unwrap();
                over.store(true, Ordering::Release);
            };
            tokio::join!(rush(&server, &offer, &told, &over), killer);
            assert!(told.orders.lock().len() > before, "somebody must have been answered before the kill");
            server.process.wait(Duration::from_secs(10)).unwrap();
            server = Arc::new(Server::start(folder.path(), None));
            check(&server, &sale, &offer, &told).await;
        }
        sell_out(&server, &sale, &offer).await;
        server.process.terminate().unwrap();
        assert!(server.process.wait(Duration::from_secs(20)).unwrap().success());
        check_books(folder.path());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dying_at_each_named_point_loses_no_answered_order() {
        let folder = tempfile::tempdir().unwrap();
        let told = Arc::new(Told::default());
        let server = Arc::new(Server::start(folder.path(), None));
        let (sale, offer) = server.open_sale().await;
        server.process.kill().unwrap();
        server.process.wait(Duration::from_secs(10)).unwrap();
        // The points of the desk are met by cancels and stock changes; these are met by buying.
        for point in doorbuster::crash::POINTS.iter().filter(|point| !point.starts_with("desk.")) {
            // Pruning comes once in many commits; the others are met with every batch.
            let times = if *point == "journal.pruned" { 1 } else { 4 };
            let server = Arc::new(Server::start(folder.path(), Some(&format!("{point}:{times}"))));
            let over = Arc::new(AtomicBool::new(false));
            let watch = async {
                let reached = format!("crash point {point} reached");
                let process = &server.process;
                for _ in 0..3_000 {
                    if !process.is_running().unwrap() {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                over.store(true, Ordering::Release);
                process.wait_for(Duration::from_secs(5), |line| line.text.contains(&reached)).unwrap();
            };
            tokio::join!(rush(&server, &offer, &told, &over), watch);
            let server = Server::start(folder.path(), None);
            check(&server, &sale, &offer, &told).await;
            server.process.kill().unwrap();
            server.process.wait(Duration::from_secs(10)).unwrap();
        }
        assert!(told.orders.lock().len() > 10, "answers before the crashes: {}", told.orders.lock().len());
        check_books(folder.path());
    }
}
