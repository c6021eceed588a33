//! The edge: everybody arrives here, few pass.

/// Who the buyer is.
pub mod auth;

/// What proves a human or costs a bot.
pub mod challenge;
