//! `preheat`: lets the gate know a published sale before its crowd does.

use clap::Args;
use serde_json::{Value, json};

use super::reach::{Folder, ReachOptions};
use super::{Exit, say};

/// Loads a published sale into the gate; publishing does it by itself, and again is harmless.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster preheat 06FJ2Q7Z0V5N8M3K1T4R6W9XYA")]
pub struct Preheat {
    sale: String,
    #[command(flatten)]
    reach: ReachOptions,
}

impl Preheat {
    pub async fn run(self) -> anyhow::Result<Exit> {
        let reached = self.reach.reach(Folder::MustExist).await?;
        let path = format!("/admin/v1/sales/{}/preheat", self.sale);
        let answered: anyhow::Result<Value> = reached.client.post(&path, &json!({})).await;
        reached.leave().await?;
        let answer = answered?;
        say::answer(&if self.reach.json { answer.to_string() } else { sentence(&answer) });
        Ok(Exit::Done)
    }
}

fn sentence(answer: &Value) -> String {
    let fields = answer.as_object().into_iter().flatten();
    let said: Vec<String> = fields
        .filter(|(_, value)| !value.is_object())
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    format!("preheated: {}", said.join(", "))
}
