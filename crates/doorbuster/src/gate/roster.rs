//! Who signed up, who is blocked and who has strikes, in memory: passes are given without asking the ledger. Loaded
//! at start and written through by whoever changes the ledger, after its commit. Registrations are kept for sales that
//! still need them; which those are is decided by the desk. Who is blocked is computed by `rules::strike` each time it is
//! asked; nothing here ends by a timer.

use std::collections::{HashMap, HashSet};
use std::hash::Hasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use rules::buyer::BuyerId;
use rules::id::{OrderId, SaleId};
use rules::strike::{Cause, Policy, Standing, Strike, standing};
use rules::time::UnixMs;
use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::ledger::money::{Mark, StrikeOf};

const SHARDS: usize = 64;

/// How long a lift that came before its strike waits for it, in milliseconds. Both are on their way from the same
/// ledger; a minute is very long.
const LIFTS_WAIT_MS: i64 = 60_000;

/// Buyers are kept by a 128-bit keyed hash: a million registrations take some 25 MB, a hundred thousand buyers with one
/// strike each some 12 MB.
#[derive(Debug)]
pub struct Roster {
    registered: RwLock<HashMap<SaleId, Arc<Registered>>>,
    marked: Box<[Mutex<Marked>]>,
    policy: Policy,
    hash_keys: HashKeys,
}

/// Who signed up for one sale.
#[derive(Debug)]
pub struct Registered {
    shards: Box<[Mutex<HashSet<u128>>]>,
    count: AtomicU64,
    hash_keys: HashKeys,
}

/// Secret and random: buyers choose their names.
type HashKeys = (u64, u64);

/// Buyers with marks.
#[derive(Debug, Default)]
struct Marked {
    buyers: HashMap<u128, Marks>,
    /// Strikes that were lifted before they came here, and when.
    lifted_early: HashMap<(u128, StrikeOf), UnixMs>,
}

/// What is known of one buyer.
#[derive(Debug, Default)]
struct Marks {
    /// A block by the operator's hand.
    blocked_until: Option<UnixMs>,
    /// Those that were not lifted. Boxed as it is: nearly everybody has one, and a vector would make room for four.
    strikes: Box<[(StrikeOf, UnixMs)]>,
}

impl Roster {
    #[must_use]
    pub fn new(policy: Policy, hash_keys: HashKeys) -> Self {
        Self {
            registered: RwLock::default(),
            marked: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            policy,
            hash_keys,
        }
    }

    /// An empty list, to be filled with a sale's registrations and handed to [`Roster::keep`].
    #[must_use]
    pub fn empty_list(&self) -> Arc<Registered> {
        Arc::new(Registered {
            shards: std::iter::repeat_with(Mutex::default).take(SHARDS).collect(),
            count: AtomicU64::new(0),
            hash_keys: self.hash_keys,
        })
    }

    /// From now on it is known here who signed up for the sale.
    pub fn keep(&self, sale: SaleId, list: Arc<Registered>) {
        self.registered.write().insert(sale, list);
    }

    /// From now on only the ledger knows who signed up for the sale.
    pub fn let_go(&self, sale: SaleId) {
        self.registered.write().remove(&sale);
    }

    /// The sales whose registrations are here.
    #[must_use]
    pub fn kept(&self) -> Vec<SaleId> {
        self.registered.read().keys().copied().collect()
    }

    #[must_use]
    pub fn keeps(&self, sale: SaleId) -> bool {
        self.registered.read().contains_key(&sale)
    }

    /// A buyer signed up. Of a sale that is not kept here the ledger alone has to know.
    pub fn register(&self, sale: SaleId, buyer: &str) {
        if let Some(list) = self.list(sale) {
            list.add(buyer);
        }
    }

    pub fn unregister(&self, sale: SaleId, buyer: &str) {
        if let Some(list) = self.list(sale) {
            list.remove(buyer);
        }
    }

    /// Whether the buyer signed up for the sale; `None` when only the ledger knows.
    #[must_use]
    pub fn is_registered(&self, sale: SaleId, buyer: &str) -> Option<bool> {
        self.list(sale).map(|list| list.holds(buyer))
    }

    /// How many buyers signed up for the sale; `None` when only the ledger knows.
    #[must_use]
    pub fn registrations(&self, sale: SaleId) -> Option<u64> {
        self.list(sale).map(|list| list.count.load(Ordering::Acquire))
    }

