//! How operator commands reach a server: the one that runs, or, when none does, one inside this process on the same
//! data folder. Either way the command speaks HTTP, so there is one way to do each thing. The one inside does what the
//! command asks for and nothing else, and for a command that only looks it cannot change anything.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use clap::Args;
use doorbuster::app::Server;
use doorbuster::clock::Clock;
use doorbuster::config::Settings;
use secrecy::SecretString;
use stampede::words::thousands;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::client::{Client, throwaway_secret};
use super::options::{SettingsOptions, warn_of};
use super::run_file::{RunFile, url};
use super::say;
use super::serve::bind;

#[derive(Clone, Debug, Args)]
pub struct ReachOptions {
    /// The server to talk to. Default: the one that runs on the data folder; when none runs, the folder is opened.
    #[arg(long, value_name = "URL", env = "DOORBUSTER_SERVER", global = true)]
    server: Option<String>,
    /// The server's admin_key. Better in the environment than here, where other users of the machine see it.
    #[arg(long, value_name = "KEY", env = "DOORBUSTER_ADMIN_KEY", hide_env_values = true, global = true)]
    admin_key: Option<String>,
    /// Prints the server's JSON instead of a table.
    #[arg(long, global = true)]
    pub json: bool,
    #[command(flatten)]
    settings: SettingsOptions,
}

/// A server within reach.
#[derive(Debug)]
pub struct Reached {
    pub client: Client,
    inside: Option<Inside>,
}

#[derive(Debug)]
struct Inside {
    shutdown: CancellationToken,
    running: tokio::task::JoinHandle<anyhow::Result<()>>,
}

/// Where a command finds what it asks about.
#[derive(Debug)]
pub enum Found {
    Server(Client),
    /// No server runs on it, and there is a ledger.
    Folder(Box<Settings>),
}

/// What a command means to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Changes nothing in a folder, and tells nobody but whoever asks.
    Look,
    /// Whoever changes a folder without a server should see which one.
    Change,
}

impl ReachOptions {
    pub async fn reach(&self, access: Access) -> anyhow::Result<Reached> {
        let settings = match self.find().await? {
            Found::Server(client) => return Ok(Reached { client, inside: None }),
            Found::Folder(settings) => settings,
        };
        if access == Access::Change {
            let folder = whole(&settings.data_dir);
            say::complain(&format!(
                "No server runs: working on the data folder {} itself. What follows (money back, webhooks, deadlines) is \
                 done by the next server.",
                folder.display()
            ));
        }
        Box::pin(self.start_inside(access)).await
    }

    /// The server that is named or runs on the data folder; else the folder's settings. A folder without a ledger is
    /// refused: a typing mistake must not begin a new shop.
    pub async fn find(&self) -> anyhow::Result<Found> {
        let settings = self.settings.load(&[])?;
        warn_of(&settings.unknown);
        let key = self.admin_key.clone().map(SecretString::from).or_else(|| settings.admin_key.clone());
        let run_file = RunFile::read(&settings.data_dir);
        if let Some(server) = &self.server {
            return Ok(Found::Server(Client::new(server, required(key)?)?));
        }
        if let Some(run_file) = run_file {
            let client = Client::new(&run_file.operator_url, key.clone().unwrap_or_default())?;
            if client.is_alive().await {
                required(key)?;
                return Ok(Found::Server(client));
            }
        }
        ensure!(
            settings.data_dir.is_dir() && settings.ledger_path().exists(),
            "no server runs on the data folder {}, and there is no ledger at {}. Name the folder with --data-dir DIR or \
             --config FILE, or a server with --server URL. `doorbuster serve` begins a new shop.",
            whole(&settings.data_dir).display(),
            whole(&settings.ledger_path()).display()
        );
        Ok(Found::Folder(Box::new(settings)))
    }

    /// Its secrets are made up: it serves this command and nobody else.
    async fn start_inside(&self, access: Access) -> anyhow::Result<Reached> {
        let key = throwaway_secret();
        let own = [
            "listen=127.0.0.1:0".to_owned(),
            "operator_listen=".to_owned(),
            format!("admin_key={key}"),
            format!("pass.secret={}", throwaway_secret()),
            format!("auth.hs256_secret={}", throwaway_secret()),
            "auth.jwks=".to_owned(),
            "edge_threads=1".to_owned(),
        ];
        let settings: Settings = self.settings.load(&own)?;
        if let Err(problems) = settings.check() {
            let sentences: Vec<String> = problems.iter().map(ToString::to_string).collect();
            bail!("{}", sentences.join("\n"));
        }
        let (listener, address) = bind("listen", &settings.listen)?;
        let (shutdown, clock) = (CancellationToken::new(), Clock::system());
        let server = match access {
            Access::Look => Server::start_to_look(settings, clock, listener, shutdown.clone()).await?,
            Access::Change => Server::start_to_change(settings, clock, listener, shutdown.clone()).await?,
        };
        if access == Access::Look {
            tell_of_waiting(server.app.queue_stats().depth);
        }
        let running = TaskTracker::new().spawn(server.until_the_end());
        let client = Client::new(&url(address), SecretString::from(key))?;
        Ok(Reached { client, inside: Some(Inside { shutdown, running }) })
    }
}

impl Reached {
    /// Whether the server is one inside this process.
    pub fn is_inside(&self) -> bool {
        self.inside.is_some()
    }

    /// Lets a server inside this process end in order.
    pub async fn leave(self) -> anyhow::Result<()> {
        let Self { client, inside } = self;
        drop(client);
        let Some(Inside { shutdown, running }) = inside else { return Ok(()) };
        shutdown.cancel();
        running.await?
    }
}

/// Whoever looks at lists should know what is not in them.
fn tell_of_waiting(claims: u64) {
    if claims > 0 {
        say::complain(&format!(
            "Claims that wait in the journal: {}. `sale stats` counts them as held; lists have them once the next server has \
             recorded them.",
            thousands(claims)
        ));
    }
}

fn required(key: Option<SecretString>) -> anyhow::Result<SecretString> {
    match key {
        Some(key) => Ok(key),
        None => bail!(
            "the server wants its admin key: set DOORBUSTER_ADMIN_KEY, give --admin-key, or name the settings file that \
             holds it with --config FILE"
        ),
    }
}

/// The path as seen from everywhere.
fn whole(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}
