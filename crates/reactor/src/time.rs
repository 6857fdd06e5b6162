//! Time of the reactor: the time since the boot of the machine, or the simulation's.
//!
//! The clock includes suspend (`CLOCK_BOOTTIME`): a process that has promised to stop at some time
//! must see on waking that the time has passed. The kernel's waits exclude suspend, so a timer may
//! fire late after one, by at most its remaining time; any other wake-up of the reactor fires it at
//! once.
//!
//! Sleeps live in one heap per reactor; the loop's wait carries the earliest deadline, so a timer
//! costs no system call.

use crate::context::{Context, try_with_context, with_context};
use crate::timers::TimerId;
use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

/// A point of time in nanoseconds, on a clock that never goes back, with an arbitrary start that
/// all threads of the machine (or of the simulation) share. It continues while the machine is
/// suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// Returns the instant `ns` nanoseconds after the clock's start.
    pub const fn from_ns(ns: u64) -> Self {
        Self(ns)
    }

    /// Returns the nanoseconds since the clock's start.
    pub const fn as_ns(self) -> u64 {
        self.0
    }

    /// Returns the time from `earlier` to this; zero if it is not earlier.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time from this to now.
    pub fn elapsed(self) -> Duration {
        now().since(self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Adds; saturates at the end of the clock's range (584 years).
    fn add(self, duration: Duration) -> Self {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(ns))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// Subtracts; saturates at the clock's start.
    fn sub(self, duration: Duration) -> Self {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_sub(ns))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// As [`Instant::since`].
    fn sub(self, earlier: Self) -> Duration {
        self.since(earlier)
    }
}

/// Returns the present time.
pub fn now() -> Instant {
    Instant(try_with_context(|context| context.now_ns()).unwrap_or_else(boot_ns))
}

/// Returns the wall-clock time in nanoseconds since 1970 (UTC).
pub fn system_time() -> u64 {
    try_with_context(|context| context.system_ns()).unwrap_or_else(realtime_ns)
}

/// Returns [`now`] in nanoseconds since the boot of the machine, including its suspensions. (A
/// virtual machine that was paused may not know of that.)
pub fn boot_time() -> u64 {
    now().as_ns()
}

/// Returns the nanoseconds for which the machine has run since its boot: the clock stops while it
/// is suspended. No promise to others may depend on it; planted bugs do.
pub fn awake_time() -> u64 {
    try_with_context(|context| context.awake_ns()).unwrap_or_else(monotonic_ns)
}

pub(crate) fn boot_ns() -> u64 {
    clock_ns(rustix::time::ClockId::Boottime)
}

pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(rustix::time::ClockId::Monotonic)
}

pub(crate) fn realtime_ns() -> u64 {
    clock_ns(rustix::time::ClockId::Realtime)
}

fn clock_ns(clock: rustix::time::ClockId) -> u64 {
    let time = rustix::time::clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Completes once `duration` has passed.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(now() + duration)
}

/// Completes once it is `deadline` or later.
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, timer: None }
}

/// The future of [`sleep`]. Registers on its first poll; dropping it removes the timer.
#[must_use = "futures do nothing unless polled"]
pub struct Sleep {
    deadline: Instant,
    timer: Option<(Rc<Context>, TimerId)>,
}

impl Sleep {
    /// Returns the deadline.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Moves the deadline, also after completion.
    pub fn reset(&mut self, deadline: Instant) {
        self.disarm();
        self.deadline = deadline;
    }

    fn disarm(&mut self) {
        if let Some((context, id)) = self.timer.take() {
            let waker = context.timers.borrow_mut().cancel(id);
            drop(waker);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> Poll<()> {
        if now() >= self.deadline {
            self.disarm();
            return Poll::Ready(());
        }
        if let Some((context, id)) = &self.timer {
            context.timers.borrow_mut().set_waker(*id, cx.waker());
        } else {
            let deadline_ns = self.deadline.as_ns();
            self.timer = Some(with_context(|context| {
                let id = context.timers.borrow_mut().insert(deadline_ns, cx.waker().clone());
                (Rc::clone(context), id)
            }));
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleep").field("deadline", &self.deadline).finish_non_exhaustive()
    }
}

/// A [`timeout`] passed before its future completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("timed out")]
pub struct Elapsed;

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

/// Runs `future` for at most `duration`, and drops it when that has passed.
///
/// # Errors
/// [`Elapsed`] if the time passed first.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    timeout_at(now() + duration, future).await
}

/// Runs `future` at most until `deadline`.
///
/// # Errors
/// [`Elapsed`] if the time passed first.
pub async fn timeout_at<F: Future>(deadline: Instant, future: F) -> Result<F::Output, Elapsed> {
    let future = std::pin::pin!(future);
    match crate::select::race(future, sleep_until(deadline)).await {
        crate::select::Either::First(output) => Ok(output),
        crate::select::Either::Second(()) => Err(Elapsed),
    }
}
