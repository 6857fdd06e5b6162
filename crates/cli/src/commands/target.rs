//! `tsumugi target`: exports files, block devices or memory over NVMe/TCP and NVMe/RDMA.
//!
//! Options and configuration file have the same settings. Both become one [`Settings`], which is
//! checked before anything is opened. What a script needs goes to standard output: the addresses,
//! then the namespaces. Progress and messages go to standard error.

mod ana;
mod config;
mod control;
mod cores;
mod ctl;
mod hosts;
mod identity;
pub(crate) mod kernel;
mod namespace;
mod report;
pub(super) mod size;

pub(super) use control::Request;
pub(super) use ctl::Target as RunningTarget;

use super::engine::Engine;
use crate::signals::Signals;
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use config::{Settings, SubsystemSettings};
use control::{Control, Socket};
use cores::CoreCount;
use hosts::HostSettings;
use namespace::NamespaceSettings;
use nvme::{Nqn, Nsid};
use reactor::{Either, Runtime, SocketOptions};
use signal_hook::consts::{SIGHUP, SIGUSR1};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use target::{AdmissionMode, Admissions, Namespace, Server, ServerOptions, Subsystem, Target};
use uuid::Uuid;

/// How long to wait for an address that a killed target still holds.
const LISTEN_PATIENCE: Duration = Duration::from_secs(5);
/// Export namespaces over NVMe/TCP or NVMe/RDMA.
#[derive(Clone, Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
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

  The same under TLS 1.3, which keeps data secret and unchanged on the network:
    tsumugi nvme gen-tls-key --hmac 2 --output tls.key
    tsumugi target --listen 10.0.0.7:4420 --host HOSTNQN,tls-key=tls.key \\
        --namespace /dev/nvme0n1

  The same disk over RDMA, at an address of an RDMA device:
    tsumugi target --fabric rdma --listen 10.0.0.7:4420 --insecure --namespace /dev/nvme0n1

  The same by the kernel's target, which is taken down when this process ends:
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

Options of a namespace (--namespace file:/scratch/disk,size=4G,nsid=2):
    size=SIZE           size of a file, which is created if it is missing
    nsid=N              identifier of the namespace
    uuid=UUID           UUID of the namespace
    block-size=BYTES    size of a block
    ana-group=N         ANA group of the namespace
    read-only           refuse writes
    buffered            use the page cache, for file systems without direct I/O
    shared              share the file or device with other targets that have it as shared (docs/paths.md)
    lazy                reserve memory when it is written, not at the start
    host=NQN            a host that sees the namespace; may be repeated [default: all hosts that may \
connect]
    iops=N              commands per second, of all hosts together [default: no limit]
    bytes-per-s=SIZE    bytes of data per second, of all hosts together [default: no limit]
    reservations=FILE   keep the hosts' reservations in FILE, so that they survive a restart

Options of a host (--host HOSTNQN,dhchap-key=host.key):
    dhchap-key=FILE       the host must authenticate with this key
    dhchap-ctrl-key=FILE  the target authenticates to the host with this key, on request
    dhchap-hash=HASH      accept only this hash function, such as sha256
    dhchap-dhgroup=GROUP  accept only this Diffie-Hellman group, such as ffdhe2048
    concat                the host generates its TLS key in the authentication
    tls-key=FILE          the host must connect under TLS 1.3 with this key, and all other hosts must \
use TLS too
    tls-compat            derive keys as libnvme before 1.15 did

Hosts recognise a disk by its subsystem's NQN and its namespace's UUID, and treat equal names as \
two paths to the same blocks. Without --nqn and uuid= the target derives both from this machine \
and the file or disk, so they stay the same over restarts; names of memory are new at each start. \
Give no two targets the same --nqn or uuid=, unless they export the same blocks (docs/paths.md). \
Machines that were cloned with their /etc/machine-id and disks first need a new machine-id, or \
--nqn and uuid=.

A connection without an I/O queue pair takes up to 48 KiB of memory; an I/O queue pair takes up to \
288 KiB, and 8.5 KiB for each entry of its queue; --data-memory-max limits the rest. The target \
allocates memory at its first use: an idle connection costs about 40 KiB. `tsumugi target ctl \
show` prints the sums.

