//! The promises of the transaction core, case by case.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/fixture.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{BLOCK_BYTES, Fixture};
use meta::store::{CrashPoint, MemoryStore, Store};
use meta::tree::{ConflictKind, Core, SlotState};
use proptest::prelude::*;
use protocol::attr::AttrChanges;
use protocol::client::{
    Answer, Call, ChangeCall, FallocateMode, OpenTold, ReadCall, Response, SessionCall, Slot,
};
use protocol::lock::{Lock, LockFamily, LockMode, LockOwner};
use protocol::space::NewAllocation;
use protocol::{
    AllocationId, DeviceId, Errno, Extent, FreeEpoch, Generation, Incarnation, InodeId, Place,
    Rights, SessionId,
};

fn extent(offset: u64, length: u32, allocation: AllocationId, at: u32) -> Extent {
    Extent { offset, length, place: Place { allocation, at } }
}

/// Goal: a retried call gets its first answer, even after a kill, and an older one never comes
/// back; numbers of calls that were given up may be skipped.
#[test]
fn slots_remember_the_last_answer() {
    let mut fixture = Fixture::new();
    let session = fixture.session;
    let slot = |sequence| Slot { slot: 3, sequence };
    assert_eq!(fixture.core.check_slot(session, slot(1)), Ok(SlotState::New));
    let answer = fixture.call(&common::create(InodeId::ROOT, "a")).unwrap();
    let response = Response { result: Ok(answer), grants: Vec::new(), changed: Vec::new() };
    fixture.core.record_reply(session, slot(1), &response).unwrap();
    fixture.core.flush().unwrap();
    fixture.reopen(CrashPoint::Process);
    let repeated = SlotState::Repeated(Box::new(response));
    assert_eq!(fixture.core.check_slot(session, slot(1)), Ok(repeated));
    for sequence in [2, 3, u64::MAX] {
        assert_eq!(fixture.core.check_slot(session, slot(sequence)), Ok(SlotState::New));
    }
    assert_eq!(fixture.core.check_slot(session, slot(0)), Err(Errno::EPROTO));
    let late = Response { result: Err(Errno::ENOENT), grants: Vec::new(), changed: Vec::new() };
    fixture.core.record_reply(session, slot(7), &late).unwrap();
    fixture.core.record_reply(session, slot(5), &late).unwrap();
    assert_eq!(fixture.core.check_slot(session, slot(6)), Err(Errno::EPROTO));
    let outside = Slot { slot: 256, sequence: 1 };
    assert_eq!(fixture.core.check_slot(session, outside), Err(Errno::EPROTO));
}

/// Goal: the lease stamps of each life of the service are above those of all earlier lives (G8).
#[test]
fn stamps_of_each_life_are_above_those_before() {
    let mut fixture = Fixture::new();
    let mut before = fixture.core.stamps_from();
    for _ in 0..3 {
        fixture.reopen(CrashPoint::Process);
        let present = fixture.core.stamps_from();
        assert!(present > before, "{present} after {before}");
        before = present;
    }
}

/// Goal: after a reboot of the machine all sessions are void, and stay so until they are ended.
#[test]
fn another_boot_voids_sessions() {
    let mut fixture = Fixture::new();
    assert!(!fixture.core.session(fixture.session).unwrap().is_void);
    let boot = common::boot(2);
    for is_first in [true, false] {
        let (core, opened) = Core::open(Box::new(fixture.store.clone()), &boot).unwrap();
        assert_eq!(opened.are_sessions_void, is_first);
        assert!(core.session(fixture.session).unwrap().is_void);
        fixture.core = core;
    }
    fixture.core.end_session(fixture.session).unwrap();
    assert_eq!(fixture.core.sessions().count(), 0);
}

/// Goal: numbers that were given out before a loss of power are not given out again, even if the
/// store has forgotten them: an old handle would otherwise read another file's data.
#[test]
fn numbers_that_the_store_has_lost_are_not_used_again() {
    let mut fixture = Fixture::new();
    fixture.store.sync().unwrap();
    let (lost_file, lost_session) = (fixture.file("a"), fixture.other_session());
    fixture.core.flush().unwrap();
    fixture.store = fixture.store.crashed(CrashPoint::Power { kept: 0 });
    let opened = Core::open(Box::new(fixture.store.clone()), &common::boot(2)).unwrap();
    fixture.core = opened.0;
    assert!(fixture.core.session(lost_session).is_none());
    assert!(fixture.other_session() > lost_session);
    assert!(fixture.file("b") > lost_file);
}

