//! Gate, journal, ledger and provider of one offer, each step as one action. What must hold is in `promises`.
//!
//! The decisions are the production functions (`admit`, `readmit`, `lets_go`, `next`, `settle`, `revival`, `due`). What is
//! here besides is only who remembers what, and what a crash leaves of it. Every order has one unit; time is what the
//! sweeper says it is.

use rules::admission::{CLAIM_SEQ, Door, Known, Verdict, admit, lets_go, readmit};
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
    /// How often a worker sees that late money needs a unit, and asks the gate for one only later.
    pub slow_workers: u8,
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
    /// Payments for which a worker is about to ask the gate, and the `seq` that their order had when it looked. Sorted.
    pub looked: Vec<(usize, u32)>,
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
    pub looks: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Gate {
    pub free: usize,
    /// Buyer -> live order.
    pub live: Vec<Option<usize>>,
    /// Order -> the `seq` at which it came to hold what it holds.
    pub held_since: Vec<u32>,
    /// Orders whose pass is spent.
    pub spent: Vec<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    pub order: usize,
    pub revives: Option<Revive>,
    /// It was recorded once, and the journal did not hear of it.
    pub delivered_again: bool,
    /// The gate holds a unit for it.
    pub holds: bool,
}

impl Claim {
    fn new(order: usize, revives: Option<Revive>) -> Self {
        Self { order, revives, delivered_again: false, holds: true }
    }
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

/// What is released under one (order, seq): by the fact of that number, and by claims that found the order there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Release {
    pub order: usize,
    pub seq: u32,
    /// How often the gate will yet hear of it.
    pub messages: u8,
    /// Units that must come back under it.
    pub owed: u8,
    /// Units that the gate counted as free again.
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
    Look(usize),
    EndSale,
    Crash,
    // What happens sooner or later.
    Append,
    Record,
    Deliver(usize),
    Tell { capture: usize, event: u8 },
    Settle(usize),
    Ask(usize),
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

    /// Units that the gate holds for claims.
    pub fn granted(&self) -> usize {
        self.pending.len() + self.journal.iter().filter(|claim| claim.holds).count()
    }

    /// Claims for late money that were granted although their order had moved on.
    pub fn too_late(&self) -> impl Iterator<Item = &Claim> {
        let late = |claim: &&Claim| claim.holds && claim.revives.is_some() && !self.is_outstanding(claim);
        self.journal.iter().filter(late)
    }

