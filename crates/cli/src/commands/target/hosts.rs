//! The hosts of a subsystem: their form on the command line, and their authentication.

use super::config;
use crate::keys;
use anyhow::{Context, bail};
use auth::{Derivation, Group, Hash, KeyPair, Policy, TlsKey};
use nvme::Nqn;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use target::{HostProof, HostTls};
use zeroize::Zeroizing;

/// A host that may connect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostSettings {
    #[serde(deserialize_with = "parsed", serialize_with = "as_text")]
    pub(super) nqn: Nqn,
    /// The file with the host's key.
    dhchap_key: Option<PathBuf>,
    /// The file with the key by which this target authenticates to the host.
    dhchap_ctrl_key: Option<PathBuf>,
    /// The only accepted hash function.
    #[serde(default, deserialize_with = "maybe_parsed", serialize_with = "config::as_text")]
    dhchap_hash: Option<Hash>,
    /// The only accepted Diffie-Hellman group.
    #[serde(default, deserialize_with = "maybe_parsed", serialize_with = "config::as_text")]
    dhchap_dhgroup: Option<Group>,
    /// The file with the host's key for TLS.
    tls_key: Option<PathBuf>,
    /// The host derives keys as libnvme did before 1.15.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    tls_compat: bool,
    /// The host generates a TLS key in its authentication, and uses namespaces only under TLS with
    /// it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    concat: bool,
}

impl FromStr for HostSettings {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let nqn = Nqn::new(parts.next().unwrap_or_default()).map_err(|error| error.to_string())?;
        let mut host = Self {
            nqn,
            dhchap_key: None,
            dhchap_ctrl_key: None,
            dhchap_hash: None,
            dhchap_dhgroup: None,
            tls_key: None,
            tls_compat: false,
            concat: false,
        };
        for option in parts {
            match option.split_once('=') {
                Some(("dhchap-key", file)) => host.dhchap_key = Some(file.into()),
                Some(("dhchap-ctrl-key", file)) => host.dhchap_ctrl_key = Some(file.into()),
                Some(("dhchap-hash", hash)) => host.dhchap_hash = Some(hash.parse()?),
                Some(("dhchap-dhgroup", group)) => host.dhchap_dhgroup = Some(group.parse()?),
                Some(("tls-key", file)) => host.tls_key = Some(file.into()),
                None if option == "tls-compat" => host.tls_compat = true,
                None if option == "concat" => host.concat = true,
                _ => {
                    return Err(format!(
                        "{option:?} is not an option: there are dhchap-key=FILE, \
                         dhchap-ctrl-key=FILE, dhchap-hash=, dhchap-dhgroup=, concat, tls-key=FILE \
                         and tls-compat"
                    ));
                }
            }
        }
        Ok(host)
    }
}

/// The texts of a host's keys, and the accepted algorithms.
pub(super) struct Dhchap {
    pub(super) host: Zeroizing<String>,
    pub(super) controller: Option<Zeroizing<String>>,
    pub(super) hash: Option<Hash>,
    pub(super) group: Option<Group>,
}

impl HostSettings {
    /// Returns what another target needs for the host's authentication, if the host must
    /// authenticate; reads its keys.
    ///
    /// # Errors
    /// If a key cannot be read, or is missing for the other options.
    pub(super) fn dhchap(&self) -> anyhow::Result<Option<Dhchap>> {
        let Some(HostProof { keys, .. }) = self.proof()? else { return Ok(None) };
        Ok(Some(Dhchap {
            host: keys.host.to_text(),
            controller: keys.controller.map(|key| key.to_text()),
            hash: self.dhchap_hash,
            group: self.dhchap_dhgroup,
        }))
    }

    /// Returns whether the host must authenticate, with any kind of key.
    pub(super) fn has_key(&self) -> bool {
        self.dhchap_key.is_some() || self.has_tls()
    }

    /// Returns the files of its keys, to make them absolute.
    pub(super) fn files_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        [&mut self.dhchap_key, &mut self.dhchap_ctrl_key, &mut self.tls_key].into_iter().flatten()
    }

    /// Returns whether it must authenticate in-band.
    pub(super) fn has_dhchap(&self) -> bool {
        self.dhchap_key.is_some()
    }

    /// Returns whether it generates a TLS key in its authentication.
    pub(super) fn is_concatenated(&self) -> bool {
        self.concat
    }

    /// Returns whether it connects under TLS with a key of its own.
    pub(super) fn has_tls(&self) -> bool {
        self.tls_key.is_some()
    }

    /// Returns its TLS key, if it has one; reads the key.
    fn tls(&self) -> anyhow::Result<Option<HostTls>> {
        let Some(file) = &self.tls_key else {
            if self.tls_compat {
                bail!("{} has tls-compat, but no tls-key", self.nqn);
            }
            return Ok(None);
        };
        let derivation = if self.tls_compat { Derivation::Former } else { Derivation::Standard };
        Ok(Some(HostTls { key: keys::read::<TlsKey>(file)?, derivation }))
    }

    /// Returns how it authenticates, if it must; reads its keys.
    fn proof(&self) -> anyhow::Result<Option<HostProof>> {
        let Some(file) = &self.dhchap_key else {
            let is_set = self.dhchap_ctrl_key.is_some()
                || self.dhchap_hash.is_some()
                || self.dhchap_dhgroup.is_some()
                || self.concat;
            if is_set {
                bail!("{} has options for authentication, but no dhchap-key", self.nqn);
            }
            return Ok(None);
        };
        let controller = self.dhchap_ctrl_key.as_deref();
        let keys = KeyPair {
            host: keys::read(file)?,
            controller: controller.map(keys::read).transpose()?,
        };
        let mut policy = Policy::of_target();
        if let Some(hash) = self.dhchap_hash {
            policy.hashes = vec![hash];
        }
        if let Some(group) = self.dhchap_dhgroup {
            policy.groups = vec![group];
        }
        if self.concat {
            if self.has_tls() {
                bail!("it has both concat and tls-key: with a generated key omit tls-key");
            }
            if self.dhchap_hash == Some(Hash::Sha512) || self.dhchap_dhgroup == Some(Group::Null) {
                bail!(
                    "concat needs SHA-256 or SHA-384 and a Diffie-Hellman group: change or omit \
                     dhchap-hash and dhchap-dhgroup"
                );
            }
            policy.concatenation = true;
        }
        Ok(Some(HostProof { keys, policy }))
    }
}

