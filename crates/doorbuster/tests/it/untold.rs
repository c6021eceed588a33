//! Real processes that die when something was done and is not written down yet: an event was delivered, a repair was made.
//! The next one does it again where that is harmless, and finds nothing to do where it is not.

mod heavy {
    use std::collections::HashMap;
    use std::path::Path;
    use std::time::Duration;

    use doorbuster::clock::Clock;
    use serde_json::json;

    use crate::app::{ADMIN_KEY, eventually, token_of};
    use crate::served::Server;
    use crate::webhooks::{INSIDE, Receiver};

    fn start(folder: &Path, crash_at: Option<&str>) -> Server {
        Server::start(folder, &[INSIDE], crash_at)
    }

    fn token(name: &str) -> String {
        token_of(name, &Clock::system())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_event_whose_delivery_is_not_written_down_arrives_again_under_its_id() {
        let folder = tempfile::tempdir().unwrap();
        let receiver = Receiver::willing().await;
        let server = start(folder.path(), None);
        let (_, offer) = server.open_sale(3).await;
        server.operate("POST", "/admin/v1/webhooks", Some(&json!({"url": receiver.url()}))).await;
        server.end_hard();

        let server = start(folder.path(), Some("courier.sent"));
        let order = server.won(&offer, &token("ann")).await;
        server.has_died_at("courier.sent");
        let before = receiver.asked();
        assert!(!before.is_empty(), "it was delivered");

        let server = start(folder.path(), None);
        assert_eq!(server.order(&order).await["state"], "awaiting_payment");
        let second = server.won(&offer, &token("bob")).await;
        eventually("all that came, comes again", async || {
            let mut times: HashMap<String, usize> = HashMap::new();
            receiver.asked().iter().for_each(|got| *times.entry(got.id().to_owned()).or_default() += 1);
            before.iter().all(|got| times[got.id()] >= 2)
        })
        .await;
        for got in &before {
            let again = receiver.asked().into_iter().filter(|again| again.id() == got.id());
            again.for_each(|again| assert_eq!(again.body, got.body, "the same event"));
        }
        eventually("both orders are told", async || receiver.count("order.recorded") == 2).await;
        let mut told: Vec<String> = receiver.taken().iter().filter_map(|got| Some(got.order()?.0)).collect();
        told.sort_unstable();
        let mut orders = vec![order, second];
        orders.sort_unstable();
        assert_eq!(told, orders, "each event once, for whoever knows repeats by their id");
        server.audit_is_clean().await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_repair_whose_report_is_not_written_down_is_made_once() {
        let folder = tempfile::tempdir().unwrap();
        let server = start(folder.path(), Some("audit.mended"));
        let (sale, offer) = server.open_sale(3).await;
        let order = server.won(&offer, &token("ann")).await;
        let ledger = rusqlite::Connection::open(folder.path().join("doorbuster.db")).unwrap();
        ledger.busy_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(ledger.execute("update offers set live_units = 0", []).unwrap(), 1);
        // Whoever asks is answered after a while that it runs, or not at all.
        let _ = server.call("POST", "/admin/v1/audit", ADMIN_KEY, Some(&json!({"repair": true}))).await;
        server.has_died_at("audit.mended");
        let live: u32 = ledger.query_row("select live_units from offers", [], |row| row.get(0)).unwrap();
        assert_eq!(live, 1, "it was mended");
        drop(ledger);

        let server = start(folder.path(), None);
        let reports = server.operate("GET", "/admin/v1/audit", None).await;
        let mended = |report: &serde_json::Value| report["repair"] == true;
        assert!(!reports["items"].as_array().unwrap().iter().any(mended), "{reports}");
        server.audit_is_clean().await;
        assert_eq!(server.order(&order).await["state"], "awaiting_payment");
        for name in ["bob", "cyd"] {
            server.won(&offer, &token(name)).await;
        }
        let stats = server.operate("GET", &format!("/admin/v1/sales/{sale}/stats"), None).await;
        let units =
            ["stock", "free", "held", "sold", "returning"].map(|part| stats["offers"][0][part].as_u64());
        assert_eq!(units, [3, 0, 3, 0, 0].map(Some));
    }
}
