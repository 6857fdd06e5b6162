//! Copy-up: before its first change, a lower inode becomes one of the upper layer.
//!
//! Directories, links and devices are small and copied at once. A separate thread copies a regular
//! file's data ([`crate::copier`]), so that it stalls no request; meanwhile other changes of the
//! same file wait for the one copy, and all other requests continue. The copy is used at once and
//! handed to the committer, except where nothing needs to be made durable first: a clone, whose
//! extents the file system logs like the name itself; an empty file; or a volatile union.

mod links;
mod metacopy;

use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use metrics::{Family, Point};
use reactor::local::Permit;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::backing::Backing;
use crate::copier::{Copied, Copy, To};
use crate::durability::Durability;
use crate::free_run::FreeRun;
use crate::options::SyncMode;
use crate::partial::PartialFiles;
use crate::store::digest_of;
use crate::sys::{self, Stat};
use crate::sys::{errno_of, keeping_times};
use crate::tree::{FileState, Link, Node, Original, Pending, Place, Tree};

/// The data that the copy of a file must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// All of it.
    All,
    /// The bytes that will be written. For the rest it is enough to know where they are.
    Written,
    /// This many bytes from the start: the file is about to be truncated.
    First(u64),
}

/// Making a file changeable.
const COPY_UP: Point = Point::new(Family::Union, 0, "copy_up");
/// Copying its data, on another thread.
const COPY: Point = Point::new(Family::Union, 1, "copy_data");

/// Copies lower inodes up.
#[derive(Debug)]
pub(crate) struct CopyUp {
    tree: Rc<Tree>,
    durability: Rc<Durability>,
    partials: Rc<PartialFiles>,
    free_run: Rc<FreeRun>,
}

/// A file that was copied, and what its copy needs besides.
struct CopiedFile<'a> {
    source: &'a Backing,
    stat: &'a Stat,
    /// Its name among the waiting ones.
    name: &'a [u8],
    /// Bytes that were copied.
    length: u64,
    room: Permit,
}

impl CopyUp {
    pub(crate) fn new(partials: &Rc<PartialFiles>, free_run: &Rc<FreeRun>) -> Self {
        Self {
            tree: Rc::clone(partials.tree()),
            durability: Rc::clone(partials.durability()),
            partials: Rc::clone(partials),
            free_run: Rc::clone(free_run),
        }
    }

