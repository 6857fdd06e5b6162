//! The objects of the kernel's target, from the same settings as our own target.

use super::configfs::{Tree, set, set_secret};
use crate::commands::target::config::{Settings, SubsystemSettings};
use crate::commands::target::fabric::Fabric;
use crate::commands::target::hosts::HostSettings;
use anyhow::{Context, bail, ensure};
use nvme::Nqn;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Highest number of a port.
const PORTS_MAX: u32 = 65_535;
/// Unit of the size of `null_blk`, in bytes.
const MEMORY_UNIT: u64 = 1 << 20;

/// A subsystem with its names.
pub(super) struct Exported {
    pub(super) nqn: Nqn,
    pub(super) serial: String,
    pub(super) stores: Vec<Store>,
}

/// A namespace: its names, and its store.
pub(super) struct Store {
    pub(super) nsid: u32,
    pub(super) uuid: Uuid,
    /// A file or block device; `None` for memory.
    pub(super) path: Option<PathBuf>,
    pub(super) bytes: u64,
    pub(super) block_bytes: u32,
    pub(super) is_buffered: bool,
}

/// Refuses what the kernel's target cannot do.
pub(super) fn check(settings: &Settings) -> anyhow::Result<()> {
    let refused = |what: &str| {
        anyhow::anyhow!("{what} is not available with --engine kernel: omit one of the two")
    };
    for (is_set, what) in [
        (settings.cores.is_some(), "--cores (the kernel serves on all CPUs)"),
        (!settings.listen_rdma.is_empty(), "--listen-rdma (use --fabric rdma)"),
        (settings.poll_us.is_some(), "--poll-us"),
        (settings.data_memory_max.is_some(), "--data-memory-max"),
        (!settings.hdr_digest || !settings.data_digest, "refusing digests (hosts choose)"),
        (settings.auth_discovery, "--auth-discovery"),
        (
            settings.cntlid_min.is_some() || settings.cntlid_max.is_some(),
            "--cntlid-min and --cntlid-max",
        ),
        (settings.network_namespace.is_some(), "--network-namespace"),
    ] {
        if is_set {
            return Err(refused(what));
        }
    }
    if let Some(address) = settings.listen.iter().find(|address| address.port() == 0) {
        bail!("the kernel's target chooses no port: give one instead of {address}");
    }
    for subsystem in &settings.subsystems {
        if subsystem.hosts.iter().any(HostSettings::has_tls) {
            return Err(refused("tls-key (it takes keys from its keyring, by tlshd)"));
        }
        if super::super::ana::states(subsystem)?.is_some() {
            return Err(refused("ANA (--ana and ana-group=)"));
        }
        for namespace in &subsystem.namespaces {
            if namespace.is_volume() {
                return Err(refused("volume: (our own target makes volumes)"));
            }
            if namespace.rate_limits()? != target::RateLimits::default() {
                return Err(refused("iops= and bytes-per-s="));
            }
            if namespace.hosts()? != target::HostAccess::Any {
                return Err(refused("host= of a namespace"));
            }
            if namespace.is_shared() {
                return Err(refused("shared"));
            }
            if namespace.read_only {
                return Err(refused("read-only"));
            }
            if namespace.path().is_some() && namespace.has_block_size() {
                return Err(refused("block-size= of a file or device (it takes the device's own)"));
            }
        }
    }
    Ok(())
}

/// All objects to export.
pub(super) struct Export<'a> {
    pub(super) settings: &'a Settings,
    pub(super) fabric: Fabric,
    pub(super) offload: bool,
}

