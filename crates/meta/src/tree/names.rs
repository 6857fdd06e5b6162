//! Directory entries: looking up, listing, creating and removing them.

use super::Outcome;
use super::base::Effect;
use super::transaction::{Context, Transaction};
use crate::records::{CookieEntry, Dentry, Inode, Key, decode, key_number};
use crate::store::{Direction, Error, Scan};
use protocol::client::{Answer, Creation, Entry, Name};
use protocol::{
    Attr, Errno, FileKind, Generation, InodeId, Layout, NAME_MAX_BYTES, Rights, SYMLINK_MAX_BYTES,
    Timestamp,
};

/// Most hard links of an inode, as on ext4.
pub const LINK_MAX: u32 = 65_000;

/// Most entries in one answer: with the longest names they still fit a frame.
const ENTRIES_MAX: usize = 1024;

/// Cookies begin here: a front end may give 1 and 2 to `.` and `..`, which are not listed.
pub const FIRST_COOKIE: u64 = 3;

/// The properties of a new inode.
pub(crate) struct NewInode {
    pub(crate) kind: FileKind,
    pub(crate) mode: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) layout: Layout,
    pub(crate) parent: InodeId,
    pub(crate) target: Vec<u8>,
}

/// Returns an error unless bytes can be a name in a directory; `.` and `..` are not checked here.
pub(crate) fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Errno::ENOENT.into());
    }
    if name.len() > NAME_MAX_BYTES {
        return Err(Errno::ENAMETOOLONG.into());
    }
    if name.iter().any(|byte| *byte == b'/' || *byte == 0) {
        return Err(Errno::EINVAL.into());
    }
    Ok(())
}

/// Returns whether a name is `.` or `..`.
pub(crate) fn is_dots(name: &[u8]) -> bool {
    matches!(name, b"." | b"..")
}

impl NewInode {
    /// Builds the inode with a number at a time.
    pub(crate) fn build(self, inode: InodeId, now: Timestamp) -> Inode {
        let is_directory = self.kind == FileKind::Directory;
        let attr = Attr {
            inode,
            kind: self.kind,
            mode: self.mode,
            nlink: if is_directory { 2 } else { 1 },
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size: self.target.len() as u64,
            allocated_bytes: 0,
            atime: now,
            mtime: now,
            ctime: now,
            version: 1,
            data_version: 1,
            generation: Generation(0),
            layout: self.layout,
        };
        Inode {
            attr,
            parent: if is_directory { self.parent } else { InodeId(0) },
            next_cookie: FIRST_COOKIE,
            target: self.target,
            xattrs: 0,
            truncating: None,
            is_dead: false,
            flush_epoch: 0,
            sole: None,
            inline: 0,
        }
    }
}

