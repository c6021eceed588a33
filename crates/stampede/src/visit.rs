//! One night from outside: look at the sale, show one token, let the crowd in, watch, wait until it is quiet, gather what an operator
//! can see. It judges nothing and knows no command line.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rules::id::SaleId;
use rules::sale::{ChallengeKind, Phase, RegistrationKind, SaleState};
use rules::wire::{SaleView, Stats};

use crate::blast::process_cpu;
use crate::clock::{Clock, micros};
use crate::crowd::{Crowd, CrowdSettings, Outcome, Signer, Tokens};
use crate::desk::{Address, Desk, once_quiet};
use crate::record::{Facts, OfferFacts, Record};
use crate::scenario::{Loaded, Loop};
use crate::view::{Sample, Samples, View};

/// How long the server may be silent while the crowd is there.
const SILENT_MAX: Duration = Duration::from_secs(30);
/// The first pages are opened so long after the start at the earliest: a moment to get going.
const FIRST_MOMENT: Duration = Duration::from_millis(500);
/// Open files that are not the crowd's sockets.
const OTHER_FILES: u64 = 64;

/// What is to be done.
#[derive(Debug)]
pub struct Visit {
    pub address: Address,
    pub desk: Desk,
    /// The operator's side; `None`: no key.
    pub operator: Option<Desk>,
    pub sale: SaleId,
    pub scenario: Loaded,
    pub tokens: Tokens,
    pub name: String,
    pub buyers: u32,
    pub connections: usize,
    pub seed: u64,
    /// Nobody else buys in this sale.
    pub alone: bool,
    pub quiet: bool,
    /// What a reader must know of how it was done.
    pub notes: Vec<String>,
    /// The command that repeats it, without secrets.
    pub command: String,
}

impl Visit {
    pub async fn perform(self) -> anyhow::Result<Record> {
        raise_file_limit(self.connections)?;
        let clock = Clock::start();
        let sale = self.desk.sale(self.sale).await?;
        let offset_ms = self.desk.offset_ms(clock).await?;
        check(&sale)?;
        self.show_a_token(clock, offset_ms).await?;
        let before = self.stats().await?;
        let crowd = Crowd::new(self.settings(&sale, clock, offset_ms))?;
        let samples = Samples::default();
        let cpu = process_cpu();
        let outcome = self.watch(&crowd, &sale, offset_ms, before.as_ref(), &samples).await?;
        let cpu = process_cpu().saturating_sub(cpu);
        let mut facts = self.facts(&sale, offset_ms, &outcome, samples.take(), cpu);
        facts.before = before;
        if let Some(operator) = &self.operator {
            let after = once_quiet(clock, async || operator.stats(self.sale).await).await?;
            for offer in &mut facts.offers {
                let stats = after.offers.iter().find(|stats| stats.offer_id == offer.id);
                offer.stock = stats.map(|stats| stats.stock);
            }
            facts.after = Some(after);
            facts.books = operator.books(self.sale).await?;
            facts.audit = operator.audit(clock).await?;
        }
        Ok(Record { facts, outcome })
    }

    async fn stats(&self) -> anyhow::Result<Option<Stats>> {
        match &self.operator {
            Some(operator) => operator.stats(self.sale).await.map(Some),
            None => Ok(None),
        }
    }

    /// The operator's numbers; without a key, only whether the server is there.
    async fn pulse(&self) -> anyhow::Result<Option<Stats>> {
        match &self.operator {
            Some(operator) => operator.stats(self.sale).await.map(Some),
            None => self.desk.is_there().await.map(|()| None),
        }
    }

    /// A crowd whose tokens nobody takes would only be sent away, and prove nothing.
    async fn show_a_token(&self, clock: Clock, offset_ms: i64) -> anyhow::Result<()> {
        let buyer = format!("{}0", self.name);
        let now = clock.now().plus_ms(offset_ms);
        let (token, hint) = match &self.tokens {
            Tokens::Demo => {
                let token = self.desk.log_in(&buyer).await?;
                ensure!(
                    token.is_some(),
                    "--demo-login needs a server in demo mode, and this is none; use --secret"
                );
                (token, "is it still in demo mode?")
            }
            signed @ Tokens::Signed { .. } => (
                Signer::of(signed).and_then(|signer| signer.sign(&buyer, now)),
                "is --secret its `auth.hs256_secret`, and are --issuer and --audience its `auth.issuer` and `auth.audience`?",
            ),
            Tokens::Given(tokens) => {
                let first = tokens.first().map(|given| given.token.to_string());
                (first, "are the tokens of --tokens from its issuer, and still good?")
            }
        };
        let known = Desk::new(self.address.clone(), token).is_known().await?;
        ensure!(known, "{} does not take the buyers' tokens; {hint}", self.address.url);
        Ok(())
    }

