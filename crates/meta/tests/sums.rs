//! Checksums of blocks in the core: stored with their blocks, and returned with extents.
//!
//! `model.rs` compares them after random calls and crashes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "common/fixture.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use common::{BLOCK_BYTES, Fixture, commit};
use protocol::client::{Answer, Call, ChangeCall, ReadCall};
use protocol::inline::{Bytes, InlineRun};
use protocol::space::NewAllocation;
use protocol::sums::{SUMS_PER_MESSAGE_MAX, Sums, checksum};
use protocol::{AllocationId, Errno, Extent, Generation, Incarnation, InodeId, Place};

const BLOCK: u64 = BLOCK_BYTES as u64;

fn new_allocation(allocation: AllocationId, blocks: u32, is_flushed: bool) -> NewAllocation {
    NewAllocation { allocation, blocks, incarnation: Incarnation(7), is_flushed }
}

fn with_sums(call: Call, given: &[u32]) -> Call {
    let Call::Change(ChangeCall::Commit {
        inode,
        generation,
        allocations,
        sums: _,
        extents,
        inline,
        mtime,
        kill_privileges,
        attributes,
        durable,
    }) = call
    else {
        panic!("no commit")
    };
    Call::Change(ChangeCall::Commit {
        inode,
        generation,
        allocations,
        sums: Sums(given.to_vec()),
        extents,
        inline,
        mtime,
        kill_privileges,
        attributes,
        durable,
    })
}

/// Commits adjacent blocks, with these sums, from an offset on.
fn write(
    fixture: &mut Fixture,
    inode: InodeId,
    offset: u64,
    count: u32,
    sums: &[u32],
) -> AllocationId {
    let blocks: Vec<AllocationId> = (0..count).map(|_| fixture.take_block()).collect();
    let place = Place { allocation: blocks[0], at: 0 };
    let extent = Extent { offset, length: count * BLOCK_BYTES, place };
    let generation = fixture.core.attr(inode).unwrap().generation;
    let named = new_allocation(blocks[0], count, false);
    let call = with_sums(commit(inode, generation, vec![named], vec![extent]), sums);
    fixture.call(&call).unwrap();
    blocks[0]
}

/// Returns the sums that come with the extents from an offset on, and the end of the answer.
fn read(fixture: &mut Fixture, inode: InodeId, offset: u64, length: u64) -> (Vec<(u64, u32)>, u64) {
    match fixture.call(&Call::Read(ReadCall::ReadExtents { inode, offset, length })) {
        Ok(Answer::Extents { sums, covered_to, .. }) => {
            (sums.each().map(|(_, block, sum)| (block, sum)).collect(), covered_to)
        }
        other => panic!("{other:?}"),
    }
}

fn sums(fixture: &mut Fixture, inode: InodeId) -> Vec<u32> {
    read(fixture, inode, 0, u64::MAX / 4).0.into_iter().map(|(_, sum)| sum).collect()
}

/// Goal: a commit with another number of sums than of new blocks is refused, and changes nothing
/// (C2).
#[test]
fn a_wrong_number_of_sums_is_refused() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    let generation = fixture.core.attr(inode).unwrap().generation;
    let allocation = fixture.take_block();
    fixture.take_block();
    let extent = Extent { offset: 0, length: BLOCK_BYTES, place: Place { allocation, at: 0 } };
    let call = commit(inode, generation, vec![new_allocation(allocation, 2, false)], vec![extent]);
    for given in [&[1][..], &[1, 2, 3]] {
        assert_eq!(fixture.call(&with_sums(call.clone(), given)), Err(Errno::EINVAL), "{given:?}");
    }
    let many = vec![0; SUMS_PER_MESSAGE_MAX + 1];
    assert_eq!(fixture.call(&with_sums(call.clone(), &many)), Err(Errno::E2BIG));
    assert!(sums(&mut fixture, inode).is_empty());
    fixture.call(&with_sums(call, &[5, 6])).unwrap();
    // The block that no extent names is free again.
    assert_eq!(sums(&mut fixture, inode), [5]);
    fixture.check();
}

/// Goal: a sum stays with its block through all changes of the file's part of it: the block is
/// overwritten in part, shared and cut off, and the service restarts (C1).
#[test]
fn sums_stay_with_their_blocks() {
    let mut fixture = Fixture::new();
    let (inode, other) = (fixture.file("a"), fixture.file("b"));
    write(&mut fixture, inode, 0, 4, &[1, 2, 3, 4]);
    write(&mut fixture, inode, BLOCK / 2, 1, &[9]);
    assert_eq!(sums(&mut fixture, inode), [1, 9, 2, 3, 4]);
    let copy = Call::Change(ChangeCall::CopyRange {
        source: inode,
        source_offset: 2 * BLOCK,
        destination: other,
        destination_offset: 7,
        length: 2 * BLOCK,
    });
    fixture.call(&copy).unwrap();
    assert_eq!(sums(&mut fixture, other), [3, 4]);
    fixture.truncate(inode, 3 * BLOCK);
    assert_eq!(sums(&mut fixture, inode), [1, 9, 2, 3]);
    fixture.core.flush().unwrap();
    fixture.core.synced(fixture.core.stored_free_epoch());
    fixture.reopen(meta::store::CrashPoint::Process);
    assert_eq!(
        (sums(&mut fixture, inode), sums(&mut fixture, other)),
        (vec![1, 9, 2, 3], vec![3, 4])
    );
    fixture.check();
}

