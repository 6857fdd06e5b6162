//! The hosts of a subsystem: how they are written on the command line, and how they prove themselves.

use crate::keys;
use anyhow::{Context, bail};
use auth::{Group, Hash, KeyPair, Policy};
use nvme::Nqn;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;
use target::HostProof;

/// A host that may connect.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostSettings {
    #[serde(deserialize_with = "parsed")]
    pub(super) nqn: Nqn,
    /// The file with the host's key.
    dhchap_key: Option<PathBuf>,
    /// The file with the key by which this target proves itself to the host.
    dhchap_ctrl_key: Option<PathBuf>,
    /// The only hash function that is good enough.
    #[serde(default, deserialize_with = "maybe_parsed")]
    dhchap_hash: Option<Hash>,
    /// The only group that is good enough.
    #[serde(default, deserialize_with = "maybe_parsed")]
    dhchap_dhgroup: Option<Group>,
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
        };
        for option in parts {
            match option.split_once('=') {
                Some(("dhchap-key", file)) => host.dhchap_key = Some(file.into()),
                Some(("dhchap-ctrl-key", file)) => host.dhchap_ctrl_key = Some(file.into()),
                Some(("dhchap-hash", hash)) => host.dhchap_hash = Some(hash.parse()?),
                Some(("dhchap-dhgroup", group)) => host.dhchap_dhgroup = Some(group.parse()?),
                _ => {
                    return Err(format!(
                        "{option:?} is not an option: there are dhchap-key=FILE, \
                         dhchap-ctrl-key=FILE, dhchap-hash= and dhchap-dhgroup="
                    ));
                }
            }
        }
        Ok(host)
    }
}

impl HostSettings {
    /// Whether it has to prove itself.
    pub(super) fn has_key(&self) -> bool {
        self.dhchap_key.is_some()
    }

    /// How it proves itself, if it has to; its keys are read now.
    fn proof(&self) -> anyhow::Result<Option<HostProof>> {
        let Some(file) = &self.dhchap_key else {
            let is_set = self.dhchap_ctrl_key.is_some()
                || self.dhchap_hash.is_some()
                || self.dhchap_dhgroup.is_some();
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
        Ok(Some(HostProof { keys, policy }))
    }
}

/// How the hosts of all subsystems prove themselves. A host has one key at a target, whichever of its
/// subsystems it connects to.
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

/// What is written as text.
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

    /// Goal: command line and file say the same things, and nonsense is refused.
    #[test]
    fn hosts_are_read() {
        let text = "nqn.2026-01.io.tsumugi:h,dhchap-key=/k,dhchap-ctrl-key=/c,dhchap-hash=sha384,\
                    dhchap-dhgroup=ffdhe2048";
        let host: HostSettings = text.parse().unwrap();
        assert!(host.has_key());
        let toml = "nqn = \"nqn.2026-01.io.tsumugi:h\"\ndhchap_key = \"/k\"\ndhchap_ctrl_key = \"/c\"\n\
                    dhchap_hash = \"hmac(sha384)\"\ndhchap_dhgroup = \"ffdhe2048\"\n";
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
    }
}
