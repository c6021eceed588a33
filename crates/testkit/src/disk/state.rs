//! Owns everything on the disk: names, files, open handles, and the order of counting, failing and doing for each
//! operation. Does not know SQLite's calling conventions; its errors are named here and numbered in `vfs`.

use std::collections::BTreeMap;
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::PowerCut;
use super::fault::{Fate, Operation, OperationKind, Plan};
use super::file::{Change, FileImage};
use super::lock::{Busy, FileLocks, Level, SharedMemory};

pub(super) type HandleId = u64;
type FileId = u64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Io,
    Full,
    Busy,
    Missing,
    Exists,
    NotMapped,
}

impl From<Busy> for Refusal {
    fn from(_: Busy) -> Self {
        Self::Busy
    }
}

/// How a file is to be opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Opening {
    pub create: bool,
    pub exclusive: bool,
    pub delete_on_close: bool,
    /// A journal or WAL: the unix VFS syncs the folder with the first sync of a new one.
    pub is_journal: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub plan: Plan,
    pub powersafe_overwrite: bool,
    /// What it says of its free space.
    pub free_bytes: u64,
    files: BTreeMap<FileId, File>,
    /// The folder as the running system sees it, and as a power cut would leave it.
    names: BTreeMap<String, FileId>,
    durable_names: BTreeMap<String, FileId>,
    handles: BTreeMap<HandleId, Handle>,
    next_id: u64,
    survived: Option<BTreeMap<String, Vec<u8>>>,
}

#[derive(Debug, Default)]
struct File {
    image: FileImage,
    locks: FileLocks,
    shared_memory: Option<SharedMemory>,
}

#[derive(Debug)]
struct Handle {
    file: FileId,
    /// A temporary file without a name is neither counted nor faulted.
    name: Option<String>,
    delete_on_close: bool,
    folder_sync_due: bool,
}

impl State {
    pub fn new(powersafe_overwrite: bool) -> Self {
        Self { powersafe_overwrite, free_bytes: u64::MAX, ..Self::default() }
    }

    pub fn open(&mut self, name: Option<&str>, opening: Opening) -> Result<HandleId, Refusal> {
        self.alive()?;
        let known = name.and_then(|name| self.names.get(name).copied());
        let file = match known {
            Some(_) if opening.exclusive && opening.create => return Err(Refusal::Exists),
            Some(file) => file,
            None if opening.create || name.is_none() => self.create(name),
            None => return Err(Refusal::Missing),
        };
        let handle = Handle {
            file,
            name: name.filter(|_| !opening.delete_on_close).map(str::to_owned),
            delete_on_close: opening.delete_on_close,
            folder_sync_due: opening.is_journal && known.is_none(),
        };
        let id = self.new_id();
        self.handles.insert(id, handle);
        Ok(id)
    }

    /// Never fails, so that a test can always clean up, also after a power cut.
    pub fn close(&mut self, handle: HandleId) {
        self.unmap(handle);
        let Some(closed) = self.handles.remove(&handle) else { return };
        if let Some(file) = self.files.get_mut(&closed.file) {
            file.locks.forget(handle);
        }
        if closed.delete_on_close {
            self.names.retain(|_, file| *file != closed.file);
            self.durable_names.retain(|_, file| *file != closed.file);
        }
        self.forget_unreachable_files();
    }

    /// Fills the buffer as far as the file goes, zeros the rest, and answers how many bytes there were.
    pub fn read(&mut self, handle: HandleId, offset: usize, buffer: &mut [u8]) -> Result<usize, Refusal> {
        let fate = self.decide(handle, OperationKind::Read, offset, buffer.len())?;
        let current = &self.file(handle).image.current;
        let available = current.len().saturating_sub(offset).min(buffer.len());
        buffer.fill(0);
        if available > 0 {
            buffer[..available].copy_from_slice(&current[offset..offset + available]);
        }
        match fate {
            Fate::Corrupt { seed } => flip_one_bit(&mut buffer[..available], seed),
            Fate::Proceed => {}
            Fate::Crash(cut) => {
                self.cut_power(cut);
                return Err(Refusal::Io);
            }
            Fate::Fail | Fate::Full | Fate::LoseAndFail | Fate::SucceedAndFail => return Err(Refusal::Io),
        }
        Ok(available)
    }

    pub fn write(&mut self, handle: HandleId, offset: usize, bytes: &[u8]) -> Result<(), Refusal> {
        let fate = self.decide(handle, OperationKind::Write, offset, bytes.len())?;
        let mut bytes = bytes.to_vec();
        if let Fate::Corrupt { seed } = fate {
            flip_one_bit(&mut bytes, seed);
        }
        self.change(handle, fate, Change::Write { offset, bytes })
    }

    pub fn truncate(&mut self, handle: HandleId, size: usize) -> Result<(), Refusal> {
        let fate = self.decide(handle, OperationKind::Truncate, size, 0)?;
        self.change(handle, fate, Change::Truncate { size })
    }

