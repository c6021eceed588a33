//! Audits in SQLite: one snapshot read from end to end, the few verbs that mend what is found there, and the audits that
//! were made. Reads beside the writer, whom it never keeps waiting. Does not know the gate.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use rules::audit::Kind;
use rules::buyer::BuyerId;
use rules::id::{AuditId, OfferId, OrderId, PaymentId, SaleId, WebhookId};
use rules::invariant::{OrderMoney, check_money, fits};
use rules::money::Money;
use rules::order::{Reason, State, Status};
use rules::payment;
use rules::sale::SaleState;
use rules::time::UnixMs;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension as _, Params, Row, Transaction, params};
use serde::Deserialize;

use super::events::{newest, set_head};
use super::orders::find;
use super::shelf::{LEFT_COLUMNS, Left};
use super::{SqliteLedger, Urgency, column, payments, signed};
use crate::ledger::audit::{
    DOUBTS_PER_KIND_MAX, Doubt, Doubts, KeptAudit, LedgerLook, OfferLook, OfferStill, OrderLook, OrderSeen,
    Overdue, Recounted, Remedy, Scope, Still,
};
use crate::ledger::{Counters, LedgerResult};

/// Audits that are kept: at one a minute, the last sixteen hours of sales.
const AUDITS_KEPT: u32 = 1_000;

/// After so many rows whoever waits for the core may have it: nobody waits for an audit.
const ROWS_PER_YIELD: u64 = 512;

/// How much is shown of a value that nobody can read, in characters.
const SHOWN_MAX: usize = 64;

/// How far back is looked for refunds whose units are on their way out of the gate, in events: they take milliseconds.
const EVENTS_UNDER_WAY: u64 = 4_096;

/// Orders that hold paid units.
const PAID: &str = "('paid', 'refunding', 'refund_failed')";

/// Orders that money has paid at some time.
const EVER_PAID: &str = "('paid', 'refunding', 'refunded', 'refund_failed')";

/// Payments that pay, or paid, their order: those of the index `payments_one_pays_the_order`.
const PAYS: &str = "(payments.state = 'applied' or payments.reason = 'requested')";

impl SqliteLedger {
    /// Reads the books of one instant from end to end and says what does not fit. `visit` shows every order in the scope
    /// to `visitor`, on a reading thread. A row that cannot be read does not fit either, and hides no other.
    pub async fn look<V: Send + 'static>(
        &self,
        scope: Scope,
        overdue: Option<Overdue>,
        mut visitor: V,
        visit: fn(&mut V, &OrderSeen<'_>),
    ) -> LedgerResult<(LedgerLook, V)> {
        self.read(move |connection| {
            // One transaction is one snapshot, however long it takes to read.
            let transaction = connection.unchecked_transaction()?;
            let reader = Reader::new(&transaction, scope, overdue);
            let look = reader.read(&mut |order: &OrderSeen<'_>| visit(&mut visitor, order))?;
            Ok((look, visitor))
        })
        .await
    }

    /// Lets `work` see an order and its payments while nothing can change in the ledger. Changes nothing.
    pub async fn with_order_still<T: Send + 'static>(
        &self,
        id: OrderId,
        work: impl FnOnce(Option<Still>) -> T + Send + 'static,
    ) -> LedgerResult<T> {
        self.transact(Urgency::Settle, move |transaction| {
            let still = match find(transaction, id)? {
                None => None,
                Some(order) => Some(Still { payments: payments::of_order(transaction, id)?, order }),
            };
            Ok(work(still))
        })
        .await
    }

