//! The journal: an append-only table in a file of its own, with one writing thread.
//!
//! While one commit is on its way to the disk, the next batch gathers: the batch grows with the load, and an idle
//! system commits at once. A buyer is answered after that commit. Nothing here knows HTTP, the ledger's tables or
//! what a claim will become.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, OptionalExtension as _, params};
use rusqlite_migration::{M, Migrations};
use tokio::sync::{mpsc, oneshot};

use super::claim::{self, Claim};
use super::copying::Log;
use super::reply::{Answer, Reply, Round, question};
use super::sqlite::{self, CommitFailure};
use super::unrecorded::Unrecorded;
use crate::clock::Clock;
use crate::crash;
use crate::gate::{Grant, MemoryGate, Outcome, Permit};
use crate::telemetry::metrics::{Metrics, f64_of};

const MIGRATIONS: &[&str] = &[include_str!("../../migrations/journal/0001_entries.sql")];

/// How long an idle journal waits before it drops entries that the ledger has.
const PRUNE_AFTER_IDLE: Duration = Duration::from_millis(200);

/// Under load, entries are dropped once per so many commits: dropping is work too.
const COMMITS_PER_PRUNE: u32 = 64;

/// Pages of the log after which they are copied into the file (16 MiB of 4 KiB pages). Few of them differ, since
/// recorded claims make room for new ones.
const COPY_PAGES: u32 = 4_096;

/// Under load the journal rests this long between two commits: a commit that carries many claims costs each of them
/// less, and the answer waits for it no longer than for the disk.
const REST_UNDER_LOAD: Duration = Duration::from_micros(500);

/// Claims that the ledger may be behind before the journal rests longer. Cores are short then, and whoever gets an
/// answer comes back with more: longer steps leave the ledger its share, long before the queue is full and says so.
const BEHIND_CLAIMS: u64 = 8_192;

/// How much longer, for each claim beyond that.
const REST_PER_CLAIM_BEHIND: Duration = Duration::from_nanos(100);

/// It never rests longer than this between two commits.
const REST_MAX: Duration = Duration::from_millis(5);

/// A batch of so many claims is load.
const LOAD_CLAIMS: usize = 4;

/// A claim that is durable in the journal, on its way to the clerk.
#[derive(Debug)]
pub struct Journaled {
    /// Its number: the clerk's cursor.
    pub seq: u64,
    pub claim: Arc<Claim>,
    /// Room in the queue: returns when the order is recorded.
    pub permit: Permit,
}

/// Why a journal and a ledger cannot go on together: one of the two files was replaced, and orders would be lost or
/// repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// It belongs to another ledger.
    Foreign,
    /// It ends before the last claim that the ledger has recorded from it.
    Short,
}

impl Misfit {
    /// `None` when a journal of the ledger `found`, which ends at `last_seq`, fits the ledger `incarnation`, whose clerk
    /// has recorded everything up to `cursor`.
    #[must_use]
    pub fn between(found: &[u8], last_seq: u64, incarnation: &[u8; 16], cursor: u64) -> Option<Self> {
        if found != incarnation { Some(Self::Foreign) } else { (cursor > last_seq).then_some(Self::Short) }
    }
}

/// An opened journal, before its thread runs.
#[derive(Debug)]
pub struct Journal {
    connection: Connection,
    log: Log,
    last_seq: u64,
    /// What the ledger has recorded, up to this number.
    cursor: u64,
}

/// What the journal's thread needs besides its file.
#[derive(Debug)]
pub struct JournalParts {
    pub gate: Arc<MemoryGate>,
    pub unrecorded: Arc<Unrecorded>,
    pub clock: Clock,
    pub metrics: Arc<Metrics>,
    /// Where durable claims go, a commit's at a time. Its capacity must be the queue's room: then it is never full.
    pub clerk: mpsc::Sender<Vec<Journaled>>,
    /// Most claims in one commit.
    pub batch: usize,
    /// Told once, when the disk can no longer be trusted.
    pub failed: oneshot::Sender<anyhow::Error>,
}

/// The way into the journal.
#[derive(Clone, Debug)]
pub struct JournalHandle {
    inbox: Arc<Inbox>,
    recorded: Arc<AtomicU64>,
}

