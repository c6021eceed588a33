//! A process that dies at each named point on the way of money. What the next one finds is asked of the public calls.

mod heavy {
    use std::path::Path;

    use doorbuster::clock::Clock;
    use doorbuster::crash::{DETOUR_POINTS, MONEY_POINTS};
    use rules::time::UnixMs;
    use serde_json::{Value, json};
    use tempfile::TempDir;

    use crate::app::{ADMIN_KEY, eventually, token_of};
    use crate::money::{PRICE, SANDBOX, StandIn, refund, willing};
    use crate::served::Server;

    impl Server {
        async fn pay(&self, order: &str, provider: &str) -> Option<Value> {
            let path = format!("/api/v1/orders/{order}/payment");
            let (status, body) =
                self.call("POST", &path, &token(), Some(&json!({"provider": provider}))).await?;
            assert_eq!(status, 200, "{body}");
            Some(body)
        }

        /// The states of the order's payments, the oldest first.
        async fn states(&self, order: &str) -> Vec<String> {
            let page = self.operate("GET", &format!("/admin/v1/payments?order={order}"), None).await;
            let items = page["items"].as_array().unwrap().iter().rev();
            items.map(|payment| payment["state"].as_str().unwrap().to_owned()).collect()
        }

        /// The sandbox's buyer does this. Nothing when the server died of it.
        async fn act(&self, payment: &Value, outcome: &str) -> Option<()> {
            let path = format!("/sandbox/payments/{}", payment["payment_id"].as_str().unwrap());
            let (status, body) = self.call("POST", &path, "", Some(&json!({"outcome": outcome}))).await?;
            assert_eq!(status, 200, "{body}");
            Some(())
        }

        async fn refund(&self, order: &str) -> Option<()> {
            let path = format!("/admin/v1/orders/{order}/refund");
            let (status, body) = self.call("POST", &path, ADMIN_KEY, None).await?;
            assert_eq!(status, 200, "{body}");
            Some(())
        }

        async fn becomes(&self, order: &str, state: &str) {
            let what = format!("it is {state}");
            eventually(&what, async || self.order(order).await["state"] == state).await;
        }
    }

    fn token() -> String {
        token_of("ann", &Clock::system())
    }

    /// A folder with a sale of one unit and an order of it.
    struct Left {
        folder: TempDir,
        settings: Vec<String>,
        sale: String,
        order: String,
    }

    impl Left {
        async fn with(settings: Vec<String>) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let server = start(folder.path(), &settings, None);
            let (sale, offer) = server.open_sale(1).await;
            let order = server.won(&offer, &token()).await;
            server.end_hard();
            Self { folder, settings, sale, order }
        }

        fn start(&self, crash_at: Option<&str>) -> Server {
            start(self.folder.path(), &self.settings, crash_at)
        }

        /// The one that died here, and the next one.
        fn start_after(&self, dead: &Server, point: &str) -> Server {
            dead.has_died_at(point);
            self.start(None)
        }

        /// All went there and back once: money, unit, events.
        async fn is_all_back(&self, server: &Server, point: &str) {
            server.becomes(&self.order, "refunded").await;
            let stats = format!("/admin/v1/sales/{}/stats", self.sale);
            eventually("the unit is back", async || {
                server.operate("GET", &stats, None).await["offers"][0]["free"] == 1
            })
            .await;
            let told = ["order.paid", "order.refunded"].map(|kind| self.told(kind));
            assert_eq!(told, [1, 1], "{point}: each is told once");
            server.audit_is_clean().await;
        }

        fn told(&self, kind: &str) -> u32 {
            let events = rusqlite::Connection::open(self.folder.path().join("doorbuster.db")).unwrap();
            let sql = "select count(*) from events where type = ?1";
            events.query_row(sql, [kind], |row| row.get(0)).unwrap()
        }

