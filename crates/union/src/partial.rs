//! Partial copies: of a large lower file only what is written is stored, in the journal of
//! `WORKDIR/tsumugi/`; the rest is read from the lower file.
//!
//! [`Store`] is a union's journal with its flushing: a request for durability joins the flush that covers it.
//! [`Partial`] is one such file while its node is known. A changed lower file gives `EIO` where its bytes would
//! be needed: bytes of two versions never mix ([`lower`]).
//!
//! What a partial file cannot do (being linked, moved, given attributes, owner or mode) completes it
//! first (`complete.rs`): then it is an ordinary file of the upper directory.

mod complete;
mod data;
mod digest;
mod fill;
mod lost;
mod lower;
mod names;
mod start;

pub(crate) use complete::directories_below;
pub(crate) use digest::of as digest_of;
pub(crate) use fill::{Filler, PREFIX as FILL_PREFIX, Worker};
pub(crate) use lower::OpenLowers;

use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use reactor::file::FileHandle;
use reactor::local::Notify;
use reactor::{File, Handle};
use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::backing::Backing;
use crate::copier::{Copier, Goal, SyncMethod, ToSync};
use crate::error::UnionError;
use crate::journal::{self, Directory, FileId, Journal, JournalError, ParentKey};
use crate::layers::Upper;
use crate::node::{Node, Place};
use crate::options::{Options, SyncMode};
use crate::sys::errno_of;
use crate::sys::{self, Stat};
use crate::tree::Union;

/// How long the end of the process that has the journal is waited for.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
const LOCK_WAIT_STEP: Duration = Duration::from_millis(20);
/// What is moved out of an old segment after a flush, at most.
const CLEAN_BYTES: u64 = 1 << 20;

/// The journal of a union, and how it becomes durable.
#[derive(Debug)]
pub(crate) struct Store {
    journal: RefCell<Journal<Directory>>,
    is_volatile: bool,
    copier: Copier,
    sync_method: SyncMethod,
    is_syncing: Cell<bool>,
    synced: Notify,
    /// Directories of new copies, whose names are to be durable with them; a flush is due if there
    /// are any.
    parents: RefCell<Vec<Rc<Node>>>,
    /// Whether files of a device can be cloned into the upper, as far as it was tried.
    clones: RefCell<HashMap<u64, bool>>,
    /// Files without a name whose end could not be recorded when they were dropped.
    dropped: RefCell<Vec<FileId>>,
    losses: lost::Losses,
    /// What makes partial files whole in the background.
    pub(crate) filler: fill::Filler,
}

/// A file that is stored here only in part.
#[derive(Debug)]
pub(crate) struct Partial {
    store: Rc<Store>,
    pub(crate) file: FileId,
    /// The lower file's attributes when it was opened first.
    lower_stat: Stat,
    /// The lower file, while it is kept open.
    lower: RefCell<Option<Rc<Backing>>>,
    /// Whether that is known to be the file that was copied up, so that only its times can be others.
    is_lower_known: Cell<bool>,
    /// The lower file as it was when it was last found to have the same data in spite of another ctime.
    same: RefCell<Option<journal::LowerIdentity>>,
    /// Whether it was used since it came into the line of those to be closed.
    is_lower_used: Cell<bool>,
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

/// A journal that was opened and recovered, which takes long, and may be done on any thread.
#[derive(Debug)]
pub(crate) struct Recovered {
    journal: Journal<Directory>,
    /// Files that have ended by the doing of an earlier process, which may not be durable.
    ended: Vec<FileId>,
}

impl Recovered {
    /// Opens the journal of a work directory, recovering what is there. Waits for a process that is about
    /// to give it up.
    pub(crate) fn open(
        upper: &Upper,
        options: &Options,
        is_inherited: bool,
    ) -> Result<Self, UnionError> {
        let path = options.work.clone().unwrap_or_default();
        Self::recover(upper, options, is_inherited)
            .map_err(|source| UnionError::Journal { path, source })
    }

    /// Whether a work file that a mount finds is one that filling goes on with.
    pub(crate) fn is_filling(&self, work_name: &[u8]) -> bool {
        fill::is_known(&self.journal, work_name, |file| self.ended.contains(&file))
    }

