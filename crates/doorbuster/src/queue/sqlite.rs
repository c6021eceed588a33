//! How this product opens SQLite: which version, which settings, and what an error means.

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

/// Versions before 3.51.3 can corrupt a database in WAL mode (the WAL-reset bug).
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// `PRAGMA synchronous` as it reads back for FULL.
const SYNCHRONOUS_FULL: i64 = 2;

/// Prepared statements that a connection keeps: more than there are.
const STATEMENTS_KEPT: usize = 256;

/// A disk that is not the system's: tests break it.
pub trait Disk: fmt::Debug + Send + Sync {
    /// What SQLite calls it.
    fn vfs(&self) -> &str;

    /// Syncs a file that somebody else has written.
    fn sync(&self, path: &Path) -> std::io::Result<()>;

    /// Pages of a log after which it is copied into its file; `None` for as many as on the system's disk.
    fn copy_pages(&self) -> Option<u32>;

    /// Bytes that are free.
    fn free_bytes(&self) -> u64;
}

/// Bytes that are free where this file lies; `None` where the system does not say.
pub fn free_bytes(path: &Path, disk: Option<&dyn Disk>) -> Option<u64> {
    match disk {
        Some(disk) => Some(disk.free_bytes()),
        None => rustix::fs::statvfs(path).ok().map(|found| found.f_bavail.saturating_mul(found.f_frsize)),
    }
}

/// Opens a file for its one writer (the folder's lock sees to it that there is no second): WAL, `synchronous=FULL`, checked by reading the settings back.
pub fn open_writer(path: &Path, disk: Option<&dyn Disk>) -> anyhow::Result<Connection> {
    check_version(rusqlite::version_number())?;
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE, disk)?;
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    ensure!(mode == "wal", "{} cannot be used in WAL mode (it says {mode})", path.display());
    connection.pragma_update(None, "synchronous", "full")?;
    let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
    ensure!(synchronous == SYNCHRONOUS_FULL, "{} does not accept synchronous=FULL", path.display());
    // SQLite itself would copy a log in the middle of a commit and tell nobody when that fails: see `copying`.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "foreign_keys", "on")?;
    connection.pragma_update(None, "temp_store", "memory")?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    Ok(connection)
}

/// Opens a file for reading beside its writer.
pub fn open_reader(path: &Path, disk: Option<&dyn Disk>) -> anyhow::Result<Connection> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY, disk)?;
    connection.pragma_update(None, "query_only", "on")?;
    copy_log_at_close(&connection, false)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    Ok(connection)
}

/// How long a file's log is, and how much of it is copied into the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogPages {
    pub log: u32,
    pub copied: u32,
}

/// Looks at the log and does nothing.
pub fn log_pages(connection: &Connection) -> rusqlite::Result<LogPages> {
    checkpoint(connection, "pragma wal_checkpoint(noop)")
}

/// Copies the log into its file as far as nobody's reading stands in the way. A log that was copied whole is begun anew
/// by the next commit.
pub fn copy_log(connection: &Connection) -> rusqlite::Result<LogPages> {
    checkpoint(connection, "pragma wal_checkpoint(passive)")
}

/// Whether the connection copies the log when it is closed, if it is the last one. SQLite keeps a log that it could not
/// copy; but a connection does not know what others have found out about the disk.
pub fn copy_log_at_close(connection: &Connection, copies: bool) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, !copies).map(drop)
}

fn checkpoint(connection: &Connection, pragma: &str) -> rusqlite::Result<LogPages> {
    // Both are -1 when another connection is copying at this moment.
    let pages = |pages: i64| u32::try_from(pages).unwrap_or(0);
    connection
        .query_row(pragma, [], |row| Ok(LogPages { log: pages(row.get(1)?), copied: pages(row.get(2)?) }))
}

/// The version of a file's tables; `None` when there is no such file yet.
pub fn file_version(path: &Path) -> anyhow::Result<Option<u32>> {
    if !path.exists() {
        return Ok(None);
    }
    let version = open_reader(path, None)?.pragma_query_value(None, "user_version", |row| row.get(0));
    Ok(Some(version.with_context(|| format!("cannot read {}", path.display()))?))
}

fn open(path: &Path, flags: OpenFlags, disk: Option<&dyn Disk>) -> anyhow::Result<Connection> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = match disk {
        Some(disk) => Connection::open_with_flags_and_vfs(path, flags, disk.vfs()),
        None => Connection::open_with_flags(path, flags),
    };
    opened.with_context(|| format!("cannot open {}", path.display()))
}

fn check_version(version: i32) -> anyhow::Result<()> {
    if version < SQLITE_VERSION_MIN {
        bail!(
            "this build links SQLite {}.{}.{}, which can corrupt a database in WAL mode; \
             3.51.3 or newer is needed",
            version / 1_000_000,
            version / 1_000 % 1_000,
            version % 1_000
        );
    }
    Ok(())
}

/// What a failed commit tells about the transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFailure {
    /// It certainly did not happen.
    NothingHappened,
    /// It may or may not be on disk.
    Unknown,
}

/// A full disk is noticed while the WAL is written, before its commit mark: nothing happened. Any other error of a
/// commit may stand after that mark, the sync itself above all.
pub fn classify_commit(error: &rusqlite::Error) -> CommitFailure {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            CommitFailure::NothingHappened
        }
        _ => CommitFailure::Unknown,
    }
}

/// Whether a copy of a log that failed may simply be made again.
///
/// SQLite counts pages as copied only after all of them were written (and, with the log's last page, synced), and begins a
/// log anew only when all its pages count as copied. So when a page finds no space in the file, or somebody else is
/// copying, the log still holds everything that does not count, and the next copy writes it again. Any other error may be
/// that of a sync, after which the kernel may hold pages for clean that never reached the disk, also such as were copied
/// and counted before: no further copy would write those again.
pub fn can_copy_again(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_sqlite_with_the_wal_reset_bug_is_refused() {
        let refusal = check_version(3_051_002).unwrap_err().to_string();
        assert!(refusal.contains("3.51.2") && refusal.contains("3.51.3"), "{refusal}");
        assert!(check_version(3_051_003).is_ok());
        assert!(check_version(rusqlite::version_number()).is_ok());
    }

    #[test]
    fn a_writer_syncs_fully() {
        let folder = tempfile::tempdir().unwrap();
        let connection = open_writer(&folder.path().join("a.db"), None).unwrap();
        let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0)).unwrap();
        assert_eq!(synchronous, SYNCHRONOUS_FULL);
    }
}
