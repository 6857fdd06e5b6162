//! Writes that are not in the store yet, as a layer over it: reads and scans see both.
//!
//! The core stacks two of them: a transaction's own writes, which vanish if it is refused, over the
//! finished transactions that wait for the next group commit.

use super::{Batch, Direction, Error, Pair, Scan, prefix_end};
use std::collections::BTreeMap;
use std::ops::Bound;

/// A pending write: the key, and its new value or `None` for its removal.
type Write<'a> = (&'a Vec<u8>, &'a Option<Vec<u8>>);

/// Pending writes, in the order of their keys.
#[derive(Debug, Default)]
pub(crate) struct Overlay {
    writes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    bytes: usize,
}

impl Overlay {
    /// Returns the pending value of a key: `None` if nothing is pending, `Some(&None)` if its
    /// removal is.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.writes.get(key)
    }

    /// Adds a write; it replaces an earlier one of the same key.
    pub(crate) fn set(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        if let Some(Some(old)) = self.writes.insert(key, value) {
            assert!(
                self.bytes >= old.len(),
                "{} bytes are pending, and {} of them are replaced",
                self.bytes,
                old.len()
            );
            self.bytes -= old.len();
        }
    }

    /// Puts the writes of a finished transaction over these.
    pub(crate) fn absorb(&mut self, upper: Overlay) {
        for (key, value) in upper.writes {
            self.set(key, value);
        }
    }

    /// Returns the number of pending keys.
    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    /// Returns the bytes of keys and values, roughly.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns all writes as one batch; nothing is pending afterwards.
    pub(crate) fn take(&mut self) -> Batch {
        self.bytes = 0;
        Batch { writes: std::mem::take(&mut self.writes).into_iter().collect() }
    }

    /// Puts back a batch that was taken from here and could not be stored. Nothing may be pending.
    pub(crate) fn put_back(&mut self, batch: Batch) {
        for (key, value) in batch.writes {
            self.set(key, value);
        }
    }

    /// Scans `lower` with these writes as a layer over it.
    ///
    /// It takes one chunk of the lower layer at a time. The chunk has all lower keys between its
    /// first and last one, so exactly the pending writes of that interval are merged in.
    pub(crate) fn scan(
        &self,
        scan: Scan<'_>,
        lower: impl Fn(Scan<'_>) -> Result<Vec<Pair>, Error>,
    ) -> Result<Vec<Pair>, Error> {
        let end = prefix_end(scan.prefix);
        if self.range(scan.prefix, end.as_deref(), scan.from, scan.direction).next().is_none() {
            return lower(scan);
        }
        let mut found = Vec::new();
        let mut from = scan.from.map(<[u8]>::to_vec);
        while found.len() < scan.limit {
            let chunk = lower(Scan { from: from.as_deref(), ..scan })?;
            let is_last = chunk.len() < scan.limit;
            let chunk_last = chunk.last().map(|pair| pair.0.clone());
            self.merge(scan, end.as_deref(), from.as_deref(), chunk, is_last, &mut found);
            let Some(last) = chunk_last else { break };
            let next = match scan.direction {
                Direction::Forward => Some(successor(last)),
                Direction::Backward => predecessor_bound(last),
            };
            if is_last || next.is_none() {
                break;
            }
            from = next;
        }
        found.truncate(scan.limit);
        Ok(found)
    }

    /// Merges a chunk of the lower layer with the pending writes of its interval.
    fn merge(
        &self,
        scan: Scan<'_>,
        end: Option<&[u8]>,
        from: Option<&[u8]>,
        chunk: Vec<Pair>,
        is_last: bool,
        found: &mut Vec<Pair>,
    ) {
        let until = if is_last { None } else { chunk.last().map(|pair| pair.0.clone()) };
        let before = |a: &[u8], b: &[u8]| match scan.direction {
            Direction::Forward => a < b,
            Direction::Backward => a > b,
        };
        let mut chunk = chunk.into_iter().peekable();
        for (key, value) in self.range(scan.prefix, end, from, scan.direction) {
            if until.as_ref().is_some_and(|until| before(until, key)) || found.len() >= scan.limit {
                break;
            }
            while let Some(pair) = chunk.next_if(|pair| before(&pair.0, key)) {
                found.push(pair);
            }
            chunk.next_if(|pair| pair.0 == *key);
            if let Some(value) = value {
                found.push((key.clone(), value.clone()));
            }
        }
        found.extend(chunk);
    }

    /// Returns the pending writes of a prefix from a key on, in a direction.
    fn range<'a>(
        &'a self,
        prefix: &[u8],
        end: Option<&[u8]>,
        from: Option<&[u8]>,
        direction: Direction,
    ) -> Box<dyn Iterator<Item = Write<'a>> + 'a> {
        let whole_end = end.map_or(Bound::Unbounded, Bound::Excluded);
        match direction {
            Direction::Forward => {
                let start = from.unwrap_or(prefix).max(prefix);
                if end.is_some_and(|end| start >= end) {
                    return Box::new(std::iter::empty());
                }
                Box::new(self.writes.range::<[u8], _>((Bound::Included(start), whole_end)))
            }
            Direction::Backward => {
                let last = match from {
                    Some(from) if end.is_none_or(|end| from < end) => Bound::Included(from),
                    _ => whole_end,
                };
                if from.is_some_and(|from| from < prefix) {
                    return Box::new(std::iter::empty());
                }
                Box::new(self.writes.range::<[u8], _>((Bound::Included(prefix), last)).rev())
            }
        }
    }
}

/// Returns the least key above `key`.
fn successor(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

/// Returns a bound below `key`; no key of at most [`KEY_MAX_BYTES`] bytes lies between the two.
fn predecessor_bound(mut key: Vec<u8>) -> Option<Vec<u8>> {
    let last = key.pop()?;
    if last > 0 {
        key.push(last - 1);
        key.resize(KEY_MAX_BYTES, u8::MAX);
    }
    Some(key)
}

/// Longer than any key: a tag, an identifier and a name, with room to spare.
const KEY_MAX_BYTES: usize = 320;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MemoryStore, Store};
    use proptest::prelude::*;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(254), Just(255)], 0..4)
    }

    proptest! {
        /// Goal: a scan through pending writes returns the same as after their commit.
        #[test]
        fn scans_see_pending_writes(
            stored in prop::collection::btree_map(key(), Just(b"old".to_vec()), 0..30),
            pending in prop::collection::vec((key(), any::<bool>()), 0..20),
            prefix in prop::collection::vec(prop_oneof![Just(0u8), Just(255)], 0..2),
            from in prop::option::of(key()),
            is_forward in any::<bool>(),
            limit in 1usize..6,
        ) {
            let mut store = MemoryStore::new();
            let writes = stored.into_iter().map(|(key, value)| (key, Some(value))).collect();
            store.commit(&Batch { writes }).unwrap();
            let mut overlay = Overlay::default();
            for (key, is_put) in pending {
                overlay.set(key, is_put.then(|| b"new".to_vec()));
            }
            let direction =
                if is_forward { Direction::Forward } else { Direction::Backward };
            let scan = Scan { prefix: &prefix, from: from.as_deref(), direction, limit };
            let seen = overlay.scan(scan, |scan| store.scan(scan)).unwrap();
            store.commit(&overlay.take()).unwrap();
            prop_assert_eq!(seen, store.scan(scan).unwrap());
        }
    }
}