    /// Units of which the gate has yet to hear that they are free.
    pub fn returning(&self) -> usize {
        let under_way = self.releases.iter().filter(|release| release.messages > 0);
        under_way.map(|release| usize::from(release.owed.saturating_sub(release.counted))).sum()
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
            self.release(order, after.seq, 1);
        }
        true
    }

    /// A release sets out for the gate, with as many units.
    fn release(&mut self, order: usize, seq: u32, units: u8) {
        match self.released_as(order, seq) {
            Some(release) => {
                release.messages += 1;
                release.owed += units;
            }
            None => self.releases.push(Release { order, seq, messages: 1, owed: units, counted: 0 }),
        }
        self.releases.sort_unstable();
    }

    fn released_as(&mut self, order: usize, seq: u32) -> Option<&mut Release> {
        self.releases.iter_mut().find(|release| release.order == order && release.seq == seq)
    }

    /// A unit came back under this number. If nothing is owed under it, the unit was that of a claim that came too late
    /// and is about to be given back under a later one.
    fn count(&mut self, order: usize, seq: u32) {
        let owes = |release: &Release| release.order == order && release.owed > release.counted;
        let under = |release: &Release| release.order == order && release.seq == seq;
        let at = self.releases.iter().position(|release| owes(release) && under(release));
        let at = at.or_else(|| self.releases.iter().rposition(owes));
        let at = at.or_else(|| self.releases.iter().position(under));
        if let Some(at) = at {
            self.releases[at].counted += 1;
        }
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
            self.take(&mut world.gate, order, CLAIM_SEQ);
            world.pending.push(Claim::new(order, None));
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

    fn take(&self, gate: &mut Gate, order: usize, held_since: u32) {
        gate.live[self.buyers[order]] = Some(order);
        gate.held_since[order] = held_since;
        // Only a mistake takes what is not there; the promises say so.
        gate.free = gate.free.saturating_sub(1);
    }

    /// The gate's rule: a release lets go of what the order came to hold before it, once that is durable.
    fn let_go(&self, world: &mut World, order: usize, seq: u32) {
        let gate = &mut world.gate;
        let is_live = gate.live[self.buyers[order]] == Some(order);
        let is_pending = world.pending.iter().any(|claim| claim.order == order);
        let is_older = lets_go(seq, gate.held_since[order]) || self.errs(Mistake::EarlierReleaseCounts);
        if !is_live || is_pending || !is_older {
            return;
        }
        gate.live[self.buyers[order]] = None;
        gate.held_since[order] = CLAIM_SEQ;
        gate.spent[order] = true;
        gate.free += 1;
        // Whose unit it was, for the books.
        match world.journal.iter_mut().find(|claim| claim.order == order && claim.holds) {
            Some(claim) => claim.holds = false,
            None => world.count(order, seq),
        }
    }

    /// A release reaches the gate, perhaps not for the first time.
    fn deliver(&self, mut world: World, at: usize) -> Option<World> {
        let Release { order, seq, messages, .. } = world.releases[at];
        if messages == 0 {
            return None;
        }
        let known_by_order =
            world.releases.iter().any(|release| release.order == order && release.counted > 0);
        world.releases[at].messages -= 1;
        if !(self.errs(Mistake::ReleaseOncePerOrder) && known_by_order) {
            self.let_go(&mut world, order, seq);
        }
        Some(world)
    }

    /// The process dies; its gate is made anew from ledger and journal before anybody is served.
    fn crash(&self, mut world: World) -> World {
        world.crashes += 1;
        world.pending.clear();
        world.looked.clear();
        world.heard.clear();
        let mut gate = self.empty_gate();
        for (order, version) in world.orders.iter().enumerate() {
            let Some(version) = version else { continue };
            if version.status.holds_units {
                self.take(&mut gate, order, CLAIM_SEQ);
            } else {
                gate.spent[order] = !self.errs(Mistake::RebuildWithoutSpentPasses);
            }
        }
        let outstanding: Vec<bool> = world.journal.iter().map(|claim| world.is_outstanding(claim)).collect();
        for (claim, outstanding) in world.journal.iter_mut().zip(outstanding) {
            claim.holds = outstanding;
            if outstanding && !self.errs(Mistake::RebuildWithoutJournal) {
                let held_since = claim.revives.map_or(CLAIM_SEQ, |revive| revive.closing_seq);
                self.take(&mut gate, claim.order, held_since);
            }
        }
        world.gate = gate;
        for release in &mut world.releases {
            release.counted = release.owed;
            release.messages = u8::from(self.errs(Mistake::ReleaseAgainAfterCrash));
        }
        world
    }

    fn empty_gate(&self) -> Gate {
        let buyers = self.buyers.iter().max().map_or(0, |most| most + 1);
        Gate {
            free: self.stock,
            live: vec![None; buyers],
            held_since: vec![CLAIM_SEQ; self.buyers.len()],
            spent: vec![false; self.buyers.len()],
        }
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
        world.journal[0].holds = false;
        world
    }

    fn record_claim(&self, world: &mut World, claim: Claim) {
        match claim.revives {
            None => self.record_order(world, claim),
            Some(revive) => self.record_revival(world, claim, revive),
        }
    }

    /// A claim whose order was dealt with before. If that lives, the claim's units are its own; if it has ended, they are
    /// nobody's.
    fn repeat(&self, world: &mut World, claim: Claim) {
        let Some(Version { status, seq }) = world.orders[claim.order] else { return };
        if !status.holds_units {
            let own_number = self.errs(Mistake::ReleaseOnRedelivery);
            world.release(claim.order, if own_number { seq + 100 } else { seq }, u8::from(claim.holds));
        }
    }

    fn record_order(&self, world: &mut World, claim: Claim) {
        let order = claim.order;
        if world.orders[order].is_some() {
            return self.repeat(world, claim);
        }
        let event = match self.obstacle(world, order) {
            None => OrderEvent::Recorded,
            Some(reason) => OrderEvent::Refused(reason),
        };
        world.ledger_refused |= event != OrderEvent::Recorded;
        assert!(world.order_event(order, event));
    }

    fn record_revival(&self, world: &mut World, claim: Claim, Revive { payment, closing_seq }: Revive) {
        let order = claim.order;
        let obstacle = self.obstacle(world, order).map(|reason| match reason {
            Reason::OtherLive => RefundReason::OtherLive,
            _ => RefundReason::NoUnitLeft,
        });
        let version = world.orders[order].expect("what revives was recorded once");
        let status = world.payments[payment].status;
        match payment::record_revival(version, closing_seq, status, obstacle) {
            RevivalRecord::Repeat if self.errs(Mistake::TooLateLooksRecorded) => {}
            RevivalRecord::Repeat => self.repeat(world, claim),
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

    /// What the money means by now; `None` if that is decided.
    fn settlement(&self, world: &World, at: usize) -> Option<Settlement> {
        let Payment { order, told_by, status, .. } = world.payments[at];
        let told_by = told_by.filter(|_| status.state == payment::State::Captured)?;
        let whole = self.captures[told_by.0].whole_amount;
        let capture = payment::Capture { key: self.key(told_by), money: money(if whole { 100 } else { 99 }) };
        Some(payment::settle(self.subject(world, order), &self.siblings(world, order), &capture))
    }

    fn settle(&self, mut world: World, at: usize) -> Option<World> {
        let order = world.payments[at].order;
        match self.settlement(&world, at)? {
            Settlement::Apply => {
                let applied = world.order_event(order, OrderEvent::PaymentApplied);
                assert!(applied || self.errs(Mistake::ApplySecondCapture), "settle applies what can be paid");
                world.payment_event(at, Event::Applied);
            }
            Settlement::Revive => {
                let closing_seq = world.orders[order]?.seq;
                let after = self.revive(world.clone(), at, closing_seq)?;
                return (after != world).then_some(after);
            }
            Settlement::RefundDue(reason) => world.payment_event(at, Event::RefundDue(reason)),
            Settlement::Wait => return None,
            Settlement::Duplicate => panic!("an undecided capture is no duplicate"),
        }
        Some(world)
    }

    /// A worker sees that late money needs a unit, and then takes its time.
    fn look(&self, mut world: World, at: usize) -> Option<World> {
        if self.settlement(&world, at)? != Settlement::Revive {
            return None;
        }
        let seq = world.orders[world.payments[at].order]?.seq;
        world.looks += 1;
        world.looked.push((at, seq));
        world.looked.sort_unstable();
        Some(world)
    }

    /// It asks the gate, whatever has become of order and money meanwhile.
    fn ask(&self, mut world: World, looked: usize) -> Option<World> {
        let (at, closing_seq) = world.looked.remove(looked);
        match self.finder(&world) {
            None => Some(world),
            // The ledger alone looks again.
            Some(Finder::Ledger) => Some(self.settle(world.clone(), at).unwrap_or(world)),
            Some(Finder::Gate) => self.revive_by_gate(world, at, closing_seq),
        }
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
    fn revive(&self, mut world: World, at: usize, closing_seq: u32) -> Option<World> {
        let order = world.payments[at].order;
        if self.errs(Mistake::ReviveWithoutGate) {
            let revive = Revive { payment: at, closing_seq };
            let claim = Claim { holds: false, ..Claim::new(order, Some(revive)) };
            self.record_revival(&mut world, claim, revive);
            return Some(world);
        }
        match self.finder(&world)? {
            Finder::Gate => self.revive_by_gate(world, at, closing_seq),
            Finder::Ledger => Some(self.revive_by_ledger(world, order, at)),
        }
    }

    fn finder(&self, world: &World) -> Option<Finder> {
        let queue_is_drained = world.pending.is_empty() && world.journal.is_empty();
        payment::finder(payment::Scene {
            gate_is_open: !world.sale_is_over,
            sale_is_over: world.sale_is_over,
            queue_is_drained: queue_is_drained || self.errs(Mistake::LedgerDecidesTooEarly),
        })
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

    /// `None`: a grant of the buyer is not durable yet, and the worker waits for it.
    fn revive_by_gate(&self, mut world: World, at: usize, closing_seq: u32) -> Option<World> {
        let order = world.payments[at].order;
        if world.pending.iter().any(|claim| self.buyers[claim.order] == self.buyers[order]) {
            return None;
        }
        if !self.errs(Mistake::ReviveBeforeRelease) {
            self.let_go(&mut world, order, closing_seq);
        }
        let claim = Claim::new(order, Some(Revive { payment: at, closing_seq }));
        let verdict = self.readmit(&world.gate, order);
        match payment::revival(verdict, Finder::Gate) {
            Revival::Claimed if verdict == Verdict::Granted => {
                self.take(&mut world.gate, order, closing_seq);
                world.pending.push(claim);
            }
            Revival::Claimed => {
                let under_way = world.journal.contains(&claim);
                if self.errs(Mistake::ReviveBeforeRelease) && !under_way {
                    world.pending.push(claim);
                }
            }
            Revival::Wait => {}
            Revival::RefundDue(reason) => {
                let undecided = world.payments[at].status.state == payment::State::Captured;
                if undecided && !world.heard.contains(&(at, reason)) {
                    world.heard.push((at, reason));
                    world.heard.sort_unstable();
                }
            }
        }
        Some(world)
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
                let fact = world.orders[order]?.seq;
                world.releases.retain(|release| release.order != order || release.seq != fact);
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
        if world.looks < self.slow_workers {
            actions.extend((0..world.payments.len()).map(Action::Look));
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
        actions.extend((0..world.looked.len()).map(Action::Ask));
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
            Action::Look(payment) => self.look(world, payment),
            Action::EndSale => Some(World { sale_is_over: true, ..world }),
            Action::Crash => Some(self.crash(world)),
            Action::Append => Some(Self::append(world)),
            Action::Record => Some(self.record(world)),
            Action::Deliver(release) => self.deliver(world, release),
            Action::Tell { capture, event } => self.tell(world, capture, event),
            Action::Settle(payment) => self.settle(world, payment),
            Action::Ask(looked) => self.ask(world, looked),
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
fn progress(world: &World) -> i64 {
    let count = |count: usize| i64::try_from(count).unwrap();
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
        i64::from(provider.captured) + i64::from(provider.told) + i64::from(provider.refunds)
    };
    // A claim that will change its order weighs less than that change. One that comes too late changes nothing: it is
    // paid for by the look, and less and less is left of it.
    let waits = |claim: &Claim, fresh: i64, late: i64| match claim {
        Claim { delivered_again: true, .. } => 0,
        claim if world.is_outstanding(claim) => fresh,
        _ => late,
    };
    let at_gate = |release: &Release| i64::from(release.counted) - i64::from(release.messages);
    let seqs: i64 = world.orders.iter().flatten().map(|version| i64::from(version.seq) * 30).sum();
    // A claim that was delivered again weighs nothing in the journal, so leaving it changes nothing: its
    // leaving is counted by what is left to deliver.
    let again = world.journal.iter().filter(|claim| claim.delivered_again).count();
    i64::from(world.crashes) * 100_000 + i64::from(world.looks) * 200 - count(world.looked.len()) * 100
        + i64::from(world.refund_refusals) * 100
        + i64::from(world.sale_is_over)
        + i64::from(world.redeliveries) * 4
        - count(again) * 3
        + seqs
        + count(world.heard.len())
        + world.pending.iter().map(|claim| waits(claim, 11, -6)).sum::<i64>()
        + world.journal.iter().map(|claim| waits(claim, 12, -3)).sum::<i64>()
        + world.payments.iter().map(payment).sum::<i64>()
        + world.releases.iter().map(at_gate).sum::<i64>()
        + world.provider.iter().map(at_provider).sum::<i64>()
}

impl Model for Protocol {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            gate: self.empty_gate(),
            pending: Vec::new(),
            journal: Vec::new(),
            looked: Vec::new(),
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
            looks: 0,
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
