//! The simulation's short form, and proof that a seed repeats a run.

use simulation::{Counts, Plan, run};

/// Seeds of the short form.
const SEEDS: std::ops::Range<u64> = 100..116;

/// What so few seeds need not show.
const SELDOM: [&str; 1] = ["late_commits"];

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

/// Goal: whatever befalls a cluster, the loss of power too, what mode `close` promises holds. And
/// what the faults are aimed at does happen, lest the aim rot.
#[test]
fn seeds_hold() {
    let mut failed = Vec::new();
    let mut counts = Counts::default();
    for seed in SEEDS {
        let plan = Plan::of_seed(seed);
        let outcome = run(&plan);
        counts += outcome.counts;
        if !outcome.violations.is_empty() {
            failed.push((seed, outcome.violations));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
    let numbers = counts.named();
    println!("{numbers:?}");
    for (name, number) in numbers {
        assert!(number > 0 || SELDOM.contains(&name), "{name} never happened: {numbers:?}");
    }
}

/// Goal: the checker's runs mean something: bytes are written and read, and faults happen.
#[test]
fn runs_do_work() {
    let outcome = run(&Plan::of_seed(7));
    assert!(outcome.counts.faults > 0 && outcome.counts.answered > 100, "{outcome:?}");
    assert!(outcome.counts.read_bytes > 100_000 && outcome.counts.written_bytes > 10_000);
}
