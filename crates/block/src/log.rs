//! A layer that records writes and flushes, to build the images that a power cut could leave.
//!
//! After a power cut a disk has every write that was acknowledged before an acknowledged flush was
//! requested. It has any subset of the others, and of each of them any blocks. Blocks are never
//! torn (NVMe's atomic write unit is at least a block).

use crate::device::{Backing, Device, Geometry};
use crate::future::IoFuture;
use crate::incarnation::Incarnation;
use reactor::{Chunk, Segments};
use std::collections::HashSet;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An event of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write was requested.
    Write {
        /// Its number, counted over writes and flushes.
        id: u64,
        /// Byte offset.
        offset: u64,
        /// The data.
        data: Arc<[u8]>,
    },
    /// The write was acknowledged.
    Written {
        /// The write's number.
        id: u64,
    },
    /// A flush was requested.
    Flush {
        /// Its number.
        id: u64,
    },
    /// The flush was acknowledged.
    Flushed {
        /// The flush's number.
        id: u64,
    },
}

/// The part of a write without a flush that survives a power cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Survival {
    /// All of it.
    Whole,
    /// None of it.
    Lost,
    /// The blocks for which it holds `true`, counted from the write's start; missing ones are lost.
    Torn(Vec<bool>),
}

#[derive(Default)]
struct State {
    events: Vec<Event>,
    next_id: u64,
}

/// A backing that records; clones share the record.
#[derive(Clone)]
pub struct Log {
    inner: Arc<dyn Backing>,
    state: Arc<Mutex<State>>,
}

impl Log {
    /// Puts the layer over `inner`.
    pub fn new(inner: Arc<dyn Backing>) -> Self {
        Self { inner, state: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the events so far.
    pub fn events(&self) -> Vec<Event> {
        self.lock().events.clone()
    }

    /// Returns the number of events so far.
    pub fn len(&self) -> usize {
        self.lock().events.len()
    }

    /// Whether there are no events yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Applies to `image` (the device's content when recording began) the state that a power cut
    /// after the first `prefix` events leaves: all writes that an acknowledged flush covers, and
    /// the parts of the others that `choose` selects, given number, offset and length.
    ///
    /// # Panics
    /// If the image is smaller than the device.
    pub fn replay(
        &self,
        prefix: usize,
        image: &mut [u8],
        mut choose: impl FnMut(u64, u64, usize) -> Survival,
    ) {
        let block_size = self.inner.geometry().block_size as usize;
        let state = self.lock();
        let events = &state.events[..prefix.min(state.events.len())];
        let durable = durable_writes(events);
        for event in events {
            let Event::Write { id, offset, data } = event else { continue };
            let survival = if durable.contains(id) {
                Survival::Whole
            } else {
                choose(*id, *offset, data.len())
            };
            let start = *offset as usize;
            match survival {
                Survival::Whole => image[start..start + data.len()].copy_from_slice(data),
                Survival::Lost => {}
                Survival::Torn(kept) => {
                    let blocks = data.chunks(block_size).zip(kept).enumerate();
                    for (index, (block, _)) in blocks.filter(|(_, (_, kept))| *kept) {
                        let start = start + index * block_size;
                        image[start..start + block.len()].copy_from_slice(block);
                    }
                }
            }
        }
    }

    /// Records the start of a command. Returns its number.
    fn begin(&self, event: impl FnOnce(u64) -> Event) -> u64 {
        let mut state = self.lock();
        let id = state.next_id;
        state.next_id += 1;
        state.events.push(event(id));
        id
    }

    fn end(&self, event: Event) {
        self.lock().events.push(event);
    }
}

/// Returns the writes that an acknowledged flush covers.
fn durable_writes(events: &[Event]) -> HashSet<u64> {
    let flushed: HashSet<u64> = events
        .iter()
        .filter_map(|event| if let Event::Flushed { id } = event { Some(*id) } else { None })
        .collect();
    let (mut written, mut durable) = (Vec::new(), HashSet::new());
    for event in events {
        match event {
            Event::Written { id } => written.push(*id),
            Event::Flush { id } if flushed.contains(id) => durable.extend(written.drain(..)),
            _ => {}
        }
    }
    durable
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Log").field("events", &self.len()).finish_non_exhaustive()
    }
}

impl Backing for Log {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(LogDevice { inner: self.inner.attach(), log: self.clone() })
    }
}

struct LogDevice {
    inner: Rc<dyn Device>,
    log: Log,
}

impl LogDevice {
    fn logged(&self, offset: u64, data: Arc<[u8]>, write: IoFuture<()>) -> IoFuture<()> {
        let log = self.log.clone();
        let id = log.begin(|id| Event::Write { id, offset, data });
        IoFuture::boxed(async move {
            write.await?;
            log.end(Event::Written { id });
            Ok(())
        })
    }
}

impl Device for LogDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        self.inner.read(offset, len)
    }

    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments> {
        self.inner.read_into(offset, segments)
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        self.write_chunks(offset, vec![chunk])
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let bytes: Vec<_> = chunks.iter().map(Chunk::to_bytes).collect();
        let data: Arc<[u8]> = bytes.concat().into();
        let access = crate::error::Access::Write;
        if let Err(error) = self.geometry().check(access, offset, data.len() as u64) {
            return IoFuture::ready(Err(error));
        }
        let write = self.inner.write_chunks(offset, chunks);
        self.logged(offset, data, write)
    }

    fn flush(&self) -> IoFuture<()> {
        let log = self.log.clone();
        let id = log.begin(|id| Event::Flush { id });
        let flush = self.inner.flush();
        IoFuture::boxed(async move {
            flush.await?;
            log.end(Event::Flushed { id });
            Ok(())
        })
    }

    /// Discards without a record: a discarded block may have any content, before a power cut or after.
    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.inner.discard(offset, len)
    }

    /// Writes zeros, recorded as a write.
    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        let access = crate::error::Access::WriteZeroes;
        if let Err(error) = self.geometry().check(access, offset, len) {
            return IoFuture::ready(Err(error));
        }
        let write = self.inner.write_zeroes(offset, len);
        self.logged(offset, vec![0; len as usize].into(), write)
    }
}
