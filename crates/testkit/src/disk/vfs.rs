//! The border to SQLite: registers the disk as a VFS and translates calls and error codes. The only unsafe code of the
//! workspace. It decides nothing: what an operation does is in `state`.
//!
//! What SQLite promises and every block below leans on: the `sqlite3_vfs` and `sqlite3_file` pointers it hands over are
//! those it was given by `sqlite3_vfs_register` and filled by `xOpen`; strings end with NUL and live for the call;
//! buffers have the stated length; out pointers are valid; a file is closed once, and not used after that.
//! A panic in here ends the process: it must not unwind into C, and a broken disk would prove nothing.

#![expect(unsafe_code, reason = "SQLite takes a VFS as C function pointers; no safe interface to it exists")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

use libsqlite3_sys as sql;
use parking_lot::Mutex;

use super::SECTOR_BYTES;
use super::lock::{Level, SLOTS};
use super::state::{HandleId, Opening, Refusal, State};

const PATH_BYTES_MAX: c_int = 512;

/// A VFS known to SQLite by name, until drop.
///
/// About half a kilobyte per disk is never freed: a connection keeps the pointer to its VFS for as long as it lives,
/// and may outlive the disk.
#[derive(Debug)]
pub(super) struct Registration {
    vfs: &'static Vfs,
}

#[derive(Debug)]
struct Vfs {
    name: CString,
    state: Weak<Mutex<State>>,
    // SQLite links its list of VFSs through this struct, so it changes behind a shared reference.
    raw: std::cell::UnsafeCell<sql::sqlite3_vfs>,
}

// SAFETY: `raw` is touched by SQLite alone once it is registered, under SQLite's own mutex; the rest is immutable.
unsafe impl Sync for Vfs {}

impl Registration {
    pub fn new(state: &Arc<Mutex<State>>) -> Self {
        static DISKS: AtomicU64 = AtomicU64::new(0);
        let number = DISKS.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(format!("faulty-disk-{number}")).expect("a number holds no NUL");
        let raw = std::cell::UnsafeCell::new(empty_vfs());
        let vfs: &'static Vfs = Box::leak(Box::new(Vfs { name, state: Arc::downgrade(state), raw }));

        // SAFETY: nobody else knows the fresh struct yet; it and the name it points to live forever.
        let code = unsafe {
            let raw = vfs.raw.get();
            (*raw).zName = vfs.name.as_ptr();
            (*raw).pAppData = ptr::from_ref(vfs).cast_mut().cast();
            sql::sqlite3_vfs_register(raw, 0)
        };
        assert_eq!(code, sql::SQLITE_OK, "SQLite refused the VFS");
        Self { vfs }
    }

    pub fn name(&self) -> &str {
        self.vfs.name.to_str().expect("the name is ASCII")
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: it was registered in `new` and is unregistered once. The struct stays for open connections.
        unsafe { sql::sqlite3_vfs_unregister(self.vfs.raw.get()) };
    }
}

fn empty_vfs() -> sql::sqlite3_vfs {
    sql::sqlite3_vfs {
        iVersion: 2,
        szOsFile: size_of::<OpenFile>() as c_int,
        mxPathname: PATH_BYTES_MAX,
        pNext: ptr::null_mut(),
        zName: ptr::null(),
        pAppData: ptr::null_mut(),
        xOpen: Some(open),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        xDlOpen: None,
        xDlError: None,
        xDlSym: None,
        xDlClose: None,
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: None,
        xGetLastError: Some(last_error),
        xCurrentTimeInt64: Some(current_time),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    }
}

// Version 2 has shared memory, which WAL needs, and no memory mapping, which would write behind the disk's back.
static METHODS: sql::sqlite3_io_methods = sql::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// What SQLite allocates per open file; the first field is its own.
#[repr(C)]
struct OpenFile {
    base: sql::sqlite3_file,
    handle: *mut Handle,
}

struct Handle {
    id: HandleId,
    state: Arc<Mutex<State>>,
}

/// SAFETY: `vfs` must be one registered by [`Registration::new`].
unsafe fn state_of(vfs: *mut sql::sqlite3_vfs) -> Option<Arc<Mutex<State>>> {
    // SAFETY: `pAppData` was set to a leaked `Vfs`, which lives forever.
    unsafe { (*(*vfs).pAppData.cast::<Vfs>()).state.upgrade() }
}

/// SAFETY: `file` must have been opened by [`open`] and not closed.
unsafe fn handle_of<'a>(file: *mut sql::sqlite3_file) -> &'a Handle {
    // SAFETY: `open` put a boxed handle there, which `close` alone takes away.
    unsafe { &*(*file.cast::<OpenFile>()).handle }
}

