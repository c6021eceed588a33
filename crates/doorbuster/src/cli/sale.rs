//! `sale`: what an operator does with sales, from a terminal or a script. It shows what the server answers; what is
//! allowed is decided there.

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use rules::id::{OfferId, SaleId};
use rules::money::Money;
use rules::sale::{Phase, SaleState};
use rules::wire::Stats;
use serde_json::{Value, json};
use stampede::words::thousands;

use super::client::{Client, random_text, unless_found};
use super::reach::{Access, ReachOptions};
use super::table::{Lean, Table, listing, money};
use super::{Exit, say, signals::Signals};

/// Between two looks of `stats --watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);

/// A sale file, for the help of whoever writes one.
pub const SALE_FILE: &str = "\
A sale file, times in UTC and money in minor units:
  {\"title\": \"1499 night\", \"opens_at\": \"2026-12-01T12:00:00Z\", \"closes_at\": \"2026-12-01T13:00:00Z\",
   \"offers\": [{\"name\": \"Feitian 53\", \"price\": {\"amount\": 149900, \"currency\": \"CNY\"}, \"stock\": 100}]}";

/// Makes, publishes and watches sales.
///
/// Talks to the server that runs on the data folder, to --server URL, or, when none runs, opens the folder itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster sale create night.json --publish
  doorbuster sale list
  doorbuster sale stats 01m7h12ebbvd5va6f5pvjryvdn --watch
  doorbuster sale stock 01m7h12ebb6w9scvfaw00tvy23 +50
`doorbuster sale create --help` shows a sale file.")]
pub struct Sale {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: ReachOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes a draft from a JSON file, or from standard input with "-".
    Create {
        /// The sale as JSON, as below; "-" reads standard input.
        #[arg(value_name = "SALE_FILE")]
        file: String,
        /// Publishes it at once.
        #[arg(long)]
        publish: bool,
    },
    /// Lists all sales, newest first.
    List,
    /// Shows one sale with its offers.
    Show { sale: SaleId },
    /// Shows it to buyers and loads it into the gate; it sells inside its window.
    Publish { sale: SaleId },
    /// Refuses orders for now; passes are still given.
    Pause { sale: SaleId },
    /// Goes on after a pause.
    Resume { sale: SaleId },
    /// Ends it for good; orders already made may still be paid.
    End { sale: SaleId },
    /// Shows live numbers: funnel, stock, queue.
    Stats {
        sale: SaleId,
        /// Again every second, until Ctrl-C.
        #[arg(long)]
        watch: bool,
    },
    /// Raises (+50) or lowers (-20) the stock of an offer, also during the sale.
    Stock {
        offer: OfferId,
        /// How many more or fewer: +50 or -20.
        #[arg(allow_hyphen_values = true, value_parser = parse_change)]
        change: i64,
        /// Names the change: the same name again changes nothing and answers what the first did.
        #[arg(long, value_name = "NAME")]
        change_id: Option<String>,
    },
    /// Deletes a draft.
    Delete { sale: SaleId },
}

impl Command {
    fn access(&self) -> Access {
        match self {
            Self::List | Self::Show { .. } | Self::Stats { .. } => Access::Look,
            Self::Create { .. }
            | Self::Publish { .. }
            | Self::Pause { .. }
            | Self::Resume { .. }
            | Self::End { .. }
            | Self::Stock { .. }
            | Self::Delete { .. } => Access::Change,
        }
    }

    /// What to say when what it names is not there.
    fn not_found(&self) -> String {
        match self {
            Self::Show { sale }
            | Self::Publish { sale }
            | Self::Pause { sale }
            | Self::Resume { sale }
            | Self::End { sale }
            | Self::Stats { sale, .. }
            | Self::Delete { sale } => no_sale(*sale),
            Self::Stock { offer, .. } => format!(
                "There is no offer with the id {offer}. `doorbuster sale list` shows the sales, `doorbuster sale show SALE` the \
                 offers of one."
            ),
            Self::Create { .. } | Self::List => "There is nothing here.".to_owned(),
        }
    }
}

/// What to say of a sale that is not there.
pub fn no_sale(sale: SaleId) -> String {
    format!("There is no sale with the id {sale}. `doorbuster sale list` shows those that there are.")
}

impl Sale {
    pub async fn run(self) -> anyhow::Result<Exit> {
        // Read before anything is opened: a file that is not there is the first thing to say.
        let draft = match &self.command {
            Command::Create { file, .. } => read_draft(file)?,
            _ => Value::Null,
        };
        let reached = self.reach.reach(self.command.access()).await?;
        let desk = Desk { client: &reached.client, json: self.reach.json };
        let done = desk.run(&self.command, &draft).await;
        let done = done.map_err(|error| unless_found(error, &self.command.not_found()));
        let left = reached.leave().await;
        done?;
        left.map(|()| Exit::Done)
    }
}

fn read_draft(file: &str) -> anyhow::Result<Value> {
    let name = if file == "-" { "standard input" } else { file };
    let text =
        if file == "-" { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(file) };
    let text = text.with_context(|| format!("{name} cannot be read"))?;
    serde_json::from_str(&text).with_context(|| format!("{name} is no JSON"))
}

fn parse_change(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "must be a whole number with its sign, such as +50 or -20".to_owned())
}

