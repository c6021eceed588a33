//! The limits at the door: how fast one buyer or one address may ask, how much may be under way at once,
//! and which address a request really came from.
//!
//! It deliberately does not know HTTP, routes or sales. Callers ask, and turn a "no" into `429` or `503`.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use governor::clock::{Clock, QuantaClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::{InMemoryState, NotKeyed, StateStore};
use governor::{Quota, RateLimiter};
use ipnet::IpNet;
use prefetch_index::prefetch_index;
use siphasher::sip::SipHasher13;

/// One rate for many keys (buyers or addresses), in memory that never grows.
///
/// The arithmetic is governor's GCRA; ours is only where the states are kept. Exact per key while the key keeps
/// its place, and only an idle key can lose it. Closing two rare races of a take-over would need a lock, so they
/// are accepted: in that instant a key may be granted one burst more, or be charged with a request that its
/// predecessor was just making.
pub struct Buckets<C: Clock = QuantaClock>(Option<On<C>>);

struct On<C: Clock> {
    limiter: RateLimiter<u64, Ways, C, NoOpMiddleware<C::Instant>>,
    /// Keyed at random: nobody can choose a name that lands beside a victim's.
    hasher: SipHasher13,
    overflowed: Arc<AtomicU64>,
    /// The limiter's.
    buckets: Arc<[Bucket]>,
}

/// Where a key is counted: its hash.
#[derive(Clone, Copy, Debug)]
pub struct Spot(u64);

/// The answer to one who asks too often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFast {
    pub retry_after_ms: u64,
}

impl Buckets {
    /// `per_s` requests per second and key, after `burst` at once. `per_s` = 0 switches the limit off: then
    /// nothing is allocated and nothing is counted. `keys` is how many keys are told apart, 16 bytes each.
    ///
    /// A burst below the rate would hold that rate back, so it counts as the rate: who raises the rate alone gets it.
    pub fn new(per_s: u32, burst: u32, keys: usize) -> Self {
        Self::with_clock(per_s, burst.max(per_s), keys, QuantaClock::default())
    }
}

impl<C: Clock> Buckets<C> {
    pub fn with_clock(per_s: u32, burst: u32, keys: usize, clock: C) -> Self {
        let Some(per_s) = NonZeroU32::new(per_s) else { return Self(None) };
        let quota = Quota::per_second(per_s).allow_burst(NonZeroU32::new(burst).unwrap_or(per_s));
        let overflowed = Arc::new(AtomicU64::new(0));
        let ways = Ways::new(keys, Arc::clone(&overflowed));
        let buckets = Arc::clone(&ways.buckets);
        let hasher = SipHasher13::new_with_keys(rand::random(), rand::random());
        Self(Some(On { limiter: RateLimiter::new(quota, ways, clock), hasher, overflowed, buckets }))
    }

    /// Where `key` is counted.
    #[inline]
    pub fn spot(&self, key: impl Hash) -> Spot {
        let Some(on) = &self.0 else { return Spot(0) };
        let mut hasher = on.hasher;
        key.hash(&mut hasher);
        Spot(hasher.finish())
    }

    /// Has the memory fetched that [`Self::check_at`] will look at, and does not wait for it.
    #[inline]
    pub fn fetch(&self, spot: Spot) {
        if let Some(on) = &self.0 {
            fetch(&on.buckets, spot.0);
        }
    }

    /// Counts one request of `key`, or says when the next one will be welcome. A refusal costs the key nothing.
    #[inline]
    pub fn check(&self, key: impl Hash) -> Result<(), TooFast> {
        self.check_at(self.spot(key))
    }

    /// The same for the key of this spot.
    #[inline]
    pub fn check_at(&self, spot: Spot) -> Result<(), TooFast> {
        let Some(on) = &self.0 else { return Ok(()) };
        on.limiter.check_key(&spot.0).map_err(|not_until| {
            let wait = not_until.wait_time_from(on.limiter.clock().now());
            TooFast { retry_after_ms: ceil_ms(wait).max(1) }
        })
    }

