//! Attributes, link targets and extended attributes.

use super::Outcome;
use super::base::Effect;
use super::transaction::{Context, Transaction};
use crate::records::{Inode, Key, Xattr, key_tail};
use crate::store::{Direction, Error, Scan};
use protocol::attr::{AttrChanges, Deferred};
use protocol::client::{Answer, Name, XattrMode};
use protocol::{
    CAPABILITY_XATTR, Errno, FILE_SIZE_MAX_BYTES, FileKind, InodeId, Layout, Rights,
    XATTR_NAME_MAX_BYTES, XATTR_VALUE_MAX_BYTES,
};

/// Most bytes of all names of an inode's extended attributes (`XATTR_LIST_MAX`).
const XATTR_LIST_MAX_BYTES: usize = 65536;

/// Smallest step of a stripe's size, in bytes.
const STRIPE_STEP_BYTES: u32 = 64 << 10;

/// Largest stripe size, in bytes.
const STRIPE_MAX_BYTES: u32 = 1 << 30;

impl Transaction<'_> {
    /// `GetAttr`.
    pub(crate) fn get_attr(&self, id: InodeId) -> Result<Outcome, Error> {
        let inode = self.inode(id)?;
        Ok(Outcome::of(Answer::Attr(inode.attr)).granting(id, Rights::READ))
    }

    /// `ReadLink`.
    pub(crate) fn read_link(&self, id: InodeId) -> Result<Outcome, Error> {
        let inode = self.inode(id)?;
        if inode.attr.kind != FileKind::Symlink {
            return Err(Errno::EINVAL.into());
        }
        Ok(Outcome::of(Answer::Bytes(inode.target)).granting(id, Rights::READ))
    }

    /// `Acquire`: returns the attributes; an open of an inode without a name keeps it alive.
    pub(crate) fn acquire(
        &mut self,
        context: &Context<'_>,
        id: InodeId,
        rights: Rights,
    ) -> Result<Outcome, Error> {
        let inode = self.inode(id)?;
        // SOLE comes only with the creation, LOCKS only with a lock.
        let rights = rights - (Rights::SOLE | Rights::LOCKS);
        let writes = rights.intersects(Rights::WRITE | Rights::SIZE);
        match inode.attr.kind {
            // Only the holder adds names.
            FileKind::Directory if !rights.contains(Rights::WRITE) => {}
            FileKind::Directory if writes => return Err(Errno::EISDIR.into()),
            kind if writes && kind != FileKind::File => return Err(Errno::EINVAL.into()),
            _ => {}
        }
        let is_orphan = inode.attr.nlink == 0 && !reactor::mutant!("orphan-open-not-stored");
        if rights.contains(Rights::OPEN) && is_orphan {
            self.mark(&Key::OpenOrphan(id, context.session))?;
            self.effect(Effect::Opened(id, context.session));
        }
        Ok(Outcome::of(Answer::Attr(inode.attr)).granting(id, rights | Rights::READ))
    }

    /// `SetAttr`.
    pub(crate) fn set_attr(
        &mut self,
        context: &Context<'_>,
        id: InodeId,
        changes: &AttrChanges,
    ) -> Result<Outcome, Error> {
        let mut inode = self.inode(id)?;
        check_changes(&inode, changes)?;
        self.change_owner_and_mode(&mut inode, changes)?;
        if changes.size.is_some() {
            self.drop_capability(&mut inode)?;
        }
        let attr = &mut inode.attr;
        attr.layout = changes.layout.unwrap_or(attr.layout);
        if let Some(size) = changes.size {
            self.resize(&mut inode, size)?;
            inode.modify(context.now);
        } else {
            inode.touch(context.now);
        }
        inode.attr.atime = changes.atime.unwrap_or(inode.attr.atime);
        inode.attr.mtime = changes.mtime.unwrap_or(inode.attr.mtime);
        self.put_inode(&inode)?;
        Ok(Outcome::of(Answer::Attr(inode.attr)).touching(id).granting(id, Rights::READ))
    }

    fn change_owner_and_mode(
        &mut self,
        inode: &mut Inode,
        changes: &AttrChanges,
    ) -> Result<(), Error> {
        let is_directory = inode.attr.kind == FileKind::Directory;
        if changes.kill_privileges || (changes.is_chown() && !is_directory) {
            self.kill_privileges(inode)?;
        }
        let attr = &mut inode.attr;
        attr.mode = changes.mode.unwrap_or(attr.mode);
        attr.uid = changes.uid.unwrap_or(attr.uid);
        attr.gid = changes.gid.unwrap_or(attr.gid);
        Ok(())
    }

    /// Applies the changes of attributes that have waited for a commit.
    pub(crate) fn set_deferred(
        &mut self,
        inode: &mut Inode,
        deferred: &Deferred,
    ) -> Result<(), Error> {
        let changes = &deferred.changes;
        if changes.size.is_some() || changes.layout.is_some() {
            return Err(Errno::EINVAL.into());
        }
        check_changes(inode, changes)?;
        self.change_owner_and_mode(inode, changes)?;
        let attr = &mut inode.attr;
        attr.atime = changes.atime.unwrap_or(attr.atime);
        attr.mtime = changes.mtime.unwrap_or(attr.mtime);
        attr.ctime = attr.ctime.max(deferred.ctime);
        Ok(())
    }

    /// Sets a file's size. Readers no longer see the part that is cut off. If it has more extents
    /// than one step removes, the inode keeps a mark and the rest is removed later.
    fn resize(&mut self, inode: &mut Inode, size: u64) -> Result<(), Error> {
        assert!(
            inode.attr.kind == FileKind::File && size <= FILE_SIZE_MAX_BYTES,
            "{} would get {size} bytes: {inode:?}",
            inode.attr.inode
        );
        if size < inode.attr.size && !reactor::mutant!("generation-stands") {
            inode.next_generation();
        }
        self.clear_inline(inode, std::iter::once(size..u64::MAX))?;
        inode.attr.size = size;
        if reactor::mutant!("truncation-leaves-extents") {
            return Ok(());
        }
        self.begin_removal(inode, size, FILE_SIZE_MAX_BYTES)
    }

    /// Clears what a write by a user other than root clears: suid, sgid, file capabilities.
    pub(crate) fn kill_privileges(&mut self, inode: &mut Inode) -> Result<(), Error> {
        inode.attr.mode = inode.attr.without_privileges();
        self.drop_capability(inode)
    }

    /// Removes file capabilities, as every change of data or size does, even by root.
    pub(crate) fn drop_capability(&mut self, inode: &mut Inode) -> Result<(), Error> {
        let key = Key::Xattr(inode.attr.inode, CAPABILITY_XATTR);
        if inode.xattrs > 0 && self.get::<Xattr>(&key)?.is_some() {
            self.remove(&key);
            inode.lose_xattr()?;
        }
        Ok(())
    }

    /// `GetXattr`.
    pub(crate) fn get_xattr(&self, id: InodeId, name: &Name) -> Result<Outcome, Error> {
        let inode = self.inode(id)?;
        check_xattr_name(name)?;
        if inode.xattrs == 0 {
            return Err(Errno::ENODATA.into());
        }
        let xattr: Xattr = self.get(&Key::Xattr(id, name))?.ok_or(Errno::ENODATA)?;
        Ok(Outcome::of(Answer::Bytes(xattr.value)).granting(id, Rights::READ))
    }

    /// `ListXattr`.
    pub(crate) fn list_xattr(&self, id: InodeId) -> Result<Outcome, Error> {
        let inode = self.inode(id)?;
        let names = self.xattr_names(&inode)?;
        Ok(Outcome::of(Answer::Names(names)).granting(id, Rights::READ))
    }

    fn xattr_names(&self, inode: &Inode) -> Result<Vec<Name>, Error> {
        if inode.xattrs == 0 {
            return Ok(Vec::new());
        }
        let id = inode.attr.inode;
        let found = self.scan(Scan {
            prefix: &Key::Xattr(id, b"").prefix(1),
            from: None,
            direction: Direction::Forward,
            // Each name takes at least 2 bytes, its own and a NUL.
            limit: XATTR_LIST_MAX_BYTES / 2,
        })?;
        Ok(found.iter().map(|(key, _)| key_tail(key, 1).to_vec()).collect())
    }

    /// `SetXattr`.
    pub(crate) fn set_xattr(
        &mut self,
        context: &Context<'_>,
        id: InodeId,
        name: &Name,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Outcome, Error> {
        let mut inode = self.inode(id)?;
        check_xattr_name(name)?;
        if value.len() > XATTR_VALUE_MAX_BYTES {
            return Err(Errno::E2BIG.into());
        }
        let key = Key::Xattr(id, name);
        let exists = self.get::<Xattr>(&key)?.is_some();
        match mode {
            XattrMode::Create if exists => return Err(Errno::EEXIST.into()),
            XattrMode::Replace if !exists => return Err(Errno::ENODATA.into()),
            _ => {}
        }
        if !exists {
            let names: usize = self.xattr_names(&inode)?.iter().map(|name| name.len() + 1).sum();
            if names + name.len() + 1 > XATTR_LIST_MAX_BYTES {
                return Err(Errno::ENOSPC.into());
            }
            inode.xattrs += 1;
        }
        self.put(&key, &Xattr { value: value.to_vec() })?;
        inode.touch(context.now);
        self.put_inode(&inode)?;
        Ok(Outcome::of(Answer::Attr(inode.attr)).touching(id).granting(id, Rights::READ))
    }

    /// `RemoveXattr`.
    pub(crate) fn remove_xattr(
        &mut self,
        context: &Context<'_>,
        id: InodeId,
        name: &Name,
    ) -> Result<Outcome, Error> {
        let mut inode = self.inode(id)?;
        check_xattr_name(name)?;
        let key = Key::Xattr(id, name);
        if self.get::<Xattr>(&key)?.is_none() {
            return Err(Errno::ENODATA.into());
        }
        self.remove(&key);
        inode.lose_xattr()?;
        inode.touch(context.now);
        self.put_inode(&inode)?;
        Ok(Outcome::of(Answer::Attr(inode.attr)).touching(id).granting(id, Rights::READ))
    }
}

