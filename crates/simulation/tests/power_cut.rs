//! Power losses at many moments of one run, through the whole shipped system. Data that fsync has
//! acknowledged must be there. Any other read returns bytes of that file that are not older than
//! the last fsync, or EIO. It never returns another file's bytes, or what a block held before its
//! first write.
//!
//! A run is recorded once: each write and flush of the devices, each commit and sync of the store.
//! From the record the test builds the states that a power loss could leave: a prefix of the
//! store's commits that contains all synced ones; on each device all flushed writes, and a random
//! subset of the blocks of the others. It restarts the system on such a state and checks all files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "power_cut/cluster.rs"]
mod cluster;
#[path = "power_cut/tape.rs"]
mod tape;

use client::{Client, Handle, OpenMode, Setting};
use cluster::{machines, start_meta, start_node};
use meta::store::MemoryStore;
use meta::tree::{Boot, Core};
use protocol::{Errno, InodeId};
use reactor::time::sleep;
use reactor::{Buffer, Chunk};
use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;
use tape::{Left, Random, Tape, device_of};

const SLOTS: usize = 5;
/// Words of 8 bytes in a file.
const WORDS: usize = 20_000;
/// Number of power losses per run.
const CUTS: usize = 12;
const WRITE: OpenMode = OpenMode { write: true, append: false, sync: false };

/// The parameters of a run.
#[derive(Clone, Copy)]
struct Load {
    nodes: usize,
    device_bytes: u64,
    steps: usize,
    /// One in this number of writes is made durable.
    fsync_one_in: u64,
    /// A pause follows one in this number of steps.
    pause_one_in: u64,
    /// The longest pause.
    pause_ms: u64,
    /// Largest number of words of a write.
    words_max: usize,
    /// The machines that lose power, for each variant; `None` is the metadata service's.
    off: &'static [&'static [Option<usize>]],
}

/// Files on two nodes with much free space, at the pace of an application.
const ROOMY: Load = Load {
    nodes: 2,
    device_bytes: 3 << 20,
    steps: 80,
    fsync_one_in: 5,
    pause_one_in: 4,
    pause_ms: 700,
    words_max: WORDS,
    off: &[&[None, Some(0), Some(1)], &[None], &[Some(0)], &[Some(1)]],
};

/// Files on two nodes that are written in small pieces, with pauses in which they are compacted.
const WORN: Load = Load {
    nodes: 2,
    device_bytes: 8 << 20,
    steps: 160,
    fsync_one_in: 2,
    pause_one_in: 8,
    pause_ms: 6000,
    words_max: 60,
    off: &[&[None, Some(0), Some(1)], &[Some(0)], &[Some(1)]],
};

/// A run with little free space, in which space of deleted files is needed again before the store
/// is synced.
const TIGHT: Load = Load {
    nodes: 1,
    device_bytes: 1 << 21,
    steps: 120,
    fsync_one_in: 60,
    pause_one_in: u64::MAX,
    pause_ms: 700,
    words_max: WORDS,
    off: &[&[None], &[None, Some(0)]],
};

/// A write of a range of words to a slot's file; each word contains slot, version and place.
#[derive(Clone, Debug)]
struct Version {
    words: std::ops::Range<usize>,
    begun: usize,
}

/// The certain facts about a slot at a moment.
#[derive(Clone, Debug)]
struct Certain {
    moment: usize,
    /// For each word: the newest version that fsync has acknowledged, 0 if there is none.
    durable: Vec<u32>,
    /// All versions up to this one were durably deleted.
    deleted: u32,
    /// The newest version at that moment; later ones may be visible too.
    newest: u32,
}

#[derive(Default)]
struct Slot {
    /// Version n is the n-th element, counted from 1.
    versions: Vec<Version>,
    /// For each word: the newest version that was written.
    written: Vec<u32>,
    certain: Vec<Certain>,
    /// The moments at which deletions began, with the newest version then.
    deletions: Vec<(usize, u32)>,
}

fn word(slot: usize, version: u32, at: usize) -> u64 {
    (slot as u64 + 1) << 56 | u64::from(version) << 32 | at as u64
}

fn name(slot: usize) -> Vec<u8> {
    format!("file{slot}").into_bytes()
}

async fn open(client: &Rc<Client>, slot: usize) -> Handle {
    if let Ok(attr) = client.lookup(InodeId::ROOT, &name(slot)).await {
        return client.open(attr.inode, WRITE).await.unwrap().0;
    }
    let setting = Setting { mode: 0o644, uid: 0, gid: 0 };
    client.create(InodeId::ROOT, &name(slot), setting, WRITE).await.unwrap().0
}

