//! A layer that makes reads of marked blocks fail until the blocks are written (Write Uncorrectable
//! of NVMe).
//!
//! The marks are in memory, and in a file if they have to survive a restart ([`store`]). Two rules
//! keep them right over a crash:
//!
//! - *Memory has every mark that the file has.* A block is marked in memory first, then in the
//!   file. So no block is readable now and fails after a restart.
//! - *A mark ends after the data is durable.* A write to marked blocks is executed, flushed, and
//!   removes the marks from the file, then from memory, before it completes. A crash before that
//!   leaves the marks of a write that was not acknowledged. So no block shows its bytes from before
//!   the mark.
//!
//! Discarding keeps marks: it writes nothing. A device without marks costs one load per command.

mod bits;
mod store;

use crate::device::{Backing, Device, Geometry};
use crate::error::{Access, Error};
use crate::future::IoFuture;
use crate::incarnation::Incarnation;
use bits::Bits;
use reactor::{Chunk, Segment, Segments};
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use store::Store;

/// A store some of whose blocks cannot be read.
#[derive(Clone)]
pub struct Uncorrectable {
    inner: Arc<dyn Backing>,
    marks: Arc<Marks>,
}

/// The marks of all threads and sizes of a device.
struct Marks {
    block_shift: u32,
    /// Number of marked blocks, for a look without the lock.
    count: AtomicU64,
    state: Mutex<State>,
    store: Option<Store>,
}

#[derive(Default)]
struct State {
    bits: Bits,
    /// Whether a thread changes the marks.
    is_changing: bool,
    waiters: Vec<Waker>,
}

struct UncorrectableDevice {
    inner: Rc<dyn Device>,
    marks: Arc<Marks>,
}

impl Uncorrectable {
    /// Puts the layer over `inner`, with marks that end with the process.
    pub fn in_memory(inner: Arc<dyn Backing>) -> Self {
        Self::of(inner, Bits::default(), None)
    }

    /// Puts the layer over `inner`, with marks in the file at `path`, which is created if it is
    /// missing. `uuid` is the identity of the device: the file of another one is refused.
    ///
    /// # Errors
    /// [`Error::Marks`].
    pub async fn open(inner: Arc<dyn Backing>, path: &Path, uuid: [u8; 16]) -> Result<Self, Error> {
        let (store, bits) = Store::open(path, uuid, inner.geometry()).await?;
        Ok(Self::of(inner, bits, Some(store)))
    }

    fn of(inner: Arc<dyn Backing>, bits: Bits, store: Option<Store>) -> Self {
        let block_shift = inner.geometry().block_size.trailing_zeros();
        let count = AtomicU64::new(bits.count());
        let state = Mutex::new(State { bits, ..State::default() });
        Self { inner, marks: Arc::new(Marks { block_shift, count, state, store }) }
    }

    /// Returns the number of marked blocks.
    pub fn marked_blocks(&self) -> u64 {
        self.marks.count.load(Ordering::Acquire)
    }
}

impl fmt::Debug for Uncorrectable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let marked_blocks = self.marked_blocks();
        f.debug_struct("Uncorrectable")
            .field("marked_blocks", &marked_blocks)
            .finish_non_exhaustive()
    }
}

impl Backing for Uncorrectable {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn can_mark_uncorrectable(&self) -> bool {
        true
    }

    fn attach(&self) -> Rc<dyn Device> {
        Rc::new(UncorrectableDevice { inner: self.inner.attach(), marks: Arc::clone(&self.marks) })
    }

    fn over(&self, store: Arc<dyn Backing>) -> Arc<dyn Backing> {
        let inner = self.inner.over(store);
        Arc::new(Self { inner, marks: Arc::clone(&self.marks) })
    }

    fn resized(&self, size: u64) -> Result<Arc<dyn Backing>, Error> {
        let inner = self.inner.resized(size)?;
        Ok(Arc::new(Self { inner, marks: Arc::clone(&self.marks) }))
    }
}

impl Marks {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of the bits is complete in itself.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn blocks(&self, offset: u64, len: u64) -> Range<u64> {
        offset >> self.block_shift..(offset + len).div_ceil(1 << self.block_shift)
    }

    /// Returns whether a range has a marked block.
    fn any(&self, offset: u64, len: u64) -> bool {
        self.count.load(Ordering::Acquire) != 0 && self.state().bits.any(self.blocks(offset, len))
    }

