//! When the service last answered, shared by the serving thread and the thread that sends pulses.

use protocol::times::Times;
use protocol::{HostId, SessionId};
use reactor::time::{Instant, now};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What the serving thread and the thread that sends pulses know of each other.
#[derive(Debug, Default)]
pub(crate) struct Contact {
    /// When the last heartbeat or pulse was sent that was answered, in nanoseconds of
    /// [`reactor::time`], which go on while the machine is suspended; 0 is never.
    heard_ns: AtomicU64,
    /// When the serving thread last ran.
    served_ns: AtomicU64,
    /// Whom pulses are sent for.
    session: Mutex<Option<(SessionId, HostId)>>,
    pub(crate) is_closed: AtomicBool,
}

impl Contact {
    /// What was sent at `sent` has been answered.
    pub(super) fn heard(&self, sent: Instant) {
        self.heard_ns.fetch_max(sent.as_ns(), Ordering::SeqCst);
    }

    /// Whether something that was sent less than [`Times::self_stop`] ago has been answered.
    pub(super) fn is_alive(&self, times: &Times) -> bool {
        let heard = self.heard_ns.load(Ordering::SeqCst);
        // A minute, as a request may take.
        let late = times.request_deadline;
        let limit = if reactor::mutant!("self-stop-late") { late } else { times.self_stop };
        heard != 0 && Instant::from_ns(heard + uncounted_ns()).elapsed() < limit
    }

    /// When this client stops itself if nothing is heard any more, less what an answer may take on its way.
    pub(super) fn trusted_until(&self, times: &Times) -> Instant {
        let heard = Instant::from_ns(self.heard_ns.load(Ordering::SeqCst));
        let limit = if reactor::mutant!("lent-past-self-stop") {
            times.request_deadline
        } else {
            times.self_stop
        };
        heard + limit - limit / 16
    }

    /// The serving thread runs.
    pub(super) fn serve(&self) {
        self.served_ns.store(now().as_ns(), Ordering::SeqCst);
    }

    /// Pulses are for this session from now on.
    pub(super) fn follow(&self, session: SessionId, host: HostId) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some((session, host));
    }

    /// No more pulses.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// Whom to send a pulse for now, if for anybody.
    pub(crate) fn subject(&self, times: &Times) -> Option<(SessionId, HostId)> {
        let served = Instant::from_ns(self.served_ns.load(Ordering::SeqCst));
        if served.elapsed() >= times.stall_max {
            return None;
        }
        *self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Time that a client's life does not count: none, also where its machine is suspended.
fn uncounted_ns() -> u64 {
    let is_uncounted = reactor::mutant!("life-by-awake-clock");
    if is_uncounted { now().as_ns() - reactor::time::awake_time() } else { 0 }
}
