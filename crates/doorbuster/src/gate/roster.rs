//! Who signed up and who is blocked, in memory: passes are given without asking the ledger. Written through by the
//! registration and block calls, loaded whole at start.

use std::collections::{HashMap, HashSet};
use std::hash::Hasher as _;

use parking_lot::{Mutex, RwLock};
use rules::buyer::BuyerId;
use rules::id::SaleId;
use rules::time::UnixMs;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

const SHARDS: usize = 64;

/// Registrations of one sale, by a 128-bit keyed hash of (sale, buyer): a million of them take some 25 MB.
#[derive(Debug)]
pub struct Roster {
    registered: Box<[Mutex<HashSet<u128>>]>,
    counts: RwLock<HashMap<SaleId, u64>>,
    blocked: RwLock<HashMap<BuyerId, UnixMs>>,
    hash_keys: (u64, u64),
}

impl Roster {
    #[must_use]
    pub fn new(hash_keys: (u64, u64)) -> Self {
        Self {
            registered: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            counts: RwLock::default(),
            blocked: RwLock::default(),
            hash_keys,
        }
    }

    pub fn register(&self, sale: SaleId, buyer: &str) {
        if self.change(sale, buyer, |set, key| set.insert(key)) {
            *self.counts.write().entry(sale).or_default() += 1;
        }
    }

    pub fn unregister(&self, sale: SaleId, buyer: &str) {
        if self.change(sale, buyer, |set, key| set.remove(&key))
            && let Some(count) = self.counts.write().get_mut(&sale)
        {
            *count = count.saturating_sub(1);
        }
    }

    #[must_use]
    pub fn is_registered(&self, sale: SaleId, buyer: &str) -> bool {
        self.change(sale, buyer, |set, key| set.contains(&key))
    }

    /// How many buyers signed up for the sale.
    #[must_use]
    pub fn registrations(&self, sale: SaleId) -> u64 {
        self.counts.read().get(&sale).copied().unwrap_or(0)
    }

    pub fn block(&self, buyer: BuyerId, until: UnixMs) {
        self.blocked.write().insert(buyer, until);
    }

    pub fn unblock(&self, buyer: &BuyerId) {
        self.blocked.write().remove(buyer);
    }

    /// Until when the buyer is blocked, if that lies ahead.
    #[must_use]
    pub fn blocked_until(&self, buyer: &BuyerId, now: UnixMs) -> Option<UnixMs> {
        self.blocked.read().get(buyer).copied().filter(|until| *until > now)
    }

    fn change(&self, sale: SaleId, buyer: &str, work: impl FnOnce(&mut HashSet<u128>, u128) -> bool) -> bool {
        let mut hasher = SipHasher13::new_with_keys(self.hash_keys.0, self.hash_keys.1);
        hasher.write(&sale.to_bytes());
        hasher.write(buyer.as_bytes());
        let key = hasher.finish128().as_u128();
        let shard = usize::try_from(key & 0xffff).unwrap_or(0) % SHARDS;
        self.registered.get(shard).is_some_and(|shard| work(&mut shard.lock(), key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_are_counted_once() {
        let roster = Roster::new((1, 2));
        for _ in 0..2 {
            roster.register(SaleId(1), "ann");
        }
        roster.register(SaleId(2), "ann");
        assert_eq!((roster.registrations(SaleId(1)), roster.registrations(SaleId(2))), (1, 1));
        assert!(roster.is_registered(SaleId(1), "ann") && !roster.is_registered(SaleId(1), "bob"));
        for _ in 0..2 {
            roster.unregister(SaleId(1), "ann");
        }
        assert_eq!((roster.registrations(SaleId(1)), roster.registrations(SaleId(2))), (0, 1));
    }

    #[test]
    fn a_block_ends_by_itself() {
        let roster = Roster::new((1, 2));
        let ann = BuyerId::parse("ann").unwrap();
        roster.block(ann.clone(), UnixMs(10));
        assert_eq!(roster.blocked_until(&ann, UnixMs(9)), Some(UnixMs(10)));
        assert_eq!(roster.blocked_until(&ann, UnixMs(10)), None);
        roster.unblock(&ann);
        assert_eq!(roster.blocked_until(&ann, UnixMs(9)), None);
    }
}
