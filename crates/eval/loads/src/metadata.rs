//! Metadata load: many processes make, look at, read and remove many small files, as mdtest does.
//!
//! Each process has `items` files, `file.RANK.NUMBER`, in one directory that all share or in one of
//! its own. The phases *create*, *stat*, *read* and *remove* begin for all together; a phase's rate
//! is all processes' files by the time from the first that begins to the last that ends, as mdtest's
//! (IOR repository) with its barriers. With a shift each process works on its neighbour's files from
//! the second phase on (mdtest -N), so that nothing is found in what the process itself has cached.
//! Processes are real ones, not threads: file systems treat the two differently.

mod worker;

use crate::engine::{Declaration, Engine, Setup, Work, Workers};
use crate::file_set::{ITEMS, items};
use crate::keys::{Form, Key, Table};
use crate::metric::Metric;
use crate::outcome::Outcome;
use crate::place::Place;
use crate::process::{self, Finished};
use crate::worker::Worker;
use crate::workload::{Load as Task, Workload};
use base::messages::{Language, Message, Text};
use base::{Error, Stop};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

pub use worker::{Answer, Phase, work};

/// How long a phase may take.
const PHASE_PATIENCE: Duration = Duration::from_mins(30);
/// How long an ending load may take.
const END_PATIENCE: Duration = Duration::from_secs(30);
const NAME: &str = "tsumugi eval mdtest";
/// Most processes, each with its pipes.
const PROCESSES_MAX: u32 = 256;
const FILE_WRITE_BYTES_MAX: u64 = 1 << 30;

// What a load says of itself, in English and in Japanese.
const FILES_OWN: Text = Text([
    "{items} files per process, own directories, {bytes} bytes written to each",
    "プロセスごとに {items} ファイル、個別のディレクトリ、各ファイルに {bytes} バイト書き込み",
]);
const FILES_SHARED: Text = Text([
    "{items} files per process, one shared directory, {bytes} bytes written to each",
    "プロセスごとに {items} ファイル、共有ディレクトリ 1 個、各ファイルに {bytes} バイト書き込み",
]);
const FILES_SYNCED: Text = Text([", made durable", "、永続化あり"]);
const FILES_SHIFTED: Text = Text([
    "; each process looks at, reads and removes its neighbour's",
    "。各プロセスは隣のプロセスのファイルを参照・読み出し・削除する",
]);

/// Metadata load.
pub const ENGINE: Declaration = Declaration {
    name: "metadata",
    worker: Message::Process,
    keys: &[
        ITEMS,
        Key::new("write-bytes", Form::Text),
        Key::new("own-directories", Form::Truth),
        Key::new("shift", Form::Truth),
        Key::new("sync", Form::Truth),
    ],
    metrics: Some(&[Metric::CreateRate, Metric::StatRate, Metric::ReadRate, Metric::RemoveRate]),
    workers: Workers::Jobs(PROCESSES_MAX),
    programs: |_: &Workload, setup: &Setup| vec![setup.program.clone()],
    load,
    mismatch: |level| level.mismatch_of_files("metadata"),
    start: Some(|setup| Ok(Box::new(MetadataEngine::new(setup.program, setup.scratch)))),
    ..Declaration::DEFAULT
};

/// A load of metadata operations, as mdtest makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Files {
    /// Files per process.
    pub items: u32,
    /// Bytes written to each after it was made.
    pub write_bytes: u32,
    /// Whether each process has a directory of its own.
    pub has_own_directories: bool,
    /// Whether each process looks at, reads and removes the files of its neighbour.
    pub shifts: bool,
    /// Whether each file is made durable when it is written.
    pub syncs: bool,
}

impl Task for Files {
    fn writes(&self) -> bool {
        true
    }

    fn describe(&self, language: Language, _is_direct: bool) -> String {
        let text = if self.has_own_directories { FILES_OWN } else { FILES_SHARED };
        let mut said =
            language.fill(&text, &[("items", &self.items), ("bytes", &self.write_bytes)]);
        for (is_so, text) in [(self.syncs, FILES_SYNCED), (self.shifts, FILES_SHIFTED)] {
            said.push_str(&if is_so { language.fill(&text, &[]) } else { String::new() });
        }
        said
    }
}

