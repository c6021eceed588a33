//! All metrics, made once at start and handed around as fields. Every series exists from the first scrape on, and
//! their number is fixed: no label holds a sale, an offer or a buyer, because those are unbounded.
//!
//! docs/metrics.md is compared with this file by a test.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry};
use rules::payment::{RefundReason, Revival};

/// What `/metrics` answers with.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// ```
/// use doorbuster::telemetry::metrics::{Metrics, Try};
/// let metrics = Metrics::new();
/// metrics.tries.inc(Try::SoldOut);
/// assert_eq!(metrics.tries.get(Try::SoldOut), 1);
/// ```
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pub tries: Arc<Counts<Try>>,
    pub passes: Arc<Counts<PassOutcome>>,
    pub challenges: Arc<Counts<ChallengeOutcome>>,
    pub registrations: Arc<Counts<RegistrationOutcome>>,
    pub connections: Arc<Counts<ConnectionOutcome>>,
    pub requests: Arc<Counts<Answered>>,
    pub shed: Arc<Counts<Shed>>,
    pub orders: Arc<Counts<OrderOutcome>>,
    pub releases: Arc<Counts<Letting>>,
    pub late_money: Arc<Counts<LateMoney>>,
    pub inquiries: Arc<Counts<Inquiry>>,
    pub pushes: Arc<Counts<PushOutcome>>,
    pub deliveries: Arc<Counts<Delivery>>,
    pub broker_deliveries: Arc<Counts<Delivery>>,
    pub callbacks: Arc<Counts<CallbackOutcome>>,
    pub money: Arc<Counts<MoneyOutcome>>,
    pub audits: Arc<Counts<AuditOutcome>>,
    /// Embedded, the ledger never refuses what the gate granted. Anything but zero is a defect.
    pub ledger_refusals: Counter,
    /// Journal commits that did not happen, and whose buyers were told so: a full disk, mostly.
    pub journal_roll_backs: Counter,
    /// Times that the backlog was shortened, from its full length.
    pub saturated: Counter,
    /// Anything but zero needs a person: what is written in the ledger does not fit together.
    pub set_aside: Counter,
    pub connections_open: Gauge,
    pub backlog_max: Gauge,
    pub in_flight: Gauge,
    pub waiters: Gauge,
    pub sockets_open: Gauge,
    pub queue_depth: Gauge,
    pub limiter_overflowed: Gauge,
    pub deliveries_waiting: Gauge,
    pub deliveries_parked: Gauge,
    pub deliveries_lag_seconds: Gauge,
    pub webhooks_resting: Gauge,
    pub webhooks_disabled: Gauge,
    pub broker_connected: Gauge,
    pub broker_lag_seconds: Gauge,
    pub audit_findings: Gauge,
    pub audit_last_clean_timestamp_seconds: Gauge,
    pub journal_batch_claims: Histogram,
    pub journal_commit_seconds: Histogram,
    pub clerk_batch_claims: Histogram,
    pub clerk_commit_seconds: Histogram,
    pub clerk_lag_seconds: Histogram,
    pub sweeper_batch_orders: Histogram,
    pub sweeper_lag_seconds: Histogram,
    pub audit_seconds: Histogram,
    /// How long an audit kept a lock of the gate.
    pub audit_gate_hold_seconds: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    pub fn new() -> Self {
        let mut all = Registry::with_prefix("doorbuster");
        all.register("build", "The version that runs", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        let r = &mut all;
        Self {
            tries: counts(r, "tries", "Tries to order, by verdict"),
            passes: counts(r, "passes", "Requests for a pass, by outcome"),
            challenges: counts(r, "challenges", "Challenges given and answered"),
            registrations: counts(r, "registrations", "Registrations made, repeated, left and refused"),
            connections: counts(
                r,
                "connections",
                "Connections accepted, and refused because there were too many",
            ),
            requests: counts(r, "requests", "Requests answered, by whom they serve and status"),
            shed: counts(r, "shed", "Requests turned away because a limit was full"),
            orders: counts(r, "orders", "Claims the ledger judged, by outcome"),
            releases: counts(r, "releases", "Orders that let go of their units, by cause"),
            late_money: counts(
                r,
                "late_money",
                "Looks for a unit for money that came after the deadline, by what came of them",
            ),
            inquiries: counts(
                r,
                "inquiries",
                "Providers asked at a deadline whether a payment was paid, by answer",
            ),
            pushes: counts(
                r,
                "pushes",
                "Order events for open sockets; skipped when a buyer reads too slowly",
            ),
            deliveries: counts(
                r,
                "deliveries",
                "Attempts to deliver events to webhooks, events given up, and events dropped for their age before a \
                 receiver had them",
            ),
            broker_deliveries: counts(
                r,
                "broker_deliveries",
                "Attempts to hand events to the broker, and events given up",
            ),
            callbacks: counts(r, "callbacks", "Notifications of payment providers, by what became of them"),
            money: counts(r, "money", "Payments and refunds, by what happened to them"),
            audits: counts(r, "audits", "Audits made, by outcome"),
            ledger_refusals: with(
                r,
                "ledger_refusals",
                "Granted claims the ledger refused: must stay zero, else a defect",
                Counter::default(),
            ),
            journal_roll_backs: with(
                r,
                "journal_roll_backs",
                "Journal commits undone; their buyers were told to try again",
                Counter::default(),
            ),
            saturated: with(
                r,
                "saturated",
                "Times that more connections came than could be looked at, and the backlog was shortened",
                Counter::default(),
            ),
            set_aside: with(
                r,
                "set_aside",
                "Times that an unpaid order could not be closed, or captured money not be decided, because of what is \
                 written about it: must stay zero, else an audit says what is wrong",
                Counter::default(),
            ),
            connections_open: gauge(r, "connections_open", "Connections open now"),
            backlog_max: gauge(
                r,
                "backlog_max",
                "Buyers' connections that may wait in the kernel now; beyond it they are turned away there",
            ),
            in_flight: gauge(r, "in_flight", "Buyers' requests under way now"),
            waiters: gauge(r, "waiters", "Long polls and waits under way now"),
            sockets_open: gauge(r, "sockets_open", "WebSockets and event streams open now"),
            queue_depth: gauge(r, "queue_depth", "Claims granted and not yet in the ledger"),
            limiter_overflowed: gauge(
                r,
                "limiter_overflowed",
                "Requests since start let through uncounted by the rate limits; growing = raise limits.limiter_keys",
            ),
            deliveries_waiting: gauge(
                r,
                "deliveries_waiting",
                "Events that failed to reach a webhook and are tried again, and those behind them",
            ),
            deliveries_parked: gauge(r, "deliveries_parked", "Events given up until somebody replays them"),
            deliveries_lag_seconds: gauge(
                r,
                "deliveries_lag_seconds",
                "Age of the oldest event that a webhook lacks; parked events and disabled webhooks left out",
            ),
            webhooks_resting: gauge(
                r,
                "webhooks_resting",
                "Webhooks that keep failing and are left alone now",
            ),
            webhooks_disabled: gauge(
                r,
                "webhooks_disabled",
                "Receivers that are told nothing: an operator disabled them, or they answered 410 Gone",
            ),
            broker_connected: gauge(
                r,
                "broker_connected",
                "1 while there is a connection to the broker that takes messages",
            ),
            broker_lag_seconds: gauge(
                r,
                "broker_lag_seconds",
                "Age of the oldest event that the broker lacks; parked events left out",
            ),
            audit_findings: gauge(
                r,
                "audit_findings",
                "Discrepancies that the last audit of everything found and did not mend: must be zero",
            ),
            audit_last_clean_timestamp_seconds: gauge(
                r,
                "audit_last_clean_timestamp_seconds",
                "When the last audit of everything was clean, in seconds since 1970; 0 = not since the start",
            ),
            journal_batch_claims: with(r, "journal_batch_claims", "Claims per journal commit", claims()),
            journal_commit_seconds: with(r, "journal_commit_seconds", "Time of a journal commit", seconds()),
            clerk_batch_claims: with(r, "clerk_batch_claims", "Claims per ledger transaction", claims()),
            clerk_commit_seconds: with(r, "clerk_commit_seconds", "Time of a ledger transaction", seconds()),
            clerk_lag_seconds: with(
                r,
                "clerk_lag_seconds",
                "From a claim's grant to its order in the ledger, oldest of each batch",
                seconds(),
            ),
            sweeper_batch_orders: with(
                r,
                "sweeper_batch_orders",
                "Unpaid orders closed per ledger transaction",
                claims(),
            ),
            sweeper_lag_seconds: with(
                r,
                "sweeper_lag_seconds",
                "From an order's deadline to its closing, oldest of each batch",
                seconds(),
            ),
            audit_seconds: with(r, "audit_seconds", "Time of an audit", seconds()),
            audit_gate_hold_seconds: with(
                r,
                "audit_gate_hold_seconds",
                "Time that tries may have waited at the gate for an audit: for the piece that took longest to copy, and for \
                 the whole gate whenever it was weighed or set right",
                short_seconds(),
            ),
            registry: all,
        }
    }

    /// The text of `/metrics`; see [`CONTENT_TYPE`].
    pub fn encode(&self) -> String {
        let mut page = String::with_capacity(16 * 1024);
        // Writing to a `String` cannot fail; a half page would lack its end mark and be refused by the reader.
        let _complete = text::encode(&mut page, &self.registry);
        page
    }
}

