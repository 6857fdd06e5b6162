//! Parts of a seed that run without a cluster: the journal of a union, the core of the metadata
//! service, the data of files in it, and the admissions of a target.
//!
//! A bug in one of them rarely shows through a whole cluster, or not at all: a cluster has no
//! union, and its clients send no wrong calls. Each part has its own random choices, so that it
//! leaves the course of the cluster as it is.

mod admissions;
mod data;
mod journal;
mod rights;
mod service;

use crate::sweep::panic_text;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartOutcome {
    /// The part.
    pub name: &'static str,
    /// The same for two runs of one seed.
    pub trace_hash: u64,
    /// Observations that break a rule; empty if all is well.
    pub violations: Vec<String>,
}

/// Runs all parts of a seed in this thread.
pub fn run_parts(seed: u64) -> Vec<PartOutcome> {
    let run = |name, part: fn(u64) -> (u64, Vec<String>)| {
        let ended = catch_unwind(AssertUnwindSafe(|| part(seed)));
        let (trace_hash, violations) =
            ended.unwrap_or_else(|payload| (0, vec![panic_text(&*payload)]));
        PartOutcome { name, trace_hash, violations }
    };
    vec![
        run("journal", journal::run),
        run("service", service::run),
        run("data", data::run),
        run("rights", rights::run),
        run("admissions", admissions::run),
    ]
}
