//! What a run came to, as text or JSON.

use super::job::JobResult;
use super::{Measured, RateArgs};
use crate::load;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Share of the rate below which it was not held.
const SATURATED_BELOW: f64 = 0.99;

struct Sum {
    latency_ns: Histogram<u64>,
    service_ns: Histogram<u64>,
    lateness_ns: Histogram<u64>,
    submissions: BTreeMap<usize, u64>,
    ios_all: u64,
    unfinished: u32,
    has_registered_memory: bool,
    timer_slack_ns: u64,
}

fn sum(results: Vec<JobResult>) -> anyhow::Result<Sum> {
    let mut results = results.into_iter();
    let Some(JobResult { ended: first, timer_slack_ns }) = results.next() else {
        anyhow::bail!("no job has a result")
    };
    let mut sum = Sum {
        latency_ns: first.times.latency_ns,
        service_ns: first.times.service_ns,
        lateness_ns: first.times.lateness_ns,
        submissions: first.submissions.into_iter().collect(),
        ios_all: first.ios,
        unfinished: first.unfinished,
        has_registered_memory: first.has_registered_memory,
        timer_slack_ns,
    };
    for JobResult { ended, timer_slack_ns } in results {
        sum.latency_ns.add(&ended.times.latency_ns)?;
        sum.service_ns.add(&ended.times.service_ns)?;
        sum.lateness_ns.add(&ended.times.lateness_ns)?;
        for (size, count) in ended.submissions {
            *sum.submissions.entry(size).or_default() += count;
        }
        sum.ios_all += ended.ios;
        sum.unfinished += ended.unfinished;
        sum.has_registered_memory &= ended.has_registered_memory;
        sum.timer_slack_ns = sum.timer_slack_ns.max(timer_slack_ns);
    }
    Ok(sum)
}

/// The figures of a histogram, in µs.
fn figures(histogram: &Histogram<u64>) -> [(&'static str, f64); 5] {
    let us = |ns: u64| ns as f64 / 1e3;
    let at = |quantile: f64| us(histogram.value_at_quantile(quantile));
    [
        ("avg", histogram.mean() / 1e3),
        ("p50", at(0.5)),
        ("p99", at(0.99)),
        ("p99.9", at(0.999)),
        ("max", us(histogram.max())),
    ]
}

fn object(histogram: &Histogram<u64>) -> Value {
    figures(histogram).into_iter().map(|(name, value)| (name.to_string(), json!(value))).collect()
}

/// What was measured and what follows from it.
struct Report<'a> {
    args: &'a RateArgs,
    measured: &'a Measured,
    sum: Sum,
    mode: String,
    /// Requests went to the kernel without our block layer.
    is_straight: bool,
    iops: f64,
    /// The rate was not held.
    is_saturated: bool,
    cpu_us_per_io: f64,
    cpu_percent: f64,
}

/// Prints the outcome.
pub(super) fn print(
    args: &RateArgs,
    is_straight: bool,
    measured: &Measured,
    results: Vec<JobResult>,
) -> anyhow::Result<()> {
    let seconds = measured.seconds.max(f64::MIN_POSITIVE);
    let iops = measured.ios as f64 / seconds;
    let report = Report {
        args,
        measured,
        sum: sum(results)?,
        mode: format!("{:?}", args.rw).to_lowercase(),
        is_straight,
        iops,
        is_saturated: args.rate.is_some_and(|rate| iops < SATURATED_BELOW * rate as f64),
        cpu_us_per_io: measured.cpu_seconds * 1e6 / measured.ios.max(1) as f64,
        cpu_percent: measured.cpu_seconds / seconds * 100.0,
    };
    if args.json {
        println!("{}", report.json()?);
    } else {
        report.print();
    }
    Ok(())
}

impl Report<'_> {
    fn json(&self) -> anyhow::Result<Value> {
        let Self { args, measured, sum, .. } = self;
        let units = args.units.unwrap_or(args.devices.len() as u32);
        Ok(json!({
            "rw": self.mode, "bs": args.bs, "rate": args.rate, "batch": args.batch,
            "numjobs": args.numjobs, "units": units, "seconds": measured.seconds,
            "is_interrupted": measured.is_interrupted, "ios": measured.ios,
            "ios_all": sum.ios_all, "iops": self.iops, "is_saturated": self.is_saturated,
            "latency_us": object(&sum.latency_ns), "service_us": object(&sum.service_ns),
            "lateness_us": object(&sum.lateness_ns),
            "submissions": sum.submissions.iter().collect::<Vec<_>>(),
            "cpu_us_per_io": self.cpu_us_per_io, "cpu_percent": self.cpu_percent,
            "unfinished": sum.unfinished, "timer_slack_ns": sum.timer_slack_ns,
            "slack_us": args.slack().as_micros() as u64, "is_straight": self.is_straight,
            "has_registered_memory": sum.has_registered_memory, "series": measured.series,
            "histogram_ns": load::coarse(&sum.latency_ns)?,
        }))
    }

    fn print(&self) {
        let Self { args, measured, sum, .. } = self;
        let depth = || format!("none (depth {})", args.iodepth_max);
        println!(
            "{} bs {} rate {} batch {} numjobs {}: {:.2} s{}",
            self.mode,
            args.bs,
            args.rate.map_or_else(depth, |it| it.to_string()),
            args.batch,
            args.numjobs,
            measured.seconds.max(f64::MIN_POSITIVE),
            if measured.is_interrupted { ", interrupted" } else { "" },
        );
        println!("  {:.0} IOPS{}", self.iops, self.held());
        for (name, histogram) in [
            ("latency from when it was due", &sum.latency_ns),
            ("latency from its submission", &sum.service_ns),
            ("lateness of the generator", &sum.lateness_ns),
        ] {
            let shown = figures(histogram).map(|(name, value)| format!("{name} {value:.1}"));
            println!("  {name}, us: {}", shown.join(", "));
        }
        println!(
            "  way: {}",
            match (self.is_straight, sum.has_registered_memory) {
                (true, true) => "straight to the kernel, files and memory registered",
                (true, false) => "straight to the kernel, files registered",
                (false, _) => "through the block layer",
            }
        );
        let submitted: u64 = sum.submissions.iter().map(|(size, count)| *size as u64 * count).sum();
        let calls: u64 = sum.submissions.values().sum();
        if calls > 0 {
            println!("  requests per system call: {:.2}", submitted as f64 / calls as f64);
        }
        println!(
            "  CPU of this process: {:.2} us per I/O, {:.0} %",
            self.cpu_us_per_io, self.cpu_percent
        );
        if sum.unfinished > 0 {
            println!("  not answered at the end: {}", sum.unfinished);
        }
    }

    /// How much of the rate was held, if there was one.
    fn held(&self) -> String {
        let Some(rate) = self.args.rate else { return String::new() };
        let share = 100.0 * self.iops / rate as f64;
        let held = if self.is_saturated { ": the rate was NOT held" } else { "" };
        format!(", {share:.2} % of the rate{held}")
    }
}
