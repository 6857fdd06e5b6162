//! A controller: the counterpart of an admin queue pair, as a state machine without I/O.
//!
//! The [`Controller`] belongs to its admin queue pair and lives on that core, so it needs no lock.
//! The small [`Association`] holds the state that the I/O queue pairs (which end with the
//! controller) and the registry use too.

mod association;
mod event;
mod feature;
mod health;
mod identify;
mod log;
mod property;
mod reservation;

pub use association::Association;
pub(crate) use association::ERROR_ENTRIES_MAX;
pub use event::EventKind;

use crate::limits::Limits;
use crate::queue_pair::Tag;
use crate::subsystem::Subsystem;
use crate::target::{Link, Target};
use event::Events;
use health::Thresholds;
use nvme::command::Fuse;
use nvme::opcode::{AdminOpcode, FabricsType};
use nvme::property::{Capabilities, Configuration, ControllerStatus};
use nvme::sgl::Sgl;
use nvme::{ControllerId, HostId, Nqn, Status, SubmissionQueueEntry};
use reactor::Buffer;
use reactor::time::Instant;
use reservation::Later;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The end of an admin command.
#[derive(Debug)]
pub enum Reply {
    /// Ends now, with a status and a result, and with data for the host if it succeeded and has
    /// any.
    Done(Status, u64, Option<Buffer>),
    /// Ends later: an Asynchronous Event Request, which the controller keeps, or a command that
    /// needs I/O.
    Held,
}

impl Reply {
    fn result(result: u64) -> Self {
        Self::Done(Status::SUCCESS, result, None)
    }

    fn data(data: Buffer) -> Self {
        Self::Done(Status::SUCCESS, 0, Some(data))
    }
}

impl From<Status> for Reply {
    fn from(status: Status) -> Self {
        Self::Done(status, 0, None)
    }
}

/// A held command that ends now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Identifies the command.
    pub tag: Tag,
    /// Its status.
    pub status: Status,
    /// Its result.
    pub result: u64,
}

/// The counterpart of an admin queue pair.
#[derive(Debug)]
pub struct Controller {
    target: Arc<Target>,
    association: Arc<Association>,
    configuration: Configuration,
    status: ControllerStatus,
    keep_alive: Duration,
    /// The time at which the controller ends unless a command arrives; [`None`] without keep alive.
    deadline: Option<Instant>,
    events: Events,
    thresholds: Thresholds,
    /// Commands that needed I/O and have ended.
    later: Later,
    /// Wall-clock time that the host set, minus our clock's, in milliseconds.
    timestamp_offset_ms: i64,
    /// Whether the host set the time.
    is_timestamp_set: bool,
    /// Random number of this instance, for Identify.
    instance: u64,
}

impl Controller {
    pub(crate) fn new(
        target: &Arc<Target>,
        id: ControllerId,
        (host, host_name): (HostId, Option<Nqn>),
        subsystem: &Arc<Subsystem>,
        link: &Link<'_>,
    ) -> Self {
        let association = Arc::new(Association {
            id,
            host,
            host_name,
            subsystem: Arc::clone(subsystem),
            local_address: link.local_address,
            peer_address: link.peer_address,
            transport: link.transport,
            since: reactor::time::now(),
            is_ready: AtomicBool::new(false),
            io_queues_granted: AtomicU16::new(0),
            had_traffic: AtomicBool::new(false),
            admin: Arc::clone(link.signal),
            io_queues: Mutex::default(),
            errors: Mutex::default(),
            notices: Mutex::default(),
            waiters: Mutex::default(),
        });
        let events = Events::new(&association, target);
        Self {
            target: Arc::clone(target),
            association,
            configuration: Configuration::default(),
            status: ControllerStatus::default(),
            keep_alive: Duration::ZERO,
            deadline: None,
            events,
            thresholds: Thresholds::default(),
            later: Later::default(),
            timestamp_offset_ms: 0,
            is_timestamp_set: false,
            instance: reactor::random::u64(),
        }
    }

    /// Returns the state that all its queue pairs share.
    pub fn association(&self) -> &Arc<Association> {
        &self.association
    }

    /// Returns the time at which [`Self::check_keep_alive`] has to be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns whether the host may continue: false if its keep alive timer has expired.
    pub fn check_keep_alive(&mut self, now: Instant) -> bool {
        let Some(deadline) = self.deadline else { return true };
        if now < deadline {
            return true;
        }
        // Traffic based keep alive (base 3.9.4.2): any command since counts.
        if !self.association.had_traffic.swap(false, Ordering::Relaxed) {
            return false;
        }
        self.restart_keep_alive(now);
        true
    }

    /// Sets the keep alive timeout; zero turns the timer off.
    pub(crate) fn set_keep_alive(&mut self, timeout_ms: u32, now: Instant) -> Result<(), Status> {
        let timeout = Duration::from_millis(u64::from(timeout_ms));
        if timeout > self.limits().keep_alive_max {
            return Err(Status::KEEP_ALIVE_INVALID);
        }
        // Rounded up to a multiple of KAS, which is 100 ms (base 5.1.25.1.8).
        self.keep_alive = Duration::from_millis(u64::from(timeout_ms.next_multiple_of(100)));
        self.restart_keep_alive(now);
        Ok(())
    }

