//! IOR as an engine of experiments.
//!
//! One run is one phase of one test, as version 4 does it, with ranks that are started for it and end
//! with it: waiting ranks of an MPI would use the CPUs of the next run. Writing makes new files.
//! Reading reads files that were written once for the experiment, after what the kernel keeps of them
//! was dropped. A run whose hints are not read back as they were set does not count.

use super::conductor::{Conductor, Event, Measured, names};
use super::crew::{Crew, IorError, Processes, rank_command};
use super::experiment::{IorLevel, IorLoad};
use super::mpi::{Launcher, Mpi, MpiKind, Shim};
use super::output::Output;
use super::parameters::{Api, Parameters};
use super::script::{Compat, Settings};
use super::stripe::{self, Stripe};
use crate::engine::{Engine, Work};
use crate::metric::Metric;
use crate::outcome::{Mark, Outcome};
use crate::place::Place;
use base::{Error, Stop};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const NAME: &str = "ior";

/// The engine.
#[derive(Debug)]
pub struct IorEngine {
    /// The program `tsumugi`, which becomes ranks.
    program: PathBuf,
    /// Where programs of ranks are built.
    scratch: PathBuf,
    shims: BTreeMap<MpiKind, Shim>,
    /// Files that were written to be read.
    prepared: BTreeSet<PathBuf>,
}

/// A run, put together from load, levels and cell.
struct Run {
    settings: Settings,
    hints: Vec<(String, String)>,
    mpi: Option<MpiKind>,
    /// What the first file is called.
    file: PathBuf,
    /// It as a script, to repeat it.
    script: String,
}

fn wrong(error: &IorError) -> Error {
    match error {
        IorError::Interrupted => Error::Interrupted,
        other => Error::program(NAME, other.to_string()),
    }
}

/// The levels of a condition that are IOR's.
fn levels<'a>(work: &Work<'a>) -> Vec<&'a IorLevel> {
    work.levels.iter().filter_map(|level| level.setting()).collect()
}

impl IorEngine {
    /// An engine with a directory of ours for scratch.
    pub fn new(program: PathBuf, scratch: PathBuf) -> Self {
        Self { program, scratch, shims: BTreeMap::new(), prepared: BTreeSet::new() }
    }

    /// Starts ranks so that the reaper finds them.
    fn crew(
        &mut self,
        run: &Run,
        ranks: usize,
        place: &dyn Place,
        stop: &Stop,
    ) -> Result<Box<dyn Crew>, Error> {
        let Some(kind) = run.mpi else {
            let command = || {
                let mut command = rank_command(&self.program);
                place.mark(&mut command);
                command
            };
            let crew = Processes::start(ranks, &command, stop).map_err(|error| wrong(&error))?;
            return Ok(Box::new(crew));
        };
        if !self.shims.contains_key(&kind) {
            let shim = Shim::build(kind, &self.scratch).map_err(|error| wrong(&error))?;
            self.shims.insert(kind, shim);
        }
        let Some(shim) = self.shims.get(&kind) else {
            return Err(Error::program(NAME, "the program of a rank is gone"));
        };
        let mark = |command: &mut Command| place.mark(command);
        let crew = Mpi::start(kind, shim, &Launcher::Ranks(ranks), &mark, stop);
        Ok(Box::new(crew.map_err(|error| wrong(&error))?))
    }

    /// Writes what is to be read, once.
    fn prepare(
        &mut self,
        run: &Run,
        crew: &mut dyn Crew,
        conductor: &mut Conductor,
    ) -> Result<(), Error> {
        if self.prepared.contains(&run.file) {
            return Ok(());
        }
        let mut settings = run.settings.clone();
        for (keyword, value) in [
            ("readFile", "0"),
            ("checkRead", "0"),
            ("writeFile", "1"),
            ("useExistingTestFile", "0"),
            ("fsync", "1"),
            ("reorderTasksConstant", "0"),
            ("reorderTasks", "0"),
            ("reorderTasksRandom", "0"),
        ] {
            settings.set(keyword, value).map_err(|why| Error::program(NAME, why))?;
        }
        let (parameters, _) = Parameters::new(&settings, crew.layout(), Compat::V4)
            .map_err(|why| Error::program(NAME, why))?;
        conductor.run(&parameters, crew, &mut |_| {}).map_err(|error| wrong(&error))?;
        self.prepared.insert(run.file.clone());
        Ok(())
    }
}

