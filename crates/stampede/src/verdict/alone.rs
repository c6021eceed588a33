//! One buyer's history against itself: each answer against what was asked and against the answers before it. It knows
//! nothing of the other buyers and of the operator.

use std::collections::{BTreeMap, BTreeSet};

use rules::id::{OfferId, OrderId};
use rules::order::State;
use rules::time::UnixMs;
use rules::wire::Code;

use super::Evidence;
use super::finding::Finding;
use super::life;
use crate::history::{Call, History, Seen, Told, What};

/// How far a buyer's idea of the server's clock may be off before it is held against the server, in milliseconds.
pub(super) const CLOCK_MARGIN_MS: i64 = 1_000;

/// How long money may be on its way from the provider to the shop before its deadline is held against the shop, in
/// milliseconds.
const MONEY_MARGIN_MS: i64 = 10_000;

pub(super) fn judge(history: &History, evidence: &Evidence<'_>, findings: &mut Vec<Finding>) {
    if history.events.iter().any(|told| told.told_us < told.asked_us) {
        findings.push(Finding::DamagedHistory { buyer: history.buyer.clone() });
    }
    Answers::new(history, evidence.started_at).judge(findings);
    judge_orders(history, !evidence.broken_off, findings);
    judge_blocks(history, findings);
    judge_money(history, evidence, findings);
}

/// Orders that came over a socket and that its buyer never tried for, neither now nor in an earlier visit.
pub(super) fn strange_news<'a>(evidence: &Evidence<'a>) -> BTreeSet<(&'a str, OrderId)> {
    let pushed = |history: &'a History| {
        history.events.iter().filter_map(move |told| match &told.what {
            What::Pushed { order } => Some((history, order)),
            _ => None,
        })
    };
    let strange = |(history, order): &(&History, &Seen)| {
        let started_at = evidence.started_at;
        let is_new = started_at.is_some() && !is_old(history, started_at, order.created_at);
        is_new && !history.tried_for(order.id)
    };
    let news = evidence.histories.iter().flat_map(pushed).filter(strange);
    news.map(|(history, order)| (history.buyer.as_str(), order.id)).collect()
}

/// What was told so far, while going through the answers one by one.
struct Answers<'a> {
    history: &'a History,
    started_at: Option<UnixMs>,
    opens_at: Option<UnixMs>,
    offset_ms: Option<i64>,
    registered_us: Option<u64>,
    passes: BTreeMap<OrderId, (OfferId, UnixMs)>,
    given: Vec<(&'a Told, OrderId)>,
    /// Orders of which it was said that they are early.
    early: BTreeSet<OrderId>,
}

impl<'a> Answers<'a> {
    const fn new(history: &'a History, started_at: Option<UnixMs>) -> Self {
        Self {
            history,
            started_at,
            opens_at: None,
            offset_ms: None,
            registered_us: None,
            passes: BTreeMap::new(),
            given: Vec::new(),
            early: BTreeSet::new(),
        }
    }

    fn judge(mut self, findings: &mut Vec<Finding>) {
        for told in &self.history.events {
            if let Some(order) = told.what.shows() {
                self.judge_time(told, order, findings);
            }
            match &told.what {
                What::Window { opens_at, .. } => self.opens_at = Some(*opens_at),
                What::Offset { ms } => self.offset_ms = Some(*ms),
                What::Registered => self.registered_us = Some(told.told_us),
                What::Pass { offer, order, expires_at } => {
                    self.passes.insert(*order, (*offer, *expires_at));
                }
                What::Order { pass, asked, order, .. } => {
                    self.judge_order(*pass, *asked, order, findings);
                    self.given.push((told, *pass));
                }
                What::Looked { id, found: Some(seen), .. } if seen.id != *id => {
                    let (asked, shown) = (*id, seen.id);
                    findings.push(Finding::OtherShown { buyer: self.buyer(), asked, shown });
                }
                What::Refused { call: Call::Try, status, code, pass: Some(pass), .. } => {
                    self.judge_refused_try(told, *status, code, *pass, findings);
                }
                What::Refused { call: Call::Pass, code, .. }
                    if code == Code::NotRegistered.as_str()
                        && self.registered_us.is_some_and(|at| at <= told.asked_us) =>
                {
                    findings.push(Finding::RegistrationForgotten { buyer: self.buyer() });
                }
                _ => {}
            }
        }
    }

    fn judge_order(&self, pass: OrderId, asked: u32, order: &Seen, findings: &mut Vec<Finding>) {
        let buyer = || self.buyer();
        if order.id != pass {
            findings.push(Finding::OtherOrder { buyer: buyer(), pass, order: order.id });
        }
        if order.quantity != asked {
            let given = order.quantity;
            findings.push(Finding::OtherQuantity { buyer: buyer(), order: order.id, asked, given });
        }
        if let Some((offer, _)) = self.passes.get(&pass).filter(|(offer, _)| *offer != order.offer) {
            let (offer, given) = (*offer, order.offer);
            findings.push(Finding::OtherOffer { buyer: buyer(), order: order.id, offer, given });
        }
    }

