//! What a courier has in hand: which event may be sent now, what became of those that were, and how far the cursor may
//! move. Owns the order within a track; knows neither time nor network nor ledger.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use rules::time::UnixMs;

use crate::ledger::sqlite::{Fate, Outgoing, Past, Settled, Settlement, Taken};

/// Most events in hand at once.
pub const WINDOW_MAX: usize = 1_024;

#[derive(Debug)]
pub struct Window {
    webhook_no: u64,
    /// Each track's events, the first of which may be under way.
    tracks: HashMap<i64, VecDeque<Outgoing>>,
    /// Tracks whose first event may be sent.
    ready: VecDeque<i64>,
    in_hand: HashSet<u64>,
    /// Events beyond the cursor of which the ledger does not know the fate.
    unsettled: BTreeSet<u64>,
    settled: Vec<Settled>,
    /// The cursor as the ledger has it.
    cursor: u64,
    read_to: u64,
}

/// Why a delivery failed, and what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    Again { due_at: UnixMs },
    Park,
}

impl Window {
    #[must_use]
    pub fn new(webhook_no: u64, cursor: u64) -> Self {
        Self {
            webhook_no,
            tracks: HashMap::new(),
            ready: VecDeque::new(),
            in_hand: HashSet::new(),
            unsettled: BTreeSet::new(),
            settled: Vec::new(),
            cursor,
            read_to: cursor,
        }
    }

    #[must_use]
    pub fn read_to(&self) -> u64 {
        self.read_to
    }

    #[must_use]
    pub fn room(&self) -> usize {
        WINDOW_MAX.saturating_sub(self.in_hand.len())
    }

    /// Takes what the ledger gave. Everything that became of earlier deliveries must have been settled before it was
    /// asked, or it would give them again.
    pub fn add(&mut self, taken: Taken) {
        for delivery in taken.deliveries {
            let no = delivery.event.no;
            if self.in_hand.contains(&no) {
                continue;
            }
            if delivery.past == Past::Unwanted {
                self.settled.push(Settled { event_no: no, track: delivery.track, fate: Fate::Delivered });
                continue;
            }
            if !matches!(delivery.past, Past::Waiting { .. }) {
                self.unsettled.insert(no);
            }
            if delivery.past == Past::Behind {
                self.settled.push(Settled { event_no: no, track: delivery.track, fate: Fate::Behind });
                continue;
            }
            self.in_hand.insert(no);
            let track = self.tracks.entry(delivery.track).or_default();
            if track.is_empty() {
                self.ready.push_back(delivery.track);
            }
            track.push_back(delivery);
        }
        self.read_to = self.read_to.max(taken.read_to);
    }

    /// These wait in the ledger and need no longer: nobody wants them any more. What is under way ends by itself.
    pub fn forget(&mut self, unwanted: Vec<(u64, i64)>) {
        for (event_no, track) in unwanted {
            if !self.in_hand.contains(&event_no) {
                self.settled.push(Settled { event_no, track, fate: Fate::Delivered });
            }
        }
    }

    /// The next event to send. Its track waits until [`Window::delivered`] or [`Window::failed`] is told about it.
    pub fn first_ready(&mut self) -> Option<Outgoing> {
        let track = self.ready.pop_front()?;
        self.tracks.get(&track)?.front().cloned()
    }

    /// The event to ask a failing receiver with: one that was tried least, since it may be the event that is bad.
    pub fn probe(&mut self) -> Option<Outgoing> {
        let tried = |track: &i64| self.tracks.get(track).and_then(VecDeque::front).map(attempts_of);
        let least = (0..self.ready.len()).min_by_key(|place| self.ready.get(*place).and_then(tried))?;
        self.ready.swap(0, least);
        self.first_ready()
    }

    /// The track's first event is with its receiver.
    pub fn delivered(&mut self, track: i64) {
        let Some(queue) = self.tracks.get_mut(&track) else { return };
        if let Some(done) = queue.pop_front() {
            self.in_hand.remove(&done.event.no);
            self.settled.push(Settled { event_no: done.event.no, track, fate: Fate::Delivered });
        }
        if queue.is_empty() {
            self.tracks.remove(&track);
        } else {
            self.ready.push_back(track);
        }
    }

