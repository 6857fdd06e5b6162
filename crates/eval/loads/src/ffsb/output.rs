//! Results in FFSB's words: the tables of version 6 and of version 5.
//!
//! Units are FFSB's: `KB`, `MB` and `GB` are powers of 1024, rates are by its time, which includes
//! flushing. Version 6's list of each single call's time is left out.

use super::account::{CallTimes, Calls, Measured, Part};
use super::operation::{Call, Direction, Operation};
use super::profile::{Compat, Profile, Statistics};
use std::fmt::Write as _;

/// The results of an instance.
pub fn text(profile: &Profile, measured: &Measured) -> String {
    let seconds = measured.seconds();
    let mut text = format!("Results:\nBenchmark took {seconds:.2} sec\n\n");
    let table = if profile.compat == Compat::V5 { old_table } else { table };
    let is_single = profile.groups.len() == 1;
    for (number, (group, part)) in profile.groups.iter().zip(&measured.groups).enumerate() {
        if is_single {
            text += "Total Results\n";
        } else {
            let _ = writeln!(text, "ThreadGroup {number}");
        }
        text += "===============\n";
        text += &table(part, seconds);
        if let Some(statistics) = &group.statistics {
            text += &calls(&part.calls, statistics);
        }
        text += "\n";
    }
    if !is_single {
        text += "Total Results\n===============\n";
        text += &table(&measured.total(), seconds);
    }
    let (user, system) = measured.cpu_s;
    for (share, name) in
        [(user, "User   Time"), (system, "System Time"), (user + system, "CPU Utilization")]
    {
        if name == "User   Time" {
            text += "\n\n";
        }
        let _ = writeln!(text, "{:.1}% {name}", 100.0 * share / seconds);
    }
    text
}

/// Version 6's table of a group's operations.
fn table(part: &Part, seconds: f64) -> String {
    let total = part.tally.total();
    let percent = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
    let mut text = String::from(
        "             Op Name   Transactions\t Trans/sec\t% Trans\t    % Op Weight\t   Throughput\n\
         \x20            =======   ============\t =========\t=======\t    ===========\t   ==========\n",
    );
    for (operation, count) in part.tally.0.iter().filter(|(_, count)| count.transactions > 0) {
        let throughput = match operation.direction() {
            Direction::None => "NA".into(),
            _ => format!("{}/sec", size(count.bytes as f64 / seconds)),
        };
        let _ = writeln!(
            text,
            "{:>20} : {:>12}\t{:>10.2}\t{:>6.3}%\t\t{:>6.3}%\t  {throughput:>11}",
            operation.name(),
            count.transactions,
            count.transactions as f64 / seconds,
            percent(count.transactions, total.transactions),
            percent(count.operations, total.operations),
        );
    }
    let rate = total.transactions as f64 / seconds;
    let _ = writeln!(text, "-\n{rate:.2} Transactions per Second\n");
    let (read, written) = (part.tally.bytes(Direction::Read), part.tally.bytes(Direction::Write));
    if read + written > 0 {
        text += "Throughput Results\n===================\n";
    }
    for (bytes, name) in [(read, "Read"), (written, "Write")] {
        if bytes > 0 {
            let _ = writeln!(text, "{name} Throughput: {}/sec", size(bytes as f64 / seconds));
        }
    }
    text
}

/// Version 5's: shares, or the throughput if there is one operation only.
fn old_table(part: &Part, seconds: f64) -> String {
    let total = part.tally.total().transactions;
    let mut text = String::new();
    let done: Vec<_> = part.tally.0.iter().filter(|(_, count)| count.transactions > 0).collect();
    for (operation, count) in &done {
        let words = match operation {
            Operation::Read | Operation::Readall => Some("reads"),
            Operation::Write | Operation::WriteFsync => Some("writes"),
            Operation::Create => Some("creates"),
            Operation::Append => Some("append writes"),
            _ => None,
        };
        let rate = count.transactions as f64 / seconds;
        let _ = if let (Some(words), 1) = (words, done.len()) {
            let throughput = size(count.bytes as f64 / seconds);
            writeln!(text, "Throughput: {rate:.2} {words}/sec -> {throughput}/sec")
        } else {
            let percent = 100.0 * count.transactions as f64 / total.max(1) as f64;
            let name = operation.name();
            writeln!(text, "{name:>20} : {} ops ({percent:.6}%) ", count.transactions)
        };
    }
    let _ = writeln!(text, "{:.2} Transactions per Second", total as f64 / seconds);
    text
}

/// The times of system calls.
fn calls(calls: &Calls, statistics: &Statistics) -> String {
    let mut text = String::from(
        "\nSystem Call Latency statistics in millisecs\n=====\n\
         \t\tMin\t\tAvg\t\tMax\t\tTotal Calls\n\
         \t\t========\t========\t========\t============\n",
    );
    let ms = |us: f64| us / 1000.0;
    for (name, call) in Call::ALL {
        let Some(CallTimes { calls, total_us, min_us, max_us, ranges }) = calls.0.get(&call) else {
            continue;
        };
        let mean = ms(*total_us as f64 / *calls as f64);
        let (min, max) = (ms(*min_us as f64), ms(*max_us as f64));
        let _ = writeln!(text, "[{name:>7}]\t{min:05.6}\t{mean:05.6}\t{max:05.6}\t{calls:>12}");
        if ranges.is_empty() {
            text += "   -\n";
            continue;
        }
        for (number, (count, (from, until))) in ranges.iter().zip(&statistics.ranges_us).enumerate()
        {
            let (from, until) = (ms(f64::from(*from)), ms(f64::from(*until)));
            let _ =
                writeln!(text, "\t\t msec_range[{number}]\t{from:.6} - {until:.6} : {count:>8}");
        }
        text += "\n";
    }
    text
}

