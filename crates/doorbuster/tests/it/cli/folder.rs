//! Commands on a data folder whose server does not run: they do what they are asked for, and nothing else happens there.

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags};

use super::*;
use crate::webhooks::{INSIDE, Receiver};

const FILES: [&str; 2] = ["doorbuster.db", "journal.db"];

/// Every row of every table, and the files byte by byte.
#[derive(Debug, PartialEq, Eq)]
struct Contents {
    rows: Vec<String>,
    files: Vec<Vec<u8>>,
}

impl Contents {
    fn of(shop: &Shop) -> Self {
        let paths = FILES.map(|name| shop.folder.path().join(name));
        let rows = paths.iter().flat_map(|path| rows_of(path)).collect();
        Self { rows, files: paths.iter().map(|path| std::fs::read(path).unwrap()).collect() }
    }

    #[track_caller]
    fn assert_same(&self, shop: &Shop, what: &str) {
        let now = Self::of(shop);
        assert_eq!(self.rows, now.rows, "{what}");
        assert!(self.files == now.files, "{what}: the files are others");
    }
}

fn rows_of(path: &Path) -> Vec<String> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut tables =
        connection.prepare("select name from sqlite_master where type = 'table' order by name").unwrap();
    let tables: Vec<String> =
        tables.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    let mut rows = Vec::new();
    for table in tables {
        let mut all = connection.prepare(&format!("select * from {table}")).unwrap();
        let columns = all.column_count();
        let mut found = all.query([]).unwrap();
        while let Some(row) = found.next().unwrap() {
            let values: Vec<ValueRef<'_>> = (0..columns).map(|at| row.get_ref(at).unwrap()).collect();
            rows.push(format!("{table} {values:?}"));
        }
    }
    rows
}

/// What a clock would have done meanwhile: all that is planned is due, all that is to be paid is late.
fn let_time_pass(shop: &Shop) {
    let ledger = Connection::open(shop.folder.path().join(FILES[0])).unwrap();
    let due = [
        "update sales set publish_at = 1 where publish_at is not null",
        "update orders set pay_by = created_at + 1",
    ];
    for sql in due {
        assert_eq!(ledger.execute(sql, []).unwrap(), 1, "{sql}");
    }
}

/// A folder with work for every worker: an event that a receiver lacks, a sale that should be published, an order that
/// should be closed. Answers the ids of the sale that is open and of the webhook.
fn neglected(shop: &Shop, receiver: &Receiver) -> (String, String) {
    sell_one(shop);
    let sale = shop.run_json(&["sale", "list"])["items"][0]["id"].as_str().unwrap().to_owned();
    let webhook = shop.run_json(&["webhooks", "add", &receiver.url(), "--set", INSIDE]);
    let mut planned = crate::app::draft_between(7_200, 10_800, 3);
    planned["publish_at"] = json!((jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1)).to_string());
    let file = shop.folder.path().join("planned.json");
    std::fs::write(&file, planned.to_string()).unwrap();
    shop.run(&["sale", "create", text(&file), "--set", INSIDE]).expect(0);
    shop.run(&["blocks", "strike", "eve", "--set", INSIDE]).expect(0);
    let_time_pass(shop);
    (sale, webhook["webhook"]["id"].as_str().or(webhook["id"].as_str()).unwrap().to_owned())
}

#[test]
fn who_looks_at_a_folder_changes_nothing_there_and_tells_nobody() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let receiver = runtime.block_on(Receiver::willing());
    let shop = Shop::new();
    let (sale, webhook) = neglected(&shop, &receiver);
    let order = shop.run_json(&["orders", "list"])["items"][0]["id"].as_str().unwrap().to_owned();
    // What it says is not asked here: it makes a report that can be looked at.
    shop.run(&["audit"]);
    let before = Contents::of(&shop);
    for look in [
        &["sale", "list"][..],
        &["sale", "show", &sale],
        &["sale", "stats", &sale],
        &["orders", "list"],
        &["orders", "show", &order],
        &["orders", "export"],
        &["payments", "list"],
        &["blocks", "list"],
        &["blocks", "show", "eve"],
        &["webhooks", "list"],
        &["webhooks", "show", &webhook],
        &["events", "tail"],
        &["audit", "--last"],
    ] {
        let ended = shop.run(&[look, &["--set", INSIDE]].concat());
        assert!(!ended.out.is_empty(), "{look:?}: {}", ended.err);
        before.assert_same(&shop, &look.join(" "));
    }
    let block = ["blocks", "set", "bob", "--until", "1h", "--set", INSIDE];
    let said = shop.run(&block).expect(0).err;
    assert!(said.contains("done by the next server"), "{said}");
    let listed = shop.run_json(&["sale", "list"]);
    let states: Vec<_> = listed["items"].as_array().unwrap().iter().map(|sale| &sale["state"]).collect();
    assert_eq!(states, ["draft", "published"], "nor does a change do more than it was asked for");
    assert_eq!(shop.run_json(&["orders", "list"])["items"][0]["state"], "awaiting_payment");
    assert_eq!(receiver.types(), [""; 0]);

    let server = shop.start(&["--set", INSIDE]);
    let told = |kind: &str| receiver.types().iter().any(|told| told == kind);
    for kind in ["sale.created", "buyer.blocked", "sale.published", "order.closed"] {
        testkit::eventually(PATIENCE, || told(kind));
    }
    server.terminate().unwrap();
    end(&server).expect(0);
}