    /// How many requests were let through uncounted because eight other busy keys shared their bucket.
    /// An innocent is never refused because of a neighbour; a number that grows asks for more `limiter_keys`.
    pub fn overflowed(&self) -> u64 {
        self.0.as_ref().map_or(0, |on| on.overflowed.load(Ordering::Relaxed))
    }

    /// The memory taken at construction. There is no other.
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |on| size_of_val(&*on.buckets))
    }
}

impl<C: Clock> fmt::Debug for Buckets<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buckets")
            .field("on", &self.0.is_some())
            .field("bytes", &self.bytes())
            .field("overflowed", &self.overflowed())
            .finish()
    }
}

fn ceil_ms(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

const WAYS_PER_BUCKET: usize = 8;

/// A set-associative table of GCRA states: a key lives in one of the eight ways of its bucket or nowhere.
struct Ways {
    buckets: Arc<[Bucket]>,
    overflowed: Arc<AtomicU64>,
}

#[derive(Default)]
#[repr(align(128))]
struct Bucket([Way; WAYS_PER_BUCKET]);

#[derive(Default)]
struct Way {
    /// The hash of the key that owns `state`; 0 = never owned.
    tag: AtomicU64,
    state: InMemoryState,
}

impl Ways {
    fn new(keys: usize, overflowed: Arc<AtomicU64>) -> Self {
        let buckets = keys.div_ceil(WAYS_PER_BUCKET).max(1);
        Self { buckets: std::iter::repeat_with(Bucket::default).take(buckets).collect(), overflowed }
    }

    /// The way that `hash` owns, or takes over from an owner who is idle.
    ///
    /// The idle way is chosen *before* looking for an own one again. All threads choose in the same order, so if
    /// another thread took a way for this key in between, it was this very way, and our exchange fails; looking
    /// first and choosing later would give one key two ways, and so two bursts.
    fn way(&self, hash: u64, is_idle: impl Fn(Option<Nanos>) -> bool) -> Option<&Way> {
        let Bucket(ways) = bucket(&self.buckets, hash)?;
        let tag = hash.max(1);
        let own = || ways.iter().find(|way| way.tag.load(Ordering::Acquire) == tag);
        if let Some(own) = own() {
            return Some(own);
        }
        // Each lost race means that another thread took a way; after as many as there are ways it is full.
        for _ in 0..=WAYS_PER_BUCKET {
            let mut owners = ways.iter().map(|way| (way, way.tag.load(Ordering::Acquire)));
            let idle = owners.find(|(way, _)| is_idle(way.arrival_time()));
            if let Some(own) = own() {
                return Some(own);
            }
            let (way, owner) = idle?;
            if way.tag.compare_exchange(owner, tag, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return Some(way);
            }
        }
        None
    }
}

#[inline]
fn bucket(buckets: &[Bucket], hash: u64) -> Option<&Bucket> {
    let count = u128::try_from(buckets.len()).ok()?;
    buckets.get(usize::try_from((u128::from(hash) * count) >> 64).ok()?)
}

/// Has a bucket's two cache lines fetched.
#[inline]
fn fetch(buckets: &[Bucket], hash: u64) {
    if let Some(Bucket(ways)) = bucket(buckets, hash) {
        prefetch_index(ways, 0);
        prefetch_index(ways, WAYS_PER_BUCKET / 2);
    }
}

impl Way {
    /// GCRA's theoretical arrival time, read without changing it: an `Err` leaves the state alone.
    fn arrival_time(&self) -> Option<Nanos> {
        let seen = self.state.measure_and_replace(&NotKeyed::NonKey, Err::<((), Nanos), _>);
        seen.err().flatten()
    }
}

impl StateStore for Ways {
    type Key = u64;

    fn measure_and_replace<T, F, E>(&self, hash: &u64, decide: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        // Idle = GCRA would treat this state exactly as one never used. Taking it over needs no reset.
        let next = |tat| decide(tat).ok().map(|(_, next)| next);
        match self.way(*hash, |tat| tat.is_none() || next(tat) == next(None)) {
            Some(way) => way.state.measure_and_replace(&NotKeyed::NonKey, decide),
            None => {
                self.overflowed.fetch_add(1, Ordering::Relaxed);
                decide(None).map(|(admitted, _)| admitted)
            }
        }
    }
}

/// What an address is counted by: IPv4 by address, IPv6 by /64, because one subscriber owns a whole /64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpKey {
    V4(u32),
    V6Network(u64),
}

