//! The embedded store: fjall, an LSM tree with a journal.
//!
//! A commit appends the batch to the journal with one `write(2)` and no flush
//! ([`fjall::PersistMode::Buffer`]): it survives the process, not the machine. A sync flushes the journal.
//! fjall has no group commit across threads; the core merges transactions into one batch itself.
//!
//! Sizes are chosen for a job's file system, which lives for hours and must start in milliseconds.
//! A restart replays the journal of everything in the memtable, so the memtable is small.
//!
//! fjall drops damaged parts of its journal without a message, and stops for good when the disk is
//! full. When a store is opened, [`super::chain`], [`super::watermark`] and [`super::inspect`]
//! detect the former. [`super::room`] avoids the latter; where it cannot, the store reopens the
//! engine in place.

mod engine;
mod look;
mod syncer;
mod unsynced;

use super::chain::Head;
use super::inspect::{self, Inspection, Loss};
use super::room::{self, Room};
use super::watermark::Watermark;
use super::{Batch, Error, Pair, Scan, Store, Syncer, privacy};
use engine::{Engine, Workers, store_error};
use look::{Look, Looked};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use syncer::FjallSyncer;
use uuid::Uuid;

/// How often the engine may be reopened without a full disk as the reason.
const UNEXPLAINED_REVIVALS_MAX: u32 = 3;

/// Settings for opening a store.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The machine's boot identifier.
    pub boot: Uuid,
    /// Open it even if commits are missing.
    pub accept_loss: bool,
}

impl Opening {
    /// Returns the settings for this machine, without accepting losses.
    ///
    /// # Errors
    /// If the kernel does not give its boot identifier.
    pub fn here() -> std::io::Result<Opening> {
        Ok(Opening { boot: super::boot_id()?, accept_loss: false })
    }
}

/// The newest commits of an intact store.
#[derive(Clone, Copy, Debug)]
pub struct Checked {
    /// The newest commit.
    pub head: Head,
    /// The newest commit that is known to be synced.
    pub synced: u64,
}

/// A store in a directory of the local file system.
pub struct FjallStore {
    shared: Arc<Shared>,
    room: Room,
    /// Commits were missing, and were given up.
    has_lost: bool,
    /// Lets only one process have the store open at a time.
    _lock: File,
}

/// The part that the syncing thread shares.
struct Shared {
    directory: PathBuf,
    boot: Uuid,
    /// `None` only if reopening failed.
    engine: RwLock<Option<Engine>>,
    /// Changed only under the engine's lock (for reading is enough), so that they belong to one
    /// engine.
    commits: Mutex<Commits>,
    /// `None` until the first commit after an accepted loss.
    watermark: Mutex<Option<Arc<Watermark>>>,
    /// Snapshots, which hold the engine's lock, too.
    looks: Mutex<Vec<Weak<Look>>>,
    /// Number of times that the engine stopped without a full disk as the reason.
    unexplained: AtomicU32,
}

/// The commits that an engine must contain.
#[derive(Clone, Copy, Debug)]
struct Commits {
    newest: Head,
    /// The next commit, which is under way or was refused; it may be in the journal.
    tried: Option<Head>,
}

impl std::fmt::Debug for FjallStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallStore")
            .field("directory", &self.shared.directory)
            .finish_non_exhaustive()
    }
}

/// Takes the exclusive right to use a store.
fn lock(directory: &Path) -> Result<File, Error> {
    let file = File::open(directory).map_err(store_error("open"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(directory.into())),
        Err(TryLockError::Error(error)) => Err(store_error("lock")(error)),
    }
}

