//! Hosts that connect under TLS, and the keys that let them in (TCP 3.6).
//!
//! A target with such keys takes nothing else on its listeners. The identity of a connection's key names a host and
//! a subsystem; a Connect for others is refused, so that a key opens what it was derived for and nothing more.

use super::Target;
use super::connect::{ConnectFailure, Wanted};
use crate::error::Error;
use ::tls::{Keys, Psk, Stream};
use auth::{Derivation, Hash, TlsKey};
use nvme::{Nqn, Status};
use ring::TcpStream;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The TLS key of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTls {
    /// The configured PSK.
    pub key: TlsKey,
    /// Which derivation is meant where an identity does not show it.
    pub derivation: Derivation,
}

/// The keys of all hosts.
#[derive(Debug, Default)]
pub(super) struct Keyring(Mutex<BTreeMap<Nqn, HostTls>>);

impl Keyring {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<Nqn, HostTls>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The keys, for the TLS library.
struct Door(Arc<Keyring>);

impl Keys for Door {
    fn find(&self, identity: &[u8]) -> Option<Psk> {
        let (host, subsystem) = owner(identity)?;
        let HostTls { key, derivation } = self.0.keys().get(&host).cloned()?;
        let psks = key.psks(&host, &subsystem, derivation);
        let psk = psks.into_iter().find(|psk| psk.identity.as_bytes() == identity)?;
        let hash = match psk.hash {
            Hash::Sha384 => ::tls::Hash::Sha384,
            Hash::Sha256 | Hash::Sha512 => ::tls::Hash::Sha256,
        };
        Psk::new(identity, psk.secret, hash).ok()
    }
}

/// The host and the subsystem that an identity names.
fn owner(identity: &[u8]) -> Option<(Nqn, Nqn)> {
    let identity = std::str::from_utf8(identity).ok()?;
    let mut words = identity.splitn(3, ' ');
    let (kind, host, rest) = (words.next()?, words.next()?, words.next()?);
    let subsystem = match kind {
        "NVMe0R01" | "NVMe0R02" => rest,
        "NVMe1R01" | "NVMe1R02" => rest.rsplit_once(' ')?.0,
        _ => return None,
    };
    Some((Nqn::new(host).ok()?, Nqn::new(subsystem).ok()?))
}

impl Target {
    /// Admits a host under TLS with this key, and from now on no host without TLS. Another key may replace it.
    ///
    /// # Errors
    /// [`Error::TlsName`], [`Error::Tls`].
    pub fn require_tls(&self, host: Nqn, tls: HostTls) -> Result<(), Error> {
        if host.as_str().contains(' ') {
            return Err(Error::TlsName(host));
        }
        if self.tls.get().is_none() {
            let server = ::tls::Server::new(Door(Arc::clone(&self.keyring))).map_err(Error::Tls)?;
            // Another thread may have been first: its server has the same keys.
            let _ = self.tls.set(server);
        }
        self.keyring.keys().insert(host, tls);
        self.note_discovery_changed();
        Ok(())
    }

    /// Whether hosts are let in under TLS only.
    pub fn requires_tls(&self) -> bool {
        self.tls.get().is_some()
    }

    /// An accepted connection, under TLS where that is required.
    pub(crate) fn accepted(&self, tcp: TcpStream) -> Result<Stream, ::tls::Error> {
        match self.tls.get() {
            Some(server) => Stream::server(tcp, server),
            None => Ok(Stream::from(tcp)),
        }
    }

