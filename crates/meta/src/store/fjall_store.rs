//! The embedded store: fjall, an LSM tree with a journal.
//!
//! A commit appends the batch to the journal with one `write(2)` and no flush
//! ([`PersistMode::Buffer`]): it survives the process, not the machine. A sync flushes the journal.
//! fjall has no group commit across threads; the core merges transactions into one batch itself.
//!
//! Sizes are chosen for a job's file system, which is up for hours and must start in milliseconds:
//! a restart replays the journal of what the memtable holds, so the memtable is small.
//!
//! fjall drops damaged parts of its journal in silence, and gives up for good when the disk is full.
//! [`super::chain`], [`super::watermark`] and [`super::inspect`] find the former out when a store is
//! opened; [`super::room`] avoids the latter, and where it cannot, the engine is opened anew in place.

mod engine;
mod look;

use super::chain::Head;
use super::inspect::{self, Inspection, Loss};
use super::room::Room;
use super::watermark::Watermark;
use super::{Batch, Error, Pair, Scan, Store, Syncer, privacy};
use engine::{Engine, Workers, store_error};
use look::{Look, Looked};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use uuid::Uuid;

/// How often the engine may be opened anew without a full disk as the reason.
const UNEXPLAINED_REVIVALS_MAX: u32 = 3;

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The machine's boot identifier.
    pub boot: Uuid,
    /// Open it though commits are missing.
    pub accept_loss: bool,
}

impl Opening {
    /// On this machine, with nothing missing.
    ///
    /// # Errors
    /// If the kernel does not give its boot identifier.
    pub fn here() -> std::io::Result<Opening> {
        Ok(Opening { boot: super::boot_id()?, accept_loss: false })
    }
}

/// What an intact store holds.
#[derive(Clone, Copy, Debug)]
pub struct Checked {
    /// The newest commit.
    pub head: Head,
    /// The newest commit that is known to have been synced.
    pub synced: u64,
}

/// A store in a directory of the local file system.
pub struct FjallStore {
    shared: Arc<Shared>,
    room: Room,
    /// Commits are missing, and were given up.
    has_lost: bool,
    revivals: u32,
    /// One process has a store at a time.
    _lock: File,
}

/// What the syncing thread has, too.
struct Shared {
    directory: PathBuf,
    boot: Uuid,
    /// `None` only if opening anew failed.
    engine: RwLock<Option<Engine>>,
    /// Changed while the engine's lock is held, to read too, so that they are those of one engine.
    commits: Mutex<Commits>,
    /// `None` until the first commit after a loss was accepted.
    watermark: Mutex<Option<Arc<Watermark>>>,
    /// Looks at the engine: they hold its lock, too.
    looks: Mutex<Vec<Weak<Look>>>,
}

/// Which commits an engine has to hold.
#[derive(Clone, Copy, Debug)]
struct Commits {
    newest: Head,
    /// The one after it, which is under way or was refused; it may be in the journal.
    tried: Option<Head>,
}

impl std::fmt::Debug for FjallStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallStore")
            .field("directory", &self.shared.directory)
            .finish_non_exhaustive()
    }
}

/// Takes the only right to use a store.
fn lock(directory: &Path) -> Result<File, Error> {
    let file = File::open(directory).map_err(store_error("open"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(directory.into())),
        Err(TryLockError::Error(error)) => Err(store_error("lock")(error)),
    }
}

impl FjallStore {
    /// Opens the store in `directory`, making it if there is none. One process at a time.
    ///
    /// # Errors
    /// [`Error::Lost`] if commits are missing, and any other.
    pub fn open(directory: &Path, opening: Opening) -> Result<FjallStore, Error> {
        let opened = privacy::close(directory).map_err(store_error("close to other users"))?;
        if opened > 0 {
            tracing::warn!(
                "the metadata store {} was open to other users ({opened} files and directories), who may have read the identifiers by which its job's nodes reach each other's devices; it is closed now: make the job anew if you do not trust all users of this machine",
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
        };
        let room = Room::new(directory);
        Ok(FjallStore { shared: Arc::new(shared), room, has_lost, revivals: 0, _lock: lock })
    }

    /// Looks whether anything is missing from a store that no service has open, as opening it would.
    ///
    /// # Errors
    /// [`Error::Lost`] if there is, and any other.
    pub fn check(directory: &Path, boot: Uuid) -> Result<Checked, Error> {
        FjallStore::read(directory, boot).map(|(_, checked)| checked)
    }

    /// The same, and gives the records for reading.
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

/// Goes on without what is missing, if that is possible and wanted.
fn accept(loss: &Loss, opening: Opening) -> Result<(), Error> {
    if !opening.accept_loss || !loss.can_go_on {
        return Err(Error::Lost(Box::new(loss.clone())));
    }
    tracing::error!("going on without what is missing: {loss}");
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
        // Only once the sessions are void, or the next start would not know of the loss.
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

    /// Opens an engine anew that has given up; whether it holds the commit that was tried last, too. All
    /// that was committed before has to be in the journal.
    ///
    /// # Errors
    /// [`Error::Lost`] if it is not, and any other.
    fn revive(&self, workers: Workers) -> Result<bool, Error> {
        let mut engine = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        // All of them hold the engine's own lock.
        self.end_looks();
        drop(engine.take());
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

    /// Ends all looks. The engine keeps what they see, also what was replaced since.
    fn end_looks(&self) {
        for look in std::mem::take(&mut *locked(&self.looks)) {
            look.upgrade().iter().for_each(|look| look.end());
        }
    }

    /// Looks at the records as of the last commit.
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
            findings: vec!["the engine lost commits when it was opened anew".into()],
            can_go_on: true,
        }))
    }

    /// Tries to commit; an engine that is opened anew meanwhile has the commit wholly before it or
    /// wholly after it.
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

    /// The commit that failed is in the journal all the same.
    fn adopt_tried(&self) -> Head {
        let mut commits = locked(&self.commits);
        let newest = commits.tried.unwrap_or(commits.newest);
        *commits = Commits { newest, tried: None };
        newest
    }
}

