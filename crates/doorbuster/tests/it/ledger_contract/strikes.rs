//! What every ledger keeps of those who did not pay.

use std::sync::{Arc, Mutex};

use doorbuster::ledger::money::{BuyerRecord, Lapsed, LetIn, Lifter, Mark, StrikeOf, StrikeRow};
use doorbuster::ledger::{Answer, Block, KeyedAnswer};
use rules::deadline::{self, Asked, Excuses, Outage, Span};
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
    let add =
        |note: &str| books.ledger.add_strike(buyer("ann"), Some(note.into()), PAY_BY.plus_s(1), |_| None);
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
    assert_eq!(lift("bob").await.unwrap(), None, "it is not bob's");
    assert_eq!(lift("ann").await.unwrap(), Some(StrikeOf::Operator(by_hand.no)));
    assert_eq!(lift("ann").await.unwrap(), None, "it was lifted before");
    let ann = record_of(&books, "ann").await;
    assert_eq!(standing(POLICY, &ann.strikes, None, now).blocked_until, None);
    let let_in = || books.ledger.let_in(buyer("ann"), POLICY, now);
    assert_eq!(let_in().await.unwrap(), LetIn::default(), "strikes that do not block stay");
    add("and again").await.unwrap();
    let lifted = let_in().await.unwrap();
    assert_eq!((lifted.unblocked, lifted.lifted.len()), (false, 3));
    assert!(lifted.lifted.contains(&StrikeOf::Order(1)), "{lifted:?}");
    assert_eq!(let_in().await.unwrap(), LetIn::default());
    let rows = books.ledger.strikes_of(buyer("ann"), 10).await.unwrap();
    let lifted =
        |row: &StrikeRow| (row.strike.lifted_at, row.lifted_by) == (Some(now), Some(Lifter::Operator));
    assert!(rows.iter().all(lifted), "they stay as history: {rows:?}");
    assert_eq!(record_of(&books, "bob").await.strikes.len(), 1, "bob's are his own");
    assert_eq!(kinds(&books).iter().filter(|kind| *kind == "buyer.strike_lifted").count(), 4, "one for each");
}

async fn a_block_by_hand_is_ended_and_told_once(books: Books) {
    let block = |until| Block { buyer: buyer("ann"), until, note: Some("a \"bot\"".into()) };
    books.ledger.block(block(NOW.plus_s(60)), NOW).await.unwrap();
    let let_in = |now| books.ledger.let_in(buyer("ann"), POLICY, now);
    assert_eq!(let_in(NOW.plus_s(60)).await.unwrap(), LetIn::default(), "it was over");
    books.ledger.block(block(NOW.plus_s(90)), NOW).await.unwrap();
    assert!(let_in(NOW).await.unwrap().unblocked);
    assert!(!let_in(NOW).await.unwrap().unblocked);
    assert_eq!(kinds(&books), ["buyer.blocked", "buyer.blocked", "buyer.unblocked"]);
    let told: serde_json::Value = serde_json::from_str(&books.events().pop().unwrap().data).unwrap();
    assert_eq!(told, serde_json::json!({"buyer": "ann"}));
}

/// Those who may be blocked are found by name, page by page.
async fn who_may_be_blocked_is_found(books: Books) {
    for name in ["bob", "ann"] {
        for _ in 0..3 {
            books.ledger.add_strike(buyer(name), None, NOW, |_| None).await.unwrap();
        }
    }
    books.ledger.add_strike(buyer("cyd"), None, NOW, |_| None).await.unwrap();
    let block = Block { buyer: buyer("dan"), until: NOW.plus_s(60), note: Some("bot".into()) };
    books.ledger.block(block, NOW).await.unwrap();
    let find = async |strikes, after: Option<&str>, limit| {
        let times = (NOW, POLICY.matters_since(NOW));
        let after = after.map(str::to_owned);
        let (found, more) = books.ledger.block_candidates(times, strikes, after, limit).await.unwrap();
        let names: Vec<String> = found.iter().map(|found| found.buyer.as_str().to_owned()).collect();
        (names.join(" "), found.last().and_then(|last| last.note.clone()), more)
    };
    assert_eq!(find(3, None, 2).await, ("ann bob".into(), None, true));
    assert_eq!(find(3, Some("bob"), 2).await, ("dan".into(), Some("bot".into()), false));
    assert_eq!(find(1, None, 10).await.0, "ann bob cyd dan");
    assert_eq!(find(0, None, 10).await.0, "dan", "a limit of 0 never blocks");
}

