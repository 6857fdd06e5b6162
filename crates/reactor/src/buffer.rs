//! Owned, page-aligned buffers from a per-thread pool, and their frozen, shared form.
//!
//! A buffer's memory and its small header (reference count, capacity) are recycled together, so
//! taking, freezing, cloning and dropping a buffer allocates nothing in the steady state. A dropped
//! buffer goes to the pool of the thread that drops it. Pools are bounded; memory that does not fit
//! is freed. Memory is zeroed once, when it is first allocated. A recycled buffer contains bytes of
//! its former use, so only [`Buffer::zeroed`] promises zeros.

mod pool;

use crate::chunk::Chunk;
use pool::Block;
pub(crate) use pool::keep_little;
use std::any::Any;
use std::fmt;
use std::ops::{Bound, Deref, DerefMut, Range, RangeBounds};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};

/// Alignment of every buffer's memory, and the smallest size class, in bytes: what `O_DIRECT`
/// requires of memory on all common devices.
pub const ALIGNMENT_BYTES: usize = 4096;

/// Largest size class that is pooled, in bytes; larger buffers are allocated and freed each time.
pub const POOLED_BYTES_MAX: usize = pool::POOLED_BYTES_MAX;

/// Data that a user of buffers attaches to their memory, such as its registration with a device.
pub type Attachment = Arc<dyn Any + Send + Sync>;

/// An owned, 4096-byte aligned buffer of fixed capacity; its first `len` bytes are visible.
pub struct Buffer {
    block: NonNull<Block>,
    len: usize,
}

// SAFETY: a `Buffer` is the only owner of its block; nothing in the block is tied to a thread.
unsafe impl Send for Buffer {}
// SAFETY: `&Buffer` gives only shared reads of plain bytes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Makes an empty buffer for at least `capacity` bytes (rounded up to its size class).
    pub fn with_capacity(capacity: usize) -> Self {
        Self { block: pool::take(capacity), len: 0 }
    }

    /// Makes a buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut buffer = Self::with_capacity(len);
        buffer.len = len;
        buffer.fill(0);
        buffer
    }

    /// Makes a buffer with a copy of `bytes`.
    pub fn copy_from(bytes: &[u8]) -> Self {
        let mut buffer = Self::with_capacity(bytes.len());
        buffer.extend_from_slice(bytes);
        buffer
    }

    /// Returns the number of bytes that fit.
    pub fn capacity(&self) -> usize {
        self.block().capacity
    }

    /// Sets the visible length. Bytes that become visible have the earlier contents of this or a
    /// former user of the memory.
    ///
    /// # Panics
    /// If `len` exceeds the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity(), "length {len} over capacity {}", self.capacity());
        self.len = len;
    }

    /// Makes the buffer empty; its memory stays.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Shortens the buffer to `len` bytes if it is longer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Appends `bytes`.
    ///
    /// # Panics
    /// If they do not fit into the capacity.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let start = self.len;
        self.set_len(start + bytes.len());
        self[start..].copy_from_slice(bytes);
    }

    /// Appends a range of a chunk's bytes.
    ///
    /// # Panics
    /// If they do not fit into the capacity, or the range reaches past the chunk's end.
    pub fn extend_from_chunk(&mut self, chunk: &Chunk, range: Range<usize>) {
        let start = self.len;
        self.set_len(start + range.len());
        chunk.copy_out(range.start, &mut self[start..]);
    }

    /// Turns the buffer into a frozen, cheaply clonable view of its visible bytes.
    pub fn freeze(self) -> Shared {
        let shared = Shared { block: self.block, start: 0, len: self.len };
        std::mem::forget(self);
        shared
    }

    /// Returns the attachment of the memory, from this or a former user.
    pub fn attachment(&self) -> Option<&Attachment> {
        self.block().attachment.get()
    }

    /// Attaches data to the memory. It stays while the memory is recycled, until it is replaced or
    /// the memory is freed; it is dropped before the memory.
    pub fn attach(&mut self, attachment: Attachment) {
        // SAFETY: the block lives until this owner gives it back, and has no other owner.
        unsafe { self.block.as_mut() }.attachment = OnceLock::from(attachment);
    }

    /// Returns the address of the memory and its bytes, for devices. Using it needs `unsafe` code.
    pub fn memory(&self) -> (*mut u8, usize) {
        (self.as_ptr_raw(), self.capacity())
    }

    /// Returns the start of the memory, for operations.
    pub(crate) fn as_ptr_raw(&self) -> *mut u8 {
        self.block().memory.as_ptr()
    }

    /// Extends the visible length to cover `end` bytes that the kernel has just written.
    pub(crate) fn written_to(&mut self, end: usize) {
        self.set_len(self.len.max(end));
    }

    fn block(&self) -> &Block {
        // SAFETY: the block lives until this owner gives it back in `drop`.
        unsafe { self.block.as_ref() }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is initialised (zeroed at allocation), `len <= capacity`, and there is
        // no other access while the buffer is owned.
        unsafe { std::slice::from_raw_parts(self.block().memory.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(self.block().memory.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        pool::give_back(self.block);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len)
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// A frozen view of (a range of) a buffer's bytes; clones share the memory by an atomic count.
pub struct Shared {
    block: NonNull<Block>,
    start: usize,
    len: usize,
}

// SAFETY: the block is immutable while shared and its count is atomic.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Returns a view of a range of this view's bytes; shares the memory.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = bounds(range, self.len);
        let mut shared = self.clone();
        shared.start += start;
        shared.len = end - start;
        shared
    }

    /// Returns the attachment of the memory, from this or a former user.
    pub fn attachment(&self) -> Option<&Attachment> {
        self.block().attachment.get()
    }

    /// Attaches data to the memory, unless it has an attachment already. The attachment stays as
    /// one of [`Buffer::attach`] does. Returns the memory's attachment.
    pub fn attach(&self, attachment: Attachment) -> &Attachment {
        self.block().attachment.get_or_init(|| attachment)
    }

    /// Returns the address and the size in bytes of the whole memory, not only of this view. Devices
    /// that register it only read it. Using it needs `unsafe` code.
    pub fn memory(&self) -> (*mut u8, usize) {
        let block = self.block();
        (block.memory.as_ptr(), block.capacity)
    }

    fn block(&self) -> &Block {
        // SAFETY: this view holds a reference, so the block lives.
        unsafe { self.block.as_ref() }
    }
}

impl Clone for Shared {
    fn clone(&self) -> Self {
        // SAFETY: this view holds a reference, so the block lives.
        let block = unsafe { self.block.as_ref() };
        block.references.fetch_add(1, Ordering::Relaxed);
        Self { block: self.block, start: self.start, len: self.len }
    }
}

impl Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block lives and is immutable while shared; `start + len <= capacity`.
        unsafe {
            let memory = self.block.as_ref().memory.as_ptr().add(self.start);
            std::slice::from_raw_parts(memory, self.len)
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: this view holds a reference, so the block lives.
        let block = unsafe { self.block.as_ref() };
        if block.references.fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            block.references.store(1, Ordering::Relaxed);
            pool::give_back(self.block);
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Returns the start and end of `range` within `len` bytes.
///
/// # Panics
/// If the range is reversed or reaches past `len`.
pub(crate) fn bounds(range: impl RangeBounds<usize>, len: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start + 1,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&end) => end + 1,
        Bound::Excluded(&end) => end,
        Bound::Unbounded => len,
    };
    assert!(start <= end && end <= len, "range {start}..{end} outside of 0..{len}");
    (start, end)
}
