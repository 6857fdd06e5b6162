//! The one table of times that the parts of the system must agree on.

use std::time::Duration;

/// How often a client tells the metadata service that it lives: its process, and its serving thread.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

/// A session without an answered heartbeat for this long is ended, counted from the *sending* of
/// the last answered one.
pub const SESSION_DEADLINE: Duration = Duration::from_secs(20);

/// A client without contact for this long stops all I/O by itself: well before the deadline at
/// which others may be given its rights.
pub const SELF_STOP: Duration = Duration::from_secs(10);

/// What a kernel is lent it uses without asking for so long at most, also when the client that lent it is
/// dead: its rights go so long after its death.
pub const LENT: Duration = Duration::from_secs(5);

/// A client's serving thread that has not run for this long counts as dead, though its process lives:
/// by then every request that waited for it has ended.
pub const STALL_MAX: Duration = Duration::from_mins(1);

/// Every request ends within this: longer than deadline plus fence.
pub const REQUEST_DEADLINE: Duration = Duration::from_mins(1);

/// An admission at a target lapses so long after the sending of the agent's beat that it was given
/// or last renewed on.
pub const ADMISSION_LAPSE: Duration = Duration::from_secs(30);

/// How often the metadata service renews admissions.
pub const ADMISSION_RENEWAL: Duration = Duration::from_secs(5);

/// A target's agent answers an `Admit` within this, or is disconnected.
pub const ADMIT_DEADLINE: Duration = Duration::from_secs(5);

/// How long an admission waits for an agent that is out of contact.
pub const CONTACT_DEADLINE: Duration = Duration::from_secs(5);

/// A target's agent answers a `Fence` within this, or is disconnected, whereupon its admissions
/// lapse.
pub const FENCE_DEADLINE: Duration = Duration::from_secs(10);

/// How long sessions that are asked for unused space are waited for.
pub const SPACE_DEADLINE: Duration = Duration::from_secs(5);

/// A connection to a target is made within this, and its controller is lost when it was silent for
/// so long.
pub const TARGET_DEADLINE: Duration = Duration::from_secs(5);

/// Dirty data of open files is committed and made durable within this.
pub const WRITEBACK: Duration = Duration::from_secs(1);

/// The times as one pool goes by them: those above, but for tests of failures, which cannot wait.
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
    /// All times divided by `divisor` (0 counts as 1), which must be the same in all processes of a
    /// pool.
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

impl Default for Times {
    fn default() -> Times {
        Times::faster(1)
    }
}
