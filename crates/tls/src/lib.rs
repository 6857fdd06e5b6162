//! TLS 1.3 with external pre-shared keys (PSK) and (EC)DHE on bytes in memory, and the keys of a job; no I/O.
//!
//! A [`Session`] takes the bytes that came from the peer and gives plain text, and takes plain text and gives
//! the bytes to send. [`Session::client`] proves with one [`Psk`]; [`Session::server`] asks a [`Server`] for
//! the key that belongs to the identity which the client names. There are no certificates, no resumption and
//! no early data: a stream that was recorded opens nothing when it is sent again.
//!
//! Handshakes are those of s2n-tls on aws-lc (docs/security.md has the reasons), and the records behind them are made
//! by `records` with aws-lc's AES-GCM; none of the cryptography is ours.
//! The one place with `unsafe` is `wires`, the functions in memory that the library calls for bytes.

mod error;
mod hello;
mod job;
mod key;
mod records;
mod server;
mod session;
mod stream;
mod wires;

pub use error::{Error, KeyError};
pub use job::{DataKeyUse, Holder, JobKey};
pub use key::{Hash, IDENTITY_BYTES_MAX, Psk};
pub use server::{Keys, Server};
pub use session::{CLOSE_BYTES_MAX, Session, Suite};
pub use stream::{Idle, Outgoing, Receiving, Secure, Sending, Stream};

#[cfg(test)]
mod tests;
