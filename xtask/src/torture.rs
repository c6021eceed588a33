//! `cargo xtask torture`: the campaigns behind the daily tests, for as long as one likes. Runs exactly the tests that
//! run every day, with other seeds and more rounds; how they try is in the tests.

use std::hash::{BuildHasher as _, Hasher as _};
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::process::show;
use crate::test::now;

/// The campaigns: killed processes, breaking disks, storms.
const CAMPAIGNS: [&str; 8] = [
    "kill_at_random_moments_loses_no_answered_order",
    "one_folder_survives_many_crashes",
    "random_workloads_on_a_breaking_disk_lose_nothing_answered",
    "a_disk_that_is_full_at_some_write_loses_nothing_and_goes_on_with_space",
    "a_sync_that_drops_its_data_is_never_told_as_success",
    "after_a_storm_every_promise_holds",
    "half_do_not_pay_and_in_the_end_every_unit_is_paid_once",
    "a_thousand_audits_beside_a_storm_raise_no_false_alarm",
];

/// How many times the rounds of every day one pass makes: a few minutes.
const ROUNDS_TIMES: u32 = 10;

/// Seeds are short, so that they can be told and typed.
const SEEDS: u64 = 1_000_000;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long; a pass that has begun is finished. 0: one pass.
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// The first pass's seed; each further pass takes the next one. Without it, a random one.
    #[arg(long)]
    seed: Option<u64>,
}

pub fn run(root: &Path, args: &Args) -> anyhow::Result<ExitCode> {
    let first = args.seed.unwrap_or_else(random_seed);
    let (began, limit) = (now(), Duration::from_secs(args.minutes.saturating_mul(60)));
    for pass in 0.. {
        let seed = first.wrapping_add(pass);
        let minutes = began.elapsed().as_secs_f64() / 60.0;
        println!("torture: pass {}, seed {seed}, {minutes:.1} of {} minutes", pass + 1, args.minutes);
        if let Err(error) = show(&mut campaign(root, seed)) {
            eprintln!("torture: {error:#}");
            eprintln!(
                "torture: FAILED with seed {seed}. The test says above where it keeps its data folder."
            );
            eprintln!("torture: again: cargo xtask torture --minutes 0 --seed {seed}");
            eprintln!("torture: a seed fixes what is tried, not how threads and processes meet.");
            return Ok(ExitCode::FAILURE);
        }
        if began.elapsed() >= limit {
            println!("torture: {} passes from seed {first}, nothing found", pass + 1);
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn campaign(root: &Path, seed: u64) -> Command {
    let tests = CAMPAIGNS.map(|name| format!("test(/::{name}$/)")).join(" or ");
    let mut command = Command::new("cargo");
    command.args(["nextest", "run", "--package", "doorbuster", "--no-capture", "--no-fail-fast"]);
    command.args(["-E", &tests]).current_dir(root);
    // Not with the product's prefix: it refuses settings that it does not know.
    command.env("TEST_TORTURE_SEED", seed.to_string()).env("TEST_TORTURE_TIMES", ROUNDS_TIMES.to_string());
    command
}

fn random_seed() -> u64 {
    std::hash::RandomState::new().build_hasher().finish() % SEEDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_campaign_is_a_test_that_exists() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/doorbuster/tests/it");
        let mut texts = Vec::new();
        read_all(&folder, &mut texts);
        for name in CAMPAIGNS {
            let found = texts.iter().filter(|text| text.contains(&format!("async fn {name}()"))).count();
            assert_eq!(found, 1, "{name}");
        }
    }

    fn read_all(folder: &Path, texts: &mut Vec<String>) {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                read_all(&path, texts);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                texts.push(std::fs::read_to_string(path).unwrap());
            }
        }
    }

    #[test]
    fn a_pass_gets_its_seed() {
        let command = campaign(Path::new("/checkout"), 42);
        let seed = command.get_envs().find(|(name, _)| *name == "TEST_TORTURE_SEED").unwrap().1;
        assert_eq!(seed, Some("42".as_ref()));
        assert!(random_seed() < SEEDS);
    }
}
