//! [`Core`]: opening, executing calls, group commit.

use super::Outcome;
use super::base::{Base, Effect, Layers};
use super::compact::Compact;
use super::data::Commit;
use super::durability::Walked;
use super::names::NewInode;
use super::rename::Rename;
use super::transaction::{Context, Transaction};
use crate::records::{Counters, Key, Record, SessionRecord, Stamps, corrupt, decode};
use crate::space::FIRST_FLUSH_EPOCH;
use crate::store::overlay::Overlay;
use crate::store::{Error, Indexed, Store, Syncer};
use protocol::client::{Answer, Call, ChangeCall, ReadCall, SessionCall};
use protocol::{Errno, FileKind, FreeEpoch, InodeId, Layout, Rights, SessionId, Timestamp};
use std::collections::BTreeSet;
use uuid::Uuid;

/// Size at which finished transactions are committed in the middle of a long call.
const PENDING_BYTES_MAX: usize = 8 << 20;

/// Above the number of inodes and sessions that can be made between two syncs of the store.
const LOST_NUMBERS_MAX: u64 = 1 << 24;

/// Most lease stamps of one life of the service.
const STAMPS_PER_START: u64 = 1 << 44;

/// First stamp for a store whose service took its stamps from the wall clock, in nanoseconds. It is
/// above the clock for the next ninety years.
const STAMPS_AFTER_CLOCK: u64 = 1 << 62;

/// The input of [`Core::open`], which has neither time nor randomness of its own.
#[derive(Clone, Copy, Debug)]
pub struct Boot {
    /// The machine's boot identifier. If it differs from the stored one, the store may have lost
    /// acknowledged changes.
    pub boot: Uuid,
    /// Identity of a new file system.
    pub file_system: Uuid,
    /// The present time.
    pub now: Timestamp,
    /// Permission bits, owner and group of a new root directory.
    pub root: (u16, u32, u32),
}

/// The state that [`Core::open`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The store was empty: the file system is new.
    pub is_new: bool,
    /// The sessions became void with this start: each must be fenced and ended.
    pub are_sessions_void: bool,
}

/// The transaction core of the metadata service.
pub struct Core {
    pub(crate) base: Base,
    is_poisoned: bool,
    transactions: u64,
    stamps_from: u64,
    /// The free epoch as of the last flush, and as of the last sync.
    pub(super) stored_free_epoch: FreeEpoch,
    pub(super) synced_free_epoch: FreeEpoch,
    /// Inodes whose records contradict each other: background work leaves them alone.
    pub(super) set_aside: BTreeSet<InodeId>,
    /// The inodes that were searched for lost data, and how many searches there were.
    pub(super) walked: Walked,
    pub(super) walks: u64,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Core");
        debug.field("counters", &self.base.counters).finish_non_exhaustive()
    }
}

/// Returns whether a version of this program with another form of records wrote the counters.
fn is_of_other_form(counters: &[u8]) -> bool {
    counters.first().is_some_and(|version| (1..Counters::VERSION).contains(version))
}

impl Core {
    /// Opens a store; an empty one becomes a new file system. [`Core::reclaim_step`] later finishes
    /// truncations and frees that were cut short.
    pub fn open(store: Box<dyn Store>, boot: &Boot) -> Result<(Core, Opened), Error> {
        let store = Box::new(Indexed::new(store));
        let layers = Layers { store, pending: Overlay::default() };
        let key = Key::Counters.encode();
        let value = layers.get(&key)?;
        if value.as_ref().is_some_and(|value| is_of_other_form(value)) {
            return Err(Error::OtherForm);
        }
        let stored: Option<Counters> = value.map(|value| decode(&key, &value)).transpose()?;
        let is_new = stored.is_none();
        let counters = stored.unwrap_or(Counters {
            file_system: boot.file_system,
            boot: boot.boot,
            next_inode: InodeId::ROOT.0 + 1,
            next_session: 1,
            next_device: 0,
            next_epoch: 1,
            free_epoch: FreeEpoch(1),
            inodes: 1,
            flush_epoch: FIRST_FLUSH_EPOCH,
        });
        if !counters.are_sound() {
            return Err(corrupt(&key, "a number that was given out is out of range"));
        }
        let are_sessions_void = counters.boot != boot.boot || (layers.store.has_lost() && !is_new);
        let stamps_from = next_stamps(&layers, is_new)?;
        let base = Base::load(layers, counters)?;
        let mut core = Core {
            base,
            is_poisoned: false,
            transactions: 0,
            stamps_from,
            stored_free_epoch: FreeEpoch(0),
            // A dead process may have flushed changes that were not synced.
            synced_free_epoch: FreeEpoch(0),
            set_aside: BTreeSet::new(),
            walked: Walked::default(),
            walks: 0,
        };
        if is_new {
            core.make_root(boot)?;
        }
        core.transact(|transaction| {
            let taken = if reactor::mutant!("stamps-unstored") { 0 } else { STAMPS_PER_START };
            transaction.put(&Key::Stamps, &Stamps { next: stamps_from + taken })
        })?;
        if are_sessions_void && !reactor::mutant!("sessions-survive-loss") {
            core.void_sessions(boot.boot)?;
        }
        core.flush()?;
        Ok((core, Opened { is_new, are_sessions_void }))
    }

