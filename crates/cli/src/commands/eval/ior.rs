//! `tsumugi eval ior`: runs unchanged IOR scripts and options.

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use eval::Stop;
use eval::ior::{
    Api, Compat, Conductor, Crew, Event, Launcher, Line, Measured, Mpi, MpiKind, Output,
    Parameters, Processes, RANK_HEAD, Script, Settings, Shim, TestOutcome, inside,
    inside_directory, outliers, parse, rank_command, rank_rows, read_options, serve,
};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;

/// Exit code for SIGINT, as in shells.
const INTERRUPTED: u8 = 130;

/// The IOR version by which a script is read.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Version {
    /// IOR 2.10.3
    #[value(name = "2.10")]
    Old,
    /// IOR 4
    #[value(name = "4")]
    New,
}

/// An MPI implementation.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum MpiName {
    /// MPICH (ROMIO)
    Mpich,
    /// Open MPI with its defaults (OMPIO on most file systems)
    Openmpi,
    /// Open MPI with its ROMIO
    OpenmpiRomio,
}

impl MpiName {
    fn kind(self) -> MpiKind {
        match self {
            Self::Mpich => MpiKind::Mpich,
            Self::Openmpi => MpiKind::OpenMpi,
            Self::OpenmpiRomio => MpiKind::OpenMpiRomio,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct IorArgs {
    /// Script (IOR START … RUN … IOR STOP), of IOR 2.10.3 or 4
    #[arg(short = 'f', long, value_name = "SCRIPT")]
    script: Option<PathBuf>,
    /// Number of ranks on this machine: processes, or ranks of an MPI
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: u16,
    /// Setting that applies before the script's own, in the form of a script; may be repeated
    #[arg(short = 'O', long = "option", value_name = "KEY=VALUE")]
    options: Vec<String>,
    /// IOR version that decides where the two differ [default: 2.10 if the script has keywords that
    /// only 2.10 accepts]
    #[arg(long, value_enum, value_name = "VERSION")]
    ior_compat: Option<Version>,
    /// Run under this MPI [default: processes without MPI for POSIX, the first MPI found for MPIIO]
    #[arg(long, value_enum, value_name = "MPI")]
    mpi: Option<MpiName>,
    /// Command that starts the ranks [default: the MPI's launcher], e.g. "srun -n 64"
    #[arg(long, value_name = "WORDS", requires = "mpi")]
    launcher: Option<String>,
    /// Directory for the program that ranks run, visible from all nodes
    #[arg(long, value_name = "DIR")]
    build_dir: Option<PathBuf>,
    /// IOR's own options
    #[arg(last = true, value_name = "IOR OPTIONS", allow_hyphen_values = true)]
    words: Vec<String>,
}

/// Runs as one rank; only this program starts it.
pub(super) fn rank() -> anyhow::Result<ExitCode> {
    serve(std::io::stdin().lock(), std::io::stdout().lock()).context("the conductor is gone")?;
    Ok(ExitCode::SUCCESS)
}

/// Runs all tests of a script, or the one that the options describe.
pub(super) fn run(args: &IorArgs) -> anyhow::Result<ExitCode> {
    let stop = Stop::default();
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop.0))
            .context("cannot watch for signals")?;
    }
    let line = read_options(&args.words).map_err(anyhow::Error::msg)?;
    let script = read(args, &line)?;
    let mut session = Session::new(args, &script, stop.clone())?;
    match session.run(&script) {
        Err(_) if stop.is_requested() => {
            eprintln!("interrupted");
            Ok(ExitCode::from(INTERRUPTED))
        }
        Err(error) => Err(error),
        Ok(0) => Ok(ExitCode::SUCCESS),
        Ok(errors) => bail!("{errors} words of data differ from the written ones"),
    }
}

/// Returns the script with the settings of the command line; without a script, one test from the
/// options.
fn read(args: &IorArgs, line: &Line) -> anyhow::Result<Script> {
    let mut defaults = line.settings.clone();
    for option in &args.options {
        let Some((keyword, value)) = option.split_once('=') else {
            bail!("--option {option}: write KEY=VALUE");
        };
        defaults.set(keyword.trim(), value.trim()).map_err(anyhow::Error::msg)?;
    }
    let compat = args.ior_compat.map(|version| match version {
        Version::Old => Compat::V2,
        Version::New => Compat::V4,
    });
    let Some(path) = args.script.as_ref().or(line.script.as_ref()) else {
        if line.settings == Settings::default() && args.options.is_empty() {
            bail!("give a script (-f) or IOR's options (-- -a POSIX -b 4m …)");
        }
        return Ok(Script::of(defaults, compat));
    };
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let script = parse(&text, &defaults, compat).with_context(|| name.clone())?;
    if line.after.is_empty() {
        return Ok(script);
    }
    let names: Vec<&str> = line.after.iter().map(|(keyword, _)| keyword.as_str()).collect();
    let mut note = format!("options after the script are ignored by 2.10.3: {}", names.join(", "));
    let mut script = script;
    if script.compat == Compat::V4 {
        for (keyword, value) in &line.after {
            defaults.set(keyword, value).map_err(anyhow::Error::msg)?;
        }
        script = parse(&text, &defaults, compat).with_context(|| name)?;
        note += "; version 4 takes them, and so it was done";
    }
    script.notes.push(note);
    Ok(script)
}

