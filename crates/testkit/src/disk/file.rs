//! Owns the two images of one file, and what of the pending changes between them survives a power cut. Does not know
//! names, locks or faults.

use rand::rngs::StdRng;
use rand::{Rng, RngExt};

use super::SECTOR_BYTES;

/// What survives a power cut beside the durable image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerCut {
    /// Nothing that was not synced: the cruellest orderly disk.
    DropUnsynced,

    /// Each pending change by itself, chosen by the seed: wholly, not at all, or, for a write, a prefix of whole
    /// sectors. Without power-safe overwrite the sector at the tear holds rubbish, the bytes beside the write included.
    Torn { seed: u64 },

    /// Everything that was written: the process died, the operating system lives.
    KeepAll,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Truncate { size: usize },
}

#[derive(Debug, Clone, Default)]
pub(super) struct FileImage {
    pub current: Vec<u8>,
    pub durable: Vec<u8>,
    pending: Vec<Change>,
}

impl FileImage {
    /// A file as found after a power cut: what is there is durable.
    pub fn found(bytes: Vec<u8>) -> Self {
        Self { current: bytes.clone(), durable: bytes, pending: Vec::new() }
    }

    pub fn change(&mut self, change: Change) {
        apply(&mut self.current, &change);
        self.pending.push(change);
    }

    pub fn sync(&mut self) {
        for change in self.pending.drain(..) {
            apply(&mut self.durable, &change);
        }
    }

    /// The pages are marked clean, yet never reached the disk.
    pub fn lose_pending(&mut self) {
        self.pending.clear();
    }

    pub fn flip_bit(&mut self, offset: usize, bit: u8) -> bool {
        self.sync();
        let mask = 1 << (bit % 8);
        let Some(byte) = self.current.get_mut(offset) else { return false };
        *byte ^= mask;
        if let Some(byte) = self.durable.get_mut(offset) {
            *byte ^= mask;
        }
        true
    }

    /// The durable image with each pending change applied, torn or dropped.
    pub fn torn(&self, powersafe_overwrite: bool, random: &mut StdRng) -> Vec<u8> {
        let mut survived = self.durable.clone();
        for change in &self.pending {
            match (random.random_range(0..3), change) {
                (0, _) => {}
                (1, _) | (_, Change::Truncate { .. }) => apply(&mut survived, change),
                (_, Change::Write { offset, bytes }) => {
                    tear(&mut survived, *offset, bytes, powersafe_overwrite, random);
                }
            }
        }
        survived
    }
}

fn apply(image: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write { offset, bytes } => {
            if image.len() < *offset {
                image.resize(*offset, 0);
            }
            let (over, beyond) = bytes.split_at(bytes.len().min(image.len() - offset));
            image[*offset..offset + over.len()].copy_from_slice(over);
            image.extend_from_slice(beyond);
        }
        // SQLite asks for truncation to a larger size as well (`xTruncate` after a rollback); it grows by zeros.
        Change::Truncate { size } => image.resize(*size, 0),
    }
}

fn tear(image: &mut Vec<u8>, offset: usize, bytes: &[u8], powersafe_overwrite: bool, random: &mut StdRng) {
    let first = offset / SECTOR_BYTES;
    let end = (offset + bytes.len()).div_ceil(SECTOR_BYTES);
    let torn_sector = random.random_range(first..end.max(first + 1));
    let kept = (torn_sector * SECTOR_BYTES).saturating_sub(offset);
    apply(image, &Change::Write { offset, bytes: bytes[..kept].to_vec() });
    if !powersafe_overwrite {
        let sector_start = (torn_sector * SECTOR_BYTES).min(image.len());
        let sector_end = ((torn_sector + 1) * SECTOR_BYTES).min(image.len());
        random.fill_bytes(&mut image[sector_start..sector_end]);
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    fn write(offset: usize, bytes: &[u8]) -> Change {
        Change::Write { offset, bytes: bytes.to_vec() }
    }

    #[test]
    fn only_a_sync_makes_a_change_durable() {
        let mut file = FileImage::default();
        file.change(write(2, b"abc"));
        assert_eq!((file.current.as_slice(), file.durable.len()), (b"\0\0abc".as_slice(), 0));
        file.sync();
        file.change(Change::Truncate { size: 3 });
        assert_eq!(
            (file.current.as_slice(), file.durable.as_slice()),
            (b"\0\0a".as_slice(), b"\0\0abc".as_slice())
        );
    }

    #[test]
    fn a_lost_sync_is_seen_by_reads_and_saved_by_no_later_sync() {
        let mut file = FileImage::default();
        file.change(write(0, b"lost"));
        file.lose_pending();
        file.change(write(4, b"kept"));
        file.sync();
        assert_eq!(file.current, b"lostkept");
        assert_eq!(file.durable, b"\0\0\0\0kept");
    }

    #[test]
    fn a_torn_write_survives_as_a_prefix_of_whole_sectors() {
        const SECTORS: usize = 8;
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut file = FileImage::found(vec![0; SECTORS * SECTOR_BYTES]);
            file.change(write(0, &[1; SECTORS * SECTOR_BYTES]));
            let survived = file.torn(true, &mut StdRng::seed_from_u64(seed));
            let kept = survived.iter().take_while(|byte| **byte == 1).count();
            assert!(kept.is_multiple_of(SECTOR_BYTES) && survived[kept..].iter().all(|byte| *byte == 0));
            seen.insert(kept / SECTOR_BYTES);
        }
        assert_eq!(seen.len(), SECTORS + 1, "every prefix, none and all are met: {seen:?}");
    }

    #[test]
    fn without_powersafe_overwrite_the_neighbours_in_the_torn_sector_are_damaged_and_no_others() {
        let mut damaged = 0;
        for seed in 0..50 {
            let mut file = FileImage::found(vec![7; 3 * SECTOR_BYTES]);
            file.change(write(SECTOR_BYTES + 100, &[7; 8]));
            let survived = file.torn(false, &mut StdRng::seed_from_u64(seed));
            assert!(
                survived[..SECTOR_BYTES].iter().chain(&survived[2 * SECTOR_BYTES..]).all(|byte| *byte == 7)
            );
            damaged += usize::from(survived.iter().any(|byte| *byte != 7));
        }
        assert!((1..50).contains(&damaged), "{damaged} of 50");
    }
}
