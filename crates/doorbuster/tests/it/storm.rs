//! A storm: thousands of buyers at once, each on a socket of their own, several tries each, double clicks, hang-ups in the
//! middle, cancels and rebuys; after it every promise is held against the books, as operators read them.

mod heavy {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::time::Duration;

    use parking_lot::Mutex;
    use rand::RngExt as _;
    use rand::rngs::StdRng;
    use rules::buyer::BuyerId;
    use rules::id::{OfferId, SaleId};
    use rules::invariant::{Books, LiveOrder, check_books, check_one_live_order};
    use rules::order::State;
    use rules::wire::OperatorOrder;
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use serde_json::{Value, json};
    use tokio::io::{AsyncWriteExt as _, BufReader};
    use tokio::net::TcpStream;
    use tokio::sync::Barrier;

    use crate::app::{TestApp, TestBuyer, TestSale, eventually};
    use crate::protection::Answer;
    use crate::torture::Torture;

    /// All of them are connected before the first one tries.
    const BUYERS: usize = 2_000;

    /// Both ends of two sockets for each of them, and what a test needs besides.
    const OPEN_FILES: u64 = 9_000;

    /// The smallest and the largest stock of a storm.
    const STOCK: std::ops::Range<u32> = 200..800;

    /// How often each of them comes.
    const VISITS: u32 = 3;

    /// Nobody is busy, and nobody waits so long for the others to connect that the server takes them for gone.
    const SETTINGS: [&str; 3] =
        ["limits.in_flight=20000", "limits.header_timeout_s=60", "limits.idle_timeout_s=600"];

    /// The orders that buyers were told of, and whose they are.
    type Told = Arc<Mutex<HashMap<String, String>>>;

    /// What one buyer will do.
    #[derive(Clone, Copy)]
    struct Character {
        number: usize,
        quantity: u32,
        hangs_up_after: Option<Duration>,
        cancels: bool,
    }

    impl Character {
        fn at_random(number: usize, chance: &mut StdRng) -> Self {
            let patience = Duration::from_micros(chance.random_range(1..3_000));
            Self {
                number,
                quantity: chance.random_range(1..=3),
                hangs_up_after: chance.random_bool(0.2).then_some(patience),
                cancels: chance.random_bool(0.25),
            }
        }
    }

    /// A buyer's own socket, which is opened again where it was hung up.
    struct Line {
        app: Arc<TestApp>,
        socket: Option<BufReader<TcpStream>>,
    }

    impl Line {
        async fn open(app: &Arc<TestApp>) -> Self {
            let mut line = Self { app: Arc::clone(app), socket: None };
            line.socket().await;
            line
        }

        async fn socket(&mut self) -> &mut BufReader<TcpStream> {
            if self.socket.is_none() {
                let socket = TcpStream::connect(self.app.address).await.unwrap();
                self.socket = Some(BufReader::new(socket));
            }
            self.socket.as_mut().unwrap()
        }

        /// Asks, and hears the answer; `None` when the line was cut.
        async fn ask(&mut self, request: &str) -> Option<Answer> {
            let socket = self.socket().await;
            let answer = match socket.write_all(request.as_bytes()).await {
                Ok(()) => Answer::read(socket).await,
                Err(_) => None,
            };
            if answer.is_none() {
                self.socket = None;
            }
            answer
        }

        /// Asks, and hangs up in the middle.
        async fn ask_and_hang_up(&mut self, request: &str, patience: Duration) {
            let _ = tokio::time::timeout(patience, self.ask(request)).await;
            self.socket = None;
        }
    }

