//! Behind nginx, set up as docs/going-live.md shows it, and started as its service is.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use testkit::nginx::{Nginx, Place};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::app::{ADMIN_KEY, TestApp, TestBuyer, assert_code, refused_as_too_fast};

const DOCUMENT: &str = include_str!("../../../../docs/going-live.md");

/// The name in the document.
const HOST: &str = "sale.shop.example";

/// What the document says beside the sample; limits so low that nobody gets far under another's address.
const SETTINGS: [&str; 4] = [
    "limits.trusted_proxies=127.0.0.1",
    "public_url=https://sale.shop.example",
    "limits.per_ip_per_s=1",
    "limits.per_ip_burst=1",
];

const SOON: Duration = Duration::from_secs(30);

/// The text of the one block of this language.
fn sample(language: &str) -> &'static str {
    let (_, rest) = DOCUMENT.split_once(&format!("```{language}\n")).unwrap();
    let (text, rest) = rest.split_once("\n```").unwrap();
    assert!(!rest.contains(&format!("```{language}\n")), "two samples");
    text
}

/// Only addresses and certificates are this test's own.
fn adapted(text: &str, changes: &[(&str, String)]) -> String {
    changes.iter().fold(text.to_owned(), |text, (from, to)| {
        assert_eq!(text.matches(from).count(), 1, "{from} in:\n{text}");
        text.replace(from, to)
    })
}

/// A server with the document's nginx in front of it.
struct Front {
    app: TestApp,
    nginx: Nginx,
    certified: rcgen::CertifiedKey<rcgen::KeyPair>,
}

impl Front {
    async fn start() -> Self {
        let app = TestApp::with(&SETTINGS).await;
        let certified = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).unwrap();
        let (certificate, key) = (certified.cert.pem(), certified.signing_key.serialize_pem());
        let blocks = |place: &Place| {
            let files = (place.certificate.display(), place.key.display());
            let certificates = format!("ssl_certificate {}; ssl_certificate_key {};", files.0, files.1);
            let changes = [
                ("127.0.0.1:8080", app.address.to_string()),
                ("listen 443 ssl;", format!("listen 127.0.0.1:{} ssl;", place.port)),
                ("# ssl_certificate …", certificates),
            ];
            adapted(sample("nginx"), &changes)
        };
        let nginx = Nginx::start(&certificate, &key, blocks).unwrap();
        Self { app, nginx, certified }
    }

    fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.nginx.port()).into()
    }

    fn url(&self, path: &str) -> String {
        format!("https://{HOST}:{}{path}", self.nginx.port())
    }

    /// Somebody with an address of their own.
    fn client(&self, address: [u8; 4]) -> reqwest::Client {
        let root = reqwest::Certificate::from_pem(self.certified.cert.pem().as_bytes()).unwrap();
        reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([root])
            .resolve(HOST, self.address())
            .local_address(IpAddr::from(address))
            .timeout(Duration::from_secs(40))
            .build()
            .unwrap()
    }

    /// A page's socket: browsers say which page it is.
    async fn socket(&self, buyer: &TestBuyer<'_>) -> WebSocketStream<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certified.cert.der().clone()).unwrap();
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let stream = TcpStream::connect(self.address()).await.unwrap();
        let name = ServerName::try_from(HOST).unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
        let url = self.url("/api/v1/events").replace("https", "wss");
        let mut request = url.into_client_request().unwrap();
        request.headers_mut().insert("origin", self.url("").parse().unwrap());
        let protocols = format!("doorbuster.v1, bearer.{}", buyer.token);
        request.headers_mut().insert("sec-websocket-protocol", protocols.parse().unwrap());
        client_async(request, stream).await.unwrap().0
    }
}

