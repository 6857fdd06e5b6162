//! Hosts that connect under TLS, and their keys (TCP 3.6).
//!
//! A target with such keys accepts only TLS on its listeners. The identity of a connection's key
//! names a host and a subsystem. The target refuses a Connect for another host or subsystem, so a
//! key is valid only for those that it was derived for.
//!
//! The keys belong either to configured hosts ([`Target::require_tls`]) or to admissions
//! ([`Target::require_admission_keys`]). A key of an admission exists only in the table of
//! admissions and ends with its admission. It is valid for one host identifier, which the host's
//! name contains.

use super::Target;
use super::connect::{ConnectFailure, Wanted};
use super::generated;
use crate::admission::{AdmissionMode, Admissions};
use crate::error::Error;
use ::tls::{Keys, Psk, Stream};
use auth::{Derivation, Hash, IdentityVersion, TlsKey, TlsPsk};
use nvme::{HostId, Nqn, Status};
use reactor::TcpStream;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// The TLS key of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTls {
    /// The configured PSK.
    pub key: TlsKey,
    /// The derivation to use if an identity does not show it.
    pub derivation: Derivation,
}

/// The keys of all hosts.
#[derive(Debug, Default)]
pub(super) struct Keyring(Mutex<BTreeMap<Nqn, HostTls>>);

impl Keyring {
    fn keys(&self) -> MutexGuard<'_, BTreeMap<Nqn, HostTls>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a host's key. Returns whether it had one.
    pub(super) fn remove(&self, host: &Nqn) -> bool {
        self.keys().remove(host).is_some()
    }

    /// Returns the PSK with this identity, if the present key of its host has such a PSK.
    fn psk(&self, identity: &[u8]) -> Option<TlsPsk> {
        let (host, subsystem) = owner(identity)?;
        let HostTls { key, derivation } = self.keys().get(&host).cloned()?;
        let psks = key.psks(&host, &subsystem, derivation);
        psks.into_iter().find(|psk| psk.identity.as_bytes() == identity)
    }
}

/// Keys of configured hosts as a source of keys for the TLS library.
struct HostKeys(Arc<Keyring>);

impl Keys for HostKeys {
    fn find(&self, identity: &[u8]) -> Option<Psk> {
        to_library(self.0.psk(identity)?)
    }
}

/// Keys of admissions as a source of keys for the TLS library.
struct AdmissionKeys(Arc<Admissions>);

impl Keys for AdmissionKeys {
    fn find(&self, identity: &[u8]) -> Option<Psk> {
        to_library(admitted(&self.0, identity)?)
    }
}

/// Returns the PSK with this identity, if it belongs to an admission in force.
fn admitted(admissions: &Admissions, identity: &[u8]) -> Option<TlsPsk> {
    let (host, subsystem) = owner(identity)?;
    let key = admissions.key(host_id(&host)?)?;
    let psk = key.psk(&host, &subsystem, IdentityVersion::V1, Derivation::Standard).ok()?;
    (psk.identity.as_bytes() == identity).then_some(psk)
}

/// Returns the host identifier in a host's name of the UUID form, with or without a suffix after a
/// colon.
fn host_id(host: &Nqn) -> Option<HostId> {
    let (_, uuid) = host.as_str().split_once(":uuid:")?;
    let id = *Uuid::try_parse(uuid.split(':').next()?).ok()?.as_bytes();
    let rest = host.as_str().strip_prefix(Nqn::from_uuid(id).as_str())?;
    (rest.is_empty() || rest.starts_with(':')).then_some(HostId(id))
}

pub(super) fn to_library(psk: TlsPsk) -> Option<Psk> {
    let hash = match psk.hash {
        Hash::Sha384 => ::tls::Hash::Sha384,
        Hash::Sha256 | Hash::Sha512 => ::tls::Hash::Sha256,
    };
    Psk::new(psk.identity.as_bytes(), psk.secret, hash).ok()
}

/// The TLS server of a target, and the owners of its keys.
#[derive(Debug)]
pub(super) struct Required {
    server: ::tls::Server,
    keys: KeysOf,
}

/// The owners of the keys that the target accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeysOf {
    /// Configured hosts.
    Hosts,
    /// Admissions.
    Admissions,
    /// Hosts that generate keys in proofs, which they give in the clear.
    Generated,
}

