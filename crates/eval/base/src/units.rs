//! Sizes and times in the forms that people write and read.

use crate::error::UnitError;
use stats::Interval;
use std::time::Duration;

/// Parses a size: 4096, 4k, 4KiB, 16MiB, 1GiB, 1TiB. A unit is always a power of 1024, as in fio.
pub fn parse_bytes(text: &str) -> Result<u64, UnitError> {
    let (number, unit) = split(text);
    let number: u64 = number.parse().map_err(|_| UnitError::NoSize(text.into()))?;
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(UnitError::SizeUnit(text.into())),
    };
    let bytes = number.checked_shl(shift).filter(|bytes| bytes >> shift == number);
    bytes.ok_or_else(|| UnitError::TooLarge(text.into()))
}

/// Parses a time: 2s, 500ms, 10min, 2h.
pub fn parse_time(text: &str) -> Result<Duration, UnitError> {
    let (number, unit) = split(text);
    let number: f64 = number.parse().map_err(|_| UnitError::NoTime(text.into()))?;
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(UnitError::TimeUnit(text.into())),
    };
    Duration::try_from_secs_f64(number * seconds).map_err(|_| UnitError::TimeRange(text.into()))
}

/// Returns the plural of a noun.
pub fn plural(one: &str) -> String {
    format!("{one}{}", if one.ends_with('s') { "es" } else { "s" })
}

/// Returns a count with its noun.
pub fn several(count: u32, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {}", plural(one)) }
}

fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// Formats a size with the largest unit that divides it.
pub fn bytes(value: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if value >= 1 << shift && value.trailing_zeros() >= shift {
            return format!("{} {unit}", value >> shift);
        }
    }
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if value >= 1 << shift {
            return format!("{:.1} {unit}", value as f64 / (1_u64 << shift) as f64);
        }
    }
    format!("{value} B")
}

/// Formats a time.
pub fn seconds(value: f64) -> String {
    match value {
        value if value < 0.0995 => format!("{:.0} ms", value * 1000.0),
        value if value < 99.5 => format!("{value:.1} s"),
        value if value < 5400.0 => format!("{:.0} min", (value / 60.0).ceil()),
        value => format!("{:.1} h", value / 3600.0),
    }
}

/// Formats a number with three significant digits.
pub fn significant(value: f64) -> String {
    if !value.is_finite() {
        return "–".into();
    }
    let digits = if value == 0.0 { 0.0 } else { value.abs().log10().floor() };
    let decimals = (2.0 - digits).clamp(0.0, 6.0) as usize;
    format!("{value:.decimals$}")
}

/// Formats a number at a tick of an axis: short, without exponents up to a million.
pub fn tick(value: f64) -> String {
    let size = value.abs();
    let sign = if value < 0.0 { "−" } else { "" };
    match size {
        size if size >= 1e6 => format!("{sign}{} M", trimmed(size / 1e6)),
        size if size >= 1e4 => format!("{sign}{} k", trimmed(size / 1e3)),
        size => format!("{sign}{}", trimmed(size)),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// The exact size of a larger change carries no information.
const PERCENT_MAX: f64 = 100_000.0;

/// Formats a log-ratio as signed percent: `+3.2 %`.
pub fn percent(log_ratio: f64) -> String {
    let value = 100.0 * log_ratio.exp_m1();
    if !value.is_finite() {
        return "–".into();
    }
    if value > PERCENT_MAX {
        return format!("≥ +{PERCENT_MAX:.0} %");
    }
    let sign = if value < 0.0 { '−' } else { '+' };
    let size = value.abs();
    if size < 9.95 { format!("{sign}{size:.1} %") } else { format!("{sign}{size:.0} %") }
}

/// Formats an interval of a log-ratio as percent: `+3.2 % … +5.1 %`, or `–` without an interval.
pub fn interval(log_ratios: Option<Interval>) -> String {
    log_ratios.map_or("–".into(), |it| format!("{} … {}", percent(it.low), percent(it.high)))
}

/// Formats an interval to follow a value: in parentheses after a space, or nothing.
pub fn interval_behind(log_ratios: Option<Interval>) -> String {
    log_ratios.map_or(String::new(), |_| format!(" ({})", interval(log_ratios)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the forms that users write are parsed; other texts are refused.
    #[test]
    fn sizes_and_times() {
        for (text, value) in [
            ("4k", 4096),
            ("4KiB", 4096),
            ("16 MiB", 16 << 20),
            ("512", 512),
            ("2G", 2 << 30),
            ("1MB", 1 << 20),
        ] {
            assert_eq!(parse_bytes(text), Ok(value), "{text}");
        }
        for text in ["", "k", "4x", "1.5m", "99999999999t", "-1"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!(parse_time("1.5 s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_time("2h"), Ok(Duration::from_hours(2)));
        for text in ["2", "s", "-1s", "2 days", "1.2.3s"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
        assert_eq!(
            (bytes(4096), bytes(1536), bytes(7)),
            ("4 KiB".into(), "1.5 KiB".into(), "7 B".into())
        );
        assert_eq!(
            (seconds(0.05), seconds(3.0), seconds(600.0)),
            ("50 ms".into(), "3.0 s".into(), "10 min".into())
        );
        assert_eq!(percent(1.05_f64.ln()), "+5.0 %");
        assert_eq!(percent(0.5_f64.ln()), "−50 %");
        assert_eq!(percent(20.0), "≥ +100000 %");
        let known = Some(Interval { low: 0.9_f64.ln(), high: 1.05_f64.ln() });
        assert_eq!(interval(known), "−10 % … +5.0 %");
        assert_eq!(interval_behind(known), " (−10 % … +5.0 %)");
        assert_eq!((interval(None), interval_behind(None)), ("–".into(), String::new()));
        assert_eq!((significant(1234.5), significant(0.01234)), ("1234".into(), "0.0123".into()));
    }
}
