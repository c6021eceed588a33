//! A night while it happens: bars on a terminal, a line now and then elsewhere, always in the order of the funnel. It
//! reads the crowd's counters and the operator's stats, keeps the stock's samples, and judges nothing.

use std::io::IsTerminal as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use rules::id::OfferId;
use rules::time::UnixMs;
use rules::wire::Stats;
use serde::{Deserialize, Serialize};

use crate::clock::{Clock, micros};
use crate::crowd::{Progress, Snapshot};
use crate::say;
use crate::words::{span, span_us, thousands};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Between two lines in a log.
const LINES_EVERY: Duration = Duration::from_secs(1);
/// Samples of stock that are kept: an hour of a sale with one offer.
const SAMPLES_MAX: usize = 36_000;

/// The units of an offer that nobody had at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Microseconds since the start.
    pub at_us: u64,
    pub offer: OfferId,
    pub free: u32,
}

/// The stock over time.
#[derive(Debug, Default)]
pub struct Samples(Mutex<Vec<Sample>>);

impl Samples {
    #[must_use]
    pub fn take(&self) -> Vec<Sample> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn keep(&self, at: Duration, stats: &Stats) {
        let mut samples = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if samples.len() < SAMPLES_MAX {
            let sample = |offer: &rules::wire::OfferStats| Sample {
                at_us: micros(at),
                offer: offer.offer_id,
                free: offer.free,
            };
            samples.extend(stats.offers.iter().map(sample));
        }
    }
}

/// What is watched. `stats` asks the operator's side, or knows that nobody may.
#[derive(Debug)]
pub struct View<'a, S> {
    pub progress: Arc<Progress>,
    pub clock: Clock,
    /// The opening, by `clock`.
    pub opens_at: UnixMs,
    pub stats: S,
    pub samples: &'a Samples,
    pub crowd: u64,
    /// Units in all offers; `None`: not known.
    pub stock: Option<u64>,
    /// Nothing is shown; samples are kept all the same.
    pub quiet: bool,
    /// How long the operator's side may be silent.
    pub bears: Duration,
}

/// One look at everything.
struct Look {
    crowd: Snapshot,
    stats: Option<Stats>,
    /// Milliseconds since the opening; negative before it.
    since_opening_ms: i64,
    calls_per_s: u64,
}

/// Where it is shown.
enum Shown {
    Bars(Box<Bars>),
    Lines(Lines),
    Nowhere,
}

/// Lines for a log.
struct Lines {
    last: String,
    due: Instant,
}

impl Lines {
    /// What is to be said now: something new, and not too often.
    fn next(&mut self, look: &Look, now: Instant) -> Option<String> {
        let counts = look.counts();
        if now < self.due || counts == self.last {
            return None;
        }
        let line = format!("{:<16} {counts}  {}", look.when(), look.latency());
        (self.last, self.due) = (counts, now + LINES_EVERY);
        Some(line.trim_end().to_owned())
    }
}

