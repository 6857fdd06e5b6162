//! Keeps the keys of frequently written groups of records in memory, so that scans of them need no
//! scan of the store.
//!
//! An LSM tree keeps the old versions of a record until its memtable is written out, and an ordered
//! walk passes all of them. With 20 000 of them (a file that is appended to, a directory in which a
//! journal is created and deleted) finding the record before an offset took 70 ms, a point read
//! less than a microsecond. So once a group has been written some dozen times, its keys are read
//! once and followed from then on, and scans become point reads. Other groups are scanned in the
//! store.
//!
//! Two generations of groups bound the memory: a group that was not written during a whole
//! generation is dropped.

use super::{Batch, Direction, Error, Pair, Scan, Store, Syncer};
use crate::records::corrupt;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;

/// Length of the common prefix of all keys of a group: a tag and a number.
const GROUP_BYTES: usize = 9;

type GroupId = [u8; GROUP_BYTES];

/// Limits: when the keys of a group are kept, and how many.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Writes after which a scan reads the group's keys.
    writes_min: u32,
    /// Most keys of a group.
    keys_max: usize,
    /// Most groups of a generation.
    groups_max: usize,
    /// Most kept keys of a generation.
    kept_max: usize,
}

const BOUNDS: Bounds =
    Bounds { writes_min: 32, keys_max: 4096, groups_max: 16384, kept_max: 1 << 17 };

/// The known keys of a group.
#[derive(Debug)]
enum Keys {
    Unknown,
    TooMany,
    All(BTreeSet<Vec<u8>>),
}

#[derive(Debug)]
struct Group {
    writes: u32,
    keys: Keys,
}

impl Group {
    fn kept(&self) -> usize {
        if let Keys::All(keys) = &self.keys { keys.len() } else { 0 }
    }
}

#[derive(Debug, Default)]
struct Index {
    young: HashMap<GroupId, Group>,
    old: HashMap<GroupId, Group>,
    /// Number of keys kept in `young`.
    kept: usize,
}

impl Index {
    /// Returns the group, moved to the young generation.
    fn group(&mut self, id: GroupId, bounds: &Bounds) -> &mut Group {
        if !self.young.contains_key(&id) {
            if self.young.len() >= bounds.groups_max || self.kept >= bounds.kept_max {
                self.old = std::mem::take(&mut self.young);
                self.kept = 0;
            }
            let old = self.old.remove(&id);
            self.kept += old.as_ref().map_or(0, Group::kept);
            let group = old.unwrap_or(Group { writes: 0, keys: Keys::Unknown });
            self.young.insert(id, group);
        }
        self.young.entry(id).or_insert(Group { writes: 0, keys: Keys::Unknown })
    }

    /// Records a write.
    fn note(&mut self, key: &[u8], is_put: bool, bounds: &Bounds) {
        let Some(&id) = key.first_chunk::<GROUP_BYTES>() else { return };
        let group = self.group(id, bounds);
        group.writes = group.writes.saturating_add(1);
        let Keys::All(keys) = &mut group.keys else { return };
        if !is_put {
            keys.remove(key);
            return;
        }
        let is_new = keys.insert(key.to_vec());
        if keys.len() > bounds.keys_max {
            group.keys = Keys::TooMany;
        }
        self.kept += usize::from(is_new);
    }
}

/// A store whose busy groups are scanned by point reads.
pub struct Indexed {
    store: Box<dyn Store>,
    index: RefCell<Index>,
    bounds: Bounds,
}

impl std::fmt::Debug for Indexed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Indexed").field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

impl Indexed {
    /// Wraps a store that has no other writers.
    pub fn new(store: Box<dyn Store>) -> Indexed {
        Indexed { store, index: RefCell::default(), bounds: BOUNDS }
    }

    /// Returns the keys of a scan, if they are kept or worth keeping.
    fn keys_of(&self, id: GroupId, scan: &Scan<'_>) -> Result<Option<Vec<Vec<u8>>>, Error> {
        let mut index = self.index.borrow_mut();
        let Index { young, old, kept } = &mut *index;
        let Some(group) = young.get_mut(&id).or_else(|| old.get_mut(&id)) else { return Ok(None) };
        if matches!(group.keys, Keys::Unknown) && group.writes >= self.bounds.writes_min {
            let (direction, limit) = (Direction::Forward, self.bounds.keys_max + 1);
            let all = self.store.scan(Scan { prefix: &id, from: None, direction, limit })?;
            group.keys = if all.len() < limit {
                *kept += all.len();
                Keys::All(all.into_iter().map(|(key, _)| key).collect())
            } else {
                Keys::TooMany
            };
        }
        let Keys::All(keys) = &group.keys else { return Ok(None) };
        let from = scan.from.map_or(Bound::Unbounded, Bound::Included);
        Ok(Some(match scan.direction {
            Direction::Forward => {
                let range = keys.range::<[u8], _>((from, Bound::Unbounded));
                range.take(scan.limit).cloned().collect()
            }
            Direction::Backward => {
                let range = keys.range::<[u8], _>((Bound::Unbounded, from));
                range.rev().take(scan.limit).cloned().collect()
            }
        }))
    }
}

impl Store for Indexed {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.store.get(key)
    }

    fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error> {
        let Ok(id) = GroupId::try_from(scan.prefix) else { return self.store.scan(scan) };
        let Some(keys) = self.keys_of(id, &scan)? else { return self.store.scan(scan) };
        let mut found = Vec::with_capacity(keys.len());
        for key in keys {
            let value = self.store.get(&key)?;
            let value = value.ok_or_else(|| corrupt(&key, "it was there and has gone"))?;
            found.push((key, value));
        }
        Ok(found)
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        self.store.commit(batch)?;
        let index = self.index.get_mut();
        for (key, value) in &batch.writes {
            index.note(key, value.is_some(), &self.bounds);
        }
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        self.store.has_room()
    }

    fn has_plenty(&self) -> bool {
        self.store.has_plenty()
    }

    fn has_lost(&self) -> bool {
        self.store.has_lost()
    }

    fn snapshot(&self) -> Result<Option<Box<dyn Store>>, Error> {
        self.store.snapshot()
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        self.store.syncer()
    }
}

#[cfg(test)]
mod tests;
