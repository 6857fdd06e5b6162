//! The index against a store without one.

use super::*;
use crate::store::MemoryStore;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Few and small groups, so that every bound is met.
const SMALL: Bounds = Bounds { writes_min: 2, keys_max: 4, groups_max: 2, kept_max: 6 };

fn key(group: u8, rest: &[u8]) -> Vec<u8> {
    [&[7, 0, 0, 0, 0, 0, 0, 0, group], rest].concat()
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    let rest = prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255)], 0..3);
    prop_oneof![
        9 => (0u8..4, rest).prop_map(|(group, rest)| key(group, &rest)),
        1 => prop::collection::vec(Just(7u8), 0..4),
    ]
}

/// Counts the scans of the store below.
#[derive(Debug)]
struct Counted(MemoryStore, Arc<AtomicUsize>);

impl Store for Counted {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.0.get(key)
    }

    fn scan(&self, scan: Scan<'_>) -> Result<Vec<Pair>, Error> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.scan(scan)
    }

    fn commit(&mut self, batch: &Batch) -> Result<(), Error> {
        self.0.commit(batch)
    }

    fn syncer(&self) -> Box<dyn Syncer> {
        self.0.syncer()
    }
}

/// Goal: a record that is rewritten again and again is found with only one scan of the store.
#[test]
fn busy_groups_are_not_scanned() {
    let scans = Arc::new(AtomicUsize::new(0));
    let counted = Counted(MemoryStore::new(), Arc::clone(&scans));
    let mut store = Indexed::new(Box::new(counted));
    for round in 0..1000_u64 {
        let writes = vec![(key(1, &[0]), Some(round.to_le_bytes().to_vec()))];
        store.commit(&Batch { writes }).unwrap();
        if round >= u64::from(BOUNDS.writes_min) {
            let (from, direction) = (key(1, &[9]), Direction::Backward);
            let scan = Scan { prefix: &key(1, &[]), from: Some(&from), direction, limit: 1 };
            let found = store.scan(scan).unwrap();
            assert_eq!(found, [(key(1, &[0]), round.to_le_bytes().to_vec())]);
        }
    }
    assert_eq!(scans.load(Ordering::Relaxed), 1);
}

proptest! {
    /// Goal: scans return the same as the store without an index, after any writes and drops.
    #[test]
    fn scans_are_those_of_the_store(
        steps in prop::collection::vec(
            (
                prop::collection::btree_map(keys(), prop::option::of(Just(b"x".to_vec())), 0..4),
                (0u8..4, prop::option::of(keys()), any::<bool>(), 1usize..5),
            ),
            0..60,
        ),
    ) {
        let mut plain = MemoryStore::new();
        let mut store =
            Indexed { bounds: SMALL, ..Indexed::new(Box::new(MemoryStore::new())) };
        for (writes, (group, from, is_forward, limit)) in steps {
            let batch = Batch { writes: writes.into_iter().collect() };
            plain.commit(&batch).unwrap();
            store.commit(&batch).unwrap();
            let direction = if is_forward { Direction::Forward } else { Direction::Backward };
            let prefix = key(group, &[]);
            let scan = Scan { prefix: &prefix, from: from.as_deref(), direction, limit };
            prop_assert_eq!(store.scan(scan).unwrap(), plain.scan(scan).unwrap());
            prop_assert!(store.index.get_mut().young.len() <= SMALL.groups_max);
        }
    }
}
