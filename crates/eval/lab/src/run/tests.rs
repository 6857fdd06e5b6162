//! The whole way from plan to verdict on storage whose truth is known.

use super::*;
use crate::analysis::no_further;
use crate::experiment::Mode;
use crate::store::Run;
use crate::test_support::{experiment, measured, stage};
use base::statistics::Verdict;
use loads::synthetic::SyntheticEngine;
use std::path::Path;

fn plan(changes: &[(&str, &str)], seed: u64) -> Plan {
    let seed = format!("seed = {seed}");
    let changes: Vec<_> = changes.iter().copied().chain([("seed = 1", seed.as_str())]).collect();
    Plan::new(experiment(&changes, Mode::Full))
}

fn run(plan: &Plan, store: &mut Store, engine: &mut dyn Engine, stop: &Stop) -> Ending {
    let stage = stage(plan, Path::new("/"));
    let mut runner = Runner::new(plan, store, engine, &stage, no_further, stop.clone()).unwrap();
    runner.run(&mut |_| {}).unwrap()
}

fn whole(plan: &Plan) -> (Analysis, Ending) {
    let mut store = Store::in_memory(plan).unwrap();
    let ending = run(plan, &mut store, &mut SyntheticEngine, &Stop::default());
    (Analysis::of(plan, &store, no_further).unwrap(), ending)
}

fn rows(analysis: &Analysis) -> impl Iterator<Item = &crate::analysis::Row> {
    analysis.families.iter().flat_map(|family| &family.rows)
}

/// Goal: 200 seeded experiments without a difference, through the whole program, under noise of 5 %
/// and drift: at most 18 find one anywhere in a figure.
#[test]
fn equal_conditions_are_called_different_in_at_most_18_of_200() {
    let drift =
        [("noise = 0.02", "noise = 0.05\ndrift = 0.02"), ("\"iops\", \"latency-p99\"", "\"iops\"")];
    let mut wrong = 0;
    for seed in 0..200 {
        let (analysis, _) = whole(&plan(&drift, seed));
        // One figure per experiment: the error is promised per figure.
        wrong += u32::from(analysis.families[0].rows.iter().any(|row| row.verdict.is_different()));
    }
    assert!(wrong <= 18, "{wrong} of 200");
}

/// Goal: known ratios are covered by the 95 % interval in at least 94 % of 200 experiments, whatever
/// their size, and the sign of large ones is never mistaken.
#[test]
fn known_ratios_are_covered() {
    let ratios = [1.0, 1.03, 1.08, 1.5];
    let (mut covered, mut all) = (0, 0);
    for seed in 0..200 {
        let ratio = ratios[(seed % 4) as usize];
        let text = format!("ratio = {ratio:.2}");
        // One look at ten rounds: the interval is then the plain one.
        let changes = [
            ("ratio = 1.0", text.as_str()),
            ("warm-up-rounds = 1", "warm-up-rounds = 1\nlooks = [10]"),
        ];
        let (analysis, _) = whole(&plan(&changes, seed));
        for row in &analysis.families[0].rows {
            all += 1;
            covered += u32::from(row.evidence.interval.unwrap().contains(f64::ln(ratio)));
            if ratio > 1.4 {
                assert_eq!(row.verdict, Verdict::DifferentMatters, "seed {seed}");
                assert!(row.evidence.mean > 0.0);
            }
        }
    }
    assert!(f64::from(covered) >= 0.94 * f64::from(all), "{covered} of {all}");
}

/// Goal: what the runs of a pair share, however large, does not hide 8 %: it cancels, and only in
/// pairs. (Seen to fail with runs paired with those of the next round.)
#[test]
fn what_pairs_share_cancels() {
    let changes = [("noise = 0.02", "noise = 0.01\ncommon = 0.5"), ("ratio = 1.0", "ratio = 0.92")];
    let (analysis, ending) = whole(&plan(&changes, 3));
    assert_eq!(ending, Ending::Decided);
    assert!(
        rows(&analysis).all(|row| row.verdict.is_different() || row.verdict == Verdict::Equivalent)
    );
    assert!(rows(&analysis).all(|row| row.evidence.deviation < 0.03));
}

/// Goal: experiments stop as soon as all is decided, and go on while it is not.
#[test]
fn experiments_end_when_decided() {
    let (analysis, ending) = whole(&plan(&[("noise = 0.02", "noise = 0.005")], 3));
    assert_eq!((ending, analysis.rounds), (Ending::Decided, 6));
    assert!(rows(&analysis).all(|row| row.verdict == Verdict::Equivalent));
    let (analysis, ending) = whole(&plan(&[("noise = 0.02", "noise = 0.4")], 3));
    assert_eq!((ending, analysis.rounds), (Ending::AllRounds, 30));
}

