//! A node of a job: its target, its agent and its mount, in one process.
//!
//! Only this process opens the node's devices. The target exports them to other nodes; the mount of
//! this node accesses them without a socket, through the same admission check and counts. The agent
//! is the target's connection to the metadata service, which alone decides about admissions.
//!
//! There are two threads: one runs target and agent, one runs the mount. They share only the
//! devices' files and the table of admissions. (A third, the client's own, only sends heartbeats.)

mod agent;
mod config;
mod devices;
mod error;
mod local;
mod marks;
mod mounting;
mod node;

pub use config::{Checksum, DeviceConfig, Fabric, FuseTransport, NodeConfig, parse_bytes};
pub use devices::{NodeDevice, create_devices, open_device, open_devices};
pub use error::NodeError;
pub use fuse::{Mounter, Transport};
pub use local::Local;
pub use marks::create_marks;
pub use mounting::serve_mounter;
pub use node::{Exports, Node, Ready, run};

#[cfg(test)]
mod tests;
