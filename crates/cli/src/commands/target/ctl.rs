//! `tsumugi target ctl`: shows and changes a running target through its control socket.

mod ask;
mod print;

use super::ana;
use super::control::Request;
use super::hosts::HostSettings;
use super::namespace::NamespaceSettings;
use super::size;
use crate::commands::stats::parse_seconds;
use anyhow::{Context, bail};
pub(in crate::commands) use ask::Target;
use clap::{Args, Subcommand};
use nvme::Nqn;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Show and change a running target.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi target ctl show
    tsumugi target ctl namespace add file:/scratch/more,size=4G
    tsumugi target ctl namespace resize 2 --size 8G
    tsumugi target ctl host key HOSTNQN,dhchap-key=new.key
    tsumugi target ctl ana set 1=inaccessible
    tsumugi target ctl write target.toml

The target sends events to hosts about changed namespaces and subsystems. It completes running \
commands, and interrupts nothing that does not change. Without --control the command uses the only \
running target of this user.

Exit codes:
    0  done
    1  refused or failed, or no target answers
    2  wrong usage")]
pub(crate) struct CtlArgs {
    /// Control socket of the target [default: that of the only running target of this user]
    #[arg(long, value_name = "PATH", global = true)]
    control: Option<PathBuf>,
    /// Print JSON, one object per line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: CtlCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum CtlCommand {
    /// Show the target: listeners, subsystems, namespaces, hosts, limits and memory.
    #[command(
        after_help = "Examples:\n  tsumugi target ctl show\n  tsumugi target ctl show --json"
    )]
    Show,
    /// Show the connected controllers.
    #[command(after_help = "Example:\n  tsumugi target ctl connections")]
    Connections,
    /// Show counts, rates and latencies of commands.
    #[command(after_help = "Examples:\n  tsumugi target ctl stats\n  \
        tsumugi target ctl stats --interval 1 --count 5")]
    Stats(StatsArgs),
    /// Add, remove, resize and limit namespaces.
    #[command(subcommand)]
    Namespace(NamespaceCommand),
    /// Add and remove subsystems.
    #[command(subcommand)]
    Subsystem(SubsystemCommand),
    /// Add and remove hosts that may connect, and change their keys.
    #[command(subcommand)]
    Host(HostCommand),
    /// Set how well hosts reach groups of namespaces through this target (ANA, see docs/paths.md).
    #[command(subcommand)]
    Ana(AnaCommand),
    /// Add and remove addresses to listen on.
    #[command(subcommand)]
    Listener(ListenerCommand),
    /// Write the present state as a configuration file, which contains the paths of key files but
    /// no keys.
    #[command(after_help = "Example:\n  tsumugi target ctl write /etc/tsumugi/target.toml")]
    Write {
        /// File to write or replace
        #[arg(value_name = "CONFIG.toml")]
        path: PathBuf,
    },
    /// Read the configuration file again and apply the difference, as SIGHUP does.
    #[command(after_help = "Example:\n  tsumugi target ctl reload")]
    Reload,
}

#[derive(Clone, Debug, Args)]
struct StatsArgs {
    /// Show rates over intervals of SECONDS, until Ctrl-C
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    interval: Option<Duration>,
    /// End after N intervals
    #[arg(long, value_name = "N", requires = "interval")]
    count: Option<u64>,
}

#[derive(Clone, Debug, Args)]
struct SubsystemArg {
    /// NQN of the subsystem [default: the only one]
    #[arg(long, short = 'n', value_name = "NQN")]
    subsystem: Option<Nqn>,
}

impl SubsystemArg {
    fn name(&self) -> Option<String> {
        self.subsystem.as_ref().map(Nqn::to_string)
    }
}

