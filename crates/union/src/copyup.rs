//! Copy-up: before its first change, a lower inode becomes one of the upper layer.
//!
//! Directories, links and devices are small and copied at once. A separate thread copies a regular file's data
//! ([`crate::copier`]), so that it stalls no request; meanwhile other changes of the same file wait for the one
//! copy, and all other requests continue. The copy is used at once and handed to the committer, except where
//! nothing needs to be made durable first: a clone, whose extents the file system logs like the name itself; an
//! empty file; or a volatile union.

mod metacopy;

use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;

use metrics::{Family, Point};
use reactor::file::FileHandle;
use reactor::local::Permit;
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use crate::backing::Backing;
use crate::commit::Pending;
use crate::copier::{Copied, Copy, To};
use crate::files;
use crate::format::{Origin, suffix};
use crate::layers::LayerIndex;
use crate::node::{FileState, Node, Place};
use crate::options::SyncMode;
use crate::partial::digest_of;
use crate::sys::{self, Stat};
use crate::sys::{errno_of, keeping_times};
use crate::tree::Union;

/// What of a file's data the copy must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// All of it.
    All,
    /// What will be written; of the rest it must be known where it is.
    Written,
    /// So many bytes from the start: it is about to be truncated.
    First(u64),
}

/// Making a file one that can be changed.
const COPY_UP: Point = Point::new(Family::Union, 0, "copy_up");
/// Copying its data, on a thread beside.
const COPY: Point = Point::new(Family::Union, 1, "copy_data");

impl Union {
    /// Makes a node one that can be changed, copying it up if it must be.
    pub(crate) async fn make_changeable(
        self: &Rc<Self>,
        node: &Rc<Node>,
        keep: Keep,
    ) -> Result<(), Errno> {
        loop {
            if node.is_changeable() {
                return if keep == Keep::All { self.complete(node).await } else { Ok(()) };
            }
            if node.is_directory() {
                return self.copy_up_directory(node).await;
            }
            let Some(state) = node.file() else { return self.copy_up_special(node).await };
            if state.is_copying.get() {
                state.copied.notified().await;
                continue;
            }
            state.is_copying.set(true);
            let counted = metrics::start(COPY_UP, node.inode.get());
            let result = counted.during(self.copy_up_file(node, state, keep)).await;
            counted.end(result.map_or_else(Errno::raw_os_error, |()| 0));
            // The copy of one of several links has one name and a number of its own.
            if node.lower_nlink.get() > 1 {
                self.invalidate_attributes(node);
            }
            self.part_from_passed(node);
            state.is_copying.set(false);
            state.copied.notify();
            assert!(
                result.is_err() || node.is_changeable(),
                "inode {} was copied up and is where it was: {:?}",
                node.inode.get(),
                node.place.borrow()
            );
            return result;
        }
    }

    /// Makes every directory above, and this one, part of the upper layer. It waits only where the
    /// copies must be durable before they show (`fsync=strict`).
    pub(crate) async fn copy_up_directory(&self, node: &Rc<Node>) -> Result<(), Errno> {
        let mut missing = Vec::new();
        let mut current = Rc::clone(node);
        while matches!(*current.place.borrow(), Place::Lower) {
            missing.push(Rc::clone(&current));
            let Some(link) = current.link() else { return Err(Errno::ROFS) };
            current = link.parent;
        }
        while let Some(node) = missing.pop() {
            self.copy_up_one_directory(&node).await?;
        }
        if node.is_changeable() { Ok(()) } else { Err(Errno::NOENT) }
    }

