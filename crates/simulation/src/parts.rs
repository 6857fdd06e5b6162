//! Parts of a seed that run without a cluster: the journal of a union, the core of the metadata
//! service (its rules, the data of files, names, rights), the service with clients that misbehave,
//! the admissions of a target, and a pool of volumes.
//!
//! A bug in one of them rarely shows through a whole cluster, or not at all: a cluster has no
//! union and no volumes, and its clients send no wrong calls. Each part has its own random choices,
//! so that it leaves the course of the cluster as it is.

mod admissions;
mod data;
mod journal;
mod rights;
mod service;
mod sessions;
mod tree;
mod volumes;

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

/// A part: from a seed to a trace and what is wrong.
type Part = fn(u64) -> (u64, Vec<String>);

/// All parts, by their names.
const PARTS: [(&str, Part); 8] = [
    ("journal", journal::run),
    ("service", service::run),
    ("data", data::run),
    ("rights", rights::run),
    ("admissions", admissions::run),
    ("sessions", sessions::run),
    ("volumes", volumes::run),
    ("tree", tree::run),
];

/// Runs all parts of a seed in this thread.
pub fn run_parts(seed: u64) -> Vec<PartOutcome> {
    PARTS.iter().map(|(name, part)| run_part(seed, name, *part)).collect()
}

fn run_part(seed: u64, name: &'static str, part: Part) -> PartOutcome {
    let ended = catch_unwind(AssertUnwindSafe(|| part(seed)));
    let (trace_hash, violations) = ended.unwrap_or_else(|payload| (0, vec![panic_text(&*payload)]));
    PartOutcome { name, trace_hash, violations }
}