        /// The shop as Stripe is told it.
        fn shop(&self) -> String {
            let ledger = rusqlite::Connection::open(self.folder.path().join("doorbuster.db")).unwrap();
            let sql = "select lower(hex(incarnation)) from identity";
            ledger.query_row(sql, [], |row| row.get(0)).unwrap()
        }
    }

    fn start(folder: &Path, settings: &[String], crash_at: Option<&str>) -> Server {
        Server::start(folder, &settings.iter().map(String::as_str).collect::<Vec<_>>(), crash_at)
    }

    /// Pays, refunds, dies once at the point on the way, and goes on.
    async fn survive(point: &str) {
        let left = Left::with(vec![SANDBOX.to_owned()]).await;
        let order = left.order.as_str();
        let mut server = left.start(Some(point));
        let mut has_died = false;

        let given = server.pay(order, "sandbox").await;
        if given.is_none() {
            server = left.start_after(&server, point);
            has_died = true;
        }
        let payment = server.pay(order, "sandbox").await.expect("a repeat goes on");
        assert!(given.is_none_or(|given| given["payment_id"] == payment["payment_id"]));
        assert_eq!(server.states(order).await, ["started"], "{point}: one payment");

        if server.act(&payment, "paid").await.is_none() {
            server = left.start_after(&server, point);
            has_died = true;
            if point == "ledger.take_notice" {
                assert_eq!(
                    server.order(order).await["state"],
                    "awaiting_payment",
                    "nobody was told otherwise"
                );
                server.act(&payment, "paid").await.expect("the provider tells it again");
            }
            assert_eq!(server.order(order).await["state"], "paid", "{point}: what is committed stays");
        }
        server.becomes(order, "paid").await;
        assert_eq!(server.states(order).await, ["applied"]);

        let asked = server.refund(order).await;
        if !has_died {
            server = left.start_after(&server, point);
            if point == "ledger.refund_order" {
                assert!(asked.is_none() && server.order(order).await["state"] == "paid");
                server.refund(order).await.expect("the operator asks again");
            }
        }
        left.is_all_back(&server, point).await;
        assert_eq!(server.states(order).await, ["refunded"], "{point}");
        assert_eq!(left.told("order.refunding"), 1, "{point}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dying_at_each_point_on_the_way_of_money_loses_and_doubles_none() {
        for point in MONEY_POINTS {
            survive(point).await;
        }
    }

    /// A buyer whose payment fails tries again.
    async fn survive_a_payment_that_fails(point: &str) {
        let left = Left::with(vec![SANDBOX.to_owned()]).await;
        let order = left.order.as_str();
        let server = left.start(Some(point));
        let failed = server.pay(order, "sandbox").await.unwrap();
        assert_eq!(server.act(&failed, "failed").await, None);
        let server = left.start_after(&server, point);
        assert_eq!(server.states(order).await, ["started"], "{point}");
        server.act(&failed, "failed").await.expect("the provider tells it again");
        assert_eq!(server.states(order).await, ["closed"]);
        let payment = server.pay(order, "sandbox").await.unwrap();
        server.act(&payment, "paid").await.unwrap();
        server.becomes(order, "paid").await;
        assert_eq!(server.states(order).await, ["closed", "applied"]);
        server.refund(order).await.unwrap();
        left.is_all_back(&server, point).await;
    }

    /// Stripe tells that it has the money of this payment.
    async fn captured(left: &Left, server: &Server, payment: &Value) {
        let object = json!({
            "id": "pi_1", "amount_received": PRICE, "currency": "cny", "status": "succeeded",
            "metadata": {"doorbuster_shop": left.shop(), "doorbuster_payment": payment["payment_id"]},
        });
        let now = UnixMs(jiff::Timestamp::now().as_millisecond());
        let (headers, body) = StandIn::event("evt_1", "payment_intent.succeeded", &object, now);
        let request = server.client.post(format!("{}/api/v1/payments/stripe/callback", server.url));
        let answer = request.headers(headers).body(body).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }

    /// Stripe does not return the money at once: it answers `status` to whoever asks for it. The next server finds it willing.
    async fn survive_a_refund_that_takes_its_time(point: &str, status: u16, state: &str) {
        let answer = (status, refund(state));
        let stripe = StandIn::open(move |asked| match asked.path.starts_with("/v1/refunds") {
            true => answer.clone(),
            false => willing(asked),
        })
        .await;
        let left = Left::with(stripe.settings()).await;
        let order = left.order.as_str();
        let mut server = left.start(Some(point));
        let payment = server.pay(order, "stripe").await.unwrap();
        captured(&left, &server, &payment).await;
        // The money is on its way back at once: the server may die of that before it has answered.
        let answered = server.refund(order).await;
        let is_retried = point == "ledger.retry_refund";
        let retry = format!("/admin/v1/payments/{}/retry", payment["payment_id"].as_str().unwrap());
        if is_retried {
            answered.expect("nothing happens before the operator tries again");
            server.becomes(order, "refund_failed").await;
            assert_eq!(server.call("POST", &retry, ADMIN_KEY, None).await, None);
        }
        server.has_died_at(point);
        stripe.becomes(willing);
        server = left.start(None);
        if is_retried {
            assert_eq!(server.states(order).await, ["refund_failed"], "nobody was told otherwise");
            server.operate("POST", &retry, None).await;
        }
        left.is_all_back(&server, point).await;
        assert_eq!(server.states(order).await, ["refunded"], "{point}");
        let mut numbers: Vec<_> =
            stripe.asked("/v1/refunds").iter().map(|asked| asked.idempotency_key()).collect();
        let asked = numbers.len();
        numbers.dedup();
        // One that failed for good is asked for under a new number; otherwise it is the same refund, asked for twice.
        assert_eq!((asked, numbers.len()), (2, if is_retried { 2 } else { 1 }), "{point}: {numbers:?}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dying_where_money_does_not_get_through_at_once_loses_and_doubles_none() {
        for point in DETOUR_POINTS {
            match point {
                "ledger.close_payment" => survive_a_payment_that_fails(point).await,
                "ledger.refund_put_off" => survive_a_refund_that_takes_its_time(point, 503, "failed").await,
                "ledger.refund_pending" => survive_a_refund_that_takes_its_time(point, 200, "pending").await,
                "ledger.retry_refund" => survive_a_refund_that_takes_its_time(point, 200, "failed").await,
                other => panic!("{other}"),
            }
        }
    }
}
