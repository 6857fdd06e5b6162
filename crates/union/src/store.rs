//! The partial files of a union: of a large lower file only the written bytes are stored, in the
//! journal of `WORKDIR/tsumugi/`; the rest is read from the lower file.
//!
//! [`Store`] is the journal with its flushing: a request for durability joins the flush that covers
//! it. [`Partial`] is one such file while its node is known. A changed lower file gives `EIO` where
//! its bytes would be needed: bytes of two versions never mix.

mod data;
mod digest;
mod keys;
mod lost;
mod lower;
mod names;
mod partial;
mod recover;

pub(crate) use data::Lower;
pub(crate) use digest::of as digest_of;
pub(crate) use keys::{directories_below, key_of};
pub(crate) use lower::identity;
pub(crate) use partial::{Partial, PartialContent};
pub(crate) use recover::Recovered;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use reactor::local::Notify;
use reactor::{File, Handle};
use rustix::io::Errno;

use crate::copier::{Copier, Goal, SyncMethod, ToSync};
use crate::journal::{self, Creation, Directory, FileId, Journal, JournalError, Name};
use crate::layers::Upper;
use crate::options::{Options, SyncMode};
use crate::sys::errno_of;

use lost::LostNames;

/// Most bytes that are moved out of an old segment after a flush.
const CLEAN_BYTES: u64 = 1 << 20;

/// How the name of a work file begins, into which a partial one is filled.
pub(crate) const FILL_PREFIX: &str = "fill-";

/// The journal of a union, and how it becomes durable.
#[derive(Debug)]
pub(crate) struct Store {
    journal: RefCell<Journal<Directory>>,
    is_volatile: bool,
    copier: Copier,
    sync_method: SyncMethod,
    is_syncing: Cell<bool>,
    synced: Notify,
    /// Files without a name whose end could not be recorded when they were dropped.
    dropped: RefCell<Vec<FileId>>,
    lost: LostNames,
}

impl Store {
    /// Makes a union's store of its journal. Returns with it the files that have ended by the doing
    /// of an earlier process.
    pub(crate) fn new(
        Recovered { journal, ended }: Recovered,
        upper: &Upper,
        options: &Options,
        copier: &Copier,
    ) -> (Rc<Self>, Vec<FileId>) {
        let store = Self {
            journal: RefCell::new(journal),
            is_volatile: options.sync == SyncMode::Volatile,
            copier: copier.clone(),
            sync_method: upper.sync_method.clone(),
            is_syncing: Cell::new(false),
            synced: Notify::new(),
            dropped: RefCell::default(),
            lost: LostNames::default(),
        };
        // The directories show it, and may not do so after a loss of power.
        store.inherit(&ended);
        (Rc::new(store), ended)
    }

    /// Returns whether nothing is made durable.
    pub(crate) fn is_volatile(&self) -> bool {
        self.is_volatile
    }

    /// Returns the file of a name in a directory.
    pub(crate) fn lookup(&self, directory: impl AsFd, name: &[u8]) -> Option<FileId> {
        // Without handles there has never been a partial file.
        let key = key_of(directory.as_fd()).ok()?;
        self.journal().lookup(&key, name)
    }

    /// Begins a file.
    pub(crate) fn create(&self, creation: Creation) -> Result<FileId, JournalError> {
        self.journal_mut().create(creation)
    }

    /// Returns the name of the work file of a partial one.
    pub(crate) fn fill_name(&self, file: FileId) -> String {
        fill_name(&self.journal(), file)
    }

    /// Removes a completed file from the journal, after its name is durable. A file that the
    /// journal no longer has is no error.
    pub(crate) fn forget(&self, file: FileId) -> Result<(), Errno> {
        match self.journal_mut().published(file) {
            Ok(()) | Err(JournalError::NoSuchFile(_)) => Ok(()),
            Err(error) => Err(failed(&error)),
        }
    }

