//! Owns a private Chromium: headless, with an empty profile of its own, spoken to over its debugging port on loopback, ended
//! by process id. It reaches nothing but this machine. Knows pages as what can be opened, clicked, read and looked at, and
//! nothing of whose pages they are.

use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::process::{Process, Program};

/// A browser starts slowly on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(120);

/// How long anything on a page may take.
const LIMIT: Duration = Duration::from_secs(60);

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What it says when it listens.
const LISTENS: &str = "DevTools listening on ";

/// Tests run as root, where its own sandbox does not; it must not look for updates, nor ask anybody outside for anything.
const FLAGS: [&str; 14] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
    "about:blank",
];

/// A running browser.
#[derive(Debug)]
pub struct Browser {
    // In the order in which they end.
    process: Process,
    profile: TempDir,
    /// `ws://127.0.0.1:PORT/devtools/browser/ID`.
    address: String,
}

/// A tab. What went wrong on it is remembered.
#[derive(Debug)]
pub struct Page {
    wire: Wire,
}

/// Where a part of a page is and how large, in CSS pixels from the top left of the page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
}

impl Browser {
    pub async fn launch() -> anyhow::Result<Self> {
        let profile = tempfile::Builder::new().prefix("chromium-").tempdir()?;
        let process = Program::new("chromium")
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .args(FLAGS)
            // Whatever it keeps outside its profile.
            .env("HOME", profile.path())
            .start()
            .context("is chromium installed? `cargo xtask test` installs it")?;
        tokio::task::spawn_blocking(move || {
            let said = process.wait_for(START_LIMIT, |line| line.text.starts_with(LISTENS))?;
            let address = said.trim_start_matches(LISTENS).to_owned();
            Ok(Self { process, profile, address })
        })
        .await?
    }

    /// A new tab with nothing on it.
    pub async fn page(&self) -> anyhow::Result<Page> {
        let mut browser = Wire::connect(&self.address).await?;
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"})).await?;
        let id = target["targetId"].as_str().context("a tab has an id")?;
        let (host, _) = self.address.split_once("/devtools/").context("an address of the debugging port")?;
        let mut wire = Wire::connect(&format!("{host}/devtools/page/{id}")).await?;
        for part in ["Page.enable", "Runtime.enable", "Log.enable"] {
            wire.call(part, json!({})).await?;
        }
        Ok(Page { wire })
    }

    /// Lets it end in order, with all its processes. One that is dropped is killed.
    pub async fn close(self) -> anyhow::Result<()> {
        let Self { process, profile, address } = self;
        // It may be gone before it has answered.
        let _ = Wire::connect(&address).await?.call("Browser.close", json!({})).await;
        tokio::task::spawn_blocking(move || {
            process.wait(LIMIT)?;
            // Its helpers end a moment after it, and may still write.
            crate::eventually(LIMIT, || {
                let gone = std::fs::remove_dir_all(profile.path());
                gone.is_ok() || !profile.path().exists()
            });
            Ok(())
        })
        .await?
    }
}

impl Page {
    /// Goes to an address and waits until all of it is there.
    pub async fn open(&mut self, url: &str) -> anyhow::Result<()> {
        let gone = self.wire.call("Page.navigate", json!({"url": url})).await?;
        ensure!(gone["errorText"].is_null(), "{url}: {}", gone["errorText"]);
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'").await
    }

    /// What an expression of the page comes to; a promise is awaited.
    pub async fn evaluate(&mut self, expression: &str) -> anyhow::Result<Value> {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.wire.call("Runtime.evaluate", asked).await?;
        ensure!(answer["exceptionDetails"].is_null(), "{expression}: {}", answer["exceptionDetails"]);
        Ok(answer["result"]["value"].take())
    }

    /// Waits until an expression of the page is true.
    pub async fn until(&mut self, expression: &str) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let late = started.elapsed() >= LIMIT;
            // A page that is being left cannot be asked.
            let found = self.evaluate(expression).await;
            if matches!(found, Ok(Value::Bool(true))) {
                return Ok(());
            }
            ensure!(
                !late,
                "not within {LIMIT:?}: {expression} (last {found:?}; problems {:?})",
                self.problems()
            );
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// The text of the first part that a selector names, as it is shown.
    pub async fn text(&mut self, selector: &str) -> anyhow::Result<String> {
        let text = self.evaluate(&format!("document.querySelector({}).innerText", json!(selector))).await?;
        Ok(text.as_str().with_context(|| format!("{selector} has no text"))?.to_owned())
    }

