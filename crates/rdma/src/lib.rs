//! Connections over RDMA, for NVMe over Fabrics: messages, and transfers that one side's adapter does alone.
//!
//! Everything is rdma-core's: libibverbs and librdmacm, loaded when they are asked for, so that a machine without them
//! lacks RDMA and nothing else. Their event and completion channels are descriptors, which the reactor polls; no call
//! here waits for the network.
//!
//! A [`Listener`] gives [`Request`]s with their private data; one that is accepted becomes an [`Endpoint`]: it receives
//! messages, sends messages, and reads and writes the peer's memory. The endpoint owns all memory that the adapter works
//! on until that is done, so that its interface is safe. Nothing of ours is ever registered for access by the peer.
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

/// Why there is no RDMA, or no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// rdma-core is not there.
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
    /// The address is none of an RDMA device.
    #[error(
        "cannot listen on {address} over RDMA: {source}; `rdma link` lists this machine's RDMA devices, and the address \
         must belong to one of them (soft-RoCE makes one: rdma link add rxe0 type rxe netdev eth0)"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// A connection's resources could not be had.
    #[error("cannot {action} on the RDMA device {device}: {source}")]
    Resource {
        /// What was tried.
        action: &'static str,
        /// Which device.
        device: String,
        /// What the library said.
        source: io::Error,
    },
}
