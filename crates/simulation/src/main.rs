//! Runs seeds of the simulation: `tsumugi-simulation FIRST COUNT [--verbose]`.

use simulation::{Plan, run};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize| arguments.get(index).and_then(|text| text.parse::<u64>().ok());
    let (Some(first), Some(count)) = (number(0), number(1)) else {
        eprintln!("usage: tsumugi-simulation FIRST COUNT [--verbose]");
        return ExitCode::from(2);
    };
    let is_verbose = arguments.iter().any(|argument| argument == "--verbose");
    let mut failed = 0;
    for seed in first..first + count {
        let outcome = run(&Plan::of_seed(seed));
        let hash = outcome.trace_hash;
        if is_verbose {
            println!("seed {seed}: trace {hash:016x}, {:?}, {:?}", outcome.elapsed, outcome.counts);
        }
        if !outcome.violations.is_empty() {
            failed += 1;
            println!("seed {seed} FAILED (trace {hash:016x}):");
            outcome.violations.iter().for_each(|violation| println!("  {violation}"));
        }
    }
    println!("{} of {count} seeds passed", count - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
