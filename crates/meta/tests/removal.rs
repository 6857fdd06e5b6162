//! The removal of many extents: by truncations, holes and deletion, in steps.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/fixture.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::Fixture;
use meta::store::CrashPoint;
use protocol::client::{Answer, Call, ChangeCall, FallocateMode, OpenTold, ReadCall};
use protocol::{DeviceId, Extent, InodeId};

/// Returns all extents of a file that ends at 399 900.
fn extents_of(fixture: &mut Fixture, inode: InodeId) -> Vec<Extent> {
    let (mut all, mut offset) = (Vec::new(), 0);
    while offset < 399_900 {
        let length = 399_900 - offset;
        let call = Call::Read(ReadCall::ReadExtents { inode, offset, length });
        let Ok(Answer::Extents { extents, covered_to, .. }) = fixture.call(&call) else { panic!() };
        all.extend(extents.0);
        offset = covered_to;
    }
    all
}

/// Returns a service with a stored file of 2000 allocations of 100 bytes, with as much between them.
fn with_a_file_in_pieces() -> (Fixture, InodeId) {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    for i in 0..2000u64 {
        fixture.write(inode, i * 200, 100);
    }
    fixture.core.flush().unwrap();
    (fixture, inode)
}

/// Goal: cutting a file of thousands of allocations takes many small steps; no reader sees its old
/// bytes meanwhile, and a kill in between loses nothing.
#[test]
fn long_truncations_go_in_steps() {
    let (mut fixture, inode) = with_a_file_in_pieces();
    let before = fixture.store.unsynced().len();
    fixture.truncate(inode, 1050);
    fixture.core.flush().unwrap();
    let batches = fixture.store.unsynced();
    assert!(batches[before].writes.len() < 1000, "{} writes", batches[before].writes.len());
    let attr = fixture.core.attr(inode).unwrap();
    assert!(attr.size == 1050 && attr.allocated_bytes > 1000);
    fixture.check();
    fixture.core.reclaim_step(10).unwrap();
    fixture.core.flush().unwrap();
    fixture.reopen(CrashPoint::Process);
    fixture.check();
    // The file grows again: the cut data must not come back.
    fixture.truncate(inode, 400_000);
    let call = Call::Read(ReadCall::ReadExtents { inode, offset: 0, length: 400_000 });
    let Ok(Answer::Extents { extents, covered_to, .. }) = fixture.call(&call) else { panic!() };
    assert!(covered_to >= 400_000);
    assert_eq!(extents.0.len(), 6);
    assert_eq!(extents.0.last().unwrap().end(), 1050);
    fixture.reclaim_all();
    assert_eq!(fixture.core.device_use(DeviceId(0)).unwrap().allocated(), 6);
    fixture.check();
}

/// Goal: holes and zeroed ranges of thousands of allocations take many small steps. No reader sees
/// bytes of the range after the call, what lies beside it stays, and a kill or the file's end in
/// between loses and leaks nothing.
#[test]
fn long_holes_go_in_steps() {
    for mode in [FallocateMode::Punch, FallocateMode::Zero { keep_size: false }] {
        for dies in [false, true] {
            let (mut fixture, inode) = with_a_file_in_pieces();
            let before = fixture.store.unsynced().len();
            let (offset, length) = (1050, 380_000);
            let punch = ChangeCall::Fallocate { inode, offset, length, mode };
            fixture.call(&Call::Change(punch)).unwrap();
            fixture.core.flush().unwrap();
            let batches = fixture.store.unsynced();
            let writes = batches[before].writes.len();
            assert!(writes < 1000 && batches.len() == before + 1, "{writes} writes");
            assert!(fixture.core.attr(inode).unwrap().allocated_bytes > 100_000);
            fixture.check();
            fixture.core.reclaim_step(10).unwrap();
            fixture.core.flush().unwrap();
            fixture.reopen(CrashPoint::Process);
            fixture.check();
            if dies {
                let (parent, name) = (InodeId::ROOT, b"a".to_vec());
                let unlink = ChangeCall::Unlink { parent, name, told: OpenTold::OfAny };
                fixture.call(&Call::Change(unlink)).unwrap();
                fixture.core.reclaim_step(10).unwrap();
                fixture.check();
            } else {
                let left = extents_of(&mut fixture, inode);
                let is_beside = |extent: &Extent| extent.end() <= 1050 || extent.offset >= 381_050;
                assert!(left.iter().all(is_beside) && left.len() == 6 + 95, "{}", left.len());
                assert_eq!(fixture.core.attr(inode).unwrap().allocated_bytes, 5 * 100 + 50 + 9450);
            }
            fixture.reclaim_all();
            let blocks = if dies { 0 } else { 6 + 95 };
            assert_eq!(fixture.core.device_use(DeviceId(0)).unwrap().allocated(), blocks);
            fixture.check();
        }
    }
}
