//! Instructions per request of the hot path and whether it asks for memory, by callgrind, held to a budget: what a busy
//! machine cannot blur. Knows how to build and count; what the hot path is stands in `crates/doorbuster/benches/instructions`.
//!
//! The budget is for the program as the tests build it: our crates unoptimised, their dependencies optimised. That costs
//! no build of its own, and a budget is only compared with itself. What users run is counted for the page in `docs/`.
//!
//! The check of the pass is counted alone and taken out of the other counts: valgrind does not know the processor's
//! instructions for SHA-256, and what replaces them would drown the rest.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

use crate::process;

const BUDGET_FILE: &str = "crates/doorbuster/benches/instructions.toml";
/// What may be more than the budget before it is a failure, in percent.
const TOLERANCE_PERCENT: f64 = 15.0;
/// What is counted, and how many of each: enough that a stray allocation of a page does not show.
const COUNTED: [(&str, u32); 3] = [("refuse", 500), ("accept", 500), (PASS, 500)];
/// Part of the two others.
const PASS: &str = "pass";
/// The function whose inside is counted.
const REGION: &str = "*counted_region*";
/// The functions by which the allocator is asked for memory.
const ALLOCATING: [&str; 5] = ["malloc", "mallocx", "calloc", "realloc", "rallocx"];

/// How the program is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// As the tests are.
    Tests,
    /// As users run it.
    Release,
}

/// What one request takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Count {
    pub name: &'static str,
    pub instructions: u64,
    /// Whether one of all these requests asked for memory.
    pub allocates: bool,
}

impl Count {
    /// Each with the name it has in budgets and figures.
    pub fn parts(&self) -> [(String, u64); 2] {
        let Self { name, instructions, allocates } = self;
        [
            (format!("instructions_{name}"), *instructions),
            (format!("allocates_{name}"), u64::from(*allocates)),
        ]
    }
}

/// Everything that was counted, by its name.
pub fn parts(counted: &[Count]) -> impl Iterator<Item = (String, u64)> {
    counted.iter().flat_map(Count::parts)
}

/// Counts everything anew.
pub fn count(root: &Path, target: &Path, build: Build) -> anyhow::Result<Vec<Count>> {
    let program = build.run(root, target)?;
    let folder = target.join("callgrind");
    std::fs::create_dir_all(&folder)?;
    // Each is a process of its own and uses one core.
    let counted = std::thread::scope(|scope| {
        let start = |(name, requests)| {
            let (program, out) = (&program, folder.join(name));
            scope.spawn(move || count_one(program, &out, name, requests))
        };
        let counting: Vec<_> = COUNTED.into_iter().map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, anyhow::Result<Count>>| {
            thread.join().unwrap_or_else(|_| bail!("a counting thread panicked"))
        };
        counting.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
    })?;
    Ok(without_the_pass(counted))
}

fn without_the_pass(mut counted: Vec<Count>) -> Vec<Count> {
    let pass = counted.iter().find(|count| count.name == PASS).map_or(0, |count| count.instructions);
    for count in counted.iter_mut().filter(|count| count.name != PASS) {
        count.instructions = count.instructions.saturating_sub(pass);
    }
    counted
}

/// The counts as the benchmark's JSON has them.
pub fn json(counted: &[Count]) -> String {
    let figures: Vec<String> = parts(counted).map(|(name, count)| format!("\"{name}\":{count}")).collect();
    format!("{{\"figures\":{{{}}},\"raw\":{{}}}}\n", figures.join(","))
}

/// Counts and fails where the budget is exceeded.
pub fn check(root: &Path, target: &Path) -> anyhow::Result<()> {
    let counted = count(root, target, Build::Tests)?;
    let budget = budget(root)?;
    for (name, count) in parts(&counted) {
        let allowed = budget.get(&name).map_or("none".to_owned(), |allowed| allowed.to_string());
        println!("{name:<20} {count:>8}   budget {allowed:>8}");
    }
    let problems = judge(&counted, &budget);
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n")) }
}

