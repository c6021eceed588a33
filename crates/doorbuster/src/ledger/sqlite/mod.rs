//! The SQLite ledger: one connection writes, a few read. Two threads share the one that writes: changes that somebody
//! waits for go first, and those that wait together share one commit; the clerk's batches give way to them.

mod audit;

mod buyers;

mod closings;

mod deadlines;

mod events;

mod orders;

mod outages;

mod payments;

mod refunds;

mod sales;

mod settling;

mod shelf;

mod strikes;

mod tail;

mod turns;

mod webhooks;

pub use buyers::Answer;
pub use events::{Dropped, Event, Fate, Outgoing, Past, Settled, Settlement, Taken, Unwanted};
pub use orders::Remembered;
pub use sales::OfferRow;
pub use tail::EventPage;
pub use webhooks::{ParkedEvent, SecretChange, Standing, WEBHOOKS_MAX, Webhook, WebhookEdit};

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, ensure};
use crossbeam_channel::{Receiver, Sender, TrySendError};
use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, Transaction, TransactionBehavior};
use rusqlite_migration::{M, Migrations};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{LedgerError, LedgerResult};
use crate::crash;
use crate::failure::{Failure, Reports};
use crate::queue::copying::{Log, Rhythm, stand_back};
use crate::queue::sqlite::{CommitFailure, Disk, classify_commit, open_reader, open_writer};

const MIGRATIONS: &[&str] = &[
    include_str!("../../../migrations/sqlite/0001_ledger.sql"),
    include_str!("../../../migrations/sqlite/0002_image_copies.sql"),
    include_str!("../../../migrations/sqlite/0003_money.sql"),
    include_str!("../../../migrations/sqlite/0004_webhooks.sql"),
    include_str!("../../../migrations/sqlite/0005_outages.sql"),
    include_str!("../../../migrations/sqlite/0006_marks.sql"),
    include_str!("../../../migrations/sqlite/0007_broker.sql"),
    include_str!("../../../migrations/sqlite/0008_audits.sql"),
    include_str!("../../../migrations/sqlite/0009_refunds.sql"),
    include_str!("../../../migrations/sqlite/0010_receivers.sql"),
    include_str!("../../../migrations/sqlite/0011_closings.sql"),
    include_str!("../../../migrations/sqlite/0012_returns.sql"),
    include_str!("../../../migrations/sqlite/0013_providers.sql"),
];

/// Connections that read. Reads are short; more of them would only wait for the same two cores.
const READERS: usize = 3;

/// Most reads waiting at once; a further one is told that the ledger is unavailable.
const READS_WAITING_MAX: usize = 4_096;

/// Most writes waiting at once, of either kind.
const WRITES_WAITING_MAX: usize = 4_096;

/// Page cache of the writer, in KiB. Some commits make SQLite walk all of it, and what does not fit is in the system's
/// cache: a larger one costs more than it saves.
const WRITER_CACHE_KIB: i64 = 32_768;

/// The log is copied into the file at 64 MiB (of 4 KiB pages): many orders touch the same index pages, and fewer, larger
/// copies write each of them less often. A copy of all that keeps a core for a tenth of a second, so it is made in steps.
const COPIES: Rhythm = Rhythm { copy_pages: 16_384, step_pages: 4_096, commits_per_look: 4 };

/// Most settles that share one commit: enough to be quicker than they come, few enough that nobody waits long.
const SETTLES_PER_COMMIT: usize = 64;

/// A read, which answers by itself.
type Read = Box<dyn FnOnce(&Connection) + Send>;

