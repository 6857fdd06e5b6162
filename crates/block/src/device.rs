//! The device trait and its types.

use crate::error::{Access, Error};
use crate::future::IoFuture;
use crate::incarnation::Incarnation;
use reactor::{Chunk, Segments};
use std::rc::Rc;
use std::sync::Arc;

/// The effect of discarding on blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardEffect {
    /// None: the blocks keep their bytes. (For example, a backing file that was written completely
    /// beforehand must keep its blocks.)
    Ignored,
    /// The blocks are returned to the medium and read as zeros.
    Zeroes,
    /// The blocks are returned and read as anything.
    Arbitrary,
}

/// The size and properties of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Smallest unit of I/O in bytes, a power of two of at least 512.
    pub block_size: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// The effect of discarding.
    pub discard: DiscardEffect,
    /// Whether acknowledged writes need a flush to survive power loss.
    pub has_volatile_cache: bool,
}

impl Geometry {
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }

    /// Returns the same geometry with `size` bytes, at most `room`.
    ///
    /// # Errors
    /// [`Error::Geometry`].
    pub(crate) fn resized(self, size: u64, room: u64) -> Result<Self, Error> {
        let expected = match size {
            0 => "is not positive",
            _ if !size.is_multiple_of(u64::from(self.block_size)) => {
                "is not a multiple of the block size"
            }
            _ if size > room => "is more than the space available",
            _ => return Ok(Self { blocks: size / u64::from(self.block_size), ..self }),
        };
        Err(Error::Geometry { what: "device size", value: size, expected })
    }

    /// Checks that a range consists of whole blocks of the device.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::OutOfRange`].
    pub fn check(&self, access: Access, offset: u64, len: u64) -> Result<(), Error> {
        let block_size = self.block_size;
        if (offset | len) & u64::from(block_size - 1) != 0 {
            return Err(Error::Unaligned { access, offset, len, block_size });
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size() => Ok(()),
            _ => Err(Error::OutOfRange { access, offset, len, size: self.size() }),
        }
    }
}

/// A block device as one thread uses it. I/O starts when the method is called, not when its future
/// is first polled; dropping the future leaves open whether the I/O took place. Concurrent writes
/// that overlap leave a mix of their bytes.
pub trait Device {
    /// Returns the geometry, which never changes.
    fn geometry(&self) -> Geometry;

    /// Returns the incarnation, which never changes for an attached device.
    fn incarnation(&self) -> Incarnation;

    /// Reads `len` bytes. The chunk of a memory device is a view of the device itself, which later
    /// writes to the same blocks change. Send it or copy it, but do not keep it, and copy it before
    /// computing a digest that must match.
    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk>;

    /// Fills all of the segments, in order, and returns them.
    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments>;

    /// Writes a chunk.
    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()>;

    /// Writes chunks one after the other. Each may have any length and alignment, only the sum
    /// counts; a file under direct I/O copies unaligned chunks.
    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()>;

    /// Makes all writes that completed before this call durable. After a failure the state of
    /// earlier writes is unknown, and a device makes later flushes fail too.
    fn flush(&self) -> IoFuture<()>;

    /// Marks the bytes as no longer needed; [`Geometry::discard`] describes the effect.
    fn discard(&self, offset: u64, len: u64) -> IoFuture<()>;

    /// Makes blocks read as zeros.
    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()>;

    /// Makes reads of the blocks fail until the blocks are written. Fails with
    /// [`Error::Unsupported`] unless [`Backing::can_mark_uncorrectable`].
    fn mark_uncorrectable(&self, offset: u64, len: u64) -> IoFuture<()> {
        let what = "marking blocks as uncorrectable";
        IoFuture::ready(Err(Error::Unsupported { what, offset, len }))
    }
}

/// The part of a device that threads share.
pub trait Backing: Send + Sync {
    /// Returns the geometry.
    fn geometry(&self) -> Geometry;

    /// Returns the incarnation.
    fn incarnation(&self) -> Incarnation;

    /// Whether it is read-only.
    fn is_read_only(&self) -> bool {
        false
    }

    /// Whether its blocks can be marked so that reads of them fail.
    fn can_mark_uncorrectable(&self) -> bool {
        false
    }

    /// Returns a device for the calling thread, with I/O on that thread's ring.
    fn attach(&self) -> Rc<dyn Device>;

    /// Returns the layers of this store over another one, for example one that was opened anew with
    /// another size.
    fn over(&self, store: Arc<dyn Backing>) -> Arc<dyn Backing> {
        store
    }

    /// Returns the same store with `size` bytes, a positive multiple of the block size. The store
    /// must have the space, from its creation or added later. Both may be used at the same time.
    ///
    /// # Errors
    /// [`Error::Geometry`] if the store does not have the space, or cannot change its size.
    fn resized(&self, size: u64) -> Result<Arc<dyn Backing>, Error> {
        let expected = "is not possible: a device of this kind keeps its size";
        Err(Error::Geometry { what: "device size", value: size, expected })
    }
}
