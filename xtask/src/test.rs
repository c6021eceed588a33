//! `cargo xtask test`: everything a change must pass, as named steps with one table at the end.
//! The build machine and the desk run the same steps. A step that did not run is never shown as passed.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::install::{self, Consent};
use crate::process::{show, show_within};
use crate::{instructions, tidy};

/// Enough for the advisory database on a slow line; a network that does not answer must not hold the run.
const ADVISORY_FETCH_LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Install nothing: name what is missing and fail.
    #[arg(long)]
    no_install: bool,
    /// Run these steps only.
    #[arg(long, value_enum, num_args = 1.., value_name = "STEP")]
    only: Vec<Step>,
}

/// In the order in which they run: cheap answers first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Step {
    Install,
    Fmt,
    Tidy,
    Clippy,
    Doc,
    Deny,
    Advisories,
    Nextest,
    Doctests,
    Instructions,
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Failed(String),
    NotRun(String),
}

#[derive(Debug)]
struct Row {
    step: Step,
    outcome: Outcome,
    took: Duration,
}

/// What every step needs to know about this run.
#[derive(Debug)]
struct Workshop {
    root: PathBuf,
    target: PathBuf,
    ci: bool,
    consent: Consent,
}

pub fn run(root: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let workshop = Workshop::new(root, args);
    let rows = run_steps(&chosen(&args.only), |step| workshop.run(step));
    print!("\n{}", table(&rows));
    let failed = rows.iter().any(|row| matches!(row.outcome, Outcome::Failed(_)));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn chosen(only: &[Step]) -> Vec<Step> {
    let wanted = |step: &Step| only.is_empty() || only.contains(step);
    Step::value_variants().iter().copied().filter(wanted).collect()
}

/// Runs all steps, also after a failure: one run tells everything. Only without its tools nothing can be told.
fn run_steps(steps: &[Step], run: impl Fn(Step) -> Outcome) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut tools_missing = false;
    for &step in steps {
        let started = now();
        let outcome = if tools_missing { Outcome::NotRun("install failed".into()) } else { run(step) };
        if let Outcome::Failed(why) = &outcome {
            println!("{}: {why}", step.name());
            tools_missing |= step == Step::Install;
        }
        rows.push(Row { step, outcome, took: started.elapsed() });
    }
    rows
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time a chore takes is measured for its reader, nothing that is tested depends on it"
)]
pub fn now() -> Instant {
    Instant::now()
}

impl Workshop {
    fn new(root: &Path, args: &Args) -> Self {
        Self {
            root: root.to_owned(),
            target: target_folder(root, |name| std::env::var_os(name)),
            ci: std::env::var_os("CI").is_some(),
            consent: if args.no_install { Consent::CheckOnly } else { Consent::Install },
        }
    }

    fn run(&self, step: Step) -> Outcome {
        println!("\n== {} ==", step.name());
        match step {
            Step::Install => install::run(&self.target, self.consent).into(),
            Step::Fmt => show(self.cargo("fmt").args(["--all", "--check"])).into(),
            Step::Tidy => tidy::check(&self.root).into(),
            Step::Clippy => show(self.build("clippy").args(["--all-targets", "--", "-D", "warnings"])).into(),
            Step::Doc => self.doc().into(),
            Step::Deny => show(self.cargo("deny").args([
                "check",
                "--hide-inclusion-graph",
                "bans",
                "licenses",
                "sources",
            ]))
            .into(),
            Step::Advisories => self.advisories(),
            Step::Nextest => self.nextest().into(),
            Step::Doctests => self.doctests(),
            Step::Instructions => instructions::check(&self.root, &self.target).into(),
        }
    }

    fn doc(&self) -> anyhow::Result<()> {
        let mut command = self.build("doc");
        show(command.args(["--no-deps", "--document-private-items"]).env("RUSTDOCFLAGS", "-D warnings"))
    }

    /// Where the database cannot be fetched nothing is known, and a stale copy would look like knowledge.
    fn advisories(&self) -> Outcome {
        if let Err(error) = show_within(self.cargo("deny").args(["fetch", "db"]), ADVISORY_FETCH_LIMIT) {
            return Outcome::NotRun(format!("the advisory database cannot be fetched here: {error}"));
        }
        show(self.cargo("deny").args(["check", "advisories"])).into()
    }

    fn nextest(&self) -> anyhow::Result<()> {
        let mut command = self.cargo("nextest");
        command.args(["run", "--workspace", "--profile", if self.ci { "ci" } else { "default" }]);
        self.lock(&mut command);
        show(command.env(install::SCHEMATHESIS_VARIABLE, install::schemathesis(&self.target)))
    }

    fn doctests(&self) -> Outcome {
        match tidy::sources(&self.root) {
            Err(error) => Outcome::Failed(format!("{error:#}")),
            Ok(sources) if !sources.iter().any(|text| has_doctest(text)) => {
                Outcome::NotRun("no documentation carries an example".into())
            }
            Ok(_) => show(self.build("test").arg("--doc")).into(),
        }
    }

    fn build(&self, subcommand: &str) -> Command {
        let mut command = self.cargo(subcommand);
        command.arg("--workspace");
        self.lock(&mut command);
        command
    }

    /// At the desk a changed manifest may update the lock file; the build machine takes it as it was committed.
    fn lock(&self, command: &mut Command) {
        if self.ci {
            command.arg("--locked");
        }
    }

