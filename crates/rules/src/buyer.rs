//! Who buys. The id comes from a verified token, never from a request body.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest buyer id, in bytes.
pub const BUYER_BYTES_MAX: usize = 128;

/// A buyer's id: 1 to 128 bytes of UTF-8 without control characters, compared byte by byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuyerId(Arc<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BuyerIdError {
    #[error("must not be empty")]
    Empty,
    #[error("must not be longer than 128 bytes")]
    TooLong,
    #[error("must not contain control characters")]
    ControlCharacter,
}

impl BuyerId {
    pub fn parse(text: &str) -> Result<Self, BuyerIdError> {
        if text.is_empty() {
            return Err(BuyerIdError::Empty);
        }
        if text.len() > BUYER_BYTES_MAX {
            return Err(BuyerIdError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(BuyerIdError::ControlCharacter);
        }
        Ok(Self(text.into()))
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
    use super::*;

    #[test]
    fn ids_are_exact_bytes() {
        assert_ne!(BuyerId::parse("ann"), BuyerId::parse("Ann"));
        assert_ne!(BuyerId::parse("ann"), BuyerId::parse("ann "));
        assert_ne!(BuyerId::parse("é"), BuyerId::parse("e\u{301}"));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        assert_eq!(BuyerId::parse(""), Err(BuyerIdError::Empty));
        assert_eq!(BuyerId::parse(&"x".repeat(129)), Err(BuyerIdError::TooLong));
        assert_eq!(BuyerId::parse("a\0b"), Err(BuyerIdError::ControlCharacter));
        assert_eq!(BuyerId::parse("a\u{85}b"), Err(BuyerIdError::ControlCharacter));
        assert!(BuyerId::parse(&"x".repeat(128)).is_ok());
    }
}
