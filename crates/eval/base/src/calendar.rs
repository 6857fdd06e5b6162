//! Dates and times as C's `ctime` and RFC 3339 write them, in UTC.

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const DAY_SECONDS: u64 = 86_400;
/// Years that can be represented.
const YEARS: std::ops::RangeInclusive<u64> = 1970..=9999;

/// Returns the year, month (from 1) and day (from 1) of a day number (Hinnant, "chrono-compatible low-level
/// date algorithms").
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12 + 1;
    (year_of_era + era * 400 + u64::from(month < 3), month, day)
}

/// Returns the day number of a date, counted from 1970 (same source).
fn day_number(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month < 3);
    let (era, of_era) = (year / 400, year % 400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Formats a time as `Fri Nov 20 22:18:58 2026`.
pub fn ctime(seconds: u64) -> String {
    let (days, second) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
    let (year, month, day) = civil(days);
    format!(
        "{} {} {day:2} {:02}:{:02}:{:02} {year}",
        DAYS[(days % 7) as usize],
        MONTHS[(month - 1) as usize],
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Formats a time as `2026-11-20T22:18:58Z`.
pub fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
    let (year, month, day) = civil(days);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

/// Parses the form that [`ctime`] writes.
pub fn parse_ctime(text: &str) -> Option<u64> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let [_, month, day, time, year] = words[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    seconds((year.parse().ok()?, month, day.parse().ok()?), time)
}

/// Parses `2026-11-20T22:18:58` and ignores what follows the seconds. It ignores the zone, so a local time
/// counts as UTC.
pub fn parse_iso(text: &str) -> Option<u64> {
    let (date, time) = text.split_once('T')?;
    let mut parts = date.split('-');
    let mut next = || parts.next()?.parse().ok();
    seconds((next()?, next()?, next()?), time.get(..8)?)
}

fn seconds((year, month, day): (u64, u64, u64), time: &str) -> Option<u64> {
    let mut parts = time.split(':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    let is_sane = YEARS.contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    is_sane.then(|| day_number(year, month, day) * DAY_SECONDS + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Goal: known times have their known forms; invalid text gives no time.
    #[test]
    fn known_times() {
        assert_eq!(ctime(1_795_213_138), "Fri Nov 20 22:18:58 2026");
        assert_eq!(ctime(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(rfc3339(1_795_213_138), "2026-11-20T22:18:58Z");
        assert_eq!(parse_iso("2026-11-20T22:18:58.123+0900"), Some(1_795_213_138));
        for text in ["", "Fri Nov 20 2026", "Fri Foo 20 22:18:58 2026", "Fri Nov 0 22:18:58 2026"] {
            assert_eq!(parse_ctime(text), None, "{text}");
        }
        for text in ["", "2026-11-20", "2026-13-20T22:18:58", "2026-11-20T22:18", "T\u{e9}\u{e9}"] {
            assert_eq!(parse_iso(text), None, "{text}");
        }
    }

    proptest! {
        /// Goal: written times parse to the same value.
        #[test]
        fn forms_are_read_again(seconds in 0_u64..253_402_300_800) {
            prop_assert_eq!(parse_ctime(&ctime(seconds)), Some(seconds));
            prop_assert_eq!(parse_iso(&rfc3339(seconds)), Some(seconds));
        }
    }
}
