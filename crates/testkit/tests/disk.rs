//! Proves that the faulty disk is a correct one for SQLite, and that it bites: every n-th operation of a fixed workload
//! is made to fail in every way, and weaker settings than FULL are caught losing commits.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::as_conversions,
    reason = "the helpers of a test fail as the test does: at the first surprise"
)]

use std::collections::BTreeSet;

use rusqlite::{Connection, ErrorCode, OpenFlags};
use testkit::disk::{Disk, Fault, Kind, OperationKind, PowerCut};

const FILE: &str = "shop.db";
const COMMITS: i64 = 40;

/// Rows at and above this number are written and then rolled back.
const ROLLED_BACK: i64 = 1_000;

#[derive(Debug, Clone, Copy)]
struct Setting {
    journal_mode: &'static str,
    synchronous: &'static str,
    powersafe: bool,
    /// Uncommitted pages go to the disk before the commit, as they do when the cache is too small for a transaction.
    spill: bool,
}

const WAL_FULL: Setting =
    Setting { journal_mode: "wal", synchronous: "full", powersafe: false, spill: false };

/// What the connection was told about each row.
#[derive(Debug, Default)]
struct History {
    committed: BTreeSet<i64>,
    /// COMMIT was asked for and answered with an error: the row may be there or not.
    unsure: BTreeSet<i64>,
    errors: Vec<String>,
}

fn open(disk: &Disk) -> Connection {
    try_open(disk).expect("a disk without faults opens")
}

fn try_open(disk: &Disk) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    Connection::open_with_flags_and_vfs(FILE, flags, disk.vfs_name())
}

fn configure(connection: &Connection, setting: Setting) -> rusqlite::Result<()> {
    let Setting { journal_mode, synchronous, spill, .. } = setting;
    connection.execute_batch(&format!("pragma page_size = 1024; pragma synchronous = {synchronous}"))?;
    let mode: String =
        connection.query_row(&format!("pragma journal_mode = {journal_mode}"), [], |row| row.get(0))?;
    assert_eq!(mode, journal_mode);
    // Without spilling by chance: the bundled SQLite shares its cache among all connections of the process, and the
    // n-th operation must be the same in every run.
    let spill = if spill { "on" } else { "off" };
    connection.execute_batch(&format!("pragma wal_autocheckpoint = 12; pragma cache_spill = {spill}"))
}

fn new_disk(setting: Setting) -> Disk {
    if setting.powersafe { Disk::powersafe() } else { Disk::new() }
}

/// Forty commits, some of several pages, some followed by a rollback, with checkpoints in between and one more
/// connection's life in the middle. Goes on after an error as a program would, unless the power is gone.
fn workload(disk: &Disk, setting: Setting) -> History {
    let mut history = History::default();
    for half in [1..=COMMITS / 2, COMMITS / 2 + 1..=COMMITS] {
        match start(disk, setting) {
            Ok(connection) => half.for_each(|row| step(&connection, row, &mut history)),
            Err(error) => history.errors.push(error.to_string()),
        }
    }
    history
}

fn start(disk: &Disk, setting: Setting) -> rusqlite::Result<Connection> {
    let connection = try_open(disk)?;
    configure(&connection, setting)?;
    connection.execute_batch("create table if not exists orders (id integer primary key, note blob)")?;
    Ok(connection)
}

fn step(connection: &Connection, row: i64, history: &mut History) {
    if let Err(error) = insert(connection, row) {
        history.errors.push(error.to_string());
    } else {
        match connection.execute_batch("commit") {
            Ok(()) => drop(history.committed.insert(row)),
            Err(error) => {
                history.errors.push(error.to_string());
                history.unsure.insert(row);
            }
        }
    }
    roll_back(connection);
    if row % 5 == 0 {
        let _refused_is_fine = insert(connection, ROLLED_BACK + row);
        roll_back(connection);
    }
}

fn insert(connection: &Connection, row: i64) -> rusqlite::Result<()> {
    let note = vec![u8::try_from(row % 251).unwrap(); if row % 7 == 0 { 6_000 } else { 300 }];
    connection.execute_batch("begin immediate")?;
    connection.execute("insert into orders values (?, ?)", (row, note))?;
    // Has no effect with `cache_spill = off`.
    connection.cache_flush()
}

