//! The journal's file as audits and other looks read it while no server runs: what is there, without changing it. [`super::Journal`] opens it to go on; this only looks.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;

use super::claim::Claim;
use super::journal::Misfit;
use super::slots::{Slots, claims_held, ensure_whole};
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

    /// The claims that the ledger with this incarnation, whose clerk has recorded everything up to `cursor`, does not have.
    /// What [`super::Journal`] refuses is refused here, too: nobody should believe a ledger whose journal is another's.
    pub fn left(path: &Path, incarnation: &[u8; 16], cursor: u64) -> anyhow::Result<Vec<(u64, Arc<Claim>)>> {
        let Self { incarnation: found, last_seq, mut claims } = Self::at(path)?.unwrap_or_default();
        // A journal that has never been opened takes the ledger's name when it is.
        let found = found.as_deref().unwrap_or(incarnation);
        Misfit::refuse(path, found, last_seq, incarnation, cursor)?;
        claims.retain(|(seq, _)| *seq > cursor);
        ensure_whole(&claims, cursor)?;
        Ok(claims)
    }
}
