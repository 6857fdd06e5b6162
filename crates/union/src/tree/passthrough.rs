//! Passthrough: the kernel itself reads executable files from the lower file.
//!
//! All handles of an inode must be of one kind for the kernel: passed to one backing file, or
//! served by the union and cached. So a file is *passed* from an open for reading that finds no
//! served handle until the last such handle is closed. Executable lower files are passed: programs
//! and libraries, which are mapped, and whose memory all unions of a lower layer then share. Other
//! lower files are passed only where nothing is copied up, or where an option requests it: a passed
//! handle continues to read the lower file when the file is copied up, which is wrong for a reader
//! that follows a growing log. Files that are written, partial or waiting are never passed, since
//! their bytes are not in one file.
//!
//! When a passed file is copied up, its node gets a new number. Old handles and mappings continue
//! with the lower file, as mappings on the kernel's overlayfs do. An open by the old number gets
//! `ESTALE`: the kernel then looks the name up again and opens the new number. Only an open without
//! a name to look up (`/proc/self/fd/N`) returns with the old number. When no passed handle is open
//! any more, it may read past the kernel's cache. It may not write, since that would leave the
//! kernel's cache under the new number unchanged.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::{Rc, Weak};

use fuse::{BackingId, Backings, NodeId, Notifier};
use rustix::io::Errno;

use super::{Node, Place, Tree};
use crate::backing::Backing;
use crate::options::Pass;
use crate::sys::{self, Stat};

/// Execute permissions.
const EXECUTABLE: u32 = libc::S_IXUSR | libc::S_IXGRP | libc::S_IXOTH;

/// A file that the kernel reads itself. One that an earlier server has passed has no name any more.
#[derive(Debug)]
pub(crate) struct Passed(Option<BackingId>);

/// How a handle is open; it lives as long as the handle.
#[derive(Debug)]
pub(crate) enum HandleMode {
    /// The kernel reads the file itself.
    Passed(Rc<Passed>),
    /// The union reads and writes it.
    Served { _use: Rc<()> },
}

impl HandleMode {
    /// Returns the notification for the kernel.
    pub(crate) fn backing_id(&self) -> Option<BackingId> {
        match self {
            Self::Passed(passed) => passed.0.clone(),
            Self::Served { .. } => None,
        }
    }
}

/// A node that the kernel knows by a former number.
#[derive(Debug)]
struct Former {
    node: Rc<Node>,
    lookups: Cell<u64>,
    /// Lives while a passed handle is open.
    passed: Weak<Passed>,
    /// The thread that was last asked to look the name up again.
    asked_again: Cell<u32>,
}

/// The passed files of a union.
#[derive(Debug, Default)]
pub(crate) struct Passthrough {
    kernel: OnceCell<(Backings, Notifier)>,
    is_agreed: Cell<bool>,
    /// File systems whose files cannot be passed.
    refused: RefCell<HashSet<u64>>,
    former: RefCell<HashMap<u64, Former>>,
}

impl Passthrough {
    /// Sets where files are registered, and the receiver of notifications about abandoned numbers.
    pub(crate) fn register_with(&self, backings: Backings, notifier: Notifier) {
        let _ = self.kernel.set((backings, notifier));
    }

    /// Returns the sender of notifications to the kernel, once the union is served.
    pub(crate) fn notifier(&self) -> Option<&Notifier> {
        self.kernel.get().map(|(_, notifier)| notifier)
    }

    /// Sets whether the kernel accepts backing files.
    pub(crate) fn agree(&self, is_agreed: bool) {
        self.is_agreed.set(is_agreed);
    }

    /// Returns the node that had a number.
    pub(crate) fn former(&self, id: NodeId) -> Option<Rc<Node>> {
        self.former.borrow().get(&id.0).map(|former| Rc::clone(&former.node))
    }

    fn register(&self, backing: &Backing, stat: &Stat) -> Option<BackingId> {
        let (backings, _) = self.kernel.get()?;
        if self.refused.borrow().contains(&stat.device) {
            return None;
        }
        let registered = backing.file.handle().as_fd().map(|fd| backings.register(fd)).ok()?;
        match registered {
            Ok(id) => Some(id),
            Err(error) => {
                tracing::debug!(%error, "files of this layer are served");
                self.refused.borrow_mut().insert(stat.device);
                None
            }
        }
    }
}

impl Tree {
    /// Returns how a new handle is open. All are passed while one is.
    pub(crate) fn handle_mode(
        &self,
        node: &Rc<Node>,
        backing: Option<&Backing>,
        must_be_served: bool,
    ) -> HandleMode {
        let Some(state) = node.file() else { return HandleMode::Served { _use: Rc::default() } };
        let known = state.served.borrow().upgrade();
        if !must_be_served && known.is_none() {
            if let Some(passed) = state.passed.borrow().upgrade() {
                return HandleMode::Passed(passed);
            }
            if let Some(backing) = backing
                && let Some(stat) = self.may_pass(node, backing)
                && let Some(id) = self.passthrough.register(backing, &stat)
            {
                let passed = Rc::new(Passed(Some(id)));
                *state.passed.borrow_mut() = Rc::downgrade(&passed);
                return HandleMode::Passed(passed);
            }
        }
        let served = known.unwrap_or_default();
        *state.served.borrow_mut() = Rc::downgrade(&served);
        HandleMode::Served { _use: served }
    }

