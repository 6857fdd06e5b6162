//! An experiment for tests, on the synthetic engine.

#![allow(clippy::unwrap_used)]

use crate::analysis::no_further;
use crate::condition::{Stage, StageOptions};
use crate::ending::Ending;
use crate::experiment::{Experiment, Mode};
use crate::plan::{Plan, Planned};
use crate::run::Runner;
use crate::store::{RunFacts, Store};
use base::Stop;
use loads::outcome::Outcome;
use loads::synthetic::SyntheticEngine;
use std::path::Path;

/// Two conditions, two workloads with two cells each.
pub const TEXT: &str = r#"
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

/// A text with replacements.
pub fn changed(text: &str, changes: &[(&str, &str)]) -> String {
    let mut text = text.to_string();
    for (old, new) in changes {
        assert!(text.contains(old), "{old:?} is not in the text");
        text = text.replace(old, new);
    }
    text
}

/// The text of the experiment with replacements.
pub fn text(changes: &[(&str, &str)]) -> String {
    changed(TEXT, changes)
}

/// The experiment with replacements in its text.
pub fn experiment(changes: &[(&str, &str)], mode: Mode) -> Experiment {
    Experiment::parse(&text(changes), mode).unwrap()
}

/// The plan of the full form of a text with replacements.
pub fn plan(text: &str, changes: &[(&str, &str)]) -> Plan {
    Plan::new(Experiment::parse(&changed(text, changes), Mode::Full).unwrap())
}

/// The conditions of a plan, whose files are made below this directory, if it needs any.
pub fn stage(plan: &Plan, data: &Path) -> Stage {
    let options = StageOptions { data: data.into(), program: "/no/such/program".into() };
    Stage::enter(plan, &options, &Stop::default()).unwrap()
}

/// The results of a plan on the synthetic engine, from the first round to the last.
pub fn measured(plan: &Plan) -> Store {
    let mut store = Store::in_memory(plan).unwrap();
    run_synthetic(plan, &mut store);
    store
}

/// Runs a plan of the synthetic engine to its end.
pub fn run_synthetic(plan: &Plan, store: &mut Store) {
    let stage = stage(plan, Path::new("/"));
    let mut engine = SyntheticEngine;
    let mut runner =
        Runner::new(plan, store, &mut engine, &stage, no_further, Stop::default()).unwrap();
    runner.run(&mut |_| {}).unwrap();
}

/// Results of so many rounds of a plan, each run made up by `run`, with the marks of its outcome.
pub fn planted(plan: &Plan, rounds: u32, run: impl Fn(&Planned<'_>) -> Outcome) -> Store {
    let mut store = Store::in_memory(plan).unwrap();
    for round in 0..rounds {
        for step in plan.round(round) {
            let outcome = run(&Planned::new(plan, &step));
            let marks = &outcome.marks;
            let facts = RunFacts { step: &step, started_unix_ms: 0, attempts: 1, marks };
            store.add(plan, &facts, Ok(&outcome)).unwrap();
        }
    }
    // Verdicts of what goes on are those of the last look.
    store.set("ending", Ending::AllRounds.label()).unwrap();
    store
}

/// The head of an experiment's text: all before its factors.
pub fn head(name: &str, engine: &str) -> String {
    format!(
        "name = {name:?}\ntitle = \"Test\"\nquestion = \"?\"\nengine = {engine:?}\nseed = 1\n\
         file-size = \"64MiB\"\n[timing]\nrun = \"1s\"\nwarm-up-rounds = 0\n"
    )
}
