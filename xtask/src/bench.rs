//! `cargo xtask bench`: installs the rivals, builds the product as users build it, and measures. What is measured, and
//! how, is in the benchmark itself (`crates/doorbuster/benches/figures`); counting instructions is in `instructions`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use clap::ValueEnum;

use crate::install::{self, Consent};
use crate::{instructions, process, test};

/// How the benchmark learns where ioredis lies.
const NODE_MODULES_VARIABLE: &str = "BENCH_NODE_MODULES";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// A few minutes instead of up to 40: shorter runs, fewer repetitions, smaller crowds.
    #[arg(long)]
    quick: bool,
    /// Repetitions of each alternating measurement; the median counts.
    #[arg(long)]
    repetitions: Option<u32>,
    /// Connections of the closed loop, 128 unless this says otherwise.
    #[arg(long)]
    connections: Option<u32>,
    /// Writes `{"figures": {name: number}, "raw": …}`: the figures, all samples, conditions and commands.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Measures these groups only, and does not write docs/performance.md.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "GROUP")]
    only: Vec<Group>,
    /// Does not write docs/performance.md, which a run of all groups does, quick or not.
    #[arg(long)]
    no_docs: bool,
    /// With `--only instructions`: counts in the tests' build instead, and makes that the budget of `cargo xtask test`.
    #[arg(long)]
    record: bool,
    /// Installs nothing: names what is missing and fails.
    #[arg(long)]
    no_install: bool,
    /// Measures nothing against anything: loads the server with one kind of request for ten seconds and says which of
    /// its threads spent what. For use beside `perf`.
    #[arg(long, value_name = "refuse|accept|pass")]
    profile: Option<String>,
}

/// What can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Instructions of the hot path, and whether it asks for memory, by callgrind.
    Instructions,
    /// Refusals and accepts: bare hyper, ours and the rivals in turn.
    Http,
    /// The latency of accepts at half of their rate; measures `http` first.
    HalfLoad,
    /// Passes, fetched by a buyer each.
    Passes,
    /// What simulated buyers cost beside the server that answers them.
    Crowd,
    /// Ten times more buyers than the server can take, under a CPU quota.
    Overload,
    /// A normal load beside 10,000 slow sockets.
    Slowloris,
    /// One and a thousand offers, few and many buyers.
    Spread,
    /// Bytes per live claim.
    Memory,
    /// A start with recorded orders.
    Start,
    /// Events to a webhook and to buyers' sockets.
    Webhooks,
    /// Gate and SQLite alone.
    Parts,
    /// Journal and ledger in one file, and in two.
    Files,
    /// Providers' notifications beside accepts.
    Settle,
    /// 100,000 unpaid orders that are due at once.
    Timeouts,
    /// An audit of a million orders while somebody buys.
    Audit,
}

impl Group {
    /// Those that start rivals.
    const fn needs_rivals(self) -> bool {
        matches!(self, Self::Http | Self::HalfLoad)
    }
}

pub fn run(root: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let target = test::target_folder(root, |name| std::env::var_os(name));
    let consent = if args.no_install { Consent::CheckOnly } else { Consent::Install };
    let wanted: Vec<Group> =
        Group::value_variants().iter().copied().filter(|group| args.wants(*group)).collect();
    let mut counted = Vec::new();
    if wanted.contains(&Group::Instructions) {
        install::valgrind(consent)?;
        if args.record {
            instructions::record(root, &target)?;
        } else {
            counted = instructions::count(root, &target, instructions::Build::Release)?;
            for (name, count) in instructions::parts(&counted) {
                println!("{name:<20} {count:>8}");
            }
        }
    }
    if wanted.iter().all(|group| *group == Group::Instructions) && args.profile.is_none() {
        if let Some(json) = &args.json {
            std::fs::write(json, instructions::json(&counted))
                .with_context(|| format!("cannot write {}", json.display()))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = Command::new("cargo");
    command.current_dir(root).env("CARGO_TARGET_DIR", &target);
    if wanted.iter().any(|group| group.needs_rivals()) {
        let modules = install::rivals(&target, consent)?;
        command.env(NODE_MODULES_VARIABLE, modules);
    }
    command.args(["bench", "--package", "doorbuster", "--bench", "figures", "--"]);
    command.args(args.for_the_benchmark(root, &wanted, &counted)?);
    let words: Vec<String> = std::env::args().skip(1).collect();
    command.args(["--repeat".to_owned(), format!("cargo xtask {}", words.join(" "))]);
    process::show(&mut command)?;
    Ok(ExitCode::SUCCESS)
}

impl Args {
    fn wants(&self, group: Group) -> bool {
        self.profile.is_none() && (self.only.is_empty() || self.only.contains(&group))
    }

    fn for_the_benchmark(
        &self,
        root: &Path,
        wanted: &[Group],
        counted: &[instructions::Count],
    ) -> anyhow::Result<Vec<String>> {
        let mut words = Vec::new();
        if self.quick {
            words.push("--quick".to_owned());
        }
        if let Some(repetitions) = self.repetitions {
            words.extend(["--repetitions".to_owned(), repetitions.to_string()]);
        }
        if let Some(connections) = self.connections {
            words.extend(["--connections".to_owned(), connections.to_string()]);
        }
        if let Some(json) = &self.json {
            // Cargo starts the benchmark in the folder of its package.
            words.extend(["--json".to_owned(), std::path::absolute(json)?.display().to_string()]);
        }
        if !self.only.is_empty() {
            let measured = wanted.iter().filter(|group| **group != Group::Instructions);
            let names: Vec<String> = measured
                .filter_map(|group| group.to_possible_value())
                .map(|value| value.get_name().to_owned())
                .collect();
            words.extend(["--only".to_owned(), names.join(",")]);
        } else if !self.no_docs && self.profile.is_none() {
            words.extend(["--write-docs".to_owned(), root.display().to_string()]);
        }
        if !counted.is_empty() {
            let counts: Vec<String> =
                instructions::parts(counted).map(|(name, count)| format!("{name}={count}")).collect();
            words.extend(["--instructions".to_owned(), counts.join(",")]);
        }
        if let Some(kind) = &self.profile {
            words.extend(["--profile".to_owned(), kind.clone()]);
        }
        Ok(words)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn words(line: &[&str]) -> Vec<String> {
        let args = Line::parse_from(std::iter::once(&"bench").chain(line)).args;
        let wanted: Vec<Group> = Group::value_variants().iter().copied().filter(|g| args.wants(*g)).collect();
        args.for_the_benchmark(Path::new("/checkout"), &wanted, &[]).unwrap()
    }

    #[test]
    fn a_run_of_everything_writes_the_page_and_a_part_does_not() {
        assert_eq!(words(&["--quick"]), ["--quick", "--write-docs", "/checkout"]);
        assert_eq!(words(&["--no-docs"]), Vec::<String>::new());
        assert_eq!(words(&["--only", "http,instructions"]), ["--only", "http"]);
        assert_eq!(words(&["--profile", "refuse"]), ["--profile", "refuse"]);
    }

    #[test]
    fn a_json_file_is_written_where_the_person_stands() {
        let words = words(&["--json", "out.json", "--no-docs"]);
        let here = std::env::current_dir().unwrap().join("out.json");
        assert_eq!(words, ["--json", here.to_str().unwrap()]);
    }

    #[test]
    fn rivals_are_wanted_only_where_they_are_measured() {
        let with: Vec<_> = Group::value_variants().iter().filter(|group| group.needs_rivals()).collect();
        assert_eq!(with, [&Group::Http, &Group::HalfLoad]);
    }
}
