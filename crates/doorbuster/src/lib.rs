//! Doorbuster: a flash-sale ordering engine. The modules stand in the order of the funnel.

/// The one clock.
pub mod clock;
