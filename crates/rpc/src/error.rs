//! What can go wrong with a connection.

use protocol::connection::ConnectionError;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;
use thiserror::Error;

/// Why a connection or a call failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The peer cannot be reached.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// Who was to be reached.
        address: SocketAddr,
        /// Why it was not.
        source: std::io::Error,
    },
    /// The socket failed.
    #[error("connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer broke the protocol, does not know the secret, or a bound was hit.
    #[error(transparent)]
    Protocol(#[from] ConnectionError),
    /// The peer closed the connection during the handshake: it refused the secret, or is ending.
    #[error("peer closed the connection during the handshake; is the secret that of the same job?")]
    Refused,
    /// The connection is closed; whether a call under way was carried out is not known.
    #[error("connection is closed: {0}")]
    Closed(Rc<str>),
    /// No answer came in time; the call may still be carried out.
    #[error("no answer within {} ms", .0.as_millis())]
    Deadline(Duration),
}
