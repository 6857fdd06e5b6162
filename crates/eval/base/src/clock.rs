//! The machine's monotonic clock, which all processes share, in containers too.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine was started.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
