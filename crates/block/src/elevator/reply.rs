//! A value passed from one thread to another, once.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

#[derive(Debug)]
struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
    is_sender_gone: bool,
    is_receiver_gone: bool,
}

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The end that sends the value.
#[derive(Debug)]
pub(super) struct Sender<T>(Arc<Mutex<State<T>>>);

/// The end that awaits the value; `None` if the other end was dropped.
#[derive(Debug)]
pub(super) struct Receiver<T>(Arc<Mutex<State<T>>>);

/// Returns both ends.
pub(super) fn reply<T>() -> (Sender<T>, Receiver<T>) {
    let state = State { value: None, waker: None, is_sender_gone: false, is_receiver_gone: false };
    let state = Arc::new(Mutex::new(state));
    (Sender(Arc::clone(&state)), Receiver(state))
}

impl<T> Sender<T> {
    /// Delivers the value, or drops it if no caller waits for it.
    pub(super) fn send(self, value: T) {
        lock(&self.0).value = Some(value);
    }

    /// Whether the receiver has stopped waiting.
    pub(super) fn is_closed(&self) -> bool {
        lock(&self.0).is_receiver_gone
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.is_sender_gone = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Receiver<T> {
    /// Stops waiting.
    pub(super) fn close(&self) {
        lock(&self.0).is_receiver_gone = true;
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.0);
        if let Some(value) = state.value.take() {
            return Poll::Ready(Some(value));
        }
        if state.is_sender_gone {
            return Poll::Ready(None);
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}
