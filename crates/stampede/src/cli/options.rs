//! Options that several commands share: where the server is, who the buyers are, how many come.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use rand::RngExt as _;
use rules::id::SaleId;
use serde::Deserialize;

use super::outcome::check_writable;
use crate::crowd::{GivenToken, Tokens};
use crate::desk::{Address, Desk};
use crate::record::Record;
use crate::scenario::{Loaded, load};
use crate::visit::Visit;
use crate::words::parse_time;

/// Where, and as whom.
#[derive(Debug, Args)]
pub struct Target {
    /// The server, such as http://127.0.0.1:8080.
    #[arg(long, value_name = "URL")]
    pub url: String,
    /// The operator's listener, if it has one of its own.
    #[arg(long, value_name = "URL")]
    admin_url: Option<String>,
    /// The sale's id.
    #[arg(long, value_name = "ID", value_parser = parse_sale)]
    pub sale: SaleId,
    /// The operator's key: with it the stock is compared and shown.
    #[arg(long, value_name = "KEY", env = "STAMPEDE_ADMIN_KEY", hide_env_values = true)]
    pub admin_key: Option<String>,
    #[command(flatten)]
    buyers_are: BuyersAre,
}

/// How buyers prove who they are.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct BuyersAre {
    /// The secret with which the shop signs its buyers' tokens (HS256): buyers are made up.
    #[arg(long, value_name = "SECRET", env = "STAMPEDE_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// A file with one token per line, made by the shop.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Everybody logs in at a server in demo mode.
    #[arg(long)]
    demo_login: bool,
}

/// Who comes.
#[derive(Debug, Args)]
pub struct CrowdArgs {
    /// How many buyers come.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=BUYERS_MAX))]
    pub buyers: u32,
    /// All first tries are due within this time after the opening, such as 10s; the scenario says by which curve.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub within: Option<Duration>,
    /// A scenario file, or the name of a shipped one (`stampede scenarios`).
    #[arg(long, value_name = "FILE or NAME", default_value = "spike")]
    scenario: String,
    /// Sockets at a time. A crowd shares them; each is an open file here and at the server.
    #[arg(long, value_name = "N", default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    connections: u32,
    /// Names of made-up buyers begin so; by default with something nobody else has.
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// The same seed makes the same choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keeps everything that was asked and told, for `stampede check`.
    #[arg(long, value_name = "FILE")]
    pub history: Option<PathBuf>,
}

/// More would not fit in the memory of a usual machine.
const BUYERS_MAX: i64 = 5_000_000;

fn parse_sale(text: &str) -> Result<SaleId, String> {
    text.parse().map_err(|_| "this is no id of a sale; the operator's list shows them".to_owned())
}

impl Target {
    /// A visit of the sale by this crowd. Must be called inside a tokio runtime.
    pub async fn visit(&self, crowd: &CrowdArgs, alone: bool, quiet: bool) -> anyhow::Result<Visit> {
        let scenario = crowd.load()?;
        if let Some(file) = &crowd.history {
            check_writable(file)?;
        }
        let address = Address::find(&self.url).await?;
        let desk = Desk::new(address.clone(), None);
        Ok(Visit {
            desk,
            operator: self.operator().await?,
            sale: self.sale,
            tokens: self.buyers_are.tokens()?,
            name: crowd.name.clone().unwrap_or_else(new_name),
            buyers: crowd.buyers,
            connections: usize::try_from(crowd.connections)?,
            seed: crowd.seed,
            command: crowd.command(&address.url, self.sale, &scenario),
            scenario,
            address,
            alone,
            quiet,
        })
    }

    /// The operator's side, if there is a key.
    pub async fn operator(&self) -> anyhow::Result<Option<Desk>> {
        let Some(key) = &self.admin_key else { return Ok(None) };
        let address = Address::find(self.admin_url.as_deref().unwrap_or(&self.url)).await?;
        Ok(Some(Desk::new(address, Some(key.clone()))))
    }
}

/// Buyers of an earlier night have orders, and would be told so.
fn new_name() -> String {
    format!("stampede-{:08x}-", rand::rng().random::<u32>())
}

impl CrowdArgs {
    fn load(&self) -> anyhow::Result<Loaded> {
        let mut loaded = load(&self.scenario)?;
        if let Some(within) = self.within {
            loaded.scenario.arrival.within = within;
        }
        Ok(loaded)
    }

    fn command(&self, url: &str, sale: SaleId, scenario: &Loaded) -> String {
        let Self { buyers, connections, seed, .. } = self;
        let within = scenario.scenario.arrival.within.as_millis();
        let name = &scenario.name;
        format!(
            "stampede run --url {url} --sale {sale} --scenario {name} --buyers {buyers} --within {within}ms \
             --connections {connections} --seed {seed}"
        )
    }

    /// Keeps the night, if that was asked for.
    pub fn keep(&self, record: &Record) -> anyhow::Result<()> {
        self.history.as_deref().map_or(Ok(()), |file| record.write(file))
    }
}

impl BuyersAre {
    fn tokens(&self) -> anyhow::Result<Tokens> {
        match self {
            Self { secret: Some(secret), .. } => Ok(Tokens::Signed { secret: secret.clone().into_bytes() }),
            Self { tokens: Some(file), .. } => read_tokens(file),
            Self { demo_login: true, .. } => Ok(Tokens::Demo),
            _ => bail!("say how buyers prove who they are: --secret, --tokens or --demo-login"),
        }
    }
}

fn read_tokens(file: &Path) -> anyhow::Result<Tokens> {
    #[derive(Deserialize)]
    struct Claims {
        sub: String,
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let mut tokens = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        // Whether it is valid is for the server to say; here only the name is needed.
        let claims: Claims = jsonwebtoken::dangerous::insecure_decode_claims(line.trim())
            .with_context(|| format!("line {} of {} is no token with a `sub`", number + 1, file.display()))?;
        tokens.push(GivenToken { buyer: claims.sub, token: line.trim().into() });
    }
    ensure!(!tokens.is_empty(), "{} holds no token; write one per line", file.display());
    Ok(Tokens::Given(Arc::from(tokens)))
}
