//! Devices, and their space that a session may write.

use crate::ids::{AllocationId, DeviceId, Incarnation, SessionId};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Largest allocation, in bytes.
pub const ALLOCATION_MAX_BYTES: u64 = 1 << 20;

/// Default size of a segment, in bytes.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// First grant of space to a session on a device, in bytes; each further one doubles up to
/// [`SEGMENT_BYTES`].
pub const FIRST_GRANT_BYTES: u64 = 1 << 20;

/// A run of blocks on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockRange {
    /// First block, counted from the device's start.
    pub start: u64,
    /// Number of blocks; at least 1.
    pub count: u64,
}

impl BlockRange {
    /// Returns one past the last block.
    pub fn end(&self) -> u64 {
        self.start + self.count
    }
}

/// The transport of the connections to a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Transport {
    /// NVMe/TCP.
    #[default]
    Tcp,
    /// NVMe/RDMA: data travels in the clear.
    Rdma,
}

/// The address of a device's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAddress {
    /// Address and port of the target, such as `127.0.0.1:4420`.
    pub traddr: String,
    /// NQN of the subsystem.
    pub subnqn: String,
    /// Namespace in that subsystem.
    pub nsid: u32,
    /// How hosts connect to it.
    pub transport: Transport,
}

/// A device of the pool, for clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Its number.
    pub device: DeviceId,
    /// The namespace's UUID.
    pub uuid: Uuid,
    /// The device's node.
    pub node: String,
    /// Its address.
    pub address: DeviceAddress,
    /// Block size in bytes: a power of two, 512 to 65536.
    pub block_size: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// See [`Incarnation`].
    pub incarnation: Incarnation,
    /// The device is memory: its content, flushed or not, ends with the incarnation.
    pub is_volatile: bool,
    /// Whether its target is in contact with the metadata service.
    pub online: bool,
}

/// Space that a session may allocate from: a lease on a part of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpaceGrant {
    /// The device.
    pub device: DeviceId,
    /// The device's incarnation when the grant was made.
    pub incarnation: Incarnation,
    /// Its free blocks, ascending and apart from one another.
    pub free: Vec<BlockRange>,
}

/// A new allocation that a commit names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NewAllocation {
    /// Its identifier.
    pub allocation: AllocationId,
    /// Its length in blocks; at least 1, at most [`ALLOCATION_MAX_BYTES`] in all.
    pub blocks: u32,
    /// Incarnation of the device that acknowledged the writes.
    pub incarnation: Incarnation,
    /// The device has answered a flush that was requested after it had acknowledged the writes.
    pub is_flushed: bool,
}

/// The result of `statfs`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolUse {
    /// Bytes of all devices.
    pub total_bytes: u64,
    /// Bytes of blocks that are not live; reserved and dead ones count as free.
    pub free_bytes: u64,
    /// Bytes that sessions lease and have not written to any file yet.
    pub reserved_bytes: u64,
    /// Bytes of dead blocks that sessions may still read; they rest until these reads have ended.
    pub dead_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// A session, for reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionInfo {
    /// The session.
    pub session: SessionId,
    /// The node that runs its client.
    pub node: String,
    /// Milliseconds since its last heartbeat.
    pub silent_ms: u64,
}
