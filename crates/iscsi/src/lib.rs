//! A logical unit of an iSCSI target as a block device, for comparison with NVMe over Fabrics.
//!
//! libiscsi (version 1.18 or later) implements the protocol. It is loaded on demand, so that a
//! machine without it lacks only this device. Commands are queued in the library and sent once per
//! turn of the thread's loop; the ring reports when the library's socket is ready. Only connecting
//! and logging out block the thread.
//!
//! It is for measurements: one session with one connection, no digests, no authentication, no
//! reconnecting. A comparison measures this library and the target at the other end, not the
//! protocol.
#![allow(unsafe_code, reason = "this crate calls a C library; see SAFETY notes")]

mod address;
mod device;
mod library;
mod session;

pub use address::Address;
pub use library::Library;
pub use session::Session;

/// The reason why there is no session or library.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// libiscsi is not installed, or too old.
    #[error("libiscsi cannot be loaded ({0}): install libiscsi7 (Debian), version 1.18 or later")]
    Library(String),
    /// The text is not an address of a logical unit.
    #[error("{0:?} is no iSCSI address: iscsi://ADDRESS:PORT/TARGET/LUN")]
    Address(String),
    /// There is no session with the target.
    #[error("cannot {action} {address}: {why}")]
    Session {
        /// The failed action.
        action: &'static str,
        /// The address.
        address: Address,
        /// libiscsi's error.
        why: String,
    },
}
