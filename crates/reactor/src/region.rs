//! A big memory-mapped region that several threads use as a device's memory.
//!
//! It behaves like a device and not like a Rust slice: reads that race with writes of the same
//! bytes see an arbitrary mix of old and new bytes, as NVMe allows for overlapping commands.
//! Therefore no safe function makes a `&[u8]` of it. Bytes are copied in and out as atomic words
//! ([`crate::racing`]), or the kernel moves them (a chunk that is sent, a segment that is
//! received into). A caller that needs stable bytes, such as for a digest, copies them first.
//!
//! ```compile_fail
//! let region = reactor::Region::new(4096).unwrap();
//! let view = region.range(0, 4096);
//! let bytes: &[u8] = view.as_slice();
//! region.copy_in(0, &[1]);
//! assert_eq!(bytes[0], 1);
//! ```

use crate::buffer::Buffer;
use crate::chunk::Chunk;
use crate::racing;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
#[cfg(not(miri))]
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes of a huge page: the memory that one page of a page table maps on processors with 4 KiB
/// pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

#[derive(Debug)]
struct Mapping {
    memory: NonNull<u8>,
    len: usize,
    /// The larger region that the memory belongs to, if any.
    whole: Option<Region>,
}

// SAFETY: the mapping is plain memory that belongs to no thread; all access to its bytes is by
// atomic words or by the kernel, and there is never a reference to them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.whole.is_none() {
            // SAFETY: the mapping was made by `Region::new` or `Region::in_huge_pages` with this
            // length and has no user any more.
            unsafe { unmap(self.memory, self.len) };
        }
    }
}

/// A shared memory-mapped region, zero at first; clones refer to the same memory.
#[derive(Clone, Debug)]
pub struct Region {
    mapping: Arc<Mapping>,
}

impl Region {
    /// Maps `len` bytes (1 … `isize::MAX`) of zeroed memory. The system provides pages when they
    /// are first touched, huge ones where it can.
    ///
    /// # Errors
    /// Errors of `mmap`; `InvalidInput` for a length of zero.
    pub fn new(len: usize) -> io::Result<Self> {
        let memory = map(len)?;
        Ok(Self { mapping: Arc::new(Mapping { memory, len, whole: None }) })
    }

    /// Maps several regions of `len` bytes each (1 … `isize::MAX`), one behind the other, in huge
    /// pages if the system offers them. Returns as many regions as fit into the pages that the
    /// first one needs. Each is [unique](Region::is_unique) separately.
    ///
    /// A device executes a transfer to or from contiguous memory as one command. Scattered pages
    /// need a descriptor each, and more commands if there are more pages than descriptors (254 with
    /// many virtual disks: two commands for 1 MiB). The price is that the first touch takes and
    /// clears a whole huge page.
    ///
    /// # Errors
    /// Errors of `mmap`; `InvalidInput` for a length of zero.
    pub fn in_huge_pages(len: usize) -> io::Result<Vec<Self>> {
        if len == 0 || len > isize::MAX as usize - 2 * HUGE_PAGE_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let whole_len = len.next_multiple_of(HUGE_PAGE_BYTES);
        // Not every system aligns a mapping by itself: the parts before and behind are unmapped.
        let mapped = map(whole_len + HUGE_PAGE_BYTES)?;
        let before = mapped.addr().get().next_multiple_of(HUGE_PAGE_BYTES) - mapped.addr().get();
        // SAFETY: both are inside the mapping, the second perhaps at its end.
        let (memory, behind) = unsafe { (mapped.add(before), mapped.add(before + whole_len)) };
        for (memory, len) in [(mapped, before), (behind, HUGE_PAGE_BYTES - before)] {
            if len > 0 {
                // SAFETY: whole pages of a mapping that only this function knows.
                unsafe { unmap(memory, len) };
            }
        }
        let whole = Self { mapping: Arc::new(Mapping { memory, len: whole_len, whole: None }) };
        Ok((0..whole_len / len).map(|index| whole.part(index * len, len)).collect())
    }

