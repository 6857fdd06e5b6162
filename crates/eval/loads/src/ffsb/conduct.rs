//! Many instances of a profile at the same time, and what they did together.

use super::account::{Latencies, Measured, Part};
use super::fileset::{make_file_sets, root_name};
use super::load::ProfileLoad;
use super::operation::Direction;
use super::{END_PATIENCE, NAME, OPERATIONS};
use crate::crowd::{Base, CONTAINER_QUANTILES, Meeting, Patience, Progress, Seat, fairness};
use crate::place::Place;
use crate::process;
use base::Error;
use base::Stop;
use serde::Serialize;
use stats::quantile;
use stats::random::Random;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The profile.
    pub load: &'a ProfileLoad,
    /// Instances.
    pub count: u32,
    /// Time of load, instead of the profile's.
    pub seconds: Option<Duration>,
    /// Seed of files that all instances share below their own.
    pub base_seed: u64,
    /// Seed of this run.
    pub seed: u64,
    /// Whether the profile's command may be run.
    pub allows_callout: bool,
    /// Directories for the profile's file systems, as its only instance sees them, instead of ones in its own.
    pub roots: Option<&'a [PathBuf]>,
    /// The program `tsumugi`, which becomes instances.
    pub program: &'a Path,
    /// A directory of ours that instances see.
    pub scratch: &'a Path,
}

/// What all instances did.
#[derive(Clone, Debug)]
pub struct Results {
    /// Each one's counts.
    pub instances: Vec<Measured>,
    /// When each was ready, in ns of the monotonic clock.
    pub ready_ns: Vec<u64>,
    /// The first instance's command.
    pub command: String,
}

/// How the start went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Start {
    /// From when the last instance was ready until the first operation, ms: never below 0.
    pub last_ready_to_first_operation_ms: f64,
    /// From the first instance's first operation until the last one's, ms.
    pub skew_ms: f64,
    /// From the first instance that was ready until the last one, ms.
    pub ready_spread_ms: f64,
}

/// All instances together.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Instances.
    pub instances: usize,
    /// How the start went.
    pub start: Start,
    /// From the first operation until the last instance has flushed.
    pub seconds: f64,
    /// Operations of all by second.
    pub operations_per_s: f64,
    /// The same until the last operation of any, whether what it wrote was durable or not.
    pub operations_per_s_unsynced: f64,
    /// FFSB's transactions of all by second.
    pub transactions_per_s: f64,
    /// Bytes that were read by second.
    pub read_bytes_per_s: f64,
    /// Bytes that were written by second.
    pub written_bytes_per_s: f64,
    /// Mean over instances of operations by second, each by its own time.
    pub operations_per_s_each: f64,
    /// Quarters of these, the slowest and the fastest one's among them.
    pub operations_per_s_quarters: [f64; 5],
    /// The slowest one's.
    pub operations_per_s_min: f64,
    /// The fastest one's.
    pub operations_per_s_max: f64,
    /// Jain's index of these; `None` if nothing was done.
    pub fairness: Option<f64>,
    /// Mean latency of operations, µs.
    pub latency_mean_us: f64,
    /// Median, µs.
    pub latency_p50_us: f64,
    /// 99th percentile, µs.
    pub latency_p99_us: f64,
    /// Operations that were the first to write to a file of the set.
    pub first_writes: u64,
    /// Their mean latency, µs; 0 if there was none.
    pub first_write_mean_us: f64,
    /// Their 99th percentile, µs; 0 if there was none.
    pub first_write_p99_us: f64,
}

/// Runs so many instances of a profile, each in a directory of its own, and in a container of its own if the
/// place is one, and gives what they did. All begin together once the last one has its files. What they made
/// is removed, whatever becomes of the run.
pub fn conduct(
    request: &Request<'_>,
    place: &dyn Place,
    stop: &Stop,
    tell: &mut dyn FnMut(Progress),
) -> Result<Results, Error> {
    let ProfileLoad { text, profile } = request.load;
    let key = request.load.base_key(request.base_seed);
    let fill = |directory: &Path| make_file_sets(profile, directory, request.base_seed);
    let file = request.scratch.join(format!("{key}.profile"));
    fs::write(&file, text).map_err(Error::io("cannot write", &file))?;
    let instances = place.instances(request.count, &Base { key: &key, fill: &fill }, stop)?;
    let meeting = Meeting::make(request.scratch)?;
    let program = request.program.display().to_string();
    let mut commands = Vec::new();
    for (number, place) in instances.places().into_iter().enumerate() {
        let scratch = place.inside_scratch(request.scratch);
        let seat = meeting.seat(&scratch, number as u32);
        let profile = scratch.join(format!("{key}.profile"));
        let words = arguments(request, &seat, &profile, (place, &key));
        commands.push(place.command(&program, &words, request.scratch));
    }
    let command = commands.first().map(process::shown).unwrap_or_default();
    let time = request.seconds.unwrap_or(Duration::from_secs(profile.time_s.into()));
    let patience = Patience { run: time + END_PATIENCE, ..Patience::default() };
    let gathered = meeting.hold(commands, &patience, stop, tell);
    if gathered.is_err() {
        // Containers that had to be killed may be there still.
        place.end_loads()?;
    }
    let taken_back = instances.take_back();
    let gathered = gathered?;
    taken_back?;
    let mut measured = Vec::new();
    for output in &gathered.outputs {
        let one: Measured = serde_json::from_str(output).map_err(|error| {
            Error::program(NAME, format!("an instance told no result: {error}"))
        })?;
        measured.push(one);
    }
    let results = Results { instances: measured, ready_ns: gathered.ready_ns, command };
    let first = results.instances.iter().map(|it| it.begun_ns).min().unwrap_or_default();
    if results.ready_ns.iter().any(|ready| *ready > first) {
        return Err(Error::program(NAME, "an instance began before the last one was ready"));
    }
    Ok(results)
}

