//! Connections over RDMA, for NVMe over Fabrics: messages, and transfers that one side's adapter
//! makes alone.
//!
//! The crate uses rdma-core's libibverbs and librdmacm, loaded on demand, so that a machine without
//! them lacks only RDMA. Their event and completion channels are descriptors, which the reactor
//! polls; no call here waits for the network.
//!
//! A [`Listener`] returns [`Request`]s with their private data. An accepted request becomes an
//! [`Endpoint`]: it receives messages, sends messages, and reads and writes the peer's memory. The
//! endpoint owns all memory that the adapter accesses until the access ends, so its interface is
//! safe. A [`Connector`] makes endpoints that lend memory to the peer: a part of a buffer, for one
//! exchange, through a memory window that ends with it. No memory is ever registered for access by
//! a peer.
#![allow(unsafe_code, reason = "this crate calls C libraries; see SAFETY notes")]

pub mod abi;
mod address;
mod connector;
mod device;
mod drivers;
mod endpoint;
mod events;
#[cfg(test)]
mod fake;
mod library;
mod listener;
mod look;
mod memory;
mod queue;

pub use connector::Connector;
pub use device::Device;
pub use drivers::Drivers;
pub use endpoint::{Completion, Counts, Endpoint, Remote, Returned, Room};
pub use library::Library;
pub use listener::{Listener, Request};
pub use look::{device_at, device_here};
pub use queue::Sizes;

use std::io;
use std::net::SocketAddr;

/// The connection manager's reason for a refusal by the peer's program (`IB_CM_REJ_CONSUMER_DEFINED`).
pub const REASON_CONSUMER: i32 = 28;

/// The reason of an endpoint's end if the peer ended the connection.
pub const DISCONNECTED: &str = "the peer disconnected it";

/// The reason why there is no RDMA, or no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// rdma-core is not installed.
    #[error(
        "not available: rdma-core cannot be loaded ({0}); install libibverbs1, librdmacm1 and ibverbs-providers \
         (Debian) or rdma-core (other systems), and use the dynamically linked program"
    )]
    Library(String),
    /// The connection manager cannot be opened.
    #[error(
        "not available: the RDMA connection manager cannot be opened ({0}); load its kernel module (modprobe rdma_ucm), \
         allow access to /dev/infiniband/rdma_cm, and see whether the machine has an RDMA device (rdma link)"
    )]
    ConnectionManager(io::Error),
    /// The machine has no device.
    #[error(
        "not available: this machine has no RDMA device; `rdma link` lists them (soft-RoCE makes one: modprobe \
         rdma_rxe && rdma link add rxe0 type rxe netdev eth0)"
    )]
    NoDevice,
    /// The user may not lock memory.
    #[error(
        "not available: memory cannot be registered with the RDMA device {device} ({source}); raise the limit of \
         locked memory (ulimit -l unlimited, or LimitMEMLOCK=infinity in systemd)"
    )]
    Memory {
        /// The device.
        device: String,
        /// The library's error.
        source: io::Error,
    },
    /// The address does not belong to an RDMA device.
    #[error(
        "cannot listen on {address} over RDMA: {source}; `rdma link` lists this machine's RDMA devices, and the address \
         must belong to one of them (soft-RoCE makes one: rdma link add rxe0 type rxe netdev eth0)"
    )]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// The device has no memory windows.
    #[error(
        "not available: the RDMA device {device} has no memory windows of type 2, without which a target could access \
         this host's memory after a command; use another device (soft-RoCE has them), or the kernel's host"
    )]
    NoWindows {
        /// The device.
        device: String,
    },
    /// The peer cannot be reached.
    #[error(
        "cannot connect to {address} over RDMA: {step}: {source}; `rdma link` lists this machine's RDMA devices, and \
         one of them must have a route to the address"
    )]
    Unreachable {
        /// The peer.
        address: SocketAddr,
        /// The failed step.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The peer, or its kernel, refused the connection.
    #[error(
        "{address} refused the connection over RDMA (reason {reason} of the connection manager)"
    )]
    Refused {
        /// The peer.
        address: SocketAddr,
        /// The connection manager's reason; [`REASON_CONSUMER`] is that the peer's program did so.
        reason: i32,
        /// The private data of the refusal.
        private_data: Vec<u8>,
    },
    /// A connection's resource could not be made.
    #[error("cannot {action} on the RDMA device {device}: {source}")]
    Resource {
        /// The failed action.
        action: &'static str,
        /// The device.
        device: String,
        /// The library's error.
        source: io::Error,
    },
}
