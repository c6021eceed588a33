//! The gate in memory: decides who gets a unit, atomically, in nanoseconds. It owns no truth (the ledger can rebuild
//! it) and does no I/O: a grant is *pending* until the queue says that it is durable.
//!
//! Locks: one per shard of buyers. A grant, a repeat, a release and a revival of one buyer meet there. A buyer of whom
//! the gate knows nothing and who cannot be granted anything is refused without any lock.

use std::collections::{HashMap, HashSet};
use std::hash::Hasher as _;
use std::sync::Arc;

use prefetch_index::prefetch_index;
use rules::admission::{CLAIM_SEQ, Door, Known, Verdict, admit, lets_go, readmit};
use rules::id::{OfferId, OrderId};
use rules::sale::{SaleState, Window};
use rules::time::UnixMs;
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use tokio::sync::oneshot;

use super::room::{Permit, Room};
use super::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use super::table::{Entry, Key, Mark, OFFERS_MAX, Table};

/// Shards of buyers. More than any machine has cores, so that two buyers rarely meet at a lock.
const SHARDS: usize = 256;

/// Spent passes are forgotten so long after they expired, in milliseconds: a try is judged by the moment at which it came,
/// also when it was held up since, and must still find that its pass was spent.
const HELD_UP_MAX_MS: i64 = 60_000;

/// One try of a buyer, as its pass tells it.
#[derive(Clone, Copy, Debug)]
pub struct Try<'a> {
    pub buyer: &'a str,
    pub order: OrderId,
    pub quantity: u32,
    pub pass_expires_at: UnixMs,
}

/// What the gate says to a try.
#[derive(Debug)]
pub enum Decision {
    /// The units are taken. The grant must be handed to the queue, which commits it or rolls it back.
    Granted(Grant),
    /// Anything else.
    Answer(Verdict),
    /// The answer hangs on a grant of this buyer that is not durable yet. Ask again when it is.
    Wait(oneshot::Receiver<Outcome>),
}

/// How a pending grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Durable.
    Committed,
    /// Certainly nothing happened.
    RolledBack,
    /// Nobody knows until the journal is read again.
    Unsure,
}

/// Units taken, not yet durable. Whoever holds it owes the gate a [`MemoryGate::commit`] or
/// [`MemoryGate::roll_back`]; the queue does that, never the request, which may hang up.
#[derive(Debug)]
#[must_use = "units are taken: commit it or roll it back"]
pub struct Grant {
    pub offer: Arc<OfferGate>,
    pub order: OrderId,
    pub quantity: u32,
    /// Room in the queue, kept until the order is recorded.
    pub permit: Permit,
    key: Key,
    /// What the slot says again if nothing comes of it: a buyer may try again, a spent pass stays spent.
    undone: Mark,
}

/// An order that let go of what it held, by the fact of this number.
#[derive(Clone, Copy, Debug)]
pub struct Release<'a> {
    pub buyer: &'a str,
    pub order: OrderId,
    /// The order's `seq` since it let go.
    pub seq: u32,
    /// Whether its units are free again. Otherwise they left the stock as well.
    pub restock: bool,
}

/// What a release did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// Its units are back. `was_dry`: until now there were none, and people were told so.
    Free { was_dry: bool },
    /// The order is forgotten; nothing comes back.
    Forgotten,
    /// It was counted before, or there is nothing to let go of.
    Before,
}

/// An offer as the gate knows it.
#[derive(Debug)]
pub struct OfferGate {
    pub offer: OfferId,
    offer_no: u32,
    free: AtomicU32,
    state: AtomicU32,
    opens_at: AtomicU64,
    closes_at: AtomicU64,
    /// The ledger's `change_no` of the last raise that was counted: an older one has been counted too.
    change_no: AtomicU64,
    /// The ledger's `change_no` when the gate learned of the offer: what happened up to there is in its numbers.
    seeded_at: u64,
}

impl OfferGate {
    #[must_use]
    pub fn free(&self) -> u32 {
        self.free.load(Ordering::Acquire)
    }

    /// The ledger's `change_no` that the gate has seen last.
    #[must_use]
    pub fn change_no(&self) -> u64 {
        self.change_no.load(Ordering::Acquire)
    }

