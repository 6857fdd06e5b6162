//! Runs seeds of the simulation on all cores: `tsumugi-simulation FIRST COUNT [--jobs N]
//! [--verbose] [--log] [--mutant=NAME] [--no-reduce]`.
//!
//! The program reduces the first seed in which a cluster fails to the fewest parts that still
//! fail, for at most `--reduce-seconds=N` (60), and prints its story as numbered lines;
//! `--no-reduce` omits that. The printed option `--only=...` repeats the reduced run. With a
//! planted bug the program reduces only with `--reduce`.
//!
//! With a planted bug (`--mutant`, if the feature `mutants` is built) the program ends with the
//! first seed in which a checker catches it. `tsumugi-simulation linear FILE...` checks recorded
//! histories of names and files. `tsumugi-simulation mutants` prints the catalogue of planted bugs.
//! `--reached` prints for each seed the planted bugs whose code it runs, as `reached by SEED
//! (traces ...): NAME=TIMES ...`: a seed cannot show a bug that it does not reach. `--seeds=1,5,9`
//! runs these seeds in place of FIRST and COUNT. `--world=AREA` runs one focused world of each seed
//! and nothing else: pages, locks, sessions, power, space or names. `--small` runs all of them, and
//! the parts without a cluster.
//!
//! While it runs, the program prints the rate and the time left to standard error. `--verbose`
//! prints each seed's plan, counts and hash of its trace, `--log` every call, answer and fault (of
//! one seed at a time). The last lines sum up the events, as `counts: name=number ...`, and name
//! the failed seeds. `SIM_SECONDS` limits the time of one seed (60) before the program gives up.

use simulation::mutants::{self, Mutant};
use simulation::{
    Area, Counts, Kept, Plan, Recorded, Reduced, Report, SeedOutcome, Verdict, check_lines, cores,
    reduce, run, run_seed, sweep,
};
use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str =
    "usage: tsumugi-simulation FIRST COUNT | --seeds=N,N... [--jobs N] [--verbose] [--log] [--mutant=NAME]
                          [--reduce | --no-reduce] [--reduce-seconds=N] [--reached]
                          [--world=AREA | --small]
       tsumugi-simulation SEED 1 --only=PARTS [--world=AREA] [--log] [--mutant=NAME]
       tsumugi-simulation linear FILE...
       tsumugi-simulation mutants";
/// Limit of one seed in seconds, unless `SIM_SECONDS` sets another.
const SEED_SECONDS: u64 = 60;
/// Limit of the reduction of a seed in seconds, unless an option sets another.
const REDUCE_SECONDS: u64 = 60;
/// Pause between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(5);
/// Failed seeds whose violations are printed.
const SHOWN_MAX: usize = 10;

/// The options of the command line.
struct Options {
    seeds: Vec<u64>,
    jobs: usize,
    is_verbose: bool,
    is_logged: bool,
    /// Each seed's line names the planted bugs that it reached.
    is_reach_shown: bool,
    /// The planted bug.
    mutant: Option<String>,
    /// Time limit of the reduction of the first failing seed; `None`: no reduction.
    reduce: Option<Duration>,
    /// The parts of the seed's plan to run.
    only: Option<Kept>,
    /// The only focused world to run, in place of the cluster.
    world: Option<Area>,
    /// Only focused worlds and parts without a cluster run.
    is_small: bool,
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
        let value = |option: &str| {
            arguments.iter().find_map(|argument| argument.strip_prefix(option)).map(str::to_owned)
        };
        let mutant = value("--mutant=");
        let seconds =
            value("--reduce-seconds=").map_or(Some(REDUCE_SECONDS), |it| it.parse().ok())?;
        let is_reduced = has("--reduce") || mutant.is_none() && !has("--no-reduce");
        let reduce = is_reduced.then(|| Duration::from_secs(seconds));
        let only = match value("--only=") {
            Some(text) => Some(text.parse().inspect_err(|error| eprintln!("{error}")).ok()?),
            None => None,
        };
        let seeds = if let Some(text) = value("--seeds=") {
            text.split(',').map(|seed| seed.parse().ok()).collect::<Option<_>>()?
        } else {
            let (first, count) = (number(0)?, number(1)?);
            (first..first.checked_add(count)?).collect()
        };
        let world = match value("--world=") {
            Some(text) => Some(text.parse().inspect_err(|error| eprintln!("{error}")).ok()?),
            None => None,
        };
        let (is_verbose, is_reach_shown) = (has("--verbose"), has("--reached"));
        let is_small = has("--small");
        Some(Options {
            seeds,
            jobs,
            is_verbose,
            is_logged,
            is_reach_shown,
            mutant,
            reduce,
            only,
            world,
            is_small,
        })
    }

    /// Returns a seed's plan: of the whole cluster, or of a focused world.
    fn plan(&self, seed: u64, world: Option<Area>) -> Plan {
        let plan = world.map_or_else(|| Plan::of_seed(seed), |area| Plan::of_world(seed, area));
        Plan { is_logged: self.is_logged, ..plan }
    }

    /// Returns the plans that a seed runs, the smallest first.
    fn plans(&self, seed: u64) -> Vec<Option<Area>> {
        if self.world.is_some() {
            return vec![self.world];
        }
        let worlds = Area::of_seed(seed).into_iter().map(Some);
        let cluster = (!self.is_small).then_some(None);
        worlds.chain(cluster).collect()
    }

    /// Ends the program if a bug is planted, because it has been caught, in one of `plans`.
    fn caught(&self, seed: u64, plans: &[Option<Area>], checker: &str) {
        if self.mutant.is_some() {
            self.reduce(seed, plans);
            println!("caught by {checker} in seed {seed}");
            std::process::exit(1);
        }
    }
}

