//! Where and how the runs of a condition work, for engines.

use super::container::{self, Container};
use super::layers::Layers;
use super::scheduler::Scheduler;
use super::storage::Ready;
use crate::cpu::Group;
use crate::guard::Source;
use crate::own::Owner;
use base::{Error, Stop};
use loads::crowd::{Base, Shares};
use loads::place::{Fabric, Instances, LogicalUnit};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Where and how a run works.
#[derive(Clone, Debug)]
pub struct Place {
    /// The file or device, as the host sees it.
    pub(super) file: PathBuf,
    /// Where its data lies in the end.
    pub(super) source: Source,
    /// `None` is native.
    pub(super) container: Option<Container>,
    /// The namespace, for engines that are hosts themselves.
    pub(super) fabric: Option<Fabric>,
    /// The logical unit, for engines that are initiators themselves.
    pub(super) unit: Option<LogicalUnit>,
    /// Mounts of one file system, for engines that can use several; the file is in the first.
    pub(super) mounts: Vec<PathBuf>,
    /// What gives instances a directory each; `None` is plain directories.
    pub(super) shares: Option<Arc<dyn Shares>>,
    /// The kernel's, of its block device.
    pub(super) scheduler: Option<Scheduler>,
    /// Changeable copies of one set of files.
    pub(super) layers: Option<Layers>,
    pub(super) owner: Option<Owner>,
}

impl Place {
    pub(super) fn of(
        ready: Ready,
        container: Option<Container>,
        scheduler: Option<Scheduler>,
        owner: Option<Owner>,
    ) -> Self {
        let Ready { file, source, fabric, unit, mounts, shares, layers, .. } = ready;
        Self { file, source, container, fabric, unit, mounts, shares, scheduler, layers, owner }
    }

    /// Whether loads run in containers of a runtime.
    pub fn is_container(&self) -> bool {
        self.container.is_some()
    }

    /// What counts the container's CPU time, if there is one.
    pub fn group(&self) -> Option<&Group> {
        self.container.as_ref()?.group()
    }

    /// Makes ready what conditions on one device do not share; to be called before each run.
    pub fn prepare(&self) -> Result<(), Error> {
        self.scheduler.as_ref().map_or(Ok(()), Scheduler::set)
    }

    /// Where its data lies in the end: whose counters show what reaches storage.
    pub fn source(&self) -> &Source {
        &self.source
    }
}

impl loads::place::Place for Place {
    fn inside_file(&self) -> PathBuf {
        match (&self.container, self.file.file_name()) {
            (Some(_), Some(name)) => Path::new(container::DATA).join(name),
            _ => self.file.clone(),
        }
    }

    fn inside_directory(&self) -> PathBuf {
        let directory = self.file.parent().unwrap_or(Path::new("/"));
        if self.container.is_some() { container::DATA.into() } else { directory.into() }
    }

    fn inside_files(&self, key: &str) -> PathBuf {
        let directory = self.inside_directory();
        if self.layers.is_some() { Layers::seen(&directory, key) } else { directory }
    }

    fn directory(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("/"))
    }

    fn mounts(&self) -> &[PathBuf] {
        &self.mounts
    }

    fn inside_scratch(&self, scratch: &Path) -> PathBuf {
        if self.container.is_some() { container::SCRATCH.into() } else { scratch.into() }
    }

    fn command(&self, program: &str, arguments: &[String], scratch: &Path) -> Command {
        let mut command = if let Some(container) = &self.container {
            container.command(&self.file, scratch, program, arguments)
        } else {
            let mut command = Command::new(program);
            command.args(arguments).current_dir(scratch);
            command
        };
        self.mark(&mut command);
        command
    }

    fn mark(&self, command: &mut Command) {
        if let Some(owner) = &self.owner {
            owner.mark(command);
        }
    }

    fn end_loads(&self) -> Result<(), Error> {
        let Some(owner) = &self.owner else { return Ok(()) };
        let ended = owner.end_loads();
        if let Some(runtime) = self.container.as_ref().and_then(Container::keeps_containers) {
            owner.remove_containers(runtime);
        }
        ended
    }

    fn fabric(&self) -> Option<&Fabric> {
        self.fabric.as_ref()
    }

    fn unit(&self) -> Option<&LogicalUnit> {
        self.unit.as_ref()
    }

    fn layers(&self) -> Option<&dyn loads::place::Layers> {
        self.layers.as_ref().map(|layers| layers as &dyn loads::place::Layers)
    }

    fn written_bytes(&self) -> Option<u64> {
        self.source.counters().map(|it| it.written_bytes)
    }

    fn instances(
        &self,
        count: u32,
        base: &Base<'_>,
        stop: &Stop,
    ) -> Result<Box<dyn Instances>, Error> {
        Ok(Box::new(super::instances::Instances::make(self, count, base, stop)?))
    }
}
