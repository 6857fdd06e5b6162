//! Many containers that write to one set of files: each its first write to every file (copy-up), then a
//! second one to the same files (steady).
//!
//! All containers are ready and see their files before the first word is sent: the start barrier, which is
//! checked by their own reports. The clock of a phase begins with the word and ends when everything is durable:
//! after each container has synced its mount, if the mount supports that, and syncfs(2) of the upper file
//! system. A shorter clock would favour the scheme that leaves the most work undone. A container's own rate is
//! by its own time, from the word to the return of its last write.
//!
//! The condition's runtime decides what a container is: a plain process, or what a container runtime
//! starts, with the directory of its layers bound into it.

mod container;
mod phase;

use crate::crowd::Base;
use crate::engine::{Declaration, Engine, Setup, Work};
use crate::file_set;
use crate::keys::Table;
use crate::level::{Level, LevelKind, Storage};
use crate::metric::Metric;
use crate::outcome::Outcome;
use crate::place::{Layers, Place};
use crate::workload::{Copies, DataSet, Load, Workload};
use base::messages::{Language, Message, Text};
use base::{Error, Stop, units};
use stats::median;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use container::{Answer, Container, Containers};
pub use phase::Phase;

/// Orders a container to write to files that it has not changed before.
pub const WRITE: &str = "write";
/// Orders it to write to the same files again, at other offsets.
pub const AGAIN: &str = "again";
/// Orders it to wait until its writes are durable, as far as its mount supports that.
pub const FINISH: &str = "finish";
/// Asks for the bytes that its upper directory takes.
pub const USAGE: &str = "usage";
/// Bytes of each write.
pub const WRITE_BYTES: u64 = 4096;

/// The directory with the set of files, in what all containers begin with.
pub const FILES: &str = "files";

const NAME: &str = "container";
/// How long a phase, or getting ready, may take.
const PHASE_PATIENCE: Duration = Duration::from_mins(30);
/// Name of the file in the scratch directory with what containers complain about.
const COMPLAINTS: &str = "containers.err";
const COMPLAINT_LETTERS_MAX: usize = 500;

/// The phases: their metric, and how their samples begin.
pub const PHASES: [(Metric, &str); 2] =
    [(Metric::CopyUpRate, "copy_up"), (Metric::SteadyRate, "steady")];

// What a load says of itself, in English and in Japanese.
const COPY_UP: Text = Text([
    "each container writes 4 KiB at a random aligned offset to {files} files of one set (1 KB to 4 MB), which it has not changed before (copy-up), then to the same files again (steady); each clock ends when all is durable",
    "各コンテナが 1 組のファイル（1 KB～4 MB）のうちまだ変更していない {files} 個に 4 KiB ずつ整列した無作為な位置へ書き（コピーアップ）、同じファイルへもう一度書く（定常）。計時は全てが永続化された時に終わる",
]);

/// First and second writes of many containers to one set of files.
pub const ENGINE: Declaration = Declaration {
    name: "copyup",
    worker: Message::Container,
    keys: &[file_set::ITEMS],
    metrics: Some(&[Metric::CopyUpRate, Metric::SteadyRate, Metric::LatencyP99]),
    storages: &["layers"],
    phases: &PHASES,
    programs: |_: &Workload, setup: &Setup| vec![setup.program.clone()],
    load,
    mismatch,
    start: Some(|setup| Ok(Box::new(CopyUpEngine::new(setup.scratch)))),
    ..Declaration::DEFAULT
};

/// First and second writes of containers to files that all of them see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyUp {
    /// Files that each container writes to, 4 KiB each, at random aligned offsets.
    pub files: u32,
}

impl Load for CopyUp {
    fn writes(&self) -> bool {
        true
    }

    fn describe(&self, language: Language, _is_direct: bool) -> String {
        language.fill(&COPY_UP, &[("files", &self.files)])
    }

    fn copies(&self) -> Option<&dyn Copies> {
        Some(self)
    }
}

impl Copies for CopyUp {
    fn make(&self, below: &Path, data: DataSet) -> Result<(), Error> {
        let at = below.join(FILES);
        if at.exists() {
            return Ok(());
        }
        std::fs::create_dir(&at).map_err(Error::io("cannot make", &at))?;
        let sizes = file_set::sizes(data.bytes, data.seed);
        file_set::make(&at, &sizes, data.seed, &Stop::default())
    }