    fn settings(&self, sale: &SaleView, clock: Clock, offset_ms: i64) -> CrowdSettings {
        let scenario = &self.scenario.scenario;
        let until_open = Duration::from_millis(clock.now().plus_ms(offset_ms).ms_until(sale.opens_at));
        // Of an open sale the curve begins when everybody had time to open the page.
        let opens_in = match (sale.phase, scenario.arrival.paced) {
            (Phase::Upcoming, _) => until_open,
            (_, Loop::Open) => scenario.arrival.pages_ahead + FIRST_MOMENT,
            (_, Loop::Closed) => Duration::ZERO,
        };
        CrowdSettings {
            host: self.address.host.clone(),
            name: self.name.clone(),
            wanted: scenario.wanted,
            mix: scenario.mix.clone(),
            arrival: scenario.arrival,
            opens_in,
            signs_up: sale.registration == RegistrationKind::Required && sale.phase == Phase::Upcoming,
            connections: self.connections,
            seed: self.seed,
            ..CrowdSettings::new(self.address.addr, sale.id, self.tokens.clone(), self.buyers)
        }
    }

    async fn watch(
        &self,
        crowd: &Crowd,
        sale: &SaleView,
        offset_ms: i64,
        before: Option<&Stats>,
        samples: &Samples,
    ) -> anyhow::Result<Outcome> {
        let view = View {
            progress: crowd.progress(),
            clock: crowd.clock(),
            opens_at: sale.opens_at.plus_ms(offset_ms.saturating_neg()),
            stats: async || self.pulse().await,
            samples,
            crowd: self.buyers.into(),
            stock: before.map(|stats| stats.offers.iter().map(|offer| u64::from(offer.stock)).sum()),
            quiet: self.quiet,
            bears: SILENT_MAX,
        };
        tokio::select! {
            outcome = crowd.run() => outcome,
            failed = view.show() => {
                let s = SILENT_MAX.as_secs();
                Err(failed.context(format!("broken off, because the server was silent for {s} s")))
            }
        }
    }

    fn facts(
        &self,
        sale: &SaleView,
        offset_ms: i64,
        outcome: &Outcome,
        samples: Vec<Sample>,
        cpu: Duration,
    ) -> Facts {
        let scenario = &self.scenario.scenario;
        let offer = |offer: &rules::wire::OfferView| OfferFacts {
            id: offer.id,
            name: offer.name.clone(),
            stock: None,
        };
        Facts {
            stampede: Facts::version(),
            url: self.address.url.clone(),
            sale: sale.id,
            title: sale.title.clone(),
            offers: sale.offers.iter().map(offer).collect(),
            opens_at: sale.opens_at,
            offset_ms,
            scenario: self.scenario.name.clone(),
            scenario_text: self.scenario.text.clone(),
            kinds: scenario.mix.iter().map(|kind| kind.name.clone()).collect(),
            buyers: self.buyers,
            open_loop: scenario.arrival.paced == Loop::Open,
            started_at: outcome.started_at,
            elapsed_us: micros(outcome.elapsed),
            totals: outcome.totals.clone(),
            before: None,
            after: None,
            alone: self.alone,
            samples,
            books: None,
            audit: None,
            cpu_us: micros(cpu),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: kernel(),
            connections: self.connections,
            command: self.command.clone(),
            notes: self.notes.clone(),
        }
    }
}

/// What makes a visit pointless is said before anybody comes.
fn check(sale: &SaleView) -> anyhow::Result<()> {
    if sale.phase == Phase::Closed {
        bail!("the sale `{}` is over; publish one that opens soon, or rehearse this one", sale.title);
    }
    ensure!(
        sale.state != SaleState::Paused,
        "the sale `{}` is paused, so nobody could buy; resume it first",
        sale.title
    );
    ensure!(!sale.offers.is_empty(), "the sale `{}` offers nothing", sale.title);
    ensure!(
        sale.challenge != ChallengeKind::Picture,
        "the sale `{}` asks buyers to read a picture, which a program cannot; `stampede rehearse` runs a copy of it without",
        sale.title
    );
    Ok(())
}

/// Every socket is an open file.
fn raise_file_limit(connections: usize) -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let needed = u64::try_from(connections)?.saturating_add(OTHER_FILES);
    let limit = getrlimit(Resource::Nofile);
    let enough = |limit: Option<u64>| limit.is_none_or(|limit| limit >= needed);
    if enough(limit.current) {
        return Ok(());
    }
    ensure!(
        enough(limit.maximum),
        "--connections {connections} needs {needed} open files, and this system allows {}; raise it (`ulimit -Hn`, or \
         LimitNOFILE of the service), or use --connections {}",
        limit.maximum.unwrap_or(0),
        limit.maximum.unwrap_or(0).saturating_sub(OTHER_FILES)
    );
    setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: limit.maximum })
        .with_context(|| format!("{needed} open files were not granted; run `ulimit -n {needed}` first"))
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{} {}", std::env::consts::OS, release.trim()).trim().to_owned()
}
