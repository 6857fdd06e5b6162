//! Wakes the task that dispatches for a thread, from any thread.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

#[derive(Debug, Default)]
struct State {
    is_rung: bool,
    waker: Option<Waker>,
}

/// One thread's bell; clones are the same bell.
#[derive(Clone, Debug, Default)]
pub(super) struct Bell(Arc<Mutex<State>>);

impl Bell {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether both are the same bell.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Wakes the thread's task, once for all rings until it runs.
    pub(super) fn ring(&self) {
        let mut state = self.lock();
        state.is_rung = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Waits until the bell has rung since the last call.
    pub(super) async fn rung(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if std::mem::take(&mut state.is_rung) {
                return Poll::Ready(());
            }
            state.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
