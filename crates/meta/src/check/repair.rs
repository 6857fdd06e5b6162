//! The repair of the records of a store that no service has open, as far as it causes no further
//! loss.
//!
//! Some records repeat what other records contain: a name and its cookie, counts, the state of each
//! block. The repair rebuilds the damaged ones from the intact ones. A record whose content is
//! stored nowhere else (an extent page, inline data, a device) stays as it is, and so does its
//! finding. Data that reads as EIO before a repair never reads as other bytes after it.
//!
//! All changes are one batch. The repair tries it in memory first, and writes it only if it leaves
//! fewer contradictions than before. Before the write, [`journal`] keeps the old value of every
//! changed record. Afterwards the next start of the service ends all sessions, as after a loss of
//! power, because their state may contradict the repaired records.

mod data;
pub mod journal;
mod names;
mod ranges;
mod sessions;
mod space;
mod tree;

use super::store::{Checked, check_records, frozen_over};
use super::{Area, Finding};
use crate::records::{Counters, Key, Record, Stamps, decode, encode};
use crate::space::FIRST_FLUSH_EPOCH;
use crate::store::overlay::Overlay;
use crate::store::{Batch, Error, FjallStore, Opening, Pair, Scan, Store, Syncer};
use crate::tree::base::Layers;
use journal::Change;
use protocol::{FreeEpoch, InodeId};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use uuid::Uuid;

/// The result of a repair.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// Contradictions before.
    pub before: Checked,
    /// The changes, as sentences.
    pub changes: Vec<String>,
    /// Records that were written or removed.
    pub records: usize,
    /// Contradictions that are left.
    pub after: Checked,
}

/// Repairs the store in a directory. `keep` receives the old values of changed records before
/// anything is written.
///
/// # Errors
/// If there is no store, a service has it open, commits are missing, it cannot be read or written,
/// or `keep` fails.
pub fn repair(
    directory: &Path,
    keep: impl FnOnce(&[Change]) -> std::io::Result<()>,
) -> Result<Repaired, Error> {
    let failed = |source| Error::Store {
        operation: "read /proc/sys/kernel/random/boot_id",
        source: Box::new(source),
    };
    let opening = Opening::here().map_err(failed)?;
    // `FjallStore::open` would create a missing store.
    FjallStore::check(directory, opening.boot)?;
    let owner = owner_of(directory).map_err(|source| Error::Store {
        operation: "look at the store's directory",
        source: Box::new(source),
    })?;
    repair_as(Box::new(FjallStore::open(directory, opening)?), owner, keep)
}

/// Returns user and group of a store: the job's.
fn owner_of(directory: &Path) -> std::io::Result<(u32, u32)> {
    let metadata = std::fs::metadata(directory)?;
    Ok((metadata.uid(), metadata.gid()))
}

/// As [`repair`], for a store that is open already; rebuilt inodes belong to root.
///
/// # Errors
/// As [`repair`].
pub fn repair_records(
    store: Box<dyn Store>,
    keep: impl FnOnce(&[Change]) -> std::io::Result<()>,
) -> Result<Repaired, Error> {
    repair_as(store, (0, 0), keep)
}

