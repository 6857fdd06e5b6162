//! Bounded mailboxes between threads: many senders, one receiver.
//!
//! Messages go through a lock-free circular queue of slots (after D. Vyukov's bounded queue). A
//! lock is taken only at the edges: by a receiver that found no message and goes to sleep and the
//! sender that wakes it (once per batch), and by senders that found the mailbox full.

mod queue;

use queue::Queue;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

struct Shared<T> {
    queue: Queue<T>,
    senders: AtomicUsize,
    receiver_gone: AtomicBool,
    /// Whether `waiting.receiver` is set, or about to be.
    receiver_waits: AtomicBool,
    /// Whether `waiting.senders` has entries, or is about to.
    senders_wait: AtomicBool,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    receiver: Option<Waker>,
    senders: Vec<Waker>,
}

impl<T> Shared<T> {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_receiver(&self) {
        fence(Ordering::SeqCst);
        if self.receiver_waits.load(Ordering::Relaxed)
            && self.receiver_waits.swap(false, Ordering::AcqRel)
        {
            let waker = self.waiting().receiver.take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    fn wake_senders(&self) {
        fence(Ordering::SeqCst);
        if self.senders_wait.load(Ordering::Relaxed)
            && self.senders_wait.swap(false, Ordering::AcqRel)
        {
            let wakers = std::mem::take(&mut self.waiting().senders);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        if self.receiver_gone.load(Ordering::Acquire) {
            return Err(TrySendError::Closed(message));
        }
        self.queue.push(message).map_err(TrySendError::Full)?;
        self.wake_receiver();
        Ok(())
    }

    fn try_recv(&self) -> Result<T, TryRecvError> {
        if let Some(message) = self.queue.pop() {
            self.wake_senders();
            return Ok(message);
        }
        if self.senders.load(Ordering::Acquire) > 0 {
            return Err(TryRecvError::Empty);
        }
        // The last sender may have sent between the two checks.
        self.queue.pop().ok_or(TryRecvError::Closed)
    }

    fn poll_recv(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        match self.try_recv() {
            Ok(message) => return Poll::Ready(Some(message)),
            Err(TryRecvError::Closed) => return Poll::Ready(None),
            Err(TryRecvError::Empty) => {}
        }
        self.waiting().receiver = Some(cx.waker().clone());
        self.receiver_waits.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        match self.try_recv() {
            Ok(message) => Poll::Ready(Some(message)),
            Err(TryRecvError::Closed) => Poll::Ready(None),
            Err(TryRecvError::Empty) => Poll::Pending,
        }
    }

    fn poll_send(&self, message: &mut Option<T>, cx: &mut Context<'_>) -> Poll<Result<(), T>> {
        for is_registered in [false, true] {
            let Some(taken) = message.take() else { return Poll::Ready(Ok(())) };
            match self.try_send(taken) {
                Ok(()) => return Poll::Ready(Ok(())),
                Err(TrySendError::Closed(taken)) => return Poll::Ready(Err(taken)),
                Err(TrySendError::Full(taken)) => *message = Some(taken),
            }
            if !is_registered {
                let mut waiting = self.waiting();
                if !waiting.senders.iter().any(|known| known.will_wake(cx.waker())) {
                    waiting.senders.push(cx.waker().clone());
                }
                self.senders_wait.store(true, Ordering::Relaxed);
                drop(waiting);
                fence(Ordering::SeqCst);
            }
        }
        Poll::Pending
    }
}

/// The reason why [`Sender::try_send`] did not send, with the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T> {
    /// The mailbox is full.
    #[error("the mailbox is full")]
    Full(T),
    /// The receiver is gone.
    #[error("the mailbox's receiver is gone")]
    Closed(T),
}

/// The reason why [`Receiver::try_recv`] has no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TryRecvError {
    /// There is no message now.
    #[error("the mailbox is empty")]
    Empty,
    /// There is no message, and all senders are gone.
    #[error("the mailbox is empty and all its senders are gone")]
    Closed,
}

/// The receiver is gone; contains the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the mailbox's receiver is gone")]
pub struct Closed<T>(pub T);

/// The sending side; clone it for each sender.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// The receiving side.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
}

/// Makes a mailbox for at least `capacity` messages (rounded up to a power of two, at least 2).
pub fn channel<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        queue: Queue::new(capacity),
        senders: AtomicUsize::new(1),
        receiver_gone: AtomicBool::new(false),
        receiver_waits: AtomicBool::new(false),
        senders_wait: AtomicBool::new(false),
        waiting: Mutex::default(),
    });
    (Sender { shared: Arc::clone(&shared) }, Receiver { shared })
}

impl<T> Sender<T> {
    /// Sends if there is room.
    ///
    /// # Errors
    /// The message, if the mailbox is full or the receiver gone.
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        self.shared.try_send(message)
    }

    /// Sends, and waits for room. If the future is dropped before its end, nothing is sent.
    ///
    /// # Errors
    /// The message, if the receiver is gone.
    pub async fn send(&self, message: T) -> Result<(), Closed<T>> {
        let mut message = Some(message);
        poll_fn(|cx| self.shared.poll_send(&mut message, cx)).await.map_err(Closed)
    }

    /// Returns whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.shared.receiver_gone.load(Ordering::Acquire)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.shared.senders.fetch_add(1, Ordering::Relaxed);
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.shared.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.wake_receiver();
        }
    }
}

impl<T> Receiver<T> {
    /// Returns the next message, if there is one.
    ///
    /// # Errors
    /// The error says whether more messages may come.
    pub fn try_recv(&mut self) -> Result<T, TryRecvError> {
        self.shared.try_recv()
    }

    /// Returns the next message; `None` when all senders are gone and every message was received.
    /// Dropping the future loses nothing.
    pub async fn recv(&mut self) -> Option<T> {
        poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// [`recv`](Self::recv) for hand-written futures.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.shared.poll_recv(cx)
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.receiver_gone.store(true, Ordering::Release);
        while self.shared.queue.pop().is_some() {}
        self.shared.wake_senders();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