    /// Returns the same memory with its own reference count. A thread that takes its slices from
    /// such a region writes to no cache line that the slices of other threads write to.
    #[must_use]
    pub fn apart(&self) -> Self {
        self.part(0, self.len())
    }

    /// Returns the number of regions and slices that share this one's reference count.
    pub fn references(&self) -> usize {
        Arc::strong_count(&self.mapping)
    }

    /// Returns a range as a region with its own reference count.
    fn part(&self, offset: usize, len: usize) -> Self {
        self.check(offset, len);
        // SAFETY: the range was checked, and the mapping's address is not null.
        let memory = unsafe { self.mapping.memory.add(offset) };
        let whole = Some(self.clone());
        Self { mapping: Arc::new(Mapping { memory, len, whole }) }
    }

    /// Returns the number of bytes in the region.
    #[allow(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.mapping.len
    }

    /// Returns whether no other region or slice shares this reference count ([`Region::apart`]
    /// makes another count). Once true, it stays true, because only the existing ones make new
    /// ones.
    pub fn is_unique(&self) -> bool {
        let is_unique = self.references() == 1;
        // Accesses by the last other owner happened before this.
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        is_unique
    }

    /// Returns a range of the region as a chunk that can be sent or written without a copy.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn slice(&self, offset: usize, len: usize) -> Chunk {
        Chunk::Region(self.range(offset, len))
    }

    /// Returns a range of the region, e.g. to receive into.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn range(&self, offset: usize, len: usize) -> RegionSlice {
        self.check(offset, len);
        RegionSlice { region: self.clone(), offset, len }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let memory = self.check(offset, bytes.len());
        // SAFETY: the range was checked, and a mapping consists of whole pages. There are no
        // references into a region, so `bytes` lies elsewhere.
        unsafe { racing::copy_in(memory, bytes) };
    }

    /// Copies from `offset` into `bytes`.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn copy_out(&self, offset: usize, bytes: &mut [u8]) {
        let memory = self.check(offset, bytes.len());
        // SAFETY: as in `copy_in`.
        unsafe { racing::copy_out(memory, bytes) };
    }

    /// Writes zeros.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn zero(&self, offset: usize, len: usize) {
        let memory = self.check(offset, len);
        // SAFETY: as in `copy_in`.
        unsafe { racing::zero(memory, len) };
    }

    /// Takes the range's pages from the system now, so that no later access has to wait for them.
    /// The content stays; others may use the range meanwhile.
    ///
    /// # Errors
    /// Errors of `madvise`; `InvalidInput` on Linux before 5.14, which cannot do it.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        const PAGE: usize = 4096;
        self.check(offset, len);
        let start = offset / PAGE * PAGE;
        let len = offset + len - start;
        let memory = self.check(start, len);
        loop {
            // SAFETY: pages of our own mapping; the call takes them and changes no byte.
            match unsafe { madvise(memory.cast(), len, Advice::LinuxPopulateWrite) } {
                Err(Errno::INTR | Errno::AGAIN) => {}
                result => return Ok(result?),
            }
        }
    }

    /// Returns a range's whole pages to the system. They read as zeros afterwards, as do the
    /// partial pages at its ends.
    ///
    /// # Errors
    /// Errors of `madvise`.
    ///
    /// # Panics
    /// If the range reaches past the end.
    pub fn discard(&self, offset: usize, len: usize) -> io::Result<()> {
        const PAGE: usize = 4096;
        self.check(offset, len);
        let (start, end) = (offset.next_multiple_of(PAGE), (offset + len) / PAGE * PAGE);
        if start >= end {
            self.zero(offset, len);
            return Ok(());
        }
        self.zero(offset, start - offset);
        self.zero(end, offset + len - end);
        let memory = self.check(start, end - start);
        // SAFETY: whole pages inside our private anonymous mapping, into which there are no
        // references; for racing accesses the kernel is one more writer.
        unsafe { madvise(memory.cast(), end - start, Advice::LinuxDontNeed)? };
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> *mut u8 {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.len());
        assert!(fits, "{len} bytes at {offset} reach past a region of {}", self.len());
        // SAFETY: `offset` is inside the mapping, or one past its end with `len == 0`.
        unsafe { self.mapping.memory.as_ptr().add(offset) }
    }
}

