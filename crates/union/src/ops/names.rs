//! Names: looking up, linking, removing.

use std::os::fd::AsFd;
use std::rc::Rc;

use fuse::{Name, NodeId, Response};
use rustix::fs::{AtFlags, CWD, FileType, Mode, RenameFlags};
use rustix::io::Errno;

use super::Answer;
use super::Union;
use crate::copyup::Keep;
use crate::format::index::LinksOf;
use crate::layers;
use crate::sys;
use crate::tree::{Node, Place};

impl Union {
    pub(super) async fn on_lookup(&self, parent: &Rc<Node>, name: &[u8]) -> Answer {
        match self.insist(async || self.tree.lookup(parent, name)).await? {
            Some((node, stat)) => Ok(Response::Entry(self.entry(&node, &stat))),
            None => Ok(self.no_entry()),
        }
    }

    pub(super) async fn on_unlink(self: &Rc<Self>, parent: &Rc<Node>, name: &[u8]) -> Answer {
        self.copy_up.prepare_link(parent, name).await?;
        self.settle_partial(parent, name).await?;
        self.unlink(parent, name).await?;
        Ok(Response::Done)
    }

    async fn unlink(&self, parent: &Rc<Node>, name: &[u8]) -> Result<(), Errno> {
        let (node, _) = self.tree.lookup(parent, name)?.ok_or(Errno::NOENT)?;
        if node.is_directory() {
            return Err(Errno::ISDIR);
        }
        // The kernel holds both inodes: names in them stay as they are while this waits.
        self.copy_up.copy_up_directory(parent).await?;
        let directory = self.tree.upper_part(parent)?;
        let object = self.object_to_lose(&node)?;
        let is_own = node.is_changeable();
        let is_in_upper = node.is_in_upper();
        let leaves_whiteout = self.tree.shows_below(parent, name)?;
        if leaves_whiteout {
            self.place_whiteout(directory.as_fd(), name, RenameFlags::empty())?;
        } else if is_in_upper {
            rustix::fs::unlinkat(&directory, name, AtFlags::empty())?;
        }
        self.durability.note_new_name(parent);
        self.lose_name(&node, parent, name, object, is_own);
        if leaves_whiteout && is_in_upper {
            self.durability.sync_whiteout(parent).await;
        }
        Ok(())
    }

    /// Removes a name from a node; without its last name it is reachable only through open handles.
    pub(super) fn lose_name(
        &self,
        node: &Rc<Node>,
        parent: &Rc<Node>,
        name: &[u8],
        object: Option<sys::Fd>,
        is_own: bool,
    ) {
        node.remove_link(parent, name);
        if node.is_directory() {
            self.durability.lose_directory(node, parent);
        }
        if self.tree.lose_link(node) || node.link().is_some() {
            return;
        }
        if let Some(partial) = node.partial() {
            return self.durability.lose_partial_name(&partial, parent);
        }
        if let (Some(pending), Ok(upper)) = (node.pending(), self.tree.upper()) {
            pending.cancel(upper);
        }
        if let Some(fd) = object {
            node.set_place(Place::Gone { fd, is_own });
        }
    }

    /// Returns the object that a node without names stays. A partial file needs none, and can be
    /// removed even if its lower file has changed.
    pub(super) fn object_to_lose(&self, node: &Rc<Node>) -> Result<Option<sys::Fd>, Errno> {
        match node.partial() {
            Some(_) => Ok(None),
            None => self.tree.object(node).map(Some),
        }
    }

    /// Puts a whiteout where a name is. With `EXCHANGE` the replaced object is removed afterwards.
    pub(super) fn place_whiteout(
        &self,
        directory: std::os::fd::BorrowedFd<'_>,
        name: &[u8],
        flags: RenameFlags,
    ) -> Result<(), Errno> {
        let upper = self.tree.upper()?;
        let work_name = self.tree.work_name();
        rustix::fs::mknodat(
            &upper.work,
            &work_name,
            FileType::CharacterDevice,
            Mode::empty(),
            rustix::fs::makedev(0, 0),
        )?;
        let placed = rustix::fs::renameat_with(&upper.work, &work_name, directory, name, flags);
        if placed.is_err() || flags.contains(RenameFlags::EXCHANGE) {
            // Leftovers are cleared by the next mount; the name itself is as it should be.
            let _ = layers::remove(upper.work.as_fd(), &work_name);
        }
        placed
    }

