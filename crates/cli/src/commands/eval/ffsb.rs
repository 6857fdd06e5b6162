//! `tsumugi eval ffsb`: runs unchanged FFSB profiles, alone or in many containers.
//!
//! It sets storage and containers up as experiments do: a condition of one directory and one
//! runtime exists while the profile runs, so its directory, mounts and processes are removed even
//! if this program is killed.

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

/// Exit code for SIGINT, as in shells.
const INTERRUPTED: u8 = 130;
/// Exit code for SIGTERM.
const TERMINATED: u8 = 143;

/// The FFSB version by which a profile is read.
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

/// The environment of the instances.
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
    /// FFSB version that decides where the two differ [default: 5 if the profile has keys that only
    /// version 5 accepts]
    #[arg(long, value_enum, value_name = "VERSION")]
    compat: Option<Version>,
    /// Number of instances to run at once, each in its own container [default: one, without a
    /// container]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    containers: Option<u32>,
    /// Container runtime of the instances [default: with --containers the first one that works]
    #[arg(long, value_enum)]
    runtime: Option<RuntimeName>,
    /// Create all files in a new directory below this one, not at the profile's locations
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Seconds of load [default: the time of the profile]
    #[arg(long, value_name = "SECONDS")]
    time: Option<f64>,
    /// Seed of file sizes, choices and offsets
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
    /// Number of this instance
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
    /// Directory with `mount`, `upper` and `work`, in which the files are
    #[arg(long, requires = "condition")]
    layers: Option<PathBuf>,
    /// The mounted condition
    #[arg(long)]
    condition: Option<Condition>,
}

/// Runs as one instance; only this program starts it.
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
    // In a container this is the first process, and a signal without a handler does not end it.
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
    /// Makes data durable that was written through a union, which does not receive syncfs(2): by
    /// the union's own sync, and then by a sync of the upper directory's file system, the same for
    /// every kind of union.
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
        bail!("--time {seconds}: the range is 0 to 1000000");
    }
    if args.time.unwrap_or(f64::from(load.profile.time_s)) <= 0.0 {
        bail!(
            "the profile has no time, so it would only create files and remove them again: give \
             --time"
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
    // Leave the condition first, also after a failure.
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

/// Returns the experiment file of the condition to run in; its profile stands for any profile.
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

/// Where the files are created.
struct Places {
    /// The condition creates its directory below this one.
    parent: PathBuf,
    /// Directories for the profile's file systems, unless all are below `parent`.
    roots: Option<Vec<PathBuf>>,
    /// The directories among them that this program created.
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
                    "each instance needs a directory of its own: give their parent directory with \
                     --directory"
                );
            }
            return Ok(Self::below(locations().next().unwrap_or(Path::new("/"))));
        }
        let uses_found = finds && profile.only_reads();
        if finds && !uses_found {
            eprintln!(
                "note: the profile changes files, so it gets new ones instead of the existing ones \
                 of reuse=1"
            );
        }
        if profile.file_systems.len() == 1 && !uses_found {
            return Ok(Self::below(locations().next().unwrap_or(Path::new("/"))));
        }
        // The condition's own directory must not be among files in use.
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

    /// Removes the directories that this program created.
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
struct Printed<'a> {
    summary: &'a Summary,
    notes: &'a [String],
    ready_ns: &'a [u64],
    instances: &'a [Measured],
}

fn print(args: &FfsbArgs, profile: &Profile, results: &Results) -> anyhow::Result<()> {
    let summary = results.summary();
    if args.json {
        let printed = Printed {
            summary: &summary,
            notes: &profile.notes,
            ready_ns: &results.ready_ns,
            instances: &results.instances,
        };
        println!("{}", serde_json::to_string(&printed)?);
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
