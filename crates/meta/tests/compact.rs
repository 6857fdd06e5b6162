//! Compaction in the core: which exchanges of extents are executed, and which are refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/fixture.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{BLOCK_BYTES, Fixture};
use meta::tree::{Conflict, ConflictKind};
use protocol::client::{Answer, Call, ChangeCall, FallocateMode, ReadCall};
use protocol::space::{DeviceInfo, NewAllocation};
use protocol::{
    AllocationId, DeviceId, Errno, Extent, ExtentList, Generation, Incarnation, InodeId, Place,
    Rights,
};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks of the file.
const BLOCKS: u64 = 8;

/// The request of a client that has copied the whole file to adjacent blocks.
struct Copied {
    inode: InodeId,
    generation: Generation,
    old: Vec<Extent>,
    allocations: Vec<NewAllocation>,
    new: Vec<Extent>,
}

impl Copied {
    fn call(&self) -> Call {
        Call::Change(ChangeCall::Compact {
            sums: protocol::sums::Sums::default(),
            inode: self.inode,
            generation: self.generation,
            old: ExtentList(self.old.clone()),
            allocations: self.allocations.clone(),
            new: ExtentList(self.new.clone()),
        })
    }
}

fn extents(fixture: &mut Fixture, inode: InodeId) -> Vec<Extent> {
    let call = ReadCall::ReadExtents { inode, offset: 0, length: BLOCKS * BLOCK };
    match fixture.call(&Call::Read(call)) {
        Ok(Answer::Extents { extents, .. }) => extents.0,
        other => panic!("{other:?}"),
    }
}

/// Creates a file whose blocks are all apart on the device.
fn worn(fixture: &mut Fixture) -> InodeId {
    let inode = fixture.file("a");
    for at in (0..BLOCKS).rev() {
        fixture.write_blocks(inode, &[at * BLOCK]);
    }
    inode
}

/// Copies the content of a file.
fn copied(fixture: &mut Fixture, inode: InodeId) -> Copied {
    let old = extents(fixture, inode);
    let blocks: Vec<AllocationId> = (0..BLOCKS).map(|_| fixture.take_block()).collect();
    let allocation = blocks[0];
    let new = NewAllocation {
        allocation,
        blocks: BLOCKS as u32,
        incarnation: Incarnation(7),
        is_flushed: true,
    };
    let whole =
        Extent { offset: 0, length: (BLOCKS * BLOCK) as u32, place: Place { allocation, at: 0 } };
    let generation = fixture.core.attr(inode).unwrap().generation;
    Copied { inode, generation, old, allocations: vec![new], new: vec![whole] }
}

fn allocated(fixture: &mut Fixture) -> u64 {
    fixture.reclaim_all();
    fixture.check();
    fixture.core.device_use(DeviceId(0)).unwrap().allocated()
}

/// Goal: afterwards a file in pieces is in one piece, is the same file with the same bytes, and
/// holds none of its old blocks (P9). Other sessions are asked before, as for any change of extents
/// (T1).
#[test]
fn pieces_are_exchanged_for_one() {
    let mut fixture = Fixture::new();
    let inode = worn(&mut fixture);
    let before = fixture.core.attr(inode).unwrap();
    let copied = copied(&mut fixture, inode);
    assert_eq!(copied.old.len() as u64, BLOCKS);
    let conflicts = fixture.core.conflicts(fixture.session, &copied.call()).unwrap();
    let kind = ConflictKind::Recall(Rights::READ | Rights::SOLE);
    assert_eq!(conflicts, [Conflict { inode, kind }]);
    assert_eq!(fixture.call(&copied.call()), Ok(Answer::Attr(before)));
    assert_eq!(extents(&mut fixture, inode), copied.new);
    assert_eq!(allocated(&mut fixture), BLOCKS);
}

/// Goal: a range in the middle is exchanged without its neighbours, for any cuts of its extents.
#[test]
fn a_part_is_exchanged() {
    let mut fixture = Fixture::new();
    let inode = worn(&mut fixture);
    let mut copied = copied(&mut fixture, inode);
    let (start, end) = (2 * BLOCK, 5 * BLOCK + 100);
    let clip = |extents: &[Extent]| -> Vec<Extent> {
        extents.iter().filter_map(|extent| extent.clip(start, end)).collect()
    };
    // Cut at another offset than the service would.
    let old = clip(&copied.old);
    let halves = |extent: &Extent| {
        let middle = extent.offset + 50;
        [extent.clip(0, middle).unwrap(), extent.clip(middle, end).unwrap()]
    };
    copied.old = old.iter().flat_map(halves).collect();
    copied.new = clip(&copied.new);
    fixture.call(&copied.call()).unwrap();
    let after = extents(&mut fixture, inode);
    assert_eq!(clip(&after), copied.new);
    assert_eq!(after.len() as u64, 2 + 1 + 3);
    // The named blocks lie in one allocation; those that no extent touches are free again.
    assert_eq!(allocated(&mut fixture), BLOCKS + 1);
}