/// A closed set of label values, known at compile time.
pub trait Label: Copy + fmt::Debug + Send + Sync + 'static {
    const ALL: &'static [Self];

    /// The place of `self` in [`Label::ALL`].
    fn index(self) -> usize;

    fn labels(self) -> Vec<(&'static str, &'static str)>;
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident, $key:literal: $($variant:ident = $text:literal),+ $(,)?) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($variant),+ }

        impl $name {
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl Label for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),+];

            #[expect(clippy::as_conversions, reason = "the discriminant of a plain enum is its place in ALL")]
            #[inline]
            fn index(self) -> usize {
                self as usize
            }

            fn labels(self) -> Vec<(&'static str, &'static str)> {
                vec![($key, self.as_str())]
            }
        }
    };
}

label! {
    /// How a try to order ended: the codes buyers get.
    Try, "verdict":
    Granted = "granted", Repeat = "repeat", AlreadyOrdered = "already_ordered", SoldOut = "sold_out",
    NotEnough = "not_enough", NotOpen = "not_open", Ended = "ended", Paused = "paused", TooFast = "too_fast",
    Busy = "busy", Unsure = "unsure", PassInvalid = "pass_invalid", PassExpired = "pass_expired",
    PassReused = "pass_reused", InvalidRequest = "invalid_request",
}