/// Counts as the tests do and makes that the budget.
pub fn record(root: &Path, target: &Path) -> anyhow::Result<()> {
    let counted = count(root, target, Build::Tests)?;
    let mut text = String::from(
        "# Instructions of one request, and whether it asks for memory, by callgrind: `cargo xtask bench --only instructions\n\
         # --record` writes this file.\n\
         # `cargo xtask test` fails when a count is more than 15 % above its budget. See xtask/src/instructions.rs.\n",
    );
    for (name, count) in parts(&counted) {
        println!("{name:<20} {count:>8}");
        text += &format!("{name} = {count}\n");
    }
    let path = root.join(BUDGET_FILE);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("recorded in {BUDGET_FILE}");
    Ok(())
}

/// A sentence for each count without a budget or too far above it.
fn judge(counted: &[Count], budget: &toml::Table) -> Vec<String> {
    const AGAIN: &str = "If that is meant: cargo xtask bench --only instructions --record";
    let judge_one = |(name, used): (String, u64)| {
        let Some(allowed) = budget.get(&name).and_then(toml::Value::as_integer) else {
            return Some(format!("{name} has no budget in {BUDGET_FILE}. {AGAIN}"));
        };
        let most = whole(allowed.unsigned_abs()) * (1.0 + TOLERANCE_PERCENT / 100.0);
        (whole(used) > most).then(|| {
            format!(
                "{name} is {used}, more than {TOLERANCE_PERCENT:.0} % above its budget of {allowed}. {AGAIN}"
            )
        })
    };
    parts(counted).filter_map(judge_one).collect()
}

