//! Figures, samples and conditions: a table for people, JSON for machines. Measures nothing but the disk.

use std::path::Path;
use std::time::Instant;

use anyhow::ensure;
use serde_json::{Map, Value, json};

use crate::Plan;
use crate::disk;

/// Figures that others look up in the JSON by these names: a run of everything has each of them, or says why not.
const PROMISED: [&str; 12] = [
    "refuse_vs_hyper",
    "refuse_cpu_vs_hyper",
    "accept_vs_hyper",
    "accept_vs_nginx_redis",
    "refuse_vs_nginx_redis",
    "refuse_vs_nginx_local_flag",
    "accept_cpu_vs_nginx_redis",
    "accept_p99_ms_half_load",
    "goodput_at_10x",
    "goodput_slowloris",
    "gate_bytes_per_claim",
    "start_1m_orders_s",
];

/// Names promised in the same way, whose deployments do not exist yet.
const OF_LATER_DEPLOYMENTS: [&str; 6] = [
    "pg_record_vs_copy",
    "pg_record_vs_row",
    "mysql_record_vs_insert",
    "redis_decisions_vs_single",
    "cluster_cpu_vs_nginx_redis",
    "cluster_always_vs_nginx_redis_always",
];

/// What a figure must reach and what it aims at.
#[derive(Clone, Copy, Debug)]
pub enum Goal {
    AtLeast {
        must: f64,
        target: f64,
    },
    AtMost {
        must: f64,
        target: f64,
    },
    /// Printed so that a reader can judge the others.
    Information,
}

impl Goal {
    /// `target`, `must`, `MISSED`, or nothing where nothing was asked.
    pub fn verdict(self, value: f64) -> &'static str {
        let (reaches_target, reaches_must) = match self {
            Self::AtLeast { must, target } => (value >= target, value >= must),
            Self::AtMost { must, target } => (value <= target, value <= must),
            Self::Information => return "",
        };
        match (reaches_target, reaches_must) {
            (true, _) => "target",
            (false, true) => "must",
            (false, false) => "MISSED",
        }
    }

    pub fn text(self) -> String {
        match self {
            Self::AtLeast { must, target } => format!(">= {must} / {target}"),
            Self::AtMost { must, target } => format!("<= {must} / {target}"),
            Self::Information => String::new(),
        }
    }
}

/// One row of the table.
#[derive(Clone, Debug)]
pub struct Figure {
    pub name: &'static str,
    pub value: f64,
    pub unit: &'static str,
    pub what: &'static str,
    pub goal: Goal,
}

impl Figure {
    fn row(&self) -> String {
        let Self { name, value, unit, what, goal } = self;
        let (goals, verdict) = (goal.text(), goal.verdict(*value));
        format!("{name:<28} {value:>12.3} {unit:<5} {goals:>14}  {verdict:<7} {what}")
    }
}

/// A bar of a picture: one contender's median, with the least and the most that it reached.
#[derive(Clone, Debug)]
pub struct Bar {
    pub label: String,
    pub ours: bool,
    pub value: f64,
    pub least: f64,
    pub most: f64,
}

impl Bar {
    pub fn of(label: &str, ours: bool, samples: &[f64]) -> Self {
        let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let most = samples.iter().copied().fold(0.0, f64::max);
        Self { label: label.to_owned(), ours, value: median(samples), least, most }
    }
}

/// Bars that share a scale.
#[derive(Clone, Debug)]
pub struct Picture {
    pub file: &'static str,
    pub title: &'static str,
    pub unit: &'static str,
    pub bars: Vec<Bar>,
}

