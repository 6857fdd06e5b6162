//! The crate's error type.

use nvme::{Nqn, Nsid};
use std::io;
use std::net::SocketAddr;

/// An error of the set-up or administration of a target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A limit has an invalid value.
    #[error("{0}")]
    Limits(&'static str),
    /// Two subsystems have the same name.
    #[error("there are two subsystems named {0}")]
    SubsystemExists(Nqn),
    /// The name belongs to the discovery subsystem, which every target has.
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
        "the reservations in {} cannot be used: {fault}; restore the file, or remove it if no host \
         relies on the reservations in it",
        path.display()
    )]
    Reservations {
        /// The file.
        path: std::path::PathBuf,
        /// The fault of the file.
        fault: String,
    },
    /// The subsystem does not exist.
    #[error("there is no subsystem {0}")]
    NoSubsystem(Nqn),
    /// The subsystem was created without asymmetric access.
    #[error(
        "{0} reports no asymmetric access: name the states of its ANA groups when you create it"
    )]
    NoAna(Nqn),
    /// The target cannot listen at an address.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// RDMA is not available, or the target cannot listen at an address over RDMA.
    #[error(transparent)]
    Rdma(#[from] rdma::Error),
    /// RDMA needs a target with one core.
    #[error(
        "RDMA serves connections on one core: leave out --cores, or start a target for each core, \
         with its own address"
    )]
    RdmaCores,
    /// Proofs of hosts do not go together with sessions that an agent admits and fences: a host
    /// that connects again would end its earlier controllers before its proof.
    #[error("hosts cannot be required to prove themselves when an agent admits them")]
    ProofOfAdmitted,
    /// Proofs by the keys of admissions need controlled admissions, and connections in the clear.
    #[error(
        "hosts prove the keys of their admissions only if an agent admits them, and without TLS"
    )]
    ProofOfKey,
    /// TLS could not be set up.
    #[error("TLS cannot be used: {0}")]
    Tls(tls::Error),
    /// Hosts, admissions and proofs are three sources of TLS keys, and a target uses only one of
    /// them.
    #[error(
        "hosts connect with TLS keys of their own, with those of controlled admissions, or with those \
         that they generate in their proofs (concat): a target has one kind"
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
