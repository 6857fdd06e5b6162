//! Blocks of the pool: grants of space, the records of commits, and blocks that come back.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/fixture.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{BLOCK_BYTES, Fixture};
use meta::store::CrashPoint;
use protocol::client::{Answer, Call, ChangeCall};
use protocol::space::NewAllocation;
use protocol::{AllocationId, DeviceId, Errno, Extent, Generation, Incarnation, Place};

fn extent(offset: u64, length: u32, allocation: AllocationId, at: u32) -> Extent {
    Extent { offset, length, place: Place { allocation, at } }
}

/// Goal: grants double up to a segment; a full pool returns ENOSPC, and an offline device gives
/// none.
#[test]
fn grants_grow_until_nothing_is_left() {
    let mut fixture = Fixture::new();
    let lease = Call::Change(ChangeCall::LeaseSpace { device: DeviceId(0), wanted_bytes: 1 });
    let mut sizes = Vec::new();
    loop {
        match fixture.call(&lease) {
            Ok(Answer::Space(grant)) => {
                let blocks: u64 = grant.free.iter().map(|range| range.count).sum();
                sizes.push((blocks * u64::from(BLOCK_BYTES)) >> 20);
            }
            other => {
                assert_eq!(other, Err(Errno::ENOSPC));
                break;
            }
        }
    }
    assert_eq!(sizes[..8], [1, 2, 4, 8, 16, 32, 64, 64]);
    fixture.check();
    fixture.core.release_space(fixture.session, DeviceId(0)).unwrap();
    assert!(fixture.call(&lease).is_ok());
    fixture.core.set_online(DeviceId(0), false);
    assert_eq!(fixture.call(&lease), Err(Errno::ENOSPC));
    let unknown = Call::Change(ChangeCall::LeaseSpace { device: DeviceId(7), wanted_bytes: 1 });
    assert_eq!(fixture.call(&unknown), Err(Errno::ENODEV));
    fixture.check();
}

/// Goal: a list of extents that names one allocation in many pieces costs one record.
#[test]
fn strided_commits_stay_small() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    let block = fixture.take_block();
    let new = NewAllocation {
        allocation: block,
        blocks: 1,
        incarnation: Incarnation(7),
        is_flushed: false,
    };
    let pieces = (0..22).map(|i| extent(u64::from(i) * 94_016, 1000, block, i * 1000)).collect();
    fixture.core.flush().unwrap();
    let before = fixture.store.unsynced().len();
    let call = common::commit(inode, Generation(0), vec![new], pieces);
    fixture.call(&call).unwrap();
    fixture.core.flush().unwrap();
    let batch = &fixture.store.unsynced()[before];
    let bytes: usize = batch.writes.iter().filter_map(|(_, v)| v.as_ref()).map(Vec::len).sum();
    assert!(batch.writes.len() <= 4 && bytes < 300, "{} writes, {bytes} bytes", batch.writes.len());
}

/// Goal: a block is free when it is dead itself, even if other blocks of the same write are alive:
/// a file that is overwritten piece by piece holds no more than it has.
#[test]
fn overwritten_blocks_come_back_one_by_one() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    let place = |at: u64| at * u64::from(BLOCK_BYTES);
    let whole = fixture.write_blocks(inode, &(0..16).map(place).collect::<Vec<_>>());
    let held = |fixture: &mut Fixture| {
        fixture.reclaim_all();
        fixture.check();
        fixture.core.device_use(DeviceId(0)).unwrap().allocated()
    };
    assert_eq!(held(&mut fixture), 16);
    // All blocks of the first write but one.
    for at in (0..15).map(|i| (i * 7) % 16) {
        fixture.write_blocks(inode, &[place(at)]);
        assert_eq!(held(&mut fixture), 16, "after block {at}");
    }
    // Once another session has the long runs, blocks in the middle and at the head of an allocation
    // in use are leased again.
    let other = fixture.other_session();
    while fixture.core.device_use(DeviceId(0)).unwrap().free > 64 {
        let call = ChangeCall::LeaseSpace { device: DeviceId(0), wanted_bytes: 1 };
        fixture.call_as(other, &Call::Change(call)).unwrap();
    }
    fixture.core.flush().unwrap();
    fixture.reopen(CrashPoint::Process);
    for _ in 0..100 {
        let again = fixture.write_blocks(inode, &[place(0)]);
        assert_eq!(held(&mut fixture), 16);
        if again == whole {
            return;
        }
    }
    panic!("the first block of {whole} was not used again");
}
