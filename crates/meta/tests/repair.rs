//! Random damage to the records of a store, check, repair, check: a repair repairs what it can,
//! loses nothing that was intact (compared with a model of the store before), and can be taken
//! back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "of the fixture not all is needed here")]
#[path = "common/fixture.rs"]
mod fixture;

use fixture::{BLOCK_BYTES, Fixture, boot};
use meta::check::repair::{Repaired, journal, repair_records};
use meta::check::store::check_records;
use meta::check::{Area, Finding};
use meta::store::{Batch, MemoryStore, Pair, Store};
use meta::tree::{Context, Core};
use protocol::client::{Answer, Call, ChangeCall, Creation, OpenTold, ReadCall};
use protocol::{Attr, Extent, FileKind, InodeId, Rights, SessionId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// Tags of records whose content is stored nowhere else: attributes, extents, inline data, devices,
/// and sessions, which may still write to space that they lease.
const ALONE: [u8; 5] = [0x13, 0x14, 0x15, 0x24, 0x30];

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
struct Named(String);

impl Drop for Named {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

fn link(fixture: &mut Fixture, inode: InodeId, parent: InodeId, name: &str) {
    let link = ChangeCall::Link { inode, parent, name: name.as_bytes().to_vec() };
    fixture.call(&Call::Change(link)).unwrap();
}

fn make(fixture: &mut Fixture, parent: InodeId, name: &str, creation: Creation) -> InodeId {
    let create = ChangeCall::Create {
        parent,
        name: name.as_bytes().to_vec(),
        creation,
        mode: 0o640,
        uid: 5,
        gid: 6,
        rights: Rights::NONE,
    };
    match fixture.call(&Call::Change(create)) {
        Ok(Answer::Entry(attr)) => attr.inode,
        other => panic!("{other:?}"),
    }
}

/// Returns the records of a store with a tree of three levels, links, data in pieces, copies of it,
/// freed and leased space.
fn used() -> Vec<Pair> {
    let mut fixture = Fixture::new();
    let block = u64::from(BLOCK_BYTES);
    for number in 0..4 {
        let directory = fixture.directory(&format!("directory{number}"));
        let below = make(&mut fixture, directory, "below", Creation::Directory);
        make(&mut fixture, below, "link", Creation::Symlink(b"../target".to_vec()));
        make(&mut fixture, below, "empty", Creation::File);
        for file in 0..3 {
            let id = make(&mut fixture, below, &format!("file{file}"), Creation::File);
            fixture.write(id, file * block, BLOCK_BYTES);
            fixture.write_blocks(id, &[(file + 2) * block, (file + 5) * block]);
            if file == 0 {
                link(&mut fixture, id, directory, "other");
            }
        }
    }
    let gone = fixture.file("gone");
    fixture.write(gone, 0, BLOCK_BYTES);
    let parent = InodeId::ROOT;
    let unlink = ChangeCall::Unlink { parent, name: b"gone".to_vec(), told: OpenTold::OfAny };
    fixture.call(&Call::Change(unlink)).unwrap();
    while fixture.core.reclaim_step(1000).unwrap() {}
    fixture.core.flush().unwrap();
    fixture.check();
    fixture.store.records()
}

/// The content of an inode, according to its own records.
#[derive(Clone, Debug, PartialEq)]
struct Content {
    kind: FileKind,
    mode: u16,
    uid: u32,
    size: u64,
    extents: Vec<Extent>,
}

/// Inodes by their content, and by path.
#[derive(Default)]
struct Model {
    inodes: BTreeMap<InodeId, Content>,
    paths: BTreeMap<String, InodeId>,
}

fn ask(core: &mut Core, call: ReadCall) -> Option<Answer> {
    let openers = |_| Vec::new();
    let context = Context { session: SessionId(0), now: Timestamp(9), openers: &openers };
    core.execute(&context, &Call::Read(call)).ok().map(|outcome| outcome.answer)
}

fn content(core: &mut Core, attr: &Attr) -> Content {
    let Attr { kind, mode, uid, size, inode, .. } = *attr;
    let call = ReadCall::ReadExtents { inode, offset: 0, length: 1 << 30 };
    let extents = match ask(core, call) {
        Some(Answer::Extents { extents, .. }) => extents.0,
        _ => Vec::new(),
    };
    // The size of a directory is the number of its entries.
    let size = if kind == FileKind::Directory { 0 } else { size };
    Content { kind, mode, uid, size, extents }
}

/// Walks through a whole store.
fn model(records: &[Pair]) -> Model {
    let (mut core, _) = Core::open(Box::new(store_of(records)), &boot(9)).unwrap();
    let mut model = Model::default();
    let mut todo = vec![(InodeId::ROOT, String::new())];
    while let Some((directory, path)) = todo.pop() {
        let call = ReadCall::ReadDir { inode: directory, after: 0, count_max: 1000 };
        let Some(Answer::Entries { entries, .. }) = ask(&mut core, call) else { continue };
        for entry in entries {
            let path = format!("{path}/{}", String::from_utf8_lossy(&entry.name));
            let id = entry.attr.inode;
            if entry.attr.kind == FileKind::Directory && !model.inodes.contains_key(&id) {
                todo.push((id, path.clone()));
            }
            model.inodes.insert(id, content(&mut core, &entry.attr));
            model.paths.insert(path, id);
        }
    }
    model
}

fn store_of(records: &[Pair]) -> MemoryStore {
    let mut store = MemoryStore::new();
    let writes = records.iter().map(|(key, value)| (key.clone(), Some(value.clone()))).collect();
    store.commit(&Batch { writes }).unwrap();
    store
}

fn number(key: &[u8], place: usize) -> u64 {
    let bytes = key.get(1 + 8 * place..9 + 8 * place);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    bytes.map_or(u64::MAX, number)
}

fn hex(bytes: &[u8]) -> String {
    format!("{bytes:02x?}")
}

/// Damages records; returns the damaged keys, and those that damage has created.
fn damage(records: &mut Vec<Pair>, random: &mut Random, pieces: usize) -> BTreeSet<Vec<u8>> {
    let mut hit = BTreeSet::new();
    for _ in 0..pieces {
        let at = random.below(records.len());
        hit.insert(records[at].0.clone());
        match random.below(6) {
            0 => drop(records.remove(at)),
            1 => {
                let length = random.below(records[at].1.len());
                records[at].1.truncate(length);
            }
            2 => {
                let key = records[at].0.clone();
                let same: Vec<_> = records.iter().filter(|pair| pair.0[0] == key[0]).collect();
                let value = same[random.below(same.len())].1.clone();
                records[at].1 = value;
            }
            3 => {
                let byte = random.below(records[at].0.len());
                records[at].0[byte] ^= 1 << random.below(8);
                hit.insert(records[at].0.clone());
            }
            _ => {
                let byte = random.below(records[at].1.len());
                if let Some(byte) = records[at].1.get_mut(byte) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
    hit
}

/// Returns the inodes without damage to their own records.
fn intact(before: &Model, hit: &BTreeSet<Vec<u8>>) -> BTreeMap<InodeId, Content> {
    let is_hit = |id: &InodeId| {
        let of_inode =
            |key: &Vec<u8>| matches!(key[0], 0x10 | 0x13..=0x19) && number(key, 0) == id.0;
        hit.iter().any(of_inode)
    };
    let all = before.inodes.iter().filter(|(id, _)| !is_hit(id));
    all.map(|(id, content)| (*id, content.clone())).collect()
}

fn repair(store: &MemoryStore) -> Option<(Repaired, Vec<journal::Change>)> {
    let mut kept = Vec::new();
    let repaired = repair_records(Box::new(store.clone()), |changes| {
        kept = changes.to_vec();
        Ok(())
    });
    // A store of another version, or one with counters that seem to be of another version, is
    // refused.
    repaired.ok().map(|repaired| (repaired, kept))
}

/// Checks the properties of every repair, for any damage.
fn check_repair(
    (before, damaged): (&Model, &[Pair]),
    hit: &BTreeSet<Vec<u8>>,
    store: &MemoryStore,
) -> (usize, Vec<Finding>) {
    let Some((repaired, kept)) = repair(store) else { return (0, Vec::new()) };
    let records = store.records();
    let left = check_records(Box::new(store.clone())).unwrap().findings;
    assert_eq!(left, repaired.after.findings, "the repair reports other findings than a check");
    let is_worse = left.len() > repaired.before.findings.len() && !repaired.before.is_partial;
    assert!(!is_worse, "there are more findings: {left:?}");
    if repaired.records == 0 {
        assert_eq!(records, damaged, "it changed something after all");
        return (repaired.before.findings.len(), left);
    }
    // The journal has the changes, and they can be taken back.
    let mut back = store_of(&records);
    journal::take_back_records(&mut back, &kept).unwrap();
    assert_eq!(back.records(), damaged, "it cannot be taken back");
    if hit.iter().any(|key| key[0] == 0x24) {
        return (repaired.before.findings.len(), left);
    }
    let after = model(&records);
    for (id, content) in intact(before, hit) {
        assert_eq!(
            after.inodes.get(&id),
            Some(&content),
            "{id} was intact: {:#?}",
            repaired.changes
        );
    }
    let is_hit = |tag: u8| hit.iter().any(|key| key[0] == tag);
    // A name exists as long as no record that contains it, nor its directory, was damaged.
    if !is_hit(0x10) && !is_hit(0x11) && !is_hit(0x12) {
        for (path, id) in &before.paths {
            assert_eq!(after.paths.get(path), Some(id), "{path}: {:#?}", repaired.changes);
        }
    }
    (repaired.before.findings.len(), left)
}

/// Goal: after random damage a repair makes nothing worse, loses nothing that was intact, and
/// leaves no finding, unless a record was damaged whose content is stored nowhere else.
#[test]
fn repairs_lose_nothing() {
    let intact = used();
    let before = model(&intact);
    let mut random = Random(11);
    let (mut found, mut repaired) = (0, 0);
    for round in 0..1500 {
        let mut damaged = intact.clone();
        let pieces = 1 + random.below(3);
        let mut hit = damage(&mut damaged, &mut random, pieces);
        damaged.sort();
        damaged.dedup_by(|a, b| a.0 == b.0);
        let shown: Vec<_> = hit.iter().map(|key| hex(key)).collect();
        let _round = Named(format!("round {round}: {shown:?}"));
        // A record that another one has replaced was damaged, too.
        hit.retain(|key| !key.is_empty());
        let store = store_of(&damaged);
        let (findings, left) = check_repair((&before, &damaged), &hit, &store);
        found += usize::from(findings > 0);
        // A lease with a damaged key seems to belong to an unknown session, which may still write.
        let is_alone = hit.iter().any(|key| ALONE.contains(&key[0]) || key[0] == 0x22);
        if findings > 0 && !is_alone && left.iter().all(|finding| finding.area != Area::Commits) {
            assert_eq!(left, vec![], "it is not repaired");
            repaired += 1;
        }
    }
    assert!(found > 800 && repaired > 400, "{found} of 1500 had findings, {repaired} repaired");
}

/// Goal: each record that can be rebuilt from others is rebuilt: one is removed at a time.
#[test]
fn each_record_is_made_anew() {
    let intact = used();
    let before = model(&intact);
    let mut seen = BTreeSet::new();
    for at in 0..intact.len() {
        let mut damaged = intact.clone();
        let (key, _) = damaged.remove(at);
        let _key = Named(format!("without {}", hex(&key)));
        let hit = BTreeSet::from([key.clone()]);
        let store = store_of(&damaged);
        let (findings, left) = check_repair((&before, &damaged), &hit, &store);
        if matches!(key[0], 0x11 | 0x12) {
            assert_eq!(
                model(&store.records()).paths,
                before.paths,
                "a name's other record is there"
            );
        }
        if findings > 0 && !ALONE.contains(&key[0]) {
            assert_eq!(left, vec![]);
            seen.insert(key[0]);
        }
    }
    for tag in [0x10, 0x11, 0x12, 0x21, 0x22, 0x23, 0x25] {
        assert!(seen.contains(&tag), "nothing was repaired of {tag:02x}: {seen:02x?}");
    }
}

/// Goal: blocks count the extents that touch them again, whether the old count was too low or too
/// high.
#[test]
fn blocks_are_counted_anew() {
    let mut fixture = Fixture::new();
    let file = fixture.file("file");
    fixture.write_blocks(file, &[0, u64::from(BLOCK_BYTES)]);
    let copy = fixture.file("copy");
    fixture.core.flush().unwrap();
    let once = fixture.store.records();
    let call = ChangeCall::CopyRange {
        source: file,
        source_offset: 0,
        destination: copy,
        destination_offset: 0,
        length: 2 * u64::from(BLOCK_BYTES),
    };
    fixture.call(&Call::Change(call)).unwrap();
    fixture.core.flush().unwrap();
    let twice = fixture.store.records();
    let live = |records: &[Pair]| records.iter().find(|pair| pair.0[0] == 0x25).cloned().unwrap();
    assert_ne!(live(&once), live(&twice));
    for (right, other) in [(&once, &twice), (&twice, &once)] {
        let mut damaged = right.clone();
        damaged.iter_mut().filter(|pair| pair.0[0] == 0x25).for_each(|pair| *pair = live(other));
        let store = store_of(&damaged);
        let (repaired, _) = repair(&store).unwrap();
        assert_eq!(repaired.after.findings, vec![]);
        assert_eq!(live(&store.records()), live(right), "{:?}", repaired.changes);
    }
}

/// Goal: if a page of extents cannot be read, no block that it may name is freed. If a page is
/// missing that its file still counts, the file's blocks stay.
#[test]
fn blocks_of_unreadable_files_are_kept() {
    let intact = used();
    let is_page = |pair: &&Pair| pair.0[0] == 0x14;
    let pages: Vec<Pair> = intact.iter().filter(is_page).cloned().collect();
    let live = |records: &[Pair]| -> Vec<Pair> {
        records.iter().filter(|pair| pair.0[0] == 0x25).cloned().collect()
    };
    for (key, value) in &pages {
        for is_missing in [true, false] {
            let mut damaged = intact.clone();
            if is_missing {
                damaged.retain(|pair| pair.0 != *key);
            } else {
                let cut = value[..value.len() / 2].to_vec();
                damaged
                    .iter_mut()
                    .filter(|pair| pair.0 == *key)
                    .for_each(|pair| pair.1 = cut.clone());
            }
            // Another repairable damage, so that there is a repair.
            let name = damaged.iter().position(|pair| pair.0[0] == 0x12).unwrap();
            damaged.remove(name);
            let store = store_of(&damaged);
            let (repaired, _) = repair(&store).unwrap();
            assert!(repaired.records > 0 && !repaired.after.findings.is_empty());
            assert_eq!(live(&store.records()), live(&intact), "blocks of {} changed", hex(key));
        }
    }
}

/// Goal: an inode without a name gets one in lost+found, with its data; an intact store stays
/// unchanged.
#[test]
fn orphans_are_found_again() {
    let intact = used();
    let store = store_of(&intact);
    assert_eq!(repair(&store).unwrap().0.records, 0);
    assert_eq!(store.records(), intact);
    let before = model(&intact);
    let id = before.paths["/directory1/below/file2"];
    let mut damaged = intact.clone();
    let names = |pair: &Pair| {
        matches!(pair.0[0], 0x11 | 0x12)
            && model_name(&pair.0, &pair.1) == Some(b"file2".to_vec())
            && number(&pair.0, 0) == before.paths["/directory1/below"].0
    };
    damaged.retain(|pair| !names(pair));
    assert_eq!(damaged.len(), intact.len() - 2);
    let store = store_of(&damaged);
    let (repaired, _) = repair(&store).unwrap();
    assert_eq!(repaired.after.findings, vec![]);
    let after = model(&store.records());
    assert_eq!(after.paths[&format!("/lost+found/inode-{}", id.0)], id);
    assert_eq!(after.inodes[&id], before.inodes[&id]);
}

/// Returns the name that a record contains.
fn model_name(key: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    if key[0] == 0x11 {
        return Some(key[9..].to_vec());
    }
    value.windows(5).any(|bytes| bytes == b"file2").then(|| b"file2".to_vec())
}
