//! Ten times more buyers than the server can take. The server lives under a fifth of a core, so that the generator,
//! which is not throttled, can really send ten times its peak from the same machine.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::json;
use tempfile::TempDir;

use crate::Plan;
use crate::arrivals::{Arrivals, Coming, Tally};
use crate::load::Minted;
use crate::processes::resident_bytes;
use crate::product::{Product, Sale};
use crate::quota::Quota;
use crate::report::{Goal, Report, Table, median};

const FIFTH_OF_A_CORE: u32 = 200;
/// Buyers there at any time when the peak is looked for first. Who found the door closed comes back after a second, so
/// such a crowd does not always fill the server.
const PEAK_PEOPLE: [usize; 3] = [128, 256, 512];
/// Then more and more come whatever the server does, each time by this factor, as long as more are served.
const PEAK_STEP: f64 = 1.3;
const PEAK_STEPS_MAX: usize = 5;
/// What is more than the peak so far by less than this is the same.
const MORE: f64 = 1.02;
const TIMES_PEAK: f64 = 10.0;
/// Then a buyer gives up and hangs up. Shorter where the generator may not hold so many open at once.
const PATIENCE: Duration = Duration::from_secs(1);
const PATIENCE_MIN: Duration = Duration::from_millis(250);
/// Files that the generator needs for itself.
const OTHER_FILES: u64 = 512;
/// Below this share of achieved arrivals there was no overload, and there is no figure.
const ACHIEVED_MIN: f64 = 0.95;
/// Everything is normal again when a window of this length has 90 % of what the same crowd got before, with at most
/// twice its latency.
const WINDOW: Duration = Duration::from_millis(500);
const NORMAL_GOODPUT: f64 = 0.9;
const SLOWER_MAX: f64 = 2.0;
const NORMAL_WITHIN: Duration = Duration::from_secs(15);
/// Passes are signed for at most so many buyers per second of a closed loop.
const CLOSED_PER_S_MAX: f64 = 30_000.0;

/// What the server serves at most, measured just before and just after the overload: a machine's pace changes from one
/// half minute to the next, and the best of many tries is better than the usual one.
struct Peak {
    before: Tally,
    after: Tally,
}

impl Peak {
    fn goodput(&self) -> f64 {
        f64::midpoint(self.before.goodput(), self.after.goodput())
    }

    fn p99_ms(&self) -> f64 {
        f64::midpoint(self.before.p99_ms(), self.after.p99_ms())
    }
}

/// What one overload gave.
struct Round {
    peak: Peak,
    patience: Duration,
    flood: Tally,
    /// From the end of the overload; `None`: not within the limit.
    normal_after: Option<Duration>,
    memory_mib: [f64; 3],
}

pub fn measure(plan: &Plan, report: &mut Report) -> anyhow::Result<()> {
    const NAME: &str = "goodput_at_10x";
    let quota = match Quota::new(FIFTH_OF_A_CORE) {
        Ok(quota) => quota,
        Err(error) => {
            report.absent(NAME, &format!("{error:#}"));
            return Ok(());
        }
    };
    report.condition("overload_quota", json!(quota.what));
    let mut rounds = Vec::new();
    for repetition in 1..=plan.overload_repetitions {
        let round = round(plan, report, &quota)?;
        print(report, repetition, plan.overload_repetitions, &round);
        rounds.push(round);
    }
    report.raw("overload_throttled", json!(quota.throttled()));
    report.raw("overload", json!(rounds.iter().map(Round::json).collect::<Vec<_>>()));
    report.tables.push(table(&rounds));
    rounds.retain(|round| round.flood.achieved_share() >= ACHIEVED_MIN);
    if rounds.is_empty() {
        let share = ACHIEVED_MIN * 100.0;
        report.absent(NAME, &format!("in no round {share:.0} % of the arrivals were achieved"));
        return Ok(());
    }
    let of = |value: fn(&Round) -> f64| median(&rounds.iter().map(value).collect::<Vec<_>>());
    report.figure(
        NAME,
        of(Round::goodput_share),
        "x",
        "goodput at ten times the peak against the peak, under a fifth of a core",
        Goal::AtLeast { must: 0.90, target: 0.97 },
    );
    report.figure(
        "overload_p99_vs_peak",
        of(|round| round.flood.p99_ms() / round.peak.p99_ms()),
        "x",
        "p99 of the accepted in it against the peak",
        Goal::AtMost { must: 2.0, target: 2.0 },
    );
    report.figure(
        "overload_normal_after_s",
        of(|round| round.normal_after.unwrap_or(NORMAL_WITHIN).as_secs_f64()),
        "s",
        "until everything is as before",
        Goal::AtMost { must: 5.0, target: 5.0 },
    );
    report.figure(
        "overload_memory_mib",
        of(|round| round.memory_mib[1] - round.memory_mib[0]),
        "MiB",
        "memory that the overload added at most",
        Goal::AtMost { must: 64.0, target: 32.0 },
    );
    Ok(())
}