/// Goal: locks survive a kill and go with their session.
#[test]
fn locks_live_as_long_as_their_session() {
    let mut fixture = Fixture::new();
    let (family, owner) = (LockFamily::Posix, LockOwner(9));
    let lock = |start| Lock {
        inode: InodeId::ROOT,
        family,
        owner,
        start,
        last: start + 5,
        mode: LockMode::Exclusive,
        pid: 1,
    };
    let session = fixture.session;
    let locks = [lock(0), lock(10)];
    let changes = [(0, Some(locks[0])), (5, Some(lock(5))), (10, Some(locks[1]))];
    fixture.core.change_locks(session, InodeId::ROOT, (family, owner), &changes).unwrap();
    fixture.core.change_locks(session, InodeId::ROOT, (family, owner), &[(5, None)]).unwrap();
    fixture.core.flush().unwrap();
    fixture.reopen(CrashPoint::Process);
    assert_eq!(fixture.core.locks().unwrap(), locks.map(|lock| (session, lock)));
    fixture.core.end_session(session).unwrap();
    assert_eq!(fixture.core.locks().unwrap(), []);
}

/// Goal: an unlinked open file keeps its data over a kill, and loses it with its last opener.
#[test]
fn open_files_outlive_their_names() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    fixture.write(inode, 0, 100);
    fixture.open.push((inode, fixture.session));
    let call = Call::Change(ChangeCall::Unlink {
        parent: InodeId::ROOT,
        name: b"a".to_vec(),
        told: OpenTold::OfAny,
    });
    assert_eq!(fixture.call(&call), Ok(Answer::Removed { inode, left: None }));
    fixture.core.flush().unwrap();
    fixture.reopen(CrashPoint::Process);
    assert_eq!(fixture.core.open_orphans(), [(inode, vec![fixture.session])]);
    assert_eq!(fixture.core.attr(inode).unwrap().allocated_bytes, 100);
    fixture.write(inode, 100, 100);
    // A second session opens it through a handle that it kept.
    let other = fixture.other_session();
    fixture
        .call_as(other, &Call::Session(SessionCall::Acquire { inode, rights: Rights::OPEN }))
        .unwrap();
    fixture.core.end_session(fixture.session).unwrap();
    assert!(fixture.core.attr(inode).is_ok());
    fixture.core.close(other, inode).unwrap();
    assert_eq!(fixture.core.attr(inode), Err(Errno::ESTALE));
    fixture.reclaim_all();
    let usage = fixture.core.device_use(DeviceId(0)).unwrap();
    assert_eq!((usage.allocated(), usage.free), (0, usage.blocks));
    assert_eq!(fixture.core.pool_use().inodes, 1);
}

/// Goal: a file that was removed and closed meanwhile gets no new name, and the caller gets the
/// error of a local file system.
#[test]
fn what_is_gone_gets_no_name() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    let unlink =
        ChangeCall::Unlink { parent: InodeId::ROOT, name: b"a".to_vec(), told: OpenTold::OfAny };
    fixture.call(&Call::Change(unlink)).unwrap();
    assert_eq!(fixture.core.attr(inode), Err(Errno::ESTALE), "no session has it open");
    let link = ChangeCall::Link { inode, parent: InodeId::ROOT, name: b"b".to_vec() };
    assert_eq!(fixture.call(&Call::Change(link)).map(drop), Err(Errno::ENOENT));
}

/// Goal: an inode without a name lives on for a session that reports only later that it has it open
/// too, even over a kill (seed 4940).
#[test]
fn late_openers_keep_what_has_no_name() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    fixture.open.push((inode, fixture.session));
    let call = Call::Change(ChangeCall::Unlink {
        parent: InodeId::ROOT,
        name: b"a".to_vec(),
        told: OpenTold::OfAny,
    });
    fixture.call(&call).unwrap();
    let other = fixture.other_session();
    fixture.core.note_open(other, inode).unwrap();
    fixture.core.note_open(other, inode).unwrap();
    fixture.core.close(fixture.session, inode).unwrap();
    fixture.core.flush().unwrap();
    fixture.reopen(CrashPoint::Process);
    assert!(fixture.core.attr(inode).is_ok());
    fixture.core.close(other, inode).unwrap();
    assert_eq!(fixture.core.attr(inode), Err(Errno::ESTALE));
}

