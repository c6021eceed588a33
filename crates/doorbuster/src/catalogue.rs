//! What is on sale, in memory: a snapshot that readers follow without a lock and operators replace as a whole.
//! The ledger is the truth; this is rebuilt from it after every change.

use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};
use bytes::Bytes;
use rules::id::{self, IdMap, OfferId, OrderId, SaleId};
use rules::order::State;
use rules::sale::{Offer, Phase, Sale, SaleState};
use rules::time::UnixMs;
use rules::wire::{OfferView, OrderView, SaleView};

use crate::gate::OfferGate;
use crate::telemetry::metrics::{Counts, Step};

/// The catalogue; its readers take a [`Snapshot`] and keep it for one request.
#[derive(Debug, Default)]
pub struct Catalogue(ArcSwap<Snapshot>);

#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub sales: IdMap<SaleId, Arc<SaleCard>>,
    pub offers: IdMap<OfferId, Arc<OfferCard>>,
    /// Sales that pages list, newest first: published or later, and no rehearsals.
    pub listed: Vec<Arc<SaleCard>>,
}

/// A sale that was published at some time.
#[derive(Debug)]
pub struct SaleCard {
    pub sale: Sale,
    /// How many came how far, since this process started.
    pub funnel: Arc<Counts<Step>>,
    /// What is left, as the last one who counted found it.
    pub availability: Live,
    rendered: [OnceLock<Rendered>; 3],
}

/// An offer of such a sale.
#[derive(Debug)]
pub struct OfferCard {
    pub offer: Offer,
    pub sale: Arc<SaleCard>,
    pub gate: Arc<OfferGate>,
    queued_one: OnceLock<QueuedJson>,
}

impl OfferCard {
    /// A claim of this offer as its buyer sees it while the ledger does not have it yet.
    #[must_use]
    pub fn queued_view(&self, order: OrderId, quantity: u32, created_at: UnixMs) -> OrderView {
        let price = self.offer.price;
        OrderView {
            id: order,
            sale_id: self.sale.sale.id,
            offer_id: self.offer.id,
            quantity,
            price,
            total: price.times(quantity).unwrap_or(price),
            state: State::Queued,
            reason: None,
            seq: 1,
            created_at,
            pay_by: None,
            paid_at: None,
            closed_at: None,
            refunded_at: None,
            payment_id: None,
            refunds: Vec::new(),
        }
    }

    /// The same as JSON. For one unit, which is what nearly everybody orders, all but the order's id and time is
    /// prepared.
    #[must_use]
    pub fn queued_json(&self, order: OrderId, quantity: u32, created_at: UnixMs) -> Bytes {
        if quantity != 1 {
            return Rendered::json_of(&self.queued_view(order, quantity, created_at));
        }
        self.queued_one.get_or_init(|| QueuedJson::of(self)).write(order, created_at)
    }
}

/// A queued order's JSON, cut where its id and its time go.
#[derive(Debug)]
struct QueuedJson {
    before_id: String,
    before_time: String,
    end: String,
}

impl QueuedJson {
    fn of(card: &OfferCard) -> Self {
        let (id, time) = (OrderId(0), UnixMs(0));
        let json = serde_json::to_string(&card.queued_view(id, 1, time)).unwrap_or_default();
        // Ids and times are quoted and hold no quotes: the first of each is the order's own.
        let (before_id, rest) = json.split_once(&id.to_string()).unwrap_or_default();
        let (before_time, end) = rest.split_once(&time.to_string()).unwrap_or_default();
        Self { before_id: before_id.to_owned(), before_time: before_time.to_owned(), end: end.to_owned() }
    }

    fn write(&self, order: OrderId, created_at: UnixMs) -> Bytes {
        const ID_AND_TIME_BYTES: usize = 64;
        let prepared = self.before_id.len() + self.before_time.len() + self.end.len();
        let mut json = Vec::with_capacity(prepared + ID_AND_TIME_BYTES);
        json.extend_from_slice(self.before_id.as_bytes());
        json.extend_from_slice(&id::encode(order.0));
        json.extend_from_slice(self.before_time.as_bytes());
        // Writing to a vector cannot fail.
        let _ = write!(json, "{created_at}");
        json.extend_from_slice(self.end.as_bytes());
        json.into()
    }
}

/// A page's data as bytes, with the tag that changes when they do.
#[derive(Clone, Debug)]
pub struct Rendered {
    pub json: Bytes,
    pub etag: String,
}

impl Rendered {
    pub fn of(value: &impl serde::Serialize) -> Self {
        let json = Self::json_of(value);
        let etag = etag_of(&json);
        Self { json, etag }
    }

    fn json_of(value: &impl serde::Serialize) -> Bytes {
        // These types have no map keys that are not text: writing them cannot fail.
        serde_json::to_vec(value).unwrap_or_default().into()
    }
}

/// A tag that changes when the bytes do.
#[must_use]
pub fn etag_of(bytes: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let tag = digest.as_ref().first_chunk().map_or(0, |head| u64::from_be_bytes(*head));
    format!("\"{tag:016x}\"")
}

