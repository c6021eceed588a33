//! A faulty disk for SQLite, kept in memory: what a power cut may lose is lost, what may fail fails, at exactly the
//! operation a test names. Owns the promises of the disk; knows nothing of SQL and of the tables stored on it.
//!
//! Every file has two images: `current`, which reads see, and `durable`, which survives a power cut. The rules are
//! those of the unix VFS on a disk that promises no more than it must:
//!
//! * A write or truncate changes `current` and is *pending*; a sync of the file makes its pending changes durable.
//! * A new name is durable after the first sync of its file. For a journal or WAL that sync includes the folder.
//! * A deletion is durable with the next sync of the folder: that of the deletion itself if SQLite asks for one
//!   (`synchronous=EXTRA`), or that which comes with a new journal. Until then the file may come back.
//! * A failed operation has no effect, except where its [`Kind`](crate::disk::Kind) says so.
//! * Temporary files (those that SQLite deletes on close) are neither counted nor faulted: nothing outlives them.
//!
//! Counted operations are writes, syncs, truncates and deletes. Reads are counted apart.
//!
//! The bundled SQLite shares its page cache among all connections of the process. A workload whose n-th operation must
//! be the same in every run therefore needs `pragma cache_spill = off`, or a process of its own.

mod fault;
mod file;
mod lock;
mod state;
mod vfs;

use std::sync::Arc;

use parking_lot::Mutex;

pub use fault::{Fault, Kind, Operation, OperationKind};
pub use file::PowerCut;

use state::State;
use vfs::Registration;

/// The unit in which a torn write survives.
pub const SECTOR_BYTES: usize = 512;

/// Operations remembered by [`Disk::log`]; older ones are forgotten.
pub const LOG_OPERATIONS_MAX: usize = 200_000;

/// One disk, registered with SQLite under a name of its own. Connections use it by
/// `Connection::open_with_flags_and_vfs(path, flags, disk.vfs_name())`.
///
/// The name is unregistered on drop. A connection that is still open then keeps its files until it is closed.
#[derive(Debug)]
pub struct Disk {
    registration: Registration,
    state: Arc<Mutex<State>>,
}

impl Disk {
    /// An empty disk that promises nothing beyond its syncs: neither atomic writes nor power-safe overwrite.
    pub fn new() -> Self {
        Self::with(State::new(false))
    }

    /// As [`Disk::new`], and a write never damages the bytes beside it (`SQLITE_IOCAP_POWERSAFE_OVERWRITE`), which
    /// is what SQLite assumes of an ordinary file system.
    pub fn powersafe() -> Self {
        Self::with(State::new(true))
    }

    pub fn vfs_name(&self) -> &str {
        self.registration.name()
    }

    /// A way to this disk without SQLite.
    pub fn beside(&self) -> Beside {
        Beside(Arc::clone(&self.state))
    }

    /// Adds a fault; its operations are counted from now. Several may be planned, each takes effect by itself.
    pub fn plan(&self, fault: Fault) {
        self.state.lock().plan.add(fault);
    }

    /// Whether at least one fault was planned and every one has taken effect. A test of a fault that never happened
    /// proves nothing, so each should assert this.
    pub fn fired(&self) -> bool {
        self.state.lock().plan.fired()
    }

    /// Ends [`Kind::Enospc`]: there is space again.
    pub fn free_space(&self) {
        self.state.lock().plan.free_space();
    }

    /// What it says from now on of its free space; writes do not heed it.
    pub fn say_free_bytes(&self, bytes: u64) {
        self.state.lock().free_bytes = bytes;
    }

    /// Ends [`Kind::EioSticky`]: the device answers again.
    pub fn heal(&self) {
        self.state.lock().plan.heal();
    }

    /// Counted operations so far, those that were refused included.
    pub fn operations(&self) -> u64 {
        self.state.lock().plan.operations()
    }

    pub fn count(&self, kind: OperationKind) -> u64 {
        self.state.lock().plan.count(kind)
    }

    /// The counted operations, oldest first, at most [`LOG_OPERATIONS_MAX`].
    pub fn log(&self) -> Vec<Operation> {
        self.state.lock().plan.log()
    }

    /// Cuts the power now. Answers a new disk that holds what survived, with no fault planned; this one answers
    /// with an I/O error to everything from now on, as to a process that is dead.
    ///
    /// After a [`Kind::Crash`] has fired the power is already cut: then `cut` has no effect, and what survived is
    /// what the crash left.
    pub fn power_cut(&self, cut: PowerCut) -> Self {
        let mut state = self.state.lock();
        state.cut_power(cut);
        Self::with(state.survivor())
    }

    /// Whether the power was cut.
    pub fn is_dead(&self) -> bool {
        self.state.lock().is_dead()
    }

    /// Names and current sizes in bytes, in order of name.
    pub fn files(&self) -> Vec<(String, usize)> {
        self.state.lock().files()
    }

    /// What reads see of a file, for example to keep a failed test's database for a closer look.
    pub fn read_file(&self, file: &str) -> Option<Vec<u8>> {
        self.state.lock().read_file(file)
    }

    /// Flips one bit of a file, in what reads see and in what survives. False if there is no such byte.
    pub fn flip_bit(&self, file: &str, offset: usize, bit: u8) -> bool {
        self.state.lock().flip_bit(file, offset, bit)
    }

    /// How many files, temporary ones included, are open.
    pub fn open_files(&self) -> usize {
        self.state.lock().open_files()
    }

    fn with(state: State) -> Self {
        let state = Arc::new(Mutex::new(state));
        Self { registration: Registration::new(&state), state }
    }
}

/// What a program does with the disk beside SQLite. A sync is of a file that it has opened itself, counted and faulted like
/// SQLite's own.
#[derive(Debug, Clone)]
pub struct Beside(Arc<Mutex<State>>);

impl Beside {
    pub fn sync(&self, file: &str) -> std::io::Result<()> {
        self.0.lock().sync_by_name(file).map_err(|refusal| std::io::Error::other(format!("{refusal:?}")))
    }

    pub fn free_bytes(&self) -> u64 {
        self.0.lock().free_bytes
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}
