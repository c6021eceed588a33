//! All facts of one night, as they are kept in a file and judged again later: one line of JSON for the night, then one
//! per buyer. It computes nothing; `verdict`, `summary` and `report` do.

use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rules::id::{OfferId, SaleId};
use rules::time::UnixMs;
use rules::wire::{OperatorOrder, Stats};
use serde::{Deserialize, Serialize};

use crate::crowd::{Outcome, Snapshot};
use crate::effort::Moment;
use crate::history::History;
use crate::rehearsal::Rehearsal;
use crate::report;
use crate::verdict::{Audit, Evidence};
use crate::view::Sample;
use crate::words::thousands;

/// The version of the file. Another one is refused rather than half understood.
const VERSION: u32 = 1;

/// One night.
#[derive(Clone, Debug)]
pub struct Record {
    pub facts: Facts,
    pub outcome: Outcome,
}

/// What is known of the night as a whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// The version of the file.
    pub stampede: u32,
    pub url: String,
    pub sale: SaleId,
    pub title: String,
    pub offers: Vec<OfferFacts>,
    /// The opening, by the server's clock.
    pub opens_at: UnixMs,
    /// The server's clock minus the crowd's, in milliseconds.
    pub offset_ms: i64,
    pub scenario: String,
    pub scenario_text: String,
    /// The names of the mix, by position.
    pub kinds: Vec<String>,
    pub buyers: u32,
    pub open_loop: bool,
    pub started_at: UnixMs,
    pub elapsed_us: u64,
    pub totals: Snapshot,
    pub before: Option<Stats>,
    pub after: Option<Stats>,
    /// Nobody else bought, paid or cancelled.
    pub alone: bool,
    pub samples: Vec<Sample>,
    pub books: Option<Vec<OperatorOrder>>,
    pub audit: Option<Audit>,
    /// CPU time of the crowd, in microseconds.
    pub cpu_us: u64,
    pub cores: usize,
    /// Threads that drove the crowd.
    #[serde(default)]
    pub threads: usize,
    /// What the crowd and its machine used up to each moment.
    #[serde(default)]
    pub moments: Vec<Moment>,
    pub kernel: String,
    pub connections: usize,
    /// The command that repeats the night, without secrets.
    pub command: String,
    /// What a reader must know of how it was done.
    #[serde(default)]
    pub notes: Vec<String>,
    /// When the operator's side had been asked for the last time, by the server's clock.
    #[serde(default)]
    pub gathered_at: Option<UnixMs>,
    /// What could not be asked, and why: the night is kept without it.
    #[serde(default)]
    pub missing: Vec<Missing>,
}

/// A part of the night that nobody could get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub part: Part,
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The end: everybody was sent home before it.
    End,
    Stats,
    Books,
    Audit,
}

impl Missing {
    /// As a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let why = &self.why;
        match self.part {
            Part::End => {
                format!("The night was broken off: {why}. What came before is kept; its end is not judged.")
            }
            Part::Stats => {
                format!("The operator's numbers could not be read, so the stock was not compared: {why}.")
            }
            Part::Books => {
                format!("The operator's list could not be read, so no order was compared with it: {why}.")
            }
            Part::Audit => format!("The shop's own audit could not be had: {why}."),
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OfferFacts {
    pub id: OfferId,
    pub name: String,
    /// `None`: nobody asked the operator.
    pub stock: Option<u32>,
}

#[derive(Serialize)]
struct LineOut<'a> {
    kind: usize,
    #[serde(flatten)]
    history: &'a History,
}

#[derive(Deserialize)]
struct LineIn {
    #[serde(default)]
    kind: usize,
    #[serde(flatten)]
    history: History,
}

impl Facts {
    #[must_use]
    pub const fn version() -> u32 {
        VERSION
    }

    /// Notes that a part could not be had.
    pub fn miss(&mut self, part: Part, why: impl Into<String>) {
        self.missing.push(Missing { part, why: why.into() });
    }

    /// Whether this part could not be asked for.
    #[must_use]
    pub fn lacks(&self, part: Part) -> bool {
        self.missing.iter().any(|missing| missing.part == part)
    }
}

impl Record {
    /// What a judge needs of it.
    #[must_use]
    pub fn evidence(&self) -> Evidence<'_> {
        let facts = &self.facts;
        Evidence {
            histories: &self.outcome.histories,
            started_at: Some(facts.started_at),
            after: facts.after.as_ref(),
            alone_since: facts.before.as_ref().filter(|_| facts.alone),
            books: facts.books.as_deref(),
            audit: facts.audit.as_ref(),
            gathered_at: facts.gathered_at,
            broken_off: facts.lacks(Part::End),
        }
    }