    /// Its number in this process: what [`Held`] names it by.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.offer_no
    }

    /// Whether the gate's numbers began with this change in them.
    #[must_use]
    pub fn began_with(&self, change_no: u64) -> bool {
        change_no <= self.seeded_at
    }

    #[must_use]
    pub fn door(&self, now: UnixMs) -> Door {
        let state = match self.state.load(Ordering::Acquire) {
            0 => SaleState::Draft,
            1 => SaleState::Published,
            2 => SaleState::Paused,
            _ => SaleState::Ended,
        };
        let window = Window {
            opens_at: from_bits(self.opens_at.load(Ordering::Acquire)),
            closes_at: from_bits(self.closes_at.load(Ordering::Acquire)),
        };
        Door::at(state, window, now)
    }

    fn set_door(&self, state: SaleState, window: Window) {
        let state = match state {
            SaleState::Draft => 0,
            SaleState::Published => 1,
            SaleState::Paused => 2,
            SaleState::Ended => 3,
        };
        self.opens_at.store(to_bits(window.opens_at), Ordering::Release);
        self.closes_at.store(to_bits(window.closes_at), Ordering::Release);
        self.state.store(state, Ordering::Release);
    }

    /// Takes units if enough are free; otherwise says how many are.
    fn take(&self, quantity: u32) -> Result<(), u32> {
        let take = |free: u32| free.checked_sub(quantity);
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).map(|_| ())
    }

    /// Answers how many were free before.
    fn put_back(&self, quantity: u32) -> u32 {
        // Saturating: a defect elsewhere must not wrap into a sale of four billion units.
        let more = |free: u32| Some(free.saturating_add(quantity));
        self.free.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).unwrap_or_else(|free| free)
    }
}

fn to_bits(at: UnixMs) -> u64 {
    at.0.max(0).unsigned_abs()
}

fn from_bits(bits: u64) -> UnixMs {
    UnixMs(i64::try_from(bits).unwrap_or(i64::MAX))
}

/// What the ledger knows of an offer when the gate learns of it.
#[derive(Clone, Copy, Debug)]
pub struct Seed {
    pub offer: OfferId,
    pub state: SaleState,
    pub window: Window,
    /// Stock less live units.
    pub free: u32,
    pub change_no: u64,
}

/// An order the gate must know from the start.
#[derive(Clone, Copy, Debug)]
pub struct SeedOrder<'a> {
    pub buyer: &'a str,
    pub order: OrderId,
    pub quantity: u32,
    pub pass_expires_at: UnixMs,
    /// Ended orders are loaded too while their pass has not expired: spent passes stay spent.
    pub live: bool,
}

#[derive(Debug)]
struct Shard {
    table: Table,
    locked: Mutex<Locked>,
}

#[derive(Debug, Default)]
struct Locked {
    /// Who waits for a pending grant, by order.
    waiters: HashMap<OrderId, Vec<oneshot::Sender<Outcome>>>,
    /// Grants of which nobody will ever say more: the file can no longer be trusted.
    unsure: HashSet<OrderId>,
    /// Spent passes whose buyer has had another order since; order -> expiry.
    spent: HashMap<OrderId, u32>,
    /// Orders that late money holds units for again; order -> the `seq` from which it claimed them.
    revived: HashMap<OrderId, u32>,
}

impl Locked {
    /// Waits for the outcome of a pending grant; of one that is unsure, that is known.
    fn wait_for(&mut self, order: OrderId) -> oneshot::Receiver<Outcome> {
        let (send, receive) = oneshot::channel();
        if self.unsure.contains(&order) {
            tell(Some(vec![send]), Outcome::Unsure);
        } else {
            let waiters = self.waiters.entry(order).or_default();
            // Who has hung up or has waited for long enough takes no more room.
            waiters.retain(|waiter| !waiter.is_closed());
            waiters.push(send);
        }
        receive
    }

    /// The `seq` at which the order came to what it holds: a release of an earlier fact was counted before.
    fn held_since(&self, order: OrderId) -> u32 {
        self.revived.get(&order).copied().unwrap_or(CLAIM_SEQ)
    }

    /// Keeps a spent pass in mind whose slot is needed for another order.
    fn keep_spent(&mut self, entry: Option<Entry>, other_than: OrderId, before_s: u32) {
        if let Some(ended) = entry.filter(|entry| is_spent(entry, before_s) && entry.order != other_than.0) {
            self.spent.retain(|_, expiry| *expiry >= before_s);
            self.spent.insert(OrderId(ended.order), ended.pass_expires_at_s);
        }
    }
}

/// The gate of one machine.
#[derive(Debug)]
pub struct MemoryGate {
    shards: Box<[Shard]>,
    hash_keys: (u64, u64),
    room: Arc<Room>,
    offers: Mutex<HashMap<OfferId, Arc<OfferGate>>>,
}

