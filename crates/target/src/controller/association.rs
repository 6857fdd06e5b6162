//! The state of a controller that its I/O queue pairs and the registry use too.

use crate::namespace::Namespace;
use crate::reservation::NoticeLog;
use crate::signal::{self, Signal};
use crate::subsystem::Subsystem;
use crate::target::{ConnectFailure, Transport};
use nvme::fabrics::ConnectInvalid;
use nvme::log_page::ErrorEntry;
use nvme::{ControllerId, HostId, Nqn, Nsid, Status, SubmissionQueueEntry, U16, U32, U64};
use reactor::time::Instant;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// Entries of the error information log page.
pub(crate) const ERROR_ENTRIES_MAX: usize = 64;

/// State that all queue pairs of a controller share.
#[derive(Debug)]
pub struct Association {
    pub(super) id: ControllerId,
    pub(super) host: HostId,
    pub(super) host_name: Option<Nqn>,
    pub(super) subsystem: Arc<Subsystem>,
    /// The address at which the host reached the target.
    pub(super) local_address: SocketAddr,
    /// The address of the host.
    pub(super) peer_address: SocketAddr,
    /// The transport of its queue pairs.
    pub(super) transport: Transport,
    /// The time at which the host connected.
    pub(super) since: Instant,
    /// Enabled and not shut down: I/O queue pairs may be connected.
    pub(super) is_ready: AtomicBool,
    /// Number of I/O queue pairs granted to the host; 0 before its request.
    pub(super) io_queues_granted: AtomicU16,
    /// Whether a command arrived since the last check of the keep alive timer.
    pub(super) had_traffic: AtomicBool,
    pub(super) admin: Arc<Signal>,
    pub(super) io_queues: Mutex<BTreeMap<u16, Arc<Signal>>>,
    pub(super) errors: Mutex<Errors>,
    /// Reservation notifications for the host.
    pub(super) notices: Mutex<NoticeLog>,
    /// Tasks that wait until no queue pair is left.
    pub(super) waiters: Mutex<Vec<Waker>>,
}

#[derive(Debug, Default)]
pub(super) struct Errors {
    count: u64,
    entries: VecDeque<ErrorEntry>,
}

impl Association {
    /// Returns the controller identifier (CNTLID).
    pub fn id(&self) -> ControllerId {
        self.id
    }

    /// Returns the host's identifier.
    pub fn host(&self) -> HostId {
        self.host
    }

    /// Returns the host's name, if it sent one.
    pub fn host_name(&self) -> Option<&Nqn> {
        self.host_name.as_ref()
    }

    /// Returns the address at which the host reached the target.
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Returns the address of the host's admin queue pair.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    /// Returns the transport of the controller's queue pairs.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Returns the time at which the host connected.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// Returns the subsystem that the controller belongs to.
    pub fn subsystem(&self) -> &Arc<Subsystem> {
        &self.subsystem
    }

    /// Returns the queue identifiers of the connected I/O queue pairs.
    pub fn io_queues(&self) -> Vec<u16> {
        self.io_queue_map().keys().copied().collect()
    }

    /// Adds an I/O queue pair.
    ///
    /// # Errors
    /// The status for its Connect.
    pub(crate) fn attach(&self, qid: u16, signal: &Arc<Signal>) -> Result<(), ConnectFailure> {
        let mut queues = self.io_queue_map();
        // Checked under the lock: a reset first clears the flag, then ends the queues in the map.
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

    /// Returns whether I/O queue pairs that have to end are still there.
    pub(crate) fn has_ending_io_queues(&self) -> bool {
        has_ending(&self.io_queue_map())
    }

    /// Ends all I/O queue pairs.
    pub(crate) fn drop_io_queues(&self) {
        for queue in self.io_queue_map().values() {
            queue.raise(signal::CLOSE);
        }
    }

    /// Ends all queue pairs.
    pub(crate) fn drop_all(&self) {
        self.admin.raise(signal::CLOSE);
        self.drop_io_queues();
    }

    /// Makes the controller look for changes that it has to report to the host, and makes its I/O
    /// queue pairs follow changes of the namespaces. Without the latter, an idle queue pair would
    /// hold a removed namespace's device until its host's next command.
    pub(crate) fn look_for_events(&self) {
        self.admin.raise(signal::EVENT);
        for queue in self.io_queue_map().values() {
            queue.raise(signal::EVENT);
        }
    }

    /// Wakes a task when no queue pair holds the association any more, so that nothing is in
    /// flight.
    pub(crate) fn wake_at_end(&self, waker: &Waker) {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiters.iter().any(|waiter| waiter.will_wake(waker)) {
            waiters.push(waker.clone());
        }
    }

    /// Returns the namespaces that the host sees.
    pub(crate) fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.subsystem.namespaces_for(self.host_name())
    }

    /// Returns a namespace, if the host sees it.
    pub(crate) fn namespace(&self, nsid: Nsid) -> Option<Arc<Namespace>> {
        self.subsystem.namespace(nsid).filter(|it| it.is_for(self.host_name()))
    }

    /// Records that a command arrived (traffic based keep alive).
    pub(crate) fn note_traffic(&self) {
        if !self.had_traffic.load(Ordering::Relaxed) {
            self.had_traffic.store(true, Ordering::Relaxed);
        }
    }

    /// Records a failed command for the error information log page.
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

    /// Returns the last errors, newest first, and the total number of errors.
    pub(crate) fn errors(&self) -> (Vec<ErrorEntry>, u64) {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        (errors.entries.iter().copied().collect(), errors.count)
    }

    pub(super) fn io_queue_map(&self) -> MutexGuard<'_, BTreeMap<u16, Arc<Signal>>> {
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
