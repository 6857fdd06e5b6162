//! One command until its end, over any number of connections.

use super::Namespace;
use super::paths::{Route, SETTLE_TIME, Trouble};
use crate::connection::Connection;
use crate::error::Error;
use crate::options::InterruptedWrites;
use crate::queue_pair::{Data, Outcome};
use metrics::{Family, Point};
use nvme::opcode::NvmOpcode;
use nvme::{Status, SubmissionQueueEntry};
use reactor::time::{self, Instant};
use std::time::Duration;

/// Maximum number of repetitions that the controller requests, as in Linux.
const RETRIES_MAX: u32 = 5;
/// Pause before a repetition if the controller states none.
const RETRY_DELAY: Duration = Duration::from_millis(10);

/// A command of a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) command: &'static str,
    pub(super) sqe: SubmissionQueueEntry,
    pub(super) start_lba: u64,
    pub(super) blocks: u64,
    /// Whether it changes the medium.
    pub(super) is_write: bool,
}

impl Request {
    /// Returns the command's entry in the metrics.
    fn point(&self) -> Point {
        let opcode = self.sqe.nvm_opcode();
        let name = match opcode {
            NvmOpcode::FLUSH => "flush",
            NvmOpcode::WRITE => "write",
            NvmOpcode::READ => "read",
            NvmOpcode::WRITE_ZEROES => "write_zeroes",
            NvmOpcode::DATASET_MANAGEMENT => "dataset_management",
            NvmOpcode::COMPARE => "compare",
            NvmOpcode::VERIFY => "verify",
            NvmOpcode::COPY => "copy",
            NvmOpcode::WRITE_UNCORRECTABLE => "write_uncorrectable",
            _ => "other",
        };
        Point::new(Family::Host, opcode.0, name)
    }
}

/// Whether a write was under way when its connection ended.
type IsInterruptedWrite = bool;

/// The step after an attempt.
enum Next {
    Done(Data),
    Fail(Error),
    /// Try again: after the given pause, or on the next link if there is none.
    Again(Data, Option<Duration>),
    /// Try again on another path. A write that may have been executed waits first.
    Elsewhere(Data, IsInterruptedWrite),
}

impl Namespace {
    /// Runs a command on queue pair number `lane` (modulo their number) of the live link.
    pub(super) async fn run(
        &self,
        request: &Request,
        data: Data,
        lane: usize,
    ) -> Result<Data, Error> {
        let mut counted = metrics::start(request.point(), u64::from(self.0.nsid.get()));
        let done = self.run_uncounted(request, data, lane).await;
        if done.is_ok() {
            counted.carried(request.blocks * u64::from(self.0.geometry.block_size));
        }
        counted.end(done.as_ref().map_or_else(Error::to_errno, |_| 0));
        done
    }

    async fn run_uncounted(
        &self,
        request: &Request,
        mut data: Data,
        lane: usize,
    ) -> Result<Data, Error> {
        let deadline = self.deadline();
        let mut retries = 0;
        let mut trouble = Trouble::default();
        loop {
            let route = self.route(deadline, &mut trouble).await?;
            let link = &route.link;
            let count = link.io.len();
            let Some(connection) = link.io.get(if count > 1 { lane % count } else { 0 }) else {
                return Err(Error::ControllerFailed("grants no I/O queue pair"));
            };
            let execute = connection.execute(request.sqe, data);
            let (outcome, returned) = match (deadline, retries) {
                // The connection's own deadline ends the first attempt. It is not later than this
                // one.
                (None, _) | (_, 0) => execute.await,
                (Some(deadline), _) => match time::timeout_at(deadline, execute).await {
                    Ok(ended) => ended,
                    Err(_) => return Err(self.too_late()),
                },
            };
            retries += 1;
            match self.judge(request, (connection, &route), outcome, returned, retries) {
                Next::Done(data) => return Ok(data),
                Next::Fail(error) => return Err(error),
                Next::Elsewhere(returned, is_interrupted_write) => {
                    data = returned;
                    if is_interrupted_write {
                        connection.ended().await;
                        time::sleep(SETTLE_TIME).await;
                    }
                    self.check_patience(&mut trouble)?;
                }
                Next::Again(returned, delay) => {
                    data = returned;
                    if delay.is_none() {
                        // The link is ending: without this wait the next attempt would use it
                        // again.
                        self.wait_for_end(connection, deadline).await?;
                    }
                    if let Some(delay) = delay {
                        time::sleep(delay).await;
                    }
                    if deadline.is_some_and(|deadline| time::now() >= deadline) {
                        return Err(self.too_late());
                    }
                }
            }
        }
    }

    pub(super) fn too_late(&self) -> Error {
        let total = self.0.controller.options().fast_io_fail_tmo;
        Error::DeadlineExceeded(total.unwrap_or_default())
    }

