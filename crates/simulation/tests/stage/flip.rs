//! A device with flipping bits: at rest, or on the way to the reader.

use block::{Backing, Device, Geometry, Incarnation, IoFuture, MemoryBacking};
use reactor::{Buffer, Chunk, Segment, Segments, scatter};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

#[derive(Debug, Default)]
struct State {
    /// For each of the next reads: whether a bit flips on the way.
    on_the_way: VecDeque<bool>,
    /// Blocks that hold a flipped bit.
    damaged: BTreeSet<u64>,
    /// Blocks that were written.
    written: BTreeSet<u64>,
    /// Reads that met a flipped bit.
    met: u64,
}

/// Memory with flipping bits; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Flip {
    memory: Arc<MemoryBacking>,
    block_bytes: u64,
    state: Arc<Mutex<State>>,
}

impl Flip {
    pub(crate) fn new(bytes: u64, block_bytes: u32) -> Flip {
        let memory = Arc::new(MemoryBacking::new(bytes, block_bytes).unwrap());
        Flip { memory, block_bytes: block_bytes.into(), state: Arc::default() }
    }

    /// Chooses for each of the next reads whether a bit flips on the way.
    pub(crate) fn on_the_way(&self, reads: &[bool]) {
        self.state.lock().unwrap().on_the_way.extend(reads);
    }

    /// Flips a bit of a block at rest.
    pub(crate) async fn at_rest(&self, block: u64) {
        let device = self.memory.attach();
        let at = block * self.block_bytes;
        let mut bytes =
            device.read(at, self.block_bytes as usize).await.unwrap().to_bytes().into_owned();
        bytes[block as usize % 4096] ^= 4;
        device.write(at, Chunk::from(Buffer::copy_from(&bytes))).await.unwrap();
        let mut state = self.state.lock().unwrap();
        // A second flip restores the bit.
        if !state.damaged.insert(block) {
            state.damaged.remove(&block);
        }
    }

    /// Returns the blocks that were written, in ascending order.
    pub(crate) fn written(&self) -> Vec<u64> {
        self.state.lock().unwrap().written.iter().copied().collect()
    }

    /// Returns the number of reads that met a flipped bit so far.
    pub(crate) fn met(&self) -> u64 {
        self.state.lock().unwrap().met
    }

    fn blocks(&self, offset: u64, length: usize) -> std::ops::Range<u64> {
        offset / self.block_bytes..(offset + length as u64).div_ceil(self.block_bytes)
    }

    fn note_write(&self, offset: u64, length: usize) {
        let mut state = self.state.lock().unwrap();
        for block in self.blocks(offset, length) {
            state.damaged.remove(&block);
            state.written.insert(block);
        }
    }

    /// Returns the bytes that a reader gets.
    fn changed(&self, offset: u64, chunk: &Chunk) -> Chunk {
        let mut bytes = chunk.to_bytes().into_owned();
        let mut state = self.state.lock().unwrap();
        let flips = state.on_the_way.pop_front().unwrap_or(false);
        if flips {
            let at = bytes.len() / 2;
            bytes[at] ^= 16;
        }
        let blocks = self.blocks(offset, bytes.len());
        let is_damaged = state.damaged.range(blocks).next().is_some();
        state.met += u64::from(flips || is_damaged);
        Chunk::from(Buffer::copy_from(&bytes))
    }
}

impl Backing for Flip {
    fn geometry(&self) -> Geometry {
        Backing::geometry(&*self.memory)
    }

    fn incarnation(&self) -> Incarnation {
        Backing::incarnation(&*self.memory)
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(FlipDevice { flip: self.clone(), device: self.memory.attach() })
    }
}

struct FlipDevice {
    flip: Flip,
    device: Rc<dyn Device>,
}

impl Device for FlipDevice {
    fn geometry(&self) -> Geometry {
        Backing::geometry(&self.flip)
    }

    fn incarnation(&self) -> Incarnation {
        Backing::incarnation(&self.flip)
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        let (flip, device) = (self.flip.clone(), Rc::clone(&self.device));
        IoFuture::boxed(async move {
            let chunk = device.read(offset, len).await?;
            Ok(flip.changed(offset, &chunk))
        })
    }

    fn read_into(&self, offset: u64, mut segments: Segments) -> IoFuture<Segments> {
        let (flip, device) = (self.flip.clone(), Rc::clone(&self.device));
        IoFuture::boxed(async move {
            let len = segments.iter().map(Segment::len).sum();
            let chunk = device.read(offset, len).await?;
            scatter(&flip.changed(offset, &chunk), &mut segments);
            Ok(segments)
        })
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        self.flip.note_write(offset, chunk.len());
        self.device.write(offset, chunk)
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        self.flip.note_write(offset, chunks.iter().map(Chunk::len).sum());
        self.device.write_chunks(offset, chunks)
    }

    fn flush(&self) -> IoFuture<()> {
        self.device.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.device.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.device.write_zeroes(offset, len)
    }
}