fn roll_back(connection: &Connection) {
    if !connection.is_autocommit() {
        let _the_error_was_recorded = connection.execute_batch("rollback");
    }
}

/// `Err` says what is wrong with the surviving database.
fn judge(disk: &Disk, history: &History) -> Result<(), String> {
    let connection = try_open(disk).map_err(|error| format!("open: {error}"))?;
    let ids = rows(&connection).map_err(|error| format!("read: {error}"))?;
    let healthy: String = connection
        .query_row("pragma integrity_check", [], |row| row.get(0))
        .map_err(|error| format!("integrity_check: {error}"))?;
    if healthy != "ok" {
        return Err(healthy);
    }
    if let Some(lost) = history.committed.difference(&ids).next() {
        return Err(format!("commit {lost} was lost"));
    }
    let allowed: BTreeSet<_> = history.committed.union(&history.unsure).copied().collect();
    match ids.difference(&allowed).next() {
        Some(phantom) => Err(format!("row {phantom} was never committed")),
        None => Ok(()),
    }
}

fn rows(connection: &Connection) -> rusqlite::Result<BTreeSet<i64>> {
    let tables: i64 = connection.query_row("select count(*) from sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        return Ok(BTreeSet::new());
    }
    connection.prepare("select id from orders")?.query_map([], |row| row.get(0))?.collect()
}

/// Runs the workload once for every operation it has, with the fault there; answers the runs' verdicts.
fn at_every_operation(setting: Setting, kind: impl Fn(u64) -> Kind) -> Vec<Result<(), String>> {
    at_every(setting, |n| Fault::at(n, kind(n)))
}

/// A full disk refuses writes alone, so it is planned by counting those.
fn at_every_write(setting: Setting, kind: Kind) -> Vec<Result<(), String>> {
    at_every(setting, |n| Fault::at(n, kind).on(OperationKind::Write))
}

/// Ends with the first fault that did not happen, since the workload had no such operation any more.
fn at_every(setting: Setting, fault: impl Fn(u64) -> Fault) -> Vec<Result<(), String>> {
    let dry = new_disk(setting);
    let history = workload(&dry, setting);
    assert_eq!(history.committed.len(), usize::try_from(COMMITS).unwrap(), "{:?}", history.errors);

    let verdicts: Vec<_> = (1..).map_while(|n| run(setting, fault(n))).collect();
    let runs = verdicts.len() as u64;
    assert!(runs > 150, "the workload is too small to mean much: {runs} operations");
    let all = [dry.operations(), dry.count(OperationKind::Write)];
    assert!(all.contains(&runs), "{runs} runs, {all:?} operations");
    verdicts
}

fn run(setting: Setting, fault: Fault) -> Option<Result<(), String>> {
    let disk = new_disk(setting);
    disk.plan(fault.clone());
    let history = workload(&disk, setting);
    assert_eq!(disk.open_files(), 0, "the connections are closed");
    // Whatever went wrong before, the power goes now: what was committed must have been durable.
    let survivor = disk.power_cut(PowerCut::DropUnsynced);
    let verdict = judge(&survivor, &history).map_err(|wrong| format!("{fault:?}: {wrong}"));
    disk.fired().then_some(verdict)
}

fn assert_all_fine(verdicts: &[Result<(), String>]) {
    let wrong: Vec<_> = verdicts.iter().filter_map(|verdict| verdict.as_ref().err()).collect();
    assert!(wrong.is_empty(), "{} of {}, first: {:?}", wrong.len(), verdicts.len(), wrong.first());
}

fn lost(verdicts: &[Result<(), String>]) -> usize {
    verdicts.iter().filter(|verdict| verdict.as_ref().is_err_and(|wrong| wrong.contains("lost"))).count()
}

fn code(error: &rusqlite::Error) -> (ErrorCode, i32) {
    let error = error.sqlite_error().expect("an error of SQLite");
    (error.code, error.extended_code)
}

