//! One partial file: its attributes, and where its content is.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use reactor::local::Notify;
use rustix::io::Errno;

use super::{Store, failed, now, shown_time, time};
use crate::backing::Backing;
use crate::journal::{self, Attributes, FileId, JournalError, Piece, Xattr};
use crate::sys::Stat;

/// A file that is stored in the journal only in part.
#[derive(Debug)]
pub(crate) struct Partial {
    pub(super) store: Rc<Store>,
    pub(super) file: FileId,
    /// The lower file's attributes when it was opened first.
    lower_stat: Stat,
    /// The lower file, while it is kept open.
    pub(super) lower: RefCell<Option<Rc<Backing>>>,
    /// Whether that is known to be the file that was copied up, so that only its times can be
    /// others.
    pub(super) is_lower_known: Cell<bool>,
    /// The lower file as it was when it was last found to have the same data in spite of another
    /// ctime.
    pub(super) same: RefCell<Option<journal::LowerIdentity>>,
    /// Whether it was used since it came into the line of those to be closed.
    pub(super) is_lower_used: Cell<bool>,
    /// Whether its last name is gone: the journal drops it when its last handle is closed.
    is_nameless: Cell<bool>,
    is_completing: Cell<bool>,
    completed: Notify,
}

impl Drop for Partial {
    fn drop(&mut self) {
        if !self.is_nameless.get() || self.store.close_lost(self.file) {
            return;
        }
        self.store.note_end();
        match self.store.journal.try_borrow_mut() {
            Ok(mut journal) => match journal.drop_file(self.file) {
                // Completed.
                Ok(()) | Err(JournalError::NoSuchFile(_)) => {}
                // A file without a name is forgotten by the next mount at the latest.
                Err(error) => tracing::warn!(%error, "a removed file stays in the journal"),
            },
            Err(_) => self.store.dropped.borrow_mut().push(self.file),
        }
    }
}

/// Where the content of a partial file is.
#[derive(Debug)]
pub(crate) struct PartialContent {
    pub(crate) size_bytes: u64,
    pub(crate) pieces: Vec<Piece<std::sync::Arc<OwnedFd>>>,
}

/// The attributes of an inode in the journal.
#[derive(Debug)]
pub(crate) struct PartialInode {
    pub(crate) attributes: Attributes,
    pub(crate) xattrs: Vec<Xattr>,
}

impl Partial {
    pub(crate) fn new(store: &Rc<Store>, file: FileId, lower: OwnedFd, lower_stat: Stat) -> Self {
        Self {
            store: Rc::clone(store),
            file,
            lower_stat,
            lower: RefCell::new(Some(Backing::new(lower, false))),
            is_lower_known: Cell::new(false),
            same: RefCell::default(),
            is_lower_used: Cell::new(false),
            is_nameless: Cell::new(false),
            is_completing: Cell::new(false),
            completed: Notify::new(),
        }
    }

    /// Returns its attributes, as an ordinary copy would have them.
    pub(crate) fn stat(&self) -> Result<Stat, Errno> {
        let journal = self.store.journal();
        let file = journal.file(self.file).ok_or(Errno::STALE)?;
        let attributes = file.attributes();
        let bytes = file.stored_bytes() + file.unfilled_bytes();
        Ok(Stat {
            mode: attributes.mode,
            nlink: u32::from(!self.is_nameless.get()),
            uid: attributes.uid,
            gid: attributes.gid,
            size: file.size_bytes(),
            blocks: bytes.div_ceil(4096) * 8,
            atime: shown_time(attributes.atime),
            mtime: shown_time(attributes.mtime),
            ctime: shown_time(attributes.ctime),
            ..self.lower_stat
        })
    }

    /// Waits until the file is not being completed. It may be an ordinary one afterwards.
    pub(crate) async fn settled(&self) {
        while self.is_completing.get() {
            self.completed.notified().await;
        }
    }

    /// Returns whether it is being made a whole file.
    pub(crate) fn is_completing(&self) -> bool {
        self.is_completing.get()
    }

    /// Notes that it is being completed: changes of it wait.
    pub(crate) fn begin_completing(&self) {
        self.is_completing.set(true);
    }

    /// Ends that, and wakes the changes that wait.
    pub(crate) fn end_completing(&self) {
        self.is_completing.set(false);
        self.completed.notify();
    }

    /// Returns its number in the journal.
    pub(crate) fn file(&self) -> FileId {
        self.file
    }

    /// Returns the journal that has it.
    pub(crate) fn store(&self) -> &Rc<Store> {
        &self.store
    }

    /// Returns the lower file's attributes when it was opened first.
    pub(crate) fn lower_stat(&self) -> Stat {
        self.lower_stat
    }

    /// Notes that its last name is gone. Programs that have it open go on.
    pub(crate) fn lose_name(&self) {
        self.is_nameless.set(true);
        self.store.lose(self.file);
    }

    /// Returns the size of the file and where its bytes are.
    pub(crate) fn content(&self) -> Result<PartialContent, Errno> {
        let journal = self.store.journal();
        let size_bytes = journal.file(self.file).ok_or(Errno::STALE)?.size_bytes();
        let pieces = journal.pieces(self.file, 0..size_bytes).map_err(|error| failed(&error))?;
        Ok(PartialContent { size_bytes, pieces })
    }

    /// Returns the attributes that its copy will have.
    pub(crate) fn inode(&self) -> Result<PartialInode, Errno> {
        let journal = self.store.journal();
        let file = journal.file(self.file).ok_or(Errno::STALE)?;
        Ok(PartialInode { attributes: file.attributes(), xattrs: file.xattrs().to_vec() })
    }

    /// Returns whether bytes of it are in the lower file only.
    pub(crate) fn needs_lower(&self) -> bool {
        let journal = self.store.journal();
        journal.file(self.file).is_some_and(|file| file.unfilled_bytes() > 0)
    }

    /// Records that its work file is about to be moved to its name.
    pub(crate) fn record_publication(&self, work_name: &[u8]) -> Result<(), Errno> {
        let recorded = self.store.journal_mut().publish(self.file, work_name);
        recorded.map_err(|error| failed(&error))
    }

    /// Revokes that record. Only afterwards may the work file be removed: a missing work file means
    /// that it has its name.
    pub(crate) fn revoke_publication(&self) -> Result<(), JournalError> {
        let mut journal = self.store.journal_mut();
        journal.unpublish(self.file)?;
        let is_published = journal.durable() < journal.appended();
        if is_published { journal.sync() } else { Ok(()) }
    }

    /// Makes what was recorded of it durable.
    pub(crate) async fn commit(&self) -> Result<(), Errno> {
        self.store.commit().await
    }

    /// Sets times that are given.
    pub(crate) fn set_times(
        &self,
        atime: Option<fuse::Time>,
        mtime: Option<fuse::Time>,
    ) -> Result<(), Errno> {
        let mut journal = self.store.journal_mut();
        let mut attributes = journal.file(self.file).ok_or(Errno::STALE)?.attributes();
        attributes.atime = atime.map_or(attributes.atime, time);
        attributes.mtime = mtime.map_or(attributes.mtime, time);
        attributes.ctime = now();
        journal.set_attributes(self.file, attributes).map_err(|error| failed(&error))
    }
}
