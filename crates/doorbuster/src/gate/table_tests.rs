//! Tests of the table, beside it and not inside: the interleaving tests compile the table's own source elsewhere.

use proptest::prelude::*;

use super::table::{Entry, Key, Mark, OFFERS_MAX, Table};

const MARKS: [Mark; 4] = [Mark::Vacant, Mark::Pending, Mark::Live, Mark::Ended];

fn key(n: u64) -> Key {
    Key { high: n.wrapping_mul(0x9e37_79b9_7f4a_7c15), low: n }
}

fn entry(order: u128, mark: Mark) -> Entry {
    Entry { mark, order, quantity: 100, offer_no: OFFERS_MAX - 1, pass_expires_at_s: u32::MAX }
}

#[test]
fn an_entry_is_read_back_whole() {
    let table = Table::new();
    for mark in MARKS {
        let written = entry(u128::MAX - 5, mark);
        table.set(key(1), &written, |_| true);
        assert_eq!(table.get(key(1)), Some(written));
    }
    assert!(table.contains(key(1)));
    assert!(!table.contains(key(2)));
}

#[test]
fn growing_loses_nothing_and_stays_small() {
    let table = Table::new();
    for n in 0..50_000 {
        table.set(key(n), &entry(u128::from(n), Mark::Live), |_| true);
    }
    for n in 0..50_000 {
        assert_eq!(table.get(key(n)).map(|entry| entry.order), Some(u128::from(n)));
    }
    assert!(table.bytes() <= 50_000 * 64, "{} bytes", table.bytes());
}

#[test]
fn what_is_not_kept_makes_room() {
    let table = Table::new();
    for n in 0..10_000 {
        let mark = if n % 100 == 0 { Mark::Live } else { Mark::Ended };
        table.set(key(n), &entry(u128::from(n), mark), |entry| entry.mark == Mark::Live);
    }
    assert!(table.bytes() < 1_000 * 40);
    assert!((0..10_000).step_by(100).all(|n| table.contains(key(n))));
    table.retain(|_| false);
    assert!((0..10_000).all(|n| !table.contains(key(n))));
}

proptest! {
    #[test]
    fn it_agrees_with_a_map(steps in prop::collection::vec((0_u64..64, 0_u128..9, 0_usize..4), 0..400)) {
        let table = Table::new();
        let mut map = std::collections::HashMap::new();
        for (n, order, mark) in steps {
            // Equal high words make one long probe sequence: collisions must not mix keys up.
            let key = Key { high: 7, low: n };
            let entry = entry(order, MARKS[mark]);
            table.set(key, &entry, |_| true);
            map.insert(n, entry);
        }
        for n in 0..64 {
            prop_assert_eq!(table.get(Key { high: 7, low: n }), map.get(&n).copied());
        }
    }
}
