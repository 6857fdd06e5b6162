//! The clock by which admissions lapse.
//!
//! Unlike the reactor's clock, it continues while the machine is suspended: the metadata service
//! counts the same span elsewhere, and at its end gives the blocks to others. It has a type of its
//! own, so that times of the two clocks cannot be mixed.

use std::fmt;
use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

/// A point of the clock, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Returns the moment `ns` nanoseconds after the clock's start.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Returns the nanoseconds since the clock's start.
    pub const fn as_ns(self) -> u64 {
        self.0
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    /// Saturates at the end of the clock's range (584 years).
    fn add(self, duration: Duration) -> Self {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(ns))
    }
}

/// The source of the nanoseconds.
#[derive(Clone)]
pub(super) struct Clock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Clock {
    pub(super) fn new(read: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    pub(super) fn now(&self) -> Moment {
        Moment((self.0)())
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}
