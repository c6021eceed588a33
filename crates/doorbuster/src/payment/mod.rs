//! Money: who takes it, how they tell us, and how it goes back. This file is only the front; it decides nothing.

/// What the real providers send and want to be sent.
pub mod providers;

/// The provider that only pretends.
pub mod sandbox;

/// All providers behind one door.
pub mod port;

/// Paying, and what follows from money that came.
pub mod till;

/// The worker that closes payments at their providers.
pub mod closings;

/// The worker that returns money.
pub mod refunds;
