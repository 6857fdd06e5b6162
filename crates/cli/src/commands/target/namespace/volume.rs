//! Namespaces that are volumes. A process opens a pool once for all its exported volumes, and
//! closes it when it exports none of them any more.

use anyhow::{Context, bail};
use block::{Backing, FileBacking, FileOptions, Incarnation};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use uuid::Uuid;
use volume::{Pool, WeakPool};

/// A pool that is open, or was open.
struct Known {
    /// The canonical path.
    path: PathBuf,
    is_buffered: bool,
    pool: WeakPool,
}

static POOLS: Mutex<Vec<Known>> = Mutex::new(Vec::new());

fn pools() -> MutexGuard<'static, Vec<Known>> {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Splits `POOL/NAME` into the pool's path and the volume's name.
///
/// # Errors
/// The fault in the text.
pub(super) fn split(text: &str) -> Result<(&Path, &str), String> {
    match text.rsplit_once('/') {
        Some((pool, name)) if !pool.is_empty() && !name.is_empty() => Ok((Path::new(pool), name)),
        _ => Err(format!("{text:?} is not a volume: write volume:POOL/NAME, where POOL is a path")),
    }
}

/// Opens the pool of a volume. It stays open as long as the result, or a volume of it, exists.
///
/// # Errors
/// If the pool cannot be opened.
pub(super) async fn hold(text: &str, is_buffered: bool) -> anyhow::Result<Pool> {
    let (path, _) = split(text).map_err(anyhow::Error::msg)?;
    pool(path, is_buffered).await
}

/// Returns the UUID of a volume, which is also that of its namespace.
///
/// # Errors
/// If the pool cannot be opened or has no such volume.
pub(super) async fn uuid(text: &str, is_buffered: bool) -> anyhow::Result<Uuid> {
    let (path, name) = split(text).map_err(anyhow::Error::msg)?;
    let pool = pool(path, is_buffered).await?;
    let volume = pool.volume(name).with_context(|| format!("cannot open {text}"))?;
    Ok(volume.uuid())
}

/// Opens a volume.
///
/// # Errors
/// If the pool cannot be opened or has no such volume.
pub(super) async fn open(text: &str, is_buffered: bool) -> anyhow::Result<Arc<dyn Backing>> {
    let (path, name) = split(text).map_err(anyhow::Error::msg)?;
    let pool = pool(path, is_buffered).await?;
    let volume = pool.volume(name).with_context(|| format!("cannot open {text}"))?;
    Ok(Arc::new(volume))
}

/// A pool that this process has open.
pub(in crate::commands::target) struct OpenPool {
    /// Its canonical path.
    pub(in crate::commands::target) path: PathBuf,
    pub(in crate::commands::target) pool: Pool,
}

/// Returns the pool at `path`.
///
/// # Errors
/// If this process does not have it open.
pub(in crate::commands::target) fn open_pool(path: &Path) -> anyhow::Result<OpenPool> {
    let path = canonical(path)?;
    let pools = pools();
    let mut known = pools.iter().filter(|known| known.path == path);
    let Some(pool) = known.find_map(|known| known.pool.upgrade()) else {
        bail!("the target exports no volume of {}", path.display());
    };
    drop(pools);
    Ok(OpenPool { path, pool })
}

/// Returns the paths of all pools that this process has open.
pub(in crate::commands::target) fn open_pools() -> Vec<PathBuf> {
    let pools = pools();
    let open = pools.iter().filter(|known| known.pool.upgrade().is_some());
    open.map(|known| known.path.clone()).collect()
}

/// Opens a volume in use again, with its present size.
///
/// # Errors
/// If this process does not use it, or the requested size differs.
pub(super) fn reopen(text: &str, bytes: Option<u64>) -> anyhow::Result<Arc<dyn Backing>> {
    let (path, name) = split(text).map_err(anyhow::Error::msg)?;
    let volume = open_pool(path)?.pool.volume(name)?;
    let present = volume.geometry().size();
    if bytes.is_some_and(|bytes| bytes != present) {
        bail!(
            "{text} is a volume: `tsumugi volume resize {} {name} --size SIZE` resizes it with its \
             namespace",
            path.display()
        );
    }
    Ok(Arc::new(volume))
}

fn canonical(path: &Path) -> anyhow::Result<PathBuf> {
    path.canonicalize().with_context(|| format!("cannot examine {}", path.display()))
}

/// Returns the pool at `path`, if this process has it open.
fn known(path: &Path, is_buffered: bool) -> anyhow::Result<Option<Pool>> {
    let mut pools = pools();
    pools.retain(|known| known.pool.upgrade().is_some());
    let Some(known) = pools.iter().find(|known| known.path == path) else { return Ok(None) };
    if known.is_buffered != is_buffered {
        bail!("{}: give buffered for all volumes of a pool or for none of them", path.display());
    }
    Ok(known.pool.upgrade())
}

async fn pool(path: &Path, is_buffered: bool) -> anyhow::Result<Pool> {
    let path = canonical(path)?;
    if let Some(pool) = known(&path, is_buffered)? {
        return Ok(pool);
    }
    let options = FileOptions {
        block_size: None,
        direct: !is_buffered,
        preallocated: false,
        incarnation: Incarnation::random(),
    };
    let backing = match FileBacking::open_patiently(&path, &options).await {
        Ok(backing) => backing,
        // Another task of this process may have opened it meanwhile.
        Err(error @ block::Error::Locked { .. }) => {
            return known(&path, is_buffered)?.ok_or_else(|| error.into());
        }
        Err(error) => return Err(error.into()),
    };
    let opened = Pool::open(Arc::new(backing)).await;
    let pool = opened.with_context(|| format!("cannot open pool {}", path.display()))?;
    for warning in pool.warnings() {
        eprintln!("tsumugi: pool {}: {warning}; a copy of it is used", path.display());
    }
    let pool_weak = pool.downgrade();
    pools().push(Known { path, is_buffered, pool: pool_weak });
    Ok(pool)
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Fill;

    /// Goal: a pool is closed, and its lock released, when a change does not use its volume after
    /// all.
    #[test]
    fn an_unused_pool_is_closed() {
        reactor::Runtime::new(&reactor::Config::default()).unwrap().block_on(async {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().canonicalize().unwrap().join("pool");
            block::create(&path, 16 << 20, false, Fill::Reserved, |_| {}).await.unwrap();
            let options = FileOptions {
                block_size: None,
                direct: false,
                preallocated: true,
                incarnation: Incarnation::random(),
            };
            let backing: Arc<dyn Backing> = Arc::new(FileBacking::open(&path, &options).unwrap());
            Pool::format(&*backing, 64 << 10).await.unwrap();
            Pool::open(Arc::clone(&backing)).await.unwrap().create("a", 1 << 20).await.unwrap();
            drop(backing);
            let volume = |name: &str| format!("{}/{name}", path.display());
            let is_open = || open_pools().contains(&path);
            let held = hold(&volume("a"), true).await.unwrap();
            uuid(&volume("a"), true).await.unwrap();
            assert!(uuid(&volume("b"), true).await.is_err() && is_open());
            let opened = open(&volume("a"), true).await.unwrap();
            drop(held);
            assert!(is_open());
            drop(opened);
            assert!(!is_open());
            FileBacking::open(&path, &options).unwrap();
        });
    }
}
