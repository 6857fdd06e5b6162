//! Many containers that write to one set of files: each its first write to every file (copy-up), then a
//! second one to the same files (steady).
//!
//! All containers are mounted before the first word is sent. The clock of a phase begins with it and ends
//! when everything is durable: after each container has synced its mount, where that can be asked, and
//! syncfs(2) of the upper file system; who counts less finds the scheme the fastest that leaves the most
//! undone. A container's own rate is by its own time, from the word to the return of its last write.

use super::{Engine, Outcome, Stop, Work};
use crate::condition::{Layers, Place};
use crate::crowd::fairness;
use crate::error::Error;
use crate::experiment::{Metric, Task};
use crate::guard::device_counters;
use crate::statistics::{median, quantile};
use crate::worker::Worker;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Tells a container to write to files that it has not changed before.
pub const WRITE: &str = "write";
/// Tells it to write to the same files again, elsewhere in them.
pub const AGAIN: &str = "again";
/// Tells it to wait until what it wrote is durable, as far as its mount can be asked.
pub const FINISH: &str = "finish";
/// Asks for the bytes that its upper directory takes.
pub const USAGE: &str = "usage";
/// Bytes of each write.
pub const WRITE_BYTES: u64 = 4096;

const NAME: &str = "container";
/// How long a phase, or mounting, may take.
const PHASE_PATIENCE: Duration = Duration::from_mins(30);
/// Name of the file in the scratch directory with what containers complain about.
const COMPLAINTS: &str = "containers.err";
const COMPLAINT_LETTERS_MAX: usize = 500;

/// What a container answers, a line of JSON each.
#[derive(Debug, Serialize, Deserialize)]
pub enum Answer {
    /// It is mounted.
    Mounted,
    /// All is written.
    Written {
        /// How long each write took, with its open and close.
        latencies_ns: Vec<u64>,
        /// From the word to the last of them.
        elapsed_ns: u64,
    },
    /// All is durable.
    Finished,
    /// Bytes of the files in the upper and work directories.
    Usage {
        /// As allocated.
        bytes: u64,
    },
}

/// A container. Dropped, it unmounts and ends.
#[derive(Debug)]
pub struct Container {
    worker: Worker,
    complaints: PathBuf,
}

impl Container {
    /// Starts one in its directory, which is to write to so many files.
    pub fn start(
        layers: &Layers,
        place: &Place,
        scratch: &Path,
        at: &Path,
        files: u32,
        seed: u64,
    ) -> Result<Self, Error> {
        let complaints = scratch.join(COMPLAINTS);
        let file = std::fs::File::options().create(true).append(true).open(&complaints);
        let file = file.map_err(Error::io("cannot write", &complaints))?;
        let mut command = layers.command(at, files, seed);
        place.mark(&mut command);
        command.stderr(Stdio::from(file));
        Ok(Self { worker: Worker::start(NAME, command)?, complaints })
    }

    fn tell(&mut self, word: &str) -> Result<(), Error> {
        self.worker.tell(word).map_err(|error| self.explain(error))
    }

    fn hear(&self, stop: &Stop) -> Result<Answer, Error> {
        let line = self.worker.answer(PHASE_PATIENCE, stop).map_err(|error| self.explain(error))?;
        serde_json::from_str(&line).map_err(|error| Error::program(NAME, error.to_string()))
    }

    /// Waits until it is mounted.
    pub fn expect_mounted(&self, stop: &Stop) -> Result<(), Error> {
        match self.hear(stop)? {
            Answer::Mounted => Ok(()),
            other => Err(confused(&other)),
        }
    }

    /// An error with what containers complained about.
    fn explain(&self, error: Error) -> Error {
        let said = std::fs::read_to_string(&self.complaints).unwrap_or_default();
        let said = said.trim();
        if matches!(error, Error::Interrupted) || said.is_empty() {
            return error;
        }
        let from = said.char_indices().rev().nth(COMPLAINT_LETTERS_MAX).map_or(0, |(at, _)| at);
        Error::program(NAME, format!("{error}: {}", &said[from..]))
    }
}

/// The containers of a run. Dropped, all unmount at a time.
#[derive(Debug, Default)]
struct Containers(Vec<Container>);

impl Drop for Containers {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|container| container.worker.dismiss());
    }
}

fn confused(answer: &Answer) -> Error {
    Error::program(NAME, format!("answers what was not asked: {answer:?}"))
}

/// What a phase came to.
#[derive(Debug, Default)]
struct Phase {
    /// Seconds until the last write returned, and until all was durable.
    written_s: f64,
    durable_s: f64,
    latencies_ns: Vec<u64>,
    /// Writes per second of each container.
    rates: Vec<f64>,
    device_bytes: Option<u64>,
}

