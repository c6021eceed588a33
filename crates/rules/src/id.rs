//! Names of things: 128 bits inside, 26 characters of Crockford base32 outside.
//!
//! Ids are not sequence-derived, so no node needs a lease and a restored backup cannot give one out twice.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::time::UnixMs;

/// Crockford's alphabet without i, l, o, u; lower case.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Length of an id as text.
pub const ID_CHARS: usize = 26;

const NO_DIGIT: u8 = 0xff;

/// Character -> value; both cases. Unlike Crockford's reading rules, `i`, `l` and `o` are not mapped to digits:
/// one id has one spelling apart from case, so that logs can be searched.
#[expect(
    clippy::indexing_slicing,
    clippy::as_conversions,
    reason = "in a constant, out of bounds does not compile, and all values are below 32"
)]
const DIGITS: [u8; 256] = {
    let mut digits = [NO_DIGIT; 256];
    let mut value = 0;
    while value < 32 {
        let character = ALPHABET[value];
        digits[character as usize] = value as u8;
        digits[character.to_ascii_uppercase() as usize] = value as u8;
        value += 1;
    }
    digits
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not an id: 26 characters of 0-9 and a-z without i, l, o, u, the first of them 0-7")]
pub struct IdError;

/// Writes 128 bits as 26 characters (130 bits, the top two are zero).
#[must_use]
pub fn encode(value: u128) -> [u8; ID_CHARS] {
    let mut text = [b'0'; ID_CHARS];
    let mut rest = value;
    for character in text.iter_mut().rev() {
        let digit = usize::try_from(rest & 31).unwrap_or(0);
        *character = ALPHABET.get(digit).copied().unwrap_or(b'0');
        rest >>= 5;
    }
    text
}

/// Reads what [`encode`] wrote.
pub fn decode(text: &[u8]) -> Result<u128, IdError> {
    let text: &[u8; ID_CHARS] = text.try_into().map_err(|_| IdError)?;
    let mut value: u128 = 0;
    for (position, character) in text.iter().enumerate() {
        let digit = DIGITS.get(usize::from(*character)).copied().unwrap_or(NO_DIGIT);
        // The first character carries only three bits of the 128.
        if digit == NO_DIGIT || (position == 0 && digit > 7) {
            return Err(IdError);
        }
        value = (value << 5) | u128::from(digit);
    }
    Ok(value)
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u128);

        impl $name {
            #[must_use]
            pub const fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            #[must_use]
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(u128::from_be_bytes(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let text = encode(self.0);
                f.write_str(std::str::from_utf8(&text).unwrap_or_default())
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                decode(text.as_bytes()).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let text = encode(self.0);
                serializer.serialize_str(std::str::from_utf8(&text).unwrap_or_default())
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .pattern(Some("^[0-7][0-9a-hjkmnp-tv-zA-HJKMNP-TV-Z]{25}$"))
                    .examples([example()])
                    .into()
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}

fn example() -> &'static str {
    "01k9zq3v8g7m4x2r5w6t0n1pbc"
}

id! {
    /// A timed event with its offers.
    SaleId
}

id! {
    /// One product in a sale.
    OfferId
}

id! {
    /// One order, minted with the pass that may become it. See [`OrderId::compose`] for its parts.
    OrderId
}

id! {
    /// One payment. Its text is what providers are given as our name of it.
    PaymentId
}

id! {
    /// One fact, as its receivers know it: the same in every delivery. See [`EventId::numbered`].
    EventId
}

id! {
    /// A receiver of events.
    WebhookId
}

id! {
    /// One look at the books.
    AuditId
}

impl EventId {
    /// Half of the ledger's own name, then the event's number there: no two ledgers share an id, and ids of one
    /// ledger sort as they happened.
    #[must_use]
    pub fn numbered(ledger: &[u8; 16], number: u64) -> Self {
        let ledger = u128::from_be_bytes(*ledger) & !u128::from(u64::MAX);
        Self(ledger | u128::from(number))
    }
}

/// A map by ids. Half of an id's bits are random or a keyed tag, and only ids of our own making are ever put in: they
/// are their own hash, and nobody can choose ids that meet.
pub type IdMap<Id, T> = HashMap<Id, T, BuildHasherDefault<IdHasher>>;

/// See [`IdMap`].
#[derive(Clone, Copy, Debug, Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, id: u128) {
        self.0 = u64::try_from(id & u128::from(u64::MAX)).unwrap_or(u64::MAX);
    }
}

/// A new id for a sale, an offer or a payment: 48 bits of milliseconds, then `random`. Ids made later sort later.
#[must_use]
pub fn timed(at: UnixMs, random: u128) -> u128 {
    let time = u128::from(at.0.max(0).unsigned_abs() & ((1 << 48) - 1));
    (time << TIME_SHIFT) | (random & ((1 << TIME_SHIFT) - 1))
}

