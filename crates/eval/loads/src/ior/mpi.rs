//! Ranks under a real MPI: its own compiler builds the shim, its own launcher starts it.
//!
//! The shim is a small C program (`shim/mpi_rank.c`) that does what a phase says. Nothing of MPI is
//! linked into this program, so both MPICH and Open MPI can be measured by the same binary, side by
//! side, whichever a machine has.

mod build;

use super::crew::{Crew, IorError, Layout, Reply, Watch};
use super::hints::Effective;
use super::phase::{Answer, Phase};
use crate::process;
use base::Stop;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub use build::Shim;

const END_PATIENCE: Duration = Duration::from_secs(10);
const POLL_PERIOD: Duration = Duration::from_millis(5);
/// Limit of the kept error output of ranks.
const COMPLAINTS_MAX: usize = 4096;

/// An MPI and its MPI-IO.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MpiKind {
    /// MPICH, whose MPI-IO is ROMIO.
    Mpich,
    /// Open MPI with what it takes by itself: OMPIO on most file systems.
    OpenMpi,
    /// Open MPI with its ROMIO: OMPIO ignores the hints of ROMIO.
    OpenMpiRomio,
}

impl MpiKind {
    /// All of them, with the names that they have on command lines and in files.
    pub const ALL: [(&'static str, Self); 3] =
        [("mpich", Self::Mpich), ("openmpi", Self::OpenMpi), ("openmpi-romio", Self::OpenMpiRomio)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }

    /// Compilers to try. Debian has both MPIs side by side under names of their own.
    pub(super) fn compilers(self) -> [&'static str; 2] {
        match self {
            Self::Mpich => ["mpicc.mpich", "mpicc"],
            Self::OpenMpi | Self::OpenMpiRomio => ["mpicc.openmpi", "mpicc"],
        }
    }

    fn launchers(self) -> [&'static str; 2] {
        match self {
            Self::Mpich => ["mpiexec.hydra", "mpirun"],
            Self::OpenMpi | Self::OpenMpiRomio => ["mpirun.openmpi", "mpirun"],
        }
    }

    /// What the library calls itself.
    fn library(self) -> &'static str {
        match self {
            Self::Mpich => "MPICH",
            Self::OpenMpi | Self::OpenMpiRomio => "Open MPI",
        }
    }

    /// What to install.
    fn fix(self) -> &'static str {
        match self {
            Self::Mpich => "install it (Debian: apt-get install mpich libmpich-dev)",
            Self::OpenMpi | Self::OpenMpiRomio => {
                "install it (Debian: apt-get install openmpi-bin libopenmpi-dev)"
            }
        }
    }

    /// Whether compiler and launcher are there.
    pub fn check(self) -> Result<(), IorError> {
        self.find(self.compilers()).and_then(|_| self.find(self.launchers())).map(drop)
    }