/// A size as FFSB prints it: three significant digits with a unit of a power of 1024.
pub fn size(bytes: f64) -> String {
    for (shift, unit) in [(30, "GB"), (20, "MB"), (10, "KB")] {
        let one = (1_u64 << shift) as f64;
        if bytes >= one {
            return general(bytes / one) + unit;
        }
    }
    general(bytes) + "B"
}

/// C's `%.3g`.
fn general(value: f64) -> String {
    let scientific = format!("{value:.2e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| {
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_string()
        } else {
            text.into()
        }
    };
    if (-4..3).contains(&exponent) {
        return trimmed(&format!("{value:.*}", (2 - exponent).max(0) as usize));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits), exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffsb::profile::tests::SMALL;
    use std::time::Duration;

    fn measured(profile: &Profile) -> Measured {
        let mut part = Part::default();
        part.tally.count(Operation::Read, 10, 40960);
        part.tally.count(Operation::Read, 10, 40960);
        part.tally.count(Operation::Stat, 1, 0);
        part.tally.count(Operation::Append, 4, 16384);
        let statistics = profile.groups[0].statistics.clone().unwrap_or_default();
        part.calls.count(&statistics, Call::Read, Duration::from_micros(1500));
        Measured {
            groups: vec![part],
            flushed_ns: 2_000_000_000,
            cpu_s: (0.5, 1.0),
            ..Measured::default()
        }
    }

    /// Goal: numbers have C's form `%.3g`, as printf(1) prints them.
    #[test]
    fn sizes_are_printed_as_c_does() {
        for (bytes, text) in [
            (0.0, "0B"),
            (1.0, "1B"),
            (0.25, "0.25B"),
            (999.4, "999B"),
            (1000.0, "1e+03B"),
            (1023.0, "1.02e+03B"),
            (1024.0, "1KB"),
            (1536.0, "1.5KB"),
            (102_400.0, "100KB"),
            (1_048_576.0, "1MB"),
            (5_000_000_000.0, "4.66GB"),
            (0.000_012_34, "1.23e-05B"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    /// Goal: the table of version 6, byte for byte.
    #[test]
    fn results_have_the_form_of_version_6() {
        let mut profile = Profile::parse(SMALL, Some(Compat::V6)).unwrap();
        profile.groups[0].statistics =
            Some(Statistics { ranges_us: vec![(0, 1000), (1000, 2000)], ..Statistics::default() });
        let expected = "Results:\nBenchmark took 2.00 sec\n\nTotal Results\n===============\n\
            \x20            Op Name   Transactions\t Trans/sec\t% Trans\t    % Op Weight\t   Throughput\n\
            \x20            =======   ============\t =========\t=======\t    ===========\t   ==========\n\
            \x20               read :           20\t     10.00\t80.000%\t\t50.000%\t     40KB/sec\n\
            \x20             append :            4\t      2.00\t16.000%\t\t25.000%\t      8KB/sec\n\
            \x20               stat :            1\t      0.50\t 4.000%\t\t25.000%\t           NA\n\
            -\n12.50 Transactions per Second\n\n\
            Throughput Results\n===================\n\
            Read Throughput: 40KB/sec\nWrite Throughput: 8KB/sec\n\
            \nSystem Call Latency statistics in millisecs\n=====\n\
            \t\tMin\t\tAvg\t\tMax\t\tTotal Calls\n\
            \t\t========\t========\t========\t============\n\
            [   read]\t1.500000\t1.500000\t1.500000\t           1\n\
            \t\t msec_range[0]\t0.000000 - 1.000000 :        0\n\
            \t\t msec_range[1]\t1.000000 - 2.000000 :        1\n\
            \n\n\n\n25.0% User   Time\n50.0% System Time\n75.0% CPU Utilization\n";
        assert_eq!(text(&profile, &measured(&profile)), expected);
    }

    /// Goal: version 5 tells shares, or the throughput of a single operation.
    #[test]
    fn results_have_the_form_of_version_5() {
        let profile = Profile::parse(SMALL, Some(Compat::V5)).unwrap();
        let mut measured = measured(&profile);
        let said = text(&profile, &measured);
        assert!(said.contains("                read : 20 ops (80.000000%) \n"), "{said}");
        assert!(said.contains("\n12.50 Transactions per Second\n"), "{said}");
        measured.groups[0].tally.0.retain(|operation, _| *operation == Operation::Append);
        let said = text(&profile, &measured);
        assert!(said.contains("Throughput: 2.00 append writes/sec -> 8KB/sec\n"), "{said}");
    }
}
