//! `scenarios`: what comes with the program.

use clap::Args;
use serde_json::json;

use super::Exit;
use crate::say::{self, Paint};
use crate::scenario::{SHIPPED, load};

/// Lists the scenarios that come with it, or prints one as a start for your own.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stampede scenarios
  stampede scenarios bots > mine.toml     then: stampede run --scenario mine.toml …")]
pub struct Scenarios {
    /// Print this one.
    name: Option<String>,
    /// For scripts.
    #[arg(long)]
    json: bool,
}

impl Scenarios {
    pub fn run(self) -> anyhow::Result<Exit> {
        if let Some(name) = self.name {
            let loaded = load(&name)?;
            if self.json {
                say::answer(&serde_json::to_string(&loaded.scenario)?);
            } else {
                say::answer(loaded.text.trim_end());
            }
            return Ok(Exit::Clean);
        }
        let mut list = Vec::new();
        for shipped in SHIPPED {
            let scenario = load(shipped.name)?.scenario;
            if !self.json {
                let name = Paint::bold().on(&format!("{:<18}", shipped.name));
                say::answer(&format!("{name} {}\n{:<18} {}", scenario.title, "", scenario.about));
            }
            list.push(json!({ "name": shipped.name, "title": scenario.title, "about": scenario.about }));
        }
        if self.json {
            say::answer(&serde_json::Value::from(list).to_string());
        }
        Ok(Exit::Clean)
    }
}
