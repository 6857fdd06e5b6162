//! What can go wrong with a connection.

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
    /// The peer does not know a key of the job, or somebody on the way changed what it sent.
    #[error("{0}; is its key that of the same job?")]
    Tls(#[from] tls::Error),
    /// The peer has a key that is none of a job's.
    #[error("peer has a key that belongs to no node and to no tool")]
    Identity,
    /// The peer's key is not for what it wants to be.
    #[error("peer wants to be {role:?}, which the key of {holder} is not for")]
    Role {
        /// What it wants to be.
        role: Role,
        /// Whose key it has.
        holder: Holder,
    },
    /// The peer speaks something else.
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
    /// The connection is closed; whether a call under way was carried out is not known.
    #[error("connection is closed: {0}")]
    Closed(Rc<str>),
    /// No answer came in time; the call may still be carried out.
    #[error("no answer within {} ms", .0.as_millis())]
    Deadline(Duration),
}
