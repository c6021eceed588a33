//! Numbers and times as people read and write them. It prints nothing; `say` does.

use std::time::Duration;

/// `1234567` as `1,234,567`.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration with the unit that suits it.
#[must_use]
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match duration {
        _ if seconds < 0.001 => format!("{:.0} µs", seconds * 1e6),
        _ if seconds < 0.01 => format!("{:.1} ms", seconds * 1e3),
        _ if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.1} s"),
    }
}

/// Microseconds as [`span`] says them.
#[must_use]
pub fn span_us(us: u64) -> String {
    span(Duration::from_micros(us))
}

/// `5s`, `500ms`, `2m`.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let number: u32 = digits.parse().map_err(|_| "write a number and a unit, such as 5s".to_owned())?;
    let ms = match text.strip_prefix(digits) {
        Some("ms") => 1,
        Some("s") => 1_000,
        Some("m") => 60_000,
        _ => return Err("the unit must be ms, s or m, such as 5s".to_owned()),
    };
    Ok(Duration::from_millis(u64::from(number) * ms))
}

/// `1 buyer`, `2,000 buyers`.
#[must_use]
pub fn many(number: u64, thing: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {thing}{plural}", thousands(number))
}

/// With a capital letter at the beginning.
#[must_use]
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string()).unwrap_or_default();
    first + letters.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(["0", "999", "1,000", "12,345,678"], [0, 999, 1_000, 12_345_678].map(thousands)[..]);
        assert_eq!((many(1, "buyer"), many(2_000, "buyer")), ("1 buyer".into(), "2,000 buyers".into()));
    }

    #[test]
    fn spans_take_the_unit_that_suits_them() {
        let spans = [250, 1_500, 25_000, 2_500_000].map(span_us);
        assert_eq!(spans, ["250 µs", "1.5 ms", "25 ms", "2.5 s"]);
    }

    #[test]
    fn times_have_a_number_and_a_unit() {
        assert_eq!(parse_time("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_time("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_time("2m"), Ok(Duration::from_secs(120)));
        for bad in ["", "5", "s", "-1s", "5h", "1.5s"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
