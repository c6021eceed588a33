//! `demo`: a whole sale with nothing installed. It starts a server as `serve` would, makes a sale and sends a crowd,
//! all over HTTP; what it then says comes from what the buyers and the operator were told.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use doorbuster::app::Server;
use doorbuster::clock::Clock;
use doorbuster::config::Settings;
use doorbuster::telemetry::init_logging;
use rules::sale::STOCK_MAX;
use rules::wire::{AuditRequest, SaleView, Stats};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use stampede::crowd::{Crowd, CrowdSettings, Outcome, Tokens};
use stampede::desk::once_quiet;
use stampede::scenario::{Arrival, Curve, Kind};
use stampede::summary::Summary;
use stampede::verdict::{Audit, AuditFinding, Evidence, judge};
use stampede::view::{Samples, View};
use stampede::words::{parse_time, span, thousands};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::audit;
use super::client::{Client, random_text, throwaway_secret};
use super::run_file::url;
use super::serve::bind;
use super::signals::Signals;
use super::{Exit, say};

mod recipe;

use recipe::Recipe;

const LISTEN: &str = "127.0.0.1:8080";

/// The sale stays open so long after the crowd has come, so that one can look around.
const OPEN_FOR_S: u32 = 3_600;

/// How long fingers take: all tries are due within this time after the opening.
const TRIES_WITHIN: Duration = Duration::from_millis(200);

/// Shares of the crowd that are not well-behaved: it is they who break shops.
const CLICKS_TWICE: f64 = 0.10;
const HANGS_UP: f64 = 0.02;

/// Runs a whole sale against itself: a server, a sale, a crowd, and a verdict.
///
/// Needs nothing and leaves nothing: the data folder is temporary, the secrets are made up. Everything goes over
/// HTTP, with the limits of the default settings. Ends with code 3 if a promise was not kept.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster demo
  doorbuster demo --crowd 20000 --stock 500 --open-in 20s
  doorbuster demo --crowd 0               a server to play with
  doorbuster demo --exit --json           for scripts")]
pub struct Demo {
    /// How many buyers come; 0: none, you are the crowd.
    #[arg(long, value_name = "N", default_value_t = 3_000)]
    crowd: u32,
    /// How many units there are.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=i64::from(STOCK_MAX)))]
    stock: u32,
    /// How long until the sale opens, such as 5s or 2m.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    open_in: Duration,
    /// Ends after the verdict instead of serving on.
    #[arg(long)]
    exit: bool,
    /// Where to listen; if that port is taken, a free one is used.
    #[arg(long, value_name = "ADDR", default_value = LISTEN)]
    listen: String,
    /// Prints the verdict as JSON, and nothing else on standard output.
    ///
    /// `sold` of `stock` units are held or sold, as the operator sees it. `buyers` says how each of the crowd went
    /// home: `won` hold an order, `ended` had one, `hung_up` left in the middle of their try and got nothing. `funnel`
    /// counts steps while they happened: `queued` were told of an order, `saw_recorded` waited until it was recorded;
    /// who hung up and won all the same is not among these. `order_call_us` and `click_to_answer_us` are microseconds.
    /// `promises` has a yes or no for each, and `kept` for all.
    #[arg(long)]
    json: bool,
    /// Sets one value, by the name it has in the settings file; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,
}

impl Demo {
    pub async fn run(self) -> anyhow::Result<Exit> {
        let mut signals = Signals::listen()?;
        let shop = Shop::open(&self).await?;
        let shown = tokio::select! {
            shown = self.show(&shop) => Some(shown),
            () = signals.next() => None,
        };
        if matches!(shown, Some(Ok(_))) && !self.exit {
            if !self.json {
                say::answer("The shop stays open at the addresses above. Ctrl-C ends it.");
            }
            tokio::select! {
                () = signals.next() => {}
                // The server cannot go on; closing it says why.
                () = shop.shutdown.cancelled() => {}
            }
        }
        tokio::select! {
            closed = shop.close() => closed?,
            () = signals.next() => {}
        }
        shown.unwrap_or(Ok(Exit::Done))
    }

    async fn show(&self, shop: &Shop) -> anyhow::Result<Exit> {
        let sale = shop.publish_sale(self).await?;
        if !self.json {
            self.introduce(shop, &sale);
        }
        if self.crowd == 0 {
            if !self.json && !self.exit {
                self.explain(shop, &sale, false);
            }
            return Ok(Exit::Done);
        }
        let summary = self.let_them_in(shop, &sale).await?;
        say::answer(&if self.json { summary.to_json(&shop.url()).to_string() } else { summary.to_text() });
        if !self.json && !self.exit {
            self.explain(shop, &sale, true);
        }
        Ok(if summary.kept() { Exit::Done } else { Exit::Violated })
    }