    async fn copy_up_one_directory(&self, node: &Rc<Node>) -> Result<(), Errno> {
        let upper = self.upper()?;
        let link = node.link().ok_or(Errno::NOENT)?;
        let lower = self.object(node)?;
        let stat = self.shown_stat(node, lower.as_fd(), sys::stat_at(lower.as_fd(), b"")?)?;
        let name = self.work_name();
        rustix::fs::mkdirat(&upper.work, &name, Mode::RWXU)?;
        let done = async {
            let copy = sys::open_below(upper.work.as_fd(), &name, OFlags::RDONLY)?;
            self.copy_attributes(node, (lower.as_fd(), &stat), copy.as_fd())?;
            if self.options.sync == SyncMode::Strict {
                let copy = reactor::File::from_handle(reactor::Handle::from_fd(copy));
                copy.sync_all().await.map_err(crate::sys::errno_of)?;
                // Somebody else may have needed the directory meanwhile.
                if !matches!(*node.place.borrow(), Place::Lower) {
                    return rustix::fs::unlinkat(&upper.work, &name, AtFlags::REMOVEDIR);
                }
            }
            self.name_copy(node, &link, &name)
        }
        .await;
        if done.is_err() {
            let _ = rustix::fs::unlinkat(&upper.work, &name, AtFlags::REMOVEDIR);
        }
        done
    }

    /// Makes the directories above what is no directory part of the upper layer: of all names by which
    /// it is known.
    async fn copy_up_parents(&self, node: &Node) -> Result<(), Errno> {
        let links = node.links.borrow().clone();
        for link in links {
            self.copy_up_directory(&link.parent).await?;
        }
        Ok(())
    }