/// Arguments of the program for an instance.
fn arguments(
    request: &Request<'_>,
    seat: &Seat,
    profile: &Path,
    (place, key): (&dyn Place, &str),
) -> Vec<String> {
    let own = place.inside_files(key);
    let file_systems = request.load.profile.file_systems.len();
    let own_roots: Vec<PathBuf> = (0..file_systems).map(|it| own.join(root_name(it))).collect();
    let compat = match request.load.profile.compat {
        super::Compat::V5 => "5",
        super::Compat::V6 => "6",
    };
    let seed = Random::of(request.seed, seat.number.into()).next_u64();
    let mut words: Vec<String> =
        ["eval", "ffsb-instance", "--compat", compat].map(Into::into).into();
    words.extend(["--meet".into(), seat.directory.display().to_string()]);
    words.extend(["--number".into(), seat.number.to_string(), "--seed".into(), seed.to_string()]);
    if let Some(seconds) = request.seconds {
        words.extend(["--time".into(), seconds.as_secs_f64().to_string()]);
    }
    words.extend(request.allows_callout.then(|| "--allow-callout".into()));
    if let Some(layers) = place.layers() {
        let at = place.inside_directory().display().to_string();
        words.extend(["--layers".into(), at, "--condition".into(), layers.condition().into()]);
    }
    for root in request.roots.unwrap_or(&own_roots) {
        words.extend(["--root".into(), root.display().to_string()]);
    }
    words.push(profile.display().to_string());
    words
}

impl Results {
    /// All instances together.
    pub fn summary(&self) -> Summary {
        let mut total = Part::default();
        self.instances.iter().for_each(|it| total.add(&it.total()));
        let counts = total.tally.total();
        let begun = || self.instances.iter().map(|it| it.begun_ns);
        let first = begun().min().unwrap_or_default();
        let last = self.instances.iter().map(|it| it.flushed_ns).max().unwrap_or_default();
        let seconds = last.saturating_sub(first).max(1) as f64 / 1e9;
        let done = self.instances.iter().map(|it| it.done_ns).max().unwrap_or_default();
        let unsynced_s = done.saturating_sub(first).max(1) as f64 / 1e9;
        let rates = self.rates();
        let (ms, first_writes) = (|ns: u64| ns as f64 / 1e6, &total.first_writes);
        let last_ready = self.ready_ns.iter().copied().max().unwrap_or_default();
        let first_ready = self.ready_ns.iter().copied().min().unwrap_or_default();
        let some = |value: fn(&Latencies) -> f64| match first_writes.count() {
            0 => 0.0,
            _ => value(first_writes),
        };
        Summary {
            instances: self.instances.len(),
            start: Start {
                last_ready_to_first_operation_ms: ms(first.saturating_sub(last_ready)),
                skew_ms: ms(begun().max().unwrap_or_default() - first),
                ready_spread_ms: ms(last_ready - first_ready),
            },
            seconds,
            operations_per_s: counts.operations as f64 / seconds,
            operations_per_s_unsynced: counts.operations as f64 / unsynced_s,
            transactions_per_s: counts.transactions as f64 / seconds,
            read_bytes_per_s: total.tally.bytes(Direction::Read) as f64 / seconds,
            written_bytes_per_s: total.tally.bytes(Direction::Write) as f64 / seconds,
            operations_per_s_each: rates.iter().sum::<f64>() / rates.len().max(1) as f64,
            operations_per_s_quarters: CONTAINER_QUANTILES
                .map(|(_, share)| quantile(&rates, share)),
            operations_per_s_min: rates.iter().copied().fold(f64::INFINITY, f64::min),
            operations_per_s_max: rates.iter().copied().fold(0.0, f64::max),
            fairness: fairness(&rates),
            latency_mean_us: total.latencies.mean_us(),
            latency_p50_us: total.latencies.quantile_us(0.5),
            latency_p99_us: total.latencies.quantile_us(0.99),
            first_writes: first_writes.count(),
            first_write_mean_us: some(Latencies::mean_us),
            first_write_p99_us: some(|it| it.quantile_us(0.99)),
        }
    }