fn budget(root: &Path) -> anyhow::Result<toml::Table> {
    let path = root.join(BUDGET_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => text.parse().with_context(|| format!("{BUDGET_FILE} is not TOML")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(toml::Table::new()),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

impl Build {
    fn run(self, root: &Path, target: &Path) -> anyhow::Result<PathBuf> {
        let mut command = Command::new("cargo");
        command.current_dir(root).env("CARGO_TARGET_DIR", target).arg("build");
        // With the packages that the tests and the benchmark name: with others, dependencies may have other features.
        let (choice, folder): (&[&str], _) = match self {
            Self::Tests => (&["--workspace"], "debug"),
            Self::Release => (&["--package", "doorbuster", "--release"], "release"),
        };
        command.args(choice).args(["--example", "instructions"]);
        process::show(&mut command)?;
        let program = target.join(folder).join("examples/instructions");
        ensure!(program.is_file(), "{} was not built", program.display());
        Ok(program)
    }
}

fn count_one(program: &Path, out: &Path, name: &'static str, requests: u32) -> anyhow::Result<Count> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--quiet"]);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    command.arg(format!("--toggle-collect={REGION}")).arg(program);
    command.args([name, &requests.to_string()]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let line = process::line(&command);
    let output = command.output().with_context(|| format!("could not start `{line}`"))?;
    ensure!(
        output.status.success(),
        "`{line}` ended with {}:\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(out).with_context(|| format!("cannot read {}", out.display()))?;
    let total = total(&text).with_context(|| format!("{} has no total", out.display()))?;
    ensure!(total > u64::from(requests), "callgrind saw nothing of {name}: was {REGION} inlined?");
    let requests = u64::from(requests);
    Ok(Count { name, instructions: total / requests, allocates: allocates(&text) })
}

/// Whether memory was asked for. Callgrind writes a function's name once, behind a number, and the number alone from then
/// on. It names a function as called only if that cost something in the region; how often it says it was called counts
/// calls outside of the region, too, and is not looked at.
fn allocates(text: &str) -> bool {
    let named = |line: &str| -> Option<(String, String)> {
        let (number, name) = line.strip_prefix('c').unwrap_or(line).strip_prefix("fn=(")?.split_once(") ")?;
        Some((number.to_owned(), name.to_owned()))
    };
    let allocating: Vec<String> = text
        .lines()
        .filter_map(named)
        .filter(|(_, name)| ALLOCATING.contains(&name.as_str()))
        .map(|(number, _)| format!("cfn=({number})"))
        .collect();
    text.lines().any(|line| allocating.iter().any(|called| line.starts_with(called)))
}

/// The sum that callgrind writes at the end of its file.
fn total(text: &str) -> Option<u64> {
    text.lines().rev().find_map(|line| line.strip_prefix("totals:"))?.trim().parse().ok()
}

/// Exact for every count there will ever be.
fn whole(count: u64) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(name: &'static str, instructions: u64) -> Count {
        Count { name, instructions, allocates: false }
    }

    fn judged(instructions: u64, allocates: bool) -> Vec<String> {
        let budget = "instructions_refuse = 10000\nallocates_refuse = 0".parse().unwrap();
        judge(&[Count { name: "refuse", instructions, allocates }], &budget)
    }

    #[test]
    fn a_fifth_more_instructions_is_a_failure_and_a_tenth_is_not() {
        assert_eq!(judged(9_000, false), Vec::<String>::new());
        assert_eq!(judged(11_000, false), Vec::<String>::new());
        let problems = judged(12_000, false);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("12000, more than 15 % above its budget of 10000"), "{problems:?}");
    }

    #[test]
    fn one_allocation_is_a_failure_where_there_was_none() {
        let problems = judged(10_000, true);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("allocates_refuse is 1,"), "{problems:?}");
    }

    #[test]
    fn the_pass_is_counted_once() {
        let counted =
            without_the_pass(vec![count("refuse", 16_000), count("accept", 18_000), count(PASS, 9_000)]);
        assert_eq!(counted, [count("refuse", 7_000), count("accept", 9_000), count(PASS, 9_000)]);
    }

    #[test]
    fn counts_are_figures_for_machines() {
        assert_eq!(
            json(&[count("refuse", 7)]),
            "{\"figures\":{\"instructions_refuse\":7,\"allocates_refuse\":0},\"raw\":{}}\n"
        );
    }

    #[test]
    fn what_has_no_budget_fails() {
        let problems = judge(&[count("pass", 1)], &toml::Table::new());
        assert!(problems[0].contains("no budget") && problems.len() == 2, "{problems:?}");
    }

    #[test]
    fn requests_for_memory_are_found_in_what_callgrind_writes() {
        let region = "fn=(1) counted_region\n5 10\ncfn=(2) other\ncalls=9 0\n5 9\n";
        assert!(!allocates(region));
        assert!(!allocates(&format!("{region}\nfn=(5) malloc\n1 1\n")), "nobody called it");
        for called in [
            "fn=(4) grows\ncfn=(5) realloc\ncalls=1 0\n1 1\n",
            "fn=(5) malloc\n1 1\n\nfn=(4) grows\ncfn=(5)\ncalls=1 0\n1 1\n",
        ] {
            assert!(allocates(&format!("{region}\n{called}")), "{called}");
        }
    }

    #[test]
    fn the_total_is_found_in_what_callgrind_writes() {
        assert_eq!(total("events: Ir\nsummary: 17\nfn=(1)\n1 5\n\ntotals: 12345\n"), Some(12_345));
        assert_eq!(total("events: Ir\n"), None);
    }

    #[test]
    fn everything_counted_has_a_committed_budget() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let budget = budget(root).unwrap();
        for (name, _) in COUNTED {
            for (part, _) in count(name, 0).parts() {
                assert!(budget.get(&part).and_then(toml::Value::as_integer).is_some(), "{part}");
            }
        }
        assert_eq!(budget["allocates_refuse"].as_integer(), Some(0), "a refusal asks for no memory");
        assert_eq!(budget["allocates_accept"].as_integer(), Some(1), "and it would show if it did");
    }
}
