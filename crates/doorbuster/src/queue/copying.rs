//! Copies the log of an SQLite file back into the file beside its writer: whoever waits for a commit does not wait for
//! that.
//!
//! First the bulk is copied and synced here, while the writer goes on. Then the writer copies the few pages that came
//! meanwhile, between two commits, and its next commit begins the log anew. Knows nothing of what the pages hold.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::Context as _;
use crossbeam_channel::{Receiver, Sender};
use rusqlite::Connection;

use super::sqlite::{self, LogPages};

/// How often the length of the log is looked at.
const COMMITS_PER_LOOK: u32 = 16;

/// At so many times the length at which the log is copied, the writer no longer waits for help.
const ALONE_TIMES: u32 = 8;

/// How far threads stand back that nobody waits for.
const NICE: i32 = 5;

/// A writer's log. To be dropped after the writer's connection: with it the copyist closes its own handle of the file, and
/// with that the process gives up all locks on it.
#[derive(Debug)]
pub struct Log {
    /// Gone before the thread is waited for.
    looks: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    is_nearly_copied: Arc<AtomicBool>,
    commits: u32,
}

/// The thread that copies.
#[derive(Debug)]
struct Copyist {
    connection: Connection,
    /// For syncing; none on a disk that is not the system's. Closed last: a process that closes a file gives up all its
    /// locks on it, those of SQLite too.
    file: Option<File>,
    copy_pages: u32,
    looks: Receiver<()>,
    is_nearly_copied: Arc<AtomicBool>,
}

impl Log {
    /// Takes over the log of the file at `path`, whose writer this is: it is copied back whenever it has grown to
    /// `copy_pages`.
    pub fn of(writer: &Connection, path: &Path, vfs: Option<&str>, copy_pages: u32) -> anyhow::Result<Self> {
        writer.pragma_update(None, "wal_autocheckpoint", copy_pages.saturating_mul(ALONE_TIMES))?;
        let (looks, to_look) = crossbeam_channel::bounded(1);
        let is_nearly_copied = Arc::new(AtomicBool::new(false));
        let copyist = Copyist {
            connection: sqlite::open_writer(path, vfs)?,
            file: if vfs.is_none() { Some(File::open(path)?) } else { None },
            copy_pages,
            looks: to_look,
            is_nearly_copied: Arc::clone(&is_nearly_copied),
        };
        let thread = std::thread::Builder::new().name("copyist".into()).spawn(move || copyist.run());
        let thread = Some(thread.context("cannot start a thread")?);
        Ok(Self { looks: Some(looks), thread, is_nearly_copied, commits: 0 })
    }

    /// To be called by the writer between two commits.
    pub fn after_commit(&mut self, writer: &Connection) {
        if self.is_nearly_copied.swap(false, Ordering::AcqRel)
            && let Err(error) = sqlite::copy_log(writer)
        {
            // Nothing is lost: the log holds it all, and is tried again.
            tracing::warn!(%error, "the end of a log could not be copied");
        }
        self.commits = self.commits.wrapping_add(1);
        if self.commits.is_multiple_of(COMMITS_PER_LOOK) {
            // If one is waiting already, that one is enough.
            let _ = self.looks.as_ref().map(|looks| looks.try_send(()));
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.looks = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Copyist {
    /// Works until the writer is gone.
    fn run(self) {
        stand_back();
        for () in &self.looks {
            if self.is_nearly_copied.load(Ordering::Acquire) {
                // The writer has not come to its part yet.
                continue;
            }
            match self.copy_bulk() {
                Ok(copied) => self.is_nearly_copied.store(copied, Ordering::Release),
                Err(error) => tracing::warn!(%error, "a log could not be copied; trying again"),
            }
        }
    }

    fn copy_bulk(&self) -> anyhow::Result<bool> {
        let LogPages { log, copied } = sqlite::log_pages(&self.connection)?;
        if log < self.copy_pages || copied == log {
            return Ok(false);
        }
        sqlite::copy_log(&self.connection)?;
        // SQLite syncs the file only with the log's last page; the bulk must not be left for the writer to wait for.
        self.file.as_ref().map_or(Ok(()), File::sync_data)?;
        Ok(true)
    }
}

/// Lets all other threads go first when cores are short. A system that does not allow it loses nothing but politeness.
pub fn stand_back() {
    let _ = rustix::process::nice(NICE);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_copied_beside_its_writer_and_begun_anew() {
        const PAGES: u32 = 32;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let writer = sqlite::open_writer(&path, None).unwrap();
        writer.execute_batch("create table rows (bytes blob)").unwrap();
        let mut log = Log::of(&writer, &path, None, PAGES).unwrap();
        // Now nobody but the copyist copies.
        writer.pragma_update(None, "wal_autocheckpoint", 0).unwrap();
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
}
