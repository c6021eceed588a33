//! `run`: a crowd for a sale that exists.

use clap::Args;

use super::Exit;
use super::options::{CrowdArgs, Target};
use super::outcome::{Judged, Output};

/// Lets a crowd loose on a sale, watches it, and judges what the buyers were told.
///
/// The sale must be published. If it is not open yet, the crowd waits for its opening by the server's clock. With the
/// operator's key the stock is shown and compared; without it only what the buyers were told is judged.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stampede run --url http://127.0.0.1:8080 --sale ID --buyers 3000 --secret $SECRET --admin-key $KEY
  stampede run --url http://127.0.0.1:8080 --sale ID --scenario bots --buyers 5000 --within 5s \\
      --report night.html --json night.json --history night.jsonl
  stampede run --url http://127.0.0.1:8080 --sale ID --scenario mine.toml --buyers 200 --tokens tokens.txt")]
pub struct Run {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    crowd: CrowdArgs,
    /// Others buy in this sale too: compare only what holds in any company.
    #[arg(long)]
    not_alone: bool,
    #[command(flatten)]
    output: Output,
}

impl Run {
    pub async fn run(self) -> anyhow::Result<Exit> {
        self.output.check()?;
        let visit = self.target.visit(&self.crowd, !self.not_alone, self.output.is_silent()).await?;
        let record = Box::pin(visit.perform()).await?;
        self.crowd.keep(&record)?;
        let judged = Judged::of(record);
        self.output.give(&judged, None)?;
        Ok(judged.exit())
    }
}
