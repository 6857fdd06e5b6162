//! Fused operations: two commands next to each other in the queue.

use super::execute::Execute;
use super::{Connection, WAITERS_MAX};
use crate::error::Error;
use crate::queue_pair::{Data, Outcome, QueuePairState};
use nvme::SubmissionQueueEntry;
use reactor::time;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Pause before the next look at a full queue.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// One command of a pair, until and after its end.
struct Half {
    execute: Pin<Box<Execute>>,
    ended: Option<Result<Outcome, Error>>,
}

impl Half {
    fn new(connection: &Connection, (sqe, data): (SubmissionQueueEntry, Data)) -> Self {
        let execute = Box::pin(Execute::new(connection.clone(), sqe, data, true));
        Self { execute, ended: None }
    }

    /// Returns whether the command has ended.
    fn poll(&mut self, cx: &mut Context<'_>) -> bool {
        if self.ended.is_none()
            && let Poll::Ready((ended, _)) = self.execute.as_mut().poll(cx)
        {
            self.ended = Some(ended);
        }
        self.ended.is_some()
    }
}

impl Connection {
    /// Submits two commands next to each other, as soon as the queue has room for both, and returns
    /// their outcomes.
    ///
    /// # Errors
    /// The commands were not sent: the connection is over, or its queue was full for as long as a
    /// command may take.
    pub(crate) async fn execute_fused(
        &self,
        commands: [(SubmissionQueueEntry, Data); 2],
    ) -> Result<[Outcome; 2], Error> {
        if self.depth() < 2 {
            let why = "a fused operation needs two entries";
            return Err(Error::InvalidOption { option: "queue-size", why });
        }
        let deadline = time::now() + self.0.command_timeout;
        while !self.has_room_for_two() {
            if time::now() >= deadline {
                return Err(Error::TooManyWaiters(WAITERS_MAX));
            }
            time::sleep(FULL_PAUSE).await;
        }
        let mut halves = commands.map(|command| Half::new(self, command));
        // The first poll submits one after the other.
        poll_fn(|cx| {
            let ended = halves.each_mut().map(|half| half.poll(cx));
            if ended == [true; 2] { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let [first, second] = halves.map(|half| half.ended);
        match (first, second) {
            (Some(first), Some(second)) => Ok([first?, second?]),
            _ => Err(self.reason().into()),
        }
    }

    /// Returns whether two commands would be submitted at once. A connection that is over takes
    /// none, which the commands report.
    fn has_room_for_two(&self) -> bool {
        let pair = self.0.pair.borrow();
        let is_free = pair.occupied() + 2 <= pair.depth() && self.0.queued.borrow().is_empty();
        is_free || pair.state() == QueuePairState::Closed
    }
}
