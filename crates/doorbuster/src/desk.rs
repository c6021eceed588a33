//! The desk: what buyers and operators do to orders and sales, one verb each, with ledger, gate and catalogue kept in
//! step. Every verb that changes something runs to its end even if whoever asked hangs up. Knows no HTTP.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use rules::buyer::BuyerId;
use rules::id::{OfferId, OrderId, PaymentId, SaleId};
use rules::order::{Reason, State};
use rules::payment::{Finder, Revival, Scene, finder, revival};
use rules::sale::{Phase, RegistrationKind, Sale, SaleAction, SaleState};
use rules::time::UnixMs;
use rules::wire::{Funnel, OfferStats, OrderView, Preheated, QueueStats, Stats};

use crate::app::App;
use crate::catalogue::{SaleCard, is_public};
use crate::crash;
use crate::gate::{Claimed, OfferGate, Outcome, Release, Returned, Seed};
use crate::ledger::money::{Decided, QueueIsDrained, Released, Settled};
use crate::ledger::{
    Cancelled, Changed, Counters, KeyedAnswer, LedgerError, LedgerResult, Order, StockChanged,
};
use crate::queue::{Claim, Revive};
use crate::telemetry::metrics::{LateMoney, Letting, Step};

/// How long a cancel or a payment waits for an order that is still queued.
const VERDICT_WAIT: Duration = Duration::from_secs(2);

/// An order as its buyer may see it, or why not yet.
#[derive(Clone, Debug)]
pub enum Seen {
    Order(Arc<OrderView>),
    NotFound,
    /// Its grant has an unknown outcome.
    Unsure,
}

/// An order that its buyer wants to pay or to cancel.
#[derive(Clone, Debug)]
pub(crate) enum Awaited {
    Order(Arc<OrderView>),
    /// Nobody knows yet what becomes of it.
    NotYet,
    NotFound,
}

/// What became of a cancel.
#[derive(Clone, Debug)]
pub enum CancelAnswer {
    Closed(Arc<OrderView>),
    NotCancellable(State),
    /// Still queued after the wait, or money is here and not decided.
    NotYet,
    NotFound,
}

/// What became of a stock change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StockAnswer {
    Done { stock: u32, free: u32 },
    OtherChange,
    BelowLive { free: u32 },
    TooMuch,
    NotFound,
}

/// What became of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegisterAnswer {
    Made(UnixMs),
    Before(UnixMs),
    Closed,
    /// As many are signed up as memory may hold.
    Full,
    NotFound,
}

