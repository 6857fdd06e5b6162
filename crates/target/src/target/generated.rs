//! Secure channel concatenation (base 8.3.4.5.9, TCP 3.6.1.2): a host proves itself in the clear,
//! generates a TLS key with this target in that proof, and connects again under TLS with this key.
//!
//! A target with such hosts accepts connections in the clear and under TLS; the first byte shows
//! which kind a connection is. In the clear, such a host gets an admin queue pair after its proof,
//! but no I/O queue pair. A generated key is valid for one host and one subsystem, and exists only
//! in memory. The target forgets a key that was not used for a while; a host that connects again
//! generates another.

use super::Target;
use super::connect::Wanted;
use super::proof::HostProof;
use super::tls::{host_of, to_library};
use ::tls::{Keys, Psk};
use auth::{Derivation, TlsKey, TlsPsk};
use nvme::Nqn;
use reactor::time::Instant;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of keys that are kept for one host: one for each controller that it is
/// connecting.
const KEYS_PER_HOST_MAX: usize = 256;
/// How long a key is kept after its generation or after the last Connect under it.
const UNUSED_MAX: Duration = Duration::from_mins(2);

/// The generated keys, oldest first.
#[derive(Debug, Default)]
pub(super) struct Generated(Mutex<VecDeque<Entry>>);

#[derive(Debug)]
struct Entry {
    host: Nqn,
    psk: TlsPsk,
    used: Instant,
}

impl Generated {
    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a key. If the host has too many, its oldest key is dropped.
    fn add(&self, host: &Nqn, psk: TlsPsk, now: Instant) {
        let mut entries = self.entries();
        entries.retain(|entry| now.since(entry.used) < UNUSED_MAX);
        let of_host = |entry: &Entry| entry.host == *host;
        if entries.iter().filter(|entry| of_host(entry)).count() >= KEYS_PER_HOST_MAX
            && let Some(oldest) = entries.iter().position(of_host)
        {
            entries.remove(oldest);
        }
        entries.push_back(Entry { host: host.clone(), psk, used: now });
    }

    /// Returns the key with this identity. A use extends the time for which the key is kept. An
    /// identity in the first message of a handshake is not a use, because strangers can send it.
    fn psk(&self, identity: &[u8], now: Instant, is_used: bool) -> Option<TlsPsk> {
        let mut entries = self.entries();
        entries.retain(|entry| now.since(entry.used) < UNUSED_MAX);
        let entry = entries.iter_mut().find(|entry| entry.psk.identity.as_bytes() == identity)?;
        if is_used {
            entry.used = now;
        }
        Some(entry.psk.clone())
    }

    /// Removes the keys of a host.
    pub(super) fn forget(&self, host: &Nqn) {
        self.entries().retain(|entry| entry.host != *host);
    }
}

/// Generated keys as a source of keys for the TLS library.
pub(super) struct GeneratedKeys(pub(super) Arc<Generated>);

impl Keys for GeneratedKeys {
    fn find(&self, identity: &[u8]) -> Option<Psk> {
        to_library(self.0.psk(identity, reactor::time::now(), false)?)
    }
}

impl Target {
    /// Keeps the key that a host generated with this target in its proof, but only if the host's
    /// present settings demand the same secrets and a generated key. Secrets that were replaced or
    /// removed meanwhile produce no keys.
    pub(crate) fn note_generated(&self, controller: &auth::Controller, key: &TlsKey, now: Instant) {
        let auth::Names { host, subsystem } = controller.names();
        let psks = key.psks(host, subsystem, Derivation::Standard);
        // Secrets change under this lock, and their keys are dropped after the change.
        let registry = self.registry();
        let is_present =
            |proof: &HostProof| proof.policy.concatenation && controller.is_by(&proof.keys);
        let is_present = registry.proofs.get(host).is_some_and(is_present);
        for psk in psks.into_iter().filter(|_| is_present) {
            self.generated.add(host, psk, now);
        }
        drop(registry);
    }

