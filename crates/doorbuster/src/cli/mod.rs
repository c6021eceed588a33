//! The command line: what can be asked, and the exit code of each answer. Each command is a file of its own.

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use stampede::say;

/// The same settings for every command that needs them.
mod options;

/// Where a running server says that it runs.
mod run_file;

/// The two ways a process is asked to end.
mod signals;

/// The operator's HTTP interface.
mod client;

/// The way to a server: one that runs, or one inside this process.
mod reach;

/// Money and tables for people.
mod table;

/// What `--help` shows of commands within commands.
mod examples;

mod audit;
mod blocks;
mod completions;
mod config;
mod demo;
mod events;
mod migrate;
mod openapi;
mod orders;
mod payments;
mod preheat;
mod sale;
mod serve;
mod webhooks;

/// A flash-sale ordering engine: never oversells, never strands a unit, answers at once, forgets nobody.
#[derive(Debug, Parser)]
#[command(name = "doorbuster", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The exit code for a promise that was not kept.
const VIOLATED: u8 = 3;

const EXAMPLES: &str = "\
Examples:
  doorbuster demo                         a whole sale with a crowd, nothing to install
  doorbuster config default > shop.toml   every setting, explained
  doorbuster serve --config shop.toml     the real thing
  doorbuster sale create night.json       a sale on the server that runs
  doorbuster events tail                  what happens, as it happens

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a promise is violated.";

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::Demo),
    Serve(serve::Serve),
    Sale(sale::Sale),
    Preheat(preheat::Preheat),
    Orders(orders::Orders),
    Payments(payments::Payments),
    Blocks(blocks::Blocks),
    Events(events::Events),
    Webhooks(webhooks::Webhooks),
    Audit(audit::Audit),
    Migrate(migrate::Migrate),
    Config(config::Config),
    #[command(name = "openapi")]
    OpenApi(openapi::OpenApi),
    Completions(completions::Completions),
}

/// How a command that did not fail ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Done,
    /// It has already said why.
    Failed,
    /// A promise of the product was not kept.
    Violated,
}

/// Reads the arguments; wrong ones end the process with code 2 and a hint.
pub fn parse() -> Cli {
    Cli::from_arg_matches(&tree().get_matches()).unwrap_or_else(|error| error.exit())
}

/// All commands, as people see them.
fn tree() -> clap::Command {
    examples::added_to(Cli::command())
}

/// Does what was asked and answers with the code to exit with.
pub async fn run(cli: Cli) -> ExitCode {
    let ended = match cli.command {
        Command::Demo(command) => command.run().await,
        Command::Serve(command) => Box::pin(command.run()).await,
        Command::Sale(command) => command.run().await,
        Command::Preheat(command) => command.run().await,
        Command::Orders(command) => command.run().await,
        Command::Payments(command) => command.run().await,
        Command::Blocks(command) => command.run().await,
        Command::Events(command) => command.run().await,
        Command::Webhooks(command) => command.run().await,
        Command::Audit(command) => command.run().await,
        Command::Migrate(command) => command.run().await,
        Command::Config(command) => command.run(),
        Command::OpenApi(command) => command.run(),
        Command::Completions(command) => command.run(),
    };
    match ended {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Failed) => ExitCode::FAILURE,
        Ok(Exit::Violated) => ExitCode::from(VIOLATED),
        Err(error) => failed(&error),
    }
}

/// Says why it did not work.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    say::complain(&format!("doorbuster: {error:#}"));
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &mut clap::Command, path: &str) {
        let help = command.render_long_help().to_string();
        assert!(help.contains("Examples:\n") && help.contains(&format!("  {path}")), "{path}: {help}");
        for inner in command.get_subcommands_mut().filter(|inner| inner.get_name() != "help") {
            let path = format!("{path} {}", inner.get_name());
            check(inner, &path);
        }
    }

    #[test]
    fn help_has_examples_everywhere() {
        let mut all = tree();
        all.build();
        check(&mut all, "doorbuster");
    }

    /// An example that does not work is worse than none.
    #[test]
    fn every_example_is_understood() {
        fn examples(command: &clap::Command, into: &mut Vec<String>) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            into.extend(
                help.lines().filter_map(|line| line.strip_prefix("  doorbuster ")).map(str::to_owned),
            );
            command.get_subcommands().for_each(|inner| examples(inner, into));
        }
        let mut all = Vec::new();
        examples(&tree(), &mut all);
        assert!(all.len() > 40, "{all:?}");
        for example in all {
            // Without what the shell takes, and what the first help says behind each.
            let words = example.split(['|', '>', '<']).next().unwrap_or_default();
            let words = words.split("   ").next().unwrap_or_default().replace('\'', "");
            let words = std::iter::once("doorbuster").chain(words.split_whitespace());
            if let Err(error) = tree().try_get_matches_from(words) {
                panic!("{example}: {error}");
            }
        }
    }
}