/// A change on its way into a transaction. It answers whoever asked for it when that has ended.
trait Change: Send {
    /// Makes the change. `false` when it was refused by an error: then nothing of it may stay.
    fn make(&mut self, transaction: &Transaction<'_>) -> bool;

    /// The next step is the commit.
    fn is_made(&self);

    fn answer(self: Box<Self>, fate: &CommitFate);
}

type Write = Box<dyn Change>;

struct Wanted<T, F> {
    /// Taken when it is made.
    work: Option<F>,
    result: Option<LedgerResult<T>>,
    /// Where the process can be told to die before the commit.
    point: Option<&'static str>,
    /// Of how many orders the gate gets units back, by the result.
    releases: fn(&T) -> usize,
    returning: Arc<AtomicUsize>,
    send: oneshot::Sender<LedgerResult<T>>,
}

impl<T: Send, F: FnOnce(&Transaction<'_>) -> LedgerResult<T> + Send> Change for Wanted<T, F> {
    fn make(&mut self, transaction: &Transaction<'_>) -> bool {
        self.result = self.work.take().map(|work| work(transaction));
        matches!(self.result, Some(Ok(_)))
    }

    fn is_made(&self) {
        if let (Some(point), Some(Ok(_))) = (self.point, &self.result) {
            crash::point(point);
        }
    }

    fn answer(self: Box<Self>, fate: &CommitFate) {
        let result = match (fate, self.result) {
            (CommitFate::Committed, Some(result)) | (_, Some(result @ Err(_))) => result,
            (CommitFate::Unknown(reason), Some(Ok(_))) => Err(LedgerError::Unknown(reason.clone())),
            (CommitFate::NothingHappened(reason), _) => Err(LedgerError::Unavailable(reason.clone())),
            (CommitFate::Failed(reason), _) => Err(LedgerError::Failed(anyhow::anyhow!(reason.clone()))),
            (CommitFate::Committed | CommitFate::Unknown(_), None) => {
                Err(unavailable("the change was not made"))
            }
        };
        if let Ok(done) = &result {
            self.returning.fetch_add((self.releases)(done), Ordering::AcqRel);
        }
        // Whoever asked may be gone; the change happened all the same.
        let _ = self.send.send(result);
    }
}

/// How a transaction ended.
#[derive(Clone, Debug)]
enum CommitFate {
    Committed,
    NothingHappened(String),
    Unknown(String),
    /// It could not be begun, for a reason that will not pass.
    Failed(String),
}

/// Which queue a write waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Urgency {
    /// Somebody waits for this answer.
    Settle,
    /// The clerk's batches.
    Clerk,
}

impl Urgency {
    /// For a change that moves units or money: the point of [`crash`] just before its commit.
    const fn at(self, point: &'static str) -> Manner {
        Manner { urgency: self, point: Some(point) }
    }
}

/// How a write is made.
#[derive(Clone, Copy, Debug)]
struct Manner {
    urgency: Urgency,
    point: Option<&'static str>,
}

impl From<Urgency> for Manner {
    fn from(urgency: Urgency) -> Self {
        Self { urgency, point: None }
    }
}

/// A handle to the ledger; clones share it.
#[derive(Clone, Debug)]
pub struct SqliteLedger {
    settle: Sender<Write>,
    clerk: Sender<Write>,
    reads: Sender<Read>,
    /// Releases that are committed and have not reached the gate.
    returning: Arc<AtomicUsize>,
    threads: Arc<Mutex<Vec<JoinHandle<()>>>>,
    incarnation: [u8; 16],
    path: PathBuf,
    /// Somebody waits for what cannot be written before the clerk lets go.
    wanted: Arc<AtomicBool>,
    watched: Watched,
    /// Opened for a look: there is nobody who writes.
    is_look: bool,
}

impl SqliteLedger {
    /// Opens or makes the ledger and brings its tables up to date. `new_incarnation` names a ledger that is made now.
    pub fn open(
        path: &Path,
        disk: Option<&Arc<dyn Disk>>,
        new_incarnation: [u8; 16],
    ) -> anyhow::Result<Self> {
        let sqlites_disk = disk.map(|disk| &**disk);
        let mut connection = open_writer(path, sqlites_disk)?;
        connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
        let migrations = Migrations::new(MIGRATIONS.iter().copied().map(M::up).collect());
        migrations
            .to_latest(&mut connection)
            .with_context(|| format!("cannot prepare {}", path.display()))?;
        connection
            .execute("insert or ignore into identity values (1, ?1, 0)", [new_incarnation.as_slice()])?;
        let incarnation = connection.query_row("select incarnation from identity", [], |row| row.get(0))?;
        let (settle, settles) = crossbeam_channel::bounded(WRITES_WAITING_MAX);
        let (clerk, batches) = crossbeam_channel::bounded(WRITES_WAITING_MAX);
        let (reads, readers) = start_readers(path, sqlites_disk)?;
        let (watched, wanted) = (Watched::default(), Arc::<AtomicBool>::default());
        let log = Log::of(&connection, path, disk, COPIES, watched.reports.clone())?;
        let writing = Mutex::new(Writing { connection, log, watched: watched.clone() });
        let settler = Arc::new(Writer { writing, wanted: Arc::clone(&wanted) });
        let recorder = Arc::clone(&settler);
        let mut threads = vec![
            spawn("ledger-settles", move || settler.settle_all(&settles))?,
            spawn("ledger-clerk", move || recorder.record_all(&batches))?,
        ];
        threads.extend(readers);
        let threads = Arc::new(Mutex::new(threads));
        let (returning, path, is_look) = (Arc::default(), path.to_owned(), false);
        Ok(Self { settle, clerk, reads, returning, threads, incarnation, path, wanted, watched, is_look })
    }

