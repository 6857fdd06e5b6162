//! FFSB's profiles, of versions 5 and 6, as they are: alone, or in many containers that begin together.
//!
//! What a profile means is FFSB's (see [`profile`] and [`account`]); what is done to files is not: they are
//! made in directories of ours and nothing that is found is removed, while FFSB begins with `rm -rf` of what
//! lies at its locations. Each instance is a process ([`Job`]) that makes its files, waits at the start barrier
//! of [`crate::crowd`], loads, flushes, and prints its counts; [`conduct()`] starts them and puts their
//! results together.
//!
//! Other differences, all in notes or in docs/ior-ffsb.md: offsets cover the whole file (FFSB's stay below 4
//! GiB); the load ends on time, not at the next whole second; the flush covers the file systems in use
//! (syncfs), not the whole machine, because containers would otherwise wait for each other's data; data does
//! not compress.

pub mod account;
mod conduct;
mod files;
mod fileset;
mod instance;
mod load;
mod operation;
mod output;
pub mod profile;
mod worker;

use crate::crowd::INSTANCES_MAX;
use crate::engine::{Declaration, Engine, Setup, Work, Workers};
use crate::keys::{Form, Key};
use crate::metric::Metric;
use crate::outcome::Outcome;
use crate::workload::Workload;
use base::messages::Message;
use base::{Error, Stop};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use conduct::{Request, Results, Start, Summary, conduct};
pub use fileset::{make_file_sets, root_name};
pub use instance::{Job, Prepared};
pub use load::ProfileLoad;
pub use operation::{Call, Direction, Operation};
pub use output::{size, text};
pub use profile::{Compat, Profile, ProfileError};

/// What instances do: its metric, and how samples of single instances begin.
pub const OPERATIONS: [(Metric, &str); 1] = [(Metric::OpsTotal, "ops")];

/// What errors call it.
const NAME: &str = "ffsb";

/// Why an instance failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FfsbError {
    /// A file or directory could not be used.
    #[error("{what} {}: {cause}", path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On which.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// Files are where new ones would be made.
    #[error("refused: {} is there already, and reuse=1 does not say to use it", .0.display())]
    InTheWay(PathBuf),
    /// The files that are there are not those that the profile would make.
    #[error("the files in {} cannot be used again: {}", .0.display(), .1)]
    NotReusable(PathBuf, String),
    /// Each file has been removed, or there never was one.
    #[error("no files in {} to work on: more num_files or fewer deletes are needed", .0.display())]
    NoFiles(PathBuf),
    /// A file is smaller than what is read or written at once.
    #[error("{} has {} bytes, {} asks for {}: a larger min_filesize is needed", path.display(), bytes, key, needed)]
    TooSmall {
        /// Which.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// What it has to have.
        needed: u64,
        /// By which key.
        key: &'static str,
    },
    /// Fewer bytes were moved than asked for.
    #[error("{}: {} of {} bytes were moved (is the file system full?)", .0.display(), .1, .2)]
    Short(PathBuf, usize, u64),
    /// Direct I/O does not take these sizes.
    #[error("{}: directio=1 needs sizes, blocks and files of whole blocks of the device, e.g. multiples of 4096", .0.display())]
    Unaligned(PathBuf),
    /// The profile's command failed.
    #[error("callout {0:?} failed: {1}")]
    Callout(String, String),
    /// What was written may not be durable.
    #[error("cannot make durable what was written: {0}")]
    Flush(io::Error),
    /// No operation has a weight.
    #[error("no operation has a weight")]
    NoOperation,
    /// A thread is gone.
    #[error("a thread of the load ended by a fault of this program")]
    Gone,
}

impl FfsbError {
    fn file<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Self + use<'a> {
        move |cause| Self::File { what, path: path.into(), cause }
    }

    fn too_small(path: &Path, bytes: u64, needed: u64, key: &'static str) -> Self {
        Self::TooSmall { path: path.into(), bytes, needed, key }
    }
}

impl From<FfsbError> for Error {
    fn from(error: FfsbError) -> Self {
        Self::program(NAME, error.to_string())
    }
}

/// FFSB's profiles, by one instance or many.
pub const ENGINE: Declaration = Declaration {
    name: NAME,
    worker: Message::Instance,
    keys: &[Key::new("profile", Form::Text), Key::new("compat", Form::Count)],
    metrics: Some(&[
        Metric::OpsTotal,
        Metric::OpsPerContainer,
        Metric::Fairness,
        Metric::Bandwidth,
        Metric::Latency,
        Metric::LatencyP99,
    ]),
    storages: &["layers"],
    workers: Workers::Containers(INSTANCES_MAX),
    phases: &OPERATIONS,
    programs: |_: &Workload, setup: &Setup| vec![setup.program.clone()],
    load: load::read,
    mismatch: |level| level.mismatch_of_files(NAME),
    start: Some(|setup| Ok(Box::new(FfsbEngine::new(setup.program, setup.scratch)))),
    ..Declaration::DEFAULT
};

/// The engine.
#[derive(Clone, Debug)]
pub struct FfsbEngine {
    program: PathBuf,
    scratch: PathBuf,
}

impl FfsbEngine {
    /// An engine whose instances are this program, with a directory of ours for scratch.
    pub fn new(program: PathBuf, scratch: PathBuf) -> Self {
        Self { program, scratch }
    }
}

impl Engine for FfsbEngine {
    fn version(&self) -> String {
        concat!("tsumugi eval ffsb ", env!("CARGO_PKG_VERSION")).into()
    }

    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, Error> {
        let Some(load) = work.workload.task::<ProfileLoad>() else {
            return Err(Error::program(NAME, "the load is no profile"));
        };
        let place = work.place.ok_or_else(|| Error::program(NAME, "needs a storage"))?;
        let request = Request {
            load,
            count: work.cell.jobs,
            seconds: Some(work.time),
            base_seed: work.data.seed,
            seed: work.seed,
            allows_callout: false,
            roots: None,
            program: &self.program,
            scratch: &self.scratch,
        };
        let results = conduct(&request, place, stop, &mut |_| {})?;
        Ok(outcome(load, &results))
    }
}

/// What the results of a run are to an experiment.
fn outcome(load: &ProfileLoad, results: &Results) -> Outcome {
    let summary = results.summary();
    let mut outcome = Outcome {
        read_bytes_per_s: summary.read_bytes_per_s,
        written_bytes_per_s: summary.written_bytes_per_s,
        load_seconds: summary.seconds,
        command: results.command.clone(),
        job: load.text.clone(),
        ..Outcome::default()
    };
    outcome.raw = match results.instances.as_slice() {
        [one] => text(&load.profile, one),
        _ => results.table(),
    };
    for (metric, value) in [
        (Metric::OpsTotal, summary.operations_per_s),
        (Metric::OpsPerContainer, summary.operations_per_s_each),
        (Metric::Bandwidth, summary.read_bytes_per_s + summary.written_bytes_per_s),
        (Metric::Latency, summary.latency_mean_us),
        (Metric::LatencyP99, summary.latency_p99_us),
    ] {
        outcome.metrics.insert(metric, value);
    }
    outcome.metrics.extend(summary.fairness.map(|value| (Metric::Fairness, value)));
    outcome.further = summary.further();
    outcome
}

/// Longer than a profile's load for what follows it: flushing, and ending containers.
const END_PATIENCE: Duration = Duration::from_mins(30);

#[cfg(test)]
mod tests;