    pub fn sync(&mut self, handle: HandleId) -> Result<(), Refusal> {
        let fate = self.decide(handle, OperationKind::Sync, 0, 0)?;
        match fate {
            Fate::Proceed | Fate::Corrupt { .. } => {
                self.make_durable(handle);
                Ok(())
            }
            Fate::SucceedAndFail => {
                self.make_durable(handle);
                Err(Refusal::Io)
            }
            Fate::LoseAndFail => {
                self.file_mut(handle).image.lose_pending();
                Err(Refusal::Io)
            }
            Fate::Fail | Fate::Full => Err(Refusal::Io),
            Fate::Crash(cut) => {
                self.cut_power(cut);
                Err(Refusal::Io)
            }
        }
    }

    /// As somebody does who opens the file for this alone.
    pub fn sync_by_name(&mut self, name: &str) -> Result<(), Refusal> {
        let opening = Opening { create: false, exclusive: false, delete_on_close: false, is_journal: false };
        let handle = self.open(Some(name), opening)?;
        let synced = self.sync(handle);
        self.close(handle);
        synced
    }

    pub fn delete(&mut self, name: &str, sync_folder: bool) -> Result<(), Refusal> {
        self.alive()?;
        if !self.names.contains_key(name) {
            return Err(Refusal::Missing);
        }
        let operation = Operation { kind: OperationKind::Delete, file: name.to_owned(), offset: 0, len: 0 };
        let fate = self.plan.decide(operation);
        let happens = match fate {
            Fate::Proceed | Fate::Corrupt { .. } | Fate::SucceedAndFail => true,
            Fate::Crash(cut) => cut != PowerCut::KeepAll,
            Fate::Fail | Fate::Full | Fate::LoseAndFail => false,
        };
        if happens {
            self.names.remove(name);
        }
        match fate {
            Fate::Proceed | Fate::Corrupt { .. } => {
                if sync_folder {
                    self.sync_folder(name);
                }
                self.forget_unreachable_files();
                Ok(())
            }
            Fate::SucceedAndFail => {
                self.sync_folder(name);
                self.forget_unreachable_files();
                Err(Refusal::Io)
            }
            Fate::Crash(cut) => {
                self.cut_power(cut);
                Err(Refusal::Io)
            }
            Fate::Fail | Fate::Full | Fate::LoseAndFail => Err(Refusal::Io),
        }
    }

    pub fn size(&self, handle: HandleId) -> Result<usize, Refusal> {
        self.alive()?;
        Ok(self.file(handle).image.current.len())
    }

    /// The size of the file of that name.
    pub fn find(&self, name: &str) -> Result<Option<usize>, Refusal> {
        self.alive()?;
        Ok(self.names.get(name).map(|file| self.files[file].image.current.len()))
    }

    pub fn lock(&mut self, handle: HandleId, level: Level) -> Result<(), Refusal> {
        self.alive()?;
        Ok(self.file_mut(handle).locks.lock(handle, level)?)
    }

    /// Works after a power cut too: it touches no disk, and the dead connection must be able to go.
    pub fn unlock(&mut self, handle: HandleId, down_to: Level) {
        self.file_mut(handle).locks.unlock(handle, down_to);
    }

    pub fn is_reserved(&self, handle: HandleId) -> Result<bool, Refusal> {
        self.alive()?;
        Ok(self.file(handle).locks.is_reserved())
    }

    pub fn map(&mut self, handle: HandleId) -> Result<&mut SharedMemory, Refusal> {
        self.alive()?;
        Ok(self.file_mut(handle).shared_memory.get_or_insert_default())
    }

    pub fn shared_memory(&mut self, handle: HandleId) -> Result<&mut SharedMemory, Refusal> {
        self.file_mut(handle).shared_memory.as_mut().ok_or(Refusal::NotMapped)
    }

    pub fn unmap(&mut self, handle: HandleId) {
        let Some(open) = self.handles.get(&handle) else { return };
        let Some(file) = self.files.get_mut(&open.file) else { return };
        file.shared_memory.take_if(|memory| memory.leave(handle));
    }

    pub fn alive(&self) -> Result<(), Refusal> {
        if self.is_dead() { Err(Refusal::Io) } else { Ok(()) }
    }

    pub fn is_dead(&self) -> bool {
        self.survived.is_some()
    }

    /// The first cut decides; a disk without power cannot lose more.
    pub fn cut_power(&mut self, cut: PowerCut) {
        if self.survived.is_none() {
            self.survived = Some(self.what_survives(cut));
        }
    }

    /// A fresh disk with what survived, which is all there is if the power was not cut.
    pub fn survivor(&self) -> Self {
        let survived = self.survived.clone().unwrap_or_else(|| self.what_survives(PowerCut::KeepAll));
        let mut fresh = Self::new(self.powersafe_overwrite);
        for (name, bytes) in survived {
            let file = fresh.create(Some(&name));
            fresh.files.insert(file, File { image: FileImage::found(bytes), ..File::default() });
            fresh.durable_names.insert(name, file);
        }
        fresh
    }

    pub fn files(&self) -> Vec<(String, usize)> {
        let size = |file| self.files[file].image.current.len();
        self.names.iter().map(|(name, file)| (name.clone(), size(file))).collect()
    }