/// The state that lasts from test to test.
struct Session<'a> {
    args: &'a IorArgs,
    conductor: Conductor,
    output: Output,
    /// File for the results, instead of standard output.
    file: Option<std::fs::File>,
    rank_files: BTreeSet<PathBuf>,
    processes: Option<Processes>,
    mpi: Option<(MpiKind, Mpi)>,
    shim: Option<Shim>,
    inside: Option<(usize, MpiKind)>,
    stop: Stop,
}

impl<'a> Session<'a> {
    fn new(args: &'a IorArgs, script: &Script, stop: Stop) -> anyhow::Result<Self> {
        let words: Vec<String> = std::env::args().collect();
        let first = script.tests.first().cloned().unwrap_or_default();
        let format = Parameters::format(&first).map_err(anyhow::Error::msg)?;
        Ok(Self {
            args,
            conductor: Conductor { stop: stop.clone(), ..Conductor::default() },
            output: Output::new(script.compat, format, words.join(" ")),
            file: None,
            rank_files: BTreeSet::new(),
            processes: None,
            mpi: None,
            shim: None,
            inside: inside(),
            stop,
        })
    }

    /// Runs all tests. Returns the number of wrong words.
    fn run(&mut self, script: &Script) -> anyhow::Result<u64> {
        if let Some((rank, kind)) = self.inside {
            self.become_rank(rank, kind)?;
        }
        let meaning = if script.compat == Compat::V2 { "2.10.3" } else { "4" };
        self.note(&format!("{} tests, read as IOR {meaning} does", script.tests.len()));
        for note in &script.notes {
            self.note(note);
        }
        let mut errors = 0;
        for (index, settings) in script.tests.iter().enumerate() {
            errors += self
                .test(settings, script.compat)
                .with_context(|| format!("test {}", index + 1))?;
        }
        let said = self.output.finish();
        self.print(&said)?;
        Ok(errors)
    }

    /// Under a launcher, one process conducts and all others become ranks.
    fn become_rank(&mut self, rank: usize, kind: MpiKind) -> anyhow::Result<()> {
        let local = ["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"];
        let local = local.iter().find_map(|name| std::env::var(name).ok());
        let builds = local.map_or(rank == 0, |local| local == "0");
        let shim = Shim::build_once(kind, inside_directory(), builds)?;
        if rank > 0 {
            let mut command = Command::new(shim.path());
            // Ranks that start late still need the program; the conductor removes it at the end.
            std::mem::forget(shim);
            return Err(command.exec()).context("cannot become a rank");
        }
        self.shim = Some(shim);
        Ok(())
    }