impl Engine for IorEngine {
    fn version(&self) -> String {
        format!("tsumugi eval ior {}, as IOR 4", env!("CARGO_PKG_VERSION"))
    }

    fn run(&mut self, work: &Work<'_>, stop: &Stop) -> Result<Outcome, Error> {
        let load = work.workload;
        let Some(ior) = load.task::<IorLoad>() else {
            return Err(Error::program(NAME, "the load is none of IOR"));
        };
        let place = work.place.ok_or_else(|| Error::program(NAME, "needs a storage"))?;
        let directory = self.stripe(work, place.directory())?;
        let run = put_together(work, ior, load.is_direct, &directory)?;
        let mut crew = self.crew(&run, work.cell.jobs as usize, place, stop)?;
        let mounts = place.mounts().to_vec();
        let mut conductor = Conductor { stop: stop.clone(), mounts, ..Conductor::default() };
        let result = (|| {
            if !ior.writes {
                self.prepare(&run, crew.as_mut(), &mut conductor)?;
            }
            measure(&run, crew.as_mut(), &mut conductor)
        })();
        if result.is_err() {
            // Files that others read later were made by an earlier run, and stay.
            let _ = conductor.files.remove_all();
        }
        result
    }
}

impl IorEngine {
    /// The directory to work in: one of its own for each striping.
    fn stripe(&self, work: &Work<'_>, directory: &Path) -> Result<PathBuf, Error> {
        let Some(wanted) = levels(work).iter().find_map(|level| level.stripe) else {
            return Ok(directory.into());
        };
        let Stripe { count, bytes } = wanted;
        let name = |value: Option<String>| value.unwrap_or_else(|| "default".into());
        let own = directory.join(format!(
            "stripe-{}-{}",
            name(count.map(|it| it.to_string())),
            name(bytes.map(|it| it.to_string()))
        ));
        if !own.exists() {
            std::fs::create_dir(&own).map_err(Error::io("cannot make", &own))?;
            stripe::set(wanted, &own, &self.program)?;
        }
        Ok(own)
    }
}

/// Options of load and levels, and what the plan decides.
fn put_together(
    work: &Work<'_>,
    load: &IorLoad,
    is_direct: bool,
    directory: &Path,
) -> Result<Run, Error> {
    let bad = |why: String| Error::program(NAME, why);
    let levels = levels(work);
    let mut options = load.options.clone();
    let mut hints = BTreeMap::new();
    for level in &levels {
        options.extend(level.options.clone());
        hints.extend(level.hints.clone());
    }
    let mpi = levels.iter().find_map(|level| level.mpi);
    options.insert("transferSize".into(), work.cell.block_size.to_string());
    if is_direct {
        options.insert("useO_DIRECT".into(), "1".into());
    }
    let mut settings = Settings::default();
    for (keyword, value) in &options {
        settings.set(keyword, value).map_err(bad)?;
    }
    let file = file(work, load, &settings, directory);
    let (read, write) = if load.writes { ("0", "1") } else { ("1", "0") };
    for (keyword, value) in [
        ("testFile", file.to_string_lossy().as_ref()),
        ("writeFile", write),
        ("readFile", read),
        ("keepFile", read),
        ("useExistingTestFile", read),
        ("repetitions", "1"),
    ] {
        options.insert(keyword.into(), value.into());
        settings.set(keyword, value).map_err(bad)?;
    }
    let mut script = String::from("IOR START\n");
    for (keyword, value) in &options {
        let _ = writeln!(script, "{keyword}={value}");
    }
    script.push_str("RUN\nIOR STOP\n");
    for (key, value) in &hints {
        let _ = writeln!(script, "# hint {key}={value}");
    }
    Ok(Run { settings, hints: hints.into_iter().collect(), mpi, file, script })
}

