//! `check`: judges a night that was kept in a file.

use std::path::PathBuf;

use clap::Args;

use super::Exit;
use super::outcome::{Judged, Output};
use crate::record::Record;

/// Judges a kept history: compares all buyers with each other and with what the operator saw.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stampede run … --history night.jsonl
  stampede check night.jsonl
  stampede check night.jsonl --report night.html --json night.json")]
pub struct Check {
    /// The file that `run --history` or `rehearse --history` has written.
    #[arg(value_name = "HISTORY")]
    history: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Check {
    pub fn run(self) -> anyhow::Result<Exit> {
        self.output.check()?;
        let judged = Judged::of(Record::read(&self.history)?);
        self.output.give(&judged, None)?;
        Ok(judged.exit())
    }
}
