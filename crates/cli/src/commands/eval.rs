//! `tsumugi eval`: experiments from their files to their reports.
//!
//! All results go into one directory: the database, the report in its forms, the charts. The
//! experiment file contains every setting that the command line does not, so that the file alone
//! repeats the experiment.

mod advise;
mod compare;
mod experiment;
mod ffsb;
mod history;
mod import;
mod ior;
mod mdtest;
mod paced;
mod progress;
mod rate;
mod results;
mod serve;
mod studies;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use eval::experiment::{Experiment, Mode};
use eval::messages::Language;
use eval::plan::{Plan, Planned};
use eval::report::Report;
use eval::store::Store;
use eval::units;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Name of the database in the directory of results.
const DATABASE: &str = "results.sqlite";

/// Arguments of `tsumugi eval`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tsumugi eval plan --quick experiments/nvmeof-container.toml
  tsumugi eval run --quick experiments/nvmeof-container.toml
  tsumugi eval compare nvmeof-container-quick")]
pub(crate) struct EvalArgs {
    #[command(subcommand)]
    command: EvalCommand,
}

#[derive(Debug, Subcommand)]
enum EvalCommand {
    /// Run an unchanged FFSB profile of version 5 or 6, alone or in many containers at once.
    #[command(after_help = "\
Examples:
  tsumugi eval ffsb profile
  tsumugi eval ffsb --directory /scratch --time 10 --json profile
  tsumugi eval ffsb --containers 16 --directory /scratch profile
  tsumugi eval ffsb --containers 4 --runtime podman --directory /scratch profile

Files are created in new directories below the profile's locations, or below --directory. Unlike with \
FFSB, existing files are neither changed nor removed. A profile with reuse=1 that only reads uses the \
existing files at its locations. In containers each instance has its own directory; all start together \
when the last one has its files.")]
    Ffsb(ffsb::FfsbArgs),
    /// One instance of an FFSB profile.
    #[command(hide = true)]
    FfsbInstance(ffsb::InstanceArgs),
    /// Run an unchanged IOR script, or IOR's options, of version 2.10.3 or 4.
    #[command(after_help = "\
Examples:
  tsumugi eval ior -n 4 -f script.ior -O testFile=/scratch/ior
  tsumugi eval ior -n 4 --mpi openmpi-romio -f script.ior
  tsumugi eval ior -n 2 -- -a POSIX -b 64m -t 1m -F -e -o /scratch/ior
  mpirun -n 64 tsumugi eval ior -f script.ior

Existing files are neither overwritten nor removed, unless the script contains useExistingTestFile=1. \
Ranks are processes of this machine, or of an MPI, whose compiler (mpicc) must be installed.")]
    Ior(ior::IorArgs),
    /// One rank of an IOR test.
    #[command(hide = true)]
    IorRank,
    /// Measure how fast many processes create, stat, read and remove files.
    #[command(after_help = "\
Examples:
  tsumugi eval mdtest -n 4 -i 10000 /scratch
  tsumugi eval mdtest -n 4 -i 1000 -u -N -w 4k --json /scratch")]
    Mdtest(mdtest::MdtestArgs),
    /// One process of mdtest.
    #[command(hide = true)]
    MdtestWorker(mdtest::WorkerArgs),
    /// Serve a device of known speed.
    #[command(hide = true)]
    Paced(paced::PacedArgs),
    /// Load files or devices at a fixed rate and report latency and CPU time per request.
    #[command(after_help = "\
Examples:
  tsumugi eval rate --rate 20000 --bs 8KiB --batch 4 --runtime 10 /scratch/file
  tsumugi eval rate --rate 20000 --units 192 --numjobs 2 --queue elevator --json /scratch/file
  tsumugi eval rate --rate 20000 --batch 4 null       # the cost of the generator itself

Requests are due at fixed times, independent of earlier ones; latency counts from the due time. Writing \
needs --overwrite for files and --destroy SERIAL for block devices.")]
    Rate(rate::RateArgs),
    /// Run an experiment and write its report.
    #[command(after_help = "\
Examples:
  tsumugi eval run --quick experiments/nvmeof-container.toml
  tsumugi eval run --resume --out results experiments/nvmeof-container.toml

Ctrl-C stops it and keeps the measurements; --resume continues.

Exit codes:
  0    done
  1    failed
  2    wrong usage
  130  interrupted")]
    Run(RunArgs),
    /// Show what an experiment would run, how long it takes and what it writes.
    #[command(after_help = "\
Examples:
  tsumugi eval plan --quick experiments/nvmeof-container.toml
  tsumugi eval plan --show experiments/nvmeof-container.toml    # with fio's job files")]
    Plan(PlanArgs),
    /// Run several experiments one after the other and write one report of all.
    #[command(after_help = "\
Examples:
  tsumugi eval studies --quick --time 30m --out studies-quick experiments/nvme*.toml
  tsumugi eval studies --resume --out studies-quick --quick --time 30m experiments/nvme*.toml

Each experiment has its own directory below --out, with a page of all in index.html. If one fails, the \
next one starts. --time is divided: each may use an equal part of the time that is left, so name short \
experiments first. Ctrl-C stops it and keeps the measurements; --resume continues.

Exit codes:
  0    done
  1    one or more experiments failed
  2    wrong usage
  130  interrupted")]
    Studies(studies::StudiesArgs),
    /// Write the report of one or several results again.
    #[command(after_help = "\
Examples:
  tsumugi eval report results
  tsumugi eval report --language ja studies-quick      # all pages of a directory of results
  tsumugi eval report --out all results-a results-b")]
    Report(ReportArgs),
    /// Show stored and running experiments in a browser.
    #[command(after_help = "\
Examples:
  tsumugi eval serve                          # all results below this directory
  tsumugi eval serve --language ja results
  ssh -L 8080:127.0.0.1:8080 NODE             # from another machine, then http://127.0.0.1:8080/

It listens on loopback unless --listen names another address, changes nothing, and ends with Ctrl-C. \
At another address it answers only requests that have the token of the address that it prints. \
Viewing a running experiment costs CPU time on the machine that it measures.")]
    Serve(serve::ServeArgs),
    /// Print the verdicts of a result, or the changes between two.
    #[command(after_help = "\
Examples:
  tsumugi eval compare results
  tsumugi eval compare results-before results-after

Two results are not paired, so a change contains everything that differed between the two times. If \
machine, kernel, loads or limits differ, the command prints ratios with the reasons, and no verdicts.")]
    Compare(compare::CompareArgs),
    /// Import results of fio, IOR, FFSB or elbencho as runs of an experiment.
    #[command(after_help = "\
Examples:
  tsumugi eval import run1.json run2.json run3.json --into before
  tsumugi eval import --format ior --name lustre job-*.out
  tsumugi eval compare before results

Formats are fio's JSON, IOR's text (2.10.3 to 4) and JSON (4), FFSB's output, and elbencho's CSV. \
Importing the same point again adds a round. Imported runs are not paired, and only the content of their \
files is known.")]
    Import(import::ImportArgs),
    /// Show how an experiment's results develop, and whether they got worse.
    #[command(after_help = "\
Examples:
  tsumugi eval history results/                          # a directory of directories of results
  tsumugi eval history --fail-on-regression experiments/self-test.toml nightly/

Results of the same plan on the same machine are one series. The command judges the latest result \
if there are at least three earlier ones.

Exit codes:
  0  not worse, or not judged
  1  failed
  2  wrong usage
  3  worse (with --fail-on-regression)")]
    History(history::HistoryArgs),
    /// Show advice from stored results, for your own access pattern if you give one.
    #[command(after_help = "\
Examples:
  tsumugi eval advise --pattern 'write shared 1MiB x 64 ranks' results/
  tsumugi eval advise --pattern 'random read 4KiB x 16 depth 4 remote container'
  tsumugi eval advise --thresholds

A pattern contains any of: read, write or mixed, with random or sequential before it; shared or own \
files; a size; x N or N ranks (jobs, processes, threads); depth N; container or native; remote or local; \
collective or independent. Cells within a factor of two of size, jobs and depth count; if there are \
none, the output names what to run.")]
    Advise(advise::AdviseArgs),
    /// Wait for an experiment's end, and clean up if it was killed.
    #[command(hide = true)]
    Reap(ReapArgs),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Experiment file (TOML)
    experiment: PathBuf,
    /// Run few cells for a short time, for a first look
    #[arg(long)]
    quick: bool,
    /// Directory for results [default: the experiment's name, with -quick for the quick form]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Directory below which the files for the load are created
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    data: PathBuf,
    /// Continue with existing results
    #[arg(long)]
    resume: bool,
}

