//! Sessions, their reply slots and locks.

use super::base::Effect;
use super::core::Core;
use super::transaction::{Transaction, contradiction};
use crate::records::{DurableLock, Key, SessionRecord, SlotRecord, decode, key_number};
use crate::store::{Direction, Error, Scan};
use protocol::client::{Response, SLOTS_PER_SESSION, Slot};
use protocol::lock::{Lock, LockFamily, LockOwner};
use protocol::space::PoolUse;
use protocol::{Attr, DeviceId, Epoch, Errno, FreeEpoch, HostId, InodeId, SessionId};
use uuid::Uuid;

/// Most lock owners that the end of a session reads in one scan.
const LOCKS_PER_SCAN: usize = 1024;

/// Most locks that one transaction changes.
const LOCKS_PER_TRANSACTION: usize = 64;

/// The state of a slot with respect to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// A new call: execute it.
    New,
    /// A retry: the stored answer.
    Repeated(Box<Response>),
}

/// A lock of an owner on an inode, by its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    session: SessionId,
    inode: InodeId,
    family: LockFamily,
    owner: LockOwner,
    start: u64,
}

impl Transaction<'_> {
    /// Writes a session.
    pub(super) fn put_session(
        &mut self,
        session: SessionId,
        record: SessionRecord,
    ) -> Result<(), Error> {
        if !reactor::mutant!("session-unstored") {
            self.put(&Key::Session(session), &record)?;
        }
        self.effect(Effect::Session(session, Box::new(record)));
        Ok(())
    }

    /// Removes all records whose key begins with `prefix`.
    fn remove_prefix(
        &mut self,
        prefix: &[u8],
        remove: impl Fn(&mut Self, &[u8]),
    ) -> Result<(), Error> {
        loop {
            let direction = Direction::Forward;
            let scan = Scan { prefix, from: None, direction, limit: LOCKS_PER_SCAN };
            let found = self.scan(scan)?;
            if found.is_empty() {
                return Ok(());
            }
            for (key, _) in &found {
                remove(self, key);
            }
        }
    }

    /// Closes an inode without a name for a session; when the last session has closed it, it is
    /// dead.
    fn close_orphan(&mut self, session: SessionId, id: InodeId) -> Result<(), Error> {
        let Some(openers) = self.base.open_orphans.get(&id) else { return Ok(()) };
        if !openers.contains(&session) {
            return Ok(());
        }
        self.remove(&Key::OpenOrphan(id, session));
        self.effect(Effect::Closed(id, session));
        if openers.len() == 1 || reactor::mutant!("first-close-reclaims") {
            let mut inode = self.inode(id)?;
            if inode.attr.nlink > 0 {
                return Err(contradiction(&Key::OpenOrphan(id, session), "the inode has names"));
            }
            self.kill(&mut inode)?;
        }
        Ok(())
    }
}

impl Core {
    /// Creates a session, with an epoch of its own for the admission of its host.
    pub fn create_session(
        &mut self,
        node: &str,
        host: HostId,
    ) -> Result<(SessionId, Epoch), Error> {
        self.transact(|transaction| {
            let session = SessionId(transaction.counters.next_session);
            let epoch = Epoch(transaction.counters.next_epoch);
            transaction.counters.next_session += 1;
            transaction.counters.next_epoch += 1;
            let known = &transaction.base.sessions;
            assert!(
                known
                    .last_key_value()
                    .is_none_or(|(last, state)| *last < session && state.record.epoch < epoch),
                "{session} would be made with {epoch:?}, after {:?}",
                known.last_key_value().map(|(last, _)| last)
            );
            let node = node.to_owned();
            let record = SessionRecord { host, node, epoch, admitted: Vec::new(), is_void: false };
            transaction.put_session(session, record)?;
            Ok((session, epoch))
        })
    }

