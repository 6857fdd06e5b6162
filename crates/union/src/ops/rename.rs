//! Renaming, by the kernel's rules (`ovl_rename`): a whiteout, made in the same step as the move,
//! hides the lower object of the old name. A directory that moves over a lower one is made opaque
//! first. A merged directory records where its lower parts are.

use std::os::fd::AsFd;
use std::rc::Rc;

use fuse::{Name, NodeId, Response};
use rustix::fs::{AtFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;

use super::Answer;
use super::Union;
use crate::copyup::Keep;
use crate::format::{Redirect, suffix};
use crate::layers;
use crate::options::RedirectMode;
use crate::sys;
use crate::tree::Node;

/// One side of a rename.
struct Side<'a> {
    parent: Rc<Node>,
    name: &'a [u8],
}

impl Union {
    pub(super) async fn on_rename(
        self: &Rc<Self>,
        parent: NodeId,
        name: &Name,
        new_parent: NodeId,
        new_name: &Name,
        flags: u32,
    ) -> Answer {
        let flags = RenameFlags::from_bits_retain(flags);
        if !(RenameFlags::NOREPLACE | RenameFlags::EXCHANGE).contains(flags) {
            return Err(Errno::INVAL);
        }
        let old = &Side { parent: self.tree.node(parent)?, name: name.as_bytes() };
        let new = &Side { parent: self.tree.node(new_parent)?, name: new_name.as_bytes() };
        Self::check_new_name(new.name)?;
        let is_exchange = flags.contains(RenameFlags::EXCHANGE);
        self.prepare_rename(old, new, is_exchange).await?;
        // Nothing waits from here on.
        if is_exchange {
            self.exchange(old, new)?;
        } else {
            let leaves_whiteout = self.rename(old, new, flags.contains(RenameFlags::NOREPLACE))?;
            if leaves_whiteout {
                self.durability.sync_whiteout(&old.parent).await;
            }
        }
        Ok(Response::Done)
    }

    /// Copies up the objects that move, and gives waiting copies their names.
    async fn prepare_rename(
        self: &Rc<Self>,
        old: &Side<'_>,
        new: &Side<'_>,
        is_exchange: bool,
    ) -> Result<(), Errno> {
        let sides: &[&Side<'_>] = if is_exchange { &[old, new] } else { &[old] };
        for side in sides {
            let (node, _) = self.tree.lookup(&side.parent, side.name)?.ok_or(Errno::NOENT)?;
            if node.is_directory() {
                let is_merged = node.has_lower();
                if is_merged && self.tree.options().redirect != RedirectMode::On {
                    return Err(Errno::XDEV);
                }
                // Copies that wait below it know their path.
                self.durability.finish_all().await?;
            }
            self.copy_up.make_changeable(&node, Keep::All).await?;
            if let Some(pending) = node.pending() {
                self.durability.finish(&pending).await?;
            }
            self.copy_up.prepare_link(&side.parent, side.name).await?;
        }
        if !is_exchange {
            self.copy_up.prepare_link(&new.parent, new.name).await?;
        }
        self.copy_up.copy_up_directory(&old.parent).await?;
        self.copy_up.copy_up_directory(&new.parent).await?;
        self.settle_partial(&new.parent, new.name).await
    }

    /// Moves a name. Returns whether it has left a whiteout.
    fn rename(&self, old: &Side<'_>, new: &Side<'_>, no_replace: bool) -> Result<bool, Errno> {
        let (node, _) = self.tree.lookup(&old.parent, old.name)?.ok_or(Errno::NOENT)?;
        let target = self.tree.lookup(&new.parent, new.name)?.map(|(node, _)| node);
        if let Some(target) = &target {
            if no_replace {
                return Err(Errno::EXIST);
            }
            if Rc::ptr_eq(target, &node) {
                return Ok(false);
            }
            self.check_target(&node, target)?;
        }
        if !node.is_in_upper() {
            return Err(Errno::BUSY);
        }
        let from = self.tree.upper_part(&old.parent)?;
        let to = self.tree.upper_part(&new.parent)?;
        let leaves_whiteout = self.tree.shows_below(&old.parent, old.name)?;
        if node.is_directory() {
            let hides = self.tree.shows_below(&new.parent, new.name)?;
            self.mark_moved(&node, old, new, hides)?;
        }
        let lost = match &target {
            Some(target) => Some((self.object_to_lose(target)?, target.is_changeable())),
            None => None,
        };
        let in_the_way = sys::find_at(to.as_fd(), new.name)?;
        match in_the_way {
            Some(stat) if node.is_directory() && !stat.is_directory() => {
                // A directory does not replace a whiteout: they change places.
                let exchange = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(&from, old.name, &to, new.name, exchange)?;
                if !leaves_whiteout {
                    rustix::fs::unlinkat(&from, old.name, AtFlags::empty())?;
                }
            }
            _ => {
                if in_the_way.is_some_and(|stat| stat.is_directory()) {
                    self.empty_for_replacement(to.as_fd(), new.name)?;
                }
                let flags =
                    if leaves_whiteout { RenameFlags::WHITEOUT } else { RenameFlags::empty() };
                rustix::fs::renameat_with(&from, old.name, &to, new.name, flags)?;
            }
        }
        if let (Some(target), Some((object, is_own))) = (&target, lost) {
            self.lose_name(target, &new.parent, new.name, object, is_own);
        }
        self.moved(&node, old, new)?;
        Ok(leaves_whiteout)
    }

    /// Whether a target may be replaced.
    fn check_target(&self, node: &Rc<Node>, target: &Rc<Node>) -> Result<(), Errno> {
        match (node.is_directory(), target.is_directory()) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (true, true) if !self.tree.list(target)?.is_empty() => Err(Errno::NOTEMPTY),
            _ => Ok(()),
        }
    }

