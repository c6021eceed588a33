//! What an audit can find, by name: what it means, how sure one look makes it, who mends it. The auditor looks; the
//! names are here because tables, events, receivers and people use them. Knows no tables and no gate.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How often a discrepancy must be seen to be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cuts {
    /// Once: all of it is read in one snapshot of the ledger, in which nothing is under way.
    One,
    /// The same evidence in two cuts a while apart: gate and ledger are read one after the other, and what is on its
    /// way between them must have time to arrive.
    Two,
}

/// By which idempotent verb a discrepancy is mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mending {
    /// The offer's counters are counted anew from its orders.
    Recount,
    /// The gate's free units become what stock and held orders leave.
    Level,
    /// The gate is told that the order ended, as its release would have done.
    Release,
    /// The gate forgets a claim that nobody will ever record.
    Forget,
    /// The gate is told of the order, as at its start.
    Seed,
    /// The sale is preheated again.
    Preheat,
    /// The capture is decided now, as its worker would do.
    Settle,
    /// The strike is lifted, as the operator would do.
    Lift,
    /// The webhook's cursor goes back to the newest event.
    HoldBack,
    /// Deliveries of events that are no longer kept are dropped.
    Drop,
    /// Nothing is proven safe: a person must look.
    Person,
}

macro_rules! kinds {
    ($($name:ident = $code:literal $cuts:ident $mending:ident $means:literal $todo:literal;)*) => {
        /// What an audit can find. The codes are stable: reports, events and receivers name them.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
        pub enum Kind { $(#[doc = $means] #[serde(rename = $code)] $name,)* }

        impl Kind {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            /// What it means, in a sentence.
            #[must_use]
            pub const fn means(self) -> &'static str {
                match self { $(Self::$name => $means,)* }
            }

            /// What to do about it.
            #[must_use]
            pub const fn todo(self) -> &'static str {
                match self { $(Self::$name => $todo,)* }
            }

            #[must_use]
            pub const fn cuts(self) -> Cuts {
                match self { $(Self::$name => Cuts::$cuts,)* }
            }

            #[must_use]
            pub const fn mending(self) -> Mending {
                match self { $(Self::$name => Mending::$mending,)* }
            }
        }
    };
}

