//! The engine as the store uses it: one keyspace, written by batches with the head of the chain.

use super::unsynced::{self, Witness};
use crate::store::chain::{self, Head};
use crate::store::memory::{is_empty_range, scan_bounds};
use crate::store::{Batch, Direction, Error, Pair, Scan};
use fjall::{AbstractTree, Database, Keyspace, KeyspaceCreateOptions, LsmError, PersistMode};
use reactor::Sparse;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Block cache, in bytes.
const CACHE_BYTES: u64 = 64 << 20;

/// Size of the memtable at which it is written out, in bytes.
const MEMTABLE_BYTES: u64 = 16 << 20;

/// Most memtables that wait to be written out. At four the engine would hold back commits.
const SEALED_MAX: usize = 3;

/// Size of the memtable at which a warning is due, in bytes.
const LATE_BYTES: u64 = 4 * MEMTABLE_BYTES;

/// Limits warnings about records that are not written out.
static LATE: Sparse = Sparse::new();

/// Interval between looks at the worker while its work is awaited.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Largest total size of the journals, in bytes (the least that fjall takes).
const JOURNAL_BYTES: u64 = 64 << 20;

/// Attempts to open an engine that is locked; the engine itself waits 200 ms each time.
const LOCKED_TRIES: u32 = 25;

/// Whether threads write out memtables and compact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workers {
    /// One thread does.
    Running,
    /// No thread does: only the journal takes space.
    None,
}

/// An open engine.
pub(super) struct Engine {
    pub(super) database: Database,
    pub(super) records: Keyspace,
    workers: Workers,
    /// Reports failed syncs of the journal, also those that the engine's worker has seen.
    witness: Mutex<Witness>,
}

/// Returns the error for a failed operation of the engine.
pub(super) fn store_error<E: std::error::Error + Send + Sync + 'static>(
    operation: &'static str,
) -> impl Fn(E) -> Error {
    move |source| Error::Store { operation, source: Box::new(source) }
}