    /// Whether there is room for records already.
    pub(crate) fn has_segments(&self) -> bool {
        self.journal.usage().segments > 0
    }

    fn recover(upper: &Upper, options: &Options, is_inherited: bool) -> Result<Self, JournalError> {
        let chunk_bytes = u64::from(options.chunk_bytes);
        let accepts_damage = options.accept_damage;
        let options_of_journal =
            journal::Options { chunk_bytes, accepts_damage, ..journal::Options::default() };
        let directory = lock(upper)?;
        let (mut journal, recovery) = Journal::open(directory, options_of_journal)?;
        for damage in &recovery.damage {
            tracing::error!(
                %damage,
                "durable records of partial copies are lost, which is accepted; reads of the \
                files concerned fail"
            );
        }
        let mut shown = names::Shown::of(upper);
        let mut ended = complete::settle(&mut journal, upper, &mut shown)?;
        ended.extend(names::find_stale(&journal, &mut shown)?);
        if !is_inherited {
            ended.drain(..).try_for_each(|file| journal.drop_file(file))?;
        }
        Ok(Self { journal, ended })
    }
}

impl Store {
    /// Makes a union's store of its journal.
    pub(crate) fn new(
        Recovered { journal, ended }: Recovered,
        (upper, options): (&Upper, &Options),
        copier: &Copier,
    ) -> Self {
        let losses = lost::Losses::default();
        // The directories show it, and may not do so after a loss of power.
        losses.inherit(ended);
        Self {
            journal: RefCell::new(journal),
            is_volatile: options.sync == SyncMode::Volatile,
            copier: copier.clone(),
            sync_method: upper.sync_method.clone(),
            is_syncing: Cell::new(false),
            synced: Notify::new(),
            parents: RefCell::default(),
            clones: RefCell::default(),
            dropped: RefCell::default(),
            losses,
            filler: fill::Filler::default(),
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

    /// Whether no file is partial.
    pub(crate) fn is_empty(&self) -> bool {
        self.journal().files().next().is_none()
    }

    /// Every partial file that has its name.
    pub(crate) fn status(&self) -> Vec<journal::FileStatus> {
        let mut files = self.journal().status();
        files.retain(|file| !self.is_lost(file.file));
        files
    }

    /// Every partial file that has its name, with that.
    fn named(&self) -> Vec<(FileId, journal::Name)> {
        let journal = self.journal();
        let named = |(file, copy_up): (FileId, journal::CopyUp<'_>)| {
            let name = copy_up.names().first().filter(|_| !self.is_lost(file));
            name.map(|name| (file, name.clone()))
        };
        journal.files().filter_map(named).collect()
    }

    /// Whether a flush now would spare the writer that fills this segment the wait for its name.
    fn wants_early_flush(&self) -> bool {
        !self.is_volatile && !self.is_syncing.get() && self.journal().has_new_segment()
    }

    /// Waits until everything recorded so far is durable. Requests that arrive during a flush wait for the next
    /// one, which covers all of them.
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

    /// Makes durable what says how far the journal is durable, at the end of a union.
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

/// Takes the journal's lock, waiting for a process that is just ending.
fn lock(upper: &Upper) -> Result<Directory, JournalError> {
    let mut waited = Duration::ZERO;
    loop {
        let work = upper.work_root.try_clone();
        let work = work.map_err(|error| JournalError::io("opening the work directory", error))?;
        let root = upper.root.try_clone();
        let root = root.map_err(|error| JournalError::io("opening the upper directory", error))?;
        match Directory::open(work).map(|directory| directory.with_upper(root)) {
            Err(JournalError::Locked) if waited < LOCK_WAIT_MAX => {
                std::thread::sleep(LOCK_WAIT_STEP);
                waited += LOCK_WAIT_STEP;
            }
            other => return other,
        }
    }
}

/// A segment as a file of the reactor.
fn file_of(handle: &Arc<OwnedFd>) -> Result<File, Errno> {
    let fd = handle.try_clone().map_err(errno_of)?;
    Ok(File::from_handle(Handle::from_fd(fd)))
}

/// The error number for an error of the journal; an error of the disk is also logged.
fn failed(error: &JournalError) -> Errno {
    match error {
        JournalError::Io { .. } | JournalError::Poisoned | JournalError::Damaged { .. } => {
            tracing::error!(%error, "partial copies");
        }
        _ => {}
    }
    error.errno()
}

/// The key of an open directory.
fn key_of(directory: BorrowedFd<'_>) -> Result<ParentKey, Errno> {
    let handle = FileHandle::of(directory).map_err(errno_of)?;
    let bytes = [&handle.kind.to_le_bytes()[..], &handle.bytes].concat();
    ParentKey::new(&bytes).map_err(|error| error.errno())
}

/// The file handle that a key was made of.
fn handle_of(key: &ParentKey) -> Option<FileHandle> {
    let (kind, bytes) = key.as_bytes().split_first_chunk()?;
    Some(FileHandle { kind: i32::from_le_bytes(*kind), bytes: bytes.into() })
}

fn time(time: fuse::Time) -> journal::Time {
    journal::Time { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

fn shown_time(time: journal::Time) -> fuse::Time {
    fuse::Time { seconds: time.seconds, nanoseconds: time.nanoseconds }
}

fn now() -> journal::Time {
    let ns = reactor::time::system_time();
    let nanoseconds = (ns % 1_000_000_000) as u32;
    journal::Time { seconds: (ns / 1_000_000_000) as i64, nanoseconds }
}

impl Partial {
    fn new(store: &Rc<Store>, file: FileId, lower: OwnedFd, lower_stat: Stat) -> Self {
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

    /// Its attributes, as an ordinary copy would have them.
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

    /// Whether it is being made a whole file.
    pub(crate) fn is_completing(&self) -> bool {
        self.is_completing.get()
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

impl Union {
    /// Makes a new segment of the journal durable before it is full.
    pub(crate) fn flush_new_segment(&self) {
        let Some(store) = self.store.as_ref().filter(|store| store.wants_early_flush()) else {
            return;
        };
        let store = Rc::clone(store);
        drop(reactor::spawn(async move {
            if let Err(errno) = store.commit().await {
                tracing::error!(%errno, "partial copies could not be made durable");
            }
        }));
    }

    /// Makes what was recorded of partial files durable.
    pub(crate) async fn commit_partials(self: &Rc<Self>) -> Result<(), Errno> {
        let Some(store) = &self.store else { return Ok(()) };
        let parents = std::mem::take(&mut *store.parents.borrow_mut());
        let committed = store.commit().await;
        if store.is_volatile {
            return committed;
        }
        self.sync_directories(parents).await.and(committed)
    }

    /// Flushes the journal if it has recorded ends of files: with the last of these the marker goes
    /// that keeps the kernel's overlayfs away.
    pub(crate) async fn commit_ends(&self) -> Result<(), Errno> {
        match &self.store {
            Some(store) if store.take_ends() => store.commit().await,
            _ => Ok(()),
        }
    }

    /// Makes a node a partial file whose lower one is open.
    fn make_partial(&self, node: &Node, partial: Rc<Partial>) {
        self.note_lower(&partial);
        node.set_place(Place::Partial(partial));
    }

    /// Makes a node the partial file that the journal has.
    fn attach(&self, node: &Rc<Node>, file: FileId) -> Result<(), Errno> {
        let store = self.store.as_ref().ok_or(Errno::IO)?;
        let lower = self.open_lower(node)?;
        let stat = sys::stat_at(lower.as_fd(), b"")?;
        self.make_partial(node, Rc::new(Partial::new(store, file, lower, stat)));
        Ok(())
    }
}

/// Whether a name is there.
fn has_name(directory: BorrowedFd<'_>, name: &[u8]) -> Result<bool, JournalError> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(JournalError::io("looking for a work file", errno.into())),
    }
}

/// Runs a call on a descriptor that a key names, where this user may open by handle.
fn open_parent(upper: &Upper, key: &ParentKey) -> Result<OwnedFd, Errno> {
    let handle = handle_of(key).ok_or(Errno::STALE)?;
    handle.open(upper.root.as_fd()).map_err(errno_of)
}
