//! The sum of all jobs.

use super::LoadError;
use super::load::Load;
use super::thread::JobResult;
use crate::rate::summary::{Summary, Times};
use crate::threads::{self, ThreadError};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Share of the rate below which it was not held.
const SATURATED_BELOW: f64 = 0.99;

/// What the run as a whole took.
pub(super) struct Measured {
    pub(super) seconds: f64,
    pub(super) cpu_seconds: f64,
    /// Requests that completed in it.
    pub(super) ios: u64,
    /// By the second, whole seconds only.
    pub(super) series: Vec<u64>,
    pub(super) is_interrupted: bool,
}

/// All jobs together.
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

impl Sum {
    fn new(first: JobResult) -> Self {
        let JobResult { ended, timer_slack_ns } = first;
        Self {
            latency_ns: ended.times.latency_ns,
            service_ns: ended.times.service_ns,
            lateness_ns: ended.times.lateness_ns,
            submissions: ended.submissions.into_iter().collect(),
            ios_all: ended.ios,
            unfinished: ended.unfinished,
            has_registered_memory: ended.has_registered_memory,
            timer_slack_ns,
        }
    }

    fn add(&mut self, result: JobResult) -> Result<(), ThreadError> {
        let JobResult { ended, timer_slack_ns } = result;
        self.latency_ns.add(&ended.times.latency_ns)?;
        self.service_ns.add(&ended.times.service_ns)?;
        self.lateness_ns.add(&ended.times.lateness_ns)?;
        for (size, count) in ended.submissions {
            *self.submissions.entry(size).or_default() += count;
        }
        self.ios_all += ended.ios;
        self.unfinished += ended.unfinished;
        self.has_registered_memory &= ended.has_registered_memory;
        self.timer_slack_ns = self.timer_slack_ns.max(timer_slack_ns);
        Ok(())
    }
}

/// Returns the figures of a histogram.
fn times(histogram: &Histogram<u64>) -> Times {
    let us = |ns: u64| ns as f64 / 1e3;
    let at = |quantile: f64| us(histogram.value_at_quantile(quantile));
    Times {
        avg: histogram.mean() / 1e3,
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        max: us(histogram.max()),
    }
}

/// Returns what a run came to.
pub(super) fn summary(
    load: &Load,
    measured: &Measured,
    results: Vec<JobResult>,
) -> Result<Summary, LoadError> {
    let mut results = results.into_iter();
    let mut sum = Sum::new(results.next().ok_or(LoadError::NoResult)?);
    for result in results {
        sum.add(result)?;
    }
    let parameters = &load.parameters;
    let seconds = measured.seconds.max(f64::MIN_POSITIVE);
    let iops = measured.ios as f64 / seconds;
    Ok(Summary {
        rw: parameters.pattern.name().into(),
        bs: parameters.request_bytes,
        rate: parameters.rate,
        batch: parameters.batch,
        numjobs: parameters.jobs,
        units: load.units.len() as u32,
        seconds: measured.seconds,
        is_interrupted: measured.is_interrupted,
        ios: measured.ios,
        ios_all: sum.ios_all,
        iops,
        is_saturated: parameters.rate.is_some_and(|rate| iops < SATURATED_BELOW * rate as f64),
        latency_us: times(&sum.latency_ns),
        service_us: times(&sum.service_ns),
        lateness_us: times(&sum.lateness_ns),
        submissions: sum.submissions.into_iter().collect(),
        cpu_us_per_io: measured.cpu_seconds * 1e6 / measured.ios.max(1) as f64,
        cpu_percent: measured.cpu_seconds / seconds * 100.0,
        unfinished: sum.unfinished,
        timer_slack_ns: sum.timer_slack_ns,
        slack_us: parameters.slack().as_micros() as u64,
        is_straight: load.straight.is_some(),
        has_registered_memory: sum.has_registered_memory,
        series: measured.series.clone(),
        histogram_ns: threads::coarse(&sum.latency_ns)?,
    })
}