/// Where the next batch gathers while one is on its way to the disk. Bounded by the queue's room: every grant in here
/// holds a permit.
#[derive(Debug, Default)]
struct Inbox {
    gathering: Mutex<Gathering>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct Gathering {
    waiting: Vec<Waiting>,
    writer_waits: bool,
    stopped: bool,
}

impl Inbox {
    /// Moves up to `most` grants into `batch`, waiting a while for the first. `false` when there will be no more.
    fn gather(&self, batch: &mut Vec<Waiting>, most: usize, patience: Duration) -> bool {
        let mut gathering = self.gathering.lock();
        if gathering.waiting.is_empty() && !gathering.stopped {
            gathering.writer_waits = true;
            self.bell.wait_for(&mut gathering, patience);
            gathering.writer_waits = false;
        }
        if gathering.waiting.len() <= most {
            std::mem::swap(&mut gathering.waiting, batch);
        } else {
            batch.extend(gathering.waiting.drain(..most));
        }
        !(batch.is_empty() && gathering.stopped)
    }
}

#[derive(Debug)]
struct Waiting {
    grant: Grant,
    claim: Arc<Claim>,
    answer: Answer,
}

impl Journal {
    /// Opens or makes the journal of the ledger with this incarnation, whose clerk has recorded everything up to
    /// `cursor`. A journal of another ledger, or one that ends before the cursor, is refused: one of the two files
    /// was replaced, and going on would lose or repeat orders.
    pub fn open(path: &Path, vfs: Option<&str>, incarnation: &[u8; 16], cursor: u64) -> anyhow::Result<Self> {
        let mut connection = sqlite::open_writer(path, vfs)?;
        let migrations = Migrations::new(MIGRATIONS.iter().copied().map(M::up).collect());
        migrations
            .to_latest(&mut connection)
            .with_context(|| format!("cannot prepare {}", path.display()))?;
        connection.execute("insert or ignore into identity values (1, ?1)", [incarnation.as_slice()])?;
        let found: Vec<u8> =
            connection.query_row("select incarnation from identity", [], |row| row.get(0))?;
        let last: Option<i64> =
            connection.query_row("select max(last_seq) from entries", [], |row| row.get(0))?;
        let last_seq = u64::try_from(last.unwrap_or(0)).unwrap_or(0);
        match Misfit::between(&found, last_seq, incarnation, cursor) {
            Some(Misfit::Foreign) => bail!(
                "{} belongs to another ledger. Put the files of one backup together, or start with an empty data folder.",
                path.display()
            ),
            Some(Misfit::Short) => bail!(
                "the ledger has recorded claims up to number {cursor}, but {} ends at {last_seq}: the journal was \
                 replaced or lost. Restore it from the same moment as the ledger.",
                path.display()
            ),
            None => {}
        }
        let log = Log::of(&connection, path, vfs, COPY_PAGES)?;
        Ok(Self { connection, log, last_seq, cursor })
    }

    /// The claims after `cursor`, oldest first: answered, not yet recorded.
    pub fn after(&self, cursor: u64) -> anyhow::Result<Vec<(u64, Arc<Claim>)>> {
        let mut statement = self.connection.prepare(
            "select first_seq, last_seq, claims from entries where last_seq > ?1 order by last_seq",
        )?;
        let mut rows = statement.query([i64::try_from(cursor)?])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let (first, last): (i64, i64) = (row.get(0)?, row.get(1)?);
            let claims = claim::decode(row.get_ref(2)?.as_blob()?)?;
            let numbers = u64::try_from(first)?..=u64::try_from(last)?;
            ensure!(
                numbers.clone().count() == claims.len(),
                "journal entry {last} does not hold what it says"
            );
            found.extend(numbers.zip(claims).filter(|(seq, _)| *seq > cursor));
        }
        Ok(found)
    }

    /// Starts the writing thread. It ends with [`JournalHandle::stop`], when all that was handed in is answered.
    pub fn start(self, parts: JournalParts) -> anyhow::Result<(JournalHandle, JoinHandle<()>)> {
        let inbox = Arc::new(Inbox::default());
        let recorded = Arc::new(AtomicU64::new(self.cursor));
        let writer = Writer {
            connection: self.connection,
            log: self.log,
            next_seq: self.last_seq + 1,
            inbox: Arc::clone(&inbox),
            recorded: Arc::clone(&recorded),
            pruned: 0,
            commits_since_prune: 0,
            bytes: Vec::new(),
            parts: Running {
                gate: parts.gate,
                unrecorded: parts.unrecorded,
                clock: parts.clock,
                metrics: parts.metrics,
                clerk: parts.clerk,
                batch: parts.batch,
            },
            failed: Some(parts.failed),
        };
        let thread = std::thread::Builder::new().name("journal".into()).spawn(move || writer.run())?;
        Ok((JournalHandle { inbox, recorded }, thread))
    }
}

impl JournalHandle {
    /// Hands a grant to the journal. From here on the grant is committed or rolled back whatever becomes of the
    /// caller. The reply tells how it ended.
    pub fn append(&self, grant: Grant, claim: Arc<Claim>) -> Result<Reply, Grant> {
        let mut gathering = self.inbox.gathering.lock();
        if gathering.stopped {
            return Err(grant);
        }
        let (answer, reply) = question();
        gathering.waiting.push(Waiting { grant, claim, answer });
        // Under load the writer is at the disk and sees this when it comes back.
        if gathering.writer_waits {
            self.inbox.bell.notify_one();
        }
        Ok(reply)
    }

