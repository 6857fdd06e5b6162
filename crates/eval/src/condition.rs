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
use crate::plan::{Condition, Plan};
use crate::safety::{OwnDirectory, mounts_below};
use container::Container;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;
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
        if let Some(container) = &self.container {
            return container.command(directory, scratch, arguments);
        }
        let mut command = Command::new(program);
        command.args(arguments).current_dir(scratch);
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
    directory: Option<OwnDirectory>,
    /// Directories of ours in places that the experiment names.
    further: Vec<OwnDirectory>,
    /// What is worth knowing about how conditions were made.
    pub notes: Vec<String>,
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
            directory: None,
            further: Vec::new(),
            notes: Vec::new(),
        };
        if plan.experiment.engine == EngineKind::Synthetic {
            return Ok(stage);
        }
        let directory = OwnDirectory::make(&options.data)?;
        let path = directory.path().to_path_buf();
        stage.directory = Some(directory);
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
        Ok(Place { file: ready.file, device: ready.device, container })
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
        match self.directory.take() {
            Some(directory) => directory.remove(),
            None => Ok(()),
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
    }
}
