//! `config`: what is set, whether it makes sense, and what could be set.

use clap::{Args, Subcommand};
use doorbuster::config::{DEFAULT_TOML, Wrong};
use serde_json::json;

use super::options::{SettingsOptions, warn_of};
use super::{Exit, say};

/// Checks and shows settings.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster config default > shop.toml
  doorbuster config check --config shop.toml --json
  doorbuster config print --config shop.toml --set limits.in_flight=8192")]
pub struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Says what is wrong, all at once; nothing is started or opened.
    Check(Options),
    /// Prints what is in force, as TOML; secrets are shown as "(set)".
    Print(Options),
    /// Prints the default settings, every one explained: a file to begin with.
    Default,
}

#[derive(Debug, Args)]
struct Options {
    #[command(flatten)]
    settings: SettingsOptions,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

impl Config {
    pub fn run(self) -> anyhow::Result<Exit> {
        match self.command {
            Command::Check(options) => Ok(check(&options)),
            Command::Print(options) => print(&options),
            Command::Default => {
                say::answer(DEFAULT_TOML.trim_end());
                Ok(Exit::Done)
            }
        }
    }
}

fn print(options: &Options) -> anyhow::Result<Exit> {
    let settings = options.settings.load(&[])?;
    warn_of(&settings.unknown);
    if options.json {
        say::answer(&serde_json::to_string(&settings)?);
    } else {
        say::answer(settings.effective_toml()?.trim_end());
    }
    Ok(Exit::Done)
}

/// Settings that cannot even be read are a problem like the others.
fn check(options: &Options) -> Exit {
    let (problems, warnings) = match options.settings.load_checked(&[]) {
        Ok((_, warnings)) => (Vec::new(), warnings),
        Err(Wrong { problems, warnings }) => (problems, warnings),
    };
    if options.json {
        say::answer(&json!({"problems": problems, "warnings": warnings}).to_string());
    } else {
        warn_of(&warnings);
        problems.iter().for_each(|problem| say::complain(&problem.to_string()));
        if problems.is_empty() {
            say::answer("The settings are complete; `doorbuster serve` would start with them.");
        }
    }
    if problems.is_empty() { Exit::Done } else { Exit::Failed }
}
