//! The door: takes connections from the kernel as fast as the edge's threads look at them, and no faster.
//!
//! Whoever does not fit waits in the kernel's queue. A crowd that comes in one moment may wait there until it is served;
//! when more and more come, the queue is kept as short as it can be without being empty often. Beyond it the kernel drops
//! an attempt to connect, which costs us nothing, and the client's kernel tries again a second later. So under any rush
//! we serve people who are still there. Knows nothing of what a connection is for.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::select_all;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, coop};
use tokio_util::task::TaskTracker;

use super::server::{Audience, Places, Shared};
use crate::clock::Clock;
use crate::telemetry::metrics::{ConnectionOutcome, Metrics};

/// New sockets that may wait for a thread that is busy. Enough to work through at a stretch, and no more: in the
/// kernel's queue they cost us nothing.
const WAITING_PER_THREAD_MAX: usize = 32;

/// New sockets that a thread takes on before those it already has get their turn. While all threads are busy, so many are
/// taken from the kernel's queue at a time: the door is woken once for all of them.
const TAKEN_PER_TURN_MAX: usize = 16;

/// How long a connection should wait in the kernel's queue at most, in milliseconds, when a rush lasts.
const QUEUE_MAX_MS: u64 = 50;

/// The same while so many come that the queue is hardly ever empty: a longer one would only let everybody wait longer.
const QUEUE_MIN_MS: u64 = 10;

/// So often the wait is thought over, in milliseconds: it is doubled if the queue was empty for more than one in
/// [`EMPTY_PER_TAKEN_MAX`] who were taken out of it, and shortened by a quarter otherwise.
const THINK_EVERY_MS: u64 = 100;
const EMPTY_PER_TAKEN_MAX: u64 = 4;

/// The same in the first moments of a rush. A crowd that comes at once and is served within this time is better off than
/// one that is told to come back after a second.
const BURST_QUEUE_MAX_MS: u64 = 400;

/// A rush that goes on for so long, in milliseconds, is no burst any more.
const BURST_MAX_MS: u64 = 1_000;

/// So long a rush must last before its pace is known, in milliseconds.
const BURST_LOOK_AFTER_MS: u64 = 50;

/// So often the queue is fitted to our pace, in milliseconds, while somebody always waits. Short, because a rush fills
/// the longest queue in a fraction of a second, and whoever is in it waits for all before him.
const FIT_EVERY_MS: u64 = 10;

/// The pace is that of the last so many milliseconds, about: from one moment to the next it is uneven.
const PACE_OVER_MS: u64 = 200;

/// A shortened queue stays short until nobody has waited for so long, in milliseconds: for whoever was turned away the
/// client's kernel tries again a second later, and once more two seconds after that, and those aftershocks are no new crowd.
const CALM_MS: u64 = 3_000;

/// So often it doubles then, in milliseconds.
const GROW_EVERY_MS: u64 = 250;

/// The longest queue, in connections: a crowd comes within milliseconds, and a quick server wants all of it.
pub const BACKLOG_MAX: u32 = 4_096;

/// The shortest queue, in connections: also a slow server is worth a short wait to a few dozen browsers.
pub const BACKLOG_MIN: u32 = 64;

/// Where Linux says how long a queue it allows.
const KERNEL_MAX_FILE: &str = "/proc/sys/net/core/somaxconn";

/// A connection on its way to the thread that will serve it.
pub(super) struct NewSocket {
    pub stream: std::net::TcpStream,
    pub peer: SocketAddr,
    pub audience: Audience,
}

/// A thread as the door sees it.
#[derive(Clone, Debug)]
pub(super) struct Hallway {
    sockets: mpsc::Sender<NewSocket>,
    /// What the thread is at: one task per connection.
    tasks: TaskTracker,
}

impl Hallway {
    /// To a thread with these tasks, and the thread's end of it.
    pub fn new(tasks: TaskTracker) -> (Self, Arrivals) {
        let (send, sockets) = mpsc::channel(WAITING_PER_THREAD_MAX);
        (Self { sockets: send, tasks }, Arrivals { sockets, taken: 0, turn: None })
    }