impl<S: AsyncFn() -> anyhow::Result<Option<Stats>>> View<'_, S> {
    /// Shows until it is dropped; returns only when the server no longer answers.
    pub async fn show(&self) -> anyhow::Error {
        let mut shown = match self.place() {
            Ok(shown) => shown,
            Err(error) => return error,
        };
        // Since the first look that failed, not since the last that did not: we may have slept in between.
        let mut silent_since = None;
        let mut stats = None;
        let mut rate = Rate { at: self.clock.instant(), calls: 0, per_s: 0 };
        loop {
            match (self.stats)().await {
                Ok(now) => {
                    silent_since = None;
                    stats = now;
                }
                Err(error) => {
                    let since: Instant = *silent_since.get_or_insert_with(|| self.clock.instant());
                    if since + self.bears < self.clock.instant() {
                        return error;
                    }
                }
            }
            if let Some(stats) = &stats {
                self.samples.keep(self.clock.elapsed(), stats);
            }
            self.draw(&mut shown, self.look(stats.clone(), &mut rate));
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn place(&self) -> anyhow::Result<Shown> {
        Ok(match (self.quiet, std::io::stderr().is_terminal()) {
            (true, _) => Shown::Nowhere,
            (false, true) => Shown::Bars(Box::new(Bars::new(self.crowd, self.stock)?)),
            (false, false) => Shown::Lines(Lines { last: String::new(), due: self.clock.instant() }),
        })
    }

    fn look(&self, stats: Option<Stats>, rate: &mut Rate) -> Look {
        let crowd = self.progress.snapshot();
        let calls_per_s = rate.of(crowd.calls, self.clock.instant());
        let since_opening_ms = self.clock.now().0.saturating_sub(self.opens_at.0);
        Look { crowd, stats, since_opening_ms, calls_per_s }
    }

    fn draw(&self, shown: &mut Shown, look: Look) {
        match shown {
            Shown::Nowhere => {}
            Shown::Bars(bars) => bars.set(&look),
            Shown::Lines(lines) => {
                if let Some(line) = lines.next(&look, self.clock.instant()) {
                    say::answer(&line);
                }
            }
        }
    }
}

/// Requests per second, over half a second at least.
struct Rate {
    at: Instant,
    calls: u64,
    per_s: u64,
}

impl Rate {
    fn of(&mut self, calls: u64, now: Instant) -> u64 {
        let time = now.saturating_duration_since(self.at);
        if time >= Duration::from_millis(500) {
            let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
            self.per_s = calls.saturating_sub(self.calls).saturating_mul(1_000).checked_div(ms).unwrap_or(0);
            (self.at, self.calls) = (now, calls);
        }
        self.per_s
    }
}

impl Look {
    fn when(&self) -> String {
        let distance = span(Duration::from_millis(self.since_opening_ms.unsigned_abs()));
        if self.since_opening_ms < 0 {
            format!("opens in {distance}")
        } else {
            format!("open for {distance}")
        }
    }

    fn free(&self) -> Option<u64> {
        let stats = self.stats.as_ref()?;
        Some(stats.offers.iter().map(|offer| u64::from(offer.free)).sum())
    }

    /// Units that are held or sold.
    fn taken(&self) -> Option<u64> {
        let stats = self.stats.as_ref()?;
        Some(stats.offers.iter().map(|offer| u64::from(offer.held) + u64::from(offer.sold)).sum())
    }

    /// Claims in the ledger: what was granted and no longer waits.
    fn recorded(&self) -> Option<u64> {
        Some(self.taken()?.saturating_sub(self.stats.as_ref()?.queue.depth))
    }

    fn latency(&self) -> String {
        let (rate, click) = (self.calls_per_s, self.crowd.click);
        let rate = if rate > 0 { format!("{}/s", thousands(rate)) } else { String::new() };
        if click.count == 0 {
            return rate;
        }
        format!("{rate}  click to answer p50 {}, p99 {}", span_us(click.p50_us), span_us(click.p99_us))
    }

    fn counts(&self) -> String {
        let crowd = &self.crowd;
        let mut steps = vec![("arrived", crowd.arrived), ("passes", crowd.passes), ("tries", crowd.tries)];
        match (self.taken(), self.recorded(), self.free()) {
            (Some(taken), Some(recorded), Some(free)) => {
                steps.extend([("granted", taken), ("recorded", recorded), ("left", free)]);
            }
            _ => steps.extend([("queued", crowd.queued), ("won", crowd.won)]),
        }
        let paid = [("paid", crowd.paid), ("cancelled", crowd.cancelled)];
        steps.extend(paid.into_iter().filter(|(_, count)| *count > 0));
        let steps: Vec<String> =
            steps.iter().map(|(name, count)| format!("{name} {:>6}", thousands(*count))).collect();
        steps.join("  ")
    }
}

/// The funnel, one bar per step, then the stock.
#[derive(Debug)]
struct Bars {
    head: ProgressBar,
    arrived: ProgressBar,
    passes: ProgressBar,
    tries: ProgressBar,
    granted: ProgressBar,
    recorded: ProgressBar,
    stock: ProgressBar,
    foot: ProgressBar,
    crowd: u64,
    /// The last look saw everybody gone and nothing queued: it says how the night ended.
    is_the_end: bool,
    _all: MultiProgress,
}

impl Bars {
    fn new(crowd: u64, stock: Option<u64>) -> anyhow::Result<Self> {
        let all = MultiProgress::new();
        let text = ProgressStyle::with_template("  {msg}")?;
        let step =
            ProgressStyle::with_template("  {prefix:<9} {bar:36.cyan/dim} {human_pos:>7}  {msg:.dim}")?;
        let step = step.progress_chars("━╸─");
        let line =
            |style: &ProgressStyle, length| all.add(ProgressBar::new(length).with_style(style.clone()));
        let bar = |name: &'static str, length, unit: &str| {
            line(&step, length).with_prefix(name).with_message(unit.to_owned())
        };
        let of_crowd = format!("of {} buyers", thousands(crowd));
        let of_stock = stock.map_or("orders".to_owned(), |stock| format!("of {} units", thousands(stock)));
        let stock = stock.unwrap_or(crowd);
        Ok(Self {
            head: line(&text, 1),
            arrived: bar("arrived", crowd, &of_crowd),
            passes: bar("passes", crowd, ""),
            tries: bar("tries", crowd, "repeats included"),
            granted: bar("granted", stock, &of_stock),
            recorded: bar("recorded", stock, "orders in the ledger"),
            stock: bar("left", stock, "units"),
            foot: line(&text, 1),
            crowd,
            is_the_end: false,
            _all: all,
        })
    }

    fn set(&mut self, look: &Look) {
        let queued = look.stats.as_ref().map_or(0, |stats| stats.queue.depth);
        self.is_the_end = look.crowd.gone >= self.crowd && queued == 0;
        self.head.set_message(look.when());
        self.arrived.set_position(look.crowd.arrived);
        self.passes.set_position(look.crowd.passes);
        self.tries.set_position(look.crowd.tries);
        self.granted.set_position(look.taken().unwrap_or(look.crowd.queued));
        self.recorded.set_position(look.recorded().unwrap_or(look.crowd.won));
        match look.free() {
            Some(free) => self.stock.set_position(free),
            None => self.stock.set_message("units: the operator knows"),
        }
        self.foot.set_message(look.latency().trim_start().to_owned());
    }
}

