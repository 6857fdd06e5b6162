//! Bytes that peers have not taken yet, for one connection and for all connections of a thread.
//!
//! Each connection has a bound of its own ([`Limits`](protocol::connection::Limits)). Many
//! connections within it can still be too much. So when all together exceed a total, connections
//! with more than a small amount end.

use reactor::relay::{self, State};
use std::cell::Cell;

/// Unread bytes of one connection above which the peer's calls wait.
const CALLS_WAIT_BYTES: usize = 256 << 10;
/// Unread bytes of all connections above which a connection with more than its part ends.
const TOTAL_BYTES_MAX: usize = 128 << 20;
/// Unread bytes that are always allowed to a connection.
const FREE_BYTES: usize = 1 << 20;

thread_local! {
    static TOTAL_BYTES: State<Cell<usize>> = const { State::new(|| Cell::new(0)) };
}

/// Lets the runners of this thread's reactor count as part of this thread: a
/// [`Share`](relay::Share).
pub fn share() -> Box<dyn FnOnce() + Send> {
    relay::share(&TOTAL_BYTES)
}

/// The unsent bytes of one connection; they stop counting when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Unsent(Cell<usize>);

impl Unsent {
    /// Sets the number of the connection's unsent bytes.
    pub(crate) fn set(&self, bytes: usize) {
        let before = self.0.replace(bytes);
        // At a thread's end connections may be dropped after the counter.
        relay::with(&TOTAL_BYTES, |total| total.set(total.get() + bytes - before));
    }

    /// Returns whether calls of the peer have to wait.
    pub(crate) fn holds_calls(&self) -> bool {
        self.0.get() > CALLS_WAIT_BYTES
    }

    /// Returns whether the connection has to end in favour of the others.
    pub(crate) fn is_too_much(&self) -> bool {
        let is_too_much = |total: &Cell<usize>| total.get() > TOTAL_BYTES_MAX;
        self.0.get() > FREE_BYTES && relay::with(&TOTAL_BYTES, is_too_much) == Some(true)
    }

    /// Returns the number of unsent bytes of this connection.
    pub(crate) fn bytes(&self) -> usize {
        self.0.get()
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the unread bytes of connections are counted together. When they are too many, large
    /// connections end, small ones never; dropped connections no longer count.
    #[test]
    fn connections_are_counted_together() {
        let (small, large) = (Unsent::default(), Unsent::default());
        small.set(FREE_BYTES);
        large.set(16 << 20);
        assert!(!small.is_too_much() && !large.is_too_much());
        let others: Vec<Unsent> = (0..8).map(|_| Unsent::default()).collect();
        for other in &others {
            other.set(16 << 20);
        }
        assert!(!small.is_too_much() && large.is_too_much() && small.holds_calls());
        drop(others);
        assert!(!large.is_too_much());
        large.set(0);
        assert!(!large.holds_calls() && relay::with(&TOTAL_BYTES, Cell::get) == Some(FREE_BYTES));
    }
}
