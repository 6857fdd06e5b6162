//! The simulation's short form, and proof that a seed repeats a run.

use simulation::{Plan, run};

/// Seeds of the short form.
const SEEDS: std::ops::Range<u64> = 100..116;

/// Goal: a failing seed can be looked at again and again: two runs are equal to the last event,
/// with and without faults.
#[test]
fn a_seed_repeats_exactly() {
    for seed in [7, 8] {
        let plan = Plan::of_seed(seed);
        let (once, again) = (run(&plan), run(&plan));
        assert_eq!(once.trace_hash, again.trace_hash, "seed {seed}");
        assert_eq!(once, again, "seed {seed}");
    }
    assert_ne!(run(&Plan::of_seed(7)).trace_hash, run(&Plan::of_seed(8)).trace_hash);
}

/// Goal: whatever befalls a cluster, the loss of power too, what mode `close` promises holds.
#[test]
fn seeds_hold() {
    let mut failed = Vec::new();
    for seed in SEEDS {
        let plan = Plan::of_seed(seed);
        let outcome = run(&plan);
        if !outcome.violations.is_empty() {
            failed.push((seed, outcome.violations));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Goal: the checker's runs mean something: bytes are written and read, and faults happen.
#[test]
fn runs_do_work() {
    let outcome = run(&Plan::of_seed(7));
    assert!(outcome.counts.faults > 0 && outcome.counts.answered > 100, "{outcome:?}");
    assert!(outcome.counts.read_bytes > 100_000 && outcome.counts.written_bytes > 10_000);
}