/// Goal: a change of the file after its extents were read stays: the exchange is refused without a
/// trace, and without a recall (P9).
#[test]
fn what_was_changed_since_is_left_alone() {
    type Change = fn(&mut Fixture, InodeId);
    let punch: Change = |fixture, inode| {
        let mode = FallocateMode::Punch;
        let call = ChangeCall::Fallocate { inode, offset: 3 * BLOCK, length: BLOCK, mode };
        fixture.call(&Call::Change(call)).unwrap();
    };
    let changes: [Change; 4] = [
        |fixture, inode| _ = fixture.write_blocks(inode, &[3 * BLOCK]),
        |fixture, inode| fixture.write(inode, 10, 1),
        |fixture, inode| fixture.truncate(inode, 5 * BLOCK),
        punch,
    ];
    for change in changes {
        let mut fixture = Fixture::new();
        let inode = worn(&mut fixture);
        let copied = copied(&mut fixture, inode);
        change(&mut fixture, inode);
        let after = extents(&mut fixture, inode);
        assert_eq!(fixture.core.conflicts(fixture.session, &copied.call()), Ok(Vec::new()));
        assert_eq!(fixture.call(&copied.call()), Err(Errno::EAGAIN));
        assert_eq!(extents(&mut fixture, inode), after);
        fixture.check();
    }
}

/// Goal: bytes between the old extents that were holes when they were read, and have data now, are
/// not cut off.
#[test]
fn a_hole_that_was_filled_is_left_alone() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    fixture.write_blocks(inode, &[0]);
    fixture.write_blocks(inode, &[(BLOCKS - 1) * BLOCK]);
    let mut copied = copied(&mut fixture, inode);
    let whole = copied.new[0];
    copied.new = copied.old.iter().filter_map(|old| whole.clip(old.offset, old.end())).collect();
    fixture.write_blocks(inode, &[3 * BLOCK]);
    assert_eq!(fixture.call(&copied.call()), Err(Errno::EAGAIN));
}

/// Goal: a client that is wrong, or lies, removes no bytes and adds none, and makes nothing less
/// safe: named blocks must be flushed (F10).
#[test]
fn exchanges_that_would_harm_are_refused() {
    let harms: [fn(&mut Copied); 6] = [
        |copied| copied.new[0].length -= 1,
        |copied| copied.new[0].offset += 1,
        |copied| copied.allocations[0].is_flushed = false,
        |copied| copied.allocations.clear(),
        |copied| copied.old.clear(),
        |copied| copied.old.swap(0, 1),
    ];
    for (number, harm) in harms.into_iter().enumerate() {
        let mut fixture = Fixture::new();
        let inode = worn(&mut fixture);
        let mut copied = copied(&mut fixture, inode);
        harm(&mut copied);
        assert_eq!(fixture.call(&copied.call()), Err(Errno::EINVAL), "harm {number}");
        fixture.check();
    }
}

/// Goal: data of a disk is not moved into memory, where the next power cut would destroy it (F10).
#[test]
fn what_a_disk_has_stays_on_disks() {
    let mut fixture = Fixture::new();
    let inode = worn(&mut fixture);
    let mut copied = copied(&mut fixture, inode);
    let known = fixture.core.devices().remove(0);
    let uuid = uuid::Uuid::from_u128(101);
    let memory = DeviceInfo { uuid, is_volatile: true, ..known };
    let device = fixture.core.register_device(&memory).unwrap();
    fixture.core.set_online(device, true);
    let call = Call::Change(ChangeCall::LeaseSpace { device, wanted_bytes: BLOCKS * BLOCK });
    let Ok(Answer::Space(grant)) = fixture.call(&call) else { panic!("no space") };
    assert_eq!(grant.device, device);
    let allocation = AllocationId { device, block: grant.free[0].start };
    copied.allocations[0].allocation = allocation;
    copied.new[0].place.allocation = allocation;
    assert_eq!(fixture.call(&copied.call()), Err(Errno::EINVAL));
    fixture.check();
}
