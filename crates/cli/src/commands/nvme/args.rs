//! Arguments that the commands share.

use super::foreign::ForeignArgs;
use super::host_files::{HOSTID_FILE, HOSTNQN_FILE};
use super::keys::SecretArgs;
use super::tls::TlsArgs;
use anyhow::{Context, bail};
use clap::Args;
use host::{ConnectOptions, Controller, Namespace, Transport};
use nvme::{HostId, Nqn, Nsid};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// The address of a target and the parameters of its connections.
#[derive(Clone, Debug, Args)]
pub(crate) struct TargetArgs {
    /// Address or name of the target
    #[arg(short = 'a', long, value_name = "ADDRESS")]
    traddr: String,
    /// Port of the target
    #[arg(short = 's', long, value_name = "PORT", default_value_t = nvme::tcp::IO_PORT)]
    trsvcid: u16,
    /// NQN of this host [default: that in /etc/nvme/hostnqn, else one made from --hostid]
    #[arg(short = 'q', long, value_name = "NQN")]
    hostnqn: Option<Nqn>,
    /// Identifier (UUID) of this host [default: that in /etc/nvme/hostid, else random]
    #[arg(short = 'I', long, value_name = "UUID")]
    hostid: Option<uuid::Uuid>,
    /// Keep-alive timeout in seconds; 0 turns it off
    #[arg(short = 'k', long, value_name = "SECONDS", default_value_t = 5.0)]
    keep_alive_tmo: f64,
    /// Longest pause between two attempts to reconnect, in seconds
    #[arg(short = 'c', long, value_name = "SECONDS", default_value_t = 10.0)]
    reconnect_delay: f64,
    /// Seconds until the host gives up an unreachable controller; -1 for never
    #[arg(
        short = 'l',
        long,
        value_name = "SECONDS",
        default_value_t = 600.0,
        allow_negative_numbers = true
    )]
    ctrl_loss_tmo: f64,
    /// Seconds until a request fails, including the time to reconnect [default: --ctrl-loss-tmo]
    #[arg(short = 'F', long, alias = "fast_io_fail_tmo", value_name = "SECONDS")]
    fast_io_fail_tmo: Option<f64>,
    /// Seconds until an unanswered command ends the connection
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    io_timeout: f64,
    /// Seconds until an attempt to connect a queue pair fails
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0)]
    connect_timeout: f64,
    /// Request header digests
    #[arg(short = 'g', long)]
    hdr_digest: bool,
    /// Request data digests
    #[arg(short = 'G', long)]
    data_digest: bool,
    /// Network namespace for the sockets, e.g. /run/netns/node1
    #[arg(long, value_name = "PATH")]
    network_namespace: Option<PathBuf>,
    /// Number of I/O queue pairs per thread (a discovery controller has none)
    #[arg(short = 'i', long, value_name = "N", default_value_t = 1)]
    nr_io_queues: u16,
    /// Maximum number of outstanding commands on an I/O queue pair
    #[arg(short = 'Q', long, value_name = "N", default_value_t = 128)]
    queue_size: u16,
    #[command(flatten)]
    secrets: SecretArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    foreign: ForeignArgs,
}

/// The parameters of a connection to a subsystem.
#[derive(Clone, Debug, Args)]
pub(crate) struct ConnectArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// NQN of the subsystem
    #[arg(short = 'n', long, value_name = "NQN")]
    nqn: Nqn,
}

/// The namespace of a command.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct NamespaceArgs {
    /// Identifier of the namespace (NSID) [default: the only one]
    #[arg(long, visible_alias = "nsid", value_name = "NSID")]
    namespace_id: Option<u32>,
}

fn duration(option: &str, seconds: f64) -> anyhow::Result<Duration> {
    Duration::try_from_secs_f64(seconds)
        .with_context(|| format!("--{option}: {seconds} is not a valid number of seconds"))
}

impl TargetArgs {
    /// Returns the options for this subsystem.
    pub(crate) fn options(&self, nqn: Nqn) -> anyhow::Result<ConnectOptions> {
        self.foreign.check()?;
        let mut options = ConnectOptions::new(self.address()?, nqn);
        let (hostid, hostnqn) = self.host(options.hostid)?;
        options = options.with_host(hostid, hostnqn);
        options.transport = self.foreign.transport()?;
        options.keep_alive_tmo = duration("keep-alive-tmo", self.keep_alive_tmo)?;
        options.reconnect_delay = duration("reconnect-delay", self.reconnect_delay)?;
        options.ctrl_loss_tmo = if self.ctrl_loss_tmo < 0.0 {
            None
        } else {
            Some(duration("ctrl-loss-tmo", self.ctrl_loss_tmo)?)
        };
        options.fast_io_fail_tmo =
            self.fast_io_fail_tmo.map(|it| duration("fast-io-fail-tmo", it)).transpose()?;
        options.io_timeout = duration("io-timeout", self.io_timeout)?;
        options.connect_timeout = duration("connect-timeout", self.connect_timeout)?;
        options.hdr_digest = self.hdr_digest;
        options.data_digest = self.data_digest;
        options.dhchap = self.secrets.keys()?;
        options.tls = self.tls.options()?;
        options.concat = self.tls.is_concatenated();
        if options.concat && options.dhchap.is_none() {
            bail!("--concat: the key comes from the authentication: also give --dhchap-secret");
        }
        options.network_namespace.clone_from(&self.network_namespace);
        options.nr_io_queues = self.nr_io_queues;
        options.queue_size = self.queue_size;
        Ok(options)
    }

