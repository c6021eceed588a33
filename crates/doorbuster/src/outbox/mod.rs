//! What the world is told: order changes to the buyer who waits for them, and every event to the shop's webhooks.

/// Sockets and long polls.
pub mod hub;

/// Starts and stops the couriers, and tells them what is new.
pub mod dispatch;

/// One webhook's worker.
pub mod courier;

/// What a courier has in hand, in which order.
pub mod window;

/// When a failed delivery is tried again, and when a receiver is left alone.
pub mod patience;

/// Where events go.
pub mod sink;

/// Signatures by Standard Webhooks.
pub mod signature;

/// Which webhooks an operator may name.
pub mod endpoint;

/// One delivery that an operator asks for, to see whether it arrives.
pub mod trial;

pub use dispatch::Dispatch;
pub use hub::Hub;