impl From<IpAddr> for IpKey {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4.to_bits()),
            IpAddr::V6(v6) => Self::V6Network(u64::try_from(v6.to_bits() >> 64).unwrap_or(u64::MAX)),
        }
    }
}

/// So many requests of any kind may a buyer make for each try that `limits.per_buyer_*` allows. A page that polls every
/// order it shows stays far below it.
pub const READS_PER_TRY: u32 = 10;

/// Operators' calls under way at once, and as many streams and waits of theirs beside them.
pub const OPERATORS_MAX: usize = 128;

/// Connections to the operators' own listener: one for each of these. They are none of `limits.connections`, so that an
/// operator gets in however many buyers there are.
pub const OPERATOR_CONNECTIONS_MAX: usize = 2 * OPERATORS_MAX;

/// Callbacks at once whose body is not all there yet. Those whose body came with the head are not among them.
pub const UNREAD_CALLBACKS_MAX: usize = 4_096;

/// Sockets at once that have not been let in yet: each has seconds to say who it is.
pub const NEWCOMERS_MAX: usize = 4_096;

/// Expired passes at once whose order is looked up. Nobody waits for them: they are shed first.
pub const EXPIRED_PASSES_MAX: usize = 64;

/// How much may be under way at once, in pools that cannot starve each other.
#[derive(Debug)]
pub struct InFlight {
    buyers: Pool,
    waiters: Pool,
    newcomers: Pool,
    expired: Pool,
    cancels: Pool,
    payments: Pool,
    callbacks: Pool,
    unread: Pool,
    operators: Pool,
    watchers: Pool,
}

/// Which pool a call draws from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// What buyers ask and what is answered at once.
    Buyer,
    /// Long polls and waits. They cost memory, not work: a call that begins to wait swaps its permit.
    Waiter,
    /// Sockets and event streams on their way in. Once they are in, the hub counts them.
    Newcomer,
    /// Tries with an expired pass.
    Expired,
    /// Cancels: a crowd at the door must not keep them out, nor a slow provider.
    Cancel,
    /// Payments on their way to a provider, which may take its time.
    Payment,
    /// Callbacks that have been read.
    Callback,
    /// Callbacks whose body is on its way; anybody can begin one.
    Unread,
    /// What operators ask and what is answered at once.
    Operator,
    /// Operators' streams and waits: however many are open, a sale can still be paused.
    Watcher,
}

/// Nothing was done and nothing was counted: say `503 busy`, or answer without waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// One place under way. Dropping it gives the place back, also when the client hangs up.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once limits nothing"]
pub struct Permit(Arc<AtomicUsize>);

impl InFlight {
    /// `reserve` is for cancels, for payments and for callbacks, each by itself.
    pub fn new(buyers: usize, waiters: usize, reserve: usize) -> Self {
        Self {
            buyers: Pool::new(buyers),
            waiters: Pool::new(waiters),
            newcomers: Pool::new(NEWCOMERS_MAX),
            expired: Pool::new(EXPIRED_PASSES_MAX),
            cancels: Pool::new(reserve),
            payments: Pool::new(reserve),
            callbacks: Pool::new(reserve),
            unread: Pool::new(UNREAD_CALLBACKS_MAX),
            operators: Pool::new(OPERATORS_MAX),
            watchers: Pool::new(OPERATORS_MAX),
        }
    }