impl Phase {
    fn run(
        word: &str,
        containers: &mut [Container],
        (layers, place): (&Layers, &Place),
        stop: &Stop,
    ) -> Result<Self, Error> {
        let counted = || place.device().and_then(device_counters).map(|it| it.written_bytes);
        let before = counted();
        let begun = Instant::now();
        let mut phase = Self::default();
        containers.iter_mut().try_for_each(|container| container.tell(word))?;
        for container in containers.iter() {
            match container.hear(stop)? {
                Answer::Written { mut latencies_ns, elapsed_ns } => {
                    phase.rates.push(latencies_ns.len() as f64 / (elapsed_ns.max(1) as f64 / 1e9));
                    phase.latencies_ns.append(&mut latencies_ns);
                }
                other => return Err(confused(&other)),
            }
        }
        phase.written_s = begun.elapsed().as_secs_f64();
        containers.iter_mut().try_for_each(|container| container.tell(FINISH))?;
        for container in containers.iter() {
            let Answer::Finished = container.hear(stop)? else {
                return Err(Error::program(NAME, "does not finish"));
            };
        }
        layers.sync()?;
        phase.durable_s = begun.elapsed().as_secs_f64();
        phase.device_bytes = before.zip(counted()).map(|(old, new)| new.saturating_sub(old));
        phase.latencies_ns.sort_unstable();
        Ok(phase)
    }

    fn operations(&self) -> f64 {
        self.latencies_ns.len() as f64
    }

    fn latency_us(&self, percent: usize) -> f64 {
        let last = self.latencies_ns.len().saturating_sub(1);
        let at = (self.latencies_ns.len() * percent / 100).min(last);
        self.latencies_ns.get(at).copied().unwrap_or_default() as f64 / 1e3
    }

    /// What is kept of it, by name.
    fn further(&self, name: &str, outcome: &mut Outcome) {
        let mut keep = |what: &str, value: f64| {
            outcome.further.insert(format!("{name}_{what}"), value);
        };
        keep("rate_unsynced", self.operations() / self.written_s);
        keep("latency_p50_us", self.latency_us(50));
        keep("latency_p99_us", self.latency_us(99));
        keep("fairness", fairness(&self.rates).unwrap_or(f64::NAN));
        for (what, share) in CONTAINER_QUANTILES {
            keep(what, quantile(&self.rates, share));
        }
        let asked = self.operations() * WRITE_BYTES as f64;
        if let Some(bytes) = self.device_bytes {
            keep("device_bytes_per_byte", bytes as f64 / asked);
        }
    }
}

/// The phases: their metric, and how their samples begin.
pub const PHASES: [(Metric, &str); 2] =
    [(Metric::CopyUpRate, "copy_up"), (Metric::SteadyRate, "steady")];

/// What is kept of the rates of single containers: names of samples (behind the phase's), and shares.
pub const CONTAINER_QUANTILES: [(&str, f64); 5] = [
    ("container_rate_min", 0.0),
    ("container_rate_q1", 0.25),
    ("container_rate_median", 0.5),
    ("container_rate_q3", 0.75),
    ("container_rate_max", 1.0),
];

/// The engine.
#[derive(Clone, Debug)]
pub struct CopyUpEngine {
    scratch: PathBuf,
}

impl CopyUpEngine {
    /// An engine with a directory of ours for scratch.
    pub fn new(scratch: PathBuf) -> Self {
        Self { scratch }
    }

    fn containers(
        &self,
        work: &Work<'_>,
        (layers, place): (&Layers, &Place),
        files: u32,
        stop: &Stop,
    ) -> Result<Containers, Error> {
        // What an earlier run complained about is not this one's.
        let _ = std::fs::remove_file(self.scratch.join(COMPLAINTS));
        let mut started = Containers::default();
        for (number, at) in layers.fresh(work.cell.jobs)?.iter().enumerate() {
            if stop.is_requested() {
                return Err(Error::Interrupted);
            }
            let seed = work.step.seed ^ ((number as u64 + 1) << 32);
            started.0.push(Container::start(layers, place, &self.scratch, at, files, seed)?);
        }
        started.0.iter().try_for_each(|container| container.expect_mounted(stop))?;
        Ok(started)
    }

    fn measure(
        &self,
        work: &Work<'_>,
        on: (&Layers, &Place),
        files: u32,
        stop: &Stop,
    ) -> Result<Outcome, Error> {
        on.0.warm()?;
        let mut containers = self.containers(work, on, files, stop)?;
        on.0.sync()?;
        let first = Phase::run(WRITE, &mut containers.0, on, stop)?;
        let upper =
            if on.0.scheme.has_upper() { Some(usage(&mut containers.0, stop)?) } else { None };
        let second = Phase::run(AGAIN, &mut containers.0, on, stop)?;
        Ok(outcome(&first, &second, upper))
    }
}

