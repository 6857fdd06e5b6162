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
