//! The journal's file as an audit reads it while no server runs: everything that is there, without judging it and
//! without changing it. [`super::Journal`] opens it to go on; this only looks.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;

use super::claim::Claim;
use super::slots::{Slots, claims_held};
use super::sqlite;

/// What is in a journal.
#[derive(Clone, Debug, Default)]
pub struct JournalLook {
    /// Which ledger it belongs to; nothing before its first start.
    pub incarnation: Option<Vec<u8>>,
    /// Where it ends; 0 when it is empty.
    pub last_seq: u64,
    /// The claims it still holds, by their numbers; among them ones that the ledger has.
    pub claims: Vec<(u64, Arc<Claim>)>,
}

impl JournalLook {
    /// `None` when there is no such file: a ledger that never had a server.
    pub fn at(path: &Path) -> anyhow::Result<Option<Self>> {
        if sqlite::file_version(path)?.is_none_or(|version| version == 0) {
            return Ok(None);
        }
        let connection = sqlite::open_reader(path, None)?;
        let read = || -> anyhow::Result<Self> {
            let mut look = Self::default();
            let mut identity = connection.prepare("select incarnation from identity")?;
            look.incarnation = identity.query_map([], |row| row.get(0))?.next().transpose()?;
            look.last_seq = Slots::of(&connection)?.last_seq();
            look.claims = claims_held(&connection, 0)?;
            Ok(look)
        };
        read().map(Some).with_context(|| format!("cannot read {}", path.display()))
    }
}