fn usage(containers: &mut [Container], stop: &Stop) -> Result<u64, Error> {
    containers.iter_mut().try_for_each(|container| container.tell(USAGE))?;
    let mut sum = 0;
    for container in containers.iter() {
        match container.hear(stop)? {
            Answer::Usage { bytes } => sum += bytes,
            other => return Err(confused(&other)),
        }
    }
    Ok(sum)
}

/// Both phases as metrics and samples.
fn outcome(first: &Phase, second: &Phase, upper_bytes: Option<u64>) -> Outcome {
    let mut outcome = Outcome {
        metrics: [
            (Metric::CopyUpRate, first.operations() / first.durable_s),
            (Metric::SteadyRate, second.operations() / second.durable_s),
            (Metric::LatencyP99, first.latency_us(99)),
        ]
        .into(),
        load_seconds: first.durable_s + second.durable_s,
        ..Outcome::default()
    };
    for ((_, name), phase) in PHASES.iter().zip([first, second]) {
        phase.further(name, &mut outcome);
    }
    let operations = first.operations() + second.operations();
    let asked = operations * WRITE_BYTES as f64;
    outcome.further.insert("ios_all".into(), operations);
    if let Some(bytes) = upper_bytes {
        let each = bytes as f64 / (first.operations() * WRITE_BYTES as f64);
        outcome.further.insert("upper_bytes_per_byte".into(), each);
    }
    // Copies are written too, as far as we know of them: for the limit of what is written.
    let copied = upper_bytes.map_or(asked, |bytes| asked.max(bytes as f64));
    outcome.written_bytes_per_s = copied / outcome.load_seconds.max(1e-9);
    let rates = &first.rates;
    outcome.raw = format!(
        "first writes: {} s until written, {} s until durable; second writes: {} s and {} s; first \
         writes per second of each container, median {}",
        first.written_s,
        first.durable_s,
        second.written_s,
        second.durable_s,
        median(rates),
    );
    outcome
}

impl Engine for CopyUpEngine {
    fn version(&self) -> String {
        concat!("tsumugi eval copyup ", env!("CARGO_PKG_VERSION")).into()
    }

    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, Error> {
        let wrong = |why: &str| Error::program(NAME, why);
        let Task::CopyUp(load) = work.plan.workload(work.step.cell).task else {
            return Err(wrong("the load is not of containers"));
        };
        let place = work.place.ok_or_else(|| wrong("needs a storage"))?;
        let layers = place.layers().ok_or_else(|| wrong("needs a storage of kind layers"))?;
        let measured = self.measure(work, (layers, place), load.files, stop);
        if measured.is_err() {
            // Who serves the mounts of a container that had to be killed is there still.
            place.end_loads()?;
        }
        let removed = layers.remove();
        let mut outcome = measured?;
        removed?;
        outcome.command = format!("{} × {}", work.cell.jobs, layers.shown(load.files));
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: rates count until all is durable, containers by their own time, bytes by what was asked.
    #[test]
    fn phases_are_told_apart() {
        let phase = |written_s, durable_s, rates: &[f64]| Phase {
            written_s,
            durable_s,
            latencies_ns: (1..=100).map(|it| it * 1000).collect(),
            rates: rates.to_vec(),
            device_bytes: Some(100 * WRITE_BYTES * 3),
        };
        let (first, second) = (phase(1.0, 4.0, &[10.0, 30.0]), phase(1.0, 2.0, &[50.0, 50.0]));
        let outcome = outcome(&first, &second, Some(100 * WRITE_BYTES * 7));
        let near = |value: f64, wanted: f64| assert!((value - wanted).abs() < 1e-9, "{value}");
        near(outcome.metrics[&Metric::CopyUpRate], 25.0);
        near(outcome.metrics[&Metric::SteadyRate], 50.0);
        near(outcome.metrics[&Metric::LatencyP99], 100.0);
        for (name, value) in [
            ("copy_up_rate_unsynced", 100.0),
            ("copy_up_fairness", 0.8),
            ("steady_fairness", 1.0),
            ("copy_up_container_rate_min", 10.0),
            ("copy_up_container_rate_median", 20.0),
            ("copy_up_container_rate_max", 30.0),
            ("copy_up_device_bytes_per_byte", 3.0),
            ("upper_bytes_per_byte", 7.0),
            ("ios_all", 200.0),
        ] {
            near(outcome.further[name], value);
        }
        near(outcome.written_bytes_per_s * outcome.load_seconds, 700.0 * WRITE_BYTES as f64);
    }
}