/// Returns whether an operation failed for want of space.
pub(super) fn is_no_space(error: &fjall::Error) -> bool {
    let (fjall::Error::Io(source) | fjall::Error::Storage(LsmError::Io(source))) = error else {
        return false;
    };
    matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Returns the records of an engine's range for a scan, without the head of the chain.
pub(super) fn records_of(mut range: fjall::Iter, scan: &Scan<'_>) -> Result<Vec<Pair>, Error> {
    let mut found = Vec::new();
    while found.len() < scan.limit {
        let next = match scan.direction {
            Direction::Forward => range.next(),
            Direction::Backward => range.next_back(),
        };
        let Some(guard) = next else { break };
        let (key, value) = guard.into_inner().map_err(store_error("scan records"))?;
        if *key != chain::KEY {
            found.push((key.to_vec(), value.to_vec()));
        }
    }
    Ok(found)
}

impl Engine {
    pub(super) fn open(directory: &Path, workers: Workers) -> Result<Engine, Error> {
        let open = || {
            Database::builder(directory)
                .cache_size(CACHE_BYTES)
                .max_journaling_size(JOURNAL_BYTES)
                .worker_threads_unchecked(usize::from(workers == Workers::Running))
                .open()
        };
        let mut opened = open();
        // The store's own lock keeps other programs out. The last thread of an engine that was just
        // dropped holds the engine's lock until it ends.
        let mut tries = LOCKED_TRIES;
        while matches!(opened, Err(fjall::Error::Locked)) && tries > 0 {
            tries -= 1;
            opened = open();
        }
        if let Err(fjall::Error::Io(error)) = &opened {
            // It may be a failed sync of the journal.
            unsynced::mark(directory, error);
        }
        let database = opened.map_err(store_error("open"))?;
        // Without a limit of the engine's own: over it, each commit sends the worker a message,
        // without end while a compaction runs. The worker then stops for good, as it waits for
        // room in the full queue, which it alone empties.
        let options = || KeyspaceCreateOptions::default().max_memtable_size(u64::MAX);
        let records = database.keyspace("records", options).map_err(store_error("open"))?;
        let witness = Witness::new(directory).map_err(store_error("open the journal"))?;
        Ok(Engine { database, records, workers, witness: Mutex::new(witness) })
    }

    /// Returns whether a thread writes out memtables and compacts.
    pub(super) fn has_workers(&self) -> bool {
        self.workers == Workers::Running
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let value = self.records.get(key).map_err(store_error("read a record"))?;
        Ok(value.map(|value| value.to_vec()))
    }

    /// Returns the records of a scan, without the head of the chain.
    pub(super) fn scan(&self, scan: &Scan<'_>) -> Result<Vec<Pair>, Error> {
        let (start, end) = scan_bounds(scan);
        if is_empty_range(&start, &end) {
            return Ok(Vec::new());
        }
        records_of(self.records.range((start, end)), scan)
    }

    /// Returns the newest commit; `None` for a new store, or one from before there was a chain.
    pub(super) fn head(&self) -> Result<Option<Head>, Error> {
        let Some(value) = self.get(&chain::KEY)? else { return Ok(None) };
        let damaged =
            || crate::records::corrupt(&chain::KEY, "the newest commit's number is damaged");
        Head::decode(&value).map(Some).ok_or_else(damaged)
    }

    /// Begins the chain of a store that has none. Its content goes into tables first, so that all
    /// of the journals belongs to the chain.
    pub(super) fn begin_chain(&mut self) -> Result<Head, Error> {
        self.write_out()?;
        Ok(Head { engine: self.number_in_tables(), ..Head::default() })
    }

    /// Returns the engine's number of the newest batch in tables.
    pub(super) fn number_in_tables(&self) -> u64 {
        self.records.tree.get_highest_persisted_seqno().unwrap_or(0)
    }

    /// Returns the engine's number for the next batch, unless the engine uses numbers for itself
    /// before.
    pub(super) fn next_number(&self) -> u64 {
        self.database.seqno()
    }

    pub(super) fn commit(&self, batch: &Batch, head: &Head) -> Result<(), fjall::Error> {
        let mut writes = self.database.batch().durability(Some(PersistMode::Buffer));
        for (key, value) in &batch.writes {
            match value {
                Some(value) => writes.insert(&self.records, key.as_slice(), value.as_slice()),
                None => writes.remove(&self.records, key.as_slice()),
            }
        }
        writes.insert(&self.records, chain::KEY.as_slice(), head.encode().as_slice());
        writes.commit()?;
        self.write_out_if_large();
        Ok(())
    }

    /// Hands a large memtable to the worker. While the worker is busy with earlier ones, for
    /// example during a compaction, the memtable grows.
    fn write_out_if_large(&self) {
        let bytes = self.records.tree.active_memtable().size();
        if bytes <= MEMTABLE_BYTES {
            return;
        }
        if self.has_workers() && self.records.sealed_memtable_count() < SEALED_MAX {
            self.witness().renew();
            // The commit is complete; a failed worker is reported by the next one.
            if let Err(error) = self.records.rotate_memtable() {
                tracing::warn!(%error, "records of the metadata store cannot be written out");
            }
        } else if bytes > LATE_BYTES
            && let Some(suppressed) = LATE.pass()
        {
            let (mib, has_workers) = (bytes >> 20, self.has_workers());
            tracing::warn!(
                mib,
                has_workers,
                suppressed,
                "the metadata store writes its records out too slowly: its memory and its journal grow"
            );
        }
    }

    /// Writes all records of memtables to tables, durably. It needs a worker.
    pub(super) fn write_out(&self) -> Result<(), Error> {
        let failed = store_error("write out");
        self.records.rotate_memtable().map_err(&failed)?;
        while self.records.sealed_memtable_count() > 0 {
            // Fails once the worker has failed.
            self.database.persist(PersistMode::Buffer).map_err(&failed)?;
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    pub(super) fn persist(&self) -> Result<(), fjall::Error> {
        self.witness().renew();
        self.database.persist(PersistMode::SyncAll)
    }

    /// Returns the file that reports failed syncs of the journal.
    pub(super) fn witness(&self) -> std::sync::MutexGuard<'_, Witness> {
        self.witness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