impl Transaction<'_> {
    /// Creates an inode; the caller writes it.
    pub(crate) fn new_inode(&mut self, new: NewInode, now: Timestamp) -> Inode {
        let id = InodeId(self.counters.next_inode);
        assert!(id > InodeId::ROOT, "{id} would be made, and numbers begin after the root's");
        self.counters.next_inode += 1;
        self.counters.inodes += 1;
        new.build(id, now)
    }

    /// `Lookup`.
    pub(crate) fn lookup(&self, parent: InodeId, name: &[u8]) -> Result<Outcome, Error> {
        let directory = self.directory(parent)?;
        check_name(name)?;
        let child = match name {
            b"." => Some(parent),
            // A removed directory's parent may be gone itself: ESTALE.
            b".." => Some(self.inode(directory.parent)?.attr.inode),
            _ => self.dentry(parent, name)?.map(|dentry| dentry.inode),
        };
        let Some(child) = child else {
            return Ok(Outcome::of(Answer::NoEntry).granting(parent, Rights::READ));
        };
        let attr = self.named_inode(child)?.attr;
        let outcome = Outcome::of(Answer::Entry(attr)).granting(parent, Rights::READ);
        Ok(outcome.granting(child, Rights::READ))
    }

    /// `ReadDir`.
    pub(crate) fn read_directory(
        &self,
        id: InodeId,
        after: u64,
        count_max: u32,
    ) -> Result<Outcome, Error> {
        self.directory(id)?;
        let count_max = (count_max as usize).min(ENTRIES_MAX);
        if count_max == 0 {
            return Err(Errno::EINVAL.into());
        }
        let Some(first) = after.checked_add(1) else {
            return Ok(Outcome::of(Answer::Entries { entries: Vec::new(), end: true }));
        };
        let found = self.scan(Scan {
            prefix: &Key::Cookie(id, 0).prefix(1),
            from: Some(&Key::Cookie(id, first).encode()),
            direction: Direction::Forward,
            limit: count_max + 1,
        })?;
        let end = found.len() <= count_max;
        let mut outcome = Outcome::of(Answer::Done).granting(id, Rights::READ);
        let mut entries = Vec::with_capacity(found.len().min(count_max));
        for (key, value) in found.iter().take(count_max) {
            let entry: CookieEntry = decode(key, value)?;
            let attr = self.named_inode(entry.inode)?.attr;
            outcome = outcome.granting(entry.inode, Rights::READ);
            entries.push(Entry { name: entry.name, cookie: key_number(key, 1)?, attr });
        }
        outcome.answer = Answer::Entries { entries, end };
        Ok(outcome)
    }

    /// Adds an entry that does not exist yet.
    pub(crate) fn add_entry(
        &mut self,
        directory: &mut Inode,
        name: &[u8],
        inode: InodeId,
    ) -> Result<(), Error> {
        let parent = directory.attr.inode;
        assert!(
            directory.attr.kind == FileKind::Directory && inode.0 < self.counters.next_inode,
            "{parent} gets an entry for {inode}: {directory:?}"
        );
        // It costs a read, and all callers have just done it.
        debug_assert!(
            !matches!(self.dentry(parent, name), Ok(Some(_))),
            "a second entry {:?} is added to {parent}",
            name.escape_ascii().to_string()
        );
        let cookie = directory.gain_entry()?;
        self.put(&Key::Dentry(parent, name), &Dentry { inode, cookie })?;
        self.put(&Key::Cookie(parent, cookie), &CookieEntry { inode, name: name.to_vec() })
    }

    /// Removes an entry that exists.
    pub(crate) fn remove_entry(
        &mut self,
        directory: &mut Inode,
        name: &[u8],
        dentry: Dentry,
    ) -> Result<(), Error> {
        let parent = directory.attr.inode;
        directory.lose_entry()?;
        self.remove(&Key::Dentry(parent, name));
        if !reactor::mutant!("cookie-left") {
            self.remove(&Key::Cookie(parent, dentry.cookie));
        }
        Ok(())
    }

    /// Makes an existing entry name another inode; it keeps its cookie.
    pub(crate) fn replace_entry(
        &mut self,
        parent: InodeId,
        name: &[u8],
        dentry: Dentry,
        inode: InodeId,
    ) -> Result<(), Error> {
        let cookie = dentry.cookie;
        self.put(&Key::Dentry(parent, name), &Dentry { inode, cookie })?;
        self.put(&Key::Cookie(parent, cookie), &CookieEntry { inode, name: name.to_vec() })
    }

    /// Returns the directory for a new entry: it must still have a name itself.
    pub(crate) fn living_directory(&self, id: InodeId) -> Result<Inode, Error> {
        let directory = self.directory(id)?;
        if directory.attr.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        Ok(directory)
    }

    /// `Create`.
    pub(crate) fn create(
        &mut self,
        context: &Context<'_>,
        parent: InodeId,
        name: &Name,
        creation: &Creation,
        owner: (u16, u32, u32),
        rights: Rights,
    ) -> Result<Outcome, Error> {
        check_name(name)?;
        let mut directory = self.living_directory(parent)?;
        let exists =
            self.dentry(parent, name)?.is_some() && !reactor::mutant!("create-over-existing");
        if is_dots(name) || exists {
            return Err(Errno::EEXIST.into());
        }
        let new = describe(&directory, creation, owner)?;
        if new.kind == FileKind::Directory {
            directory.gain_link()?;
        }
        let mut inode = self.new_inode(new, context.now);
        let is_sole = rights.contains(Rights::WRITE | Rights::OPEN | Rights::SOLE)
            && inode.attr.kind == FileKind::File;
        inode.sole = is_sole.then_some(context.session);
        self.put_inode(&inode)?;
        self.add_entry(&mut directory, name, inode.attr.inode)?;
        directory.modify(context.now);
        self.put_inode(&directory)?;
        Ok(Outcome::of(Answer::Entry(inode.attr))
            .changing(directory.attr)
            .touching(inode.attr.inode)
            .granting(parent, Rights::READ)
            .granting(inode.attr.inode, Rights::READ)
            .granting(inode.attr.inode, if is_sole { rights } else { rights - Rights::SOLE }))
    }

    /// `Link`.
    pub(crate) fn link(
        &mut self,
        context: &Context<'_>,
        id: InodeId,
        parent: InodeId,
        name: &Name,
    ) -> Result<Outcome, Error> {
        check_name(name)?;
        let mut inode = self.linked_inode(id)?;
        let mut directory = self.living_directory(parent)?;
        if is_dots(name) || self.dentry(parent, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if inode.attr.kind == FileKind::Directory {
            return Err(Errno::EPERM.into());
        }
        if inode.attr.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        if inode.attr.nlink >= LINK_MAX {
            return Err(Errno::EMLINK.into());
        }
        inode.gain_link()?;
        inode.touch(context.now);
        self.put_inode(&inode)?;
        self.add_entry(&mut directory, name, id)?;
        directory.modify(context.now);
        self.put_inode(&directory)?;
        Ok(Outcome::of(Answer::Entry(inode.attr))
            .changing(directory.attr)
            .touching(id)
            .granting(parent, Rights::READ)
            .granting(id, Rights::READ))
    }

    /// `Unlink` and `Rmdir`.
    pub(crate) fn remove_name(
        &mut self,
        context: &Context<'_>,
        parent: InodeId,
        name: &Name,
        is_rmdir: bool,
    ) -> Result<Outcome, Error> {
        check_name(name)?;
        let mut directory = self.directory(parent)?;
        match (is_rmdir, name.as_slice()) {
            (true, b".") => return Err(Errno::EINVAL.into()),
            (true, b"..") => return Err(Errno::ENOTEMPTY.into()),
            (false, b"." | b"..") => return Err(Errno::EISDIR.into()),
            _ => {}
        }
        let dentry = self.dentry(parent, name)?.ok_or(Errno::ENOENT)?;
        let mut inode = self.named_inode(dentry.inode)?;
        let is_directory = inode.attr.kind == FileKind::Directory;
        match (is_rmdir, is_directory) {
            (true, false) => return Err(Errno::ENOTDIR.into()),
            (false, true) => return Err(Errno::EISDIR.into()),
            (true, true) if inode.attr.size > 0 && !reactor::mutant!("rmdir-with-entries") => {
                return Err(Errno::ENOTEMPTY.into());
            }
            _ => {}
        }
        self.remove_entry(&mut directory, name, dentry)?;
        if is_directory {
            directory.lose_link()?;
        }
        directory.modify(context.now);
        self.put_inode(&directory)?;
        let left = self.drop_name(context, &mut inode)?;
        let id = inode.attr.inode;
        let mut outcome = Outcome::of(Answer::Removed { inode: id, left })
            .changing(directory.attr)
            .touching(id)
            .granting(parent, Rights::READ);
        if left.is_some() {
            outcome = outcome.granting(id, Rights::READ);
        }
        outcome.unnamed.extend(left.is_none().then_some(id));
        Ok(outcome)
    }

    /// Takes one name from an inode; returns its attributes if it has other names left. Without a
    /// name it lives on while a session has it open; otherwise it is dead.
    pub(crate) fn drop_name(
        &mut self,
        context: &Context<'_>,
        inode: &mut Inode,
    ) -> Result<Option<Attr>, Error> {
        match inode.attr.kind {
            FileKind::Directory => inode.attr.nlink = 0,
            _ => inode.lose_link()?,
        }
        inode.touch(context.now);
        if inode.attr.nlink > 0 {
            self.put_inode(inode)?;
            return Ok(Some(inode.attr));
        }
        let id = inode.attr.inode;
        let openers = (context.openers)(id);
        if openers.is_empty() || reactor::mutant!("open-file-killed") {
            self.kill(inode)?;
            return Ok(None);
        }
        assert!(!inode.is_dead, "{id} is dead, and open in {openers:?}");
        for session in openers {
            self.mark(&Key::OpenOrphan(id, session))?;
            self.effect(Effect::Opened(id, session));
        }
        self.put_inode(inode)?;
        Ok(None)
    }
}