SIGINT and SIGTERM end the target cleanly; SIGUSR1 prints what it has served. With a configuration \
file, SIGHUP reads it again and applies the difference: namespaces, subsystems, hosts, keys and \
listeners. An invalid file changes nothing. SIGHUP also reverts changes by `tsumugi target ctl` \
that are not in the file, so save them first with `tsumugi target ctl write`."
)]
pub(crate) struct TargetArgs {
    #[command(subcommand)]
    command: Option<TargetCommand>,
    /// Configuration file (TOML); options on the command line are added to it
    #[arg(value_name = "CONFIG.toml")]
    config: Option<PathBuf>,
    /// Address and port to listen on; port 0 chooses a free port; may be repeated [default:
    /// 127.0.0.1:4420]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Vec<SocketAddr>,
    /// Address and port of an RDMA device to listen on, in addition to those of --listen; may be
    /// repeated
    #[arg(long, value_name = "ADDR:PORT")]
    listen_rdma: Vec<SocketAddr>,
    /// NQN of the subsystem of --namespace and --allow-host [default: derived from this machine and
    /// the namespaces, see below]
    #[arg(long, value_name = "NQN")]
    nqn: Option<Nqn>,
    /// Namespace to export: file:PATH, memory:SIZE, volume:POOL/NAME or a block device, with
    /// options after commas (see below); may be repeated
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Vec<NamespaceSettings>,
    /// State of an ANA group of the namespaces of --namespace at the start: optimized,
    /// non-optimized, inaccessible, persistent-loss or change; may be repeated [default: optimized;
    /// the target reports ANA only if --ana or ana-group= is given]
    #[arg(long, value_name = "GROUP=STATE", value_parser = ana::parse)]
    ana: Vec<(String, String)>,
    /// Smallest controller identifier; targets that export one subsystem need ranges that do not
    /// overlap [default: 1]
    #[arg(long, value_name = "N")]
    cntlid_min: Option<u16>,
    /// Largest controller identifier [default: 65519]
    #[arg(long, value_name = "N")]
    cntlid_max: Option<u16>,
    /// NQN of a host that may connect; may be repeated [default: any]
    #[arg(long, value_name = "NQN")]
    allow_host: Vec<Nqn>,
    /// Host that may connect: its NQN, with its keys as options after commas (see below); may be
    /// repeated
    #[arg(long, value_name = "HOST")]
    host: Vec<HostSettings>,
    /// Require authentication of hosts with keys also at the discovery service; nvme-cli does not
    /// support this
    #[arg(long)]
    auth_discovery: bool,
    /// Microseconds to spin for work before sleeping, or auto: only while that is cheaper than a
    /// wake-up; a target without work does not spin [default: 0]
    #[arg(long, value_name = "N|auto")]
    poll_us: Option<reactor::Spin>,
    /// Number of threads that serve connections, or all: one for each CPU that this process may use
    /// (by its affinity and its cgroup's quota) [default: 1]
    #[arg(long, value_name = "N|all")]
    cores: Option<CoreCount>,
    /// Bytes of buffer memory for the data of all hosts' commands together [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    data_memory_max: Option<u64>,
    /// Number of connections at a time, of all hosts; at most three quarters may come from one
    /// address [default: 1024]
    #[arg(long, value_name = "N")]
    connections_max: Option<usize>,
    /// Number of controllers at a time, of all hosts [default: as many as connections, at most
    /// 1024]
    #[arg(long, value_name = "N")]
    controllers_max: Option<usize>,
    /// Number of I/O queue pairs per controller [default: 64]
    #[arg(long, value_name = "N")]
    io_queues_max: Option<u16>,
    /// Number of entries in an I/O queue, 2 to 4096 [default: 128]
    #[arg(long, value_name = "N")]
    queue_size_max: Option<u16>,
    /// Longest transfer of a command in bytes (MDTS): a power of two, 4K to 64M; --data-memory-max
    /// must hold four [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    mdts: Option<u64>,
    /// Control socket for `tsumugi target ctl`, or none [default: target-PID.sock in /run/tsumugi
    /// (root) or `$XDG_RUNTIME_DIR/tsumugi`]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Refuse header digests
    #[arg(long)]
    no_hdr_digest: bool,
    /// Refuse data digests
    #[arg(long)]
    no_data_digest: bool,
    /// Allow an address beyond loopback without authentication of hosts
    #[arg(long)]
    insecure: bool,
    /// Network namespace for the sockets, e.g. /run/netns/node1
    #[arg(long, value_name = "PATH")]
    network_namespace: Option<PathBuf>,
    /// What serves: our own target, on any reactor or on the given engine, or the kernel's target
    /// (nvmet). The command sets the kernel's target up from the same settings, needs root for it,
    /// and takes it down at the end [default: own]
    #[arg(long, default_value = "own", hide_default_value = true, value_parser = Engine::all())]
    engine: Engine,
    /// Fabric that carries the commands at the addresses of --listen [default: tcp]
    #[arg(long, value_name = "FABRIC")]
    fabric: Option<kernel::Fabric>,
    /// With --engine kernel, let the adapter itself serve commands (ConnectX-5 and later, for RDMA)
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
        settings.listen_rdma.extend(&self.listen_rdma);
        if self.fabric == Some(kernel::Fabric::Rdma) && self.engine != Engine::Kernel {
            settings.listen_rdma.append(&mut settings.listen);
            if settings.listen_rdma.is_empty() {
                bail!(
                    "--fabric rdma needs --listen with an address of an RDMA device (`rdma link` \
                     lists them)"
                );
            }
        }
        settings.insecure |= self.insecure;
        settings.auth_discovery |= self.auth_discovery;
        settings.cores = self.cores.or(settings.cores);
        settings.poll_us = self.poll_us.or(settings.poll_us);
        settings.data_memory_max = self.data_memory_max.or(settings.data_memory_max);
        settings.cntlid_min = self.cntlid_min.or(settings.cntlid_min);
        settings.cntlid_max = self.cntlid_max.or(settings.cntlid_max);
        settings.connections_max = self.connections_max.or(settings.connections_max);
        settings.controllers_max = self.controllers_max.or(settings.controllers_max);
        settings.io_queues_max = self.io_queues_max.or(settings.io_queues_max);
        settings.queue_size_max = self.queue_size_max.or(settings.queue_size_max);
        settings.mdts = self.mdts.or(settings.mdts);
        if self.control.is_some() {
            settings.control.clone_from(&self.control);
        }
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
            bail!("--nqn, --allow-host, --host and --ana need a --namespace to apply to");
        }
        settings.check()?;
        control::limits_of(&settings)?;
        Ok(settings)
    }
}

