//! `completions`: what a shell needs to complete our commands.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::{Cli, Exit};
use crate::say;

/// Prints completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stampede completions bash > ~/.local/share/bash-completion/completions/stampede
  stampede completions zsh  > ~/.zfunc/_stampede")]
pub struct Completions {
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "stampede", &mut script);
        say::answer(String::from_utf8(script)?.trim_end());
        Ok(Exit::Clean)
    }
}
