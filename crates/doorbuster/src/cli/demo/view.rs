//! The sale while it happens: bars on a terminal, a line now and then elsewhere, always in the order of the funnel.
//! It reads the crowd's counters and the operator's stats, and judges nothing.

use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use rules::wire::{SaleView, Stats};
use stampede::crowd::{Progress, Snapshot};

use super::Shop;
use crate::cli::say;
use crate::cli::table::{span, thousands};

/// Between two looks: smooth for eyes on a terminal, sparse in a log.
const BARS_EVERY: Duration = Duration::from_millis(100);
const LINES_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Watching<'a> {
    pub progress: Arc<Progress>,
    pub shop: &'a Shop,
    pub sale: &'a SaleView,
    pub crowd: u64,
    pub stock: u64,
    /// Only bars, no lines.
    pub quiet: bool,
}

/// One look at everything.
struct Look {
    crowd: Snapshot,
    stats: Stats,
    /// Milliseconds since the opening; negative before it.
    since_opening_ms: i64,
}

impl Watching<'_> {
    /// Shows until it is dropped; returns only when the server no longer answers.
    pub async fn show(&self) -> anyhow::Error {
        let failed = if std::io::stderr().is_terminal() { self.bars().await } else { self.lines().await };
        match failed {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn look(&self) -> anyhow::Result<Look> {
        let stats = self.shop.stats(self.sale).await?;
        let since_opening_ms = self.shop.clock.now().0.saturating_sub(self.sale.opens_at.0);
        Ok(Look { crowd: self.progress.snapshot(), stats, since_opening_ms })
    }

    async fn bars(&self) -> anyhow::Result<std::convert::Infallible> {
        let bars = Bars::new(self.crowd, self.stock)?;
        loop {
            bars.set(&self.look().await?);
            tokio::time::sleep(BARS_EVERY).await;
        }
    }

    async fn lines(&self) -> anyhow::Result<std::convert::Infallible> {
        let mut last = String::new();
        loop {
            let look = self.look().await?;
            let counts = look.counts();
            if counts != last && !self.quiet {
                say::answer(&format!("{:<16} {counts}", look.when()));
                last = counts;
            }
            tokio::time::sleep(LINES_EVERY).await;
        }
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

    fn free(&self) -> u64 {
        self.stats.offers.iter().map(|offer| u64::from(offer.free)).sum()
    }

    /// Orders in the ledger: what was granted and no longer waits.
    fn recorded(&self) -> u64 {
        self.stats.funnel.granted.saturating_sub(self.stats.queue.depth)
    }

    fn latency(&self) -> String {
        let call = self.crowd.call;
        if call.count == 0 {
            return String::new();
        }
        let of = |us| span(Duration::from_micros(us));
        format!("order call p50 {}, p99 {}", of(call.p50_us), of(call.p99_us))
    }

    fn counts(&self) -> String {
        let Self { crowd, stats, .. } = self;
        let steps = [
            ("arrived", crowd.arrived),
            ("passes", crowd.passes),
            ("tries", crowd.tries),
            ("granted", stats.funnel.granted),
            ("recorded", self.recorded()),
            ("left", self.free()),
        ];
        let steps: Vec<String> =
            steps.iter().map(|(name, count)| format!("{name} {:>6}", thousands(*count))).collect();
        format!("{}  {}", steps.join("  "), self.latency()).trim_end().to_owned()
    }
}

/// The funnel, one bar per step, then the stock.
struct Bars {
    head: ProgressBar,
    arrived: ProgressBar,
    passes: ProgressBar,
    tries: ProgressBar,
    granted: ProgressBar,
    recorded: ProgressBar,
    stock: ProgressBar,
    foot: ProgressBar,
    _all: MultiProgress,
}

impl Bars {
    fn new(crowd: u64, stock: u64) -> anyhow::Result<Self> {
        let all = MultiProgress::new();
        let text = ProgressStyle::with_template("  {msg}")?;
        let step =
            ProgressStyle::with_template("  {prefix:<9} {bar:40.cyan/dim} {human_pos:>7}  {msg:.dim}")?;
        let step = step.progress_chars("━╸─");
        let line =
            |style: &ProgressStyle, length| all.add(ProgressBar::new(length).with_style(style.clone()));
        let bar = |name: &'static str, length, unit: &str| {
            line(&step, length).with_prefix(name).with_message(unit.to_owned())
        };
        let of_crowd = format!("of {} buyers", thousands(crowd));
        let of_stock = format!("of {} units", thousands(stock));
        Ok(Self {
            head: line(&text, 1),
            arrived: bar("arrived", crowd, &of_crowd),
            passes: bar("passes", crowd, ""),
            tries: bar("tries", crowd, "repeats included"),
            granted: bar("granted", stock, &of_stock),
            recorded: bar("recorded", stock, "orders in the ledger"),
            stock: bar("left", stock, "units"),
            foot: line(&text, 1),
            _all: all,
        })
    }

    fn set(&self, look: &Look) {
        self.head.set_message(look.when());
        self.arrived.set_position(look.crowd.arrived);
        self.passes.set_position(look.crowd.passes);
        self.tries.set_position(look.crowd.tries);
        self.granted.set_position(look.stats.funnel.granted);
        self.recorded.set_position(look.recorded());
        self.stock.set_position(look.free());
        self.foot.set_message(look.latency());
    }
}

impl Drop for Bars {
    /// The verdict takes their place.
    fn drop(&mut self) {
        let all = [&self.head, &self.arrived, &self.passes, &self.tries, &self.granted, &self.recorded];
        all.into_iter().chain([&self.stock, &self.foot]).for_each(ProgressBar::finish_and_clear);
    }
}
