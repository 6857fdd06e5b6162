//! Committed data after its device has lost power.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/fixture.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{Fixture, commit};
use meta::store::CrashPoint;
use meta::tree::Durable;
use protocol::client::{Answer, Call, ChangeCall, FallocateMode, ReadCall};
use protocol::space::{DeviceInfo, NewAllocation};
use protocol::{DeviceId, Errno, Extent, Incarnation, InodeId, Place};

const DEVICE: DeviceId = DeviceId(0);

/// Registers the device again after its node lost power.
fn lose_power(fixture: &mut Fixture, incarnation: u128) {
    let known = fixture.core.devices().remove(0);
    let incarnation = Incarnation(incarnation);
    let info = DeviceInfo { incarnation, ..known };
    assert_eq!(fixture.core.register_device(&info).unwrap(), DEVICE);
}

/// Flushes the device as the service does.
fn flush(fixture: &mut Fixture) {
    let through = fixture.core.end_flush_epoch().unwrap();
    let incarnation = fixture.core.incarnation(DEVICE).unwrap();
    fixture.core.flushed(DEVICE, incarnation, through, true).unwrap();
}

/// Returns which of a file's extents are lost, by offset.
fn lost(fixture: &mut Fixture, inode: InodeId) -> Vec<(u64, bool)> {
    let call = Call::Read(ReadCall::ReadExtents { inode, offset: 0, length: 1 << 20 });
    let Ok(Answer::Extents { extents, .. }) = fixture.call(&call) else { panic!() };
    let is_lost = |place: &Place| place.lost_with() == Some(DEVICE);
    extents.0.iter().map(|extent| (extent.offset, is_lost(&extent.place))).collect()
}

/// Commits an extent; `is_flushed` is whether the client has flushed its data.
fn write(fixture: &mut Fixture, inode: InodeId, offset: u64, is_flushed: bool) {
    let allocation = fixture.take_block();
    let incarnation = fixture.core.incarnation(DEVICE).unwrap();
    let new = NewAllocation { allocation, blocks: 1, incarnation, is_flushed };
    let extent = Extent { offset, length: 100, place: Place { allocation, at: 0 } };
    let generation = fixture.core.attr(inode).unwrap().generation;
    fixture.call(&commit(inode, generation, vec![new], vec![extent])).unwrap();
}

/// Goal: after a loss of power exactly the unflushed data is lost. Data that the service's flush
/// covered, data that the client had flushed, and data of later writes are not lost; a kill of the
/// service in between forgets none of it.
#[test]
fn only_unflushed_data_is_lost() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    write(&mut fixture, inode, 0, false);
    assert_eq!(fixture.core.unflushed_devices(), [DEVICE]);
    flush(&mut fixture);
    assert!(fixture.core.unflushed_devices().is_empty());
    write(&mut fixture, inode, 1000, true);
    assert!(fixture.core.unflushed_devices().is_empty(), "an idle device is not flushed");
    write(&mut fixture, inode, 2000, false);
    fixture.core.flush().unwrap();
    fixture.reopen(CrashPoint::Process);
    lose_power(&mut fixture, 8);
    write(&mut fixture, inode, 3000, false);
    let after = [(0, false), (1000, false), (2000, true), (3000, false)];
    assert_eq!(lost(&mut fixture, inode), after);
    fixture.core.flush().unwrap();
    fixture.reopen(CrashPoint::Process);
    assert_eq!(lost(&mut fixture, inode), after);
    // The same incarnation again loses nothing.
    lose_power(&mut fixture, 8);
    assert_eq!(lost(&mut fixture, inode), after);
    fixture.check();
}

/// Goal: a flush covers the commits before its request, and none that came while it was under way;
/// a flush by an earlier incarnation has no effect.
#[test]
fn a_flush_covers_what_came_before_it() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    write(&mut fixture, inode, 0, false);
    let through = fixture.core.end_flush_epoch().unwrap();
    write(&mut fixture, inode, 1000, false);
    fixture.core.flushed(DEVICE, Incarnation(7), through, true).unwrap();
    assert_eq!(fixture.core.unflushed_devices(), [DEVICE]);
    let late = fixture.core.end_flush_epoch().unwrap();
    lose_power(&mut fixture, 8);
    fixture.core.flushed(DEVICE, Incarnation(7), late, true).unwrap();
    assert_eq!(lost(&mut fixture, inode), [(0, false), (1000, true)]);
    // A failed flush is as bad as a power loss.
    write(&mut fixture, inode, 2000, false);
    let through = fixture.core.end_flush_epoch().unwrap();
    fixture.core.flushed(DEVICE, Incarnation(8), through, false).unwrap();
    flush(&mut fixture);
    assert_eq!(lost(&mut fixture, inode), [(0, false), (1000, true), (2000, true)]);
}

/// Goal: data that was lost with a device's power does not come back because a client had read it
/// before (P9).
#[test]
fn lost_data_is_not_compacted() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    write(&mut fixture, inode, 0, false);
    write(&mut fixture, inode, 100, false);
    let call = Call::Read(ReadCall::ReadExtents { inode, offset: 0, length: 1 << 20 });
    let Ok(Answer::Extents { extents: old, .. }) = fixture.call(&call) else { panic!() };
    lose_power(&mut fixture, 8);
    let allocation = fixture.take_block();
    let incarnation = fixture.core.incarnation(DEVICE).unwrap();
    let new = NewAllocation { allocation, blocks: 1, incarnation, is_flushed: true };
    let whole = Extent { offset: 0, length: 200, place: Place { allocation, at: 0 } };
    let generation = fixture.core.attr(inode).unwrap().generation;
    let compact = Call::Change(ChangeCall::Compact {
        sums: protocol::sums::Sums::default(),
        inode,
        generation,
        old,
        allocations: vec![new],
        new: protocol::ExtentList(vec![whole]),
    });
    assert_eq!(fixture.call(&compact), Err(Errno::EAGAIN));
    assert_eq!(lost(&mut fixture, inode), [(0, true), (100, true)]);
    fixture.check();
}

