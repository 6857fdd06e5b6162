//! `renameat2(2)`: moving, replacing, exchanging names.

use super::Outcome;
use super::names::{NewInode, check_name, is_dots};
use super::transaction::{Context, Transaction, contradiction};
use crate::records::{Dentry, Inode, Key};
use crate::store::Error;
use protocol::client::{Answer, Name, RenameMode};
use protocol::{Attr, Errno, FileKind, InodeId, Rights, Timestamp};

/// Deeper than any path can lead: a longer walk means a loop in the stored tree.
const DEPTH_MAX: usize = 1 << 20;

/// A requested rename.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rename<'a> {
    pub(crate) parent: InodeId,
    pub(crate) name: &'a Name,
    pub(crate) new_parent: InodeId,
    pub(crate) new_name: &'a Name,
    pub(crate) mode: RenameMode,
}

/// The inodes and entries of a rename.
pub(crate) struct Found {
    pub(crate) moved: Inode,
    moved_dentry: Dentry,
    /// The inode that has the new name so far.
    pub(crate) present: Option<(Inode, Dentry)>,
}

/// The one or two directories of a rename.
struct Directories {
    old: Inode,
    new: Option<Inode>,
}

impl Directories {
    fn new_mut(&mut self) -> &mut Inode {
        self.new.as_mut().unwrap_or(&mut self.old)
    }

    /// Moves the link of a subdirectory's `..` from the old directory to the new one.
    fn move_dotdot(&mut self) -> Result<(), Error> {
        if let Some(new) = &mut self.new {
            self.old.lose_link()?;
            new.gain_link()?;
        }
        Ok(())
    }

    /// Moves that link back.
    fn move_dotdot_back(&mut self) -> Result<(), Error> {
        if let Some(new) = &mut self.new {
            new.lose_link()?;
            self.old.gain_link()?;
        }
        Ok(())
    }
}

fn is_directory(inode: &Inode) -> bool {
    inode.attr.kind == FileKind::Directory
}

