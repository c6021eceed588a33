//! A process that dies at each named point on the way of money. What the next one finds is asked of the public calls.

mod heavy {
    use std::path::Path;
    use std::time::Duration;

    use doorbuster::clock::Clock;
    use doorbuster::crash::MONEY_POINTS;
    use doorbuster::edge::auth::sign_demo_token;
    use rules::buyer::BuyerId;
    use secrecy::SecretString;
    use serde_json::{Value, json};

    use crate::app::{ADMIN_KEY, AUTH_SECRET, draft, eventually};
    use crate::served::Server;

    const END: Duration = Duration::from_secs(30);

    /// With the sandbox.
    fn start(folder: &Path, crash_at: Option<&str>) -> Server {
        Server::start(folder, &["payment.sandbox=true"], crash_at)
    }

    impl Server {
        async fn pay(&self, order: &str) -> Option<Value> {
            let path = format!("/api/v1/orders/{order}/payment");
            let (status, body) =
                self.call("POST", &path, &token(), Some(&json!({"provider": "sandbox"}))).await?;
            assert_eq!(status, 200, "{body}");
            Some(body)
        }

        async fn order(&self, order: &str) -> Value {
            self.operate("GET", &format!("/admin/v1/orders/{order}"), None).await
        }

        /// The states of the order's payments, the oldest first.
        async fn states(&self, order: &str) -> Vec<String> {
            let page = self.operate("GET", &format!("/admin/v1/payments?order={order}"), None).await;
            let items = page["items"].as_array().unwrap().iter().rev();
            items.map(|payment| payment["state"].as_str().unwrap().to_owned()).collect()
        }

        fn is_dead(&self) {
            self.process.wait(END).expect("it died at the point");
        }
    }

    fn token() -> String {
        let ann = BuyerId::parse("ann").unwrap();
        let secret = SecretString::from(AUTH_SECRET);
        sign_demo_token(&secret, &ann, Duration::from_secs(3_600), &Clock::system()).unwrap()
    }

    /// A sale of one unit and an order of it.
    async fn order_in(folder: &Path) -> (String, String) {
        let server = start(folder, None);
        let sale = server.operate("POST", "/admin/v1/sales", Some(&draft(1))).await;
        let id = sale["id"].as_str().unwrap().to_owned();
        server.operate("POST", &format!("/admin/v1/sales/{id}/publish"), Some(&json!({}))).await;
        let offer = sale["offers"][0]["id"].as_str().unwrap();
        let pass = format!("/api/v1/offers/{offer}/pass");
        let (_, pass) = server.call("POST", &pass, &token(), Some(&json!({}))).await.unwrap();
        let body = json!({"pass": pass["pass"], "quantity": 1});
        let path = format!("/api/v1/offers/{offer}/orders");
        let (status, order) = server.call("POST", &path, "", Some(&body)).await.unwrap();
        assert_eq!(status, 202, "{order}");
        let order = order["id"].as_str().unwrap().to_owned();
        let path = format!("/api/v1/orders/{order}?wait=20");
        server.call("GET", &path, &token(), None).await.unwrap();
        server.process.kill().unwrap();
        server.process.wait(END).unwrap();
        (id, order)
    }

    /// Pays, refunds, dies once at the point on the way, and goes on.
    async fn survive(point: &str) {
        let folder = tempfile::tempdir().unwrap();
        let (sale, order) = order_in(folder.path()).await;
        let mut server = start(folder.path(), Some(point));

        let mut deaths = 0;

        let given = server.pay(&order).await;
        if given.is_none() {
            server.is_dead();
            deaths += 1;
            server = start(folder.path(), None);
        }
        let payment = server.pay(&order).await.expect("a repeat goes on")["payment_id"].clone();
        assert!(given.is_none_or(|given| given["payment_id"] == payment));
        assert_eq!(server.states(&order).await, ["started"], "{point}: one payment");

        let act = format!("/sandbox/payments/{}", payment.as_str().unwrap());
        let paid = json!({"outcome": "paid"});
        if server.call("POST", &act, "", Some(&paid)).await.is_none() {
            server.is_dead();
            deaths += 1;
            server = start(folder.path(), None);
            assert_eq!(server.order(&order).await["state"], "paid", "{point}: what is committed stays");
        }
        eventually("it is paid", async || server.order(&order).await["state"] == "paid").await;
        assert_eq!(server.states(&order).await, ["applied"]);

        let refund = format!("/admin/v1/orders/{order}/refund");
        let asked = server.call("POST", &refund, ADMIN_KEY, None).await;
        assert!(asked.is_none_or(|(status, _)| status == 200));
        if point.starts_with("till.refund") {
            server.is_dead();
            deaths += 1;
            server = start(folder.path(), None);
        }
        eventually("it is refunded", async || server.order(&order).await["state"] == "refunded").await;
        assert_eq!(server.states(&order).await, ["refunded"], "{point}");
        assert_eq!(deaths, 1, "{point}: it is on the way, and was come by once");
        let stats = format!("/admin/v1/sales/{sale}/stats");
        eventually("the unit is back", async || {
            server.operate("GET", &stats, None).await["offers"][0]["free"] == 1
        })
        .await;
        let events = rusqlite::Connection::open(folder.path().join("doorbuster.db")).unwrap();
        let count = |kind: &str| -> u32 {
            let sql = "select count(*) from events where type = ?1";
            events.query_row(sql, [kind], |row| row.get(0)).unwrap()
        };
        let told = ["order.paid", "order.refunding", "order.refunded"].map(count);
        assert_eq!(told, [1, 1, 1], "{point}: each is told once");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn dying_at_each_point_on_the_way_of_money_loses_and_doubles_none() {
        for point in MONEY_POINTS {
            survive(point).await;
        }
    }
}
