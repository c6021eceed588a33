//! A claim: units that the gate granted to a buyer under an order id, and how it is written down.

use std::sync::Arc;

use rules::buyer::BuyerId;
use rules::id::{OfferId, OrderId};
use rules::time::UnixMs;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub order: OrderId,
    pub offer: OfferId,
    pub buyer: BuyerId,
    pub quantity: u32,
    pub claimed_at: UnixMs,
    pub pass_expires_at: UnixMs,
}

/// Written before every batch, so that a later version can tell what it reads.
const FORMAT: u8 = 1;

/// A claim as it stands in the journal.
#[derive(Serialize, Deserialize)]
struct Frame<'a> {
    order: u128,
    offer: u128,
    buyer: &'a str,
    quantity: u32,
    claimed_at: i64,
    pass_expires_at: i64,
}

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a journal entry was written in format {0}, this version reads format {FORMAT}")]
    Format(u8),
    #[error("a journal entry is damaged: {0}")]
    Damaged(String),
}

/// Appends the batch to `out`.
pub fn encode<'a>(claims: impl Iterator<Item = &'a Claim>, out: &mut Vec<u8>) -> Result<(), FrameError> {
    out.push(FORMAT);
    for claim in claims {
        let frame = Frame {
            order: claim.order.0,
            offer: claim.offer.0,
            buyer: claim.buyer.as_str(),
            quantity: claim.quantity,
            claimed_at: claim.claimed_at.0,
            pass_expires_at: claim.pass_expires_at.0,
        };
        postcard::to_io(&frame, &mut *out).map_err(|error| FrameError::Damaged(error.to_string()))?;
    }
    Ok(())
}

/// Reads what [`encode`] wrote.
pub fn decode(bytes: &[u8]) -> Result<Vec<Arc<Claim>>, FrameError> {
    let damaged = |reason: &dyn std::fmt::Display| FrameError::Damaged(reason.to_string());
    let (format, mut rest) = bytes.split_first().ok_or_else(|| damaged(&"it is empty"))?;
    if *format != FORMAT {
        return Err(FrameError::Format(*format));
    }
    let mut claims = Vec::new();
    while !rest.is_empty() {
        let (frame, after): (Frame<'_>, &[u8]) =
            postcard::take_from_bytes(rest).map_err(|error| damaged(&error))?;
        claims.push(Arc::new(Claim {
            order: OrderId(frame.order),
            offer: OfferId(frame.offer),
            buyer: BuyerId::parse(frame.buyer).map_err(|error| damaged(&error))?,
            quantity: frame.quantity,
            claimed_at: UnixMs(frame.claimed_at),
            pass_expires_at: UnixMs(frame.pass_expires_at),
        }));
        rest = after;
    }
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(order: u128, buyer: &str) -> Claim {
        Claim {
            order: OrderId(order),
            offer: OfferId(u128::MAX),
            buyer: BuyerId::parse(buyer).unwrap(),
            quantity: 100,
            claimed_at: UnixMs(1_800_000_000_000),
            pass_expires_at: UnixMs(1_800_000_300_000),
        }
    }

    #[test]
    fn a_batch_is_read_back() {
        let claims = [claim(1, "ann"), claim(u128::MAX, "鲍勃"), claim(0, &"x".repeat(128))];
        let mut bytes = Vec::new();
        encode(claims.iter(), &mut bytes).unwrap();
        let read = decode(&bytes).unwrap();
        assert!(read.iter().map(|claim| &**claim).eq(claims.iter()));
    }

    #[test]
    fn another_format_is_named() {
        assert!(matches!(decode(&[9, 1, 2]), Err(FrameError::Format(9))));
        assert!(matches!(decode(&[]), Err(FrameError::Damaged(_))));
    }

    proptest! {
        #[test]
        fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
        }
    }
}
