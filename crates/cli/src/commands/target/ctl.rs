//! `tsumugi target ctl`: shows and changes a running target through its control socket.

mod ask;
mod namespace;
mod print;
mod subsystem;
mod text;

use super::ana;
use super::control::Request;
use crate::commands::stats::parse_seconds;
use anyhow::{Context, bail};
pub(in crate::commands) use ask::Target;
use clap::{Args, Subcommand};
use namespace::NamespaceCommand;
use nvme::Nqn;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use subsystem::SubsystemArg;
use text::{host_text, namespace_text};

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
    #[command(subcommand, after_help = "Example:\n  tsumugi target ctl namespace add memory:512M")]
    Namespace(NamespaceCommand),
    /// Add and remove subsystems.
    #[command(
        subcommand,
        after_help = "Example:\n  tsumugi target ctl subsystem add --nqn NQN --namespace memory:1G"
    )]
    Subsystem(SubsystemCommand),
    /// Add and remove hosts that may connect, and change their keys.
    #[command(subcommand, after_help = "Example:\n  tsumugi target ctl host add HOSTNQN")]
    Host(HostCommand),
    /// Set how well hosts reach groups of namespaces through this target (ANA, see docs/paths.md).
    #[command(subcommand, after_help = "Example:\n  tsumugi target ctl ana set 1=inaccessible")]
    Ana(AnaCommand),
    /// Add and remove addresses to listen on.
    #[command(subcommand, after_help = "Example:\n  tsumugi target ctl listener add 10.0.0.8:4420")]
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