    /// Registrations of all sales that are kept here.
    #[must_use]
    pub fn all_registrations(&self) -> u64 {
        self.registered.read().values().map(|list| list.count.load(Ordering::Acquire)).sum()
    }

    /// The operator blocks a buyer; an earlier block by hand is replaced.
    pub fn block(&self, buyer: &BuyerId, until: UnixMs) {
        self.with_marked(buyer.as_str(), |marked, key| {
            marked.buyers.entry(key).or_default().blocked_until = Some(until);
        });
    }

    /// The operator's block is over. Strikes stay.
    pub fn unblock(&self, buyer: &BuyerId) {
        self.with_marked(buyer.as_str(), |marked, key| {
            marked.edit(key, |marks| marks.blocked_until = None);
        });
    }

    /// A buyer has a strike. Again is harmless; one that was lifted meanwhile does not count.
    pub fn strike(&self, mark: &Mark<'_>) {
        self.with_marked(mark.buyer, |marked, key| {
            if marked.lifted_early.remove(&(key, mark.of)).is_none() {
                marked.buyers.entry(key).or_default().add(mark.of, mark.at);
            }
        });
    }

    /// A strike no longer counts, also if it has yet to come here: two who come from the ledger may overtake each other.
    pub fn lift(&self, buyer: &str, of: StrikeOf, now: UnixMs) {
        self.with_marked(buyer, |marked, key| {
            let known = marked.edit(key, |marks| marks.remove(of)).unwrap_or(false);
            if !known {
                marked.lifted_early.insert((key, of), now);
            }
        });
    }

    /// How the buyer stands.
    #[must_use]
    pub fn standing(&self, buyer: &BuyerId, now: UnixMs) -> Standing {
        self.with_marked(buyer.as_str(), |marked, key| match marked.buyers.get(&key) {
            Some(marks) => standing(self.policy, &marks.strikes(), marks.blocked_until, now),
            None => standing(self.policy, &[], None, now),
        })
        .unwrap_or_else(|| standing(self.policy, &[], None, now))
    }

    /// Until when the buyer gets no passes, if that lies ahead.
    #[must_use]
    pub fn blocked_until(&self, buyer: &BuyerId, now: UnixMs) -> Option<UnixMs> {
        self.standing(buyer, now).blocked_until
    }

    /// Forgets what no longer matters. Whoever is struck faster than this is called takes memory until it is.
    pub fn forget_old(&self, now: UnixMs) {
        let since = self.policy.matters_since(now);
        for marked in &self.marked {
            let mut marked = marked.lock();
            marked.lifted_early.retain(|_, at| now.0 < at.0.saturating_add(LIFTS_WAIT_MS));
            let before = marked.buyers.len();
            marked.buyers.retain(|_, marks| {
                marks.forget(since, now);
                !marks.is_empty()
            });
            if marked.buyers.len() < before / 2 {
                marked.buyers.shrink_to_fit();
            }
        }
    }

    /// How many buyers have marks.
    #[must_use]
    pub fn marked(&self) -> usize {
        self.marked.iter().map(|marked| marked.lock().buyers.len()).sum()
    }

    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    fn list(&self, sale: SaleId) -> Option<Arc<Registered>> {
        self.registered.read().get(&sale).map(Arc::clone)
    }

    fn with_marked<T>(&self, buyer: &str, work: impl FnOnce(&mut Marked, u128) -> T) -> Option<T> {
        let key = key(self.hash_keys, buyer);
        self.marked.get(shard(key)).map(|shard| work(&mut shard.lock(), key))
    }
}