    /// How many connections the thread has, and will have in a moment.
    fn connections(&self) -> usize {
        self.tasks.len() + (WAITING_PER_THREAD_MAX - self.sockets.capacity())
    }

    fn has_room(&self) -> bool {
        !self.sockets.is_closed() && self.sockets.capacity() > 0
    }
}

/// The new sockets of one thread.
pub(super) struct Arrivals {
    sockets: mpsc::Receiver<NewSocket>,
    taken: usize,
    turn: Option<JoinHandle<()>>,
}

impl Arrivals {
    /// The next socket; never ends. After a few, everybody who is already here gets a turn first. Nothing is lost when
    /// the wait is given up.
    pub async fn next(&mut self, tasks: &TaskTracker) -> NewSocket {
        if self.taken >= TAKEN_PER_TURN_MAX {
            let turn = self.turn.get_or_insert_with(|| tasks.spawn(a_turn_for_everybody()));
            turn.await.ok();
            self.turn = None;
            self.taken = 0;
        }
        match self.sockets.recv().await {
            Some(socket) => {
                self.taken += 1;
                socket
            }
            None => std::future::pending().await,
        }
    }
}

/// Tasks run in the order in which they became ready. At the end of the first round each new socket is registered, the
/// kernel is asked who has sent something, and at the end of the second their requests are read.
async fn a_turn_for_everybody() {
    tokio::task::yield_now().await;
}

/// Accepts on `listener` until the shutdown.
pub(super) fn spawn(shared: &Arc<Shared>, listener: TcpListener, audience: Audience, threads: Vec<Hallway>) {
    let shared = Arc::clone(shared);
    let tasks = shared.app.tasks.clone();
    tasks.spawn(async move {
        let (app, max) = (&shared.app, backlog_max());
        let backlog = Backlog::new(max, app.clock.instant());
        let (clock, metrics) = (&app.clock, &app.metrics);
        let places = shared.places(audience);
        let mut door = Door { listener, audience, backlog, clock, metrics, places };
        door.set_backlog(max);
        app.shutdown.run_until_cancelled(door.accept(&threads)).await;
    });
}

fn backlog_max() -> u32 {
    let allowed = std::fs::read_to_string(KERNEL_MAX_FILE).ok().and_then(|text| text.trim().parse().ok());
    BACKLOG_MAX.min(allowed.unwrap_or(BACKLOG_MAX))
}

/// One listener.
struct Door<'a> {
    listener: TcpListener,
    audience: Audience,
    backlog: Backlog,
    clock: &'a Clock,
    metrics: &'a Metrics,
    places: &'a Places,
}