    /// Ends the thread once everything handed in so far is answered. Later grants are given back.
    pub fn stop(&self) {
        self.inbox.gathering.lock().stopped = true;
        self.inbox.bell.notify_one();
    }

    /// The ledger has recorded everything up to `seq`: the journal may forget it.
    pub fn recorded_up_to(&self, seq: u64) {
        self.recorded.fetch_max(seq, Ordering::AcqRel);
    }
}

struct Running {
    gate: Arc<MemoryGate>,
    unrecorded: Arc<Unrecorded>,
    clock: Clock,
    metrics: Arc<Metrics>,
    clerk: mpsc::Sender<Vec<Journaled>>,
    batch: usize,
}

struct Writer {
    connection: Connection,
    log: Log,
    next_seq: u64,
    inbox: Arc<Inbox>,
    recorded: Arc<AtomicU64>,
    pruned: u64,
    commits_since_prune: u32,
    bytes: Vec<u8>,
    parts: Running,
    failed: Option<oneshot::Sender<anyhow::Error>>,
}

/// How a batch failed.
enum AppendError {
    NothingHappened(anyhow::Error),
    Unknown(anyhow::Error),
}

impl Drop for Writer {
    /// However the thread ends, nobody is left waiting for it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail(anyhow::anyhow!("the journal's thread died"));
        }
        let mut gathering = self.inbox.gathering.lock();
        gathering.stopped = true;
        let left = std::mem::take(&mut gathering.waiting);
        drop(gathering);
        drop(left);
    }
}

impl Writer {
    fn run(mut self) {
        let inbox = Arc::clone(&self.inbox);
        let mut batch = Vec::with_capacity(self.parts.batch);
        while inbox.gather(&mut batch, self.parts.batch, PRUNE_AFTER_IDLE) {
            if batch.is_empty() {
                self.prune();
                continue;
            }
            let load = batch.len() >= LOAD_CLAIMS;
            self.write(&mut batch);
            self.log.after_commit(&self.connection);
            if load {
                std::thread::sleep(self.rest());
            }
        }
    }

    fn rest(&self) -> Duration {
        let recorded = self.recorded.load(Ordering::Acquire);
        rest_when_behind((self.next_seq - 1).saturating_sub(recorded))
    }

    fn write(&mut self, batch: &mut Vec<Waiting>) {
        if self.failed.is_none() {
            // The file can no longer be trusted; what was not tried certainly did not happen.
            return self.give_back(batch);
        }
        let began = self.parts.clock.instant();
        let span = tracing::debug_span!("journal_commit", claims = batch.len());
        match span.in_scope(|| self.append(batch)) {
            Ok(first_seq) => {
                self.parts.metrics.journal_batch_claims.observe(f64_of(batch.len()));
                self.parts.metrics.journal_commit_seconds.observe(began.elapsed().as_secs_f64());
                self.hand_over(batch, first_seq);
            }
            Err(AppendError::NothingHappened(error)) => {
                tracing::warn!(%error, claims = batch.len(), "the journal could not be written; buyers are told to try again");
                self.parts.metrics.journal_roll_backs.inc();
                self.give_back(batch);
            }
            Err(AppendError::Unknown(error)) => {
                tracing::error!(%error, claims = batch.len(), "the journal's commit has an unknown outcome; stopping");
                self.leave_unsure(batch);
                self.fail(error);
            }
        }
    }

    /// After a failed sync the kernel may hold pages for clean that never reached the disk: only a new start, which
    /// reads the file again, knows what is there.
    fn fail(&mut self, error: anyhow::Error) {
        if let Some(failed) = self.failed.take() {
            let _ = failed.send(error.context("the journal's disk can no longer be trusted"));
        }
    }

