//! Whether what the buyers were told holds together. It sees histories and what an operator can read over HTTP, never
//! the server's insides; so what it finds, a buyer or an operator could have found.
//!
//! It is fed after everything is quiet, with histories that end with a last look at each order.

/// Every way in which a shop can break its word.
mod finding;

/// One buyer's history against itself.
mod alone;

/// One order through all times it was shown.
mod life;

/// All histories against each other and against the operator's books.
mod together;

/// Every "sold out" against what may have been taken at its moment.
mod supply;

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use rules::id::OrderId;
use rules::time::UnixMs;
use rules::wire::{OperatorOrder, Stats};
use serde::{Deserialize, Serialize};

pub use self::finding::{Finding, Promise};
use crate::history::{History, Told, What};

/// What is judged. What is not there is not compared.
#[derive(Clone, Copy, Debug, Default)]
pub struct Evidence<'a> {
    pub histories: &'a [History],
    /// The zero of the histories' times.
    pub started_at: Option<UnixMs>,
    /// The operator's stats after everything was quiet.
    pub after: Option<&'a Stats>,
    /// The operator's stats before the crowd came, if nobody else has bought, paid or cancelled since. Without them
    /// others may have units too, and only what holds in any company is checked.
    pub alone_since: Option<&'a Stats>,
    /// All orders of the sale, as the operator lists them after everything was quiet.
    pub books: Option<&'a [OperatorOrder]>,
    /// The shop's own audit, where it has one.
    pub audit: Option<&'a Audit>,
    /// When the operator's side had been asked for the last time, by the server's clock: what was due to lapse by then
    /// may have.
    pub gathered_at: Option<UnixMs>,
    /// Everybody was sent home before the end: nobody looked once more, and who has no answer might have got one.
    pub broken_off: bool,
}

/// What the shop's own audit says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Audit {
    #[serde(default)]
    pub id: String,
    pub clean: bool,
    #[serde(default)]
    pub findings: Vec<AuditFinding>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditFinding {
    pub kind: String,
    #[serde(default)]
    pub detail: String,
}

/// All that does not hold together; empty is clean.
#[must_use]
pub fn judge(evidence: &Evidence<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    together::judge_owners(evidence.histories, &mut findings);
    match alone::strange_news(evidence) {
        strange if strange.is_empty() => judge_own(evidence, &mut findings),
        strange => {
            findings.extend(strange.iter().map(|(buyer, order)| {
                let (buyer, order) = ((*buyer).to_owned(), *order);
                Finding::StrangeNews { buyer, order }
            }));
            let histories: Vec<History> =
                evidence.histories.iter().map(|history| without(history, &strange)).collect();
            judge_own(&Evidence { histories: &histories, ..*evidence }, &mut findings);
        }
    }
    findings
}

/// Everybody's own orders.
fn judge_own(evidence: &Evidence<'_>, findings: &mut Vec<Finding>) {
    for history in evidence.histories {
        alone::judge(history, evidence, findings);
    }
    together::judge(evidence, findings);
}

/// The history without orders that were never this buyer's: whose they are, and what became of them, is told by others.
fn without(history: &History, strange: &BTreeSet<(&str, OrderId)>) -> History {
    let is_strange = |order: OrderId| strange.contains(&(history.buyer.as_str(), order));
    let own = |told: &&Told| match &told.what {
        What::Pushed { order } => !is_strange(order.id),
        What::Looked { id, .. } => !is_strange(*id),
        _ => true,
    };
    History { buyer: history.buyer.clone(), events: history.events.iter().filter(own).cloned().collect() }
}
