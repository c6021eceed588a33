//! Claims that are granted and not yet in the ledger, by order id: what a buyer sees while the order is queued.
//! Bounded by the queue's room, since a claim leaves when it is recorded.

use std::sync::Arc;

use parking_lot::Mutex;
use rules::buyer::BuyerId;
use rules::id::{IdMap, OrderId};
use rules::pass::bucket_of;

use super::claim::Claim;

const SHARDS: usize = 64;

type Shard = Mutex<IdMap<OrderId, Arc<Claim>>>;

#[derive(Debug)]
pub struct Unrecorded {
    shards: Box<[Shard]>,
    /// Claims for late money. Their orders are in the ledger, and their buyers see them there.
    reviving: Shard,
}

impl Default for Unrecorded {
    fn default() -> Self {
        let shards = std::iter::repeat_with(Mutex::default).take(SHARDS).collect();
        Self { shards, reviving: Mutex::default() }
    }
}

impl Unrecorded {
    pub fn insert(&self, claim: &Arc<Claim>) {
        let shard = if claim.revives.is_some() { Some(&self.reviving) } else { self.shard(claim.order) };
        if let Some(shard) = shard {
            shard.lock().insert(claim.order, Arc::clone(claim));
        }
    }

    /// The claim of an order that the ledger does not have; one for late money is none of these.
    #[must_use]
    pub fn get(&self, order: OrderId) -> Option<Arc<Claim>> {
        self.shard(order)?.lock().get(&order).map(Arc::clone)
    }

    /// To be called after the ledger's commit (or the roll-back of the grant), so that an order is always to be
    /// found in one place or the other.
    pub fn remove(&self, order: OrderId) {
        let claim = self.shard(order).and_then(|shard| shard.lock().remove(&order));
        if claim.is_none() {
            self.reviving.lock().remove(&order);
        }
    }

    /// Visits every claim whose order the ledger does not have; short work only, a shard is locked meanwhile.
    pub fn visit(&self, mut visit: impl FnMut(&Claim)) {
        for shard in &self.shards {
            shard.lock().values().for_each(|claim| visit(claim));
        }
    }

    /// The same, and those for late money.
    pub fn visit_all(&self, mut visit: impl FnMut(&Claim)) {
        self.visit(&mut visit);
        self.reviving.lock().values().for_each(|claim| visit(claim));
    }

    /// The newest claims that are wanted, newest first, at most `count`; `is_wanted` is short work, a shard is locked
    /// meanwhile.
    #[must_use]
    pub fn newest(&self, count: usize, is_wanted: impl Fn(&Claim) -> bool) -> Vec<Arc<Claim>> {
        let mut found: Vec<Arc<Claim>> = Vec::new();
        for shard in &self.shards {
            found.extend(shard.lock().values().filter(|claim| is_wanted(claim)).map(Arc::clone));
            found.sort_unstable_by_key(|claim| std::cmp::Reverse(claim.order));
            found.truncate(count);
        }
        found
    }

    /// The claims of one buyer, newest first. Ids carry their buyer's bucket, so the others are passed over without
    /// looking at them.
    #[must_use]
    pub fn of(&self, buyer: &BuyerId) -> Vec<Arc<Claim>> {
        let bucket = bucket_of(buyer.as_str());
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let near = shard.iter().filter(|(order, _)| order.bucket() == bucket).map(|(_, claim)| claim);
            found.extend(near.filter(|claim| claim.buyer == *buyer).map(Arc::clone));
        }
        found.sort_unstable_by_key(|claim| std::cmp::Reverse(claim.order));
        found
    }

    fn shard(&self, order: OrderId) -> Option<&Shard> {
        // The random bits of the id: neighbours in time must not meet in one shard.
        let random = usize::try_from((order.0 >> 32) & 0xffff).unwrap_or(0);
        self.shards.get(random % SHARDS)
    }
}

#[cfg(test)]
mod tests {
    use rules::id::{OfferId, PaymentId};
    use rules::time::UnixMs;

    use super::super::Revive;
    use super::*;

    #[test]
    fn late_money_is_on_its_way_but_hides_no_order_of_the_ledger() {
        let unrecorded = Unrecorded::default();
        let ann = BuyerId::parse("ann").unwrap();
        let claim = |order, revives| {
            Arc::new(Claim {
                order: OrderId(order),
                offer: OfferId(1),
                buyer: ann.clone(),
                quantity: 2,
                claimed_at: UnixMs(0),
                pass_expires_at: UnixMs(1),
                revives,
            })
        };
        let reviving = claim(7, Some(Revive { payment: PaymentId(3), closing_seq: 3 }));
        unrecorded.insert(&reviving);
        unrecorded.insert(&claim(8, None));
        let units = || {
            let (mut new, mut all) = (0, 0);
            unrecorded.visit(|claim| new += claim.quantity);
            unrecorded.visit_all(|claim| all += claim.quantity);
            (new, all)
        };
        assert_eq!(units(), (2, 4));
        assert!(unrecorded.get(reviving.order).is_none(), "its buyer sees the order of the ledger");
        unrecorded.remove(reviving.order);
        assert_eq!(units(), (2, 2));
        unrecorded.remove(OrderId(8));
        assert_eq!(units(), (0, 0));
    }
}