    fn journal(&self) -> Ref<'_, Journal<Directory>> {
        self.journal.borrow()
    }

    fn journal_mut(&self) -> RefMut<'_, Journal<Directory>> {
        let mut journal = self.journal.borrow_mut();
        for file in self.dropped.borrow_mut().drain(..) {
            if let Err(error) = journal.drop_file(file) {
                tracing::warn!(%error, "a removed file stays in the journal");
            }
        }
        journal
    }

    /// Returns whether no file is partial.
    pub(crate) fn is_empty(&self) -> bool {
        self.journal().files().next().is_none()
    }

    /// Returns every partial file that has its name.
    pub(crate) fn status(&self) -> Vec<journal::FileStatus> {
        let mut files = self.journal().status();
        files.retain(|file| !self.is_lost(file.file));
        files
    }

    /// Returns every partial file that has its name, with that.
    pub(crate) fn named(&self) -> Vec<(FileId, Name)> {
        let journal = self.journal();
        let named = |(file, copy_up): (FileId, journal::CopyUp<'_>)| {
            let name = copy_up.names().first().filter(|_| !self.is_lost(file));
            name.map(|name| (file, name.clone()))
        };
        journal.files().filter_map(named).collect()
    }

    /// Returns whether a flush now saves the writer that fills this segment from waiting for its
    /// name.
    pub(crate) fn wants_early_flush(&self) -> bool {
        !self.is_volatile && !self.is_syncing.get() && self.journal().has_new_segment()
    }

    /// Waits until everything recorded so far is durable. Requests that arrive during a flush wait
    /// for the next one, which covers all of them.
    pub(crate) async fn commit(&self) -> Result<(), Errno> {
        if self.is_volatile {
            return Ok(());
        }
        let wanted = self.journal().appended();
        while self.is_syncing.get() {
            self.synced.notified().await;
            if self.journal().durable() >= wanted {
                return Ok(());
            }
        }
        let ticket = self.journal_mut().ticket().map_err(|error| failed(&error))?;
        if ticket.is_empty() {
            return Ok(());
        }
        self.is_syncing.set(true);
        let flushed = self.flush(&ticket).await;
        self.is_syncing.set(false);
        let mut journal = self.journal_mut();
        let result = match flushed {
            Ok(()) => journal.synced(&ticket).map_err(|error| failed(&error)),
            Err(errno) => {
                journal.sync_failed();
                Err(errno)
            }
        };
        if result.is_ok()
            && let Err(error) = journal.clean(CLEAN_BYTES)
        {
            tracing::warn!(%error, "space of the journal could not be given back");
        }
        drop(journal);
        self.synced.notify();
        result
    }

    /// Makes the mark durable that records how far the journal is durable, at the end of a union.
    pub(crate) async fn flush_mark(&self) -> Result<(), Errno> {
        let handle = self.journal().marks_handle();
        let Some(handle) = handle.filter(|_| !self.is_volatile) else { return Ok(()) };
        let files = vec![ToSync::Data(file_of(&handle)?)];
        let results = self.copier.sync(files, self.sync_method.clone(), Goal::Durable).await;
        results.into_iter().collect()
    }

    /// All flushes of a ticket, at a time.
    async fn flush(&self, ticket: &journal::Ticket<Arc<OwnedFd>>) -> Result<(), Errno> {
        let mut files = Vec::with_capacity(ticket.data.len() + ticket.names.len());
        for handle in &ticket.data {
            files.push(ToSync::Data(file_of(handle)?));
        }
        for handle in &ticket.names {
            files.push(ToSync::Names(file_of(handle)?));
        }
        let results = self.copier.sync(files, self.sync_method.clone(), Goal::Durable).await;
        results.into_iter().collect()
    }
}

/// Returns the name of the work file of a partial one.
fn fill_name(journal: &Journal<Directory>, file: FileId) -> String {
    format!("{FILL_PREFIX}{:016x}-{:x}", journal.number(), file.0)
}

/// Returns a segment as a file of the reactor.
pub(crate) fn file_of(handle: &Arc<OwnedFd>) -> Result<File, Errno> {
    let fd = handle.try_clone().map_err(errno_of)?;
    Ok(File::from_handle(Handle::from_fd(fd)))
}

/// Returns the error number for an error of the journal; an error of the disk is also logged.
pub(crate) fn failed(error: &JournalError) -> Errno {
    match error {
        JournalError::Io { .. } | JournalError::Poisoned | JournalError::Damaged { .. } => {
            tracing::error!(%error, "partial copies");
        }
        _ => {}
    }
    error.errno()
}

pub(crate) fn time(time: fuse::Time) -> journal::Time {
    journal::Time { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

pub(crate) fn shown_time(time: journal::Time) -> fuse::Time {
    fuse::Time { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

pub(crate) fn now() -> journal::Time {
    let ns = reactor::time::system_time();
    let nanoseconds = (ns % 1_000_000_000) as u32;
    journal::Time { seconds: (ns / 1_000_000_000) as i64, nanoseconds }
}
