//! Entering and leaving conditions: storages are made ready, runtimes are found, once per experiment.
//!
//! Everything stands side by side for the whole experiment, so that changing the condition between
//! two runs costs nothing and leaves no trace in the second. What cannot be had on this machine is
//! *not available* with its reason, and only the comparisons that need it are missing from the report.

mod container;
mod file_system;
#[cfg(test)]
mod fio_tests;
mod instances;
mod iscsi;
mod layers;
mod network;
mod place;
mod pool;
mod scheduler;
mod steps;
mod storage;
mod thin;

use crate::cpu::{Service, hosts};
use crate::guard::Source;
use crate::own::{OwnDirectory, Owner, mounts_below, reclaim_below};
use crate::plan::{Condition, Plan};
use base::{Error, Stop, units};
use container::Container;
use loads::engine::Setup;
use loads::level::{ContainerKind, Level, LevelKind, Runtime, Setting, Storage};
use loads::place::Place as _;
use scheduler::Scheduler;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use storage::Ready;

pub use layers::Layers;
pub use place::Place;

const END_PATIENCE: Duration = Duration::from_secs(20);

/// What standing conditions need to know about this machine.
#[derive(Clone, Debug)]
pub struct StageOptions {
    /// Directory below which files are made.
    pub data: PathBuf,
    /// The program `tsumugi`, for targets and hosts.
    pub program: PathBuf,
}

/// The programs that a container needs for a plan's loads.
fn programs(plan: &Plan, options: &StageOptions) -> Vec<PathBuf> {
    let setup = Setup { program: options.program.clone(), scratch: PathBuf::new() };
    let of = plan.experiment.engine.programs;
    let mut programs = Vec::new();
    for load in &plan.experiment.workloads {
        for program in of(load, &setup) {
            if !programs.contains(&program) {
                programs.push(program);
            }
        }
    }
    programs
}