fn load(table: &Table<'_>, _metrics: &[Metric]) -> Result<Arc<dyn Task>, Error> {
    let write_bytes = table.bytes("write-bytes")?.unwrap_or(0);
    if let (Some(given), true) = (table.text("write-bytes"), write_bytes > FILE_WRITE_BYTES_MAX) {
        return Err(table.error(&given, "write-bytes", "is at most 1GiB"));
    }
    Ok(Arc::new(Files {
        items: items(table)?,
        write_bytes: write_bytes as u32,
        has_own_directories: table.is_set("own-directories"),
        shifts: table.is_set("shift"),
        syncs: table.is_set("sync"),
    }))
}

/// A load with its processes and place.
#[derive(Clone, Debug)]
pub struct Load {
    /// What each process does.
    pub files: Files,
    /// Processes.
    pub processes: u32,
    /// A directory in which one of our own is made, by each name that it has: processes use the names, for
    /// example two mounts of one file system, in turn.
    pub directories: Vec<PathBuf>,
}

/// What a phase came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    /// Which.
    pub phase: Phase,
    /// Files of all processes by second.
    pub rate: f64,
    /// From the first that began to the last that ended.
    pub seconds: f64,
    /// Seconds of the process that was fastest.
    pub fastest_seconds: f64,
    /// Seconds of the process that was slowest.
    pub slowest_seconds: f64,
}

fn answer(worker: &mut Worker) -> Result<Answer, Error> {
    // Who wants to stop ends this process, and with it all of them.
    let line = worker.answer(PHASE_PATIENCE, &Stop::default())?;
    line.parse().map_err(|why| Error::program(NAME, why))
}

/// Runs a load. `command` makes the command of the process with a rank, which has to run [`work`] on
/// its standard input and output. Everything happens in a new directory, which is removed.
pub fn run(
    load: &Load,
    command: impl Fn(u32, &Path) -> Command,
) -> Result<Vec<PhaseResult>, Error> {
    let name = format!("mdtest-{}", std::process::id());
    let roots: Vec<PathBuf> = load.directories.iter().map(|it| it.join(&name)).collect();
    let root = roots.first().ok_or_else(|| Error::program(NAME, "needs a directory"))?;
    // Fails if it exists: the directory of another run is never used.
    std::fs::create_dir(root).map_err(Error::io("cannot make", root))?;
    let results = run_in(load, &roots, command);
    std::fs::remove_dir_all(root).map_err(Error::io("cannot remove", root))?;
    results
}

fn run_in(
    load: &Load,
    roots: &[PathBuf],
    command: impl Fn(u32, &Path) -> Command,
) -> Result<Vec<PhaseResult>, Error> {
    let mut workers = Vec::new();
    for (rank, root) in (0..load.processes).zip(roots.iter().cycle()) {
        if load.files.has_own_directories {
            let own = worker::directory(root, &load.files, rank);
            std::fs::create_dir(&own).map_err(Error::io("cannot make", &own))?;
        }
        workers.push(Worker::start(NAME, command(rank, root))?);
    }
    // Each says that it is there before the first phase begins.
    workers.iter_mut().try_for_each(|worker| answer(worker).map(drop))?;
    let mut results = Vec::new();
    for phase in Phase::ALL {
        for worker in &mut workers {
            worker.tell(phase.name())?;
        }
        let answers: Result<Vec<_>, _> = workers.iter_mut().map(answer).collect();
        results.push(sum(phase, load, &answers?)?);
    }
    Ok(results)
}

/// All processes together.
fn sum(phase: Phase, load: &Load, answers: &[Answer]) -> Result<PhaseResult, Error> {
    let mut spans = Vec::new();
    for answer in answers {
        match answer {
            Answer::Done { begun_ns, ended_ns } => spans.push((*begun_ns, *ended_ns)),
            Answer::Failed(why) => {
                return Err(Error::program(NAME, format!("{}: {why}", phase.name())));
            }
        }
    }
    let seconds = |begun: u64, ended: u64| ended.saturating_sub(begun).max(1) as f64 / 1e9;
    let first = spans.iter().map(|span| span.0).min().unwrap_or_default();
    let last = spans.iter().map(|span| span.1).max().unwrap_or_default();
    let each = || spans.iter().map(|(begun, ended)| seconds(*begun, *ended));
    let all = f64::from(load.files.items) * f64::from(load.processes);
    Ok(PhaseResult {
        phase,
        rate: all / seconds(first, last),
        seconds: seconds(first, last),
        fastest_seconds: each().fold(f64::INFINITY, f64::min),
        slowest_seconds: each().fold(0.0, f64::max),
    })
}