    /// Waits until the supervisor has seen the end of the connection.
    async fn wait_for_end(
        &self,
        connection: &Connection,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let wait = async {
            connection.ended().await;
            while let Ok(Some(link)) = self.0.controller.inner().live_link_now() {
                if link.io.iter().all(|other| other.end().is_none()) {
                    break;
                }
                // While the controller is being disconnected, this takes until its shutdown.
                self.0.controller.inner().link_changed.notified().await;
            }
        };
        match deadline {
            None => wait.await,
            Some(deadline) => {
                time::timeout_at(deadline, wait).await.map_err(|_| self.too_late())?;
            }
        }
        Ok(())
    }

    fn judge(
        &self,
        request: &Request,
        (connection, route): (&Connection, &Route<'_>),
        outcome: Result<Outcome, Error>,
        data: Data,
        retries: u32,
    ) -> Next {
        match outcome {
            Ok(Outcome::Completed(cqe))
                if cqe.status().is_success() || reactor::mutant!("refusal-ignored") =>
            {
                Next::Done(data)
            }
            Ok(Outcome::Completed(cqe)) => match route.path {
                Some(path) if may_go_elsewhere(cqe.status()) => {
                    path.note_status(&route.link, cqe.status());
                    Next::Elsewhere(data, false)
                }
                _ => self.judge_status(request, cqe.status(), data, retries),
            },
            Ok(Outcome::DataDigestMismatch) if retries <= RETRIES_MAX => {
                Next::Again(data, Some(RETRY_DELAY))
            }
            Ok(Outcome::DataDigestMismatch) => Next::Fail(Error::DataDigest),
            Ok(Outcome::DataUnderrun { received_bytes, expected_bytes }) => {
                Next::Fail(Error::DataUnderrun { received_bytes, expected_bytes })
            }
            Ok(Outcome::ConnectionLost) if reactor::mutant!("lost-write-done") => Next::Done(data),
            Ok(Outcome::ConnectionLost) => {
                let end = connection.reason();
                let resends =
                    self.0.controller.options().interrupted_writes == InterruptedWrites::Resend;
                // A copy may have overwritten its own source.
                let is_copy = request.sqe.nvm_opcode() == NvmOpcode::COPY;
                let may_resend = !request.is_write || (resends && !is_copy);
                if !may_resend {
                    return Next::Fail(Error::WriteInterrupted(end));
                }
                match route.path {
                    _ if !data.is_intact() => Next::Fail(Error::ConnectionLost(end)),
                    Some(path) => {
                        path.note_lost(&route.link);
                        Next::Elsewhere(data, request.is_write)
                    }
                    None => Next::Again(data, None),
                }
            }
            // The command was not sent.
            Err(error) if error.is_connection_error() => match route.path {
                Some(path) => {
                    path.note_lost(&route.link);
                    Next::Elsewhere(data, false)
                }
                None => Next::Again(data, None),
            },
            Err(error) => Next::Fail(error),
        }
    }

    fn judge_status(&self, request: &Request, status: Status, data: Data, retries: u32) -> Next {
        let is_transient = status.is_path_error()
            || status.is(Status::COMMAND_INTERRUPTED)
            || status.is(Status::NAMESPACE_NOT_READY)
            || status.is(Status::TRANSIENT_TRANSPORT_ERROR);
        if is_transient && !status.is_do_not_retry() && retries <= RETRIES_MAX {
            return Next::Again(data, Some(self.retry_delay(status)));
        }
        Next::Fail(Error::Io {
            command: request.command,
            nsid: self.0.nsid,
            start_lba: request.start_lba,
            blocks: request.blocks,
            status,
        })
    }

    /// Returns the pause that the controller requests with CRD.
    fn retry_delay(&self, status: Status) -> Duration {
        let Some(info) = self.0.controller.info() else { return RETRY_DELAY };
        let units = match status.retry_delay_index() {
            1 => info.identify.crdt1.get(),
            2 => info.identify.crdt2.get(),
            3 => info.identify.crdt3.get(),
            _ => 0,
        };
        RETRY_DELAY.max(Duration::from_millis(u64::from(units) * 100))
    }
}

/// Returns the pause before a fused pair is sent again, if it was refused because of its path or for
/// a moment: then nothing of it was executed.
pub(super) fn retry_elsewhere(
    route: &Route<'_>,
    statuses: [Status; 2],
    attempt: u32,
) -> Option<Duration> {
    let is_transient = |status: &Status| {
        !status.is_do_not_retry()
            && (status.is_path_error() || status.is(Status::TRANSIENT_TRANSPORT_ERROR))
    };
    let status = statuses.into_iter().find(is_transient)?;
    if let Some(path) = route.path
        && may_go_elsewhere(status)
    {
        path.note_status(&route.link, status);
        return Some(Duration::ZERO);
    }
    (attempt < RETRIES_MAX).then_some(RETRY_DELAY)
}

/// Returns whether another path may execute a command with this status.
fn may_go_elsewhere(status: Status) -> bool {
    status.is_path_error() && !status.is_do_not_retry()
}
