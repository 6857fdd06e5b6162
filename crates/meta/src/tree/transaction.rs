//! A transaction: typed reads and writes that become visible together, or never.
//!
//! It borrows the base, so that nothing else runs beside it, and gathers its writes and their
//! effects on the state in memory. A dropped transaction leaves no trace.

use super::base::{Base, Effect};
use crate::records::{Counters, Dentry, Inode, Key, Mark, Record, corrupt, decode, encode};
use crate::space::SpaceEffect;
use crate::store::overlay::Overlay;
use crate::store::{Error, Pair, Scan};
use protocol::{AllocationId, Errno, FileKind, Generation, InodeId, SessionId, Timestamp};

/// Most records that one call may write. Background work stays near [`STEP_RECORDS`].
pub(crate) const RECORDS_MAX: usize = 16384;

/// Most bytes that one call may write.
pub(crate) const BYTES_MAX: usize = 32 << 20;

/// Number of records that a step of divisible work may write.
pub(crate) const STEP_RECORDS: usize = 100;

/// The caller and the time of a call.
pub struct Context<'a> {
    /// The session.
    pub session: SessionId,
    /// The present time.
    pub now: Timestamp,
    /// Returns the sessions that are known to have an inode open.
    pub openers: &'a dyn Fn(InodeId) -> Vec<SessionId>,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Context");
        debug.field("session", &self.session).field("now", &self.now).finish_non_exhaustive()
    }
}

/// The changes of a finished transaction.
pub(crate) struct Finished {
    pub(crate) writes: Overlay,
    pub(crate) counters: Counters,
    pub(crate) effects: Vec<Effect>,
}

/// A transaction.
pub(crate) struct Transaction<'a> {
    pub(crate) base: &'a Base,
    pub(crate) counters: Counters,
    writes: Overlay,
    effects: Vec<Effect>,
    freed: Vec<(AllocationId, u32)>,
}

impl<'a> Transaction<'a> {
    /// Begins on the present state.
    pub(crate) fn begin(base: &'a Base) -> Transaction<'a> {
        Transaction {
            base,
            counters: base.counters,
            writes: Overlay::default(),
            effects: Vec::new(),
            freed: Vec::new(),
        }
    }

    /// Ends it: rests the blocks that it freed, and writes the counters if they changed.
    pub(crate) fn finish(mut self) -> Result<Finished, Error> {
        let freed = std::mem::take(&mut self.freed);
        self.rest(freed)?;
        if self.counters != self.base.counters {
            let counters = self.counters;
            self.put(&Key::Counters, &counters)?;
        }
        if self.writes.len() > RECORDS_MAX || self.writes.bytes() > BYTES_MAX {
            return Err(Errno::E2BIG.into());
        }
        Ok(Finished { writes: self.writes, counters: self.counters, effects: self.effects })
    }

    /// Returns the number of records written so far.
    pub(crate) fn written(&self) -> usize {
        self.writes.len()
    }

    /// Returns a record.
    pub(crate) fn get<R: Record>(&self, key: &Key<'_>) -> Result<Option<R>, Error> {
        let bytes = key.encode();
        if let Some(value) = self.writes.get(&bytes) {
            return value.as_ref().map(|value| decode(&bytes, value)).transpose();
        }
        self.base.layers.get(&bytes)?.map(|value| decode(&bytes, &value)).transpose()
    }

    /// Returns the records of a scan, with this transaction's writes.
    pub(crate) fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error> {
        self.writes.scan(scan, |scan| self.base.layers.scan(scan))
    }

    /// Writes a record.
    pub(crate) fn put<R: Record>(&mut self, key: &Key<'_>, record: &R) -> Result<(), Error> {
        self.writes.set(key.encode(), Some(encode(record)?));
        Ok(())
    }

    /// Writes a record for a key that carries all information itself.
    pub(crate) fn mark(&mut self, key: &Key<'_>) -> Result<(), Error> {
        self.put(key, &Mark)
    }

    /// Removes a record.
    pub(crate) fn remove(&mut self, key: &Key<'_>) {
        self.writes.set(key.encode(), None);
    }

    /// Adds a change of the state in memory.
    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Adds a change of the space index.
    pub(crate) fn space_effect(&mut self, effect: SpaceEffect) {
        self.effects.push(Effect::Space(effect));
    }

    /// Frees blocks: they rest from the end of this transaction on.
    pub(crate) fn free(&mut self, first: AllocationId, blocks: u32) {
        if let Some((last, count)) = self.freed.last_mut()
            && last.device == first.device
            && last.block + u64::from(*count) == first.block
        {
            *count += blocks;
            return;
        }
        self.freed.push((first, blocks));
    }

    /// Returns an inode that is not dead; ESTALE if there is none.
    pub(crate) fn inode(&self, id: InodeId) -> Result<Inode, Error> {
        match self.stored_inode(id)? {
            Some(inode) if !inode.is_dead => Ok(inode),
            _ => Err(Errno::ESTALE.into()),
        }
    }

    /// Returns an inode as it is stored, dead or not. A record that makes no sense is an error,
    /// because code that works on an inode relies on [`Inode::fault`].
    pub(crate) fn stored_inode(&self, id: InodeId) -> Result<Option<Inode>, Error> {
        let key = Key::Inode(id);
        let inode: Option<Inode> = self.get(&key)?;
        let is_given_out = id.0 < self.counters.next_inode;
        match inode.as_ref().and_then(|inode| inode.fault(id)) {
            Some(fault) => Err(contradiction(&key, fault)),
            None if inode.is_some() && !is_given_out => {
                Err(contradiction(&key, "its number was not given out"))
            }
            None => Ok(inode),
        }
    }

    /// Returns an inode that a call gives a further name. ENOENT if it is gone: local file systems
    /// return that for a file that lost its last name but is still open (`link(2)`).
    pub(crate) fn linked_inode(&self, id: InodeId) -> Result<Inode, Error> {
        match self.inode(id) {
            Err(Error::Refused(Errno::ESTALE)) => Err(Errno::ENOENT.into()),
            inode => inode,
        }
    }

    /// Returns a directory; ENOTDIR if the inode is something else. ENOENT if there is none: the
    /// directory was removed, and local file systems return that for a removed directory that is
    /// still open.
    pub(crate) fn directory(&self, id: InodeId) -> Result<Inode, Error> {
        let inode = match self.inode(id) {
            Err(Error::Refused(Errno::ESTALE)) => return Err(Errno::ENOENT.into()),
            inode => inode?,
        };
        if inode.attr.kind != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        Ok(inode)
    }

    /// Returns an inode that an entry names: it must exist.
    pub(crate) fn named_inode(&self, id: InodeId) -> Result<Inode, Error> {
        match self.stored_inode(id)? {
            Some(inode) if !inode.is_dead => Ok(inode),
            _ => Err(contradiction(&Key::Inode(id), "an entry names it")),
        }
    }

    /// Writes an inode.
    pub(crate) fn put_inode(&mut self, inode: &Inode) -> Result<(), Error> {
        let id = inode.attr.inode;
        let fault = inode.fault(id);
        assert!(fault.is_none(), "{id} would be stored with a fault, {fault:?}: {inode:?}");
        assert!(
            id.0 < self.counters.next_inode,
            "{id} would be stored, but numbers from {} on were not given out",
            self.counters.next_inode
        );
        self.put(&Key::Inode(id), inode)
    }

    /// Returns a directory's entry.
    pub(crate) fn dentry(&self, parent: InodeId, name: &[u8]) -> Result<Option<Dentry>, Error> {
        self.get(&Key::Dentry(parent, name))
    }

    /// Marks an inode dead: its content is freed in the background.
    pub(crate) fn kill(&mut self, inode: &mut Inode) -> Result<(), Error> {
        assert_eq!(inode.attr.nlink, 0, "{} is marked dead, but has names", inode.attr.inode);
        inode.is_dead = true;
        self.put_inode(inode)?;
        self.effect(Effect::Dead(inode.attr.inode));
        self.mark(&Key::Dead(inode.attr.inode))
    }
}

/// Returns the error for records that contradict each other.
pub(crate) fn contradiction(key: &Key<'_>, reason: &str) -> Error {
    corrupt(&key.encode(), reason)
}

impl Inode {
    /// Counts a change of attributes.
    pub(crate) fn touch(&mut self, now: Timestamp) {
        self.attr.ctime = now;
        self.attr.version = self.attr.version.saturating_add(1);
    }

