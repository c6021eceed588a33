//! The server in a process of its own, which may die. What its tests do to it is theirs.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::process::{Process, Program};

use crate::app::{ADMIN_KEY, AUTH_SECRET, PASS_SECRET, draft, eventually};

const START: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(20);

/// Status and body.
pub type Answer = (u16, Value);

/// Starts the program, which may die before it listens. `crash_at` names a point at which it will end itself.
pub fn launch(folder: &Path, settings: &[&str], crash_at: Option<&str>) -> Process {
    let program = Program::new(env!("CARGO_BIN_EXE_doorbuster"))
        .args(["serve", "--set", "listen=127.0.0.1:0"])
        .args(settings.iter().flat_map(|setting| ["--set", setting]))
        .arg("--data-dir")
        .arg(folder)
        .env("DOORBUSTER_ADMIN_KEY", ADMIN_KEY)
        .env("DOORBUSTER_AUTH__HS256_SECRET", AUTH_SECRET)
        .env("DOORBUSTER_PASS__SECRET", PASS_SECRET);
    let program = match crash_at {
        Some(point) => program.env(doorbuster::crash::VARIABLE, point),
        None => program,
    };
    program.start().unwrap()
}

/// Waits until it has died at this point.
pub fn has_died_at(process: &Process, point: &str) {
    let name = point.split_once(':').map_or(point, |(name, _)| name);
    let reached = format!("crash point {name} reached");
    process
        .wait_for(END, |line| line.text.contains(&reached))
        .unwrap_or_else(|error| panic!("{point}: {error}"));
    assert!(!process.wait(END).unwrap().success());
}

pub struct Server {
    pub process: Process,
    pub url: String,
    pub client: reqwest::Client,
}

impl Server {
    /// Waits until it listens.
    pub fn start(folder: &Path, settings: &[&str], crash_at: Option<&str>) -> Self {
        let process = launch(folder, settings, crash_at);
        let line = process.wait_for_line("listening on ", START).unwrap();
        let url = line.trim_start_matches("listening on ").trim().to_owned();
        let client = reqwest::Client::builder().no_proxy().timeout(ANSWER).build().unwrap();
        Self { process, url, client }
    }

    /// Nothing when the server died under the request.
    pub async fn call(&self, method: &str, path: &str, token: &str, body: Option<&Value>) -> Option<Answer> {
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = self.client.request(method, format!("{}{path}", self.url)).bearer_auth(token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.ok()?;
        Some((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }

    /// As the operator, of a server that must answer.
    pub async fn operate(&self, method: &str, path: &str, body: Option<&Value>) -> Value {
        let (status, body) = self.call(method, path, ADMIN_KEY, body).await.expect("the server answers");
        assert!((200..300).contains(&status), "{path}: {status} {body}");
        body
    }

    /// An open sale of so many units, and its offer.
    pub async fn open_sale(&self, stock: u32) -> (String, String) {
        let sale = self.operate("POST", "/admin/v1/sales", Some(&draft(stock))).await;
        let id = sale["id"].as_str().unwrap().to_owned();
        self.operate("POST", &format!("/admin/v1/sales/{id}/publish"), Some(&json!({}))).await;
        (id, sale["offers"][0]["id"].as_str().unwrap().to_owned())
    }

    /// The id of a recorded order of one unit by the holder of this token.
    pub async fn won(&self, offer: &str, token: &str) -> String {
        let pass = format!("/api/v1/offers/{offer}/pass");
        let (_, pass) = self.call("POST", &pass, token, Some(&json!({}))).await.unwrap();
        let body = json!({"pass": pass["pass"], "quantity": 1});
        let path = format!("/api/v1/offers/{offer}/orders");
        let (status, order) = self.call("POST", &path, "", Some(&body)).await.unwrap();
        assert_eq!(status, 202, "{order}");
        let order = order["id"].as_str().unwrap().to_owned();
        let path = format!("/api/v1/orders/{order}?wait=20");
        let (_, recorded) = self.call("GET", &path, token, None).await.unwrap();
        assert_eq!(recorded["state"], "awaiting_payment");
        order
    }

    pub async fn order(&self, order: &str) -> Value {
        self.operate("GET", &format!("/admin/v1/orders/{order}"), None).await
    }

    /// Gate, ledger, money and events fit together.
    pub async fn audit_is_clean(&self) {
        let begun = self.operate("POST", "/admin/v1/audit", Some(&json!({}))).await;
        let path = format!("/admin/v1/audit/{}", begun["id"].as_str().unwrap());
        let look = async || self.operate("GET", &path, None).await;
        eventually("the audit ends", async || look().await["state"] != "running").await;
        let audit = look().await;
        assert_eq!((&audit["state"], &audit["clean"]), (&json!("done"), &json!(true)), "{audit}");
    }

    /// See [`has_died_at`].
    pub fn has_died_at(&self, point: &str) {
        has_died_at(&self.process, point);
    }

    pub fn end_hard(&self) {
        self.process.kill().unwrap();
        self.process.wait(END).unwrap();
    }
}
