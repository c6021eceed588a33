//! Spans of the real binary, as a collector gets them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use bytes::Bytes;
use doorbuster::clock::Clock;
use http::{StatusCode, Uri};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;

use crate::app::{draft, eventually, token_of};
use crate::served::Server;
use crate::webhooks::INSIDE;

const END: Duration = Duration::from_secs(30);

/// Takes whatever it is sent: spans, and events too.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<(String, Bytes)>>>);

impl Collector {
    async fn open(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = axum::Router::new().fallback(take).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    /// All that came to this path, one after the other. Names stand in the protocol's bytes as they are.
    fn got(&self, path: &str) -> String {
        let of_path: Vec<Bytes> =
            self.0.lock().iter().filter(|(at, _)| at == path).map(|(_, body)| body.clone()).collect();
        String::from_utf8_lossy(&of_path.concat()).into_owned()
    }
}

async fn take(State(collector): State<Collector>, uri: Uri, body: Bytes) -> StatusCode {
    collector.0.lock().push((uri.path().to_owned(), body));
    StatusCode::OK
}

/// What must not be in a span.
struct Private {
    token: String,
    pass: String,
    offer: String,
}

/// A purchase on a server that traces this share of requests, until its order has closed, the shop has heard of it and the
/// server has ended.
async fn purchase(collector: &Collector, ratio: &str) -> Private {
    let address = collector.open().await;
    let folder = tempfile::tempdir().unwrap();
    let endpoint = format!("telemetry.otlp_endpoint=http://{address}");
    let ratio = format!("telemetry.trace_sample_ratio={ratio}");
    let server = Server::start(folder.path(), &[&endpoint, &ratio, INSIDE], None);
    let mut sale = draft(1);
    sale["pay_within_s"] = json!(1);
    let sale = server.operate("POST", "/admin/v1/sales", Some(&sale)).await;
    let receiver = json!({"url": format!("http://{address}/events")});
    server.operate("POST", "/admin/v1/webhooks", Some(&receiver)).await;
    let publish = format!("/admin/v1/sales/{}/publish", sale["id"].as_str().unwrap());
    server.operate("POST", &publish, None).await;

    let offer = sale["offers"][0]["id"].as_str().unwrap();
    let token = token_of("ann-of-the-traces", &Clock::system());
    let pass = server.call("POST", &format!("/api/v1/offers/{offer}/pass"), &token, None).await.unwrap().1;
    let body = json!({"pass": pass["pass"], "quantity": 1});
    let tries = format!("/api/v1/offers/{offer}/orders");
    assert_eq!(server.call("POST", &tries, "", Some(&body)).await.unwrap().0, 202);
    eventually("it closed, and the shop was told", async || {
        collector.got("/events").contains("order.closed")
    })
    .await;
    // Spans that are still here are sent before it ends.
    server.process.terminate().unwrap();
    server.process.wait(END).unwrap();
    let pass = pass["pass"].as_str().unwrap().to_owned();
    Private { token, pass, offer: offer.to_owned() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_leaves_its_spans_with_the_collector() {
    let collector = Collector::default();
    let Private { token, pass, offer } = purchase(&collector, "1").await;
    let spans = collector.got("/v1/traces");
    for name in ["try", "request", "journal_commit", "clerk_batch", "sweep", "delivery"] {
        assert!(spans.contains(name), "no span {name}");
    }
    assert!(spans.contains("/api/v1/offers/{offer}/pass"), "a request tells its route");
    for never in [token.as_str(), &pass, "ann-of-the-traces", &offer] {
        assert!(!spans.contains(never), "{never} is in a span");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_share_of_requests_no_span_is_sent() {
    let collector = Collector::default();
    purchase(&collector, "0").await;
    assert_eq!(collector.got("/v1/traces"), "");
}