    /// No order is made, or shown, before the opening; once is enough to say so. Those of an earlier visit were judged then.
    fn judge_time(&mut self, told: &Told, order: &Seen, findings: &mut Vec<Finding>) {
        let Some(opens_at) = self.opens_at else { return };
        if is_old(self.history, self.started_at, order.created_at) && !self.history.tried_for(order.id) {
            return;
        }
        let (buyer, made_ms) = (self.buyer(), order.created_at.ms_until(opens_at));
        let told_at = self.by_the_server(told.told_us).map(|at| at.plus_ms(CLOCK_MARGIN_MS));
        let told_ms = told_at.map_or(0, |at| at.ms_until(opens_at));
        if made_ms.max(told_ms) == 0 || !self.early.insert(order.id) {
            return;
        }
        let order = order.id;
        findings.push(match made_ms {
            0 => Finding::ToldEarly { buyer, order, early_ms: told_ms },
            early_ms => Finding::Early { buyer, order, early_ms },
        });
    }

    fn judge_refused_try(
        &self,
        told: &Told,
        status: u16,
        code: &str,
        pass: OrderId,
        findings: &mut Vec<Finding>,
    ) {
        // Two clicks at once may cross; a click after the answer may not be told otherwise. Nothing is said about the
        // order by "too fast" and the like.
        let had = self.given.iter().any(|(order, had)| *had == pass && order.told_us <= told.asked_us);
        if had && !matches!(status, 425 | 429 | 500..) {
            let code = code.to_owned();
            findings.push(Finding::RepeatRefused { buyer: self.buyer(), order: pass, code });
            return;
        }
        let Some((_, expires_at)) = self.passes.get(&pass) else { return };
        let too_soon = || {
            self.by_the_server(told.told_us)
                .is_some_and(|at| at.plus_ms(CLOCK_MARGIN_MS).ms_until(*expires_at) > 0)
        };
        let wrongly =
            code == Code::PassInvalid.as_str() || (code == Code::PassExpired.as_str() && too_soon());
        if wrongly {
            findings.push(Finding::PassRefused { buyer: self.buyer(), order: pass, code: code.to_owned() });
        }
    }

    /// The server's clock at a moment of the history, as far as the buyer could know.
    fn by_the_server(&self, at_us: u64) -> Option<UnixMs> {
        let ms = i64::try_from(at_us / 1_000).ok()?;
        Some(self.started_at?.plus_ms(ms).plus_ms(self.offset_ms?))
    }

    fn buyer(&self) -> String {
        self.history.buyer.clone()
    }
}

/// Each order of one buyer through all times it was shown, and all of them side by side. `ended`: somebody was to look at
/// each once more.
fn judge_orders(history: &History, ended: bool, findings: &mut Vec<Finding>) {
    let buyer = || history.buyer.clone();
    let mut live = Vec::new();
    let wish = history.wish();
    for order in history.orders() {
        if let Some(wish) =
            wish.filter(|wish| wish.offer == order.offer && wish.max_per_order < order.quantity)
        {
            let (order, given, max) = (order.id, order.quantity, wish.max_per_order);
            findings.push(Finding::MoreThanAllowed { buyer: buyer(), order, given, max });
        }
        let shown = life::shown(history, order.id);
        life::judge(history, &shown, findings);
        match last_look(history, order.id) {
            Some(None) => findings.push(Finding::Gone { buyer: buyer(), order: order.id }),
            None if ended => findings.push(Finding::NotSeenAgain { buyer: buyer(), order: order.id }),
            None => {}
            Some(Some(seen)) if seen.state == State::Queued => {
                findings.push(Finding::Limbo { buyer: buyer(), order: order.id });
            }
            Some(Some(_)) => {}
        }
        live.extend(life::live_times(&shown).into_iter().map(|time| (order, time)));
    }
    let mut told = BTreeSet::new();
    for (position, (first, first_time)) in live.iter().enumerate() {
        for (second, time) in live.iter().skip(position + 1) {
            let both = first_time.from_us.max(time.from_us) <= first_time.to_us.min(time.to_us);
            let same = first.offer == second.offer && first.id != second.id;
            let (offer, first, second) = (first.offer, first.id, second.id);
            if both && same && told.insert((first, second)) {
                findings.push(Finding::TwoLiveOrders { buyer: buyer(), offer, first, second });
            }
        }
    }
}

