//! The data of files in the core of the metadata service: inline bytes, extents, copies, holes, and
//! what flushes and losses of power make of them.
//!
//! The model keeps, for each 4 KiB of a file, where its bytes are, and of each block whether the
//! device has lost it. Rules D5 to D7, F2 to F5, F8 and F9 of docs/protocol.md.

use super::service::fixture::{BLOCK_BYTES, Fixture, commit};
use crate::random::{Random, mix};
use meta::store::CrashPoint;
use meta::tree::Durable;
use protocol::attr::AttrChanges;
use protocol::client::{Answer, Call, ChangeCall, FallocateMode, ReadCall};
use protocol::inline::{Bytes, InlineRun};
use protocol::space::{DeviceInfo, NewAllocation};
use protocol::sums::{Sums, checksum};
use protocol::{AllocationId, DeviceId, Extent, Incarnation, InodeId, Place};
use std::collections::BTreeMap;

const DEVICE: DeviceId = DeviceId(0);
/// Bytes of a piece, pieces of a block, of the part that can be inline, and of the largest file.
const PIECE: u64 = 4096;
const BLOCK_PIECES: u64 = BLOCK_BYTES as u64 / PIECE;
const INLINE_PIECES: u64 = 4;
const PIECES_MAX: u64 = 40;
/// Files, and steps of a run.
const FILES: u64 = 3;
const STEPS: (u64, u64) = (20, 60);

/// Where the bytes of a piece are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Hole,
    /// In the store: all of them have this value.
    Inline(u8),
    /// On the device, from this byte on.
    Stored(u64),
}

/// What the device does with a block if it loses power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Block {
    /// It loses the block.
    Unflushed,
    Durable,
    Lost,
}

/// A flush that was requested: the epoch that it ends, the incarnation, and the blocks before it.
struct Flush {
    through: u64,
    incarnation: Incarnation,
    blocks: Vec<u64>,
}

struct Data {
    fixture: Fixture,
    random: Random,
    files: Vec<(InodeId, Vec<Piece>)>,
    blocks: BTreeMap<u64, Block>,
    flush: Option<Flush>,
    incarnation: u128,
    value: u8,
    trace: u64,
}

/// Runs a seed; returns its trace and what is wrong. It panics where an answer is wrong.
pub(super) fn run(seed: u64) -> (u64, Vec<String>) {
    let mut fixture = Fixture::new();
    let files = (0..FILES).map(|number| (fixture.file(&format!("f{number}")), Vec::new()));
    let mut data = Data {
        files: files.collect(),
        fixture,
        random: Random::new(seed ^ 0x6461_7461),
        blocks: BTreeMap::new(),
        flush: None,
        incarnation: 7,
        value: 0,
        trace: seed,
    };
    for _ in 0..data.random.between(STEPS.0, STEPS.1) {
        data.step();
    }
    (data.trace, Vec::new())
}

impl Data {
    fn step(&mut self) {
        match self.random.below(100) {
            0..22 => self.write_block(),
            22..40 => self.write_inline(),
            40..48 => self.truncate(),
            48..58 => self.clear(),
            58..70 => self.copy(),
            70..78 => self.ask_flush(),
            78..86 => self.end_flush(),
            86..92 => self.lose_power(),
            _ => self.kill(),
        }
        self.compare();
        self.fixture.check();
    }

    fn call(&mut self, call: &Call) -> Answer {
        let answer = self.fixture.call(call);
        let text = format!("{answer:?}");
        self.trace = text.bytes().fold(self.trace, |sum, byte| mix(sum ^ u64::from(byte)));
        answer.unwrap_or_else(|error| panic!("{call:?} fails: {error:?}"))
    }

    fn any_file(&mut self) -> usize {
        self.random.below(FILES) as usize
    }

    /// Returns a range of pieces, which need not be in the file.
    fn any_range(&mut self, longest: u64) -> std::ops::Range<u64> {
        let start = self.random.below(PIECES_MAX - longest);
        start..start + self.random.between(1, longest)
    }

    /// Changes pieces of the model; the file becomes as long as needed.
    fn set(&mut self, file: usize, range: std::ops::Range<u64>, piece: impl Fn(u64) -> Piece) {
        let pieces = &mut self.files[file].1;
        let end = (range.end as usize).max(pieces.len());
        pieces.resize(end, Piece::Hole);
        for at in range {
            pieces[at as usize] = piece(at);
        }
    }

