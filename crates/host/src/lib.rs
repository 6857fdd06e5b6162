//! The NVMe-oF host over TCP and RDMA: discovery, controllers, queue pairs; provides a block device.
//!
//! From the bottom: [`queue_pair`] is one connection's protocol as a state machine without I/O; a
//! driver task runs it over a socket of the `reactor` reactor, or over an RDMA endpoint; a [`Controller`] is an admin queue
//! pair and I/O queue pairs, kept connected; a [`Namespace`] is a handle for reads and writes that
//! outlives connections. Everything of one controller lives on one thread: a program that wants a
//! queue pair per thread connects a controller per thread, so that nothing is shared and a lost
//! connection is one thread's affair.

mod connection;
mod controller;
mod discovery;
mod error;
mod namespace;
mod options;
pub mod queue_pair;

pub use connection::share;
pub use controller::{Controller, ControllerEvent, ControllerInfo, NamespaceIdentity, Stage};
pub use discovery::{DISCOVERY_ENTRIES_MAX, DiscoveryLog};
pub use error::{ConnectionEnd, Error, ProtocolError};
pub use namespace::{IoPolicy, Namespace, PATHS_MAX, PathStatus};
pub use options::{ConnectOptions, InterruptedWrites, TlsOptions, Transport};