/// Returns the host and the subsystem that an identity names.
pub(super) fn owner(identity: &[u8]) -> Option<(Nqn, Nqn)> {
    let identity = std::str::from_utf8(identity).ok()?;
    let mut words = identity.splitn(3, ' ');
    let (kind, host, rest) = (words.next()?, words.next()?, words.next()?);
    let subsystem = match kind {
        "NVMe0R01" | "NVMe0R02" => rest,
        "NVMe1R01" | "NVMe1R02" | "NVMe1G01" | "NVMe1G02" => rest.rsplit_once(' ')?.0,
        _ => return None,
    };
    Some((Nqn::new(host).ok()?, Nqn::new(subsystem).ok()?))
}

/// Returns the host that an identity names, if host and subsystem are those of a Connect.
pub(super) fn host_of(identity: &[u8], wanted: &Wanted) -> Option<Nqn> {
    let (host, subsystem) = owner(identity)?;
    let is_for_it = wanted.host_name.as_ref() == Some(&host) && wanted.subsystem_name == subsystem;
    is_for_it.then_some(host)
}

impl Target {
    /// Accepts a host under TLS with this key, and from now on no host without TLS. A second call
    /// for a host replaces its key.
    ///
    /// # Errors
    /// [`Error::TlsName`], [`Error::Tls`].
    pub fn require_tls(&self, host: Nqn, tls: HostTls) -> Result<(), Error> {
        if host.as_str().contains(' ') {
            return Err(Error::TlsName(host));
        }
        self.require(HostKeys(Arc::clone(&self.keyring)), KeysOf::Hosts)?;
        self.keyring.keys().insert(host, tls);
        self.note_discovery_changed();
        Ok(())
    }

    /// Accepts hosts only under TLS from now on, each with the key of its admission.
    ///
    /// # Errors
    /// [`Error::TlsMixed`] unless admissions are controlled, or if hosts have keys of their own
    /// already; [`Error::Tls`].
    pub fn require_admission_keys(&self) -> Result<(), Error> {
        if *self.admissions.mode() != AdmissionMode::Controlled {
            return Err(Error::TlsMixed);
        }
        self.require(AdmissionKeys(Arc::clone(&self.admissions)), KeysOf::Admissions)
    }

    /// Accepts connections under TLS with generated keys, beside those in the clear, from now on.
    pub(super) fn offer_concatenation(&self) -> Result<(), Error> {
        self.require(generated::GeneratedKeys(Arc::clone(&self.generated)), KeysOf::Generated)
    }

    fn require(&self, source: impl Keys, keys: KeysOf) -> Result<(), Error> {
        if self.proves_admissions() {
            return Err(Error::ProofOfKey);
        }
        if self.tls.get().is_none() {
            let server = ::tls::Server::new(source).map_err(Error::Tls)?;
            // Another thread may have been first: its server has the same keys.
            let _ = self.tls.set(Required { server, keys });
        }
        match self.tls.get() {
            Some(required) if required.keys == keys => Ok(()),
            _ => Err(Error::TlsMixed),
        }
    }

    /// Returns whether the target accepts hosts under TLS only.
    pub fn requires_tls(&self) -> bool {
        self.tls.get().is_some_and(|required| required.keys != KeysOf::Generated)
    }

    /// Returns whether the key of a connection with this identity, if it has one, was generated in
    /// a proof.
    pub(super) fn is_proved_by(&self, identity: Option<&[u8]>) -> bool {
        let is_generated = |required: &Required| required.keys == KeysOf::Generated;
        identity.is_some() && self.tls.get().is_some_and(is_generated)
    }

    /// Makes a stream of an accepted connection, under TLS if that is required.
    pub(crate) fn accepted(&self, tcp: TcpStream) -> Result<Stream, ::tls::Error> {
        match self.tls.get() {
            Some(Required { server, keys: KeysOf::Generated }) => Stream::either(tcp, server),
            Some(required) => Stream::server(tcp, &required.server),
            None => Ok(Stream::from(tcp)),
        }
    }

