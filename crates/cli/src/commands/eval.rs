//! `tsumugi eval`: experiments from their files to their reports.
//!
//! Everything that is measured goes into one directory: the database, the report in its forms, the
//! charts. What is not said on the command line is said in the experiment file, so that the file
//! alone repeats the experiment.

mod advise;
mod compare;
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

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use eval::condition::{Stage, StageOptions};
use eval::engine::copyup::CopyUpEngine;
use eval::engine::ffsb::FfsbEngine;
use eval::engine::fio::{FioEngine, job_file};
use eval::engine::ior::IorEngine;
use eval::engine::metadata::MetadataEngine;
use eval::engine::nvme::NvmeEngine;
use eval::engine::program::ProgramEngine;
use eval::engine::rate::RateEngine;
use eval::engine::synthetic::SyntheticEngine;
use eval::engine::{Engine, Stop, Work};
use eval::experiment::{EngineKind, Experiment, Mode};
use eval::guard::Environment;
use eval::live::Claim;
use eval::messages::Language;
use eval::plan::Plan;
use eval::report::Report;
use eval::run::{Ending, Runner};
use eval::store::Store;
use eval::units;
use progress::Progress;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Name of the database in the directory of results.
const DATABASE: &str = "results.sqlite";
/// As shells report it for SIGINT.
const INTERRUPTED: u8 = 130;

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
    /// Write the report of results again.
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
    /// Directory of results
    results: PathBuf,
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
        EvalCommand::Run(args) => experiment(args),
        EvalCommand::Plan(args) => show_plan(args),
        EvalCommand::Report(args) => {
            let store = Store::open(&database(&args.results))?;
            let page = Report::in_language(&store, args.language)?.write(&args.results)?;
            println!("{}", page.display());
            Ok(ExitCode::SUCCESS)
        }
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

fn experiment(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let plan = read(&args.experiment, args.quick)?;
    if plan.experiment.engine == EngineKind::Imported {
        bail!("{}: imported results are not run again", args.experiment.display());
    }
    describe(&plan);
    let ending = if args.quick { "-quick" } else { "" };
    let name = format!("{}{ending}", plan.experiment.name);
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(name));
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let _claim = Claim::on(&out.join(DATABASE))?;
    let mut store = open_store(&out, &plan, args)?;
    let stop = Stop::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop.0))
            .context("cannot watch for signals")?;
    }
    let program = std::env::current_exe().context("cannot tell where this program is")?;
    let options = StageOptions { data: args.data.clone(), program };
    let stage = Stage::enter(&plan, &options, &stop)?;
    let result = measure(&plan, &mut store, &stage, &stop);
    // Whatever happened, conditions are left first.
    stage.leave()?;
    let ending = result?;
    let report = Report::of(&store)?;
    let page = report.write(&out)?;
    println!(
        "{} of {} comparisons are decided after {} rounds; {}",
        report.analysis.decided_count(),
        report.analysis.rows_count(),
        report.analysis.rounds,
        ending.label()
    );
    for card in &report.cards {
        println!("{} ({}): {}", card.id, card.confidence.label(), card.claim);
    }
    println!("report: {}", page.display());
    let interrupted = ending == Ending::Interrupted;
    Ok(if interrupted { ExitCode::from(INTERRUPTED) } else { ExitCode::SUCCESS })
}

fn open_store(out: &Path, plan: &Plan, args: &RunArgs) -> anyhow::Result<Store> {
    let path = out.join(DATABASE);
    if args.resume && path.exists() {
        let store = Store::open(&path)?;
        store.check_plan(plan)?;
        return Ok(store);
    }
    if path.exists() {
        bail!("there are results in {}: say --resume or another --out", out.display());
    }
    let store = Store::create(&path, plan)?;
    let environment = Environment::of_this_machine(&args.data);
    store.set("environment", &serde_json::to_string(&environment)?)?;
    let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now());
    store.set("started", &now.to_string())?;
    Ok(store)
}

fn measure(plan: &Plan, store: &mut Store, stage: &Stage, stop: &Stop) -> anyhow::Result<Ending> {
    if !stage.notes.is_empty() {
        store.set("conditions", &stage.notes.join("; "))?;
    }
    let mut progress = Progress::new();
    for line in &stage.reclaimed {
        progress.note(line);
    }
    for condition in &plan.conditions {
        if plan.experiment.engine == EngineKind::Synthetic {
            break;
        }
        if let Err(reason) = stage.place(condition) {
            progress.note(&format!("not available: {}: {reason}", condition.label));
        }
    }
    let mut engine: Box<dyn Engine> = match (plan.experiment.engine, stage.scratch()) {
        (EngineKind::Fio, Some(scratch)) => Box::new(FioEngine::new(scratch)?),
        (EngineKind::Nvme, Some(_)) => Box::new(NvmeEngine::new(std::env::current_exe()?)),
        (EngineKind::Rate, Some(_)) => Box::new(RateEngine::new(std::env::current_exe()?)),
        (EngineKind::Program, Some(scratch)) => Box::new(ProgramEngine::new(scratch)),
        (EngineKind::Metadata, Some(scratch)) => {
            Box::new(MetadataEngine::new(std::env::current_exe()?, scratch))
        }
        (EngineKind::Ffsb, Some(scratch)) => {
            Box::new(FfsbEngine::new(std::env::current_exe()?, scratch))
        }
        (EngineKind::Ior, Some(scratch)) => {
            Box::new(IorEngine::new(std::env::current_exe()?, scratch))
        }
        (EngineKind::CopyUp, Some(scratch)) => Box::new(CopyUpEngine::new(scratch)),
        (EngineKind::Imported, _) => bail!("imported results are not run again"),
        (EngineKind::Synthetic, _) => Box::new(SyntheticEngine),
        (_, None) => bail!("the load needs a directory to work in"),
    };
    let mut runner = Runner::new(plan, store, engine.as_mut(), stage, stop.clone())?;
    let ending = runner.run(&mut |event| progress.show(&event));
    progress.end();
    Ok(ending?)
}
