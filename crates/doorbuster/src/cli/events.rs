//! `events`: what happened, on a terminal or for a script. It shows what the server tells; where it stands among the
//! events is all that it knows.

use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use doorbuster::clock::Clock;
use doorbuster::outbox::endpoint::check_type;
use rules::id::EventId;
use rules::money::Money;
use rules::time::{TimeError, UnixMs};
use serde_json::Value;
use stampede::words::thousands;

use super::client::Client;
use super::reach::{Access, ReachOptions};
use super::table::money;
use super::{Exit, say, signals::Signals};

/// How long the server lets a question wait for an answer, in seconds.
const WAIT_S: u32 = 20;

/// Events per question.
const PAGE: u32 = 200;

/// Who cannot wait at the server, because too many do, waits here before asking again.
const PAUSE: Duration = Duration::from_secs(1);

/// How many events `tail` begins with.
const LAST_DEFAULT: u32 = 10;

/// Room for the longest type in the column.
const TYPE_WIDTH: usize = 21;

/// Shows what happens: orders, sales, stock, strikes.
///
/// Talks to the server that runs on the data folder, to --server URL, or, when none runs, opens the folder itself.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  doorbuster events tail
  doorbuster events tail --types 'order.*,buyer.struck'
  doorbuster events tail --since 2h --no-follow
  doorbuster events tail --since 2026-12-01T12:00:00Z --json | jq .type
docs/events.md says what each type means.")]
pub struct Events {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    reach: ReachOptions,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The newest events, and every new one until Ctrl-C. Where no server runs nothing new can come: then it ends.
    Tail(Tail),
}

#[derive(Debug, Args)]
struct Tail {
    /// Only these: types such as order.paid, or order.* for all of a kind; separated by commas.
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_parser = parse_type)]
    types: Vec<String>,
    /// Begins with what happened from then on: a time such as 2026-12-01T12:00:00Z, or how long ago, such as 10m or 2h.
    #[arg(long, value_name = "TIME", value_parser = parse_since, conflicts_with_all = ["last", "after"])]
    since: Option<UnixMs>,
    /// Begins after the event with this id.
    #[arg(long, value_name = "ID", conflicts_with = "last")]
    after: Option<EventId>,
    /// Begins with the newest so many; at most 200.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=200))]
    last: Option<u32>,
    /// Shows what is there and ends.
    #[arg(long)]
    no_follow: bool,
}

impl Events {
    pub async fn run(self) -> anyhow::Result<Exit> {
        let Command::Tail(tail) = &self.command;
        let reached = self.reach.reach(Access::Look).await?;
        let follow = !tail.no_follow && !reached.is_inside();
        let reader = Reader { client: &reached.client, json: self.reach.json, tail };
        let done = reader.read(follow).await;
        if !tail.no_follow && !follow && done.is_ok() {
            say::complain("No server runs on this folder, so nothing new can come: that was all.");
        }
        let left = reached.leave().await;
        done?;
        left.map(|()| Exit::Done)
    }
}

struct Reader<'a> {
    client: &'a Client,
    json: bool,
    tail: &'a Tail,
}