impl FjallStore {
    /// Opens the store in `directory`; creates it if there is none. One process at a time.
    ///
    /// # Errors
    /// [`Error::Lost`] if commits are missing, and any other.
    pub fn open(directory: &Path, opening: Opening) -> Result<FjallStore, Error> {
        let opened = privacy::close(directory).map_err(store_error("close to other users"))?;
        if opened > 0 {
            tracing::warn!(
                "the metadata store {} was open to other users ({opened} files and directories), who may have read the identifiers by which its job's nodes reach each other's devices; it is closed now: start a new job if you do not trust all users of this machine",
                directory.display()
            );
        }
        let lock = lock(directory)?;
        let inspection = inspect::inspect(directory, opening.boot)?;
        let mut has_lost = false;
        if let Some(loss) = &inspection.loss {
            accept(loss, opening)?;
            has_lost = true;
        }
        inspection.cut().map_err(store_error("cut the journal"))?;
        let mut engine = Engine::open(directory, Workers::Running)?;
        let head = engine.head()?;
        let in_tables = engine.number_in_tables();
        let after = inspection.compare_opened(directory, opening.boot, head, in_tables);
        if !has_lost && let Some(loss) = &after {
            accept(loss, opening)?;
            has_lost = true;
        }
        if unsynced::is_marked(directory) {
            engine = unsynced::rewrite(directory, engine)?;
        }
        let head = match head {
            Some(head) => head,
            None => engine.begin_chain()?,
        };
        let watermark =
            start_watermark(directory, opening.boot, &inspection, &engine, head, has_lost)?;
        let shared = Shared {
            directory: directory.into(),
            boot: opening.boot,
            engine: RwLock::new(Some(engine)),
            commits: Mutex::new(Commits { newest: head, tried: None }),
            watermark: Mutex::new(watermark.map(Arc::new)),
            looks: Mutex::default(),
            unexplained: AtomicU32::new(0),
        };
        let room = Room::new(directory);
        Ok(FjallStore { shared: Arc::new(shared), room, has_lost, _lock: lock })
    }

    /// Checks that nothing is missing from a store that no service has open, as opening it would.
    ///
    /// # Errors
    /// [`Error::Lost`] if something is missing, and any other.
    pub fn check(directory: &Path, boot: Uuid) -> Result<Checked, Error> {
        FjallStore::read(directory, boot).map(|(_, checked)| checked)
    }

    /// As [`FjallStore::check`], but returns the records for reading as well.
    ///
    /// # Errors
    /// [`Error::Lost`] if anything is missing, and any other.
    pub(crate) fn read(directory: &Path, boot: Uuid) -> Result<(Box<dyn Store>, Checked), Error> {
        let lock = lock(directory)?;
        let inspection = inspect::inspect(directory, boot)?;
        if let Some(loss) = inspection.loss {
            return Err(Error::Lost(Box::new(loss)));
        }
        if !inspection.exists {
            return Err(Error::NoStore(directory.into()));
        }
        let engine = Engine::open(directory, Workers::None)?;
        let head = engine.head()?;
        let in_tables = engine.number_in_tables();
        if let Some(loss) = inspection.compare_opened(directory, boot, head, in_tables) {
            return Err(Error::Lost(Box::new(loss)));
        }
        let synced = inspection.recorded.and_then(|recorded| recorded.synced);
        let synced = synced.map_or(0, |mark| mark.head.sequence);
        let checked = Checked { head: head.unwrap_or_default(), synced };
        Ok((Box::new(Reader { engine, _lock: lock }), checked))
    }
}

/// Accepts the loss, if that is possible and wanted.
fn accept(loss: &Loss, opening: Opening) -> Result<(), Error> {
    if !opening.accept_loss || !loss.can_go_on {
        return Err(Error::Lost(Box::new(loss.clone())));
    }
    tracing::error!("continuing without the missing commits: {loss}");
    Ok(())
}

