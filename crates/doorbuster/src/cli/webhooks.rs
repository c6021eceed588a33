//! `webhooks`: who is told of events, from a terminal or a script. It shows what the server answers; what is allowed is
//! decided there.

use clap::{Args, Subcommand};
use rules::id::WebhookId;
use rules::time::UnixMs;
use rules::wire::{Page, ParkedView, Replayed, WebhookSecret, WebhookTested, WebhookView};
use serde_json::{Value, json};
use stampede::words::thousands;

use super::client::Client;
use super::reach::{Folder, ReachOptions};
use super::table::{Lean, Table};
use super::{Exit, say};

/// Events given up that `show` lists.
const PARKED_SHOWN: u32 = 20;

/// Makes, tests and mends webhooks: the addresses that are told of events.
///
/// Talks to the server that runs on the data folder, to --server URL, or, when none runs, opens the folder itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster webhooks add https://shop.example/hooks --types 'order.*,offer.sold_out'
  doorbuster webhooks test 01m7h12ebbvd5va6f5pvjryvdn
  doorbuster webhooks list
  doorbuster webhooks replay 01m7h12ebbvd5va6f5pvjryvdn --since 2026-12-01T12:00:00Z
docs/webhooks.md says what a receiver may rely on.")]
pub struct Webhooks {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: ReachOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists all webhooks and how they stand.
    List,
    /// Makes one; it is told of what happens from now on. Prints its secret, once.
    Add {
        url: String,
        /// Only these: types such as order.paid, or order.* for all of a kind; separated by commas.
        #[arg(long, value_name = "TYPES", value_delimiter = ',')]
        types: Vec<String>,
        /// Told nothing yet; events wait for it.
        #[arg(long)]
        disabled: bool,
    },
    /// Shows one, and what it did not take.
    Show { webhook: WebhookId },
    /// Deletes one, and all that waits for it.
    Remove { webhook: WebhookId },
    /// Sends it one event of type webhook.test and says whether it arrived.
    Test { webhook: WebhookId },
    /// Delivers again what was given up; with --since also everything that happened from then on.
    Replay {
        webhook: WebhookId,
        /// A time such as 2026-12-01T12:00:00Z.
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        since: Option<UnixMs>,
    },
    /// Gives it a new secret and prints it, once. For a day deliveries are signed with both.
    Rotate { webhook: WebhookId },
}

impl Webhooks {
    pub async fn run(self) -> anyhow::Result<Exit> {
        let reached = self.reach.reach(Folder::MustExist).await?;
        let desk = Desk { client: &reached.client, json: self.reach.json };
        let done = desk.run(&self.command).await;
        let left = reached.leave().await;
        let exit = done?;
        left.map(|()| exit)
    }
}

struct Desk<'a> {
    client: &'a Client,
    json: bool,
}

