//! Fills: memory that gathers written bytes and goes to a device as one.

use crate::extent_map::{Place, Run};
use crate::space::Allocated;
use crate::space::reservation::Reservation;
use protocol::{AllocationId, DeviceId};
use reactor::{Buffer, Shared};
use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;

/// A part that has to cut a fill takes at most this many times the runs of other parts.
pub(crate) const CUT_MAX: usize = 3;

/// Number of a fill of one inode. Later fills have higher numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FillId(pub(super) u64);

/// The place of uncommitted bytes in a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FillPlace {
    pub(crate) fill: FillId,
    pub(crate) at: u32,
}

impl Place for FillPlace {
    fn advance(self, skipped: u64) -> Self {
        FillPlace { fill: self.fill, at: self.at + skipped as u32 }
    }
}

/// The state of a fill.
#[derive(Debug)]
pub(crate) enum FillState {
    /// Bytes are added to it.
    Gathering(Buffer),
    /// It is on its way to the device. The bytes are padded to whole blocks.
    Writing(Shared),
    /// The device has acknowledged it.
    Written,
}

/// Memory that goes to a device as one.
#[derive(Debug)]
pub(crate) struct Fill {
    pub(crate) device: DeviceId,
    /// The device's block size.
    pub(crate) block_size: u32,
    pub(crate) state: FillState,
    /// Bytes in it, without padding.
    pub(crate) used: u32,
    /// Its reserved memory and blocks, while it gathers.
    pub(crate) reservation: Option<Reservation>,
    /// Once written out: the allocations it went to.
    pub(crate) pieces: Pieces,
    /// Once written out: the checksum of each of its blocks, if this client makes checksums.
    pub(crate) sums: Vec<u32>,
    /// Once written out: the number of the last of its writes to the device.
    pub(crate) number: u64,
    /// Its blocks that commits have named, ascending. This client may not return them.
    pub(crate) named: Vec<Range<u32>>,
    /// Held by reads of its blocks on the device.
    pub(crate) readers: Rc<()>,
    pub(crate) writes: u32,
}

impl Fill {
    /// Cuts the runs, ascending in the fill, for a part that takes `count_max` of them, and on to
    /// the end of a block. Leaves the part's runs, and returns where the others begin.
    pub(crate) fn cut(&self, runs: &mut Vec<Run<FillPlace>>, count_max: usize) -> Option<u32> {
        let block = self.blocks_of(&runs[count_max - 1]).end;
        let most = runs.get(count_max * CUT_MAX).map_or(u32::MAX, |run| run.place.at);
        let at = most.min(block * self.block_size);
        let count = runs.len();
        runs.truncate(runs.partition_point(|run| run.place.at < at));
        let is_fewer = runs.len() < count;
        let last = runs.last_mut()?;
        let room = u64::from(at - last.place.at);
        let is_more = is_fewer || last.length > room;
        last.length = last.length.min(room);
        is_more.then_some(at)
    }

    /// Returns the blocks that a run of its bytes touches.
    pub(super) fn blocks_of(&self, run: &Run<FillPlace>) -> Range<u32> {
        let end = run.place.at + run.length as u32;
        run.place.at / self.block_size..end.div_ceil(self.block_size)
    }

    /// Returns its pieces, each with its blocks of the fill.
    pub(crate) fn pieces_by_block(&self) -> impl Iterator<Item = (Range<u32>, &Allocated)> {
        self.pieces.iter().map(|(start, piece)| {
            let first = start / self.block_size;
            (first..first + piece.blocks, piece)
        })
    }

    /// Returns the blocks that no commit has named.
    pub(crate) fn unnamed(&self) -> Vec<Allocated> {
        let mut unnamed = Vec::new();
        for (blocks, piece) in self.pieces_by_block() {
            for part in without(blocks.clone(), &self.named) {
                unnamed.push(cut(piece, &blocks, &part));
            }
        }
        unnamed
    }

    /// Returns the blocks that runs of it, ascending, touch and that are not named yet.
    pub(crate) fn fresh(&self, runs: &[&Run<FillPlace>]) -> Vec<Range<u32>> {
        let mut touched: Vec<Range<u32>> = Vec::new();
        for run in runs {
            let blocks = self.blocks_of(run);
            match touched.last_mut() {
                Some(last) if blocks.start <= last.end => last.end = last.end.max(blocks.end),
                _ => touched.push(blocks),
            }
        }
        touched.into_iter().flat_map(|range| without(range, &self.named)).collect()
    }
}

/// Returns what is left of a range without others, which are ascending.
fn without(range: Range<u32>, others: &[Range<u32>]) -> Vec<Range<u32>> {
    let mut left = Vec::new();
    let mut at = range.start;
    for other in others.iter().filter(|other| other.end > range.start && other.start < range.end) {
        if at < other.start {
            left.push(at..other.start);
        }
        at = at.max(other.end);
    }
    if at < range.end {
        left.push(at..range.end);
    }
    left
}

/// Returns the part of a piece that has these blocks of a fill.
pub(crate) fn cut(piece: &Allocated, blocks: &Range<u32>, part: &Range<u32>) -> Allocated {
    let AllocationId { device, block } = piece.allocation;
    let allocation = AllocationId { device, block: block + u64::from(part.start - blocks.start) };
    Allocated { allocation, blocks: part.end - part.start, incarnation: piece.incarnation }
}

/// The allocations of a fill, each with its offset in the fill.
pub(crate) type Pieces = SmallVec<[(u32, Allocated); 1]>;

/// A fill that takes no more bytes, ready to be written out.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) id: FillId,
    pub(crate) device: DeviceId,
    pub(crate) block_size: u32,
    /// The bytes, padded to whole blocks.
    pub(crate) bytes: Shared,
    /// Its reserved memory and blocks.
    pub(crate) reservation: Reservation,
}