/// A table for the document that is no figure: what was seen on the way.
#[derive(Clone, Debug)]
pub struct Table {
    pub title: &'static str,
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

/// Everything one run of the bench found out.
pub struct Report {
    began: Instant,
    pub figures: Vec<Figure>,
    pub absent: Vec<(String, String)>,
    pub conditions: Map<String, Value>,
    pub pictures: Vec<Picture>,
    pub tables: Vec<Table>,
    raw: Map<String, Value>,
    commands: Vec<String>,
}

impl Report {
    pub fn new(plan: &Plan) -> Self {
        let conditions = json!({
            "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            "cpu": cpu_model(),
            "kernel": read("/proc/sys/kernel/osrelease"),
            "load_before": read("/proc/loadavg"),
            "quick": plan.quick,
            "run_s": plan.run.as_secs_f64(),
            "repetitions": plan.repetitions,
            "connections": plan.connections,
            "generator_threads": plan.threads,
            "fdatasync_p50_us": disk::sync_p50_us(),
        });
        println!("conditions: {conditions}");
        println!("the load generator runs on the same cores; trust ratios, not rates");
        let Value::Object(conditions) = conditions else { unreachable!("an object was written above") };
        Self {
            began: Instant::now(),
            figures: Vec::new(),
            absent: Vec::new(),
            conditions,
            pictures: Vec::new(),
            tables: Vec::new(),
            raw: Map::new(),
            commands: Vec::new(),
        }
    }

    /// A line for the person who waits.
    pub fn say(&self, text: &str) {
        let elapsed = self.began.elapsed().as_secs();
        println!("[{:>2}:{:02}] {text}", elapsed / 60, elapsed % 60);
    }

    pub fn figure(
        &mut self,
        name: &'static str,
        value: f64,
        unit: &'static str,
        what: &'static str,
        goal: Goal,
    ) {
        let figure = Figure { name, value, unit, what, goal };
        println!("{}", figure.row());
        self.figures.push(figure);
    }

    /// A figure that could not be measured. It is missing, never made up.
    pub fn absent(&mut self, name: &str, why: &str) {
        println!("{name:<28} no figure: {why}");
        self.absent.push((name.to_owned(), why.to_owned()));
    }

    pub fn condition(&mut self, name: &str, value: Value) {
        println!("condition: {name} = {value}");
        self.conditions.insert(name.to_owned(), value);
    }

    pub fn raw(&mut self, name: &str, value: Value) {
        self.raw.insert(name.to_owned(), value);
    }

    /// How a contender was started.
    pub fn command(&mut self, line: String) {
        if !self.commands.contains(&line) {
            self.commands.push(line);
        }
    }

    pub fn table(&self) {
        println!("\n{:<28} {:>12} {:<5} {:>14}", "figure", "value", "unit", "must / target");
        for figure in &self.figures {
            println!("{}", figure.row());
        }
        for (name, why) in &self.absent {
            println!("{name:<28} no figure: {why}");
        }
    }

    /// Says of which figures there is none because nothing could be measured yet.
    pub fn absent_deployments(&mut self) {
        for name in OF_LATER_DEPLOYMENTS {
            self.absent(name, "its deployment does not exist yet");
        }
    }

    /// After a run of everything: whoever compares it with another finds what was promised.
    pub fn check_names(&self) -> anyhow::Result<()> {
        let figures = self.figures.iter().map(|figure| figure.name);
        let said: Vec<&str> = figures.chain(self.absent.iter().map(|(name, _)| name.as_str())).collect();
        let missing: Vec<_> = PROMISED.iter().filter(|name| !said.contains(name)).collect();
        ensure!(
            missing.is_empty(),
            "figures that were promised are neither there nor said to be absent: {missing:?}"
        );
        Ok(())
    }

    /// `{"figures": {name: number}, "raw": …}`.
    pub fn write_json(&self, path: &Path) -> anyhow::Result<()> {
        let rounded = |value: f64| json!((value * 1_000.0).round() / 1_000.0);
        let figures: Map<String, Value> =
            self.figures.iter().map(|figure| (figure.name.to_owned(), rounded(figure.value))).collect();
        let mut raw = self.raw.clone();
        raw.insert("conditions".into(), Value::Object(self.conditions.clone()));
        raw.insert("commands".into(), json!(self.commands));
        raw.insert("absent".into(), json!(self.absent));
        let document = json!({"figures": figures, "raw": raw});
        std::fs::write(path, serde_json::to_string_pretty(&document)?)?;
        Ok(())
    }
}

pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.len() % 2, sorted.get(middle)) {
        (1, Some(value)) => *value,
        (0, Some(value)) => f64::midpoint(*value, sorted[middle - 1]),
        _ => f64::NAN,
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn cpu_model() -> String {
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or(String::new(), |(_, name)| name.trim().to_owned())
}
