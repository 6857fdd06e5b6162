//! The commands of `tsumugi`, and what they have in common.
//!
//! Exit codes are part of the interface: 0 done, 1 failed, 2 wrong usage (from clap), and others
//! that the help of a command lists.

mod agent;
mod check;
mod cp;
mod doctor;
mod down;
mod eval;
mod exporter;
mod gc;
mod keep;
mod list;
mod manual;
mod meta;
mod node;
mod nvme;
mod renew;
mod restart;
mod run;
mod scrub;
mod stats;
mod status;
mod stripe;
mod target;
mod top;
mod trace;
pub(crate) mod union;
mod up;
mod volume;

use crate::deploy::ask;
use crate::deploy::options::UpArgs;
use crate::engine::EngineArgs;
use clap::{Parser, Subcommand};
use std::io::IsTerminal;
use std::process::ExitCode;

/// Weaves a job's NVMe SSDs into one shared file system, and measures storage.
#[derive(Debug, Parser)]
#[command(name = "tsumugi", version, propagate_version = true)]
#[command(after_help = "\
`tsumugi --version --verbose` also prints the I/O engine of this machine and the reason for it. `tsumugi \
COMMAND --help` has examples and exit codes.

Examples:
    tsumugi up --local 3
    tsumugi run --local 2 -- sh -c 'cd $TSUMUGI_MOUNT && make -j8'

Environment:
    TSUMUGI_JOB     the job that commands use without --job
    TSUMUGI_ENGINE  the required engine, as --engine
    TSUMUGI_LOG     log level: error, warn (default), info, debug or trace, or one per part, as in \
    warn,operation=trace, which logs each operation; `up` passes it to all nodes")]
pub(crate) struct Cli {
    #[command(flatten)]
    engine: EngineArgs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node's part of a job in the foreground, as a task of a Slurm step.
    Agent(agent::AgentArgs),
    /// Print a service's answer as it is; root starts this as the service's user.
    #[command(hide = true)]
    Ask(ask::AskArgs),
    /// Check a pool, running or stopped: its records, and with --data all of its data.
    Check(check::CheckArgs),
    /// Copy files and trees with many threads, in or out.
    Cp(cp::CpArgs),
    /// Check machines: what is missing, slow or unsafe for a job, and how to fix it.
    Doctor(doctor::DoctorArgs),
    /// End a job's file system and remove every trace of it.
    Down(down::DownArgs),
    /// Run a command from standard input here and on other machines; `status`, `down` and others
    /// start this.
    #[command(hide = true)]
    Errand,
    /// Run experiments on storage and report the results.
    Eval(eval::EvalArgs),
    /// Serve counts and latencies of all jobs on this machine to Prometheus.
    Exporter(exporter::ExporterArgs),
    /// Remove what dead jobs left, for example after a reboot.
    Gc(gc::GcArgs),
    /// Watch a job's part on this machine; `up` starts this.
    #[command(hide = true)]
    Keep(keep::KeepArgs),
    /// List the jobs on this machine, including those that a reboot or crash left.
    List(list::ListArgs),
    /// Write man pages and shell completions, for packages.
    #[command(hide = true)]
    Manual(manual::ManualArgs),
    /// Run a metadata service.
    Meta(meta::MetaArgs),
    /// Mount and unmount for a node, which starts this before it confines itself.
    #[command(hide = true)]
    MountHelper(node::MountHelperArgs),
    /// Run a node: its target, its agent and its mount.
    Node(node::NodeArgs),
    /// Use NVMe over TCP targets: discover, list, read, write, measure.
    Nvme(Box<nvme::NvmeArgs>),
    /// Renew a job's lease.
    Renew(renew::RenewArgs),
    /// Start a job's dead processes again: its nodes and its metadata service.
    Restart(restart::RestartArgs),
    /// Create a job's file system, run a command on it, and take it down again.
    Run(Box<run::RunArgs>),
    /// Read all data of a running pool at a bounded rate, and compare it with its checksums.
    Scrub(scrub::ScrubArgs),
    /// Show counts and latencies of a mount's operations.
    Stats(stats::StatsArgs),
    /// Show a job's nodes, space and health.
    Status(status::StatusArgs),
    /// Show or set how files are laid out over the devices.
    Stripe(stripe::StripeArgs),
    /// Export namespaces over NVMe/TCP.
    Target(Box<target::TargetArgs>),
    /// Take the kernel's target down when the process that set it up has ended; `target` starts
    /// this.
    #[command(hide = true)]
    TargetKeeper(target::kernel::keeper::KeeperArgs),
    /// Show the activity of a job's nodes: operations, latencies, local and remote bytes, waits.
    Top(top::TopArgs),
    /// Show operations as they end, with their times.
    Trace(trace::TraceArgs),
    /// Mount a union of directories, compatible with overlayfs and fuse-overlayfs.
    Union(union::UnionArgs),
    /// Create a job's file system from its nodes' SSDs.
    Up(Box<UpArgs>),
    /// Create and manage thin volumes, snapshots and clones in a pool, which is a file or device.
    Volume(volume::VolumeArgs),
}