#[test]
fn wal_with_full_sync_survives_a_power_cut_at_every_operation() {
    assert_all_fine(&at_every_operation(WAL_FULL, |_| Kind::Crash(PowerCut::DropUnsynced)));
}

#[test]
fn wal_with_full_sync_survives_torn_writes_at_every_operation() {
    for powersafe in [false, true] {
        let setting = Setting { powersafe, ..WAL_FULL };
        for round in 0..3 {
            let torn = |n| Kind::Crash(PowerCut::Torn { seed: n * 1_000 + round });
            assert_all_fine(&at_every_operation(setting, torn));
        }
    }
}

#[test]
fn wal_with_full_sync_survives_the_death_of_the_process_at_every_operation() {
    assert_all_fine(&at_every_operation(WAL_FULL, |_| Kind::Crash(PowerCut::KeepAll)));
}

#[test]
fn wal_with_full_sync_survives_an_error_at_every_operation() {
    for powersafe in [false, true] {
        let setting = Setting { powersafe, ..WAL_FULL };
        for kind in [Kind::Eio, Kind::EioSticky, Kind::ErrorAfterSuccess] {
            assert_all_fine(&at_every_operation(setting, |_| kind));
        }
        for kind in [Kind::EnospcOnce, Kind::Enospc] {
            assert_all_fine(&at_every_write(setting, kind));
        }
    }
}

#[test]
fn wal_with_full_sync_survives_a_sync_that_drops_its_data() {
    let setting = Setting { powersafe: true, ..WAL_FULL };
    assert_all_fine(&at_every_operation(setting, |_| Kind::LostSync));
}

/// Without power-safe overwrite SQLite fills the WAL up to a sector's end, and what lies beyond belongs to a commit
/// that was answered already and is synced with the next one only. When that sync drops it, the WAL ends there for
/// every recovery to come. So a program must stop after a failed sync, and not go on as this workload does.
#[test]
fn going_on_after_a_sync_that_dropped_its_data_is_caught_without_powersafe_overwrite() {
    let verdicts = at_every_operation(WAL_FULL, |_| Kind::LostSync);
    assert!(verdicts.iter().any(Result::is_err));
}

#[test]
fn uncommitted_pages_that_were_spilled_to_the_disk_do_not_survive() {
    for (journal_mode, synchronous) in [("wal", "full"), ("delete", "extra")] {
        let setting = Setting { journal_mode, synchronous, spill: true, ..WAL_FULL };
        assert!(is_written_before_the_commit(setting));
        assert!(!is_written_before_the_commit(Setting { spill: false, ..setting }));
        assert_all_fine(&at_every_operation(setting, |_| Kind::Crash(PowerCut::DropUnsynced)));
        assert_all_fine(&at_every_operation(setting, |n| Kind::Crash(PowerCut::Torn { seed: n })));
        assert_all_fine(&at_every_operation(setting, |_| Kind::Crash(PowerCut::KeepAll)));
    }
}

fn is_written_before_the_commit(setting: Setting) -> bool {
    let disk = new_disk(setting);
    let connection = start(&disk, setting).unwrap();
    let file = if setting.journal_mode == "wal" { "shop.db-wal" } else { FILE };
    let writes =
        || disk.log().iter().filter(|entry| entry.kind == OperationKind::Write && entry.file == file).count();
    let before = writes();
    insert(&connection, 1).unwrap();
    writes() > before
}

#[test]
fn wal_with_normal_sync_is_caught_losing_commits_yet_stays_healthy() {
    let setting = Setting { synchronous: "normal", ..WAL_FULL };
    let verdicts = at_every_operation(setting, |_| Kind::Crash(PowerCut::DropUnsynced));
    let wrong = verdicts.iter().filter(|verdict| verdict.is_err()).count();
    assert!(lost(&verdicts) > 10, "a disk that loses nothing proves nothing: {} lost", lost(&verdicts));
    assert_eq!(lost(&verdicts), wrong, "NORMAL may lose commits, and nothing else");
}