impl App {
    /// Runs a change to its end, whatever becomes of the caller: between a ledger commit and the gate's part of it
    /// nobody may be lost.
    pub(crate) async fn to_the_end<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl Future<Output = LedgerResult<T>> + Send + 'static,
    ) -> LedgerResult<T> {
        let task = self.tasks.spawn_on(work, &self.runtime);
        task.await.unwrap_or_else(|interrupted| {
            if interrupted.is_panic() {
                self.failure.report(anyhow::anyhow!("a change died half-way: gate and ledger may disagree"));
            }
            Err(LedgerError::Unknown("the change was interrupted".to_owned()))
        })
    }

    // Orders.

    /// An order of this buyer. An order whose grant is not durable yet is waited for: nobody is told of it before.
    pub async fn see_order(&self, id: OrderId, buyer: &BuyerId) -> LedgerResult<Seen> {
        if let Some(claim) = self.gate.unrecorded.get(id).filter(|claim| claim.buyer == *buyer) {
            match self.see_claim(&claim).await {
                Some(Seen::NotFound) | None => {}
                Some(seen) => return Ok(seen),
            }
        }
        let found = self.ledger.order_and_refunds(id).await?.filter(|(order, _)| order.buyer == *buyer);
        Ok(found.map_or(Seen::NotFound, |(order, refunds)| Seen::Order(Arc::new(order.view_with(&refunds)))))
    }

    /// A claim as its buyer sees it; `None` when it was recorded meanwhile.
    async fn see_claim(&self, claim: &Claim) -> Option<Seen> {
        let card = self.catalogue.offer(claim.offer)?;
        if let Some(pending) = self.gate.memory.pending(&card.gate, claim.buyer.as_str(), claim.order) {
            let longest = Duration::from_secs(self.settings.limits.wait_s.into());
            match tokio::time::timeout(longest, pending).await {
                Ok(Ok(Outcome::Committed)) => {}
                Ok(Ok(Outcome::RolledBack)) => return Some(Seen::NotFound),
                // A disk that takes so long says nothing of what will be on it.
                Ok(Ok(Outcome::Unsure) | Err(_)) | Err(_) => return Some(Seen::Unsure),
            }
        }
        let still_queued = self.gate.unrecorded.get(claim.order).is_some();
        still_queued
            .then(|| Seen::Order(Arc::new(card.queued_view(claim.order, claim.quantity, claim.claimed_at))))
    }

    /// An order, once it is beyond `after` (or, without `after`, once it is no longer queued), or as it is when
    /// `patience` is over. No change between looking and waiting is missed.
    pub async fn await_order(
        &self,
        id: OrderId,
        buyer: &BuyerId,
        after: Option<u32>,
        patience: Duration,
    ) -> LedgerResult<Seen> {
        let deadline = tokio::time::Instant::from_std(self.clock.instant()) + patience;
        loop {
            let mut watcher = self.hub.watch(id);
            let seen = self.see_order(id, buyer).await?;
            let Seen::Order(order) = &seen else { return Ok(seen) };
            let arrived = match after {
                Some(after) => order.seq > after,
                None => order.state != State::Queued,
            };
            if arrived || tokio::time::timeout_at(deadline, watcher.change()).await.is_err() {
                return Ok(seen);
            }
        }
    }

    /// The same, and as it is when the server goes away: what is known then is better than a connection cut in the middle
    /// of a wait.
    pub async fn await_order_while_open(
        &self,
        id: OrderId,
        buyer: &BuyerId,
        after: Option<u32>,
        patience: Duration,
    ) -> LedgerResult<Seen> {
        let waiting = self.await_order(id, buyer, after, patience);
        match self.shutdown.run_until_cancelled(waiting).await {
            Some(seen) => seen,
            None => self.see_order(id, buyer).await,
        }
    }

    /// An order with its verdict, for which a buyer who wants to pay or cancel waits a little, whichever of journal and
    /// ledger it is that takes long.
    pub(crate) async fn await_verdict(&self, id: OrderId, buyer: &BuyerId) -> LedgerResult<Awaited> {
        let waiting = self.await_order(id, buyer, None, VERDICT_WAIT);
        let Ok(seen) = tokio::time::timeout(VERDICT_WAIT, waiting).await else { return Ok(Awaited::NotYet) };
        Ok(match seen? {
            Seen::NotFound => Awaited::NotFound,
            Seen::Unsure => Awaited::NotYet,
            Seen::Order(order) if order.state == State::Queued => Awaited::NotYet,
            Seen::Order(order) => Awaited::Order(order),
        })
    }

    /// Closes an unpaid order of this buyer and gives its units back to the gate.
    pub async fn cancel(self: &Arc<Self>, id: OrderId, buyer: &BuyerId) -> LedgerResult<CancelAnswer> {
        match self.await_verdict(id, buyer).await? {
            Awaited::NotFound => return Ok(CancelAnswer::NotFound),
            Awaited::NotYet => return Ok(CancelAnswer::NotYet),
            Awaited::Order(_) => {}
        }
        let (app, buyer) = (Arc::clone(self), buyer.clone());
        self.to_the_end(async move { app.cancel_recorded(id, buyer).await }).await
    }

    async fn cancel_recorded(self: &Arc<Self>, id: OrderId, buyer: BuyerId) -> LedgerResult<CancelAnswer> {
        let (released, payment) = match self.ledger.cancel_order(id, buyer, self.clock.now()).await? {
            Cancelled::NotFound => return Ok(CancelAnswer::NotFound),
            Cancelled::NotCancellable(state) => return Ok(CancelAnswer::NotCancellable(state)),
            Cancelled::MoneyIsHere => return Ok(CancelAnswer::NotYet),
            Cancelled::Before(order) => return Ok(CancelAnswer::Closed(Arc::new(order.view()))),
            Cancelled::Closed { released, payment } => (released, payment),
        };
        crash::point("desk.cancelled");
        self.give_back(&released);
        self.closings.wake_for(payment.as_deref());
        Ok(CancelAnswer::Closed(Arc::new(released.order.view())))
    }

    // Units on their way back, and late money that wants some.

    /// The one way back for units: an order let go of them in a commit, and the gate follows, once per (order id, seq).
    /// Whoever was told "sold out" may try again at once, and the buyer's socket hears of it. Again is harmless.
    ///
    /// A process that dies before this rebuilds its gate from the ledger.
    pub fn give_back(&self, released: &Released) {
        crash::point("desk.releasing");
        let Released { order, change_no, restock, .. } = released;
        let gate = self.gate.memory.offer(order.offer).filter(|gate| !gate.began_with(*change_no));
        if let Some(gate) = gate {
            let (buyer, seq) = (order.buyer.as_str(), order.seq);
            let release = Release { buyer, order: order.id, seq, restock: *restock };
            match self.gate.memory.release(&gate, &release) {
                Returned::Free { was_dry: true } => self.forget_sold_out(order.sale),
                Returned::Free { was_dry: false } | Returned::Forgotten | Returned::Before => {}
            }
        }
        self.ledger.returned();
        self.metrics.releases.inc(match order.status.reason {
            Some(Reason::Timeout) => Letting::Timeout,
            Some(Reason::Cancelled) => Letting::Cancelled,
            _ => Letting::Refunded,
        });
        crash::point("desk.released");
        self.tell(order);
    }

    /// Tells everybody who waits for this order how it is now.
    pub(crate) fn tell(&self, order: &Order) {
        if self.hub.has_anyone() {
            self.hub.publish(&order.buyer, &Arc::new(order.view()));
        }
    }

    /// The gate itself is asked at every try; what pages are told is counted once per second, and now anew.
    fn forget_sold_out(&self, sale: SaleId) {
        if let Some(card) = self.catalogue.sale(sale) {
            card.availability.forget();
        }
    }

    /// Late money looks for a unit for its order, which timed out: by a claim through gate and journal, whatever the
    /// window says. Where there is none, or the buyer has another order, the money goes back. While nobody can tell, it
    /// waits, and the worker of waiting captures asks again.
    ///
    /// Again is harmless. [`Revival::Claimed`]: the clerk makes the order paid, and its buyer is told.
    pub async fn revive(self: &Arc<Self>, order: &Order, payment: PaymentId) -> Revival {
        let (app, order) = (Arc::clone(self), order.clone());
        let found = self.to_the_end(async move { app.find_units(order, payment).await }).await;
        let revival = found.unwrap_or_else(|error| {
            tracing::warn!(payment_id = %payment, %error, "late money could not be decided; it waits");
            Revival::Wait
        });
        self.metrics.late_money.inc(LateMoney::of(revival));
        revival
    }

    async fn find_units(self: &Arc<Self>, order: Order, payment: PaymentId) -> LedgerResult<Revival> {
        let gate = self.gate.memory.offer(order.offer);
        let scene = Scene {
            gate_is_open: gate.is_some(),
            sale_is_over: gate.is_none() && self.is_over(order.sale).await?,
            queue_is_drained: self.gate.memory.room().taken() == 0,
        };
        let verdict = match (finder(scene), gate) {
            (Some(Finder::Ledger), _) => return self.revive_alone(payment).await,
            (Some(Finder::Gate), Some(gate)) => {
                let revive = Revive { payment, closing_seq: order.seq };
                match self.gate.revive(&gate, claim_again(&order, self.clock.now()), revive).await {
                    Claimed::Queued(_) => return Ok(Revival::Claimed),
                    Claimed::Unsure => return Ok(Revival::Wait),
                    Claimed::Answer(verdict) => verdict,
                }
            }
            (Some(Finder::Gate) | None, _) => return Ok(Revival::Wait),
        };
        let revival = revival(verdict, Finder::Gate);
        if let Revival::RefundDue(reason) = revival {
            crash::point("desk.refusing_late");
            let settled = self.ledger.refund_late(payment, reason, self.clock.now()).await?;
            // What somebody else decided meanwhile, they follow.
            if matches!(settled, Settled::RefundDue { .. }) {
                self.follow_settled(settled).await;
            }
        }
        Ok(revival)
    }

    /// Whether no buyer's claim of the sale is granted any more.
    async fn is_over(&self, sale: SaleId) -> LedgerResult<bool> {
        let over =
            |sale: Sale| sale.state == SaleState::Ended || sale.phase(self.clock.now()) == Phase::Closed;
        Ok(self.ledger.sale(sale).await?.is_some_and(over))
    }

    /// No gate knows the offer and nothing is queued: the ledger has all there is to know.
    async fn revive_alone(self: &Arc<Self>, payment: PaymentId) -> LedgerResult<Revival> {
        let Decided { this, before } =
            self.ledger.revive_alone(payment, QueueIsDrained, self.clock.now()).await?;
        for settled in before {
            self.follow_settled(settled).await;
        }
        match this {
            Settled::Applied { order, closed } => {
                self.note_revival(&order);
                self.follow_settled(Settled::Applied { order, closed }).await;
                Ok(Revival::Claimed)
            }
            Settled::RefundDue { payment, reason } => {
                self.follow_settled(Settled::RefundDue { payment, reason }).await;
                Ok(Revival::RefundDue(reason))
            }
            // Decided meanwhile, or not to be decided yet: it is found again if it is.
            Settled::ReviveNeeded { .. } | Settled::Duplicate | Settled::Wait | Settled::NotFound => {
                Ok(Revival::Wait)
            }
        }
    }

    // Sales.

    /// Publishes, pauses, resumes or ends a sale. When it returns, the gate follows.
    pub async fn act_on_sale(
        self: &Arc<Self>,
        id: SaleId,
        action: SaleAction,
    ) -> LedgerResult<Changed<Sale>> {
        let app = Arc::clone(self);
        self.to_the_end(async move {
            let _turn = app.operator_turn.lock().await;
            let changed = app.ledger.act_on_sale(id, action, app.clock.now()).await?;
            app.follow_sale(&changed).await?;
            Ok(changed)
        })
        .await
    }

    /// Keeps a new draft, and with it, in the same commit, the answer to the request that made it.
    pub async fn create_sale(self: &Arc<Self>, sale: Sale, answer: Option<KeyedAnswer>) -> LedgerResult<()> {
        let app = Arc::clone(self);
        self.to_the_end(async move { app.ledger.create_sale(sale, answer, app.clock.now()).await }).await
    }

    /// Changes a sale; a published one changes for its buyers at once. `answer` is remembered in the same commit.
    pub async fn update_sale(
        self: &Arc<Self>,
        id: SaleId,
        answer: Option<KeyedAnswer>,
        change: impl FnOnce(Sale) -> Changed<Sale> + Send + 'static,
    ) -> LedgerResult<Changed<Sale>> {
        let app = Arc::clone(self);
        self.to_the_end(async move {
            let _turn = app.operator_turn.lock().await;
            let changed = app.ledger.update_sale(id, answer, app.clock.now(), change).await?;
            app.follow_sale(&changed).await?;
            Ok(changed)
        })
        .await
    }

    /// Gate and catalogue follow a change that is committed.
    async fn follow_sale(&self, changed: &Changed<Sale>) -> LedgerResult<()> {
        let Changed::Done(sale) = changed else { return Ok(()) };
        self.preheat(sale).await.map_err(LedgerError::after_commit)?;
        Ok(())
    }

    /// Throws a draft away.
    pub async fn delete_sale(self: &Arc<Self>, id: SaleId) -> LedgerResult<Changed<()>> {
        let app = Arc::clone(self);
        self.to_the_end(async move {
            let _turn = app.operator_turn.lock().await;
            app.ledger.delete_sale(id).await
        })
        .await
    }

    /// Preheats a sale again and says what it did. Drafts have nothing to preheat.
    pub async fn preheat_sale(self: &Arc<Self>, id: SaleId) -> LedgerResult<Changed<Preheated>> {
        let app = Arc::clone(self);
        self.to_the_end(async move {
            let _turn = app.operator_turn.lock().await;
            let Some(sale) = app.ledger.sale(id).await? else { return Ok(Changed::NotFound) };
            if !is_public(sale.state) {
                return Ok(Changed::WrongState);
            }
            let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
            let seeded = count(app.preheat(&sale).await?);
            Ok(Changed::Done(Preheated { sale_id: id, offers: count(sale.offers.len()), seeded }))
        })
        .await
    }

    /// Lets gate and catalogue know a sale as the ledger has it, and answers how many offers the gate did not know
    /// before. A gate that knows an offer keeps its units: again is harmless. Drafts stay unknown.
    ///
    /// When the gate knows all offers and the roster its registrations this cannot fail: a pause that is in the ledger
    /// also reaches the gate. While the roster lacks them, the gate's doors are closed.
    pub async fn preheat(&self, sale: &Sale) -> LedgerResult<usize> {
        if !is_public(sale.state) {
            return Ok(0);
        }
        self.keep_registrations(sale).await?;
        let known = sale.offers.iter().all(|offer| self.gate.memory.offer(offer.id).is_some());
        let counters = if known { Vec::new() } else { self.ledger.counters(sale.id).await? };
        let counters: HashMap<OfferId, Counters> =
            counters.into_iter().map(|counters| (counters.offer, counters)).collect();
        let mut gates = Vec::with_capacity(sale.offers.len());
        let mut fresh = 0;
        for offer in &sale.offers {
            if let Some(known) = self.gate.memory.offer(offer.id) {
                gates.push(known);
                continue;
            }
            let Some(counters) = counters.get(&offer.id) else { continue };
            fresh += 1;
            gates.push(self.seed_offer(sale, counters)?);
        }
        // One walk over the gate's locks for the whole sale, after all its doors are set.
        self.gate.memory.set_doors(&gates, sale.state, sale.window);
        self.catalogue.put(&self.images.shown(sale), &gates);
        Ok(fresh)
    }

    pub(crate) fn seed_offer(&self, sale: &Sale, counters: &Counters) -> LedgerResult<Arc<OfferGate>> {
        let seed = Seed {
            offer: counters.offer,
            state: sale.state,
            window: sale.window,
            free: counters.stock.saturating_sub(counters.live_units),
            change_no: counters.change_no,
        };
        let seeded = self.gate.memory.seed(&seed);
        seeded.ok_or_else(|| LedgerError::Unavailable("the gate knows too many offers".into()))
    }

    /// Publishes what is due by its `publish_at`. A sale that cannot be published now does not hold up the others.
    pub async fn publish_due(self: &Arc<Self>) -> LedgerResult<usize> {
        let mut published = 0;
        for id in self.ledger.due_sales(self.clock.now()).await? {
            match self.act_on_sale(id, SaleAction::Publish).await {
                Ok(Changed::Done(sale)) => {
                    tracing::info!(sale_id = %id, "published as planned");
                    published += 1;
                    self.copy_images_soon(sale);
                }
                // Somebody was faster.
                Ok(_) => {}
                Err(error @ LedgerError::NotFollowed(_)) => {
                    tracing::error!(sale_id = %id, %error, "published, but nobody can buy before it is preheated");
                }
                Err(error) => tracing::warn!(sale_id = %id, %error, "could not be published; trying again"),
            }
        }
        Ok(published)
    }

    /// Tells of windows that opened or closed until now, and answers when the next one will.
    pub async fn tell_turns(&self) -> LedgerResult<Option<UnixMs>> {
        loop {
            let next = self.ledger.next_turn().await?;
            let now = self.clock.now();
            if next.is_none_or(|next| now < next) {
                return Ok(next);
            }
            self.ledger.tell_turns(now).await?;
        }
    }

    // Stock.

    /// Raises (ledger, then gate) or lowers (gate, then ledger) an offer's stock. The same `change_id` again answers
    /// what the first one did.
    pub async fn change_stock(
        self: &Arc<Self>,
        offer: OfferId,
        change: i64,
        change_id: String,
    ) -> LedgerResult<StockAnswer> {
        let app = Arc::clone(self);
        self.to_the_end(async move {
            let _turn = app.operator_turn.lock().await;
            if let Some((first, stock)) = app.ledger.earlier_stock_change(offer, change_id.clone()).await? {
                let free = app.gate.memory.offer(offer).map_or(stock, |gate| gate.free());
                let same = first == change;
                return Ok(if same { StockAnswer::Done { stock, free } } else { StockAnswer::OtherChange });
            }
            let units = match u32::try_from(change.unsigned_abs()) {
                Ok(units) => units,
                Err(_) if change > 0 => return Ok(StockAnswer::TooMuch),
                // More than any offer has: it is refused for what is live.
                Err(_) => u32::MAX,
            };
            match app.gate.memory.offer(offer) {
                Some(gate) if change < 0 => app.lower_stock(&gate, units, change_id).await,
                gate => app.raise_stock(offer, gate, change, units, change_id).await,
            }
        })
        .await
    }

    async fn lower_stock(
        &self,
        gate: &OfferGate,
        units: u32,
        change_id: String,
    ) -> LedgerResult<StockAnswer> {
        if let Err(free) = self.gate.memory.surrender(gate, units) {
            return Ok(StockAnswer::BelowLive { free });
        }
        let changed =
            self.ledger.change_stock(gate.offer, -i64::from(units), change_id, self.clock.now()).await;
        match &changed {
            Ok(StockChanged::Done { before: false, .. }) => {}
            // Nobody knows whether the ledger lowered it; the units stay out until the files are read again.
            Err(LedgerError::Unknown(_)) => {}
            _ => self.gate.memory.take_back(gate, units),
        }
        Ok(stock_answer(changed?, Some(gate)))
    }

    async fn raise_stock(
        &self,
        offer: OfferId,
        gate: Option<Arc<OfferGate>>,
        change: i64,
        units: u32,
        change_id: String,
    ) -> LedgerResult<StockAnswer> {
        let changed = self.ledger.change_stock(offer, change, change_id, self.clock.now()).await?;
        crash::point("desk.stock_changed");
        if let (Some(gate), StockChanged::Done { change_no, before: false, .. }) = (&gate, changed) {
            self.gate.memory.raise(gate, units, change_no);
            if let Some(card) = self.catalogue.offer(offer) {
                card.sale.availability.forget();
            }
        }
        Ok(stock_answer(changed, gate.as_deref()))
    }

    /// A sale's live numbers; of a draft, too. `None` when there is no such sale.
    ///
    /// Gate, queue and ledger are read one after the other while buyers go on, in this order: a claim that the gate
    /// had counted is then found in the queue or, recorded meanwhile, in the ledger. `units` makes one sum of it.
    pub async fn stats(&self, id: SaleId) -> LedgerResult<Option<Stats>> {
        let card = self.catalogue.sale(id);
        let (sale, funnel) = match &card {
            Some(card) => (card.sale.clone(), funnel(card, self.started_at)),
            None => match self.ledger.sale(id).await? {
                Some(draft) => (draft, Funnel::default()),
                None => return Ok(None),
            },
        };
        let free: HashMap<OfferId, u32> = sale
            .offers
            .iter()
            .filter_map(|offer| Some((offer.id, self.gate.memory.offer(offer.id)?.free())))
            .collect();
        let mut queued: HashMap<OfferId, u32> = HashMap::new();
        self.gate.unrecorded.visit_all(|claim| *queued.entry(claim.offer).or_default() += claim.quantity);
        let counters = self.ledger.counters(id).await?;
        let of = |map: &HashMap<OfferId, u32>, offer| map.get(&offer).copied();
        let offers = counters.iter().map(|counters| {
            units(counters, of(&free, counters.offer), of(&queued, counters.offer).unwrap_or(0))
        });
        Ok(Some(Stats {
            sale_id: id,
            state: sale.state,
            phase: sale.phase(self.clock.now()),
            offers: offers.collect(),
            funnel,
            queue: self.queue_stats(),
            registrations: self.registrations_of(&sale).await?,
        }))
    }

    #[must_use]
    pub fn queue_stats(&self) -> QueueStats {
        let waiting = self.gate.memory.room().taken().saturating_add(self.ledger.returning());
        let depth = u64::try_from(waiting).unwrap_or(u64::MAX);
        let now = self.clock.now();
        let mut lag_ms = 0;
        self.gate.unrecorded.visit_all(|claim| lag_ms = lag_ms.max(claim.claimed_at.ms_until(now)));
        QueueStats { depth, lag_ms }
    }

    // Buyers.

    /// Signs a buyer up for a sale.
    pub async fn register(self: &Arc<Self>, sale: SaleId, buyer: &BuyerId) -> LedgerResult<RegisterAnswer> {
        let Some(card) = self.catalogue.sale(sale) else { return Ok(RegisterAnswer::NotFound) };
        let now = self.clock.now();
        let registered = self.is_registered(&card, buyer).await?;
        if !(registered || card.sale.registration_open(now)) {
            return Ok(RegisterAnswer::Closed);
        }
        if !registered && self.roster.all_registrations() >= self.settings.limits.registrations {
            return Ok(RegisterAnswer::Full);
        }
        let (app, buyer) = (Arc::clone(self), buyer.clone());
        self.to_the_end(async move {
            let (since, made) = app.ledger.register(sale, buyer.clone(), now).await?;
            app.roster.register(sale, buyer.as_str());
            Ok(if made { RegisterAnswer::Made(since) } else { RegisterAnswer::Before(since) })
        })
        .await
    }

    /// Takes a registration back while registration is open.
    pub async fn unregister(self: &Arc<Self>, sale: SaleId, buyer: &BuyerId) -> LedgerResult<RegisterAnswer> {
        let Some(card) = self.catalogue.sale(sale) else { return Ok(RegisterAnswer::NotFound) };
        let now = self.clock.now();
        if !self.is_registered(&card, buyer).await? {
            return Ok(RegisterAnswer::NotFound);
        }
        if !card.sale.registration_open(now) {
            return Ok(RegisterAnswer::Closed);
        }
        let (app, buyer) = (Arc::clone(self), buyer.clone());
        self.to_the_end(async move {
            app.ledger.unregister(sale, buyer.clone()).await?;
            app.roster.unregister(sale, buyer.as_str());
            Ok(RegisterAnswer::Made(now))
        })
        .await
    }

    /// Whether a buyer signed up for a sale that asks for it: from memory, or from the ledger when the sale is over.
    async fn is_registered(&self, card: &SaleCard, buyer: &BuyerId) -> LedgerResult<bool> {
        let sale = card.sale.id;
        match (card.sale.registration, self.roster.is_registered(sale, buyer.as_str())) {
            (RegistrationKind::None, _) => Ok(false),
            (RegistrationKind::Required, Some(registered)) => Ok(registered),
            (RegistrationKind::Required, None) => {
                Ok(self.ledger.registration(sale, buyer.clone()).await?.is_some())
            }
        }
    }

    /// How many buyers signed up for each of these sales: from memory, or from the ledger when a sale is over.
    pub async fn registrations(&self, sales: &[Sale]) -> LedgerResult<Vec<u64>> {
        let known: Vec<Option<u64>> = sales.iter().map(|sale| self.known_registrations(sale)).collect();
        let unknown = sales.iter().zip(&known).filter(|(_, known)| known.is_none());
        let unknown: Vec<SaleId> = unknown.map(|(sale, _)| sale.id).collect();
        let counted =
            if unknown.is_empty() { Vec::new() } else { self.ledger.registration_counts(unknown).await? };
        let mut counted = counted.into_iter();
        Ok(known.into_iter().map(|known| known.or_else(|| counted.next()).unwrap_or(0)).collect())
    }

    /// The same for one.
    pub async fn registrations_of(&self, sale: &Sale) -> LedgerResult<u64> {
        let counts = self.registrations(std::slice::from_ref(sale)).await?;
        Ok(counts.first().copied().unwrap_or(0))
    }

    fn known_registrations(&self, sale: &Sale) -> Option<u64> {
        // Nobody signs up for a draft, nor where nobody has to.
        let none = sale.registration == RegistrationKind::None || !is_public(sale.state);
        if none { Some(0) } else { self.roster.registrations(sale.id) }
    }

    /// Memory holds a sale's registrations for as long as they matter. Read from the ledger before anybody can buy, and
    /// when nobody can sign up: none is missed.
    async fn keep_registrations(&self, sale: &Sale) -> LedgerResult<()> {
        match (sale.needs_registrations(self.clock.now()), self.roster.keeps(sale.id)) {
            (true, false) => {
                let list = self.roster.empty_list();
                let into = Arc::clone(&list);
                self.ledger.registrations(sale.id, move |buyer| into.add(buyer)).await?;
                self.roster.keep(sale.id, list);
            }
            (false, true) => self.roster.let_go(sale.id),
            (true, true) | (false, false) => {}
        }
        Ok(())
    }

    /// Lets go of registrations that no longer matter because time has passed.
    pub async fn forget_registrations(&self) {
        // A sale that is prolonged at this moment must find its registrations kept, or else read them again.
        let _turn = self.operator_turn.lock().await;
        let matters = |sale: &SaleId| {
            let card = self.catalogue.sale(*sale);
            card.is_some_and(|card| card.sale.needs_registrations(self.clock.now()))
        };
        for sale in self.roster.kept().into_iter().filter(|sale| !matters(sale)) {
            self.roster.let_go(sale);
        }
    }
}