    pub fn read_file(&self, name: &str) -> Option<Vec<u8>> {
        self.names.get(name).map(|file| self.files[file].image.current.clone())
    }

    pub fn flip_bit(&mut self, name: &str, offset: usize, bit: u8) -> bool {
        let file = self.names.get(name).and_then(|file| self.files.get_mut(file));
        file.is_some_and(|file| file.image.flip_bit(offset, bit))
    }

    pub fn open_files(&self) -> usize {
        self.handles.len()
    }

    fn decide(
        &mut self,
        handle: HandleId,
        kind: OperationKind,
        offset: usize,
        len: usize,
    ) -> Result<Fate, Refusal> {
        self.alive()?;
        match &self.handles[&handle].name {
            Some(name) => Ok(self.plan.decide(Operation { kind, file: name.clone(), offset, len })),
            None => Ok(Fate::Proceed),
        }
    }

    fn change(&mut self, handle: HandleId, fate: Fate, change: Change) -> Result<(), Refusal> {
        let image = &mut self.file_mut(handle).image;
        match fate {
            Fate::Proceed | Fate::Corrupt { .. } => {
                image.change(change);
                Ok(())
            }
            Fate::SucceedAndFail => {
                image.change(change);
                self.make_durable(handle);
                Err(Refusal::Io)
            }
            Fate::Fail | Fate::LoseAndFail => Err(Refusal::Io),
            Fate::Full => Err(Refusal::Full),
            Fate::Crash(cut) => {
                if cut != PowerCut::KeepAll {
                    image.change(change);
                }
                self.cut_power(cut);
                Err(Refusal::Io)
            }
        }
    }

    fn make_durable(&mut self, handle: HandleId) {
        self.file_mut(handle).image.sync();
        let open = self.handles.get_mut(&handle).expect("an open handle is known");
        let (file, folder_too) = (open.file, std::mem::take(&mut open.folder_sync_due));
        // A file that was deleted while open has no name to save.
        let name = open.name.clone().filter(|name| self.names.get(name) == Some(&file));
        if let Some(name) = name {
            self.durable_names.insert(name.clone(), file);
            if folder_too {
                self.sync_folder(&name);
            }
        }
        self.forget_unreachable_files();
    }

    fn sync_folder(&mut self, name: &str) {
        let folder = Path::new(name).parent();
        let inside = |name: &String| Path::new(name).parent() == folder;
        self.durable_names.retain(|name, _| !inside(name));
        let now = self.names.iter().filter(|(name, _)| inside(name));
        self.durable_names.extend(now.map(|(name, file)| (name.clone(), *file)));
    }

    fn what_survives(&self, cut: PowerCut) -> BTreeMap<String, Vec<u8>> {
        let image = |file: &FileId| &self.files[file].image;
        match cut {
            PowerCut::KeepAll => {
                self.names.iter().map(|(name, file)| (name.clone(), image(file).current.clone())).collect()
            }
            PowerCut::DropUnsynced => self
                .durable_names
                .iter()
                .map(|(name, file)| (name.clone(), image(file).durable.clone()))
                .collect(),
            PowerCut::Torn { seed } => {
                let mut random = StdRng::seed_from_u64(seed);
                let names = self.torn_names(&mut random);
                let torn = |(name, file)| (name, image(&file).torn(self.powersafe_overwrite, &mut random));
                names.into_iter().map(torn).collect()
            }
        }
    }

    /// Each unsynced creation and deletion happens or not.
    fn torn_names(&self, random: &mut StdRng) -> BTreeMap<String, FileId> {
        let mut survived = self.durable_names.clone();
        let changed = |name: &&String| self.names.get(*name) != self.durable_names.get(*name);
        let both =
            self.names.keys().chain(self.durable_names.keys().filter(|name| !self.names.contains_key(*name)));
        for name in both.filter(changed) {
            if random.random_bool(0.5) {
                match self.names.get(name) {
                    Some(file) => survived.insert(name.clone(), *file),
                    None => survived.remove(name),
                };
            }
        }
        survived
    }

    fn create(&mut self, name: Option<&str>) -> FileId {
        let file = self.new_id();
        self.files.insert(file, File::default());
        if let Some(name) = name {
            self.names.insert(name.to_owned(), file);
        }
        file
    }

    fn forget_unreachable_files(&mut self) {
        let Self { files, names, durable_names, handles, .. } = self;
        let named = |id: &FileId| names.values().chain(durable_names.values()).any(|file| file == id);
        files.retain(|id, _| named(id) || handles.values().any(|handle| handle.file == *id));
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn file(&self, handle: HandleId) -> &File {
        &self.files[&self.handles[&handle].file]
    }

    fn file_mut(&mut self, handle: HandleId) -> &mut File {
        let file = self.handles[&handle].file;
        self.files.get_mut(&file).expect("an open file is kept")
    }
}

fn flip_one_bit(bytes: &mut [u8], seed: u64) {
    if !bytes.is_empty() {
        let mut random = StdRng::seed_from_u64(seed);
        let at = random.random_range(0..bytes.len());
        bytes[at] ^= 1 << random.random_range(0..8);
    }
}
