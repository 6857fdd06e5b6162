//! Pieces of memory that operations send from and receive into.

use crate::buffer::{Buffer, Shared, bounds};
use crate::region::RegionSlice;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::io;
use std::ops::{Range, RangeBounds};
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes that fit into [`Inline`].
pub(crate) const INLINE_BYTES_MAX: usize = 128;

/// A few bytes held in place, e.g. a protocol header.
#[derive(Clone, Copy, Debug)]
pub struct Inline {
    bytes: [u8; INLINE_BYTES_MAX],
    len: u8,
}

impl Inline {
    /// Number of bytes that fit.
    pub const CAPACITY: usize = INLINE_BYTES_MAX;

    /// Returns a copy of `bytes`, or `None` if there are more than 128.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut inline = Self { bytes: [0; INLINE_BYTES_MAX], len: 0 };
        inline.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        inline.len = bytes.len() as u8;
        Some(inline)
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

/// A piece of memory to send or write. The owner of the bytes is kept until the operation has
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
    /// Makes a chunk with a copy of `bytes`: in place if they are few, otherwise in a buffer.
    pub fn copy_from(bytes: &[u8]) -> Self {
        Inline::new(bytes).map_or_else(|| Self::from(Buffer::copy_from(bytes)), Self::Inline)
    }

    /// Returns the bytes: a view of them, or a copy for a region, because other threads may change
    /// its bytes. Where speed matters, [`copy_out`](Self::copy_out) copies once in every case.
    ///
    /// # Panics
    /// If a `Buffer` chunk's range reaches past the buffer's length.
    pub fn to_bytes(&self) -> Cow<'_, [u8]> {
        match self.as_owned_bytes() {
            Ok(bytes) => Cow::Borrowed(bytes),
            Err(slice) => {
                let mut bytes = vec![0; slice.len()];
                slice.copy_out(&mut bytes);
                Cow::Owned(bytes)
            }
        }
    }

    /// Returns the bytes if they cannot change while the chunk is borrowed: those of all kinds but
    /// a region.
    ///
    /// # Panics
    /// If a `Buffer` chunk's range reaches past the buffer's length.
    pub fn as_lasting(&self) -> Option<&[u8]> {
        self.as_owned_bytes().ok()
    }

    /// Returns the bytes if they cannot change while the chunk is borrowed, otherwise the region's
    /// range.
    fn as_owned_bytes(&self) -> Result<&[u8], &RegionSlice> {
        match self {
            Self::Buffer(buffer, range) => Ok(&buffer[range.clone()]),
            Self::Shared(shared) => Ok(shared),
            Self::Region(slice) => Err(slice),
            Self::Inline(inline) => Ok(inline.as_slice()),
        }
    }

    /// Copies `bytes.len()` bytes from `offset` on.
    ///
    /// # Panics
    /// If the chunk has fewer.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        match self.as_owned_bytes() {
            Ok(own) => bytes.copy_from_slice(&own[offset..offset + bytes.len()]),
            Err(slice) => slice.range(offset, bytes.len()).copy_out(bytes),
        }
    }

    /// Returns the address of the first byte, for system calls and libraries that read the bytes.
    /// Using it needs `unsafe` code.
    pub fn as_ptr(&self) -> *const u8 {
        self.as_owned_bytes().map_or_else(|slice| slice.as_ptr().cast_const(), <[u8]>::as_ptr)
    }

    /// Returns the same bytes in memory that does not change any more: a region's bytes are copied.
    pub fn into_lasting(self) -> Self {
        match self {
            Self::Region(slice) => slice.to_buffer().into(),
            own => own,
        }
    }

    /// Writes all bytes to a file with plain system calls.
    ///
    /// # Errors
    /// Errors of `pwrite`; `WriteZero` if it writes nothing.
    pub fn write_all_at(&self, file: BorrowedFd<'_>, offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < self.len() {
            let from = self.as_ptr().wrapping_add(done).cast();
            let (len, at) = (self.len() - done, (offset + done as u64) as libc::off_t);
            // SAFETY: the kernel reads these bytes, which live as long as the chunk.
            match unsafe { libc::pwrite(file.as_raw_fd(), from, len, at) } {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count if count > 0 => done += count as usize,
                _ => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Buffer(_, range) => range.len(),
            Self::Shared(shared) => shared.len(),
            Self::Region(slice) => slice.len(),
            Self::Inline(inline) => inline.len as usize,
        }
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether address and length are multiples of `alignment` (a power of two).
    pub fn is_aligned(&self, alignment: usize) -> bool {
        (self.as_ptr().addr() | self.len()) & (alignment - 1) == 0
    }

    /// Narrows the chunk to a range of its bytes and releases the rest.
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
            Self::Region(slice) => slice.to_buffer().freeze(),
            Self::Inline(inline) => Buffer::copy_from(inline.as_slice()).freeze(),
        }
    }

    /// Returns the bytes in an owned buffer: without a copy if this is a whole buffer, otherwise
    /// copied.
    pub fn into_buffer(self) -> Buffer {
        match self {
            Self::Buffer(mut buffer, range) if range.start == 0 => {
                buffer.truncate(range.end);
                buffer
            }
            other => other.copy_part(0..other.len()),
        }
    }
}