/// The order's claim once more, as if its buyer came back now.
fn claim_again(order: &Order, now: UnixMs) -> Claim {
    Claim {
        order: order.id,
        offer: order.offer,
        buyer: order.buyer.clone(),
        quantity: order.quantity,
        claimed_at: now,
        pass_expires_at: order.pass_expires_at,
        revives: None,
    }
}

fn funnel(card: &SaleCard, started_at: UnixMs) -> Funnel {
    let count = |step| card.funnel.get(step);
    Funnel {
        passes: count(Step::Pass),
        tries: count(Step::Try),
        granted: count(Step::Granted),
        sold_out: count(Step::SoldOut),
        already_ordered: count(Step::AlreadyOrdered),
        not_open: count(Step::NotOpen),
        too_fast: count(Step::TooFast),
        busy: count(Step::Busy),
        counted_since: Some(started_at),
    }
}

/// One sum out of numbers of different instants: `free + held + sold + returning = stock`, none of them negative.
///
/// The ledger's own numbers are of one instant and `paid <= live <= stock` holds in them. The gate may only say how
/// what is not live divides: its `free` is cut to that (orders recorded since are live already). Of the rest, what
/// the queue holds is held; what nobody holds has left the ledger's orders and is on its way to the gate.
fn units(counters: &Counters, free: Option<u32>, queued: u32) -> OfferStats {
    let Counters { offer, stock, live_units, paid_units, .. } = *counters;
    let not_live = stock.saturating_sub(live_units);
    let free = free.unwrap_or(not_live).min(not_live);
    let queued = queued.min(not_live - free);
    OfferStats {
        offer_id: offer,
        stock,
        free,
        held: live_units - paid_units.min(live_units) + queued,
        sold: paid_units.min(live_units),
        returning: not_live - free - queued,
    }
}

/// An offer that the gate does not know is in a draft: all its units are free.
fn stock_answer(changed: StockChanged, gate: Option<&OfferGate>) -> StockAnswer {
    let free = |unknown: u32| gate.map_or(unknown, OfferGate::free);
    match changed {
        StockChanged::Done { stock, .. } => StockAnswer::Done { stock, free: free(stock) },
        StockChanged::OtherChange => StockAnswer::OtherChange,
        StockChanged::BelowLive { .. } => StockAnswer::BelowLive { free: free(0) },
        StockChanged::TooMuch => StockAnswer::TooMuch,
        StockChanged::NotFound => StockAnswer::NotFound,
    }
}
