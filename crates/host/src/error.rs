//! The crate's error type, and the reasons for the end of a connection.
//!
//! An error's text is complete. Causes in the text are not sources too, because printing the chain
//! would repeat them.

use nvme::rdma::RejectStatus;
use nvme::tcp::{FatalErrorStatus, PduError};
use nvme::{CommandId, Nsid, QueueId, Status};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A violation of the protocol by the controller, which ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// A PDU violates the transport.
    #[error("the target violated the transport: {0}")]
    Pdu(#[from] PduError),
    /// The controller ended the connection and sent a reason.
    #[error("the target ended the connection: {status} (information {information:#x})")]
    TerminatedByTarget {
        /// Its reason, FES.
        status: FatalErrorStatus,
        /// Details, FEI.
        information: u32,
    },
    /// An answer to a command that is not outstanding.
    #[error("the target answered {0}, which is not outstanding")]
    UnknownCommand(CommandId),
    /// An answer over RDMA that is no completion queue entry.
    #[error("the target answered with {0} bytes instead of 16")]
    ShortResponse(usize),
    /// The target invalidated a key that is not its command's.
    #[error("the target violated the transport: {0}")]
    Invalidation(&'static str),
    /// The memory for a command's data is missing.
    #[error("data arrived for {0}, but its memory is missing")]
    DestinationGone(CommandId),
}

/// Reason for the end of a connection.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionEnd {
    /// The host closed it.
    #[error("closed by this host")]
    Closed,
    /// The target closed it without a reason.
    #[error("closed by the target")]
    ClosedByTarget,
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(Arc<io::Error>),
    /// The connection over RDMA failed.
    #[error("the connection over RDMA failed: {0}")]
    Rdma(&'static str),
    /// The adapter cannot use this host's memory, or takes no work requests.
    #[error("the RDMA device cannot be used: {0}")]
    RdmaDevice(Arc<io::Error>),
    /// TLS failed, most often because the two sides have no common key.
    #[error(
        "TLS with the target failed: {0}; does the target expect TLS, with this key for this host \
         and subsystem?"
    )]
    Tls(tls::Error),
    /// The key cannot be used.
    #[error("the TLS key cannot be used: {0}")]
    TlsKey(tls::KeyError),
    /// The target violated the protocol, or reported that this host did.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// A command was not answered in time.
    #[error("a command was not answered within {0:?}")]
    CommandTimeout(Duration),
    /// Another connection of the same controller ended, and the controller ends with it.
    #[error("the controller is being reset")]
    ControllerReset,
}

