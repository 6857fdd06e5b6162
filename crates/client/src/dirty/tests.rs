//! Tests of fills, parts of commits, and deferred changes of attributes.

use super::*;
use crate::dirty::parts::Cursor;
use crate::space::Allocated;
use crate::space::reservation::{Memory, Reserved};
use protocol::attr::Layout;
use protocol::{AllocationId, Attr, FileKind, Generation, Incarnation, InodeId};
use reactor::local::Semaphore;
use std::collections::BTreeSet;

const DEVICE: DeviceId = DeviceId(1);

thread_local! {
    /// Blocks that a test has reserved.
    static RESERVED: Reserved = Reserved::default();
}

fn reservation(bytes: usize) -> Reservation {
    let budget = Semaphore::new(bytes);
    let permit = budget.try_acquire(bytes).unwrap();
    let blocks = RESERVED.with(|reserved| reserved.take(DEVICE, bytes.div_ceil(4096) as u64));
    Reservation::new(Memory::acquired(&budget, permit, bytes), blocks)
}

fn begin(dirty: &mut Dirty) -> FillId {
    dirty.begin(4096, Buffer::with_capacity(FILL_BYTES), reservation(0))
}

/// Makes a written fill with one byte at each of these offsets.
fn fill(dirty: &mut Dirty, offsets: impl IntoIterator<Item = u64>) -> FillId {
    let id = begin(dirty);
    let byte = Chunk::copy_from(&[1]);
    for offset in offsets {
        dirty.append(id, offset, ChunkPart { chunk: &byte, part: 0..1 }, reservation(1));
    }
    dirty.seal(id).unwrap();
    dirty.written(id, Pieces::new(), Vec::new(), 1);
    id
}

/// Makes a written fill with `length` bytes at each of these offsets, in blocks 1000 and on.
fn blocks(dirty: &mut Dirty, offsets: impl IntoIterator<Item = u64>, length: usize) -> FillId {
    let id = begin(dirty);
    let bytes = Chunk::copy_from(&vec![1; length]);
    for offset in offsets {
        dirty.append(id, offset, ChunkPart { chunk: &bytes, part: 0..length }, reservation(length));
    }
    dirty.seal(id).unwrap();
    let blocks = dirty.fills[&id].used.div_ceil(4096);
    let sums = (0..blocks).collect();
    dirty.written(id, Pieces::from_elem((0, piece(1000, blocks)), 1), sums, 1);
    id
}

fn piece(block: u64, blocks: u32) -> Allocated {
    let allocation = AllocationId { device: DEVICE, block };
    Allocated { allocation, blocks, incarnation: Incarnation(1) }
}

fn parts(dirty: &Dirty, count_max: usize) -> Vec<Vec<(FillId, u64)>> {
    let mut parts = Vec::new();
    let mut from = Some(Cursor::default());
    while let Some(cursor) = from {
        let (runs, next) = dirty.committable(&dirty.present(), cursor, count_max);
        parts.push(runs.iter().map(|run| (run.place.fill, run.offset)).collect());
        from = next;
    }
    parts
}

/// Goal: bytes that were written together go out in one part, each part ascending, and none twice.
/// Only a fill that is too much for a part is cut.
#[test]
fn a_fill_goes_out_in_one_part() {
    let mut dirty = Dirty::default();
    let a = fill(&mut dirty, [0, 20, 40]);
    let b = fill(&mut dirty, [10, 30]);
    let c = blocks(&mut dirty, (100..105).map(|block| block * 8192), 4096);
    let d = fill(&mut dirty, [50]);
    let under_way = begin(&mut dirty);
    let byte = Chunk::copy_from(&[1]);
    dirty.append(under_way, 60, ChunkPart { chunk: &byte, part: 0..1 }, reservation(1));
    let expected = vec![
        vec![(a, 0), (a, 20), (a, 40)],
        vec![(b, 10), (b, 30)],
        [100, 101, 102, 103].map(|block| (c, block * 8192)).to_vec(),
        vec![(d, 50), (c, 104 * 8192)],
    ];
    assert_eq!(parts(&dirty, 4), expected);
    let one = vec![(a, 0), (b, 10), (a, 20), (b, 30), (a, 40)];
    assert_eq!(parts(&dirty, 5)[0], one);
    assert_eq!(parts(&Dirty::default(), 4), vec![Vec::new()]);
}

/// Goal: a fill that is too much for a part is cut between blocks: if a part named only some of a
/// block's bytes, the block could be gone before the next part.
#[test]
fn no_block_is_cut() {
    let mut dirty = Dirty::default();
    let id = blocks(&mut dirty, (0..20).map(|i| i * 8192), 1024);
    let counts: Vec<usize> = parts(&dirty, 6).iter().map(Vec::len).collect();
    assert_eq!(counts, [8, 8, 4]);
    assert!(parts(&dirty, 6).iter().flatten().all(|(fill, _)| *fill == id));
}

