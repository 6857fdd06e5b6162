//! Admission: the hosts that may use the target, and the proof that a removed host no longer does
//! (DESIGN 5).
//!
//! Each admitted host identifier has a [`Slot`]. Each of its queue pairs and local device handles
//! has a [`Lane`] in that slot, with a counter of its own, so that queue pairs on different cores
//! do not write to a common cache line. A command first counts itself in, then checks whether the
//! slot is closed or lapsed. A fence first closes the slot, then reads the counters. With
//! sequential consistency one of the two always sees the other: either the command is refused, or
//! the fence waits for it. A [`Permit`] counts a command. It lives until the back-end I/O has
//! ended, and for reads from a memory namespace until the bytes have left.
//!
//! A lapsed admission stays lapsed: renewing does not bring it back. The next `admit` waits until
//! the I/O that began under lapsed admissions has ended. So a target that was stopped for a while
//! cannot apply an old write after a new owner's write.

mod clock;
mod lane;
mod table;

pub use clock::Moment;
pub use lane::{Lane, Lent, Permit};
pub use table::Drained;

use auth::TlsKey;
use clock::Clock;
use lane::Slot;
use nvme::{HostId, Nqn};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use table::Table;

use crate::signal::Signal;

/// The policy by which the target admits hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionMode {
    /// All hosts, without a limit of time.
    AnyHost,
    /// The hosts with these names, without a limit of time.
    HostList(BTreeSet<Nqn>),
    /// Only host identifiers that [`Admissions::admit`] admitted; none at first.
    Controlled,
}

/// Reason for refusing a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// This host was not admitted, or its admission was removed.
    #[error("the host is not admitted")]
    NotAdmitted,
    /// Its admission was not renewed in time.
    #[error("the host's admission has lapsed")]
    Lapsed,
    /// It was fenced under this or a later epoch.
    #[error("the host was fenced")]
    Fenced,
}

/// Number of a session's admission, assigned by the metadata service; later admissions have larger
/// numbers.
pub type Epoch = u64;

/// The admissions of one target, shared by all its cores, its local clients and its agent.
#[derive(Debug)]
pub struct Admissions {
    mode: AdmissionMode,
    clock: Clock,
    table: Mutex<Table>,
    refused: AtomicU64,
}

impl Admissions {
    /// Creates a table without admissions.
    pub fn new(mode: AdmissionMode) -> Arc<Self> {
        let is_awake = reactor::mutant!("lapse-by-awake-clock");
        let clock = if is_awake { reactor::time::awake_time } else { reactor::time::boot_time };
        Self::with_clock(mode, clock)
    }

