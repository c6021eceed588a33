//! A storm in which half of the buyers do not pay: every unit that comes back is sold again until all is paid. After it
//! stock and money are added up from what the public calls say.

mod heavy {
    use std::collections::{BTreeMap, HashMap};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use parking_lot::Mutex;
    use rand::RngExt as _;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;
    use serde_json::{Value, json};

    use crate::app::{TestApp, TestBuyer, TestSale, assert_code, draft, eventually};
    use crate::money::{PRICE, SANDBOX, act, units};
    use crate::torture::Torture;

    /// Units, and how many people are in the shop at a time.
    const STOCK: u32 = 120;
    const AT_ONCE: u32 = 24;
    /// Deadlines come by while others buy.
    const PAY_WITHIN_S: u32 = 2;
    /// Whoever finds nothing comes back as somebody else.
    const COME_BACK_AFTER: Duration = Duration::from_millis(100);
    /// The last unit may lapse many times before somebody pays it.
    const ALL_PAID_WITHIN: Duration = Duration::from_secs(180);

    /// What a winner does.
    #[derive(Clone, Copy, Debug)]
    enum Manner {
        Pays,
        /// The provider tells of the one capture several times.
        PaysAndIsToldOfThrice,
        PaysTwice,
        /// Around the deadline: before it, in the same instant, or after it.
        PaysLate,
        Cancels,
        CancelsAndPays,
        WalksAway,
    }

    impl Manner {
        fn at_random(chance: &mut StdRng) -> Self {
            match chance.random_range(0..100) {
                0..28 => Self::Pays,
                28..34 => Self::PaysAndIsToldOfThrice,
                34..40 => Self::PaysTwice,
                40..52 => Self::PaysLate,
                52..62 => Self::Cancels,
                62..68 => Self::CancelsAndPays,
                _ => Self::WalksAway,
            }
        }
    }

    /// Payments whose money comes around the deadline.
    type Late = Arc<Mutex<Vec<String>>>;

    /// A payment, if its buyer came before the deadline: to a slow machine it comes soon.
    async fn payment_in_time(app: &TestApp, buyer: &TestBuyer<'_>, id: &str) -> Option<String> {
        let request = app.client.post(app.url(&format!("/api/v1/orders/{id}/payment")));
        let request = request.bearer_auth(&buyer.token).json(&json!({"provider": "sandbox"}));
        let (status, _, body) = app.send(request).await;
        if status == 409 {
            assert_code(&body, "not_payable");
            let ended = buyer.call("GET", &format!("/api/v1/orders/{id}?wait=20&after=2"), None, 200).await;
            assert_eq!((text(&ended, "state"), text(&ended, "reason")), ("closed", "timeout"));
            return None;
        }
        assert_eq!(status, 200, "{body}");
        Some(text(&body, "payment_id").to_owned())
    }

    async fn be_a_winner(
        app: &TestApp,
        buyer: &TestBuyer<'_>,
        order: &str,
        manner: Manner,
        late_ms: u64,
        late: &Late,
    ) {
        let paid =
            |times: u32, delay_ms: u64| json!({"outcome": "paid", "times": times, "delay_ms": delay_ms});
        let cancel = async || {
            let request = app.client.post(app.url(&format!("/api/v1/orders/{order}/cancel")));
            let status = request.bearer_auth(&buyer.token).send().await.unwrap().status().as_u16();
            assert!(matches!(status, 200 | 409), "{status}");
        };
        match manner {
            Manner::WalksAway => return,
            Manner::Cancels => return cancel().await,
            _ => {}
        }
        let Some(payment) = payment_in_time(app, buyer, order).await else { return };
        match manner {
            Manner::WalksAway | Manner::Cancels => unreachable!("{manner:?}"),
            Manner::Pays => drop(act(app, &payment, &paid(1, 0), 200).await),
            Manner::PaysAndIsToldOfThrice => drop(act(app, &payment, &paid(3, 0), 200).await),
            Manner::PaysTwice => {
                let (once, again) = (paid(1, 0), paid(1, 0));
                tokio::join!(act(app, &payment, &once, 200), act(app, &payment, &again, 200));
            }
            Manner::PaysLate => {
                late.lock().push(payment.clone());
                act(app, &payment, &paid(1, late_ms), 202).await;
            }
            Manner::CancelsAndPays => {
                let money = paid(1, 0);
                tokio::join!(act(app, &payment, &money, 200), cancel());
            }
        }
    }

    /// Comes, tries, and if there is a unit, behaves. Whether there was one.
    async fn be_a_person(
        app: &TestApp,
        sale: &TestSale,
        number: u32,
        chance: &mut StdRng,
        late: &Late,
    ) -> bool {
        let buyer = app.buyer(&format!("person {number}"));
        let request = app.client.post(app.url(&format!("/api/v1/offers/{}/orders", sale.offer())));
        let body = json!({"pass": buyer.mint(sale.offer()), "quantity": chance.random_range(1..=2)});
        let response = request.json(&body).send().await.unwrap();
        let status = response.status().as_u16();
        let body: Value = response.json().await.unwrap();
        if status == 409 {
            assert!(matches!(body["code"].as_str(), Some("sold_out" | "not_enough")), "{body}");
            return false;
        }
        assert_eq!(status, 202, "{body}");
        let order = body["id"].as_str().unwrap();
        let seen = buyer.order(order).await;
        let has_lapsed = seen["state"] == "closed" && seen["reason"] == "timeout";
        assert!(has_lapsed || seen["state"] == "awaiting_payment", "{seen}");
        let late_ms = chance
            .random_range(u64::from(PAY_WITHIN_S) * 1_000 - 100..u64::from(PAY_WITHIN_S) * 1_000 + 1_500);
        be_a_winner(app, &buyer, order, Manner::at_random(chance), late_ms, late).await;
        true
    }