fn round(plan: &Plan, report: &Report, quota: &Quota) -> anyhow::Result<Round> {
    let folder = TempDir::new()?;
    let product = Product::start_within(folder.path(), Some(quota))?;
    let sale = product.open_sale(1, 10_000_000)?;
    report.say("overload: the peak under the quota");
    let waiting_max = usize::try_from(plan.open_files.saturating_sub(OTHER_FILES))?;
    // A tenth is kept free: nobody hangs up exactly in time.
    let patience = |per_s: f64| {
        PATIENCE.min(Duration::from_secs_f64(waiting_max as f64 * 0.9 / per_s)).max(PATIENCE_MIN)
    };
    let closed = |people, run| Coming::Closed { people }.arrive(plan, &product, &sale, run, PATIENCE);
    let open =
        |per_s, run| Coming::Open { per_s, waiting_max }.arrive(plan, &product, &sale, run, patience(per_s));
    closed(PEAK_PEOPLE[0], WINDOW)?;
    let (people, usual) = best_crowd(|people| closed(people, plan.run))?;
    ensure!(usual.useful > 0, "the server accepted nobody under its quota");
    let higher = higher_peak(usual.goodput(), |per_s| open(per_s, plan.run))?;
    let at_peak = || higher.map_or_else(|| closed(people, plan.run), |per_s| open(per_s, plan.run));
    let before_it = at_peak()?;
    let before = resident_bytes(product.id());
    let per_s = before_it.goodput() * TIMES_PEAK;
    let patience = patience(per_s);
    report.say(&format!(
        "overload: {per_s:.0} buyers per second come, ten times the peak; each waits {} ms at most",
        patience.as_millis()
    ));
    let (flood, most) = with_memory(product.id(), || open(per_s, plan.run * 2))?;
    let normal_after = normal_after(&usual, flood.over_at, || closed(people, WINDOW))?;
    let peak = Peak { before: before_it, after: at_peak()? };
    product.settle(&sale)?;
    let after = resident_bytes(product.id());
    let memory_mib = [before, most, after].map(|bytes| bytes as f64 / f64::from(1 << 20));
    Ok(Round { peak, patience, flood, normal_after, memory_mib })
}

/// The crowd that is served best, and what it got.
fn best_crowd(closed: impl Fn(usize) -> anyhow::Result<Tally>) -> anyhow::Result<(usize, Tally)> {
    let mut best: Option<(usize, Tally)> = None;
    for people in PEAK_PEOPLE {
        let tally = closed(people)?;
        if best.as_ref().is_none_or(|(_, best)| tally.goodput() > best.goodput()) {
            best = Some((people, tally));
        }
    }
    best.context("no crowd came")
}

/// How many must come per second so that more are served; `None` when never more are.
fn higher_peak(mut best: f64, open: impl Fn(f64) -> anyhow::Result<Tally>) -> anyhow::Result<Option<f64>> {
    let mut found = None;
    let mut per_s = best;
    for _ in 0..PEAK_STEPS_MAX {
        per_s *= PEAK_STEP;
        let goodput = open(per_s)?.goodput();
        if goodput < best * MORE {
            break;
        }
        best = goodput;
        found = Some(per_s);
    }
    Ok(found)
}

impl Coming {
    fn arrive(
        self,
        plan: &Plan,
        product: &Product,
        sale: &Sale,
        run: Duration,
        patience: Duration,
    ) -> anyhow::Result<Tally> {
        let per_s = match self {
            Self::Closed { .. } => CLOSED_PER_S_MAX,
            Self::Open { per_s, .. } => per_s,
        };
        let passes = Minted::new(product, sale).ahead((per_s * run.as_secs_f64() * 1.05) as usize + 1_000);
        let arrivals = Arrivals { addr: product.address, threads: plan.threads, run, patience, coming: self };
        arrivals.run(&passes)
    }
}

