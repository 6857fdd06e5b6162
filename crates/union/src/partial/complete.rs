//! Completing partial files: the whole content goes into a work file, which is made durable and
//! only then gets its name.
//!
//! The work file lies where whole copies wait for their names. The journal records durably that it
//! is whole before it is moved, and that it has its name after the name is durable. A crash in
//! between leaves either the partial file, or the whole one with its name. The next mount
//! recognizes the latter by the name in the upper directory and the missing work file.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use reactor::{File, Handle};
use rustix::fs::{AtFlags, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::PartialFiles;
use crate::copier::{Goal, ToSync};
use crate::error::Unfinished;
use crate::journal::Source;
use crate::store::{Partial, PartialContent, shown_time};
use crate::sys;
use crate::sys::join;
use crate::sys::{errno_of, keeping_times};
use crate::tree::{Node, Place, Tree, is_protective};

/// Bytes that are copied at a time.
const STEP_BYTES: u64 = 1 << 20;

/// A partial file and the work file that has its whole content.
#[derive(Debug)]
pub(super) struct Whole {
    pub(super) node: Rc<Node>,
    pub(super) partial: Rc<Partial>,
    pub(super) file: File,
    /// The same, for calls that do not wait.
    pub(super) object: OwnedFd,
    /// The work file's name.
    pub(super) name: Vec<u8>,
}

impl Whole {
    /// Checks that the lower file was not changed while it was copied.
    pub(super) fn check_source(&self, tree: &Tree) -> Result<(), Errno> {
        let needs_lower = self.partial.needs_lower();
        if needs_lower { tree.lower_of(&self.node, &self.partial).map(drop) } else { Ok(()) }
    }

    /// Gives the work file the attributes that the journal has, in an order in which none undoes
    /// another.
    fn give_attributes(&self, tree: &Tree) -> Result<(), Errno> {
        let (inode, object) = (self.partial.inode()?, self.object.as_fd());
        let attributes = inode.attributes;
        tree.give_owner(object, Some(attributes.uid), Some(attributes.gid))?;
        sys::chmod(object, attributes.mode)?;
        for xattr in &inode.xattrs {
            match sys::set_xattr(object, &xattr.name, &xattr.value, XattrFlags::empty()) {
                Err(Errno::OPNOTSUPP | Errno::PERM) if !is_protective(&xattr.name) => {}
                other => other?,
            }
        }
        let (atime, mtime) = (shown_time(attributes.atime), shown_time(attributes.mtime));
        sys::set_times(object, Some(atime), Some(mtime))
    }
}

impl PartialFiles {
    /// Makes a partial file an ordinary one of the upper directory.
    pub(crate) async fn complete(self: &Rc<Self>, node: &Rc<Node>) -> Result<(), Errno> {
        while let Some(partial) = node.partial() {
            if partial.is_completing() {
                partial.settled().await;
                continue;
            }
            partial.begin_completing();
            let result = self.complete_one(node, &partial).await;
            partial.end_completing();
            return result;
        }
        Ok(())
    }

    async fn complete_one(
        self: &Rc<Self>,
        node: &Rc<Node>,
        partial: &Rc<Partial>,
    ) -> Result<(), Errno> {
        let upper = self.tree.upper()?;
        let name = self.tree.work_name();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let copy = rustix::fs::openat(&upper.pending, &name, flags, mode)?;
        let object = copy.try_clone().map_err(errno_of)?;
        let file = File::from_handle(Handle::from_fd(copy));
        let whole =
            Whole { node: Rc::clone(node), partial: Rc::clone(partial), file, object, name };
        if let Err(errno) = copy_out(&self.tree, &whole).await {
            let _ = rustix::fs::unlinkat(&upper.pending, &whole.name, AtFlags::empty());
            return Err(errno);
        }
        self.name_whole(vec![whole]).await.into_iter().collect()
    }

    /// Makes completely written files durable together, gives them their names, and removes them
    /// from the journal. No request changes them meanwhile (`is_completing`); waiting requests
    /// continue as soon as a file has its name, or could not get it.
    pub(super) async fn name_whole(self: &Rc<Self>, files: Vec<Whole>) -> Vec<Result<(), Errno>> {
        let mut results = self.sync_whole(&files).await;
        let (mut parents, mut published): (Vec<Rc<Node>>, _) = (Vec::new(), Vec::new());
        let mut is_recorded = false;
        for (whole, result) in files.iter().zip(&mut results) {
            if result.is_ok() && whole.node.link().is_some() {
                *result = whole.partial.record_publication(&whole.name);
                is_recorded |= result.is_ok();
            }
        }
        if let (true, Some(first)) = (is_recorded, files.first()) {
            let committed = first.partial.store().commit().await;
            for result in &mut results {
                *result = result.and(committed);
            }
        }
        for (whole, result) in files.iter().zip(&mut results) {
            match result.and_then(|()| self.take_place(whole)) {
                Ok(Some(parent)) => {
                    published.push(Rc::clone(&whole.partial));
                    if !parents.iter().any(|known| Rc::ptr_eq(known, &parent)) {
                        parents.push(parent);
                    }
                }
                // It has lost its name: the journal drops it when the loss is durable.
                Ok(None) => {}
                Err(errno) => {
                    *result = Err(errno);
                    self.take_back(whole);
                }
            }
            whole.partial.end_completing();
        }
        let named = self.forget_published(&published, parents).await;
        for result in &mut results {
            *result = result.and(named);
        }
        results
    }

    /// Gives files the attributes that the journal has and makes all of them durable together.
    async fn sync_whole(&self, files: &[Whole]) -> Vec<Result<(), Errno>> {
        let given: Vec<_> = files.iter().map(|whole| whole.give_attributes(&self.tree)).collect();
        let is_needed = |(whole, given): &(&Whole, &Result<(), Errno>)| {
            let is_named = whole.node.link().is_some();
            given.is_ok() && is_named && !whole.partial.store().is_volatile()
        };
        let needed = files.iter().zip(&given).filter(is_needed);
        let needed: Vec<_> = needed.map(|(whole, _)| ToSync::File(whole.file.clone())).collect();
        let Ok(upper) = self.tree.upper() else { return vec![Err(Errno::ROFS); files.len()] };
        let copier = self.durability.copier();
        let synced = copier.sync(needed, upper.sync_method.clone(), Goal::Nameable).await;
        let mut synced = synced.into_iter();
        let result = |one: (&Whole, &Result<(), Errno>)| {
            if is_needed(&one) { synced.next().unwrap_or(Err(Errno::IO)) } else { *one.1 }
        };
        files.iter().zip(&given).map(result).collect()
    }

    /// Gives a file its name in the upper directory. Returns the directory; none if the file has no
    /// name any more.
    fn take_place(&self, whole: &Whole) -> Result<Option<Rc<Node>>, Errno> {
        let upper = self.tree.upper()?;
        let node = &whole.node;
        let state = node.file().ok_or(Errno::INVAL)?;
        let Some(link) = node.link() else {
            rustix::fs::unlinkat(&upper.pending, &whole.name, AtFlags::empty())?;
            let fd = Rc::new(whole.object.try_clone().map_err(errno_of)?);
            node.set_place(Place::Gone { fd, is_own: true });
            state.note_move();
            return Ok(None);
        };
        let parent = self.tree.upper_part(&link.parent)?;
        keeping_times(parent.as_fd(), || {
            rustix::fs::renameat(&upper.pending, &whole.name, &parent, &*link.name)
        })?;
        node.set_place(Place::Upper);
        state.note_move();
        self.durability.note_new_name(&link.parent);
        self.tree.set_impure(&link.parent)?;
        self.remove_fill_file(&whole.partial);
        Ok(Some(link.parent))
    }

    /// Makes a file that could not be published a partial one that takes changes again.
    pub(super) fn take_back(&self, whole: &Whole) {
        if whole.node.partial().is_none() {
            return;
        }
        let Ok(upper) = self.tree.upper() else { return };
        match whole.partial.revoke_publication() {
            Ok(()) => {
                let _ = rustix::fs::unlinkat(&upper.pending, &whole.name, AtFlags::empty());
            }
            Err(error) => {
                tracing::error!(%error, "a copy that failed stays until the next mount");
            }
        }
    }

    /// Makes the new names durable, and then removes the files from the journal.
    async fn forget_published(
        &self,
        files: &[Rc<Partial>],
        parents: Vec<Rc<Node>>,
    ) -> Result<(), Errno> {
        let Some(store) = files.first().map(|partial| partial.store()) else { return Ok(()) };
        if !store.is_volatile() {
            self.durability.sync_directories(parents).await?;
        }
        for partial in files {
            store.forget(partial.file())?;
        }
        store.commit().await
    }

    /// Completes every partial file. Returns how many there were, and which of them could not be,
    /// with the reasons.
    pub(crate) async fn complete_all(self: &Rc<Self>) -> Result<(usize, Vec<Unfinished>), Errno> {
        let Some(store) = self.tree.store() else { return Ok((0, Vec::new())) };
        if store.is_empty() {
            return Ok((0, Vec::new()));
        }
        let directories = self.tree.directories_by_key()?;
        let names: Vec<_> = store.named().into_iter().map(|(_, name)| name).collect();
        let (mut count, mut unfinished) = (0, Vec::new());
        for name in names {
            let Some(directory) = directories.get(&name.parent) else { continue };
            let path = join(directory, &name.name);
            let completed = match self.tree.node_at(&path) {
                Ok(node) => self.complete(&node).await,
                Err(errno) => Err(errno),
            };
            match completed {
                Ok(()) => count += 1,
                Err(errno) => {
                    let reason = self.trouble_at(&path).unwrap_or_else(|| errno.to_string());
                    let shown = String::from_utf8_lossy(&path);
                    tracing::error!(path = %shown, reason, "a partial copy cannot be completed");
                    unfinished.push(Unfinished { path: path.to_vec(), reason });
                }
            }
        }
        // The marker goes with the last one.
        store.commit().await?;
        Ok((count, unfinished))
    }

    /// Returns why the partial file at a path cannot be completed, if its lower file is the reason.
    pub(crate) fn trouble_at(&self, path: &[u8]) -> Option<String> {
        let trouble = self.tree.node_at(path).and_then(|node| match node.partial() {
            Some(partial) => self.tree.lower_trouble(&node, &partial),
            None => Ok(None),
        });
        match trouble {
            Ok(reason) => reason.map(|reason| format!("its lower file was changed: {reason}")),
            Err(Errno::NOENT) => Some("its lower file is gone".into()),
            Err(errno) => Some(format!("its lower file cannot be read: {errno}")),
        }
    }
}

/// Writes the whole content.
async fn copy_out(tree: &Tree, whole: &Whole) -> Result<(), Errno> {
    let Whole { node, partial, file, object, .. } = whole;
    let PartialContent { size_bytes: size, pieces } = partial.content()?;
    rustix::fs::ftruncate(object, size)?;
    for piece in pieces {
        if matches!(piece.source, Source::Zero) {
            continue;
        }
        let mut at = piece.range.start;
        while at < piece.range.end {
            if matches!(piece.source, Source::Lower) {
                // Holes stay holes.
                let lower = tree.lower_of(node, partial)?;
                let data = lower.with(|fd| rustix::fs::seek(fd, rustix::fs::SeekFrom::Data(at)));
                match data {
                    Ok(data) if data >= piece.range.end => break,
                    Ok(data) => at = at.max(data),
                    Err(Errno::NXIO) => break,
                    Err(Errno::INVAL) => {}
                    Err(errno) => return Err(errno),
                }
            }
            let step = (piece.range.end - at).min(STEP_BYTES);
            let bytes = partial.read(&tree.lower_file(node, partial), at, step as usize).await?;
            let (result, _) = file.write_at(bytes, at).await;
            result.map_err(errno_of)?;
            file.start_write_back(at, step);
            at += step;
            reactor::yield_now().await;
        }
    }
    whole.check_source(tree)
}
