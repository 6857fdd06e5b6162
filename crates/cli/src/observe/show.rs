//! Operations in words and tables.

use crate::output::plain;
use metrics::{Counts, Running, Slow, Wait};
use std::time::Duration;

/// Returns a time with three digits and its unit.
pub(crate) fn time(ns: u64) -> String {
    let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us")];
    let Some((size, unit)) = units.into_iter().find(|(size, _)| ns >= *size) else {
        return format!("{ns} ns");
    };
    let value = ns as f64 / size as f64;
    match value {
        value if value < 10.0 => format!("{value:.2} {unit}"),
        value if value < 100.0 => format!("{value:.1} {unit}"),
        value => format!("{value:.0} {unit}"),
    }
}

/// Returns a number of bytes with three digits and its unit.
pub(crate) fn bytes(bytes: f64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let found = units.into_iter().find(|(size, _)| bytes >= f64::from(*size));
    match found {
        Some((size, unit)) => format!("{:.1} {unit}", bytes / f64::from(size)),
        None if bytes > 0.0 => format!("{bytes:.0} B"),
        None => "-".into(),
    }
}

/// Returns a short form of a rate or count.
pub(crate) fn number(value: f64) -> String {
    match value {
        value if value >= 1e7 => format!("{:.1}M", value / 1e6),
        value if value >= 1e5 => format!("{:.0}k", value / 1e3),
        value if value >= 10.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// Returns the head of lines ([`line()`]); `per_second` if they are rates.
pub(crate) fn head(per_second: bool) -> String {
    let (count, bytes) = if per_second { ("ops/s", "bytes/s") } else { ("ops", "bytes") };
    format!(
        "{:7} {:18} {count:>9} {bytes:>11} {:>9} {:>9} {:>9} {:>9} {:>7}",
        "family", "operation", "mean", "p50", "p99", "max", "errors"
    )
}

/// Returns an operation in a line: counts, or rates over a time.
pub(crate) fn line(counts: &Counts, over: Option<Duration>) -> String {
    let by = over.map_or(1.0, |over| over.as_secs_f64().max(1e-9));
    let count = counts.count();
    let quantile = |share| time(counts.latencies.quantile_ns(share));
    format!(
        "{:7} {:18} {:>9} {:>11} {:>9} {:>9} {:>9} {:>9} {:>7}",
        counts.family.name(),
        plain(&counts.name),
        number(count as f64 / by),
        bytes(counts.bytes as f64 / by),
        time(counts.sum_ns / count.max(1)),
        quantile(0.5),
        quantile(0.99),
        quantile(1.0),
        counts.errors
    )
}

/// Returns an operation and its subject.
pub(crate) fn subject(family: metrics::Family, name: &str, subject: u64) -> String {
    let name = plain(name);
    match subject {
        0 => format!("{} {name}", family.name()),
        subject => format!("{} {name} of {} {subject}", family.name(), family.subject()),
    }
}

/// Returns a wait in words.
pub(crate) fn wait(wait: &Wait) -> String {
    format!("{} ({})", subject(wait.family, &wait.name, wait.subject), time(wait.ns))
}

fn process(pid: u32) -> String {
    if pid == 0 { String::new() } else { format!(" for thread {pid}") }
}

/// Returns a running operation, and its wait.
pub(crate) fn running(one: &Running) -> String {
    let what = subject(one.family, &one.name, one.subject);
    let waits =
        one.waits_for.as_ref().map_or(String::new(), |it| format!(", waits for {}", wait(it)));
    format!("{what}{} for {}{waits}", process(one.pid), time(one.ns))
}

/// Returns a slow operation, and the reason.
pub(crate) fn slow(one: &Slow) -> String {
    let what = subject(one.family, &one.name, one.subject);
    let why = match &one.longest {
        Some(longest) => format!(", most of it in {}", wait(longest)),
        None => ", without a wait".into(),
    };
    let ago = one.ended_ns_ago / 1_000_000_000;
    format!("{:>9}  {what}{}{why}, {ago} s ago", time(one.ns), process(one.pid))
}

/// Sorts operations by family, then by total time.
pub(crate) fn sorted(mut operations: Vec<Counts>) -> Vec<Counts> {
    operations.sort_by_key(|one| (one.family, std::cmp::Reverse(one.sum_ns)));
    operations
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: names that a service has sent cannot control the terminal.
    #[test]
    fn names_are_plain() {
        let name = "re\u{1b}[2Jad\u{9b}1m";
        let counts = Counts::none(metrics::Family::Fuse, name);
        for text in [line(&counts, None), subject(metrics::Family::Fuse, name, 7)] {
            assert!(text.contains("re?[2Jad?1m"), "{text:?}");
        }
    }

    #[test]
    fn values_have_units() {
        assert_eq!(time(999), "999 ns");
        assert_eq!(time(1500), "1.50 us");
        assert_eq!(time(15_030_000), "15.0 ms");
        assert_eq!(time(61_000_000_000), "61.0 s");
        assert_eq!(bytes(0.0), "-");
        assert_eq!(bytes(512.0), "512 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(number(0.5), "0.5");
        assert_eq!(number(1234.0), "1234");
        assert_eq!(number(250_000.0), "250k");
    }
}
