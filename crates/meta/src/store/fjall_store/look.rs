//! A snapshot of the records at one moment, readable on any thread while the engine continues.
//!
//! The engine keeps the versions of records that a snapshot sees for as long as the snapshot lives.
//! The snapshot also holds the engine's lock, so the store ends all snapshots before it reopens an
//! engine ([`Look::end`]).

use super::engine::{Engine, records_of, store_error};
use super::{Pair, Unchanged};
use crate::store::memory::{is_empty_range, scan_bounds};
use crate::store::{Batch, Error, Scan, Store, Syncer};
use fjall::{Keyspace, Readable, Snapshot};
use std::sync::{Arc, PoisonError, RwLock};

/// The records of one moment, until the snapshot is ended.
pub(super) struct Look(RwLock<Option<Moment>>);

struct Moment {
    records: Keyspace,
    snapshot: Snapshot,
}

impl Look {
    /// Takes a snapshot of an engine's records. No commit may be under way.
    pub(super) fn new(engine: &Engine) -> Look {
        let (records, snapshot) = (engine.records.clone(), engine.database.snapshot());
        Look(RwLock::new(Some(Moment { records, snapshot })))
    }

    /// Ends the snapshot once a read that is under way has ended; later reads fail.
    pub(super) fn end(&self) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn with<T>(&self, read: impl FnOnce(&Moment) -> Result<T, Error>) -> Result<T, Error> {
        let moment = self.0.read().unwrap_or_else(PoisonError::into_inner);
        moment.as_ref().map_or(Err(Error::LookEnded), read)
    }
}

/// A store with the records of a snapshot.
pub(super) struct Looked(pub(super) Arc<Look>);

impl Drop for Looked {
    fn drop(&mut self) {
        // An engine that is reopened meanwhile must not find the lock still held.
        self.0.end();
    }
}

impl Store for Looked {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.0.with(|moment| {
            let value = moment.snapshot.get(&moment.records, key);
            Ok(value.map_err(store_error("read a record"))?.map(|value| value.to_vec()))
        })
    }

    fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error> {
        let bounds = scan_bounds(&scan);
        if is_empty_range(&bounds.0, &bounds.1) {
            return Ok(Vec::new());
        }
        self.0.with(|moment| records_of(moment.snapshot.range(&moment.records, bounds), &scan))
    }

    fn commit(&mut self, _: &Batch) -> Result<(), Error> {
        Err(Error::Poisoned)
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        Box::new(Unchanged)
    }
}
