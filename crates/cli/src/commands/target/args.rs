//! The arguments of `tsumugi target`.

use super::config::{Settings, SubsystemSettings};
use super::cores::CoreCount;
use super::fabric::Fabric;
use super::hosts::HostSettings;
use super::limits::limits_of;
use super::namespace::NamespaceSettings;
use super::{ana, ctl, size};
use crate::engine::Engine;
use anyhow::bail;
use clap::{Args, Subcommand};
use nvme::Nqn;
use std::net::SocketAddr;
use std::path::PathBuf;

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
    uncorrectable=FILE  let hosts mark blocks as uncorrectable (Write Uncorrectable); FILE keeps the marks

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
    pub(super) command: Option<TargetCommand>,
    /// Configuration file (TOML); options on the command line are added to it
    #[arg(value_name = "CONFIG.toml")]
    pub(super) config: Option<PathBuf>,
    /// Address and port to listen on; port 0 chooses a free port; may be repeated [default:
    /// 127.0.0.1:4420]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(super) listen: Vec<SocketAddr>,
    /// Address and port of an RDMA device to listen on, in addition to those of --listen; may be
    /// repeated
    #[arg(long, value_name = "ADDR:PORT")]
    pub(super) listen_rdma: Vec<SocketAddr>,
    /// NQN of the subsystem of --namespace and --allow-host [default: derived from this machine and
    /// the namespaces, see below]
    #[arg(long, value_name = "NQN")]
    pub(super) nqn: Option<Nqn>,
    /// Namespace to export
    #[arg(
        long,
        value_name = "NAMESPACE",
        help = "Namespace to export: file:PATH, memory:SIZE, volume:POOL/NAME or a block device, \
                with options after commas (see below); may be repeated"
    )]
    pub(super) namespace: Vec<NamespaceSettings>,
    /// State of an ANA group of the namespaces of --namespace at the start: optimized,
    /// non-optimized, inaccessible, persistent-loss or change; may be repeated [default: optimized;
    /// the target reports ANA only if --ana or ana-group= is given]
    #[arg(long, value_name = "GROUP=STATE", value_parser = ana::parse)]
    pub(super) ana: Vec<(String, String)>,
    /// Smallest controller identifier; targets that export one subsystem need ranges that do not
    /// overlap [default: 1]
    #[arg(long, value_name = "N")]
    pub(super) cntlid_min: Option<u16>,
    /// Largest controller identifier [default: 65519]
    #[arg(long, value_name = "N")]
    pub(super) cntlid_max: Option<u16>,
    /// NQN of a host that may connect; may be repeated [default: any]
    #[arg(long, value_name = "NQN")]
    pub(super) allow_host: Vec<Nqn>,
    /// Host that may connect: its NQN, with its keys as options after commas (see below); may be
    /// repeated
    #[arg(long, value_name = "HOST")]
    pub(super) host: Vec<HostSettings>,
    /// Require authentication of hosts with keys also at the discovery service; nvme-cli does not
    /// support this
    #[arg(long)]
    pub(super) auth_discovery: bool,
    /// Microseconds to spin for work before sleeping, or auto: only while that is cheaper than a
    /// wake-up; a target without work does not spin [default: 0]
    #[arg(long, value_name = "N|auto")]
    pub(super) poll_us: Option<reactor::Spin>,
    /// Number of threads that serve connections, or all: one for each CPU that this process may use
    /// (by its affinity and its cgroup's quota) [default: 1]
    #[arg(long, value_name = "N|all")]
    pub(super) cores: Option<CoreCount>,
    /// Bytes of buffer memory for the data of all hosts' commands together [default: 256M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) data_memory_max: Option<u64>,
    /// Number of connections at a time, of all hosts; at most three quarters may come from one
    /// address [default: 1024]
    #[arg(long, value_name = "N")]
    pub(super) connections_max: Option<usize>,
    /// Number of controllers at a time, of all hosts [default: as many as connections, at most
    /// 1024]
    #[arg(long, value_name = "N")]
    pub(super) controllers_max: Option<usize>,
    /// Number of I/O queue pairs per controller [default: 64]
    #[arg(long, value_name = "N")]
    pub(super) io_queues_max: Option<u16>,
    /// Number of entries in an I/O queue, 2 to 4096 [default: 128]
    #[arg(long, value_name = "N")]
    pub(super) queue_size_max: Option<u16>,
    /// Longest transfer of a command in bytes (MDTS): a power of two, 4K to 64M; --data-memory-max
    /// must hold four [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(super) mdts: Option<u64>,
    /// Control socket for `tsumugi target ctl`, or none [default: target-PID.sock in /run/tsumugi
    /// (root) or `$XDG_RUNTIME_DIR/tsumugi`]
    #[arg(long, value_name = "PATH")]
    pub(super) control: Option<PathBuf>,
    /// Refuse header digests
    #[arg(long)]
    pub(super) no_hdr_digest: bool,
    /// Refuse data digests
    #[arg(long)]
    pub(super) no_data_digest: bool,
    /// Allow an address beyond loopback without authentication of hosts
    #[arg(long)]
    pub(super) insecure: bool,
    /// Network namespace for the sockets, e.g. /run/netns/node1
    #[arg(long, value_name = "PATH")]
    pub(super) network_namespace: Option<PathBuf>,
    /// What serves: our own target, on any reactor or on the given engine, or the kernel's target
    /// (nvmet). The command sets the kernel's target up from the same settings, needs root for it,
    /// and takes it down at the end [default: own]
    #[arg(long, default_value = "own", hide_default_value = true, value_parser = Engine::all())]
    pub(super) engine: Engine,
    /// Fabric that carries the commands at the addresses of --listen [default: tcp]
    #[arg(long, value_name = "FABRIC")]
    pub(super) fabric: Option<Fabric>,
    /// With --engine kernel, let the adapter itself serve commands (ConnectX-5 and later, for RDMA)
    #[arg(long)]
    pub(super) offload: bool,
    /// Print JSON, one object per line, with statistics at the end
    #[arg(long)]
    pub(super) json: bool,
}

impl TargetArgs {
    /// Returns the settings of the configuration file and the options, after a check.
    pub(super) fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = match &self.config {
            Some(path) => Settings::read(path)?,
            None => Settings::default(),
        };
        settings.listen.extend(&self.listen);
        settings.listen_rdma.extend(&self.listen_rdma);
        if self.fabric == Some(Fabric::Rdma) && self.engine != Engine::Kernel {
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
        limits_of(&settings)?;
        Ok(settings)
    }
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum TargetCommand {
    /// Show and change a running target.
    Ctl(ctl::CtlArgs),
}
