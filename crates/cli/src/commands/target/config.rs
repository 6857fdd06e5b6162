//! The settings of a target, from its configuration file and its options.

use super::cores::CoreCount;
use super::hosts::HostSettings;
use super::namespace::NamespaceSettings;
use super::{identity, size};
use anyhow::{Context, bail};
use nvme::Nqn;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use target::HostAccess;
use uuid::Uuid;

/// Least memory for commands' data, in bytes.
const DATA_MEMORY_MIN: u64 = 4 << 20;

/// All settings of a target.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Settings {
    pub(super) listen: Vec<SocketAddr>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) listen_rdma: Vec<SocketAddr>,
    pub(super) insecure: bool,
    pub(super) auth_discovery: bool,
    pub(super) cores: Option<CoreCount>,
    pub(super) poll_us: Option<reactor::Spin>,
    #[serde(deserialize_with = "size::deserialize", serialize_with = "size::serialize")]
    pub(super) data_memory_max: Option<u64>,
    pub(super) cntlid_min: Option<u16>,
    pub(super) cntlid_max: Option<u16>,
    pub(super) connections_max: Option<usize>,
    pub(super) controllers_max: Option<usize>,
    pub(super) io_queues_max: Option<u16>,
    pub(super) queue_size_max: Option<u16>,
    #[serde(deserialize_with = "size::deserialize", serialize_with = "size::serialize")]
    pub(super) mdts: Option<u64>,
    /// The control socket, or "none".
    pub(super) control: Option<PathBuf>,
    pub(super) hdr_digest: bool,
    pub(super) data_digest: bool,
    pub(super) network_namespace: Option<PathBuf>,
    #[serde(rename = "subsystem", skip_serializing_if = "Vec::is_empty")]
    pub(super) subsystems: Vec<SubsystemSettings>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            listen_rdma: Vec::new(),
            insecure: false,
            auth_discovery: false,
            cores: None,
            poll_us: None,
            data_memory_max: None,
            cntlid_min: None,
            cntlid_max: None,
            connections_max: None,
            controllers_max: None,
            io_queues_max: None,
            queue_size_max: None,
            mdts: None,
            control: None,
            hdr_digest: true,
            data_digest: true,
            network_namespace: None,
            subsystems: Vec::new(),
        }
    }
}

/// One subsystem.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SubsystemSettings {
    #[serde(default, deserialize_with = "nqn", serialize_with = "as_text")]
    pub(super) nqn: Option<Nqn>,
    pub(super) serial: Option<String>,
    pub(super) model: Option<String>,
    #[serde(default, deserialize_with = "nqns", serialize_with = "as_texts")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) allow_hosts: Vec<Nqn>,
    /// States of ANA groups when the target starts, by the groups' numbers.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) ana: BTreeMap<String, String>,
    #[serde(default, rename = "host", skip_serializing_if = "Vec::is_empty")]
    pub(super) hosts: Vec<HostSettings>,
    #[serde(default, rename = "namespace", skip_serializing_if = "Vec::is_empty")]
    pub(super) namespaces: Vec<NamespaceSettings>,
}

impl Settings {
    /// Reads a configuration file.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("{} is not valid", path.display()))
    }

    /// Fills in defaults, and checks conditions that concern several settings.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if self.listen.is_empty() && self.listen_rdma.is_empty() {
            self.listen.push(SocketAddr::from(([127, 0, 0, 1], nvme::tcp::IO_PORT)));
        }
        if self.subsystems.iter().all(|subsystem| subsystem.namespaces.is_empty()) {
            bail!("there is no namespace to export: give --namespace or a configuration file");
        }
        if self.data_memory_max.is_some_and(|bytes| bytes < DATA_MEMORY_MIN) {
            bail!("data_memory_max must be at least 4M, which is four of the longest transfers");
        }
        self.check_hosts()
    }

    /// Checks that the settings fit RDMA.
    fn check_rdma(&self) -> anyhow::Result<()> {
        if self.cores.is_some_and(|cores| cores.get() > 1) {
            bail!("RDMA serves on one core: omit --cores, or start a target for each core");
        }
        if self.network_namespace.is_some() {
            bail!(
                "RDMA devices belong to the network namespace of the process: omit \
                --network-namespace"
            );
        }
        let has_tls = self.subsystems.iter().flat_map(|it| &it.hosts).any(HostSettings::has_tls);
        if has_tls {
            bail!(
                "there is no TLS over RDMA, but a target with TLS keys accepts nothing else: use \
                dhchap-key"
            );
        }
        Ok(())
    }

    /// Checks that hosts can connect and strangers cannot; also for a change of a running target.
    pub(super) fn check_hosts(&self) -> anyhow::Result<()> {
        if !self.listen_rdma.is_empty() {
            self.check_rdma()?;
        }
        self.check_tls()?;
        for subsystem in &self.subsystems {
            super::ana::states(subsystem)?;
        }
        let mut addresses = self.listen.iter().chain(&self.listen_rdma);
        let exposed = addresses.find(|address| !address.ip().is_loopback());
        let has_keys = self.subsystems.iter().all(SubsystemSettings::has_keys);
        if let Some(address) = exposed
            && !self.insecure
            && !has_keys
        {
            bail!(
                "{address} can be reached from other machines, and hosts are not authenticated: \
                 any program that reaches it can read and overwrite the namespaces, and \
                 --allow-host only compares a name that any host can claim. Give each host a key \
                 with --host NQN,dhchap-key=FILE or --host NQN,tls-key=FILE, listen on a loopback \
                 address, or give --insecure if you trust the network"
            );
        }
        Ok(())
    }
}