label! {
    PassOutcome, "outcome":
    Issued = "issued", NotRegistered = "not_registered", Blocked = "blocked",
    ChallengeFailed = "challenge_failed", NotOpen = "not_open", Ended = "ended", TooFast = "too_fast",
    Busy = "busy", Unauthorized = "unauthorized",
}

label! { ChallengeOutcome, "outcome": Issued = "issued", Solved = "solved", Failed = "failed" }

label! { RegistrationOutcome, "outcome": Made = "made", Repeat = "repeat", Left = "left", Refused = "refused" }

label! { ConnectionOutcome, "outcome": Accepted = "accepted", Refused = "refused" }

label! {
    /// Which limit was full.
    Shed, "limit":
    InFlight = "in_flight", Waiters = "waiters", Reserve = "reserve", Sockets = "sockets",
    Operators = "operators", Expired = "expired_passes", PerIp = "per_ip", PerBuyer = "per_buyer",
}

label! {
    /// The cases `record_orders` tells apart, and `internal` for a claim that could not be read.
    OrderOutcome, "outcome":
    Recorded = "recorded", RepeatLive = "repeat_live", RepeatEnded = "repeat_ended", OtherLive = "other_live",
    IdClash = "id_clash", NoStock = "no_stock", StaleEpoch = "stale_epoch", Internal = "internal",
    Revived = "revived", NotRevived = "not_revived",
}

