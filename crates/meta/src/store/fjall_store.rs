//! The embedded store: fjall, an LSM tree with a journal.
//!
//! A commit appends the batch to the journal with one `write(2)` and no flush
//! ([`PersistMode::Buffer`]): it survives the process, not the machine. A sync flushes the journal.
//! fjall has no group commit across threads; the core merges transactions into one batch itself.
//!
//! Sizes are chosen for a job's file system, which is up for hours and must start in milliseconds:
//! a restart replays the journal of what the memtable holds, so the memtable is small.

use super::memory::{is_empty_range, scan_bounds};
use super::{Batch, Direction, Error, Pair, Scan, Store, Syncer};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::path::Path;

/// Block cache, in bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// Memtable size at which it is written out, in bytes.
const MEMTABLE_BYTES: u64 = 16 << 20;

/// Journals are kept to at most this, in bytes (the least that fjall takes).
const JOURNAL_BYTES: u64 = 64 << 20;

/// Threads that write out memtables and compact.
const WORKER_THREADS: usize = 1;

/// A store in a directory of the local file system.
pub struct FjallStore {
    database: Database,
    records: Keyspace,
}

impl std::fmt::Debug for FjallStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallStore").finish_non_exhaustive()
    }
}

fn store_error(operation: &'static str) -> impl Fn(fjall::Error) -> Error {
    move |source| Error::Store { operation, source: Box::new(source) }
}

impl FjallStore {
    /// Opens the store in `directory`, making it if there is none. One process at a time.
    pub fn open(directory: &Path) -> Result<FjallStore, Error> {
        let database = Database::builder(directory)
            .cache_size(CACHE_BYTES)
            .max_journaling_size(JOURNAL_BYTES)
            .worker_threads(WORKER_THREADS)
            .open()
            .map_err(store_error("open"))?;
        let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE_BYTES);
        let records = database.keyspace("records", options).map_err(store_error("open"))?;
        Ok(FjallStore { database, records })
    }
}

impl Store for FjallStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let value = self.records.get(key).map_err(store_error("read a record"))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error> {
        let (start, end) = scan_bounds(&scan);
        if is_empty_range(&start, &end) {
            return Ok(Vec::new());
        }
        let mut range = self.records.range((start, end));
        let mut found = Vec::new();
        while found.len() < scan.limit {
            let next = match scan.direction {
                Direction::Forward => range.next(),
                Direction::Backward => range.next_back(),
            };
            let Some(guard) = next else { break };
            let (key, value) = guard.into_inner().map_err(store_error("scan records"))?;
            found.push((key.to_vec(), value.to_vec()));
        }
        Ok(found)
    }

    fn commit(&mut self, batch: Batch) -> Result<(), Error> {
        let mut writes = self.database.batch().durability(Some(PersistMode::Buffer));
        for (key, value) in batch.writes {
            match value {
                Some(value) => writes.insert(&self.records, key, value),
                None => writes.remove(&self.records, key),
            }
        }
        writes.commit().map_err(store_error("commit a batch"))
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        Box::new(FjallSyncer { database: self.database.clone() })
    }
}

struct FjallSyncer {
    database: Database,
}

impl Syncer for FjallSyncer {
    fn sync(&self) -> Result<(), Error> {
        self.database.persist(PersistMode::SyncAll).map_err(store_error("flush to disk"))
    }
}
