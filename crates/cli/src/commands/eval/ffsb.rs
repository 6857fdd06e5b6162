//! `tsumugi eval ffsb`: runs FFSB's profiles as they are, alone or in many containers.
//!
//! Storage and containers are made as experiments make them: a condition of one directory and one runtime
//! stands while the profile runs, so whatever ends this program, its directory, mounts and processes are
//! cleaned up.

use crate::commands::union::bench::Condition;
use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use eval::Stop;
use eval::condition::{Stage, StageOptions};
use eval::crowd::{Progress, Seat};
use eval::experiment::{Experiment, Mode};
use eval::ffsb::account::Measured;
use eval::ffsb::profile::FileSystem;
use eval::ffsb::{
    Compat, Job, Profile, ProfileLoad, Request, Results, Summary, conduct, root_name, text,
};
use eval::own::{OwnDirectory, Owner, reclaim_below};
use eval::plan::Plan;
use eval::units::significant;
use serde::Serialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// As shells report it for SIGINT.
const INTERRUPTED: u8 = 130;
/// The same for SIGTERM.
const TERMINATED: u8 = 143;

/// Whose meaning a profile gets.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Version {
    /// FFSB 5 (5.2.1)
    #[value(name = "5")]
    Old,
    /// FFSB 6 (6.0-RC2)
    #[value(name = "6")]
    New,
}

impl Version {
    fn compat(self) -> Compat {
        match self {
            Self::Old => Compat::V5,
            Self::New => Compat::V6,
        }
    }
}

/// What instances run in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RuntimeName {
    /// Plain processes
    Native,
    /// ch-run
    Charliecloud,
    /// podman
    Podman,
    /// docker
    Docker,
    /// apptainer or singularity
    Apptainer,
    /// unshare and chroot
    Namespaces,
}

