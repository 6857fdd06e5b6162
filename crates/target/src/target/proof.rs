//! Which hosts have to prove themselves, and how (base 8.3.4).
//!
//! A secret belongs to a host, for all subsystems. Discovery asks for it only if configured: nvme-cli cannot
//! authenticate there, although the discovery log otherwise shows subsystems and addresses to any peer that
//! claims a host's name. A host without a secret is not asked.

use super::Target;
use super::connect::{ConnectFailure, Wanted};
use crate::admission::AdmissionMode;
use crate::error::Error;
use crate::handshakes::Attempt;
use auth::{KeyPair, Names, Policy};
use nvme::{Nqn, Status};
use reactor::time::Instant;
use std::net::SocketAddr;

/// How a host proves itself.
#[derive(Clone, Debug)]
pub struct HostProof {
    /// Its secret, and ours towards it.
    pub keys: KeyPair,
    /// The hash functions and groups that are good enough, best first.
    pub policy: Policy,
}

/// A proof that a connection owes.
#[derive(Debug)]
pub(crate) struct Proof {
    /// The controller's side of it.
    pub(crate) controller: auth::Controller,
    /// The notification for its success.
    pub(crate) attempt: Attempt,
    /// It has to generate a key for TLS.
    pub(crate) is_concatenated: bool,
}

impl Target {
    /// Has a host prove itself from now on, on each of its queue pairs; or, if its policy says so, generate a TLS key by
    /// that, with which it connects again. Another secret may replace one.
    ///
    /// # Errors
    /// [`Error::ProofOfAdmitted`]; of a policy with concatenation [`Error::TlsName`], [`Error::Tls`], and
    /// [`Error::TlsMixed`] if hosts have TLS keys of their own.
    pub fn require_proof(&self, host: Nqn, proof: HostProof) -> Result<(), Error> {
        if *self.admissions.mode() == AdmissionMode::Controlled {
            return Err(Error::ProofOfAdmitted);
        }
        if proof.policy.concatenation {
            if host.as_str().contains(' ') {
                return Err(Error::TlsName(host));
            }
            self.offer_concatenation()?;
        }
        let mut registry = self.registry();
        registry.proofs.insert(host.clone(), proof);
        // Behind that, as what is under way adds keys by the present secret alone.
        self.generated.forget(&host);
        Ok(())
    }

    /// Has hosts with secrets prove themselves to the discovery service as well.
    pub fn require_proof_for_discovery(&self) {
        self.registry().is_discovery_proved = true;
    }

    /// Returns the proof that a host must give before it is admitted, if any. A peer with too many attempts is
    /// asked to retry later. A connection under TLS with a generated key is a proof itself.
    pub(super) fn proof_of(
        &self,
        wanted: &Wanted,
        tls_identity: Option<&[u8]>,
        peer: SocketAddr,
        now: Instant,
    ) -> Result<Option<Proof>, ConnectFailure> {
        let Some(host) = wanted.host_name.as_ref().filter(|_| !self.is_proved_by(tls_identity))
        else {
            return Ok(None);
        };
        let registry = self.registry();
        let is_asked = registry.is_discovery_proved || !wanted.subsystem_name.is_discovery();
        let proof = registry.proofs.get(host).filter(|_| is_asked).cloned();
        drop(registry);
        let Some(mut proof) = proof else { return Ok(None) };
        // Discovery stays in the clear.
        proof.policy.concatenation &= !wanted.subsystem_name.is_discovery();
        let is_concatenated = proof.policy.concatenation;
        let Some(attempt) = self.handshakes.begin(peer.ip(), now) else {
            // It may be tried again.
            return Err(ConnectFailure { status: Status::CONNECT_CONTROLLER_BUSY, dword0: 0 });
        };
        let names = Names { host: host.clone(), subsystem: wanted.subsystem_name.clone() };
        let controller = auth::Controller::new(proof.keys, names, proof.policy);
        Ok(Some(Proof { controller, attempt, is_concatenated }))
    }
}