fn repair_as(
    store: Box<dyn Store>,
    owner: (u32, u32),
    keep: impl FnOnce(&[Change]) -> std::io::Result<()>,
) -> Result<Repaired, Error> {
    let mut store = Lent(Arc::new(Mutex::new(store)));
    refuse_other_form(&store)?;
    let before = check_records(Box::new(store.clone()))?;
    let unchanged = |before: Checked| Repaired {
        after: before.clone(),
        before,
        changes: Vec::new(),
        records: 0,
    };
    if before.findings.is_empty() || before.findings.iter().any(is_hopeless) {
        return Ok(unchanged(before));
    }
    let layers = Layers { store: Box::new(store.clone()), pending: Overlay::default() };
    let mut repair = Repair { layers, notes: Vec::new(), found: Numbers::default(), owner };
    repair.run()?;
    let batch = repair.layers.pending.take();
    let patch = || {
        let mut upper = Overlay::default();
        batch.writes.iter().for_each(|(key, value)| upper.set(key.clone(), value.clone()));
        upper
    };
    let after = check_records(frozen_over(Box::new(store.clone()), patch()))?;
    let is_better = match (before.is_partial, after.is_partial) {
        (true, false) => true,
        (false, true) => false,
        _ => after.findings.len() < before.findings.len(),
    };
    if batch.writes.is_empty() || !is_better {
        tracing::warn!(left = after.findings.len(), "a repair would not help, and is not made");
        return Ok(unchanged(before));
    }
    let mut changes = Vec::with_capacity(batch.writes.len());
    for (key, new) in &batch.writes {
        changes.push(Change { key: key.clone(), old: store.get(key)?, new: new.clone() });
    }
    keep(&changes).map_err(|source| Error::Store {
        operation: "keep what a repair changes",
        source: Box::new(source),
    })?;
    store.commit(&batch)?;
    store.sync()?;
    Ok(Repaired { before, changes: repair.notes, records: batch.writes.len(), after })
}

/// Refuses a store of another version of the program, whose records would all seem damaged. A
/// version above `FORMS_MAX` is a damaged byte.
fn refuse_other_form(store: &dyn Store) -> Result<(), Error> {
    const FORMS_MAX: u8 = 64;
    let counters = store.get(&Key::Counters.encode())?;
    let version = counters.and_then(|value| value.first().copied());
    let is_other = |version: u8| (1..FORMS_MAX).contains(&version) && version != Counters::VERSION;
    if version.is_some_and(is_other) { Err(Error::OtherForm) } else { Ok(()) }
}

/// Returns whether a finding reports missing commits: then even records that seem intact may be
/// old.
fn is_hopeless(finding: &Finding) -> bool {
    finding.area == Area::Commits
}

/// A store that several owners use one after the other.
#[derive(Clone)]
struct Lent(Arc<Mutex<Box<dyn Store>>>);

impl Lent {
    fn with<T>(&self, act: impl FnOnce(&mut dyn Store) -> T) -> T {
        act(&mut **self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Store for Lent {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.with(|store| store.get(key))
    }

    fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error> {
        self.with(|store| store.scan(scan))
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        self.with(|store| store.commit(batch))
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        self.with(|store| store.syncer())
    }
}

/// Records with the planned changes.
struct Repair {
    layers: Layers,
    notes: Vec<String>,
    found: Numbers,
    /// User and group of rebuilt inodes.
    owner: (u32, u32),
}

/// The greatest numbers that are in use.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    /// The number of inodes.
    inodes: u64,
    last_inode: u64,
    last_session: u64,
    last_epoch: u64,
    /// One past the last device.
    devices: u32,
    free_epoch: u64,
    flush_epoch: u64,
}

/// The records of one kind: the readable ones, and the keys of the others.
struct Kind<R> {
    sound: Vec<(Vec<u8>, R)>,
    bad: Vec<Vec<u8>>,
}

impl Repair {
    fn run(&mut self) -> Result<(), Error> {
        let Some(devices) = self.devices()? else { return Ok(()) };
        let mut data = self.data(&devices)?;
        self.suspect(&mut data)?;
        let sessions = self.sessions()?;
        self.tree(&data, &sessions)?;
        self.space(&devices, &data, &sessions)?;
        self.finish()
    }

    fn note(&mut self, what: impl Into<String>) {
        self.notes.push(what.into());
    }