impl MemoryGate {
    /// `queue_capacity` bounds the claims that are granted and not yet recorded. `hash_keys` must be secret and
    /// random: buyers choose their names.
    #[must_use]
    pub fn new(queue_capacity: usize, hash_keys: (u64, u64)) -> Self {
        let shard = || Shard { table: Table::new(), locked: Mutex::new(Locked::default()) };
        Self {
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
            hash_keys,
            room: Arc::new(Room::new(queue_capacity)),
            offers: Mutex::new(HashMap::new()),
        }
    }

    #[must_use]
    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Lets the gate know an offer. An offer it knows already keeps its units: a preheat of a live gate is harmless.
    /// `None` when more offers are known than the gate has numbers for.
    pub fn seed(&self, seed: &Seed) -> Option<Arc<OfferGate>> {
        let mut offers = self.offers.lock();
        if let Some(known) = offers.get(&seed.offer) {
            return Some(Arc::clone(known));
        }
        let offer_no = u32::try_from(offers.len()).ok().filter(|number| *number < OFFERS_MAX)?;
        let offer = Arc::new(OfferGate {
            offer: seed.offer,
            offer_no,
            free: AtomicU32::new(seed.free),
            state: AtomicU32::new(0),
            opens_at: AtomicU64::new(0),
            closes_at: AtomicU64::new(0),
            change_no: AtomicU64::new(seed.change_no),
            seeded_at: seed.change_no,
        });
        offer.set_door(seed.state, seed.window);
        offers.insert(seed.offer, Arc::clone(&offer));
        Some(offer)
    }

    /// Loads an order of the ledger before the doors open. Live orders were already subtracted from the seed's units.
    pub fn seed_order(&self, offer: &OfferGate, order: &SeedOrder<'_>) {
        let key = self.key(offer, order.buyer);
        let Some(shard) = self.shard(key) else { return };
        load(shard, &mut shard.locked.lock(), key, offer, order);
    }

    /// Takes units that the journal granted before the process ended and the ledger has not recorded yet.
    /// `revived_from` is the `seq` from which late money claimed them, if it did. `false` when they are not there: the
    /// books and the journal disagree.
    pub fn replay(&self, offer: &OfferGate, order: &SeedOrder<'_>, revived_from: Option<u32>) -> bool {
        let taken = offer.take(order.quantity).is_ok();
        self.seed_order(offer, order);
        if let (Some(seq), Some(shard)) = (revived_from, self.shard(self.key(offer, order.buyer))) {
            shard.locked.lock().revived.insert(order.order, seq);
        }
        taken
    }

    #[must_use]
    pub fn offer(&self, offer: OfferId) -> Option<Arc<OfferGate>> {
        self.offers.lock().get(&offer).map(Arc::clone)
    }

    /// Has the memory fetched that a try of the buyer with this key will need, and does not wait for it.
    #[inline]
    pub fn fetch(&self, key: Key) {
        if let Some(shard) = self.shard(key) {
            prefetch_index(std::slice::from_ref(&shard.locked), 0);
            shard.table.fetch(key);
        }
    }

    /// The same for the end of a grant.
    #[inline]
    pub fn fetch_grant(&self, grant: &Grant) {
        self.fetch(grant.key);
    }

    /// Tries to take the units for the buyer: one atomic step.
    ///
    /// Never blocks on anything but the buyer's shard, and on that only when the buyer is known here or may be
    /// granted. A repeat with the same order takes nothing.
    pub fn claim(&self, offer: &Arc<OfferGate>, attempt: &Try<'_>, now: UnixMs) -> Decision {
        self.claim_by(self.key(offer, attempt.buyer), offer, attempt, now)
    }

    /// The same, by the key of the offer's buyer.
    pub fn claim_by(&self, key: Key, offer: &Arc<OfferGate>, attempt: &Try<'_>, now: UnixMs) -> Decision {
        let Some(shard) = self.shard(key) else { return Decision::Answer(Verdict::Busy) };
        let door = offer.door(now);
        // Units first, then the table: if this buyer's own grant took the last units, its slot is visible by now,
        // because a grant writes its slot before it takes them.
        let free = offer.free();
        let hopeless = door != Door::Open || free < attempt.quantity;
        if hopeless && !shard.table.contains(key) {
            return Decision::Answer(admit(Known::Nothing, door, free, attempt.quantity, || false));
        }
        self.claim_locked(shard, key, offer, attempt, now)
    }

