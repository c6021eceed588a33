//! `webhooks`: who is told of events, from a terminal or a script. It shows what the server answers; what is allowed is
//! decided there.

use clap::{ArgGroup, Args, Subcommand};
use rules::id::WebhookId;
use rules::time::UnixMs;
use rules::wire::{Page, ParkedView, Replayed, WebhookSecret, WebhookTested, WebhookView};
use serde_json::{Map, Value, json};
use stampede::words::thousands;

use super::client::{Client, unless_found};
use super::reach::{Access, ReachOptions};
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
  doorbuster webhooks set 01m7h12ebbvd5va6f5pvjryvdn --url https://shop.example/new-hooks --enable
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
    /// Changes one: its address, its types, whether it is told. A new address is tried at once.
    Set(Set),
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
    /// Gives it a new secret and prints it, once. The one before signs too, for a day.
    Rotate { webhook: WebhookId },
}

#[derive(Debug, Args)]
#[command(group(ArgGroup::new("change").required(true).multiple(true).args(["url", "types", "enable", "disable"])))]
struct Set {
    webhook: WebhookId,
    #[arg(long)]
    url: Option<String>,
    /// Only these: types such as order.paid, or order.* for all of a kind; separated by commas. `all` for all.
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    types: Option<Vec<String>>,
    /// Tells it again, also of what waited. After it answered 410 Gone this is the way back.
    #[arg(long, conflicts_with = "disable")]
    enable: bool,
    /// Tells it nothing for now; events wait for it.
    #[arg(long)]
    disable: bool,
}

/// How `--types` names every type.
const ALL_TYPES: &str = "all";

impl Command {
    fn access(&self) -> Access {
        match self {
            Self::List | Self::Show { .. } | Self::Test { .. } => Access::Look,
            Self::Add { .. }
            | Self::Set(_)
            | Self::Remove { .. }
            | Self::Replay { .. }
            | Self::Rotate { .. } => Access::Change,
        }
    }

    /// What to say when the webhook that it names is not there.
    fn not_found(&self) -> String {
        const LISTED: &str = "`doorbuster webhooks list` shows those that there are.";
        match self {
            Self::Show { webhook }
            | Self::Set(Set { webhook, .. })
            | Self::Remove { webhook }
            | Self::Test { webhook }
            | Self::Replay { webhook, .. }
            | Self::Rotate { webhook } => format!("There is no webhook with the id {webhook}. {LISTED}"),
            Self::List | Self::Add { .. } => LISTED.to_owned(),
        }
    }
}

