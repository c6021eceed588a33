//! The rows of the journal's table: how one is read, and which of them may be written over.
//!
//! A row is as long as a page. Once the ledger has its claims its place is taken by others, so a commit changes the pages
//! of its own claims and no other, and the file stays as long as what the ledger was ever behind. Knows nothing of when.

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use rusqlite::{Connection, Row};

use super::claim::{self, Claim};

/// The claims after the number `cursor`, which the ledger does not have. They follow one on the other: a journal with a
/// hole is not believed.
pub fn claims_after(connection: &Connection, cursor: u64) -> anyhow::Result<Vec<(u64, Arc<Claim>)>> {
    let claims = claims_held(connection, cursor)?;
    ensure_whole(&claims, cursor)?;
    Ok(claims)
}

/// That these claims, all after the number `cursor`, follow one on the other.
pub fn ensure_whole(claims: &[(u64, Arc<Claim>)], cursor: u64) -> anyhow::Result<()> {
    for ((seq, _), wanted) in claims.iter().zip(cursor + 1..) {
        ensure!(
            *seq == wanted,
            "the journal has lost claim {wanted} and goes on with {seq}. Restore it from the same moment as the ledger."
        );
    }
    Ok(())
}

/// The claims after the number `cursor` that are there, in the order of their numbers. Up to what the ledger has, others
/// were written over some of them.
pub fn claims_held(connection: &Connection, cursor: u64) -> anyhow::Result<Vec<(u64, Arc<Claim>)>> {
    let mut entry = connection.prepare("select first_seq, last_seq, claims from entries where slot = ?1")?;
    let mut claims = Vec::new();
    for (_, slot) in in_order(connection)?.into_iter().filter(|(last_seq, _)| *last_seq > cursor) {
        let entry = entry.query_row([slot], |row| Ok(read(row)))??;
        claims.extend(entry.into_iter().filter(|(seq, _)| *seq > cursor));
    }
    Ok(claims)
}

/// The last number of each row and its slot, in the order of the numbers.
fn in_order(connection: &Connection) -> anyhow::Result<Vec<(u64, i64)>> {
    let mut statement = connection.prepare("select last_seq, slot from entries order by last_seq")?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get(1)?)))?;
    rows.map(|row| row.map_err(Into::into).and_then(|(last, slot)| Ok((u64::try_from(last)?, slot))))
        .collect()
}

fn read(row: &Row<'_>) -> anyhow::Result<Vec<(u64, Arc<Claim>)>> {
    let (first, last): (i64, i64) = (row.get(0)?, row.get(1)?);
    let numbers = u64::try_from(first)?..=u64::try_from(last)?;
    let claims = claim::decode(row.get_ref(2)?.as_blob()?, numbers.clone().count())
        .with_context(|| format!("the journal's entry {last} does not hold what it says"))?;
    Ok(numbers.zip(claims).collect())
}

/// Which rows there are.
#[derive(Debug, Default)]
pub struct Slots {
    /// The last number in each, and the slot; in the order of the numbers.
    used: VecDeque<(u64, i64)>,
    /// Those whose claims the ledger has. The one that was freed last is taken first: few pages change often.
    free: Vec<i64>,
    /// The highest that was ever used.
    last: i64,
}

impl Slots {
    pub fn of(connection: &Connection) -> anyhow::Result<Self> {
        let mut slots = Self::default();
        in_order(connection)?.into_iter().for_each(|(last_seq, slot)| slots.wrote(slot, last_seq));
        Ok(slots)
    }

    /// The last number that was written; 0 before the first.
    pub fn last_seq(&self) -> u64 {
        self.used.back().map_or(0, |(last_seq, _)| *last_seq)
    }

    /// The claims up to `last_seq` stand in this slot. In the order of the numbers.
    pub fn wrote(&mut self, slot: i64, last_seq: u64) {
        self.last = self.last.max(slot);
        self.used.push_back((last_seq, slot));
    }

