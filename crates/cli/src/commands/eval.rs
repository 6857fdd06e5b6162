//! `tsumugi eval`: experiments from their files to their reports.
//!
//! Everything that is measured goes into one directory: the database, the report in its forms, the
//! charts. What is not said on the command line is said in the experiment file, so that the file
//! alone repeats the experiment.

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
use eval::engine::Work;
use eval::engine::fio::job_file;
use eval::experiment::{EngineKind, Experiment, Mode};
use eval::messages::Language;
use eval::plan::Plan;
use eval::report::Report;
use eval::store::Store;
use eval::units;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Name of the database in the directory of results.
const DATABASE: &str = "results.sqlite";

/// Arguments of `tsumugi eval`.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    #[command(subcommand)]
    command: EvalCommand,
}

#[derive(Debug, Subcommand)]
enum EvalCommand {
    /// Run an FFSB profile, of version 5 or 6, as it is: alone, or in many containers at once.
    #[command(after_help = "\
Examples:
  tsumugi eval ffsb profile
  tsumugi eval ffsb --directory /scratch --time 10 --json profile
  tsumugi eval ffsb --containers 16 --directory /scratch profile
  tsumugi eval ffsb --containers 4 --runtime podman --directory /scratch profile

Files are made in new directories below the profile's locations, or below --directory; nothing that is there
is changed or removed, as FFSB itself would. A profile with reuse=1 that only reads uses the files that are
at its locations. In containers each instance has a directory of its own; all begin together when the
last one has its files.")]
    Ffsb(ffsb::FfsbArgs),
    /// Be an instance of an FFSB profile.
    #[command(hide = true)]
    FfsbInstance(ffsb::InstanceArgs),
    /// Run an IOR script, or IOR's options, of version 2.10.3 or 4, as they are.
    #[command(after_help = "\
Examples:
  tsumugi eval ior -n 4 -f script.ior -O testFile=/scratch/ior
  tsumugi eval ior -n 4 --mpi openmpi-romio -f script.ior
  tsumugi eval ior -n 2 -- -a POSIX -b 64m -t 1m -F -e -o /scratch/ior
  mpirun -n 64 tsumugi eval ior -f script.ior

Files that are there already are neither overwritten nor removed, unless the script says
useExistingTestFile=1. Ranks are processes of this machine, or those of an MPI, for which its
compiler (mpicc) has to be there.")]
    Ior(ior::IorArgs),
    /// Be a rank of an IOR test.
    #[command(hide = true)]
    IorRank,
    /// Measure how fast many processes make, look at, read and remove files.
    #[command(after_help = "\
Examples:
  tsumugi eval mdtest -n 4 -i 10000 /scratch
  tsumugi eval mdtest -n 4 -i 1000 -u -N -w 4k --json /scratch")]
    Mdtest(mdtest::MdtestArgs),
    /// Be one process of mdtest.
    #[command(hide = true)]
    MdtestWorker(mdtest::WorkerArgs),
    /// Serve a device of known speed.
    #[command(hide = true)]
    Paced(paced::PacedArgs),
    /// Load files or devices at a fixed rate, and tell latency and CPU time per request.
    #[command(after_help = "\
Examples:
  tsumugi eval rate --rate 20000 --bs 8KiB --batch 4 --runtime 10 /scratch/file
  tsumugi eval rate --rate 20000 --units 192 --numjobs 2 --queue elevator --json /scratch/file
  tsumugi eval rate --rate 20000 --batch 4 null       # what the generator itself takes

Requests are due at fixed times, whatever became of earlier ones; latency counts from then. Writing needs
--overwrite for files, and --destroy SERIAL for block devices.")]
    Rate(rate::RateArgs),
    /// Run an experiment, and write its report.
    #[command(after_help = "\
Examples:
  tsumugi eval run --quick experiments/nvmeof-container.toml
  tsumugi eval run --resume --out results experiments/nvmeof-container.toml

Ctrl-C ends it; what was measured is kept, and --resume goes on. Exit codes: 0 done, 1 failed,
2 wrong usage, 130 interrupted.")]
    Run(RunArgs),
    /// Show what an experiment would run, how long it takes and what it writes.
    Plan(PlanArgs),
    /// Run several experiments, one after the other, and write one report of all.
    #[command(after_help = "\
Examples:
  tsumugi eval studies --quick --time 30m --out studies-quick experiments/nvme*.toml
  tsumugi eval studies --resume --out studies-quick --quick --time 30m experiments/nvme*.toml

Each has a directory of its own below --out, and the page of all is index.html there. One that fails does
not keep the others from their turn. --time is divided: each may take an equal part of what is left, so name
short ones first. Ctrl-C ends it; what was measured is kept, and --resume goes on. Exit codes: 0 done,
1 one or more failed, 2 wrong usage, 130 interrupted.")]
    Studies(studies::StudiesArgs),
    /// Write the report of results again, or one of several results.
    #[command(after_help = "\
Examples:
  tsumugi eval report results
  tsumugi eval report --language ja studies-quick      # of a directory of directories of results: all
  tsumugi eval report --out all results-a results-b")]
    Report(ReportArgs),
    /// Show experiments in a browser: stored ones, and those that run.
    #[command(after_help = "\
Examples:
  tsumugi eval serve                          # all results below this directory
  tsumugi eval serve --language ja results
  ssh -L 8080:127.0.0.1:8080 NODE             # from elsewhere, then http://127.0.0.1:8080/

It listens on this machine alone unless --listen says otherwise, changes nothing, and ends with Ctrl-C.
To look at a run costs CPU time on the machine that it measures.")]
    Serve(serve::ServeArgs),
    /// Print the verdicts of results, or what changed between two.
    #[command(after_help = "\
Examples:
  tsumugi eval compare results
  tsumugi eval compare results-before results-after

Two results are not paired: what differs between the two times is in the change. Where machine, kernel,
loads or limits differ, ratios are shown with the reasons, and no verdicts.")]
    Compare(compare::CompareArgs),
    /// Take results of fio, IOR, FFSB and elbencho over, as runs of an experiment.
    #[command(after_help = "\
Examples:
  tsumugi eval import run1.json run2.json run3.json --into before
  tsumugi eval import --format ior --name lustre job-*.out
  tsumugi eval compare before results

Formats are fio's JSON, IOR's text (2.10.3 to 4) and JSON (4), what FFSB prints, and elbencho's CSV. The
same point measured again is another round. Nothing pairs imported runs, and nothing is known of them but
what their files say.")]
    Import(import::ImportArgs),
    /// Show what became of an experiment from result to result, and whether it got worse.
    #[command(after_help = "\
Examples:
  tsumugi eval history results/                          # a directory of directories of results
  tsumugi eval history --fail-on-regression experiments/self-test.toml nightly/

Results of the same plan on the same machine are one series. Its latest is judged once there are three
before it. Exit codes: 0 nothing is worse or it is not judged, 1 failed, 2 wrong usage, 3 worse (with
--fail-on-regression).")]
    History(history::HistoryArgs),
    /// Say what stored results advise, for one's own pattern if it is told.
    #[command(after_help = "\
Examples:
  tsumugi eval advise --pattern 'write shared 1MiB x 64 ranks' results/
  tsumugi eval advise --pattern 'random read 4KiB x 16 depth 4 remote container'
  tsumugi eval advise --thresholds

A pattern has any of: read, write or mixed, with random or sequential before it; shared or own files; a
size; x N or N ranks (jobs, processes, threads); depth N; container or native; remote or local; collective
or independent. Cells within an octave of size, jobs and depth count; else it is told what to run.")]
    Advise(advise::AdviseArgs),
    /// Wait for an experiment's end, and clean up if it was killed.
    #[command(hide = true)]
    Reap(ReapArgs),
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Experiment file (TOML)
    experiment: PathBuf,
    /// Few cells and short runs, for a first look
    #[arg(long)]
    quick: bool,
    /// Directory for results [default: the experiment's name, with -quick if it is]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Directory below which files are made to work on
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    data: PathBuf,
    /// Go on with results that are there
    #[arg(long)]
    resume: bool,
}

#[derive(Debug, Args)]
struct PlanArgs {
    /// Experiment file (TOML)
    experiment: PathBuf,
    /// The quick form
    #[arg(long)]
    quick: bool,
    /// Show the job file of every cell too
    #[arg(long)]
    show: bool,
}

#[derive(Debug, Args)]
struct ReapArgs {
    /// Its directory
    directory: PathBuf,
}

#[derive(Debug, Args)]
struct ReportArgs {
    /// Directories of results, or a directory of such directories
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Directory for one report of all [default for a directory of directories: that]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Language of page and charts [default: the experiment's]
    #[arg(long, value_parser = language, value_name = "en|ja")]
    language: Option<Language>,
}

/// A language by its code.
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
        (_, None) => bail!("of several results: say --out, where the report of all is to be"),
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

/// The database of a directory of results, or the database itself.
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
        if args.show && plan.experiment.engine == EngineKind::Fio {
            let work = Work::new(&plan, &pair[0], None);
            println!("{}", job_file(&work, Path::new("FILE"), Path::new(".")).text);
        }
    }
    Ok(ExitCode::SUCCESS)
}
