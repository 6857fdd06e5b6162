//! The I/O engine of this process's reactors: the option that requires one, and `tsumugi --version
//! --verbose`.
//!
//! `--engine` has two meanings. On every command it chooses the engine of the reactors. On commands
//! that the kernel can carry out, it also chooses between the kernel and our own code. Both options
//! have one type, because clap passes the value of a global option through all commands.

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
    /// The kernel if it can, else our own code.
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

    /// Returns a parser that accepts only engines of reactors.
    fn reactors() -> impl TypedValueParser<Value = Self> {
        PossibleValuesParser::new(Kind::ALL.map(Kind::name)).try_map(|name| Self::from_name(&name))
    }

    /// Returns a parser that accepts all engines, for commands that the kernel can carry out.
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
    /// Returns the engine of reactors that the user requires.
    pub(crate) fn reactor(&self) -> Option<Kind> {
        match self.engine? {
            Engine::Reactor(kind) => Some(kind),
            Engine::Auto | Engine::Kernel | Engine::Own => None,
        }
    }

    /// Makes this process and all processes that it starts use the required engine.
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

/// Prints the versions of the program, its engine and the kernel, if the arguments are `--version
/// --verbose`.
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

/// Returns the engine that this process's environment requires, for processes on other machines and
/// for processes that start later.
pub(crate) fn insisted() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|name| !name.is_empty())
}
