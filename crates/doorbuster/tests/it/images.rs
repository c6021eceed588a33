//! Images are copied from a real HTTPS server and served by us.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use doorbuster::clock::Clock;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

use crate::app::{TestApp, assert_code, draft, with_manual_clock};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\nof the test";
const GIF: &[u8] = b"GIF89aof the test";

/// Somebody else's server: path -> the whole answer.
struct Shop {
    address: SocketAddr,
    folder: TempDir,
    files: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    asked: Arc<AtomicU64>,
}

fn file(bytes: &[u8]) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: {}\r\n\r\n", bytes.len());
    [head.as_bytes(), bytes].concat()
}

fn elsewhere(url: &str) -> Vec<u8> {
    format!("HTTP/1.1 302 Found\r\nlocation: {url}\r\ncontent-length: 0\r\n\r\n").into_bytes()
}

impl Shop {
    async fn open() -> Self {
        let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.pem"), certified.cert.pem()).unwrap();
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
        let tls = ServerConfig::builder_with_provider(Arc::new(
            tokio_rustls::rustls::crypto::aws_lc_rs::default_provider(),
        ))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certified.cert.der().clone()], key)
        .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shop = Self {
            address: listener.local_addr().unwrap(),
            folder,
            files: Arc::default(),
            asked: Arc::default(),
        };
        tokio::spawn(serve(
            listener,
            TlsAcceptor::from(Arc::new(tls)),
            shop.files.clone(),
            shop.asked.clone(),
        ));
        shop
    }

    fn put(&self, path: &str, answer: Vec<u8>) -> String {
        self.files.lock().insert(path.to_owned(), answer);
        format!("https://{}{path}", self.address)
    }

    fn settings(&self) -> [String; 2] {
        let ca = self.folder.path().join("ca.pem");
        ["images.private_addresses=true".into(), format!("images.ca_file={}", ca.display())]
    }

    async fn app(&self) -> TestApp {
        let settings = self.settings();
        TestApp::with(&settings.each_ref().map(String::as_str)).await
    }
}

async fn serve(
    listener: TcpListener,
    tls: TlsAcceptor,
    files: Arc<Mutex<HashMap<String, Vec<u8>>>>,
    asked: Arc<AtomicU64>,
) {
    while let Ok((socket, _)) = listener.accept().await {
        let (tls, files, asked) = (tls.clone(), Arc::clone(&files), Arc::clone(&asked));
        tokio::spawn(async move {
            let Ok(mut socket) = tls.accept(socket).await else { return };
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                let Ok(byte) = socket.read_u8().await else { return };
                request.push(byte);
            }
            asked.fetch_add(1, Ordering::AcqRel);
            let request = String::from_utf8(request).unwrap();
            let path = request.split(' ').nth(1).unwrap();
            let missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec();
            let answer = files.lock().get(path).cloned().unwrap_or(missing);
            let _ = socket.write_all(&answer).await;
            let _ = socket.shutdown().await;
        });
    }
}

/// A draft whose offers have these images.
fn with_images(images: &[&str]) -> Value {
    let mut sale = draft(1);
    let offer = sale["offers"][0].clone();
    let offers = images.iter().map(|image| {
        let mut offer = offer.clone();
        offer["image"] = json!(image);
        offer
    });
    sale["offers"] = offers.collect();
    sale
}

async fn publish(app: &TestApp, sale: Value) -> Value {
    let made = app.operate("POST", "/admin/v1/sales", Some(&sale), 201).await;
    let path = format!("/admin/v1/sales/{}/publish", made["id"].as_str().unwrap());
    app.operate("POST", &path, Some(&json!({})), 200).await
}