label! {
    /// Why an order let go of its units.
    Letting, "cause": Timeout = "timeout", Cancelled = "cancelled", Refunded = "refunded",
}

label! {
    /// What came of looking for a unit for late money. `claimed` makes the order paid, `waits` is asked again, the
    /// others are refunds with that reason.
    LateMoney, "outcome":
    Claimed = "claimed", Waits = "waits", NoUnitLeft = "no_unit_left", OtherLive = "other_live",
    SaleEnded = "sale_ended", OtherRefund = "other_refund",
}

impl LateMoney {
    pub const fn of(revival: Revival) -> Self {
        match revival {
            Revival::Claimed => Self::Claimed,
            Revival::Wait => Self::Waits,
            Revival::RefundDue(RefundReason::NoUnitLeft) => Self::NoUnitLeft,
            Revival::RefundDue(RefundReason::OtherLive) => Self::OtherLive,
            Revival::RefundDue(RefundReason::SaleEnded) => Self::SaleEnded,
            Revival::RefundDue(_) => Self::OtherRefund,
        }
    }
}

label! { Inquiry, "answer": Paid = "paid", NotPaid = "not_paid", None = "none" }

label! {
    /// How far a buyer came in one sale: what the operator's funnel shows.
    Step, "step":
    Pass = "pass", Try = "try", Granted = "granted", SoldOut = "sold_out", AlreadyOrdered = "already_ordered",
    NotOpen = "not_open", TooFast = "too_fast", Busy = "busy",
}

label! {
    /// What became of an attempt to deliver an event; `parked` counts those given up, beside `failed`, and `dropped`
    /// those that became too old.
    Delivery, "outcome":
    Delivered = "delivered", Failed = "failed", Parked = "parked", Dropped = "dropped",
}

label! {
    /// What became of a provider's notification.
    CallbackOutcome, "outcome":
    Recorded = "recorded", Refused = "refused", NotDurable = "not_durable", TooEarly = "too_early",
    Unreadable = "unreadable",
}

label! {
    /// What happened to a payment or to its money. `not_closed`, `refund_failed`, `refund_slow`, `unasked` and
    /// `unnotified` need a person.
    MoneyOutcome, "outcome":
    Started = "started", NotStarted = "not_started", NotClosed = "not_closed", Applied = "applied", Late = "late",
    Waiting = "waiting", Duplicate = "duplicate", RefundDue = "refund_due", RefundRetried = "refund_retried", Refunded = "refunded",
    RefundFailed = "refund_failed", RefundSlow = "refund_slow", Unasked = "unasked", Unnotified = "unnotified",
}

label! { AuditOutcome, "outcome": Clean = "clean", Findings = "findings", Failed = "failed" }

label! { PushOutcome, "outcome": Sent = "sent", Skipped = "skipped" }

label! {
    /// Whom a request serves.
    RequestClass, "class":
    Buyer = "buyer", Operator = "operator", Callback = "callback", Page = "page", Health = "health",
}

label! {
    StatusClass, "status":
    Informational = "1xx", Success = "2xx", Redirection = "3xx", ClientError = "4xx", ServerError = "5xx",
}

impl StatusClass {
    pub const fn of(status: u16) -> Self {
        match status {
            0..200 => Self::Informational,
            200..300 => Self::Success,
            300..400 => Self::Redirection,
            400..500 => Self::ClientError,
            500.. => Self::ServerError,
        }
    }
}

/// A request of a class, answered with a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered(pub RequestClass, pub StatusClass);

impl Label for Answered {
    #[expect(clippy::indexing_slicing, reason = "in a constant, out of bounds does not compile")]
    const ALL: &'static [Self] = &{
        const CLASSES: &[RequestClass] = RequestClass::ALL;
        const STATUSES: &[StatusClass] = StatusClass::ALL;
        let mut all = [Self(RequestClass::Buyer, StatusClass::Success); CLASSES.len() * STATUSES.len()];
        let mut i = 0;
        while i < all.len() {
            all[i] = Self(CLASSES[i / STATUSES.len()], STATUSES[i % STATUSES.len()]);
            i += 1;
        }
        all
    };

    #[inline]
    fn index(self) -> usize {
        self.0.index() * StatusClass::ALL.len() + self.1.index()
    }

    fn labels(self) -> Vec<(&'static str, &'static str)> {
        [self.0.labels(), self.1.labels()].concat()
    }
}