impl Transaction<'_> {
    /// Finds the inodes and entries of a rename, and refuses a forbidden one. The flag is true if
    /// there is nothing to do.
    pub(crate) fn find_rename(&self, rename: Rename<'_>) -> Result<(Found, bool), Error> {
        check_name(rename.name)?;
        check_name(rename.new_name)?;
        self.directory(rename.parent)?;
        let new_parent = self.living_directory(rename.new_parent)?;
        if is_dots(rename.name) || is_dots(rename.new_name) {
            return Err(Errno::EBUSY.into());
        }
        let moved_dentry = self.dentry(rename.parent, rename.name)?.ok_or(Errno::ENOENT)?;
        let moved = self.named_inode(moved_dentry.inode)?;
        let present = match self.dentry(rename.new_parent, rename.new_name)? {
            Some(dentry) => Some((self.named_inode(dentry.inode)?, dentry)),
            None => None,
        };
        match (rename.mode, &present) {
            (RenameMode::NoReplace | RenameMode::WhiteoutNoReplace, Some(_))
                if !reactor::mutant!("noreplace-replaces") =>
            {
                return Err(Errno::EEXIST.into());
            }
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
            _ => {}
        }
        if is_directory(&moved) && self.is_within(&new_parent, moved.attr.inode)? {
            return Err(Errno::EINVAL.into());
        }
        let is_noop =
            present.as_ref().is_some_and(|(inode, _)| inode.attr.inode == moved.attr.inode);
        if let Some((inode, _)) = &present
            && !is_noop
        {
            self.check_present(rename, &moved, inode)?;
        }
        Ok((Found { moved, moved_dentry, present }, is_noop))
    }

    /// Returns an error unless the inode under the new name may be replaced or exchanged.
    fn check_present(
        &self,
        rename: Rename<'_>,
        moved: &Inode,
        present: &Inode,
    ) -> Result<(), Error> {
        if rename.mode == RenameMode::Exchange {
            let old_parent = self.directory(rename.parent)?;
            if is_directory(present) && self.is_within(&old_parent, present.attr.inode)? {
                return Err(Errno::EINVAL.into());
            }
            return Ok(());
        }
        match (is_directory(moved), is_directory(present)) {
            (true, false) => Err(Errno::ENOTDIR.into()),
            (false, true) => Err(Errno::EISDIR.into()),
            (true, true) if present.attr.size > 0 => Err(Errno::ENOTEMPTY.into()),
            _ => Ok(()),
        }
    }

    /// Returns whether a directory is `ancestor` or lies under it.
    fn is_within(&self, directory: &Inode, ancestor: InodeId) -> Result<bool, Error> {
        let mut id = directory.attr.inode;
        let mut parent = directory.parent;
        for _ in 0..DEPTH_MAX {
            if id == ancestor {
                return Ok(true);
            }
            if id == InodeId::ROOT || id == parent {
                return Ok(false);
            }
            id = parent;
            parent = self.named_inode(id)?.parent;
        }
        Err(contradiction(&Key::Inode(directory.attr.inode), "its ancestors form a loop"))
    }

    /// `Rename`.
    pub(crate) fn rename(
        &mut self,
        context: &Context<'_>,
        rename: Rename<'_>,
    ) -> Result<Outcome, Error> {
        let (found, is_noop) = self.find_rename(rename)?;
        if is_noop {
            let moved = found.moved.attr;
            return Ok(Outcome::of(Answer::Renamed { moved, other: None, replaced: None })
                .granting(moved.inode, Rights::READ));
        }
        let old = self.directory(rename.parent)?;
        let is_one = rename.parent == rename.new_parent;
        let new = if is_one { None } else { Some(self.directory(rename.new_parent)?) };
        assert!(
            new.as_ref().is_none_or(|new| new.attr.inode != old.attr.inode),
            "a rename within {} has two records of it",
            rename.parent
        );
        let mut directories = Directories { old, new };
        let outcome = match rename.mode {
            RenameMode::Exchange => self.exchange(context, rename, found, &mut directories)?,
            _ => self.replace(context, rename, found, &mut directories)?,
        };
        self.put_directories(context.now, directories, outcome)
    }

    fn put_directories(
        &mut self,
        now: Timestamp,
        directories: Directories,
        mut outcome: Outcome,
    ) -> Result<Outcome, Error> {
        for mut directory in std::iter::once(directories.old).chain(directories.new) {
            directory.modify(now);
            self.put_inode(&directory)?;
            outcome = outcome.changing(directory.attr).granting(directory.attr.inode, Rights::READ);
        }
        Ok(outcome)
    }

    fn exchange(
        &mut self,
        context: &Context<'_>,
        rename: Rename<'_>,
        found: Found,
        directories: &mut Directories,
    ) -> Result<Outcome, Error> {
        let mut moved = found.moved;
        let Some((mut other, other_dentry)) = found.present else {
            return Err(Errno::ENOENT.into());
        };
        self.replace_entry(rename.parent, rename.name, found.moved_dentry, other.attr.inode)?;
        self.replace_entry(rename.new_parent, rename.new_name, other_dentry, moved.attr.inode)?;
        match (is_directory(&moved), is_directory(&other)) {
            (true, false) => directories.move_dotdot()?,
            (false, true) => directories.move_dotdot_back()?,
            (true, true) | (false, false) => {}
        }
        self.settle_moved(&mut moved, rename.new_parent, context.now)?;
        self.settle_moved(&mut other, rename.parent, context.now)?;
        let (moved, other) = (moved.attr, other.attr);
        let answer = Answer::Renamed { moved, other: Some(other), replaced: None };
        Ok(Outcome::of(answer)
            .touching(moved.inode)
            .touching(other.inode)
            .granting(moved.inode, Rights::READ)
            .granting(other.inode, Rights::READ))
    }

    fn replace(
        &mut self,
        context: &Context<'_>,
        rename: Rename<'_>,
        found: Found,
        directories: &mut Directories,
    ) -> Result<Outcome, Error> {
        let mut moved = found.moved;
        let mut outcome = Outcome::of(Answer::Done);
        let mut replaced = None;
        if let Some((mut present, dentry)) = found.present {
            let id = present.attr.inode;
            self.replace_entry(rename.new_parent, rename.new_name, dentry, moved.attr.inode)?;
            if is_directory(&present) {
                directories.new_mut().lose_link()?;
            }
            let left = self.drop_name(context, &mut present)?;
            outcome.unnamed.extend(left.is_none().then_some(id));
            outcome = outcome.touching(id);
            if left.is_some() {
                outcome = outcome.granting(id, Rights::READ);
            }
            replaced = Some((id, left));
        } else {
            self.add_entry(directories.new_mut(), rename.new_name, moved.attr.inode)?;
        }
        if is_directory(&moved) {
            directories.move_dotdot()?;
        }
        let mut other = None;
        if matches!(rename.mode, RenameMode::Whiteout | RenameMode::WhiteoutNoReplace) {
            let whiteout = self.whiteout(&directories.old, context.now)?;
            self.replace_entry(rename.parent, rename.name, found.moved_dentry, whiteout.inode)?;
            outcome = outcome.granting(whiteout.inode, Rights::READ);
            other = Some(whiteout);
        } else {
            self.remove_entry(&mut directories.old, rename.name, found.moved_dentry)?;
        }
        self.settle_moved(&mut moved, rename.new_parent, context.now)?;
        outcome.answer = Answer::Renamed { moved: moved.attr, other, replaced };
        Ok(outcome.touching(moved.attr.inode).granting(moved.attr.inode, Rights::READ))
    }

    /// Writes an inode that has a new name, and, if it is a directory, a new parent.
    fn settle_moved(
        &mut self,
        inode: &mut Inode,
        parent: InodeId,
        now: Timestamp,
    ) -> Result<(), Error> {
        if is_directory(inode) {
            let id = inode.attr.inode;
            assert_ne!(id, parent, "{id} would be its own parent");
            inode.parent = parent;
        }
        inode.touch(now);
        self.put_inode(inode)
    }

    /// Creates the "removed" mark of overlayfs: a character device 0:0.
    fn whiteout(&mut self, directory: &Inode, now: Timestamp) -> Result<Attr, Error> {
        let new = NewInode {
            kind: FileKind::CharDevice,
            mode: 0,
            uid: directory.attr.uid,
            gid: directory.attr.gid,
            rdev: 0,
            layout: directory.attr.layout,
            parent: directory.attr.inode,
            target: Vec::new(),
        };
        let inode = self.new_inode(new, now);
        self.put_inode(&inode)?;
        Ok(inode.attr)
    }
}