    fn restart_keep_alive(&mut self, now: Instant) {
        let is_idle_bounded = self.is_discovery() && self.keep_alive.is_zero();
        let timeout = if is_idle_bounded { self.limits().discovery_idle } else { self.keep_alive };
        self.deadline = (!timeout.is_zero()).then(|| now + timeout);
    }

    fn is_discovery(&self) -> bool {
        self.association.subsystem.is_discovery()
    }

    fn limits(&self) -> &Limits {
        self.target.limits()
    }

    /// Executes a command of the admin queue pair. `data` is the data that arrived with it.
    pub fn execute(
        &mut self,
        tag: Tag,
        sqe: &SubmissionQueueEntry,
        data: &[u8],
        now: Instant,
    ) -> Reply {
        self.association.note_traffic();
        if self.is_discovery() && self.keep_alive.is_zero() {
            self.restart_keep_alive(now);
        }
        let reply = self.dispatch(tag, sqe, data, now);
        if let Reply::Done(status, ..) = &reply
            && !status.is_success()
        {
            self.association.note_error(0, sqe, *status, 0);
        }
        reply
    }

    fn dispatch(
        &mut self,
        tag: Tag,
        sqe: &SubmissionQueueEntry,
        data: &[u8],
        now: Instant,
    ) -> Reply {
        if sqe.is_fabrics() {
            return match check_form(sqe) {
                Ok(()) => self.fabrics(sqe),
                Err(status) => status.into(),
            };
        }
        if let Err(status) = self.check_admin(sqe) {
            return status.into();
        }
        match sqe.admin_opcode() {
            AdminOpcode::IDENTIFY => self.identify(sqe),
            AdminOpcode::GET_LOG_PAGE => self.get_log_page(sqe),
            AdminOpcode::GET_FEATURES => self.get_features(sqe),
            AdminOpcode::SET_FEATURES => self.set_features(tag, sqe, data, now),
            AdminOpcode::KEEP_ALIVE => {
                self.restart_keep_alive(now);
                Reply::result(0)
            }
            AdminOpcode::ASYNC_EVENT_REQUEST => self.hold_event_request(tag),
            _ => Status::INVALID_OPCODE.do_not_retry().into(),
        }
    }

    /// Checks that the controller accepts commands other than Fabrics commands: it is enabled and
    /// not shut down. After a shutdown only a reset makes it accept commands again (base 3.6.1).
    fn check_admin(&self, sqe: &SubmissionQueueEntry) -> Result<(), Status> {
        check_form(sqe)?;
        if self.association.is_ready.load(Ordering::SeqCst) {
            Ok(())
        } else {
            Err(Status::COMMAND_SEQUENCE_ERROR.do_not_retry())
        }
    }

    fn fabrics(&mut self, sqe: &SubmissionQueueEntry) -> Reply {
        match sqe.fabrics_type() {
            FabricsType::PROPERTY_GET => self.property_get(sqe),
            FabricsType::PROPERTY_SET => self.property_set(sqe),
            // A second Connect on one queue pair.
            FabricsType::CONNECT => Status::COMMAND_SEQUENCE_ERROR.do_not_retry().into(),
            _ => Status::INVALID_OPCODE.do_not_retry().into(),
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities(0)
            .with_mqes(u64::from(self.limits().queue_entries_max) - 1)
            .with_cqr(1)
            .with_to(20)
            .with_css(1)
            .with_crms(1)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.association.is_ready.store(false, Ordering::SeqCst);
        self.association.drop_io_queues();
        self.target.forget(&self.association);
    }
}

/// Checks the conditions for all commands: no fused operations, and data by an SGL.
fn check_form(sqe: &SubmissionQueueEntry) -> Result<(), Status> {
    if sqe.fuse() != Fuse::None || !sqe.has_sgl() {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    Ok(())
}

/// Returns the number of bytes that a command's data pointer names.
pub(crate) fn transfer_bytes(sqe: &SubmissionQueueEntry) -> Result<u32, Status> {
    match sqe.sgl1.decode() {
        Ok(sgl) => Ok(sgl.length_bytes()),
        Err(_) => Err(Status::SGL_TYPE_INVALID.do_not_retry()),
    }
}

/// Checks in-capsule data. `data_bytes` follow the descriptor's offset and must end with the
/// descriptor's range.
pub(crate) fn check_in_capsule(
    sqe: &SubmissionQueueEntry,
    data_bytes: usize,
) -> Result<(), Status> {
    match sqe.sgl1.decode() {
        Ok(Sgl::InCapsule { offset_bytes, length_bytes })
            if length_bytes as usize > data_bytes && offset_bytes != 0 =>
        {
            Err(Status::SGL_OFFSET_INVALID.do_not_retry())
        }
        Ok(Sgl::InCapsule { length_bytes, .. }) if length_bytes as usize != data_bytes => {
            Err(Status::SGL_DATA_LENGTH_INVALID.do_not_retry())
        }
        Ok(Sgl::Transport { .. } | Sgl::None) if data_bytes != 0 => {
            Err(Status::SGL_DATA_LENGTH_INVALID.do_not_retry())
        }
        Ok(_) => Ok(()),
        Err(_) => Err(Status::SGL_TYPE_INVALID.do_not_retry()),
    }
}
