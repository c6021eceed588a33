//! The journal: a table in a file of its own, with one writing thread.
//!
//! While one commit is on its way to the disk, the next batch gathers: the batch grows with the load, and an idle
//! system commits at once. A buyer is answered after that commit. Nothing here knows HTTP, the ledger's tables or
//! what a claim will become.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, params};
use rusqlite_migration::{M, Migrations};
use tokio::sync::mpsc;

use super::claim::{Claim, Entries};
use super::copying::{Log, Rhythm};
use super::reply::{Answer, Reply, Round, question};
use super::slots::{Slots, claims_after};
use super::sqlite::{self, CommitFailure, Disk};
use super::unrecorded::Unrecorded;
use crate::clock::Clock;
use crate::crash;
use crate::failure::{Failure, Reports};
use crate::gate::{Grant, MemoryGate, Outcome, Permit};
use crate::telemetry::metrics::{Metrics, f64_of};

const MIGRATIONS: &[&str] = &[include_str!("../../migrations/journal/0001_entries.sql")];

/// The log is copied into the file at 16 MiB (of 4 KiB pages), all at once: few of them differ, since recorded claims make
/// room for new ones.
const COPIES: Rhythm = Rhythm { copy_pages: 4_096, step_pages: 4_096, commits_per_look: 16 };

/// After a commit that found no space, so many bytes must be free before the journal counts as writable again: what its log
/// may grow to before it is copied, twice.
const SPACE_BYTES_MIN: u64 = 32 << 20;

/// Under load a commit begins so long after the one before, or at once when that one took longer: a commit that carries
/// many claims costs each of them less. To rest after a slow one, too, would be to wait for those whom it answered: they
/// would join those who gathered meanwhile, and with everybody in one commit nobody is left to serve while the disk works.
const COMMIT_EVERY_UNDER_LOAD: Duration = Duration::from_micros(1_200);

/// It begins as soon as this when fewer than half of the threads that serve buyers have anything to do: then there are
/// cores to spare, and a larger commit is not worth the wait. Not sooner, since also the disk has other things to do.
const COMMIT_EVERY_MIN: Duration = Duration::from_micros(300);

/// Claims that the ledger may be behind before the journal rests longer. Cores are short then, and whoever gets an
/// answer comes back with more: longer steps leave the ledger its share, long before the queue is full and says so.
const BEHIND_CLAIMS: u64 = 8_192;

/// How much longer, for each claim beyond that.
const REST_PER_CLAIM_BEHIND: Duration = Duration::from_nanos(100);

/// It never rests longer than this between two commits.
const REST_MAX: Duration = Duration::from_millis(5);

/// A batch of so many claims is load.
const LOAD_CLAIMS: usize = 4;

/// After so many answers of a commit the edge is woken, and once more when all are given: to wake up takes it as long as
/// us to give dozens.
const EARLY_ANSWERS: usize = 8;

/// Grants whose memory at the gate is on its way while the ones before them are committed there: edge threads wrote it
/// last, on other cores.
const FETCHED_AHEAD: usize = 8;

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

    /// The same for the journal at `path`, as a sentence that says what to do.
    pub(super) fn refuse(
        path: &Path,
        found: &[u8],
        last_seq: u64,
        incarnation: &[u8; 16],
        cursor: u64,
    ) -> anyhow::Result<()> {
        match Self::between(found, last_seq, incarnation, cursor) {
            Some(Self::Foreign) => bail!(
                "{} belongs to another ledger. Put the files of one backup together, or start with an empty data folder.",
                path.display()
            ),
            Some(Self::Short) => bail!(
                "the ledger has recorded claims up to number {cursor}, but {} ends at {last_seq}: the journal was \
                 replaced or lost. Restore it from the same moment as the ledger.",
                path.display()
            ),
            None => Ok(()),
        }
    }
}

/// An opened journal, before its thread runs.
#[derive(Debug)]
pub struct Journal {
    connection: Connection,
    place: Place,
    log: Log,
    slots: Slots,
    /// What the ledger has recorded, up to this number.
    cursor: u64,
    reports: Reports,
}

/// Where its file lies.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    disk: Option<Arc<dyn Disk>>,
}