#[derive(Clone, Debug, Subcommand)]
enum NamespaceCommand {
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
enum LimitArg {
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

#[derive(Clone, Debug, Subcommand)]
enum SubsystemCommand {
    /// Add a subsystem.
    #[command(after_help = "Example:\n  tsumugi target ctl subsystem add --nqn NQN \
        --namespace memory:1G --host HOSTNQN,dhchap-key=host.key")]
    Add {
        /// NQN of the subsystem [default: derived from this machine and the namespaces]
        #[arg(long, value_name = "NQN")]
        nqn: Option<Nqn>,
        /// Serial number [default: derived from the NQN]
        #[arg(long, value_name = "TEXT")]
        serial: Option<String>,
        /// Model [default: Tsumugi target]
        #[arg(long, value_name = "TEXT")]
        model: Option<String>,
        /// Namespace, as for `tsumugi target --namespace`; may be repeated
        #[arg(long, value_parser = namespace_text)]
        namespace: Vec<String>,
        /// Host that may connect, as for `tsumugi target --host`; may be repeated [default: any]
        #[arg(long, value_parser = host_text)]
        host: Vec<String>,
    },
    /// Remove a subsystem and end its controllers.
    #[command(after_help = "Example:\n  tsumugi target ctl subsystem remove NQN")]
    Remove {
        /// NQN of the subsystem
        #[arg(value_name = "NQN")]
        nqn: Nqn,
    },
}

#[derive(Clone, Debug, Subcommand)]
enum HostCommand {
    /// Let a host connect.
    #[command(after_help = "Examples:\n  tsumugi target ctl host add HOSTNQN\n  \
        tsumugi target ctl host add HOSTNQN,dhchap-key=host.key --subsystem NQN")]
    Add {
        /// Host, as for `tsumugi target --host`
        #[arg(value_parser = host_text)]
        host: String,
        #[command(flatten)]
        subsystem: SubsystemArg,
        /// Confirm that other hosts lose access, if all hosts may connect so far
        #[arg(long)]
        restrict: bool,
    },
    /// Remove a host's access and end its controllers.
    #[command(after_help = "Example:\n  tsumugi target ctl host remove HOSTNQN")]
    Remove {
        /// NQN of the host
        #[arg(value_name = "HOSTNQN")]
        host: Nqn,
        #[command(flatten)]
        subsystem: SubsystemArg,
        /// Confirm that all hosts may connect after the last one is removed
        #[arg(long)]
        any_host: bool,
    },
    /// Replace a host's keys in all subsystems; existing connections stay.
    #[command(after_help = "Example:\n  tsumugi target ctl host key HOSTNQN,dhchap-key=new.key")]
    Key {
        /// Host with all its options, as for `tsumugi target --host`
        #[arg(value_parser = host_text)]
        host: String,
    },
}

#[derive(Clone, Debug, Subcommand)]
enum AnaCommand {
    /// Set states of ANA groups; hosts get an event.
    /// The target must report ANA since its start (--ana or ana-group=). Running commands complete
    /// with their own status; the new state decides about later ones. `tsumugi target ctl show`
    /// prints the states.
    #[command(after_help = "Examples:\n  tsumugi target ctl ana set 1=inaccessible\n  \
        tsumugi target ctl ana set 1=non-optimized 2=optimized --subsystem NQN")]
    Set {
        /// Group (1 to 128) and state: optimized, non-optimized, inaccessible, persistent-loss or
        /// change
        #[arg(value_name = "GROUP=STATE", required = true, value_parser = ana::parse)]
        states: Vec<(String, String)>,
        #[command(flatten)]
        subsystem: SubsystemArg,
    },
}

#[derive(Clone, Debug, Subcommand)]
enum ListenerCommand {
    /// Listen on another address.
    #[command(after_help = "Example:\n  tsumugi target ctl listener add 10.0.0.8:4420")]
    Add {
        /// Address and port to listen on; port 0 chooses a free port
        #[arg(value_name = "ADDR:PORT")]
        address: SocketAddr,
    },
    /// Stop listening on an address; its existing connections stay.
    #[command(after_help = "Example:\n  tsumugi target ctl listener remove 10.0.0.8:4420")]
    Remove {
        /// Address and port
        #[arg(value_name = "ADDR:PORT")]
        address: SocketAddr,
    },
}

/// Makes a path absolute, because the target may have another working directory.
fn absolute(path: &str) -> Result<String, String> {
    let absolute = std::path::absolute(path).map_err(|error| format!("{path:?}: {error}"))?;
    absolute.into_os_string().into_string().map_err(|_| format!("{path:?} is not in UTF-8"))
}

fn namespace_text(text: &str) -> Result<String, String> {
    text.parse::<NamespaceSettings>()?;
    let (what, options) = text.split_at(text.find(',').unwrap_or(text.len()));
    match what.strip_prefix("file:") {
        Some(path) => Ok(format!("file:{}{options}", absolute(path)?)),
        None => Ok(text.to_owned()),
    }
}

fn host_text(text: &str) -> Result<String, String> {
    text.parse::<HostSettings>()?;
    let parts = text.split(',').map(|part| match part.split_once('=') {
        Some((name @ ("dhchap-key" | "dhchap-ctrl-key" | "tls-key"), file)) => {
            Ok(format!("{name}={}", absolute(file)?))
        }
        _ => Ok(part.to_owned()),
    });
    Ok(parts.collect::<Result<Vec<_>, String>>()?.join(","))
}

fn size_text(text: &str) -> Result<String, String> {
    size::parse(text).map(|_| text.to_owned())
}

impl CtlCommand {
    fn request(&self) -> anyhow::Result<Request> {
        Ok(match self {
            Self::Show => Request::Show {},
            Self::Connections => Request::Connections {},
            Self::Stats(_) => Request::Stats {},
            Self::Namespace(command) => command.request(),
            Self::Subsystem(command) => command.request(),
            Self::Host(command) => command.request(),
            Self::Ana(AnaCommand::Set { states, subsystem }) => ana_request(states, subsystem)?,
            Self::Listener(ListenerCommand::Add { address }) => {
                Request::ListenerAdd { address: address.to_string() }
            }
            Self::Listener(ListenerCommand::Remove { address }) => {
                Request::ListenerRemove { address: address.to_string() }
            }
            Self::Write { path } => Request::Write {
                path: std::path::absolute(path)
                    .with_context(|| format!("cannot find {}", path.display()))?,
            },
            Self::Reload => Request::Reload {},
        })
    }
}

fn ana_request(states: &[(String, String)], subsystem: &SubsystemArg) -> anyhow::Result<Request> {
    let subsystem = subsystem.name();
    let mut by_group = BTreeMap::new();
    for (group, state) in states {
        if by_group.insert(group.clone(), state.clone()).is_some() {
            bail!("ANA group {group} is given twice: give each group once");
        }
    }
    Ok(Request::AnaSet { subsystem, states: by_group })
}

impl NamespaceCommand {
    fn request(&self) -> Request {
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

impl SubsystemCommand {
    fn request(&self) -> Request {
        match self {
            Self::Add { nqn, serial, model, namespace, host } => Request::SubsystemAdd {
                nqn: nqn.as_ref().map(Nqn::to_string),
                serial: serial.clone(),
                model: model.clone(),
                namespaces: namespace.clone(),
                hosts: host.clone(),
            },
            Self::Remove { nqn } => Request::SubsystemRemove { subsystem: nqn.to_string() },
        }
    }
}

impl HostCommand {
    fn request(&self) -> Request {
        match self {
            Self::Add { host, subsystem, restrict } => Request::HostAdd {
                subsystem: subsystem.name(),
                host: host.clone(),
                restrict: *restrict,
            },
            Self::Remove { host, subsystem, any_host } => Request::HostRemove {
                subsystem: subsystem.name(),
                host: host.to_string(),
                any_host: *any_host,
            },
            Self::Key { host } => Request::HostKey { host: host.clone() },
        }
    }
}

/// Runs `tsumugi target ctl`.
pub(crate) fn run(args: &CtlArgs) -> anyhow::Result<ExitCode> {
    let request = args.command.request()?;
    let mut target = match &args.control {
        Some(path) => Target::at(path)?,
        None => Target::only()?,
    };
    if let CtlCommand::Stats(stats) = &args.command {
        print::stats(&mut target, stats.interval, stats.count, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let result = target.ask(&request)?;
    if args.json {
        println!("{result}");
        return Ok(ExitCode::SUCCESS);
    }
    match request {
        Request::Show {} => print::show(&result),
        Request::Connections {} => print::connections(&result),
        Request::Write { .. } => {
            println!("wrote {}", result["path"].as_str().unwrap_or_default());
        }
        _ => print::report(&result),
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: paths in requests are absolute, and the rest is unchanged.
    #[test]
    fn files_are_named_from_the_root() {
        let here = |file: &str| std::path::absolute(file).unwrap().display().to_string();
        let of = |text: &str| namespace_text(text).unwrap();
        assert_eq!(of("file:disk,size=4G"), format!("file:{},size=4G", here("disk")));
        for kept in ["file:/x", "/dev/x,read-only", "memory:1M,nsid=3"] {
            assert_eq!(of(kept), kept);
        }
        let host = "nqn.2026-01.io.tsumugi:h";
        let written = format!("{host},dhchap-key=k,dhchap-hash=sha384,tls-key=/t,tls-compat");
        let expected =
            format!("{host},dhchap-key={},dhchap-hash=sha384,tls-key=/t,tls-compat", here("k"));
        assert_eq!(host_text(&written).unwrap(), expected);
        assert!(namespace_text("disk").is_err() && host_text("h").is_err());
    }
}
