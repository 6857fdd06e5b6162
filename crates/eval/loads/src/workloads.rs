//! Workloads as files have them: the keys that all engines share, and those that each declares.

use crate::engine::{Operations, Workers};
use crate::engines::{ENGINES, EngineKind};
use crate::keys::{Form, Key, Placed, Source, Table, Values, find};
use crate::metric::Metric;
use crate::workload::Workload;
use base::{Error, units};
use serde::{Deserialize, Deserializer, de};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::LazyLock;

const DEPTH_MAX: u32 = 4096;
const BLOCK_BYTES_MAX: u64 = 1 << 30;
const RATE_MAX: u32 = 100_000_000;
const BATCH_MAX: u32 = 1024;

/// Keys of all workloads.
const COMMON: [Key; 10] = [
    Key::new("name", Form::Text),
    Key::new("rw", Form::Text),
    Key::new("bs", Form::Texts),
    Key::new("jobs", Form::Counts),
    Key::new("depth", Form::Counts),
    Key::new("rate", Form::Counts),
    Key::new("batch", Form::Counts),
    Key::new("metrics", Form::Texts),
    Key::new("direct", Form::Truth),
    Key::new("containers", Form::Counts),
];

static KEYS: LazyLock<(Vec<Key>, Vec<&'static str>)> =
    LazyLock::new(|| known(&COMMON, ENGINES.iter().map(|engine| engine.keys)));

/// Keys that tables may have, each once, and their names.
pub(crate) fn known(
    common: &[Key],
    further: impl Iterator<Item = &'static [Key]>,
) -> (Vec<Key>, Vec<&'static str>) {
    let mut keys = common.to_vec();
    for key in further.flatten() {
        if !keys.contains(key) {
            keys.push(*key);
        }
    }
    let names = keys.iter().map(|key| key.name).collect();
    (keys, names)
}

/// A workload's table, not looked at yet.
#[derive(Clone, Debug)]
pub struct RawWorkload(Values);

impl<'de> Deserialize<'de> for RawWorkload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> de::Visitor<'de> for Reader {
            type Value = RawWorkload;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a workload")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<RawWorkload, A::Error> {
                let values = Values::read(map, &KEYS.0, &KEYS.1)?;
                values.demand("name")?;
                values.demand("metrics")?;
                Ok(RawWorkload(values))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

/// Checks all workloads; `file` is the size of the data with its place.
pub fn workloads(
    source: Source<'_>,
    raw: &[Placed<RawWorkload>],
    engine: EngineKind,
    (file_size, file_bytes): (&Placed<String>, u64),
) -> Result<Vec<Workload>, Error> {
    let mut names = BTreeSet::new();
    let mut workloads = Vec::new();
    for placed in raw {
        let values = &placed.get_ref().0;
        let table = |head| {
            let owner = format!("engine {:?}", engine.name);
            Table::new(source, values, placed, (head, owner))
        };
        let unnamed = table(String::new());
        let name = unnamed.text("name").map_or("", |given| given.value);
        let load = At { table: table(format!("workload {name:?}: ")), engine }.workload(name)?;
        if !names.insert(load.name.clone()) {
            let message = format!("there is another workload {:?}", load.name);
            return Err(unnamed.wrong("workload.name", message));
        }
        let parts = u64::from(load.task.parts(load.jobs.iter().copied().max().unwrap_or(1)));
        let block = load.block_sizes.iter().copied().max().unwrap_or(1);
        if engine.is_blocks() && file_bytes / parts < block {
            let message = format!(
                "{} cannot be shared by {parts} jobs or units with blocks of {} (workload {:?})",
                units::bytes(file_bytes),
                units::bytes(block),
                load.name
            );
            return Err(source.error(&file_size.span(), "file-size", message));
        }
        workloads.push(load);
    }
    Ok(workloads)
}

/// A workload's table with its engine.
struct At<'a> {
    table: Table<'a>,
    engine: EngineKind,
}

