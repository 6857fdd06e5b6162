//! The per-thread pool behind [`Buffer`](super::Buffer): one free list per power-of-two size class.

use super::{ALIGNMENT_BYTES, Attachment};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

/// Size classes: 4 KiB, 8 KiB … 4 MiB.
const CLASSES: usize = 11;

/// Largest pooled class, in bytes.
pub(super) const POOLED_BYTES_MAX: usize = ALIGNMENT_BYTES << (CLASSES - 1);

/// Most bytes that one class of one thread's pool keeps.
const CLASS_BYTES_MAX: usize = 32 << 20;

/// From this capacity on, memory comes from the system as lazy zero pages: a page counts from its
/// first use on. (For aligned zeroed memory, the allocator would write the zeros itself.)
const LAZY_BYTES_MIN: usize = 128 << 10;
/// The alignment of the allocator without a request for more.
const LAZY_ALIGNMENT_BYTES: usize = 16;

/// Header of a buffer's memory.
pub(super) struct Block {
    /// Number of [`Shared`](super::Shared) views; 1 while owned by a `Buffer` or the pool.
    pub(super) references: AtomicUsize,
    /// Bytes at `memory`.
    pub(super) capacity: usize,
    /// Start of the aligned memory.
    pub(super) memory: NonNull<u8>,
    /// Start of the allocation.
    base: NonNull<u8>,
    /// Data that belongs to the memory, until the memory is freed.
    pub(super) attachment: OnceLock<Attachment>,
}

impl Block {
    fn layout(capacity: usize) -> Layout {
        let (size, alignment) = if capacity >= LAZY_BYTES_MIN {
            // A wrapped sum would be memory for fewer bytes than the capacity.
            (capacity.saturating_add(ALIGNMENT_BYTES), LAZY_ALIGNMENT_BYTES)
        } else {
            (capacity, ALIGNMENT_BYTES)
        };
        Layout::from_size_align(size, alignment).expect("capacity below isize::MAX")
    }

    fn allocate(capacity: usize) -> NonNull<Self> {
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is at least one page.
        let base = unsafe { alloc_zeroed(layout) };
        let Some(base) = NonNull::new(base) else { handle_alloc_error(layout) };
        let padding = base.align_offset(ALIGNMENT_BYTES);
        debug_assert!(padding + capacity <= layout.size());
        // SAFETY: the bytes beyond the capacity are a multiple of the alignment and enough for any
        // padding; without them there is no padding.
        let memory = unsafe { base.add(padding) };
        let references = AtomicUsize::new(1);
        let block = Self { references, capacity, memory, base, attachment: OnceLock::new() };
        NonNull::from(Box::leak(Box::new(block)))
    }

    /// Frees header and memory.
    ///
    /// # Safety
    /// `block` came from `allocate` and is no longer in use.
    unsafe fn free(block: NonNull<Self>) {
        // SAFETY: by the caller's promise the header is a leaked box that is ours again.
        let mut block = unsafe { Box::from_raw(block.as_ptr()) };
        // The attachment may describe the memory, so it goes first.
        block.attachment = OnceLock::new();
        // SAFETY: the memory was allocated with this very layout.
        unsafe { dealloc(block.base.as_ptr(), Self::layout(block.capacity)) };
    }
}

struct Pool {
    free: [Vec<NonNull<Block>>; CLASSES],
    /// Most bytes of each class.
    class_bytes_max: usize,
}

impl Drop for Pool {
    fn drop(&mut self) {
        for block in self.free.iter_mut().flat_map(std::mem::take) {
            // SAFETY: blocks in a free list have no other owner.
            unsafe { Block::free(block) };
        }
    }
}

thread_local! {
    static POOL: RefCell<Pool> =
        const { RefCell::new(Pool { free: [const { Vec::new() }; CLASSES], class_bytes_max: CLASS_BYTES_MAX }) };
}

/// Lets this thread's pool keep little: for one of many threads that share their work.
pub(crate) fn keep_little() {
    POOL.with_borrow_mut(|pool| pool.class_bytes_max = CLASS_BYTES_MAX / 16);
}

/// Returns the class of a capacity that is a power of two of pages, if it is pooled.
fn class(capacity: usize) -> Option<usize> {
    (capacity <= POOLED_BYTES_MAX)
        .then(|| capacity.trailing_zeros() as usize - ALIGNMENT_BYTES.trailing_zeros() as usize)
}

/// Returns a block of at least `capacity` bytes.
pub(super) fn take(capacity: usize) -> NonNull<Block> {
    if capacity > POOLED_BYTES_MAX {
        let rounded = capacity.checked_next_multiple_of(ALIGNMENT_BYTES);
        return Block::allocate(rounded.expect("capacity below isize::MAX"));
    }
    let capacity = capacity.max(ALIGNMENT_BYTES).next_power_of_two();
    let pooled = class(capacity)
        .and_then(|class| POOL.try_with(|pool| pool.borrow_mut().free[class].pop()).ok().flatten());
    pooled.unwrap_or_else(|| Block::allocate(capacity))
}

/// Takes back a block that has no owner any more.
pub(super) fn give_back(block: NonNull<Block>) {
    // SAFETY: the caller was the last owner, so the header is alive and ours.
    let capacity = unsafe { block.as_ref() }.capacity;
    let kept = class(capacity).is_some_and(|class| {
        POOL.try_with(|pool| {
            let pool = &mut *pool.borrow_mut();
            let free = &mut pool.free[class];
            let fits = (free.len() + 1) * capacity <= pool.class_bytes_max;
            if fits {
                free.push(block);
            }
            fits
        })
        .unwrap_or(false)
    });
    if !kept {
        // SAFETY: the block has no other owner.
        unsafe { Block::free(block) };
    }
}