    /// Never waits: excess is told at once, at a fraction of the cost of serving it.
    #[inline]
    pub fn enter(&self, class: Class) -> Result<Permit, Full> {
        self.pool(class).take()
    }

    /// Whether [`Self::enter`] would let one in now, without taking the place: for whoever will most likely be answered
    /// before anybody could notice. The count is where all threads meet, and only to look at it costs next to nothing.
    #[inline]
    pub fn has_room(&self, class: Class) -> bool {
        let pool = self.pool(class);
        pool.used.load(Ordering::Relaxed) < pool.limit
    }

    /// Takes a place that [`Self::has_room`] showed. Others may have seen the same one: the limit can be exceeded by
    /// one for each thread that looked in the same instant, and by no more.
    pub fn enter_seen(&self, class: Class) -> Permit {
        let used = &self.pool(class).used;
        used.fetch_add(1, Ordering::AcqRel);
        Permit(Arc::clone(used))
    }

    pub fn used(&self, class: Class) -> usize {
        self.pool(class).used.load(Ordering::Relaxed)
    }

    fn pool(&self, class: Class) -> &Pool {
        match class {
            Class::Buyer => &self.buyers,
            Class::Waiter => &self.waiters,
            Class::Newcomer => &self.newcomers,
            Class::Expired => &self.expired,
            Class::Cancel => &self.cancels,
            Class::Payment => &self.payments,
            Class::Callback => &self.callbacks,
            Class::Unread => &self.unread,
            Class::Operator => &self.operators,
            Class::Watcher => &self.watchers,
        }
    }
}

#[derive(Debug)]
struct Pool {
    limit: usize,
    used: Arc<AtomicUsize>,
}

impl Pool {
    fn new(limit: usize) -> Self {
        Self { limit, used: Arc::new(AtomicUsize::new(0)) }
    }

    fn take(&self) -> Result<Permit, Full> {
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |used| (used < self.limit).then_some(used + 1))
            .map(|_| Permit(Arc::clone(&self.used)))
            .map_err(|_| Full)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Finds the address of the client behind proxies that are known to tell the truth.
#[derive(Clone, Debug, Default)]
pub struct ClientIp {
    trusted: Vec<IpNet>,
}

/// More hops than this are not a proxy chain but an attempt to make us parse.
const MOST_FORWARDED_HOPS: usize = 16;

impl ClientIp {
    /// Networks (`10.0.0.0/8`) or single addresses (`192.0.2.7`). The error is the entry that is neither.
    pub fn trusting(proxies: &[String]) -> Result<Self, String> {
        let trusted = proxies.iter().map(|text| parse_network(text).ok_or_else(|| text.clone()));
        Ok(Self { trusted: trusted.collect::<Result<_, _>>()? })
    }

    /// The rightmost untrusted address of `X-Forwarded-For`, and only if the peer itself is trusted: what
    /// stands further left was written by the client, who may write what he likes. A header that is garbled
    /// where it matters, or longer than any proxy chain, counts as the peer's own doing.
    ///
    /// `forwarded_for` yields the header's lines in the order received.
    pub fn of<'a, I>(&self, peer: IpAddr, forwarded_for: I) -> IpAddr
    where
        I: IntoIterator<Item = &'a str>,
        I::IntoIter: DoubleEndedIterator,
    {
        let peer = peer.to_canonical();
        if !self.trusts(peer) {
            return peer;
        }
        let mut client = peer;
        let hops = forwarded_for.into_iter().rev().flat_map(|line| line.rsplit(','));
        for (hop, text) in hops.enumerate() {
            let Some(address) = parse_address(text.trim()).filter(|_| hop < MOST_FORWARDED_HOPS) else {
                return peer;
            };
            client = address;
            if !self.trusts(address) {
                break;
            }
        }
        client
    }

    fn trusts(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|network| network.contains(&address))
    }
}

fn parse_network(text: &str) -> Option<IpNet> {
    text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(|one| IpNet::from(one.to_canonical())))
}