    fn introduce(&self, shop: &Shop, sale: &SaleView) {
        let url = shop.url();
        if shop.moved {
            say::answer(&format!("{} is taken; using a free port instead.", self.listen));
        }
        say::answer(&format!("listening on {url}\n"));
        let crowd = match self.crowd {
            0 => "no crowd".to_owned(),
            crowd => {
                format!("{} buyers; every 10th clicks twice, every 50th hangs up", thousands(crowd.into()))
            }
        };
        let lines = [
            format!(
                "  sale       {}, {} units, opens in {}",
                sale.title,
                thousands(self.stock.into()),
                span(self.open_in)
            ),
            format!("  crowd      {crowd}"),
            "  limits     as by default: 5 tries/s per buyer,".to_owned(),
            "             50 requests/s per address without a token".to_owned(),
            "  data       a temporary folder, removed at the end".to_owned(),
            String::new(),
            format!("  API        {url}/api/v1/sales/{}", sale.id),
            format!("  read it    {url}/api/docs"),
            format!("  metrics    {url}/metrics"),
            format!("  admin key  {}", shop.admin_key),
            String::new(),
        ];
        say::answer(&lines.join("\n"));
    }

    /// How to buy by hand. After the crowd has left: before, it would only be told that the sale is not open yet.
    fn explain(&self, shop: &Shop, sale: &SaleView, sold_out: bool) {
        let url = shop.url();
        let offer = sale.offers.first().map(|offer| offer.id.to_string()).unwrap_or_default();
        let recipe = Recipe { url: &url, offer: &offer, admin_key: &shop.admin_key, sold_out };
        let program = std::env::current_exe().unwrap_or_else(|_| "doorbuster".into());
        let when = if sold_out { String::new() } else { format!(", once {} are over", span(self.open_in)) };
        say::answer(&say::Paint::bold().on(&format!("  Buy one yourself, in another terminal{when}:")));
        for line in recipe.lines(&program) {
            say::answer(&format!("    {line}"));
        }
        say::answer("\n  The last line answers a pay_url: a page that plays the payment provider.");
        say::answer("  The commands need curl 7.82 or newer.\n");
    }

    async fn let_them_in(&self, shop: &Shop, sale: &SaleView) -> anyhow::Result<Summary> {
        let before = shop.stats(sale).await?;
        let crowd = Crowd::new(self.settings(shop, sale))?;
        let samples = Samples::default();
        let looks = watch::Sender::new(0_u64);
        let view = View {
            progress: crowd.progress(),
            clock: crowd.clock(),
            opens_at: sale.opens_at,
            stats: async || {
                looks.send_modify(|looks| *looks += 1);
                shop.stats(sale).await.map(Some)
            },
            samples: &samples,
            crowd: self.crowd.into(),
            stock: Some(self.stock.into()),
            quiet: self.json,
            bears: Duration::ZERO,
        };
        let until_quiet = async {
            let outcome = crowd.run().await?;
            let after = once_quiet(crowd.clock(), async || shop.stats(sale).await).await?;
            // The view's last frame stays. The next look sees the end, and when one more begins it has been shown.
            let seen = *looks.borrow() + 2;
            looks.subscribe().wait_for(|looks| *looks >= seen).await?;
            anyhow::Ok::<(Outcome, Stats)>((outcome, after))
        };
        let (outcome, after) = tokio::select! {
            ended = until_quiet => ended?,
            // The view ends only when it cannot go on.
            failed = view.show() => return Err(failed),
        };
        let audit = shop.audit().await?;
        let evidence = Evidence {
            histories: &outcome.histories,
            started_at: Some(outcome.started_at),
            after: Some(&after),
            alone_since: Some(&before),
            audit: Some(&audit),
            ..Evidence::default()
        };
        let findings = judge(&evidence);
        Ok(Summary::of(&outcome, sale.opens_at, &evidence, &findings))
    }

    fn settings(&self, shop: &Shop, sale: &SaleView) -> CrowdSettings {
        let jitter = Duration::ZERO;
        let human = Kind { double_click: CLICKS_TWICE, hang_up: HANGS_UP, jitter, ..Kind::default() };
        let opens_in = Duration::from_millis(shop.clock.now().ms_until(sale.opens_at));
        let arrival = Arrival {
            curve: Curve::Constant,
            within: TRIES_WITHIN,
            pages_ahead: opens_in,
            passes_ahead: opens_in,
            ..Arrival::default()
        };
        CrowdSettings {
            mix: vec![human],
            arrival,
            opens_in,
            ..CrowdSettings::new(shop.address, sale.id, shop.tokens.clone(), self.crowd)
        }
    }
}

