//! Secure channel concatenation (base 8.3.4.5.9, TCP 3.6.1.2): hosts that prove themselves in the clear, generate a TLS
//! key with this target in that proof, and connect again under TLS with it.
//!
//! A target with such hosts takes connections in the clear and under TLS, each as its first byte says. In the clear
//! such a host gets an admin queue pair once it has proved itself, and no I/O queue pair. A generated key is for one
//! host and one subsystem, lives in memory alone, and is forgotten when it has not been used for a while: a host that
//! connects anew generates another.

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

/// Keys of one host that are kept: one for each of its controllers that are being connected.
const KEYS_PER_HOST_MAX: usize = 256;
/// How long a key is kept after it was generated, or after the last Connect under it.
const UNUSED_MAX: Duration = Duration::from_mins(2);

/// The keys that were generated, oldest first.
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

    /// Adds a key. The oldest of the host goes if it has too many.
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

    /// Returns the key by this identity. If it is used it is kept for a while from now on. Naming it in the first
    /// message of a handshake is no use of it, as strangers can do that.
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

/// The generated keys, for the TLS library.
pub(super) struct Door(pub(super) Arc<Generated>);

impl Keys for Door {
    fn find(&self, identity: &[u8]) -> Option<Psk> {
        to_library(self.0.psk(identity, reactor::time::now(), false)?)
    }
}

impl Target {
    /// Keeps the key that a host has generated with this target in its proof, if it would have to generate one by the
    /// same secrets now: those that were replaced or removed since make no more keys.
    pub(crate) fn note_generated(&self, controller: &auth::Controller, key: &TlsKey, now: Instant) {
        let auth::Names { host, subsystem } = controller.names();
        let psks = key.psks(host, subsystem, Derivation::Standard);
        // Secrets change under this lock, and their keys are forgotten behind that.
        let registry = self.registry();
        let is_present =
            |proof: &HostProof| proof.policy.concatenation && controller.is_by(&proof.keys);
        let is_present = registry.proofs.get(host).is_some_and(is_present);
        for psk in psks.into_iter().filter(|_| is_present) {
            self.generated.add(host, psk, now);
        }
        drop(registry);
    }

    /// Whether a host has to generate a TLS key in its proof.
    fn is_concatenated(&self, host: &Nqn) -> bool {
        self.registry().proofs.get(host).is_some_and(|proof| proof.policy.concatenation)
    }

    /// Whether a connection may become what its Connect asks for: under TLS if its key was generated for the host and the
    /// subsystem; in the clear unless a host that generates keys asks for an I/O queue pair.
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

    /// A small group only: this is not optimised.
    fn policy(concatenation: bool) -> auth::Policy {
        let (hashes, groups) = (vec![Hash::Sha256], vec![auth::Group::Ffdhe2048]);
        auth::Policy { hashes, groups, concatenation }
    }

    /// The key that a transaction of a host with this secret leaves with the controller.
    fn generate(controller: &mut auth::Controller, keys: &auth::KeyPair, number: u16) -> TlsKey {
        let names = controller.names().clone();
        let (host, message) = auth::Host::start(keys.clone(), names, policy(true), number);
        controller.receive(&message);
        let challenge = controller.next_message().unwrap();
        controller.receive(&host.challenged(&challenge).unwrap().1);
        controller.next_message().unwrap();
        controller.take_generated().unwrap()
    }

    /// Goal: keys are kept while they are used, and not while they are only named; a bounded number for each host, with
    /// which they go.
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
        assert!(has("one", 5, late) && !has("one", 6, late), "only what was used is there");
        assert_eq!(generated.entries().len(), 1, "the rest is gone");
        generated.forget(&nqn("two"));
        assert!(has("one", 5, late));
        generated.forget(&nqn("one"));
        assert!(!has("one", 5, late));
    }

    /// Goal: a generated key opens what it was generated for, and a host that has to have one gets no I/O queue pair
    /// in the clear; other hosts do.
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
        assert!(!check("one", "disk", 1, Some(&psk)), "nobody has generated it");
        target.generated.add(&nqn("one"), psk.clone(), reactor::time::now());
        assert!(check("one", "disk", 1, Some(&psk)) && check("one", "disk", 0, Some(&psk)));
        assert!(!check("one", "other", 1, Some(&psk)) && !check("two", "disk", 1, Some(&psk)));
        target.forget_proof(&nqn("one"));
        assert!(!check("one", "disk", 1, Some(&psk)));
        assert!(!is_final("disk", Some(&psk)), "the host may generate another key");
        assert!(is_final("other", Some(&psk)));
    }

    /// Goal: secrets that were replaced or removed make no more keys, though a connection is proved by them still.
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
        assert!(!is_kept(), "the host is to generate no key");
        require(&old, true);
        assert!(is_kept());
        target.forget_proof(&nqn("one"));
        assert!(!is_kept() && target.generated.entries().is_empty(), "the secret was removed");
    }
}
