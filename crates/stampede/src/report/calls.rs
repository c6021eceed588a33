//! What each line of a history is to the report: a kind of call and a kind of answer. The one place to extend when
//! buyers learn to hear something new.

use rules::order::State;
use rules::wire::Code;
use serde::Serialize;

use crate::history::{Call, What};

/// Kinds of calls; each has its own latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Page,
    Pass,
    Order,
    Follow,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Page, Self::Pass, Self::Order, Self::Follow];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Page => "page",
            Self::Pass => "pass",
            Self::Order => "order",
            Self::Follow => "follow",
        }
    }

    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Page => "page: sale, time, registration",
            Self::Pass => "pass: the right to try",
            Self::Order => "order: the try itself",
            Self::Follow => "follow: waiting for the order’s news",
        }
    }
}

/// Kinds of answers, in the order in which they are stacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer {
    Granted,
    SoldOut,
    Wait,
    Refused,
    Failed,
    Follow,
    Pass,
    Page,
}

impl Answer {
    pub const ALL: [Self; 8] = [
        Self::Granted,
        Self::SoldOut,
        Self::Wait,
        Self::Refused,
        Self::Failed,
        Self::Follow,
        Self::Pass,
        Self::Page,
    ];

    /// Also the name of its colour in the style sheet.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::SoldOut => "sold_out",
            Self::Wait => "wait",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Follow => "follow",
            Self::Pass => "pass",
            Self::Page => "page",
        }
    }

    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Granted => "order granted",
            Self::SoldOut => "sold out",
            Self::Wait => "wait: too early, too fast, busy",
            Self::Refused => "other refusal",
            Self::Failed => "failed or no answer",
            Self::Follow => "news of an order",
            Self::Pass => "pass given",
            Self::Page => "page data",
        }
    }

    pub const fn index(self) -> usize {
        match self {
            Self::Granted => 0,
            Self::SoldOut => 1,
            Self::Wait => 2,
            Self::Refused => 3,
            Self::Failed => 4,
            Self::Follow => 5,
            Self::Pass => 6,
            Self::Page => 7,
        }
    }
}

/// One call and its answer, as the report counts it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange<'a> {
    pub kind: Kind,
    pub answer: Answer,
    /// 0: there was none.
    pub status: u16,
    pub code: &'a str,
    /// Whether the time it took says something about the server in the sale.
    pub timed: bool,
}

/// `None`: nothing was asked of the server.
pub(super) fn exchange(what: &What) -> Option<Exchange<'_>> {
    let plain = |kind, answer, status, code| Exchange { kind, answer, status, code, timed: true };
    let exchange = match what {
        What::Window { .. } => plain(Kind::Page, Answer::Page, 200, "sale"),
        What::Offset { .. } => plain(Kind::Page, Answer::Page, 200, "time"),
        What::Registered => plain(Kind::Page, Answer::Page, 201, "registered"),
        What::Pass { .. } => plain(Kind::Pass, Answer::Pass, 200, "pass"),
        What::Order { status, order, .. } => {
            let answer = if order.state == State::Refused { Answer::Refused } else { Answer::Granted };
            plain(Kind::Order, answer, *status, order.state.as_str())
        }
        // The last looks come after the sale: nobody waited for them.
        What::Looked { found, last, .. } => {
            let (status, code) =
                found.map_or((404, Code::NotFound.as_str()), |seen| (200, seen.state.as_str()));
            Exchange { timed: !last, ..plain(Kind::Follow, Answer::Follow, status, code) }
        }
        // Nobody asked for a push at that moment, so nobody waited for it.
        What::Pushed { order } => {
            Exchange { timed: false, ..plain(Kind::Follow, Answer::Follow, 200, order.state.as_str()) }
        }
        What::Cancelled { order } => plain(Kind::Follow, Answer::Follow, 200, order.state.as_str()),
        What::Payment { .. } => plain(Kind::Follow, Answer::Follow, 200, "payment"),
        What::Paid { .. } => plain(Kind::Follow, Answer::Follow, 200, "sandbox_told"),
        What::NoPayment { .. } => plain(Kind::Follow, Answer::Refused, 404, "no_payment"),
        What::Refused { call, status, code, .. } => plain(kind(*call), refusal(*status, code), *status, code),
        What::Broken { call, .. } => {
            Exchange { timed: false, ..plain(kind(*call), Answer::Failed, 0, "no_answer") }
        }
        What::HungUp { .. } => {
            Exchange { timed: false, ..plain(Kind::Order, Answer::Refused, 0, "buyer_hung_up") }
        }
        What::Watching => Exchange { timed: false, ..plain(Kind::Follow, Answer::Follow, 200, "watching") },
        What::GaveUp { .. } | What::NotPushed { .. } => return None,
    };
    Some(exchange)
}

const fn kind(call: Call) -> Kind {
    match call {
        Call::LogIn | Call::Sale | Call::Time | Call::Registration => Kind::Page,
        Call::Challenge | Call::Pass => Kind::Pass,
        Call::Try => Kind::Order,
        Call::Look | Call::Push | Call::Payment | Call::Sandbox | Call::Cancel => Kind::Follow,
    }
}

fn refusal(status: u16, code: &str) -> Answer {
    let is = |known: Code| known.as_str() == code;
    match status {
        425 | 429 => Answer::Wait,
        _ if is(Code::SoldOut) || is(Code::NotEnough) => Answer::SoldOut,
        _ if is(Code::Busy) || is(Code::Paused) || is(Code::NotReady) => Answer::Wait,
        500.. => Answer::Failed,
        _ => Answer::Refused,
    }
}
