//! Levels of factors: storages, ways to run the load, settings, known effects.

use serde::Serialize;
use std::path::PathBuf;

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
    /// Settings of our own NVMe host, for its engine.
    Host(HostSettings),
    /// How jobs come to a device, for the engine of fixed rates.
    Queue(QueuePolicy),
    /// A way to do it, for the engine of IOR.
    Ior(super::ior::IorLevel),
    /// A way that another program did it, for the engine of imported results.
    Imported,
    /// A known effect, for the synthetic engine.
    Synthetic(Synthetic),
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
    Layers(super::Scheme),
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

/// How several jobs come to one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePolicy {
    /// A queue for each job.
    Direct,
    /// One queue for all jobs, sorted and merged behind a lock: an emulated single queue.
    Elevator,
}

impl QueuePolicy {
    /// All of them, with the names they have in files.
    pub const ALL: [(&'static str, Self); 2] =
        [("direct", Self::Direct), ("elevator", Self::Elevator)];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(name, _)| name)
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
}

/// A device that serves at a known rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Paced {
    /// Bytes per second.
    pub bytes_per_s: u64,
    /// Each operation takes its time times a factor drawn from 1 ± this.
    pub spread: f64,
}

/// Settings of our own NVMe host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostSettings {
    /// I/O queue pairs per job.
    pub io_queues: Option<u16>,
    /// Microseconds to spin for completions before sleeping.
    pub poll_us: Option<reactor::Spin>,
    /// CPUs to pin jobs to, in turn.
    pub cpus: Vec<u16>,
    /// Whether to ask for header digests.
    pub has_header_digest: bool,
    /// Whether to ask for data digests.
    pub has_data_digest: bool,
}

impl HostSettings {
    /// These settings, and of another level what these leave open.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        let cpus = if self.cpus.is_empty() { &other.cpus } else { &self.cpus };
        Self {
            io_queues: self.io_queues.or(other.io_queues),
            poll_us: self.poll_us.or(other.poll_us),
            cpus: cpus.clone(),
            has_header_digest: self.has_header_digest || other.has_header_digest,
            has_data_digest: self.has_data_digest || other.has_data_digest,
        }
    }
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

/// What a level of the synthetic engine does.
#[derive(Clone, Copy, Debug)]
pub struct Synthetic {
    /// Factor on throughput.
    pub ratio: f64,
    /// Deviation of the logarithm of each run.
    pub noise: f64,
    /// Deviation of the logarithm of the noise that the runs of a pair share.
    pub common: f64,
    /// Share by which the machine slows down per 100 runs.
    pub drift: f64,
    /// Share by which this level alone slows down per round.
    pub trend: f64,
    /// Deviation of the logarithm of the part that wanders from round to round,
    pub wander: f64,
    /// and the correlation of neighbouring rounds in it.
    pub correlation: f64,
    /// Share of the next run's throughput that this level takes away, by what it leaves behind.
    pub leaves: f64,
    /// Factor on throughput in the last third of each run.
    pub cliff: f64,
    /// Share of seconds in which nothing moves.
    pub stalls: f64,
}