    fn test(&mut self, settings: &Settings, compat: Compat) -> anyhow::Result<u64> {
        let api = Parameters::api(settings).map_err(anyhow::Error::msg)?;
        let kind = self.kind(api)?;
        self.start(kind)?;
        let crew: &mut dyn Crew = match (kind, &mut self.mpi, &mut self.processes) {
            (Some(_), Some((_, mpi)), _) => mpi,
            (None, _, Some(processes)) => processes,
            _ => bail!("no ranks"),
        };
        let (parameters, notes) =
            Parameters::new(settings, crew.layout(), compat).map_err(anyhow::Error::msg)?;
        let about = if api == Api::Mpiio { crew.describe() } else { String::new() };
        let mut head: Vec<String> = vec![format!("ranks: {}", crew.describe())];
        head.extend(notes);
        for note in &head {
            say_note(&self.output, note);
        }
        if let (Some(path), None) = (Output::file(&parameters), &self.file) {
            let file = std::fs::File::create(&path);
            self.file = Some(file.with_context(|| format!("cannot make {}", path.display()))?);
        }
        let said = self.output.begin(&parameters, &about);
        print_to(&mut self.file, &said)?;
        let outcome = {
            let (output, file) = (&mut self.output, &mut self.file);
            let mut show = |event: Event<'_>| {
                let said = output.event(&parameters, &event);
                if let (Event::Note(note), true) = (&event, output.is_for_programs()) {
                    eprintln!("note: {note}");
                }
                // If a line cannot be printed now, the end of the test reports it.
                let _ = print_to(file, &said);
            };
            self.conductor.run(&parameters, crew, &mut show)?
        };
        self.print_notes(&parameters, &outcome)?;
        let said = self.output.end(&parameters, &outcome.measured, &about);
        self.print(&said)?;
        Ok(outcome.errors)
    }

    fn print_notes(
        &mut self,
        parameters: &Parameters,
        outcome: &TestOutcome,
    ) -> anyhow::Result<()> {
        let mut noted = BTreeSet::new();
        for measured in &outcome.measured {
            for note in outliers(parameters, measured) {
                self.note(&format!("outlier: {note}"));
            }
            let name = &measured.effective.implementation;
            if !name.is_empty() && noted.insert(name.clone()) {
                self.note(&format!("MPI-IO: {name}"));
            }
            for note in hint_notes(parameters, measured) {
                if noted.insert(note.clone()) {
                    self.note(&note);
                }
            }
            if let Some(path) = &parameters.rank_file {
                append(path, self.rank_files.insert(path.clone()), &rank_rows(measured))?;
            }
        }
        Ok(())
    }

    /// Returns the MPI of a test; `None` for processes without MPI.
    fn kind(&self, api: Api) -> anyhow::Result<Option<MpiKind>> {
        if let Some((_, kind)) = self.inside {
            return Ok(Some(kind));
        }
        if let Some(name) = self.args.mpi {
            return Ok(Some(name.kind()));
        }
        if api == Api::Posix {
            return Ok(None);
        }
        let mut reasons = Vec::new();
        for kind in [MpiKind::Mpich, MpiKind::OpenMpiRomio] {
            match kind.check() {
                Ok(()) => return Ok(Some(kind)),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        bail!("{}", reasons.join("; "))
    }

    /// Starts the ranks, unless they are running.
    fn start(&mut self, kind: Option<MpiKind>) -> anyhow::Result<()> {
        let Some(kind) = kind else {
            if self.processes.is_none() {
                let program = std::env::current_exe().context("cannot find this program's file")?;
                let command = || rank_command(&program);
                let ranks = self.args.ranks.into();
                self.processes = Some(Processes::start(ranks, &command, &self.stop)?);
            }
            return Ok(());
        };
        if self.mpi.as_ref().is_some_and(|(running, _)| *running == kind) {
            return Ok(());
        }
        if self.shim.is_none() {
            let parent = self.args.build_dir.clone().unwrap_or_else(std::env::temp_dir);
            self.shim = Some(Shim::build(kind, &parent)?);
        }
        let launcher = match (&self.args.launcher, self.inside) {
            (_, Some(_)) => Launcher::Inside,
            (Some(words), _) => {
                Launcher::Words(words.split_whitespace().map(str::to_string).collect())
            }
            (None, None) => Launcher::Ranks(self.args.ranks.into()),
        };
        if let Some(shim) = &self.shim {
            self.mpi = Some((kind, Mpi::start(kind, shim, &launcher, &|_| {}, &self.stop)?));
        }
        Ok(())
    }

    fn note(&self, note: &str) {
        say_note(&self.output, note);
    }

    fn print(&mut self, said: &str) -> anyhow::Result<()> {
        print_to(&mut self.file, said)
    }
}

/// Returns notes on hints that the parameters ask to show, or that differ from the requested ones.
fn hint_notes(parameters: &Parameters, measured: &Measured) -> Vec<String> {
    let mut notes = Vec::new();
    if parameters.api == Api::Posix {
        return notes;
    }
    if parameters.shows_hints {
        for (key, value) in &measured.effective.hints {
            notes.push(format!("hint {key}={value} ({})", measured.access.name()));
        }
    }
    for difference in measured.effective.differences(&parameters.hints) {
        let name = measured.access.name();
        notes.push(format!("WARNING: this {name} does not measure what was asked: {difference}"));
    }
    notes
}

/// Prints a note where the results go, unless those are for programs.
fn say_note(output: &Output, note: &str) {
    if output.is_for_programs() {
        eprintln!("note: {note}");
    } else {
        println!("note: {note}");
    }
}

fn print_to(file: &mut Option<std::fs::File>, said: &str) -> anyhow::Result<()> {
    if let Some(file) = file {
        return file.write_all(said.as_bytes()).context("cannot write results");
    }
    print!("{said}");
    Ok(())
}

fn append(path: &Path, is_first: bool, rows: &str) -> anyhow::Result<()> {
    let wrong = || format!("cannot write {}", path.display());
    if is_first {
        std::fs::write(path, RANK_HEAD).with_context(wrong)?;
    }
    let mut file = std::fs::OpenOptions::new().append(true).open(path).with_context(wrong)?;
    file.write_all(rows.as_bytes()).with_context(wrong)
}
