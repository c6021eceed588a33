//! The whole engine on a disk that breaks: for every n-th operation of a fixed workload, and for some operation of many
//! random ones, cut the power or fail the operation, open what survived, and hold it against what was answered.

mod heavy {
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use doorbuster::app::{self, App, Workers};
    use doorbuster::clock::Clock;
    use doorbuster::desk::{CancelAnswer, Seen, StockAnswer};
    use doorbuster::gate::{Claimed, Try};
    use doorbuster::ledger::{LedgerError, LedgerResult};
    use rand::RngExt as _;
    use rand::rngs::StdRng;
    use rules::admission::Verdict;
    use rules::buyer::BuyerId;
    use rules::id::{OfferId, OrderId, SaleId};
    use rules::order::State;
    use rules::sale::{SaleAction, SaleDraft};
    use testkit::disk::{Disk, Fault, Kind, OperationKind, PowerCut};
    use tokio_util::sync::CancellationToken;

    use crate::app::{PATIENCE, breakable, draft, settings};
    use crate::torture::{Torture, keep_disk};

    const STOCK: u32 = 30;

    /// How many operations the sweeps that are not whole every day break.
    const SWEPT_EVERY_DAY: u64 = 12;

    /// However the disk breaks, everybody hears something. Generous: the machine may do other work for a while.
    const ANSWERED_WITHIN: Duration = Duration::from_secs(90);

    /// Whoever records nothing for so long is taken to have met a disk that has failed.
    const FAILED: Duration = Duration::from_millis(400);

    struct Engine {
        app: Arc<App>,
        workers: Workers,
    }

    impl Engine {
        async fn open(disk: &Disk) -> anyhow::Result<Self> {
            Self::open_with(disk, None).await
        }

        /// With logs that are copied into their files again and again.
        async fn copying(disk: &Disk) -> Self {
            Self::open_with(disk, Some(4)).await.unwrap()
        }

        async fn open_with(disk: &Disk, copy_pages: Option<u32>) -> anyhow::Result<Self> {
            let settings = settings(&PathBuf::from("shop"), &["ledger=sqlite:shop/doorbuster.db"]);
            let shutdown = CancellationToken::new();
            let (app, workers) =
                app::open(settings, Clock::system(), shutdown, Some(&breakable(disk, copy_pages))).await?;
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
            let buyer = buyer(number);
            let offer = self.app.gate.memory.offer(OfferId(2)).expect("the offer is seeded");
            let pass_expires_at = now.plus_s(3_000);
            let attempt = Try { buyer: buyer.as_str(), order: order(number), quantity: 1, pass_expires_at };
            self.app.gate.claim(&offer, &attempt, now).await
        }

