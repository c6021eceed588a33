//! `preheat`: lets the gate know a published sale before its crowd does.

use clap::Args;
use rules::id::SaleId;
use serde_json::{Value, json};

use super::client::unless_found;
use super::reach::{Access, ReachOptions};
use super::sale::no_sale;
use super::{Exit, say};

/// Loads a published sale into the gate; publishing does it by itself, and again is harmless.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster preheat 01m7h12ebbvd5va6f5pvjryvdn")]
pub struct Preheat {
    sale: SaleId,
    #[command(flatten)]
    reach: ReachOptions,
}

impl Preheat {
    pub async fn run(self) -> anyhow::Result<Exit> {
        let reached = self.reach.reach(Access::Change).await?;
        let path = format!("/admin/v1/sales/{}/preheat", self.sale);
        let answered: anyhow::Result<Value> = reached.client.post(&path, &json!({})).await;
        reached.leave().await?;
        let answer = answered.map_err(|error| unless_found(error, &no_sale(self.sale)))?;
        say::answer(&if self.reach.json { answer.to_string() } else { sentence(&answer) });
        Ok(Exit::Done)
    }
}

fn sentence(answer: &Value) -> String {
    let count = |name| answer.get(name).and_then(Value::as_u64).unwrap_or_default();
    match (count("offers"), count("seeded")) {
        (offers, 0) => format!("The gate knew all {offers} offers already; nothing was changed."),
        (offers, seeded) => format!("The gate knows all {offers} offers now, {seeded} of them new."),
    }
}
