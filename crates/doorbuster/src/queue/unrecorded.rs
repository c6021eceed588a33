//! Claims that are granted and not yet in the ledger, by order id: what a buyer sees while the order is queued.
//! Bounded by the queue's room, since a claim leaves when it is recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use prefetch_index::prefetch_index;
use rules::buyer::BuyerId;
use rules::id::{BUYER_BUCKETS, IdMap, OrderId};
use rules::pass::bucket_of;
use smallvec::SmallVec;

use super::claim::Claim;

/// Places of one bucket of buyers. There are more places than claims usually wait, so that most hold one at most.
const PLACES_PER_BUCKET: usize = 8;

/// Claims of a place that need no memory of its own.
const FEW: usize = 3;

/// A place for claims. With its lock it fills one cache line, so that who brings a claim to an empty one needs no other
/// memory: it was another thread's last.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Place {
    claims: Mutex<Claims>,
    /// How many there are. Whoever looks through all places need not lock the empty ones.
    count: AtomicUsize,
}

#[derive(Debug, Default)]
struct Claims {
    /// At most [`FEW`].
    few: SmallVec<[Arc<Claim>; FEW]>,
    /// The others, where there are more: names that share a place can be chosen, and a queue can be long.
    many: Option<Box<IdMap<OrderId, Arc<Claim>>>>,
}

impl Claims {
    fn put(&mut self, claim: &Arc<Claim>) {
        if self.few.len() < FEW {
            self.few.push(Arc::clone(claim));
        } else {
            self.many.get_or_insert_default().insert(claim.order, Arc::clone(claim));
        }
    }

    fn get(&self, order: OrderId) -> Option<&Arc<Claim>> {
        let few = self.few.iter().find(|claim| claim.order == order);
        few.or_else(|| self.many.as_ref()?.get(&order))
    }

    fn take(&mut self, order: OrderId) -> Option<Arc<Claim>> {
        if let Some(found) = self.few.iter().position(|claim| claim.order == order) {
            return Some(self.few.swap_remove(found));
        }
        let many = self.many.as_mut()?;
        let taken = many.remove(&order);
        if many.is_empty() {
            self.many = None;
        }
        taken
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<Claim>> {
        self.few.iter().chain(self.many.iter().flat_map(|many| many.values()))
    }

    fn len(&self) -> usize {
        self.few.len() + self.many.as_ref().map_or(0, |many| many.len())
    }
}

impl Place {
    fn change<R>(&self, change: impl FnOnce(&mut Claims) -> R) -> R {
        let mut claims = self.claims.lock();
        let changed = change(&mut claims);
        self.count.store(claims.len(), Ordering::Release);
        changed
    }

    fn visit(&self, visit: impl FnMut(&Arc<Claim>)) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.claims.lock().iter().for_each(visit);
        }
    }
}

#[derive(Debug)]
pub struct Unrecorded {
    /// Those of one bucket of buyers after those of the other.
    places: Box<[Place]>,
    /// Claims for late money. Their orders are in the ledger, and their buyers see them there.
    reviving: Mutex<IdMap<OrderId, Arc<Claim>>>,
}

impl Default for Unrecorded {
    fn default() -> Self {
        let count = usize::from(BUYER_BUCKETS) * PLACES_PER_BUCKET;
        Self {
            places: std::iter::repeat_with(Place::default).take(count).collect(),
            reviving: Mutex::default(),
        }
    }
}

impl Unrecorded {
    /// Has the memory fetched that [`Self::insert`] will need, and does not wait for it.
    #[inline]
    pub fn fetch(&self, order: OrderId) {
        prefetch_index(&self.places, place_of(order));
    }

    /// The claim of an order that is not in here, or not any more.
    pub fn insert(&self, claim: &Arc<Claim>) {
        if claim.revives.is_some() {
            self.reviving.lock().insert(claim.order, Arc::clone(claim));
        } else if let Some(place) = self.place(claim.order) {
            place.change(|claims| {
                claims.take(claim.order);
                claims.put(claim);
            });
        }
    }

    /// The claim of an order that the ledger does not have; one for late money is none of these.
    #[must_use]
    pub fn get(&self, order: OrderId) -> Option<Arc<Claim>> {
        self.place(order)?.claims.lock().get(order).map(Arc::clone)
    }

