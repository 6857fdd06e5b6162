//! Options of commands that reach other machines by ssh.

use crate::deploy::site::Defaults;
use clap::Args;

/// Number of machines that one machine reaches directly, if neither an option nor the site sets it.
const FAN_OUT: u16 = 16;

/// How to reach a host, and the program to run there.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReachArgs {
    /// Command that reaches a host [default: the site's, else ssh]
    #[arg(long, value_name = "COMMAND")]
    ssh: Option<String>,
    /// Name or path of the program on the hosts [default: the site's, else tsumugi]
    #[arg(long, value_name = "PATH")]
    remote_binary: Option<String>,
    /// Number of hosts that each host reaches directly; more hosts are reached as a tree [default:
    /// the site's, else 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..))]
    fan_out: Option<u16>,
}

impl ReachArgs {
    /// Fills in the site's defaults for options that are missing on the command line.
    pub(crate) fn with(mut self, defaults: &Defaults) -> Self {
        self.ssh = self.ssh.or_else(|| defaults.ssh.clone());
        self.remote_binary = self.remote_binary.or_else(|| defaults.remote_binary.clone());
        self.fan_out = self.fan_out.or(defaults.fan_out);
        self
    }

    /// Returns the words of the command that reaches a host.
    pub(crate) fn ssh(&self) -> Vec<String> {
        let command = self.ssh.as_deref().unwrap_or("ssh");
        command.split_ascii_whitespace().map(String::from).collect()
    }

    /// Returns the name or path of the program on the hosts.
    pub(crate) fn remote_binary(&self) -> String {
        self.remote_binary.clone().unwrap_or_else(|| "tsumugi".into())
    }

    /// Returns the number of hosts that one host reaches directly.
    pub(crate) fn fan_out(&self) -> u16 {
        self.fan_out.unwrap_or(FAN_OUT)
    }
}
