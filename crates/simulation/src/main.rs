//! Runs seeds of the simulation on all cores:
//! `tsumugi-simulation FIRST COUNT [--jobs N] [--verbose] [--log] [--mutant=NAME]`.
//!
//! With a planted bug (`--mutant`, if the feature `mutants` is built) it ends with the first seed in which
//! a checker catches it. `tsumugi-simulation mutants` prints the catalogue of planted bugs.
//!
//! While it runs, it prints the rate and the time left to standard error. `--verbose` prints each
//! seed's plan, counts and hash of its trace, `--log` every call, answer and misfortune (of one seed
//! at a time). The last lines sum up what happened, as `counts: name=number ...`, and which seeds
//! failed. `SIM_SECONDS` is how long one seed may take (60) before the program gives up.

use simulation::mutants::{self, Mutant};
use simulation::{Counts, Plan, Report, SeedOutcome, cores, run_seed, sweep};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str =
    "usage: tsumugi-simulation FIRST COUNT [--jobs N] [--verbose] [--log] [--mutant=NAME]
       tsumugi-simulation mutants";
/// Seconds that one seed may take, unless `SIM_SECONDS` says otherwise.
const SEED_SECONDS: u64 = 60;
/// Pause between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// Failed seeds whose violations are printed.
const SHOWN_MAX: usize = 10;

/// What the command line asks for.
struct Options {
    first: u64,
    count: u64,
    jobs: usize,
    is_verbose: bool,
    is_logged: bool,
    /// The planted bug.
    mutant: Option<String>,
}

impl Options {
    fn read(arguments: &[String]) -> Option<Options> {
        let number = |index: usize| arguments.get(index)?.parse::<u64>().ok();
        let has = |option: &str| arguments.iter().any(|argument| argument == option);
        let is_logged = has("--log");
        let jobs = match arguments.iter().position(|argument| argument == "--jobs") {
            Some(index) => number(index + 1)? as usize,
            None if is_logged => 1,
            None => cores(),
        };
        let mutant = arguments.iter().find_map(|argument| argument.strip_prefix("--mutant="));
        let mutant = mutant.map(str::to_owned);
        let (first, count) = (number(0)?, number(1)?);
        Some(Options { first, count, jobs, is_verbose: has("--verbose"), is_logged, mutant })
    }

    /// Ends the program if a bug is planted: it is caught.
    fn caught(&self, seed: u64, checker: &str) {
        if self.mutant.is_some() {
            println!("caught by {checker} in seed {seed}");
            std::process::exit(1);
        }
    }
}

/// Prints the catalogue of planted bugs, a line each.
fn print_mutants() {
    for Mutant { name, rule, file, bug, test, masked } in mutants::catalogue().mutants {
        let (test, masked) = (test.unwrap_or_default(), masked.unwrap_or_default());
        println!("{name}\t{rule}\t{file}\t{bug}\t{test}\t{masked}");
    }
}

/// How far a run of many seeds is.
struct Progress {
    begun: Instant,
    shown: Instant,
    done: u64,
    of: u64,
    failed: Vec<u64>,
    counts: Counts,
}

impl Progress {
    fn failed(&mut self, seed: u64, heading: &str, violations: &[String]) {
        if self.failed.len() < SHOWN_MAX {
            println!("seed {seed}{heading}");
            for violation in violations {
                println!("  {violation}");
            }
        }
        if self.failed.last() != Some(&seed) {
            self.failed.push(seed);
        }
    }

    fn ended(&mut self, seed: u64, outcome: &SeedOutcome, options: &Options) {
        let (cluster, block) = (&outcome.cluster, &outcome.block_path);
        let (hash, block_hash) = (cluster.trace_hash, block.trace_hash);
        if options.is_verbose {
            println!("seed {seed}: trace {hash:016x}, {:?}, {:?}", cluster.elapsed, cluster.counts);
            println!("seed {seed}: {:?}", Plan::of_seed(seed));
            println!("seed {seed}, block path: trace {block_hash:016x}, {:?}", block.counts);
        }
        if !cluster.violations.is_empty() {
            let heading = format!(" FAILED (trace {hash:016x}):");
            self.failed(seed, &heading, &cluster.violations);
            options.caught(seed, mutants::checker(&cluster.violations[0]));
        }
        if !block.violations.is_empty() {
            let heading = format!(", block path, FAILED (trace {block_hash:016x}):");
            self.failed(seed, &heading, &block.violations);
            options.caught(seed, "block path");
        }
        self.counts += cluster.counts;
    }

    fn show(&mut self) {
        if self.shown.elapsed() < PROGRESS_EVERY {
            return;
        }
        self.shown = Instant::now();
        let rate = self.rate();
        let left = ((self.of - self.done) as f64 / rate).ceil();
        let (done, of, failed) = (self.done, self.of, self.failed.len());
        eprintln!("{done} of {of} seeds, {rate:.1} a second, {left} s left, {failed} failed");
    }

    /// Seeds a second.
    fn rate(&self) -> f64 {
        self.done as f64 / self.begun.elapsed().as_secs_f64().max(1e-3)
    }
}

fn seed_seconds() -> u64 {
    let given = std::env::var("SIM_SECONDS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(SEED_SECONDS)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["mutants"] {
        print_mutants();
        return ExitCode::SUCCESS;
    }
    let Some(options) = Options::read(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    if let Some(Err(error)) = options.mutant.as_deref().map(mutants::activate) {
        eprintln!("{error}");
        return ExitCode::from(2);
    }
    run_all(&options)
}

/// Runs all seeds and prints what came of them.
fn run_all(options: &Options) -> ExitCode {
    let now = Instant::now();
    let (failed, counts) = (Vec::new(), Counts::default());
    let mut progress =
        Progress { begun: now, shown: now, done: 0, of: options.count, failed, counts };
    let seeds = options.first..options.first + options.count;
    let longest = Duration::from_secs(seed_seconds());
    let is_logged = options.is_logged;
    sweep(
        seeds,
        options.jobs,
        longest,
        |seed| run_seed(seed, is_logged),
        |seed, report| {
            match report {
                Report::Ended(outcome) => progress.ended(seed, &outcome, options),
                Report::Panicked(text) => {
                    progress.failed(seed, " PANICKED:", &[text]);
                    options.caught(seed, "panic");
                }
                Report::Hangs => {
                    options.caught(seed, "hang");
                    println!("seed {seed} did not end within {} s", longest.as_secs());
                    std::process::exit(1);
                }
            }
            progress.done += 1;
            progress.show();
        },
    );
    let numbers = progress.counts.named().into_iter();
    let numbers: Vec<String> = numbers.map(|(name, number)| format!("{name}={number}")).collect();
    println!("counts: {}", numbers.join(" "));
    if options.mutant.is_some() {
        println!("reached: {}", mutants::reached());
    }
    let (count, failed) = (options.count, progress.failed.len() as u64);
    println!("{} of {count} seeds passed, {:.1} a second", count - failed, progress.rate());
    if failed > 0 {
        progress.failed.sort_unstable();
        let seeds: Vec<String> = progress.failed.iter().map(u64::to_string).collect();
        println!("failed seeds: {}", seeds.join(" "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
