//! Load at a fixed rate, or in a closed loop, over many units: `tsumugi eval rate`, one per run.
//!
//! The rate does not depend on how operations end, so that CPU time per operation can be looked at
//! by rate. A run that does not reach 99 % of its rate is marked: it counts as measured, but not for what
//! CPU time grows with.
//!
//! [`generator`] is the load itself, which `tsumugi eval rate` runs; the engine starts that command, so that a run
//! has a process of its own.

pub mod generator;
pub mod summary;

use crate::blocks;
use crate::engine::{Declaration, Engine, Operations, SettingKind, Work};
use crate::keys::{Form, Key, Table};
use crate::level::{Level, LevelKind, Runtime, Setting, Storage};
use crate::metric::Metric;
use crate::ours;
use crate::outcome::{Mark, Outcome};
use crate::place::Place;
use crate::workload::{Access, Load, Pattern};
use base::messages::{Language, Text};
use base::{Error, Stop};
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;
use summary::Summary;

const NAME: &str = "tsumugi eval rate";
const UNITS_MAX: u32 = 65_536;

// What a load says of itself, in English and in Japanese.
const RATE: Text = Text([
    "pattern {pattern} at a fixed rate over {units} units",
    "パターン {pattern}、固定レート、{units} ユニットに分散",
]);

/// Our own load at a fixed rate.
pub const ENGINE: Declaration = Declaration {
    name: "rate",
    keys: &[Key::new("units", Form::Count)],
    metrics: Some(blocks::METRICS),
    storages: &["null", "memory", "iscsi"],
    setting: Some(SettingKind {
        kind: "queue",
        noun: "policies",
        keys: &[Key::new("policy", Form::Text)],
        is_all: false,
        read: |table| Ok(Arc::new(table.need_choice("policy", &QueuePolicy::ALL)?)),
    }),
    operations: Operations::Blocks,
    has_rate: true,
    is_direct: |given| given.unwrap_or(true),
    is_host: true,
    load,
    mismatch,
    start: Some(|setup| Ok(Box::new(RateEngine::new(setup.program)))),
    ..Declaration::DEFAULT
};

/// A load at a fixed rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// What each operation does.
    pub pattern: Pattern,
    /// Logical units that the operations go over in turn.
    pub units: u32,
}

impl Load for Rate {
    fn pattern(&self) -> Option<Pattern> {
        Some(self.pattern)
    }

    fn writes(&self) -> bool {
        self.pattern.writes()
    }

    fn describe(&self, language: Language, _is_direct: bool) -> String {
        let values: [(&str, &dyn Display); 2] =
            [("pattern", &self.pattern.name()), ("units", &self.units)];
        language.fill(&RATE, &values)
    }

    fn parts(&self, _jobs: u32) -> u32 {
        // Units have parts of the file, and jobs share them.
        self.units
    }

    fn access(&self) -> Access {
        Access { pattern: self.pattern(), has_own_files: Some(false), is_collective: None }
    }
}

fn load(table: &Table<'_>, _metrics: &[Metric]) -> Result<Arc<dyn Load>, Error> {
    let pattern = table.need_choice("rw", &Pattern::ALL)?;
    let units = table.count_in("units", (1, UNITS_MAX))?.unwrap_or(1);
    Ok(Arc::new(Rate { pattern, units }))
}

/// How several jobs come to one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePolicy {
    /// A queue for each job.
    Direct,
    /// One queue for all jobs, sorted and merged behind a lock: an emulated single queue.
    Elevator,
}

