//! A memory device: for tests, benchmarks, and nodes that offer RAM.
//!
//! Nothing survives the process, so each start has a new incarnation and no flushes are needed.

mod populate;
mod room;

use crate::device::{Backing, Device, DiscardEffect, Geometry};
use crate::error::{Access, Error};
use crate::future::{Command, IoFuture};
use crate::incarnation::Incarnation;
use reactor::{Chunk, Region, Segment, Segments};
use std::rc::Rc;
use std::sync::Arc;

/// The memory that the devices of all threads share.
#[derive(Clone, Debug)]
pub struct MemoryBacking {
    region: Region,
    geometry: Geometry,
    incarnation: Incarnation,
}

impl MemoryBacking {
    /// Returns a zeroed device of `size` bytes in blocks of `block_size` bytes (a power of two of
    /// 512 bytes to 64 KiB). The system allocates its memory when it is written, see
    /// [`Self::populated`].
    ///
    /// # Errors
    /// [`Error::Geometry`] for a size that is not a positive multiple of the block size,
    /// [`Error::Open`] if the memory cannot be mapped.
    pub fn new(size: u64, block_size: u32) -> Result<Self, Error> {
        check_block_size(block_size)?;
        if size == 0 || !size.is_multiple_of(u64::from(block_size)) {
            let expected = "is not a positive multiple of the block size";
            return Err(Error::Geometry { what: "device size", value: size, expected });
        }
        let region = Region::new(size as usize).map_err(|source| Error::Open {
            action: "map memory for",
            path: "memory".into(),
            source: Arc::new(source),
        })?;
        let geometry = Geometry {
            block_size,
            blocks: size / u64::from(block_size),
            discard: DiscardEffect::Zeroes,
            has_volatile_cache: false,
        };
        Ok(Self { region, geometry, incarnation: Incarnation::random() })
    }

    /// Returns the memory itself, e.g. to receive a payload directly into its place.
    pub fn region(&self) -> &Region {
        &self.region
    }
}

/// Largest block size in bytes. One transfer of a command has room for few larger blocks.
const BLOCK_SIZE_MAX: u32 = 64 << 10;

pub(crate) fn check_block_size(block_size: u32) -> Result<(), Error> {
    if block_size.is_power_of_two() && (512..=BLOCK_SIZE_MAX).contains(&block_size) {
        return Ok(());
    }
    let expected = "is not a power of two from 512 to 65536";
    Err(Error::Geometry { what: "block size", value: u64::from(block_size), expected })
}

impl Backing for MemoryBacking {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn attach(&self) -> Rc<dyn Device> {
        // Each view of the memory counts its references; devices of other threads use another
        // counter.
        Rc::new(Self { region: self.region.apart(), ..self.clone() })
    }

    fn resized(&self, size: u64) -> Result<Arc<dyn Backing>, Error> {
        let geometry = self.geometry.resized(size, self.region.len() as u64)?;
        Ok(Arc::new(Self { geometry, ..self.clone() }))
    }
}

impl MemoryBacking {
    /// Copies a chunk to its place, once, from any kind of memory.
    fn copy_in(&self, start: usize, chunk: &Chunk) {
        let place = self.region.range(start, chunk.len());
        Segment::Region(place).fill_from_chunk(chunk, 0);
    }

    fn run<T>(
        &self,
        access: Access,
        offset: u64,
        len: u64,
        f: impl FnOnce(usize) -> Result<T, std::io::Error>,
    ) -> IoFuture<T> {
        let command = Command { access, offset, len };
        IoFuture::ready(
            self.geometry
                .check(access, offset, len)
                .and_then(|()| f(offset as usize).map_err(|source| command.error(source))),
        )
    }
}

impl Device for MemoryBacking {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        self.run(Access::Read, offset, len as u64, |start| Ok(self.region.slice(start, len)))
    }

    fn read_into(&self, offset: u64, mut segments: Segments) -> IoFuture<Segments> {
        let len = segments.iter().map(Segment::len).sum::<usize>();
        self.run(Access::Read, offset, len as u64, |start| {
            reactor::scatter(&self.region.slice(start, len), &mut segments);
            Ok(segments)
        })
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        self.run(Access::Write, offset, chunk.len() as u64, |start| {
            self.copy_in(start, &chunk);
            Ok(())
        })
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let len = chunks.iter().map(Chunk::len).sum::<usize>();
        self.run(Access::Write, offset, len as u64, |mut start| {
            for chunk in &chunks {
                self.copy_in(start, chunk);
                start += chunk.len();
            }
            Ok(())
        })
    }

    fn flush(&self) -> IoFuture<()> {
        IoFuture::ready(Ok(()))
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        let run = |start| self.region.discard(start, len as usize);
        self.run(Access::Discard, offset, len, run)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.run(Access::WriteZeroes, offset, len, |start| {
            self.region.zero(start, len as usize);
            Ok(())
        })
    }
}
