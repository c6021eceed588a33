//! Gate, journal, ledger and provider of one offer, each step as one action. What must hold is in `promises`.
//!
//! The decisions are the production functions (`admit`, `readmit`, `next`, `settle`, `revival`, `due`). What is here
//! besides is only who remembers what, and what a crash leaves of it. Every order has one unit; time is what the
//! sweeper says it is.

use rules::admission::{Door, Known, Verdict, admit, readmit};
use rules::deadline::{self, Answer, Asked, Due, OnTheWay};
use rules::id::OrderId;
use rules::money::Money;
use rules::order::{self, Event as OrderEvent, Reason, Units, Version};
use rules::payment::{self, Event, Finder, RefundReason, Revival, RevivalRecord, Settlement, Subject};
use rules::time::UnixMs;
use stateright::{Model, Property};

use super::mistake::Mistake;
use super::promises;

/// A small instance: who may do what, and how often.
#[derive(Clone, Debug)]
pub struct Protocol {
    pub stock: usize,
    /// Order `n` is the one that the pass of buyer `buyers[n]` may become.
    pub buyers: Vec<usize>,
    pub captures: Vec<CaptureOf>,
    /// How many events tell of one capture.
    pub events_per_capture: u8,
    pub payments_are_started: bool,
    pub buyers_cancel: bool,
    pub operator_refunds: bool,
    /// The sale may end, and its gate close for good, at any moment.
    pub sale_ends: bool,
    pub crashes: u8,
    pub redeliveries: u8,
    pub refund_refusals: u8,
    pub mistake: Option<Mistake>,
}

