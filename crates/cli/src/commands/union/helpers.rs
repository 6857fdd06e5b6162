//! The names by which mount(8) and umount(8) start the program, with the options that they pass
//! (util-linux, "External helpers").

use super::MountArgs;
use anyhow::Context;
use clap::Parser;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

/// What both get.
#[derive(Debug, clap::Args)]
struct Common {
    /// The mount namespace; mount has to be run there instead (nsenter --mount)
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<OsString>,
    /// Ignored: there is no /etc/mtab
    #[arg(short = 'n')]
    _no_mtab: bool,
    /// Ignored
    #[arg(short = 'v')]
    _is_verbose: bool,
    /// Ignored: the name of this program states the type
    #[arg(short = 't', value_name = "TYPE")]
    _fstype: Option<OsString>,
}

/// `mount.fuse.tsumugi-union`
#[derive(Debug, Parser)]
#[command(name = "mount.fuse.tsumugi-union", version)]
struct MountHelper {
    /// Options, separated by commas: lowerdir=A:B,upperdir=U,workdir=W and others
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<OsString>,
    /// Check the arguments and mount nothing
    #[arg(short = 'f')]
    is_fake: bool,
    /// Ignored: unknown options are errors
    #[arg(short = 's')]
    _is_sloppy: bool,
    #[command(flatten)]
    common: Common,
    /// Mount point; a word before it is shown as the source of the mount
    #[arg(value_name = "[SOURCE] MOUNTPOINT", num_args = 1..=2, required = true)]
    places: Vec<PathBuf>,
}

/// `umount.fuse.tsumugi-union`
#[derive(Debug, Parser)]
#[command(name = "umount.fuse.tsumugi-union", version)]
struct UnmountHelper {
    /// Do not wait for the server
    #[arg(short = 'f')]
    is_forced: bool,
    /// Detach now; the union ends when nothing uses it
    #[arg(short = 'l')]
    is_lazy: bool,
    /// Mount read-only if unmounting fails
    #[arg(short = 'r')]
    or_read_only: bool,
    #[command(flatten)]
    common: Common,
    /// Mount point
    mountpoint: PathBuf,
}

/// Mounts, as mount(8) asks.
pub(super) fn mount(args: impl Iterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let args = [OsString::from("mount.fuse.tsumugi-union")].into_iter().chain(args);
    let args = MountHelper::parse_from(args);
    if args.common.namespace.is_some() {
        anyhow::bail!("-N is not supported: run mount in that namespace (nsenter --mount)");
    }
    if args.is_fake {
        super::read_options(&args.options)?.check()?;
        return Ok(ExitCode::SUCCESS);
    }
    super::mount(&MountArgs {
        options: args.options,
        foreground: false,
        own_process: false,
        places: args.places,
    })
}

/// Commits and unmounts, as umount(8) asks.
pub(super) fn unmount(args: impl Iterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let args = [OsString::from("umount.fuse.tsumugi-union")].into_iter().chain(args);
    let args = UnmountHelper::parse_from(args);
    // A server that hangs is the usual reason to force. The server commits at its end anyway.
    if !args.is_forced
        && !args.is_lazy
        && args.common.namespace.is_none()
        && let Err(error) = ::union::sync_mount(&args.mountpoint)
    {
        // The caller may have no right to open the root.
        tracing::debug!(%error, "no sync before unmounting");
    }
    let mut umount = std::process::Command::new("umount");
    umount.arg("-i");
    let options = [(args.is_forced, "-f"), (args.is_lazy, "-l"), (args.or_read_only, "-r")];
    umount.args(options.iter().filter(|(is_given, _)| *is_given).map(|(_, option)| option));
    if let Some(namespace) = &args.common.namespace {
        umount.args([OsStr::new("-N"), namespace]);
    }
    let status = umount.arg(&args.mountpoint).status().context("cannot run umount")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