    fn claim_locked(
        &self,
        shard: &Shard,
        key: Key,
        offer: &Arc<OfferGate>,
        attempt: &Try<'_>,
        now: UnixMs,
    ) -> Decision {
        let mut locked = shard.locked.lock();
        let before = shard.table.get(key);
        if before.is_some_and(|entry| entry.mark == Mark::Pending) {
            let order = before.map_or(attempt.order, |entry| OrderId(entry.order));
            return Decision::Wait(locked.wait_for(order));
        }
        let known = known(before, &locked, attempt.order);
        // The door is read again under the lock: closing it ends with a walk over all locks, so that no grant is
        // given by someone who saw it open before.
        let door = offer.door(now);
        let mut permit = None;
        let verdict = admit(known, door, offer.free(), attempt.quantity, || {
            permit = self.room.reserve();
            permit.is_some()
        });
        let (Verdict::Granted, Some(permit)) = (verdict, permit) else { return Decision::Answer(verdict) };
        let place = Place { shard, key, offer, undone: Mark::Vacant };
        match place.take(&mut locked, attempt, permit, now) {
            Ok(grant) => Decision::Granted(grant),
            Err(free) => Decision::Answer(admit(known, door, free, attempt.quantity, || false)),
        }
    }

    /// Tries to take units again for an order that timed out, because late money has come: one atomic step, whatever
    /// the door says, and whether or not the order's pass is spent. `closing_seq` is the order's `seq` now.
    ///
    /// If the release of that closing has not arrived, it is counted here, and ignored when it does. A repeat takes
    /// nothing.
    pub fn revive(
        &self,
        offer: &Arc<OfferGate>,
        attempt: &Try<'_>,
        closing_seq: u32,
        now: UnixMs,
    ) -> Decision {
        let key = self.key(offer, attempt.buyer);
        let Some(shard) = self.shard(key) else { return Decision::Answer(Verdict::Busy) };
        let mut locked = shard.locked.lock();
        let pending = |entry: &Entry| entry.mark == Mark::Pending;
        if let Some(pending) = shard.table.get(key).filter(pending) {
            return Decision::Wait(locked.wait_for(OrderId(pending.order)));
        }
        let closing = Release { buyer: attempt.buyer, order: attempt.order, seq: closing_seq, restock: true };
        let_go(shard, &mut locked, key, offer, &closing);
        let live = shard.table.get(key).filter(|entry| entry.mark == Mark::Live);
        let live = live.map(|entry| (OrderId(entry.order), u32::from(entry.quantity)));
        let mut permit = None;
        let verdict = readmit(attempt.order, live, offer.free(), attempt.quantity, || {
            permit = self.room.reserve();
            permit.is_some()
        });
        let (Verdict::Granted, Some(permit)) = (verdict, permit) else { return Decision::Answer(verdict) };
        let place = Place { shard, key, offer, undone: Mark::Ended };
        match place.take(&mut locked, attempt, permit, now) {
            Ok(grant) => {
                locked.revived.insert(attempt.order, closing_seq);
                Decision::Granted(grant)
            }
            Err(free) => Decision::Answer(readmit(attempt.order, live, free, attempt.quantity, || false)),
        }
    }

    /// Waits for the commit of this order's grant, if that is still under way: nobody is told of it before.
    pub fn pending(
        &self,
        offer: &OfferGate,
        buyer: &str,
        order: OrderId,
    ) -> Option<oneshot::Receiver<Outcome>> {
        let key = self.key(offer, buyer);
        let shard = self.shard(key)?;
        let mut locked = shard.locked.lock();
        shard.table.get(key).filter(|entry| entry.mark == Mark::Pending && entry.order == order.0)?;
        Some(locked.wait_for(order))
    }

    /// The grant is durable: who waits for it may know.
    pub fn commit(&self, grant: &Grant) {
        self.end_pending(grant, Mark::Live, Outcome::Committed, || {});
    }

    /// The grant certainly did not happen: its units are free again, and its buyer may try again with the same pass.
    pub fn roll_back(&self, grant: &Grant) {
        // The units return before the slot is cleared: otherwise the same buyer, told to try again, could find
        // neither the grant nor its units and hear "sold out".
        let put_back = || {
            grant.offer.put_back(grant.quantity);
        };
        self.end_pending(grant, grant.undone, Outcome::RolledBack, put_back);
    }

    /// Nobody knows whether the grant is durable. Nothing is restored; who waits is told so.
    pub fn leave_unsure(&self, grant: &Grant) {
        let Some(shard) = self.shard(grant.key) else { return };
        let mut locked = shard.locked.lock();
        locked.unsure.insert(grant.order);
        let waiters = locked.waiters.remove(&grant.order);
        drop(locked);
        tell(waiters, Outcome::Unsure);
    }

