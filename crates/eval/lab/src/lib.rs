//! Experiments: plans, conditions that stand, interleaved runs, results and their analysis.

pub mod analysis;
pub mod clearing;
pub mod condition;
pub mod cpu;
pub mod ending;
mod error;
pub mod experiment;
pub mod guard;
pub mod history;
pub mod import;
pub mod live;
pub mod own;
pub mod plan;
pub mod run;
pub mod safety;
mod settle;
pub mod shape;
pub mod store;
#[cfg(any(test, feature = "test-support"))]
pub mod test_support;
pub mod thresholds;

pub use error::Error;
