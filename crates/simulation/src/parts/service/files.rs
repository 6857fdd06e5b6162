//! Correct changes of files, and the comparison with the model.

use super::fixture::{BLOCK_BYTES, commit};
use super::{Block, File, Service};
use protocol::client::{Answer, Call, ChangeCall, OpenTold, ReadCall};
use protocol::space::NewAllocation;
use protocol::sums::Sums;
use protocol::{
    AllocationId, DeviceId, Errno, Extent, ExtentList, Generation, Incarnation, InodeId, Place,
};
use std::collections::BTreeMap;

pub(super) const BLOCK: u64 = BLOCK_BYTES as u64;
/// Largest size of a file in blocks.
const BLOCKS_MAX: u64 = 12;

/// Returns an allocation of one block that was written.
pub(super) fn new_allocation(allocation: AllocationId) -> NewAllocation {
    NewAllocation { allocation, blocks: 1, incarnation: Incarnation(7), is_flushed: false }
}

/// Returns the extent of a whole block.
pub(super) fn block_at(slot: u64, allocation: AllocationId) -> Extent {
    Extent { offset: slot * BLOCK, length: BLOCK_BYTES, place: Place { allocation, at: 0 } }
}

/// Returns a commit with these sums.
pub(super) fn with_sums(mut call: Call, given: &[u32]) -> Call {
    if let Call::Change(ChangeCall::Commit { sums, .. }) = &mut call {
        *sums = Sums(given.to_vec());
    }
    call
}

/// An exchange of the extents of a whole file for adjacent blocks.
#[derive(Clone)]
pub(super) struct Exchange {
    pub(super) inode: InodeId,
    pub(super) generation: Generation,
    pub(super) old: Vec<Extent>,
    pub(super) allocations: Vec<NewAllocation>,
    pub(super) sums: Vec<u32>,
    pub(super) new: Vec<Extent>,
}

impl Exchange {
    pub(super) fn call(&self) -> Call {
        Call::Change(ChangeCall::Compact {
            sums: Sums(self.sums.clone()),
            inode: self.inode,
            generation: self.generation,
            old: ExtentList(self.old.clone()),
            allocations: self.allocations.clone(),
            new: ExtentList(self.new.clone()),
        })
    }
}

impl Service {
    pub(super) fn generation(&self, inode: InodeId) -> Generation {
        self.fixture.core.attr(inode).expect("a file").generation
    }

    fn file(&mut self, inode: InodeId) -> &mut File {
        self.files.get_mut(&inode).expect("a file of the model")
    }

    /// Commits new blocks to a file.
    pub(super) fn write_to(&mut self, inode: InodeId, slots: std::ops::Range<u64>) {
        let mut written: Vec<(u64, Block)> = Vec::new();
        let (mut allocations, mut extents) = (Vec::new(), Vec::new());
        for slot in slots {
            let allocation = self.fixture.take_block();
            self.sum += 1;
            written.push((slot, (allocation.block, self.sum)));
            allocations.push(new_allocation(allocation));
            extents.push(block_at(slot, allocation));
        }
        let sums: Vec<u32> = written.iter().map(|(_, (_, sum))| *sum).collect();
        let call = commit(inode, self.generation(inode), allocations, extents);
        self.call(&with_sums(call, &sums));
        let file = self.file(inode);
        let end = written.last().map_or(0, |(slot, _)| slot + 1);
        file.len = file.len.max(end);
        file.blocks.extend(written);
    }

    pub(super) fn write(&mut self) {
        let inode = self.any_file();
        let start = self.random.below(BLOCKS_MAX);
        let end = BLOCKS_MAX.min(start + self.random.between(1, 4));
        self.write_to(inode, start..end);
    }

    pub(super) fn truncate(&mut self) {
        let inode = self.any_file();
        let len = self.random.below(BLOCKS_MAX);
        let before = self.generation(inode);
        let is_shorter = len < self.file(inode).len;
        self.fixture.truncate(inode, len * BLOCK);
        let after = self.generation(inode);
        assert_eq!(after > before, is_shorter, "generation {after:?} after {before:?}");
        let file = self.file(inode);
        file.len = len;
        file.blocks.retain(|slot, _| *slot < len);
    }

    pub(super) fn copy(&mut self) {
        let (source, destination) = (self.any_file(), self.any_file());
        let len = self.file(source).len;
        if source == destination || len == 0 {
            return;
        }
        let start = self.random.below(len);
        let end = start + self.random.between(1, len - start);
        let call = Call::Change(ChangeCall::CopyRange {
            source,
            source_offset: start * BLOCK,
            destination,
            destination_offset: start * BLOCK,
            length: (end - start) * BLOCK,
        });
        let Answer::Copied { length, .. } = self.call(&call) else { panic!("not copied") };
        let end = start + length / BLOCK;
        let copied: BTreeMap<u64, Block> =
            self.file(source).blocks.range(start..end).map(|(slot, it)| (*slot, *it)).collect();
        let file = self.file(destination);
        file.blocks.retain(|slot, _| !(start..end).contains(slot));
        file.blocks.extend(copied);
        file.len = file.len.max(end);
    }

