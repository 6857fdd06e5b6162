//! Which engine the reactors of this process run on: the option that insists on one, and what is told.

use anyhow::Context;
use clap::{Args, Parser};
use ring::engine::choice::VARIABLE;
use ring::engine::{Choice, Kind, choice, insist};
use std::ffi::OsString;
use std::process::ExitCode;

/// Options of every command.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Use this engine, or fail: `io_uring` or epoll. Without it, `io_uring` if it can be had
    #[arg(long, global = true, value_name = "ENGINE", help_heading = "Global options")]
    engine: Option<Kind>,
}

impl EngineArgs {
    /// Has this process, and all that it starts, use the engine that was asked for.
    pub(crate) fn insist(&self) -> anyhow::Result<()> {
        let Some(kind) = self.engine else { return Ok(()) };
        insist(kind).context("cannot choose the engine")?;
        choice().map(drop).map_err(Into::into)
    }
}

/// `tsumugi --version --verbose`.
#[derive(Debug, Parser)]
#[command(disable_version_flag = true, disable_help_flag = true)]
struct VersionArgs {
    #[arg(short = 'V', long)]
    version: bool,
    #[arg(short, long)]
    verbose: bool,
    #[command(flatten)]
    engine: EngineArgs,
}

/// Tells of the program and this machine, if that is all that it is asked for.
pub(crate) fn print_version(
    arguments: impl Iterator<Item = OsString>,
) -> Option<anyhow::Result<ExitCode>> {
    let args = VersionArgs::try_parse_from(arguments).ok()?;
    (args.version && args.verbose).then(|| {
        args.engine.insist()?;
        println!("tsumugi {}", env!("CARGO_PKG_VERSION"));
        let Choice { kind, reason } = choice()?;
        println!("engine {kind}: {reason}");
        let kernel = rustix::system::uname();
        let (name, release) = (kernel.sysname(), kernel.release());
        println!("kernel {} {}", name.to_string_lossy(), release.to_string_lossy());
        Ok(ExitCode::SUCCESS)
    })
}

/// The engine that this process's environment insists on, for processes on other machines, and for those
/// that are started later.
pub(crate) fn insisted() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|name| !name.is_empty())
}
