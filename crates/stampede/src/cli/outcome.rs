//! What is said and written after a night: the verdict in words, the report, the JSON, the history.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser as _};
use serde_json::{Value, json};

use super::Exit;
use crate::crowd::Snapshot;
use crate::history::{Call, Told, What};
use crate::record::{Missing, Part, Record};
use crate::rehearsal::Rehearsal;
use crate::report;
use crate::say;
use crate::summary::Summary;
use crate::verdict::{Finding, judge};
use crate::words::{capital, many, span, thousands};

/// Where the answers go.
#[derive(Debug, Args)]
pub struct Output {
    /// Writes the report as one HTML page.
    #[arg(long, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(a_file))]
    report: Option<PathBuf>,
    /// Writes everything as JSON; `-` is standard output, and then nothing else is said there.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Says only what is wrong.
    #[arg(long, short)]
    quiet: bool,
}

/// A night with its judgement.
#[derive(Debug)]
pub struct Judged {
    pub record: Record,
    findings: Vec<Finding>,
    summary: Summary,
}

impl Judged {
    pub fn of(record: Record) -> Self {
        let evidence = record.evidence();
        let findings = judge(&evidence);
        let summary = Summary::of(&record.outcome, record.facts.opens_at, &evidence, &findings);
        Self { findings, summary, record }
    }

    pub fn is_clean(&self) -> bool {
        self.summary.kept()
    }

    /// A broken promise weighs more than a night that proves nothing, or of which something could not be asked.
    pub fn exit(&self) -> Exit {
        let is_whole = self.record.proves_nothing().is_none() && self.record.facts.missing.is_empty();
        match (self.is_clean(), is_whole) {
            (false, _) => Exit::Violated,
            (true, false) => Exit::Failed,
            (true, true) => Exit::Clean,
        }
    }

    pub fn violations(&self) -> usize {
        self.summary.sentences().len()
    }

    /// What was not compared, and why: silence would look like a yes.
    fn notes(&self) -> Vec<String> {
        let facts = &self.record.facts;
        let mut notes = facts.notes.clone();
        notes.extend(self.nothing());
        notes.extend(facts.missing.iter().map(Missing::sentence));
        let broken_off = facts.lacks(Part::End);
        if facts.after.is_none() && !facts.lacks(Part::Stats) && !broken_off {
            notes.push(
                "Without --admin-key the stock was not compared, only what the buyers were told.".to_owned(),
            );
        } else if !broken_off {
            if !facts.alone {
                notes.push("Others bought too, so only what holds in any company was compared.".to_owned());
            }
            if facts.books.is_none() && !facts.lacks(Part::Books) {
                notes.push(
                    "There are too many orders to compare them one by one with the operator's list."
                        .to_owned(),
                );
            }
            if facts.audit.is_none() && !facts.lacks(Part::Audit) {
                notes.push("The shop's own audit is not available at this server.".to_owned());
            }
        }
        if facts.totals.no_payment > 0 {
            let wanted = many(facts.totals.no_payment, "buyer");
            notes.push(format!("{wanted} wanted to pay: payment is not available at this server."));
        }
        if facts.totals.not_late > 0 {
            let wanted = many(facts.totals.not_late, "buyer");
            notes.push(format!(
                "{wanted} wanted to pay late; the deadline is beyond their patience, so they did not. Raise `patience` in \
                 the scenario above the sale's `pay_within_s`, or lower that."
            ));
        }
        notes.extend(self.watchers());
        notes
    }

    /// What the watchers' sockets did not do.
    fn watchers(&self) -> Vec<String> {
        let Snapshot { watchers, no_room, .. } = self.record.facts.totals;
        let mut notes = Vec::new();
        if no_room > 0 {
            let (no_room, watchers) = (thousands(no_room), many(watchers, "watcher"));
            notes.push(format!(
                "{no_room} of {watchers} found no socket to keep open with the page, and opened one after their try if that won; a \
                 quarter of --connections is for pages."
            ));
        }
        let cut = |told: &Told| match &told.what {
            What::Broken { call: Call::Push, why, .. } => Some(why.clone()),
            _ => None,
        };
        let histories = self.record.outcome.histories.iter();
        let mut lost = histories.filter_map(|history| history.events.iter().find_map(cut));
        if let Some(why) = lost.next() {
            let lost = many(u64::try_from(lost.count()).unwrap_or(u64::MAX).saturating_add(1), "watcher");
            notes.push(format!(
                "{lost} got no socket or lost it, and looked instead, one of them because: {why}."
            ));
        }
        notes
    }

