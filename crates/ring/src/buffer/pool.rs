//! The per-thread pool behind [`Buffer`](super::Buffer): one free list per power-of-two size class.

use super::ALIGNMENT_BYTES;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;

/// Size classes: 4 KiB, 8 KiB … 4 MiB.
const CLASSES: usize = 11;

/// Largest pooled class, in bytes.
pub(super) const POOLED_BYTES_MAX: usize = ALIGNMENT_BYTES << (CLASSES - 1);

/// Most bytes that one class of one thread's pool keeps.
const CLASS_BYTES_MAX: usize = 32 << 20;

/// Header of a buffer's memory.
pub(super) struct Block {
    /// Number of [`Shared`](super::Shared) views; 1 while owned by a `Buffer` or the pool.
    pub(super) references: AtomicUsize,
    /// Bytes at `memory`.
    pub(super) capacity: usize,
    /// Start of the aligned memory.
    pub(super) memory: NonNull<u8>,
}

impl Block {
    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT_BYTES).expect("capacity below isize::MAX")
    }

    fn allocate(capacity: usize) -> NonNull<Self> {
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is at least one page.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        let block = Self { references: AtomicUsize::new(1), capacity, memory };
        NonNull::from(Box::leak(Box::new(block)))
    }

    /// Frees header and memory.
    ///
    /// # Safety
    /// `block` came from `allocate` and nobody uses it any more.
    unsafe fn free(block: NonNull<Self>) {
        // SAFETY: by the caller's promise the header is a leaked box that is ours again.
        let block = unsafe { Box::from_raw(block.as_ptr()) };
        // SAFETY: the memory was allocated with this very layout.
        unsafe { dealloc(block.memory.as_ptr(), Self::layout(block.capacity)) };
    }
}

struct Pool {
    free: [Vec<NonNull<Block>>; CLASSES],
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
        const { RefCell::new(Pool { free: [const { Vec::new() }; CLASSES] }) };
}

/// Class of a capacity that is a power of two of pages, if it is pooled.
fn class(capacity: usize) -> Option<usize> {
    (capacity <= POOLED_BYTES_MAX)
        .then(|| capacity.trailing_zeros() as usize - ALIGNMENT_BYTES.trailing_zeros() as usize)
}

/// A block of at least `capacity` bytes.
pub(super) fn take(capacity: usize) -> NonNull<Block> {
    if capacity > POOLED_BYTES_MAX {
        return Block::allocate(capacity.next_multiple_of(ALIGNMENT_BYTES));
    }
    let capacity = capacity.max(ALIGNMENT_BYTES).next_power_of_two();
    let pooled = class(capacity)
        .and_then(|class| POOL.try_with(|pool| pool.borrow_mut().free[class].pop()).ok().flatten());
    pooled.unwrap_or_else(|| Block::allocate(capacity))
}

/// Takes back a block that has no owner any more.
pub(super) fn give_back(block: NonNull<Block>) {
    // SAFETY: the caller was the last owner, so that the header is alive and ours.
    let capacity = unsafe { block.as_ref() }.capacity;
    let kept = class(capacity).is_some_and(|class| {
        POOL.try_with(|pool| {
            let free = &mut pool.borrow_mut().free[class];
            let fits = (free.len() + 1) * capacity <= CLASS_BYTES_MAX;
            if fits {
                free.push(block);
            }
            fits
        })
        .unwrap_or(false)
    });
    if !kept {
        // SAFETY: nobody else knows of the block.
        unsafe { Block::free(block) };
    }
}
