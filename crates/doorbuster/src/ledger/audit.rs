//! The ledger's words for audits: what is asked for, what is doubted, and by which verb a doubt can be mended. What the
//! gate thinks of it is the auditor's business.

use std::collections::{BTreeMap, HashSet};

use rules::audit::Kind;
use rules::buyer::BuyerId;
use rules::deadline::CALLBACK_AWAITED_FOR_MS;
use rules::id::{AuditId, OfferId, OrderId, PaymentId, SaleId, WebhookId};
use rules::order::Status;
use rules::payment::REFUND_SLOW_MS;
use rules::sale::SaleState;
use rules::time::UnixMs;
use rules::wire::AuditFinding;

use super::money::Payment;
use super::{Counters, Order};

/// What is looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    pub sale: Option<SaleId>,
    pub offer: Option<OfferId>,
}

impl Scope {
    /// Whether also what belongs to no offer is looked at.
    #[must_use]
    pub fn is_all(self) -> bool {
        self.sale.is_none() && self.offer.is_none()
    }

    #[must_use]
    pub fn has(self, sale: SaleId, offer: OfferId) -> bool {
        self.sale.is_none_or(|wanted| wanted == sale) && self.offer.is_none_or(|wanted| wanted == offer)
    }
}

/// Since when what is not done is overdue. While no server runs nothing is: its workers do it when one starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// Deadlines before this moment have passed unnoticed, if nobody is paying.
    pub unpaid: UnixMs,
    /// The same where somebody is paying, whom the sweeper lets finish.
    pub unpaid_while_paying: UnixMs,
    /// Captures before this moment should be decided.
    pub captured: UnixMs,
    /// Providers should have been asked for refunds that were due before this moment.
    pub refund: UnixMs,
    /// Refunds that a provider has been at since before this moment should be done.
    pub refunding: UnixMs,
}

impl Overdue {
    /// Patience is counted from the later of the moment in question and the start of the process, whose workers could
    /// do nothing before.
    #[must_use]
    pub fn at(now: UnixMs, started_at: UnixMs, patience: Patience) -> Self {
        let before = |seconds: u32, more_ms: i64| now.plus_ms(-1_000 * i64::from(seconds) - more_ms);
        let unpaid = before(patience.unpaid_s, 0);
        // Before that long after the start nobody can be blamed for anything.
        let blames = |moment: UnixMs| if started_at <= moment { moment } else { UnixMs(i64::MIN) };
        Self {
            unpaid: blames(unpaid),
            unpaid_while_paying: blames(before(patience.unpaid_s, CALLBACK_AWAITED_FOR_MS)),
            captured: blames(before(patience.captured_s, 0)),
            refund: blames(before(patience.refund_s, 0)),
            // The worker has had time to ask again.
            refunding: blames(before(patience.refund_s, 0)).min(now.plus_ms(-REFUND_SLOW_MS)),
        }
    }
}

/// How long is waited for the workers, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    pub unpaid_s: u32,
    pub captured_s: u32,
    pub refund_s: u32,
}

/// An order as an audit sees it while it reads the ledger.
#[derive(Clone, Copy, Debug)]
pub struct OrderLook<'a> {
    pub id: OrderId,
    pub offer: OfferId,
    pub buyer: &'a str,
    pub quantity: u32,
    pub status: Status,
    pub seq: u32,
    pub pass_expires_at: UnixMs,
}

/// An order as an audit comes by it.
#[derive(Clone, Copy, Debug)]
pub enum OrderSeen<'a> {
    Read(OrderLook<'a>),
    /// It is there, and what is written about it cannot be read.
    Unreadable(OrderId),
}

/// An offer's books in one snapshot.
#[derive(Clone, Copy, Debug)]
pub struct OfferLook {
    pub sale: SaleId,
    pub sale_state: SaleState,
    pub counters: Counters,
}

/// What one snapshot of the ledger shows.
#[derive(Clone, Debug, Default)]
pub struct LedgerLook {
    pub offers: Vec<OfferLook>,
    pub orders: u64,
    /// How far the clerk has read the journal.
    pub cursor: u64,
    pub doubts: Doubts,
}

/// Doubts that a cut keeps of one kind. A broken table has millions: they are counted.
pub const DOUBTS_PER_KIND_MAX: usize = 1_000;

/// What one cut doubts: the first ones of each kind, and how many there are of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    kept: Vec<Doubt>,
    counts: BTreeMap<Kind, u64>,
}

impl Doubts {
    pub fn push(&mut self, doubt: Doubt) {
        let count = self.counts.entry(doubt.kind).or_default();
        *count = count.saturating_add(1);
        if usize::try_from(*count).is_ok_and(|count| count <= DOUBTS_PER_KIND_MAX) {
            self.kept.push(doubt);
        }
    }