/// Enough for the cores of a large machine to rarely meet in one cache line.
const SHARDS: usize = 16;
const CELLS_PER_LINE: usize = 16;

/// One counter per value of `L`, cheap when many threads count at once: each thread adds in lines of its own, and
/// a reader sums them up.
pub struct Counts<L> {
    lines: Box<[Line]>,
    label: PhantomData<fn(L)>,
}

/// Two cache lines, because processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Line([AtomicU64; CELLS_PER_LINE]);

impl<L: Label> Default for Counts<L> {
    fn default() -> Self {
        let lines = std::iter::repeat_with(Line::default).take(SHARDS * Self::LINES_PER_SHARD).collect();
        Self { lines, label: PhantomData }
    }
}

impl<L: Label> Counts<L> {
    const LINES_PER_SHARD: usize = L::ALL.len().div_ceil(CELLS_PER_LINE);

    #[inline]
    pub fn inc(&self, label: L) {
        self.add(label, 1);
    }

    #[inline]
    pub fn add(&self, label: L, n: u64) {
        if let Some(cell) = self.cell(own_shard(), label) {
            cell.fetch_add(n, Ordering::Relaxed);
        }
    }

    pub fn get(&self, label: L) -> u64 {
        let cells = (0..SHARDS).filter_map(|shard| self.cell(shard, label));
        cells.fold(0, |sum, cell| sum.wrapping_add(cell.load(Ordering::Relaxed)))
    }

    #[inline]
    fn cell(&self, shard: usize, label: L) -> Option<&AtomicU64> {
        let index = label.index();
        let line = self.lines.get(shard * Self::LINES_PER_SHARD + index / CELLS_PER_LINE)?;
        line.0.get(index % CELLS_PER_LINE)
    }
}

impl<L: Label> fmt::Debug for Counts<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(L::ALL.iter().map(|label| (label, self.get(*label)))).finish()
    }
}

#[inline]
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    OWN.try_with(|own| *own).unwrap_or_default()
}

#[derive(Debug)]
struct Scraped<L: Label> {
    name: &'static str,
    help: &'static str,
    counts: Arc<Counts<L>>,
}

impl<L: Label> Collector for Scraped<L> {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        // The full stop that the registry adds for its own metrics.
        let help = format!("{}.", self.help);
        let mut family = encoder.encode_descriptor(self.name, &help, None, MetricType::Counter)?;
        for label in L::ALL {
            let labels = label.labels();
            let mut series = family.encode_family(&labels)?;
            series.encode_counter::<NoLabelSet, u64, u64>(&self.counts.get(*label), None)?;
        }
        Ok(())
    }
}

fn counts<L: Label>(registry: &mut Registry, name: &'static str, help: &'static str) -> Arc<Counts<L>> {
    let counts = Arc::new(Counts::default());
    registry.register_collector(Box::new(Scraped { name, help, counts: Arc::clone(&counts) }));
    counts
}

/// A count as histograms take it.
pub fn f64_of(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

fn gauge(registry: &mut Registry, name: &str, help: &str) -> Gauge {
    with(registry, name, help, Gauge::default())
}

fn with<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// 1 to 4096 claims.
fn claims() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 2.0, 13))
}

/// 0.1 ms to 26 s: from a commit without a sync to a disk that has stalled.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 19))
}