/// SAFETY: `text` must end with NUL and live for the call.
unsafe fn name_of<'a>(text: *const c_char) -> &'a str {
    // SAFETY: as promised by the caller. SQLite hands over UTF-8, as it was given.
    unsafe { CStr::from_ptr(text) }.to_str().expect("file names on this disk are UTF-8")
}

/// The VFS of the operating system, for what is no matter of disks: random numbers, sleep and time.
fn system_vfs() -> *mut sql::sqlite3_vfs {
    // SAFETY: a null name asks for the default, which is never unregistered.
    unsafe { sql::sqlite3_vfs_find(ptr::null()) }
}

fn code(result: Result<(), Refusal>, io_error: c_int) -> c_int {
    match result {
        Ok(()) => sql::SQLITE_OK,
        Err(Refusal::Io) => io_error,
        Err(Refusal::Full) => sql::SQLITE_FULL,
        Err(Refusal::Busy) => sql::SQLITE_BUSY,
        Err(Refusal::Missing | Refusal::Exists) => sql::SQLITE_CANTOPEN,
        Err(Refusal::NotMapped) => sql::SQLITE_IOERR_SHMLOCK,
    }
}

fn size(number: impl TryInto<usize>) -> usize {
    number.try_into().ok().expect("sizes and offsets from SQLite are not negative")
}

unsafe extern "C" fn open(
    vfs: *mut sql::sqlite3_vfs,
    name: *const c_char,
    file: *mut sql::sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let has = |flag| flags & flag != 0;
    let opening = Opening {
        create: has(sql::SQLITE_OPEN_CREATE),
        exclusive: has(sql::SQLITE_OPEN_EXCLUSIVE),
        delete_on_close: has(sql::SQLITE_OPEN_DELETEONCLOSE),
        is_journal: has(sql::SQLITE_OPEN_MAIN_JOURNAL
            | sql::SQLITE_OPEN_SUPER_JOURNAL
            | sql::SQLITE_OPEN_WAL),
    };
    // SAFETY: `file` has room for `szOsFile` bytes, which is an `OpenFile`; no methods means "not open, do not close".
    unsafe { (*file).pMethods = ptr::null() };
    // SAFETY: SQLite calls with the VFS it was given.
    let Some(state) = (unsafe { state_of(vfs) }) else { return sql::SQLITE_CANTOPEN };
    // SAFETY: a name that is not null is a string of SQLite's that outlives the file.
    let name = if name.is_null() { None } else { Some(unsafe { name_of(name) }) };
    let opened = state.lock().open(name, opening);
    match opened {
        Err(refusal) => code(Err(refusal), sql::SQLITE_IOERR),
        Ok(id) => {
            let handle = Box::into_raw(Box::new(Handle { id, state }));
            // SAFETY: as above for `file`; `out_flags` may be null, else it is valid.
            unsafe {
                file.cast::<OpenFile>()
                    .write(OpenFile { base: sql::sqlite3_file { pMethods: &METHODS }, handle });
                if !out_flags.is_null() {
                    *out_flags = flags;
                }
            }
            sql::SQLITE_OK
        }
    }
}

unsafe extern "C" fn delete(vfs: *mut sql::sqlite3_vfs, name: *const c_char, sync_folder: c_int) -> c_int {
    // SAFETY: SQLite calls with the VFS it was given and a valid name.
    let (state, name) = unsafe { (state_of(vfs), name_of(name)) };
    let Some(state) = state else { return sql::SQLITE_IOERR_DELETE };
    let deleted = state.lock().delete(name, sync_folder != 0);
    match deleted {
        Err(Refusal::Missing) => sql::SQLITE_IOERR_DELETE_NOENT,
        other => code(other, sql::SQLITE_IOERR_DELETE),
    }
}

unsafe extern "C" fn access(
    vfs: *mut sql::sqlite3_vfs,
    name: *const c_char,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: SQLite calls with the VFS it was given and a valid name.
    let (state, name) = unsafe { (state_of(vfs), name_of(name)) };
    let Some(state) = state else { return sql::SQLITE_IOERR_ACCESS };
    let Ok(found) = state.lock().find(name) else { return sql::SQLITE_IOERR_ACCESS };
    // As in the unix VFS, a file without content does not exist for those who ask for its existence.
    let yes = found.is_some_and(|bytes| flags != sql::SQLITE_ACCESS_EXISTS || bytes > 0);
    // SAFETY: `out` is valid for the call.
    unsafe { *out = c_int::from(yes) };
    sql::SQLITE_OK
}

