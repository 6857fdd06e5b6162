//! Connections that carry the protocol's calls over TCP: the connecting and the accepting end.
//!
//! Mechanism: [`protocol::connection::Peer`] keeps frames, handshake and bounds; this crate moves
//! its bytes on `reactor`. A connection has two tasks. The reader parses all frames of one receive and
//! hands them on *synchronously, in the order of arrival*: a call or push to [`Handler::called`], an
//! answer to the closure of [`Connection::call_then`] (or to whoever awaits it). That order is what
//! makes grants and recalls meaningful, so nothing may be applied only when an awaiting task happens
//! to run. The writer sends everything that was queued in one loop turn with one send, because the
//! system call, not the byte, is what costs.
//!
//! Inside TLS 1.3 with a key of the job ([`Credential`], [`Guard`]) nobody reads or changes what travels, and the
//! service knows whose key each connection was made with.
//!
//! What a peer can do wrong (broken frames, too many calls, not reading) closes the connection with
//! a reason; all calls under way then end with [`RpcError::Closed`].

mod access;
mod connection;
mod deferred;
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
