//! Cancellation: notifies a handler that its caller no longer waits for the answer.
//!
//! The kernel names an interrupted request by its number, and the request must still be answered.
//! So the session keeps the requests in flight in a slab, and a token refers to an entry of it. The
//! many requests that are never interrupted cost no allocation, and a request is found by a search
//! through the few that are in flight. With the `io_uring` transport an INTERRUPT (through
//! `/dev/fuse`) may overtake its request; a bounded number of such INTERRUPTs is remembered.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use slab::Slab;

use crate::types::Unique;

/// Most INTERRUPTs that are remembered because they came before their request.
const EARLY_MAX: usize = 64;

#[derive(Debug)]
struct InFlight {
    unique: Unique,
    is_cancelled: bool,
    waker: Option<Waker>,
}

#[derive(Debug, Default)]
struct Requests {
    in_flight: Slab<InFlight>,
    early: VecDeque<Unique>,
    has_ended: bool,
}

/// The requests of one session that are not answered yet. Each session has its own; another source
/// of requests makes one.
#[derive(Debug, Clone, Default)]
pub struct Registry(Rc<RefCell<Requests>>);

impl Registry {
    /// Registers a request and returns its token.
    pub fn enter(&self, unique: Unique) -> Cancellation {
        let mut requests = self.0.borrow_mut();
        let early = requests.early.iter().position(|&other| other == unique);
        if let Some(index) = early {
            requests.early.remove(index);
        }
        let is_cancelled = early.is_some() || requests.has_ended;
        let key = requests.in_flight.insert(InFlight { unique, is_cancelled, waker: None });
        Cancellation { registry: self.clone(), key, unique }
    }

    /// Removes the request with this key ([`Cancellation::key`]): it is answered.
    ///
    /// # Panics
    /// If there is none.
    pub fn leave(&self, key: usize) {
        self.0.borrow_mut().in_flight.remove(key);
    }

    /// Returns the number of requests that are not answered yet.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().in_flight.len()
    }

    /// Cancels one request, now or when it arrives.
    pub fn interrupt(&self, unique: Unique) {
        let mut requests = self.0.borrow_mut();
        let found = requests.in_flight.iter_mut().find(|(_, other)| other.unique == unique);
        if let Some((_, request)) = found {
            request.is_cancelled = true;
            if let Some(waker) = request.waker.take() {
                waker.wake();
            }
            return;
        }
        if requests.early.len() == EARLY_MAX {
            requests.early.pop_front();
        }
        requests.early.push_back(unique);
    }

    /// Cancels all requests because the connection has ended.
    pub fn end(&self) {
        let mut requests = self.0.borrow_mut();
        requests.has_ended = true;
        for (_, request) in &mut requests.in_flight {
            request.is_cancelled = true;
            if let Some(waker) = request.waker.take() {
                waker.wake();
            }
        }
    }
}

/// The state of a request's caller: whether it still waits.
///
/// A handler of an operation that may take long (above all a blocking lock) awaits
/// [`Cancellation::cancelled`] beside its work and then answers `EINTR`. One task at a time may
/// wait on a token.
#[derive(Debug)]
pub struct Cancellation {
    registry: Registry,
    key: usize,
    unique: Unique,
}

impl Cancellation {
    /// Returns whether the caller was interrupted, the connection has ended, or the request is
    /// answered.
    pub fn is_cancelled(&self) -> bool {
        let requests = self.registry.0.borrow();
        match requests.in_flight.get(self.key) {
            Some(request) if request.unique == self.unique => request.is_cancelled,
            _ => true,
        }
    }

    /// Completes when [`Cancellation::is_cancelled`] would be true.
    pub async fn cancelled(&self) {
        poll_fn(|context| {
            let mut requests = self.registry.0.borrow_mut();
            match requests.in_flight.get_mut(self.key) {
                Some(request) if request.unique == self.unique && !request.is_cancelled => {
                    request.waker = Some(context.waker().clone());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Returns the request's key in the registry.
    pub fn key(&self) -> usize {
        self.key
    }
}