#[cfg(test)]
mod tests {
    use super::{CLASS_BYTES_MAX, POOLED_BYTES_MAX};
    use crate::{Buffer, Chunk};

    /// Goal: every buffer is aligned and large enough, and dropped ones are used again.
    #[test]
    fn buffers_are_aligned_and_recycled() {
        for len in [0, 1, 4096, 4097, 65_536, 1 << 20, POOLED_BYTES_MAX, POOLED_BYTES_MAX + 1] {
            let buffer = Buffer::zeroed(len);
            assert!(buffer.capacity() >= len && buffer.as_ptr().addr().is_multiple_of(4096));
            assert!(buffer.len() == len && buffer.iter().all(|&b| b == 0));
        }
        let buffer = Buffer::with_capacity(5000);
        let address = buffer.as_ptr_raw();
        drop(buffer);
        assert_eq!(Buffer::with_capacity(8000).as_ptr_raw(), address);
    }

    /// Goal: a capacity that no machine has is refused, in optimised builds too, and never becomes
    /// a buffer with less memory than its capacity.
    #[test]
    fn impossible_capacities_are_refused() {
        for capacity in [usize::MAX, usize::MAX - 4095, usize::MAX - 4096, isize::MAX as usize] {
            let made = std::panic::catch_unwind(|| Buffer::with_capacity(capacity));
            assert!(made.is_err(), "{capacity}");
        }
    }

    /// Goal: a pool keeps no more than its bound.
    #[test]
    fn pools_are_bounded() {
        let count = CLASS_BYTES_MAX / POOLED_BYTES_MAX + 3;
        let buffers: Vec<_> = (0..count).map(|_| Buffer::with_capacity(POOLED_BYTES_MAX)).collect();
        drop(buffers);
        let kept = super::POOL.with_borrow(|pool| pool.free.last().map(Vec::len));
        assert_eq!(kept, Some(CLASS_BYTES_MAX / POOLED_BYTES_MAX));
    }

    /// Goal: an attachment stays while the memory is recycled, and is dropped with the memory.
    #[test]
    fn attachments_go_with_the_memory() {
        let attached = std::sync::Arc::new(7_u8);
        let mut buffer = Buffer::with_capacity(5000);
        let (address, _) = buffer.memory();
        buffer.attach(attached.clone());
        drop(buffer);
        let mut again = Buffer::with_capacity(8000);
        let known = again.attachment().and_then(|it| it.downcast_ref::<u8>());
        assert_eq!((again.memory().0, known), (address, Some(&7)));
        again.attach(std::sync::Arc::new(()));
        assert_eq!(std::sync::Arc::strong_count(&attached), 1, "it was replaced");
        let mut large = Buffer::with_capacity(POOLED_BYTES_MAX + 1);
        large.attach(attached.clone());
        drop(large);
        assert_eq!(std::sync::Arc::strong_count(&attached), 1, "the memory was freed");
    }

    /// Goal: frozen views share memory, keep it alive, and return it only with the last view.
    #[test]
    fn views_share_memory() {
        let mut buffer = Buffer::copy_from(&[1, 2, 3, 4, 5]);
        buffer[0] = 9;
        let address = buffer.as_ptr_raw().cast_const();
        let shared = buffer.freeze();
        let tail = shared.slice(2..).slice(1..);
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || assert_eq!(shared[..], [9, 2, 3, 4, 5])
        });
        thread.join().unwrap();
        drop(shared);
        assert_ne!(Buffer::with_capacity(5).as_ptr_raw().cast_const(), address);
        assert_eq!(tail[..], [4, 5]);
        drop(tail);
        assert_eq!(Buffer::with_capacity(5).as_ptr_raw().cast_const(), address);
    }

    /// Goal: a slice of any kind of chunk equals the same slice of its bytes.
    #[test]
    fn chunks_slice_alike() {
        let bytes: Vec<u8> = (0..100).collect();
        let region = crate::Region::new(4096).unwrap();
        region.copy_in(7, &bytes);
        let buffer = || Buffer::copy_from(&bytes);
        let make: [&dyn Fn() -> Chunk; 4] =
            [&|| buffer().into(), &|| buffer().freeze().into(), &|| region.slice(7, 100), &|| {
                Chunk::copy_from(&bytes)
            }];
        for make in make {
            let chunk = make().slice(10..90).slice(5..=6);
            assert_eq!(chunk.to_bytes()[..], bytes[15..17]);
            assert_eq!(make().slice(90..).into_shared()[..], bytes[90..]);
            assert_eq!(make().slice(1..).into_buffer()[..], bytes[1..]);
            assert_eq!(make().slice(..5).into_buffer()[..], bytes[..5]);
        }
    }
}

#[cfg(test)]
mod lazy_tests {
    use crate::Buffer;

    /// Resident memory of this process, in bytes.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/statm").expect("statm");
        let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
        pages.expect("resident pages") * 4096
    }

    /// Goal: large buffers that wait to be filled (one per mount of a server) cost no memory, and
    /// are still aligned.
    #[test]
    fn large_buffers_cost_nothing_until_they_are_used() {
        let before = resident();
        let buffers: Vec<Buffer> = (0..256).map(|_| Buffer::with_capacity(1 << 20)).collect();
        assert!(resident() - before < 64 << 20, "{} bytes", resident() - before);
        for mut buffer in buffers.into_iter().take(1) {
            assert!(buffer.as_ptr().addr().is_multiple_of(4096) && buffer.capacity() >= 1 << 20);
            buffer.extend_from_slice(b"x");
            buffer.set_len(1 << 20);
            assert!(buffer[0] == b'x' && buffer[1..].iter().all(|&byte| byte == 0));
        }
    }
}