    /// Makes a node one that can be changed, copying it up if it must be.
    pub(crate) async fn make_changeable(&self, node: &Rc<Node>, keep: Keep) -> Result<(), Errno> {
        loop {
            if node.is_changeable() {
                return if keep == Keep::All { self.partials.complete(node).await } else { Ok(()) };
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
                self.tree.invalidate_attributes(node);
            }
            self.tree.part_from_passed(node);
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
        let upper = self.tree.upper()?;
        let link = node.link().ok_or(Errno::NOENT)?;
        let lower = self.tree.object(node)?;
        let stat = self.tree.shown_stat(node, lower.as_fd(), sys::stat_at(lower.as_fd(), b"")?)?;
        let name = self.tree.work_name();
        rustix::fs::mkdirat(&upper.work, &name, Mode::RWXU)?;
        let done = async {
            let copy = sys::open_below(upper.work.as_fd(), &name, OFlags::RDONLY)?;
            let original = Original { object: lower.as_fd(), stat: &stat };
            self.tree.copy_attributes(node, original, copy.as_fd())?;
            if self.tree.options().sync == SyncMode::Strict {
                let copy = reactor::File::from_handle(reactor::Handle::from_fd(copy));
                copy.sync_all().await.map_err(crate::sys::errno_of)?;
                // Another request may have copied the directory meanwhile.
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

    /// Copies up the directories above all known names of a node that is no directory.
    async fn copy_up_parents(&self, node: &Node) -> Result<(), Errno> {
        let links = node.links.borrow().clone();
        for link in links {
            self.copy_up_directory(&link.parent).await?;
        }
        Ok(())
    }

    /// Copies a link, device, socket or fifo.
    async fn copy_up_special(&self, node: &Rc<Node>) -> Result<(), Errno> {
        let upper = self.tree.upper()?;
        let link = node.link().ok_or(Errno::NOENT)?;
        self.copy_up_parents(node).await?;
        if node.is_changeable() {
            return Ok(());
        }
        let lower = self.tree.object(node)?;
        let stat = sys::stat_at(lower.as_fd(), b"")?;
        let name = self.tree.work_name();
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
            let original = Original { object: lower.as_fd(), stat: &stat };
            self.tree.copy_attributes(node, original, copy.as_fd())?;
            self.tree.mark_origin(node, original, copy.as_fd())?;
            match self.tree.prepare_entry(node, original, copy.as_fd())? {
                Some(entry) => self.durability.enter(node, &entry, &upper.work, &name).map(drop),
                None => self.name_copy(node, &link, &name),
            }
        })();
        if done.is_err() {
            let _ = rustix::fs::unlinkat(&upper.work, &name, AtFlags::empty());
        }
        done
    }

    /// Moves a finished copy from the work directory to the node's name.
    fn name_copy(&self, node: &Rc<Node>, link: &Link, work_name: &[u8]) -> Result<(), Errno> {
        let upper = self.tree.upper()?;
        let parent = self.tree.upper_part(&link.parent)?;
        keeping_times(parent.as_fd(), || {
            rustix::fs::renameat(&upper.work, work_name, &parent, &*link.name)
        })?;
        node.set_place(Place::Upper);
        self.durability.note_new_name(&link.parent);
        if node.is_directory() { Ok(()) } else { self.tree.set_impure(&link.parent) }
    }

    async fn copy_up_file(
        &self,
        node: &Rc<Node>,
        state: &FileState,
        keep: Keep,
    ) -> Result<(), Errno> {
        let upper = self.tree.upper()?;
        self.copy_up_parents(node).await?;
        let place = node.place.borrow().clone();
        let has_data_apart = node.has_data_apart();
        let lower = match &place {
            Place::Gone { fd, .. } if !has_data_apart => sys::reopen(fd.as_fd(), OFlags::RDONLY)?,
            _ => self.tree.open_lower(node)?,
        };
        if node.lacks_data() && node.is_in_upper() {
            return self.bring_data(node, state, keep, lower).await;
        }
        let stat = if has_data_apart {
            self.tree.stat(node)?
        } else {
            self.tree.shown_stat(node, lower.as_fd(), sys::stat_at(lower.as_fd(), b"")?)?
        };
        let may_be_partial = !matches!(keep, Keep::All | Keep::First(0)) && !has_data_apart;
        let digest = if may_be_partial && self.partials.is_partly_copied(&stat) {
            digest_of(lower.as_fd(), &stat).await
        } else {
            Box::default()
        };
        // It may have lost its name meanwhile.
        let is_lower = matches!(*node.place.borrow(), Place::Lower);
        if may_be_partial
            && is_lower
            && let Some(link) = node.link()
            && self.partials.start_partial(node, &link, &lower, &stat, digest)?
        {
            state.note_move();
            return Ok(());
        }
        let length = match keep {
            Keep::All | Keep::Written => stat.size,
            Keep::First(length) => stat.size.min(length),
        };
        let name = self.tree.work_name();
        let to = To::New {
            directory: Arc::clone(&upper.pending),
            name: name.clone(),
            // No other user can enter that directory.
            mode: stat.mode & 0o777,
        };
        let room = self.durability.room().await;
        let source = Backing::new(lower, false);
        let writes_back = self.tree.options().sync != SyncMode::Volatile;
        let copy = Copy::new(source.file.clone(), length, to, writes_back);
        let run = self.free_run.begin();
        let mut counted = metrics::start(COPY, node.inode.get());
        let copied = self.durability.copier().copy(copy, run).await;
        counted.carried(length);
        counted.end(copied.as_ref().map_or_else(|errno| errno.raw_os_error(), |_| 0));
        let copied = copied?;
        let placed = {
            let copied_file =
                CopiedFile { source: &source, stat: &stat, name: &name, length, room };
            self.place_copy(node, state, copied_file, copied)
        };
        if placed.is_err() {
            let _ = rustix::fs::unlinkat(&upper.pending, &name, AtFlags::empty());
        }
        placed
    }

    /// Gives a copy the attributes of the original and makes it the node's place.
    fn place_copy(
        &self,
        node: &Rc<Node>,
        state: &FileState,
        CopiedFile { source, stat, name, length, room }: CopiedFile<'_>,
        Copied { file, is_clone }: Copied,
    ) -> Result<(), Errno> {
        let upper = self.tree.upper()?;
        let backing = Backing::of(file, true);
        let file = backing.with(|fd| fd.try_clone_to_owned().map_err(errno_of))?;
        let apart = if node.has_data_apart() { Some(self.tree.object(node)?) } else { None };
        let entry = source.with(|lower| {
            let object = apart.as_ref().map_or(lower, |object| object.as_fd());
            let original = Original { object, stat };
            self.tree.copy_attributes(node, original, file.as_fd())?;
            self.tree.mark_origin(node, original, file.as_fd())?;
            self.tree.prepare_entry(node, original, file.as_fd())
        })?;
        let file = Rc::new(file);
        let Some(link) = node.link() else {
            rustix::fs::unlinkat(&upper.pending, name, AtFlags::empty())?;
            node.set_place(Place::Gone { fd: file, is_own: true });
            state.note_move();
            *state.writable.borrow_mut() = Rc::downgrade(&backing);
            return Ok(());
        };
        // Where clones are logged with the names, as xfs does, a crash never shows one without the
        // other; btrfs can make the name durable by the fsync of a neighbour.
        let is_safe = is_clone && !upper.has_loose_clones;
        let needs_sync = match self.tree.options().sync {
            SyncMode::Auto => !is_safe && length > 0,
            SyncMode::Strict => true,
            SyncMode::Volatile => false,
        };
        if needs_sync {
            let (copy, name) = (Rc::clone(&backing), name.to_vec());
            let pending = Pending::new(file, copy, name, entry, length, room);
            self.durability.enqueue(node, pending)?;
        } else if let Some(entry) = entry {
            self.durability.enter(node, &entry, &upper.pending, name)?;
        } else {
            let parent = self.tree.upper_part(&link.parent)?;
            keeping_times(parent.as_fd(), || {
                rustix::fs::renameat(&upper.pending, name, &parent, &*link.name)
            })?;
            node.set_place(Place::Upper);
            self.durability.note_new_name(&link.parent);
            self.tree.set_impure(&link.parent)?;
        }
        state.note_move();
        *state.writable.borrow_mut() = Rc::downgrade(&backing);
        Ok(())
    }
}
