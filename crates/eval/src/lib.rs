//! Experiments on storage: plans, interleaved runs, paired statistics, verdicts and reports.

pub mod advice;
pub mod analysis;
mod calendar;
pub mod clearing;
pub mod clock;
pub mod condition;
pub mod cpu;
pub mod crowd;
pub mod engine;
mod error;
pub mod experiment;
pub mod file_set;
pub mod guard;
pub mod history;
pub mod import;
pub mod live;
pub mod messages;
pub mod own;
pub mod plan;
pub mod process;
pub mod report;
pub mod run;
pub mod safety;
pub mod serve;
mod settle;
pub mod shape;
pub mod statistics;
pub mod store;
#[cfg(test)]
mod test_support;
pub mod units;
pub mod worker;

pub use error::Error;
