//! `cargo xtask bench`: builds the product as users build it and measures it. What is measured, and how, is in the
//! benchmark itself.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::process;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Passed on to the benchmark: `--quick`, `--json FILE`, `--only GROUP`, `--repetitions N`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pass_on: Vec<String>,
}

pub fn run(root: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["bench", "--package", "doorbuster", "--bench", "figures", "--"]);
    command.args(&args.pass_on);
    process::show(&mut command)?;
    Ok(ExitCode::SUCCESS)
}
