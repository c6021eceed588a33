//! Options that several commands share: where the server is, who the buyers are, how many come.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::builder::{PathBufValueParser, TypedValueParser as _};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches};
use rand::RngExt as _;
use rules::buyer::BUYER_BYTES_MAX;
use rules::id::SaleId;
use serde::Deserialize;

use super::outcome::{a_file, check_writable};
use crate::crowd::{GivenToken, Tokens};
use crate::desk::{Address, Desk};
use crate::record::Record;
use crate::scenario::{Loaded, load};
use crate::visit::{SILENT_MAX, Visit};
use crate::words::parse_time;

/// Where, and as whom.
#[derive(Debug, Args)]
pub struct Target {
    /// The server, such as http://127.0.0.1:8080.
    #[arg(long, value_name = "URL")]
    pub url: String,
    /// The operator's listener, if it has one of its own.
    #[arg(long, value_name = "URL", requires = "admin_key")]
    admin_url: Option<String>,
    /// The sale's id.
    #[arg(long, value_name = "ID", value_parser = parse_sale)]
    pub sale: SaleId,
    /// The operator's key: with it the stock is compared and shown.
    #[arg(long, value_name = "KEY", env = "STAMPEDE_ADMIN_KEY", hide_env_values = true, value_parser = parse_key)]
    admin_key: Option<String>,
    #[command(flatten)]
    buyers_are: BuyersAre,
}

/// How buyers prove who they are.
#[derive(Debug)]
enum BuyersAre {
    /// Made up here, or by the demo.
    MadeUp(Tokens),
    /// Known by the tokens in this file.
    InFile(PathBuf),
}

/// The ways to say it. A secret in the environment is for whenever none of them is said, so clap must not count it as
/// one that excludes the others.
#[derive(Debug, Args)]
#[group(required = true, multiple = true)]
struct Ways {
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

/// What is signed beside the name.
#[derive(Debug, Args)]
#[group(skip)]
struct SignedFor {
    /// The issuer (`iss`) in tokens made with --secret; needed where the server sets `auth.issuer`.
    #[arg(long, value_name = "TEXT")]
    issuer: Option<String>,
    /// The audience (`aud`) in tokens made with --secret; needed where the server sets `auth.audience`.
    #[arg(long, value_name = "TEXT")]
    audience: Option<String>,
}

impl Args for BuyersAre {
    fn augment_args(command: clap::Command) -> clap::Command {
        SignedFor::augment_args(Ways::augment_args(command))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for BuyersAre {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let Ways { secret, tokens, demo_login } = Ways::from_arg_matches(matches)?;
        let SignedFor { issuer, audience } = SignedFor::from_arg_matches(matches)?;
        let said = |way: &&str| matches.value_source(way) == Some(ValueSource::CommandLine);
        let ways = ["secret", "tokens", "demo_login"].iter().filter(|way| said(way)).count();
        let wrong = |kind, sentence| Err(clap::Error::raw(kind, sentence));
        if ways > 1 {
            return wrong(
                ErrorKind::ArgumentConflict,
                "give only one of --secret, --tokens and --demo-login",
            );
        }
        let made_elsewhere = tokens.is_some() || demo_login;
        if made_elsewhere && (issuer.is_some() || audience.is_some()) {
            let sentence = "--issuer and --audience are signed with --secret; other tokens have their own";
            return wrong(ErrorKind::ArgumentConflict, sentence);
        }
        match (tokens, secret.filter(|secret| !secret.is_empty())) {
            (Some(file), _) => Ok(Self::InFile(file)),
            (None, _) if demo_login => Ok(Self::MadeUp(Tokens::Demo)),
            (None, Some(secret)) => {
                Ok(Self::MadeUp(Tokens::Signed { secret: secret.into_bytes(), issuer, audience }))
            }
            (None, None) => wrong(
                ErrorKind::MissingRequiredArgument,
                "the secret is empty; give --secret, --tokens or --demo-login",
            ),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
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
    #[arg(long, value_name = "TEXT", value_parser = parse_name)]
    name: Option<String>,
    /// The same seed makes the same choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Keeps everything that was asked and told, for `stampede check`.
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(a_file))]
    pub history: Option<PathBuf>,
}

/// More would not fit in the memory of a usual machine.
const BUYERS_MAX: i64 = 5_000_000;
/// Digits of the highest number behind a made-up name.
const NUMBER_BYTES_MAX: usize = 7;

fn parse_sale(text: &str) -> Result<SaleId, String> {
    text.parse().map_err(|_| "this is no id of a sale; the operator's list shows them".to_owned())
}

/// A key goes into a header, where nothing else may come in with it.
fn parse_key(text: &str) -> Result<String, &'static str> {
    let sound = text.chars().all(|letter| letter.is_ascii() && !letter.is_ascii_control());
    if sound { Ok(text.to_owned()) } else { Err("a key has no line breaks and only ASCII letters") }
}

fn parse_name(text: &str) -> Result<String, String> {
    let max = BUYER_BYTES_MAX - NUMBER_BYTES_MAX;
    if text.len() <= max && !text.contains(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err(format!("a name has at most {max} bytes and no line breaks: the server takes no others"))
    }
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
            notes: Vec::new(),
            name: crowd.name.clone().unwrap_or_else(new_name),
            buyers: crowd.buyers,
            connections: usize::try_from(crowd.connections)?,
            seed: crowd.seed,
            command: crowd.command(&address.url, self.sale, &scenario),
            scenario,
            address,
            bears: SILENT_MAX,
            alone,
            quiet,
        })
    }

    /// The operator's side, if there is a key.
    pub async fn operator(&self) -> anyhow::Result<Option<Desk>> {
        // A variable that is set to nothing is none.
        let Some(key) = self.admin_key.as_ref().filter(|key| !key.is_empty()) else { return Ok(None) };
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
            Self::MadeUp(tokens) => Ok(tokens.clone()),
            Self::InFile(file) => read_tokens(file),
        }
    }
}

fn read_tokens(file: &Path) -> anyhow::Result<Tokens> {
    #[derive(Deserialize)]
    struct Claims {
        sub: String,
    }
    let text = std::fs::read_to_string(file).with_context(|| format!("{} cannot be read", file.display()))?;
    let (mut tokens, mut lines) = (Vec::new(), HashMap::new());
    // Some editors begin a file with a mark that no server would take for part of a token.
    let text = text.trim_start_matches('\u{feff}');
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        // Whether it is valid is for the server to say; here only the name is needed.
        let claims: Claims = jsonwebtoken::dangerous::insecure_decode_claims(line.trim())
            .with_context(|| format!("line {} of {} is no token with a `sub`", number + 1, file.display()))?;
        // Two people of one name would be told of each other's orders, and blame the shop for it.
        if let Some(first) = lines.insert(claims.sub.clone(), number + 1) {
            bail!(
                "line {} of {} is a token of `{}`, and so is line {first}; give each buyer one line",
                number + 1,
                file.display(),
                claims.sub
            );
        }
        tokens.push(GivenToken { buyer: claims.sub, token: line.trim().into() });
    }
    ensure!(!tokens.is_empty(), "{} holds no token; write one per line", file.display());
    Ok(Tokens::Given(Arc::from(tokens)))
}
