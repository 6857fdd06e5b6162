//! A device with operations that wait while a scene holds them.

use block::{Access, Backing, Device, Error, Geometry, Incarnation, IoFuture, MemoryBacking};
use reactor::time::sleep;
use reactor::{Chunk, Segments};
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The error of a device.
const EIO: i32 = 5;
/// Pause between two checks of a gate.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Operations of one kind.
#[derive(Debug, Default)]
pub(crate) struct Kind {
    is_held: AtomicBool,
    /// Number of operations that have come.
    asked: AtomicU64,
    /// Number of operations that were let through.
    passed: AtomicU64,
    /// Whether the next one is carried out but returns an error.
    fails_next: AtomicBool,
    /// Their offsets.
    offsets: Mutex<Vec<u64>>,
}

impl Kind {
    /// Makes operations wait from now on.
    pub(crate) fn hold(&self) {
        self.is_held.store(true, Ordering::SeqCst);
    }

    /// Lets operations continue.
    pub(crate) fn release(&self) {
        self.is_held.store(false, Ordering::SeqCst);
    }

    /// Returns how many operations have come.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Returns how many operations were let through to the device.
    pub(crate) fn passed(&self) -> u64 {
        self.passed.load(Ordering::SeqCst)
    }

    /// Waits until an operation waits here.
    pub(crate) async fn until_one_waits(&self) {
        while self.asked() == self.passed() {
            sleep(LOOK_EVERY).await;
        }
    }

    /// Makes the next operation fail, although it is carried out.
    pub(crate) fn fail_next(&self) {
        self.fails_next.store(true, Ordering::SeqCst);
    }

    /// Returns the offsets of all operations that have come.
    pub(crate) fn offsets(&self) -> Vec<u64> {
        self.offsets.lock().unwrap().clone()
    }

    /// Returns the result of an operation at this place after it was carried out.
    fn answer(&self, access: Access, offset: u64, len: u64) -> Result<(), Error> {
        if self.fails_next.swap(false, Ordering::SeqCst) {
            let source = Arc::new(io::Error::from_raw_os_error(EIO));
            return Err(Error::Io { access, offset, len, source });
        }
        Ok(())
    }

    async fn pass(&self, offset: u64) {
        self.offsets.lock().unwrap().push(offset);
        self.asked.fetch_add(1, Ordering::SeqCst);
        while self.is_held.load(Ordering::SeqCst) {
            sleep(LOOK_EVERY).await;
        }
        self.passed.fetch_add(1, Ordering::SeqCst);
    }
}

#[derive(Debug, Default)]
struct Kinds {
    reads: Kind,
    writes: Kind,
    flushes: Kind,
}

/// Memory with a volatile cache behind gates; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    memory: Arc<MemoryBacking>,
    kinds: Arc<Kinds>,
}

impl Gate {
    pub(crate) fn new(bytes: u64, block_bytes: u32) -> Gate {
        let memory = Arc::new(MemoryBacking::new(bytes, block_bytes).unwrap());
        Gate { memory, kinds: Arc::default() }
    }

    pub(crate) fn reads(&self) -> &Kind {
        &self.kinds.reads
    }

    pub(crate) fn writes(&self) -> &Kind {
        &self.kinds.writes
    }

    pub(crate) fn flushes(&self) -> &Kind {
        &self.kinds.flushes
    }
}

impl Backing for Gate {
    fn geometry(&self) -> Geometry {
        Geometry { has_volatile_cache: true, ..Backing::geometry(&*self.memory) }
    }

    fn incarnation(&self) -> Incarnation {
        Backing::incarnation(&*self.memory)
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(GateDevice { gate: self.clone(), device: self.memory.attach() })
    }
}

struct GateDevice {
    gate: Gate,
    device: Rc<dyn Device>,
}

impl Device for GateDevice {
    fn geometry(&self) -> Geometry {
        Backing::geometry(&self.gate)
    }

    fn incarnation(&self) -> Incarnation {
        Backing::incarnation(&self.gate)
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        let (kinds, device) = (Arc::clone(&self.gate.kinds), Rc::clone(&self.device));
        IoFuture::boxed(async move {
            kinds.reads.pass(offset).await;
            device.read(offset, len).await
        })
    }

    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments> {
        let (kinds, device) = (Arc::clone(&self.gate.kinds), Rc::clone(&self.device));
        IoFuture::boxed(async move {
            kinds.reads.pass(offset).await;
            device.read_into(offset, segments).await
        })
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        let (kinds, device) = (Arc::clone(&self.gate.kinds), Rc::clone(&self.device));
        let len = chunk.len() as u64;
        IoFuture::boxed(async move {
            kinds.writes.pass(offset).await;
            device.write(offset, chunk).await?;
            kinds.writes.answer(Access::Write, offset, len)
        })
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let (kinds, device) = (Arc::clone(&self.gate.kinds), Rc::clone(&self.device));
        let len = chunks.iter().map(Chunk::len).sum::<usize>() as u64;
        IoFuture::boxed(async move {
            kinds.writes.pass(offset).await;
            device.write_chunks(offset, chunks).await?;
            kinds.writes.answer(Access::Write, offset, len)
        })
    }

    fn flush(&self) -> IoFuture<()> {
        let (kinds, device) = (Arc::clone(&self.gate.kinds), Rc::clone(&self.device));
        IoFuture::boxed(async move {
            kinds.flushes.pass(0).await;
            device.flush().await
        })
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.device.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.device.write_zeroes(offset, len)
    }
}
