//! `blocks`: buyers who get no passes, and their strikes, from a terminal or a script. It shows what the server answers;
//! what is allowed, and what a strike means, is decided there.

use clap::{Args, Subcommand};
use doorbuster::clock::Clock;
use rules::buyer::BuyerId;
use rules::time::{TimeError, UnixMs};
use rules::wire::{BlockView, MarksView, StrikeCause, StrikeLifter, StrikeView};
use serde_json::{Value, json};

use super::client::{Client, in_address, unless_found};
use super::events::parse_span;
use super::reach::{Access, ReachOptions};
use super::table::{Lean, Table, listing};
use super::{Exit, say};

/// Shows and changes who gets no passes: blocks by hand, and strikes.
///
/// Talks to the server that runs on the data folder, to --server URL, or, when none runs, opens the folder itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster blocks list
  doorbuster blocks show ann
  doorbuster blocks set ann --until 72h --note resells
  doorbuster blocks lift ann
  doorbuster blocks strike ann --note resells
docs/strikes.md says when a buyer gets a strike, and what it does.")]
pub struct Blocks {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: ReachOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the buyers who get no passes now, by hand or by their strikes.
    List {
        /// At most so many.
        #[arg(long, value_name = "N", default_value_t = 1_000)]
        limit: usize,
    },
    /// Shows a buyer's block and strikes, with the last 200 strikes, also those that no longer count.
    Show {
        #[arg(value_parser = parse_buyer)]
        buyer: BuyerId,
    },
    /// Blocks a buyer by hand; an earlier block by hand is replaced. Of this and a block by strikes the later end counts.
    Set {
        #[arg(value_parser = parse_buyer)]
        buyer: BuyerId,
        /// A time such as 2026-12-01T12:00:00Z, or how long from now, such as 72h or 30d.
        #[arg(long, value_name = "TIME", value_parser = parse_until)]
        until: UnixMs,
        /// Why, for whoever looks later.
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
    /// Lets a buyer in again: ends the block by hand, and lifts all strikes if they block.
    Lift {
        #[arg(value_parser = parse_buyer)]
        buyer: BuyerId,
        /// Lifts this strike alone, by its number in the history; whoever is blocked otherwise stays so.
        #[arg(long, value_name = "NO")]
        strike: Option<u64>,
    },
    /// Gives a buyer a strike.
    Strike {
        #[arg(value_parser = parse_buyer)]
        buyer: BuyerId,
        /// Why, for whoever looks later.
        #[arg(long, value_name = "TEXT")]
        note: Option<String>,
    },
}

impl Command {
    fn access(&self) -> Access {
        match self {
            Self::List { .. } | Self::Show { .. } => Access::Look,
            Self::Set { .. } | Self::Lift { .. } | Self::Strike { .. } => Access::Change,
        }
    }
}

impl Blocks {
    pub async fn run(self) -> anyhow::Result<Exit> {
        let reached = self.reach.reach(self.command.access()).await?;
        let door = Door { client: &reached.client, json: self.reach.json };
        let done = door.run(&self.command).await;
        let left = reached.leave().await;
        done?;
        left.map(|()| Exit::Done)
    }
}

struct Door<'a> {
    client: &'a Client,
    json: bool,
}

