//! Entering and leaving conditions: storages are made ready, runtimes are found, once per experiment.
//!
//! Everything stands side by side for the whole experiment, so that changing the condition between
//! two runs costs nothing and leaves no trace in the second. What cannot be had on this machine is
//! *not available* with its reason, and only the comparisons that need it are missing from the report.

mod container;
mod file_system;
mod network;
mod storage;

use crate::engine::Stop;
use crate::error::Error;
use crate::experiment::{EngineKind, LevelKind, Runtime};
use crate::own::{OwnDirectory, Owner, mounts_below, reclaim_below};
use crate::plan::{Condition, Plan};
use container::Container;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use storage::Ready;

const END_PATIENCE: Duration = Duration::from_secs(20);

/// What standing conditions need to know about this machine.
#[derive(Clone, Debug)]
pub struct StageOptions {
    /// Directory below which files are made.
    pub data: PathBuf,
    /// The program `tsumugi`, for targets and hosts.
    pub program: PathBuf,
}

/// Where and how a run works.
#[derive(Clone, Debug)]
pub struct Place {
    /// The file or device, as the host sees it.
    file: PathBuf,
    /// Device numbers below it, whose counters show what reaches storage.
    device: Option<(u32, u32)>,
    /// `None` is native.
    container: Option<Container>,
    owner: Option<Owner>,
}

impl Place {
    /// The file as the load sees it.
    pub fn inside_file(&self) -> PathBuf {
        match (&self.container, self.file.file_name()) {
            (Some(_), Some(name)) => Path::new(container::DATA).join(name),
            _ => self.file.clone(),
        }
    }

    /// The scratch directory as the load sees it.
    pub fn inside_scratch(&self, scratch: &Path) -> PathBuf {
        if self.container.is_some() { container::SCRATCH.into() } else { scratch.into() }
    }

    /// A command that runs `program` here.
    pub fn command(&self, program: &str, arguments: &[String], scratch: &Path) -> Command {
        let directory = self.file.parent().unwrap_or(Path::new("/"));
        let mut command = match &self.container {
            Some(container) => container.command(directory, scratch, arguments),
            None => {
                let mut command = Command::new(program);
                command.args(arguments).current_dir(scratch);
                command
            }
        };
        if let Some(owner) = &self.owner {
            owner.mark(&mut command);
        }
        command
    }

    /// Numbers of the device whose counters show what reaches storage.
    pub fn device(&self) -> Option<(u32, u32)> {
        self.device
    }
}

/// All conditions, standing.
#[derive(Debug)]
pub struct Stage {
    storages: BTreeMap<String, Result<Ready, String>>,
    runtimes: BTreeMap<String, Result<Option<Container>, String>>,
    /// Processes to end, in the order they were started.
    children: Vec<Child>,
    /// Commands to run at the end.
    leave: Vec<String>,
    owner: Option<Owner>,
    directory: Option<OwnDirectory>,
    /// Waits for our death, to clean up after us.
    reaper: Option<Child>,
    /// Directories of ours in places that the experiment names.
    further: Vec<OwnDirectory>,
    /// What is worth knowing about how conditions were made.
    pub notes: Vec<String>,
    /// What was cleaned up after earlier experiments that died, and what could not be.
    pub reclaimed: Vec<String>,
}

impl Stage {
    /// Makes all conditions of a plan stand. Only what is wrong with the experiment itself is an
    /// error; what this machine lacks makes conditions not available.
    pub fn enter(plan: &Plan, options: &StageOptions, stop: &Stop) -> Result<Self, Error> {
        let mut stage = Self {
            storages: BTreeMap::new(),
            runtimes: BTreeMap::new(),
            children: Vec::new(),
            leave: Vec::new(),
            owner: None,
            directory: None,
            reaper: None,
            further: Vec::new(),
            notes: Vec::new(),
            reclaimed: Vec::new(),
        };
        if plan.experiment.engine == EngineKind::Synthetic {
            return Ok(stage);
        }
        let path = stage.own_directory(options)?;
        let scratch = path.join("scratch");
        std::fs::create_dir(&scratch).map_err(Error::io("cannot make", &scratch))?;
        for (factor, levels) in &plan.experiment.factors {
            for (name, level) in levels {
                if stop.is_requested() {
                    return Err(Error::Interrupted);
                }
                let own = path.join(format!("{factor}-{name}"));
                std::fs::create_dir(&own).map_err(Error::io("cannot make", &own))?;
                match &level.kind {
                    LevelKind::Storage(storage) => {
                        let file_bytes = plan.experiment.file_bytes;
                        let bytes = match level.file_system {
                            Some(_) => file_system::storage_bytes(file_bytes),
                            None => file_bytes,
                        };
                        let mut ready = stage.enter_storage(plan, options, storage, &own, bytes)?;
                        if let (Some(kind), Ok(below)) = (level.file_system, &ready) {
                            let below = below.clone();
                            ready = stage.enter_file_system(&below, kind, &own, file_bytes);
                        }
                        stage.storages.insert(name.clone(), ready);
                    }
                    LevelKind::Runtime(Runtime::Native) => {
                        stage.runtimes.insert(name.clone(), Ok(None));
                    }
                    LevelKind::Runtime(Runtime::Container(kinds)) => {
                        let found = Container::find(kinds, &own, &scratch);
                        if let Ok(container) = &found {
                            stage.notes.push(format!("{name}: {}", container.describe()));
                        }
                        stage.runtimes.insert(name.clone(), found.map(Some));
                    }
                    LevelKind::Synthetic(_) => {}
                }
            }
        }
        Ok(stage)
    }

