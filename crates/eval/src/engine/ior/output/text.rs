//! How IOR writes numbers, sizes and times.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The time, as C's `ctime` shows it, in UTC.
pub(super) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    time(since.as_secs())
}

fn time(seconds: u64) -> String {
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Civil date of a day number (Hinnant, "chrono-compatible low-level date algorithms").
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let of_era = shifted % 146_097;
    let year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = (from_march + 2) % 12;
    let year = era * 400 + year_of_era + u64::from(month < 2);
    format!(
        "{} {} {day:2} {:02}:{:02}:{:02} {year}",
        DAYS[(days % 7) as usize],
        MONTHS[month as usize],
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// A number in a table: six decimals below 1, two below 3600, none above; "-" for negative ones.
pub(super) fn number(value: f64) -> String {
    if value < 0.0 {
        return "   -      ".into();
    }
    let decimals = match value {
        value if value < 1.0 => 6,
        value if value < 3600.0 => 2,
        _ => 0,
    };
    format!("{value:<10.decimals$}")
}

/// A size: whole or with two decimals, in GiB, MiB or bytes.
pub(super) fn size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB")] {
        let one = 1_u64 << shift;
        if bytes >= one && bytes.is_multiple_of(one) {
            return format!("{} {unit}", bytes / one);
        }
        if bytes >= one {
            return format!("{:.2} {unit}", bytes as f64 / one as f64);
        }
    }
    format!("{bytes} bytes")
}

/// Name of the system and of this machine.
pub(super) fn machine() -> String {
    let names = rustix::system::uname();
    format!("{} {}", names.sysname().to_string_lossy(), names.nodename().to_string_lossy())
}

/// Size of the file system of a file: GiB or TiB, share used, millions of inodes, share used.
pub(super) fn file_system(path: &Path) -> Option<[String; 4]> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let stat = rustix::fs::statvfs(directory).ok()?;
    let gib = stat.f_blocks as f64 * stat.f_frsize as f64 / (1_u64 << 30) as f64;
    let used = |free: u64, all: u64| 100.0 * (1.0 - free as f64 / (all.max(1)) as f64);
    Some([
        if gib > 1024.0 { format!("{:.1} TiB", gib / 1024.0) } else { format!("{gib:.1} GiB") },
        format!("{:.1}%", used(stat.f_bfree, stat.f_blocks)),
        format!("{:.1} Mi", stat.f_files as f64 / (1 << 20) as f64),
        format!("{:.1}%", used(stat.f_ffree, stat.f_files)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: times, numbers and sizes look as IOR's do (from the output of both versions).
    #[test]
    fn forms_are_those_of_ior() {
        assert_eq!(time(1_795_213_138), "Fri Nov 20 22:18:58 2026");
        assert_eq!(time(951_782_400), "Tue Feb 29 00:00:00 2000");
        assert_eq!(number(0.000_063), "0.000063  ");
        assert_eq!(number(269.9), "269.90    ");
        assert_eq!(number(17072.4), "17072     ");
        assert_eq!(number(-1.0), "   -      ");
        assert_eq!(size(262_144), "262144 bytes");
        assert_eq!(size(4 << 20), "4 MiB");
        assert_eq!(size((3 << 30) / 2), "1.50 GiB");
    }
}
