//! fio's JSON and logs.
//!
//! With `group_reporting` there is one entry for all jobs; its `job_runtime` is the sum over them and
//! `usr_cpu` and `sys_cpu` are percent of that sum, so CPU time needs no factor of `numjobs`.

use crate::metric::Metric;
use crate::outcome::Outcome;
use crate::workload::Pattern;
use base::Error;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Debug, Deserialize)]
struct Job {
    #[serde(default)]
    error: i64,
    read: Side,
    write: Side,
    #[serde(rename = "job_runtime")]
    runtime_ms: f64,
    usr_cpu: f64,
    sys_cpu: f64,
}

#[derive(Debug, Deserialize)]
struct Side {
    bw_bytes: f64,
    iops: f64,
    total_ios: u64,
    runtime: f64,
    lat_ns: Latency,
    clat_ns: Latency,
}

#[derive(Debug, Deserialize)]
struct Latency {
    mean: f64,
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

/// Reads fio's JSON, which may have messages before it.
pub fn parse(text: &str, pattern: Pattern) -> Result<Outcome, Error> {
    let wrong = |why: String| Error::program("fio", format!("its JSON cannot be used: {why}"));
    let start = text.find('{').ok_or_else(|| wrong("there is none".into()))?;
    let output: Output =
        serde_json::from_str(&text[start..]).map_err(|error| wrong(error.to_string()))?;
    let [job] = output.jobs.as_slice() else {
        return Err(wrong(format!("{} jobs where one group was asked for", output.jobs.len())));
    };
    if job.error != 0 {
        return Err(Error::program("fio", format!("the job failed with error {}", job.error)));
    }
    if pattern == Pattern::RandomMixed {
        return Err(wrong("reads and writes at once have no figures of both together".into()));
    }
    let side = if pattern.writes() { &job.write } else { &job.read };
    if side.total_ios == 0 {
        return Err(Error::program("fio", "no operation was done in the measured time"));
    }
    let percentile = |name: &str| side.clat_ns.percentile.get(name).map(|ns| ns / 1000.0);
    let mut outcome = Outcome {
        metrics: [
            (Metric::Bandwidth, side.bw_bytes),
            (Metric::Iops, side.iops),
            (Metric::Latency, side.lat_ns.mean / 1000.0),
        ]
        .into(),
        read_bytes_per_s: job.read.bw_bytes,
        written_bytes_per_s: job.write.bw_bytes,
        load_seconds: side.runtime / 1000.0,
        raw: text[start..].to_string(),
        ..Outcome::default()
    };
    if let Some(p99) = percentile("99.000000") {
        outcome.metrics.insert(Metric::LatencyP99, p99);
    }
    for (name, key) in [("p50_us", "50.000000"), ("p95_us", "95.000000"), ("p999_us", "99.900000")]
    {
        if let Some(value) = percentile(key) {
            outcome.further.insert(name.into(), value);
        }
    }
    let cpu_ms = (job.usr_cpu + job.sys_cpu) / 100.0 * job.runtime_ms;
    let ios = (job.read.total_ios + job.write.total_ios) as f64;
    outcome.metrics.insert(Metric::CpuPerIo, cpu_ms * 1000.0 / ios);
    outcome.further.insert("ios".into(), ios);
    Ok(outcome)
}

/// Reads a bandwidth log (time in ms, KiB/s, direction, …): bytes per second, interval by interval, all
/// jobs together. fio logs no interval in which nothing was done: that is 0. Nor does it log one that it
/// was late for, which happens below a second: a single one that lacks is left out there, and so are those
/// before the first. fio logs nothing of the ramp, and counts from its end (3.33, seen with ramps of 0.5 and
/// 2 s).
pub fn parse_bandwidth_log(text: &str, interval_ms: u64) -> Vec<f64> {
    let mut intervals: BTreeMap<u64, f64> = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(',').map(str::trim);
        let time = fields.next().and_then(|field| field.parse::<u64>().ok());
        let rate = fields.next().and_then(|field| field.parse::<f64>().ok());
        if let (Some(time_ms), Some(rate)) = (time, rate) {
            let index = (time_ms + interval_ms / 2) / interval_ms;
            *intervals.entry(index).or_default() += rate * 1024.0;
        }
    }
    let late_max = u64::from(interval_ms < 1000);
    let mut series = Vec::new();
    let mut before = None;
    for (index, rate) in intervals {
        let lacking = before.map_or(0, |before| index - before - 1);
        if lacking > late_max {
            series.extend((0..lacking).map(|_| 0.0));
        }
        series.push(rate);
        before = Some(index);
    }
    series
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"fio: some warning
{"fio version": "fio-3.33", "jobs": [{"jobname": "load", "error": 0, "job_runtime": 6000,
"usr_cpu": 5.0, "sys_cpu": 15.0,
"read": {"bw_bytes": 1048576, "iops": 256.0, "total_ios": 512, "runtime": 2000,
 "lat_ns": {"mean": 4000000.0}, "clat_ns": {"mean": 1.0, "percentile": {"99.000000": 9000000}}},
"write": {"bw_bytes": 0, "iops": 0, "total_ios": 0, "runtime": 0,
 "lat_ns": {"mean": 0}, "clat_ns": {"mean": 0}}}]}"#;

    /// Goal: the fields are found, CPU per operation counts the jobs once, and nonsense is refused.
    #[test]
    fn json_is_read() {
        let outcome = parse(TEXT, Pattern::Read).unwrap();
        assert!((outcome.metrics[&Metric::Bandwidth] - 1_048_576.0).abs() < 1e-9);
        assert!((outcome.metrics[&Metric::Latency] - 4000.0).abs() < 1e-9);
        assert!((outcome.metrics[&Metric::LatencyP99] - 9000.0).abs() < 1e-9);
        assert!((outcome.load_seconds - 2.0).abs() < 1e-9);
        let per_io = outcome.metrics[&Metric::CpuPerIo];
        assert!((per_io - 0.2 * 6000.0 * 1000.0 / 512.0).abs() < 1e-6);
        for text in ["", "no json", "{}", "{\"jobs\": []}"] {
            assert!(parse(text, Pattern::Read).is_err(), "{text:?}");
        }
        assert!(parse(TEXT, Pattern::Write).is_err(), "nothing was written");
        assert!(parse(&TEXT.replace("\"error\": 0", "\"error\": 5"), Pattern::Read).is_err());
    }

    /// Goal: jobs are summed by the second, also where one ends it just before, and no second is lost: this
    /// is what fio 3.33 logged with a ramp of 500 ms.
    #[test]
    fn logs_are_summed() {
        let log = "1004, 10, 0, 4096, 0\n2005, 30, 0, 0\n3005, 5, 0\n998, 20, 0\n2004, 1, 0\nx\n";
        let found = parse_bandwidth_log(log, 1000);
        assert_eq!(found, [30.0 * 1024.0, 31.0 * 1024.0, 5.0 * 1024.0]);
        // Nothing was done for two intervals of 250 ms.
        let stalled = parse_bandwidth_log("500, 8, 0\n1251, 4, 0\n", 250);
        assert_eq!(stalled, [8192.0, 0.0, 0.0, 4096.0]);
        let late = parse_bandwidth_log("500, 8, 0\n1001, 4, 0\n", 250);
        assert_eq!(late, [8192.0, 4096.0]);
        assert_eq!(parse_bandwidth_log("1000, 8, 0\n3001, 4, 0\n", 1000), [8192.0, 0.0, 4096.0]);
        assert!(parse_bandwidth_log("", 1000).is_empty());
    }
}
