//! Ours, as users run it: the real binary in a process of its own, a distinct valid pass per request, metrics, limits
//! and security headers on. Limits are raised so that one generator may be a whole crowd; none is off.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::{StreamExt as _, TryStreamExt as _};
use rules::id::{OfferId, SaleId};
use serde_json::{Value, json};

use crate::processes::{self, Owned};
use crate::quota::Quota;

const ADMIN_KEY: &str = "bench-admin-key-0123456789abcdef0123456789abcdef";
pub const AUTH_SECRET: &str = "bench-auth-secret-0123456789abcdef0123456789abcdef";
pub const PASS_SECRET: &str = "bench-pass-secret-0123456789abcdef0123456789abcdef";
/// Preparations go on so many connections.
const ASKS_AT_ONCE: usize = 64;
/// Nobody's order closes while something else is measured.
const PAY_WITHIN_S: u32 = 86_400;
/// A ledger that has not followed by then does not follow.
const SETTLE_LIMIT: Duration = Duration::from_secs(180);

/// The server in a process of its own, on a data folder of its own.
pub struct Product {
    process: Owned,
    pub address: SocketAddr,
    client: reqwest::Client,
    runtime: tokio::runtime::Runtime,
}

pub struct Sale {
    pub id: SaleId,
    pub offers: Vec<OfferId>,
}

impl Product {
    pub fn start(folder: &Path) -> anyhow::Result<Self> {
        Self::start_as(folder, None, &[])
    }

    /// Starts one that audits only when it is asked to. What runs for minutes beside others would otherwise be audited
    /// whenever a minute is over, in the middle of somebody's measurement.
    pub fn start_without_audits(folder: &Path) -> anyhow::Result<Self> {
        Self::start_with(folder, &["audit.every_s=0"])
    }

    /// Starts one that lives in the control group, where there is one.
    pub fn start_within(folder: &Path, quota: Option<&Quota>) -> anyhow::Result<Self> {
        Self::start_as(folder, quota, &[])
    }

    /// Starts one with further settings.
    pub fn start_with(folder: &Path, settings: &[&str]) -> anyhow::Result<Self> {
        Self::start_as(folder, None, settings)
    }

    fn start_as(folder: &Path, quota: Option<&Quota>, settings: &[&str]) -> anyhow::Result<Self> {
        let program = env!("CARGO_BIN_EXE_doorbuster");
        let mut command = quota.map_or_else(|| Command::new(program), |quota| quota.command(program));
        command
            .args(["serve", "--set", "listen=127.0.0.1:0"])
            .arg("--data-dir")
            .arg(folder)
            // Raised, not removed: one generator is a whole crowd behind one address.
            .args(["--set", "limits.per_ip_per_s=1000000", "--set", "limits.per_ip_burst=1000000"])
            .args(["--set", "telemetry.log_filter=warn"])
            .args(settings.iter().flat_map(|setting| ["--set", setting]))
            .env("DOORBUSTER_ADMIN_KEY", ADMIN_KEY)
            .env("DOORBUSTER_AUTH__HS256_SECRET", AUTH_SECRET)
            .env("DOORBUSTER_PASS__SECRET", PASS_SECRET)
            .stdout(Stdio::piped());
        let mut process = Owned::start(&mut command)?;
        let mut line = String::new();
        BufReader::new(process.child().stdout.take().context("no output")?).read_line(&mut line)?;
        let address =
            line.trim().strip_prefix("listening on http://").context("the server did not start")?.parse()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Kept connections go stale unseen: nobody drives them while the load runs.
        let client = reqwest::Client::builder().no_proxy().pool_max_idle_per_host(0).build()?;
        Ok(Self { process, address, client, runtime })
    }

    pub fn operate(&self, method: &str, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let method = reqwest::Method::from_bytes(method.as_bytes())?;
        let mut request =
            self.client.request(method, format!("http://{}{path}", self.address)).bearer_auth(ADMIN_KEY);
        if let Some(body) = body {
            request = request.json(body);
        }
        self.runtime.block_on(async {
            let response = request.send().await?;
            let status = response.status();
            let value: Value = response.json().await?;
            ensure!(status.is_success(), "{path}: {value}");
            Ok(value)
        })
    }