    fn post(path: &str, token: &str, body: &Value) -> String {
        let body = body.to_string();
        format!(
            "POST {path} HTTP/1.1\r\nhost: shop\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    async fn be_a_buyer(line: &mut Line, offer: &str, who: Character, told: &Told) {
        let app = Arc::clone(&line.app);
        let buyer = app.buyer(&format!("buyer {}", who.number));
        for _ in 0..VISITS {
            let body = json!({"pass": buyer.mint(offer), "quantity": who.quantity});
            let request = post(&format!("/api/v1/offers/{offer}/orders"), "", &body);
            if let Some(patience) = who.hangs_up_after {
                line.ask_and_hang_up(&request, patience).await;
            }
            let second_click = async { Line::open(&app).await.ask(&request).await };
            let (first, second) = tokio::join!(line.ask(&request), second_click);
            for answer in [first, second].into_iter().flatten() {
                assert!(matches!(answer.status, 200..=202 | 409), "{} {}", answer.status, answer.body);
                if answer.status < 300 {
                    let id = answer.json()["id"].as_str().unwrap().to_owned();
                    told.lock().insert(id, buyer.name.clone());
                }
            }
            if who.cancels {
                cancel_one(line, &buyer, told).await;
            }
        }
    }

    /// Cancels an order of this buyer, if there is one. What is cancelled, or not recorded yet, says so.
    async fn cancel_one(line: &mut Line, buyer: &TestBuyer<'_>, told: &Told) {
        let held = told.lock().iter().find(|(_, name)| **name == buyer.name).map(|(id, _)| id.clone());
        let Some(id) = held else { return };
        let request = post(&format!("/api/v1/orders/{id}/cancel"), &buyer.token, &json!({}));
        if let Some(answer) = line.ask(&request).await {
            assert!(matches!(answer.status, 200 | 409), "{} {}", answer.status, answer.body);
        }
    }

    /// Every order of the sale, page by page.
    async fn all_orders(app: &TestApp, sale: &TestSale) -> Vec<OperatorOrder> {
        let mut orders: Vec<OperatorOrder> = Vec::new();
        let mut cursor = String::new();
        loop {
            let path = format!("/admin/v1/orders?sale={}&limit=200&cursor={cursor}", sale.id);
            let page = app.operate("GET", &path, None, 200).await;
            orders.extend(serde_json::from_value::<Vec<OperatorOrder>>(page["items"].clone()).unwrap());
            match page["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => return orders,
            }
        }
    }

    /// Holds what buyers were told, the operator's list, the sale's numbers and the ledger's counter against each other.
    /// Answers what is free.
    async fn check(app: &TestApp, sale: &TestSale, told: &HashMap<String, String>) -> u32 {
        let offer: OfferId = sale.offer().parse().unwrap();
        let orders = all_orders(app, sale).await;
        let buyers: HashMap<String, &str> =
            orders.iter().map(|order| (order.order.id.to_string(), order.buyer.as_str())).collect();
        assert_eq!(buyers.len(), orders.len(), "an order is listed twice");
        for (id, buyer) in told {
            assert_eq!(buyers.get(id), Some(&buyer.as_str()), "{buyer} was told of {id}");
        }
        assert!(orders.iter().all(|order| order.order.state != State::Refused), "a grant was refused");
        // Nobody pays in this storm.
        let live: Vec<_> =
            orders.iter().filter(|order| order.order.state == State::AwaitingPayment).collect();
        let live_orders: Vec<_> = live
            .iter()
            .map(|order| LiveOrder {
                order: order.order.id,
                offer: order.order.offer_id,
                buyer: BuyerId::parse(&order.buyer).unwrap(),
            })
            .collect();
        assert_eq!(check_one_live_order(&live_orders), []);
        let stats = app.stats(sale).await;
        let told = |name: &str| u32::try_from(stats["offers"][0][name].as_u64().unwrap()).unwrap();
        let sale: SaleId = sale.id.parse().unwrap();
        let books = Books {
            offer,
            stock: told("stock"),
            free: told("free"),
            held: told("held"),
            sold: told("sold"),
            returning: told("returning"),
            live_counter: app.app.ledger.counters(sale).await.unwrap()[0].live_units,
            live_units: live.iter().map(|order| order.order.quantity).sum(),
        };
        assert_eq!(check_books(&books), []);
        assert_eq!((books.held, books.sold, books.returning), (books.live_units, 0, 0));
        assert_eq!(books.free, app.app.gate.memory.offer(offer).unwrap().free());
        books.free
    }

    /// Each buyer needs sockets; the usual limit is for fewer.
    fn raise_open_files() {
        let now = getrlimit(Resource::Nofile);
        if now.current.is_some_and(|current| current < OPEN_FILES) {
            let wanted = Rlimit { current: Some(OPEN_FILES), maximum: now.maximum };
            setrlimit(Resource::Nofile, wanted).expect("the storm opens 9,000 files: raise `ulimit -Hn`");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn after_a_storm_every_promise_holds() {
        raise_open_files();
        let torture = Torture::of(1);
        for round in 0..torture.rounds {
            let mut chance = torture.round(round);
            let stock = chance.random_range(STOCK);
            println!("seed {}, round {round}: {stock} units", torture.seed);
            storm(stock, &mut chance).await;
        }
    }

    async fn storm(stock: u32, chance: &mut StdRng) {
        let app = Arc::new(TestApp::with(&SETTINGS).await);
        let sale = app.open_sale(stock).await;
        let told = Told::default();
        let all_here = Arc::new(Barrier::new(BUYERS + 1));
        let mut storm = tokio::task::JoinSet::new();
        for number in 0..BUYERS {
            let (app, told, all_here) = (Arc::clone(&app), Arc::clone(&told), Arc::clone(&all_here));
            let offer = sale.offer().to_owned();
            let who = Character::at_random(number, chance);
            storm.spawn(async move {
                let mut line = Line::open(&app).await;
                all_here.wait().await;
                all_here.wait().await;
                be_a_buyer(&mut line, &offer, who, &told).await;
            });
        }
        all_here.wait().await;
        let connected = || app.app.metrics.connections_open.get();
        let all = i64::try_from(BUYERS).unwrap();
        eventually("all are connected at once", async || connected() >= all).await;
        all_here.wait().await;
        while let Some(ended) = storm.join_next().await {
            ended.unwrap();
        }
        app.settled().await;
        let told = told.lock().clone();
        let free = check(&app, &sale, &told).await;
        assert!(told.len() >= 30, "only {} were told that they are in", told.len());
        // What is left can be sold to the last unit, and then it is sold out.
        for number in 0..free {
            let late = app.buyer(&format!("late {number}"));
            late.buy_with(sale.offer(), &late.mint(sale.offer()), 1, 202).await;
        }
        let late = app.buyer("too late");
        let refused = late.buy_with(sale.offer(), &late.mint(sale.offer()), 1, 409).await;
        assert_eq!(refused["code"], "sold_out");
        app.settled().await;
        assert_eq!(check(&app, &sale, &told).await, 0);
    }
}
