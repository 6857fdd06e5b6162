//! Our own host's load on a namespace: no kernel device, no file system, no FUSE in between.
//!
//! One `tsumugi nvme perf` per run. Levels of kind `host` set queue pairs, polling, CPUs and digests; the cell
//! sets jobs (threads with a controller each), depth and size.

use crate::blocks;
use crate::engine::{Declaration, Engine, Operations, SettingKind, Work};
use crate::keys::{Form, Key, Table};
use crate::level::{Level, LevelKind, Runtime, Setting, Storage};
use crate::metric::Metric;
use crate::ours::{self, Times};
use crate::outcome::Outcome;
use crate::workload::Pattern;
use base::{Error, Stop};
use serde::Deserialize;
use std::path::PathBuf;
use std::sync::Arc;

const NAME: &str = "tsumugi nvme perf";
const IO_QUEUES_MAX: u32 = 64;

/// Our own host.
pub const ENGINE: Declaration = Declaration {
    name: "nvme",
    metrics: Some(blocks::METRICS),
    storages: &["nqn"],
    setting: Some(SettingKind {
        kind: "host",
        noun: "settings",
        keys: &[
            Key::new("io-queues", Form::Count),
            Key::new("poll-us", Form::Any),
            Key::new("cpus", Form::Counts),
            Key::new("header-digest", Form::Truth),
            Key::new("data-digest", Form::Truth),
        ],
        is_all: false,
        read: host,
    }),
    operations: Operations::Blocks,
    is_direct: |given| given.unwrap_or(true),
    is_host: true,
    load: blocks::load,
    mismatch,
    start: Some(|setup| Ok(Box::new(NvmeEngine::new(setup.program)))),
    ..Declaration::DEFAULT
};

/// Settings of our own NVMe host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// I/O queue pairs per job.
    pub io_queues: Option<u16>,
    /// Microseconds to spin for completions before sleeping.
    pub poll_us: Option<reactor::Spin>,
    /// CPUs to pin jobs to, in turn.
    pub cpus: Vec<u16>,
    /// Whether to ask for header digests.
    pub has_header_digest: bool,
    /// Whether to ask for data digests.
    pub has_data_digest: bool,
}

impl HostSettings {
    /// These settings, and of another level what these leave open.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let cpus = if self.cpus.is_empty() { &other.cpus } else { &self.cpus };
        Self {
            io_queues: self.io_queues.or(other.io_queues),
            poll_us: self.poll_us.or(other.poll_us),
            cpus: cpus.clone(),
            has_header_digest: self.has_header_digest || other.has_header_digest,
            has_data_digest: self.has_data_digest || other.has_data_digest,
        }
    }
}

impl Setting for HostSettings {
    fn engine(&self) -> &'static str {
        ENGINE.name
    }
}

fn host(table: &Table<'_>) -> Result<Arc<dyn Setting>, Error> {
    let cpus = match table.counts("cpus") {
        None => Vec::new(),
        Some(given) => {
            let cpus = given.value.iter().map(|cpu| u16::try_from(*cpu));
            let cpus = cpus.collect::<Result<_, _>>();
            cpus.map_err(|_| table.error(&given, "cpus", "lies between 0 and 65535"))?
        }
    };
    Ok(Arc::new(HostSettings {
        io_queues: table.count_in("io-queues", (1, IO_QUEUES_MAX))?.map(|queues| queues as u16),
        poll_us: table.parsed("poll-us")?,
        cpus,
        has_header_digest: table.is_set("header-digest"),
        has_data_digest: table.is_set("data-digest"),
    }))
}

fn mismatch(level: &Level) -> Option<String> {
    match &level.kind {
        LevelKind::Storage(Storage::Subsystem(_) | Storage::Target { .. })
        | LevelKind::Runtime(Runtime::Native)
            if level.file_system.is_none() =>
        {
            None
        }
        LevelKind::Storage(_) | LevelKind::Runtime(_) => Some(
            "engine \"nvme\" works on namespaces, natively: kinds are target (without \
             file-system), nqn, host and native"
                .into(),
        ),
        LevelKind::Setting(_) => None,
    }
}