/// How long live numbers are good, in milliseconds.
const LIVE_FOR_MS: u64 = 1_000;

/// Live numbers as bytes: counted by one, at most once per second, for all who ask.
#[derive(Debug, Default)]
pub struct Live {
    latest: ArcSwapOption<Counted>,
    turn: tokio::sync::Mutex<()>,
    /// Raised when what was counted is no longer so.
    edition: AtomicU64,
}

#[derive(Debug)]
struct Counted {
    at: UnixMs,
    edition: u64,
    phase: Phase,
    rendered: Rendered,
}

impl Live {
    /// The latest count, or a new one when that is too old. While one counts, the others are told the latest; when
    /// counting fails, the latest stands for another second.
    pub async fn get<E>(
        &self,
        now: UnixMs,
        phase: Phase,
        count: impl Future<Output = Result<Rendered, E>>,
    ) -> Result<Rendered, E> {
        let edition = self.edition.load(Ordering::Acquire);
        let fresh = |counted: &Counted| {
            counted.phase == phase && counted.edition >= edition && counted.at.ms_until(now) < LIVE_FOR_MS
        };
        let latest = self.latest.load_full();
        if let Some(counted) = latest.as_ref().filter(|counted| fresh(counted)) {
            return Ok(counted.rendered.clone());
        }
        let _turn = match (self.turn.try_lock(), &latest) {
            (Ok(turn), _) => turn,
            (Err(_), Some(counted)) if counted.phase == phase => return Ok(counted.rendered.clone()),
            (Err(_), _) => self.turn.lock().await,
        };
        if let Some(counted) = self.latest.load_full().filter(|counted| fresh(counted)) {
            return Ok(counted.rendered.clone());
        }
        let rendered = match (count.await, latest) {
            (Ok(rendered), _) => rendered,
            (Err(_), Some(counted)) if counted.phase == phase => counted.rendered.clone(),
            (Err(error), _) => return Err(error),
        };
        self.latest.store(Some(Arc::new(Counted { at: now, edition, phase, rendered: rendered.clone() })));
        Ok(rendered)
    }

    /// Whoever asks from now on is told a new count: also one that is under way is too old.
    pub fn forget(&self) {
        self.edition.fetch_add(1, Ordering::AcqRel);
    }
}

impl Catalogue {
    #[inline]
    pub fn read(&self) -> arc_swap::Guard<Arc<Snapshot>> {
        self.0.load()
    }

    /// Puts a sale in, or replaces it; its funnel goes on counting. `gates` are its offers' gates, in their order.
    pub fn put(&self, sale: &Sale, gates: &[Arc<OfferGate>]) {
        self.0.rcu(|before| {
            let mut after = Snapshot::clone(before);
            let funnel =
                before.sales.get(&sale.id).map_or_else(Arc::default, |card| Arc::clone(&card.funnel));
            let card = Arc::new(SaleCard {
                sale: sale.clone(),
                funnel,
                availability: Live::default(),
                rendered: Default::default(),
            });
            for (offer, gate) in sale.offers.iter().zip(gates) {
                let offer_card = OfferCard {
                    offer: offer.clone(),
                    sale: Arc::clone(&card),
                    gate: Arc::clone(gate),
                    queued_one: OnceLock::new(),
                };
                after.offers.insert(offer.id, Arc::new(offer_card));
            }
            after.listed.retain(|listed| listed.sale.id != sale.id);
            if !sale.rehearsal {
                // Ids begin with their time: the newest sale comes first.
                let place = after.listed.partition_point(|listed| listed.sale.id > sale.id);
                after.listed.insert(place, Arc::clone(&card));
            }
            after.sales.insert(sale.id, card);
            after
        });
    }

    #[must_use]
    pub fn sale(&self, id: SaleId) -> Option<Arc<SaleCard>> {
        self.read().sales.get(&id).map(Arc::clone)
    }

    #[must_use]
    pub fn offer(&self, id: OfferId) -> Option<Arc<OfferCard>> {
        self.read().offers.get(&id).map(Arc::clone)
    }
}

impl SaleCard {
    /// The sale's page data; made once per phase.
    pub fn rendered(&self, now: UnixMs) -> &Rendered {
        let phase = self.sale.phase(now);
        let [upcoming, open, closed] = &self.rendered;
        let place = match phase {
            Phase::Upcoming => upcoming,
            Phase::Open => open,
            Phase::Closed => closed,
        };
        place.get_or_init(|| Rendered::of(&sale_view(&self.sale, phase)))
    }
}

/// A sale as pages show it.
#[must_use]
pub fn sale_view(sale: &Sale, phase: Phase) -> SaleView {
    SaleView {
        id: sale.id,
        title: sale.title.clone(),
        state: sale.state,
        phase,
        opens_at: sale.window.opens_at,
        closes_at: sale.window.closes_at,
        pay_within_s: sale.pay_within_s,
        challenge: sale.challenge,
        registration: sale.registration,
        registration_opens_at: sale.registration_opens_at,
        registration_closes_at: sale.registration_closes_at,
        offers: sale.offers.iter().map(offer_view).collect(),
    }
}