async fn answer(request: reqwest::RequestBuilder) -> (u16, reqwest::header::HeaderMap, Value) {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    (status, headers, serde_json::from_str(&response.text().await.unwrap()).unwrap_or(Value::Null))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purchase_goes_through_the_documented_proxy() {
    let front = Front::start().await;
    let sale = front.app.open_sale(1).await;
    let (ann, client) = (front.app.buyer("ann"), front.client([127, 0, 0, 1]));
    let mut socket = front.socket(&ann).await;
    let mut hear = async || loop {
        let message =
            tokio::time::timeout(SOON, socket.next()).await.expect("nothing came").unwrap().unwrap();
        match message {
            Message::Text(text) => return serde_json::from_str::<Value>(&text).unwrap(),
            Message::Ping(payload) => socket.send(Message::Pong(payload)).await.unwrap(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(hear().await, json!({"type": "ready"}));
    let stream = client.get(front.url("/api/v1/events")).header("accept", "text/event-stream");
    let mut stream = stream.bearer_auth(&ann.token).send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");

    let offer = front.url(&format!("/api/v1/offers/{}", sale.offer()));
    let pass = client.post(format!("{offer}/pass")).bearer_auth(&ann.token).json(&json!({}));
    let (status, _, given) = answer(pass).await;
    assert_eq!(status, 200, "{given}");
    let attempt = json!({"pass": given["pass"], "quantity": 1});
    let (status, headers, order) = answer(client.post(format!("{offer}/orders")).json(&attempt)).await;
    assert_eq!((status, &order["id"]), (202, &given["order_id"]), "{order}");
    // The long poll that the answer points to.
    let location = front.url(headers["location"].to_str().unwrap());
    let look = client.get(format!("{location}&wait=20&after=1")).bearer_auth(&ann.token);
    let (status, _, order) = answer(look).await;
    assert_eq!((status, &order["state"]), (200, &json!("awaiting_payment")), "{order}");

    assert_eq!(hear().await["order"]["state"], "awaiting_payment");
    let mut heard = String::new();
    while !heard.contains("awaiting_payment") {
        let chunk = tokio::time::timeout(SOON, stream.chunk()).await.expect("nothing came").unwrap();
        heard.push_str(std::str::from_utf8(&chunk.unwrap()).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_proxy_says_who_the_buyer_is_and_lets_nobody_to_the_operators_side() {
    let front = Front::start().await;
    let ask = async |address: [u8; 4], path: &str| {
        let request = front.client(address).get(front.url(path)).header("x-forwarded-for", "198.51.100.1");
        answer(request.bearer_auth(ADMIN_KEY)).await
    };
    // Whatever they write themselves.
    refused_as_too_fast(async || ask([127, 0, 0, 2], "/api/v1/time").await).await;
    for other in [3, 4] {
        assert_eq!(ask([127, 0, 0, other], "/api/v1/time").await.0, 200);
    }
    for path in ["/metrics", "//metrics", "/admin/v1/sales", "//admin/v1/sales", "/%61dmin/v1/sales"] {
        let (status, headers, _) = ask([127, 0, 0, 1], path).await;
        assert_eq!(status, 404, "{path}");
        assert!(headers["server"].to_str().unwrap().starts_with("nginx"), "{path} reaches the server");
    }
    // The server itself knows them.
    front.app.operate("GET", "/admin/v1/sales", None, 200).await;
    let (status, _, problem) = front.app.send(front.app.client.get(front.app.url("/metrics"))).await;
    assert_eq!(status, 401, "behind a proxy nobody is at home");
    assert_code(&problem, "unauthorized");
}

/// Without a running systemd: it reads the file as it would before a start.
#[test]
fn the_documented_service_is_understood_by_systemd() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("doorbuster.service");
    let program = env!("CARGO_BIN_EXE_doorbuster").to_owned();
    std::fs::write(&file, adapted(sample("ini"), &[("/usr/local/bin/doorbuster", program)])).unwrap();
    let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output();
    let output = output.expect("is systemd installed? `cargo xtask test` installs it");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("doorbuster"), "{said}");
}