impl Settings {
    /// Refuses hosts that could never connect: if any host has a TLS key, the target accepts only
    /// TLS.
    fn check_tls(&self) -> anyhow::Result<()> {
        let hosts = || self.subsystems.iter().flat_map(|subsystem| &subsystem.hosts);
        if !hosts().any(HostSettings::has_tls) {
            return Ok(());
        }
        if let Some(host) = hosts().find(|host| !host.has_tls()) {
            bail!(
                "host {} has no tls-key although another host has one: a target with TLS keys \
                accepts nothing but TLS; give this host a key, or export to it from a second \
                target",
                host.nqn
            );
        }
        for subsystem in &self.subsystems {
            if let Some(host) = subsystem.allow_hosts.first() {
                bail!(
                    "host {host} could never connect: a target with TLS keys accepts nothing but \
                    TLS; give --host {host},tls-key=FILE instead of --allow-host"
                );
            }
            if subsystem.hosts.is_empty() {
                bail!(
                    "a subsystem lists no hosts although another has hosts with TLS keys: a target \
                    with such keys accepts nothing but TLS; list the hosts of each subsystem"
                );
            }
        }
        Ok(())
    }
}

impl SubsystemSettings {
    pub(super) fn new(
        nqn: Option<Nqn>,
        allow_hosts: &[Nqn],
        hosts: &[HostSettings],
        namespaces: &[NamespaceSettings],
    ) -> Self {
        Self {
            nqn,
            serial: None,
            model: None,
            ana: BTreeMap::new(),
            allow_hosts: allow_hosts.to_vec(),
            hosts: hosts.to_vec(),
            namespaces: namespaces.to_vec(),
        }
    }

    /// Returns the hosts that may connect.
    pub(super) fn access(&self) -> HostAccess {
        let named = self.allow_hosts.iter().chain(self.hosts.iter().map(|host| &host.nqn));
        let named: BTreeSet<Nqn> = named.cloned().collect();
        if named.is_empty() { HostAccess::Any } else { HostAccess::List(named) }
    }

    /// Returns whether every host must authenticate.
    fn has_keys(&self) -> bool {
        self.allow_hosts.is_empty()
            && !self.hosts.is_empty()
            && self.hosts.iter().all(HostSettings::has_key)
    }

    /// Returns the subsystem's NQN: the given one, else one derived from its persistent namespaces,
    /// which have the UUIDs `persistent`.
    pub(super) fn nqn(&self, persistent: &[Uuid]) -> anyhow::Result<Nqn> {
        match &self.nqn {
            Some(nqn) => Ok(nqn.clone()),
            None => identity::nqn(persistent),
        }
    }

    pub(super) fn serial(&self, nqn: &Nqn) -> String {
        self.serial.clone().unwrap_or_else(|| identity::serial(nqn))
    }

    pub(super) fn model(&self) -> String {
        self.model.clone().unwrap_or_else(|| "Tsumugi target".into())
    }
}

/// Serializes a value by its text.
#[allow(clippy::ref_option, reason = "serde gives the field")]
pub(super) fn as_text<T: std::fmt::Display, S: serde::Serializer>(
    value: &Option<T>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) => serializer.collect_str(value),
        None => serializer.serialize_none(),
    }
}

fn as_texts<S: serde::Serializer>(values: &[Nqn], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(Nqn::as_str))
}

fn nqn<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Nqn>, D::Error> {
    let text = String::deserialize(deserializer)?;
    Nqn::new(&text).map(Some).map_err(serde::de::Error::custom)
}