    pub(super) fn find(self, names: [&'static str; 2]) -> Result<&'static str, IorError> {
        names.into_iter().find(|name| is_program(name)).ok_or_else(|| {
            IorError::NotAvailable(format!(
                "{}: there is neither {} nor {}: {}",
                self.library(),
                names[0],
                names[1],
                self.fix()
            ))
        })
    }

    /// Settings for Open MPI: its MPI-IO, and permission for root.
    fn environment(self, command: &mut Command) {
        if self == Self::Mpich {
            return;
        }
        let is_root = rustix::process::geteuid().is_root();
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
            if is_root {
                command.env(name, "1");
            }
        }
        if self == Self::OpenMpiRomio {
            // Whatever ROMIO this version has (romio321, romio341), and not OMPIO.
            command.env("OMPI_MCA_io", "^ompio");
        }
    }
}

fn is_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// How ranks are started.
#[derive(Clone, Debug)]
pub enum Launcher {
    /// By the MPI's own launcher, so many on this machine.
    Ranks(usize),
    /// By these words, e.g. `srun -n 64`.
    Words(Vec<String>),
    /// They are started already: this process is one of them.
    Inside,
}

/// Running ranks.
#[derive(Debug)]
pub struct Mpi {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    complaints: Arc<Mutex<VecDeque<u8>>>,
    layout: Layout,
    library: String,
    command: String,
    _watch: Watch,
}

impl Mpi {
    /// Starts ranks of a built shim. `mark` may give the launcher, and with it the ranks of this
    /// machine, something to be found by.
    pub fn start(
        kind: MpiKind,
        shim: &Shim,
        launcher: &Launcher,
        mark: &dyn Fn(&mut Command),
        stop: &Stop,
    ) -> Result<Self, IorError> {
        let mut command = launch(kind, &shim.path(), launcher)?;
        kind.environment(&mut command);
        mark(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.process_group(0);
        let shown = process::shown(&command);
        let failed =
            |why: &dyn std::fmt::Display| IorError::NotAvailable(format!("{shown}: {why}"));
        let mut child = command.spawn().map_err(|error| failed(&error))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(to), Some(from), Some(errors)) = pipes else {
            return Err(failed(&"no pipe"));
        };
        let complaints = Arc::default();
        keep(errors, Arc::clone(&complaints));
        let mut mpi = Self {
            _watch: Watch::start(stop, vec![rustix::process::Pid::from_child(&child)]),
            child,
            to: Some(to),
            from: BufReader::new(from),
            complaints,
            layout: Layout::here(0),
            library: String::new(),
            command: shown,
        };
        mpi.greet(kind)?;
        Ok(mpi)
    }

    fn greet(&mut self, kind: MpiKind) -> Result<(), IorError> {
        loop {
            let line = self.hear()?;
            if let Some(library) = line.strip_prefix("library ") {
                self.library = library.split_whitespace().collect::<Vec<_>>().join(" ");
            } else if let Some(world) = line.strip_prefix("world ") {
                let words: Vec<usize> =
                    world.split(' ').filter_map(|word| word.parse().ok()).collect();
                let [ranks, nodes, per_node, is_block] = words[..] else {
                    return Err(IorError::Gone(format!("what is {line:?}?")));
                };
                self.layout = Layout { ranks, nodes, per_node, is_block: is_block == 1 };
                break;
            }
        }
        if self.library.contains(kind.library()) {
            return Ok(());
        }
        Err(IorError::NotAvailable(format!(
            "{} is asked for, but the compiler found belongs to {}: {}",
            kind.library(),
            self.library,
            kind.fix()
        )))
    }

    fn hear(&mut self) -> Result<String, IorError> {
        let mut line = String::new();
        match self.from.read_line(&mut line) {
            Ok(read) if read > 0 => Ok(line.trim_end().to_string()),
            Ok(_) => Err(self.gone()),
            Err(error) => Err(IorError::Gone(error.to_string())),
        }
    }

    /// What they complained about, our own lines first.
    fn gone(&mut self) -> IorError {
        let _ = process::end(&mut self.child, END_PATIENCE);
        let said = match self.complaints.lock() {
            Ok(bytes) => bytes.iter().copied().collect::<Vec<u8>>(),
            Err(_) => Vec::new(),
        };
        let said = String::from_utf8_lossy(&said).into_owned();
        let own: Vec<&str> =
            said.lines().filter_map(|line| line.split_once("ior: ").map(|it| it.1)).collect();
        match own.first() {
            Some(line) => IorError::Gone((*line).to_string()),
            None => IorError::Gone(format!("{}: {}", self.command, said.trim())),
        }
    }

    fn answer(line: &str) -> Option<Answer> {
        let words: Vec<&str> = line.split(' ').collect();
        let [t @ .., bytes, calls, errors, wrong_at] = &words[..] else { return None };
        let t: Vec<f64> = t.iter().filter_map(|word| word.parse().ok()).collect();
        Some(Answer {
            t: t.try_into().ok()?,
            bytes: bytes.parse().ok()?,
            calls: calls.parse().ok()?,
            errors: errors.parse().ok()?,
            wrong_at: wrong_at.parse().ok()?,
        })
    }