/// A rehearsal's buyers play along: whoever does not pay there has done nothing wrong.
async fn a_rehearsal_strikes_nobody(books: Books) {
    books.plant("update sales set rehearsal = 1");
    record(&books, vec![claim(1, 11, "ann", 1), claim(2, 12, "bob", 1)]).await;
    super::payments::start(&books, 12, "bob", "sandbox", 102).await;
    let batch = books.ledger.close_due(PAY_BY, 10, Excuses::default(), Vec::new()).await.unwrap();
    assert_eq!((batch.closed.len(), batch.closed[0].struck), (1, false));
    let not_paid = Asked::Answered { answer: deadline::Answer::NotPaid, at: PAY_BY };
    let lapsed = books.ledger.close_asked(OrderId(12), not_paid, Excuses::default(), PAY_BY).await.unwrap();
    let Lapsed::Closed { released, .. } = lapsed else { panic!("{lapsed:?}") };
    assert!(!released.struck);
    for name in ["ann", "bob"] {
        assert_eq!(record_of(&books, name).await.strikes, []);
    }
    assert!(kinds(&books).iter().all(|kind| kind.starts_with("order.")));
}

/// What a close answers is what memory is told.
async fn a_close_says_who_was_struck(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    books.ledger.record_orders(vec![claim(2, 12, "bob", 1)], NOW.plus_s(600)).await.unwrap();
    let outage = Outage::everywhere(Span { from: NOW.plus_s(10), until: NOW.plus_s(200) });
    let excuses = Excuses::of([outage], ["stripe"]);
    let batch = books.ledger.close_due(PAY_BY.plus_s(600), 10, excuses, Vec::new()).await.unwrap();
    let struck: Vec<(u128, bool)> = batch.closed.iter().map(|one| (one.order.id.0, one.struck)).collect();
    assert_eq!(struck, [(11, false), (12, true)]);
    assert_eq!(batch.closed[1].order.closed_at, Some(PAY_BY.plus_s(600)), "when it was given");
}

async fn what_a_buyers_standing_is_made_of_is_read_at_once(books: Books) {
    assert_eq!(record_of(&books, "ann").await, BuyerRecord::default());
    for (name, at) in [("ann", NOW), ("ann", NOW.plus_s(10)), ("bob", NOW.plus_s(20))] {
        books.ledger.add_strike(buyer(name), None, at, |_| None).await.unwrap();
    }
    let block = Block { buyer: buyer("ann"), until: NOW.plus_s(60), note: None };
    books.ledger.block(block, NOW).await.unwrap();
    let ann = books.ledger.record_of(buyer("ann"), NOW.plus_s(1)).await.unwrap();
    assert_eq!((ann.strikes.len(), ann.operator_block_until), (1, Some(NOW.plus_s(60))));
    let seen: Arc<Mutex<Vec<(String, StrikeOf, UnixMs)>>> = Arc::default();
    let into = Arc::clone(&seen);
    let visit = move |mark: &Mark<'_>| into.lock().unwrap().push((mark.buyer.to_owned(), mark.of, mark.at));
    books.ledger.strikes_since(NOW.plus_s(1), visit).await.unwrap();
    let expected = [
        ("ann".to_owned(), StrikeOf::Operator(2), NOW.plus_s(10)),
        ("bob".to_owned(), StrikeOf::Operator(3), NOW.plus_s(20)),
    ];
    assert_eq!(*seen.lock().unwrap(), expected);
}

async fn a_strike_and_the_answer_to_its_request_are_kept_together(books: Books) {
    let answer = Answer { request_digest: vec![1], status: 201, body: "{}".into() };
    let keyed = KeyedAnswer { key: "k".into(), answer: answer.clone() };
    books.ledger.add_strike(buyer("ann"), None, NOW, move |_| Some(keyed)).await.unwrap();
    assert_eq!(books.ledger.answer("k".into()).await.unwrap(), Some(answer));
}

/// The last line against a second strike for one order.
async fn one_order_strikes_once(books: Books) {
    record(&books, vec![claim(1, 11, "ann", 1)]).await;
    sweep(&books, PAY_BY).await;
    books.assert_refused("insert into strikes (buyer, order_no, struck_at) values ('ann', 1, 1)");
}

contract!(
    sqlite_ledger,
    sqlite,
    three_strikes_block_and_lifting_them_ends_the_block(10),
    what_a_buyers_standing_is_made_of_is_read_at_once(10),
    a_strike_and_the_answer_to_its_request_are_kept_together(10),
    one_order_strikes_once(10),
    a_block_by_hand_is_ended_and_told_once(10),
    who_may_be_blocked_is_found(10),
    a_rehearsal_strikes_nobody(10),
    a_close_says_who_was_struck(10),
);