impl At<'_> {
    fn workload(&self, name: &str) -> Result<Workload, Error> {
        let metrics = self.metrics()?;
        let jobs_max = match self.engine.workers {
            Workers::Jobs(max) | Workers::Containers(max) => max,
        };
        let task = (self.engine.load)(&self.table, &metrics)?;
        self.check_metrics(&metrics)?;
        let load = Workload {
            name: name.into(),
            task,
            block_sizes: self.block_sizes()?,
            jobs: self.jobs()?,
            depths: self.table.counts_to("depth", jobs_max.max(DEPTH_MAX))?,
            rates: self.rates()?,
            batches: self.table.counts_to("batch", BATCH_MAX)?,
            metrics,
            is_direct: (self.engine.is_direct)(self.table.truth("direct").map(|it| *it.value)),
        };
        let is_empty = load.block_sizes.is_empty()
            || load.jobs.is_empty()
            || load.depths.is_empty()
            || load.rates.is_empty()
            || load.batches.is_empty();
        if is_empty {
            return Err(self.table.wrong("bs, jobs, depth, rate, batch", "each needs a value"));
        }
        Ok(load)
    }

    fn metrics(&self) -> Result<Vec<Metric>, Error> {
        let Some(given) = self.table.texts("metrics") else { return Ok(Vec::new()) };
        let found: Result<Vec<_>, _> =
            given.value.iter().map(|name| find(name, Metric::ALL)).collect();
        let metrics = found.map_err(|why| self.table.error(&given, "metrics", why.to_string()))?;
        if metrics.is_empty() {
            return Err(self.table.error(&given, "metrics", "needs a value"));
        }
        Ok(metrics)
    }

    /// Checks that the engine gives the metrics that are compared.
    fn check_metrics(&self, metrics: &[Metric]) -> Result<(), Error> {
        let Some(known) = self.engine.metrics else { return Ok(()) };
        let of_machine: &[Metric] = if self.engine.is_blocks() { &Metric::OF_MACHINE } else { &[] };
        let is_known = |metric: &&Metric| known.contains(metric) || of_machine.contains(metric);
        let Some(unknown) = metrics.iter().find(|metric| !is_known(metric)) else { return Ok(()) };
        let names: Vec<_> = known.iter().chain(of_machine).map(|it| it.name()).collect();
        let message = format!(
            "engine {:?} does not measure {}: there are {}",
            self.engine.name,
            unknown.name(),
            names.join(", ")
        );
        Err(match self.table.texts("metrics") {
            Some(given) => self.table.error(&given, "metrics", message),
            None => self.table.wrong("metrics", message),
        })
    }

    /// Returns the numbers of jobs, ranks, processes or instances.
    fn jobs(&self) -> Result<Vec<u32>, Error> {
        let (jobs, containers) = (self.table.counts("jobs"), self.table.counts("containers"));
        match (self.engine.workers, jobs, containers) {
            (Workers::Containers(_), Some(jobs), _) => {
                Err(self.table.error(&jobs, "jobs", "the profile says it: write containers"))
            }
            (Workers::Containers(max), None, _) => self.table.counts_to("containers", max),
            (Workers::Jobs(_), _, Some(containers)) => {
                let message = format!("engine {:?} has none", self.engine.name);
                Err(self.table.error(&containers, "containers", message))
            }
            (Workers::Jobs(max), _, None) => self.table.counts_to("jobs", max),
        }
    }

    /// Returns the rates of a load at fixed rates; of others the one that means none: a closed loop.
    fn rates(&self) -> Result<Vec<u64>, Error> {
        let Some(given) = self.table.counts("rate") else { return Ok(vec![0]) };
        if !self.engine.has_rate {
            let with: Vec<String> = ENGINES
                .iter()
                .filter(|engine| engine.has_rate)
                .map(|engine| format!("{:?}", engine.name))
                .collect();
            let message = format!("goes with engine {}", with.join(" or "));
            return Err(self.table.error(&given, "rate", message));
        }
        if self.table.counts("depth").is_some() {
            let message = "is for loads without a rate, which keep so many operations under way";
            return Err(self.table.error(&given, "depth", message));
        }
        let rates = self.table.counts_to("rate", RATE_MAX)?;
        Ok(rates.into_iter().map(u64::from).collect())
    }

    fn block_sizes(&self) -> Result<Vec<u64>, Error> {
        let operations = self.engine.operations;
        let Some(given) = self.table.texts("bs") else {
            return match operations {
                Operations::Blocks | Operations::Transfers => Err(self.table.missing("bs")),
                Operations::Foreign | Operations::Other => Ok(vec![0]),
            };
        };
        // IOR's transfers have whole numbers of 8 bytes.
        let unit = if operations == Operations::Transfers { 8 } else { 512 };
        let mut block_sizes = Vec::new();
        for text in given.value {
            let size = units::parse_bytes(text)
                .map_err(|why| self.table.error(&given, "bs", why.to_string()))?;
            let wrong = match size {
                _ if operations == Operations::Foreign => None,
                size if size == 0 || !size.is_multiple_of(unit) => {
                    Some(format!("{text:?} is no multiple of {unit} bytes"))
                }
                size if size > BLOCK_BYTES_MAX => Some(format!("{text:?} is more than 1 GiB")),
                _ => None,
            };
            if let Some(wrong) = wrong {
                return Err(self.table.error(&given, "bs", wrong));
            }
            block_sizes.push(size);
        }
        Ok(block_sizes)
    }
}