/// A capture that the provider may make.
#[derive(Clone, Copy, Debug)]
pub struct CaptureOf {
    pub order: usize,
    pub whole_amount: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct World {
    pub gate: Gate,
    /// Granted, on its way to the journal, told to nobody.
    pub pending: Vec<Claim>,
    pub journal: Vec<Claim>,
    /// Refusals of late money that a worker heard from the gate and has not written down. Sorted.
    pub heard: Vec<(usize, RefundReason)>,
    /// The ledger's orders.
    pub orders: Vec<Option<Version>>,
    /// The ledger's payments, in the order in which they were written down.
    pub payments: Vec<Payment>,
    /// Sorted; the ledger's facts, and whether the gate has them.
    pub releases: Vec<Release>,
    pub provider: Vec<AtProvider>,
    /// The ledger refused something that the gate had granted.
    pub ledger_refused: bool,
    /// No claims any more, and no gate to ask.
    pub sale_is_over: bool,
    pub crashes: u8,
    pub redeliveries: u8,
    pub refund_refusals: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gate {
    pub free: usize,
    /// Buyer -> live order.
    pub live: Vec<Option<usize>>,
    /// Orders whose pass is spent.
    pub spent: Vec<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    pub order: usize,
    pub revives: Option<Revive>,
    /// It was recorded once, and the journal did not hear of it.
    pub delivered_again: bool,
}

/// What a claim for late money carries besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Revive {
    /// The payment's place.
    pub payment: usize,
    pub closing_seq: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Payment {
    pub order: usize,
    /// Capture, and the event that told of it first.
    pub told_by: Option<(usize, u8)>,
    pub status: payment::Status,
    /// Written down before the order ended, as the first of the right amount.
    pub in_time: bool,
    /// The buyer was sent to the provider by us.
    pub announced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Release {
    pub order: usize,
    pub seq: u32,
    pub at_gate: bool,
    /// How often the gate counted its units as free again.
    pub counted: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AtProvider {
    pub captured: bool,
    /// One bit per event.
    pub told: u8,
    pub refunds: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    // What the world may do.
    Claim(usize),
    StartPayment(usize),
    Capture(usize),
    Cancel(usize),
    RequestRefund(usize),
    RefuseRefund(usize),
    Redeliver,
    EndSale,
    Crash,
    // What happens sooner or later.
    Append,
    Record,
    Deliver(usize),
    Tell { capture: usize, event: u8 },
    Settle(usize),
    WriteRefusal(usize),
    Deadline { order: usize, provider_answers: bool },
    StartRefund(usize),
    CallRefund(usize),
    NoteRefund(usize),
}

impl World {
    pub fn live_units(&self) -> usize {
        self.orders.iter().flatten().filter(|version| version.status.holds_units).count()
    }

    pub fn state(&self, order: usize) -> Option<order::State> {
        self.orders[order].map(|version| version.status.state)
    }

    /// Whether the claim has not become an order yet.
    fn is_outstanding(&self, claim: &Claim) -> bool {
        match claim.revives {
            None => self.orders[claim.order].is_none(),
            Some(revive) => self.orders[claim.order].is_some_and(|order| order.seq == revive.closing_seq),
        }
    }

    pub fn outstanding(&self) -> impl Iterator<Item = &Claim> {
        self.journal.iter().filter(|claim| self.is_outstanding(claim))
    }

    pub fn returning(&self) -> usize {
        self.releases.iter().filter(|release| !release.at_gate).count()
    }

    pub fn payments_of(&self, order: usize) -> impl Iterator<Item = &Payment> {
        self.payments.iter().filter(move |payment| payment.order == order)
    }

    /// Writes an order's event with the release that belongs to it, in one transaction. `false`: not possible.
    fn order_event(&mut self, order: usize, event: OrderEvent) -> bool {
        let before = self.orders[order].unwrap_or(Version::QUEUED);
        let Ok(after) = before.next(event) else { return false };
        self.orders[order] = Some(after);
        if matches!(event.units(), Units::Released | Units::ClaimReturned) {
            self.release(order, after.seq);
        }
        true
    }

    fn release(&mut self, order: usize, seq: u32) {
        self.releases.push(Release { order, seq, at_gate: false, counted: 0 });
        self.releases.sort_unstable();
    }

    fn payment_event(&mut self, at: usize, event: Event) {
        let payment = &mut self.payments[at];
        payment.status = payment::next(payment.status, event).expect("a legal step of a payment");
        // What a worker heard of money that is decided changes nothing when it is written down.
        self.heard.retain(|(payment, _)| *payment != at);
    }
}

impl Protocol {
    pub fn with(&self, mistake: Mistake) -> Self {
        Self { mistake: Some(mistake), ..self.clone() }
    }

    fn errs(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    // The gate.

    fn claim(&self, mut world: World, order: usize) -> Option<World> {
        let known = self.known(&world.gate, order);
        let door = if world.sale_is_over { Door::Ended } else { Door::Open };
        let verdict = admit(known, door, small(world.gate.free), 1, || true);
        (verdict == Verdict::Granted).then(|| {
            self.take(&mut world.gate, order);
            world.pending.push(Claim { order, revives: None, delivered_again: false });
            world
        })
    }

    fn known(&self, gate: &Gate, order: usize) -> Known {
        match gate.live[self.buyers[order]] {
            Some(live) if live == order => Known::SameLive { quantity: 1 },
            _ if gate.spent[order] => Known::SameEnded,
            Some(live) => Known::OtherLive { order: id(live) },
            None => Known::Nothing,
        }
    }

    fn take(&self, gate: &mut Gate, order: usize) {
        gate.live[self.buyers[order]] = Some(order);
        // Only a mistake takes what is not there; the promises say so.
        gate.free = gate.free.saturating_sub(1);
    }

    /// A release reaches the gate, perhaps not for the first time.
    fn deliver(&self, mut world: World, at: usize) -> Option<World> {
        let Release { order, at_gate, .. } = world.releases[at];
        if at_gate {
            return None;
        }
        let known_by_order = world.releases.iter().any(|release| release.order == order && release.at_gate);
        world.releases[at].at_gate = true;
        if self.errs(Mistake::ReleaseOncePerOrder) && known_by_order {
            return Some(world);
        }
        world.releases[at].counted += 1;
        let gate = &mut world.gate;
        gate.free += 1;
        gate.spent[order] = true;
        let slot = &mut gate.live[self.buyers[order]];
        if *slot == Some(order) {
            *slot = None;
        }
        Some(world)
    }

    /// The process dies; its gate is made anew from ledger and journal before anybody is served.
    fn crash(&self, mut world: World) -> World {
        world.crashes += 1;
        world.pending.clear();
        world.heard.clear();
        let mut gate = self.empty_gate();
        for (order, version) in world.orders.iter().enumerate() {
            let Some(version) = version else { continue };
            if version.status.holds_units {
                self.take(&mut gate, order);
            } else {
                gate.spent[order] = !self.errs(Mistake::RebuildWithoutSpentPasses);
            }
        }
        if !self.errs(Mistake::RebuildWithoutJournal) {
            for claim in world.outstanding() {
                self.take(&mut gate, claim.order);
            }
        }
        world.gate = gate;
        for release in &mut world.releases {
            release.counted = release.counted.max(1);
            release.at_gate = !self.errs(Mistake::ReleaseAgainAfterCrash);
        }
        world
    }

    fn empty_gate(&self) -> Gate {
        let buyers = self.buyers.iter().max().map_or(0, |most| most + 1);
        Gate { free: self.stock, live: vec![None; buyers], spent: vec![false; self.buyers.len()] }
    }

    // Journal and clerk.

    fn append(mut world: World) -> World {
        let claim = world.pending.remove(0);
        world.journal.push(claim);
        world
    }

    fn record(&self, mut world: World) -> World {
        let claim = world.journal.remove(0);
        self.record_claim(&mut world, claim);
        world
    }

    /// The ledger commits, and the journal does not learn that it did.
    fn redeliver(&self, mut world: World) -> World {
        world.redeliveries += 1;
        let claim = world.journal[0];
        self.record_claim(&mut world, claim);
        world.journal[0].delivered_again = true;
        world
    }

    fn record_claim(&self, world: &mut World, claim: Claim) {
        match claim.revives {
            None => self.record_order(world, claim.order),
            Some(revive) => self.record_revival(world, claim.order, revive),
        }
    }

    fn record_order(&self, world: &mut World, order: usize) {
        if let Some(Version { status, seq }) = world.orders[order] {
            // A repeat. If the order has ended, its end has released the units.
            if self.errs(Mistake::ReleaseOnRedelivery) && !status.holds_units {
                world.release(order, seq + 100);
            }
            return;
        }
        let event = match self.obstacle(world, order) {
            None => OrderEvent::Recorded,
            Some(reason) => OrderEvent::Refused(reason),
        };
        world.ledger_refused |= event != OrderEvent::Recorded;
        assert!(world.order_event(order, event));
    }

    fn record_revival(&self, world: &mut World, order: usize, Revive { payment, closing_seq }: Revive) {
        let obstacle = self.obstacle(world, order).map(|reason| match reason {
            Reason::OtherLive => RefundReason::OtherLive,
            _ => RefundReason::NoUnitLeft,
        });
        let version = world.orders[order].expect("what revives was recorded once");
        let status = world.payments[payment].status;
        match payment::record_revival(version, closing_seq, status, obstacle) {
            RevivalRecord::Repeat => {}
            RevivalRecord::Revived if world.order_event(order, OrderEvent::Revived) => {
                world.payment_event(payment, Event::Applied);
            }
            // Only a mistake asks to revive what cannot be revived.
            RevivalRecord::Revived => world.ledger_refused = true,
            RevivalRecord::NotRevived { refund: None } if self.errs(Mistake::DecidedMoneyLooksRecorded) => {}
            RevivalRecord::NotRevived { refund } => {
                world.ledger_refused |= obstacle.is_some();
                world.order_event(order, OrderEvent::NotRevived);
                if let Some(reason) = refund {
                    world.payment_event(payment, Event::RefundDue(reason));
                }
            }
        }
    }

    /// The ledger's own guards: the counter, and the unique key.
    fn obstacle(&self, world: &World, order: usize) -> Option<Reason> {
        let live = |other: &usize| {
            world.orders[*other].is_some_and(|version| version.status.holds_units)
                && self.buyers[*other] == self.buyers[order]
        };
        if world.live_units() >= self.stock {
            Some(Reason::NoStock)
        } else if (0..self.buyers.len()).any(|other| live(&other)) {
            Some(Reason::OtherLive)
        } else {
            None
        }
    }

    // Money.

    fn start_payment(mut world: World, order: usize) -> Option<World> {
        let may = world.state(order) == Some(order::State::AwaitingPayment)
            && world.payments_of(order).next().is_none();
        may.then(|| {
            let status = payment::Status::STARTED;
            world.payments.push(Payment { order, told_by: None, status, in_time: false, announced: true });
            world
        })
    }

    /// The buyer pays at the provider, whatever we think of the order.
    fn capture(&self, mut world: World, capture: usize) -> Option<World> {
        let order = self.captures[capture].order;
        let known = world.orders[order].is_some() || world.journal.iter().any(|claim| claim.order == order);
        (known && !world.provider[capture].captured).then(|| {
            world.provider[capture].captured = true;
            world
        })
    }

    /// A callback is written down; what it means is decided in another transaction.
    fn tell(&self, mut world: World, capture: usize, event: u8) -> Option<World> {
        let bit = 1 << event;
        if !world.provider[capture].captured || world.provider[capture].told & bit != 0 {
            return None;
        }
        world.provider[capture].told |= bit;
        let by_event = self.errs(Mistake::DedupeByEvent);
        let same = |(first, by): (usize, u8)| first == capture && (!by_event || by == event);
        if !world.payments.iter().any(|payment| payment.told_by.is_some_and(same)) {
            self.write_down(&mut world, capture, event);
        }
        Some(world)
    }

    fn write_down(&self, world: &mut World, capture: usize, event: u8) {
        let CaptureOf { order, whole_amount } = self.captures[capture];
        let whole = |told: (usize, u8)| self.captures[told.0].whole_amount;
        let first = !world.payments_of(order).any(|payment| payment.told_by.is_some_and(whole));
        let open = matches!(world.state(order), None | Some(order::State::AwaitingPayment));
        let told_by = Some((capture, event));
        let in_time = first && open && whole_amount;
        let begun = world.payments.iter().position(|p| p.order == order && p.told_by.is_none());
        match begun {
            Some(at) => {
                world.payment_event(at, Event::Captured);
                world.payments[at].told_by = told_by;
                world.payments[at].in_time = in_time;
            }
            None => {
                world.payments.push(Payment {
                    order,
                    told_by,
                    status: payment::Status::CAPTURED,
                    in_time,
                    announced: false,
                });
            }
        }
    }

    fn settle(&self, mut world: World, at: usize) -> Option<World> {
        let Payment { order, told_by: Some(told_by), status, .. } = world.payments[at] else { return None };
        if status.state != payment::State::Captured {
            return None;
        }
        let whole = self.captures[told_by.0].whole_amount;
        let capture = payment::Capture { key: self.key(told_by), money: money(if whole { 100 } else { 99 }) };
        match payment::settle(self.subject(&world, order), &self.siblings(&world, order), &capture) {
            Settlement::Apply => {
                let applied = world.order_event(order, OrderEvent::PaymentApplied);
                assert!(applied || self.errs(Mistake::ApplySecondCapture), "settle applies what can be paid");
                world.payment_event(at, Event::Applied);
            }
            Settlement::Revive => return self.revive(world, order, at),
            Settlement::RefundDue(reason) => world.payment_event(at, Event::RefundDue(reason)),
            Settlement::Wait => return None,
            Settlement::Duplicate => panic!("an undecided capture is no duplicate"),
        }
        Some(world)
    }

    fn subject(&self, world: &World, order: usize) -> Subject {
        let Some(Version { mut status, .. }) = world.orders[order] else { return Subject::NotYet };
        if self.errs(Mistake::SettleIgnoresCancelled) && status.reason == Some(Reason::Cancelled) {
            status.reason = Some(Reason::Timeout);
        }
        if self.errs(Mistake::ApplySecondCapture) && status.state == order::State::Paid {
            status.state = order::State::AwaitingPayment;
        }
        Subject::Order { status, total: money(100) }
    }

    fn siblings(&self, world: &World, order: usize) -> Vec<payment::Payment> {
        if self.errs(Mistake::ApplySecondCapture) {
            return Vec::new();
        }
        let seen = |payment: &Payment| payment::Payment {
            capture: payment.told_by.map(|told_by| self.key(told_by)),
            status: payment.status,
        };
        world.payments_of(order).map(seen).collect()
    }

    fn key(&self, (capture, event): (usize, u8)) -> payment::CaptureKey {
        let event = if self.errs(Mistake::DedupeByEvent) { event } else { 0 };
        payment::CaptureKey::new("sandbox", &format!("{capture}-{event}")).unwrap()
    }

    /// Late money looks for a unit: at the gate the closing's release first, then a claim like any other.
    fn revive(&self, mut world: World, order: usize, at: usize) -> Option<World> {
        let closing_seq = world.orders[order]?.seq;
        if self.errs(Mistake::ReviveWithoutGate) {
            self.record_revival(&mut world, order, Revive { payment: at, closing_seq });
            return Some(world);
        }
        let queue_is_drained = world.pending.is_empty() && world.journal.is_empty();
        let scene = payment::Scene {
            gate_is_open: !world.sale_is_over,
            sale_is_over: world.sale_is_over,
            queue_is_drained: queue_is_drained || self.errs(Mistake::LedgerDecidesTooEarly),
        };
        match payment::finder(scene)? {
            Finder::Gate => self.revive_by_gate(world, order, at),
            Finder::Ledger => Some(self.revive_by_ledger(world, order, at)),
        }
    }

    /// One transaction: the ledger has the numbers, and nobody else has a word in it.
    fn revive_by_ledger(&self, mut world: World, order: usize, at: usize) -> World {
        let is_live = |other: &usize| world.orders[*other].is_some_and(|version| version.status.holds_units);
        let live =
            (0..self.buyers.len()).filter(is_live).find(|other| self.buyers[*other] == self.buyers[order]);
        let free = small(self.stock - world.live_units());
        let verdict = readmit(id(order), live.map(|live| (id(live), 1)), free, 1, || true);
        match payment::revival(verdict, Finder::Ledger) {
            Revival::Claimed => {
                assert!(world.order_event(order, OrderEvent::Revived));
                world.payment_event(at, Event::Applied);
            }
            Revival::RefundDue(reason) => world.payment_event(at, Event::RefundDue(reason)),
            Revival::Wait => panic!("the ledger is never busy"),
        }
        world
    }

    fn revive_by_gate(&self, mut world: World, order: usize, at: usize) -> Option<World> {
        let before = world.clone();
        let undelivered = |world: &World| world.releases.iter().position(|r| r.order == order && !r.at_gate);
        while let Some(closing) = undelivered(&world).filter(|_| !self.errs(Mistake::ReviveBeforeRelease)) {
            world = self.deliver(world, closing)?;
        }
        let revives = Some(Revive { payment: at, closing_seq: world.orders[order]?.seq });
        let claim = Claim { order, revives, delivered_again: false };
        let verdict = self.readmit(&world.gate, order);
        match payment::revival(verdict, Finder::Gate) {
            Revival::Claimed if verdict == Verdict::Granted => {
                self.take(&mut world.gate, order);
                world.pending.push(claim);
            }
            Revival::Claimed => {
                let under_way = world.pending.contains(&claim) || world.journal.contains(&claim);
                if self.errs(Mistake::ReviveBeforeRelease) && !under_way {
                    world.pending.push(claim);
                }
            }
            Revival::Wait => {}
            Revival::RefundDue(reason) if !world.heard.contains(&(at, reason)) => {
                world.heard.push((at, reason));
                world.heard.sort_unstable();
            }
            Revival::RefundDue(_) => {}
        }
        (world != before).then_some(world)
    }

    /// The worker that heard the gate's refusal writes it down, however much later.
    fn write_refusal(mut world: World, at: usize) -> World {
        let (payment, reason) = world.heard[at];
        world.payment_event(payment, Event::RefundDue(reason));
        world
    }

    fn readmit(&self, gate: &Gate, order: usize) -> Verdict {
        let mut live = gate.live[self.buyers[order]];
        if self.errs(Mistake::SpentPassHidesOtherOrder) && gate.spent[order] {
            live = live.filter(|live| *live == order);
        }
        readmit(id(order), live.map(|live| (id(live), 1)), small(gate.free), 1, || true)
    }

    // The ends of orders.

    fn cancel(&self, mut world: World, order: usize) -> Option<World> {
        let on_the_way = on_the_way(&world, order, Asked::NotYet);
        if !on_the_way.lets_cancel() && !self.errs(Mistake::CancelIgnoresCapture) {
            return None;
        }
        self.close(&mut world, order, OrderEvent::Cancelled).then_some(world)
    }

    fn deadline(&self, mut world: World, order: usize, provider_answers: bool) -> Option<World> {
        let pay_by = UnixMs(0);
        let asked = match (provider_answers, self.is_captured(&world, order)) {
            (false, _) => Asked::Since(pay_by.plus_ms(-deadline::PROVIDER_ASKED_FOR_MS)),
            (true, true) => Asked::Answered { answer: Answer::Paid, at: pay_by },
            (true, false) => Asked::Answered { answer: Answer::NotPaid, at: pay_by },
        };
        let due = deadline::due(pay_by, pay_by, on_the_way(&world, order, asked));
        if due != Due::Close && !self.errs(Mistake::TimeoutIgnoresCapture) {
            return None;
        }
        self.close(&mut world, order, OrderEvent::TimedOut).then_some(world)
    }

    fn is_captured(&self, world: &World, order: usize) -> bool {
        let mut captures = self.captures.iter().zip(&world.provider);
        captures.any(|(capture, provider)| capture.order == order && provider.captured)
    }

    fn close(&self, world: &mut World, order: usize, event: OrderEvent) -> bool {
        if world.orders[order].is_none() || !world.order_event(order, event) {
            return false;
        }
        for payment in world.payments.iter_mut().filter(|payment| payment.order == order) {
            // Only a started payment can be closed.
            payment.status = payment::next(payment.status, Event::Closed).unwrap_or(payment.status);
        }
        true
    }

    // Refunds.

    fn request_refund(mut world: World, order: usize) -> Option<World> {
        if world.state(order) != Some(order::State::Paid) {
            return None;
        }
        let applied = |p: &Payment| p.order == order && p.status.state == payment::State::Applied;
        let at = world.payments.iter().position(applied)?;
        world.payment_event(at, Event::RefundDue(RefundReason::Requested));
        world.order_event(order, OrderEvent::RefundStarted).then_some(world)
    }

    fn start_refund(mut world: World, at: usize) -> Option<World> {
        let Payment { order, status, .. } = world.payments[at];
        world.payments[at].status = payment::next(status, Event::RefundStarted).ok()?;
        if status.state == payment::State::RefundFailed && status.is_the_orders() {
            assert!(world.order_event(order, OrderEvent::RefundStarted));
        }
        Some(world)
    }

    /// The provider returns the money; asked again with the same key it only says so again.
    fn call_refund(&self, mut world: World, at: usize) -> Option<World> {
        let (capture, _) = world.payments[at].told_by?;
        let refunds = &mut world.provider[capture].refunds;
        let again = self.errs(Mistake::RefundWithFreshKey) && *refunds < 2;
        if world.payments[at].status.state != payment::State::Refunding || (*refunds > 0 && !again) {
            return None;
        }
        *refunds += 1;
        Some(world)
    }

    fn note_refund(&self, mut world: World, at: usize) -> Option<World> {
        let Payment { order, told_by, status, .. } = world.payments[at];
        if world.provider[told_by?.0].refunds == 0 {
            return None;
        }
        world.payments[at].status = payment::next(status, Event::RefundDone).ok()?;
        if status.is_the_orders() {
            assert!(world.order_event(order, OrderEvent::RefundDone));
            if self.errs(Mistake::RefundStrandsUnits) {
                world.releases.retain(|release| release.order != order || release.at_gate);
            }
        }
        Some(world)
    }

    fn refuse_refund(mut world: World, at: usize) -> Option<World> {
        let Payment { order, told_by, status, .. } = world.payments[at];
        if world.provider[told_by?.0].refunds > 0 {
            return None;
        }
        world.payments[at].status = payment::next(status, Event::RefundFailed).ok()?;
        world.refund_refusals += 1;
        if status.is_the_orders() {
            assert!(world.order_event(order, OrderEvent::RefundFailed));
        }
        Some(world)
    }

    // All together.

    fn what_the_world_may_do(&self, world: &World, actions: &mut Vec<Action>) {
        let orders = 0..self.buyers.len();
        actions.extend(orders.clone().map(Action::Claim));
        actions.extend((0..self.captures.len()).map(Action::Capture));
        if self.payments_are_started {
            actions.extend(orders.clone().map(Action::StartPayment));
        }
        if self.buyers_cancel {
            actions.extend(orders.clone().map(Action::Cancel));
        }
        if self.operator_refunds {
            actions.extend(orders.map(Action::RequestRefund));
        }
        if world.refund_refusals < self.refund_refusals {
            actions.extend((0..world.payments.len()).map(Action::RefuseRefund));
        }
        let fresh = world.journal.first().is_some_and(|claim| !claim.delivered_again);
        if fresh && world.redeliveries < self.redeliveries {
            actions.push(Action::Redeliver);
        }
        if self.sale_ends && !world.sale_is_over {
            actions.push(Action::EndSale);
        }
        if world.crashes < self.crashes {
            actions.push(Action::Crash);
        }
    }

    fn what_happens_sooner_or_later(&self, world: &World, actions: &mut Vec<Action>) {
        if !world.pending.is_empty() {
            actions.push(Action::Append);
        }
        if !world.journal.is_empty() {
            actions.push(Action::Record);
        }
        actions.extend((0..world.releases.len()).map(Action::Deliver));
        for capture in 0..self.captures.len() {
            actions.extend((0..self.events_per_capture).map(|event| Action::Tell { capture, event }));
        }
        actions.extend((0..world.heard.len()).map(Action::WriteRefusal));
        for at in 0..world.payments.len() {
            actions.extend([Action::Settle(at), Action::StartRefund(at)]);
            actions.extend([Action::CallRefund(at), Action::NoteRefund(at)]);
        }
        for order in 0..self.buyers.len() {
            if world.state(order) == Some(order::State::AwaitingPayment) {
                actions.push(Action::Deadline { order, provider_answers: true });
                actions.push(Action::Deadline { order, provider_answers: false });
            }
        }
    }

    fn step(&self, world: World, action: Action) -> Option<World> {
        match action {
            Action::Claim(order) => self.claim(world, order),
            Action::StartPayment(order) => Self::start_payment(world, order),
            Action::Capture(capture) => self.capture(world, capture),
            Action::Cancel(order) => self.cancel(world, order),
            Action::RequestRefund(order) => Self::request_refund(world, order),
            Action::RefuseRefund(payment) => Self::refuse_refund(world, payment),
            Action::Redeliver => Some(self.redeliver(world)),
            Action::EndSale => Some(World { sale_is_over: true, ..world }),
            Action::Crash => Some(self.crash(world)),
            Action::Append => Some(Self::append(world)),
            Action::Record => Some(self.record(world)),
            Action::Deliver(release) => self.deliver(world, release),
            Action::Tell { capture, event } => self.tell(world, capture, event),
            Action::Settle(payment) => self.settle(world, payment),
            Action::WriteRefusal(at) => Some(Self::write_refusal(world, at)),
            Action::Deadline { order, provider_answers } => self.deadline(world, order, provider_answers),
            Action::StartRefund(payment) => Self::start_refund(world, payment),
            Action::CallRefund(payment) => self.call_refund(world, payment),
            Action::NoteRefund(payment) => self.note_refund(world, payment),
        }
    }

    /// Whether nothing more happens unless the world does something.
    pub fn is_at_rest(&self, world: &World) -> bool {
        let mut actions = Vec::new();
        self.what_happens_sooner_or_later(world, &mut actions);
        actions.into_iter().all(|action| self.step(world.clone(), action).is_none())
    }
}

fn on_the_way(world: &World, order: usize, asked: Asked) -> OnTheWay {
    OnTheWay::of(world.payments_of(order).map(|payment| payment.status.state), asked)
}

pub fn id(order: usize) -> OrderId {
    OrderId(order as u128)
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap()
}

fn money(amount: i64) -> Money {
    Money { amount, currency: "CNY".parse().unwrap() }
}

/// Grows with every step. So there is no way round in circles: whoever only goes on comes to rest.
fn progress(world: &World) -> usize {
    let claim = |claim: &Claim| if claim.delivered_again { 0 } else { 12 };
    let payment = |payment: &Payment| match payment.status.state {
        payment::State::Started => 1,
        payment::State::Closed => 2,
        payment::State::Captured => 3,
        payment::State::Applied | payment::State::RefundDue => 30,
        payment::State::RefundFailed => 31,
        payment::State::Refunding => 32,
        payment::State::Refunded => 33,
    };
    let at_provider = |provider: &AtProvider| {
        usize::from(provider.captured) + usize::from(provider.told) + usize::from(provider.refunds)
    };
    let at_gate = |release: &Release| usize::from(release.at_gate) + usize::from(release.counted);
    let seqs: usize = world.orders.iter().flatten().map(|version| version.seq as usize * 30).sum();
    // A claim that was delivered again weighs nothing in the journal, so leaving it changes nothing: its
    // leaving is counted by what is left to deliver.
    let again = world.journal.iter().filter(|claim| claim.delivered_again).count();
    usize::from(world.crashes) * 100_000
        + usize::from(world.refund_refusals) * 100
        + usize::from(world.sale_is_over)
        + (usize::from(world.redeliveries) * 2 - again)
        + seqs
        + world.heard.len()
        + world.pending.len() * 11
        + world.journal.iter().map(claim).sum::<usize>()
        + world.payments.iter().map(payment).sum::<usize>()
        + world.releases.iter().map(at_gate).sum::<usize>()
        + world.provider.iter().map(at_provider).sum::<usize>()
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            gate: self.empty_gate(),
            pending: Vec::new(),
            journal: Vec::new(),
            heard: Vec::new(),
            orders: vec![None; self.buyers.len()],
            payments: Vec::new(),
            releases: Vec::new(),
            provider: vec![AtProvider::default(); self.captures.len()],
            ledger_refused: false,
            sale_is_over: false,
            crashes: 0,
            redeliveries: 0,
            refund_refusals: 0,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        self.what_the_world_may_do(world, actions);
        self.what_happens_sooner_or_later(world, actions);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let after = self.step(world.clone(), action)?;
        let goes_on = progress(world) < progress(&after);
        assert!(goes_on || self.mistake.is_some(), "{action:?} does not go on: {world:?} {after:?}");
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}