    /// Ends a grant that is still pending; `first` happens before anybody can see that.
    fn end_pending(&self, grant: &Grant, mark: Mark, outcome: Outcome, first: impl FnOnce()) {
        let Some(shard) = self.shard(grant.key) else { return };
        let mut locked = shard.locked.lock();
        let pending = |entry: &Entry| entry.mark == Mark::Pending && entry.order == grant.order.0;
        let ended = shard.table.change(grant.key, |entry| {
            pending(&entry).then(|| {
                first();
                Entry { mark, ..entry }
            })
        });
        if !ended {
            return;
        }
        if outcome == Outcome::RolledBack {
            locked.revived.remove(&grant.order);
        }
        let waiters = locked.waiters.remove(&grant.order);
        drop(locked);
        tell(waiters, outcome);
    }

    /// The order ended in the ledger: its pass is spent, and its units are free at once, if they come back at all.
    ///
    /// Counted once per (order id, seq): only the buyer's live order of exactly this id lets go, and only of what it
    /// came to hold before that `seq`. So neither a second delivery nor a late one, after the buyer has ordered again
    /// or late money has revived the order, changes anything.
    pub fn release(&self, offer: &OfferGate, release: &Release<'_>) -> Returned {
        let key = self.key(offer, release.buyer);
        let Some(shard) = self.shard(key) else { return Returned::Before };
        let_go(shard, &mut shard.locked.lock(), key, offer, release)
    }

    /// Adds units that the ledger has already added. A change the gate has seen is ignored.
    pub fn raise(&self, offer: &OfferGate, units: u32, change_no: u64) -> bool {
        let newer = offer.change_no.fetch_max(change_no, Ordering::AcqRel) < change_no;
        if newer {
            offer.put_back(units);
        }
        newer
    }

    /// Gives up free units, before the ledger lowers its stock. When fewer are free, nothing happens and the answer
    /// says how many are.
    pub fn surrender(&self, offer: &OfferGate, units: u32) -> Result<(), u32> {
        offer.take(units)
    }

    /// Takes a surrender back: the ledger did not lower its stock.
    pub fn take_back(&self, offer: &OfferGate, units: u32) {
        offer.put_back(units);
    }

    /// Opens, pauses or closes offers. When this returns, no grant is given any more by the old door: whoever saw it
    /// did so under a lock that was let go since.
    pub fn set_doors(&self, offers: &[Arc<OfferGate>], state: SaleState, window: Window) {
        for offer in offers {
            offer.set_door(state, window);
        }
        for shard in &self.shards {
            drop(shard.locked.lock());
        }
    }

    /// Forgets spent passes that have expired.
    pub fn forget_expired(&self, now: UnixMs) {
        let before_s = forgotten_before_s(now);
        for shard in &self.shards {
            let mut locked = shard.locked.lock();
            locked.spent.retain(|_, expiry| *expiry >= before_s);
            shard.table.retain(|entry| keeps(entry, before_s));
        }
    }

    /// Memory of what the gate remembers, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.shards.iter().map(|shard| shard.table.bytes()).sum()
    }

    /// What the gate knows a buyer of this offer by.
    #[inline]
    #[must_use]
    pub fn key(&self, offer: &OfferGate, buyer: &str) -> Key {
        let mut hasher = SipHasher13::new_with_keys(self.hash_keys.0, self.hash_keys.1);
        hasher.write(&offer.offer.to_bytes());
        hasher.write(buyer.as_bytes());
        let hash = hasher.finish128();
        Key { high: hash.h1, low: hash.h2 }
    }

    #[inline]
    fn shard(&self, key: Key) -> Option<&Shard> {
        self.shards.get(shard_of(key))
    }
}

#[inline]
fn shard_of(key: Key) -> usize {
    usize::try_from(key.low).unwrap_or(0) % SHARDS
}

/// An order that the gate holds units for, as an audit sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub order: OrderId,
    /// See [`OfferGate::number`].
    pub offer_no: u32,
    pub quantity: u32,
    /// Whether the grant is durable, or still on its way to the disk.
    pub durable: bool,
}

/// An offer's units at the gate at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    pub free: u32,
    /// Units of all orders that hold some.
    pub held: u64,
}

impl Weight {
    /// Units that the gate lacks to make up this stock; below 0: it has too many.
    #[must_use]
    pub fn lacks(self, stock: u32) -> i64 {
        let has = i64::try_from(self.held).unwrap_or(i64::MAX).saturating_add(i64::from(self.free));
        i64::from(stock).saturating_sub(has)
    }
}