    /// Makes the experiment's directory, after cleaning up what dead experiments left beside it, and
    /// starts the reaper for it.
    fn own_directory(&mut self, options: &StageOptions) -> Result<PathBuf, Error> {
        self.reclaim(&options.data);
        let owner = Owner::new()?;
        let directory = OwnDirectory::make(&options.data, &owner)?;
        let path = directory.path().to_path_buf();
        self.owner = Some(owner);
        self.directory = Some(directory);
        let mut reaper = Command::new(&options.program);
        reaper.args(["eval", "reap"]).arg(&path).stdin(Stdio::null()).stdout(Stdio::null());
        match reaper.process_group(0).spawn() {
            Ok(child) => self.reaper = Some(child),
            Err(error) => self.reclaimed.push(format!(
                "no reaper ({error}): if this process is killed, the next one cleans up"
            )),
        }
        Ok(path)
    }

    fn reclaim(&mut self, parent: &Path) {
        for (path, done) in reclaim_below(parent) {
            let path = path.display();
            self.reclaimed.push(match done {
                Ok(()) => format!("cleaned up after an experiment that died: {path}"),
                Err(error) => format!("cannot clean up after an experiment that died: {error}"),
            });
        }
    }

    /// Where a condition's runs work, or why it is not available.
    pub fn place(&self, condition: &Condition) -> Result<Place, String> {
        let mut ready = None;
        let mut container = None;
        for level in condition.levels.values() {
            if let Some(storage) = self.storages.get(level) {
                ready = Some(storage.clone()?);
            } else if let Some(runtime) = self.runtimes.get(level) {
                container.clone_from(&runtime.clone()?);
            }
        }
        let ready = ready.ok_or("the condition names no storage")?;
        Ok(Place { file: ready.file, device: ready.device, container, owner: self.owner.clone() })
    }

    /// A directory of ours for job files and logs; `None` for engines without storage.
    pub fn scratch(&self) -> Option<PathBuf> {
        self.directory.as_ref().map(|directory| directory.path().join("scratch"))
    }

    /// Leaves all conditions; what cannot be undone is an error.
    pub fn leave(mut self) -> Result<(), Error> {
        self.undo();
        for directory in self.further.drain(..) {
            directory.remove()?;
        }
        let removed = self.directory.take().map_or(Ok(()), OwnDirectory::remove);
        self.dismiss_reaper();
        removed
    }

    /// The reaper ends by itself once the directory is gone, or its lock.
    fn dismiss_reaper(&mut self) {
        if let Some(mut reaper) = self.reaper.take() {
            let begun = Instant::now();
            while begun.elapsed() < END_PATIENCE && matches!(reaper.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(2));
            }
            let _ = crate::process::end(&mut reaper, Duration::ZERO);
        }
    }

    fn undo(&mut self) {
        for command in self.leave.drain(..).rev() {
            if let Err(error) = storage::shell(&command) {
                eprintln!("leaving a condition: {error}");
            }
        }
        for mut child in self.children.drain(..).rev() {
            // Ending it unmounts what it mounted.
            let _ = crate::process::end(&mut child, END_PATIENCE);
        }
        if let Some(directory) = &self.directory {
            for mount in mounts_below(directory.path()).unwrap_or_default() {
                let _ = rustix::mount::unmount(&mount, rustix::mount::UnmountFlags::DETACH);
            }
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.undo();
        self.further.clear();
        self.directory = None;
        self.dismiss_reaper();
    }
}