/// A server of this process with everything needed to use it.
#[derive(Debug)]
struct Shop {
    address: SocketAddr,
    /// The wanted port was taken.
    moved: bool,
    client: Client,
    clock: Clock,
    admin_key: String,
    tokens: Tokens,
    shutdown: CancellationToken,
    running: tokio::task::JoinHandle<anyhow::Result<()>>,
    /// Removed when everything else has ended.
    _folder: tempfile::TempDir,
}

impl Shop {
    async fn open(demo: &Demo) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("doorbuster-demo-")
            .tempdir()
            .context("no temporary folder can be made; set TMPDIR to a folder that can be written")?;
        let (listener, address, moved) = bind_or_any(&demo.listen)?;
        let mut flags = vec![
            format!("listen={address}"),
            format!("data_dir={}", folder.path().display()),
            format!("admin_key={}", random_text()),
            format!("auth.hs256_secret={}", throwaway_secret()),
            format!("pass.secret={}", throwaway_secret()),
            "demo=true".to_owned(),
            "payment.sandbox=true".to_owned(),
            "telemetry.log_filter=warn".to_owned(),
            "telemetry.log_format=text".to_owned(),
        ];
        flags.extend(demo.set.iter().cloned());
        // Not from the environment: a demo looks the same on every machine, and a shop's own secrets stay out of it.
        let settings = Settings::load(None, std::iter::empty(), &flags)?;
        if let Err(problems) = settings.check() {
            let sentences: Vec<String> = problems.iter().map(ToString::to_string).collect();
            anyhow::bail!("{}", sentences.join("\n"));
        }
        // They may have been chosen with `--set`.
        let text = |secret: &Option<SecretString>| {
            secret.as_ref().map_or_else(String::new, |secret| secret.expose_secret().to_owned())
        };
        let admin_key = text(&settings.admin_key);
        let tokens = Tokens::Signed {
            secret: text(&settings.auth.hs256_secret).into_bytes(),
            issuer: settings.auth.issuer.clone(),
            audience: settings.auth.audience.clone(),
        };
        let _no_traces = init_logging(&settings.telemetry)?;
        let (clock, shutdown) = (Clock::system(), CancellationToken::new());
        let server = Server::start(settings, clock.clone(), listener, None, shutdown.clone()).await?;
        let client = Client::new(&url(address), SecretString::from(admin_key.clone()))?;
        let running = TaskTracker::new().spawn(server.until_the_end());
        Ok(Self { address, moved, client, clock, admin_key, tokens, shutdown, running, _folder: folder })
    }

    fn url(&self) -> String {
        url(self.address)
    }

    async fn publish_sale(&self, demo: &Demo) -> anyhow::Result<SaleView> {
        let wait_ms = i64::try_from(demo.open_in.as_millis()).unwrap_or(i64::MAX);
        let opens_at = self.clock.now().plus_ms(wait_ms);
        let draft = json!({
            "title": "Demo night",
            "opens_at": opens_at,
            "closes_at": opens_at.plus_s(OPEN_FOR_S),
            "offers": [{
                "name": "Feitian 53",
                "list_price": {"amount": 299_900, "currency": "CNY"},
                "price": {"amount": 149_900, "currency": "CNY"},
                "stock": demo.stock,
            }],
        });
        let sale: SaleView = self.client.post("/admin/v1/sales", &draft).await?;
        let path = format!("/admin/v1/sales/{}/publish", sale.id);
        let _published: Value = self.client.post(&path, &json!({})).await?;
        Ok(sale)
    }

    async fn stats(&self, sale: &SaleView) -> anyhow::Result<Stats> {
        self.client.get(&format!("/admin/v1/sales/{}/stats", sale.id)).await
    }

    /// What the shop says about itself.
    async fn audit(&self) -> anyhow::Result<Audit> {
        let said = audit::ask(&self.client, AuditRequest::default()).await?;
        let finding = |found: &rules::wire::AuditFinding| AuditFinding {
            kind: found.kind.to_string(),
            detail: found.detail.clone(),
        };
        Ok(Audit {
            id: said.id.to_string(),
            clean: said.clean == Some(true),
            findings: said.findings.iter().map(finding).collect(),
        })
    }

    async fn close(self) -> anyhow::Result<()> {
        self.shutdown.cancel();
        drop(self.client);
        self.running.await?
    }
}

/// The wanted address, or a free port on the same host; the last says whether it is another one.
fn bind_or_any(wanted: &str) -> anyhow::Result<(TcpListener, SocketAddr, bool)> {
    match bind("listen", wanted) {
        Ok((listener, address)) => Ok((listener, address, false)),
        Err(error) => {
            let Ok(mut address) = wanted.parse::<SocketAddr>() else { return Err(error) };
            address.set_port(0);
            let (listener, address) = bind("listen", &address.to_string())?;
            Ok((listener, address, true))
        }
    }
}