impl FjallStore {
    /// A commit failed. If that is due to a full disk, makes room from the reserve, opens the engine anew
    /// and commits once more.
    fn commit_again(&mut self, batch: &Batch, error: fjall::Error) -> Result<Head, Error> {
        let is_full = engine::is_no_space(&error) || self.room.is_low();
        let is_poisoned = matches!(error, fjall::Error::Poisoned);
        if !is_full {
            self.revivals += 1;
            if !is_poisoned || self.revivals > UNEXPLAINED_REVIVALS_MAX {
                return Err(store_error("commit a batch")(error));
            }
        }
        self.room.spend();
        tracing::warn!(%error, "the metadata store's engine has given up, and is opened anew");
        if self.shared.revive(Workers::None)? {
            return Ok(self.shared.adopt_tried());
        }
        match self.shared.try_commit(batch)? {
            Ok(head) => Ok(head),
            Err(error) if engine::is_no_space(&error) => {
                // Readers go on, and the next try finds an engine that has not given up.
                if self.shared.revive(Workers::None)? {
                    return Ok(self.shared.adopt_tried());
                }
                Err(Error::Full(self.shared.directory.clone()))
            }
            Err(error) => Err(store_error("commit a batch")(error)),
        }
    }

    /// Remembers a commit outside of the journal.
    fn note(&self, head: Head) -> Result<(), Error> {
        let mut watermark = locked(&self.shared.watermark);
        if let Some(watermark) = &*watermark {
            // On a full copy-on-write file system; then a loss may go unnoticed until the next commit.
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
        Box::new(FjallSyncer { shared: Arc::clone(&self.shared), synced: Mutex::new(None) })
    }

    fn has_room(&mut self) -> bool {
        let shared = &self.shared;
        let has_room = self.room.has_room(|| match shared.revive(Workers::Running) {
            // A commit that failed has been tried again before.
            Ok(_) => true,
            Err(error) => {
                tracing::error!(%error, "the metadata store cannot be opened anew");
                false
            }
        });
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

struct FjallSyncer {
    shared: Arc<Shared>,
    /// What was synced and is not remembered yet.
    synced: Mutex<Option<Head>>,
}

impl FjallSyncer {
    fn try_sync(&self) -> Result<Result<Head, fjall::Error>, Error> {
        self.shared.with(|engine| {
            let head = locked(&self.shared.commits).newest;
            Ok(engine.persist().map(|()| head))
        })
    }
}

impl Syncer for FjallSyncer {
    fn sync(&self) -> Result<(), Error> {
        let head = match self.try_sync()? {
            Ok(head) => head,
            // Its own thread met a full disk. What was committed is in the journal.
            Err(error @ fjall::Error::Poisoned) => {
                tracing::warn!(%error, "the metadata store's engine has given up, and is opened anew");
                self.shared.revive(Workers::None)?;
                self.try_sync()?.map_err(store_error("flush to disk"))?
            }
            Err(error) => return Err(store_error("flush to disk")(error)),
        };
        *locked(&self.synced) = Some(head);
        Ok(())
    }

    fn remember(&self) {
        let Some(head) = locked(&self.synced).take() else { return };
        let Some(watermark) = locked(&self.shared.watermark).clone() else { return };
        if let Err(error) = watermark.note_synced(head) {
            tracing::warn!(%error, "the watermark of the metadata store cannot be written");
        }
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

/// Nothing is written that could be made durable.
struct Unchanged;

impl Syncer for Unchanged {
    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
