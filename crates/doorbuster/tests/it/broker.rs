//! Events on their way to RabbitMQ: a real server that is late, cut off, killed and full, and a queue of the shop's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use doorbuster::clock::Clock;
use doorbuster::telemetry::metrics::Delivery;
use futures_util::future::join_all;
use lapin::options::{BasicGetOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection, ConnectionProperties};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::rabbitmq::RabbitMq;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::app::{TestApp, draft_between, with_manual_clock};
use crate::webhooks::{INSIDE, KEEP, Receiver, assert_in_order, buy_and_cancel, hook};

const QUEUE: &str = "shop";

/// Nothing is given up while the clock runs fast.
const RETRY: &str = "webhooks.retry_hours=720";

/// A sale that stays open meanwhile.
const YEAR_S: i64 = 365 * 86_400;

/// A server that was killed needs a while to be back.
const PATIENCE: Duration = Duration::from_secs(120);

/// A message, as the shop gets it.
#[derive(Clone, Debug)]
struct Got {
    id: String,
    kind: String,
    order: Option<(String, u64)>,
    is_persistent: bool,
    body: Value,
}

/// The shop behind the broker: a durable queue, and what came out of it in its order.
struct Shop {
    port: u16,
    got: Vec<Got>,
}

impl Shop {
    async fn channel(&self) -> Option<(Connection, Channel)> {
        let url = format!("amqp://guest:guest@127.0.0.1:{}", self.port);
        let connection = Connection::connect(&url, ConnectionProperties::default()).await.ok()?;
        let channel = connection.create_channel().await.ok()?;
        Some((connection, channel))
    }

    async fn bind(&self, keys: &[&str]) {
        let (_connection, channel) = self.channel().await.unwrap();
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(QUEUE.into(), options, FieldTable::default()).await.unwrap();
        for key in keys {
            let (queue, exchange) = (QUEUE.into(), "doorbuster".into());
            let options = QueueBindOptions::default();
            channel.queue_bind(queue, exchange, (*key).into(), options, FieldTable::default()).await.unwrap();
        }
    }

    async fn delete_exchange(&self) {
        let (_connection, channel) = self.channel().await.unwrap();
        channel.exchange_delete("doorbuster".into(), ExchangeDeleteOptions::default()).await.unwrap();
    }

    /// Takes what is there, if the server is.
    async fn collect(&mut self) -> Option<()> {
        let (_connection, channel) = self.channel().await?;
        let options = BasicGetOptions { no_ack: true };
        while let Some(message) = channel.basic_get(QUEUE.into(), options).await.ok()? {
            self.got.push(read(&message.delivery));
        }
        Some(())
    }

    fn closed(&self) -> usize {
        let closed = self.got.iter().filter(|got| got.kind == "order.closed");
        closed.map(|got| &got.id).collect::<BTreeSet<_>>().len()
    }

    /// Waits for the last event of so many orders, while the clock runs.
    async fn has_closed(&mut self, orders: usize, clock: &Clock) {
        let begun = std::time::Instant::now();
        while self.closed() < orders {
            assert!(begun.elapsed() < PATIENCE, "{} of {orders} after {PATIENCE:?}", self.closed());
            // The longest wait between two attempts is four hours.
            clock.advance(Duration::from_secs(1_800));
            self.collect().await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// That each order's events came in their order, repeats left out: a receiver knows them by their id.
    fn assert_in_order(&self, orders: usize) {
        let mut seen = BTreeSet::new();
        let mut seqs: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for got in self.got.iter().filter(|got| seen.insert(&got.id)) {
            if let Some((order, seq)) = &got.order {
                seqs.entry(order).or_default().push(*seq);
            }
        }
        assert_eq!(seqs.len(), orders);
        for (order, seqs) in seqs {
            assert_eq!(seqs, [2, 3], "{order}");
        }
    }
}

fn read(delivery: &lapin::message::Delivery) -> Got {
    let properties = &delivery.properties;
    let text = |value: &Option<lapin::types::ShortString>| value.as_ref().unwrap().to_string();
    let headers = properties.headers().as_ref().unwrap().inner();
    let header = |name: &str| match headers.get(name) {
        Some(AMQPValue::LongString(value)) => Some(value.to_string()),
        _ => None,
    };
    let order = header("order_id").zip(header("seq")).map(|(id, seq)| (id, seq.parse().unwrap()));
    assert_eq!(text(properties.kind()), delivery.routing_key.to_string());
    assert_eq!(text(properties.content_type()), "application/json");
    Got {
        id: text(properties.message_id()),
        kind: delivery.routing_key.to_string(),
        order,
        is_persistent: *properties.delivery_mode() == Some(2),
        body: serde_json::from_slice(&delivery.data).unwrap(),
    }
}

/// A cable that can be pulled: everything that comes in goes on to the server, until it is cut.
struct Cable {
    address: SocketAddr,
    cut: parking_lot::Mutex<CancellationToken>,
}

impl Cable {
    async fn to(port: u16) -> std::sync::Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cable = std::sync::Arc::new(Self { address, cut: parking_lot::Mutex::default() });
        let pulled = std::sync::Arc::clone(&cable);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let cut = pulled.cut.lock().clone();
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await else { return };
                    let carried = tokio::io::copy_bidirectional(&mut near, &mut far);
                    cut.run_until_cancelled(carried).await;
                });
            }
        });
        cable
    }

    fn cut(&self) {
        std::mem::take(&mut *self.cut.lock()).cancel();
    }

    fn setting(&self, password: &str) -> String {
        format!("broker.url=amqp://guest:{password}@{}", self.address)
    }
}