    /// One transaction with the whole batch. When it returns `Ok`, the batch survives a power cut.
    fn append(&mut self, batch: &[Waiting]) -> Result<u64, AppendError> {
        use AppendError::NothingHappened;
        let nothing = |error: rusqlite::Error| NothingHappened(error.into());
        self.bytes.clear();
        claim::encode(batch.iter().map(|waiting| &*waiting.claim), &mut self.bytes)
            .map_err(|error| NothingHappened(error.into()))?;
        let first_seq = self.next_seq;
        let last_seq = first_seq + u64::try_from(batch.len()).unwrap_or(1).max(1) - 1;
        let prune_to = self.prune_to();
        let transaction = self.connection.transaction().map_err(nothing)?;
        transaction
            .prepare_cached("insert into entries (last_seq, first_seq, claims) values (?1, ?2, ?3)")
            .and_then(|mut insert| insert.execute(params![signed(last_seq), signed(first_seq), self.bytes]))
            .map_err(nothing)?;
        if let Some(cursor) = prune_to {
            drop_up_to(&transaction, cursor).map_err(nothing)?;
        }
        crash::point("journal.appending");
        transaction.commit().map_err(|error| match sqlite::classify_commit(&error) {
            CommitFailure::NothingHappened => NothingHappened(error.into()),
            CommitFailure::Unknown => AppendError::Unknown(error.into()),
        })?;
        self.next_seq = last_seq + 1;
        self.commits_since_prune += 1;
        if let Some(cursor) = prune_to {
            self.pruned = cursor;
            self.commits_since_prune = 0;
            crash::point("journal.pruned");
        }
        Ok(first_seq)
    }

    fn hand_over(&self, batch: &mut Vec<Waiting>, first_seq: u64) {
        crash::point("journal.committed");
        let mut round = Round::default();
        let mut journaled = Vec::with_capacity(batch.len());
        for (seq, Waiting { grant, claim, answer }) in (first_seq..).zip(batch.drain(..)) {
            self.parts.gate.commit(&grant);
            journaled.push(Journaled { seq, claim, permit: grant.permit });
            round.say(&answer, Outcome::Committed);
            crash::point("journal.telling");
        }
        round.ring();
        if self.parts.clerk.try_send(journaled).is_err() {
            // Shutting down: the claims are on disk and will be read at the next start.
            tracing::debug!(first_seq, "the clerk has gone home; the claims wait in the journal");
        }
    }

    fn give_back(&self, batch: &mut Vec<Waiting>) {
        let mut round = Round::default();
        for Waiting { grant, claim, answer } in batch.drain(..) {
            self.parts.unrecorded.remove(claim.order);
            self.parts.gate.roll_back(&grant);
            round.say(&answer, Outcome::RolledBack);
        }
        round.ring();
    }

    fn leave_unsure(&self, batch: &mut Vec<Waiting>) {
        let mut round = Round::default();
        for Waiting { grant, answer, .. } in batch.drain(..) {
            self.parts.gate.leave_unsure(&grant);
            round.say(&answer, Outcome::Unsure);
        }
        round.ring();
    }

    fn prune_to(&self) -> Option<u64> {
        let recorded = self.recorded.load(Ordering::Acquire);
        (self.commits_since_prune >= COMMITS_PER_PRUNE && recorded > self.pruned).then_some(recorded)
    }

    fn prune(&mut self) {
        let recorded = self.recorded.load(Ordering::Acquire);
        if recorded <= self.pruned || self.failed.is_none() {
            return;
        }
        match drop_up_to(&self.connection, recorded) {
            Ok(()) => {
                self.pruned = recorded;
                self.commits_since_prune = 0;
                crash::point("journal.pruned");
            }
            Err(error) if sqlite::classify_commit(&error) == CommitFailure::Unknown => {
                self.fail(error.into())
            }
            // Nothing is lost: the ledger has these claims, and the next try is a moment away.
            Err(error) => tracing::warn!(%error, "recorded claims could not be dropped from the journal"),
        }
    }
}

fn rest_when_behind(claims: u64) -> Duration {
    let beyond = u32::try_from(claims.saturating_sub(BEHIND_CLAIMS)).unwrap_or(u32::MAX);
    REST_UNDER_LOAD.saturating_add(REST_PER_CLAIM_BEHIND.saturating_mul(beyond)).min(REST_MAX)
}

/// Drops entries that the ledger has, except the last one: it tells where the journal ends.
fn drop_up_to(connection: &Connection, cursor: u64) -> rusqlite::Result<()> {
    let last: Option<i64> = connection
        .prepare_cached("select max(last_seq) from entries")?
        .query_row([], |row| row.get(0))
        .optional()?
        .flatten();
    connection
        .prepare_cached("delete from entries where last_seq <= ?1 and last_seq < ?2")?
        .execute(params![signed(cursor), last.unwrap_or(0)])?;
    Ok(())
}

fn signed(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_further_the_ledger_is_behind_the_longer_the_journal_rests_up_to_a_limit() {
        assert_eq!(rest_when_behind(0), REST_UNDER_LOAD);
        assert_eq!(rest_when_behind(BEHIND_CLAIMS), REST_UNDER_LOAD);
        assert_eq!(rest_when_behind(BEHIND_CLAIMS + 10_000), REST_UNDER_LOAD + Duration::from_millis(1));
        assert_eq!(rest_when_behind(u64::MAX), REST_MAX);
    }
}
