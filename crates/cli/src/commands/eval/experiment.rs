//! One experiment, from its plan to its report.

use super::progress::Progress;
use super::{DATABASE, RunArgs, describe, read};
use anyhow::{Context, bail};
use eval::Stop;
use eval::advice::further_judgements;
use eval::condition::{Stage, StageOptions};
use eval::ending::Ending;
use eval::engine::Setup;
use eval::guard::Environment;
use eval::live::Claim;
use eval::plan::Plan;
use eval::report::Report;
use eval::run::Runner;
use eval::store::Store;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

/// Exit code for SIGINT, as in shells.
pub(super) const INTERRUPTED: u8 = 130;
/// Up to this number of jobs the usual limit of open files is enough.
const JOBS_EASY: u32 = 200;

/// The settings of one experiment besides its plan.
pub(super) struct Course<'a> {
    /// Directory below which the load's files are created.
    pub(super) data: &'a Path,
    /// Latest time of its end.
    pub(super) deadline: Option<Instant>,
    /// Set to end the experiment now.
    pub(super) stop: &'a Stop,
}

/// Runs an experiment with the arguments of the command line.
pub(super) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let plan = read(&args.experiment, args.quick)?;
    check_runs(&plan, &args.experiment)?;
    describe(&plan);
    let ending = if args.quick { "-quick" } else { "" };
    let name = format!("{}{ending}", plan.experiment.name);
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(name));
    make_directory(&out)?;
    let _claim = Claim::on(&out.join(DATABASE))?;
    let mut store = open_store(&out, &plan, args.resume)?;
    let stop = stop_on_signals()?;
    let course = Course { data: &args.data, deadline: None, stop: &stop };
    let ending = conduct(&plan, &mut store, &course, Progress::new())?;
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

/// Refuses plans that cannot be run.
pub(super) fn check_runs(plan: &Plan, file: &Path) -> anyhow::Result<()> {
    if plan.experiment.engine.is_imported() {
        bail!("{}: imported results are not run again", file.display());
    }
    Ok(())
}

pub(super) fn make_directory(path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))
}

/// Returns a flag that SIGINT and SIGTERM set.
pub(super) fn stop_on_signals() -> anyhow::Result<Stop> {
    let stop = Stop::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop.0))
            .context("cannot watch for signals")?;
    }
    Ok(stop)
}

/// Opens the database of a plan in a directory: an existing one if it may be continued, or a new
/// one.
pub(super) fn open_store(out: &Path, plan: &Plan, resume: bool) -> anyhow::Result<Store> {
    let path = out.join(DATABASE);
    if resume && path.exists() {
        let store = Store::open(&path)?;
        store.check_plan(plan).with_context(|| out.display().to_string())?;
        return Ok(store);
    }
    if path.exists() {
        bail!(
            "{} already has results: continue with --resume, or give another --out",
            out.display()
        );
    }
    Ok(Store::create(&path, plan)?)
}

/// Runs an experiment until it ends. Always leaves its conditions, and keeps the reason of a
/// failure.
pub(super) fn conduct(
    plan: &Plan,
    store: &mut Store,
    course: &Course<'_>,
    progress: Progress,
) -> anyhow::Result<Ending> {
    if store.get("started")?.is_none() {
        let environment = Environment::of_this_machine(course.data);
        store.set("environment", &serde_json::to_string(&environment)?)?;
        let now = humantime::format_rfc3339_seconds(std::time::SystemTime::now());
        store.set("started", &now.to_string())?;
    }
    // The ending of an earlier part does not count any more.
    store.unset("failure")?;
    store.unset("ending")?;
    let result = enter_and_measure(plan, store, course, progress);
    let is_interrupted = |error: &anyhow::Error| error.chain().any(eval::is_interruption);
    match result {
        Err(error) if is_interrupted(&error) => {
            store.set("ending", Ending::Interrupted.label())?;
            Ok(Ending::Interrupted)
        }
        Err(error) => {
            store.set("failure", &crate::print::words(&error))?;
            Err(error)
        }
        ended => ended,
    }
}

fn enter_and_measure(
    plan: &Plan,
    store: &mut Store,
    course: &Course<'_>,
    mut progress: Progress,
) -> anyhow::Result<Ending> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    if plan.cells.iter().any(|cell| cell.jobs > JOBS_EASY) {
        // Each container takes two pipes.
        crate::descriptors::raise_limit();
    }
    let options = StageOptions { data: course.data.into(), program };
    let stage = Stage::enter(plan, &options, course.stop)?;
    let result = measure(plan, store, &stage, course, &mut progress);
    // Leave the conditions first, also after a failure. The files of many thousands of containers
    // take minutes.
    progress.note("removing what the runs made");
    stage.leave()?;
    result
}

fn measure(
    plan: &Plan,
    store: &mut Store,
    stage: &Stage,
    course: &Course<'_>,
    progress: &mut Progress,
) -> anyhow::Result<Ending> {
    if !stage.notes.is_empty() {
        store.set("conditions", &stage.notes.join("; "))?;
    }
    for line in &stage.reclaimed {
        progress.note(line);
    }
    for condition in &plan.conditions {
        if plan.experiment.engine.is_synthetic() {
            break;
        }
        if let Err(reason) = stage.place(condition) {
            progress.note(&format!("not available: {}: {reason}", condition.label));
        }
    }
    let program = std::env::current_exe()?;
    let setup = stage.scratch().map(|scratch| Setup { program, scratch });
    let mut engine = plan.experiment.engine.start(setup)?;
    let stop = course.stop.clone();
    let mut runner = Runner::new(plan, store, engine.as_mut(), stage, further_judgements, stop)?;
    runner.end_by(course.deadline);
    let ending = runner.run(&mut |event| progress.show(&event));
    progress.end();
    Ok(ending?)
}