    /// Notes that a session is about to be admitted at a device. Flush before sending `Admit`.
    pub fn note_admitted(&mut self, session: SessionId, device: DeviceId) -> Result<(), Error> {
        let Some(state) = self.base.sessions.get(&session) else {
            return Err(Errno::ESTALE.into());
        };
        if state.record.admitted.contains(&device) || reactor::mutant!("admission-not-noted") {
            return Ok(());
        }
        let mut record = state.record.clone();
        record.admitted.push(device);
        self.transact(|transaction| transaction.put_session(session, record))
    }

    /// Notes that a session is about to be fenced. Flush before sending the first fence. Targets
    /// keep fences for good, so a service must not continue a session after forgetting its fence.
    pub fn note_ending(&mut self, session: SessionId) -> Result<(), Error> {
        let Some(state) = self.base.sessions.get(&session) else { return Ok(()) };
        if state.record.is_void || reactor::mutant!("ending-not-stored") {
            return Ok(());
        }
        let record = SessionRecord { is_void: true, ..state.record.clone() };
        self.transact(|transaction| transaction.put_session(session, record))
    }

    /// Returns a session, if it exists.
    pub fn session(&self, session: SessionId) -> Option<&SessionRecord> {
        self.base.sessions.get(&session).map(|state| &state.record)
    }

