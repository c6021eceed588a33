//! One night from outside: look at the sale, show one token, let the crowd in, watch, wait until it is quiet, gather what an operator
//! can see. It judges nothing and knows no command line.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rules::id::SaleId;
use rules::sale::{ChallengeKind, Phase, RegistrationKind, SaleState};
use rules::wire::{SaleView, Stats};

use crate::blast::process_cpu;
use crate::clock::{Clock, micros};
use crate::crowd::{Crowd, CrowdSettings, Outcome, Signer, Tokens, cores};
use crate::desk::{Address, Desk, once_quiet};
use crate::effort::Moments;
use crate::person::{Challenge, solve_pow};
use crate::record::{Facts, OfferFacts, Part, Record};
use crate::say;
use crate::scenario::{Kind, Loaded, Loop, Scenario};
use crate::view::{Sample, Samples, View};
use crate::words::many;

/// How long the server may be silent while the crowd is there.
pub const SILENT_MAX: Duration = Duration::from_secs(30);
/// The first pages are opened so long after the start at the earliest: a moment to get going.
const FIRST_MOMENT: Duration = Duration::from_millis(500);
/// Proofs of work that are solved beforehand, to know how many this machine can.
const PROOFS_TRIED: u32 = 3;
/// No more are tried when that has taken so long.
const PROOFS_WITHIN: Duration = Duration::from_secs(2);
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
    /// How long the server may be silent before everybody is sent home.
    pub bears: Duration,
    /// Nobody else buys in this sale.
    pub alone: bool,
    pub quiet: bool,
    /// What a reader must know of how it was done.
    pub notes: Vec<String>,
    /// The command that repeats it, without secrets.
    pub command: String,
}

impl Visit {
    /// Fails only before the crowd comes. What the buyers were told is kept, whatever else cannot be asked later.
    pub async fn perform(mut self) -> anyhow::Result<Record> {
        raise_file_limit(self.connections)?;
        let clock = Clock::start();
        let sale = self.desk.sale(self.sale).await?;
        let offset_ms = self.desk.offset_ms(clock).await?;
        check(&sale)?;
        self.show_a_token(clock, offset_ms).await?;
        if let Some(proofs) = self.reckon_proofs(&sale, clock, offset_ms).await {
            if !self.quiet {
                say::answer(&proofs);
            }
            self.notes.push(proofs);
        }
        // As the last thing before the crowd comes: whatever changes from here on is to be explained.
        let before = self.stats().await?;
        let crowd = Crowd::new(self.settings(&sale, clock, offset_ms))?;
        let samples = Samples::default();
        let cpu = process_cpu();
        let moments = Moments::default();
        let (outcome, broken_off) = tokio::select! {
            watched = self.watch(&crowd, &sale, offset_ms, before.as_ref(), &samples) => watched?,
            never = moments.keep(crowd.clock()) => match never {},
        };
        let cpu = process_cpu().saturating_sub(cpu);
        let mut facts = self.facts(&sale, offset_ms, &outcome, samples.take(), cpu);
        facts.moments = moments.take();
        facts.before = before;
        match broken_off {
            Some(why) => facts.miss(Part::End, why),
            None => self.gather(&mut facts, clock).await,
        }
        Ok(Record { facts, outcome })
    }

    /// What an operator can see now. What cannot be asked is left out, and that is noted.
    async fn gather(&self, facts: &mut Facts, clock: Clock) {
        let Some(operator) = &self.operator else { return };
        match once_quiet(clock, async || operator.stats(self.sale).await).await {
            Ok(after) => {
                for offer in &mut facts.offers {
                    let stats = after.offers.iter().find(|stats| stats.offer_id == offer.id);
                    offer.stock = stats.map(|stats| stats.stock);
                }
                facts.after = Some(after);
            }
            Err(error) => facts.miss(Part::Stats, format!("{error:#}")),
        }
        match operator.books(self.sale).await {
            Ok(books) => facts.books = books,
            Err(error) => facts.miss(Part::Books, format!("{error:#}")),
        }
        match operator.audit(clock).await {
            Ok(audit) => facts.audit = audit,
            Err(error) => facts.miss(Part::Audit, format!("{error:#}")),
        }
        facts.gathered_at = Some(clock.now().plus_ms(facts.offset_ms));
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
        let (token, hint) = self.first_token(clock, offset_ms).await?;
        let known = Desk::new(self.address.clone(), token).is_known().await?;
        ensure!(known, "{} does not take the buyers' tokens; {hint}", self.address.url);
        Ok(())
    }

