//! The bound on the work of a connection before others get their turn.
//!
//! A thread serves many connections, and some devices do their work on that thread (memory: a copy,
//! or zeros for a command of a few bytes). So a connection counts the bytes that its commands move
//! or clear in one turn. When the bytes are used up, the connection stops, even in the middle of a
//! command, and continues after all other ready tasks of the thread.

use block::IoFuture;
use nvme::Status;
use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Bytes that a connection's commands move or clear in one turn.
const TURN_BYTES: u64 = 1 << 20;
/// The part of these bytes for commands that run in steps; the rest is for the other commands.
const TURN_BYTES_IN_STEPS: u64 = TURN_BYTES / 2;
/// Bytes of one step of a device that works on this thread.
const STEP_BYTES: u64 = 256 << 10;
/// Bytes of one step of a device that works elsewhere. The step locks its file.
pub(super) const STEP_BYTES_ELSEWHERE: u64 = 64 << 20;
/// Bytes that a command counts in addition to its data.
pub(super) const COMMAND_BYTES: u64 = 4 << 10;

/// The budget of bytes for one turn of a connection.
#[derive(Debug, Default)]
pub(super) struct Pace {
    left_bytes: Cell<u64>,
    left_bytes_in_steps: Cell<u64>,
    /// Whether something was left for the next turn.
    is_short: Cell<bool>,
    /// Whether the connection is over: long commands stop at their next step.
    is_over: Cell<bool>,
}

impl Pace {
    /// Begins a new turn.
    pub(super) fn begin(&self) {
        self.left_bytes.set(TURN_BYTES);
        self.left_bytes_in_steps.set(TURN_BYTES_IN_STEPS);
        self.is_short.set(false);
    }

    /// Returns whether the turn has bytes left. If not, records that something waits for the next
    /// turn.
    pub(super) fn has_room(&self) -> bool {
        let has_room = self.left_bytes.get() > 0;
        if !has_room {
            self.is_short.set(true);
        }
        has_room
    }

    /// Returns whether something was left for the next turn.
    pub(super) fn is_short(&self) -> bool {
        self.is_short.get()
    }

    /// Takes `bytes` from the budget.
    pub(super) fn spend(&self, bytes: u64) {
        self.left_bytes.set(self.left_bytes.get().saturating_sub(bytes));
    }

    /// Wakes `waker` after all other tasks if something was left.
    pub(super) fn end(&self, waker: &Waker) {
        if self.is_short.get() {
            reactor::wake_after_others(waker);
        }
    }

    /// Ends long commands at their next step.
    pub(super) fn stop(&self) {
        self.is_over.set(true);
    }

    /// Waits until the turn has room.
    async fn room(&self) -> Result<(), Status> {
        poll_fn(|_| {
            if self.is_over.get() {
                return Poll::Ready(Err(Status::ABORTED_SQ_DELETION));
            }
            if self.left_bytes_in_steps.get() > 0 && self.has_room() {
                return Poll::Ready(Ok(()));
            }
            self.is_short.set(true);
            Poll::Pending
        })
        .await
    }

    /// Runs `step` over `bytes` from `offset` on, piece by piece, as the turns allow. The pieces
    /// are small while the device works on this thread, otherwise they have `elsewhere_bytes`;
    /// `is_elsewhere` records where it works.
    pub(super) async fn in_steps(
        &self,
        (offset, bytes): (u64, u64),
        elsewhere_bytes: u64,
        is_elsewhere: &Cell<bool>,
        step: impl Fn(u64, u64) -> IoFuture<()>,
    ) -> Result<(), Status> {
        let mut done = 0;
        while done < bytes {
            self.room().await?;
            let most = if is_elsewhere.get() { elsewhere_bytes } else { STEP_BYTES };
            // A thin device frees whole clusters, so pieces end at multiples of the step.
            let here = (most - (offset + done) % most).min(bytes - done);
            let mut work = step(offset + done, here);
            // A device that has completed already has worked on this thread.
            let mut cx = Context::from_waker(Waker::noop());
            let polled = Pin::new(&mut work).poll(&mut cx);
            is_elsewhere.set(polled.is_pending());
            let spent = if polled.is_pending() { COMMAND_BYTES } else { here };
            self.spend(spent);
            let left = &self.left_bytes_in_steps;
            left.set(left.get().saturating_sub(spent));
            let result = match polled {
                Poll::Ready(result) => result,
                Poll::Pending => work.await,
            };
            result.map_err(|error| super::work::status_of(&error))?;
            done += here;
        }
        Ok(())
    }
}