/// Returns how the hosts of all subsystems authenticate. A host has one key at a target, for all of
/// its subsystems.
pub(super) fn proofs<'a>(
    hosts: impl Iterator<Item = &'a HostSettings>,
) -> anyhow::Result<BTreeMap<Nqn, HostProof>> {
    let mut proofs: BTreeMap<Nqn, HostProof> = BTreeMap::new();
    for host in hosts {
        let proof = host.proof().with_context(|| format!("host {}", host.nqn))?;
        let Some(proof) = proof else { continue };
        let is_same = |known: &HostProof| known.keys == proof.keys && known.policy == proof.policy;
        if proofs.get(&host.nqn).is_some_and(|known| !is_same(known)) {
            bail!("host {} has two keys or ways of authentication: one is enough", host.nqn);
        }
        proofs.insert(host.nqn.clone(), proof);
    }
    Ok(proofs)
}

/// Returns the TLS keys of the hosts of all subsystems. A host has one key at a target, from which
/// the keys for its subsystems are derived.
pub(super) fn tls<'a>(
    hosts: impl Iterator<Item = &'a HostSettings>,
) -> anyhow::Result<BTreeMap<Nqn, HostTls>> {
    let mut keys: BTreeMap<Nqn, HostTls> = BTreeMap::new();
    for host in hosts {
        let tls = host.tls().with_context(|| format!("host {}", host.nqn))?;
        let Some(tls) = tls else { continue };
        if keys.get(&host.nqn).is_some_and(|known| *known != tls) {
            bail!("host {} has two keys for TLS: one is enough", host.nqn);
        }
        keys.insert(host.nqn.clone(), tls);
    }
    Ok(keys)
}

fn as_text<S: serde::Serializer>(nqn: &Nqn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(nqn.as_str())
}

fn parsed<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: TryFromText,
{
    T::from_text(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

fn maybe_parsed<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: TryFromText,
{
    parsed(deserializer).map(Some)
}

/// A value with a text form.
trait TryFromText: Sized {
    fn from_text(text: &str) -> Result<Self, String>;
}

impl TryFromText for Nqn {
    fn from_text(text: &str) -> Result<Self, String> {
        Self::new(text).map_err(|error| error.to_string())
    }
}

impl TryFromText for Hash {
    fn from_text(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

impl TryFromText for Group {
    fn from_text(text: &str) -> Result<Self, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: command line and file have the same settings, and invalid ones are refused.
    #[test]
    fn hosts_are_read() {
        let text = "nqn.2026-01.io.tsumugi:h,dhchap-key=/k,dhchap-ctrl-key=/c,dhchap-hash=sha384,\
                    dhchap-dhgroup=ffdhe2048,tls-key=/t,tls-compat";
        let host: HostSettings = text.parse().unwrap();
        assert!(host.has_key() && host.has_tls());
        let toml = "nqn = \"nqn.2026-01.io.tsumugi:h\"\ndhchap_key = \"/k\"\ndhchap_ctrl_key = \"/c\"\n\
                    dhchap_hash = \"hmac(sha384)\"\ndhchap_dhgroup = \"ffdhe2048\"\n\
                    tls_key = \"/t\"\ntls_compat = true\n";
        assert_eq!(toml::from_str::<HostSettings>(toml).unwrap(), host);
        let plain: HostSettings = "nqn.2026-01.io.tsumugi:h".parse().unwrap();
        assert!(!plain.has_key() && proofs([&plain].into_iter()).unwrap().is_empty());
        for wrong in [
            "",
            "host",
            "nqn.2026-01.io.tsumugi:h,key=/k",
            "nqn.2026-01.io.tsumugi:h,dhchap-hash=md5",
        ] {
            assert!(wrong.parse::<HostSettings>().is_err(), "{wrong}");
        }
        let keyless: HostSettings = "nqn.2026-01.io.tsumugi:h,dhchap-hash=sha256".parse().unwrap();
        assert!(proofs([&keyless].into_iter()).is_err());
        assert!(proofs([&host].into_iter()).is_err(), "there is no such file");
        assert!(tls([&host].into_iter()).is_err(), "there is no such file");
        let keyless: HostSettings = "nqn.2026-01.io.tsumugi:h,tls-compat".parse().unwrap();
        assert!(tls([&keyless].into_iter()).is_err());
        let encrypted: HostSettings = "nqn.2026-01.io.tsumugi:h,tls-key=/t".parse().unwrap();
        assert!(encrypted.has_key() && encrypted.has_tls());
    }
}