/// Goal: if the bytes around every block's end are one run, a cut parts such a run, so that no two
/// parts name bytes of one block. The parts have all bytes of the fill, each once.
#[test]
fn a_run_over_the_end_of_a_block_is_cut_there() {
    for step in [100, 100 + 4096] {
        let mut dirty = Dirty::default();
        let all = 40 * 4096 + 50;
        let id = blocks(&mut dirty, [0], all);
        // No byte at the end of a block.
        let holes: Vec<u64> = (60..all as u64 - 60)
            .step_by(step)
            .filter(|at| (1..4095).contains(&(at % 4096)))
            .collect();
        for part in holes.chunks(100) {
            fill(&mut dirty, part.iter().copied());
        }
        let asked: Vec<_> =
            dirty.present().into_iter().filter(|run| run.place.fill == id).collect();
        let (mut from, mut parts) = (Some(Cursor::default()), Vec::new());
        while let Some(cursor) = from {
            let (runs, next) = dirty.committable(&asked, cursor, 30);
            assert!(!runs.is_empty() && runs.len() <= 30 + 4096 / 100 + 2, "{runs:?}");
            parts.push(runs);
            from = next;
        }
        assert!(parts.len() > 1);
        let blocks_of = |part: &Vec<Run<FillPlace>>| -> BTreeSet<u32> {
            part.iter().flat_map(|run| dirty.fills[&id].blocks_of(run)).collect()
        };
        for pair in parts.windows(2) {
            assert!(blocks_of(&pair[0]).is_disjoint(&blocks_of(&pair[1])), "{pair:?}");
        }
        let bytes = |runs: &[Run<FillPlace>]| runs.iter().map(|run| run.length).sum::<u64>();
        assert_eq!(bytes(&parts.concat()), bytes(&asked));
    }
}

/// Goal: a commit names the blocks that its runs touch, once, and no others; those are free again.
#[test]
fn commits_name_what_they_touch() {
    let mut dirty = Dirty::default();
    let first = blocks(&mut dirty, [0, 8192, 16384, 24576], 4096);
    // These cover the second block, and half of the third.
    blocks(&mut dirty, [8192, 16384], 2048);
    let bytes = Chunk::copy_from(&[2; 4096]);
    let over = ChunkPart { chunk: &bytes, part: 0..4096 };
    let late = begin(&mut dirty);
    dirty.append(late, 8192, over, reservation(4096));
    let runs: Vec<_> = dirty.present().into_iter().filter(|run| run.place.fill == first).collect();
    let named = dirty.name(&runs, |_, _| false);
    let ranges: Vec<_> =
        named.allocations.iter().map(|new| (new.allocation.block, new.blocks)).collect();
    assert_eq!(ranges, [(1000, 1), (1002, 2)]);
    assert_eq!(dirty.fills[&first].unnamed(), [piece(1001, 1)]);
    assert_eq!(dirty.name(&runs, |_, _| false).allocations, []);
    dirty.unname(&named);
    assert_eq!(dirty.fills[&first].unnamed(), [piece(1000, 4)]);
}

/// Goal: blocks that no commit has named are not used again while a read of them is running.
#[test]
fn blocks_that_are_read_are_not_used_again() {
    let mut dirty = Dirty::default();
    let id = blocks(&mut dirty, [0], 4096);
    let reader = Rc::clone(&dirty.fills[&id].readers);
    dirty.forget_runs();
    assert!(dirty.take_done().is_empty());
    drop(reader);
    assert_eq!(dirty.take_done().len(), 1);
}

fn attr(mode: u16) -> Attr {
    Attr {
        inode: InodeId(7),
        kind: FileKind::File,
        mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated_bytes: 0,
        atime: Timestamp(0),
        mtime: Timestamp(0),
        ctime: Timestamp(0),
        version: 1,
        data_version: 1,
        generation: Generation(0),
        layout: Layout::NEAR,
    }
}

/// Goal: of changes and writes in any order the last one counts. A mode set after a new owner
/// stays, one set before loses suid and sgid; a write after a set time renews it.
#[test]
fn what_came_last_counts() {
    let mode = |mode| AttrChanges { mode: Some(mode), ..AttrChanges::default() };
    let owner = AttrChanges { uid: Some(5), ..AttrChanges::default() };
    let time = AttrChanges { mtime: Some(Timestamp(3)), ..AttrChanges::default() };
    let mut dirty = Dirty::default();
    dirty.set_attributes(&mode(0o4755), Timestamp(1));
    dirty.set_attributes(&owner, Timestamp(2));
    let mut shown = attr(0o600);
    dirty.deferral.show_waiting(&mut shown);
    assert_eq!((shown.mode, shown.uid, shown.ctime), (0o755, 5, Timestamp(2)));
    dirty.set_attributes(&mode(0o4755), Timestamp(3));
    dirty.set_attributes(&time, Timestamp(3));
    dirty.deferral.show_waiting(&mut shown);
    assert_eq!((shown.mode, shown.mtime), (0o4755, Timestamp(3)));
    dirty.touch(Timestamp(9), true);
    let sent = dirty.deferral.send().unwrap();
    assert_eq!((sent.changes.mode, sent.changes.mtime), (Some(0o755), None));
    assert_eq!(dirty.take_mtime(), Some(Timestamp(9)));
    assert!(!dirty.is_clean(), "what is on its way may still be lost");
    dirty.deferral.answered();
    assert!(dirty.is_clean() || dirty.kill_privileges);
}

/// Goal: a time that is set after a write replaces that of the write.
#[test]
fn a_time_that_is_set_replaces_that_of_the_write() {
    let time = AttrChanges { mtime: Some(Timestamp(3)), ..AttrChanges::default() };
    let mut dirty = Dirty::default();
    dirty.touch(Timestamp(9), false);
    dirty.set_attributes(&time, Timestamp(10));
    assert_eq!(dirty.take_mtime(), None);
    assert_eq!(dirty.deferral.send().unwrap().changes.mtime, Some(Timestamp(3)));
}
