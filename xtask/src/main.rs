//! The chores of this workspace, one file each. Knows the tools and the folders; knows nothing of the product.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a chore talks to the person who started it")]

mod bench;
mod install;
mod instructions;
mod process;
mod test;
mod tidy;
mod torture;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};

/// The chores of the Doorbuster workspace.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Everything a change must pass; what the build machine runs.
    Test(test::Args),
    /// The figures: ratios against a ceiling and rivals in one run, with the conditions beside them.
    Bench(bench::Args),
    /// The campaigns behind the daily tests: kills, breaking disks and storms with random seeds.
    Torture(torture::Args),
    /// The borders and house rules that no compiler checks.
    Tidy,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> anyhow::Result<ExitCode> {
    let root = workspace_root()?;
    match &cli.chore {
        Chore::Test(args) => test::run(&root, args),
        Chore::Bench(args) => bench::run(&root, args),
        Chore::Torture(args) => torture::run(&root, args),
        Chore::Tidy => tidy::run(&root),
    }
}

/// Cargo names the folder of this package when it starts it, so a moved checkout is found again.
fn workspace_root() -> anyhow::Result<PathBuf> {
    let package = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let root = package.parent().map(Path::to_owned);
    root.with_context(|| format!("{} has no parent folder", package.display()))
}
