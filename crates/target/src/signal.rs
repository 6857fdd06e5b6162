//! Signals of other threads to a connection: a few flags and the waker of its task.
//!
//! The task reads the flags with one relaxed load per turn, which is cheap while they are clear.
//! The lock is taken only to store the waker and to use it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// The connection has to end: its admission, controller or target has ended.
pub(crate) const CLOSE: u32 = 1 << 0;
/// Something that asynchronous events report may have changed.
pub(crate) const EVENT: u32 = 1 << 1;

/// Flags for one task. Padded, because each turn of a task writes here, and the listener's thread
/// allocates the signals of all cores one after the other.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Signal {
    flags: AtomicU32,
    waker: Mutex<Option<Waker>>,
}

impl Signal {
    /// Sets flags and wakes the task.
    pub(crate) fn raise(&self, flags: u32) {
        self.flags.fetch_or(flags, Ordering::SeqCst);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns whether any of `flags` is set.
    pub(crate) fn is_raised(&self, flags: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flags != 0
    }

    /// Clears `flags` and returns those that were set.
    pub(crate) fn take(&self, flags: u32) -> u32 {
        if self.is_raised(flags) {
            self.flags.fetch_and(!flags, Ordering::SeqCst) & flags
        } else {
            0
        }
    }

    /// Registers the task to wake. The caller checks the flags *after* this.
    pub(crate) fn register(&self, waker: &Waker) {
        let mut stored = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        match &*stored {
            Some(old) if old.will_wake(waker) => {}
            _ => *stored = Some(waker.clone()),
        }
    }
}
