//! Secure channel concatenation (base 8.3.4.5.9, TCP 3.6.1.2): hosts that prove themselves in the clear, generate a TLS
//! key with this target in that proof, and connect again under TLS with it.
//!
//! A target with such hosts takes connections in the clear and under TLS, each as its first byte says. In the clear
//! such a host gets an admin queue pair once it has proved itself, and no I/O queue pair. A generated key is for one
//! host and one subsystem, lives in memory alone, and is forgotten when it has not been used for a while: a host that
//! connects anew generates another.

use super::Target;
use super::connect::Wanted;
use super::tls::{owner, to_library};
use ::tls::{Keys, Psk};
use auth::{Derivation, TlsKey, TlsPsk};
use nvme::Nqn;
use ring::time::Instant;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Keys of one host that are kept: one for each of its controllers that are being connected.
const KEYS_PER_HOST_MAX: usize = 16;
/// How long a key is kept after it was generated, or after the last connection with it.
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

    /// Returns the key by this identity, and keeps it for a while from now on.
    pub(super) fn psk(&self, identity: &[u8], now: Instant) -> Option<TlsPsk> {
        let mut entries = self.entries();
        entries.retain(|entry| now.since(entry.used) < UNUSED_MAX);
        let entry = entries.iter_mut().find(|entry| entry.psk.identity.as_bytes() == identity)?;
        entry.used = now;
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
        to_library(self.0.psk(identity, ring::time::now())?)
    }
}

impl Target {
    /// Keeps the key that a host has generated with this target in its proof.
    pub(crate) fn note_generated(&self, names: &auth::Names, key: &TlsKey, now: Instant) {
        for psk in key.psks(&names.host, &names.subsystem, Derivation::Standard) {
            self.generated.add(&names.host, psk, now);
        }
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
        let Some((host, subsystem)) = owner(identity) else { return false };
        wanted.host_name.as_ref() == Some(&host)
            && wanted.subsystem_name == subsystem
            && self.generated.psk(identity, ring::time::now()).is_some()
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

    /// Goal: keys are kept while they are used, a bounded number for each host, and go with it.
    #[test]
    fn keys_are_kept_for_a_while() {
        let (generated, start) = (Generated::default(), ring::time::now());
        let has = |host: &str, number: usize, at: Duration| {
            generated.psk(psk(host, number).identity.as_bytes(), start + at).is_some()
        };
        for number in 0..KEYS_PER_HOST_MAX + 3 {
            generated.add(&nqn("one"), psk("one", number), start);
            generated.add(&nqn("two"), psk("two", 0), start);
        }
        let soon = UNUSED_MAX / 2;
        assert!(!has("one", 2, Duration::ZERO) && has("one", 3, Duration::ZERO));
        assert_eq!(generated.entries().len(), 2 * KEYS_PER_HOST_MAX);
        assert!(has("one", 5, soon) && !has("three", 5, soon));
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
        let admissions = crate::Admissions::new(crate::AdmissionMode::AnyHost);
        let target = Target::new(crate::Limits::default(), admissions).unwrap();
        let secret = || auth::Key::generate(None, 32).unwrap();
        let keys = auth::KeyPair { host: secret(), controller: None };
        let policy = auth::Policy { concatenation: true, ..auth::Policy::default() };
        target.require_proof(nqn("one"), crate::HostProof { keys, policy }).unwrap();
        let check = |host: &str, subsystem: &str, qid: u16, identity: Option<&TlsPsk>| {
            let connect = Connect { qid: QueueId(qid), sq_entries: 32, cattr: 0, keep_alive_ms: 0 };
            let id = HostId([7; 16]);
            let data = ConnectData::new(id, ControllerId(1), &nqn(subsystem), &nqn(host));
            let wanted = Wanted::decode(&connect.encode().unwrap(), data.bytes()).unwrap();
            target.may_connect(&wanted, identity.map(|psk| psk.identity.as_bytes()))
        };
        assert!(check("one", "disk", 0, None) && !check("one", "disk", 1, None));
        assert!(check("two", "disk", 1, None));
        let psk = psk("one", 1);
        assert!(!check("one", "disk", 1, Some(&psk)), "nobody has generated it");
        target.generated.add(&nqn("one"), psk.clone(), ring::time::now());
        assert!(check("one", "disk", 1, Some(&psk)) && check("one", "disk", 0, Some(&psk)));
        assert!(!check("one", "other", 1, Some(&psk)) && !check("two", "disk", 1, Some(&psk)));
        target.forget_proof(&nqn("one"));
        assert!(!check("one", "disk", 1, Some(&psk)));
    }
}