    /// Starts a new generation: commits of data from before it are dropped.
    pub(crate) fn next_generation(&mut self) {
        self.attr.generation = Generation(self.attr.generation.0.saturating_add(1));
    }

    /// Counts a new entry of a directory; returns its cookie.
    pub(crate) fn gain_entry(&mut self) -> Result<u64, Error> {
        let cookie = self.next_cookie;
        let next = cookie.checked_add(1).zip(self.attr.size.checked_add(1));
        let Some((next_cookie, size)) = next else { return Err(self.miscounted("its entries")) };
        (self.next_cookie, self.attr.size) = (next_cookie, size);
        Ok(cookie)
    }

    /// Counts one entry of a directory less.
    pub(crate) fn lose_entry(&mut self) -> Result<(), Error> {
        let Some(size) = self.attr.size.checked_sub(1) else {
            return Err(self.miscounted("its entries"));
        };
        self.attr.size = size;
        Ok(())
    }

    /// Counts one link more: a name, or the `..` of a directory's new child.
    pub(crate) fn gain_link(&mut self) -> Result<(), Error> {
        self.attr.nlink = self.attr.nlink.checked_add(1).ok_or(Errno::EMLINK)?;
        Ok(())
    }

    /// Counts one link less: a name of a file, or the `..` of a directory's child. A directory that
    /// has entries keeps its own two.
    pub(crate) fn lose_link(&mut self) -> Result<(), Error> {
        let own = if self.attr.kind == FileKind::Directory { 2 } else { 0 };
        match self.attr.nlink.checked_sub(1) {
            Some(nlink) if nlink >= own => self.attr.nlink = nlink,
            _ => return Err(self.miscounted("its links")),
        }
        Ok(())
    }

    /// Counts one extended attribute less.
    pub(crate) fn lose_xattr(&mut self) -> Result<(), Error> {
        let Some(xattrs) = self.xattrs.checked_sub(1) else {
            return Err(self.miscounted("its extended attributes"));
        };
        self.xattrs = xattrs;
        Ok(())
    }

    fn miscounted(&self, what: &str) -> Error {
        contradiction(&Key::Inode(self.attr.inode), &format!("it has miscounted {what}"))
    }

    /// Counts a change of data or entries.
    pub(crate) fn modify(&mut self, now: Timestamp) {
        self.attr.mtime = now;
        self.attr.data_version = self.attr.data_version.saturating_add(1);
        self.touch(now);
    }
}
