//! What makes the load: a declaration for each engine, and one trait for its runs, so that the way from
//! plan to report is the same for all.

use crate::keys::{Key, Table};
use crate::level::{Level, Setting};
use crate::metric::Metric;
use crate::outcome::Outcome;
use crate::place::Place;
use crate::workload::{Cell, DataSet, Load, Workload};
use base::messages::Message;
use base::{Error, Stop};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A run to be made.
#[derive(Clone, Debug)]
pub struct Work<'a> {
    /// Its workload.
    pub workload: &'a Workload,
    /// Its cell.
    pub cell: &'a Cell,
    /// Name of its condition in the database.
    pub condition: &'a str,
    /// The levels of its condition, in the order of the factors.
    pub levels: Vec<&'a Level>,
    /// Where to work; `None` for engines that need no storage.
    pub place: Option<&'a dyn Place>,
    /// The measured part.
    pub time: Duration,
    /// Load before measuring begins: longer than planned if the run before had not settled.
    pub ramp: Duration,
    /// Seed of its offsets.
    pub seed: u64,
    /// What the experiment works on.
    pub data: DataSet,
    /// Its place in the experiment.
    pub turn: Turn<'a>,
}

/// The place of a run in its experiment.
#[derive(Clone, Debug, Default)]
pub struct Turn<'a> {
    /// Runs that the plan has before it.
    pub index: u64,
    /// Round, from 0.
    pub round: u32,
    /// Index of its cell.
    pub cell: usize,
    /// Index of its condition.
    pub condition: usize,
    /// The levels of the run before.
    pub before: Vec<&'a Level>,
}

/// Makes load.
pub trait Engine {
    /// Returns name and version.
    fn version(&self) -> String;

    /// Makes one run. Ends early with [`Error::Interrupted`] once `stop` is requested.
    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, Error>;
}

/// What an engine is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The program `tsumugi`.
    pub program: PathBuf,
    /// A directory of ours for job files and logs.
    pub scratch: PathBuf,
}

/// A load that was read from the keys of a workload.
pub type ReadLoad = Result<Arc<dyn Load>, Error>;

/// An engine that was started.
pub type Started = Result<Box<dyn Engine>, Error>;

/// What an engine is, takes and gives. To add an engine, write its folder with one of these and add a line to
/// [`ENGINES`](crate::engines::ENGINES).
#[derive(Clone, Copy)]
pub struct Declaration {
    /// Its name in files.
    pub name: &'static str,
    /// One of its workers, of which a cell has several.
    pub worker: Message,
    /// Keys of its workloads beside those that all have.
    pub keys: &'static [Key],
    /// Metrics that it gives; `None` if its load says which.
    pub metrics: Option<&'static [Metric]>,
    /// Storages of these kinds go with it and with engines that name them too.
    pub storages: &'static [&'static str],
    /// A kind of level that only it takes.
    pub setting: Option<SettingKind>,
    /// What its operations are.
    pub operations: Operations,
    /// How its workers are counted.
    pub workers: Workers,
    /// Whether loads may have a rate.
    pub has_rate: bool,
    /// Whether pages are bypassed, by the load's key `direct`.
    pub is_direct: fn(Option<bool>) -> bool,
    /// Whether each run is a process of this program.
    pub runs_this_program: bool,
    /// Whether it is an NVMe host itself, so that no target is attached for it.
    pub is_host: bool,
    /// Where its results come from.
    pub origin: Origin,
    /// Phases whose samples it gives by container: their metric, and how names of samples begin.
    pub phases: &'static [(Metric, &'static str)],
    /// Programs that a container needs for it. `tsumugi` is the path given.
    pub programs: fn(&Workload, &Setup) -> Vec<PathBuf>,
    /// Reads its load from the keys of a workload, whose metrics are given.
    pub load: fn(&Table<'_>, &[Metric]) -> ReadLoad,
    /// Returns why a level does not go with it, beside what [`Self::storages`] and [`Self::setting`] say.
    pub mismatch: fn(&Level) -> Option<String>,
    /// Returns what a run would execute, for a look at a plan.
    pub preview: fn(&Work<'_>) -> Option<String>,
    /// Starts it; `None` if its results are not made here.
    pub start: Option<fn(Setup) -> Started>,
}

/// A kind of level that one engine alone takes.
#[derive(Clone, Copy, Debug)]
pub struct SettingKind {
    /// Its name in files.
    pub kind: &'static str,
    /// What such levels are to the engine, in a word.
    pub noun: &'static str,
    /// Keys of such levels beside those that all have.
    pub keys: &'static [Key],
    /// Whether the engine takes no other levels.
    pub is_all: bool,
    /// Reads one.
    pub read: fn(&Table<'_>) -> Result<Arc<dyn Setting>, Error>,
}

/// What operations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operations {
    /// Blocks of a size by jobs at a depth.
    Blocks,
    /// Transfers of a size.
    Transfers,
    /// Whatever another program did, of any size.
    Foreign,
    /// Sizes mean nothing.
    Other,
}

/// How workers are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workers {
    /// By the key `jobs`, at most so many.
    Jobs(u32),
    /// By the key `containers`, at most so many: the load itself says what each does.
    Containers(u32),
}

/// Where results come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// They are measured on storages.
    Storage,
    /// Other programs measured them; such an experiment is not run.
    Elsewhere,
    /// They are drawn from a known truth, without storages.
    Drawn,
}

/// Most jobs of a cell.
const JOBS_MAX: u32 = 1024;

impl Declaration {
    /// An engine that runs processes of this program on files; its load has to be said.
    pub const DEFAULT: Self = Self {
        name: "",
        worker: Message::Job,
        keys: &[],
        metrics: None,
        storages: &[],
        setting: None,
        operations: Operations::Other,
        workers: Workers::Jobs(JOBS_MAX),
        has_rate: false,
        is_direct: |_| false,
        runs_this_program: true,
        is_host: false,
        origin: Origin::Storage,
        phases: &[],
        programs: |_, _| Vec::new(),
        load: |table, _| Err(table.missing("load")),
        mismatch: |_| None,
        preview: |_| None,
        start: None,
    };

    /// Returns whether its load is operations of a size by jobs at a depth.
    pub fn is_blocks(&self) -> bool {
        self.operations == Operations::Blocks
    }

    /// Returns whether other programs measured its results.
    pub fn is_imported(&self) -> bool {
        self.origin == Origin::Elsewhere
    }

    /// Returns whether its results are drawn from a known truth.
    pub fn is_synthetic(&self) -> bool {
        self.origin == Origin::Drawn
    }
}

impl fmt::Debug for Declaration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Declaration").field("name", &self.name).finish_non_exhaustive()
    }
}
