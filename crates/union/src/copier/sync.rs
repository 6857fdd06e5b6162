//! Making files durable, many at a time.
//!
//! In general each file has its own sync: first all data goes to the device, with no commit of the file
//! system's journal between; then all sync at once, so that they find themselves in one commit and wait
//! for the same flush of the disk.
//!
//! Where it is known that a commit of the file system's journal makes everything durable that came
//! before it ([`Way::Commit`]; [`crate::layers`] says which file systems these are), data is written to
//! the device and waited for, and then one commit stands for all files, and for the names in all
//! directories. Whoever comes while a commit goes on waits for the next one, over all unions.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use ring::local::{Notify, Semaphore};
use ring::{File, Op};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;

use crate::commit::errno_of;

/// Syncs of files that are in flight at a time over all orders.
const SYNCS_MAX: usize = 256;

/// What is to be durable of a file.
#[derive(Debug, Clone)]
pub(crate) enum ToSync {
    /// A file's data and attributes.
    File(File),
    /// A file's data, with what is needed to read it.
    Data(File),
    /// The names in a directory.
    Names(File),
}

/// How files of a file system become durable.
#[derive(Debug, Clone)]
pub(crate) enum Way {
    /// Each by its own sync.
    Each,
    /// All by one commit of the file system's journal.
    Commit {
        /// The file system's device number.
        device: u64,
        /// A directory there whose times mean nothing.
        mark: File,
    },
}

impl Way {
    /// Whether files of both become durable together.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Each, Self::Each) => true,
            (Self::Commit { device, .. }, Self::Commit { device: other, .. }) => device == other,
            _ => false,
        }
    }
}

/// How far it is to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Until a name that is given afterwards can only be durable together with the file: where a commit
    /// of the journal stands for all before it, the data need only have been written.
    Nameable,
    /// Until it is durable.
    Durable,
}

impl ToSync {
    /// Writes the data to the device and waits for it. A directory's is in the journal.
    fn write_back(&self) -> Option<Op<std::io::Result<()>>> {
        match self {
            Self::File(file) | Self::Data(file) => Some(file.write_back()),
            Self::Names(_) => None,
        }
    }
}

/// The syncs of a thread.
pub(super) struct Syncs {
    room: Semaphore,
    file_systems: RefCell<HashMap<u64, Rc<Commits>>>,
}

impl Default for Syncs {
    fn default() -> Self {
        Self { room: Semaphore::new(SYNCS_MAX), file_systems: RefCell::default() }
    }
}

impl Syncs {
    /// Makes files durable. An error of writing data back is one of the sync: it is told once.
    pub(super) async fn sync(
        &self,
        files: &[ToSync],
        way: &Way,
        goal: Goal,
    ) -> Vec<Result<(), Errno>> {
        let permit = self.room.acquire(files.len().min(SYNCS_MAX)).await;
        let Way::Commit { device, mark } = way else { return sync_each(files).await };
        let mut results = finish(files.iter().map(ToSync::write_back).collect()).await;
        drop(permit);
        if goal == Goal::Durable {
            let commits = Rc::clone(self.file_systems.borrow_mut().entry(*device).or_default());
            let committed = commits.commit(mark).await;
            for result in &mut results {
                *result = result.and(committed);
            }
        }
        results
    }
}

async fn sync_each(files: &[ToSync]) -> Vec<Result<(), Errno>> {
    // An operation goes out when it is made: all of them, before the first is waited for.
    let first = |file: &ToSync| match file {
        ToSync::File(file) => Some(file.write_back()),
        ToSync::Data(file) => Some(file.sync_data()),
        ToSync::Names(file) => Some(file.sync_all()),
    };
    let second = |file: &ToSync| match file {
        ToSync::File(file) => Some(file.sync_all()),
        ToSync::Data(_) | ToSync::Names(_) => None,
    };
    let written = finish(files.iter().map(first).collect()).await;
    let synced = finish(files.iter().map(second).collect()).await;
    written.into_iter().zip(synced).map(|(written, synced)| written.and(synced)).collect()
}

/// Waits for operations that have gone out.
async fn finish(operations: Vec<Option<Op<std::io::Result<()>>>>) -> Vec<Result<(), Errno>> {
    let mut results = Vec::with_capacity(operations.len());
    for operation in operations {
        results.push(match operation {
            Some(operation) => operation.await.map_err(errno_of),
            None => Ok(()),
        });
    }
    results
}

/// The commits of one file system.
#[derive(Default)]
struct Commits {
    is_running: Cell<bool>,
    /// The one that has not begun.
    next: RefCell<Rc<Round>>,
    ended: Notify,
}

/// A commit, and what it came to.
#[derive(Default)]
struct Round {
    outcome: Cell<Option<Result<(), Errno>>>,
}

impl Commits {
    /// Makes everything durable that was done before the call.
    async fn commit(&self, mark: &File) -> Result<(), Errno> {
        let round = Rc::clone(&self.next.borrow());
        loop {
            if let Some(outcome) = round.outcome.get() {
                return outcome;
            }
            if self.is_running.replace(true) {
                self.ended.notified().await;
                continue;
            }
            // Who comes from now on waits for the one after this.
            self.next.replace(Rc::default());
            round.outcome.set(Some(commit_by(mark).await));
            self.is_running.set(false);
            self.ended.notify();
        }
    }
}

/// Has the journal committed: a directory that was changed just now belongs to the transaction that is
/// open, and so its sync waits for that one, which comes after all others.
async fn commit_by(mark: &File) -> Result<(), Errno> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    rustix::fs::futimens(mark.handle().as_fd().map_err(errno_of)?, &times)?;
    mark.sync_all().await.map_err(errno_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::{Config, Handle, Runtime};

    // Goal: a commit stands for those who came before it began, and for nobody who came later: these
    // share the next one.
    #[test]
    fn who_comes_later_waits_for_the_next_commit() {
        let directory = tempfile::tempdir().unwrap();
        let mark = std::fs::File::open(directory.path()).unwrap();
        let mark = File::from_handle(Handle::from_fd(mark.into()));
        let commits = Rc::new(Commits::default());
        Runtime::new(&Config::default()).unwrap().block_on(async {
            let ask = || {
                let (commits, mark) = (Rc::clone(&commits), mark.clone());
                ring::spawn(async move { commits.commit(&mark).await })
            };
            let first_round = Rc::clone(&commits.next.borrow());
            let first = ask();
            ring::yield_now().await;
            assert!(commits.is_running.get());
            let next_round = Rc::clone(&commits.next.borrow());
            assert!(!Rc::ptr_eq(&first_round, &next_round));
            let (second, third) = (ask(), ask());
            assert_eq!(first.await.unwrap(), Ok(()));
            assert_eq!(first_round.outcome.get(), Some(Ok(())));
            assert_eq!(next_round.outcome.get(), None, "it stands for what came later");
            assert_eq!((second.await.unwrap(), third.await.unwrap()), (Ok(()), Ok(())));
            assert_eq!(next_round.outcome.get(), Some(Ok(())));
            assert!(!Rc::ptr_eq(&next_round, &commits.next.borrow()));
            assert_eq!(commits.next.borrow().outcome.get(), None, "two commits were enough");
        });
    }
}