    fn address(&self) -> anyhow::Result<SocketAddr> {
        if let Ok(ip) = self.traddr.parse::<IpAddr>() {
            return Ok(SocketAddr::new(ip, self.trsvcid));
        }
        (self.traddr.as_str(), self.trsvcid)
            .to_socket_addrs()
            .with_context(|| format!("--traddr: cannot resolve {}", self.traddr))?
            .next()
            .with_context(|| format!("--traddr: {} has no address", self.traddr))
    }

    /// Returns identifier and name of this host: from the options, else from nvme-cli's files, else
    /// from `random`.
    fn host(&self, random: HostId) -> anyhow::Result<(HostId, Nqn)> {
        let file = |path: &str| std::fs::read_to_string(path).ok();
        let hostid = match (self.hostid, file(HOSTID_FILE)) {
            (Some(hostid), _) => HostId(hostid.into_bytes()),
            (None, Some(text)) => {
                let uuid = uuid::Uuid::parse_str(text.trim())
                    .with_context(|| format!("{HOSTID_FILE} does not contain a UUID"))?;
                HostId(uuid.into_bytes())
            }
            (None, None) => random,
        };
        let hostnqn = match (&self.hostnqn, file(HOSTNQN_FILE)) {
            (Some(hostnqn), _) => hostnqn.clone(),
            (None, Some(text)) if self.hostid.is_none() => Nqn::new(text.trim())?,
            _ => Nqn::from_uuid(hostid.0),
        };
        Ok((hostid, hostnqn))
    }
}

impl ConnectArgs {
    /// Returns the options for the subsystem.
    pub(crate) fn options(&self) -> anyhow::Result<ConnectOptions> {
        self.target.options(self.nqn.clone())
    }

    /// Returns whether sockets must be opened in another network namespace.
    pub(crate) fn has_network_namespace(&self) -> bool {
        self.target.network_namespace.is_some()
    }

    /// Returns the transport of the connection.
    pub(crate) fn transport(&self) -> anyhow::Result<Transport> {
        self.target.foreign.transport()
    }

    /// Returns whether the connection must be under TLS.
    pub(crate) fn has_tls(&self) -> bool {
        self.target.tls.is_given()
    }

    /// Raises the queue size to at least `commands`.
    pub(crate) fn raise_queue_size(&mut self, commands: u16) {
        self.target.queue_size = self.target.queue_size.max(commands);
    }
}

impl NamespaceArgs {
    /// Returns the namespace of the command.
    pub(crate) async fn choose(&self, controller: &Controller) -> anyhow::Result<Nsid> {
        if let Some(nsid) = self.namespace_id {
            return Ok(Nsid(nsid));
        }
        match controller.namespace_ids().await?.as_slice() {
            [] => bail!("the subsystem has no namespace (for this host)"),
            [nsid] => Ok(*nsid),
            several => bail!(
                "the subsystem has {} namespaces: choose one with --namespace-id",
                several.len()
            ),
        }
    }
}

/// Fails unless `destroy` names the namespace by UUID, NGUID or EUI64, or the controller by its
/// serial number. So a mistyped address or NQN does not destroy data.
pub(crate) fn check_destroy(destroy: Option<&str>, namespace: &Namespace) -> anyhow::Result<()> {
    let identity = namespace.identity();
    let serial = namespace.controller().info().map(|info| info.identify.serial());
    let mut names: Vec<String> = Vec::new();
    names.extend(identity.uuid.map(|uuid| uuid.to_string()));
    names.extend(identity.nguid.map(|id| hex(&id)));
    names.extend(identity.eui64.map(|id| hex(&id)));
    names.extend(serial.filter(|serial| !serial.is_empty()));
    let given = destroy.map(str::trim);
    match given {
        Some(given) if names.iter().any(|name| name.eq_ignore_ascii_case(given)) => Ok(()),
        Some(given) => bail!(
            "--destroy {given} does not name this namespace; its names are: {}",
            names.join(", ")
        ),
        None => bail!(
            "writing destroys the content of the namespace: confirm with --destroy and one of its \
             names: {}",
            names.join(", ")
        ),
    }
}

/// Returns two hexadecimal digits per byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 0xf)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]).collect()
}