    /// Opens a ledger to read it and never to change it: every change is refused. Tables of another version are not
    /// understood.
    pub fn open_to_look(path: &Path) -> anyhow::Result<Self> {
        let connection = open_reader(path, None)?;
        let latest = i64::try_from(MIGRATIONS.len())?;
        let version: i64 = connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(
            version >= latest,
            "the tables of {} are those of an older version, and a look does not change them. `doorbuster migrate` \
             brings them up to date, and so does the next `doorbuster serve`; of a backup, take a copy for that.",
            path.display()
        );
        ensure!(
            version == latest,
            "the tables of {} are those of a newer version than this program's. Use the newer program.",
            path.display()
        );
        let incarnation = connection.query_row("select incarnation from identity", [], |row| row.get(0))?;
        drop(connection);
        // Nobody takes what is sent here.
        let (settle, clerk) = (crossbeam_channel::bounded(0).0, crossbeam_channel::bounded(0).0);
        let (reads, readers) = start_readers(path, None)?;
        Ok(Self {
            settle,
            clerk,
            reads,
            returning: Arc::default(),
            threads: Arc::new(Mutex::new(readers)),
            incarnation,
            path: path.to_owned(),
            wanted: Arc::default(),
            watched: Watched::default(),
            is_look: true,
        })
    }

    #[must_use]
    pub fn incarnation(&self) -> &[u8; 16] {
        &self.incarnation
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whom the writer tells of a commit of which nobody knows whether it happened: gate and ledger may disagree from
    /// there on. The first one named is told.
    pub fn report_to(&self, failure: Arc<Failure>) {
        self.watched.reports.go_to(failure);
    }

    /// How many orders have let go of their units here whose release has not reached the gate.
    #[must_use]
    pub fn returning(&self) -> usize {
        self.returning.load(Ordering::Acquire)
    }

    /// A release has reached the gate.
    pub fn returned(&self) {
        let one_less = |count: usize| count.checked_sub(1);
        // Nothing to take off: it was told again, which is harmless.
        let _ = self.returning.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less);
    }

    /// Waits until everything handed in is done and the file is closed. To be called when no other handle is left.
    pub fn close(self) {
        let Self { settle, clerk, reads, threads, .. } = self;
        drop((settle, clerk, reads));
        for thread in threads.lock().drain(..) {
            let _ = thread.join();
        }
    }

    /// Makes one change on the writing thread, all of it or nothing; it is durable when this returns `Ok`.
    async fn transact<T: Send + 'static>(
        &self,
        manner: impl Into<Manner>,
        work: impl FnOnce(&Transaction<'_>) -> LedgerResult<T> + Send + 'static,
    ) -> LedgerResult<T> {
        self.release(manner, |_| 0, work).await
    }

    /// The same for a change by which orders let go of their units; `releases` says how many did. They count as
    /// returning from the commit on, until [`SqliteLedger::returned`] is told.
    async fn release<T: Send + 'static>(
        &self,
        manner: impl Into<Manner>,
        releases: fn(&T) -> usize,
        work: impl FnOnce(&Transaction<'_>) -> LedgerResult<T> + Send + 'static,
    ) -> LedgerResult<T> {
        if self.is_look {
            return Err(LedgerError::Failed(anyhow::anyhow!(
                "this ledger was opened for a look: nothing is changed"
            )));
        }
        let Manner { urgency, point } = manner.into();
        let (send, receive) = oneshot::channel();
        let returning = Arc::clone(&self.returning);
        let job: Write =
            Box::new(Wanted { work: Some(work), result: None, point, releases, returning, send });
        let queue = match urgency {
            Urgency::Settle => &self.settle,
            Urgency::Clerk => &self.clerk,
        };
        queue.try_send(job).map_err(|refused| match refused {
            TrySendError::Full(_) => unavailable("too many writes are waiting"),
            TrySendError::Disconnected(_) => writer_is_gone(),
        })?;
        tokio::select! {
            biased;
            result = receive => result.map_err(|_| writer_is_gone())?,
            // A change that was handed to a thread that was dying waits in a queue that nobody reads.
            () = self.watched.died.cancelled() => Err(writer_is_gone()),
        }
    }