    fn write_block(&mut self) {
        let (file, range) = (self.any_file(), self.any_range(BLOCK_PIECES));
        let inode = self.files[file].0;
        let allocation = self.fixture.take_block();
        let is_flushed = self.random.chance(20);
        let incarnation = self.fixture.core.incarnation(DEVICE).expect("a device");
        let new = NewAllocation { allocation, blocks: 1, incarnation, is_flushed };
        let length = ((range.end - range.start) * PIECE) as u32;
        let place = Place { allocation, at: 0 };
        let extent = Extent { offset: range.start * PIECE, length, place };
        let generation = self.fixture.core.attr(inode).expect("a file").generation;
        let mut call = commit(inode, generation, vec![new], vec![extent]);
        if let Call::Change(ChangeCall::Commit { sums, .. }) = &mut call {
            *sums = Sums(vec![allocation.block as u32]);
        }
        self.call(&call);
        let state = if is_flushed { Block::Durable } else { Block::Unflushed };
        self.blocks.insert(allocation.block, state);
        let first = allocation.block * u64::from(BLOCK_BYTES);
        let start = range.start;
        self.set(file, range, |at| Piece::Stored(first + (at - start) * PIECE));
    }

    fn write_inline(&mut self) {
        let file = self.any_file();
        let inode = self.files[file].0;
        let start = self.random.below(INLINE_PIECES);
        let range = start..self.random.between(start + 1, INLINE_PIECES);
        self.value = self.value % 250 + 1;
        let value = self.value;
        let bytes = vec![value; ((range.end - range.start) * PIECE) as usize];
        let sum = self.random.chance(50).then(|| checksum(&bytes));
        let generation = self.fixture.core.attr(inode).expect("a file").generation;
        let mut call = commit(inode, generation, Vec::new(), Vec::new());
        if let Call::Change(ChangeCall::Commit { inline, .. }) = &mut call {
            inline.push(InlineRun { offset: (start * PIECE) as u32, bytes: Bytes(bytes), sum });
        }
        self.call(&call);
        self.set(file, range, |_| Piece::Inline(value));
    }

    fn truncate(&mut self) {
        let file = self.any_file();
        let len = self.random.below(PIECES_MAX);
        let changes = AttrChanges { size: Some(len * PIECE), ..AttrChanges::default() };
        let inode = self.files[file].0;
        self.call(&Call::Change(ChangeCall::SetAttr { inode, changes }));
        self.files[file].1.resize(len as usize, Piece::Hole);
    }

    /// Punches a hole, or writes zeros.
    fn clear(&mut self) {
        let (file, range) = (self.any_file(), self.any_range(INLINE_PIECES));
        let mode = if self.random.chance(50) {
            FallocateMode::Punch
        } else {
            FallocateMode::Zero { keep_size: true }
        };
        let (inode, pieces) = &mut self.files[file];
        for at in range.start..range.end.min(pieces.len() as u64) {
            pieces[at as usize] = Piece::Hole;
        }
        let (offset, length) = (range.start * PIECE, (range.end - range.start) * PIECE);
        let call = ChangeCall::Fallocate { inode: *inode, mode, offset, length };
        self.call(&Call::Change(call));
    }

    /// Copies whole blocks of a file that has all of them on the device, and none lost.
    fn copy(&mut self) {
        let (from, to) = (self.any_file(), self.any_file());
        let pieces = self.files[from].1.clone();
        let start = self.random.below(PIECES_MAX / BLOCK_PIECES - 1) * BLOCK_PIECES;
        let end = (start + BLOCK_PIECES).min(pieces.len() as u64);
        let is_good = |piece: &Piece| match piece {
            Piece::Hole => true,
            Piece::Inline(_) => false,
            Piece::Stored(at) => self.state(*at) != Block::Lost,
        };
        if from == to || start >= end || !pieces[start as usize..end as usize].iter().all(is_good) {
            return;
        }
        let call = Call::Change(ChangeCall::CopyRange {
            source: self.files[from].0,
            source_offset: start * PIECE,
            destination: self.files[to].0,
            destination_offset: start * PIECE,
            length: (end - start) * PIECE,
        });
        let Answer::Copied { length, .. } = self.call(&call) else { panic!("not copied") };
        assert_eq!(length, (end - start) * PIECE, "bytes that were copied");
        self.set(to, start..end, |at| pieces[at as usize]);
    }

    fn state(&self, at: u64) -> Block {
        self.blocks[&(at / u64::from(BLOCK_BYTES))]
    }

    /// Requests a flush: it covers what was committed before.
    fn ask_flush(&mut self) {
        if self.flush.is_some() {
            return;
        }
        let through = self.fixture.core.end_flush_epoch().expect("an epoch");
        let incarnation = self.fixture.core.incarnation(DEVICE).expect("a device");
        let is_unflushed = |(_, state): &(&u64, &Block)| **state == Block::Unflushed;
        let blocks = self.blocks.iter().filter(is_unflushed).map(|(block, _)| *block).collect();
        self.flush = Some(Flush { through, incarnation, blocks });
    }