/// Goal: freed blocks rest until every session has ended its reads from before.
#[test]
fn freed_blocks_rest_until_all_reads_ended() {
    let mut fixture = Fixture::new();
    let other = fixture.other_session();
    let inode = fixture.file("a");
    fixture.write(inode, 0, 100);
    fixture.truncate(inode, 0);
    let resting = |core: &Core| core.device_use(DeviceId(0)).unwrap().resting;
    assert_eq!(resting(&fixture.core), 1);
    let epoch = fixture.core.free_epoch();
    let ended = [(fixture.session, epoch), (other, FreeEpoch(epoch.0 - 1))];
    for (session, epoch) in ended {
        fixture.core.ended_through(session, epoch);
        while fixture.core.reclaim_step(10).unwrap() {}
        assert_eq!(resting(&fixture.core), 1);
    }
    // A kill forgets the reports: nothing is freed because of old reports.
    fixture.core.flush().unwrap();
    fixture.reopen(CrashPoint::Process);
    fixture.core.ended_through(fixture.session, epoch);
    while fixture.core.reclaim_step(10).unwrap() {}
    assert_eq!(resting(&fixture.core), 1);
    fixture.core.ended_through(other, FreeEpoch(u64::MAX));
    while fixture.core.reclaim_step(10).unwrap() {}
    // A store that lost the truncation would name blocks that hold other data by now.
    assert_eq!(resting(&fixture.core), 1, "freed before the store was synced");
    fixture.core.sync().unwrap();
    while fixture.core.reclaim_step(10).unwrap() {}
    assert_eq!(resting(&fixture.core), 0);
    fixture.check();
}

/// Goal: no commit that lies changes anything.
#[test]
fn hostile_commits_are_refused_whole() {
    let mut fixture = Fixture::new();
    let (mine, others) = (fixture.file("a"), fixture.file("b"));
    fixture.write(others, 0, 100);
    let foreign = fixture.last_allocation;
    let block = fixture.take_block();
    let good = NewAllocation {
        allocation: block,
        blocks: 1,
        incarnation: Incarnation(7),
        is_flushed: false,
    };
    let far = AllocationId { block: u64::MAX, ..block };
    let unleased = AllocationId { block: block.block + 1000, ..block };
    let nowhere = AllocationId { device: DeviceId(9), ..block };
    let fine = extent(0, 10, block, 0);
    let cases: Vec<(Errno, Vec<NewAllocation>, Vec<Extent>)> = vec![
        (Errno::EINVAL, vec![NewAllocation { blocks: 0, ..good }], vec![fine]),
        (Errno::EINVAL, vec![NewAllocation { blocks: u32::MAX, ..good }], vec![fine]),
        (Errno::EINVAL, vec![NewAllocation { blocks: 200, ..good }], vec![fine]),
        (Errno::EINVAL, vec![NewAllocation { allocation: far, ..good }], vec![]),
        (Errno::EINVAL, vec![NewAllocation { allocation: unleased, ..good }], vec![]),
        (Errno::ENODEV, vec![NewAllocation { allocation: nowhere, ..good }], vec![]),
        (Errno::EIO, vec![NewAllocation { incarnation: Incarnation(6), ..good }], vec![fine]),
        (Errno::EINVAL, vec![good, good], vec![fine]),
        (Errno::EINVAL, vec![], vec![fine]),
        (Errno::EINVAL, vec![good], vec![extent(0, 0, block, 0)]),
        (Errno::EINVAL, vec![good], vec![extent(0, 10, block, BLOCK_BYTES - 9)]),
        (Errno::EINVAL, vec![good], vec![extent(0, u32::MAX, block, u32::MAX)]),
        (Errno::EFBIG, vec![good], vec![extent(u64::MAX - 5, 5, block, 0)]),
        (Errno::EFBIG, vec![good], vec![extent(i64::MAX as u64, 1, block, 0)]),
        (Errno::EINVAL, vec![good], vec![fine, extent(0, 10, foreign, 0)]),
        (Errno::E2BIG, vec![good], vec![fine; 4097]),
    ];
    fixture.core.flush().unwrap();
    let before = fixture.store.records();
    for (errno, allocations, extents) in cases {
        let call = common::commit(mine, Generation(0), allocations, extents);
        assert_eq!(fixture.call(&call), Err(errno), "{call:?}");
    }
    let ahead = common::commit(mine, Generation(1), vec![good], vec![fine]);
    assert_eq!(fixture.call(&ahead), Err(Errno::EINVAL));
    fixture.core.flush().unwrap();
    assert_eq!(fixture.store.records(), before);
    // A session cannot use space that another one leases.
    let other = fixture.other_session();
    let call = common::commit(mine, Generation(0), vec![good], vec![fine]);
    assert_eq!(fixture.call_as(other, &call), Err(Errno::EINVAL));
    assert!(fixture.call(&call).is_ok());
    // A commit of data from before a truncation is dropped, not refused.
    fixture.truncate(mine, 0);
    let late = common::commit(mine, Generation(0), vec![], vec![extent(0, 10, block, 0)]);
    let Ok(Answer::Attr(attr)) = fixture.call(&late) else { panic!() };
    assert_eq!((attr.size, attr.generation), (0, Generation(1)));
    fixture.check();
}

