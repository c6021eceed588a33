//! The disk under everybody's feet: what its syncs cost here, and peace for the next run. Knows no server.

use std::io::{Seek as _, SeekFrom, Write as _};
use std::time::{Duration, Instant};

use crate::report::median;

/// What one commit of the journal writes under load.
const COMMIT_BYTES: usize = 16 * 1_024;
/// About how long the journal rests between two commits under load: less when cores are free, more when they are not.
const REST: Duration = Duration::from_micros(500);
/// The file is overwritten from here on, as a log is.
const FILE_BYTES: usize = 8 * 1_024 * 1_024;
/// How far apart the imagined arrivals are.
const ARRIVALS_EVERY_US: u64 = 100;

/// Writes out what builds and earlier runs left in the page cache. Otherwise the kernel does so in the middle of the next
/// run, and a sync waits behind all of it, for a tenth of a second and more.
pub fn quiet() {
    rustix::fs::sync();
}

/// What one sync of a small append costs on this disk: every order rate stands on it.
pub fn sync_p50_us() -> f64 {
    let Ok(mut file) = tempfile::tempfile() else { return f64::NAN };
    let mut samples = Vec::new();
    for _ in 0..200 {
        let began = Instant::now();
        if file.write_all(&[0; 4_096]).and_then(|()| file.sync_data()).is_err() {
            return f64::NAN;
        }
        samples.push(began.elapsed().as_secs_f64() * 1e6);
    }
    median(&samples).round()
}

/// The p99 of an answer that waits for nothing but the next sync, when commits follow each other as the journal's do.
pub fn answer_p99_ms(run: Duration) -> anyhow::Result<f64> {
    let mut file = tempfile::tempfile()?;
    file.write_all(&vec![0; FILE_BYTES])?;
    file.sync_all()?;
    let began = Instant::now();
    let (mut waits_us, mut arrival_us) = (Vec::new(), 0);
    let us = |at: Instant| u64::try_from(at.duration_since(began).as_micros()).unwrap_or(u64::MAX);
    for commit in 0.. {
        let start = Instant::now();
        if start.duration_since(began) > run {
            break;
        }
        file.seek(SeekFrom::Start((commit * COMMIT_BYTES % FILE_BYTES) as u64))?;
        file.write_all(&[1; COMMIT_BYTES])?;
        file.sync_data()?;
        let (start_us, end_us) = (us(start), us(Instant::now()));
        while arrival_us <= start_us {
            waits_us.push(end_us - arrival_us);
            arrival_us += ARRIVALS_EVERY_US;
        }
        std::thread::sleep(REST);
    }
    waits_us.sort_unstable();
    let p99 = waits_us.get(waits_us.len() * 99 / 100).copied().unwrap_or(0);
    Ok(p99 as f64 / 1_000.0)
}