impl Desk<'_> {
    async fn run(&self, command: &Command) -> anyhow::Result<Exit> {
        match command {
            Command::List => self.list().await?,
            Command::Add { url, types, disabled } => self.add(url, types, *disabled).await?,
            Command::Show { webhook } => self.show(*webhook).await?,
            Command::Remove { webhook } => self.remove(*webhook).await?,
            Command::Test { webhook } => return self.test(*webhook).await,
            Command::Replay { webhook, since } => self.replay(*webhook, *since).await?,
            Command::Rotate { webhook } => self.rotate(*webhook).await?,
        }
        Ok(Exit::Done)
    }

    async fn list(&self) -> anyhow::Result<()> {
        let page: Page<WebhookView> = self.client.get("/admin/v1/webhooks").await?;
        if self.json {
            say::answer(&serde_json::to_string(&page)?);
            return Ok(());
        }
        if page.items.is_empty() {
            say::answer("There are no webhooks yet. `doorbuster webhooks add URL` makes one.");
            return Ok(());
        }
        let mut table = Table::new(&[
            ("ID", Lean::Left),
            ("STATE", Lean::Left),
            ("WAITING", Lean::Right),
            ("GIVEN UP", Lean::Right),
            ("TYPES", Lean::Left),
            ("URL", Lean::Left),
        ]);
        for webhook in &page.items {
            table.row([
                webhook.id.to_string(),
                state(webhook).to_owned(),
                thousands(webhook.waiting),
                thousands(webhook.parked),
                types(webhook),
                webhook.url.clone(),
            ]);
        }
        say::answer(&table.render());
        Ok(())
    }

    async fn add(&self, url: &str, types: &[String], disabled: bool) -> anyhow::Result<()> {
        let draft = json!({"url": url, "types": types, "disabled": disabled});
        let made: WebhookSecret = self.client.post("/admin/v1/webhooks", &draft).await?;
        self.tell_secret(&made)?;
        if !self.json {
            say::answer(&format!("\nNext: doorbuster webhooks test {}", made.webhook.id));
        }
        Ok(())
    }

    async fn show(&self, id: WebhookId) -> anyhow::Result<()> {
        let webhook: WebhookView = self.client.get(&path_of(id)).await?;
        let parked = format!("{}/parked?limit={PARKED_SHOWN}", path_of(id));
        let parked: Page<ParkedView> = self.client.get(&parked).await?;
        if self.json {
            let mut shown = serde_json::to_value(&webhook)?;
            if let Value::Object(fields) = &mut shown {
                fields.insert("parked_events".to_owned(), serde_json::to_value(&parked.items)?);
            }
            say::answer(&shown.to_string());
            return Ok(());
        }
        let mut lines = vec![
            format!("{}  {}", webhook.id, webhook.url),
            format!("state    {}", state(&webhook)),
            format!("types    {}", types(&webhook)),
            format!("waiting  {}", thousands(webhook.waiting)),
            format!("given up {}", thousands(webhook.parked)),
        ];
        lines.extend(webhook.behind_since.map(|since| format!("behind   since {since}")));
        lines.extend(webhook.last_problem.iter().map(|problem| format!("problem  {problem}")));
        let until = webhook.previous_secret_until;
        lines.extend(until.map(|until| format!("secret   the one before signs too, until {until}")));
        if !parked.items.is_empty() {
            lines.extend([String::new(), parked_table(&parked.items)]);
            lines.push(format!("\nOnce it is mended: doorbuster webhooks replay {id}"));
        }
        say::answer(&lines.join("\n"));
        Ok(())
    }

    async fn remove(&self, id: WebhookId) -> anyhow::Result<()> {
        let answer = self.client.delete(&path_of(id)).await?;
        say::answer(&if self.json { answer.to_string() } else { format!("{id} is removed.") });
        Ok(())
    }

    /// A receiver that does not take it is a failure: scripts look at the code.
    async fn test(&self, id: WebhookId) -> anyhow::Result<Exit> {
        let tested: WebhookTested = self.client.post(&format!("{}/test", path_of(id)), &json!({})).await?;
        if self.json {
            say::answer(&serde_json::to_string(&tested)?);
        } else {
            say::answer(&match &tested.problem {
                None => format!("It took {} in {} ms.", tested.event_id, thousands(tested.took_ms)),
                Some(problem) => format!(
                    "It did not take {}: {problem}\n\
                     Look at the receiver's log for that webhook-id; it must answer 2xx after checking the signature.",
                    tested.event_id
                ),
            });
        }
        Ok(if tested.delivered { Exit::Done } else { Exit::Failed })
    }

    async fn replay(&self, id: WebhookId, since: Option<UnixMs>) -> anyhow::Result<()> {
        let body = json!({"since": since});
        let replayed: Replayed = self.client.post(&format!("{}/replay", path_of(id)), &body).await?;
        if self.json {
            say::answer(&serde_json::to_string(&replayed)?);
        } else {
            let events = thousands(replayed.events);
            say::answer(&format!("{events} events are looked at again; those that it wants are delivered."));
        }
        Ok(())
    }

    async fn rotate(&self, id: WebhookId) -> anyhow::Result<()> {
        let changed: WebhookSecret = self.client.post(&format!("{}/secret", path_of(id)), &json!({})).await?;
        self.tell_secret(&changed)?;
        if let Some(until) = changed.webhook.previous_secret_until.filter(|_| !self.json) {
            say::answer(&format!("The one before signs too, until {until}."));
        }
        Ok(())
    }

    fn tell_secret(&self, told: &WebhookSecret) -> anyhow::Result<()> {
        if self.json {
            say::answer(&serde_json::to_string(told)?);
        } else {
            let WebhookSecret { webhook, secret } = told;
            say::answer(&format!("{}  {}\nsecret   {secret}", webhook.id, webhook.url));
            say::answer("Keep it now: it is not shown again.");
        }
        Ok(())
    }
}

fn path_of(webhook: WebhookId) -> String {
    format!("/admin/v1/webhooks/{webhook}")
}

fn state(webhook: &WebhookView) -> &'static str {
    match webhook {
        WebhookView { disabled: true, .. } => "disabled",
        WebhookView { waiting: 0, parked: 0, .. } => "fine",
        WebhookView { waiting: 0, .. } => "gave up on some",
        WebhookView { .. } => "failing",
    }
}

fn types(webhook: &WebhookView) -> String {
    if webhook.types.is_empty() { "all".to_owned() } else { webhook.types.join(",") }
}

fn parked_table(parked: &[ParkedView]) -> String {
    let mut table = Table::new(&[
        ("EVENT", Lean::Left),
        ("TYPE", Lean::Left),
        ("AT", Lean::Left),
        ("TRIES", Lean::Right),
        ("PROBLEM", Lean::Left),
    ]);
    for event in parked {
        table.row([
            event.event_id.to_string(),
            event.kind.clone(),
            event.at.to_string(),
            event.attempts.to_string(),
            event.problem.clone().unwrap_or_default(),
        ]);
    }
    table.render()
}

fn parse_time(text: &str) -> Result<UnixMs, String> {
    UnixMs::parse(text).map_err(|error| error.to_string())
}