    /// The track's first event did not arrive. All events behind it wait in the ledger until it has, or is parked.
    pub fn failed(&mut self, track: i64, now: UnixMs, next: Next, problem: String) {
        let Some(mut queue) = self.tracks.remove(&track) else { return };
        if let Some(first) = queue.pop_front() {
            self.in_hand.remove(&first.event.no);
            let (attempts, since) = (attempts_of(&first).saturating_add(1), since_of(&first, now));
            let fate = match next {
                Next::Again { due_at } => Fate::Waiting { attempts, since, due_at, problem },
                Next::Park => Fate::Parked { attempts, since, problem },
            };
            self.settled.push(Settled { event_no: first.event.no, track, fate });
        }
        for behind in queue {
            self.in_hand.remove(&behind.event.no);
            // What waits in the ledger already stays there as it is.
            if !matches!(behind.past, Past::Waiting { .. }) {
                self.settled.push(Settled { event_no: behind.event.no, track, fate: Fate::Behind });
            }
        }
    }

    /// Whether anything became of deliveries that the ledger does not know.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.settled.is_empty()
    }

    #[must_use]
    pub fn news(&self) -> usize {
        self.settled.len()
    }

    /// Whether the cursor could move.
    #[must_use]
    pub fn has_moved(&self) -> bool {
        self.cursor_then() > self.cursor
    }

    /// What the ledger must be told.
    #[must_use]
    pub fn settlement(&self) -> Settlement {
        Settlement {
            webhook_no: self.webhook_no,
            cursor_was: self.cursor,
            cursor: self.cursor_then(),
            settled: self.settled.clone(),
        }
    }

    /// The ledger has what [`Window::settlement`] said; its cursor stands there now. If somebody set it back, reading
    /// goes on from there.
    pub fn written(&mut self, cursor: u64) {
        let expected = self.cursor_then();
        for settled in self.settled.drain(..) {
            self.unsettled.remove(&settled.event_no);
        }
        self.cursor = cursor;
        if cursor != expected {
            self.unsettled.retain(|no| self.in_hand.contains(no));
            self.read_to = cursor;
        }
    }

    /// Everything up to here is settled, or will be once the news are written. Never beyond what was read: after the
    /// cursor was set back, what is still in hand lies beyond that.
    fn cursor_then(&self) -> u64 {
        let settled: HashSet<u64> = self.settled.iter().map(|settled| settled.event_no).collect();
        let first = self.unsettled.iter().find(|no| !settled.contains(no));
        first.map_or(self.read_to, |no| no.saturating_sub(1).min(self.read_to))
    }
}

/// How often a delivery was tried.
#[must_use]
pub fn attempts_of(delivery: &Outgoing) -> u32 {
    match delivery.past {
        Past::Fresh | Past::Behind | Past::Unwanted => 0,
        Past::Waiting { attempts, .. } => attempts,
    }
}

/// Since when a delivery waits.
#[must_use]
pub fn since_of(delivery: &Outgoing, now: UnixMs) -> UnixMs {
    match delivery.past {
        Past::Fresh | Past::Behind | Past::Unwanted => now,
        Past::Waiting { since, .. } => since,
    }
}

#[cfg(test)]
mod tests {
    use rules::id::EventId;

    use super::*;
    use crate::ledger::sqlite::Event;

    fn delivery(no: u64, track: i64, past: Past) -> Outgoing {
        let event = Event {
            no,
            id: EventId::numbered(&[0; 16], no),
            kind: "order.recorded".into(),
            at: UnixMs(0),
            sale_id: None,
            offer_id: None,
            order_id: None,
            seq: None,
            data: serde_json::json!({}),
        };
        Outgoing { event, track, past }
    }

    fn taken(events: &[(u64, i64)]) -> Taken {
        let deliveries = events.iter().map(|(no, track)| delivery(*no, *track, Past::Fresh)).collect();
        Taken { deliveries, read_to: events.last().unwrap().0, next_due: None }
    }

    fn next_no(window: &mut Window) -> Option<u64> {
        window.first_ready().map(|delivery| delivery.event.no)
    }

    #[test]
    fn tracks_go_beside_each_other_and_each_in_its_order() {
        let mut window = Window::new(1, 0);
        window.add(taken(&[(1, 7), (2, 8), (3, 7), (4, 9)]));
        let begun = [next_no(&mut window), next_no(&mut window), next_no(&mut window)];
        assert_eq!(begun, [Some(1), Some(2), Some(4)]);
        assert_eq!(next_no(&mut window), None, "3 waits for 1");
        window.delivered(7);
        assert_eq!(next_no(&mut window), Some(3));
    }