impl Place {
    /// Whether there is more space than a commit or two needs, as far as the system says.
    fn has_space(&self) -> bool {
        let free = sqlite::free_bytes(&self.path, self.disk.as_deref());
        free.is_none_or(|bytes| bytes >= SPACE_BYTES_MIN)
    }
}

/// A thread that serves buyers. Dropped when it ends, at work.
#[derive(Debug)]
pub struct Serving(JournalHandle);

impl Drop for Serving {
    fn drop(&mut self) {
        self.0.inbox.bustle.threads.fetch_sub(1, Ordering::SeqCst);
        self.0.work_ends();
    }
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
    /// Told when the disk can no longer be trusted.
    pub failure: Arc<Failure>,
}

/// The way into the journal.
#[derive(Clone, Debug)]
pub struct JournalHandle {
    inbox: Arc<Inbox>,
    recorded: Arc<AtomicU64>,
    is_writable: Arc<AtomicBool>,
}

/// Where the next batch gathers while one is on its way to the disk. Bounded by the queue's room: every grant in here
/// holds a permit.
#[derive(Debug, Default)]
struct Inbox {
    gathering: Mutex<Gathering>,
    bell: Condvar,
    bustle: Bustle,
}

/// How much those have to do who serve buyers. Apart from the rest of the inbox: it changes whenever one of them falls
/// asleep or wakes up.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Bustle {
    /// Threads that serve buyers.
    threads: AtomicUsize,
    /// Those of them that have something to do.
    at_work: AtomicUsize,
    /// The writer rests, and would begin if it were quiet.
    writer_rests: AtomicBool,
}

impl Bustle {
    fn is_quiet(&self) -> bool {
        let at_work = self.at_work.load(Ordering::SeqCst);
        at_work == 0 || at_work.saturating_mul(2) < self.threads.load(Ordering::SeqCst)
    }
}

#[derive(Debug, Default)]
struct Gathering {
    waiting: Vec<Waiting>,
    /// Somebody wants to know whether there is space again.
    wants_probe: bool,
    writer_waits: bool,
    stopped: bool,
}

impl Inbox {
    /// Moves up to `most` grants into `batch`, waiting for the first, or for somebody who wants a probe: then there may be
    /// none. `false` when there will be no more.
    fn gather(&self, batch: &mut Vec<Waiting>, most: usize) -> bool {
        let mut gathering = self.gathering.lock();
        while gathering.waiting.is_empty() && !gathering.wants_probe && !gathering.stopped {
            gathering.writer_waits = true;
            self.bell.wait(&mut gathering);
            gathering.writer_waits = false;
        }
        if gathering.waiting.len() <= most {
            std::mem::swap(&mut gathering.waiting, batch);
        } else {
            batch.extend(gathering.waiting.drain(..most));
        }
        let wants_probe = std::mem::take(&mut gathering.wants_probe);
        !batch.is_empty() || (wants_probe && !gathering.stopped)
    }

