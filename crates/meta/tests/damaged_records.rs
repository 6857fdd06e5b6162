//! Records of a store that do not agree: removed, changed bit by bit, or replaced by others, at
//! random from seeds. The checker finds every removal, names the file that it concerns, never ends
//! the process, and changes nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "of the fixture not all is needed here")]
#[path = "common/fixture.rs"]
mod fixture;

use fixture::{BLOCK_BYTES, Fixture};
use meta::check::{Area, store::check_records};
use meta::store::{Batch, MemoryStore, Pair, Store};
use protocol::FreeEpoch;
use protocol::client::{Call, ChangeCall};

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as usize % bound.max(1)
    }
}

/// Prints its number when the test fails.
struct Named(u32);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("round {}", self.0);
        }
    }
}

/// Returns the records of a store with directories, and files with data.
fn used() -> Vec<Pair> {
    let mut fixture = Fixture::new();
    for number in 0..6 {
        let file = fixture.file(&format!("file{number}"));
        fixture.write(file, number * u64::from(BLOCK_BYTES), BLOCK_BYTES);
        fixture.write_blocks(file, &[(number + 2) * u64::from(BLOCK_BYTES)]);
        fixture.directory(&format!("directory{number}"));
    }
    fixture.core.flush().unwrap();
    fixture.check();
    fixture.store.records()
}

fn store_of(records: &[Pair]) -> MemoryStore {
    let mut store = MemoryStore::new();
    let writes = records.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
    store.commit(&Batch { writes }).unwrap();
    store
}

fn findings(records: &[Pair]) -> Vec<meta::check::Finding> {
    let store = store_of(records);
    let found = check_records(Box::new(store.clone())).unwrap().findings;
    assert_eq!(store.records(), records, "a check changes nothing");
    found
}

/// Tags of records whose absence the checker can detect: counters, inodes, entries by name and by
/// cookie, extents, segments, leases of space, devices, and live blocks.
const NEEDED: [u8; 9] = [0x01, 0x10, 0x11, 0x12, 0x14, 0x21, 0x22, 0x24, 0x25];

// Goal: each missing record is found; if it belongs to a file, the finding names that file's path.
#[test]
fn each_missing_record_is_found() {
    let records = used();
    assert_eq!(findings(&records), vec![]);
    let mut seen = std::collections::BTreeSet::new();
    for at in 0..records.len() {
        let mut fewer = records.clone();
        let (key, _) = fewer.remove(at);
        let found = findings(&fewer);
        if NEEDED.contains(&key[0]) {
            assert!(!found.is_empty(), "no finding for {key:02x?}");
            seen.insert(key[0]);
        }
        if key[0] == 0x14 {
            let is_named = |finding: &meta::check::Finding| {
                finding.path.as_ref().is_some_and(|path| path.starts_with("/file"))
            };
            assert!(found.iter().any(is_named), "{found:?}");
            assert!(found.iter().any(|finding| finding.area == Area::Space), "{found:?}");
        }
    }
    assert_eq!(seen.len(), NEEDED.len(), "some kinds have no record: {seen:02x?}");
}

// Goal: records with any bits changed, cut, or under each other's keys are findings, never a panic,
// and the damage of one record does not hide that of another.
#[test]
fn any_records_are_survived() {
    let records = used();
    let mut random = Random(7);
    let mut found = 0;
    for round in 0..3000 {
        // A panic prints its round.
        let _round = Named(round);
        let mut changed = records.clone();
        for _ in 0..=random.below(2) {
            let at = random.below(changed.len());
            let from = random.below(changed.len());
            match random.below(6) {
                0 => changed[at].1 = changed[from].1.clone(),
                1 => {
                    let length = random.below(changed[at].1.len());
                    changed[at].1.truncate(length);
                }
                2 => {
                    let byte = random.below(changed[at].0.len());
                    changed[at].0[byte] ^= 1 << random.below(8);
                }
                _ => {
                    let byte = random.below(changed[at].1.len());
                    if let Some(byte) = changed[at].1.get_mut(byte) {
                        *byte ^= 1 << random.below(8);
                    }
                }
            }
        }
        let store = store_of(&changed);
        let before = store.records();
        // The counters may look like those of another version.
        let Ok(checked) = check_records(Box::new(store.clone())) else { continue };
        assert_eq!(store.records(), before, "a check changes nothing");
        found += usize::from(!checked.findings.is_empty());
    }
    assert!(found > 1500, "of 3000 only {found} were found");
}

// Goal: an extent that leads into another file's blocks is found as such.
#[test]
fn shared_blocks_are_found() {
    let records = used();
    let is_extent = |(key, _): &&Pair| key[0] == 0x14;
    let pages: Vec<&Pair> = records.iter().filter(is_extent).collect();
    let (first, second) = (pages[0].clone(), pages[1].0.clone());
    let mut changed = records.clone();
    for (key, value) in &mut changed {
        if *key == second {
            value.clone_from(&first.1);
        }
    }
    let found = findings(&changed);
    assert!(found.iter().any(|finding| finding.area == Area::Space), "{found:?}");
}

// Goal: a file whose records contradict each other does not keep the space of others from being
// freed. Input: two deleted files, the first with a damaged page of extents. Expected: background
// work comes to an end, and the second file's records are gone.
#[test]
fn a_damaged_file_does_not_stop_reclaiming() {
    let mut fixture = Fixture::new();
    for name in ["first", "second"] {
        let file = fixture.file(name);
        fixture.write(file, 0, BLOCK_BYTES);
        let (parent, name) = (protocol::InodeId::ROOT, name.as_bytes().to_vec());
        let unlink = ChangeCall::Unlink { parent, name, told: protocol::client::OpenTold::OfAny };
        fixture.call(&Call::Change(unlink)).unwrap();
    }
    fixture.core.flush().unwrap();
    let pages = |fixture: &Fixture| -> Vec<Pair> {
        fixture.store.records().into_iter().filter(|(key, _)| key[0] == 0x14).collect()
    };
    let before = pages(&fixture);
    assert_eq!(before.len(), 2);
    let damaged = (before[0].0.clone(), Some(vec![0xff; 3]));
    fixture.store.commit(&Batch { writes: vec![damaged] }).unwrap();
    fixture.reopen(meta::store::CrashPoint::Process);
    fixture.core.ended_through(fixture.session, FreeEpoch(u64::MAX));
    let mut steps = 0;
    while fixture.core.reclaim_step(1).unwrap() {
        steps += 1;
        assert!(steps < 1000, "background work never ends");
    }
    assert!(!fixture.core.has_work());
    fixture.core.flush().unwrap();
    let after = pages(&fixture);
    assert_eq!(after.len(), 1, "the second file is still there");
    assert_eq!(after[0].0, before[0].0);
}
