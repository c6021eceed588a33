//! `sale`: what an operator does with sales, from a terminal or a script. It shows what the server answers; what is
//! allowed is decided there.

use std::io::{IsTerminal as _, Read as _};
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use rules::id::{OfferId, SaleId};
use rules::money::Money;
use rules::wire::{Page, Stats};
use serde_json::{Value, json};
use stampede::words::thousands;

use super::client::{Client, random_text};
use super::reach::{Folder, ReachOptions};
use super::table::{Lean, Table, money};
use super::{Exit, say, signals::Signals};

/// Between two looks of `stats --watch`.
const WATCH_EVERY: Duration = Duration::from_secs(1);

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
A sale file, times in UTC and money in minor units:
  {\"title\": \"1499 night\", \"opens_at\": \"2026-12-01T12:00:00Z\", \"closes_at\": \"2026-12-01T13:00:00Z\",
   \"offers\": [{\"name\": \"Feitian 53\", \"price\": {\"amount\": 149900, \"currency\": \"CNY\"}, \"stock\": 100}]}")]
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
        #[arg(allow_hyphen_values = true)]
        change: i64,
        /// Names the change: the same name again changes nothing and answers what the first did.
        #[arg(long, value_name = "NAME")]
        change_id: Option<String>,
    },
    /// Deletes a draft.
    Delete { sale: SaleId },
}

impl Sale {
    pub async fn run(self) -> anyhow::Result<Exit> {
        let creates = matches!(self.command, Command::Create { .. });
        // Read before anything is opened: a file that is not there is no reason to begin a ledger.
        let draft = match &self.command {
            Command::Create { file, .. } => read_draft(file)?,
            _ => Value::Null,
        };
        let folder = if creates { Folder::MayBeNew } else { Folder::MustExist };
        let reached = self.reach.reach(folder).await?;
        let desk = Desk { client: &reached.client, json: self.reach.json };
        let done = desk.run(&self.command, &draft).await;
        let left = reached.leave().await;
        done?;
        left.map(|()| Exit::Done)
    }
}

fn read_draft(file: &str) -> anyhow::Result<Value> {
    let mut text = String::new();
    if file == "-" {
        std::io::stdin().read_to_string(&mut text).context("standard input cannot be read")?;
    } else {
        text = std::fs::read_to_string(file).with_context(|| format!("{file} cannot be read"))?;
    }
    serde_json::from_str(&text).with_context(|| format!("{file} is no JSON"))
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
        }
        self.show(&sale)?;
        if !publish && !self.json {
            say::answer(&format!("\nNext: doorbuster sale publish {id}"));
        }
        Ok(())
    }

    async fn list(&self) -> anyhow::Result<()> {
        let mut items: Vec<Value> = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let beyond = cursor.map_or(String::new(), |cursor| format!("&cursor={cursor}"));
            let page: Page<Value> = self.client.get(&format!("/admin/v1/sales?limit=200{beyond}")).await?;
            items.extend(page.items);
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        if self.json {
            say::answer(&json!({"items": items, "next_cursor": null}).to_string());
            return Ok(());
        }
        if items.is_empty() {
            say::answer("There are no sales yet. `doorbuster sale create FILE` makes one.");
            return Ok(());
        }
        let heads = ["ID", "STATE", "PHASE", "OPENS", "CLOSES"].map(|head| (head, Lean::Left));
        let mut table = Table::new(&[&heads[..], &[("OFFERS", Lean::Right), ("TITLE", Lean::Left)]].concat());
        for sale in &items {
            let offers = sale.get("offers").and_then(Value::as_array).map_or(0, Vec::len);
            let front =
                ["id", "state", "phase", "opens_at", "closes_at"].map(|name| text(sale, name).to_owned());
            table.row(front.into_iter().chain([offers.to_string(), text(sale, "title").to_owned()]));
        }
        say::answer(&table.render());
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
            format!("state    {}, {}", of("state"), of("phase")),
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
    let phase = format!("{:?}", stats.phase).to_lowercase();
    let queue = stats.queue;
    let head = format!("{}  {}, {phase}", stats.sale_id, stats.state.as_str());
    let foot = format!("queue: {} claims, the oldest waits {} ms", thousands(queue.depth), queue.lag_ms);
    format!("{head}\n\n{}\n\n{}\n\n{foot}", steps.render(), offers.render())
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
