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
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Threads that drive the crowd. One is the most frugal, and leaves the other cores to a server on the same machine.
    #[arg(long, global = true, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
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

/// Reads the arguments, the program's name first; wrong ones, and a wish for help, are answered with an exit code.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, ExitCode> {
    Cli::try_parse_from(args).map_err(|error| {
        // Help is an answer, not an error. A reader who has left is none either.
        let _ = error.print();
        if error.use_stderr() { ExitCode::from(FAILED) } else { ExitCode::SUCCESS }
    })
}

/// [`parse`] and [`Cli::run`], on whatever runtime is there.
pub async fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match parse(args) {
        Ok(cli) => cli.run().await,
        Err(code) => code,
    }
}

impl Cli {
    /// How many threads the runtime should have.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.into()
    }

    /// Does what was asked and answers with the code to exit with.
    pub async fn run(self) -> ExitCode {
        let ended = match self.command {
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
}

/// Says why it did not work.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    say::complain(&format!("stampede: {error:#}"));
    ExitCode::from(FAILED)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::fake::{FakeShop, Manners, SECRET};

    async fn night(manners: Manners, more: &[&str]) -> String {
        let shop = FakeShop::open(manners);
        let (url, sale) = (format!("http://{}", shop.addr()), shop.sale().to_string());
        let secret = String::from_utf8(SECRET.to_vec()).unwrap();
        let mut args =
            vec!["stampede", "run", "--url", &url, "--sale", &sale, "--secret", &secret, "--quiet"];
        args.extend(["--buyers", "40", "--within", "200ms", "--connections", "16", "--scenario"]);
        let scenario = std::env::temp_dir().join(format!("stampede-cli-{}.toml", std::process::id()));
        std::fs::write(&scenario, "title = \"t\"\n[arrival]\npages_ahead = \"200ms\"\n[[person]]\n").unwrap();
        let file = scenario.display().to_string();
        args.push(&file);
        args.extend(more);
        let code = run(args.iter().map(OsString::from)).await;
        format!("{code:?}")
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[tokio::test]
    async fn a_clean_night_exits_with_0_and_a_lie_with_1() {
        let key = ["--admin-key", "any key"];
        assert_eq!(night(Manners::default(), &key).await, format!("{:?}", ExitCode::SUCCESS));
        assert_eq!(night(Manners::default(), &[]).await, format!("{:?}", ExitCode::SUCCESS));
        let lie = Manners { oversells: true, ..Manners::default() };
        assert_eq!(night(lie, &key).await, format!("{:?}", ExitCode::FAILURE));
        let lie = Manners { forgets: true, ..Manners::default() };
        assert_eq!(night(lie, &[]).await, format!("{:?}", ExitCode::FAILURE));
    }
}