#[derive(Debug, Args)]
pub(super) struct FfsbArgs {
    /// Profile, of FFSB 5 or 6
    profile: PathBuf,
    /// Version that decides where the two differ [default: 5 if the profile has keys that only it
    /// accepts]
    #[arg(long, value_enum, value_name = "VERSION")]
    compat: Option<Version>,
    /// Run N instances at once, each in its own container [default: one, without a container]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    containers: Option<u32>,
    /// Runtime of the instances [default: with --containers the first container runtime that works]
    #[arg(long, value_enum)]
    runtime: Option<RuntimeName>,
    /// Create all files in a new directory below this one, not at the profile's locations
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Seconds of load [default: the profile's]
    #[arg(long, value_name = "SECONDS")]
    time: Option<f64>,
    /// Seed of sizes, choices and offsets
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Run the profile's callout, a shell command, after the files are created
    #[arg(long)]
    allow_callout: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct InstanceArgs {
    /// Profile
    profile: PathBuf,
    #[arg(long, value_enum)]
    compat: Version,
    /// The start barrier's directory
    #[arg(long)]
    meet: PathBuf,
    /// Which instance this is
    #[arg(long)]
    number: u32,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    time: Option<f64>,
    #[arg(long)]
    allow_callout: bool,
    /// Directory for each of the profile's file systems
    #[arg(long = "root")]
    roots: Vec<PathBuf>,
    /// The directory with `mount`, `upper` and `work` that the files are found in
    #[arg(long, requires = "condition")]
    layers: Option<PathBuf>,
    /// What is mounted there
    #[arg(long)]
    condition: Option<Condition>,
}

/// Is an instance: started by this program alone.
pub(super) fn run_instance(args: &InstanceArgs) -> anyhow::Result<ExitCode> {
    let load = read(&args.profile, Some(args.compat.compat()))?;
    let job = Job {
        profile: load.profile,
        roots: args.roots.clone(),
        seed: args.seed,
        seconds: args.time,
        allows_callout: args.allow_callout,
        finds_files: args.layers.is_some(),
    };
    // In containers this is the first process, which no signal ends that it has no handler for.
    let at_once = Arc::new(AtomicBool::new(true));
    signal_hook::flag::register_conditional_shutdown(SIGTERM, TERMINATED.into(), at_once)
        .context("cannot watch for signals")?;
    let seat = Seat::new(&args.meet, args.number);
    let flush = || args.flush().map_err(|error| std::io::Error::other(crate::print::words(&error)));
    let measured = job.prepare()?.run(|| seat.take().map(drop), flush)?;
    println!("{}", serde_json::to_string(&measured)?);
    Ok(ExitCode::SUCCESS)
}

impl InstanceArgs {
    /// Makes durable what was written through a union, which is not told of syncfs(2): by its own sync, and
    /// then the file system of its upper directory, for every kind of union alike.
    fn flush(&self) -> anyhow::Result<()> {
        let (Some(at), Some(condition)) = (&self.layers, self.condition) else { return Ok(()) };
        condition.finish(at)?;
        Ok(eval::file_set::sync(&at.join("upper"))?)
    }
}

/// Runs a profile.
pub(super) fn run(args: &FfsbArgs) -> anyhow::Result<ExitCode> {
    let stop = Stop::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop.0))
            .context("cannot watch for signals")?;
    }
    let load = read(&args.profile, args.compat.map(Version::compat))?;
    if let Some(seconds) = args.time.filter(|it| !(0.0..=1e6).contains(it)) {
        bail!("--time {seconds}: lies between 0 and 1000000");
    }
    if args.time.unwrap_or(f64::from(load.profile.time_s)) <= 0.0 {
        bail!(
            "the profile has no time and so only makes files, which are removed in the end: give --time"
        );
    }
    for note in &load.profile.notes {
        eprintln!("note: {note}");
    }
    if let (Some(command), false) = (&load.profile.callout, args.allow_callout) {
        eprintln!("note: callout {command:?} is not run (--allow-callout)");
    }
    match measure(args, &load, &stop) {
        Err(_) if stop.is_requested() => {
            eprintln!("interrupted");
            Ok(ExitCode::from(INTERRUPTED))
        }
        Err(error) => Err(error),
        Ok(results) => {
            print(args, &load.profile, &results)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn read(path: &Path, compat: Option<Compat>) -> anyhow::Result<ProfileLoad> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    ProfileLoad::new(&text, compat).with_context(|| path.display().to_string())
}

fn measure(args: &FfsbArgs, load: &ProfileLoad, stop: &Stop) -> anyhow::Result<Results> {
    let places = Places::of(args, &load.profile)?;
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let options = StageOptions { data: places.parent.clone(), program };
    let plan = Plan::new(Experiment::parse(&experiment(args), Mode::Full)?);
    let stage = Stage::enter(&plan, &options, stop)?;
    for line in stage.reclaimed.iter().chain(&stage.notes) {
        eprintln!("note: {line}");
    }
    let result = hold(args, load, (&stage, &plan), &options.program, places.roots.as_deref(), stop);
    // Whatever happened, the condition is left first.
    stage.leave()?;
    places.leave()?;
    result
}

fn hold(
    args: &FfsbArgs,
    load: &ProfileLoad,
    (stage, plan): (&Stage, &Plan),
    program: &Path,
    roots: Option<&[PathBuf]>,
    stop: &Stop,
) -> anyhow::Result<Results> {
    let why = |why| anyhow::anyhow!("not available: {why} (--runtime native needs no container)");
    let place = stage.place(&plan.conditions[0]).map_err(why)?;
    let scratch = stage.scratch().context("there is no directory for scratch")?;
    let request = Request {
        load,
        count: args.containers.unwrap_or(1),
        seconds: args.time.map(Duration::from_secs_f64),
        base_seed: args.seed,
        seed: args.seed,
        allows_callout: args.allow_callout,
        roots,
        program,
        scratch: &scratch,
    };
    let seconds = args.time.unwrap_or(f64::from(load.profile.time_s));
    Ok(conduct(&request, &place, stop, &mut |it| show(it, request.count, seconds))?)
}

/// The condition to run in, as an experiment's file has it; its profile stands for any.
fn experiment(args: &FfsbArgs) -> String {
    let runtime = match (args.runtime, args.containers) {
        (Some(RuntimeName::Native), _) | (None, None) => "kind = \"native\"".to_string(),
        (None, Some(_)) => "kind = \"container\"".into(),
        (Some(name), _) => {
            let name = name.to_possible_value().map(|it| it.get_name().to_string());
            format!("kind = \"container\"\nruntimes = [{:?}]", name.unwrap_or_default())
        }
    };
    format!(
        "name = \"ffsb\"\ntitle = \"FFSB\"\nquestion = \"\"\nengine = \"ffsb\"\nfile-size = \"4KiB\"\n\
         comparison = []\n[timing]\nrun = \"1s\"\n[factors.storage.here]\nkind = \"directory\"\n\
         [factors.runtime.this]\n{runtime}\n[[workload]]\nname = \"profile\"\nprofile = \"\"\"\n\
         [filesystem]\nlocation=/\n[end]\n[threadgroup]\nnum_threads=1\nstat_weight=1\n[end]\"\"\"\n\
         metrics = [\"ops-total\"]\n"
    )
}

/// Where files are made.
struct Places {
    /// Below this the condition makes its directory.
    parent: PathBuf,
    /// Directories for the profile's file systems, if they are not all below that one.
    roots: Option<Vec<PathBuf>>,
    /// Those of them that are ours.
    own: Vec<OwnDirectory>,
}

impl Places {
    fn below(parent: &Path) -> Self {
        Self { parent: parent.into(), roots: None, own: Vec::new() }
    }

    fn of(args: &FfsbArgs, profile: &Profile) -> anyhow::Result<Self> {
        if let Some(parent) = &args.directory {
            return Ok(Self::below(parent));
        }
        let locations = || profile.file_systems.iter().map(|it| Path::new(&it.location));
        if let Some(location) = locations().find(|it| !it.is_dir()) {
            let what = "is no directory: make it, or name another one with --directory";
            bail!("the profile's location {} {what}", location.display());
        }
        let is_native = match args.runtime {
            Some(runtime) => runtime == RuntimeName::Native,
            None => args.containers.is_none(),
        };
        let is_found = |it: &FileSystem| it.reuses && Path::new(&it.location).join("data").exists();
        let finds = profile.file_systems.iter().any(is_found);
        if !is_native || args.containers.is_some_and(|count| count > 1) {
            if profile.file_systems.len() > 1 || finds {
                bail!(
                    "each instance has one directory for itself: name the one to make them in with --directory"
                );
            }
            return Ok(Self::below(locations().next().unwrap_or(Path::new("/"))));
        }
        let uses_found = finds && profile.only_reads();
        if finds && !uses_found {
            eprintln!(
                "note: the profile changes files: it gets new ones, not those that reuse=1 finds"
            );
        }
        if profile.file_systems.len() == 1 && !uses_found {
            return Ok(Self::below(locations().next().unwrap_or(Path::new("/"))));
        }
        // The condition's own directory must not lie among files that are used.
        let mut places = Self::below(&std::env::temp_dir());
        let (owner, mut roots) = (Owner::new()?, Vec::new());
        for (number, it) in profile.file_systems.iter().enumerate() {
            let location = Path::new(&it.location);
            if uses_found && is_found(it) {
                roots.push(location.into());
                continue;
            }
            for (path, done) in reclaim_below(location) {
                let result = done.map_or_else(|error| error.to_string(), |()| "done".into());
                eprintln!("note: cleaning up after a run that died: {}: {result}", path.display());
            }
            let own = OwnDirectory::make(location, &owner)?;
            roots.push(own.path().join(root_name(number)));
            places.own.push(own);
        }
        places.roots = Some(roots);
        Ok(places)
    }

    /// Removes those that are ours.
    fn leave(self) -> anyhow::Result<()> {
        for own in self.own {
            own.remove()?;
        }
        Ok(())
    }
}

fn show(progress: Progress, count: u32, seconds: f64) {
    match progress {
        Progress::Started(started) if started == count => {
            eprintln!("{count} started, making files");
        }
        Progress::Ready(ready) => eprintln!("{ready} of {count} ready"),
        Progress::Begun => eprintln!("begun, for {seconds} s"),
        Progress::Ended(ended) if ended == count => eprintln!("all ended"),
        Progress::Started(_) | Progress::Ended(_) => {}
    }
}

#[derive(Serialize)]
struct Told<'a> {
    summary: &'a Summary,
    notes: &'a [String],
    ready_ns: &'a [u64],
    instances: &'a [Measured],
}

