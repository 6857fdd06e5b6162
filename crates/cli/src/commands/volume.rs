//! `tsumugi volume`: thin volumes, snapshots and clones in a pool. If a running target has the pool
//! open, the command sends the request to it; otherwise the command opens the pool itself.

mod check;
mod format;
mod grow;
mod list;

use super::target::{Request, RunningTarget, size};
use anyhow::Context;
use block::{FileBacking, FileOptions, Incarnation};
use clap::{Args, Subcommand};
pub(super) use list::listing;
use reactor::Runtime;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use volume::Pool;

/// Create and manage thin volumes, snapshots and clones in a pool, which is a file or device.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
    tsumugi volume format /scratch/pool --size 100G
    tsumugi volume create /scratch/pool data --size 1T
    tsumugi target --namespace volume:/scratch/pool/data
    tsumugi volume snapshot /scratch/pool data monday
    tsumugi volume clone /scratch/pool monday try
    tsumugi volume list /scratch/pool
    tsumugi volume grow /scratch/pool --size 200G

A volume takes space when it is written. Snapshots and clones share space with the volume that \
they were made from. While a target exports volumes of the pool, the target carries out create, \
snapshot, clone, resize, remove and list, and its hosts continue. The command finds a target of \
the same user; give --control for one with a control socket elsewhere. format, grow and check need \
the pool for themselves: end the target first.

Exit codes:
    0  done
    1  failed, or `check` found damage; the reason is printed
    2  wrong usage")]