    /// Operations by second of each instance, by its own time.
    pub fn rates(&self) -> Vec<f64> {
        let rate = |it: &Measured| it.total().tally.total().operations as f64 / it.seconds();
        self.instances.iter().map(rate).collect()
    }

    /// A line for each instance.
    pub fn table(&self) -> String {
        let last_ready = self.ready_ns.iter().copied().max().unwrap_or_default();
        let mut text = String::from(
            "instance  ready (ms)  begun (ms)  operations  transactions  seconds  operations/s\n",
        );
        // Times count from when the last one was ready.
        let ms = |ns: u64| (ns as f64 - last_ready as f64) / 1e6;
        for (number, (it, ready)) in self.instances.iter().zip(&self.ready_ns).enumerate() {
            let counts = it.total().tally.total();
            let (seconds, begun, ready) = (it.seconds(), ms(it.begun_ns), ms(*ready));
            let (operations, transactions) = (counts.operations, counts.transactions);
            let rate = operations as f64 / seconds;
            let _ = writeln!(
                text,
                "{number:>8} {ready:>11.1} {begun:>11.3} {operations:>11} {transactions:>13} \
                 {seconds:>8.2} {rate:>13.1}"
            );
        }
        text
    }
}

impl Summary {
    /// What is kept beside metrics, by name.
    pub(super) fn further(&self) -> BTreeMap<String, f64> {
        let (_, name) = OPERATIONS[0];
        let quarters = CONTAINER_QUANTILES.iter().zip(self.operations_per_s_quarters);
        let quarters = quarters.map(|((what, _), value)| (format!("{name}_{what}"), value));
        let fairness = self.fairness.map(|value| (format!("{name}_fairness"), value));
        let values = [
            ("ops_unsynced_per_s", self.operations_per_s_unsynced),
            ("transactions_per_s", self.transactions_per_s),
            ("ops_per_container_min", self.operations_per_s_min),
            ("ops_per_container_max", self.operations_per_s_max),
            ("latency_p50_us", self.latency_p50_us),
            ("first_writes", self.first_writes as f64),
            ("first_write_mean_us", self.first_write_mean_us),
            ("first_write_p99_us", self.first_write_p99_us),
            ("start_after_last_ready_ms", self.start.last_ready_to_first_operation_ms),
            ("start_skew_ms", self.start.skew_ms),
            ("ready_spread_ms", self.start.ready_spread_ms),
            ("ios_all", self.operations_per_s * self.seconds),
        ];
        let values = values.into_iter().map(|(name, value)| (name.to_string(), value));
        values.chain(quarters).chain(fairness).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffsb::operation::Operation;

    fn instance(operations: u64, begun_ns: u64, seconds: u64) -> Measured {
        let mut part = Part::default();
        for _ in 0..operations {
            part.tally.count(Operation::Write, 4, 16384);
            part.latencies.record(Duration::from_millis(1));
        }
        let flushed_ns = begun_ns + seconds * 1_000_000_000;
        let done_ns = flushed_ns - seconds * 500_000_000;
        Measured { groups: vec![part], begun_ns, done_ns, flushed_ns, ..Measured::default() }
    }

    /// Goal: totals are by the time from the first operation to the last flush, each one's by its own; the
    /// start is told.
    #[test]
    fn instances_are_put_together() {
        let (second, ms) = (1_000_000_000, 1_000_000);
        let instances = vec![instance(100, 5 * second, 1), instance(300, 5 * second + 2 * ms, 2)];
        let ready_ns = vec![4 * second, 5 * second - 3 * ms];
        let summary = Results { instances, ready_ns, command: String::new() }.summary();
        let close = |value: f64, expected: f64| (value / expected - 1.0).abs() < 0.002;
        assert!(close(summary.seconds, 2.002) && close(summary.operations_per_s, 400.0 / 2.002));
        assert!(close(summary.operations_per_s_unsynced, 400.0 / 1.002));
        assert!(close(summary.further()["ops_container_rate_q1"], 112.5));
        assert!(close(summary.transactions_per_s, 1600.0 / 2.002));
        assert!(close(summary.written_bytes_per_s, 400.0 * 16384.0 / 2.002));
        assert!(close(summary.operations_per_s_each, 125.0));
        assert!(close(summary.operations_per_s_min, 100.0));
        assert!(close(summary.operations_per_s_max, 150.0));
        assert!(close(summary.fairness.unwrap(), 250.0 * 250.0 / (2.0 * 32_500.0)));
        assert!(close(summary.start.last_ready_to_first_operation_ms, 3.0));
        assert!(close(summary.start.skew_ms, 2.0) && close(summary.start.ready_spread_ms, 997.0));
        assert!(close(summary.latency_p50_us, 1000.0));
        assert_eq!(summary.first_writes, 0);
    }
}
