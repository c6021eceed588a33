//! Owns what goes wrong, and when: the plan counts operations and gives each its fate. Does not know files' contents.

use std::collections::{BTreeMap, VecDeque};

use super::{LOG_OPERATIONS_MAX, PowerCut};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OperationKind {
    Write,
    Sync,
    Truncate,
    Delete,
    /// Counted apart: only a fault with `on(OperationKind::Read)` sees reads, and the log leaves them out.
    Read,
}

/// One counted operation. A truncate has the new size as its offset; a sync and a delete have neither.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operation {
    pub kind: OperationKind,
    pub file: String,
    pub offset: usize,
    pub len: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The power is cut during this operation, which is itself unsynced work: a sync has made nothing durable, a
    /// write may be torn. With [`PowerCut::KeepAll`], which is the death of the process alone, it does not happen.
    Crash(PowerCut),

    /// This operation fails with an I/O error. A failed sync leaves its changes pending: a second one may save them.
    Eio,

    /// This and every later counted operation fails, until [`Disk::heal`](super::Disk::heal). Reads go on.
    EioSticky,

    /// As `Eio`, but a failed sync drops its changes, as Linux does: reads still see them, yet no later sync saves
    /// them.
    LostSync,

    /// From this operation on every write fails with `SQLITE_FULL`, until [`Disk::free_space`](super::Disk::free_space).
    /// Other operations go on. Counts as fired at the first write that was refused.
    Enospc,

    /// As `Enospc`, for one write.
    EnospcOnce,

    /// This operation takes effect, durably, with all pending changes of its file, and then reports an I/O error.
    ErrorAfterSuccess,

    /// This operation, if it is a write or read, has one bit flipped (chosen by the seed) and reports success.
    /// Another operation goes on unharmed, and the next write or read takes the damage.
    Corrupt { seed: u64 },
}

/// A fault at the n-th operation.
#[derive(Debug, Clone)]
pub struct Fault {
    at: u64,
    kind: Kind,
    only: Option<OperationKind>,
    file_suffix: Option<String>,
}

impl Fault {
    /// At the `n`-th counted operation after the fault was planned; the next one is the first.
    pub fn at(n: u64, kind: Kind) -> Self {
        assert!(n > 0, "operations are counted from one");
        Self { at: n, kind, only: None, file_suffix: None }
    }

    /// Counts operations of this kind alone.
    pub fn on(mut self, kind: OperationKind) -> Self {
        self.only = Some(kind);
        self
    }

    /// Counts operations on files alone whose name ends so, for example `-wal`.
    pub fn of_file(mut self, suffix: &str) -> Self {
        self.file_suffix = Some(suffix.to_owned());
        self
    }

    fn matches(&self, operation: &Operation) -> bool {
        let kind_matches = match self.only {
            Some(kind) => kind == operation.kind,
            None => operation.kind != OperationKind::Read,
        };
        kind_matches && self.file_suffix.as_deref().is_none_or(|suffix| operation.file.ends_with(suffix))
    }
}

/// What the plan decides about one operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Proceed,
    Fail,
    Full,
    LoseAndFail,
    SucceedAndFail,
    Corrupt { seed: u64 },
    Crash(PowerCut),
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    faults: Vec<Planned>,
    log: VecDeque<Operation>,
    counts: BTreeMap<OperationKind, u64>,
}

#[derive(Debug)]
struct Planned {
    fault: Fault,
    seen: u64,
    /// The condition holds: a full disk, a broken device, a bit waiting for a write to be flipped in.
    armed: bool,
    fired: bool,
}

impl Plan {
    pub fn add(&mut self, fault: Fault) {
        self.faults.push(Planned { fault, seen: 0, armed: false, fired: false });
    }

    pub fn fired(&self) -> bool {
        !self.faults.is_empty() && self.faults.iter().all(|planned| planned.fired)
    }

    pub fn free_space(&mut self) {
        self.disarm(|kind| matches!(kind, Kind::Enospc | Kind::EnospcOnce));
    }

    pub fn heal(&mut self) {
        self.disarm(|kind| matches!(kind, Kind::EioSticky));
    }

    pub fn operations(&self) -> u64 {
        self.counts.iter().filter(|(kind, _)| **kind != OperationKind::Read).map(|(_, count)| count).sum()
    }

    pub fn count(&self, kind: OperationKind) -> u64 {
        self.counts.get(&kind).copied().unwrap_or(0)
    }

    pub fn log(&self) -> Vec<Operation> {
        self.log.iter().cloned().collect()
    }

    /// Counts the operation and decides its fate. The earliest planned fault that applies wins; the others still count.
    pub fn decide(&mut self, operation: Operation) -> Fate {
        *self.counts.entry(operation.kind).or_default() += 1;
        let mut fate = Fate::Proceed;
        for planned in &mut self.faults {
            planned.see(&operation);
            if fate == Fate::Proceed {
                fate = planned.strike(operation.kind);
            }
        }
        if operation.kind != OperationKind::Read {
            if self.log.len() == LOG_OPERATIONS_MAX {
                self.log.pop_front();
            }
            self.log.push_back(operation);
        }
        fate
    }

    fn disarm(&mut self, ends: impl Fn(&Kind) -> bool) {
        self.faults
            .iter_mut()
            .filter(|planned| ends(&planned.fault.kind))
            .for_each(|planned| planned.armed = false);
    }
}

impl Planned {
    fn see(&mut self, operation: &Operation) {
        if self.fault.matches(operation) {
            self.seen += 1;
            self.armed |= self.seen == self.fault.at;
        }
    }

    fn strike(&mut self, operation: OperationKind) -> Fate {
        if !self.armed {
            return Fate::Proceed;
        }
        let is_read = operation == OperationKind::Read;
        let (fate, lasts) = match self.fault.kind {
            Kind::Crash(cut) => (Fate::Crash(cut), false),
            Kind::Eio => (Fate::Fail, false),
            Kind::LostSync => (Fate::LoseAndFail, false),
            Kind::ErrorAfterSuccess => (Fate::SucceedAndFail, false),
            Kind::EioSticky if is_read && self.fault.only != Some(OperationKind::Read) => {
                (Fate::Proceed, true)
            }
            Kind::EioSticky => (Fate::Fail, true),
            Kind::Enospc if operation == OperationKind::Write => (Fate::Full, true),
            Kind::EnospcOnce if operation == OperationKind::Write => (Fate::Full, false),
            Kind::Enospc | Kind::EnospcOnce => (Fate::Proceed, true),
            Kind::Corrupt { seed } if operation == OperationKind::Write || is_read => {
                (Fate::Corrupt { seed }, false)
            }
            Kind::Corrupt { .. } => (Fate::Proceed, true),
        };
        self.armed = lasts;
        self.fired |= fate != Fate::Proceed;
        fate
    }
}
