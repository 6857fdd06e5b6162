//! The client itself: its parts, and its beginning and end.

use crate::coherence::Change;
use crate::compact::{CompactCounts, Compaction};
use crate::devices::{DeviceUse, Devices, LocalDevices};
use crate::inode::Inode;
use crate::lent::{Lending, LentCounts};
use crate::read::{AheadCounts, Memory};
use crate::removals::Removals;
use crate::session::CallCounts;
use crate::session::Session;
use crate::session::config::SessionConfig;
use crate::space::Space;
use crate::sums::{ChecksumCounts, Mismatches};
use locks::LockTable;
use protocol::client::{Answer, Call, ChangeCall, ReadCall, SessionCall};
use protocol::lease::Return;
use protocol::space::PoolUse;
use protocol::{Errno, InodeId, Rights, SessionId};
use reactor::local::{Semaphore, WaitGroup};
use reactor::time::{Instant, now, sleep};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

/// Bytes of written data that may wait in memory for their devices.
const DIRTY_BYTES_MAX: usize = 128 << 20;

/// Inodes kept without anybody using them.
const IDLE_INODES_MAX: usize = 200_000;

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
    closed: Cell<bool>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("session", &self.session).finish_non_exhaustive()
    }
}

impl Client {
    /// Starts a session. Must be called on a `reactor` runtime, which the client then stays on.
    ///
    /// # Errors
    /// In words what stood in the way.
    pub async fn start(config: ClientConfig) -> Result<Rc<Client>, String> {
        let session = Session::new(config.session.clone());
        let client = Rc::new(Client {
            devices: Devices::new(config.local, config.plain_data, config.session.node.clone()),
            session: Rc::clone(&session),
            inodes: RefCell::default(),
            space: RefCell::default(),
            dirty_budget: Semaphore::new(DIRTY_BYTES_MAX),
            dirty_inodes: RefCell::default(),
            changes: config.changes,
            inline_bytes: config.inline_bytes.min(protocol::inline::INLINE_MAX_BYTES),
            checksum: config.checksum,
            mismatches: Mismatches::default(),
            heads: RefCell::default(),
            returns: RefCell::default(),
            open_files: Cell::new(0),
            removals: Removals::default(),
            own_locks: RefCell::default(),
            locked_inodes: RefCell::default(),
            commits: Cell::new(0),
            listings: Cell::new(0),
            lending: Cell::default(),
            lent_counts: Cell::default(),
            lent_until: Cell::new(now()),
            own_taking_back: WaitGroup::new(),
            read_ahead: Rc::default(),
            compaction: Compaction::default(),
            closed: Cell::new(false),
        });
        let handler: Rc<dyn crate::session::Handler> = client.clone();
        session.start(Rc::downgrade(&handler)).await?;
        reactor::spawn(Rc::clone(&client).write_back());
        Ok(client)
    }

    /// Commits everything, makes it durable, and ends the session.
    ///
    /// # Errors
    /// The first failure; the session is ended all the same.
    pub async fn end(self: &Rc<Self>) -> Result<(), Errno> {
        let result = self.sync_all().await;
        self.return_unused_space().await;
        self.closed.set(true);
        self.session.end().await;
        self.devices.close().await;
        result
    }

    /// Commits all dirty data and makes it durable.
    ///
    /// # Errors
    /// The first failure, after all were tried.
    pub async fn sync_all(self: &Rc<Self>) -> Result<(), Errno> {
        let dirty: Vec<Rc<Inode>> = self.dirty_inodes.borrow().values().cloned().collect();
        let mut result = Ok(());
        for inode in dirty {
            result = result.and(self.commit(&inode, true).await);
        }
        result
    }

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
            lent: self.lent_counts(),
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

    /// The inode, known or new to this client.
    pub(crate) fn inode(&self, id: InodeId) -> Rc<Inode> {
        let mut inodes = self.inodes.borrow_mut();
        Rc::clone(inodes.entry(id).or_insert_with(|| Rc::new(Inode::new(id))))
    }

    /// The inode, if this client knows it.
    pub(crate) fn known_inode(&self, id: InodeId) -> Option<Rc<Inode>> {
        self.inodes.borrow().get(&id).cloned()
    }

    /// Gives back what was leased and is not in use.
    pub(crate) async fn return_unused_space(self: &Rc<Self>) {
        let unused = self.space.borrow_mut().take_unused();
        for (device, free) in unused {
            if let Err(error) =
                self.session.call(Call::Change(ChangeCall::ReturnSpace { device, free })).await
            {
                tracing::warn!(%device, %error, "unused space could not be returned");
            }
        }
    }

    /// Commits what has been dirty for long, gives rights back, keeps the table of inodes bounded.
    async fn write_back(self: Rc<Self>) {
        while !self.closed.get() {
            // Half of the time, as the service takes the other half to have the devices flushed.
            sleep(self.session.times().writeback / 2).await;
            let dirty: Vec<Rc<Inode>> = self.dirty_inodes.borrow().values().cloned().collect();
            for inode in dirty {
                // A failure stays with the inode and is told at close or fsync.
                let _ = self.commit(&inode, false).await;
            }
            self.compact_due();
            self.return_idle_locks();
            self.give_back().await;
            self.evict();
        }
    }

    /// Gives rights of forgotten and closed inodes back now.
    pub(crate) async fn give_back(self: &Rc<Self>) {
        let returns = self.returns.take();
        for part in returns.chunks(1024) {
            let part: Vec<_> = part.iter().filter_map(|back| self.still_due(*back)).collect();
            if part.is_empty() {
                continue;
            }
            if let Err(error) = self.session.call(Call::Session(SessionCall::GiveBack(part))).await
            {
                tracing::debug!(%error, "rights could not be given back");
            }
        }
    }

    /// What is given back, but not OPEN if the inode was opened again since it was closed: a recall may
    /// have been answered meanwhile, by which the service knows of that open.
    fn still_due(&self, mut back: Return) -> Option<Return> {
        if let Some(inode) = self.known_inode(back.inode)
            && back.rights.contains(Rights::OPEN)
        {
            let mut state = inode.state.borrow_mut();
            // One that was forgotten in between, and knows of no stamp, tells of its open anew.
            if state.is_open() && state.stamp >= back.stamp {
                back.rights = back.rights - Rights::OPEN;
                state.may_be_told = true;
            }
        }
        (!back.rights.is_empty()).then_some(back)
    }

    /// Forgets an inode if nobody uses it.
    pub(crate) fn drop_if_idle(&self, inode: &Inode) {
        if inode.is_unused() {
            self.drop_inode(inode.id);
        }
    }

    /// Forgets inodes that nobody uses when there are very many.
    fn evict(&self) {
        let surplus = self.inodes.borrow().len().saturating_sub(IDLE_INODES_MAX);
        if surplus == 0 {
            return;
        }
        let idle: Vec<InodeId> = {
            let inodes = self.inodes.borrow();
            let idle = inodes.iter().filter(|(_, inode)| inode.is_unused());
            idle.map(|(&id, _)| id).take(surplus).collect()
        };
        for id in idle {
            self.drop_inode(id);
        }
    }
}
