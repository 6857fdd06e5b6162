//! Making files durable, many at a time.
//!
//! In general each file has its own sync: first all data goes to the device, with no commit of the
//! file system's journal between; then all sync at once, so that they end up in one commit and wait
//! for the same flush of the disk. They go in rounds: a request that arrives during a round waits
//! for the next one, over all unions. Otherwise a flush would always be in progress, and data would
//! have to wait for it.
//!
//! Where it is known that a commit of the file system's journal makes everything durable that came
//! before it ([`SyncMethod::Commit`]; [`crate::layers`] says which file systems these are), data is
//! written to the device and waited for, and then one commit covers all files and the names in all
//! directories. A request that arrives during a commit waits for the next one, over all unions.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use reactor::local::{Notify, Semaphore};
use reactor::{File, Op};
use rustix::fs::{Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;

use crate::sys::errno_of;

/// Syncs of files that are in flight at a time over all orders.
const SYNCS_MAX: usize = 512;

/// The part of a file that must become durable.
#[derive(Debug, Clone)]
pub(crate) enum ToSync {
    /// A file's data and attributes.
    File(File),
    /// A file's data, with the metadata that reading it needs.
    Data(File),
    /// The names in a directory.
    Names(File),
    /// All names and attributes of the file system of a directory; alone in its order.
    FileSystem(File),
}

/// How files of a file system become durable.
#[derive(Debug, Clone)]
pub(crate) enum SyncMethod {
    /// Each by its own sync.
    Each {
        /// The file system's device number.
        device: u64,
    },
    /// All by one commit of the file system's journal.
    Commit {
        /// The file system's device number.
        device: u64,
        /// A directory there whose times mean nothing.
        mark: File,
    },
}

impl SyncMethod {
    /// Returns whether files of both become durable together.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Each { device }, Self::Each { device: other })
            | (Self::Commit { device, .. }, Self::Commit { device: other, .. }) => device == other,
            _ => false,
        }
    }
}

/// The goal of a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// A name that is given afterwards becomes durable only together with the file. Where a commit
    /// of the journal covers everything before it, the data need only be written.
    Nameable,
    /// The file is durable.
    Durable,
}

impl ToSync {
    /// Writes the data to the device and waits for it. A directory's is in the journal.
    fn write_back(&self) -> Option<Op<std::io::Result<()>>> {
        match self {
            Self::File(file) | Self::Data(file) => Some(file.write_back()),
            Self::Names(_) | Self::FileSystem(_) => None,
        }
    }
}

/// The syncs of a thread.
pub(super) struct Syncs {
    room: Semaphore,
    file_systems: RefCell<HashMap<u64, Rc<FileSystem>>>,
}

/// Those of one file system.
#[derive(Default)]
struct FileSystem {
    commits: Commits,
    /// Syncs of all of it.
    wholes: Commits,
    rounds: Rounds,
}

impl Default for Syncs {
    fn default() -> Self {
        Self { room: Semaphore::new(SYNCS_MAX), file_systems: RefCell::default() }
    }
}

impl Syncs {
    /// Makes files durable. An error of writing data back is one of the sync: it is reported once.
    pub(super) async fn sync(
        &self,
        files: &[ToSync],
        method: &SyncMethod,
        goal: Goal,
    ) -> Vec<Result<(), Errno>> {
        let permit = self.room.acquire(files.len().min(SYNCS_MAX)).await;
        let (device, mark) = match method {
            SyncMethod::Each { device } => {
                let file_system = self.file_system(*device);
                if let [ToSync::FileSystem(root)] = files {
                    return vec![file_system.wholes.commit(async || sync_whole(root).await).await];
                }
                return sync_each(files, &file_system.rounds).await;
            }
            SyncMethod::Commit { device, mark } => (device, mark),
        };
        let mut results = finish(files.iter().map(ToSync::write_back).collect()).await;
        drop(permit);
        if goal == Goal::Durable {
            let committed =
                self.file_system(*device).commits.commit(async || commit_by(mark).await).await;
            for result in &mut results {
                *result = result.and(committed);
            }
        }
        results
    }

    fn file_system(&self, device: u64) -> Rc<FileSystem> {
        Rc::clone(self.file_systems.borrow_mut().entry(device).or_default())
    }
}

