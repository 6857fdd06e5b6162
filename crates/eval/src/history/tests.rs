use super::*;
use crate::condition::{Stage, StageOptions};
use crate::engine::Stop;
use crate::engine::synthetic::SyntheticEngine;
use crate::experiment::Mode;
use crate::run::Runner;
use crate::test_support::experiment;

/// A result of the synthetic experiment, with changes in its text, on this kernel.
fn results(changes: &[(&str, &str)], kernel: &str) -> Results {
    let plan = Plan::new(experiment(changes, Mode::Full));
    let mut store = Store::in_memory(&plan).unwrap();
    let facts = vec![("kernel".to_string(), kernel.to_string())];
    let environment = crate::guard::Environment { facts };
    store.set("environment", &serde_json::to_string(&environment).unwrap()).unwrap();
    let options = StageOptions { data: "/".into(), program: "/no/such/program".into() };
    let stage = Stage::enter(&plan, &options, &Stop::default()).unwrap();
    let mut engine = SyntheticEngine;
    let mut runner = Runner::new(&plan, &mut store, &mut engine, &stage, Stop::default()).unwrap();
    runner.run(&mut |_| {}).unwrap();
    Results::of(&store).unwrap()
}

const SEED: (&str, &str) = ("seed = 1", "seed = 2");

fn verdicts(history: &History, kind: Kind) -> Vec<Verdict> {
    let rows = history.changes.iter().filter(|change| change.kind == kind);
    rows.map(|change| change.verdict.unwrap()).collect()
}

/// Goal: the same again is equivalent; 30 % slower is found, in values under that condition and in
/// the effect, and nowhere else.
#[test]
fn changes_are_found() {
    let first = results(&[], "6.1");
    let same = compare(&first, &results(&[SEED], "6.1"), false);
    assert!(same.reasons.is_empty() && same.unmatched.is_empty(), "{:?}", same.reasons);
    assert!(same.changes.iter().all(|it| !it.verdict.unwrap().is_different()), "{same:?}");
    // Levels differ on purpose: what they do is asked about.
    let slower = results(&[SEED, ("ratio = 1.0", "ratio = 0.7")], "6.1");
    let history = compare(&first, &slower, true);
    for change in &history.changes {
        let is_changed = change.kind == Kind::Effect || change.of == "B";
        assert_eq!(change.verdict == Some(Verdict::DifferentMatters), is_changed, "{change:?}");
        if is_changed {
            let truth = if change.metric.is_throughput() { 0.7_f64.ln() } else { -0.7_f64.ln() };
            assert!((change.mean - truth).abs() < 0.05, "{change:?}");
        }
    }
    assert_eq!(verdicts(&history, Kind::Effect).len(), 6);
}

/// Goal: another kernel, level or length of run is a reason to say nothing, and is named.
#[test]
fn what_differs_is_named() {
    let first = results(&[], "6.1");
    for (changes, kernel, reason) in [
        (vec![], "6.2", "kernel: 6.1 / 6.2"),
        (vec![("run = \"1s\"", "run = \"2s\"")], "6.1", "length of a run"),
        (vec![("64MiB", "128MiB")], "6.1", "file size"),
        (vec![("ratio = 1.0", "ratio = 0.9")], "6.1", "level storage.b"),
        (vec![("rw = \"read\"", "rw = \"write\"")], "6.1", "workload seq"),
    ] {
        let history = compare(&first, &results(&changes, kernel), false);
        assert!(history.reasons.iter().any(|it| it.contains(reason)), "{:?}", history.reasons);
        assert!(history.changes.iter().all(|change| change.verdict.is_none()));
        assert!(!history.changes.is_empty());
    }
    let other = results(&[("jobs = [4]", "jobs = [8]")], "6.1");
    let history = compare(&first, &other, false);
    assert!(history.unmatched.iter().any(|it| it.contains("seq") && it.contains("first only")));
    assert!(history.unmatched.iter().any(|it| it.contains("seq") && it.contains("second only")));
}
