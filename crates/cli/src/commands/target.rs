//! `tsumugi target`: exports files, block devices or memory over NVMe/TCP.
//!
//! Flags and configuration file say the same things; both are turned into one [`Settings`], which is
//! checked before anything is opened. Everything is written to standard output that a script needs
//! (the addresses that were taken, then the namespaces), progress and messages to standard error.

mod ana;
mod config;
mod hosts;
mod identity;
pub(crate) mod kernel;
mod namespace;
mod report;
pub(super) mod size;

use super::engine::Engine;
use crate::signals::Signals;
use anyhow::{Context, bail};
use clap::Args;
use config::{Settings, SubsystemSettings};
use hosts::HostSettings;
use namespace::NamespaceSettings;
use nvme::{Nqn, Nsid};
use ring::{Runtime, SocketOptions};
use signal_hook::consts::SIGUSR1;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use target::{
    AdmissionMode, Admissions, HostAccess, Limits, Namespace, Server, ServerOptions, Subsystem,
    Target,
};
use uuid::Uuid;

/// How long to wait for an address that a target which was killed still holds.
const LISTEN_PATIENCE: Duration = Duration::from_secs(5);
/// Export namespaces over NVMe/TCP.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  Half a gigabyte of memory, for a test on this machine:
    tsumugi target --namespace memory:512M

  A file, created and written once if missing, for one host:
    tsumugi target --namespace file:/scratch/disk,size=4G --allow-host HOSTNQN

  A second target on the same machine, with its own name:
    tsumugi target --listen 127.0.0.1:4421 --namespace file:/scratch/other,size=4G \\
        --nqn nqn.2026-01.org.example:$(hostname):other

  Two volumes of a pool, see `tsumugi volume`:
    tsumugi target --namespace volume:/scratch/pool/a --namespace volume:/scratch/pool/b

  A disk, for other machines, on two cores that spin shortly before they sleep:
    tsumugi target --listen 10.0.0.7:4420 --insecure --cores 2 --poll-us 50 \\
        --namespace /dev/nvme0n1

  A disk, for a host on another machine that authenticates with a key:
    tsumugi nvme gen-dhchap-key --output host.key
    tsumugi target --listen 10.0.0.7:4420 --host HOSTNQN,dhchap-key=host.key \\
        --namespace /dev/nvme0n1

  The same under TLS 1.3, so that no one on the network can read or change data:
    tsumugi nvme gen-tls-key --hmac 2 --output tls.key
    tsumugi target --listen 10.0.0.7:4420 --host HOSTNQN,tls-key=tls.key \\
        --namespace /dev/nvme0n1

  The same disk by the kernel's target, over RDMA; it is taken down when this process ends:
    tsumugi target --engine kernel --fabric rdma --listen 10.0.0.7:4420 --insecure \\
        --namespace /dev/nvme0n1

  A configuration file:
    tsumugi target target.toml

    listen = [\"10.0.0.7:4420\"]
    cores = 2
    poll_us = 50
    [[subsystem]]
    [[subsystem.namespace]]
    path = \"/dev/nvme0n1\"
    [[subsystem.host]]
    nqn = \"HOSTNQN\"
    dhchap_key = \"host.key\"
    tls_key = \"tls.key\"

Hosts recognise a disk by its subsystem's NQN and its namespace's UUID, and take equal names for two \
paths to the same blocks. Without --nqn and uuid= both are derived from this machine and the file or disk, \
and stay the same over restarts; names of memory are new at each start. Give no two targets the same --nqn \
or uuid=, unless they export the same blocks (docs/paths.md). Machines that were cloned with their /etc/machine-id and disks first need a new machine-id, or \
--nqn and uuid=.

SIGINT and SIGTERM end the target in good order; SIGUSR1 prints what it has served.")]
pub(crate) struct TargetArgs {
    /// Configuration file (TOML); options on the command line are added to it
    #[arg(value_name = "CONFIG.toml")]
    config: Option<PathBuf>,
    /// Address to listen at; port 0 chooses a free port; may be repeated [default: 127.0.0.1:4420]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<SocketAddr>,
    /// NQN of the subsystem of --namespace and --allow-host [default: derived from this machine and
    /// the namespaces, see below]
    #[arg(long, value_name = "NQN")]
    nqn: Option<Nqn>,
    /// A namespace (may be repeated)
    #[arg(
        long,
        value_name = "NAMESPACE",
        help = "A namespace: file:PATH[,size=4G], memory:512M, \
        volume:POOL/NAME or a block device; with options nsid=N, uuid=UUID, block-size=BYTES, ana-group=N, read-only, \
        buffered, shared (with other targets that have it as shared too; see docs/paths.md), lazy (reserves memory as \
        it is written, not at the start), reservations=FILE (hosts can have reservations survive a restart; FILE \
        keeps them); may be repeated"
    )]
    namespace: Vec<NamespaceSettings>,
    /// State of an ANA group of the namespaces of --namespace when the target starts; may be repeated
    #[arg(
        long,
        value_name = "GROUP=STATE",
        value_parser = ana::parse,
        help = "State of an ANA group of the namespaces of --namespace when the target starts: optimized, \
        non-optimized, inaccessible, persistent-loss or change; may be repeated [default: optimized, and \
        nothing is reported unless --ana or ana-group= is given]"
    )]
    ana: Vec<(String, String)>,
    /// Smallest identifier of a controller. Targets that export one subsystem need ranges without a common
    /// identifier [default: 1]
    #[arg(long, value_name = "N")]
    cntlid_min: Option<u16>,
    /// Largest identifier of a controller [default: 65519]
    #[arg(long, value_name = "N")]
    cntlid_max: Option<u16>,
    /// NQN of a host that may connect; may be repeated [default: any]
    #[arg(long, value_name = "NQN")]
    allow_host: Vec<Nqn>,
    /// A host that may connect; may be repeated
    #[arg(
        long,
        value_name = "HOST",
        help = "A host that may connect: NQN[,dhchap-key=FILE[,dhchap-ctrl-key=FILE]\
        [,dhchap-hash=sha256][,dhchap-dhgroup=ffdhe2048]][,tls-key=FILE[,tls-compat]]; with a \
        dhchap-key the host must authenticate, with a second key the target authenticates to the host on request; \
        with a tls-key it must connect under TLS 1.3, and so must all hosts then; tls-compat derives keys as \
        libnvme before 1.15 did; may be repeated"
    )]
    host: Vec<HostSettings>,
    /// Require authentication of hosts with keys at the discovery service too; nvme-cli cannot do that
    #[arg(long)]
    auth_discovery: bool,
    /// Microseconds to spin for work before sleeping, or auto: only while that is cheaper than a wake-up;
    /// stops by itself while there is no work [default: 0]
    #[arg(long, value_name = "N|auto")]
    poll_us: Option<ring::Spin>,
    /// Threads that serve connections
    #[arg(long, value_name = "N")]
    cores: Option<usize>,
    /// Buffer memory for data of all hosts' commands together [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    data_memory_max: Option<u64>,
    /// Refuse header digests
    #[arg(long)]
    no_hdr_digest: bool,
    /// Refuse data digests
    #[arg(long)]
    no_data_digest: bool,
    /// Allow an address beyond loopback although hosts are not authenticated
    #[arg(long)]
    insecure: bool,
    /// Network namespace for the sockets, e.g. /run/netns/node1
    #[arg(long, value_name = "PATH")]
    network_namespace: Option<PathBuf>,
    /// What serves: our own target, on any reactor or on the named one, or the kernel's (nvmet), which is set
    /// up from the same settings, needs root, and is taken down when this process ends [default: own]
    #[arg(long, default_value = "own", hide_default_value = true, value_parser = Engine::all())]
    engine: Engine,
    /// What carries the commands, with --engine kernel [default: tcp]
    #[arg(long, value_name = "FABRIC")]
    fabric: Option<kernel::Fabric>,
    /// Let the adapter serve commands itself, with --engine kernel (ConnectX-5 and later, for RDMA)
    #[arg(long)]
    offload: bool,
    /// Print JSON, one object per line, with statistics at the end
    #[arg(long)]
    json: bool,
}

