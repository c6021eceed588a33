//! What somebody could get wrong. Each is planted into the model on its own, and the checker must find it out.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// Late money makes the order paid in the ledger; the gate does not hear of it.
    ReviveWithoutGate,
    /// The gate is asked for the revival while it still counts the closed order as live, and its "repeat" is taken for
    /// a grant.
    ReviveBeforeRelease,
    /// When the gate has closed, the ledger decides alone without waiting for the queue.
    LedgerDecidesTooEarly,
    /// A revival whose money was decided meanwhile is taken for one that is recorded already.
    DecidedMoneyLooksRecorded,
    /// The spent pass of the order hides from the gate that its buyer has another live order.
    SpentPassHidesOtherOrder,
    /// A rebuilt gate does not remember which releases it was built with.
    ReleaseAgainAfterCrash,
    /// Releases are told apart by order alone, not by (order, seq).
    ReleaseOncePerOrder,
    /// A claim that is delivered again after its order has ended is released under a number of its own.
    ReleaseOnRedelivery,
    /// The gate lets go of what an order holds by a release that is older than that.
    EarlierReleaseCounts,
    /// A claim for late money whose order has moved on and ended is taken for one that is recorded already.
    TooLateLooksRecorded,
    /// The gate is rebuilt from the ledger alone.
    RebuildWithoutJournal,
    /// The rebuilt gate does not know which passes are spent.
    RebuildWithoutSpentPasses,
    /// Settling takes every closed order for one that timed out.
    SettleIgnoresCancelled,
    /// Settling does not see that the order has its money.
    ApplySecondCapture,
    /// The sweeper does not look for captures that are written down and not settled.
    TimeoutIgnoresCapture,
    /// Nor does the cancel.
    CancelIgnoresCapture,
    /// Callbacks are told apart by the id of the event, not of the capture.
    DedupeByEvent,
    /// Asking the provider again for a refund is a new request to it.
    RefundWithFreshKey,
    /// The order becomes refunded and its release is forgotten.
    RefundStrandsUnits,
}
