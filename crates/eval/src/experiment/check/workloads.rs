//! Workloads: which keys each engine takes.

use super::{Source, find};
use crate::crowd::INSTANCES_MAX;
use crate::engine::ffsb::{Compat, ProfileLoad};
use crate::error::Error;
use crate::experiment::raw::{Placed, RawExtract, RawWorkload};
use crate::experiment::{
    CopyUp, EngineKind, Extract, Files, Imported, Metric, Pattern, Program, Rate,
    Source as ValueSource, Task, Workload,
};
use crate::units;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const JOBS_MAX: u32 = 1024;
/// Processes of a metadata load, each with its pipes.
const PROCESSES_MAX: u32 = 256;
const DEPTH_MAX: u32 = 4096;
const BLOCK_BYTES_MAX: u64 = 1 << 30;
const RATE_MAX: u32 = 100_000_000;
const BATCH_MAX: u32 = 1024;
const UNITS_MAX: u32 = 65_536;
const ITEMS_MAX: u32 = 10_000_000;
const FILE_WRITE_BYTES_MAX: u64 = 1 << 30;
const TIMEOUT_DEFAULT: Duration = Duration::from_mins(10);

/// Checks all workloads; `file` is the size of the data.
pub(super) fn workloads(
    source: Source<'_>,
    raw: &[Placed<RawWorkload>],
    engine: EngineKind,
    (file_size, file_bytes): (&Placed<String>, u64),
) -> Result<Vec<Workload>, Error> {
    let mut names = BTreeSet::new();
    let mut workloads = Vec::new();
    for placed in raw {
        let load = At { source, placed, engine }.workload()?;
        if !names.insert(load.name.clone()) {
            let message = format!("there is another workload {:?}", load.name);
            return Err(source.error(placed, "workload.name", message));
        }
        let jobs = match load.task {
            // Units have parts of the file, and jobs share them.
            Task::Rate(rate) => u64::from(rate.units),
            _ => u64::from(load.jobs.iter().copied().max().unwrap_or(1)),
        };
        let block = load.block_sizes.iter().copied().max().unwrap_or(1);
        if engine.is_blocks() && file_bytes / jobs < block {
            let message = format!(
                "{} cannot be shared by {jobs} jobs or units with blocks of {} (workload {:?})",
                units::bytes(file_bytes),
                units::bytes(block),
                load.name
            );
            return Err(source.error(file_size, "file-size", message));
        }
        workloads.push(load);
    }
    Ok(workloads)
}

/// A workload, with where its keys are.
#[derive(Clone, Copy)]
struct At<'a> {
    source: Source<'a>,
    placed: &'a Placed<RawWorkload>,
    engine: EngineKind,
}