impl TargetArgs {
    fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = match &self.config {
            Some(path) => Settings::read(path)?,
            None => Settings::default(),
        };
        settings.listen.extend(&self.listen);
        settings.insecure |= self.insecure;
        settings.auth_discovery |= self.auth_discovery;
        settings.cores = self.cores.or(settings.cores);
        settings.poll_us = self.poll_us.or(settings.poll_us);
        settings.data_memory_max = self.data_memory_max.or(settings.data_memory_max);
        settings.cntlid_min = self.cntlid_min.or(settings.cntlid_min);
        settings.cntlid_max = self.cntlid_max.or(settings.cntlid_max);
        settings.hdr_digest &= !self.no_hdr_digest;
        settings.data_digest &= !self.no_data_digest;
        if self.network_namespace.is_some() {
            settings.network_namespace.clone_from(&self.network_namespace);
        }
        if !self.namespace.is_empty() {
            let mut subsystem = SubsystemSettings::new(
                self.nqn.clone(),
                &self.allow_host,
                &self.host,
                &self.namespace,
            );
            for (group, state) in &self.ana {
                if subsystem.ana.insert(group.clone(), state.clone()).is_some() {
                    bail!("--ana names group {group} twice");
                }
            }
            settings.subsystems.push(subsystem);
        } else if self.nqn.is_some()
            || !self.allow_host.is_empty()
            || !self.host.is_empty()
            || !self.ana.is_empty()
        {
            bail!(
                "--nqn, --allow-host, --host and --ana are for the namespaces of --namespace: give some"
            );
        }
        settings.check()?;
        Ok(settings)
    }
}

