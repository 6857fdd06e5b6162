//! The client itself: its parts.

use crate::ahead::memory::{AheadCounts, Memory};
use crate::change::Change;
use crate::devices::{DeviceUse, Devices, LocalDevices};
use crate::inode::Inode;
use crate::inode::lent::{Lending, LentCounts};
use crate::mismatches::{ChecksumCounts, Mismatches};
use crate::removals::Removals;
use crate::session::Session;
use crate::session::config::SessionConfig;
use crate::session::counts::CallCounts;
use crate::small_pieces::{CompactCounts, Compaction};
use crate::space::Space;
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

/// How to make a client.
pub struct ClientConfig {
    /// The metadata service.
    pub session: SessionConfig,
    /// Devices that this process reaches without a socket.
    pub local: LocalDevices,
    /// Connect in the clear to targets that take no TLS; without it they are not used.
    pub plain_data: bool,
    /// Called with changes that others made, for whoever caches outside of this client (the
    /// kernel); always after the recall that told of it was answered.
    pub changes: Option<Box<dyn Fn(Change)>>,
    /// Data of files that are no longer than this travels in commits and lies with the service; at most
    /// [`protocol::inline::INLINE_MAX_BYTES`], 0 for none.
    pub inline_bytes: u64,
    /// Make checksums of what is written, and check those of what is read.
    pub checksum: bool,
}

impl std::fmt::Debug for ClientConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientConfig").field("session", &self.session).finish_non_exhaustive()
    }
}

/// What a client has counted since its start.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct ClientCounts {
    /// Calls to the metadata service.
    #[serde(flatten)]
    pub meta: CallCounts,
    /// Bytes and commands, by device.
    pub devices: Vec<DeviceUse>,
    /// What was lent to the kernel.
    #[serde(flatten)]
    pub lent: LentCounts,
    /// What was read ahead.
    #[serde(flatten)]
    pub ahead: AheadCounts,
    /// What was put together.
    #[serde(flatten)]
    pub compaction: CompactCounts,
    /// What did not have its checksum.
    #[serde(flatten)]
    pub checksums: ChecksumCounts,
}

/// A session with the file system.
pub struct Client {
    pub(crate) session: Rc<Session>,
    pub(crate) inodes: RefCell<BTreeMap<InodeId, Rc<Inode>>>,
    pub(crate) space: RefCell<Space>,
    pub(crate) devices: Devices,
    /// Permits stand for bytes of dirty data in memory.
    pub(crate) dirty_budget: Semaphore,
    /// Inodes that have uncommitted data.
    pub(crate) dirty_inodes: RefCell<BTreeMap<InodeId, Rc<Inode>>>,
    pub(crate) changes: Option<Box<dyn Fn(Change)>>,
    /// See [`ClientConfig::inline_bytes`].
    pub(crate) inline_bytes: u64,
    /// See [`ClientConfig::checksum`].
    pub(crate) checksum: bool,
    /// Checksums that were wrong.
    pub(crate) mismatches: Mismatches,
    /// Inodes of which inline bytes are cached, the oldest first; some more than once.
    pub(crate) heads: RefCell<VecDeque<InodeId>>,
    /// Rights of forgotten inodes, to be given back together.
    pub(crate) returns: RefCell<Vec<Return>>,
    /// Open handles.
    pub(crate) open_files: Cell<usize>,
    pub(crate) removals: Removals,
    /// The locks that this client decides about itself.
    pub(crate) own_locks: RefCell<LockTable>,
    /// The inodes that they are of.
    pub(crate) locked_inodes: RefCell<BTreeSet<InodeId>>,
    /// Commits that have ended: numbers the last one.
    pub(crate) commits: Cell<u64>,
    /// Whole directories that were fetched: numbers the next one.
    pub(crate) listings: Cell<u64>,
    /// What may be lent to a cache outside of this client, what was, and until when at most.
    pub(crate) lending: Cell<Lending>,
    pub(crate) lent_counts: Cell<LentCounts>,
    pub(crate) lent_until: Cell<Instant>,
    /// What is being taken back as this client has changed it.
    pub(crate) own_taking_back: WaitGroup,
    /// Memory of what is read ahead of readers.
    pub(crate) read_ahead: Rc<Memory>,
    /// Files that lie in pieces.
    pub(crate) compaction: Compaction,
    pub(crate) closed: Cell<bool>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Client {
    /// Whether the session is ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// The session's number.
    pub fn session_id(&self) -> Option<SessionId> {
        self.session.identity().session
    }

    /// The file system's identity.
    pub fn file_system(&self) -> uuid::Uuid {
        self.session.identity().file_system
    }

    /// What was counted.
    pub fn counts(&self) -> ClientCounts {
        ClientCounts {
            meta: self.session.counts(),
            devices: self.devices.counts(),
            lent: self.lent_counts.get(),
            ahead: self.read_ahead.counts(),
            compaction: self.compaction.counts(),
            checksums: self.mismatches.counts(),
        }
    }

    /// `statfs(2)`.
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