/// Goal: the recalls of docs/protocol.md, for the calls where they depend on the state.
#[test]
fn conflicts_are_those_of_the_table() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    let parent = InodeId::ROOT;
    // A recall of READ also asks for the changes that the file's maker holds back.
    let read = Rights::READ | Rights::SOLE;
    let all = read | Rights::WRITE | Rights::SIZE | Rights::OPEN | Rights::LOCKS;
    let unlink =
        Call::Change(ChangeCall::Unlink { parent, name: b"a".to_vec(), told: OpenTold::OfAny });
    let rights = |fixture: &Fixture, call: &Call| {
        let found = fixture.core.conflicts(fixture.session, call).unwrap();
        let of = found.into_iter().filter(|conflict| conflict.inode == inode);
        of.map(|conflict| conflict.kind).collect::<Vec<_>>()
    };
    assert_eq!(rights(&fixture, &unlink), [ConflictKind::Recall(all)]);
    let (family, owner, mode) = (LockFamily::Posix, LockOwner(1), LockMode::Shared);
    let lock = Lock { inode, family, owner, start: 0, last: 9, mode, pid: 1 };
    for call in [
        Call::Change(ChangeCall::SetLock { lock, wait: false }),
        Call::Read(ReadCall::TestLock(lock)),
    ] {
        assert_eq!(rights(&fixture, &call), [ConflictKind::Recall(Rights::LOCKS)]);
    }
    fixture.call(&Call::Change(ChangeCall::Link { inode, parent, name: b"b".to_vec() })).unwrap();
    assert_eq!(rights(&fixture, &unlink), [ConflictKind::Recall(read)]);
    let found = fixture.core.conflicts(fixture.session, &unlink).unwrap();
    assert_eq!(found[0].kind, ConflictKind::Invalidate(vec![b"a".to_vec()]));
    let block = fixture.take_block();
    let grow = common::commit(inode, Generation(0), vec![], vec![extent(0, 5, block, 0)]);
    let read_size = ConflictKind::Recall(read | Rights::SIZE);
    assert_eq!(rights(&fixture, &grow), [read_size]);
    let missing =
        Call::Change(ChangeCall::Unlink { parent, name: b"none".to_vec(), told: OpenTold::OfAny });
    assert_eq!(fixture.core.conflicts(fixture.session, &missing), Ok(Vec::new()));
    let nowhere = common::create(InodeId(99), "x");
    assert_eq!(fixture.core.conflicts(fixture.session, &nowhere), Ok(Vec::new()));
}

/// Goal: times change where POSIX says, and directories inherit group, sgid and layout.
#[test]
fn attributes_follow_posix() {
    let mut fixture = Fixture::new();
    let changes = AttrChanges { mode: Some(0o2775), gid: Some(77), ..AttrChanges::default() };
    fixture.call(&Call::Change(ChangeCall::SetAttr { inode: InodeId::ROOT, changes })).unwrap();
    let root = fixture.core.attr(InodeId::ROOT).unwrap();
    assert!(root.ctime > root.mtime);
    let file = fixture.file("a");
    let attr = fixture.core.attr(file).unwrap();
    assert_eq!((attr.gid, attr.mode), (77, 0o640));
    let after = fixture.core.attr(InodeId::ROOT).unwrap();
    assert!(after.mtime > root.mtime && after.mtime == after.ctime);
    assert_eq!(attr.ctime, after.ctime);
    let directory = fixture.directory("d");
    let attr = fixture.core.attr(directory).unwrap();
    assert_eq!((attr.gid, attr.mode, attr.nlink), (77, 0o2750, 2));
    // Truncating to the same size changes the times, as ext4 does.
    let before = fixture.core.attr(file).unwrap();
    fixture.truncate(file, 0);
    let after = fixture.core.attr(file).unwrap();
    assert!(after.mtime > before.mtime && after.ctime > before.ctime);
    assert_eq!(after.generation, before.generation);
    let kill = AttrChanges { mode: Some(0o6755), ..AttrChanges::default() };
    fixture.call(&Call::Change(ChangeCall::SetAttr { inode: file, changes: kill })).unwrap();
    let kill = AttrChanges { kill_privileges: true, ..AttrChanges::default() };
    fixture.call(&Call::Change(ChangeCall::SetAttr { inode: file, changes: kill })).unwrap();
    assert_eq!(fixture.core.attr(file).unwrap().mode, 0o755);
}

