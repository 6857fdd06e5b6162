//! Errors of connections and calls.

use protocol::auth::Role;
use protocol::connection::ConnectionError;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;
use tls::Holder;

/// Why a connection or a call failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The peer cannot be reached.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The peer's address.
        address: SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
    /// The socket failed.
    #[error("connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer broke the protocol, does not know the secret, or a bound was hit.
    #[error(transparent)]
    Protocol(#[from] ConnectionError),
    /// The peer does not know a key of the job, or a third party changed its data.
    #[error("{0}; is its key that of the same job?")]
    Tls(#[from] tls::Error),
    /// The peer has a key that belongs to no holder of a job.
    #[error("peer has a key that belongs to no node and to no tool")]
    Identity,
    /// The peer's key does not allow its role.
    #[error("peer wants to be {role:?}, which the key of {holder} does not allow")]
    Role {
        /// The role that it asked for.
        role: Role,
        /// The holder of its key.
        holder: Holder,
    },
    /// The peer uses another protocol.
    #[error(
        "peer does not speak TLS; was one of both started with --plain, or by another version?"
    )]
    NotTls,
    /// The peer has sent more than a handshake takes.
    #[error("peer sent an overlong TLS handshake")]
    Overlong,
    /// The peer closed the connection during the handshake: it refused the secret, or is ending.
    #[error(
        "peer closed the connection during the handshake; is its key, or secret, that of the same job?"
    )]
    Refused,
    /// The connection is closed; a call under way may have been executed or not.
    #[error("connection is closed: {0}")]
    Closed(Rc<str>),
    /// No answer came in time; the call may still be executed.
    #[error("no answer within {} ms", .0.as_millis())]
    Deadline(Duration),
}