/// An offer as pages show it.
#[must_use]
pub fn offer_view(offer: &Offer) -> OfferView {
    OfferView {
        id: offer.id,
        name: offer.name.clone(),
        description: offer.description.clone(),
        image: offer.image.clone(),
        list_price: offer.list_price,
        price: offer.price,
        max_per_order: offer.max_per_order,
    }
}

/// Whether buyers may know of it.
#[must_use]
pub fn is_public(state: SaleState) -> bool {
    match state {
        SaleState::Draft => false,
        SaleState::Published | SaleState::Paused | SaleState::Ended => true,
    }
}

#[cfg(test)]
mod tests {
    use rules::money::Money;
    use rules::sale::{ChallengeKind, RegistrationKind, Window};

    use super::*;
    use crate::gate::{MemoryGate, Seed};

    #[test]
    fn a_queued_order_is_written_exactly_as_its_view() {
        let window = Window { opens_at: UnixMs(0), closes_at: UnixMs(1_000) };
        // Ids and a time that could be mistaken for those that are filled in.
        let offer = Offer {
            id: OfferId(0),
            name: "a \"quoted\" name".into(),
            description: None,
            image: None,
            list_price: None,
            price: Money { amount: 149_900, currency: "CNY".parse().unwrap() },
            stock: 5,
            max_per_order: 3,
        };
        let sale = Sale {
            id: SaleId(0),
            state: SaleState::Published,
            title: "t".into(),
            window,
            pay_within_s: 900,
            challenge: ChallengeKind::None,
            registration: RegistrationKind::None,
            registration_opens_at: None,
            registration_closes_at: None,
            publish_at: None,
            rehearsal: false,
            offers: vec![offer],
        };
        let gate = MemoryGate::new(8, (1, 2));
        let seed = Seed { offer: OfferId(0), state: sale.state, window, free: 5, change_no: 0 };
        let catalogue = Catalogue::default();
        catalogue.put(&sale, &[gate.seed(&seed).unwrap()]);
        let card = catalogue.offer(OfferId(0)).unwrap();
        for (order, quantity, at) in [(0, 1, 0), (u128::MAX >> 2, 1, 1_700_000_000_123), (7, 3, 5)] {
            let (order, at) = (OrderId(order), UnixMs(at));
            let view = serde_json::to_string(&card.queued_view(order, quantity, at)).unwrap();
            assert_eq!(card.queued_json(order, quantity, at), view);
        }
    }

    async fn get(live: &Live, now: i64, count: Result<u32, &'static str>) -> Result<Bytes, &'static str> {
        let count = async { count.map(|number| Rendered::of(&number)) };
        live.get(UnixMs(now), Phase::Open, count).await.map(|rendered| rendered.json)
    }

    #[tokio::test]
    async fn live_numbers_are_counted_once_per_second_and_outlast_a_failure() {
        let live = Live::default();
        assert_eq!(get(&live, 0, Err("down")).await, Err("down"));
        assert_eq!(get(&live, 0, Ok(1)).await.unwrap(), "1");
        assert_eq!(get(&live, 999, Ok(2)).await.unwrap(), "1");
        assert_eq!(get(&live, 1_000, Err("down")).await.unwrap(), "1");
        assert_eq!(get(&live, 1_999, Ok(3)).await.unwrap(), "1");
        assert_eq!(get(&live, 2_000, Ok(4)).await.unwrap(), "4");
    }

    #[tokio::test]
    async fn what_is_forgotten_is_counted_anew() {
        let live = Live::default();
        assert_eq!(get(&live, 0, Ok(1)).await.unwrap(), "1");
        live.forget();
        assert_eq!(get(&live, 1, Ok(2)).await.unwrap(), "2");
        assert_eq!(get(&live, 2, Ok(3)).await.unwrap(), "2");
        let while_counting = async {
            live.forget();
            Ok::<_, &'static str>(Rendered::of(&4))
        };
        live.get(UnixMs(1_500), Phase::Open, while_counting).await.unwrap();
        assert_eq!(get(&live, 1_501, Ok(5)).await.unwrap(), "5", "what was counted meanwhile is too old");
    }

    #[tokio::test]
    async fn while_one_counts_the_others_are_told_the_latest() {
        let live = Live::default();
        get(&live, 0, Ok(1)).await.unwrap();
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        let slow = live.get(UnixMs(1_000), Phase::Open, async {
            finished.await.map_err(|_| "lost").map(|()| Rendered::of(&2))
        });
        let others = async {
            let seen = get(&live, 1_000, Ok(3)).await.unwrap();
            finish.send(()).unwrap();
            seen
        };
        let (slow, others) = tokio::join!(biased; slow, others);
        assert_eq!((slow.unwrap().json, others), (Bytes::from("2"), Bytes::from("1")));
    }
}
