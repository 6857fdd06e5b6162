//! Runs seeds of the simulation: `tsumugi-simulation FIRST COUNT [--verbose] [--log]`.
//!
//! `--verbose` prints each seed's plan, counts and hash of its trace, `--log` every call, answer and
//! misfortune.
//! The last line but one sums up what happened, as `counts: name=number ...`.

use simulation::{Counts, Plan, run, run_block_path};
use std::process::ExitCode;

/// Runs the block path of a seed; answers whether all was well.
fn block_path_holds(seed: u64, is_verbose: bool, is_logged: bool) -> bool {
    let outcome = run_block_path(seed, is_logged);
    let hash = outcome.trace_hash;
    if is_verbose {
        println!("seed {seed}, block path: trace {hash:016x}, {:?}", outcome.counts);
    }
    let holds = outcome.violations.is_empty();
    if !holds {
        println!("seed {seed}, block path, FAILED (trace {hash:016x}):");
        outcome.violations.iter().for_each(|violation| println!("  {violation}"));
    }
    holds
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse::<u64>().ok());
    let (Some(first), Some(count)) = (number(0), number(1)) else {
        eprintln!("usage: tsumugi-simulation FIRST COUNT [--verbose] [--log]");
        return ExitCode::from(2);
    };
    let has = |option: &str| arguments.iter().any(|argument| argument == option);
    let (is_verbose, is_logged) = (has("--verbose"), has("--log"));
    let mut failed = 0;
    let mut counts = Counts::default();
    for seed in first..first + count {
        let plan = Plan { is_logged, ..Plan::of_seed(seed) };
        let outcome = run(&plan);
        let hash = outcome.trace_hash;
        if is_verbose {
            println!("seed {seed}: trace {hash:016x}, {:?}, {:?}", outcome.elapsed, outcome.counts);
            println!("seed {seed}: {plan:?}");
        }
        let mut holds = outcome.violations.is_empty();
        if !holds {
            println!("seed {seed} FAILED (trace {hash:016x}):");
            outcome.violations.iter().for_each(|violation| println!("  {violation}"));
        }
        counts += outcome.counts;
        holds &= block_path_holds(seed, is_verbose, is_logged);
        failed += u64::from(!holds);
    }
    let numbers = counts.named().map(|(name, number)| format!("{name}={number}"));
    println!("counts: {}", numbers.join(" "));
    println!("{} of {count} seeds passed", count - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
