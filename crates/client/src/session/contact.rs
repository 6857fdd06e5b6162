//! The time of the service's last answer, shared by the serving thread and the pulse thread.

use protocol::times::Times;
use protocol::{HostId, SessionId};
use reactor::time::{Instant, now};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// State that the serving thread and the pulse thread share.
#[derive(Debug, Default)]
pub(crate) struct Contact {
    /// When the last answered heartbeat or pulse was sent, in nanoseconds of [`reactor::time`],
    /// which continue while the machine is suspended; 0 is never.
    heard_ns: AtomicU64,
    /// When the serving thread last ran.
    served_ns: AtomicU64,
    /// The session and host that pulses are sent for.
    session: Mutex<Option<(SessionId, HostId)>>,
    pub(crate) is_closed: AtomicBool,
}

impl Contact {
    /// Notes an answer to what was sent at `sent`.
    pub(super) fn heard(&self, sent: Instant) {
        self.heard_ns.fetch_max(sent.as_ns(), Ordering::SeqCst);
    }

    /// Returns whether anything sent less than [`Times::self_stop`] ago has been answered.
    pub(super) fn is_alive(&self, times: &Times) -> bool {
        let heard = self.heard_ns.load(Ordering::SeqCst);
        // A minute, the time that a request may take.
        let late = times.request_deadline;
        let limit = if reactor::mutant!("self-stop-late") { late } else { times.self_stop };
        heard != 0 && Instant::from_ns(heard + uncounted_ns()).elapsed() < limit
    }

    /// Returns when this client stops itself if it gets no more answers, less the time of an answer
    /// on its way.
    pub(super) fn trusted_until(&self, times: &Times) -> Instant {
        let heard = Instant::from_ns(self.heard_ns.load(Ordering::SeqCst));
        let limit = if reactor::mutant!("lent-past-self-stop") {
            times.request_deadline
        } else {
            times.self_stop
        };
        heard + limit - limit / 16
    }

    /// Notes that the serving thread runs.
    pub(super) fn serve(&self) {
        self.served_ns.store(now().as_ns(), Ordering::SeqCst);
    }

    /// Sends pulses for this session from now on.
    pub(super) fn follow(&self, session: SessionId, host: HostId) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some((session, host));
    }

    /// Ends the pulses.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
    }

    /// Returns the session to send a pulse for now, if any.
    pub(crate) fn subject(&self, times: &Times) -> Option<(SessionId, HostId)> {
        let served = Instant::from_ns(self.served_ns.load(Ordering::SeqCst));
        if served.elapsed() >= times.stall_max {
            return None;
        }
        *self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the time that a client's life does not count: none, also while its machine is suspended.
fn uncounted_ns() -> u64 {
    let is_uncounted = reactor::mutant!("life-by-awake-clock");
    if is_uncounted { now().as_ns() - reactor::time::awake_time() } else { 0 }
}