/// Goal: lost ranges heal when they are overwritten, punched, cut off or deleted, and stay lost in
/// copies.
#[test]
fn lost_ranges_heal() {
    let mut fixture = Fixture::new();
    let (inode, copy) = (fixture.file("a"), fixture.file("b"));
    for offset in [0, 1000, 2000] {
        write(&mut fixture, inode, offset, false);
    }
    lose_power(&mut fixture, 8);
    let copied = Call::Change(ChangeCall::CopyRange {
        source: inode,
        source_offset: 0,
        destination: copy,
        destination_offset: 0,
        length: 100,
    });
    fixture.call(&copied).unwrap();
    assert_eq!(lost(&mut fixture, copy), [(0, true)]);
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Lost);
    write(&mut fixture, inode, 0, true);
    let mode = FallocateMode::Punch;
    fixture
        .call(&Call::Change(ChangeCall::Fallocate { inode, offset: 1000, length: 100, mode }))
        .unwrap();
    assert_eq!(lost(&mut fixture, inode), [(0, false), (2000, true)]);
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Lost);
    fixture.truncate(inode, 1500);
    assert_eq!(lost(&mut fixture, inode), [(0, false)]);
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Yes);
    assert_eq!(fixture.core.durable(copy).unwrap(), Durable::Lost);
    fixture.reclaim_all();
    fixture.check();
}

/// Goal: fsync waits for the flush of data that any session committed to the file, and for no other
/// device than it must.
#[test]
fn fsync_knows_what_to_wait_for() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Yes);
    write(&mut fixture, inode, 0, true);
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Yes);
    write(&mut fixture, inode, 1000, false);
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::After(vec![DEVICE]));
    fixture.core.set_online(DEVICE, false);
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::After(vec![DEVICE]));
    // Another file's unflushed data on a device that is gone delays no call.
    let other = fixture.file("b");
    write(&mut fixture, other, 0, true);
    assert_eq!(fixture.core.durable(other).unwrap(), Durable::Yes);
    fixture.core.set_online(DEVICE, true);
    flush(&mut fixture);
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Yes);
    assert_eq!(fixture.core.durable(InodeId(99)).unwrap(), Durable::Yes);
}

/// Goal: no data of a memory device outlives its process, flushed or not.
#[test]
fn memory_loses_everything() {
    let mut fixture = Fixture::with(true);
    lose_power(&mut fixture, 8);
    let inode = fixture.file("a");
    write(&mut fixture, inode, 0, true);
    write(&mut fixture, inode, 1000, false);
    assert!(fixture.core.unflushed_devices().is_empty(), "memory needs no flush");
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Yes);
    lose_power(&mut fixture, 9);
    write(&mut fixture, inode, 2000, true);
    assert_eq!(lost(&mut fixture, inode), [(0, true), (1000, true), (2000, false)]);
    let wrong = NewAllocation {
        allocation: fixture.take_block(),
        blocks: 1,
        incarnation: Incarnation(8),
        is_flushed: true,
    };
    let call = commit(inode, fixture.core.attr(inode).unwrap().generation, vec![wrong], vec![]);
    assert_eq!(fixture.call(&call), Err(Errno::EIO));
}

/// Goal: a file is searched once for what a device has lost, and not again at each later fsync:
/// only a further loss, or data of another file, may have made it lose something.
#[test]
fn a_file_is_searched_once_for_a_loss() {
    let mut fixture = Fixture::new();
    let (inode, spoilt) = (fixture.file("a"), fixture.file("b"));
    write(&mut fixture, inode, 0, true);
    write(&mut fixture, spoilt, 0, false);
    lose_power(&mut fixture, 8);
    for (offset, walks) in [(1000, 1), (2000, 1), (3000, 1)] {
        write(&mut fixture, inode, offset, false);
        flush(&mut fixture);
        assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Yes);
        assert_eq!(fixture.core.walks(), walks, "after a write at {offset}");
    }
    write(&mut fixture, inode, 4000, false);
    lose_power(&mut fixture, 9);
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Lost);
    // Truncated, the file is whole; a copy brings an early loss back.
    fixture.truncate(inode, 4000);
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Yes);
    let copied = Call::Change(ChangeCall::CopyRange {
        source: spoilt,
        source_offset: 0,
        destination: inode,
        destination_offset: 5000,
        length: 100,
    });
    fixture.call(&copied).unwrap();
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Lost);
}

/// Goal: what is cut out of a file no longer counts as lost, also while it is being removed.
#[test]
fn lost_data_that_is_being_removed_does_not_count() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    for index in 0..300 {
        write(&mut fixture, inode, index * 1000, false);
    }
    lose_power(&mut fixture, 8);
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Lost);
    let (length, mode) = (300_000, FallocateMode::Punch);
    let punch = ChangeCall::Fallocate { inode, offset: 0, length, mode };
    fixture.call(&Call::Change(punch)).unwrap();
    assert!(fixture.core.attr(inode).unwrap().allocated_bytes > 0, "it is removed in steps");
    assert_eq!(fixture.core.durable(inode).unwrap(), Durable::Yes);
    fixture.check();
}
