//! `migrate`: brings the tables of a data folder up to date. `serve` does the same at its start; this does only that,
//! at a time of one's choosing.

use anyhow::Context as _;
use clap::Args;
use doorbuster::app;

use super::options::SettingsOptions;
use super::{Exit, say};

/// Brings the tables of the data folder up to date.
///
/// `serve` does this too when it starts. A folder that a server uses is refused; again is harmless.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster migrate --data-dir /var/lib/doorbuster")]
pub struct Migrate {
    #[command(flatten)]
    settings: SettingsOptions,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

impl Migrate {
    pub async fn run(self) -> anyhow::Result<Exit> {
        let settings = self.settings.load(&[])?;
        let migrated = app::migrate(&settings)
            .await
            .with_context(|| format!("the data folder {} was not migrated", settings.data_dir.display()))?;
        let files = [("ledger", migrated.ledger), ("journal", migrated.journal)];
        if self.json {
            let files = files
                .map(|(name, (from, to))| (name.to_owned(), serde_json::json!({"from": from, "to": to})));
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
}