impl Door<'_> {
    async fn run(&self, command: &Command) -> anyhow::Result<()> {
        match command {
            Command::List { limit } => self.list(*limit).await,
            Command::Show { buyer } => {
                let marks = self.marks(buyer).await;
                self.show(&marks.map_err(|error| unless_found(error, &has_nothing(buyer)))?)
            }
            Command::Set { buyer, until, note } => {
                let block = json!({"until": until, "note": note});
                self.show(&self.client.put(&path_of(buyer), &block).await?)
            }
            Command::Lift { buyer, strike: None } => self.lift(buyer).await,
            Command::Lift { buyer, strike: Some(no) } => self.lift_strike(buyer, *no).await,
            Command::Strike { buyer, note } => self.strike(buyer, note.as_deref()).await,
        }
    }

    async fn list(&self, limit: usize) -> anyhow::Result<()> {
        let items: Vec<BlockView> = self.client.list("/admin/v1/blocks", "", limit).await?;
        say::answer(&listing(&items, self.json, "Nobody is blocked.", table));
        Ok(())
    }

    async fn marks(&self, buyer: &BuyerId) -> anyhow::Result<Value> {
        self.client.get(&path_of(buyer)).await
    }

    fn show(&self, marks: &Value) -> anyhow::Result<()> {
        if self.json {
            say::answer(&marks.to_string());
            return Ok(());
        }
        say::answer(&sheet(&serde_json::from_value(marks.clone())?));
        Ok(())
    }

    async fn lift(&self, buyer: &BuyerId) -> anyhow::Result<()> {
        let sentence = format!("{} is not blocked. {}", buyer.as_str(), shows(buyer));
        self.delete(&path_of(buyer), &sentence, &format!("{} gets passes again.", buyer.as_str())).await
    }

    async fn lift_strike(&self, buyer: &BuyerId, no: u64) -> anyhow::Result<()> {
        let name = buyer.as_str();
        let sentence = format!("{name} has no strike {no}, or it was lifted before. {}", shows(buyer));
        let path = format!("{}/strikes/{no}", path_of(buyer));
        self.delete(&path, &sentence, &format!("Strike {no} of {name} is lifted.")).await
    }

    async fn delete(&self, path: &str, nothing: &str, done: &str) -> anyhow::Result<()> {
        let answer = self.client.delete(path).await.map_err(|error| unless_found(error, nothing))?;
        say::answer(&if self.json { answer.to_string() } else { done.to_owned() });
        Ok(())
    }

    async fn strike(&self, buyer: &BuyerId, note: Option<&str>) -> anyhow::Result<()> {
        let path = format!("{}/strikes", path_of(buyer));
        let given: Value = self.client.post(&path, &json!({"note": note})).await?;
        if self.json {
            say::answer(&given.to_string());
            return Ok(());
        }
        self.show(&self.marks(buyer).await?)
    }
}

fn path_of(buyer: &BuyerId) -> String {
    format!("/admin/v1/blocks/{}", in_address(buyer.as_str()))
}

fn has_nothing(buyer: &BuyerId) -> String {
    format!("{} has no block and no strikes. `doorbuster blocks list` shows who is blocked.", buyer.as_str())
}

fn shows(buyer: &BuyerId) -> String {
    format!("`doorbuster blocks show {}` shows the strikes, if there are any.", buyer.as_str())
}

fn table(blocks: &[BlockView]) -> String {
    let heads = [
        ("BLOCKED UNTIL", Lean::Left),
        ("STRIKES", Lean::Right),
        ("BUYER", Lean::Left),
        ("NOTE", Lean::Left),
    ];
    let mut table = Table::new(&heads);
    for block in blocks {
        let note = block.note.as_deref().map(one_line).unwrap_or_default();
        table.row([block.until.to_string(), block.strikes.to_string(), block.buyer.clone(), note]);
    }
    table.render()
}

fn sheet(marks: &MarksView) -> String {
    let state = match marks.until {
        Some(until) => format!("blocked until {until}"),
        None => "not blocked".to_owned(),
    };
    let by_hand = marks.by_hand_until.map(|until| match &marks.note {
        Some(note) => format!("until {until}: {}", one_line(note)),
        None => format!("until {until}"),
    });
    let lines = [
        ("by hand", by_hand),
        ("strikes", Some(counted(marks))),
        ("decays", marks.next_decay_at.map(|at| format!("the next one stops counting {at}"))),
    ];
    let lines = lines.into_iter().filter_map(|(name, text)| Some(format!("{name:<9}{}", text?)));
    let history = (!marks.history.is_empty()).then(|| format!("\n{}", history(&marks.history)));
    let head = format!("{}  {state}", marks.buyer);
    std::iter::once(head).chain(lines).chain(history).collect::<Vec<_>>().join("\n")
}