async fn look(app: &TestApp) -> Value {
    let list = app.operate("GET", "/admin/v1/webhooks", None, 200).await;
    let brokers: Vec<&Value> =
        list["items"].as_array().unwrap().iter().filter(|one| one["kind"] == "broker").collect();
    assert_eq!(brokers.len(), 1, "{list}");
    brokers[0].clone()
}

/// Waits until the operator reads this about the broker.
async fn told(app: &TestApp, clock: &Clock, problem: &str) {
    let begun = std::time::Instant::now();
    loop {
        let seen = look(app).await;
        if seen["last_problem"].as_str().is_some_and(|text| text.contains(problem)) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{problem}: {seen}");
        clock.advance(Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// One server for all of it: it starts slowly.
mod heavy {
    use testkit::process::{Process, Program};

    use super::*;
    use crate::app::{ADMIN_KEY, AUTH_SECRET, PASS_SECRET};

    #[tokio::test(flavor = "multi_thread")]
    async fn rabbitmq_gets_every_event_in_order_whatever_happens_to_it_and_to_us() {
        let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let (certificate, key) = (certified.cert.pem(), certified.signing_key.serialize_pem());
        let mut server = RabbitMq::prepare(&certificate, &key).unwrap();
        let cable = Cable::to(server.port()).await;
        let mut shop = Shop { port: server.port(), got: Vec::new() };
        let (app, clock) =
            with_manual_clock(&[INSIDE, KEEP, RETRY, &cable.setting("guest"), "broker.timeout_s=3"]).await;
        let webhook = Receiver::willing().await;
        hook(&app, &webhook.url()).await;
        let sale = app.publish(draft_between(-60, YEAR_S, 500)).await;

        println!("it is not there yet");
        buy_and_cancel(&app, &sale, 0..5).await;
        told(&app, &clock, "RabbitMQ cannot be reached").await;
        assert_eq!(look(&app).await["connected"], false);

        println!("it is there, and nobody wants anything");
        server.launch().unwrap();
        told(&app, &clock, "no queue is bound for").await;
        shop.bind(&["order.*", "sale.#"]).await;
        shop.has_closed(5, &clock).await;
        assert_eq!(look(&app).await["connected"], true);

        println!("the cable is cut again and again");
        let buying = join_all((0..4).map(|part| buy_and_cancel(&app, &sale, 5 + part * 5..10 + part * 5)));
        let cutting = async {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_millis(30)).await;
                cable.cut();
                clock.advance(Duration::from_secs(10));
            }
        };
        tokio::join!(buying, cutting);
        shop.has_closed(25, &clock).await;

        println!("it is killed");
        let before = look(&app).await;
        buy_and_cancel(&app, &sale, 25..30).await;
        server.kill().unwrap();
        buy_and_cancel(&app, &sale, 30..35).await;
        server.launch().unwrap();
        shop.has_closed(35, &clock).await;
        assert_eq!(look(&app).await["id"], before["id"]);

        println!("it is full");
        server.take_nothing().unwrap();
        buy_and_cancel(&app, &sale, 35..40).await;
        crate::app::eventually("the webhook does not notice", async || webhook.count("order.closed") == 40)
            .await;
        told(&app, &clock, "short of memory").await;
        shop.collect().await.unwrap();
        assert!(shop.closed() < 40, "it takes nothing but what was on its way");
        assert_eq!(look(&app).await["connected"], false);
        server.take_again().unwrap();
        shop.has_closed(40, &clock).await;

        println!("its exchange is deleted");
        shop.delete_exchange().await;
        buy_and_cancel(&app, &sale, 40..42).await;
        told(&app, &clock, "no queue is bound for").await;
        shop.bind(&["order.*", "sale.#"]).await;
        shop.has_closed(42, &clock).await;

        println!("our password is wrong");
        let wrong = cable.setting("planted-word");
        let app = TestApp::on(app.stop().await, clock.clone(), &[INSIDE, KEEP, RETRY, &wrong]).await;
        told(&app, &clock, "check user name, password").await;
        buy_and_cancel(&app, &sale, 42..47).await;
        let seen = look(&app).await.to_string();
        assert!(!seen.contains("planted-word"), "{seen}");
        let right = cable.setting("guest");
        let app = TestApp::on(app.stop().await, clock.clone(), &[INSIDE, KEEP, RETRY, &right]).await;
        shop.has_closed(47, &clock).await;

        shop.assert_in_order(47);
        crate::app::eventually("the webhook has all", async || {
            clock.advance(Duration::from_secs(60));
            webhook.count("order.closed") == 47
        })
        .await;
        assert_in_order(&webhook, 47);
        assert_like_the_webhooks(&shop, &webhook);
        assert!(app.app.metrics.broker_deliveries.get(Delivery::Delivered) > 0);
        nothing_waits(&app, &clock).await;
        a_broker_is_changed_by_its_settings(&app).await;
        let folder = over_tls(app.stop().await, &clock, server.tls_port(), &certificate).await;
        without_a_broker(folder, &clock).await;
        what_comes_back_is_not_logged(shop.port).await;
        we_are_killed(&mut shop).await;
    }

    /// The same events under the same ids, with the same bodies.
    fn assert_like_the_webhooks(shop: &Shop, webhook: &Receiver) {
        let ours: BTreeMap<&str, &Value> = shop.got.iter().map(|got| (got.id.as_str(), &got.body)).collect();
        let taken = webhook.taken();
        let theirs: BTreeMap<&str, &Value> = taken.iter().map(|got| (got.id(), &got.body)).collect();
        assert_eq!(ours, theirs);
        assert!(shop.got.iter().all(|got| got.is_persistent && got.body["type"] == got.kind.as_str()));
        println!("{} messages for {} events", shop.got.len(), ours.len());
    }

    async fn nothing_waits(app: &TestApp, clock: &Clock) {
        let begun = std::time::Instant::now();
        loop {
            let seen = look(app).await;
            if seen["waiting"] == 0 && seen["behind_since"].is_null() {
                assert_eq!((&seen["parked"], &seen["dropped"]), (&json!(0), &json!(0)));
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{seen}");
            clock.advance(Duration::from_secs(10));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn a_broker_is_changed_by_its_settings(app: &TestApp) {
        let path = format!("/admin/v1/webhooks/{}", look(app).await["id"].as_str().unwrap());
        for (field, value) in [("url", json!("https://shop.example/")), ("types", json!(["order.*"]))] {
            let problem = app.operate("PATCH", &path, Some(&json!({field: value})), 422).await;
            assert_eq!(problem["field"], field);
        }
        app.operate("POST", &format!("{path}/secret"), None, 422).await;
        let problem = app.operate("DELETE", &path, None, 422).await;
        assert!(problem["detail"].as_str().unwrap().contains("broker.url"), "{problem}");
        let replayed = app.operate("POST", &format!("{path}/replay"), Some(&json!({})), 200).await;
        assert_eq!(replayed["events"], 0);
    }

    /// A certificate that nobody vouches for is not believed; with `broker.ca_file` it is.
    async fn over_tls(folder: TempDir, clock: &Clock, port: u16, certificate: &str) -> TempDir {
        println!("with TLS");
        let url = format!("broker.url=amqps://guest:guest@127.0.0.1:{port}");
        let app = TestApp::on(folder, clock.clone(), &[INSIDE, KEEP, RETRY, &url]).await;
        told(&app, clock, "certificate").await;
        let folder = app.stop().await;
        let ca_file = folder.path().join("ca.pem");
        std::fs::write(&ca_file, certificate).unwrap();
        let ca_file = format!("broker.ca_file={}", ca_file.display());
        let app = TestApp::on(folder, clock.clone(), &[INSIDE, KEEP, RETRY, &url, &ca_file]).await;
        crate::app::eventually("it is connected", async || look(&app).await["connected"] == true).await;
        assert_eq!(look(&app).await["last_problem"], Value::Null);
        app.stop().await
    }

    /// A broker that is no longer set is shown with the reason until it is deleted.
    async fn without_a_broker(folder: TempDir, clock: &Clock) {
        let app = TestApp::on(folder, clock.clone(), &[INSIDE, KEEP]).await;
        let seen = look(&app).await;
        assert_eq!(seen["disabled_reason"], "broker.url is not set", "{seen}");
        let path = format!("/admin/v1/webhooks/{}", seen["id"].as_str().unwrap());
        app.operate("DELETE", &path, None, 204).await;
        app.stop().await;
    }

    /// Orders per life of the process, and its lives.
    const ORDERS: u32 = 20;
    const LIVES: u32 = 3;

    /// Messages that nobody takes come back whole, with their buyers.
    async fn what_comes_back_is_not_logged(port: u16) {
        println!("nobody wants it, and the log is read");
        let (folder, buyer) = (tempfile::tempdir().unwrap(), "planted-buyer");
        let (process, url) = start(folder.path(), port, "unbound");
        let offer = crate::webhooks::heavy::open_sale(&url).await;
        crate::webhooks::heavy::buy_and_cancel(&url, &offer, buyer).await;
        process.wait_for(PATIENCE, |line| line.text.contains("no queue is bound for order.")).unwrap();
        let bytes = format!("{:?}", buyer.as_bytes());
        let bytes = bytes.trim_matches(['[', ']']);
        for line in process.lines() {
            assert!(!line.text.contains(buyer) && !line.text.contains(bytes), "{}", line.text);
        }
        process.kill().unwrap();
        process.wait(Duration::from_secs(20)).unwrap();
    }

    fn start(folder: &std::path::Path, port: u16, exchange: &str) -> (Process, String) {
        let process = Program::new(env!("CARGO_BIN_EXE_doorbuster"))
            .args(["serve", "--set", "listen=127.0.0.1:0", "--set", "limits.per_ip_per_s=0"])
            .arg("--data-dir")
            .arg(folder)
            .env("DOORBUSTER_ADMIN_KEY", ADMIN_KEY)
            .env("DOORBUSTER_AUTH__HS256_SECRET", AUTH_SECRET)
            .env("DOORBUSTER_PASS__SECRET", PASS_SECRET)
            .env("DOORBUSTER_BROKER__URL", format!("amqp://guest:guest@127.0.0.1:{port}"))
            .env("DOORBUSTER_BROKER__EXCHANGE", exchange)
            .start()
            .unwrap();
        let line = process.wait_for_line("listening on ", Duration::from_secs(60)).unwrap();
        let url = line.trim_start_matches("listening on ").trim().to_owned();
        (process, url)
    }

    /// The real binary, killed while it publishes.
    async fn we_are_killed(shop: &mut Shop) {
        println!("we are killed");
        shop.got.clear();
        let folder = tempfile::tempdir().unwrap();
        let (mut process, mut url) = start(folder.path(), shop.port, "doorbuster");
        let offer = crate::webhooks::heavy::open_sale(&url).await;
        for life in 0..LIVES {
            for number in 0..ORDERS {
                crate::webhooks::heavy::buy_and_cancel(&url, &offer, &format!("buyer-{life}-{number}")).await;
            }
            process.kill().unwrap();
            process.wait(Duration::from_secs(20)).unwrap();
            (process, url) = start(folder.path(), shop.port, "doorbuster");
        }
        let orders = (ORDERS * LIVES) as usize;
        shop.has_closed(orders, &Clock::system()).await;
        shop.assert_in_order(orders);
        let ids: BTreeSet<_> = shop.got.iter().filter(|got| got.order.is_some()).map(|got| &got.id).collect();
        println!("{} messages, {} events of orders", shop.got.len(), ids.len());
        assert_eq!(ids.len(), 2 * orders);
    }
}