/// Reason for the failure of an operation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The TCP connection could not be established.
    #[error("cannot connect to {address}: {error}")]
    Connect {
        /// The peer.
        address: SocketAddr,
        /// The socket's error.
        error: Arc<io::Error>,
    },
    /// There is no RDMA, or the connection over RDMA could not be established.
    #[error(transparent)]
    Rdma(Arc<rdma::Error>),
    /// The target refused the connection of a queue pair over RDMA.
    #[error("{address} refused {queue} over RDMA: {status}{hint}")]
    QueueRefused {
        /// The target.
        address: SocketAddr,
        /// The queue pair.
        queue: QueueId,
        /// The reason.
        status: RejectStatus,
        /// A possible remedy; begins with a colon unless empty.
        hint: &'static str,
    },
    /// The target accepted the TCP connection but did not continue in time.
    #[error("{address} did not answer {what} within {timeout:?}")]
    Timeout {
        /// The host or target that failed.
        address: SocketAddr,
        /// The missing step.
        what: &'static str,
        /// The time that the host waited.
        timeout: Duration,
    },
    /// The connection ended before the answer; whether the command took effect is unknown.
    #[error("connection lost: {0}")]
    ConnectionLost(ConnectionEnd),
    /// The controller refused an admin or Fabrics command.
    #[error("{command} failed: {}{hint}", name_of(command, *status))]
    Refused {
        /// The command's name.
        command: &'static str,
        /// The controller's status.
        status: Status,
        /// A possible remedy; begins with a colon unless empty.
        hint: &'static str,
    },
    /// The controller refused an I/O command.
    #[error("{command} of {blocks} blocks at block {start_lba} of {nsid} failed: {status}")]
    Io {
        /// The command's name.
        command: &'static str,
        /// The namespace.
        nsid: Nsid,
        /// First block.
        start_lba: u64,
        /// Number of blocks.
        blocks: u64,
        /// The controller's status.
        status: Status,
    },
    /// Received data did not match its digest, repeatedly.
    #[error("received data does not match its digest")]
    DataDigest,
    /// The controller reported success but sent less data than requested.
    #[error("the target sent {received_bytes} of {expected_bytes} bytes and reported success")]
    DataUnderrun {
        /// Received bytes.
        received_bytes: u32,
        /// Requested bytes.
        expected_bytes: u32,
    },
    /// An answer has an invalid field.
    #[error("the target's {structure} is invalid: {fault}")]
    InvalidResponse {
        /// The structure.
        structure: &'static str,
        /// The fault of its field.
        fault: nvme::Error,
    },
    /// The controller did not become ready, or reported a fatal state.
    #[error("the controller {0}")]
    ControllerFailed(&'static str),
    /// The target demands a feature that this host does not support.
    #[error("the target demands {0}, which this host does not support yet")]
    Unsupported(&'static str),
    /// The target does not have an optional command.
    #[error("the target does not have {0}; `tsumugi nvme id-ctrl` shows what it has")]
    NotOffered(&'static str),
    /// The namespace does not exist.
    #[error("{0} does not exist behind this controller; see `tsumugi nvme list`")]
    NoSuchNamespace(Nsid),
    /// The caller's request is invalid.
    #[error("{what} of {bytes} bytes at {offset_bytes}: {why}")]
    InvalidRequest {
        /// The kind of request.
        what: &'static str,
        /// Start of the request.
        offset_bytes: u64,
        /// Length of the request.
        bytes: u64,
        /// The fault of the request.
        why: &'static str,
    },
    /// An option has an invalid value.
    #[error("option {option}: {why}")]
    InvalidOption {
        /// The option's name.
        option: &'static str,
        /// The fault of the value.
        why: &'static str,
    },
    /// The controller could not be reached again in time, and was given up.
    #[error("the controller is lost: no connection for {0:?} (ctrl_loss_tmo)")]
    ControllerLost(Duration),
    /// The request was not completed within its deadline.
    #[error("the request was not completed within {0:?}")]
    DeadlineExceeded(Duration),
    /// A write was under way when the connection ended, and may not be repeated.
    #[error("a write was under way when the connection was lost ({0}), and may not be repeated")]
    WriteInterrupted(ConnectionEnd),
    /// The device has a new incarnation and may have lost unflushed writes. The namespace handle
    /// stays failed until [`Namespace::adopt_incarnation`](crate::Namespace::adopt_incarnation).
    #[error("the device lost unflushed writes: its incarnation was {was} and is {now}")]
    WritesLost {
        /// The incarnation at the opening of the handle.
        was: uuid::Uuid,
        /// The present incarnation.
        now: uuid::Uuid,
    },
    /// The namespace's identifier now belongs to another namespace.
    #[error("{0} is no longer the namespace that was opened")]
    NamespaceReplaced(Nsid),
    /// A path does not lead to the same namespace as the others.
    #[error("the path through {address} cannot be used with the others: {what}")]
    PathMismatch {
        /// The target's address.
        address: SocketAddr,
        /// The difference.
        what: &'static str,
    },
    /// No path to the namespace worked for the longest time that a command may wait.
    #[error("no path to the namespace for {0:?} (ctrl_loss_tmo)")]
    NoPath(Duration),
    /// TLS could not be negotiated, most often because the two sides have no common key.
    #[error(transparent)]
    SecureChannel(ConnectionEnd),
    /// The target demands a proof of this host.
    #[error("the target demands a proof of this host's identity: give its --dhchap-secret")]
    SecretNeeded,
    /// The target demands a proof that generates a TLS key.
    #[error(
        "the target demands an authentication that generates a TLS key (secure channel \
         concatenation): give --concat beside --dhchap-secret"
    )]
    ConcatenationNeeded,
    /// The target accepts this host without a proof, so no proof generates a TLS key.
    #[error(
        "no TLS key can be generated: the target demands no authentication of this host; configure \
         it there, or connect without --concat"
    )]
    NothingToConcatenate,
    /// Host and controller did not authenticate each other.
    #[error("authentication failed: {0}")]
    Authentication(auth::Fault),
    /// The user disconnected the controller.
    #[error("the controller was disconnected")]
    Disconnected,
    /// More tasks wait for a queue slot than this host allows.
    #[error("more than {0} requests wait for the queue pair")]
    TooManyWaiters(usize),
}

