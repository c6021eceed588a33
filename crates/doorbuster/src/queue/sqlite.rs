//! How this product opens SQLite: which version, which settings, and what an error means.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use rusqlite::{Connection, ErrorCode, OpenFlags};

/// Versions before 3.51.3 can corrupt a database in WAL mode (the WAL-reset bug).
const SQLITE_VERSION_MIN: i32 = 3_051_003;

/// `PRAGMA synchronous` as it reads back for FULL.
const SYNCHRONOUS_FULL: i64 = 2;

/// Prepared statements that a connection keeps: more than there are.
const STATEMENTS_KEPT: usize = 256;

/// Opens a file for its one writer (the folder's lock sees to it that there is no second): WAL, `synchronous=FULL`, checked by reading the settings back.
pub fn open_writer(path: &Path, vfs: Option<&str>) -> anyhow::Result<Connection> {
    check_version(rusqlite::version_number())?;
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE, vfs)?;
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    ensure!(mode == "wal", "{} cannot be used in WAL mode (it says {mode})", path.display());
    connection.pragma_update(None, "synchronous", "full")?;
    let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
    ensure!(synchronous == SYNCHRONOUS_FULL, "{} does not accept synchronous=FULL", path.display());
    connection.pragma_update(None, "foreign_keys", "on")?;
    connection.pragma_update(None, "temp_store", "memory")?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_KEPT);
    Ok(connection)
}

/// Opens a file for reading beside its writer.
pub fn open_reader(path: &Path, vfs: Option<&str>) -> anyhow::Result<Connection> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_ONLY, vfs)?;
    connection.pragma_update(None, "query_only", "on")?;
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

fn open(path: &Path, flags: OpenFlags, vfs: Option<&str>) -> anyhow::Result<Connection> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = match vfs {
        Some(vfs) => Connection::open_with_flags_and_vfs(path, flags, vfs),
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