fn start_watermark(
    directory: &Path,
    boot: Uuid,
    inspection: &Inspection,
    engine: &Engine,
    head: Head,
    has_lost: bool,
) -> Result<Option<Watermark>, Error> {
    let failed = store_error("write the watermark");
    let watermark = match inspection.recorded {
        // Written only once the sessions are void, because otherwise the next start would not
        // detect the loss.
        _ if has_lost => return Ok(None),
        Some(recorded) => Watermark::open(directory, boot, &recorded),
        None => {
            engine.persist().map_err(store_error("flush to disk"))?;
            Watermark::create(directory, boot, head)
        }
    }
    .map_err(&failed)?;
    watermark.note_commit(head).map_err(&failed)?;
    Ok(Some(watermark))
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Each change is complete in itself.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn with<T>(&self, run: impl FnOnce(&Engine) -> Result<T, Error>) -> Result<T, Error> {
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        engine.as_ref().map_or(Err(Error::Poisoned), run)
    }

    /// Reopens an engine that has stopped. Returns whether the journal contains the commit that was
    /// tried last, too. All earlier commits must be in the journal.
    ///
    /// # Errors
    /// [`Error::Lost`] if they are not, and any other.
    fn revive(&self, workers: Workers) -> Result<bool, Error> {
        let mut engine = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        // All of them hold the engine's own lock.
        self.end_looks();
        if let Some(stopped) = engine.take() {
            stopped.witness().check().map_err(|error| self.not_synced(error))?;
        }
        let opened = Engine::open(&self.directory, workers)?;
        let there = opened.head()?.unwrap_or_default();
        // No commit is under way while the engine's lock is held.
        let commits = *locked(&self.commits);
        let has_tried = commits.tried == Some(there);
        if there != commits.newest && !has_tried {
            return Err(self.lost(there, commits.newest));
        }
        *engine = Some(opened);
        Ok(has_tried)
    }

    /// Marks the journal after a failed sync, and returns the error that ends the service.
    fn not_synced<E: std::error::Error + Send + Sync + 'static>(&self, error: E) -> Error {
        unsynced::mark(&self.directory, &error);
        store_error("flush to disk")(error)
    }

    /// Counts a stop of the engine without a full disk as the reason; returns whether it may be
    /// reopened.
    fn may_revive(&self) -> bool {
        self.unexplained.fetch_add(1, Ordering::Relaxed) < UNEXPLAINED_REVIVALS_MAX
    }

    fn has_workers(&self) -> bool {
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        engine.as_ref().is_some_and(Engine::has_workers)
    }

    /// Ends all snapshots. For them the engine keeps records that have been replaced since.
    fn end_looks(&self) {
        for look in std::mem::take(&mut *locked(&self.looks)) {
            look.upgrade().iter().for_each(|look| look.end());
        }
    }

    /// Takes a snapshot of the records as of the last commit.
    fn look(&self) -> Result<Arc<Look>, Error> {
        self.with(|engine| {
            let look = Arc::new(Look::new(engine));
            let mut looks = locked(&self.looks);
            looks.retain(|look| look.strong_count() > 0);
            looks.push(Arc::downgrade(&look));
            Ok(look)
        })
    }

    fn lost(&self, head: Head, expected: Head) -> Error {
        Error::Lost(Box::new(Loss {
            directory: self.directory.clone(),
            last: Some(head),
            expected: Some(expected),
            findings: vec!["the engine lost commits when it was reopened".into()],
            can_go_on: true,
        }))
    }

    /// Tries to commit. If the engine is reopened meanwhile, that happens either before or after
    /// the whole commit.
    fn try_commit(&self, batch: &Batch) -> Result<Result<Head, fjall::Error>, Error> {
        self.with(|engine| {
            let newest = locked(&self.commits).newest;
            let writes = batch.writes.iter().map(|(key, value)| (key.as_slice(), value.as_deref()));
            let head = newest.next(writes, engine.next_number(), reactor::time::system_time());
            *locked(&self.commits) = Commits { newest, tried: Some(head) };
            let committed = engine.commit(batch, &head);
            if committed.is_ok() {
                *locked(&self.commits) = Commits { newest: head, tried: None };
            }
            Ok(committed.map(|()| head))
        })
    }

    /// Takes over the commit that failed, because it is in the journal after all.
    fn adopt_tried(&self) -> Head {
        let mut commits = locked(&self.commits);
        let newest = commits.tried.unwrap_or(commits.newest);
        *commits = Commits { newest, tried: None };
        newest
    }
}