#[derive(Clone, Debug, Subcommand)]
enum TargetCommand {
    /// Show and change a running target.
    Ctl(ctl::CtlArgs),
}

/// Runs `tsumugi target`.
pub(crate) fn run(args: &TargetArgs) -> anyhow::Result<ExitCode> {
    if let Some(TargetCommand::Ctl(args)) = &args.command {
        return ctl::run(args);
    }
    crate::confine::keep_files_private();
    let settings = args.settings()?;
    if args.engine == Engine::Kernel {
        return kernel::run(&settings, args);
    }
    if args.offload {
        bail!("--offload needs the kernel's target: add --engine kernel");
    }
    let config = reactor::Config {
        spin: settings.poll_us.unwrap_or_default(),
        ..reactor::Config::default()
    };
    // Without a file to read again SIGHUP keeps its default meaning: the terminal has gone.
    let further: &[i32] = if args.config.is_some() { &[SIGUSR1, SIGHUP] } else { &[SIGUSR1] };
    let signals = crate::signals::watch(further)?;
    crate::descriptors::raise_limit();
    check_descriptors(&settings)?;
    let mut runtime = Runtime::new(&config)?;
    runtime.block_on(serve(settings, config, signals, args))?;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a requested number of connections that exceeds the limit of open files.
fn check_descriptors(settings: &Settings) -> anyhow::Result<()> {
    /// Files of the program itself, and of a few namespaces.
    const OTHERS: u64 = 64;
    let Some(connections) = settings.connections_max else { return Ok(()) };
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if let Some(limit) = limit
        && limit < connections as u64 + OTHERS
    {
        bail!(
            "{connections} connections need {connections} open files, but the limit is {limit}: \
            raise it (ulimit -Hn, LimitNOFILE= of systemd), or lower connections_max"
        );
    }
    Ok(())
}

async fn serve(
    settings: Settings,
    runtime: reactor::Config,
    mut signals: Signals,
    args: &TargetArgs,
) -> anyhow::Result<()> {
    let is_json = args.json;
    let target =
        Target::new(control::limits_of(&settings)?, Admissions::new(AdmissionMode::AnyHost))?;
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
    let names = add_subsystems(&target, &settings, &mut signals).await?;
    let options = ServerOptions {
        listen: settings.listen.clone(),
        listen_rdma: settings.listen_rdma.clone(),
        cores: settings.cores.map_or(1, CoreCount::get),
        runtime,
        socket: SocketOptions {
            network_namespace: settings.network_namespace.clone(),
            ..SocketOptions::default()
        },
    };
    let mut server = Server::start_patiently(&target, &options, LISTEN_PATIENCE).await?;
    let socket = control_socket(&settings)?;
    let place = socket.as_ref().map(|socket| socket.path().to_owned());
    let (control, mut orders) = Control::new(&server, settings, names, args.clone())?;
    let socket = socket.map(|socket| socket.serve(&control)).transpose()?;
    report::started(&server, place.as_deref(), is_json);
    loop {
        let event = {
            let signal = std::pin::pin!(signals.recv());
            reactor::race(signal, std::pin::pin!(orders.next())).await
        };
        match event {
            Either::First(SIGUSR1) => {
                report::counts(&target, server.connections(), &server.cores(), is_json);
            }
            Either::First(SIGHUP) => control.reload_in_background(),
            Either::First(_) => break,
            Either::Second(order) => order.carry_out(&mut server).await,
        }
    }
    drop((socket, orders));
    control.end().await;
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

/// Opens the subsystems of the settings. Returns their names in the same order.
async fn add_subsystems(
    target: &Target,
    settings: &Settings,
    signals: &mut Signals,
) -> anyhow::Result<Vec<Nqn>> {
    let mut names = Vec::new();
    for subsystem in &settings.subsystems {
        let opened = {
            let opening = std::pin::pin!(open_subsystem(subsystem));
            let signal = std::pin::pin!(signals.recv());
            match reactor::race(opening, signal).await {
                Either::First(opened) => opened?,
                Either::Second(_) => bail!("interrupted before the target was ready"),
            }
        };
        opened.expect_any_namespace();
        names.push(opened.nqn().clone());
        target.add_subsystem(opened)?;
    }
    Ok(names)
}

/// Creates the control socket. If the default directory is missing, the target runs without a
/// socket.
fn control_socket(settings: &Settings) -> anyhow::Result<Option<Socket>> {
    let path = settings.control.as_deref();
    if path == Some(Path::new("none")) {
        return Ok(None);
    }
    match Socket::new(path) {
        Ok(socket) => Ok(Some(socket)),
        Err(error) if path.is_none() => {
            eprintln!(
                "tsumugi: the target runs without the control socket that `tsumugi target ctl` \
                needs: {}; give another path with --control, or --control none",
                crate::print::words(&error)
            );
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

async fn open_subsystem(settings: &SubsystemSettings) -> anyhow::Result<Subsystem> {
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
    let mut subsystem = Subsystem::new(nqn, &serial, &settings.model(), settings.access());
    if let Some(states) = ana::states(settings)? {
        subsystem = subsystem.with_ana(&states);
    }
    let mut next = 1;
    for (namespace, uuid) in settings.namespaces.iter().zip(uuids) {
        let nsid = Nsid(namespace.nsid.unwrap_or(next));
        next = nsid.get().saturating_add(1);
        let backing = namespace.open(uuid).await?;
        subsystem.add_namespace(namespace_of(namespace, nsid, uuid, backing).await?)?;
    }
    Ok(subsystem)
}

/// Opens a namespace, and creates its file if the settings ask for that.
async fn open_namespace(settings: &NamespaceSettings, nsid: Nsid) -> anyhow::Result<Namespace> {
    settings.prepare().await?;
    let uuid = settings.uuid().await?;
    let backing = settings.open(uuid).await?;
    namespace_of(settings, nsid, uuid, backing).await
}

async fn namespace_of(
    settings: &NamespaceSettings,
    nsid: Nsid,
    uuid: Uuid,
    backing: Arc<dyn block::Backing>,
) -> anyhow::Result<Namespace> {
    let group = ana::group(settings.ana_group)?;
    let namespace =
        Namespace::new(nsid, uuid.into_bytes(), backing, settings.read_only).with_ana_group(group);
    let namespace = namespace.with_hosts(settings.hosts()?);
    namespace.set_rate_limits(settings.rate_limits()?);
    if settings.is_shared() {
        // Another target that shares the store does not know this target's reservations.
        return Ok(namespace);
    }
    Ok(namespace.with_reservations(settings.reservations(uuid).await?))
}