fn print(args: &FfsbArgs, profile: &Profile, results: &Results) -> anyhow::Result<()> {
    let summary = results.summary();
    if args.json {
        let told = Told {
            summary: &summary,
            notes: &profile.notes,
            ready_ns: &results.ready_ns,
            instances: &results.instances,
        };
        println!("{}", serde_json::to_string(&told)?);
        return Ok(());
    }
    if let [one] = results.instances.as_slice() {
        println!("benchmark time = {}", args.time.unwrap_or(f64::from(profile.time_s)));
        println!("fs setup took {} secs", one.setup_s as u64);
        print!("{}", text(profile, one));
        return Ok(());
    }
    print!("{}", results.table());
    let start = summary.start;
    println!(
        "\nstart: first operation {} ms after the last instance was ready, {} ms from the first to the \
         last instance",
        significant(start.last_ready_to_first_operation_ms),
        significant(start.skew_ms)
    );
    println!(
        "total: {} operations/s, {} transactions/s, in {} s",
        significant(summary.operations_per_s),
        significant(summary.transactions_per_s),
        significant(summary.seconds)
    );
    println!(
        "per instance: {} operations/s ({} … {}), fairness {}",
        significant(summary.operations_per_s_each),
        significant(summary.operations_per_s_min),
        significant(summary.operations_per_s_max),
        summary.fairness.map_or("–".into(), significant)
    );
    println!(
        "latency: mean {} µs, p50 {} µs, p99 {} µs",
        significant(summary.latency_mean_us),
        significant(summary.latency_p50_us),
        significant(summary.latency_p99_us)
    );
    Ok(())
}
