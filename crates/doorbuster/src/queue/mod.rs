//! The queue: a bounded, durable hand-over of claims from the gate to the clerk. On one machine it is the journal.

pub mod claim;

pub mod copying;

pub mod journal;

pub mod look;

pub mod reply;

mod slots;

pub mod sqlite;

pub mod unrecorded;

pub use claim::{Claim, Revive};
pub use journal::{Journal, JournalHandle, Journaled, Misfit};
pub use look::JournalLook;
pub use unrecorded::Unrecorded;
