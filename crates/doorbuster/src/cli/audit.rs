//! `audit`: does everything fit together? Asks the server that runs, or looks into the data folder when none does.

use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use doorbuster::auditor::folder;
use doorbuster::clock::Clock;
use rules::id::{OfferId, SaleId};
use rules::wire::{AuditFinding, AuditRequest, AuditState, AuditView, Page};

use super::client::Client;
use super::reach::{Found, ReachOptions};
use super::table::listing;
use super::{Exit, say};

/// Between two looks at an audit that runs.
const ASK_EVERY: Duration = Duration::from_millis(500);

/// How long an audit may take, in looks: a quarter of an hour.
const ASKS_MAX: u32 = 1_800;

/// Compares gate, journal, ledger, money and events, and says what does not fit.
///
/// Ends with code 3 when something was found, also when it was mended: audit again to see that it is clean. Without a
/// running server the data folder is opened; there is no gate then, and the journal is compared instead.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster audit
  doorbuster audit --repair
  doorbuster audit --sale 01m7h12ebbvd5va6f5pvjryvdn --json
  doorbuster audit --last
What each finding means and what to do about it: docs/audit.md")]
pub struct Audit {
    /// Mends what is proven safe; the rest is named.
    #[arg(long)]
    repair: bool,
    /// Only this sale.
    #[arg(long, value_name = "ID")]
    sale: Option<SaleId>,
    /// Only this offer.
    #[arg(long, value_name = "ID")]
    offer: Option<OfferId>,
    /// Shows the last report instead of making one, or the last N, newest first; at most 200. The newest decides the code.
    #[arg(
        long, value_name = "N", num_args = 0..=1, default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=200), conflicts_with_all = ["repair", "sale", "offer"]
    )]
    last: Option<u32>,
    #[command(flatten)]
    reach: ReachOptions,
}

impl Audit {
    pub async fn run(self) -> anyhow::Result<Exit> {
        match self.last {
            Some(limit) => self.show_last(limit).await,
            None => self.make().await,
        }
    }

    async fn make(self) -> anyhow::Result<Exit> {
        let request = AuditRequest { repair: self.repair, sale_id: self.sale, offer_id: self.offer };
        let view = match self.reach.find().await? {
            Found::Server(client) => ask(&client, request).await?,
            Found::Folder(settings) => folder::audit(&settings, request, &Clock::system()).await?,
        };
        let text = if self.reach.json { serde_json::to_string(&view)? } else { words(&view) };
        say::answer(&text);
        Ok(exit_of(&view))
    }

    async fn show_last(self, limit: u32) -> anyhow::Result<Exit> {
        let views = match self.reach.find().await? {
            Found::Server(client) => {
                client.get::<Page<AuditView>>(&format!("/admin/v1/audit?limit={limit}")).await?.items
            }
            Found::Folder(settings) => folder::last(&settings, limit).await?,
        };
        let dated_all = |views: &[AuditView]| views.iter().map(dated).collect::<Vec<_>>().join("\n\n");
        let none = "No audit was made yet. `doorbuster audit` makes one.";
        let text = listing(&views, self.reach.json, none, dated_all);
        say::answer(&text);
        // Without a report nobody knows whether it is clean.
        Ok(views.first().map_or(Exit::Failed, exit_of))
    }
}

fn exit_of(view: &AuditView) -> Exit {
    match (view.state, view.clean) {
        (AuditState::Done, Some(true)) => Exit::Done,
        (AuditState::Done, _) => Exit::Violated,
        (AuditState::Running | AuditState::Failed, _) => Exit::Failed,
    }
}

/// Has the server make an audit, and waits for its end.
pub async fn ask(client: &Client, request: AuditRequest) -> anyhow::Result<AuditView> {
    let mut view: AuditView = client.post("/admin/v1/audit", &serde_json::to_value(request)?).await?;
    for _ in 0..ASKS_MAX {
        if view.state != AuditState::Running {
            return Ok(view);
        }
        tokio::time::sleep(ASK_EVERY).await;
        view = client
            .get(&format!("/admin/v1/audit/{}", view.id))
            .await
            .context("the audit was lost sight of")?;
    }
    bail!("audit {} is still running; ask for it with GET /admin/v1/audit/{}", view.id, view.id)
}

/// A report of some time ago: when, of what, and its words.
fn dated(view: &AuditView) -> String {
    let of = match (view.sale_id, view.offer_id) {
        (_, Some(offer)) => format!("offer {offer}"),
        (Some(sale), None) => format!("sale {sale}"),
        (None, None) => "everything".to_owned(),
    };
    let repair = if view.repair { ", with repair" } else { "" };
    format!("{}  audit {} of {of}{repair}\n{}", view.started_at, view.id, words(view))
}

fn words(view: &AuditView) -> String {
    let mut lines: Vec<String> = view.findings.iter().map(sentence).collect();
    if view.more > 0 {
        lines.push(format!("… and {} more.", view.more));
    }
    let found = u64::try_from(view.findings.len()).unwrap_or(u64::MAX).saturating_add(view.more);
    lines.push(match (&view.problem, found) {
        (Some(problem), _) => format!("The audit could not be finished: {problem}"),
        (None, 0) => format!("Clean: all fits together. Orders looked at: {}.", view.orders),
        (None, 1) => "1 discrepancy.".to_owned(),
        (None, found) => format!("{found} discrepancies."),
    });
    lines.join("\n")
}

fn sentence(finding: &AuditFinding) -> String {
    let offer = finding.offer_id.map_or_else(String::new, |offer| format!(" offer {offer}:"));
    let what = match &finding.todo {
        None => "mended".to_owned(),
        Some(todo) => todo.clone(),
    };
    format!("{}{offer} {}\n    {what}", say::Paint::red().on(finding.kind.as_str()), finding.detail)
}
