//! Where and how a run works: what engines get to know of a condition.

use super::container::{self, Container};
use super::layers::Layers;
use super::scheduler::Scheduler;
use super::storage::Ready;
use crate::cpu::Group;
use crate::crowd::Shares;
use crate::error::Error;
use crate::experiment::Subsystem;
use crate::guard::Source;
use crate::own::Owner;
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

/// A namespace over the network.
#[derive(Clone, Debug)]
pub struct Fabric {
    /// Where and which.
    pub subsystem: Subsystem,
    /// Network namespace for the host's sockets.
    pub network_namespace: Option<PathBuf>,
}

/// A logical unit of an iSCSI target.
#[derive(Clone, Debug)]
pub struct LogicalUnit {
    /// Address and port of the portal.
    pub portal: std::net::SocketAddr,
    /// The target's name.
    pub target: String,
    /// Number of the unit.
    pub lun: u16,
}

impl LogicalUnit {
    /// As libiscsi's programs take it.
    pub fn url(&self) -> String {
        format!("iscsi://{}/{}/{}", self.portal, self.target, self.lun)
    }
}

impl Fabric {
    /// As `tsumugi eval rate` takes it.
    pub fn url(&self) -> String {
        let Subsystem { address, port, nqn, .. } = &self.subsystem;
        if address.contains(':') {
            format!("nvme://[{address}]:{port}/{nqn}")
        } else {
            format!("nvme://{address}:{port}/{nqn}")
        }
    }

    /// Arguments of `tsumugi nvme` that name it, with the consent to write if there is one.
    pub fn arguments(&self) -> Vec<String> {
        let subsystem = &self.subsystem;
        let mut words = self.reach();
        words.extend(["-n".into(), subsystem.nqn.clone()]);
        if let Some(namespace) = subsystem.namespace {
            words.extend(["--namespace-id".into(), namespace.to_string()]);
        }
        if let Some(name) = &subsystem.destroy {
            words.extend(["--destroy".into(), name.clone()]);
        }
        words
    }

    /// Arguments of `tsumugi nvme` that lead to the target.
    pub(super) fn reach(&self) -> Vec<String> {
        let subsystem = &self.subsystem;
        let mut words =
            vec!["-a".into(), subsystem.address.clone(), "-s".into(), subsystem.port.to_string()];
        if let Some(path) = &self.network_namespace {
            words.extend(["--network-namespace".into(), path.display().to_string()]);
        }
        words
    }
}

impl Place {
    /// The file as the load sees it.
    pub fn inside_file(&self) -> PathBuf {
        match (&self.container, self.file.file_name()) {
            (Some(_), Some(name)) => Path::new(container::DATA).join(name),
            _ => self.file.clone(),
        }
    }

    /// The storage's directory as the load sees it.
    pub fn inside_directory(&self) -> PathBuf {
        let directory = self.file.parent().unwrap_or(Path::new("/"));
        if self.container.is_some() { container::DATA.into() } else { directory.into() }
    }

    /// Where an instance sees the files that it begins with, or makes them: in its directory, or in what is
    /// mounted there.
    pub fn inside_files(&self, key: &str) -> PathBuf {
        let directory = self.inside_directory();
        if self.layers.is_some() { Layers::seen(&directory, key) } else { directory }
    }

    /// The storage's directory, as the host sees it.
    pub fn directory(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("/"))
    }

    pub(super) fn of(
        ready: Ready,
        container: Option<Container>,
        scheduler: Option<Scheduler>,
        owner: Option<Owner>,
    ) -> Self {
        let Ready { file, source, fabric, unit, mounts, shares, layers, .. } = ready;
        Self { file, source, container, fabric, unit, mounts, shares, scheduler, layers, owner }
    }

    /// Changeable copies of one set of files, for the engine of containers.
    pub fn layers(&self) -> Option<&Layers> {
        self.layers.as_ref()
    }

    /// Ends what loads of the experiment have left: processes with its mark that nothing else needs, and
    /// containers that outlive their requester.
    pub fn end_loads(&self) -> Result<(), Error> {
        let Some(owner) = &self.owner else { return Ok(()) };
        let ended = owner.end_loads();
        if let Some(runtime) = self.container.as_ref().and_then(Container::keeps_containers) {
            owner.remove_containers(runtime);
        }
        ended
    }

    /// Whether loads run in containers of a runtime.
    pub fn is_container(&self) -> bool {
        self.container.is_some()
    }

    /// The namespace, for engines that are hosts themselves.
    pub fn fabric(&self) -> Option<&Fabric> {
        self.fabric.as_ref()
    }

    /// The logical unit, for engines that are initiators themselves.
    pub fn unit(&self) -> Option<&LogicalUnit> {
        self.unit.as_ref()
    }

    /// Mounts of one file system, for engines that can use several; the directory is in the first.
    pub fn mounts(&self) -> &[PathBuf] {
        &self.mounts
    }

    /// The scratch directory as the load sees it.
    pub fn inside_scratch(&self, scratch: &Path) -> PathBuf {
        if self.container.is_some() { container::SCRATCH.into() } else { scratch.into() }
    }

    /// A command that runs `program` here.
    pub fn command(&self, program: &str, arguments: &[String], scratch: &Path) -> Command {
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

    /// Marks a command's process as this experiment's.
    pub fn mark(&self, command: &mut Command) {
        if let Some(owner) = &self.owner {
            owner.mark(command);
        }
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
