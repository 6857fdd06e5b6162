//! Load at a fixed rate, over many units: `tsumugi eval rate`, one per run.
//!
//! The rate is held whatever becomes of the operations, so that CPU time per operation can be looked at
//! by rate. A run that does not reach 99 % of its rate is marked: it counts as measured, but not for what
//! CPU time grows with.

use super::{Engine, Outcome, Stop, Work};
use crate::error::Error;
use crate::experiment::{LevelKind, Metric, Pattern, QueuePolicy, Storage, Task};
use crate::guard::Mark;
use crate::process::{self, Finished};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// How long a load that was told to end may take.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// How much longer than its load a run may take.
const RUN_PATIENCE: Duration = Duration::from_mins(1);
const NAME: &str = "tsumugi eval rate";

/// The engine.
#[derive(Clone, Debug)]
pub struct RateEngine {
    /// The program `tsumugi`.
    program: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Said {
    seconds: f64,
    is_interrupted: bool,
    is_saturated: bool,
    bs: u64,
    ios: u64,
    ios_all: u64,
    iops: f64,
    latency_us: Times,
    service_us: Times,
    lateness_us: Times,
    submissions: Vec<(u64, u64)>,
    cpu_us_per_io: f64,
    unfinished: u64,
    series: Vec<u64>,
}

#[derive(Debug, Deserialize)]
struct Times {
    avg: f64,
    p50: f64,
    p99: f64,
    #[serde(rename = "p99.9")]
    p999: f64,
    max: f64,
}

impl RateEngine {
    /// An engine that runs this program.
    pub fn new(program: PathBuf) -> Self {
        Self { program }
    }
}

/// What a condition's levels say: the device, if it is none of files, and the queue.
fn levels(work: &Work<'_>) -> (Option<String>, QueuePolicy) {
    let factors = &work.plan.experiment.factors;
    let mut device = None;
    let mut queue = QueuePolicy::Direct;
    for (factor, level) in &work.condition.levels {
        match factors.get(factor).and_then(|levels| levels.get(level)).map(|level| &level.kind) {
            Some(LevelKind::Storage(Storage::Null)) => device = Some("null".into()),
            Some(LevelKind::Storage(Storage::Memory)) => {
                device = Some(format!("memory:{}", work.plan.experiment.file_bytes));
            }
            Some(LevelKind::Queue(policy)) => queue = *policy,
            _ => {}
        }
    }
    (device, queue)
}

/// Arguments of `tsumugi eval rate` for a run.
fn arguments(work: &Work<'_>) -> Result<Vec<String>, Error> {
    let Task::Rate(rate) = &work.plan.workload(work.step.cell).task else {
        return Err(Error::program(NAME, "the load has no rate"));
    };
    let (device, queue) = levels(work);
    let mut words: Vec<String> = vec!["eval".into(), "rate".into(), "--json".into()];
    let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    option("rate", work.cell.rate.to_string());
    option("batch", work.cell.batch.to_string());
    option("units", rate.units.to_string());
    option("numjobs", work.cell.jobs.to_string());
    option("rw", rate.pattern.name().into());
    option("bs", work.cell.block_size.to_string());
    option("queue", queue.name().into());
    option("runtime", work.plan.experiment.timing.run.as_secs_f64().to_string());
    option("ramp-time", work.ramp.as_secs_f64().to_string());
    option("seed", work.step.seed.to_string());
    let factors = work.plan.experiment.factors.values().flat_map(|levels| levels.values());
    for level in factors {
        if let LevelKind::Storage(Storage::BlockDevice { destroy: Some(serial), .. }) = &level.kind
        {
            option("destroy", serial.clone());
        }
    }
    if rate.pattern.writes() && rate.pattern != Pattern::Read {
        words.push("--overwrite".into());
    }
    if !work.plan.workload(work.step.cell).is_direct {
        words.push("--buffered".into());
    }
    words.push(match (device, work.place) {
        (Some(device), _) => device,
        (None, Some(place)) => place.inside_file().display().to_string(),
        (None, None) => "FILE".into(),
    });
    Ok(words)
}

/// Reads what `tsumugi eval rate --json` says.
fn parse(text: &str, pattern: Pattern) -> Result<Outcome, Error> {
    let wrong = |why: &str| Error::program(NAME, why);
    let said: Said = serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
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
        let entries: u64 = said.submissions.iter().map(|(size, count)| size * count).sum();
        outcome.further.insert("batch_achieved".into(), entries as f64 / calls as f64);
    }
    for (name, value) in
        [("ios", said.ios), ("ios_all", said.ios_all), ("unfinished", said.unfinished)]
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
        let place = work.place.ok_or_else(|| wrong("needs a storage"))?;
        let pattern = work.plan.workload(work.step.cell).pattern();
        let pattern = pattern.ok_or_else(|| wrong("the load has no pattern"))?;
        let mut command = Command::new(&self.program);
        command.args(arguments(work)?);
        place.mark(&mut command);
        let shown = process::shown(&command);
        let patience = work.plan.experiment.timing.run + work.ramp + RUN_PATIENCE;
        let Finished { status, stdout, stderr } =
            process::run(&mut command, stop, patience, END_PATIENCE)?;
        if !status.success() {
            let tail: String = stderr.trim().chars().take(2000).collect();
            return Err(wrong(&format!("{status}: {tail}")));
        }
        let mut outcome = parse(&stdout, pattern)?;
        if levels(work).0.is_some() {
            // Only the reactor's own entries go to the kernel.
            outcome.further.remove("batch_achieved");
        }
        outcome.load_seconds += work.ramp.as_secs_f64();
        outcome.command = shown;
        Ok(outcome)
    }
}