    fn cargo(&self, subcommand: &str) -> Command {
        let mut command = Command::new("cargo");
        command.arg(subcommand).current_dir(&self.root).env("CARGO_TARGET_DIR", &self.target);
        command
    }
}

/// The build folder: what the environment says, on the build machine one that outlives the checkout.
pub fn target_folder(root: &Path, variable: impl Fn(&str) -> Option<OsString>) -> PathBuf {
    let set = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = set("CARGO_TARGET_DIR") {
        return root.join(folder);
    }
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    match (set("CI"), cache) {
        (Some(_), Some(cache)) => cache.join("doorbuster").join("target"),
        _ => root.join("target"),
    }
}

/// Is there a fenced block in a doc comment that rustdoc would compile?
fn has_doctest(source: &str) -> bool {
    const COMPILED: [&str; 6] = ["", "rust", "no_run", "should_panic", "compile_fail", "edition2024"];
    let mut inside = false;
    for line in source.lines().map(str::trim_start) {
        let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else { continue };
        let Some(kind) = text.trim().strip_prefix("```") else { continue };
        if !inside && kind.split(',').all(|word| COMPILED.contains(&word.trim())) {
            return true;
        }
        inside = !inside;
    }
    false
}

fn table(rows: &[Row]) -> String {
    let mut text = format!("{:<14}{:>9}  result\n", "step", "time");
    for Row { step, outcome, took } in rows {
        let result = match outcome {
            Outcome::Passed => "passed".to_owned(),
            Outcome::Failed(why) => format!("FAILED ({})", first_line(why)),
            Outcome::NotRun(why) => format!("not run ({})", first_line(why)),
        };
        text += &format!("{:<14}{:>7.1} s  {result}\n", step.name(), took.as_secs_f64());
    }
    text
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

impl Step {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(|| format!("{self:?}"), |value| value.get_name().to_owned())
    }
}

impl From<anyhow::Result<()>> for Outcome {
    fn from(result: anyhow::Result<()>) -> Self {
        match result {
            Ok(()) => Self::Passed,
            Err(error) => Self::Failed(format!("{error:#}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(variables: &[(&str, &str)]) -> PathBuf {
        let look_up = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, v)| v.into());
        target_folder(Path::new("/checkout"), look_up)
    }

    #[test]
    fn the_build_machine_keeps_its_target_outside_the_checkout() {
        let home = ("HOME", "/home/ci");
        assert_eq!(folder(&[home]), Path::new("/checkout/target"));
        assert_eq!(folder(&[home, ("CI", "true")]), Path::new("/home/ci/.cache/doorbuster/target"));
        let cache = ("XDG_CACHE_HOME", "/cache");
        assert_eq!(folder(&[home, cache, ("CI", "1")]), Path::new("/cache/doorbuster/target"));
    }

    #[test]
    fn a_target_folder_that_was_set_is_kept() {
        let set = ("CARGO_TARGET_DIR", "/elsewhere");
        assert_eq!(folder(&[set, ("CI", "true"), ("HOME", "/home/ci")]), Path::new("/elsewhere"));
    }

    #[test]
    fn without_its_tools_nothing_else_runs() {
        let rows = run_steps(&chosen(&[]), |step| match step {
            Step::Install => Outcome::Failed("no apt-get here".into()),
            _ => Outcome::Passed,
        });
        assert_eq!(rows.len(), Step::value_variants().len());
        assert!(rows.iter().skip(1).all(|row| row.outcome == Outcome::NotRun("install failed".into())));
    }

    #[test]
    fn a_failed_step_does_not_hide_the_ones_after_it() {
        let rows = run_steps(&[Step::Fmt, Step::Tidy], |step| match step {
            Step::Fmt => Outcome::Failed("shape".into()),
            _ => Outcome::Passed,
        });
        assert_eq!(rows[1].outcome, Outcome::Passed);
    }

    #[test]
    fn chosen_steps_keep_their_order() {
        assert_eq!(chosen(&[Step::Nextest, Step::Fmt]), [Step::Fmt, Step::Nextest]);
    }

    #[test]
    fn the_table_never_shows_a_step_that_did_not_run_as_passed() {
        let row = |step, outcome| Row { step, outcome, took: Duration::from_millis(1_250) };
        let rows = [
            row(Step::Fmt, Outcome::Passed),
            row(Step::Advisories, Outcome::NotRun("no network\nat all".into())),
            row(Step::Nextest, Outcome::Failed("two tests".into())),
        ];
        let text = table(&rows);
        assert!(text.contains("fmt               1.2 s  passed\n"), "{text}");
        assert!(text.contains("advisories        1.2 s  not run (no network)\n"), "{text}");
        assert!(text.contains("nextest           1.2 s  FAILED (two tests)\n"), "{text}");
    }

    #[test]
    fn only_examples_that_compile_count_as_doctests() {
        assert!(has_doctest("/// ```\n/// let x = 1;\n/// ```\nfn a() {}"));
        assert!(has_doctest("//! ```rust,no_run\n//! ```"));
        assert!(!has_doctest("/// ```text\n/// a drawing\n/// ```\nfn a() {}"));
        assert!(!has_doctest("// ```\n// not documentation\n// ```"));
    }
}