#[test]
fn who_looks_is_told_of_claims_that_only_the_journal_has() {
    let shop = Shop::new();
    shop.run(&["migrate"]).expect(0);
    let sale = shop.run_json(&["sale", "create", text(&shop.draft(7)), "--publish"]);
    let args = ["serve", "--data-dir", shop.path(), "--listen", "127.0.0.1:0", "--set", "demo=true"];
    let dying = with_secrets(program(&args)).env(doorbuster::crash::VARIABLE, "journal.committed");
    let dying = dying.start().unwrap();
    let line = dying.wait_for_line("listening on ", PATIENCE).unwrap();
    buy_one(line.strip_prefix("listening on ").unwrap(), sale["offers"][0]["id"].as_str().unwrap());
    dying.wait(PATIENCE).unwrap();

    let rows = |shop: &Shop| Contents::of(shop).rows;
    let before = rows(&shop);
    let id = sale["id"].as_str().unwrap();
    let stats = shop.run(&["sale", "stats", id, "--json"]).expect(0);
    assert!(stats.err.contains("wait in the journal: 1."), "{}", stats.err);
    assert_eq!(stats.json()["offers"][0]["held"], 1, "{}", stats.out);
    let listed = shop.run(&["orders", "list", "--json"]).expect(0);
    assert_eq!(listed.json()["items"], json!([]), "it is not recorded by a look");
    assert!(listed.err.contains("the next server has recorded them"), "{}", listed.err);
    assert_eq!(before, rows(&shop));
    let server = shop.started();
    let orders = || shop.run_json(&["orders", "list"])["items"].as_array().unwrap().len();
    testkit::eventually(PATIENCE, || orders() == 1);
    server.terminate().unwrap();
    end(&server).expect(0);
    assert_eq!(shop.run(&["orders", "list"]).expect(0).err, "");
}

#[test]
fn a_look_does_not_migrate() {
    let shop = Shop::new();
    shop.run(&["migrate"]).expect(0);
    let ledger = shop.folder.path().join(FILES[0]);
    let version = |version: i64| {
        let connection = Connection::open(&ledger).unwrap();
        connection.pragma_update(None, "user_version", version).unwrap();
    };
    let latest: i64 = Connection::open(&ledger)
        .unwrap()
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .unwrap();
    for (other, advice) in [(latest - 1, "`doorbuster migrate`"), (latest + 1, "Use the newer program")] {
        version(other);
        let refused = shop.run(&["sale", "list"]).expect(1).err;
        assert!(refused.contains(advice), "{refused}");
    }
    version(latest);
    shop.run(&["sale", "list"]).expect(0);
}

#[test]
fn a_look_is_refused_beside_a_server_that_is_not_reached_and_keeps_none_from_starting() {
    let shop = Shop::new();
    let server = shop.started();
    std::fs::remove_file(shop.folder.path().join("run.json")).unwrap();
    let refused = shop.run(&["sale", "list"]).expect(1).err;
    assert!(refused.contains(&format!("another doorbuster (process {})", server.id())), "{refused}");
    server.terminate().unwrap();
    end(&server).expect(0);
    let watching = ["sale", "stats", "--watch", "--data-dir", shop.path()];
    let sale = shop.run_json(&["sale", "create", text(&shop.draft(7)), "--publish"]);
    let watching = [&watching[..], &[sale["id"].as_str().unwrap()]].concat();
    let watching = with_secrets(program(&watching)).start().unwrap();
    watching.wait_for_line("", PATIENCE).unwrap();
    let server = shop.started();
    for process in [&server, &watching] {
        process.terminate().unwrap();
    }
    end(&server).expect(0);
    end(&watching);
}
