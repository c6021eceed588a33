//! The edge: where all buyers arrive and most of them are answered.

/// New connections, no more than are looked at.
pub mod accept;

/// Sockets, threads, deadlines.
pub mod server;

/// What a connection is doing, for the watchman.
pub mod watch;

/// Tries that arrive whole, answered at the socket.
pub mod shortcut;

/// All calls but the try, and the limits they meet.
pub mod router;

/// The try.
pub mod buy;

/// What buyers call besides.
pub mod buyer;

/// What operators call.
pub mod operator;

/// What payment providers call.
pub mod callback;

/// The provider that only pretends, and its page.
pub mod sandbox;

/// Alive, ready, metrics.
pub mod health;

/// Our copies of images.
pub mod images;

/// The OpenAPI document.
pub mod openapi;

/// Who the buyer is.
pub mod auth;

/// What proves a human or costs a bot.
pub mod challenge;

/// Who may ask how fast, and how much may be under way at once.
pub mod limits;

/// What handlers take out of a request.
pub mod extract;

/// What does not fit, in words.
mod misfit;

/// Bodies, bounded.
pub mod body;

/// Answers as bytes.
pub mod answer;

/// Answers as HTTP/1 messages.
pub mod message;

/// Answers that may be kept.
pub mod cached;

/// The edge's one error type.
pub mod refusal;

/// The lines of `X-Forwarded-For`, as they came.
fn forwarded_for(headers: &http::HeaderMap) -> impl DoubleEndedIterator<Item = &str> {
    headers.get_all("x-forwarded-for").iter().filter_map(|line| line.to_str().ok())
}
