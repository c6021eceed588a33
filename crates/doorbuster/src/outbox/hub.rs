//! The hub: hands a changed order to whoever waits for it, sockets and long polls alike. A push is a hint: what counts
//! is in the ledger, and a listener that is too slow is cut off and reads it there.

use std::collections::HashMap;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rules::buyer::BuyerId;
use rules::id::OrderId;
use rules::wire::OrderView;
use tokio::sync::{mpsc, oneshot};

const SHARDS: usize = 64;

/// Changes a listener may lag behind before it is cut off.
const LISTENER_QUEUE: usize = 64;

type Change = Arc<OrderView>;

/// Those who wait for one key, each under a number of its own.
type Shard<K, V> = Mutex<HashMap<K, Vec<(u64, V)>>>;

type Shards<K, V> = Box<[Shard<K, V>]>;

#[derive(Debug)]
pub struct Hub {
    listeners: Shards<BuyerId, mpsc::Sender<Change>>,
    watchers: Shards<OrderId, oneshot::Sender<Change>>,
    /// Open sockets of all buyers.
    listening: AtomicUsize,
    /// Listeners and watchers together: while it is zero, nobody needs to be looked for.
    present: AtomicUsize,
    next_id: AtomicUsize,
    hasher: std::hash::RandomState,
    /// Of those who read what they tell, one at a time.
    reading: tokio::sync::Mutex<()>,
}

impl Default for Hub {
    fn default() -> Self {
        Self {
            listeners: shards(),
            watchers: shards(),
            listening: AtomicUsize::new(0),
            present: AtomicUsize::new(0),
            next_id: AtomicUsize::new(0),
            hasher: std::hash::RandomState::new(),
            reading: tokio::sync::Mutex::default(),
        }
    }
}

fn shards<K, V>() -> Shards<K, V> {
    std::iter::repeat_with(Mutex::default).take(SHARDS).collect()
}

/// How many sockets there may be.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    pub in_all: usize,
    pub per_buyer: usize,
}

/// Which limit was full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooMany {
    InAll,
    OfBuyer,
}

/// One of the places for sockets. Dropping it gives it back.
#[derive(Debug)]
struct Place(Arc<Hub>);

impl Place {
    fn take(hub: &Arc<Hub>, most: usize) -> Option<Self> {
        let more = |listening: usize| (listening < most).then_some(listening + 1);
        hub.listening.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Self(Arc::clone(hub)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.listening.fetch_sub(1, Ordering::AcqRel);
    }
}

/// One socket's ear. Dropping it takes it out of the hub.
#[derive(Debug)]
pub struct Listener {
    place: Place,
    buyer: BuyerId,
    id: u64,
    changes: mpsc::Receiver<Arc<OrderView>>,
}

/// One long poll's ear for one order. Dropping it takes it out of the hub.
#[derive(Debug)]
pub struct Watcher {
    hub: Arc<Hub>,
    order: OrderId,
    id: u64,
    change: oneshot::Receiver<Arc<OrderView>>,
}

impl Hub {
    /// Listens to all changes of a buyer's orders, within the limits.
    pub fn listen(self: &Arc<Self>, buyer: &BuyerId, most: Most) -> Result<Listener, TooMany> {
        let place = Place::take(self, most.in_all).ok_or(TooMany::InAll)?;
        let (send, changes) = mpsc::channel(LISTENER_QUEUE);
        let id = self.fresh_id();
        let mut shard = self.listener_shard(buyer).ok_or(TooMany::InAll)?.lock();
        let ears = shard.get(buyer).map_or(0, Vec::len);
        if ears >= most.per_buyer {
            return Err(TooMany::OfBuyer);
        }
        shard.entry(buyer.clone()).or_default().push((id, send));
        self.present.fetch_add(1, Ordering::AcqRel);
        Ok(Listener { place, buyer: buyer.clone(), id, changes })
    }

    /// Waits for the next change of one order. Subscribe first, then look at the order: no change falls in between.
    #[must_use]
    pub fn watch(self: &Arc<Self>, order: OrderId) -> Watcher {
        let (send, change) = oneshot::channel();
        let id = self.fresh_id();
        if let Some(shard) = self.watcher_shard(order) {
            shard.lock().entry(order).or_default().push((id, send));
            self.present.fetch_add(1, Ordering::AcqRel);
        }
        Watcher { hub: Arc::clone(self), order, id, change }
    }

