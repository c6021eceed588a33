//! `migrate`: brings the tables of a data folder up to date. `serve` does the same at its start; this does only that,
//! at a time of one's choosing. Where a server runs, it has been done.

use anyhow::{Context as _, ensure};
use clap::Args;
use doorbuster::app;
use doorbuster::config::Settings;
use secrecy::SecretString;
use serde_json::json;

use super::client::Client;
use super::options::{SettingsOptions, warn_of};
use super::run_file::RunFile;
use super::{Exit, say};

/// Brings the tables of the data folder up to date.
///
/// `serve` does this too when it starts, so there is nothing to do where a server runs. Again is harmless.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster migrate --data-dir /var/lib/doorbuster")]
pub struct Migrate {
    #[command(flatten)]
    settings: SettingsOptions,
    /// The server to ask. Default: the one that runs on the data folder; when none runs, the folder is opened.
    #[arg(long, value_name = "URL", env = "DOORBUSTER_SERVER")]
    server: Option<String>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

impl Migrate {
    pub async fn run(self) -> anyhow::Result<Exit> {
        let settings = self.settings.load(&[])?;
        warn_of(&settings.unknown);
        if let Some(server) = self.running(&settings).await? {
            say::answer(&if self.json {
                json!({"server": server}).to_string()
            } else {
                format!("{server} runs: it brought its tables up to date when it started.")
            });
            return Ok(Exit::Done);
        }
        let migrated = app::migrate(&settings)
            .await
            .with_context(|| format!("the data folder {} was not migrated", settings.data_dir.display()))?;
        let files = [("ledger", migrated.ledger), ("journal", migrated.journal)];
        if self.json {
            let files = files.map(|(name, (from, to))| (name.to_owned(), json!({"from": from, "to": to})));
            say::answer(&serde_json::Value::Object(files.into_iter().collect()).to_string());
            return Ok(Exit::Done);
        }
        for (name, (from, to)) in files {
            let to = to.unwrap_or_default();
            say::answer(&match from {
                None => format!("{name}: made, version {to}"),
                Some(from) if from == to => format!("{name}: already at version {to}"),
                Some(from) => format!("{name}: from version {from} to version {to}"),
            });
        }
        Ok(Exit::Done)
    }

    /// The server that is named or runs on the data folder.
    async fn running(&self, settings: &Settings) -> anyhow::Result<Option<String>> {
        let told = || RunFile::read(&settings.data_dir).map(|file| file.operator_url);
        let Some(url) = self.server.clone().or_else(told) else { return Ok(None) };
        let is_alive = Client::new(&url, SecretString::default())?.is_alive().await;
        ensure!(
            is_alive || self.server.is_none(),
            "no answer from {url}. Is it running, and is the address right?"
        );
        Ok(is_alive.then_some(url))
    }
}