async fn sync_each(files: &[ToSync], rounds: &Rounds) -> Vec<Result<(), Errno>> {
    // An operation goes out when it is made: all of them, before the first is waited for.
    let first = |file: &ToSync| match file {
        ToSync::File(file) => Some(file.write_back()),
        ToSync::Data(file) => Some(file.sync_data()),
        ToSync::Names(_) | ToSync::FileSystem(_) => None,
    };
    let second = |file: &ToSync| match file {
        ToSync::File(file) | ToSync::Names(file) | ToSync::FileSystem(file) => Some(file.clone()),
        ToSync::Data(_) => None,
    };
    let mut results = finish(files.iter().map(first).collect()).await;
    let mut synced = rounds.sync(files.iter().filter_map(second)).await.into_iter();
    for (result, _) in results.iter_mut().zip(files).filter(|(_, file)| second(file).is_some()) {
        *result = result.and(synced.next().unwrap_or(Err(Errno::IO)));
    }
    results
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

/// Rounds of syncs, where each sync covers one file only.
#[derive(Default)]
struct Rounds {
    is_running: Cell<bool>,
    /// The one that has not begun.
    next: RefCell<Rc<Round>>,
    ended: Notify,
}

/// Files that are synced together, and the outcome.
#[derive(Default)]
struct Round {
    files: RefCell<Vec<File>>,
    outcomes: RefCell<Option<Vec<Result<(), Errno>>>>,
}

impl Rounds {
    /// Syncs files, together with those of all requests that arrive before it starts.
    async fn sync(&self, files: impl Iterator<Item = File>) -> Vec<Result<(), Errno>> {
        let round = Rc::clone(&self.next.borrow());
        let first = round.files.borrow().len();
        round.files.borrow_mut().extend(files);
        let own = first..round.files.borrow().len();
        if own.is_empty() {
            return Vec::new();
        }
        loop {
            if let Some(outcomes) = &*round.outcomes.borrow() {
                return outcomes[own].to_vec();
            }
            if self.is_running.replace(true) {
                self.ended.notified().await;
                continue;
            }
            self.next.replace(Rc::default());
            let files = round.files.take();
            let outcomes = finish(files.iter().map(|file| Some(file.sync_all())).collect()).await;
            *round.outcomes.borrow_mut() = Some(outcomes);
            self.is_running.set(false);
            self.ended.notify();
        }
    }
}

/// The commits of one file system.
#[derive(Default)]
struct Commits {
    is_running: Cell<bool>,
    /// The one that has not begun.
    next: RefCell<Rc<Commit>>,
    ended: Notify,
}

/// A commit and its outcome.
#[derive(Default)]
struct Commit {
    outcome: Cell<Option<Result<(), Errno>>>,
}

impl Commits {
    /// Makes everything durable that was done before the call.
    async fn commit(&self, act: impl AsyncFn() -> Result<(), Errno>) -> Result<(), Errno> {
        let round = Rc::clone(&self.next.borrow());
        loop {
            if let Some(outcome) = round.outcome.get() {
                return outcome;
            }
            if self.is_running.replace(true) {
                self.ended.notified().await;
                continue;
            }
            // Callers that come from now on wait for the next commit.
            self.next.replace(Rc::default());
            round.outcome.set(Some(act().await));
            self.is_running.set(false);
            self.ended.notify();
        }
    }
}

/// syncfs(2) on a thread of its own, since it may take seconds.
async fn sync_whole(root: &File) -> Result<(), Errno> {
    let root = root.clone();
    let config = reactor::Config { entries: 8, ..reactor::Config::default() };
    let sync = move || async move { rustix::fs::syncfs(root.handle().as_fd().map_err(errno_of)?) };
    let thread = reactor::thread::spawn("syncfs", &config, sync).map_err(errno_of)?;
    thread.await.unwrap_or(Err(Errno::IO))
}

/// Forces a commit of the journal. A directory that was changed just now belongs to the open
/// transaction, so its sync waits for the commit of that transaction, which follows all others.
async fn commit_by(mark: &File) -> Result<(), Errno> {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    rustix::fs::futimens(mark.handle().as_fd().map_err(errno_of)?, &times)?;
    mark.sync_all().await.map_err(errno_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::{Config, Handle, Runtime};

    // Goal: a commit covers the callers that came before it began, and no later ones; these share
    // the next one.
    #[test]
    fn later_callers_wait_for_the_next_commit() {
        let directory = tempfile::tempdir().unwrap();
        let mark = std::fs::File::open(directory.path()).unwrap();
        let mark = File::from_handle(Handle::from_fd(mark.into()));
        let commits = Rc::new(Commits::default());
        Runtime::new(&Config::default()).unwrap().block_on(async {
            let ask = || {
                let (commits, mark) = (Rc::clone(&commits), mark.clone());
                reactor::spawn(async move { commits.commit(async || commit_by(&mark).await).await })
            };
            let first_round = Rc::clone(&commits.next.borrow());
            let first = ask();
            reactor::yield_now().await;
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

    // Goal: files that come during a round are synced together in the next one, and each caller
    // gets the errors of its own files.
    #[test]
    fn callers_during_a_round_share_the_next_one() {
        let file = || File::from_handle(Handle::from_fd(tempfile::tempfile().unwrap().into()));
        // A pipe cannot be synced.
        let pipe = || File::from_handle(Handle::from_fd(rustix::pipe::pipe().unwrap().0));
        let rounds = Rc::new(Rounds::default());
        Runtime::new(&Config::default()).unwrap().block_on(async {
            let ask = |files: Vec<File>| {
                let rounds = Rc::clone(&rounds);
                reactor::spawn(async move { rounds.sync(files.into_iter()).await })
            };
            let first = ask(vec![file(), pipe()]);
            reactor::yield_now().await;
            assert!(rounds.is_running.get());
            let next = Rc::clone(&rounds.next.borrow());
            let (second, third) = (ask(vec![pipe()]), ask(vec![file(), file()]));
            reactor::yield_now().await;
            assert_eq!(next.files.borrow().len(), 3, "they wait for the same round");
            assert!(rounds.sync(std::iter::empty()).await.is_empty(), "it waits for nothing");
            assert_eq!(first.await.unwrap(), [Ok(()), Err(Errno::INVAL)]);
            assert_eq!(second.await.unwrap(), [Err(Errno::INVAL)]);
            assert_eq!(third.await.unwrap(), [Ok(()), Ok(())]);
            assert!(!rounds.is_running.get());
            assert!(!Rc::ptr_eq(&next, &rounds.next.borrow()), "one round was enough");
            assert!(rounds.next.borrow().files.borrow().is_empty());
        });
    }
}