/// An offer as the ledger has it while that stands still, for [`MemoryGate::set_right`].
#[derive(Clone, Copy, Debug)]
pub struct OfferBooks<'a> {
    pub stock: u32,
    /// Units of the offer's live orders, as the ledger counts them.
    pub live: u32,
    /// Live orders that the gate is to know.
    pub lost: &'a [SeedOrder<'a>],
    /// Live orders that the gate may not know either, and is not told of: nobody may have their units.
    pub doubtful: &'a [SeedOrder<'a>],
    /// Orders that left the stock: what the gate holds for them does not count.
    pub leaving: &'a HashSet<OrderId>,
    /// Whether units may become free. They are taken in any case when there are too many.
    pub may_free: bool,
}

/// What [`MemoryGate::set_right`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRight {
    /// Whether the gate knows each of the lost orders now.
    pub known: Vec<bool>,
    /// The offer's units now.
    pub weight: Weight,
}

/// What audits do. None of it is on the way of a try, except that a try may wait for a lock.
impl MemoryGate {
    /// Every offer that the gate knows.
    #[must_use]
    pub fn offers(&self) -> Vec<Arc<OfferGate>> {
        self.offers.lock().values().map(Arc::clone).collect()
    }

    /// How many pieces there are for [`MemoryGate::held_in`].
    #[must_use]
    pub fn pieces(&self) -> usize {
        self.shards.len()
    }

    /// Adds the orders that hold units in one piece of the gate. A try of one buyer in so many waits for it, for as
    /// long as it takes to copy the piece; the pieces together are of different instants.
    pub fn held_in(&self, piece: usize, into: &mut Vec<Held>) {
        let Some(shard) = self.shards.get(piece) else { return };
        // Memory is found before the lock is taken.
        into.reserve(shard.table.used());
        let _locked = shard.locked.lock();
        shard.table.visit(|_, entry| into.extend(held(entry)));
    }

    /// The units of these offers at one instant: every try that may be granted waits until it is over. Orders in
    /// `except` are not counted.
    pub fn weigh(&self, offers: &[&OfferGate], except: &HashSet<OrderId>) -> Vec<Weight> {
        let mut sums = self.sums();
        let _locked: Vec<_> = self.shards.iter().map(|shard| shard.locked.lock()).collect();
        self.add_up(&mut sums, except);
        offers.iter().map(|offer| sums.of(offer)).collect()
    }

    /// Tells the gate of live orders that it has lost, and makes the offer's free units what is left, all at one instant:
    /// every try that may be granted waits until it is over. Again is harmless.
    ///
    /// Free units are never more than what stock, held orders and live orders that the gate does not know leave, nor
    /// than the ledger would accept: a buyer is not told "queued" for a unit of somebody else. Units that are held are
    /// never taken from anybody: when too few are free, fewer are taken.
    pub fn set_right(&self, offer: &OfferGate, books: &OfferBooks<'_>) -> SetRight {
        let lost: Vec<Key> = books.lost.iter().map(|order| self.key(offer, order.buyer)).collect();
        let doubtful: Vec<Key> = books.doubtful.iter().map(|order| self.key(offer, order.buyer)).collect();
        let mut sums = self.sums();
        let mut locked: Vec<_> = self.shards.iter().map(|shard| shard.locked.lock()).collect();
        let mut known = Vec::with_capacity(lost.len());
        let mut unknown_units = 0_u64;
        for (order, key) in books.lost.iter().zip(lost) {
            if self.held_at(key).is_none()
                && let (Some(shard), Some(locked)) = (self.shard(key), locked.get_mut(shard_of(key)))
            {
                load(shard, locked, key, offer, order);
            }
            known.push(self.held_at(key) == Some(order.order));
        }
        for (order, is_known) in books.lost.iter().zip(&known) {
            unknown_units += if *is_known { 0 } else { u64::from(order.quantity) };
        }
        for (order, key) in books.doubtful.iter().zip(doubtful) {
            let is_known = self.held_at(key) == Some(order.order);
            unknown_units += if is_known { 0 } else { u64::from(order.quantity) };
        }
        self.add_up(&mut sums, books.leaving);
        let weight = sums.of(offer);
        let left = u64::from(books.stock).saturating_sub(weight.held.saturating_add(unknown_units));
        let left = u32::try_from(left).unwrap_or(u32::MAX).min(books.stock.saturating_sub(books.live));
        if weight.free > left {
            // Free units only change under a shard's lock, or in a stock change, which waits for the audit.
            let _ = offer.take(weight.free - left);
        } else if books.may_free {
            offer.put_back(left - weight.free);
        }
        SetRight { known, weight: sums.of(offer) }
    }