impl Drop for Bars {
    /// They stay above the verdict where they show the end; a moment from the middle would contradict it.
    fn drop(&mut self) {
        let leave = if self.is_the_end { ProgressBar::abandon } else { ProgressBar::finish_and_clear };
        let all = [&self.head, &self.arrived, &self.passes, &self.tries, &self.granted, &self.recorded];
        all.into_iter().chain([&self.stock, &self.foot]).for_each(leave);
        if self.is_the_end {
            // The cursor still stands behind the last bar.
            say::complain("");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use rules::id::SaleId;
    use tokio::sync::Notify;

    use super::*;
    use crate::crowd::{Crowd, CrowdSettings, Tokens};
    use crate::fake::{FakeShop, Manners, SECRET};
    use crate::scenario::Wanted;

    const BEARS: Duration = Duration::from_millis(300);

    fn view<S: AsyncFn() -> anyhow::Result<Option<Stats>>>(samples: &Samples, stats: S) -> View<'_, S> {
        let nowhere = CrowdSettings::new(([127, 0, 0, 1], 1).into(), SaleId(1), Tokens::Demo, 1);
        let (progress, clock) = (Crowd::new(nowhere).unwrap().progress(), Clock::start());
        let opens_at = clock.now();
        View { progress, clock, opens_at, stats, samples, crowd: 1, stock: None, quiet: true, bears: BEARS }
    }

    #[tokio::test]
    async fn a_pause_of_our_own_is_not_taken_for_a_silent_server() {
        let (looks, seen_again, clock) = (AtomicU32::new(0), Notify::new(), Clock::start());
        let stats = async || match looks.fetch_add(1, Ordering::Relaxed) {
            // The connection broke while the crowd was stopped, long after the last answer.
            1 => {
                let until = clock.instant() + 2 * BEARS;
                while clock.instant() < until {
                    tokio::task::yield_now().await;
                }
                anyhow::bail!("the connection broke")
            }
            0 => Ok(None),
            _ => {
                seen_again.notify_one();
                Ok(None)
            }
        };
        let samples = Samples::default();
        let view = view(&samples, stats);
        tokio::select! {
            error = view.show() => panic!("given up: {error}"),
            () = seen_again.notified() => {}
        }
    }

    #[tokio::test]
    async fn a_line_shows_the_rate_the_latency_the_funnel_and_the_stock_left() {
        let shop = FakeShop::open(Manners { stock: 7, ..Manners::default() });
        let mut settings = CrowdSettings::new(shop.addr(), shop.sale(), Tokens::signed(SECRET), 20);
        settings.wanted = Wanted::First;
        let crowd = Crowd::new(settings).unwrap();
        crowd.run().await.unwrap();
        let samples = Samples::default();
        let mut view = view(&samples, async || Ok(None));
        view.progress = crowd.progress();
        let (now, calls) = (view.clock.instant(), view.progress.snapshot().calls);
        assert!(calls >= 20 * 4, "{calls}");
        let mut rate = Rate { at: now - Duration::from_secs(1), calls: 0, per_s: 0 };
        let look = view.look(Some(shop.stats()), &mut rate);
        let mut lines = Lines { last: String::new(), due: now };
        let line = lines.next(&look, now).unwrap();
        let funnel =
            "arrived     20  passes     20  tries     20  granted      7  recorded      7  left      7  ";
        assert!(line.starts_with("open for ") && line.contains(funnel), "{line}");
        let (_, rest) = line.split_once(funnel).unwrap();
        let (rate, latency) = rest.split_once("/s  click to answer p50 ").unwrap();
        assert!(rate.replace(',', "").parse::<u64>().unwrap() > 0 && latency.contains(", p99 "), "{line}");
        // The same is not said twice, and nothing new before its time.
        assert_eq!(lines.next(&look, now + LINES_EVERY), None);
        lines.last.clear();
        assert_eq!(lines.next(&look, now), None);
        assert_eq!(lines.next(&look, now + LINES_EVERY), Some(line));
    }

    #[tokio::test]
    async fn a_server_that_stays_silent_is_given_up() {
        let samples = Samples::default();
        let error = view(&samples, async || anyhow::bail!("no answer")).show().await;
        assert_eq!(error.to_string(), "no answer");
    }
}