/// Returns the new inode that `Create` makes in a directory.
pub(crate) fn describe(
    directory: &Inode,
    creation: &Creation,
    (mode, uid, gid): (u16, u32, u32),
) -> Result<NewInode, Error> {
    const SGID: u16 = 0o2000;
    if mode & !0o7777 != 0 {
        return Err(Errno::EINVAL.into());
    }
    let mut new = NewInode {
        kind: FileKind::File,
        mode,
        uid,
        gid,
        rdev: 0,
        layout: directory.attr.layout,
        parent: directory.attr.inode,
        target: Vec::new(),
    };
    if directory.attr.mode & SGID != 0 {
        new.gid = directory.attr.gid;
        if *creation == Creation::Directory {
            new.mode |= SGID;
        }
    }
    match creation {
        Creation::File => {}
        Creation::Directory => new.kind = FileKind::Directory,
        Creation::Symlink(target) => {
            if target.is_empty() || target.contains(&0) {
                return Err(Errno::EINVAL.into());
            }
            if target.len() > SYMLINK_MAX_BYTES {
                return Err(Errno::ENAMETOOLONG.into());
            }
            new.kind = FileKind::Symlink;
            new.mode = 0o777;
            new.target.clone_from(target);
        }
        Creation::Special(kind, rdev) => {
            use FileKind::{BlockDevice, CharDevice, Fifo, Socket};
            if !matches!(kind, BlockDevice | CharDevice | Fifo | Socket) {
                return Err(Errno::EINVAL.into());
            }
            new.kind = *kind;
            new.rdev = if matches!(kind, BlockDevice | CharDevice) { *rdev } else { 0 };
        }
    }
    Ok(new)
}