/// 1 us to 0.5 s: locks.
fn short_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_001, 2.0, 19))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn a_count_is_readable_by_code_and_by_scrape() {
        let metrics = Metrics::new();
        metrics.tries.inc(Try::SoldOut);
        metrics.tries.add(Try::SoldOut, 2);
        metrics.requests.inc(Answered(RequestClass::Callback, StatusClass::of(503)));
        assert_eq!(metrics.tries.get(Try::SoldOut), 3);
        assert_eq!(metrics.tries.get(Try::Granted), 0);
        let page = metrics.encode();
        assert!(page.contains("doorbuster_tries_total{verdict=\"sold_out\"} 3\n"), "{page}");
        assert!(page.contains("doorbuster_tries_total{verdict=\"granted\"} 0\n"));
        assert!(page.contains("doorbuster_requests_total{class=\"callback\",status=\"5xx\"} 1\n"));
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn handles_and_the_scrape_share_one_value() {
        let metrics = Metrics::new();
        metrics.queue_depth.set(7);
        metrics.clerk_lag_seconds.observe(0.003);
        metrics.ledger_refusals.inc();
        let page = metrics.encode();
        assert!(page.contains("doorbuster_queue_depth 7\n"));
        assert!(page.contains("doorbuster_clerk_lag_seconds_count 1\n"));
        assert!(page.contains("doorbuster_ledger_refusals_total 1\n"));
    }

    #[test]
    fn no_count_is_lost_between_threads() {
        let counts = Counts::<Try>::default();
        std::thread::scope(|scope| {
            for _ in 0..SHARDS + 4 {
                scope.spawn(|| (0..1_000).for_each(|_| counts.inc(Try::Busy)));
            }
        });
        assert_eq!(counts.get(Try::Busy), 1_000 * u64::try_from(SHARDS + 4).unwrap());
    }

    fn check_places<L: Label>() {
        for (place, label) in L::ALL.iter().enumerate() {
            assert_eq!(label.index(), place, "{label:?}");
        }
    }

    #[test]
    fn every_label_has_a_cell_of_its_own() {
        check_places::<Try>();
        check_places::<OrderOutcome>();
        check_places::<Answered>();
        let counts = Counts::<Answered>::default();
        for label in Answered::ALL {
            counts.inc(*label);
        }
        assert!(Answered::ALL.iter().all(|label| counts.get(*label) == 1));
        assert_eq!(Answered::ALL.len(), 25);
    }

    #[test]
    fn status_classes_cover_every_status() {
        let classes = [100, 204, 304, 429, 503, 999].map(|status| StatusClass::of(status).as_str());
        assert_eq!(classes, ["1xx", "2xx", "3xx", "4xx", "5xx", "5xx"]);
    }

    /// The table of docs/metrics.md as the scrape shows it.
    fn table(page: &str) -> String {
        let mut rows = String::new();
        for family in page.split("# HELP ").skip(1) {
            let (name, help) = family.lines().next().unwrap().split_once(' ').unwrap();
            let kind = family.lines().nth(1).unwrap().rsplit(' ').next().unwrap();
            let suffix = match kind {
                "counter" => "_total",
                "info" => "_info",
                _ => "",
            };
            rows += &format!("| `{name}{suffix}` | {kind} | {} | {help} |\n", labels_of(family));
        }
        rows
    }

    fn labels_of(family: &str) -> String {
        let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let sets =
            family.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('{'));
        for pair in sets.flat_map(|(_, rest)| rest.split('}').next().unwrap().split(',')) {
            let (key, value) = pair.split_once('=').unwrap();
            values.entry(key).or_default().insert(value.trim_matches('"'));
        }
        values.retain(|key, _| !["le", "version"].contains(key));
        let shown = values.iter().map(|(key, values)| {
            format!("`{key}`: {}", values.iter().copied().collect::<Vec<_>>().join(", "))
        });
        shown.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn the_documentation_lists_exactly_the_metrics_there_are() {
        let documented = include_str!("../../../../docs/metrics.md");
        let table_ends = documented.find("\n## ").unwrap();
        let rows = documented[..table_ends].lines().filter(|line| line.starts_with("| `doorbuster_"));
        let documented: String = rows.flat_map(|row| [row, "\n"]).collect();
        let real = table(&Metrics::new().encode());
        assert!(documented == real, "docs/metrics.md must hold this table:\n{real}");
    }

    #[test]
    fn no_label_names_a_sale_an_offer_or_a_buyer() {
        let page = Metrics::new().encode();
        for unbounded in ["sale_id", "offer_id", "order_id", "buyer=", "ip="] {
            assert!(!page.contains(unbounded));
        }
    }
}
