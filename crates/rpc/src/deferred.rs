//! Calls that may wait for company: each goes out before whatever else its end of the connection sends next.
//!
//! A peer that is told of many changes in a short time gets one call about all of them in place of one for each. The order
//! on the connection is as if the call had gone out at once, because nothing overtakes it.

use crate::connection::{Connection, Inner, Pending};
use crate::interface::Side;
use std::cell::RefCell;
use std::fmt;

type Make<C> = Box<dyn FnOnce() -> C>;

/// The call that waits, if there is one.
pub(crate) struct Deferred<C>(RefCell<Option<Make<C>>>);

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
    /// Takes the call that waits, made with all that is known now.
    fn take(&self) -> Option<C> {
        let make = self.0.borrow_mut().take();
        make.map(|make| make())
    }
}

impl<S: Side> Connection<S> {
    /// Has `make` make a call when this end next queues a call or an answer, just before it, or when
    /// [`send_deferred`](Self::send_deferred) is called. Its answer is not looked at. One call waits at a time: a
    /// second takes the place of the first, so it has to say what the first would have said. `make` runs while
    /// something else is sent, so it must not use this connection.
    pub fn defer(&self, make: impl FnOnce() -> S::Call + 'static) {
        *self.inner().deferred.0.borrow_mut() = Some(Box::new(make));
    }

    /// Queues the call that waits now, if there is one.
    pub fn send_deferred(&self) {
        self.inner().queue_deferred();
    }
}

impl<S: Side> Inner<S> {
    /// Queues the call that waits. What cannot be queued ends the connection, because it must not get lost.
    pub(crate) fn queue_deferred(&self) {
        // What a closed connection would have said is not lost: the owner says it over the next one.
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
