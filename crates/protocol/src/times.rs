//! The times on which the parts of the system must agree, in one table.

use crate::lease::Rights;
use std::time::Duration;

/// Interval of a client's heartbeats to the metadata service, from its process and its serving
/// thread.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

/// The service ends a session without an answered heartbeat for this long, counted from the
/// *sending* of the last answered one.
pub const SESSION_DEADLINE: Duration = Duration::from_secs(20);

/// A client without contact for this long stops all I/O by itself: well before the deadline at
/// which other sessions may get its rights.
pub const SELF_STOP: Duration = Duration::from_secs(10);

/// Longest time for which a kernel uses lent names and attributes without asking, even if the
/// client that lent them is dead. A dead client's rights end this long after its death.
pub const LENT: Duration = Duration::from_secs(5);

/// A client whose serving thread has not run for this long counts as dead, even if its process
/// lives: by then every request that waited for the thread has ended.
pub const STALL_MAX: Duration = Duration::from_mins(1);

/// Every request ends within this: longer than deadline plus fence.
pub const REQUEST_DEADLINE: Duration = Duration::from_mins(1);

/// An admission at a target lapses this long after the sending of the agent's beat that the service
/// named when it granted or last renewed the admission.
pub const ADMISSION_LAPSE: Duration = Duration::from_secs(30);

/// Interval at which the metadata service renews admissions.
pub const ADMISSION_RENEWAL: Duration = Duration::from_secs(5);

/// A target's agent answers an `Admit` within this, or the service disconnects it.
pub const ADMIT_DEADLINE: Duration = Duration::from_secs(5);

/// Longest time that an admission waits for an agent that is out of contact.
pub const CONTACT_DEADLINE: Duration = Duration::from_secs(5);

/// A target's agent answers a `Fence` within this, or the service disconnects it; then its
/// admissions lapse.
pub const FENCE_DEADLINE: Duration = Duration::from_secs(10);

/// Longest wait for sessions that were asked for unused space.
pub const SPACE_DEADLINE: Duration = Duration::from_secs(5);

/// A connection to a target is made within this, and its controller is lost after a silence of this
/// length.
pub const TARGET_DEADLINE: Duration = Duration::from_secs(5);

/// Dirty data of open files is committed and made durable within this.
pub const WRITEBACK: Duration = Duration::from_secs(1);

/// The times of one pool: those above, except in tests of failures, which cannot wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// See [`HEARTBEAT`].
    pub heartbeat: Duration,
    /// See [`SESSION_DEADLINE`].
    pub session_deadline: Duration,
    /// See [`SELF_STOP`].
    pub self_stop: Duration,
    /// See [`LENT`].
    pub lent: Duration,
    /// See [`STALL_MAX`].
    pub stall_max: Duration,
    /// See [`REQUEST_DEADLINE`].
    pub request_deadline: Duration,
    /// See [`ADMISSION_LAPSE`].
    pub admission_lapse: Duration,
    /// See [`ADMISSION_RENEWAL`].
    pub admission_renewal: Duration,
    /// See [`ADMIT_DEADLINE`].
    pub admit_deadline: Duration,
    /// See [`CONTACT_DEADLINE`].
    pub contact_deadline: Duration,
    /// See [`FENCE_DEADLINE`].
    pub fence_deadline: Duration,
    /// See [`SPACE_DEADLINE`].
    pub space_deadline: Duration,
    /// See [`TARGET_DEADLINE`].
    pub target_deadline: Duration,
    /// See [`WRITEBACK`].
    pub writeback: Duration,
}

impl Times {
    /// Returns all times divided by `divisor` (0 counts as 1), which must be the same in all
    /// processes of a pool.
    pub fn faster(divisor: u32) -> Times {
        let divisor = divisor.max(1);
        Times {
            heartbeat: HEARTBEAT / divisor,
            session_deadline: SESSION_DEADLINE / divisor,
            self_stop: SELF_STOP / divisor,
            lent: LENT / divisor,
            stall_max: STALL_MAX / divisor,
            request_deadline: REQUEST_DEADLINE / divisor,
            admission_lapse: ADMISSION_LAPSE / divisor,
            admission_renewal: ADMISSION_RENEWAL / divisor,
            admit_deadline: ADMIT_DEADLINE / divisor,
            contact_deadline: CONTACT_DEADLINE / divisor,
            fence_deadline: FENCE_DEADLINE / divisor,
            space_deadline: SPACE_DEADLINE / divisor,
            target_deadline: TARGET_DEADLINE / divisor,
            writeback: WRITEBACK / divisor,
        }
    }
}

impl Times {
    /// Returns the longest time for the answer to a recall of these rights. A session that does not
    /// work on the answer has less: [`SESSION_DEADLINE`].
    ///
    /// The answer for READ waits for reads. They fail within two session deadlines if a device does
    /// not answer. A commit that waits for that answer still ends within its own deadline, also if
    /// the session has to be ended and stop itself first. The answers for other rights wait for such
    /// commits, so they may take longer: a commit fails by itself before its session ends.
    pub fn recall_max(&self, rights: Rights) -> Duration {
        if rights == Rights::READ {
            self.session_deadline * 2 + self.target_deadline
        } else {
            self.request_deadline + self.session_deadline
        }
    }
}

impl Default for Times {
    fn default() -> Times {
        Times::faster(1)
    }
}