    fn bytes(&self) -> Option<u64> {
        None
    }

    fn changed_bytes(&self, around: u64) -> u64 {
        u64::from(self.files) * around
    }

    fn files_written(&self) -> Option<u32> {
        Some(self.files)
    }

    fn describe(&self, data: DataSet) -> String {
        let sizes = file_set::sizes(data.bytes, data.seed);
        format!("{} files, {}", sizes.len(), units::bytes(sizes.iter().sum()))
    }
}

fn load(table: &Table<'_>, _metrics: &[Metric]) -> Result<Arc<dyn Load>, Error> {
    Ok(Arc::new(CopyUp { files: file_set::items(table)? }))
}

fn mismatch(level: &Level) -> Option<String> {
    match &level.kind {
        LevelKind::Storage(Storage::Layers(_)) => None,
        LevelKind::Storage(_) => Some("engine \"copyup\" needs storages of kind \"layers\"".into()),
        _ => None,
    }
}

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

    /// Starts a container at each place, and waits until all are ready.
    fn containers(
        &self,
        work: &Work<'_>,
        (layers, places): (&dyn Layers, &[&dyn Place]),
        files: u32,
        stop: &Stop,
    ) -> Result<Containers, Error> {
        // What an earlier run complained about is not this one's.
        let _ = std::fs::remove_file(self.scratch.join(COMPLAINTS));
        let mut started = Containers::default();
        for (number, place) in places.iter().enumerate() {
            if stop.is_requested() {
                return Err(Error::Interrupted);
            }
            let seed = work.seed ^ ((number as u64 + 1) << 32);
            started.add(Container::start(layers, *place, &self.scratch, (files, seed))?);
        }
        started.expect_ready(stop)?;
        Ok(started)
    }

    fn measure(
        &self,
        work: &Work<'_>,
        (layers, place): (&dyn Layers, &dyn Place),
        (places, files): (&[&dyn Place], u32),
        stop: &Stop,
    ) -> Result<Outcome, Error> {
        let mut containers = self.containers(work, (layers, places), files, stop)?;
        layers.sync()?;
        let first = counted(WRITE, &mut containers, (layers, place), stop)?;
        let upper =
            if layers.scheme().has_upper() { Some(containers.usage(USAGE, stop)?) } else { None };
        let second = counted(AGAIN, &mut containers, (layers, place), stop)?;
        let mut outcome = outcome(&first, &second, upper);
        let command = containers.all.first().map_or("", |container| container.command());
        outcome.command = format!("{} × {command}", work.cell.jobs);
        Ok(outcome)
    }
}

/// Runs a phase, and counts what devices write meanwhile.
fn counted(
    word: &str,
    containers: &mut Containers,
    (layers, place): (&dyn Layers, &dyn Place),
    stop: &Stop,
) -> Result<Phase, Error> {
    let before = place.written_bytes();
    let mut phase = Phase::run(word, containers, || layers.sync(), stop)?;
    let after = place.written_bytes();
    phase.device_bytes = before.zip(after).map(|(old, new)| new.saturating_sub(old));
    Ok(phase)
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
    // The same name as with FFSB: never below 0, or the run would have failed.
    outcome.further.insert("start_after_last_ready_ms".into(), first.start_ms.0);
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
        let Some(load) = work.workload.task::<CopyUp>() else {
            return Err(wrong("the load is not of containers"));
        };
        let place = work.place.ok_or_else(|| wrong("needs a storage"))?;
        let layers = place.layers().ok_or_else(|| wrong("needs a storage of kind layers"))?;
        // The set was made when the condition was entered.
        let base = Base { key: FILES, fill: &|_| Ok(()) };
        let instances = place.instances(work.cell.jobs, &base, stop)?;
        let measured = self.measure(work, (layers, place), (&instances.places(), load.files), stop);
        if measured.is_err() {
            // Containers that had to be killed may be there still.
            place.end_loads()?;
        }
        let removed = instances.take_back();
        let outcome = measured?;
        removed?;
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
            start_ms: (7.0, 2.0),
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
            ("start_after_last_ready_ms", 7.0),
            ("steady_start_skew_ms", 2.0),
        ] {
            near(outcome.further[name], value);
        }
        near(outcome.written_bytes_per_s * outcome.load_seconds, 700.0 * WRITE_BYTES as f64);
    }
}
