//! Passes (动态 Token): the signed, short-lived right of one buyer to try one offer.
//!
//! A pass carries the id of the order it may become, so a retry with the same pass is the same request. It is
//! checked from its own bytes alone: refusing a forged one costs one HMAC and waits for nothing.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use crate::buyer::{BUYER_BYTES_MAX, BuyerId};
use crate::id::{BUYER_BUCKETS, OfferId, OrderId};
use crate::time::UnixMs;

const VERSION: u8 = 2;
/// Bytes before the buyer: version and key (1), expiry (6), offer (16), order (16). With a buyer of up to 16 bytes they fit
/// into one block of the hash; with a byte more they would take two.
const HEAD_BYTES: usize = 39;
/// The HMAC-SHA256 is cut to 128 bits: the pass travels with every try.
const TAG_BYTES: usize = 16;
const PASS_BYTES_MAX: usize = HEAD_BYTES + BUYER_BYTES_MAX + TAG_BYTES;
/// Longest pass as text, in characters.
pub const PASS_CHARS_MAX: usize = PASS_BYTES_MAX.div_ceil(3) * 4;
/// HMAC-SHA256 keys shorter than its output are the weakest part of the lock, in bytes. Where others than its own
/// machine reach the server, shorter secrets are refused when settings are read.
pub const SECRET_BYTES_MIN: usize = 32;

/// What a pass says. `buyer` borrows from the reader's buffer: checking a pass allocates nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass<'a> {
    pub buyer: &'a str,
    pub offer: OfferId,
    pub order: OrderId,
    pub expires_at: UnixMs,
}

/// The text is no pass of ours: forged, garbled, or signed with a key that is no longer live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a valid pass")]
pub struct PassInvalid;

/// Room for one decoded pass.
#[derive(Debug)]
pub struct PassBuffer([u8; PASS_BYTES_MAX]);

impl Default for PassBuffer {
    fn default() -> Self {
        Self([0; PASS_BYTES_MAX])
    }
}

impl PassBuffer {
    /// Reads what a pass says, whoever wrote it.
    pub fn decode(&mut self, text: &[u8]) -> Result<Unchecked<'_>, PassInvalid> {
        if text.len() > PASS_CHARS_MAX {
            return Err(PassInvalid);
        }
        let length = URL_SAFE_NO_PAD.decode_slice(text, &mut self.0).map_err(|_| PassInvalid)?;
        let bytes = self.0.get(..length).ok_or(PassInvalid)?;
        let (signed, tag) = bytes.split_last_chunk::<TAG_BYTES>().ok_or(PassInvalid)?;
        let (head, buyer) = signed.split_first_chunk::<HEAD_BYTES>().ok_or(PassInvalid)?;
        let says = parse(head, buyer).ok_or(PassInvalid)?;
        Ok(Unchecked { says, signed, tag })
    }
}

/// A pass whose signature nobody has looked at: what it says may be made up.
#[derive(Debug)]
pub struct Unchecked<'a> {
    says: Pass<'a>,
    signed: &'a [u8],
    tag: &'a [u8; TAG_BYTES],
}

impl<'a> Unchecked<'a> {
    #[must_use]
    pub const fn hint(&self) -> Hint<'a> {
        Hint { buyer: self.says.buyer, order: self.says.order }
    }
}

/// Whom a pass is about, if it is one: good for getting ready, and for nothing that anybody could notice.
#[derive(Clone, Copy, Debug)]
pub struct Hint<'a> {
    pub buyer: &'a str,
    pub order: OrderId,
}

/// The live keys: new passes are signed with the current one; the previous one is still honoured, so that secrets
/// can rotate during a sale.
#[derive(Debug)]
pub struct PassKeys {
    current: PassKey,
    previous: Option<PassKey>,
}

#[derive(Debug)]
struct PassKey {
    /// What its passes begin with: the version in the upper half, and which key it is in the lower. Two keys that share it
    /// are both tried.
    mark: u8,
    sign: Keyed,
    tag: Keyed,
}

/// HMAC-SHA256 whose key is hashed already. It is copied for every message, so its size matters: with room for any digest
/// there is, as in the library that signs and checks everything else, the copies cost half as much as the hashing.
#[derive(Clone)]
struct Keyed(Hmac<Sha256>);

impl std::fmt::Debug for Keyed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a key")
    }
}

impl Keyed {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    fn new(key: &[u8]) -> Self {
        Self(Hmac::new_from_slice(key).expect("a key of any length"))
    }

    /// With these parts, one behind the other.
    fn hash(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut hash = self.0.clone();
        parts.iter().for_each(|part| hash.update(part));
        hash
    }