    /// Runs a read beside the writer, on a snapshot of the last commit.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> LedgerResult<T> + Send + 'static,
    ) -> LedgerResult<T> {
        let (send, receive) = oneshot::channel();
        let job: Read = Box::new(move |connection| {
            let _ = send.send(work(connection));
        });
        self.reads.try_send(job).map_err(|_| unavailable("too many reads are waiting"))?;
        receive.await.map_err(|_| unavailable("the ledger is closing"))?
    }
}

fn unavailable(reason: &str) -> LedgerError {
    LedgerError::Unavailable(reason.to_owned())
}

fn writer_is_gone() -> LedgerError {
    LedgerError::Unknown("the ledger's writer is gone".to_owned())
}

/// Sees to it that an unknown end of a commit, or of a writing thread, does not stay unheard.
#[derive(Clone, Debug, Default)]
struct Watched {
    reports: Reports,
    died: CancellationToken,
}

impl Watched {
    fn report(&self, reason: &str) {
        self.reports.send(anyhow::anyhow!("the ledger's disk can no longer be trusted: {reason}"));
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.report("a writing thread died");
            self.died.cancel();
        }
    }
}

/// Makes the changes in one transaction and tells each how that ended.
fn commit(connection: &mut Connection, mut changes: Vec<Write>, watched: &Watched) {
    let fate = make(connection, &mut changes).unwrap_or_else(|error| match LedgerError::from(error) {
        LedgerError::Unavailable(reason) => CommitFate::NothingHappened(reason),
        LedgerError::Unknown(reason) => CommitFate::Unknown(reason),
        error @ (LedgerError::NotFollowed(_) | LedgerError::Failed(_)) => {
            CommitFate::Failed(error.to_string())
        }
    });
    if let CommitFate::Unknown(reason) = &fate {
        watched.report(reason);
    }
    for change in changes {
        change.answer(&fate);
    }
}

/// A change that is refused leaves nothing behind and does not disturb the others.
fn make(connection: &mut Connection, changes: &mut [Write]) -> rusqlite::Result<CommitFate> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut is_kept = false;
    if let [change] = changes {
        // Alone it needs no savepoint, whose price is a copy of every page that changes.
        is_kept = change.make(&transaction);
    } else {
        for change in &mut *changes {
            is_kept |= make_one_of_many(&transaction, change)?;
            if transaction.is_autocommit() {
                // A full or broken disk: SQLite has undone the whole transaction by itself.
                return Ok(CommitFate::NothingHappened("a change beside this one failed".to_owned()));
            }
        }
    }
    if !is_kept {
        return Ok(CommitFate::Committed);
    }
    changes.iter().for_each(|change| change.is_made());
    Ok(transaction.commit().map_or_else(
        |error| match classify_commit(&error) {
            CommitFailure::NothingHappened => CommitFate::NothingHappened(error.to_string()),
            CommitFailure::Unknown => CommitFate::Unknown(error.to_string()),
        },
        |()| CommitFate::Committed,
    ))
}

fn make_one_of_many(transaction: &Transaction<'_>, change: &mut Write) -> rusqlite::Result<bool> {
    transaction.execute_batch("savepoint change")?;
    let is_kept = change.make(transaction);
    if transaction.is_autocommit() {
        return Ok(false);
    }
    transaction.execute_batch(if is_kept {
        "release change"
    } else {
        "rollback to change; release change"
    })?;
    Ok(is_kept)
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(run).context("cannot start a thread")
}

/// Starts the threads that read, and answers the way to them.
fn start_readers(
    path: &Path,
    disk: Option<&dyn Disk>,
) -> anyhow::Result<(Sender<Read>, Vec<JoinHandle<()>>)> {
    let (reads, read_work) = crossbeam_channel::bounded(READS_WAITING_MAX);
    let mut threads = Vec::new();
    for _ in 0..READERS {
        let connection = open_reader(path, disk)?;
        let read_work = read_work.clone();
        threads.push(spawn("ledger-reader", move || run_reader(connection, &read_work))?);
    }
    Ok((reads, threads))
}

