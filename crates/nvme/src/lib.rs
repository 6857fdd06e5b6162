//! Wire formats of NVMe base, NVMe over Fabrics and the transports TCP and RDMA; no I/O.
//!
//! Structures are little-endian and have no padding and no alignment, so a reference into a receive
//! buffer *is* the decoded structure, and the bytes of a structure are sent as they are, without a
//! copy. Fields have the mnemonics of the specifications (`nsze`, `cntlid`); where a field packs
//! bits, an accessor or a newtype unpacks them. Decoding untrusted bytes returns an [`Error`] with
//! the field and its value, and never panics.
//!
//! The documentation of the items names their sources: *base* is the NVM Express Base Specification
//! 2.1 (which since 2.0 also contains Fabrics), *NVM* the NVM Command Set Specification 1.1,
//! *TCP* the NVMe/TCP Transport Specification 1.1, and *RDMA* the NVMe/RDMA Transport Specification 1.0.

// The types that zerocopy's derives generate have no Debug; all types of this crate have.
#![allow(missing_debug_implementations)]

#[macro_use]
mod wire;

pub mod async_event;
pub mod auth;
pub mod command;
pub mod completion;
mod error;
pub mod fabrics;
pub mod feature;
mod id;
pub mod identify;
pub mod log_page;
mod nqn;
pub mod opcode;
pub mod property;
pub mod rdma;
pub mod reservation;
pub mod sgl;
pub mod status;
pub mod tcp;

pub use command::SubmissionQueueEntry;
pub use completion::CompletionQueueEntry;
pub use error::Error;
pub use id::{CommandId, ControllerId, HostId, Nsid, QueueId, TransferTag};
pub use nqn::{DISCOVERY_NQN, NQN_BYTES_MAX, NQN_FIELD_BYTES, Nqn};
pub use sgl::SglDescriptor;
pub use status::Status;
pub use zerocopy::little_endian::{U16, U32, U64, U128};
