//! Pieces of memory that operations send from and receive into.

use crate::buffer::{Buffer, Shared, bounds};
use crate::region::RegionSlice;
use smallvec::SmallVec;
use std::ops::{Range, RangeBounds};

/// Bytes that fit into [`Inline`].
pub(crate) const INLINE_BYTES_MAX: usize = 128;

/// A few bytes held in place, e.g. a protocol header.
#[derive(Clone, Copy, Debug)]
pub struct Inline {
    bytes: [u8; INLINE_BYTES_MAX],
    len: u8,
}

impl Inline {
    /// Bytes that fit.
    pub const CAPACITY: usize = INLINE_BYTES_MAX;

    /// A copy of `bytes`, or `None` if they are more than 128.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut inline = Self { bytes: [0; INLINE_BYTES_MAX], len: 0 };
        inline.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        inline.len = bytes.len() as u8;
        Some(inline)
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

/// A piece of memory to send or write. Whatever owns the bytes is kept until the operation has
/// ended.
#[derive(Debug)]
pub enum Chunk {
    /// A range of an owned buffer's visible bytes.
    Buffer(Buffer, Range<usize>),
    /// A frozen, shared view.
    Shared(Shared),
    /// A range of a memory region.
    Region(RegionSlice),
    /// A few bytes in place.
    Inline(Inline),
}

impl Chunk {
    /// A chunk holding a copy of `bytes`: in place if they are few, else in a buffer.
    pub fn copy_from(bytes: &[u8]) -> Self {
        Inline::new(bytes).map_or_else(|| Self::from(Buffer::copy_from(bytes)), Self::Inline)
    }

    /// The bytes.
    ///
    /// # Panics
    /// If a `Buffer` chunk's range reaches past the buffer's length.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer, range) => &buffer[range.clone()],
            Self::Shared(shared) => shared,
            Self::Region(slice) => slice.as_slice(),
            Self::Inline(inline) => inline.as_slice(),
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Buffer(_, range) => range.len(),
            Self::Shared(shared) => shared.len(),
            Self::Region(slice) => slice.len(),
            Self::Inline(inline) => inline.len as usize,
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether address and length are multiples of `alignment` (a power of two).
    pub fn is_aligned(&self, alignment: usize) -> bool {
        let bytes = self.as_slice();
        (bytes.as_ptr().addr() | bytes.len()) & (alignment - 1) == 0
    }

    /// Narrows the chunk to a range of its bytes; the rest is let go.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn slice(self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = bounds(range, self.len());
        match self {
            Self::Buffer(buffer, old) => Self::Buffer(buffer, old.start + start..old.start + end),
            Self::Shared(shared) => Self::Shared(shared.slice(start..end)),
            Self::Region(slice) => Self::Region(slice.range(start, end - start)),
            Self::Inline(inline) => {
                let mut kept = Inline { bytes: [0; INLINE_BYTES_MAX], len: (end - start) as u8 };
                kept.bytes[..end - start].copy_from_slice(&inline.bytes[start..end]);
                Self::Inline(kept)
            }
        }
    }

    /// Makes the chunk clonable: buffers are frozen in place, inline bytes are copied into a
    /// buffer, and region ranges are copied too, so that the result never changes.
    pub fn into_shared(self) -> Shared {
        match self {
            Self::Buffer(buffer, range) => buffer.freeze().slice(range),
            Self::Shared(shared) => shared,
            Self::Region(slice) => Buffer::copy_from(slice.as_slice()).freeze(),
            Self::Inline(inline) => Buffer::copy_from(inline.as_slice()).freeze(),
        }
    }

    /// The bytes in an owned buffer: without a copy if this is a whole buffer, else copied.
    pub fn into_buffer(self) -> Buffer {
        match self {
            Self::Buffer(mut buffer, range) if range.start == 0 => {
                buffer.truncate(range.end);
                buffer
            }
            other => Buffer::copy_from(other.as_slice()),
        }
    }
}

impl From<Buffer> for Chunk {
    fn from(buffer: Buffer) -> Self {
        let range = 0..buffer.len();
        Self::Buffer(buffer, range)
    }
}

impl From<Shared> for Chunk {
    fn from(shared: Shared) -> Self {
        Self::Shared(shared)
    }
}

impl From<RegionSlice> for Chunk {
    fn from(slice: RegionSlice) -> Self {
        Self::Region(slice)
    }
}

/// A piece of memory to receive or read into.
#[derive(Debug)]
pub enum Segment {
    /// A range of a buffer's capacity; the buffer's visible length grows to cover what arrives.
    Buffer(Buffer, Range<usize>),
    /// A range of a memory region.
    Region(RegionSlice),
}

/// The segments of one vectored receive or read; up to four take no allocation.
pub type Segments = SmallVec<[Segment; 4]>;

impl Segment {
    /// Bytes that fit.
    pub fn len(&self) -> usize {
        match self {
            Self::Buffer(_, range) => range.len(),
            Self::Region(slice) => slice.len(),
        }
    }

    /// Whether nothing fits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether address and length are multiples of `alignment` (a power of two).
    pub fn is_aligned(&self, alignment: usize) -> bool {
        let vector = self.as_iovec();
        (vector.iov_base.addr() | vector.iov_len) & (alignment - 1) == 0
    }

    /// The buffer, if it is one.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(buffer, _) => Some(buffer),
            Self::Region(_) => None,
        }
    }

    pub(crate) fn as_iovec(&self) -> libc::iovec {
        let (memory, len) = match self {
            Self::Buffer(buffer, range) => (range_ptr(buffer, range), range.len()),
            Self::Region(slice) => (slice.as_ptr_raw(), slice.len()),
        };
        libc::iovec { iov_base: memory.cast(), iov_len: len }
    }

    /// Notes that the first `n` bytes were written from outside.
    pub(crate) fn written(&mut self, n: usize) {
        if let (Self::Buffer(buffer, range), true) = (self, n > 0) {
            buffer.written_to(range.start + n);
        }
    }

    /// Copies the start of `bytes` in and answers how many fitted. A buffer's visible length grows
    /// to cover them.
    pub fn fill_from(&mut self, bytes: &[u8]) -> usize {
        let n = bytes.len().min(self.len());
        self.written(n);
        match self {
            Self::Buffer(buffer, range) if n > 0 => {
                buffer[range.start..range.start + n].copy_from_slice(&bytes[..n]);
            }
            Self::Buffer(..) => {}
            Self::Region(slice) => slice.copy_in(&bytes[..n]),
        }
        n
    }
}

/// Address of a range of a buffer's capacity.
///
/// # Panics
/// If the range is reversed or reaches past the capacity.
pub(crate) fn range_ptr(buffer: &Buffer, range: &Range<usize>) -> *mut u8 {
    let fits = range.start <= range.end && range.end <= buffer.capacity();
    assert!(fits, "range {range:?} outside of a buffer of {}", buffer.capacity());
    // SAFETY: `start` is inside the buffer's memory or one past its end.
    unsafe { buffer.as_ptr_raw().add(range.start) }
}