/// All conditions, standing.
#[derive(Debug)]
pub struct Stage {
    storages: BTreeMap<String, Result<Ready, String>>,
    runtimes: BTreeMap<String, Result<Option<Container>, String>>,
    /// Settings of the engine, by factor and level. Levels of other factors may have the same names.
    settings: BTreeMap<(String, String), Arc<dyn Setting>>,
    /// Conditions whose runtime does not take their layers: why not, by name.
    untaken: BTreeMap<String, String>,
    /// The program `tsumugi`.
    program: PathBuf,
    /// Processes to end, in the order they were started.
    children: Vec<Child>,
    services: Vec<Service>,
    /// Commands to run at the end.
    leave: Vec<String>,
    /// The file of a target that a target of the other kind is to share: that is made by tgt, or not.
    unshared: Option<(bool, Ready)>,
    /// Of devices whose schedulers conditions set: those that they had.
    schedulers: BTreeMap<(u32, u32), Scheduler>,
    /// Schedulers that levels name.
    named_schedulers: BTreeMap<String, String>,
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
            settings: BTreeMap::new(),
            untaken: BTreeMap::new(),
            program: options.program.clone(),
            children: Vec::new(),
            services: Vec::new(),
            leave: Vec::new(),
            unshared: None,
            schedulers: BTreeMap::new(),
            named_schedulers: BTreeMap::new(),
            owner: None,
            directory: None,
            reaper: None,
            further: Vec::new(),
            notes: Vec::new(),
            reclaimed: Vec::new(),
        };
        if plan.experiment.engine.is_synthetic() {
            return Ok(stage);
        }
        for host in &plan.experiment.cpu_hosts {
            let asked = hosts::ask(host).map(|it| units::several(it.machine.cpus() as u32, "CPU"));
            stage.notes.push(match asked {
                Ok(cpus) => format!("{host}: {cpus}, looked at by ssh"),
                Err(why) => format!("{host}: CPU time is not available: {why}"),
            });
        }
        let path = stage.own_directory(options)?;
        let scratch = path.join("scratch");
        std::fs::create_dir(&scratch).map_err(Error::io("cannot make", &scratch))?;
        for (factor, levels) in &plan.experiment.factors {
            let is_used = |name: &&String| plan.uses(factor, name);
            for (name, level) in levels.iter().filter(|(name, _)| is_used(name)) {
                if stop.is_requested() {
                    return Err(Error::Interrupted);
                }
                let own = path.join(format!("{factor}-{name}"));
                std::fs::create_dir(&own).map_err(Error::io("cannot make", &own))?;
                match &level.kind {
                    LevelKind::Storage(storage) => {
                        stage.enter_storage_level(plan, options, (name, level, storage), &own)?;
                    }
                    LevelKind::Runtime(Runtime::Native) => {
                        stage.runtimes.insert(name.clone(), Ok(None));
                    }
                    LevelKind::Runtime(Runtime::Container(kinds)) => {
                        let found = stage.find_container(kinds, &own, programs(plan, options));
                        if let Ok(container) = &found {
                            stage.notes.push(format!("{name}: {}", container.describe()));
                        }
                        stage.runtimes.insert(name.clone(), found.map(Some));
                    }
                    LevelKind::Setting(setting) => {
                        let key = (factor.clone(), name.clone());
                        stage.settings.insert(key, Arc::clone(setting));
                    }
                }
            }
        }
        stage.probe_containers(plan, stop)?;
        Ok(stage)
    }

    /// The program `tsumugi`, which loads are run by.
    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// Lets each runtime take the layers of each condition once: not all that it runs elsewhere it runs there.
    fn probe_containers(&mut self, plan: &Plan, stop: &Stop) -> Result<(), Error> {
        for condition in &plan.conditions {
            let Ok(place) = self.place(condition) else { continue };
            let Some(layers) = place.layers().filter(|_| place.is_container()) else { continue };
            if stop.is_requested() {
                return Err(Error::Interrupted);
            }
            if let Err(error) = self.probe_layers(layers, &place) {
                self.untaken.insert(condition.id.clone(), error.to_string());
            }
        }
        Ok(())
    }

    /// A storage with what its level puts on it.
    fn enter_storage_level(
        &mut self,
        plan: &Plan,
        options: &StageOptions,
        (name, level, storage): (&str, &Level, &Storage),
        own: &Path,
    ) -> Result<(), Error> {
        let file_bytes = plan.experiment.file_bytes;
        let bytes = match level.file_system {
            Some(_) => file_system::storage_bytes(file_bytes),
            None => file_bytes,
        };
        let mut ready = self.enter_storage(plan, options, storage, own, bytes)?;
        if let (Some(kind), Ok(below)) = (level.file_system, &ready) {
            let below = below.clone();
            ready = self.enter_file_system(&below, kind, own, file_bytes);
        }
        if let (Some(scheduler), Ok(found)) = (&level.scheduler, &ready) {
            let found = found.clone();
            ready = self.enter_scheduler(&found, scheduler).map(|()| found);
            self.named_schedulers.insert(name.into(), scheduler.clone());
        }
        if let Some(fabric) = ready.as_ref().ok().and_then(|it| it.fabric.as_ref()) {
            let said = steps::steps(&options.program, fabric);
            self.notes.push(format!("{name}: {said}"));
        }
        if let Ok(Ready { source: Source::Unknown(why), .. }) = &ready {
            self.notes.push(format!("{name}: nothing shows whether reads reach storage: {why}"));
        }
        self.storages.insert(name.into(), ready);
        Ok(())
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

    fn find_container(
        &mut self,
        kinds: &[ContainerKind],
        own: &Path,
        programs: Vec<PathBuf>,
    ) -> Result<Container, String> {
        let (Some(owner), Some(directory)) = (&self.owner, &self.directory) else {
            return Err("there is no directory for an image".into());
        };
        let scratch = directory.path().join("scratch");
        let mut found = Container::find(kinds, own, &scratch, programs, owner)?;
        let level = own.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match found.count(&format!("{}-{level}", owner.group()), &scratch) {
            Ok(leave) => {
                directory.note_leave(&leave).map_err(|error| error.to_string())?;
                self.leave.push(leave);
            }
            Err(why) => {
                self.notes.push(format!("{level}: CPU time by container is not available: {why}"));
            }
        }
        if let Some(program) = found.keeps_containers() {
            directory.note_runtime(program).map_err(|error| error.to_string())?;
        }
        self.leave.extend(found.leave());
        Ok(found)
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
        if let Some(why) = self.untaken.get(&condition.id) {
            return Err(why.clone());
        }
        let mut ready = None;
        let mut named = None;
        let mut container = None;
        for (factor, level) in &condition.levels {
            if let Some(setting) = self.settings.get(&(factor.clone(), level.clone())) {
                setting.check().map_err(|missing| missing.to_string())?;
            } else if let Some(storage) = self.storages.get(level) {
                ready = Some(storage.clone()?);
                named = self.named_schedulers.get(level);
            } else if let Some(runtime) = self.runtimes.get(level) {
                container.clone_from(&runtime.clone()?);
            }
        }
        let ready = ready.ok_or("the condition names no storage")?;
        let directory = ready.file.parent().unwrap_or(Path::new("/"));
        let levels = condition.levels.iter().map(|(factor, level)| (factor.clone(), level.clone()));
        for setting in levels.filter_map(|key| self.settings.get(&key)) {
            let checked = setting.check_directory(directory, &self.program);
            checked.map_err(|missing| missing.to_string())?;
        }
        let scheduler = self.scheduler(&ready, named.map(String::as_str));
        Ok(Place::of(ready, container, scheduler, self.owner.clone()))
    }

    /// Processes that stand as long as the conditions do, for their CPU time.
    pub fn services(&self) -> &[Service] {
        &self.services
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
            let _ = loads::process::end(&mut reaper, Duration::ZERO);
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
            let _ = loads::process::end(&mut child, END_PATIENCE);
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
