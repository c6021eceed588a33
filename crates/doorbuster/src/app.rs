//! The composition root: opens the files, rebuilds the gate, starts the workers and the edge, and ends them in order.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use rules::pass::PassKeys;
use rules::time::UnixMs;
use secrecy::ExposeSecret as _;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::auditor::{self, Auditor};
use crate::catalogue::{Catalogue, is_public};
use crate::clock::{Clock, millis};
use crate::config::Settings;
use crate::edge;
use crate::edge::auth::Authenticator;
use crate::edge::challenge::Challenges;
use crate::edge::limits::{Buckets, ClientIp, InFlight, READS_PER_TRY};
use crate::edge::operator::KeysUnderWay;
use crate::failure::Failure;
use crate::gate::{Gate, MemoryGate, Roster, SeedOrder};
use crate::images::Images;
use crate::ledger::SqliteLedger;
use crate::ledger::clerk::{Clerk, ClerkEnd};
use crate::outbox::{Dispatch, Hub, dispatch};
use crate::payment::closings::{self, Closings};
use crate::payment::port::Port;
use crate::payment::refunds::{self, Refunds};
use crate::queue::journal::JournalParts;
use crate::queue::sqlite::{Disk, file_version};
use crate::queue::{Claim, Journal, JournalHandle, JournalLook, Journaled, Unrecorded};
use crate::strikes;
use crate::sweeper::{self, Captures, Outages};
use crate::telemetry::Metrics;

/// The journal's file in the data folder.
pub(crate) const JOURNAL_FILE: &str = "journal.db";

/// Whoever changes the data folder holds a lock on this file in it.
const LOCK_FILE: &str = "lock";

/// The clerk has so much time at the end, even if the drain took all there was: it may have nothing left to record.
const LAST_MOMENT: Duration = Duration::from_millis(100);

/// How often the housekeeper looks around.
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(1);

/// Every so many rounds the housekeeper drops expired passes from the gate.
const ROUNDS_PER_FORGETTING: u32 = 60;

/// Shortest rest between two looks for windows that open or close.
const TURNS_REST: Duration = Duration::from_millis(1);

/// Everything a request may need. Made once, shared by all.
#[derive(Debug)]
pub struct App {
    pub settings: Settings,
    pub clock: Clock,
    /// From here on the funnels count.
    pub started_at: UnixMs,
    pub metrics: Arc<Metrics>,
    pub catalogue: Catalogue,
    pub gate: Gate,
    pub roster: Arc<Roster>,
    pub ledger: SqliteLedger,
    pub hub: Arc<Hub>,
    pub pass_keys: PassKeys,
    pub auth: Authenticator,
    pub challenges: Challenges,
    pub images: Images,
    pub dispatch: Dispatch,
    pub port: Port,
    pub refunds: Refunds,
    pub closings: Closings,
    /// When paying was impossible.
    pub outages: Outages,
    /// Money that is here and not decided.
    pub captures: Captures,
    pub auditor: Auditor,
    /// Tries per buyer, and what else costs more than a look.
    pub buyer_rate: Buckets,
    /// Everything else that a buyer with a valid token asks.
    pub read_rate: Buckets,
    /// Requests per address that carry neither a valid pass nor a valid token.
    pub address_rate: Buckets,
    pub in_flight: InFlight,
    pub client_ip: ClientIp,
    /// Where changes run to their end; see the desk.
    pub(crate) tasks: TaskTracker,
    pub(crate) runtime: tokio::runtime::Handle,
    /// One change of sales and stock at a time: gate and catalogue follow in the order of the ledger.
    pub(crate) operator_turn: tokio::sync::Mutex<()>,
    /// Requests with an Idempotency-Key that are being answered.
    pub(crate) keys_under_way: KeysUnderWay,
    pub(crate) failure: Arc<Failure>,
    /// Cancelled when the process is asked to end.
    pub shutdown: CancellationToken,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    pub app: Arc<App>,
    work: Work,
    edge: edge::server::EdgeHandle,
    /// None for a look.
    _lock: Option<File>,
}

