//! Where and how a run works: what engines get to know of a condition. Conditions implement it.

use crate::crowd::Base;
use crate::level::Subsystem;
use crate::scheme::Scheme;
use base::{Error, Stop};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where and how a run works.
pub trait Place: Debug {
    /// Returns the file as the load sees it.
    fn inside_file(&self) -> PathBuf;

    /// Returns the storage's directory as the load sees it.
    fn inside_directory(&self) -> PathBuf;

    /// Returns where an instance sees the files that it begins with, or makes them: its directory, or what is
    /// mounted there.
    fn inside_files(&self, key: &str) -> PathBuf;

    /// Returns the storage's directory, as the host sees it.
    fn directory(&self) -> &Path;

    /// Returns the mounts of one file system, for engines that can use several; the directory is in the first.
    fn mounts(&self) -> &[PathBuf];

    /// Returns the scratch directory as the load sees it.
    fn inside_scratch(&self, scratch: &Path) -> PathBuf;

    /// Returns a command that runs `program` here.
    fn command(&self, program: &str, arguments: &[String], scratch: &Path) -> Command;

    /// Marks a command's process as this experiment's.
    fn mark(&self, command: &mut Command);

    /// Ends what loads of the experiment have left: processes with its mark that nothing else needs, and
    /// containers that outlive their requester.
    fn end_loads(&self) -> Result<(), Error>;

    /// Returns the namespace, for engines that are hosts themselves.
    fn fabric(&self) -> Option<&Fabric>;

    /// Returns the logical unit, for engines that are initiators themselves.
    fn unit(&self) -> Option<&LogicalUnit>;

    /// Returns the changeable copies of one set of files, for engines of containers.
    fn layers(&self) -> Option<&dyn Layers>;

    /// Returns the bytes that the devices below have written since the machine started, where they are counted.
    fn written_bytes(&self) -> Option<u64>;

    /// Returns `count` places of the same condition for one run. Each has a directory of its own and, where the
    /// condition is a container, a container of its own for each of its [commands](Self::command). An instance
    /// works on the directory, not on a file in it: [`Self::directory`] outside, [`Self::inside_directory`]
    /// inside. Fails if a directory cannot be made; nothing is left then.
    fn instances(
        &self,
        count: u32,
        base: &Base<'_>,
        stop: &Stop,
    ) -> Result<Box<dyn Instances>, Error>;
}

/// Places of a run's instances, whose directories are taken away when this is dropped.
pub trait Instances: Debug {
    /// Returns one place for each instance, in their order.
    fn places(&self) -> Vec<&dyn Place>;

    /// Takes the directories away; what cannot be undone is an error.
    fn take_back(self: Box<Self>) -> Result<(), Error>;
}

/// Changeable copies of one set of files, one for each container.
pub trait Layers: Debug {
    /// Returns how the copies are made.
    fn scheme(&self) -> Scheme;

    /// Returns the name that `tsumugi union bench` has for it.
    fn condition(&self) -> &'static str;

    /// Makes all that was written to upper directories and snapshots durable (syncfs).
    fn sync(&self) -> Result<(), Error>;

    /// Returns the command of a container at its place; it reports that it is ready and waits for orders.
    fn container(&self, place: &dyn Place, scratch: &Path, files: u32, seed: u64) -> Command;
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
    pub fn reach(&self) -> Vec<String> {
        let subsystem = &self.subsystem;
        let mut words =
            vec!["-a".into(), subsystem.address.clone(), "-s".into(), subsystem.port.to_string()];
        if let Some(path) = &self.network_namespace {
            words.extend(["--network-namespace".into(), path.display().to_string()]);
        }
        words
    }
}