impl Chunk {
    /// Returns a copy of a range of the bytes.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn copy_part(&self, range: Range<usize>) -> Buffer {
        let mut buffer = Buffer::with_capacity(range.len());
        buffer.extend_from_chunk(self, range);
        buffer
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
    /// A range of a buffer's capacity; the buffer's visible length grows to cover the received
    /// bytes.
    Buffer(Buffer, Range<usize>),
    /// A range of a memory region.
    Region(RegionSlice),
}

/// The segments of one vectored receive or read; up to four take no allocation.
pub type Segments = SmallVec<[Segment; 4]>;

impl Segment {
    /// Returns the number of bytes that fit.
    pub fn len(&self) -> usize {
        match self {
            Self::Buffer(_, range) => range.len(),
            Self::Region(slice) => slice.len(),
        }
    }

    /// Returns whether no byte fits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether address and length are multiples of `alignment` (a power of two).
    pub fn is_aligned(&self, alignment: usize) -> bool {
        let vector = self.as_iovec();
        (vector.iov_base.addr() | vector.iov_len) & (alignment - 1) == 0
    }

    /// Returns the buffer, if the segment is in one.
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Buffer(buffer, _) => Some(buffer),
            Self::Region(_) => None,
        }
    }

    pub(crate) fn as_iovec(&self) -> libc::iovec {
        let (memory, len) = match self {
            Self::Buffer(buffer, range) => (range_ptr(buffer, range), range.len()),
            Self::Region(slice) => (slice.as_ptr(), slice.len()),
        };
        libc::iovec { iov_base: memory.cast(), iov_len: len }
    }

    /// Records that the kernel or a device wrote the first `n` bytes.
    pub(crate) fn written(&mut self, n: usize) {
        if let (Self::Buffer(buffer, range), true) = (self, n > 0) {
            buffer.written_to(range.start + n);
        }
    }

    /// Copies the bytes of `chunk` from `offset` on into the segment, and returns how many fitted.
    /// A buffer's visible length grows to cover them.
    ///
    /// # Panics
    /// If the offset lies past the chunk's end.
    pub fn fill_from_chunk(&mut self, chunk: &Chunk, offset: usize) -> usize {
        let slice = match chunk.as_owned_bytes() {
            Ok(bytes) => return self.fill_from(&bytes[offset..]),
            Err(slice) => slice.range(offset, self.len().min(slice.len() - offset)),
        };
        let n = slice.len();
        self.written(n);
        match self {
            Self::Buffer(buffer, range) if n > 0 => {
                slice.copy_out(&mut buffer[range.start..range.start + n]);
            }
            Self::Buffer(..) => {}
            Self::Region(room) => room.copy_from(&slice),
        }
        n
    }

    /// Copies the start of `bytes` into the segment, and returns how many fitted. A buffer's
    /// visible length grows to cover them.
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

/// Copies `chunk` into `segments`, one after the other, and returns how many bytes fitted.
pub fn scatter(chunk: &Chunk, segments: &mut [Segment]) -> usize {
    segments.iter_mut().fold(0, |done, segment| done + segment.fill_from_chunk(chunk, done))
}

/// Returns the address of a range of a buffer's capacity.
///
/// # Panics
/// If the range is reversed or reaches past the capacity.
pub(crate) fn range_ptr(buffer: &Buffer, range: &Range<usize>) -> *mut u8 {
    let fits = range.start <= range.end && range.end <= buffer.capacity();
    assert!(fits, "range {range:?} outside of a buffer of {}", buffer.capacity());
    // SAFETY: `start` is inside the buffer's memory or one past its end.
    unsafe { buffer.as_ptr_raw().add(range.start) }
}
