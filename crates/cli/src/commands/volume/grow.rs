//! `tsumugi volume grow`: extends a pool.

use super::{backing, size};
use anyhow::{Context, bail};
use block::Backing;
use clap::Args;
use reactor::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use volume::Pool;

/// Arguments of `tsumugi volume grow`.
#[derive(Debug, Args)]
pub(super) struct GrowArgs {
    /// File or block device of the pool
    pool: PathBuf,
    /// New size of the file, with its space reserved [default: the present size of the file or
    /// device]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
}

/// Runs `tsumugi volume grow`.
pub(super) async fn run(args: &GrowArgs) -> anyhow::Result<()> {
    let path = &args.pool;
    // Held all the time, so that no target opens the pool in between.
    let present = backing(path).await?;
    // Refuses a damaged pool before touching the file.
    let sound = Pool::open(Arc::new(present.clone())).await;
    drop(sound.with_context(|| format!("cannot grow pool {}", path.display()))?);
    if let Some(bytes) = args.size {
        lengthen(path, present.file(), bytes).await?;
    }
    let block = u64::from(present.geometry().block_size);
    let whole = present.resized(present.file().size()? / block * block)?;
    let grown = Pool::grow(&*whole).await;
    let (before, after) = grown.with_context(|| format!("cannot grow pool {}", path.display()))?;
    let bytes = |clusters: u32| u64::from(clusters) * u64::from(after.cluster_bytes);
    if before == after {
        println!(
            "{}: has {} for volumes, as before",
            path.display(),
            size::format(bytes(after.clusters))
        );
    } else {
        println!(
            "{}: {} for volumes, and {} before",
            path.display(),
            size::format(bytes(after.clusters)),
            size::format(bytes(before.clusters))
        );
    }
    Ok(())
}

/// Extends the file, with its space reserved. After an error the file has its former length.
async fn lengthen(path: &Path, file: &File, bytes: u64) -> anyhow::Result<()> {
    let have = file.size()?;
    if bytes == have {
        return Ok(());
    }
    if bytes < have {
        bail!("{} has {}: a pool does not become smaller", path.display(), size::format(have));
    }
    if file.is_block_device()? {
        bail!("{} has {}: make the device larger first", path.display(), size::format(have));
    }
    let reserved = match file.fallocate(0, have, bytes - have).await {
        Ok(()) => file.sync_all().await,
        Err(error) => Err(error),
    };
    if reserved.is_err() {
        let _ = file.set_size(have);
    }
    reserved.with_context(|| format!("cannot reserve space for {}", path.display()))
}