    /// Waits until then, or until it is quiet among those who serve buyers and something has gathered.
    fn rest(&self, until: Instant) {
        let mut gathering = self.gathering.lock();
        // Said before they are counted, as they count themselves before they look whether it was said: one of the two
        // notices the other.
        self.bustle.writer_rests.store(true, Ordering::SeqCst);
        while gathering.waiting.is_empty() || !self.bustle.is_quiet() {
            if gathering.stopped || gathering.wants_probe {
                break;
            }
            if self.bell.wait_until(&mut gathering, until).timed_out() {
                break;
            }
        }
        self.bustle.writer_rests.store(false, Ordering::SeqCst);
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
    pub fn open(
        path: &Path,
        disk: Option<&Arc<dyn Disk>>,
        incarnation: &[u8; 16],
        cursor: u64,
    ) -> anyhow::Result<Self> {
        let mut connection = sqlite::open_writer(path, disk.map(|disk| &**disk))?;
        let migrations = Migrations::new(MIGRATIONS.iter().copied().map(M::up).collect());
        migrations
            .to_latest(&mut connection)
            .with_context(|| format!("cannot prepare {}", path.display()))?;
        connection.execute("insert or ignore into identity values (1, ?1)", [incarnation.as_slice()])?;
        let found: Vec<u8> =
            connection.query_row("select incarnation from identity", [], |row| row.get(0))?;
        let slots = Slots::of(&connection)?;
        let last_seq = slots.last_seq();
        Misfit::refuse(path, &found, last_seq, incarnation, cursor)?;
        let reports = Reports::default();
        let log = Log::of(&connection, path, disk, COPIES, reports.clone())?;
        let place = Place { path: path.to_owned(), disk: disk.cloned() };
        Ok(Self { connection, place, log, slots, cursor, reports })
    }

    /// The claims that the ledger has not recorded, oldest first: answered, and to be recorded before anything else.
    pub fn left(&self) -> anyhow::Result<Vec<(u64, Arc<Claim>)>> {
        claims_after(&self.connection, self.cursor)
    }

    /// Starts the writing thread. It ends with [`JournalHandle::stop`], when all that was handed in is answered.
    pub fn start(self, parts: JournalParts) -> anyhow::Result<(JournalHandle, JoinHandle<()>)> {
        self.reports.go_to(parts.failure);
        let inbox = Arc::new(Inbox::default());
        let recorded = Arc::new(AtomicU64::new(self.cursor));
        let is_writable = Arc::new(AtomicBool::new(true));
        let writer = Writer {
            connection: self.connection,
            place: self.place,
            log: self.log,
            next_seq: self.slots.last_seq() + 1,
            slots: self.slots,
            inbox: Arc::clone(&inbox),
            recorded: Arc::clone(&recorded),
            is_writable: Arc::clone(&is_writable),
            entries: Entries::default(),
            parts: Running {
                gate: parts.gate,
                unrecorded: parts.unrecorded,
                clock: parts.clock,
                metrics: parts.metrics,
                clerk: parts.clerk,
                batch: parts.batch,
            },
            reports: self.reports,
            is_trusted: true,
        };
        let thread = std::thread::Builder::new().name("journal".into()).spawn(move || writer.run())?;
        Ok((JournalHandle { inbox, recorded, is_writable }, thread))
    }
}

impl JournalHandle {
    /// The way into no journal: every grant is given back.
    #[must_use]
    pub fn closed() -> Self {
        let handle = Self { inbox: Arc::default(), recorded: Arc::default(), is_writable: Arc::default() };
        handle.stop();
        handle
    }

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

    /// A thread begins to serve buyers, with something to do, and goes on for as long as the answer lives.
    #[must_use]
    pub fn join(&self) -> Serving {
        self.inbox.bustle.threads.fetch_add(1, Ordering::SeqCst);
        self.work_begins();
        Serving(self.clone())
    }

    /// A thread that serves buyers has something to do again.
    pub fn work_begins(&self) {
        self.inbox.bustle.at_work.fetch_add(1, Ordering::SeqCst);
    }

    /// It has nothing to do any more. Where it becomes quiet by that, what has gathered need not wait for more.
    pub fn work_ends(&self) {
        let Inbox { bustle, gathering, bell } = &*self.inbox;
        bustle.at_work.fetch_sub(1, Ordering::SeqCst);
        if bustle.writer_rests.load(Ordering::SeqCst)
            && bustle.is_quiet()
            && !gathering.lock().waiting.is_empty()
        {
            bell.notify_one();
        }
    }

    /// Whether the journal can be written: no commit has found the disk full, or there is plenty of space again. If not,
    /// asking has it tried again, so that who asks now and then hears of new space also while nobody buys.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        let is_writable = self.is_writable.load(Ordering::Acquire);
        if !is_writable {
            self.inbox.gathering.lock().wants_probe = true;
            self.inbox.bell.notify_one();
        }
        is_writable
    }

    /// Ends the thread once everything handed in so far is answered. Later grants are given back.
    pub fn stop(&self) {
        self.inbox.gathering.lock().stopped = true;
        self.inbox.bell.notify_one();
    }

