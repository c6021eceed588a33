//! Numbers with their units and text that is safe inside the page. It knows nothing of what the numbers mean.

use std::fmt::Write as _;

use rules::time::UnixMs;

pub(super) use crate::words::thousands as number;

/// Between a number and its unit: they stay on one line.
const NBSP: char = '\u{a0}';
const TWO_TO_32: f64 = 4_294_967_296.0;

/// `1 buyer`, `20,000 buyers`.
pub(super) fn count(amount: u64, one: &str) -> String {
    format!("{}{NBSP}{}", number(amount), noun(amount, one))
}

/// `buyer`, `buyers`, `tries`.
pub(super) fn noun(amount: u64, one: &str) -> String {
    match (amount, one.strip_suffix('y')) {
        (1, _) => one.to_owned(),
        (_, Some(stem)) => format!("{stem}ies"),
        (_, None) => format!("{one}s"),
    }
}

/// Three digits that matter: `870 µs`, `12.4 ms`, `1.24 s`, `15.0 min`.
pub(super) fn duration_us(us: u64) -> String {
    let us = float(us);
    let (value, unit) = match us {
        ..1e3 => return format!("{us}{NBSP}µs"),
        ..1e6 => (us / 1e3, "ms"),
        ..600e6 => (us / 1e6, "s"),
        _ => (us / 60e6, "min"),
    };
    format!("{}{NBSP}{unit}", three_digits(value))
}

/// A round duration without the digits that say nothing: `10 ms`.
pub(super) fn round_duration_us(us: u64) -> String {
    let text = duration_us(us);
    let Some((value, unit)) = text.split_once(NBSP) else { return text };
    let value = if value.contains('.') { value.trim_end_matches('0').trim_end_matches('.') } else { value };
    format!("{value}{NBSP}{unit}")
}

/// `2026-12-01 12:00:00 UTC`.
pub(super) fn moment(at: UnixMs) -> String {
    let text = at.to_string();
    match (text.get(..10), text.get(11..19)) {
        (Some(date), Some(time)) => format!("{date} {time}{NBSP}UTC"),
        _ => text,
    }
}

pub(super) fn three_digits(value: f64) -> String {
    let decimals = match value.abs() {
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// `0.50 %`, `12.3 %`; `-` of nothing.
pub(super) fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".into();
    }
    percent(float(part) / float(whole))
}

pub(super) fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let decimals = match percent {
        0.0 | 100.0.. => 0,
        ..0.995 => 2,
        _ => 1,
    };
    // Almost everybody is not everybody.
    let shown = if percent > 99.9 && percent < 100.0 { 99.9 } else { percent };
    format!("{shown:.decimals$}{NBSP}%")
}

/// A short label for an axis: `0`, `500`, `20k`, `1.5M`.
pub(super) fn compact(value: f64) -> String {
    let (value, unit) = match value.abs() {
        ..1e3 => (value, ""),
        ..1e6 => (value / 1e3, "k"),
        _ => (value / 1e6, "M"),
    };
    let text = format!("{value:.2}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Escaped, and with what stands between two backticks as code.
pub(super) fn with_code(text: &str) -> String {
    match text.split_once('`').and_then(|(before, rest)| Some((before, rest.split_once('`')?))) {
        Some((before, (code, after))) => {
            format!("{}<code>{}</code>{}", escape(before), escape(code), with_code(after))
        }
        None => escape(text),
    }
}

/// Makes any text harmless inside an element and inside a quoted attribute. Control characters, which no name needs
/// and XML does not allow, become visible.
pub(super) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(character),
            // Marks that turn the direction of writing could make a sentence read as another one.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}' => {
                safe.push('\u{fffd}');
            }
            _ if character.is_control() => safe.push('\u{fffd}'),
            _ => safe.push(character),
        }
    }
    safe
}

/// Text of at most so many characters, with `…` where something is missing.
pub(super) fn cut(text: &str, characters_max: usize) -> String {
    let mut rest = text.chars();
    let mut short: String = rest.by_ref().take(characters_max).collect();
    if rest.next().is_some() {
        short.pop();
        short.push('…');
    }
    short
}

/// Adds to a string, which cannot fail.
pub(super) fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _ = out.write_fmt(text);
}

/// Exact up to 2^53, near enough above.
pub(super) fn float(number: u64) -> f64 {
    let high = u32::try_from(number >> 32).unwrap_or(u32::MAX);
    let low = u32::try_from(number & 0xffff_ffff).unwrap_or(u32::MAX);
    f64::from(high).mul_add(TWO_TO_32, f64::from(low))
}

pub(super) fn float_signed(number: i64) -> f64 {
    let size = float(number.unsigned_abs());
    if number < 0 { -size } else { size }
}

pub(super) fn length(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable_and_carry_their_unit() {
        assert_eq!(
            [0, 999, 1_000, 20_000, 1_234_567].map(number),
            ["0", "999", "1,000", "20,000", "1,234,567"]
        );
        assert_eq!(
            [(1, "buyer"), (0, "buyer"), (1, "try"), (2_000, "try")].map(|(n, one)| count(n, one)),
            ["1\u{a0}buyer", "0\u{a0}buyers", "1\u{a0}try", "2,000\u{a0}tries"]
        );
        let durations = [0, 870, 1_240, 12_400, 124_000, 999_999, 1_240_000, 62_000_000, 900_000_000];
        assert_eq!(
            durations.map(duration_us).map(|text| text.replace('\u{a0}', " ")),
            ["0 µs", "870 µs", "1.24 ms", "12.4 ms", "124 ms", "1000 ms", "1.24 s", "62.0 s", "15.0 min"]
        );
        assert_eq!(
            [10_000, 1_500_000, 200].map(round_duration_us),
            ["10\u{a0}ms", "1.5\u{a0}s", "200\u{a0}µs"]
        );
        assert_eq!(moment(UnixMs(1_796_126_400_000)), "2026-12-01 12:00:00\u{a0}UTC");
        assert_eq!([0.0, 500.0, 20_000.0, 1_500_000.0].map(compact), ["0", "500", "20k", "1.5M"]);
    }

    #[test]
    fn shares_do_not_round_to_all_or_nothing() {
        assert_eq!(share(100, 20_000), "0.50\u{a0}%");
        assert_eq!(share(19_999, 20_000), "99.9\u{a0}%");
        assert_eq!(share(3, 3), "100\u{a0}%");
        assert_eq!(share(0, 3), "0\u{a0}%");
        assert_eq!(share(0, 0), "–");
    }

    #[test]
    fn text_from_outside_is_harmless() {
        assert_eq!(escape("<b a='\"&\u{0}\u{202e}\n"), "&lt;b a=&#39;&quot;&amp;\u{fffd}\u{fffd}\n");
        assert_eq!((cut("abcdef", 4), cut("abcd", 4)), ("abc…".into(), "abcd".into()));
    }

    #[test]
    fn large_numbers_keep_their_size() {
        for number in [0, 1, u64::from(u32::MAX), 1 << 32, (1 << 53) - 1] {
            assert_eq!(format!("{:.0}", float(number)), number.to_string());
        }
        assert_eq!(float_signed(-1_500_000), -1_500_000.0);
    }
}