impl Reader<'_> {
    async fn read(&self, follow: bool) -> anyhow::Result<()> {
        let (mut signals, clock) = (Signals::listen()?, Clock::system());
        let mut place = self.place();
        loop {
            let asked = clock.instant();
            let may_wait = follow && !place.starts_with("last=");
            let page = self.page(&place, follow);
            let page: Value = tokio::select! {
                () = signals.next() => return Ok(()),
                page = page => page.map_err(|error| anyhow!("{error:#}{}", how_to_read_on(&place)))?,
            };
            if let Some(missed) = page.get("missed").and_then(Value::as_u64).filter(|missed| *missed > 0) {
                let missed = thousands(missed);
                say::complain(&format!("{missed} events are missing here: they are no longer kept."));
            }
            let items = page.get("items").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            for event in items {
                say::answer(&if self.json { event.to_string() } else { line(event) });
            }
            let read_on = format!("after={}", page.get("cursor").and_then(Value::as_str).unwrap_or_default());
            // A page without events may only have passed over others.
            let was_all = place.starts_with("last=") || (items.is_empty() && place == read_on);
            if !follow && was_all {
                return Ok(());
            }
            place = read_on;
            if may_wait && items.is_empty() && asked.elapsed() < PAUSE {
                tokio::select! {
                    () = signals.next() => return Ok(()),
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
        }
    }

    /// Where it begins, as the server is told.
    fn place(&self) -> String {
        match (self.tail.since, self.tail.after) {
            (Some(since), _) => format!("since={since}"),
            (None, Some(after)) => format!("after={after}"),
            (None, None) => format!("last={}", self.tail.last.unwrap_or(LAST_DEFAULT)),
        }
    }

    async fn page(&self, place: &str, follow: bool) -> anyhow::Result<Value> {
        let types = self.tail.types.join(",");
        let wait = if follow { WAIT_S } else { 0 };
        self.client.get(&format!("/admin/v1/events?{place}&types={types}&limit={PAGE}&wait={wait}")).await
    }
}

/// Behind the reason: the way on.
fn how_to_read_on(place: &str) -> String {
    match place.strip_prefix("after=") {
        Some(id) => format!("\n  `doorbuster events tail --after {id}` reads on from here."),
        None => String::new(),
    }
}

/// One event in one line: when, what, about what, and the rest of what it says.
fn line(event: &Value) -> String {
    let text = |name: &str| event.get(name).and_then(Value::as_str);
    let about = [("order", "order_id"), ("offer", "offer_id"), ("sale", "sale_id")];
    let about = about.into_iter().find_map(|(word, field)| Some(format!("{word} {}", text(field)?)));
    let data = event.get("data").and_then(Value::as_object);
    let facts = data.into_iter().flatten().filter(|(_, value)| !value.is_null());
    let facts = facts.map(|(name, value)| format!("{name}={}", shown(value)));
    let front = format!("{}  {:<TYPE_WIDTH$}", text("at").unwrap_or("-"), text("type").unwrap_or("-"));
    let rest: Vec<String> = about.into_iter().chain(facts).collect();
    format!("{front}  {}", rest.join("  ")).trim_end().to_owned()
}

/// Money with its point, text without quotes where it is one word.
fn shown(value: &Value) -> String {
    if let Ok(amount) = serde_json::from_value::<Money>(value.clone()) {
        return money(amount);
    }
    match value.as_str() {
        Some(word) if !word.is_empty() && !word.contains(char::is_whitespace) => word.to_owned(),
        _ => value.to_string(),
    }
}

fn parse_type(text: &str) -> Result<String, String> {
    let text = text.trim().to_owned();
    check_type(&text).map(|()| text)
}

/// Units of a span, in seconds.
const UNITS_S: [(char, u64); 4] = [('s', 1), ('m', 60), ('h', 3_600), ('d', 86_400)];

/// How long: `10m`, `2h`, `3d`.
pub fn parse_span(text: &str) -> Option<Duration> {
    UNITS_S.iter().find_map(|(unit, seconds)| {
        let number: u64 = text.strip_suffix(*unit)?.parse().ok()?;
        Some(Duration::from_secs(number.checked_mul(*seconds)?))
    })
}

fn parse_since(text: &str) -> Result<UnixMs, String> {
    match parse_span(text) {
        Some(ago) => {
            let ms = i64::try_from(ago.as_millis()).map_err(|_| "is too long ago".to_owned())?;
            // The server refuses what lies before its time.
            UnixMs::parse(&Clock::system().now().plus_ms(-ms).to_string())
                .map_err(|_| "is too long ago".to_owned())
        }
        None => UnixMs::parse(text).map_err(|error| match error {
            TimeError::NoZone => error.to_string(),
            TimeError::NotRfc3339 | TimeError::OutOfRange => {
                "must be a time such as 2026-12-01T12:00:00Z, or how long ago, such as 10m or 2h".into()
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_event_is_one_line() {
        let event = json!({"id": "x", "type": "order.paid", "at": "2026-12-01T12:00:00.000Z", "sale_id": "s",
            "offer_id": "f", "order_id": "o", "seq": 3, "data": {"buyer": "ann lee", "state": "paid", "reason": null,
            "total": {"amount": 149_900, "currency": "CNY"}}});
        assert_eq!(
            line(&event),
            "2026-12-01T12:00:00.000Z  order.paid             order o  buyer=\"ann lee\"  state=paid  total=1499.00 CNY"
        );
        let bare =
            json!({"type": "sale.paused", "at": "2026-12-01T12:00:00.000Z", "sale_id": "s", "data": {}});
        assert_eq!(line(&bare), "2026-12-01T12:00:00.000Z  sale.paused            sale s");
    }

    #[test]
    fn since_is_a_time_or_how_long_ago() {
        assert_eq!(parse_since("2026-12-01T20:00:00+08:00"), Ok(UnixMs(1_796_126_400_000)));
        let now = Clock::system().now();
        let ago = parse_since("10m").unwrap();
        assert!((now.0 - 600_000 - ago.0).abs() < 60_000, "{ago}");
        for bad in ["", "m", "10", "yesterday", "-5m", "99999999999999999d"] {
            assert!(parse_since(bad).is_err(), "{bad}");
        }
    }
}
