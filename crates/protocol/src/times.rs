//! The one table of times that the parts of the system must agree on.

use std::time::Duration;

/// How often a client tells the metadata service that it lives.
pub const HEARTBEAT: Duration = Duration::from_secs(2);

/// A session without an answered heartbeat for this long is ended, counted from the *sending* of
/// the last answered one.
pub const SESSION_DEADLINE: Duration = Duration::from_secs(20);

/// A client without contact for this long stops all I/O by itself: well before the deadline at
/// which others may be given its rights.
pub const SELF_STOP: Duration = Duration::from_secs(10);

/// Every request ends within this: longer than deadline plus fence.
pub const REQUEST_DEADLINE: Duration = Duration::from_mins(1);

/// An admission at a target lapses after this unless the metadata service renews it.
pub const ADMISSION_LAPSE: Duration = Duration::from_secs(30);

/// How often the metadata service renews admissions.
pub const ADMISSION_RENEWAL: Duration = Duration::from_secs(5);

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
    /// See [`REQUEST_DEADLINE`].
    pub request_deadline: Duration,
    /// See [`ADMISSION_LAPSE`].
    pub admission_lapse: Duration,
    /// See [`ADMISSION_RENEWAL`].
    pub admission_renewal: Duration,
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
            request_deadline: REQUEST_DEADLINE / divisor,
            admission_lapse: ADMISSION_LAPSE / divisor,
            admission_renewal: ADMISSION_RENEWAL / divisor,
            writeback: WRITEBACK / divisor,
        }
    }
}

impl Default for Times {
    fn default() -> Times {
        Times::faster(1)
    }
}
