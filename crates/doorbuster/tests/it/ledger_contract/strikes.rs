//! What every ledger keeps of those who did not pay.

use std::sync::{Arc, Mutex};

use doorbuster::ledger::money::BuyerRecord;
use doorbuster::ledger::{Answer, Block, KeyedAnswer};
use rules::id::OrderId;
use rules::strike::{Cause, Policy, standing};
use rules::time::UnixMs;

use super::deadlines::{PAY_BY, sweep};
use super::{Books, NOW, buyer, claim, kinds, record, sqlite};

const POLICY: Policy = Policy { limit: 3, window_days: 30, block_hours: 72 };

async fn record_of(books: &Books, name: &str) -> BuyerRecord {
    books.ledger.record_of(buyer(name), UnixMs(0)).await.unwrap()
}

async fn three_strikes_block_and_lifting_them_ends_the_block(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1), claim(2, 12, "bob", 1)]).await;
    sweep(&books, PAY_BY).await;
    let add = |note: &str| books.ledger.add_strike(buyer("ann"), Some(note.into()), None, PAY_BY.plus_s(1));
    let by_hand = add("sold it on").await.unwrap();
    add("again").await.unwrap();
    let rows = books.ledger.strikes_of(buyer("ann"), 10).await.unwrap();
    let causes: Vec<Cause> = rows.iter().map(|row| row.strike.cause).collect();
    assert_eq!(causes, [Cause::Operator, Cause::Operator, Cause::Unpaid(OrderId(11))]);
    assert_eq!((&rows[1], rows[1].note.as_deref()), (&by_hand, Some("sold it on")));
    assert_eq!(books.ledger.strikes_of(buyer("ann"), 1).await.unwrap(), rows[..1]);

    let now = PAY_BY.plus_s(2);
    let ann = record_of(&books, "ann").await;
    let blocked = standing(POLICY, &ann.strikes, ann.operator_block_until, now);
    assert_eq!((blocked.strikes, blocked.blocked_until), (3, Some(PAY_BY.plus_s(1 + 72 * 3_600))));
    let lift = |name: &str| books.ledger.lift_strike(buyer(name), by_hand.no, now);
    assert!(!lift("bob").await.unwrap(), "it is not bob's");
    assert!(lift("ann").await.unwrap());
    assert!(!lift("ann").await.unwrap(), "it was lifted before");
    let ann = record_of(&books, "ann").await;
    assert_eq!(standing(POLICY, &ann.strikes, None, now).blocked_until, None);
    assert_eq!(books.ledger.lift_strikes(buyer("ann"), now).await.unwrap(), 2);
    assert_eq!(books.ledger.lift_strikes(buyer("ann"), now).await.unwrap(), 0);
    let rows = books.ledger.strikes_of(buyer("ann"), 10).await.unwrap();
    assert!(rows.iter().all(|row| row.strike.lifted_at == Some(now)), "they stay as history: {rows:?}");
    assert_eq!(record_of(&books, "bob").await.strikes.len(), 1, "bob's are his own");
    assert_eq!(kinds(&books).iter().filter(|kind| *kind == "buyer.strike_lifted").count(), 2);
}

async fn what_a_buyers_standing_is_made_of_is_read_at_once(books: Books) {
    assert_eq!(record_of(&books, "ann").await, BuyerRecord::default());
    books.ledger.add_strike(buyer("ann"), None, None, NOW).await.unwrap();
    books.ledger.add_strike(buyer("ann"), None, None, NOW.plus_s(10)).await.unwrap();
    books.ledger.add_strike(buyer("bob"), None, None, NOW.plus_s(20)).await.unwrap();
    let block = Block { buyer: buyer("ann"), until: NOW.plus_s(60), note: None };
    books.ledger.block(block, NOW).await.unwrap();
    let ann = books.ledger.record_of(buyer("ann"), NOW.plus_s(1)).await.unwrap();
    assert_eq!((ann.strikes.len(), ann.operator_block_until), (1, Some(NOW.plus_s(60))));
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let into = Arc::clone(&seen);
    let visit = move |row: doorbuster::ledger::money::StrikeRow| {
        into.lock().unwrap().push(row.buyer.as_str().to_owned());
    };
    books.ledger.strikes_since(NOW.plus_s(1), visit).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["ann", "bob"]);
}

async fn a_strike_and_the_answer_to_its_request_are_kept_together(books: Books) {
    let answer = Answer { request_digest: vec![1], status: 201, body: "{}".into() };
    let keyed = KeyedAnswer { key: "k".into(), answer: answer.clone() };
    books.ledger.add_strike(buyer("ann"), None, Some(keyed), NOW).await.unwrap();
    assert_eq!(books.ledger.answer("k".into()).await.unwrap(), Some(answer));
}

/// The last line against a second strike for one order.
async fn one_order_strikes_once(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    sweep(&books, PAY_BY).await;
    let file = rusqlite::Connection::open(books.ledger.path()).unwrap();
    let second = file.execute("insert into strikes (buyer, order_no, struck_at) values ('ann', 1, 1)", []);
    let code = second.unwrap_err().sqlite_error_code();
    assert_eq!(code, Some(rusqlite::ErrorCode::ConstraintViolation));
}

contract!(
    sqlite_ledger,
    sqlite,
    three_strikes_block_and_lifting_them_ends_the_block(10),
    what_a_buyers_standing_is_made_of_is_read_at_once(10),
    a_strike_and_the_answer_to_its_request_are_kept_together(10),
    one_order_strikes_once(10),
);