    /// The ledger has recorded everything up to `seq`: the journal may write over it.
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
    place: Place,
    log: Log,
    next_seq: u64,
    slots: Slots,
    inbox: Arc<Inbox>,
    recorded: Arc<AtomicU64>,
    is_writable: Arc<AtomicBool>,
    entries: Entries,
    parts: Running,
    reports: Reports,
    /// Whether the end of every commit is known.
    is_trusted: bool,
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
        while inbox.gather(&mut batch, self.parts.batch) {
            let load = batch.len() >= LOAD_CLAIMS;
            let began = self.parts.clock.instant();
            if batch.is_empty() {
                self.probe();
            } else {
                self.write(&mut batch);
            }
            self.log.after_commit(&self.connection);
            if load {
                let Rest { at_least, beyond } = Rest::after(began.elapsed(), self.claims_behind());
                if !at_least.is_zero() {
                    std::thread::sleep(at_least);
                }
                if !beyond.is_zero() {
                    inbox.rest(self.parts.clock.instant() + beyond);
                }
            }
        }
    }

    /// How many claims the ledger is behind.
    fn claims_behind(&self) -> u64 {
        (self.next_seq - 1).saturating_sub(self.recorded.load(Ordering::Acquire))
    }

    fn write(&mut self, batch: &mut Vec<Waiting>) {
        if !self.is_trusted {
            // The file can no longer be trusted; what was not tried certainly did not happen.
            return self.give_back(batch);
        }
        let began = self.parts.clock.instant();
        let span = tracing::debug_span!("journal_commit", claims = batch.len());
        match span.in_scope(|| self.append(batch)) {
            Ok(first_seq) => {
                self.found_space();
                self.parts.metrics.journal_batch_claims.observe(f64_of(batch.len()));
                self.parts.metrics.journal_commit_seconds.observe(began.elapsed().as_secs_f64());
                self.hand_over(batch, first_seq);
            }
            Err(AppendError::NothingHappened(error)) => {
                tracing::warn!(%error, claims = batch.len(), "the journal could not be written; buyers are told to try again");
                self.parts.metrics.journal_roll_backs.inc();
                self.is_writable.store(false, Ordering::Release);
                self.give_back(batch);
            }
            Err(AppendError::Unknown(error)) => {
                tracing::error!(%error, claims = batch.len(), "the journal's commit has an unknown outcome; stopping");
                self.leave_unsure(batch);
                self.fail(error);
            }
        }
    }

    /// A commit that changes nothing and is written all the same: SQLite leaves a row alone that is as it was, but not
    /// this number.
    fn probe(&mut self) {
        if !self.is_trusted {
            return;
        }
        let written = self.connection.pragma_update(None, "application_id", 0);
        match written.map_err(|error| (sqlite::classify_commit(&error), error)) {
            Ok(()) => self.found_space(),
            Err((CommitFailure::NothingHappened, error)) => {
                tracing::debug!(%error, "the journal still cannot be written");
            }
            Err((CommitFailure::Unknown, error)) => self.fail(error.into()),
        }
    }

    /// A commit has found space. After one that did not, this says little: a small one fits where the next large one does
    /// not, and who asks whether the server can sell would hear yes and no in turn.
    fn found_space(&self) {
        if !self.is_writable.load(Ordering::Acquire) && self.place.has_space() {
            tracing::info!("the journal can be written again");
            self.is_writable.store(true, Ordering::Release);
        }
    }

    /// After a failed sync the kernel may hold pages for clean that never reached the disk: only a new start, which
    /// reads the file again, knows what is there.
    fn fail(&mut self, error: anyhow::Error) {
        self.is_trusted = false;
        self.reports.send(error.context("the journal's disk can no longer be trusted"));
    }

    /// One transaction with the whole batch. When it returns `Ok`, the batch survives a power cut.
    fn append(&mut self, batch: &[Waiting]) -> Result<u64, AppendError> {
        let claims = batch.iter().map(|waiting| &*waiting.claim);
        self.entries.fill(claims).map_err(|error| AppendError::NothingHappened(error.into()))?;
        let (first_seq, recorded) = (self.next_seq, self.recorded.load(Ordering::Acquire));
        let slots: Vec<i64> = self.entries.iter().map(|_| self.slots.take(recorded)).collect();
        match self.write_entries(&slots) {
            Ok(()) => {}
            Err(AppendError::NothingHappened(error)) => {
                slots.into_iter().for_each(|slot| self.slots.give_back(slot));
                return Err(AppendError::NothingHappened(error));
            }
            Err(unknown) => return Err(unknown),
        }
        for (slot, (_, count)) in slots.into_iter().zip(self.entries.iter()) {
            self.next_seq += u64::try_from(count).unwrap_or(0);
            self.slots.wrote(slot, self.next_seq - 1);
        }
        Ok(first_seq)
    }

    fn write_entries(&mut self, slots: &[i64]) -> Result<(), AppendError> {
        let nothing = |error: rusqlite::Error| AppendError::NothingHappened(error.into());
        let transaction = self.connection.transaction().map_err(nothing)?;
        let mut next_seq = signed(self.next_seq);
        for (slot, (bytes, count)) in slots.iter().zip(self.entries.iter()) {
            let first_seq = next_seq;
            next_seq += i64::try_from(count).unwrap_or(0);
            transaction
                .prepare_cached(
                    "insert or replace into entries (slot, first_seq, last_seq, claims) values (?1, ?2, ?3, ?4)",
                )
                .and_then(|mut write| write.execute(params![slot, first_seq, next_seq - 1, bytes]))
                .map_err(nothing)?;
        }
        crash::point("journal.appending");
        transaction.commit().map_err(|error| match sqlite::classify_commit(&error) {
            CommitFailure::NothingHappened => AppendError::NothingHappened(error.into()),
            CommitFailure::Unknown => AppendError::Unknown(error.into()),
        })
    }

    fn hand_over(&self, batch: &mut Vec<Waiting>, first_seq: u64) {
        crash::point("journal.committed");
        let mut round = Round::default();
        let fetch = |waiting: &Waiting| self.parts.gate.fetch_grant(&waiting.grant);
        batch.iter().take(FETCHED_AHEAD).for_each(fetch);
        for (number, waiting) in batch.iter().enumerate() {
            batch.get(number + FETCHED_AHEAD).into_iter().for_each(fetch);
            self.parts.gate.commit(&waiting.grant);
            round.say(&waiting.answer, Outcome::Committed);
            crash::point("journal.telling");
            if number + 1 == EARLY_ANSWERS {
                round.ring();
            }
        }
        round.ring();
        let journaled = (first_seq..)
            .zip(batch.drain(..))
            .map(|(seq, Waiting { grant, claim, .. })| Journaled { seq, claim, permit: grant.permit });
        let journaled: Vec<Journaled> = journaled.collect();
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
}