    /// Belongs to whoever holds the shard's lock.
    fn held_at(&self, key: Key) -> Option<OrderId> {
        self.shard(key)?.table.get(key).and_then(held).map(|held| held.order)
    }

    /// The order that the gate holds units for, if it does so for this buyer.
    pub fn live_order(&self, offer: &OfferGate, buyer: &str) -> Option<OrderId> {
        let key = self.key(offer, buyer);
        let shard = self.shard(key)?;
        let _locked = shard.locked.lock();
        shard.table.get(key).and_then(held).map(|held| held.order)
    }

    /// Forgets an order of which nobody knows the buyer: its units are free. `false` when the gate does not hold it.
    pub fn forget(&self, offer: &OfferGate, order: OrderId) -> bool {
        self.shards.iter().any(|shard| {
            let _locked = shard.locked.lock();
            let mut found = None;
            shard.table.visit(|key, entry| {
                if entry.mark == Mark::Live && entry.order == order.0 && entry.offer_no == offer.offer_no {
                    found = Some((key, entry));
                }
            });
            let Some((key, entry)) = found else { return false };
            shard.table.set(key, &Entry { mark: Mark::Ended, ..entry }, |_| true);
            offer.put_back(u32::from(entry.quantity));
            true
        })
    }

    /// Made before everything is locked: it may be long, and nobody should wait for memory.
    fn sums(&self) -> Sums {
        Sums(vec![0; self.offers.lock().len()])
    }

    /// Belongs to whoever holds all locks. Nothing is hashed for an order, unless some orders do not count.
    fn add_up(&self, sums: &mut Sums, except: &HashSet<OrderId>) {
        for shard in &self.shards {
            shard.table.visit(|_, entry| {
                if let Some(held) = held(entry)
                    && (except.is_empty() || !except.contains(&held.order))
                {
                    sums.add(&held);
                }
            });
        }
    }
}

#[cfg(test)]
impl MemoryGate {
    /// Every lock that a grant may wait for, held for as long as the answer is kept.
    pub(super) fn hold_every_lock(&self) -> impl Sized {
        self.shards.iter().map(|shard| shard.locked.lock()).collect::<Vec<_>>()
    }
}

/// Held units by the number of their offer.
#[derive(Debug)]
struct Sums(Vec<u64>);

impl Sums {
    fn add(&mut self, held: &Held) {
        // An offer that the gate learned of since then is not asked about.
        let sum = usize::try_from(held.offer_no).ok().and_then(|offer_no| self.0.get_mut(offer_no));
        if let Some(sum) = sum {
            *sum += u64::from(held.quantity);
        }
    }

    fn of(&self, offer: &OfferGate) -> Weight {
        let held = usize::try_from(offer.offer_no).ok().and_then(|offer_no| self.0.get(offer_no));
        Weight { free: offer.free(), held: held.copied().unwrap_or(0) }
    }
}

fn held(entry: Entry) -> Option<Held> {
    let durable = match entry.mark {
        Mark::Pending => false,
        Mark::Live => true,
        Mark::Vacant | Mark::Ended => return None,
    };
    let (order, quantity) = (OrderId(entry.order), u32::from(entry.quantity));
    Some(Held { order, offer_no: entry.offer_no, quantity, durable })
}

/// Where a grant stands, under the lock of its shard.
struct Place<'a> {
    shard: &'a Shard,
    key: Key,
    offer: &'a Arc<OfferGate>,
    undone: Mark,
}

impl Place<'_> {
    /// Writes the slot, then takes the units. `Err` says how many are free when they are not enough any more.
    fn take(self, locked: &mut Locked, attempt: &Try<'_>, permit: Permit, now: UnixMs) -> Result<Grant, u32> {
        let Self { shard, key, offer, undone } = self;
        let before_s = forgotten_before_s(now);
        let keep = |entry: &Entry| keeps(entry, before_s);
        let before = shard.table.get(key);
        let (order, quantity) = (attempt.order, attempt.quantity);
        let expiry = lasting(expiry_s(attempt.pass_expires_at), before);
        let pending = entry(offer, Mark::Pending, order, quantity, expiry);
        shard.table.set(key, &pending, keep);
        if let Err(free) = offer.take(quantity) {
            shard.table.set(key, &before.unwrap_or(Entry { mark: undone, ..pending }), keep);
            return Err(free);
        }
        locked.keep_spent(before, order, before_s);
        Ok(Grant { offer: Arc::clone(offer), order, quantity, permit, key, undone })
    }
}

