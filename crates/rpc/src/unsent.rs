//! Bytes that peers have not taken yet, of one connection and of all connections of a thread.
//!
//! Each connection has a bound of its own ([`Limits`](protocol::connection::Limits)). Many connections
//! within it can still be too much, so that those which have more than a little end when all together
//! have too much.

use std::cell::Cell;

/// Bytes that one connection may leave unread while it calls; then its calls wait.
const CALLS_WAIT_BYTES: usize = 256 << 10;
/// Bytes of all connections above which one that has more than its part of them ends.
const TOTAL_BYTES_MAX: usize = 128 << 20;
/// What a connection may always leave unread.
const FREE_BYTES: usize = 1 << 20;

thread_local! {
    static TOTAL_BYTES: Cell<usize> = const { Cell::new(0) };
}

/// The unsent bytes of one connection; they stop counting when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Unsent(Cell<usize>);

impl Unsent {
    /// The connection has so many now.
    pub(crate) fn set(&self, bytes: usize) {
        let before = self.0.replace(bytes);
        // At a thread's end connections may be dropped after the count.
        let _ = TOTAL_BYTES.try_with(|total| total.set(total.get() + bytes - before));
    }

    /// Whether calls of the peer have to wait.
    pub(crate) fn holds_calls(&self) -> bool {
        self.0.get() > CALLS_WAIT_BYTES
    }

    /// Whether the connection has to end for the others.
    pub(crate) fn is_too_much(&self) -> bool {
        self.0.get() > FREE_BYTES && TOTAL_BYTES.get() > TOTAL_BYTES_MAX
    }

    /// Bytes of this connection.
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

    /// Goal: what connections leave unread is counted together, the large ones among them end when it
    /// is too much, small ones never, and what is dropped counts no more.
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
        assert!(!large.holds_calls() && TOTAL_BYTES.get() == FREE_BYTES);
    }
}
