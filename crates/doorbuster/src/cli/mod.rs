//! The command line: what can be asked, and the exit code of each answer. Each command is a file of its own.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The same settings for every command that needs them.
mod options;

/// Words on standard output and standard error.
mod say;

/// Where a running server says that it runs.
mod run_file;

/// The two ways a process is asked to end.
mod signals;

mod serve;

/// A flash-sale ordering engine: never oversells, never strands a unit, answers at once, forgets nobody.
#[derive(Debug, Parser)]
#[command(name = "doorbuster", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a promise is violated.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves sales until it is told to stop.
    Serve(serve::Serve),
}

/// How a command that did not fail ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Done,
    /// It has already said why.
    Failed,
}

/// Reads the arguments; wrong ones end the process with code 2 and a hint.
pub fn parse() -> Cli {
    Cli::parse()
}

/// Does what was asked and answers with the code to exit with.
pub async fn run(cli: Cli) -> ExitCode {
    let ended = match cli.command {
        Command::Serve(command) => command.run().await,
    };
    match ended {
        Ok(Exit::Done) => ExitCode::SUCCESS,
        Ok(Exit::Failed) => ExitCode::FAILURE,
        Err(error) => failed(&error),
    }
}

/// Says why it did not work.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    say::complain(&format!("doorbuster: {error:#}"));
    ExitCode::FAILURE
}
