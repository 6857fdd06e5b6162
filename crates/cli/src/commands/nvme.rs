//! `tsumugi nvme`: the host on the command line.
//!
//! Options have the names of nvme-cli (connection) and fio (load). The host is in this process, so
//! it needs neither privileges nor a kernel module. Only `attach` uses the kernel's host, if there
//! is one.

pub(crate) mod args;
mod attach;
mod check;
mod extra;
mod foreign;
mod host_files;
mod keys;
mod paths;
mod pattern;
mod perf;
mod show;
mod tls;
mod transfer;

use args::{ConnectArgs, NamespaceArgs};
use clap::{Args, Subcommand};
use host::{Controller, Namespace};
use reactor::Runtime;
use std::process::ExitCode;

/// Exit codes besides 0, 1 and 2.
const EXIT_CODES: &str = "\
Examples:
  tsumugi nvme discover -a 10.0.0.7
  tsumugi nvme perf -a 10.0.0.7 -n NQN --rw randread --bs 4k --iodepth 32 --runtime 10

Exit codes:
  0  done
  1  failed
  2  wrong usage
  3  the target cannot be reached, or refuses the connection
  4  an I/O command failed
  5  data differs from what was written";

/// Arguments of `tsumugi nvme`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct NvmeArgs {
    #[command(subcommand)]
    command: NvmeCommand,
}

#[derive(Debug, Subcommand)]
enum NvmeCommand {
    /// Attach a namespace: as a block device through the kernel's host, otherwise as a file through
    /// FUSE.
    #[command(after_help = "Examples:\n  \
        tsumugi nvme attach -a 10.0.0.7 -n NQN --mount DIR --destroy SERIAL\n  \
        tsumugi nvme attach -a 10.0.0.7 -n NQN --engine own --mount DIR")]
    Attach(attach::AttachArgs),
    /// Detach a subsystem from the kernel's host, for example after a killed attach.
    #[command(after_help = "Example:\n  tsumugi nvme detach -a 10.0.0.7 -n NQN")]
    Detach(attach::DetachArgs),
    /// List the subsystems that a discovery service offers.
    #[command(after_help = "Example:\n  tsumugi nvme discover -t tcp -a 10.0.0.7 -s 4420")]
    Discover(show::DiscoverArgs),
    /// Connect stage by stage and print the time of each, read, and optionally write and verify.
    #[command(after_help = "Examples:\n  \
        tsumugi nvme connect-test -a 10.0.0.7 -n nqn.2026-11.org.example:disk\n  \
        tsumugi nvme connect-test -a 10.0.0.7 -n nqn.2026-11.org.example:disk --destroy SERIAL\n  \
        tsumugi nvme connect-test -a 10.0.0.7 -n NQN -q HOSTNQN --tls --tls-key tls.key")]
    ConnectTest(check::CheckArgs),
    /// List the subsystems and namespaces of a target.
    #[command(after_help = "Examples:\n  tsumugi nvme list -a 10.0.0.7\n  \
        tsumugi nvme list -a 10.0.0.7 -n nqn.2026-11.org.example:disk --json")]
    List(show::ListArgs),
    /// Read from a namespace to a file or standard output.
    #[command(after_help = "Example:\n  \
        tsumugi nvme read -a 10.0.0.7 -n NQN --offset 1M --size 4M --data-file part.bin")]
    Read(transfer::ReadArgs),
    /// Write a file or standard input to a namespace; needs --destroy.
    #[command(after_help = "Example:\n  \
        tsumugi nvme write -a 10.0.0.7 -n NQN --data-file part.bin --destroy SERIAL")]
    Write(transfer::WriteArgs),
    /// Compare a namespace with a file, on the target.
    #[command(after_help = "Example:\n  \
        tsumugi nvme compare -a 10.0.0.7 -n NQN --offset 1M --data-file part.bin")]
    Compare(extra::CompareArgs),
    /// Write blocks if they have the expected content, with no other write in between; needs
    /// --destroy.
    #[command(after_help = "Example:\n  \
        tsumugi nvme compare-and-write -a 10.0.0.7 -n NQN --compare-file old --data-file new \
        --destroy SERIAL")]
    CompareAndWrite(extra::CompareAndWriteArgs),
    /// Make the target read blocks without sending them.
    #[command(after_help = "Example:\n  tsumugi nvme verify -a 10.0.0.7 -n NQN --size 1G")]
    Verify(extra::VerifyArgs),
    /// Make the target copy blocks within a namespace; needs --destroy.
    #[command(after_help = "Example:\n  \
        tsumugi nvme copy -a 10.0.0.7 -n NQN --offset 1M --size 64M --to 1G --destroy SERIAL")]
    Copy(extra::CopyArgs),
    /// Make reads of blocks fail until they are written; needs --destroy.
    #[command(after_help = "Example:\n  \
        tsumugi nvme write-uncor -a 10.0.0.7 -n NQN --offset 1M --size 4k --destroy SERIAL")]
    WriteUncor(extra::WriteUncorArgs),
    /// Measure a namespace under load.
    #[command(after_help = "Examples:\n  \
        tsumugi nvme perf -a 10.0.0.7 -n NQN --rw randread --bs 4k --iodepth 32 --runtime 10\n  \
        tsumugi nvme perf -a 10.0.0.7 -n NQN --rw write --bs 1M --verify --destroy SERIAL")]
    Perf(perf::PerfArgs),
    /// Show the Identify Controller data structure.
    #[command(after_help = "Example:\n  tsumugi nvme id-ctrl -a 10.0.0.7 -n NQN --json")]
    IdCtrl(show::IdControllerArgs),
    /// Show the Identify Namespace data structure.
    #[command(after_help = "Example:\n  tsumugi nvme id-ns -a 10.0.0.7 -n NQN --namespace-id 1")]
    IdNs(show::IdNamespaceArgs),
    /// Create a key for the authentication of a host or target (DH-HMAC-CHAP).
    #[command(after_help = "Example:\n  tsumugi nvme gen-dhchap-key --hmac 1 --output host.key")]
    GenDhchapKey(keys::GenerateArgs),
    /// Check that a DH-HMAC-CHAP key is well formed.
    #[command(after_help = "Example:\n  tsumugi nvme check-dhchap-key --key host.key")]
    CheckDhchapKey(keys::CheckKeyArgs),
    /// Create a key for TLS between a host and a target.
    #[command(after_help = "Examples:\n  tsumugi nvme gen-tls-key --hmac 2 --output tls.key\n  \
        tsumugi nvme gen-tls-key --output tls.key --hostnqn HOSTNQN --subsysnqn NQN --identity 1")]
    GenTlsKey(tls::GenerateArgs),
    /// Check that a TLS key is well formed, or show its identity for a host and a subsystem.
    #[command(after_help = "Examples:\n  tsumugi nvme check-tls-key --keydata tls.key\n  \
        tsumugi nvme check-tls-key --keydata tls.key --hostnqn HOSTNQN --subsysnqn NQN --identity 1")]
    CheckTlsKey(tls::CheckArgs),
}