    /// A sale that is open, with so many offers of so many units each.
    pub fn open_sale(&self, offers: usize, stock: u32) -> anyhow::Result<Sale> {
        self.open_sale_to_pay_within(offers, stock, PAY_WITHIN_S)
    }

    /// The same with a deadline of its own.
    pub fn open_sale_to_pay_within(
        &self,
        offers: usize,
        stock: u32,
        pay_within_s: u32,
    ) -> anyhow::Result<Sale> {
        let now = jiff::Timestamp::now();
        let day = jiff::SignedDuration::from_hours(24);
        let offer = json!({"name": "x", "price": {"amount": 149_900, "currency": "CNY"}, "stock": stock});
        let draft = json!({
            "title": "bench", "opens_at": (now - day).to_string(), "closes_at": (now + day).to_string(),
            "pay_within_s": pay_within_s, "offers": vec![offer; offers],
        });
        let sale = self.operate("POST", "/admin/v1/sales", Some(&draft))?;
        let id = sale["id"].as_str().context("no id")?.to_owned();
        self.operate("POST", &format!("/admin/v1/sales/{id}/publish"), Some(&json!({})))?;
        let offers = sale["offers"].as_array().context("no offers")?;
        let offers = offers.iter().map(|offer| offer["id"].as_str().unwrap().parse().unwrap()).collect();
        Ok(Sale { id: id.parse()?, offers })
    }

    /// Waits until everything accepted is in the ledger; says how long that took.
    pub fn settle(&self, sale: &Sale) -> anyhow::Result<Duration> {
        let began = Instant::now();
        loop {
            let stats = self.stats(sale)?;
            if stats["queue"]["depth"] == 0 {
                return Ok(began.elapsed());
            }
            ensure!(began.elapsed() < SETTLE_LIMIT, "the ledger does not follow: {stats}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    pub fn stats(&self, sale: &Sale) -> anyhow::Result<Value> {
        self.operate("GET", &format!("/admin/v1/sales/{}/stats", sale.id), None)
    }

    /// Asks as this buyer, many at once: each `path` with this body. Answers in the same order.
    pub fn ask_as_buyers(&self, asks: Vec<(String, String)>, body: &Value) -> anyhow::Result<Vec<Value>> {
        let ask = |(buyer, path): (String, String)| {
            let token = token_of(&buyer);
            let request = self.client.post(format!("http://{}{path}", self.address)).json(body);
            async move {
                let response = request.bearer_auth(token?).send().await?;
                let status = response.status();
                let value: Value = response.json().await?;
                ensure!(status.is_success(), "{path}: {value}");
                Ok(value)
            }
        };
        let answers = futures_util::stream::iter(asks.into_iter().map(ask)).buffered(ASKS_AT_ONCE);
        self.runtime.block_on(answers.try_collect())
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Lets it stand still until it goes on. For the ledger it lives all the time: nobody is excused by it.
    pub fn stand_still(&self) -> anyhow::Result<()> {
        self.process.stop()
    }

    pub fn go_on(&self) -> anyhow::Result<()> {
        self.process.cont()
    }

    pub fn cpu(&self) -> Duration {
        processes::cpu_of(self.process.id())
    }

    /// The same without the kernel's ticks, of threads that live.
    pub fn fine_cpu_us(&self) -> f64 {
        processes::thread_cpu_us(self.process.id()).values().map(|(_, us)| us).sum()
    }

    pub fn command(&self) -> String {
        self.process.line.clone()
    }
}

/// A token as the shop signs them.
pub fn token_of(buyer: &str) -> anyhow::Result<String> {
    let claims = json!({"sub": buyer, "exp": jiff::Timestamp::now().as_second() + 3_600});
    let key = jsonwebtoken::EncodingKey::from_secret(AUTH_SECRET.as_bytes());
    Ok(jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key)?)
}

impl Drop for Product {
    fn drop(&mut self) {
        // Nothing is asked of its end: no drain.
        let _ = self.process.child().kill();
    }
}
