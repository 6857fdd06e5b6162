//! How the two ends of a connection identify each other.

use protocol::auth::{Role, Secret};
use tls::Holder;

/// The proof of a connector.
#[derive(Clone, Debug)]
pub enum Credential {
    /// TLS 1.3 with this key of the job: no third party can read or change the data.
    Tls(tls::Psk),
    /// The job's secret itself, in a handshake without TLS; the data is neither encrypted nor
    /// protected. The simulation uses it, and so do tests and measurements that ask for it.
    Plain(Secret),
}

/// A service's check of connectors.
#[derive(Clone, Debug)]
pub enum Guard {
    /// TLS 1.3, with the keys of this server.
    Tls(tls::Server),
    /// As [`Credential::Plain`].
    Plain(Secret),
}

impl Guard {
    /// Admits the holders of a job's keys.
    ///
    /// # Errors
    /// [`tls::Error::Library`].
    pub fn of_job(key: &tls::JobKey) -> Result<Self, tls::Error> {
        let key = key.clone();
        Ok(Self::Tls(tls::Server::new(move |identity: &[u8]| key.find(identity))?))
    }
}

/// The node for which the peer of a connection may act, according to the holder of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing(pub(crate) Option<Holder>);

impl Standing {
    /// Returns whether the peer may act for the node of this name. Without TLS every peer may,
    /// because all have the same secret.
    pub fn is_node(&self, name: &str) -> bool {
        match &self.0 {
            None => true,
            Some(Holder::Node(own)) => own == name || reactor::mutant!("node-unasked"),
            Some(Holder::Tools) => false,
        }
    }
}

/// Returns whether the holder of a key may connect in a role.
pub(crate) fn may_be(holder: &Holder, role: Role) -> bool {
    match (holder, role) {
        (Holder::Node(_), Role::Client | Role::Agent) | (Holder::Tools, Role::Admin) => true,
        (Holder::Node(_), Role::Admin) | (Holder::Tools, Role::Client | Role::Agent) => {
            reactor::mutant!("role-unasked")
        }
    }
}