fn nqns<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<Nqn>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| Nqn::new(text).map_err(serde::de::Error::custom)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a complete configuration is read; an error names its place.
    #[test]
    fn configurations_are_read() {
        let text = "listen = [\"127.0.0.1:0\"]\npoll_us = 50\n[[subsystem]]\n\
            nqn = \"nqn.2026-01.io.tsumugi:a\"\n[[subsystem.namespace]]\nmemory = \"512M\"\n\
            [[subsystem.namespace]]\npath = \"/x\"\nsize = \"4G\"\nread_only = true\n";
        let mut settings: Settings = toml::from_str(text).unwrap();
        settings.check().unwrap();
        assert_eq!(settings.subsystems[0].namespaces.len(), 2);
        assert!(settings.subsystems[0].namespaces[1].read_only);
        let error = toml::from_str::<Settings>("listen = []\npoll = 3\n").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("poll"), "{error}");
        let wrong = text.replace("512M", "many");
        let error = toml::from_str::<Settings>(&wrong).unwrap_err().to_string();
        assert!(error.contains("line 6") && error.contains("many"), "{error}");
    }

    /// Goal: a target is never exposed to a network by accident.
    #[test]
    fn exposure_has_to_be_asked_for() {
        let text = "listen = [\"10.0.0.7:4420\"]\n[[subsystem]]\n[[subsystem.namespace]]\n\
            memory = 4194304\n";
        let mut settings: Settings = toml::from_str(text).unwrap();
        assert!(settings.check().unwrap_err().to_string().contains("--insecure"));
        settings.insecure = true;
        settings.check().unwrap();
        // Hosts that authenticate may use the network, unless hosts without keys may connect too.
        let key = "[[subsystem.host]]\nnqn = \"nqn.2026-01.io.tsumugi:h\"\ndhchap_key = \"/k\"\n";
        let mut settings: Settings = toml::from_str(&format!("{text}{key}")).unwrap();
        settings.check().unwrap();
        let keyless = "[[subsystem.host]]\nnqn = \"nqn.2026-01.io.tsumugi:other\"\n";
        let mut settings: Settings = toml::from_str(&format!("{text}{key}{keyless}")).unwrap();
        assert!(settings.check().unwrap_err().to_string().contains("dhchap-key"));
        let tls = key.replace("dhchap_key", "tls_key");
        let mut settings: Settings = toml::from_str(&format!("{text}{tls}")).unwrap();
        settings.check().unwrap();
    }

    /// Goal: addresses for RDMA count as exposed, replace the default address, and exclude settings
    /// that RDMA does not support.
    #[test]
    fn rdma_has_one_core_and_no_tls() {
        let check = |lines: &str, host: &str| {
            let rdma = "listen_rdma = [\"10.0.0.7:4420\"]\n";
            let store = "[[subsystem]]\n[[subsystem.namespace]]\nmemory = 4194304\n";
            let mut settings: Settings =
                toml::from_str(&format!("{rdma}{lines}{store}{host}")).unwrap();
            settings.check().map(|()| settings).map_err(|error| error.to_string())
        };
        assert!(check("insecure = true\n", "").unwrap().listen.is_empty());
        let host = "[[subsystem.host]]\nnqn = \"nqn.2026-01.io.tsumugi:one\"\ntls_key = \"/k\"\n";
        for (lines, host, wanted) in [
            ("", "", "not authenticated"),
            ("insecure = true\ncores = 2\n", "", "one core"),
            ("insecure = true\nnetwork_namespace = \"/run/netns/x\"\n", "", "--network-namespace"),
            ("", host, "no TLS over RDMA"),
        ] {
            let said = check(lines, host).unwrap_err();
            assert!(said.contains(wanted), "{said}");
        }
    }

    /// Goal: if one host has a TLS key, no other host lacks one and so could never connect.
    #[test]
    fn tls_is_for_all_or_none() {
        let text = "[[subsystem]]\n[[subsystem.namespace]]\nmemory = 4194304\n";
        let host = |name: &str, key: &str| {
            format!("[[subsystem.host]]\nnqn = \"nqn.2026-01.io.tsumugi:{name}\"\n{key}\n")
        };
        let check = |hosts: &str| {
            let mut settings: Settings = toml::from_str(&format!("{text}{hosts}")).unwrap();
            settings.check()
        };
        let (one, two) = (host("one", "tls_key = \"/k\""), host("two", "tls_key = \"/k\""));
        check(&format!("{one}{two}")).unwrap();
        let plain = host("plain", "dhchap_key = \"/k\"");
        check(&plain).unwrap();
        for others in [plain, host("keyless", ""), text.to_owned()] {
            let said = check(&format!("{one}{others}")).unwrap_err().to_string();
            assert!(said.contains("nothing but TLS"), "{said}");
        }
    }
}
