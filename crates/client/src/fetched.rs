//! Bytes that a device command has read.

use reactor::{Chunk, RegionSlice, Shared};

/// What a command has read.
#[derive(Debug)]
pub(super) enum Fetched {
    Own(Shared),
    Placed(RegionSlice),
}

impl Fetched {
    /// Bytes in all.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own(shared) => shared.len(),
            Self::Placed(slice) => slice.len(),
        }
    }

    /// A part of it.
    pub(super) fn range(&self, start: usize, length: usize) -> Chunk {
        match self {
            Self::Own(shared) => Chunk::Shared(shared.slice(start..start + length)),
            Self::Placed(slice) => Chunk::Region(slice.range(start, length)),
        }
    }
}