/// How many buyer buckets there are. Tables partition by them, so a look-up by order id hits one place.
pub const BUYER_BUCKETS: u16 = 1 << 10;

const TIME_SHIFT: u32 = 80;
const BUCKET_SHIFT: u32 = 70;
const RANDOM_SHIFT: u32 = 32;
const RANDOM_BITS: u32 = 38;

impl OrderId {
    /// 48 bits of milliseconds, 10 of buyer bucket, 38 random, and 32 of a keyed tag that `tag` computes over the
    /// first 96 bits (and the buyer, which the caller's closure knows).
    #[must_use]
    pub fn compose(at: UnixMs, bucket: u16, random: u64, tag: impl FnOnce(u128) -> u32) -> Self {
        let time = u128::from(at.0.max(0).unsigned_abs() & ((1 << 48) - 1));
        let bucket = u128::from(bucket % BUYER_BUCKETS);
        let random = u128::from(random & ((1 << RANDOM_BITS) - 1));
        let untagged = (time << TIME_SHIFT) | (bucket << BUCKET_SHIFT) | (random << RANDOM_SHIFT);
        Self(untagged | u128::from(tag(untagged)))
    }

    #[must_use]
    pub fn bucket(self) -> u16 {
        let bucket = (self.0 >> BUCKET_SHIFT) & u128::from(BUYER_BUCKETS - 1);
        u16::try_from(bucket).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_map_by_ids_spreads_ids_of_one_moment() {
        let hash =
            |id: OrderId| std::hash::BuildHasher::hash_one(&BuildHasherDefault::<IdHasher>::default(), id);
        let random = |number: u128| number.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        let ids: Vec<OrderId> =
            (0..10_000).map(|number| OrderId(timed(UnixMs(1_700_000_000_000), random(number)))).collect();
        let low: std::collections::HashSet<u64> = ids.iter().map(|id| hash(*id) & 0xfff).collect();
        assert!(low.len() > 3_000, "{} of 4,096 buckets are used", low.len());
        let map: IdMap<OrderId, usize> = ids.iter().copied().zip(0..).collect();
        assert!(ids.iter().enumerate().all(|(number, id)| map.get(id) == Some(&number)));
    }

    proptest! {
        #[test]
        fn text_and_bits_are_the_same_thing(value: u128) {
            let id = OrderId(value);
            prop_assert_eq!(id.to_string().parse::<OrderId>(), Ok(id));
            prop_assert_eq!(id.to_string().to_uppercase().parse::<OrderId>(), Ok(id));
            prop_assert_eq!(OrderId::from_bytes(id.to_bytes()), id);
        }

        #[test]
        fn text_sorts_like_the_bits(a: u128, b: u128) {
            prop_assert_eq!(SaleId(a).to_string().cmp(&SaleId(b).to_string()), a.cmp(&b));
        }

        #[test]
        fn ids_made_later_sort_later(at in 0_i64..(1 << 47), a: u128, b: u128) {
            prop_assert!(timed(UnixMs(at), a) < timed(UnixMs(at + 1), b));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}") {
            let _ = text.parse::<OfferId>();
        }

        #[test]
        fn an_order_id_gives_its_parts_back(at in 0_i64..(1 << 47), bucket in 0_u16..1024, random: u64, tag: u32) {
            let mut tagged = 0;
            let id = OrderId::compose(UnixMs(at), bucket, random, |untagged| { tagged = untagged; tag });
            prop_assert_eq!(id.0 >> TIME_SHIFT, u128::from(at.unsigned_abs()));
            prop_assert_eq!(id.bucket(), bucket);
            prop_assert_eq!(id.0 & u128::from(u32::MAX), u128::from(tag));
            prop_assert_eq!(tagged | u128::from(tag), id.0, "the tag is over all the rest");
        }
    }

    #[test]
    fn events_are_told_apart_by_ledger_and_number_and_sort_as_they_happened() {
        let (mine, yours) = ([1; 16], [2; 16]);
        assert!(EventId::numbered(&mine, 9) < EventId::numbered(&mine, 10));
        assert_ne!(EventId::numbered(&mine, 9), EventId::numbered(&yours, 9));
        assert!(EventId::numbered(&mine, u64::MAX) < EventId::numbered(&yours, 0));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for text in [
            "",
            "0",
            "01k9zq3v8g7m4x2r5w6t0n1pbcd",
            "81k9zq3v8g7m4x2r5w6t0n1pbc",
            "0ik9zq3v8g7m4x2r5w6t0n1pbc",
        ] {
            assert_eq!(text.parse::<SaleId>(), Err(IdError), "{text}");
        }
    }
}
