//! The proof that a host owes on a connection, before the connection is a queue pair and again at
//! any later time.
//!
//! Before the proof a connection has only the means of a stranger: small buffers, a deadline, and a
//! place that another stranger may take. The result of Connect is kept aside ([`Proving`]), and
//! every other command ends with Authentication Required. A later transaction that fails ends the
//! connection, and until its end the target executes nothing else for it.
//!
//! Checking a message takes up to two exponentiations of thousands of bits, so it runs beside the
//! reactor.

use super::{Connection, LINGER, Role};
use crate::admission::Lane;
use crate::controller::transfer_bytes;
use crate::driver::cores::Kind;
use crate::driver::execute::Executor;
use crate::handshakes::Attempt;
use crate::queue_pair::Tag;
use crate::target::{Attached, Proof};
use auth::Progress;
use nvme::auth::{Authentication, Reason, is_authentication};
use nvme::opcode::FabricsType;
use nvme::{Status, SubmissionQueueEntry};
use reactor::thread::JoinHandle;
use reactor::time::Instant;
use reactor::{Buffer, Chunk, Sparse};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Largest buffer in bytes that a host may offer for a message.
const MESSAGE_ROOM_MAX: u32 = 8192;

/// Limits log lines that strangers can cause.
static UNPROVED: Sparse = Sparse::new();
static UNENCRYPTED: Sparse = Sparse::new();
static NO_THREAD: Sparse = Sparse::new();

/// The role that a connection gets after the host has proved itself.
pub(super) struct Proving {
    pub(super) attached: Attached,
    pub(super) lane: Lane,
}

/// The proofs of a connection.
pub(super) struct Door {
    controller: Side,
    /// The first attempt, until it has ended.
    attempt: Option<Attempt>,
    /// The time at which a transaction that is under way, or one that failed, ends the connection.
    deadline: Option<Instant>,
}

impl Door {
    pub(super) fn new(proof: Proof, deadline: Instant) -> Self {
        let Proof { controller, attempt, .. } = proof;
        Self {
            controller: Side::Here(controller),
            attempt: Some(attempt),
            deadline: Some(deadline),
        }
    }

    /// Returns the time at which the connection has to end unless the proof makes progress.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns whether commands are executed: the host has proved itself, and no later proof has
    /// failed.
    fn is_open(&self) -> bool {
        self.attempt.is_none() && !self.controller.has_failed()
    }
}

/// The controller's side of the proofs.
enum Side {
    Here(auth::Controller),
    /// Checks a message beside the reactor. The tag is that of the command with the message.
    Judging(Tag, JoinHandle<auth::Controller>),
    /// The check of a message has failed, and the state is lost.
    Lost,
}

impl Side {
    fn has_failed(&self) -> bool {
        match self {
            Self::Here(controller) => matches!(controller.progress(), Progress::Failed(_)),
            // A failed transaction checks no more messages.
            Self::Judging(..) => false,
            Self::Lost => true,
        }
    }
}

/// The end of an authentication command.
enum Answer {
    Done(Status),
    Message(Buffer),
    /// Ends when the message has been checked.
    Later,
}

impl Connection {
    /// Returns whether a command is for the door: an authentication command if a proof is due, or
    /// any command before the proof.
    pub(super) fn is_for_door(&self, sqe: &SubmissionQueueEntry) -> bool {
        self.door.as_ref().is_some_and(|door| is_authentication(sqe) || !door.is_open())
    }

    /// Returns whether commands that have waited may be executed.
    pub(super) fn may_go_on(&self) -> bool {
        self.door.as_ref().is_none_or(|door| door.is_open())
    }

    /// Executes a command for the door whose data has arrived.
    pub(super) fn at_door(&mut self, tag: Tag, sqe: &SubmissionQueueEntry) {
        let Some(door) = &mut self.door else { return };
        match door.authenticate(tag, sqe, self.pair.data(tag)) {
            Answer::Done(status) => self.pair.complete(tag, status, 0),
            Answer::Message(message) => self.pair.complete_read(tag, Chunk::from(message), 0),
            Answer::Later => return,
        }
        self.look_at_door();
    }

    /// Polls the check of a message. Returns true if its command has been answered.
    pub(super) fn poll_door(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(door) = &mut self.door else { return false };
        let Side::Judging(tag, judging) = &mut door.controller else { return false };
        let Poll::Ready(judged) = Pin::new(judging).poll(cx) else { return false };
        let tag = *tag;
        let status = if let Ok(controller) = judged {
            door.controller = Side::Here(controller);
            Status::SUCCESS
        } else {
            door.controller = Side::Lost;
            Status::INTERNAL_ERROR
        };
        self.pair.complete(tag, status, 0);
        self.look_at_door();
        true
    }