    fn make_root(&mut self, boot: &Boot) -> Result<(), Error> {
        let (mode, uid, gid) = boot.root;
        let new = NewInode {
            kind: FileKind::Directory,
            mode: mode & 0o7777,
            uid,
            gid,
            rdev: 0,
            layout: Layout::NEAR,
            parent: InodeId::ROOT,
            target: Vec::new(),
        };
        let root = new.build(InodeId::ROOT, boot.now);
        self.transact(|transaction| {
            let counters = transaction.counters;
            transaction.put(&Key::Counters, &counters)?;
            transaction.put_inode(&root)
        })
    }

    fn void_sessions(&mut self, boot: Uuid) -> Result<(), Error> {
        let sessions: Vec<_> =
            self.base.sessions.iter().map(|(id, state)| (*id, state.record.clone())).collect();
        self.transact(|transaction| {
            transaction.counters.boot = boot;
            // The store may have forgotten numbers that were given out. A handle or a cache that
            // still has one must not find another object under it.
            if !reactor::mutant!("numbers-given-again") {
                transaction.counters.next_inode += LOST_NUMBERS_MAX;
            }
            transaction.counters.next_session += LOST_NUMBERS_MAX;
            transaction.counters.next_epoch += LOST_NUMBERS_MAX;
            for (session, record) in sessions {
                transaction.put_session(session, SessionRecord { is_void: true, ..record })?;
            }
            Ok(())
        })
    }

