//! What makes the load: one trait, so that the way from plan to report is the same for all.

pub mod copyup;
pub mod ffsb;
pub mod fio;
pub mod ior;
pub mod metadata;
pub mod nvme;
mod ours;
pub mod program;
pub mod rate;
pub mod synthetic;
pub(crate) mod tail;

use crate::condition::Place;
use crate::error::Error;
use crate::experiment::Metric;
use crate::guard::Mark;
use crate::plan::{Cell, Condition, Plan, Step};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Whether the user wants to stop; clones see the same flag.
#[derive(Clone, Debug, Default)]
pub struct Stop(pub Arc<AtomicBool>);

impl Stop {
    /// Whether it is time to stop.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Asks to stop.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A run to be made.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The plan it is from.
    pub plan: &'a Plan,
    /// Which run.
    pub step: &'a Step,
    /// Its cell.
    pub cell: &'a Cell,
    /// Its condition.
    pub condition: &'a Condition,
    /// Where to work; `None` for engines that need no storage.
    pub place: Option<&'a Place>,
    /// Load before measuring begins: longer than planned if the run before had not settled.
    pub ramp: Duration,
}

impl<'a> Work<'a> {
    /// A run of a plan, with the plan's ramp.
    pub fn new(plan: &'a Plan, step: &'a Step, place: Option<&'a Place>) -> Self {
        Self {
            plan,
            step,
            cell: &plan.cells[step.cell],
            condition: &plan.conditions[step.condition],
            place,
            ramp: plan.experiment.timing.ramp,
        }
    }
}

/// The value that is kept of a series whose intervals are no seconds.
pub(crate) const SERIES_INTERVAL: &str = "series_interval_s";

/// What a run gave.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Measured values.
    pub metrics: BTreeMap<Metric, f64>,
    /// Further values that are kept, by name.
    pub further: BTreeMap<String, f64>,
    /// Bytes that the application read per second of measurement.
    pub read_bytes_per_s: f64,
    /// Bytes that it wrote per second of measurement.
    pub written_bytes_per_s: f64,
    /// Seconds of load, ramp included.
    pub load_seconds: f64,
    /// Bytes per second, second by second, if the run was long enough for it.
    pub series: Vec<f64>,
    /// What the engine itself knows to be wrong with it.
    pub marks: Vec<Mark>,
    /// What was executed.
    pub command: String,
    /// The job file, if there was one.
    pub job: String,
    /// What the engine said, as it said it.
    pub raw: String,
}

impl Outcome {
    /// How long each interval of the series is, in seconds.
    pub fn interval_s(&self) -> f64 {
        self.further.get(SERIES_INTERVAL).copied().unwrap_or(1.0)
    }

    /// Operations of the whole load, those of the ramp included: as the engine counted them, else from
    /// their rate.
    pub fn operations(&self) -> f64 {
        let rate = self.metrics.get(&Metric::Iops).copied().unwrap_or_default();
        self.further.get("ios_all").copied().unwrap_or(rate * self.load_seconds)
    }
}

/// Makes load.
pub trait Engine {
    /// Name and version.
    fn version(&self) -> String;

    /// Makes one run. Ends early with [`Error::Interrupted`] once `stop` is requested.
    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, Error>;
}