    /// Refuses a Connect for another host or subsystem than those that the connection's key is for.
    pub(super) fn check_identity(
        &self,
        wanted: &Wanted,
        identity: Option<&[u8]>,
    ) -> Result<(), ConnectFailure> {
        if !self.requires_tls() {
            return Ok(());
        }
        let is_for_it = identity.and_then(owner).is_some_and(|(host, subsystem)| {
            wanted.host_name.as_ref() == Some(&host) && wanted.subsystem_name == subsystem
        });
        if is_for_it {
            return Ok(());
        }
        self.admissions.note_refused();
        Err(Status::CONNECT_INVALID_HOST.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::fabrics::{Connect, ConnectData};
    use nvme::{ControllerId, QueueId};

    /// Goal: identities name host and subsystem as libnvme writes them, and nothing else is understood.
    #[test]
    fn identities_name_their_owner() {
        let of = |identity: &str| {
            let (host, subsystem) = owner(identity.as_bytes())?;
            Some((host.to_string(), subsystem.to_string()))
        };
        let (host, subsystem) = ("nqn.2026-01.io.tsumugi:h", "nqn.2026-01.io.tsumugi:s");
        let both = Some((host.to_owned(), subsystem.to_owned()));
        assert_eq!(of(&format!("NVMe0R01 {host} {subsystem}")), both);
        assert_eq!(of(&format!("NVMe1R02 {host} {subsystem} ZGlnZXN0")), both);
        for wrong in [
            String::new(),
            format!("NVMe0R03 {host} {subsystem}"),
            format!("NVMe1G01 {host} {subsystem} ZGlnZXN0"),
            format!("NVMe1R01 {host} {subsystem}"),
            format!("NVMe0R01 {host}"),
            format!("NVMe0R01 {subsystem} host"),
        ] {
            assert_eq!(of(&wrong), None, "{wrong}");
        }
        assert_eq!(owner(&[0xff, b' ', 0xff, b' ', 0xff]), None);
    }

    /// Goal: a key is found by each identity that it has for its host, with any subsystem, and by no other.
    #[test]
    fn keys_are_found_by_identity() {
        let nqn = |name: &str| Nqn::new(&format!("nqn.2026-01.io.tsumugi:{name}")).unwrap();
        let key = TlsKey::generate(auth::Hash::Sha384).unwrap();
        let keyring = Arc::<Keyring>::default();
        let tls = HostTls { key: key.clone(), derivation: Derivation::Standard };
        keyring.keys().insert(nqn("host"), tls);
        let door = Door(keyring);
        for subsystem in [nqn("disk"), Nqn::discovery()] {
            for psk in key.psks(&nqn("host"), &subsystem, Derivation::Standard) {
                assert!(door.find(psk.identity.as_bytes()).is_some(), "{}", psk.identity);
            }
            for psk in key.psks(&nqn("other"), &subsystem, Derivation::Standard) {
                assert!(door.find(psk.identity.as_bytes()).is_none());
            }
        }
        let other = TlsKey::generate(auth::Hash::Sha384).unwrap();
        let of_other = other.psks(&nqn("host"), &nqn("disk"), Derivation::Standard);
        // Only an identity with a digest shows that the key is another.
        let found = of_other.iter().filter(|psk| door.find(psk.identity.as_bytes()).is_some());
        assert_eq!(found.count(), 1);
    }

    /// Goal: a key opens what it was derived for and nothing else: not another subsystem, not discovery, not as
    /// another host, and a connection without a key nothing at all.
    #[test]
    fn identities_are_bound_to_a_connect() {
        let nqn = |name: &str| Nqn::new(&format!("nqn.2026-01.io.tsumugi:{name}")).unwrap();
        let admissions = crate::Admissions::new(crate::AdmissionMode::AnyHost);
        let target = Target::new(crate::Limits::default(), admissions).unwrap();
        let key = TlsKey::generate(Hash::Sha256).unwrap();
        let wanted = |host: &str, subsystem: &Nqn| {
            let connect = Connect { qid: QueueId(0), sq_entries: 32, cattr: 0, keep_alive_ms: 0 };
            let id = nvme::HostId([7; 16]);
            let data = ConnectData::new(id, ControllerId::DYNAMIC, subsystem, &nqn(host));
            Wanted::decode(&connect.encode().unwrap(), data.bytes()).unwrap()
        };
        let identity =
            key.psks(&nqn("host"), &nqn("disk"), Derivation::Standard)[0].identity.clone();
        let check = |host: &str, subsystem: &Nqn, identity: Option<&str>| {
            target.check_identity(&wanted(host, subsystem), identity.map(str::as_bytes)).is_ok()
        };
        assert!(check("host", &nqn("disk"), None), "nothing is asked of anybody yet");
        let tls = HostTls { key, derivation: Derivation::Standard };
        target.require_tls(nqn("host"), tls.clone()).unwrap();
        let identity = Some(identity.as_str());
        assert!(check("host", &nqn("disk"), identity));
        assert!(!check("other", &nqn("disk"), identity));
        assert!(!check("host", &nqn("disk-2"), identity));
        assert!(!check("host", &Nqn::discovery(), identity));
        assert!(!check("host", &nqn("disk"), None));
        let spaced = Nqn::new("nqn.2026-01.io.tsumugi:a b").unwrap();
        assert!(matches!(target.require_tls(spaced, tls), Err(Error::TlsName(_))));
    }
}
