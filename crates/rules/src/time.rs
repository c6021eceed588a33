//! Instants as the ledger stores them and the wire shows them.

use std::fmt;

use jiff::Timestamp;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Milliseconds since 1970-01-01T00:00:00Z. On the wire: RFC 3339, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMs(pub i64);

/// The earliest and latest instants accepted from outside: the years 2000 to 2199.
const WIRE_RANGE_MS: std::ops::RangeInclusive<i64> = 946_684_800_000..=7_258_118_399_999;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TimeError {
    #[error("is not an RFC 3339 time such as 2026-12-01T12:00:00Z")]
    NotRfc3339,
    #[error("has no zone: add Z, or an offset such as +08:00")]
    NoZone,
    #[error("lies outside the years 2000 to 2199")]
    OutOfRange,
}

impl UnixMs {
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        let without_zone = |_| match format!("{text}Z").parse::<Timestamp>() {
            Ok(_) => TimeError::NoZone,
            Err(_) => TimeError::NotRfc3339,
        };
        let timestamp: Timestamp = text.parse().map_err(without_zone)?;
        let ms = timestamp.as_millisecond();
        if WIRE_RANGE_MS.contains(&ms) { Ok(Self(ms)) } else { Err(TimeError::OutOfRange) }
    }

    #[must_use]
    pub const fn plus_ms(self, ms: i64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    #[must_use]
    pub fn plus_s(self, s: u32) -> Self {
        Self(self.0.saturating_add(i64::from(s) * 1_000))
    }

    /// How many milliseconds from `self` until `later`; zero when that is past.
    #[must_use]
    pub const fn ms_until(self, later: Self) -> u64 {
        let left = later.0.saturating_sub(self.0);
        if left > 0 { left.unsigned_abs() } else { 0 }
    }
}

impl fmt::Display for UnixMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Timestamp::from_millisecond(self.0) {
            Ok(timestamp) => write!(f, "{timestamp:.3}"),
            Err(_) => write!(f, "{}ms", self.0),
        }
    }
}

impl Serialize for UnixMs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for UnixMs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_milliseconds_in_utc() {
        assert_eq!(UnixMs(1_796_126_400_000).to_string(), "2026-12-01T12:00:00.000Z");
    }

    #[test]
    fn reads_offsets_and_refuses_what_is_no_time() {
        assert_eq!(UnixMs::parse("2026-12-01T20:00:00+08:00"), Ok(UnixMs(1_796_126_400_000)));
        assert_eq!(UnixMs::parse("tomorrow"), Err(TimeError::NotRfc3339));
        assert_eq!(UnixMs::parse("2026-12-01T20:00:00"), Err(TimeError::NoZone));
        assert_eq!(UnixMs::parse("2026-12-01"), Err(TimeError::NotRfc3339));
        assert_eq!(UnixMs::parse("1999-12-31T23:59:59Z"), Err(TimeError::OutOfRange));
        assert_eq!(UnixMs::parse("9999-01-01T00:00:00Z"), Err(TimeError::OutOfRange));
    }

    #[test]
    fn a_past_moment_is_zero_away() {
        assert_eq!(UnixMs(10).ms_until(UnixMs(7)), 0);
        assert_eq!(UnixMs(10).ms_until(UnixMs(17)), 7);
    }
}
