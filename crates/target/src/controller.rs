//! A controller: what an admin queue pair talks to, as a state machine without I/O.
//!
//! The [`Controller`] belongs to its admin queue pair and lives on that core, so that nothing of it
//! needs a lock. What others need of it (the I/O queue pairs, that have to end with it, and the
//! registry) is in the small [`Association`] that all of them share.

mod event;
mod feature;
mod health;
mod identify;
mod log;
mod property;
mod reservation;

pub use event::EventKind;

use crate::limits::Limits;
use crate::namespace::Namespace;
use crate::queue_pair::Tag;
use crate::reservation::NoticeLog;
use crate::signal::{self, Signal};
use crate::subsystem::Subsystem;
use crate::target::{ConnectFailure, Link, Target, Transport};
use event::Events;
use health::Thresholds;
use nvme::fabrics::ConnectInvalid;
use nvme::log_page::ErrorEntry;
use nvme::opcode::{AdminOpcode, FabricsType};
use nvme::property::{Capabilities, Configuration, ControllerStatus};
use nvme::sgl::Sgl;
use nvme::{ControllerId, HostId, Nqn, Nsid, Status, SubmissionQueueEntry, U16, U32, U64};
use reactor::Buffer;
use reactor::time::Instant;
use reservation::Later;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

/// Entries of the error information log page.
pub(crate) const ERROR_ENTRIES_MAX: usize = 64;

/// What all queue pairs of a controller share.
#[derive(Debug)]
pub struct Association {
    id: ControllerId,
    host: HostId,
    host_name: Option<Nqn>,
    subsystem: Arc<Subsystem>,
    /// The address at which the host reached the target.
    local_address: SocketAddr,
    /// The address from which it did.
    peer_address: SocketAddr,
    /// What carries its queue pairs.
    transport: Transport,
    /// When it connected.
    since: Instant,
    /// Enabled and not shut down: I/O queue pairs may be connected.
    is_ready: AtomicBool,
    /// I/O queue pairs that the host was granted; 0 until it asked.
    io_queues_granted: AtomicU16,
    /// A command came since the keep alive timer was last looked at.
    had_traffic: AtomicBool,
    admin: Arc<Signal>,
    io_queues: Mutex<BTreeMap<u16, Arc<Signal>>>,
    errors: Mutex<Errors>,
    /// Reservation notifications for the host.
    notices: Mutex<NoticeLog>,
    /// Tasks that wait until no queue pair is left.
    waiters: Mutex<Vec<Waker>>,
}

#[derive(Debug, Default)]
struct Errors {
    count: u64,
    entries: VecDeque<ErrorEntry>,
}

impl Association {
    /// CNTLID.
    pub fn id(&self) -> ControllerId {
        self.id
    }

    /// The host's identifier.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// The host's name, if it gave one.
    pub fn host_name(&self) -> Option<&Nqn> {
        self.host_name.as_ref()
    }

    /// The address at which the host reached the target.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// The address from which the host's admin queue pair came.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    /// What carries its queue pairs.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// When the host connected.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// The subsystem that the controller belongs to.
    pub fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// Queue identifiers of the connected I/O queue pairs.
    pub fn io_queues(&self) -> Vec<u16> {
        self.io_queue_map().keys().copied().collect()
    }