/// Goal: readdir neither skips nor repeats entries that stay, while others are removed.
#[test]
fn listing_is_stable_under_removal() {
    let mut fixture = Fixture::new();
    for i in 0..50 {
        fixture.file(&format!("f{i:02}"));
    }
    let (mut after, mut seen) = (0, Vec::new());
    for round in 0.. {
        let call = Call::Read(ReadCall::ReadDir { inode: InodeId::ROOT, after, count_max: 7 });
        let Ok(Answer::Entries { entries, end }) = fixture.call(&call) else { panic!() };
        seen.extend(entries.iter().map(|entry| entry.name.clone()));
        after = entries.last().map_or(after, |entry| entry.cookie);
        if end {
            break;
        }
        // A listed entry is removed, an unlisted one too, and a new one is added.
        for name in [seen[0].clone(), format!("f{:02}", 49 - round).into_bytes()] {
            let _ = fixture.call(&Call::Change(ChangeCall::Unlink {
                parent: InodeId::ROOT,
                name,
                told: OpenTold::OfAny,
            }));
        }
        fixture.file(&format!("new{round}"));
    }
    let mut sorted = seen.clone();
    sorted.sort();
    sorted.dedup();
    assert_eq!(sorted.len(), seen.len());
    for i in 0..40 {
        assert!(seen.contains(&format!("f{i:02}").into_bytes()), "f{i:02}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Goal: a corrupt record is an error of the call that meets it, never a panic.
    #[test]
    fn corrupt_records_never_panic(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        is_cut in any::<bool>(),
    ) {
        let mut fixture = Fixture::new();
        let inode = fixture.file("a");
        fixture.directory("d");
        for i in 0..3 {
            fixture.write(inode, i * 1000, 100);
        }
        fixture.truncate(inode, 1500);
        fixture.core.flush().unwrap();
        let records = fixture.store.records();
        let (key, mut bytes) = records[which.index(records.len())].clone();
        let at = at.index(bytes.len());
        if is_cut { bytes.truncate(at) } else { bytes[at] = value }
        let mut store: MemoryStore = fixture.store.clone();
        store.commit(&meta::store::Batch { writes: vec![(key, Some(bytes))] }).unwrap();
        let Ok((core, _)) = Core::open(Box::new(store), &common::boot(1)) else { return Ok(()) };
        fixture.core = core;
        let _ = fixture.core.check();
        let parent = InodeId::ROOT;
        for name in ["a", "d"] {
            let _ = fixture.call(&Call::Read(ReadCall::Lookup { parent, name: name.as_bytes().to_vec() }));
        }
        let _ = fixture.call(&Call::Read(ReadCall::ReadDir { inode: parent, after: 0, count_max: 10 }));
        let _ = fixture.call(&Call::Read(ReadCall::ReadExtents { inode, offset: 0, length: 5000 }));
        let _ = fixture.call(&common::create(parent, "new"));
        let device = DeviceId(0);
        let (mode, length) = (FallocateMode::Punch, 700);
        let _ = fixture.call(&Call::Change(ChangeCall::Fallocate { inode, offset: 500, length, mode }));
        let _ = fixture.call(&Call::Change(ChangeCall::CopyRange {
            source: inode,
            source_offset: 0,
            destination: inode,
            destination_offset: 8000,
            length: 1200,
        }));
        let changes = AttrChanges { size: Some(400), ..AttrChanges::default() };
        let _ = fixture.call(&Call::Change(ChangeCall::SetAttr { inode, changes }));
        let _ = fixture.call(&Call::Change(ChangeCall::LeaseSpace { device, wanted_bytes: 1 }));
        let _ = fixture.call(&Call::Change(ChangeCall::Unlink { parent, name: b"a".to_vec(), told: OpenTold::OfAny }));
        fixture.core.ended_through(fixture.session, FreeEpoch(u64::MAX));
        let _ = fixture.core.sync();
        for _ in 0..10 {
            let _ = fixture.core.reclaim_step(10);
        }
        let _ = fixture.core.end_session(SessionId(1));
    }
}
