//! The report of a run: one page to look at and one JSON document to compute with. A pure function of what was seen:
//! it asks nobody, reads no clock and opens no file, and it judges nothing; the verdict comes in words.

mod calls;
mod chart;
mod digest;
mod fairness;
mod page;
mod pictures;
mod series;
mod stock;
mod words;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use rules::id::OfferId;
use rules::time::UnixMs;
use serde_json::{Value, json};

use digest::Digest;

use crate::clock::micros;
use crate::crowd::Percentiles;
use crate::history::History;
use crate::rehearsal::Rehearsal;

/// The facts of one run.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub scenario: Scenario<'a>,
    /// The server that was visited.
    pub url: &'a str,
    /// The sale's title.
    pub sale: &'a str,
    pub offers: &'a [Offer<'a>],
    /// When the crowd was let loose: zero of the histories' microseconds.
    pub started_at: UnixMs,
    /// When the sale opened, by the crowd's clock. May lie before the start.
    pub opened_at: UnixMs,
    /// From the start until the last buyer was done, the last looks not included.
    pub elapsed: Duration,
    /// Buyers that were asked for; `histories` may hold fewer when the run was cut short.
    pub buyers: u32,
    pub histories: &'a [History],
    /// What kind of buyer each history is of ("human", "bot"), in the same order. Empty: all of one kind.
    pub roles: &'a [&'a str],
    /// The operator's stats while it ran, in any order. Empty: the stock is drawn from what the buyers were told.
    pub stock: &'a [StockSample],
    pub verdict: Verdict<'a>,
    /// What a rehearsal says, if it was one.
    pub rehearsal: Option<&'a Rehearsal>,
    /// Sentences that stand below the verdict: what a reader must know.
    pub notes: &'a [String],
    pub generator: Generator,
    pub conditions: Conditions<'a>,
    /// The command that repeats the run.
    pub command: &'a str,
}

/// What the crowd was told to do.
#[derive(Clone, Copy, Debug)]
pub struct Scenario<'a> {
    pub name: &'a str,
    /// The TOML, shown as it is.
    pub text: &'a str,
}

/// One product of the sale.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    pub id: OfferId,
    pub name: &'a str,
    /// `None`: only the operator knows.
    pub stock: Option<u32>,
}

/// What the operator's stats said of one offer at one moment.
#[derive(Clone, Copy, Debug)]
pub struct StockSample {
    /// Microseconds since the start.
    pub at_us: u64,
    pub offer: OfferId,
    pub free: u32,
}

/// What the judge said.
#[derive(Clone, Copy, Debug)]
pub enum Verdict<'a> {
    /// One sentence per promise that was not kept; none is clean.
    Judged(&'a [String]),
    /// Nobody judged, and why ("no admin key was given").
    NotJudged(&'a str),
}

/// How well the crowd itself did: whether the figures tell of the server or of the tool.
#[derive(Clone, Copy, Debug)]
pub struct Generator {
    /// How late the buyers acted after the moment they had planned to. `None`: nobody had a plan (closed loop).
    pub lateness: Option<Percentiles>,
    /// CPU time of the generator.
    pub cpu: Duration,
    /// Requests it was spent on.
    pub requests: u64,
    /// Of them, POSTs of orders.
    pub tries: u64,
    /// Of the CPU time, what proofs of work took: a buyer's own device does that work.
    pub solving: Duration,
    /// Tries that were planned.
    pub offered: u64,
    /// Tries that were sent in their time.
    pub achieved: u64,
    /// Tries that the crowd got round to in their time, with or without a free socket.
    pub awake: u64,
    /// Buyers who had no pass yet when their click was due: the shop's slowness, not the crowd's.
    pub late_passes: u64,
}

impl Generator {
    /// CPU time per POST of an order, in microseconds: all that buyers do around it included, proofs of work aside.
    fn cpu_us_per_try(&self) -> Option<u64> {
        micros(self.cpu.saturating_sub(self.solving)).checked_div(self.tries)
    }
}

/// Where it ran.
#[derive(Clone, Copy, Debug)]
pub struct Conditions<'a> {
    pub cores: usize,
    pub kernel: &'a str,
    /// Whatever else a reader who doubts the figures would ask: name and value, with its unit.
    pub more: &'a [(String, String)],
}

/// The report as one self-contained page.
#[must_use]
pub fn html(input: &Input<'_>) -> String {
    page::render(input, &Digest::of(input))
}

/// The report for machines: the facts, and every number the page shows. Times are microseconds since the start where
/// the name ends in `_us`.
#[must_use]
pub fn json(input: &Input<'_>) -> Value {
    let (clean, findings, not_judged) = match input.verdict {
        Verdict::Judged(findings) => (Some(findings.is_empty()), findings, None),
        Verdict::NotJudged(why) => (None, [].as_slice(), Some(why)),
    };
    let Generator { lateness, cpu, requests, tries, solving, offered, achieved, awake, late_passes } =
        input.generator;
    let cpu_us = micros(cpu);
    json!({
        "sale": input.sale,
        "url": input.url,
        "scenario": { "name": input.scenario.name, "text": input.scenario.text },
        "started_at": input.started_at,
        "opened_at": input.opened_at,
        "elapsed_us": micros(input.elapsed),
        "buyers": input.buyers,
        "verdict": { "clean": clean, "findings": findings, "not_judged": not_judged },
        "notes": input.notes,
        "generator": {
            "lateness": lateness,
            "cpu_us": cpu_us,
            "requests": requests,
            "cpu_us_per_request": cpu_us.checked_div(requests),
            "solving_us": micros(solving),
            "order_posts": tries,
            "cpu_us_per_order_post": input.generator.cpu_us_per_try(),
            "offered": offered,
            "achieved": achieved,
            "awake": awake,
            "late_passes": late_passes,
        },
        "conditions": {
            "cores": input.conditions.cores,
            "kernel": input.conditions.kernel,
            "more": input.conditions.more.iter().cloned().collect::<BTreeMap<_, _>>(),
        },
        "command": input.command,
        "figures": Digest::of(input),
    })
}
