//! What the watchman knows of a connection: what it is doing, and since when. Who looks at it and what is too long is
//! the server's business.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Frame, SizeHint};

use super::answer::Body;

/// One word: phase in the low three bits, since when in the others.
#[derive(Debug)]
pub struct Watch {
    state: AtomicU64,
    now_ms: Arc<AtomicU64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// Nothing has come since the last answer.
    Idle = 0,
    /// A request's head has begun.
    Head = 1,
    /// A request is being answered; its own limits apply.
    Working = 2,
    /// The answer is made, but not all of it has been taken by the client.
    Sending = 3,
    /// More of the answer is to come, and the client does not take what there is.
    Stuck = 4,
}

const PHASE_BITS: u32 = 3;

impl Watch {
    /// A connection that nothing has come on. `now_ms` is its thread's clock, which its watchman moves.
    #[must_use]
    pub fn new(now_ms: Arc<AtomicU64>) -> Self {
        let watch = Self { state: AtomicU64::new(0), now_ms };
        watch.set(Doing::Idle);
        watch
    }

    pub fn set(&self, doing: Doing) {
        let phase = match doing {
            Doing::Idle => 0,
            Doing::Head => 1,
            Doing::Working => 2,
            Doing::Sending => 3,
            Doing::Stuck => 4,
        };
        self.state.store((self.now_ms.load(Ordering::Relaxed) << PHASE_BITS) | phase, Ordering::Release);
    }

    pub fn get(&self) -> (Doing, u64) {
        let state = self.state.load(Ordering::Acquire);
        let doing = match state & ((1 << PHASE_BITS) - 1) {
            0 => Doing::Idle,
            1 => Doing::Head,
            2 => Doing::Working,
            3 => Doing::Sending,
            _ => Doing::Stuck,
        };
        (doing, state >> PHASE_BITS)
    }

    pub fn bytes_came(&self) {
        if self.get().0 == Doing::Idle {
            self.set(Doing::Head);
        }
    }

    /// A client that takes bytes, however slowly, is there.
    pub fn bytes_went(&self) {
        if let doing @ (Doing::Sending | Doing::Stuck) = self.get().0 {
            self.set(doing);
        }
    }

    /// The client does not take what there is of an answer.
    pub fn bytes_wait(&self) {
        if self.get().0 == Doing::Working {
            self.set(Doing::Stuck);
        }
    }

    pub fn all_went(&self) {
        match self.get().0 {
            Doing::Sending => self.set(Doing::Idle),
            Doing::Stuck => self.set(Doing::Working),
            Doing::Idle | Doing::Head | Doing::Working => {}
        }
    }

    /// Keeps count of what a write did.
    pub fn wrote(&self, written: &Poll<std::io::Result<usize>>) {
        match written {
            Poll::Ready(Ok(1..)) => self.bytes_went(),
            Poll::Ready(_) => {}
            Poll::Pending => self.bytes_wait(),
        }
    }
}

/// A body that tells the watchman when it is through.
#[derive(Debug)]
pub struct WatchedBody {
    pub body: Body,
    pub watch: Arc<Watch>,
}

impl Drop for WatchedBody {
    fn drop(&mut self) {
        self.watch.set(Doing::Sending);
    }
}

impl hyper::body::Body for WatchedBody {
    type Data = bytes::Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