/// Who takes claims from the journal to the ledger.
#[derive(Debug)]
enum Work {
    Running(Box<Workers>),
    /// Nobody: what a look found in the journal stays there, and keeps its room in the queue meanwhile.
    Resting {
        _claims: Vec<Journaled>,
    },
}

/// The journal's thread and the clerk.
#[derive(Debug)]
pub struct Workers {
    journal: JoinHandle<()>,
    clerk: tokio::task::JoinHandle<ClerkEnd>,
    /// Cuts the clerk's retries short.
    hurry: CancellationToken,
    failed: oneshot::Receiver<anyhow::Error>,
}

impl Server {
    /// Opens the data folder, replays the journal, and serves. When this returns, the server is ready.
    pub async fn start(
        settings: Settings,
        clock: Clock,
        listener: TcpListener,
        operator: Option<TcpListener>,
        shutdown: CancellationToken,
    ) -> anyhow::Result<Self> {
        Self::start_on(settings, clock, listener, operator, shutdown, None).await
    }

    /// The same with the files on another disk, for tests that break it.
    pub async fn start_on(
        settings: Settings,
        clock: Clock,
        listener: TcpListener,
        operator: Option<TcpListener>,
        shutdown: CancellationToken,
        disk: Option<&Arc<dyn Disk>>,
    ) -> anyhow::Result<Self> {
        let lock = lock_data_dir(&settings.data_dir)?;
        let (app, workers) = open(settings, clock, shutdown, disk).await?;
        app.port.listens_at(listener.local_addr().context("the listener has no address")?);
        start_housekeeping(&app);
        let edge = edge::server::start(&app, listener, operator)?;
        Ok(Self { app, work: Work::Running(Box::new(workers)), edge, _lock: Some(lock) })
    }