/// Runs `tsumugi target`.
pub(crate) fn run(args: &TargetArgs) -> anyhow::Result<ExitCode> {
    crate::confine::keep_files_private();
    let settings = args.settings()?;
    if args.engine == Engine::Kernel {
        return kernel::run(&settings, args);
    }
    if args.fabric == Some(kernel::Fabric::Rdma) || args.offload {
        bail!("our own target serves NVMe/TCP alone: add --engine kernel for RDMA and --offload");
    }
    let config =
        ring::Config { spin: settings.poll_us.unwrap_or_default(), ..ring::Config::default() };
    let signals = crate::signals::watch(&[SIGUSR1])?;
    crate::descriptors::raise_limit();
    let mut runtime = Runtime::new(&config)?;
    runtime.block_on(serve(&settings, config, signals, args.json))?;
    Ok(ExitCode::SUCCESS)
}

async fn serve(
    settings: &Settings,
    runtime: ring::Config,
    mut signals: Signals,
    is_json: bool,
) -> anyhow::Result<()> {
    let defaults = Limits::default();
    let data_bytes_total_max =
        settings.data_memory_max.map_or(defaults.data_bytes_total_max, |bytes| bytes as usize);
    let limits = Limits {
        data_bytes_total_max,
        controller_ids: ana::controller_ids(settings.cntlid_min, settings.cntlid_max),
        allows_header_digest: settings.hdr_digest,
        allows_data_digest: settings.data_digest,
        ..defaults
    };
    let target = Target::new(limits, Admissions::new(AdmissionMode::AnyHost))?;
    let hosts = settings.subsystems.iter().flat_map(|subsystem| &subsystem.hosts);
    for (host, proof) in hosts::proofs(hosts.clone())? {
        target.require_proof(host, proof)?;
    }
    for (host, tls) in hosts::tls(hosts)? {
        target.require_tls(host, tls)?;
    }
    if settings.auth_discovery {
        target.require_proof_for_discovery();
    }
    for subsystem in &settings.subsystems {
        let opened = {
            let opening = std::pin::pin!(open_subsystem(subsystem));
            let signal = std::pin::pin!(signals.recv());
            match ring::race(opening, signal).await {
                ring::Either::First(opened) => opened?,
                ring::Either::Second(_) => bail!("interrupted before the target was ready"),
            }
        };
        target.add_subsystem(opened)?;
    }
    let options = ServerOptions {
        listen: settings.listen.clone(),
        cores: settings.cores.unwrap_or(1),
        runtime,
        socket: SocketOptions {
            network_namespace: settings.network_namespace.clone(),
            ..SocketOptions::default()
        },
    };
    let server = Server::start_patiently(&target, &options, LISTEN_PATIENCE).await?;
    report::started(&server, is_json);
    while signals.recv().await == SIGUSR1 {
        report::counts(&target, server.connections(), &server.cores(), is_json);
    }
    let (connections, cores) = (server.connections(), server.cores());
    server
        .shutdown()
        .await
        .context("a namespace cannot be flushed: its last writes may be lost")?;
    if is_json {
        report::counts(&target, connections, &cores, true);
    }
    Ok(())
}

async fn open_subsystem(settings: &SubsystemSettings) -> anyhow::Result<Subsystem> {
    let named = settings.allow_hosts.iter().chain(settings.hosts.iter().map(|host| &host.nqn));
    let named: BTreeSet<Nqn> = named.cloned().collect();
    let access = if named.is_empty() { HostAccess::Any } else { HostAccess::List(named) };
    let mut uuids = Vec::new();
    for namespace in &settings.namespaces {
        namespace.prepare().await?;
        uuids.push(namespace.uuid().await?);
    }
    let named = settings.namespaces.iter().zip(&uuids);
    let persistent: Vec<Uuid> =
        named.filter(|(it, _)| it.is_persistent()).map(|(_, uuid)| *uuid).collect();
    let nqn = settings.nqn(&persistent)?;
    let serial = settings.serial(&nqn);
    let mut subsystem = Subsystem::new(nqn, &serial, &settings.model(), access);
    if let Some(states) = ana::states(settings)? {
        subsystem = subsystem.with_ana(&states);
    }
    let mut next = 1;
    for (namespace, uuid) in settings.namespaces.iter().zip(uuids) {
        let nsid = Nsid(namespace.nsid.unwrap_or(next));
        next = nsid.get() + 1;
        let group = ana::group(namespace.ana_group)?;
        let backing = namespace.open(uuid).await?;
        let namespace =
        let shared =
            Namespace::new(nsid, uuid.into_bytes(), Arc::clone(&backing), namespace.read_only)
                .with_ana_group(group);
        // What one target knows of reservations, another that shares the store does not.
        let namespace = match namespace.is_shared() {
            true => shared,
            false => shared.with_reservations(namespace.reservations(uuid).await?),
        };
        subsystem.add_namespace(namespace)?;
    }
    Ok(subsystem)
}
