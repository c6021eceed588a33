//! How a commit reaches the tasks that wait for it: many answers, one wake-up per thread.
//!
//! Waking a task from another thread costs a system call, and a commit answers dozens of tasks of the same few threads.
//! So a thread may employ a postman: whoever answers leaves the wakers with him and rings once, and he wakes his own
//! thread's tasks, which costs next to nothing. A task on a thread without a postman is woken directly.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Waker};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use crate::gate::Outcome;

thread_local! {
    static POSTMAN: RefCell<Option<Arc<Postman>>> = const { RefCell::new(None) };
}

/// Wakes the tasks of one thread.
#[derive(Debug, Default)]
pub struct Postman {
    wakers: Mutex<Vec<Waker>>,
    bell: AtomicWaker,
}

impl Postman {
    /// Employs a postman for the calling thread; the future must run there, for as long as tasks of that thread wait.
    pub fn employ() -> impl Future<Output = ()> + use<> {
        let postman = Arc::new(Self::default());
        POSTMAN.set(Some(Arc::clone(&postman)));
        async move {
            let mut round = Vec::new();
            poll_fn(|context| {
                postman.bell.register(context.waker());
                std::mem::swap(&mut *postman.wakers.lock(), &mut round);
                round.drain(..).for_each(Waker::wake);
                Poll::Pending
            })
            .await
        }
    }
}

/// A question and the one answer it gets.
#[must_use]
pub fn question() -> (Answer, Reply) {
    let postman = POSTMAN.with_borrow(Option::clone);
    let slot = Arc::new(Slot { said: AtomicU8::new(NOTHING), waker: AtomicWaker::new(), postman });
    (Answer(Arc::clone(&slot)), Reply(slot))
}

#[derive(Debug)]
struct Slot {
    said: AtomicU8,
    waker: AtomicWaker,
    postman: Option<Arc<Postman>>,
}

const NOTHING: u8 = 0;
const COMMITTED: u8 = 1;
const ROLLED_BACK: u8 = 2;
const UNSURE: u8 = 3;

/// Gives the answer. Dropped without one, it says [`Outcome::Unsure`].
#[derive(Debug)]
pub struct Answer(Arc<Slot>);

impl Drop for Answer {
    fn drop(&mut self) {
        if self.0.said.load(Ordering::Acquire) == NOTHING {
            self.0.said.store(UNSURE, Ordering::Release);
            self.0.waker.wake();
        }
    }
}

/// Waits for the answer.
#[derive(Debug)]
pub struct Reply(Arc<Slot>);

impl Future for Reply {
    type Output = Outcome;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        self.0.waker.register(context.waker());
        match self.0.said.load(Ordering::Acquire) {
            NOTHING => Poll::Pending,
            COMMITTED => Poll::Ready(Outcome::Committed),
            ROLLED_BACK => Poll::Ready(Outcome::RolledBack),
            _ => Poll::Ready(Outcome::Unsure),
        }
    }
}

/// The answers of one commit. Nobody is sure to hear of them before [`Round::ring`].
#[derive(Debug, Default)]
pub struct Round {
    postmen: Vec<Arc<Postman>>,
}

impl Round {
    pub fn say(&mut self, answer: &Answer, outcome: Outcome) {
        let slot = &answer.0;
        let said = match outcome {
            Outcome::Committed => COMMITTED,
            Outcome::RolledBack => ROLLED_BACK,
            Outcome::Unsure => UNSURE,
        };
        slot.said.store(said, Ordering::Release);
        // A task that hung up, or has not begun to wait, left no waker; the latter sees the answer when it looks.
        let Some(waker) = slot.waker.take() else { return };
        let Some(postman) = &slot.postman else { return waker.wake() };
        postman.wakers.lock().push(waker);
        if !self.postmen.iter().any(|known| Arc::ptr_eq(known, postman)) {
            self.postmen.push(Arc::clone(postman));
        }
    }

    /// May be called early, too: whoever wakes up slowly then finds the rest of the answers there already.
    pub fn ring(&self) {
        for postman in &self.postmen {
            postman.bell.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(answer: &Answer, outcome: Outcome) {
        let mut round = Round::default();
        round.say(answer, outcome);
        round.ring();
    }

    #[tokio::test]
    async fn each_answer_reaches_its_question() {
        for outcome in [Outcome::Committed, Outcome::RolledBack, Outcome::Unsure] {
            let (answer, reply) = question();
            say(&answer, outcome);
            assert_eq!(reply.await, outcome);
        }
    }

    #[tokio::test]
    async fn an_answer_that_never_came_is_unsure() {
        let (answer, reply) = question();
        drop(answer);
        assert_eq!(reply.await, Outcome::Unsure);
    }

    #[test]
    fn one_ring_wakes_all_tasks_of_a_thread_and_others_are_woken_directly() {
        let (send, receive) = std::sync::mpsc::channel();
        let thread = |employs: bool| {
            let send = send.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async {
                    let mut postman = std::pin::pin!(Postman::employ());
                    if !employs {
                        POSTMAN.set(None);
                    }
                    let mut replies = futures_util::stream::FuturesUnordered::new();
                    for _ in 0..100 {
                        let (answer, reply) = question();
                        replies.push(reply);
                        send.send(answer).unwrap();
                    }
                    drop(send);
                    let all = async {
                        let mut heard = 0;
                        while let Some(outcome) = futures_util::StreamExt::next(&mut replies).await {
                            assert_eq!(outcome, Outcome::Committed);
                            heard += 1;
                        }
                        heard
                    };
                    tokio::select! { heard = all => heard, () = &mut postman => 0 }
                })
            })
        };
        let threads = [thread(true), thread(true), thread(false)];
        drop(send);
        let answers: Vec<_> = receive.iter().collect();
        assert_eq!(answers.len(), 300);
        let mut round = Round::default();
        for answer in &answers {
            round.say(answer, Outcome::Committed);
        }
        assert!(round.postmen.len() <= 2, "{}", round.postmen.len());
        round.ring();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 100);
        }
    }
}