impl FjallStore {
    /// Handles a failed commit. If the disk is full, it makes room from the reserve, reopens the
    /// engine and commits once more.
    fn commit_again(&mut self, batch: &Batch, error: fjall::Error) -> Result<Head, Error> {
        let is_full = engine::is_no_space(&error) || self.room.is_low();
        let is_poisoned = matches!(error, fjall::Error::Poisoned);
        if !is_full && is_poisoned && !self.shared.may_revive() {
            return Err(self.shared.not_synced(error));
        }
        if !is_full && !is_poisoned {
            return Err(store_error("commit a batch")(error));
        }
        self.room.spend();
        tracing::warn!(%error, "the metadata store's engine has stopped and is being reopened");
        if self.shared.revive(Workers::None)? {
            return Ok(self.shared.adopt_tried());
        }
        match self.shared.try_commit(batch)? {
            Ok(head) => Ok(head),
            Err(error) if engine::is_no_space(&error) => {
                // Reads continue, and the next attempt finds an engine that has not stopped.
                if self.shared.revive(Workers::None)? {
                    return Ok(self.shared.adopt_tried());
                }
                Err(Error::Full(self.shared.directory.clone()))
            }
            Err(error) => Err(store_error("commit a batch")(error)),
        }
    }

    /// Records a commit outside of the journal.
    fn note(&self, head: Head) -> Result<(), Error> {
        let mut watermark = locked(&self.shared.watermark);
        if let Some(watermark) = &*watermark {
            // This happens on a full copy-on-write file system; a loss may then stay undetected
            // until the next commit.
            if let Err(error) = watermark.note_commit(head) {
                tracing::warn!(%error, "the watermark of the metadata store cannot be written");
            }
            return Ok(());
        }
        self.shared.with(|engine| engine.persist().map_err(store_error("flush to disk")))?;
        let (directory, boot) = (&self.shared.directory, self.shared.boot);
        let created = Watermark::create(directory, boot, head);
        *watermark = Some(Arc::new(created.map_err(store_error("write the watermark"))?));
        Ok(())
    }
}

impl Store for FjallStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.shared.with(|engine| engine.get(key))
    }

    fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error> {
        self.shared.with(|engine| engine.scan(&scan))
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        let head = match self.shared.try_commit(batch)? {
            Ok(head) => head,
            Err(error) => self.commit_again(batch, error)?,
        };
        self.room.note_written(batch.bytes());
        self.note(head)
    }

    fn snapshot(&self) -> Result<Option<Box<dyn Store>>, Error> {
        Ok(Some(Box::new(Looked(self.shared.look()?))))
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        Box::new(FjallSyncer::new(&self.shared))
    }

    fn has_room(&mut self) -> bool {
        let shared = &self.shared;
        let reopen = || match shared.revive(Workers::Running) {
            // A failed commit has been tried again before.
            Ok(_) => true,
            Err(error) => {
                tracing::error!(%error, "the metadata store cannot be reopened");
                false
            }
        };
        let has_workers = || shared.has_workers();
        let has_room = self.room.has_room(has_workers, reopen);
        if !has_room {
            shared.end_looks();
        }
        has_room
    }

    fn has_plenty(&self) -> bool {
        self.room.has_plenty()
    }

    fn has_lost(&self) -> bool {
        self.has_lost
    }
}

/// The records of a store that no service has open.
struct Reader {
    engine: Engine,
    _lock: File,
}

impl Store for Reader {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.engine.get(key)
    }

    fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error> {
        self.engine.scan(&scan)
    }

    fn commit(&mut self, _: &Batch) -> Result<(), Error> {
        Err(Error::Poisoned)
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        Box::new(Unchanged)
    }
}

/// A syncer that does nothing, because nothing is written.
struct Unchanged;

impl Syncer for Unchanged {
    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