#[test]
fn wal_without_sync_is_caught() {
    let setting = Setting { synchronous: "off", ..WAL_FULL };
    let verdicts = at_every_operation(setting, |_| Kind::Crash(PowerCut::DropUnsynced));
    assert!(lost(&verdicts) > 10, "{} lost", lost(&verdicts));
}

#[test]
fn rollback_journals_with_extra_sync_survive_every_power_cut() {
    for journal_mode in ["delete", "truncate", "persist"] {
        let setting = Setting { journal_mode, synchronous: "extra", ..WAL_FULL };
        assert_all_fine(&at_every_operation(setting, |_| Kind::Crash(PowerCut::DropUnsynced)));
        assert_all_fine(&at_every_operation(setting, |n| Kind::Crash(PowerCut::Torn { seed: n })));
    }
}

/// SQLite documents it: FULL does not sync the folder after the journal's deletion, which is the commit.
#[test]
fn a_deleted_journal_comes_back_with_full_sync_and_takes_the_last_commit_along() {
    let setting = Setting { journal_mode: "delete", ..WAL_FULL };
    let verdicts = at_every_operation(setting, |_| Kind::Crash(PowerCut::DropUnsynced));
    let wrong = verdicts.iter().filter(|verdict| verdict.is_err()).count();
    assert!(lost(&verdicts) > 0);
    assert_eq!(lost(&verdicts), wrong, "a commit may be undone, and nothing else");
}

#[test]
fn a_full_disk_says_so_and_works_again_when_there_is_space() {
    let disk = Disk::new();
    let connection = start(&disk, WAL_FULL).unwrap();
    let mut history = History::default();
    step(&connection, 1, &mut history);

    disk.plan(Fault::at(1, Kind::Enospc));
    insert(&connection, 2).unwrap();
    let error = connection.execute_batch("commit").unwrap_err();
    assert_eq!(code(&error).0, ErrorCode::DiskFull);
    assert!(disk.fired());
    roll_back(&connection);
    assert_eq!(rows(&connection).unwrap(), [1].into(), "reads go on, the failed commit is undone");
    insert(&connection, 3).unwrap();
    assert!(connection.execute_batch("commit").is_err(), "the disk is still full");
    roll_back(&connection);

    disk.free_space();
    step(&connection, 4, &mut history);
    assert_eq!(history.committed, [1, 4].into(), "{:?}", history.errors);
    assert_eq!(judge(&disk.power_cut(PowerCut::DropUnsynced), &history), Ok(()));
}

#[test]
fn an_error_after_success_reports_failure_for_a_row_that_is_there() {
    let disk = Disk::new();
    let connection = start(&disk, WAL_FULL).unwrap();
    insert(&connection, 1).unwrap();
    disk.plan(Fault::at(1, Kind::ErrorAfterSuccess).on(OperationKind::Sync).of_file("-wal"));
    let error = connection.execute_batch("commit").unwrap_err();
    assert_eq!(code(&error), (ErrorCode::SystemIoFailure, rusqlite::ffi::SQLITE_IOERR_FSYNC));
    assert!(disk.fired());

    let survivor = disk.power_cut(PowerCut::DropUnsynced);
    assert_eq!(rows(&open(&survivor)).unwrap(), [1].into());
}

#[test]
fn each_kind_of_operation_fails_with_its_own_code() {
    for (kind, journal_mode, expected) in [
        (OperationKind::Write, "wal", rusqlite::ffi::SQLITE_IOERR_WRITE),
        (OperationKind::Sync, "wal", rusqlite::ffi::SQLITE_IOERR_FSYNC),
        (OperationKind::Read, "wal", rusqlite::ffi::SQLITE_IOERR_READ),
        (OperationKind::Truncate, "truncate", rusqlite::ffi::SQLITE_IOERR_TRUNCATE),
        (OperationKind::Delete, "delete", rusqlite::ffi::SQLITE_IOERR_DELETE),
    ] {
        let disk = Disk::new();
        let setting = Setting { journal_mode, ..WAL_FULL };
        drop(start(&disk, setting).unwrap());
        let connection = open(&disk);
        disk.plan(Fault::at(1, Kind::Eio).on(kind));
        let error = start(&disk, setting)
            .and_then(|other| insert(&other, 1).and_then(|()| other.execute_batch("commit")))
            .unwrap_err();
        assert_eq!(code(&error), (ErrorCode::SystemIoFailure, expected), "{kind:?}");
        assert!(disk.fired());
        drop(connection);
    }
}