/// Goal: the sum of a freed block does not apply to the data of its next user, with a sum or
/// without one (C3).
#[test]
fn a_block_that_is_used_again_has_its_new_sum() {
    for new in [&[7][..], &[]] {
        let mut fixture = Fixture::new();
        let inode = fixture.file("a");
        let old = write(&mut fixture, inode, 0, 1, &[6]);
        fixture.truncate(inode, 0);
        fixture.reclaim_all();
        // Leased and free again, it is given out again.
        let again = (0..1 << 14).find_map(|_| {
            let block = fixture.take_block();
            (block == old).then_some(block)
        });
        let allocation = again.expect("the block comes again");
        let generation = fixture.core.attr(inode).unwrap().generation;
        let extent = Extent { offset: 0, length: 9, place: Place { allocation, at: 0 } };
        let named = new_allocation(allocation, 1, false);
        let call = with_sums(commit(inode, generation, vec![named], vec![extent]), new);
        fixture.call(&call).unwrap();
        assert_eq!(sums(&mut fixture, inode), new);
    }
}

/// Goal: a compaction leaves the sums of its copy, and a commit that a truncation has overtaken
/// leaves none (C1).
#[test]
fn sums_come_with_what_names_the_blocks() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    write(&mut fixture, inode, 0, 1, &[1]);
    write(&mut fixture, inode, BLOCK, 1, &[2]);
    let old = match fixture.call(&Call::Read(ReadCall::ReadExtents { inode, offset: 0, length: 1 }))
    {
        Ok(Answer::Extents { extents, .. }) => extents,
        other => panic!("{other:?}"),
    };
    let allocation = fixture.take_block();
    fixture.take_block();
    let place = Place { allocation, at: 0 };
    let new = Extent { offset: 0, length: 2 * BLOCK_BYTES, place };
    let generation = fixture.core.attr(inode).unwrap().generation;
    let compact = |sums: &[u32]| {
        Call::Change(ChangeCall::Compact {
            inode,
            generation,
            old: old.clone(),
            allocations: vec![new_allocation(allocation, 2, true)],
            sums: Sums(sums.to_vec()),
            new: protocol::ExtentList(vec![new]),
        })
    };
    assert_eq!(fixture.call(&compact(&[5])), Err(Errno::EINVAL));
    fixture.call(&compact(&[5, 6])).unwrap();
    assert_eq!(sums(&mut fixture, inode), [5, 6]);
    fixture.truncate(inode, BLOCK);
    let block = fixture.take_block();
    let extent = Extent { offset: BLOCK, length: 9, place: Place { allocation: block, at: 0 } };
    let late = commit(inode, Generation(0), vec![new_allocation(block, 1, false)], vec![extent]);
    assert!(
        generation > Generation(0) || fixture.core.attr(inode).unwrap().generation > generation
    );
    fixture.call(&with_sums(late, &[8])).unwrap();
    assert_eq!(sums(&mut fixture, inode), [5]);
    fixture.check();
}

/// Goal: an answer ends at an extent once it has enough sums, and states its end. The next one
/// continues there: all sums come, each once.
#[test]
fn long_answers_are_cut() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    let blocks = 32;
    // Not all adjacent: extents stay apart.
    for piece in 0..512_u32 {
        let first = piece * blocks;
        let sums: Vec<u32> = (first..first + blocks).collect();
        write(&mut fixture, inode, u64::from(first) * BLOCK, blocks, &sums);
    }
    let (mut at, mut all, mut answers) = (0, Vec::new(), 0);
    while all.len() < 512 * blocks as usize {
        let (sums, covered_to) = read(&mut fixture, inode, at, 1);
        assert!(covered_to > at && sums.len() <= SUMS_PER_MESSAGE_MAX);
        all.extend(sums.into_iter().map(|(_, sum)| sum));
        (at, answers) = (covered_to, answers + 1);
    }
    assert_eq!(all, (0..512 * blocks).collect::<Vec<_>>());
    assert!(answers > 1);
}

/// Goal: inline bytes that do not match the sum of their writer are refused; those that match keep
/// it (D11).
#[test]
fn inline_bytes_have_the_sum_of_their_writer() {
    let mut fixture = Fixture::new();
    let inode = fixture.file("a");
    let generation = fixture.core.attr(inode).unwrap().generation;
    let inline = |bytes: &[u8], sum| {
        let Call::Change(ChangeCall::Commit { attributes, mtime, sums, extents, .. }) =
            commit(inode, generation, Vec::new(), Vec::new())
        else {
            panic!("no commit")
        };
        Call::Change(ChangeCall::Commit {
            inode,
            generation,
            allocations: Vec::new(),
            sums,
            extents,
            inline: vec![InlineRun { offset: 0, bytes: Bytes(bytes.to_vec()), sum }],
            mtime,
            kill_privileges: false,
            attributes,
            durable: false,
        })
    };
    let right = checksum(b"right");
    assert_eq!(fixture.call(&inline(b"wrong", Some(right))), Err(Errno::EIO));
    fixture.call(&inline(b"right", Some(right))).unwrap();
    let call = ReadCall::ReadExtents { inode, offset: 0, length: 1 };
    let Ok(Answer::Extents { inline, inline_sum, .. }) = fixture.call(&Call::Read(call)) else {
        panic!()
    };
    assert_eq!((inline.0, inline_sum), (b"right".to_vec(), right));
    assert_eq!(fixture.core.attr(inode).unwrap().size, 5);
}
