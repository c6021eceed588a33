//! Copies the log of an SQLite file back into the file beside its writer: whoever waits for a commit does not wait for
//! that.
//!
//! First the bulk is copied and synced here, step by step, while the writer goes on; readers that stand still in the log,
//! the halts, divide it. Then the writer copies the few pages that came meanwhile, between two commits, and its next commit
//! begins the log anew. When a sync of the file fails, nobody knows which pages are on the disk: nothing is copied any
//! more, not even when the file is closed, and the process ends. The log still holds everything then, and the next start
//! copies all of it. Knows nothing of what the pages hold.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use parking_lot::Mutex;
use rusqlite::Connection;

use super::sqlite::{self, Disk, LogPages};
use crate::failure::Reports;

/// How long the copyist rests between two steps: a long copy keeps a core, and whoever had to wait for one meanwhile comes
/// first.
const STEP_REST: Duration = Duration::from_millis(50);

/// SQLite remembers the places of four readers in a log; others share these. So a log that is longer than four steps has a
/// longer one at its end.
const STEPS_MAX: u32 = 4;

/// At so many times the length at which the log is copied, a writer at whose log nobody looks no longer waits for help, and
/// copies up to the first halt that the copyist holds.
const ALONE_TIMES: u32 = 8;

/// While somebody's reading is in the way of a copy, the next one is made so many pages later, or a quarter of a whole log if
/// that is more.
const NEXT_PAGES: u32 = 256;

/// For so long after a sync the copyist writes until the next one: about a megabyte.
const SYNC_EVERY: Duration = Duration::from_millis(2);

/// How far threads stand back that nobody waits for.
const NICE: i32 = 5;

/// When a log is copied.
#[derive(Clone, Copy, Debug)]
pub struct Rhythm {
    /// At this length, in pages: of pages that were written several times by then, only the last version is copied.
    pub copy_pages: u32,
    /// About so much of it at a time.
    pub step_pages: u32,
    /// How often its length is looked at.
    pub commits_per_look: u32,
}

/// A writer's log. To be dropped after the writer's connection: with it the copyist closes its own handle of the file, and
/// with that the process gives up all locks on it.
#[derive(Debug)]
pub struct Log {
    /// Gone before the thread is waited for.
    looks: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    copying: Arc<Copying>,
    commits: u32,
    commits_per_look: u32,
    /// Pages of the log at which the writer copies it by itself.
    alone_pages: u32,
}

/// What writer and copyist know of each other.
#[derive(Debug)]
struct Copying {
    path: PathBuf,
    is_nearly_copied: AtomicBool,
    /// False once a copy failed after which nobody knows what is on the disk. Whoever copies holds it, so that nobody
    /// ends a copy while another finds that out.
    is_trusted: Mutex<bool>,
    reports: Reports,
}

/// The thread that copies.
#[derive(Debug)]
struct Copyist {
    /// Closed before the connection, which copies what is left if it is the last one.
    halts: Halts,
    connection: Connection,
    /// Closed last: a process that closes a file gives up all its locks on it, those of SQLite too.
    file: Synced,
    copy_pages: u32,
    /// Pages of the log from which a copy is made: `copy_pages`, or more while somebody's reading is in the way of one.
    due_at: u32,
}

/// Places in the log at which a copy stops until it is told to go on; while one is held the log is not begun anew. They
/// are taken while the log grows, so a copy up to one of them leaves out pages that were written again behind it: all
/// steps together copy each page once, but for those that are written meanwhile.
#[derive(Debug)]
struct Halts {
    /// Each is a reading that began when the log was that long. The oldest first.
    held: VecDeque<Connection>,
    free: Vec<Connection>,
    step_pages: u32,
}

/// The file, for syncing.
#[derive(Debug)]
enum Synced {
    File(File),
    On(Arc<dyn Disk>, PathBuf),
}

/// Why a copy failed.
#[derive(Debug)]
enum CopyError {
    /// The log holds it all, and is tried again.
    Again(rusqlite::Error),
    /// What was copied before may be lost.
    Lost(anyhow::Error),
}