    /// A server for one command on a folder whose own server does not run. It does what it is asked for and nothing
    /// else: no sale is published, no order closed, no refund asked for, nothing sent because its time has come. The
    /// next real server does all that, and what follows from the command.
    pub async fn start_to_change(
        settings: Settings,
        clock: Clock,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> anyhow::Result<Self> {
        let lock = lock_data_dir(&settings.data_dir)?;
        let (app, workers) = open(settings, clock, shutdown, None).await?;
        let edge = edge::server::start(&app, listener, None)?;
        Ok(Self { app, work: Work::Running(Box::new(workers)), edge, _lock: Some(lock) })
    }

    /// The same for a command that only looks: it cannot change a row, and it keeps no server from starting.
    pub async fn start_to_look(
        settings: Settings,
        clock: Clock,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> anyhow::Result<Self> {
        ensure_unused(&settings.data_dir)?;
        let (app, claims) = open_to_look(settings, clock, shutdown).await?;
        let edge = edge::server::start(&app, listener, None)?;
        Ok(Self { app, work: Work::Resting { _claims: claims }, edge, _lock: None })
    }

    /// Serves until the end, then closes in the order of the funnel: the edge drains, the journal answers what it
    /// has, the clerk records it, the ledger closes.
    pub async fn until_the_end(mut self) -> anyhow::Result<()> {
        let outcome = tokio::select! {
            () = self.app.shutdown.cancelled() => Ok(()),
            failure = self.work.failure() => Err(failure),
        };
        self.app.shutdown.cancel();
        // One limit for all of it: who started us kills us when theirs is over.
        let began = self.app.clock.instant();
        let drain = Duration::from_secs(self.app.settings.drain_s.into());
        let left = || drain.saturating_sub(self.app.clock.instant().saturating_duration_since(began));
        self.edge.drain(left()).await;
        self.app.tasks.close();
        if tokio::time::timeout(left(), self.app.tasks.wait()).await.is_err() {
            tracing::warn!("some changes were still under way at the end");
        }
        if let Work::Running(workers) = self.work {
            let patience = if outcome.is_ok() { left().max(LAST_MOMENT) } else { Duration::ZERO };
            workers.end(&self.app, patience).await;
        }
        outcome
    }
}

impl Work {
    async fn failure(&mut self) -> anyhow::Error {
        match self {
            Self::Running(workers) => workers.failure().await,
            Self::Resting { .. } => std::future::pending().await,
        }
    }
}

impl Workers {
    /// Why the disk can no longer be trusted, once that is so.
    pub async fn failure(&mut self) -> anyhow::Error {
        tokio::select! {
            Ok(failed) = &mut self.failed => failed,
            ended = &mut self.clerk => clerk_failure(ended),
        }
    }

    /// The journal answers what it has, then the clerk records it. Both have `patience`, but a commit that is under way is
    /// waited for.
    pub async fn end(mut self, app: &App, patience: Duration) {
        let began = app.clock.instant();
        app.gate.journal.stop();
        tokio::task::spawn_blocking(move || self.journal.join()).await.ok();
        let took = app.clock.instant().saturating_duration_since(began);
        let left = patience.saturating_sub(took).max(LAST_MOMENT.min(patience));
        if !self.clerk.is_finished() && tokio::time::timeout(left, &mut self.clerk).await.is_err() {
            self.hurry.cancel();
            tracing::warn!(
                "some claims were not recorded in time; they wait in the journal for the next start"
            );
        }
    }
}

fn clerk_failure(ended: Result<ClerkEnd, tokio::task::JoinError>) -> anyhow::Error {
    match ended {
        Ok(ClerkEnd::Failed(error)) => anyhow::Error::from(error).context("orders can no longer be recorded"),
        Ok(ClerkEnd::Done) => anyhow::anyhow!("the clerk ended before its time"),
        Err(error) => anyhow::Error::from(error).context("the clerk ended before its time"),
    }
}

/// Table versions of the two files, before and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// `None`: the file was made now.
    pub ledger: (Option<u32>, Option<u32>),
    pub journal: (Option<u32>, Option<u32>),
}

/// Brings the tables of a data folder up to date without serving. Again is harmless; a folder in use is refused.
pub async fn migrate(settings: &Settings) -> anyhow::Result<Migrated> {
    let _lock = lock_data_dir(&settings.data_dir)?;
    let (ledger_path, journal_path) = (settings.ledger_path(), settings.data_dir.join(JOURNAL_FILE));
    let versions =
        || -> anyhow::Result<_> { Ok((file_version(&ledger_path)?, file_version(&journal_path)?)) };
    let before = versions()?;
    let ledger = SqliteLedger::open(&ledger_path, None, rand::random())?;
    let journal = Journal::open(&journal_path, None, ledger.incarnation(), ledger.cursor().await?)?;
    drop(journal);
    let after = versions()?;
    ledger.close();
    Ok(Migrated { ledger: (before.0, after.0), journal: (before.1, after.1) })
}

/// One process per data folder: two gates on one ledger would sell everything twice.
pub(crate) fn lock_data_dir(data_dir: &Path) -> anyhow::Result<File> {
    std::fs::create_dir_all(data_dir)
        .with_context(|| format!("cannot make the data folder {}", data_dir.display()))?;
    let path = data_dir.join(LOCK_FILE);
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(data_dir)),
        Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the data folder"),
    }
    file.set_len(0)?;
    write!(file, "{}", std::process::id())?;
    Ok(file)
}

/// Who only looks needs no lock, and must not keep a server from starting. But a folder in use is its server's to speak
/// of: gate and journal go on beside whoever reads the files.
pub(crate) fn ensure_unused(data_dir: &Path) -> anyhow::Result<()> {
    let Ok(file) = File::open(data_dir.join(LOCK_FILE)) else { return Ok(()) };
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Err(in_use(data_dir)),
        // Where files cannot be locked, nobody holds a lock.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
    }
}

fn in_use(data_dir: &Path) -> anyhow::Error {
    let owner = std::fs::read_to_string(data_dir.join(LOCK_FILE)).unwrap_or_default();
    anyhow::anyhow!(
        "another doorbuster (process {}) uses the data folder {}. Stop it first, or choose another data_dir.",
        owner.trim(),
        data_dir.display()
    )
}

