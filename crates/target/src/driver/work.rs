//! Commands that devices work on, and their outcomes.

use super::io_command::IoCommand;
use crate::admission::{Moment, Permit};
use crate::counts::Tally;
use crate::exclusion::Counted;
use crate::queue_pair::Tag;
use crate::reservation::Ticket;
use block::{Access, IoFuture};
use nvme::Status;
use reactor::Chunk;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The work of a device for one command.
pub(super) enum Work {
    Read(IoFuture<Chunk>),
    Write(IoFuture<()>),
    Steps(Pin<Box<dyn Future<Output = Result<(), Status>>>>),
    /// Compare and Write.
    Fused(Pin<Box<dyn Future<Output = Result<(), FusedFault>>>>),
}

/// The failure of a fused pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FusedFault {
    /// The comparison failed, or did not match: nothing was written.
    Compare(Status),
    /// The comparison matched, and the write failed.
    Write(Status),
}

pub(super) struct Pending {
    pub(super) tag: Tag,
    /// The first command of a fused pair, whose second is `tag`.
    pub(super) first: Option<Tag>,
    pub(super) permit: Permit,
    /// Index of the namespace, for its tally.
    pub(super) open: usize,
    pub(super) command: IoCommand,
    pub(super) work: Work,
    /// Counts a write in, so that Compare and Write waits for it.
    pub(super) counted: Option<Counted>,
    /// The start of the connection's turn in which the command began.
    pub(super) started: Moment,
    /// Tickets of the Preempt and Abort commands of other hosts that wait for this command's end.
    pub(super) tickets: Vec<Rc<Ticket>>,
}

/// The outcome of a device's work.
pub(super) enum Outcome {
    Data(Chunk),
    Done,
    Failed(Status),
    /// The second command of a fused pair failed; the first one did not.
    FailedSecond(Status),
}

impl Work {
    /// Returns work that has failed already.
    pub(super) fn failed(status: Status) -> Self {
        Self::Steps(Box::pin(async move { Err(status.do_not_retry()) }))
    }

    /// Waits for the end of work that returns no data.
    pub(super) async fn end(mut self) -> Result<(), Status> {
        match poll_fn(|cx| self.poll(cx)).await {
            Outcome::Data(_) | Outcome::Done => Ok(()),
            Outcome::Failed(status) | Outcome::FailedSecond(status) => Err(status),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        match self {
            Self::Read(future) => Pin::new(future).poll(cx).map(|result| match result {
                Ok(chunk) => Outcome::Data(chunk),
                Err(error) => Outcome::Failed(status_of(&error)),
            }),
            Self::Write(future) => Pin::new(future).poll(cx).map(|result| match result {
                Ok(()) => Outcome::Done,
                Err(error) => Outcome::Failed(status_of(&error)),
            }),
            Self::Steps(future) => future.as_mut().poll(cx).map(|result| match result {
                Ok(()) => Outcome::Done,
                Err(status) => Outcome::Failed(status),
            }),
            Self::Fused(future) => future.as_mut().poll(cx).map(|result| match result {
                Ok(()) => Outcome::Done,
                Err(FusedFault::Compare(status)) => Outcome::Failed(status),
                Err(FusedFault::Write(status)) => Outcome::FailedSecond(status),
            }),
        }
    }
}

impl Pending {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        self.work.poll(cx)
    }
}

impl Tally {
    pub(super) fn note(&mut self, command: &IoCommand, outcome: &Outcome) {
        self.commands += 1;
        let is_success = matches!(outcome, Outcome::Data(_) | Outcome::Done);
        match command {
            IoCommand::Read(extent) | IoCommand::Compare(extent) => {
                self.read_commands += 1;
                self.read_bytes += if is_success { extent.bytes } else { 0 };
            }
            IoCommand::Write { extent, .. } => {
                self.write_commands += 1;
                self.written_bytes += if is_success { extent.bytes } else { 0 };
            }
            IoCommand::CompareAndWrite { extent, .. } => {
                self.commands += 1;
                self.read_commands += 1;
                self.write_commands += 1;
                self.read_bytes +=
                    if matches!(outcome, Outcome::Failed(_)) { 0 } else { extent.bytes };
                self.written_bytes += if is_success { extent.bytes } else { 0 };
            }
            IoCommand::Verify(_) => self.read_commands += 1,
            IoCommand::WriteZeroes { .. }
            | IoCommand::Copy { .. }
            | IoCommand::WriteUncorrectable(_) => self.write_commands += 1,
            IoCommand::Manage { .. }
            | IoCommand::Flush
            | IoCommand::Reserve(_)
            | IoCommand::Report { .. } => {}
        }
        if let Outcome::Failed(status) | Outcome::FailedSecond(status) = outcome
            && status.code_type() == nvme::status::StatusCodeType::MediaAndDataIntegrity
            && !status.is(Status::COMPARE_FAILURE)
        {
            self.media_errors += 1;
        }
    }
}

/// Returns the status that reports a device's error to the host. The host must not retry failed
/// writes and flushes: a second flush may succeed although the data is lost.
pub(crate) fn status_of(error: &block::Error) -> Status {
    /// `ENOSPC`.
    const NO_SPACE: i32 = 28;
    match error {
        block::Error::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE.do_not_retry(),
        block::Error::Unaligned { .. } => Status::INVALID_FIELD.do_not_retry(),
        _ if error.to_errno() == NO_SPACE => Status::CAPACITY_EXCEEDED.do_not_retry(),
        block::Error::ReadOnly { .. } => Status::NAMESPACE_WRITE_PROTECTED.do_not_retry(),
        block::Error::Io { access, .. } | block::Error::Short { access, .. } => match access {
            Access::Read => Status::UNRECOVERED_READ_ERROR.do_not_retry(),
            _ => Status::WRITE_FAULT.do_not_retry(),
        },
        _ => Status::INTERNAL_ERROR.do_not_retry(),
    }
}