impl From<rusqlite::Error> for CopyError {
    fn from(error: rusqlite::Error) -> Self {
        if sqlite::can_copy_again(&error) { Self::Again(error) } else { Self::Lost(error.into()) }
    }
}

impl Log {
    /// Takes over the log of the file at `path`, whose writer this is: it is copied back in this rhythm, or whenever it has
    /// as many pages as the disk says. A sync that fails meanwhile is reported.
    pub fn of(
        writer: &Connection,
        path: &Path,
        disk: Option<&Arc<dyn Disk>>,
        rhythm: Rhythm,
        reports: Reports,
    ) -> anyhow::Result<Self> {
        let Rhythm { step_pages, commits_per_look, .. } = rhythm;
        let copy_pages = disk.and_then(|disk| disk.copy_pages()).unwrap_or(rhythm.copy_pages);
        let connection = sqlite::open_writer(path, disk.map(|disk| &**disk))?;
        for held in [writer, &connection] {
            sqlite::copy_log_at_close(held, false)?;
        }
        let (looks, to_look) = crossbeam_channel::bounded(1);
        let copying = Arc::new(Copying {
            path: path.to_owned(),
            is_nearly_copied: AtomicBool::new(false),
            is_trusted: Mutex::new(true),
            reports,
        });
        let copyist = Copyist {
            halts: Halts::of(path, disk, copy_pages, step_pages)?,
            connection,
            file: match disk {
                Some(disk) => Synced::On(Arc::clone(disk), path.to_owned()),
                None => Synced::File(File::open(path)?),
            },
            copy_pages,
            due_at: copy_pages,
        };
        let shared = Arc::clone(&copying);
        let run = move || copyist.run(&to_look, &shared);
        let thread = std::thread::Builder::new().name("copyist".into()).spawn(run);
        let thread = Some(thread.context("cannot start a thread")?);
        let alone_pages = copy_pages.saturating_mul(ALONE_TIMES);
        Ok(Self { looks: Some(looks), thread, copying, commits: 0, commits_per_look, alone_pages })
    }