struct Desk<'a> {
    client: &'a Client,
    json: bool,
}

impl Desk<'_> {
    async fn run(&self, command: &Command, draft: &Value) -> anyhow::Result<()> {
        match command {
            Command::Create { publish, .. } => self.create(draft, *publish).await,
            Command::List => self.list().await,
            Command::Show { sale } => self.show(&self.client.get(&path_of(*sale)).await?),
            Command::Publish { sale } => self.act(*sale, "publish").await,
            Command::Pause { sale } => self.act(*sale, "pause").await,
            Command::Resume { sale } => self.act(*sale, "resume").await,
            Command::End { sale } => self.act(*sale, "end").await,
            Command::Stats { sale, watch } => self.stats(*sale, *watch).await,
            Command::Stock { offer, change, change_id } => {
                self.stock(*offer, *change, change_id.as_ref()).await
            }
            Command::Delete { sale } => self.delete(*sale).await,
        }
    }

    async fn create(&self, draft: &Value, publish: bool) -> anyhow::Result<()> {
        let mut sale: Value = self.client.post("/admin/v1/sales", draft).await?;
        let id: SaleId = text(&sale, "id").parse().context("the server made a sale without an id")?;
        if publish {
            sale = self.client.post(&format!("{}/publish", path_of(id)), &json!({})).await?;
            warn_of_closed(&sale);
        }
        self.show(&sale)?;
        if !publish && !self.json {
            say::answer(&format!("\nNext: doorbuster sale publish {id}"));
        }
        Ok(())
    }

    async fn list(&self) -> anyhow::Result<()> {
        let items: Vec<Value> = self.client.list("/admin/v1/sales", "", usize::MAX).await?;
        let none = "There are no sales yet. `doorbuster sale create SALE_FILE` makes one.";
        say::answer(&listing(&items, self.json, none, sales_table));
        Ok(())
    }

    fn show(&self, sale: &Value) -> anyhow::Result<()> {
        if self.json {
            say::answer(&sale.to_string());
            return Ok(());
        }
        let of = |name| text(sale, name);
        let mut lines = vec![
            format!("{}  {}", of("id"), of("title")),
            format!("state    {}", standing(sale)),
            format!("window   {} to {}", of("opens_at"), of("closes_at")),
            format!(
                "rules    challenge {}, registration {}, pay within {} s",
                of("challenge"),
                of("registration"),
                number(sale, "pay_within_s")
            ),
            String::new(),
        ];
        let mut table = Table::new(&[
            ("OFFER", Lean::Left),
            ("STOCK", Lean::Right),
            ("PRICE", Lean::Right),
            ("MOST PER ORDER", Lean::Right),
            ("NAME", Lean::Left),
        ]);
        for offer in sale.get("offers").and_then(Value::as_array).into_iter().flatten() {
            table.row([
                text(offer, "id").to_owned(),
                stock_of(sale, offer).map_or_else(|| "-".to_owned(), thousands),
                price_of(offer),
                number(offer, "max_per_order").to_string(),
                text(offer, "name").to_owned(),
            ]);
        }
        lines.push(table.render());
        say::answer(&lines.join("\n"));
        Ok(())
    }

    async fn act(&self, sale: SaleId, action: &str) -> anyhow::Result<()> {
        let changed: Value = self.client.post(&format!("{}/{action}", path_of(sale)), &json!({})).await?;
        if action == "publish" {
            warn_of_closed(&changed);
        }
        if self.json {
            say::answer(&changed.to_string());
        } else {
            let (state, phase) = (text(&changed, "state"), text(&changed, "phase"));
            say::answer(&format!(
                "{} is {state} ({phase}): {}",
                text(&changed, "id"),
                text(&changed, "title")
            ));
        }
        Ok(())
    }

    async fn stats(&self, sale: SaleId, watch: bool) -> anyhow::Result<()> {
        let path = format!("{}/stats", path_of(sale));
        if !watch {
            let stats: Value = self.client.get(&path).await?;
            say::answer(&self.render_stats(&stats)?);
            return Ok(());
        }
        let mut signals = Signals::listen()?;
        let clears = std::io::stdout().is_terminal() && !self.json;
        loop {
            let stats: Value = self.client.get(&path).await?;
            let shown = self.render_stats(&stats)?;
            if clears {
                say::clear_screen();
            }
            say::answer(&shown);
            tokio::select! {
                () = signals.next() => return Ok(()),
                () = tokio::time::sleep(WATCH_EVERY) => {}
            }
        }
    }

    fn render_stats(&self, stats: &Value) -> anyhow::Result<String> {
        if self.json {
            return Ok(stats.to_string());
        }
        let read: Stats =
            serde_json::from_value(stats.clone()).context("the stats are of another version")?;
        Ok(stats_text(&read))
    }

    async fn stock(&self, offer: OfferId, change: i64, change_id: Option<&String>) -> anyhow::Result<()> {
        let change_id = change_id.cloned().unwrap_or_else(random_text);
        let body = json!({"change": change, "change_id": change_id});
        let answer: Value = self.client.post(&format!("/admin/v1/offers/{offer}/stock"), &body).await?;
        if self.json {
            say::answer(&answer.to_string());
        } else {
            say::answer(&format!("{offer} has a stock of {} now ({change:+}).", number(&answer, "stock")));
        }
        Ok(())
    }

    async fn delete(&self, sale: SaleId) -> anyhow::Result<()> {
        let answer = self.client.delete(&path_of(sale)).await?;
        say::answer(&if self.json { answer.to_string() } else { format!("{sale} is deleted.") });
        Ok(())
    }
}