    /// Returns a correct exchange of a file's extents, if there is one.
    pub(super) fn exchange(&mut self) -> Option<Exchange> {
        let inode = self.any_file();
        let blocks = self.file(inode).blocks.clone();
        let taken: Vec<AllocationId> = blocks.iter().map(|_| self.fixture.take_block()).collect();
        let first = *taken.first()?;
        let is_adjacent =
            taken.iter().zip(first.block..).all(|(taken, block)| taken.block == block);
        if !is_adjacent {
            return None;
        }
        let new = blocks.keys().enumerate().map(|(index, slot)| {
            let at = index as u32 * BLOCK_BYTES;
            Extent { place: Place { allocation: first, at }, ..block_at(*slot, first) }
        });
        let new = new.collect();
        let (old, _) = self.extents(inode);
        let allocation = NewAllocation {
            blocks: blocks.len() as u32,
            is_flushed: true,
            ..new_allocation(first)
        };
        let sums = blocks.values().map(|(_, sum)| *sum).collect();
        let (generation, allocations) = (self.generation(inode), vec![allocation]);
        Some(Exchange { inode, generation, old, allocations, sums, new })
    }

    pub(super) fn compact(&mut self) {
        let Some(exchange) = self.exchange() else { return };
        self.call(&exchange.call());
        let first = exchange.allocations[0].allocation.block;
        let blocks = &mut self.file(exchange.inode).blocks;
        for (block, number) in blocks.values_mut().zip(first..) {
            block.0 = number;
        }
    }

    /// Removes a file, which may still be open. Then it keeps its data until it is closed.
    pub(super) fn remove(&mut self) {
        let inode = self.any_file();
        let file = self.files.remove(&inode).expect("a file of the model");
        let session = self.fixture.session;
        let is_open = self.random.chance(50);
        if is_open {
            self.fixture.open.push((inode, session));
        }
        let name = file.name.into_bytes();
        let unlink = ChangeCall::Unlink { parent: InodeId::ROOT, name, told: OpenTold::OfAny };
        self.call(&Call::Change(unlink));
        if is_open {
            if self.random.chance(50) {
                self.kill();
            }
            let there = self.fixture.core.attr(inode).is_ok();
            assert!(there, "{inode} is open and gone");
            self.fixture.open.retain(|(open, _)| *open != inode);
            self.fixture.core.close(session, inode).expect("a close");
        }
        let gone = self.fixture.core.attr(inode).err();
        assert_eq!(gone, Some(Errno::ESTALE), "{inode} is neither named nor open");
    }

    /// Returns the extents of a file, and the sums of their blocks.
    pub(super) fn extents(&mut self, inode: InodeId) -> (Vec<Extent>, BTreeMap<u64, u32>) {
        let (mut at, mut all, mut all_sums) = (0, Vec::new(), BTreeMap::new());
        let size = self.fixture.core.attr(inode).expect("a file").size;
        while at < size {
            let call = ReadCall::ReadExtents { inode, offset: at, length: size - at };
            match self.call(&Call::Read(call)) {
                Answer::Extents { extents, sums, covered_to, .. } => {
                    assert!(covered_to > at, "an answer covers nothing");
                    all.extend(extents.0);
                    all_sums.extend(sums.each().map(|(_, block, sum)| (block, sum)));
                    at = covered_to;
                }
                other => panic!("{other:?}"),
            }
        }
        (all, all_sums)
    }

    /// Compares all files with the model.
    pub(super) fn compare(&mut self) {
        for (inode, file) in self.files.clone() {
            let size = self.fixture.core.attr(inode).expect("a file").size;
            assert_eq!(size, file.len * BLOCK, "size of {inode}");
            let (extents, sums) = self.extents(inode);
            let mut found = BTreeMap::new();
            for Extent { offset, length, place } in extents {
                let Place { allocation: AllocationId { device, block }, at } = place;
                assert_eq!(device, DeviceId(0), "device of {inode}");
                for index in 0..u64::from(length) / BLOCK {
                    let block = block + u64::from(at) / BLOCK + index;
                    found.insert(offset / BLOCK + index, (block, sums.get(&block).copied()));
                }
            }
            let wanted =
                file.blocks.iter().map(|(slot, (block, sum))| (*slot, (*block, Some(*sum))));
            assert_eq!(found, wanted.collect(), "blocks of {inode}");
        }
    }
}
