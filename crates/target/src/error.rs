//! The crate's error type.

use nvme::{Nqn, Nsid};
use std::io;
use std::net::SocketAddr;

/// Why a target could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A limit makes no sense.
    #[error("{0}")]
    Limits(&'static str),
    /// Two subsystems have one name.
    #[error("there are two subsystems named {0}")]
    SubsystemExists(Nqn),
    /// The name is that of the discovery subsystem, which every target has.
    #[error("{0} names the discovery subsystem; choose another name")]
    ReservedName(Nqn),
    /// The identifier of a namespace is in use or out of range.
    #[error("{nqn} cannot have another {nsid}: identifiers are 1 to 1024, each once")]
    NamespaceId {
        /// The subsystem.
        nqn: Nqn,
        /// The identifier.
        nsid: Nsid,
    },
    /// The file of a namespace's reservations cannot be used.
    #[error(
        "reservations cannot be taken from {}: {fault}; restore the file, or remove it if no host \
         relies on the reservations that it held",
        path.display()
    )]
    Reservations {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong.
        fault: String,
    },
    /// There is no such subsystem.
    #[error("there is no subsystem {0}")]
    NoSubsystem(Nqn),
    /// The subsystem was made without asymmetric access.
    #[error("{0} reports no asymmetric access: name the states of its ANA groups when it is made")]
    NoAna(Nqn),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// There is no RDMA, or an address cannot be listened on over it.
    #[error(transparent)]
    Rdma(#[from] rdma::Error),
    /// RDMA serves on one thread.
    #[error(
        "RDMA serves connections on one core: leave out --cores, or start a target for each core, with its own address"
    )]
    RdmaCores,
    /// Sessions that are admitted and fenced by an agent cannot be asked for proofs of hosts' keys: a
    /// host that connects anew would end its earlier controllers before it has proved itself.
    #[error("hosts cannot be asked for proofs where an agent admits them")]
    ProofOfAdmitted,
    /// TLS could not be set up.
    #[error("TLS cannot be used: {0}")]
    Tls(tls::Error),
    /// A target asks for the keys of hosts or for those of admissions, which somebody has to give.
    #[error(
        "hosts connect with TLS keys of their own, with those of controlled admissions, or with those that they \
         generate in their proofs (concat): a target has one kind"
    )]
    TlsMixed,
    /// The identity of a TLS key separates names by spaces.
    #[error("host {0:?} has a space in its name, and can have no TLS key")]
    TlsName(Nqn),
    /// A core's thread could not be started.
    #[error("cannot start the thread of a core: {0}")]
    Thread(io::Error),
    /// The host of a local handle is not admitted.
    #[error(transparent)]
    Refused(#[from] crate::admission::Refusal),
}
