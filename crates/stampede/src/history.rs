//! What one buyer asked and was told, and when. It records and does not judge; `verdict` judges. A history can be
//! written to a file and judged later.

use std::collections::BTreeSet;

use rules::id::{OfferId, OrderId};
use rules::order::{Reason, State};
use rules::time::UnixMs;
use rules::wire::{Code, OrderView};
use serde::{Deserialize, Serialize};

/// All that one buyer was told, in the order of hearing it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct History {
    pub buyer: String,
    pub events: Vec<Told>,
}

/// One exchange. Times are microseconds since the crowd was let loose.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Told {
    pub asked_us: u64,
    pub told_us: u64,
    #[serde(flatten)]
    pub what: What,
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    LogIn,
    Sale,
    Time,
    Registration,
    Challenge,
    Pass,
    /// A try: the POST of an order.
    Try,
    /// A look at an order.
    Look,
    /// A WebSocket or an event stream.
    Push,
    Payment,
    /// The sandbox provider is told that the buyer has paid.
    Sandbox,
    Cancel,
}

impl Call {
    /// As a sentence says it: "asked for …".
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::LogIn => "a token",
            Self::Sale => "the sale",
            Self::Time => "the time",
            Self::Registration => "a registration",
            Self::Challenge => "a challenge",
            Self::Pass => "a pass",
            Self::Try => "an order",
            Self::Look => "a look at an order",
            Self::Push => "news",
            Self::Payment => "a payment",
            Self::Sandbox => "the sandbox's callback",
            Self::Cancel => "a cancel",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "told", rename_all = "snake_case")]
pub enum What {
    /// The sale's window, as a page shows it, and what this buyer wants of it.
    Window {
        opens_at: UnixMs,
        closes_at: UnixMs,
        #[serde(default)]
        wish: Option<Wish>,
    },
    /// The server's clock is this far ahead of ours, in milliseconds.
    Offset {
        ms: i64,
    },
    Registered,
    /// A pass for the order `order`.
    Pass {
        offer: OfferId,
        order: OrderId,
        expires_at: UnixMs,
    },
    /// A try was answered with an order. `pass` is the order the pass was given for.
    Order {
        status: u16,
        pass: OrderId,
        asked: u32,
        order: Seen,
    },
    /// The order was looked at; `last` marks the look after everything was over. None: it is not there.
    Looked {
        id: OrderId,
        found: Option<Seen>,
        last: bool,
    },
    /// The order came by itself, over a WebSocket or an event stream.
    Pushed {
        order: Seen,
    },
    /// A WebSocket or an event stream was open, and the server knew who listens.
    Watching,
    /// Nothing about the order came over a socket that stayed open, although a look showed what had become of it.
    NotPushed {
        order: OrderId,
    },
    /// The buyer cancelled and was shown the order after it.
    Cancelled {
        order: Seen,
    },
    /// A payment was started.
    Payment {
        order: OrderId,
        payment_id: String,
    },
    /// The provider took the money and tells the shop so many times. `late`: after the order's `pay_by`.
    Paid {
        order: OrderId,
        payment_id: String,
        times: u32,
        late: bool,
    },
    /// The server does not know payments.
    NoPayment {
        order: OrderId,
    },
    /// A refusal with its code. `pass` names the try's pass, `other` the order that stands in the way.
    Refused {
        call: Call,
        offer: Option<OfferId>,
        status: u16,
        code: String,
        pass: Option<OrderId>,
        other: Option<OrderId>,
    },
    /// No answer: whatever was asked may or may not have happened.
    Broken {
        call: Call,
        pass: Option<OrderId>,
        why: String,
    },
    /// The buyer hung up in the middle of a try, after so many bytes.
    HungUp {
        pass: OrderId,
        bytes: usize,
    },
    /// The buyer goes home, with the last clear refusal or without an answer.
    GaveUp {
        why: String,
    },
}

impl What {
    /// The order that was shown.
    #[must_use]
    pub const fn shows(&self) -> Option<&Seen> {
        match self {
            Self::Order { order, .. } | Self::Pushed { order } | Self::Cancelled { order } => Some(order),
            Self::Looked { found, .. } => found.as_ref(),
            _ => None,
        }
    }

    /// The pass of a try, by the order it was given for.
    #[must_use]
    pub const fn tried_with(&self) -> Option<OrderId> {
        match self {
            Self::Order { pass, .. } | Self::HungUp { pass, .. } => Some(*pass),
            Self::Broken { call: Call::Try, pass, .. } | Self::Refused { call: Call::Try, pass, .. } => *pass,
            _ => None,
        }
    }
}

