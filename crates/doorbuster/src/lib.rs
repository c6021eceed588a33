//! Doorbuster: a flash-sale ordering engine. The modules stand in the order of the funnel.

/// Where everybody arrives: who asks, and what it costs them to ask.
pub mod edge;

/// The one clock.
pub mod clock;