impl Export<'_> {
    /// Creates all objects. Hosts can connect afterwards.
    ///
    /// # Errors
    /// The first object that cannot be created. The journal lists those that were created.
    pub(super) fn make(&self, tree: &mut Tree<'_>, exported: &[Exported]) -> anyhow::Result<()> {
        let hosts = self.hosts(tree)?;
        let mut subsystems = Vec::new();
        for (settings, subsystem) in self.settings.subsystems.iter().zip(exported) {
            subsystems.push(self.subsystem(tree, settings, subsystem, &hosts)?);
        }
        for &address in &self.settings.listen {
            let port = self.port(tree, address)?;
            for (subsystem, exported) in subsystems.iter().zip(exported) {
                let link = port.join("subsystems").join(exported.nqn.as_str());
                tree.link(&link, subsystem).with_context(|| {
                    format!("the kernel does not listen on {address} ({})", self.fabric.name())
                })?;
            }
        }
        Ok(())
    }

    /// Creates the hosts of all subsystems, with their keys.
    fn hosts(&self, tree: &mut Tree<'_>) -> anyhow::Result<BTreeMap<Nqn, PathBuf>> {
        let mut hosts = BTreeMap::new();
        let all = self.settings.subsystems.iter().flat_map(|subsystem| {
            let named = subsystem.allow_hosts.iter().map(|nqn| (nqn, None));
            named.chain(subsystem.hosts.iter().map(|host| (&host.nqn, Some(host))))
        });
        for (nqn, keys) in all {
            if !hosts.contains_key(nqn) {
                let path = tree.make(Path::new("nvmet/hosts").join(nqn.as_str()))?;
                hosts.insert(nqn.clone(), path);
            }
            if let Some(host) = keys {
                host_keys(&hosts[nqn], host).with_context(|| format!("host {nqn}"))?;
            }
        }
        Ok(hosts)
    }

    fn subsystem(
        &self,
        tree: &mut Tree<'_>,
        settings: &SubsystemSettings,
        exported: &Exported,
        hosts: &BTreeMap<Nqn, PathBuf>,
    ) -> anyhow::Result<PathBuf> {
        let path = tree.make(Path::new("nvmet/subsystems").join(exported.nqn.as_str()))?;
        let named: Vec<&Nqn> = settings
            .allow_hosts
            .iter()
            .chain(settings.hosts.iter().map(|host| &host.nqn))
            .collect();
        set(&path, "attr_allow_any_host", if named.is_empty() { "1" } else { "0" })?;
        set(&path, "attr_serial", &exported.serial)?;
        set(&path, "attr_model", &settings.model())?;
        if self.offload {
            ensure!(
                path.join("attr_offload").exists(),
                "not available: the kernel's target has no attr_offload, which drivers of ConnectX-5 and \
                 later adapters bring (MLNX_OFED); leave out --offload"
            );
            set(&path, "attr_offload", "1")?;
        }
        for nqn in named {
            let link = path.join("allowed_hosts").join(nqn.as_str());
            if !link.exists() {
                tree.link(&link, &hosts[nqn])?;
            }
        }
        for store in &exported.stores {
            let device = match &store.path {
                Some(path) => std::path::absolute(path)?,
                None => memory(tree, store)?,
            };
            let object = Path::new("nvmet/subsystems").join(exported.nqn.as_str());
            let namespace = tree.make(object.join(format!("namespaces/{}", store.nsid)))?;
            let text = device.to_str().context("the kernel needs a path in UTF-8")?;
            set(&namespace, "device_path", text)?;
            set(&namespace, "device_uuid", &store.uuid.to_string())?;
            set(&namespace, "device_nguid", &store.uuid.to_string())?;
            if store.is_buffered {
                set(&namespace, "buffered_io", "1")?;
            }
            set(&namespace, "enable", "1")
                .with_context(|| format!("the kernel cannot export {text}"))?;
        }
        Ok(path)
    }

    /// Creates a port, which listens as soon as a subsystem is linked to it.
    fn port(&self, tree: &mut Tree<'_>, address: SocketAddr) -> anyhow::Result<PathBuf> {
        let free =
            (1..=PORTS_MAX).find(|number| !tree.path(format!("nvmet/ports/{number}")).exists());
        let number = free.context("the kernel's target has no port left")?;
        let port = tree.make(format!("nvmet/ports/{number}"))?;
        set(&port, "addr_trtype", self.fabric.name())?;
        set(&port, "addr_adrfam", if address.is_ipv4() { "ipv4" } else { "ipv6" })?;
        set(&port, "addr_traddr", &address.ip().to_string())?;
        set(&port, "addr_trsvcid", &address.port().to_string())?;
        Ok(port)
    }
}

