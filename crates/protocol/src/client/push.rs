//! Requests of the metadata service to a client, and their answers.

use super::Name;
use crate::ids::{DeviceId, FreeEpoch, InodeId, LeaseStamp};
use crate::lease::{Recall, Recalled};
use crate::space::DeviceInfo;
use serde::{Deserialize, Serialize};

/// A request of the metadata service to a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Push {
    /// Give rights back → [`PushAnswer::Recalled`].
    Recall(Recall),
    /// Entries of a directory changed: the client must drop what it caches under these names. It
    /// keeps its READ right over the directory → [`PushAnswer::Done`] once they are dropped.
    Invalidate {
        /// The directory.
        inode: InodeId,
        /// The names.
        names: Vec<Name>,
        /// The stamp of this invalidation. The client drops the directory's attributes too, because
        /// it does not know them after the change.
        stamp: LeaseStamp,
    },
    /// A device has lost committed data: the client drops cached extents, because some may be lost
    /// ones → [`PushAnswer::Done`].
    Lost(DeviceId),
    /// Devices were added, removed or changed → [`PushAnswer::Done`].
    Devices(Vec<DeviceInfo>),
    /// Space is short: return all leased space that is not in use (by
    /// [`super::ChangeCall::ReturnSpace`]) and report which reads have ended, then →
    /// [`PushAnswer::Ended`].
    Reclaim {
        /// The free epoch to end reads for.
        free_epoch: FreeEpoch,
    },
}

/// A client's answer to a [`Push`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PushAnswer {
    /// Done.
    Done,
    /// Rights were given back.
    Recalled(Recalled),
    /// All reads from before this epoch have ended.
    Ended(FreeEpoch),
}
