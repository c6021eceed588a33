//! `config`: what is set, whether it makes sense, and what could be set.

use clap::{Args, Subcommand};
use doorbuster::config::DEFAULT_TOML;

use super::options::SettingsOptions;
use super::{Exit, say};

/// Checks and shows settings.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster config default > shop.toml
  doorbuster config check --config shop.toml
  doorbuster config print --config shop.toml --set limits.in_flight=8192")]
pub struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Says what is wrong, all at once; nothing is started or opened.
    Check(SettingsOptions),
    /// Prints what is in force, as TOML; secrets are shown as "(set)".
    Print(SettingsOptions),
    /// Prints the default settings, every one explained: a file to begin with.
    Default,
}

impl Config {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self.command {
            Command::Check(options) => check(&options),
            Command::Print(options) => {
                say::answer(options.load(&[])?.effective_toml()?.trim_end());
                Ok(Exit::Done)
            }
            Command::Default => {
                say::answer(DEFAULT_TOML.trim_end());
                Ok(Exit::Done)
            }
        }
    }
}

fn check(options: &SettingsOptions) -> anyhow::Result<Exit> {
    match options.load(&[])?.check() {
        Ok(warnings) => {
            warnings.iter().for_each(|warning| say::complain(&format!("warning: {warning}")));
            say::answer("The settings are complete; `doorbuster serve` would start with them.");
            Ok(Exit::Done)
        }
        Err(problems) => {
            problems.iter().for_each(|problem| say::complain(&problem.to_string()));
            Ok(Exit::Failed)
        }
    }
}
