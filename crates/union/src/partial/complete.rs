//! Completing partial files: all of it into a work file, made durable, and only then its name.
//!
//! The work file lies where whole copies wait for their names. That it is whole is recorded, durably,
//! before it is moved, and that it has its name after that is durable: a crash in between leaves
//! either the partial file, or the whole one with its name, and the next mount tells which by whether
//! the work file is still there.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use ring::{File, Handle};
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::{Partial, failed, has_name, key_of, shown_time};
use crate::commit::{errno_of, keeping_times};
use crate::files;
use crate::journal::{Directory, Journal, JournalError, ParentKey, Source, Stage};
use crate::layers::Upper;
use crate::node::{Node, Place};
use crate::sys;
use crate::tree::{Union, join};

/// Bytes that are copied at a time.
const STEP_BYTES: u64 = 1 << 20;

/// Ends publications that a crash has cut short.
pub(super) fn settle(journal: &mut Journal<Directory>, upper: &Upper) -> Result<(), JournalError> {
    let mut publishing = Vec::new();
    for (file, copy_up) in journal.files() {
        if let Stage::Publishing(work) = copy_up.stage() {
            publishing.push((file, work.clone()));
        }
    }
    for (file, work) in publishing {
        if has_name(upper.pending.as_fd(), &work)? {
            journal.unpublish(file)?;
        } else {
            journal.published(file)?;
        }
        // Before the work file goes: its absence means that it was published.
        journal.sync()?;
    }
    Ok(())
}

impl Union {
    /// Makes a partial file an ordinary one of the upper directory.
    pub(crate) async fn complete(self: &Rc<Self>, node: &Rc<Node>) -> Result<(), Errno> {
        while let Some(partial) = node.partial() {
            if partial.is_completing.get() {
                partial.settled().await;
                continue;
            }
            partial.is_completing.set(true);
            let result = self.complete_one(node, &partial).await;
            partial.is_completing.set(false);
            partial.completed.notify();
            return result;
        }
        Ok(())
    }

    async fn complete_one(
        self: &Rc<Self>,
        node: &Rc<Node>,
        partial: &Rc<Partial>,
    ) -> Result<(), Errno> {
        let upper = self.upper()?;
        let work_name = self.work_name();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let copy = rustix::fs::openat(&upper.pending, &work_name, flags, mode)?;
        let result = self.fill_and_name(node, partial, copy, &work_name).await;
        if result.is_err() && node.partial().is_some() {
            let mut journal = partial.store.journal_mut();
            let taken_back = journal.unpublish(partial.file).and_then(|()| {
                // Only then may the work file go: its absence means that it was published.
                let is_published = journal.durable() < journal.appended();
                if is_published { journal.sync() } else { Ok(()) }
            });
            match taken_back {
                Ok(()) => {
                    let _ = rustix::fs::unlinkat(&upper.pending, &work_name, AtFlags::empty());
                }
                Err(error) => {
                    tracing::error!(%error, "a copy that failed stays until the next mount");
                }
            }
        }
        result
    }

    async fn fill_and_name(
        self: &Rc<Self>,
        node: &Rc<Node>,
        partial: &Rc<Partial>,
        copy: OwnedFd,
        work_name: &[u8],
    ) -> Result<(), Errno> {
        let upper = self.upper()?;
        let object = copy.try_clone().map_err(errno_of)?;
        let file = File::from_handle(Handle::from_fd(copy));
        copy_out(node, partial, &file, object.as_fd()).await?;
        give_attributes(partial, object.as_fd())?;
        let is_volatile = partial.store.is_volatile;
        if node.link().is_some() && !is_volatile {
            file.sync_all().await.map_err(errno_of)?;
        }
        if node.link().is_some() {
            let recorded = partial.store.journal_mut().publish(partial.file, work_name);
            recorded.map_err(|error| failed(&error))?;
            partial.store.commit().await?;
        }
        let state = node.file().ok_or(Errno::INVAL)?;
        let Some(link) = node.link() else {
            rustix::fs::unlinkat(&upper.pending, work_name, AtFlags::empty())?;
            node.set_place(Place::Gone { fd: Rc::new(object), is_own: true });
            files::moved(state);
            return Ok(());
        };
        let parent = self.upper_part(&link.parent)?;
        keeping_times(parent.as_fd(), || {
            rustix::fs::renameat(&upper.pending, work_name, &parent, &*link.name)
        })?;
        node.set_place(Place::Upper);
        files::moved(state);
        self.note_new_name(&link.parent);
        self.set_impure(&link.parent)?;
        if !is_volatile {
            self.sync_directories(vec![link.parent]).await?;
        }
        let recorded = partial.store.journal_mut().published(partial.file);
        recorded.map_err(|error| failed(&error))?;
        partial.store.commit().await
    }