    /// To be called by the writer between two commits.
    pub fn after_commit(&mut self, writer: &Connection) {
        if self.copying.is_nearly_copied.swap(false, Ordering::AcqRel) {
            self.copying.copy(|| copy_rest(writer, 0));
        }
        self.commits = self.commits.wrapping_add(1);
        if self.commits.is_multiple_of(self.commits_per_look) {
            // If one is waiting already, that one is enough; where the copyist does not even come to look, nobody else is
            // left to copy a log that has become very long.
            let is_looked_at = self.looks.as_ref().is_some_and(|looks| looks.try_send(()).is_ok());
            if !is_looked_at {
                self.copying.copy(|| copy_rest(writer, self.alone_pages));
            }
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.looks = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Copies a log that has so many pages at least.
fn copy_rest(writer: &Connection, pages_min: u32) -> Result<bool, CopyError> {
    let LogPages { log, copied } = sqlite::log_pages(writer)?;
    if log >= pages_min && copied < log {
        sqlite::copy_log(writer)?;
    }
    Ok(false)
}

impl Copying {
    /// Makes a copy, unless somebody else is at it or none may be made any more. Answers what the copy answered.
    fn copy(&self, copy: impl FnOnce() -> Result<bool, CopyError>) -> bool {
        let Some(mut is_trusted) = self.is_trusted.try_lock() else { return false };
        if !*is_trusted {
            return false;
        }
        match copy() {
            Ok(answer) => return answer,
            Err(CopyError::Again(error)) => {
                tracing::warn!(%error, file = %self.path.display(), "a log could not be copied; trying again");
            }
            Err(CopyError::Lost(error)) => {
                *is_trusted = false;
                let file = self.path.display();
                self.reports.send(error.context(format!(
                    "{file} can no longer be trusted: its log could not be copied into it"
                )));
            }
        }
        false
    }
}

impl Copyist {
    /// Works until the writer is gone, and then lets the log be copied with the closing of the file.
    fn run(mut self, looks: &Receiver<()>, copying: &Copying) {
        stand_back();
        for () in looks {
            if copying.is_nearly_copied.load(Ordering::Acquire) {
                // The writer has not come to its part yet.
                continue;
            }
            if copying.copy(|| self.copy_bulk()) {
                copying.is_nearly_copied.store(true, Ordering::Release);
            }
        }
        copying.copy(|| Ok(sqlite::copy_log_at_close(&self.connection, true).is_ok()));
    }

    fn copy_bulk(&mut self) -> Result<bool, CopyError> {
        let LogPages { log, copied } = sqlite::log_pages(&self.connection)?;
        if copied == log {
            return Ok(false);
        }
        if log < self.copy_pages {
            self.due_at = self.copy_pages;
            self.halts.grew_to(log);
        }
        if log < self.due_at {
            return Ok(false);
        }
        // One at the end. SQLite begins a log anew that it has copied and synced, and knows nothing of a sync of ours that
        // failed: what was lost with it must still be in the log. A halt that is not reached is held for ever.
        if !self.halts.take() {
            // SQLite syncs what the writer copies alone.
            return Ok(log >= self.copy_pages.saturating_mul(ALONE_TIMES));
        }
        loop {
            self.copy_step()?;
            self.halts.let_go();
            if self.halts.held.is_empty() {
                return self.is_left_to_the_writer(log);
            }
            std::thread::sleep(STEP_REST);
        }
    }

    /// Whether the writer copies what came since a copy began at this length, while others wait for it: so a log grows no
    /// faster than it is copied. Where somebody's reading kept the copy from coming that far, the next copy will do it.
    fn is_left_to_the_writer(&mut self, began_at: u32) -> Result<bool, CopyError> {
        let LogPages { log, copied } = sqlite::log_pages(&self.connection)?;
        let is_in_the_way = copied < began_at;
        if is_in_the_way {
            self.due_at = log.saturating_add(NEXT_PAGES.max(self.copy_pages / 4));
        }
        Ok(!is_in_the_way)
    }

    /// Copies up to the next halt.
    fn copy_step(&self) -> Result<(), CopyError> {
        let lost = |error: std::io::Error| CopyError::Lost(error.into());
        let (copy, synced) = self.file.sync_during(|| sqlite::copy_log(&self.connection));
        // The graver one first: a copy that found no space may be made again, pages that a sync has lost may not.
        synced.map_err(lost)?;
        copy?;
        // SQLite syncs the file only with the log's last page, and counts the bulk as copied before: it must neither be
        // left for the writer to wait for, nor to a later sync, whose failure would say nothing of these pages.
        self.file.sync().map_err(lost)
    }
}

impl Halts {
    /// As many as divide a log of this length into such steps, that at its end included.
    fn of(
        path: &Path,
        disk: Option<&Arc<dyn Disk>>,
        copy_pages: u32,
        step_pages: u32,
    ) -> anyhow::Result<Self> {
        let steps = copy_pages.checked_div(step_pages).unwrap_or(1).clamp(1, STEPS_MAX);
        let reader = |_| sqlite::open_reader(path, disk.map(|disk| &**disk));
        let free = (0..steps).map(reader).collect::<anyhow::Result<_>>()?;
        Ok(Self { held: VecDeque::new(), free, step_pages })
    }

    /// Takes the next halt when the log is long enough for it. The last one is for its end.
    fn grew_to(&mut self, log: u32) {
        let next = u32::try_from(self.held.len()).unwrap_or(u32::MAX).saturating_add(1);
        if self.free.len() > 1 && log >= next.saturating_mul(self.step_pages) {
            self.take();
        }
    }

    /// Takes a halt where the log ends now. Without one, `false`, nothing may be copied.
    fn take(&mut self) -> bool {
        // After a copy that failed all of them may be held still.
        let Some(reader) = self.free.pop() else { return !self.held.is_empty() };
        // The place is remembered from the first read on.
        let begun = reader
            .execute_batch("begin")
            .and_then(|()| reader.pragma_query_value(None, "schema_version", |_| Ok(())));
        if let Err(error) = begun {
            tracing::warn!(%error, "a log could not be read; trying again");
            // Fails only where nothing was begun.
            let _ = reader.execute_batch("rollback");
            self.free.push(reader);
            return false;
        }
        self.held.push_back(reader);
        true
    }

    /// Lets a copy go on to the halt after this one, or to the end, and the log be begun anew after the last.
    fn let_go(&mut self) {
        let Some(reader) = self.held.pop_front() else { return };
        if let Err(error) = reader.execute_batch("commit") {
            tracing::warn!(%error, "a log was not let go of");
        }
        self.free.push(reader);
    }
}

impl Synced {
    /// Copies, and meanwhile syncs again and again what is copied so far: one sync of it all would keep the disk from
    /// everybody else's for tens of milliseconds, and buyers wait for the journal's. A disk of the tests, which counts
    /// its syncs, gets none of these.
    fn sync_during<T>(&self, copy: impl FnOnce() -> T) -> (T, std::io::Result<()>) {
        match self {
            Self::File(file) => sync_during(|| file.sync_data(), copy),
            Self::On(..) => (copy(), Ok(())),
        }
    }

    fn sync(&self) -> std::io::Result<()> {
        match self {
            Self::File(file) => file.sync_data(),
            Self::On(disk, path) => disk.sync(path),
        }
    }
}

/// Calls `sync` again and again, [`SYNC_EVERY`] after it has ended, until `copy` has ended or a sync fails.
fn sync_during<T>(
    sync: impl Fn() -> std::io::Result<()> + Send,
    copy: impl FnOnce() -> T,
) -> (T, std::io::Result<()>) {
    let (under_way, is_over) = crossbeam_channel::bounded::<()>(0);
    std::thread::scope(|scope| {
        let sync_until_over = move || {
            while is_over.recv_timeout(SYNC_EVERY) == Err(RecvTimeoutError::Timeout) {
                sync()?;
            }
            Ok(())
        };
        let syncing =
            std::thread::Builder::new().name("copyist-sync".into()).spawn_scoped(scope, sync_until_over);
        let copied = copy();
        drop(under_way);
        // Without a thread there is only the last sync, and others wait longer for theirs.
        let synced = syncing.map_or(Ok(()), |thread| {
            thread.join().unwrap_or_else(|_| Err(std::io::Error::other("the thread that syncs died")))
        });
        (copied, synced)
    })
}

/// Lets all other threads go first when cores are short. A system that does not allow it loses nothing but politeness.
pub fn stand_back() {
    let _ = rustix::process::nice(NICE);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::failure::Failure;

    /// Copied at this length, all at once.
    fn at_once(copy_pages: u32) -> Rhythm {
        Rhythm { copy_pages, step_pages: copy_pages, commits_per_look: 16 }
    }

    #[test]
    fn a_log_is_copied_beside_its_writer_and_begun_anew() {
        copied_and_begun_anew(at_once(PAGES));
    }

    #[test]
    fn a_log_that_is_copied_in_steps_is_begun_anew_too() {
        copied_and_begun_anew(Rhythm { step_pages: PAGES / 4, commits_per_look: 1, ..at_once(PAGES) });
    }

    const PAGES: u32 = 32;

    fn copied_and_begun_anew(rhythm: Rhythm) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let writer = sqlite::open_writer(&path, None).unwrap();
        writer.execute_batch("create table rows (bytes blob)").unwrap();
        let mut log = Log::of(&writer, &path, None, rhythm, Reports::default()).unwrap();
        // Now nobody but the copyist copies.
        log.alone_pages = u32::MAX;
        let (mut rows, mut begun_anew) = (0, 0);
        while begun_anew < 3 {
            let before = sqlite::log_pages(&writer).unwrap().log;
            rows += writer.execute("insert into rows values (randomblob(5000))", []).unwrap();
            log.after_commit(&writer);
            let after = sqlite::log_pages(&writer).unwrap().log;
            assert!(before >= PAGES || after > before, "begun anew before it was long: {before}");
            begun_anew += u32::from(after < before);
        }
        let count = |connection: &Connection| -> usize {
            let count: u32 = connection.query_row("select count(*) from rows", [], |row| row.get(0)).unwrap();
            usize::try_from(count).unwrap()
        };
        assert_eq!(count(&writer), rows);
        drop(writer);
        drop(log);
        assert!(!path.with_extension("db-wal").exists(), "the last one to close empties the log");
        assert_eq!(count(&Connection::open(&path).unwrap()), rows);
    }

    #[test]
    fn a_long_log_is_copied_in_steps_and_each_page_once() {
        const STEP: u32 = 64;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let [writer, copyist] = [(); 2].map(|()| sqlite::open_writer(&path, None).unwrap());
        writer
            .execute_batch("create table rows (bytes blob); create table count as select 0 as rows")
            .unwrap();
        sqlite::copy_log(&writer).unwrap();
        let rows_in_file = || -> u32 {
            let alone = folder.path().join("without-its-log.db");
            std::fs::copy(&path, &alone).unwrap();
            let alone = Connection::open(&alone).unwrap();
            alone.query_row("select rows from count", [], |row| row.get(0)).unwrap()
        };
        let mut halts = Halts::of(&path, None, 4 * STEP, STEP).unwrap();
        let mut rows = 0;
        while sqlite::log_pages(&writer).unwrap().log < 4 * STEP {
            writer.execute("insert into rows values (randomblob(5000))", []).unwrap();
            rows += writer.execute("update count set rows = rows + 1", []).unwrap();
            halts.grew_to(sqlite::log_pages(&writer).unwrap().log);
        }
        assert!(halts.take());
        let mut steps = vec![0];
        while !halts.held.is_empty() {
            assert_eq!(rows_in_file(), 0, "the page that every commit writes is left to the last step");
            let LogPages { log, copied } = sqlite::copy_log(&copyist).unwrap();
            let last = steps.last().copied().unwrap_or_default();
            assert!(copied.abs_diff(last + STEP) <= STEP / 8, "{steps:?}, {copied} of {log}");
            steps.push(copied);
            halts.let_go();
        }
        assert_eq!(steps.len(), 5, "{steps:?}");
        assert_eq!(steps.last(), Some(&sqlite::log_pages(&writer).unwrap().log));
        assert_eq!(usize::try_from(rows_in_file()).unwrap(), rows);
    }

    #[test]
    fn only_somebodys_reading_keeps_the_writer_from_copying_what_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let [writer, connection, reader] = [(); 3].map(|()| sqlite::open_writer(&path, None).unwrap());
        writer.execute_batch("create table rows (bytes blob)").unwrap();
        let mut copyist = Copyist {
            halts: Halts::of(&path, None, PAGES, PAGES).unwrap(),
            connection,
            file: Synced::File(File::open(&path).unwrap()),
            copy_pages: PAGES,
            due_at: PAGES,
        };
        let pages = || sqlite::log_pages(&writer).unwrap();
        let grow = |to: u32| {
            while pages().log < to {
                writer.execute("insert into rows values (randomblob(5000))", []).unwrap();
            }
        };
        grow(PAGES / 2);
        assert!(!copyist.copy_bulk().unwrap(), "not yet");
        reader.execute_batch("begin; select count(*) from rows").unwrap();
        grow(PAGES);
        assert!(!copyist.copy_bulk().unwrap(), "a reading is in the way");
        let (due_at, copied) = (copyist.due_at, pages().copied);
        assert!(due_at >= PAGES + NEXT_PAGES && (1..PAGES).contains(&copied), "{due_at}, {copied}");
        reader.execute_batch("commit").unwrap();
        assert!(!copyist.copy_bulk().unwrap(), "not before it is due again");
        assert_eq!(pages().copied, copied);
        grow(due_at);
        assert!(copyist.copy_bulk().unwrap());
        writer.execute("delete from rows", []).unwrap();
        // So that the log is not begun anew.
        reader.execute_batch("begin; select count(*) from rows").unwrap();
        let began_at = sqlite::copy_log(&writer).unwrap().copied;
        grow(10 * due_at);
        assert!(copyist.is_left_to_the_writer(began_at).unwrap(), "however much came meanwhile");
    }

    /// The system's, but that what others have written never reaches it.
    #[derive(Debug)]
    struct Forgetful;

    impl Disk for Forgetful {
        fn vfs(&self) -> &str {
            "unix"
        }

        fn sync(&self, _: &Path) -> std::io::Result<()> {
            Err(std::io::Error::other("as the test wants"))
        }

        fn copy_pages(&self) -> Option<u32> {
            None
        }

        fn free_bytes(&self) -> u64 {
            u64::MAX
        }
    }

    #[test]
    fn a_log_whose_copy_was_not_synced_is_not_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let writer = sqlite::open_writer(&path, None).unwrap();
        writer.execute_batch("create table rows (bytes blob)").unwrap();
        let disk: Arc<dyn Disk> = Arc::new(Forgetful);
        let rhythm = Rhythm { commits_per_look: 1, ..at_once(PAGES) };
        let (failure, reported) = Failure::new();
        let reports = Reports::default();
        reports.go_to(failure);
        let mut log = Log::of(&writer, &path, Some(&disk), rhythm, reports).unwrap();
        let pages = || sqlite::log_pages(&writer).unwrap();
        let commit = || {
            writer.execute("insert into rows values (randomblob(5000))", []).unwrap();
            pages().log
        };
        while commit() < PAGES {}
        log.after_commit(&writer);
        // Not by looking at what the copyist holds while it copies: it would find that taken, and not come again.
        let error = reported.blocking_recv().unwrap();
        assert!(error.to_string().contains("can no longer be trusted"), "{error}");
        let LogPages { log: before, copied } = pages();
        assert_eq!(copied, before, "SQLite takes it for copied");
        assert!(commit() > before, "and would have begun it anew");
    }

