//! Units on their way back, and money that comes late: gate, queue and ledger of a whole server.

/// Orders at their deadline.
mod deadlines;

/// Late money that looks for a unit, and money that waits for its order.
mod late_money;

/// Refunded orders and their units.
mod refunds;

/// Processes that die between two steps.
mod crash;

use std::time::Duration;

use doorbuster::app::App;
use doorbuster::clock::Clock;
use doorbuster::ledger::Order;
use doorbuster::ledger::money::{Decided, Names, Notice, Settled, Taken, Told};
use rules::buyer::BuyerId;
use rules::id::{OfferId, OrderId, PaymentId};
use rules::order::State;
use rules::payment::{Capture, CaptureKey};
use serde_json::{Value, json};

use crate::app::{TestApp, TestSale, draft, eventually};

/// How long the drafts of these tests give to pay.
const PAY_WITHIN: Duration = Duration::from_secs(900);

fn id(order: &Value) -> OrderId {
    order["id"].as_str().unwrap().parse().unwrap()
}

fn buyer(name: &str) -> BuyerId {
    BuyerId::parse(name).unwrap()
}

/// A recorded order of `name`.
async fn bought(app: &TestApp, sale: &TestSale, name: &str, quantity: u32) -> OrderId {
    let buyer = app.buyer(name);
    let order = id(&buyer.buy_with(sale.offer(), &buyer.mint(sale.offer()), quantity, 202).await);
    eventually("the order is recorded", async || app.app.ledger.order(order).await.unwrap().is_some()).await;
    order
}

async fn ledgers(app: &App, order: OrderId) -> Order {
    app.ledger.order(order).await.unwrap().expect("the order is recorded")
}

async fn until_state(app: &TestApp, order: OrderId, state: State) -> Order {
    eventually(&format!("{order} is {}", state.as_str()), async || {
        ledgers(&app.app, order).await.status.state == state
    })
    .await;
    ledgers(&app.app, order).await
}

/// A verified word of the sandbox, of which nobody else knows, that an order was paid.
fn notice(order: &Order, capture: &str) -> Notice {
    let key = CaptureKey::new("sandbox", capture).unwrap();
    let capture = Capture { key, money: order.view().total };
    let told = Told::Captured {
        capture,
        names: Names::Order(order.id),
        fresh: PaymentId(rand::random::<u128>() >> 2),
    };
    Notice { event_id: format!("event {}", rand::random::<u64>()), told }
}

async fn pay(app: &App, order: OrderId, capture: &str) -> Settled {
    let notice = notice(&ledgers(app, order).await, capture);
    match app.ledger.take_notice(notice, app.clock.now()).await.unwrap() {
        Taken::Capture(Decided { this, .. }) => this,
        other => panic!("{other:?}"),
    }
}

/// An order that timed out, as the ledger has it, and the money that came too late.
async fn late(app: &TestApp, clock: &Clock, order: OrderId) -> (Order, PaymentId) {
    clock.advance(PAY_WITHIN);
    until_state(app, order, State::Closed).await;
    match pay(&app.app, order, "late").await {
        Settled::ReviveNeeded { payment, order } => (*order, payment),
        other => panic!("{other:?}"),
    }
}

/// What the gate would still give away.
fn free(app: &App, sale: &TestSale) -> u32 {
    let offer: OfferId = sale.offer().parse().unwrap();
    app.gate.memory.offer(offer).unwrap().free()
}

/// Once nothing is queued, gate and ledger agree: what is not live is free.
async fn assert_units_add_up(app: &TestApp, sale: &TestSale) {
    app.settled().await;
    let counters = app.app.ledger.counters(sale.id.parse().unwrap()).await.unwrap()[0];
    let expected = counters.stock - counters.live_units;
    eventually("the gate has what is not live", async || free(&app.app, sale) == expected).await;
    eventually("nothing is on its way", async || app.app.queue_stats().depth == 0).await;
    let units = &app.stats(sale).await["offers"][0];
    let sum: u64 =
        ["free", "held", "sold", "returning"].map(|part| units[part].as_u64().unwrap()).iter().sum();
    assert_eq!((sum, &units["returning"]), (u64::from(counters.stock), &json!(0)), "{units}");
}

/// A sale like [`draft`] with another time to pay.
fn paid_within(stock: u32, seconds: u32) -> Value {
    let mut draft = draft(stock);
    draft["pay_within_s"] = json!(seconds);
    draft
}