/// What there is before there is an app.
struct Opened {
    ledger: SqliteLedger,
    gate: Gate,
    metrics: Arc<Metrics>,
    failure: Arc<Failure>,
}

/// Opens the files (on another disk, when tests want to break it), rebuilds the gate and starts the workers. Serves
/// nobody yet.
pub async fn open(
    settings: Settings,
    clock: Clock,
    shutdown: CancellationToken,
    disk: Option<&Arc<dyn Disk>>,
) -> anyhow::Result<(Arc<App>, Workers)> {
    let began = clock.instant();
    let ledger = SqliteLedger::open(&settings.ledger_path(), disk, rand::random())?;
    let cursor = ledger.cursor().await?;
    let journal = Journal::open(&settings.data_dir.join(JOURNAL_FILE), disk, ledger.incarnation(), cursor)?;
    let left = journal.left()?;

    let metrics = Arc::new(Metrics::new());
    let memory = Arc::new(MemoryGate::new(settings.queue.capacity, rand::random()));
    let unrecorded = Arc::new(Unrecorded::default());
    // One more than the room: the claims that are replayed come in one piece.
    let (clerk_send, clerk_receive) = mpsc::channel(settings.queue.capacity.saturating_add(1));
    let (failure, reported) = Failure::new();
    ledger.report_to(Arc::clone(&failure));
    let parts = JournalParts {
        gate: Arc::clone(&memory),
        unrecorded: Arc::clone(&unrecorded),
        clock: clock.clone(),
        metrics: Arc::clone(&metrics),
        clerk: clerk_send.clone(),
        batch: settings.queue.batch,
        failure: Arc::clone(&failure),
    };
    let (journal, journal_thread) = journal.start(parts)?;
    let gate = Gate { memory, journal, unrecorded };

    dispatch::keep_broker(&settings, &ledger, &clock).await?;
    let opened = Opened { ledger, gate, metrics, failure };
    let app = Box::pin(assemble(settings, clock, shutdown, opened)).await?;
    let replayed = left.len();
    let claims = rebuild(&app, left).await?;
    clerk_send.try_send(claims).context("the clerk cannot take the replayed claims")?;
    drop(clerk_send);
    let clerk = Clerk {
        ledger: app.ledger.clone(),
        gate: Arc::clone(&app.gate.memory),
        journal: app.gate.journal.clone(),
        unrecorded: Arc::clone(&app.gate.unrecorded),
        hub: Arc::clone(&app.hub),
        roster: Arc::clone(&app.roster),
        clock: app.clock.clone(),
        metrics: Arc::clone(&app.metrics),
        progress: Arc::clone(&app.captures.recorded),
        batch: app.settings.clerk.batch,
        batch_time: Duration::from_millis(app.settings.clerk.batch_ms.into()),
    };
    let hurry = CancellationToken::new();
    // Not among the tasks: the clerk ends after the journal, which is stopped only once the tasks are done.
    let clerk = TaskTracker::new().spawn(clerk.run(clerk_receive, hurry.clone()));
    tracing::info!(
        elapsed_ms = millis(began.elapsed()),
        claims = replayed,
        "ledger and journal read, gate rebuilt"
    );
    Ok((app, Workers { journal: journal_thread, clerk, hurry, failed: reported }))
}

/// The same without anybody who writes, for a look. The claims of the journal are in the gate, and stay where they are.
async fn open_to_look(
    settings: Settings,
    clock: Clock,
    shutdown: CancellationToken,
) -> anyhow::Result<(Arc<App>, Vec<Journaled>)> {
    let ledger = SqliteLedger::open_to_look(&settings.ledger_path())?;
    let cursor = ledger.cursor().await?;
    let left = JournalLook::left(&settings.data_dir.join(JOURNAL_FILE), ledger.incarnation(), cursor)?;
    let gate = Gate {
        memory: Arc::new(MemoryGate::new(settings.queue.capacity, rand::random())),
        journal: JournalHandle::closed(),
        unrecorded: Arc::new(Unrecorded::default()),
    };
    let (failure, _) = Failure::new();
    let opened = Opened { ledger, gate, metrics: Arc::new(Metrics::new()), failure };
    let app = Box::pin(assemble(settings, clock, shutdown, opened)).await?;
    let claims = rebuild(&app, left).await?;
    Ok((app, claims))
}