unsafe extern "C" fn full_pathname(
    _vfs: *mut sql::sqlite3_vfs,
    name: *const c_char,
    out_bytes: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite hands over a valid name.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes_with_nul();
    if bytes.len() > size(out_bytes) {
        return sql::SQLITE_CANTOPEN;
    }
    // SAFETY: `out` has room for `out_bytes`, which was just compared, and is not the name itself.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr().cast(), out, bytes.len()) };
    sql::SQLITE_OK
}

unsafe extern "C" fn randomness(_vfs: *mut sql::sqlite3_vfs, bytes: c_int, out: *mut c_char) -> c_int {
    let system = system_vfs();
    // SAFETY: the system's VFS is complete; the arguments are passed on as they came.
    unsafe { (*system).xRandomness.map_or(0, |call| call(system, bytes, out)) }
}

unsafe extern "C" fn sleep(_vfs: *mut sql::sqlite3_vfs, microseconds: c_int) -> c_int {
    let system = system_vfs();
    // SAFETY: the system's VFS is complete; the argument is passed on as it came.
    unsafe { (*system).xSleep.map_or(0, |call| call(system, microseconds)) }
}

unsafe extern "C" fn current_time(_vfs: *mut sql::sqlite3_vfs, out: *mut sql::sqlite3_int64) -> c_int {
    let system = system_vfs();
    // SAFETY: the system's VFS is complete; the argument is passed on as it came.
    unsafe { (*system).xCurrentTimeInt64.map_or(sql::SQLITE_ERROR, |call| call(system, out)) }
}

unsafe extern "C" fn last_error(_vfs: *mut sql::sqlite3_vfs, _bytes: c_int, _out: *mut c_char) -> c_int {
    0
}

unsafe extern "C" fn close(file: *mut sql::sqlite3_file) -> c_int {
    // SAFETY: the handle was boxed by `open`; SQLite closes once, so it is taken back once.
    let handle = unsafe { Box::from_raw((*file.cast::<OpenFile>()).handle) };
    handle.state.lock().close(handle.id);
    sql::SQLITE_OK
}

unsafe extern "C" fn read(
    file: *mut sql::sqlite3_file,
    buffer: *mut c_void,
    bytes: c_int,
    offset: sql::sqlite3_int64,
) -> c_int {
    // SAFETY: the file is open, and the buffer, which is SQLite's and initialised or not, is zeroed before it is seen.
    let (handle, buffer) = unsafe {
        ptr::write_bytes(buffer.cast::<u8>(), 0, size(bytes));
        (handle_of(file), std::slice::from_raw_parts_mut(buffer.cast::<u8>(), size(bytes)))
    };
    let got = handle.state.lock().read(handle.id, size(offset), buffer);
    match got {
        Ok(got) if got < buffer.len() => sql::SQLITE_IOERR_SHORT_READ,
        other => code(other.map(|_| ()), sql::SQLITE_IOERR_READ),
    }
}

unsafe extern "C" fn write(
    file: *mut sql::sqlite3_file,
    buffer: *const c_void,
    bytes: c_int,
    offset: sql::sqlite3_int64,
) -> c_int {
    // SAFETY: the file is open and the buffer holds so many bytes.
    let (handle, buffer) =
        unsafe { (handle_of(file), std::slice::from_raw_parts(buffer.cast::<u8>(), size(bytes))) };
    code(handle.state.lock().write(handle.id, size(offset), buffer), sql::SQLITE_IOERR_WRITE)
}

unsafe extern "C" fn truncate(file: *mut sql::sqlite3_file, bytes: sql::sqlite3_int64) -> c_int {
    // SAFETY: the file is open.
    let handle = unsafe { handle_of(file) };
    code(handle.state.lock().truncate(handle.id, size(bytes)), sql::SQLITE_IOERR_TRUNCATE)
}

unsafe extern "C" fn sync(file: *mut sql::sqlite3_file, _flags: c_int) -> c_int {
    // SAFETY: the file is open.
    let handle = unsafe { handle_of(file) };
    code(handle.state.lock().sync(handle.id), sql::SQLITE_IOERR_FSYNC)
}

unsafe extern "C" fn file_size(file: *mut sql::sqlite3_file, out: *mut sql::sqlite3_int64) -> c_int {
    // SAFETY: the file is open.
    let handle = unsafe { handle_of(file) };
    let Ok(bytes) = handle.state.lock().size(handle.id) else { return sql::SQLITE_IOERR_FSTAT };
    // SAFETY: `out` is valid for the call.
    unsafe { *out = bytes as sql::sqlite3_int64 };
    sql::SQLITE_OK
}