    /// A slot to write to, now that the ledger has everything up to `recorded`. To be told by [`Self::wrote`] what was
    /// written, or given back.
    pub fn take(&mut self, recorded: u64) -> i64 {
        while let Some((_, slot)) = self.used.pop_front_if(|(last_seq, _)| *last_seq <= recorded) {
            self.free.push(slot);
        }
        self.free.pop().unwrap_or_else(|| {
            self.last += 1;
            self.last
        })
    }

    /// Nothing was written to it.
    pub fn give_back(&mut self, slot: i64) {
        self.free.push(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_written_over_once_the_ledger_has_its_claims_and_not_before() {
        let mut slots = Slots::default();
        for last_seq in [10, 20, 30] {
            let slot = slots.take(0);
            slots.wrote(slot, last_seq);
        }
        assert_eq!(slots.take(9), 4, "nothing is free");
        slots.wrote(4, 40);
        assert_eq!(slots.take(20), 2, "the ledger has all of it");
        assert_eq!(slots.take(20), 1);
        assert_eq!(slots.take(20), 5);
    }

    #[test]
    fn what_was_not_written_is_free() {
        let mut slots = Slots::default();
        let slot = slots.take(0);
        slots.give_back(slot);
        assert_eq!(slots.take(0), slot);
    }

    #[test]
    fn rows_that_were_found_at_the_start_are_used_again() {
        let mut slots = Slots::default();
        slots.wrote(7, 10);
        slots.wrote(3, 20);
        assert_eq!([slots.take(10), slots.take(10)], [7, 8]);
    }

    /// A journal with these entries, each from its first number to its last.
    fn journal(entries: &[(i64, i64)]) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(include_str!("../../migrations/journal/0001_entries.sql")).unwrap();
        for (first, last) in entries {
            let claims: Vec<_> = (*first..=*last).map(claim).collect();
            let mut written = claim::Entries::default();
            written.fill(claims.iter()).unwrap();
            let (bytes, _) = written.iter().next().unwrap();
            let sql = "insert into entries (first_seq, last_seq, claims) values (?1, ?2, ?3)";
            connection.execute(sql, rusqlite::params![first, last, bytes]).unwrap();
        }
        connection
    }

    fn claim(seq: i64) -> Claim {
        Claim {
            order: rules::id::OrderId(u128::try_from(seq).unwrap()),
            offer: rules::id::OfferId(1),
            buyer: rules::buyer::BuyerId::parse("ann").unwrap(),
            quantity: 1,
            claimed_at: rules::time::UnixMs(0),
            pass_expires_at: rules::time::UnixMs(0),
            revives: None,
        }
    }

    #[test]
    fn claims_after_a_number_come_in_order_wherever_they_stand() {
        let journal = journal(&[(7, 9), (1, 3), (4, 6)]);
        let found = claims_after(&journal, 5).unwrap();
        let wanted: Vec<_> = (6..=9).map(|seq| (u64::try_from(seq).unwrap(), Arc::new(claim(seq)))).collect();
        assert_eq!(found, wanted);
        assert_eq!(Slots::of(&journal).unwrap().last_seq(), 9);
    }

    #[test]
    fn a_journal_with_a_hole_is_not_believed() {
        let refusal = |journal, cursor| claims_after(&journal, cursor).unwrap_err().to_string();
        let lost = |seq| format!("the journal has lost claim {seq} and goes on with 6.");
        assert!(refusal(journal(&[(1, 3), (6, 7)]), 2).starts_with(&lost(4)));
        assert!(refusal(journal(&[(6, 7)]), 2).starts_with(&lost(3)));
        assert!(claims_after(&journal(&[(1, 1), (6, 7)]), 5).is_ok(), "the ledger has what is missing");
    }

    #[test]
    fn an_entry_that_holds_less_than_it_says_is_named() {
        let journal = journal(&[(1, 3)]);
        journal.execute("update entries set claims = substr(claims, 1, 10)", []).unwrap();
        let refusal = claims_after(&journal, 0).unwrap_err().to_string();
        assert_eq!(refusal, "the journal's entry 3 does not hold what it says");
    }
}
