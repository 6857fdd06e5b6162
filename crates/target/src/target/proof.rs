//! The hosts that must prove themselves, and their proofs (base 8.3.4).
//!
//! A secret belongs to a host and holds for all subsystems. Discovery requires the proof only if
//! configured: nvme-cli cannot authenticate there. Otherwise the discovery log shows subsystems and
//! addresses to any peer that claims a host's name. A host without a secret gives no proof.
//!
//! Where an agent admits hosts, the key of an admission can be the secret
//! ([`Target::require_admission_proofs`]). Then each host proves itself, on discovery too. This
//! guards connections without TLS: an identifier is sent in the clear, and a listener could claim
//! it. A proof comes after Connect, which ends the earlier controllers of the claimed host. So who
//! has heard an identifier can end connections, but gets none.

use super::Target;
use super::connect::{ConnectFailure, Wanted};
use crate::admission::AdmissionMode;
use crate::error::Error;
use crate::handshakes::Attempt;
use auth::{KeyPair, Names, Policy};
use nvme::{Nqn, Status};
use reactor::time::Instant;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// The keys and the policy for the proof of one host.
#[derive(Clone, Debug)]
pub struct HostProof {
    /// The host's secret, and ours towards the host.
    pub keys: KeyPair,
    /// The accepted hash functions and groups, best first.
    pub policy: Policy,
}

/// A proof that a connection still has to give.
#[derive(Debug)]
pub(crate) struct Proof {
    /// The controller's side of the proof.
    pub(crate) controller: auth::Controller,
    /// The attempt, which has to be notified of the proof's success.
    pub(crate) attempt: Attempt,
    /// Whether the host has to generate a key for TLS.
    pub(crate) is_concatenated: bool,
}

impl Target {
    /// Requires from now on that a host proves itself on each of its queue pairs. If the policy
    /// demands concatenation, the host instead generates a TLS key in its proof and connects again
    /// with that key. A second call replaces the secret.
    ///
    /// # Errors
    /// [`Error::ProofOfAdmitted`]; for a policy with concatenation [`Error::TlsName`],
    /// [`Error::Tls`], and [`Error::TlsMixed`] if hosts have TLS keys of their own.
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
        // Only after the insertion: proofs under way then add keys by the present secret alone.
        self.generated.forget(&host);
        Ok(())
    }

    /// Requires the proofs of hosts with secrets for the discovery service too.
    pub fn require_proof_for_discovery(&self) {
        self.registry().is_discovery_proved = true;
    }

    /// Requires from now on that each host proves the key of its admission on each of its queue
    /// pairs. The target proves the same key to the host, if the host demands it.
    ///
    /// # Errors
    /// [`Error::ProofOfKey`] unless admissions are controlled, and if hosts use TLS.
    pub fn require_admission_proofs(&self) -> Result<(), Error> {
        if *self.admissions.mode() != AdmissionMode::Controlled || self.tls.get().is_some() {
            return Err(Error::ProofOfKey);
        }
        self.is_admission_proved.store(true, Ordering::Release);
        Ok(())
    }

    /// Returns whether hosts prove the keys of their admissions.
    pub(super) fn proves_admissions(&self) -> bool {
        self.is_admission_proved.load(Ordering::Acquire) && !reactor::mutant!("admission-unproven")
    }

    /// Returns whether a host that wants to connect has an admission with a key, and a name for its
    /// proof.
    pub(super) fn may_prove(&self, wanted: &Wanted) -> bool {
        let has_key = self.admissions.key(wanted.host).is_some();
        wanted.host_name.is_some() && (has_key || reactor::mutant!("admission-without-key"))
    }

    /// Returns the proof of the key of an admission in force.
    fn proof_of_admission(&self, wanted: &Wanted) -> Option<(Nqn, HostProof)> {
        let host = wanted.host_name.clone()?;
        let keys = KeyPair::of_admission(&self.admissions.key(wanted.host)?);
        Some((host, HostProof { keys, policy: Policy::of_admission() }))
    }

    /// Returns the proof that a host must give before it is admitted, if any. A peer with too many
    /// attempts gets the status to retry later. A connection under TLS with a generated key needs
    /// no other proof.
    pub(super) fn proof_of(
        &self,
        wanted: &Wanted,
        tls_identity: Option<&[u8]>,
        peer: SocketAddr,
        now: Instant,
    ) -> Result<Option<Proof>, ConnectFailure> {
        let required = self.required_proof(wanted, tls_identity);
        let is_of_admission = self.proves_admissions();
        let Some((host, mut proof)) = required else {
            if is_of_admission && !reactor::mutant!("admission-without-key") {
                // The admission has ended since the target looked for its key.
                self.admissions.note_refused();
                return Err(Status::CONNECT_INVALID_HOST.into());
            }
            return Ok(None);
        };
        // Discovery stays in the clear.
        proof.policy.concatenation &= !wanted.subsystem_name.is_discovery();
        let is_concatenated = proof.policy.concatenation;
        let attempt = if is_of_admission {
            // Without a group it takes a few hashes.
            Some(self.handshakes.begin_cheap(peer.ip()))
        } else {
            self.handshakes.begin(peer.ip(), now)
        };
        let Some(attempt) = attempt else {
            // The host may try again.
            return Err(ConnectFailure { status: Status::CONNECT_CONTROLLER_BUSY, dword0: 0 });
        };
        let names = Names { host, subsystem: wanted.subsystem_name.clone() };
        let controller = auth::Controller::new(proof.keys, names, proof.policy);
        Ok(Some(Proof { controller, attempt, is_concatenated }))
    }

    /// Returns the host and the proof that it must give at present, if any.
    pub(super) fn required_proof(
        &self,
        wanted: &Wanted,
        tls_identity: Option<&[u8]>,
    ) -> Option<(Nqn, HostProof)> {
        if self.proves_admissions() {
            return self.proof_of_admission(wanted);
        }
        let host = wanted.host_name.as_ref().filter(|_| !self.is_proved_by(tls_identity))?;
        let registry = self.registry();
        let is_asked = registry.is_discovery_proved || !wanted.subsystem_name.is_discovery();
        let proof = registry.proofs.get(host).filter(|_| is_asked).cloned();
        proof.map(|proof| (host.clone(), proof))
    }
}
