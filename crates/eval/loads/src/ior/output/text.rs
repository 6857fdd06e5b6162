//! How IOR writes numbers, sizes and times.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The time, as C's `ctime` shows it, in UTC.
pub(super) fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    base::calendar::ctime(since.as_secs())
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

    /// Goal: numbers and sizes look as IOR's do (from the output of both versions).
    #[test]
    fn forms_are_those_of_ior() {
        assert_eq!(number(0.000_063), "0.000063  ");
        assert_eq!(number(269.9), "269.90    ");
        assert_eq!(number(17072.4), "17072     ");
        assert_eq!(number(-1.0), "   -      ");
        assert_eq!(size(262_144), "262144 bytes");
        assert_eq!(size(4 << 20), "4 MiB");
        assert_eq!(size((3 << 30) / 2), "1.50 GiB");
    }
}
