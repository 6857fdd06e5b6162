//! Opening a journal at a mount: recovering it, and comparing it with what the upper directory
//! shows.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::error::UnionError;
use crate::format::Prefix;
use crate::journal::{self, Directory, FileId, Journal, JournalError, Name, Stage};
use crate::layers::Upper;
use crate::options::Options;

use super::fill_name;
use super::keys::has_name;
use super::names::{self, Shown};

/// How long the end of the process that has the journal is waited for.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(5);
const LOCK_WAIT_STEP: Duration = Duration::from_millis(20);

/// A journal that was opened and recovered. This takes long and may be done on any thread.
#[derive(Debug)]
pub(crate) struct Recovered {
    pub(super) journal: Journal<Directory>,
    /// Files that an earlier process ended; the end may not be durable.
    pub(super) ended: Vec<FileId>,
}

impl Recovered {
    /// Opens the journal of a work directory, recovering what is there. Waits for a process that is
    /// about to give it up.
    pub(crate) fn open(
        upper: &Upper,
        prefix: Prefix,
        options: &Options,
        is_inherited: bool,
    ) -> Result<Self, UnionError> {
        let path = options.work.clone().unwrap_or_default();
        Self::recover(upper, prefix, options, is_inherited)
            .map_err(|source| UnionError::Journal { path, source })
    }

    /// Returns whether a work file that a mount finds is one that filling goes on with.
    pub(crate) fn is_filling(&self, work_name: &[u8]) -> bool {
        let is_its = |file| fill_name(&self.journal, file).as_bytes() == work_name;
        self.journal.files().any(|(file, _)| is_its(file) && !self.ended.contains(&file))
    }

    /// Returns whether there is room for records already.
    pub(crate) fn has_segments(&self) -> bool {
        self.journal.usage().segments > 0
    }

    fn recover(
        upper: &Upper,
        prefix: Prefix,
        options: &Options,
        is_inherited: bool,
    ) -> Result<Self, JournalError> {
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
        let mut shown = names::Shown::of(upper, prefix);
        let mut ended = settle(&mut journal, upper, &mut shown)?;
        ended.extend(names::find_stale(&journal, &mut shown)?);
        if !is_inherited {
            ended.drain(..).try_for_each(|file| journal.drop_file(file))?;
        }
        Ok(Self { journal, ended })
    }
}

/// Revokes publications that a crash has interrupted. Returns the files that have their names.
///
/// A file has its name if the work file is gone *and* the upper directory shows something under the
/// name. Without a work file and a name, a loss of power came between the journal's record, whose
/// bytes may reach the disk at any time, and the file system's own, by which the work file exists
/// at all.
fn settle(
    journal: &mut Journal<Directory>,
    upper: &Upper,
    shown: &mut Shown<'_>,
) -> Result<Vec<FileId>, JournalError> {
    let (mut back, mut published) = (Vec::new(), Vec::new());
    for (file, copy_up) in journal.files() {
        let Stage::Publishing(work) = copy_up.stage() else { continue };
        let hides = |name: &Name| shown.hides(name);
        let is_at_work = has_name(upper.pending.as_fd(), work)?;
        if is_at_work || !copy_up.names().first().map_or(Ok(true), hides)? {
            back.push(file);
        } else {
            published.push(file);
        }
    }
    for file in back {
        journal.unpublish(file)?;
        // Before the work file goes.
        journal.sync()?;
    }
    Ok(published)
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