impl From<io::Error> for ConnectionEnd {
    fn from(error: io::Error) -> Self {
        match error.get_ref().and_then(|it| it.downcast_ref::<tls::Error>()) {
            Some(error) => Self::Tls(error.clone()),
            None => Self::Socket(Arc::new(error)),
        }
    }
}

impl From<rdma::Error> for Error {
    fn from(error: rdma::Error) -> Self {
        Self::Rdma(Arc::new(error))
    }
}

impl From<ConnectionEnd> for Error {
    fn from(end: ConnectionEnd) -> Self {
        Self::ConnectionLost(end)
    }
}

/// Returns the name of a status. Some numbers have another meaning for Connect.
fn name_of(command: &str, status: Status) -> String {
    match status.connect_name() {
        Some(name) if command == "Connect" => name.to_owned(),
        _ => status.to_string(),
    }
}

impl Error {
    /// Returns whether the error concerns the connection and not the request, so that the request
    /// may succeed on a new connection.
    pub fn is_connection_error(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Timeout { .. } | Self::ConnectionLost(_) => true,
            Self::QueueRefused { status, .. } => *status == RejectStatus::NoResources,
            Self::Rdma(error) => {
                matches!(**error, rdma::Error::Unreachable { .. } | rdma::Error::Refused { .. })
            }
            _ => false,
        }
    }

    /// Returns the closest errno for callers of POSIX functions.
    pub fn to_errno(&self) -> i32 {
        const EIO: i32 = 5;
        const ENOENT: i32 = 2;
        const EBUSY: i32 = 16;
        const EACCES: i32 = 13;
        const EINVAL: i32 = 22;
        const ENOSPC: i32 = 28;
        const EBADE: i32 = 52;
        const ENODATA: i32 = 61;
        const EOPNOTSUPP: i32 = 95;
        const ETIMEDOUT: i32 = 110;
        const EILSEQ: i32 = 84;
        match self {
            Self::Timeout { .. }
            | Self::DeadlineExceeded(_)
            | Self::ControllerLost(_)
            | Self::NoPath(_) => ETIMEDOUT,
            Self::Refused { command: "Connect", status, .. }
                if status.is(Status::CONNECT_INVALID_HOST) =>
            {
                EACCES
            }
            Self::SecretNeeded
            | Self::ConcatenationNeeded
            | Self::NothingToConcatenate
            | Self::Authentication(_)
            | Self::SecureChannel(_) => EACCES,
            Self::NoSuchNamespace(_) => ENOENT,
            Self::InvalidRequest { .. }
            | Self::InvalidOption { .. }
            | Self::PathMismatch { .. } => EINVAL,
            Self::TooManyWaiters(_) => EBUSY,
            Self::Unsupported(_) | Self::NotOffered(_) => EOPNOTSUPP,
            Self::Rdma(error)
                if matches!(**error, rdma::Error::Library(_) | rdma::Error::NoWindows { .. }) =>
            {
                EOPNOTSUPP
            }
            Self::DataDigest => EILSEQ,
            Self::Io { status, .. } if status.is(Status::CAPACITY_EXCEEDED) => ENOSPC,
            Self::Io { status, .. } if status.is(Status::RESERVATION_CONFLICT) => EBADE,
            Self::Io { status, .. } if status.is(Status::UNRECOVERED_READ_ERROR) => ENODATA,
            _ => EIO,
        }
    }
}