    /// Whether anybody listens at all: if not, nothing needs to be made for them.
    #[must_use]
    pub fn has_anyone(&self) -> bool {
        self.present.load(Ordering::Acquire) > 0
    }

    /// Tells everybody who waits for this order. Call it after the commit that changed it.
    pub fn publish(&self, buyer: &BuyerId, order: &Arc<OrderView>) {
        if !self.has_anyone() {
            return;
        }
        if let Some(shard) = self.watcher_shard(order.id) {
            let watchers = shard.lock().remove(&order.id).unwrap_or_default();
            self.present.fetch_sub(watchers.len(), Ordering::AcqRel);
            for (_, watcher) in watchers {
                let _ = watcher.send(Arc::clone(order));
            }
        }
        if let Some(shard) = self.listener_shard(buyer) {
            let mut shard = shard.lock();
            let Some(ears) = shard.get_mut(buyer) else { return };
            // A full ear is cut off: its socket closes and the buyer's page reads the order anew.
            let before = ears.len();
            ears.retain(|(_, ear)| ear.try_send(Arc::clone(order)).is_ok());
            self.present.fetch_sub(before - ears.len(), Ordering::AcqRel);
            if ears.is_empty() {
                shard.remove(buyer);
            }
        }
    }

    /// Tells an order as `read` finds it. Money may go back without a change of its order, so that no `seq` says which of two
    /// words is the later one: whoever reads later tells later.
    pub async fn publish_read<E>(
        &self,
        read: impl Future<Output = Result<Option<(BuyerId, Arc<OrderView>)>, E>>,
    ) -> Result<(), E> {
        let _turn = self.reading.lock().await;
        if let Some((buyer, order)) = read.await? {
            self.publish(&buyer, &order);
        }
        Ok(())
    }

    fn fresh_id(&self) -> u64 {
        u64::try_from(self.next_id.fetch_add(1, Ordering::Relaxed)).unwrap_or(u64::MAX)
    }

    fn listener_shard(&self, buyer: &BuyerId) -> Option<&Shard<BuyerId, mpsc::Sender<Change>>> {
        let hash = usize::try_from(self.hasher.hash_one(buyer) & 0xffff).unwrap_or(0);
        self.listeners.get(hash % SHARDS)
    }