    /// The opening, by the crowd's clock.
    #[must_use]
    pub const fn opened_at(&self) -> UnixMs {
        self.facts.opens_at.plus_ms(self.facts.offset_ms.saturating_neg())
    }

    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let file =
            std::fs::File::create(path).with_context(|| format!("{} cannot be written", path.display()))?;
        let mut out = BufWriter::new(file);
        serde_json::to_writer(&mut out, &self.facts)?;
        out.write_all(b"\n")?;
        for (position, history) in self.outcome.histories.iter().enumerate() {
            let kind = self.outcome.kinds.get(position).copied().unwrap_or(0);
            serde_json::to_writer(&mut out, &LineOut { kind, history })?;
            out.write_all(b"\n")?;
        }
        out.flush().with_context(|| format!("{} cannot be written", path.display()))
    }

    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let file = std::fs::File::open(path).with_context(|| {
            format!("{} cannot be read; `stampede run --history FILE` writes one", path.display())
        })?;
        let unreadable = || format!("{} cannot be read as text", path.display());
        let mut lines = BufReader::new(file).lines();
        let first = lines.next().with_context(|| format!("{} is empty", path.display()))?;
        let first = first.with_context(unreadable)?;
        let facts: Facts = serde_json::from_str(&first).with_context(|| {
            format!("the first line of {} does not describe a night; is it a history file?", path.display())
        })?;
        ensure!(
            facts.stampede == VERSION,
            "{} is of version {}, this program reads version {VERSION}",
            path.display(),
            facts.stampede
        );
        let (mut histories, mut kinds) = (Vec::new(), Vec::new());
        for (number, line) in lines.enumerate() {
            let line: LineIn = serde_json::from_str(&line.with_context(unreadable)?)
                .with_context(|| format!("line {} of {} is no history", number + 2, path.display()))?;
            histories.push(line.history);
            kinds.push(line.kind);
        }
        let (started_at, totals) = (facts.started_at, facts.totals.clone());
        let elapsed = Duration::from_micros(facts.elapsed_us);
        Ok(Self { outcome: Outcome { started_at, elapsed, totals, histories, kinds }, facts })
    }

    /// Why the night proves nothing, if it does not.
    #[must_use]
    pub fn proves_nothing(&self) -> Option<String> {
        if let Some(end) = self.facts.missing.iter().find(|missing| missing.part == Part::End) {
            return Some(format!("the night was broken off, so nothing is proven: {}", end.why));
        }
        let Snapshot { tries, refused, .. } = &self.facts.totals;
        let heard = refused.iter().max_by_key(|(_, count)| **count);
        let heard = heard.map_or(String::new(), |(code, _)| format!("; most were told `{code}`"));
        (*tries == 0).then(|| format!("nobody got as far as a try, so nothing was proven{heard}"))
    }

    /// Hands the facts to `with` in the form a report is made of.
    pub fn report<T>(
        &self,
        sentences: &[String],
        rehearsal: Option<&Rehearsal>,
        notes: &[String],
        with: impl FnOnce(&report::Input<'_>) -> T,
    ) -> T {
        let Facts { title, kinds, totals, .. } = &self.facts;
        let offers: Vec<report::Offer<'_>> = self.facts.offers.iter().map(OfferFacts::to_report).collect();
        let role = |kind: &usize| kinds.get(*kind).map_or("human", String::as_str);
        let roles: Vec<&str> = self.outcome.kinds.iter().map(role).collect();
        let stock: Vec<report::StockSample> = self.facts.samples.iter().map(to_stock).collect();
        let nothing = self.proves_nothing().filter(|_| sentences.is_empty());
        let verdict =
            nothing.as_deref().map_or(report::Verdict::Judged(sentences), report::Verdict::NotJudged);
        let more = [
            ("sockets".to_owned(), thousands(u64::try_from(self.facts.connections).unwrap_or(u64::MAX))),
            ("answered calls".to_owned(), thousands(totals.calls)),
        ];
        with(&report::Input {
            scenario: report::Scenario { name: &self.facts.scenario, text: &self.facts.scenario_text },
            url: &self.facts.url,
            sale: title,
            offers: &offers,
            started_at: self.facts.started_at,
            opened_at: self.opened_at(),
            elapsed: self.outcome.elapsed,
            buyers: self.facts.buyers,
            histories: &self.outcome.histories,
            roles: &roles,
            stock: &stock,
            verdict,
            rehearsal,
            notes,
            generator: report::Generator {
                lateness: self.facts.open_loop.then_some(totals.late),
                cpu: Duration::from_micros(self.facts.cpu_us),
                requests: totals.calls,
                tries: totals.tries,
                solving: Duration::from_micros(totals.solving_us),
                offered: totals.late.count,
                achieved: totals.in_time,
                awake: totals.awake,
                late_passes: totals.late_passes,
            },
            conditions: report::Conditions {
                cores: self.facts.cores,
                kernel: &self.facts.kernel,
                more: &more,
            },
            command: &self.facts.command,
        })
    }
}

impl OfferFacts {
    fn to_report(&self) -> report::Offer<'_> {
        report::Offer { id: self.id, name: &self.name, stock: self.stock }
    }
}

const fn to_stock(sample: &Sample) -> report::StockSample {
    report::StockSample { at_us: sample.at_us, offer: sample.offer, free: sample.free }
}