/// What writes: one of the two writing threads has it at a time.
#[derive(Debug)]
struct Writer {
    writing: Mutex<Writing>,
    wanted: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Writing {
    connection: Connection,
    /// After the connection: see there.
    log: Log,
    watched: Watched,
}

impl Writer {
    /// Somebody waits for each of these. Those that came while the clerk wrote share one commit.
    fn settle_all(&self, settles: &Receiver<Write>) {
        let _watched = self.writing.lock().watched.clone();
        for first in settles {
            self.wanted.store(true, Ordering::Release);
            let mut writing = self.writing.lock();
            self.wanted.store(false, Ordering::Release);
            writing.commit(with_those_waiting(first, settles));
        }
    }

    /// The buyers who wait for an answer come first, and the orders behind them have a queue to wait in.
    fn record_all(&self, batches: &Receiver<Write>) {
        let _watched = self.writing.lock().watched.clone();
        stand_back();
        for batch in batches {
            let mut writing = self.writing.lock();
            writing.commit(vec![batch]);
            MutexGuard::unlock_fair(writing);
        }
    }
}

impl Writing {
    fn commit(&mut self, changes: Vec<Write>) {
        commit(&mut self.connection, changes, &self.watched);
        self.log.after_commit(&self.connection);
    }
}

fn with_those_waiting(first: Write, settles: &Receiver<Write>) -> Vec<Write> {
    let mut together = vec![first];
    together.extend(settles.try_iter().take(SETTLES_PER_COMMIT - 1));
    together
}

fn run_reader(connection: Connection, reads: &Receiver<Read>) {
    for read in reads {
        read(&connection);
    }
}

/// Instants, numbers and ids as SQLite keeps them.
mod column {
    use rules::time::UnixMs;
    use rusqlite::Row;
    use rusqlite::types::{FromSqlError, Type};

    pub fn id(row: &Row<'_>, index: usize) -> rusqlite::Result<u128> {
        row.get::<_, [u8; 16]>(index).map(u128::from_be_bytes)
    }

    pub fn id_option(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<u128>> {
        row.get::<_, Option<[u8; 16]>>(index).map(|id| id.map(u128::from_be_bytes))
    }

    pub fn count(row: &Row<'_>, index: usize) -> rusqlite::Result<u32> {
        row.get(index)
    }

    pub fn number(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
        let value: i64 = row.get(index)?;
        u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, value))
    }

    pub fn time(row: &Row<'_>, index: usize) -> rusqlite::Result<UnixMs> {
        row.get(index).map(UnixMs)
    }

    pub fn time_option(row: &Row<'_>, index: usize) -> rusqlite::Result<Option<UnixMs>> {
        row.get::<_, Option<i64>>(index).map(|at| at.map(UnixMs))
    }

    /// A word of a closed set, such as a state.
    pub fn word<T>(
        row: &Row<'_>,
        index: usize,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> rusqlite::Result<T> {
        let text = row.get_ref(index)?.as_str()?;
        parse(text).ok_or_else(|| unknown_word(index))
    }

    pub fn unknown_word(index: usize) -> rusqlite::Error {
        rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(FromSqlError::InvalidType))
    }
}

/// Rows are counted by SQLite as signed numbers.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_writing_thread_that_dies_is_heard_of() {
        let folder = tempfile::tempdir().unwrap();
        let ledger = SqliteLedger::open(&folder.path().join("ledger.db"), None, [1; 16]).unwrap();
        let (failure, reported) = Failure::new();
        ledger.report_to(failure);
        let dies = |_: &Transaction<'_>| -> LedgerResult<()> { panic!("as the test wants") };
        let died = ledger.transact(Urgency::Settle, dies).await;
        assert!(matches!(died, Err(LedgerError::Unknown(_))), "{died:?}");
        assert!(reported.await.unwrap().to_string().contains("a writing thread died"));
        let after = ledger.transact(Urgency::Settle, |_| Ok(())).await;
        assert!(matches!(after, Err(LedgerError::Unknown(_))), "it is no queue that is full: {after:?}");
    }
}
