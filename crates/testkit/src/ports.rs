//! Finds ports for servers that cannot say which one the kernel gave them. Knows nothing of who listens there.

use std::fs;
use std::net::TcpListener;

use rand::RngExt as _;

/// Services of the machine have their ports below it.
const LOWEST_PORT: u16 = 10_000;

/// How many ports are tried before any is good enough.
const TRIES: u32 = 100;

/// A port below those that the kernel gives to whoever asks for any: it is let go and taken again seconds later, and
/// nobody is given it in between.
pub fn take() -> anyhow::Result<TcpListener> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let given_from = range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(0);
    for _ in 0..TRIES {
        if given_from <= LOWEST_PORT {
            break;
        }
        let port = rand::rng().random_range(LOWEST_PORT..given_from);
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            return Ok(listener);
        }
    }
    Ok(TcpListener::bind("127.0.0.1:0")?)
}
