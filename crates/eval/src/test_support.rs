//! An experiment for tests, on the synthetic engine.

use crate::condition::{Stage, StageOptions};
use crate::engine::{Stop, synthetic::SyntheticEngine};
use crate::experiment::{Experiment, Mode};
use crate::plan::Plan;
use crate::run::Runner;
use crate::store::Store;

/// Two conditions, two workloads with two cells each.
pub(crate) const TEXT: &str = r#"
name = "known"
title = "Known truth"
question = "Is the truth found?"
engine = "synthetic"
seed = 1
file-size = "64MiB"

[timing]
run = "1s"
warm-up-rounds = 1

[factors.storage.a]
kind = "synthetic"
label = "A"
noise = 0.02

[factors.storage.b]
kind = "synthetic"
label = "B"
ratio = 1.0
noise = 0.02

[[workload]]
name = "seq"
rw = "read"
bs = ["4KiB", "1MiB"]
jobs = [4]
metrics = ["bandwidth"]

[[workload]]
name = "rand"
rw = "randread"
bs = ["4KiB"]
jobs = [1, 4]
metrics = ["iops", "latency-p99"]

[[comparison]]
name = "B/A"
role = "remote-local"
baseline = { storage = "a" }
other = { storage = "b" }
"#;

/// The text with replacements.
pub(crate) fn text(changes: &[(&str, &str)]) -> String {
    let mut text = TEXT.to_string();
    for (old, new) in changes {
        assert!(text.contains(old), "{old:?} is not in the text");
        text = text.replace(old, new);
    }
    text
}

/// The experiment with replacements in its text.
pub(crate) fn experiment(changes: &[(&str, &str)], mode: Mode) -> Experiment {
    Experiment::parse(&text(changes), mode).unwrap()
}

/// Runs a plan of the synthetic engine to its end.
pub(crate) fn run_synthetic(plan: &Plan, store: &mut Store) {
    let options = StageOptions { data: "/".into(), program: "/".into() };
    let stage = Stage::enter(plan, &options, &Stop::default()).unwrap();
    let mut engine = SyntheticEngine;
    let mut runner = Runner::new(plan, store, &mut engine, &stage, Stop::default()).unwrap();
    runner.run(&mut |_| {}).unwrap();
}
