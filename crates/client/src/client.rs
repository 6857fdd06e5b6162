//! The parts of a client.

use crate::absent_names::AbsentNames;
use crate::ahead::memory::{AheadCounts, Memory};
use crate::change::Change;
use crate::devices::{DeviceUse, Devices, LocalDevices};
use crate::inode::Inode;
use crate::inode::lent::{Lending, LentCounts};
use crate::locks::waits::LockWaits;
use crate::removals::Removals;
use crate::session::Session;
use crate::session::config::SessionConfig;
use crate::session::counts::CallCounts;
use crate::small_pieces::{CompactCounts, Compaction};
use crate::small_reads::{AllBlocks, BlockCounts};
use crate::space::Space;
use crate::stream::working::WorkingOn;
use crate::sums::mismatches::{ChecksumCounts, Mismatches};
use crate::write_back::WriteBack;
use locks::LockTable;
use protocol::client::{Answer, Call, ReadCall};
use protocol::lease::Return;
use protocol::space::PoolUse;
use protocol::{Errno, InodeId, SessionId};
use reactor::local::{Semaphore, WaitGroup};
use reactor::time::Instant;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Configuration of a client.
pub struct ClientConfig {
    /// The metadata service.
    pub session: SessionConfig,
    /// Devices that this process reaches without a socket.
    pub local: LocalDevices,
    /// Whether to connect in the clear to targets that take no TLS. Otherwise the client does not
    /// use them.
    pub plain_data: bool,
    /// Receives changes that others made, for a cache outside of this client (the kernel). It is
    /// called after the client has answered the recall that announced the change.
    pub changes: Option<Box<dyn Fn(Change)>>,
    /// Files up to this size travel in commits and lie with the service. At most
    /// [`protocol::inline::INLINE_MAX_BYTES`]; 0 for none.
    pub inline_bytes: u64,
    /// Whether to compute checksums of written data, and to check those of data that is read.
    pub checksum: bool,
}

impl std::fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConfig").field("session", &self.session).finish_non_exhaustive()
    }
}

/// Counts of a client since its start.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct ClientCounts {
    /// Calls to the metadata service.
    #[serde(flatten)]
    pub meta: CallCounts,
    /// Bytes and commands, by device.
    pub devices: Vec<DeviceUse>,
    /// What the client lent to the kernel.
    #[serde(flatten)]
    pub lent: LentCounts,
    /// What was read ahead.
    #[serde(flatten)]
    pub ahead: AheadCounts,
    /// What was read in small pieces and kept.
    #[serde(flatten)]
    pub blocks: BlockCounts,
    /// Compactions.
    #[serde(flatten)]
    pub compaction: CompactCounts,
    /// Wrong checksums.
    #[serde(flatten)]
    pub checksums: ChecksumCounts,
}

/// A session with the file system.
pub struct Client {
    pub(crate) session: Rc<Session>,
    pub(crate) inodes: RefCell<BTreeMap<InodeId, Rc<Inode>>>,
    pub(crate) space: RefCell<Space>,
    pub(crate) devices: Devices,
    /// Each permit stands for one byte of dirty data in memory.
    pub(crate) dirty_budget: Semaphore,
    /// Inodes that have uncommitted data.
    pub(crate) dirty_inodes: RefCell<BTreeMap<InodeId, Rc<Inode>>>,
    /// Those of them that the background commits.
    pub(crate) write_back: WriteBack,
    pub(crate) changes: Option<Box<dyn Fn(Change)>>,
    /// See [`ClientConfig::inline_bytes`].
    pub(crate) inline_bytes: u64,
    /// See [`ClientConfig::checksum`].
    pub(crate) checksum: bool,
    /// Wrong checksums that were found.
    pub(crate) mismatches: Mismatches,
    /// Inodes whose inline bytes are cached, the oldest first. Some appear more than once.
    pub(crate) heads: RefCell<VecDeque<InodeId>>,
    /// Cached names that do not exist.
    pub(crate) absent_names: AbsentNames,
    /// The recalls whose answers wait for I/O or calls.
    pub(crate) working_on: WorkingOn,
    /// Rights of forgotten inodes, which go back to the service together.
    pub(crate) returns: RefCell<Vec<Return>>,
    /// Open handles.
    pub(crate) open_files: Cell<usize>,
    pub(crate) removals: Removals,
    /// The locks that this client decides about.
    pub(crate) own_locks: RefCell<LockTable>,
    pub(crate) lock_waits: LockWaits,
    /// The inodes with locks that this client decides about.
    pub(crate) locked_inodes: RefCell<BTreeSet<InodeId>>,
    /// The number of the last commit that has ended.
    pub(crate) commits: Cell<u64>,
    /// The number of the last listing of a whole directory.
    pub(crate) listings: Cell<u64>,
    /// What may be lent to the kernel, what was lent, and until when at most.
    pub(crate) lending: Cell<Lending>,
    pub(crate) lent_counts: Cell<LentCounts>,
    pub(crate) lent_until: Cell<Instant>,
    /// Changes of this client itself that it is taking back from the kernel.
    pub(crate) own_taking_back: WaitGroup,
    /// Memory for read-ahead.
    pub(crate) read_ahead: Rc<Memory>,
    /// Blocks that were read in small pieces.
    pub(crate) blocks: AllBlocks,
    /// Files that were written in small pieces.
    pub(crate) compaction: Compaction,
    pub(crate) closed: Cell<bool>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Client {
    /// Returns whether the session has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Returns the session's number.
    pub fn session_id(&self) -> Option<SessionId> {
        self.session.identity().session
    }

    /// Returns the file system's identity.
    pub fn file_system(&self) -> uuid::Uuid {
        self.session.identity().file_system
    }

    /// Returns what was counted so far.
    pub fn counts(&self) -> ClientCounts {
        ClientCounts {
            meta: self.session.counts(),
            devices: self.devices.counts(),
            lent: self.lent_counts.get(),
            ahead: self.read_ahead.counts(),
            blocks: self.blocks.counts(),
            compaction: self.compaction.counts(),
            checksums: self.mismatches.counts(),
        }
    }

    /// Returns the use of the pool, for `statfs(2)`.
    ///
    /// # Errors
    /// Those of a call.
    pub async fn pool_use(self: &Rc<Self>) -> Result<PoolUse, Errno> {
        match self.session.call(Call::Read(ReadCall::PoolUse)).await? {
            Answer::PoolUse(pool_use) => Ok(pool_use),
            _ => Err(Errno::EPROTO),
        }
    }
}