impl Door<'_> {
    /// Ends when no thread is left. Room is found before a socket is taken: as long as there is none, whoever comes is
    /// the kernel's to keep or to turn away. So a door where nobody waits holds a place: an operator finds one however
    /// many buyers there are.
    async fn accept(&mut self, threads: &[Hallway]) {
        while let Some(room) = room(threads).await {
            let (stream, peer) = self.next().await;
            self.places.open.fetch_add(1, Ordering::AcqRel);
            self.metrics.connections.inc(ConnectionOutcome::Accepted);
            room.send(NewSocket { stream, peer, audience: self.audience });
        }
    }

    /// The next connection that does not exceed the limit of open ones.
    async fn next(&mut self) -> (std::net::TcpStream, SocketAddr) {
        loop {
            match self.next_of_any().await {
                Ok(_) if self.places.open.load(Ordering::Acquire) >= self.places.max => {
                    self.metrics.connections.inc(ConnectionOutcome::Refused);
                }
                Ok((stream, peer)) => {
                    if let Ok(stream) = stream.into_std() {
                        return (stream, peer);
                    }
                }
                Err(error) => {
                    // Out of descriptors, or a client that left before it was greeted: neither is a reason to stop.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    async fn next_of_any(&mut self) -> std::io::Result<(TcpStream, SocketAddr)> {
        loop {
            if !self.backlog.is_short() {
                return poll_fn(|context| self.poll_accept(context)).await;
            }
            // A short queue must also grow while nobody comes.
            let patience = Duration::from_millis(GROW_EVERY_MS);
            let next = poll_fn(|context| self.poll_accept(context));
            if let Ok(next) = tokio::time::timeout(patience, next).await {
                return next;
            }
        }
    }

    fn poll_accept(&mut self, context: &mut Context<'_>) -> Poll<std::io::Result<(TcpStream, SocketAddr)>> {
        let next = self.listener.poll_accept(context);
        // A task that has had its share of time is told "nobody" too, and that says nothing of the queue.
        if next.is_ready() || coop::has_budget_remaining() {
            let was_short = self.backlog.is_short();
            if let Some(length) = self.backlog.saw(next.is_ready(), self.clock.instant()) {
                self.set_backlog(length);
            }
            if self.backlog.is_short() && !was_short {
                self.metrics.saturated.inc();
            }
        }
        next
    }

    /// To listen again sets the length of the queue and leaves everything else as it is, also who is in it.
    fn set_backlog(&self, length: u32) {
        if let Err(error) = rustix::net::listen(&self.listener, i32::try_from(length).unwrap_or(i32::MAX)) {
            tracing::warn!(%error, length, "the queue of new connections keeps its length");
        } else if self.audience != Audience::Operators {
            self.metrics.backlog_max.set(i64::from(length));
        }
    }
}

/// A place with the thread that has the fewest connections, of those that have one; while none has, waits until one has
/// several. Connections stay long: a thread that got more of them than the others would be the one everybody waits for.
/// `None`: all threads have ended.
async fn room(threads: &[Hallway]) -> Option<mpsc::Permit<'_, NewSocket>> {
    loop {
        while let Some(thread) =
            threads.iter().filter(|thread| thread.has_room()).min_by_key(|thread| thread.connections())
        {
            // Another door may have been quicker.
            if let Ok(room) = thread.sockets.try_reserve() {
                return Some(room);
            }
        }
        let mut waits: Vec<_> = threads
            .iter()
            .filter(|thread| !thread.sockets.is_closed())
            .map(|thread| Box::pin(thread.sockets.reserve_many(TAKEN_PER_TURN_MAX)))
            .collect();
        while !waits.is_empty() {
            match select_all(waits).await {
                (Ok(_), ..) => break,
                (Err(_), _, others) => waits = others,
            }
        }
        if threads.iter().all(|thread| thread.sockets.is_closed()) {
            return None;
        }
    }
}

/// How long the kernel's queue may be. While somebody always waits: what we take out of it in [`BURST_QUEUE_MAX_MS`] at
/// first; when it goes on, in [`QUEUE_MAX_MS`], or less if it is hardly ever empty. Once nobody has waited for
/// [`CALM_MS`] it doubles step by step.
#[derive(Debug)]
struct Backlog {
    max: u32,
    length: u32,
    looked: Instant,
    /// When a rush began that found the queue at its full length.
    rush_since: Option<Instant>,
    /// Since when somebody has always waited, and how many were taken since. Both are halved now and then, so that
    /// they are the pace of the last moments.
    busy_since: Option<Instant>,
    taken: u64,
    /// How long a connection should wait when the rush lasts, in milliseconds, and what has been seen since that was
    /// thought over.
    wait_ms: u64,
    thought: Instant,
    seen: Seen,
    /// When a short queue grows next, if nobody waits until then.
    grows_at: Instant,
}

/// How often somebody was taken out of the queue, and how often nobody was there.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    taken: u64,
    empty: u64,
}

impl Backlog {
    fn new(max: u32, now: Instant) -> Self {
        Self {
            max,
            length: max,
            looked: now,
            rush_since: None,
            busy_since: None,
            taken: 0,
            wait_ms: QUEUE_MAX_MS,
            thought: now,
            seen: Seen::default(),
            grows_at: now,
        }
    }

