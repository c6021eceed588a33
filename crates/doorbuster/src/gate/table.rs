//! One shard of what the gate remembers: (offer, buyer) -> order, in flat memory.
//!
//! Writers hold the shard's lock; readers hold nothing. That works without unsafe code because a slot's key never
//! changes once it is published: a slot goes from empty to used once, and is only taken away by copying the shard into
//! a new table. What a reader sees is therefore either "nobody of that name" or a slot whose key is final.
//!
//! Slots are 40 bytes: at a million claims the table is most of what the process holds.

use prefetch_index::prefetch_index;

use super::sync::{AtomicU64, AtomicUsize, Ordering, Swap};

/// The key of a buyer at an offer: a 128-bit keyed hash, compared in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    pub high: u64,
    pub low: u64,
}

/// What a slot says about its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing: a grant was rolled back. The slot waits for the same buyer.
    Vacant,
    /// Granted, not yet durable.
    Pending,
    /// Durable and holding units.
    Live,
    /// Ended; its pass is spent until it expires.
    Ended,
}

/// A slot's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub mark: Mark,
    pub order: u128,
    /// At most 100.
    pub quantity: u8,
    /// Which offer, by its number in this process.
    pub offer_no: u32,
    pub pass_expires_at_s: u32,
}

/// Most offers that can be known at once: 22 bits of a slot.
pub const OFFERS_MAX: u32 = 1 << 22;

const QUANTITY_SHIFT: u32 = 3;
const OFFER_SHIFT: u32 = 10;
const EXPIRY_SHIFT: u32 = 32;

const EMPTY: u64 = 0;
const MARKS: [(u64, Mark); 4] = [(1, Mark::Vacant), (2, Mark::Pending), (3, Mark::Live), (4, Mark::Ended)];

/// Four used slots in five, then the table grows by a quarter: between 50 and 63 bytes per claim.
const LOAD_NUMERATOR: usize = 4;
const LOAD_DENOMINATOR: usize = 5;
const SLOTS_MIN: usize = 16;
/// Slots of one page of memory, at least.
const SLOTS_PER_PAGE: usize = 4_096 / size_of::<Slot>();

#[derive(Debug)]
struct Slot {
    key_high: AtomicU64,
    key_low: AtomicU64,
    order_high: AtomicU64,
    order_low: AtomicU64,
    /// Mark, quantity, offer number, expiry. Zero is an empty slot; storing anything else publishes the key.
    meta: AtomicU64,
}

impl Slot {
    fn empty() -> Self {
        Self {
            key_high: AtomicU64::new(0),
            key_low: AtomicU64::new(0),
            order_high: AtomicU64::new(0),
            order_low: AtomicU64::new(0),
            meta: AtomicU64::new(EMPTY),
        }
    }

    #[inline]
    fn holds(&self, key: Key) -> bool {
        self.key_low.load(Ordering::Relaxed) == key.low && self.key_high.load(Ordering::Relaxed) == key.high
    }

    fn key(&self) -> Key {
        Key { high: self.key_high.load(Ordering::Relaxed), low: self.key_low.load(Ordering::Relaxed) }
    }

    fn read(&self) -> Option<Entry> {
        let meta = self.meta.load(Ordering::Acquire);
        let (_, mark) = MARKS.into_iter().find(|(bits, _)| *bits == meta & 7)?;
        let order = (u128::from(self.order_high.load(Ordering::Relaxed)) << 64)
            | u128::from(self.order_low.load(Ordering::Relaxed));
        Some(Entry {
            mark,
            order,
            quantity: low_bits(meta >> QUANTITY_SHIFT, 7),
            offer_no: low_bits(meta >> OFFER_SHIFT, 22),
            pass_expires_at_s: low_bits(meta >> EXPIRY_SHIFT, 32),
        })
    }