/// Belongs to whoever holds the shard's lock.
fn load(shard: &Shard, locked: &mut Locked, key: Key, offer: &OfferGate, order: &SeedOrder<'_>) {
    let mark = if order.live { Mark::Live } else { Mark::Ended };
    let this = entry(offer, mark, order.order, order.quantity, expiry_s(order.pass_expires_at));
    let before = shard.table.get(key);
    let slot = match before.filter(|other| other.order != this.order) {
        None => Entry { pass_expires_at_s: lasting(this.pass_expires_at_s, before), ..this },
        Some(other) => {
            let (kept, spent) =
                if other.mark == Mark::Live && !order.live { (other, this) } else { (this, other) };
            // Who was told to try again may do so.
            if spent.mark != Mark::Vacant {
                locked.spent.insert(OrderId(spent.order), spent.pass_expires_at_s);
            }
            Entry { pass_expires_at_s: lasting(kept.pass_expires_at_s, Some(spent)), ..kept }
        }
    };
    shard.table.set(key, &slot, |_| true);
}

fn let_go(
    shard: &Shard,
    locked: &mut Locked,
    key: Key,
    offer: &OfferGate,
    release: &Release<'_>,
) -> Returned {
    let holds = |entry: &Entry| entry.mark == Mark::Live && entry.order == release.order.0;
    let held_before = lets_go(release.seq, locked.held_since(release.order));
    let Some(entry) = shard.table.get(key).filter(holds).filter(|_| held_before) else {
        return Returned::Before;
    };
    shard.table.set(key, &Entry { mark: Mark::Ended, ..entry }, |_| true);
    locked.revived.remove(&release.order);
    if !release.restock {
        return Returned::Forgotten;
    }
    Returned::Free { was_dry: offer.put_back(u32::from(entry.quantity)) == 0 }
}

fn known(before: Option<Entry>, locked: &Locked, order: OrderId) -> Known {
    let is_live = |entry: &Entry| matches!(entry.mark, Mark::Pending | Mark::Live);
    let is_this = |entry: &Entry| entry.order == order.0;
    match before {
        // First of all: late money may have revived an order whose pass was spent.
        Some(entry) if is_live(&entry) && is_this(&entry) => {
            Known::SameLive { quantity: u32::from(entry.quantity) }
        }
        _ if !locked.spent.is_empty() && locked.spent.contains_key(&order) => Known::SameEnded,
        Some(entry) if is_live(&entry) => Known::OtherLive { order: OrderId(entry.order) },
        Some(entry) if entry.mark == Mark::Ended && is_this(&entry) => Known::SameEnded,
        Some(_) | None => Known::Nothing,
    }
}

fn entry(offer: &OfferGate, mark: Mark, order: OrderId, quantity: u32, pass_expires_at_s: u32) -> Entry {
    let quantity = u8::try_from(quantity).unwrap_or(u8::MAX);
    Entry { mark, order: order.0, quantity, offer_no: offer.offer_no, pass_expires_at_s }
}

/// Live orders are always remembered; ended ones as long as their pass could come again.
fn keeps(entry: &Entry, before_s: u32) -> bool {
    match entry.mark {
        Mark::Pending | Mark::Live => true,
        // Of a grant that was undone: behind it may be a spent pass.
        Mark::Ended | Mark::Vacant => entry.pass_expires_at_s >= before_s,
    }
}

/// Whether the slot's order has ended and somebody may still come with its pass.
fn is_spent(entry: &Entry, before_s: u32) -> bool {
    entry.mark == Mark::Ended && entry.pass_expires_at_s >= before_s
}

/// Until when a slot is kept whose buyer has had another order before: while that one's pass can come, too. Who is not
/// in the table has no spent pass, and is refused without a lock.
fn lasting(expiry_s: u32, earlier: Option<Entry>) -> u32 {
    earlier.map_or(expiry_s, |earlier| earlier.pass_expires_at_s.max(expiry_s))
}

/// What has expired before that is forgotten.
fn forgotten_before_s(now: UnixMs) -> u32 {
    expiry_s(now.plus_ms(-HELD_UP_MAX_MS))
}

/// Whole seconds, rounded up: a pass is never forgotten early.
fn expiry_s(at: UnixMs) -> u32 {
    u32::try_from(at.0.max(0).unsigned_abs().div_ceil(1_000)).unwrap_or(u32::MAX)
}

fn tell(waiters: Option<Vec<oneshot::Sender<Outcome>>>, outcome: Outcome) {
    for waiter in waiters.unwrap_or_default() {
        // A waiter that hung up needs no answer.
        let _ = waiter.send(outcome);
    }
}