#[test]
fn a_broken_device_refuses_writes_until_it_is_healed_and_reads_go_on() {
    let disk = Disk::new();
    let connection = start(&disk, WAL_FULL).unwrap();
    let mut history = History::default();
    step(&connection, 1, &mut history);
    disk.plan(Fault::at(1, Kind::EioSticky));
    step(&connection, 2, &mut history);
    step(&connection, 3, &mut history);
    assert_eq!(rows(&connection).unwrap(), [1].into());
    disk.heal();
    step(&connection, 4, &mut history);
    assert_eq!(history.committed, [1, 4].into());
    assert_eq!(rows(&connection).unwrap(), [1, 4].into());
}

#[test]
fn a_reader_keeps_its_snapshot_while_another_thread_writes() {
    let disk = Disk::new();
    let reader = start(&disk, WAL_FULL).unwrap();
    let mut history = History::default();
    step(&reader, 1, &mut history);
    reader.execute_batch("begin").unwrap();
    assert_eq!(rows(&reader).unwrap(), [1].into());

    std::thread::scope(|scope| {
        scope.spawn(|| {
            let writer = start(&disk, WAL_FULL).unwrap();
            (2..=30).for_each(|row| step(&writer, row, &mut history));
            assert_eq!(rows(&writer).unwrap().len(), 30);
        });
    });

    assert_eq!(history.committed.len(), 30, "{:?}", history.errors);
    assert_eq!(rows(&reader).unwrap(), [1].into(), "the snapshot stands, checkpoints or not");
    reader.execute_batch("commit").unwrap();
    assert_eq!(rows(&reader).unwrap().len(), 30);
}

#[test]
fn two_writers_exclude_each_other_in_every_mode() {
    for journal_mode in ["wal", "delete"] {
        let disk = Disk::new();
        let setting = Setting { journal_mode, ..WAL_FULL };
        let ann = start(&disk, setting).unwrap();
        let bob = open(&disk);
        bob.busy_timeout(std::time::Duration::ZERO).unwrap();
        insert(&ann, 1).unwrap();
        assert_eq!(code(&insert(&bob, 2).unwrap_err()).0, ErrorCode::DatabaseBusy);
        ann.execute_batch("commit").unwrap();
        insert(&bob, 2).unwrap();
        bob.execute_batch("commit").unwrap();
        assert_eq!(rows(&ann).unwrap(), [1, 2].into());
    }
}

#[test]
fn many_threads_lose_no_update() {
    const THREADS: u32 = 4;
    const UPDATES: u32 = 50;
    for journal_mode in ["wal", "delete"] {
        let disk = Disk::new();
        let setting = Setting { journal_mode, ..WAL_FULL };
        let connection = start(&disk, setting).unwrap();
        connection.execute_batch("create table counter (n); insert into counter values (0)").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let own = open(&disk);
                    own.busy_timeout(std::time::Duration::from_secs(60)).unwrap();
                    for _ in 0..UPDATES {
                        own.execute_batch("begin immediate; update counter set n = n + 1; commit").unwrap();
                    }
                });
            }
        });
        let counted: u32 = connection.query_row("select n from counter", [], |row| row.get(0)).unwrap();
        assert_eq!(counted, THREADS * UPDATES);
    }
}

#[test]
fn a_dead_disk_answers_with_errors_and_its_survivor_is_independent() {
    let disk = Disk::new();
    let connection = start(&disk, WAL_FULL).unwrap();
    let mut history = History::default();
    step(&connection, 1, &mut history);
    let survivor = disk.power_cut(PowerCut::DropUnsynced);
    assert!(disk.is_dead() && !survivor.is_dead());
    assert!(rows(&connection).is_err() && insert(&connection, 2).is_err() && try_open(&disk).is_err());

    let other = open(&survivor);
    assert_ne!(disk.vfs_name(), survivor.vfs_name());
    step(&other, 3, &mut history);
    assert_eq!(rows(&other).unwrap(), [1, 3].into());
    let again = disk.power_cut(PowerCut::KeepAll);
    assert_eq!(rows(&open(&again)).unwrap(), [1].into(), "the first cut decides");
}