/// The engine.
#[derive(Clone, Debug)]
pub struct NvmeEngine {
    /// The program `tsumugi`.
    program: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Said {
    seconds: f64,
    is_interrupted: bool,
    reads: u64,
    writes: u64,
    bs: u64,
    iops: f64,
    latency_us: Times,
    cpu_us_per_io: f64,
    reconnects: u64,
    #[serde(default)]
    series: Vec<u64>,
}

impl NvmeEngine {
    /// An engine that runs this program.
    pub fn new(program: PathBuf) -> Self {
        Self { program }
    }
}

/// The settings that a condition's levels give together; of two that set the same, the first factor's
/// counts.
pub fn settings(work: &Work<'_>) -> HostSettings {
    let levels = work.levels.iter().filter_map(|level| level.setting::<HostSettings>());
    levels.fold(HostSettings::default(), |all, next| all.or(next))
}

/// Arguments of `tsumugi nvme perf` for a run, without those that name the namespace.
fn arguments(work: &Work<'_>, pattern: Pattern) -> Vec<String> {
    let settings = settings(work);
    let mut words: Vec<String> = vec!["nvme".into(), "perf".into(), "--json".into()];
    let mut option = |name: &str, value: String| words.extend([format!("--{name}"), value]);
    option("rw", pattern.name().into());
    option("bs", work.cell.block_size.to_string());
    option("iodepth", work.cell.depth.to_string());
    option("numjobs", work.cell.jobs.to_string());
    option("runtime", work.time.as_secs_f64().to_string());
    option("ramp-time", work.ramp.as_secs_f64().to_string());
    option("size", work.data.bytes.to_string());
    option("seed", work.seed.to_string());
    if let Some(queues) = settings.io_queues {
        option("nr-io-queues", queues.to_string());
    }
    if let Some(poll_us) = settings.poll_us {
        option("poll-us", poll_us.to_string());
    }
    if !settings.cpus.is_empty() {
        let cpus: Vec<String> = settings.cpus.iter().map(ToString::to_string).collect();
        option("cpus", cpus.join(","));
    }
    words.push("--histogram".into());
    if settings.has_header_digest {
        words.push("--hdr-digest".into());
    }
    if settings.has_data_digest {
        words.push("--data-digest".into());
    }
    words
}

/// Reads what `tsumugi nvme perf --json` says.
fn parse(text: &str) -> Result<Outcome, Error> {
    let wrong = |why: &str| Error::program(NAME, why);
    let whole: serde_json::Value =
        serde_json::from_str(text).map_err(|error| wrong(&error.to_string()))?;
    let raw = whole.to_string();
    let said: Said = serde_json::from_value(whole).map_err(|error| wrong(&error.to_string()))?;
    if said.is_interrupted {
        return Err(wrong("was interrupted by somebody else"));
    }
    if said.reads + said.writes == 0 {
        return Err(wrong("no operation was done in the measured time"));
    }
    let bytes = said.bs as f64;
    let rate = |operations: u64| operations as f64 * bytes / said.seconds;
    let latency = &said.latency_us;
    Ok(Outcome {
        metrics: [
            (Metric::Bandwidth, said.iops * bytes),
            (Metric::Iops, said.iops),
            (Metric::Latency, latency.avg),
            (Metric::LatencyP99, latency.p99),
            (Metric::CpuPerIo, said.cpu_us_per_io),
        ]
        .into(),
        further: [
            ("p50_us".to_string(), latency.p50),
            ("p999_us".into(), latency.p999),
            ("max_us".into(), latency.max),
            ("reconnects".into(), said.reconnects as f64),
            ("ios".into(), (said.reads + said.writes) as f64),
        ]
        .into(),
        read_bytes_per_s: rate(said.reads),
        written_bytes_per_s: rate(said.writes),
        load_seconds: said.seconds,
        series: said.series.iter().map(|operations| *operations as f64 * bytes).collect(),
        raw,
        ..Outcome::default()
    })
}

impl Engine for NvmeEngine {
    fn version(&self) -> String {
        concat!("tsumugi nvme perf ", env!("CARGO_PKG_VERSION")).into()
    }

    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, Error> {
        let wrong = |why: &str| Error::program(NAME, why);
        let place = work.place.ok_or_else(|| wrong("needs a storage"))?;
        let fabric = place.fabric().ok_or_else(|| wrong("needs a namespace"))?;
        let pattern = work.workload.pattern();
        let pattern = pattern.ok_or_else(|| wrong("the load has no pattern"))?;
        let mut words = arguments(work, pattern);
        words.extend(fabric.arguments());
        ours::run(NAME, (&self.program, words), work, stop, parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::read;
    use std::time::Duration;

    const TEXT: &str = r#"
engine = "nvme"
file-size = "64MiB"
[level.memory]
kind = "target"
backing = "memory"
[level.far]
kind = "nqn"
address = "[fd00::1]:4421"
nqn = "nqn.2026-01.io.example:disk"
[level.spin]
kind = "host"
poll-us = 50
io-queues = 2
cpus = [0, 1]
data-digest = true
[level.sleep]
kind = "host"
[[workload]]
name = "rand"
rw = "randread"
bs = ["4KiB"]
jobs = [1, 2]
depth = [1, 16]
metrics = ["iops", "latency-p99", "cpu-per-io"]
"#;

    /// Goal: a run's command says what cell and levels say, and nothing that they do not.
    #[test]
    fn commands_say_what_levels_say() {
        let read = read(TEXT);
        for (levels, spins) in [(["memory", "spin"], true), (["far", "sleep"], false)] {
            let cell = read.cell(4096, 2, 16);
            let work = read.work(&cell, &levels, Duration::from_secs(2));
            let words = arguments(&work, Pattern::RandomRead).join(" ") + " ";
            for part in [
                "--rw randread ",
                "--bs 4096 ",
                "--runtime 2 ",
                "--ramp-time 0.5 ",
                "--size 67108864 ",
                "--iodepth 16 ",
                "--seed 7 ",
            ] {
                assert!(words.contains(part), "{part} is not in {words}");
            }
            for part in ["--poll-us 50 ", "--nr-io-queues 2 ", "--cpus 0,1 ", "--data-digest "] {
                assert_eq!(words.contains(part), spins, "{part}: {words}");
            }
            assert!(!words.contains("--hdr-digest"));
        }
    }

    /// Goal: values are read in the database's units, and nonsense is refused.
    #[test]
    fn what_it_says_is_read() {
        let text = r#"{"rw":"randread","bs":4096,"iodepth":1,"numjobs":1,"seconds":2.0,
            "is_interrupted":false,"reads":200,"writes":0,"iops":100.0,"mib_per_s":1.0,
            "latency_us":{"avg":10.0,"p50":9.0,"p99":20.0,"p99.9":30.0,"max":40.0},
            "cpu_us_per_io":5.0,"cpu_percent":1.0,"reconnects":0,"verified":0,
            "series":[100,100],"histogram_ns":[[10000,200]]}"#;
        let outcome = parse(text).unwrap();
        assert!((outcome.metrics[&Metric::Bandwidth] - 409_600.0).abs() < 1e-9);
        assert!((outcome.metrics[&Metric::CpuPerIo] - 5.0).abs() < 1e-9);
        assert!((outcome.read_bytes_per_s - 409_600.0).abs() < 1e-9);
        assert_eq!(outcome.series, [409_600.0, 409_600.0]);
        for (old, new) in
            [("\"reads\":200", "\"reads\":0"), ("interrupted\":false", "interrupted\":true")]
        {
            assert!(parse(&text.replace(old, new)).is_err(), "{new}");
        }
        assert!(parse("").is_err() && parse("{}").is_err());
    }
}
