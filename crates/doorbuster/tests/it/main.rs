//! The integration tests of the product: one binary, so that it links once.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::as_conversions,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "tests may fail loudly, read the clock and start tasks"
)]

/// A server of its own for each test, and people who talk to it.
mod app;

/// How hard the campaigns try, and what they keep when they fail.
mod torture;

/// The real binary, as people and scripts run it.
mod cli;

/// The contract of every gate.
mod gate_contract;

/// The gate's own source under a scheduler that tries every order of steps.
mod interleavings;

/// The contract of every ledger.
mod ledger_contract;

/// A server in a process of its own.
mod served;

/// Killed processes.
mod crash;

/// Processes that die after something was done and before that is written down.
mod untold;

/// The whole engine on a disk that breaks.
mod power_cut;

/// A failing disk, as buyers see it.
mod unsure;

/// Every refusal code and every status, each met once.
mod codes;

/// Many buyers at once.
mod storm;

/// The crowd's program against a real server.
mod stampede;

/// A sale from draft to recorded order.
mod purchase;

/// The way in that docs/going-live.md shows.
mod proxy;

/// Who may call what operators call, and where.
mod operator_access;

/// Sales and offers, by their operator.
mod operator_sales;

/// Pause, resume, end; more and less stock while buyers buy.
mod operator_stock;

/// A sale's live numbers.
mod operator_stats;

/// Orders, blocks and registrations as operators see them.
mod operator_orders;

/// Copies of images.
mod images;

/// Events on their way to the shop.
mod webhooks;

/// Events as operators read them.
mod events;

/// Buyers who win and do not pay.
mod strikes;

/// The same on their way to RabbitMQ.
mod broker;

/// Planted discrepancies, and audits beside a storm.
mod audit;

/// The receiver that shops may begin with.
#[expect(dead_code, reason = "its main is for the command line")]
#[path = "../../../../examples/receiver.rs"]
mod receiver;

/// Paying, callbacks, the sandbox, refunds.
mod money;

/// Requests with an Idempotency-Key.
mod operator_repeat;

/// What buyers read without buying: sales, what is left, their own standing, the documentation.
mod buyer_catalogue;

/// Challenges and passes.
mod buyer_pass;

/// The try, with good and bad passes and bodies.
mod buyer_try;

/// Orders after the try: reading, waiting, listing, cancelling.
mod buyer_orders;

/// Units on their way back: deadlines, late money, refunds.
mod returns;

/// WebSocket and event streams.
mod push;

/// Keys that change.
mod keys;

/// What is counted on the way from a try to its order.
mod metrics;

/// Clients who mean no good, over raw sockets.
mod protection;

/// The shortcut and hyper behind it.
mod shortcut;

/// Spans on their way to a collector.
mod traces;

/// The OpenAPI document against the server, by a fuzzer.
mod schema_fuzz;
