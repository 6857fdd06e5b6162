//! Options of nvme-cli that this host accepts for compatibility, or refuses with a reason.
//!
//! Scripts written for nvme-cli use them. An option for something that this host does anyway is
//! accepted. An option for a missing feature is refused with the reason, because a connection that
//! silently lacks, say, encryption is worse than none.

use anyhow::bail;
use clap::{Args, ValueEnum};

/// A transport that nvme-cli knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Transport {
    /// NVMe/TCP
    #[default]
    Tcp,
    /// NVMe/RDMA, by way of rdma-core
    Rdma,
    #[value(hide = true)]
    Fc,
    #[value(hide = true)]
    Loop,
    #[value(hide = true)]
    Pcie,
}

/// How to print results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    /// Text
    Normal,
    /// JSON
    Json,
    #[value(hide = true)]
    Binary,
}

/// Text or JSON.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(super) struct OutputArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Output format, as in nvme-cli: normal or json
    #[arg(short = 'o', long, value_name = "FORMAT", conflicts_with = "json")]
    output_format: Option<OutputFormat>,
}

impl OutputArgs {
    /// Returns whether to print JSON.
    ///
    /// # Errors
    /// If the format is not supported.
    pub(super) fn is_json(self) -> anyhow::Result<bool> {
        match self.output_format {
            Some(OutputFormat::Binary) => bail!(
                "--output-format binary: the raw structures are not printed; use json, or nvme-cli \
                 on a namespace that `tsumugi nvme attach` made a device of the kernel"
            ),
            Some(format) => Ok(format == OutputFormat::Json),
            None => Ok(self.json),
        }
    }
}

/// Options of nvme-cli's connections.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct ForeignArgs {
    /// Transport of the connection
    #[arg(short = 't', long, value_enum, default_value_t, value_name = "TRANSPORT")]
    transport: Transport,
    /// Accepted for compatibility; each command connects its own controller
    #[arg(short = 'D', long, hide = true)]
    #[allow(dead_code, reason = "it asks for what is done anyway")]
    duplicate_connect: bool,
    #[arg(short = 'w', long, hide = true, value_name = "ADDRESS")]
    host_traddr: Option<String>,
    #[arg(short = 'f', long, hide = true, value_name = "INTERFACE")]
    host_iface: Option<String>,
    #[arg(long, hide = true, value_name = "KEYRING")]
    keyring: Option<String>,
    #[arg(short = 'W', long, hide = true, value_name = "N")]
    nr_write_queues: Option<u16>,
    #[arg(short = 'P', long, hide = true, value_name = "N")]
    nr_poll_queues: Option<u16>,
    #[arg(short = 'T', long, hide = true, value_name = "TOS")]
    tos: Option<i16>,
    #[arg(long, hide = true)]
    disable_sqflow: bool,
    #[arg(short = 'J', long, hide = true, value_name = "FILE")]
    config: Option<String>,
    #[arg(short = 'p', long, hide = true)]
    persistent: bool,
    #[arg(short = 'r', long, hide = true, value_name = "FILE")]
    raw: Option<String>,
}

impl ForeignArgs {
    /// Returns the transport of the connection.
    ///
    /// # Errors
    /// If this host does not have it.
    pub(super) fn transport(&self) -> anyhow::Result<host::Transport> {
        match self.transport {
            Transport::Tcp => Ok(host::Transport::Tcp),
            Transport::Rdma => Ok(host::Transport::Rdma),
            Transport::Fc | Transport::Loop | Transport::Pcie => bail!(
                "--transport: only tcp and rdma are supported; for others use the kernel's host"
            ),
        }
    }

    /// Refuses options for missing features.
    ///
    /// # Errors
    /// The refused option and the reason.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        const KEYRING: &str = "this host does not use the kernel's keyring: give the key with \
            --tls-key FILE";
        const ROUTED: &str = "the kernel's routes choose the way to the target; to use other \
            routes, give --network-namespace";
        const ALIKE: &str = "all I/O queue pairs are alike: give --nr-io-queues";
        self.transport()?;
        let given = [
            ("--host-traddr", self.host_traddr.is_some(), ROUTED),
            ("--host-iface", self.host_iface.is_some(), ROUTED),
            ("--keyring", self.keyring.is_some(), KEYRING),
            ("--nr-write-queues", self.nr_write_queues.is_some(), ALIKE),
            ("--nr-poll-queues", self.nr_poll_queues.is_some(), ALIKE),
            ("--tos", self.tos.is_some(), "packets are sent with the system's type of service"),
            ("--disable-sqflow", self.disable_sqflow, "flow control of queues stays on"),
            ("--config", self.config.is_some(), "give each target's address by options"),
            ("--persistent", self.persistent, "the connection ends with the command"),
            ("--raw", self.raw.is_some(), "raw structures are not written; use -o json"),
        ];
        match given.into_iter().find(|(_, is_given, _)| *is_given) {
            Some((option, _, reason)) => bail!("{option} is not supported: {reason}"),
            None => Ok(()),
        }
    }
}