    /// Completes every partial file. Answers how many there were.
    pub(crate) async fn complete_all(self: &Rc<Self>) -> Result<usize, Errno> {
        let Some(store) = &self.store else { return Ok(0) };
        if store.is_empty() {
            return Ok(0);
        }
        let directories = self.directories_by_key()?;
        let names: Vec<_> = {
            let journal = store.journal();
            let first = |(_, file): (_, crate::journal::CopyUp<'_>)| file.names().first().cloned();
            journal.files().filter_map(first).collect()
        };
        let mut result = Ok(());
        let mut count = 0;
        for name in names {
            let Some(directory) = directories.get(&name.parent) else { continue };
            let node = self.node_at(&join(directory, &name.name));
            let completed = match node {
                Ok(node) => self.complete(&node).await,
                Err(errno) => Err(errno),
            };
            match completed {
                Ok(()) => count += 1,
                Err(errno) => {
                    let path = join(directory, &name.name);
                    let path = String::from_utf8_lossy(&path);
                    tracing::error!(%path, %errno, "a partial copy cannot be completed");
                    result = Err(errno);
                }
            }
        }
        // The marker goes with the last one.
        store.commit().await?;
        result.map(|()| count)
    }

    /// The upper directories by their keys, as paths from the root.
    pub(crate) fn directories_by_key(&self) -> Result<HashMap<ParentKey, Rc<[u8]>>, Errno> {
        let root = self.upper()?.root.as_fd();
        let mut found = HashMap::new();
        let mut left: Vec<Rc<[u8]>> = vec![Rc::from([])];
        while let Some(path) = left.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let directory = sys::open_below(root, &path, flags)?;
            for entry in sys::list(directory.as_fd())? {
                let is_directory = match entry.kind {
                    0 => sys::find_at(directory.as_fd(), &entry.name)?
                        .is_some_and(|stat| stat.is_directory()),
                    kind => kind == libc::S_IFDIR,
                };
                if is_directory {
                    left.push(join(&path, &entry.name));
                }
            }
            found.insert(key_of(directory.as_fd())?, path);
        }
        Ok(found)
    }

    fn node_at(&self, path: &[u8]) -> Result<Rc<Node>, Errno> {
        let mut node = Rc::clone(&self.root);
        for name in path.split(|&byte| byte == b'/') {
            node = self.lookup(&node, name)?.ok_or(Errno::NOENT)?.0;
        }
        Ok(node)
    }
}

/// Writes the whole content.
async fn copy_out(
    node: &Rc<Node>,
    partial: &Partial,
    file: &File,
    object: std::os::fd::BorrowedFd<'_>,
) -> Result<(), Errno> {
    let (size, pieces) = {
        let journal = partial.store.journal();
        let size = journal.file(partial.file).ok_or(Errno::STALE)?.size_bytes();
        let pieces = journal.pieces(partial.file, 0..size).map_err(|error| failed(&error))?;
        (size, pieces)
    };
    rustix::fs::ftruncate(object, size)?;
    for piece in pieces {
        if matches!(piece.source, Source::Zero) {
            continue;
        }
        let mut at = piece.range.start;
        while at < piece.range.end {
            if matches!(piece.source, Source::Lower) {
                // Holes stay holes.
                let data =
                    partial.lower.with(|fd| rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(at)));
                match data {
                    Ok(data) if data >= piece.range.end => break,
                    Ok(data) => at = at.max(data),
                    Err(Errno::NXIO) => break,
                    Err(Errno::INVAL) => {}
                    Err(errno) => return Err(errno),
                }
            }
            let step = (piece.range.end - at).min(STEP_BYTES);
            let bytes = partial.read(node, at, step as usize).await?;
            let (result, _) = file.write_at(bytes, at).await;
            result.map_err(errno_of)?;
            file.start_write_back(at, step);
            at += step;
            ring::yield_now().await;
        }
    }
    // A lower file that was changed while it was copied is no source.
    let needs_lower = {
        let journal = partial.store.journal();
        journal.file(partial.file).is_some_and(|file| file.unfilled_bytes() > 0)
    };
    if needs_lower { partial.check_lower(node) } else { Ok(()) }
}

/// Gives a work file what the journal knows of the inode, in the order in which none undoes another.
fn give_attributes(partial: &Partial, object: std::os::fd::BorrowedFd<'_>) -> Result<(), Errno> {
    let journal = partial.store.journal();
    let file = journal.file(partial.file).ok_or(Errno::STALE)?;
    let attributes = file.attributes();
    sys::chown(object, Some(attributes.uid), Some(attributes.gid))?;
    sys::chmod(object, attributes.mode)?;
    for xattr in file.xattrs() {
        match sys::set_xattr(object, &xattr.name, &xattr.value, XattrFlags::empty()) {
            Err(Errno::OPNOTSUPP | Errno::PERM) if !crate::copyup::is_protective(&xattr.name) => {}
            other => other?,
        }
    }
    let (atime, mtime) = (shown_time(attributes.atime), shown_time(attributes.mtime));
    sys::set_times(object, Some(atime), Some(mtime))
}