    /// The device answers the flush.
    fn end_flush(&mut self) {
        let Some(flush) = self.flush.take() else { return };
        let is_done = self.random.chance(70);
        let core = &mut self.fixture.core;
        core.flushed(DEVICE, flush.incarnation, flush.through, is_done).expect("a flush");
        if flush.incarnation != Incarnation(self.incarnation) {
            return;
        }
        let state = if is_done { Block::Durable } else { Block::Lost };
        for block in flush.blocks {
            self.blocks.insert(block, state);
        }
    }

    /// The device comes back with another incarnation.
    fn lose_power(&mut self) {
        let known = self.fixture.core.devices().remove(0);
        let is_reborn = self.random.chance(80);
        self.incarnation += u128::from(is_reborn);
        let info = DeviceInfo { incarnation: Incarnation(self.incarnation), ..known };
        assert_eq!(self.fixture.core.register_device(&info).expect("a device"), DEVICE);
        self.fixture.core.set_online(DEVICE, true);
        if is_reborn {
            let unflushed = self.blocks.values_mut().filter(|state| **state == Block::Unflushed);
            unflushed.for_each(|state| *state = Block::Lost);
        }
    }

    /// The service is killed and starts again.
    fn kill(&mut self) {
        self.fixture.core.flush().expect("a commit");
        self.fixture.reopen(CrashPoint::Process);
    }

    /// Compares all files with the model.
    fn compare(&mut self) {
        for (inode, pieces) in self.files.clone() {
            let size = self.fixture.core.attr(inode).expect("a file").size;
            assert_eq!(size, pieces.len() as u64 * PIECE, "size of {inode}");
            let (found, lost) = self.found(inode, pieces.len());
            assert_eq!(found, self.without_lost(&pieces), "pieces of {inode}");
            let is_in = |state: Block| {
                let stored =
                    |piece: &Piece| matches!(piece, Piece::Stored(at) if self.state(*at) == state);
                pieces.iter().map(stored).collect::<Vec<bool>>()
            };
            assert_eq!(lost, is_in(Block::Lost), "lost pieces of {inode}");
            let (has_lost, has_unflushed) =
                (lost.contains(&true), is_in(Block::Unflushed).contains(&true));
            let durable = self.fixture.core.durable(inode).expect("an answer");
            let closely = self.fixture.core.durable_closely(inode).expect("an answer");
            let is_durable = !has_lost && !has_unflushed;
            assert_eq!(closely == Durable::Yes, is_durable, "{inode} is durable: {closely:?}");
            assert_eq!(closely == Durable::Lost, has_lost, "{inode} is lost: {closely:?}");
            let is_sure = durable == Durable::Yes;
            assert!(is_durable || !is_sure, "{inode} is durable at a first look");
        }
    }

    /// Returns the pieces without those that are lost.
    fn without_lost(&self, pieces: &[Piece]) -> Vec<Piece> {
        let known = |piece: &Piece| match piece {
            Piece::Stored(at) if self.state(*at) == Block::Lost => Piece::Hole,
            piece => *piece,
        };
        pieces.iter().map(known).collect()
    }

    /// Returns where the service has the pieces of a file, and which of them it calls lost.
    fn found(&mut self, inode: InodeId, count: usize) -> (Vec<Piece>, Vec<bool>) {
        let (mut pieces, mut lost) = (vec![Piece::Hole; count], vec![false; count]);
        let (mut at, end) = (0, count as u64 * PIECE);
        while at < end {
            let read = ReadCall::ReadExtents { inode, offset: at, length: end - at };
            let Answer::Extents { extents, inline, covered_to, .. } = self.call(&Call::Read(read))
            else {
                panic!("no extents")
            };
            for Extent { offset, length, place } in extents.0 {
                for more in (0..u64::from(length)).step_by(PIECE as usize) {
                    let index = ((offset + more) / PIECE) as usize;
                    if place.lost_with() == Some(DEVICE) {
                        lost[index] = true;
                        continue;
                    }
                    let Place { allocation: AllocationId { block, .. }, at } = place;
                    let byte = block * u64::from(BLOCK_BYTES) + u64::from(at) + more;
                    let known = pieces[index];
                    let is_new = known == Piece::Hole || known == Piece::Stored(byte);
                    assert!(is_new, "two places of piece {index}");
                    pieces[index] = Piece::Stored(byte);
                }
            }
            if at == 0 {
                for (index, bytes) in inline.0.chunks(PIECE as usize).enumerate() {
                    let value = bytes[0];
                    let is_same = bytes.iter().all(|byte| *byte == value);
                    assert!(is_same, "inline bytes of piece {index} of {inode}");
                    if value != 0 {
                        let is_free = pieces[index] == Piece::Hole && !lost[index];
                        assert!(is_free, "two places of piece {index} of {inode}");
                        pieces[index] = Piece::Inline(value);
                    }
                }
            }
            at = covered_to;
        }
        (pieces, lost)
    }
}