/// Records that all earlier writes to a slot are durable.
fn now_certain(slot: &mut Slot, moment: usize, deleted: u32) {
    let newest = slot.versions.len() as u32;
    let durable = slot.written.clone();
    let deleted = deleted.max(slot.certain.last().map_or(0, |certain| certain.deleted));
    slot.certain.push(Certain { moment, durable, deleted, newest });
}

async fn write(
    load: &Load,
    tape: &Tape,
    client: &Rc<Client>,
    slots: &RefCell<Vec<Slot>>,
    random: &mut Random,
) {
    let index = random.below(SLOTS as u64) as usize;
    let handle = open(client, index).await;
    for _ in 0..=random.below(2) {
        let start = random.below(WORDS as u64 / 2) as usize;
        let most = (WORDS - start).min(load.words_max);
        let words = start..start + 1 + random.below(most as u64) as usize;
        let version = {
            let slot = &mut slots.borrow_mut()[index];
            slot.versions.push(Version { words: words.clone(), begun: tape.now() });
            slot.versions.len() as u32
        };
        let bytes: Vec<u8> =
            words.clone().flat_map(|at| word(index, version, at).to_le_bytes()).collect();
        let chunk = Chunk::Shared(Buffer::copy_from(&bytes).freeze());
        let before = slots.borrow()[index].written[words.clone()].to_vec();
        slots.borrow_mut()[index].written[words.clone()].fill(version);
        match client.write(&handle, words.start as u64 * 8, chunk, false).await {
            Ok(_) => {}
            // A part of the write may be visible.
            Err(Errno::ENOSPC) => {
                slots.borrow_mut()[index].written[words].copy_from_slice(&before);
            }
            Err(errno) => panic!("write: {errno}"),
        }
    }
    let is_synced_open = random.below(load.fsync_one_in) == 0;
    if is_synced_open {
        client.fsync(handle.inode()).await.unwrap();
    }
    client.release(&handle).await.unwrap();
    if is_synced_open || random.below(load.fsync_one_in) == 0 {
        // An fsync covers a closed file too.
        client.fsync(handle.inode()).await.unwrap();
        now_certain(&mut slots.borrow_mut()[index], tape.now(), 0);
    }
    client.forget(handle.inode(), 1);
}

async fn delete(
    load: &Load,
    tape: &Tape,
    client: &Rc<Client>,
    slots: &RefCell<Vec<Slot>>,
    random: &mut Random,
) {
    let index = random.below(SLOTS as u64) as usize;
    let newest = slots.borrow()[index].versions.len() as u32;
    slots.borrow_mut()[index].deletions.push((tape.now(), newest));
    match client.unlink(InodeId::ROOT, &name(index)).await {
        Ok(()) | Err(Errno::ENOENT) => {}
        Err(errno) => panic!("unlink: {errno}"),
    }
    slots.borrow_mut()[index].written.fill(0);
    if random.below(load.fsync_one_in) == 0 {
        client.fsync(InodeId::ROOT).await.unwrap();
        now_certain(&mut slots.borrow_mut()[index], tape.now(), newest);
    }
}

/// Runs the load. Returns the record and the certain facts about it.
fn record(load: &Load, seed: u64) -> (Tape, Vec<Slot>) {
    let (mut simulation, meta, nodes) = machines(seed, load.nodes);
    let tape = Tape::new(load.nodes, load.device_bytes);
    let slot = || Slot { written: vec![0; WORDS], ..Slot::default() };
    let slots = RefCell::new((0..SLOTS).map(|_| slot()).collect());
    let ended = simulation.run(async {
        start_meta(&meta, Box::new(tape.clone()), 1);
        let mut clients = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let machines = (meta.clone(), node.clone());
            let backing = std::sync::Arc::new(tape.devices[index].clone());
            clients.push(start_node(&machines, index, backing, 1).await);
        }
        let mut random = Random(seed);
        for _ in 0..load.steps {
            let client = &clients[random.below(load.nodes as u64) as usize];
            if random.below(4) == 0 {
                delete(load, &tape, client, &slots, &mut random).await;
            } else {
                write(load, &tape, client, &slots, &mut random).await;
            }
            if random.below(load.pause_one_in) == 0 {
                sleep(Duration::from_millis(random.below(load.pause_ms))).await;
            }
        }
        let pieces = clients.iter().map(|client| client.counts().compaction.compacted_pieces);
        let is_worn = load.words_max < WORDS;
        assert!(pieces.sum::<u64>() > 0 || !is_worn, "nothing was compacted");
    });
    ended.unwrap();
    (tape, slots.into_inner())
}