/// Reads share a file as far as its bytes are the same.
fn file(work: &Work<'_>, load: &IorLoad, settings: &Settings, directory: &Path) -> PathBuf {
    if load.writes {
        return directory.join("written");
    }
    let number = |keyword: &str| settings.number(keyword).unwrap_or(0);
    directory.join(format!(
        "read-{}-{}-{}-{}{}",
        work.cell.jobs,
        number("blockSize"),
        number("segmentCount"),
        if settings.is_set("filePerProc") { "own" } else { "shared" },
        // What a check expects depends on the size of transfers.
        if settings.is_set("checkRead") {
            format!("-{}-{}", work.cell.block_size, number("setTimeStampSignature"))
        } else {
            String::new()
        }
    ))
}

/// Lets the kernel forget what it keeps of files, so that reads reach storage.
fn forget(files: &[PathBuf]) -> Result<(), Error> {
    for path in files {
        let file = std::fs::File::open(path).map_err(Error::io("cannot open", path))?;
        file.sync_all().map_err(Error::io("cannot flush", path))?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
            .map_err(|error| Error::io("cannot drop what is kept of", path)(error.into()))?;
    }
    Ok(())
}

fn measure(run: &Run, crew: &mut dyn Crew, conductor: &mut Conductor) -> Result<Outcome, Error> {
    let (mut parameters, notes) = Parameters::new(&run.settings, crew.layout(), Compat::V4)
        .map_err(|why| Error::program(NAME, why))?;
    if parameters.api == Api::Mpiio {
        parameters.hints.extend(run.hints.iter().cloned());
    }
    if parameters.uses_existing {
        for path in parameters.all_files(0) {
            forget(&names(&conductor.mounts, &path))?;
        }
    }
    let mut raw = String::new();
    for note in notes {
        let _ = writeln!(raw, "note: {note}");
    }
    let about = crew.describe();
    let mut output = Output::new(Compat::V4, parameters.format, "tsumugi eval run".into());
    raw += &output.begin(&parameters, &about);
    let mut tell = |event: Event<'_>| raw += &output.event(&parameters, &event);
    let outcome = conductor.run(&parameters, crew, &mut tell).map_err(|error| wrong(&error))?;
    raw += &output.end(&parameters, &outcome.measured, &about);
    if outcome.errors > 0 {
        let what = format!("{} words of data are not what was written", outcome.errors);
        return Err(Error::program(NAME, what));
    }
    let [measured] = outcome.measured.as_slice() else {
        return Err(Error::program(NAME, "nothing was measured"));
    };
    let differences = measured.effective.differences(&parameters.hints);
    for difference in &differences {
        let _ = writeln!(raw, "does not count: {difference}");
    }
    for (key, value) in &measured.effective.hints {
        let _ = writeln!(raw, "hint {key}={value} ({})", measured.effective.implementation);
    }
    let mut result = told(measured, parameters.phases.write);
    if !differences.is_empty() {
        result.marks.push(Mark::Hints);
    }
    result.command = about;
    result.job.clone_from(&run.script);
    result.raw = raw;
    Ok(result)
}

fn told(measured: &Measured, is_write: bool) -> Outcome {
    let rate = measured.bandwidth();
    let calls: u64 = measured.answers.iter().map(|it| it.calls).sum();
    let mut outcome = Outcome { load_seconds: measured.total_s, ..Outcome::default() };
    outcome.metrics.insert(Metric::Bandwidth, rate);
    outcome.metrics.insert(Metric::Iops, calls as f64 / measured.total_s);
    for (name, value) in [
        ("open-s", measured.open_s),
        ("transfer-s", measured.transfer_s),
        ("close-s", measured.close_s),
        ("total-s", measured.total_s),
        ("latency-min-s", measured.latency_s),
    ] {
        outcome.further.insert(name.into(), value);
    }
    if is_write {
        outcome.written_bytes_per_s = rate;
    } else {
        outcome.read_bytes_per_s = rate;
    }
    outcome
}
