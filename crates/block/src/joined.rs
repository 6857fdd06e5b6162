//! Devices joined one after the other: a memory device grows this way while it is in use.
//!
//! A command within one part goes directly to that part's device. A command across a border is
//! executed part by part and copied; parts are large, so this is rare.

use crate::device::{Backing, Device, Geometry};
use crate::error::{Access, Error};
use crate::future::IoFuture;
use crate::incarnation::Incarnation;
use reactor::{Buffer, Chunk, Segment, Segments};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

/// Two stores as one: the blocks of the second follow those of the first.
pub struct Joined {
    first: Arc<dyn Backing>,
    second: Arc<dyn Backing>,
    /// Number of bytes of the first store that are used.
    border: u64,
    geometry: Geometry,
}

struct JoinedDevice {
    first: Rc<dyn Device>,
    second: Rc<dyn Device>,
    border: u64,
    geometry: Geometry,
    incarnation: Incarnation,
}

impl fmt::Debug for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}

impl Joined {
    /// Appends `second` to `first`. They may differ only in their number of blocks.
    ///
    /// # Errors
    /// [`Error::Geometry`] if their block sizes, caches or effects of discarding differ.
    pub fn new(first: Arc<dyn Backing>, second: Arc<dyn Backing>) -> Result<Self, Error> {
        let (one, other) = (first.geometry(), second.geometry());
        if (Geometry { blocks: other.blocks, ..one }) != other {
            let (what, value) = ("block size", u64::from(other.block_size));
            return Err(Error::Geometry {
                what,
                value,
                expected: "is for a device of another kind",
            });
        }
        let geometry = Geometry { blocks: one.blocks + other.blocks, ..one };
        Ok(Self { first, second, border: one.size(), geometry })
    }
}

impl Backing for Joined {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn incarnation(&self) -> Incarnation {
        self.first.incarnation()
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(JoinedDevice {
            first: self.first.attach(),
            second: self.second.attach(),
            border: self.border,
            geometry: self.geometry,
            incarnation: self.first.incarnation(),
        })
    }

    fn resized(&self, size: u64) -> Result<Arc<dyn Backing>, Error> {
        let room = self.border + self.second.geometry().size();
        let geometry = self.geometry.resized(size, room)?;
        let (first, second) = (Arc::clone(&self.first), Arc::clone(&self.second));
        Ok(Arc::new(Self { first, second, border: self.border, geometry }))
    }
}

impl JoinedDevice {
    /// Returns the device of a range and the offset there, if the range is in one device.
    fn within(&self, offset: u64, len: u64) -> Option<(&Rc<dyn Device>, u64)> {
        if offset >= self.border {
            Some((&self.second, offset - self.border))
        } else if offset.checked_add(len)? <= self.border {
            Some((&self.first, offset))
        } else {
            None
        }
    }

    /// Returns the number of bytes before the border in a range that crosses it.
    fn before(&self, offset: u64) -> usize {
        (self.border - offset) as usize
    }

    fn each(
        &self,
        offset: u64,
        len: u64,
        run: fn(&dyn Device, u64, u64) -> IoFuture<()>,
    ) -> IoFuture<()> {
        if let Some((device, offset)) = self.within(offset, len) {
            return run(&**device, offset, len);
        }
        let head = self.border - offset;
        let (one, other) = (run(&*self.first, offset, head), run(&*self.second, 0, len - head));
        IoFuture::boxed(async move {
            let (one, other) = (one.await, other.await);
            one.and(other)
        })
    }
}