/// Goal: a condition is run for as long as a comparison with it is open, and never if none names it;
/// interrupted and resumed, the same are run.
#[test]
fn what_is_decided_is_not_run_any_more() {
    let level = |name: &str, rest: &str| {
        format!("[factors.storage.{name}]\nkind = \"synthetic\"\n{rest}\n\n")
    };
    let levels = level("c", "noise = 0.5") + &level("spare", "") + "[[workload]]\nname = \"seq\"";
    let compared = "[[comparison]]\nname = \"C/A\"\nbaseline = { storage = \"a\" }\nother = \
                    { storage = \"c\" }\n\n[[comparison]]\nname = \"B/A\"";
    let changes = [
        ("[[workload]]\nname = \"seq\"", levels.as_str()),
        ("ratio = 1.0", "ratio = 0.5"),
        ("[[comparison]]\nname = \"B/A\"", compared),
    ];
    let plan = plan(&changes, 3);
    let mut store = Store::in_memory(&plan).unwrap();
    let stop = Stop::default();
    let mut engine = Interrupting { left: 100, stop: stop.clone() };
    assert_eq!(run(&plan, &mut store, &mut engine, &stop), Ending::Interrupted);
    run(&plan, &mut store, &mut SyntheticEngine, &Stop::default());
    let rounds = |name: &str| {
        let runs = store.runs().unwrap().into_iter().filter(|run| run.condition.ends_with(name));
        runs.map(|run| run.round).collect::<BTreeSet<_>>().len()
    };
    assert_eq!([rounds("=a"), rounds("=b"), rounds("=c"), rounds("=spare")], [31, 7, 31, 0]);
    assert_eq!(plan.estimate().runs_max, 31 * 4 * 3);
}

/// Ends after so many runs, as Ctrl-C does.
struct Interrupting {
    left: u32,
    stop: Stop,
}

impl Engine for Interrupting {
    fn version(&self) -> String {
        SyntheticEngine.version()
    }

    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, base::Error> {
        if self.left == 0 {
            self.stop.request();
        }
        self.left = self.left.saturating_sub(1);
        SyntheticEngine.run(work, stop)
    }
}

/// Goal: interrupted after any number of runs and resumed, an experiment equals one that was not:
/// same runs, same order, same values, same verdicts.
#[test]
fn interrupted_and_resumed_equals_uninterrupted() {
    let plan = plan(&[], 5);
    let expected: Vec<Run> = measured(&plan).runs().unwrap();
    for after in [0, 1, 2, 7, 8, 9, 23, 54] {
        let mut store = Store::in_memory(&plan).unwrap();
        let stop = Stop::default();
        let mut engine = Interrupting { left: after, stop: stop.clone() };
        let ending = run(&plan, &mut store, &mut engine, &stop);
        assert_eq!(ending, Ending::Interrupted);
        assert_eq!(store.runs().unwrap().len(), after as usize);
        let ending = run(&plan, &mut store, &mut SyntheticEngine, &Stop::default());
        assert_eq!(ending, Ending::Decided);
        assert_eq!(store.runs().unwrap(), expected, "after {after}");
    }
}

/// Fails on one condition.
struct Failing;

impl Engine for Failing {
    fn version(&self) -> String {
        "failing".into()
    }

    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, base::Error> {
        if work.turn.condition == 1 && work.turn.round == 2 {
            return Err(base::Error::program("engine", "planted"));
        }
        SyntheticEngine.run(work, stop)
    }
}

/// Goal: a failed run is kept with its reason and costs its pair, not the experiment; several in a
/// row end it.
#[test]
fn failures_are_kept() {
    let plan = plan(
        &[
            ("bs = [\"4KiB\", \"1MiB\"]", "bs = [\"4KiB\"]"),
            ("jobs = [1, 4]", "jobs = [1]"),
            ("warm-up-rounds = 1", "warm-up-rounds = 1\nlooks = [6]"),
        ],
        5,
    );
    let mut store = Store::in_memory(&plan).unwrap();
    run(&plan, &mut store, &mut Failing, &Stop::default());
    let runs = store.runs().unwrap();
    let failed: Vec<&Run> = runs.iter().filter(|run| run.error.is_some()).collect();
    assert_eq!(failed.len(), 2);
    assert!(failed.iter().all(|run| run.round == 2 && !run.is_usable()));
    let analysis = Analysis::of(&plan, &store, no_further).unwrap();
    assert!(rows(&analysis).all(|row| row.evidence.n == analysis.rounds as usize - 1));
}

/// Goal: time and bytes written end an experiment.
#[test]
fn limits_end() {
    let limits = "[limits]\nwritten = \"1GiB\"\n[timing]";
    let plan = plan(&[("rw = \"read\"", "rw = \"write\""), ("[timing]", limits)], 5);
    let mut store = Store::in_memory(&plan).unwrap();
    let ending = run(&plan, &mut store, &mut SyntheticEngine, &Stop::default());
    assert_eq!(ending, Ending::Limit(Limit::Written));
    assert!(store.written_bytes().unwrap() >= 1 << 30);
}
