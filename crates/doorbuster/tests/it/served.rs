//! The server in a process of its own, which may die. What its tests do to it is theirs.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use testkit::process::{Process, Program};

use crate::app::{ADMIN_KEY, AUTH_SECRET, PASS_SECRET};

const START: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(20);

/// Status and body.
pub type Answer = (u16, Value);

pub struct Server {
    pub process: Process,
    pub url: String,
    pub client: reqwest::Client,
}

impl Server {
    /// Waits until it listens. `crash_at` names a point at which it will end itself.
    pub fn start(folder: &Path, settings: &[&str], crash_at: Option<&str>) -> Self {
        let mut program = Program::new(env!("CARGO_BIN_EXE_doorbuster"))
            .args(["serve", "--set", "listen=127.0.0.1:0"])
            .args(settings.iter().flat_map(|setting| ["--set", setting]))
            .arg("--data-dir")
            .arg(folder)
            .env("DOORBUSTER_ADMIN_KEY", ADMIN_KEY)
            .env("DOORBUSTER_AUTH__HS256_SECRET", AUTH_SECRET)
            .env("DOORBUSTER_PASS__SECRET", PASS_SECRET);
        if let Some(point) = crash_at {
            program = program.env(doorbuster::crash::VARIABLE, point);
        }
        let process = program.start().unwrap();
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
}
