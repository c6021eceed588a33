//! The edge: where all buyers arrive and most of them are answered.

/// Who the buyer is.
pub mod auth;

/// What proves a human or costs a bot.
pub mod challenge;

/// Who may ask how fast, and how much may be under way at once.
pub mod limits;
