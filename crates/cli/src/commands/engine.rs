//! Which engine the reactors of this process run on: the option that insists on one, and what is told.
//!
//! Two questions share the name `--engine`. Every command takes the engine of its reactors. A command that
//! can have the kernel do its work takes the kernel as well. Both options therefore have one type, since
//! clap hands the value of a global option through all commands.

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser};
use reactor::engine::choice::VARIABLE;
use reactor::engine::{Choice, Kind, choice, insist};
use std::ffi::OsString;
use std::process::ExitCode;

/// What does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// The kernel where it can, else our own code.
    Auto,
    /// The kernel's NVMe-oF code.
    Kernel,
    /// Our own code, on any reactor.
    Own,
    /// Our own code, with its reactors on this engine.
    Reactor(Kind),
}

impl Engine {
    fn from_name(name: &str) -> Result<Self, String> {
        Ok(match name {
            "auto" => Self::Auto,
            "kernel" => Self::Kernel,
            "own" => Self::Own,
            reactor => Self::Reactor(reactor.parse()?),
        })
    }

    /// Takes the engines of reactors only.
    fn reactors() -> impl TypedValueParser<Value = Self> {
        PossibleValuesParser::new(Kind::ALL.map(Kind::name)).try_map(|name| Self::from_name(&name))
    }

    /// Takes all of them: for commands that the kernel can do.
    pub(crate) fn all() -> impl TypedValueParser<Value = Self> {
        let names = ["auto", "kernel", "own"].into_iter().chain(Kind::ALL.map(Kind::name));
        PossibleValuesParser::new(names.collect::<Vec<_>>()).try_map(|name| Self::from_name(&name))
    }
}

/// Options of every command.
#[derive(Debug, Args)]
pub(crate) struct EngineArgs {
    /// Require this engine, or fail [default: `io_uring` if the machine allows it]
    #[arg(long, global = true, value_name = "ENGINE", help_heading = "Global options")]
    #[arg(value_parser = Engine::reactors())]
    engine: Option<Engine>,
}

impl EngineArgs {
    /// The engine of reactors that was asked for.
    pub(crate) fn reactor(&self) -> Option<Kind> {
        match self.engine? {
            Engine::Reactor(kind) => Some(kind),
            Engine::Auto | Engine::Kernel | Engine::Own => None,
        }
    }

    /// Has this process, and all that it starts, use the engine that was asked for.
    pub(crate) fn insist(&self) -> anyhow::Result<()> {
        let Some(kind) = self.reactor() else { return Ok(()) };
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
