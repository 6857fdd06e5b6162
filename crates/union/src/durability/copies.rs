//! Copies that wait for their names, and get them.

use std::os::fd::AsFd;
use std::rc::{Rc, Weak};

use rustix::io::Errno;

use super::{Durability, marks};
use crate::sys::{self, Fd};
use crate::tree::{Node, Pending, Place, Tree, path_of};

impl Durability {
    /// Marks a copy as complete and makes it the place of the node. It becomes durable later.
    pub(crate) fn enqueue(self: &Rc<Self>, node: &Rc<Node>, pending: Pending) -> Result<(), Errno> {
        let path = match pending.entry() {
            Some(entry) => {
                Tree::count_links(node, entry);
                marks::path_in_index(entry)
            }
            None => path_of(node),
        };
        // First, because this copy is not among those that wait yet.
        if self.marks.is_long() {
            self.note_live_marks()?;
        }
        self.marks.note(self.tree.upper()?, pending.name(), &path)?;
        let pending = Rc::new(pending);
        assert!(
            node.pending().is_none() && !node.is_in_upper(),
            "a copy of inode {} waits for its name, and the node is at {:?}",
            node.inode.get(),
            node.place.borrow()
        );
        node.set_place(Place::Pending(Rc::clone(&pending)));
        self.copies.borrow_mut().push((Rc::downgrade(&pending), Rc::downgrade(node)));
        self.committer.add(self, node, pending);
        Ok(())
    }

    pub(super) fn forget_waiting(&self, pending: &Rc<Pending>) {
        let pending = Rc::downgrade(pending);
        let mut copies = self.copies.borrow_mut();
        copies.retain(|(known, _)| !Weak::ptr_eq(known, &pending) && known.strong_count() > 0);
        if copies.is_empty() {
            self.marks.forget_all();
        }
    }

    /// Writes the marks of the copies that wait now in place of all that were noted.
    fn note_live_marks(&self) -> Result<(), Errno> {
        let live = self.live_marks();
        let records = live.iter().map(|(pending, path)| (pending.name(), &**path));
        self.marks.rewrite(self.tree.upper()?, records)
    }

    /// Notes the paths of waiting copies anew, after a directory above them may have moved.
    pub(crate) fn note_moved(&self) -> Result<(), Errno> {
        let upper = self.tree.upper()?;
        for (pending, path) in self.live_marks() {
            self.marks.note(upper, pending.name(), &path)?;
        }
        Ok(())
    }

    fn live_marks(&self) -> Vec<(Rc<Pending>, Box<[u8]>)> {
        let copies = self.copies.borrow();
        let live = copies.iter().filter_map(|(pending, node)| {
            let (pending, node) = (pending.upgrade()?, node.upgrade()?);
            let path = match pending.entry() {
                Some(entry) => marks::path_in_index(entry).into(),
                None => path_of(&node).into(),
            };
            Some((pending, path))
        });
        live.filter(|(pending, _)| !pending.is_cancelled()).collect()
    }

    /// Keeps a copy that could not get its name, to be tried again by the next flush or request.
    pub(super) fn defer(&self, pending: Rc<Pending>, node: Rc<Node>, errno: Errno) {
        pending.defer(errno);
        self.deferred.borrow_mut().push((pending, node));
        self.raise_flush();
    }

    /// Lets the copies that could not get their names wait again.
    pub(super) fn retry_deferred(self: &Rc<Self>) {
        for (pending, node) in self.deferred.take() {
            pending.retry();
            if pending.is_cancelled() {
                self.forget_waiting(&pending);
                pending.end(Ok(()));
            } else {
                self.committer.add(self, &node, pending);
            }
        }
    }

    /// Gives a copy its name. Returns the directories that it is in now; none if it was unlinked.
    pub(super) fn publish(
        &self,
        node: &Rc<Node>,
        pending: &Rc<Pending>,
        times: &mut KeptTimes,
    ) -> Result<Vec<Rc<Node>>, Errno> {
        if pending.is_cancelled() {
            return Ok(Vec::new());
        }
        let is_its =
            matches!(&*node.place.borrow(), Place::Pending(place) if Rc::ptr_eq(place, pending));
        assert!(
            is_its,
            "inode {} would get the name of a copy that is not its own: {:?}",
            node.inode.get(),
            node.place.borrow()
        );
        let upper = self.tree.upper()?;
        if let Some(entry) = pending.entry() {
            return self.enter(node, entry, &upper.pending, pending.name());
        }
        let link = node.link().ok_or(Errno::NOENT)?;
        let parent = self.tree.upper_part(&link.parent)?;
        times.keep(&parent)?;
        self.tree.set_impure(&link.parent)?;
        // The last step that may fail: a copy that fails is tried again as a whole.
        rustix::fs::renameat(&upper.pending, pending.name(), &parent, &*link.name)?;
        node.set_place(Place::Upper);
        self.note_new_name(&link.parent);
        Ok(vec![link.parent])
    }
}

/// Times of directories in which changes must not show. They are restored together, because each
/// costs a change of metadata.
#[derive(Debug, Default)]
pub(super) struct KeptTimes(Vec<(Fd, sys::Stat)>);

impl KeptTimes {
    /// Remembers a directory's times, before it is changed first.
    fn keep(&mut self, directory: &Fd) -> Result<(), Errno> {
        let is_known = |(known, _): &(Fd, _)| Rc::ptr_eq(known, directory);
        if !self.0.iter().any(is_known) {
            self.0.push((Rc::clone(directory), sys::stat_at(directory.as_fd(), b"")?));
        }
        Ok(())
    }

    /// Restores the times. If a directory was opened again meanwhile, its first times are restored
    /// last.
    pub(super) fn restore(self) {
        for (directory, before) in self.0.into_iter().rev() {
            let set = sys::set_times(directory.as_fd(), Some(before.atime), Some(before.mtime));
            if let Err(errno) = set {
                tracing::warn!(%errno, "the times of a directory show a copy-up");
            }
        }
    }
}