/// What a buyer wants, and what the page says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    pub offer: OfferId,
    /// Units in one order.
    pub quantity: u32,
    pub max_per_order: u32,
}

/// An order as it was shown at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    pub id: OrderId,
    pub offer: OfferId,
    pub quantity: u32,
    pub state: State,
    pub reason: Option<Reason>,
    pub seq: u32,
    pub created_at: UnixMs,
    #[serde(default)]
    pub pay_by: Option<UnixMs>,
    #[serde(default)]
    pub closed_at: Option<UnixMs>,
}

impl Seen {
    /// Whether the order holds units.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        match self.state {
            State::Queued | State::AwaitingPayment | State::Paid | State::Refunding | State::RefundFailed => {
                true
            }
            State::Closed | State::Refused | State::Refunded => false,
        }
    }
}

impl From<&OrderView> for Seen {
    fn from(view: &OrderView) -> Self {
        Self {
            id: view.id,
            offer: view.offer_id,
            quantity: view.quantity,
            state: view.state,
            reason: view.reason,
            seq: view.seq,
            created_at: view.created_at,
            pay_by: view.pay_by,
            closed_at: view.closed_at,
        }
    }
}

/// How a person says that a clear refusal kept the pass away.
pub(crate) const NO_PASS: &str = "no pass: ";
/// The same of the order.
pub(crate) const NO_ORDER: &str = "no order: ";

/// How a person says that the crowd could not go on, which is not the shop's doing.
pub(crate) const OUR_OWN: &str = "the crowd itself: ";

/// How somebody says it who was sent home, with everybody, before the end.
pub(crate) const BROKEN_OFF: &str = "the crowd itself: broken off";

/// Whether who gave up had been told something clear: "no pass: blocked" is an answer, "no pass in time" is none.
pub(crate) fn is_an_answer(why: &str) -> bool {
    why.starts_with(NO_PASS) || why.starts_with(NO_ORDER)
}

/// Whether who gave up was told to come later, to the last: that is how a shop sheds what it cannot serve.
pub(crate) fn was_shed(why: &str) -> bool {
    let code = why.strip_prefix(NO_PASS).or_else(|| why.strip_prefix(NO_ORDER));
    code.is_some_and(is_shedding)
}

/// Whether who gave up did so for a reason that lies with the crowd.
pub(crate) fn is_our_own(why: &str) -> bool {
    why.starts_with(OUR_OWN)
}

/// Whether a code is a clear "not now" that says nothing about the sale.
pub(crate) fn is_shedding(code: &str) -> bool {
    [Code::Busy, Code::TooFast].iter().any(|shed| shed.as_str() == code)
}

impl History {
    #[must_use]
    pub const fn new(buyer: String) -> Self {
        Self { buyer, events: Vec::new() }
    }

    /// The server's clock minus the crowd's, in milliseconds, as this buyer knows it.
    #[must_use]
    pub fn offset_ms(&self) -> Option<i64> {
        self.events.iter().find_map(|told| match &told.what {
            What::Offset { ms } => Some(*ms),
            _ => None,
        })
    }

    /// What this buyer wants; `None` in a history that was kept before that was written down, or without a page.
    #[must_use]
    pub fn wish(&self) -> Option<Wish> {
        self.events.iter().find_map(|told| match &told.what {
            What::Window { wish, .. } => *wish,
            _ => None,
        })
    }

    /// Every time an order was shown to this buyer, in order.
    pub fn seen(&self) -> impl Iterator<Item = (&Told, &Seen)> {
        self.events.iter().filter_map(|told| Some((told, told.what.shows()?)))
    }

    /// Each order this buyer has seen, as it was last shown.
    #[must_use]
    pub fn orders(&self) -> Vec<Seen> {
        let mut orders: Vec<Seen> = Vec::new();
        for (_, seen) in self.seen() {
            match orders.iter_mut().find(|order| order.id == seen.id) {
                Some(order) => *order = *seen,
                None => orders.push(*seen),
            }
        }
        orders
    }

    /// Why this buyer went home, if that was without any answer that ends the matter.
    #[must_use]
    pub fn unanswered(&self) -> Option<&str> {
        let answered = |told: &Told| match &told.what {
            What::Refused { code, .. } => code == Code::SoldOut.as_str(),
            What::HungUp { .. } => true,
            _ => false,
        };
        if self.seen().next().is_some() || self.events.iter().any(answered) {
            return None;
        }
        self.events.iter().find_map(|told| match &told.what {
            What::GaveUp { why } if !is_an_answer(why) && !is_our_own(why) => Some(why.as_str()),
            _ => None,
        })
    }

