//! The calls of an administrator's tool to the metadata service.

use crate::agent::DeviceCounts;
use crate::ids::{DeviceId, InodeId};
use crate::space::{DeviceInfo, PoolUse, SessionInfo};
use serde::{Deserialize, Serialize};

/// An administrator's call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// The state of the pool → [`Answer::Status`].
    Status,
    /// Paths of files that have data on devices that are offline → [`Answer::Paths`], or
    /// [`Answer::PathsSoFar`] if the search took too long.
    FilesHit {
        /// Most paths of the answer.
        count_max: u32,
    },
    /// End: sync the store and exit → [`Answer::Done`].
    Shutdown,
    /// Check all records while calls go on → [`Answer::Checked`]. It may take long.
    Check,
}

/// A contradiction between records, as [`Answer::Checked`] reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contradiction {
    /// The name of the area that it concerns.
    pub area: String,
    /// The inode that it concerns, if any.
    pub inode: Option<InodeId>,
    /// A path of that inode, if it has one.
    pub path: Option<String>,
    /// The sentence that describes it.
    pub what: String,
}

/// The metadata service's counts since its start.
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
    /// Retried calls that got their stored answer.
    pub repeated: u64,
    /// Commits that were dropped because a truncation had come first.
    pub late_commits: u64,
}

/// The answer to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// Success, without a result.
    Done,
    /// The state of the pool.
    Status {
        /// Devices.
        devices: Vec<DeviceInfo>,
        /// Devices whose targets are in contact and take data in the clear.
        plain: Vec<DeviceId>,
        /// The last report of each target.
        counts: Vec<DeviceCounts>,
        /// Sessions.
        sessions: Vec<SessionInfo>,
        /// Space.
        pool_use: PoolUse,
        /// The service's counts.
        meta: MetaCounts,
    },
    /// Paths, relative to the root, with the device each has data on.
    Paths(Vec<(Vec<u8>, DeviceId)>),
    /// The call is refused, with the reason.
    Refused(String),
    /// The result of a check.
    Checked {
        /// Inodes of the file system.
        inodes: u64,
        /// The number of all contradictions.
        count: u64,
        /// The first of them.
        found: Vec<Contradiction>,
    },
    /// As [`Answer::Paths`], of a search that ended before it had seen the whole tree.
    PathsSoFar(Vec<(Vec<u8>, DeviceId)>),
}
