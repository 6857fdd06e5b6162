//! A device that does nothing, at once: what remains is the generator itself.

use block::{Backing, Device, DiscardEffect, Geometry, Incarnation, IoFuture};
use reactor::{Buffer, Chunk, Segments, Shared};
use std::rc::Rc;

const BLOCK_BYTES: u32 = 512;
/// Size of the device.
const NULL_BYTES: u64 = 1 << 40;
/// Requests that were merged are no longer than this.
const MERGED_BYTES_MAX: u64 = 1 << 20;

/// The device that does nothing. It gives the same zeros for every read, and each thread its own, so that
/// threads share nothing.
#[derive(Clone, Debug)]
pub struct Null {
    /// Longest read.
    bytes_max: usize,
}

/// What a thread has of it.
struct NullDevice {
    zeros: Shared,
}

impl Null {
    /// Returns one for requests of this size.
    pub fn new(request_bytes: u64) -> Self {
        Self { bytes_max: request_bytes.max(MERGED_BYTES_MAX) as usize }
    }

    fn geometry() -> Geometry {
        Geometry {
            block_size: BLOCK_BYTES,
            blocks: NULL_BYTES / u64::from(BLOCK_BYTES),
            discard: DiscardEffect::Ignored,
            has_volatile_cache: false,
        }
    }
}

impl Backing for Null {
    fn geometry(&self) -> Geometry {
        Self::geometry()
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation::random()
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(NullDevice { zeros: Buffer::zeroed(self.bytes_max).freeze() })
    }
}

impl Device for NullDevice {
    fn geometry(&self) -> Geometry {
        Null::geometry()
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation::random()
    }

    fn read(&self, _offset: u64, len: usize) -> IoFuture<Chunk> {
        IoFuture::ready(Ok(Chunk::Shared(self.zeros.slice(..len))))
    }

    fn read_into(&self, _offset: u64, segments: Segments) -> IoFuture<Segments> {
        IoFuture::ready(Ok(segments))
    }

    fn write(&self, _offset: u64, _chunk: Chunk) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn write_chunks(&self, _offset: u64, _chunks: Vec<Chunk>) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn discard(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn write_zeroes(&self, _offset: u64, _len: u64) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }
}