    /// Returns the attributes of a file that may be passed.
    fn may_pass(&self, node: &Rc<Node>, backing: &Backing) -> Option<Stat> {
        let is_lower = matches!(*node.place.borrow(), Place::Lower) && !node.has_data_apart();
        if !is_lower || !self.passthrough.is_agreed.get() {
            return None;
        }
        // Nothing is ever copied up of a union without an upper layer.
        let takes_all = self.options.passthrough == Pass::Lower || self.options.upper.is_none();
        let stat = backing.with(|fd| self.shown_stat(node, fd, sys::stat_at(fd, b"")?));
        stat.ok().filter(|stat| takes_all || stat.mode & EXECUTABLE != 0)
    }

    /// Separates a file that was copied up from its passed handles, which keep the old content and
    /// the old number.
    pub(crate) fn part_from_passed(&self, node: &Rc<Node>) {
        if node.is_changeable() {
            self.leave_number(node);
        }
    }

    /// Gives a node a new number if it is passed under the one that it has.
    fn leave_number(&self, node: &Rc<Node>) {
        let Some(state) = node.file() else { return };
        let passed = state.passed.take();
        if passed.strong_count() > 0 {
            let (id, lookups) = (node.id.get(), node.lookups.replace(0));
            self.nodes.borrow_mut().remove(&id);
            node.id.set(self.new_number());
            self.add_former(node, id, lookups, passed);
            let notifier = self.passthrough.kernel.get().map(|(_, notifier)| notifier);
            let sent = notifier.map(|notifier| notifier.invalidate_attributes(NodeId(id)));
            if let Some(Err(error)) = sent {
                tracing::debug!(%error, "the kernel keeps attributes of a former number");
            }
        }
    }

    /// Adds a number by which the kernel knows a node beside its own.
    fn add_former(&self, node: &Rc<Node>, id: u64, lookups: u64, passed: Weak<Passed>) {
        let Some(state) = node.file() else { return };
        state.former_ids.borrow_mut().push(id);
        let node = Rc::clone(node);
        let former =
            Former { node, lookups: Cell::new(lookups), passed, asked_again: Cell::new(0) };
        self.passthrough.former.borrow_mut().insert(id, former);
    }

    /// Removes references of the kernel to a former number.
    pub(crate) fn forget_former(&self, id: NodeId, count: u64) {
        let mut all = self.passthrough.former.borrow_mut();
        let Some(former) = all.get(&id.0) else { return };
        former.lookups.set(former.lookups.get().saturating_sub(count));
        if former.lookups.get() > 0 {
            return;
        }
        let former = all.remove(&id.0);
        drop(all);
        if let Some(state) = former.as_ref().and_then(|former| former.node.file()) {
            state.former_ids.borrow_mut().retain(|&known| known != id.0);
        }
        if let Some(observer) = self.observer.get() {
            observer.forget(id.0);
        }
    }

    /// Returns whether an open by a former number is one for reading that has no name to look up:
    /// only that comes again from the same thread.
    ///
    /// # Errors
    /// `ESTALE` makes the kernel look the name up again.
    pub(crate) fn is_left_behind(
        &self,
        id: NodeId,
        caller: u32,
        for_writing: bool,
    ) -> Result<bool, Errno> {
        let all = self.passthrough.former.borrow();
        let Some(former) = all.get(&id.0) else { return Ok(false) };
        let is_again = former.asked_again.replace(caller) == caller && caller != 0;
        if is_again && !for_writing && former.passed.strong_count() == 0 {
            former.asked_again.set(0);
            return Ok(true);
        }
        Err(Errno::STALE)
    }

    /// Keeps a number by which an earlier server made a node known to the kernel. Returns whether
    /// the node can have it.
    pub(crate) fn restore_former(&self, node: &Rc<Node>, id: u64, lookups: u64) -> bool {
        self.add_former(node, id, lookups, Weak::new());
        node.file().is_some()
    }

    /// Continues with a file that an earlier server has passed. The kernel's name for it is
    /// unknown, so no further handle can be passed, and the number becomes a former one.
    pub(crate) fn restore_passed(&self, id: NodeId) -> Option<Rc<Passed>> {
        let passed = Rc::new(Passed(None));
        if let Some(former) = self.passthrough.former.borrow_mut().get_mut(&id.0) {
            former.passed = Rc::downgrade(&passed);
            return Some(passed);
        }
        let node = self.node(id).ok()?;
        *node.file()?.passed.borrow_mut() = Rc::downgrade(&passed);
        self.leave_number(&node);
        Some(passed)
    }

    /// Invalidates the attributes of a node that were changed under a former number of it.
    pub(crate) fn invalidate_present_number(&self, asked: NodeId, node: &Node) {
        if asked.0 != node.id.get() {
            self.invalidate_attributes(node);
        }
    }

    /// Invalidates the kernel's copy of a node's attributes.
    pub(crate) fn invalidate_attributes(&self, node: &Node) {
        let Some(notifier) = self.passthrough.notifier() else { return };
        if let Err(error) = notifier.invalidate_attributes(NodeId(node.id.get())) {
            tracing::warn!(%error, "the kernel keeps old attributes");
        }
    }
}
