//! Connections that carry the protocol's calls over TCP: the connecting and the accepting end.
//!
//! Mechanism: [`protocol::connection::Peer`] keeps frames, handshake and bounds; this crate moves
//! its bytes on `reactor`. A connection has two tasks. The reader parses all frames of one receive
//! and passes them on *synchronously, in the order of arrival*: a call or push to
//! [`Handler::called`], an answer to the closure of [`Connection::call_then`] (or to the task that
//! awaits it). Grants and recalls have a meaning only in that order, so a client must not apply
//! them in a task that runs later. The writer sends everything that was queued in one loop turn
//! with one send, because the system call is what costs, not the bytes.
//!
//! Inside TLS 1.3 with a key of the job ([`Credential`], [`Guard`]) no third party can read or
//! change the data, and the service knows the holder of each connection's key.
//!
//! An error of the peer (broken frames, too many calls, not reading) closes the connection with a
//! reason. All calls under way then end with [`RpcError::Closed`].

mod access;
mod connection;
mod error;
mod interface;
mod listener;
mod transport;
mod unsent;

pub use access::{Credential, Guard, Standing};
pub use connection::{Answering, Connection, Handler, Reply, Traffic};
pub use error::RpcError;
pub use interface::{Acceptor, Admin, Agent, Client, Connector, Interface, Nothing, Side};
pub use listener::{Authenticated, Knock, Listener};
pub use protocol::connection::Limits;
pub use unsent::share;