    fn is_short(&self) -> bool {
        self.length < self.max
    }

    /// Somebody was waiting and was taken out, or nobody was. Answers the length if it is another now.
    fn saw(&mut self, somebody: bool, now: Instant) -> Option<u32> {
        let before = self.length;
        self.think_over(now);
        if somebody {
            self.took(now);
        } else {
            self.found_nobody(now);
        }
        (self.length != before).then_some(self.length)
    }

    fn took(&mut self, now: Instant) {
        self.taken += 1;
        self.seen.taken += 1;
        let Some(since) = self.busy_since else {
            (self.busy_since, self.looked) = (Some(now), now);
            if !self.is_short() {
                self.rush_since = Some(now);
            }
            return;
        };
        let rush = self.rush_since.map_or(Duration::MAX, |began| now.saturating_duration_since(began));
        if now.saturating_duration_since(self.looked) < Duration::from_millis(FIT_EVERY_MS)
            || rush < Duration::from_millis(BURST_LOOK_AFTER_MS)
        {
            return;
        }
        (self.looked, self.grows_at) = (now, now + Duration::from_millis(CALM_MS));
        let busy = now.saturating_duration_since(since);
        let wait_ms =
            if rush < Duration::from_millis(BURST_MAX_MS) { BURST_QUEUE_MAX_MS } else { self.wait_ms };
        self.length = fitting(self.taken, busy, wait_ms).min(self.max).max(BACKLOG_MIN);
        if busy >= Duration::from_millis(PACE_OVER_MS) {
            self.taken /= 2;
            self.busy_since = since.checked_add(busy / 2);
        }
    }

    fn think_over(&mut self, now: Instant) {
        if now.saturating_duration_since(self.thought) < Duration::from_millis(THINK_EVERY_MS) {
            return;
        }
        let Seen { taken, empty } = std::mem::take(&mut self.seen);
        let often = empty * EMPTY_PER_TAKEN_MAX > taken;
        self.wait_ms = if often { self.wait_ms * 2 } else { self.wait_ms * 3 / 4 };
        (self.wait_ms, self.thought) = (self.wait_ms.clamp(QUEUE_MIN_MS, QUEUE_MAX_MS), now);
    }

    fn found_nobody(&mut self, now: Instant) {
        (self.busy_since, self.taken) = (None, 0);
        self.seen.empty += 1;
        if self.is_short() && now >= self.grows_at {
            self.length = self.length.saturating_mul(2).min(self.max);
            self.grows_at = now + Duration::from_millis(GROW_EVERY_MS);
        }
    }
}