    /// Returns all sessions.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        self.base.sessions.iter().map(|(id, state)| (*id, &state.record))
    }

    /// Records that all reads that a session began under extents from before `epoch` have ended.
    pub fn ended_through(&mut self, session: SessionId, epoch: FreeEpoch) {
        // A future epoch says nothing about reads that have not begun.
        let epoch = epoch.min(self.base.counters.free_epoch);
        if let Some(state) = self.base.sessions.get_mut(&session) {
            state.ended_through = state.ended_through.max(epoch);
            assert!(
                state.ended_through <= self.base.counters.free_epoch,
                "{session} has ended reads through {:?}, a future epoch",
                state.ended_through
            );
        }
    }

    /// Frees all space that a session leases on a device. The session must be fenced there.
    pub fn release_space(&mut self, session: SessionId, device: DeviceId) -> Result<(), Error> {
        for (device, index) in self.base.space.leases_of(session, Some(device)) {
            self.transact(|transaction| transaction.release_lease(session, device, index))?;
        }
        Ok(())
    }

    /// Ends a session that is fenced on all devices. It loses its leased space, locks and slots,
    /// and inodes without a name that only it had open. All of it is stored with the next flush.
    pub fn end_session(&mut self, session: SessionId) -> Result<(), Error> {
        if !self.base.sessions.contains_key(&session) {
            return Ok(());
        }
        for (device, index) in self.base.space.leases_of(session, None) {
            self.transact(|transaction| transaction.release_lease(session, device, index))?;
        }
        let held = |sessions: &std::collections::BTreeSet<SessionId>| sessions.contains(&session);
        let orphans = self.base.open_orphans.iter().filter(|(_, sessions)| held(sessions));
        let orphans: Vec<InodeId> = orphans.map(|(inode, _)| *inode).collect();
        for inode in orphans.into_iter().filter(|_| !reactor::mutant!("opens-outlive-session")) {
            self.transact(|transaction| transaction.close_orphan(session, inode))?;
        }
        self.transact(|transaction| {
            let slots = Key::Slot(session, 0).prefix(1);
            transaction.remove_prefix(&slots, |transaction, key| {
                if let Ok(slot) = key_number(key, 1) {
                    transaction.remove(&Key::Slot(session, slot as u16));
                }
            })
        })?;
        for holder in self.holders(Some(session))? {
            self.transact(|transaction| {
                transaction.remove(&holder.key());
                Ok(())
            })?;
        }
        self.transact(|transaction| {
            let opened = &transaction.base.open_orphans;
            assert!(
                !opened.values().any(|sessions| sessions.contains(&session)),
                "{session} has ended, and holds inodes open: {opened:?}"
            );
            transaction.remove(&Key::Session(session));
            transaction.effect(Effect::SessionGone(session));
            Ok(())
        })
    }

    /// Records that a session has an inode open. An inode without a name lives on until this
    /// session, too, has closed it, because it may lose its last name before the report.
    pub fn note_open(&mut self, session: SessionId, inode: InodeId) -> Result<(), Error> {
        let Some(openers) = self.base.open_orphans.get(&inode) else { return Ok(()) };
        if openers.contains(&session) || reactor::mutant!("late-open-not-stored") {
            return Ok(());
        }
        self.transact(|transaction| {
            transaction.mark(&Key::OpenOrphan(inode, session))?;
            transaction.effect(Effect::Opened(inode, session));
            Ok(())
        })
    }

    /// Records that a session has closed an inode for the last time.
    pub fn close(&mut self, session: SessionId, inode: InodeId) -> Result<(), Error> {
        if !self.base.open_orphans.contains_key(&inode) {
            return Ok(());
        }
        self.transact(|transaction| transaction.close_orphan(session, inode))
    }

    /// Returns inodes without a name, with the sessions that have them open.
    pub fn open_orphans(&self) -> Vec<(InodeId, Vec<SessionId>)> {
        let orphans = self.base.open_orphans.iter();
        orphans.map(|(inode, sessions)| (*inode, sessions.iter().copied().collect())).collect()
    }

    /// Returns whether a call in a slot is new or a retry. Skipped numbers belong to calls that the
    /// client gave up before they arrived. EPROTO for a call older than the last.
    pub fn check_slot(&self, session: SessionId, slot: Slot) -> Result<SlotState, Errno> {
        if slot.slot >= SLOTS_PER_SESSION {
            return Err(Errno::EPROTO);
        }
        let transaction = Transaction::begin(&self.base);
        let stored: Option<SlotRecord> =
            transaction.get(&Key::Slot(session, slot.slot)).map_err(|error| {
                tracing::error!(%error, session = session.0, "cannot read a reply slot");
                error.to_errno()
            })?;
        match stored {
            Some(last)
                if last.response.result.is_ok() && reactor::mutant!("success-executed-again") =>
            {
                Ok(SlotState::New)
            }
            Some(last) if last.sequence + 1 < slot.sequence && reactor::mutant!("gap-refused") => {
                Err(Errno::EPROTO)
            }
            Some(last) if last.sequence == slot.sequence => {
                Ok(SlotState::Repeated(Box::new(last.response)))
            }
            Some(last) if last.sequence > slot.sequence && !reactor::mutant!("older-executed") => {
                Err(Errno::EPROTO)
            }
            _ => Ok(SlotState::New),
        }
    }

    /// Returns the inodes that the stored answers of a session opened, with the slots.
    pub fn stored_opens(&self, session: SessionId) -> Result<Vec<(u16, InodeId)>, Error> {
        let mut found = Vec::new();
        self.base.layers.each(&Key::Slot(session, 0).prefix(1), |key, value| {
            let slot = key_number(key, 1)? as u16;
            let record: SlotRecord = decode(key, value)?;
            found.extend(record.response.grants.iter().map(|grant| (slot, grant.inode)));
            Ok(())
        })?;
        found.retain(|(_, inode)| self.attr(*inode).is_ok());
        Ok(found)
    }

    /// Stores a call's answer in its slot. It must be called after the call was executed and before
    /// the next flush, so that both are stored together.
    pub fn record_reply(
        &mut self,
        session: SessionId,
        slot: Slot,
        response: &Response,
    ) -> Result<(), Error> {
        let record = SlotRecord { sequence: slot.sequence, response: response.clone() };
        let shared = u16::from(reactor::mutant!("slots-share-record"));
        let key = Key::Slot(session, slot.slot & !shared);
        self.transact(|transaction| {
            let stored: Option<SlotRecord> = transaction.get(&key)?;
            // A call that its client gave up may end after the next one in its slot.
            let is_older = stored.is_some_and(|last| last.sequence > slot.sequence);
            if is_older && !reactor::mutant!("older-answer-stored") {
                return Ok(());
            }
            transaction.put(&key, &record)
        })
    }

    /// Changes the locks of an owner on an inode: for each first byte the lock that begins there,
    /// or none. All of them must belong to that inode, family and owner.
    pub fn change_locks(
        &mut self,
        session: SessionId,
        inode: InodeId,
        (family, owner): (LockFamily, LockOwner),
        changes: &[(u64, Option<Lock>)],
    ) -> Result<(), Error> {
        let is_sound = |(start, lock): &(u64, Option<Lock>)| {
            lock.is_none_or(|lock| {
                (lock.inode, lock.family, lock.owner) == (inode, family, owner)
                    && lock.start == *start
                    && lock.start <= lock.last
            })
        };
        assert!(
            changes.iter().all(is_sound),
            "{session} stores locks of {owner:?} on {inode} that belong elsewhere: {changes:?}"
        );
        for part in changes.chunks(LOCKS_PER_TRANSACTION) {
            self.transact(|transaction| {
                for (start, lock) in part {
                    let holder = Holder { session, inode, family, owner, start: *start };
                    match lock {
                        Some(lock) => transaction.put(&holder.key(), &DurableLock(*lock))?,
                        None => transaction.remove(&holder.key()),
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Returns all held locks.
    pub fn locks(&self) -> Result<Vec<(SessionId, Lock)>, Error> {
        let mut found = Vec::new();
        self.base.layers.each(&Holder::prefix(None), |key, value| {
            let session = SessionId(key_number(key, 0)?);
            let record: DurableLock = decode(key, value)?;
            found.push((session, record.0));
            Ok(())
        })?;
        Ok(found)
    }

    fn holders(&self, session: Option<SessionId>) -> Result<Vec<Holder>, Error> {
        let mut found = Vec::new();
        self.base.layers.each(&Holder::prefix(session), |key, _| {
            found.push(Holder {
                session: SessionId(key_number(key, 0)?),
                inode: InodeId(key_number(key, 1)?),
                family: match key_number(key, 2)? {
                    0 => LockFamily::Flock,
                    _ => LockFamily::Posix,
                },
                owner: LockOwner(key_number(key, 3)?),
                start: key_number(key, 4)?,
            });
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the result of `statfs`.
    pub fn pool_use(&self) -> PoolUse {
        self.base.space.pool_use(self.base.counters.inodes)
    }

    /// Returns the present free epoch.
    pub fn free_epoch(&self) -> FreeEpoch {
        self.base.counters.free_epoch
    }

    /// Returns the file system's identity.
    pub fn file_system(&self) -> Uuid {
        self.base.counters.file_system
    }

    /// Returns the session that made an inode and may hold back changes of it, if there is one;
    /// ESTALE if there is no such inode.
    pub fn maker(&self, inode: InodeId) -> Result<Option<SessionId>, Errno> {
        let transaction = Transaction::begin(&self.base);
        let inode = transaction.inode(inode).map_err(|error| error.to_errno())?;
        Ok(inode.sole)
    }

    /// Returns an inode's attributes; ESTALE if there is none.
    pub fn attr(&self, inode: InodeId) -> Result<Attr, Errno> {
        let transaction = Transaction::begin(&self.base);
        let inode = transaction.inode(inode).map_err(|error| error.to_errno())?;
        Ok(inode.attr)
    }
}

impl Holder {
    fn key(&self) -> Key<'static> {
        Key::Lock(self.session, self.inode, self.family, self.owner, self.start)
    }

    fn prefix(session: Option<SessionId>) -> Vec<u8> {
        let any = session.unwrap_or(SessionId(0));
        Key::Lock(any, InodeId(0), LockFamily::Flock, LockOwner(0), 0)
            .prefix(usize::from(session.is_some()))
    }
}
