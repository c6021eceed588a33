//! Keys that change while buyers come: those that sign passes, and those that the shop's issuer publishes.

use std::path::Path;
use std::time::Duration;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use doorbuster::clock::Clock;
use rules::time::UnixMs;
use serde_json::{Value, json};

use crate::app::{PASS_SECRET, TestApp, assert_code, eventually};

const NEW_SECRET: &str = "pass.secret=another-pass-secret-0123456789abcdef0123456789";
const AUDIENCE: &str = "doorbuster";

#[tokio::test(flavor = "multi_thread")]
async fn a_pass_outlives_one_change_of_the_secret_and_no_second() {
    let app = TestApp::start().await;
    let sale = app.open_sale(3).await;
    let pass = app.buyer("ann").pass(sale.offer()).await;
    let pass = pass["pass"].as_str().unwrap();

    let previous = format!("pass.previous_secret={PASS_SECRET}");
    let app = TestApp::on(app.stop().await, Clock::system(), &[NEW_SECRET]).await;
    assert_code(&app.buyer("ann").buy_with(sale.offer(), pass, 1, 403).await, "pass_invalid");
    let app = TestApp::on(app.stop().await, Clock::system(), &[NEW_SECRET, &previous]).await;
    app.buyer("ann").buy_with(sale.offer(), pass, 1, 202).await;
    let new = app.buyer("bob").pass(sale.offer()).await;
    let app = TestApp::on(app.stop().await, Clock::system(), &[NEW_SECRET]).await;
    app.buyer("bob").buy_with(sale.offer(), new["pass"].as_str().unwrap(), 1, 202).await;
}

/// The shop's issuer.
struct Issuer {
    id: &'static str,
    pair: Ed25519KeyPair,
}

impl Issuer {
    fn new(id: &'static str) -> Self {
        Self { id, pair: Ed25519KeyPair::generate().unwrap() }
    }

    fn publish(&self, file: &Path) {
        let x = b64(self.pair.public_key().as_ref());
        let key = json!({"kty": "OKP", "crv": "Ed25519", "x": x, "kid": self.id, "use": "sig"});
        // As a whole: nobody reads half a file.
        let beside = file.with_extension("new");
        std::fs::write(&beside, json!({"keys": [key]}).to_string()).unwrap();
        std::fs::rename(beside, file).unwrap();
    }

    fn header(&self, algorithm: &str) -> Value {
        json!({"typ": "JWT", "alg": algorithm, "kid": self.id})
    }

    fn token(&self, now: UnixMs) -> String {
        let message = message(&self.header("EdDSA"), now);
        let signature = b64(self.pair.sign(message.as_bytes()).as_ref());
        format!("{message}.{signature}")
    }

    /// By whoever knows the public key alone and takes it for a secret.
    fn forged(&self, now: UnixMs) -> String {
        let message = message(&self.header("HS256"), now);
        let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, self.pair.public_key().as_ref());
        let signature = b64(aws_lc_rs::hmac::sign(&key, message.as_bytes()).as_ref());
        format!("{message}.{signature}")
    }
}

fn message(header: &Value, now: UnixMs) -> String {
    let claims = json!({"sub": "ann", "exp": now.0 / 1_000 + 3_600, "aud": AUDIENCE});
    format!("{}.{}", b64(header.to_string().as_bytes()), b64(claims.to_string().as_bytes()))
}

fn b64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

async fn status(app: &TestApp, token: &str) -> u16 {
    app.send(app.client.get(app.url("/api/v1/me")).bearer_auth(token)).await.0
}

#[tokio::test(flavor = "multi_thread")]
async fn published_keys_are_read_at_start_and_followed_when_they_change() {
    let keys = tempfile::tempdir().unwrap();
    let file = keys.path().join("keys.json");
    let (old, new) = (Issuer::new("old"), Issuer::new("new"));
    old.publish(&file);
    let clock = Clock::manual(UnixMs(jiff::Timestamp::now().as_millisecond()));
    let jwks = format!("auth.jwks={}", file.display());
    let settings = ["auth.hs256_secret=", &jwks, "auth.audience=doorbuster"];
    let app = TestApp::on(tempfile::tempdir().unwrap(), clock.clone(), &settings).await;
    let me = app.call("GET", "/api/v1/me", Some(&old.token(clock.now())), None, 200).await;
    assert_eq!(me["buyer"], "ann");
    assert_eq!(status(&app, &old.forged(clock.now())).await, 401);
    assert_eq!(status(&app, &new.token(clock.now())).await, 401, "not published yet");

    new.publish(&file);
    clock.advance(Duration::from_secs(31));
    let token = new.token(clock.now());
    eventually("the new key is known", async || status(&app, &token).await == 200).await;
    assert_eq!(status(&app, &old.token(clock.now())).await, 401, "what is no longer published is no key");
}
