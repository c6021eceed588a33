//! `orders`: what was ordered, by whom, and how it stands, from a terminal or a script. It shows what the server answers;
//! orders are changed elsewhere (`payments refund`).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use clap::{Args, Subcommand};
use rules::buyer::BuyerId;
use rules::id::{OfferId, OrderId, SaleId};
use rules::order::{Reason, State};
use rules::time::UnixMs;
use rules::wire::OperatorOrder;
use serde_json::{Value, json};
use stampede::words::thousands;

use super::client::{Client, in_address, unless_found};
use super::reach::{Access, ReachOptions};
use super::table::{Lean, Table, listing, money};
use super::{Exit, say};

/// Finds, shows and exports orders.
///
/// What is still queued is found by `show` and `list --state queued`. Talks to the server that runs on the data folder, to
/// --server URL, or, when none runs, opens the folder itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster orders list --buyer ann
  doorbuster orders list --sale 01m7h12ebbvd5va6f5pvjryvdn --state awaiting_payment
  doorbuster orders show 01m7h12eefchxsys8mbnadytqv
  doorbuster orders export --sale 01m7h12ebbvd5va6f5pvjryvdn --out orders.csv")]
pub struct Orders {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: ReachOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists orders, newest first.
    List {
        #[command(flatten)]
        wanted: Wanted,
        /// At most so many.
        #[arg(long, value_name = "N", default_value_t = 1_000)]
        limit: usize,
    },
    /// Shows one order.
    Show { order: OrderId },
    /// Writes all orders that match as CSV, newest first, to standard output or a file. Amounts are in minor units.
    Export {
        #[command(flatten)]
        wanted: Wanted,
        /// The file to write; it appears once it is whole, and replaces one of this name.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
}

/// Which orders; everything that is given must match.
#[derive(Debug, Args)]
struct Wanted {
    /// Only those of this buyer.
    #[arg(long, value_parser = parse_buyer)]
    buyer: Option<BuyerId>,
    /// Only those of this sale.
    #[arg(long)]
    sale: Option<SaleId>,
    /// Only those of this offer.
    #[arg(long)]
    offer: Option<OfferId>,
    /// Only those in this state.
    #[arg(long, value_parser = State::ALL.map(State::as_str))]
    state: Option<String>,
}

impl Orders {
    pub async fn run(self) -> anyhow::Result<Exit> {
        if let Command::Export { out: None, .. } = &self.command {
            ensure!(
                !self.reach.json,
                "an export is CSV: leave --json out, or use `doorbuster orders list --json`"
            );
        }
        let reached = self.reach.reach(Access::Look).await?;
        let clerk = Clerk { client: &reached.client, json: self.reach.json };
        let done = clerk.run(&self.command).await;
        let left = reached.leave().await;
        done?;
        left.map(|()| Exit::Done)
    }
}

struct Clerk<'a> {
    client: &'a Client,
    json: bool,
}

impl Clerk<'_> {
    async fn run(&self, command: &Command) -> anyhow::Result<()> {
        match command {
            Command::List { wanted, limit } => self.list(wanted, *limit).await,
            Command::Show { order } => self.show(*order).await,
            Command::Export { wanted, out: None } => {
                let printed = self.client.download(&export_path(wanted), &mut std::io::stdout()).await;
                printed.or_else(|error| if has_left(&error) { Ok(()) } else { Err(error) })
            }
            Command::Export { wanted, out: Some(file) } => self.export(wanted, file).await,
        }
    }

    async fn list(&self, wanted: &Wanted, limit: usize) -> anyhow::Result<()> {
        let items: Vec<OperatorOrder> = self.client.list("/admin/v1/orders", &query(wanted), limit).await?;
        say::answer(&listing(&items, self.json, "There are no such orders.", table));
        Ok(())
    }

    async fn show(&self, order: OrderId) -> anyhow::Result<()> {
        let answer: anyhow::Result<Value> = self.client.get(&format!("/admin/v1/orders/{order}")).await;
        let answer = answer.map_err(|error| unless_found(error, &no_order(order)))?;
        if self.json {
            say::answer(&answer.to_string());
            return Ok(());
        }
        say::answer(&sheet(&serde_json::from_value(answer)?));
        Ok(())
    }

    /// Half a file must not look like a whole one: it gets its name at the end.
    async fn export(&self, wanted: &Wanted, file: &Path) -> anyhow::Result<()> {
        let cannot = || format!("{} cannot be written", file.display());
        let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mut part = tempfile::NamedTempFile::new_in(folder).with_context(cannot)?;
        self.client.download(&export_path(wanted), &mut part).await?;
        let orders = records(part.path()).with_context(cannot)?;
        part.persist(file).with_context(cannot)?;
        say::answer(&if self.json {
            json!({"file": file, "orders": orders}).to_string()
        } else {
            format!("{} orders are in {}.", thousands(orders), file.display())
        });
        Ok(())
    }
}

