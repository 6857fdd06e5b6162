//! One machine's tasks for a job. `up` makes a plan per machine; [`super::machine`] carries it out,
//! here or at the other end of ssh.

use super::data_fabric::DataFabric;
use super::process::Process;
use super::slurm::SlurmRun;
use super::users::User;
use block::Fill;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use zeroize::Zeroizing;

/// A key as text. It travels only on standard input, and is cleared when dropped.
#[derive(Clone)]
pub(crate) struct KeyText(Zeroizing<String>);

impl KeyText {
    /// Returns the text.
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
    /// The job's key, on the machine of the metadata service.
    pub(crate) secret: Option<KeyText>,
    /// The metadata service, if it runs here.
    pub(crate) meta: Option<MetaPlan>,
    /// The nodes of this machine; more than one only with `--local`.
    pub(crate) nodes: Vec<NodePlan>,
    /// Whether sockets use network namespaces.
    pub(crate) has_fabric: bool,
    /// Directory for backing files; without it the machine chooses one.
    pub(crate) device_dir: Option<PathBuf>,
    /// Write backing files once beforehand.
    pub(crate) is_prewritten: bool,
    /// Leave backing files where they are when the job ends.
    pub(crate) keep_devices: bool,
    /// The FUSE transport: `auto`, `device` or `uring`.
    pub(crate) transport: String,
    /// The engine that its processes must use, if one is required.
    #[serde(default)]
    pub(crate) engine: Option<String>,
    /// How long its processes spin before they sleep.
    pub(crate) poll_us: reactor::Spin,
    /// Data between nodes travels in the clear.
    pub(crate) plain_data: bool,
    /// The fabric that carries the data.
    #[serde(default)]
    pub(crate) data_fabric: DataFabric,
    /// Whether checksums of data are made and checked: `on` or `off`.
    #[serde(default = "checksum_on")]
    pub(crate) checksum: String,
    /// The user for whom root creates the pool.
    pub(crate) owner: Option<User>,
    /// Switch FUSE over `io_uring` on for the machine, or fail.
    pub(crate) fuse_uring: bool,
    /// Restart dead processes.
    pub(crate) is_kept: bool,
    /// The process of this machine that ends the job by its own end.
    pub(crate) owner_process: Option<Process>,
    /// How long the lease lasts without a renewal.
    pub(crate) lease_seconds: Option<u64>,
    /// The run of a Slurm job that ends the job by its own end.
    #[serde(default)]
    pub(crate) owner_run: Option<SlurmRun>,
    /// The Slurm job that creates this job, itself or by its prolog.
    #[serde(default)]
    pub(crate) slurm_job: Option<u32>,
}

impl Plan {
    /// Returns how much of backing files is written beforehand.
    pub(crate) fn fill(&self) -> Fill {
        if self.is_prewritten { Fill::Written } else { Fill::Reserved }
    }

    /// Returns the user of the pool.
    pub(crate) fn owner(&self) -> User {
        self.owner.clone().unwrap_or_else(User::current)
    }

    /// Returns the directory of this machine's backing files and metadata store: not the job's
    /// directory, which may be in memory.
    pub(crate) fn device_dir(&self) -> PathBuf {
        self.device_dir.clone().unwrap_or_else(|| format!("/var/tmp/tsumugi-{}", self.id).into())
    }
}

/// The metadata service.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MetaPlan {
    /// Its address.
    pub(crate) listen: SocketAddr,
}

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NodePlan {
    /// Its name.
    pub(crate) name: String,
    /// Its key; only the metadata service has it, too.
    pub(crate) key: KeyText,
    /// The address of its target; port 0 chooses a free port.
    pub(crate) listen: SocketAddr,
    /// Its mount point; below the job's directory by default.
    pub(crate) mount: Option<PathBuf>,
    /// Its device.
    pub(crate) device: DevicePlan,
}

/// A node's device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum DevicePlan {
    /// A backing file of this size, created in the device directory.
    File {
        /// Bytes.
        size: u64,
    },
    /// The first free one of some block devices, files and directories. Tsumugi never removes a
    /// device or file; in a directory it creates a backing file.
    Existing {
        /// Their patterns.
        patterns: Vec<String>,
        /// Bytes of a backing file.
        size: u64,
        /// Use a device even if it carries data.
        destroy: bool,
    },
    /// Memory.
    Memory {
        /// Bytes.
        size: u64,
    },
}

/// Returns the meaning of a plan from a version without that option.
fn checksum_on() -> String {
    "on".into()
}
