//! `tsumugi union`: mounts a union of directories, and works on its mounts and directories.
//!
//! The program also acts by the name of its file, because mount(8) and Podman start it so:
//! `tsumugi-union [SOURCE] MOUNTPOINT -o OPTIONS` mounts, and `umount.fuse.tsumugi-union` unmounts
//! and waits. The mount lives in the background: the program starts itself again, waits until the
//! new process reports that the mount is up, and ends with its result. (It does not fork, which
//! would lose the state of threads.)

mod background;
pub(super) mod bench;
mod check;
mod helpers;
mod live;
mod partial;
mod serving;

use crate::signals;
use ::union::{IOCTL_SYNC, Options, UnionMount};
use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

/// Mount a union of directories, compatible with overlayfs and fuse-overlayfs.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
    tsumugi union -o lowerdir=/image/top:/image/base,upperdir=/c1/up,workdir=/c1/work /c1/root
    tsumugi union status /c1/root         # show the state of a mounted union
    tsumugi union complete /c1/up         # after unmounting: copy the rest of partial files

For Podman (storage.conf):  mount_program = \"/usr/bin/tsumugi-union\"
For mount(8):  mount -t fuse.tsumugi-union none /c1/root -o lowerdir=…,upperdir=…,workdir=…

docs/union.md describes the promises and all options."
)]
pub(crate) struct UnionArgs {
    #[command(subcommand)]
    command: Option<UnionCommand>,
    #[command(flatten)]
    mount: MountArgs,
}