impl Device for JoinedDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        if let Err(error) = self.geometry.check(Access::Read, offset, len as u64) {
            return IoFuture::ready(Err(error));
        }
        if let Some((device, offset)) = self.within(offset, len as u64) {
            return device.read(offset, len);
        }
        let head = self.before(offset);
        let (one, other) = (self.first.read(offset, head), self.second.read(0, len - head));
        IoFuture::boxed(async move {
            let (one, other) = (one.await, other.await);
            let mut whole = Buffer::with_capacity(len);
            for chunk in [one?, other?] {
                whole.extend_from_chunk(&chunk, 0..chunk.len());
            }
            Ok(Chunk::from(whole))
        })
    }

    fn read_into(&self, offset: u64, mut segments: Segments) -> IoFuture<Segments> {
        let len = segments.iter().map(Segment::len).sum::<usize>();
        if let Err(error) = self.geometry.check(Access::Read, offset, len as u64) {
            return IoFuture::ready(Err(error));
        }
        if let Some((device, offset)) = self.within(offset, len as u64) {
            return device.read_into(offset, segments);
        }
        let read = self.read(offset, len);
        IoFuture::boxed(async move {
            reactor::scatter(&read.await?, &mut segments);
            Ok(segments)
        })
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        let len = chunk.len();
        if let Err(error) = self.geometry.check(Access::Write, offset, len as u64) {
            return IoFuture::ready(Err(error));
        }
        if let Some((device, offset)) = self.within(offset, len as u64) {
            return device.write(offset, chunk);
        }
        let head = self.before(offset);
        let part = |range| Chunk::from(chunk.copy_part(range));
        let one = self.first.write(offset, part(0..head));
        let other = self.second.write(0, part(head..len));
        IoFuture::boxed(async move {
            let (one, other) = (one.await, other.await);
            one.and(other)
        })
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let len = chunks.iter().map(Chunk::len).sum::<usize>();
        if let Err(error) = self.geometry.check(Access::Write, offset, len as u64) {
            return IoFuture::ready(Err(error));
        }
        if let Some((device, offset)) = self.within(offset, len as u64) {
            return device.write_chunks(offset, chunks);
        }
        let mut whole = Buffer::with_capacity(len);
        for chunk in &chunks {
            whole.extend_from_chunk(chunk, 0..chunk.len());
        }
        self.write(offset, Chunk::from(whole))
    }

    fn flush(&self) -> IoFuture<()> {
        let (one, other) = (self.first.flush(), self.second.flush());
        IoFuture::boxed(async move {
            let (one, other) = (one.await, other.await);
            one.and(other)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        match self.geometry.check(Access::Discard, offset, len) {
            Ok(()) => self.each(offset, len, |device, offset, len| device.discard(offset, len)),
            Err(error) => IoFuture::ready(Err(error)),
        }
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        match self.geometry.check(Access::WriteZeroes, offset, len) {
            Ok(()) => {
                self.each(offset, len, |device, offset, len| device.write_zeroes(offset, len))
            }
            Err(error) => IoFuture::ready(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBacking;

    const BLOCK: u32 = 512;

    fn memory(blocks: u64) -> Arc<dyn Backing> {
        Arc::new(MemoryBacking::new(blocks * u64::from(BLOCK), BLOCK).unwrap())
    }

    fn wait<T>(future: IoFuture<T>) -> Result<T, Error> {
        reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(future)
    }

    /// Goal: each command reaches the same bytes as on one device, before the border, behind it and
    /// across it. Nothing behind the end can be reached, even after the device was shrunk and grown
    /// again.
    #[test]
    fn two_devices_are_as_one() {
        let first = memory(4);
        let before = first.attach();
        let joined: Arc<dyn Backing> = Arc::new(Joined::new(first, memory(4)).unwrap());
        let device = joined.attach();
        assert_eq!((device.geometry().blocks, joined.incarnation()), (8, before.incarnation()));
        let pattern = |block: u64| vec![block as u8 + 1; BLOCK as usize];
        let all: Vec<u8> = (0..8).flat_map(pattern).collect();
        let chunk = |range: std::ops::Range<usize>| Chunk::from(Buffer::copy_from(&all[range]));
        wait(device.write(0, chunk(0..512))).unwrap();
        wait(device.write_chunks(512, vec![chunk(512..1000), chunk(1000..3584)])).unwrap();
        wait(device.write(3584, chunk(3584..4096))).unwrap();
        for (offset, len) in [(0, 4096), (1024, 2048), (1536, 512), (2048, 512), (512, 1536)] {
            let read = wait(device.read(offset, len)).unwrap();
            assert!(*read.to_bytes() == all[offset as usize..][..len], "{offset} {len}");
        }
        assert!(
            *wait(before.read(0, 2048)).unwrap().to_bytes() == all[..2048],
            "the earlier device sees the same"
        );
        assert!(
            wait(device.read(3584, 1024)).is_err()
                && wait(device.write(4096, chunk(0..512))).is_err()
        );
        wait(device.write_zeroes(1536, 1024)).unwrap();
        let read = wait(device.read(1024, 2048)).unwrap().to_bytes().to_vec();
        assert!(
            read[..512] == pattern(2) && read[512..1536] == [0; 1024] && read[1536..] == pattern(5)
        );
        let smaller = joined.resized(3072).unwrap();
        assert!(wait(smaller.attach().read(2560, 1024)).is_err());
        assert_eq!(smaller.resized(4096).unwrap().geometry().blocks, 8);
        for wrong in [0, 100, 4608] {
            assert!(smaller.resized(wrong).is_err(), "{wrong}");
        }
        let other = Arc::new(MemoryBacking::new(4096, 4096).unwrap());
        assert!(Joined::new(joined, other).is_err());
    }
}