    /// Returns whether a host has to generate a TLS key in its proof.
    fn is_concatenated(&self, host: &Nqn) -> bool {
        self.registry().proofs.get(host).is_some_and(|proof| proof.policy.concatenation)
    }

    /// Returns whether a connection may get the role that its Connect requests. Under TLS, the key
    /// must have been generated for this host and subsystem. In the clear, a host that generates
    /// keys gets no I/O queue pair.
    pub(super) fn may_concatenate(&self, wanted: &Wanted, identity: Option<&[u8]>) -> bool {
        let Some(identity) = identity else {
            let is_io = !wanted.connect.qid.is_admin();
            let host = wanted.host_name.as_ref();
            return !is_io || !host.is_some_and(|host| self.is_concatenated(host));
        };
        host_of(identity, wanted).is_some()
            && self.generated.psk(identity, reactor::time::now(), true).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use auth::Hash;
    use nvme::fabrics::{Connect, ConnectData};
    use nvme::{ControllerId, HostId, QueueId};

    fn nqn(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.test:{name}")).unwrap()
    }

    fn psk(host: &str, number: usize) -> TlsPsk {
        let key = TlsKey::generate(Hash::Sha256).unwrap();
        let psk = key.psks(&nqn(host), &nqn("disk"), Derivation::Standard).remove(0);
        let identity = format!("NVMe1G01 {} {} {number}=", nqn(host), nqn("disk"));
        TlsPsk { identity, ..psk }
    }

    fn target() -> std::sync::Arc<Target> {
        let admissions = crate::Admissions::new(crate::AdmissionMode::AnyHost);
        Target::new(crate::Limits::default(), admissions).unwrap()
    }

    fn keys() -> auth::KeyPair {
        auth::KeyPair { host: auth::Key::generate(None, 32).unwrap(), controller: None }
    }

    /// Uses a small group only: the code of this test is not optimised.
    fn policy(concatenation: bool) -> auth::Policy {
        let (hashes, groups) = (vec![Hash::Sha256], vec![auth::Group::Ffdhe2048]);
        auth::Policy { hashes, groups, concatenation }
    }

    /// Returns the key that the controller has after a transaction with a host that has this
    /// secret.
    fn generate(controller: &mut auth::Controller, keys: &auth::KeyPair, number: u16) -> TlsKey {
        let names = controller.names().clone();
        let (host, message) = auth::Host::start(keys.clone(), names, policy(true), number);
        controller.receive(&message);
        let challenge = controller.next_message().unwrap();
        controller.receive(&host.challenged(&challenge).unwrap().1);
        controller.next_message().unwrap();
        controller.take_generated().unwrap()
    }

    /// Goal: the target keeps keys while they are used, but not while a handshake only names them;
    /// it keeps a bounded number for each host, and drops them with the host.
    #[test]
    fn keys_are_kept_for_a_while() {
        let (generated, start) = (Generated::default(), reactor::time::now());
        let find = |host: &str, number: usize, at: Duration, is_used| {
            generated.psk(psk(host, number).identity.as_bytes(), start + at, is_used).is_some()
        };
        let has = |host: &str, number: usize, at: Duration| find(host, number, at, false);
        for number in 0..KEYS_PER_HOST_MAX + 3 {
            generated.add(&nqn("one"), psk("one", number), start);
            generated.add(&nqn("two"), psk("two", 0), start);
        }
        let soon = UNUSED_MAX / 2;
        assert!(!has("one", 2, Duration::ZERO) && has("one", 3, Duration::ZERO));
        assert_eq!(generated.entries().len(), 2 * KEYS_PER_HOST_MAX);
        assert!(find("one", 5, soon, true) && has("one", 6, soon) && !has("three", 5, soon));
        let late = UNUSED_MAX + Duration::from_secs(1);
        assert!(has("one", 5, late) && !has("one", 6, late), "only the used key is left");
        assert_eq!(generated.entries().len(), 1, "the other keys are gone");
        generated.forget(&nqn("two"));
        assert!(has("one", 5, late));
        generated.forget(&nqn("one"));
        assert!(!has("one", 5, late));
    }

    /// Goal: a generated key is valid only for the host and subsystem that it was generated for; a
    /// host that must generate a key gets no I/O queue pair in the clear, and other hosts do.
    #[test]
    fn keys_are_bound_to_a_connect() {
        let target = target();
        let proof = HostProof { keys: keys(), policy: policy(true) };
        target.require_proof(nqn("one"), proof).unwrap();
        let answer = |host: &str, subsystem: &str, qid: u16, identity: Option<&TlsPsk>| {
            let connect = Connect { qid: QueueId(qid), sq_entries: 32, cattr: 0, keep_alive_ms: 0 };
            let id = HostId([7; 16]);
            let data = ConnectData::new(id, ControllerId(1), &nqn(subsystem), &nqn(host));
            let wanted = Wanted::decode(&connect.encode().unwrap(), data.bytes()).unwrap();
            target.check_identity(&wanted, identity.map(|psk| psk.identity.as_bytes()))
        };
        let check = |host: &str, subsystem: &str, qid: u16, identity: Option<&TlsPsk>| {
            answer(host, subsystem, qid, identity).is_ok()
        };
        let is_final = |subsystem: &str, identity: Option<&TlsPsk>| {
            answer("one", subsystem, 1, identity).unwrap_err().status.is_do_not_retry()
        };
        assert!(check("one", "disk", 0, None) && !check("one", "disk", 1, None));
        assert!(check("two", "disk", 1, None));
        let psk = psk("one", 1);
        assert!(!check("one", "disk", 1, Some(&psk)), "the key has not been generated yet");
        target.generated.add(&nqn("one"), psk.clone(), reactor::time::now());
        assert!(check("one", "disk", 1, Some(&psk)) && check("one", "disk", 0, Some(&psk)));
        assert!(!check("one", "other", 1, Some(&psk)) && !check("two", "disk", 1, Some(&psk)));
        target.forget_proof(&nqn("one"));
        assert!(!check("one", "disk", 1, Some(&psk)));
        assert!(!is_final("disk", Some(&psk)), "the host may generate another key");
        assert!(is_final("other", Some(&psk)));
    }

    /// Goal: secrets that were replaced or removed produce no more keys, even on a connection that
    /// has proved itself by them.
    #[test]
    fn former_secrets_make_no_keys() {
        let (target, old) = (target(), keys());
        let mut number = 0;
        let require = |keys: &auth::KeyPair, concatenation| {
            let proof = HostProof { keys: keys.clone(), policy: policy(concatenation) };
            target.require_proof(nqn("one"), proof).unwrap();
            assert!(target.generated.entries().is_empty(), "former keys are gone");
        };
        let names = auth::Names { host: nqn("one"), subsystem: nqn("disk") };
        let mut controller = auth::Controller::new(old.clone(), names, policy(true));
        let mut is_kept = || {
            number += 1;
            let key = generate(&mut controller, &old, number);
            target.note_generated(&controller, &key, reactor::time::now());
            let psk = key.psks(&nqn("one"), &nqn("disk"), Derivation::Standard).remove(0);
            target.generated.psk(psk.identity.as_bytes(), reactor::time::now(), false).is_some()
        };
        require(&old, true);
        assert!(is_kept());
        require(&keys(), true);
        assert!(!is_kept(), "the secret was replaced");
        require(&old, false);
        assert!(!is_kept(), "the host must not generate a key");
        require(&old, true);
        assert!(is_kept());
        target.forget_proof(&nqn("one"));
        assert!(!is_kept() && target.generated.entries().is_empty(), "the secret was removed");
    }
}