    /// Removes the whiteouts from a directory that shows no entries, so that it can be replaced.
    /// The directory is made opaque first, so that nothing below it ever shows.
    fn empty_for_replacement(
        &self,
        directory: std::os::fd::BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<(), Errno> {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        let inner = sys::open_below(directory, name, flags)?;
        if sys::list(inner.as_fd())?.is_empty() {
            return Ok(());
        }
        let opaque = self.tree.layers().prefix.name(suffix::OPAQUE);
        sys::set_xattr(inner.as_fd(), &opaque, b"y", XattrFlags::empty())?;
        layers::clear(inner.as_fd())
    }

    fn exchange(&self, old: &Side<'_>, new: &Side<'_>) -> Result<(), Errno> {
        let (node, _) = self.tree.lookup(&old.parent, old.name)?.ok_or(Errno::NOENT)?;
        let (other, _) = self.tree.lookup(&new.parent, new.name)?.ok_or(Errno::NOENT)?;
        if Rc::ptr_eq(&node, &other) {
            return Ok(());
        }
        if !node.is_in_upper() || !other.is_in_upper() {
            return Err(Errno::BUSY);
        }
        for (node, here, there) in [(&node, old, new), (&other, new, old)] {
            if node.is_directory() {
                let hides = self.tree.shows_below(&there.parent, there.name)?;
                self.mark_moved(node, here, there, hides)?;
            }
        }
        let from = self.tree.upper_part(&old.parent)?;
        let to = self.tree.upper_part(&new.parent)?;
        let exchange = RenameFlags::EXCHANGE;
        rustix::fs::renameat_with(&from, old.name, &to, new.name, exchange)?;
        node.remove_link(&old.parent, old.name);
        other.remove_link(&new.parent, new.name);
        node.add_link(&new.parent, new.name);
        other.add_link(&old.parent, old.name);
        self.note_moved(&node)?;
        self.note_moved(&other)?;
        for (node, parent) in [(&node, &new.parent), (&other, &old.parent)] {
            self.durability.note_new_name(parent);
            if node.has_lower() {
                self.tree.set_impure(parent)?;
            }
        }
        Ok(())
    }

    /// Records on a directory where its lower parts are, or that it has none to be merged with at
    /// its new place.
    fn mark_moved(
        &self,
        node: &Rc<Node>,
        old: &Side<'_>,
        new: &Side<'_>,
        hides: bool,
    ) -> Result<(), Errno> {
        let object = self.tree.upper_part(node)?;
        let prefix = self.tree.layers().prefix;
        if !node.has_lower() {
            if hides {
                let name = prefix.name(suffix::OPAQUE);
                sys::set_xattr(object.as_fd(), &name, b"y", XattrFlags::empty())?;
            }
            return Ok(());
        }
        let name = prefix.name(suffix::REDIRECT);
        let known = sys::xattr(object.as_fd(), &name)?.and_then(|value| Redirect::parse(&value));
        let redirect = if Rc::ptr_eq(&old.parent, &new.parent) {
            match known {
                // The existing redirect is still right.
                Some(_) => return Ok(()),
                None => Redirect::Name(old.name.into()),
            }
        } else {
            if let Some(Redirect::Path(_)) = known {
                return Ok(());
            }
            let lower = node.lower.borrow();
            let top = lower.first().ok_or(Errno::IO)?;
            Redirect::Path((*top.path).into())
        };
        // Too long for the kernel to follow: as if redirects were off.
        let value = redirect.value().ok_or(Errno::XDEV)?;
        sys::set_xattr(object.as_fd(), &name, &value, XattrFlags::empty())
    }

    /// Notes the new paths of copies below a directory that has moved: some may have begun to wait
    /// after those of before were finished.
    fn note_moved(&self, node: &Rc<Node>) -> Result<(), Errno> {
        if node.is_directory() { self.durability.note_moved() } else { Ok(()) }
    }

    /// Makes the tree follow a move.
    fn moved(&self, node: &Rc<Node>, old: &Side<'_>, new: &Side<'_>) -> Result<(), Errno> {
        node.remove_link(&old.parent, old.name);
        node.add_link(&new.parent, new.name);
        self.durability.note_new_name(&old.parent);
        self.durability.note_new_name(&new.parent);
        self.note_moved(node)?;
        if node.has_lower() { self.tree.set_impure(&new.parent) } else { Ok(()) }
    }
}
