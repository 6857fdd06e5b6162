//! A copy that is used already and waits for its name.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use reactor::local::{Notify, Permit};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::backing::Backing;
use crate::layers::Upper;
use crate::sys::Fd;

/// A copy that waits for its data to be durable.
#[derive(Debug)]
pub(crate) struct Pending {
    file: Fd,
    backing: Rc<Backing>,
    name: Vec<u8>,
    entry: Option<Box<[u8]>>,
    bytes: u64,
    /// Its share of the files that may be open.
    room: RefCell<Option<Permit>>,
    /// Unlinked meanwhile: nothing is to be published.
    is_cancelled: Cell<bool>,
    outcome: Cell<Option<Result<(), Errno>>>,
    ended: Notify,
}

impl Pending {
    /// Makes one of a copy with this name among the waiting ones, which will be this entry of the
    /// index, if it is for one.
    pub(crate) fn new(
        file: Fd,
        backing: Rc<Backing>,
        name: Vec<u8>,
        entry: Option<Box<[u8]>>,
        bytes: u64,
        room: Permit,
    ) -> Self {
        Self {
            file,
            backing,
            name,
            entry,
            bytes,
            room: RefCell::new(Some(room)),
            is_cancelled: Cell::new(false),
            outcome: Cell::new(None),
            ended: Notify::new(),
        }
    }

    /// Returns the copy.
    pub(crate) fn file(&self) -> &Fd {
        &self.file
    }

    /// Returns the copy, for reading and writing.
    pub(crate) fn backing(&self) -> &Rc<Backing> {
        &self.backing
    }

    /// Returns its name among the waiting ones.
    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the entry of the index that it will be, if it is for one.
    pub(crate) fn entry(&self) -> Option<&[u8]> {
        self.entry.as_deref()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether its node has lost its name, so that nothing is to be published.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.is_cancelled.get()
    }

    /// Returns whether it has its name, or why it could not get it; `None` while it waits.
    pub(crate) fn outcome(&self) -> Option<Result<(), Errno>> {
        self.outcome.get()
    }

    /// Completes when it has ended.
    pub(crate) fn ended(&self) -> impl Future<Output = ()> + '_ {
        self.ended.notified()
    }

    /// Removes the copy: its node has lost its name.
    pub(crate) fn cancel(&self, upper: &Upper) {
        if !self.is_cancelled.replace(true) {
            // What stays after an error is discarded by the next mount.
            let _ = rustix::fs::unlinkat(&upper.pending, &self.name, AtFlags::empty());
        }
    }

    /// Gives an error to those that wait now. The copy is tried again.
    pub(crate) fn defer(&self, errno: Errno) {
        let before = self.outcome.replace(Some(Err(errno)));
        assert!(before.is_none(), "a copy that has ended is put off: {before:?}");
        self.ended.notify();
    }

    /// Lets a copy that was put off wait again.
    pub(crate) fn retry(&self) {
        let before = self.outcome.take();
        assert!(
            matches!(before, Some(Err(_))),
            "a copy waits again that was not put off: {before:?}"
        );
    }

    /// Ends the waiting.
    pub(crate) fn end(&self, outcome: Result<(), Errno>) {
        let before = self.outcome.replace(Some(outcome));
        assert!(
            before.is_none(),
            "the copy of {:?} ends twice: {before:?}",
            self.name.escape_ascii().to_string()
        );
        self.room.take();
        self.ended.notify();
    }
}