/// Returns the content of a slot's file word by word; `None` is EIO.
async fn content(client: &Rc<Client>, slot: usize) -> Option<Vec<Option<u64>>> {
    let attr = match client.lookup(InodeId::ROOT, &name(slot)).await {
        Ok(attr) => attr,
        Err(Errno::ENOENT) => return None,
        Err(errno) => panic!("lookup: {errno}"),
    };
    let mut words = Vec::new();
    let size = attr.size as usize / 8;
    while words.len() < size {
        // Small reads, so that a lost block hides little else.
        let count = (size - words.len()).min(512);
        match client.read(attr.inode, words.len() as u64 * 8, count * 8, None).await {
            Ok(chunks) => {
                let bytes: Vec<u8> =
                    chunks.iter().flat_map(|chunk| chunk.to_bytes().to_vec()).collect();
                assert_eq!(bytes.len(), count * 8, "a short read before the end");
                let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
                words.extend(bytes.chunks(8).map(|bytes| Some(word(bytes))));
            }
            Err(Errno::EIO) => words.extend(std::iter::repeat_n(None, count)),
            Err(errno) => panic!("read: {errno}"),
        }
    }
    client.forget(attr.inode, 1);
    Some(words)
}

/// Checks one slot after a power loss at a moment. Returns how many words were EIO.
fn check(index: usize, slot: &Slot, moment: usize, found: Option<&[Option<u64>]>) -> usize {
    let certain = slot.certain.iter().rev().find(|certain| certain.moment <= moment);
    let begun = |version: u32| slot.versions[version as usize - 1].begun <= moment;
    let newest = certain.map_or(0, |certain| certain.newest);
    // A change of this slot was under way, without an acknowledgement that it is durable.
    let is_open = slot.deletions.iter().any(|(begun, at)| *begun <= moment && *at >= newest)
        || slot.versions.len() as u32 > newest && begun(newest + 1);
    // A deletion that began may have taken effect, and so may all later writes.
    let may_be_gone = certain.is_none_or(|certain| certain.durable.iter().all(|at| *at == 0))
        || slot.deletions.iter().any(|(begun, at)| *begun <= moment && *at >= newest);
    let floor = |at: usize| match certain {
        Some(certain) if !may_be_gone => certain.durable[at],
        _ => 0,
    };
    let deleted = certain.map_or(0, |certain| certain.deleted);
    let Some(found) = found else {
        assert!(may_be_gone, "file{index} is gone at {moment}");
        return 0;
    };
    let last = (0..WORDS).rev().find(|at| floor(*at) > 0);
    assert!(last.is_none_or(|last| found.len() > last), "file{index} is short at {moment}");
    let mut lost = 0;
    for (at, found) in found.iter().enumerate() {
        let Some(found) = found else {
            lost += 1;
            assert!(is_open, "file{index} word {at} is EIO at {moment}, though it was fsynced");
            continue;
        };
        if *found == 0 {
            assert_eq!(floor(at), 0, "file{index} word {at} is zero at {moment}");
            continue;
        }
        let version = (*found >> 32) as u32 & 0x00ff_ffff;
        let is_its = (version as usize).checked_sub(1).and_then(|n| slot.versions.get(n));
        let is_its = is_its.is_some_and(|version| version.words.contains(&at));
        assert!(
            is_its && *found == word(index, version, at),
            "file{index} word {at} is of another file at {moment}: {found:#018x}"
        );
        assert!(begun(version), "file{index} word {at} is of version {version}, yet to come");
        let least = floor(at);
        assert!(version >= least, "file{index} word {at} is {version}, fsync promised {least}");
        assert!(version > deleted, "file{index} word {at} is {version}, which was deleted");
    }
    lost
}

/// Starts the system on the remaining state and checks everything. Returns the number of words that
/// were EIO.
fn look(left: Left, moment: usize, off: &[Option<usize>], slots: &[Slot]) -> usize {
    let (mut simulation, meta, nodes) = machines(moment as u64, left.images.len());
    let store: MemoryStore = left.store.clone();
    let boot = if off.contains(&None) { 2 } else { 1 };
    let lost = simulation.run(async {
        start_meta(&meta, Box::new(store), boot);
        let mut clients = Vec::new();
        for (index, image) in left.images.into_iter().enumerate() {
            let machines = (meta.clone(), nodes[index].clone());
            let incarnation = if off.contains(&Some(index)) { 2 } else { 1 };
            clients.push(start_node(&machines, index, device_of(image).await, incarnation).await);
        }
        let mut lost = 0;
        for (index, slot) in slots.iter().enumerate() {
            let client = &clients[index % clients.len()];
            let found = content(client, index).await;
            lost += check(index, slot, moment, found.as_deref());
        }
        for index in 0..SLOTS {
            match clients[0].unlink(InodeId::ROOT, &name(index)).await {
                Ok(()) | Err(Errno::ENOENT) => {}
                Err(errno) => panic!("unlink: {errno}"),
            }
        }
        // Waits until the earlier sessions have ended and all files can be read.
        sleep(Duration::from_mins(3)).await;
        let pool = clients[0].pool_use().await.unwrap();
        assert_eq!((pool.free_bytes, pool.inodes), (pool.total_bytes, 1), "after cut {moment}");
        lost
    });
    let boot = Boot {
        boot: uuid::Uuid::from_u128(boot),
        file_system: uuid::Uuid::from_u128(9),
        now: protocol::Timestamp(0),
        root: (0o755, 0, 0),
    };
    let problems = Core::open(Box::new(left.store), &boot).unwrap().0.check().unwrap();
    assert!(problems.is_empty(), "{problems:#?}");
    lost.unwrap()
}

