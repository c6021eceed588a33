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

/// Bytes of an entry. A row of it, with its numbers, fills a page of 4 KiB: two never share one, and none needs a second.
pub const ENTRY_BYTES: usize = 4_032;

/// Written before every entry, so that a later version can tell what it reads.
const FORMAT: u8 = 1;

/// The format of an entry in which late money made a claim. Others are written in the first one.
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
    #[error("a claim of {0} bytes does not fit into a journal entry of {ENTRY_BYTES}")]
    TooLong(usize),
}

/// A batch as it is written down: entries of [`ENTRY_BYTES`] each, one after the other. Kept by the writer, so that its
/// room is used again.
#[derive(Debug, Default)]
pub struct Entries {
    bytes: Vec<u8>,
    /// How many claims each one holds.
    counts: Vec<usize>,
    frame: Vec<u8>,
}

impl Entries {
    /// Forgets what it held and takes these claims, in their order.
    pub fn fill<'a>(&mut self, claims: impl Iterator<Item = &'a Claim> + Clone) -> Result<(), FrameError> {
        self.bytes.clear();
        self.counts.clear();
        let reviving = claims.clone().any(|claim| claim.revives.is_some());
        let format = if reviving { FORMAT_REVIVING } else { FORMAT };
        for claim in claims {
            self.frame.clear();
            write(claim, reviving, &mut self.frame)?;
            if self.frame.len() >= ENTRY_BYTES {
                return Err(FrameError::TooLong(self.frame.len()));
            }
            if self.bytes.len() + self.frame.len() > self.counts.len() * ENTRY_BYTES {
                self.bytes.resize(self.counts.len() * ENTRY_BYTES, 0);
                self.bytes.push(format);
                self.counts.push(0);
            }
            self.bytes.extend_from_slice(&self.frame);
            self.counts.last_mut().into_iter().for_each(|count| *count += 1);
        }
        self.bytes.resize(self.counts.len() * ENTRY_BYTES, 0);
        Ok(())
    }

    /// The bytes of each, and how many claims they hold.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], usize)> {
        self.bytes.chunks_exact(ENTRY_BYTES).zip(self.counts.iter().copied())
    }
}

fn write(claim: &Claim, reviving: bool, out: &mut Vec<u8>) -> Result<(), FrameError> {
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
    Ok(())
}

fn append(frame: &impl Serialize, out: &mut Vec<u8>) -> Result<(), FrameError> {
    postcard::to_io(frame, &mut *out).map_err(damaged)?;
    Ok(())
}

fn damaged(reason: impl std::fmt::Display) -> FrameError {
    FrameError::Damaged(reason.to_string())
}

/// Reads an entry that holds so many claims; what stands behind them was never written.
pub fn decode(bytes: &[u8], count: usize) -> Result<Vec<Arc<Claim>>, FrameError> {
    let (format, mut rest) = bytes.split_first().ok_or_else(|| damaged("it is empty"))?;
    if ![FORMAT, FORMAT_REVIVING].contains(format) {
        return Err(FrameError::Format(*format));
    }
    let mut claims = Vec::new();
    for _ in 0..count {
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

    /// What is read of what was written.
    fn read_back(claims: &[Claim]) -> Vec<Claim> {
        let mut entries = Entries::default();
        entries.fill(claims.iter()).unwrap();
        let read = entries.iter().flat_map(|(bytes, count)| decode(bytes, count).unwrap());
        read.map(|claim| Claim::clone(&claim)).collect()
    }

    #[test]
    fn a_batch_is_read_back() {
        let claims = [claim(1, "ann"), claim(u128::MAX, "鲍勃"), claim(0, &"x".repeat(128))];
        assert_eq!(read_back(&claims), claims);
    }

    #[test]
    fn claims_of_late_money_are_read_back_among_others() {
        let revives = Some(Revive { payment: PaymentId(u128::MAX), closing_seq: 3 });
        let claims = [claim(1, "ann"), Claim { revives, ..claim(2, "bob") }, claim(3, "cyd")];
        assert_eq!(read_back(&claims), claims);
    }

    #[test]
    fn an_entry_begins_with_its_format_and_is_filled_up() {
        let mut entries = Entries::default();
        entries.fill([claim(1, "ann")].iter()).unwrap();
        let (bytes, count) = entries.iter().next().unwrap();
        let mut written = vec![1, 1];
        written.extend([0xff; 18]);
        written.extend([0x03, 3, b'a', b'n', b'n', 100]);
        written.extend([0x80, 0xc0, 0xe2, 0x85, 0xe3, 0x68, 0xc0, 0x8f, 0x87, 0x86, 0xe3, 0x68]);
        written.resize(ENTRY_BYTES, 0);
        assert_eq!((bytes, count, entries.iter().count()), (written.as_slice(), 1, 1));
    }

    #[test]
    fn the_longest_claim_fits_many_times() {
        let revives = Some(Revive { payment: PaymentId(u128::MAX), closing_seq: u32::MAX });
        let extreme = Claim {
            order: OrderId(u128::MAX),
            buyer: BuyerId::parse(&"x".repeat(rules::buyer::BUYER_BYTES_MAX)).unwrap(),
            quantity: u32::MAX,
            claimed_at: UnixMs(i64::MIN),
            pass_expires_at: UnixMs(i64::MIN),
            revives,
            ..claim(0, "x")
        };
        let mut entries = Entries::default();
        entries.fill([&extreme; 10].into_iter()).unwrap();
        assert_eq!(entries.iter().count(), 1);
    }

    #[test]
    fn another_format_is_named() {
        assert!(matches!(decode(&[9, 1, 2], 1), Err(FrameError::Format(9))));
        assert!(matches!(decode(&[], 0), Err(FrameError::Damaged(_))));
        assert!(matches!(decode(&[FORMAT], 1), Err(FrameError::Damaged(_))), "it ends too early");
    }

    proptest! {
        #[test]
        fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), count in 0..9_usize) {
            let _ = decode(&bytes, count);
        }

        #[test]
        fn batches_of_every_size_are_read_back(names in prop::collection::vec("[a-z0-9]{1,128}", 0..200)) {
            let claims: Vec<_> = (0..).zip(&names).map(|(order, name)| claim(order, name)).collect();
            prop_assert_eq!(read_back(&claims), claims);
        }
    }
}
