//! `completions`: what a shell needs to complete our commands.

use clap::Args;
use clap_complete::Shell;

use super::{Exit, say, tree};

/// Prints completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster completions bash > ~/.local/share/bash-completion/completions/doorbuster
  doorbuster completions zsh  > ~/.zfunc/_doorbuster
  doorbuster completions fish > ~/.config/fish/completions/doorbuster.fish")]
pub struct Completions {
    shell: Shell,
}

impl Completions {
    pub fn run(self) -> anyhow::Result<Exit> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut tree(), "doorbuster", &mut script);
        say::answer(String::from_utf8(script)?.trim_end());
        Ok(Exit::Done)
    }
}