    /// The first buyer's token, and what to look at where nobody takes it.
    async fn first_token(
        &self,
        clock: Clock,
        offset_ms: i64,
    ) -> anyhow::Result<(Option<String>, &'static str)> {
        let buyer = format!("{}0", self.name);
        let now = clock.now().plus_ms(offset_ms);
        Ok(match &self.tokens {
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
        })
    }

    /// How many proofs of work this machine solves, against how many the crowd needs; `None` where none are asked for,
    /// or nobody can say.
    async fn reckon_proofs(&self, sale: &SaleView, clock: Clock, offset_ms: i64) -> Option<String> {
        let offer = sale.offers.first().filter(|_| sale.challenge == ChallengeKind::Pow)?.id;
        let (token, _) = self.first_token(clock, offset_ms).await.ok()?;
        let desk = Desk::new(self.address.clone(), token);
        let (mut solved, mut took) = (0_u32, Duration::ZERO);
        while solved < PROOFS_TRIED && took < PROOFS_WITHIN {
            let Challenge::Pow(challenge) = desk.challenge(offer).await.ok()? else { return None };
            let begun = clock.instant();
            tokio::task::spawn_blocking(move || solve_pow(*challenge)).await.ok()?.0?;
            took += clock.instant().saturating_duration_since(begun);
            solved += 1;
        }
        let solvers = f64::from(u32::try_from(cores()).unwrap_or(u32::MAX));
        let can = solvers * f64::from(solved) / took.as_secs_f64().max(0.001);
        Some(proofs_in_words(can, proofs_needed(&self.scenario.scenario, self.buyers)))
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
            patience: scenario.patience,
            opens_in,
            signs_up: sale.registration == RegistrationKind::Required && sale.phase == Phase::Upcoming,
            connections: self.connections,
            seed: self.seed,
            ..CrowdSettings::new(self.address.addr, sale.id, self.tokens.clone(), self.buyers)
        }
    }

    /// What became of the crowd, and why it was sent home if it was.
    async fn watch(
        &self,
        crowd: &Crowd,
        sale: &SaleView,
        offset_ms: i64,
        before: Option<&Stats>,
        samples: &Samples,
    ) -> anyhow::Result<(Outcome, Option<String>)> {
        let view = View {
            progress: crowd.progress(),
            clock: crowd.clock(),
            opens_at: sale.opens_at.plus_ms(offset_ms.saturating_neg()),
            stats: async || self.pulse().await,
            samples,
            crowd: self.buyers.into(),
            stock: before.map(|stats| stats.offers.iter().map(|offer| u64::from(offer.stock)).sum()),
            quiet: self.quiet,
            bears: self.bears,
        };
        let mut running = Box::pin(crowd.run());
        tokio::select! {
            outcome = &mut running => Ok((outcome?, None)),
            failed = view.show() => {
                crowd.call_off();
                let why = format!("the server was silent for {} s ({failed:#})", self.bears.as_secs());
                Ok((running.await?, Some(why)))
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
            threads: tokio::runtime::Handle::current().metrics().num_workers(),
            moments: Vec::new(),
            kernel: kernel(),
            connections: self.connections,
            command: self.command.clone(),
            notes: self.notes.clone(),
            gathered_at: None,
            missing: Vec::new(),
        }
    }
}

/// Proofs of work that are due in a second, on average; `None`: nobody is in a hurry (closed loop).
fn proofs_needed(scenario: &Scenario, buyers: u32) -> Option<f64> {
    let arrival = &scenario.arrival;
    let sum = |of: fn(&Kind) -> f64| scenario.mix.iter().map(of).sum::<f64>();
    let per_buyer = sum(|kind| kind.share * f64::from(kind.passes)) / sum(|kind| kind.share);
    let within = (arrival.passes_ahead + arrival.within).as_secs_f64().max(1.0);
    (arrival.paced == Loop::Open).then(|| f64::from(buyers) * per_buyer / within)
}