impl Options {
    /// Reduces the first of a seed's plans that fails, and prints its story, if requested.
    fn reduce(&self, seed: u64, plans: &[Option<Area>]) {
        let Some(longest) = self.reduce else { return };
        if plans.is_empty() {
            return println!("seed {seed} is not reduced: only a part without a cluster failed");
        }
        println!("seed {seed} is being reduced, for at most {longest:?}");
        // Hundreds of the tried runs may panic.
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let until = Instant::now() + longest;
        let reduced = plans.iter().find_map(|world| {
            let left = until.saturating_duration_since(Instant::now());
            let reduced = reduce(&self.plan(seed, *world), left, self.jobs)?;
            Some((*world, reduced))
        });
        std::panic::set_hook(hook);
        let Some((world, reduced)) = reduced else {
            return println!(
                "seed {seed} cannot be reduced: its cluster does not fail again in time"
            );
        };
        self.print_reduced(seed, world, &reduced);
    }

    fn print_reduced(&self, seed: u64, world: Option<Area>, reduced: &Reduced) {
        let Reduced { kept, checker, story, runs, is_least, .. } = reduced;
        let parts =
            |parts: Option<usize>| parts.map_or("all".to_owned(), |count| count.to_string());
        println!(
            "seed {seed}, reduced in {runs} runs{} and caught by {checker}; nodes: {}, faults: {}, steps: {}",
            if *is_least { "" } else { " (time was over)" },
            parts(kept.nodes.as_ref().map(BTreeSet::len)),
            parts(kept.faults.as_ref().map(BTreeSet::len)),
            parts(kept.steps.as_ref().map(BTreeSet::len)),
        );
        for line in story {
            println!("{line}");
        }
        let mutant =
            self.mutant.as_ref().map(|name| format!(" --mutant={name}")).unwrap_or_default();
        let world = world.map(|area| format!(" --world={area}")).unwrap_or_default();
        println!("again: tsumugi-simulation {seed} 1 --log{mutant}{world} --only={kept}");
    }