    /// Adds those of another part of the same cut, which looks for other kinds.
    pub fn append(&mut self, other: Self) {
        self.kept.extend(other.kept);
        for (kind, count) in other.counts {
            let sum = self.counts.entry(kind).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    #[must_use]
    pub fn kept(&self) -> &[Doubt] {
        &self.kept
    }

    #[must_use]
    pub fn into_kept(self) -> Vec<Doubt> {
        self.kept
    }

    /// How many there are of this kind beyond those that are kept.
    #[must_use]
    pub fn beyond(&self, kind: Kind) -> u64 {
        let kept = self.kept.iter().filter(|doubt| doubt.kind == kind).count();
        let count = self.counts.get(&kind).copied().unwrap_or(0);
        count.saturating_sub(u64::try_from(kept).unwrap_or(u64::MAX))
    }
}

impl Extend<Doubt> for Doubts {
    fn extend<T: IntoIterator<Item = Doubt>>(&mut self, doubts: T) {
        doubts.into_iter().for_each(|doubt| self.push(doubt));
    }
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doubt {
    pub kind: Kind,
    pub offer: Option<OfferId>,
    pub units: i64,
    /// What it is about, in ids: the same for the same discrepancy at any time.
    pub about: String,
    /// What was seen, by name.
    pub evidence: BTreeMap<String, String>,
    pub remedy: Remedy,
}

impl Doubt {
    #[must_use]
    pub fn new(kind: Kind, offer: Option<OfferId>, units: i64) -> Self {
        let about = offer.map_or_else(String::new, |offer| offer.to_string());
        Self { kind, offer, units, about, evidence: BTreeMap::new(), remedy: Remedy::None }
    }

    /// Adds what it is about; the same thing again is the same discrepancy.
    #[must_use]
    pub fn about(mut self, name: &str, id: impl ToString) -> Self {
        let id = id.to_string();
        self.about = format!("{} {id}", self.about).trim().to_owned();
        self.with(name, id)
    }

    /// Adds what was seen; it may differ the next time.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.evidence.insert(name.to_owned(), value.to_string());
        self
    }

    #[must_use]
    pub fn mended_by(mut self, remedy: Remedy) -> Self {
        self.remedy = remedy;
        self
    }

    /// What makes it the same discrepancy in another cut.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{} {}", self.kind, self.about)
    }

    /// The offer that a [`Doubt::key`] is about, if it is about one.
    #[must_use]
    pub fn offer_of(key: &str) -> Option<OfferId> {
        key.split(' ').nth(1)?.parse().ok()
    }
}

/// What a repair needs to know. Every verb looks again before it does anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    None,
    Recount(OfferId),
    Level(OfferId),
    /// `seq` is the one that the order had when it was seen.
    Release {
        offer: OfferId,
        order: OrderId,
        seq: u32,
    },
    Forget {
        offer: OfferId,
        order: OrderId,
    },
    Seed {
        offer: OfferId,
        order: OrderId,
    },
    Preheat(SaleId),
    Settle(PaymentId),
    Lift {
        buyer: BuyerId,
        strike: u64,
    },
    HoldBack(WebhookId),
    Drop(WebhookId),
}

/// An order while nothing can change in the ledger.
#[derive(Clone, Debug)]
pub struct Still {
    pub order: Order,
    pub payments: Vec<Payment>,
}

/// An offer while nothing can change in the ledger.
#[derive(Clone, Debug)]
pub struct OfferStill {
    pub stock: u32,
    /// The ledger's counter of its live units.
    pub live_units: u32,
    /// Those of the orders that were asked for which are of this offer and live.
    pub live: Vec<Order>,
    /// Orders that were refunded just now without going back on the shelf: the gate may not have heard of them.
    pub leaving: HashSet<OrderId>,
}

/// An audit on its way into the books.
#[derive(Clone, Debug)]
pub struct KeptAudit {
    pub id: AuditId,
    pub ended_at: UnixMs,
    pub clean: bool,
    /// The keys of its findings.
    pub known: Vec<String>,
    /// As its operator sees it, in JSON.
    pub report: String,
    /// What was not red before and is told now.
    pub told: Vec<ToldFinding>,
}

/// A finding that becomes an event.
#[derive(Clone, Debug)]
pub struct ToldFinding {
    pub offer: Option<OfferId>,
    /// The finding in JSON, and which audit found it.
    pub data: String,
}

impl ToldFinding {
    #[must_use]
    pub fn of(audit: AuditId, finding: &AuditFinding) -> Self {
        let mut data = serde_json::to_value(finding).unwrap_or_default();
        if let Some(fields) = data.as_object_mut() {
            fields.insert("audit_id".to_owned(), audit.to_string().into());
        }
        Self { offer: finding.offer_id, data: data.to_string() }
    }
}

/// What became of counting an offer's units anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recounted {
    /// The counters are right now; they may have been so before.
    Right,
    /// The orders hold more than the stock: nothing was changed.
    Oversold,
    NotFound,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_very_many_doubts_the_first_are_kept_and_the_others_counted() {
        let mut doubts = Doubts::default();
        let doubt = |kind, order| Doubt::new(kind, None, 1).about("order_id", OrderId(order));
        doubts.extend((0..5_000).map(|order| doubt(Kind::UnpaidOverdue, order)));
        doubts.push(doubt(Kind::Oversold, 7));
        let mut more = Doubts::default();
        more.push(doubt(Kind::GateEndedOrder, 8));
        doubts.append(more);
        assert_eq!(doubts.kept().len(), DOUBTS_PER_KIND_MAX + 2);
        assert_eq!(doubts.kept()[0], doubt(Kind::UnpaidOverdue, 0));
        assert_eq!((doubts.beyond(Kind::UnpaidOverdue), doubts.beyond(Kind::Oversold)), (4_000, 0));
    }
}