    /// Why the crowd itself sent this buyer home, if it did.
    #[must_use]
    pub fn our_own(&self) -> Option<&str> {
        self.events.iter().find_map(|told| match &told.what {
            What::GaveUp { why } if is_our_own(why) => Some(why.as_str()),
            _ => None,
        })
    }

    /// The code of the last try that was refused.
    #[must_use]
    pub fn last_refused_try(&self) -> Option<&str> {
        self.events.iter().rev().find_map(|told| match &told.what {
            What::Refused { call: Call::Try, code, .. } => Some(code.as_str()),
            _ => None,
        })
    }

    /// The code of the last refusal.
    #[must_use]
    pub fn last_refusal(&self) -> Option<&str> {
        self.events.iter().rev().find_map(|told| match &told.what {
            What::Refused { code, .. } => Some(code.as_str()),
            _ => None,
        })
    }

    /// The offer of the last pass.
    #[must_use]
    pub fn offer(&self) -> Option<OfferId> {
        self.events.iter().rev().find_map(|told| match &told.what {
            What::Pass { offer, .. } => Some(*offer),
            _ => None,
        })
    }

    /// Whether a try of this buyer was left without an answer.
    #[must_use]
    pub fn has_open_try(&self) -> bool {
        let open = |what: &What| matches!(what, What::HungUp { .. } | What::Broken { call: Call::Try, .. });
        self.events.iter().any(|told| open(&told.what))
    }

    /// Whether this buyer tried for the order, whatever came of it.
    #[must_use]
    pub fn tried_for(&self, order: OrderId) -> bool {
        self.events.iter().any(|told| told.what.tried_with() == Some(order))
    }

    /// Orders that exist or may exist: what a last look must look at. A try that was clearly refused made none.
    #[must_use]
    pub fn to_look_at(&self) -> BTreeSet<OrderId> {
        let mut orders = BTreeSet::new();
        for told in &self.events {
            match &told.what {
                What::Order { order, .. } | What::Pushed { order } | What::Cancelled { order } => {
                    orders.extend([order.id]);
                }
                What::Looked { id, .. } => orders.extend([*id]),
                What::Broken { call: Call::Try, pass, .. } => orders.extend(*pass),
                What::HungUp { pass, .. } => orders.extend([*pass]),
                What::Refused { call: Call::Try, status, code, pass, other, .. } => {
                    orders.extend(*other);
                    if is_unsure(*status, code) {
                        orders.extend(*pass);
                    }
                }
                _ => {}
            }
        }
        orders
    }
}

/// Whether a refused try may have happened all the same.
#[must_use]
pub fn is_unsure(status: u16, code: &str) -> bool {
    let certain = [Code::Busy, Code::NotReady].iter().any(|certain| certain.as_str() == code);
    status >= 500 && !certain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_survives_its_file() {
        let order = OrderId(5);
        let told = |what| Told { asked_us: 1, told_us: 2, what };
        let history = History {
            buyer: "ann".into(),
            events: vec![
                told(What::Pass { offer: OfferId(1), order, expires_at: UnixMs(1_800_000_000_000) }),
                told(What::HungUp { pass: order, bytes: 10 }),
                told(What::Looked { id: order, found: None, last: true }),
            ],
        };
        let file = serde_json::to_string(&history).unwrap();
        let read: History = serde_json::from_str(&file).unwrap();
        assert_eq!(format!("{read:?}"), format!("{history:?}"));
        assert!(file.contains(r#""told":"hung_up""#), "{file}");
    }

    #[test]
    fn only_what_may_exist_is_looked_at_again() {
        let refused = |pass, code: Code, other| Told {
            asked_us: 0,
            told_us: 0,
            what: What::Refused {
                call: Call::Try,
                offer: None,
                status: code.status(),
                code: code.as_str().into(),
                pass: Some(OrderId(pass)),
                other,
            },
        };
        let events = vec![
            refused(1, Code::Busy, None),
            refused(2, Code::SoldOut, None),
            refused(3, Code::Unsure, None),
            refused(4, Code::AlreadyOrdered, Some(OrderId(9))),
            refused(5, Code::Internal, None),
        ];
        let history = History { buyer: "ann".into(), events };
        assert_eq!(history.to_look_at(), BTreeSet::from([OrderId(3), OrderId(5), OrderId(9)]));
    }
}