    /// Adds an I/O queue pair.
    ///
    /// # Errors
    /// The status for its Connect.
    pub(crate) fn attach(&self, qid: u16, signal: &Arc<Signal>) -> Result<(), ConnectFailure> {
        let mut queues = self.io_queue_map();
        // Looked at under the lock: a reset first clears the flag, then ends the queues in the map.
        let is_open = self.is_ready.load(Ordering::SeqCst) && !has_ending(&queues);
        if !is_open || queues.contains_key(&qid) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.into());
        }
        let granted = self.io_queues_granted.load(Ordering::SeqCst);
        if granted != 0 && qid > granted {
            return Err(ConnectInvalid::QID.into());
        }
        queues.insert(qid, Arc::clone(signal));
        Ok(())
    }

    /// Removes an I/O queue pair that has ended.
    pub(crate) fn detach(&self, qid: u16, signal: &Arc<Signal>) {
        let mut queues = self.io_queue_map();
        if queues.get(&qid).is_some_and(|known| Arc::ptr_eq(known, signal)) {
            queues.remove(&qid);
        }
    }

    /// Whether I/O queue pairs that should end have not ended yet.
    pub(crate) fn has_ending_io_queues(&self) -> bool {
        has_ending(&self.io_queue_map())
    }

    /// Has all I/O queue pairs end.
    pub(crate) fn drop_io_queues(&self) {
        for queue in self.io_queue_map().values() {
            queue.raise(signal::CLOSE);
        }
    }

    /// Has all queue pairs end.
    pub(crate) fn drop_all(&self) {
        self.admin.raise(signal::CLOSE);
        self.drop_io_queues();
    }

    /// Makes the controller look for changes that it should report to the host, and its I/O queue pairs follow changes
    /// of the namespaces: an idle one would hold a removed namespace's device until its host's next command.
    pub(crate) fn look_for_events(&self) {
        self.admin.raise(signal::EVENT);
        for queue in self.io_queue_map().values() {
            queue.raise(signal::EVENT);
        }
    }

    /// Wakes a task when no queue pair holds this any more: nothing is in flight then.
    pub(crate) fn wake_at_end(&self, waker: &Waker) {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiters.iter().any(|waiter| waiter.will_wake(waker)) {
            waiters.push(waker.clone());
        }
    }

    /// The namespaces that the host sees.
    pub(crate) fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.subsystem.namespaces_for(self.host_name())
    }

    /// A namespace, if the host sees it.
    pub(crate) fn namespace(&self, nsid: Nsid) -> Option<Arc<Namespace>> {
        self.subsystem.namespace(nsid).filter(|it| it.is_for(self.host_name()))
    }

    /// Notes that a command came (traffic based keep alive).
    pub(crate) fn note_traffic(&self) {
        if !self.had_traffic.load(Ordering::Relaxed) {
            self.had_traffic.store(true, Ordering::Relaxed);
        }
    }

    /// Notes a command that failed, for the error information log page.
    pub(crate) fn note_error(
        &self,
        qid: u16,
        sqe: &SubmissionQueueEntry,
        status: Status,
        lba: u64,
    ) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.count += 1;
        let entry = ErrorEntry {
            ecnt: U64::new(errors.count),
            sqid: U16::new(qid),
            cid: sqe.cid,
            sf: U16::new(status.get() << 1),
            pel: U16::new(0xffff),
            lba: U64::new(lba),
            nsid: if sqe.is_fabrics() { U32::new(0) } else { sqe.nsid },
            trtype: self.transport.number(),
            opc: sqe.opc,
            lpver: 1,
            ..ErrorEntry::default()
        };
        if errors.entries.len() == ERROR_ENTRIES_MAX {
            errors.entries.pop_back();
        }
        errors.entries.push_front(entry);
    }

    /// The last errors, newest first, and how many there were in all.
    pub(crate) fn errors(&self) -> (Vec<ErrorEntry>, u64) {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        (errors.entries.iter().copied().collect(), errors.count)
    }

    fn io_queue_map(&self) -> MutexGuard<'_, BTreeMap<u16, Arc<Signal>>> {
        self.io_queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Association {
    fn drop(&mut self) {
        let waiters = self.waiters.get_mut().unwrap_or_else(PoisonError::into_inner);
        waiters.drain(..).for_each(Waker::wake);
    }
}

fn has_ending(queues: &BTreeMap<u16, Arc<Signal>>) -> bool {
    queues.values().any(|queue| queue.is_raised(signal::CLOSE))
}

/// How an admin command ends.
#[derive(Debug)]
pub enum Reply {
    /// With a status and a result, and data for the host if it succeeded and has any.
    Done(Status, u64, Option<Buffer>),
    /// Not yet: it is an Asynchronous Event Request, which the controller keeps, or needs I/O.
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
    /// Which.
    pub tag: Tag,
    /// Its status.
    pub status: Status,
    /// Its result.
    pub result: u64,
}

/// What an admin queue pair talks to.
#[derive(Debug)]
pub struct Controller {
    target: Arc<Target>,
    association: Arc<Association>,
    configuration: Configuration,
    status: ControllerStatus,
    keep_alive: Duration,
    /// When the controller ends unless something comes; [`None`] without keep alive.
    deadline: Option<Instant>,
    events: Events,
    thresholds: Thresholds,
    /// Commands that need I/O, and have ended.
    later: Later,
    /// Wall-clock milliseconds that the host set, less those of our clock.
    timestamp_offset_ms: i64,
    /// Whether the host set it.
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

    /// What all its queue pairs share.
    pub fn association(&self) -> &Arc<Association> {
        &self.association
    }

    /// When [`Self::check_keep_alive`] has to be called.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Whether the host may go on: false if its keep alive timer has expired.
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
        // Up to a whole multiple of KAS, which is 100 ms (base 5.1.25.1.8).
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

    /// Executes a command of the admin queue pair. `data` is what came with it.
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

    /// Whether a command that is no Fabrics command is taken now: the controller is enabled and not
    /// shut down (base 3.6.1: after a shutdown only a reset makes it take commands again).
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

/// Checks what is the same for all commands: no fused operations, and data by an SGL.
fn check_form(sqe: &SubmissionQueueEntry) -> Result<(), Status> {
    if sqe.fuse() != 0 || !sqe.has_sgl() {
        return Err(Status::INVALID_FIELD.do_not_retry());
    }
    Ok(())
}

/// Bytes that a command's data pointer names.
pub(crate) fn transfer_bytes(sqe: &SubmissionQueueEntry) -> Result<u32, Status> {
    match sqe.sgl1.decode() {
        Ok(sgl) => Ok(sgl.length_bytes()),
        Err(_) => Err(Status::SGL_TYPE_INVALID.do_not_retry()),
    }
}

/// Checks in-capsule data. `data_bytes` follow the descriptor's offset, and must end where the descriptor's
/// range ends.
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