    /// Creates a table whose admissions lapse by the given clock. [`Admissions::new`] uses the
    /// machine's time since its boot, including suspend. The clock returns nanoseconds and never
    /// goes back.
    pub fn with_clock(
        mode: AdmissionMode,
        clock: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Arc<Self> {
        let (clock, refused) = (Clock::new(clock), AtomicU64::new(0));
        Arc::new(Self { mode, clock, table: Mutex::default(), refused })
    }

    /// Returns the present time of the clock by which admissions lapse.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Returns the policy by which the target admits hosts.
    pub fn mode(&self) -> &AdmissionMode {
        &self.mode
    }

    /// Returns the number of commands and connections refused so far.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Admits a host under an epoch until `lapse`. If it is already admitted under this epoch,
    /// moves its lapse to `lapse` unless it is later already. A later epoch replaces an earlier one
    /// and drops the connections of that. First waits until the I/O of lapsed admissions has ended.
    ///
    /// `lapse` is an instant, not a span: the caller counts from an event with a known latest time.
    /// So an order that arrives late admits for less time.
    ///
    /// # Errors
    /// [`Refusal::Fenced`] if the host was fenced under this or a later epoch, [`Refusal::Lapsed`]
    /// if `lapse` has passed.
    pub async fn admit(&self, host: HostId, epoch: Epoch, lapse: Moment) -> Result<(), Refusal> {
        self.admit_with_key(host, epoch, lapse, None).await
    }

    /// Admits a host as [`Admissions::admit`] does. The host has to prove on each connection that
    /// it knows `key` ([`Target::require_admission_keys`](crate::Target::require_admission_keys)).
    /// The key ends with the admission; another key under the same epoch begins a new admission.
    ///
    /// # Errors
    /// As [`Admissions::admit`].
    pub async fn admit_with_key(
        &self,
        host: HostId,
        epoch: Epoch,
        lapse: Moment,
        key: Option<TlsKey>,
    ) -> Result<(), Refusal> {
        let lapsed = self.table().sweep(self.now());
        Drained::new(if reactor::mutant!("admit-not-drained") { Vec::new() } else { lapsed }).await;
        let now = self.now();
        let is_past = lapse <= now && !reactor::mutant!("admitted-in-the-past");
        if is_past { Err(Refusal::Lapsed) } else { self.table().admit(host, epoch, lapse, key) }
    }

    /// Extends all admissions in force until `lapse`. Lapsed admissions stay lapsed. Returns the
    /// number of admissions in force.
    pub fn renew(&self, lapse: Moment) -> usize {
        let mut table = self.table();
        if !reactor::mutant!("lapsed-renewed") {
            table.sweep(self.now());
        }
        table.renew(lapse)
    }

    /// Removes a host's admissions under `epoch` and earlier ones, drops their connections, and
    /// returns a future that completes when the last back-end I/O has ended. The admissions are
    /// removed when this function returns, before the future is polled. Dropping the future does
    /// not restore them.
    pub fn fence(&self, host: HostId, epoch: Epoch) -> Drained {
        Drained::new(self.table().fence(host, epoch))
    }

    /// Fences all hosts, when the target ends.
    pub fn fence_all(&self) -> Drained {
        Drained::new(self.table().close_all())
    }

    /// Opens a lane for one queue pair of a host, which may have no name. `signal` is raised when
    /// the lane's admission ends.
    ///
    /// # Errors
    /// The reason for refusing the host. The refusal is counted.
    pub fn open_lane(
        &self,
        host: HostId,
        name: Option<&Nqn>,
        signal: &Arc<Signal>,
    ) -> Result<Lane, Refusal> {
        let result = match &self.mode {
            _ if reactor::mutant!("connect-unchecked") => Ok(self.table().slot_on_demand(host)),
            AdmissionMode::AnyHost => Ok(self.table().slot_on_demand(host)),
            AdmissionMode::HostList(names) => match name {
                Some(name) if names.contains(name) => Ok(self.table().slot_on_demand(host)),
                _ => Err(Refusal::NotAdmitted),
            },
            AdmissionMode::Controlled => self.table().slot(host, self.now()),
        };
        result.and_then(|slot| Slot::open_lane(&slot, signal)).inspect_err(|_| self.note_refused())
    }

    /// Opens a lane for a local handle, without counting a refusal.
    pub(crate) fn open_local_lane(
        &self,
        host: HostId,
        signal: &Arc<Signal>,
    ) -> Result<Lane, Refusal> {
        let slot = match &self.mode {
            AdmissionMode::Controlled => self.table().slot(host, self.now())?,
            _ => self.table().slot_on_demand(host),
        };
        Slot::open_lane(&slot, signal)
    }

    /// Checks whether the target accepts commands of this host now.
    ///
    /// # Errors
    /// The reason for refusing them.
    pub fn check(&self, host: HostId) -> Result<(), Refusal> {
        match self.mode {
            AdmissionMode::Controlled => self.table().slot(host, self.now()).map(|_| ()),
            _ => Ok(()),
        }
    }

    /// Returns the key that a host has to prove: the key of its admission, if it is admitted now.
    pub(crate) fn key(&self, host: HostId) -> Option<TlsKey> {
        self.table().slot(host, self.now()).ok()?.key()
    }

    /// Counts one more refusal.
    pub fn note_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change is complete in itself: the table stays sound if a holder of the lock panics.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
