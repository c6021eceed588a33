//! Who buys. Owns the shape of a buyer's id; where the id comes from (a verified token, never a request
//! body) is the edge's business.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest buyer id, in bytes of UTF-8.
pub const MAX_BUYER_BYTES: usize = 128;

/// A buyer's id: 1 to 128 bytes without control characters.
///
/// Ids are compared byte by byte. Nothing is trimmed, folded or normalised: two ids that only look alike
/// are two buyers, exactly as the shop's issuer says.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuyerId(Arc<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuyerIdError {
    #[error("is empty")]
    Empty,
    #[error("is longer than 128 bytes")]
    TooLong,
    #[error("contains a control character")]
    ControlCharacter,
}

impl BuyerId {
    pub fn parse(text: &str) -> Result<Self, BuyerIdError> {
        if text.is_empty() {
            return Err(BuyerIdError::Empty);
        }
        if text.len() > MAX_BUYER_BYTES {
            return Err(BuyerIdError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(BuyerIdError::ControlCharacter);
        }
        Ok(Self(Arc::from(text)))
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for BuyerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for BuyerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Serialize for BuyerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for BuyerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_length_is_counted_in_bytes() {
        assert_eq!(BuyerId::parse(""), Err(BuyerIdError::Empty));
        assert!(BuyerId::parse(&"a".repeat(128)).is_ok());
        assert_eq!(BuyerId::parse(&"a".repeat(129)), Err(BuyerIdError::TooLong));
        assert!(BuyerId::parse(&"é".repeat(64)).is_ok());
        assert_eq!(BuyerId::parse(&format!("{}a", "é".repeat(64))), Err(BuyerIdError::TooLong));
    }

    #[test]
    fn control_characters_are_refused_wherever_they_stand() {
        for bad in ["\0", "ann\n", "\tann", "an\u{7f}n", "ann\u{85}", "\u{1b}[31mann"] {
            assert_eq!(BuyerId::parse(bad), Err(BuyerIdError::ControlCharacter), "{bad:?}");
        }
    }

    #[test]
    fn ids_that_only_look_alike_are_two_buyers() {
        let forms = ["ann", "Ann", " ann", "ann ", "a\u{301}nn", "\u{e1}nn", "аnn"];
        for (i, left) in forms.iter().enumerate() {
            for (j, right) in forms.iter().enumerate() {
                assert_eq!(BuyerId::parse(left) == BuyerId::parse(right), i == j, "{left:?} {right:?}");
            }
        }
    }

    #[test]
    fn reading_json_applies_the_same_rules() {
        assert_eq!(serde_json::from_str::<BuyerId>(r#""b\u006fb""#).unwrap().as_str(), "bob");
        for bad in [r#""""#, "7", "null", r#""a\u0000b""#] {
            assert!(serde_json::from_str::<BuyerId>(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn an_accepted_id_survives_json_unchanged(text in ".{0,140}") {
            if let Ok(buyer) = BuyerId::parse(&text) {
                prop_assert_eq!(buyer.as_str(), text.as_str());
                let json = serde_json::to_string(&buyer).unwrap();
                prop_assert_eq!(serde_json::from_str::<BuyerId>(&json).unwrap(), buyer);
            }
        }
    }
}