impl At<'_> {
    fn key(self, what: &str) -> String {
        format!("workload {:?}: {what}", self.placed.get_ref().name)
    }

    fn error<T>(self, at: &Placed<T>, what: &str, message: impl Into<String>) -> Error {
        self.source.error(at, &self.key(what), message)
    }

    fn missing(self, what: &str) -> Error {
        let message = format!("engine {:?} needs it", self.engine.name());
        self.error(self.placed, what, message)
    }

    fn workload(self) -> Result<Workload, Error> {
        let raw = self.placed.get_ref();
        let metrics: Result<Vec<_>, _> =
            raw.metrics.get_ref().iter().map(|name| find(name, Metric::ALL)).collect();
        let metrics = metrics.map_err(|why| self.error(&raw.metrics, "metrics", why))?;
        if metrics.is_empty() {
            return Err(self.error(&raw.metrics, "metrics", "needs a value"));
        }
        let jobs_max = match self.engine {
            EngineKind::Metadata => PROCESSES_MAX,
            // Whatever was measured elsewhere.
            EngineKind::Imported => u32::MAX,
            _ => JOBS_MAX,
        };
        let load = Workload {
            name: raw.name.clone(),
            task: self.task(&metrics)?,
            block_sizes: self.block_sizes()?,
            jobs: self.jobs(jobs_max)?,
            depths: self.counts(raw.depth.as_ref(), "depth", jobs_max.max(DEPTH_MAX))?,
            rates: self.rates()?,
            batches: self.counts(raw.batch.as_ref(), "batch", BATCH_MAX)?,
            metrics,
            is_direct: match self.engine {
                // Only POSIX knows it there.
                EngineKind::Ior | EngineKind::Imported => raw.direct.unwrap_or(false),
                engine => raw.direct.unwrap_or(true) && engine.is_blocks(),
            },
        };
        let is_empty = load.block_sizes.is_empty()
            || load.jobs.is_empty()
            || load.depths.is_empty()
            || load.rates.is_empty()
            || load.batches.is_empty();
        if is_empty {
            let what = "bs, jobs, depth, rate, batch";
            return Err(self.error(self.placed, what, "each needs a value"));
        }
        Ok(load)
    }

    fn task(self, metrics: &[Metric]) -> Result<Task, Error> {
        let raw = self.placed.get_ref();
        let (task, known): (Task, &[Metric]) = match self.engine {
            EngineKind::Program => {
                let program = self.program()?;
                if let Some(metric) = metrics.iter().find(|metric| {
                    **metric != Metric::Time && !program.extracts.contains_key(metric)
                }) {
                    let message = format!("there is no parse.{} for it", metric.name());
                    return Err(self.error(&raw.metrics, "metrics", message));
                }
                return Ok(Task::Program(program));
            }
            EngineKind::Metadata => {
                use Metric::{CreateRate, ReadRate, RemoveRate, StatRate};
                (Task::Files(self.files()?), &[CreateRate, StatRate, ReadRate, RemoveRate])
            }
            EngineKind::Ffsb => {
                use Metric::{Bandwidth, Fairness, Latency, LatencyP99, OpsPerContainer, OpsTotal};
                let load = self.profile()?;
                (
                    Task::Ffsb(load),
                    &[OpsTotal, OpsPerContainer, Fairness, Bandwidth, Latency, LatencyP99],
                )
            }
            EngineKind::Imported => {
                let pattern = raw.rw.as_ref().map(|_| self.pattern()).transpose()?;
                let has_own_files = raw.own_files;
                return Ok(Task::Imported(Imported { pattern, has_own_files }));
            }
            EngineKind::CopyUp => {
                use Metric::{CopyUpRate, LatencyP99, SteadyRate};
                let task = Task::CopyUp(CopyUp { files: self.items()? });
                (task, &[CopyUpRate, SteadyRate, LatencyP99])
            }
            EngineKind::Ior => {
                let load = super::ior::load(raw);
                let load = load.map_err(|why| self.error(self.placed, "options", why))?;
                (Task::Ior(load), &[Metric::Bandwidth, Metric::Iops])
            }
            EngineKind::Fio | EngineKind::Nvme | EngineKind::Synthetic => {
                use Metric::{Bandwidth, CpuPerIo, Iops, Latency, LatencyP99};
                let pattern = self.pattern()?;
                (Task::Blocks(pattern), &[Bandwidth, Iops, Latency, LatencyP99, CpuPerIo])
            }
            EngineKind::Rate => {
                use Metric::{Bandwidth, CpuPerIo, Iops, Latency, LatencyP99};
                let rate = Rate { pattern: self.pattern()?, units: self.units()? };
                (Task::Rate(rate), &[Bandwidth, Iops, Latency, LatencyP99, CpuPerIo])
            }
        };
        let of_machine: &[Metric] = if self.engine.is_blocks() { &Metric::OF_MACHINE } else { &[] };
        let is_known = |metric: &&Metric| known.contains(metric) || of_machine.contains(metric);
        if let Some(unknown) = metrics.iter().find(|metric| !is_known(metric)) {
            let names: Vec<_> = known.iter().chain(of_machine).map(|it| it.name()).collect();
            let message = format!(
                "engine {:?} does not measure {}: there are {}",
                self.engine.name(),
                unknown.name(),
                names.join(", ")
            );
            return Err(self.error(&raw.metrics, "metrics", message));
        }
        Ok(task)
    }

    /// Jobs, ranks, processes, or instances: an FFSB profile's threads are its own.
    fn jobs(self, max: u32) -> Result<Vec<u32>, Error> {
        let raw = self.placed.get_ref();
        let is_ffsb = self.engine == EngineKind::Ffsb;
        match (&raw.jobs, &raw.containers) {
            (Some(jobs), _) if is_ffsb => {
                Err(self.error(jobs, "jobs", "the profile says it: write containers"))
            }
            (_, Some(containers)) if !is_ffsb => {
                let message = format!("engine {:?} has none", self.engine.name());
                Err(self.error(containers, "containers", message))
            }
            (None, Some(_)) => self.counts(raw.containers.as_ref(), "containers", INSTANCES_MAX),
            _ => self.counts(raw.jobs.as_ref(), "jobs", max),
        }
    }

    /// An FFSB profile.
    fn profile(self) -> Result<ProfileLoad, Error> {
        let raw = self.placed.get_ref();
        let given = raw.profile.as_ref().ok_or_else(|| self.missing("profile"))?;
        let compat = match raw.compat.as_ref().map(|it| *it.get_ref()) {
            None => None,
            Some(5) => Some(Compat::V5),
            Some(6) => Some(Compat::V6),
            Some(_) => return Err(self.error(given, "compat", "is 5 or 6")),
        };
        let load = ProfileLoad::new(given.get_ref(), compat);
        let load = load.map_err(|why| self.error(given, "profile", why.to_string()))?;
        if load.profile.callout.is_some() {
            let message = "callout is not run in experiments: take it out";
            return Err(self.error(given, "profile", message));
        }
        if load.profile.groups.is_empty() {
            return Err(self.error(given, "profile", "needs a [threadgroup]"));
        }
        Ok(load)
    }

    fn pattern(self) -> Result<Pattern, Error> {
        let rw = self.placed.get_ref().rw.as_ref().ok_or_else(|| self.missing("rw"))?;
        self.source.choose(rw, &self.key("rw"), &Pattern::ALL)
    }

    /// Logical units of a load at a fixed rate.
    fn units(self) -> Result<u32, Error> {
        match &self.placed.get_ref().units {
            Some(units) if !(1..=UNITS_MAX).contains(units.get_ref()) => {
                Err(self.error(units, "units", format!("lies between 1 and {UNITS_MAX}")))
            }
            units => Ok(units.as_ref().map_or(1, |units| *units.get_ref())),
        }
    }

    /// Rates of a load at fixed rates; of others the one that means none: a closed loop.
    fn rates(self) -> Result<Vec<u64>, Error> {
        let given = self.placed.get_ref().rate.as_ref();
        match (self.engine, given) {
            (EngineKind::Rate, Some(rates)) if self.placed.get_ref().depth.is_some() => {
                let message =
                    "is for loads without a rate, which keep so many operations under way";
                Err(self.error(rates, "depth", message))
            }
            (EngineKind::Rate, Some(_)) => {
                let rates = self.counts(given, "rate", RATE_MAX)?;
                Ok(rates.into_iter().map(u64::from).collect())
            }
            (_, Some(given)) => Err(self.error(given, "rate", "goes with engine \"rate\"")),
            (_, None) => Ok(vec![0]),
        }
    }

    fn block_sizes(self) -> Result<Vec<u64>, Error> {
        let Some(given) = &self.placed.get_ref().bs else {
            let needs_it = self.engine.is_blocks() || self.engine == EngineKind::Ior;
            return if needs_it { Err(self.missing("bs")) } else { Ok(vec![0]) };
        };
        let mut block_sizes = Vec::new();
        for text in given.get_ref() {
            let size = units::parse_bytes(text).and_then(|size| match size {
                size if self.engine == EngineKind::Imported => Ok(size),
                size if size == 0 || !size.is_multiple_of(512) => {
                    Err(format!("{text:?} is no multiple of 512 bytes"))
                }
                size if size > BLOCK_BYTES_MAX => Err(format!("{text:?} is more than 1 GiB")),
                size => Ok(size),
            });
            block_sizes.push(size.map_err(|why| self.error(given, "bs", why))?);
        }
        Ok(block_sizes)
    }

    fn counts(
        self,
        given: Option<&Placed<Vec<u32>>>,
        what: &str,
        max: u32,
    ) -> Result<Vec<u32>, Error> {
        match given {
            Some(list) if !list.get_ref().iter().all(|count| (1..=max).contains(count)) => {
                Err(self.error(list, what, format!("lies between 1 and {max}")))
            }
            given => Ok(given.map_or(vec![1], |list| list.get_ref().clone())),
        }
    }

    fn program(self) -> Result<Program, Error> {
        let raw = self.placed.get_ref();
        let command = raw.command.as_ref().ok_or_else(|| self.missing("command"))?;
        if command.get_ref().first().is_none_or(String::is_empty) {
            let message = "is a list: the program and its arguments";
            return Err(self.error(command, "command", message));
        }
        let mut extracts = BTreeMap::new();
        for (name, extract) in &raw.parse {
            let key = format!("parse.{name}");
            let metric = find(name, Metric::ALL).map_err(|why| self.error(extract, &key, why))?;
            extracts.insert(metric, self.extract(&key, extract)?);
        }
        let timeout = match &raw.timeout {
            Some(given) => self.source.time(given, &self.key("timeout"))?,
            None => TIMEOUT_DEFAULT,
        };
        Ok(Program {
            command: command.get_ref().clone(),
            extracts,
            timeout,
            exit_code: raw.exit_code.unwrap_or(0),
            writes: raw.writes.unwrap_or(true),
        })
    }

    fn extract(self, key: &str, placed: &Placed<RawExtract>) -> Result<Extract, Error> {
        let raw = placed.get_ref();
        let source = match (&raw.regex, &raw.json) {
            (Some(given), None) => {
                let expression = regex::Regex::new(given.get_ref())
                    .map_err(|why| self.error(given, key, why.to_string()))?;
                if expression.captures_len() < 2 {
                    let message = "needs a group, (…), around the number";
                    return Err(self.error(given, key, message));
                }
                ValueSource::Expression(expression)
            }
            (None, Some(given)) => {
                let pointer = given.get_ref();
                if !pointer.is_empty() && !pointer.starts_with('/') {
                    let message = "is a JSON pointer (RFC 6901), like \"/jobs/0/read/bw\"";
                    return Err(self.error(given, key, message));
                }
                ValueSource::Pointer(pointer.clone())
            }
            _ => return Err(self.error(placed, key, "needs either regex or json")),
        };
        let scale = raw.scale.unwrap_or(1.0);
        if !scale.is_finite() || scale <= 0.0 {
            return Err(self.error(placed, key, "scale is a number above 0"));
        }
        Ok(Extract { source, scale })
    }

    /// Files of each process or container.
    fn items(self) -> Result<u32, Error> {
        let items = self.placed.get_ref().items.as_ref().ok_or_else(|| self.missing("items"))?;
        if !(1..=ITEMS_MAX).contains(items.get_ref()) {
            return Err(self.error(items, "items", format!("lies between 1 and {ITEMS_MAX}")));
        }
        Ok(*items.get_ref())
    }

    fn files(self) -> Result<Files, Error> {
        let raw = self.placed.get_ref();
        let write_bytes = match &raw.write_bytes {
            None => 0,
            Some(given) => {
                let bytes = self.source.bytes(given, &self.key("write-bytes"))?;
                if bytes > FILE_WRITE_BYTES_MAX {
                    return Err(self.error(given, "write-bytes", "is at most 1GiB"));
                }
                bytes as u32
            }
        };
        Ok(Files {
            items: self.items()?,
            write_bytes,
            has_own_directories: raw.own_directories.unwrap_or(false),
            shifts: raw.shift.unwrap_or(false),
            syncs: raw.sync.unwrap_or(false),
        })
    }
}