    fn watcher_shard(&self, order: OrderId) -> Option<&Shard<OrderId, oneshot::Sender<Change>>> {
        let random = usize::try_from((order.0 >> 32) & 0xffff).unwrap_or(0);
        self.watchers.get(random % SHARDS)
    }
}

/// Takes one ear out of its list, and the list out of the map when it was the last.
fn leave<K: std::hash::Hash + Eq, V>(hub: &Hub, shard: &Shard<K, V>, key: &K, id: u64) {
    let mut shard = shard.lock();
    let Some(ears) = shard.get_mut(key) else { return };
    let before = ears.len();
    ears.retain(|(ear, _)| *ear != id);
    hub.present.fetch_sub(before - ears.len(), Ordering::AcqRel);
    if ears.is_empty() {
        shard.remove(key);
    }
}

impl Listener {
    /// The next change; `None` when this listener was cut off for being too slow.
    pub async fn next(&mut self) -> Option<Arc<OrderView>> {
        self.changes.recv().await
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let hub = &self.place.0;
        if let Some(shard) = hub.listener_shard(&self.buyer) {
            leave(hub, shard, &self.buyer, self.id);
        }
    }
}

impl Watcher {
    /// The next change of the order.
    pub async fn change(&mut self) -> Option<Arc<OrderView>> {
        (&mut self.change).await.ok()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(shard) = self.hub.watcher_shard(self.order) {
            leave(&self.hub, shard, &self.order, self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use rules::id::{OfferId, SaleId};
    use rules::money::Money;
    use rules::order::State;
    use rules::time::UnixMs;

    use super::*;

    fn order(id: u128) -> Arc<OrderView> {
        let price = Money { amount: 1, currency: "CNY".parse().unwrap() };
        Arc::new(OrderView {
            id: OrderId(id),
            sale_id: SaleId(1),
            offer_id: OfferId(1),
            quantity: 1,
            price,
            total: price,
            state: State::AwaitingPayment,
            reason: None,
            seq: 2,
            created_at: UnixMs(0),
            pay_by: None,
            paid_at: None,
            closed_at: None,
            refunded_at: None,
            payment_id: None,
            refunds: Vec::new(),
        })
    }

    const MOST: Most = Most { in_all: 6, per_buyer: 5 };

    fn buyer(name: &str) -> BuyerId {
        BuyerId::parse(name).unwrap()
    }

    #[tokio::test]
    async fn a_change_reaches_its_buyer_and_nobody_else() {
        let hub = Arc::new(Hub::default());
        let (mut ann, mut bob) =
            (hub.listen(&buyer("ann"), MOST).unwrap(), hub.listen(&buyer("bob"), MOST).unwrap());
        let mut watcher = hub.watch(OrderId(1));
        hub.publish(&buyer("ann"), &order(1));
        assert_eq!(ann.next().await.unwrap().id, OrderId(1));
        assert_eq!(watcher.change().await.unwrap().id, OrderId(1));
        hub.publish(&buyer("bob"), &order(2));
        assert_eq!(bob.next().await.unwrap().id, OrderId(2));
    }

    #[tokio::test]
    async fn who_reads_later_tells_later() {
        let hub = Arc::new(Hub::default());
        let mut ann = hub.listen(&buyer("ann"), MOST).unwrap();
        let found = |id: u128| Ok::<_, std::convert::Infallible>(Some((buyer("ann"), order(id))));
        let (go_on, held_up) = oneshot::channel::<()>();
        let slow = hub.publish_read(async {
            held_up.await.unwrap();
            found(1)
        });
        let quick = hub.publish_read(async { found(2) });
        let (slow, quick, sent) = tokio::join!(slow, quick, async { go_on.send(()) });
        assert_eq!((slow, quick, sent), (Ok(()), Ok(()), Ok(())));
        let heard = [ann.next().await.unwrap().id, ann.next().await.unwrap().id];
        assert_eq!(heard, [OrderId(1), OrderId(2)]);
    }

    #[tokio::test]
    async fn who_leaves_leaves_nothing_behind() {
        let hub = Arc::new(Hub::default());
        let ears: Vec<_> = (0..5).map(|_| hub.listen(&buyer("ann"), MOST).unwrap()).collect();
        assert_eq!(hub.listen(&buyer("ann"), MOST).unwrap_err(), TooMany::OfBuyer);
        drop((ears, hub.watch(OrderId(1))));
        assert_eq!(hub.present.load(Ordering::Acquire), 0);
        assert!(hub.listeners.iter().all(|shard| shard.lock().is_empty()));
        assert!(hub.watchers.iter().all(|shard| shard.lock().is_empty()));
    }

    #[tokio::test]
    async fn there_are_only_so_many_places_and_they_come_back() {
        let hub = Arc::new(Hub::default());
        let most = Most { in_all: 2, per_buyer: 5 };
        let ears = [hub.listen(&buyer("ann"), most).unwrap(), hub.listen(&buyer("bob"), most).unwrap()];
        assert_eq!(hub.listen(&buyer("eve"), most).unwrap_err(), TooMany::InAll);
        drop(ears);
        assert!(hub.listen(&buyer("eve"), most).is_ok());
        assert_eq!(hub.listening.load(Ordering::Acquire), 0);
    }

    #[tokio::test]
    async fn a_listener_that_is_too_slow_is_cut_off() {
        let hub = Arc::new(Hub::default());
        let mut slow = hub.listen(&buyer("ann"), MOST).unwrap();
        for id in 0..=LISTENER_QUEUE {
            hub.publish(&buyer("ann"), &order(u128::try_from(id).unwrap()));
        }
        let mut heard = 0;
        while slow.next().await.is_some() {
            heard += 1;
        }
        assert_eq!(heard, LISTENER_QUEUE);
        drop(slow);
        assert_eq!(hub.present.load(Ordering::Acquire), 0);
    }
}