kinds! {
    Oversold = "oversold" One Person
        "More units are live than the offer has."
        "Raise the stock if the units exist; otherwise refund orders until it fits.";
    LiveCounter = "live_counter" One Recount
        "The offer's counter of live units is not what its orders hold."
        "Repair recounts it. If the orders hold more than the stock, see `oversold` first.";
    PaidCounter = "paid_counter" One Recount
        "The offer's counter of paid units is not what its paid orders hold."
        "Repair recounts it.";
    OneLiveOrder = "one_live_order" One Person
        "A buyer has two live orders of one offer."
        "Ask the buyer which one is meant; cancel or refund the other.";
    OrderState = "order_state" One Person
        "An order is in a state that no order can be in."
        "Its events tell what happened to it. Put the row right from there, or from a backup.";
    UnreadableRow = "unreadable_row" One Person
        "A row of the ledger cannot be read: a newer version, or somebody by hand, wrote something there that this version does not know."
        "Run the version that wrote it, or put the row right from its events or from a backup. Until then it is left alone, and what hangs on it is not judged.";
    UnpaidOverdue = "unpaid_overdue" One Person
        "An order is past its deadline and still unpaid; its units are held for nobody."
        "The sweeper does not work or cannot reach the provider: read its log, then restart the server.";
    EventGap = "event_gap" One Person
        "An order has not exactly one event for every change of it: its receivers missed one, or heard one twice."
        "Tell the receivers how the order stands now; `GET /admin/v1/orders/{order}` shows it.";
    StockUntold = "stock_untold" One Person
        "The offer's stock is not what the last change of it said: a refund's units returned or left unseen, or somebody changed the table."
        "Compare with the shop's own count, then correct it with `doorbuster sale stock`.";
    PaidWithoutPayment = "paid_without_payment" One Person
        "An order counts as paid, and no payment paid it."
        "Look the order up at the provider. If money is there, its callback can be sent again; if not, refund the order by hand.";
    PaymentWithoutOrder = "payment_without_order" One Person
        "A payment counts as applied, and its order is not paid."
        "The buyer has paid for nothing. Refund the payment at the provider, or put the order right.";
    PaidTwice = "paid_twice" One Person
        "Two payments pay one order."
        "Refund one of them at the provider.";
    MoneyDisagrees = "money_disagrees" One Person
        "An order and the payment that paid it tell different stories."
        "The provider knows whether the money went back. Put the one right that is wrong.";
    WrongAmount = "wrong_amount" One Person
        "An order was paid with another amount or currency than its total."
        "Ask the provider for the capture. Refund it, or settle the difference with the buyer.";
    CaptureUndecided = "capture_undecided" One Settle
        "Money was captured, and for too long nobody has decided what it pays."
        "Repair decides it, if it can be decided. If it stays, the worker that decides captures does not work: read its log.";
    RefundStuck = "refund_stuck" One Person
        "Money must go back, and for too long its provider was not asked, or did not return it."
        "Asked lately: look for the refund in the provider's console. Otherwise the worker for refunds does not work, or its provider is no longer in the settings: read its log.";
    RefundedElsewhere = "refunded_elsewhere" One Person
        "The money that paid an order went back outside of Doorbuster, and the order still counts as paid."
        "If the buyer is not to have the goods, refund the order: the provider is not asked again, and its units return or leave the stock as you say.";
    StrikeWithoutLapse = "strike_without_lapse" One Lift
        "A buyer has a strike for an order that was not left unpaid."
        "Repair lifts it.";
    WebhookCursor = "webhook_cursor" One HoldBack
        "A webhook is marked as told of events that do not exist yet; it would miss them."
        "Repair sets the mark back. Replay the webhook from the time of the last restore.";
    DeliveryWithoutEvent = "delivery_without_event" One Drop
        "Deliveries wait for events that are no longer kept."
        "Repair drops them. Their receiver has missed these events.";
    CursorBehind = "cursor_behind" One Person
        "The ledger holds orders that its clerk's cursor has not reached: ledger and cursor are of different moments."
        "Restore ledger and journal from one backup.";
    JournalShort = "journal_short" One Person
        "The ledger has recorded claims that the journal does not reach: the journal was replaced or lost."
        "Restore the journal from the same moment as the ledger. The server refuses to start until then.";
    JournalForeign = "journal_foreign" One Person
        "The journal belongs to another ledger."
        "Put the files of one backup together. The server refuses to start until then.";
    ClaimWithoutOrder = "claim_without_order" One Person
        "The journal holds a claim that the clerk has passed, and the ledger holds no order for it: its buyer waits for nothing."
        "Keep the files and report it. Tell the buyer; the evidence names them.";
    ClaimUnrecordable = "claim_unrecordable" One Person
        "The journal holds a claim whose offer does not exist or has too few units; the server refuses to start with it."
        "Restore ledger and journal from one backup; or raise the offer's stock, if the units exist.";
    ClaimStuck = "claim_stuck" One Person
        "A claim has waited too long to be recorded."
        "The clerk cannot write, or has lost it: look at the disk and the log. A restart reads it from the journal again.";
    GateUnits = "gate_units" Two Level
        "The gate's free units are not what stock and held orders leave."
        "Repair sets them. A restart rebuilds the gate, too.";
    GateUnknownOrder = "gate_unknown_order" Two Forget
        "The gate holds units for an order that is neither recorded nor on its way."
        "Repair frees the units once the queue is empty. A restart rebuilds the gate, too.";
    GateMissingOrder = "gate_missing_order" Two Seed
        "The ledger has a live order that the gate does not know; its buyer could take a second one."
        "Repair tells the gate. A restart rebuilds it, too.";
    GateEndedOrder = "gate_ended_order" Two Release
        "An order has ended and the gate still holds its units: nobody can have them."
        "Repair releases them. A restart rebuilds the gate, too.";
    GateQuantity = "gate_quantity" Two Person
        "The gate holds another number of units for an order than the ledger."
        "Restart the server: the gate is rebuilt from the ledger.";
    GateChangeNo = "gate_change_no" Two Person
        "The gate has seen changes of the offer's stock that the ledger has not made; it would ignore the next ones."
        "Restart the server: the gate is rebuilt from the ledger.";
    GateUnknownOffer = "gate_unknown_offer" Two Preheat
        "The gate does not know an offer that is on sale: nobody can buy it."
        "Repair preheats the sale, as `doorbuster preheat` does.";
}

impl Kind {
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names_of_their_own_and_say_what_to_do() {
        let mut names: Vec<_> = Kind::ALL.iter().map(|kind| kind.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::ALL.len());
        for kind in Kind::ALL {
            assert_eq!(Kind::parse(kind.as_str()), Some(*kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
            assert!(kind.means().ends_with('.') && kind.todo().ends_with('.'), "{kind}");
        }
    }

    /// What compares the gate with the ledger reads two places one after the other; nothing else does.
    #[test]
    fn only_what_is_seen_at_the_gate_needs_two_looks() {
        for kind in Kind::ALL {
            assert_eq!(kind.cuts() == Cuts::Two, kind.as_str().starts_with("gate_"), "{kind}");
        }
    }
}
