//! `rehearse`: tomorrow's sale, tonight: a copy of its configuration, a crowd, and an answer in words.

use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use rules::sale::ChallengeKind;
use rules::wire::SaleView;

use super::Exit;
use super::options::{CrowdArgs, Target};
use super::outcome::{Judged, Output};
use crate::clock::Clock;
use crate::desk::Desk;
use crate::record::Record;
use crate::rehearsal::Rehearsal;
use crate::say;
use crate::scenario::Scenario;
use crate::visit::Visit;
use crate::words::{parse_time, span};

/// Calls one buyer makes before the opening: the page, the time, the pass, and one to spare.
const CALLS_BEFORE: u32 = 4;
/// Calls per second a rehearsal reckons with before the opening; a server that cannot do this fails the opening anyway.
const CALLS_PER_S: u32 = 8_000;
/// The shortest time until the copy opens.
const OPENS_IN_MIN: Duration = Duration::from_secs(5);
/// How long the copy stays open after the last try was due.
const OPEN_FOR: Duration = Duration::from_secs(600);
/// Passes are asked for within this time before the try: a little less than `pass.lead_s` by default.
const PASSES_AHEAD: Duration = Duration::from_secs(25);

/// What is said of a copy that asks less of its buyers than the sale.
const NO_PICTURE: &str = "The sale asks buyers to read a picture, which a program cannot, so the copy asked for no \
                          challenge: passes cost the real buyers more time.";

/// Runs a copy of a sale with a crowd, and says whether it holds, where it saturates, and what to change.
///
/// It holds when the crowd came as planned, nearly everybody heard within 2 s of their click, and the server kept up. When
/// fewer than 95 of 100 tries went out when they were due, it cannot tell, and says what to do. Both "does not hold" and
/// "cannot tell" end with exit code 1. Where nothing saturates, it says how much the server takes at least.
///
/// The copy has the same offers, stock, limits and challenge (but no picture, which a program cannot read), is listed
/// nowhere, sends nothing to the shop, and is ended afterwards. The buyers are made up. Run it against the server of the night, from another machine if you can, but never
/// while a real sale is open.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stampede rehearse --url http://127.0.0.1:8080 --sale ID --buyers 200000 --within 10s --secret $SECRET --admin-key $KEY
  stampede rehearse --url http://127.0.0.1:8080 --sale ID --buyers 20000 --scenario bots --report rehearsal.html")]
pub struct Rehearse {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    crowd: CrowdArgs,
    /// How long until the copy opens; by default long enough for everybody to open the page.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    open_in: Option<Duration>,
    #[command(flatten)]
    output: Output,
}

impl Rehearse {
    pub async fn run(self) -> anyhow::Result<Exit> {
        self.output.check()?;
        let operator = self.target.operator().await?;
        let operator =
            operator.context("a rehearsal makes a sale: give the operator's key with --admin-key")?;
        let open_in = self.open_in.unwrap_or_else(|| time_to_open(self.crowd.buyers));
        // Before the copy is made: what is wrong here must leave none behind.
        let mut visit = self.target.visit(&self.crowd, true, self.output.is_silent()).await?;
        let copy = self.copy(&operator, open_in, &mut visit).await?;
        let performed = tokio::select! {
            performed = Box::pin(perform(visit, &copy, open_in)) => performed,
            interrupted = interrupted() => Err(interrupted),
        };
        // Also after a failure: a copy that stays open would be a sale nobody knows of.
        let is_ended = end(&operator, &copy).await;
        let record = match performed {
            Err(error) if is_ended => {
                return Err(error.context("the rehearsal did not finish; its copy was ended"));
            }
            performed => performed?,
        };
        self.crowd.keep(&record)?;
        let judged = Judged::of(record);
        let rehearsal = Rehearsal::of(&judged.record, judged.violations());
        self.output.give(&judged, Some(&rehearsal))?;
        Ok(match judged.exit() {
            Exit::Clean if !rehearsal.holds || !is_ended => Exit::Failed,
            exit => exit,
        })
    }

    /// Makes the copy and notes what it leaves out.
    async fn copy(&self, operator: &Desk, open_in: Duration, visit: &mut Visit) -> anyhow::Result<SaleView> {
        let clock = Clock::start();
        let sale = operator.operator_sale(self.target.sale).await?;
        let offset_ms = operator.offset_ms(clock).await?;
        let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        let opens_at = clock.now().plus_ms(offset_ms).plus_ms(ms(open_in));
        let closes_at = opens_at.plus_ms(ms(stays_open(&visit.scenario.scenario)));
        let copy = operator.publish_copy(&sale, opens_at, closes_at).await?;
        if !self.output.is_silent() {
            let opens = span(open_in);
            say::answer(&format!(
                "Rehearsing `{}` with a copy, {}, which opens in {opens}.",
                sale.title, copy.id
            ));
        }
        if sale.challenge == ChallengeKind::Picture {
            visit.notes.push(NO_PICTURE.to_owned());
        }
        Ok(copy)
    }
}

async fn perform(mut visit: Visit, copy: &SaleView, open_in: Duration) -> anyhow::Result<Record> {
    visit.command = visit.command.replacen("stampede run", "stampede rehearse", 1);
    visit.sale = copy.id;
    // The copy opens soon, and everybody comes for it.
    let arrival = &mut visit.scenario.scenario.arrival;
    arrival.pages_ahead = open_in;
    arrival.passes_ahead = open_in.min(PASSES_AHEAD);
    visit.perform().await
}

/// Whether the copy is over. If not, somebody must know.
async fn end(operator: &Desk, copy: &SaleView) -> bool {
    let ended = operator.end(copy.id).await;
    if let Err(error) = &ended {
        let id = copy.id;
        say::complain(&format!(
            "stampede: the copy {id} could not be ended; do it by hand with `doorbuster sale end {id}`: {error:#}"
        ));
    }
    ended.is_ok()
}

/// Waits until somebody wants the process to end: the copy must not outlive it.
async fn interrupted() -> anyhow::Error {
    use tokio::signal::unix::{SignalKind, signal};
    match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
        (Ok(mut interrupt), Ok(mut terminate)) => {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            anyhow::anyhow!("interrupted")
        }
        (Err(error), _) | (_, Err(error)) => error.into(),
    }
}

/// As long as the scenario lasts, wherever it says so.
fn stays_open(scenario: &Scenario) -> Duration {
    scenario.lasts().saturating_add(OPEN_FOR)
}

fn time_to_open(buyers: u32) -> Duration {
    let seconds = u64::from(buyers).saturating_mul(CALLS_BEFORE.into()).div_ceil(CALLS_PER_S.into());
    OPENS_IN_MIN + Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_big_crowd_gets_more_time_to_come() {
        assert_eq!(time_to_open(10), Duration::from_secs(6));
        assert_eq!(time_to_open(200_000), Duration::from_secs(105));
    }

    #[test]
    fn the_copy_is_open_for_as_long_as_the_scenario_lasts() {
        let text = "title = \"t\"\n[arrival]\nwithin = \"120m\"\n[[person]]\njitter = \"0s\"\n";
        let scenario = crate::scenario::parse(text).unwrap();
        assert_eq!(stays_open(&scenario), Duration::from_secs(2 * 3_600) + OPEN_FOR);
    }
}