/// Writes a file with enough pieces that they are committed in several parts. Returns the record,
/// the certain facts about it, and how often the one fsync synced the store.
fn record_parts() -> (Tape, Vec<Slot>, usize) {
    const RUNS: usize = 2500;
    let (mut simulation, meta, nodes) = machines(1, 1);
    let tape = Tape::new(1, 3 << 20);
    let mut slots: Vec<Slot> = (0..SLOTS).map(|_| Slot::default()).collect();
    let syncs = simulation.run(async {
        start_meta(&meta, Box::new(tape.clone()), 1);
        let backing = std::sync::Arc::new(tape.devices[0].clone());
        let client = start_node(&(meta, nodes[0].clone()), 0, backing, 1).await;
        let handle = open(&client, 0).await;
        slots[0].written = vec![0; WORDS];
        for run in 0..RUNS {
            let at = run * (WORDS / RUNS);
            slots[0].versions.push(Version { words: at..at + 1, begun: tape.now() });
            let version = slots[0].versions.len() as u32;
            slots[0].written[at] = version;
            let bytes = word(0, version, at).to_le_bytes();
            let chunk = Chunk::Shared(Buffer::copy_from(&bytes).freeze());
            client.write(&handle, at as u64 * 8, chunk, false).await.unwrap();
        }
        let before = tape.syncs();
        client.fsync(handle.inode()).await.unwrap();
        let syncs = tape.syncs() - before;
        now_certain(&mut slots[0], tape.now(), 0);
        client.release(&handle).await.unwrap();
        syncs
    });
    (tape, slots, syncs.unwrap())
}

/// Cuts the power at many moments of runs of a load. Returns the number of words that were EIO.
fn cut(load: &Load) -> usize {
    let seeds = std::env::var("POWER_CUT_SEEDS").map_or(1, |seeds| seeds.parse().unwrap());
    let mut lost = 0;
    for seed in 1..=seeds {
        let (tape, slots) = record(load, seed);
        let mut random = Random(seed ^ 0xc07);
        let begin = slots.iter().filter_map(|slot| slot.versions.first()).map(|v| v.begun).min();
        let begin = begin.unwrap();
        for _ in 0..CUTS {
            let moment = begin + random.below((tape.now() - begin) as u64 + 1) as usize;
            let off = load.off[random.below(load.off.len() as u64) as usize];
            let left = tape.cut(moment, |machine| off.contains(&machine), &mut random);
            lost += look(left, moment, off, &slots);
        }
    }
    lost
}

/// Goal: see the head of this file.
#[test]
fn a_power_cut_takes_only_what_was_not_fsynced() {
    assert!(cut(&ROOMY) > 0, "no cut met unflushed data: this test shows nothing");
}

/// Goal: what fsync has made durable stays durable when it is compacted (F10), and at each moment
/// of the compaction.
#[test]
fn compaction_keeps_what_was_fsynced() {
    cut(&WORN);
}

/// Goal: a store that lost the deletion of a file does not name blocks that now hold other data.
#[test]
fn space_is_used_again_only_after_a_sync() {
    cut(&TIGHT);
}

/// Goal: of a commit in parts only the last part waits for the store's disk, and then the whole
/// commit is durable.
#[test]
fn a_commit_in_parts_is_durable_with_its_last() {
    let (tape, slots, syncs) = record_parts();
    // One more sync may come from the regular one that makes names durable.
    assert!(syncs <= 2, "{syncs} syncs of the store for three parts");
    let moment = slots[0].certain[0].moment;
    for seed in 0..4 {
        let left = tape.cut(moment, |_| true, &mut Random(seed));
        assert_eq!(look(left, moment, &[None, Some(0)], &slots), 0);
    }
}
