//! Audits: every kind of discrepancy planted, found, and mended or named; audits beside a storm without a false alarm;
//! what operators, receivers and scripts see of it.

/// Discrepancies in the files of a server that does not run.
mod folder;

/// Discrepancies between a running server's gate and its ledger, and work that nobody does.
mod gate;

/// What operators, receivers and scripts see.
mod told;

/// A thousand audits beside buyers, cancels, payments and stock changes.
mod beside;

use doorbuster::ledger::SqliteLedger;
use doorbuster::ledger::money::{Names, NewPayment, Notice, PaymentStarted, Taken, Told};
use rules::audit::Kind;
use rules::buyer::BuyerId;
use rules::id::{OrderId, PaymentId};
use rules::money::Money;
use rules::payment::{Capture, CaptureKey};
use rules::time::UnixMs;
use rules::wire::{AuditRequest, AuditView};
use serde_json::Value;

use crate::app::TestApp;

const PRICE: i64 = 149_900;

fn buyer(name: &str) -> BuyerId {
    BuyerId::parse(name).unwrap()
}

/// A recorded order.
async fn bought(app: &TestApp, offer: &str, name: &str, quantity: u32) -> OrderId {
    let person = app.buyer(name);
    let order = person.buy(offer, quantity, 202).await;
    let id = order["id"].as_str().unwrap();
    person.order(id).await;
    app.settled().await;
    id.parse().unwrap()
}

fn capture_notice(event: &str, names: Names, amount: i64) -> Notice {
    let key = CaptureKey::new("sandbox", event).unwrap();
    let capture = Capture { key, money: Money { amount, currency: "CNY".parse().unwrap() } };
    let fresh = PaymentId(rand::random());
    Notice { event_id: event.to_owned(), told: Told::Captured { capture, names, fresh } }
}

/// Pays an order in the ledger, as a provider's callback would.
async fn pay(ledger: &SqliteLedger, order: OrderId, name: &str, quantity: i64, now: UnixMs) -> PaymentId {
    let id = PaymentId(rand::random());
    let wanted = NewPayment { id, order, buyer: buyer(name), provider: "sandbox".to_owned() };
    let started = ledger.start_payment(wanted, now).await.unwrap();
    assert!(matches!(started, PaymentStarted::New { .. }), "{started:?}");
    let notice = capture_notice(&id.to_string(), Names::Payment(id.to_string()), PRICE * quantity);
    let taken = ledger.take_notice(notice, now).await.unwrap();
    assert!(matches!(taken, Taken::Capture(_)), "{taken:?}");
    id
}

/// What was found: kind, offer and units.
fn findings(view: &AuditView) -> Vec<(Kind, Option<String>, i64)> {
    let of = |finding: &rules::wire::AuditFinding| {
        (finding.kind, finding.offer_id.map(|offer| offer.to_string()), finding.units)
    };
    view.findings.iter().map(of).collect()
}

async fn audit(app: &TestApp, request: AuditRequest) -> AuditView {
    let view = app.app.audit(request).await.unwrap();
    assert_eq!(view.problem, None);
    view
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap().to_owned()
}