    fn sign(&self, parts: &[&[u8]]) -> [u8; 32] {
        self.hash(parts).finalize().into_bytes().into()
    }
}

impl PassKey {
    fn derive(secret: &[u8]) -> Self {
        let root = Keyed::new(secret);
        let derive = |label: &[u8]| root.sign(&[label]);
        let [id, ..] = derive(b"doorbuster key id v1");
        Self {
            mark: (VERSION << 4) | (id & 0x0f),
            sign: Keyed::new(&derive(b"doorbuster pass v1")),
            tag: Keyed::new(&derive(b"doorbuster order tag v1")),
        }
    }

    fn order_tag(&self, untagged: u128, buyer: &str) -> u32 {
        let [a, b, c, d, ..] = self.tag.sign(&[&untagged.to_be_bytes(), buyer.as_bytes()]);
        u32::from_be_bytes([a, b, c, d])
    }
}

impl PassKeys {
    #[must_use]
    pub fn new(secret: &[u8], previous: Option<&[u8]>) -> Self {
        Self { current: PassKey::derive(secret), previous: previous.map(PassKey::derive) }
    }

    /// A new order id for this buyer. `random` is the caller's randomness: this crate has none.
    #[must_use]
    pub fn mint_order_id(&self, buyer: &BuyerId, at: UnixMs, random: u64) -> OrderId {
        OrderId::compose(at, bucket_of(buyer.as_str()), random, |untagged| {
            self.current.order_tag(untagged, buyer.as_str())
        })
    }

    #[must_use]
    pub fn sign(&self, pass: &Pass<'_>) -> String {
        let mut bytes = Vec::with_capacity(PASS_BYTES_MAX);
        bytes.push(self.current.mark);
        bytes.extend_from_slice(pass.expires_at.0.to_be_bytes().get(2..).unwrap_or_default());
        bytes.extend_from_slice(&pass.offer.to_bytes());
        bytes.extend_from_slice(&pass.order.to_bytes());
        bytes.extend_from_slice(pass.buyer.as_bytes());
        let tag = self.current.sign.sign(&[&bytes]);
        bytes.extend_from_slice(tag.get(..TAG_BYTES).unwrap_or_default());
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Reads a pass and checks its signature. Expiry is the caller's to judge: an expired pass may still name an
    /// order that its buyer wants to see.
    pub fn read<'a>(&self, text: &str, buffer: &'a mut PassBuffer) -> Result<Pass<'a>, PassInvalid> {
        self.check(buffer.decode(text.as_bytes())?)
    }

    /// Checks the signature of what was decoded.
    pub fn check<'a>(&self, unchecked: Unchecked<'a>) -> Result<Pass<'a>, PassInvalid> {
        let Unchecked { says, signed, tag } = unchecked;
        let keys = [Some(&self.current), self.previous.as_ref()];
        let mut candidates = keys.into_iter().flatten().filter(|key| signed.first() == Some(&key.mark));
        let is_signed = candidates.any(|key| key.sign.hash(&[signed]).verify_truncated_left(tag).is_ok());
        if is_signed { Ok(says) } else { Err(PassInvalid) }
    }
}

fn parse<'a>(head: &[u8; HEAD_BYTES], buyer: &'a [u8]) -> Option<Pass<'a>> {
    let expiry = head.get(1..7)?;
    let expires_at = expiry.iter().fold(0_i64, |value, byte| (value << 8) | i64::from(*byte));
    let id = |range| head.get(range).and_then(|bytes: &[u8]| <[u8; 16]>::try_from(bytes).ok());
    Some(Pass {
        buyer: std::str::from_utf8(buyer).ok()?,
        offer: OfferId::from_bytes(id(7..23)?),
        order: OrderId::from_bytes(id(23..39)?),
        expires_at: UnixMs(expires_at),
    })
}