    /// To be called after the ledger's commit (or the roll-back of the grant), so that an order is always to be
    /// found in one place or the other.
    pub fn remove(&self, order: OrderId) {
        let claim = self.place(order).and_then(|place| place.change(|claims| claims.take(order)));
        if claim.is_none() {
            self.reviving.lock().remove(&order);
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
        self.reviving.lock().values().for_each(|claim| visit(claim));
    }

    /// The newest claims that are wanted, newest first, at most `count`; `is_wanted` is short work, a place is locked
    /// meanwhile.
    #[must_use]
    pub fn newest(&self, count: usize, is_wanted: impl Fn(&Claim) -> bool) -> Vec<Arc<Claim>> {
        let mut found: Vec<Arc<Claim>> = Vec::new();
        for place in &self.places {
            place.visit(|claim| found.extend(is_wanted(claim).then(|| Arc::clone(claim))));
            if found.len() / 2 > count {
                keep_newest(&mut found, count);
            }
        }
        keep_newest(&mut found, count);
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
        keep_newest(&mut found, usize::MAX);
        found
    }

    fn place(&self, order: OrderId) -> Option<&Place> {
        self.places.get(place_of(order))
    }
}

fn keep_newest(claims: &mut Vec<Arc<Claim>>, count: usize) {
    claims.sort_unstable_by_key(|claim| std::cmp::Reverse(claim.order));
    claims.truncate(count);
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

    fn claim(order: OrderId, buyer: &BuyerId, revives: Option<Revive>) -> Arc<Claim> {
        Arc::new(Claim {
            order,
            offer: OfferId(1),
            buyer: buyer.clone(),
            quantity: 2,
            claimed_at: UnixMs(0),
            pass_expires_at: UnixMs(1),
            revives,
        })
    }

    #[test]
    fn late_money_is_on_its_way_but_hides_no_order_of_the_ledger() {
        let unrecorded = Unrecorded::default();
        let ann = BuyerId::parse("ann").unwrap();
        let reviving = claim(OrderId(7), &ann, Some(Revive { payment: PaymentId(3), closing_seq: 3 }));
        unrecorded.insert(&reviving);
        unrecorded.insert(&claim(OrderId(8), &ann, None));
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

    /// Ids of one buyer that share a place, older ones first.
    fn neighbours(buyer: &BuyerId, count: u64) -> Vec<OrderId> {
        let id = |at: u64| {
            let at = UnixMs(i64::try_from(at).unwrap());
            OrderId::compose(at, bucket_of(buyer.as_str()), 0, |_| 0)
        };
        (0..count).map(id).collect()
    }

    #[test]
    fn however_many_share_a_place_each_is_found_until_it_leaves() {
        let unrecorded = Unrecorded::default();
        let (ann, bob) = (BuyerId::parse("ann").unwrap(), BuyerId::parse("bob").unwrap());
        let orders = neighbours(&ann, 100);
        let mut places: Vec<_> = orders.iter().map(|order| place_of(*order)).collect();
        places.dedup();
        assert_eq!(places.len(), 1, "they do share one");
        unrecorded.insert(&claim(neighbours(&bob, 1)[0], &bob, None));
        for order in &orders {
            unrecorded.insert(&claim(*order, &ann, None));
            unrecorded.insert(&claim(*order, &ann, None));
        }
        let newest_first: Vec<_> = orders.iter().rev().copied().collect();
        let ids = |claims: Vec<Arc<Claim>>| claims.iter().map(|claim| claim.order).collect::<Vec<_>>();
        assert_eq!(ids(unrecorded.of(&ann)), newest_first, "each once");
        assert_eq!(ids(unrecorded.newest(7, |claim| claim.buyer == ann)), newest_first[..7]);
        assert_eq!(unrecorded.newest(usize::MAX, |_| true).len(), 101);
        for (gone, order) in orders.iter().enumerate() {
            assert!(unrecorded.get(*order).is_some());
            unrecorded.remove(*order);
            assert!(unrecorded.get(*order).is_none());
            assert_eq!(unrecorded.of(&ann).len(), orders.len() - gone - 1);
        }
        let place = unrecorded.place(orders[0]).unwrap();
        assert!(place.claims.lock().many.is_none(), "what was needed for many is given back");
        assert_eq!(unrecorded.of(&bob).len(), 1);
    }

    #[test]
    fn a_place_is_one_cache_line() {
        assert_eq!(size_of::<Place>(), 64);
    }
}