/// Data that differs from what is expected.
#[derive(Debug, thiserror::Error)]
#[error("{bytes} bytes at {offset_bytes} are not what was written: {what}")]
pub(crate) struct Mismatch {
    offset_bytes: u64,
    bytes: u64,
    what: String,
}

/// Runs a command.
pub(crate) fn run(args: NvmeArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        NvmeCommand::Attach(args) => attach::run(&args),
        NvmeCommand::Detach(args) => attach::detach(&args),
        NvmeCommand::Discover(args) => block_on(show::discover(args)),
        NvmeCommand::ConnectTest(args) => block_on(check::connect_test(args)),
        NvmeCommand::List(args) => block_on(show::list(args)),
        NvmeCommand::Read(args) => block_on(transfer::read(args)),
        NvmeCommand::Write(args) => block_on(transfer::write(args)),
        NvmeCommand::Compare(args) => block_on(extra::compare(args)),
        NvmeCommand::CompareAndWrite(args) => block_on(extra::compare_and_write(args)),
        NvmeCommand::Verify(args) => block_on(extra::verify(args)),
        NvmeCommand::Copy(args) => block_on(extra::copy(args)),
        NvmeCommand::WriteUncor(args) => block_on(extra::write_uncor(args)),
        NvmeCommand::Perf(args) => perf::run(args),
        NvmeCommand::IdCtrl(args) => block_on(show::id_controller(args)),
        NvmeCommand::IdNs(args) => block_on(show::id_namespace(args)),
        NvmeCommand::GenDhchapKey(args) => keys::generate(&args),
        NvmeCommand::CheckDhchapKey(args) => keys::check(&args),
        NvmeCommand::GenTlsKey(args) => tls::generate(&args),
        NvmeCommand::CheckTlsKey(args) => tls::check(&args),
    }?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the exit code for an error of the host, or for a mismatch.
pub(crate) fn exit_code_of(error: &anyhow::Error) -> Option<ExitCode> {
    use host::Error;
    if error.downcast_ref::<Mismatch>().is_some() {
        return Some(ExitCode::from(5));
    }
    let error = error.downcast_ref::<Error>()?;
    let is_connecting = error.is_connection_error()
        || matches!(
            error,
            Error::Refused { command: "Connect", .. }
                | Error::QueueRefused { .. }
                | Error::ControllerLost(_)
                | Error::NoPath(_)
                | Error::SecretNeeded
                | Error::ConcatenationNeeded
                | Error::NothingToConcatenate
                | Error::Authentication(_)
                | Error::SecureChannel(_)
        );
    let is_io = matches!(
        error,
        Error::Io { .. }
            | Error::DataDigest
            | Error::DataUnderrun { .. }
            | Error::WritesLost { .. }
            | Error::WriteInterrupted(_)
            | Error::DeadlineExceeded(_)
    );
    if is_connecting {
        Some(ExitCode::from(3))
    } else if is_io {
        Some(ExitCode::from(4))
    } else {
        Some(ExitCode::FAILURE)
    }
}

/// Runs a future on a reactor of its own.
pub(crate) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    Runtime::new(&reactor::Config::default())?.block_on(future)
}

/// Connects to the subsystem and opens the namespace; without a given one, the only namespace.
async fn open(
    connect: &ConnectArgs,
    namespace: &NamespaceArgs,
) -> anyhow::Result<(Controller, Namespace)> {
    let controller = Controller::connect(connect.options()?).await?;
    let nsid = namespace.choose(&controller).await?;
    let namespace = Namespace::open(&controller, nsid).await?;
    Ok((controller, namespace))
}

/// Prints JSON.
fn print_json(value: &serde_json::Value) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}