    /// The meta word is stored last and released: who sees it sees the key.
    fn write(&self, key: Key, entry: &Entry) {
        self.key_high.store(key.high, Ordering::Relaxed);
        self.key_low.store(key.low, Ordering::Relaxed);
        self.order_high.store(u64_of(entry.order >> 64), Ordering::Relaxed);
        self.order_low.store(u64_of(entry.order), Ordering::Relaxed);
        let mark = MARKS.into_iter().find(|(_, mark)| *mark == entry.mark).map_or(EMPTY, |(bits, _)| bits);
        let meta = mark
            | (u64::from(entry.quantity & 0x7f) << QUANTITY_SHIFT)
            | (u64::from(entry.offer_no) << OFFER_SHIFT)
            | (u64::from(entry.pass_expires_at_s) << EXPIRY_SHIFT);
        self.meta.store(meta, Ordering::Release);
    }
}

fn u64_of(value: u128) -> u64 {
    u64::try_from(value & u128::from(u64::MAX)).unwrap_or(u64::MAX)
}

fn low_bits<T: TryFrom<u64> + Default>(value: u64, bits: u32) -> T {
    let mask = u64::MAX >> (64 - bits);
    T::try_from(value & mask).unwrap_or_default()
}

#[derive(Debug)]
struct Slots {
    slots: Box<[Slot]>,
    length: u64,
}

impl Slots {
    fn with_capacity(capacity: usize) -> Self {
        let slots: Box<[Slot]> = std::iter::repeat_with(Slot::empty).take(capacity).collect();
        // Fresh memory is not there before it is written. Page after page it costs least; a slot that is read first and
        // written later costs twice, and stops the other cores for a moment.
        for slot in slots.iter().step_by(SLOTS_PER_PAGE) {
            slot.meta.store(EMPTY, Ordering::Relaxed);
        }
        Self { length: u64::try_from(capacity).unwrap_or(u64::MAX), slots }
    }

    /// Where a key belongs.
    #[inline]
    fn start(&self, key: Key) -> usize {
        // The high word spreads keys over a table of any length; the shard was chosen by the low word.
        let start = (u128::from(key.high) * u128::from(self.length)) >> 64;
        usize::try_from(start).unwrap_or(0).min(self.slots.len())
    }

    /// The slots a key may stand in, nearest first.
    #[inline]
    fn probe(&self, key: Key) -> impl Iterator<Item = &Slot> {
        let (before, after) = self.slots.split_at(self.start(key));
        after.iter().chain(before)
    }

    /// The slot of this key, or the empty one where it belongs. `None` only if every slot is used by others.
    #[inline]
    fn find(&self, key: Key) -> Option<Found<'_>> {
        for slot in self.probe(key) {
            if slot.meta.load(Ordering::Acquire) == EMPTY {
                return Some(Found::Empty(slot));
            }
            if slot.holds(key) {
                return Some(Found::Used(slot));
            }
        }
        None
    }

    fn entries(&self) -> impl Iterator<Item = (Key, Entry)> {
        self.slots.iter().filter_map(|slot| slot.read().map(|entry| (slot.key(), entry)))
    }
}