/// The engine: runs `tsumugi eval mdtest`, in containers too.
#[derive(Clone, Debug)]
pub struct MetadataEngine {
    program: PathBuf,
    scratch: PathBuf,
}

impl MetadataEngine {
    /// An engine that runs this program, with a directory of ours for scratch.
    pub fn new(program: PathBuf, scratch: PathBuf) -> Self {
        Self { program, scratch }
    }
}

/// Arguments of `tsumugi eval` for a load.
pub fn arguments(files: &Files, processes: u32, directories: &[PathBuf]) -> Vec<String> {
    let mut words = vec!["eval".to_string(), "mdtest".into(), "--json".into()];
    for (name, value) in
        [("processes", processes), ("items", files.items), ("write-bytes", files.write_bytes)]
    {
        words.extend([format!("--{name}"), value.to_string()]);
    }
    for (name, is_set) in [
        ("own-directories", files.has_own_directories),
        ("shift", files.shifts),
        ("sync", files.syncs),
    ] {
        words.extend(is_set.then(|| format!("--{name}")));
    }
    words.extend(directories.iter().map(|directory| directory.display().to_string()));
    words
}

/// Returns the names under which the load sees the storage's directory: all mounts of one file system if it
/// sees them where they are.
fn directories(place: &dyn Place) -> Vec<PathBuf> {
    let inside = place.inside_directory();
    let mounts = place.mounts();
    if mounts.len() > 1 && inside == place.directory() { mounts.to_vec() } else { vec![inside] }
}

/// Reads what `tsumugi eval mdtest --json` says.
fn parse(text: &str, files: &Files, processes: u32) -> Result<Outcome, Error> {
    let phases: Vec<PhaseResult> =
        serde_json::from_str(text).map_err(|error| Error::program(NAME, error.to_string()))?;
    let mut outcome = Outcome { raw: text.trim().into(), ..Outcome::default() };
    for it in &phases {
        let metric = match it.phase {
            Phase::Create => Metric::CreateRate,
            Phase::Stat => Metric::StatRate,
            Phase::Read => Metric::ReadRate,
            Phase::Remove => Metric::RemoveRate,
        };
        outcome.metrics.insert(metric, it.rate);
        let name = it.phase.name();
        outcome.further.insert(format!("{name}_fastest_s"), it.fastest_seconds);
        outcome.further.insert(format!("{name}_slowest_s"), it.slowest_seconds);
        outcome.load_seconds += it.seconds;
    }
    let bytes = f64::from(files.items) * f64::from(processes) * f64::from(files.write_bytes);
    outcome.written_bytes_per_s = bytes / outcome.load_seconds.max(1e-9);
    Ok(outcome)
}

impl Engine for MetadataEngine {
    fn version(&self) -> String {
        concat!("tsumugi eval mdtest ", env!("CARGO_PKG_VERSION")).into()
    }

    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, Error> {
        let wrong = |why: &str| Error::program(NAME, why);
        let Some(files) = work.workload.task::<Files>() else {
            return Err(wrong("the load is not of files"));
        };
        let place = work.place.ok_or_else(|| wrong("needs a storage"))?;
        let words = arguments(files, work.cell.jobs, &directories(place));
        let program = self.program.display().to_string();
        let mut command = place.command(&program, &words, &self.scratch);
        let shown = process::shown(&command);
        let Finished { status, stdout, stderr } =
            process::run(&mut command, stop, 4 * PHASE_PATIENCE, END_PATIENCE)?;
        if !status.success() {
            let tail: String = stderr.trim().chars().take(2000).collect();
            return Err(wrong(&format!("{status}: {tail}")));
        }
        let mut outcome = parse(&stdout, files, work.cell.jobs)?;
        outcome.command = shown;
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests;
