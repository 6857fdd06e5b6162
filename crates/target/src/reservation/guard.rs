//! An I/O queue pair's view of a namespace's reservations: its host's rights, and the tickets of
//! Preempt and Abort.

use super::Reservations;
use super::state::{Access, Rights};
use crate::signal::{self, Signal};
use nvme::HostId;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// A queue pair, for those that give it tickets.
#[derive(Debug)]
pub(super) struct Member {
    host: HostId,
    signal: Arc<Signal>,
    tickets: Mutex<Vec<Ticket>>,
}

impl Member {
    pub(super) fn host(&self) -> HostId {
        self.host
    }

    pub(super) fn give(&self, ticket: Ticket) {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner).push(ticket);
        self.signal.raise(signal::EVENT);
    }
}

/// The rights of a queue pair's host to a namespace.
pub(crate) struct Guard {
    member: Arc<Member>,
    /// The epoch of the rights.
    seen: u64,
    rights: Rights,
}

impl Guard {
    /// Creates the guard for a queue pair of `host`, whose task `signal` wakes.
    pub(crate) fn new(reservations: &Reservations, host: HostId, signal: &Arc<Signal>) -> Self {
        let (signal, tickets) = (Arc::clone(signal), Mutex::default());
        let member = Arc::new(Member { host, signal, tickets });
        let mut inner = reservations.inner();
        inner.members.retain(|member| member.strong_count() > 0);
        inner.members.push(Arc::downgrade(&member));
        Self { member, seen: 0, rights: Rights::ALL }
    }

    /// Returns whether the rights may have changed since [`Self::refresh`].
    pub(crate) fn is_stale(&self, reservations: &Reservations) -> bool {
        reservations.epoch.load(Ordering::Relaxed) != self.seen
    }

    /// Loads the present rights. Returns the tickets for the commands that began under the earlier
    /// rights.
    pub(crate) fn refresh(&mut self, reservations: &Reservations) -> Vec<Rc<Ticket>> {
        (self.seen, self.rights) = reservations.rights(self.member.host);
        let mut tickets = self.member.tickets.lock().unwrap_or_else(PoisonError::into_inner);
        tickets.drain(..).map(Rc::new).collect()
    }

    /// Returns whether the host may do this.
    pub(crate) fn allows(&self, access: Access) -> bool {
        self.rights.allow(access)
    }
}

#[derive(Debug, Default)]
struct Count {
    tickets: AtomicUsize,
    waker: Mutex<Option<Waker>>,
}

/// Holds up a Preempt and Abort until it is dropped.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Count>);

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.0.tickets.fetch_sub(1, Ordering::SeqCst) == 1 {
            let waker = self.0.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// A future that completes when all its tickets are dropped.
#[derive(Debug, Default)]
pub(crate) struct Drained(Arc<Count>);

impl Drained {
    pub(super) fn ticket(&self) -> Ticket {
        self.0.tickets.fetch_add(1, Ordering::SeqCst);
        Ticket(Arc::clone(&self.0))
    }
}

impl Future for Drained {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        *self.0.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        // Checked after the waker is stored: the last ticket finds either the waker or this check.
        if self.0.tickets.load(Ordering::SeqCst) == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}