impl QueuePolicy {
    /// All of them, with the names they have in files.
    pub const ALL: [(&'static str, Self); 2] =
        [("direct", Self::Direct), ("elevator", Self::Elevator)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

impl Setting for QueuePolicy {
    fn engine(&self) -> &'static str {
        ENGINE.name
    }

    fn adds_work(&self) -> bool {
        *self == Self::Elevator
    }
}

fn mismatch(level: &Level) -> Option<String> {
    match &level.kind {
        LevelKind::Runtime(Runtime::Container(_)) => Some("engine \"rate\" runs natively".into()),
        LevelKind::Storage(Storage::Target { .. }) if level.file_system.is_some() => {
            Some("engine \"rate\" works on the namespace itself, without a file-system".into())
        }
        _ => None,
    }
}

/// The engine.
#[derive(Clone, Debug)]
pub struct RateEngine {
    /// The program `tsumugi`.
    program: PathBuf,
}

impl RateEngine {
    /// An engine that runs this program.
    pub fn new(program: PathBuf) -> Self {
        Self { program }
    }
}

/// What a condition's levels say: the device, if it is none of files, and the queue of our block layer, if
/// requests go through one.
fn levels(work: &Work<'_>) -> (Option<String>, Option<QueuePolicy>) {
    let mut device = None;
    let mut queue = None;
    for level in &work.levels {
        match level.storage() {
            Some(Storage::Null) => device = Some("null".into()),
            Some(Storage::Memory) => device = Some(format!("memory:{}", work.data.bytes)),
            _ => {}
        }
        queue = level.setting().copied().or(queue);
    }
    (device, queue)
}

/// Arguments of `tsumugi eval rate` for a run.
fn arguments(work: &Work<'_>) -> Result<Vec<String>, Error> {
    let Some(rate) = work.workload.task::<Rate>() else {
        return Err(Error::program(NAME, "the load has no rate"));
    };
    let (device, queue) = levels(work);
    let mut words: Vec<String> = vec!["eval".into(), "rate".into(), "--json".into()];
    let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    if work.cell.rate > 0 {
        option("rate", work.cell.rate.to_string());
    } else {
        option("iodepth-max", work.cell.depth.max(work.cell.batch).to_string());
    }
    option("batch", work.cell.batch.to_string());
    // CPU time by rate is looked at: wake-ups must not be other ones from some rate on.
    option("slack-us", "0".into());
    option("units", rate.units.to_string());
    option("numjobs", work.cell.jobs.to_string());
    option("rw", rate.pattern.name().into());
    option("bs", work.cell.block_size.to_string());
    if let Some(queue) = queue {
        option("queue", queue.name().into());
    }
    option("runtime", work.time.as_secs_f64().to_string());
    option("ramp-time", work.ramp.as_secs_f64().to_string());
    option("seed", work.seed.to_string());
    if rate.pattern.writes() {
        words.push("--overwrite".into());
    }
    if !work.workload.is_direct {
        words.push("--buffered".into());
    }
    words.extend(match (device, work.place) {
        (Some(device), _) => vec![device],
        (None, Some(place)) => storage(work, place),
        (None, None) => vec!["FILE".into()],
    });
    Ok(words)
}

/// The storage, after the options that it needs.
fn storage(work: &Work<'_>, place: &dyn Place) -> Vec<String> {
    let destroy = |name: &str| vec!["--destroy".to_string(), name.into()];
    if let Some(unit) = place.unit() {
        // It is one that we have just made.
        return [destroy(&unit.target), vec![unit.url()]].concat();
    }
    if let Some(fabric) = place.fabric() {
        let mut words = fabric.subsystem.destroy.as_deref().map_or(Vec::new(), destroy);
        if let Some(path) = &fabric.network_namespace {
            words.extend(["--network-namespace".into(), path.display().to_string()]);
        }
        words.push(fabric.url());
        return words;
    }
    let mut words = Vec::new();
    for level in &work.levels {
        if let Some(Storage::BlockDevice { destroy: Some(serial), .. }) = level.storage() {
            words.extend(destroy(serial));
        }
    }
    words.push(place.inside_file().display().to_string());
    words
}

/// Reads what `tsumugi eval rate --json` says.
fn parse(text: &str, pattern: Pattern) -> Result<Outcome, Error> {
    let wrong = |why: &str| Error::program(NAME, why);
    let said: Summary = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
    if said.is_interrupted {
        return Err(wrong("was interrupted by somebody else"));
    }
    if said.ios == 0 {
        return Err(wrong("no operation was done in the measured time"));
    }
    let bytes = said.bs as f64;
    let bandwidth = said.iops * bytes;
    let written = match pattern {
        Pattern::RandomMixed => bandwidth / 2.0,
        pattern if pattern.writes() => bandwidth,
        _ => 0.0,
    };
    let mut outcome = Outcome {
        metrics: [
            (Metric::Bandwidth, bandwidth),
            (Metric::Iops, said.iops),
            (Metric::Latency, said.latency_us.avg),
            (Metric::LatencyP99, said.latency_us.p99),
            (Metric::CpuPerIo, said.cpu_us_per_io),
        ]
        .into(),
        read_bytes_per_s: bandwidth - written,
        written_bytes_per_s: written,
        load_seconds: said.seconds,
        series: said.series.iter().map(|ios| *ios as f64 * bytes).collect(),
        raw: text.trim().into(),
        ..Outcome::default()
    };
    for (name, times) in
        [("", &said.latency_us), ("service_", &said.service_us), ("late_", &said.lateness_us)]
    {
        for (figure, value) in [
            ("avg", times.avg),
            ("p50", times.p50),
            ("p99", times.p99),
            ("p999", times.p999),
            ("max", times.max),
        ] {
            outcome.further.insert(format!("{name}{figure}_us"), value);
        }
    }
    let calls: u64 = said.submissions.iter().map(|(_, count)| count).sum();
    if calls > 0 {
        let entries: u64 = said.submissions.iter().map(|(size, count)| *size as u64 * count).sum();
        outcome.further.insert("batch_achieved".into(), entries as f64 / calls as f64);
    }
    let unfinished = u64::from(said.unfinished);
    for (name, value) in [("ios", said.ios), ("ios_all", said.ios_all), ("unfinished", unfinished)]
    {
        outcome.further.insert(name.into(), value as f64);
    }
    outcome.marks.extend(said.is_saturated.then_some(Mark::Saturated));
    Ok(outcome)
}

impl Engine for RateEngine {
    fn version(&self) -> String {
        concat!("tsumugi eval rate ", env!("CARGO_PKG_VERSION")).into()
    }

    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, Error> {
        let wrong = |why: &str| Error::program(NAME, why);
        let pattern = work.workload.pattern();
        let pattern = pattern.ok_or_else(|| wrong("the load has no pattern"))?;
        let words = arguments(work)?;
        let mut outcome =
            ours::run(NAME, (&self.program, words), work, stop, |text| parse(text, pattern))?;
        let is_file = work.place.is_some_and(|it| it.fabric().is_none() && it.unit().is_none());
        if !is_file || levels(work).0.is_some() {
            // Elsewhere entries of the ring are no requests.
            outcome.further.remove("batch_achieved");
        }
        Ok(outcome)
    }
}