impl Registered {
    /// Again is harmless.
    pub fn add(&self, buyer: &str) {
        if self.change(buyer, |set, key| set.insert(key)) {
            self.count.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn remove(&self, buyer: &str) {
        if self.change(buyer, |set, key| set.remove(&key)) {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn holds(&self, buyer: &str) -> bool {
        self.change(buyer, |set, key| set.contains(&key))
    }

    fn change(&self, buyer: &str, work: impl FnOnce(&mut HashSet<u128>, u128) -> bool) -> bool {
        let key = key(self.hash_keys, buyer);
        self.shards.get(shard(key)).is_some_and(|shard| work(&mut shard.lock(), key))
    }
}

fn key(hash_keys: HashKeys, buyer: &str) -> u128 {
    let mut hasher = SipHasher13::new_with_keys(hash_keys.0, hash_keys.1);
    hasher.write(buyer.as_bytes());
    hasher.finish128().as_u128()
}

fn shard(key: u128) -> usize {
    usize::try_from(key & 0xffff).unwrap_or(0) % SHARDS
}

impl Marked {
    /// Changes what is known of a buyer, if anything is; a buyer of whom nothing is left is forgotten.
    fn edit<T>(&mut self, key: u128, work: impl FnOnce(&mut Marks) -> T) -> Option<T> {
        let marks = self.buyers.get_mut(&key)?;
        let done = work(marks);
        if marks.is_empty() {
            self.buyers.remove(&key);
        }
        Some(done)
    }
}

impl Marks {
    fn add(&mut self, of: StrikeOf, at: UnixMs) {
        if self.strikes.iter().all(|(known, _)| *known != of) {
            let more = std::iter::once((of, at));
            self.strikes = self.strikes.iter().copied().chain(more).collect();
        }
    }

    /// `false` when there was no such strike.
    fn remove(&mut self, of: StrikeOf) -> bool {
        let before = self.strikes.len();
        self.keep(|(known, _)| *known != of);
        self.strikes.len() < before
    }

    fn forget(&mut self, since: UnixMs, now: UnixMs) {
        self.blocked_until = self.blocked_until.filter(|until| now < *until);
        if self.strikes.iter().any(|(_, at)| *at < since) {
            self.keep(|(_, at)| *at >= since);
        }
    }

    fn keep(&mut self, stays: impl Fn(&(StrikeOf, UnixMs)) -> bool) {
        self.strikes = self.strikes.iter().copied().filter(|strike| stays(strike)).collect();
    }

    fn is_empty(&self) -> bool {
        self.blocked_until.is_none() && self.strikes.is_empty()
    }

    /// In the words of the rules, to whom an order's number is as good a name as its id: it only tells them apart.
    fn strikes(&self) -> Vec<Strike> {
        let cause = |of| match of {
            StrikeOf::Order(number) => Cause::Unpaid(OrderId(number.into())),
            StrikeOf::Operator(_) => Cause::Operator,
        };
        self.strikes.iter().map(|(of, at)| Strike { cause: cause(*of), at: *at, lifted_at: None }).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY_MS: i64 = 86_400_000;
    const POLICY: Policy = Policy { limit: 3, window_days: 30, block_hours: 72 };

    fn roster() -> Roster {
        Roster::new(POLICY, (1, 2))
    }

    fn ann() -> BuyerId {
        BuyerId::parse("ann").unwrap()
    }

    fn strike(roster: &Roster, order: u64, day: i64) {
        roster.strike(&Mark { buyer: "ann", of: StrikeOf::Order(order), at: UnixMs(day * DAY_MS) });
    }

    #[test]
    fn registrations_are_counted_once() {
        let roster = roster();
        let (one, two) = (SaleId(1), SaleId(2));
        for sale in [one, two] {
            roster.keep(sale, roster.empty_list());
        }
        for _ in 0..2 {
            roster.register(one, "ann");
        }
        roster.register(two, "ann");
        assert_eq!((roster.registrations(one), roster.registrations(two)), (Some(1), Some(1)));
        assert_eq!(roster.all_registrations(), 2);
        assert_eq!(["ann", "bob"].map(|buyer| roster.is_registered(one, buyer)), [Some(true), Some(false)]);
        for _ in 0..2 {
            roster.unregister(one, "ann");
        }
        assert_eq!((roster.registrations(one), roster.registrations(two)), (Some(0), Some(1)));
    }

    #[test]
    fn what_is_let_go_is_no_longer_known_here() {
        let roster = roster();
        let sale = SaleId(1);
        let list = roster.empty_list();
        list.add("ann");
        roster.keep(sale, list);
        assert_eq!((roster.is_registered(sale, "ann"), roster.kept()), (Some(true), vec![sale]));
        roster.let_go(sale);
        roster.register(sale, "bob");
        roster.unregister(sale, "ann");
        assert_eq!((roster.is_registered(sale, "ann"), roster.registrations(sale)), (None, None));
        assert_eq!((roster.all_registrations(), roster.keeps(sale)), (0, false));
    }

    #[test]
    fn a_block_ends_by_itself() {
        let roster = roster();
        roster.block(&ann(), UnixMs(10));
        assert_eq!(roster.blocked_until(&ann(), UnixMs(9)), Some(UnixMs(10)));
        assert_eq!(roster.blocked_until(&ann(), UnixMs(10)), None);
        roster.unblock(&ann());
        assert_eq!((roster.blocked_until(&ann(), UnixMs(9)), roster.marked()), (None, 0));
    }

    #[test]
    fn strikes_block_decay_and_are_lifted() {
        let roster = roster();
        strike(&roster, 1, 0);
        strike(&roster, 2, 10);
        strike(&roster, 2, 10);
        assert_eq!(roster.standing(&ann(), UnixMs(10 * DAY_MS)).strikes, 2, "one order strikes once");
        strike(&roster, 3, 20);
        let until = Some(UnixMs(23 * DAY_MS));
        assert_eq!(roster.blocked_until(&ann(), UnixMs(20 * DAY_MS)), until);
        assert_eq!(roster.blocked_until(&BuyerId::parse("bob").unwrap(), UnixMs(20 * DAY_MS)), None);
        roster.lift("ann", StrikeOf::Order(2), UnixMs(20 * DAY_MS));
        let standing = roster.standing(&ann(), UnixMs(20 * DAY_MS));
        assert_eq!((standing.strikes, standing.blocked_until), (2, None));
        assert_eq!(roster.standing(&ann(), UnixMs(60 * DAY_MS)).strikes, 0);
    }

    #[test]
    fn a_lift_may_overtake_its_strike() {
        let roster = roster();
        roster.lift("ann", StrikeOf::Order(1), UnixMs(0));
        strike(&roster, 1, 0);
        assert_eq!(roster.standing(&ann(), UnixMs(0)).strikes, 0);
        strike(&roster, 1, 0);
        assert_eq!(roster.standing(&ann(), UnixMs(0)).strikes, 1, "it waits for one strike only");
        roster.lift("bob", StrikeOf::Order(9), UnixMs(0));
        roster.forget_old(UnixMs(LIFTS_WAIT_MS));
        assert!(roster.marked.iter().all(|marked| marked.lock().lifted_early.is_empty()), "and not for ever");
    }

    #[test]
    fn a_hundred_thousand_struck_at_once_fit_and_are_forgotten() {
        let roster = roster();
        for number in 0..100_000_u64 {
            let buyer = format!("buyer-{number}");
            roster.strike(&Mark { buyer: &buyer, of: StrikeOf::Order(number), at: UnixMs(0) });
        }
        assert_eq!(roster.marked(), 100_000);
        let matters = i64::from(POLICY.window_days) * DAY_MS + i64::from(POLICY.block_hours) * 3_600_000;
        roster.forget_old(UnixMs(matters));
        assert_eq!(roster.marked(), 100_000, "as long as they may matter");
        roster.forget_old(UnixMs(matters + 1));
        assert_eq!(roster.marked(), 0);
        assert!(
            roster.marked.iter().all(|marked| marked.lock().buyers.capacity() == 0),
            "and their memory is free"
        );
    }

    proptest! {
        /// Whatever comes in whatever order, the roster says what the rules say of the strikes that were not lifted.
        #[test]
        fn it_agrees_with_the_rules(
            steps in prop::collection::vec((0_u64..6, 0_i64..60, any::<bool>()), 0..30), now in 0_i64..60,
        ) {
            let roster = roster();
            let mut kept: Vec<(StrikeOf, i64)> = Vec::new();
            for (number, day, lifts) in steps {
                let of = if number % 2 == 0 { StrikeOf::Order(number) } else { StrikeOf::Operator(number) };
                let known = kept.iter().any(|(other, _)| *other == of);
                if lifts && known {
                    roster.lift("ann", of, UnixMs(0));
                    kept.retain(|(other, _)| *other != of);
                } else if !lifts {
                    roster.strike(&Mark { buyer: "ann", of, at: UnixMs(day * DAY_MS) });
                    if !known {
                        kept.push((of, day));
                    }
                }
            }
            let strikes: Vec<Strike> = kept.iter().map(|(of, day)| Strike {
                cause: match of {
                    StrikeOf::Order(number) => Cause::Unpaid(OrderId((*number).into())),
                    StrikeOf::Operator(_) => Cause::Operator,
                },
                at: UnixMs(day * DAY_MS),
                lifted_at: None,
            }).collect();
            let now = UnixMs(now * DAY_MS);
            prop_assert_eq!(roster.standing(&ann(), now), standing(POLICY, &strikes, None, now));
            // Forgetting what is old says nothing else.
            roster.forget_old(now);
            let recent: Vec<Strike> =
                strikes.into_iter().filter(|strike| strike.at >= POLICY.matters_since(now)).collect();
            prop_assert_eq!(roster.standing(&ann(), now), standing(POLICY, &recent, None, now));
        }
    }
}