/// The buyer's bucket: not keyed, because it must outlive every rotation of the keys.
#[must_use]
pub fn bucket_of(buyer: &str) -> u16 {
    let [a, b, ..] = <[u8; 32]>::from(Sha256::digest(buyer));
    u16::from_be_bytes([a, b]) % BUYER_BUCKETS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: &[u8] = b"a secret of at least thirty-two bytes";
    const OLD_SECRET: &[u8] = b"the secret that was used before this one";

    fn keys() -> PassKeys {
        PassKeys::new(SECRET, None)
    }

    fn pass(buyer: &str) -> Pass<'_> {
        let expires_at = UnixMs(1_800_000_000_000);
        Pass { buyer, offer: OfferId(7), order: OrderId(u128::MAX / 3), expires_at }
    }

    fn reads(keys: &PassKeys, text: &str) -> bool {
        keys.read(text, &mut PassBuffer::default()).is_ok()
    }

    #[test]
    fn a_pass_says_what_was_signed() {
        let text = keys().sign(&pass("ann"));
        let mut buffer = PassBuffer::default();
        assert_eq!(keys().read(&text, &mut buffer), Ok(pass("ann")));
    }

    /// What another language makes of the same secret and the same pass.
    #[test]
    fn a_pass_is_what_any_hmac_sha256_makes_of_it() {
        let text = "JQGjGFxQAAAAAAAAAAAAAAAAAAAAAAdVVVVVVVVVVVVVVVVVVVVVYW5uJfJCTS2yEGaRI0gHZxIYrA";
        assert_eq!(keys().sign(&pass("ann")), text);
    }

    #[test]
    fn no_key_is_shown() {
        let shown = format!("{:?}", keys());
        assert!(shown.contains("sign: a key, tag: a key"), "{shown}");
    }

    #[test]
    fn the_longest_buyer_fits() {
        let buyer = "x".repeat(BUYER_BYTES_MAX);
        let text = keys().sign(&pass(&buyer));
        assert!(text.len() <= PASS_CHARS_MAX);
        assert!(reads(&keys(), &text));
    }

    #[test]
    fn no_bit_can_be_changed() {
        let text = keys().sign(&pass("ann"));
        let bytes = URL_SAFE_NO_PAD.decode(&text).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut forged = bytes.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert!(!reads(&keys(), &URL_SAFE_NO_PAD.encode(forged)), "bit {bit}");
        }
    }

    #[test]
    fn a_corpus_of_bad_passes_is_refused() {
        let good = keys().sign(&pass("ann"));
        let doubled = format!("{good}{good}");
        let padded = format!("{good}=");
        let spaced = format!(" {good}");
        let cut = &good[..good.len() - 1];
        let huge = "A".repeat(1 << 16);
        let short = URL_SAFE_NO_PAD.encode([1_u8; HEAD_BYTES + TAG_BYTES - 1]);
        let bad =
            ["", "x", "null", "....", &doubled, &padded, &spaced, cut, &huge, &short, "通行证", "\0", "+/+/"];
        for text in bad {
            assert!(!reads(&keys(), text), "{text:.40}");
        }
    }

    #[test]
    fn secrets_rotate_without_breaking_live_passes() {
        let old = PassKeys::new(OLD_SECRET, None).sign(&pass("ann"));
        let rotated = PassKeys::new(SECRET, Some(OLD_SECRET));
        assert!(reads(&rotated, &old));
        assert!(reads(&PassKeys::new(SECRET, None), &rotated.sign(&pass("ann"))));
        assert!(!reads(&PassKeys::new(SECRET, None), &old));
    }

    #[test]
    fn of_keys_that_share_their_mark_both_are_tried() {
        let mark = PassKey::derive(SECRET).mark;
        let secrets = (0..1_000).map(|number| format!("an old secret of thirty-two bytes, {number}"));
        let mut others = secrets.filter(|old| PassKey::derive(old.as_bytes()).mark == mark);
        let (old, foreign) = (others.next().unwrap(), others.next().unwrap());
        let signed = |secret: &str| PassKeys::new(secret.as_bytes(), None).sign(&pass("ann"));
        let rotated = PassKeys::new(SECRET, Some(old.as_bytes()));
        assert!(reads(&rotated, &rotated.sign(&pass("ann"))));
        assert!(reads(&rotated, &signed(&old)));
        assert!(!reads(&rotated, &signed(&foreign)));
    }

    #[test]
    fn the_tag_of_an_order_id_needs_the_key_and_the_buyer() {
        let ann = BuyerId::parse("ann").unwrap();
        let id = keys().mint_order_id(&ann, UnixMs(1_800_000_000_000), 42);
        assert_eq!(id.bucket(), bucket_of("ann"));
        let tag = |id: u128| u32::try_from(id & u128::from(u32::MAX)).unwrap();
        let untagged = id.0 & !u128::from(u32::MAX);
        assert_eq!(tag(id.0), PassKey::derive(SECRET).order_tag(untagged, "ann"));
        assert_ne!(tag(id.0), PassKey::derive(SECRET).order_tag(untagged, "bob"));
        assert_ne!(tag(id.0), PassKey::derive(OLD_SECRET).order_tag(untagged, "ann"));
    }

    proptest! {
        #[test]
        fn no_text_makes_reading_panic(text in ".{0,300}") {
            prop_assert!(!reads(&keys(), &text));
        }
    }
}
