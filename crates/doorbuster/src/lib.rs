//! Doorbuster: a flash-sale ordering engine. The modules stand in the order of the funnel.

/// Who gets a unit.
pub mod gate;

/// The one clock.
pub mod clock;