    /// Runs one transaction. If it is refused, it leaves no trace; a failure of the store ends the
    /// core.
    pub(super) fn transact<T>(
        &mut self,
        run: impl FnOnce(&mut Transaction<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if self.is_poisoned {
            return Err(Error::Poisoned);
        }
        let mut transaction = Transaction::begin(&self.base);
        let result = run(&mut transaction)
            .and_then(|result| transaction.finish().map(|finished| (result, finished)));
        let (result, finished) = match result {
            Ok(done) => done,
            Err(error) => {
                self.is_poisoned |= matches!(error, Error::Store { .. });
                return Err(error);
            }
        };
        // A transaction that contradicts the state in memory is not stored at all.
        self.base.check(&finished)?;
        self.base.counters = finished.counters;
        if finished.writes.len() > 0 {
            self.transactions += 1;
            self.base.layers.pending.absorb(finished.writes);
        }
        let concerns_space = finished.effects.iter().any(Effect::is_of_space);
        for effect in finished.effects {
            self.base.apply(effect);
        }
        if concerns_space {
            self.base.space.assert_sums();
        }
        Ok(result)
    }

    /// Commits all finished transactions as one batch: their changes survive the sudden death of
    /// this process. After [`Error::Full`] they wait for the next flush; another error ends the
    /// core.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.is_poisoned {
            return Err(Error::Poisoned);
        }
        let batch = self.base.layers.pending.take();
        if !batch.writes.is_empty() {
            match self.base.layers.store.commit(&batch) {
                Ok(()) => {}
                Err(error @ Error::Full(_)) => {
                    self.base.layers.pending.put_back(batch);
                    return Err(error);
                }
                Err(error) => {
                    self.is_poisoned = true;
                    return Err(error);
                }
            }
        }
        let stored = self.base.counters.free_epoch;
        assert!(
            self.stored_free_epoch <= stored && self.base.layers.pending.len() == 0,
            "blocks freed at {stored:?} are stored after {:?}, but {} records are still pending",
            self.stored_free_epoch,
            self.base.layers.pending.len()
        );
        self.stored_free_epoch = stored;
        Ok(())
    }

    /// Returns a handle that makes earlier flushes durable, from any thread.
    pub fn syncer(&self) -> Box<dyn Syncer> {
        self.base.layers.store.syncer()
    }

    /// Returns the records as of the last flush, for reading on any thread beside later flushes;
    /// `None` if the store has no snapshots.
    ///
    /// # Errors
    /// If the store fails.
    pub fn snapshot(&self) -> Result<Option<Box<dyn Store>>, Error> {
        self.base.layers.store.snapshot()
    }

    /// Returns whether finished transactions wait for [`Core::flush`].
    pub fn has_pending(&self) -> bool {
        self.base.layers.pending.len() > 0
    }

    /// Returns the first lease stamp of this life, above those of all earlier lives.
    pub fn stamps_from(&self) -> u64 {
        self.stamps_from
    }

    /// Returns whether the store should get more changes: false while its disk is nearly full.
    pub fn has_room(&mut self) -> bool {
        self.base.layers.store.has_room()
    }

    /// Returns whether clients may store data of small files here.
    pub fn takes_inline(&self) -> bool {
        self.base.layers.store.has_plenty() || reactor::mutant!("inline-on-full-disk")
    }

    /// Returns the number of transactions finished since the core was opened.
    pub fn transactions(&self) -> u64 {
        self.transactions
    }

    /// Executes a call that concerns the tree, data or space; others get EPROTO. Its changes are
    /// visible to later calls at once, and stored with the next [`Core::flush`].
    ///
    /// It logs failures of the store and corrupt records, and returns EIO for them.
    pub fn execute(&mut self, context: &Context<'_>, call: &Call) -> Result<Outcome, Errno> {
        self.execute_inner(context, call).map_err(|error| {
            if !matches!(error, Error::Refused(_)) {
                tracing::error!(%error, session = context.session.0, "call failed");
            }
            error.to_errno()
        })
    }

    fn execute_inner(&mut self, context: &Context<'_>, call: &Call) -> Result<Outcome, Error> {
        self.settle_truncations(call)?;
        if let Call::Change(ChangeCall::CopyRange { destination, .. }) = call {
            self.walked.forget(*destination);
        }
        self.transact(|transaction| transaction.execute(context, call))
    }

    /// Returns whether a call has to wait until [`Core::reclaim_step`] has removed what earlier
    /// calls have cut out of a file. Without the wait, its execution does all of that first.
    pub fn awaits_removal(&self, call: &Call) -> bool {
        let is_cut = |id: &InodeId| {
            // Its execution reports what is wrong with an inode that is set aside.
            self.base.truncating.contains(id) && !self.set_aside.contains(id)
        };
        call.traits().extents_of.iter().flatten().any(is_cut)
    }

    /// Finishes pending truncations of the inodes whose extents a call concerns.
    fn settle_truncations(&mut self, call: &Call) -> Result<(), Error> {
        for inode in call.traits().extents_of.into_iter().flatten() {
            while self.base.truncating.contains(&inode) {
                self.transact(|transaction| transaction.truncate_step(inode))?;
                self.flush_if_large()?;
            }
        }
        Ok(())
    }

    /// Commits pending changes if they are large: between steps that are each valid alone.
    fn flush_if_large(&mut self) -> Result<(), Error> {
        if self.base.layers.pending.bytes() > PENDING_BYTES_MAX { self.flush() } else { Ok(()) }
    }
}

/// Returns the first stamp that no earlier life of the service has given out. It comes from the
/// store, because a wall clock may have gone back.
fn next_stamps(layers: &Layers, is_new: bool) -> Result<u64, Error> {
    let key = Key::Stamps.encode();
    let stored: Option<Stamps> = layers.get(&key)?.map(|value| decode(&key, &value)).transpose()?;
    if reactor::mutant!("stamps-begin-anew") {
        return Ok(1);
    }
    Ok(stored.map_or(if is_new { 1 } else { STAMPS_AFTER_CLOCK }, |stamps| stamps.next))
}

