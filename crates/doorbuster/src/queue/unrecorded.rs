//! Claims that are granted and not yet in the ledger, by order id: what a buyer sees while the order is queued.
//! Bounded by the queue's room, since a claim leaves when it is recorded.

use std::sync::Arc;

use parking_lot::Mutex;
use prefetch_index::prefetch_index;
use rules::buyer::BuyerId;
use rules::id::{BUYER_BUCKETS, OrderId};
use rules::pass::bucket_of;
use smallvec::SmallVec;

use super::claim::Claim;

/// Places of one bucket of buyers. There are more places than claims usually wait, so that most hold one at most.
const PLACES_PER_BUCKET: usize = 8;

/// Claims of a place that need no memory of their own.
const CLAIMS_INSIDE: usize = 4;

/// A place and its lock share a cache line, and nothing else does: who comes in waits for one line of memory, which was
/// another thread's last.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Place(Mutex<SmallVec<[Arc<Claim>; CLAIMS_INSIDE]>>);

#[derive(Debug)]
pub struct Unrecorded {
    /// Those of one bucket of buyers after those of the other.
    places: Box<[Place]>,
    /// Claims for late money. Their orders are in the ledger, and their buyers see them there.
    reviving: Place,
}

impl Default for Unrecorded {
    fn default() -> Self {
        let count = usize::from(BUYER_BUCKETS) * PLACES_PER_BUCKET;
        Self {
            places: std::iter::repeat_with(Place::default).take(count).collect(),
            reviving: Place::default(),
        }
    }
}

impl Place {
    fn put(&self, claim: &Arc<Claim>) {
        let mut claims = self.0.lock();
        claims.retain(|other| other.order != claim.order);
        claims.push(Arc::clone(claim));
    }

    fn get(&self, order: OrderId) -> Option<Arc<Claim>> {
        self.0.lock().iter().find(|claim| claim.order == order).map(Arc::clone)
    }

    fn take(&self, order: OrderId) -> Option<Arc<Claim>> {
        let mut claims = self.0.lock();
        let found = claims.iter().position(|claim| claim.order == order)?;
        Some(claims.swap_remove(found))
    }

    fn visit(&self, visit: impl FnMut(&Arc<Claim>)) {
        self.0.lock().iter().for_each(visit);
    }
}

impl Unrecorded {
    /// Has the memory fetched that [`Self::insert`] will need, and does not wait for it.
    #[inline]
    pub fn fetch(&self, order: OrderId) {
        prefetch_index(&self.places, place_of(order));
    }

    pub fn insert(&self, claim: &Arc<Claim>) {
        let place = if claim.revives.is_some() { Some(&self.reviving) } else { self.place(claim.order) };
        if let Some(place) = place {
            place.put(claim);
        }
    }

    /// The claim of an order that the ledger does not have; one for late money is none of these.
    #[must_use]
    pub fn get(&self, order: OrderId) -> Option<Arc<Claim>> {
        self.place(order)?.get(order)
    }

    /// To be called after the ledger's commit (or the roll-back of the grant), so that an order is always to be
    /// found in one place or the other.
    pub fn remove(&self, order: OrderId) {
        if self.place(order).and_then(|place| place.take(order)).is_none() {
            self.reviving.take(order);
        }
    }

    /// Visits every claim whose order the ledger does not have; short work only, a place is locked meanwhile.
    pub fn visit(&self, mut visit: impl FnMut(&Claim)) {
        for place in &self.places {
            place.visit(|claim| visit(claim));
        }
    }

    /// The same, and those for late money.
    pub fn visit_all(&self, mut visit: impl FnMut(&Claim)) {
        self.visit(&mut visit);
        self.reviving.visit(|claim| visit(claim));
    }

    /// The newest claims that are wanted, newest first, at most `count`; `is_wanted` is short work, a place is locked
    /// meanwhile.
    #[must_use]
    pub fn newest(&self, count: usize, is_wanted: impl Fn(&Claim) -> bool) -> Vec<Arc<Claim>> {
        let mut found: Vec<Arc<Claim>> = Vec::new();
        for bucket in self.places.chunks(PLACES_PER_BUCKET) {
            for place in bucket {
                place.visit(|claim| found.extend(is_wanted(claim).then(|| Arc::clone(claim))));
            }
            found.sort_unstable_by_key(|claim| std::cmp::Reverse(claim.order));
            found.truncate(count);
        }
        found
    }

    /// The claims of one buyer, newest first. Ids carry their buyer's bucket, so the others are not even looked at.
    #[must_use]
    pub fn of(&self, buyer: &BuyerId) -> Vec<Arc<Claim>> {
        let bucket = usize::from(bucket_of(buyer.as_str()));
        let mut found = Vec::new();
        for place in self.places.chunks(PLACES_PER_BUCKET).nth(bucket).into_iter().flatten() {
            place.visit(|claim| found.extend((claim.buyer == *buyer).then(|| Arc::clone(claim))));
        }
        found.sort_unstable_by_key(|claim| std::cmp::Reverse(claim.order));
        found
    }

    fn place(&self, order: OrderId) -> Option<&Place> {
        self.places.get(place_of(order))
    }
}

/// Which place an order's claim has.
#[inline]
fn place_of(order: OrderId) -> usize {
    // The random bits of the id: neighbours in time must not meet in one place.
    let random = usize::try_from((order.0 >> 32) & 0xffff).unwrap_or(0);
    usize::from(order.bucket()) * PLACES_PER_BUCKET + random % PLACES_PER_BUCKET
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
