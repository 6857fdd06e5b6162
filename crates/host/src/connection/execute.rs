//! The future of one command.

use super::{Connection, WAITERS_MAX};
use crate::error::Error;
use crate::queue_pair::{Data, Outcome, SubmitError};
use nvme::{CommandId, SubmissionQueueEntry};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A future that submits a command when there is a slot, and completes with its outcome and its
/// data. If it is dropped early, the command continues and its answer is discarded: a command that
/// the controller has cannot be withdrawn.
#[must_use = "futures do nothing unless polled"]
#[derive(Debug)]
pub(crate) struct Execute {
    connection: Connection,
    sqe: SubmissionQueueEntry,
    data: Option<Data>,
    has_deadline: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Not submitted. With a ticket, it is in the queue of those that wait for a slot.
    Waiting(Option<u64>),
    Submitted(CommandId),
    Over,
}

impl Execute {
    pub(super) fn new(
        connection: Connection,
        sqe: SubmissionQueueEntry,
        data: Data,
        has_deadline: bool,
    ) -> Self {
        let state = State::Waiting(None);
        Self { connection, sqe, data: Some(data), has_deadline, state }
    }

    /// Submits the command if there is a slot. Returns [`None`] if there is none.
    fn try_submit(&mut self, waker: &Waker) -> Result<Option<CommandId>, Error> {
        let inner = &self.connection.0;
        let data = self.data.take().unwrap_or_default();
        let mut pair = inner.pair.borrow_mut();
        match pair.submit(&self.sqe, data, self.has_deadline) {
            Ok(cid) => {
                let index = pair.index_of(cid);
                drop(pair);
                if let Some(place) = inner.waiting.borrow_mut().get_mut(index) {
                    *place = Some(waker.clone());
                }
                inner.wake_driver();
                Ok(Some(cid))
            }
            Err((SubmitError::NotReady, data)) => {
                self.data = Some(data);
                drop(pair);
                Err(self.connection.reason().into())
            }
            Err((SubmitError::QueueFull, data)) => {
                self.data = Some(data);
                Ok(None)
            }
        }
    }

    fn enqueue(&mut self, waker: &Waker) -> Result<(), Error> {
        let inner = &self.connection.0;
        let mut queued = inner.queued.borrow_mut();
        if let State::Waiting(Some(ticket)) = self.state
            && let Some(entry) = queued.iter_mut().find(|(other, _)| *other == ticket)
        {
            entry.1.clone_from(waker);
            return Ok(());
        }
        if queued.len() >= WAITERS_MAX {
            return Err(Error::TooManyWaiters(WAITERS_MAX));
        }
        let ticket = inner.next_ticket.get();
        inner.next_ticket.set(ticket.wrapping_add(1));
        queued.push_back((ticket, waker.clone()));
        self.state = State::Waiting(Some(ticket));
        Ok(())
    }

    fn poll_finished(&mut self, cid: CommandId, waker: &Waker) -> Poll<(Outcome, Data)> {
        let inner = &self.connection.0;
        let taken = inner.pair.borrow_mut().take(cid);
        if let Some(finished) = taken {
            self.state = State::Over;
            inner.wake_next_queued();
            return Poll::Ready(finished);
        }
        let index = inner.pair.borrow().index_of(cid);
        if let Some(place) = inner.waiting.borrow_mut().get_mut(index) {
            match place {
                Some(known) if known.will_wake(waker) => {}
                _ => *place = Some(waker.clone()),
            }
        }
        Poll::Pending
    }
}

impl Future for Execute {
    type Output = (Result<Outcome, Error>, Data);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let State::Submitted(cid) = this.state {
            return this.poll_finished(cid, cx.waker()).map(|(outcome, data)| (Ok(outcome), data));
        }
        // A later command waits behind those that already wait.
        let is_behind = matches!(this.state, State::Waiting(None))
            && !this.connection.0.queued.borrow().is_empty();
        let submitted = if is_behind { Ok(None) } else { this.try_submit(cx.waker()) };
        let result = match submitted {
            Ok(Some(cid)) => {
                this.forget_ticket(false);
                this.state = State::Submitted(cid);
                return Poll::Pending;
            }
            Ok(None) => this.enqueue(cx.waker()),
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => Poll::Pending,
            Err(error) => {
                this.forget_ticket(false);
                this.state = State::Over;
                Poll::Ready((Err(error), this.data.take().unwrap_or_default()))
            }
        }
    }
}

impl Execute {
    /// Leaves the queue. With `pass_on`, a wake-up that was meant for this command goes to the next
    /// one.
    fn forget_ticket(&mut self, pass_on: bool) {
        let State::Waiting(Some(ticket)) = self.state else { return };
        let inner = &self.connection.0;
        let mut queued = inner.queued.borrow_mut();
        let position = queued.iter().position(|(other, _)| *other == ticket);
        match position {
            Some(position) => drop(queued.remove(position)),
            None if pass_on => {
                drop(queued);
                inner.wake_next_queued();
            }
            None => {}
        }
        self.state = State::Waiting(None);
    }
}

impl Drop for Execute {
    fn drop(&mut self) {
        match self.state {
            State::Waiting(_) => self.forget_ticket(true),
            State::Submitted(cid) => {
                let inner = &self.connection.0;
                let mut pair = inner.pair.borrow_mut();
                if let Some(place) = inner.waiting.borrow_mut().get_mut(pair.index_of(cid)) {
                    *place = None;
                }
                pair.forget(cid);
                drop(pair);
                inner.wake_next_queued();
            }
            State::Over => {}
        }
    }
}