/// How long the writer rests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rest {
    /// Whatever others do.
    at_least: Duration,
    /// After that, unless it is quiet.
    beyond: Duration,
}

impl Rest {
    /// After a commit that took so long, with the ledger so many claims behind.
    fn after(took: Duration, claims_behind: u64) -> Self {
        let behind = u32::try_from(claims_behind.saturating_sub(BEHIND_CLAIMS)).unwrap_or(u32::MAX);
        let longer = REST_PER_CLAIM_BEHIND.saturating_mul(behind);
        let until = |every: Duration| every.saturating_sub(took).saturating_add(longer).min(REST_MAX);
        let at_least = until(COMMIT_EVERY_MIN);
        Self { at_least, beyond: until(COMMIT_EVERY_UNDER_LOAD).saturating_sub(at_least) }
    }
}

fn signed(seq: u64) -> i64 {
    i64::try_from(seq).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use rules::buyer::BuyerId;
    use rules::id::{OfferId, OrderId};
    use rules::sale::{SaleState, Window};
    use rules::time::UnixMs;

    use super::*;
    use crate::gate::{Decision, Seed, Try};

    fn at_most(rest: Rest) -> Duration {
        rest.at_least + rest.beyond
    }

    #[test]
    fn the_longer_a_commit_took_the_sooner_the_next_one_begins() {
        let quick = Duration::from_micros(100);
        let rest = Rest::after(quick, 0);
        assert_eq!(rest.at_least, COMMIT_EVERY_MIN - quick);
        assert_eq!(at_most(rest), COMMIT_EVERY_UNDER_LOAD - quick);
        let slower = Rest::after(COMMIT_EVERY_MIN, 0);
        assert_eq!(slower.at_least, Duration::ZERO);
        assert_eq!(at_most(slower), COMMIT_EVERY_UNDER_LOAD - COMMIT_EVERY_MIN);
        for took in [COMMIT_EVERY_UNDER_LOAD, Duration::from_millis(20)] {
            assert_eq!(at_most(Rest::after(took, 0)), Duration::ZERO);
        }
    }

    #[test]
    fn the_further_the_ledger_is_behind_the_longer_the_journal_rests_up_to_a_limit() {
        let took = Duration::from_micros(100);
        let rest = Rest::after(took, 0);
        assert_eq!(Rest::after(took, BEHIND_CLAIMS), rest);
        let behind = Rest::after(took, BEHIND_CLAIMS + 10_000);
        assert_eq!(behind.at_least, rest.at_least + Duration::from_millis(1), "whether or not anybody works");
        assert_eq!(at_most(behind), at_most(rest) + Duration::from_millis(1));
        let slow = Rest::after(Duration::from_millis(20), BEHIND_CLAIMS + 10_000);
        assert_eq!(at_most(slow), Duration::from_millis(1), "however slow the disk");
        assert_eq!(at_most(Rest::after(took, u64::MAX)), REST_MAX);
    }

    /// Longer than any test takes.
    const LONG: Duration = Duration::from_secs(60);

    /// A way into a journal without a writer, in which one claim has gathered.
    fn gathered() -> JournalHandle {
        let handle =
            JournalHandle { inbox: Arc::default(), recorded: Arc::default(), is_writable: Arc::default() };
        let gate = MemoryGate::new(4, (1, 2));
        let window = Window { opens_at: UnixMs(0), closes_at: UnixMs(10) };
        let seed = Seed { offer: OfferId(1), state: SaleState::Published, window, free: 1, change_no: 0 };
        let offer = gate.seed(&seed).unwrap();
        let attempt = Try { buyer: "ann", order: OrderId(1), quantity: 1, pass_expires_at: UnixMs(10) };
        let Decision::Granted(grant) = gate.claim(&offer, &attempt, UnixMs(5)) else { panic!("not granted") };
        let claim = Arc::new(Claim {
            order: OrderId(1),
            offer: OfferId(1),
            buyer: BuyerId::parse("ann").unwrap(),
            quantity: 1,
            claimed_at: UnixMs(5),
            pass_expires_at: UnixMs(10),
            revives: None,
        });
        drop(handle.append(grant, claim).unwrap());
        handle
    }

    fn in_a_minute() -> Instant {
        Clock::system().instant() + LONG
    }

    /// A rest that nobody ends is no slow one but a defect.
    fn rest_less_than_a_minute(inbox: &Inbox) {
        let until = in_a_minute();
        inbox.rest(until);
        assert!(Clock::system().instant() < until, "nobody ended the rest");
    }

    fn rest_beside(handle: &JournalHandle) -> JoinHandle<()> {
        let inbox = Arc::clone(&handle.inbox);
        let resting = std::thread::spawn(move || rest_less_than_a_minute(&inbox));
        while !handle.inbox.bustle.writer_rests.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        resting
    }

    fn still_rests(resting: &JoinHandle<()>) -> bool {
        std::thread::sleep(Duration::from_millis(50));
        !resting.is_finished()
    }

    #[test]
    fn where_nobody_has_anything_to_do_what_has_gathered_does_not_wait() {
        rest_less_than_a_minute(&gathered().inbox);
    }

    #[test]
    fn the_rest_ends_when_fewer_than_half_of_those_who_serve_have_something_to_do() {
        for (threads, too_many) in [(1, 1), (2, 1), (3, 2), (8, 4)] {
            let handle = gathered();
            let serving: Vec<_> = (0..threads).map(|_| handle.join()).collect();
            let resting = rest_beside(&handle);
            (too_many..threads).for_each(|_| handle.work_ends());
            assert!(still_rests(&resting), "{too_many} of {threads} are at work");
            handle.work_ends();
            resting.join().unwrap();
            (too_many - 1..threads).for_each(|_| handle.work_begins());
            drop(serving);
            assert_eq!(handle.inbox.bustle.at_work.load(Ordering::SeqCst), 0);
        }
    }

    #[test]
    fn a_thread_that_ends_is_not_waited_for() {
        let handle = gathered();
        let serving = handle.join();
        let resting = rest_beside(&handle);
        drop(serving);
        resting.join().unwrap();
    }

    #[test]
    fn where_nothing_has_gathered_the_rest_is_as_long_as_it_was_meant() {
        let handle = gathered();
        handle.inbox.gathering.lock().waiting.clear();
        let _serving = handle.join();
        let resting = rest_beside(&handle);
        handle.work_ends();
        assert!(still_rests(&resting));
        handle.stop();
        resting.join().unwrap();
        handle.work_begins();
    }
}
