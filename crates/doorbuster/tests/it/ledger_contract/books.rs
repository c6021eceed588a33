//! A ledger under test, and what the contract does past it: looks at its tables, plants what no call would write, closes it
//! and opens it again. This file alone knows which database that is.

use std::path::Path;

use doorbuster::ledger::SqliteLedger;
use rules::sale::{Sale, SaleAction};
use tempfile::TempDir;

use super::NOW;

/// Who the ledger is when it is made.
const INCARNATION: [u8; 16] = [7; 16];

pub struct Books {
    pub ledger: SqliteLedger,
    folder: TempDir,
}

/// An event, as its row has it.
#[derive(Debug)]
pub struct Event {
    pub kind: String,
    order_no: Option<i64>,
    seq: Option<u32>,
    pub data: String,
}

impl Event {
    /// Its number, if it is one of this order's facts.
    pub fn of(&self, order_no: u64) -> Option<u32> {
        self.seq.filter(|_| self.order_no == i64::try_from(order_no).ok())
    }
}

impl Books {
    /// A new ledger with this sale, published.
    pub async fn with(sale: Sale) -> Self {
        let books = Self::in_folder(tempfile::tempdir().unwrap());
        let id = sale.id;
        books.ledger.create_sale(sale, None, NOW).await.unwrap();
        books.ledger.act_on_sale(id, SaleAction::Publish, NOW).await.unwrap();
        books
    }

    /// The ledger in this folder, or a new one.
    pub fn in_folder(folder: TempDir) -> Self {
        let ledger = SqliteLedger::open(&Self::file_in(folder.path()), None, INCARNATION).unwrap();
        Self { ledger, folder }
    }

    /// Where the ledger of a folder is.
    pub fn file_in(folder: &Path) -> std::path::PathBuf {
        folder.join("ledger.db")
    }

    /// The same ledger after a restart.
    pub fn reopened(self) -> Self {
        let Self { ledger, folder } = self;
        ledger.close();
        Self::in_folder(folder)
    }

    /// Every event, oldest first.
    pub fn events(&self) -> Vec<Event> {
        let file = self.file();
        let mut statement =
            file.prepare("select type, order_no, seq, data from events order by event_no").unwrap();
        let rows = statement.query_map([], |row| {
            Ok(Event { kind: row.get(0)?, order_no: row.get(1)?, seq: row.get(2)?, data: row.get(3)? })
        });
        rows.unwrap().map(Result::unwrap).collect()
    }

    /// Changes tables past the ledger, as a defect or a stranger would.
    pub fn plant(&self, sql: &str) {
        self.file().execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// So many events of the type `test`; `sale_no` and `at` are SQL, over their number `i` from 1 on.
    pub fn plant_events(&self, count: u32, sale_no: &str, at: &str) {
        self.plant(&format!(
            "with recursive numbers (i) as (select 1 union all select i + 1 from numbers where i < {count})
             insert into events (type, at, sale_no, data) select 'test', {at}, {sale_no}, '{{}}' from numbers"
        ));
    }

    /// That the tables themselves refuse this, by one of their rules.
    #[track_caller]
    pub fn assert_refused(&self, sql: &str) {
        let error = self.file().execute(sql, []).expect_err(sql);
        let code = error.sqlite_error_code();
        assert_eq!(code, Some(rusqlite::ErrorCode::ConstraintViolation), "{sql}: {error}");
    }

    /// The numbers in the one row that this finds.
    pub fn numbers<const COLUMNS: usize>(&self, sql: &str) -> [i64; COLUMNS] {
        let read = |row: &rusqlite::Row<'_>| Ok(std::array::from_fn(|column| row.get(column).unwrap()));
        self.file().query_row(sql, [], read).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    fn file(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.ledger.path()).unwrap()
    }
}
