//! `tsumugi target ctl namespace`: changes namespaces.

use super::subsystem::SubsystemArg;
use super::text::{namespace_text, size_text};
use crate::commands::target::control::Request;
use crate::commands::target::size;
use clap::Subcommand;
use nvme::Nqn;

#[derive(Clone, Debug, Subcommand)]
pub(super) enum NamespaceCommand {
    /// Add a namespace.
    #[command(after_help = "Examples:\n  tsumugi target ctl namespace add memory:512M\n  \
        tsumugi target ctl namespace add file:/scratch/disk,size=4G,nsid=7 --subsystem NQN")]
    Add {
        /// Namespace, as for `tsumugi target --namespace`
        #[arg(value_parser = namespace_text)]
        namespace: String,
        #[command(flatten)]
        subsystem: SubsystemArg,
    },
    /// Remove a namespace: running commands complete, later ones fail with Invalid Namespace or
    /// Format.
    #[command(after_help = "Example:\n  tsumugi target ctl namespace remove 7")]
    Remove {
        /// Identifier of the namespace (NSID)
        #[arg(value_name = "NSID")]
        nsid: u32,
        #[command(flatten)]
        subsystem: SubsystemArg,
    },
    /// Limit the commands and bytes per second of all hosts together on a namespace.
    ///
    /// Commands beyond a limit wait; hosts see longer latencies and no errors.
    #[command(
        after_help = "Examples:\n  tsumugi target ctl namespace limit 1 --iops 5000 --bytes-per-s 200M\n  \
        tsumugi target ctl namespace limit 1 --iops none --bytes-per-s none"
    )]
    Limit {
        /// Identifier of the namespace (NSID)
        #[arg(value_name = "NSID")]
        nsid: u32,
        /// Commands per second, or `none` for no limit
        #[arg(long, value_name = "N|none", value_parser = commands_limit)]
        iops: LimitArg,
        /// Bytes of data per second, or `none` for no limit
        #[arg(long, value_name = "SIZE|none", value_parser = bytes_limit)]
        bytes_per_s: LimitArg,
        #[command(flatten)]
        subsystem: SubsystemArg,
    },
    /// Set which of the hosts that may connect see a namespace.
    ///
    /// Other hosts neither list nor reach it. Hosts that gain or lose it get an event.
    #[command(
        after_help = "Examples:\n  tsumugi target ctl namespace hosts 2 HOSTNQN OTHERNQN\n  \
        tsumugi target ctl namespace hosts 2 --any"
    )]
    Hosts {
        /// Identifier of the namespace (NSID)
        #[arg(value_name = "NSID")]
        nsid: u32,
        /// NQNs of the hosts that see it
        #[arg(value_name = "HOSTNQN", required_unless_present_any = ["any", "none"])]
        hosts: Vec<Nqn>,
        /// Let all hosts that may connect see it
        #[arg(long, conflicts_with_all = ["hosts", "none"])]
        any: bool,
        /// Let no host see it
        #[arg(long, conflicts_with = "hosts")]
        none: bool,
        #[command(flatten)]
        subsystem: SubsystemArg,
    },
    /// Make a namespace larger or smaller while hosts use it.
    #[command(after_help = "Examples:\n  tsumugi target ctl namespace resize 7 --size 8G\n  \
        tsumugi target ctl namespace resize 1        after its disk was made larger")]
    Resize {
        /// Identifier of the namespace (NSID)
        #[arg(value_name = "NSID")]
        nsid: u32,
        /// New size in bytes, such as 8G, to which a file is extended or cut [default: the present
        /// size of the file or disk]
        #[arg(long, value_name = "SIZE", value_parser = size_text)]
        size: Option<String>,
        /// Confirm that a smaller size loses the data beyond it
        #[arg(long)]
        shrink: bool,
        #[command(flatten)]
        subsystem: SubsystemArg,
    },
}

/// A limit, or none.
#[derive(Clone, Debug)]
pub(super) enum LimitArg {
    None,
    Most(u64),
}

impl LimitArg {
    fn value(&self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Most(most) => Some(*most),
        }
    }
}

fn commands_limit(text: &str) -> Result<LimitArg, String> {
    if text == "none" {
        return Ok(LimitArg::None);
    }
    let most = text.parse().ok().filter(|most| *most > 0);
    let most = most.ok_or_else(|| format!("{text:?}: give `none` or a number of at least 1"))?;
    Ok(LimitArg::Most(most))
}

fn bytes_limit(text: &str) -> Result<LimitArg, String> {
    if text == "none" {
        return Ok(LimitArg::None);
    }
    match size::parse(text)? {
        0 => Err("0: give `none` or a size of at least 1".into()),
        most => Ok(LimitArg::Most(most)),
    }
}

impl NamespaceCommand {
    /// Returns the request to the target.
    pub(super) fn request(&self) -> Request {
        match self {
            Self::Add { namespace, subsystem } => {
                Request::NamespaceAdd { subsystem: subsystem.name(), namespace: namespace.clone() }
            }
            Self::Remove { nsid, subsystem } => {
                Request::NamespaceRemove { subsystem: subsystem.name(), nsid: *nsid }
            }
            Self::Resize { nsid, size, shrink, subsystem } => Request::NamespaceResize {
                subsystem: subsystem.name(),
                nsid: *nsid,
                size: size.clone(),
                shrink: *shrink,
            },
            Self::Hosts { nsid, hosts, any, subsystem, .. } => Request::NamespaceHosts {
                subsystem: subsystem.name(),
                nsid: *nsid,
                hosts: (!any).then(|| hosts.iter().map(Nqn::to_string).collect()),
            },
            Self::Limit { nsid, iops, bytes_per_s, subsystem } => Request::NamespaceLimit {
                subsystem: subsystem.name(),
                nsid: *nsid,
                iops: iops.value(),
                bytes_per_s: bytes_per_s.value().map(size::short),
            },
        }
    }
}
