//! The command line: what can be asked, and the exit code of each answer. Each command is a file of its own.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::say;

/// Options that several commands share.
mod options;

/// What is said and written after a night.
mod outcome;

mod check;
mod completions;
mod rehearse;
mod run;
mod scenarios;

/// A crowd for a flash sale: simulated buyers who know only the public API, and a judge of what they were told.
#[derive(Debug, Parser)]
#[command(name = "stampede", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  stampede scenarios                            what comes with it
  stampede rehearse --url http://127.0.0.1:8080 --sale ID --buyers 20000 --within 10s
  stampede run --url http://127.0.0.1:8080 --sale ID --scenario bots --buyers 5000 --report night.html
  stampede check night.jsonl                    judges a kept history again

The shop's secret and the operator's key can come from STAMPEDE_SECRET and STAMPEDE_ADMIN_KEY.

Exit codes: 0 clean, 1 a promise was broken or the rehearsal does not hold, 2 wrong usage or no answer.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Run>),
    Rehearse(Box<rehearse::Rehearse>),
    Check(check::Check),
    Scenarios(scenarios::Scenarios),
    Completions(completions::Completions),
}

/// How a command that did not fail ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Clean,
    /// A promise was not kept, or a rehearsal does not hold.
    Violated,
}

/// The exit code for whatever kept a command from being done.
const FAILED: u8 = 2;

/// Reads the arguments, the program's name first, does what was asked and answers with the code to exit with.
pub async fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help is an answer, not an error. A reader who has left is none either.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(FAILED) } else { ExitCode::SUCCESS };
        }
    };
    let ended = match cli.command {
        Command::Run(command) => Box::pin(command.run()).await,
        Command::Rehearse(command) => Box::pin(command.run()).await,
        Command::Check(command) => command.run(),
        Command::Scenarios(command) => command.run(),
        Command::Completions(command) => command.run(),
    };
    match ended {
        Ok(Exit::Clean) => ExitCode::SUCCESS,
        Ok(Exit::Violated) => ExitCode::FAILURE,
        Err(error) => failed(&error),
    }
}

/// Says why it did not work.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    say::complain(&format!("stampede: {error:#}"));
    ExitCode::from(FAILED)
}
