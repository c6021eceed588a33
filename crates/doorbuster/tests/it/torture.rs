//! How hard the campaigns try, and what they leave behind when they fail. `cargo xtask torture` runs the same tests
//! many times longer and with other seeds. Knows nothing of what is tried.

use std::path::{Path, PathBuf};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tempfile::TempDir;
use testkit::disk::Disk;

/// The seed of the short slices that run with every change: the same every day.
const EVERYDAY_SEED: u64 = 1;

/// How often, and from which seed.
#[derive(Clone, Copy, Debug)]
pub struct Torture {
    pub rounds: u64,
    pub seed: u64,
}

impl Torture {
    /// So many rounds in the daily tests; `TEST_TORTURE_TIMES` multiplies them, `TEST_TORTURE_SEED` gives the seed.
    pub fn of(everyday_rounds: u64) -> Self {
        let number = |name: &str, otherwise: u64| match std::env::var(name) {
            Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")),
            Err(_) => otherwise,
        };
        let rounds = everyday_rounds * number("TEST_TORTURE_TIMES", 1);
        let seed = number("TEST_TORTURE_SEED", EVERYDAY_SEED);
        println!("{rounds} rounds from seed {seed}");
        Self { rounds, seed }
    }

    /// The chance of one round: the same for the same seed, another for every round.
    pub fn round(&self, round: u64) -> StdRng {
        StdRng::seed_from_u64(self.seed.wrapping_mul(1_000_003).wrapping_add(round))
    }
}

/// A data folder that is removed after a test that passed and kept after one that failed.
#[derive(Debug)]
pub struct Evidence(Option<TempDir>);

impl Evidence {
    pub fn folder() -> Self {
        Self(Some(tempfile::Builder::new().prefix("doorbuster-torture-").tempdir().unwrap()))
    }

    pub fn path(&self) -> &Path {
        self.0.as_ref().unwrap().path()
    }
}

impl Drop for Evidence {
    fn drop(&mut self) {
        if std::thread::panicking()
            && let Some(folder) = self.0.take()
        {
            let kept: PathBuf = folder.keep();
            eprintln!("the data folder is kept at {}", kept.display());
        }
    }
}

/// Writes what is on a disk in memory into a folder, if the test fails while this is held.
#[derive(Debug)]
pub struct DiskEvidence<'a>(&'a Disk);

pub fn keep_disk(disk: &Disk) -> DiskEvidence<'_> {
    DiskEvidence(disk)
}

impl Drop for DiskEvidence<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let folder = Evidence::folder();
        for (name, _) in self.0.files() {
            let file = folder.path().join(name.replace('/', "_"));
            std::fs::write(file, self.0.read_file(&name).unwrap_or_default()).ok();
        }
    }
}