fn path_of(sale: SaleId) -> String {
    format!("/admin/v1/sales/{sale}")
}

fn sales_table(sales: &[Value]) -> String {
    let heads = ["ID", "STATE", "PHASE", "OPENS", "CLOSES"].map(|head| (head, Lean::Left));
    let mut table = Table::new(&[&heads[..], &[("OFFERS", Lean::Right), ("TITLE", Lean::Left)]].concat());
    for sale in sales {
        let offers = sale.get("offers").and_then(Value::as_array).map_or(0, Vec::len);
        let of = |name| text(sale, name);
        let front = [of("id"), of("state"), phase(sale).unwrap_or("-"), of("opens_at"), of("closes_at")];
        let front = front.map(str::to_owned);
        table.row(front.into_iter().chain([offers.to_string(), text(sale, "title").to_owned()]));
    }
    table.render()
}

/// The numbers in the order of the funnel.
fn stats_text(stats: &Stats) -> String {
    let funnel = stats.funnel;
    let mut steps = Table::new(&[
        ("PASSES", Lean::Right),
        ("TRIES", Lean::Right),
        ("GRANTED", Lean::Right),
        ("SOLD OUT", Lean::Right),
        ("ALREADY ORDERED", Lean::Right),
        ("NOT OPEN", Lean::Right),
        ("TOO FAST", Lean::Right),
        ("BUSY", Lean::Right),
    ]);
    let counts = [funnel.passes, funnel.tries, funnel.granted, funnel.sold_out, funnel.already_ordered];
    steps.row(counts.into_iter().chain([funnel.not_open, funnel.too_fast, funnel.busy]).map(thousands));
    let numbers = ["STOCK", "FREE", "HELD", "SOLD", "RETURNING"].map(|head| (head, Lean::Right));
    let mut offers = Table::new(&[&[("OFFER", Lean::Left)], &numbers[..]].concat());
    for offer in &stats.offers {
        let counts = [offer.stock, offer.free, offer.held, offer.sold, offer.returning];
        let counts = counts.into_iter().map(|count| thousands(count.into()));
        offers.row([offer.offer_id.to_string()].into_iter().chain(counts));
    }
    let phase = if stats.state == SaleState::Draft { "" } else { stats.phase.as_str() };
    let comma = if phase.is_empty() { "" } else { ", " };
    let queue = stats.queue;
    let head = format!("{}  {}{comma}{phase}", stats.sale_id, stats.state.as_str());
    let foot = format!("queue: {} claims, the oldest waits {} ms", thousands(queue.depth), queue.lag_ms);
    let since = funnel.counted_since.map(|at| format!("\ncounted since the server started at {at}"));
    let steps = steps.render() + &since.unwrap_or_default();
    format!("{head}\n\n{steps}\n\n{}\n\n{foot}", offers.render())
}

/// Where a sale stands in its window. A draft has a window and stands nowhere: nobody sees it.
fn phase(sale: &Value) -> Option<&str> {
    let is_draft = text(sale, "state") == SaleState::Draft.as_str();
    sale.get("phase").and_then(Value::as_str).filter(|_| !is_draft)
}

fn standing(sale: &Value) -> String {
    match phase(sale) {
        Some(phase) => format!("{}, {phase}", text(sale, "state")),
        None => text(sale, "state").to_owned(),
    }
}

/// It is allowed, and hardly ever meant.
fn warn_of_closed(published: &Value) {
    if phase(published) == Some(Phase::Closed.as_str()) {
        let (id, closed) = (text(published, "id"), text(published, "closes_at"));
        say::complain(&format!(
            "warning: the window of {id} was over at {closed}: nobody can buy. PATCH /admin/v1/sales/{id} with a later \
             closes_at opens it."
        ));
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("-")
}

fn number(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

fn price_of(offer: &Value) -> String {
    let price: Option<Money> =
        offer.get("price").and_then(|price| serde_json::from_value(price.clone()).ok());
    price.map_or_else(|| "-".to_owned(), money)
}

/// The stock stands with the offer, or in a list of its own beside them.
fn stock_of(sale: &Value, offer: &Value) -> Option<u64> {
    if let Some(stock) = offer.get("stock").and_then(Value::as_u64) {
        return Some(stock);
    }
    let mut all = sale.get("stock").and_then(Value::as_array)?.iter();
    all.find(|entry| entry.get("offer_id") == offer.get("id"))?.get("stock")?.as_u64()
}
