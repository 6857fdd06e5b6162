//! Bytes that a device command has read.

use reactor::{Chunk, RegionSlice, Shared};

/// Bytes of one command.
#[derive(Debug)]
pub(super) enum Fetched {
    OwnCommit(Shared),
    Placed(RegionSlice),
}

impl Fetched {
    /// Returns how many bytes there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::OwnCommit(shared) => shared.len(),
            Self::Placed(slice) => slice.len(),
        }
    }

    /// Returns a part of the bytes.
    pub(super) fn range(&self, start: usize, length: usize) -> Chunk {
        match self {
            Self::OwnCommit(shared) => Chunk::Shared(shared.slice(start..start + length)),
            Self::Placed(slice) => Chunk::Region(slice.range(start, length)),
        }
    }
}
