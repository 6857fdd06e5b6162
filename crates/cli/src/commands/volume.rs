//! `tsumugi volume`: thin volumes, snapshots and clones in a pool, while no target uses it.

mod check;
mod format;
mod list;

use super::target::size;
use anyhow::Context;
use block::{FileBacking, FileOptions, Incarnation};
use clap::{Args, Subcommand};
use ring::Runtime;
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

A volume takes space as it is written. Snapshots and clones share space with the volume that they were made \
of. These commands need the pool for themselves: end the target that exports its volumes first.

Exit codes:
    0  done
    1  failed, or `check` found damage; the reason is printed
    2  wrong usage")]
pub(crate) struct VolumeArgs {
    #[command(subcommand)]
    command: VolumeCommand,
}

#[derive(Debug, Subcommand)]
enum VolumeCommand {
    /// Make a pool in a file or block device. Everything in it is lost.
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
    /// Make a writable volume of a snapshot.
    #[command(after_help = "\
Example:
    tsumugi volume clone /scratch/pool monday try")]
    Clone(CopyArgs),
    /// Change the size of a volume. What is cut off is lost.
    #[command(after_help = "\
Example:
    tsumugi volume resize /scratch/pool data --size 2T")]
    Resize(SizedArgs),
    /// Remove a volume, snapshot or clone, and free what no other shares.
    #[command(after_help = "\
Example:
    tsumugi volume remove /scratch/pool monday")]
    Remove(NamedArgs),
    /// List the volumes of a pool with their sizes.
    #[command(after_help = "\
Examples:
    tsumugi volume list /scratch/pool
    tsumugi volume list /scratch/pool --json")]
    List(list::ListArgs),
    /// Check the metadata of a pool; changes nothing.
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
    /// Size, a multiple of the pool's cluster size, such as 512M or 1T
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: u64,
}

/// What to copy, and to what.
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
    let mut runtime = Runtime::new(&ring::Config::default())?;
    runtime.block_on(execute(args.command))
}

async fn execute(command: VolumeCommand) -> anyhow::Result<ExitCode> {
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
        VolumeCommand::List(args) => list::run(&args).await?,
        VolumeCommand::Check(args) => return check::run(&args).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Opens the file or device of a pool, which must have no other user. Few pages are read and written, so
/// that this goes through the page cache, which every file system has.
async fn backing(path: &Path) -> anyhow::Result<FileBacking> {
    let options = FileOptions {
        block_size: None,
        direct: false,
        preallocated: false,
        incarnation: Incarnation::random(),
    };
    Ok(FileBacking::open_patiently(path, &options).await?)
}

async fn open(path: &Path) -> anyhow::Result<Pool> {
    let opened = Pool::open(Arc::new(backing(path).await?)).await;
    let pool = opened.with_context(|| format!("cannot open pool {}", path.display()))?;
    for warning in pool.warnings() {
        eprintln!("tsumugi: pool {}: {warning}; a copy of it is used", path.display());
    }
    Ok(pool)
}
