//! Identifiers. Each has a type of its own, so that the compiler rejects one in the place of
//! another.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $inner:ty, $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number!(
    /// An inode of the file system; 1 is the root, 0 is never used. Never reused.
    InodeId, u64, "inode "
);
number!(
    /// A client's session with the metadata service. Never reused within a file system.
    SessionId, u64, "session "
);
number!(
    /// A device of the pool, numbered by the metadata service in the order of registration.
    DeviceId, u32, "device "
);
number!(
    /// Counts the admissions of a host identifier: a fence excludes one epoch, not the host for
    /// ever.
    Epoch, u64, "epoch "
);
number!(
    /// Counts the transactions that freed blocks. Blocks freed at epoch *e* rest until every session
    /// has ended its reads from before *e*.
    FreeEpoch, u64, "free epoch "
);
number!(
    /// An inode's truncate generation: a commit that carries an older one is dropped.
    Generation, u64, "generation "
);
number!(
    /// Orders the grants and recalls of one inode's rights between a session and the service.
    LeaseStamp, u64, "stamp "
);

impl InodeId {
    /// The root directory.
    pub const ROOT: InodeId = InodeId(1);
}

impl DeviceId {
    /// No device: stands in the location of lost bytes ([`crate::Place::lost`]).
    pub const LOST: DeviceId = DeviceId(u32::MAX);
}

/// The NVMe host identifier (128 bit) under which a session is admitted at targets (NVMe base
/// specification, feature 81h).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct HostId(pub [u8; 16]);

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostId({self})")
    }
}

impl fmt::Display for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        uuid::Uuid::from_bytes(self.0).fmt(f)
    }
}

/// Changes whenever writes that a device acknowledged but had not flushed may have been lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Incarnation(pub u128);

/// The identifier of an allocation: its device and its first block there. At most one live
/// allocation starts at a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AllocationId {
    /// The allocation's device.
    pub device: DeviceId,
    /// Its first block, counted from the device's start.
    pub block: u64,
}

impl fmt::Display for AllocationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allocation at {} block {}", self.device, self.block)
    }
}