    /// That nothing was proven, as a sentence. Of a night that was broken off, what is missing says so.
    fn nothing(&self) -> Option<String> {
        if self.record.facts.lacks(Part::End) {
            return None;
        }
        self.record.proves_nothing().map(|why| format!("{}.", capital(&why)))
    }

    fn to_json(&self, rehearsal: Option<&Rehearsal>) -> Value {
        let (sentences, notes) = (self.summary.sentences(), self.notes());
        let report = self.record.report(&sentences, rehearsal, &notes, report::json);
        json!({
            "kept": self.is_clean(),
            "findings": self.findings,
            "sentences": sentences,
            "notes": notes,
            "rehearsal": rehearsal,
            "totals": self.record.facts.totals,
            "summary": self.summary.to_json(&self.record.facts.url),
            "missing": self.record.facts.missing,
            "cpu_per_call_us": self.record.facts.cpu_us.checked_div(self.record.facts.totals.calls),
            "report": report,
        })
    }
}

impl Output {
    /// Whether there is to be no live view on standard output.
    pub fn is_silent(&self) -> bool {
        self.quiet || self.to_stdout()
    }

    fn to_stdout(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// Files that cannot be written are noticed before the crowd comes, not after.
    pub fn check(&self) -> anyhow::Result<()> {
        for file in self.report.iter().chain(&self.json).filter(|file| *file != Path::new("-")) {
            check_writable(file)?;
        }
        Ok(())
    }

    pub fn give(&self, judged: &Judged, rehearsal: Option<&Rehearsal>) -> anyhow::Result<()> {
        if let Some(file) = &self.report {
            let (sentences, notes) = (judged.summary.sentences(), judged.notes());
            write(file, &judged.record.report(&sentences, rehearsal, &notes, report::html))?;
        }
        match &self.json {
            Some(_) if self.to_stdout() => say::answer(&judged.to_json(rehearsal).to_string()),
            Some(file) => write(file, &format!("{:#}\n", judged.to_json(rehearsal)))?,
            None => {}
        }
        if !self.to_stdout() {
            self.talk(judged, rehearsal);
        }
        Ok(())
    }

    fn talk(&self, judged: &Judged, rehearsal: Option<&Rehearsal>) {
        if self.quiet {
            // A rehearsal says by itself that nothing was proven.
            let nothing = judged.nothing().filter(|_| rehearsal.is_none());
            let missing = judged.record.facts.missing.iter().map(Missing::sentence);
            let broken = judged.summary.sentences().into_iter().chain(nothing).chain(missing);
            broken.for_each(|sentence| say::answer(&sentence));
            if let Some(rehearsal) = rehearsal.filter(|rehearsal| !rehearsal.holds) {
                say::answer(&rehearsal.to_text());
            }
            return;
        }
        say::answer(&judged.summary.to_text());
        if let Some(rehearsal) = rehearsal {
            say::answer(&format!("{}\n", rehearsal.to_text()));
        }
        let facts = &judged.record.facts;
        let cpu = std::time::Duration::from_micros(facts.cpu_us.checked_div(facts.totals.calls).unwrap_or(0));
        say::answer(&format!(
            "  The crowd made {}, at {} of CPU each.",
            many(facts.totals.calls, "call"),
            span(cpu)
        ));
        judged.notes().iter().for_each(|note| say::answer(&format!("  {note}")));
        if let Some(file) = &self.report {
            say::answer(&format!("  The report is in {}.", file.display()));
        }
    }
}

/// Leaves nothing behind where nothing was: an empty report would look like one.
pub fn check_writable(file: &Path) -> anyhow::Result<()> {
    let is_new = !file.exists();
    let cannot = || format!("{} cannot be written; does its folder exist?", file.display());
    std::fs::OpenOptions::new().create(true).append(true).open(file).with_context(cannot)?;
    if is_new {
        std::fs::remove_file(file).with_context(cannot)?;
    }
    Ok(())
}

/// `-` is standard output elsewhere, and would be a strange name for a file.
pub fn a_file(file: PathBuf) -> Result<PathBuf, &'static str> {
    if file == Path::new("-") { Err("only --json can go to standard output; name a file") } else { Ok(file) }
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(file, text).with_context(|| format!("{} cannot be written", file.display()))
}
