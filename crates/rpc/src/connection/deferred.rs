//! Calls that wait a moment: each goes out before the next message of its end of the connection.
//!
//! So a peer gets one call about many changes of a short time in place of one call for each. The
//! order on the connection is as if the call had gone out at once, because nothing overtakes it.

use super::answers::Pending;
use super::{Connection, Inner};
use crate::interface::Side;
use std::cell::RefCell;
use std::fmt;

type Make<C> = Box<dyn FnOnce() -> C>;

/// The deferred call, if there is one.
pub(super) struct Deferred<C>(RefCell<Option<Make<C>>>);

impl<C> Default for Deferred<C> {
    fn default() -> Self {
        Self(RefCell::new(None))
    }
}

impl<C> fmt::Debug for Deferred<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Deferred").field(&self.0.borrow().is_some()).finish()
    }
}

impl<C> Deferred<C> {
    /// Takes the deferred call, built from the present state.
    fn take(&self) -> Option<C> {
        let make = self.0.borrow_mut().take();
        make.map(|make| make())
    }
}

impl<S: Side> Connection<S> {
    /// Defers a call. `make` builds it just before this end next queues a call or an answer, or
    /// when [`send_deferred`](Self::send_deferred) is called. Its answer is ignored. There is one
    /// deferred call at a time: a second one replaces the first, so it must contain the first one's
    /// news. `make` runs while another message is sent, so it must not use this connection.
    pub fn defer(&self, make: impl FnOnce() -> S::Call + 'static) {
        *self.0.0.deferred.0.borrow_mut() = Some(Box::new(make));
    }

    /// Queues the deferred call now, if there is one.
    pub fn send_deferred(&self) {
        self.0.0.queue_deferred();
    }
}

impl<S: Side> Inner<S> {
    /// Queues the deferred call. If that fails, it closes the connection, because the call must not
    /// get lost.
    pub(super) fn queue_deferred(&self) {
        // The news of a closed connection is not lost: the owner sends it over the next one.
        if self.is_closed() {
            return;
        }
        let Some(call) = self.deferred.take() else { return };
        match self.queue_now(|peer| peer.call(&call)) {
            Ok(tag) => {
                self.pending.borrow_mut().insert(tag, Pending::Then(Box::new(|_| ())));
            }
            Err(error) => self.close(&error.to_string()),
        }
    }
}