async fn assemble(
    settings: Settings,
    clock: Clock,
    shutdown: CancellationToken,
    opened: Opened,
) -> anyhow::Result<Arc<App>> {
    let Opened { ledger, gate, metrics, failure } = opened;
    let secret = |secret: &Option<secrecy::SecretString>| {
        secret.as_ref().map(|s| s.expose_secret().as_bytes().to_vec())
    };
    let pass_secret = secret(&settings.pass.secret).context("pass.secret is not set")?;
    let previous = secret(&settings.pass.previous_secret);
    let limits = &settings.limits;
    Ok(Arc::new(App {
        started_at: clock.now(),
        catalogue: Catalogue::default(),
        roster: Arc::new(Roster::new(settings.strikes.policy(), rand::random())),
        pass_keys: PassKeys::new(&pass_secret, previous.as_deref()),
        auth: Authenticator::from_settings(&settings.auth, clock.clone()).await?,
        challenges: Challenges::new(&settings.challenge, &pass_secret, clock.clone())?,
        images: Images::new(&settings, ledger.image_copies().await?)?,
        dispatch: Dispatch::new(&settings)?,
        port: Port::new(&settings, clock.clone(), ledger.incarnation())?,
        refunds: Refunds::default(),
        closings: Closings::default(),
        outages: Outages::default(),
        captures: Captures::default(),
        auditor: Auditor::new(clock.now()),
        buyer_rate: Buckets::new(limits.per_buyer_per_s, limits.per_buyer_burst, limits.limiter_keys),
        read_rate: Buckets::new(
            limits.per_buyer_per_s.saturating_mul(READS_PER_TRY),
            limits.per_buyer_burst.saturating_mul(READS_PER_TRY),
            limits.limiter_keys,
        ),
        address_rate: Buckets::new(limits.per_ip_per_s, limits.per_ip_burst, limits.limiter_keys),
        in_flight: InFlight::new(limits.in_flight, limits.waiters, limits.reserve),
        client_ip: ClientIp::trusting(&limits.trusted_proxies).map_err(anyhow::Error::msg)?,
        tasks: TaskTracker::new(),
        runtime: tokio::runtime::Handle::current(),
        operator_turn: tokio::sync::Mutex::default(),
        keys_under_way: KeysUnderWay::default(),
        failure,
        settings,
        clock,
        metrics,
        gate,
        ledger,
        hub: Arc::new(Hub::default()),
        shutdown,
    }))
}

/// gate = ledger + journal entries beyond the ledger's cursor + spent passes. Nobody is served before this is done.
/// Answers what the journal holds, on its way to the clerk.
async fn rebuild(app: &Arc<App>, left: Vec<(u64, Arc<Claim>)>) -> anyhow::Result<Vec<Journaled>> {
    for sale in app.ledger.sales().await?.iter().rev().filter(|sale| is_public(sale.state)) {
        app.preheat(sale).await?;
    }
    let mut offers = std::collections::HashMap::new();
    for row in app.ledger.offer_rows().await? {
        offers.extend(app.gate.memory.offer(row.counters.offer).map(|offer| (row.offer_no, offer)));
    }
    let memory = Arc::clone(&app.gate.memory);
    let remember = move |order: &crate::ledger::sqlite::Remembered<'_>| {
        if let Some(offer) = offers.get(&order.offer_no) {
            let seed = SeedOrder {
                buyer: order.buyer,
                order: order.order,
                quantity: order.quantity,
                pass_expires_at: order.pass_expires_at,
                live: order.live,
            };
            memory.seed_order(offer, &seed);
        }
    };
    app.ledger.remembered_orders(app.clock.now(), remember).await?;
    let mut replayed = Vec::with_capacity(left.len());
    for (seq, claim) in left {
        replayed.push(replay_claim(app, seq, claim).await?);
    }
    strikes::load(&app.ledger, &app.roster, app.clock.now()).await?;
    Ok(replayed)
}