fn counted(marks: &MarksView) -> String {
    match marks.strikes_limit {
        0 => format!("{} count; they never block", marks.strikes),
        limit => format!("{} count; {limit} block", marks.strikes),
    }
}

fn history(strikes: &[StrikeView]) -> String {
    let mut table = Table::new(&[
        ("STRIKE", Lean::Right),
        ("AT", Lean::Left),
        ("CAUSE", Lean::Left),
        ("LIFTED", Lean::Left),
        ("NOTE", Lean::Left),
    ]);
    for strike in strikes {
        let cause = match (strike.cause, strike.order_id) {
            (StrikeCause::Unpaid, Some(order)) => format!("unpaid {order}"),
            (StrikeCause::Unpaid, None) => "unpaid".to_owned(),
            (StrikeCause::Operator, _) => "operator".to_owned(),
        };
        let by = |lifter: StrikeLifter| match lifter {
            StrikeLifter::Operator => "by operator",
            StrikeLifter::LateMoney => "by late money",
        };
        let lifted = strike.lifted_at.map(|at| format!("{at} {}", strike.lifted_by.map_or("", by)));
        table.row([
            strike.no.to_string(),
            strike.at.to_string(),
            cause,
            lifted.unwrap_or_default(),
            strike.note.as_deref().map(one_line).unwrap_or_default(),
        ]);
    }
    table.render()
}

/// Notes may hold anything; a terminal should see words.
fn one_line(note: &str) -> String {
    note.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

fn parse_buyer(text: &str) -> Result<BuyerId, String> {
    if matches!(text, "." | "..") {
        // Every client takes these for a way up.
        return Err("cannot be named in an address".to_owned());
    }
    BuyerId::parse(text).map_err(|error| error.to_string())
}

fn parse_until(text: &str) -> Result<UnixMs, String> {
    let Some(span) = parse_span(text) else {
        return UnixMs::parse(text).map_err(|error| match error {
            TimeError::NoZone => error.to_string(),
            TimeError::NotRfc3339 | TimeError::OutOfRange => {
                "must be a time such as 2026-12-01T12:00:00Z, or how long from now, such as 72h or 30d".into()
            }
        });
    };
    const TOO_FAR: &str = "is too far ahead";
    let ms = i64::try_from(span.as_millis()).map_err(|_| TOO_FAR)?;
    // The server refuses what lies beyond its time.
    Ok(UnixMs::parse(&Clock::system().now().plus_ms(ms).to_string()).map_err(|_| TOO_FAR)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_one_part_of_the_path() {
        let path = |name: &str| path_of(&BuyerId::parse(name).unwrap());
        assert_eq!(path("ann"), "/admin/v1/blocks/ann");
        assert_eq!(path("a/b?c#d e%"), "/admin/v1/blocks/a%2Fb%3Fc%23d%20e%25");
        assert_eq!(path("安"), "/admin/v1/blocks/%E5%AE%89");
        for bad in ["", ".", "..", "a\nb"] {
            assert!(parse_buyer(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn until_is_a_time_or_how_long_from_now() {
        assert_eq!(parse_until("2026-12-01T20:00:00+08:00"), Ok(UnixMs(1_796_126_400_000)));
        let now = Clock::system().now();
        let ahead = parse_until("72h").unwrap();
        assert!((ahead.0 - now.0 - 72 * 3_600_000).abs() < 60_000, "{ahead}");
        for bad in ["", "h", "72", "tomorrow", "-5m", "99999999999999999d", "99999999d"] {
            assert!(parse_until(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_note_cannot_move_the_cursor() {
        assert_eq!(one_line("a\n\u{1b}[2Jb"), "a  [2Jb");
    }
}
