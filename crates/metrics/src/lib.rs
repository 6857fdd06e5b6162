//! Counts and times of every operation of this process: finished, running and slow ones, and why
//! they were slow.
//!
//! An [`Operation`] is started where work begins and is dropped where it ends; that costs two
//! readings of the clock. Each thread writes to memory that no other thread writes, so no cache
//! line moves between CPUs; a reader adds the threads up ([`snapshot()`]). Latencies go to buckets
//! with a width of a quarter of a power of two.
//!
//! An operation that starts while another one is polled on the same thread ([`Operation::during`])
//! is a *wait* of that one. So a slow operation has a reason: the longest of its waits.
//!
//! This crate does no I/O: other crates ask for a [`snapshot()`] or a trace ([`trace::Tracer`]).

mod cells;
mod family;
mod histogram;
mod operation;
mod slots;
mod slow;
mod snapshot;
mod thread;
pub mod trace;
mod values;

#[cfg(test)]
mod tests;

pub use family::{Family, Point};
pub use histogram::Histogram;
pub use operation::{Operation, record, start, start_at};
pub use snapshot::{Counts, Running, Slow, Snapshot, Wait, snapshot};
pub use thread::share;
pub use values::{Notes, Source, Value, add_notes, add_source};
