//! `tsumugi volume format`: creates a pool.

use super::{backing, size};
use anyhow::{Context, bail};
use block::{Backing, Fill};
use clap::Args;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use volume::{CLUSTER_BYTES_DEFAULT, CLUSTER_BYTES_MAX, CLUSTER_BYTES_MIN, Pool};

/// Arguments of `tsumugi volume format`.
#[derive(Debug, Args)]
pub(super) struct FormatArgs {
    /// File or block device
    pool: PathBuf,
    /// Size of the file, which is created if it is missing, with its space reserved
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Unit in bytes in which volumes take and share space: a power of two from 64K to 1M
    #[arg(long, value_name = "SIZE", value_parser = cluster_size, default_value = "256K")]
    cluster_size: u32,
    /// Format although the file or device already has a pool, a file system or other data, which is lost
    #[arg(long)]
    force: bool,
}

fn cluster_size(text: &str) -> Result<u32, String> {
    let bytes = size::parse(text)?;
    let range = u64::from(CLUSTER_BYTES_MIN)..=u64::from(CLUSTER_BYTES_MAX);
    if !bytes.is_power_of_two() || !range.contains(&bytes) {
        return Err(format!("{text:?} is not a power of two from 64K to 1M"));
    }
    Ok(bytes as u32)
}

/// Runs `tsumugi volume format`.
pub(super) async fn run(args: &FormatArgs) -> anyhow::Result<()> {
    debug_assert!(cluster_size("256K") == Ok(CLUSTER_BYTES_DEFAULT), "the default that is shown");
    let path = &args.pool;
    let is_new = match (std::fs::symlink_metadata(path), args.size) {
        (Ok(_), _) => false,
        (Err(error), Some(bytes)) if error.kind() == ErrorKind::NotFound => {
            block::create(path, bytes, false, Fill::Reserved, |_| {}).await?;
            true
        }
        (Err(error), None) if error.kind() == ErrorKind::NotFound => {
            bail!("{} does not exist: give --size to create it", path.display());
        }
        (Err(error), _) => {
            return Err(error).with_context(|| format!("cannot examine {}", path.display()));
        }
    };
    let formatted = format(path, args).await;
    if formatted.is_err() && is_new {
        // The rest is not a pool.
        let _ = std::fs::remove_file(path);
    }
    formatted
}

async fn format(path: &Path, args: &FormatArgs) -> anyhow::Result<()> {
    let backing = backing(path).await?;
    let have = backing.geometry().size();
    if let Some(want) = args.size
        && want != have
    {
        bail!(
            "{} has {}, not {}: give the right size, or remove the file to have it created",
            path.display(),
            size::format(have),
            size::format(want)
        );
    }
    if !args.force && volume::has_pool(&backing).await? {
        bail!("{} already has a pool: --force destroys it and its volumes", path.display());
    }
    if !args.force && volume::has_content(&backing).await? {
        bail!(
            "{} is not empty: perhaps it has a file system (blkid shows it); --force destroys what it holds",
            path.display()
        );
    }
    let layout = Pool::format(&backing, args.cluster_size).await?;
    let clusters = u64::from(layout.clusters);
    println!(
        "{}: {} for volumes, in {clusters} clusters of {}; {} for metadata",
        path.display(),
        size::format(clusters * u64::from(layout.cluster_bytes)),
        size::format(u64::from(layout.cluster_bytes)),
        size::format(layout.data_start)
    );
    Ok(())
}