#[test]
fn the_same_seed_tears_the_same_way_and_another_seed_another_way() {
    let torn = |seed| {
        let disk = Disk::powersafe();
        let setting = Setting { synchronous: "off", journal_mode: "delete", powersafe: true, spill: false };
        let connection = start(&disk, setting).unwrap();
        let mut history = History::default();
        (1..=20).for_each(|row| step(&connection, row, &mut history));
        disk.power_cut(PowerCut::Torn { seed }).read_file(FILE)
    };
    let outcomes: BTreeSet<_> = (0..10).map(torn).collect();
    assert!(outcomes.len() > 2, "{} outcomes", outcomes.len());
    assert!(outcomes == (0..10).map(torn).collect());
}

#[test]
fn a_flipped_bit_is_found_by_the_integrity_check_or_the_reader() {
    let disk = Disk::new();
    let history = workload(&disk, WAL_FULL);
    let (_, size) = disk.files().into_iter().find(|(name, _)| name == FILE).unwrap();
    let page_of_the_schema = 100;
    assert!(disk.flip_bit(FILE, page_of_the_schema, 3) && !disk.flip_bit(FILE, size, 0));
    assert!(judge(&disk, &history).is_err());
}

#[test]
fn a_corrupted_write_reports_success() {
    let disk = Disk::new();
    disk.plan(Fault::at(3, Kind::Corrupt { seed: 1 }).on(OperationKind::Write).of_file(FILE));
    let history = workload(
        &disk,
        Setting { synchronous: "off", journal_mode: "delete", powersafe: true, spill: false },
    );
    assert!(disk.fired());
    assert_eq!(history.errors, Vec::<String>::new());
}

#[test]
fn operations_are_counted_and_logged_in_order() {
    let disk = Disk::new();
    workload(&disk, WAL_FULL);
    let log = disk.log();
    assert_eq!(log.len() as u64, disk.operations());
    for kind in [OperationKind::Write, OperationKind::Sync, OperationKind::Truncate, OperationKind::Delete] {
        let logged = log.iter().filter(|operation| operation.kind == kind).count() as u64;
        assert_eq!(logged, disk.count(kind), "{kind:?}");
    }
    let wal_syncs =
        log.iter().filter(|entry| entry.kind == OperationKind::Sync && entry.file == "shop.db-wal");
    assert!(wal_syncs.count() >= 40, "FULL syncs at every commit");
    assert!(
        log.iter().any(|entry| entry.kind == OperationKind::Sync && entry.file == FILE),
        "checkpoints happened"
    );
    assert!(disk.count(OperationKind::Read) > 0);
}

#[test]
fn a_dropped_disk_is_unregistered_and_its_open_connection_lives_on() {
    let disk = Disk::new();
    let name = disk.vfs_name().to_owned();
    let connection = start(&disk, WAL_FULL).unwrap();
    drop(disk);
    assert!(Connection::open_with_flags_and_vfs(FILE, OpenFlags::default(), name.as_str()).is_err());
    let mut history = History::default();
    step(&connection, 1, &mut history);
    assert_eq!(rows(&connection).unwrap(), [1].into());
}

#[test]
fn a_sync_beside_sqlite_is_counted_and_fails_like_its_own() {
    let disk = Disk::new();
    let connection = start(&disk, WAL_FULL).unwrap();
    step(&connection, 1, &mut History::default());
    disk.plan(Fault::at(1, Kind::Eio).on(OperationKind::Sync).of_file(FILE));
    let (beside, before) = (disk.beside(), disk.count(OperationKind::Sync));
    assert!(beside.sync(FILE).is_err() && disk.fired());
    beside.sync(FILE).unwrap();
    assert_eq!(disk.count(OperationKind::Sync) - before, 2);
    assert!(beside.sync("nothing.db").is_err());
}