fn level(number: c_int) -> Level {
    match number {
        sql::SQLITE_LOCK_NONE => Level::None,
        sql::SQLITE_LOCK_SHARED => Level::Shared,
        sql::SQLITE_LOCK_RESERVED => Level::Reserved,
        sql::SQLITE_LOCK_PENDING => Level::Pending,
        sql::SQLITE_LOCK_EXCLUSIVE => Level::Exclusive,
        unknown => panic!("SQLite knows no lock level {unknown}"),
    }
}

unsafe extern "C" fn lock(file: *mut sql::sqlite3_file, wanted: c_int) -> c_int {
    // SAFETY: the file is open.
    let handle = unsafe { handle_of(file) };
    code(handle.state.lock().lock(handle.id, level(wanted)), sql::SQLITE_IOERR_LOCK)
}

unsafe extern "C" fn unlock(file: *mut sql::sqlite3_file, down_to: c_int) -> c_int {
    // SAFETY: the file is open.
    let handle = unsafe { handle_of(file) };
    handle.state.lock().unlock(handle.id, level(down_to));
    sql::SQLITE_OK
}

unsafe extern "C" fn check_reserved_lock(file: *mut sql::sqlite3_file, out: *mut c_int) -> c_int {
    // SAFETY: the file is open.
    let handle = unsafe { handle_of(file) };
    let Ok(reserved) = handle.state.lock().is_reserved(handle.id) else {
        return sql::SQLITE_IOERR_CHECKRESERVEDLOCK;
    };
    // SAFETY: `out` is valid for the call.
    unsafe { *out = c_int::from(reserved) };
    sql::SQLITE_OK
}

unsafe extern "C" fn file_control(_file: *mut sql::sqlite3_file, _op: c_int, _arg: *mut c_void) -> c_int {
    sql::SQLITE_NOTFOUND
}

unsafe extern "C" fn sector_size(_file: *mut sql::sqlite3_file) -> c_int {
    SECTOR_BYTES as c_int
}

unsafe extern "C" fn device_characteristics(file: *mut sql::sqlite3_file) -> c_int {
    // SAFETY: the file is open.
    let handle = unsafe { handle_of(file) };
    if handle.state.lock().powersafe_overwrite { sql::SQLITE_IOCAP_POWERSAFE_OVERWRITE } else { 0 }
}

unsafe extern "C" fn shm_map(
    file: *mut sql::sqlite3_file,
    region: c_int,
    bytes: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    // SAFETY: the file is open.
    let handle = unsafe { handle_of(file) };
    let mut state = handle.state.lock();
    let Ok(memory) = state.map(handle.id) else {
        // SAFETY: `out` is valid for the call.
        unsafe { *out = ptr::null_mut() };
        return sql::SQLITE_IOERR_SHMMAP;
    };
    let start = memory.region(handle.id, size(region), size(bytes), extend != 0);
    // SAFETY: `out` is valid for the call. The region lives until its last user unmaps or closes, and may be written
    // through a pointer from a shared reference since it is made of atomics.
    unsafe { *out = start.map_or(ptr::null_mut(), |start| start.cast_mut().cast()) };
    sql::SQLITE_OK
}

unsafe extern "C" fn shm_lock(
    file: *mut sql::sqlite3_file,
    first: c_int,
    count: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: the file is open.
    let handle = unsafe { handle_of(file) };
    let slots = size(first)..size(first) + size(count);
    assert!(slots.end <= SLOTS, "SQLite has {SLOTS} slots, not {slots:?}");
    let mut state = handle.state.lock();
    let dead = state.is_dead();
    let Ok(memory) = state.shared_memory(handle.id) else { return sql::SQLITE_IOERR_SHMLOCK };
    if flags & sql::SQLITE_SHM_UNLOCK != 0 {
        memory.unlock(handle.id, slots);
        return sql::SQLITE_OK;
    }
    // No transaction may begin without power, not even one whose pages are all in the connection's cache.
    if dead {
        return sql::SQLITE_IOERR_SHMLOCK;
    }
    let locked = if flags & sql::SQLITE_SHM_SHARED != 0 {
        memory.lock_shared(handle.id, slots.start)
    } else {
        memory.lock_exclusive(handle.id, slots)
    };
    code(locked.map_err(Refusal::from), sql::SQLITE_IOERR_SHMLOCK)
}

unsafe extern "C" fn shm_barrier(_file: *mut sql::sqlite3_file) {
    fence(Ordering::SeqCst);
}

unsafe extern "C" fn shm_unmap(file: *mut sql::sqlite3_file, _delete: c_int) -> c_int {
    // SAFETY: the file is open.
    let handle = unsafe { handle_of(file) };
    handle.state.lock().unmap(handle.id);
    sql::SQLITE_OK
}
