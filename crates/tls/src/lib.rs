//! TLS 1.3 with external pre-shared keys (PSK) and (EC)DHE on bytes in memory, and the keys of a
//! job; no I/O.
//!
//! A [`Session`] converts received bytes to plain text, and plain text to bytes to send.
//! [`Session::client`] proves its identity with one [`Psk`]; [`Session::server`] gets the key for
//! the identity that the client sends from a [`Server`]. There are no certificates, no resumption
//! and no early data: a recorded stream has no effect when it is sent again.
//!
//! s2n-tls on aws-lc carries out handshakes (docs/security.md has the reasons), and `records` makes
//! the records after them with aws-lc's AES-GCM; none of the cryptography is ours. The only module
//! with `unsafe` is `wires`, the functions in memory through which the library reads and writes
//! bytes.

mod error;
mod hello;
mod job;
mod key;
mod library;
mod records;
mod server;
mod session;
mod stream;
mod suite;
mod wires;

pub use error::Error;
pub use job::{DataKeyUse, Holder, JobKey};
pub use key::{Hash, IDENTITY_BYTES_MAX, KeyError, Psk};
pub use server::{Keys, Server};
pub use session::{CLOSE_BYTES_MAX, Session};
pub use stream::{Idle, Outgoing, Receiving, Secure, Sending, Stream};
pub use suite::Suite;

#[cfg(test)]
mod tests;
