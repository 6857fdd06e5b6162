//! Calls and their answers: the answer that an own call awaits, and the way back for that of a call of the peer.

use super::Inner;
use crate::error::RpcError;
use crate::interface::Side;
use reactor::time::Sleep;
use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// An own call whose answer is awaited.
pub(super) struct Waiting<A> {
    pub(super) answer: Option<Result<A, RpcError>>,
    pub(super) waker: Option<Waker>,
}

pub(super) type Awaited<A> = Rc<RefCell<Waiting<A>>>;

/// The receiver of an own call's answer.
pub(super) enum Pending<A> {
    Awaited(Awaited<A>),
    Then(Box<dyn FnOnce(Result<A, RpcError>)>),
}

impl<A> Pending<A> {
    pub(super) fn finish(self, answer: Result<A, RpcError>) {
        match self {
            Self::Then(then) => then(answer),
            Self::Awaited(waiting) => {
                let mut waiting = waiting.borrow_mut();
                waiting.answer = Some(answer);
                let waker = waiting.waker.take();
                drop(waiting);
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
        }
    }
}

/// The future of [`Connection::call`](super::Connection::call).
#[must_use = "an answer that is not awaited is lost; the call is made all the same"]
pub struct Answering<S: Side> {
    pub(super) inner: Weak<Inner<S>>,
    pub(super) waiting: Awaited<S::Answer>,
    pub(super) tag: u64,
    pub(super) deadline: Option<(Duration, Sleep)>,
}

impl<S: Side> Future for Answering<S> {
    type Output = Result<S::Answer, RpcError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        {
            let mut waiting = self.waiting.borrow_mut();
            if let Some(answer) = waiting.answer.take() {
                return Poll::Ready(answer);
            }
            waiting.waker = Some(cx.waker().clone());
        }
        if let Some((after, sleep)) = &mut self.deadline
            && !reactor::mutant!("deadline-ignored")
            && Pin::new(sleep).poll(cx).is_ready()
        {
            return Poll::Ready(Err(RpcError::Deadline(*after)));
        }
        Poll::Pending
    }
}

impl<S: Side> Drop for Answering<S> {
    fn drop(&mut self) {
        if let Some(inner) = self.inner.upgrade()
            && inner.pending.borrow_mut().remove(&self.tag).is_some()
        {
            inner.peer.borrow_mut().forget(self.tag);
        }
    }
}

impl<S: Side> fmt::Debug for Answering<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answering").field("tag", &self.tag).finish_non_exhaustive()
    }
}

/// The way back for the answer to one call of the peer.
#[must_use = "the peer waits for its answer"]
pub struct Reply<S: Side> {
    pub(super) inner: Weak<Inner<S>>,
    pub(super) tag: u64,
}

impl<S: Side> Reply<S> {
    /// Queues the answer, to be sent with all others of the loop turn. It has no effect if the
    /// connection is closed.
    ///
    /// # Errors
    /// [`RpcError::Protocol`] if the answer is too long for a frame: the peer then gets no answer
    /// from this call, and `self` is returned for another.
    pub fn send(self, answer: &S::Reply) -> Result<(), (Self, RpcError)> {
        let Some(inner) = self.inner.upgrade() else { return Ok(()) };
        match inner.queue(|peer| peer.answer(self.tag, answer)) {
            Ok(()) | Err(RpcError::Closed(_)) => Ok(()),
            Err(error) => Err((self, error)),
        }
    }

    /// Returns whether the connection is gone, so that the peer no longer waits for the answer.
    pub fn is_closed(&self) -> bool {
        self.inner.upgrade().is_none_or(|inner| inner.reason.borrow().is_some())
    }
}

impl<S: Side> fmt::Debug for Reply<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply").field("tag", &self.tag).finish_non_exhaustive()
    }
}