fn proofs_in_words(can: f64, needed: Option<f64>) -> String {
    let whole =
        |rate: f64| many(Duration::from_secs(1).mul_f64(rate.clamp(0.0, 1e9)).as_secs().max(1), "proof");
    let can_in_words = format!("This machine solves about {} of work a second", whole(can));
    match needed {
        None => format!("{can_in_words}; the crowd comes no faster than that."),
        Some(needed) if can >= needed => {
            format!("{can_in_words}; the crowd needs about {} a second.", whole(needed))
        }
        Some(needed) => format!(
            "{can_in_words}, and the crowd needs about {} a second: passes will be late, and that is not the shop's \
             doing. Send fewer buyers, give them more time (--within), or use a machine with more cores.",
            whole(needed)
        ),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeShop, Manners, SECRET};
    use crate::scenario;
    use crate::verdict::judge;

    async fn visit(shop: &FakeShop, scenario: &str) -> Visit {
        let address = Address::find(&format!("http://{}", shop.addr())).await.unwrap();
        let (name, text) = ("test".to_owned(), scenario.to_owned());
        Visit {
            desk: Desk::new(address.clone(), None),
            operator: Some(shop.desk().await),
            sale: shop.sale(),
            scenario: Loaded { name, scenario: scenario::parse(&text).unwrap(), text },
            tokens: Tokens::signed(SECRET),
            name: "buyer-".into(),
            buyers: 20,
            connections: 8,
            seed: 1,
            bears: Duration::from_millis(200),
            alone: true,
            quiet: true,
            notes: vec![],
            command: "stampede run".into(),
            address,
        }
    }

    #[tokio::test]
    async fn a_server_that_falls_silent_ends_the_night_and_not_what_was_told() {
        let shop = FakeShop::open(Manners { dies_after: 80, ..Manners::default() });
        let scenario = "title = \"t\"\n[arrival]\nwithin = \"0ms\"\npages_ahead = \"0ms\"\n[[person]]\n";
        let record = visit(&shop, scenario).await.perform().await.unwrap();
        assert!(record.facts.lacks(Part::End), "{:?}", record.facts.missing);
        let told: usize = record.outcome.histories.iter().map(|history| history.events.len()).sum();
        assert!(told >= 20, "{told}");
        assert_eq!(judge(&record.evidence()), []);
        assert!(record.proves_nothing().unwrap().contains("the server was silent"));
        let file = std::env::temp_dir().join(format!("stampede-silent-{}.jsonl", std::process::id()));
        record.write(&file).unwrap();
        let read = Record::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(read.facts.missing, record.facts.missing);
        assert_eq!(read.outcome.histories.len(), record.outcome.histories.len());
    }

    #[test]
    fn proofs_of_work_are_reckoned_before_anybody_comes() {
        let text = "title = \"t\"\n[arrival]\nwithin = \"5s\"\npasses_ahead = \"5s\"\n[[person]]\n[[person]]\npasses = 3\n";
        let needed = proofs_needed(&scenario::parse(text).unwrap(), 1_000);
        assert_eq!(needed, Some(200.0));
        let enough = proofs_in_words(250.4, needed);
        assert_eq!(
            enough,
            "This machine solves about 250 proofs of work a second; the crowd needs about 200 proofs a second."
        );
        let few = proofs_in_words(20.0, needed);
        assert!(few.contains("20 proofs of work a second, and the crowd needs about 200"), "{few}");
        assert!(few.contains("not the shop's doing") && few.contains("--within"), "{few}");
        let closed = text.replace("[arrival]", "[arrival]\nloop = \"closed\"");
        let needed = proofs_needed(&scenario::parse(&closed).unwrap(), 1_000);
        assert!(needed.is_none() && proofs_in_words(20.0, None).contains("no faster"));
    }
}
