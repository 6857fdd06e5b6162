//! What one machine is to do for a job. `up` makes a plan per machine; [`super::machine`] carries
//! it out, here or at the other end of ssh.

use super::process::Process;
use super::slurm::SlurmRun;
use super::users::User;
use block::Fill;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// A key as text. It travels on standard input only, and is cleared when it is dropped.
#[derive(Clone)]
pub(crate) struct KeyText(Zeroizing<String>);

impl KeyText {
    /// The text.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Zeroizing<String>> for KeyText {
    fn from(text: Zeroizing<String>) -> Self {
        Self(text)
    }
}

impl fmt::Debug for KeyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyText(..)")
    }
}

impl Serialize for KeyText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for KeyText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(Zeroizing::new(text)))
    }
}

/// A machine's part of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Plan {
    /// The job's identifier: 16 random hexadecimal digits, the same on all its machines.
    pub(crate) id: String,
    /// The job's key, where the metadata service runs.
    pub(crate) secret: Option<KeyText>,
    /// The metadata service, if it runs here.
    pub(crate) meta: Option<MetaPlan>,
    /// The nodes of this machine; more than one only with `--local`.
    pub(crate) nodes: Vec<NodePlan>,
    /// Whether sockets go into network namespaces.
    pub(crate) has_fabric: bool,
    /// Directory for backing files; a place of the machine's own choice without it.
    pub(crate) device_dir: Option<PathBuf>,
    /// Write backing files once beforehand.
    pub(crate) is_prewritten: bool,
    /// Leave backing files where they are when the job ends.
    pub(crate) keep_devices: bool,
    /// How FUSE requests travel: `auto`, `device` or `uring`.
    pub(crate) transport: String,
    /// The engine that its processes must use, if one was asked for.
    #[serde(default)]
    pub(crate) engine: Option<String>,
    /// How long its processes spin before they sleep.
    pub(crate) poll_us: reactor::Spin,
    /// Data between nodes travels in the clear.
    pub(crate) plain_data: bool,
    /// Whether checksums of data are made and checked: `on` or `off`.
    #[serde(default = "checksum_on")]
    pub(crate) checksum: String,
    /// The user whom root makes the pool for.
    pub(crate) owner: Option<User>,
    /// Switch FUSE over `io_uring` on for the machine, or fail.
    pub(crate) fuse_uring: bool,
    /// Start again what dies.
    pub(crate) is_kept: bool,
    /// The process of this machine whose end is that of the job.
    pub(crate) owner_process: Option<Process>,
    /// How long a lease lasts that is not renewed.
    pub(crate) lease_seconds: Option<u64>,
    /// The run of a Slurm job whose end is that of the job.
    #[serde(default)]
    pub(crate) owner_run: Option<SlurmRun>,
    /// The Slurm job in which, or in whose prolog, the job is made.
    #[serde(default)]
    pub(crate) slurm_job: Option<u32>,
}

impl Plan {
    /// How much of backing files is done beforehand.
    pub(crate) fn fill(&self) -> Fill {
        if self.is_prewritten { Fill::Written } else { Fill::Reserved }
    }

    /// The user whom the pool is for.
    pub(crate) fn owner(&self) -> User {
        self.owner.clone().unwrap_or_else(User::current)
    }

    /// Where this machine's backing files and the metadata store are made: not in the job's
    /// directory, which may well be in memory.
    pub(crate) fn device_dir(&self) -> PathBuf {
        self.device_dir.clone().unwrap_or_else(|| format!("/var/tmp/tsumugi-{}", self.id).into())
    }
}

/// The metadata service.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetaPlan {
    /// Where it listens.
    pub(crate) listen: SocketAddr,
}

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodePlan {
    /// Its name.
    pub(crate) name: String,
    /// Its key, which nobody else has but the metadata service.
    pub(crate) key: KeyText,
    /// Where its target listens; port 0 takes a free one.
    pub(crate) listen: SocketAddr,
    /// Where it mounts; below the job's directory without it.
    pub(crate) mount: Option<PathBuf>,
    /// Its device.
    pub(crate) device: DevicePlan,
}

/// A node's device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum DevicePlan {
    /// A backing file of this size, made in the device directory.
    File {
        /// Bytes.
        size: u64,
    },
    /// The first of some block devices, files and directories that is free; nobody removes a device
    /// or file. In a directory a backing file is made.
    Existing {
        /// Their patterns.
        patterns: Vec<String>,
        /// Bytes of a backing file.
        size: u64,
        /// Use what carries something.
        destroy: bool,
    },
    /// Memory.
    Memory {
        /// Bytes.
        size: u64,
    },
}

/// What a plan of a version without that option means.
fn checksum_on() -> String {
    "on".into()
}
