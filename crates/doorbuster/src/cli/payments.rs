//! `payments`: what an operator does about money, from a terminal or a script. It shows what the server answers; what
//! is allowed is decided there.

use clap::{Args, Subcommand};
use rules::id::{OrderId, PaymentId};
use rules::payment::State;
use rules::time::UnixMs;
use rules::wire::{OperatorOrder, PaymentView, RefundRequest};
use serde_json::{Value, json};

use super::client::{Client, unless_found};
use super::orders::no_order;
use super::reach::{Access, ReachOptions};
use super::table::{Lean, Table, listing, money};
use super::{Exit, say};

/// Lists payments, shows why money goes back, and returns it.
///
/// Talks to the server that runs on the data folder, to --server URL, or, when none runs, opens the folder itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster payments list --state refund_failed
  doorbuster payments list --order 01m7h12ebbvd5va6f5pvjryvdn --json
  doorbuster payments show 01m7h12ebb6w9scvfaw00tvy23
  doorbuster payments refund 01m7h12ebbvd5va6f5pvjryvdn --keep-units
  doorbuster payments retry 01m7h12ebb6w9scvfaw00tvy23")]
pub struct Payments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: ReachOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists payments, newest first.
    List {
        /// Only those of this order.
        #[arg(long)]
        order: Option<OrderId>,
        /// Only those in this state.
        #[arg(long, value_parser = State::ALL.map(State::as_str))]
        state: Option<String>,
        /// At most so many.
        #[arg(long, value_name = "N", default_value_t = 1_000)]
        limit: usize,
    },
    /// Shows one payment.
    Show { payment: PaymentId },
    /// Returns the money of a paid order; its units go back on sale once the money is back.
    Refund {
        order: OrderId,
        /// Takes the units out of the stock instead of selling them again.
        #[arg(long)]
        keep_units: bool,
    },
    /// Tries again to return money that the provider refused to return.
    Retry { payment: PaymentId },
}

impl Command {
    fn access(&self) -> Access {
        match self {
            Self::List { .. } | Self::Show { .. } => Access::Look,
            Self::Refund { .. } | Self::Retry { .. } => Access::Change,
        }
    }

    /// What to say when what it names is not there.
    fn not_found(&self) -> String {
        match self {
            Self::Show { payment } | Self::Retry { payment } => format!(
                "There is no payment with the id {payment}. `doorbuster payments list` shows those that there are."
            ),
            Self::Refund { order, .. } => no_order(*order),
            Self::List { .. } => "There is nothing to list.".to_owned(),
        }
    }
}

impl Payments {
    pub async fn run(self) -> anyhow::Result<Exit> {
        let reached = self.reach.reach(self.command.access()).await?;
        let till = Till { client: &reached.client, json: self.reach.json };
        let done = till.run(&self.command).await;
        let done = done.map_err(|error| unless_found(error, &self.command.not_found()));
        let left = reached.leave().await;
        done?;
        left.map(|()| Exit::Done)
    }
}

struct Till<'a> {
    client: &'a Client,
    json: bool,
}

impl Till<'_> {
    async fn run(&self, command: &Command) -> anyhow::Result<()> {
        match command {
            Command::List { order, state, limit } => self.list(*order, state.as_deref(), *limit).await,
            Command::Show { payment } => self.show(&self.client.get(&path_of(*payment)).await?),
            Command::Refund { order, keep_units } => self.refund(*order, *keep_units).await,
            Command::Retry { payment } => {
                let path = format!("{}/retry", path_of(*payment));
                self.show(&self.client.post(&path, &json!({})).await?)
            }
        }
    }

    async fn list(&self, order: Option<OrderId>, state: Option<&str>, limit: usize) -> anyhow::Result<()> {
        let order = order.map(|order| format!("&order={order}")).unwrap_or_default();
        let state = state.map(|state| format!("&state={state}")).unwrap_or_default();
        let items: Vec<PaymentView> =
            self.client.list("/admin/v1/payments", &format!("{order}{state}"), limit).await?;
        say::answer(&listing(&items, self.json, "There are no such payments.", table));
        Ok(())
    }

    fn show(&self, payment: &Value) -> anyhow::Result<()> {
        if self.json {
            say::answer(&payment.to_string());
            return Ok(());
        }
        say::answer(&sheet(&serde_json::from_value(payment.clone())?));
        Ok(())
    }

    async fn refund(&self, order: OrderId, keep_units: bool) -> anyhow::Result<()> {
        let path = format!("/admin/v1/orders/{order}/refund");
        let asked = RefundRequest { restock: keep_units.then_some(false) };
        let answer: Value = self.client.post(&path, &serde_json::to_value(asked)?).await?;
        if self.json {
            say::answer(&answer.to_string());
            return Ok(());
        }
        let OperatorOrder { order, buyer } = serde_json::from_value(answer)?;
        let (state, total) = (order.state.as_str(), money(order.total));
        say::answer(&format!("{} of {buyer} is {state} ({total}).", order.id));
        if let Some(payment) = order.payment_id {
            say::answer(&format!("Next: doorbuster payments show {payment}"));
        }
        Ok(())
    }
}

fn path_of(payment: PaymentId) -> String {
    format!("/admin/v1/payments/{payment}")
}

fn table(payments: &[PaymentView]) -> String {
    let mut table = Table::new(&[
        ("PAYMENT", Lean::Left),
        ("ORDER", Lean::Left),
        ("PROVIDER", Lean::Left),
        ("AMOUNT", Lean::Right),
        ("STATE", Lean::Left),
        ("WHY IT GOES BACK", Lean::Left),
    ]);
    for payment in payments {
        table.row([
            payment.id.to_string(),
            payment.order_id.map_or_else(|| "-".to_owned(), |order| order.to_string()),
            payment.provider.clone(),
            money(payment.money),
            payment.state.as_str().to_owned(),
            payment.reason.map(|reason| reason.as_str().to_owned()).unwrap_or_default(),
        ]);
    }
    table.render()
}

fn sheet(payment: &PaymentView) -> String {
    let time = |at: Option<UnixMs>| at.map(|at| at.to_string());
    let reason = payment.reason.map(|reason| format!("{}: {}", reason.as_str(), reason.sentence()));
    let tries = (payment.attempts > 0).then(|| format!("{} to return it", payment.attempts));
    let lines = [
        ("order", payment.order_id.map(|order| order.to_string())),
        ("state", Some(payment.state.as_str().to_owned())),
        ("reason", reason),
        ("capture", payment.capture_id.clone()),
        ("started", time(Some(payment.started_at))),
        ("captured", time(payment.captured_at)),
        ("ended", time(payment.ended_at)),
        ("returned", payment.back_elsewhere.map(|back| format!("{} elsewhere", money(back)))),
        ("tries", tries),
        ("next try", time(payment.next_try_at)),
        ("problem", payment.problem.clone()),
        ("pay at", payment.pay_url.clone()),
    ];
    let head = format!("{}  {} at {}", payment.id, money(payment.money), payment.provider);
    let lines = lines.into_iter().filter_map(|(name, text)| Some(format!("{name:<9}{}", text?)));
    std::iter::once(head).chain(lines).collect::<Vec<_>>().join("\n")
}