    /// The first line of the library's version text.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// How it was started.
    pub fn command(&self) -> &str {
        &self.command
    }
}

fn launch(kind: MpiKind, shim: &Path, launcher: &Launcher) -> Result<Command, IorError> {
    Ok(match launcher {
        Launcher::Inside => Command::new(shim),
        Launcher::Words(words) => {
            let Some((program, arguments)) = words.split_first() else {
                return Err(IorError::Parameters("the launcher is empty".into()));
            };
            let mut command = Command::new(program);
            command.args(arguments).arg(shim);
            command
        }
        Launcher::Ranks(ranks) => {
            let mut command = Command::new(kind.find(kind.launchers())?);
            command.args(["-n", &ranks.to_string()]);
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            if kind != MpiKind::Mpich && *ranks > cores {
                command.arg("--oversubscribe");
            }
            command.arg(shim);
            command
        }
    })
}

/// Keeps the end of the ranks' error output.
fn keep(mut from: impl Read + Send + 'static, into: Arc<Mutex<VecDeque<u8>>>) {
    std::thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            if let Ok(mut kept) = into.lock() {
                kept.extend(&bytes[..read]);
                let over = kept.len().saturating_sub(COMPLAINTS_MAX);
                kept.drain(..over);
            }
        }
    });
}

impl Crew for Mpi {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn describe(&self) -> String {
        format!("{}, started by {}", self.library, self.command)
    }

    fn phase(&mut self, phase: &Phase) -> Result<Reply, IorError> {
        let told = match &mut self.to {
            Some(to) => to.write_all(phase.lines().as_bytes()).and_then(|()| to.flush()),
            None => Ok(()),
        };
        if told.is_err() {
            return Err(self.gone());
        }
        let mut reply = Reply::default();
        let (mut given_back, mut printed) = (Vec::new(), Vec::new());
        loop {
            let line = self.hear()?;
            if line == "done" {
                break;
            }
            let (what, rest) = line.split_once(' ').unwrap_or_default();
            match what {
                "rank" => {
                    let answer = Self::answer(rest);
                    reply.answers.push(answer.ok_or_else(|| IorError::Gone(line.clone()))?);
                }
                "hint" => {
                    let (key, value) = rest.split_once(' ').unwrap_or((rest, ""));
                    given_back.push((key.into(), value.into()));
                }
                // So prints ROMIO: "key = cb_nodes  value = 1".
                "key" => {
                    let words = rest.trim_start_matches("= ").split_once(" value = ");
                    let (key, value) = words.unwrap_or_default();
                    printed.push((key.trim().into(), value.trim().into()));
                }
                // Launchers talk too.
                _ => {}
            }
        }
        if phase.wants_info && phase.is_mpiio {
            reply.effective = Effective::of(&self.library, given_back, printed);
        }
        if reply.answers.len() == phase.ranks {
            return Ok(reply);
        }
        Err(IorError::Gone(format!("{} of {} ranks answered", reply.answers.len(), phase.ranks)))
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // A closed pipe ends the ranks in order.
        self.to = None;
        let begun = Instant::now();
        while begun.elapsed() < END_PATIENCE && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(POLL_PERIOD);
        }
        let _ = process::end(&mut self.child, END_PATIENCE);
    }
}

/// The rank of this process, if an MPI launcher started it, and that MPI.
pub fn inside() -> Option<(usize, MpiKind)> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<usize>().ok();
    if let Some(rank) = number("OMPI_COMM_WORLD_RANK") {
        let is_romio = std::env::var("OMPI_MCA_io").is_ok_and(|io| io.contains("romio"));
        return Some((rank, if is_romio { MpiKind::OpenMpiRomio } else { MpiKind::OpenMpi }));
    }
    number("PMI_RANK").map(|rank| (rank, MpiKind::Mpich))
}

/// Directory that all ranks of a launcher on this node share, if they were started by one.
pub fn inside_directory() -> PathBuf {
    let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    let user = rustix::process::geteuid().as_raw();
    std::env::temp_dir().join(format!("tsumugi-ior-{user}-{parent}"))
}
