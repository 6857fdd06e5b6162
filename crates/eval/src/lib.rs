//! Experiments on storage: plans, interleaved runs, paired statistics, verdicts and reports.
//!
//! The parts are crates of their own, each above the one before: `stats`, `base`, `loads`, `lab`, `report`.
//! This crate exports those that the command line needs.

pub use ::report::{Error, advice, report, serve};
pub use base::{Stop, clock, messages, statistics, units};
pub use lab::{
    clearing, condition, ending, experiment, guard, history, import, live, own, plan, run, safety,
    store,
};
pub use loads::{copyup, ffsb, ior};
pub use loads::{crowd, engine, engines, file_set, metadata, rate, threads, workload};

use lab::Error as LabError;

/// Returns whether an error means that the user stopped the experiment.
pub fn is_interruption(error: &(dyn std::error::Error + 'static)) -> bool {
    let of_base = error.downcast_ref::<base::Error>();
    of_base.is_some_and(|error| matches!(error, base::Error::Interrupted))
        || error.downcast_ref::<LabError>().is_some_and(LabError::is_interruption)
}
