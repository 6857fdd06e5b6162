//! Levels of factors: storages, ways to run the load, and what engines alone take.

use crate::scheme::Scheme;
use crate::workload::Access;
use reactor::Spin;
use serde::Serialize;
use std::any::Any;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A level of a factor: how to enter and leave it.
#[derive(Clone, Debug)]
pub struct Level {
    /// How it is called in reports.
    pub label: String,
    /// What it is.
    pub kind: LevelKind,
    /// A file system of its own on it, for storages that are files.
    pub file_system: Option<FileSystem>,
    /// The kernel's scheduler of its block device, for storages that have one of their own.
    pub scheduler: Option<String>,
}

impl Level {
    /// Returns what the level says to the engine whose settings are of this type.
    pub fn setting<T: Setting>(&self) -> Option<&T> {
        let LevelKind::Setting(setting) = &self.kind else { return None };
        (setting.as_ref() as &dyn Any).downcast_ref()
    }

    /// Returns why it does not go with an engine that works on files.
    pub fn mismatch_of_files(&self, engine: &str) -> Option<String> {
        match &self.kind {
            LevelKind::Storage(Storage::BlockDevice { .. } | Storage::Paced(_)) => Some(format!(
                "engine {engine:?} works on files: kinds are directory, pool and command, and target \
                 with a file-system"
            )),
            LevelKind::Storage(Storage::Target { .. }) if self.file_system.is_none() => {
                Some(format!("engine {engine:?} needs a file-system on a target"))
            }
            _ => None,
        }
    }

    /// Returns its storage, if it is one.
    pub fn storage(&self) -> Option<&Storage> {
        match &self.kind {
            LevelKind::Storage(storage) => Some(storage),
            _ => None,
        }
    }
}

/// What a level says to the one engine that takes it.
pub trait Setting: Any + Debug + Send + Sync {
    /// Returns the name of that engine.
    fn engine(&self) -> &'static str;

    /// Adds to the access path of a load what this level decides. `label` is the level's.
    fn refine(&self, _label: &str, _access: &mut Access) {}

    /// Returns whether it adds work of its own, so that runs without a device no longer show what the load
    /// itself takes.
    fn adds_work(&self) -> bool {
        false
    }

    /// Checks that this machine has what it needs; the error is why its conditions are not available.
    fn check(&self) -> Result<(), Missing> {
        Ok(())
    }

    /// Checks that a storage with this directory can do it. `program` is `tsumugi`.
    fn check_directory(&self, _directory: &Path, _program: &Path) -> Result<(), Missing> {
        Ok(())
    }
}

/// What a machine lacks: why a condition is not available.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Missing(pub String);

/// File systems that can be put on a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// The kernel's ext4.
    Ext4,
}

impl FileSystem {
    /// All of them, with the names they have in files.
    pub const ALL: [(&'static str, Self); 1] = [("ext4", Self::Ext4)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}

/// Kinds of level.
#[derive(Clone, Debug)]
pub enum LevelKind {
    /// A storage to work on.
    Storage(Storage),
    /// A way to run the load.
    Runtime(Runtime),
    /// What one engine alone takes, which it declares.
    Setting(Arc<dyn Setting>),
}

/// Storages.
#[derive(Clone, Debug)]
pub enum Storage {
    /// A file in a directory of ours below this one (default: the one that `--data` names).
    Directory(Option<PathBuf>),
    /// A block device. Writing needs its serial number.
    BlockDevice {
        /// The device.
        path: PathBuf,
        /// Serial number, as consent to lose what is on it.
        destroy: Option<String>,
    },
    /// A file exported by our own target, reached over NVMe/TCP and seen as a file through
    /// `tsumugi nvme attach`.
    Target {
        /// Where the target's file is made (default: as for a directory).
        directory: Option<PathBuf>,
        /// What lies between host and target.
        network: Network,
        /// What the namespace is made of.
        backing: Backing,
        /// How long its threads spin before they sleep; `None` is the target's default.
        poll_us: Option<Spin>,
    },
    /// A file exported by an iSCSI target (tgt) over the loopback device, for the engine of fixed
    /// rates: what stands beside [`Storage::Target`] on the same file.
    Iscsi {
        /// Where the target's file is made (default: as for a directory).
        directory: Option<PathBuf>,
    },
    /// A subsystem of an existing target, for the engine `nvme`.
    Subsystem(Subsystem),
    /// A device of known speed, to test experiments on.
    Paced(Paced),
    /// Our own file system, of several nodes on this machine.
    Pool(Pool),
    /// Changeable copies of one set of files, one for each container.
    Layers(Scheme),
    /// A device that does nothing, for the engine of fixed rates: what its load itself takes.
    Null,
    /// The load's own memory, for the engine of fixed rates.
    Memory,
    /// Whatever commands mount at `{directory}`, which is made for it.
    Command {
        /// Shell command that mounts.
        enter: String,
        /// Shell command that unmounts.
        leave: String,
    },
}

impl Storage {
    /// Returns the name of its kind in files.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Directory(_) => "directory",
            Self::BlockDevice { .. } => "block-device",
            Self::Target { .. } => "target",
            Self::Iscsi { .. } => "iscsi",
            Self::Subsystem(_) => "nqn",
            Self::Paced(_) => "paced",
            Self::Pool(_) => "pool",
            Self::Layers(_) => "layers",
            Self::Null => "null",
            Self::Memory => "memory",
            Self::Command { .. } => "command",
        }
    }
}

/// What our target's namespace is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A file, with direct I/O.
    File,
    /// The target's memory.
    Memory,
}

/// A namespace that is there already.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// Address or name of the target.
    pub address: String,
    /// Its port.
    pub port: u16,
    /// Name of the subsystem.
    pub nqn: String,
    /// Which namespace (default: the only one).
    pub namespace: Option<u32>,
    /// One of its names, as consent to lose what is on it.
    pub destroy: Option<String>,
}

/// A file system of ours on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Nodes, each with a device and a mount.
    pub nodes: u16,
    /// Size of each node's device, a file.
    pub device_bytes: u64,
    /// Whether mounts make and check checksums of data.
    pub has_checksums: bool,
    /// How long the threads of its processes spin before they sleep; `None` is their default.
    pub poll_us: Option<Spin>,
    /// The node whose mount the load uses, from 1. The first one writes the file.
    pub reader: u16,
}

/// A device that serves at a known rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paced {
    /// Bytes per second.
    pub bytes_per_s: u64,
    /// Each operation takes its time times a factor drawn from 1 ± this.
    pub spread: f64,
}

/// What lies between host and target on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The loopback device.
    Loopback,
    /// A network namespace for the target, joined by a veth pair (root only).
    Namespace,
}

/// Ways to run the load.
#[derive(Clone, Debug)]
pub enum Runtime {
    /// As a plain process.
    Native,
    /// In a container, by the first of these that works here.
    Container(Vec<ContainerKind>),
}

/// Container runtimes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum ContainerKind {
    /// `ch-run`
    Charliecloud,
    /// `podman`
    Podman,
    /// `docker`
    Docker,
    /// `apptainer` or `singularity`
    Apptainer,
    /// `unshare` and `chroot`
    Namespaces,
}

impl ContainerKind {
    /// All of them, with the names they have in files.
    pub const ALL: [(&'static str, Self); 5] = [
        ("charliecloud", Self::Charliecloud),
        ("podman", Self::Podman),
        ("docker", Self::Docker),
        ("apptainer", Self::Apptainer),
        ("namespaces", Self::Namespaces),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
    }
}