    /// Copies a link, device, socket or fifo.
    async fn copy_up_special(&self, node: &Rc<Node>) -> Result<(), Errno> {
        let upper = self.upper()?;
        let link = node.link().ok_or(Errno::NOENT)?;
        self.copy_up_parents(node).await?;
        if node.is_changeable() {
            return Ok(());
        }
        let lower = self.object(node)?;
        let stat = sys::stat_at(lower.as_fd(), b"")?;
        let name = self.work_name();
        if stat.kind() == libc::S_IFLNK {
            let target = rustix::fs::readlinkat(&lower, c"", Vec::new())?;
            rustix::fs::symlinkat(&target, &upper.work, &name)?;
        } else {
            let kind = rustix::fs::FileType::from_raw_mode(stat.mode);
            let device = rustix::fs::makedev(stat.rdev.0, stat.rdev.1);
            rustix::fs::mknodat(&upper.work, &name, kind, Mode::RUSR | Mode::WUSR, device)?;
        }
        let done = (|| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW;
            let copy = sys::open_below(upper.work.as_fd(), &name, flags)?;
            self.copy_attributes(node, (lower.as_fd(), &stat), copy.as_fd())?;
            self.mark_origin(node, (lower.as_fd(), &stat), copy.as_fd())?;
            match self.prepare_entry(node, (lower.as_fd(), &stat), copy.as_fd())? {
                Some(entry) => self.enter(node, &entry, (upper.work.as_fd(), &name)).map(drop),
                None => self.name_copy(node, &link, &name),
            }
        })();
        if done.is_err() {
            let _ = rustix::fs::unlinkat(&upper.work, &name, AtFlags::empty());
        }
        done
    }

    /// Moves a finished copy from the work directory to the node's name.
    fn name_copy(
        &self,
        node: &Rc<Node>,
        link: &crate::node::Link,
        work_name: &[u8],
    ) -> Result<(), Errno> {
        let upper = self.upper()?;
        let parent = self.upper_part(&link.parent)?;
        keeping_times(parent.as_fd(), || {
            rustix::fs::renameat(&upper.work, work_name, &parent, &*link.name)
        })?;
        node.set_place(Place::Upper);
        self.note_new_name(&link.parent);
        if node.is_directory() { Ok(()) } else { self.set_impure(&link.parent) }
    }

    async fn copy_up_file(
        self: &Rc<Self>,
        node: &Rc<Node>,
        state: &FileState,
        keep: Keep,
    ) -> Result<(), Errno> {
        let upper = self.upper()?;
        self.copy_up_parents(node).await?;
        let place = node.place.borrow().clone();
        let has_data_apart = node.has_data_apart();
        let lower = match &place {
            Place::Gone { fd, .. } if !has_data_apart => sys::reopen(fd.as_fd(), OFlags::RDONLY)?,
            _ => self.open_lower(node)?,
        };
        if node.lacks_data() && node.is_in_upper() {
            return self.bring_data(node, state, keep, lower).await;
        }
        let stat = if has_data_apart {
            self.stat(node)?
        } else {
            self.shown_stat(node, lower.as_fd(), sys::stat_at(lower.as_fd(), b"")?)?
        };
        let may_be_partial = !matches!(keep, Keep::All | Keep::First(0)) && !has_data_apart;
        let digest = if may_be_partial && self.is_partly_copied(&stat) {
            digest_of(lower.as_fd(), &stat).await
        } else {
            Box::default()
        };
        // It may have lost its name meanwhile.
        let is_lower = matches!(*node.place.borrow(), Place::Lower);
        if may_be_partial
            && is_lower
            && let Some(link) = node.link()
            && self.start_partial(node, &link, &lower, (&stat, digest))?
        {
            files::moved(state);
            return Ok(());
        }
        let length = match keep {
            Keep::All | Keep::Written => stat.size,
            Keep::First(length) => stat.size.min(length),
        };
        let name = self.work_name();
        let to = To::New {
            directory: Arc::clone(&upper.pending),
            name: name.clone(),
            // Nobody else comes into that directory.
            mode: stat.mode & 0o777,
        };
        let room = self.shared.committer.room(&self.shared.descriptors.copies).await;
        let source = Backing::new(lower, false);
        let writes_back = self.options.sync != SyncMode::Volatile;
        let copy = Copy::new(source.file.clone(), length, to, writes_back);
        let run = self.shared.free_run.begin();
        let mut counted = metrics::start(COPY, node.inode.get());
        let copied = self.shared.committer.copier.copy(copy, run).await;
        counted.carried(length);
        counted.end(copied.as_ref().map_or_else(|errno| errno.raw_os_error(), |_| 0));
        let copied = copied?;
        let placed = self.place_copy(node, state, (&source, &stat), copied, (&name, length, room));
        if placed.is_err() {
            let _ = rustix::fs::unlinkat(&upper.pending, &name, AtFlags::empty());
        }
        placed
    }

    /// Gives a copy the attributes of the original and makes it the node's place.
    fn place_copy(
        self: &Rc<Self>,
        node: &Rc<Node>,
        state: &FileState,
        (source, stat): (&Backing, &Stat),
        Copied { file, is_clone }: Copied,
        (name, length, room): (&[u8], u64, Permit),
    ) -> Result<(), Errno> {
        let upper = self.upper()?;
        let backing = Backing::of(file, true);
        let file = backing.with(|fd| fd.try_clone_to_owned().map_err(errno_of))?;
        let apart = if node.has_data_apart() { Some(self.object(node)?) } else { None };
        let entry = source.with(|lower| {
            let original = apart.as_ref().map_or(lower, |object| object.as_fd());
            self.copy_attributes(node, (original, stat), file.as_fd())?;
            self.mark_origin(node, (original, stat), file.as_fd())?;
            self.prepare_entry(node, (original, stat), file.as_fd())
        })?;
        let file = Rc::new(file);
        let Some(link) = node.link() else {
            rustix::fs::unlinkat(&upper.pending, name, AtFlags::empty())?;
            node.set_place(Place::Gone { fd: file, is_own: true });
            files::moved(state);
            *state.writable.borrow_mut() = Rc::downgrade(&backing);
            return Ok(());
        };
        // Where clones are logged with the names, as xfs does, a crash never shows one without the
        // other; btrfs can make the name durable by the fsync of a neighbour.
        let is_safe = is_clone && !upper.has_loose_clones;
        let needs_sync = match self.options.sync {
            SyncMode::Auto => !is_safe && length > 0,
            SyncMode::Strict => true,
            SyncMode::Volatile => false,
        };
        if needs_sync {
            let copy = (file, Rc::clone(&backing));
            let pending = Pending::new(self, copy, (name.to_vec(), entry), (length, room));
            self.enqueue(node, pending)?;
        } else if let Some(entry) = entry {
            self.enter(node, &entry, (upper.pending.as_fd(), name))?;
        } else {
            let parent = self.upper_part(&link.parent)?;
            keeping_times(parent.as_fd(), || {
                rustix::fs::renameat(&upper.pending, name, &parent, &*link.name)
            })?;
            node.set_place(Place::Upper);
            self.note_new_name(&link.parent);
            self.set_impure(&link.parent)?;
        }
        files::moved(state);
        *state.writable.borrow_mut() = Rc::downgrade(&backing);
        Ok(())
    }

    /// Gives a copy owner, mode, attributes and times of the original, in the order in which none
    /// undoes another.
    fn copy_attributes(
        &self,
        node: &Node,
        (from, stat): (BorrowedFd<'_>, &Stat),
        to: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        self.set_owner_and_mode(to, stat)?;
        let (names, upper_names) = (self.xattr_names_of(node), self.upper_xattr_names());
        for name in sys::xattr_names(from)? {
            let Some(stored) = names.carried(&upper_names, &name) else { continue };
            let Some(value) = sys::xattr(from, &name)? else { continue };
            match sys::set_xattr(to, &stored, &value, XattrFlags::empty()) {
                // What protects the file must come along, everything else where it can.
                Err(Errno::OPNOTSUPP | Errno::PERM) if !is_protective(&name) => {}
                other => other?,
            }
        }
        sys::set_times(to, Some(stat.atime), Some(stat.mtime))
    }

    /// The origin mark: identifies the lower inode that a file was copied from. It stays valid when that inode
    /// no longer has a name.
    pub(crate) fn origin_value(&self, node: &Node, lower: BorrowedFd<'_>) -> Vec<u8> {
        let layer = node.lower.borrow().first().map(|part| part.layer);
        layer.map_or_else(Vec::new, |layer| self.origin_on(layer, lower))
    }

    /// As [`Union::origin_value`], of an inode of this layer.
    pub(crate) fn origin_on(&self, layer: LayerIndex, lower: BorrowedFd<'_>) -> Vec<u8> {
        let uuid = self.layers.lower[usize::from(layer)].uuid;
        uuid.zip(FileHandle::of(lower).ok())
            .and_then(|(uuid, handle)| Origin { uuid, handle }.value())
            .unwrap_or_default()
    }

    /// Marks an inode as a copy of a lower one. The copy of one of several links that the index does
    /// not keep is an inode of its own, and shows as that.
    fn mark_origin(
        &self,
        node: &Node,
        (lower, stat): (BorrowedFd<'_>, &Stat),
        copy: BorrowedFd<'_>,
    ) -> Result<(), Errno> {
        if stat.nlink > 1 && !self.is_indexed_on_copy_up(stat) {
            node.inode.set(self.shown_inode_of(&sys::stat_at(copy, b"")?));
            return Ok(());
        }
        let name = self.layers.prefix.name(suffix::ORIGIN);
        let value = self.origin_value(node, lower);
        match sys::set_xattr(copy, &name, &value, XattrFlags::empty()) {
            // Links and devices cannot have `user.` attributes.
            Err(Errno::OPNOTSUPP | Errno::PERM) => Ok(()),
            other => other,
        }
    }

    /// Marks a directory as one with copies in it: their inode numbers are not those on disk.
    pub(crate) fn set_impure(&self, directory: &Rc<Node>) -> Result<(), Errno> {
        let state = directory.directory().ok_or(Errno::NOTDIR)?;
        if state.is_impure.get() {
            return Ok(());
        }
        let part = self.upper_part(directory)?;
        let name = self.layers.prefix.name(suffix::IMPURE);
        match sys::set_xattr(part.as_fd(), &name, b"y", XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::PERM) => {
                state.is_impure.set(true);
                Ok(())
            }
            Err(errno) => Err(errno),
        }
    }
}

/// Attributes without which a copy would allow more, or less, than the original.
pub(crate) fn is_protective(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_") || name == b"security.capability"
}