    #[test]
    fn the_cursor_stays_before_the_first_event_without_a_fate() {
        let mut window = Window::new(1, 0);
        window.add(taken(&[(1, 7), (2, 8), (5, 9)]));
        while window.first_ready().is_some() {}
        window.delivered(8);
        window.delivered(9);
        assert_eq!((window.settlement().cursor, window.has_moved()), (0, false));
        window.written(0);
        window.delivered(7);
        assert_eq!((window.settlement().cursor, window.has_moved()), (5, true));
    }

    #[test]
    fn what_stands_behind_a_failure_waits_in_the_ledger() {
        let mut window = Window::new(1, 0);
        window.add(taken(&[(1, 7), (2, 7), (3, 7)]));
        assert_eq!(next_no(&mut window), Some(1));
        window.failed(7, UnixMs(50), Next::Again { due_at: UnixMs(90) }, "500".into());
        assert_eq!(next_no(&mut window), None);
        let settlement = window.settlement();
        let waiting =
            Fate::Waiting { attempts: 1, since: UnixMs(50), due_at: UnixMs(90), problem: "500".into() };
        let fates: Vec<_> = settlement.settled.iter().map(|settled| settled.fate.clone()).collect();
        assert_eq!(fates, [waiting, Fate::Behind, Fate::Behind]);
        assert_eq!(settlement.cursor, 3);
        window.written(3);
        assert!(!window.has_news() && window.room() == WINDOW_MAX);
    }

    #[test]
    fn a_retry_keeps_its_past_and_is_parked_with_it() {
        let mut window = Window::new(1, 9);
        let past = Past::Waiting { attempts: 4, since: UnixMs(5) };
        window.add(Taken { deliveries: vec![delivery(3, 7, past)], read_to: 9, next_due: None });
        assert_eq!(next_no(&mut window), Some(3));
        window.failed(7, UnixMs(50), Next::Park, "gone".into());
        let settlement = window.settlement();
        assert_eq!(
            settlement.settled[0].fate,
            Fate::Parked { attempts: 5, since: UnixMs(5), problem: "gone".into() }
        );
        assert_eq!(settlement.cursor, 9, "an old event does not hold the cursor");
    }

    #[test]
    fn what_is_in_hand_is_not_taken_twice_also_after_the_cursor_was_set_back() {
        let mut window = Window::new(1, 0);
        window.add(taken(&[(1, 7), (2, 8)]));
        assert_eq!(next_no(&mut window), Some(1));
        window.written(0);
        window.delivered(7);
        window.written(0);
        assert_eq!(window.read_to(), 0, "the ledger says 0 although 1 is settled: a replay");
        let moves = (window.settlement().cursor, window.has_moved());
        assert_eq!(
            moves,
            (0, false),
            "1 must be read again before the cursor may pass it, though only 2 is in hand"
        );
        window.add(taken(&[(1, 7), (2, 8)]));
        assert_eq!(
            [next_no(&mut window), next_no(&mut window), next_no(&mut window)],
            [Some(2), Some(1), None]
        );
    }

    #[test]
    fn what_is_no_longer_wanted_is_settled_unless_it_is_under_way() {
        let mut window = Window::new(1, 9);
        let deliveries = vec![
            delivery(3, 7, Past::Unwanted),
            delivery(4, 8, Past::Waiting { attempts: 1, since: UnixMs(0) }),
        ];
        window.add(Taken { deliveries, read_to: 9, next_due: None });
        window.forget(vec![(4, 8), (5, 8)]);
        assert_eq!([next_no(&mut window), next_no(&mut window)], [Some(4), None]);
        let settlement = window.settlement();
        let settled: Vec<_> = settlement.settled.iter().map(|one| (one.event_no, one.fate.clone())).collect();
        assert_eq!(settled, [(3, Fate::Delivered), (5, Fate::Delivered)]);
        assert_eq!(settlement.cursor, 9);
    }

    #[test]
    fn a_failing_receiver_is_asked_with_what_was_tried_least() {
        let mut window = Window::new(1, 9);
        let tried = |attempts| Past::Waiting { attempts, since: UnixMs(0) };
        let deliveries =
            vec![delivery(1, 1, tried(5)), delivery(2, 2, tried(3)), delivery(10, 3, Past::Fresh)];
        window.add(Taken { deliveries, read_to: 10, next_due: None });
        assert_eq!(window.probe().unwrap().event.no, 10);
        assert_eq!(window.probe().unwrap().event.no, 2);
    }
}