async fn replay_claim(app: &App, seq: u64, claim: Arc<Claim>) -> anyhow::Result<Journaled> {
    let offer = app.gate.memory.offer(claim.offer).with_context(|| {
        format!("the journal holds a claim of offer {}, which the ledger does not know", claim.offer)
    })?;
    let seed = SeedOrder {
        buyer: claim.buyer.as_str(),
        order: claim.order,
        quantity: claim.quantity,
        pass_expires_at: claim.pass_expires_at,
        live: true,
    };
    if is_outstanding(app, &claim).await? {
        let revived_from = claim.revives.map(|revive| revive.closing_seq);
        ensure!(
            app.gate.memory.replay(&offer, &seed, revived_from),
            "the journal grants more units of offer {} than there are",
            claim.offer
        );
    }
    app.gate.unrecorded.insert(&claim);
    let permit = app.gate.memory.room().reserve_replayed();
    Ok(Journaled { seq, claim, permit })
}

/// Whether the claim still holds units that no order of the ledger has. One of late money does so until its order has
/// moved on.
async fn is_outstanding(app: &App, claim: &Claim) -> anyhow::Result<bool> {
    let Some(revive) = claim.revives else { return Ok(true) };
    let order = app.ledger.order(claim.order).await?;
    Ok(order.is_some_and(|order| order.seq == revive.closing_seq))
}

fn start_housekeeping(app: &Arc<App>) {
    let keeper = Arc::clone(app);
    app.tasks.spawn(async move {
        let shutdown = keeper.shutdown.clone();
        shutdown.run_until_cancelled(keep_house(&keeper)).await;
    });
    let keeper = Arc::clone(app);
    app.tasks.spawn(async move { keeper.auth.refresh_loop(keeper.shutdown.clone()).await });
    let keeper = Arc::clone(app);
    app.tasks.spawn(async move { keeper.challenges.keep_pictures_ready(keeper.shutdown.clone()).await });
    app.tasks.spawn(dispatch::run(Arc::clone(app)));
    app.tasks.spawn(refunds::run(Arc::clone(app)));
    app.tasks.spawn(closings::run(Arc::clone(app)));
    app.tasks.spawn(sweeper::run(Arc::clone(app)));
    app.tasks.spawn(auditor::watch::run(Arc::clone(app)));
    let keeper = Arc::clone(app);
    app.tasks.spawn(async move {
        let shutdown = keeper.shutdown.clone();
        shutdown.run_until_cancelled(tell_turns_in_time(&keeper)).await;
    });
}

/// Tells of windows that open and close, at their moment; a look every second finds what a turned clock or a changed
/// sale brought forward.
async fn tell_turns_in_time(app: &Arc<App>) {
    loop {
        let wait = match app.tell_turns().await {
            Ok(Some(next)) => {
                Duration::from_millis(app.clock.now().ms_until(next)).clamp(TURNS_REST, HOUSEKEEPING_EVERY)
            }
            Ok(None) => HOUSEKEEPING_EVERY,
            Err(error) => {
                tracing::warn!(%error, "the opening or closing of sales could not be told; trying again");
                HOUSEKEEPING_EVERY
            }
        };
        tokio::time::sleep(wait).await;
    }
}

async fn keep_house(app: &Arc<App>) {
    let mut ticks = tokio::time::interval(HOUSEKEEPING_EVERY);
    let mut rounds: u32 = 0;
    loop {
        ticks.tick().await;
        rounds = rounds.wrapping_add(1);
        app.clock.resync();
        let depth = app.gate.memory.room().taken();
        app.metrics.queue_depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
        if let Err(error) = app.publish_due().await {
            tracing::warn!(%error, "sales that are due could not be published; trying again");
        }
        if rounds.is_multiple_of(ROUNDS_PER_FORGETTING) {
            app.gate.memory.forget_expired(app.clock.now());
            app.roster.forget_old(app.clock.now());
            app.forget_registrations().await;
        }
    }
}
