//! Figures, samples and conditions: a table for people, JSON for machines.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::Plan;

pub struct Report {
    figures: Map<String, Value>,
    raw: Map<String, Value>,
    rows: Vec<String>,
}

impl Report {
    pub fn new(plan: &Plan) -> Self {
        let conditions = json!({
            "cores": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            "cpu": cpu_model(),
            "kernel": read("/proc/sys/kernel/osrelease"),
            "run_s": plan.run.as_secs_f64(),
            "repetitions": plan.repetitions,
            "connections": plan.connections,
            "generator_threads": plan.threads,
            "fdatasync_p50_us": fdatasync_p50_us(),
        });
        println!("conditions: {conditions}");
        println!("the load generator runs on the same cores; trust ratios, not rates");
        let raw = Map::from_iter([("conditions".to_owned(), conditions)]);
        Self { figures: Map::new(), raw, rows: Vec::new() }
    }

    /// One figure with what it must be and what it aims at.
    pub fn figure(
        &mut self,
        name: &str,
        value: f64,
        unit: &str,
        what: &str,
        goal: Option<(f64, f64)>,
        higher_is_better: bool,
    ) {
        let verdict = goal.map_or("", |(must, target)| {
            let reaches = |goal: f64| if higher_is_better { value >= goal } else { value <= goal };
            if reaches(target) {
                "target"
            } else if reaches(must) {
                "must"
            } else {
                "MISSED"
            }
        });
        let goals = goal.map_or(String::new(), |(must, target)| format!("{must} / {target}"));
        let row = format!("{name:<34} {value:>12.3} {unit:<6} {goals:>14}  {verdict:<7} {what}");
        println!("{row}");
        self.rows.push(row);
        self.figures.insert(name.to_owned(), json!((value * 1_000.0).round() / 1_000.0));
    }

    pub fn raw(&mut self, name: &str, value: Value) {
        self.raw.insert(name.to_owned(), value);
    }

    pub fn finish(self, path: Option<&Path>) -> anyhow::Result<()> {
        println!("\n{:<34} {:>12} {:<6} {:>14}", "figure", "value", "unit", "must / target");
        for row in &self.rows {
            println!("{row}");
        }
        if let Some(path) = path {
            let document = json!({"figures": self.figures, "raw": self.raw});
            std::fs::write(path, serde_json::to_string_pretty(&document)?)?;
        }
        Ok(())
    }
}

pub fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn cpu_model() -> String {
    let info = read("/proc/cpuinfo");
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or(String::new(), |(_, name)| name.trim().to_owned())
}

/// What one sync of a small append costs on this disk: every order rate stands on it.
fn fdatasync_p50_us() -> f64 {
    use std::io::Write as _;
    let Ok(mut file) = tempfile::tempfile() else { return f64::NAN };
    let mut samples = Vec::new();
    for _ in 0..200 {
        let began = std::time::Instant::now();
        if file.write_all(&[0; 4_096]).and_then(|()| file.sync_data()).is_err() {
            return f64::NAN;
        }
        samples.push(began.elapsed().as_secs_f64() * 1e6);
    }
    median(&samples).round()
}