/// Creates a disk in the kernel's memory. Returns its device.
fn memory(tree: &mut Tree<'_>, store: &Store) -> anyhow::Result<PathBuf> {
    ensure!(
        store.bytes.is_multiple_of(MEMORY_UNIT),
        "the kernel's disks in memory have whole MiB: {} bytes are not",
        store.bytes
    );
    // A short name: the kernel limits the names of disks to 31 characters.
    let name = format!("tsumugi-{:.12}", store.uuid.simple().to_string());
    let object = tree.make(Path::new("nullb").join(&name))?;
    set(&object, "size", &(store.bytes / MEMORY_UNIT).to_string())?;
    set(&object, "blocksize", &store.block_bytes.to_string())?;
    set(&object, "memory_backed", "1")?;
    set(&object, "discard", "1")?;
    set(&object, "power", "1")
        .with_context(|| format!("the kernel cannot create a disk of {} bytes", store.bytes))?;
    // Older kernels name the disk by its number.
    let index = std::fs::read_to_string(object.join("index")).unwrap_or_default();
    let names = [format!("/dev/{name}"), format!("/dev/nullb{}", index.trim())];
    let found = names.iter().map(PathBuf::from).find(|path| path.exists());
    found.with_context(|| format!("the kernel's disk in memory is at none of {names:?}"))
}

fn host_keys(path: &Path, host: &HostSettings) -> anyhow::Result<()> {
    let Some(keys) = host.dhchap()? else { return Ok(()) };
    ensure!(
        !host.is_concatenated(),
        "host {}: concat is not available with --engine kernel: the kernel's target leaves it to the host whether its \
         proof generates a TLS key, so it would take the host in the clear as well",
        host.nqn
    );
    ensure!(
        path.join("dhchap_key").exists(),
        "not available: this kernel's target has no authentication (CONFIG_NVME_TARGET_AUTH)"
    );
    set_secret(path, "dhchap_key", &keys.host)?;
    if let Some(controller) = &keys.controller {
        set_secret(path, "dhchap_ctrl_key", controller)?;
    }
    if let Some(hash) = keys.hash {
        set(path, "dhchap_hash", &format!("hmac({hash})"))?;
    }
    if let Some(group) = keys.group {
        set(path, "dhchap_dhgroup", &group.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::target::cores::CoreCount;

    /// Goal: settings that the kernel's target does not support are refused by name, before
    /// anything is set up.
    #[test]
    fn what_it_cannot_do_is_refused() {
        type Change = fn(&mut Settings);

        let memory = "memory:16M".parse().unwrap();
        let subsystem = SubsystemSettings::new(None, &[], &[], std::slice::from_ref(&memory));
        let good = || {
            let listen = vec!["127.0.0.1:4420".parse().unwrap()];
            Settings { listen, subsystems: vec![subsystem.clone()], ..Settings::default() }
        };
        assert!(check(&good()).is_ok());
        let wrong: [(&str, Change); 7] = [
            ("--cores", |it| it.cores = Some(CoreCount::Number(2))),
            ("--poll-us", |it| it.poll_us = Some(reactor::Spin::Auto)),
            ("chooses no port", |it| it.listen[0].set_port(0)),
            ("read-only", |it| {
                it.subsystems[0].namespaces = vec!["/dev/x,read-only".parse().unwrap()];
            }),
            ("volume", |it| {
                it.subsystems[0].namespaces = vec!["volume:/pool/one".parse().unwrap()];
            }),
            ("block-size", |it| {
                it.subsystems[0].namespaces = vec!["/dev/x,block-size=512".parse().unwrap()];
            }),
            ("tls-key", |it| {
                it.subsystems[0].hosts = vec!["nqn.2026-01.x:h,tls-key=f".parse().unwrap()];
            }),
        ];
        for (expected, change) in wrong {
            let mut settings = good();
            change(&mut settings);
            let error = check(&settings).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