async fn shown(app: &TestApp, sale: &Value) -> Vec<Value> {
    let path = format!("/api/v1/sales/{}", sale["id"].as_str().unwrap());
    let seen = app.call("GET", &path, None, None, 200).await;
    seen["offers"].as_array().unwrap().iter().map(|offer| offer["image"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_copied_at_publish_and_served_by_us_for_ever() {
    let shop = Shop::open().await;
    let app = shop.app().await;
    let source = shop.put("/a", file(PNG));
    let moved = shop.put("/b", elsewhere(&source));
    let sale = publish(&app, with_images(&[&source, &moved, "/own.png"])).await;
    let copy = sale["offers"][0]["image_copy"].as_str().unwrap().to_owned();
    assert!(copy.starts_with("/images/") && copy.ends_with(".png"), "{copy}");
    assert_eq!(sale["offers"][0]["image"], source, "the operator sees where it came from");
    assert_eq!(shown(&app, &sale).await, [json!(copy), json!(copy), json!("/own.png")]);

    let response = app.client.get(app.url(&copy)).send().await.unwrap();
    let headers = response.headers().clone();
    assert_eq!(headers["content-type"], "image/png", "by its bytes, not by what the other server said");
    assert_eq!(headers["cache-control"], "public, max-age=31536000, immutable");
    assert_eq!(headers["x-content-type-options"], "nosniff");
    assert_eq!(response.bytes().await.unwrap(), PNG);
    let again = app.client.get(app.url(&copy)).header("if-none-match", &headers["etag"]);
    assert_eq!(app.send(again).await.0, 304);
    for other in
        ["/images/nothing.png", "/images/..%2Fdoorbuster.db", "/images/%2e%2e%2flock", "/images/lock"]
    {
        assert_code(&app.call("GET", other, None, None, 404).await, "not_found");
    }

    let asked = shop.asked.load(Ordering::Acquire);
    let settings = shop.settings();
    let overrides = settings.each_ref().map(String::as_str);
    let app = TestApp::on(app.stop().await, Clock::system(), &overrides).await;
    assert_eq!(shown(&app, &sale).await[0], json!(copy), "also after a restart");
    assert_eq!(app.client.get(app.url(&copy)).send().await.unwrap().bytes().await.unwrap(), PNG);
    assert_eq!(shop.asked.load(Ordering::Acquire), asked);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_cannot_be_copied_stops_nothing_and_is_told() {
    let shop = Shop::open().await;
    let app = shop.app().await;
    let large = [PNG, &vec![0; 2 * 1_024 * 1_024][..]].concat();
    let endless = shop.put("/endless", elsewhere(&format!("https://{}/endless", shop.address)));
    let sources = [
        (shop.put("/svg", file(b"<svg xmlns='http://www.w3.org/2000/svg'/>")), "is no PNG"),
        (shop.put("/large", file(&large)), "larger than"),
        (format!("https://{}/missing", shop.address), "404"),
        (endless, "too often"),
        (shop.put("/plain", elsewhere("http://127.0.0.1:9/x.png")), ""),
    ];
    let images: Vec<&str> = sources.iter().map(|(source, _)| source.as_str()).collect();
    let sale = publish(&app, with_images(&images)).await;
    assert_eq!(sale["state"], "published");
    for (offer, (source, why)) in sale["offers"].as_array().unwrap().iter().zip(&sources) {
        let problem = offer["image_problem"].as_str().unwrap_or_else(|| panic!("{source}: {offer}"));
        assert!(problem.contains(why), "{source}: {problem}");
        assert_eq!(offer["image_copy"], Value::Null);
    }
    assert!(shown(&app, &sale).await.iter().all(Value::is_null), "buyers are not sent elsewhere");

    shop.put("/svg", file(GIF));
    let id = sale["id"].as_str().unwrap();
    app.operate("POST", &format!("/admin/v1/sales/{id}/preheat"), None, 200).await;
    let mended = shown(&app, &sale).await[0].clone();
    assert!(mended.as_str().is_some_and(|copy| copy.ends_with(".gif")), "{mended}");
}

#[tokio::test(flavor = "multi_thread")]
async fn services_beside_us_are_not_asked_for_images() {
    let shop = Shop::open().await;
    let source = shop.put("/a", file(PNG));
    let ca = format!("images.ca_file={}", shop.folder.path().join("ca.pem").display());
    let app = TestApp::with(&[&ca]).await;
    let by_name = source.replace("127.0.0.1", "localhost");
    let sale = publish(&app, with_images(&[&source, &by_name])).await;
    for offer in sale["offers"].as_array().unwrap() {
        let problem = offer["image_problem"].as_str().unwrap();
        assert!(problem.contains("not a public one"), "{problem}");
    }
    assert_eq!(shop.asked.load(Ordering::Acquire), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_published_offers_new_image_is_copied_too() {
    let shop = Shop::open().await;
    let app = shop.app().await;
    let (first, second) = (shop.put("/a", file(PNG)), shop.put("/b", file(GIF)));
    let sale = publish(&app, with_images(&[&first])).await;
    let (id, offer) = (sale["id"].as_str().unwrap(), sale["offers"][0]["id"].as_str().unwrap());
    let path = format!("/admin/v1/sales/{id}/offers/{offer}");
    let changed = app.operate("PATCH", &path, Some(&json!({"image": second})), 200).await;
    assert!(changed["image_copy"].as_str().unwrap().ends_with(".gif"), "{changed}");
    assert_eq!(shown(&app, &sale).await, [changed["image_copy"].clone()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sale_that_publishes_itself_copies_its_images() {
    let shop = Shop::open().await;
    let settings = shop.settings();
    let (app, clock) = with_manual_clock(&settings.each_ref().map(String::as_str)).await;
    let mut sale = with_images(&[&shop.put("/a", file(PNG))]);
    sale["publish_at"] = json!(clock.now().plus_s(60));
    let made = app.operate("POST", "/admin/v1/sales", Some(&sale), 201).await;
    clock.advance(Duration::from_secs(61));
    crate::app::eventually("the copy is shown", async || {
        let path = format!("/api/v1/sales/{}", made["id"].as_str().unwrap());
        let seen = app.send(app.client.get(app.url(&path))).await.2;
        seen["offers"][0]["image"].is_string()
    })
    .await;
}
