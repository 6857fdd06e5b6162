//! Commands that devices work on, and their outcomes.

use super::io_command::{Extent, IoCommand};
use crate::admission::{Moment, Permit};
use crate::counts::Tally;
use crate::queue_pair::Tag;
use crate::reservation::Ticket;
use block::{Access, Device, IoFuture};
use nvme::Status;
use reactor::{Buffer, Chunk};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

/// The work of a device for one command.
pub(super) enum Work {
    Read(IoFuture<Chunk>),
    Write(IoFuture<()>),
    Steps(Pin<Box<dyn Future<Output = Result<(), Status>>>>),
}

pub(super) struct Pending {
    pub(super) tag: Tag,
    pub(super) permit: Permit,
    /// Index of the namespace, for its tally.
    pub(super) open: usize,
    pub(super) command: IoCommand,
    pub(super) work: Work,
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
}

impl Pending {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.work {
            Work::Read(future) => Pin::new(future).poll(cx).map(|result| match result {
                Ok(chunk) => Outcome::Data(chunk),
                Err(error) => Outcome::Failed(status_of(&error)),
            }),
            Work::Write(future) => Pin::new(future).poll(cx).map(|result| match result {
                Ok(()) => Outcome::Done,
                Err(error) => Outcome::Failed(status_of(&error)),
            }),
            Work::Steps(future) => future.as_mut().poll(cx).map(|result| match result {
                Ok(()) => Outcome::Done,
                Err(status) => Outcome::Failed(status),
            }),
        }
    }
}

impl Tally {
    pub(super) fn note(&mut self, command: &IoCommand, outcome: &Outcome) {
        self.commands += 1;
        let is_success = !matches!(outcome, Outcome::Failed(_));
        match command {
            IoCommand::Read(extent) | IoCommand::Compare(extent) => {
                self.read_commands += 1;
                self.read_bytes += if is_success { extent.bytes } else { 0 };
            }
            IoCommand::Write { extent, .. } => {
                self.write_commands += 1;
                self.written_bytes += if is_success { extent.bytes } else { 0 };
            }
            IoCommand::WriteZeroes { .. } => self.write_commands += 1,
            IoCommand::Manage { .. }
            | IoCommand::Flush
            | IoCommand::Reserve(_)
            | IoCommand::Report { .. } => {}
        }
        if let Outcome::Failed(status) = outcome
            && status.code_type() == nvme::status::StatusCodeType::MediaAndDataIntegrity
            && !status.is(Status::COMPARE_FAILURE)
        {
            self.media_errors += 1;
        }
    }
}

pub(super) fn then_flush(write: IoFuture<()>, device: &Rc<dyn Device>) -> Work {
    let device = Rc::clone(device);
    Work::Write(IoFuture::boxed(async move {
        write.await?;
        device.flush().await
    }))
}

pub(super) fn compare(device: &Rc<dyn Device>, extent: Extent, data: Option<Buffer>) -> Work {
    let read = device.read(extent.offset, extent.bytes as usize);
    Work::Steps(Box::pin(async move {
        let stored = read.await.map_err(|error| status_of(&error))?;
        if *stored.to_bytes() == *data.as_deref().unwrap_or_default() {
            Ok(())
        } else {
            Err(Status::COMPARE_FAILURE.do_not_retry())
        }
    }))
}

/// A command that changes ranges without moving data.
#[derive(Clone, Copy, Debug)]
pub(super) enum Long {
    Discard,
    Zero,
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