    #[test]
    fn what_is_copied_is_synced_before_the_copy_ends() {
        let synced_times = AtomicU32::new(0);
        let copy = || wait_until(|| synced_times.load(Ordering::Acquire) >= 3);
        let ((), synced) = sync_during(
            || {
                synced_times.fetch_add(1, Ordering::AcqRel);
                Ok(())
            },
            copy,
        );
        assert!(synced.is_ok());
    }

    #[test]
    fn a_sync_that_fails_in_the_middle_of_a_copy_is_not_forgotten() {
        let is_tried = AtomicBool::new(false);
        let sync = || {
            let again = is_tried.swap(true, Ordering::AcqRel);
            if again { Ok(()) } else { Err(std::io::Error::other("as the test wants")) }
        };
        let (copied, synced) = sync_during(sync, || {
            wait_until(|| is_tried.load(Ordering::Acquire));
            "copied"
        });
        assert_eq!(copied, "copied");
        assert_eq!(synced.unwrap_err().to_string(), "as the test wants");
    }

    fn wait_until(is_so: impl Fn() -> bool) {
        while !is_so() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_writer_that_gets_no_help_copies_its_log_by_itself() {
        const PAGES: u32 = 4;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let writer = sqlite::open_writer(&path, None).unwrap();
        writer.execute_batch("create table rows (bytes blob)").unwrap();
        let mut log = Log::of(&writer, &path, None, at_once(PAGES), Reports::default()).unwrap();
        log.looks = None;
        let mut begun_anew = 0;
        while begun_anew < 2 {
            let before = sqlite::log_pages(&writer).unwrap().log;
            writer.execute("insert into rows values (randomblob(5000))", []).unwrap();
            log.after_commit(&writer);
            let after = sqlite::log_pages(&writer).unwrap().log;
            assert!(before >= PAGES * ALONE_TIMES || after > before, "begun anew too early: {before}");
            begun_anew += u32::from(after < before);
        }
    }
}