    /// Runs the requested parts of a seed's plan.
    fn run_only(&self, kept: &Kept) -> ExitCode {
        let [seed] = self.seeds[..] else {
            eprintln!("--only needs one seed\n{USAGE}");
            return ExitCode::from(2);
        };
        let plan = self.plan(seed, self.world).keep(kept.clone());
        if self.is_verbose {
            println!("{plan:?}");
        }
        let outcome = run(&plan);
        for violation in &outcome.violations {
            println!("{violation}");
        }
        println!("trace {:016x}, {} violations", outcome.trace_hash, outcome.violations.len());
        if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// Prints the catalogue of planted bugs, a line each.
fn print_mutants() {
    for Mutant { name, rule, file, bug, test, masked } in mutants::catalogue().mutants {
        let (test, masked) = (test.unwrap_or_default(), masked.unwrap_or_default());
        println!("{name}\t{rule}\t{file}\t{bug}\t{test}\t{masked}");
    }
}

/// The progress of a run of many seeds.
struct Progress {
    begun: Instant,
    shown: Instant,
    done: u64,
    of: u64,
    failed: Vec<u64>,
    /// Failed plans, each of a seed's whole cluster or of a focused world.
    reducible: Vec<(u64, Option<Area>)>,
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
        let (hash, block_hash) = (outcome.trace_hash(), block.trace_hash);
        if options.is_reach_shown {
            let reached = outcome.reached.iter();
            let reached = reached.map(|(name, times)| format!(" {name}={times}"));
            let reached = reached.collect::<String>();
            println!("reached by {seed} (traces {hash:016x} {block_hash:016x}):{reached}");
        }
        if options.is_verbose {
            println!("seed {seed}: trace {hash:016x}, {:?}, {:?}", cluster.elapsed, cluster.counts);
            println!("seed {seed}: {:?}", Plan::of_seed(seed));
            println!("seed {seed}, block path: trace {block_hash:016x}, {:?}", block.counts);
        }
        if !cluster.violations.is_empty() {
            let heading = format!(" FAILED (trace {hash:016x}):");
            self.failed(seed, &heading, &cluster.violations);
            self.reducible.push((seed, options.world));
            options.caught(seed, &[options.world], mutants::checker(&cluster.violations[0]));
        }
        for (area, world) in &outcome.worlds {
            self.counts += world.counts;
            if options.is_verbose {
                let (hash, elapsed) = (world.trace_hash, world.elapsed);
                println!(
                    "seed {seed}, world {area}: trace {hash:016x}, {elapsed:?}, {:?}",
                    world.counts
                );
                println!("seed {seed}, world {area}: {:?}", Plan::of_world(seed, *area));
            }
            if !world.violations.is_empty() {
                let heading = format!(", world {area}, FAILED (trace {:016x}):", world.trace_hash);
                self.failed(seed, &heading, &world.violations);
                self.reducible.push((seed, Some(*area)));
                options.caught(seed, &[Some(*area)], mutants::checker(&world.violations[0]));
            }
        }
        if !block.violations.is_empty() {
            let heading = format!(", block path, FAILED (trace {block_hash:016x}):");
            self.failed(seed, &heading, &block.violations);
            options.caught(seed, &[], "block path");
        }
        for part in outcome.parts.iter().filter(|part| !part.violations.is_empty()) {
            self.failed(seed, &format!(", {}, FAILED:", part.name), &part.violations);
            options.caught(seed, &[], part.name);
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

    /// Returns the number of seeds per second.
    fn rate(&self) -> f64 {
        self.done as f64 / self.begun.elapsed().as_secs_f64().max(1e-3)
    }
}

fn seed_seconds() -> u64 {
    let given = std::env::var("SIM_SECONDS").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(SEED_SECONDS)
}

/// Searches for an order of the calls of each recorded history. An undecided history fails too.
fn check_histories(files: &[String]) -> ExitCode {
    let mut is_right = true;
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
        match text.and_then(|text| check_lines(&text)) {
            Ok(Recorded { calls, verdict: Verdict { violations, decided, undecided } }) => {
                for violation in &violations {
                    println!("{file}: {violation}");
                }
                let wrong = violations.len();
                println!(
                    "{file}: {calls} calls, {decided} searches, {wrong} violations, {undecided} not decided"
                );
                is_right &= wrong == 0 && undecided == 0;
            }
            Err(error) => {
                println!("{file}: {error}");
                is_right = false;
            }
        }
    }
    if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["mutants"] {
        print_mutants();
        return ExitCode::SUCCESS;
    }
    if arguments.first().is_some_and(|first| first == "linear") {
        return check_histories(&arguments[1..]);
    }
    let Some(options) = Options::read(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let planted = options.mutant.as_deref().map_or(Ok(()), mutants::activate);
    let noted = if options.is_reach_shown { mutants::note_reached() } else { Ok(()) };
    if let Err(error) = planted.and(noted) {
        eprintln!("{error}");
        return ExitCode::from(2);
    }
    match &options.only {
        Some(kept) => options.run_only(kept),
        None => run_all(&options),
    }
}

/// Runs all seeds and prints the results.
fn run_all(options: &Options) -> ExitCode {
    let now = Instant::now();
    let mut progress = Progress {
        begun: now,
        shown: now,
        done: 0,
        of: options.seeds.len() as u64,
        failed: Vec::new(),
        reducible: Vec::new(),
        counts: Counts::default(),
    };
    let longest = Duration::from_secs(seed_seconds());
    let is_logged = options.is_logged;
    sweep(
        &options.seeds,
        options.jobs,
        longest,
        |seed| match options.world {
            None if options.is_small => SeedOutcome::of_small_parts(seed),
            Some(_) => SeedOutcome::of_cluster(run(&options.plan(seed, options.world))),
            None => run_seed(seed, is_logged),
        },
        |seed, report| {
            match report {
                Report::Ended(outcome) => progress.ended(seed, &outcome, options),
                Report::Panicked(text) => {
                    progress.failed(seed, " PANICKED:", &[text]);
                    let plans = options.plans(seed);
                    progress.reducible.extend(plans.iter().map(|world| (seed, *world)));
                    options.caught(seed, &plans, "panic");
                }
                Report::Hangs => {
                    options.caught(seed, &options.plans(seed), "hang");
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
    let (count, failed) = (options.seeds.len() as u64, progress.failed.len() as u64);
    println!("{} of {count} seeds passed, {:.1} a second", count - failed, progress.rate());
    if failed > 0 {
        progress.failed.sort_unstable();
        let seeds: Vec<String> = progress.failed.iter().map(u64::to_string).collect();
        println!("failed seeds: {}", seeds.join(" "));
        // A focused world is reduced sooner than a whole cluster.
        let failed_plans = |seed| progress.reducible.iter().filter(move |it| it.0 == seed);
        if let Some(seed) = progress.reducible.iter().map(|it| it.0).min() {
            let mut plans: Vec<_> = failed_plans(seed).map(|it| it.1).collect();
            plans.sort_by_key(Option::is_none);
            options.reduce(seed, &plans);
        }
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