/// What "already ordered" answers have named.
fn judge_blocks(history: &History, findings: &mut Vec<Finding>) {
    let buyer = || history.buyer.clone();
    let seen_orders = history.orders();
    let mut gone = BTreeSet::new();
    for told in &history.events {
        let What::Refused { call: Call::Try, code, offer, other, .. } = &told.what else { continue };
        if code != Code::AlreadyOrdered.as_str() {
            continue;
        }
        let Some(order) = *other else {
            findings.push(Finding::BlockedByNothing { buyer: buyer() });
            continue;
        };
        if last_look(history, order) == Some(None) && seen_orders.iter().all(|seen| seen.id != order) {
            gone.insert(order);
        }
        let elsewhere = seen_orders.iter().find(|seen| seen.id == order).map(|seen| seen.offer);
        if let (Some(offer), Some(found)) = (*offer, elsewhere)
            && offer != found
        {
            findings.push(Finding::BlockedByOtherOffer { buyer: buyer(), offer, order });
        }
    }
    findings.extend(gone.into_iter().map(|order| Finding::Gone { buyer: buyer(), order }));
}

fn judge_money(history: &History, evidence: &Evidence<'_>, findings: &mut Vec<Finding>) {
    let buyer = || history.buyer.clone();
    let mut payments: BTreeMap<OrderId, &str> = BTreeMap::new();
    let mut paid: BTreeSet<OrderId> = BTreeSet::new();
    // Money on its way that nobody knows to have arrived.
    let mut unsure: BTreeSet<OrderId> = BTreeSet::new();
    for told in &history.events {
        match &told.what {
            What::Payment { order, payment_id } => {
                let first = *payments.entry(*order).or_insert(payment_id);
                if first != payment_id {
                    let (first, second) = (first.to_owned(), payment_id.clone());
                    findings.push(Finding::TwoPayments { buyer: buyer(), order: *order, first, second });
                }
            }
            What::Paid { order, late, .. } => {
                paid.insert(*order);
                findings.extend(paid_in_vain(history, evidence, told, *order).filter(|_| !late));
            }
            What::Broken { call: Call::Sandbox, pass: Some(order), .. }
            | What::Refused { call: Call::Sandbox, pass: Some(order), .. } => {
                unsure.insert(*order);
            }
            What::Cancelled { order } if order.state != State::Closed => {
                let (order, state) = (order.id, order.state.as_str());
                findings.push(Finding::CancelIgnored { buyer: buyer(), order, state });
            }
            _ => {}
        }
    }
    let unpaid = |order: &Seen| !paid.contains(&order.id) && !unsure.contains(&order.id);
    let is_paid = |order: &Seen| order.state == State::Paid && unpaid(order);
    let by_nobody = history.orders().into_iter().filter(is_paid);
    findings.extend(by_nobody.map(|order| Finding::PaidByNobody { buyer: buyer(), order: order.id }));
}

/// Late money may find no unit and go back; money in time may not, unless somebody else may have sent it back.
fn paid_in_vain(history: &History, evidence: &Evidence<'_>, paid: &Told, order: OrderId) -> Option<Finding> {
    let state = last_look(history, order)??.state;
    let in_vain = match state {
        State::Queued | State::AwaitingPayment => true,
        State::Closed | State::Refused => in_time(history, evidence, paid, order),
        State::Refunding | State::Refunded | State::RefundFailed => {
            evidence.alone_since.is_some() && in_time(history, evidence, paid, order)
        }
        State::Paid => false,
    };
    in_vain.then(|| Finding::PaidInVain { buyer: history.buyer.clone(), order, state: state.as_str() })
}

/// Whether the money was certainly there before the order's deadline.
fn in_time(history: &History, evidence: &Evidence<'_>, paid: &Told, order: OrderId) -> bool {
    let shown = history.seen().filter(|(_, seen)| seen.id == order);
    let Some(pay_by) = shown.filter_map(|(_, seen)| seen.pay_by).last() else { return true };
    let (Some(started_at), Some(offset_ms)) = (evidence.started_at, history.offset_ms()) else { return true };
    let ms = i64::try_from(paid.told_us / 1_000).unwrap_or(i64::MAX);
    started_at.plus_ms(offset_ms).plus_ms(ms).plus_ms(MONEY_MARGIN_MS) <= pay_by
}

/// What the last look found; `None`: nobody looked, or nobody could.
pub(super) fn last_look(history: &History, order: OrderId) -> Option<Option<Seen>> {
    history.events.iter().rev().find_map(|told| match &told.what {
        What::Looked { id, found, last: true } if *id == order => Some(*found),
        _ => None,
    })
}

/// Whether an order was made before the crowd came: by an earlier visit of the same buyer.
pub(super) fn is_old(history: &History, started_at: Option<UnixMs>, created_at: UnixMs) -> bool {
    let started_at = started_at.map(|at| at.plus_ms(history.offset_ms().unwrap_or(0)));
    started_at.is_some_and(|at| created_at.plus_ms(CLOCK_MARGIN_MS) < at)
}