    /// Reads all records of a kind whose keys have at least `numbers` numbers.
    fn all<R: Record>(&self, any: &Key<'_>, numbers: usize) -> Result<Kind<R>, Error> {
        let (mut sound, mut bad) = (Vec::new(), Vec::new());
        self.layers.each(&any.prefix(0), |key, value| {
            match decode(key, value) {
                Ok(record) if key.len() > 8 * numbers => sound.push((key.to_vec(), record)),
                _ => bad.push(key.to_vec()),
            }
            Ok(())
        })?;
        Ok(Kind { sound, bad })
    }

    /// Writes a record unless the same one is stored; returns whether it wrote.
    fn put<R: Record>(&mut self, key: &Key<'_>, record: &R) -> Result<bool, Error> {
        let (key, value) = (key.encode(), encode(record)?);
        let is_new = self.layers.get(&key)?.as_ref() != Some(&value);
        if is_new {
            self.layers.pending.set(key, Some(value));
        }
        Ok(is_new)
    }

    /// Removes a record; returns whether it existed.
    fn remove(&mut self, key: &[u8]) -> Result<bool, Error> {
        let is_there = self.layers.get(key)?.is_some();
        if is_there {
            self.layers.pending.set(key.to_vec(), None);
        }
        Ok(is_there)
    }

    /// Removes records that make no sense and that nothing needs; `what` names their kind.
    fn remove_bad(&mut self, bad: &[Vec<u8>], what: &str) -> Result<(), Error> {
        for key in bad {
            self.remove(key)?;
        }
        if !bad.is_empty() {
            self.note(format!("{} records of {what} that make no sense were removed", bad.len()));
        }
        Ok(())
    }

    /// Returns the counters, if their record makes sense.
    fn stored_counters(&self) -> Result<Option<Counters>, Error> {
        let key = Key::Counters.encode();
        let value = self.layers.get(&key)?;
        let counters = value.and_then(|value| decode::<Counters>(&key, &value).ok());
        Ok(counters.filter(Counters::are_sound))
    }

    /// Raises the counters above all numbers in use, and makes the next start end all sessions.
    fn finish(&mut self) -> Result<(), Error> {
        let stored = self.stored_counters()?;
        if stored.is_none() {
            self.note("the counters were rebuilt: the file system has a new identity now");
        }
        let fresh = || Counters {
            file_system: Uuid::from_u128(reactor::random::u64().into()),
            boot: Uuid::nil(),
            next_inode: 0,
            next_session: 0,
            next_device: 0,
            next_epoch: 0,
            free_epoch: FreeEpoch(1),
            inodes: 0,
            flush_epoch: FIRST_FLUSH_EPOCH,
        };
        let key = Key::Stamps.encode();
        let stamps = self.layers.get(&key)?;
        if stamps.is_some_and(|value| decode::<Stamps>(&key, &value).is_err()) {
            // Without this record the next start takes stamps above all earlier ones.
            self.remove(&key)?;
            self.note("the stamps of rights were rebuilt");
        }
        let mut counters = stored.unwrap_or_else(fresh);
        let (before, found) = (counters, self.found);
        counters.inodes = found.inodes;
        counters.next_inode = counters.next_inode.max(found.last_inode.max(InodeId::ROOT.0) + 1);
        counters.next_session = counters.next_session.max(found.last_session + 1);
        counters.next_epoch = counters.next_epoch.max(found.last_epoch + 1);
        counters.next_device = counters.next_device.max(found.devices);
        counters.free_epoch = counters.free_epoch.max(FreeEpoch(found.free_epoch));
        counters.flush_epoch = counters.flush_epoch.max(found.flush_epoch);
        if stored.is_some() && counters.inodes != before.inodes {
            self.note("the inodes were recounted");
        }
        if self.layers.pending.len() > 0 || counters != before || stored.is_none() {
            // No boot has this identifier, so the next start ends all sessions. No other repair has
            // it either, so this repair can be taken back only while nothing has changed since.
            counters.boot = Uuid::from_u128(u128::from(reactor::random::u64()) | 1);
            self.put(&Key::Counters, &counters)?;
        }
        Ok(())
    }
}