/// Some proxies write the client's port too: `192.0.2.7:4711`, `[2001:db8::1]:4711`, `[2001:db8::1]`.
fn parse_address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse::<IpAddr>().or_else(|_| text.parse::<SocketAddr>().map(|socket| socket.ip()));
    address.ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    fn buckets(per_s: u32, burst: u32, keys: usize) -> (Buckets<FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        // GCRA's zero means "never used": stand beside it.
        clock.advance(Duration::from_secs(1));
        (Buckets::with_clock(per_s, burst, keys, clock.clone()), clock)
    }

    fn admitted(buckets: &Buckets<FakeRelativeClock>, key: impl Hash + Copy, tries: usize) -> usize {
        (0..tries).filter(|_| buckets.check(key).is_ok()).count()
    }

    #[test]
    fn a_burst_passes_and_the_next_is_told_when_to_come_back() {
        let (buckets, clock) = buckets(5, 10, 1_000);
        assert_eq!(admitted(&buckets, "ann", 10), 10);
        assert_eq!(buckets.check("ann"), Err(TooFast { retry_after_ms: 200 }));
        clock.advance(Duration::from_micros(50_500));
        assert_eq!(buckets.check("ann"), Err(TooFast { retry_after_ms: 150 }), "149.5 ms are rounded up");
        clock.advance(Duration::from_millis(150));
        assert_eq!(buckets.check("ann"), Ok(()));
        assert!(buckets.check("ann").is_err());
    }

    #[test]
    fn a_quiet_key_gets_its_whole_burst_back_and_no_more() {
        let (buckets, clock) = buckets(5, 10, 1_000);
        admitted(&buckets, "ann", 10);
        clock.advance(Duration::from_secs(1));
        assert_eq!(admitted(&buckets, "ann", 20), 5);
        clock.advance(Duration::from_secs(3_600));
        assert_eq!(admitted(&buckets, "ann", 20), 10);
    }

    #[test]
    fn a_rate_of_zero_is_off_and_costs_nothing() {
        let (buckets, _) = buckets(0, 10, 1_000_000);
        assert_eq!(buckets.bytes(), 0);
        assert_eq!(admitted(&buckets, "ann", 1_000), 1_000);
    }

    #[test]
    fn a_million_keys_take_sixteen_bytes_each_and_a_flood_of_names_takes_no_more() {
        assert_eq!(buckets(5, 10, 1_000_000).0.bytes(), 16_000_000);
        let (small, _) = buckets(5, 10, 1_024);
        let before = small.bytes();
        let refused = (0..1_000_000_u32).filter(|name| small.check(name).is_err()).count();
        assert_eq!(small.bytes(), before);
        assert_eq!(refused, 0, "a name that does not fit is admitted, never refused for its neighbours");
        assert!(small.overflowed() >= 1_000_000 - 1_024);
    }

    #[test]
    fn eight_neighbours_in_one_bucket_are_counted_apart() {
        let (buckets, clock) = buckets(5, 10, WAYS_PER_BUCKET);
        for _ in 0..10 {
            for buyer in 0..WAYS_PER_BUCKET {
                assert_eq!(buckets.check(buyer), Ok(()));
            }
        }
        for buyer in 0..WAYS_PER_BUCKET {
            assert!(buckets.check(buyer).is_err(), "buyer {buyer} has used up his own burst");
        }
        assert_eq!(buckets.overflowed(), 0);
        assert_eq!(admitted(&buckets, "a ninth", 3), 3);
        assert_eq!(buckets.overflowed(), 3);

        clock.advance(Duration::from_secs(2));
        assert_eq!(admitted(&buckets, "a ninth", 20), 10, "an idle way is taken over as if new");
        assert_eq!(buckets.overflowed(), 3);
    }

    #[test]
    fn a_busy_way_is_never_taken_over() {
        let (buckets, clock) = buckets(1, 100, WAYS_PER_BUCKET);
        assert_eq!(admitted(&buckets, "greedy", 200), 100);
        for round in 0..50_u32 {
            clock.advance(Duration::from_millis(1_000));
            assert_eq!(admitted(&buckets, "greedy", 3), 1, "round {round}");
            for passer_by in 0..20_u32 {
                assert_eq!(buckets.check((round, passer_by)), Ok(()));
            }
        }
    }

    #[test]
    fn threads_that_hammer_one_key_together_get_exactly_its_burst() {
        for _ in 0..50 {
            let (buckets, _) = buckets(1, 1_000, WAYS_PER_BUCKET);
            let total: usize = std::thread::scope(|scope| {
                let hammer = || (0..2_000).filter(|_| buckets.check("ann").is_ok()).count();
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(hammer)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum()
            });
            assert_eq!(total, 1_000);
        }
    }

    #[test]
    fn threads_that_meet_at_a_keys_first_request_get_exactly_its_burst() {
        const KEYS: u64 = 50_000;
        let (buckets, _) = buckets(1, 3, 1_000_000);
        let sweep = || {
            let tries = (0..KEYS).flat_map(|key| [key; 3]);
            tries.filter(|key| buckets.check(key).is_ok()).count()
        };
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(sweep)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(u64::try_from(total).unwrap(), KEYS * 3);
        assert_eq!(buckets.overflowed(), 0);
    }

    #[test]
    fn addresses_are_counted_as_subscribers_own_them() {
        let key = |text: &str| IpKey::from(text.parse::<IpAddr>().unwrap());
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
        assert_eq!(key("2001:db8:0:1::1"), key("2001:db8:0:1:ffff::2"));
        assert_ne!(key("2001:db8:0:1::1"), key("2001:db8:0:2::1"));
    }

    #[test]
    fn pools_are_separate_and_a_dropped_permit_comes_back() {
        let in_flight = InFlight::new(2, 1, 1);
        let first = in_flight.enter(Class::Buyer).unwrap();
        let _second = in_flight.enter(Class::Buyer).unwrap();
        assert_eq!(in_flight.enter(Class::Buyer).unwrap_err(), Full);
        let _payment = in_flight.enter(Class::Payment).expect("a full house still takes money");
        assert_eq!(in_flight.enter(Class::Payment).unwrap_err(), Full);
        for other in [Class::Cancel, Class::Callback, Class::Operator, Class::Watcher, Class::Waiter] {
            assert!(in_flight.enter(other).is_ok(), "{other:?} has a pool of its own");
        }
        assert_eq!(in_flight.used(Class::Buyer), 2);
        drop(first);
        assert_eq!(in_flight.used(Class::Buyer), 1);
        assert!(in_flight.enter(Class::Buyer).is_ok());
    }

    #[test]
    fn no_crowd_of_threads_exceeds_the_limit_or_leaks_a_place() {
        let in_flight = InFlight::new(3, 0, 0);
        let most = AtomicUsize::new(0);
        let crowd = || {
            for _ in 0..20_000 {
                if let Ok(_permit) = in_flight.enter(Class::Buyer) {
                    most.fetch_max(in_flight.used(Class::Buyer), Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(crowd))));
        assert!(most.load(Ordering::Relaxed) <= 3);
        assert_eq!(in_flight.used(Class::Buyer), 0);
    }

    #[test]
    fn places_that_were_seen_exceed_the_limit_by_one_for_each_thread_at_most() {
        const THREADS: usize = 4;
        let in_flight = InFlight::new(3, 0, 0);
        let together = std::sync::Barrier::new(THREADS);
        let (least, most) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0));
        // Everybody takes what there seems to be, and keeps it until nobody sees any more.
        let crowd = || {
            for _ in 0..2_000 {
                together.wait();
                let mut permits = Vec::new();
                while in_flight.has_room(Class::Buyer) {
                    permits.push(in_flight.enter_seen(Class::Buyer));
                }
                together.wait();
                let used = in_flight.used(Class::Buyer);
                least.fetch_min(used, Ordering::Relaxed);
                most.fetch_max(used, Ordering::Relaxed);
                together.wait();
            }
        };
        std::thread::scope(|scope| (0..THREADS).for_each(|_| drop(scope.spawn(crowd))));
        let (least, most) = (least.into_inner(), most.into_inner());
        assert!(least >= 3 && most < 3 + THREADS, "{least} to {most}");
        assert_eq!(in_flight.used(Class::Buyer), 0);
    }

    #[test]
    fn the_client_is_the_rightmost_address_that_no_trusted_proxy_owns() {
        let trusting: Vec<String> = ["10.0.0.0/8", "192.0.2.7", "fd00::/8"].map(String::from).into();
        let client = ClientIp::trusting(&trusting).unwrap();
        let seventeen_hops = ["10.0.0.1"; 17].join(",");
        let cases: &[(&str, &str, &[&str], &str)] = &[
            ("no header", "10.0.0.1", &[], "10.0.0.1"),
            ("an untrusted peer says what he likes", "203.0.113.9", &["198.51.100.1"], "203.0.113.9"),
            ("one proxy", "10.0.0.1", &["198.51.100.1"], "198.51.100.1"),
            ("spoofed on the left", "10.0.0.1", &["1.1.1.1, 198.51.100.1"], "198.51.100.1"),
            ("spoofed as a trusted one", "10.0.0.1", &["10.9.9.9, 198.51.100.1"], "198.51.100.1"),
            ("garbage on the left changes nothing", "10.0.0.1", &["<x>, 198.51.100.1"], "198.51.100.1"),
            ("two proxies", "10.0.0.1", &["198.51.100.1, 192.0.2.7"], "198.51.100.1"),
            ("two header lines", "10.0.0.1", &["1.1.1.1", "198.51.100.1, 10.2.2.2"], "198.51.100.1"),
            ("the first line is the client's", "10.0.0.1", &["1.1.1.1", "198.51.100.1"], "198.51.100.1"),
            ("all trusted: the farthest", "10.0.0.1", &["10.3.3.3, 10.2.2.2"], "10.3.3.3"),
            ("garbled where it matters", "10.0.0.1", &["198.51.100.1, unknown"], "10.0.0.1"),
            ("garbled behind a proxy", "10.0.0.1", &["198.51.100.1, junk, 10.2.2.2"], "10.0.0.1"),
            ("empty", "10.0.0.1", &[""], "10.0.0.1"),
            ("longer than any chain", "10.0.0.1", &[&seventeen_hops], "10.0.0.1"),
            ("with a port", "10.0.0.1", &["198.51.100.1:4711"], "198.51.100.1"),
            ("IPv6 with a port", "fd00::1", &["[2001:db8::1]:4711"], "2001:db8::1"),
            ("IPv6 in brackets", "fd00::1", &["[2001:db8::1]"], "2001:db8::1"),
            ("a mapped peer", "::ffff:10.0.0.1", &["::ffff:198.51.100.1"], "198.51.100.1"),
            ("a mapped untrusted peer", "::ffff:203.0.113.9", &["1.1.1.1"], "203.0.113.9"),
        ];
        for (case, peer, header, expected) in cases {
            let found = client.of(peer.parse().unwrap(), header.iter().copied());
            assert_eq!(found, expected.parse::<IpAddr>().unwrap(), "{case}");
        }
    }

    #[test]
    fn without_trusted_proxies_the_header_is_never_read() {
        let client = ClientIp::default();
        let peer = "127.0.0.1".parse().unwrap();
        assert_eq!(client.of(peer, ["198.51.100.1"]), peer);
    }

    #[test]
    fn a_proxy_that_is_no_network_is_named() {
        let garbled = ["10.0.0.0/8", "10.0.0.0/40"].map(String::from);
        assert_eq!(ClientIp::trusting(&garbled).unwrap_err(), "10.0.0.0/40");
    }
}