    pub(super) async fn on_rmdir(&self, parent: &Rc<Node>, name: &[u8]) -> Answer {
        let (node, _) = self.tree.lookup(parent, name)?.ok_or(Errno::NOENT)?;
        if !node.is_directory() {
            return Err(Errno::NOTDIR);
        }
        if !self.tree.list(&node)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        // The kernel holds both inodes: names in them stay as they are while this waits.
        self.copy_up.copy_up_directory(parent).await?;
        let directory = self.tree.upper_part(parent)?;
        let object = self.object_to_lose(&node)?;
        let is_own = node.is_changeable();
        let is_in_upper = node.is_in_upper();
        let leaves_whiteout = self.tree.shows_below(parent, name)?;
        if leaves_whiteout {
            let flags = if is_in_upper { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
            self.place_whiteout(directory.as_fd(), name, flags)?;
        } else if is_in_upper {
            // It may hold whiteouts, so one step moves it away first.
            let upper = self.tree.upper()?;
            let work_name = self.tree.work_name();
            rustix::fs::renameat(&directory, name, &upper.work, &work_name)?;
            let _ = layers::remove(upper.work.as_fd(), &work_name);
        }
        self.durability.note_new_name(parent);
        self.lose_name(&node, parent, name, object, is_own);
        if leaves_whiteout && is_in_upper {
            self.durability.sync_whiteout(parent).await;
        }
        Ok(Response::Done)
    }

    pub(super) async fn on_link(
        self: &Rc<Self>,
        linked: NodeId,
        parent: NodeId,
        new_name: &Name,
    ) -> Answer {
        let (node, parent) = (&self.tree.node(linked)?, &self.tree.node(parent)?);
        let name = new_name.as_bytes();
        Self::check_new_name(name)?;
        self.copy_up.make_changeable(node, Keep::All).await?;
        if let Some(pending) = node.pending() {
            self.durability.finish(&pending).await?;
        }
        if self.tree.lookup(parent, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        self.copy_up.copy_up_directory(parent).await?;
        self.tree.note_links(node, LinksOf::Upper)?;
        let upper = self.tree.upper()?;
        let directory = self.tree.upper_part(parent)?;
        let work_name = self.tree.work_name();
        let place = node.place.borrow().clone();
        match place {
            Place::Upper => self.tree.at_upper(node, |from, name| {
                rustix::fs::linkat(from, name, &upper.work, &work_name, AtFlags::empty())
            })?,
            Place::Gone { fd, is_own: true } => {
                let path = sys::proc_path(fd.as_fd());
                let follow = AtFlags::SYMLINK_FOLLOW;
                rustix::fs::linkat(CWD, path, &upper.work, &work_name, follow)?;
            }
            Place::Lower
            | Place::Pending(_)
            | Place::Partial(_)
            | Place::Gone { is_own: false, .. } => return Err(Errno::NOENT),
        }
        let named = rustix::fs::renameat(&upper.work, &work_name, &directory, name);
        // A rename between two names of one inode does nothing and leaves both.
        let _ = layers::remove(upper.work.as_fd(), &work_name);
        named?;
        node.add_link(parent, name);
        node.indexed.get().inspect(|indexed| indexed.gain_link());
        if !node.is_in_upper() {
            node.set_place(Place::Upper);
        }
        self.durability.note_new_name(parent);
        if node.has_lower() {
            self.tree.set_impure(parent)?;
        }
        let stat = self.tree.stat(node)?;
        self.tree.note_linked(&stat, node);
        Ok(Response::Entry(self.entry(node, &stat)))
    }
}