        /// Waits until the clerk has recorded everything, or has not for so long.
        async fn settle(&self, patience: Duration) -> bool {
            let begun = std::time::Instant::now();
            loop {
                let late = begun.elapsed() >= patience;
                if self.app.gate.memory.room().taken() == 0 {
                    return true;
                }
                if late {
                    return false;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    fn buyer(number: u128) -> BuyerId {
        BuyerId::parse(&format!("buyer {number}")).unwrap()
    }

    fn order(number: u128) -> OrderId {
        OrderId((number + 1) << 40)
    }

    /// What is asked of the engine.
    #[derive(Clone, Debug)]
    enum Step {
        /// These buyers at once.
        Claims(Vec<u128>),
        Cancel(u128),
        Stock(i64),
    }

    /// Two small bursts of buyers, with a cancel and two stock changes in between.
    fn fixed_workload() -> Vec<Step> {
        let burst = |from: u128| Step::Claims((from..from + 3).collect());
        let (more, less) = (Step::Stock(4), Step::Stock(-2));
        vec![burst(0), more, Step::Cancel(1), less, burst(3)]
    }

    /// A few steps of every kind; at most 25 buyers, so that the stock is never the reason of a refusal.
    fn random_workload(chance: &mut StdRng) -> Vec<Step> {
        let (mut steps, mut buyers) = (Vec::new(), 0);
        for _ in 0..chance.random_range(2..6) {
            let burst = chance.random_range(1..=5);
            steps.push(Step::Claims((buyers..buyers + burst).collect()));
            buyers += burst;
            match chance.random_range(0..4) {
                0 => steps.push(Step::Cancel(chance.random_range(0..buyers))),
                1 => steps.push(Step::Stock(chance.random_range(1..5))),
                2 => steps.push(Step::Stock(-1)),
                _ => {}
            }
        }
        steps
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

    /// Whether a change of the desk was made.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Made {
        Yes,
        No,
        Unsure,
    }

    fn made<T>(answer: LedgerResult<T>, is_done: impl Fn(&T) -> bool) -> Made {
        match answer {
            Ok(answer) if is_done(&answer) => Made::Yes,
            Ok(_) | Err(LedgerError::Unavailable(_)) => Made::No,
            Err(LedgerError::Unknown(_) | LedgerError::NotFollowed(_) | LedgerError::Failed(_)) => {
                Made::Unsure
            }
        }
    }

    /// What was answered before the disk broke.
    #[derive(Debug, Default)]
    struct History {
        claims: BTreeMap<u128, Told>,
        cancels: BTreeMap<u128, Made>,
        changes: Vec<(i64, Made)>,
    }

    impl History {
        fn of(claims: impl IntoIterator<Item = (u128, Told)>) -> Self {
            Self { claims: claims.into_iter().collect(), ..Self::default() }
        }

        /// Every stock that the answers allow.
        fn stocks(&self) -> Vec<i64> {
            let mut stocks = vec![i64::from(STOCK)];
            for (by, made) in &self.changes {
                let without = if *made == Made::Yes { Vec::new() } else { stocks.clone() };
                let with = stocks.iter().filter(|_| *made != Made::No).map(|stock| stock + by);
                stocks = with.chain(without).collect();
            }
            stocks
        }
    }

    async fn work(engine: &Engine, steps: &[Step], patience: Duration, what: &str) -> History {
        let mut history = History::default();
        for step in steps {
            let taken = tokio::time::timeout(ANSWERED_WITHIN, take(engine, step, &mut history)).await;
            assert!(taken.is_ok(), "{what}: {step:?} is never answered; before it {history:?}");
            if !engine.settle(patience).await {
                break;
            }
        }
        history
    }

    async fn take(engine: &Engine, step: &Step, history: &mut History) {
        match step {
            Step::Claims(numbers) => {
                let all = numbers.iter().map(|number| engine.claim(*number));
                let answers = futures_util::future::join_all(all).await;
                history.claims.extend(numbers.iter().copied().zip(answers.iter().map(told)));
            }
            Step::Cancel(number) => {
                let answer = engine.app.cancel(order(*number), &buyer(*number)).await;
                let cancel = made(answer, |answer| matches!(answer, CancelAnswer::Closed(_)));
                history.cancels.insert(*number, cancel);
            }
            Step::Stock(by) => {
                let id = format!("change {}", history.changes.len());
                let answer = engine.app.change_stock(OfferId(2), *by, id).await;
                let change = made(answer, |answer| matches!(answer, StockAnswer::Done { .. }));
                history.changes.push((*by, change));
            }
        }
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
    async fn check(disk: &Disk, history: &History, what: &str) {
        let _evidence = keep_disk(disk);
        let engine =
            Engine::open(disk).await.unwrap_or_else(|error| panic!("{what}: does not open: {error:#}"));
        assert!(engine.settle(PATIENCE).await, "{what}: the journal does not drain");
        for (number, told) in &history.claims {
            let order = engine.app.ledger.order(order(*number)).await.unwrap();
            match told {
                Told::Queued => {
                    assert!(order.is_some(), "{what}: buyer {number} was told queued and has no order")
                }
                Told::Busy => {
                    assert!(order.is_none(), "{what}: buyer {number} was told busy and has an order")
                }
                Told::Unsure => {}
            }
            let closed = order.is_some_and(|order| order.status.state == State::Closed);
            match history.cancels.get(number) {
                Some(Made::Yes) => assert!(closed, "{what}: buyer {number} cancelled and the order lives"),
                None | Some(Made::No) => assert!(!closed, "{what}: buyer {number} did not cancel"),
                Some(Made::Unsure) => {}
            }
        }
        let books = engine.app.ledger.counters(SaleId(1)).await.unwrap()[0];
        let stocks = history.stocks();
        assert!(stocks.contains(&i64::from(books.stock)), "{what}: {} units, not {stocks:?}", books.stock);
        let free = engine.app.gate.memory.offer(OfferId(2)).unwrap().free();
        assert_eq!(free + books.live_units, books.stock, "{what}: units are stranded or doubled");
        for number in 0..u128::from(free) {
            let claimed = engine.claim(1_000 + number).await;
            assert_eq!(told(&claimed), Told::Queued, "{what}: {claimed:?}");
        }
        assert!(matches!(engine.claim(5_000).await, Claimed::Answer(Verdict::SoldOut)), "{what}");
        assert!(engine.settle(PATIENCE).await, "{what}");
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

    /// A disk that loses what was not synced may also spoil the bytes beside; one that errs keeps its manners.
    fn is_powersafe(kind: Kind) -> bool {
        !matches!(kind, Kind::Crash(_))
    }

    /// How many operations the workload takes when nothing fails, on a disk that could fail like this; of one kind, or of
    /// all that change the disk.
    async fn operations(steps: &[Step], kind: Kind, only: Option<OperationKind>) -> u64 {
        let disk = prepared(is_powersafe(kind)).await;
        let count = || only.map_or_else(|| disk.operations(), |kind| disk.count(kind));
        let before = count();
        let engine = Engine::open(&disk).await.unwrap();
        let history = work(&engine, steps, PATIENCE, "nothing fails").await;
        assert!(history.claims.values().all(|told| *told == Told::Queued), "{history:?}");
        let changes = history.cancels.values().chain(history.changes.iter().map(|(_, made)| made));
        assert!(changes.into_iter().all(|made| *made == Made::Yes), "{history:?}");
        engine.close(Duration::from_secs(5)).await;
        count() - before
    }

    /// What breaks: the n-th operation, or the n-th of one kind.
    #[derive(Clone, Copy, Debug)]
    struct Break {
        n: u64,
        kind: Kind,
        only: Option<OperationKind>,
    }

    impl Break {
        fn fault(self) -> Fault {
            let fault = Fault::at(self.n, self.kind);
            self.only.map_or(fault.clone(), |kind| fault.on(kind))
        }

        /// What the next start finds. A full disk has space again by then, and every other time the power went as well.
        fn survivor(self, disk: Disk) -> Disk {
            disk.free_space();
            // A fault that was not met is still to come on that disk.
            let power_stayed = self.kind == Kind::Enospc && self.n.is_multiple_of(2) && disk.fired();
            if power_stayed { disk } else { disk.power_cut(PowerCut::DropUnsynced) }
        }
    }

    /// Breaks one operation of a workload and checks what survived. Answers whether the fault was really met.
    async fn break_one(steps: &[Step], broken: Break, what: &str) -> bool {
        let disk = prepared(is_powersafe(broken.kind)).await;
        disk.plan(broken.fault());
        let mut history = History::default();
        if let Ok(engine) = Engine::open(&disk).await {
            history = work(&engine, steps, FAILED, what).await;
            let closing = tokio::time::timeout(ANSWERED_WITHIN, engine.close(Duration::from_millis(20)));
            closing.await.unwrap_or_else(|_| panic!("{what}: does not end"));
        }
        let fired = disk.fired();
        check(&broken.survivor(disk), &history, what).await;
        fired
    }

    /// Breaks these operations of the fixed workload in turn. Their number varies with the threads; most faults must be
    /// met all the same.
    async fn sweep(all: u64, breaks: impl Iterator<Item = Break>) {
        let steps = fixed_workload();
        let (mut tried, mut fired) = (0, 0);
        for broken in breaks {
            let what = format!("of {all}: {broken:?}");
            tried += 1;
            fired += u64::from(break_one(&steps, broken, &what).await);
        }
        println!("{fired} of {tried} faults were met, of {all} operations");
        assert!(tried > 0 && fired * 2 > tried, "only {fired} of {tried} faults were met");
    }

    /// Breaks every operation.
    async fn break_every(kind: impl Fn(u64) -> Kind) {
        let all = operations(&fixed_workload(), kind(1), None).await;
        sweep(all, (1..=all).map(|n| Break { n, kind: kind(n), only: None })).await;
    }

    /// Breaks operations of one kind: a few of them every day, spread evenly, and nearly every one in a campaign.
    async fn break_some(kind: Kind, only: OperationKind) {
        let torture = Torture::of(SWEPT_EVERY_DAY);
        let all = operations(&fixed_workload(), kind, Some(only)).await;
        let stride = all.div_ceil(torture.rounds).max(1);
        let first = 1 + torture.seed % stride;
        let chosen = (first..=all).filter(|n| (n - first).is_multiple_of(stride));
        sweep(all, chosen.map(|n| Break { n, kind, only: Some(only) })).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_power_cut_at_every_operation_loses_nothing_answered() {
        break_every(|_| Kind::Crash(PowerCut::DropUnsynced)).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn torn_pages_at_every_operation_lose_nothing_answered() {
        break_every(|n| Kind::Crash(PowerCut::Torn { seed: n })).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failed_operation_is_never_told_as_success() {
        break_every(|_| Kind::Eio).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn an_error_after_success_is_told_as_unsure() {
        break_every(|_| Kind::ErrorAfterSuccess).await;
    }

    /// Only a write can find the disk full.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_disk_that_is_full_at_some_write_loses_nothing_and_goes_on_with_space() {
        break_some(Kind::Enospc, OperationKind::Write).await;
    }

    /// As Linux does it: the pages are gone, and a second sync would say that all is well. At any other operation this is
    /// an error like any other.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_sync_that_drops_its_data_is_never_told_as_success() {
        break_some(Kind::LostSync, OperationKind::Sync).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn random_workloads_on_a_breaking_disk_lose_nothing_answered() {
        let torture = Torture::of(12);
        let mut fired = 0;
        for round in 0..torture.rounds {
            let mut chance = torture.round(round);
            let steps = random_workload(&mut chance);
            let kind = match chance.random_range(0..6) {
                0 => Kind::Crash(PowerCut::DropUnsynced),
                1 => Kind::Crash(PowerCut::Torn { seed: chance.random() }),
                2 => Kind::Eio,
                3 => Kind::ErrorAfterSuccess,
                4 => Kind::LostSync,
                _ => Kind::Enospc,
            };
            let all = operations(&steps, kind, None).await;
            let n = chance.random_range(1..=all);
            let what = format!("seed {}, round {round}: operation {n} of {all}, {kind:?}", torture.seed);
            fired += u64::from(break_one(&steps, Break { n, kind, only: None }, &what).await);
        }
        // The number of operations varies with the threads; most faults must be met all the same.
        assert!(fired * 2 > torture.rounds, "only {fired} of {} faults were met", torture.rounds);
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
        assert!(engine.settle(PATIENCE).await);
        engine.close(Duration::from_secs(5)).await;
        assert!(disk.fired());
        check(&disk, &History::of([(0, Told::Queued)]), "after a full disk").await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_ledger_without_space_keeps_the_claims_and_catches_up() {
        let disk = prepared(false).await;
        let engine = Engine::open(&disk).await.unwrap();
        disk.plan(Fault::at(1, Kind::Enospc).on(OperationKind::Write).of_file("doorbuster.db-wal"));
        assert_eq!(told(&engine.claim(0).await), Told::Queued);
        testkit::eventually(PATIENCE, || disk.fired());
        assert_eq!(engine.app.gate.memory.room().taken(), 1);
        disk.free_space();
        assert!(engine.settle(PATIENCE).await);
        assert!(engine.app.ledger.order(order(0)).await.unwrap().is_some());
        engine.close(Duration::from_secs(5)).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failed_sync_of_the_journal_stops_the_engine_and_restores_nothing() {
        let disk = prepared(true).await;
        let mut engine = Engine::open(&disk).await.unwrap();
        disk.plan(Fault::at(1, Kind::Eio).on(OperationKind::Sync).of_file("journal.db-wal"));
        assert_eq!(told(&engine.claim(0).await), Told::Unsure);
        assert_eq!(engine.app.gate.memory.offer(OfferId(2)).unwrap().free(), STOCK - 1);
        let again = tokio::time::timeout(ANSWERED_WITHIN, async {
            assert_eq!(told(&engine.claim(0).await), Told::Unsure, "the same pass again");
            let seen = engine.app.see_order(order(0), &buyer(0)).await.unwrap();
            assert!(matches!(seen, Seen::Unsure), "{seen:?}");
            let cancel = engine.app.cancel(order(0), &buyer(0)).await.unwrap();
            assert!(matches!(cancel, CancelAnswer::NotYet), "{cancel:?}");
        });
        again.await.expect("who asks after an unsure grant is answered");
        let failure = engine.workers.failure().await.to_string();
        assert!(failure.contains("can no longer be trusted"), "{failure}");
        assert_eq!(told(&engine.claim(1).await), Told::Busy);
        engine.close(Duration::ZERO).await;
        check(&disk, &History::of([(0, Told::Unsure), (1, Told::Busy)]), "after a failed sync").await;
    }

    /// So many buyers one after the other, each with a commit of both files: enough for their logs to be copied.
    fn one_by_one(buyers: std::ops::Range<u128>) -> Vec<Step> {
        buyers.map(|number| Step::Claims(vec![number])).collect()
    }

    async fn stops(engine: &mut Engine, what: &str) {
        let failure = tokio::time::timeout(PATIENCE, engine.workers.failure()).await;
        let failure = failure.unwrap_or_else(|_| panic!("{what}: goes on")).to_string();
        assert!(failure.contains("can no longer be trusted"), "{what}: {failure}");
    }

    /// Fails the n-th sync of one of the files themselves: pages of its log are being copied into it. Answers whether
    /// there was such a sync.
    async fn break_copying(file: &str, n: u64, kind: Kind) -> bool {
        let what = format!("sync {n} of {file}: {kind:?}");
        let disk = prepared(true).await;
        let mut engine = Engine::copying(&disk).await;
        engine.app.change_stock(OfferId(2), 40, "more".into()).await.unwrap();
        disk.plan(Fault::at(n, kind).on(OperationKind::Sync).of_file(file));
        let mut history = work(&engine, &one_by_one(0..50), PATIENCE, &what).await;
        history.changes.push((40, Made::Yes));
        assert!(history.claims.values().all(|told| *told == Told::Queued), "{what}: {history:?}");
        if disk.fired() {
            stops(&mut engine, &what).await;
        }
        engine.close(Duration::from_secs(5)).await;
        let fired = disk.fired();
        check(&disk.power_cut(PowerCut::DropUnsynced), &history, &what).await;
        fired
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_sync_that_fails_while_a_log_is_copied_stops_the_engine_and_loses_nothing() {
        for file in ["journal.db", "doorbuster.db"] {
            let mut met = 0;
            while break_copying(file, met + 1, Kind::LostSync).await {
                met += 1;
            }
            assert!(met >= 3, "{file} is copied {met} times");
            for kind in [Kind::Eio, Kind::ErrorAfterSuccess] {
                assert!(break_copying(file, 2, kind).await);
            }
        }
    }

    /// Who reads an old state keeps a copy from its end: SQLite counts the pages before it as copied and leaves their sync
    /// for later. If that one fails, no later copy writes them again.
    #[tokio::test(flavor = "multi_thread")]
    async fn pages_that_count_as_copied_and_are_lost_with_a_sync_are_still_in_the_log() {
        let disk = prepared(true).await;
        let mut engine = Engine::copying(&disk).await;
        engine.app.change_stock(OfferId(2), 100, "more".into()).await.unwrap();
        let mut history = work(&engine, &one_by_one(0..8), PATIENCE, "nothing fails").await;
        let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
        let reader =
            rusqlite::Connection::open_with_flags_and_vfs("shop/doorbuster.db", flags, disk.vfs_name())
                .unwrap();
        reader.execute_batch("begin").unwrap();
        let _: u32 = reader.query_row("select count(*) from orders", [], |row| row.get(0)).unwrap();
        disk.plan(Fault::at(1, Kind::LostSync).on(OperationKind::Sync).of_file("doorbuster.db"));
        history.claims.extend(work(&engine, &one_by_one(8..24), PATIENCE, "a sync fails").await.claims);
        testkit::eventually(PATIENCE, || disk.fired());
        reader.execute_batch("rollback").unwrap();
        drop(reader);
        history.claims.extend(work(&engine, &one_by_one(24..100), PATIENCE, "going on").await.claims);
        history.changes.push((100, Made::Yes));
        assert!(history.claims.values().all(|told| *told == Told::Queued), "{history:?}");
        stops(&mut engine, "after the sync").await;
        engine.close(Duration::from_secs(5)).await;
        check(&disk.power_cut(PowerCut::DropUnsynced), &history, "after a lost sync").await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_log_that_finds_no_space_in_its_file_is_copied_later() {
        let disk = prepared(true).await;
        let mut engine = Engine::copying(&disk).await;
        engine.app.change_stock(OfferId(2), 70, "more".into()).await.unwrap();
        for file in ["journal.db", "doorbuster.db"] {
            disk.plan(Fault::at(2, Kind::EnospcOnce).on(OperationKind::Write).of_file(file));
        }
        let mut history = work(&engine, &one_by_one(0..80), PATIENCE, "no space").await;
        history.changes.push((70, Made::Yes));
        assert!(history.claims.values().all(|told| *told == Told::Queued), "{history:?}");
        assert!(disk.fired());
        for file in ["shop/journal.db", "shop/doorbuster.db"] {
            testkit::eventually(PATIENCE, || {
                disk.log().iter().any(|entry| entry.kind == OperationKind::Sync && entry.file == file)
            });
        }
        let failure = tokio::time::timeout(Duration::ZERO, engine.workers.failure()).await;
        assert!(failure.is_err(), "{failure:?}");
        engine.close(Duration::from_secs(5)).await;
        check(&disk.power_cut(PowerCut::DropUnsynced), &history, "after a copy without space").await;
    }
}
