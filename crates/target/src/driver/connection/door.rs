//! The proof that a host owes on a connection, before it is a queue pair and when it likes later.
//!
//! Until the proof is there a connection stays what strangers may have: small buffers, a deadline, and its
//! place only for as long as no other stranger needs it. What Connect made is kept aside ([`Proving`]), and
//! every other command ends with Authentication Required. A later transaction that fails ends the
//! connection, and until then again nothing else is done for it.

use super::{Connection, LINGER, Role};
use crate::admission::Lane;
use crate::controller::transfer_bytes;
use crate::driver::cores::Kind;
use crate::driver::execute::Executor;
use crate::handshakes::Attempt;
use crate::queue_pair::Tag;
use crate::target::{Attached, Proof};
use auth::Progress;
use nvme::auth::{Authentication, is_authentication};
use nvme::opcode::FabricsType;
use nvme::{Status, SubmissionQueueEntry};
use ring::time::Instant;
use ring::{Buffer, Chunk, Sparse};

/// Most bytes of a message that a host makes room for.
const MESSAGE_ROOM_MAX: u32 = 8192;

/// Lines that strangers can cause.
static UNPROVED: Sparse = Sparse::new();
static UNENCRYPTED: Sparse = Sparse::new();

/// What a connection becomes when the host has proved itself.
pub(super) struct Proving {
    pub(super) attached: Attached,
    pub(super) lane: Lane,
}

/// The proofs of a connection.
pub(super) struct Door {
    controller: auth::Controller,
    /// The first attempt, until it has ended.
    attempt: Option<Attempt>,
    /// When a transaction that is under way, or one that failed, ends the connection.
    deadline: Option<Instant>,
}

impl Door {
    pub(super) fn new(proof: Proof, deadline: Instant) -> Self {
        let Proof { controller, attempt } = proof;
        Self { controller, attempt: Some(attempt), deadline: Some(deadline) }
    }

    /// When the connection has to end unless something comes.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether commands are executed: the host has proved itself, and has not failed since.
    fn is_open(&self) -> bool {
        let has_failed = matches!(self.controller.progress(), Progress::Failed(_));
        self.attempt.is_none() && !has_failed
    }
}

/// How a command of authentication ends.
enum Answer {
    Done(Status),
    Message(Buffer),
}

impl Connection {
    /// Whether a command is for the door: one of authentication where a proof is owed, or any while it
    /// is shut.
    pub(super) fn is_for_door(&self, sqe: &SubmissionQueueEntry) -> bool {
        self.door.as_ref().is_some_and(|door| is_authentication(sqe) || !door.is_open())
    }

    /// Executes a command that is for the door, whose data is here.
    pub(super) fn at_door(&mut self, tag: Tag, sqe: &SubmissionQueueEntry) {
        let Some(door) = &mut self.door else { return };
        match authenticate(&mut door.controller, sqe, self.pair.data(tag)) {
            Answer::Done(status) => self.pair.complete(tag, status, 0),
            Answer::Message(message) => self.pair.complete_read(tag, Chunk::from(message), 0),
        }
        match door.controller.progress() {
            Progress::Idle => {}
            Progress::Going => {
                let deadline = self.now + self.limits.handshake;
                door.deadline.get_or_insert(deadline);
            }
            Progress::Failed(reason) => {
                let soon = self.now + LINGER;
                door.deadline = Some(door.deadline.map_or(soon, |deadline| deadline.min(soon)));
                if let Some(suppressed) = UNPROVED.pass() {
                    tracing::warn!(peer = %self.stream.tcp().peer_addr(), %reason, suppressed,
                        "a host has not proved itself");
                }
            }
            Progress::Proved => {
                door.deadline = None;
                if let Some(attempt) = door.attempt.take() {
                    attempt.succeed(self.now);
                }
                self.let_in();
            }
        }
    }

    /// The host has proved itself: the connection becomes what it asked for, if it has not yet.
    fn let_in(&mut self) {
        match std::mem::replace(&mut self.role, Role::Unconnected) {
            Role::Proving(proving) => {
                let Proving { attached, lane } = *proving;
                if let Attached::Admin(controller) = &attached {
                    // The keep alive timer has run meanwhile.
                    controller.association().note_traffic();
                }
                self.become_queue_pair(attached, lane);
            }
            role @ (Role::Unconnected | Role::Admin(..) | Role::Io(_)) => self.role = role,
        }
    }

    /// Notes why nothing more can be received.
    pub(super) fn receive_failed(&self, error: &std::io::Error) -> &'static str {
        let Some(error) = error.get_ref().and_then(|it| it.downcast_ref::<tls::Error>()) else {
            return "receiving failed";
        };
        if let Some(suppressed) = UNENCRYPTED.pass() {
            tracing::warn!(peer = %self.stream.tcp().peer_addr(), %error, suppressed,
                "a connection fails under TLS");
        }
        "TLS failed"
    }

    /// The connection is a queue pair from now on.
    pub(super) fn become_queue_pair(&mut self, attached: Attached, lane: Lane) {
        self.role = match attached {
            Attached::Admin(controller) => {
                self.registration.settle(Kind::Admin);
                Role::Admin(controller, lane)
            }
            Attached::Io(queue) => {
                self.registration.settle(Kind::Io);
                let executor = Executor::new(queue, lane, &self.limits);
                self.lent = Some(executor.lend());
                Role::Io(Box::new(executor))
            }
        };
    }
}

/// Carries a message in or out.
fn authenticate(
    controller: &mut auth::Controller,
    sqe: &SubmissionQueueEntry,
    data: &[u8],
) -> Answer {
    let invalid = Answer::Done(Status::INVALID_FIELD.do_not_retry());
    let Ok(Authentication { bytes }) = Authentication::decode(sqe) else { return invalid };
    if sqe.fabrics_type() == FabricsType::AUTHENTICATION_SEND {
        if bytes == 0 || bytes as usize != data.len() {
            return invalid;
        }
        controller.receive(data);
        return Answer::Done(Status::SUCCESS);
    }
    let room = bytes as usize;
    if transfer_bytes(sqe) != Ok(bytes) || bytes == 0 || bytes > MESSAGE_ROOM_MAX {
        return invalid;
    }
    let message = match controller.next_message() {
        Some(message) if message.len() <= room => message,
        // What does not fit is not asked for again: the transaction does not go on.
        Some(_) => return invalid,
        None => return Answer::Done(Status::COMMAND_SEQUENCE_ERROR.do_not_retry()),
    };
    // Hosts expect as many bytes as they made room for.
    let mut buffer = Buffer::zeroed(room);
    buffer[..message.len()].copy_from_slice(&message);
    Answer::Message(buffer)
}
