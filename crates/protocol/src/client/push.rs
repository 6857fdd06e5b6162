//! What the metadata service asks of a client, and its answers.

use super::Name;
use crate::ids::{DeviceId, FreeEpoch, InodeId, LeaseStamp};
use crate::lease::{Recall, Recalled};
use crate::space::DeviceInfo;
use serde::{Deserialize, Serialize};

/// What the metadata service asks of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Push {
    /// Give rights back → [`PushAnswer::Recalled`].
    Recall(Recall),
    /// Entries of a directory changed; what is cached of these names is wrong, the READ right over
    /// the directory stays → [`PushAnswer::Done`] once they are dropped.
    Invalidate {
        /// The directory.
        inode: InodeId,
        /// The names.
        names: Vec<Name>,
        /// Its attributes after the change are unknown: drop them too.
        stamp: LeaseStamp,
    },
    /// A device has lost data that was committed: extents that were cached may be lost ones and are
    /// dropped → [`PushAnswer::Done`].
    Lost(DeviceId),
    /// Devices came, went or changed → [`PushAnswer::Done`].
    Devices(Vec<DeviceInfo>),
    /// Space is short: return all leased space that is not in use (by [`super::ChangeCall::ReturnSpace`]) and
    /// say which reads have ended, then → [`PushAnswer::Ended`].
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