impl Webhooks {
    pub async fn run(self) -> anyhow::Result<Exit> {
        let reached = self.reach.reach(self.command.access()).await?;
        let desk = Desk { client: &reached.client, json: self.reach.json };
        let done = desk.run(&self.command).await;
        let done = done.map_err(|error| unless_found(error, &self.command.not_found()));
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
            Command::Set(set) => self.set(set).await?,
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
            ("LOST", Lean::Right),
            ("TYPES", Lean::Left),
            ("URL", Lean::Left),
            ("WHY", Lean::Left),
        ]);
        for webhook in &page.items {
            table.row([
                webhook.id.to_string(),
                state(webhook).to_owned(),
                thousands(webhook.waiting),
                thousands(webhook.parked),
                thousands(webhook.dropped),
                types(webhook),
                webhook.url.clone(),
                why(webhook).to_owned(),
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
        let mut lines = standing(&webhook);
        if webhook.disabled {
            lines.push(format!("\nOnce it is mended: doorbuster webhooks set {id} --enable"));
        }
        if !parked.items.is_empty() {
            lines.extend([String::new(), parked_table(&parked.items)]);
            lines.push(format!("\nOnce it is mended: doorbuster webhooks replay {id}"));
        }
        say::answer(&lines.join("\n"));
        Ok(())
    }

    async fn set(&self, set: &Set) -> anyhow::Result<()> {
        let mut change = Map::new();
        if let Some(url) = &set.url {
            change.insert("url".to_owned(), url.as_str().into());
        }
        if let Some(types) = &set.types {
            let is_all = matches!(types.as_slice(), [one] if one == ALL_TYPES);
            change.insert("types".to_owned(), if is_all { json!([]) } else { json!(types) });
        }
        if set.enable || set.disable {
            change.insert("disabled".to_owned(), set.disable.into());
        }
        let changed: WebhookView = self.client.patch(&path_of(set.webhook), &change.into()).await?;
        say::answer(&if self.json {
            serde_json::to_string(&changed)?
        } else {
            standing(&changed).join("\n")
        });
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

/// One in lines, each with its name in front.
fn standing(webhook: &WebhookView) -> Vec<String> {
    let mut lines = vec![
        format!("{}  {}", webhook.id, webhook.url),
        format!("state    {}", state(webhook)),
        format!("types    {}", types(webhook)),
        format!("waiting  {}", thousands(webhook.waiting)),
        format!("given up {}", thousands(webhook.parked)),
        format!("lost     {}", thousands(webhook.dropped)),
    ];
    lines.extend(webhook.disabled_reason.iter().map(|reason| format!("disabled because {reason}")));
    lines.extend(webhook.connected.map(|is| format!("connected {}", if is { "yes" } else { "no" })));
    lines.extend(webhook.behind_since.map(|since| format!("behind   since {since}")));
    lines.extend(webhook.last_problem.iter().map(|problem| format!("problem  {problem}")));
    let until = webhook.previous_secret_until;
    lines.extend(until.map(|until| format!("secret   the one before signs too, until {until}")));
    lines
}

/// What most needs somebody's eye. What was lost does not come back: that stays to be seen.
fn state(webhook: &WebhookView) -> &'static str {
    match webhook {
        WebhookView { disabled: true, .. } => "disabled",
        WebhookView { connected: Some(false), .. } => "not connected",
        WebhookView { waiting: 1.., .. } => "failing",
        WebhookView { parked: 1.., .. } => "gave up on some",
        WebhookView { dropped: 1.., .. } => "lost some",
        WebhookView { waiting: 0, parked: 0, dropped: 0, .. } => "fine",
    }
}

/// Why it stands as it does, as far as that is known.
fn why(webhook: &WebhookView) -> &str {
    webhook.disabled_reason.as_deref().or(webhook.last_problem.as_deref()).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(changes: Value) -> WebhookView {
        let mut view = json!({"id": "01k9zq3v8g7m4x2r5w6t0n1pbc", "kind": "webhook", "url": "https://shop.example/",
            "types": [], "disabled": false, "disabled_reason": null, "connected": null,
            "created_at": "2026-12-01T12:00:00.000Z", "previous_secret_until": null, "waiting": 0, "parked": 0,
            "behind_since": null, "last_problem": null, "dropped": 0});
        view.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(view).unwrap()
    }

    #[test]
    fn only_who_lacks_and_lost_nothing_is_fine() {
        for (changes, expected) in [
            (json!({}), "fine"),
            (json!({"connected": true}), "fine"),
            (json!({"dropped": 1}), "lost some"),
            (json!({"parked": 1, "dropped": 1}), "gave up on some"),
            (json!({"waiting": 1, "parked": 1}), "failing"),
            (json!({"connected": false}), "not connected"),
            (json!({"disabled": true, "dropped": 1}), "disabled"),
        ] {
            assert_eq!(state(&webhook(changes.clone())), expected, "{changes}");
        }
    }

    #[test]
    fn a_failing_webhook_says_why_in_the_list() {
        let failing = json!({"waiting": 3, "last_problem": "it answered 500"});
        assert_eq!(why(&webhook(failing)), "it answered 500");
        let gone = json!({"disabled": true, "disabled_reason": "it answered 410 Gone", "last_problem": "it answered 500"});
        assert_eq!((why(&webhook(gone)), why(&webhook(json!({})))), ("it answered 410 Gone", ""));
    }

    #[test]
    fn reason_losses_and_connection_are_shown() {
        let gone =
            webhook(json!({"disabled": true, "disabled_reason": "it answered 410 Gone", "dropped": 1_234,
            "connected": false}));
        let lines = standing(&gone).join("\n");
        for said in ["lost     1,234", "disabled because it answered 410 Gone", "connected no"] {
            assert!(lines.contains(said), "{said}: {lines}");
        }
    }
}