/// What one takes in so many milliseconds who took so many within this time.
fn fitting(taken: u64, within: Duration, ms: u64) -> u32 {
    let within_us = u64::try_from(within.as_micros()).unwrap_or(u64::MAX).max(1);
    u32::try_from(taken.saturating_mul(ms * 1_000) / within_us).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Connections per second, for so many milliseconds with somebody always waiting.
    fn rush(backlog: &mut Backlog, from: Instant, per_s: u64, ms: u64) -> Instant {
        let count = per_s * ms / 1_000;
        for number in 0..=count {
            backlog.saw(true, from + Duration::from_millis(ms * number / count));
        }
        from + Duration::from_millis(ms)
    }

    fn backlog() -> (Backlog, Instant) {
        let now = Clock::system().instant();
        (Backlog::new(BACKLOG_MAX, now), now)
    }

    #[test]
    fn a_queue_is_as_long_as_what_is_taken_out_of_it_in_a_moment() {
        for (per_s, wanted) in [(100, BACKLOG_MIN), (10_000, 100), (50_000, 500), (500_000, BACKLOG_MAX)] {
            let (mut backlog, now) = backlog();
            rush(&mut backlog, now, per_s, 2 * BURST_MAX_MS);
            assert!(backlog.length.abs_diff(wanted) <= wanted / 10, "{per_s}/s: {}", backlog.length);
        }
    }

    #[test]
    fn a_queue_that_is_hardly_ever_empty_is_shortened_and_one_that_often_is_is_not() {
        let (mut backlog, now) = backlog();
        let mut now = rush(&mut backlog, now, 20_000, 2 * BURST_MAX_MS);
        assert!(backlog.length.abs_diff(200) <= 20, "never empty: {}", backlog.length);
        for _ in 0..10 {
            backlog.saw(false, now);
            now = rush(&mut backlog, now, 20_000, THINK_EVERY_MS);
        }
        assert!(backlog.length.abs_diff(200) <= 20, "empty now and then: {}", backlog.length);
        // A queue that is full whenever we look, and too short for the time until we look again.
        for _ in 0..10 {
            now = rush(&mut backlog, now, 20_000, THINK_EVERY_MS / 2);
            for _ in 0..1_000 {
                backlog.saw(false, now);
                now += Duration::from_micros(50);
                backlog.saw(true, now);
            }
        }
        rush(&mut backlog, now, 20_000, 2 * FIT_EVERY_MS);
        assert!(backlog.length.abs_diff(1_000) <= 100, "empty often: {}", backlog.length);
    }

    #[test]
    fn a_rush_is_noticed_before_it_fills_the_queue() {
        let (mut backlog, now) = backlog();
        rush(&mut backlog, now, 1_000, BURST_LOOK_AFTER_MS + 2 * FIT_EVERY_MS);
        assert!(backlog.length <= 500, "{}", backlog.length);
    }

    #[test]
    fn a_crowd_that_comes_at_once_and_is_soon_served_waits_in_the_queue() {
        let (mut backlog, now) = backlog();
        // So many are served in 0.3 s, and nobody comes after them.
        let now = rush(&mut backlog, now, 10_000, 300);
        assert!(backlog.length >= 3_000, "{}", backlog.length);
        // Half a minute later the next crowd is as welcome.
        let now = now + Duration::from_secs(30);
        while backlog.saw(false, now).is_some() {}
        rush(&mut backlog, now, 10_000, 300);
        assert!(backlog.length >= 3_000, "{}", backlog.length);
    }

    #[test]
    fn a_rush_that_pauses_for_a_moment_is_the_same_rush() {
        let (mut backlog, now) = backlog();
        let now = rush(&mut backlog, now, 1_000, 2 * BURST_MAX_MS);
        assert_eq!((backlog.saw(false, now), backlog.length), (None, BACKLOG_MIN));
        rush(&mut backlog, now, 1_000, 200);
        assert_eq!(backlog.length, BACKLOG_MIN);
    }

    #[test]
    fn a_pace_that_changes_is_followed() {
        let (mut backlog, now) = backlog();
        let now = rush(&mut backlog, now, 50_000, 2 * BURST_MAX_MS);
        let now = rush(&mut backlog, now, 10_000, 1_000);
        assert!(backlog.length.abs_diff(100) <= 20, "{}", backlog.length);
        rush(&mut backlog, now, 50_000, 1_000);
        assert!(backlog.length.abs_diff(500) <= 50, "{}", backlog.length);
    }

    #[test]
    fn few_who_come_one_by_one_are_no_rush() {
        let (mut backlog, mut now) = backlog();
        for _ in 0..1_000 {
            now += Duration::from_millis(100);
            assert_eq!(backlog.saw(true, now), None);
            assert_eq!(backlog.saw(false, now), None);
        }
    }

    #[test]
    fn once_nobody_waits_the_queue_grows_back_step_by_step() {
        let (mut backlog, now) = backlog();
        let over = rush(&mut backlog, now, 100, 2 * BURST_MAX_MS);
        assert_eq!(backlog.saw(false, over), None, "a pause of a moment is no end");
        let (mut now, mut lengths, mut first) = (over, Vec::new(), None);
        while backlog.is_short() {
            now += Duration::from_millis(GROW_EVERY_MS);
            // Few who come one by one do not keep it short.
            backlog.saw(true, now);
            lengths.extend(backlog.saw(false, now));
            first = first.or_else(|| lengths.first().map(|_| now - over));
        }
        assert_eq!(lengths, [128, 256, 512, 1_024, 2_048, 4_096]);
        assert!(
            first.unwrap().abs_diff(Duration::from_millis(CALM_MS)) <= Duration::from_millis(GROW_EVERY_MS)
        );
    }

    #[test]
    fn who_was_turned_away_and_comes_again_finds_a_short_queue() {
        let (mut backlog, now) = backlog();
        let mut now = rush(&mut backlog, now, 1_000, 2 * BURST_MAX_MS);
        for after_s in [1, 2] {
            now += Duration::from_secs(after_s);
            assert_eq!((backlog.saw(false, now), backlog.length), (None, BACKLOG_MIN));
            now = rush(&mut backlog, now, 1_000, 100);
        }
        assert_eq!(backlog.length, BACKLOG_MIN);
    }

    /// What a door needs around it.
    struct House {
        clock: Clock,
        metrics: Metrics,
        places: Places,
    }

    impl House {
        fn new() -> Self {
            Self { clock: Clock::system(), metrics: Metrics::new(), places: Places::new(1_000) }
        }

        async fn door(&self, audience: Audience) -> (Door<'_>, SocketAddr) {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let backlog = Backlog::new(BACKLOG_MAX, self.clock.instant());
            let Self { clock, metrics, places } = self;
            (Door { listener, audience, backlog, clock, metrics, places }, address)
        }

        fn accepted(&self) -> u64 {
            self.metrics.connections.get(ConnectionOutcome::Accepted)
        }

        /// Until no place is left, and for long enough after it that a door which does not wait would show.
        async fn filled(thread: &Hallway) {
            while thread.has_room() {
                tokio::task::yield_now().await;
            }
            for _ in 0..1_000 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// All get at least into the kernel's queue, which is longer at first.
    async fn crowd(address: SocketAddr, people: usize) -> Vec<TcpStream> {
        let mut all = Vec::new();
        for _ in 0..people {
            all.push(TcpStream::connect(address).await.unwrap());
        }
        all
    }

    #[tokio::test]
    async fn who_finds_no_room_is_not_accepted_and_comes_later_in_his_turn() {
        let house = House::new();
        let (mut door, address) = house.door(Audience::Everybody).await;
        let tasks = TaskTracker::new();
        let (thread, mut arrivals) = Hallway::new(tasks.clone());
        let threads = [thread.clone()];
        let visit = async {
            let people = crowd(address, 100).await;
            House::filled(&thread).await;
            assert_eq!(
                house.accepted(),
                u64::try_from(WAITING_PER_THREAD_MAX).unwrap(),
                "no more than there is room for"
            );
            for person in &people {
                assert_eq!(arrivals.next(&tasks).await.peer, person.local_addr().unwrap());
            }
            assert_eq!((house.accepted(), house.places.open.load(Ordering::Acquire)), (100, 100));
        };
        tokio::select! {
            () = door.accept(&threads) => panic!("the door closed"),
            visited = tokio::time::timeout(Duration::from_secs(30), visit) => visited.unwrap(),
        }
    }

    #[tokio::test]
    async fn operators_get_in_while_buyers_fill_every_place() {
        let house = House::new();
        let (mut door, address) = house.door(Audience::Buyers).await;
        let (mut side_door, side_address) = house.door(Audience::Operators).await;
        let tasks = TaskTracker::new();
        let (thread, mut arrivals) = Hallway::new(tasks.clone());
        let threads = [thread.clone()];
        let visit = async {
            let _buyers = crowd(address, 100).await;
            House::filled(&thread).await;
            let operator = crowd(side_address, 1).await;
            for place in 0..=100 {
                let socket = arrivals.next(&tasks).await;
                if socket.audience == Audience::Operators {
                    assert_eq!(socket.peer, operator[0].local_addr().unwrap());
                    return place;
                }
            }
            panic!("the operator came after all buyers");
        };
        tokio::select! {
            () = door.accept(&threads) => panic!("the door closed"),
            () = side_door.accept(&threads) => panic!("the side door closed"),
            place = tokio::time::timeout(Duration::from_secs(30), visit) => {
                let place = place.unwrap();
                assert!(place <= 2 * WAITING_PER_THREAD_MAX, "{place} buyers were before him");
            }
        }
    }

    #[tokio::test]
    async fn a_thread_that_is_stuck_or_gone_keeps_nobody_from_the_others() {
        let (stuck, _never_looks) = Hallway::new(TaskTracker::new());
        let (gone, ended) = Hallway::new(TaskTracker::new());
        drop(ended);
        let tasks = TaskTracker::new();
        let (well, mut arrivals) = Hallway::new(tasks.clone());
        let threads = [stuck.clone(), gone, well];
        let house = House::new();
        let (mut door, address) = house.door(Audience::Everybody).await;
        let visit = async {
            let _people = crowd(address, 100).await;
            for _ in 0..100 - WAITING_PER_THREAD_MAX {
                arrivals.next(&tasks).await;
            }
            assert!(!stuck.has_room());
        };
        tokio::select! {
            () = door.accept(&threads) => panic!("the door closed"),
            visited = tokio::time::timeout(Duration::from_secs(30), visit) => visited.unwrap(),
        }
    }

    #[tokio::test]
    async fn without_threads_the_door_closes() {
        let house = House::new();
        let (mut door, _) = house.door(Audience::Everybody).await;
        let (thread, arrivals) = Hallway::new(TaskTracker::new());
        drop(arrivals);
        door.accept(&[thread]).await;
    }

    #[tokio::test]
    async fn the_thread_with_the_fewest_connections_gets_the_next_one() {
        let few = TaskTracker::new();
        let many = TaskTracker::new();
        let _open: Vec<_> = (0..10).map(|_| many.token()).collect();
        let (busy, mut for_busy) = Hallway::new(many);
        let (calm, mut for_calm) = Hallway::new(few);
        let threads = [busy, calm];
        for _ in 0..16 {
            let room = room(&threads).await.unwrap();
            let (stream, peer) = some_socket().await;
            room.send(NewSocket { stream, peer, audience: Audience::Everybody });
        }
        let count =
            |sockets: &mut mpsc::Receiver<NewSocket>| std::iter::from_fn(|| sockets.try_recv().ok()).count();
        let taken = (count(&mut for_busy.sockets), count(&mut for_calm.sockets));
        assert_eq!(taken, (3, 13), "both have thirteen now");
    }

    async fn some_socket() -> (std::net::TcpStream, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _person = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, peer) = listener.accept().await.unwrap();
        (stream.into_std().unwrap(), peer)
    }

    #[tokio::test]
    async fn who_is_here_already_is_served_before_many_more_are_taken_on() {
        let tasks = TaskTracker::new();
        let (thread, mut arrivals) = Hallway::new(tasks.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _people = crowd(listener.local_addr().unwrap(), WAITING_PER_THREAD_MAX).await;
        for _ in 0..WAITING_PER_THREAD_MAX {
            let (stream, peer) = listener.accept().await.unwrap();
            let stream = stream.into_std().unwrap();
            thread.sockets.try_send(NewSocket { stream, peer, audience: Audience::Everybody }).ok().unwrap();
        }
        let served = Arc::new(AtomicUsize::new(0));
        for taken in 0..WAITING_PER_THREAD_MAX {
            arrivals.next(&tasks).await;
            let unserved = taken - served.load(Ordering::Acquire);
            assert!(unserved < TAKEN_PER_TURN_MAX, "{unserved} wait after {taken}");
            let served = Arc::clone(&served);
            tasks.spawn(async move { served.fetch_add(1, Ordering::AcqRel) });
        }
    }
}
