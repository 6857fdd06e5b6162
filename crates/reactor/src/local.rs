//! Primitives between tasks of one thread: no locks, no atomics.

mod notify;
mod oneshot;
mod semaphore;
mod wait_group;

pub use notify::{Notified, Notify};
pub use oneshot::{Canceled, OneshotReceiver, OneshotSender, oneshot};
pub use semaphore::{Acquire, Permit, Semaphore};
pub use wait_group::{InFlight, WaitGroup};
