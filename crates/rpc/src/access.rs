//! How the two ends of a connection know each other.

use protocol::auth::{Role, Secret};
use tls::Holder;

/// What a connector proves itself with.
#[derive(Clone, Debug)]
pub enum Credential {
    /// TLS 1.3 with this key of the job: nobody else reads or changes what travels.
    Tls(tls::Psk),
    /// The job's secret itself, in the open handshake; what follows is neither encrypted nor protected. The
    /// simulation has this, and tests and measurements that ask for it.
    Plain(Secret),
}

/// How a service knows those that connect.
#[derive(Clone, Debug)]
pub enum Guard {
    /// TLS 1.3, with the keys that this knows.
    Tls(tls::Server),
    /// As [`Credential::Plain`].
    Plain(Secret),
}

impl Guard {
    /// Lets the holders of a job's keys in.
    ///
    /// # Errors
    /// [`tls::Error::Library`].
    pub fn of_job(key: &tls::JobKey) -> Result<Self, tls::Error> {
        let key = key.clone();
        Ok(Self::Tls(tls::Server::new(move |identity: &[u8]| key.find(identity))?))
    }
}

/// For whom the peer of a connection may speak: it follows from whose key it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing(pub(crate) Option<Holder>);

impl Standing {
    /// Whether it may speak for the node of this name. Without TLS every peer may: all have the same secret.
    pub fn is_node(&self, name: &str) -> bool {
        match &self.0 {
            None => true,
            Some(Holder::Node(own)) => own == name || reactor::mutant!("node-unasked"),
            Some(Holder::Tools) => false,
        }
    }
}

/// Whether who has this key may connect in this role.
pub(crate) fn may_be(holder: &Holder, role: Role) -> bool {
    match (holder, role) {
        (Holder::Node(_), Role::Client | Role::Agent) | (Holder::Tools, Role::Admin) => true,
        (Holder::Node(_), Role::Admin) | (Holder::Tools, Role::Client | Role::Agent) => {
            reactor::mutant!("role-unasked")
        }
    }
}
