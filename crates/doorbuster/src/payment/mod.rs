//! Money: who takes it, and how they tell us. This file is only the front; it decides nothing.

/// What the real providers send and want to be sent.
pub mod providers;
