//! A store in memory, for tests and simulation, that can crash.
//!
//! Clones share one content, as processes that open a file one after the other share the file's. A
//! test keeps a clone, lets the service die, and opens the clone again. Each committed batch is
//! logged until it is synced, so that a power cut can drop any suffix of the log.

use super::{Batch, Direction, Error, Pair, Scan, Store, Syncer, prefix_end};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The point at which a simulated crash cuts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// The process died: all committed batches survive.
    Process,
    /// The machine died: only the first `kept` batches since the last sync survive.
    Power {
        /// Unsynced batches that survive.
        kept: usize,
    },
}

/// The failure of a store, until it is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreFault {
    /// There is no room for another batch: nothing changes, and the commit can be tried again.
    Full,
    /// Commits fail with EIO; the batch may be stored or not.
    Commit {
        /// The batch is stored.
        is_applied: bool,
    },
    /// Syncs fail with EIO.
    Sync,
}

#[derive(Debug, Default)]
struct Content {
    fault: Option<StoreFault>,
    /// There is no room for data of files.
    is_scarce: bool,
    /// Number of commits and syncs that have failed.
    failures: u64,
    synced: BTreeMap<Vec<u8>, Vec<u8>>,
    present: BTreeMap<Vec<u8>, Vec<u8>>,
    unsynced: Vec<Batch>,
}

impl Content {
    fn sync(&mut self) {
        for batch in std::mem::take(&mut self.unsynced) {
            apply(&mut self.synced, &batch);
        }
    }
}

/// A store in memory; clones share its content.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    content: Arc<Mutex<Content>>,
}

fn apply(records: &mut BTreeMap<Vec<u8>, Vec<u8>>, batch: &Batch) {
    for (key, value) in &batch.writes {
        match value {
            Some(value) => records.insert(key.clone(), value.clone()),
            None => records.remove(key),
        };
    }
}

impl MemoryStore {
    /// Creates an empty store.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Returns a store with the content that a crash now would leave. This store stays usable.
    pub fn crashed(&self, at: CrashPoint) -> MemoryStore {
        let content = self.lock();
        let records = match at {
            CrashPoint::Process => content.present.clone(),
            CrashPoint::Power { kept } => {
                let mut records = content.synced.clone();
                content.unsynced.iter().take(kept).for_each(|batch| apply(&mut records, batch));
                records
            }
        };
        let synced = records.clone();
        let content = Content { synced, present: records, ..Content::default() };
        MemoryStore { content: Arc::new(Mutex::new(content)) }
    }

    /// Makes the store fail from now on, or succeed again.
    pub fn set_fault(&self, fault: Option<StoreFault>) {
        self.lock().fault = fault;
    }

    /// Sets whether there is room for data of files.
    pub fn set_scarce(&self, is_scarce: bool) {
        self.lock().is_scarce = is_scarce;
    }

    /// Returns the number of commits and syncs that have failed.
    pub fn failures(&self) -> u64 {
        self.lock().failures
    }

    /// Returns the batches committed since the last sync.
    pub fn unsynced(&self) -> Vec<Batch> {
        self.lock().unsynced.clone()
    }

    /// Returns all records, in the order of their keys.
    pub fn records(&self) -> Vec<Pair> {
        self.lock().present.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        // A panic while the lock is held ends the test anyway.
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.lock().present.get(key).cloned())
    }

    fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error> {
        let content = self.lock();
        let (start, end) = scan_bounds(&scan);
        if is_empty_range(&start, &end) {
            return Ok(Vec::new());
        }
        let range = content
            .present
            .range::<[u8], _>((start.as_ref().map(Vec::as_slice), end.as_ref().map(Vec::as_slice)));
        let copy = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
        Ok(match scan.direction {
            Direction::Forward => range.take(scan.limit).map(copy).collect(),
            Direction::Backward => range.rev().take(scan.limit).map(copy).collect(),
        })
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        let mut content = self.lock();
        let fault = content.fault.filter(|fault| *fault != StoreFault::Sync);
        content.failures += u64::from(fault.is_some());
        match fault {
            Some(StoreFault::Full) => return Err(Error::Full("memory".into())),
            Some(StoreFault::Commit { is_applied: false }) => return Err(broken("commit")),
            _ => {}
        }
        apply(&mut content.present, batch);
        content.unsynced.push(batch.clone());
        if fault.is_some() { Err(broken("commit")) } else { Ok(()) }
    }

    fn snapshot(&self) -> Result<Option<Box<dyn Store>>, Error> {
        Ok(Some(Box::new(self.crashed(CrashPoint::Process))))
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        Box::new(self.clone())
    }

    fn has_room(&mut self) -> bool {
        self.lock().fault != Some(StoreFault::Full)
    }

    fn has_plenty(&self) -> bool {
        let content = self.lock();
        !content.is_scarce && content.fault != Some(StoreFault::Full)
    }
}

impl Syncer for MemoryStore {
    fn sync(&self) -> Result<(), Error> {
        let mut content = self.lock();
        if content.fault == Some(StoreFault::Sync) {
            content.failures += 1;
            return Err(broken("sync"));
        }
        content.sync();
        Ok(())
    }
}

fn broken(operation: &'static str) -> Error {
    Error::Store { operation, source: Box::new(std::io::Error::other("the disk is broken")) }
}

/// Returns the bounds of a scan's keys.
pub(super) fn scan_bounds(scan: &Scan<'_>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let prefix_end = prefix_end(scan.prefix);
    let whole_end = prefix_end.clone().map_or(Bound::Unbounded, Bound::Excluded);
    match (scan.direction, scan.from) {
        (Direction::Forward, from) => {
            (Bound::Included(from.unwrap_or(scan.prefix).max(scan.prefix).to_vec()), whole_end)
        }
        (Direction::Backward, Some(from)) if prefix_end.is_none_or(|end| from < end.as_slice()) => {
            (Bound::Included(scan.prefix.to_vec()), Bound::Included(from.to_vec()))
        }
        (Direction::Backward, _) => (Bound::Included(scan.prefix.to_vec()), whole_end),
    }
}

/// Returns whether no key can lie between two bounds (ordered maps panic on a reversed range).
pub(super) fn is_empty_range(start: &Bound<Vec<u8>>, end: &Bound<Vec<u8>>) -> bool {
    match (start, end) {
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start), Bound::Excluded(end)) => start >= end,
        _ => false,
    }
}