enum Found<'a> {
    Empty(&'a Slot),
    Used(&'a Slot),
}

/// The table of one shard. [`Table::contains`] and [`Table::fetch`] may be called by anyone at any time. Everything else
/// belongs to whoever holds the shard's lock: two writers at once would be safe, but not exact.
#[derive(Debug)]
pub struct Table {
    slots: Swap<Slots>,
    /// Used slots, whatever their mark.
    used: AtomicUsize,
}

impl Table {
    pub fn new() -> Self {
        Self { slots: Swap::new(Slots::with_capacity(SLOTS_MIN)), used: AtomicUsize::new(0) }
    }

    /// Has the slot fetched that a look at this key will need, and does not wait for it.
    #[inline]
    pub fn fetch(&self, key: Key) {
        self.slots.read(|slots| {
            let start = slots.start(key);
            prefetch_index(&slots.slots, start);
            // A slot is no whole number of cache lines, and often the next one is asked, too.
            prefetch_index(&slots.slots, start + 1);
        });
    }

    /// Whether this key has a slot. Takes no lock: a refusal for want of stock waits for nobody.
    #[inline]
    pub fn contains(&self, key: Key) -> bool {
        self.slots.read(|slots| matches!(slots.find(key), Some(Found::Used(_))))
    }

    pub fn get(&self, key: Key) -> Option<Entry> {
        self.slots.read(|slots| match slots.find(key) {
            Some(Found::Used(slot)) => slot.read(),
            Some(Found::Empty(_)) | None => None,
        })
    }

    /// Changes the entry of a key as `change` says; `false` when there is none, or `change` does not want to.
    pub fn change(&self, key: Key, change: impl FnOnce(Entry) -> Option<Entry>) -> bool {
        self.slots.read(|slots| match slots.find(key) {
            Some(Found::Used(slot)) => {
                let changed = slot.read().and_then(change);
                if let Some(entry) = &changed {
                    slot.write(key, entry);
                }
                changed.is_some()
            }
            Some(Found::Empty(_)) | None => false,
        })
    }

    /// Sets the entry of a key. `keep` says which entries must survive when the table is copied to make room.
    pub fn set(&self, key: Key, entry: &Entry, keep: impl Fn(&Entry) -> bool) {
        if self.write(key, entry) {
            return;
        }
        self.make_room(keep);
        self.write(key, entry);
    }

    /// Drops what `keep` does not want, and memory that is no longer needed. Does nothing when all is wanted.
    pub fn retain(&self, keep: impl Fn(&Entry) -> bool) {
        if self.slots.read(|slots| !slots.entries().all(|(_, entry)| keep(&entry))) {
            self.copy_kept(keep, 0);
        }
    }

    /// Every used slot; belongs to whoever holds the lock.
    pub fn visit(&self, mut look: impl FnMut(Key, Entry)) {
        self.slots.read(|slots| slots.entries().for_each(|(key, entry)| look(key, entry)));
    }

    /// How many slots are used, about: anybody may ask.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Memory of the slots, in bytes.
    pub fn bytes(&self) -> usize {
        self.slots.read(|slots| size_of_val(&*slots.slots))
    }

    /// `false` when the table is too full for another key.
    fn write(&self, key: Key, entry: &Entry) -> bool {
        self.slots.read(|slots| match slots.find(key) {
            Some(Found::Used(slot)) => {
                slot.write(key, entry);
                true
            }
            Some(Found::Empty(slot)) => {
                let used = self.used.load(Ordering::Relaxed);
                let fits = (used + 1) * LOAD_DENOMINATOR <= slots.slots.len() * LOAD_NUMERATOR;
                if fits {
                    slot.write(key, entry);
                    self.used.store(used + 1, Ordering::Relaxed);
                }
                fits
            }
            None => false,
        })
    }

    fn make_room(&self, keep: impl Fn(&Entry) -> bool) {
        self.copy_kept(keep, 1);
    }

    /// Copies the wanted entries into a table with room for a quarter more of them.
    fn copy_kept(&self, keep: impl Fn(&Entry) -> bool, at_least: usize) {
        let kept: Vec<(Key, Entry)> =
            self.slots.read(|slots| slots.entries().filter(|(_, entry)| keep(entry)).collect());
        let wanted = kept.len() + kept.len() / 4 + at_least;
        let capacity = (wanted * LOAD_DENOMINATOR).div_ceil(LOAD_NUMERATOR).max(SLOTS_MIN);
        let fresh = Slots::with_capacity(capacity);
        for (key, entry) in &kept {
            if let Some(Found::Empty(slot) | Found::Used(slot)) = fresh.find(*key) {
                slot.write(*key, entry);
            }
        }
        self.used.store(kept.len(), Ordering::Relaxed);
        self.slots.replace(fresh);
    }
}
