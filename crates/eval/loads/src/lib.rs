//! Engines of the evaluation. Each has a folder with its declaration ([`engine::Declaration`]): the keys, levels
//! and metrics that it has, and how it is started. [`engines`] lists them; plans, conditions and reports read
//! the declarations and name no engine.

pub mod blocks;
pub mod copyup;
pub mod crowd;
pub mod engine;
pub mod engines;
pub mod ffsb;
pub mod file_set;
pub mod fio;
pub mod imported;
pub mod ior;
pub mod keys;
pub mod level;
pub mod levels;
pub mod metadata;
pub mod metric;
pub mod nvme;
mod ours;
pub mod outcome;
pub mod place;
pub mod process;
pub mod program;
pub mod rate;
pub mod scheme;
pub mod synthetic;
pub mod tail;
#[cfg(test)]
mod test_support;
pub mod threads;
pub mod worker;
pub mod workload;
pub mod workloads;