    /// Where the first part that a selector names is.
    pub async fn area(&mut self, selector: &str) -> anyhow::Result<Area> {
        let found = self
            .evaluate(&format!(
                "(() => {{ const area = document.querySelector({}).getBoundingClientRect();
                  return [area.left + scrollX, area.top + scrollY, area.width, area.height]; }})()",
                json!(selector)
            ))
            .await?;
        let number = |index: usize| found[index].as_f64().with_context(|| format!("where is {selector}?"));
        Ok(Area { left: number(0)?, top: number(1)?, width: number(2)?, height: number(3)? })
    }

    /// Presses the middle of what a selector names, as a person would: once it is there, can be seen, is enabled and is
    /// covered by nothing.
    pub async fn click(&mut self, selector: &str) -> anyhow::Result<()> {
        let middle = format!(
            "(() => {{ const part = document.querySelector({});
              if (!part || part.disabled) return null;
              part.scrollIntoView({{block: 'center', behavior: 'instant'}});
              const area = part.getBoundingClientRect();
              const [x, y] = [area.left + area.width / 2, area.top + area.height / 2];
              return part.contains(document.elementFromPoint(x, y)) ? [x, y] : null; }})()",
            json!(selector)
        );
        self.until(&format!("{middle} !== null")).await?;
        let at = self.evaluate(&middle).await?;
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1});
            self.wire.call("Input.dispatchMouseEvent", event).await?;
        }
        Ok(())
    }

    /// Types into a field in place of what stands there.
    pub async fn fill(&mut self, selector: &str, text: &str) -> anyhow::Result<()> {
        self.click(selector).await?;
        self.evaluate(&format!("document.querySelector({}).select()", json!(selector))).await?;
        self.wire.call("Input.insertText", json!({"text": text})).await?;
        Ok(())
    }

    /// The size of the window, in CSS pixels; a phone also has fingers.
    pub async fn resize(&mut self, width: u32, height: u32, phone: bool) -> anyhow::Result<()> {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone});
        self.wire.call("Emulation.setDeviceMetricsOverride", size).await?;
        self.wire.call("Emulation.setTouchEmulationEnabled", json!({"enabled": phone})).await?;
        Ok(())
    }

    /// What its reader prefers, such as `zh-CN`; for pages that are opened from now on.
    pub async fn speak(&mut self, language: &str) -> anyhow::Result<()> {
        let agent = self.evaluate("navigator.userAgent").await?;
        let preferred = json!({"userAgent": agent, "acceptLanguage": language});
        self.wire.call("Emulation.setUserAgentOverride", preferred).await?;
        Ok(())
    }

    /// Whether its reader prefers dark pages.
    pub async fn darken(&mut self, dark: bool) -> anyhow::Result<()> {
        let scheme = if dark { "dark" } else { "light" };
        let preferred = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.wire.call("Emulation.setEmulatedMedia", preferred).await?;
        Ok(())
    }

    /// All of the page, also what is below the window, as PNG.
    pub async fn whole_picture(&mut self) -> anyhow::Result<Vec<u8>> {
        let asked = json!({"format": "png", "captureBeyondViewport": true});
        let taken = self.wire.call("Page.captureScreenshot", asked).await?;
        Ok(STANDARD.decode(taken["data"].as_str().context("a picture is text")?)?)
    }

    /// What can be seen now, as PNG.
    pub async fn picture(&mut self) -> anyhow::Result<Vec<u8>> {
        let taken = self.wire.call("Page.captureScreenshot", json!({"format": "png"})).await?;
        Ok(STANDARD.decode(taken["data"].as_str().context("a picture is text")?)?)
    }

    /// What went wrong so far: exceptions nobody caught, and errors in the log, such as what its policy forbids.
    pub fn problems(&self) -> &[String] {
        &self.wire.problems
    }
}

/// One connection: a call at a time; what comes in between is looked through for problems.
#[derive(Debug)]
struct Wire {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    calls: u64,
    problems: Vec<String>,
}

impl Wire {
    async fn connect(address: &str) -> anyhow::Result<Self> {
        let (socket, _) = connect_async(address).await.context("the browser's debugging port")?;
        Ok(Self { socket, calls: 0, problems: Vec::new() })
    }

    async fn call(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        let answered = tokio::time::timeout(LIMIT, self.call_and_wait(method, params)).await;
        answered.with_context(|| format!("the browser does not answer {method}"))?
    }

    async fn call_and_wait(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        self.calls += 1;
        let call = json!({"id": self.calls, "method": method, "params": params});
        self.socket.send(Message::text(call.to_string())).await?;
        while let Some(message) = self.socket.next().await {
            let Message::Text(text) = message? else { continue };
            let mut told: Value = serde_json::from_str(&text)?;
            if told["id"] == self.calls {
                ensure!(told["error"].is_null(), "{method}: {}", told["error"]);
                return Ok(told["result"].take());
            }
            self.problems.extend(problem(&told));
        }
        bail!("the browser hung up during {method}")
    }
}

fn problem(told: &Value) -> Option<String> {
    let params = &told["params"];
    match told["method"].as_str()? {
        "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
        "Log.entryAdded" if params["entry"]["level"] == "error" => Some(params["entry"].to_string()),
        _ => None,
    }
}
