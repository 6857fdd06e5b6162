//! What an administrator's tool may ask of the metadata service.

use crate::agent::DeviceCounts;
use crate::ids::{DeviceId, InodeId};
use crate::space::{DeviceInfo, PoolUse, SessionInfo};
use serde::{Deserialize, Serialize};

/// An administrator's call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// The state of the pool → [`Answer::Status`].
    Status,
    /// Paths of files that have data on devices that are offline, at most so many → [`Answer::Paths`].
    FilesHit {
        /// At most so many paths.
        count_max: u32,
    },
    /// End: sync the store and exit → [`Answer::Done`].
    Shutdown,
    /// Check all records as of now, while calls go on → [`Answer::Checked`]. It may take long.
    Check,
}

/// A contradiction between records, as [`Answer::Checked`] tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contradiction {
    /// What it concerns, by name.
    pub area: String,
    /// The inode that it is about, if it is about one.
    pub inode: Option<InodeId>,
    /// A path of that inode, if it has one.
    pub path: Option<String>,
    /// What was found, as a sentence.
    pub what: String,
}

/// What the metadata service has counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaCounts {
    /// Calls answered.
    pub calls: u64,
    /// Recalls and invalidations sent.
    pub recalls: u64,
    /// Store transactions committed.
    pub transactions: u64,
    /// Store syncs.
    pub syncs: u64,
    /// Sessions that were fenced.
    pub fenced: u64,
    /// Calls that were asked again and got the answer of the first time.
    pub repeated: u64,
    /// Commits that were dropped because a truncation had come first.
    pub late_commits: u64,
}

/// The answer to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Nothing to tell.
    Done,
    /// The state of the pool.
    Status {
        /// Devices.
        devices: Vec<DeviceInfo>,
        /// Devices whose targets are in contact and take data in the clear.
        plain: Vec<DeviceId>,
        /// What each target last reported.
        counts: Vec<DeviceCounts>,
        /// Sessions.
        sessions: Vec<SessionInfo>,
        /// Space.
        pool_use: PoolUse,
        /// What the service has counted.
        meta: MetaCounts,
    },
    /// Paths, relative to the root, with the device each has data on.
    Paths(Vec<(Vec<u8>, DeviceId)>),
    /// Not to be done, and why.
    Refused(String),
    /// What a check has found.
    Checked {
        /// Inodes of the file system.
        inodes: u64,
        /// Contradictions in all.
        count: u64,
        /// The first of them.
        found: Vec<Contradiction>,
    },
}
