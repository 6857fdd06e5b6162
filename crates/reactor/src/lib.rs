//! A thin single-threaded reactor and executor, and the only access of the crates above to time,
//! randomness, threads and I/O.
//!
//! Mechanism: a [`Runtime`] owns one [`engine`] and the tasks of one thread. The engine is a
//! ring of `io_uring` or, if that does not work, an epoll instance and a pool of threads for files.
//! One turn of the reactor's loop runs every ready task, starts all operations that they asked for
//! (on a ring with a single system call) and reaps all completions. The reactor sleeps only if
//! nothing is ready, optionally after a short adaptive spin. Buffers are handed to an operation and
//! come back with its completion. So after a future is dropped, the kernel or a thread never writes
//! into memory that has another user.
//!
//! Why a reactor of our own: engines, buffers and queue pairs stay on one core without hidden
//! allocations or locks, sends of one turn coalesce, and the same interface has a simulated twin in
//! [`sim`], which runs the shipped code of a whole cluster in one process from a seed.
#![allow(unsafe_code, reason = "this crate is the one that talks to the kernel; see SAFETY notes")]

pub mod affinity;
pub mod buffer;
pub mod child;
mod chunk;
mod context;
pub mod engine;
mod executor;
pub mod file;
mod file_queue;
mod handle;
mod inherited;
pub mod ioctl;
pub mod local;
pub mod mailbox;
pub mod mutants;
pub mod net;
mod operation;
mod racing;
pub mod random;
mod region;
pub mod relay;
mod runtime;
mod select;
pub mod sim;
mod slots;
mod sparse;
mod spin;
pub mod thread;
pub mod time;
mod timers;
pub mod usage;

pub use buffer::{Attachment, Buffer, Shared};
pub use chunk::{Chunk, Inline, Segment, Segments, scatter};
pub use executor::{Aborted, JoinHandle, has_reactor, spawn, wake_after_others, yield_now};
pub use file::{File, OpenOptions};
pub use file_queue::{Direction, FileQueue, FileQueueConfig};
pub use handle::{Handle, UringCmd};
pub use inherited::close_inherited;
pub use net::{SocketOptions, TcpListener, TcpStream};
pub use operation::Op;
pub use region::{Region, RegionSlice, crc32c_of_blocks};
pub use runtime::{Config, Runtime, submissions};
pub use select::{Either, Either3, race, race3};
pub use sparse::Sparse;
pub use spin::Spin;