    /// Lets `work` see an offer, and which of these orders of it are live, while nothing can change in the ledger.
    /// Changes nothing.
    pub async fn with_offer_still<T: Send + 'static>(
        &self,
        offer: OfferId,
        orders: Vec<OrderId>,
        work: impl FnOnce(Option<OfferStill>) -> T + Send + 'static,
    ) -> LedgerResult<T> {
        self.transact(Urgency::Settle, move |transaction| {
            let counters = transaction
                .prepare_cached("select stock, live_units from offers where offer_id = ?1")?
                .query_row([offer.to_bytes()], |row| Ok((column::count(row, 0)?, column::count(row, 1)?)))
                .optional()?;
            let Some((stock, live_units)) = counters else { return Ok(work(None)) };
            let mut live = Vec::with_capacity(orders.len());
            for order in orders {
                let found = find(transaction, order)?;
                live.extend(found.filter(|order| order.offer == offer && order.status.holds_units));
            }
            let leaving = leaving_orders(transaction)?;
            Ok(work(Some(OfferStill { stock, live_units, live, leaving })))
        })
        .await
    }

    /// The `seq` of an order, of which nothing else is read: it may be one that cannot be.
    pub async fn seq_of(&self, id: OrderId) -> LedgerResult<Option<u32>> {
        self.read(move |connection| {
            let seq = connection
                .prepare_cached("select seq from orders where order_id = ?1")?
                .query_row([id.to_bytes()], |row| column::count(row, 0))
                .optional()?;
            Ok(seq)
        })
        .await
    }

    /// Which field of a scope names nothing, or an offer of another sale; `None` when all is well.
    pub async fn unknown_in(&self, scope: Scope) -> LedgerResult<Option<&'static str>> {
        self.read(move |connection| {
            let exists = |sql: &str, values: [Option<[u8; 16]>; 2]| -> rusqlite::Result<bool> {
                connection.prepare_cached(sql)?.exists(values)
            };
            let (sale, offer) = (scope.sale.map(SaleId::to_bytes), scope.offer.map(OfferId::to_bytes));
            if sale.is_some() && !exists("select ?2 from sales where sale_id = ?1", [sale, None])? {
                return Ok(Some("sale_id"));
            }
            let of_sale = "select 1 from offers join sales using (sale_no)
                where offer_id = ?1 and (?2 is null or sale_id = ?2)";
            let known = offer.is_none() || exists(of_sale, [offer, sale])?;
            Ok((!known).then_some("offer_id"))
        })
        .await
    }

    /// Lets `work` see the stock of these offers while nothing can change in the ledger, and the orders of theirs that
    /// were refunded just now without going back on the shelf: the gate may not have heard of them. Changes nothing.
    pub async fn stand_still<T: Send + 'static>(
        &self,
        offers: Vec<OfferId>,
        work: impl FnOnce(&HashMap<OfferId, u32>, HashSet<OrderId>) -> T + Send + 'static,
    ) -> LedgerResult<T> {
        self.transact(Urgency::Settle, move |transaction| {
            let mut stock = HashMap::new();
            for offer in offers {
                let found = transaction
                    .prepare_cached("select stock from offers where offer_id = ?1")?
                    .query_row([offer.to_bytes()], |row| column::count(row, 0))
                    .optional()?;
                stock.extend(found.map(|found| (offer, found)));
            }
            Ok(work(&stock, leaving_orders(transaction)?))
        })
        .await
    }

    /// Counts an offer's live and paid units anew from its orders, unless that would show more than its stock. Durable
    /// when it returns; again is harmless.
    pub async fn recount(&self, offer: OfferId, now: UnixMs) -> LedgerResult<Recounted> {
        self.transact(Urgency::Settle, move |transaction| recount(transaction, offer, now)).await
    }

    /// Sets a webhook's cursor back to the newest event, if it is beyond it. Again is harmless.
    pub async fn hold_back_webhook(&self, id: WebhookId) -> LedgerResult<()> {
        self.transact(Urgency::Settle, move |transaction| {
            let newest = newest(transaction)?;
            transaction.execute(
                "update webhooks set cursor = ?2 where webhook_id = ?1 and cursor > ?2",
                params![id.to_bytes(), signed(newest)],
            )?;
            Ok(())
        })
        .await
    }

    /// Drops a webhook's deliveries of events that are no longer kept. What stood behind them is due now. Again is
    /// harmless.
    pub async fn drop_deliveries_without_event(&self, id: WebhookId, now: UnixMs) -> LedgerResult<()> {
        self.transact(Urgency::Settle, move |transaction| {
            let dropped: BTreeSet<(i64, i64)> = transaction
                .prepare_cached(
                    "delete from deliveries where webhook_no = (select webhook_no from webhooks where webhook_id = ?1)
                     and not exists (select 1 from events where events.event_no = deliveries.event_no)
                     returning webhook_no, track",
                )?
                .query_map([id.to_bytes()], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<Result<_, _>>()?;
            for (webhook_no, track) in dropped {
                set_head(transaction, webhook_no, track, now)?;
            }
            Ok(())
        })
        .await
    }

    /// Keeps an audit, and tells of what it found as events, in one transaction. The oldest audits are dropped.
    pub async fn keep_audit(&self, audit: KeptAudit) -> LedgerResult<()> {
        self.transact(Urgency::Clerk, move |transaction| {
            let known = serde_json::Value::from(audit.known).to_string();
            // Only the newest one is asked what is known.
            transaction.execute(
                "update audits set known = '[]' where audit_no = (select max(audit_no) from audits)",
                [],
            )?;
            transaction.execute(
                "insert or replace into audits (audit_id, ended_at, clean, known, report) values (?1, ?2, ?3, ?4, ?5)",
                params![audit.id.to_bytes(), audit.ended_at.0, audit.clean, known, audit.report],
            )?;
            transaction.execute(
                "delete from audits where audit_no <= (select max(audit_no) from audits) - ?1",
                [AUDITS_KEPT],
            )?;
            for finding in audit.told {
                transaction
                    .prepare_cached(
                        "insert into events (type, at, sale_no, offer_no, data) select 'audit.finding', ?2, sale_no,
                             offer_no, ?3 from (select 1) left join offers on offer_id = ?1",
                    )?
                    .execute(params![finding.offer.map(OfferId::to_bytes), audit.ended_at.0, finding.data])?;
            }
            Ok(())
        })
        .await
    }

    /// The report of an audit, in JSON.
    pub async fn audit_report(&self, id: AuditId) -> LedgerResult<Option<String>> {
        self.read(move |connection| {
            let report = connection
                .prepare_cached("select report from audits where audit_id = ?1")?
                .query_row([id.to_bytes()], |row| row.get(0))
                .optional()?;
            Ok(report)
        })
        .await
    }

    /// Reports, newest first: those before the number `before`. Each with its number.
    pub async fn audit_page(&self, before: Option<u64>, limit: u32) -> LedgerResult<Vec<(u64, String)>> {
        self.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "select audit_no, report from audits where audit_no < ?1 order by audit_no desc limit ?2",
            )?;
            let rows = statement.query_map(params![before.map_or(i64::MAX, signed), limit], |row| {
                Ok((column::number(row, 0)?, row.get(1)?))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
    }

    /// The keys of what the last audit found: it was told then.
    pub async fn known_findings(&self) -> LedgerResult<Vec<String>> {
        self.read(|connection| {
            let known = connection
                .query_row("select known from audits order by audit_no desc limit 1", [], |row| {
                    column::word(row, 0, |text| serde_json::from_str(text).ok())
                })
                .optional()?;
            Ok(known.unwrap_or_default())
        })
        .await
    }
}

/// Orders that were refunded a moment ago and lowered their offer's stock.
fn leaving_orders(connection: &Connection) -> rusqlite::Result<HashSet<OrderId>> {
    let since = newest(connection)?.saturating_sub(EVENTS_UNDER_WAY);
    let mut statement = connection.prepare_cached(
        "select orders.order_id from events join orders using (order_no) join payments using (order_id)
         where event_no > ?1 and events.type = 'order.refunded' and payments.reason = 'requested'
             and payments.restock = 0",
    )?;
    let rows = statement.query_map([signed(since)], |row| column::id(row, 0).map(OrderId))?;
    rows.collect()
}

fn recount(transaction: &Transaction<'_>, offer: OfferId, now: UnixMs) -> LedgerResult<Recounted> {
    let sql = format!(
        "select offer_no, stock, live_units, paid_units,
             (select coalesce(sum(quantity), 0) from orders o where o.offer_no = offers.offer_no and holds_units = 1),
             (select coalesce(sum(quantity), 0) from orders o where o.offer_no = offers.offer_no and state in {PAID})
         from offers where offer_id = ?1"
    );
    let found = transaction
        .prepare_cached(&sql)?
        .query_row([offer.to_bytes()], |row| {
            let number = |index: usize| row.get::<_, i64>(index);
            Ok((number(0)?, number(1)?, (number(2)?, number(3)?), (number(4)?, number(5)?)))
        })
        .optional()?;
    let Some((offer_no, stock, counters, counted)) = found else { return Ok(Recounted::NotFound) };
    if counted.0 > stock || counted.1 > counted.0 {
        return Ok(Recounted::Oversold);
    }
    if counters == counted {
        return Ok(Recounted::Right);
    }
    let sql = format!(
        "update offers set live_units = ?2, paid_units = ?3, change_no = change_no + 1 where offer_no = ?1
         returning {LEFT_COLUMNS}"
    );
    let left =
        transaction.prepare_cached(&sql)?.query_row(params![offer_no, counted.0, counted.1], Left::read)?;
    left.tell(transaction, now)?;
    Ok(Recounted::Right)
}

/// What is counted of an offer while its orders pass by.
#[derive(Debug)]
struct OfferCount {
    look: OfferLook,
    price: Money,
    live: u64,
    paid: u64,
    /// Whether every order of it could be read as far as these sums need it.
    live_is_known: bool,
    paid_is_known: bool,
}

/// Reads one snapshot.
struct Reader<'a> {
    connection: &'a Connection,
    scope: Scope,
    overdue: Option<Overdue>,
    offers: BTreeMap<i64, OfferCount>,
    /// Which events there must be: one number over all changes of all orders.
    told: Told,
    doubts: Doubts,
    /// Orders that cannot be read, or of which a payment cannot be: what hangs on that is not judged.
    unsure: HashSet<OrderId>,
    /// The keys of rows that cannot be read: some are come by more than once.
    unreadable: HashSet<String>,
    orders: u64,
}