#[derive(Debug, Subcommand)]
enum UnionCommand {
    /// Wait until every copied-up file has its name and is durable
    #[command(after_help = "\
Example:
    tsumugi union sync /c1/root")]
    Sync {
        /// Mount point of the union
        mountpoint: PathBuf,
    },
    /// Show the state of a mounted union, or list the partial files of an unmounted one
    #[command(after_help = "\
Examples:
    tsumugi union status /c1/root          # a mounted union
    tsumugi union status --json /c1/up     # the upper directory of an unmounted one")]
    Status {
        /// Mount point of the union, or the upper directory of an unmounted one
        #[arg(required_unless_present = "options")]
        place: Option<PathBuf>,
        /// Options of an unmounted union [default: those of its last mount]
        #[arg(short = 'o', value_name = "OPTIONS")]
        options: Vec<OsString>,
        /// Print JSON: one object, or one per file
        #[arg(long)]
        json: bool,
    },
    /// Check what an unmounted union stores: its journal, marks, partial files and waiting copies
    #[command(after_help = "\
Examples:
    tsumugi union check /c1/up
    tsumugi union check /c1/up --work /c1/work --json

Changes nothing. Reads and verifies all stored data of partial files. It does not compare lower \
files: `union status` does that.

Exit codes:
    0  nothing was found
    1  findings are printed
    2  wrong usage, or nothing could be checked: the union is mounted, or its directories cannot be read")]
    Check {
        /// The upper directory
        upper: PathBuf,
        /// The work directory [default: that of the last mount]
        #[arg(long, value_name = "WORKDIR")]
        work: Option<PathBuf>,
        /// Print JSON: one object per finding
        #[arg(long)]
        json: bool,
    },
    /// Compare the first writes of many containers with the kernel's overlayfs
    Bench(bench::BenchArgs),
    /// One container of `bench`
    #[command(hide = true)]
    BenchContainer(bench::ContainerArgs),
    /// The mounts of containers
    #[command(hide = true)]
    BenchMount(bench::MountArgs),
    /// Copy the rest of partial files, so that the kernel's overlayfs accepts the directories again
    #[command(after_help = "\
Examples:
    tsumugi union complete /c1/up
    tsumugi union complete /c1/up --accept-lower var/lib/data   # its lower file changed, which does not matter")]
    Complete {
        /// The upper directory
        #[arg(required_unless_present = "options")]
        upper: Option<PathBuf>,
        /// Options of the union [default: those of its last mount]
        #[arg(short = 'o', value_name = "OPTIONS")]
        options: Vec<OsString>,
        /// Use the lower file of FILE (a path from the union's root) in its present state, although
        /// it has changed: bytes of two versions may mix
        #[arg(long, value_name = "FILE")]
        accept_lower: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct MountArgs {
    /// Options, separated by commas: lowerdir=A:B,upperdir=U,workdir=W and others
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<OsString>,
    /// Stay in the foreground
    #[arg(short = 'f', long)]
    foreground: bool,
    /// Serve this mount from a separate process, not from the server that all unions of a user
    /// share
    #[arg(long)]
    own_process: bool,
    /// Mount point; a word before it is shown as the source of the mount
    #[arg(value_name = "[SOURCE] MOUNTPOINT", num_args = 0..=2)]
    places: Vec<PathBuf>,
}

/// `tsumugi-union`, the name that mount(8) and Podman use, and `fuse-overlayfs`, which Docker uses.
#[derive(Debug, Parser)]
#[command(name = "tsumugi-union", version)]
struct MountProgram {
    #[command(flatten)]
    mount: MountArgs,
}

/// Runs `tsumugi union`.
pub(crate) fn run(args: UnionArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(UnionCommand::Sync { mountpoint }) => sync(&mountpoint),
        Some(UnionCommand::Status { place, options, json }) => {
            status(place.as_deref(), &options, json)
        }
        Some(UnionCommand::Check { upper, work, json }) => {
            Ok(check::run(&upper, work.as_deref(), json))
        }
        Some(UnionCommand::Complete { upper, options, accept_lower }) => {
            partial::complete(upper.as_deref(), &options, &accept_lower)
        }
        Some(UnionCommand::Bench(args)) => bench::bench(&args),
        Some(UnionCommand::BenchContainer(args)) => bench::run_container(&args),
        Some(UnionCommand::BenchMount(args)) => bench::mount_all(&args),
        None => mount(&args.mount),
    }
}

/// Acts by the name that started the program; `None` if it is its own.
pub(crate) fn run_by_name(
    mut args: impl Iterator<Item = OsString>,
) -> Option<anyhow::Result<ExitCode>> {
    let called = PathBuf::from(args.next()?);
    match called.file_name()?.as_bytes() {
        b"tsumugi-union" | b"fuse-overlayfs" => {
            super::start_log();
            let args = [OsString::from("tsumugi-union")].into_iter().chain(args);
            Some(mount(&MountProgram::parse_from(args).mount))
        }
        b"mount.fuse.tsumugi-union" | b"mount.fuse.tsumugi" => {
            super::start_log();
            Some(helpers::mount(args))
        }
        serving::KEEPER => {
            super::start_log();
            Some(serving::keep(args))
        }
        serving::SERVER => {
            super::start_log();
            Some(serving::serve())
        }
        b"umount.fuse.tsumugi-union" => {
            super::start_log();
            Some(helpers::unmount(args))
        }
        _ => None,
    }
}

fn mount(args: &MountArgs) -> anyhow::Result<ExitCode> {
    let mut options = read_options(&args.options)?;
    let mountpoint = match &args.places[..] {
        [mountpoint] => mountpoint,
        [source, mountpoint] => {
            options.source.get_or_insert_with(|| source.to_string_lossy().into_owned());
            mountpoint
        }
        _ => anyhow::bail!("the mount point is missing: tsumugi union -o OPTIONS MOUNTPOINT"),
    };
    options.check()?;
    if !args.foreground && !background::is_inside() {
        let is_served =
            !args.own_process && serving::hand_over(&args.options, &options, mountpoint)?;
        return if is_served { Ok(ExitCode::SUCCESS) } else { background::start() };
    }
    serve(&options, mountpoint)
}

fn read_options(texts: &[OsString]) -> anyhow::Result<Options> {
    let mut options = Options::default();
    for text in texts {
        options.add(text.as_bytes())?;
    }
    Ok(options)
}

fn serve(options: &Options, mountpoint: &Path) -> anyhow::Result<ExitCode> {
    crate::descriptors::raise_limit();
    let mut signals = signals::watch(&[])?;
    let config = reactor::Config { sqe128: false, ..reactor::Config::default() };
    let mut runtime = reactor::Runtime::new(&config).context("cannot start the reactor")?;
    let mount = UnionMount::new(options, mountpoint, fuse::TransportChoice::Device)?;
    // New files get the mode that the caller asked for: the caller's umask has already been
    // applied.
    rustix::process::umask(rustix::fs::Mode::empty());
    let mount = Rc::new(mount);
    let ending = Rc::clone(&mount);
    runtime.block_on(async {
        drop(reactor::spawn(async move {
            signals::termination(&mut signals).await;
            ending.end().await;
        }));
        background::say_mounted()?;
        mount.run().await.map_err(anyhow::Error::from)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the state of a mounted union, or the partial files of an unmounted one.
fn status(place: Option<&Path>, options: &[OsString], json: bool) -> anyhow::Result<ExitCode> {
    if let Some(place) = place
        && options.is_empty()
        && let Some(done) = live::status(place, json)?
    {
        return Ok(done);
    }
    partial::status(place, options, json)
}

fn sync(mountpoint: &Path) -> anyhow::Result<ExitCode> {
    ::union::sync_mount(mountpoint).with_context(|| {
        format!(
            "cannot sync {} (ioctl {IOCTL_SYNC:#x}; is a tsumugi union mounted there?)",
            mountpoint.display()
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
