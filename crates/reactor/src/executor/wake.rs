//! Waking tasks: task headers, and the lock-free stack through which other threads push them.

use crate::context::try_with_context;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering, fence};
use std::task::Wake;

/// The part of an executor that other threads may touch.
pub(super) struct Remote {
    /// Head of a stack of headers woken by other threads.
    pub(super) stack: AtomicPtr<Header>,
    /// Set while the owner sleeps or is about to.
    pub(super) sleeping: AtomicBool,
    /// Set once the owner is gone: headers are not pushed any more.
    pub(super) closed: AtomicBool,
    /// Ends the owner's sleep.
    pub(super) kick: Box<dyn Fn() + Send + Sync>,
}

impl Remote {
    fn push(&self, header: Arc<Header>) {
        if self.closed.load(Ordering::Acquire) {
            return;
        }
        let node = Arc::into_raw(header).cast_mut();
        let mut head = self.stack.load(Ordering::Relaxed);
        loop {
            // SAFETY: `node` came from `Arc::into_raw` and is not yet visible to other threads; the
            // header's `queued` flag lets it be in one queue at a time.
            unsafe { (*node).next.store(head, Ordering::Relaxed) };
            let order = (Ordering::Release, Ordering::Relaxed);
            match self.stack.compare_exchange_weak(head, node, order.0, order.1) {
                Ok(_) => break,
                Err(current) => head = current,
            }
        }
        fence(Ordering::SeqCst);
        self.kick_sleeper();
    }

    /// Ends the owner's sleep.
    pub(super) fn kick_sleeper(&self) {
        if self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel) {
            (self.kick)();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.stack.load(Ordering::Acquire).is_null()
    }

    /// Calls `take` with all pushed headers, in the order in which they were pushed.
    pub(super) fn drain(&self, mut take: impl FnMut(Arc<Header>)) {
        let mut node = self.stack.swap(ptr::null_mut(), Ordering::Acquire);
        let mut reversed = ptr::null_mut();
        while !node.is_null() {
            // SAFETY: the swap made the whole list ours.
            let next = unsafe { (*node).next.swap(reversed, Ordering::Relaxed) };
            reversed = node;
            node = next;
        }
        while !reversed.is_null() {
            // SAFETY: each node owns the count given to `Arc::into_raw` in `push`.
            let header = unsafe { Arc::from_raw(reversed.cast_const()) };
            reversed = header.next.load(Ordering::Relaxed);
            take(header);
        }
    }
}

/// The header of a task: its wakers point to it.
pub(super) struct Header {
    pub(super) key: u32,
    /// Whether the task is in a queue.
    pub(super) queued: AtomicBool,
    pub(super) next: AtomicPtr<Header>,
    pub(super) remote: Arc<Remote>,
}

impl Wake for Header {
    fn wake(self: Arc<Self>) {
        if self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut header = Some(self);
        let _ = try_with_context(|context| {
            if let Some(mine) =
                header.take_if(|mine| Arc::ptr_eq(&mine.remote, &context.executor.remote))
            {
                context.executor.ready.borrow_mut().push_back(mine);
            }
        });
        if let Some(header) = header {
            let remote = Arc::clone(&header.remote);
            remote.push(header);
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.load(Ordering::Acquire) {
            Arc::clone(self).wake();
        }
    }
}