pub(crate) struct VolumeArgs {
    #[command(subcommand)]
    command: VolumeCommand,
    /// Control socket of the target that exports volumes of the pool [default: found among this
    /// user's targets]
    #[arg(long, value_name = "PATH", global = true)]
    control: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum VolumeCommand {
    /// Create a pool in a file or block device. Everything in it is lost.
    #[command(after_help = "\
Examples:
    tsumugi volume format /scratch/pool --size 100G
    tsumugi volume format /dev/nvme1n1 --cluster-size 1M")]
    Format(format::FormatArgs),
    /// Create a volume that reads as zeros.
    #[command(after_help = "\
Example:
    tsumugi volume create /scratch/pool data --size 1T")]
    Create(SizedArgs),
    /// Make a read-only copy of a volume as it is now.
    #[command(after_help = "\
Example:
    tsumugi volume snapshot /scratch/pool data monday")]
    Snapshot(CopyArgs),
    /// Create a writable volume from a snapshot.
    #[command(after_help = "\
Example:
    tsumugi volume clone /scratch/pool monday try")]
    Clone(CopyArgs),
    /// Change the size of a volume. Data beyond a smaller size is lost. An exported volume can only
    /// grow; hosts see its new size at once.
    #[command(after_help = "\
Example:
    tsumugi volume resize /scratch/pool data --size 2T")]
    Resize(SizedArgs),
    /// Remove a volume, snapshot or clone, and free the space that no other shares.
    #[command(after_help = "\
Example:
    tsumugi volume remove /scratch/pool monday")]
    Remove(NamedArgs),
    /// Extend a pool over a longer file or over a device that has grown.
    #[command(after_help = "\
Examples:
    tsumugi volume grow /scratch/pool --size 200G
    tsumugi volume grow /dev/mapper/pool          after the device was made larger")]
    Grow(grow::GrowArgs),
    /// List the volumes of a pool with their sizes.
    #[command(after_help = "\
Examples:
    tsumugi volume list /scratch/pool
    tsumugi volume list /scratch/pool --json")]
    List(list::ListArgs),
    /// Check the metadata of a pool. Changes nothing.
    #[command(after_help = "\
Example:
    tsumugi volume check /scratch/pool

Exit codes:
    0  no damage
    1  damage, which is listed, or the pool cannot be read
    2  wrong usage")]
    Check(check::CheckArgs),
}

/// A volume and a size.
#[derive(Debug, Args)]
struct SizedArgs {
    /// File or block device of the pool
    pool: PathBuf,
    /// Name of the volume
    name: String,
    /// Size in bytes, a multiple of the pool's cluster size, such as 512M or 1T
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: u64,
}

/// The source and the name of a copy.
#[derive(Debug, Args)]
struct CopyArgs {
    /// File or block device of the pool
    pool: PathBuf,
    /// Name of the volume or snapshot to copy
    source: String,
    /// Name of the copy
    name: String,
}

/// A volume.
#[derive(Debug, Args)]
struct NamedArgs {
    /// File or block device of the pool
    pool: PathBuf,
    /// Name of the volume
    name: String,
}

/// Runs `tsumugi volume`.
pub(crate) fn run(args: VolumeArgs) -> anyhow::Result<ExitCode> {
    crate::confine::keep_files_private();
    let mut runtime = Runtime::new(&reactor::Config::default())?;
    runtime.block_on(execute(args.command, args.control.as_deref()))
}

impl VolumeCommand {
    /// Returns the request for a target that has the pool open, if a target can carry it out, and
    /// the pool.
    fn request(&self) -> Option<(&Path, Request)> {
        let (pool, request) = match self {
            Self::Create(SizedArgs { pool, name, size }) => {
                let (name, size_bytes) = (name.clone(), *size);
                (pool, Request::VolumeCreate { pool: pool.clone(), name, size_bytes })
            }
            Self::Snapshot(CopyArgs { pool, source, name }) => {
                let (source, name) = (source.clone(), name.clone());
                (pool, Request::VolumeSnapshot { pool: pool.clone(), source, name })
            }
            Self::Clone(CopyArgs { pool, source, name }) => {
                let (source, name) = (source.clone(), name.clone());
                (pool, Request::VolumeClone { pool: pool.clone(), source, name })
            }
            Self::Resize(SizedArgs { pool, name, size }) => {
                let (name, size_bytes) = (name.clone(), *size);
                (pool, Request::VolumeResize { pool: pool.clone(), name, size_bytes })
            }
            Self::Remove(NamedArgs { pool, name }) => {
                (pool, Request::VolumeRemove { pool: pool.clone(), name: name.clone() })
            }
            Self::List(args) => (&args.pool, Request::VolumeList { pool: args.pool.clone() }),
            Self::Format(_) | Self::Check(_) | Self::Grow(_) => return None,
        };
        Some((pool, request))
    }
}

/// Sends the request to the target that has the pool open. Returns its answer, or `None` if there
/// is no such target.
fn ask(command: &VolumeCommand, control: Option<&Path>) -> anyhow::Result<Option<Value>> {
    let Some((pool, mut request)) = command.request() else { return Ok(None) };
    // The command itself reports a missing pool.
    let Ok(canonical) = pool.canonicalize() else { return Ok(None) };
    let Some(mut target) = RunningTarget::with_pool(&canonical, control)? else { return Ok(None) };
    if let Request::VolumeList { pool }
    | Request::VolumeCreate { pool, .. }
    | Request::VolumeSnapshot { pool, .. }
    | Request::VolumeClone { pool, .. }
    | Request::VolumeResize { pool, .. }
    | Request::VolumeRemove { pool, .. } = &mut request
    {
        // The target may have another working directory.
        *pool = canonical;
    }
    target.ask(&request).map(Some)
}

async fn execute(command: VolumeCommand, control: Option<&Path>) -> anyhow::Result<ExitCode> {
    if let Some(answer) = ask(&command, control)? {
        if let VolumeCommand::List(args) = &command {
            list::print(&answer, args.json)?;
        }
        for warning in answer["warnings"].as_array().into_iter().flatten() {
            eprintln!("tsumugi: {}", warning.as_str().unwrap_or_default());
        }
        return Ok(ExitCode::SUCCESS);
    }
    match command {
        VolumeCommand::Format(args) => format::run(&args).await?,
        VolumeCommand::Create(SizedArgs { pool, name, size }) => {
            open(&pool).await?.create(&name, size).await?;
        }
        VolumeCommand::Snapshot(CopyArgs { pool, source, name }) => {
            open(&pool).await?.snapshot(&source, &name).await?;
        }
        VolumeCommand::Clone(CopyArgs { pool, source, name }) => {
            open(&pool).await?.clone_snapshot(&source, &name).await?;
        }
        VolumeCommand::Resize(SizedArgs { pool, name, size }) => {
            open(&pool).await?.resize(&name, size).await?;
        }
        VolumeCommand::Remove(NamedArgs { pool, name }) => {
            open(&pool).await?.remove(&name).await?;
        }
        VolumeCommand::Grow(args) => grow::run(&args).await?,
        VolumeCommand::List(args) => list::run(&args).await?,
        VolumeCommand::Check(args) => return check::run(&args).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the file or device of a pool, which must have no other user. The command reads and writes
/// few pages, so it uses the page cache, which every file system has.
async fn backing(path: &Path) -> anyhow::Result<FileBacking> {
    let options = FileOptions {
        block_size: None,
        direct: false,
        preallocated: false,
        incarnation: Incarnation::random(),
    };
    match FileBacking::open_patiently(path, &options).await {
        Err(error @ block::Error::Locked { .. }) => Err(error).context(
            "another process uses the pool: if it is a target, give its control socket with \
             --control, or end it first",
        ),
        opened => Ok(opened?),
    }
}

async fn open(path: &Path) -> anyhow::Result<Pool> {
    let opened = Pool::open(Arc::new(backing(path).await?)).await;
    let pool = opened.with_context(|| format!("cannot open pool {}", path.display()))?;
    for warning in pool.warnings() {
        eprintln!("tsumugi: pool {}: {warning}; a copy of it is used", path.display());
    }
    Ok(pool)
}
