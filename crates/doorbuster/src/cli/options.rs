//! The flags with which every command that needs settings finds them. What the settings mean is not known here.

use std::path::PathBuf;

use clap::Args;
use doorbuster::config::{ConfigError, Settings, Warning, Wrong};

use super::say;

#[derive(Clone, Debug, Args)]
pub struct SettingsOptions {
    /// The settings file; `doorbuster config default` prints one with every name explained.
    #[arg(long, value_name = "FILE", env = "DOORBUSTER_CONFIG", global = true)]
    pub config: Option<PathBuf>,
    /// Sets one value, by the name it has in the settings file; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE", global = true)]
    pub set: Vec<String>,
    /// The folder with the ledger and the journal.
    #[arg(long, value_name = "DIR", global = true)]
    pub data_dir: Option<String>,
}

impl SettingsOptions {
    /// Defaults, then the file, then the environment, then flags; `more` are flags of one command.
    pub fn load(&self, more: &[String]) -> Result<Settings, ConfigError> {
        Settings::load(self.config.as_deref(), environment(), &self.flags(more))
    }

    /// The same, for whoever starts a server with them: all that is wrong at once.
    pub fn load_checked(&self, more: &[String]) -> Result<(Settings, Vec<Warning>), Wrong> {
        Settings::load_checked(self.config.as_deref(), environment(), &self.flags(more))
    }

    fn flags(&self, more: &[String]) -> Vec<String> {
        let folder = self.data_dir.iter().map(|folder| format!("data_dir={folder}"));
        self.set.iter().cloned().chain(folder).chain(more.iter().cloned()).collect()
    }
}

/// Says what was hardly meant, where it does not disturb what is printed.
pub fn warn_of(warnings: &[Warning]) {
    warnings.iter().for_each(|warning| say::complain(&format!("warning: {warning}")));
}

/// What is no text cannot be a setting of ours.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}