/// The default of `TSUMUGI_LOG`. At level `warn` the painter of charts would report each line and
/// band without an extent.
const LOG: &str = "warn,tiny_skia=error,usvg=error";

/// The variable that sets the log level.
const LOG_VARIABLE: &str = "TSUMUGI_LOG";

/// Sends log lines to standard error.
fn start_log() {
    let wanted = std::env::var(LOG_VARIABLE).ok().filter(|wanted| !wanted.is_empty());
    let filter = wanted.as_deref().unwrap_or(LOG).parse().unwrap_or_else(|error| {
        eprintln!("tsumugi: {LOG_VARIABLE} has no valid value ({error}): using {LOG}");
        tracing_subscriber::EnvFilter::new(LOG)
    });
    // A failed write to standard error loses the line: a report of that failure would panic.
    let log = tracing_subscriber::fmt().with_env_filter(filter).log_internal_errors(false);
    // Files and pipes get no colour codes.
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let has_colours = !is_plain && std::io::stderr().is_terminal();
    log.with_ansi(has_colours).with_writer(std::io::stderr).init();
}

/// Runs a command.
pub(crate) fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    start_log();
    cli.engine.insist()?;
    match cli.command {
        Command::Agent(args) => agent::run(&args),
        Command::Ask(args) => ask::run(&args),
        Command::Check(args) => Ok(check::run(&args)),
        Command::Cp(args) => cp::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Down(args) => down::run(&args),
        Command::Errand => crate::deploy::remote::run_errand(),
        Command::Eval(args) => eval::run(&args),
        Command::Exporter(args) => exporter::run(&args),
        Command::Gc(args) => gc::run(&args),
        Command::Keep(args) => keep::run(&args),
        Command::List(args) => list::run(&args),
        Command::Manual(args) => manual::run(&args),
        Command::Meta(args) => meta::run(&args),
        Command::MountHelper(args) => node::serve_mounts(&args),
        Command::Node(args) => node::run(&args),
        Command::Nvme(args) => nvme::run(*args),
        Command::Renew(args) => renew::run(&args),
        Command::Restart(args) => restart::run(&args),
        Command::Run(args) => run::run(*args),
        Command::Scrub(args) => Ok(scrub::run(&args)),
        Command::Stats(args) => stats::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Stripe(args) => stripe::run(&args),
        Command::Target(args) => target::run(&args),
        Command::TargetKeeper(args) => target::kernel::keeper::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Union(args) => union::run(args),
        Command::Up(args) => up::run(&args),
        Command::Volume(args) => volume::run(args),
    }
}

/// Returns the exit code for an error.
pub(crate) fn exit_code_of(error: &anyhow::Error) -> ExitCode {
    nvme::exit_code_of(error).unwrap_or(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::{Command, CommandFactory, Parser};

    /// Collects the commands with an option that has the name of a global option but another type:
    /// clap panics when it parses such a command.
    fn clashes(command: &Command, global: &[clap::Arg], found: &mut Vec<String>) {
        for argument in command.get_arguments().filter(|argument| !argument.is_global_set()) {
            let clash = global.iter().any(|other| {
                let is_same = other.get_id() == argument.get_id();
                let is_namesake =
                    other.get_long() == argument.get_long() && other.get_long().is_some();
                let types = (other.get_value_parser(), argument.get_value_parser());
                is_namesake && !is_same || is_same && types.0.type_id() != types.1.type_id()
            });
            if clash {
                found.push(format!("{} {}", command.get_name(), argument.get_id()));
            }
        }
        for sub in command.get_subcommands() {
            clashes(sub, global, found);
        }
    }

    #[test]
    fn no_option_is_hidden_by_a_global_one() {
        let command = Cli::command();
        command.clone().debug_assert();
        let global: Vec<_> =
            command.get_arguments().filter(|argument| argument.is_global_set()).cloned().collect();
        assert!(!global.is_empty(), "the program has a global option");
        let mut found = Vec::new();
        clashes(&command, &global, &mut found);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn attach_takes_engines_of_both_kinds() {
        let attach = ["nvme", "attach", "-a", "127.0.0.1", "-n", "nqn.2026-01.io.tsumugi:a"];
        for engine in ["auto", "kernel", "own", "io_uring", "epoll"] {
            let words = ["tsumugi"].into_iter().chain(attach).chain(["--engine", engine]);
            Cli::try_parse_from(words).unwrap();
        }
        let before = ["tsumugi", "--engine", "epoll"].into_iter().chain(attach);
        let kind = Cli::try_parse_from(before).unwrap().engine.reactor();
        assert_eq!(kind, Some(reactor::engine::Kind::Epoll));
        let without = Cli::try_parse_from(["tsumugi"].into_iter().chain(attach)).unwrap();
        assert_eq!(without.engine.reactor(), None);
        assert!(Cli::try_parse_from(["tsumugi", "list", "--engine", "kernel"]).is_err());
    }
}
