//! A claim: units that the gate granted to a buyer under an order id, and how it is written down.

use std::sync::Arc;

use rules::buyer::BuyerId;
use rules::id::{OfferId, OrderId, PaymentId};
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
    /// Set when late money made the claim: the order is in the ledger already, closed, and shall be paid.
    pub revives: Option<Revive>,
}

/// What a claim for late money carries besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Revive {
    /// The money.
    pub payment: PaymentId,
    /// The `seq` of the order when the claim was made. Whatever becomes of the claim raises it.
    pub closing_seq: u32,
}

/// Written before every batch, so that a later version can tell what it reads.
const FORMAT: u8 = 1;

/// The format of a batch in which late money made a claim. Other batches are written in the first one.
const FORMAT_REVIVING: u8 = 2;

/// A claim as it stands in the journal; in the second format a [`ReviveFrame`] follows it.
#[derive(Serialize, Deserialize)]
struct Frame<'a> {
    order: u128,
    offer: u128,
    buyer: &'a str,
    quantity: u32,
    claimed_at: i64,
    pass_expires_at: i64,
}

/// Which payment revives the order, and from which `seq`; nothing for a buyer's claim.
type ReviveFrame = Option<(u128, u32)>;

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error(
        "a journal entry was written in format {0}, this version reads formats {FORMAT} and {FORMAT_REVIVING}"
    )]
    Format(u8),
    #[error("a journal entry is damaged: {0}")]
    Damaged(String),
}

/// Appends the batch to `out`.
pub fn encode<'a>(
    claims: impl Iterator<Item = &'a Claim> + Clone,
    out: &mut Vec<u8>,
) -> Result<(), FrameError> {
    let reviving = claims.clone().any(|claim| claim.revives.is_some());
    out.push(if reviving { FORMAT_REVIVING } else { FORMAT });
    for claim in claims {
        let frame = Frame {
            order: claim.order.0,
            offer: claim.offer.0,
            buyer: claim.buyer.as_str(),
            quantity: claim.quantity,
            claimed_at: claim.claimed_at.0,
            pass_expires_at: claim.pass_expires_at.0,
        };
        append(&frame, out)?;
        if reviving {
            let revive: ReviveFrame = claim.revives.map(|revive| (revive.payment.0, revive.closing_seq));
            append(&revive, out)?;
        }
    }
    Ok(())
}

fn append(frame: &impl Serialize, out: &mut Vec<u8>) -> Result<(), FrameError> {
    postcard::to_io(frame, &mut *out).map_err(damaged)?;
    Ok(())
}

fn damaged(reason: impl std::fmt::Display) -> FrameError {
    FrameError::Damaged(reason.to_string())
}

/// Reads what [`encode`] wrote.
pub fn decode(bytes: &[u8]) -> Result<Vec<Arc<Claim>>, FrameError> {
    let (format, mut rest) = bytes.split_first().ok_or_else(|| damaged("it is empty"))?;
    if ![FORMAT, FORMAT_REVIVING].contains(format) {
        return Err(FrameError::Format(*format));
    }
    let mut claims = Vec::new();
    while !rest.is_empty() {
        let (frame, mut after): (Frame<'_>, &[u8]) = postcard::take_from_bytes(rest).map_err(damaged)?;
        let mut revives = None;
        if *format == FORMAT_REVIVING {
            let (revive, beyond): (ReviveFrame, &[u8]) = postcard::take_from_bytes(after).map_err(damaged)?;
            (revives, after) = (revive, beyond);
        }
        claims.push(Arc::new(Claim {
            order: OrderId(frame.order),
            offer: OfferId(frame.offer),
            buyer: BuyerId::parse(frame.buyer).map_err(damaged)?,
            quantity: frame.quantity,
            claimed_at: UnixMs(frame.claimed_at),
            pass_expires_at: UnixMs(frame.pass_expires_at),
            revives: revives
                .map(|(payment, closing_seq)| Revive { payment: PaymentId(payment), closing_seq }),
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
            revives: None,
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
    fn claims_of_late_money_are_read_back_among_others() {
        let revives = Some(Revive { payment: PaymentId(u128::MAX), closing_seq: 3 });
        let claims = [claim(1, "ann"), Claim { revives, ..claim(2, "bob") }, claim(3, "cyd")];
        let mut bytes = Vec::new();
        encode(claims.iter(), &mut bytes).unwrap();
        let read = decode(&bytes).unwrap();
        assert!(read.iter().map(|claim| &**claim).eq(claims.iter()));
    }

    /// What an earlier version can read stays so, and what it wrote is read.
    #[test]
    fn a_batch_without_late_money_is_written_as_it_always_was() {
        let mut bytes = Vec::new();
        encode([claim(1, "ann")].iter(), &mut bytes).unwrap();
        let mut written = vec![1, 1];
        written.extend([0xff; 18]);
        written.extend([0x03, 3, b'a', b'n', b'n', 100]);
        written.extend([0x80, 0xc0, 0xe2, 0x85, 0xe3, 0x68, 0xc0, 0x8f, 0x87, 0x86, 0xe3, 0x68]);
        assert_eq!(bytes, written);
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