    /// People come until everything is paid.
    async fn crowd(app: &Arc<TestApp>, sale: &Arc<TestSale>, seed: u64) -> Vec<String> {
        let late = Late::default();
        let next = Arc::new(AtomicU32::new(0));
        let mut people = tokio::task::JoinSet::new();
        for _ in 0..AT_ONCE {
            let (app, sale) = (Arc::clone(app), Arc::clone(sale));
            let (next, late) = (Arc::clone(&next), Arc::clone(&late));
            people.spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let mut chance = StdRng::seed_from_u64(seed ^ (u64::from(number) << 32));
                    let had_one = be_a_person(&app, &sale, number, &mut chance, &late).await;
                    let [stock, _, _, sold] = units(&app, &sale).await;
                    if sold == stock {
                        return;
                    }
                    if !had_one {
                        tokio::time::sleep(COME_BACK_AFTER).await;
                    }
                }
            });
        }
        while let Some(ended) = people.join_next().await {
            ended.unwrap();
        }
        std::mem::take(&mut late.lock())
    }

    /// All pages of a list of the operator's.
    async fn all(app: &TestApp, path: &str) -> Vec<Value> {
        let mut items = Vec::new();
        let mut cursor = None::<String>;
        loop {
            let next = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
            let page = app.operate("GET", &format!("{path}?limit=200{next}"), None, 200).await;
            items.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next_cursor"].as_str() {
                Some(after) => cursor = Some(after.to_owned()),
                None => return items,
            }
        }
    }

    fn text<'a>(value: &'a Value, name: &str) -> &'a str {
        value[name].as_str().unwrap_or_else(|| panic!("no {name}: {value}"))
    }

    /// Every capture has one end, and the money that stayed is the price of the units that are sold.
    async fn check_money(app: &TestApp) {
        let settled = async || {
            let payments = all(app, "/admin/v1/payments").await;
            payments
                .iter()
                .all(|payment| !matches!(text(payment, "state"), "captured" | "refund_due" | "refunding"))
        };
        eventually("all money has its end", settled).await;
        let orders: HashMap<String, Value> = all(app, "/admin/v1/orders")
            .await
            .into_iter()
            .map(|order| (text(&order, "id").to_owned(), order))
            .collect();
        let mut applied = BTreeMap::<String, u32>::new();
        let (mut kept, mut returned) = (0, 0);
        for payment in all(app, "/admin/v1/payments").await {
            let amount = payment["money"]["amount"].as_i64().unwrap();
            match text(&payment, "state") {
                "applied" => {
                    kept += amount;
                    *applied.entry(text(&payment, "order_id").to_owned()).or_default() += 1;
                }
                "refunded" => {
                    returned += 1;
                    assert!(payment["reason"].is_string(), "{payment}");
                }
                "closed" => {}
                other => panic!("{other}: {payment}"),
            }
        }
        assert!(returned > 0, "nobody's money went back: the storm was none");
        let paid: Vec<&Value> = orders.values().filter(|order| order["state"] == "paid").collect();
        for order in &paid {
            assert_eq!(applied.get(text(order, "id")), Some(&1), "{order}");
        }
        assert_eq!(applied.len(), paid.len(), "money was applied to orders that are not paid");
        let sold: i64 = paid.iter().map(|order| order["quantity"].as_i64().unwrap()).sum();
        assert_eq!(sold, i64::from(STOCK));
        assert_eq!(kept, sold * PRICE);
        let open = orders.values().find(|order| !matches!(text(order, "state"), "paid" | "closed"));
        assert!(open.is_none(), "{open:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn half_do_not_pay_and_in_the_end_every_unit_is_paid_once() {
        let torture = Torture::of(1);
        for round in 0..torture.rounds {
            let seed = torture.round(round).random();
            println!("round {round}: seed {seed}");
            let app = Arc::new(TestApp::with(&[SANDBOX]).await);
            let mut draft = draft(STOCK);
            draft["pay_within_s"] = json!(PAY_WITHIN_S);
            let sale = Arc::new(app.publish(draft).await);
            let late = tokio::time::timeout(ALL_PAID_WITHIN, crowd(&app, &sale, seed)).await;
            let Ok(late) = late else { panic!("units do not get paid: {:?}", units(&app, &sale).await) };
            assert!(!late.is_empty(), "nobody was late: the storm was none");
            for payment in late {
                let path = format!("/admin/v1/payments/{payment}");
                let ended = async || {
                    let payment = app.operate("GET", &path, None, 200).await;
                    matches!(text(&payment, "state"), "applied" | "refunded")
                };
                eventually(&format!("late money has an end: {payment}"), ended).await;
            }
            assert_eq!(units(&app, &sale).await, [STOCK.into(), 0, 0, STOCK.into()]);
            check_money(&app).await;
        }
    }
}