    /// Refuses a Connect for a host or subsystem other than those of the connection's key. If the
    /// key was generated and was dropped after the handshake, the host may try again and generate
    /// another.
    pub(super) fn check_identity(
        &self,
        wanted: &Wanted,
        identity: Option<&[u8]>,
    ) -> Result<(), ConnectFailure> {
        // A host that proves its admission is refused, and counted, when the target looks for that.
        if self.proves_admissions() || self.may_connect(wanted, identity) {
            return Ok(());
        }
        self.admissions.note_refused();
        let status = Status::CONNECT_INVALID_HOST;
        let is_for_it = identity.is_some_and(|identity| host_of(identity, wanted).is_some());
        if is_for_it && self.is_proved_by(identity) {
            return Err(ConnectFailure { status, dword0: 0 });
        }
        Err(status.into())
    }

    /// Returns whether a connection's key is valid for the host and the subsystem of a Connect on
    /// it, or the host can prove itself later. The key of an admission has to be in force now, not only at the handshake. The key of a
    /// host must not have been removed, or replaced by one with another identity, since the
    /// handshake.
    pub(super) fn may_connect(&self, wanted: &Wanted, identity: Option<&[u8]>) -> bool {
        if self.proves_admissions() {
            return self.may_prove(wanted);
        }
        let Some(required) = self.tls.get() else { return true };
        if required.keys == KeysOf::Generated {
            return self.may_concatenate(wanted, identity);
        }
        let Some(identity) = identity else { return false };
        let Some(host) = host_of(identity, wanted) else { return false };
        match required.keys {
            KeysOf::Hosts => self.keyring.psk(identity).is_some(),
            KeysOf::Admissions => {
                let is_its_own = host_id(&host) == Some(wanted.host);
                (is_its_own || reactor::mutant!("key-of-any-host"))
                    && (admitted(&self.admissions, identity).is_some()
                        || reactor::mutant!("key-of-an-earlier-admission"))
            }
            KeysOf::Generated => unreachable!("handled above"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvme::fabrics::{Connect, ConnectData};
    use nvme::{ControllerId, QueueId};

    /// Goal: identities name host and subsystem as libnvme writes them; other forms are refused.
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
        assert_eq!(of(&format!("NVMe1G01 {host} {subsystem} ZGlnZXN0")), both);
        for wrong in [
            String::new(),
            format!("NVMe0R03 {host} {subsystem}"),
            format!("NVMe0G01 {host} {subsystem}"),
            format!("NVMe1R01 {host} {subsystem}"),
            format!("NVMe0R01 {host}"),
            format!("NVMe0R01 {subsystem} host"),
        ] {
            assert_eq!(of(&wrong), None, "{wrong}");
        }
        assert_eq!(owner(&[0xff, b' ', 0xff, b' ', 0xff]), None);
    }

    /// Goal: a key is found by each identity that it has for its host, with any subsystem, and by
    /// no other.
    #[test]
    fn keys_are_found_by_identity() {
        let nqn = |name: &str| Nqn::new(&format!("nqn.2026-01.io.tsumugi:{name}")).unwrap();
        let key = TlsKey::generate(auth::Hash::Sha384).unwrap();
        let keyring = Arc::<Keyring>::default();
        let tls = HostTls { key: key.clone(), derivation: Derivation::Standard };
        keyring.keys().insert(nqn("host"), tls);
        let keys = HostKeys(keyring);
        for subsystem in [nqn("disk"), Nqn::discovery()] {
            for psk in key.psks(&nqn("host"), &subsystem, Derivation::Standard) {
                assert!(keys.find(psk.identity.as_bytes()).is_some(), "{}", psk.identity);
            }
            for psk in key.psks(&nqn("other"), &subsystem, Derivation::Standard) {
                assert!(keys.find(psk.identity.as_bytes()).is_none());
            }
        }
        let other = TlsKey::generate(auth::Hash::Sha384).unwrap();
        let of_other = other.psks(&nqn("host"), &nqn("disk"), Derivation::Standard);
        // Only an identity with a digest shows that the key is another one.
        let found = of_other.iter().filter(|psk| keys.find(psk.identity.as_bytes()).is_some());
        assert_eq!(found.count(), 1);
    }

    /// Goal: a key is valid only for what it was derived for: not for another subsystem, for
    /// discovery or for another host; a connection without a key gets nothing.
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
        assert!(check("host", &nqn("disk"), None), "no host has to use TLS yet");
        let tls = HostTls { key, derivation: Derivation::Standard };
        target.require_tls(nqn("host"), tls.clone()).unwrap();
        let identity = Some(identity.as_str());
        assert!(check("host", &nqn("disk"), identity));
        assert!(!check("other", &nqn("disk"), identity));
        assert!(!check("host", &nqn("disk-2"), identity));
        assert!(!check("host", &Nqn::discovery(), identity));
        assert!(!check("host", &nqn("disk"), None));
        let other = TlsKey::generate(Hash::Sha256).unwrap();
        let replaced = HostTls { key: other, derivation: Derivation::Standard };
        target.require_tls(nqn("host"), replaced).unwrap();
        assert!(
            !check("host", &nqn("disk"), identity),
            "its handshake was made with the earlier key"
        );
        target.require_tls(nqn("host"), tls.clone()).unwrap();
        assert!(check("host", &nqn("disk"), identity));
        assert!(target.forget_tls(&nqn("host")) && !target.forget_tls(&nqn("host")));
        assert!(!check("host", &nqn("disk"), identity) && target.requires_tls());
        let spaced = Nqn::new("nqn.2026-01.io.tsumugi:a b").unwrap();
        assert!(matches!(target.require_tls(spaced, tls), Err(Error::TlsName(_))));
    }

    /// Goal: only the form of our sessions' names yields a host identifier.
    #[test]
    fn names_show_identifiers() {
        let id = HostId([0x5a; 16]);
        let own = Nqn::from_uuid(id.0);
        let of = |name: &str| host_id(&Nqn::new(name).unwrap());
        assert_eq!(of(own.as_str()), Some(id));
        assert_eq!(of(&format!("{own}:1")), Some(id));
        for wrong in [
            format!("{own}1"),
            own.as_str().replace("nvmexpress", "example"),
            own.as_str().replace("5a5a5a5a-", "5A5A5A5A-"),
            own.as_str().replace("-5a", "5a"),
            "nqn.2014-08.org.nvmexpress:uuid:".to_owned(),
            "nqn.2026-01.io.tsumugi:host".to_owned(),
        ] {
            assert_eq!(of(&wrong), None, "{wrong}");
        }
    }

    /// Goal: the target refuses a Connect on a connection whose handshake used a key of an earlier
    /// admission of the same host, or a key for another host identifier or subsystem.
    #[test]
    fn the_key_is_that_of_the_admission_in_force() {
        let admissions = crate::Admissions::new(AdmissionMode::Controlled);
        let target = Target::new(crate::Limits::default(), Arc::clone(&admissions)).unwrap();
        target.require_admission_keys().unwrap();
        let (id, disk) = (HostId([7; 16]), Nqn::from_uuid([8; 16]));
        let host = Nqn::new(&format!("{}:1", Nqn::from_uuid(id.0))).unwrap();
        let wanted = |id: HostId, subsystem: &Nqn| {
            let connect = Connect { qid: QueueId(0), sq_entries: 32, cattr: 0, keep_alive_ms: 0 };
            let data = ConnectData::new(id, ControllerId::DYNAMIC, subsystem, &host);
            Wanted::decode(&connect.encode().unwrap(), data.bytes()).unwrap()
        };
        let lapse = admissions.now() + std::time::Duration::from_mins(1);
        let admit = |epoch: u64, key: &TlsKey| {
            let mut admitted =
                std::pin::pin!(admissions.admit_with_key(id, epoch, lapse, Some(key.clone())));
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(admitted.as_mut().poll(&mut cx).is_ready());
        };
        let identity = |key: &TlsKey| {
            key.psk(&host, &disk, IdentityVersion::V1, Derivation::Standard).unwrap().identity
        };
        let (first, second) =
            (TlsKey::generate(Hash::Sha384).unwrap(), TlsKey::generate(Hash::Sha384).unwrap());
        let may = |id, subsystem: &Nqn, key: &TlsKey| {
            target.may_connect(&wanted(id, subsystem), Some(identity(key).as_bytes()))
        };
        assert!(!may(id, &disk, &first), "no host is admitted yet");
        admit(1, &first);
        assert!(may(id, &disk, &first) && !may(id, &disk, &second));
        assert!(!may(HostId([9; 16]), &disk, &first), "the identifier is another host's");
        assert!(!may(id, &Nqn::from_uuid([9; 16]), &first), "the subsystem is another one");
        assert!(!target.may_connect(&wanted(id, &disk), None), "there was no handshake");
        admit(2, &second);
        assert!(!may(id, &disk, &first) && may(id, &disk, &second));
        drop(admissions.fence(id, 2));
        assert!(!may(id, &disk, &second), "the host was fenced");
    }
}