/// Computes the CRC-32C of blocks of ordinary memory, see [`RegionSlice::crc32c_of_blocks`].
///
/// # Panics
/// If there are fewer bytes.
pub fn crc32c_of_blocks(bytes: &[u8], block_bytes: usize, sums: &mut [u32]) -> usize {
    let count = sums.len();
    let fits = count.checked_mul(block_bytes).is_some_and(|needed| needed <= bytes.len());
    assert!(fits, "{count} blocks of {block_bytes} bytes in {}", bytes.len());
    // SAFETY: the reference keeps the bytes alive and unchanged, and only aligned words inside them are read.
    unsafe { racing::crc32c_of_blocks(bytes.as_ptr().cast_mut(), block_bytes, sums) }
}

/// Unmaps memory.
///
/// # Safety
/// These are whole pages from [`map`] that nothing uses any more.
#[cfg(not(miri))]
unsafe fn unmap(memory: NonNull<u8>, len: usize) {
    // SAFETY: by the caller's promise.
    let _ = unsafe { munmap(memory.as_ptr().cast(), len) };
}

/// Maps memory for Miri, which has no `mmap` with these flags: it comes from the allocator.
#[cfg(miri)]
fn map(len: usize) -> io::Result<NonNull<u8>> {
    let layout = std::alloc::Layout::from_size_align(len.next_multiple_of(4096), 4096);
    let layout = layout.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: Miri's tests request at least a byte.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
        .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// # Safety
/// A whole allocation of [`map`], which nothing uses any more.
#[cfg(miri)]
unsafe fn unmap(memory: NonNull<u8>, len: usize) {
    if let Ok(layout) = std::alloc::Layout::from_size_align(len.next_multiple_of(4096), 4096) {
        // SAFETY: by the caller's promise.
        unsafe { std::alloc::dealloc(memory.as_ptr(), layout) };
    }
}

/// Maps anonymous memory, in huge pages where the system offers them.
#[cfg(not(miri))]
fn map(len: usize) -> io::Result<NonNull<u8>> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
    let memory = unsafe {
        mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags)?
    };
    // SAFETY: advice on a mapping that was just made; failing changes nothing.
    let _ = unsafe { madvise(memory, len, Advice::LinuxHugepage) };
    NonNull::new(memory.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// A range of a [`Region`]; keeps the region alive.
#[derive(Clone, Debug)]
pub struct RegionSlice {
    region: Region,
    offset: usize,
    len: usize,
}

impl RegionSlice {
    /// Returns the number of bytes in the range.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a part of this range.
    ///
    /// # Panics
    /// If it reaches past the end.
    pub fn range(&self, offset: usize, len: usize) -> Self {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "range past its end");
        Self { region: self.region.clone(), offset: self.offset + offset, len }
    }

    /// Returns the address of the range, e.g. for a command of the kernel. Using it needs `unsafe`
    /// code.
    pub fn as_ptr(&self) -> *mut u8 {
        self.region.check(self.offset, self.len)
    }

    /// Copies `bytes` to the start of the range.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn copy_in(&self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len, "{} bytes into a range of {}", bytes.len(), self.len);
        self.region.copy_in(self.offset, bytes);
    }

    /// Copies the start of the range to `bytes`.
    ///
    /// # Panics
    /// If the range is shorter.
    pub fn copy_out(&self, bytes: &mut [u8]) {
        assert!(bytes.len() <= self.len, "{} bytes out of a range of {}", bytes.len(), self.len);
        self.region.copy_out(self.offset, bytes);
    }

    /// Copies another range to the start of this one. Where the two overlap, the result is a mix.
    ///
    /// # Panics
    /// If this range is shorter.
    pub fn copy_from(&self, other: &Self) {
        assert!(other.len <= self.len, "{} bytes into a range of {}", other.len, self.len);
        // SAFETY: both ranges were checked, and mappings consist of whole pages.
        unsafe { racing::copy(other.as_ptr(), self.as_ptr(), other.len) };
    }

    /// Computes the CRC-32C of blocks from the start of the range on, as many as `sums` has places,
    /// as fast as the memory allows. Returns for how many it did; the caller does the rest. Small
    /// numbers of blocks, unusual blocks and some processors are not covered.
    ///
    /// # Panics
    /// If the range is shorter.
    pub fn crc32c_of_blocks(&self, block_bytes: usize, sums: &mut [u32]) -> usize {
        let fits = sums.len().checked_mul(block_bytes).is_some_and(|bytes| bytes <= self.len);
        let count = sums.len();
        assert!(fits, "{count} blocks of {block_bytes} bytes in a range of {}", self.len);
        // SAFETY: the range was checked, and a mapping consists of whole pages.
        unsafe { racing::crc32c_of_blocks(self.as_ptr(), block_bytes, sums) }
    }

    /// Returns a copy of the bytes, which does not change any more.
    pub fn to_buffer(&self) -> Buffer {
        let mut buffer = Buffer::with_capacity(self.len);
        buffer.set_len(self.len);
        self.copy_out(&mut buffer);
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: regions in huge pages begin at one, follow on each other and have separate reference
    /// counts, and their memory stays until the last is gone.
    #[cfg(not(miri))]
    #[test]
    fn regions_share_huge_pages() {
        for (len, count) in [(1 << 20, 2), (2 << 20, 1), (3 << 20, 1), (8192, 256)] {
            assert_eq!(Region::in_huge_pages(len).unwrap().len(), count, "{len}");
        }
        let mut regions = Region::in_huge_pages(1 << 20).unwrap();
        let address = |region: &Region| region.range(0, 1).as_ptr().addr();
        assert!(address(&regions[0]).is_multiple_of(HUGE_PAGE_BYTES));
        assert_eq!(address(&regions[1]), address(&regions[0]) + (1 << 20));
        let slice = regions[0].range(0, 1 << 20);
        assert!(!regions[0].is_unique() && regions[1].is_unique());
        drop(slice);
        assert!(regions[0].is_unique());
        let last = regions.pop().unwrap();
        last.copy_in((1 << 20) - 3, b"end");
        drop(regions);
        assert_eq!(last.range((1 << 20) - 3, 3).to_buffer()[..], *b"end");
        let (other, before) = (last.apart(), last.references());
        let slices = [other.slice(0, 1), other.slice(1, 1)];
        assert_eq!((other.references(), last.references()), (3, before));
        drop((slices, last));
        assert_eq!(other.range((1 << 20) - 3, 3).to_buffer()[..], *b"end", "it keeps the memory");
        assert!(Region::in_huge_pages(0).is_err() && Region::in_huge_pages(usize::MAX).is_err());
    }

    /// Goal: a writer and readers of the same bytes are not a data race (the thread sanitizer and
    /// Miri check), and a reader that the writer has released sees the writer's bytes.
    #[test]
    fn threads_read_what_another_writes() {
        use std::sync::atomic::{AtomicU8, Ordering};
        let (region, rounds) = (Region::new(4096).unwrap(), if cfg!(miri) { 5 } else { 250 });
        let written = AtomicU8::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    region.copy_in(13, &[round; 777]);
                    written.store(round, Ordering::Release);
                }
            });
            for _ in 0..2 {
                let chunk = region.slice(13, 777);
                scope.spawn(|| {
                    let (mut seen, chunk) = (0, chunk);
                    while seen < rounds {
                        seen = written.load(Ordering::Acquire);
                        let bytes = chunk.to_bytes();
                        assert!(bytes.iter().all(|&byte| byte >= seen), "older than {seen}");
                    }
                });
            }
        });
    }
}