    /// Acts on the state of the proof.
    fn look_at_door(&mut self) {
        let Some(door) = &mut self.door else { return };
        let progress = match &door.controller {
            Side::Here(controller) => controller.progress(),
            Side::Judging(..) => return,
            Side::Lost => Progress::Failed(Reason::FAILED),
        };
        match progress {
            Progress::Idle => {}
            Progress::Going => {
                let deadline = self.now + self.limits.handshake;
                door.deadline.get_or_insert(deadline);
            }
            Progress::Failed(reason) => {
                let soon = self.now + LINGER;
                door.deadline = Some(door.deadline.map_or(soon, |deadline| deadline.min(soon)));
                if let Some(suppressed) = UNPROVED.pass() {
                    tracing::warn!(peer = %self.wire.peer_addr(), %reason, suppressed,
                        "a host has not proved itself");
                }
            }
            Progress::Proved => {
                door.deadline = None;
                if let Side::Here(controller) = &mut door.controller
                    && let Some(key) = controller.take_generated()
                {
                    self.target.note_generated(controller, &key, self.now);
                }
                if let Some(attempt) = door.attempt.take() {
                    attempt.succeed(self.now);
                }
                self.let_in();
            }
        }
    }

    /// Gives the connection the role that it requested, after the host has proved itself.
    fn let_in(&mut self) {
        match std::mem::replace(&mut self.role, Role::Unconnected) {
            Role::Proving(proving) => {
                let Proving { attached, lane } = *proving;
                if let Attached::Admin(controller) = &attached {
                    // The keep alive timer has run during the proof.
                    controller.association().note_traffic();
                }
                self.become_queue_pair(attached, lane);
            }
            role @ (Role::Unconnected | Role::Admin(..) | Role::Io(_)) => self.role = role,
        }
    }

    /// Returns the reason for a failed receive, and logs failures of TLS.
    pub(super) fn receive_failed(&self, error: &std::io::Error) -> &'static str {
        let Some(error) = error.get_ref().and_then(|it| it.downcast_ref::<tls::Error>()) else {
            return "receiving failed";
        };
        if let Some(suppressed) = UNENCRYPTED.pass() {
            tracing::warn!(peer = %self.wire.peer_addr(), %error, suppressed,
                "a connection fails under TLS");
        }
        "TLS failed"
    }

    /// Makes the connection a queue pair.
    pub(super) fn become_queue_pair(&mut self, attached: Attached, lane: Lane) {
        self.open_wire();
        self.role = match attached {
            Attached::Admin(controller) => {
                self.registration.settle(Kind::Admin);
                Role::Admin(controller, lane)
            }
            Attached::Io(queue) => {
                self.registration.settle(Kind::Io);
                let executor = Executor::new(&self.target, queue, lane);
                self.lent = Some(executor.lend());
                Role::Io(Box::new(executor))
            }
        };
    }
}

impl Door {
    /// Executes an authentication command: receives a message or sends one.
    fn authenticate(&mut self, tag: Tag, sqe: &SubmissionQueueEntry, data: &[u8]) -> Answer {
        let invalid = Answer::Done(Status::INVALID_FIELD.do_not_retry());
        let out_of_turn = Answer::Done(Status::COMMAND_SEQUENCE_ERROR.do_not_retry());
        let Ok(Authentication { bytes }) = Authentication::decode(sqe) else { return invalid };
        if sqe.fabrics_type() == FabricsType::AUTHENTICATION_SEND {
            if bytes == 0 || bytes as usize != data.len() {
                return invalid;
            }
            return self.judge(tag, data).unwrap_or(out_of_turn);
        }
        let room = bytes as usize;
        if transfer_bytes(sqe) != Ok(bytes) || bytes == 0 || bytes > MESSAGE_ROOM_MAX {
            return invalid;
        }
        let Side::Here(controller) = &mut self.controller else { return out_of_turn };
        let message = match controller.next_message() {
            Some(message) if message.len() <= room => message,
            // A message that does not fit is not repeated: the transaction does not continue.
            Some(_) => return invalid,
            None => return out_of_turn,
        };
        // Hosts expect as many bytes as their buffer has.
        let mut buffer = Buffer::zeroed(room);
        buffer[..message.len()].copy_from_slice(&message);
        Answer::Message(buffer)
    }

    /// Starts the check of a message; [`None`] while another check runs.
    fn judge(&mut self, tag: Tag, message: &[u8]) -> Option<Answer> {
        let mut controller = match std::mem::replace(&mut self.controller, Side::Lost) {
            Side::Here(controller) => controller,
            other => {
                self.controller = other;
                return None;
            }
        };
        let message = message.to_vec();
        let judging = reactor::thread::compute(move || {
            controller.receive(&message);
            controller
        });
        match judging {
            Ok(judging) => {
                self.controller = Side::Judging(tag, judging);
                Some(Answer::Later)
            }
            Err(error) => {
                if let Some(suppressed) = NO_THREAD.pass() {
                    tracing::error!(%error, suppressed, "a host's proof cannot be checked");
                }
                Some(Answer::Done(Status::INTERNAL_ERROR))
            }
        }
    }
}