    /// Waits until no other thread changes the marks.
    async fn turn(&self) -> Turn<'_> {
        poll_fn(|cx| {
            let mut state = self.state();
            if state.is_changing {
                if !state.waiters.iter().any(|waiter| waiter.will_wake(cx.waker())) {
                    state.waiters.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            state.is_changing = true;
            Poll::Ready(())
        })
        .await;
        Turn(self)
    }

    /// Marks blocks.
    async fn add(&self, offset: u64, len: u64) -> Result<(), Error> {
        let _turn = self.turn().await;
        let blocks = self.blocks(offset, len);
        self.change(&blocks, true);
        self.save(&blocks, None).await.map_err(|error| Error::io(Access::Write, offset, len, error))
    }

    /// Removes the marks of blocks whose data is durable.
    async fn remove(&self, access: Access, offset: u64, len: u64) -> Result<(), Error> {
        let _turn = self.turn().await;
        let blocks = self.blocks(offset, len);
        let saved = self.save(&blocks, Some(&blocks)).await;
        saved.map_err(|error| Error::io(access, offset, len, error))?;
        self.change(&blocks, false);
        Ok(())
    }

    fn change(&self, blocks: &Range<u64>, is_marked: bool) {
        let mut state = self.state();
        state.bits.set(blocks.clone(), is_marked);
        self.count.store(state.bits.count(), Ordering::Release);
    }

    /// Saves the pages with the marks of `blocks`, without the marks of `removed`.
    async fn save(&self, blocks: &Range<u64>, removed: Option<&Range<u64>>) -> io::Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        let pages = self.state().bits.pages(blocks, removed);
        store.save(pages).await
    }
}

/// The exclusive right to change the marks.
struct Turn<'a>(&'a Marks);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_changing = false;
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        waiters.into_iter().for_each(Waker::wake);
    }
}

impl UncorrectableDevice {
    fn read<T>(
        &self,
        (offset, len): (u64, u64),
        start: impl FnOnce(&dyn Device) -> IoFuture<T>,
    ) -> IoFuture<T> {
        if self.marks.count.load(Ordering::Acquire) == 0 {
            return start(&*self.inner);
        }
        let checked = self.inner.geometry().check(Access::Read, offset, len);
        if checked.is_ok() && self.marks.any(offset, len) {
            let source = io::Error::from_raw_os_error(libc::EIO);
            return IoFuture::ready(Err(Error::io(Access::Read, offset, len, source)));
        }
        start(&*self.inner)
    }

    fn write(
        &self,
        (access, offset, len): (Access, u64, u64),
        start: impl FnOnce(&dyn Device) -> IoFuture<()>,
    ) -> IoFuture<()> {
        let work = start(&*self.inner);
        let checked = self.inner.geometry().check(access, offset, len);
        if checked.is_err() || !self.marks.any(offset, len) {
            return work;
        }
        let (inner, marks) = (Rc::clone(&self.inner), Arc::clone(&self.marks));
        IoFuture::boxed(async move {
            work.await?;
            inner.flush().await?;
            marks.remove(access, offset, len).await
        })
    }
}

impl Device for UncorrectableDevice {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn incarnation(&self) -> Incarnation {
        self.inner.incarnation()
    }

    fn read(&self, offset: u64, len: usize) -> IoFuture<Chunk> {
        self.read((offset, len as u64), |inner| inner.read(offset, len))
    }

    fn read_into(&self, offset: u64, segments: Segments) -> IoFuture<Segments> {
        let len = segments.iter().map(Segment::len).sum::<usize>() as u64;
        self.read((offset, len), |inner| inner.read_into(offset, segments))
    }

    fn write(&self, offset: u64, chunk: Chunk) -> IoFuture<()> {
        let len = chunk.len() as u64;
        self.write((Access::Write, offset, len), |inner| inner.write(offset, chunk))
    }

    fn write_chunks(&self, offset: u64, chunks: Vec<Chunk>) -> IoFuture<()> {
        let len = chunks.iter().map(Chunk::len).sum::<usize>() as u64;
        self.write((Access::Write, offset, len), |inner| inner.write_chunks(offset, chunks))
    }

    fn flush(&self) -> IoFuture<()> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> IoFuture<()> {
        self.write((Access::WriteZeroes, offset, len), |inner| inner.write_zeroes(offset, len))
    }

    fn mark_uncorrectable(&self, offset: u64, len: u64) -> IoFuture<()> {
        if let Err(error) = self.inner.geometry().check(Access::Write, offset, len) {
            return IoFuture::ready(Err(error));
        }
        let marks = Arc::clone(&self.marks);
        IoFuture::boxed(async move { marks.add(offset, len).await })
    }
}

#[cfg(test)]
mod tests;
