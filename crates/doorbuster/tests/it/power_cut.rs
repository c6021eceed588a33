//! The whole engine on a disk that breaks: for every n-th operation of a fixed workload, cut the power or fail the
//! operation, open what survived, and hold it against what buyers were told.

mod heavy {
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use doorbuster::app::{self, App, Workers};
    use doorbuster::clock::Clock;
    use doorbuster::gate::{Claimed, Try};
    use rules::admission::Verdict;
    use rules::id::{OfferId, OrderId, SaleId};
    use rules::sale::{SaleAction, SaleDraft};
    use testkit::disk::{Disk, Fault, Kind, OperationKind, PowerCut};
    use tokio_util::sync::CancellationToken;

    use crate::app::{draft, settings};

    const STOCK: u32 = 30;
    const BUYERS: u128 = 12;

    struct Engine {
        app: Arc<App>,
        workers: Workers,
    }

    impl Engine {
        async fn open(disk: &Disk) -> anyhow::Result<Self> {
            let settings = settings(&PathBuf::from("shop"), &["ledger=sqlite:shop/doorbuster.db"]);
            let shutdown = CancellationToken::new();
            let (app, workers) =
                app::open(settings, Clock::system(), shutdown, Some(disk.vfs_name())).await?;
            Ok(Self { app, workers })
        }

        /// Ends it, waiting for the clerk only while the disk still works, and closes every file.
        async fn close(self, patience: Duration) {
            self.app.shutdown.cancel();
            self.workers.end(&self.app, patience).await;
            let ledger = self.app.ledger.clone();
            drop(self.app);
            tokio::task::spawn_blocking(move || ledger.close()).await.unwrap();
        }

        async fn open_sale(&self) {
            let draft: SaleDraft = serde_json::from_value(draft(STOCK)).unwrap();
            let sale = draft.into_sale(SaleId(1), || OfferId(2)).unwrap();
            self.app.ledger.create_sale(sale, None, self.app.clock.now()).await.unwrap();
            self.app.act_on_sale(SaleId(1), SaleAction::Publish).await.unwrap();
        }

        async fn claim(&self, number: u128) -> Claimed {
            let now = self.app.clock.now();
            let buyer = format!("buyer {number}");
            let offer = self.app.gate.memory.offer(OfferId(2)).expect("the offer is seeded");
            let order = OrderId((number + 1) << 40);
            let attempt = Try { buyer: &buyer, order, quantity: 1, pass_expires_at: now.plus_s(3_000) };
            self.app.gate.claim(&offer, &attempt, now).await
        }

        /// Waits until the clerk has recorded everything, or the disk has failed.
        async fn settle(&self) -> bool {
            for _ in 0..400 {
                if self.app.gate.memory.room().taken() == 0 {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            false
        }
    }

    /// What each buyer was told.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Told {
        Queued,
        Busy,
        Unsure,
    }

    fn told(claimed: &Claimed) -> Told {
        match claimed {
            Claimed::Queued(_) | Claimed::Answer(Verdict::Repeat) => Told::Queued,
            Claimed::Answer(_) => Told::Busy,
            Claimed::Unsure => Told::Unsure,
        }
    }

    /// Buyers one after the other, in small bursts, with a cancel in between.
    async fn workload(engine: &Engine) -> BTreeMap<u128, Told> {
        let mut history = BTreeMap::new();
        for burst in 0..4 {
            let numbers: Vec<u128> = (0..BUYERS / 4).map(|place| burst * (BUYERS / 4) + place).collect();
            let answers =
                futures_util::future::join_all(numbers.iter().map(|number| engine.claim(*number))).await;
            history.extend(numbers.into_iter().zip(answers.iter().map(told)));
            if !engine.settle().await {
                break;
            }
        }
        history
    }

    /// A disk with an open sale, quiet.
    async fn prepared(powersafe: bool) -> Disk {
        let disk = if powersafe { Disk::powersafe() } else { Disk::new() };
        let engine = Engine::open(&disk).await.unwrap();
        engine.open_sale().await;
        engine.close(Duration::from_secs(5)).await;
        disk
    }

    /// What survived keeps every promise: nothing answered is missing, nothing that was certainly refused is there,
    /// the counter is the sum of the orders, and the rest of the stock can be sold to the last unit.
    async fn check(disk: &Disk, history: &BTreeMap<u128, Told>, what: &str) {
        let engine =
            Engine::open(disk).await.unwrap_or_else(|error| panic!("{what}: does not open: {error:#}"));
        assert!(engine.settle().await, "{what}: the journal does not drain");
        for (number, told) in history {
            let order = engine.app.ledger.order(OrderId((number + 1) << 40)).await.unwrap();
            match told {
                Told::Queued => {
                    assert!(order.is_some(), "{what}: buyer {number} was told queued and has no order")
                }
                Told::Busy => {
                    assert!(order.is_none(), "{what}: buyer {number} was told busy and has an order")
                }
                Told::Unsure => {}
            }
        }
        let books = engine.app.ledger.counters(SaleId(1)).await.unwrap()[0];
        let free = engine.app.gate.memory.offer(OfferId(2)).unwrap().free();
        assert_eq!(free + books.live_units, STOCK, "{what}: units are stranded or doubled");
        for number in 0..u128::from(free) {
            let claimed = engine.claim(1_000 + number).await;
            assert_eq!(told(&claimed), Told::Queued, "{what}: {claimed:?}");
        }
        assert!(matches!(engine.claim(5_000).await, Claimed::Answer(Verdict::SoldOut)), "{what}");
        assert!(engine.settle().await, "{what}");
        assert_eq!(
            engine.app.metrics.ledger_refusals.get(),
            0,
            "{what}: the ledger refused a claim of the gate"
        );
        engine.close(Duration::from_secs(5)).await;
        integrity(disk, what);
    }

