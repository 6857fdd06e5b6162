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
//! safe. No local memory is ever registered for access by the peer.
#![allow(unsafe_code, reason = "this crate calls C libraries; see SAFETY notes")]

pub mod abi;
mod address;
mod device;
mod endpoint;
#[cfg(test)]
mod fake;
mod library;
mod listener;
mod memory;
mod queue;

pub use device::Device;
pub use endpoint::{Completion, Counts, Endpoint, Remote, Room};
pub use library::Library;
pub use listener::{Listener, Request};
pub use queue::Sizes;

use std::io;
use std::net::SocketAddr;

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
        "not available: the RDMA connection manager cannot be opened ({0}); load its kernel module (modprobe rdma_ucm) \
         and allow access to /dev/infiniband/rdma_cm"
    )]
    ConnectionManager(io::Error),
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
