//! A logical unit of an iSCSI target as a block device, to measure it beside NVMe over Fabrics.
//!
//! The protocol is libiscsi's (version 1.18 or later), which is loaded when it is asked for: a machine
//! without it lacks this device and nothing else. Commands are queued in the library and go out once
//! per turn of the thread's loop; the ring tells when its socket has something. Only connecting and
//! logging out block the thread.
//!
//! It is for measuring: one session with one connection, no digests, no authentication, no
//! reconnecting. What is compared is this library and whatever target stands at the other end, not
//! the protocol.
#![allow(unsafe_code, reason = "this crate calls a C library; see SAFETY notes")]

mod address;
mod device;
mod library;
mod session;

pub use address::Address;
pub use library::Library;
pub use session::Session;

/// Why there is no session or library.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libiscsi is not there, or too old.
    #[error("libiscsi cannot be loaded ({0}): install libiscsi7 (Debian), version 1.18 or later")]
    Library(String),
    /// The text names no logical unit.
    #[error("{0:?} is no iSCSI address: iscsi://ADDRESS:PORT/TARGET/LUN")]
    Address(String),
    /// No session with the target.
    #[error("cannot {action} {address}: {why}")]
    Session {
        /// What was tried.
        action: &'static str,
        /// Where.
        address: Address,
        /// What libiscsi says.
        why: String,
    },
}
