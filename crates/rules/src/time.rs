//! Instants as the ledger stores them and the wire shows them.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::DateTime;
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
    #[error("lies outside the years 2000 to 2199")]
    OutOfRange,
}

impl UnixMs {
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        let local = before_offset(text).ok_or(TimeError::NotRfc3339)?;
        let _: DateTime = local.parse().map_err(|_| TimeError::NotRfc3339)?;
        // What is a time up to here lies beyond what can be counted.
        let timestamp: Timestamp = text.parse().map_err(|_| TimeError::OutOfRange)?;
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

/// Date and time of day, where they are followed by an offset as RFC 3339 knows it: `Z`, or hours and minutes of a day.
fn before_offset(text: &str) -> Option<&str> {
    const SHORTEST: usize = "2026-12-01T12:00:00".len();
    let local = match text.strip_suffix(['Z', 'z']) {
        Some(local) => local,
        None => {
            let (local, offset) = text.split_at_checked(text.len().checked_sub("+08:00".len())?)?;
            let (hours, minutes) = offset.strip_prefix(['+', '-'])?.split_once(':')?;
            let below = |text: &str, limit: u8| {
                let digits = text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
                digits && text.parse::<u8>().is_ok_and(|number| number < limit)
            };
            (below(hours, 24) && below(minutes, 60)).then_some(local)?
        }
    };
    (local.len() >= SHORTEST).then_some(local)
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
        assert_eq!(UnixMs::parse("1999-12-31T23:59:59Z"), Err(TimeError::OutOfRange));
        assert_eq!(UnixMs::parse("9999-01-01T00:00:00Z"), Err(TimeError::OutOfRange));
        assert_eq!(UnixMs::parse("9999-12-31T23:59:59Z"), Err(TimeError::OutOfRange));
        for bad in [
            "",
            "Z",
            "2026-12-01Z",
            "2026-12-01T12:00:00",
            "2026-12-01T12:00:00+25:00",
            "2026-12-01T12:00:00+08:60",
            "2026-12-01T12:00:00+8:00",
            "2026-13-01T12:00:00Z",
            "2026-12-01T12:00:00é:00",
        ] {
            assert_eq!(UnixMs::parse(bad), Err(TimeError::NotRfc3339), "{bad}");
        }
    }

    #[test]
    fn a_past_moment_is_zero_away() {
        assert_eq!(UnixMs(10).ms_until(UnixMs(7)), 0);
        assert_eq!(UnixMs(10).ms_until(UnixMs(17)), 7);
    }
}