#[derive(Debug, Args)]
struct PlanArgs {
    /// Experiment file (TOML)
    experiment: PathBuf,
    /// Use the quick form
    #[arg(long)]
    quick: bool,
    /// Also show the job file of every cell
    #[arg(long)]
    show: bool,
}

#[derive(Debug, Args)]
struct ReapArgs {
    /// Directory of the experiment
    directory: PathBuf,
}

#[derive(Debug, Args)]
struct ReportArgs {
    /// Directories of results, or a directory of such directories
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Directory for one report of all [default: the given directory of directories]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Language of page and charts [default: the experiment's]
    #[arg(long, value_parser = language, value_name = "en|ja")]
    language: Option<Language>,
}

/// Parses the code of a language.
fn language(code: &str) -> Result<Language, String> {
    let codes: Vec<&str> = Language::ALL.iter().map(|(code, _)| *code).collect();
    Language::of_code(code).ok_or_else(|| format!("there are {}", codes.join(" and ")))
}

/// Runs a command.
pub(crate) fn run(args: &EvalArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        EvalCommand::Ffsb(args) => ffsb::run(args),
        EvalCommand::FfsbInstance(args) => ffsb::run_instance(args),
        EvalCommand::Ior(args) => ior::run(args),
        EvalCommand::IorRank => ior::rank(),
        EvalCommand::Mdtest(args) => mdtest::run(args),
        EvalCommand::MdtestWorker(args) => mdtest::run_worker(args),
        EvalCommand::Paced(args) => paced::run(args),
        EvalCommand::Rate(args) => rate::run(args),
        EvalCommand::Run(args) => experiment::run(args),
        EvalCommand::Studies(args) => studies::run(args),
        EvalCommand::Plan(args) => show_plan(args),
        EvalCommand::Report(args) => report(args),
        EvalCommand::Serve(args) => serve::run(args),
        EvalCommand::Compare(args) => compare::run(args),
        EvalCommand::Import(args) => import::run(args),
        EvalCommand::History(args) => history::run(args),
        EvalCommand::Advise(args) => advise::run(args),
        EvalCommand::Reap(args) => {
            if eval::own::wait_and_reclaim(&args.directory)? {
                eprintln!("the experiment was killed; cleaned up {}", args.directory.display());
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Writes one report, or the reports of several results and one of all.
fn report(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let page = match (args.results.as_slice(), &args.out) {
        ([one], None) if database(one).is_file() => {
            let store = Store::open(&database(one))?;
            let directory = if one.is_dir() { one } else { one.parent().unwrap_or(one) };
            Report::in_language(&store, args.language)?.write(directory)?
        }
        ([one], None) => studies::report(&studies::below(one)?, one, args.language)?,
        (_, None) => bail!("several results need --out DIR for their common report"),
        (several, Some(out)) => {
            let mut places = Vec::new();
            for place in several {
                if place.join(DATABASE).is_file() {
                    places.push(place.clone());
                } else {
                    places.extend(studies::below(place)?);
                }
            }
            studies::report(&places, out, args.language)?
        }
    };
    println!("{}", page.display());
    Ok(ExitCode::SUCCESS)
}

fn open(results: &Path) -> anyhow::Result<Report> {
    Ok(Report::of(&Store::open(&database(results))?)?)
}

/// Returns the database of a directory of results, or the database itself.
fn database(results: &Path) -> PathBuf {
    if results.is_dir() { results.join(DATABASE) } else { results.into() }
}

fn read(path: &Path, is_quick: bool) -> anyhow::Result<Plan> {
    let mode = if is_quick { Mode::Quick } else { Mode::Full };
    let experiment = Experiment::read(path, mode).with_context(|| path.display().to_string())?;
    Ok(Plan::new(experiment))
}

fn describe(plan: &Plan) {
    let estimate = plan.estimate();
    println!("{}", plan.experiment.title);
    println!(
        "{} cells × {} conditions; {} to {} rounds after {} to warm up: {} to {} runs",
        plan.cells.len(),
        plan.conditions.len(),
        plan.experiment.timing.looks.rounds_min(),
        plan.experiment.timing.looks.rounds_max(),
        plan.warm_up_rounds(),
        estimate.runs_min,
        estimate.runs_max
    );
    println!(
        "about {} to {}; writes {} beforehand and at most {} in runs",
        units::seconds(estimate.seconds_min),
        units::seconds(estimate.seconds_max),
        units::bytes(estimate.prepared_bytes),
        units::bytes(estimate.written_bytes_max),
    );
}

fn show_plan(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let plan = read(&args.experiment, args.quick)?;
    describe(&plan);
    println!("\nconditions:");
    for condition in &plan.conditions {
        println!("  {} ({})", condition.label, condition.id);
    }
    println!("\ncells, in the order of the first round:");
    let steps = plan.round(0);
    for pair in steps.chunk_by(|a, b| a.cell == b.cell) {
        let cell = &plan.cells[pair[0].cell];
        let workload = &plan.workload(pair[0].cell).name;
        let order: Vec<_> =
            pair.iter().map(|step| plan.conditions[step.condition].label.as_str()).collect();
        println!("  {workload} {}: {}", cell.label(), order.join(" → "));
        let preview = plan.experiment.engine.preview;
        let work = Planned::new(&plan, &pair[0]).work(None);
        if let Some(text) = args.show.then(|| preview(&work)).flatten() {
            println!("{text}");
        }
    }
    Ok(ExitCode::SUCCESS)
}