/// The most memory that the process had while `run` ran.
fn with_memory<T>(id: u32, run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, u64)> {
    let (over, most) = (AtomicBool::new(false), AtomicU64::new(0));
    let result = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                most.fetch_max(resident_bytes(id), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let result = run();
        over.store(true, Ordering::Relaxed);
        result
    });
    Ok((result?, most.load(Ordering::Relaxed)))
}

/// When the first window that is as usual began, from the end of the arrivals on.
fn normal_after(
    usual: &Tally,
    over_at: Instant,
    window: impl Fn() -> anyhow::Result<Tally>,
) -> anyhow::Result<Option<Duration>> {
    while over_at.elapsed() < NORMAL_WITHIN {
        let since = over_at.elapsed();
        let tally = window()?;
        let normal = tally.goodput() >= usual.goodput() * NORMAL_GOODPUT
            && tally.p99_ms() <= usual.p99_ms() * SLOWER_MAX;
        if normal {
            return Ok(Some(since));
        }
    }
    Ok(None)
}

impl Round {
    fn goodput_share(&self) -> f64 {
        self.flood.goodput() / self.peak.goodput()
    }

    fn json(&self) -> serde_json::Value {
        json!({
            "peak_before": self.peak.before.json(), "peak_after": self.peak.after.json(), "overload": self.flood.json(), "goodput_share": self.goodput_share(),
            "patience_ms": self.patience.as_millis(),
            "normal_after_s": self.normal_after.map(|after| after.as_secs_f64()),
            "memory_mib": {"before": self.memory_mib[0], "most": self.memory_mib[1], "after": self.memory_mib[2]},
        })
    }

    fn normal_text(&self) -> String {
        match self.normal_after {
            Some(after) => format!("{:.1} s", after.as_secs_f64()),
            None => format!("not within {} s", NORMAL_WITHIN.as_secs()),
        }
    }
}

fn print(report: &Report, repetition: usize, of: usize, round: &Round) {
    let Round { peak, flood, memory_mib: [before, most, after], .. } = round;
    report.say(&format!(
        "overload {repetition}/{of}: peak {:.0}/s before and {:.0}/s after, p99 {:.1} and {:.1} ms; \
         offered {} arrivals, achieved {} ({:.1} %)",
        peak.before.goodput(),
        peak.after.goodput(),
        peak.before.p99_ms(),
        peak.after.p99_ms(),
        flood.offered,
        flood.achieved,
        flood.achieved_share() * 100.0
    ));
    report.say(&format!(
        "  goodput {:.0}/s = {:.1} % of the peak, p99 of accepted {:.1} ms; shed {}, gave up {}, cut off {}, strange {}",
        flood.goodput(),
        round.goodput_share() * 100.0,
        flood.p99_ms(),
        flood.shed,
        flood.gave_up,
        flood.broken,
        flood.strange
    ));
    report.say(&format!(
        "  memory {before:.0} MiB before, {most:.0} at most, {after:.0} after; normal again after {}; \
         the generator spent {:.1} us per arrival",
        round.normal_text(),
        flood.cpu_us / flood.offered.max(1) as f64
    ));
}

fn table(rounds: &[Round]) -> Table {
    let row = |round: &Round| {
        let Round { peak, flood, memory_mib: [before, most, after], .. } = round;
        vec![
            format!("{:.0} / {:.0}", peak.before.goodput(), peak.after.goodput()),
            format!("{:.1} / {:.1}", peak.before.p99_ms(), peak.after.p99_ms()),
            format!("{:.0}", flood.offered as f64 / flood.run.as_secs_f64()),
            format!("{:.1} %", flood.achieved_share() * 100.0),
            format!("{:.0}", flood.goodput()),
            format!("{:.1}", flood.p99_ms()),
            format!("{:.0} % after {} ms", flood.gave_up_share() * 100.0, round.patience.as_millis()),
            format!("{before:.0} / {most:.0} / {after:.0}"),
            round.normal_text(),
        ]
    };
    Table {
        title: "Overload, each round",
        head: vec![
            "peak/s before / after",
            "its p99 ms",
            "offered/s",
            "achieved",
            "goodput/s",
            "p99 ms of accepted",
            "gave up",
            "MiB before / most / after",
            "normal again",
        ],
        rows: rounds.iter().map(row).collect(),
    }
}