/// Returns an error if a requested change of attributes is not allowed.
fn check_changes(inode: &Inode, changes: &AttrChanges) -> Result<(), Error> {
    if changes.mode.is_some_and(|mode| mode & !0o7777 != 0) {
        return Err(Errno::EINVAL.into());
    }
    if changes.mode.is_some() && inode.attr.kind == FileKind::Symlink {
        return Err(Errno::EOPNOTSUPP.into());
    }
    if let Some(size) = changes.size {
        check_regular(inode)?;
        if size > FILE_SIZE_MAX_BYTES {
            return Err(Errno::EFBIG.into());
        }
    }
    if let Some(layout) = changes.layout {
        check_layout(inode, layout)?;
    }
    Ok(())
}

fn check_layout(inode: &Inode, layout: Layout) -> Result<(), Error> {
    let is_empty_file = inode.attr.kind == FileKind::File
        && inode.attr.size == 0
        && inode.attr.allocated_bytes == 0;
    let takes_layout = inode.attr.kind == FileKind::Directory || is_empty_file;
    let size = layout.stripe_size_bytes;
    let is_valid = size.is_multiple_of(STRIPE_STEP_BYTES)
        && (STRIPE_STEP_BYTES..=STRIPE_MAX_BYTES).contains(&size)
        && layout.stripe_count >= -1;
    if takes_layout && is_valid { Ok(()) } else { Err(Errno::EINVAL.into()) }
}

/// Returns an error unless an inode can have data.
pub(crate) fn check_regular(inode: &Inode) -> Result<(), Error> {
    match inode.attr.kind {
        FileKind::File => Ok(()),
        FileKind::Directory => Err(Errno::EISDIR.into()),
        _ => Err(Errno::EINVAL.into()),
    }
}

fn check_xattr_name(name: &[u8]) -> Result<(), Error> {
    if name.is_empty() || name.len() > XATTR_NAME_MAX_BYTES {
        return Err(Errno::ERANGE.into());
    }
    // A slash is allowed, unlike in a directory entry.
    if name.contains(&0) { Err(Errno::EINVAL.into()) } else { Ok(()) }
}