    fn integrity(disk: &Disk, what: &str) {
        for file in ["shop/doorbuster.db", "shop/journal.db"] {
            let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
            let connection =
                rusqlite::Connection::open_with_flags_and_vfs(file, flags, disk.vfs_name()).unwrap();
            let ok: String = connection.query_row("pragma integrity_check", [], |row| row.get(0)).unwrap();
            assert_eq!(ok, "ok", "{what}: {file}");
        }
    }

    /// How many operations the workload takes when nothing fails.
    async fn operations() -> u64 {
        let disk = prepared(false).await;
        let before = disk.operations();
        let engine = Engine::open(&disk).await.unwrap();
        let history = workload(&engine).await;
        assert!(history.values().all(|told| *told == Told::Queued), "{history:?}");
        engine.close(Duration::from_secs(5)).await;
        disk.operations() - before
    }

    /// Breaks the n-th operation for every n in steps of `stride`, and counts how often the fault was really met.
    async fn break_every(stride: u64, kind: impl Fn(u64) -> Kind, powersafe: bool) -> u64 {
        let mut fired = 0;
        let all = operations().await;
        for n in (1..=all).step_by(usize::try_from(stride).unwrap()) {
            let disk = prepared(powersafe).await;
            disk.plan(Fault::at(n, kind(n)));
            let mut history = BTreeMap::new();
            if let Ok(engine) = Engine::open(&disk).await {
                history = workload(&engine).await;
                engine.close(Duration::from_millis(20)).await;
            }
            fired += u64::from(disk.fired());
            let what = format!("operation {n} of {all}, {:?}", kind(n));
            let survived = disk.power_cut(PowerCut::DropUnsynced);
            check(&survived, &history, &what).await;
        }
        fired
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_power_cut_at_every_operation_loses_nothing_answered() {
        assert!(break_every(1, |_| Kind::Crash(PowerCut::DropUnsynced), false).await > 20);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn torn_pages_at_every_operation_lose_nothing_answered() {
        assert!(break_every(1, |n| Kind::Crash(PowerCut::Torn { seed: n }), false).await > 20);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failed_operation_is_never_told_as_success() {
        assert!(break_every(1, |_| Kind::Eio, true).await > 20);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_error_after_success_is_told_as_unsure() {
        assert!(break_every(1, |_| Kind::ErrorAfterSuccess, true).await > 20);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_full_disk_says_busy_and_recovers_when_space_returns() {
        let disk = prepared(false).await;
        let engine = Engine::open(&disk).await.unwrap();
        disk.plan(Fault::at(1, Kind::Enospc).on(OperationKind::Write).of_file("journal.db-wal"));
        assert_eq!(told(&engine.claim(0).await), Told::Busy);
        assert_eq!(engine.app.gate.memory.offer(OfferId(2)).unwrap().free(), STOCK);
        disk.free_space();
        assert_eq!(told(&engine.claim(0).await), Told::Queued);
        assert!(engine.settle().await);
        engine.close(Duration::from_secs(5)).await;
        assert!(disk.fired());
        check(&disk, &BTreeMap::from([(0, Told::Queued)]), "after a full disk").await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_ledger_without_space_keeps_the_claims_and_catches_up() {
        let disk = prepared(false).await;
        let engine = Engine::open(&disk).await.unwrap();
        disk.plan(Fault::at(1, Kind::Enospc).on(OperationKind::Write).of_file("doorbuster.db-wal"));
        assert_eq!(told(&engine.claim(0).await), Told::Queued);
        testkit::eventually(Duration::from_secs(5), || disk.fired());
        assert_eq!(engine.app.gate.memory.room().taken(), 1);
        disk.free_space();
        for _ in 0..500 {
            if engine.settle().await {
                break;
            }
        }
        assert!(engine.app.ledger.order(OrderId(1 << 40)).await.unwrap().is_some());
        engine.close(Duration::from_secs(5)).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failed_sync_of_the_journal_stops_the_engine_and_restores_nothing() {
        let disk = prepared(true).await;
        let mut engine = Engine::open(&disk).await.unwrap();
        disk.plan(Fault::at(1, Kind::Eio).on(OperationKind::Sync).of_file("journal.db-wal"));
        assert_eq!(told(&engine.claim(0).await), Told::Unsure);
        assert_eq!(engine.app.gate.memory.offer(OfferId(2)).unwrap().free(), STOCK - 1);
        let failure = engine.workers.failure().await.to_string();
        assert!(failure.contains("can no longer be trusted"), "{failure}");
        assert_eq!(told(&engine.claim(1).await), Told::Busy);
        engine.close(Duration::ZERO).await;
        check(&disk, &BTreeMap::from([(0, Told::Unsure), (1, Told::Busy)]), "after a failed sync").await;
    }
}