/// A sum over facts (order number, seq): equal sums mean equal facts, in whatever order they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Told(u64);

impl Told {
    fn add(&mut self, order_no: i64, seq: u32) {
        // Mixed, so that one missing fact and another that is there twice do not make up for each other.
        let mut x = order_no.unsigned_abs() ^ (u64::from(seq) << 48);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = self.0.wrapping_add(x ^ (x >> 31));
    }
}

/// An order's row, as far as it is looked at.
struct OrderRow<'a> {
    no: i64,
    slot: i64,
    pay_by: Option<UnixMs>,
    offer_no: i64,
    look: OrderLook<'a>,
}

impl<'a> Reader<'a> {
    fn new(connection: &'a Connection, scope: Scope, overdue: Option<Overdue>) -> Self {
        Self {
            connection,
            scope,
            overdue,
            offers: BTreeMap::new(),
            told: Told::default(),
            doubts: Doubts::default(),
            unsure: HashSet::new(),
            unreadable: HashSet::new(),
            orders: 0,
        }
    }

    fn read(mut self, visit: &mut impl FnMut(&OrderSeen<'_>)) -> LedgerResult<LedgerLook> {
        self.read_offers()?;
        let kept = self.read_orders(visit)?;
        self.check_counters();
        self.check_events(kept)?;
        self.read_payments()?;
        self.check_paid_orders()?;
        self.check_applied_payments()?;
        self.check_elsewhere()?;
        self.check_strikes()?;
        if let Some(overdue) = self.overdue {
            self.check_captures(overdue.captured)?;
            self.check_refunds(overdue.refund, overdue.refunding)?;
        }
        let cursor =
            self.connection.query_row("select cursor from identity", [], |row| column::number(row, 0))?;
        if self.scope.is_all() {
            self.check_cursor(cursor)?;
            self.check_webhooks()?;
        }
        let offers = self.offers.into_values().map(|count| count.look).collect();
        Ok(LedgerLook { offers, orders: self.orders, cursor, doubts: self.doubts })
    }

    /// The offers in the scope. One that cannot be read is left out, and with it everything that hangs on it.
    fn read_offers(&mut self) -> LedgerResult<()> {
        let sql = "select offer_id, offer_no, sale_id, sales.state, stock, live_units, paid_units, change_no,
                 price_amount, currency
             from offers join sales using (sale_no)";
        self.judge_rows("offers", sql, [], |reader, row| {
            let (sale, offer) = (SaleId(column::id(row, 2)?), OfferId(column::id(row, 0)?));
            if reader.scope.has(sale, offer) {
                reader.offers.insert(row.get(1)?, read_offer(row)?);
            }
            Ok(())
        })
    }

    /// Reads every order once. Answers from which order number on all events must be there.
    fn read_orders(&mut self, visit: &mut impl FnMut(&OrderSeen<'_>)) -> LedgerResult<i64> {
        let first_kept = self.connection.query_row(
            "select event_no, at from events order by event_no limit 1",
            [],
            |row| Ok((row.get::<_, i64>(0)?, column::time(row, 1)?)),
        );
        // Events are dropped oldest first, and orders are numbered as they are recorded: beyond the first order that
        // is younger than all dropped events, none may be missing.
        let dropped_until = first_kept.optional()?.filter(|(event_no, _)| *event_no > 1).map(|(_, at)| at);
        let mut kept = if dropped_until.is_some() { i64::MAX } else { 0 };
        let connection = self.connection;
        let mut statement = connection.prepare(
            "select order_no, order_id, offer_no, buyer, quantity, state, reason, holds_units, slot, seq, pay_by,
                 pass_expires_at, recorded_at
             from orders order by order_no",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            if dropped_until
                .is_some_and(|until| kept == i64::MAX && column::time(row, 12).is_ok_and(|at| at > until))
            {
                kept = row.get(0)?;
            }
            match self.order_in_scope(row) {
                Ok(None) => continue,
                Ok(Some(order)) => {
                    visit(&OrderSeen::Read(order.look));
                    self.count(&order, kept);
                    self.check_order(&order)?;
                }
                Err(error) if is_of_the_row(&error) => self.see_unreadable(row, kept, &error, visit),
                Err(error) => return Err(error.into()),
            }
            self.orders += 1;
            if self.orders.is_multiple_of(ROWS_PER_YIELD) {
                std::thread::yield_now();
            }
        }
        Ok(kept)
    }

    fn order_in_scope<'r>(&self, row: &'r Row<'_>) -> rusqlite::Result<Option<OrderRow<'r>>> {
        let count = self.offers.get(&row.get::<_, i64>(2)?);
        count.map(|count| read_order(row, count.look.counters.offer)).transpose()
    }

    /// An order that cannot be read is there all the same: its units count if they can be, and nobody may take it for
    /// one that does not exist.
    fn see_unreadable(
        &mut self,
        row: &Row<'_>,
        kept: i64,
        error: &rusqlite::Error,
        visit: &mut impl FnMut(&OrderSeen<'_>),
    ) {
        let (order, quantity) = (column::id(row, 1).map(OrderId), column::count(row, 4));
        if let Ok(order) = order {
            visit(&OrderSeen::Unreadable(order));
            self.unsure.insert(order);
        }
        if let (Ok(no), Ok(seq)) = (row.get::<_, i64>(0), column::count(row, 9))
            && no >= kept
        {
            (2..=seq).for_each(|seq| self.told.add(no, seq));
        }
        let offer_no: Option<i64> = row.get(2).ok();
        if let Some(count) = offer_no.and_then(|offer_no| self.offers.get_mut(&offer_no)) {
            count.paid_is_known = false;
            match (&quantity, row.get::<_, bool>(7)) {
                (Ok(quantity), Ok(holds_units)) => {
                    count.live += u64::from(*quantity) * u64::from(holds_units);
                }
                _ => count.live_is_known = false,
            }
        }
        let Some(offer) = self.offer_in_scope(offer_no) else { return };
        let name = order.map_or_else(|_| name_of(row), |order| order.to_string());
        let which = Unreadable { table: "orders", name, offer, quantity: quantity.ok() };
        self.note_unreadable(row, which, error);
    }

    fn count(&mut self, order: &OrderRow<'_>, kept: i64) {
        if order.no >= kept {
            (2..=order.look.seq).for_each(|seq| self.told.add(order.no, seq));
        }
        let Some(count) = self.offers.get_mut(&order.offer_no) else { return };
        let units = u64::from(order.look.quantity);
        if order.look.status.holds_units {
            count.live += units;
        }
        if matches!(order.look.status.state, State::Paid | State::Refunding | State::RefundFailed) {
            count.paid += units;
        }
    }

    fn check_order(&mut self, order: &OrderRow<'_>) -> LedgerResult<()> {
        let OrderLook { id, offer, quantity, status, .. } = order.look;
        let doubt = |kind| {
            Doubt::new(kind, Some(offer), i64::from(quantity))
                .about("order_id", id)
                .with("buyer", order.look.buyer)
                .with("state", status.state.as_str())
        };
        let slot_fits = (order.slot == 0) == status.holds_units;
        if !fits(status) || !slot_fits {
            // The unique key looks at the slot: only a slot that does not fit lets a second live order in.
            let other = if status.holds_units { self.other_live(order)? } else { None };
            self.doubts.push(match other {
                Some(other) => doubt(Kind::OneLiveOrder).with("other_order_id", other),
                None => {
                    let reason = status.reason.map_or("none", Reason::as_str);
                    doubt(Kind::OrderState).with("reason", reason).with("holds_units", status.holds_units)
                }
            });
        }
        if let (State::AwaitingPayment, Some(pay_by), Some(overdue)) =
            (status.state, order.pay_by, self.overdue)
            && pay_by < overdue.unpaid
            && (pay_by < overdue.unpaid_while_paying || !self.is_paying(id)?)
        {
            self.doubts.push(doubt(Kind::UnpaidOverdue).with("pay_by", pay_by));
        }
        Ok(())
    }

    fn other_live(&self, order: &OrderRow<'_>) -> rusqlite::Result<Option<OrderId>> {
        self.connection
            .prepare_cached(
                "select order_id from orders where buyer = ?1 and offer_no = ?2 and order_no <> ?3
                 and holds_units = 1 order by order_no limit 1",
            )?
            .query_row(params![order.look.buyer, order.offer_no, order.no], |row| {
                column::id(row, 0).map(OrderId)
            })
            .optional()
    }

    fn is_paying(&self, order: OrderId) -> rusqlite::Result<bool> {
        self.connection
            .prepare_cached(
                "select 1 from payments where order_id = ?1 and state in ('started', 'captured') limit 1",
            )?
            .exists([order.to_bytes()])
    }

    fn check_counters(&mut self) {
        for OfferCount { look, live, paid, live_is_known, paid_is_known, .. } in self.offers.values() {
            let Counters { offer, stock, live_units, paid_units, .. } = look.counters;
            let signed = |units: u64| i64::try_from(units).unwrap_or(i64::MAX);
            let mut doubt = |kind, units, remedy| {
                let doubt = Doubt::new(kind, Some(offer), units).with("stock", stock);
                let doubt = doubt.with("live_counter", live_units).with("live_units", live);
                let doubt = doubt.with("paid_counter", paid_units).with("paid_units", paid);
                self.doubts.push(doubt.mended_by(remedy));
            };
            if *live > u64::from(stock) {
                doubt(Kind::Oversold, signed(*live) - i64::from(stock), Remedy::None);
            }
            if *live_is_known && *live != u64::from(live_units) {
                let units = signed(*live) - i64::from(live_units);
                doubt(Kind::LiveCounter, units, Remedy::Recount(offer));
            }
            if *paid_is_known && *paid != u64::from(paid_units) {
                let units = signed(*paid) - i64::from(paid_units);
                doubt(Kind::PaidCounter, units, Remedy::Recount(offer));
            }
        }
    }

    /// One pass over the events: is each order's every change told once, and is every offer's stock the last one told?
    fn check_events(&mut self, kept: i64) -> LedgerResult<()> {
        let (mut told, mut rows_seen) = (Told::default(), 0_u64);
        let mut stock: HashMap<i64, (i64, u32)> = HashMap::new();
        let sql = "select event_no, order_no, seq, offer_no, sale_no,
                 case type when 'offer.stock_changed' then data when 'sale.published' then '' end
             from events order by event_no";
        self.judge_rows("events", sql, [], |reader, row| {
            rows_seen += 1;
            if rows_seen.is_multiple_of(ROWS_PER_YIELD) {
                std::thread::yield_now();
            }
            let offer_no: Option<i64> = row.get(3)?;
            let in_scope = offer_no.is_some_and(|offer| reader.offers.contains_key(&offer));
            if let (true, Some(order_no), Some(seq)) =
                (in_scope, row.get::<_, Option<i64>>(1)?, row.get::<_, Option<u32>>(2)?)
                && order_no >= kept
            {
                told.add(order_no, seq);
            }
            let Some(data) = row.get_ref(5)?.as_str_or_null()? else { return Ok(()) };
            let sale_no: i64 = row.get::<_, Option<i64>>(4)?.unwrap_or(0);
            match (data, offer_no) {
                // What was told of a draft does not count: a draft's stock changes without a word.
                ("", _) => stock.retain(|_, (sale, _)| *sale != sale_no),
                (data, Some(offer_no)) => {
                    let change: Option<StockTold> = serde_json::from_str(data).ok();
                    stock.extend(change.map(|change| (offer_no, (sale_no, change.stock))));
                }
                (_, None) => {}
            }
            Ok(())
        })?;
        self.check_stock(&stock);
        if told != self.told {
            self.find_gaps(kept)?;
        }
        Ok(())
    }

    fn check_stock(&mut self, told: &HashMap<i64, (i64, u32)>) {
        for (offer_no, OfferCount { look, .. }) in &self.offers {
            let Counters { offer, stock, .. } = look.counters;
            let last = told.get(offer_no).filter(|_| look.sale_state != SaleState::Draft);
            if let Some((_, last)) = last.filter(|(_, last)| *last != stock) {
                let units = i64::from(*last) - i64::from(stock);
                let doubt = Doubt::new(Kind::StockUntold, Some(offer), units);
                self.doubts.push(doubt.with("stock", stock).with("stock_told", last));
            }
        }
    }

    /// The orders whose events do not fit. Only asked when the sums say that there are some.
    fn find_gaps(&mut self, kept: i64) -> LedgerResult<()> {
        let sql = "select order_id, orders.offer_no, quantity, orders.seq, count(distinct events.seq), count(events.seq),
                 coalesce(max(events.seq), 0)
             from orders left join (select order_no, seq from events where seq is not null and order_no >= ?1) as events
                 on events.order_no = orders.order_no
             where orders.order_no >= ?1 group by orders.order_no
             having count(distinct events.seq) <> orders.seq - 1 or count(events.seq) <> orders.seq - 1
                 or coalesce(max(events.seq), 0) <> orders.seq";
        self.judge_rows("orders", sql, [kept], |reader, row| {
            let Some(count) = reader.offers.get(&row.get::<_, i64>(1)?) else { return Ok(()) };
            let doubt = Doubt::new(Kind::EventGap, Some(count.look.counters.offer), row.get(2)?)
                .about("order_id", OrderId(column::id(row, 0)?))
                .with("changes", column::count(row, 3)?.saturating_sub(1))
                .with("events", column::count(row, 5)?)
                .with("last_event_seq", column::count(row, 6)?)
                .with("seq", column::count(row, 3)?);
            reader.doubts.push(doubt);
            Ok(())
        })?;
        self.find_strays(kept)
    }

    /// Events of orders that are not there.
    fn find_strays(&mut self, kept: i64) -> LedgerResult<()> {
        let sql = "select order_no, offer_no, count(*) from events where seq is not null and order_no >= ?1
             and not exists (select 1 from orders where orders.order_no = events.order_no) group by order_no";
        self.judge_rows("events", sql, [kept], |reader, row| {
            let Some(offer) = reader.offer_in_scope(row.get(1)?) else { return Ok(()) };
            let doubt = Doubt::new(Kind::EventGap, offer, 0).about("order_no", row.get::<_, i64>(0)?);
            reader.doubts.push(doubt.with("events", column::count(row, 2)?).with("changes", 0));
            Ok(())
        })
    }

    /// Every payment, as far as it must be readable for whoever works on it.
    fn read_payments(&mut self) -> LedgerResult<()> {
        let sql =
            "select payment_id, state, reason, amount, currency, order_id from payments order by payment_no";
        let connection = self.connection;
        let mut statement = connection.prepare(sql)?;
        let (mut rows, mut rows_seen) = (statement.query([])?, 0_u64);
        while let Some(row) = rows.next()? {
            rows_seen += 1;
            if rows_seen.is_multiple_of(ROWS_PER_YIELD) {
                std::thread::yield_now();
            }
            match PaidBy::read(row, 0).and_then(|_| column::id_option(row, 5)) {
                Ok(_) => {}
                Err(error) if is_of_the_row(&error) => self.see_unreadable_payment(row, &error)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn see_unreadable_payment(&mut self, row: &Row<'_>, error: &rusqlite::Error) -> rusqlite::Result<()> {
        let order = column::id_option(row, 5).ok().flatten().map(OrderId);
        self.unsure.extend(order);
        let found = self
            .connection
            .prepare_cached("select offer_no, quantity from orders where order_id = ?1")?
            .query_row([order.map(OrderId::to_bytes)], |row| Ok((row.get(0).ok(), row.get(1).ok())))
            .optional()?;
        let (offer_no, quantity) = found.unwrap_or_default();
        let Some(offer) = self.offer_in_scope(offer_no) else { return Ok(()) };
        let which = Unreadable { table: "payments", name: name_of(row), offer, quantity };
        self.note_unreadable(row, which, error);
        Ok(())
    }

    /// Every order that money has paid at some time, with the payments that say they paid it.
    fn check_paid_orders(&mut self) -> LedgerResult<()> {
        let sql = format!(
            "select orders.order_id, orders.offer_no, orders.quantity, orders.state, orders.payment_id,
                 payments.payment_id, payments.state, payments.reason, payments.amount, payments.currency
             from orders left join payments on payments.order_id = orders.order_id and {PAYS}
             where orders.state in {EVER_PAID} order by orders.order_no"
        );
        let mut group: Option<PaidOrder> = None;
        self.judge_rows("orders", &sql, [], |reader, row| {
            let id = OrderId(column::id(row, 0)?);
            if group.as_ref().is_none_or(|order| order.id != id) {
                reader.judge_paid(group.take());
                group = Some(PaidOrder::read(row, id)?);
            }
            // One that cannot be read was seen before, and its order is not judged.
            if let (Some(group), Ok(Some(payment))) = (&mut group, PaidBy::read(row, 5)) {
                group.payments.push(payment);
            }
            Ok(())
        })?;
        self.judge_paid(group.take());
        Ok(())
    }

    fn judge_paid(&mut self, order: Option<PaidOrder>) {
        let Some(order) = order.filter(|order| !self.unsure.contains(&order.id)) else { return };
        let Some(count) = self.offers.get(&order.offer_no) else { return };
        let (offer, price) = (count.look.counters.offer, count.price);
        let doubt = |kind| {
            let doubt = Doubt::new(kind, Some(offer), i64::from(order.quantity)).about("order_id", order.id);
            doubt.with("state", order.state.as_str()).with("payments", order.payment_ids())
        };
        let payments: Vec<payment::Status> = order.payments.iter().map(|payment| payment.status).collect();
        let money = OrderMoney { order: order.id, state: order.state, payments };
        if check_money(&money).is_some() {
            let kind = match order.payments.len() {
                0 => Kind::PaidWithoutPayment,
                1 => Kind::MoneyDisagrees,
                _ => Kind::PaidTwice,
            };
            let states: Vec<_> = order.payments.iter().map(|payment| payment.status.state.as_str()).collect();
            self.doubts.push(doubt(kind).with("payment_states", states.join(", ")));
            return;
        }
        let Some(payment) = order.payments.first() else { return };
        if order.payment != Some(payment.id) {
            let named = order.payment.map_or_else(|| "none".to_owned(), |id| id.to_string());
            self.doubts.push(doubt(Kind::MoneyDisagrees).with("order_names_payment", named));
        }
        if price.times(order.quantity).is_some_and(|total| total != payment.money) {
            let total = price.times(order.quantity).map_or(0, |total| total.amount);
            let doubt = doubt(Kind::WrongAmount).with("total", format!("{total} {}", price.currency));
            self.doubts
                .push(doubt.with("paid", format!("{} {}", payment.money.amount, payment.money.currency)));
        }
    }

    /// Payments that say they paid an order which does not know of it.
    fn check_applied_payments(&mut self) -> LedgerResult<()> {
        let sql = format!(
            "select payments.payment_id, payments.order_id, payments.state, payments.amount, payments.currency,
                 orders.offer_no, coalesce(orders.quantity, 0), coalesce(orders.state, 'missing')
             from payments left join orders on orders.order_id = payments.order_id
             where {PAYS} and (orders.state is null or orders.state not in {EVER_PAID})"
        );
        self.judge_rows("payments", &sql, [], |reader, row| {
            let Some(offer) = reader.offer_in_scope(row.get(5)?) else { return Ok(()) };
            let order = column::id_option(row, 1)?.map(OrderId);
            if order.is_some_and(|order| reader.unsure.contains(&order)) {
                return Ok(());
            }
            let doubt = Doubt::new(Kind::PaymentWithoutOrder, offer, row.get(6)?)
                .about("payment_id", PaymentId(column::id(row, 0)?))
                .with("order_id", order.map_or_else(String::new, |id| id.to_string()))
                .with("order_state", row.get::<_, String>(7)?)
                .with("payment_state", row.get::<_, String>(2)?)
                .with("amount", format!("{} {}", row.get::<_, i64>(3)?, row.get::<_, String>(4)?));
            reader.doubts.push(doubt);
            Ok(())
        })
    }

    fn check_captures(&mut self, before: UnixMs) -> LedgerResult<()> {
        let sql = "select payments.payment_id, payments.order_id, captured_at, amount, currency, offer_no,
                 coalesce(quantity, 0)
             from payments left join orders on orders.order_id = payments.order_id
             where payments.state = 'captured' and captured_at < ?1 order by payment_no";
        self.judge_rows("payments", sql, [before.0], |reader, row| {
            let Some(offer) = reader.offer_in_scope(row.get(5)?) else { return Ok(()) };
            let payment = PaymentId(column::id(row, 0)?);
            let order = column::id_option(row, 1)?.map_or_else(String::new, |id| OrderId(id).to_string());
            let doubt = Doubt::new(Kind::CaptureUndecided, offer, row.get(6)?)
                .about("payment_id", payment)
                .with("order_id", order)
                .with("captured_at", column::time(row, 2)?)
                .with("amount", format!("{} {}", row.get::<_, i64>(3)?, row.get::<_, String>(4)?));
            reader.doubts.push(doubt.mended_by(Remedy::Settle(payment)));
            Ok(())
        })
    }

    /// Refunds that nobody asked for since `before`, and those that a provider has been at since `since`.
    fn check_refunds(&mut self, before: UnixMs, since: UnixMs) -> LedgerResult<()> {
        let sql =
            "select payments.payment_id, payments.order_id, next_try_at, payments.state, provider, attempts,
                 offer_no, coalesce(quantity, 0), problem
             from payments left join orders on orders.order_id = payments.order_id
             where next_try_at is not null
                 and (next_try_at < ?1 or payments.state = 'refunding' and refunding_since < ?2)
             order by next_try_at";
        self.judge_rows("payments", sql, [before.0, since.0], |reader, row| {
            let Some(offer) = reader.offer_in_scope(row.get(6)?) else { return Ok(()) };
            let order = column::id_option(row, 1)?.map_or_else(String::new, |id| OrderId(id).to_string());
            let doubt = Doubt::new(Kind::RefundStuck, offer, row.get(7)?)
                .about("payment_id", PaymentId(column::id(row, 0)?))
                .with("order_id", order)
                .with("due_at", column::time(row, 2)?)
                .with("state", row.get::<_, String>(3)?)
                .with("provider", row.get::<_, String>(4)?)
                .with("attempts", column::count(row, 5)?)
                .with("problem", row.get::<_, Option<String>>(8)?.unwrap_or_default());
            reader.doubts.push(doubt);
            Ok(())
        })
    }

    /// Money that pays an order and is back at its buyer.
    fn check_elsewhere(&mut self) -> LedgerResult<()> {
        let connection = self.connection;
        let mut statement = connection.prepare(
            "select payments.payment_id, payments.order_id, provider, back_elsewhere, currency, offer_no,
                 coalesce(quantity, 0)
             from payments left join orders on orders.order_id = payments.order_id
             where back_elsewhere is not null and back_elsewhere >= amount and payments.state = 'applied'
             order by payment_no",
        )?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            let Some(offer) = self.offer_in_scope(row.get(5)?) else { continue };
            let order = column::id_option(row, 1)?.map_or_else(String::new, |id| OrderId(id).to_string());
            let doubt = Doubt::new(Kind::RefundedElsewhere, offer, row.get(6)?)
                .about("payment_id", PaymentId(column::id(row, 0)?))
                .with("order_id", order)
                .with("provider", row.get::<_, String>(2)?)
                .with("refunded", format!("{} {}", row.get::<_, i64>(3)?, row.get::<_, String>(4)?));
            self.doubts.push(doubt);
        }
        Ok(())
    }

    fn check_strikes(&mut self) -> LedgerResult<()> {
        let sql =
            "select strike_no, strikes.buyer, order_id, offer_no, quantity, state, coalesce(reason, 'none')
             from strikes join orders using (order_no)
             where lifted_at is null and not (state = 'closed' and coalesce(reason, '') = 'timeout')";
        self.judge_rows("strikes", sql, [], |reader, row| {
            let Some(offer) = reader.offer_in_scope(row.get(3)?) else { return Ok(()) };
            let order = OrderId(column::id(row, 2)?);
            if reader.unsure.contains(&order) {
                return Ok(());
            }
            let buyer: BuyerId = column::word(row, 1, |text| BuyerId::parse(text).ok())?;
            let strike = column::number(row, 0)?;
            let doubt = Doubt::new(Kind::StrikeWithoutLapse, offer, row.get(4)?)
                .about("order_id", order)
                .with("buyer", buyer.as_str())
                .with("strike", strike)
                .with("state", row.get::<_, String>(5)?)
                .with("reason", row.get::<_, String>(6)?);
            reader.doubts.push(doubt.mended_by(Remedy::Lift { buyer, strike }));
            Ok(())
        })
    }

    fn check_cursor(&mut self, cursor: u64) -> LedgerResult<()> {
        let last = self
            .connection
            .query_row("select coalesce(max(order_no), 0) from orders", [], |row| column::number(row, 0))?;
        if last > cursor {
            let doubt = Doubt::new(Kind::CursorBehind, None, 0);
            self.doubts.push(doubt.with("cursor", cursor).with("last_order", last));
        }
        Ok(())
    }

    fn check_webhooks(&mut self) -> LedgerResult<()> {
        let newest = newest(self.connection)?;
        let sql = "select webhook_id, cursor, (select count(*) from deliveries where deliveries.webhook_no = webhooks.webhook_no
                 and not exists (select 1 from events where events.event_no = deliveries.event_no))
             from webhooks order by webhook_no";
        self.judge_rows("webhooks", sql, [], |reader, row| {
            let webhook = WebhookId(column::id(row, 0)?);
            let (cursor, orphans) = (column::number(row, 1)?, column::number(row, 2)?);
            let doubt = |kind| Doubt::new(kind, None, 0).about("webhook_id", webhook);
            if cursor > newest {
                let doubt = doubt(Kind::WebhookCursor).with("cursor", cursor).with("newest_event", newest);
                reader.doubts.push(doubt.mended_by(Remedy::HoldBack(webhook)));
            }
            if orphans > 0 {
                let doubt = doubt(Kind::DeliveryWithoutEvent).with("deliveries", orphans);
                reader.doubts.push(doubt.mended_by(Remedy::Drop(webhook)));
            }
            Ok(())
        })
    }

    /// Shows every row to `judge`. One that cannot be read is a finding, and what comes after it is read all the same.
    fn judge_rows(
        &mut self,
        table: &'static str,
        sql: &str,
        values: impl Params,
        mut judge: impl FnMut(&mut Self, &Row<'_>) -> rusqlite::Result<()>,
    ) -> LedgerResult<()> {
        let connection = self.connection;
        let mut statement = connection.prepare(sql)?;
        let mut rows = statement.query(values)?;
        while let Some(row) = rows.next()? {
            match judge(self, row) {
                Err(error) if is_of_the_row(&error) => {
                    let which = Unreadable { table, name: name_of(row), offer: None, quantity: None };
                    self.note_unreadable(row, which, &error);
                }
                judged => judged?,
            }
        }
        Ok(())
    }

    /// Which column cannot be read, and what stands there.
    fn note_unreadable(&mut self, row: &Row<'_>, which: Unreadable, error: &rusqlite::Error) {
        let Unreadable { table, name, offer, quantity } = which;
        let key = format!("{table} {name}");
        if self.unreadable.contains(&key) {
            return;
        }
        if self.unreadable.len() < DOUBTS_PER_KIND_MAX {
            self.unreadable.insert(key);
        }
        let units = quantity.map_or(0, i64::from);
        let mut doubt =
            Doubt::new(Kind::UnreadableRow, offer, units).about("table", table).about("row", name);
        doubt = match column_of(error).map(|column| (row.as_ref().column_name(column), row.get_ref(column))) {
            Some((Ok(column), Ok(value))) => doubt.with("column", column).with("value", shown(value)),
            _ => doubt.with("problem", error),
        };
        self.doubts.push(doubt);
    }

    /// The offer of a row that may have none; `None` when it is not in the scope.
    #[expect(clippy::option_option, reason = "out of scope, without an offer, or with one")]
    fn offer_in_scope(&self, offer_no: Option<i64>) -> Option<Option<OfferId>> {
        match offer_no {
            None => self.scope.is_all().then_some(None),
            Some(offer_no) => self.offers.get(&offer_no).map(|count| Some(count.look.counters.offer)),
        }
    }
}

#[derive(Deserialize)]
struct StockTold {
    stock: u32,
}

/// An order that was paid at some time, and by what.
struct PaidOrder {
    id: OrderId,
    offer_no: i64,
    quantity: u32,
    state: State,
    payment: Option<PaymentId>,
    payments: Vec<PaidBy>,
}

struct PaidBy {
    id: PaymentId,
    status: payment::Status,
    money: Money,
}

impl PaidOrder {
    fn read(row: &Row<'_>, id: OrderId) -> rusqlite::Result<Self> {
        Ok(Self {
            id,
            offer_no: row.get(1)?,
            quantity: column::count(row, 2)?,
            state: column::word(row, 3, State::parse)?,
            payment: column::id_option(row, 4)?.map(PaymentId),
            payments: Vec::new(),
        })
    }

    fn payment_ids(&self) -> String {
        self.payments.iter().map(|payment| payment.id.to_string()).collect::<Vec<_>>().join(", ")
    }
}

impl PaidBy {
    /// From the column `first` on: id, state, reason, amount and currency.
    fn read(row: &Row<'_>, first: usize) -> rusqlite::Result<Option<Self>> {
        let Some(id) = column::id_option(row, first)? else { return Ok(None) };
        let reason = match row.get_ref(first + 2)?.as_str_or_null()? {
            None => None,
            Some(text) => {
                let reason = payment::RefundReason::parse(text);
                Some(reason.ok_or_else(|| column::unknown_word(first + 2))?)
            }
        };
        let status = payment::Status { state: column::word(row, first + 1, payment::State::parse)?, reason };
        let currency = column::word(row, first + 4, |text| text.parse().ok())?;
        Ok(Some(Self { id: PaymentId(id), status, money: Money { amount: row.get(first + 3)?, currency } }))
    }
}

/// Which row cannot be read.
struct Unreadable {
    table: &'static str,
    /// Its id, or its number.
    name: String,
    offer: Option<OfferId>,
    quantity: Option<u32>,
}

/// Without a code it was not the database that failed but the reading of a row.
fn is_of_the_row(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code().is_none()
}

fn column_of(error: &rusqlite::Error) -> Option<usize> {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType};
    match error {
        FromSqlConversionFailure(column, ..)
        | IntegralValueOutOfRange(column, _)
        | InvalidColumnType(column, ..) => Some(*column),
        _ => None,
    }
}

/// The first column names the row.
fn name_of(row: &Row<'_>) -> String {
    match column::id(row, 0) {
        Ok(id) => OrderId(id).to_string(),
        Err(_) => row.get_ref(0).map_or_else(|_| "unknown".to_owned(), shown),
    }
}

/// A value for somebody who must put it right; not more of it than a report can hold.
fn shown(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "null".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) => String::from_utf8_lossy(text).chars().take(SHOWN_MAX).collect(),
        ValueRef::Blob(bytes) => format!("{} bytes", bytes.len()),
    }
}

fn read_offer(row: &Row<'_>) -> rusqlite::Result<OfferCount> {
    let counters = Counters {
        offer: OfferId(column::id(row, 0)?),
        stock: column::count(row, 4)?,
        live_units: column::count(row, 5)?,
        paid_units: column::count(row, 6)?,
        change_no: column::number(row, 7)?,
    };
    let sale_state = column::word(row, 3, SaleState::parse)?;
    let look = OfferLook { sale: SaleId(column::id(row, 2)?), sale_state, counters };
    let price = Money { amount: row.get(8)?, currency: column::word(row, 9, |text| text.parse().ok())? };
    Ok(OfferCount { look, price, live: 0, paid: 0, live_is_known: true, paid_is_known: true })
}

fn read_order<'a>(row: &'a Row<'_>, offer: OfferId) -> rusqlite::Result<OrderRow<'a>> {
    let status = Status {
        state: column::word(row, 5, State::parse)?,
        reason: match row.get_ref(6)?.as_str_or_null()? {
            None => None,
            Some(text) => Some(Reason::parse(text).ok_or_else(|| column::unknown_word(6))?),
        },
        holds_units: row.get(7)?,
    };
    Ok(OrderRow {
        no: row.get(0)?,
        slot: row.get(8)?,
        pay_by: column::time_option(row, 10)?,
        offer_no: row.get(2)?,
        look: OrderLook {
            id: OrderId(column::id(row, 1)?),
            offer,
            buyer: row.get_ref(3)?.as_str()?,
            quantity: column::count(row, 4)?,
            status,
            seq: column::count(row, 9)?,
            pass_expires_at: column::time(row, 11)?,
        },
    })
}
