//! What the world is told: order changes to the buyer who waits for them.

pub mod hub;

pub use hub::Hub;