impl Transaction<'_> {
    fn execute(&mut self, context: &Context<'_>, call: &Call) -> Result<Outcome, Error> {
        match call {
            Call::Session(call) => self.execute_session(context, call),
            Call::Read(call) => self.execute_read(call),
            Call::Change(call) => self.execute_change(context, call),
        }
    }

    fn execute_session(
        &mut self,
        context: &Context<'_>,
        call: &SessionCall,
    ) -> Result<Outcome, Error> {
        match call {
            SessionCall::Acquire { inode, rights } => self.acquire(context, *inode, *rights),
            SessionCall::Start { .. }
            | SessionCall::Reclaim { .. }
            | SessionCall::Heartbeat { .. }
            | SessionCall::Pulse { .. }
            | SessionCall::End
            | SessionCall::Devices
            | SessionCall::Admit(_)
            | SessionCall::GiveBack(_)
            | SessionCall::Sync(_)
            | SessionCall::CancelLock { .. }
            | SessionCall::ReportLocks { .. } => Err(Errno::EPROTO.into()),
        }
    }

    fn execute_read(&mut self, call: &ReadCall) -> Result<Outcome, Error> {
        match call {
            ReadCall::PoolUse => Ok(Outcome::of(self.base.space.answer(self.counters.inodes))),
            ReadCall::Lookup { parent, name } => self.lookup(*parent, name),
            ReadCall::GetAttr(inode) => self.get_attr(*inode),
            ReadCall::ReadDir { inode, after, count_max } => {
                self.read_directory(*inode, *after, *count_max)
            }
            ReadCall::ReadLink(inode) => self.read_link(*inode),
            ReadCall::ReadExtents { inode, offset, length } => {
                self.read_extents(*inode, *offset, *length)
            }
            ReadCall::ReadFiles(inodes) => self.read_files(inodes),
            ReadCall::GetXattr { inode, name } => self.get_xattr(*inode, name),
            ReadCall::ListXattr(inode) => self.list_xattr(*inode),
            ReadCall::TestLock(_) => Err(Errno::EPROTO.into()),
        }
    }

    fn execute_change(
        &mut self,
        context: &Context<'_>,
        call: &ChangeCall,
    ) -> Result<Outcome, Error> {
        match call {
            ChangeCall::SetAttr { inode, changes } => self.set_attr(context, *inode, changes),
            ChangeCall::SetXattr { inode, name, value, mode } => {
                self.set_xattr(context, *inode, name, value, *mode)
            }
            ChangeCall::RemoveXattr { inode, name } => self.remove_xattr(context, *inode, name),
            ChangeCall::Create { parent, name, creation, mode, uid, gid, rights } => {
                self.create(context, *parent, name, creation, (*mode, *uid, *gid), *rights)
            }
            ChangeCall::CreateFiles { parent, files } => self.create_files(context, *parent, files),
            ChangeCall::Link { inode, parent, name } => self.link(context, *inode, *parent, name),
            ChangeCall::Unlink { parent, name, .. } => {
                self.remove_name(context, *parent, name, false)
            }
            ChangeCall::Rmdir { parent, name } => self.remove_name(context, *parent, name, true),
            ChangeCall::Rename { parent, name, new_parent, new_name, mode, .. } => {
                let (parent, new_parent, mode) = (*parent, *new_parent, *mode);
                self.rename(context, Rename { parent, name, new_parent, new_name, mode })
            }
            ChangeCall::Commit {
                inode,
                generation,
                allocations,
                sums,
                extents,
                inline,
                mtime,
                kill_privileges,
                attributes,
                durable: _,
            } => {
                let commit = Commit {
                    inode: *inode,
                    generation: *generation,
                    allocations,
                    sums: &sums.0,
                    extents: &extents.0,
                    inline,
                    mtime: *mtime,
                    kill_privileges: *kill_privileges,
                    attributes: attributes.as_ref(),
                };
                self.commit_data(context, commit)
            }
            ChangeCall::CopyRange {
                source,
                source_offset,
                destination,
                destination_offset,
                length,
            } => {
                let to = (*destination, *destination_offset);
                self.copy_range(context, (*source, *source_offset), to, *length)
            }
            ChangeCall::Compact { inode, generation, old, allocations, sums, new } => {
                let (inode, generation) = (*inode, *generation);
                let (old, sums, new) = (&old.0, &sums.0, &new.0);
                self.compact(context, Compact { inode, generation, old, allocations, sums, new })
            }
            ChangeCall::LeaseSpace { device, wanted_bytes } => self
                .lease_space(context.session, *device, *wanted_bytes)
                .map(|grant| Outcome::of(Answer::Space(grant))),
            ChangeCall::ReturnSpace { device, free } => self
                .return_space(context.session, *device, free)
                .map(|()| Outcome::of(Answer::Done)),
            ChangeCall::Fallocate { inode, offset, length, mode } => {
                self.fallocate(context, *inode, (*offset, *length), *mode)
            }
            // The core keeps no locks.
            ChangeCall::SetLock { .. } | ChangeCall::Unlock(_) => Err(Errno::EPROTO.into()),
        }
    }
}

impl Core {
    /// Rights that are recalled when a regular file loses its last name.
    pub(super) const ALL: Rights = Rights(
        Rights::READ.0 | Rights::WRITE.0 | Rights::SIZE.0 | Rights::OPEN.0 | Rights::LOCKS.0,
    );

    /// Returns the sessions that may hold back changes of inodes that a reading call shows. They
    /// come from the store, because after a restart the sessions may not have reported yet.
    pub fn soles_shown(&self, call: &ReadCall) -> Vec<SessionId> {
        let transaction = Transaction::begin(&self.base);
        let shown = transaction.shown_by(call).unwrap_or_default();
        let sole = |id: InodeId| transaction.inode(id).ok().and_then(|inode| inode.sole);
        shown.into_iter().filter_map(sole).collect()
    }
}