/// What to say of an order that is not there.
pub fn no_order(order: OrderId) -> String {
    format!("There is no order with the id {order}. `doorbuster orders list` shows those that there are.")
}

/// A reader who has left, such as `head`, is no reason to fail.
fn has_left(error: &anyhow::Error) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn export_path(wanted: &Wanted) -> String {
    format!("/admin/v1/orders/export.csv?{}", query(wanted).trim_start_matches('&'))
}

fn query(wanted: &Wanted) -> String {
    let Wanted { buyer, sale, offer, state } = wanted;
    let parts = [
        ("buyer", buyer.as_ref().map(|buyer| in_address(buyer.as_str()).to_string())),
        ("sale", sale.map(|sale| sale.to_string())),
        ("offer", offer.map(|offer| offer.to_string())),
        ("state", state.clone()),
    ];
    parts.into_iter().filter_map(|(name, text)| Some(format!("&{name}={}", text?))).collect()
}

/// Orders in an export: all records but the head.
fn records(file: &Path) -> anyhow::Result<u64> {
    let mut table = csv::Reader::from_path(file)?;
    let mut orders = 0_u64;
    for record in table.byte_records() {
        record?;
        orders += 1;
    }
    Ok(orders)
}

fn table(orders: &[OperatorOrder]) -> String {
    let mut table = Table::new(&[
        ("ORDER", Lean::Left),
        ("STATE", Lean::Left),
        ("WHY", Lean::Left),
        ("UNITS", Lean::Right),
        ("TOTAL", Lean::Right),
        ("MADE", Lean::Left),
        ("OFFER", Lean::Left),
        ("BUYER", Lean::Left),
    ]);
    for OperatorOrder { order, buyer } in orders {
        table.row([
            order.id.to_string(),
            order.state.as_str().to_owned(),
            order.reason.map(Reason::as_str).unwrap_or_default().to_owned(),
            order.quantity.to_string(),
            money(order.total),
            order.created_at.to_string(),
            order.offer_id.to_string(),
            buyer.clone(),
        ]);
    }
    table.render()
}

fn sheet(OperatorOrder { order, buyer }: &OperatorOrder) -> String {
    let time = |at: Option<UnixMs>| at.map(|at| at.to_string());
    let lines = [
        ("buyer", Some(buyer.clone())),
        ("state", Some(order.state.as_str().to_owned())),
        ("reason", order.reason.map(|reason| reason.as_str().to_owned())),
        ("units", Some(format!("{} at {}", order.quantity, money(order.price)))),
        ("sale", Some(order.sale_id.to_string())),
        ("offer", Some(order.offer_id.to_string())),
        ("made", time(Some(order.created_at))),
        ("pay by", time(order.pay_by)),
        ("paid", time(order.paid_at)),
        ("closed", time(order.closed_at)),
        ("refunded", time(order.refunded_at)),
        ("payment", order.payment_id.map(|payment| payment.to_string())),
    ];
    let head = format!("{}  {}", order.id, money(order.total));
    let lines = lines.into_iter().filter_map(|(name, text)| Some(format!("{name:<9}{}", text?)));
    std::iter::once(head).chain(lines).collect::<Vec<_>>().join("\n")
}

fn parse_buyer(text: &str) -> Result<BuyerId, String> {
    BuyerId::parse(text).map_err(|error| error.to_string())
}
